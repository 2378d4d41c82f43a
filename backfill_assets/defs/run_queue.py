"""Dagster's queue, which decisions do not wait in.

One Spark job at a time is what a small machine can serve, so that launches queue. A decision takes no Spark: that somebody
stops a run must not wait for the run's own end. Put here which runs are started at once.
"""

import dagster as dg

from backfill_assets.defs.dagster_private import instance_of

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


class DecisionsFirst(dg.QueuedRunCoordinator):
    """A queue in which only what computes waits."""

    def submit_run(self, context: dg.SubmitRunContext) -> dg.DagsterRun:
        """Start a decision at once; let everything else wait for its turn."""
        run = context.dagster_run
        if run.job_name not in AT_ONCE or run.status is not dg.DagsterRunStatus.NOT_STARTED:
            return super().submit_run(context)
        instance = instance_of(self)
        instance.launch_run(run.run_id, context.workspace)
        return instance.get_run_by_id(run.run_id) or run
