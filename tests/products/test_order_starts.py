"""Runs of the product `orders` that start from the orders of a month's end: the same rows, and refused where the state does not fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest
from order_world import ASIDE, EVENTS, FIRST, LAST, MONTH_ENDS, manifest, orders_world, rows_of
from worlds import World

import backfill_assets as ba
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.declarations.finding import check_products
from backfill_assets.defs.build import build_definitions
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.planning.replanning import replanned
from backfill_assets.planning.resolve import preview
from backfill_assets.planning.upstream import superseded
from backfill_assets.products import orders
from backfill_assets.products.orders import generator
from backfill_assets.products.orders.loading import LINES, from_file
from backfill_assets.products.orders.raw import INVOICED, REQUIRED_COLUMNS
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import pinned_inputs
from manifests.errors import DeclarationRefused, PlanRefused
from manifests.model import RunManifest

JANUARY, FEBRUARY = date(2011, 1, 31), date(2011, 2, 1)
ANEW = {"publishMode": "REPLACE_PARTITIONS"}

pytestmark = pytest.mark.exhaustive  # its tests go on from one another


def starting(run_id: str, day: date = JANUARY, start: date = FEBRUARY, **changes: Any) -> RunManifest:
    source = {"table": LINES, "startFrom": {"table": MONTH_ENDS, "day": day}} | changes.pop("source", {})
    return manifest(EVENTS, run_id, start, LAST, source=source, **changes)


def delivered(folder: Path, name: str, rows: pl.DataFrame) -> Any:
    folder.mkdir(exist_ok=True)
    rows.select(REQUIRED_COLUMNS).write_parquet(folder / name)
    return from_file(folder / name)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Lines of two deliveries: until the end of January, of which states are made, and of February; events from the first row."""
    folder = tmp_path_factory.mktemp("starts")
    rows = generator.generate(120, 1)
    early = pl.col(INVOICED).str.slice(0, 10) < f"{FEBRUARY}"
    found = orders_world(folder / "home", delivered(folder / "in", "early.parquet", rows.filter(early)))
    found.published(manifest(MONTH_ENDS, "month-ends", FIRST, JANUARY))
    load_delivery(found.platform, LINES, delivered(folder / "in", "february.parquet", rows.filter(~early)), 0.5)
    found.published(manifest(ASIDE, "aside"))
    found.validated(manifest(EVENTS, "whole"))
    return found


def test_months_that_start_from_a_state_are_those_from_the_first_row(world: World) -> None:
    whole = world.digests("whole")
    for run_id, day, start in (
        ("from-january", JANUARY, FEBRUARY),
        ("from-december", date(2010, 12, 31), date(2011, 1, 1)),
    ):
        record = world.validated(starting(run_id, day, start))
        found = world.digests(run_id)
        assert found == {key: whole[key] for key in found}
        assert len(found) == len(record.plan.chunks) > 0
    assert reproduce(world.platform, "from-january").outcome is Outcome.EQUAL
    # cancellations of those months reach back into the state
    (file,) = [file for chunk in world.platform.ledger.chunks("from-january") for file in chunk.files]
    events = pl.read_parquet(file.path.removeprefix("file://"))
    assert events.filter(pl.col("reversed_at").dt.date() < FEBRUARY).height > 0


def test_the_plan_says_which_state_and_reads_no_line_that_is_in_it(world: World) -> None:
    plan = preview(world.platform, starting("asked"))
    assert plan.start is not None
    assert [(one.run_id, one.chunks) for one in plan.start.upstream] == [("month-ends", ("2011-01",))]
    assert plan.start.snapshot_id == world.platform.lakehouse.snapshot_id(MONTH_ENDS)
    assert plan.schema_of(MONTH_ENDS) is not None
    assert "the state of 2011-01-31 to start from" in plan.start.describe()
    states = world.platform.lakehouse.table(MONTH_ENDS)
    assert plan.start.reads.rows == states.scan(row_filter="as_of = '2011-01-31'").to_arrow().num_rows


def test_a_transform_is_given_the_state_where_it_starts_from_one_and_no_source_of_gates(world: World) -> None:
    ledger = world.platform.ledger
    for run_id, given in (("whole", set[str]()), ("from-january", {MONTH_ENDS})):
        run = RunContext.of(world.platform, ledger.run(run_id))
        assert {*pinned_inputs(run, run.plan.chunks).sources} == given
        assert {ASIDE} <= {one.table for one in run.plan.sources}
    inputs = pinned_inputs(run, run.plan.chunks)
    assert inputs.look_back is None or inputs.look_back.isEmpty()
    (first,) = inputs.source.selectExpr("min(business_day)").first()
    assert first >= FEBRUARY, "the margin before the range is in the state"


def refusal(world: World, asked: RunManifest) -> str:
    with pytest.raises(PlanRefused) as found:
        preview(world.platform, asked)
    return str(found.value)


def test_a_state_that_nobody_has_published_is_refused(world: World) -> None:
    said = refusal(world, starting("no-state", date(2010, 11, 30)))
    assert f"no accepted run holds 2010-11 of {MONTH_ENDS}" in said


