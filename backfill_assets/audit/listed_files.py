"""How a file is listed: what a manifest, and the list that names it, say of a file, beside its bounds and its partition.

Put here what has readers take a file for something else than it is, or not open it: among which files it is listed, where, in
which format, and how many values of each column it is said to have. Bounds and partitions are `rows_by_schema`'s.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from io import BytesIO
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from resources.lakehouse.snapshots import Entry
from resources.lakehouse.storage import store_of

MISLED = "is not that of a file of rows that readers find there"
"""What is said of each thing that `not_as_rows` yields."""


def not_as_rows(entry: Entry, stores: Container[str]) -> Iterator[tuple[str, str, str]]:
    """Yield by what of its listing readers do not find a file of rows in one of some stores: name, what is so, what it says."""
    manifest = entry.manifest
    if manifest.content != ManifestContent.DATA:
        yield "manifest content", "data", ManifestContent(manifest.content).name.lower()
    if not (manifest.has_added_files() or manifest.has_existing_files()):
        yield "manifest file counts", "one or more", "0 added, 0 existing"
    if entry.file.file_format != FileFormat.PARQUET:
        yield "file_format", FileFormat.PARQUET.value, FileFormat(entry.file.file_format).value
    if (store := store_of(entry.file.file_path)) not in stores:
        yield "store", f"that of {entry.place}", f"{store} ({entry.file.file_path})"


def counts_in(entry: Entry, raw: bytes, frame: pl.DataFrame, schema: Schema) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a manifest counts of a file otherwise than its rows have it: name, what is true, and what it says."""
    file = entry.file
    if file.record_count != frame.height:
        yield "record_count", frame.height, file.record_count
    if file.split_offsets and (first := _first_page(raw)) is not None and file.split_offsets[0] > first:
        yield "split offsets", f"{first} or less", file.split_offsets[0]
    for field in schema.fields:
        if not isinstance(field.field_type, PrimitiveType):
            continue
        values = frame[field.name]
        for name, counts, found in (
            ("value", file.value_counts, values.len()),
            ("null", file.null_value_counts, values.null_count()),
            ("NaN", file.nan_value_counts, values.is_nan().sum() if values.dtype.is_float() else 0),
        ):
            said = (counts or {}).get(field.field_id)
            if said is not None and said != found:
                yield f"{name} count of {field.name}", found, said


def _first_page(raw: bytes) -> int | None:
    """Return where a Parquet file's first rows begin; None if it has none."""
    footer = pq.read_metadata(BytesIO(raw))
    return None if not footer.num_row_groups else int(footer.row_group(0).column(0).data_page_offset)
