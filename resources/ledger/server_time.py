"""The clock of a ledger's server, which all hosts of an installation share, as this process knows it.

Put here how an answer is taken and kept. Whom it asks is said by who wants to know; which instants are by it, and what is done
about one that was set back, is `instants`'.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

ASKED_AGAIN_SECONDS = 10.0
"""For how long an answer is believed: no clock runs wrong by a millisecond meanwhile, but a machine may have slept."""
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", None)
_PROMPT_SECONDS, _TRIES = 0.2, 5
"""An answer that took longer is asked for anew, so often at most: of which moment it is, nobody knows better than half of that."""


class ServerTime:
    """Tells the server's present instant, by what it said last and the time since; this machine's own clock plays no part.

    It stands still rather than go back by what two answers differ by.
    """

    def __init__(self, elapsed: Callable[[], float] | None = None) -> None:
        """`elapsed` gives seconds since any moment, and runs on while the machine sleeps where there is such a clock."""
        self._elapsed = elapsed or _since_boot
        self._lock = threading.Lock()
        self._known: tuple[datetime, float] | None = None
        self._told: datetime | None = None

    @property
    def is_stale(self) -> bool:
        """Whether the server has not said anything of late."""
        return self._known is None or self._elapsed() - self._known[1] > ASKED_AGAIN_SECONDS

    @property
    def is_known(self) -> bool:
        """Whether the server has ever said anything."""
        return self._known is not None

    def learn(self, ask: Callable[[], datetime]) -> None:
        """Ask the server; an answer is of the middle of the time that it takes."""
        found: list[tuple[float, datetime, float]] = []
        for _ in range(_TRIES):
            began = self._elapsed()
            said = ask()
            took = self._elapsed() - began
            found.append((took, said, began + took / 2))
            if took < _PROMPT_SECONDS:
                break
        _, said, at = min(found)
        with self._lock:
            self._known = said, at

    def now(self) -> datetime:
        """Return the present instant (UTC), once the server has said something."""
        with self._lock:
            assert self._known is not None
            said, at = self._known
            present = said + timedelta(seconds=self._elapsed() - at)
            if self._told is not None and timedelta(0) < self._told - present < timedelta(seconds=ASKED_AGAIN_SECONDS):
                present = self._told
            self._told = present
            return present


def _since_boot() -> float:
    return time.monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)
