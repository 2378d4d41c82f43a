"""Why a published row says what it says: the run that made it, what that run read, and what the row said before.

Put here what is looked up for one key, in the target's own history, the ledger and the source, without Spark. How it is
shown is `cli.explain_view`'s. The history of the table is what is believed; the ledger says what its runs mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

from pyiceberg.expressions import And, BooleanExpression, EqualTo
from pyiceberg.table import DataScan, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import BooleanType, DateType, DecimalType, IntegerType, LongType, TimestamptzType

from backfill_assets.declarations.schema import LINEAGE_COLUMNS, iceberg_schema
from backfill_assets.declarations.target import CHUNK_GATE, TargetTable
from backfill_assets.installation import Platform
from backfill_assets.run_context import RunContext
from backfill_assets.staging.rows import read_window
from backfill_assets.worker.violations import shown_row
from manifests.canonical import plain
from manifests.chunks import key_of
from manifests.code_identity import CodeIdentity
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from manifests.lifecycle import PUBLISH
from manifests.plan import Plan
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY, before, between
from resources.lakehouse.lineage import lineage_of
from resources.lakehouse.metadata import count_said, readable_metadata, readable_rows, shown_since
from resources.ledger.facade import RunRecord

SHOWN_ROWS = 50
"""Source rows and corrections that are shown of one key; all of them are counted."""


@dataclass(frozen=True)
class Version:
    """What a key said from one snapshot of the table on, until the next newer version.

    Attributes:
        snapshot_id: the first snapshot that says so; `at` is since when main shows it.
        action: what of which run it was (`publish`, `rollback`, ...); empty where it was no run of this project.
        run_id: that run.
        row: the row, ready for JSON; None: the key was not there.
        changed: the columns that differ from the version before, each before and after; empty for the first one.
        because: what the run that made the row worked with and the one before did not, each before and after.
    """

    snapshot_id: int
    at: datetime
    action: str
    run_id: str
    row: dict[str, Any] | None
    changed: dict[str, list[Any]] = field(default_factory=dict)
    because: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Producer:
    """The run that made a row: who asked and why, who agreed, what it read, with which code, and what its gates said.

    `gates` has the verdict on the row's chunk and those on the whole run, in the plan's order, each with what an owner has
    `accepted` of it; `publications` every change of the table by it.
    """

    run_id: str
    kind: str
    mode: str
    state: str
    requested_by: str
    reason: str
    decisions: list[dict[str, Any]]
    transform: str
    transform_version: str
    code: CodeIdentity
    source: str
    source_snapshot_id: int
    source_committed_at: datetime
    input_from: datetime
    input_until: datetime
    references: list[dict[str, Any]]
    run_clock: datetime
    manifest_hash: str
    plan_hash: str
    gates: list[dict[str, Any]]
    publications: list[dict[str, Any]]
    evidence: str


@dataclass(frozen=True)
class SourceRows:
    """The source rows of the key's entity that its run read: those of the input range whole, earlier ones in few columns.

    `total` and `earlier` count all of them; at most `SHOWN_ROWS` of each are here, those nearest to the row's `day` first (of
    earlier ones to `look_back_day`), or the oldest first where no day is known, or the rows were read without their instants.
    `missing` says why there are none.
    """

    entity: dict[str, Any]
    rows: list[dict[str, Any]]
    total: int
    look_back: list[dict[str, Any]]
    earlier: int
    missing: str = ""
    day: date | None = None
    look_back_day: date | None = None


@dataclass(frozen=True)
class Explanation:
    """Everything that is known of one key of a table.

    Attributes:
        table: the target.
        key: the key, as it was read.
        chunk: the chunk it is in, as far as that is known.
        row: what readers see now; None: nothing.
        accepted_run: the run that holds the chunk.
        producer: the run that made the row, or the last one the key had; None where the ledger does not know it.
        source: what that run read of the key's entity.
        versions: what the key said, newest first. Empty if it was never there.
        corrections: what was issued for the key, oldest first.
        notes: what has to be known to read the rest.
    """

    table: str
    key: dict[str, Any]
    chunk: str | None
    row: dict[str, Any] | None
    accepted_run: str | None
    producer: Producer | None
    source: SourceRows | None
    versions: list[Version]
    corrections: list[dict[str, Any]]
    notes: list[str]


def parse_key(target: TargetTable, texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of a key written as `column=value`: one text of several with commas, or a text each.

    Raises:
        InputRefused: with everything that is wrong with it.
    """
    parts = re.split(r",(?=\w+=)", texts[0]) if len(texts) == 1 else list(texts)
    given = [tuple(part.strip().split("=", 1)) for part in parts]
    wanted = f"the key of {target.name} is {', '.join(target.key)}"
    fix = f"give --key {','.join(f'{name}=…' for name in target.key)}"
    problems = [Problem(f"'{pair[0]}' is not column=value", wanted, fix) for pair in given if len(pair) == 1]
    pairs = [(pair[0], pair[1]) for pair in given if len(pair) == 2]  # noqa: PLR2004
    names = [name for name, _ in pairs]
    problems += [Problem(f"{name} is not in the key", wanted, fix) for name in names if name not in target.key]
    problems += [Problem(f"{name} is given twice", wanted, fix) for name in {*names} if names.count(name) > 1]
    missing = [name for name in target.key if name not in names]
    if missing and not problems:
        problems.append(Problem(f"{', '.join(missing)} is not given", wanted, fix))
    kinds = {one.name: one.field_type for one in iceberg_schema(target.model).fields}
    key = {}
    for name, text in pairs:
        if name not in kinds or name not in target.key:
            continue
        try:
            key[name] = _value(kinds[name], text)
        except (ValueError, InvalidOperation):
            problems.append(Problem(f"{name}={text} is not a {kinds[name]}", wanted, "correct the value"))
    if problems:
        raise InputRefused(problems)
    return {name: key[name] for name in target.key}


