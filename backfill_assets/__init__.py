"""Rewriting the history of Iceberg tables safely; see `TargetTable` for how a team declares a table.

Nothing imported here imports Dagster: Spark's Python workers import this package.
"""

from backfill_assets.schema import Published
from backfill_assets.target import (
    ColumnOrigin,
    Finding,
    Inputs,
    InputTable,
    Level,
    LivePolicy,
    Product,
    Reconciliation,
    ReconciliationContext,
    TargetTable,
    TransformContext,
    TransformVersion,
)

__all__ = [
    "ColumnOrigin",
    "Finding",
    "InputTable",
    "Inputs",
    "Level",
    "LivePolicy",
    "Product",
    "Published",
    "Reconciliation",
    "ReconciliationContext",
    "TargetTable",
    "TransformContext",
    "TransformVersion",
]
