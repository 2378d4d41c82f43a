"""Named points at which a test may kill or stop the process, to prove that a crash or a long pause there loses nothing.

Switched on by BACKFILL_FAULT (`<point>` kills, `<point>:stop` stops until SIGCONT) in tests only; without it a point
costs one look at the environment.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "BACKFILL_FAULT"
POINTS = frozenset(
    {
        "upgrading.adopted",
        "upgrading.migrated",
        "evolving.listed",
        "evolving.committed",
        "extracting.answered",
        "extracting.kept",
        "extracting.recorded",
        "extracting.indexed",
        "extracting.sealed",
        "planning.resolved",
        "planning.recorded",
        "planning.pinned",
        "staging.written",
        "staging.derived",
        "staging.recorded",
        "gating.judged",
        "gating.recorded",
        "gating.run_judged",
        "leasing.taken",
        "leasing.fenced",
        "ending.looked",
        "ending.leased",
        "publishing.sealed",
        "publishing.tagged",
        "preparing.opened",
        "publishing.prepared",
        "publishing.leased",
        "publishing.halfway",
        "publishing.committed",
        "publishing.recorded",
        "accepting.committed",
        "undoing.begun",
        "undoing.halfway",
        "undoing.committed",
        "recording.written",
        "recording.told",
        "recording.sent",
        "telling.fenced",
        "telling.begun",
        "telling.committed",
        "telling.written",
        "telling.recorded",
        "comparing.written",
        "comparing.committed",
        "comparing.kept",
        "collecting.listed",
        "collecting.leased",
        "collecting.expired",
        "collecting.deleted",
        "collecting.released",
        "landing.resolved",
        "landing.read",
        "landing.committed",
        "receiving.read",
        "receiving.kept",
        "receiving.recorded",
        "receiving.quarantined",
        "receiving.appended",
        "receiving.settled",
        "landing.kept",
        "landing.quarantined",
        "landing.appended",
        "loading.quarantined",
        "unloading.quarantine",
        "releasing.judged",
        "releasing.begun",
        "releasing.appended",
        "releasing.recorded",
        "migration.held",
        "migration.checked",
        "migration.taken",
    }
)


def reach(point: str) -> None:
    """Pass a point; at the one named in the environment, the process is killed or stopped as by the kernel."""
    wanted = os.environ.get(VARIABLE)
    if wanted is None:
        return
    name, _, how = wanted.partition(":")
    if name not in POINTS or how not in {"", "stop"}:
        raise ValueError(f"{VARIABLE}={wanted} is not one of {', '.join(sorted(POINTS))}, or one of them and ':stop'")
    if name == point:
        os.kill(os.getpid(), signal.SIGSTOP if how else signal.SIGKILL)
