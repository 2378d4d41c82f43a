"""Chunks of a compaction, held against what the target has of them at the pinned snapshot: each row once, in every column.

Put here which files are compared, and what the answer means. What is done to rows is `worker.chunk_rewritten`'s; the rules that
every staged chunk is held against are `worker.chunk_gate`'s, and hold for these as well.
"""

from __future__ import annotations

from collections.abc import Sequence

from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.run_context import RunContext
from backfill_assets.staging.derivation import DerivedVerdict
from backfill_assets.worker.chunk_rewritten import RewrittenSpec, RewrittenTask, comparing
from backfill_assets.worker.remaining_rows import ReadTask
from backfill_assets.worker.violations import require_read
from resources.lakehouse.facade import local_path
from resources.ledger.facade import ChunkRecord


def judge_rewritten(run: RunContext, chunks: Sequence[ChunkRecord]) -> dict[str, DerivedVerdict]:
    """Hold the rows of rewritten chunks against those of the pinned snapshot, by key; empty where rows are computed.

    Raises:
        EnvironmentRefused: if a file could not be read just now.
    """
    plan, target, lakehouse = run.plan, run.target, run.platform.lakehouse
    if plan.compaction is None:
        return {}
    schema = lakehouse.table(target.name).schema().model_dump_json()
    scopes = chunk_scopes(target, [plan.chunk(chunk.chunk) for chunk in chunks], same_rows=True)
    listed = lakehouse.paths_by_chunk(target.name, plan.base_snapshot_id, scopes)
    pinned = lakehouse.pinned(target.name, plan.base_snapshot_id)
    rows, deleted = set(pinned.paths), dict(pinned.deleted)
    tasks = []
    for chunk in chunks:
        base = tuple(_read(chunk.chunk, path, deleted.get(path, ())) for path in sorted(listed[chunk.chunk] & rows))
        own = tuple(_read(chunk.chunk, file.path) for file in chunk.files)
        tasks.append((RewrittenTask(chunk.chunk, base, own), chunk.rows or 0))
    found = run.platform.workers.do(plan.mode, comparing(RewrittenSpec(schema, target.key)), tasks)
    require_read(one for result in found for one in result.violations)
    return {
        result.chunk: DerivedVerdict(
            result.violations,
            f"{result.rows:,} rows, those of snapshot {plan.base_snapshot_id} in every column ({result.digest})",
            None,
        )
        for result in found
    }


def _read(chunk: str, path: str, deletes: Sequence[str] = ()) -> ReadTask:
    return ReadTask(chunk, path, local_path(path), tuple(map(local_path, deletes)))
