"""What nothing needs any more: staged files of dead runs, old snapshots; found, shown, and only then removed.

Put here the policy: which runs are over, what the others need, which files and snapshots are left. How files are listed
and deleted is `resources.lakehouse.storage`'s, what metadata references `resources.lakehouse.history`'s. Evidence is never touched, nor
is a run or folder that the ledger does not know. Everything is looked at again just before it is removed, and a
collection that was killed is repeated by the same command.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any
from uuid import uuid4

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from backfill_assets import faults
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.events import GC
from backfill_assets.installation import Platform
from backfill_assets.operations import dead_landings
from backfill_assets.operations.garbage_found import (
    GRACE,
    LEFTOVER,
    MANIFEST,
    OUTLINE,
    SCRATCH,
    STAGED,
    Collected,
    Garbage,
    TableGarbage,
)
from backfill_assets.operations.released_pins import needed_pins, releasable, release, tables_read
from backfill_assets.planning.compacting import outlived
from backfill_assets.planning.pinned_snapshots import keep as keep_pins
from backfill_assets.publication.leasing import collecting_lease
from backfill_assets.publication.topic_publishing import lacking
from manifests.compaction import COMPACTION
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from manifests.lifecycle import RunState
from resources import logs
from resources.lakehouse.facade import RUN_PROPERTY
from resources.lakehouse.file_splits import SPLIT_FOLDER
from resources.lakehouse.history import Referenced, expirable, forget, referenced
from resources.lakehouse.lineage import amended_base_tag, base_tag, withdrawn
from resources.lakehouse.storage import FileFound, Storage, place_of
from resources.ledger.facade import RunRecord
from resources.settings import Settings

_log = logging.getLogger(__name__)
_DEAD = frozenset({RunState.CANCELLED, RunState.REJECTED, RunState.ROLLED_BACK})
_FINISHED = _DEAD | {RunState.SUPERSEDED}
_OUTLINED = frozenset({RunState.VALIDATED, RunState.PUBLISHED, RunState.SUPERSEDED})
"""States after the gates: an outline that no chunk names will not be named any more."""
_RUN, _SCRATCH, _ATTEMPT, _OUTLINES = "run=", "reproduce=", "attempt-", "outlines"
_ENTITIES = "_entities"
_AT_ONCE = 100


def find(platform: Platform, *, at: datetime) -> list[TableGarbage]:
    """Return what nothing needs at an instant (now, but for tests), by target. Changes nothing.

    Raises:
        EnvironmentRefused: if metadata cannot be read, or the clock lies behind the ledger's.
    """
    _require_clock(platform, at)
    found, look = [], _look(platform, at)
    for target in _targets(platform):
        for name in (*target.changed_tables, target.changes):
            try:
                table = platform.lakehouse.table(name)
            except InputRefused:
                continue  # declared and not made yet: there is nothing of it
            found.append(_of_table(platform, target.name, table, at, look))
    return [*found, *_released_pins(platform, at), *dead_landings.find(platform, at)]


def _needed_pins(platform: Platform, at: datetime) -> dict[str, set[int]]:
    records = platform.ledger.runs()
    return needed_pins(platform, records, runs_over(platform, records, at))


def _released_pins(platform: Platform, at: datetime) -> list[TableGarbage]:
    """Return the tags that keep, in tables which are read, what only runs that are over have read."""
    needed = _needed_pins(platform, at)
    found = {name: releasable(platform, name, needed.get(name, set())) for name in tables_read(platform)}
    return [TableGarbage("", name, tuple(tags), (), ()) for name, tags in found.items() if tags]


def _targets(platform: Platform) -> list[TargetTable]:
    return sorted(platform.products.targets, key=lambda one: one.name)


def tables(platform: Platform) -> list[str]:
    """Return every table of which something is collected."""
    return [name for target in _targets(platform) for name in (*target.changed_tables, target.changes)]


def _require_clock(platform: Platform, at: datetime) -> None:
    ahead = {
        name: instant for name, instant in platform.ledger.repairs.newest_instants().items() if instant > at + GRACE
    }
    if ahead:
        raise EnvironmentRefused(
            Problem(
                f"the ledger has records of the future: {', '.join(f'{n} {i.isoformat()}' for n, i in ahead.items())}",
                "retention is counted by a clock that is right",
                "set this machine's clock; see `backfill doctor`",
            )
        )


def lapsed(record: RunRecord, settings: Settings, at: datetime) -> bool:
    """Return whether policy no longer keeps what a run needs."""
    if record.state in _DEAD:
        return record.updated_at < at - timedelta(days=settings.keep_dead_runs_days)
    if record.state is RunState.SUPERSEDED:
        return record.updated_at < at - timedelta(days=settings.keep_superseded_days)
    return False


@dataclass(frozen=True)
class _Look:
    """All runs as they are on record, those that are over, and the snapshots that the others were planned on, read, made or replaced."""

    records: Sequence[RunRecord]
    over: Mapping[str, RunRecord]
    needed: frozenset[int]

    @property
    def keepers(self) -> set[str]:
        """The runs that policy keeps."""
        return {one.run_id for one in self.records if one.run_id not in self.over}


def _look(platform: Platform, at: datetime) -> _Look:
    records = platform.ledger.runs()
    over = runs_over(platform, records, at)
    look = _Look(records, over, frozenset())
    return replace(look, needed=frozenset(_needed_by(platform, look.keepers)))


def _of_table(platform: Platform, target: str, table: Table, at: datetime, look: _Look) -> TableGarbage:
    name = ".".join(table.name())
    before = _keeping_since(platform.settings, at)
    refs, snapshots = _forgettable(table, look, before)
    storage = Storage(table)
    left: dict[str, str] = {}
    mine = {record.run_id: record for record in look.records if record.target == target}
    candidates = list(_candidates(platform, storage, mine, look.over, at, left))
    candidates += _old_manifests(storage, before)
    if candidates:
        kept = {one.snapshot_id for one in table.snapshots()} - set(snapshots)
        live = [referenced(table, kept), *map(referenced, _beside(platform, name))]
        candidates = [item for item in candidates if not any(item.file.path in one for one in live)]
    return TableGarbage(target, name, tuple(refs), tuple(snapshots), tuple(candidates), left)


def _keeping_since(settings: Settings, at: datetime) -> datetime:
    """Return the instant since which every snapshot and manifest is kept, whether or not anything needs it."""
    return at - max(timedelta(days=settings.keep_snapshots_days), GRACE)


def _forgettable(table: Table, look: _Look, before: datetime) -> tuple[list[str], list[int]]:
    """Return the refs and snapshots of a table that no run needs which policy keeps."""
    refs = _released_refs(table, look.over)
    needed = {*look.needed, *_made_by(table, look.keepers)}
    return refs, expirable(table, needed, before_ms=int(before.timestamp() * 1000), released=refs)


def runs_over(platform: Platform, records: Sequence[RunRecord], at: datetime) -> dict[str, RunRecord]:
    """Return the runs that are over for good, by id: lapsed, holding no chunk, and with no publication in doubt.

    A compaction stays PUBLISHED, and is past like a superseded run, once nobody gets its files any more.
    """
    over = {record.run_id: record for record in records if lapsed(record, platform.settings, at)}
    compactions = {record.run_id: record for record in records if record.kind == COMPACTION}
    before = at - timedelta(days=platform.settings.keep_superseded_days)
    for target in sorted({record.target for record in compactions.values()}):
        gone = [run_id for run_id, since in outlived(platform, target).items() if since < before]
        over |= {run_id: compactions[run_id] for run_id in gone if run_id in compactions}
    for target in sorted({record.target for record in over.values()}):
        for holder in platform.ledger.accepted(target).values():
            over.pop(holder, None)
    for run_id, terms in platform.ledger.terms(over.keys()).items():
        if terms.approved.topics and any(lacking(platform, over[run_id])):
            del over[run_id]  # its rows are still to be told, or to be taken back, where its events go
    for run_id in platform.ledger.undecided():
        over.pop(run_id, None)  # what became of it is for `backfill doctor` to find out first
    return over


def _released_refs(table: Table, over: Mapping[str, RunRecord]) -> list[str]:
    """Return the refs that keep the base or the candidate of a run that is over: each is our own, and where we put it.

    The names of versions stay: whoever asks for one by name still finds it. So does the branch of one that has a name: it
    keeps the base as well, without which the version can be brought back and not be accepted.
    """
    released = []
    for name, ref in table.refs().items():
        kind, _, rest = name.partition("-")
        run_id, _, _ = rest.partition("@")
        record = over.get(run_id)
        if record is None:
            continue
        is_tag = ref.snapshot_ref_type is SnapshotRefType.TAG
        is_base = name == amended_base_tag(run_id, ref.snapshot_id) or (
            name == base_tag(run_id) and record.plan.base_snapshot_id == ref.snapshot_id
        )
        if (is_base and is_tag) or (
            kind == "candidate" and not is_tag and not _is_named(table, record, ref.snapshot_id)
        ):
            released.append(name)
    return sorted(released)


def _is_named(table: Table, record: RunRecord, candidate: int) -> bool:
    """Whether a run's candidate is a version that can be asked for by its name."""
    version = record.plan.version
    names = () if version is None else (version, withdrawn(version))
    return any((ref := table.refs().get(name)) is not None and ref.snapshot_id == candidate for name in names)


