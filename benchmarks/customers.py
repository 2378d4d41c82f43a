"""A small product whose target has no time: customers as they are now, cut by jurisdiction, by tenant or by bucket."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Published, iceberg_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from manifests.chunks import Chunking
from manifests.division import ByValue
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

RAW, CUSTOMERS = "bronze.raw_customers", "silver.customers"
JURISDICTIONS = ("CA", "NY", "WA")


class Raw(pa.DataFrameModel):
    """A customer as delivered."""

    customer: pl.Int64
    jurisdiction: str = pa.Field(nullable=True)
    tenant: pl.Int32 = pa.Field(nullable=True)
    since: pl.Date = pa.Field(nullable=True)
    credit: pl.Int64


class Customer(Published):
    """A customer as they are now."""

    customer: pl.Int64
    jurisdiction: str = pa.Field(nullable=True)
    tenant: pl.Int32 = pa.Field(nullable=True)
    since: pl.Date = pa.Field(nullable=True)
    credit: pl.Int64


def customers(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the customers; in version 2 each has one more of credit."""
    more = 0 if context.version == "1" else 1
    return inputs.source.select(
        "customer", "jurisdiction", "tenant", "since", (F.col("credit") + F.lit(more)).alias("credit")
    )


BY_JURISDICTION = TargetTable(
    name=CUSTOMERS,
    description="A row a customer.",
    model=Customer,
    key=("customer",),
    chunking=Chunking.WHOLE,
    chunk_values=ByValue("jurisdiction", JURISDICTIONS),
    source=RAW,
    transform="customers",
    versions={"1": TransformVersion(customers), "2": TransformVersion(customers)},
    owners=("team:sales",),
)
INPUT = InputTable(name=RAW, description="Customers as delivered.", model=Raw, owners=("team:sales",))


PRODUCT = Product("customers", (INPUT,), (BY_JURISDICTION,), code=("benchmarks.customers",))
"""As an installation of its own serves it."""


def opened(home: Path, target: TargetTable, **settings: Any) -> Platform:
    """Return an installation that serves the product, of which nothing is made yet but its catalog."""
    product = Product("customers", (INPUT,), (target,), code=("benchmarks.customers",))
    platform = Platform.of(load_settings(home=home, **settings), [product])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def raw(
    number: int = 30,
    jurisdictions: Sequence[str | None] = JURISDICTIONS,
    tenants: Sequence[int | None] = (1, 2, 7),
    days: Sequence[date | None] = (date(2024, 1, 1), date(2024, 2, 1)),
    first: int = 0,
) -> arrow.Table:
    """Return so many customers, over the jurisdictions, tenants and days; numbered from `first` on."""
    rows: Iterable[dict[str, Any]] = [
        {
            "customer": one,
            "jurisdiction": jurisdictions[one % len(jurisdictions)],
            "tenant": tenants[one % len(tenants)],
            "since": days[one % len(days)],
            "credit": 100 * one,
        }
        for one in range(first, first + number)
    ]
    return arrow.Table.from_pylist(list(rows), schema_to_pyarrow(iceberg_schema(Raw), include_field_ids=False))


def fill(platform: Platform, **rows: Any) -> None:
    """Make the installation and load its source."""
    initialise(platform)
    platform.lakehouse.append(RAW, [raw(**rows)], {LOAD_PROPERTY: "all"})


def manifest(run_id: str, version: str = "1", values: Sequence[str] | None = None, **changes: Any) -> RunManifest:
    """Return the contract of a run; of some values or buckets, if these are given."""
    text: dict[str, Any] = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": RAW},
        "transform": {"name": "customers", "version": version},
        "target": {"table": CUSTOMERS} | ({} if values is None else {"values": list(values)}),
        "development": True,
    }
    return manifest_from(text | changes)


def rows_of(platform: Platform, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    """Return what readers get, by customer."""
    found = platform.lakehouse.table(CUSTOMERS).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(found, key=lambda row: row["customer"])
