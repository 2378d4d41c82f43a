"""Readings of meters in two daily tables: one of a day's own rows, one that spreads each over the three days after it.

Put here the declaration that tests of quarantined rows share. Spark's Python workers import it.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pandera.polars as pandera
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba

READINGS, DAILY, TREND = "bronze.readings", "silver.daily_watts", "silver.daily_trend"


class Readings(pandera.DataFrameModel):
    """What meters have said; none below zero."""

    meter: str = pandera.Field()
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int32 = pandera.Field(ge=0)


class Corrected(pandera.DataFrameModel):
    """The same, of meters that may run backwards."""

    meter: str = pandera.Field()
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int32 = pandera.Field(ge=-100)


class Daily(ba.Published):
    """A row a meter and day."""

    meter: str = pandera.Field(description="The meter.")
    day: date = pandera.Field(description="The day.")
    watt_hours: pl.Int64 = pandera.Field(description="Of that day.")


def _of_days(rows: DataFrame) -> DataFrame:
    return rows.groupBy("meter", F.to_date("read_at").alias("day")).agg(
        F.sum("watt_hours").cast("long").alias("watt_hours")
    )


def daily(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Return what each meter has said on each day."""
    return _of_days(inputs.source)


def trend(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Each day has what was read on it and on the three days before."""
    days = _of_days(inputs.source)
    spread = F.explode(F.sequence("day", F.date_add("day", 3)))
    return (
        days.select("meter", spread.alias("day"), "watt_hours")
        .groupBy("meter", "day")
        .agg(F.sum("watt_hours").cast("long").alias("watt_hours"))
    )


def _target(name: str, transform: Any, warm_up: int) -> ba.TargetTable:
    return ba.TargetTable(
        name,
        "watts by meter and day",
        Daily,
        ("meter", "day"),
        day_column="day",
        chunking=ba.Chunking.DAY,
        chunks_from="2024-01-01",
        chunks_until="2024-12-31",
        source=READINGS,
        source_time_column="read_at",
        warm_up_days=lambda _: warm_up,
        versions={"1": ba.TransformVersion(transform)},
        owners=("team:x",),
    )


def product(model: type[pandera.DataFrameModel]) -> ba.Product:
    """Return the product with a model of the readings."""
    inputs = (ba.InputTable(READINGS, "readings", model, ("team:x",), partition_by="read_at"),)
    return ba.Product("metering", inputs, (_target(DAILY, daily, 0), _target(TREND, trend, 3)))


PRODUCT = product(Readings)
"""As a process serves it that is told so by a setting."""
