"""Dagster's queue, which decisions do not wait in, and in which LIVE waits for no backfill.

One backfill at a time is what a small machine can serve, so that launches queue. A decision takes no Spark: that somebody stops a
run must not wait for the run's own end. What computes history has a tag, of which the queue's settings let fewer run at once than
there are places (`dagster.yaml`): a place is left for LIVE, which is taken first, and one for what the sensors publish, which takes
seconds and would wait for hours of computing. Put here which runs are started at once, and which are history.
"""

import dagster as dg

from backfill_assets.defs.dagster_private import PRIORITY_TAG, instance_of

AT_ONCE = frozenset(
    {
        "approve_run",
        "reject_run",
        "review_run",
        "publish_run",
        "roll_back_run",
        "reinstate_run",
        "accept_change",
        "stop_run",
        "pause_run",
        "resume_run",
        "cancel_run",
    }
)
"""The jobs that decide, by name: whoever opens an instance need not load what they do."""
LIVE_FIRST = {"backfill/live": "true", PRIORITY_TAG: "10"}
"""Tags of the runs that LIVE's own schedules and sensors ask for."""
PUBLICATION = {"backfill/queue": "publication"}
"""The tag of what the sensors publish, where the queue has a place for it beside LIVE's and that of history."""
HISTORY = {"backfill/queue": "history"}
"""The tag of all others that wait in the queue."""


class DecisionsFirst(dg.QueuedRunCoordinator):
    """A queue in which only what computes waits, and LIVE for LIVE alone."""

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Start a decision at once; let everything else wait for its turn."""
        run = context.dagster_run
        instance = instance_of(self)
        if run.job_name not in AT_ONCE or run.status is not dg.DagsterRunStatus.NOT_STARTED:
            publishes = run.tags.items() >= PUBLICATION.items()
            if not (run.tags.items() >= LIVE_FIRST.items() or (publishes and self._has_a_place_for_publications())):
                instance.add_run_tags(run.run_id, HISTORY)
            return super().submit_run(context)
        instance.launch_run(run.run_id, context.workspace)
        return instance.get_run_by_id(run.run_id) or run

    def _has_a_place_for_publications(self) -> bool:
        """Whether the settings have a place for them; an installation that was made before has not."""
        limits = self.get_run_queue_config().tag_concurrency_limits
        return any({(one.get("key"), one.get("value"))} == set(PUBLICATION.items()) for one in limits)
