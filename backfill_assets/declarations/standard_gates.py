"""Gates that any target gets by naming them: of the change, of records, of rows that were loaded twice.

Put here gates that need nothing of a product but the names of columns. What a product has to recompute is its own
reconciliation, put together from `reconciliations`. Imported by Spark's Python workers with the products: keep it light.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.amounts import off
from backfill_assets.declarations.arguments import NAME, is_amount
from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.reconciliations import SLICES, Comparison, Entities, Wrong, each_of, record_level
from backfill_assets.declarations.standard.parts import source_day
from backfill_assets.declarations.target import Finding, Level, Reconciliation, ReconciliationContext
from manifests.errors import Problem

_ROWS = "rows"


# --- what their arguments cannot be -----------------------------------------------------------------------------------


def _columns(name: str, value: Any) -> tuple[tuple[str, ...], list[Problem]]:
    """Return columns that are given, and what is wrong with them; of a single text the declaration says what it is."""
    if isinstance(value, str) and value:
        return value, []  # type: ignore[return-value]
    if isinstance(value, (tuple, list)) and value and all(isinstance(one, str) for one in value):
        return tuple(value), []
    return (), [
        Problem(f"{name} is {value!r}", f"{name} is a tuple of one column or more", 'for example ("meter_id",)')
    ]


# --- the gates --------------------------------------------------------------------------------------------------------


@declared_with
def change_gate(
    name: str = "change_within_tolerance",
    *,
    percent: float = 20.0,
    tolerance: str = "change_percent",
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that no chunk changes by more than a tolerance against its accepted version.

    What is compared are the chunk's rows, and the integer sums that the target's `measure` has of it, if it has one. A
    chunk without an accepted version is not compared. It reads no row.

    Args:
        name: of the gate.
        percent: what is tolerated, in percent of the accepted value; a manifest overrides it in its tolerances.
        tolerance: the name of that tolerance.
        asks: whether an owner may accept a larger change with a reason; otherwise the run has failed.
    """
    named = isinstance(tolerance, str) and re.fullmatch(NAME, tolerance) is not None
    mistakes = [
        *unless(is_amount(percent), "percent", percent, "it is a number, 0 or more", "for example 20.0"),
        *unless(named, "tolerance", tolerance, "a tolerance has a name of letters, digits and _", "change_percent"),
        *flag("asks", asks),
    ]
    tolerance = tolerance if named else "change_percent"
    return Reconciliation(
        name,
        Level.CHANGE,
        "Rows and measured sums of each chunk changed against the accepted version by no more than is tolerated.",
        partial(_change, tolerance=tolerance, asks=asks),
        tolerances={tolerance: percent if is_amount(percent) else 0.0},
        needs=Needs(tolerances=(tolerance,)),
        mistakes=tuple(mistakes),
    )


def _change(context: ReconciliationContext, *, tolerance: str, asks: bool) -> Finding:
    comparable = sorted(chunk for chunk, measures in context.accepted.items() if measures is not None)
    if not comparable:
        return Finding(True, "no accepted version to compare with", {"comparable_chunks": 0})
    limit, rows = context.tolerances[tolerance], context.rows()
    old = {chunk: _sums(context.accepted[chunk] or ()) | {_ROWS: rows[chunk].accepted} for chunk in comparable}
    new = {
        chunk: _sums(row for row in context.after if row["chunk"] == chunk) | {_ROWS: rows[chunk].after}
        for chunk in comparable
    }
    # a sum that one of the two versions was not measured by says nothing of a change: one without rows has none of any
    names = {name for sums in old.values() for name in sums} & {name for sums in new.values() for name in sums}
    measured = {name: [one for one in comparable if name in old[one] or not old[one][_ROWS]] for name in sorted(names)}
    changed: list[dict[str, Any]] = []
    for name, chunks in measured.items():
        for chunk in chunks:
            before, now = old[chunk].get(name, 0), new[chunk].get(name, 0)
            if off(before, now, relative=True) > limit:
                changed.append(
                    {
                        "chunk": chunk,
                        "measure": name,
                        "accepted": before,
                        "staged": now,
                        "change": f"{(now - before) * 100.0 / abs(before):+.2f}%" if before else "from nothing",
                    }
                )
    failing = {row["chunk"] for row in changed}
    totals = {
        name: [sum(side[one].get(name, 0) for one in chunks) for side in (old, new)]
        for name, chunks in measured.items()
    }
    changed.sort(key=lambda row: (-abs(row["staged"] - row["accepted"]), str(row)))
    said = "; ".join(f"{name} {before:,} -> {now:,}" for name, (before, now) in totals.items())
    return Finding(
        not changed,
        f"{said}; {len(failing)} of {len(comparable)} chunks changed by more than {limit:g}%",
        {
            "comparable_chunks": len(comparable),
            "limit": limit,
            "totals": {name: {"accepted": before, "staged": now} for name, (before, now) in totals.items()},
        },
        asks=asks and bool(changed),
        compared=len(comparable),
        disagreeing=len(failing),
        slices=changed[:SLICES],
    )