def _needed_by(platform: Platform, keepers: Container[str]) -> set[int]:
    """Return the snapshots, of whichever table, that the runs policy keeps were planned on, read, made or replaced."""
    needed: set[int | None] = set()
    for run_id, terms in platform.ledger.terms().items():
        for plan in terms.each if run_id in keepers else ():
            needed |= {plan.base_snapshot_id, plan.corrections_base_snapshot_id}
            needed |= {snapshot_id for _, snapshot_id in plan.source_pins}
            needed |= {pin.snapshot_id for pin in plan.references}
            needed.add(plan.merge.changed_since if plan.merge else None)
            needed |= {one.snapshot_id for one in (plan.merge.sources if plan.merge else ())}
    for run_id, entries in platform.ledger.all_publications().items():
        for entry in entries if run_id in keepers else ():
            needed |= {entry.base_snapshot_id, entry.snapshot_id}
    needed |= {mark.source_snapshot_id for mark in platform.ledger.repairs.open_watermarks()}
    return {one for one in needed if one is not None}


def _made_by(table: Table, keepers: Container[str]) -> set[int]:
    """Return the snapshots of a table that runs have made, and those before them: also what landed and nobody could record."""
    found: set[int | None] = set()
    for snapshot in table.snapshots():
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if summary.get(RUN_PROPERTY) in keepers:
            found |= {snapshot.snapshot_id, snapshot.parent_snapshot_id}
    return {one for one in found if one is not None}


