"""Rewriting the history of Iceberg tables safely; see `TargetTable` for how a team declares a table.

Nothing imported here imports Dagster: Spark's Python workers import this package.
"""

from backfill_assets.schema import Instant, Published
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
from manifests.chunks import Chunking

__all__ = [
    "Chunking",
    "ColumnOrigin",
    "Finding",
    "InputTable",
    "Inputs",
    "Instant",
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
