"""Staging chunks and gating them: what a Dagster run or the command does between approval and publication.

Put here the order of things, their recording in the ledger, and what happens after a failure. How a batch is computed
is `compute`'s, how a chunk is judged `gates`'s. Everything is safe to repeat: what is staged is skipped, what has a
verdict keeps it.
"""

from __future__ import annotations

import logging
import time as clock
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from functools import cache, partial, reduce
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from pyspark.sql import DataFrame

from backfill_assets import faults, stopping
from backfill_assets.chunk_changes import VISIBLE, rows_after
from backfill_assets.compute import compute_batch, history_until_end, lineage, staged_frame, transform_context
from backfill_assets.derivation import DerivedVerdict, chunk_scopes, derive_batch, judge_derived
from backfill_assets.exception_table import UNLISTED, Judged, keep
from backfill_assets.gates import (
    GateResult,
    GateSpec,
    GateTask,
    gate_batches,
    reference_to,
    require_read,
    result_from_json,
    rule_name,
    task_to_json,
)
from backfill_assets.old_data import concealed
from backfill_assets.old_data import finding as old_data_finding
from backfill_assets.platform import Platform, target_named
from backfill_assets.raised import PLACE, TRACEBACK, found_or_raised, words
from backfill_assets.reconciliation import SLICES
from backfill_assets.target import (
    ALL_CHUNKS_GATE,
    EXPECTED_ROWS_GATE,
    ChunkRows,
    Finding,
    Reconciliation,
    ReconciliationContext,
    TargetTable,
)
from backfill_assets.workers import in_workers
from manifests.canonical import plain
from manifests.errors import InputRefused, Problem, Refused, RunStopped, TransitionRefused
from manifests.lifecycle import COMPUTABLE, RunState
from manifests.model import DayRange, Mode
from manifests.planner import Plan, PlannedChunk, StagedFile
from manifests.policy import OLD_DATA_GATE, age_problems
from resources import approvals, judged, logs, space, ticks
from resources.code import changed_on_disk, code_identity, require_own_bytecode
from resources.lakehouse import PinnedRead, local_path
from resources.ledger import OBSOLETE, RAISED, STAGED, ChunkRecord, ChunkState, GatedChunk, RunRecord, Verdict, operator
from resources.plans import computed_in_vain

_log = logging.getLogger(__name__)
CHUNK_GATE = "chunk_rules"
"""The gate that every chunk must pass: the target's pandera model on its staged files."""
_ERROR_LENGTH = 2_000
_WAIT_SECONDS = 2.0


@dataclass
class Staged:
    """What a call of `stage_chunks` did: chunks computed, skipped because they were staged already, and failed."""

    computed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


Listener = Callable[[str, Sequence[str], str], None]
"""Told what happens: an event (`attempt`, `staged`, `failed`, `gated`), the chunks, and a folder or text."""


def _silent(_event: str, _chunks: Sequence[str], _text: str) -> None:
    """Hear nothing."""


def require_computable(platform: Platform, run_id: str, keys: Iterable[str], *, target: TargetTable) -> RunRecord:
    """Return a run whose chunks may be computed now.

    Raises:
        TransitionRefused: if the run is not approved, is over, or was planned with other code.
        InputRefused: if it is another target's run or a chunk is not in its plan.
    """
    record = platform.ledger.run(run_id)
    if record.target != target.name:
        raise InputRefused(
            Problem(
                f"run '{run_id}' is for {record.target}", f"this asset is {target.name}", "launch the run's own asset"
            )
        )
    if record.plan.mode is Mode.RECONCILIATION:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' has mode {record.plan.mode}",
                "a reconciliation computes nothing: it reads what is published",
                f"`backfill reconcile --run {run_id}`",
            )
        )
    if record.state not in COMPUTABLE:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' is {record.state}",
                f"chunks are computed for runs that are {', '.join(sorted(COMPUTABLE))}",
                "approve it first"
                if record.state is RunState.PLANNED
                else "nothing is left to compute; see `backfill status`",
            )
        )
    unknown = sorted(set(keys) - {chunk.key for chunk in record.plan.chunks})
    if unknown:
        raise InputRefused(
            Problem(
                f"chunk(s) {', '.join(unknown[:10])} are not in the plan of '{run_id}'",
                f"its publish range is {record.plan.publish_range.start} to {record.plan.publish_range.end}",
                "launch chunks of the plan only",
            )
        )
    if wrong := ticks.problems(platform.ledger.engine, record.manifest):
        raise TransitionRefused(wrong)
    _require_same_code(platform, record)
    require_young(platform, record)
    return record


