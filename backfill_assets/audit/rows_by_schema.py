"""A file's rows, read as the current schema of its table gives them, and what its manifest says of them held against them.

Put here how one file is opened: its columns are found by their field ids, under the names that the schema gives. What a manifest
says beside bounds and partitions is `listed_files`'. Memory is one file's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from io import BytesIO
from typing import Any
from uuid import UUID

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import DateType, DecimalType, IcebergType, PrimitiveType, UUIDType

from backfill_assets.audit.file_columns import columns_of
from backfill_assets.audit.findings import Report
from backfill_assets.audit.listed_files import counts_in
from backfill_assets.declarations.divided import internal
from backfill_assets.evidence.seals import Sealed
from backfill_assets.worker.columns import UNREADABLE
from backfill_assets.worker.partitions import in_parts, partitions_of
from resources.lakehouse.scopes import Scope
from resources.lakehouse.snapshots import Entry, Seen
from resources.lakehouse.storage import Storage

UNREADABLE_ROWS = (*UNREADABLE, arrow.ArrowException, ValueError, KeyError, TypeError)


def rows_of_chunk(
    seen: Seen,
    storage: Storage,
    sealed: Sealed,
    opened: Sequence[Entry],
    own: Mapping[str, Mapping[str, Any]],
    where: str,
    scope: Scope,
    report: Report,
) -> tuple[list[pl.DataFrame] | None, bool]:
    """Read files by the current schema; return their rows of a chunk (None if one cannot be read), and whether all is right.

    A value or bucket that a file lies in by its partition is that of its rows; of another file they are looked at.
    """
    frames, whole = [], True
    for entry in opened:
        frame, is_right = read_by_schema(seen, storage, sealed, entry, own.get(entry.place), where, report)
        whole &= is_right
        if frame is None:
            return None, False
        if scope.division is not None and not scope.division.buckets:
            frame = frame.filter(in_parts(scope.division, scope.parts))
        if scope.column:
            is_instant = frame.schema[scope.column] == pl.Datetime
            low, high = (scope.first, scope.last) if is_instant else (scope.start, scope.end)
            frame = frame.filter(pl.col(scope.column).is_between(pl.lit(low), pl.lit(high)))
        frames.append(frame)
    return frames, whole


def read_by_schema(
    seen: Seen,
    storage: Storage,
    sealed: Sealed,
    entry: Entry,
    file: Mapping[str, Any] | None,
    where: str,
    report: Report,
) -> tuple[pl.DataFrame | None, bool]:
    """Read a file by the current schema; return its rows, and whether its columns and its manifest say what is so.

    A file of the run that is missing or damaged is named by whoever reads it as it was gated (`proof`).
    """
    at, schema, uuid = f"{where} {entry.place}", seen.table.schema(), str(seen.table.metadata.table_uuid)
    try:
        raw = storage.content(entry.place, sha256="" if file is None else file.get("sha256") or "")
    except OSError as error:
        if file is None:
            report.add(at, f"cannot be read: {error}")
        return None, False
    if file is not None and file.get("sha256") and hashlib.sha256(raw).hexdigest() != file["sha256"]:
        return None, False
    is_right = True
    try:
        frame, renamed = by_field_id(raw, schema, seen.table.name_mapping())
        for field_id, own, name in (one for one in renamed if not sealed.is_renamed(uuid, *one)):
            report.add(f"{at} column {own} (field {field_id})", "readers find it under another name", own, name)
            is_right = False
        for name, expected, shown in (*counts_in(entry, raw, frame, schema), *_lies(seen, entry, frame, schema)):
            report.add(f"{at} {name}", "its manifest says otherwise than its rows", expected, shown)
            is_right = False
    except UNREADABLE_ROWS as error:
        report.add(at, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")
        return None, False
    return frame, is_right


def by_field_id(
    raw: bytes, schema: Schema, mapping: NameMapping | None = None
) -> tuple[pl.DataFrame, list[tuple[int, str, str]]]:
    """Return a Parquet file's rows as a schema reads them, and each column that has another name there than in the file.

    Columns are found as `columns_of` has it; one that the file lacks is NULL.

    Raises:
        ValueError: if engines differ about which column is which, or a column of days is of another type.
    """
    own = columns_of(raw, mapping)
    found = pq.read_table(BytesIO(raw))
    columns, renamed = {}, []
    for field in schema.fields:
        column = own.get(field.field_id)
        if column is None:
            columns[field.name] = arrow.nulls(found.num_rows, _arrow_type(field.field_type))
            continue
        if isinstance(field.field_type, DateType) and column.type != arrow.date32():
            raise ValueError(f"its column {column.name} is of {column.type}, not of days")
        columns[field.name] = found.column(column.name)
        if column.name != field.name:
            renamed.append((field.field_id, column.name, field.name))
    frame = pl.from_arrow(arrow.table(columns))
    assert isinstance(frame, pl.DataFrame)
    return frame, renamed


def _arrow_type(kind: IcebergType) -> arrow.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - of the few files that lack a column

    return schema_to_pyarrow(kind)


def _lies(seen: Seen, entry: Entry, frame: pl.DataFrame, schema: Schema) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a manifest says of a file and its rows do not: name, what is true, and what it says."""
    file = entry.file
    for field in schema.fields:
        if not isinstance(field.field_type, PrimitiveType):
            continue
        values = frame[field.name]
        for side, bounds, real in (
            ("lower", file.lower_bounds, values.min()),
            ("upper", file.upper_bounds, values.max()),
        ):
            raw = (bounds or {}).get(field.field_id)
            if raw is None or real is None:
                continue
            says, is_ = _comparable(from_bytes(field.field_type, raw), field.field_type), internal(real)
            if says > is_ if side == "lower" else says < is_:
                yield f"{side} bound of {field.name}", real, says
    for place, part in enumerate(seen.table.specs()[file.spec_id].fields):
        found = schema.find_field(part.source_id)
        says = _as_partition(file.partition[place])
        wrong = set(map(_as_partition, partitions_of(part.transform, found.field_type, frame[found.name]))) - {says}
        if wrong:
            yield f"partition {part.name}", sorted(wrong, key=str), file.partition[place]


def _as_partition(value: Any) -> Any:
    """Return the value of a partition as others compare with it: a UUID by its bytes; and what is no number is itself."""
    if isinstance(value, UUID):
        return value.bytes
    return "NaN" if isinstance(value, float) and value != value else value  # noqa: PLR0124 - it asks for NaN


def _comparable(bound: Any, kind: IcebergType) -> Any:
    """Return a bound as its column's values compare with it."""
    if isinstance(kind, UUIDType):
        return getattr(bound, "bytes", bound)
    return Decimal(bound) if isinstance(kind, DecimalType) else bound
