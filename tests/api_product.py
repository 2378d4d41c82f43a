"""A product whose orders come from a shop's server: its table, its feed, and the translator of its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Annotated, Any

import pandera.polars as pandera
import polars as pl

import backfill_assets as ba

TABLE = "bronze.shop_orders"


class ShopOrders(pandera.DataFrameModel):
    """An order as the shop's server had it once."""

    order_id: pl.Int64 = pandera.Field(ge=1)
    updated_at: ba.Instant = pandera.Field()
    amount: Annotated[pl.Decimal, 12, 2] = pandera.Field()
    status: str = pandera.Field()
    is_deleted: bool = pandera.Field()
    read_at: ba.Instant = pandera.Field()
    response: str = pandera.Field()

    @ba.row_rule("an order that is paid has an amount")
    def _paid(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select((pl.col("status") != "PAID") | (pl.col("amount") > 0))


def translate(record: Mapping[str, Any], facts: ba.ResponseFacts) -> Mapping[str, Any] | ba.RecordRejected:
    if record["status"] not in {"PAID", "SHIPPED", "CANCELLED"}:
        return ba.RecordRejected("an unknown status", str(record["status"]))
    return {
        "order_id": record["id"],
        "updated_at": datetime.fromisoformat(record["updated_at"]),
        "amount": record["amount"] if isinstance(record["amount"], int) else _amount(record["amount"]),
        "status": record["status"],
        "read_at": facts.read_at,
        "response": f"{facts.extraction}/{facts.response}/{facts.position}",
    }


def _amount(text: Any) -> Any:
    from decimal import Decimal

    return Decimal(text)


PAGES = ba.PageNumbers("page", size_parameter="size", size=50)
FEED = ba.ApiFeed(
    name="shop",
    description="Orders of the shop.",
    owners=("team:shop",),
    table=TABLE,
    path="v1/orders",
    patterns=(
        ba.ByCursor(ba.NextCursor("after", "meta.next"), path="v1/all"),
        ba.ByTimeWindow("from", "until", timedelta(days=1), overlap=timedelta(hours=2), paging=PAGES),
        ba.ByIdRange("first", "last", step=50, path="v1/range"),
        ba.BySnapshotExport(
            start="v1/exports",
            job="job.id",
            poll="v1/exports/{job}",
            state="state",
            done="DONE",
            failed=("FAILED",),
            download="v1/exports/{job}/rows",
            count="rows",
            lines=True,
            poll_seconds=0.01,
            most_seconds=60,
        ),
    ),
    records="data.items",
    key="id",
    updated_at="updated_at",
    translate=translate,
    limit=ba.RateLimit(requests=40, seconds=0.2),
    auth=ba.ClientCredentials(),
    retries=ba.Retries(attempts=12, seconds=60, timeout_seconds=0.25, wait_seconds=0.001),
    deleted_column="is_deleted",
)
PRODUCT = ba.Product(
    "shop", (ba.InputTable(TABLE, "Orders of the shop.", ShopOrders, ("team:shop",)),), (), apis=(FEED,)
)


def with_feed(**changes: Any) -> ba.Product:
    """Return the product with another feed."""
    return replace(PRODUCT, apis=(replace(FEED, **changes),))
