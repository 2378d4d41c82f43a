"""A dual read: the rows of the old table held against those of the new one, by key, at one snapshot of each.

Put here which days are compared and how; what follows from it is `steps`'. Days of which either table is behind the other are left
out, and said to be: their rows differ because of when they were computed. Spark compares; what comes back is a row a slice and
month, never a row of a table.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.migration.lag import Gap, gaps
from backfill_assets.planning.accepted_then import accepted_then
from backfill_assets.staging.map_values import without_maps
from backfill_assets.staging.pinned_rows import read
from manifests.errors import EnvironmentRefused, InputRefused, Problem, Refused
from manifests.model import Mode
from resources.ledger.facade import operator
from resources.ledger.migration_steps import DualRead, MigrationStep

MOST_SLICES = 1_000
"""Slices and months that are kept of those that disagree, the worst first; their number is kept whole."""
_TRIES, _PAUSE_SECONDS = 10, 0.5
_ONLY_OLD, _ONLY_NEW, _DIFFERENT, _COMPARED = "only_old", "only_new", "different", "compared"
_OLD, _NEW = "_old", "_new"


@dataclass(frozen=True)
class _Sides:
    """What is compared: the targets, the column names of each, and the snapshots."""

    migration: Migration
    old: TargetTable
    new: TargetTable
    snapshots: tuple[int, int]

    def new_name(self, column: str) -> str:
        return self.migration.columns.get(column, column)


def compare(platform: Platform, migration: Migration, step: MigrationStep) -> DualRead:
    """Compare the two tables as they are now, and put what is found on record.

    Raises:
        InputRefused: if one of them has no rows yet.
        EnvironmentRefused: if publications land all the time, or one that has landed is not on record.
    """
    old, new = platform.products.target(migration.old), platform.products.target(migration.new)
    snapshots, behind = _as_on_record(platform, migration, old, new)
    sides = _Sides(migration, old, new, snapshots)
    with platform.spark.settings_kept(Mode.RECONCILIATION):
        found = _found(platform, platform.spark.session(Mode.RECONCILIATION), sides, behind)
    return platform.ledger.migrations.record_reading(
        migration.name,
        step.number,
        snapshots=sides.snapshots,
        compared=found[_COMPARED],
        disagreeing=sum(found[name] for name in (_ONLY_OLD, _ONLY_NEW, _DIFFERENT)),
        found=found,
        by=operator(),
    )


def _as_on_record(
    platform: Platform, migration: Migration, old: TargetTable, new: TargetTable
) -> tuple[tuple[int, int], list[Gap]]:
    """Return a snapshot of each table, and of which days either is behind the other in just these.

    Raises:
        InputRefused: if one of them has no rows.
        EnvironmentRefused: if publications land all the time, or one that has landed is not on record.
    """
    unrecorded: Refused | None = None
    for attempt in range(_TRIES):
        before = _snapshots(platform, migration, old, new)
        behind = [*gaps(platform, new, old), *gaps(platform, old, new)]
        try:
            for target, snapshot_id in zip((old, new), before, strict=True):
                accepted_then(platform, target.name, snapshot_id)
        except EnvironmentRefused as refusal:  # a publication has landed, and is put on record just now
            unrecorded = refusal
        else:
            # while LIVE writes both tables, a moment at which neither is behind is worth waiting for
            patient = bool(behind) and attempt < _TRIES // 2
            if before == _snapshots(platform, migration, old, new) and not patient:
                return before, behind
        time.sleep(_PAUSE_SECONDS)
    raise unrecorded or EnvironmentRefused(
        Problem(
            f"{old.name} or {new.name} was published to {_TRIES} times while they were looked at",
            "both tables are compared as they are on record",
            "give the command again",
        )
    )


def _snapshots(platform: Platform, migration: Migration, old: TargetTable, new: TargetTable) -> tuple[int, int]:
    found = []
    for target in (old, new):
        snapshot_id = platform.lakehouse.snapshot_id(target.name)
        if snapshot_id is None:
            raise InputRefused(
                Problem(
                    f"{target.name} has no rows yet",
                    "two tables are compared that have rows",
                    f"`backfill migration advance {migration.name}` says what is to be published first",
                )
            )
        found.append(snapshot_id)
    return found[0], found[1]


def _found(platform: Platform, spark: SparkSession, sides: _Sides, behind: Sequence[Gap]) -> dict[str, Any]:
    old = _rows(platform, spark, sides, sides.old, _OLD)
    new = _rows(platform, spark, sides, sides.new, _NEW)
    keys = sides.old.key
    both = old.join(new, [old[f"{name}{_OLD}"].eqNullSafe(new[f"{name}{_NEW}"]) for name in keys], "full_outer")
    day = F.coalesce(F.col(f"{sides.old.day_column}{_OLD}"), F.col(f"{sides.old.day_column}{_NEW}"))
    both = both.where(~_in_days(F.to_date(day), behind)) if behind else both
    others = [name for name in sides.migration.compared(sides.old) if name not in keys]
    differs = {name: _differs(sides, name) for name in others}
    there, here = F.col(f"_there{_OLD}").isNotNull(), F.col(f"_there{_NEW}").isNotNull()
    twice = (F.col(f"_there{_OLD}") > 1) | (F.col(f"_there{_NEW}") > 1)
    other = reduce(or_, differs.values(), twice)
    slice_ = sides.migration.slice_column
    named = F.coalesce(F.col(f"{slice_}{_OLD}"), F.col(f"{slice_}{_NEW}")) if slice_ else F.lit("")
    counted = {
        _COMPARED: F.lit(True),
        _ONLY_OLD: there & ~here,
        _ONLY_NEW: here & ~there,
        _DIFFERENT: there & here & other,
    } | {f"column {name}": there & here & one for name, one in differs.items()}
    by_slice = both.groupBy(named.alias("slice"), F.date_format(F.to_date(day), "yyyy-MM").alias("month")).agg(
        *(F.sum(one.cast("long")).alias(name) for name, one in counted.items())
    )
    totals = by_slice.agg(*(F.coalesce(F.sum(f"`{name}`"), F.lit(0)).alias(name) for name in counted))
    wrong = F.col(_ONLY_OLD) + F.col(_ONLY_NEW) + F.col(_DIFFERENT)
    worst = by_slice.where(wrong > 0).select("slice", "month", *counted).orderBy(wrong.desc(), "slice", "month")
    by_slice.cache()
    try:
        total = totals.collect()[0].asDict()
        slices = [row.asDict() for row in worst.limit(MOST_SLICES).collect()]
        disagreeing = worst.count() if len(slices) == MOST_SLICES else len(slices)
    finally:
        by_slice.unpersist()
    columns = {name: int(total.pop(f"column {name}")) for name in others}
    return {name: int(value) for name, value in total.items()} | {
        "columns": {name: number for name, number in columns.items() if number},
        "slices": [
            {name: value for name, value in one.items() if value or name in ("slice", "month")} for one in slices
        ],
        "disagreeing_slices": disagreeing,
        "left_out": [str(gap) for gap in behind],
    }


def _rows(platform: Platform, spark: SparkSession, sides: _Sides, target: TargetTable, mark: str) -> DataFrame:
    """Return the compared columns of one table, each by its old name with a mark behind it."""
    is_old = target is sides.old
    snapshot_id = sides.snapshots[0 if is_old else 1]
    pinned = platform.lakehouse.pinned(target.name, snapshot_id)
    names = {name: name if is_old else sides.new_name(name) for name in sides.migration.compared(sides.old)}
    frame = read(spark, pinned, sorted(names.values()))
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    columns = [
        without_maps(F.col(f"`{column}`"), kinds[column]).alias(f"{name}{mark}") for name, column in names.items()
    ]
    keys = [f"{name}{mark}" for name in sides.old.key]
    once = frame.select(*columns).groupBy(*keys)
    others = [f"{name}{mark}" for name in names if name not in sides.old.key]
    # a key that is there twice, which another program may have written, differs from anything
    return once.agg(F.count(F.lit(1)).alias(f"_there{mark}"), *(F.first(name).alias(name) for name in others))


def _differs(sides: _Sides, name: str) -> Column:
    before, after = F.col(f"{name}{_OLD}"), F.col(f"{name}{_NEW}")
    tolerance = sides.migration.tolerances.get(name)
    if tolerance is None:
        return ~before.eqNullSafe(after)
    near = F.abs(F.try_subtract(before, after)) <= F.lit(float(tolerance))
    return ~(before.eqNullSafe(after) | F.coalesce(near, F.lit(False)))


def _in_days(day: Column, found: Sequence[Gap]) -> Column:
    return reduce(or_, (day.between(F.lit(one.days.start), F.lit(one.days.end)) for one in found))


def by_slice(readings: Sequence[DualRead]) -> Iterator[tuple[str, list[int]]]:
    """Yield each slice that disagreed in one of some dual reads, with how many keys did in each: the worst of the last one first."""
    found: dict[str, list[int]] = {}
    for place, one in enumerate(readings):
        for said in one.found.get("slices", []):
            number = sum(int(said.get(name, 0)) for name in (_ONLY_OLD, _ONLY_NEW, _DIFFERENT))
            found.setdefault(str(said["slice"]), [0] * len(readings))[place] += number
    yield from sorted(found.items(), key=lambda pair: (-pair[1][-1], -max(pair[1]), pair[0]))


def months(readings: Mapping[str, Any]) -> dict[str, int]:
    """Return how many keys disagree in each month, of those slices that are kept."""
    found: dict[str, int] = {}
    for said in readings.get("slices", []):
        number = sum(int(said.get(name, 0)) for name in (_ONLY_OLD, _ONLY_NEW, _DIFFERENT))
        found[said["month"]] = found.get(said["month"], 0) + number
    return dict(sorted(found.items()))
