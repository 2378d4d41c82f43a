"""Pinned files as frames: read natively by Parquet field id, and by workers where rows of them are deleted, or the engine is not Spark.

Put here how the files of a `PinnedRead` become a frame. Which files these are is `resources.lakehouse.reads`'; what a policy
leaves of the rows, `compute`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.types import to_arrow_schema

from backfill_assets.declarations.schema import spark_schema
from backfill_assets.worker.remaining_rows import ReadTask, remaining_rows
from resources.lakehouse.facade import PinnedRead, local_path
from resources.spark.chunk_work import task_text
from resources.spark.engines import other_engine


def read(spark: SparkSession, pinned: PinnedRead, columns: Sequence[str] | None = None) -> DataFrame:
    """Return a pinned read as a frame; no catalog is involved."""
    schema = spark_schema(pinned.schema, columns)
    deleted = dict(pinned.deleted)
    if other_engine(spark) is not None:  # it finds columns by their names, which a table's may have changed
        deleted = dict.fromkeys(pinned.paths, ()) | deleted
        pinned = replace(pinned, deleted=tuple(deleted.items()))
    whole = [path for path in pinned.paths if path not in deleted]
    frames = [spark.read.schema(schema).parquet(*whole)] if whole else []
    if deleted:
        frames.append(_remaining(spark, pinned, columns))
    if not frames:
        return spark.createDataFrame([], schema)
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def _remaining(spark: SparkSession, pinned: PinnedRead, columns: Sequence[str] | None) -> DataFrame:
    """Return what deletes have left of files, read by workers: a file a task, spread over the session's partitions."""
    schema = spark_schema(pinned.schema, columns, field_ids=False)
    slots = min(len(pinned.deleted), int(spark.conf.get("spark.sql.shuffle.partitions") or 1))
    tasks = [
        (number % slots, task_text(ReadTask(path, path, local_path(path), tuple(map(local_path, deletes)))))
        for number, (path, deletes) in enumerate(pinned.deleted)
    ]
    table = pinned.schema.model_dump_json()
    function = partial(remaining_rows, pinned.access, table, schema.names, to_arrow_schema(schema))
    spread = spark.createDataFrame(tasks, "slot int, task string").repartitionById(slots, F.col("slot"))
    return spread.mapInArrow(function, schema)
