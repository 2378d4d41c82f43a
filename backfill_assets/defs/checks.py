"""The gates as asset checks: what people see of the verdicts that the ledger holds.

One check a target judges chunks and is partitioned like it; the run-level gates are checks of the same asset that
report once a run is complete. The judging is `gates.judging`'s.
"""

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import dagster as dg
from dagster import AssetCheckExecutionContext

from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs import diff_events
from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.evaluations import (
    as_it_stands,
    chunks_as_they_stand,
    in_all,
    not_asked,
    of_run,
    result_of,
    run_alone,
    run_as_it_stands,
    run_level_gates,
    standing_verdicts,
    why_not_judged,
)
from backfill_assets.defs.event_storage import stored_together
from backfill_assets.defs.launched_by import launched
from backfill_assets.defs.spark_by_mode import SparkByMode
from backfill_assets.defs.staging import (
    asset_key,
    in_plain_words,
    launched_by_dagster,
    one_run,
    partitions_of,
    telling_what_stands,
    tie,
)
from backfill_assets.execution import Execution
from backfill_assets.installation import Platform
from backfill_assets.review.diff import diff_summary
from backfill_assets.review.kept_diffs import for_decision
from backfill_assets.staging.progress import Progress
from manifests.chunks import CHUNK_GATE
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.stages import Step
from resources.ledger.facade import RunRecord


def _specs(target: TargetTable) -> list[dg.AssetCheckSpec]:
    """Return what Dagster knows of each check of a target: the chunk gate, and a check a run-level gate."""
    key, described = asset_key(target.name), run_level_gates(target)
    return [
        dg.AssetCheckSpec(
            CHUNK_GATE,
            asset=key,
            blocking=True,
            partitions_def=partitions_of(target),
            description="The pandera model on the chunk's staged files, read back: types, nulls, ranges, row rules, unique "
            "key, days inside the chunk, constant lineage.",
        ),
        *(dg.AssetCheckSpec(name, asset=key, blocking=True, description=text) for name, text in described.items()),
    ]


def gate_checks(target: TargetTable) -> dg.AssetChecksDefinition:
    """Make the blocking checks of a target."""
    key, specs = asset_key(target.name), _specs(target)

    @dg.multi_asset_check(specs=specs, can_subset=True, name=f"{target.name.replace('.', '_')}_gates")
    def gates(
        context: AssetCheckExecutionContext, platform: dg.ResourceParam[Platform], spark: SparkByMode
    ) -> Iterator[Any]:
        op_context = context.op_execution_context
        if not (op_context.has_partition_key or op_context.has_partition_key_range):
            yield from _of_no_launch(context, platform, target)
            return
        told = partial(telling_what_stands, op_context, platform, target)
        with in_plain_words(), launched(op_context), told(as_it_stands):
            run_id, keys = one_run(op_context.partition_keys, target)
            tie(op_context.instance, op_context.run_id, platform, run_id)
            platform = spark.confine(platform, Mode(platform.ledger.run(run_id).mode))
            with launched_by_dagster(op_context, platform, run_id), closing(Progress(context.log.info)) as progress:
                execution = Execution(platform, run_id, tell=progress).run(Step.GATE_CHUNKS)
        selected = {check.name for check in context.selected_asset_check_keys}
        evaluations = list(chunks_as_they_stand(platform, op_context.instance, target, run_id, keys))
        if CHUNK_GATE in selected:
            with stored_together(op_context.instance, op_context.run_id):
                yield from evaluations
            yield _without_evaluation(op_context, CHUNK_GATE)
        with (
            in_plain_words(),
            launched(op_context),
            told(run_alone),
            launched_by_dagster(op_context, platform, run_id),
        ):
            branch = execution.run(Step.JUDGE).branch
            if for_decision(platform, run_id) is not None and (summary := diff_summary(platform, run_id)) is not None:
                diff_events.report(platform, op_context.instance, platform.ledger.run(run_id).plan, summary)
        if branch:
            context.log.info("the candidate can be queried on branch %s of %s", branch, target.name)
        run_verdicts = standing_verdicts(platform, run_id)
        accepted = platform.ledger.accepted_changes(run_id)
        for verdict in platform.ledger.verdicts_not_passed(run_id):
            if not verdict.asks:
                where = f" of {verdict.chunk}" if verdict.chunk else ""
                context.log.error("%s%s has not passed: %s", verdict.gate, where, verdict.summary)
        record = platform.ledger.run(run_id)
        if record.state is RunState.FAILED:
            context.log.error("'%s' is not published. Why, and what to do: %s", run_id, run_path(run_id))
        results = [result_of(key, verdict, accepted, run_id) for verdict in run_verdicts if verdict.gate in selected]
        yield from results
        found = [(one.passed, one.severity) for one in evaluations] + [(one.passed, one.severity) for one in results]
        fails = (False, dg.AssetCheckSeverity.ERROR) in found
        judged = {verdict.gate for verdict in run_verdicts} | {CHUNK_GATE}
        for gate in sorted(selected - judged):
            yield _unjudged(op_context, key, record, gate, fails=fails)

    return gates


def _of_no_launch(context: AssetCheckExecutionContext, platform: Platform, target: TargetTable) -> Iterator[Any]:
    """Yield what Dagster is told where somebody executes checks by themselves: what the gates found last. Nothing is judged."""
    op_context, selected = context.op_execution_context, {check.name for check in context.selected_asset_check_keys}
    with in_plain_words():
        run_id, of_run = run_as_it_stands(platform, target)
        chunks = [one.chunk for one in platform.ledger.standing_chunks(run_id)] if run_id else []
        of_chunks = list(chunks_as_they_stand(platform, op_context.instance, target, run_id, chunks))
    context.log.info(
        "nothing is judged: gates judge what a launch of chunks has computed. %s",
        f"What they found of '{run_id}', which they judged last, is told again" if run_id else "None has judged yet",
    )
    with stored_together(op_context.instance, op_context.run_id):
        if CHUNK_GATE in selected and of_chunks:
            yield from of_chunks
            yield in_all(asset_key(target.name), run_id, of_chunks)
        yield from (one for one in of_run if one.check_name in selected)
    yield from (_without_evaluation(op_context, gate) for gate in sorted(selected))


def _unjudged(
    context: dg.OpExecutionContext, key: dg.AssetKey, record: RunRecord, gate: str, *, fails: bool
) -> dg.AssetCheckResult | dg.Output[None]:
    """Return what Dagster is told of a gate that has no verdict of the run.

    It calls a check skipped of which it is told nothing, but failed where the Dagster run fails, whatever made it fail.
    """
    if (of_others := not_asked(key, record, gate)) is not None:
        return of_others
    if not fails:
        return _without_evaluation(context, gate)
    return dg.AssetCheckResult(
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        check_name=gate,
        asset_key=key,
        description=why_not_judged(record, gate, fails=fails),
        metadata=of_run(record.run_id),
    )


def _without_evaluation(context: dg.OpExecutionContext, gate: str) -> dg.Output[None]:
    """Return what says that a check's step has done its work, and evaluates nothing (more)."""
    outputs = [output.name for output in context.op_def.output_defs]
    return dg.Output(None, output_name=next(name for name in outputs if name.endswith(f"_{gate}")))
