"""The types that a column of a target can have: those that the digest of rows has an encoding for.

An encoding is a contract between runs that may lie years apart (`worker.digest`): a type is added, never changed. Imported by
Spark's Python workers: keep it light.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import polars as pl
import pyarrow as pa

from backfill_assets.declarations.column_types import inner_types, instance_of, is_nested, no_map_key

_SIMPLE = {
    pl.String: pa.large_string(),
    pl.Int32: pa.int32(),
    pl.Int64: pa.int64(),
    pl.Boolean: pa.bool_(),
    pl.Date: pa.date32(),
    pl.Float32: pa.float32(),
    pl.Float64: pa.float64(),
    pl.Binary: pa.large_binary(),
    pl.Time: pa.time64("us"),
}


def canonical_type(name: str, dtype: pl.DataType) -> pa.DataType:
    """Return the type that a column's values are encoded as; a map is the list of its entries.

    Raises:
        TypeError: if the encoding has none for it.
    """
    try:
        kind = instance_of(dtype)
    except TypeError as error:
        raise TypeError(f"column {name}: {error}") from error
    if isinstance(kind, pl.Decimal):
        return pa.decimal128(kind.precision or 38, kind.scale)
    if isinstance(kind, pl.Datetime):
        return pa.timestamp("us", tz=None if kind.time_zone is None else "UTC")
    if isinstance(kind, pl.List):
        return pa.large_list(canonical_type(f"{name}.element", instance_of(kind.inner)))
    if isinstance(kind, pl.Struct):
        return _fields(name, {one.name: instance_of(one.dtype) for one in kind.fields})
    if isinstance(kind, pl.Map):
        key, value = inner_types(kind)
        if why := no_map_key(key):
            raise TypeError(f"column {name}: {key} is no key of a map: {why}")
        return pa.large_list(_fields(name, {"key": key, "value": value}))
    found = _SIMPLE.get(kind.base_type())
    if found is None:
        raise TypeError(f"column {name}: {kind} has no canonical encoding")
    return found


def _fields(name: str, kinds: Mapping[str, pl.DataType]) -> pa.DataType:
    return pa.struct([(one, canonical_type(f"{name}.{one}", kind)) for one, kind in kinds.items()])


def canonical_word(name: str, dtype: pl.DataType) -> str:
    """Return what the digest's header says of a column's type: of nested ones in words of this project's own."""
    kind = instance_of(dtype)
    if not is_nested(kind):
        return str(canonical_type(name, kind))
    inside = [canonical_word(name, one) for one in inner_types(kind)]
    if isinstance(kind, pl.Struct):
        inside = [f"{json.dumps(field.name)}:{word}" for field, word in zip(kind.fields, inside, strict=True)]
    word = "struct" if isinstance(kind, pl.Struct) else "map" if isinstance(kind, pl.Map) else "list"
    return f"{word}<{','.join(inside)}>"
