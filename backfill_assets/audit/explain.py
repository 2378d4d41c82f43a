"""Why a published row says what it says: the run that made it, what that run read, and what the row said before.

Put here what is looked up for one key, in the target's own history, the ledger and the source, without Spark. How it is
shown is `cli.explain_view`'s. The history of the table is what is believed; the ledger says what its runs mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from pyiceberg.expressions import And, BooleanExpression, EqualTo
from pyiceberg.table import Table

from backfill_assets.audit.erased_rows import Erased, erased_of_source, erased_of_target, said_by_corrections
from backfill_assets.audit.key_history import (
    State,
    Version,
    chunk_of,
    names_then,
    plan_of,
    read_scan,
    states_of,
    under_todays_names,
    versions_of,
)
from backfill_assets.audit.written_in import written_in
from backfill_assets.declarations.key_texts import parse_key
from backfill_assets.declarations.schema import has_lineage
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import since_when_erased
from backfill_assets.planning.upstream import touches_days
from backfill_assets.run_context import RunContext
from backfill_assets.staging.rows import read_window
from backfill_assets.worker.violations import shown_row
from manifests.canonical import plain
from manifests.chunks import CHUNK_GATE
from manifests.code_identity import CodeIdentity
from manifests.errors import EnvironmentRefused
from manifests.further_sources import UpstreamRun, touched_days
from manifests.plan import Plan, PlannedChunk
from resources.lakehouse.facade import before, between
from resources.ledger.facade import RunRecord

SHOWN_ROWS = 50
"""Source rows and corrections that are shown of one key; all of them are counted."""


@dataclass(frozen=True)
class Producer:
    """The run that made a row: who asked and why, who agreed, what it read, with which code, and what its gates said.

    `sources` are those beside the first, `upstream` the runs of the first where that is a target: of each the chunks that were
    read for the row's own. `gates` has the verdict on the row's chunk and those on the whole run, in the plan's order, each with what an owner has
    `accepted` of it; `publications` every change of the table by it. `written_in` names the file of a transform in SQL.
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
    written_in: str | None
    sources: list[dict[str, Any]] = field(default_factory=list)
    upstream: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class SourceRows:
    """The source rows of the key's entity that its run read: those of the input range whole, earlier ones in few columns.

    `total` and `earlier` count all of them; at most `SHOWN_ROWS` of each are here, those nearest to the row's `day` first (of
    earlier ones to `look_back_day`), or the oldest first where no day is known, or the rows were read without their instants.
    `missing` says why there are none. `erased` of them have a subject who is erased by today: they are counted here alone.
    """

    entity: dict[str, Any]
    rows: list[dict[str, Any]]
    total: int
    look_back: list[dict[str, Any]]
    earlier: int
    missing: str = ""
    day: date | None = None
    look_back_day: date | None = None
    erased: int = 0


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
        erased_since: since when the policy has the key's subject erased: nothing that was ever said of it is here. None: it has not.
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
    erased_since: date | None = None


def explain(platform: Platform, table: str, texts: Sequence[str]) -> Explanation:
    """Say everything that is known of one key of a target.

    Raises:
        InputRefused: if the table is not a declared target, or the key is not one of it.
    """
    target = platform.products.target(table)
    key = parse_key(target, texts)
    found = platform.lakehouse.table(target.name)
    notes: list[str] = []
    states = list(states_of(found, _where(key), notes))
    issued = _corrections(platform, target, key)
    if since := _erased_since(platform, target, key, states, said_by_corrections(found, issued)):
        return _withheld(platform, target, key, since)
    versions = versions_of(platform, target, found, key, states)
    current = states[0][1] if states else []
    if len(current) > 1:
        notes.append(f"{len(current)} rows have this key; the first is shown")
    last = next((rows[0] for _, rows in states if rows), None)
    chunk = chunk_of(target, key, last)
    accepted = None if chunk is None else platform.ledger.accepted(target.name, [chunk]).get(chunk)
    if last is None and chunk is not None and accepted is None:
        notes.append(f"no run holds chunk {chunk}: nothing was published there, or it was rolled back")
    made_by = next((version.made_by for version in versions if version.row is not None), None)
    if current and not has_lineage(target.model):
        notes.append(f"{target.name} has no lineage columns: whose a row is, is told by its chunk")
        made_by = accepted
    producer = record = None
    if last is not None and made_by is not None:
        record = platform.ledger.find(made_by)
        if record is None:
            notes.append(f"the ledger does not know run '{made_by}', which the row names")
    if record is not None and chunk is not None:
        producer = _producer(platform, record, chunk)
    if current and accepted not in {None, made_by}:
        notes.append(f"chunk {chunk} is held by run '{accepted}', which has left this row as it was")
    source = None
    if record is not None and chunk is not None:
        run = RunContext(platform, target, plan_of(platform, record, chunk))
        source = _source_rows(run, chunk, {**(last or {}), **key})
    return Explanation(
        table=target.name,
        key=shown_row(key),
        chunk=chunk,
        row=shown_row(current[0]) if current else None,
        accepted_run=accepted,
        producer=producer,
        source=source,
        versions=versions,
        corrections=[shown_row(one) for one in issued[-SHOWN_ROWS:]],
        notes=notes,
    )


