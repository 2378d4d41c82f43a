"""What is on record of one run, read once, for whoever says where it stands; see `runbook`.

Put here what several steps look up or say. What a step says in which state is `runbook`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property

from backfill_assets.installation import Platform
from backfill_assets.planning.planned_code import no_launch_here
from manifests.chunks import CHUNK_GATE
from manifests.lifecycle import ENDED, AttemptState
from manifests.plan import Plan
from resources.ledger import launches, stops
from resources.ledger.facade import (
    AttemptRecord,
    ChunkRecord,
    ChunkState,
    PublicationRecord,
    RunRecord,
    TransitionRecord,
    Verdict,
)

SHOWN = 10


class StepState(StrEnum):
    """Where a run stands with a step."""

    DONE = "done"
    NOW = "now"
    LATER = "later"
    NEVER = "does not apply"


Said = tuple[StepState, Sequence[str], Sequence[str]]


class RunOnRecord:
    """What is on record of one run."""

    def __init__(self, platform: Platform, record: RunRecord) -> None:
        self._platform, self._record = platform, record
        self._id, self._state = record.run_id, record.state
        self._plan: Plan = record.plan

    @cached_property
    def _chunks(self) -> list[ChunkRecord]:
        return self._platform.ledger.chunks(self._id)

    @cached_property
    def _attempts(self) -> list[AttemptRecord]:
        return self._platform.ledger.attempts(self._id)

    @cached_property
    def _stops(self) -> list[stops.Stop]:
        return self._platform.ledger.stops.of_run(self._id)

    @cached_property
    def _waiting(self) -> launches.Waiting | None:
        return self._platform.ledger.launches.waits(self._record, chunks=self._chunks, attempts=self._attempts)

    @cached_property
    def _verdicts(self) -> list[Verdict]:
        return self._platform.ledger.verdicts(self._id)

    @cached_property
    def _publications(self) -> list[PublicationRecord]:
        return self._platform.ledger.publications(self._id)

    @cached_property
    def _history(self) -> list[TransitionRecord]:
        return self._platform.ledger.history(self._id)

    @property
    def _committed(self) -> list[PublicationRecord]:
        return [one for one in self._publications if one.has_landed]

    @property
    def _last_move(self) -> str:
        """Who moved the run into its state, when and why."""
        if not self._history:
            return f"{self._state}"
        last = self._history[-1]
        return f"{self._state} by {last.actor}, {instant_text(last.at)}" + (f": {last.reason}" if last.reason else "")

    def _later(self, what: str, done: bool = False) -> Said:
        """Say of a step that is not reached: later, or never if the run has ended."""
        if self._state in ENDED and not done:
            return StepState.NEVER, [f"the run ended before: {self._last_move}"], []
        return StepState.LATER, [what], []

    def _command(self, name: str, *options: str) -> str:
        return " ".join(["backfill", name, self._id, *options])

    @property
    def _reject(self) -> str:
        return self._command("reject", "--by NAME", "--reason WHY")

    def _of_attempts(self, state: AttemptState, number: int) -> str:
        seconds = [
            (one.ended_at - one.started_at).total_seconds()
            for one in self._attempts
            if one.ended_at and one.state is state is AttemptState.STAGED
        ]
        return f"{number} attempt(s) {state}" + (f", {sum(seconds):,.0f} s in all" if seconds else "")

    @property
    def _failed_chunks(self) -> list[ChunkRecord]:
        return [one for one in self._chunks if one.state is ChunkState.FAILED]

    def _gate_failed(self, chunk: ChunkRecord) -> bool:
        """Whether a chunk failed at its gate, and not before."""
        return any(
            (one.chunk, one.gate, one.attempt, one.passed) == (chunk.chunk, CHUNK_GATE, chunk.attempt, False)
            for one in self._verdicts
        )

    @property
    def _failed_gates(self) -> list[Verdict]:
        return [one for one in self._verdicts if not one.chunk and not one.passed]

    @cached_property
    def _other_code(self) -> str:
        """Why no launch would be taken by the code that is installed now; empty if it would."""
        return no_launch_here(self._platform, self._record)


def instant_text(instant: datetime) -> str:
    """Return an instant to the minute, in UTC."""
    return f"{instant:%Y-%m-%d %H:%M} UTC"


def some(items: Sequence[str]) -> str:
    """Return the first few of several, and how many more there are."""
    return ", ".join(items[:SHOWN]) + (f" and {len(items) - SHOWN} more" if len(items) > SHOWN else "")


def first_line(text: str, length: int = 300) -> str:
    """Return the first line of a text, cut."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= length else f"{line[:length]}…"
