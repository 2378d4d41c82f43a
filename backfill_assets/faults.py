"""Named points at which a test may kill the process, to prove that a crash there loses nothing.

Switched on by BACKFILL_FAULT in tests only; without it a point costs one look at the environment.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BACKFILL_FAULT"
POINTS = frozenset(
    {
        "staging.written",
        "staging.recorded",
        "gating.judged",
        "gating.run_judged",
        "publishing.sealed",
        "publishing.tagged",
        "publishing.prepared",
        "undoing.committed",
        "publishing.committed",
        "publishing.recorded",
        "collecting.listed",
        "collecting.expired",
        "collecting.deleted",
    }
)


def reach(point: str) -> None:
    """Pass a point; if it is the one named in the environment, the process is killed as by the kernel."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    if wanted not in POINTS:
        raise ValueError(f"{VARIABLE}={wanted} is not one of {', '.join(sorted(POINTS))}")
    if wanted == point:
        os.kill(os.getpid(), signal.SIGKILL)