def _erased_since(
    platform: Platform,
    target: TargetTable,
    key: Mapping[str, Any],
    states: Sequence[State],
    corrected: Iterable[Mapping[str, Any]],
) -> date | None:
    """Return since when the policy has a subject of a key erased, or of any row that it ever had, or by a correction should have."""
    erased = erased_of_target(platform, target)
    rows = (key, *(row for _, rows in states for row in rows), *corrected)
    days = [since_when_erased(erased, row) for row in rows]
    return min((day for day in days if day is not None), default=None)


def _withheld(platform: Platform, target: TargetTable, key: Mapping[str, Any], since: date) -> Explanation:
    chunk = chunk_of(target, key, None)
    accepted = None if chunk is None else platform.ledger.accepted(target.name, [chunk]).get(chunk)
    note = f"the policy has its subject erased since {since}: nothing that was ever said of it is shown"
    return Explanation(target.name, shown_row(key), chunk, None, accepted, None, None, [], [], [note], since)


def _where(key: Mapping[str, Any]) -> BooleanExpression:
    terms = [
        EqualTo(term=name, value=value.isoformat() if isinstance(value, date | time) else value)
        for name, value in key.items()
    ]
    return terms[0] if len(terms) == 1 else And(*terms)


# --- the run ----------------------------------------------------------------------------------------------------------


def _producer(platform: Platform, record: RunRecord, chunk: str) -> Producer:
    plan, ledger = plan_of(platform, record, chunk), platform.ledger
    planned = [one for one in plan.chunks if one.key == chunk]
    start, end = read_window(plan, planned) if planned else (plan.read_from, plan.read_until)
    first = start.date() if plan.look_back is None else date.min
    accepted = ledger.accepted_changes(record.run_id)
    gates = [
        {"gate": verdict.gate, "chunk": verdict.chunk, "passed": verdict.passed, "summary": verdict.summary}
        | {"accepted": "" if verdict.chunk or verdict.gate not in accepted else str(accepted[verdict.gate])}
        for verdict in ledger.verdicts(record.run_id)
        if verdict.chunk == chunk or not verdict.chunk
    ]
    order = {gate: number for number, gate in enumerate((CHUNK_GATE, *plan.gates))}
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
        decisions=_decisions(platform, record),
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
        written_in=written_in(platform, plan),
        sources=_further(platform, plan, planned),
        upstream=_runs(platform, plan.source, plan.upstream, first, end.date()),
    )


def _decisions(platform: Platform, record: RunRecord) -> list[dict[str, Any]]:
    return [
        {"decision": one.decision, "decided_by": one.by, "comment": one.comment, "at": plain(one.at)}
        for one in platform.ledger.decisions(record.run_id)
    ]


def _further(platform: Platform, plan: Plan, planned: Sequence[PlannedChunk]) -> list[dict[str, Any]]:
    """Return what was read of each further source for a chunk; for all of them where the plan does not have it."""
    days = (planned[0].start, planned[0].end) if planned else (plan.publish_range.start, plan.publish_range.end)
    found = []
    for one in plan.sources:
        start, until = one.window(*days)
        read = {"table": one.table, "snapshot_id": one.snapshot_id, "committed_at": plain(one.committed_at)}
        upstream = _runs(platform, one.table, one.upstream, *touched_days(one, *days))
        found.append(read | {"from": plain(start), "until": plain(until), "upstream": upstream})
    return found


