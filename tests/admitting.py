"""A ledger by a simulated clock, and batches that ask it to begin: what tests of limits have in common."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from support import REQUESTER

from manifests.pace import PlannedPace, Work
from resources.ledger.admissions import Asked
from resources.ledger.facade import Ledger

BEGIN = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)


@dataclass
class SimulatedClock:
    """It goes on while it is looked at, as clocks do: an attempt begins, and ends, between two looks."""

    at: datetime = BEGIN

    def __call__(self) -> datetime:
        self.at += timedelta(milliseconds=1)
        return self.at

    def on(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def start(ledger: Ledger, key: str, pace: PlannedPace, work: Work, run_id: str = "run") -> int:
    found = ledger.start_attempt(
        run_id, [key], edition=0, actor=REQUESTER, location="/staging", asked=Asked(pace, work)
    )
    assert found is not None
    return found[0]


@contextmanager
def in_memory(clock: SimulatedClock) -> Iterator[Ledger]:
    """Yield a ledger of a file that a test of many steps does not wait for."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        ledger = Ledger(f"sqlite:///{folder}/ledger.db", clock)
        ledger.migrate()
        yield ledger
        ledger.engine.dispose()
