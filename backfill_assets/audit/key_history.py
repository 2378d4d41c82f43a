"""What a key of a table said, snapshot by snapshot, whose doing that was, and why one version differs from the one before.

Put here the history of a key. What is known of the run that made a row, and what it read, is `explain`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any
from uuid import UUID

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, EqualTo, Reference
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import UUIDType

from backfill_assets.declarations.divided import part_of_value
from backfill_assets.declarations.schema import dtypes, has_lineage, iceberg_type, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.worker.chunk_diff import PRODUCER
from backfill_assets.worker.violations import shown_row
from manifests.chunks import EVER, Chunking, key_of
from manifests.lifecycle import PUBLISH, ROLLBACK
from manifests.plan import Plan
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY
from resources.lakehouse.lineage import lineage_of
from resources.lakehouse.metadata import count_said, readable_metadata, readable_rows, shown_since
from resources.ledger.facade import RunRecord


@dataclass(frozen=True)
class Version:
    """What a key said from one snapshot of the table on, until the next newer version.

    Attributes:
        snapshot_id: the first snapshot that says so; `at` is since when main shows it.
        action: what of which run it was (`publish`, `rollback`, ...); empty where it was no run of this project.
        run_id: that run.
        row: the row, ready for JSON; None: the key was not there.
        made_by: the run that made the row, which its lineage columns say; of a table without them, the run that published it.
            None where nobody is known to have.
        changed: the columns that differ from the version before, each before and after; empty for the first one.
        because: what the run that made the row worked with and the one before did not, each before and after.
    """

    snapshot_id: int
    at: datetime
    action: str
    run_id: str
    row: dict[str, Any] | None
    made_by: str | None = None
    changed: dict[str, list[Any]] = field(default_factory=dict)
    because: dict[str, list[str]] = field(default_factory=dict)


def chunk_of(target: TargetTable, key: Mapping[str, Any], row: Mapping[str, Any] | None) -> str | None:
    """Return the chunk that a row is in, or the row of a key that has its day, if there are days; None where neither says."""
    timeless = target.chunking is Chunking.WHOLE
    day = EVER[0] if timeless else (row or {}).get(target.day_column) or key.get(target.day_column)
    if day is None:
        return None
    if target.chunk_values is None:
        return key_of(target.chunking, day)
    column = target.chunk_values.column
    value = row[column] if row is not None and column in row else key.get(column)
    part = part_of_value(target.chunk_values, iceberg_type(column, dtypes(target.model)[column]), value)
    return None if part is None else key_of(target.chunking, day, part)


State = tuple[Snapshot, list[dict[str, Any]]]


def states_of(table: Table, where: BooleanExpression, notes: list[str]) -> Iterator[State]:
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
        rows = under_todays_names(table, snapshot, read_scan(table, scan)) if these else []
        if waiting is not None and list(map(shown_row, rows)) != list(map(shown_row, waiting[1])):  # NaN is NaN
            yield waiting
        waiting = (snapshot, rows)
    if waiting is not None:
        yield waiting


def under_todays_names(table: Table, snapshot: Snapshot, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of a snapshot, whose columns have the names of then, under those that the columns have now."""
    then = _schema_of(table, snapshot)
    now = {one.name: under_todays_name(table, then, one.name) for one in then.fields}
    return [{now.get(name, name): value for name, value in row.items()} for row in rows]


def under_todays_name(table: Table, then: Schema, name: str) -> str:
    """Return the name that a column of an earlier schema of a table has now; that of then where the table has it no more."""
    return table.schema().find_column_name(then.find_field(name).field_id) or name