def _runs(
    platform: Platform, table: str, upstream: Sequence[UpstreamRun], first: date, last: date
) -> list[dict[str, Any]]:
    """Return the runs of a target that published what was read of some days: each with its state today and its evidence."""
    target, found = platform.products.find_target(table), []
    for one in upstream:
        chunks = [key for key in one.chunks if target is None or touches_days(target, key, first, last)]
        record = platform.ledger.find(one.run_id)
        if chunks:
            known = (
                {}
                if record is None
                else {"state": record.state.value, "transform_version": record.manifest.transform.version}
            )
            found.append(
                {"run_id": one.run_id, "chunks": chunks, "evidence": str(platform.evidence.path(one.run_id)), **known}
            )
    return found


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
    rule = run.platform.policy.source_rule(plan.source, target.name)
    if rule is not None and rule.columns:
        why = f"the policy protects columns of {plan.source}: its rows are shown to no one as they came"
        return SourceRows(shown_row(entity), [], 0, [], 0, why)
    erased = erased_of_source(run.platform, plan.source, target)
    start, end = read_window(plan, planned) if planned else (plan.read_from, plan.read_until)
    mine, instant, day = _where(entity), target.source_time_column, row.get(target.day_column)
    try:
        where = And(mine, between(instant, plan.at(start), plan.at(end)))
        rows, gone = _without(erased, _rows(table, where, plan.source_snapshot_id, instant, day))
        earlier: list[dict[str, Any]] = []
        gone_earlier = 0
        columns = tuple(target.look_back_columns)
        look_back_day = day if instant in columns else None  # nothing says which are nearest
        if columns:
            where = And(mine, before(instant, plan.at(start)))
            read = tuple(dict.fromkeys((*columns, *erased)))
            found = _rows(table, where, plan.source_snapshot_id, instant, look_back_day, read)
            earlier, gone_earlier = _without(erased, found)
            earlier = [{name: row.get(name) for name in columns} for row in earlier]
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
        erased=gone + gone_earlier,
    )


def _without(erased: Erased, rows: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return rows without those of erased subjects, and how many those are."""
    left = [row for row in rows if since_when_erased(erased, row) is None]
    return left, len(rows) - len(left)


def _rows(
    table: Table,
    where: BooleanExpression,
    snapshot_id: int,
    instant: str,
    day: date | None,
    columns: tuple[str, ...] = ("*",),
) -> list[dict[str, Any]]:
    """Return rows of a source, those nearest to a day first: of those that are equally near the newest.

    They are as they were then, under the names that their columns have today, by which the policy knows them.
    """
    snapshot = table.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    scan = table.scan(row_filter=where, snapshot_id=snapshot_id, selected_fields=columns)
    if columns != ("*",):
        scan = scan.update(selected_fields=names_then(table, snapshot, columns))
    rows = under_todays_names(table, snapshot, read_scan(table, scan))
    rows.sort(key=lambda row: (row.get(instant) is None, row.get(instant), str(row)))
    if day is None:
        return rows
    start = datetime.combine(day, datetime.min.time(), UTC)
    end = start + timedelta(days=1, microseconds=-1)  # the last day of the calendar has none after it

    def far(row: Mapping[str, Any]) -> tuple[bool, timedelta, timedelta]:
        at = row.get(instant)
        if type(at) is date:
            at = datetime.combine(at, time.min, UTC)
        return (True, end - end, end - end) if at is None else (False, max(start - at, at - end, end - end), end - at)

    return sorted(rows, key=far)


def _corrections(platform: Platform, target: TargetTable, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    if target.corrections is None or not platform.lakehouse.exists(target.corrections.name):
        return []
    table = platform.lakehouse.table(target.corrections.name)
    if table.current_snapshot() is None:
        return []
    rows = read_scan(table, table.scan(row_filter=_where(key)))
    return sorted(rows, key=lambda row: row["produced_at"])