def require_young(platform: Platform, record: RunRecord) -> None:
    """Refuse a run that is older than its policy allows.

    Raises:
        TransitionRefused: saying since when, and the way out.
    """
    rule = platform.policy.rule_for(record.target, record.kind)
    approval = approvals.approval_of(platform.ledger, record)
    problems = age_problems(
        rule,
        record.run_id,
        planned_at=record.plan.run_clock,
        approved_at=None if approval is None else approval["at"],
        at=approvals.latest(platform.ledger),
    )
    if problems:
        raise TransitionRefused(problems)


def _require_same_code(platform: Platform, record: RunRecord) -> None:
    planned, running = record.plan.code, code_identity()
    if record.plan.configuration_hash != platform.settings.output_hash():
        raise TransitionRefused(
            Problem(
                f"the Spark settings are not those that '{record.run_id}' was planned with",
                "a run is computed with the configuration of its approved plan",
                "restore the settings (`backfill config`), or plan the change again under a new run id",
            )
        )
    require_own_bytecode()  # it may have been altered since this process began, and workers begin anew
    if not record.manifest.development and changed_on_disk():
        raise TransitionRefused(
            Problem(
                "the code's files have changed since this process began",
                "a run is computed by the code that its approved plan names, in Spark's workers as well",
                "restart what launches (`backfill ui`, Dagster's code server), or run the command again",
            )
        )
    if planned.content_hash != running.content_hash and not record.manifest.development:
        raise TransitionRefused(
            Problem(
                f"run '{record.run_id}' was planned with code {planned.content_hash[:12]} (git {planned.git_commit}); "
                f"this is {running.content_hash[:12]} (git {running.git_commit})",
                "a run is computed by the code that its approved plan names",
                "check out that code, or plan the change again under a new run id",
            )
        )


def stage_chunks(
    platform: Platform, run_id: str, keys: Sequence[str], *, dagster_run_id: str = "", tell: Listener = _silent
) -> Staged:
    """Compute chunks of an approved run into staging, a batch a Spark job; skip those that are staged.

    A batch that fails is halved until the chunks that fail stand alone; the others stay staged.
    """
    target = target_named(platform.ledger.run(run_id).target)
    record = require_computable(platform, run_id, keys, target=target)
    with logs.of_run(record.plan):
        return _stage_chunks(platform, target, record, keys, dagster_run_id, tell)


def _stage_chunks(
    platform: Platform, target: TargetTable, record: RunRecord, keys: Sequence[str], dagster_run_id: str, tell: Listener
) -> Staged:
    run_id, outcome = record.run_id, Staged()
    present = {chunk.chunk: chunk for chunk in platform.ledger.chunks(run_id)}
    wanted = frozenset(key for key in keys if present[key].state not in STAGED)
    outcome.skipped = sorted(set(keys) - wanted)
    text = f"computing {len(wanted)} chunk(s); {len(outcome.skipped)} are staged already"
    logs.event(_log, logging.INFO, "staging_started", text, chunks=len(wanted), skipped=len(outcome.skipped))
    location = platform.lakehouse.location(target.name)
    if wanted and urlsplit(location).scheme in {"", "file"}:
        needed = _bytes_expected(platform, target, record, wanted)
        space.require_room(Path(local_path(location)), needed, f"computing {len(wanted)} chunk(s)")
    platform.ledger.end_attempts_of_the_dead(run_id)
    platform.ledger.resume(run_id, operator())
    edition = platform.ledger.edition(run_id)  # before the plans: one that comes in between makes this launch obsolete
    for plan, chunks in by_plan(platform.ledger.plans(record), wanted):
        for batch in plan.batches(chunks):
            _wait_for_a_place(platform, plan, tell)
            _stage_batch(
                platform, target, plan, batch, outcome, edition=edition, dagster_run_id=dagster_run_id, tell=tell
            )
    platform.ledger.settle(run_id, operator())
    return outcome


