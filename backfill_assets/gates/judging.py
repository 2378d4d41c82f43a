"""Gating what is staged: each chunk, then the run.

Put here the order of things and their recording in the ledger. What is done to the rows of one chunk is
`worker.chunk_gate`'s; what a reconciliation compares is the product's. Safe to repeat: what has a verdict keeps it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time
from functools import cache, partial, reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame

from backfill_assets import faults
from backfill_assets.declarations.reconciliations import SLICES
from backfill_assets.declarations.tallies import ChunkRows
from backfill_assets.declarations.target import (
    ALL_CHUNKS_GATE,
    EXPECTED_ROWS_GATE,
    PURITY_GATE,
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
)
from backfill_assets.gates.chunk_changes import VISIBLE, rows_after
from backfill_assets.gates.chunk_stretches import alike_stretches, named_stretches
from backfill_assets.gates.exception_table import UNLISTED, Judged, keep
from backfill_assets.gates.expected_figures import figures_finding
from backfill_assets.gates.future_rows import future_rows_finding
from backfill_assets.gates.merge_decisions import AMBIGUOUS_ROWS, decisions_finding
from backfill_assets.gates.purity import purity_finding
from backfill_assets.gates.rewritten import judge_rewritten
from backfill_assets.gates.visible_rows import COMPUTED_TALLIES, TALLIES, VisibleRows
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_then import accepted_then
from backfill_assets.planning.old_data import concealed
from backfill_assets.planning.old_data import finding as old_data_finding
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.run_context import RunContext
from backfill_assets.staging import stopping
from backfill_assets.staging.compute import histories_until_end, merged_entities, staged_frame, transform_context
from backfill_assets.staging.derivation import DerivedVerdict, judge_derived
from backfill_assets.staging.executor import Listener, ignore_progress
from backfill_assets.staging.folders import of_parts, parts_of
from backfill_assets.staging.raised import PLACE, TRACEBACK, finding_of, found_or_raised
from backfill_assets.staging.recomputing import LIMIT
from backfill_assets.staging.rows import lineage, sources_by_name
from backfill_assets.worker.chunk_gate import digest_of, gating
from backfill_assets.worker.chunk_rules import rule_name
from backfill_assets.worker.gate_tasks import DigestColumn, GateResult, GateSpec, GateTask, spec_of
from backfill_assets.worker.violations import require_read
from manifests.canonical import plain
from manifests.chunks import CHUNK_GATE, span
from manifests.data_terms import OLD_DATA_GATE
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.lifecycle import RunState
from manifests.merge_policy import MERGE_DECISIONS_GATE
from manifests.model import DayRange
from manifests.plan import Plan
from manifests.timeliness import FUTURE_GATE
from resources import logs
from resources.lakehouse.facade import local_path
from resources.ledger import judged
from resources.ledger.facade import (
    RAISED,
    ChunkRecord,
    ChunkState,
    GatedChunk,
    RunRecord,
    Verdict,
    operator,
)
from resources.logs import traces
from resources.spark.cores import tasks_at_once

_log = logging.getLogger(__name__)
_OF_THE_PLATFORM = {
    PURITY_GATE: Level.RECORD,
    EXPECTED_FIGURES_GATE: Level.STATE,
    MERGE_DECISIONS_GATE: Level.RECORD,
}
"""The platform's own gates that list what disagrees."""


def gate_spec(run: RunContext) -> GateSpec:
    """Return what the chunks of a plan are held against."""
    found = spec_of(
        run.target,
        lineage(run.plan, run.target.model),
        parts_of(run.platform.lakehouse.table(run.target.name), run.target).by,
    )
    return replace(found, rewritten=run.plan.compaction is not None)


def gate_chunks(platform: Platform, run_id: str, *, tell: Listener = ignore_progress) -> None:
    """Gate every staged chunk of a run that has no verdict yet: one pass over their files, spread by Spark.

    Also those that another launch staged: it may have ended before it could gate them.
    """
    record = platform.ledger.run(run_id)
    waiting = platform.ledger.chunks(run_id, state=ChunkState.STAGED)
    if waiting:
        with traces.span_of("gate_chunks", record.plan, gate=CHUNK_GATE, chunks=len(waiting)):
            _gate_waiting(platform, record, waiting, tell)
    platform.ledger.settle(run_id, operator())


