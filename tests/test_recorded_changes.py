"""Messages that a real engine of Debezium has written are landed without a gap, whole, with their versions and keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from change_world import Accounts
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.ingestion.landed_changes import land_changes
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.products.accounts.generator import log_facts
from resources.settings import load_settings

RECORDED = Path(__file__).parent / "recorded" / "debezium_changes.jsonl"
_STOCK = ("id", "item", "quantity", "price", "notes", "changed", "noticed", "day", "counted", "tags")


class StockChanges(ba.ChangeRecord):
    """A change of the recorded shop."""


TABLE = ba.InputTable(
    "bronze.stock_changes",
    "a change of the recorded shop",
    StockChanges,
    ("team:shop",),
    log=ba.LogPlace(ba.LogKind.CHANGELOG, "commit_lsn"),
)
PRODUCT = ba.Product(
    "recorded_shop",
    (TABLE,),
    (),
    changelogs=(
        ba.Changelog(
            "shop_changes",
            "the recorded shop",
            ("team:shop",),
            TABLE.name,
            (
                ba.ChangedTable(
                    "public.stock",
                    ("id",),
                    {"1": _STOCK, "2": (*_STOCK, "maker"), "3": (*_STOCK, "made_by")},
                ),
                ba.ChangedTable("public.shelf", ("place", "level"), {"1": ("place", "level", "item")}),
            ),
        ),
    ),
)


@pytest.mark.skipif(
    not RECORDED.exists(), reason=f"{RECORDED.name} is not there: it comes with the tests of real servers"
)
def test_what_an_engine_has_written_is_landed_whole(tmp_path: Path) -> None:
    platform = Platform.of(
        load_settings(home=tmp_path / "home", spark=SPARK, products=["test_recorded_changes:PRODUCT"])
    )
    initialise(platform)
    folder = tmp_path / "delivered"
    folder.mkdir()
    shutil.copy(RECORDED, folder / "changes.jsonl")
    said = [json.loads(text) for text in RECORDED.read_text().splitlines()]
    values = [json.loads(one["value"]) for one in said if one["value"]]
    database = next(one["source"]["db"] for one in values if "op" in one)
    (folder / "log.json").write_text(json.dumps({**log_facts(), "database": database}))
    done = land_changes(platform, "shop_changes", folder)
    assert (len(done.loads), done.open, dict(done.unreadable)) == (1, (), {})
    rows = Accounts(platform, tmp_path / "home").table(TABLE.name)
    assert rows.height == sum(1 for one in values if "op" in one)
    assert set(rows["schema_version"].to_list()) == {"1", "2", "3"}
    ends = [int(one["id"].split(":")[1]) for one in values if one.get("status") == "END"]
    assert set(rows.filter(~rows["is_snapshot_read"])["commit_lsn"].to_list()) <= set(ends)
    assert done.loads[0].range.until == max(ends) + 1
    platform.ledger.close()
