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
    if isinstance(found, spark.ArrayType) and isinstance(declared, spark.ArrayType):
        return fits(found.elementType, declared.elementType)
    if isinstance(declared, spark.StringType):
        return isinstance(found, spark.CharType | spark.VarcharType)
    if isinstance(declared, spark.DoubleType):
        return isinstance(found, spark.FloatType | spark.ByteType | spark.ShortType | spark.IntegerType)
    needed, held = _digits(found), _digits(declared)
    if needed is None or held is None:
        return False
    if type(declared) in _INTEGRAL_DIGITS:  # it does not hold every number of its last digit
        held = (held[0] - 1, 0)
    return needed[0] <= held[0] and needed[1] <= held[1]


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
    return f"convert it to {declared.simpleString()} in the transform, where the meaning is known"
