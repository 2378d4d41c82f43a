"""Times of a log that what was landed after them contradicts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from manifests.lateness import FalseTime, last_times
from manifests.log_ranges import LogRange

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def stretches(*hours: float | None, partition: int = 0) -> list[tuple[LogRange, datetime | None]]:
    return [
        (LogRange(partition, 10 * place, 10 * place + 10), None if one is None else BEGIN + one * HOUR)
        for place, one in enumerate(hours)
    ]


def test_a_time_counts_as_long_as_what_comes_after_it_is_as_late_as_declared() -> None:
    for hours in ((1, 2, 3), (3, 2, 1), (3, None, 1.5)):
        assert last_times(stretches(*hours), 2 * HOUR) == ({0: BEGIN + 3 * HOUR}, ())
    assert last_times(stretches(None), HOUR) == ({0: None}, ())
    assert last_times([], HOUR) == ({}, ())


def test_a_time_does_not_count_once_a_later_stretch_is_wholly_further_behind() -> None:
    last, false = last_times([*stretches(1, 90, 2, 3), *stretches(4, 5, partition=1)], 2 * HOUR)
    assert last == {0: BEGIN + 3 * HOUR, 1: BEGIN + 5 * HOUR}
    assert false == (FalseTime(LogRange(0, 10, 20), BEGIN + 90 * HOUR, BEGIN + 2 * HOUR),)
    # two of them, and none where a later time has come to it
    last, false = last_times(stretches(70, 90, 2), 2 * HOUR)
    assert (last[0], len(false)) == (BEGIN + 2 * HOUR, 2)
    assert last_times(stretches(1, 90, 2, 91), 2 * HOUR) == ({0: BEGIN + 91 * HOUR}, ())


def test_two_equal_stretches_of_which_one_has_no_time_have_that_of_the_other() -> None:
    of_one = stretches(1)
    for both in ([*of_one, *stretches(None)], [*stretches(None), *of_one]):
        assert last_times(both, HOUR) == ({0: BEGIN + HOUR}, ())


def test_a_stretch_of_one_record_that_is_too_early_makes_the_time_before_it_count_no_more() -> None:
    last, false = last_times(stretches(48, -400_000), 2 * HOUR)
    assert (last[0], [one.range for one in false]) == (BEGIN - 400_000 * HOUR, [LogRange(0, 0, 10)])
    # beside a record that says when it came it does nothing: a stretch is told by its greatest time
    assert last_times(stretches(48, -400_000, 49), 2 * HOUR) == ({0: BEGIN + 49 * HOUR}, ())