def _bytes_expected(platform: Platform, target: TargetTable, record: RunRecord, keys: frozenset[str]) -> int:
    """Return how much chunks take on the disk, as far as anybody can tell: what they take today, or else what they read."""
    holders = platform.ledger.accepted(target.name, keys)
    today = {
        chunk.chunk: chunk.bytes or 0
        for holder in set(holders.values())
        for chunk in platform.ledger.chunks(holder)
        if holders.get(chunk.chunk) == holder
    }
    share = len(keys - today.keys()) / len(record.plan.chunks)
    return sum(today.values()) + int(record.plan.reads.bytes * share)


def by_plan(plans: Mapping[str, Plan], keys: Iterable[str]) -> list[tuple[Plan, frozenset[str]]]:
    """Group chunks by the plan they are computed with: the approved one first, then each that replaced it."""
    groups: dict[str, tuple[Plan, set[str]]] = {}
    wanted = set(keys)
    for key, plan in plans.items():
        if key in wanted:
            groups.setdefault(plan.hash, (plan, set()))[1].add(key)
    return [(plan, frozenset(chunks)) for plan, chunks in groups.values()]


def _wait_for_a_place(platform: Platform, plan: Plan, tell: Listener) -> None:
    """Wait while as many batches of the run are computed on this machine as its manifest allows at once."""
    while len(busy := platform.ledger.batches_under_way(plan.run_id)) >= plan.max_runs_in_parallel:
        why = f"limits.maxRunsInParallel is {plan.max_runs_in_parallel}; under way: {busy}"
        stopping.going_on(plan.run_id)()
        tell("waiting", [], why)
        logs.event(_log, logging.INFO, "staging_waits", f"waiting: {why}", attempts=busy)
        clock.sleep(_WAIT_SECONDS)


