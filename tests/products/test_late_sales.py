"""A sale whose line comes when its month is published: gates say what is wrong with events and states, and what to do about it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from order_world import ASIDE, EVENTS, STATE, manifest, orders_world, rows_of
from worlds import World

from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.products.orders.loading import LINES, from_file
from backfill_assets.products.orders.raw import REQUIRED_COLUMNS
from manifests.lifecycle import RunState

DECEMBER, JANUARY = (date(2010, 12, 1), date(2010, 12, 31)), (date(2011, 1, 1), date(2011, 1, 31))
FEBRUARY = (date(2011, 2, 1), date(2011, 2, 28))
ANEW = {"publishMode": "REPLACE_PARTITIONS"}

SALE = ("536002", "20007A", "ITEM B", "5", "2010-12-09 10:00:00", "2.50", "12002", "EIRE")
EARLY = (
    ("536001", "20000", "ITEM A", "10", "2010-12-08 09:30:00", "1.25", "12001", "EIRE"),
    ("536003", "20000", "ITEM A", "4", "2011-01-10 11:00:00", "1.25", "12001", "EIRE"),
)
LATER = (
    SALE,
    ("C636001", "20007A", "ITEM B", "-5", "2011-02-03 12:00:00", "2.50", "12002", "EIRE"),
    ("C636002", "20000", "ITEM A", "-1", "2011-02-04 12:00:00", "1.25", "12001", "EIRE"),
)


def delivery(folder: Path, name: str, rows: tuple[tuple[str, ...], ...]) -> Any:
    columns = ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country")
    assert {*columns} == {*REQUIRED_COLUMNS}
    frame = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String), orient="row")
    frame.select(REQUIRED_COLUMNS).write_parquet(folder / name)
    return from_file(folder / name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """December and January are published; then come a sale of December, and February with its cancellation."""
    folder = tmp_path_factory.mktemp("late")
    found = orders_world(folder / "home", delivery(folder, "early.parquet", EARLY))
    for table in (ASIDE, EVENTS):
        found.published(manifest(table, f"first-{table[7:].replace('_', '-')}", DECEMBER[0], JANUARY[1]))
    load_delivery(found.platform, LINES, delivery(folder, "later.parquet", LATER), 0.0)
    found.published(manifest(ASIDE, "aside-february", *FEBRUARY))
    return found


def blocked(world: World, run_id: str, gate: str) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """Return what the one gate that has stopped a run says: its words, its details, and its exceptions."""
    (failed,) = [one for one in world.platform.ledger.verdicts(run_id) if not one.passed]
    assert failed.gate == gate
    rows = rows_of(world, "audit.reconciliation_exceptions").filter(run_id=run_id, gate=gate)
    return failed.summary, dict(failed.details), rows.to_dicts()


def test_a_reversal_of_a_sale_that_is_not_there_is_said_and_restated_away(world: World) -> None:
    record = world.ran(manifest(EVENTS, "february", *FEBRUARY))
    assert record.state is RunState.FAILED
    said, _, (exception,) = blocked(world, "february", "reversed_sales_are_there")
    assert "2 events reverse a sale; the event of the sale is missing of 1" in said
    assert "lines of 2010-12 or later came when those months had been published" in said
    assert "publish what is set aside and the events again from 2010-12 on (a RESTATEMENT)" in said
    assert json.loads(exception["slice"]) == {"month": "2010-12-01"}
    expected = json.loads(exception["expected"])
    assert (expected["reverses_file"], expected["sold_on"]) == ("later.parquet", "2010-12-09")

    # the states of what is published are those of other lines, too
    assert world.ran(manifest(STATE, "states", DECEMBER[0], JANUARY[1])).state is RunState.FAILED
    said, _, exceptions = blocked(world, "states", "states_follow_from_the_lines")
    assert "3 orders, 1 of them in another state than their lines up to 2011-01-31 leave them in" in said
    assert f"publish {EVENTS} of their months again" in said
    assert [(json.loads(one["key"]), one["found"]) for one in exceptions] == [({"order_id": "536002"}, "null")]
    assert json.loads(exceptions[0]["slice"]) == {"month": "2010-12-01"}
    assert json.loads(exceptions[0]["expected"])["state"] == "OPEN", "February is not published, and not looked at"

    for table, run_id in ((ASIDE, "aside-anew"), (EVENTS, "events-anew")):
        world.published(manifest(table, run_id, *DECEMBER, kind="RESTATEMENT", target=ANEW))
    world.published(manifest(EVENTS, "february-again", *FEBRUARY))
    (passed,) = [
        one for one in world.platform.ledger.verdicts("february-again") if one.gate == "reversed_sales_are_there"
    ]
    assert passed.passed
    assert passed.summary == "2 events reverse a sale; the event of the sale is missing of 0"
    world.published(manifest(STATE, "states-again", DECEMBER[0], JANUARY[1]))
    states = dict(rows_of(world, STATE).select("order_id", "state").iter_rows())
    assert states == {"536001": "OPEN", "536002": "CANCELLED", "536003": "PARTLY_CANCELLED"}


@pytest.mark.exhaustive
def test_months_that_are_still_to_come_are_counted_and_stop_nothing(tmp_path: Path) -> None:
    """In which order first months are published is nobody's business: their events will be the ones that are named."""
    world = orders_world(tmp_path / "home", delivery(tmp_path, "all.parquet", (*EARLY, *LATER)))
    world.published(manifest(ASIDE, "aside", *FEBRUARY))
    world.validated(manifest(EVENTS, "february", *FEBRUARY))
    (said,) = [
        one.summary for one in world.platform.ledger.verdicts("february") if one.gate == "reversed_sales_are_there"
    ]
    assert said.endswith("; 2 reverse sales of months of which no event is published yet")
