"""A small read model that a test moves from one table to another: points by month in the old one, by day in the new one.

Put here the declarations, rows, and how a run is written where Spark is left out; the installations of tests are
`tests/migration_world.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba
from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.staging.rows import lineage
from backfill_assets.worker.digest import RowDigest
from manifests.chunks import CHUNK_GATE
from manifests.lifecycle import RunState
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import local_path
from resources.ledger.facade import GatedChunk, RunRecord, Verdict
from resources.settings import load_settings

RAW, OLD, NEW = "bronze.raw_points", "silver.points", "silver.points_v2"
NAME = "points"
REGIONS = ("north", "south", "west")
FIRST, LAST = date(2024, 1, 1), date(2024, 2, 10)


class RawPoint(pa.DataFrameModel):
    """A point as it was delivered; a later one of the same name says another number."""

    point: str
    region: str
    at: ba.Instant
    n: pl.Int64


class Point(ba.Published):
    """The last number of a point on a day."""

    point: str
    region: str
    day: pl.Date
    n: pl.Int64


class PointV2(ba.Published):
    """The last number of a point on a day; the region is called area."""

    point: str
    area: str
    day: pl.Date
    n: pl.Int64


def _last(source: DataFrame, region: str) -> DataFrame:
    return (
        source.withColumn("day", F.to_date("at"))
        .groupBy("point", F.col("region").alias(region), "day")
        .agg(F.max("n").alias("n"))
        .select("point", region, "day", "n")
    )


def points(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    """Return the points of the old table."""
    del context
    return _last(inputs.source, "region")


def points_v2(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    """Return the points of the new table; version 0 is wrong in the north."""
    found = _last(inputs.source, "area")
    if context.version == "0":
        return found.withColumn("n", F.when(F.col("area") == "north", F.col("n") + 1).otherwise(F.col("n")))
    return found


_OLD = ba.TargetTable(
    name=OLD,
    description="The last number of a point on a day.",
    model=Point,
    key=("point", "region", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2024-01",
    chunks_until="2024-12",
    source=RAW,
    source_time_column="at",
    versions={"1": ba.TransformVersion(points)},
    owners=("team:tests",),
    live=ba.LivePolicy(transform_version="1", rewind_days=5, development=True),
)
_NEW = replace(
    _OLD,
    name=NEW,
    model=PointV2,
    key=("point", "area", "day"),
    chunking=ba.Chunking.DAY,
    chunks_from="2024-01-01",
    chunks_until="2024-12-31",
    transform="points_v2",
    versions={"1": ba.TransformVersion(points_v2), "0": ba.TransformVersion(points_v2)},
)
MIGRATION = ba.Migration(
    name=NAME,
    old=OLD,
    new=NEW,
    transform_version="1",
    columns={"region": "area"},
    slice_column="region",
    consumers=("billing", "maps"),
    development=True,
)
INPUT = ba.InputTable(RAW, "Points as delivered.", RawPoint, ("team:tests",), partition_by="at")


def product(migration: ba.Migration = MIGRATION, **changes: Any) -> ba.Product:
    """Return the product; `changes` are of the new target."""
    return ba.Product(
        "points", (INPUT,), (_OLD, replace(_NEW, **changes)), migrations=(migration,), code=("benchmarks.points",)
    )


def raw(first: date, last: date, *, n: int = 1, points_of_a_day: int = 3) -> arrow.Table:
    """Return points of each day, of all regions in turn."""
    rows = [
        {
            "point": f"p{place}",
            "region": REGIONS[place % len(REGIONS)],
            "at": datetime(day.year, day.month, day.day, 12, place, tzinfo=UTC),
            "n": n,
        }
        for day in (first + timedelta(days=number) for number in range((last - first).days + 1))
        for place in range(points_of_a_day)
    ]
    return arrow.Table.from_pylist(rows, schema_to_pyarrow(iceberg_schema(RawPoint), include_field_ids=False))


def opened(
    home: Path, migration: ba.Migration = MIGRATION, *, spark: Mapping[str, str] | None = None, **changes: Any
) -> Platform:
    """Return the platform of an installation in `home`."""
    return Platform.of(load_settings(home=home, spark=dict(spark or {})), [product(migration, **changes)])


def written(platform: Platform, record: RunRecord) -> None:
    """Take an approved run as far as its publication, with files written by PyArrow: Spark and gates are left out."""
    ledger, plan = platform.ledger, record.plan
    target = platform.products.target(record.target)
    keys = [chunk.key for chunk in plan.chunks]
    started = ledger.start_attempt(
        record.run_id, keys, edition=0, actor="ada", location=platform.lakehouse.location(target.name)
    )
    if started is None:
        return
    attempt, prefix = started
    schema = schema_to_pyarrow(platform.lakehouse.table(target.name).schema())
    region = "region" if target.name == OLD else "area"
    source = pl.from_arrow(platform.lakehouse.table(RAW).scan(snapshot_id=plan.source_snapshot_id).to_arrow())
    assert isinstance(source, pl.DataFrame)
    rows = (
        source.with_columns(pl.col("at").dt.date().alias("day"))
        .group_by("point", pl.col("region").alias(region), "day")
        .agg(pl.col("n").max())
        .sort("point", region, "day")
    )
    files: dict[str, list[StagedFile]] = {}
    gated = []
    names = [name for name in dtypes(target.model) if name in rows.columns]
    for chunk in plan.chunks:
        mine = rows.filter(pl.col("day").is_between(chunk.start, chunk.end)).select(names)
        digest = RowDigest({name: dtypes(target.model)[name] for name in names})
        digest.update(mine)
        files[chunk.key] = []
        if mine.height:
            path = Path(local_path(prefix)) / f"{chunk.key}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            values = [row | lineage(plan) for row in mine.to_dicts()]
            pq.write_table(arrow.Table.from_pylist(values, schema=schema), path)
            files[chunk.key] = [StagedFile(f"file://{path}", mine.height, path.stat().st_size)]
        verdict = Verdict(CHUNK_GATE, True, "read back", {"rows": mine.height}, chunk.key, attempt)
        gated.append(GatedChunk(chunk.key, attempt, digest.result(), mine.height, {"slices": []}, verdict))
    ledger.stage(record.run_id, attempt, files)
    ledger.settle(record.run_id, "ada")
    ledger.record_gated(record.run_id, gated)
    ledger.record_verdicts(record.run_id, [Verdict(gate, True, "as staged", {}) for gate in plan.gates])
    ledger.move(record.run_id, RunState.VALIDATED, "ada", "gates passed", expected=RunState.STAGED)
