"""The tallies of a chunk: its rows counted by groups for the gates that ask for it. Runs in Spark's workers.

Put here how rows are counted, and how the counts of several files become one. What a tally is, is `declarations.tallies`'; whose
rows they are, and what is made of the counts, the gates'. Imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from backfill_assets.declarations.tallies import MOST_GROUPS, Place, Tally, limits_of
from backfill_assets.worker.columns import UNREADABLE, scan_file
from backfill_assets.worker.sums import exact, plus, sum_of
from backfill_assets.worker.violations import Violation, unreadable
from resources.spark.chunk_work import ChunkWork

_ROWS, _NUMBER = "_rows", "_number"
Counts = dict[Place, list[Any]]
"""What is counted by group: rows, then NULLs by column, then sums by column."""


class Counted:
    """The tallies of a chunk after some of its files; memory is that of the groups that are kept."""

    def __init__(self, tallies: Sequence[Tally]) -> None:
        self._tallies = tallies
        self._found: dict[str, Counts] = {tally.name: {} for tally in tallies}
        self._too_many: dict[str, int] = {}

    def add(self, rows: pl.DataFrame) -> None:
        """Count the rows of one more file."""
        for tally in self._tallies:
            if tally.name in self._too_many:
                continue
            grouped = _grouped(tally, rows)
            if grouped.height > MOST_GROUPS:
                self.drop(tally, grouped.height)
            else:
                self.add_groups(tally, grouped.rows(), rows.schema)

    def add_groups(self, tally: Tally, groups: Sequence[tuple[Any, ...]], schema: pl.Schema) -> None:
        """Count the groups that the rows of one more file have, as `_grouped` returns them; they are no more than are kept."""
        found = self._found[tally.name]
        width, kinds = len(tally.by), [schema[name] for name in tally.sums]
        first = width + 1 + len(tally.nulls)
        for row in groups:
            place, sums = row[:width], [exact(one, kind) for one, kind in zip(row[first:], kinds, strict=True)]
            counts = [*row[width:first], *sums]
            known = found.get(place)
            found[place] = counts if known is None else [plus(a, b) for a, b in zip(known, counts, strict=True)]
        if len(found) > MOST_GROUPS:
            self.drop(tally, len(found))

    def drop(self, tally: Tally, groups: int) -> None:
        """Count nothing by a tally, since it has too many groups: so many, and maybe more."""
        self._too_many[tally.name] = groups
        self._found[tally.name] = {}

    def as_record(self) -> dict[str, Any]:
        """Return the counts as JSON has them, by the tally's name: groups in order, sums as text; and how many were too many."""
        return {
            tally.name: {
                "groups": [
                    [
                        list(place),
                        counts[0],
                        counts[1 : 1 + len(tally.nulls)],
                        list(map(str, counts[1 + len(tally.nulls) :])),
                    ]
                    for place, counts in sorted(self._found[tally.name].items(), key=lambda one: _in_order(one[0]))
                ],
                "too_many": self._too_many.get(tally.name, 0),
            }
            for tally in self._tallies
        }


def _in_order(place: Place) -> tuple[tuple[bool, str], ...]:
    return tuple((value is None, value or "") for value in place)


def counted_by(tallies: Sequence[Tally], rows: pl.DataFrame, numbers: pl.Series) -> dict[int, dict[str, Any]]:
    """Return the tallies of several chunks as they are on record, by the number of the chunk that each row has."""
    if not tallies:
        return {}
    found = {number: Counted(tallies) for number in numbers.unique()}
    numbered = rows.with_columns(numbers.alias(_NUMBER))
    for tally in tallies:
        groups: dict[int, list[tuple[Any, ...]]] = {number: [] for number in found}
        grouped = _grouped(tally, numbered, [pl.col(_NUMBER)])
        too_many = grouped.group_by(_NUMBER).len().filter(pl.col("len") > MOST_GROUPS)
        for number, many in too_many.iter_rows():
            found[number].drop(tally, many)
            del groups[number]
        for number, *group in grouped.join(too_many, on=_NUMBER, how="anti").iter_rows():
            groups[number].append(tuple(group))
        for number, own in groups.items():
            found[number].add_groups(tally, own, rows.schema)
    return {number: counted.as_record() for number, counted in found.items()}


def _grouped(tally: Tally, rows: pl.DataFrame, within: Sequence[pl.Expr] = ()) -> pl.DataFrame:
    """Return a row a group: the columns that it lies `within`, its own as text, rows, NULLs, sums."""
    edges = dict(tally.edges)
    places = [_group_of(name, rows.schema[name], edges.get(name)).alias(f"_by_{name}") for name in tally.by]
    counted = [pl.len().cast(pl.Int64).alias(_ROWS)]
    counted += [pl.col(name).null_count().cast(pl.Int64).alias(f"_nulls_{name}") for name in tally.nulls]
    counted += [sum_of(name, rows.schema[name]).alias(f"_sum_{name}") for name in tally.sums]
    if not places and not within:
        return rows.select(counted)
    found = rows.group_by([*within, *places]).agg(counted)
    # the values of groups become text, not those of every row
    return found.with_columns(pl.col([f"_by_{name}" for name in tally.by]).cast(pl.String)) if places else found


def _group_of(name: str, kind: pl.DataType, edges: Sequence[str] | None) -> pl.Expr:
    column = pl.col(name)
    if edges is None and kind.is_float():  # -0.0 is the same number as 0.0, and another text; Polars leaves out `+ 0.0`
        return pl.when(column == 0).then(pl.lit(0.0, dtype=kind)).otherwise(column)
    if edges is None:
        return column
    limits = limits_of(kind, edges)
    reached = pl.sum_horizontal((column >= pl.lit(limits[at], dtype=kind)).cast(pl.Int32) for at in range(len(limits)))
    return pl.when(column.is_null()).then(None).otherwise(reached)


# --- of chunks that were not counted when they were gated --------------------------------------------------------------


@dataclass(frozen=True)
class CountTask:
    """The files of one chunk that are counted."""

    chunk: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class CountedChunk:
    """The tallies of one chunk, as they would be on record."""

    chunk: str
    tallies: Mapping[str, Any]


def counting(schema: str, tallies: Sequence[Tally]) -> ChunkWork[CountTask, CountedChunk | Violation]:
    """Return the work of counting the files of chunks by a table's schema (Iceberg JSON); of one that cannot be read, that."""
    return ChunkWork(partial(_count, schema, tuple(tallies)), CountTask, CountedChunk | Violation)


def _count(schema: str, tallies: Sequence[Tally], tasks: Iterable[CountTask]) -> Iterator[CountedChunk | Violation]:
    columns = list(dict.fromkeys(name for tally in tallies for name in tally.columns))
    for task in tasks:
        counted = Counted(tallies)
        try:
            for path in task.paths:
                counted.add(_rows(path, schema, columns))
        except UNREADABLE as error:
            yield unreadable(path, error)
            continue
        yield CountedChunk(task.chunk, counted.as_record())


def _rows(path: str, schema: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return the columns that are looked at; where none is, as many rows as there are."""
    if not columns:
        return scan_file(path, schema).select(pl.int_range(pl.len())).collect()
    return scan_file(path, schema, columns).collect()
