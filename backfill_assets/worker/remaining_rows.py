"""The rows that deletes have left of a data file, read in Spark's workers.

Iceberg deletes rows of a file by their positions: in files of positions, or in deletion vectors (Puffin). Put here how such a file
is read; which files have deletes is `resources.lakehouse.reads`'. Imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl
import pyarrow as arrow
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import MAGIC_BYTES, PuffinFile

from backfill_assets.worker.columns import scan_file
from resources.files import stores
from resources.files.stores import StoreAccess
from resources.spark.chunk_work import at_work, tasks_of

_PLACE = "__place"


@dataclass(frozen=True)
class ReadTask:
    """A data file with deletes on it.

    Attributes:
        chunk: names the task.
        file: the file as its table names it, which is how deletes name it; `path` where it is read.
        deletes: where the files that delete rows of it are read.
    """

    chunk: str
    file: str
    path: str
    deletes: tuple[str, ...]


def remaining_rows(
    access: StoreAccess, table: str, columns: Sequence[str], schema: arrow.Schema, batches: Iterator[arrow.RecordBatch]
) -> Iterator[arrow.RecordBatch]:
    """Yield what is left of the files of Arrow batches with a column `task` (JSON: ReadTask); memory is one file's.

    Args:
        access: what opens the files.
        table: the schema by which files are read (Iceberg JSON).
        columns: those that are wanted.
        schema: of what is yielded.
        batches: the tasks.
    """
    with at_work(access):
        for task in tasks_of(ReadTask, batches):
            left = left_of(task, table, columns)
            yield from left.to_arrow().select(schema.names).cast(schema).to_batches()


def left_of(task: ReadTask, table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return what deletes have left of a data file, by a table's schema (Iceberg JSON)."""
    rows = scan_file(task.path, table, columns).select(columns)
    if not task.deletes:
        return rows.collect()
    gone = pl.concat([pl.Series(dtype=pl.Int64), *(_positions(path, task.file) for path in task.deletes)])
    numbered = rows.with_row_index(_PLACE)
    return numbered.filter(~pl.col(_PLACE).cast(pl.Int64).is_in(gone.implode())).drop(_PLACE).collect()


def _positions(path: str, file: str) -> pl.Series:
    """Return the positions of the rows of a data file that a file of deletes deletes."""
    raw = stores.content(path)
    if raw[: len(MAGIC_BYTES)] == MAGIC_BYTES:
        vectors = deletion_vectors_from_puffin_file(PuffinFile(raw))
        found = [one.to_vector() for one in vectors if one.referenced_data_file == file]
        places = [place for vector in found for chunk in vector.chunks for place in chunk.to_pylist()]
        return pl.Series(places, dtype=pl.Int64)
    named = pl.read_parquet(raw, columns=["file_path", "pos"])
    return named.filter(pl.col("file_path").cast(pl.String) == file)["pos"].cast(pl.Int64)
