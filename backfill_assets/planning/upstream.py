"""Targets that other targets are computed from: which of their runs made what is read, and whether that is still what is accepted.

Put here what the ledger says of them. A target is read at one snapshot of its main, as its readers see it: a publication is
one commit, so that none is ever half in it. Which of its days are read is `manifests.further_sources`'.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_then import accepted_then
from manifests.chunks import first_day, in_words, last_day
from manifests.errors import PlanRefused, Problem
from manifests.estimates import ZONE_MARGIN
from manifests.facts import SourceState
from manifests.further_sources import UpstreamRun, touched_days
from manifests.model import RunManifest
from manifests.plan import Plan, PlannedChunk
from resources.ledger.facade import RunRecord


@dataclass(frozen=True)
class Superseded:
    """Chunks of an upstream target that a run has read, and that another run holds by now, or none (`by` is empty).

    Attributes:
        table: the upstream target.
        chunks: its chunks.
        read: the run that held them when they were read; empty where none did.
        by: the run that holds them today.
        reading: the chunks of the run that were computed from them.
        margin: whether those have read them in the day of margin for time zones alone, and nothing of their own days is superseded.
    """

    table: str
    chunks: tuple[str, ...]
    read: str
    by: str
    reading: tuple[str, ...] = ()
    margin: bool = False

    def describe(self) -> str:
        """Say in words what was read, for which chunks, and what there is now."""
        now = f"run '{self.by}' holds it now" if self.by else "no run holds it any more"
        read = f"as run '{self.read}' published it" if self.read else "when no run held it"
        said = (
            f"{in_words(list(self.chunks))} of {self.table} was read {read}; {now} (read for {in_words(self.reading)}"
        )
        return f"{said}, in the day of margin for time zones alone)" if self.margin else f"{said})"


def upstream_of(platform: Platform, table: str, snapshot_id: int, first: date, last: date) -> tuple[UpstreamRun, ...]:
    """Return the runs that held the chunks of a target with days of a range when it was read; none of what is no target.

    Raises:
        EnvironmentRefused: if the ledger does not say so yet: a change that led to the snapshot is not on record.
        PlanRefused: if the snapshot was never what readers of the target see.
    """
    target = platform.products.find_target(table)
    if target is None:
        return ()
    if snapshot_id not in platform.lakehouse.history(table):
        raise PlanRefused(
            Problem(
                f"snapshot {snapshot_id} of {table} is not in the history of its main",
                "a target is read as it was accepted, and never as a candidate",
                "publish the run first, or leave the snapshot out: what is accepted is read",
            )
        )
    return by_run(_in_range(target, accepted_then(platform, table, snapshot_id), first, last))


def upstream_of_first(
    platform: Platform, target: TargetTable, manifest: RunManifest, warm_up: int, source: SourceState
) -> tuple[UpstreamRun, ...]:
    """Return the runs that hold what is read of a target's first source, where that is a target itself."""
    publish, asked = manifest.target.publish_range, manifest.warm_up
    days = timedelta(days=max(warm_up, 0 if asked is None else asked.days)) + ZONE_MARGIN
    first = date.min if target.look_back_columns else publish.start - days
    return upstream_of(platform, target.source, source.snapshot_id, first, publish.end + ZONE_MARGIN)


def require_policy_of_upstream(platform: Platform, target: TargetTable) -> None:
    """Refuse to read a target of which the policy says nothing, although it says something of what that is computed from.

    What was published there before a subject was erased, a column was masked or rows grew too old would else be read on.

    Raises:
        PlanRefused: naming each such target, and what the policy speaks of.
    """
    policy, problems = platform.policy, []
    for name in target.every_source:
        if platform.products.find_target(name) is None or policy.source_rule(name, target.name) is not None:
            continue
        spoken_of = [origin for origin, reader in origins(platform, name) if policy.source_rule(origin, reader)]
        if spoken_of:
            problems.append(
                Problem(
                    f"{name} is computed from {', '.join(dict.fromkeys(spoken_of))}, of which the policy says what may be used; "
                    f"of {name} as a source of {target.name} it says nothing",
                    "old data is used as policy allows today, by whichever table it comes",
                    f"have the policy say it of {name}, too: who is erased, which columns are masked, how long rows are kept",
                )
            )
    if problems:
        raise PlanRefused(problems)