def _beside(platform: Platform, table: str) -> list[Table]:
    """Return the other tables of a table's namespace: a file may be shared with one of them."""
    return [platform.lakehouse.table(name) for name in platform.lakehouse.beside(table)]


# --- files ------------------------------------------------------------------------------------------------------------


def _candidates(
    platform: Platform,
    storage: Storage,
    records: Mapping[str, RunRecord],
    over: Mapping[str, RunRecord],
    at: datetime,
    left: dict[str, str],
) -> Iterator[Garbage]:
    for folder in sorted(storage.folders(posixpath.join(storage.location, "data"))):
        name = posixpath.basename(folder)
        if name.startswith((_SCRATCH, SPLIT_FOLDER)):
            files = storage.files(folder)
            if all(_older(file, at - GRACE) for file in files):
                yield from (Garbage(SCRATCH, name, file) for file in files)
        elif name.startswith(_RUN):
            record = records.get(name.removeprefix(_RUN))
            if record is None:
                left[folder] = "the ledger does not know this run"
            elif record.run_id in over:
                yield from (Garbage(_kind(folder, file), record.run_id, file) for file in storage.files(folder))
            elif record.state is not RunState.RUNNING:
                yield from _unnamed(platform, storage, record, folder, at)


def _unnamed(platform: Platform, storage: Storage, record: RunRecord, folder: str, at: datetime) -> Iterator[Garbage]:
    """Yield the files of ended attempts, and the outlines, that no chunk names."""
    named = {place_of(text) for text in platform.ledger.repairs.named_paths(record.run_id)}
    in_use = {posixpath.dirname(path) for path in named}
    for attempt in platform.ledger.attempts(record.run_id):
        top = f"{folder}/{_ATTEMPT}{attempt.attempt}"
        if attempt.ended_at is None or attempt.ended_at > at - GRACE:
            continue
        used = any(one == top or one.startswith(f"{top}/") for one in in_use)
        for file in storage.files(top):
            beside = posixpath.dirname(file.path)  # Spark's checksums lie beside the files, its mark at the top
            kept = used and beside in {top, f"{top}/{_ENTITIES}"}
            if file.path not in named and beside not in in_use and not kept:
                yield Garbage(_kind(folder, file), record.run_id, file)
    if record.state in _OUTLINED:
        for file in storage.files(f"{folder}/{_OUTLINES}"):
            sidecar_of = posixpath.join(
                posixpath.dirname(file.path), posixpath.basename(file.path).removeprefix(".").removesuffix(".crc")
            )
            if not {file.path, sidecar_of} & named and _older(file, at - GRACE):
                yield Garbage(OUTLINE, record.run_id, file)


