"""How many chunks of a run one Spark job takes: what earlier runs have on record of their rows, and the memory of the settings.

Put here what is looked up for a plan, from the ledger, the settings and metadata alone. What follows is `manifests.batch_sizes`' to reckon.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DecimalType, FixedType, PrimitiveType, StringType, UUIDType

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.file_sizes import with_file_sizes
from manifests.batch_sizes import MOST_CHUNKS, BatchSizes, rows_for
from manifests.model import Mode, RunManifest
from manifests.plan import Plan
from resources.ledger.measured import Written
from resources.spark.memory import memory_of

_WORD, _A_WORD_OF_NULLS = 8, 64
"""Bytes of a value in a row of Spark, of which one without a fixed width says where it is; and columns whose NULLs fit into another one."""
_TEXT, _NESTED, _WIDE = 24, 64, 16
_OF_SORTING = 24
"""Bytes that a row takes besides while it is sorted."""


def with_sizes(platform: Platform, target: TargetTable, plan: Plan, manifest: RunManifest) -> Plan:
    """Return a plan with how large its batches and files are; as it is where nothing is computed.

    Raises:
        PlanRefused: if the table has a size of files that is none, or Spark's settings a memory that is none.
    """
    if plan.mode is Mode.RECONCILIATION:
        return plan
    table, written = platform.lakehouse.table(target.name), None
    if plan.merge is None and plan.compaction is None:  # which compute some rows, and those that they read
        written = platform.ledger.written(target.name, plan.transform_version, but=plan.run_id)
        plan = _with_known_rows(platform, plan)
    plan = with_file_sizes(platform, target, table, plan, manifest, written)
    return _with_batch_sizes(platform, table.schema(), plan, manifest, written)


def _with_known_rows(platform: Platform, plan: Plan) -> Plan:
    """Return a plan with the rows of its chunks that runs hold today, as those runs have written them."""
    held = platform.ledger.rows_held(plan.target)
    if held.keys().isdisjoint(chunk.key for chunk in plan.chunks):
        return plan
    chunks = (replace(one, writes=held[one.key]) if one.key in held else one for one in plan.chunks)
    return replace(plan, chunks=tuple(chunks))


def _with_batch_sizes(
    platform: Platform, schema: Schema, plan: Plan, manifest: RunManifest, written: Written | None
) -> Plan:
    """Return a plan with how many rows one Spark job takes; as it is where its manifest says how many chunks."""
    if not manifest.limits.leaves_batches_to_the_plan:
        return plan
    memory, said_by = memory_of(platform.settings, plan.mode)
    row_bytes = _bytes_in_memory(schema)
    usual, learned_from = (0, ()) if written is None else (written.rows_a_chunk, written.run_ids)
    sizes = BatchSizes(rows_for(memory, row_bytes), memory, said_by, row_bytes, usual, learned_from)
    return replace(plan, batch_sizes=sizes, max_chunks_per_job=MOST_CHUNKS)


def _bytes_in_memory(schema: Schema) -> int:
    """Return how many bytes a row takes in Spark's memory, by the types of its columns."""
    words_of_nulls = -(-len(schema.fields) // _A_WORD_OF_NULLS)
    return _OF_SORTING + _WORD * words_of_nulls + sum(_width(field.field_type) for field in schema.fields)


def _width(kind: Any) -> int:
    if not isinstance(kind, PrimitiveType):
        return _WORD + _NESTED
    if isinstance(kind, (StringType, BinaryType)):
        return _WORD + _TEXT
    is_wide = isinstance(kind, DecimalType) and kind.precision > 18  # noqa: PLR2004 - the digits of 64 bits
    if is_wide or isinstance(kind, UUIDType):
        return _WORD + _WIDE
    return _WORD + (len(kind) if isinstance(kind, FixedType) else 0)
