"""Which ranges of a topic are landed, and what is refused of them before anything is read.

Put here what follows from a question, from what brokers say and from what is landed, as plain data. How brokers are asked is
`extraction.brokers`'; how ranges are read and committed, `landing`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from backfill_assets.extraction.topic_state import TopicState
from manifests.errors import Problem
from manifests.log_gaps import place_of_gap, positions_in_words
from manifests.log_ranges import LogIdentity, LogRange, gaps, joined, overlaps, without
from resources.lakehouse.landed_logs import LandedLoad

FirstSince = Callable[[datetime, Iterable[int]], Mapping[int, int | None]]
"""By partition, the first offset of an instant on; None where there is none."""
_ASKED = "what is asked for"


@dataclass(frozen=True)
class Wanted:
    """What of a topic somebody wants landed: what is new, offsets by partition, or times.

    Attributes:
        new: whatever is not landed yet, of every partition.
        start, until: by partition the first offset, and the one that ends it and is not in it. A partition that only one of them
            has begins where landed offsets end, or ends where the log does.
        since, before: of times, the same.
    """

    new: bool = False
    start: Mapping[int, int] = field(default_factory=dict)
    until: Mapping[int, int] = field(default_factory=dict)
    since: datetime | None = None
    before: datetime | None = None


@dataclass(frozen=True)
class Resolved:
    """What of a topic is landed.

    Attributes:
        log: the topic.
        missing: what is read and landed.
        there: what was asked for and is landed already.
        gap: what lies between landed offsets and `missing`, and is left out by decision.
        new_partitions: the partitions of which no load says anything, where others have landed offsets.
        begins: where what was asked for begins, of each partition.
        compacted: whether the brokers remove records that have a newer one of the same key.
        problems: why none of it is landed.
    """

    log: LogIdentity
    missing: tuple[LogRange, ...]
    there: tuple[LogRange, ...]
    gap: tuple[LogRange, ...]
    new_partitions: tuple[int, ...]
    compacted: bool
    problems: tuple[Problem, ...]
    begins: Mapping[int, int] = field(default_factory=dict)


def landed_ranges(loads: Sequence[LandedLoad]) -> tuple[LogRange, ...]:
    """Return the ranges that loads have brought, joined."""
    return joined(one.range for load in loads for one in load.landed.ranges)


def resolve(
    wanted: Wanted,
    state: TopicState,
    loads: Sequence[LandedLoad],
    first_since: FirstSince,
    *,
    accepts_gap: bool = False,
    taken_back: Sequence[LogRange] = (),
) -> Resolved:
    """Return which ranges are landed, or every reason why they are not.

    Args:
        wanted: what is wanted.
        state: which log it is now, and which offsets it has.
        loads: what is landed.
        first_since: asks brokers of times.
        accepts_gap: whether offsets between landed ones and these may be left out.
        taken_back: offsets that were landed, or accepted as lost, with loads that were taken back, and are not there again.
    """
    landed = landed_ranges(loads)
    accepted = joined(one for load in loads for one in load.gap)
    if problems := [*_other_log(state, loads)]:
        return Resolved(state.log, (), (), (), (), state.is_compacted, tuple(problems))
    problems = [*_changed_log(state, landed), *_impossible(wanted, state)]
    if problems:
        return Resolved(state.log, (), (), (), (), state.is_compacted, tuple(problems))
    begun = _begun(loads)
    each = list(_asked(wanted, state, landed, begun, accepted, first_since, taken_back, accepts_gap=accepts_gap))
    asked = joined(each)
    missing = without(asked, landed)
    there = overlaps([*joined(landed), *asked])
    new = tuple(sorted(set(state.partitions) - set(begun))) if landed else ()
    gap = without(gaps([*landed, *missing]), accepted)
    problems += _passed(state, missing)
    if accepts_gap:
        wanted_of = {one.partition for one in each}
        before = [one for one in _left_before(loads, taken_back, missing) if one.partition in wanted_of]
        gap = joined([*gap, *without([*before, *left_of_beginnings(loads, taken_back, missing)], accepted)])
    else:  # what was taken back since, or was never landed, is no gap that this load makes
        before = [*left_of_beginnings(loads, taken_back, missing)]
        problems += [
            _gap(one, state, loads, missing) for one in without([*without(gap, gaps(landed)), *before], accepted)
        ]
        gap = ()
    known = _first_of(taken_back)
    begins = {one: known.get(one, 0) if landed else now.low for one, now in state.partitions.items()}
    # a partition that was added begins there, also where nothing of it was found that was asked for
    begins |= {
        one.partition: one.start
        for one in sorted(each, reverse=True)
        if one.partition not in new or one.start < one.until
    }
    return Resolved(state.log, missing, there, gap if missing else (), new, state.is_compacted, tuple(problems), begins)


def _begun(loads: Sequence[LandedLoad]) -> dict[int, int]:
    """Return where each partition begins of which loads say something, also those of which they have found nothing to land."""
    found: dict[int, int] = {}
    for one in (one.range for load in loads for one in load.landed.ranges):
        found[one.partition] = min(one.start, found.get(one.partition, one.start))
    return found


def left_of_beginnings(
    loads: Sequence[LandedLoad], taken_back: Sequence[LogRange], missing: Sequence[LogRange]
) -> tuple[LogRange, ...]:
    """Return what lies before the first offset that is landed now, of partitions of which nothing was landed, where others have landed offsets.

    Such a partition begins where a load says so. Of one that no load knows it is where those began that were taken back, and 0
    without any: it was added, whatever retention has taken of it. Where nothing at all is landed, each begins with what is landed now.
    """
    landed, begun = landed_ranges(loads), _begun(loads)
    had = {one.partition for one in landed}
    found = [one for one in _left_before(loads, (), missing) if one.partition not in had]
    known = _first_of(taken_back)
    for partition, first in _first_of(missing).items():
        start = known.get(partition, 0)
        if landed and partition not in begun and start < first:
            found.append(LogRange(partition, start, first))
    return joined(found)


def _first_of(ranges: Sequence[LogRange]) -> dict[int, int]:
    """Return the first offset of each partition that some ranges are of."""
    return {one.partition: one.start for one in sorted(ranges, reverse=True)}


def _left_before(
    loads: Sequence[LandedLoad], taken_back: Sequence[LogRange], missing: Sequence[LogRange]
) -> tuple[LogRange, ...]:
    """Return what lies before all that is landed, or is landed now, of partitions that began earlier: a plan misses that.

    A partition began with what was taken back since, or where a load has found it without landing anything of it.
    """
    there = [*landed_ranges(loads), *missing]
    began = [*_begun(loads).items(), *((one.partition, one.start) for one in taken_back)]
    found = []
    for partition in {one.partition for one in there}:
        first = min(one.start for one in there if one.partition == partition)
        start = min((start for one, start in began if one == partition), default=first)
        if start < first:
            found.append(LogRange(partition, start, first))
    return joined(found)


def _other_log(state: TopicState, loads: Sequence[LandedLoad]) -> Iterator[Problem]:
    """Say that the topic is not the one whose records are landed."""
    for log in sorted({load.landed.log for load in loads}):
        if log == state.log:
            continue
        if log.server != state.log.server:
            what = (
                f"the brokers are those of cluster {state.log.server}, and records of cluster {log.server} are landed"
            )
            fix = "correct the addresses; records of a cluster that has taken the other's place are landed in a table of their own"
        elif log.name != state.log.name:
            what = f"the topic is {state.log.name}, and records of {log.name} are landed"
            fix = "correct the declaration, or land this topic in a table of its own"
        else:
            what = f"{log.name} was made anew: its id is {state.log.incarnation}, and records of {log.incarnation} are landed"
            fix = "land it in a table of its own: its offsets begin again, and say nothing about those that are landed"
        yield Problem(what, "offsets are those of one topic of one cluster", fix)


def _changed_log(state: TopicState, landed: Sequence[LogRange]) -> Iterator[Problem]:
    """Say which partitions are gone, or end before offsets that are landed."""
    ends = {one.partition: one.until for one in landed}
    for partition, until in sorted(ends.items()):
        now = state.partitions.get(partition)
        if now is None:
            yield Problem(
                f"{state.log.name} has no partition {partition} any more, of which offsets until {until:,} are landed",
                "a topic never loses a partition",
                "find out what has become of it; what is landed stays as it is",
            )
        elif now.high < until:
            yield Problem(
                f"partition {partition} of {state.log.name} ends at {now.high:,}, and offsets until {until:,} are landed",
                "a log grows: one that is shorter was truncated, and its offsets are other records now",
                "find out which records were lost; land what the topic is now in a table of its own",
            )


def _impossible(wanted: Wanted, state: TopicState) -> Iterator[Problem]:
    """Say what of a question no topic of these partitions and offsets has."""
    for partition in sorted({*wanted.start, *wanted.until} - set(state.partitions)):
        yield Problem(
            f"{state.log.name} has no partition {partition}",
            f"it has {len(state.partitions)}, from 0 on",
            "correct the partition, which stands before the colon",
        )
    for partition, until in sorted(wanted.until.items()):
        now = state.partitions.get(partition)
        if now is not None and until > now.stable:
            rest = f"; until {now.high:,}, transactions are open" if now.high > now.stable else ""
            yield Problem(
                f"partition {partition} of {state.log.name} is wanted until {until:,}, and ends at {now.stable:,}{rest}",
                "what is landed is over: a range ends where every transaction is",
                "wait, or end it there",
            )
    for partition in sorted(set(wanted.start) & set(wanted.until)):
        if wanted.start[partition] > wanted.until[partition]:
            yield Problem(
                f"partition {partition} is wanted from {wanted.start[partition]:,} until {wanted.until[partition]:,}",
                "a range ends where it begins, or later",
                "correct one of them",
            )
    if wanted.since is not None and wanted.before is not None and wanted.since >= wanted.before:
        what = f"wanted are records from {wanted.since:%Y-%m-%d %H:%M} on, before {wanted.before:%Y-%m-%d %H:%M}"
        yield Problem(what, "a range ends after it begins", "correct one of them")


def _asked(
    wanted: Wanted,
    state: TopicState,
    landed: Sequence[LogRange],
    begun: Mapping[int, int],
    accepted: Sequence[LogRange],
    first_since: FirstSince,
    taken_back: Sequence[LogRange],
    *,
    accepts_gap: bool,
) -> Iterator[LogRange]:
    """Yield the ranges that are asked for, whether or not they are landed, or there; of a partition without one, where it would begin."""
    begins = {one: _next(one, state, landed, begun, accepts_gap=accepts_gap) for one in state.partitions}
    if wanted.new:
        first = {
            partition: min(
                (one.start for one in (*landed, *taken_back) if one.partition == partition), default=begins[partition]
            )
            for partition in state.partitions
        }
        whole = [LogRange(one, min(first[one], now.stable), now.stable) for one, now in state.partitions.items()]
        left_out = [*accepted]
        if accepts_gap:  # what retention has taken is the gap that is accepted
            left_out += [LogRange(one, 0, now.low) for one, now in state.partitions.items()]
        yield from without(whole, without(left_out, landed))
        return
    since = {} if wanted.since is None else first_since(wanted.since, state.partitions)
    before = {} if wanted.before is None else first_since(wanted.before, state.partitions)
    of_times = wanted.since is not None or wanted.before is not None
    for partition, now in sorted(state.partitions.items()):
        if not of_times and partition not in wanted.start and partition not in wanted.until:
            continue
        start = wanted.start.get(partition, begins[partition])
        if wanted.since is not None:
            found = since.get(partition)
            start = now.stable if found is None else found
        until = wanted.until.get(partition, now.stable)
        if (found := before.get(partition)) is not None:
            until = min(found, now.stable)
        yield LogRange(partition, start, max(start, until))


def _next(
    partition: int, state: TopicState, landed: Sequence[LogRange], begun: Mapping[int, int], *, accepts_gap: bool
) -> int:
    """Return where a partition goes on: after what is landed of it, where a load has found nothing, at 0 if it is new, or where the log begins."""
    own = [one.until for one in landed if one.partition == partition]
    if not own and partition in begun:
        own = [begun[partition]]
    low = state.partitions[partition].low
    if own:
        return max(own + ([low] if accepts_gap else []))
    return 0 if landed and not accepts_gap else low


def _passed(state: TopicState, missing: Sequence[LogRange]) -> Iterator[Problem]:
    """Say which of the wanted offsets retention has taken."""
    for partition, now in sorted(state.partitions.items()):
        gone = without([one for one in missing if one.partition == partition], [LogRange(partition, now.low, 1 << 62)])
        if gone:
            yield Problem(
                f"{state.log.name}: {positions_in_words(gone)} cannot be landed: retention has removed them, and partition {partition} "
                f"begins with offset {now.low:,} now",
                "a range is landed whole",
                f"land them from an archive (--archive PLACE), or begin with offset {now.low:,}; where landed offsets end before "
                "that, --accept-gap REASON leaves out what lies between, on record",
            )


def _gap(gap: LogRange, state: TopicState, loads: Sequence[LandedLoad], missing: Sequence[LogRange]) -> Problem:
    """Say which offsets a landing would leave out, and what lies around them."""
    there = {load.load_id: [one.range for one in load.landed.ranges] for load in loads}
    low = state.partitions[gap.partition].low
    begins = f"; the topic begins with offset {low:,} there by now" if low > gap.start else ""
    offsets = f"--from-offsets {gap.partition}:{max(gap.start, low)} --until-offsets {gap.partition}:{gap.until}"
    again = f" ({offsets})" if low < gap.until else ""
    return Problem(
        f"{state.log.name}: {positions_in_words([gap])} would be missing, {place_of_gap(gap, there | {_ASKED: missing})}{begins}",
        "a log's table has no gaps but those that somebody has accepted",
        f"land them first{again}, from an archive what the topic does not have any more (--archive PLACE); if nobody has them, "
        "leave them out, on record: --accept-gap REASON",
    )


def behind(state: TopicState, loads: Sequence[LandedLoad]) -> Mapping[int, int]:
    """Return by partition how many offsets are there that are not landed."""
    landed = [one.range for load in loads for one in load.landed.ranges]
    whole = [LogRange(one, now.low, max(now.low, now.stable)) for one, now in state.partitions.items()]
    left = without(whole, landed)
    return {one: sum(r.until - r.start for r in left if r.partition == one) for one in state.partitions}


def gone(state: TopicState, loads: Sequence[LandedLoad]) -> tuple[LogRange, ...]:
    """Return what lies after landed offsets, is not landed and is in the topic no more; but for what somebody has accepted."""
    landed = [one.range for load in loads for one in load.landed.ranges]
    ends = {one.partition: one.until for one in joined(landed)}  # in order: the last range of a partition counts
    lost = [
        LogRange(one, end, state.partitions[one].low)
        for one, end in ends.items()
        if one in state.partitions and end < state.partitions[one].low
    ]
    return without(lost, joined(one for load in loads for one in load.gap))
