"""The rows of a compaction: those that the target has at the pinned snapshot, as they are, in files of about one size.

Put here how rows are read, ordered and parted into files. Which chunks are rewritten, and into how many files, the plan says
(`manifests.compaction`); that no row was changed by it is the gate's to say (`gates.rewritten`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.planning.scopes import stretch_scopes
from backfill_assets.run_context import RunContext
from backfill_assets.staging.declared_types import with_declared_columns
from backfill_assets.staging.folders import CHUNK_FOLDER, Parts, folder_of, has_plain_chunks, in_folders
from backfill_assets.staging.pinned_rows import read
from backfill_assets.staging.rows import only_chunks
from manifests.plan import PlannedChunk
from resources.lakehouse.facade import PinnedRead
from resources.lakehouse.scopes import any_of

FILE_FOLDER = "file-number"
"""Name of the folder of each file of a chunk: its number, in the order of the key. No model has a column that is named so."""
_ROWS = "_rows_of_a_file"


def scan_of(run: RunContext, chunks: Sequence[PlannedChunk]) -> PinnedRead:
    """Return what a batch of a compaction is given to read: the files of its chunks at the snapshot that it goes on from."""
    target, plan = run.target, run.plan
    where = any_of(stretch_scopes(target, chunks))
    return run.platform.lakehouse.pinned(
        target.name, plan.base_snapshot_id, where, schema_id=plan.schema_of(target.name)
    )


def rewritten_rows(
    run: RunContext,
    chunks: Sequence[PlannedChunk],
    schema: Schema,
    parts: Parts,
    on_read: Callable[[str, PinnedRead], None],
) -> tuple[DataFrame, tuple[str, ...]]:
    """Return the rows of chunks as the pinned snapshot has them, and the columns that name the folders of each.

    Deletes are applied; lineage columns are the rows' own. A chunk's rows come in the order of the key, as many into each file as the
    plan says.
    """
    target, plan, compaction = run.target, run.plan, run.plan.compaction
    assert compaction is not None
    pinned = scan_of(run, chunks)
    on_read("range", pinned)
    rows = only_chunks(read(run.spark, pinned), target, chunks)
    keep = () if has_plain_chunks(target) else (CHUNK_FOLDER,)
    rows = in_folders(with_declared_columns(rows, schema, {}, keep), target, plan.chunking, chunks, parts)
    sizes = run.spark.createDataFrame(
        [(folder_of(chunk), compaction.of(chunk.key).rows_per_file) for chunk in chunks],
        f"_folder string, {_ROWS} long",
    )
    place = F.row_number().over(Window.partitionBy(*parts.folders).orderBy(*target.key)) - 1
    numbered = (
        rows.join(F.broadcast(sizes), F.col(CHUNK_FOLDER).cast("string") == F.col("_folder"))
        .withColumn(FILE_FOLDER, F.floor(place / F.col(_ROWS)).cast("int"))
        .drop("_folder", _ROWS)
    )
    folders = (*parts.folders, FILE_FOLDER)
    return numbered.sortWithinPartitions(*folders, *target.key), folders