def _kind(folder: str, file: FileFound) -> str:
    first, *_, name = file.path.removeprefix(f"{folder}/").split("/")
    if first == _OUTLINES:
        return OUTLINE
    if "/_temporary/" in file.path or name.startswith(("_", ".")) or not name.endswith(".parquet"):
        return LEFTOVER
    return STAGED


def _old_manifests(storage: Storage, before: datetime) -> Iterator[Garbage]:
    """Yield manifests and manifest lists as old as the snapshots that may go; those in use are taken out later."""
    for file in storage.files(posixpath.join(storage.location, "metadata")):
        if file.path.endswith(".avro") and _older(file, before):
            yield Garbage(MANIFEST, "", file)


def _older(file: FileFound, instant: datetime) -> bool:
    """Return whether a file is older than an instant; one of unknown age is not."""
    return 0 < file.modified_ns < instant.timestamp() * 1e9


# --- collecting -------------------------------------------------------------------------------------------------------


def collect(
    platform: Platform,
    listed: Sequence[TableGarbage],
    *,
    by: str,
    at: datetime,
    confirmed: date | None = None,
    tell: Callable[[int], None] = lambda _: None,
) -> list[Collected]:
    """Remove what was listed, as far as nothing needs it now either; put a record of it beside the evidence.

    Safe to kill and to repeat. `tell` is given the number of files of each batch that was worked through. `at` is an
    instant that is believed (see `clock`); `confirmed` is the date by which somebody has vouched for it, for the record.

    Raises:
        EnvironmentRefused: if metadata cannot be read, or somebody made or moved a ref at the same moment.
        LeaseHeld: if somebody publishes to the target, or takes a publication back.
    """
    done = []
    for item in listed:
        if not (item.refs or item.snapshots or item.files):
            continue
        name = f"{at:%Y%m%dT%H%M%SZ}-{uuid4().hex[:12]}"
        platform.evidence.append(GC, f"{name}-listed", {"by": by, "at": at, "confirmed": confirmed, "listed": item})
        faults.reach("collecting.listed")
        if item.target:
            outcome = _collect_table(platform, item, at, tell)
        else:
            outcome = (
                dead_landings.collect(platform, item, at, tell) if item.files else _release_pins(platform, item, at)
            )
        platform.evidence.append(GC, f"{name}-done", {"by": by, "at": at, "done": outcome})
        done.append(outcome)
        facts: dict[str, Any] = {"files": outcome.files, "bytes": outcome.bytes, "snapshots": len(outcome.snapshots)}
        text = f"removed {outcome.files:,} files ({outcome.bytes:,} bytes), {len(outcome.snapshots)} snapshots, by {by}"
        with logs.bound(target=item.target):
            logs.event(
                _log, logging.INFO, "garbage_collected", text, table=item.table, by=by, refs=outcome.refs, **facts
            )
    # also of what a collection has let go that was killed before it looked again
    keep_pins(platform, _needed_pins(platform, at))
    return done


def _release_pins(platform: Platform, listed: TableGarbage, at: datetime) -> Collected:
    """Let go of those of the listed tags of a table that is only read which no run needs now either."""
    now = releasable(platform, listed.table, _needed_pins(platform, at).get(listed.table, set()))
    outcome = Collected(listed.table, sorted(set(listed.refs) & set(now)))
    release(platform, listed.table, outcome.refs)
    # a run that was recorded before the tags went may have found them
    keep_pins(platform, {listed.table: _needed_pins(platform, at).get(listed.table, set())})
    return outcome


