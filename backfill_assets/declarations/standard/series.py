"""Gates of a figure from day to day: one that may not fall, as a cumulative one, or that changes within bounds.

Put here what compares a day with the day before it, slice by slice. How much a chunk has changed against its accepted version is
asked in `standard_gates`. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import IntegralType

from backfill_assets.declarations.exception_texts import text_of
from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, several, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.reconciliations import SLICES
from backfill_assets.declarations.standard.parts import (
    FOUND,
    amount,
    count,
    gate_name,
    is_number,
    of_kind,
    table_of,
    tolerances,
)
from backfill_assets.declarations.standard.parts import (
    column as a_column,
)
from backfill_assets.declarations.target import (
    Finding,
    Level,
    Reconciliation,
    ReconciliationContext,
    Tables,
    TargetTable,
)
from manifests.chunks import Chunking
from manifests.errors import Problem

_DAY, _VALUE, _BEFORE, _STEP = "_day", "_value", "_before", "_step"


@declared_with
def monotonic_gate(
    column: str,
    by: tuple[str, ...] = (),
    name: str | None = None,
    *,
    falling: bool = False,
    tolerated: float = 0.0,
    days_around: int = 31,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that a figure never falls from one day to the next, slice by slice: that of a cumulative one.

    Args:
        column: the number; over the rows of a slice and day it is added up.
        by: the columns of a slice; none: all rows of a day together.
        name: of the gate; `<column>_never_falls` (or `rises`) unless given. Its tolerance is `<name>_tolerated`.
        falling: whether it never rises instead.
        tolerated: by how much it may fall all the same, in its own unit.
        days_around: how many days before the run's chunks, and after them, are looked at for the neighbours of their days.
        asks: whether an owner may accept it with a reason.
    """
    gate = gate_name(name, "{}_never_rises" if falling is True else "{}_never_falls", column)
    limits = {"tolerated": tolerated}
    mistakes = [*flag("falling", falling), *amount("tolerated", tolerated)]
    bounds = (None, f"{gate}_tolerated") if falling is not True else (f"{gate}_tolerated", None)
    said = f"{column} never {'rises' if falling is True else 'falls'} from one day to the next, slice by slice."
    return _of_series(gate, said, column, by, limits, bounds, mistakes, relative=False, around=days_around, asks=asks)


