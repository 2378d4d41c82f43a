"""A plain script: one Spark job reads Parquet, applies the transform and overwrites the partitions of the months.

    python -m benchmarks.side_by_side.script FILES TABLE VERSION CALENDAR MONTH...

No plan, check, record or publication. `restate` is also what each Dagster run does, with one month.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from backfill_assets.declarations.target import Inputs, TransformContext
from backfill_assets.products.enforcement.transforms import CALENDAR, RULES, case_sla_daily
from benchmarks.side_by_side.data import last_day
from manifests.chunks import Chunk, Chunking, cut
from manifests.model import DayRange, Mode
from resources.spark import class_archive


def session() -> SparkSession:
    """Return the session: two cores, dynamic overwrite; and of this project the quiet log and the archive of classes, if there is one."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    return (
        SparkSession.builder.master("local[2]")
        .appName("restate")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.sources.partitionOverwriteMode", "dynamic")
        .config("spark.sql.parquet.compression.codec", "zstd")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.extraJavaOptions", f"{class_archive.java_options()} {class_archive.LOGGING}")
        .getOrCreate()
    )


def rows(spark: SparkSession, files: Path, version: str, calendar: str, months: Sequence[str]) -> DataFrame:
    """Return the rows of months, which follow one another, by a version of the transform."""
    start, end = date.fromisoformat(f"{months[0]}-01"), last_day(months[-1])
    chunks: tuple[Chunk, ...] = tuple(cut(Chunking.MONTH, start, end))
    context = TransformContext(
        run_id="side-by-side",
        mode=Mode.BACKFILL,
        run_clock=datetime.now(UTC),
        version=version,
        references={
            RULES: spark.read.parquet(str(files / "rules.parquet")),
            CALENDAR: spark.read.parquet(str(files / calendar)),
        },
        publish_range=DayRange(start=start, end=end),
        chunks=chunks,
        slots=tuple(range(len(chunks))),
    )
    # what happens later changes no row of these months, in no time zone
    until = datetime.combine(end + timedelta(days=2), datetime.min.time(), UTC)
    events = spark.read.parquet(str(files / "events.parquet")).where(F.col("event_at") < F.lit(until))
    return case_sla_daily(Inputs(events, None), context)


def restate(files: Path, table: Path, version: str, calendar: str, months: Sequence[str]) -> None:
    """Overwrite the partitions of months: those that have rows, each with one sorted file."""
    found = rows(session(), files, version, calendar, months)
    by_month = found.withColumn("month", F.date_format("business_date", "yyyy-MM"))
    by_month.write.mode("overwrite").partitionBy("month").parquet(str(table))


if __name__ == "__main__":
    _files, _table, _version, _calendar, *_months = sys.argv[1:]
    restate(Path(_files), Path(_table), _version, _calendar, _months)
