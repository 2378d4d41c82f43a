"""What one table of a read model has and the other has not: days, and newer input.

Put here what the ledger's accepted versions and their plans say; no row is read. Whether rows agree is `dual_read`'s. A chunk is
behind where it is missing, or was computed with an older snapshot of a source than the other table's of the same days. What a
restatement with other code has changed is no lag: the tables are computed by different code on purpose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.chunks import aligned, first_day, last_day, part_of, time_of
from manifests.further_sources import days_off
from manifests.model import DayRange
from manifests.plan import Plan

_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Gap:
    """Days without a gap between them of which a table is behind the other, in whole chunks of its own, and why."""

    days: DayRange
    missing: int
    older: int

    def __str__(self) -> str:
        said = [f"missing, of {self.missing:,} chunk(s) of the other table"] if self.missing else []
        said += [f"{self.older:,} chunk(s) with older input"] if self.older else []
        return f"{self.days.start} to {self.days.end} ({', '.join(said)})"


@dataclass(frozen=True)
class _Held:
    """One accepted chunk of a table: its days, the last of which its source knew anything, and what it was computed from."""

    start: date
    end: date
    known: date
    key: str
    first_read: date
    last_read: date
    read: Mapping[str, int]


class Inputs:
    """What has come into the sources, or gone out of them, between the snapshots that two tables were computed with."""

    def __init__(self, platform: Platform, time_columns: Mapping[str, str]) -> None:
        self._platform = platform
        self._time_columns = time_columns
        self._order: dict[str, dict[int, int]] = {}
        self._changed: dict[tuple[str, int, int], list[tuple[date, date]] | None] = {}

    def newer(self, table: str, mine: int, other: int, first: date, last: date) -> bool:
        """Tell whether rows of a range of days of a source have changed from one snapshot to another that is newer."""
        if mine == other or not self._is_older(table, mine, other):
            return False
        changed = self._days_changed(table, mine, other)
        return changed is None or any(start <= last and end >= first for start, end in changed)

    def _is_older(self, table: str, one: int, than: int) -> bool:
        """Tell whether a table had a snapshot before another; one that its history has no more is older than those it has."""
        if table not in self._order:
            newest_first = self._platform.lakehouse.snapshots_in_order(table)
            self._order[table] = {snapshot_id: -place for place, snapshot_id in enumerate(newest_first)}
        order = self._order[table]
        if than not in order:
            return one not in order  # nobody knows which of them came first: it is computed again
        return one not in order or order[one] < order[than]

    def _days_changed(self, table: str, mine: int, other: int) -> list[tuple[date, date]] | None:
        """Return the days of the files that one snapshot has and the other has not; None where one of them is gone."""
        key = (table, mine, other)
        if key not in self._changed:
            lakehouse, column = self._platform.lakehouse, self._time_columns[table]
            known = all(lakehouse.has_snapshot(table, one) for one in (mine, other))
            files = [
                file
                for since, until in ((mine, other), (other, mine))
                for file in (lakehouse.files_added(table, column, since, until) if known and column else ())
            ]
            self._changed[key] = [(one.first_day, one.last_day) for one in files] if known and column else None
        return self._changed[key]


def gaps(platform: Platform, behind: TargetTable, ahead: TargetTable, *, rewind_days: int = 0) -> list[Gap]:
    """Return the days of which one target is behind another, chunk by chunk of its own, each stretch a `Gap`.

    With `rewind_days`, each stretch begins so many days earlier, as far as the table has them: what came late is taken in.
    """
    inputs = Inputs(platform, {**ahead.every_source, **behind.every_source})
    mine, others = _held(platform, behind), _held(platform, ahead)
    whole = _whole_times(behind, mine)
    found: dict[tuple[date, date], tuple[int, int]] = defaultdict(lambda: (0, 0))
    same_cut = behind.chunking is ahead.chunking and set(behind.parts) == set(ahead.parts)
    by_key = {held.key: held for held in mine}
    for other in others:
        if same_cut:
            own = [by_key[other.key]] if other.key in by_key else []
            uncovered = [] if own else [(other.start, other.known)]
        else:
            own = [held for held in whole if held.start <= other.known and held.end >= other.start]
            uncovered = list(_uncovered(other.start, other.known, own))
        for start, end in uncovered:
            days = aligned(behind.chunking, start, end)
            found[days] = (found[days][0] + 1, found[days][1])
        for held in own:
            if _has_older_input(inputs, held, other):
                found[held.start, held.end] = (found[held.start, held.end][0], found[held.start, held.end][1] + 1)
    return list(_stretches(behind, found, rewind_days))


def _held(platform: Platform, target: TargetTable) -> list[_Held]:
    """Return what is accepted of a target, chunk by chunk; not what lies after everything that its source knew."""
    by_run: dict[str, list[str]] = defaultdict(list)
    for key, run_id in platform.ledger.accepted(target.name).items():
        by_run[run_id].append(key)
    found = []
    for run_id, keys in by_run.items():
        plans = platform.ledger.plans(platform.ledger.run(run_id))
        for key in keys:
            start = first_day(target.chunking, key)
            end = last_day(target.chunking, start)
            plan = plans[key]
            known = end if plan.source_ends is None else min(end, plan.source_ends)
            if known >= start:
                found.append(_Held(start, end, known, key, *_days_read(target, plan, start, end), _read(plan)))
    return sorted(found, key=lambda held: (held.start, held.key))


def _has_older_input(inputs: Inputs, held: _Held, other: _Held) -> bool:
    return any(
        inputs.newer(table, held.read[table], snapshot_id, held.first_read, held.last_read)
        for table, snapshot_id in other.read.items()
        if table in held.read
    )


def _days_read(target: TargetTable, plan: Plan, start: date, end: date) -> tuple[date, date]:
    """Return the first and last day of the sources that a chunk was computed from, with a day of margin for time zones."""
    windows = [one.reads for one in target.sources]
    everything = bool(target.look_back_columns) or any(window.before is None for window in windows)
    before = max([plan.warm_up_days, *(window.before or 0 for window in windows)])
    after = max([0, *(window.after for window in windows)])
    return date.min if everything else days_off(start, -before - 1), days_off(end, after + 1)


def _read(plan: Plan) -> dict[str, int]:
    further = {one.table: one.snapshot_id for one in plan.sources if one.snapshot_id is not None}
    return {plan.source: plan.source_snapshot_id, **further}


def _whole_times(target: TargetTable, held: Iterable[_Held]) -> list[_Held]:
    """Return what a target has of each time that it has in all of its parts."""
    if not target.parts:
        return list(held)
    by_time: dict[str, list[_Held]] = defaultdict(list)
    for one in held:
        by_time[time_of(one.key)].append(one)
    return [one for own in by_time.values() if {part_of(each.key) for each in own} >= set(target.parts) for one in own]


def _uncovered(start: date, end: date, own: Iterable[_Held]) -> Iterator[tuple[date, date]]:
    """Yield the ranges of days that no chunk has."""
    day = start
    for held in sorted(own, key=lambda one: one.start):
        if held.start > day:
            yield day, held.start - _DAY
        day = max(day, held.end + _DAY)
    if day <= end:
        yield day, end


def _stretches(
    target: TargetTable, found: Mapping[tuple[date, date], tuple[int, int]], rewind_days: int
) -> Iterator[Gap]:
    """Yield ranges of days without a gap between them."""
    first = first_day(target.chunking, target.chunks_from)
    start: date | None = None
    end, missing, older = date.min, 0, 0
    for (begins, ends), (lacks, has_older) in sorted(found.items()):
        rewound = aligned(target.chunking, max(begins - timedelta(days=rewind_days), min(first, begins)), begins)[0]
        if start is not None and rewound > end + _DAY:
            yield Gap(DayRange.model_construct(start=start, end=end), missing, older)
            start, missing, older = None, 0, 0
        start = rewound if start is None else min(start, rewound)
        end, missing, older = max(end, ends), missing + lacks, older + has_older
    if start is not None:
        yield Gap(DayRange.model_construct(start=start, end=end), missing, older)
