"""Files of a table whose columns have changed since they were written, read as the table has them now.

Put here how a column is found in a data file by Polars, and what it raises of a file that it cannot read. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pyarrow as arrow
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from backfill_assets.declarations.column_types import has_map
from backfill_assets.declarations.schema import polars_type
from backfill_assets.worker.nested import without_maps

UNREADABLE = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What Polars raises of a file that it cannot read: of a damaged footer it panics, with an exception of its own."""


def scan_file(path: str, schema: str, columns: Sequence[str] | None = None) -> pl.LazyFrame:
    """Return columns of a data file (all of the schema's, if None), as a table's schema (Iceberg JSON) names them.

    A column that the file has not under its name is found by its field id; one that it has not at all is NULL, since it was
    written before the table had it. Without a schema columns are taken by name.
    """
    lazy = pl.scan_parquet(path, hive_partitioning=False)
    if not schema:
        return lazy if columns is None else lazy.select(columns)
    present = lazy.collect_schema()
    if columns is not None and set(columns) <= set(present):
        return lazy.select(columns)
    table = Schema.model_validate_json(schema)
    wanted = [field.name for field in table.fields] if columns is None else columns
    if set(wanted) <= set(present):
        return lazy
    filesystem, name = pafs.FileSystem.from_uri(path) if "://" in path else (pafs.LocalFileSystem(), path)
    with filesystem.open_input_file(name) as stream:
        own = {one.metadata.get(b"PARQUET:field_id"): one.name for one in pq.read_schema(stream) if one.metadata}
    found = []
    for column in wanted:
        at = column if column in present else own.get(str(table.find_field(column).field_id).encode())
        kind = polars_type(table.find_field(column).field_type)
        found.append((pl.lit(None, dtype=kind) if at is None else pl.col(at)).alias(column))
    return lazy.select(found)


def table_of(frame: pl.DataFrame, schema: Schema) -> arrow.Table:
    """Return rows as an Arrow table of an Iceberg schema, its field ids in it; map entries in the order of their keys.

    Raises:
        arrow.ArrowInvalid: if a value does not fit its column's type: a UUID has 16 bytes, a time of day microseconds.
    """
    wanted = schema_to_pyarrow(schema)
    kinds = frame.schema
    ordered = frame.select(
        without_maps(pl.col(name), kinds[name]).cast(kinds[name]).alias(name) if has_map(kinds[name]) else pl.col(name)
        for name in wanted.names
    )
    return as_types(ordered.to_arrow(), wanted)


def as_types(table: arrow.Table, wanted: arrow.Schema) -> arrow.Table:
    """Return a table with other types; a UUID is cast from its 16 bytes only."""
    uuids = {field.name for field in wanted if field.type == arrow.uuid() and table[field.name].type != field.type}
    columns = [table[name].cast(arrow.binary(16)) if name in uuids else table[name] for name in wanted.names]
    return arrow.table(dict(zip(wanted.names, columns, strict=True))).cast(wanted)
