"""Staging chunks: what a Dagster run or the command does between approval and gates.

Put here the order of things, their recording in the ledger, and what happens after a failure. How a batch is computed
is `compute`'s; how what was staged is judged is `gates.judging`'s. Safe to repeat: what is staged is skipped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from backfill_assets import faults
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.planned_code import other_code_problem
from backfill_assets.planning.schemas import schema_problems
from backfill_assets.run_context import RunContext
from backfill_assets.staging import pacing, stopping
from backfill_assets.staging.compute import compute_batch
from backfill_assets.staging.derivation import derive_batch
from backfill_assets.staging.raised import words
from backfill_assets.staging.rows import is_of_rows
from manifests.errors import (
    EnvironmentRefused,
    InputRefused,
    Problem,
    Refused,
    RunStopped,
    TransformRefused,
    TransitionRefused,
)
from manifests.lifecycle import COMPUTABLE, RunState
from manifests.model import Mode
from manifests.plan import Plan, PlannedChunk
from manifests.staged_file import StagedFile
from manifests.stages import batches_of
from manifests.who_may import age_problems
from resources import logs
from resources.code.identity import changed_on_disk, require_own_bytecode
from resources.files import space
from resources.files.stores import is_local
from resources.lakehouse.declared_tables import column_problems
from resources.lakehouse.facade import PinnedRead, local_path
from resources.ledger.facade import (
    OBSOLETE,
    STAGED,
    RunRecord,
    operator,
)
from resources.ledger.plans import computed_in_vain
from resources.logs import traces
from resources.spark import failures

_log = logging.getLogger(__name__)
_ERROR_LENGTH = 2_000
_LARGE = 8
"""Chunks of a batch of which some are tried apart, if it fails, before it is halved."""


@dataclass
class Staged:
    """What a call of `stage_chunks` did: chunks computed, skipped because they were staged already, and failed."""

    computed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)

    def add(self, other: Staged) -> None:
        """Take over what another call did."""
        self.computed += other.computed
        self.skipped += other.skipped
        self.failed |= other.failed


Listener = Callable[[str, Sequence[str], str], None]
"""Told what happens: an event (`stage`, `attempt`, `staged`, `failed`, `gating`, `gated`), the chunks, and a folder or text."""


@dataclass(frozen=True)
class _Launch:
    """What all batches of a call of `stage_chunks` have in common.

    Attributes:
        outcome: what it has done so far.
        edition: which one the run had when its plans were read; see `Ledger.edition`.
        dagster_run_id: the Dagster run that it is part of; empty without Dagster.
        tell: told what happens.
        apart: chunks of a large batch that has failed, which are tried by themselves before it is halved.
    """

    outcome: Staged
    edition: int
    dagster_run_id: str
    tell: Listener
    apart: list[str] = field(default_factory=list)


def ignore_progress(_event: str, _chunks: Sequence[str], _text: str) -> None:
    """Hear nothing."""


def require_computable(platform: Platform, run_id: str, keys: Iterable[str], *, target: TargetTable) -> RunRecord:
    """Return a run whose chunks may be computed now.

    Raises:
        TransitionRefused: if the run is not approved, is over, or was planned with other code.
        InputRefused: if it is another target's run or a chunk is not in its plan.
        EnvironmentRefused: if the target's columns are no longer those of its model.
    """
    record = platform.ledger.run(run_id)
    if record.target != target.name:
        raise InputRefused(
            Problem(
                f"run '{run_id}' is for {record.target}", f"this asset is {target.name}", "launch the run's own asset"
            )
        )
    plan = record.plan
    if plan.mode is Mode.RECONCILIATION:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' has mode {plan.mode}",
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
    asked = set(keys)
    unknown = sorted(asked - {chunk.key for chunk in plan.those_of(asked)})
    if unknown:
        raise InputRefused(
            Problem(
                f"chunk(s) {', '.join(unknown[:10])} are not in the plan of '{run_id}'",
                f"it may change {record.plan.scope}",
                "launch chunks of the plan only",
            )
        )
    if wrong := platform.ledger.ticks.problems(record.manifest):
        raise TransitionRefused(wrong)
    _require_same_code(platform, record)
    require_not_expired(platform, record)
    if differing := column_problems(platform.lakehouse.table(target.name), iceberg_schema(target.model)):
        raise EnvironmentRefused(differing)  # it was as planned: the table, or a development's model, has changed since
    if others := schema_problems(platform, target, record.plan):
        raise TransitionRefused(others)
    return record


def require_not_expired(platform: Platform, record: RunRecord) -> None:
    """Refuse a run that is older than its policy allows.

    Raises:
        TransitionRefused: saying since when, and the way out.
    """
    rule = platform.policy.rule_for(record.target, record.kind)
    approval = platform.ledger.approval_of(record)
    problems = age_problems(
        rule,
        record.run_id,
        planned_at=record.plan.run_clock,
        approved_at=None if approval is None else approval.at,
        at=platform.ledger.latest(),
    )
    if problems:
        raise TransitionRefused(problems)


def _require_same_code(platform: Platform, record: RunRecord) -> None:
    other, sources = other_code_problem(platform, record), platform.sources_of(record.target)
    if record.plan.configuration_hash != platform.settings.output_hash():
        raise TransitionRefused(
            Problem(
                f"the Spark settings are not those that '{record.run_id}' was planned with",
                "a run is computed with the configuration of its approved plan",
                "restore the settings (`backfill config`), or plan the change again under a new run id",
            )
        )
    require_own_bytecode(sources)  # it may have been altered since this process began, and workers begin anew
    if not record.manifest.development and changed_on_disk(sources):
        raise TransitionRefused(
            Problem(
                "the code's files have changed since this process began",
                "a run is computed by the code that its approved plan names, in Spark's workers as well",
                "restart what launches (`backfill ui`, Dagster's code server), or run the command again",
            )
        )
    if other is not None:
        raise TransitionRefused(other)


def stage_chunks(
    platform: Platform, run_id: str, keys: Sequence[str], *, dagster_run_id: str = "", tell: Listener = ignore_progress
) -> Staged:
    """Compute chunks of an approved run into staging, a batch a Spark job; skip those that are staged.

    A batch that fails is halved until the chunks that fail stand alone; the others stay staged. Of a large one, three chunks
    are tried apart before: what a row's computing raises alike in each of them is the transform's, and no other is tried.

    Raises:
        TransformRefused: if the transform cannot be computed, whichever chunk it is.
    """
    record = platform.ledger.run(run_id)
    target = platform.products.target(record.target)
    with traces.span_of("stage", record.plan, chunks=len(keys), dagster_run_id=dagster_run_id or None):
        record = require_computable(platform, run_id, keys, target=target)
        with logs.of_run(record.plan):
            return _stage_chunks(RunContext(platform, target, record.plan), record, keys, dagster_run_id, tell)


def _stage_chunks(
    run: RunContext, record: RunRecord, keys: Sequence[str], dagster_run_id: str, tell: Listener
) -> Staged:
    platform, run_id, outcome = run.platform, run.run_id, Staged()
    present = {one.chunk: one.state for one in platform.ledger.standing_chunks(run_id, keys)}
    wanted = frozenset(key for key in keys if present[key] not in STAGED)
    outcome.skipped = sorted(set(keys) - wanted)
    text = f"computing {len(wanted)} chunk(s); {len(outcome.skipped)} are staged already"
    logs.event(_log, logging.INFO, "staging_started", text, chunks=len(wanted), skipped=len(outcome.skipped))
    location = platform.lakehouse.location(run.target.name)
    if wanted and is_local(location):
        needed = _bytes_expected(run, wanted)
        space.require_room(Path(local_path(location)), needed, f"computing {len(wanted)} chunk(s)")
    elif wanted:
        _ = run.spark  # or an attempt would be begun where Spark cannot reach the store
    platform.ledger.fail_attempts_of_dead_processes(run_id)
    platform.ledger.resume(run_id, operator())
    edition = platform.ledger.edition(run_id)  # before the plans: one that comes in between makes this launch obsolete
    launch = _Launch(outcome, edition, dagster_run_id, tell)
    for plan, chunks in platform.ledger.by_plan(record, wanted):
        mine = run.with_plan(plan)
        for stage in batches_of(plan, chunks):
            for batch in pacing.cut(mine, [plan.chunk(key) for key in stage.chunks]):
                tell("stage", keys_of(batch), replace(stage, chunks=keys_of(batch)).describe())
                _stage_batch(mine, launch, batch)
    platform.ledger.settle(run_id, operator())
    return outcome


def _bytes_expected(run: RunContext, keys: frozenset[str]) -> int:
    """Return how much chunks take on the disk, as far as anybody can tell: what they take today, or else what they read."""
    ledger, plan = run.platform.ledger, run.plan
    held: dict[str, list[str]] = {}
    for key, holder in ledger.accepted(run.target.name, keys).items():
        held.setdefault(holder, []).append(key)
    today = sum(ledger.bytes_of_chunks(holder, own) for holder, own in held.items())
    share = (len(keys) - sum(map(len, held.values()))) / len(plan.chunks)
    return today + int(plan.reads.bytes * share)


def keys_of(batch: Iterable[PlannedChunk]) -> tuple[str, ...]:
    """Return the keys of a batch."""
    return tuple(chunk.key for chunk in batch)


def _stage_batch(run: RunContext, launch: _Launch, batch: Sequence[PlannedChunk]) -> None:
    """Compute a batch by a plan that its chunks had when the run was of the launch's edition.

    Raises:
        StateMoved: if one of them has another plan by now, and was not staged by it yet: nothing has failed.
    """
    platform, plan, outcome = run.platform, run.plan, launch.outcome
    keys = [chunk.key for chunk in batch]
    stopping.going_on(plan.run_id)()
    start = partial(
        platform.ledger.start_attempt,
        plan.run_id,
        keys,
        edition=launch.edition,
        actor=operator(),
        location=platform.lakehouse.location(run.target.name),
        dagster_run_id=launch.dagster_run_id,
        most_at_once=plan.max_runs_in_parallel,
    )
    opened = pacing.admitted(run, batch, launch.tell, start)
    if opened is None:
        outcome.skipped += keys  # another launch has staged them meanwhile
        return
    attempt, prefix = opened
    launch.tell("attempt", keys, prefix)
    _say_attempt(plan, batch, attempt, "started", logging.INFO, folder=prefix)
    try:
        measured = traces.span("batch", attempt=attempt, chunks=len(batch), first_chunk=keys[0], last_chunk=keys[-1])
        with measured, stopping.ending(plan.run_id), pacing.within_time(run):
            files = _compute_and_stage(run, batch, attempt, prefix)
    except RunStopped as stop:  # nothing has failed, and nothing is tried again
        platform.ledger.fail_attempt(plan.run_id, attempt, stop.problems[0].what, stopped=not stop.only_the_process)
        _say_attempt(plan, batch, attempt, "stopped", logging.WARNING, why=stop.problems[0].what)
        raise
    except TransitionRefused as refusal:  # the run has moved on meanwhile: that is nothing it failed at
        if not _staged_by_others(run, batch, attempt, refusal):
            raise
        outcome.skipped += keys  # another launch has staged them first
        return
    except Refused as refusal:  # every chunk would be refused for the same reason
        _refused(run, batch, attempt, refusal)
        raise
    except Exception as error:
        # half as many chunks find no room, either, and no other server or workers
        if (none := space.refusal(error) or failures.refusal(error)) is not None:
            _refused(run, batch, attempt, none)
            raise none from error
        if (alike := _alike(plan, launch, batch, error)) is not None:
            _refused(run, batch, attempt, alike, chunk=batch[0].key)
            raise alike from error
        for part in _failed(run, launch, batch, attempt, error):
            _stage_batch(run, launch, part)
        return
    outcome.computed += keys
    launch.tell("staged", keys, prefix)
    _say_staged(plan, batch, attempt, files)


def _compute_and_stage(
    run: RunContext, batch: Sequence[PlannedChunk], attempt: int, prefix: str
) -> dict[str, list[StagedFile]]:
    """Compute and derive a batch in a folder; its chunks are staged once the ledger has all of its files, in one transaction."""
    reads: dict[str, int] = {}

    def count(part: str, read: PinnedRead) -> None:
        reads.update({f"{part}_files": len(read.paths), f"{part}_rows": read.rows, f"{part}_bytes": read.bytes})

    if others := schema_problems(run.platform, run.target, run.plan):  # since the launch began
        raise TransitionRefused(others)
    with traces.span("batch.compute"):
        files = compute_batch(run, batch, prefix, count)
    faults.reach("staging.written")
    with traces.span("batch.derive"):
        derived = derive_batch(run, batch, prefix, files)
    faults.reach("staging.derived")
    written = [file for own in files.values() for file in own]
    traces.note(files=len(written), rows=sum(one.rows for one in written), bytes=sum(one.bytes for one in written))
    run.platform.ledger.stage(run.run_id, attempt, files, derived, reads)
    faults.reach("staging.recorded")
    return files


def _staged_by_others(run: RunContext, batch: Sequence[PlannedChunk], attempt: int, refusal: TransitionRefused) -> bool:
    """Record that an attempt's files are not used; return whether other launches have staged each of its chunks."""
    run.platform.ledger.fail_attempt(run.run_id, attempt, str(refusal))
    _say_attempt(run.plan, batch, attempt, "not used", logging.WARNING, why=refusal.problems[0].what)
    standing = run.platform.ledger.standing_chunks(run.run_id, keys_of(batch))
    return set(keys_of(batch)) == {one.chunk for one in standing if one.state in STAGED}


