"""Files that Spark has written, written again where they would not be a table's.

Put here what is done to such files of one chunk, in Spark's workers; which tables need it, and what a wrong value means, is
`staging.finishing`'s. Spark gives no field id to what is inside a list or a map, and has no UUID: a reader that goes by field ids,
as Iceberg's Java library does, would find nothing in a list whose elements have none. Memory is one row group's, and of a store
one file's as it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import UUIDType

from backfill_assets.worker.columns import table_of
from backfill_assets.worker.nested import repeats_keys
from backfill_assets.worker.violations import shown_row
from resources.files import stores
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
    rows = 0
    try:
        with stores.opened_input(task.path) as stream, stores.output(task.path) as finished:
            file = pq.ParquetFile(stream)
            with pq.ParquetWriter(finished, schema_to_pyarrow(schema), compression="zstd") as writer:
                for number in range(file.num_row_groups):
                    frame = pl.from_arrow(file.read_row_group(number))
                    assert isinstance(frame, pl.DataFrame)
                    _require_right(schema, key, frame)
                    writer.write_table(table_of(frame, schema))
                    rows += frame.height
    except _WrongValueError as found:
        return Finished(task.chunk, task.path, 0, 0, found.column, found.wrong, found.row)
    if stores.is_local(task.path):
        # of what Spark has written: a checksummed file system would refuse the new content
        place = Path(task.path)
        place.with_name(f".{place.name}.crc").unlink(missing_ok=True)
    return Finished(task.chunk, task.path, rows, stores.size_of(task.path))


class _WrongValueError(Exception):
    """A value that its column's type has not: which column, why, and the key of its row."""

    def __init__(self, column: str, wrong: str, row: dict[str, Any]) -> None:
        super().__init__(column, wrong)
        self.column, self.wrong, self.row = column, wrong, row


def _require_right(schema: Schema, key: tuple[str, ...], frame: pl.DataFrame) -> None:
    """Look for the first column with a value that its type has not.

    Raises:
        _WrongValueError: naming it.
    """
    for field in schema.fields:
        checks = [(REPEATED_KEY, repeats_keys(pl.col(field.name), frame.schema[field.name]))]
        if isinstance(field.field_type, UUIDType):
            checks.append((NO_UUID, (pl.col(field.name).bin.size() != _UUID_BYTES).fill_null(value=False)))
        for why, is_wrong in checks:
            rows = frame.filter(is_wrong)
            if rows.height:
                raise _WrongValueError(field.name, why, shown_row(rows.select(key).row(0, named=True)))


def finishing(schema: str, key: tuple[str, ...]) -> ChunkWork[FinishTask, Finished]:
    """Return the work of finishing files, of a table's schema as Iceberg JSON."""
    return ChunkWork(partial(_finish, schema, key), FinishTask, Finished)


def _finish(schema: str, key: tuple[str, ...], tasks: Iterable[FinishTask]) -> Iterator[Finished]:
    declared = Schema.model_validate_json(schema)
    for task in tasks:
        yield finish(declared, key, task)