def _gate_waiting(platform: Platform, record: RunRecord, waiting: Sequence[ChunkRecord], tell: Listener) -> None:
    run_id, target = record.run_id, platform.products.target(record.target)
    results: list[GatedChunk] = []
    stopping.going_on(run_id)()
    tell("gating", [chunk.chunk for chunk in waiting], "")
    for plan, keys in platform.ledger.by_plan(record, [chunk.chunk for chunk in waiting]):
        run, chunks = RunContext(platform, target, plan), [chunk for chunk in waiting if chunk.chunk in keys]
        with stopping.ending(run_id):
            found, also = run_gates(run, chunks), judge_derived(run, chunks) | judge_rewritten(run, chunks)
        results += [_gated(result, also.get(result.chunk), chunk) for result, chunk in paired(found, chunks)]
    faults.reach("gating.judged")
    platform.ledger.record_gated(run_id, results)
    faults.reach("gating.recorded")
    traces.note(
        rows=sum(result.rows for result in results), failed=sum(not result.verdict.passed for result in results)
    )
    for result in results:
        _say_verdict(record.plan, result)
    tell("gated", [result.chunk for result in results], "")


def _say_verdict(plan: Plan, result: GatedChunk) -> None:
    """Write the verdict of a chunk, and which rules how many of its rows break: never the rows."""
    verdict = result.verdict
    rules = {rule_name(one["rule"]): one["count"] for one in verdict.details.get("violations", [])}
    broken = "; ".join(f"{rule}: {count:,}" for rule, count in rules.items())
    text = f"{verdict.gate} passed, {result.rows:,} rows" if verdict.passed else f"{verdict.gate} NOT PASSED: {broken}"
    level = logging.INFO if verdict.passed else logging.WARNING
    with logs.of_chunk(plan, plan.chunk(result.chunk)):
        facts = {"gate": verdict.gate, "passed": verdict.passed, "rows": result.rows, "rules": rules}
        logs.event(_log, level, "chunk_verdict", text, told=True, attempt=result.attempt, **facts)


def run_gates(
    run: RunContext, chunks: Sequence[ChunkRecord], digest: tuple[DigestColumn, ...] | None = None
) -> list[GateResult]:
    """Read the staged files of chunks back in Spark's workers and judge them; records nothing.

    `digest` are the columns that digests are made of: those of the plan's version, if none are given.

    Raises:
        EnvironmentRefused: if a file could not be read just now.
    """
    platform, target, plan = run.platform, run.target, run.plan
    outlines = f"{platform.lakehouse.location(target.name)}/run={plan.run_id}/outlines"
    tasks = [
        GateTask(
            chunk.chunk,
            chunk.attempt,
            plan.chunk(chunk.chunk).start,
            plan.chunk(chunk.chunk).end,
            tuple(local_path(file.path) for file in chunk.files),
            chunk.rows or 0,
            local_path(f"{outlines}/{chunk.chunk}-{uuid4().hex}.parquet"),
            digest_of(target, plan.transform_version) if digest is None else digest,
            plan.chunk(chunk.chunk).hour,
            plan.chunk(chunk.chunk).part,
        )
        for chunk in chunks
    ]
    work = gating(gate_spec(run))
    results = platform.workers.do(plan.mode, work, [(task, task.rows) for task in tasks])
    require_read(one for result in results for one in result.violations)
    return results


def paired(results: Iterable[GateResult], chunks: Sequence[ChunkRecord]) -> Iterator[tuple[GateResult, ChunkRecord]]:
    """Yield each result with the chunk it is of."""
    by_key = {chunk.chunk: chunk for chunk in chunks}
    return ((result, by_key[result.chunk]) for result in results)


def _gated(result: GateResult, derived: DerivedVerdict | None, chunk: ChunkRecord) -> GatedChunk:
    """Return what is recorded of a gated chunk; `slices` and what is visible are those of the chunk as readers would see it."""
    measures: dict[str, Any] = {"slices": result.measures, "outline": result.outline, TALLIES: result.tallies}
    measures[VISIBLE] = {"rows": result.rows, "sums": result.sums}
    details: dict[str, Any] = {"rows": result.rows, "digest": result.digest}
    if derived is not None:
        result = replace(result, violations=[*result.violations, *derived.violations])
        measures |= {"computed": result.measures, "happened": chunk.measures.get("happened", {})}
        measures[COMPUTED_TALLIES] = result.tallies
        details |= {"published": derived.summary} | measures["happened"]
        if derived.slices is not None:
            measures["slices"] = derived.slices
        if derived.visible is not None:
            measures[VISIBLE] = derived.visible
        if derived.tallies is not None:
            measures[TALLIES] = derived.tallies
        if derived.ambiguous:
            measures[AMBIGUOUS_ROWS] = derived.ambiguous
    details["violations"] = plain(result.violations)
    verdict = Verdict(CHUNK_GATE, result.passed, result.summary, details, result.chunk, result.attempt)
    hashes = {**result.hashes, **({} if derived is None else derived.hashes)}
    files, made = (
        tuple(
            replace(file, **hashes[path]._asdict()) if (path := local_path(file.path)) in hashes else file
            for file in own
        )
        for own in (chunk.files, chunk.derived)
    )
    return GatedChunk(result.chunk, result.attempt, result.digest, result.rows, measures, verdict, files, made)


