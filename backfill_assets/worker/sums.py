"""Sums of number columns, exact, as text: what the gate measures of staged rows, and the diff of both sides.

Put here how a column is added up, so that the two agree to the last digit. Runs in Spark's workers: imports neither
Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import polars as pl

from backfill_assets.declarations.schema import LINEAGE_COLUMNS


def value_columns(columns: Sequence[str], key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a target that can differ between two rows of one key: neither the key's nor lineage."""
    return tuple(name for name in columns if name not in (*key, *LINEAGE_COLUMNS))


def numeric(rows: pl.DataFrame) -> list[str]:
    """Return the columns that can be added up."""
    return [name for name, kind in rows.schema.items() if kind.is_numeric()]


def sum_of(name: str, kind: pl.DataType) -> pl.Expr:
    """Return the sum of a column, wide enough for every row there can be."""
    if kind.is_integer():
        return pl.col(name).cast(pl.Int128).sum()
    return pl.col(name).cast(pl.Decimal(38, kind.scale)).sum() if isinstance(kind, pl.Decimal) else pl.col(name).sum()


def sums_of(rows: pl.LazyFrame) -> dict[str, Any]:
    """Return the sum of each number column."""
    kinds = {name: kind for name, kind in rows.collect_schema().items() if kind.is_numeric()}
    return rows.select(sum_of(name, kind) for name, kind in kinds.items()).collect().row(0, named=True) if kinds else {}


def added(sums: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sums of one more file to those of the files before it."""
    return {name: sums[name] + value if name in sums else value for name, value in more.items()}


def as_text(sums: Mapping[str, Any]) -> dict[str, str]:
    """Return sums as JSON can hold them without losing a digit."""
    return {name: str(value) for name, value in sums.items()}


def difference(before: str, after: str) -> str:
    """Return by how much a sum changed."""
    return str(Decimal(after) - Decimal(before))
