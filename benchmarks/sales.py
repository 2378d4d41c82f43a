"""A small product whose target a test divides beside time: sales by jurisdiction, cut by hours or months, by value or by bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Corrections, Instant, Published, iceberg_schema
from backfill_assets.declarations.target import (
    CorrectionsTable,
    Inputs,
    TargetTable,
    TransformContext,
    TransformVersion,
)
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from manifests.chunks import Chunking
from manifests.division import ByValue
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

RAW, SALES, CORRECTIONS = "bronze.raw_sales", "silver.sales", "silver.sales_corrections"
JURISDICTIONS = ("CA", "NY", "WA")
FIRST, LAST = date(2024, 1, 1), date(2024, 3, 31)


class Raw(pa.DataFrameModel):
    """A sale as it was delivered."""

    sale: str
    jurisdiction: str = pa.Field(nullable=True)
    sold_at: Instant
    cents: pl.Int64


class Sale(Published):
    """A sale."""

    sale: str
    jurisdiction: str = pa.Field(nullable=True)
    day: pl.Date
    sold_at: Instant
    cents: pl.Int64


class Correction(Corrections):
    """A sale that was corrected."""

    sale: str
    jurisdiction: str
    day: pl.Date


def sales(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the sales; in version 2 each costs a cent more."""
    more = 0 if context.version == "1" else 1
    return inputs.source.select(
        "sale",
        "jurisdiction",
        F.to_date("sold_at").alias("day"),
        "sold_at",
        (F.col("cents") + F.lit(more)).alias("cents"),
    )


def without_new_york(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the sales but those of one jurisdiction."""
    return sales(inputs, context).where("jurisdiction != 'NY'")


BY_MONTH = TargetTable(
    name=SALES,
    description="A row a sale.",
    model=Sale,
    key=("jurisdiction", "day", "sale"),
    day_column="day",
    chunking=Chunking.MONTH,
    chunks_from="2024-01",
    chunks_until="2024-12",
    source=RAW,
    source_time_column="sold_at",
    transform="sales",
    versions={"1": TransformVersion(sales), "2": TransformVersion(sales), "3": TransformVersion(without_new_york)},
    owners=("team:sales",),
    chunk_values=ByValue("jurisdiction", JURISDICTIONS),
)
BY_HOUR = replace(
    BY_MONTH,
    day_column="sold_at",
    chunking=Chunking.HOUR,
    chunks_from="2024-01-01T00",
    chunks_until="2024-03-31T23",
    key=("jurisdiction", "sold_at", "sale"),
    chunk_values=None,
)
BY_HOUR_AND_VALUE = replace(BY_HOUR, chunk_values=BY_MONTH.chunk_values)


class Dated(Sale):
    """A sale of which every column that finds it is there."""

    jurisdiction: str


MERGED = replace(BY_MONTH, model=Dated, entity="sale", corrections=CorrectionsTable(CORRECTIONS, Correction))
"""By month and value, with modes that derive what they publish."""
INPUT = InputTable(
    name=RAW, description="Sales as delivered.", model=Raw, owners=("team:sales",), partition_by="sold_at"
)


def product(target: TargetTable) -> Product:
    """Return the product with one target; its code is this module."""
    return Product("sales", (INPUT,), (target,), code=("benchmarks.sales",))


def opened(home: Path, target: TargetTable, **settings: Any) -> Platform:
    """Return an installation that serves the product, of which nothing is made yet but its catalog."""
    platform = Platform.of(load_settings(home=home, **settings), [product(target)])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def raw(
    days: Sequence[date], of_a_day: int = 6, jurisdictions: Sequence[str | None] = JURISDICTIONS, name: str = "s"
) -> arrow.Table:
    """Return sales of days, so many of each, over its hours and the jurisdictions."""
    rows = [
        {
            "sale": f"{name}{number}-{place}",
            "jurisdiction": jurisdictions[place % len(jurisdictions)],
            "sold_at": datetime(day.year, day.month, day.day, place * 24 // of_a_day, place % 60, tzinfo=UTC),
            "cents": 100 * number + place,
        }
        for number, day in enumerate(days)
        for place in range(of_a_day)
    ]
    return arrow.Table.from_pylist(rows, schema_to_pyarrow(iceberg_schema(Raw), include_field_ids=False))


def days_between(first: date, last: date) -> Iterator[date]:
    """Yield days, both ends included."""
    for number in range((last - first).days + 1):
        yield first + timedelta(days=number)


def fill(platform: Platform, first: date = FIRST, last: date = LAST, **rows: Any) -> None:
    """Make the installation and load its source."""
    initialise(platform)
    platform.lakehouse.append(RAW, [raw(list(days_between(first, last)), **rows)], {LOAD_PROPERTY: "all"})


def manifest(
    run_id: str,
    start: date = FIRST,
    end: date = LAST,
    version: str = "1",
    target: dict[str, Any] | None = None,
    **changes: Any,
) -> RunManifest:
    """Return the contract of a run over days; `target` has what else its target says."""
    text: dict[str, Any] = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": RAW},
        "transform": {"name": "sales", "version": version},
        "target": {"table": SALES, "publishRange": {"start": start, "end": end}, **(target or {})},
        "development": True,
    }
    return manifest_from(text | changes)


def rows_of(platform: Platform, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    """Return what readers get, by sale."""
    found = platform.lakehouse.table(SALES).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["sale"])