def _stage_batch(
    platform: Platform,
    target: TargetTable,
    plan: Plan,
    batch: Sequence[PlannedChunk],
    outcome: Staged,
    *,
    edition: int,
    dagster_run_id: str,
    tell: Listener,
) -> None:
    """Compute a batch by a plan that its chunks had when the run was of an edition; see `Ledger.edition`.

    Raises:
        StateMoved: if one of them has another plan by now, and was not staged by it yet: nothing has failed.
    """
    keys = [chunk.key for chunk in batch]
    stopping.going_on(plan.run_id)()
    opened = platform.ledger.start_attempt(
        plan.run_id,
        keys,
        edition=edition,
        actor=operator(),
        location=platform.lakehouse.location(target.name),
        dagster_run_id=dagster_run_id,
    )
    if opened is None:
        outcome.skipped += keys  # another launch has staged them meanwhile
        return
    attempt, prefix = opened
    tell("attempt", keys, prefix)
    _say_attempt(plan, batch, attempt, "started", logging.INFO, folder=prefix)
    reads: dict[str, int] = {}

    def count(part: str, read: PinnedRead) -> None:
        reads.update({f"{part}_files": len(read.paths), f"{part}_rows": read.rows, f"{part}_bytes": read.bytes})

    try:
        with stopping.ending(plan.run_id):
            files = compute_batch(platform, target, plan, batch, prefix, count)
            faults.reach("staging.written")
            derived = derive_batch(platform, target, plan, batch, prefix, files)
            faults.reach("staging.derived")
            platform.ledger.stage(plan.run_id, attempt, files, derived, reads)
            faults.reach("staging.recorded")
    except RunStopped as stop:  # nothing has failed, and nothing is tried again
        platform.ledger.fail_attempt(plan.run_id, attempt, stop.problems[0].what)
        _say_attempt(plan, batch, attempt, "stopped", logging.WARNING, why=stop.problems[0].what)
        raise
    except TransitionRefused as refusal:  # the run has moved on meanwhile: that is nothing it failed at
        platform.ledger.fail_attempt(plan.run_id, attempt, str(refusal))
        _say_attempt(plan, batch, attempt, "not used", logging.WARNING, why=refusal.problems[0].what)
        by_others = [one.chunk for one in platform.ledger.chunks(plan.run_id) if one.state in STAGED]
        if not set(keys) <= set(by_others):
            raise
        outcome.skipped += keys  # another launch has staged them first
        return
    except Refused as refusal:  # every chunk would be refused for the same reason
        _refused(platform, plan, batch, attempt, refusal)
        raise
    except Exception as error:
        if (full := space.refusal(error)) is not None:  # half as many chunks find no room, either
            _refused(platform, plan, batch, attempt, full)
            raise full from error
        halves = _failed(platform, plan, batch, attempt, error, outcome, tell)
        for half in halves:
            _stage_batch(
                platform, target, plan, half, outcome, edition=edition, dagster_run_id=dagster_run_id, tell=tell
            )
        return
    outcome.computed += keys
    tell("staged", keys, prefix)
    _say_staged(plan, batch, attempt, files)


def _failed(
    platform: Platform,
    plan: Plan,
    batch: Sequence[PlannedChunk],
    attempt: int,
    error: Exception,
    outcome: Staged,
    tell: Listener,
) -> list[Sequence[PlannedChunk]]:
    """Record that a batch failed; return the halves that are tried next, none where a chunk stands alone.

    Raises:
        StateMoved: if its chunks were planned anew meanwhile: it was computed in vain, and that is no failure.
    """
    keys = [chunk.key for chunk in batch]
    why, more = words(error), str(error).strip()[:_ERROR_LENGTH]
    why += f"\n{more}" if "\n" in more else ""
    ended = platform.ledger.fail_attempt(plan.run_id, attempt, why, chunk=keys[0] if len(batch) == 1 else None)
    _refuse_obsolete(plan, batch, attempt, ended, error)
    _say_attempt(plan, batch, attempt, "failed", logging.WARNING, error=type(error).__name__)
    if len(batch) == 1:
        outcome.failed[keys[0]] = why
        tell("failed", keys, why)
        return []
    middle = len(batch) // 2
    return [batch[:middle], batch[middle:]]


def _say_staged(
    plan: Plan, batch: Sequence[PlannedChunk], attempt: int, files: Mapping[str, Sequence[StagedFile]]
) -> None:
    for chunk in batch:
        with logs.of_chunk(plan, chunk):
            staged = files.get(chunk.key, [])
            facts: dict[str, Any] = {"rows": sum(one.rows for one in staged), "bytes": sum(one.bytes for one in staged)}
            text = f"staged {facts['rows']:,} rows in {len(staged)} file(s) by attempt {attempt}"
            logs.event(_log, logging.INFO, "chunk_staged", text, attempt=attempt, files=len(staged), **facts)


