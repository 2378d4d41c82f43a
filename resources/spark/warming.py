"""What is computed once so that what comes later is sooner: classes are loaded, and compiled, when they are first used.

Put here a little of everything that a run does, and who has it done.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from resources.spark import connected, pyspark_private


def warmed(address: str, folder: Path) -> None:
    """Have a server that was started just now do a little, in a folder of its own that is removed afterwards."""
    session = connected.session_at(address)
    connected.of_this_process(session)
    place = folder / "warming"
    try:
        pyspark_private.put_all(session, {"spark.sql.shuffle.partitions": "2"})
        do_what_is_done(session, str(place))
    finally:
        session.stop()
        shutil.rmtree(place, ignore_errors=True)


def do_what_is_done(session: SparkSession, folder: str) -> None:
    """Do a little of what a run does: read, join, window, aggregate, write by partition, have Python workers do something."""

    def pass_on(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        yield from batches

    numbers = session.range(1000).select(
        "id",
        (F.col("id") % 7).cast("string").alias("name"),
        F.date_add(F.lit("2024-01-01"), F.col("id").cast("int") % 90).alias("day"),
    )
    numbers.withColumn("chunk", F.trunc("day", "MM")).write.partitionBy("chunk").parquet(f"{folder}/numbers")
    read = session.read.parquet(f"{folder}/numbers")
    days = Window.partitionBy("name").orderBy("day")
    listed = session.createDataFrame([("1", 1), ("2", 2)], "name string, slot int")
    found = (
        read.withColumn("first", F.min("day").over(days))
        .join(F.broadcast(listed), "name", "left_outer")
        .groupBy("name", F.from_utc_timestamp(F.col("first").cast("timestamp"), "Europe/Rome").alias("at"))
        .agg(F.count_if(F.col("slot").isNull()).alias("without"), F.collect_list(F.struct("id", "day")).alias("rows"))
        .join(read.hint("shuffle_hash"), "name", "full_outer")
        .select("name", F.inline("rows"), F.sequence(F.col("day"), F.date_add("day", 2)).alias("days"))
        .repartitionById(2, F.lit(0))
        .mapInArrow(pass_on, "name string, id long, day date, days array<date>")
        .sortWithinPartitions("name")
    )
    found.count()
    found.limit(5).collect()
