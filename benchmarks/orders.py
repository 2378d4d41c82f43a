"""A small product of another domain, orders by customer, whose target a test gives the columns, partitions and chunks it wants."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Instant, Published, iceberg_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from manifests.chunks import Chunking
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

LINES, ORDERS = "bronze.order_lines", "silver.orders"
REGIONS = ("north", "süd", "east", "west")
Amount = Annotated[pl.Decimal, 12, 2]
FIRST, LAST = date(2023, 12, 1), date(2024, 3, 31)


class Line(pa.DataFrameModel):
    """An order line as it was delivered."""

    order_id: pl.Int64
    customer: str
    region: str = pa.Field(nullable=True)
    ordered_at: Instant
    price: Amount


class Bare(pa.DataFrameModel):
    """An order, priced, in a table that says of no row which run made it."""

    order_id: pl.Int64
    ordered_on: pl.Date
    ordered_at: Instant
    customer: str
    region: str = pa.Field(nullable=True)
    price: Amount = pa.Field(ge=0)


class Order(Published, Bare):
    """An order, priced."""


class Delivered(Order):
    """An order, priced, with the file that it came in, and a measure."""

    file: str = pa.Field(nullable=True)
    score: float = pa.Field(nullable=True)


def orders(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the orders, in version 2 with a surcharge."""
    price = F.col("price") if context.version == "1.0.0" else F.col("price") + F.lit(Decimal("1.00"))
    return inputs.source.select(
        "order_id",
        F.to_date("ordered_at").alias("ordered_on"),
        "ordered_at",
        "customer",
        "region",
        price.cast("decimal(12,2)").alias("price"),
    )


TARGET = TargetTable(
    name=ORDERS,
    description="A row an order.",
    model=Order,
    key=("order_id",),
    day_column="ordered_on",
    chunking=Chunking.MONTH,
    chunks_from="2023-01",
    chunks_until="2025-12",
    source=LINES,
    source_time_column="ordered_at",
    transform="orders",
    versions={"1.0.0": TransformVersion(orders), "2.0.0": TransformVersion(orders)},
    owners=("team:orders",),
)
SOURCE = InputTable(
    name=LINES, description="Order lines.", model=Line, owners=("team:orders",), partition_by="ordered_at"
)


def lines(number: int = 2_000) -> arrow.Table:
    """Return order lines spread over the days of four months, keys in no order of time."""
    days = (LAST - FIRST).days + 1
    rows = []
    for place in range(number):
        day = FIRST + timedelta(days=place * 37 % days)
        at = datetime(day.year, day.month, day.day, place * 7 % 24, place % 60, tzinfo=UTC)
        rows.append(
            {
                "order_id": place,
                "customer": f"customer-{place * 13 % 97}",
                "region": None if place % 11 == 0 else REGIONS[place % len(REGIONS)],
                "ordered_at": at,
                "price": Decimal(place % 500) / 4,
            }
        )
    return arrow.Table.from_pylist(rows, schema_to_pyarrow(iceberg_schema(Line), include_field_ids=False))


def product(target: TargetTable = TARGET) -> Product:
    """Return the product with one target; its code is this module."""
    return Product("orders", (SOURCE,), (target,), code=("benchmarks.orders",))


def opened(home: Path, target: TargetTable = TARGET, **settings: Any) -> Platform:
    """Return an installation that serves the product, of which nothing is made yet but its catalog."""
    platform = Platform.of(load_settings(home=home, **settings), [product(target)])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def fill(platform: Platform, number: int = 2_000) -> None:
    """Make the installation and load its source."""
    initialise(platform)
    platform.lakehouse.append(LINES, [lines(number)], {LOAD_PROPERTY: "all"})


def manifest(run_id: str, start: date, end: date, version: str = "2.0.0", **changes: Any) -> RunManifest:
    """Return the contract of a run over days."""
    text: dict[str, Any] = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": LINES},
        "transform": {"name": "orders", "version": version},
        "target": {"table": ORDERS, "publishRange": {"start": start, "end": end}},
        "development": True,
    }
    return manifest_from(text | changes)


def rows_of(platform: Platform, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    """Return what readers get, by key."""
    found = platform.lakehouse.table(ORDERS).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["order_id"])