@declared_with
def bounded_change_gate(
    column: str,
    by: tuple[str, ...] = (),
    name: str | None = None,
    *,
    rise: float | None = None,
    fall: float | None = None,
    absolute: bool = False,
    days_around: int = 31,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that a figure changes from one day to the next by no more than some bounds, slice by slice.

    Arguments that `monotonic_gate` has are as there.

    Args:
        column: the number.
        by: the columns of a slice.
        name: of the gate; `<column>_changes_within_bounds` unless given. Its tolerances are `<name>_rise` and `<name>_fall`.
        rise: by how much it may rise, in percent of the day before; None: by any amount.
        fall: by how much it may fall, the same.
        absolute: whether the bounds are in the unit of the figure rather than in percent.
        days_around: how many days around the run's chunks are looked at.
        asks: whether an owner may accept it with a reason.
    """
    gate = gate_name(name, "{}_changes_within_bounds", column)
    limits = {"rise": rise, "fall": fall}
    mistakes = [one for which, value in limits.items() for one in amount(which, value, optional=True)]
    some = rise is not None or fall is not None
    mistakes += [
        *unless(some, "each of rise and fall", None, "one of them is a bound", "rise=50.0"),
        *flag("absolute", absolute),
    ]
    bounds = (None if rise is None else f"{gate}_rise", None if fall is None else f"{gate}_fall")
    said = f"{column} changes from one day to the next within the bounds, slice by slice."
    relative = absolute is not True
    return _of_series(
        gate, said, column, by, limits, bounds, mistakes, relative=relative, around=days_around, asks=asks
    )


def _of_series(
    gate: str,
    description: str,
    column: Any,
    by: Any,
    limits: dict[str, Any],
    bounds: tuple[str | None, str | None],
    mistakes: list[Any],
    *,
    relative: bool,
    around: Any,
    asks: Any,
) -> Reconciliation:
    named = tolerances(gate, limits)
    mistakes = [
        *a_column("column", column),
        *several("by", by, some=False),
        *named_apart("by", by, ("day", "day_before", "before", "figure", "step", *FOUND)),
        *mistakes,
        *count("days_around", around, least=1),
        *flag("asks", asks),
    ]
    slices, figure = texts(by), column if isinstance(column, str) else ""
    check = partial(
        _steps, column=figure, by=slices, bounds=bounds, relative=relative, around=around, asks=asks is True
    )
    return Reconciliation(
        gate,
        Level.STATE,
        description,
        check,
        tolerances=named,
        needs=Needs(tolerances=tuple(named), rows=(*((figure,) if figure else ()), *slices)),
        mistakes=tuple(mistakes),
        against=partial(_of_figure, gate=gate, column=figure),
    )


def _of_figure(target: TargetTable, tables: Tables, *, gate: str, column: str) -> Any:
    where = f"{target.name}: gate {gate}"
    if target.chunking is Chunking.WHOLE:
        what, rule = f"{target.name} has no time", "the gate compares a day with the one before it"
        yield Problem(what, rule, "leave the gate out", where)
    yield from of_kind(where, (column,), tables.get(target.name) or {}, "a number, which can be added up", is_number)


def _steps(
    context: ReconciliationContext,
    *,
    column: str,
    by: tuple[str, ...],
    bounds: tuple[str | None, str | None],
    relative: bool,
    around: int,
    asks: bool,
) -> Finding:
    rise, fall = (None if name is None else Decimal(str(context.tolerances[name])) for name in bounds)
    scope = context.transform.publish_range
    steps = _each_step(context, column, by, around).withColumn("_wrong", _is_beyond(rise, fall, relative=relative))
    counted = steps.agg(
        F.count("*").alias("days"), F.count(_BEFORE).alias("compared"), F.count_if("_wrong").alias("wrong")
    ).collect()[0]
    compared, wrong = counted["compared"], counted["wrong"]
    unit = "%" if relative else ""
    words = [
        f"{what} by more than {float(limit):g}{unit}"
        for what, limit in (("rise", rise), ("fall", fall))
        if limit is not None
    ]
    summary = f"{compared:,} steps of {column} from a day to the next{_by(by)}; {wrong:,} {' or '.join(words)}"
    if not compared:
        summary = f"nothing to compare: no day from {scope.start} to {scope.end} has a day with {column} before it"
    failing = _worst(steps, by) if wrong else []
    return Finding(
        wrong == 0,
        summary,
        {"days": counted["days"], "compared": compared, "wrong": wrong},
        asks=asks and wrong > 0,
        compared=compared,
        disagreeing=wrong,
        slices=failing,
        exceptions=partial(_exceptions, steps, column, by),
    )


def _by(by: tuple[str, ...]) -> str:
    return f" by {' and '.join(by)}" if by else ""


def _each_step(context: ReconciliationContext, column: str, by: tuple[str, ...], around: int) -> DataFrame:
    """Return a row a slice and day: the figure, and that of its last day before; of steps that the run has a part in.

    A day without a figure is left out: the next one that has one is compared with the last one that had.
    """
    scope, day = context.transform.publish_range, _day_of(context)
    visible, figure = context.visible(around), F.col(column)
    # a bigint is full before its sum, or a percent of it, is
    if isinstance(visible.schema[column].dataType, IntegralType):
        figure = figure.cast("decimal(19, 0)")
    rows = visible.groupBy(*by, F.to_date(day).alias(_DAY)).agg(F.sum(figure).alias(_VALUE))
    in_order = Window.partitionBy(*by).orderBy(_DAY)
    found = rows.where(F.col(_VALUE).isNotNull()).withColumns(
        {
            _BEFORE: F.lag(_VALUE).over(in_order),
            "_from": F.lag(_DAY).over(in_order),
        }
    )
    is_own = F.col(_DAY).between(F.lit(scope.start), F.lit(scope.end))
    follows = F.col("_from").between(F.lit(scope.start), F.lit(scope.end))
    return found.where(is_own | F.coalesce(follows, F.lit(False))).withColumn(_STEP, F.col(_VALUE) - F.col(_BEFORE))


def _day_of(context: ReconciliationContext) -> str:
    return table_of(context).day_column


def _is_beyond(rise: Decimal | None, fall: Decimal | None, *, relative: bool) -> Column:
    off = F.abs(F.col(_STEP))
    unit = F.abs(F.col(_BEFORE)) if relative else F.lit(1)
    off = off * 100 if relative else off
    beyond = F.lit(False)
    if rise is not None:
        beyond = beyond | ((F.col(_STEP) > 0) & (off > unit * F.lit(rise)))
    if fall is not None:
        beyond = beyond | ((F.col(_STEP) < 0) & (off > unit * F.lit(fall)))
    return F.coalesce(beyond, F.lit(False))


def _worst(steps: DataFrame, by: tuple[str, ...]) -> list[dict[str, Any]]:
    rows = steps.where("_wrong").orderBy(F.abs(F.col(_STEP)).desc(), *by, _DAY).limit(SLICES).collect()
    return [
        {name: _word(row[name]) for name in by}
        | {"day": row[_DAY].isoformat(), "day_before": row["_from"].isoformat()}
        | {"expected": f"after {row[_BEFORE]}", "found": str(row[_VALUE]), "step": str(row[_STEP])}
        for row in rows
    ]


def _word(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)


def _exceptions(steps: DataFrame, column: str, by: tuple[str, ...]) -> DataFrame:
    wrong = steps.where("_wrong").withColumnsRenamed(
        {_DAY: "day", _BEFORE: "before", "_from": "day_before", _VALUE: "figure"}
    )
    rises = F.when(F.col(_STEP) > 0, f"{column} rises by more than it may").otherwise(
        f"{column} falls by more than it may"
    )
    return wrong.select(
        text_of(*by).alias("slice"),
        text_of("day").alias("key"),
        text_of("day_before", "before").alias("expected"),
        text_of("figure").alias("found"),
        rises.alias("what"),
    )