def gate_run(platform: Platform, run_id: str) -> list[Verdict] | None:
    """Judge a run whose every chunk is staged and has passed; None if it is not that far, or another launch was faster.

    Moves the run to VALIDATED, or to FAILED naming the gates that did not pass. Where a gate asks for an owner the run
    stays STAGED until one has accepted the change.
    """
    record = platform.ledger.run(run_id)
    if record.state is not RunState.STAGED:
        return None
    chunks = platform.ledger.chunks(run_id)
    if any(chunk.state is not ChunkState.PASSED for chunk in chunks):
        return None
    if _is_judged(platform, record, chunks):
        _wait_for_owner(platform, record)  # nothing has changed since
        return None
    with traces.span_of("gate_run", record.plan, chunks=len(chunks)):
        return _judge_run(platform, record, chunks)


def _judge_run(platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord]) -> list[Verdict] | None:
    run_id = record.run_id
    stopping.going_on(run_id)()
    with stopping.ending(run_id):
        verdicts, staged = _run_verdicts(platform, record, chunks), judged.name_of(chunks)
    faults.reach("gating.run_judged")
    if not platform.ledger.judge(run_id, verdicts, operator(), of=staged):
        return None
    if platform.ledger.run(run_id).state is RunState.STAGED and not _wait_for_owner(platform, record):
        why = "an owner has accepted these numbers before"
        platform.ledger.validate_accepted(run_id, record.plan.gates, by=operator(), why=why)
    with logs.of_run(record.plan):
        for one in verdicts:
            level = logging.INFO if one.passed else logging.WARNING
            raised = str(one.details.get(RAISED, "")).partition(":")[0]
            # the text of an error may quote a row: only its kind is written, and where it was raised
            said = f"it raised {raised}" if raised else one.summary
            for name, how in ((PLACE, " at {}"), (TRACEBACK, "; traceback: {} in the home folder")):
                said += how.format(one.details[name]) if raised and one.details.get(name) else ""
            text = f"{one.gate} {'passed' if one.passed else 'NOT PASSED'}: {said}"
            logs.event(_log, level, "run_verdict", text, told=True, gate=one.gate, passed=one.passed)
    return verdicts


def _is_judged(platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord]) -> bool:
    """Whether a staged run waits for an owner, and its run-level gates have judged what is staged."""
    verdicts = {one.gate: one for one in platform.ledger.verdicts(record.run_id, of_chunks=False)}
    staged = judged.name_of(chunks)
    if any(gate not in verdicts or verdicts[gate].judged != staged for gate in record.plan.gates):
        return False
    return bool(platform.ledger.asking(record.run_id))


def _wait_for_owner(platform: Platform, record: RunRecord) -> bool:
    """Say of a staged run that it waits for an owner, if a gate asks for one; return whether it does."""
    waiting = [verdict.gate for verdict in platform.ledger.asking(record.run_id)]
    if not waiting:
        return False
    command = f"backfill accept-change {record.run_id} --gate {waiting[0]} --reason WHY"
    why = f"waits for an owner: {', '.join(waiting)} (`{command}`)"
    if platform.ledger.run(record.run_id).state_reason != why:
        platform.ledger.note_waiting(record.run_id, why)
    return True