def _failed(
    run: RunContext, launch: _Launch, batch: Sequence[PlannedChunk], attempt: int, error: Exception
) -> list[Sequence[PlannedChunk]]:
    """Record that a batch failed; return the parts that are tried next, none where a chunk stands alone.

    Raises:
        StateMoved: if its chunks were planned anew meanwhile: it was computed in vain, and that is no failure.
    """
    keys = [chunk.key for chunk in batch]
    why, more = words(error), str(error).strip()[:_ERROR_LENGTH]
    why += f"\n{more}" if "\n" in more else ""
    ended = run.platform.ledger.fail_attempt(run.run_id, attempt, why, chunk=keys[0] if len(batch) == 1 else None)
    _refuse_obsolete(run.plan, batch, attempt, ended, error)
    _say_attempt(run.plan, batch, attempt, "failed", logging.WARNING, error=type(error).__name__)
    pacing.pause_if_tripped(run)
    if len(batch) == 1:
        launch.outcome.failed[keys[0]] = why
        launch.tell("failed", keys, why)
        return []
    middle = len(batch) // 2
    if len(batch) < _LARGE or launch.apart or not is_of_rows(error):
        return [batch[:middle], batch[middle:]]
    apart = [batch[0], batch[middle], batch[-1]]
    launch.apart.extend(chunk.key for chunk in apart)
    return [*([chunk] for chunk in apart), batch[1:middle], batch[middle + 1 : -1]]


