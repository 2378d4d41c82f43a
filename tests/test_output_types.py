"""Which types of a transform's columns are taken for a declared one."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark

from backfill_assets.declarations.output_types import fits, way_out

BOUNDS = {
    spark.ByteType(): (-(2**7), 2**7 - 1),
    spark.ShortType(): (-(2**15), 2**15 - 1),
    spark.IntegerType(): (-(2**31), 2**31 - 1),
    spark.LongType(): (-(2**63), 2**63 - 1),
}


def decimals() -> st.SearchStrategy[spark.DecimalType]:
    return st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: spark.DecimalType(p, s)))


def bounds(kind: spark.DataType) -> tuple[Decimal, Decimal, Decimal]:
    """The least and greatest value of a numeric type, and its smallest step."""
    if isinstance(kind, spark.DecimalType):
        step = Decimal((0, (1,), -kind.scale))
        most = Decimal((0, (9,) * kind.precision, -kind.scale))
        return -most, most, step
    least, most = BOUNDS[kind]
    return Decimal(least), Decimal(most), Decimal(1)


@given(*[st.one_of(st.sampled_from(list(BOUNDS)), decimals())] * 2)
def test_a_number_fits_where_its_bounds_and_its_step_do(found: spark.DataType, declared: spark.DataType) -> None:
    least, most, step = bounds(found)
    first, last, finest = bounds(declared)
    assert fits(found, declared) == (first <= least and most <= last and finest <= step)


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        (spark.DoubleType(), spark.IntegerType()),
        (spark.DoubleType(), spark.DecimalType(12, 2)),
        (spark.DecimalType(12, 2), spark.DoubleType()),
        (spark.LongType(), spark.DoubleType()),
        (spark.DoubleType(), spark.FloatType()),
        (spark.StringType(), spark.IntegerType()),
        (spark.StringType(), spark.DateType()),
        (spark.IntegerType(), spark.StringType()),
        (spark.BooleanType(), spark.IntegerType()),
        (spark.DateType(), spark.TimestampType()),
        (spark.TimestampType(), spark.DateType()),
        (spark.TimestampNTZType(), spark.TimestampType()),
        (spark.ArrayType(spark.LongType()), spark.ArrayType(spark.IntegerType())),
        (spark.ArrayType(spark.StringType()), spark.StringType()),
    ],
)
def test_what_a_cast_could_change_does_not_fit(found: spark.DataType, declared: spark.DataType) -> None:
    assert not fits(found, declared)
    assert declared.simpleString() in way_out(found, declared) or "to_date" in way_out(found, declared)


@pytest.mark.parametrize(
    ("found", "declared"),
    [
        (spark.NullType(), spark.DateType()),
        (spark.VarcharType(9), spark.StringType()),
        (spark.FloatType(), spark.DoubleType()),
        (spark.IntegerType(), spark.DoubleType()),
        (spark.ArrayType(spark.IntegerType()), spark.ArrayType(spark.LongType())),
        (spark.TimestampType(), spark.TimestampType()),
    ],
)
def test_what_widens_without_loss_fits(found: spark.DataType, declared: spark.DataType) -> None:
    assert fits(found, declared)
