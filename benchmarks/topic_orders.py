"""A small product whose history lies in a topic: a row for each order event, decoded from the bytes that were landed."""

from __future__ import annotations

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba

LOG, EVENTS = "bronze.orders_log", "silver.order_events"


class OrderEvent(ba.Published):
    """What happened to an order."""

    log_partition: pl.Int32 = pa.Field(description="Where it was said.")
    log_offset: pl.Int64 = pa.Field(description="At which offset.")
    day: pl.Date = pa.Field(description="When, a day of UTC.")
    order_id: str = pa.Field(description="The order.")
    status: str = pa.Field(isin=["NEW", "PAID", "SENT"], description="What it is now.")
    cents: pl.Int64 = pa.Field(ge=0, description="What it costs.")


def order_events(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Decode the records; a tombstone is no event of an order."""
    return decoded(inputs.source)


def decoded(rows: DataFrame) -> DataFrame:
    """Return the events that landed records say."""
    said = F.from_json(F.col("record_value").cast("string"), "status string, cents long")
    return (
        rows.where(F.col("record_value").isNotNull())
        .withColumn("said", said)
        .select(
            "log_partition",
            "log_offset",
            F.to_date("record_time").alias("day"),
            F.col("record_key").cast("string").alias("order_id"),
            F.col("said.status").alias("status"),
            F.col("said.cents").alias("cents"),
        )
    )


TABLE = ba.InputTable(LOG, "Records of the topic.", ba.TopicRecord, ("team:benchmarks",), log=ba.TOPIC_PLACE)
TARGET = ba.TargetTable(
    name=EVENTS,
    description="A row an event of an order.",
    model=OrderEvent,
    key=("log_partition", "log_offset"),
    day_column="day",
    chunking=ba.Chunking.DAY,
    chunks_from="2026-01-01",
    chunks_until="2026-01-31",
    source=LOG,
    source_time_column="record_time",
    references=(),
    warm_up_days=lambda _: 0,
    versions={"1": ba.TransformVersion(order_events)},
    owners=("team:benchmarks",),
)


def product(topic: str, limits: ba.TopicLimits | None = None) -> ba.Product:
    """Return the product of a topic of some name."""
    declared = ba.Topic("orders", "Orders.", ("team:benchmarks",), topic, LOG, limits=limits or ba.TopicLimits())
    return ba.Product("order_events", (TABLE,), (TARGET,), topics=(declared,))
