"""Receiving the files of a feed: each is decided upon, its bytes are kept, and all that are taken become one load.

Put here the order of things, safe to end anywhere: bytes are kept first, then every file is on record as seen, then rows are
appended (quarantine first), and last the record says so. The same command again goes on from there. What a file is taken for is
`file_decisions`', what it says `judged_files`', how it came `extraction.arrived_files`'.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow

from backfill_assets import faults
from backfill_assets.declarations.feeds import RejectedRecord
from backfill_assets.declarations.quarantine import FirstRow, Quarantine
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.extraction.arrived_files import Arrivals, Arrived, Spool, arrivals
from backfill_assets.extraction.landed_files import state_of
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.explained_rows import require_explained
from backfill_assets.ingestion.file_archive import ACCEPTED, REJECTED, FileArchive
from backfill_assets.ingestion.file_entries import (
    REFUSED,
    OnRecord,
    OpenedFeed,
    Progress,
    asked_for,
    entries_of,
    facts_of,
)
from backfill_assets.ingestion.held_tables import HeldTable, held_to_load
from backfill_assets.ingestion.judged_files import FileToJudge, JudgedFile, judged_files, record_as_text
from backfill_assets.ingestion.quarantine_parts import part_to_append
from backfill_assets.installation import Platform
from backfill_assets.worker.columns import table_of
from manifests.canonical import sha256_of
from manifests.errors import InputRefused, Problem
from resources.lakehouse.loads import ACTOR_PROPERTY, FILE_PROPERTY, LOAD_PROPERTY, REJECTED_PROPERTY
from resources.ledger.facade import operator
from resources.ledger.imports import LOADED, ImportRecord, ImportStatus

_BATCH_ROWS = 200_000
_BEGUN_ANEW = "its receipt had stopped, and was begun anew by other rules"


@dataclass(frozen=True)
class Received:
    """What a receipt has brought.

    Attributes:
        feed: which one.
        table: what the rows went to.
        by_status: how many files were decided upon, by what became of them.
        seen_again: how many came that were on record already, the same in all.
        skipped: how much came that is none of the feed's.
        not_delivered: how many files the delivery index lists that did not come.
        rows: rows that were appended; `rejected` records that went to the quarantine.
        load_id: of the load; empty where no file brought anything.
        snapshot_id: the table's snapshot that has it; None likewise.
        completed: loads of earlier receipts that had stopped, and were brought to their end first.
        refused: the files that were rejected or quarantined, by path, and why.
        left: what stays in the landing folder, because not all of it is kept: no files, what is larger than allowed, archives with
            such members or damaged ones, and what is none of the feed's.
    """

    feed: str
    table: str
    by_status: Mapping[str, int]
    seen_again: int = 0
    skipped: int = 0
    not_delivered: int = 0
    rows: int = 0
    rejected: int = 0
    load_id: str = ""
    snapshot_id: int | None = None
    completed: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()


def no_progress(_what: str, _done: int, _of: int | None) -> None:
    """Tell nobody."""


def receive(
    platform: Platform,
    name: str,
    sources: Sequence[Path] = (),
    *,
    again: Sequence[str] = (),
    settled_seconds: float = 0.0,
    progress: Progress = no_progress,
) -> Received:
    """Receive what lies in the landing folder of a feed, or at paths: files, folders, archives.

    Args:
        platform: the opened installation.
        name: the feed.
        sources: files, folders and archives; the feed's landing folder where there are none, and nothing is asked for `again`.
        again: file ids of the import ledger whose kept bytes are to be read once more: by a reader or translator of now.
        settled_seconds: files of a folder that were changed within so many seconds are left alone: somebody may be writing them.
        progress: told how far it is.

    Raises:
        InputRefused: if the feed is not declared, a source is not there, its delivery index is missing or cannot be used, a file id is
            not on record, or somebody else receives the same feed just now. Nothing is written then.
        EnvironmentRefused: if the table, or its quarantine, does not have the columns of its model; or if something is to be loaded
            because of what is on record (a receipt has stopped, a file is asked for again), and somebody else than this project has written
            into the import ledger.
        LeaseHeld: if somebody else loads, releases or takes back rows of the table for longer than is waited for.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again.
    """
    feed = platform.products.feed(name)
    table = platform.products.input(feed.table)
    require_declared_columns(platform, table)
    archive = FileArchive(platform.settings.home, feed.name)
    archive.make()
    opened = OpenedFeed(platform, feed, table, archive, progress)
    from_landing = not sources and not again
    with _alone(archive), Spool(archive.folder(ACCEPTED)) as spool:
        came = arrivals(  # first: a source that is refused changes nothing
            feed,
            [archive.landing] if from_landing else sources,
            spool,
            lambda n: progress("reading", n, None),
            settled_seconds=settled_seconds,
        )
        faults.reach("receiving.read")
        _keep_again(opened, came, spool)
        with held_to_load(platform, table.name, "receive") as held:  # the history it decides upon stays what it is
            opened = replace(opened, progress=_keeping(held, progress))
            completed, anew = _complete(opened, held)
            done = _decide_and_load(opened, held, came, again, anew, spool)
        left = _clear(archive.landing, came)
    return replace(done, completed=completed, left=left)


@contextmanager
def _alone(archive: FileArchive) -> Iterator[None]:
    """Let one process at a time receive a feed; one that is killed holds nobody up."""
    lock = archive.folder(ACCEPTED).parent / f".{archive.feed}.lock"
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputRefused(
                Problem(
                    f"somebody else receives the feed {archive.feed} just now",
                    "one receipt of a feed is decided upon at a time",
                    "wait until it is done; the same command then finds what is left",
                )
            ) from None
        yield
    finally:
        os.close(descriptor)


# --- what becomes of each file ----------------------------------------------------------------------------------------


def _keeping(held: HeldTable, progress: Progress) -> Progress:
    """Return a progress that keeps the table while files are gone through."""

    def told(what: str, done: int, of: int | None) -> None:
        held.keep()
        progress(what, done, of)

    return told


def _decide_and_load(
    opened: OpenedFeed, held: HeldTable, came: Arrivals, again: Sequence[str], anew: Sequence[str], spool: Spool
) -> Received:
    on_record = opened.platform.ledger.imports.of_feed(opened.declared.name)
    taken_back = _taken_back(opened)
    known = OnRecord(on_record, taken_back)
    at = opened.platform.ledger.now()
    new, seen_again = known.sort_out(came.files)
    came_again = {(one.path, one.content_hash, one.published_at) for one in new}
    stopped = [known.by_id[file_id] for file_id in anew]
    asked = [one for one in stopped if (one.path, one.content_hash, one.published_at) not in came_again]
    there = {one.file_id for one in asked}
    asked += [asked_for(opened, known, file_id) for file_id in dict.fromkeys(again) if file_id not in there]
    if again:
        require_explained(opened.platform, "imports")
    entries = entries_of(opened, known, new, asked, came, spool, at)
    entries, same = known.without_repetitions(entries)
    seen_again += same
    taken = [one for one in entries if one.status is ImportStatus.SEEN]
    load_id = ""
    if taken:
        load_id = f"{opened.table.name}:{sha256_of([[one.file_id, one.attempt] for one in taken])}"
        entries = [replace(one, load_id=load_id) if one.status is ImportStatus.SEEN else one for one in entries]
    _keep_bytes(opened, entries, came, new, spool)
    faults.reach("receiving.kept")
    if entries or seen_again:
        opened.platform.ledger.imports.record(entries, seen_again, at, token=held.token)
    faults.reach("receiving.recorded")
    snapshot_id = None
    if load_id:
        snapshot_id = _load(opened, held, [one for one in entries if one.status is ImportStatus.SEEN], load_id)
    counted = Counter(str(one.decision) for one in entries)
    in_table = [one for one in entries if one.decision in LOADED]
    return Received(
        opened.declared.name,
        opened.table.name,
        dict(sorted(counted.items())),
        len(seen_again),
        came.skipped,
        came.not_delivered,
        sum(one.rows for one in in_table),
        sum(one.rejected for one in entries),
        load_id,
        snapshot_id,
        refused={one.path: one.reason for one in entries if one.decision in REFUSED},
    )


def _taken_back(opened: OpenedFeed) -> frozenset[str]:
    loads = opened.platform.lakehouse.loads(opened.table.name)
    return frozenset(load.load_id for load in loads if load.undone_by is not None)


# --- bytes and rows ---------------------------------------------------------------------------------------------------


def _keep_bytes(
    opened: OpenedFeed, entries: Sequence[ImportRecord], came: Arrivals, new: Sequence[Arrived], spool: Spool
) -> None:
    places = {one.content_hash: one.place for one in new if one.content_hash}
    for number, one in enumerate(entries):
        refused = one.decision in REFUSED
        if one.content_hash in places:
            kind = REJECTED if refused else ACCEPTED
            opened.archive.keep(kind, one.content_hash, spool.get(places[one.content_hash]))
        opened.progress("keeping", number + 1, len(entries))
    if came.list is not None and entries:
        opened.archive.keep(ACCEPTED, came.list.manifest_id, came.list_content)
    opened.archive.settle()


def _keep_again(opened: OpenedFeed, came: Arrivals, spool: Spool) -> None:
    """Keep the bytes of files that came before once more, where what was kept of them is gone or damaged."""
    known = {one.content_hash for one in opened.platform.ledger.imports.of_feed(opened.declared.name)}
    for one in came.files:
        if one.content_hash and one.content_hash in known and not opened.archive.has(one.content_hash):
            opened.archive.keep(ACCEPTED, one.content_hash, spool.get(one.place))


def _load(opened: OpenedFeed, held: HeldTable, taken: Sequence[ImportRecord], load_id: str) -> int | None:
    """Append the rows of files whose bytes are kept, as one load, and have that on record; safe to repeat."""
    platform, table = opened.platform, opened.table.name
    if (there := _snapshot_of(opened, load_id)) is not None:
        platform.ledger.imports.settle(load_id, there)
        return there
    counted, first = _reasons(opened, taken)
    properties = {
        LOAD_PROPERTY: load_id,
        FILE_PROPERTY: f"{len(taken):,} file(s) of the feed {opened.declared.name}",
        ACTOR_PROPERTY: operator(),
        REJECTED_PROPERTY: str(counted.total()),
    }
    quarantine = platform.products.quarantine_of(opened.table).name
    part = part_to_append(platform, quarantine, load_id, counted, first, token=held.token)
    if part is not None:
        platform.lakehouse.append(quarantine, _quarantined(opened, taken), {**properties, **part}, token=held.token)
    faults.reach("receiving.quarantined")
    snapshot_id = None
    if any(one.rows for one in taken):
        platform.lakehouse.append(table, _rows(opened, taken), properties, token=held.token)
        snapshot_id = _snapshot_of(opened, load_id)
    faults.reach("receiving.appended")
    platform.ledger.imports.settle(load_id, snapshot_id)
    faults.reach("receiving.settled")
    return snapshot_id


def _snapshot_of(opened: OpenedFeed, load_id: str) -> int | None:
    """Return the snapshot that has brought a load; None where none has."""
    loads = opened.platform.lakehouse.loads(opened.table.name)
    return next((one.snapshot_id for one in loads if one.load_id == load_id), None)


class OtherRulesError(InputRefused):
    """A file says something else than when it was decided upon: the code has changed since."""


def _judged_again(opened: OpenedFeed, taken: Sequence[ImportRecord]) -> Iterator[tuple[ImportRecord, JudgedFile]]:
    """Yield what files say whose bytes are kept, in the order of their entries, and hold it against what is on record.

    Raises:
        OtherRulesError: if it is something else by now.
    """
    files = [
        FileToJudge(facts_of(opened, one), partial(opened.archive.read, one.content_hash), one.file_id) for one in taken
    ]
    for number, (one, judged) in enumerate(zip(taken, judged_files(files, opened.declared, opened.table), strict=True)):
        rows = judged.rows.height if one.decision in LOADED else 0
        by_other_code = one.translator_version != opened.declared.translator_version
        if by_other_code or (rows, len(judged.rejected)) != (one.rows, one.rejected):
            raise OtherRulesError(
                Problem(
                    f"{one.path} now has {rows:,} rows and {len(judged.rejected):,} rejected records, and had {one.rows:,} and {one.rejected:,}",
                    "a translator is pure: the same file gives the same rows, each time that it is read",
                    "correct the translator, and receive once more: the bytes are kept",
                )
            )
        opened.progress("loading", number + 1, len(taken))
        yield one, judged


def _reasons(opened: OpenedFeed, taken: Sequence[ImportRecord]) -> tuple[Counter[str], dict[str, FirstRow]]:
    """Return how many records go to the quarantine, by rule, and the first of each."""
    counted: Counter[str] = Counter()
    first: dict[str, FirstRow] = {}
    for one, judged in _judged_again(opened, [one for one in taken if _has_quarantined(one)]):
        for rejected, _ in _to_quarantine(one, judged):
            counted[rejected.rule] += 1
            first.setdefault(rejected.rule, FirstRow(rejected.row, rejected.detail))
    return counted, first


def _has_quarantined(one: ImportRecord) -> bool:
    return one.rejected > 0 or one.decision is ImportStatus.QUARANTINED


def _to_quarantine(one: ImportRecord, judged: JudgedFile) -> Sequence[tuple[RejectedRecord, Mapping[str, Any]]]:
    """Return what of a file goes to the quarantine; of one that is refused for no record's sake, one that stands for it."""
    if judged.rejected or one.decision is not ImportStatus.QUARANTINED:
        return judged.rejected
    facts = {"path": one.path, "content_hash": one.content_hash, "records": str(judged.total)}
    return [(RejectedRecord(0, one.reason), facts)]


