"""A small product whose source is a log: clicks in two partitions, some of them late; how many of each page there were, by day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.declarations.logs import LogPlace
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Instant, Published, iceberg_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.installation import Platform
from manifests.chunks import Chunking
from manifests.division import ByRange
from manifests.lateness import Lateness
from manifests.log_ranges import LandedLog, LandedRange, LogIdentity, LogKind, LogRange, going_on
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.lakehouse.loads import LOG_PROPERTY
from resources.settings import load_settings

CLICKS, DAILY = "bronze.clicks", "silver.clicks_daily"
MARCH = date(2026, 3, 1)
LOG = LogIdentity(LogKind.KAFKA, "cluster-1", "clicks", "topic-1")


class Click(pa.DataFrameModel):
    """A record of the log."""

    log_partition: pl.Int32
    log_offset: pl.Int64
    said_at: Instant
    page: str


class Daily(Published):
    """How many clicks a page had on a day, and the last place of them."""

    day: pl.Date
    page: str
    clicks: pl.Int64
    last_offset: pl.Int64


def daily(inputs: Inputs, context: TransformContext) -> DataFrame:  # noqa: ARG001 - the signature is a transform's
    """Count clicks by day and page."""
    clicks = inputs.source.withColumn("day", F.to_date("said_at"))
    return clicks.groupBy("day", "page").agg(F.count("*").alias("clicks"), F.max("log_offset").alias("last_offset"))


PLACE = LogPlace(LogKind.KAFKA, "log_offset", "log_partition", Lateness(disorder=timedelta(hours=2)), "said_at")
INPUT = InputTable(CLICKS, "Clicks as they came.", Click, ("team:web",), log=PLACE)
TARGET = TargetTable(
    name=DAILY,
    description="Clicks by day and page.",
    model=Daily,
    key=("day", "page"),
    day_column="day",
    chunking=Chunking.DAY,
    chunks_from="2026-03-01",
    chunks_until="2026-03-31",
    source=CLICKS,
    source_time_column="said_at",
    transform="daily",
    versions={"1": TransformVersion(daily)},
    owners=("team:web",),
)


class Told(Published):
    """A record as it is to be read."""

    log_partition: pl.Int32
    log_offset: pl.Int64
    said_at: Instant
    page: str


def told(inputs: Inputs, context: TransformContext) -> DataFrame:  # noqa: ARG001 - the signature is a transform's
    """Return each record, its page in capital letters."""
    return inputs.source.withColumn("page", F.upper("page")).select("log_partition", "log_offset", "said_at", "page")


BY_OFFSET = TargetTable(
    name="silver.clicks",
    description="Clicks as they are to be read, by offset.",
    model=Told,
    key=("log_partition", "log_offset"),
    chunking=Chunking.WHOLE,
    chunk_values=ByRange("log_offset", (0, 10, 20, 30, 40)),
    source=CLICKS,
    transform="told",
    versions={"1": TransformVersion(told)},
    owners=("team:web",),
)


def opened(home: Path, place: LogPlace | None = PLACE, target: TargetTable = TARGET, **settings: object) -> Platform:
    """Return an installation that serves the product, of which nothing is made yet but its catalog."""
    product = Product("web", (replace(INPUT, log=place),), (target,), code=("benchmarks.clicks",))
    platform = Platform.of(load_settings(home=home, **settings), [product])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def click(partition: int, offset: int, day: float, page: str = "home") -> dict[str, Any]:
    """Return a record; `day` counts from the first of March, with its fraction."""
    at = datetime(2026, 3, 1, tzinfo=UTC) + timedelta(days=day)
    return {"log_partition": partition, "log_offset": offset, "said_at": at, "page": page}


def land(
    platform: Platform,
    load_id: str,
    rows: Sequence[Mapping[str, Any]],
    ranges: Sequence[LogRange],
    log: LogIdentity | None = LOG,
    **said: Any,
) -> None:
    """Load records as a landing does, which says of which ranges they are; with `log=None` as another load."""
    properties = {LOAD_PROPERTY: load_id}
    if log is not None:
        landed = []
        for one in ranges:
            times = [
                row["said_at"]
                for row in rows
                if row["log_partition"] == one.partition and one.start <= row["log_offset"] < one.until
            ]
            landed.append(LandedRange(one, len(times), min(times, default=None), max(times, default=None)))
        before = [one.landed for one in platform.lakehouse.landed_loads(CLICKS)]
        properties[LOG_PROPERTY] = going_on(LandedLog(log, tuple(landed), **said), before).to_json()
    schema = schema_to_pyarrow(iceberg_schema(Click), include_field_ids=False)
    batches = [arrow.Table.from_pylist([dict(row) for row in rows], schema)] if rows else []
    platform.lakehouse.append(CLICKS, batches, properties)


def manifest(run_id: str, first: int, last: int, log: Mapping[str, Any] | None = None, **changes: Any) -> RunManifest:
    """Return the contract of a run over days of March."""
    scope = {"start": MARCH + timedelta(days=first - 1), "end": MARCH + timedelta(days=last - 1)}
    return manifest_from(
        {
            "runId": run_id,
            "kind": "BACKFILL",
            "requestedBy": "ana",
            "reason": "a reason that is long enough",
            "source": {"table": CLICKS} | ({} if log is None else {"log": dict(log)}),
            "transform": {"name": "daily", "version": "1"},
            "target": {"table": DAILY, "publishRange": scope},
            "development": True,
        }
        | changes
    )
