"""The column that comes to a table with a history: NULL until a run has filled it, and versions of before stay what they were."""

from __future__ import annotations

from datetime import date

import polars as pl
import pytest
from worlds import TARGET, World, declare

from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.operations.columns import evolve
from backfill_assets.products.enforcement.case_age import CASE_SLA_DAILY, COLUMN
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_run
from manifests.errors import PlanRefused

FEW = {"kind": "RESTATEMENT", "target": {"table": TARGET, "publishRange": {"start": "2010-03-01", "end": "2010-05-31"}}}


def filled(world: World) -> int:
    """Return in how many rows readers see a value."""
    return len(world.rows()) - world.rows()[COLUMN].null_count()


def first_events(world: World) -> dict[str, date]:
    """Return the local day of the first event of each case, by a plain look at all events."""
    events = pl.from_arrow(world.platform.lakehouse.table("bronze.case_events").scan().to_arrow())
    rules = pl.from_arrow(world.platform.lakehouse.table("reference.sla_rules").scan().to_arrow())
    assert isinstance(events, pl.DataFrame)
    assert isinstance(rules, pl.DataFrame)
    zones = dict(rules.select("jurisdiction", "time_zone").unique().iter_rows())
    found: dict[str, date] = {}
    for case, jurisdiction, at in events.select("case_id", "jurisdiction", "event_at").iter_rows():
        day = pl.Series([at]).dt.convert_time_zone(zones[jurisdiction]).dt.date()[0]
        found[case] = min(day, found.get(case, day))
    return found


def test_the_column_is_null_until_a_run_has_filled_it_and_again_when_that_is_rolled_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform, few = world.platform, world.with_few_gates()
    few.published(few.manifest("before", **FEW))
    before, digests = world.rows(), world.digests("before")
    declare(monkeypatch, CASE_SLA_DAILY)
    with pytest.raises(PlanRefused, match=f"has no column {COLUMN}, which its model declares as int"):
        few.approved(few.manifest("too-early", version="3.2.0", **FEW))
    assert set(evolve(platform)) == {TARGET}
    assert world.rows().drop(COLUMN).equals(before)
    assert filled(world) == 0
    assert verify(platform, data=True).everything == []

    # what was computed by 3.1.0 comes out the same: its digests are not about the column
    assert reproduce(platform, "before").outcome is Outcome.EQUAL
    few.validated(few.manifest("once-more", **FEW))
    assert world.digests("once-more") == digests

    few.validated(few.manifest("fill", version="3.2.0", **FEW))
    assert filled(world) == 0, "it is staged, and no reader sees it"
    changed = {one.column: one.changed for one in diff_run(platform, "fill").diff.columns}
    assert changed.pop(COLUMN) == len(before)
    assert set(changed.values()) == {0}
    publish(platform, "fill")
    rows, first = world.rows(), first_events(world)
    assert filled(world) == len(rows) == len(before)
    for case, day, age in rows.select("case_id", "business_date", COLUMN).iter_rows():
        assert age == (day - first[case]).days
    assert verify(platform, data=True).everything == []

    rollback(platform, "fill")
    assert filled(world) == 0
    assert world.rows().drop(COLUMN).equals(before)
    assert verify(platform, data=True).everything == []
