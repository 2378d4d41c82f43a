"""Types of columns that pandera's Polars backend does not know by itself, and what is asked of any type.

Put here how a type is written in a model where Polars has no word for it, and which types can order rows or say how far a value
moved. What a type is in Iceberg and Spark is `schema`'s; how its values are encoded for the digest `canonical_types`'s. Imported by
Spark's Python workers: keep it light.
"""

from __future__ import annotations

from typing import Annotated, Any

import polars as pl
from pandera.dtypes import immutable
from pandera.engines import polars_engine

LocalTimestamp = Annotated[pl.Datetime, "us", None]
"""Type of a column that holds dates with a time of day and no zone (timestamp): what a clock on a wall has shown."""
_NESTED = (pl.List, pl.Struct, pl.Map)


@polars_engine.Engine.register_dtype(equivalents=[pl.Map])
@immutable(init=True)
class _Map(polars_engine.DataType):
    """Polars' own map type, which pandera does not know: `pl.Map(key, value)` in a model."""

    type = pl.Map

    def __init__(self, key: Any = None, value: Any = None) -> None:
        if key is not None:
            object.__setattr__(self, "type", pl.Map(key, value))

    @classmethod
    def from_parametrized_dtype(cls, polars_dtype: pl.Map) -> polars_engine.DataType:
        """Return the type of a map with these keys and values."""
        return cls(polars_dtype.key, polars_dtype.value)


@polars_engine.Engine.register_dtype()
@immutable
class Uuid(polars_engine.DataType):
    """Type of a column that holds UUIDs (uuid): 16 bytes, as Polars and Spark have them.

    In a model: `order_id: ba.Uuid`. A transform that has them as text writes
    `F.unhex(F.replace("order_id", F.lit("-"), F.lit("")))`.
    """

    type = pl.Binary

    def check(self, pandera_dtype: Any, data_container: Any = None) -> bool:
        """Return whether a column has the type: in a frame it is one of bytes, whose length the file sees to."""
        del data_container
        return bool(getattr(pandera_dtype, "type", pandera_dtype) == pl.Binary)

    def __str__(self) -> str:
        return "Uuid"


def instance_of(kind: Any) -> pl.DataType:
    """Return a type as an object: pandera and lists have those without parameters as classes.

    Raises:
        TypeError: of a list, a struct or a map that does not say what is inside.
    """
    if isinstance(kind, type) and issubclass(kind, _NESTED):
        raise TypeError(f"{kind.__name__} does not say what is inside: for example {_EXAMPLES[kind.__name__]}")
    found: pl.DataType = kind() if isinstance(kind, type) else kind
    return found


_EXAMPLES = {
    "List": "pl.List(pl.String)",
    "Struct": 'pl.Struct({"street": pl.String, "number": pl.Int32})',
    "Map": "pl.Map(pl.String, pl.Int64)",
}


def is_nested(kind: pl.DataType) -> bool:
    """Whether values of a type have others inside."""
    return isinstance(kind, _NESTED)


def is_floating(kind: pl.DataType) -> bool:
    """Whether a type is one of floating point, of which a value may be no number (NaN)."""
    return kind.base_type() in {pl.Float32, pl.Float64}


def inner_types(kind: pl.DataType) -> list[pl.DataType]:
    """Return the types that are directly inside a nested type, in order; of any other none."""
    if isinstance(kind, pl.List):
        return [instance_of(kind.inner)]
    if isinstance(kind, pl.Map):
        return [instance_of(kind.key), instance_of(kind.value)]
    return [instance_of(field.dtype) for field in kind.fields] if isinstance(kind, pl.Struct) else []


def has_map(kind: pl.DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    return isinstance(kind, pl.Map) or any(map(has_map, inner_types(kind)))


def no_map_key(kind: pl.DataType) -> str:
    """Say why values of a type are no keys of a map; empty if they are."""
    if is_floating(kind):
        return "a floating-point number may be NaN, or one of two zeros: whether two keys are the same one is no matter of taste"
    return "what has others inside identifies no entry" if is_nested(kind) else ""