def _alike(plan: Plan, launch: _Launch, batch: Sequence[PlannedChunk], error: Exception) -> TransformRefused | None:
    """Return the refusal of a transform for whose rows the last of the chunks that are tried apart fails as the others have."""
    failed, apart = launch.outcome.failed, launch.apart
    if [chunk.key for chunk in batch] != apart[-1:] or not is_of_rows(error):
        return None
    said = words(error).partition("\n")[0]
    if any(failed.get(key, "").partition("\n")[0] != said for key in apart[:-1]):
        return None
    return TransformRefused(
        Problem(
            f"{plan.transform} {plan.transform_version} fails alike in {', '.join(apart[:-1])} and {apart[-1]}: {said}",
            "what chunks that lie apart fail of alike is the transform's: no other chunk was tried",
            f"correct the transform, or what it reads; if other chunks are right: `backfill run {plan.run_id} --chunks ...`",
        )
    )


def _say_staged(
    plan: Plan, batch: Sequence[PlannedChunk], attempt: int, files: Mapping[str, Sequence[StagedFile]]
) -> None:
    for chunk in batch:
        with logs.of_chunk(plan, chunk):
            staged = files.get(chunk.key, [])
            facts: dict[str, Any] = {"rows": sum(one.rows for one in staged), "bytes": sum(one.bytes for one in staged)}
            text = f"staged {facts['rows']:,} rows in {len(staged)} file(s) by attempt {attempt}"
            logs.event(_log, logging.INFO, "chunk_staged", text, attempt=attempt, files=len(staged), **facts)


