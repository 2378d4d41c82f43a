"""Values and ranges that a table is divided by: every value lies in one part, whoever is asked."""

from __future__ import annotations

from datetime import date
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.expressions.visitors import expression_evaluator
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, LongType, NestedField, StringType

from backfill_assets.declarations.divided import internal, part_of_value
from backfill_assets.worker.partitions import in_parts, outside
from manifests.canonical import plain
from manifests.chunks import EVER, Chunking, chunking_of, cut, part_of
from manifests.division import ByRange, ByValue, Division, division_from, division_problems
from resources.lakehouse.scopes import Scope

unhurried = settings(deadline=None)
KINDS: dict[str, tuple[Any, Any, Any]] = {
    "number": (st.integers(-(2**40), 2**40) | st.integers(-5, 2_030), LongType(), pl.Int64()),
    "day": (st.dates(date(1950, 1, 1), date(2050, 1, 1)), DateType(), pl.Date()),
    "text": (st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,12}", fullmatch=True), StringType(), pl.String()),
}


@st.composite
def divided(draw: st.DrawFn) -> tuple[Division, list[Any], Any, Any]:
    values, kind, dtype = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    chosen = draw(st.lists(values, min_size=1, max_size=6, unique_by=lambda one: str(one).lower()))
    nulls = draw(st.booleans())
    division = (
        ByRange("at", sorted(chosen), nulls=nulls)
        if draw(st.booleans())
        else ByValue("at", [*chosen, *([None] if nulls else [])])
    )
    others = draw(st.lists(values, max_size=6))
    return division, [*chosen, *others, None], kind, dtype


@unhurried
@given(divided())
def test_a_value_lies_in_one_part_and_every_reader_says_the_same(made: tuple[Division, list[Any], Any, Any]) -> None:
    division, values, kind, dtype = made
    assert not list(division_problems(division, "here"))
    frame = pl.DataFrame({"at": pl.Series(values, dtype=dtype)})
    schema = Schema(NestedField(1, "at", kind, required=False))
    found: dict[int, list[str]] = {number: [] for number in range(len(values))}
    for part in division.names:
        mine = frame.with_row_index("n").filter(in_parts(division, (part,)))["n"].to_list()
        assert outside(frame, division, part, kind).height == len(values) - len(mine)
        reads = expression_evaluator(schema, Scope("", *EVER, division=division, parts=(part,)).filter, True)
        assert mine == [number for number, value in enumerate(values) if reads(Record(internal(value)))]
        for number in mine:
            found[number].append(part)
    for number, value in enumerate(values):
        said = part_of_value(division, kind, value)
        assert found[number] == ([] if said is None else [said])
    if division.bounds:
        assert all(found[number] for number, value in enumerate(values) if value is not None)


@unhurried
@given(divided())
def test_a_division_is_read_back_as_it_was_and_its_keys_are_those_of_parts(
    made: tuple[Division, list[Any], Any, Any],
) -> None:
    division = made[0]
    assert division_from(plain(division)) == division
    chunks = list(cut(Chunking.WHOLE, *EVER, division.names))
    assert len({chunk.key.lower() for chunk in chunks}) == len(division.names)
    for chunk in chunks:
        assert part_of(chunk.key) == chunk.part
        assert chunking_of(chunk.key) is Chunking.WHOLE
        assert not set(chunk.key) & set("|/*?[]{}:%#'\"\\ ,=")
        assert ".." not in chunk.key


def test_the_text_of_a_division_on_record_is_what_it_was() -> None:
    assert plain(ByValue("state", ("CA",))) == {"column": "state", "values": ["CA"], "buckets": 0}
