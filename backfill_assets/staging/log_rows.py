"""Rows of a log: those at the positions that a plan reads, and no others.

Put here how a pinned range of a log is read. Which ranges a plan pins is `manifests.log_pins`'; how rows of any source become a frame,
`pinned_rows`'.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from manifests.log_pins import PinnedLog
from manifests.plan import Plan
from resources.lakehouse.facade import read_of_log


def files_of_log(plan: Plan, table: str, place: BooleanExpression | None = None) -> BooleanExpression:
    """Return a filter that finds the files with rows at the positions that a plan reads of a source; of one that is no log, `place`."""
    return And(place or AlwaysTrue(), read_of_log(plan.log_of(table)))


def in_log(plan: Plan, table: str, rows: DataFrame) -> DataFrame:
    """Return the rows at the positions that a plan reads of a source; of one that is no log, all of them. Needs `place_of`."""
    log = plan.log_of(table)
    return rows if log is None or log.is_whole else rows.where(_is_read(log))


def place_of(plan: Plan, table: str) -> tuple[str, ...]:
    """Return the columns of a source by which its rows have their place in a log; none of one that is no log, or read whole."""
    log = plan.log_of(table)
    if log is None or log.is_whole:
        return ()
    return (log.position,) if log.partition is None else (log.partition, log.position)


def _is_read(log: PinnedLog) -> Column:
    inside = []
    for one in log.ranges:
        at = (F.col(log.position) >= F.lit(one.start)) & (F.col(log.position) < F.lit(one.until))
        inside.append(at if log.partition is None else at & (F.col(log.partition) == F.lit(one.partition)))
    return reduce(or_, inside, F.lit(False))
