"""A product of three sources: payments, of the orders that another target publishes, in euros by rates that are valid from a day on.

Put here the declaration and its rows. Orders are `benchmarks.orders`'; each test changes of the declaration what it is about.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import backfill_assets as ba
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from benchmarks import orders
from benchmarks.orders import LINES, ORDERS, Amount
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

PAYMENTS, RATES, REVENUE = "bronze.payments", "bronze.rates", "gold.revenue"
WAITS = 40
"""Days after an order that it may be paid."""
PAID = (date(2024, 1, 1), date(2024, 3, 31))


class Payment(pa.DataFrameModel):
    """A payment of an order."""

    payment_id: pl.Int64
    order_id: pl.Int64
    currency: str
    paid_at: ba.Instant


class Rate(pa.DataFrameModel):
    """What a unit of a currency is in euros, from a day on."""

    currency: str
    valid_from: pl.Date
    euros: Amount


class Revenue(ba.Published):
    """A payment, in euros, with what was ordered."""

    payment_id: pl.Int64
    paid_on: pl.Date
    customer: str = pa.Field(nullable=True)
    ordered_on: pl.Date = pa.Field(nullable=True)
    euros: Amount = pa.Field(nullable=True)


def revenue(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Return the payments: each with its order of the days before, at the newest rate of its day.

    A batch reads the days of all of its chunks: which orders are a payment's is said here, and not by what is read.
    """
    paid = inputs.source.withColumn("paid_on", F.to_date("paid_at"))
    ordered = inputs.sources[ORDERS].select("order_id", "customer", "ordered_on", "price")
    newest = Window.partitionBy("payment_id").orderBy(F.col("valid_from").desc())
    rates = inputs.sources[RATES]
    rated = (
        paid.join(rates, "currency", "left")
        .where(F.col("valid_from").isNull() | (F.col("valid_from") <= F.col("paid_on")))
        .withColumn("place", F.row_number().over(newest))
        .where("place = 1")
    )
    in_time = F.col("ordered_on") >= F.date_sub("paid_on", WAITS)
    return rated.join(ordered, (rated["order_id"] == ordered["order_id"]) & in_time, "left").select(
        "payment_id",
        "paid_on",
        "customer",
        "ordered_on",
        (F.col("price") * F.col("euros")).cast("decimal(12,2)").alias("euros"),
    )


TARGET = ba.TargetTable(
    name=REVENUE,
    description="A row a payment.",
    model=Revenue,
    key=("payment_id",),
    day_column="paid_on",
    chunking=ba.Chunking.MONTH,
    chunks_from="2024-01",
    chunks_until="2024-12",
    source=PAYMENTS,
    source_time_column="paid_at",
    sources=(
        ba.SourceTable(ORDERS, "ordered_on", reads=ba.Window(before=WAITS)),
        ba.SourceTable(RATES, "valid_from", reads=ba.EVERYTHING_UNTIL_END),
    ),
    versions={"1.0.0": ba.TransformVersion(revenue)},
    owners=("team:sales",),
)
INPUTS = (
    ba.InputTable(PAYMENTS, "Payments as they were booked.", Payment, owners=("team:sales",), partition_by="paid_at"),
    ba.InputTable(RATES, "Rates of currencies.", Rate, owners=("team:sales",)),
)


def product(target: ba.TargetTable = TARGET) -> ba.Product:
    """Return the product with one target; its code is this module."""
    return ba.Product("payments", INPUTS, (target,), code=("benchmarks.payments",))


def opened(home: Path, target: ba.TargetTable = TARGET, **settings: Any) -> Platform:
    """Return an installation that serves orders and payments, of which nothing is made yet but its catalog."""
    platform = Platform.of(load_settings(home=home, **settings), [orders.product(), product(target)])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def payments(number: int = 1_000) -> list[dict[str, Any]]:
    """Return payments of orders, each some days after its order; only those of `PAID`."""
    days = (orders.LAST - orders.FIRST).days + 1
    found = []
    for place in range(number):
        ordered = orders.FIRST + timedelta(days=place * 37 % days)
        on = ordered + timedelta(days=place % 50)
        if PAID[0] <= on <= PAID[1]:
            at = datetime(on.year, on.month, on.day, place % 24, tzinfo=UTC)
            found.append({"payment_id": place, "order_id": place, "currency": ("EUR", "USD")[place % 2], "paid_at": at})
    return found


def rates(*, changed: date = date(2024, 2, 15), then: str = "0.50") -> list[dict[str, Any]]:
    """Return a rate a currency that holds from long ago on, and another of dollars from a day on."""
    long_ago = date(2020, 1, 1)
    return [
        {"currency": "EUR", "valid_from": long_ago, "euros": Decimal("1.00")},
        {"currency": "USD", "valid_from": long_ago, "euros": Decimal("2.00")},
        {"currency": "USD", "valid_from": changed, "euros": Decimal(then)},
    ]


def load(platform: Platform, table: str, model: type[pa.DataFrameModel], rows: list[dict[str, Any]], name: str) -> None:
    """Load rows into a table."""
    schema = schema_to_pyarrow(iceberg_schema(model), include_field_ids=False)
    platform.lakehouse.append(table, [arrow.Table.from_pylist(rows, schema)], {LOAD_PROPERTY: name})


def fill(platform: Platform, number: int = 1_000) -> None:
    """Make the installation and load its inputs; nothing is published yet."""
    initialise(platform)
    platform.lakehouse.append(LINES, [orders.lines(number)], {LOAD_PROPERTY: "all"})
    load(platform, PAYMENTS, Payment, payments(number), "payments")
    load(platform, RATES, Rate, rates(), "rates")


def manifest(run_id: str, start: date = PAID[0], end: date = PAID[1], **changes: Any) -> RunManifest:
    """Return the contract of a run over days."""
    text: dict[str, Any] = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": PAYMENTS},
        "transform": {"name": "revenue", "version": "1.0.0"},
        "target": {"table": REVENUE, "publishRange": {"start": start, "end": end}},
        "development": True,
    }
    return manifest_from(text | changes)


def expected(ordered: list[dict[str, Any]], number: int = 1_000, **rate: Any) -> dict[int, tuple[Any, ...]]:
    """Return what counting by hand gives of published orders: customer, day and euros by payment."""
    by_id = {row["order_id"]: row for row in ordered}
    found = {}
    for paid in payments(number):
        on = paid["paid_at"].date()
        order = by_id.get(paid["order_id"])
        if order is not None and (on - order["ordered_on"]).days > WAITS:
            order = None
        valid = [one for one in rates(**rate) if one["currency"] == paid["currency"] and one["valid_from"] <= on]
        euros = None if order is None else order["price"] * max(valid, key=lambda one: one["valid_from"])["euros"]
        found[paid["payment_id"]] = (
            None if order is None else order["customer"],
            None if order is None else order["ordered_on"],
            None if euros is None else euros.quantize(Decimal("0.01"), "ROUND_HALF_UP"),
        )
    return found


def rows_of(platform: Platform, snapshot_id: int | None = None) -> dict[int, tuple[Any, ...]]:
    """Return what readers get, by payment."""
    found = platform.lakehouse.table(REVENUE).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return {row["payment_id"]: (row["customer"], row["ordered_on"], row["euros"]) for row in found}
