"""Sources beside the first: what a target declares of each, what is found of it, and how a plan pins it.

Put here which days of a further source a run reads, and why it may not. The first source is `manifests.planner`'s; what of any
source the policy holds back, `manifests.data_terms`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta

from manifests.canonical import LATER
from manifests.chunks import Chunking, in_words
from manifests.data_terms import DataTerms, SourceFacts, WantedRead, data_terms
from manifests.errors import Problem
from manifests.estimates import ZONE_MARGIN, Estimate, FileIndex
from manifests.facts import FurtherSource, SourceState
from manifests.log_breaks import InheritedBreaks
from manifests.model import DayRange, RunManifest
from manifests.policy import Policy
from manifests.timeliness import IN_TIME, FoundTimes, OnFuture, newest_in_time, timeliness_problems

_NO_MARGIN = timedelta(0)


@dataclass(frozen=True)
class UpstreamRun:
    """A run of another target whose chunks are read, as the ledger named it when the plan was made: `chunks` are keys of that target."""

    run_id: str
    chunks: tuple[str, ...]


@dataclass(frozen=True)
class PinnedSource:
    """A source beside the first at one snapshot, and which of its rows a run reads.

    Attributes:
        table: its name.
        time_column: the column by which its rows have days; `has_dates` where it is of dates, and not of instants.
        snapshot_id: what is read; None of a table that had none, and may be empty. `committed_at` is its commit.
        days_before: days that are read before a chunk's first one; None: all there are.
        days_after: days that are read after a chunk's last one.
        reads: what is read of it for the whole run, by its files.
        data: what the run may not see of it; None: it may see everything.
        upstream: where it is a target itself, the runs that held the chunks that are read.
        leaves_out_future: whether rows with a time after the commit are not read.
        day: the one day that is read of it, whichever chunk is computed, of states that the run starts from; None of every other.
        for_gates: whether gates alone look at it, and no transform.
    """

    table: str
    time_column: str
    has_dates: bool
    snapshot_id: int | None
    committed_at: datetime | None
    days_before: int | None
    days_after: int
    reads: Estimate
    data: DataTerms | None = field(default=None, metadata=LATER)
    upstream: tuple[UpstreamRun, ...] = field(default=(), metadata=LATER)
    leaves_out_future: bool = field(default=False, metadata=LATER)
    day: date | None = field(default=None, metadata=LATER)
    for_gates: bool = field(default=False, metadata=LATER)

    def window(self, first: date, last: date) -> tuple[date | None, date]:
        """Return from when (inclusive; None: from ever) and until when (exclusive) rows are read for days, both inclusive.

        Dates, or, with a day of margin on both sides, instants.
        """
        if self.day is not None:
            return self.day, days_off(self.day, 1)
        start = None if self.days_before is None else days_off(first, -self.days_before)
        end = days_off(last, self.days_after + 1)
        if self.has_dates:
            return start, end
        return None if start is None else _instant(days_off(start, -1)), _instant(days_off(end, 1))

    @property
    def newest(self) -> date | None:
        """The last instant, or date, of the rows that are read; None where those of the future are read as well."""
        if not self.leaves_out_future or self.committed_at is None:
            return None
        return newest_in_time(self.committed_at, has_dates=self.has_dates)

    def describe(self) -> str:
        """Say in words what is read of it."""
        pinned = "no snapshot yet, no rows" if self.snapshot_id is None else f"snapshot {self.snapshot_id}"
        made = "".join(f"; {in_words(list(one.chunks))} by run '{one.run_id}'" for one in self.upstream)
        if self.day is not None:
            return f"{pinned}, the state of {self.day} to start from: {self.reads.rows:,} rows, {self.reads.files:,} files{made}"
        before = "everything before" if self.days_before is None else f"{self.days_before:,} days before"
        return (
            f"{pinned}, by {self.time_column}, {before} and {self.days_after:,} after: up to {self.reads.rows:,} rows, "
            f"{self.reads.files:,} files{', none of the future' if self.leaves_out_future else ''}{', for gates' if self.for_gates else ''}{made}"
        )


@dataclass(frozen=True)
class FoundSource:
    """What is known of a source when a run is planned.

    `state` is None of a table without a snapshot; `facts` where the policy asks nothing of it. `upstream` are the runs that hold
    what is read, of a target, and `breaks` those of the changelogs that it is computed from. `times` say what is not in time,
    where the target declares anything of that.
    """

    state: SourceState | None
    facts: SourceFacts | None = None
    upstream: tuple[UpstreamRun, ...] = ()
    breaks: tuple[InheritedBreaks, ...] = ()
    times: FoundTimes = IN_TIME


def pin_sources(
    manifest: RunManifest,
    declared: Sequence[FurtherSource],
    found: Mapping[str, FoundSource],
    chunks: Sequence[tuple[str, date, date]],
    chunking: Chunking,
    policy: Policy | None,
    run_clock: datetime,
) -> tuple[tuple[PinnedSource, ...], list[Problem]]:
    """Return the pins of a target's further sources, and why they may not be read as they are.

    Args:
        manifest: the contract.
        declared: the further sources.
        found: what is known of each, by its name; what could not be looked up is refused elsewhere, and passed over.
        chunks: key, first and last day of each chunk of the publish range.
        chunking: how the target is cut.
        policy: the policy in force.
        run_clock: the run's now.
    """
    pins: list[PinnedSource] = []
    problems: list[Problem] = []
    for one in declared:
        if one.table not in found:
            continue
        known = found[one.table]
        pin = pin_of(one, known.state)
        pin = replace(pin, reads=_reads(pin, known.state, manifest.target.publish_range))
        problems += absences(one, pin, known.state, chunks)
        problems += timeliness_problems(one.table, one.timeliness, known.times)
        terms = None
        if policy is not None and known.facts is not None and known.state is not None:
            wanted = wanted_of(pin, known.state, manifest.target.publish_range, chunking)
            terms, refused = data_terms(policy, manifest, known.facts, wanted, run_clock)
            problems += refused
        pins.append(replace(pin, data=terms, upstream=known.upstream))
    return tuple(pins), problems


def pin_of(declared: FurtherSource, state: SourceState | None) -> PinnedSource:
    """Return how a source is pinned in the state that it is found in, before anything is known of what is read of it."""
    return PinnedSource(
        declared.table,
        declared.time_column,
        has_dates=state is not None and state.has_dates,
        snapshot_id=None if state is None else state.snapshot_id,
        committed_at=None if state is None else state.committed_at,
        days_before=declared.days_before,
        days_after=declared.days_after,
        reads=Estimate(0, 0, 0),
        leaves_out_future=declared.timeliness.future is OnFuture.LEAVE_OUT,
        for_gates=declared.for_gates,
    )


def _reads(pin: PinnedSource, state: SourceState | None, publish: DayRange) -> Estimate:
    return (
        pin.reads if state is None else FileIndex(state.files).touched(*touched_days(pin, publish.start, publish.end))
    )


def touched_days(pin: PinnedSource, first: date, last: date) -> tuple[date, date]:
    """Return the first and the last day of UTC, both inclusive, whose rows are read for days."""
    start, end = pin.window(first, last)
    return date.min if start is None else _day(start), days_off(_day(end), -1)


def absences(
    declared: FurtherSource, pin: PinnedSource, state: SourceState | None, chunks: Sequence[tuple[str, date, date]]
) -> Iterator[Problem]:
    """Say for which chunks a source has no rows, where it has to have some."""
    if declared.may_be_empty:
        return
    rule = f"{declared.table} is declared to have rows for every chunk"
    way_out = "load it first, or narrow the publish range; where it may have none, declare it with may_be_empty=True"
    if state is None:
        yield Problem(f"{declared.table} has no snapshot yet", rule, way_out)
        return
    files = FileIndex(state.files)
    empty = [key for key, first, last in chunks if not files.touched(*touched_days(pin, first, last)).rows]
    if empty:
        yield Problem(
            f"{declared.table} holds no rows for {in_words(empty)} at snapshot {state.snapshot_id}, by the files' bounds",
            rule,
            way_out,
        )


def wanted_of(pin: PinnedSource, state: SourceState, publish: DayRange, chunking: Chunking) -> WantedRead:
    """Return what would be read of a source, as the policy asks it: what is read from ever is left out like a look-back."""
    warm_up = pin.days_before or 0
    inputs = DayRange.model_construct(start=days_off(publish.start, -warm_up), end=publish.end)
    begins, _ = touched_days(pin, publish.start, publish.end)

    def rows_before(day: date) -> int:
        return sum(file.rows for file in state.files if file.first_day < day and file.last_day >= begins)

    margin = _NO_MARGIN if state.has_dates else ZONE_MARGIN
    return WantedRead(inputs, warm_up, margin, chunking, rows_before)


def days_off(day: date, days: int) -> date:
    """Return a day so many days off; the calendar's first or last where there is none."""
    number = min(max(day.toordinal() + days, date.min.toordinal()), date.max.toordinal())
    return date.fromordinal(number)


def _instant(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def _day(value: date) -> date:
    return value.date() if isinstance(value, datetime) else value
