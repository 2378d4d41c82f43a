"""Chunks cut a range of days without gap and without overlap, and their keys say which days they hold."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests.chunks import (
    EVER,
    HOURS,
    Chunk,
    Chunking,
    aligned,
    are_adjacent,
    chunk_before,
    chunk_named,
    chunking_of,
    cut,
    first_day,
    first_instant,
    following,
    in_words,
    key_of,
    last_day,
    last_instant,
    part_of,
    span,
    stretches_of,
    time_of,
)
from manifests.division import ByBucket, ByRange, ByValue, Division, bucket_number, division_problems
from manifests.errors import InputRefused

unhurried = settings(deadline=None)
every_chunking = st.sampled_from(Chunking)
chunkings = every_chunking.filter(lambda one: one is not Chunking.WHOLE)
TICK = timedelta(microseconds=1)
names = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9_-])?", fullmatch=True).filter(
    lambda one: ".." not in one
)
divisions = st.one_of(
    st.lists(names, min_size=1, max_size=6, unique_by=str.lower).map(lambda values: ByValue("tenant", values)),
    st.integers(2, 1_024).map(lambda number: ByBucket("tenant", number)),
)
# the days that a manifest may name
EARLIEST, LATEST = date(1000, 1, 1), date(9000, 12, 31)
days = st.dates(date(1900, 1, 1), date(2100, 12, 31))


@st.composite
def whole_ranges(draw: st.DrawFn) -> tuple[Chunking, date, date]:
    chunking = draw(chunkings)
    start = draw(days)
    end = start + timedelta(days=draw(st.integers(0, 60 if chunking is Chunking.HOUR else 1_500)))
    return chunking, *aligned(chunking, start, end)


@unhurried
@given(whole_ranges())
def test_a_cut_covers_every_day_of_the_range_exactly_once_and_in_order(whole: tuple[Chunking, date, date]) -> None:
    chunking, start, end = whole
    chunks = list(cut(chunking, start, end))

    assert chunks[0].start == start
    assert chunks[-1].end == end
    assert all(chunk.start <= chunk.end for chunk in chunks)
    assert all(last_instant(before) + TICK == first_instant(after) for before, after in pairwise(chunks))


@unhurried
@given(whole_ranges())
def test_chunks_are_numbered_from_zero_and_their_keys_rise(whole: tuple[Chunking, date, date]) -> None:
    chunks = list(cut(*whole))
    keys = [chunk.key for chunk in chunks]

    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert keys == sorted(set(keys)), "as text, too: ledgers and launch dialogs sort keys as text"


@unhurried
@given(whole_ranges(), st.data())
def test_every_day_of_a_chunk_has_its_key(whole: tuple[Chunking, date, date], data: st.DataObject) -> None:
    chunk = data.draw(st.sampled_from(list(cut(*whole))))
    day = data.draw(st.dates(chunk.start, chunk.end))

    hour = time(chunk.hour or 0, 30)
    assert key_of(whole[0], datetime.combine(day, hour, UTC)) == chunk.key
    if whole[0] is not Chunking.HOUR:
        assert key_of(whole[0], day) == chunk.key


@unhurried
@given(chunkings, st.dates(EARLIEST, LATEST))
def test_the_first_day_of_a_key_has_that_key(chunking: Chunking, day: date) -> None:
    key = key_of(chunking, day)

    assert first_day(chunking, key) <= day
    assert key_of(chunking, first_day(chunking, key)) == key


@unhurried
@given(chunkings, days)
def test_the_day_after_the_last_day_of_a_chunk_begins_the_next(chunking: Chunking, day: date) -> None:
    start = first_day(chunking, key_of(chunking, day))

    assert last_day(chunking, start) + timedelta(days=1) == following(chunking, start)
    assert key_of(chunking, last_day(chunking, start)) == key_of(chunking, start)
    assert key_of(chunking, following(chunking, start)) != key_of(chunking, start)


@unhurried
@given(chunkings, days, st.integers(0, 1_500))
def test_alignment_widens_a_range_as_little_as_possible_and_once(chunking: Chunking, start: date, length: int) -> None:
    end = start + timedelta(days=length)
    whole = aligned(chunking, start, end)

    assert whole[0] <= start <= end <= whole[1]
    assert key_of(chunking, whole[0]) == key_of(chunking, start)
    assert key_of(chunking, whole[1]) == key_of(chunking, end)
    assert aligned(chunking, *whole) == whole


def test_the_chunk_before_one_ends_on_the_day_before_it_and_has_the_same_part() -> None:
    for chunking, key, before in (
        (Chunking.YEAR, "2012", "2011"),
        (Chunking.MONTH, "2012-03", "2012-02"),
        (Chunking.WEEK, "2012-W01", "2011-W52"),
        (Chunking.DAY, "2012-01-01", "2011-12-31"),
        (Chunking.HOUR, "2012-01-01T05", "2011-12-31T23"),
        (Chunking.MONTH, key_of(Chunking.MONTH, date(2012, 1, 1), "b"), key_of(Chunking.MONTH, date(2011, 12, 1), "b")),
    ):
        chunk = chunk_named(chunking, key)
        found = chunk_before(chunking, chunk)
        assert found is not None
        assert (found.key, found.part) == (before, chunk.part)
        assert following(chunking, found.start) == chunk.start
    assert chunk_before(Chunking.WHOLE, Chunk("", 0, *EVER)) is None
    assert chunk_before(Chunking.DAY, Chunk("0001-01-01", 0, date.min, date.min)) is None


def test_a_leap_february_is_one_chunk_of_29_days() -> None:
    (chunk,) = cut(Chunking.MONTH, date(2012, 2, 1), date(2012, 2, 29))

    assert (chunk.key, chunk.start, chunk.end) == ("2012-02", date(2012, 2, 1), date(2012, 2, 29))


def test_the_turn_of_a_year_separates_two_months() -> None:
    assert [chunk.key for chunk in cut(Chunking.MONTH, date(2011, 12, 1), date(2012, 1, 31))] == ["2011-12", "2012-01"]


def test_a_month_takes_in_the_days_around_a_range() -> None:
    assert aligned(Chunking.MONTH, date(2011, 12, 31), date(2012, 2, 1)) == (date(2011, 12, 1), date(2012, 2, 29))
    assert aligned(Chunking.DAY, date(2011, 12, 31), date(2012, 2, 1)) == (date(2011, 12, 31), date(2012, 2, 1))


@pytest.mark.parametrize("chunking", [one for one in Chunking if one is not Chunking.WHOLE])
def test_the_last_month_that_a_manifest_may_name_can_be_cut(chunking: Chunking) -> None:
    start, end = aligned(chunking, LATEST, LATEST)

    of_each = len(HOURS) if chunking is Chunking.HOUR else 1
    assert [chunk.end for chunk in cut(chunking, start, end)] == [end] * of_each
    assert end == LATEST or chunking is Chunking.WEEK


@pytest.mark.parametrize(
    ("chunking", "key"),
    [
        (Chunking.MONTH, "2012-03-01"),
        (Chunking.MONTH, "2012-13"),
        (Chunking.MONTH, "2012-00"),
        (Chunking.MONTH, "2012-3"),
        (Chunking.MONTH, "201203"),
        (Chunking.MONTH, "2012-03 "),
        (Chunking.MONTH, "2012-03\n"),
        (Chunking.MONTH, ""),
        (Chunking.MONTH, "0000-01"),
        (Chunking.MONTH, "\uff12\uff10\uff11\uff12-03"),
        (Chunking.DAY, "2012-03"),
        (Chunking.DAY, "2012-02-30"),
        (Chunking.DAY, "2012-W01-1"),
        (Chunking.DAY, "20120301"),
    ],
)
def test_what_is_no_key_of_the_chunking_is_refused_with_an_example(chunking: Chunking, key: str) -> None:
    with pytest.raises(InputRefused, match=f"chunks are {chunking.lower()}s, written like 2012-03"):
        first_day(chunking, key)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([], "none"),
        (["2020-05"], "2020-05"),
        (["2020-11", "2020-12", "2021-01"], "2020-11 to 2021-01"),
        ([f"2020-05-{day:02}" for day in range(1, 10) if day != 4], "2020-05-01 to 2020-05-09 without 2020-05-04"),
        (["2020-01", "2020-03"], "2020-01 to 2020-03 without 2020-02"),
        (["2011-03", "2014-01"], "2011-03, 2014-01"),
        (["2020-01", "2020-02", "2020-11", "2020-12"], "2020-01 to 2020-02, 2020-11 to 2020-12"),
        ([f"2020-05-{day:02}" for day in range(1, 30, 2)], "2020-05-01, 2020-05-03, 2020-05-05, 2020-05-07, 2020-05-09, 2020-05-11 and 9 more"),
        (["2020-03", "2020-01", "2020-02", "2020-01"], "2020-01 to 2020-03"),
    ],
)  # fmt: skip
def test_chunks_with_gaps_are_not_said_as_if_they_had_none(keys: list[str], said: str) -> None:
    assert in_words(keys) == said


@pytest.mark.parametrize("odd", ["2010-13", "z z", "", "2010-02-01"])
def test_what_is_no_chunk_is_named_as_it_is(odd: str) -> None:
    assert in_words(["2010-01", odd]) == ", ".join(sorted(["2010-01", odd]))


def test_a_part_alone_is_a_chunk_without_time_and_is_told_from_every_time() -> None:
    parts = ("CA", "2024", "2024-01", "2024-W01", "2024-01-31T05", "7", "2024-1", "_null")
    chunks = list(cut(Chunking.WHOLE, *EVER, parts))
    assert {chunk.part: chunk.key for chunk in chunks} == {
        "CA": "CA", "2024": "~2024", "2024-01": "~2024-01", "2024-W01": "~2024-W01", "2024-01-31T05": "~2024-01-31T05",
        "7": "7", "2024-1": "2024-1", "_null": "_null",
    }  # fmt: skip
    for chunk in chunks:
        assert (time_of(chunk.key), part_of(chunk.key)) == ("", chunk.part)
        assert chunking_of(chunk.key) is Chunking.WHOLE
        assert (chunk.start, chunk.end) == EVER
    assert in_words(["CA", "~2024"]) == span(["CA", "~2024"]) == "2024, CA"
    assert [one.parts for one in stretches_of(chunks)] == [tuple(chunk.part for chunk in chunks)]
    with pytest.raises(InputRefused, match="values or buckets alone"):
        first_day(Chunking.WHOLE, "2024-01")
    with pytest.raises(InputRefused, match="written like 2012-03"):
        first_day(Chunking.MONTH, "CA")


@st.composite
def divided_cuts(draw: st.DrawFn) -> tuple[Chunking, Division, list[Chunk]]:
    chunking, division = draw(every_chunking), draw(divisions)
    start = draw(days)
    end = start + timedelta(days=draw(st.integers(0, 3 if chunking is Chunking.HOUR else 100)))
    return chunking, division, list(cut(chunking, *aligned(chunking, start, end), division.names[:20]))


@unhurried
@given(divided_cuts())
def test_a_key_of_a_divided_table_says_its_time_and_its_part(made: tuple[Chunking, Division, list[Chunk]]) -> None:
    chunking, division, chunks = made
    assert not list(division_problems(division, "here"))
    keys = [chunk.key for chunk in chunks]
    assert keys == sorted(set(keys)), "as text, too"
    for chunk in chunks:
        assert chunk_named(chunking, chunk.key) == Chunk(chunk.key, 0, chunk.start, chunk.end, chunk.hour, chunk.part)
        assert key_of(chunking, first_instant(chunk), chunk.part) == key_of(chunking, last_instant(chunk), chunk.part)
        assert key_of(chunking, first_instant(chunk), chunk.part) == chunk.key
        assert chunk.key in {f"{time_of(chunk.key)}~{chunk.part}", chunk.part}
        assert chunking_of(chunk.key) is chunking
        assert part_of(chunk.key) == chunk.part
        assert not set(chunk.key) & set("|/*?[]{}:%#'\"\\ ,=")
        assert ".." not in chunk.key
        if division.buckets:
            assert bucket_number(chunk.part) in range(division.buckets)


@unhurried
@given(divided_cuts(), st.data())
def test_stretches_have_each_chunk_once_and_no_gap(
    made: tuple[Chunking, Division, list[Chunk]], data: st.DataObject
) -> None:
    _, _, chunks = made
    chosen = [one for one in chunks if data.draw(st.booleans())] if len(chunks) < 60 else chunks[1:]
    found = []
    for stretch in stretches_of(chosen):
        first, last = first_instant(stretch.first), last_instant(stretch.last)
        inside = [one for one in chosen if one.part in stretch.parts and first <= first_instant(one) <= last]
        for part in stretch.parts:
            times = [one for one in inside if one.part == part]
            assert all(last_instant(one) + TICK == first_instant(other) for one, other in pairwise(times))
            assert (first_instant(times[0]), last_instant(times[-1])) == (first, last)
        found += [one.key for one in inside]
    assert sorted(found) == [one.key for one in chosen]
    if chosen:
        assert are_adjacent([one.key for one in chosen]) is (len(stretches_of(chosen)) == 1)
        assert in_words(one.key for one in chosen)


def test_hours_and_parts_are_said_as_people_say_them() -> None:
    hours = [chunk.key for chunk in cut(Chunking.HOUR, date(2024, 1, 31), date(2024, 2, 1))]
    assert len(hours) == 2 * len(HOURS)
    assert hours[23:25] == ["2024-01-31T23", "2024-02-01T00"]
    assert in_words(hours) == "2024-01-31T00 to 2024-02-01T23"
    assert in_words(hours[5:7] + hours[9:10]) == "2024-01-31T05 to 2024-01-31T09 without 2024-01-31T07, 2024-01-31T08"
    assert in_words(hours[22:25]) == "2024-01-31T22 to 2024-02-01T00"
    of_two = [chunk.key for chunk in cut(Chunking.MONTH, date(2024, 1, 1), date(2024, 3, 31), ("CA", "WA"))]
    assert in_words(of_two) == span(of_two) == "2024-01 to 2024-03 of CA, WA"
    assert in_words(of_two[:3]) == "2024-01 to 2024-02 of CA; 2024-01 of WA"
    assert span(["2024-01~CA"]) == "2024-01~CA"
    with pytest.raises(InputRefused, match="chunks are hours, written like 2012-03-31T05"):
        first_day(Chunking.HOUR, "2024-01-31T24")


@pytest.mark.parametrize(
    ("division", "what"),
    [
        (ByValue("tenant", ("a|b",)), "the value 'a|b' cannot be part of a chunk's key"),
        (ByValue("tenant", ("a/b",)), "the value 'a/b' cannot"),
        (ByValue("tenant", ("a..b",)), "the value 'a..b' cannot"),
        (ByValue("tenant", ("a~b",)), "the value 'a~b' cannot"),
        (ByValue("tenant", ("süd",)), "the value 'süd' cannot"),
        (ByValue("tenant", ("",)), "the value '' cannot"),
        (ByValue("tenant", ("x" * 65,)), "cannot be part of a chunk's key"),
        (ByValue("tenant", ("ca", "CA")), "chunk_values has ca and CA"),
        (ByValue("tenant", ()), "chunk_values has no values"),
        (ByValue("tenant", "CA"), "the values of chunk_values are no tuple of texts"),
        (ByValue("tenant", (1, "2")), "the values of chunk_values are no tuple of texts"),
        (ByValue("tenant", (True, False)), "the values of chunk_values are no tuple of texts"),
        (ByValue("tenant", (1.5,)), "the values of chunk_values are no tuple of texts"),
        (ByValue("tenant", ("_null",)), "the value \"'_null'\" cannot"),
        (ByRange("tenant", ()), "the bound '' cannot be part of a chunk's key"),
        (ByRange("tenant", (1, "2")), "the bounds of chunk_values are no tuple of texts"),
        (ByRange("tenant", 5), "the bounds of chunk_values are no tuple of texts"),
        (ByRange("tenant", (2, 1)), "chunk_values has the bound 1 after 2"),
        (ByRange("tenant", (1, 1)), "chunk_values has the bound 1 after 1"),
        (ByRange("tenant", ("a/b",)), "the bound 'a/b' cannot"),
        (ByRange("tenant", ("A" * 16,)), "chunk_values has the bound(s) AAAAAAAAAAAAAAAA"),
        (ByRange("tenant", ("from", "g", "to-g")), "two ranges of chunk_values have one name"),
        (ByRange("tenant", (2**63,)), "chunk_values has 9223372036854775808"),
        (ByValue("tenant", (-(2**63) - 1, 4)), "chunk_values has minus9223372036854775809"),
        (ByRange("tenant", (Chunking.DAY,)), "the bounds of chunk_values are no tuple of texts"),
        (ByRange("tenant", (1,), nulls="no"), "nulls of chunk_values is 'no'"),  # type: ignore[arg-type]
        (ByValue(None, ("CA",)), "chunk_values names no column"),
        (ByBucket("tenant", 1), "chunk_values has 1 buckets"),
        (ByBucket("tenant", True), "chunk_values has True buckets"),
        (ByBucket("tenant", 5_000), "chunk_values has 5000 buckets"),
        ("jurisdiction", "chunk_values is a str"),
    ],
)
def test_what_cannot_divide_a_table_is_refused_by_name(division: object, what: str) -> None:
    assert any(what in one.what for one in division_problems(division, "silver.x: chunk_values"))
