"""Which of Dagster's mutations operators may send, and why others are refused.

Put here the name of a mutation, once somebody has decided about it. Who is an operator, and what else is asked of a
request, is the guard's.
"""

from __future__ import annotations

OPERATOR_MUTATIONS = frozenset(
    {
        # launching, and stopping what was launched; the bodies refuse what is not approved
        "launchPipelineExecution", "launchRun", "launchMultipleRuns", "launchPipelineReexecution",
        "launchRunReexecution", "launchPartitionBackfill", "resumePartitionBackfill", "reexecutePartitionBackfill",
        "cancelPartitionBackfill", "terminatePipelineExecution", "terminateRun", "terminateRuns",
        # schedules and sensors
        "startSchedule", "stopRunningSchedule", "resetSchedule", "scheduleDryRun", "startSensor", "stopSensor",
        "resetSensor", "setSensorCursor", "sensorDryRun", "setAutoMaterializePaused",
        # the server and its queue
        "reloadRepositoryLocation", "reloadWorkspace", "setConcurrencyLimit", "deleteConcurrencyLimit",
        "freeConcurrencySlotsForRun", "freeConcurrencySlots", "logTelemetry", "setNuxSeen",
    }
)  # fmt: skip
"""What operators may do; what is not here nobody may, in this UI."""
NO_FORGING = ("what happened is said by the run that did it", "launch the run; its body reports what it has done")
_NO_DELETING = (
    "Dagster's history is kept: people read from it what was done",
    "an administrator of the machine can use the `dagster` command there",
)
_NO_KEYS = (
    "the keys of the backfill dimension are the approved runs",
    "plan the run and have it approved: `backfill plan`, `backfill approve`; its key is there from then on",
)
_NO_SHUTDOWN = ("the server is stopped where it was started", "an administrator of the machine stops `backfill ui`")
FORBIDDEN_MUTATIONS = {
    "reportRunlessAssetEvents": NO_FORGING,
    "reportAssetCheckEvaluations": NO_FORGING,
    "wipeAssets": _NO_DELETING,
    "deletePipelineRun": _NO_DELETING,
    "deleteRun": _NO_DELETING,
    "addDynamicPartition": _NO_KEYS,
    "deleteDynamicPartitions": _NO_KEYS,
    "shutdownRepositoryLocation": _NO_SHUTDOWN,
}
"""What nobody may do here, with the rule and the way out."""

BY_DRY_RUN = frozenset({"scheduleDryRun", "sensorDryRun"})
"""The mutations by which operators have the body of a schedule or a sensor run, as a trial."""
EVALUATION = "evaluationResult"
"""The field of what Dagster calls a dry run's tick: whoever asks for it runs that body, in a query or behind a mutation."""
NO_EVALUATING = (
    "who looks, runs nothing, and this runs the body of a schedule or a sensor",
    "an operator may try it out: the page of each schedule and sensor has a button for a dry run",
)