def origins(platform: Platform, name: str) -> Iterator[tuple[str, str]]:
    """Yield each table that a target is computed from, by way of others too, with the target that reads it."""
    target = platform.products.find_target(name)
    for origin in () if target is None else target.every_source:
        yield origin, name
        yield from origins(platform, origin)


def by_run(holders: Mapping[str, str]) -> tuple[UpstreamRun, ...]:
    """Return runs by name, each with its chunks in order."""
    runs: dict[str, list[str]] = {}
    for chunk, run_id in sorted(holders.items()):
        runs.setdefault(run_id, []).append(chunk)
    return tuple(UpstreamRun(run_id, tuple(chunks)) for run_id, chunks in sorted(runs.items()))


def _in_range(target: TargetTable, holders: Mapping[str, str], first: date, last: date) -> dict[str, str]:
    return {chunk: run_id for chunk, run_id in holders.items() if touches_days(target, chunk, first, last)}


def touches_days(target: TargetTable, chunk: str, first: date, last: date) -> bool:
    """Return whether a chunk of a target has a day of a range, both inclusive."""
    begins = first_day(target.chunking, chunk)
    return begins <= last and last_day(target.chunking, begins) >= first


_TICK = timedelta(microseconds=1)


def days_read(plan: Plan) -> dict[str, tuple[date, date]]:
    """Return the first and the last day, both inclusive, that a plan reads of each source."""
    begins = date.min if plan.look_back is not None else plan.read_from.date()
    publish = plan.publish_range
    found = {plan.source: (begins, (plan.read_until - _TICK).date())}  # until is exclusive
    return found | {one.table: touched_days(one, publish.start, publish.end) for one in plan.sources}


def days_of_chunk(target: TargetTable, plan: Plan, table: str, key: str) -> tuple[date, date]:
    """Return the first and the last day, both inclusive, that a plan reads of a source for one chunk."""
    begins = first_day(target.chunking, key)
    return _days_for(plan, table, days_read(plan)[table][0], begins, last_day(target.chunking, begins))


def _days_for(plan: Plan, table: str, earliest: date, begins: date, ends: date) -> tuple[date, date]:
    """Return the same for a chunk of these days, where `earliest` is the first day that is read for any."""
    for one in plan.sources:
        if one.table == table:
            return touched_days(one, begins, ends)
    return earliest if earliest == date.min else earliest + (begins - plan.publish_range.start), ends + ZONE_MARGIN


def superseded_of(platform: Platform, record: RunRecord) -> list[Superseded]:
    """Return the same of the chunks that a run holds today, by the plans that they were computed from; none of one that holds none."""
    whole = platform.ledger.with_plan(record)
    mine = {chunk for chunk, run_id in platform.ledger.accepted(record.target).items() if run_id == record.run_id}
    keys_of: dict[str, set[str]] = {}
    plans: dict[str, Plan] = {}
    for key, plan in platform.ledger.plans(whole).items():
        if key in mine:
            plans[plan.hash] = plan
            keys_of.setdefault(plan.hash, set()).add(key)
    found: dict[tuple[str, str, str, bool], Superseded] = {}
    for number, plan in plans.items():
        for one in superseded(platform, plan, keys_of[number]):
            place = one.table, one.read, one.by, one.margin
            other = found.get(place, one)
            chunks, reading = {*one.chunks, *other.chunks}, {*one.reading, *other.reading}
            found[place] = replace(one, chunks=tuple(sorted(chunks)), reading=tuple(sorted(reading)))
    return list(found.values())


def superseded(platform: Platform, plan: Plan, keys: Collection[str] | None = None) -> Iterator[Superseded]:
    """Yield what has become of the upstream targets that chunks of a plan (of `keys`, if given) read, where others hold it by now.

    A chunk is computed from its own days, those of its warm-up, look-back or window, and the day of margin around them. That is read
    because a local day lies off the UTC day of the same date: of instants, a row in it may count. Of dates by which the upstream
    target itself is cut none does. Where only the margin is superseded it is said to be that. Which of its chunks hold rows of a day by
    another date of theirs is not known: there each chunk may have read all that was in reach.
    """
    mine = [chunk for chunk in plan.chunks if keys is None or chunk.key in keys]
    changed = list(_changed(platform, plan))
    found = [found for one in changed if (found := _read_by(plan, one, mine, in_margin=False)) is not None]
    yield from found
    told = {key for one in found for key in one.reading}
    rest = [chunk for chunk in mine if chunk.key not in told]  # the others read their margin anew with their days
    for one in changed:
        if _margin_counts(platform, plan, one) and (of_margin := _read_by(plan, one, rest, in_margin=True)) is not None:
            yield of_margin


