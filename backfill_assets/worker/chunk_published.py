"""What readers of a target see, looked at chunk by chunk in Spark's workers: judged, measured, outlined. Writes nothing.

Put here what a worker does with published files; what becomes of it is `reconciliation.reconcile`'s. Imports neither Dagster nor
PySpark's SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as arrow

from backfill_assets.worker.chunk_gate import gate_chunks, merged_measures
from backfill_assets.worker.columns import scan_file
from backfill_assets.worker.gate_tasks import GateSpec, GateTask, task_from_json
from backfill_assets.worker.references import named
from manifests.canonical import plain


def judge_batches(spec: GateSpec, batches: Iterator[arrow.RecordBatch]) -> Iterator[arrow.RecordBatch]:
    """Judge the published chunks of Arrow batches with columns `chunk` and `task` (JSON); one result row each.

    As the chunk gate does, but a chunk that breaks a rule is measured all the same: what it holds is what readers see.
    """
    pl.Config.set_engine_affinity("in-memory")
    for batch in batches:
        tasks = [task_from_json(text) for text in batch.column("task").to_pylist()]
        given = {task.chunk: task for task in tasks}
        results = [
            result if result.passed else replace(result, measures=_measured(spec, given[result.chunk]))
            for result in gate_chunks(spec, tasks)
        ]
        texts = [json.dumps(plain(result)) for result in results]
        yield arrow.RecordBatch.from_pydict({"chunk": [result.chunk for result in results], "result": texts})


def _measured(spec: GateSpec, task: GateTask) -> list[dict[str, Any]]:
    if spec.measure is None:
        return []
    measures: pl.DataFrame | None = None
    for path in task.paths:
        try:
            rows = scan_file(path, spec.schema).collect()
            measures = merged_measures(measures, named(spec.measure)(rows))
        except (OSError, pl.exceptions.PolarsError):
            continue  # the chunk's own verdict says that the file cannot be read, or lacks a column
    return [] if measures is None else list(plain(measures.to_dicts()))


def outline_batches(
    outline: str, table: str, schema: arrow.Schema, batches: Iterator[arrow.RecordBatch]
) -> Iterator[arrow.RecordBatch]:
    """Yield the outlines of the files of Arrow batches with a column `task` (JSON: paths), with the columns of `schema`.

    `table` is the schema of the table (Iceberg JSON), by which its files are read.
    """
    pl.Config.set_engine_affinity("in-memory")
    for batch in batches:
        for text in batch.column("task").to_pylist():
            for path in json.loads(text):
                rows = named(outline)(scan_file(path, table).collect()).select(schema.names)
                yield from rows.to_arrow().cast(schema).to_batches()
