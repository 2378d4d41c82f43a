"""The daily schedule and the sensor of LIVE: how Dagster asks for the next live run of a target.

Both plan, approve by policy, announce, and request the job that stages and gates; the publish sensor does the rest. They
may run together: what the next run is follows from the ledger and the source, not from who asks. Only a tick of the daemon's
is the platform's: whoever tries one of them out is told what it would do.
"""

import dagster as dg

from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.dagster_private import UnresolvedAssetJobDefinition
from backfill_assets.defs.launched_by import RUN_TAG, is_tick, schedule, sensor, tried_out
from backfill_assets.defs.run_queue import LIVE_FIRST
from backfill_assets.defs.staging import offer_run, range_tags
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_then import unrecorded_then
from backfill_assets.publication.leasing import record_what_has_landed
from backfill_assets.schedules.live import LAUNCHABLE, foreseen, tick
from manifests.errors import Refused
from resources.actors import acting
from resources.ledger.facade import RunRecord

SENSOR_SECONDS = 60
_LAUNCHES = 3
"""Dagster runs for one live run, each after the one before it was lost, before it is left to people."""


def next_request(
    platform: Platform, instance: dg.DagsterInstance, target: TargetTable, job_name: str
) -> dg.RunRequest | dg.SkipReason:
    """Make one tick; return the request for the chunks of the live run, or why there is nothing to launch.

    A run key fires once: it carries the number of launches so far, so that one that was lost is repeated.
    """
    done = tick(platform, target)
    record = done.record
    if record is None or record.state not in LAUNCHABLE:
        return dg.SkipReason(done.why)
    offer_run(instance, target, record.run_id)
    keys = [chunk.key for chunk in record.plan.chunks]
    if waiting := _unrecorded(platform, record, keys):
        return dg.SkipReason(f"{record.run_id} waits: {waiting}")  # a launch would fail, and count
    launched = instance.get_runs(dg.RunsFilter(job_name=job_name, tags={RUN_TAG: record.run_id}))
    if any(not run.is_finished for run in launched):
        return dg.SkipReason(f"{record.run_id} is being computed by Dagster run {launched[0].run_id}")
    if len(launched) >= _LAUNCHES:
        return dg.SkipReason(f"{record.run_id} was launched {len(launched)} times and is {record.state}: see its runs")
    tags = range_tags(record.run_id, keys[0], keys[-1]) | LIVE_FIRST
    return dg.RunRequest(run_key=f"{record.run_id}:{len(launched)}", tags=tags)


def _unrecorded(platform: Platform, record: RunRecord, keys: list[str]) -> str | None:
    """Say what has landed in a run's chunks and is not on record, after putting it there unless somebody still may."""
    base = record.plan.base_snapshot_id
    if not unrecorded_then(platform, record.target, base, keys):
        return None
    try:
        record_what_has_landed(platform, record)
    except Refused as refusal:
        return refusal.problems[0].what
    waiting = unrecorded_then(platform, record.target, base, keys)
    return waiting[0].what if waiting else None


def live_schedule(target: TargetTable, policy: LivePolicy, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Make the daily form of LIVE; it is off until somebody turns it on."""

    @dg.schedule(
        name=f"live_{target.name.replace('.', '_')}_daily",
        job=job,
        cron_schedule=policy.cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=(
            f"Once a day: plans the next live run of {target.name} from its watermark, has it approved by "
            f"{policy.approved_by}, and launches it. The publish sensor publishes it."
        ),
    )
    def daily(
        context: dg.ScheduleEvaluationContext, platform: dg.ResourceParam[Platform]
    ) -> dg.RunRequest | dg.SkipReason:
        if not is_tick(context):
            return tried_out(foreseen(platform, target))
        with acting(schedule(f"live_{target.name.replace('.', '_')}_daily")):
            return next_request(platform, context.instance, target, job.name)

    return daily


def live_sensor(target: TargetTable, policy: LivePolicy, job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Make the continuous form of LIVE; it is off until somebody turns it on."""

    @dg.sensor(
        name=f"live_{target.name.replace('.', '_')}_on_new_source",
        job=job,
        minimum_interval_seconds=SENSOR_SECONDS,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=(
            f"On each new snapshot of {' or '.join(target.every_source)}: plans the next live run of {target.name} from its watermark, has it "
            f"approved by {policy.approved_by}, and launches it. The publish sensor publishes it."
        ),
    )
    def on_new_source(
        context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]
    ) -> dg.RunRequest | dg.SkipReason:
        if not is_tick(context):
            return tried_out(foreseen(platform, target))
        with acting(sensor(f"live_{target.name.replace('.', '_')}_on_new_source")):
            return next_request(platform, context.instance, target, job.name)

    return on_new_source
