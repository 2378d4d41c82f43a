"""Which runs the launch dialog offers: those that are over are taken out of it.

Dagster's dialog shows keys without a state, so that one that can never be launched looks like one that is approved. Over
is a run that is rejected, cancelled, superseded or rolled back. What is on record of it stays: in the ledger, under
`/backfill`, and among the events and runs of Dagster. A run that readers see stays among the keys, since its asset and its
publication share them and the partitions of the publication are what readers see; so one that they see again comes back.
"""

import dagster as dg

from backfill_assets.defs.launched_by import RUN_TAG, is_tick, tried_out
from backfill_assets.defs.staging import backfill_partitions
from backfill_assets.installation import Platform
from manifests.lifecycle import RunState

SENSOR_SECONDS = 30
_OVER = (RunState.REJECTED, RunState.CANCELLED, RunState.SUPERSEDED, RunState.ROLLED_BACK)
_FINISHED = {dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED}


def keep_offers(platform: Platform, instance: dg.DagsterInstance) -> tuple[list[str], list[str]]:
    """Take runs that are over out of the launch dialogs, unless a Dagster run works for one; put back what readers see.

    Returns:
        the ids of the runs that were taken out, and of those that were put back.
    """
    withdrawn, restored = [], []
    for target in platform.products.targets:
        name = backfill_partitions(target).name
        assert name is not None
        offered = set(instance.get_dynamic_partitions(name))
        for record in platform.ledger.runs(target=target.name, states=_OVER) if offered else ():
            if record.run_id in offered and not _worked_for(instance, record.run_id):
                instance.delete_dynamic_partition(name, record.run_id)
                withdrawn.append(record.run_id)
        seen = {one.run_id for one in platform.ledger.runs(target=target.name, states=(RunState.PUBLISHED,))}
        missing = sorted(seen - offered)
        if missing:
            instance.add_dynamic_partitions(name, missing)
            restored += missing
    return withdrawn, restored


def _worked_for(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a Dagster run is under way, or waits, for a run: its partitions must be known until it has ended."""
    asked = dg.RunsFilter(tags={RUN_TAG: run_id}, statuses=[one for one in dg.DagsterRunStatus if one not in _FINISHED])
    return bool(instance.get_run_ids(asked, limit=1))


@dg.sensor(
    name="withdraw_dead_runs",
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Takes runs that are rejected, cancelled, superseded or rolled back out of the launch dialogs.",
)
def offers_sensor(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SkipReason:
    """Look once."""
    if not is_tick(context):
        return tried_out("It takes runs that are over out of the launch dialogs.")
    withdrawn, restored = keep_offers(platform, context.instance)
    said = [f"{what}: {', '.join(runs)}" for what, runs in (("withdrawn", withdrawn), ("back", restored)) if runs]
    return dg.SkipReason("; ".join(said) or "no run that is over is offered")