def test_a_state_of_other_code_or_another_version_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Platform.code_of

    def of_tomorrow(platform: Platform, target: str, **how: Any) -> Any:
        found = own(platform, target, **how)
        assert found.product is not None
        return replace(found, product=replace(found.product, content_hash="f" * 64))

    monkeypatch.setattr(Platform, "code_of", of_tomorrow)
    said = refusal(world, starting("other-code"))
    assert f"2011-01 of {MONTH_ENDS} was made by product orders" in said
    assert "and the code is product orders ffffffffffff" in said
    monkeypatch.undo()
    target = world.platform.products.target(EVENTS)
    assert target.starts_from is not None
    newer = replace(target, starts_from=replace(target.starts_from, fits={"1.0.0": ("1.1.0",)}))
    found = world.platform.products
    others = [one for one in found.targets if one.name != EVENTS]
    monkeypatch.setattr(
        type(found), "find_target", lambda _, name: {one.name: one for one in (*others, newer)}.get(name)
    )
    said = refusal(world, starting("other-version"))
    assert "was made by version 1.0.0 ('month-ends')" in said
    assert "version 1.0.0 of order_events starts from states of version 1.1.0" in said


def test_published_and_verified_it_shows_where_it_is_from(world: World) -> None:
    world.published(manifest(EVENTS, "before-february", FIRST, JANUARY))
    world.published(starting("february"))
    assert verify(world.platform, data=True).everything == []
    assert rows_of(world, EVENTS).filter(run_id="february").height > 0
    graph = build_definitions(world.platform).resolve_asset_graph()
    upstream = graph.get(dg.AssetKey(["silver", "order_events"])).parent_keys
    assert dg.AssetKey(["silver", "orders_at_month_end_published"]) in upstream


def test_a_state_that_is_published_again_says_who_had_started_from_it(world: World) -> None:
    plan = world.platform.ledger.run("february").plan
    made_of = world.platform.ledger.run("month-ends").plan.source_snapshot_id
    assert list(superseded(world.platform, plan)) == []
    world.published(manifest(MONTH_ENDS, "again", date(2011, 1, 1), JANUARY, kind="RESTATEMENT", target=ANEW))
    assert world.digests("again") == {"2011-01": world.digests("month-ends")["2011-01"]}
    (found,) = superseded(world.platform, plan)
    assert (found.table, found.read, found.by) == (MONTH_ENDS, "month-ends", "again")
    run = RunContext.of(world.platform, world.platform.ledger.run("february"))
    anew = replanned(run)
    assert anew.start is not None
    assert [one.run_id for one in anew.start.upstream] == ["again"], "planned anew it starts from what is accepted now"
    # it is made of February's delivery, too, by now, and is none of before
    older = starting("older", source={"snapshotId": made_of}, kind="RESTATEMENT", target=ANEW)
    assert f"was made of snapshot {plan.source_snapshot_id} of {LINES} ('again')" in refusal(world, older)


def test_rows_that_came_for_the_days_of_a_state_refuse_it(world: World, tmp_path: Path) -> None:
    late = generator.generate(120, 1).filter(pl.col(INVOICED).str.starts_with("2011-01-12")).head(1)
    load_delivery(world.platform, LINES, delivered(tmp_path / "in", "late.parquet", late), 1.0)
    said = refusal(world, starting("after-late-rows"))
    assert (
        f"rows of {LINES} of 2011-01-12 have come, gone or been written anew since 2011-01 of {MONTH_ENDS} was made"
        in said
    )
    assert "publish 2011-01 of silver.orders_at_month_end again" in said
    with pytest.raises(PlanRefused, match="of 2011-01-12 have come"):
        replanned(RunContext.of(world.platform, world.platform.ledger.run("february")))


def test_what_a_target_declares_of_states_is_held_together() -> None:
    def refused(starts: ba.StartsFrom, *others: ba.TargetTable, **changes: Any) -> str:
        events = replace(orders.ORDER_EVENTS, starts_from=starts, **changes)
        kept = [one for one in orders.PRODUCT.targets if one.name not in {EVENTS, *(other.name for other in others)}]
        with pytest.raises(DeclarationRefused) as found:
            check_products([replace(orders.PRODUCT, targets=(*kept, *others, events))])
        return str(found.value)

    fits = {"1.0.0": ("1.0.0",)}
    assert "no product declares the table 'silver.none'" in refused(ba.StartsFrom("silver.none", "business_day", fits))
    assert f"{LINES} is the target itself, or a source" in refused(ba.StartsFrom(LINES, "business_day", fits))
    said = refused(ba.StartsFrom("bronze.order_lines_quarantine", "business_day", fits))
    assert "bronze.order_lines_quarantine is an input" in said
    said = refused(ba.StartsFrom("gold.daily_revenue", "business_day", fits))
    assert "gold.daily_revenue is computed from silver.order_events, and silver.order_events from" in said
    assert "gold.daily_revenue is computed from silver.order_events is computed from gold.daily_revenue" in said
    said = refused(ba.StartsFrom(MONTH_ENDS, "customer_id", fits))
    assert "'customer_id' of bronze.order_lines is String" in said
    assert "'customer_id' of bronze.order_lines may be empty" in said
    said = refused(ba.StartsFrom(MONTH_ENDS, "business_day", fits), look_back_columns=("quantity",))
    assert "look_back_columns of silver.order_events are without 'business_day'" in said
    said = refused(ba.StartsFrom(MONTH_ENDS, "business_day", {"7": ("1.0.0",), "1.0.0": ("8",)}))
    assert "fits names version '7' of silver.order_events" in said
    assert f"fits names version '8' of {MONTH_ENDS}" in said
    assert "fits is empty" in refused(ba.StartsFrom(MONTH_ENDS, "business_day", {}))
    whole = replace(orders.ORDERS_AT_MONTH_END, chunking=ba.Chunking.HOUR, chunks_from="2009-01-01T00")
    assert "has chunks of HOUR" in refused(ba.StartsFrom(MONTH_ENDS, "business_day", fits), whole)
    said = refused(ba.StartsFrom(7, "business_day", "1.0.0"))  # type: ignore[arg-type]
    assert "table is 7" in said
    assert "fits is '1.0.0'" in said
