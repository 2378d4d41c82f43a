"""Dagster runs whose process is gone: ended, so that the queue and LIVE go on.

Nobody tells Dagster of a process that was killed, or of a machine that went down: its run would be under way for ever, hold
its place in the queue, and keep LIVE waiting. Put here how such a run is found and ended. What it was doing is the
ledger's: the same launch again, or LIVE's next tick, goes on from there.
"""

import dagster as dg

from backfill_assets.defs.launched_by import is_tick, tried_out
from backfill_assets.defs.staging import PROCESS_TAG
from resources.processes import is_gone

SENSOR_SECONDS = 30
_UNDER_WAY = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING)


def end_lost_runs(instance: dg.DagsterInstance) -> list[str]:
    """End the runs of this machine's dead processes; return their ids. Those of others are left alone.

    One that somebody has terminated is cancelled, which `terminated` puts on record as a stop; any other has failed.
    """
    ended = []
    for run in instance.get_runs(dg.RunsFilter(statuses=list(_UNDER_WAY))):
        process = run.tags.get(PROCESS_TAG)
        if process is None or process == _of_parent(instance, run) or not is_gone(process):
            continue
        again = instance.get_run_by_id(run.run_id)  # it may have ended well between the two looks
        if again is not None and again.status in _UNDER_WAY:
            why = f"its process ({process}) is gone: launch it again, nothing staged is lost"
            if again.status is dg.DagsterRunStatus.CANCELING:
                instance.report_run_canceled(again, why)
            else:
                instance.report_run_failed(again, why)
            ended.append(run.run_id)
    return ended


def _of_parent(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """Return the process of the run that a run re-executes: it has that one's tags until its own process has said so."""
    parent = None if run.parent_run_id is None else instance.get_run_by_id(run.parent_run_id)
    return None if parent is None else parent.tags.get(PROCESS_TAG)


@dg.sensor(
    name="end_lost_runs",
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Ends the Dagster runs whose process was killed, so that they neither hold the queue nor keep LIVE waiting.",
)
def lost_runs_sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
    """Look once."""
    if not is_tick(context):
        return tried_out("It ends the runs whose process is gone.")
    ended = end_lost_runs(context.instance)
    return dg.SkipReason(f"ended {', '.join(ended)}" if ended else "no run of this machine has lost its process")
