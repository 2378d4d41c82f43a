"""Records of a topic that lie in Parquet files: what offsets these have, and how a worker copies some of them.

Put here what is known of a file of an archive. Which of its offsets are landed is `ingestion.archived_topics`'. Imported by Spark's Python
workers: nothing of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from backfill_assets.declarations.schema import polars_type
from backfill_assets.declarations.topics import TIME_TYPES
from backfill_assets.extraction.record_files import RecordFiles
from backfill_assets.worker.columns import UNREADABLE
from manifests.errors import Problem
from manifests.log_ranges import LogRange

_RULE = "an archive has records as they are landed: the columns of `ba.TopicRecord`, but for load_id"
_FIX = "correct the archive, or write it anew; nothing was landed"
_ROWS = 50_000
"""Rows that are written at once."""
_LOAD = "load_id"


@dataclass(frozen=True)
class ArchivedFile:
    """A file of an archive: its offsets, a range for each partition that it has, from its first record to its last."""

    path: str
    ranges: tuple[LogRange, ...]


@dataclass(frozen=True)
class CopyTask:
    """Ranges of a file to copy; `chunk` is the file."""

    chunk: str
    ranges: tuple[LogRange, ...]
    folder: str
    load_id: str


@dataclass(frozen=True)
class Copied:
    """What was copied of one range of a file. Times are microseconds since 1970, None without a record."""

    chunk: str
    partition: int
    start: int
    until: int
    files: tuple[str, ...]
    rows: int
    first_time: int | None
    last_time: int | None


def files_below(place: Path) -> list[str]:
    """Return the Parquet files that a place is, or has below it, in order."""
    return [str(place)] if place.is_file() else sorted(str(one) for one in place.rglob("*.parquet") if one.is_file())


def looked_at(path: str, schema: Schema) -> ArchivedFile | Problem:
    """Return which offsets a file has, or why it is no file of an archive of a table with such columns."""
    kinds = {field.name: polars_type(field.field_type) for field in schema.fields if field.name != _LOAD}
    lazy = pl.scan_parquet(path, hive_partitioning=False)
    try:
        own = lazy.collect_schema()
        wrong = [name for name, kind in kinds.items() if not _reads_as(own.get(name), kind)]
        if wrong:
            said = ", ".join(f"{name} is {own.get(name, 'missing')}" for name in wrong)
            return Problem(f"{path}: {said}", _RULE, _FIX)
        place = (pl.col("log_partition"), pl.col("log_offset"))
        odd = (
            pl.any_horizontal(one.is_null() | (one < 0) for one in place)
            | ~pl.col("record_time_type").is_in(TIME_TYPES).fill_null(False)
            | pl.col("record_headers").is_null()
        )
        found = (
            lazy.group_by("log_partition")
            .agg(
                pl.col("log_offset").min().alias("first"),
                pl.col("log_offset").max().alias("last"),
                pl.len().alias("rows"),
                pl.col("log_offset").n_unique().alias("offsets"),
                odd.sum().alias("odd"),
            )
            .sort("log_partition")
            .collect()
        )
    except UNREADABLE as error:
        return Problem(f"{path} cannot be read: {type(error).__name__}", "an archive is Parquet files", _FIX)
    if odd_rows := found["odd"].sum():
        return Problem(f"{path}: {odd_rows:,} rows have no place, no time type or no list of headers", _RULE, _FIX)
    if repeated := (found["rows"] - found["offsets"]).sum():
        return Problem(f"{path}: {repeated:,} offsets are there more than once", "a record has one offset", _FIX)
    return ArchivedFile(path, tuple(LogRange(one[0], one[1], one[2] + 1) for one in found.iter_rows()))


def _reads_as(own: pl.DataType | None, kind: pl.DataType) -> bool:
    """Whether values of a file's column are those of the table's, whatever the width of a number or the unit of a time."""
    if own is None:
        return False
    if kind.is_integer():
        return own.is_integer()
    if isinstance(kind, pl.Datetime):
        return isinstance(own, pl.Datetime) and own.time_zone is not None
    return own == kind


def copy_files(schema: str, tasks: Iterator[CopyTask]) -> Iterator[Copied]:
    """Copy ranges of files, one after the other, each into files of its own, in the order of their offsets.

    Args:
        schema: the table's columns, Iceberg's JSON.
        tasks: what to copy.
    """
    table = Schema.model_validate_json(schema)
    kinds = pl.Schema({field.name: polars_type(field.field_type) for field in table.fields if field.name != _LOAD})
    for task in tasks:
        for one in task.ranges:
            within = (pl.col("log_partition") == one.partition) & pl.col("log_offset").is_between(
                one.start, one.until, closed="left"
            )
            lazy = pl.scan_parquet(task.chunk, hive_partitioning=False).select(list(kinds)).filter(within)
            rows = lazy.sort("log_offset").collect().cast(kinds)
            yield _copied(rows, one, task, schema_to_pyarrow(table), table.column_names)


def _copied(rows: pl.DataFrame, one: LogRange, task: CopyTask, kinds: arrow.Schema, names: Sequence[str]) -> Copied:
    order = [name for name in names if "." not in name]
    with RecordFiles(task.folder, one.partition, kinds) as files:
        for part in rows.iter_slices(_ROWS):
            whole = part.with_columns(pl.lit(task.load_id).alias(_LOAD)).select(order)
            files.write(whole.to_arrow().cast(kinds), int(whole.estimated_size()))
    times = rows["record_time"].dt.epoch("us")
    return Copied(
        task.chunk,
        one.partition,
        one.start,
        one.until,
        tuple(files.paths),
        rows.height,
        times.min(),  # type: ignore[arg-type]  # Polars: any value
        times.max(),  # type: ignore[arg-type]
    )
