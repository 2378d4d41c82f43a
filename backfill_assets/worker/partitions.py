"""Which partitions of a table rows lie in, by the transforms of its partition spec.

Put here what is told of rows in memory. What a spec says of files is `resources.lakehouse.partitions`'. Imported by Spark's
Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
from pyiceberg.transforms import BucketTransform, Transform, parse_transform
from pyiceberg.types import DateType, IcebergType, TimestampType, TimestamptzType

from backfill_assets.declarations.divided import internal
from manifests.division import NULL_PART, Division, bucket_number

_FOOTER_BYTES = 4_000
"""What the ends of a column may have together: above 4,096 Spark's writer leaves them out of the footer."""


def partitions_of(transform: Transform[Any, Any], kind: IcebergType, values: pl.Series) -> set[Any]:
    """Return the partitions that values of a column belong to; of days and instants the ends decide, but for what is NULL."""
    if isinstance(transform, BucketTransform):
        return set(partition_values(str(transform), kind)(values.to_arrow()).unique().to_pylist())
    ordered = transform.preserves_order and isinstance(kind, (DateType, TimestampType, TimestamptzType))
    few = [values.min(), values.max()] if ordered else values.unique().to_list()
    apply = transform.transform(kind)
    return {None if value is None else apply(internal(value)) for value in few}


def outside(frame: pl.DataFrame, division: Division, part: str, kind: IcebergType) -> pl.DataFrame:
    """Return the rows that do not lie in a part of a divided table: with another value or bucket, or with none."""
    values = frame[division.column]
    if not division.buckets:
        return frame.filter(~in_parts(division, (part,)))
    buckets = pl.Series(partition_values(division.transform, kind)(values.to_arrow()), dtype=pl.Int32)
    return frame.filter(buckets.ne_missing(pl.lit(bucket_number(part), pl.Int32)))


def in_parts(division: Division, parts: Sequence[str]) -> pl.Expr:
    """Return whether a row lies in one of some values or ranges; never NULL."""
    column, found = pl.col(division.column), pl.lit(value=False)
    if NULL_PART in parts:
        found = column.is_null()
    if not division.bounds:
        values = [division.literal(one) for one in parts if one != NULL_PART]
        return found | column.is_in(values).fill_null(value=False) if values else found
    for low, high in (division.ranges[one] for one in parts if one != NULL_PART):
        inside = column.is_not_null()
        inside = inside if low is None else inside & (column >= pl.lit(low))
        inside = inside if high is None else inside & (column < pl.lit(high))
        found = found | inside.fill_null(value=False)
    return found


def partition_values(transform: str, kind: IcebergType) -> Callable[[pa.Array], pa.Array]:
    """Return what makes an Arrow array of values one of their partitions, for Spark's Python workers."""

    def values_of(column: pa.Array) -> pa.Array:
        # what lies at an address that is no multiple of 16 makes the library panic: two arrays are put together into a new one
        aligned = pa.concat_arrays([column, column.slice(0, 0)])
        return parse_transform(transform).pyarrow_transform(kind)(aligned)

    return values_of


def _is_too_long(values: pl.Series) -> bool:
    """Whether the ends of a column are too long for a Parquet footer, from which a commit takes a file's partition."""
    if values.dtype not in {pl.String, pl.Binary} or values.null_count() == values.len():
        return False
    ends: tuple[Any, Any] = (values.min(), values.max())
    return sum(len(end.encode() if isinstance(end, str) else end) for end in ends) > _FOOTER_BYTES


def several_partitions(
    frame: pl.DataFrame, parts: Sequence[tuple[str, str]], kinds: Mapping[str, IcebergType]
) -> list[dict[str, Any]]:
    """Return by which parts (column and transform, as Iceberg writes it) the rows of one file lie in several partitions.

    Rows of which the value is there and rows of which it is NULL lie in different ones.
    """
    found = []
    for column, transform in parts:
        values = frame[column]
        own = partitions_of(parse_transform(transform), kinds[column], values)
        if values.null_count():
            own.add(None)
        if len(own) > 1:
            found.append({"partition": f"{transform}({column})", "values": len(own)})
        elif _is_too_long(values):
            found.append({"partition": f"{transform}({column})", "too long for the file's footer": column})
    return found
