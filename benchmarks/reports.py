"""A small product whose source keeps every version of a day's report: cases by region and day, restated when a day is reported again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.revisions import Revisions
from backfill_assets.declarations.schedules import RestatementPolicy
from backfill_assets.declarations.schema import Instant, Published, iceberg_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.installation import Platform
from manifests.chunks import Chunking
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

REPORTS, DAILY = "bronze.reports", "silver.daily_cases"


class Report(pa.DataFrameModel):
    """A region's row in one version of a day's report."""

    report_date: pl.Date
    published_at: Instant
    revision: pl.Int64
    file_id: str
    region: str
    cases: pl.Int64


class Daily(Published):
    """What a day's report says of a region."""

    day: pl.Date
    region: str
    cases: pl.Int64


def daily(inputs: Inputs, context: TransformContext) -> DataFrame:  # noqa: ARG001 - the signature is a transform's
    """Return the rows of each day's newest version."""
    newest = Window.partitionBy("report_date").orderBy(F.desc("published_at"), F.desc("revision"), F.desc("file_id"))
    ranked = inputs.source.withColumn("_rank", F.dense_rank().over(newest))
    return ranked.where("_rank = 1").select(F.col("report_date").alias("day"), "region", "cases")


REVISIONS = Revisions("report_date", "published_at", "file_id", sequence="revision")
INPUT = InputTable(REPORTS, "Reports as they came, every version.", Report, ("team:reports",), revisions=REVISIONS)
TARGET = TargetTable(
    name=DAILY,
    description="Cases by region and day.",
    model=Daily,
    key=("day", "region"),
    day_column="day",
    chunking=Chunking.DAY,
    chunks_from="2020-01-01",
    chunks_until="2020-12-31",
    source=REPORTS,
    source_time_column="report_date",
    transform="daily",
    versions={"1": TransformVersion(daily)},
    owners=("team:reports",),
    restated=RestatementPolicy("1", development=True),
)
BY_MONTH = replace(TARGET, chunking=Chunking.MONTH, chunks_from="2020-01", chunks_until="2020-12")


def opened(home: Path, target: TargetTable = TARGET, **settings: object) -> Platform:
    """Return an installation that serves the product, of which nothing is made yet but its catalog."""
    product = Product("reports", (INPUT,), (target,), code=("benchmarks.reports",))
    platform = Platform.of(load_settings(home=home, **settings), [product])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def report(
    day: date, at: datetime, cases: Mapping[str, int], file_id: str, revision: int = 0
) -> list[dict[str, object]]:
    """Return the rows of one version of a day's report, by region."""
    said = {"report_date": day, "published_at": at, "revision": revision, "file_id": file_id}
    return [said | {"region": region, "cases": number} for region, number in cases.items()]


def deliver(platform: Platform, load_id: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Load rows into the table of reports."""
    schema = schema_to_pyarrow(iceberg_schema(Report), include_field_ids=False)
    platform.lakehouse.append(REPORTS, [arrow.Table.from_pylist(list(rows), schema)], {LOAD_PROPERTY: load_id})


def manifest(run_id: str, start: date, end: date) -> RunManifest:
    """Return the contract of a run over days."""
    return manifest_from(
        {
            "runId": run_id,
            "kind": "BACKFILL",
            "requestedBy": "ana",
            "reason": "a reason that is long enough",
            "source": {"table": REPORTS},
            "transform": {"name": "daily", "version": "1"},
            "target": {"table": DAILY, "publishRange": {"start": start, "end": end}},
            "development": True,
        }
    )
