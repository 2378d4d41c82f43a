"""What is declared of several sources is held together when it is loaded, and tried without an installation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba
from backfill_assets.declarations.finding import check_products
from backfill_assets.defs.build import build_definitions
from backfill_assets.testing import Trial, TrialError
from benchmarks import orders, payments, regions
from benchmarks.orders import ORDERS
from benchmarks.payments import RATES, TARGET
from manifests.errors import DeclarationRefused, InputRefused


def refused(target: ba.TargetTable, of_orders: ba.TargetTable = orders.TARGET) -> str:
    """Return what is said against a declaration, in one text."""
    with pytest.raises(DeclarationRefused) as found:
        check_products([orders.product(of_orders), payments.product(target)])
    return str(found.value)


def test_what_is_declared_is_accepted() -> None:
    check_products([orders.product(), payments.product()])


def test_every_mistake_in_the_sources_is_named_at_once() -> None:
    sources: Any = (
        ba.SourceTable("bronze.nothing", "at"),
        ba.SourceTable(RATES, "currency"),
        ba.SourceTable(ORDERS, "ordered", reads=ba.Window(before=-1)),
        ba.SourceTable("gold.revenue", "paid_on"),
        ba.SourceTable(payments.PAYMENTS, "paid_at"),
        ba.SourceTable(RATES, "valid_from", reads=30),  # type: ignore[arg-type]
        ORDERS,
    )
    said = refused(replace(TARGET, sources=sources))
    for text in (
        "no product declares the table 'bronze.nothing'",
        "'currency' of bronze.rates is String",
        "reads.before is -1",
        "gold.revenue is its own source",
        "bronze.payments is a source or a reference of gold.revenue already",
        "reads is 30",
        "it is 'silver.orders'",
    ):
        assert text in said, text


def test_targets_that_are_made_of_one_another_are_refused() -> None:
    of_orders = replace(orders.TARGET, sources=(ba.SourceTable("gold.revenue", "paid_on"),))
    said = refused(TARGET, of_orders)
    assert said.count("is computed from") >= 2
    assert "silver.orders is computed from gold.revenue is computed from silver.orders" in said


def test_live_follows_every_source() -> None:
    live = ba.LivePolicy(transform_version="1.0.0", rewind_days=3)
    check_products([orders.product(), payments.product(replace(TARGET, live=live))])


def test_dagster_shows_what_readers_of_the_other_target_see_as_upstream(tmp_path: Path) -> None:
    graph = build_definitions(payments.opened(tmp_path / "home")).resolve_asset_graph()
    assert graph.get(dg.AssetKey(["gold", "revenue"])).parent_keys == {
        dg.AssetKey(["bronze", "payments"]),
        dg.AssetKey(["silver", "orders_published"]),
        dg.AssetKey(["bronze", "rates"]),
    }
    assert dg.AssetKey(["gold", "revenue"]) in graph.get(dg.AssetKey(["silver", "orders_published"])).child_keys


# --- a transform tried alone ------------------------------------------------------------------------------------------

ORDERED = [
    {
        "order_id": number,
        "ordered_on": date(2024, 1 + number % 2, 1 + number % 20),
        "ordered_at": datetime(2024, 1 + number % 2, 1 + number % 20, tzinfo=UTC),
        "customer": f"c{number % 5}",
        "price": Decimal("4.00"),
    }
    for number in range(40)
]
PAID = [
    {
        "payment_id": number,
        "order_id": number,
        "currency": "USD",
        "paid_at": datetime(2024, 2 + number % 2, 5 + number % 20, tzinfo=UTC),
    }
    for number in range(40)
]
GIVEN = {ORDERS: ORDERED, RATES: payments.rates()}
TABLES = (*payments.INPUTS, orders.TARGET)


def trial(target: ba.TargetTable = TARGET, **changes: Any) -> Trial:
    given: dict[str, Any] = {"sources": GIVEN, "inputs": TABLES} | changes
    return Trial(target, "1.0.0", PAID, publish_range=("2024-02-01", "2024-03-31"), **given)


def test_a_transform_of_three_sources_is_tried_alone() -> None:
    rows = trial().rows()
    assert rows.height == len(PAID)
    first = rows.filter(rows["payment_id"] == 0).row(0, named=True)
    assert (first["customer"], first["ordered_on"], first["euros"]) == ("c0", date(2024, 1, 1), Decimal("8.00"))
    trial().require_pure()
    trial().require_no_look_ahead()


def _at_the_newest_rate(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    newest = inputs.sources[RATES].agg(F.max("valid_from").alias("newest"))
    return payments.revenue(inputs, context).crossJoin(newest).withColumn("ordered_on", F.col("newest")).drop("newest")


def test_a_look_ahead_into_a_further_source_is_found() -> None:
    later = [{"currency": "USD", "valid_from": date(2024, 3, 20), "euros": Decimal("9.00")}]
    looking = replace(TARGET, versions={"1.0.0": ba.TransformVersion(_at_the_newest_rate)})
    with pytest.raises(TrialError):
        trial(looking, sources=GIVEN | {RATES: [*payments.rates(), *later]}).require_no_look_ahead()


def test_a_trial_has_the_rows_of_every_source() -> None:
    with pytest.raises(InputRefused, match=r"the rows of bronze\.rates are missing"):
        trial(sources={ORDERS: ORDERED}).rows()
    with pytest.raises(InputRefused, match=r"silver\.orders: none of inputs declares it"):
        trial(inputs=payments.INPUTS).rows()


def test_a_query_reads_further_sources_as_views_and_a_target_by_its_dates() -> None:
    target = replace(regions.TARGET, reconciliations=())
    given = {"sources": {RATES: payments.rates()}, "inputs": TABLES}
    tried = Trial(
        target,
        "1.0.0",
        [row | {"region": "north"} for row in ORDERED],
        publish_range=("2024-01-01", "2024-02-29"),
        **given,
    )
    assert tried.rows().select("region", "month", "orders", "euros").rows() == [
        ("north", date(2024, 1, 1), 20, Decimal("160.00")),
        ("north", date(2024, 2, 1), 20, Decimal("160.00")),
    ]