def _refused(platform: Platform, plan: Plan, batch: Sequence[PlannedChunk], attempt: int, refusal: Refused) -> None:
    """Record that a batch was refused: its attempt and the run have failed, in one transaction.

    A run that another process has moved on meanwhile, or ended, is what it is.

    Raises:
        StateMoved: if its chunks were planned anew meanwhile: it was computed in vain, and that is no failure.
    """
    run_id, why = plan.run_id, "; ".join(one.what for one in refusal.problems)[:_ERROR_LENGTH]
    ended = platform.ledger.fail_attempt(run_id, attempt, str(refusal), fails_run=why, actor=operator())
    _refuse_obsolete(plan, batch, attempt, ended, refusal)
    _say_attempt(plan, batch, attempt, "refused", logging.ERROR, why=why)
    if (state := platform.ledger.run(run_id).state) is not RunState.FAILED:
        text = f"the run is not FAILED: it is {state}"
        logs.event(_log, logging.WARNING, "run_not_failed", text, told=True)


def _refuse_obsolete(plan: Plan, batch: Sequence[PlannedChunk], attempt: int, ended: str, error: Exception) -> None:
    """End the launch if its attempt was one at chunks that were planned anew; `error` is what became of it in vain."""
    if ended == OBSOLETE:
        obsolete = computed_in_vain(plan.run_id, [chunk.key for chunk in batch])
        _say_attempt(plan, batch, attempt, "not used", logging.WARNING, why=obsolete.problems[0].what)
        raise obsolete from error


def _say_attempt(
    plan: Plan, batch: Sequence[PlannedChunk], attempt: int, what: str, level: int, **facts: object
) -> None:
    """Write of each chunk of an attempt what became of it; the text of a transform's error is in the ledger only."""
    event, reason = f"attempt_{what.replace(' ', '_')}", facts.get("why") or facts.get("error")
    # a batch of several is halved and tried again: only what stands alone has failed
    level = logging.INFO if what == "failed" and len(batch) > 1 else level
    text = f"attempt {attempt} {what}, a batch of {len(batch)} chunk(s)" + (f": {reason}" if reason else "")
    for chunk in batch:
        with logs.of_chunk(plan, chunk):
            logs.event(_log, level, event, text, told=True, attempt=attempt, chunks=len(batch), **facts)


# --- gates ------------------------------------------------------------------------------------------------------------


def gate_spec(target: TargetTable, plan: Plan) -> GateSpec:
    """Return what the chunks of a plan are held against."""
    return GateSpec(
        model=reference_to(target.model),
        key=target.key,
        day_column=target.day_column,
        lineage=lineage(plan),
        measure=None if target.measure is None else reference_to(target.measure),
        outline=None if target.outline is None else reference_to(target.outline.rows),
        outline_columns=() if target.outline is None else target.outline.columns,
    )


def gate_chunks(platform: Platform, run_id: str, *, tell: Listener = _silent) -> None:
    """Gate every staged chunk of a run that has no verdict yet: one pass over their files, spread by Spark.

    Also those that another launch staged: it may have ended before it could gate them.
    """
    record = platform.ledger.run(run_id)
    target = target_named(record.target)
    waiting = [chunk for chunk in platform.ledger.chunks(run_id) if chunk.state is ChunkState.STAGED]
    if waiting:
        results: list[GatedChunk] = []
        for plan, keys in by_plan(platform.ledger.plans(record), [chunk.chunk for chunk in waiting]):
            chunks = [chunk for chunk in waiting if chunk.chunk in keys]
            with stopping.ending(run_id):
                found = run_gates(platform, target, plan, chunks)
                also = judge_derived(platform, target, plan, chunks)
            results += [_gated(result, also.get(result.chunk), chunk) for result, chunk in paired(found, chunks)]
        faults.reach("gating.judged")
        platform.ledger.record_gated(run_id, results)
        faults.reach("gating.recorded")
        for result in results:
            _say_verdict(record.plan, result)
        tell("gated", [result.chunk for result in results], "")
    platform.ledger.settle(run_id, operator())


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


