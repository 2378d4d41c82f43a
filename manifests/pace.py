"""The pace of a run: what its next batch has to wait for, and what it may take in all.

Rules only: instants, and what was admitted before, are handed in. What of it is on record, so that all processes share one allowance, is
`resources.ledger.admissions`'; how a manifest says it is `limits`'.

**Rates** hold over any 10 minutes, however a batch spreads its reading: the rows of every batch that is under way in them, or was, count whole.
So the sum over the batches that touch any 10 minutes is never more than the allowance of 10 minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from manifests.canonical import LATER
from manifests.limits import Hours

WINDOW = timedelta(minutes=10)
"""Over which rates are measured."""
MARGIN = timedelta(seconds=1)
"""How much longer a batch counts: an attempt is on record as begun just before it was admitted, and as ended just after it was."""
_MINUTES = 10
_NAMED = 3
"""Batches that are named to who waits for them."""
_TURNS = 200
"""Openings of windows that are looked at until all of them are open at once."""


@dataclass(frozen=True)
class PlannedPace:
    """What a run keeps to, by its manifest and by the policy; None: without a limit.

    A batch begins in hours of each of `windows` alone.
    """

    chunks_in_parallel: int | None = None
    rows_per_minute: int | None = None
    bytes_per_minute: int | None = None
    commits_per_hour: int | None = None
    pause_seconds: int | None = None
    windows: tuple[tuple[Hours, ...], ...] = ()
    budget_rows: int | None = None
    budget_bytes: int | None = None
    duration_minutes: int | None = field(default=None, metadata=LATER)
    cost_usd: float | None = field(default=None, metadata=LATER)

    def describe(self) -> list[str]:
        """Say each limit in words."""
        numbers = (
            (self.chunks_in_parallel, "chunks at once, over all machines"),
            (self.rows_per_minute, "source rows a minute, over any 10 minutes"),
            (self.bytes_per_minute, "bytes a minute, over any 10 minutes"),
            (self.commits_per_hour, "publications an hour of the target"),
            (self.budget_rows, "source rows in all"),
            (self.budget_bytes, "bytes in all"),
            (self.duration_minutes, "minutes of computing in all"),
            (self.cost_usd, "dollars in all"),
        )
        said = [f"at most {most:,} {of_what}" for most, of_what in numbers if most is not None]
        said += [f"{self.pause_seconds:,} s between two batches"] if self.pause_seconds is not None else []
        return [*said, *(f"batches begin {' or '.join(map(str, hours))}" for hours in self.windows)]


@dataclass(frozen=True)
class Work:
    """What a batch computes, and what it is given to read."""

    chunks: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class Admitted:
    """A batch that was admitted at an instant; `ended` is None while it is under way.

    `by` says who computes it, and `way_out` what to do where that cannot be seen from here.
    """

    work: Work
    at: datetime
    ended: datetime | None
    by: str = ""
    way_out: str = ""


@dataclass(frozen=True)
class Wait:
    """What a batch waits for, and until when; None where that depends on others."""

    why: str
    until: datetime | None


def waits(
    pace: PlannedPace, work: Work, admitted: Sequence[Admitted], at: datetime, present: datetime | None = None
) -> list[Wait]:
    """Return all that a batch has to wait for at an instant; nothing, if it may begin.

    `admitted` has every batch of the run that is under way, or has ended within the last 10 minutes and within its pause.
    `present` is what the clock says, where that was set back since the newest of them: hours of the day are those of the clock.
    """
    found = [
        *_window(pace, at if present is None else present),
        *_rate(
            "limits.maxRowsPerMinute", pace.rows_per_minute, work.rows, [(one, one.work.rows) for one in admitted], at
        ),
        *_rate(
            "limits.maxBytesPerMinute",
            pace.bytes_per_minute,
            work.bytes,
            [(one, one.work.bytes) for one in admitted],
            at,
        ),
        *_places(pace, work, admitted),
        *_pause(pace, admitted, at),
    ]
    return list(found)


def never(pace: PlannedPace, work: Work) -> list[str]:
    """Say why a batch could never begin, however long it waited: it takes more than 10 minutes' allowance."""
    asked = (
        ("limits.maxRowsPerMinute", "rows", pace.rows_per_minute, work.rows),
        ("limits.maxBytesPerMinute", "bytes", pace.bytes_per_minute, work.bytes),
    )
    return [
        f"{count:,} {of_what}, and {name} allows {most * _MINUTES:,} in 10 minutes"
        for name, of_what, most, count in asked
        if most is not None and count > most * _MINUTES
    ]