def _quarantined(opened: OpenedFeed, taken: Sequence[ImportRecord]) -> Iterator[Any]:
    schema = iceberg_schema(Quarantine).as_arrow()
    rows: list[dict[str, Any]] = []
    for one, judged in _judged_again(opened, [one for one in taken if _has_quarantined(one)]):
        rows += (
            {
                "source_file": one.path,
                "source_row": rejected.row,
                "reason": rejected.rule,
                "detail": rejected.detail or rejected.rule,
                "record": record_as_text(fields),
                "ingested_at": one.first_seen,
            }
            for rejected, fields in _to_quarantine(one, judged)
        )
        if len(rows) >= _BATCH_ROWS:
            yield arrow.Table.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield arrow.Table.from_pylist(rows, schema=schema)


def _rows(opened: OpenedFeed, taken: Sequence[ImportRecord]) -> Iterator[Any]:
    schema = iceberg_schema(opened.table.model)
    frames: list[pl.DataFrame] = []
    height = 0
    for _, judged in _judged_again(opened, [one for one in taken if one.rows]):
        frames.append(judged.rows)
        height += judged.rows.height
        if height >= _BATCH_ROWS:
            yield table_of(pl.concat(frames), schema)
            frames, height = [], 0
    if frames:
        yield table_of(pl.concat(frames), schema)