def _refused(
    run: RunContext, batch: Sequence[PlannedChunk], attempt: int, refusal: Refused, *, chunk: str | None = None
) -> None:
    """Record that a batch was refused: its attempt and the run (and `chunk`, which stands alone) have failed, in one transaction.

    A run that another process has moved on meanwhile, or ended, is what it is.

    Raises:
        StateMoved: if its chunks were planned anew meanwhile: it was computed in vain, and that is no failure.
    """
    ledger, run_id = run.platform.ledger, run.run_id
    why = "; ".join(one.what for one in refusal.problems)[:_ERROR_LENGTH]
    ended = ledger.fail_attempt(run_id, attempt, str(refusal), chunk=chunk, fails_run=why, actor=operator())
    _refuse_obsolete(run.plan, batch, attempt, ended, refusal)
    _say_attempt(run.plan, batch, attempt, "refused", logging.ERROR, why=why)
    if (state := ledger.run(run_id).state) is not RunState.FAILED:
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
    reason = facts.get("why") or facts.get("error")
    # a batch of several is halved and tried again: only what stands alone has failed
    level = logging.INFO if what == "failed" and len(batch) > 1 else level
    text = f"attempt {attempt} {what}, a batch of {len(batch)} chunk(s)" + (f": {reason}" if reason else "")
    for chunk in batch:
        with logs.of_chunk(plan, chunk):
            logs.event(
                _log,
                level,
                f"attempt_{what.replace(' ', '_')}",
                text,
                told=True,
                attempt=attempt,
                chunks=len(batch),
                **facts,
            )