def _value(kind: Any, text: str) -> Any:
    if isinstance(kind, DateType):
        return date.fromisoformat(text)
    if isinstance(kind, TimestamptzType):
        instant = datetime.fromisoformat(text)
        return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
    if isinstance(kind, (IntegerType, LongType)):
        return int(text)
    if isinstance(kind, DecimalType):
        return Decimal(text)
    if isinstance(kind, BooleanType):
        return ("false", "true").index(text.lower()) == 1
    return text


def explain(platform: Platform, table: str, texts: Sequence[str]) -> Explanation:
    """Say everything that is known of one key of a target.

    Raises:
        InputRefused: if the table is not a declared target, or the key is not one of it.
    """
    target = platform.products.target(table)
    key = parse_key(target, texts)
    found = platform.lakehouse.table(target.name)
    notes: list[str] = []
    states = list(_states(found, _where(key), notes))
    versions = _versions(platform, target, found, key, states)
    current = states[0][1] if states else []
    if len(current) > 1:
        notes.append(f"{len(current)} rows have this key; the first is shown")
    last = next((rows[0] for _, rows in states if rows), None)
    chunk = _chunk(target, key, last)
    accepted = None if chunk is None else platform.ledger.accepted(target.name, [chunk]).get(chunk)
    if last is None and chunk is not None and accepted is None:
        notes.append(f"no run holds chunk {chunk}: nothing was published there, or it was rolled back")
    producer = record = None
    if last is not None:
        record = platform.ledger.find(last["run_id"])
        if record is None:
            notes.append(f"the ledger does not know run '{last['run_id']}', which the row names")
    if record is not None and chunk is not None:
        producer = _producer(platform, record, chunk)
    if current and accepted not in {None, current[0]["run_id"]}:
        notes.append(f"chunk {chunk} is held by run '{accepted}', which has left this row as it was")
    source = None
    if record is not None and chunk is not None:
        run = RunContext(platform, target, _plan_of(platform, record, chunk))
        source = _source_rows(run, chunk, {**(last or {}), **key})
    corrections = _corrections(platform, target, key)
    return Explanation(
        table=target.name,
        key=shown_row(key),
        chunk=chunk,
        row=shown_row(current[0]) if current else None,
        accepted_run=accepted,
        producer=producer,
        source=source,
        versions=versions,
        corrections=corrections,
        notes=notes,
    )


