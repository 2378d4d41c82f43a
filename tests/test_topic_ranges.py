"""Which ranges of a topic are landed, and what is refused: plain data, no broker."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from topic_world import TOPIC

from backfill_assets.cli.logs import _tell_resolved
from backfill_assets.extraction.topic_state import PartitionState, TopicState
from backfill_assets.ingestion.landing import first_positions, in_pieces
from backfill_assets.ingestion.topic_ranges import Resolved, Wanted, behind, gone, resolve
from manifests.log_pins import FoundLog, wanted_ranges
from manifests.log_ranges import (
    LandedLog,
    LandedRange,
    LogIdentity,
    LogKind,
    LogRange,
    going_on,
    joined,
    overlaps,
    positions,
    without,
)
from resources.lakehouse.landed_logs import LandedLoad, missing_without

LOG = LogIdentity(LogKind.KAFKA, "cluster", "orders", "id-1")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def state(*offsets: tuple[int, int, int], log: LogIdentity = LOG) -> TopicState:
    return TopicState(log, {number: PartitionState(*one) for number, one in enumerate(offsets)}, False)


def load(*ranges: tuple[int, int, int], log: LogIdentity = LOG, gap: tuple[LogRange, ...] = ()) -> LandedLoad:
    landed = LandedLog(log, tuple(LandedRange(LogRange(*one), one[2] - one[1]) for one in ranges), gap)
    return LandedLoad("+".join(".".join(map(str, one)) for one in ranges), 1, NOW, landed, "somebody")


def never(_: datetime, partitions: Iterable[int]) -> Mapping[int, int | None]:
    raise AssertionError("nobody asked for times")


def resolved(
    wanted: Wanted,
    now: TopicState,
    *loads: LandedLoad,
    accepts_gap: bool = False,
    taken_back: tuple[LogRange, ...] = (),
) -> Resolved:
    return resolve(wanted, now, loads, never, accepts_gap=accepts_gap, taken_back=taken_back)


def said(found: Resolved) -> str:
    assert found.missing == () or found.problems
    return " / ".join(one.what for one in found.problems)


NEW = Wanted(new=True)


def test_what_is_new_begins_where_the_log_does_and_then_where_landed_offsets_end() -> None:
    assert resolved(NEW, state((5, 9, 12), (0, 0, 0))).missing == (LogRange(0, 5, 9),)
    found = resolved(NEW, state((0, 9, 9), (0, 4, 4)), load((0, 0, 6)))
    assert (found.missing, found.there, found.new_partitions) == (
        (LogRange(0, 6, 9), LogRange(1, 0, 4)),
        (LogRange(0, 0, 6),),
        (1,),
    )


def test_an_overlap_is_cut_off() -> None:
    found = resolved(Wanted(start={0: 2}, until={0: 9}), state((0, 20, 20)), load((0, 0, 4)), load((0, 6, 7)))
    assert (found.missing, found.there) == (
        (LogRange(0, 4, 6), LogRange(0, 7, 9)),
        (LogRange(0, 2, 4), LogRange(0, 6, 7)),
    )


def test_a_partition_that_has_one_end_only_gets_the_other() -> None:
    now = state((0, 20, 20), (3, 8, 8), (0, 5, 5))
    found = resolved(Wanted(start={1: 4}, until={0: 9}), now)
    assert found.missing == (LogRange(0, 0, 9), LogRange(1, 4, 8))


@pytest.mark.parametrize(
    ("now", "loads", "wanted", "what"),
    [
        (state((0, 9, 9), log=LogIdentity(LogKind.KAFKA, "cluster", "orders", "id-2")), [load((0, 0, 4))], NEW, "orders was made anew: its id is id-2, and records of id-1 are landed"),
        (state((0, 9, 9), log=LogIdentity(LogKind.KAFKA, "other", "orders", "id-1")), [load((0, 0, 4))], NEW, "the brokers are those of cluster other, and records of cluster cluster are landed"),
        (state((0, 9, 9), log=LogIdentity(LogKind.KAFKA, "cluster", "sales", "id-9")), [load((0, 0, 4))], NEW, "the topic is sales, and records of orders are landed"),
        (state((0, 3, 3)), [load((0, 0, 4))], NEW, "partition 0 of orders ends at 3, and offsets until 4 are landed"),
        (state((0, 9, 9)), [load((0, 0, 4), (1, 0, 2))], NEW, "orders has no partition 1 any more, of which offsets until 2 are landed"),
        (state((6, 9, 9)), [load((0, 0, 4))], NEW, "orders: offsets 4 to 5 of partition 0 (2) cannot be landed: retention has removed them, and partition 0 begins with offset 6 now"),
        (state((3, 9, 9)), [], Wanted(start={0: 1}), "orders: offsets 1 to 2 of partition 0 (2) cannot be landed: retention has removed them"),
        (state((0, 9, 9)), [load((0, 0, 4))], Wanted(start={0: 6}), "orders: offsets 4 to 5 of partition 0 (2) would be missing, between load 0.0.4, ending with 3, and what is asked for, beginning with 6"),
        (state((0, 9, 9)), [load((0, 4, 6))], Wanted(until={0: 2}, start={0: 0}), "orders: offsets 2 to 3 of partition 0 (2) would be missing, between what is asked for, ending with 1, and load 0.4.6, beginning with 4"),
        (state((0, 9, 12)), [], Wanted(until={0: 10}), "partition 0 of orders is wanted until 10, and ends at 9; until 12, transactions are open"),
        (state((0, 9, 9)), [], Wanted(start={1: 0}, until={0: 99}), "orders has no partition 1 / partition 0 of orders is wanted until 99"),
        (state((0, 9, 9)), [], Wanted(start={0: 5}, until={0: 2}), "partition 0 is wanted from 5 until 2"),
        (state((0, 9, 9)), [], Wanted(since=NOW, before=NOW), "wanted are records from 2026-01-01 00:00 on, before 2026-01-01 00:00"),
    ],
)  # fmt: skip
def test_what_cannot_be_landed_is_said_by_name(
    now: TopicState, loads: list[LandedLoad], wanted: Wanted, what: str
) -> None:
    assert what in said(resolved(wanted, now, *loads))


def test_a_gap_is_left_out_by_decision_and_is_no_gap_of_the_next_landing() -> None:
    now = state((6, 9, 9))
    found = resolved(NEW, now, load((0, 0, 4)), accepts_gap=True)
    assert (found.missing, found.gap, found.problems) == ((LogRange(0, 6, 9),), (LogRange(0, 4, 6),), ())
    later = resolved(NEW, state((6, 12, 12)), load((0, 0, 4)), load((0, 6, 9), gap=found.gap))
    assert (later.missing, later.gap, later.problems) == ((LogRange(0, 9, 12),), (), ())


def test_what_retention_has_taken_of_a_new_partition_is_on_record_once_somebody_accepts_it() -> None:
    now = state((0, 9, 9), (5, 9, 9))
    assert said(resolved(NEW, now, load((0, 0, 9)))).startswith(
        "orders: offsets 0 to 4 of partition 1 (5) cannot be landed: retention has removed them"
    )
    found = resolved(NEW, now, load((0, 0, 9)), accepts_gap=True)
    assert (found.missing, found.gap, found.problems) == ((LogRange(1, 5, 9),), (LogRange(1, 0, 5),), ())
    later = resolved(
        NEW, state((0, 9, 9), (7, 12, 12)), load((0, 0, 9)), load((1, 5, 9), gap=found.gap), accepts_gap=True
    )
    assert (later.missing, later.gap, later.problems) == ((LogRange(1, 9, 12),), (), ())


def test_what_was_taken_back_is_new_again() -> None:
    assert resolved(NEW, state((0, 9, 9)), load((0, 0, 3)), load((0, 5, 9))).missing == (LogRange(0, 3, 5),)


def test_times_say_the_first_offset_from_each_on() -> None:
    answers = {NOW: {0: 3, 1: None, 2: 0}, NOW + timedelta(hours=1): {0: 7, 1: None, 2: None}}
    wanted = Wanted(since=NOW, before=NOW + timedelta(hours=1))
    now = state((0, 9, 9), (0, 5, 5), (0, 4, 6))
    found = resolve(wanted, now, [], lambda instant, _: answers[instant])
    assert found.missing == (LogRange(0, 3, 7), LogRange(2, 0, 4))


def test_a_partition_of_which_a_time_has_no_record_begins_where_that_time_would_and_goes_on_there() -> None:
    month = timedelta(days=31)
    # partition 1 has a hundred records from before, and partition 2 some from before and after
    answers = {
        NOW: {0: 3, 1: None, 2: 40},
        NOW + month: {0: 7, 1: None, 2: 40},
        NOW + 2 * month: dict.fromkeys((0, 1, 2)),
    }
    now = state((0, 9, 9), (0, 100, 100), (0, 50, 50))
    first = resolve(Wanted(since=NOW, before=NOW + month), now, [], lambda instant, _: answers[instant])
    assert (first.missing, first.begins) == ((LogRange(0, 3, 7),), {0: 3, 1: 100, 2: 40})
    done = load((0, 3, 7), (1, 100, 100), (2, 40, 40))
    for wanted in (Wanted(since=NOW + month, before=NOW + 2 * month), NEW):
        # retention has passed over what nobody has asked for
        later = state((3, 9, 9), (90, 104, 104), (35, 50, 50))
        answers[NOW + month][1] = 100
        found = resolve(wanted, later, [done], lambda instant, _: answers[instant])
        assert found.missing == (LogRange(0, 7, 9), LogRange(1, 100, 104), LogRange(2, 40, 50))
        assert (found.problems, found.gap, found.new_partitions) == ((), (), ())


def test_a_partition_that_was_added_begins_at_0_also_where_others_are_landed_meanwhile() -> None:
    found = resolved(Wanted(until={0: 9}), state((0, 9, 9), (5, 9, 9)), load((0, 0, 4)))
    assert (found.missing, found.begins[1]) == ((LogRange(0, 4, 9),), 0)
    of_both = [load((0, 0, 4)), load((0, 4, 9), (1, 0, 0))]
    assert "orders: offsets 0 to 4 of partition 1 (5) cannot be landed: retention has removed them" in said(
        resolved(NEW, state((0, 9, 9), (5, 9, 9)), *of_both)
    )


@pytest.mark.parametrize("wanted", [Wanted(start={0: 9, 1: 4}), Wanted(since=NOW)])
@pytest.mark.parametrize("of_new", [(), ((1, 0, 0),)])
def test_a_partition_that_was_added_is_landed_from_its_beginning_or_what_is_left_out_is_a_gap(
    wanted: Wanted, of_new: tuple[tuple[int, int, int], ...]
) -> None:
    now, there = state((0, 12, 12), (0, 9, 9)), load((0, 0, 9), *of_new)
    answers = {0: 9, 1: 4}
    (problem,) = resolve(wanted, now, [there], lambda *_: answers).problems
    assert problem.what.startswith(
        "orders: offsets 0 to 3 of partition 1 (4) would be missing, before what is asked for, beginning with 4"
    )
    found = resolve(wanted, now, [there], lambda *_: answers, accepts_gap=True)
    assert (found.missing, found.gap, found.problems) == (
        (LogRange(0, 9, 12), LogRange(1, 4, 9)),
        (LogRange(1, 0, 4),),
        (),
    )


@pytest.mark.parametrize("accepts_gap", [False, True])
def test_a_partition_that_was_added_begins_at_0_also_where_a_time_has_found_nothing_of_it(accepts_gap: bool) -> None:
    now, there = state((0, 12, 12), (0, 2, 2)), load((0, 0, 9))
    found = resolve(Wanted(since=NOW), now, [there], lambda *_: {0: 9, 1: None}, accepts_gap=accepts_gap)
    assert (found.missing, found.gap, found.problems) == ((LogRange(0, 9, 12),), (), ())
    assert found.begins[1] == 0
    later = resolved(NEW, state((0, 12, 12), (0, 5, 5)), there, load((0, 9, 12), (1, found.begins[1], 0)))
    assert later.missing == (LogRange(1, 0, 5),)


def test_a_partition_of_which_everything_was_taken_back_begins_where_it_did() -> None:
    """It is none that was added: retention had taken what was before when the topic was landed first."""
    now, there, back = state((0, 12, 12), (3, 9, 9)), load((0, 0, 9)), (LogRange(1, 3, 9),)
    for accepts_gap in (False, True):
        found = resolved(NEW, now, there, accepts_gap=accepts_gap, taken_back=back)
        assert (found.missing, found.gap, found.problems) == ((LogRange(0, 9, 12), LogRange(1, 3, 9)), (), ())
    left = resolved(Wanted(until={0: 12}), now, there, taken_back=back)
    assert left.begins[1] == 3
    assert (
        "orders: offsets 3 to 4 of partition 1 (2) would be missing, before what is asked for, beginning with 5"
        in said(resolved(Wanted(start={1: 5}), now, there, taken_back=back))
    )


def test_a_gap_that_was_accepted_with_a_load_that_was_taken_back_is_accepted_again() -> None:
    now, there = state((0, 9, 9), (5, 9, 9)), load((0, 0, 9))
    first = resolved(NEW, now, there, accepts_gap=True)
    back = joined(missing_without(load((1, 5, 9), gap=first.gap).landed))
    assert "orders: offsets 0 to 4 of partition 1 (5) cannot be landed: retention has removed them" in said(
        resolved(NEW, now, there, taken_back=back)
    )
    assert (
        "orders: offsets 0 to 4 of partition 1 (5) would be missing, before what is asked for, beginning with 5"
        in said(resolved(Wanted(start={1: 5}), now, there, taken_back=back))
    )
    again = resolved(NEW, now, there, accepts_gap=True, taken_back=back)
    assert (again.missing, again.gap, again.problems) == (first.missing, first.gap, ())


def test_how_far_behind_a_table_is_leaves_out_what_nobody_can_land() -> None:
    assert behind(state((4, 9, 12), (0, 0, 0)), [load((0, 0, 6))]) == {0: 3, 1: 0}


def test_what_retention_took_before_it_was_landed_is_gone_but_for_what_somebody_has_accepted() -> None:
    now = state((9, 9, 9), (2, 5, 5), (7, 8, 8))
    assert gone(now, [load((0, 0, 4), (1, 0, 3))]) == (LogRange(0, 4, 9),)  # of partition 2 nothing was landed ever
    assert gone(now, [load((0, 0, 4)), load((0, 9, 9), gap=(LogRange(0, 4, 6),))]) == (LogRange(0, 6, 9),)


RANGES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 50), st.integers(1, 20)).map(
        lambda one: LogRange(one[0], one[1], one[1] + one[2])
    ),
    min_size=1,
    max_size=8,
).map(joined)


@given(RANGES, st.integers(1, 60))
def test_loads_take_beginnings_and_come_to_all_of_it(ranges: tuple[LogRange, ...], most: int) -> None:
    left, rounds = ranges, 0
    while left:
        taken = first_positions(left, most)
        assert 0 < positions(taken) <= most
        for one in taken:  # nothing of its partition is left before it
            assert not any(
                other.partition == one.partition and other.start < one.start for other in without(left, taken)
            )
        left = without(left, taken)
        rounds += 1
    assert rounds <= -(-positions(ranges) // most) + len({one.partition for one in ranges}) * 2


@given(RANGES, st.integers(1, 60))
def test_pieces_come_to_the_whole(ranges: tuple[LogRange, ...], most: int) -> None:
    pieces = [*in_pieces(ranges, most)]
    assert joined(pieces) == ranges
    assert sum(one.until - one.start for one in pieces) == positions(ranges)
    assert max(one.until - one.start for one in pieces) <= most


@dataclass
class _Topic:
    """A topic that grows, forgets and gets partitions, and what is landed of it and taken back, in an order that chance has chosen."""

    chance: random.Random
    offsets: dict[int, tuple[int, int]] = field(default_factory=lambda: {0: (0, 5), 1: (0, 3)})
    there: list[LandedLoad] = field(default_factory=list)
    back: list[LandedLoad] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def go_on(self) -> None:
        chance, kind = self.chance, self.chance.choice(["grows", "grows", "forgets", "gets", "unload", *["land"] * 3])
        partition = chance.choice([*self.offsets])
        low, high = self.offsets[partition]
        if kind == "grows":
            self.offsets[partition] = low, high + chance.randint(1, 6)
        elif kind == "forgets":
            self.offsets[partition] = chance.randint(low, high), high
        elif kind == "gets" and len(self.offsets) < 4:
            self.offsets[len(self.offsets)] = 0, chance.randint(0, 4)
        elif kind == "unload" and len(self.there) > 1:
            self.back.append(self.there.pop(chance.randrange(len(self.there))))
        elif kind == "land":
            self.land()
        self.done.append(f"{kind} {partition}: {self.offsets}, {[one.load_id for one in self.there]}")

    def missing(self) -> tuple[LogRange, ...]:
        return without(
            [one for load in self.back for one in missing_without(load.landed)],
            [one.range for load in self.there for one in load.landed.ranges],
        )

    def wanted(self) -> Wanted:
        chance = self.chance
        some = chance.sample([*self.offsets], chance.randint(1, len(self.offsets)))
        offsets = {one: chance.randint(0, self.offsets[one][1]) for one in some}
        return chance.choice([NEW, NEW, Wanted(since=NOW), Wanted(start=offsets), Wanted(until=offsets)])

    def land(self) -> None:
        chance, back = self.chance, self.missing()
        found = resolve(
            self.wanted(),
            state(*((low, high, high) for low, high in self.offsets.values())),
            self.there,
            lambda _, partitions: {
                one: chance.choice([None, *range(*self.offsets[one])]) if chance.random() < 0.8 else None
                for one in partitions
            },
            accepts_gap=chance.random() < 0.4,
            taken_back=back,
        )
        if found.problems or not found.missing:
            return
        known = {one.range.partition for load in self.there for one in load.landed.ranges}
        begun = [
            (one, at, at)
            for one, at in found.begins.items()
            if one not in known | {own.partition for own in found.missing}
        ]
        new = load(*((one.partition, one.start, one.until) for one in found.missing), *begun, gap=found.gap)
        before = [one.landed for one in self.there]
        self.there.append(LandedLoad(new.load_id, 1, NOW, going_on(new.landed, before, back)))
        if not self.first:
            self.first = {
                one: min(own.range.start for own in new.landed.ranges if own.range.partition == one)
                for one in self.offsets
            }

    def silent(self) -> tuple[LogRange, ...]:
        """Return what is before the end of what is landed, since the topic was landed first, and a plan neither reads nor misses."""
        landed = {str(number): one.landed for number, one in enumerate(self.there)}
        found = FoundLog("clicks", "log_offset", "log_partition", landed, taken_back=self.missing())
        ends = {one.partition: one.until for one in joined(found.ranges)}
        whole = [LogRange(one, min(self.first.get(one, 0), end), end) for one, end in ends.items()]
        return without(whole, [*wanted_ranges(None, found), *found.lost])


def test_in_whatever_order_a_topic_is_landed_and_taken_back_no_offset_is_left_out_in_silence() -> None:
    landed = 0
    for seed in range(1_000):
        topic = _Topic(random.Random(seed))
        for _ in range(14):
            topic.go_on()
            assert topic.silent() == (), (seed, topic.done)
            assert overlaps(one.range for load in topic.there for one in load.landed.ranges) == (), (seed, topic.done)
        landed += len(topic.there)
    assert landed > 1_000


@pytest.mark.parametrize(
    ("now", "loads", "says"),
    [
        (((5, 9, 9), (0, 3, 3)), (), ["partition 0 begins with offset 5: earlier ones are not in the topic any more"]),
        (((7, 7, 7), (0, 0, 0)), (), ["partition 0 begins with offset 7", "the topic has no offset of that range now"]),
        (((0, 9, 9), (0, 3, 3)), (), []),
        (((5, 9, 9), (0, 3, 3)), (load((0, 0, 5), (1, 0, 3)),), []),
    ],
)
def test_the_first_landing_says_where_a_topic_begins(
    now: tuple[tuple[int, int, int], ...],
    loads: tuple[LandedLoad, ...],
    says: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    _tell_resolved(TOPIC, resolved(Wanted(new=True), state(*now), *loads), proves=False)
    told = capsys.readouterr().out
    assert all(one in told for one in says), told
    assert ("begins with offset" in told) == bool(says)
