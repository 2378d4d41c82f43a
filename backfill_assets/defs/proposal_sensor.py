"""The sensor that proposes restatements: on newer versions of published days, how Dagster asks for a plan of just those days.

What is proposed, and what a rule approves, is `backfill_assets.schedules.proposals`'. Once a proposal is approved, by a rule or by a person, the
sensor requests the job that stages and gates it; the publish sensor does the rest. Whoever tries it out is told what it would propose.
"""

from collections.abc import Iterator

import dagster as dg

from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.dagster_private import UnresolvedAssetJobDefinition
from backfill_assets.defs.launched_by import RUN_TAG, is_tick, sensor, tried_out
from backfill_assets.defs.staging import offer_run, range_tags
from backfill_assets.installation import Platform
from backfill_assets.schedules.proposals import foreseen, propose, under_way
from resources.actors import acting

SENSOR_SECONDS = 60
_LAUNCHES = 3
"""Dagster runs for one proposal, each after the one before it was lost, before it is left to people."""


def launches(
    platform: Platform, instance: dg.DagsterInstance, target: TargetTable, job_name: str
) -> Iterator[dg.RunRequest]:
    """Yield a request for the chunks of each approved proposal that no Dagster run is computing."""
    stopped = platform.ledger.stops
    for record in under_way(platform, target):
        offer_run(instance, target, record.run_id)
        launched = instance.get_runs(dg.RunsFilter(job_name=job_name, tags={RUN_TAG: record.run_id}))
        is_computed = any(not run.is_finished for run in launched)
        if is_computed or len(launched) >= _LAUNCHES or stopped.held(record.run_id) is not None:
            continue
        keys = [chunk.key for chunk in record.plan.chunks]
        tags = range_tags(record.run_id, keys[0], keys[-1])
        yield dg.RunRequest(run_key=f"{record.run_id}:{len(launched)}", tags=tags)


def proposal_sensor(target: TargetTable, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Make the sensor of a target; it is off until somebody turns it on."""
    name = f"propose_{target.name.replace('.', '_')}"

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"On newer versions of published days in {target.source}: plans a restatement of just those days of {target.name}, "
            "with the reason. A person approves it, or the rule of the table does; then it is launched."
        ),
    )
    def on_newer_versions(
        context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
    ) -> dg.SensorResult | dg.SkipReason:
        if not is_tick(context):
            return tried_out(foreseen(platform, target))
        with acting(sensor(name)):
            proposed = propose(platform, target)
            requests = list(launches(platform, context.instance, target, job.name))
        return dg.SensorResult(run_requests=requests) if requests else dg.SkipReason(proposed.why)

    return on_newer_versions