def _collect_table(platform: Platform, listed: TableGarbage, at: datetime, tell: Callable[[int], None]) -> Collected:
    outcome = Collected(listed.table)
    with collecting_lease(platform, listed.target) as lease:
        faults.reach("collecting.leased")
        table = platform.lakehouse.table(listed.table)
        present = {snapshot.snapshot_id for snapshot in table.snapshots()}
        before = _keeping_since(platform.settings, at)
        # somebody may have published, rolled back or resumed since the listing
        refs, snapshots = _forgettable(table, _look(platform, at), before)
        outcome.refs = sorted(set(listed.refs) & set(refs))
        going = [one for one in listed.snapshots if one in snapshots]
        forget(table, refs=outcome.refs, snapshot_ids=going, token=lease.token)
    still = _of_table(platform, listed.target, platform.lakehouse.table(listed.table), at, _look(platform, at))
    faults.reach("collecting.expired")
    live = _Live(platform, listed.table)
    outcome.snapshots = sorted(present - {one.snapshot_id for one in live.table.snapshots()})
    wanted = {item.file.path: item for item in listed.files}
    deleting = [item for item in still.files if wanted.get(item.file.path) == item]
    for path in wanted.keys() - {item.file.path for item in deleting}:
        outcome.left[path] = "it is needed now, or it changed since it was listed"
    storage = Storage(table)
    owners = {record.run_id: record for record in platform.ledger.runs(target=listed.target)}
    past = outlived(platform, listed.target).keys()
    for batch in _batches(deleting):
        _delete(platform, storage, live, owners, past, batch, outcome)
        faults.reach("collecting.deleted")
        tell(len(batch))
    for top in sorted({top for item in deleting if (top := _top(storage, item, owners.get(item.owner))) is not None}):
        storage.drop_empty(top)
    return outcome


def _delete(
    platform: Platform,
    storage: Storage,
    live: _Live,
    owners: Mapping[str, RunRecord],
    past: Container[str],
    batch: Sequence[Garbage],
    outcome: Collected,
) -> None:
    """Delete a batch of files, each only if no table has come to reference it and its run is still what it was.

    `past` are published compactions whose files nobody gets any more.
    """
    live.refresh()
    moved = {}
    for run_id in {item.owner for item in batch} & owners.keys():
        named = {place_of(text) for text in platform.ledger.repairs.named_paths(run_id)}
        present = platform.ledger.run(run_id)
        moved[run_id] = (present.state, present.updated_at) != (owners[run_id].state, owners[run_id].updated_at)
        if present.state not in _FINISHED and run_id not in past:
            live.named |= named
    for item in batch:
        path = item.file.path
        if moved.get(item.owner):
            outcome.left[path] = "its run has moved on since it was listed"
        elif path in live:
            outcome.left[path] = "it is needed now"
        elif storage.delete(item.file):
            outcome.files += 1
            outcome.bytes += item.file.bytes
        else:
            outcome.left[path] = "it is gone, or another file by now"


class _Live:
    """What a table and its neighbours reference now, read again whenever one of them has changed."""

    def __init__(self, platform: Platform, table: str) -> None:
        self._platform, self._name = platform, table
        self._seen: dict[str, tuple[str, Referenced]] = {}
        self.named: set[str] = set()
        self.refresh()

    def refresh(self) -> None:
        """Look at the tables again."""
        self.table = self._platform.lakehouse.table(self._name)
        for table in [self.table, *_beside(self._platform, self._name)]:
            name = ".".join(table.name())
            if name not in self._seen or self._seen[name][0] != table.metadata_location:
                self._seen[name] = (table.metadata_location, referenced(table))

    def __contains__(self, path: str) -> bool:
        return path in self.named or any(path in found for _, found in self._seen.values())


def _top(storage: Storage, item: Garbage, owner: RunRecord | None) -> str | None:
    """Return the folder up to which emptied folders of a file are removed: of a run that may go on, the attempt's."""
    if item.kind == MANIFEST:
        return None
    parts = item.file.path.removeprefix(f"{storage.location}/").split("/")
    goes_on = owner is not None and owner.state not in _FINISHED
    return posixpath.join(storage.location, *parts[: 3 if goes_on else 2])


def _batches(items: Iterable[Garbage]) -> Iterator[list[Garbage]]:
    waiting = iter(items)
    while batch := list(islice(waiting, _AT_ONCE)):
        yield batch
