"""Putting on record what happens to a published run: a record of the rows that changed, and the link that vouches for it.

Put here when a record is due, and how it is written. Every record brings the kept rows of the ledger up to date: what a run's
rows are to be today is its bundle's rows, changed by its records, one after the other. Everything is safe to repeat: what is
recorded is not recorded again, what a crash left out is made up for by the next call.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from backfill_assets import faults
from backfill_assets.evidence.bundles import ALL_TABLES, RUN_FILE, bundle_in_use, damaged_tables, root_of
from backfill_assets.evidence.events import ADOPTED, MOVED, RESTORED, SUPERSEDED
from backfill_assets.evidence.record_damage import harmed_among, refuse_harmed
from backfill_assets.evidence.record_order import in_order, moved_on, name_of, newest_instant
from backfill_assets.evidence.records import (
    OF_A_CHANGE,
    Record,
    is_about,
    is_adopted,
    is_linked,
    kept_rows,
    records_of,
    vouched_for,
)
from backfill_assets.evidence.seals import COMMITTED, adopted_commits, commits_of
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from manifests.lifecycle import WAS_PUBLISHED, RunState
from resources.evidence.chain import Link
from resources.files.kept_files import json_of, read_kept
from resources.files.places import Place, is_there
from resources.ledger.facade import RunRecord
from resources.ledger.moments import Moment
from resources.ledger.rows import MOVING, Row, Rows, changes_of, fold, hashes_of

_LOG = logging.getLogger(__name__)
_NEWER = 50
"""How many rows of a table may have come after a record, where they are told from those before it by a hash."""


def tell(platform: Platform, record: RunRecord, action: str, facts: Mapping[str, Any], number: int) -> int:
    """Record a change that a run made of its tables, and what that did to the records of other runs.

    `number` counts the run's changes; those before it that no record tells of are recorded first. Nothing is recorded twice.

    Returns the run's newest entry in the ledger's journal whose rows its records know for certain, see `catch_up`.
    """
    due = [(place, said) for place, said in untold(platform, record) if place < number]
    due.append((number, {**facts, "action": action}))
    records = records_of(platform, record.run_id)
    linked = [one for one in records if one.number and is_linked(platform, record.run_id, one)]
    done = _committed(platform, record.run_id)
    for place, said in due:
        if not _tells_of(linked, done, place):  # before anybody waits for the ledger
            said[COMMITTED] = commits_of(platform, record, said["action"], place, int(said["snapshot_id"]))
    with platform.ledger.holding(record.target) as moment:
        known = moment.newest_entry(record.run_id)  # before its rows: on a server others add some meanwhile
        for place, said in due:
            is_told = partial(_tells_of, done=done, place=place)
            _record(platform, moment, record.run_id, said["action"], said, name_of(said["action"], place), is_told)
        for run_id in moment.runs_moved_by(record.target, record.run_id):
            try:
                _record(platform, moment, run_id, MOVED, {"by": record.run_id, "action": action})
            except (
                OSError,
                ArithmeticError,
                AttributeError,
                LookupError,
                RecursionError,
                TypeError,
                ValueError,
                EnvironmentRefused,
                PublicationRefused,
            ) as damage:  # of another run: it must not stop this one
                _LOG.warning(
                    "the evidence of %s cannot be continued: %s; see `backfill verify %s`", run_id, damage, run_id
                )
    return known


def untold(platform: Platform, record: RunRecord) -> list[tuple[int, dict[str, Any]]]:
    """Return the changes of a run that the ledger has and no record tells of: the number of each, and what a record says of it.

    None of a run of an earlier version, which recorded less of them.
    """
    run_id = record.run_id
    records = records_of(platform, run_id)
    has_rows = is_there(bundle_in_use(platform, run_id) / RUN_FILE)
    is_of_ours = has_rows and not any(one.number and one.content["event"] == ADOPTED for one in records)
    if not is_of_ours or is_adopted(platform, run_id):
        return []
    done = _committed(platform, run_id)
    said = [
        (number, {name: one[name] for name in (*OF_A_CHANGE, "action")}) for number, one in enumerate(done, start=1)
    ]
    return [(number, facts | {"run_id": run_id}) for number, facts in said if not _tells_of(records, done, number)]


def _committed(platform: Platform, run_id: str) -> list[dict[str, Any]]:
    """Return the entries of a run's changes, in their order."""
    return [one.as_record() for one in platform.ledger.landed(run_id)]


