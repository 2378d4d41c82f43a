"""Sums of number columns, exact, as text: what the gate measures of staged rows, and the diff of both sides.

Put here how a column is added up, so that the two agree to the last digit. Floating-point columns are not added up: their sum
depends on the order of the rows. Runs in Spark's workers: imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Context, Decimal
from functools import reduce
from typing import Any

import polars as pl

from backfill_assets.declarations.schema import LINEAGE_COLUMNS

_EXACT = Context(prec=1_000)
"""Python's own context rounds to 28 digits."""
_HALF = 10**19
"""What a decimal of 38 digits is divided by, so that the sums of both halves fit in 128 bits, whatever rows there are."""


def value_columns(
    columns: Sequence[str], key: Sequence[str], lineage: Sequence[str] = LINEAGE_COLUMNS
) -> tuple[str, ...]:
    """Return the columns of a target that can differ between two rows of one key: neither the key's nor lineage."""
    return tuple(name for name in columns if name not in (*key, *lineage))


def _is_added_up(kind: pl.DataType) -> bool:
    return kind.is_integer() or isinstance(kind, pl.Decimal)


def numeric(rows: pl.DataFrame) -> list[str]:
    """Return the columns that can be added up."""
    return [name for name, kind in rows.schema.items() if _is_added_up(kind)]


def sum_of(name: str, kind: pl.DataType) -> pl.Expr:
    """Return the sum of a column, wide enough for every row there can be; `exact` makes a number of it."""
    if kind.is_integer():
        return pl.col(name).cast(pl.Int128).sum()
    digits = pl.col(name).to_physical().cast(pl.Int128)
    high = digits // _HALF
    return pl.struct(high=high.sum(), low=(digits - high * _HALF).sum())


def exact(total: Any, kind: pl.DataType) -> Any:
    """Return what `sum_of` found as an integer, or a decimal with every digit."""
    if not isinstance(kind, pl.Decimal):
        return total
    digits = total["high"] * _HALF + total["low"]
    return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -kind.scale))


def sums_of(rows: pl.LazyFrame) -> dict[str, Any]:
    """Return the sum of each column that can be added up."""
    kinds = {name: kind for name, kind in rows.collect_schema().items() if _is_added_up(kind)}
    if not kinds:
        return {}
    found = rows.select(sum_of(name, kind).alias(name) for name, kind in kinds.items()).collect().row(0, named=True)
    return {name: exact(found[name], kind) for name, kind in kinds.items()}


def sums_by(rows: pl.DataFrame, place: str) -> dict[int, dict[str, Any]]:
    """Return what `sums_of` returns of the rows that have the same number in a column, by that number."""
    kinds = {name: kind for name, kind in rows.schema.items() if name != place and _is_added_up(kind)}
    if not kinds:
        return {}
    sums = (sum_of(name, kind).alias(name) for name, kind in kinds.items())
    found = rows.group_by(place).agg(sums).iter_rows(named=True)
    return {row[place]: {name: exact(row[name], kind) for name, kind in kinds.items()} for row in found}


def plus(one: Any, other: Any) -> Any:
    """Return the sum of two sums, with every digit."""
    return _EXACT.add(one, other) if isinstance(one, Decimal) else one + other


def total_of(sums: Iterable[str]) -> Decimal:
    """Return what sums as text add up to, with every digit."""
    return reduce(_EXACT.add, map(Decimal, sums), Decimal(0))


def added(sums: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sums of one more file to those of the files before it."""
    return {name: plus(sums[name], value) if name in sums else value for name, value in more.items()}


def as_text(sums: Mapping[str, Any]) -> dict[str, str]:
    """Return sums as JSON can hold them without losing a digit."""
    return {name: str(value) for name, value in sums.items()}


def difference(before: str, after: str) -> str:
    """Return by how much a sum changed."""
    return str(_EXACT.subtract(Decimal(after), Decimal(before)))
