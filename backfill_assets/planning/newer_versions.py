"""Which published days of a target its source says something else about by now: days with another version in force than then.

Put here what is asked of source and ledger. What a restatement of those days is called, and who approves it, is
`backfill_assets.schedules.proposals`'; which version of a day is in force, `declarations.revisions`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta

from backfill_assets.declarations.revisions import KnownVersion, Revisions, in_force
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.chunks import first_day, last_day, part_of
from manifests.model import DayRange
from manifests.plan import Plan
from resources.lakehouse.facade import between


@dataclass(frozen=True)
class ChangedDay:
    """A day that the source says something else about than when it was published.

    `before` is the version in force in the snapshot that was read then, `now` that of today; None where there was none, or is
    none any more because its load was taken back.
    """

    day: date
    before: KnownVersion | None
    now: KnownVersion | None


@dataclass(frozen=True)
class Stretch:
    """Chunks without a gap between them that are to be restated, and the changed days that are the reason.

    `values` are those (or the buckets) whose chunks they are, of a table that is divided beside time; None where they are all that it has.
    """

    days: DayRange
    because: tuple[ChangedDay, ...]
    values: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Stale:
    """What of a target is published with other versions than those in force at a snapshot of its source.

    `untold` are the snapshots that published chunks were computed from and that the source has no more: nothing can be said of those.
    """

    stretches: tuple[Stretch, ...]
    untold: tuple[int, ...] = ()


_Reasons = dict[tuple[date, date], dict[date, ChangedDay]]
"""The changed days that chunks read, by the first and last day of each."""


def stale_stretches(platform: Platform, target: TargetTable, snapshot_id: int) -> Stale:
    """Return the published chunks of a target that a newer version of a day changes, chunk by chunk without a gap.

    A chunk is changed by the days that it reads: its own, and those of the warm-up before them. Rows of a version that is not in force
    change nothing, nor does a version of a day that is not published.
    """
    source = platform.products.input(target.source)
    assert source.revisions is not None
    plans = _plans(platform, target)
    untold: list[int] = []
    found: dict[str, _Reasons] = defaultdict(lambda: defaultdict(dict))
    for read in sorted({plan.source_snapshot_id for plan in plans.values()} - {snapshot_id}):
        if not platform.lakehouse.has_snapshot(source.name, read):
            untold.append(read)
            continue
        changed = changed_days(platform, source.name, source.revisions, read, snapshot_id)
        if not changed:
            continue
        for key, plan in plans.items():
            days = _days(target, key)
            if plan.source_snapshot_id == read and (because := _read_from(days, plan.warm_up_days, changed)):
                found[part_of(key)][days] |= because
    return Stale(tuple(_by_values(target, found)), tuple(untold))


def changed_days(platform: Platform, table: str, revisions: Revisions, before: int, now: int) -> dict[date, ChangedDay]:
    """Return the days with another version in force at one snapshot of a source than at an earlier one.

    Only files that one of them has and the other has not are read for the days, and the rows of those days for their versions.
    """
    lakehouse = platform.lakehouse
    if not (days := lakehouse.days_of_other_files(table, revisions.valid, before, now)):
        return {}
    within = between(revisions.valid, min(days), max(days) + timedelta(days=1))
    then, today = (
        in_force(revisions, lakehouse.batches(table, snapshot_id, within, revisions.columns))
        for snapshot_id in (before, now)
    )
    return {
        day: ChangedDay(day, then.get(day), today.get(day))
        for day in sorted(days)
        if _what(then.get(day)) != _what(today.get(day))
    }


def _what(known: KnownVersion | None) -> tuple[KnownVersion, int] | None:
    """Return a version with its rows: some of them may have come, or been taken back, by a load of their own."""
    return None if known is None else (known, known.rows)


def _plans(platform: Platform, target: TargetTable) -> dict[str, Plan]:
    """Return the plan that each published chunk was computed with."""
    keys_of: dict[str, list[str]] = defaultdict(list)
    for key, run_id in platform.ledger.accepted(target.name).items():
        keys_of[run_id].append(key)
    found: dict[str, Plan] = {}
    for run_id, keys in keys_of.items():
        plans = platform.ledger.plans(platform.ledger.run(run_id))
        found |= {key: plans[key] for key in keys}
    return found


def _days(target: TargetTable, key: str) -> tuple[date, date]:
    start = first_day(target.chunking, key)
    return start, last_day(target.chunking, start)


def _read_from(
    days: tuple[date, date], warm_up_days: int, changed: Mapping[date, ChangedDay]
) -> dict[date, ChangedDay]:
    """Return the changed days that a chunk of these days reads."""
    first = days[0] - timedelta(days=warm_up_days)
    return {day: one for day, one in changed.items() if first <= day <= days[1]}


def _by_values(target: TargetTable, found: Mapping[str, _Reasons]) -> Iterable[Stretch]:
    """Yield the stretches of each value or bucket, those of the same days and reasons together."""
    values: dict[Stretch, list[str]] = defaultdict(list)
    for part, reasons in sorted(found.items()):
        for stretch in _joined(reasons):
            values[stretch].append(part)
    for stretch, parts in values.items():
        yield stretch if parts == [""] or set(parts) == set(target.parts) else replace(stretch, values=tuple(parts))


def _joined(found: _Reasons) -> Iterable[Stretch]:
    """Yield ranges of days without a gap, each with the reasons of all of its chunks."""
    start: date | None = None
    end = date.min
    because: dict[date, ChangedDay] = {}
    for (first, last), reasons in sorted(found.items()):
        if start is not None and first > end + timedelta(days=1):
            yield Stretch(DayRange.model_construct(start=start, end=end), tuple(because.values()))
            start = None
        if start is None:
            start, because = first, {}
        end = max(end, last)
        because |= reasons
    if start is not None:
        yield Stretch(DayRange.model_construct(start=start, end=end), tuple(because.values()))
