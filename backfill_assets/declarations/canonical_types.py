"""The types that a column of a target can have: those that the digest of rows has an encoding for.

An encoding is a contract between runs that may lie years apart (`worker.digest`): a type is added, never changed. Imported by
Spark's Python workers: keep it light.
"""

from __future__ import annotations

import polars as pl
import pyarrow as pa

_SIMPLE: dict[str, pl.DataType] = {
    "string": pl.String(),
    "int": pl.Int32(),
    "long": pl.Int64(),
    "boolean": pl.Boolean(),
    "date": pl.Date(),
    "timestamptz": pl.Datetime("us", "UTC"),
}


def canonical_type(name: str, dtype: pl.DataType) -> pa.DataType:
    """Return the type that a column's values are encoded as.

    Raises:
        TypeError: if the encoding has none for it.
    """
    if isinstance(dtype, pl.Decimal):
        return pa.decimal128(dtype.precision or 38, dtype.scale)
    if isinstance(dtype, pl.Datetime):
        return pa.timestamp("us", tz="UTC")
    simple = {
        pl.String: pa.large_string(),
        pl.Int32: pa.int32(),
        pl.Int64: pa.int64(),
        pl.Boolean: pa.bool_(),
        pl.Date: pa.date32(),
    }
    found = simple.get(dtype.base_type())
    if found is None:
        raise TypeError(f"column {name}: {dtype} has no canonical encoding (floating point never has one)")
    return found


def dtype_of(kind: str) -> pl.DataType:
    """Return the Polars type of an Iceberg type's name.

    Raises:
        ValueError: if a digest has no such type.
    """
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind.startswith("decimal("):
        precision, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pl.Decimal(int(precision), int(scale))
    raise ValueError(f"{kind} is no type of a digest's column")
