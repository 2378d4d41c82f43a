"""Rewriting the history of Iceberg tables safely; see `TargetTable` for how a team declares a table.

Nothing imported here imports Dagster: Spark's Python workers import this package.
"""

from backfill_assets.quarantine import Quarantine
from backfill_assets.reconciliation import (
    Comparison,
    Entities,
    Wrong,
    keys,
    outcome_level,
    record_level,
    state_level,
)
from backfill_assets.schema import Corrections, Instant, Published, row_rule
from backfill_assets.standard_gates import change_gate, duplicate_gate, record_gate
from backfill_assets.target import (
    ColumnOrigin,
    CorrectionsTable,
    Finding,
    Inputs,
    InputTable,
    Level,
    LivePolicy,
    Needs,
    Outline,
    Product,
    Reconciliation,
    ReconciliationContext,
    ReconciliationPolicy,
    TargetTable,
    TransformContext,
    TransformVersion,
)
from manifests.chunks import Chunking

__all__ = [
    "Chunking",
    "ColumnOrigin",
    "Comparison",
    "Corrections",
    "CorrectionsTable",
    "Entities",
    "Finding",
    "InputTable",
    "Inputs",
    "Instant",
    "Level",
    "LivePolicy",
    "Needs",
    "Outline",
    "Product",
    "Published",
    "Quarantine",
    "Reconciliation",
    "ReconciliationContext",
    "ReconciliationPolicy",
    "TargetTable",
    "TransformContext",
    "TransformVersion",
    "Wrong",
    "change_gate",
    "duplicate_gate",
    "keys",
    "outcome_level",
    "record_gate",
    "record_level",
    "row_rule",
    "state_level",
]
