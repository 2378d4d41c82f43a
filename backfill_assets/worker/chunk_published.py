"""What readers of a target see, looked at chunk by chunk in Spark's workers: judged, measured, outlined. Writes nothing.

Put here what a worker does with published files; what becomes of it is `reconciliation.published_chunks`'. Imports neither
Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
import pyarrow as arrow

from backfill_assets.worker.chunk_gate import gate_chunks, merged_measures
from backfill_assets.worker.columns import UNREADABLE, scan_file
from backfill_assets.worker.gate_tasks import GateResult, GateSpec, GateTask
from backfill_assets.worker.references import imported_by_path
from backfill_assets.worker.tallying import Counted
from manifests.canonical import plain
from resources.files.stores import StoreAccess
from resources.spark.chunk_work import ChunkWork, at_work, tasks_of


@dataclass(frozen=True)
class OutlineTask:
    """The files of one chunk that are outlined."""

    chunk: str
    paths: tuple[str, ...]


def judging(spec: GateSpec) -> ChunkWork[GateTask, GateResult]:
    """Return the work of judging published chunks.

    It is done as the chunk gate does it, but a chunk that breaks a rule is measured all the same: what it holds is what
    readers see.
    """
    return ChunkWork(partial(_judge, spec), GateTask, GateResult)


def _judge(spec: GateSpec, tasks: Iterable[GateTask]) -> Iterator[GateResult]:
    given: dict[str, GateTask] = {}

    def noted() -> Iterator[GateTask]:
        for task in tasks:
            given[task.chunk] = task
            yield task

    for result in gate_chunks(spec, noted()):
        task = given.pop(result.chunk)
        if result.passed:
            yield result
            continue
        measures, tallies = _measured(spec, task)
        yield replace(result, measures=measures, tallies=tallies)


def _measured(spec: GateSpec, task: GateTask) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the measures of a chunk that breaks a rule, and its tallies, as far as its files can be read."""
    measures: pl.DataFrame | None = None
    counted = Counted(spec.tallies)
    for path in task.paths if spec.measure is not None or spec.tallies else ():
        try:
            rows = scan_file(path, spec.schema).collect()
            counted.add(rows)
            if spec.measure is not None:
                measures = merged_measures(measures, imported_by_path(spec.measure)(rows))
        except UNREADABLE:
            continue  # the chunk's own verdict says that the file cannot be read, or lacks a column
    return [] if measures is None else list(plain(measures.to_dicts())), counted.as_record()


def outline_batches(
    access: StoreAccess, outline: str, table: str, schema: arrow.Schema, batches: Iterator[arrow.RecordBatch]
) -> Iterator[arrow.RecordBatch]:
    """Yield the outlines of the files of Arrow batches with a column `task` (JSON: OutlineTask), with the columns of `schema`.

    `access` opens the files, and `table` is the schema of the table (Iceberg JSON), by which they are read.
    """
    with at_work(access):
        for task in tasks_of(OutlineTask, batches):
            for path in task.paths:
                rows = imported_by_path(outline)(scan_file(path, table).collect()).select(schema.names)
                yield from rows.to_arrow().cast(schema).to_batches()
