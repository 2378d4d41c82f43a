"""A small product whose history lies in a topic: scans of parcels, as JSON, some of them sent twice; what each says, by day.

Put here the product and what is needed to write such a topic and to say by hand what it comes to. Brokers are started elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from random import Random
from typing import Any

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.schema import Instant, Published
from backfill_assets.declarations.sinks import Sink, SinkClass, ToTopic
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.declarations.topics import TOPIC_PLACE, Topic, TopicRecord
from manifests.chunks import Chunking
from manifests.lateness import Lateness

TOPIC, LANDED, SCANS = "parcels.scans.v1", "bronze.parcel_scans_log", "silver.parcel_scans"
FIRST = date(2026, 3, 2)
DISORDER = timedelta(hours=2)
_SCAN = "scan_id string, parcel string, depot string, grams bigint"


class Scan(Published):
    """A parcel that was scanned at a depot; a scan that was sent again is there once."""

    day: pl.Date = pa.Field(description="The day of the scan, UTC.")
    scan_id: str = pa.Field(description="The scan, as the scanner names it.")
    parcel: str
    depot: str = pa.Field(isin=("AMS", "BLQ", "CPH", "DUB"))
    grams: pl.Int64 = pa.Field(gt=0)
    scanned_at: Instant
    log_partition: pl.Int32 = pa.Field(description="The place of the record that was sent first.")
    log_offset: pl.Int64


def scans(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the scans that records say, each once: as the record says that was sent first."""
    said = F.from_json(F.col("record_value").cast("string"), _SCAN)
    rows = inputs.source.where("record_value IS NOT NULL").withColumns({"said": said, "day": F.to_date("record_time")})
    of_scan = Window.partitionBy("said.scan_id").orderBy("record_time", "log_partition", "log_offset")
    first = rows.withColumn("_number", F.row_number().over(of_scan)).where("_number = 1")
    grams = F.col("said.grams") if context.version == "1" else F.col("said.grams") - F.lit(30)
    return first.select(
        "day",
        "said.scan_id",
        "said.parcel",
        "said.depot",
        grams.alias("grams"),
        F.col("record_time").alias("scanned_at"),
        "log_partition",
        "log_offset",
    )


LOG = InputTable(
    LANDED,
    "Records of the topic of scans, as they came.",
    TopicRecord,
    ("team:parcels",),
    log=replace(TOPIC_PLACE, lateness=Lateness(disorder=DISORDER), time="record_time"),
)
TARGET = TargetTable(
    name=SCANS,
    description="A row a scan of a parcel.",
    model=Scan,
    key=("day", "scan_id"),
    day_column="day",
    chunking=Chunking.DAY,
    chunks_from="2026-03-01",
    chunks_until="2026-12-31",
    source=LANDED,
    source_time_column="record_time",
    transform="scans",
    versions={"1": TransformVersion(scans), "2": TransformVersion(scans)},
    owners=("team:parcels",),
    live=LivePolicy(
        transform_version="1", rewind_days=0, begins_on=FIRST + timedelta(days=2), development=True, requested_by="live"
    ),
)
EVENTS = Sink(
    "scan_events",
    SinkClass.EVENT_TOPIC,
    "each scan, corrected, for whoever plans routes with them",
    ("team:parcels",),
    ToTopic("parcels.clean.v1", SCANS, key=("parcel",), partitions=3, messages_per_second=1_000_000),
)
SCANNERS = Topic("parcels", "A scan, whenever a parcel passes a depot.", ("team:parcels",), TOPIC, LANDED)
PRODUCT = Product("parcels", (LOG,), (TARGET,), code=("benchmarks.parcels",), topics=(SCANNERS,), sinks=(EVENTS,))


@dataclass(frozen=True)
class Sent:
    """A record as it is to be sent; its value is None of a tombstone."""

    partition: int
    key: bytes
    value: bytes | None
    at: datetime


def records(number: int, partitions: int, seed: int, *, days: float = 5.0, begins: float = 0.0) -> Iterator[Sent]:
    """Yield records in the order in which they are sent: scans of some days, up to two hours out of order, one of ten sent twice."""
    random = Random(seed)
    again: list[tuple[int, dict[str, Any], datetime]] = []
    for place in range(number):
        due = datetime.combine(FIRST, datetime.min.time(), UTC) + timedelta(days=begins + days * place / number)
        at = due - timedelta(seconds=random.randrange(int(DISORDER.total_seconds())))
        at = max(at, datetime.combine(FIRST, datetime.min.time(), UTC))
        partition = random.randrange(partitions)
        said = {
            "scan_id": f"s{seed}-{place:07d}",
            "parcel": f"p{random.randrange(max(1, number // 4)):06d}",
            "depot": random.choice(("AMS", "BLQ", "CPH", "DUB")),
            "grams": random.randrange(40, 20_000),
        }
        yield _record(partition, said, at)
        if random.random() < 0.1:
            again.append((partition, said, at))
        if again and random.random() < 0.1:
            yield _record(*again.pop(random.randrange(len(again))))


def _record(partition: int, said: Mapping[str, Any], at: datetime) -> Sent:
    text = json.dumps(said, separators=(",", ":"))
    return Sent(partition, str(said["parcel"]).encode(), text.encode(), at)


def expected(committed: Iterable[Sent], first: date, last: date) -> dict[str, tuple[Any, ...]]:
    """Return by scan what the target says of the days, both inclusive, from nothing but the records that were committed."""
    found: dict[str, tuple[Any, ...]] = {}
    for one in committed:
        if one.value is None or not first <= one.at.date() <= last:
            continue
        said = json.loads(one.value)
        found[said["scan_id"]] = (one.at.date(), said["parcel"], said["depot"], said["grams"], one.at)
    return found
