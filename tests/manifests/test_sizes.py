"""How chunks are cut into files and put into batches: arithmetic, for any sizes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import a_contract, a_manifest, a_plan, publishing

from manifests.batch_sizes import MOST_CHUNKS, TIMES_MEMORY, BatchSizes, cut, rows_for, rows_of_chunks
from manifests.chunks import Chunking
from manifests.errors import ManifestRefused
from manifests.estimates import Estimate
from manifests.file_sizes import FileSizes, even_rows, in_bytes, rows_that_fill
from manifests.plan import Plan, plan_from_json

unhurried = settings(deadline=None)
MANY = st.integers(1, 10**9)


def files_of(rows: int, per_file: int) -> list[int]:
    """Return the rows of each file of a chunk, as they are counted out."""
    return [min(per_file, rows - start) for start in range(0, rows, per_file)]


# --- files --------------------------------------------------------------------------------------------------------------


@given(st.integers(2_000, 10**9), st.integers(1, 200), st.integers(0, 10**9))
@example(full=2_000, times=3, more=1)
def test_a_chunk_whose_rows_are_known_is_cut_into_files_of_half_to_one_and_a_half_times_the_size(
    full: int, times: int, more: int
) -> None:
    rows = full * times + more % full
    found = files_of(rows, even_rows(full, [rows]))
    assert sum(found) == rows
    assert max(found) <= round(1.5 * full)
    if rows > full:
        assert min(found) >= 0.5 * full


@given(st.integers(100, 10**6), st.integers(1, 40), st.floats(0, 0.2))
def test_a_chunk_with_a_few_rows_more_than_is_known_has_no_file_more(full: int, files: int, more: float) -> None:
    known = full * files + full // 3
    found = files_of(known, even_rows(full, [known]))
    grown = known + int(more * (even_rows(full, [known]) * len(found) - known))
    assert len(files_of(grown, even_rows(full, [known]))) == len(found)


@given(MANY, st.lists(st.integers(0, 10**11), max_size=300), st.none() | st.integers(1, 10**7))
def test_rows_a_file_are_near_those_that_fill_one_and_never_more_than_is_allowed(
    full: int, chunks: list[int], most: int | None
) -> None:
    found = even_rows(full, chunks, most)
    assert found >= 1
    assert most is None or found <= most
    assert found <= max(1, round(1.5 * full))
    assert found >= min(round(full * 2 / 3), full if most is None else most)
    assert found == even_rows(full, list(reversed(chunks)), most), "the order of chunks says nothing"
    if all(rows <= full for rows in chunks):
        assert found == (full if most is None else min(full, most)), (
            "small chunks have one file each, whatever fills it"
        )


@given(st.integers(1_000, 10**6), st.lists(st.integers(1_000, 10**8), min_size=1, max_size=40))
def test_no_answer_leaves_more_small_rests_than_rows_that_just_fill_a_file(full: int, chunks: list[int]) -> None:
    def small(per_file: int) -> int:
        return sum(1 for rows in set(chunks) if rows > full and 2 * files_of(rows, per_file)[-1] < full)

    assert small(even_rows(full, chunks)) <= small(full)


@pytest.mark.parametrize(
    ("size", "said"),
    [(1, "1 byte"), (20_000, "19.5 KiB"), (128 << 20, "128 MiB"), (3 << 29, "1.5 GiB"), (1 << 40, "1 TiB")],
)
def test_sizes_are_said_in_units(size: int, said: str) -> None:
    assert in_bytes(size) == said


def test_rows_that_fill_a_file_are_one_at_least() -> None:
    assert rows_that_fill(128 << 20, 20.0) == 6_710_886
    assert rows_that_fill(1_024, 5_000.0) == 1
    assert rows_that_fill(20_000, 5.0, 4_000) == 3_200
    assert rows_that_fill(20_000, 5.0, 90_000) == 2_000, "half of it is left to rows"


# --- batches ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**9), max_size=200), st.integers(1, 300), st.none() | st.integers(1, 10**9))
def test_batches_hold_every_chunk_once_in_order_and_no_more_than_is_allowed(
    rows: list[int], most_chunks: int, most_rows: int | None
) -> None:
    batches = list(cut(rows, most_chunks, most_rows))
    assert [place for one in batches for place in range(one.start, one.stop)] == list(range(len(rows)))
    for one in batches:
        own = rows[one]
        assert 1 <= len(own) <= most_chunks
        assert len(own) == 1 or most_rows is None or sum(own) <= most_rows
    for one, after in pairwise(batches):
        is_full = most_rows is not None and sum(rows[one]) + rows[after.start] > most_rows
        assert len(rows[one]) == most_chunks or is_full, "a batch ends where another chunk would be too much"


@given(st.integers(1 << 20, 1 << 44), st.integers(24, 10_000))
def test_more_memory_never_makes_smaller_batches(memory: int, row_bytes: int) -> None:
    assert 1 <= rows_for(memory, row_bytes) <= rows_for(2 * memory, row_bytes)
    assert rows_for(memory, row_bytes) * row_bytes <= max(row_bytes, TIMES_MEMORY * memory)
    assert rows_for(memory, 2 * row_bytes) <= rows_for(memory, row_bytes)


def days(number: int, **changes: Any) -> Plan:
    """Return a plan of so many chunks, a day each."""
    plan = a_plan(a_manifest(target=publishing("2012-01-01", "2012-06-30")), contract=a_contract(chunking=Chunking.DAY))
    return replace(plan, chunks=plan.chunks[:number], max_chunks_per_job=MOST_CHUNKS, **changes)


def with_rows(plan: Plan, rows: list[int], written: list[int | None], most: int, usual: int = 0) -> Plan:
    chunks = tuple(
        replace(chunk, reads=Estimate(1, own, own), writes=writes)
        for chunk, own, writes in zip(plan.chunks, rows, written, strict=True)
    )
    sizes = BatchSizes(most, 2 << 30, "spark.driver.memory", 200, usual, ("before",) if usual else ())
    return replace(plan, chunks=chunks, reads=Estimate(1, sum(rows), sum(rows)), batch_sizes=sizes)


def test_few_chunks_with_many_rows_come_in_small_batches_and_many_with_few_in_large_ones() -> None:
    large = with_rows(days(6), [30_000_000] * 6, [None] * 6, 70_000_000)
    small = with_rows(days(180), [500] * 180, [None] * 180, 70_000_000)
    mixed = with_rows(days(6), [10, 10, 80_000_000, 10, 10, 10], [None] * 6, 70_000_000)
    assert [len(batch) for batch in large.batches()] == [2, 2, 2]
    assert [len(batch) for batch in small.batches()] == [180]
    assert [len(batch) for batch in mixed.batches()] == [2, 1, 3]
    assert large.of_sizes()[0][1].startswith(
        "3 Spark job(s) of 2 chunk(s): at most 70,000,000 rows each, which is 16 times"
    )
    assert mixed.of_sizes()[0][1].startswith("3 Spark job(s) of 1 to 3 chunks: ")


def test_what_runs_have_written_counts_where_it_is_more_than_what_is_read() -> None:
    held = with_rows(days(4), [10] * 4, [40, 40, 10, None], 50, usual=20)
    assert rows_of_chunks(held.chunks, 40, 20) == [40, 40, 10, 20]
    assert [len(batch) for batch in held.batches()] == [1, 2, 1]
    assert "a chunk has 20 rows on the average of 1 recorded run(s)" in held.of_sizes()[0][1]


def test_rows_that_several_chunks_read_count_once() -> None:
    plan = days(4)
    shared = with_rows(plan, [100] * 4, [None] * 4, 60)
    shared = replace(shared, reads=Estimate(1, 100, 100))  # one file, which each chunk opens
    assert rows_of_chunks(shared.chunks, 100) == [25] * 4
    first, last = shared.chunks[0], shared.chunks[0].start + timedelta(days=3)
    parts = [replace(first, key=f"part-{number}", end=last, part=str(number)) for number in range(4)]
    assert rows_of_chunks(parts, 100) == [25] * 4


@unhurried
@given(st.data(), st.integers(1, 60))
def test_whatever_is_left_of_a_plan_is_cut_by_the_same_rule(data: st.DataObject, number: int) -> None:
    rows = data.draw(st.lists(st.integers(0, 1_000), min_size=number, max_size=number))
    plan = with_rows(days(number), rows, [None] * number, data.draw(st.integers(1, 5_000)))
    left = data.draw(st.frozensets(st.sampled_from([chunk.key for chunk in plan.chunks])))
    again = plan_from_json(plan.to_json())
    for keys in (None, left):
        batches = plan.batches(keys)
        assert batches == again.batches(keys) == plan.batches(keys)
        assert [chunk.key for batch in batches for chunk in batch] == sorted(
            left if keys is not None else (chunk.key for chunk in again.chunks)
        )


def test_a_plan_of_an_earlier_version_says_nothing_of_sizes_and_keeps_its_hash() -> None:
    plan = days(5)
    text = plan.to_json()
    assert not {"file_sizes", "batch_sizes", "writes"} & set(text.split('"'))
    assert plan_from_json(text).hash == plan.hash
    sizes = FileSizes(20_000, "target.fileSizeBytes", 5.0, 4_096, "the files of snapshot 7", 3_180)
    with_sizes = replace(plan, file_sizes=sizes)
    assert with_sizes.hash != plan.hash
    assert plan_from_json(with_sizes.to_json()) == with_sizes
    assert with_sizes.of_sizes() == [
        ("batches", f"1 Spark job(s) of 5 chunk(s): at most {MOST_CHUNKS} (limits.maxChunksPerJob)"),
        ("files", sizes.describe()),
    ]
    assert sizes.describe() == (
        "of about 19.5 KiB (target.fileSizeBytes), at most 3,180 rows each: a row takes about 5 bytes beside 4 KiB "
        "of a file's own, by the files of snapshot 7"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"fileSizeBytes": 100}, "how many bytes a file has about: a whole number from 1,024"),
        ({"fileSizeBytes": "128 MiB"}, "without quotes"),
        (
            {"fileSizeBytes": 5_000, "publishMode": "MERGE_BY_KEY", "merge": {"entities": ["A"]}},
            r"target\.fileSizeBytes does not go with publishMode MERGE_BY_KEY",
        ),
        (
            {"fileSizeBytes": 5_000, "publishMode": "CORRECTION_EVENTS"},
            "does not go with publishMode CORRECTION_EVENTS",
        ),
    ],
    ids=["too small", "no number", "of a merge", "of correction events"],
)
def test_a_size_of_files_that_is_none_or_of_no_file_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestRefused, match=said):
        a_manifest(target=publishing("2012-01-01", "2012-06-30") | changes)


def test_correction_events_beside_a_replacement_have_files_of_a_size() -> None:
    target = publishing("2012-01-01", "2012-06-30") | {"publishMode": "CORRECTION_EVENTS", "corrections": "BESIDE"}
    assert a_manifest(target=target | {"fileSizeBytes": 5_000}).target.file_size_bytes == 5_000