def portion(pace: PlannedPace) -> tuple[int | None, int | None]:
    """Return how many rows and bytes a batch has at most, where chunks are small enough: so that waiting is short and even."""
    per_minute = (pace.rows_per_minute, pace.bytes_per_minute)
    rows, size = (None if one is None else one * _MINUTES // 5 for one in per_minute)
    return rows, size


def over_budget(pace: PlannedPace, work: Work, rows: int, size: int, times: int = 1) -> str:
    """Say what would be exceeded in all if a batch began after others have read `rows` and `size` bytes; empty if nothing is.

    `times` is how often the budget is allowed by now.
    """
    for name, of_what, most, before, more in (
        ("limits.budget.rows", "rows", pace.budget_rows, rows, work.rows),
        ("limits.budget.bytes", "bytes", pace.budget_bytes, size, work.bytes),
    ):
        if most is not None and before + more > most * times:
            again = f", allowed {times} times" if times > 1 else ""
            return f"{name} is {most:,}{again}: {before:,} {of_what} are read, and the next batch would read {more:,}"
    return ""


def soonest(found: Iterable[Wait]) -> datetime | None:
    """Return when all that a batch waits for may be over; None where that depends on others."""
    until = [one.until for one in found]
    return None if not until or None in until else max(one for one in until if one is not None)


def _window(pace: PlannedPace, at: datetime) -> Iterator[Wait]:
    shut = [hours for hours in pace.windows if not any(one.is_open(at) for one in hours)]
    if shut:
        said = "; ".join(" or ".join(map(str, hours)) for hours in shut)
        yield Wait(f"limits.windows: batches begin {said}", opens_at(pace.windows, at))


def opens_at(windows: Sequence[Sequence[Hours]], at: datetime) -> datetime | None:
    """Return the first instant from `at` on that lies in hours of each of several windows; None if none is found."""
    for _ in range(_TURNS):
        shut = [hours for hours in windows if not any(one.is_open(at) for one in hours)]
        if not shut:
            return at
        at = max(min(one.opens_after(at) for one in hours) for hours in shut)
    return None


def _rate(
    name: str, most: int | None, wanted: int, admitted: Sequence[tuple[Admitted, int]], at: datetime
) -> Iterator[Wait]:
    if most is None:
        return
    allowed = most * _MINUTES
    counting = [(one, count) for one, count in admitted if one.ended is None or one.ended >= at - WINDOW - MARGIN]
    used = sum(count for _, count in counting)
    if used + wanted <= allowed:
        return
    until = None
    leaving = sorted((one.ended, count) for one, count in counting if one.ended is not None)
    for ended, count in leaving:
        used -= count
        if used + wanted <= allowed:
            until = ended + WINDOW + MARGIN + timedelta(microseconds=1)  # both ends included
            break
    said = whom([one for one, _ in counting]) if until is None else ""
    yield Wait(f"{name} is {most:,}, over any 10 minutes{said}", until)


def whom(admitted: Sequence[Admitted]) -> str:
    """Say which batches are under way, and what to do about those whose machine cannot be seen; empty of none."""
    under_way = [one for one in admitted if one.ended is None and one.by]
    if not under_way:
        return ""
    more = ", ..." if len(under_way) > _NAMED else ""
    ways_out = dict.fromkeys(one.way_out for one in under_way if one.way_out)
    return "; ".join(["", f"under way: {', '.join(one.by for one in under_way[:_NAMED])}{more}", *ways_out])


def _places(pace: PlannedPace, work: Work, admitted: Sequence[Admitted]) -> Iterator[Wait]:
    most = pace.chunks_in_parallel
    under_way = sum(one.work.chunks for one in admitted if one.ended is None)
    if most is not None and under_way and under_way + work.chunks > most:
        yield Wait(f"limits.maxChunksInParallel is {most:,}, over all machines{whom(admitted)}", None)


def _pause(pace: PlannedPace, admitted: Sequence[Admitted], at: datetime) -> Iterator[Wait]:
    ended = max((one.ended for one in admitted if one.ended is not None), default=None)
    if pace.pause_seconds is not None and ended is not None:
        until = ended + timedelta(seconds=pace.pause_seconds)
        if at < until:
            yield Wait(f"limits.pauseBetweenBatchesSeconds is {pace.pause_seconds:,}", until)
