"""Ranges of a log, held against sets of positions."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manifests.log_ranges import (
    LandedLog,
    LandedRange,
    LogIdentity,
    LogKind,
    LogRange,
    gaps,
    going_on,
    in_words,
    joined,
    known_from,
    landed_from_json,
    overlaps,
    positions,
    without,
)

RANGES = st.lists(
    st.builds(
        lambda partition, start, length: LogRange(partition, start, start + length),
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(0, 8),
    ),
    max_size=8,
)


def places(ranges) -> set[tuple[int, int]]:
    return {(one.partition, position) for one in ranges for position in range(one.start, one.until)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_positions(some: list[LogRange], others: list[LogRange]) -> None:
    assert places(joined(some)) == places(some)
    assert places(without(some, others)) == places(some) - places(others)
    assert positions(some) == len(places(some))
    for found in (joined(some), without(some, others), gaps(some), overlaps(some)):
        assert list(found) == sorted(found)
        assert len(places(found)) == sum(one.until - one.start for one in found)
        assert joined(found) == found


@given(RANGES)
def test_a_gap_lies_between_ranges_and_an_overlap_in_two(some: list[LogRange]) -> None:
    there = places(some)
    between = {
        (partition, position)
        for partition in range(3)
        if (known := [position for one, position in there if one == partition])
        for position in range(min(known), max(known))
        if (partition, position) not in there
    }
    assert places(gaps(some)) == between
    twice = {place for place in there if sum(place in places([one]) for one in some) > 1}
    assert places(overlaps(some)) == twice


@pytest.mark.parametrize(("partition", "start", "until"), [(-1, 0, 1), (0, -1, 1), (0, 2, 1)])
def test_what_is_no_range_is_refused(partition: int, start: int, until: int) -> None:
    with pytest.raises(ValueError, match="no range of a log"):
        LogRange(partition, start, until)


def test_what_a_load_has_landed_is_read_back_as_it_was() -> None:
    log = LogIdentity(LogKind.KAFKA, "cluster", "payments", "topic-id")
    at = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    landed = LandedLog(log, (LandedRange(LogRange(0, 5, 9), 3, at, at), LandedRange(LogRange(1, 0, 0), 0)))
    assert landed_from_json(landed.to_json()) == landed
    assert str(log) == "payments (KAFKA cluster, topic-id)"


@pytest.mark.parametrize(
    "forged",
    [
        {"ranges": [{"rows": -5}]},
        {"ranges": [{"first_time": "2026-01-01T00:00:00", "last_time": "2026-01-01T00:00:00"}]},
        {"ranges": [{"first_time": "2026-01-02T00:00:00Z", "last_time": "2026-01-01T00:00:00Z"}]},
        {"ranges": [{"last_time": "9999-12-31T00:00:00Z"}]},
        {"ranges": [{"range": {"partition": 0, "start": 0, "until": 2**63}}]},
        {"complete_before": "2026-01-01T00:00:00"},
        {"begun": [-5]},
        {"observed": [{"position": -1, "at": "2026-01-01T00:00:00Z"}]},
        {"observed": [{"position": 1, "at": "2026-01-01T00:00:00"}]},
    ],
)
def test_what_no_load_says_of_itself_is_not_read(forged: dict[str, Any]) -> None:
    log = LogIdentity(LogKind.CHANGELOG, "server", "shop", "1")
    said = json.loads(LandedLog(log, (LandedRange(LogRange(0, 5, 9), 3),)).to_json())
    assert landed_from_json(json.dumps(said)).ranges
    for place, one in enumerate(forged.pop("ranges", [])):
        said["ranges"][place] |= one
    with pytest.raises(ValueError):  # noqa: PT011 - whoever reads says which load it is of
        landed_from_json(json.dumps(said | forged))


def test_ranges_are_said_in_their_order_and_not_all_of_many() -> None:
    assert in_words([LogRange(1, 0, 5), LogRange(0, 1000, 2000)]) == (
        "partition 0 from 1,000 until 2,000; partition 1 from 0 until 5"
    )
    assert in_words([LogRange(0, 2 * one, 2 * one + 1) for one in range(7)]).endswith(" and 2 more")


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 9)), max_size=8))
def test_what_was_landed_so_far_is_the_sum_of_what_each_load_has_brought(steps: list[tuple[int, int, int]]) -> None:
    log = LogIdentity(LogKind.CHANGELOG, "server", "shop", "1")
    ends, loads = [0, 0], []
    for partition, gap, length in steps:
        start = ends[partition] + gap
        ends[partition] = start + length
        lost = (LogRange(partition, start - gap, start),) if gap else ()
        brought = LandedRange(LogRange(partition, start, ends[partition]), length)
        loads.append(going_on(LandedLog(log, (brought,), lost), loads))
    for number, load in enumerate(loads):
        before = [one for earlier in loads[:number] for one in earlier.ranges]
        assert places(one.range for one in load.so_far) == places(one.range for one in before)
        assert sum(one.rows for one in load.so_far) == sum(one.rows for one in before)
        assert places(load.lost_so_far) == places(one for earlier in loads[:number] for one in earlier.lost)
        assert len(load.so_far) <= len(before)
        # when the history before it is cut, the oldest load says the same
        assert going_on(loads[-1], [known_from(load), *loads[number:-1]]) == going_on(loads[-1], loads[:-1])