def _where(key: Mapping[str, Any]) -> BooleanExpression:
    terms = [
        EqualTo(term=name, value=value.isoformat() if isinstance(value, date) else value) for name, value in key.items()
    ]
    return terms[0] if len(terms) == 1 else And(*terms)


def _chunk(target: TargetTable, key: Mapping[str, Any], row: Mapping[str, Any] | None) -> str | None:
    day = (row or {}).get(target.day_column) or key.get(target.day_column)
    return None if day is None else key_of(target.chunking, day)


# --- history ----------------------------------------------------------------------------------------------------------

State = tuple[Snapshot, list[dict[str, Any]]]


def _states(table: Table, where: BooleanExpression, notes: list[str]) -> Iterator[State]:
    """Yield what a key said, newest first, each with the first snapshot that says so.

    A snapshot is read only if its files that may hold the key are not those of the next newer one.
    """
    history = list(lineage_of(table))
    if history and _had_files_before(table, history[-1]):
        notes.append(f"snapshots before {history[-1].snapshot_id} have expired: what the key said before is not known")
    notes += [
        f"snapshots between {older.snapshot_id} and {newer.snapshot_id} have expired: what the key said there is not known"
        for newer, older in pairwise(history)
        if newer.parent_snapshot_id != older.snapshot_id
    ]
    waiting: State | None = None
    files: frozenset[str] | None = None
    for snapshot in history:
        scan = table.scan(row_filter=where, snapshot_id=snapshot.snapshot_id)
        with readable_metadata(table, snapshot):
            these = frozenset(task.file.file_path for task in scan.plan_files())
        if waiting is not None and these == files:
            waiting = (snapshot, waiting[1])
            continue
        files = these
        rows = _under_todays_names(table, snapshot, _read(table, scan)) if these else []
        if waiting is not None and rows != waiting[1]:
            yield waiting
        waiting = (snapshot, rows)
    if waiting is not None:
        yield waiting