@dataclass(frozen=True)
class _Changed:
    """Chunks of an upstream target that one run held when they were read, and another holds today; in the order of their days.

    `by_other_dates` says that they are read by other dates than those by which the target is cut into chunks.
    """

    target: TargetTable
    by_other_dates: bool
    earliest: date
    was: str
    by: str
    chunks: tuple[str, ...]


def _changed(platform: Platform, plan: Plan) -> Iterator[_Changed]:
    read = {plan.source: plan.upstream} | {one.table: one.upstream for one in plan.sources}
    for table, (first, last) in days_read(plan).items():
        target = platform.products.find_target(table)
        if target is None:
            continue
        then = {chunk: one.run_id for one in read[table] for chunk in one.chunks}
        now = _in_range(target, platform.ledger.accepted(table), first, last)
        changed: dict[tuple[str, str], list[str]] = {}
        for chunk in sorted(then.keys() | now.keys(), key=lambda key: (first_day(target.chunking, key), key)):
            if then.get(chunk) != now.get(chunk):
                changed.setdefault((then.get(chunk, ""), now.get(chunk, "")), []).append(chunk)
        for (was, by), chunks in sorted(changed.items()):
            yield _Changed(target, _by_other_dates(platform, plan, target), first, was, by, tuple(chunks))


def _margin_counts(platform: Platform, plan: Plan, changed: _Changed) -> bool:
    """Whether a row in the day of margin may count: not where rows have dates, and lie in the chunks by these."""
    target = platform.products.find_target(plan.target)
    is_first = plan.source == changed.target.name
    by_dates = plan.source_has_dates and target is not None and target.window_column == changed.target.day_column
    return not (is_first and by_dates)


def _read_by(plan: Plan, changed: _Changed, mine: Iterable[PlannedChunk], *, in_margin: bool) -> Superseded | None:
    """Return which of these chunks were computed from which of the changed ones, with the day of margin or without; None of none."""
    table, cut = changed.target.name, changed.target.chunking
    if changed.by_other_dates:
        reading = [] if in_margin else [chunk.key for chunk in mine]
        return (
            Superseded(table, tuple(sorted(changed.chunks)), changed.was, changed.by, tuple(reading))
            if reading
            else None
        )
    begin = [first_day(cut, key) for key in changed.chunks]
    end = [last_day(cut, day) for day in begin]
    margin = timedelta(0) if in_margin else _margin(plan, table)
    reading = []
    places: set[tuple[int, int]] = set()
    for chunk in mine:
        first, last = _days_for(plan, table, changed.earliest, chunk.start, chunk.end)
        first, last = first if first == date.min else first + margin, last - margin
        place = bisect_left(end, first), bisect_right(begin, last)
        if place[0] < place[1]:
            reading.append(chunk.key)
            places.add(place)
    read = {key for low, high in _joined(places) for key in changed.chunks[low:high]}
    return (
        Superseded(table, tuple(sorted(read)), changed.was, changed.by, tuple(reading), in_margin) if reading else None
    )


def _by_other_dates(platform: Platform, plan: Plan, read: TargetTable) -> bool:
    further = next((one for one in plan.sources if one.table == read.name), None)
    if further is not None:
        return further.has_dates and further.day is None and further.time_column != read.day_column
    target = platform.products.find_target(plan.target)
    return plan.source_has_dates and target is not None and target.window_column not in {"", read.day_column}


def _margin(plan: Plan, table: str) -> timedelta:
    """Return how far beyond what it needs a plan reads a source on both sides, for time zones."""
    further = next((one for one in plan.sources if one.table == table), None)
    exact = further is not None and (further.has_dates or further.day is not None)
    return timedelta(0) if exact else ZONE_MARGIN


def _joined(places: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges of places, the second exclusive, without those that overlap: nothing is gone through twice."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(places):
        if found and low <= found[-1][1]:
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found
