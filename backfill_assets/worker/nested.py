"""Values that have others inside, or none that JSON has a word for: brought into one form, and into words.

Put here what makes of nested columns something that can be compared, hashed and written as text. Runs in Spark's workers: keep it
light.
"""

from __future__ import annotations

import polars as pl

from backfill_assets.declarations.column_types import has_map, inner_types, instance_of, is_floating, is_nested


def without_maps(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return a column with each map in it as the list of its entries (structs of `key` and `value`), in the order of their keys.

    Two maps are equal where these lists are: a map has no order.
    """
    kind = instance_of(dtype)
    if not has_map(kind):
        return values
    inner = inner_types(kind)
    if isinstance(kind, pl.Map):
        entry = pl.element().struct
        entries = values.cast(pl.List(pl.Struct({"key": kind.key, "value": kind.value})))
        one = pl.struct(entry.field("key").alias("key"), without_maps(entry.field("value"), inner[1]).alias("value"))
        return entries.list.eval(one.sort_by(entry.field("key")))
    if isinstance(kind, pl.List):
        return values.list.eval(without_maps(pl.element(), inner[0]))
    assert isinstance(kind, pl.Struct)
    names = [field.name for field in kind.fields]
    return pl.when(values.is_not_null()).then(
        pl.struct(
            without_maps(values.struct.field(name), of).alias(name) for name, of in zip(names, inner, strict=True)
        )
    )


def comparable(name: str, dtype: pl.DataType) -> pl.Expr:
    """Return a column of a frame in the form in which equal values are equal, whatever wrote them."""
    return without_maps(pl.col(name), dtype)


def in_one_form(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame in which equal values are equal, whatever wrote them."""
    maps = {name: kind for name, kind in frame.schema.items() if has_map(kind)}
    return frame.with_columns(comparable(name, kind).alias(name) for name, kind in maps.items()) if maps else frame


def as_text(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return a column as text: bytes in hexadecimal digits, what has others inside as JSON, else as Polars writes it."""
    kind = instance_of(dtype)
    if isinstance(kind, pl.Binary):
        return values.bin.encode("hex")
    if not is_nested(kind):
        return values.cast(pl.String)
    worded = _worded(without_maps(values, kind), _without_maps(kind))
    one = pl.struct(worded.alias("_"))
    # json of a struct alone is what Polars writes: what stands around the value is taken off
    text = one.struct.json_encode().str.strip_prefix('{"_":').str.strip_suffix("}")
    return pl.when(values.is_not_null()).then(text)


def _worded(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return a column in which JSON has a word for each value: of a number that is none, of bytes and of times the text."""
    inner = inner_types(kind)
    if isinstance(kind, pl.List):
        return values.list.eval(_worded(pl.element(), inner[0]))
    if isinstance(kind, pl.Struct):
        names = [field.name for field in kind.fields]
        one = pl.struct(
            _worded(values.struct.field(name), of).alias(name) for name, of in zip(names, inner, strict=True)
        )
        return pl.when(values.is_not_null()).then(one)
    if isinstance(kind, pl.Binary):
        return values.bin.encode("hex")
    return values if kind.is_integer() or kind in {pl.Boolean, pl.String} else values.cast(pl.String)


def _without_maps(kind: pl.DataType) -> pl.DataType:
    """Return the type that `without_maps` makes of one."""
    inner = [_without_maps(one) for one in inner_types(kind)]
    if isinstance(kind, pl.Map):
        return pl.List(pl.Struct({"key": inner[0], "value": inner[1]}))
    if isinstance(kind, pl.List):
        return pl.List(inner[0])
    if isinstance(kind, pl.Struct):
        return pl.Struct({field.name: of for field, of in zip(kind.fields, inner, strict=True)})
    return kind


def differs(name: str, other: str, dtype: pl.DataType, tolerance: float | None = None) -> pl.Expr:
    """Return whether two columns of a frame differ: NaN is NaN, the zeros are one, and maps have no order.

    With a tolerance two numbers are the same that differ by no more than that.
    """
    apart = without_maps(pl.col(name), dtype).ne_missing(without_maps(pl.col(other), dtype))
    if tolerance is None:
        return apart
    assert is_floating(dtype)
    near = (pl.col(name).cast(pl.Float64) - pl.col(other).cast(pl.Float64)).abs() <= tolerance
    return apart & ~near.fill_null(value=False)


def repeats_keys(values: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Return whether a map in a column has a key twice. Of a Parquet file Polars keeps the last of them without a word."""
    kind = instance_of(dtype)
    if not has_map(kind):
        return pl.lit(value=False)
    inner = inner_types(kind)
    if isinstance(kind, pl.List):
        return values.list.eval(repeats_keys(pl.element(), inner[0])).list.any().fill_null(value=False)
    if isinstance(kind, pl.Struct):
        names = [field.name for field in kind.fields]
        return pl.any_horizontal(
            repeats_keys(values.struct.field(name), of) for name, of in zip(names, inner, strict=True)
        ).fill_null(value=False)
    assert isinstance(kind, pl.Map)
    entries = values.cast(pl.List(pl.Struct({"key": kind.key, "value": kind.value})))
    keys = entries.list.eval(pl.element().struct.field("key"))
    inside = entries.list.eval(repeats_keys(pl.element().struct.field("value"), inner[1])).list.any()
    return (keys.list.n_unique() != keys.list.len()).fill_null(value=False) | inside.fill_null(value=False)
