"""Correction events of one chunk: its computed rows against those that readers see today.

Put here how a correction is made and known. How workers are sent it, and what is merged instead, is `chunk_merge`'s. Imports
neither Dagster nor PySpark's SQL. Memory is both sides of one chunk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from backfill_assets.worker.derive_tasks import Derived, DeriveTask
from backfill_assets.worker.derived_files import ONE_PARTITION, PartitionedBy, read, rows_of, write
from backfill_assets.worker.nested import as_text as value_as_text
from backfill_assets.worker.nested import differs
from backfill_assets.worker.violations import shown_value

ADDED, CHANGED, REMOVED = "ADDED", "CHANGED", "REMOVED"


@dataclass(frozen=True)
class CorrectionSpec:
    """How corrections are made: `schema` is the corrections table's as JSON, `values` the columns that are compared.

    `base` is the schema of the table that is corrected, as JSON: by it today's rows are read. `by` is how files of the
    corrections table are partitioned.
    """

    schema: str
    target: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    reason: str
    lineage: Mapping[str, Any]
    base: str = ""
    by: PartitionedBy = ONE_PARTITION


def correct(spec: CorrectionSpec, task: DeriveTask) -> Derived:
    """Write one correction for each key whose row was added, changed or removed against today's rows."""
    columns = [*spec.key, *spec.values]
    new, old = rows_of(task.computed), rows_of(task.base, spec.base)
    if new is None and old is None:
        return Derived(task.chunk, [], [])
    known = new if new is not None else old
    assert known is not None
    new = known.clear() if new is None else new
    old = known.clear() if old is None else old
    before = old.select(*columns, pl.col("run_id").alias("corrects_run_id"), _old=pl.lit(True))
    after = new.select(*columns, _new=pl.lit(True))
    both = before.join(after, on=spec.key, how="full", coalesce=True, suffix="__new")
    was, now = pl.col("_old").fill_null(False), pl.col("_new").fill_null(False)
    differ = pl.any_horizontal(differs(name, f"{name}__new", known.schema[name]) for name in spec.values)
    event = pl.when(~was).then(pl.lit(ADDED)).when(~now).then(pl.lit(REMOVED)).otherwise(pl.lit(CHANGED))
    changed = both.filter(~(was & now) | differ).select(
        *spec.key,
        "corrects_run_id",
        event_type=event,
        old_values=pl.when(was).then(_as_json(spec.values, known.schema, "")),
        new_values=pl.when(now).then(_as_json(spec.values, known.schema, "__new")),
    )
    counts = {name.lower(): changed.filter(pl.col("event_type") == name).height for name in (ADDED, CHANGED, REMOVED)}
    ids = [_correction_id(spec, row) for row in changed.iter_rows(named=True)]
    changed = changed.with_columns(
        pl.Series("correction_id", ids, pl.String),
        pl.lit(spec.reason).alias("reason"),
        *(pl.lit(value).alias(name) for name, value in spec.lineage.items()),
    ).sort("correction_id")
    counts["issued_before"] = _issued(changed, task.issued)
    return Derived(task.chunk, write(changed, spec.schema, spec.by, task.output), [], counts)


def _as_json(names: Sequence[str], kinds: Mapping[str, pl.DataType], suffix: str) -> pl.Expr:
    fields = [value_as_text(pl.col(f"{name}{suffix}"), kinds[name]).alias(name) for name in names]
    return pl.struct(fields).struct.json_encode()


def _correction_id(spec: CorrectionSpec, row: Mapping[str, Any]) -> str:
    """Return the id of a pair: the accepted row and what it is corrected to. Equal pairs have equal ids, whoever asks."""
    pair = [spec.target, *(str(shown_value(row[name])) for name in spec.key)]
    pair += [str(row[name]) for name in ("corrects_run_id", "old_values", "new_values")]
    return hashlib.sha256(json.dumps(pair).encode()).hexdigest()


def _issued(changed: pl.DataFrame, issued: Sequence[str]) -> int:
    if not issued or not changed.height:
        return 0
    known = pl.concat([read(path, columns=["correction_id"]) for path in issued])
    return changed.join(known, on="correction_id", how="semi").height
