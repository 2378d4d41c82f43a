"""Data files that workers read and write themselves: what is published instead of a chunk's own rows.

Put here how such a file is read, and how rows are written into files each of which lies in one partition of its table. Which rows they
are is `chunk_merge`'s; what a partition spec says by itself, `resources.lakehouse.partitions`'. Imported by Spark's Python workers: keep
it light.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.types import IcebergType

from backfill_assets.declarations.divided import internal
from backfill_assets.worker.columns import UNREADABLE, scan, scan_file, table_of
from backfill_assets.worker.partitions import partition_values, several_partitions
from backfill_assets.worker.violations import unreadable
from resources.files import stores
from resources.files.fingerprints import Fingerprint, fingerprint

Partition = tuple[Any, ...]
"""What tells the partitions of a chunk's rows apart; `()` where a chunk has only one."""
_UNITS: dict[type, str] = {HourTransform: "1h", DayTransform: "1d", MonthTransform: "1mo", YearTransform: "1y"}


@dataclass(frozen=True)
class PartitionedBy:
    """By what the rows of one chunk lie in several partitions of a table.

    `parts` are source columns and transforms, as Iceberg writes these; `folder` is how the folder of a file begins that was written by
    them. Both are empty where a chunk has one partition.
    """

    parts: tuple[tuple[str, str], ...] = ()
    folder: str = ""


ONE_PARTITION = PartitionedBy()


class Unreadable(Exception):  # noqa: N818 - what was found, not what went wrong here
    """A file that could not be read, and why."""

    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(f"{path}: {error}")
        self.violation = unreadable(path, error)


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Say of which file what could not be read.

    Raises:
        Unreadable: naming it.
    """
    try:
        yield
    except UNREADABLE as error:
        raise Unreadable(path, error) from error


def read(path: str, schema: str = "", columns: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the rows of a file, as a table's schema (JSON) has them if one is given.

    Raises:
        Unreadable: if it cannot be read.
    """
    with reading(path):
        return scan_file(path, schema, columns).collect()


def read_whole(path: str, schema: str = "") -> tuple[pl.DataFrame, Fingerprint]:
    """Return the rows of a file as `read` does, and the hashes of the very bytes that they are decoded from.

    Raises:
        Unreadable: if it cannot be read.
    """
    with reading(path):
        raw = stores.content(path)
        return scan(raw, schema).collect(), fingerprint(raw)


def rows_of(paths: Sequence[str], schema: str = "") -> pl.DataFrame | None:
    """Return the rows of some files, as `read` does; None where there is no file."""
    frames = [read(path, schema) for path in paths]
    if len({tuple(frame.columns) for frame in frames}) > 1:
        frames = [frame.select(frames[0].columns) for frame in frames]
    return pl.concat(frames) if frames else None


def by_partition(rows: pl.DataFrame, schema: str, by: PartitionedBy) -> dict[Partition, pl.DataFrame]:
    """Return rows by the partition that they lie in, in the order they have; none of no rows."""
    if not rows.height:
        return {}
    if not by.parts:
        return {(): rows}
    fields = Schema.model_validate_json(schema)
    named = {
        f"_part_{place}": _partitions(rows[column], transform, fields.find_field(column).field_type)
        for place, (column, transform) in enumerate(by.parts)
    }
    return rows.with_columns(**named).partition_by(list(named), maintain_order=True, include_key=False, as_dict=True)


def _partitions(values: pl.Series, transform: str, kind: IcebergType) -> pl.Series:
    """Return what tells the partitions of values apart: equal for those of one, and for no others."""
    cut = parse_transform(transform)
    if isinstance(cut, IdentityTransform):
        return values
    if isinstance(cut, BucketTransform):
        return pl.Series(partition_values(transform, kind)(values.to_arrow()), dtype=pl.Int32)
    if type(cut) in _UNITS and values.dtype.is_temporal():
        return (
            values
            if values.dtype == pl.Date and isinstance(cut, DayTransform)
            else values.dt.truncate(_UNITS[type(cut)])
        )
    apply = cut.transform(kind)
    texts = {one: None if one is None else repr(apply(internal(one))) for one in values.unique().to_list()}
    return pl.Series([texts[one] for one in values.to_list()], dtype=pl.String)


def write(rows: pl.DataFrame, schema: str, by: PartitionedBy, folder: str) -> list[tuple[str, int, int]]:
    """Write rows as Iceberg data files of a schema, one a partition, each under a name never used before: path, rows and bytes.

    Of no rows nothing is written. The field ids are in each file, and the spec by which it was written is in its path.
    """
    found = []
    for partition, own in by_partition(rows, schema, by).items():
        place = f"{folder}/{by.folder}{_label(partition)}" if by.folder else folder
        found.append(_write(own, schema, place))
    return found


def _label(partition: Partition) -> str:
    return hashlib.sha256(repr(partition).encode()).hexdigest()[:16]


def _write(rows: pl.DataFrame, schema: str, folder: str) -> tuple[str, int, int]:
    table = table_of(rows, Schema.model_validate_json(schema))
    path = f"{folder}/part-{uuid4().hex}.parquet"
    with stores.output(path) as stream:
        pq.write_table(table, stream, compression="zstd")
    return path, rows.height, stores.size_of(path)


def misplaced(rows: pl.DataFrame, schema: str, by: PartitionedBy) -> list[dict[str, Any]]:
    """Say by which parts the rows of one file lie in several partitions: the commit says of a file which one it is."""
    fields = Schema.model_validate_json(schema)
    kinds = {column: fields.find_field(column).field_type for column, _ in by.parts}
    return several_partitions(rows, by.parts, kinds)