def run_gates(platform: Platform, target: TargetTable, plan: Plan, chunks: Sequence[ChunkRecord]) -> list[GateResult]:
    """Read the staged files of chunks back in Spark's workers and judge them; records nothing.

    Raises:
        EnvironmentRefused: if a file could not be read just now.
    """
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
        )
        for chunk in chunks
    ]
    texts = [(task.chunk, task.rows, task_to_json(task)) for task in tasks]
    spec = gate_spec(target, plan)
    results = [result_from_json(text) for text in in_workers(platform, plan, texts, partial(gate_batches, spec))]
    require_read(one for result in results for one in result.violations)
    return results


def paired(results: Iterable[GateResult], chunks: Sequence[ChunkRecord]) -> Iterator[tuple[GateResult, ChunkRecord]]:
    """Yield each result with the chunk it is of."""
    by_key = {chunk.chunk: chunk for chunk in chunks}
    return ((result, by_key[result.chunk]) for result in results)


def _gated(result: GateResult, derived: DerivedVerdict | None, chunk: ChunkRecord) -> GatedChunk:
    """Return what is recorded of a gated chunk; `slices` and what is visible are those of the chunk as readers would see it."""
    measures: dict[str, Any] = {"slices": result.measures, "outline": result.outline}
    measures[VISIBLE] = {"rows": result.rows, "sums": result.sums}
    details: dict[str, Any] = {"rows": result.rows, "digest": result.digest}
    if derived is not None:
        result = replace(result, violations=[*result.violations, *derived.violations])
        measures |= {"computed": result.measures, "happened": chunk.measures.get("happened", {})}
        details |= {"published": derived.summary} | measures["happened"]
        if derived.slices is not None:
            measures["slices"] = derived.slices
        if derived.visible is not None:
            measures[VISIBLE] = derived.visible
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
    chunks = platform.ledger.chunks(run_id)
    if record.state is not RunState.STAGED or any(chunk.state is not ChunkState.PASSED for chunk in chunks):
        return None
    if _is_judged(platform, record, chunks):
        _wait_for_owner(platform, record)  # nothing has changed since
        return None
    with stopping.ending(run_id):
        verdicts, staged = _run_verdicts(platform, record, chunks), judged.name_of(chunks)
    faults.reach("gating.run_judged")
    if not platform.ledger.judge(run_id, verdicts, operator(), of=staged):
        return None
    if platform.ledger.run(run_id).state is RunState.STAGED and not _wait_for_owner(platform, record):
        why = "an owner has accepted these numbers before"
        approvals.validate_accepted(platform.ledger, run_id, record.plan.gates, by=operator(), why=why)
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
    verdicts = {one.gate: one for one in platform.ledger.verdicts(record.run_id) if not one.chunk}
    staged = judged.name_of(chunks)
    if any(gate not in verdicts or verdicts[gate].judged != staged for gate in record.plan.gates):
        return False
    return bool(approvals.asking(platform.ledger, record.run_id))


def _wait_for_owner(platform: Platform, record: RunRecord) -> bool:
    """Say of a staged run that it waits for an owner, if a gate asks for one; return whether it does."""
    waiting = [verdict.gate for verdict in approvals.asking(platform.ledger, record.run_id)]
    why = f"waits for an owner: {', '.join(waiting)} (`backfill accept-change {record.run_id}`)"
    if waiting and platform.ledger.run(record.run_id).state_reason != why:
        approvals.note_waiting(platform.ledger, record.run_id, why)
    return bool(waiting)