def _run_verdicts(platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord]) -> list[Verdict]:
    run = RunContext.of(platform, record)
    plan, target = run.plan, run.target
    rows = sum(chunk.rows or 0 for chunk in chunks)
    limit = plan.max_rows_expected
    findings: dict[str, Callable[[], Finding]] = {
        ALL_CHUNKS_GATE: lambda: Finding(
            len(chunks) == len(plan.chunks),
            f"{len(chunks)} of {len(plan.chunks)} chunks are staged and have passed",
            {"chunks": len(chunks), "rows": rows},
        ),
        EXPECTED_ROWS_GATE: lambda: Finding(
            limit is None or rows <= limit,
            f"{rows:,} rows written, " + ("no limit given" if limit is None else f"limit {limit:,}"),
            {"rows": rows, "limit": limit},
        ),
    }
    asked = [item for item in target.reconciliations if item.name in plan.gates]
    by_key = {chunk.chunk: chunk for chunk in chunks}

    @cache
    def contexts() -> dict[str, ReconciliationContext]:
        return {
            name: reconciliation_context(run.with_plan(own), [by_key[key] for key in stretch])
            for name, (own, stretch) in named_stretches(
                _stretches(platform.ledger.plans(record), plan), lambda _, stretch: span(stretch)
            ).items()
        }

    def reconciled(item: Reconciliation) -> Finding:
        there = contexts()  # which has the session begin
        with platform.spark.settings_kept(plan.mode):
            return everywhere(item, there)

    findings |= {item.name: partial(reconciled, item) for item in asked}
    findings[PURITY_GATE] = partial(_recomputed, run, record, chunks)
    findings[EXPECTED_FIGURES_GATE] = partial(figures_finding, run, record.manifest.validation.expected, chunks)
    findings[OLD_DATA_GATE] = lambda: old_data_finding(
        run, histories_until_end(run, whole=True), [file.path for chunk in chunks for file in chunk.files]
    )
    findings[MERGE_DECISIONS_GATE] = lambda: decisions_finding(run, chunks)
    findings[FUTURE_GATE] = lambda: future_rows_finding(run, histories_until_end(run, whole=True))
    found = {gate: found_or_raised(platform, record.run_id, gate, findings[gate]) for gate in plan.gates}
    kept = keep(
        platform,
        record.run_id,
        judged.name_of(chunks),
        mode=plan.mode,
        target=target.name,
        judged=[
            *(Judged(one, level.value, found[one], LIMIT) for one, level in _OF_THE_PLATFORM.items() if one in found),
            *(Judged(item.name, item.level.value, found[item.name], item.exceptions_limit) for item in asked),
        ],
        concealed=concealed(run),
    )
    return [run_verdict(gate, finding, kept.get(gate, {})) for gate, finding in found.items()]


def _recomputed(run: RunContext, record: RunRecord, chunks: Sequence[ChunkRecord]) -> Finding:
    """Hold some chunks, computed again by the plans that they were computed with, against what is staged."""
    groups = run.platform.ledger.by_plan(record, [chunk.chunk for chunk in chunks])
    stretches = [(run.with_plan(own), [one for one in chunks if one.chunk in keys]) for own, keys in groups]
    with run.platform.spark.settings_kept(run.plan.mode):
        return purity_finding(stretches)


