"""The circuit breaker before each batch: attempts that have failed, and how what is live does beside the run.

Put here what is measured for it. What is past which threshold is `manifests.breaker`'s to say, and what gates have found `gates.breaking`'s.
"""

from __future__ import annotations

from pathlib import Path

from backfill_assets.run_context import RunContext
from manifests.breaker import FAILURES, Trip, failure_trips, surroundings_trips
from manifests.lifecycle import AttemptState

_MEMORY = Path("/proc/meminfo")


def trips_before_a_batch(run: RunContext) -> list[Trip]:
    """Return why the run is paused before its next batch; nothing of a run without thresholds."""
    breaker, ledger = run.plan.breaker, run.platform.ledger
    if breaker is None:
        return []
    found: list[Trip] = []
    if breaker.failed_attempts is not None:
        again = [one.at for one in ledger.stops.of_run(run.run_id) if one.cause == FAILURES and one.resumed_at]
        # whoever has resumed the run allows as many once more, counted from when it was paused
        failed = [one for one in ledger.attempts(run.run_id) if one.state is AttemptState.FAILED]
        since = [one for one in failed if not again or one.ended_at is None or one.ended_at > max(again)]
        found += failure_trips(breaker, len(since))
    if breaker.live_delay_seconds is not None or breaker.free_memory_mb is not None:
        found += surroundings_trips(
            breaker, ledger.admissions.live_delay(run.target.name, run.run_id), free_memory_mb()
        )
    return found


def free_memory_mb() -> int | None:
    """Return how much memory of this machine is free to be used; None where the system does not say."""
    try:
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return None