def _run_verdicts(platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord]) -> list[Verdict]:
    plan, target = record.plan, target_named(record.target)
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

    @cache
    def contexts() -> dict[str, ReconciliationContext]:
        return {
            f"{stretch[0]} to {stretch[-1]}": reconciliation_context(
                platform, target, own, [chunk for chunk in chunks if chunk.chunk in stretch]
            )
            for own, stretch in _stretches(platform.ledger.plans(record), plan)
        }

    def reconciled(item: Reconciliation) -> Finding:
        return everywhere(item, contexts())

    findings |= {item.name: partial(reconciled, item) for item in asked}
    findings[OLD_DATA_GATE] = lambda: old_data_finding(
        platform,
        target,
        plan,
        history_until_end(platform, target, plan, whole=True),
        [file.path for chunk in chunks for file in chunk.files],
    )
    found = {gate: found_or_raised(platform, record.run_id, gate, findings[gate]) for gate in plan.gates}
    kept = keep(
        platform,
        record.run_id,
        judged.name_of(chunks),
        mode=plan.mode,
        target=target.name,
        judged=[Judged(item.name, item.level.value, found[item.name], item.exceptions_limit) for item in asked],
        concealed=concealed(platform, target, plan),
    )
    return [run_verdict(gate, finding, kept.get(gate, {})) for gate, finding in found.items()]


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
    """Return runs of chunks that follow one another and are computed with one plan: what can be reconciled as a whole."""
    stretches: list[tuple[Plan, list[str]]] = []
    follows = None
    for chunk in plan.chunks:
        own = plans[chunk.key]
        if stretches and follows == chunk.start and stretches[-1][0].hash == own.hash:
            stretches[-1][1].append(chunk.key)
        else:
            stretches.append((own, [chunk.key]))
        follows = chunk.end + timedelta(days=1)
    return stretches


def everywhere(item: Reconciliation, contexts: Mapping[str, ReconciliationContext]) -> Finding:
    """Hold a reconciliation against each stretch of a run; it passes if it passes everywhere."""
    found = {name: item.check(context) for name, context in contexts.items()}
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
        asks=all(finding.passed or finding.asks for finding in found.values()),
    )


def _all_of(frames: Sequence[Callable[[], DataFrame]]) -> DataFrame:
    return reduce(DataFrame.unionByName, (frame() for frame in frames))


def reconciliation_context(
    platform: Platform,
    target: TargetTable,
    plan: Plan,
    chunks: Sequence[ChunkRecord],
    *,
    published: DataFrame | None = None,
) -> ReconciliationContext:
    """Return what the reconciliations of a run, or of a stretch of its chunks, look at.

    `published` are the outlines of published rows, where those are looked at and none are staged.
    """
    keys = {chunk.chunk for chunk in chunks}
    planned = [chunk for chunk in plan.chunks if chunk.key in keys]
    scope = DayRange.model_construct(start=planned[0].start, end=planned[-1].end)
    source = platform.lakehouse.source_state(target.source, target.source_time_column, plan.source_snapshot_id)
    last = max(file.last_day for file in source.files)
    holders = platform.ledger.accepted(target.name, keys)
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
        transform=replace(transform_context(platform, plan, planned), publish_range=scope),
        source=history_until_end(platform, target, plan),
        source_rows=sum(file.rows for file in source.files),
        source_last_day=datetime.combine(last, time.min, UTC),
        staged=staged_frame(platform, target, plan, chunks) if published is None else published,
        measures=_slices(chunks, "computed"),
        after=_slices(chunks, "slices"),
        accepted=accepted,
        tolerances=plan.tolerances,
        shared=shared,
        source_time_column=target.source_time_column,
        rows=partial(rows_by_chunk, platform, target, plan, chunks),
    )
    return context


def rows_by_chunk(
    platform: Platform, target: TargetTable, plan: Plan, chunks: Sequence[ChunkRecord]
) -> dict[str, ChunkRows]:
    """Return how many rows readers see of chunks at the plan's base and once they are published, from metadata alone.

    Of a merge, files that have no row of a merged entity stay as they are.
    """
    scopes = chunk_scopes(target, [plan.chunk(chunk.chunk) for chunk in chunks])
    before: Mapping[str, Mapping[str, int]] = {key: {} for key in scopes}
    if plan.base_snapshot_id is not None:
        before = platform.lakehouse.file_rows_by_chunk(target.name, plan.base_snapshot_id, scopes)
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
