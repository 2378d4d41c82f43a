"""What a gate has the chunk gates count of a target's rows, while those read the files anyway, and how it is given back.

Put here the words of it. How rows are counted is `worker.tallying`'s, where the counts of a run, of the accepted version and of
the chunks before it come from is `gates.visible_rows`'. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import polars as pl

from manifests.canonical import sha256_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_GROUPS = 1_000
"""Groups of one chunk that are kept of a tally: what has more is no slice, and only their number is known."""
Place = tuple[str | None, ...]
"""The values of a group as text, None for NULL."""


@dataclass(frozen=True)
class Tally:
    """Rows of a chunk counted by groups, with the NULLs of some columns and exact sums of others.

    Attributes:
        by: the columns of a group; none: the chunk as a whole.
        nulls: columns whose NULLs are counted.
        sums: columns that are added up; NULL counts as nothing.
        edges: of a column in `by` the limits that it is grouped between instead of by its values, as text in ascending order:
            its group is how many of them it has reached. A pair of the column and its limits for each such column.
    """

    by: tuple[str, ...] = ()
    nulls: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    edges: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @cached_property
    def name(self) -> str:
        """Under which it is on record: the same for whoever has the same counted."""
        return sha256_of([self.by, self.nulls, self.sums, self.edges])[:16]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""
        return tuple(dict.fromkeys((*self.by, *self.nulls, *self.sums)))


@dataclass(frozen=True)
class Group:
    """What is counted of one group: rows, NULLs by column, and sums by column."""

    rows: int
    nulls: Mapping[str, int]
    sums: Mapping[str, Decimal]


@dataclass(frozen=True)
class Tallied:
    """The groups of one chunk. `too_many` is how many there are, where they are more than are kept, and else 0."""

    groups: Mapping[Place, Group]
    too_many: int = 0

    @property
    def rows(self) -> int:
        """All rows that were counted."""
        return sum(group.rows for group in self.groups.values())


class ChunkTallies(Protocol):
    """The counts that a gate may ask for, by chunk."""

    def computed(self, tally: Tally) -> Mapping[str, Tallied]:
        """Return those of the computed rows: of a merge, of its entities."""

    def after(self, tally: Tally) -> Mapping[str, Tallied]:
        """Return those of the chunks as readers would see them."""

    def accepted(self, tally: Tally, before: int = 0) -> Mapping[str, Tallied | None]:
        """Return those of the chunks, and of so many before them, as readers have them at the plan's base; None: not there."""


class NoTallies:
    """Counts of a context that has none."""

    def computed(self, tally: Tally) -> Mapping[str, Tallied]:
        """Raise: there are none."""
        raise LookupError(f"this context has no tally of {', '.join(tally.columns) or 'rows'}")

    def after(self, tally: Tally) -> Mapping[str, Tallied]:
        """Raise: there are none."""
        return self.computed(tally)

    def accepted(self, tally: Tally, before: int = 0) -> Mapping[str, Tallied | None]:
        """Raise: there are none."""
        del before
        return self.computed(tally)


def limits_of(kind: pl.DataType, edges: Sequence[str]) -> pl.Series:
    """Return limits as values of a column's type.

    Raises:
        PolarsError: if one of them is none.
    """
    texts = pl.Series(list(edges), dtype=pl.String)
    return texts.str.to_date("%Y-%m-%d") if kind == pl.Date else texts.cast(kind)


def no_frame(_days_around: int = 0) -> DataFrame:
    """Raise: a context that nobody gave any has no rows as readers would have them."""
    raise LookupError("this context has no rows as readers would have them")


def every_entity() -> DataFrame | None:
    """Return None: all entities are computed, as everywhere but in a merge."""
    return None


def tallied_of(tally: Tally, kept: Mapping[str, Any]) -> Tallied:
    """Return the counts that are on record of a chunk; see `worker.tallying.as_record`."""
    groups = {
        tuple(place): Group(
            rows,
            dict(zip(tally.nulls, nulls, strict=True)),
            dict(zip(tally.sums, map(Decimal, sums), strict=True)),
        )
        for place, rows, nulls, sums in kept["groups"]
    }
    return Tallied(groups, kept["too_many"])


@dataclass(frozen=True)
class ChunkRows:
    """How many rows readers see of a chunk: at the plan's base, and once the run is published."""

    accepted: int
    after: int


def no_rows() -> Mapping[str, ChunkRows]:
    """Return the rows of no chunk."""
    return {}