def run_verdict(gate: str, finding: Finding, kept: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a run-level gate: what it found, the slices that fail, and where the exceptions are.

    `kept` is what `exception_table.keep` says of the gate.
    """
    details: dict[str, Any] = dict(finding.details) | {"sample": list(finding.sample)}
    if finding.compared is not None:
        details |= {"compared": finding.compared, "disagreeing": finding.disagreeing}
    if finding.slices:
        details["slices"] = list(finding.slices)[:SLICES]
    asks = finding.asks and not finding.passed
    summary = finding.summary
    if UNLISTED in kept:
        summary += f"; the rows that disagree could not be listed: {kept[UNLISTED]}"
    return Verdict(gate, finding.passed, summary, plain(details | dict(kept)), asks=asks)


def _stretches(plans: Mapping[str, Plan], plan: Plan) -> list[tuple[Plan, list[str]]]:
    """Return chunks without a gap that are computed with one plan: what can be reconciled as a whole."""
    return alike_stretches([(plans[chunk.key], chunk) for chunk in plan.chunks])


def everywhere(item: Reconciliation, contexts: Mapping[str, ReconciliationContext]) -> Finding:
    """Hold a reconciliation against each stretch of a run; it passes if it passes everywhere."""
    found = {name: finding_of(item.check(context)) for name, context in contexts.items()}
    if len(found) == 1:
        return next(iter(found.values()))
    counted = [finding for finding in found.values() if finding.compared is not None]
    listed = [finding.exceptions for finding in found.values() if finding.exceptions and not finding.passed]
    return Finding(
        all(finding.passed for finding in found.values()),
        "; ".join(f"{name}: {finding.summary}" for name, finding in found.items()),
        {name: dict(finding.details) for name, finding in found.items()},
        [row for finding in found.values() for row in finding.sample],
        compared=sum(finding.compared or 0 for finding in counted) if counted else None,
        disagreeing=sum(finding.disagreeing or 0 for finding in counted) if counted else None,
        slices=[{"days": name} | dict(one) for name, finding in found.items() for one in finding.slices],
        exceptions=partial(_all_of, listed) if listed else None,
        asks=not all(finding.passed for finding in found.values())
        and all(finding.passed or finding.asks for finding in found.values()),
    )


def _all_of(frames: Sequence[Callable[[], DataFrame]]) -> DataFrame:
    return reduce(DataFrame.unionByName, (frame() for frame in frames))


def reconciliation_context(
    run: RunContext,
    chunks: Sequence[ChunkRecord],
    *,
    published: DataFrame | None = None,
    files: Mapping[str, Sequence[str]] | None = None,
) -> ReconciliationContext:
    """Return what the reconciliations of a run, or of a stretch of its chunks, look at.

    `published` are the outlines of published rows, and `files` those of each chunk, where published rows are looked at and
    none are staged.
    """
    platform, target, plan = run.platform, run.target, run.plan
    keys = {chunk.chunk for chunk in chunks}
    planned = [chunk for chunk in plan.chunks if chunk.key in keys]
    scope = DayRange.model_construct(start=planned[0].start, end=planned[-1].end)
    place = target.source, target.source_time_column, plan.source_snapshot_id
    source = platform.lakehouse.source_state(*place, is_whole=target.reads_whole)
    last = max(file.last_day for file in source.files)
    holders = accepted_then(platform, target.name, plan.base_snapshot_id, keys)
    accepted: dict[str, Any] = dict.fromkeys(keys)
    for run_id in sorted(set(holders.values())):
        for chunk in platform.ledger.chunks(run_id):
            if holders.get(chunk.chunk) == run_id:
                accepted[chunk.chunk] = chunk.measures.get("slices", [])
    kept: dict[str, Any] = {}

    def shared(name: str, find: Callable[[ReconciliationContext], Any]) -> Any:
        if name not in kept:
            kept[name] = find(context)
        return kept[name]

    context = ReconciliationContext(
        transform=replace(transform_context(run, planned), publish_range=scope),
        source=of_parts((histories := histories_until_end(run))[plan.source], target, planned),
        source_rows=sum(file.rows for file in source.files),
        source_last_day=datetime.combine(last, time.min, UTC),
        staged=staged_frame(run, chunks) if published is None else published,
        measures=_slices(chunks, "computed"),
        after=_slices(chunks, "slices"),
        accepted=accepted,
        tolerances=plan.tolerances,
        shared=shared,
        source_time_column=target.source_time_column,
        rows=partial(rows_by_chunk, run, chunks),
        tallies=(visible := VisibleRows(run, chunks, files)),
        visible=visible.frame,
        entities=partial(merged_entities, run),
        target=target,
        sources=sources_by_name({one.table: histories[one.table] for one in plan.sources}),
        tasks=tasks_at_once(run.spark),
    )
    return context


def rows_by_chunk(run: RunContext, chunks: Sequence[ChunkRecord]) -> dict[str, ChunkRows]:
    """Return how many rows readers see of chunks at the plan's base and once they are published, from metadata alone.

    Of a merge, files that have no row of a merged entity stay as they are.
    """
    target, plan = run.target, run.plan
    scopes = chunk_scopes(target, [plan.chunk(chunk.chunk) for chunk in chunks])
    before: Mapping[str, Mapping[str, int]] = {key: {} for key in scopes}
    if plan.base_snapshot_id is not None:
        before = run.platform.lakehouse.file_rows_by_chunk(target.name, plan.base_snapshot_id, scopes)
    found = {}
    for chunk in chunks:
        files = before[chunk.chunk]
        found[chunk.chunk] = ChunkRows(sum(files.values()), rows_after(plan, chunk, files))
    return found


def _slices(chunks: Sequence[ChunkRecord], name: str) -> list[dict[str, Any]]:
    """Return what the chunk gates measured: of the computed rows, or of the chunks as readers would see them."""
    return [
        {"chunk": chunk.chunk, **row}
        for chunk in chunks
        for row in chunk.measures.get(name, chunk.measures.get("slices", []))
    ]
