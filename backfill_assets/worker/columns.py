"""Files of a table whose columns have changed since they were written, read as the table has them now.

Put here how a column is found in a data file by Polars, and what it raises of a file that it cannot read. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from backfill_assets.declarations.column_types import has_map
from backfill_assets.declarations.schema import polars_type
from backfill_assets.worker.nested import without_maps
from resources.files import stores

_FIELD_ID = b"PARQUET:field_id"
UNREADABLE = (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException, arrow.ArrowInvalid)
"""What is raised of a file that cannot be read: of a damaged footer Polars panics, with an exception of its own."""


def scan_file(path: str, schema: str, columns: Sequence[str] | None = None) -> pl.LazyFrame:
    """Return columns of a data file (all of the schema's, if None), as a table's schema (Iceberg JSON) names them.

    A column is found by its field id, whatever it was called when the file was written; one that the file has not is NULL,
    since it was written before the table had it. Its values have the table's type, which may be wider than the file's. Of a
    file without field ids, and without a schema, columns are taken by name.
    """
    return scan(stores.source(path), schema, columns)


def scan(source: str | bytes | list[bytes], schema: str, columns: Sequence[str] | None = None) -> pl.LazyFrame:
    """Return columns of a data file as `scan_file` does, by its local path, or of its bytes; of several files with the same columns."""
    lazy = pl.scan_parquet(source, hive_partitioning=False, glob=False)
    if not schema:
        return lazy if columns is None else lazy.select(columns)
    present = lazy.collect_schema()
    table = _schema(schema)
    wanted = [field.name for field in table.fields] if columns is None else columns
    own = _by_field_id(source[0] if isinstance(source, list) else source)
    found = []
    for column in wanted:
        kind = _type(schema, column)
        at = own.get(table.find_field(column).field_id) if own else column if column in present else None
        if at is None:
            found.append(pl.lit(None, dtype=kind).alias(column))
        else:
            values = pl.col(at)
            found.append((values.cast(kind) if _is_alike(present[at], kind) else values).alias(column))
    return lazy.select(found)


def _is_alike(own: pl.DataType, kind: pl.DataType) -> bool:
    """Whether a file's type is another one than the table's, and of the same sort: values of any other are left as they are."""
    if own == kind:
        return False
    return (
        (own.is_integer() and kind.is_integer())
        or (own.is_float() and kind.is_float())
        or (own.is_decimal() and kind.is_decimal())
        or (isinstance(own, pl.List) and isinstance(kind, pl.List))
    )


@lru_cache(maxsize=8)
def _schema(schema: str) -> Schema:
    return Schema.model_validate_json(schema)


@lru_cache(maxsize=1024)
def _type(schema: str, column: str) -> pl.DataType:
    """Return the type of a table's column as Polars reads it from its files."""
    return polars_type(_schema(schema).find_field(column).field_type)


def rows_of(path: str) -> int:
    """Return how many rows a data file says it has.

    Raises:
        OSError: if it cannot be read.
        arrow.ArrowInvalid: if what was read is no footer.
    """
    return int(stores.footer(path).num_rows)


def _by_field_id(source: str | bytes) -> dict[int, str]:
    """Return the names of a file's columns by field id; none of a file that has no such ids."""
    found = stores.footer(source).schema
    with stores.decoding():
        columns = list(found.to_arrow_schema())
    ids = {one.name: (one.metadata or {}).get(_FIELD_ID) for one in columns}
    return {int(number): name for name, number in ids.items() if number is not None}


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
