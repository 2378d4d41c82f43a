"""A product of three sources whose chunks are an hour of a tenant: readings of meters, outages, tariffs.

Put here the declaration and its rows; what a run over them costs is `benchmarks.hours_by_tenant`'s.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

READINGS, OUTAGES, TARIFFS, USAGE = "bronze.readings", "bronze.outages", "bronze.tariffs", "silver.usage"
FIRST = date(2024, 1, 1)


class Reading(pa.DataFrameModel):
    """What a meter read."""

    meter: str
    tenant: str
    read_at: ba.Instant
    watts: pl.Int64


class Outage(pa.DataFrameModel):
    """An hour in which a tenant's meters cannot be trusted."""

    tenant: str
    hour: ba.Instant


class Tariff(pa.DataFrameModel):
    """What a kilowatt hour costs a tenant, from a day on."""

    tenant: str
    valid_from: pl.Date
    cents: pl.Int64


class Usage(ba.Published):
    """A reading, with what it costs."""

    meter: str
    tenant: str
    read_at: ba.Instant
    watts: pl.Int64
    trusted: bool
    cents: pl.Int64 = pa.Field(nullable=True)


def usage(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Return each reading, whether it can be trusted, and its tariff."""
    out = inputs.sources[OUTAGES].withColumnRenamed("hour", "read_hour").withColumn("out", F.lit(True))
    valid = inputs.sources[TARIFFS].groupBy("tenant").agg(F.max_by("cents", "valid_from").alias("cents"))
    read = inputs.source.withColumn("read_hour", F.date_trunc("hour", "read_at"))
    joined = read.join(F.broadcast(out), ["tenant", "read_hour"], "left").join(F.broadcast(valid), "tenant", "left")
    return joined.select("meter", "tenant", "read_at", "watts", F.col("out").isNull().alias("trusted"), "cents")


def target(tenants: tuple[str, ...]) -> ba.TargetTable:
    """Return the declaration: a chunk is an hour of a tenant."""
    return ba.TargetTable(
        name=USAGE,
        description="A row a reading.",
        model=Usage,
        key=("tenant", "meter", "read_at"),
        day_column="read_at",
        chunking=ba.Chunking.HOUR,
        chunks_from="2024-01-01T00",
        chunks_until="2024-12-31T23",
        chunk_values=ba.ByValue("tenant", tenants),
        source=READINGS,
        source_time_column="read_at",
        sources=(
            ba.SourceTable(OUTAGES, "hour", reads=ba.Window(before=1)),
            ba.SourceTable(TARIFFS, "valid_from", reads=ba.EVERYTHING_UNTIL_END),
        ),
        versions={"1.0.0": ba.TransformVersion(usage)},
        owners=("team:metering",),
    )


def opened(home: Path, tenants: int, days: int, readings: int) -> Platform:
    """Return an installation with its inputs loaded and nothing published."""
    names = tuple(f"tenant-{number:02}" for number in range(tenants))
    inputs = (
        ba.InputTable(READINGS, "Readings.", Reading, owners=("team:metering",), partition_by="read_at"),
        ba.InputTable(OUTAGES, "Outages.", Outage, owners=("team:metering",)),
        ba.InputTable(TARIFFS, "Tariffs.", Tariff, owners=("team:metering",)),
    )
    product = ba.Product("metering", inputs, (target(names),), code=("benchmarks.metering",))
    home.mkdir(parents=True, exist_ok=True)
    platform = Platform.of(load_settings(home=home), [product])
    platform.lakehouse.create_catalog()
    initialise(platform)
    midnight = datetime(FIRST.year, FIRST.month, FIRST.day, tzinfo=UTC)
    hours = [midnight + timedelta(hours=number) for number in range(24 * days)]
    for day in range(days):
        rows = [
            {"meter": f"m{one:03}", "tenant": name, "read_at": hour + timedelta(minutes=one % 60), "watts": one * 7}
            for hour in hours[24 * day : 24 * day + 24]
            for name in names
            for one in range(readings)
        ]
        _load(platform, READINGS, Reading, rows, f"readings-{day}")
    _load(platform, OUTAGES, Outage, [{"tenant": names[0], "hour": hour} for hour in hours[::7]], "outages")
    _load(platform, TARIFFS, Tariff, [{"tenant": name, "valid_from": FIRST, "cents": 30} for name in names], "tariffs")
    return platform


def _load(
    platform: Platform, table: str, model: type[pa.DataFrameModel], rows: list[dict[str, object]], name: str
) -> None:
    schema = schema_to_pyarrow(iceberg_schema(model), include_field_ids=False)
    platform.lakehouse.append(table, [arrow.Table.from_pylist(rows, schema)], {LOAD_PROPERTY: name})