def _tells_of(records: Sequence[Record], done: Sequence[Mapping[str, Any]], place: int) -> bool:
    """Whether one of a run's records that change rows is that of its change of this place, which counts from 1.

    Its name alone says nothing. Nor does the snapshot: a version that is renamed back and forth has one and the same, and
    as many records as changes.
    """

    def what(said: Mapping[str, Any]) -> tuple[Any, Any]:
        return said.get("action"), said.get("snapshot_id")

    if place > len(done):
        return False
    entry = done[place - 1]
    about = [one for one in records if one.number and what(one.content) == what(entry)]
    names = {name_of(entry["action"], place), f"{entry['action']}-{place}"}
    times = sum(what(one) == what(entry) for one in done[:place])
    return len(about) >= times or any(one.name in names for one in about)


def catch_up(
    platform: Platform, run_id: str, event: str, facts: Mapping[str, Any], *, known: int | None = None
) -> bool:
    """Record what the rows of a published run say by now and no record does; return whether there was anything.

    With `known`, the run's entry in the journal up to which its records know its rows: without a later one no transaction has changed
    any of them, and what was changed otherwise is never recorded.
    """
    record = platform.ledger.run(run_id)
    if record.state not in WAS_PUBLISHED:
        return False
    with platform.ledger.holding(record.target) as moment:
        if known is not None and moment.newest_entry(run_id) == known:
            return False
        return _record(platform, moment, run_id, event, facts)


def is_behind(platform: Platform, record: RunRecord) -> str:
    """Say what the evidence of a published run does not know yet; empty if it knows everything."""
    if record.state not in WAS_PUBLISHED or not platform.evidence.bundles(record.run_id):
        return ""  # without a bundle there is more to be said than that
    records = records_of(platform, record.run_id)
    with platform.ledger.holding() as moment:
        linked, late = in_order(platform, moment, record.run_id, records)
        if late:
            return f"record {late[0].name} has no link in the chain"
        kept = kept_rows(bundle_in_use(platform, record.run_id), linked, sorted(MOVING))
        if kept is None:
            if linked:
                return ""  # it had rows once: whoever looks at the bundle finds more wrong with it than that
            return "it was published before the evidence kept rows and had a chain"
        new = moved_on(moment, record.run_id, kept)
    return f"{new[0].where} has moved on since the last record" if new else ""


def _record(
    platform: Platform,
    moment: Moment,
    run_id: str,
    event: str,
    facts: Mapping[str, Any],
    name: str | None = None,
    is_told: Callable[[Sequence[Record]], bool] = lambda _records: False,
) -> bool:
    """Write a record of what has changed of a run's rows, and its link; return whether anything was missing.

    `is_told` says whether one of those that are there is the one of that name.
    """
    store = platform.evidence
    if not store.bundles(run_id):
        return False
    follows = store.chain.length()
    records = records_of(platform, run_id)
    _require_readable(platform, run_id, records)
    linked, late = in_order(platform, moment, run_id, records)
    refuse_harmed(run_id, harmed_among(platform, moment, run_id, linked))
    made_up = [_link(platform, run_id, one) for one in late]
    numbered = [*linked, *late]
    bundle = bundle_in_use(platform, run_id)
    beside = vouched_for(platform, run_id, records)
    if name is not None and (is_told(numbered) or any(one.name == name for one in beside)):
        event, facts, name = MOVED, {}, None  # told before: what is left is what came after it
    moved = _moved_since(platform, moment, run_id, bundle, numbered)
    if moved is None:
        return False
    if moved.adopted is not None:
        event, facts = ADOPTED, {**facts, COMMITTED: moved.adopted}
    if event == MOVED:
        event = _what_moved(moved.changes)
    if name is None and not moved.changes:
        return bool(made_up)
    rows, number = moved.kept, len(numbered) + 1
    fold(rows, moved.changes)
    hashes = (dict(numbered[-1].content.get("tables", {})) if numbered else {}) | hashes_of(rows)
    content = {
        **facts,
        "event": event,
        "run_id": run_id,
        "number": number,
        "bundle": bundle.name,
        "evidence_root": root_of(bundle),
        "follows": follows,
        "at": newest_instant(moved.changes) or newest_instant(rows),
        "rows": moved.changes,
        "tables": {table: hash_ for table, hash_ in hashes.items() if table not in moved.damaged},
        "beside": {one.name: one.hash for one in beside},
    }
    _append(platform, moment, run_id, name or f"{event}-{number}", content)
    return True


def _require_readable(platform: Platform, run_id: str, records: Sequence[Record]) -> None:
    """Refuse to go on from a run's records where one cannot be read.

    Raises:
        EnvironmentRefused: naming the first one.
    """
    for one in records:
        if not one.is_readable:
            raise EnvironmentRefused(
                Problem(
                    f"{platform.evidence.records(run_id) / one.name}.json is {one.hash}",
                    "it may say what has happened before: nothing is recorded past a record that cannot be read",
                    f"`backfill verify {run_id}`; find out who has put it there, and put back the file that belongs there",
                )
            )


