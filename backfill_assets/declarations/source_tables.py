"""Sources beside the first, and states to start from: which tables they are, by which column their rows have days, and which days of them a chunk needs.

Put here what a team declares of them. What is wrong with a declaration is `checking.source_tables`' to say; what is read of a
pinned one, `manifests.further_sources`'. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from backfill_assets.declarations.arguments import said_at_once
from manifests.errors import Problem, TransformRefused
from manifests.facts import DeclaredStart, FurtherSource
from manifests.timeliness import AS_OTHERS, Timeliness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@said_at_once
@dataclass(frozen=True)
class Window:
    """Which days of a source a chunk needs: so many `before` its first day and `after` its last one.

    `before=None` stands for everything before. Rows of instants come with a day of margin on both sides, for time zones; rows of
    dates come without one. A batch of chunks reads the days of all of them.
    """

    before: int | None = 0
    after: int = 0


EVERYTHING_UNTIL_END = Window(before=None)
"""All rows up to the end of a chunk's last day."""


Reader = Callable[["DataFrame"], "DataFrame"]
"""From the rows of one version to the same columns as the newest version means them: each row once, with the time that it has."""


@said_at_once
@dataclass(frozen=True)
class Readers:
    """What rows of a source mean by their version: a column says which one a row is of, and each version has a reader.

    Columns that were added, renamed or widened need none: a file is read by its columns' ids, and what it lacks is NULL. This is
    for what a schema does not say: another unit, another code, another meaning.

    Attributes:
        column: the column that says it.
        by_version: the reader of each version, `as_it_is` of one that needs none; None is the version of rows without one, such as
            those of files that were written before the column came. The day of a row is what its time column says, for every reader.
    """

    column: str
    by_version: Mapping[str | int | None, Reader]

    def read(self, rows: DataFrame) -> DataFrame:
        """Return rows as the newest version means them; the same columns, of the same types.

        Raises:
            TransformRefused: if a reader returns other columns, or other types.
        """
        return reduce(lambda one, other: one.unionByName(other), [found for _, _, found in self.by_reader(rows)])

    def by_reader(self, rows: DataFrame) -> Iterator[tuple[str | int | None, DataFrame, DataFrame]]:
        """Yield each version with the rows that its reader is given, and those that it returns.

        Raises:
            TransformRefused: if a reader returns other columns, or other types.
        """
        kinds = {one.name: one.dataType for one in rows.schema.fields}
        for version, reader in self.by_version.items():
            said = rows[self.column]
            given = rows.where(said.isNull() if version is None else said == version)
            found = reader(given)
            there = {one.name: one.dataType for one in found.schema.fields}
            wrong = [name for name, kind in kinds.items() if there.get(name) != kind]
            if wrong:
                shown = ", ".join(
                    f"{name} {there[name].simpleString() if name in there else 'missing'}" for name in wrong
                )
                raise TransformRefused(
                    Problem(
                        f"the reader of {self.column} {version!r} returns {shown}",
                        f"each reader returns {', '.join(f'{name} {kind.simpleString()}' for name, kind in kinds.items())}",
                        "have it return every column of the table, each of its own type",
                    )
                )
            yield version, given, found.select(*kinds)


def as_it_is(rows: DataFrame) -> DataFrame:
    """Return the rows of a version that needs no reader."""
    return rows


@said_at_once
@dataclass(frozen=True)
class SourceTable:
    """A source beside the first.

    Attributes:
        table: an input table, or another target, which is read as it is accepted when a run is planned.
        time_column: the column by which its rows have days: of instants, or of dates.
        reads: which days of it a chunk needs.
        may_be_empty: whether a chunk is computed where the source holds no rows in the days that it needs; else such a plan is
            refused, by the bounds of the source's files.
        timeliness: what becomes of rows that come late, and of rows of the future.
        readers: what its rows mean by their version; None: they all mean the same.
        for_gates: whether gates alone look at it. A transform is not given it, so that no row that is computed changes with it, and a merge
            does not ask whose its rows are.
    """

    table: str
    time_column: str
    reads: Window = Window()
    may_be_empty: bool = False
    timeliness: Timeliness = AS_OTHERS
    readers: Readers | None = None
    for_gates: bool = False

    @property
    def contract(self) -> FurtherSource:
        """What the planner must know of it."""
        window = self.reads.before, self.reads.after
        return FurtherSource(
            self.table, self.time_column, *window, self.may_be_empty, self.timeliness, for_gates=self.for_gates
        )


@said_at_once
@dataclass(frozen=True)
class StartsFrom:
    """States that a run may start from instead of from the first row, where its manifest says so (`source.startFrom`).

    Attributes:
        table: a target that is computed from the same first source, with a state a chunk: that at the end of its last day, which the
            rows have in its day column, of dates.
        source_day: the column of the first source, of dates, by which its rows are in a state: those up to its day are, later ones are
            not. It is one of the look-back columns.
        fits: by version of the target's transform, the versions of the states' transform that it can go on from.
    """

    table: str
    source_day: str
    fits: Mapping[str, tuple[str, ...]]

    @property
    def contract(self) -> DeclaredStart:
        """What the planner must know of it."""
        return DeclaredStart(self.table, {version: tuple(fitting) for version, fitting in self.fits.items()})
