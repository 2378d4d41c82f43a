"""When a run is paused without a person: what its first chunks, its failures, or the live side show past a declared threshold.

Rules only: what was judged, counted and measured is handed in. How a manifest says it is `limits`'; who looks, and pauses, is
`backfill_assets.gates.breaking` of what gates judge, and `backfill_assets.staging.pacing` of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation

from manifests.lifecycle import RunState

REJECTED, DRIFT, FAILURES, LIVE_DELAY, MEMORY, CANARY = (
    "REJECTED_ROWS",
    "DRIFT",
    "FAILED_ATTEMPTS",
    "LIVE_DELAY",
    "MEMORY",
    "CANARY",
)
"""Causes of a pause."""


@dataclass(frozen=True)
class Trip:
    """Why a run is paused: a cause by its name, and what was found against which threshold."""

    cause: str
    why: str


@dataclass(frozen=True)
class PlannedBreaker:
    """The thresholds of a run, and its canary: how many chunks come first, and whether they are waited on."""

    rejected_percent: float | None = None
    drift_percent: float | None = None
    failed_attempts: int | None = None
    live_delay_seconds: int | None = None
    free_memory_mb: int | None = None
    canary_chunks: int = 0
    canary_waits: bool = False

    @property
    def looks_at_verdicts(self) -> bool:
        """Whether chunks are gated before all are computed."""
        return bool(self.canary_chunks) or self.rejected_percent is not None or self.drift_percent is not None

    def describe(self) -> list[str]:
        """Say in words when the run is paused."""
        numbers = (
            (self.rejected_percent, "% of the gated rows break a rule"),
            (self.drift_percent, "% lie between what is gated and what is accepted, in rows or a sum"),
            (self.failed_attempts, " attempts have failed"),
            (
                self.live_delay_seconds,
                " s have passed since a live run of the table was approved that is not published",
            ),
        )
        said = [f"paused once more than {most:,g}{what}" for most, what in numbers if most is not None]
        if self.free_memory_mb is not None:
            said.append(f"paused once less than {self.free_memory_mb:,} MB of memory are free")
        if self.canary_chunks:
            then = "somebody looks at them and resumes the run" if self.canary_waits else "the others follow"
            said.append(
                f"the first {self.canary_chunks:,} chunk(s) are computed and gated before the others; then {then}"
            )
        return said


@dataclass(frozen=True)
class Gated:
    """What the gates have found of a chunk: its rows, how many break a rule, and its figures beside those that are accepted today.

    In `rejected` a row that breaks two rules counts twice, as long as there are not more of them than rows. `now` and `accepted` are by figure (`rows`, and each sum, as text); `accepted` is None where nobody holds the chunk.
    """

    chunk: str
    rows: int
    rejected: int
    now: Mapping[str, str] = field(default_factory=dict)
    accepted: Mapping[str, str] | None = None


def trips(breaker: PlannedBreaker, gated: Sequence[Gated]) -> list[Trip]:
    """Return why a run is paused by what its gates have found so far."""
    return [*_rejected(breaker, gated), *_drift(breaker, gated)]


def _rejected(breaker: PlannedBreaker, gated: Sequence[Gated]) -> Iterator[Trip]:
    rows, rejected = sum(one.rows for one in gated), sum(one.rejected for one in gated)
    most = breaker.rejected_percent
    if most is not None and rejected and 100 * rejected > most * rows:
        worst = max(gated, key=lambda one: one.rejected)
        yield Trip(
            REJECTED,
            f"safety.breaker.maxRejectedPercent is {most:g}: {rejected:,} of {rows:,} rows of {len(gated)} gated chunk(s) break a "
            f"rule ({_share(Decimal(100 * rejected) / rows if rows else Decimal(100), most)}; one that breaks two counts twice), most "
            f"of them in {worst.chunk}",
        )


def _drift(breaker: PlannedBreaker, gated: Sequence[Gated]) -> Iterator[Trip]:
    most = breaker.drift_percent
    held = [one for one in gated if one.accepted is not None]
    if most is None or not held:
        return
    for figure in dict.fromkeys(name for one in held for name in one.accepted or {} if name in one.now):
        both = [pair for one in held if (pair := _pair(one, figure)) is not None]
        now, then = sum((one for one, _ in both), Decimal(0)), sum((other for _, other in both), Decimal(0))
        if now == then:
            continue
        percent = abs(now - then) * 100 / abs(then) if then else None
        if percent is None or percent > Decimal(str(most)):
            yield Trip(
                DRIFT,
                f"safety.breaker.maxDriftPercent is {most:g}: {figure} of {len(both)} gated chunk(s) is {now:,}, and {then:,} is "
                "accepted" + ("" if percent is None else f" ({_share(percent, most)})"),
            )


def _share(percent: Decimal, most: float) -> str:
    """Say a share with two decimals, or as many as show that it is past a threshold."""
    digits = next((one for one in range(2, 12) if Decimal(f"{percent:.{one}f}") > Decimal(str(most))), 12)
    return f"{percent:,.{digits}f}".rstrip("0").rstrip(".") + "%"


def _pair(one: Gated, figure: str) -> tuple[Decimal, Decimal] | None:
    """Return a figure of a chunk, and what is accepted; None unless both are numbers: a chunk without one says nothing of the others."""
    try:
        now, then = Decimal(one.now[figure]), Decimal((one.accepted or {})[figure])
    except (KeyError, InvalidOperation, TypeError):
        return None
    return (now, then) if now.is_finite() and then.is_finite() else None


def failure_trips(breaker: PlannedBreaker, failed: int) -> list[Trip]:
    """Return that too many attempts have failed."""
    most = breaker.failed_attempts
    if most is None or failed <= most:
        return []
    return [Trip(FAILURES, f"safety.breaker.maxFailedAttempts is {most:,}: {failed:,} attempts have failed")]


def surroundings_trips(
    breaker: PlannedBreaker, live: tuple[str, float, RunState] | None, free_mb: int | None
) -> list[Trip]:
    """Return why a run makes way for what is live: `live` is the run that waits longest, for how many seconds, and its state."""
    found = []
    if breaker.live_delay_seconds is not None and live is not None and live[1] > breaker.live_delay_seconds:
        said = f"'{live[0]}' was approved {live[1]:,.0f} s ago and is not published: it is {live[2]}"
        found.append(Trip(LIVE_DELAY, f"safety.breaker.maxLiveDelaySeconds is {breaker.live_delay_seconds:,}: {said}"))
    if breaker.free_memory_mb is not None and free_mb is not None and free_mb < breaker.free_memory_mb:
        said = f"{free_mb:,} MB of this machine's memory are free"
        found.append(Trip(MEMORY, f"safety.breaker.minFreeMemoryMb is {breaker.free_memory_mb:,}: {said}"))
    return found