def _under_todays_names(table: Table, snapshot: Snapshot, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of a snapshot, whose columns have the names of then, under those that the columns have now."""
    then = table.schemas().get(-1 if snapshot.schema_id is None else snapshot.schema_id, table.schema())
    now = {one.name: table.schema().find_column_name(one.field_id) or one.name for one in then.fields}
    return [{now.get(name, name): value for name, value in row.items()} for row in rows]


def _had_files_before(table: Table, snapshot: Snapshot) -> bool:
    """Whether the table had files before a snapshot: an expiry cuts the link to the one before it."""
    deleted, total, added = (
        count_said(table, snapshot, f"{one}-data-files") or 0 for one in ("deleted", "total", "added")
    )
    return deleted > 0 or total > added


def _versions(
    platform: Platform, target: TargetTable, table: Table, key: Mapping[str, Any], states: Sequence[State]
) -> list[Version]:
    """Return the versions of a key, newest first, up to its first row."""
    while states and not states[-1][1]:
        states = states[:-1]
    versions = []
    for number, (snapshot, rows) in enumerate(states):
        earlier = states[number + 1][1] if number + 1 < len(states) else []
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        row, was = (next(iter(side), None) for side in (rows, earlier))
        action, run_id = summary.get(ACTION_PROPERTY, ""), summary.get(RUN_PROPERTY, "")
        if row is not None and action == PUBLISH:
            run_id = row["run_id"]  # the snapshot is another run's where that of this one has expired
        changed: dict[str, list[Any]] = {}
        because: dict[str, list[str]] = {}
        if row is not None and was is not None:
            changed = {
                name: [shown_row(was).get(name), shown_row(row).get(name)]
                for name in {**row, **was}  # a column that the table got, or lost, in between was not there
                if name not in LINEAGE_COLUMNS and row.get(name) != was.get(name)
            }
            because = _differences(platform, target, key, was, row)
        versions.append(
            Version(
                snapshot.snapshot_id,
                shown_since(table, snapshot),
                action,
                run_id,
                None if row is None else shown_row(row),
                changed,
                because,
            )
        )
    return versions


def _differences(
    platform: Platform, target: TargetTable, key: Mapping[str, Any], was: Mapping[str, Any], row: Mapping[str, Any]
) -> dict[str, list[str]]:
    """Return what decided the two rows and was not the same: code, settings, and what was read."""
    conditions = []
    for one in (was, row):
        record, chunk = platform.ledger.find(one["run_id"]), _chunk(target, key, one)
        if record is None or chunk is None:
            return {}
        conditions.append(_conditions(_plan_of(platform, record, chunk)))
    old, new = conditions
    return {name: [old.get(name, ""), new.get(name, "")] for name in new if old.get(name) != new[name]}


def _conditions(plan: Plan) -> dict[str, str]:
    found = {
        "transform version": plan.transform_version,
        "code": str(plan.code),
        f"source {plan.source}": f"snapshot {plan.source_snapshot_id}",
        "Spark settings": plan.configuration_hash[:12],
    }
    pins = {pin.table: f"snapshot {pin.snapshot_id} {pin.version or ''}".strip() for pin in plan.references}
    return found | {f"reference {table}": text for table, text in pins.items()}


def _plan_of(platform: Platform, record: RunRecord, chunk: str) -> Plan:
    """Return the plan that a chunk was computed with: the approved one, or the one it was planned anew with."""
    return platform.ledger.plans(record).get(chunk, record.plan)


# --- the run ----------------------------------------------------------------------------------------------------------


def _producer(platform: Platform, record: RunRecord, chunk: str) -> Producer:
    plan, ledger = _plan_of(platform, record, chunk), platform.ledger
    planned = [one for one in plan.chunks if one.key == chunk]
    start, end = read_window(plan, planned) if planned else (plan.read_from, plan.read_until)
    accepted = ledger.accepted_changes(record.run_id)
    gates = [
        {"gate": verdict.gate, "chunk": verdict.chunk, "passed": verdict.passed, "summary": verdict.summary}
        | {"accepted": "" if verdict.chunk or verdict.gate not in accepted else str(accepted[verdict.gate])}
        for verdict in ledger.verdicts(record.run_id)
        if verdict.chunk == chunk or not verdict.chunk
    ]
    order = {gate: number for number, gate in enumerate((CHUNK_GATE, *plan.gates))}
    decisions = [
        {"decision": one.decision, "decided_by": one.by, "comment": one.comment, "at": plain(one.at)}
        for one in ledger.decisions(record.run_id)
    ]
    publications = [
        {name: plain(getattr(one, name)) for name in ("action", "snapshot_id", "actor", "ended_at")}
        for one in ledger.publications(record.run_id)
        if one.has_landed
    ]
    return Producer(
        run_id=record.run_id,
        kind=record.kind,
        mode=record.mode,
        state=record.state.value,
        requested_by=record.requested_by,
        reason=record.manifest.reason,
        decisions=decisions,
        transform=plan.transform,
        transform_version=plan.transform_version,
        code=plan.code,
        source=plan.source,
        source_snapshot_id=plan.source_snapshot_id,
        source_committed_at=plan.source_committed_at,
        input_from=start,
        input_until=end,
        references=plain(plan.references),
        run_clock=plan.run_clock,
        manifest_hash=record.manifest_hash,
        plan_hash=record.plan_hash,
        gates=sorted(gates, key=lambda one: (order.get(str(one["gate"]), len(order)), str(one["gate"]))),
        publications=publications,
        evidence=str(platform.evidence.path(record.run_id)),
    )


def _source_rows(run: RunContext, chunk: str, row: Mapping[str, Any]) -> SourceRows:
    """Return what a run read of the entity of a row, from the snapshot that it had pinned."""
    target, plan = run.target, run.plan
    planned = [one for one in plan.chunks if one.key == chunk]
    if target.entity is None or target.entity not in row:
        return SourceRows({}, [], 0, [], 0, f"{target.name} declares no entity that its source rows could be found by")
    entity = {target.entity: row[target.entity]}
    table = run.platform.lakehouse.table(plan.source)
    if table.snapshot_by_id(plan.source_snapshot_id) is None:
        why = f"snapshot {plan.source_snapshot_id} of {plan.source} has expired"
        return SourceRows(shown_row(entity), [], 0, [], 0, why)
    if target.entity not in table.schema().column_names:
        return SourceRows(shown_row(entity), [], 0, [], 0, f"{plan.source} has no column {target.entity}")
    start, end = read_window(plan, planned) if planned else (plan.read_from, plan.read_until)
    mine, instant, day = _where(entity), target.source_time_column, row.get(target.day_column)
    try:
        rows = _rows(table, And(mine, between(instant, start, end)), plan.source_snapshot_id, instant, day)
        earlier: list[dict[str, Any]] = []
        columns = tuple(target.look_back_columns)
        look_back_day = day if instant in columns else None  # nothing says which are nearest
        if columns:
            where = And(mine, before(instant, start))
            earlier = _rows(table, where, plan.source_snapshot_id, instant, look_back_day, columns)
    except EnvironmentRefused as refusal:  # the rest can be explained all the same
        return SourceRows(shown_row(entity), [], 0, [], 0, refusal.problems[0].what)
    return SourceRows(
        shown_row(entity),
        [shown_row(one) for one in rows[:SHOWN_ROWS]],
        len(rows),
        [shown_row(one) for one in earlier[:SHOWN_ROWS]],
        len(earlier),
        day=day,
        look_back_day=look_back_day,
    )


def _rows(
    table: Table,
    where: BooleanExpression,
    snapshot_id: int,
    instant: str,
    day: date | None,
    columns: tuple[str, ...] = ("*",),
) -> list[dict[str, Any]]:
    """Return rows of a source, those nearest to a day first: of those that are equally near the newest."""
    rows = _read(table, table.scan(row_filter=where, snapshot_id=snapshot_id, selected_fields=columns))
    rows.sort(key=lambda row: (row.get(instant) is None, row.get(instant), str(row)))
    if day is None:
        return rows
    start = datetime.combine(day, datetime.min.time(), UTC)
    end = start + timedelta(days=1, microseconds=-1)  # the last day of the calendar has none after it

    def far(row: Mapping[str, Any]) -> tuple[bool, timedelta, timedelta]:
        at = row.get(instant)
        return (True, end - end, end - end) if at is None else (False, max(start - at, at - end, end - end), end - at)

    return sorted(rows, key=far)


def _read(table: Table, scan: DataScan) -> list[dict[str, Any]]:
    """Return the rows of a scan.

    Raises:
        EnvironmentRefused: if a file is missing or damaged.
    """
    with readable_rows(table):
        rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
    return rows


def _corrections(platform: Platform, target: TargetTable, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    if target.corrections is None or not platform.lakehouse.exists(target.corrections.name):
        return []
    table = platform.lakehouse.table(target.corrections.name)
    if table.current_snapshot() is None:
        return []
    rows = _read(table, table.scan(row_filter=_where(key)))
    return [shown_row(row) for row in sorted(rows, key=lambda row: row["produced_at"])[-SHOWN_ROWS:]]
