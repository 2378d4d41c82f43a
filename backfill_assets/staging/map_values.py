"""Values of Spark with maps in them, which it neither compares nor hashes.

Put here where a type has a map, and what stands for it when rows are compared. What rows are compared for is `recomputing`'s and `compute`'s.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.types import ArrayType, DataType, MapType, StructType


def without_maps(value: Column, kind: DataType) -> Column:
    """Return a value with sorted entries in place of each map in it: Spark neither compares nor hashes maps."""
    if not has_map(kind):
        return value
    if isinstance(kind, MapType):
        entries = F.map_entries(value)
        return F.array_sort(
            F.transform(entries, lambda one: F.struct(one.key, without_maps(one.value, kind.valueType).alias("value")))
        )
    if isinstance(kind, ArrayType):
        return F.transform(value, lambda one: without_maps(one, kind.elementType))
    assert isinstance(kind, StructType)
    fields = (without_maps(value[one.name], one.dataType).alias(one.name) for one in kind.fields)
    return F.when(value.isNotNull(), F.struct(*fields))


def has_map(kind: DataType) -> bool:
    """Whether a type is a map, or has one in it."""
    if isinstance(kind, StructType):
        return any(has_map(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or (isinstance(kind, ArrayType) and has_map(kind.elementType))