@dataclass(frozen=True)
class _Moved:
    """What has changed of a run's rows since its last record.

    Attributes:
        kept: the rows as the evidence has them.
        changes: the cells that have lawfully changed since, by table and key.
        damaged: tables of which the evidence no longer has the rows: no hash of them can be given.
        adopted: what the tables have of the commits of a run that comes under the chain with this record; None for others.
    """

    kept: Rows
    changes: dict[str, dict[str, Row]]
    damaged: frozenset[str]
    adopted: list[dict[str, Any]] | None = None


def _moved_since(
    platform: Platform, moment: Moment, run_id: str, bundle: Place, numbered: Sequence[Record]
) -> _Moved | None:
    """Return what has changed since the last record; None where what a record would go on from is not there any more."""
    # the first record has the hash of every table; only those that may move are read again
    read = MOVING if numbered else ALL_TABLES
    damaged = read & damaged_tables(bundle, run_id)
    if "runs" in damaged and not is_there(bundle / RUN_FILE):
        return None
    kept = kept_rows(bundle, numbered, sorted(read - damaged))
    if kept is None and numbered:
        return None  # the bundle that they go on from is not there any more: nothing is to stand in for it
    if kept is None:
        found = moment.rows_of(run_id)
        changes = {table: dict(rows) for table, rows in found.items()}
        return _Moved({}, changes, damaged, adopted_commits(platform, found))
    known = _as_hashed(moment, run_id, damaged, numbered)
    kept |= known
    damaged -= known.keys()
    moving = {table: rows for table, rows in kept.items() if table in MOVING}
    return _Moved(kept, changes_of(moved_on(moment, run_id, moving, MOVING - damaged)), damaged)


def _append(platform: Platform, moment: Moment, run_id: str, name: str, content: Mapping[str, Any]) -> None:
    """Write a record and append its link."""
    store = platform.evidence
    _require_free(store.records(run_id) / f"{name}.json")
    # a server ends a transaction that stands still, and others record in its place then
    still = moment.touch
    file = store.append(run_id, name, content, still)
    faults.reach("recording.written")
    raw = read_kept(file)
    _link(platform, run_id, Record(file.stem, hashlib.sha256(raw).hexdigest(), json_of(raw)), still)


def _as_hashed(
    moment: Moment, run_id: str, tables: Collection[str], numbered: Sequence[Record]
) -> dict[str, dict[str, Row]]:
    """Return the rows of tables as the last record has their hash; where the bundle was damaged, the ledger may have them.

    What came after that record are the newest rows of the ledger. A table is left out if no such rows have the hash.
    """
    hashes = numbered[-1].content.get("tables", {}) if numbered else {}
    found: dict[str, dict[str, Row]] = {}
    for table, rows in moment.rows_of(run_id, sorted(tables & hashes.keys())).items():
        for newer in range(min(len(rows), _NEWER) + 1):
            older = dict(list(rows.items())[: len(rows) - newer])
            if hashes_of({table: older})[table] == hashes[table]:
                found[table] = older
                break
    return found


def _require_free(file: Place) -> None:
    """Refuse to take a file for a record that it is not.

    Raises:
        PublicationRefused: if somebody has put one there.
    """
    if file.exists():
        raise PublicationRefused(
            Problem(
                f"{file} is there, and is not the record that is due",
                "a record says what a link of the chain vouches for, or what the ledger's rows say",
                "move it out of the folder, keep it, find out who has put it there, and run the same command again: "
                "what has landed is not done twice",
            )
        )


def _what_moved(changes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Return what another run's change did to a run: took chunks over, or gave them back."""
    held = changes.get("accepted_versions", {}).values()
    if any("accepted_at" in row and row.get("ended_at") is None for row in held):
        return RESTORED
    return SUPERSEDED if any(row.get("ended_how") == RunState.SUPERSEDED for row in held) else MOVED


def _link(platform: Platform, run_id: str, record: Record, still: Callable[[], object] | None = None) -> Link:
    """Append the link of a record, if it has none; `still` as in `Chain.append`."""
    said = record.content
    content = {
        "event": said.get("event"),
        "run": run_id,
        "record": record.name,
        "recordHash": record.hash,
        "root": said.get("evidence_root"),
        "rows": sha256_of(said.get("tables")),
        "at": said.get("at"),
    }

    def same(link: Mapping[str, Any]) -> bool:
        return is_about(link, run_id, record)

    return platform.evidence.chain.append(content, since=int(said.get("follows", 0)), same=same, still=still)