def names_then(table: Table, snapshot: Snapshot, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that columns had in a snapshot, of those that it had: of one that was dropped and added anew, its own."""
    now, then = table.schema(), _schema_of(table, snapshot)
    found = (
        (name in now.column_names and then.find_column_name(now.find_field(name).field_id)) or name for name in names
    )
    return tuple(dict.fromkeys(name for name in found if name in then.column_names))


def _schema_of(table: Table, snapshot: Snapshot) -> Schema:
    return table.schemas().get(-1 if snapshot.schema_id is None else snapshot.schema_id, table.schema())


def _had_files_before(table: Table, snapshot: Snapshot) -> bool:
    """Whether the table had files before a snapshot: an expiry cuts the link to the one before it."""
    deleted, total, added = (
        count_said(table, snapshot, f"{one}-data-files") or 0 for one in ("deleted", "total", "added")
    )
    return deleted > 0 or total > added


def versions_of(
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
        made_by = None if row is None else row.get(PRODUCER)
        if row is not None and not has_lineage(target.model):
            made_by = _published_by(snapshot, row, states[number + 1 :])
        elif row is not None and action == PUBLISH:
            run_id = row[PRODUCER]  # the snapshot is another run's where that of this one has expired
        changed: dict[str, list[Any]] = {}
        because: dict[str, list[str]] = {}
        if row is not None and was is not None:
            old, new = shown_row(was), shown_row(row)
            changed = {
                name: [old.get(name), new.get(name)]
                for name in {**row, **was}  # a column that the table got, or lost, in between was not there
                if name not in lineage_columns(target.model) and new.get(name) != old.get(name)
            }
            makers = (_published_by_or_named(target, states[number + 1 :], was), made_by)
            because = _differences(platform, target, key, (was, row), makers)
        versions.append(
            Version(
                snapshot.snapshot_id,
                shown_since(table, snapshot),
                action,
                run_id,
                None if row is None else shown_row(row),
                made_by,
                changed,
                because,
            )
        )
    return versions


def _published_by_or_named(target: TargetTable, states: Sequence[State], row: Mapping[str, Any]) -> str | None:
    """Return the run that made the row of the first of some states, which are newest first."""
    return _published_by(states[0][0], row, states[1:]) if not has_lineage(target.model) else row.get(PRODUCER)


def _published_by(snapshot: Snapshot, row: Mapping[str, Any], older: Sequence[State]) -> str | None:
    """Return the run that published a row of a table without lineage columns; of one that came back, the run that first did."""
    said = snapshot.summary.additional_properties if snapshot.summary else {}
    if said.get(ACTION_PROPERTY) != ROLLBACK:
        return said.get(RUN_PROPERTY)
    for number, (earlier, rows) in enumerate(older):
        if row in rows:
            return _published_by(earlier, row, older[number + 1 :])
    return None


def _differences(
    platform: Platform,
    target: TargetTable,
    key: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    makers: Sequence[str | None],
) -> dict[str, list[str]]:
    """Return what decided two rows and was not the same: code, settings, and what was read."""
    plans = []
    for one, made_by in zip(rows, makers, strict=True):
        record, chunk = platform.ledger.find(made_by) if made_by else None, chunk_of(target, key, one)
        if record is None or chunk is None:
            return {}
        plans.append(plan_of(platform, record, chunk))
    return differing_conditions(*plans)


def differing_conditions(before: Plan, after: Plan) -> dict[str, list[str]]:
    """Return what decides the rows of two plans and is not the same: of code its contents, whatever commit has them."""
    old, new = _conditions(before), _conditions(after)
    if before.code.is_same(after.code):
        old["code"] = new["code"]
    return {name: [old.get(name, ""), new.get(name, "")] for name in new if old.get(name) != new[name]}


def _conditions(plan: Plan) -> dict[str, str]:
    found = {
        "transform version": plan.transform_version,
        "code": str(plan.code),
        **{f"source {table}": f"snapshot {snapshot_id}" for table, snapshot_id in plan.source_pins},
        "Spark settings": plan.configuration_hash[:12],
    }
    pins = {pin.table: f"snapshot {pin.snapshot_id} {pin.version or ''}".strip() for pin in plan.references}
    return found | {f"reference {table}": text for table, text in pins.items()}


def plan_of(platform: Platform, record: RunRecord, chunk: str) -> Plan:
    """Return the plan that a chunk was computed with: the approved one, or the one it was planned anew with."""
    return platform.ledger.plans(record).get(chunk, record.plan)


def read_scan(table: Table, scan: DataScan) -> list[dict[str, Any]]:
    """Return the rows of a scan.

    Raises:
        EnvironmentRefused: if a file is missing or damaged.
    """
    schema = scan.projection() if scan.selected_fields == ("*",) else table.schema()
    where, uuids = _without_uuids(scan.row_filter, schema)
    if uuids:  # by them files are left out, and no row: Arrow cannot compare them
        fields = scan.selected_fields if scan.selected_fields == ("*",) else (*scan.selected_fields, *uuids)
        scan = scan.update(row_filter=where, selected_fields=tuple(dict.fromkeys(fields)))
    with readable_rows(table):
        rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
    return [row for row in rows if all(row[name] == value for name, value in uuids.items())] if uuids else rows


def _without_uuids(where: BooleanExpression, schema: Schema) -> tuple[BooleanExpression, dict[str, UUID]]:
    """Return a filter without what it asks of columns of UUIDs, and which UUID each of them is to have."""
    if isinstance(where, And):
        left, of_left = _without_uuids(where.left, schema)
        right, of_right = _without_uuids(where.right, schema)
        return And(left, right), of_left | of_right
    if isinstance(where, EqualTo) and isinstance(where.term, Reference):
        name = where.term.name
        if name in schema.column_names and isinstance(schema.find_type(name), UUIDType):
            return AlwaysTrue(), {name: UUID(bytes=where.literal.to(UUIDType()).value)}
    return where, {}
