"""Which runs the launch dialog offers: those that are rejected or cancelled are taken out of it.

Dagster's dialog shows keys without a state, so that one that can never be launched looks like one that is approved. What
is on record of such a run stays: in the ledger, under `/backfill`, and among the events and runs of Dagster. A run that
was published stays among the keys: its asset and its publication share them, and the partition shows its history.
"""

import dagster as dg

from backfill_assets.launched_by import RUN_TAG
from backfill_assets.platform import Platform, declared_targets
from backfill_assets.staging import backfill_partitions
from manifests.lifecycle import RunState

SENSOR_SECONDS = 30
_NEVER_AGAIN = (RunState.REJECTED, RunState.CANCELLED)
_FINISHED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}


def withdraw_dead(platform: Platform, instance: dg.DagsterInstance) -> list[str]:
    """Take rejected and cancelled runs out of the launch dialogs, unless a Dagster run works for one; return them."""
    withdrawn = []
    for target in declared_targets():
        name = backfill_partitions(target).name
        assert name is not None
        offered = set(instance.get_dynamic_partitions(name))
        for record in platform.ledger.runs(target=target.name, states=_NEVER_AGAIN) if offered else ():
            if record.run_id in offered and not _worked_for(instance, record.run_id):
                instance.delete_dynamic_partition(name, record.run_id)
                withdrawn.append(record.run_id)
    return withdrawn


def _worked_for(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a Dagster run is under way, or waits, for a run: its partitions must be known until it has ended."""
    asked = dg.RunsFilter(tags={RUN_TAG: run_id}, statuses=[one for one in dg.DagsterRunStatus if one not in _FINISHED])
    return bool(instance.get_run_ids(asked, limit=1))


@dg.sensor(
    name="withdraw_dead_runs",
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Takes runs that were rejected or cancelled out of the launch dialogs.",
)
def offers_sensor(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SkipReason:
    """Look once."""
    withdrawn = withdraw_dead(platform, context.instance)
    return dg.SkipReason(f"withdrawn: {', '.join(withdrawn)}" if withdrawn else "no dead run is offered")