def _complete(opened: OpenedFeed, held: HeldTable) -> tuple[tuple[str, ...], list[str]]:
    """Bring receipts to their end that have stopped after their files were on record.

    Returns their loads; and the file ids of those that are to be decided upon anew, because the product's code has changed since.
    """
    left: dict[str, list[ImportRecord]] = {}
    on_record = opened.platform.ledger.imports.of_feed(opened.declared.name)
    newest = {(one.path, one.content_hash): one for one in on_record}
    # a receipt may have stopped between giving up and deciding anew
    anew = [one.file_id for one in newest.values() if one.reason == _BEGUN_ANEW]
    for one in on_record:
        if one.status is ImportStatus.SEEN:
            left.setdefault(one.load_id, []).append(one)
    if left or anew:
        require_explained(opened.platform, "imports")
    completed = []
    for load_id, taken in left.items():
        try:
            _load(opened, held, taken, load_id)
            completed.append(load_id)
        except OtherRulesError:
            quarantine = opened.platform.products.quarantine_of(opened.table).name
            part_to_append(
                opened.platform, quarantine, load_id, {}, {}, token=held.token
            )  # takes back what is there of it
            opened.platform.ledger.imports.give_up(load_id, _BEGUN_ANEW)
            anew += [one.file_id for one in taken]
    return tuple(completed), anew


def _clear(landing: Path, came: Arrivals) -> tuple[str, ...]:
    """Take out of the landing folder what is kept elsewhere by now, as long as it is what was read; return what stays there."""
    for place, state in came.whole.items():
        if landing in place.parents:
            with suppress(OSError):  # somebody else has taken it away
                if state_of(place.lstat()) == state:
                    place.unlink()
    return tuple(sorted(path for place, path in came.left.items() if landing in place.parents))
