"""Breaks in a changelog: stretches that were lost for good, after which a new snapshot begins anew.

Put here what is known around a break, and why a run may not publish what it leaves unknown. That one is accepted when it is landed, is
`backfill_assets.ingestion`'s to ask; which positions a run reads, `log_pins`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise

from manifests.canonical import LATER
from manifests.chunks import in_words
from manifests.errors import Problem
from manifests.log_ranges import LandedLog, LandedRange, LogKind, LogRange, Observation, joined, lsn, without

_SHOWN = 5


@dataclass(frozen=True)
class LogBreak:
    """A break in a changelog: what was committed there nobody knows, and when it was committed is known by its two ends only.

    Attributes:
        lost: the positions that nobody has; none between two timelines of a server that follow on one another without a position between.
        known_until: the time of the last change before them; None where there is none.
        again: the first snapshot after them that has rows of each table that has rows before them: it says how the tables are from its
            position on; None where none was landed.
        lacking: where there is none, the tables that the first snapshot after them has no row of.
    """

    lost: LogRange
    known_until: datetime | None
    again: Observation | None = None
    lacking: tuple[str, ...] = field(default=(), metadata=LATER)

    def describe(self) -> str:
        """Say it in words, with positions as the server writes them."""
        since = "the first change on" if self.known_until is None else self.known_until.isoformat()
        said = f"nothing is known from LSN {lsn(self.lost.start)} until {lsn(self.lost.until)}, committed since {since}"
        if self.lost.start == self.lost.until:
            said = f"a later timeline begins at LSN {lsn(self.lost.start)}, and what the earlier one had committed since {since} is not known"
        if self.lacking:
            return f"{said}, and the snapshot after it has no row of {', '.join(self.lacking)}, and does not say how they are"
        if self.again is None:
            return f"{said}, and no snapshot after it says how the tables are"
        return f"{said}; known again by the snapshot at {lsn(self.again.position)}, of {self.again.at.isoformat()}"

    def leaves_unknown(self, first: date, last: date) -> bool:
        """Whether anything from one day to another (UTC) may have happened in it."""
        begins = date.min if self.known_until is None else self.known_until.date()
        ends = date.max if self.again is None else self.again.at.date()
        return begins <= last and first <= ends


@dataclass(frozen=True)
class InheritedBreaks:
    """Breaks behind a source that is a target itself: those of a changelog that it is computed from, directly or by way of others.

    Days of what is computed from it need not be days of the log, so that nobody can tell which of them a break leaves unknown.

    Attributes:
        table: the source.
        log: the table of changes.
        breaks: its breaks, as far as the runs that hold what is read of the source have read it.
    """

    table: str
    log: str
    breaks: tuple[LogBreak, ...]

    def describe(self) -> Iterator[tuple[str, str]]:
        """Say each in words."""
        for one in self.breaks:
            yield f"break behind {self.table}", f"{one.describe()} ({self.log})"


def breaks_of(loads: Iterable[LandedLog], read: Sequence[LogRange] | None = None) -> tuple[LogBreak, ...]:
    """Return the breaks of a changelog that was landed by some loads, in order; of a log of another kind there are none.

    Args:
        loads: what each has brought that was not taken back.
        read: the positions that count; None: all of them. A snapshot that is not among them tells nothing.
    """
    known = [one for one in loads if one.log.kind is LogKind.CHANGELOG]
    ranges = sorted((one for load in known for one in load.ranges), key=lambda one: one.range)
    lost = still_lost(known)
    if read is not None:
        lost = without(lost, without(lost, read))
    observed = sorted({one for load in known for one in load.observed}, key=lambda one: one.position)
    if read is not None:
        observed = [one for one in observed if any(part.start <= one.position < part.until for part in read)]
    lost = tuple(sorted({*lost, *_between_timelines(known, lost, read)}))
    return tuple(_broken(part, ranges, [one for one in observed if one.position >= part.until]) for part in lost)


def still_lost(loads: Iterable[LandedLog]) -> tuple[LogRange, ...]:
    """Return the positions that were accepted as lost and that no load has brought since.

    A changelog that began without a snapshot has lost what was before, from 0 on; once it begins with one, nothing of that counts.
    """
    known = list(loads)
    lost = without((one for load in known for one in load.lost), [one.range for load in known for one in load.ranges])
    observed = {one.position for load in known for one in load.observed}
    return tuple(one for one in lost if one.start > 0 or one.until not in observed)


def _between_timelines(
    loads: Iterable[LandedLog], lost: Sequence[LogRange], read: Sequence[LogRange] | None
) -> Iterator[LogRange]:
    """Yield an empty range where a later timeline begins, and nothing is lost right before it: a break nevertheless."""
    known = list(loads)
    begun = set(known[-1].begun) if known else set[int]()  # the newest load says all of them
    ends = {one.until for one in lost}
    for at in sorted(begun - ends):
        if read is None or any(part.start < at < part.until for part in joined(read)):
            yield LogRange(0, at, at)


def _broken(lost: LogRange, ranges: Iterable[LandedRange], later: Sequence[Observation]) -> LogBreak:
    """Return a break, of which the snapshots after it are `later`, in order."""
    before = [one for one in ranges if one.range.until <= lost.start]
    known_until = max((one.last_time for one in before if one.last_time is not None), default=None)
    tables = {name for one in before for name in one.tables}
    again = next((one for one in later if not one.lacks(tables)), None)
    return LogBreak(lost, known_until, again, later[0].lacks(tables) if later and again is None else ())


def problems_of_breaks(
    table: str, breaks: Sequence[LogBreak], chunks: Sequence[tuple[str, date, date]]
) -> Iterator[Problem]:
    """Say what a run may not publish of a changelog with breaks: `chunks` are keys with first and last day, of a target that has days."""
    way_out = "source.log.breaks: PUBLISH publishes what there is"
    unknown = [key for key, first, last in chunks if any(one.leaves_unknown(first, last) for one in breaks)]
    said = "; ".join(one.describe() for one in breaks[:_SHOWN])
    if unknown:
        yield Problem(
            f"{in_words(unknown)} are in a break of {table}: {said}",
            "what happened on a day of which changes were lost is not known, and rows of it would say that it is",
            f"narrow the publish range to the days before and after; {way_out}, and the plan names it",
        )
    if not chunks and (open_ones := [one for one in breaks if one.again is None]):
        yield Problem(
            f"the run reads {table} beyond a break: {'; '.join(one.describe() for one in open_ones[:_SHOWN])}",
            "rows that were changed or deleted in a break stay as they were before it, until a snapshot says how they are",
            "take a snapshot of the tables and land it; or read up to the break only (source.log.until); "
            f"{way_out}, and the plan names it",
        )


def problems_of_inherited(inherited: Iterable[InheritedBreaks]) -> Iterator[Problem]:
    """Say which sources hold rows that were changed or deleted in a break, and that no snapshot has corrected since."""
    for one in inherited:
        if open_ones := [broken for broken in one.breaks if broken.again is None]:
            said = "; ".join(broken.describe() for broken in open_ones[:_SHOWN])
            yield Problem(
                f"{one.table} is computed from {one.log} beyond a break: {said}",
                "rows that were changed or deleted in a break stay as they were before it, until a snapshot says how they are",
                f"take a snapshot of the tables, land it and restate {one.table}; "
                "source.log.breaks: PUBLISH publishes what there is, and the plan names it",
            )


def continued(incarnations: Iterable[str]) -> bool:
    """Whether a server's timelines are told apart by their numbers, so that a later one can go on after an earlier one."""
    return all(one.startswith(_TIMELINE) and one.removeprefix(_TIMELINE).isdigit() for one in incarnations)


_TIMELINE = "timeline "


def timeline(incarnation: str) -> int:
    """Return the number of a server's timeline."""
    return int(incarnation.removeprefix(_TIMELINE))


def in_sequence(loads: Sequence[LandedLog]) -> bool:
    """Whether loads of several timelines of one server are one log: each timeline begins with a snapshot, after all of those before it."""
    identities = {one.log for one in loads}
    same = {(one.kind, one.server, one.name) for one in identities}
    if (
        len(same) != 1
        or next(iter(same))[0] is not LogKind.CHANGELOG
        or not continued(one.incarnation for one in identities)
    ):
        return False
    numbers = sorted({timeline(one.incarnation) for one in identities})
    for earlier, later in pairwise(numbers):
        before = [one for load in loads if timeline(load.log.incarnation) <= earlier for one in load.ranges]
        after = [load for load in loads if timeline(load.log.incarnation) == later]
        begins = min((one.range.start for load in after for one in load.ranges), default=0)
        ends = max((one.range.until for one in before), default=0)
        if begins < ends or begins not in {one.position for load in after for one in load.observed}:
            return False
    return True
