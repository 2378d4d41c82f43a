"""Launches that were terminated in Dagster when their process could not note it: stopped all the same.

A process that computes notes itself that its Dagster run is being cancelled (`staging.watched_launch`). One that is killed,
cannot be reached, or gets the signal between two steps does not. Put here how such a launch is found afterwards.
"""

from datetime import UTC, datetime

import dagster as dg

from backfill_assets.defs.launched_by import RUN_TAG, cancelled, terminated_at
from backfill_assets.installation import Platform
from manifests.errors import TransitionRefused
from resources.actors import UNKNOWN
from resources.ledger import stops
from resources.ledger.stops import Stop

SENSOR_SECONDS = 10


def note_terminated(platform: Platform, instance: dg.DagsterInstance, dagster_run_id: str) -> Stop | None:
    """Put the stop of a run on record whose Dagster run was terminated while it worked, unless one is; return it.

    It is of the instant of the Terminate. Dagster ends a run whose process does not answer minutes later, and somebody may have
    launched it again by then.
    """
    found = instance.get_run_record_by_id(dagster_run_id)
    run_id = None if found is None else found.dagster_run.tags.get(RUN_TAG)
    if found is None or run_id is None or found.start_time is None or found.end_time is None:
        return None  # it has never worked for a run
    if platform.ledger.find(run_id) is None:
        return None
    known = platform.ledger.stops.of_run(run_id)
    if any(one.at.timestamp() >= found.start_time for one in known):
        return None  # it was noted
    event = cancelled(instance, dagster_run_id)
    if event is not None and any(str(one) in event.message for one in known):
        return None  # it has met a stop, and says so
    try:
        through = f"{stops.TERMINATE} {dagster_run_id}"
        since = terminated_at(instance, dagster_run_id) or datetime.fromtimestamp(found.end_time, UTC)
        return platform.ledger.stops.stop(run_id, by=UNKNOWN, through=through, since=since)
    except TransitionRefused:  # it is over, nothing of it could be under way, or somebody has launched it again since
        return None


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.CANCELED,
    name="stop_terminated_runs",
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Stops the backfill run of each launch that was terminated and could not note that itself.",
)
def terminated_sensor(context: dg.RunStatusSensorContext, platform: dg.ResourceParam[Platform]) -> None:
    """Look at one run."""
    note_terminated(platform, context.instance, context.dagster_run.run_id)
