"""Files that Spark has written, written again where they would not be a table's.

Put here what is done to such files of one chunk, in Spark's workers; which tables need it, and what a wrong value means, is
`staging.finishing`'s. Spark gives no field id to what is inside a list or a map, and has no UUID: a reader that goes by field ids,
as Iceberg's Java library does, would find nothing in a list whose elements have none. Memory is one row group's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType

from backfill_assets.worker.columns import table_of
from backfill_assets.worker.nested import repeats_keys
from backfill_assets.worker.violations import shown_row
from resources.spark.chunk_work import ChunkWork

REPEATED_KEY, NO_UUID = "a map has a key twice", "a UUID has not 16 bytes"
_UUID_BYTES = 16


@dataclass(frozen=True)
class FinishTask:
    """A file of a chunk."""

    chunk: str
    path: str


@dataclass(frozen=True)
class Finished:
    """A file that was written again, in its place: its rows and bytes; or the column of which a value is wrong, why, and its row."""

    chunk: str
    path: str
    rows: int
    size: int
    column: str = ""
    wrong: str = ""
    row: dict[str, Any] | None = None


def finish(schema: Schema, key: tuple[str, ...], task: FinishTask) -> Finished:
    """Write a file again as a schema has it, whole or not at all: every field id, UUIDs, and map entries in the order of their keys."""
    filesystem, name = pafs.FileSystem.from_uri(task.path) if "://" in task.path else (None, task.path)
    filesystem = filesystem or pafs.LocalFileSystem()
    partial_name, rows = f"{name}.{uuid4().hex}.partial", 0
    with filesystem.open_input_file(name) as stream:
        file = pq.ParquetFile(stream)
        with pq.ParquetWriter(
            partial_name, schema_to_pyarrow(schema), filesystem=filesystem, compression="zstd"
        ) as writer:
            for number in range(file.num_row_groups):
                frame = pl.from_arrow(file.read_row_group(number))
                assert isinstance(frame, pl.DataFrame)
                if (found := _wrong(schema, key, frame)) is not None:
                    column, wrong, row = found
                    break
                writer.write_table(table_of(frame, schema))
                rows += frame.height
            else:
                column, wrong, row = "", "", None
    if wrong:
        filesystem.delete_file(partial_name)
        return Finished(task.chunk, task.path, 0, 0, column, wrong, row)
    filesystem.move(partial_name, name)
    folder, _, own = name.rpartition("/")
    checksum = (
        f"{folder}/.{own}.crc"  # of what Spark has written: a checksummed file system would refuse the new content
    )
    if filesystem.get_file_info(checksum).type is pafs.FileType.File:
        filesystem.delete_file(checksum)
    return Finished(task.chunk, task.path, rows, filesystem.get_file_info(name).size)


def _wrong(schema: Schema, key: tuple[str, ...], frame: pl.DataFrame) -> tuple[str, str, dict[str, Any]] | None:
    """Return the first column with a value that its type has not, why, and the key of its row."""
    for field in schema.fields:
        checks = [(REPEATED_KEY, repeats_keys(pl.col(field.name), frame.schema[field.name]))]
        if isinstance(field.field_type, UUIDType):
            checks.append((NO_UUID, (pl.col(field.name).bin.size() != _UUID_BYTES).fill_null(value=False)))
        for why, is_wrong in checks:
            rows = frame.filter(is_wrong)
            if rows.height:
                return field.name, why, shown_row(rows.select(key).row(0, named=True))
    return None


def finishing(schema: str, key: tuple[str, ...]) -> ChunkWork[FinishTask, Finished]:
    """Return the work of finishing files, of a table's schema as Iceberg JSON."""
    return ChunkWork(partial(_finish, schema, key), FinishTask, Finished)


def _finish(schema: str, key: tuple[str, ...], tasks: Iterable[FinishTask]) -> Iterator[Finished]:
    declared = Schema.model_validate_json(schema)
    for task in tasks:
        yield finish(declared, key, task)
