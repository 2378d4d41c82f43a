"""A product whose only table is made of what another target publishes, by its days, in SQL: orders by region and month, in dollars.

Put here the declaration. The orders are `benchmarks.orders`', the rates `benchmarks.payments`'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pandera.polars as pa
import polars as pl

import backfill_assets as ba
from backfill_assets.installation import Platform
from benchmarks import orders, payments
from benchmarks.orders import ORDERS
from benchmarks.payments import RATES
from manifests.model import RunManifest
from resources.settings import load_settings

REGIONS = "gold.regions"


class Region(ba.Published):
    """What was ordered in a region in a month."""

    region: str
    month: pl.Date
    orders: pl.Int64
    euros: Annotated[pl.Decimal, 18, 2] = pa.Field(nullable=True)


TARGET = ba.TargetTable(
    name=REGIONS,
    description="A row a region and month.",
    model=Region,
    key=("region", "month"),
    day_column="month",
    chunking=ba.Chunking.MONTH,
    chunks_from="2023-12",
    chunks_until="2024-12",
    source=ORDERS,
    source_time_column="ordered_on",
    sources=(ba.SourceTable(RATES, "valid_from", reads=ba.EVERYTHING_UNTIL_END),),
    versions={"1.0.0": ba.TransformVersion.sql(__name__, "by_region.sql")},
    owners=("team:sales",),
    reconciliations=(ba.duplicate_gate(("order_id",), zone="Europe/Rome"),),
)


def opened(home: Path, target: ba.TargetTable = TARGET, **settings: Any) -> Platform:
    """Return an installation that serves orders, payments and regions, of which nothing is made yet but its catalog."""
    product = ba.Product("regions", (), (target,), code=("benchmarks",))
    platform = Platform.of(load_settings(home=home, **settings), [orders.product(), payments.product(), product])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def manifest(run_id: str, **changes: Any) -> RunManifest:
    """Return the contract of a run over all months."""
    text: dict[str, Any] = {
        "source": {"table": ORDERS},
        "transform": {"name": "regions", "version": "1.0.0"},
        "target": {"table": REGIONS, "publishRange": {"start": orders.FIRST, "end": orders.LAST}},
    }
    return payments.manifest(run_id, **(text | changes))
