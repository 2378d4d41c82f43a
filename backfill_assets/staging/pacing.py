"""A launch that keeps its run's pace: what a batch is given to read, how large it is cut, and how it waits until it may begin.

Put here what the executor asks before an attempt. What may begin when is `manifests.pace`'s, and asked of the ledger with all other launches
in one transaction (`resources.ledger.admissions`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from math import inf, isinf
from time import sleep

from backfill_assets.run_context import RunContext
from backfill_assets.staging import stopping
from backfill_assets.staging.breaker_checks import trips_before_a_batch
from backfill_assets.staging.compute import scans_of
from manifests.breaker import Trip
from manifests.errors import Problem, TransitionRefused
from manifests.estimates import Estimate
from manifests.model import Mode
from manifests.pace import PlannedPace, Wait, Work, never, portion
from manifests.plan import PlannedChunk
from resources import logs
from resources.actors import Actor, Channel, Proof, acting
from resources.ledger.admissions import BUDGET, Asked, BudgetSpent, MustWait, with_end
from resources.ledger.stops import Stop

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 2.0
"""How often a launch that waits asks again."""
PLATFORM = "the platform"
"""Under whose name a run is paused where no person pauses it."""
Tell = Callable[[str, Sequence[str], str], None]
Start = Callable[..., tuple[int, str] | None]


def reads_of(run: RunContext, chunks: Sequence[PlannedChunk]) -> Estimate:
    """Return what a batch is given to read of its sources, from metadata alone: what its attempt has on record once it is staged."""
    found = [scan for _, scan in scans_of(run, chunks)]
    return Estimate(
        sum(len(one.paths) for one in found), sum(one.rows for one in found), sum(one.bytes for one in found)
    )


def cut(run: RunContext, chunks: Sequence[PlannedChunk]) -> Iterator[list[PlannedChunk]]:
    """Yield the chunks of a batch in portions that take a fifth of the allowance, as far as a chunk is no more than that."""
    rows, size = (None, None) if run.plan.pace is None else portion(run.plan.pace)
    left = list(chunks)
    while left:
        if rows is None and size is None:
            yield left
            return
        most = _largest(run, left, rows, size)
        yield left[:most]
        left = left[most:]


def _largest(run: RunContext, chunks: Sequence[PlannedChunk], rows: int | None, size: int | None) -> int:
    """Return how many of the first chunks are read within bounds; one at least."""

    def fits(number: int) -> bool:
        reads = reads_of(run, chunks[:number])
        return (rows is None or reads.rows <= rows) and (size is None or reads.bytes <= size)

    good, bad = 1, 2
    while bad <= len(chunks) and fits(bad):
        good, bad = bad, bad * 2
    bad = min(bad, len(chunks) + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def admitted(run: RunContext, batch: Sequence[PlannedChunk], tell: Tell, start: Start) -> tuple[int, str] | None:
    """Begin an attempt at a batch once the limits of its run let it; return what `start` does.

    A budget that is spent pauses the run: what is staged stays, and somebody decides whether it goes on.

    Raises:
        RunStopped: if the run is stopped, or paused, meanwhile.
        TransitionRefused: if the batch takes more than the limits ever allow.
    """
    pace, begin = run.plan.pace, start
    pause_if_tripped(run)
    if pace is not None:
        reads = reads_of(run, batch)
        asked = Asked(pace, Work(len(batch), reads.rows, reads.bytes), run.plan.costs)
        _require_possible(run, batch, pace, asked.work)
        begin = partial(start, asked=asked)
    told = ""
    until: datetime | None = None
    try:
        while True:
            if pace is not None or told:
                stopping.going_on(run.run_id)()
                run.platform.ledger.fail_attempts_of_dead_processes(run.run_id)  # nobody waits for those
            try:
                _make_way(run)
                if told and (until is None or until <= run.platform.ledger.now() + timedelta(seconds=_LOOK_SECONDS)):
                    pause_if_tripped(run)  # what was looked at before the wait may be otherwise by now
                return begin()
            except MustWait as found:
                run.platform.ledger.admissions.wait(run.run_id, run.target.name, found)
                told, until = _say(tell, found, told), found.until
                sleep(_seconds(found))
            except BudgetSpent as spent:
                pause(run, BUDGET, str(spent))
    finally:
        if pace is not None or told:
            run.platform.ledger.admissions.wait_no_more(run.run_id)


def _make_way(run: RunContext) -> None:
    """Let no batch of another mode begin while a live run computes, of whatever table.

    Raises:
        MustWait: naming the live run.
    """
    if run.plan.mode is Mode.LIVE:
        return
    admissions = run.platform.ledger.admissions
    if (live := admissions.live_computing()) is not None:
        raise MustWait([Wait(f"LIVE comes first: '{live}' computes", None)], run.platform.ledger.now())


@contextmanager
def within_time(run: RunContext) -> Iterator[None]:
    """Let the body take no more time, and money, than the run has left of either: it is paused then, and the body interrupted."""
    pace = run.plan.pace
    ask = partial(run.platform.ledger.admissions.left, run.run_id)
    left = None if pace is None else ask(pace, run.plan.costs)
    if pace is None or left is None or isinf(left.seconds):
        yield
        return
    why = f"{left.why} when the batch began, and it has taken the rest"

    def seconds() -> float:
        found = ask(pace, run.plan.costs)
        return inf if found is None else found.seconds

    with stopping.within(run.run_id, seconds, partial(pause, run, BUDGET, why)):
        yield


def pause_if_tripped(run: RunContext) -> None:
    """Pause a run whose circuit breaker trips: between two batches, and once an attempt has failed, which may be its last."""
    for trip in trips_before_a_batch(run):
        pause_for(run, trip)


def pause_for(run: RunContext, trip: Trip) -> None:
    """Pause a run for what its circuit breaker has found; one that is over by now is paused for nothing, and goes on to say why it ended."""
    try:
        pause(run, trip.cause, trip.why)
    except TransitionRefused as refusal:
        text = f"{trip.why}; {refusal.problems[0].what}"
        logs.event(_log, logging.WARNING, "run_not_paused", text, told=True, cause=trip.cause)


def pause(run: RunContext, cause: str, why: str) -> Stop:
    """Pause a run in the platform's name, for a cause that its limits name: the next step of every launch meets it."""
    with acting(Actor(PLATFORM, Channel.API, Proof.PLATFORM)):
        found = run.platform.ledger.pauses.pause(run.run_id, by=PLATFORM, through="its limits", reason=why, cause=cause)
    text = f"'{run.run_id}' was {found}"
    logs.event(_log, logging.WARNING, "run_paused", text, told=True, cause=cause, why=why)
    return found


def _require_possible(run: RunContext, batch: Sequence[PlannedChunk], pace: PlannedPace, work: Work) -> None:
    if why := never(pace, work):
        raise TransitionRefused(
            Problem(
                f"a batch of {len(batch)} chunk(s) from {batch[0].key} on reads {'; '.join(why)}",
                "a rate holds over any 10 minutes, and a chunk is not divided",
                f"`backfill cancel {run.run_id}`, and plan the change under a new run id with a limit that has room for a chunk",
            )
        )


def _say(tell: Tell, found: MustWait, told: str) -> str:
    """Say what is waited for, once; return it."""
    if str(found) != told:
        text = with_end(str(found), found.until)
        tell("waiting", [], text)
        logs.event(_log, logging.INFO, "staging_waits", f"waiting: {text}", until=str(found.until or ""))
    return str(found)


def _seconds(found: MustWait) -> float:
    if found.until is None:
        return _LOOK_SECONDS
    return min(_LOOK_SECONDS, max(0.05, (found.until - found.at).total_seconds()))
