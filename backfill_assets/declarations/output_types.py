"""Which types a transform's columns may have: the declared one, or one that widens to it without loss.

Put here what a Spark type must be for its values to fit a declared type unchanged. Which columns there must be is
`staging.compute`'s; which values are allowed is the gate's. Spark's casts round, truncate and read text as numbers without a
word, so no other cast is ever applied to what a transform returns.
"""

from __future__ import annotations

from pyspark.sql import types as spark

_INTEGRAL_DIGITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 3,
    spark.ShortType: 5,
    spark.IntegerType: 10,
    spark.LongType: 19,
}
"""Decimal digits that hold every value of an integral type."""


def fits(found: spark.DataType, declared: spark.DataType) -> bool:
    """Return whether every value of a type is the same value in the declared one.

    A column of literal nulls (`void`) fits every type: whether nulls are allowed is the gate's to say. A timestamp
    without a time zone fits no instant: which instant it is would depend on the session.
    """
    if found == declared or isinstance(found, spark.NullType):
        return True
    if isinstance(declared, spark.ArrayType | spark.MapType | spark.StructType):
        return _fits_inside(found, declared)
    if isinstance(found, spark.TimeType) and isinstance(declared, spark.TimeType):
        return found.precision <= declared.precision
    if isinstance(declared, spark.StringType):
        return isinstance(found, spark.CharType | spark.VarcharType)
    if isinstance(declared, spark.FloatType):
        return isinstance(found, spark.ByteType | spark.ShortType)
    if isinstance(declared, spark.DoubleType):
        return isinstance(found, spark.FloatType | spark.ByteType | spark.ShortType | spark.IntegerType)
    needed, held = _digits(found), _digits(declared)
    if needed is None or held is None:
        return False
    if type(declared) in _INTEGRAL_DIGITS:  # it does not hold every number of its last digit
        held = (held[0] - 1, 0)
    return needed[0] <= held[0] and needed[1] <= held[1]


def _fits_inside(found: spark.DataType, declared: spark.DataType) -> bool:
    """Return whether what is inside a nested type fits what is declared there."""
    if isinstance(found, spark.ArrayType) and isinstance(declared, spark.ArrayType):
        return fits(found.elementType, declared.elementType)
    if isinstance(found, spark.MapType) and isinstance(declared, spark.MapType):
        return fits(found.keyType, declared.keyType) and fits(found.valueType, declared.valueType)
    if isinstance(found, spark.StructType) and isinstance(declared, spark.StructType):
        # Spark casts a struct by the places of its fields: with other names in them it would exchange values
        return found.names == declared.names and all(
            fits(one.dataType, other.dataType) for one, other in zip(found.fields, declared.fields, strict=True)
        )
    return False


def _digits(kind: spark.DataType) -> tuple[int, int] | None:
    """Return how many decimal digits a number of a type may have before and after the point; None for other types."""
    if isinstance(kind, spark.DecimalType):
        return kind.precision - kind.scale, kind.scale
    digits = _INTEGRAL_DIGITS.get(type(kind))
    return None if digits is None else (digits, 0)


def way_out(found: spark.DataType, declared: spark.DataType) -> str:
    """Return what the author of a transform writes instead, where the conversion is wanted."""
    if isinstance(declared, spark.DecimalType) and isinstance(found, spark.FractionalType):
        return f"round it in the transform, e.g. `F.round(column, {declared.scale}).cast('{declared.simpleString()}')`"
    if isinstance(declared, spark.DateType) and isinstance(found, spark.TimestampType | spark.TimestampNTZType):
        return "take the date in a named time zone, e.g. `F.to_date(F.from_utc_timestamp(column, 'Europe/Rome'))`"
    if isinstance(declared, spark.BinaryType) and isinstance(found, spark.StringType):
        return "say what its bytes are, e.g. `F.encode(column, 'UTF-8')`; of a UUID `F.unhex(F.replace(column, F.lit('-'), F.lit('')))`"
    if isinstance(declared, spark.StructType) and isinstance(found, spark.StructType):
        return (
            f"give it the declared fields in their order ({', '.join(declared.names)}), each of its type, with F.struct"
        )
    return f"convert it to {declared.simpleString()} in the transform, where the meaning is known"
