"""The clock of a ledger's server, which all hosts of an installation share, as this process knows it.

Put here how it is asked and kept. Which instants are by it, and what is done about one that was set back, is `instants`'.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta

from sqlalchemy.exc import SQLAlchemyError

ASKED_AGAIN_SECONDS = 10.0
"""For how long an answer is believed: no clock runs wrong by a millisecond meanwhile, but a machine may have slept."""
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", None)


class ServerTime:
    """Tells the server's present instant, by what it said last and the time since; this machine's own clock plays no part.

    It stands still rather than go back by what two answers differ by.
    """

    def __init__(
        self,
        asking: Callable[[], AbstractContextManager[Callable[[], datetime]]],
        elapsed: Callable[[], float] | None = None,
    ) -> None:
        """Ask with what `asking` yields, once connected.

        `elapsed` gives seconds since any moment, and runs on while the machine sleeps where there is such a clock.
        """
        self._asking, self._elapsed = asking, elapsed or _since_boot
        self._lock = threading.Lock()
        self._known: tuple[datetime, float] | None = None
        self._told: datetime | None = None

    def __call__(self) -> datetime:
        """Return the present instant (UTC).

        Raises:
            sqlalchemy.exc.SQLAlchemyError: if the server does not answer, and never has.
        """
        with self._lock:
            if self._known is None:
                self._known = self._learned()
            elif self._elapsed() - self._known[1] > ASKED_AGAIN_SECONDS:
                with suppress(SQLAlchemyError):  # what is done with the instant will say that the server is away
                    self._known = self._learned()
            said, at = self._known
            present = said + timedelta(seconds=self._elapsed() - at)
            if self._told is not None and timedelta(0) < self._told - present < timedelta(seconds=ASKED_AGAIN_SECONDS):
                present = self._told
            self._told = present
            return present

    def _learned(self) -> tuple[datetime, float]:
        """Return what the server says and the seconds elapsed then: an answer is of the middle of the time that it takes."""
        with self._asking() as ask:
            ask()  # what a connection takes when it is first used is no part of an answer's way
            began = self._elapsed()
            said = ask()
            return said, (began + self._elapsed()) / 2


def _since_boot() -> float:
    return time.monotonic() if _ELAPSED is None else time.clock_gettime(_ELAPSED)
