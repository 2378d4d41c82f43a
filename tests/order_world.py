"""Installations of the product `orders` for its tests: lines loaded by its own loader, and a manifest for each of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
from worlds import SPARK, World

from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.orders import PRODUCT
from backfill_assets.products.orders.loading import LINES, LinesLoad, generated
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.settings import load_settings

FIRST, LAST = date(2010, 12, 1), date(2011, 2, 28)
ASIDE, EVENTS, MONTH_ENDS, STATE, REVENUE = (
    "silver.order_lines_set_aside",
    "silver.order_events",
    "silver.orders_at_month_end",
    "silver.order_state",
    "gold.daily_revenue",
)
MODES = {
    ASIDE: "APPEND_ONLY",
    EVENTS: "APPEND_ONLY",
    MONTH_ENDS: "APPEND_ONLY",
    STATE: "REPLACE_PARTITIONS",
    REVENUE: "REPLACE_PARTITIONS",
}


def orders_world(home: Path, *loads: LinesLoad, limit: float = 0.5, **settings: Any) -> World:
    """Return an installation that serves the product, with loads brought in; 300 made-up orders if none are given."""
    platform = Platform.of(load_settings(home=home, spark=SPARK, **settings), [PRODUCT])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    initialise(platform)
    for one in loads or (generated(300, 1),):
        load_delivery(platform, LINES, one, limit)
    return World(platform, home, FIRST, LAST)


def manifest(
    table: str,
    run_id: str,
    start: date = FIRST,
    end: date = LAST,
    target: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunManifest:
    """Return the contract of a run of one of the product's tables; `target` has what else its target says."""
    source = LINES if table in {ASIDE, EVENTS, MONTH_ENDS} else EVENTS
    text: dict[str, Any] = {
        "runId": run_id,
        "kind": "BACKFILL",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": source},
        "transform": {"name": table.rpartition(".")[2], "version": "1.0.0"},
        "target": {
            "table": table,
            "publishRange": {"start": start, "end": end},
            "publishMode": MODES[table],
            **(target or {}),
        },
        "development": True,
    }
    return manifest_from(text | changes)


def publish_all(world: World, start: date = FIRST, end: date = LAST, name: str = "first") -> None:
    """Publish every table of the product over days, in the order in which each is made of the ones before."""
    for table in (ASIDE, EVENTS, STATE, REVENUE):
        world.published(manifest(table, f"{name}-{table.rpartition('.')[2].replace('_', '-')}", start, end))


def rows_of(world: World, table: str) -> pl.DataFrame:
    """Return what readers see of a table."""
    frame = pl.from_arrow(world.platform.lakehouse.table(table).scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame
