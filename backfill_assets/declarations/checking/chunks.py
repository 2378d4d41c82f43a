"""Mistakes in how a target is cut into hours, and divided beside time.

Put here what can be said of `chunk_values` and of `Chunking.HOUR` by the declaration alone. Other bounds of a target's chunks are held
to be right in `targets`; what a table's own partitions say against them is `planning.foreign_tables`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from itertools import islice

import polars as pl

from backfill_assets.declarations.checking.columns import ColumnTypes, of_kind
from backfill_assets.declarations.checking.names import texts
from backfill_assets.declarations.schema import lineage_columns
from backfill_assets.declarations.target import TargetTable
from manifests.chunks import HOURS, Chunking, cut, hour_of, last_day
from manifests.division import DAY, MOST_CHUNKS, NUMBER, TEXT, Division, division_problems
from manifests.errors import Problem

_COUNTED = (
    "a column of text, of whole numbers or of days",
    lambda kind: kind in {pl.String, pl.Int32, pl.Int64, pl.Date},
)
_COLUMNS = {
    TEXT: ("a column of text", lambda kind: kind == pl.String),
    NUMBER: ("a column of whole numbers", lambda kind: kind in {pl.Int32, pl.Int64}),
    DAY: ("a column of days", lambda kind: kind == pl.Date),
}


def of_division(target: TargetTable, own: ColumnTypes) -> Iterator[Problem]:
    """Say what of a target's chunks its columns cannot be: hours of a date, or parts of a column that has none."""
    name, where = target.name, f"{target.name}: chunk_values"
    if target.chunking is Chunking.HOUR and own.get(target.day_column) == pl.Date:
        yield Problem(
            f"chunking is HOUR, and {target.day_column!r} of {name} is a date",
            "an hour is one of an instant",
            "name a column of instants as day_column, or choose Chunking.DAY",
            f"{name}: chunking",
        )
    division = target.chunk_values
    if division is None:
        return
    problems = list(division_problems(division, where))
    yield from problems
    if not isinstance(division, Division) or not isinstance(division.column, str):
        return
    column = division.column
    yield from of_kind(
        name,
        "chunk_values",
        column,
        name,
        own,
        _COUNTED if division.buckets or division.kind not in _COLUMNS else _COLUMNS[division.kind],
    )
    if column == target.day_column or column in lineage_columns(target.model):
        yield Problem(
            f"chunk_values names {column!r}, "
            + ("the day column" if column == target.day_column else "which says which run made a row"),
            "a table is divided by what its rows are about, beside time",
            "name another column",
            where,
        )
    if target.corrections is not None and column in own and column not in texts(target.key):
        yield Problem(
            f"{name} is divided by {column!r}, which is none of its key, and declares corrections",
            "a corrections table has the columns of the key, and its rows lie in the chunks that they correct",
            "have the column in the key, or declare no corrections",
            where,
        )


def of_bounds(target: TargetTable, bounds: Mapping[str, date]) -> Iterator[Problem]:
    """Say that a table's chunks do not begin and end with whole days, name a part, or are more than anybody could choose from."""
    for field, hour in (("chunks_from", HOURS[0]), ("chunks_until", HOURS[-1])):
        text = getattr(target, field)
        if field in bounds and "~" in text:
            yield Problem(
                f"{field} is {text}",
                "the first and the last chunk are named by their time: every value or bucket has the same",
                f"write {text.partition('~')[0]}",
                f"{target.name}: {field}",
            )
        elif field in bounds and target.chunking is Chunking.HOUR and hour_of(target.chunking, text) != hour:
            yield Problem(
                f"{field} is {text}",
                "what is planned and published are whole days of hours: chunks_from ends with T00, chunks_until with T23",
                f"write {bounds[field].isoformat()}T{hour:02}",
                f"{target.name}: {field}",
            )
    if len(bounds) == 2 and isinstance(target.chunk_values, Division):  # noqa: PLR2004 - the first chunk and the last
        if any(division_problems(target.chunk_values, "")):
            return
        first, last = bounds["chunks_from"], last_day(target.chunking, bounds["chunks_until"])
        there = sum(1 for _ in islice(cut(target.chunking, first, last, target.parts), MOST_CHUNKS + 1))
        if there > MOST_CHUNKS:
            yield Problem(
                f"from {target.chunks_from} to {target.chunks_until} {target.name} has more than {MOST_CHUNKS:,} chunks",
                "the launch dialog lists every chunk of a table that is divided beside time, up to chunks_until",
                "state an earlier chunks_until and move it on year by year; or choose longer chunks, or fewer parts",
                f"{target.name}: chunks_until",
            )
