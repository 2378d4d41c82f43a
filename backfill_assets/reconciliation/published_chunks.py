"""The published chunks that a reconciliation looks at, as they are at its plan's base: files, rows, who had accepted them.

Put here how they are found and read in Spark's workers. What is judged of them is in `reconciliation.verdicts`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from backfill_assets.declarations.schema import spark_schema
from backfill_assets.evidence.digested import digested_columns
from backfill_assets.gates.judging import gate_spec
from backfill_assets.planning.accepted_then import accepted_then
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.run_context import RunContext
from backfill_assets.staging.pinned_rows import read
from backfill_assets.worker.chunk_published import OutlineTask, judging, outline_batches
from backfill_assets.worker.gate_tasks import GateResult, GateTask
from backfill_assets.worker.references import import_path_of
from backfill_assets.worker.violations import require_read
from manifests.plan import Plan
from resources.lakehouse.facade import PinnedRead, local_path
from resources.ledger.facade import ChunkRecord, RunRecord
from resources.spark.workers import SparkWorkers


@dataclass(frozen=True)
class Published:
    """The published files of one chunk; `accepted` is the run and the chunk as it was accepted, if anybody did."""

    chunk: str
    files: tuple[str, ...]
    rows: int
    accepted: tuple[RunRecord, ChunkRecord, Plan] | None


def published_chunks(run: RunContext) -> dict[str, Published]:
    """Return the files of each chunk at the plan's base, and who had accepted it then: others may have published since."""
    platform, target, plan = run.platform, run.target, run.plan
    scopes = chunk_scopes(target, plan.chunks)
    files = platform.lakehouse.file_rows_by_chunk(target.name, plan.base_snapshot_id, scopes)
    holders = accepted_then(platform, target.name, plan.base_snapshot_id, scopes)
    runs = {run_id: platform.ledger.run(run_id) for run_id in sorted(set(holders.values()))}
    plans = {run_id: platform.ledger.plans(record) for run_id, record in runs.items()}
    chunks = {run_id: {chunk.chunk: chunk for chunk in platform.ledger.chunks(run_id)} for run_id in runs}
    return {
        key: Published(
            key,
            tuple(sorted(files[key])),
            sum(files[key].values()),
            (runs[holder], chunks[holder][key], plans[holder][key]) if (holder := holders.get(key)) else None,
        )
        for key in scopes
    }


def read_chunks(run: RunContext, published: Mapping[str, Published]) -> dict[str, GateResult]:
    """Have every published chunk read in Spark's workers: rules, measures, digest. A merged chunk has rows of several runs.

    Each digest is made of the columns that the accepted one was made of: the table may have got more since.
    """
    platform, target, plan = run.platform, run.target, run.plan
    digested = {record.run_id: digested_columns(platform, record) or () for record in _accepted_runs(published)}
    tasks = [
        GateTask(
            one.chunk,
            0,
            plan.chunk(one.chunk).start,
            plan.chunk(one.chunk).end,
            tuple(map(local_path, one.files)),
            one.rows,
            digest=() if one.accepted is None else digested[one.accepted[0].run_id],
            hour=plan.chunk(one.chunk).hour,
            part=plan.chunk(one.chunk).part,
        )
        for one in published.values()
    ]
    schema = platform.lakehouse.table(target.name).schema().model_dump_json()
    spec = replace(gate_spec(run), lineage={}, outline=None, schema=schema)
    found = platform.workers.do(plan.mode, judging(spec), [(task, task.rows) for task in tasks])
    require_read(one for result in found for one in result.violations)
    return {result.chunk: result for result in sorted(found, key=lambda result: result.chunk)}


def _accepted_runs(published: Mapping[str, Published]) -> list[RunRecord]:
    return [one.accepted[0] for one in published.values() if one.accepted is not None]


def outlines_of(run: RunContext, published: Sequence[Published]) -> DataFrame:
    """Return what the reconciliations look at of published rows: their outlines, made while they are read."""
    platform, target, plan = run.platform, run.target, run.plan
    schema = platform.lakehouse.table(target.name).schema()
    if target.outline is None:
        paths = tuple(path for one in published for path in one.files)
        return read(run.spark, PinnedRead(target.name, plan.base_snapshot_id, schema, paths))
    columns = spark_schema(schema, target.outline.columns, field_ids=False)
    tasks = [(OutlineTask(one.chunk, tuple(map(local_path, one.files))), one.rows) for one in published]
    function = partial(
        outline_batches,
        platform.lakehouse.access,
        import_path_of(target.outline.rows),
        schema.model_dump_json(),
        to_arrow_schema(columns),
    )
    return (
        SparkWorkers(platform.spark, lambda: platform.lakehouse.access)
        .spread(plan.mode, tasks)
        .mapInArrow(function, columns)
    )
