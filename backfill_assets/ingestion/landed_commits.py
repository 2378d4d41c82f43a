"""The commit of what was read of a log: as one snapshot, which says which ranges it has brought.

Put here what a load of a log says of itself, and under which id. What was read, and from where, is said by who reads: `landing` and
`archived_topics`.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import uuid4

from backfill_assets import faults
from backfill_assets.declarations.topics import Topic
from backfill_assets.extraction.refusals import TopicRefused
from backfill_assets.ingestion.held_tables import HeldTable
from backfill_assets.installation import Platform
from manifests.canonical import canonical_json
from manifests.errors import Problem
from manifests.log_ranges import LandedLog, LogIdentity, LogRange, going_on
from resources.lakehouse.landed_logs import taken_back
from resources.lakehouse.loads import (
    ACTOR_PROPERTY,
    FILE_PROPERTY,
    LANDING_FOLDER,
    LOAD_PROPERTY,
    LOG_PROPERTY,
    REJECTED_PROPERTY,
    load_to_make,
)
from resources.ledger.facade import operator
from resources.spark.failures import is_of_lost_worker

_SHOWN = 5
_KEPT_EACH = 1.0
"""Seconds after which the lease of the table is looked at while workers read."""
_Done = TypeVar("_Done")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LoadLanded:
    """One load of ranges: what it has brought, and the snapshot that it was committed as.

    `untimed` is how many of its records the topic's `event_time` found no instant in.
    """

    load_id: str
    snapshot_id: int
    landed: LandedLog
    untimed: int = 0

    @property
    def rows(self) -> int:
        """How many records it has brought."""
        return sum(one.rows for one in self.landed.ranges)


def instant(microseconds: int) -> datetime:
    """Return the instant so many microseconds after 1970."""
    return EPOCH + timedelta(microseconds=microseconds)


def other_rows(platform: Platform, table: str) -> Iterator[Problem]:
    """Say what else than landings has changed the rows of a log's table: which positions it has, nobody could tell then."""
    now = platform.lakehouse.snapshot_id(table)
    others = [] if now is None else platform.lakehouse.other_changes(table, now)
    if others:
        more = f" and {len(others) - _SHOWN:,} more" if len(others) > _SHOWN else ""
        yield Problem(
            f"{table} has rows that no landing has brought: {', '.join(others[:_SHOWN])}{more}",
            "records come into the table of a log by being landed: which ones are there is known by that",
            f"take such a load back: `backfill unload {table} LOAD --by NAME --reason TEXT`; rows of another program have to be removed by it",
        )


def load_id_of(platform: Platform, table: str, log: LogIdentity, ranges: Sequence[LogRange]) -> str:
    """Return the id of a load that begins with some ranges: another one if the table had them and they were taken back."""
    content = hashlib.sha256(canonical_json([log, list(ranges)]).encode()).hexdigest()
    return load_to_make(platform.lakehouse.loads(table), f"{table}:{content}").load_id


def commit_landed(
    platform: Platform,
    table: str,
    load_id: str,
    landed: LandedLog,
    before: Sequence[LandedLog],
    files: Sequence[str],
    held: HeldTable,
    *,
    source: str,
    more: Mapping[str, str],
) -> LoadLanded:
    """Commit files as a load of ranges, `before` which others were landed; `source` names what they are from, `more` are further properties of its snapshot.

    Raises:
        LeaseLost: if this process stood still for so long that somebody else has taken the table over.
    """
    landed = going_on(landed, before, taken_back(platform.lakehouse.table(table), log=landed.log))
    properties = {
        LOAD_PROPERTY: load_id,
        FILE_PROPERTY: source,
        ACTOR_PROPERTY: operator(),
        REJECTED_PROPERTY: "0",
        LOG_PROPERTY: landed.to_json(),
        **more,
    }
    held.keep()
    made = platform.lakehouse.append_files(table, files, properties, token=held.token)
    faults.reach("landing.committed")
    return LoadLanded(load_id, made.snapshot_id, landed)


def landing_folder(platform: Platform, table: str) -> str:
    """Return a folder of a table for the files of one attempt to land: no other has its name."""
    return posixpath.join(
        platform.lakehouse.table(table).location().rstrip("/"), "data", f"{LANDING_FOLDER}{uuid4().hex}"
    )


@contextmanager
def workers_of(topic: Topic) -> Iterator[None]:
    """Refuse a load of a topic one of whose workers has died.

    Raises:
        TopicRefused: then; nothing of the load is landed.
    """
    try:
        yield
    except Exception as error:
        if not is_of_lost_worker(error):
            raise
        by = "" if topic.event_time is None else ", or by what the topic's event_time does"
        raise TopicRefused(
            Problem(
                "a worker process that handled records died without an error message",
                f"the machine ends processes where memory is short{by}; nothing of this load was landed, loads before it were",
                "check the machine's memory and the code that workers run; the same command begins the load anew",
                f"topic {topic.name}",
            )
        ) from error


def kept_while(held: HeldTable, work: Callable[[], _Done]) -> _Done:
    """Do some work in a thread of its own, and keep the table meanwhile.

    Raises:
        LeaseLost: if this process stood still for so long that somebody else has taken the table over.
    """
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(work)
        while True:
            try:
                return job.result(timeout=_KEPT_EACH)
            except NotYet:
                if job.done():  # the work itself was told to wait no longer
                    raise
                held.keep()
