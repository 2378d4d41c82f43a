"""Rows of a scan with every NULL that is in them: PyIceberg reads one that stands for a list, or a map, of structs as an empty one.

Put here the way round that (`tests/test_upstream.py` pins what PyIceberg does). Which rows are asked for is for those who scan.
"""

from __future__ import annotations

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

_FIELD_ID = b"PARQUET:field_id"


def arrow_of(table: Table, scan: DataScan) -> arrow.Table:
    """Return the rows of a scan as `scan.to_arrow()` does, but with every NULL.

    Of a table without such columns, and where files have deletes on them, it is PyIceberg's answer. Memory is that of the rows, and
    of one file.
    """
    wanted = scan.projection()
    if not any(_loses_nulls(field.field_type) for field in wanted.fields):
        return scan.to_arrow()
    tasks = list(scan.plan_files())
    if any(task.delete_files for task in tasks):
        return scan.to_arrow()
    schema = table.schema()
    condition = expression_to_pyarrow(bind(schema, scan.row_filter, case_sensitive=scan.case_sensitive))
    parts = [schema_to_pyarrow(wanted).empty_table()]
    for task in tasks:
        with table.io.new_input(task.file.file_path).open() as stream:
            found = pq.read_table(stream)
        named = _named(found, Schema(*{one.field_id: one for one in (*schema.fields, *wanted.fields)}.values()))
        parts.append(named.filter(condition).select([field.name for field in wanted.fields]).cast(parts[0].schema))
    rows = arrow.concat_tables(parts)
    return rows if scan.limit is None else rows.slice(0, scan.limit)


def _loses_nulls(kind: IcebergType) -> bool:
    if isinstance(kind, ListType):
        return isinstance(kind.element_type, StructType) or _loses_nulls(kind.element_type)
    if isinstance(kind, MapType):
        return isinstance(kind.value_type, StructType) or _loses_nulls(kind.value_type)
    return isinstance(kind, StructType) and any(_loses_nulls(one.field_type) for one in kind.fields)


def _named(found: arrow.Table, schema: Schema) -> arrow.Table:
    """Return the columns of a file under the names of a schema; one that it lacks is NULL."""
    own = {one.metadata.get(_FIELD_ID): one.name for one in found.schema if one.metadata}

    def column(field: NestedField) -> arrow.ChunkedArray | arrow.Array:
        at = own.get(str(field.field_id).encode())
        kind = schema_to_pyarrow(Schema(field)).field(0).type
        return arrow.nulls(found.num_rows, kind) if at is None else found.column(at).cast(kind)

    return arrow.table({field.name: column(field) for field in schema.fields})
