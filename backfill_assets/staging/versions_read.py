"""Rows of a source as the readers of their versions say what they mean, and that a reader keeps each of them.

Put here how readers are called for a run. What they are is `declarations.source_tables`'; that a version which none knows is refused
when planning, `planning.source_versions`'.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.source_tables import Readers
from backfill_assets.run_context import RunContext
from backfill_assets.staging.rows import building, running
from manifests.errors import Problem, TransformRefused
from resources.spark.pyspark_private import with_lines
from resources.spark.surroundings import elsewhere

Reading = Callable[[RunContext, str, DataFrame], DataFrame]
"""From a run, the name of a source and rows of it to these rows as the newest of its versions means them."""
_SHOWN = 5
_VERSION, _AT, _TIMES = "_version", "_at", "_times"


def as_read(run: RunContext, table: str, rows: DataFrame) -> DataFrame:
    """Return rows of a source as the newest of its versions means them."""
    readers = run.target.readers_of(table)
    if readers is None:
        return rows
    with building(run.plan), with_lines():
        return readers.read(rows)


def read_elsewhere(run: RunContext, table: str, rows: DataFrame) -> DataFrame:
    """Do what `as_read` does in surroundings that differ on purpose: a reader that asks a clock builds another frame there."""
    if run.target.readers_of(table) is None:
        return rows
    with elsewhere():
        return as_read(run, table, rows)


def whole_as_read(run: RunContext, table: str, rows: DataFrame) -> DataFrame:
    """Do what `as_read` does, of readers that return each row that they are given once, with the time that it has.

    Raises:
        TransformRefused: naming the version, and times at which other rows came out than were given.
    """
    readers = run.target.readers_of(table)
    if readers is not None:
        with building(run.plan), with_lines():
            differing = _differing(readers, rows, run.target.every_source[table])
        with running(run.plan):
            found = differing.limit(_SHOWN).collect()
        if found:
            said = "; ".join(f"{-one[_TIMES]:+,} row(s) of {one[_VERSION]} at {one[_AT]}" for one in found)
            raise TransformRefused(
                Problem(
                    f"a reader of {readers.column} of {table} returns other rows than it is given: {said}",
                    "a reader says what rows of a version mean: it returns each once, with the time that it has",
                    "leave rows out, or multiply them, in the transform; and keep the time column as it is",
                )
            )
    return as_read(run, table, rows)


def _differing(readers: Readers, rows: DataFrame, time_column: str) -> DataFrame:
    """Return by version and time how many more rows were given to a reader than came back; of those that differ."""
    sides = []
    for version, given, returned in readers.by_reader(rows):
        for side, times in ((given, 1), (returned, -1)):
            sides.append(
                side.select(
                    F.lit(repr(version)).alias(_VERSION), F.col(time_column).alias(_AT), F.lit(times).alias(_TIMES)
                )
            )
    whole = reduce(lambda one, other: one.unionByName(other), sides)
    counted = whole.groupBy(_VERSION, _AT).agg(F.sum(_TIMES).alias(_TIMES))
    differing = counted.where(F.col(_TIMES) != 0).orderBy(_VERSION, _AT)
    return differing.withColumn(_AT, F.col(_AT).cast("string"))  # as the session says it, in UTC
