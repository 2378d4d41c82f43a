"""Landing delivered changes: whole transactions in the order of their commits, each range of the log once, and no gap that nobody has accepted.

Put here the order of things, safe to end anywhere: changes of open transactions are kept first, then what is unreadable is quarantined,
then rows are appended, a load for each range. The table's own history says what is landed; the same command again goes on from there. What is
new in a delivery is `change_ranges`', how its files are read `extraction.change_files`'.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as arrow

from backfill_assets import faults
from backfill_assets.decisions import decider
from backfill_assets.declarations.changelogs import CREATED, DELETED, UNKNOWN_VERSION, Changelog
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.quarantine import FirstRow, Quarantine, Rejections, limit_problems
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.extraction.change_files import (
    Delivered,
    Line,
    LogFacts,
    Snapshot,
    delivered,
    facts_of,
    in_order,
    is_of_a_row,
)
from backfill_assets.extraction.changed_keys import earlier_key_of, key_of
from backfill_assets.extraction.debezium import Change, message_of
from backfill_assets.ingestion.change_ranges import Piece, ToLand, to_land
from backfill_assets.ingestion.columns_in_place import require_declared_columns
from backfill_assets.ingestion.commits_on_record import not_on_record
from backfill_assets.ingestion.file_archive import ACCEPTED, FileArchive
from backfill_assets.ingestion.held_tables import HeldTable, held_to_load
from backfill_assets.ingestion.landed_commits import other_rows
from backfill_assets.ingestion.new_timelines import (
    begins_at,
    is_later_timeline,
    new_timeline,
    of_another_log,
    out_of_sequence,
)
from backfill_assets.ingestion.quarantine_parts import part_to_append
from backfill_assets.installation import Platform
from manifests.canonical import canonical_json, sha256_of
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import (
    LandedLog,
    LandedRange,
    LogIdentity,
    LogRange,
    Observation,
    going_on,
    lsn,
    lsn_ranges,
)
from manifests.text import seen
from resources import actors
from resources.lakehouse.landed_logs import landed_loads, taken_back
from resources.lakehouse.loads import (
    ACTOR_PROPERTY,
    FILE_PROPERTY,
    GAP_PROPERTY,
    LOAD_PROPERTY,
    LOG_PROPERTY,
    OPEN_PROPERTY,
    REJECTED_PROPERTY,
    load_to_make,
)
from resources.lakehouse.summaries import summary_of
from resources.ledger.facade import operator

SLOT_PROPERTY = "backfill.load-log-slot"
_BATCH_ROWS = 20_000
_SHOWN = 5
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class LandedLoad:
    """A load of a range of a log: its id, the range, its rows, and how many are of no declared version, by table and columns."""

    load_id: str
    range: LogRange
    rows: int
    snapshot_id: int | None
    undeclared: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Landed:
    """What landing a delivery has brought.

    Attributes:
        changelog: which one; `table` what the rows went to.
        loads: one for each range, in order; none where nothing was new.
        again: how many whole transactions and snapshots were in the table already.
        open: what is not whole yet, in words: it comes with its end.
        unreadable: how many lines were quarantined, by rule.
        left_out: messages that are no change of a declared table, by what they are.
        passed_over: positions of snapshots of a range that is landed already.
        accepted: the gaps that were accepted with this landing.
        is_kept: whether what is unreadable was quarantined with a load.
        is_open_kept: whether what is open was kept, with this load or an earlier one; else the same files have to be delivered again.
    """

    changelog: str
    table: str
    loads: tuple[LandedLoad, ...]
    again: int = 0
    open: tuple[str, ...] = ()
    unreadable: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    passed_over: tuple[int, ...] = ()
    accepted: tuple[str, ...] = ()
    is_kept: bool = True
    is_open_kept: bool = True


@dataclass(frozen=True)
class _InTable:
    """What a table has of a log: what each load has brought that was not taken back, and the kept file with what was open last."""

    loads: tuple[LandedLog, ...] = ()
    open: str = ""
    taken_back: tuple[LogRange, ...] = ()

    @property
    def log(self) -> LogIdentity | None:
        """Which log it is; None where nothing is landed."""
        return self.loads[-1].log if self.loads else None

    @property
    def ranges(self) -> tuple[LogRange, ...]:
        """Its ranges."""
        return tuple(one.range for load in self.loads for one in load.ranges)

    @property
    def observed(self) -> tuple[int, ...]:
        """The positions of its snapshots."""
        return tuple(one.position for load in self.loads for one in load.observed)

    @property
    def lost(self) -> tuple[LogRange, ...]:
        """The positions that somebody has accepted as lost, when a load was made that stands."""
        return tuple(one for load in self.loads for one in load.lost)


def land_changes(
    platform: Platform, name: str, folder: Path, *, accept_gap: str | None = None, by: str | None = None
) -> Landed:
    """Land what is new in the files of a folder.

    Args:
        platform: the opened installation.
        name: of the changelog.
        folder: with `log.json` and files of changes. They are read and left where they are.
        accept_gap: why it is landed although something before it is missing; None: it is refused then.
        by: who decides so; None: who acts.

    Raises:
        InputRefused: if the changelog is not declared, the files cannot be read, are of another log than the table, contradict one
            another, have too many unreadable lines, or lack changes; all reasons at once, and nothing is written.
        EnvironmentRefused: if the table, or its quarantine, does not have the columns of its model.
        LeaseHeld: if somebody else loads into the table for longer than is waited for.
        LeaseLost: if this process stood still for so long that somebody else has taken the table over; the same command again.
        TransitionRefused: if the policy wants to know who decides about a gap, and nothing but a name says so.
    """
    changelog = platform.products.changelog(name)
    table = platform.products.input(changelog.table)
    require_declared_columns(platform, table)
    facts = facts_of(folder)
    archive = FileArchive(platform.settings.home, changelog.name)
    with held_to_load(platform, table.name, "land") as held:
        there = _in_table(platform, table.name)
        anew = is_later_timeline(facts.identity, there.log)
        # what was open on an earlier timeline has no end on this one, where its number may be another transaction's
        kept = [archive.folder(ACCEPTED) / there.open] if there.open and not anew else []
        for place in kept:
            archive.read(place.name)  # refuses one that is gone or was changed
        found = delivered(changelog, folder, kept, held.keep)
        plan = _plan(found, facts, there, table.name)
        _require_none(list(not_on_record(platform, table.name, found, plan, there.ranges, there.observed, held.keep)))
        _require_few_unreadable(platform, table, found, folder)
        gap = _accepted(platform, table.name, plan, found, accept_gap, by)
        loads: tuple[LandedLoad, ...] = ()
        if plan.pieces:
            archive.make()
            said = {SLOT_PROPERTY: facts.slot, OPEN_PROPERTY: _keep_open(archive, found, there.observed), **gap}
            faults.reach("landing.kept")
            loads = tuple(_land(platform, table, found, facts, plan, said, held, there))
    open_ones = [one.in_words() for one in found.transactions.values() if one.commit is None and one.changes]
    open_ones += [
        f"the snapshot at {lsn(one.lsn)} ({len(one.reads):,} rows)" for one in found.open_snapshots(there.observed)
    ]
    return Landed(
        changelog.name,
        table.name,
        loads,
        plan.again,
        tuple(open_ones),
        dict(sorted(Counter(one.rule for one in found.unreadable).items())),
        dict(sorted(found.left_out.items())),
        plan.passed_over,
        tuple(one.what for one in plan.lost) if gap and loads else (),
        is_kept=bool(loads),
        is_open_kept=bool(loads) or all(one.file < len(kept) for one in found.open_lines(there.observed)),
    )


def _in_table(platform: Platform, name: str) -> _InTable:
    """Return what a table has of its log: what its loads say that were not taken back.

    Raises:
        InputRefused: if something else has changed its rows, so that nobody knows which ranges it has.
    """
    table = platform.lakehouse.table(name)
    _require_none(list(other_rows(platform, name)))
    loads = landed_loads(table)
    newest = table.snapshot_by_id(loads[-1].snapshot_id) if loads else None
    said = {} if newest is None else summary_of(newest)
    return _InTable(tuple(one.landed for one in loads), said.get(OPEN_PROPERTY, ""), taken_back(table))


def _plan(found: Delivered, facts: LogFacts, there: _InTable, table: str) -> ToLand:
    """Return what of a delivery is to be landed.

    Raises:
        InputRefused: if it contradicts itself, or cannot follow on what is landed, whatever anybody accepts.
    """
    begins = begins_at(facts.identity, there.loads, found)
    plan = to_land(found, facts, there.ranges, there.observed, there.lost, begins, there.taken_back)
    problems = [
        *of_another_log(facts.identity, there.log, there.ranges, found, table),
        *found.of_other_databases(facts),
    ]
    problems += found.problems
    new = [
        LandedLog(facts.identity, (LandedRange(one.range, 0),), observed=_observed(found, one)) for one in plan.pieces
    ]
    _require_none(problems or list(out_of_sequence(facts.identity, begins, there.loads, new, found, table)))
    return replace(plan, lost=(*plan.lost, *new_timeline(facts.identity, there.log, there.ranges)))


def _observed(found: Delivered, piece: Piece) -> tuple[Observation, ...]:
    return tuple(
        Observation(one.lsn, _EPOCH + timedelta(microseconds=one.micros), one.declared_tables(found.changelog))
        for one in piece.units
        if isinstance(one, Snapshot)
    )


def _require_none(problems: Sequence[Problem]) -> None:
    if problems:
        raise InputRefused(problems)


def _require_few_unreadable(platform: Platform, table: InputTable, found: Delivered, folder: Path) -> None:
    reasons = _rejections(found)
    lines = len(found.unreadable) + sum(len(one.changes) for one in found.transactions.values())
    lines += sum(len(one.reads) for one in found.snapshots.values())
    withheld = platform.policy.protects(table.name)
    limit = platform.settings.quarantine_limit
    _require_none(limit_problems(table, str(folder), reasons, max(lines, 1), limit, withheld=withheld))


def _rejections(found: Delivered) -> Rejections:
    reasons = Rejections()
    for one in found.unreadable:
        reasons.counts[one.rule] += 1
        reasons.first.setdefault(one.rule, FirstRow(one.row, one.detail, one.file))
    return reasons


def _accepted(
    platform: Platform, table: str, plan: ToLand, found: Delivered, reason: str | None, by: str | None
) -> dict[str, str]:
    """Return what goes on record of a gap that somebody accepts; nothing where there is none: the same command goes on after a crash.

    Raises:
        InputRefused: if there is one, and nobody does; or if what is given is no reason.
    """
    if reason is not None:
        problems = actors.no_reason(reason)
        if not seen(reason):
            rule = "landing beside a gap is a decision: who and why"
            problems = [Problem("no reason is given", rule, "give --accept-gap REASON")]
        _require_none(problems)
    if not plan.lost:
        return {}
    if reason is None:
        raise InputRefused([*plan.lost, *found.unreadable_problems()])
    who = decider(platform, by, f"a gap of {table}")
    what = "; ".join(problem.what for problem in plan.lost)
    return {GAP_PROPERTY: canonical_json({"gap": what, "by": who.name, "reason": reason})}


def _keep_open(archive: FileArchive, found: Delivered, observed: Sequence[int]) -> str:
    """Keep the changes of what has no end yet, and return the hash that they are kept under; empty where there is none."""
    lines = found.open_lines(observed)
    if not lines:
        return ""
    content = b"".join(text.rstrip("\n").encode() + b"\n" for _, text in found.texts(lines))
    name = hashlib.sha256(content).hexdigest()
    archive.keep(ACCEPTED, name, content)
    archive.settle()
    return name


def _land(
    platform: Platform,
    table: InputTable,
    found: Delivered,
    facts: LogFacts,
    plan: ToLand,
    said: Mapping[str, str],
    held: HeldTable,
    before: _InTable,
) -> Iterator[LandedLoad]:
    """Append what is new, a load for each range; what is unreadable goes to the quarantine with the first."""
    at = platform.ledger.now().replace(microsecond=0)
    quarantine = platform.products.quarantine_of(table).name
    reasons = _rejections(found)
    known = list(before.loads)
    begun = "; log.json says that the tables were empty" if facts.tables_were_empty else ""
    for number, piece in enumerate(plan.pieces):
        landed, digest, undeclared = _landed(found, facts, piece)
        lost = plan.missing if GAP_PROPERTY in said and not number else ()
        landed = going_on(replace(landed, lost=lost), known, before.taken_back)
        known.append(landed)
        # content that was landed before, and taken back since, is a load of its own
        load_id = load_to_make(platform.lakehouse.loads(table.name), f"{table.name}:{digest}").load_id
        properties = {
            LOAD_PROPERTY: load_id,
            FILE_PROPERTY: f"{len(piece.units):,} transaction(s) of {facts.identity.name}, {lsn_ranges([piece.range])}{begun}",
            ACTOR_PROPERTY: operator(),
            REJECTED_PROPERTY: str(0 if number else reasons.total),
            LOG_PROPERTY: landed.to_json(),
            **said,
        }
        if not number:
            part = part_to_append(platform, quarantine, load_id, reasons.counts, reasons.first, token=held.token)
            if part is not None:
                rows = _quarantined(found, at)
                platform.lakehouse.append(quarantine, [rows], {**properties, **part}, token=held.token)
        faults.reach("landing.quarantined")
        batches = held.keeping(_rows(found, piece, table, at))
        commit = platform.lakehouse.append(table.name, batches, properties, token=held.token)
        faults.reach("landing.appended")
        snapshot = commit.snapshot_id if commit else platform.lakehouse.snapshot_id(table.name)
        yield LandedLoad(load_id, piece.range, sum(one.rows for one in landed.ranges), snapshot, undeclared)


def _landed(found: Delivered, facts: LogFacts, piece: Piece) -> tuple[LandedLog, str, dict[str, int]]:
    """Return what a load says of its range, the hash of its content (the same changes make the same load), and its undeclared versions."""
    rows, first, last, tables, undeclared = 0, None, None, set[str](), Counter[str]()
    digest = hashlib.sha256(canonical_json(piece.range).encode())
    observed = _observed(found, piece)
    # a snapshot may be read for hours, and says how the tables were when that began: of what was committed meanwhile it has nothing
    begun = {one.position: one.at for one in observed}
    for read, position, _ in _changes(found, piece):
        tables.add(read.table)
        for row in _as_rows(found.changelog, read, 0, None):
            rows += 1
            if row["schema_version"].startswith(UNKNOWN_VERSION):
                undeclared[f"{read.table}: {row['schema_version'].removeprefix(UNKNOWN_VERSION)}"] += 1
            at = begun[position] if read.transaction is None else row["committed_at"]
            first = at if first is None else min(first, at)
            last = at if last is None else max(last, at)
        digest.update(sha256_of([read.op, read.table, read.lsn, read.order, read.before, read.after]).encode())
    ranges = (LandedRange(piece.range, rows, first, last, tuple(sorted(tables))),)
    return LandedLog(facts.identity, ranges, observed=observed), digest.hexdigest(), dict(sorted(undeclared.items()))


def _changes(found: Delivered, piece: Piece) -> Iterator[tuple[Change, int, Line]]:
    """Yield the changes of a range in order, of declared tables, each with the position of its commit."""
    of = [(one.lsn if isinstance(one, Snapshot) else one.commit or 0, one) for one in piece.units]
    placed = [(position, line) for position, one in of for line in in_order(one)]
    for (position, _), (line, text) in zip(placed, found.texts(line for _, line in placed), strict=True):
        read = message_of(text)
        if isinstance(read, Change) and is_of_a_row(read, found.changelog):
            yield read, position, line


def _rows(found: Delivered, piece: Piece, table: InputTable, at: datetime) -> Iterator[Any]:
    schema = iceberg_schema(table.model).as_arrow()
    rows: list[dict[str, Any]] = []
    gone: tuple[int, str | None] = (-1, None)
    begun = {one.position: one.at for one in _observed(found, piece)}
    for read, position, line in _changes(found, piece):
        # a create that follows on a delete of the same record of the log is a row whose key has changed
        was = gone[1] if read.op == CREATED and gone[0] == read.lsn else None
        gone = (read.lsn, read.before) if read.op == DELETED else (-1, None)
        placed: dict[str, Any] = {"source_file": found.names[line.file], "source_row": line.row, "landed_at": at}
        if read.transaction is None:  # it was there when the snapshot began, on whichever day it was read
            placed["committed_at"] = begun[position]
        rows += (row | placed for row in _as_rows(found.changelog, read, position, was))
        if len(rows) >= _BATCH_ROWS:
            yield arrow.Table.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield arrow.Table.from_pylist(rows, schema=schema)


def _as_rows(changelog: Changelog, read: Change, position: int, was: str | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a change: one, or two of an update that has changed the key: a delete, and a create."""
    declared = changelog.changed_table(read.table)
    assert declared is not None  # others are left out
    key = key_of(changelog, read)
    columns = None if read.row is None else frozenset(map(str, read.row))
    row = {
        "commit_lsn": position,
        "lsn": read.lsn,
        "position": read.order,
        "op": read.op,
        "source_table": read.table,
        "key": key,
        "before": was if read.before is None else read.before,
        "after": read.after,
        "committed_at": _EPOCH + timedelta(microseconds=read.micros),
        "transaction_id": read.transaction,
        "schema_version": declared.newest_version if columns is None else declared.version_of(columns),
        "is_snapshot_read": read.transaction is None,
        "previous_commit_lsn": read.previous,
    }
    if (old := earlier_key_of(changelog, read)) is not None:
        yield row | {"op": DELETED, "key": old, "after": None}
        row["op"] = CREATED
    yield row


def _quarantined(found: Delivered, at: datetime) -> Any:
    rows: Sequence[dict[str, Any]] = [
        {
            "source_file": one.file,
            "source_row": one.row,
            "reason": one.rule,
            "detail": one.detail or one.rule,
            "record": json.dumps({"line": one.text}, ensure_ascii=False),
            "ingested_at": at,
        }
        for one in found.unreadable
    ]
    return arrow.Table.from_pylist(list(rows), schema=iceberg_schema(Quarantine).as_arrow())
