"""Whether a run waits for somebody to launch it: what of it is left to compute or to gate, and nobody does.

Put here what the ledger says of that; it is asked anew each time, since a process that is gone puts nothing on record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from manifests.chunks import in_words
from manifests.lifecycle import ChunkState, RunState
from resources.ledger import stops
from resources.ledger.admissions import Admissions
from resources.ledger.attempts import AttemptRecord, Attempts
from resources.ledger.chunks import STAGED, ChunkRecord, Chunks, ChunkStanding
from resources.ledger.part import Part
from resources.ledger.runs import RunRecord, Runs
from resources.ledger.stops import Stop, Stops
from resources.ledger.verdicts import Verdicts
from resources.processes import has_ended

HELD = ("stopped", "paused")
"""What the words of a run begin with that somebody has stopped, or paused; see `stops.Stop`."""


@dataclass(frozen=True)
class Waiting:
    """Why a run waits for a launch: somebody has stopped it, or chunks (in order) are left that nobody computes, or gates."""

    run_id: str
    chunks: tuple[str, ...]
    stop: Stop | None = None

    def __str__(self) -> str:
        if self.stop is not None:
            if self.stop.is_pause:
                return f"{self.stop}; waits until somebody resumes it (`backfill resume {self.run_id} --reason WHY`)"
            return f"{self.stop}; waits for a launch (`backfill resume {self.run_id}`)"
        left = in_words(self.chunks)
        return f"waits for a launch of {left}, {len(self.chunks)} chunk(s) (`backfill run {self.run_id}`)"


def state(record: RunRecord, waiting: Waiting | None) -> str:
    """Return a run's state as people are shown it: of one that somebody has stopped or paused, that, by whom and when."""
    stop = None if waiting is None else waiting.stop
    said = "" if stop is None else f", {stop.what} by {stop.stopped_by} at {stop.at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{record.state}{said}"


def reason(record: RunRecord, waiting: Waiting | None) -> str:
    """Return why a run is in its state: of one that nobody computes or gates any more, or that says nothing, what it waits for."""
    if waiting is not None and (waiting.stop is None or record.state is RunState.RUNNING or not record.state_reason):
        return str(waiting)
    return record.state_reason


def under_way(attempt: AttemptRecord) -> bool:
    """Return whether an attempt is being computed, as far as this machine can see; another machine's is taken to be."""
    return attempt.is_running and not has_ended(attempt)


class Launches(Part):
    """The runs of a ledger that wait for somebody to launch them."""

    def waits(
        self,
        record: RunRecord,
        *,
        chunks: Sequence[ChunkRecord | ChunkStanding] | None = None,
        attempts: Sequence[AttemptRecord] | None = None,
    ) -> Waiting | None:
        """Return why a run waits for a launch, or None; `chunks` and `attempts` are its own, where they are read already."""
        if record.state not in {*stops.STOPPABLE, RunState.FAILED}:
            return None
        stop = Stops(self.engine).held(record.run_id)
        if stop is None and record.state not in {RunState.RUNNING, RunState.STAGED}:
            return None
        chunks = Chunks(self.engine).standing_chunks(record.run_id) if chunks is None else chunks
        left = tuple(one.chunk for one in chunks if one.state not in STAGED)
        if stop is not None:
            return Waiting(record.run_id, left, stop)
        attempts = Attempts(self.engine).attempts(record.run_id) if attempts is None else attempts
        if left:
            goes_on = any(map(under_way, attempts)) or record.run_id in Admissions(self.engine).waiting(record.run_id)
            return None if goes_on else Waiting(record.run_id, left)
        unjudged = tuple(one.chunk for one in chunks if one.state is ChunkState.STAGED)
        if not unjudged and not Verdicts(self.engine).verdicts(record.run_id, of_chunks=False):
            unjudged = tuple(one.chunk for one in chunks)  # each has passed, and nobody has judged the run
        return Waiting(record.run_id, unjudged) if unjudged and self._was_left(record.run_id, attempts) else None

    def _was_left(self, run_id: str, attempts: Sequence[AttemptRecord]) -> bool:
        """Return whether whoever staged a run's chunks has ended before it judged them, and nobody has launched the run since.

        A launch that only gates makes no attempt: what has become of its process is not on record.
        """
        if not attempts or not all(map(has_ended, attempts)):
            return False
        launched = Stops(self.engine).newest_launch(run_id)
        return launched is None or launched <= max(one.ended_at or one.started_at for one in attempts)

    def all_waiting(self) -> dict[str, Waiting]:
        """Return every run that waits for a launch."""
        states = {*stops.STOPPABLE, RunState.FAILED}
        found = {record.run_id: self.waits(record) for record in Runs(self.engine).runs(states=states)}
        return {run_id: one for run_id, one in found.items() if one is not None}
