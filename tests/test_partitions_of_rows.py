"""Rows of a file held against the partition that its manifest names: of columns of any type that a table may be cut by."""

from __future__ import annotations

import math
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DoubleType, IcebergType, NestedField, UUIDType

from backfill_assets.audit.rows_by_schema import _lies, by_field_id

ID, OTHER = UUID(int=5), UUID(int=6)


def lies(kind: IcebergType, values: list[Any], partition: Any) -> list[Any]:
    """Write values to a file, read them as a verification does, and hold them against a partition."""
    schema = Schema(NestedField(1, "x", kind, required=False))
    stream = BytesIO()
    pq.write_table(pa.table({"x": values}, schema=schema_to_pyarrow(schema)), stream)
    frame, renamed = by_field_id(stream.getvalue(), schema)
    assert renamed == []
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    file = SimpleNamespace(lower_bounds=None, upper_bounds=None, spec_id=0, partition=Record(partition))
    seen: Any = SimpleNamespace(table=SimpleNamespace(specs=lambda: {0: spec}))
    entry: Any = SimpleNamespace(file=file)
    return list(_lies(seen, entry, frame, schema))


@pytest.mark.parametrize("partition", [ID, ID.bytes], ids=["as a UUID", "as its bytes"])
def test_rows_of_a_uuid_lie_in_their_partition_and_in_no_other(partition: Any) -> None:
    assert lies(UUIDType(), [ID.bytes, ID.bytes], partition) == []
    ((what, rows, says),) = lies(UUIDType(), [ID.bytes, OTHER.bytes], partition)
    assert (what, rows, says) == ("partition x", [OTHER.bytes], partition)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1.5])
def test_rows_that_are_infinite_or_no_number_lie_in_their_partition(value: float) -> None:
    assert lies(DoubleType(), [value, value], value) == []
    assert [what for what, *_ in lies(DoubleType(), [value, 7.0], value)] == ["partition x"]


def test_rows_of_bytes_and_of_nothing_lie_in_theirs() -> None:
    assert lies(BinaryType(), [b"\xff"], b"\xff") == []
    assert lies(UUIDType(), [None], None) == []
    assert [rows for _, rows, _ in lies(UUIDType(), [None, ID.bytes], ID)] == [[None]]
