"""A small product whose records come late: each says itself of which day it is, and was sent up to a week after.

Put here the product and the records of such a topic, with what they come to by hand. Brokers are started elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from random import Random

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import backfill_assets as ba
from benchmarks.parcels import Sent

TOPIC, LANDED, SCANS = "late.scans.v1", "bronze.late_scans_log", "silver.late_scans"
FIRST, DAYS = date(2026, 3, 2), 20
LATEST = timedelta(days=7)
_SAID = "scan_id string, at string, grams bigint"


class LateScan(ba.Published):
    """A scan, as the record says that was sent last."""

    day: pl.Date = pa.Field(description="The day of the scan, UTC.")
    scan_id: str = pa.Field(description="The scan.")
    grams: pl.Int64 = pa.Field(gt=0, description="What the parcel weighs.")
    log_partition: pl.Int32 = pa.Field(description="The place of the record.")
    log_offset: pl.Int64 = pa.Field(description="Its offset.")


def said_at(record: ba.KafkaRecord) -> datetime | None:
    """Return when a scan was made: its value says it; a tombstone says nothing."""
    if record.value is None:
        return None
    return datetime.fromisoformat(json.loads(record.value)["at"])


def late_scans(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Return each scan once, as the record says that was sent last."""
    said = F.from_json(F.col("record_value").cast("string"), _SAID)
    rows = inputs.source.withColumns({"said": said, "day": F.to_date("event_time")})
    last = Window.partitionBy("day", "said.scan_id").orderBy(
        F.desc("record_time"), "log_partition", F.desc("log_offset")
    )
    newest = rows.withColumn("_number", F.row_number().over(last)).where("_number = 1")
    return newest.select("day", "said.scan_id", "said.grams", "log_partition", "log_offset")


LOG = ba.InputTable(
    LANDED,
    "Records of the topic of scans, as they came.",
    ba.TimedTopicRecord,
    ("team:parcels",),
    log=replace(ba.TOPIC_PLACE, lateness=ba.Lateness(disorder=LATEST), time="record_time"),
)
TARGET = ba.TargetTable(
    name=SCANS,
    description="A row a scan of a parcel.",
    model=LateScan,
    key=("day", "scan_id"),
    day_column="day",
    chunking=ba.Chunking.DAY,
    chunks_from=str(FIRST),
    chunks_until="2026-12-31",
    source=LANDED,
    source_time_column="event_time",
    transform="late_scans",
    timeliness=ba.Timeliness(late=ba.OnLate.REPORT),
    versions={"1": ba.TransformVersion(late_scans)},
    owners=("team:parcels",),
)
SCANNERS = ba.Topic(
    "late", "A scan, sent when the scanner is online.", ("team:parcels",), TOPIC, LANDED, event_time=said_at
)
PRODUCT = ba.Product("late", (LOG,), (TARGET,), code=("benchmarks.late_scans",), topics=(SCANNERS,))


def records(number: int, partitions: int, seed: int) -> Iterator[Sent]:
    """Yield records in the order in which they are sent: each of a day, and sent up to a week after it; some tombstones."""
    random = Random(seed)
    begin = datetime.combine(FIRST, datetime.min.time(), UTC)
    for place in range(number):
        sent = begin + timedelta(days=DAYS * place / number)
        late = LATEST * (random.random() ** 3)
        at = max(begin, sent - late)
        # a scan keeps its partition: its records have one order
        scan = random.randrange(number // 2)
        key = f"s{scan:06d}"
        said = {"scan_id": key, "at": at.isoformat(), "grams": random.randrange(40, 20_000)}
        value = None if random.random() < 0.02 else json.dumps(said).encode()
        yield Sent(scan % partitions, key.encode(), value, sent)


def expected(committed: Iterable[Sent], first: date, last: date) -> dict[tuple[date, str], int]:
    """Return the grams by day and scan, from nothing but the records that were committed, in their order."""
    found: dict[tuple[date, str], int] = {}
    for one in committed:
        if one.value is not None:
            said = json.loads(one.value)
            day = datetime.fromisoformat(said["at"]).date()
            if first <= day <= last:
                found[day, said["scan_id"]] = said["grams"]
    return found
