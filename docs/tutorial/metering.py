"""Electricity meters: consumption by meter and day."""

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba

OWNERS = ("team:metering",)


class MeterReadings(pa.DataFrameModel):
    """The input: one reading of one meter; append-only."""

    meter_id: str = pa.Field(description="The meter.")
    read_at: ba.Instant = pa.Field(description="When it was read.")
    watt_hours: pl.Int64 = pa.Field(ge=0, description="Energy used since the reading before.")


class MeterDaily(ba.Published):
    """The target: one row a meter and day. The lineage columns come from `Published`."""

    meter_id: str = pa.Field(str_length={"min_value": 1}, description="The meter.")
    day: pl.Date = pa.Field(description="The day, in UTC.")
    readings: pl.Int64 = pa.Field(ge=1, description="Readings of that day.")
    watt_hours: pl.Int64 = pa.Field(ge=0, description="Energy read on that day.")

    class Config:
        unique = ("meter_id", "day")


def meter_daily(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    """Sum the readings by meter and day: a pure function. The session's time zone is UTC."""
    by_day = inputs.source.withColumn("day", F.to_date("read_at")).groupBy("meter_id", "day")
    return by_day.agg(F.count("*").alias("readings"), F.sum("watt_hours").alias("watt_hours"))


READINGS = ba.InputTable(
    "bronze.meter_readings", "Readings as they came.", MeterReadings, OWNERS, partition_by="read_at"
)
DAILY = ba.TargetTable(
    name="silver.meter_daily",
    description="Consumption by meter and day.",
    model=MeterDaily,
    key=("meter_id", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2030-12",
    source=READINGS.name,
    source_time_column="read_at",
    transform="meter_daily",
    versions={"1.0.0": ba.TransformVersion(meter_daily)},
    owners=OWNERS,
)
PRODUCT = ba.Product(name="metering", inputs=(READINGS,), targets=(DAILY,))