def _sums(measures: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Add up what was measured of one chunk: its integers are sums, everything else is a slice."""
    found: dict[str, int] = {}
    for row in measures:
        for name, value in row.items():
            if isinstance(value, int) and not isinstance(value, bool):
                found[name] = found.get(name, 0) + value
    return found


@declared_with
def record_gate(
    key: tuple[str, ...],
    name: str = "every_entity_is_present",
    *,
    zone: str = "UTC",
    carried: bool = False,
) -> Reconciliation:
    """Return a gate that each entity of the source's rows of the publish range is there, and no other is.

    Args:
        key: the columns, of source and target, that identify an entity. Where the target declares an outline, it has them.
        name: of the gate.
        zone: the time zone whose days the target has.
        carried: whether the transform also has rows of entities whose source rows are all earlier.
    """
    key, mistakes = _columns("key", key)
    mistakes += named_apart("key", key, ("in_source", "there", "eligible", "missing", "extra"))
    entities = Entities(
        Comparison(
            name, partial(_present, key=key, zone=zone, carried=carried), key, (), ("eligible", "missing", "extra")
        ),
        wrong=(Wrong("missing", "missing"), Wrong("extra", "extra")),
        expected=("in_source",),
        found=("there",),
        needs=Needs(source=key, target=key, zone=zone, tolerances=()),
    )
    said = "Each {} of the source's rows of the range is there, and no other is."
    gate = record_level(name, said.format(", ".join(key)), entities)
    return replace(gate, mistakes=(*mistakes, *flag("carried", carried)))


def _present(context: ReconciliationContext, *, key: tuple[str, ...], zone: str, carried: bool) -> DataFrame:
    day, scope = source_day(context, zone), context.transform.publish_range
    rows = context.source.where(day <= F.lit(scope.end))
    in_source = rows.groupBy(*key).agg(F.bool_or(day >= F.lit(scope.start)).alias("in_source"))
    there = context.staged.select(*key).distinct().withColumn("there", F.lit(True))
    both = each_of(in_source, there, key)
    known = F.col("in_source").isNotNull() if carried else F.coalesce("in_source", F.lit(False))
    is_in_range, is_there = F.coalesce("in_source", F.lit(False)), F.col("there").isNotNull()
    return both.withColumns(
        {"eligible": is_in_range, "missing": is_in_range & ~is_there, "extra": is_there & ~known},
    )


@declared_with
def duplicate_gate(
    columns: tuple[str, ...], name: str = "no_source_row_is_there_twice", *, zone: str = "UTC"
) -> Reconciliation:
    """Return a gate that no two source rows of the publish range have the same values: that nothing was loaded twice.

    Args:
        columns: the source's columns that two rows may not both have, NULL included.
        name: of the gate.
        zone: the time zone whose days the target has.
    """
    columns, mistakes = _columns("columns", columns)
    mistakes += named_apart("columns", columns, ("expected", "found", "compared", "twice"))
    entities = Entities(
        Comparison(name, partial(_times, columns=columns, zone=zone), columns, (), ("compared", "twice")),
        wrong=(Wrong("twice", "the source has it more than once"),),
        expected=("expected",),
        found=("found",),
        needs=Needs(source=columns, zone=zone, tolerances=()),
    )
    gate = record_level(
        name,
        f"No two source rows of the range have the same {', '.join(columns)}.",
        entities,
        compared="compared",
        summary="{compared:,} different rows in the source's range; {wrong:,} of them are there more than once",
    )
    return replace(gate, mistakes=tuple(mistakes))


def _times(context: ReconciliationContext, *, columns: tuple[str, ...], zone: str) -> DataFrame:
    scope = context.transform.publish_range
    rows = context.source.where(source_day(context, zone).between(F.lit(scope.start), F.lit(scope.end)))
    return (
        rows.groupBy(*columns)
        .agg(F.count("*").alias("found"))
        .withColumns({"expected": F.lit(1), "compared": F.lit(True), "twice": F.col("found") > 1})
    )
