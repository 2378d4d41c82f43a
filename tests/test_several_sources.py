"""A table of three sources, one of them another target: each is pinned, in a window of its own, end to end in one launch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import pyarrow as arrow
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from support import now, put_in_force
from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets.audit.conditions import Cause
from backfill_assets.audit.explain import explain
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.cli.explain_view import shown
from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.defs.launch import initialise_instance, run_chunks
from backfill_assets.defs.staging import asset_key, partition_key
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.garbage import collect, find
from backfill_assets.operations.initialise import initialise
from backfill_assets.operations.splitting import split_files
from backfill_assets.planning.late_rows import late_by_source
from backfill_assets.planning.pinned_snapshots import untagged_of
from backfill_assets.planning.resolve import preview
from backfill_assets.planning.upstream import superseded_of
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.review.diff import diff_run
from benchmarks import orders, payments, regions
from benchmarks.orders import LINES, ORDERS
from benchmarks.payments import PAYMENTS, RATES, REVENUE, TARGET
from manifests.canonical import plain
from manifests.errors import PlanRefused, Refused
from manifests.lifecycle import RunState
from manifests.plan import plan_from_json
from resources.lakehouse.refs import pin_of
from resources.settings import load_settings

FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An installation in which orders are published, and payments and rates are loaded."""
    platform = payments.opened(tmp_path / "home", spark=SPARK)
    payments.fill(platform)
    found = World(platform, tmp_path / "home")
    found.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    return found


def newest(world: World, table: str) -> int:
    found = world.platform.lakehouse.snapshot_id(table)
    assert found is not None
    return found


def test_a_table_of_three_sources_is_restated_in_one_launch_and_says_what_counting_by_hand_gives(world: World) -> None:
    platform = world.platform
    plan = world.published(payments.manifest("history")) and platform.ledger.run("history").plan
    expected = payments.expected(orders.rows_of(platform))
    assert payments.rows_of(platform) == expected
    assert len(expected) > 500
    # orders of December are read for January's payments
    assert any(row[1] is not None and row[1] < date(2024, 1, 1) for row in expected.values())
    assert verify(platform, data=True).everything == []
    assert reproduce(platform, "history").outcome is Outcome.EQUAL
    assert examine(platform) == []
    by_name = {one.table: one for one in plan.sources}
    assert plan.source_pins == [
        (PAYMENTS, newest(world, PAYMENTS)),
        (ORDERS, newest(world, ORDERS)),
        (RATES, newest(world, RATES)),
    ]
    assert by_name[ORDERS].window(*FEBRUARY) == (date(2023, 12, 23), date(2024, 3, 1))
    assert by_name[RATES].window(*FEBRUARY) == (None, date(2024, 3, 1))
    assert [(one.run_id, one.chunks) for one in by_name[ORDERS].upstream] == [
        ("orders", ("2023-12", "2024-01", "2024-02", "2024-03"))
    ]
    assert plan_from_json(plan.to_json()) == plan
    for table, snapshot_id in plan.source_pins:
        assert pin_of(snapshot_id) in platform.lakehouse.table(table).refs()
        assert untagged_of(platform, table, [snapshot_id]) == []
    sealed = {one["table"]: one["snapshotId"] for one in verified_inputs(world, "history")}
    assert sealed == dict(plan.source_pins)


def verified_inputs(world: World, run_id: str) -> list[dict[str, Any]]:
    return list(json.loads((world.platform.evidence.path(run_id) / "inputs.json").read_text()))


def test_what_other_writers_add_to_any_source_after_the_plan_is_not_read_and_a_restatement_reads_it(
    world: World,
) -> None:
    platform = world.platform
    before = orders.rows_of(platform)
    record = world.approved(payments.manifest("history"))
    payments.load(
        platform, RATES, payments.Rate, [payments.rates(changed=date(2024, 1, 10), then="3.00")[2]], "more rates"
    )
    payments.load(
        platform, PAYMENTS, payments.Payment, [payments.payments()[0] | {"payment_id": 9_999}], "more payments"
    )
    world.published(orders.manifest("dearer", orders.FIRST, orders.LAST, "2.0.0"))
    world.stage(record)
    publish(platform, "history")
    assert payments.rows_of(platform) == payments.expected(before)
    # what was read of orders is superseded, which is told of the run, and by the doctor
    (one,) = superseded_of(platform, platform.ledger.run("history"))
    assert (one.table, one.read, one.by) == (ORDERS, "orders", "dearer")
    told = [(found.kind, found.where) for found in examine(platform)]
    assert told == [("upstream-superseded", "history")]
    # a REPLAY would read other snapshots: it has to name those that were read
    with pytest.raises(PlanRefused, match="made otherwise"):
        preview(platform, payments.manifest("again", kind="REPLAY"))
    pins = platform.ledger.run("history").plan.source_pins
    named = {
        "source": {"table": PAYMENTS, "snapshotId": pins[0][1]},
        "sources": [{"table": table, "snapshotId": number} for table, number in pins[1:]],
    }
    replayed = preview(platform, payments.manifest("again", kind="REPLAY", **named))
    assert replayed.source_pins == pins
    assert [run.run_id for run in replayed.sources[0].upstream] == ["orders"]
    # a restatement of February reads what is there by now
    world.published(payments.manifest("restated", *FEBRUARY))
    surcharge = Decimal("1.00")
    after, was = payments.rows_of(platform), payments.expected(before)
    changed = {number for number, row in after.items() if row != was.get(number)}
    days = {row["payment_id"]: row["paid_at"].date() for row in payments.payments()}
    assert {days.get(number, FEBRUARY[0]) for number in changed} <= {
        day for day in days.values() if FEBRUARY[0] <= day <= FEBRUARY[1]
    }
    price = {row["order_id"]: row["price"] for row in before}
    euros = [number for number in changed if number % 2 == 0 and was[number][2] is not None]
    assert euros
    assert all(after[number][2] == price[number] + surcharge for number in euros)
    # history holds January and March still, restated February: the doctor names what is superseded of those
    assert {found.where for found in examine(platform)} == {"history"}
    # and explain goes through, from a row to the run that published what was read
    found = explain(platform, REVENUE, [f"payment_id={euros[0]}"])
    assert found.producer is not None
    read = {one["table"]: one for one in found.producer.sources}
    assert [(run["run_id"], run["state"]) for run in read[ORDERS]["upstream"]] == [("dearer", "PUBLISHED")]
    assert read[ORDERS]["upstream"][0]["chunks"] == ["2023-12", "2024-01", "2024-02"]
    page = Console(width=200, record=True, file=StringIO())
    page.print(shown(found))
    assert "as run 'dearer' published it" in page.export_text()
    assert reproduce(platform, "history").outcome is Outcome.EQUAL
    rollback(platform, "dearer")
    assert {found.where for found in examine(platform)} == {"restated"}


def test_a_kill_between_two_chunks_ends_in_the_same_rows_as_none(world: World) -> None:
    platform = world.platform
    record = world.approved(payments.manifest("history", limits={"maxChunksPerJob": 1}))
    world.stage(record, ["2024-02"])
    payments.load(
        platform, RATES, payments.Rate, [payments.rates(changed=date(2024, 1, 10), then="3.00")[2]], "more rates"
    )
    world.stage(record)
    publish(platform, "history")
    assert payments.rows_of(platform) == payments.expected(orders.rows_of(platform))


def test_a_conflict_is_planned_anew_on_the_newest_of_every_source(world: World) -> None:
    platform = world.platform
    world.published(payments.manifest("first"))
    record = world.validated(payments.manifest("second", conflict={"onConflict": "REPLAN"}))
    payments.load(
        platform, RATES, payments.Rate, [payments.rates(changed=date(2024, 1, 10), then="3.00")[2]], "more rates"
    )
    world.published(payments.manifest("between", *FEBRUARY))
    with pytest.raises(Refused, match="planned anew"):
        publish(platform, record.run_id)
    plans = platform.ledger.plans(platform.ledger.run("second"))
    assert dict(plans["2024-02"].source_pins)[RATES] == newest(world, RATES)
    assert dict(plans["2024-01"].source_pins)[RATES] != newest(world, RATES)
    assert pin_of(newest(world, RATES)) in platform.lakehouse.table(RATES).refs()
    world.stage(record)
    publish(platform, "second")
    assert verify(platform, data=True).everything == []
    assert payments.rows_of(platform) != payments.expected(orders.rows_of(platform))


def _sees_the_batch(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    """Count the orders that are read: which differs by what a chunk is computed with."""
    read = inputs.sources[ORDERS].agg(F.count("*").cast("string").alias("read"))
    return payments.revenue(inputs, context).crossJoin(read).withColumn("customer", F.col("read")).drop("read")


def test_a_transform_that_goes_by_what_is_read_for_its_batch_does_not_pass(tmp_path: Path) -> None:
    target = replace(TARGET, versions={"1.0.0": ba.TransformVersion(_sees_the_batch)})
    platform = payments.opened(tmp_path / "home", target, spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    record = world.ran(payments.manifest("history"))
    assert record.state is RunState.FAILED
    assert "recomputed_chunks_are_equal" in record.state_reason


def erased(world: World, *customers: str) -> None:
    """Have a policy in force by which rows of these customers are not used, from whichever table they come."""
    home = world.platform.settings.home
    (home / "erased.csv").write_text("subject,erased_on\n" + "".join(f"{one},2020-01-01\n" for one in customers))
    rule = {
        "column": "customer",
        "file": "erased.csv",
        "keyColumn": "subject",
        "dateColumn": "erased_on",
        "onErased": "FILTER",
    }
    put_in_force(
        world.platform, {"name": "t", "sources": [{"table": name, "erasure": dict(rule)} for name in (ORDERS, LINES)]}
    )


def test_nobody_who_is_erased_from_a_second_source_is_read_or_comes_back(world: World) -> None:
    platform = world.platform
    world.published(payments.manifest("before"))
    gone = next(row[0] for row in payments.rows_of(platform).values() if row[0] is not None)
    late = world.validated(payments.manifest("late"))
    erased(world, gone)
    with pytest.raises(Refused, match="erased subject"):
        publish(platform, late.run_id)
    record = world.approved(payments.manifest("after"))
    world.stage(record)
    (verdict,) = [one for one in platform.ledger.verdicts("after") if one.gate == "old_data_policy"]
    assert verdict.passed
    assert verdict.details["erased_rows"] == sum(row["customer"] == gone for row in orders.rows_of(platform)) > 0
    publish(platform, "after")
    found = payments.rows_of(platform)
    assert gone not in {row[0] for row in found.values()}
    assert len(found) == len(payments.payments())
    shown_rows = diff_run(platform, "after")
    assert gone not in str(plain(shown_rows))
    with pytest.raises(Refused, match="erased subject"):
        rollback(platform, "after")
    assert verify(platform, data=True).everything == []


def test_the_policy_holds_for_each_source(world: World) -> None:
    platform = world.platform
    policy = {
        "name": "with rules of orders",
        "sources": [{"table": ORDERS, "purposes": ["finance"], "retention": {"days": 36_500, "onExpired": "REFUSE"}}],
    }
    put_in_force(platform, policy)
    with pytest.raises(PlanRefused, match="purpose is not given") as refused:
        preview(platform, payments.manifest("history"))
    assert ORDERS in str(refused.value)
    preview(platform, payments.manifest("history", purpose="finance"))
    policy["sources"] = [{"table": ORDERS, "retention": {"days": 200, "onExpired": "REFUSE"}}]
    put_in_force(platform, policy)
    with pytest.raises(PlanRefused, match=r"rows of silver\.orders"):
        preview(platform, payments.manifest("history"))
    policy["sources"] = [{"table": LINES, "retention": {"days": 36_500, "onExpired": "REFUSE"}}]
    put_in_force(platform, policy)
    with pytest.raises(
        PlanRefused, match=r"silver\.orders is computed from bronze\.order_lines, of which the policy says"
    ):
        preview(platform, payments.manifest("history"))
    preview(platform, orders.manifest("more-orders", *FEBRUARY))


def test_a_target_is_computed_from_another_by_its_dates_in_sql(tmp_path: Path) -> None:
    platform = regions.opened(tmp_path / "home", spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    with pytest.raises(Refused, match=r"silver\.orders"):  # nothing is published there yet
        preview(platform, regions.manifest("too-early"))
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    world.published(regions.manifest("by-region"))
    plan = platform.ledger.run("by-region").plan
    assert plan.source_has_dates
    assert [(one.run_id, one.chunks) for one in plan.upstream] == [
        ("orders", ("2023-12", "2024-01", "2024-02", "2024-03"))
    ]
    found = platform.lakehouse.table(regions.REGIONS).scan().to_arrow().to_pylist()
    expected: dict[tuple[str, date], int] = {}
    for row in orders.rows_of(platform):
        if row["region"] is not None:
            key = row["region"], row["ordered_on"].replace(day=1)
            expected[key] = expected.get(key, 0) + 1
    assert {(row["region"], row["month"]): row["orders"] for row in found} == expected
    assert verify(platform, data=True).everything == []
    assert reproduce(platform, "by-region").outcome is Outcome.EQUAL
    told = explain(platform, regions.REGIONS, ["region=north", "month=2024-02-01"])
    assert told.producer is not None
    assert [(run["run_id"], run["chunks"]) for run in told.producer.upstream] == [
        ("orders", ["2024-01", "2024-02", "2024-03"])
    ]
    look = world.approved(regions.manifest("look", kind="RECONCILIATION"))
    assert {one.gate: one.passed for one in reconcile(platform, look.run_id) if not one.chunk} == {
        "published_rows_pass_rules": True,
        "published_rows_are_accepted": True,
        "no_source_row_is_there_twice": True,
    }
    rollback(platform, "orders")
    (one,) = superseded_of(platform, platform.ledger.run("by-region"))
    assert one.by == ""
    with pytest.raises(Refused):
        preview(platform, regions.manifest("of-nothing"))


def timely(first: ba.Timeliness, further: ba.Timeliness) -> ba.TargetTable:
    of_orders, of_rates = TARGET.sources
    return replace(
        TARGET, timeliness=first, sources=(replace(of_orders, may_be_empty=True), replace(of_rates, timeliness=further))
    )


def test_rows_of_the_future_are_left_out_and_counted_or_refused_as_declared(tmp_path: Path) -> None:
    leave = ba.Timeliness(future=ba.OnFuture.LEAVE_OUT)
    platform = payments.opened(tmp_path / "home", timely(leave, leave), spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    # the clock of the installation says 2026: what is of March 2030 has not happened
    late = [row | {"payment_id": 9_000, "paid_at": datetime(2030, 3, 5, tzinfo=UTC)} for row in payments.payments()[:1]]
    payments.load(platform, PAYMENTS, payments.Payment, late, "of the future")
    rate = {"currency": "USD", "valid_from": date(2030, 3, 1), "euros": Decimal("9.00")}
    payments.load(platform, RATES, payments.Rate, [rate], "of the future")
    platform = payments.opened(tmp_path / "home", replace(timely(leave, leave), chunks_until="2030-12"), spark=SPARK)
    world = World(platform, tmp_path / "home")
    march = {"target": {"table": REVENUE, "publishRange": {"start": date(2030, 3, 1), "end": date(2030, 3, 31)}}}
    world.published(payments.manifest("march", **march))
    assert payments.rows_of(platform) == {}
    (verdict,) = [one for one in platform.ledger.verdicts("march") if one.gate == "rows_of_the_future"]
    assert verdict.details["left_out"] == {PAYMENTS: 1, RATES: 1}
    assert reproduce(platform, "march").outcome is Outcome.EQUAL
    refuse = ba.Timeliness(future=ba.OnFuture.REFUSE)
    wary = payments.opened(tmp_path / "home", replace(timely(refuse, refuse), chunks_until="2030-12"), spark=SPARK)
    with pytest.raises(PlanRefused, match=r"bronze\.payments has rows of the future") as refused:
        preview(wary, payments.manifest("again", **march))
    assert "bronze.rates has rows of the future" in str(refused.value)
    preview(wary, payments.manifest("history"))  # nothing of the future is read for these days


def test_late_rows_are_reported_or_refused_as_declared(tmp_path: Path) -> None:
    report = ba.Timeliness(late=ba.OnLate.REPORT)
    platform = payments.opened(tmp_path / "home", timely(report, report), spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    world.published(payments.manifest("history"))
    assert examine(platform) == []
    late = [payments.payments()[0] | {"payment_id": 9_000, "paid_at": datetime(2024, 2, 14, tzinfo=UTC)}]
    payments.load(platform, PAYMENTS, payments.Payment, late, "late payment")
    payments.load(platform, RATES, payments.Rate, payments.rates(changed=date(2024, 3, 20))[2:], "late rate")
    told = {(one.kind, one.where): one.what for one in examine(platform)}
    assert told.keys() == {("late-rows", REVENUE)}
    by_source = late_by_source(platform, platform.products.target(REVENUE), {ba.OnLate.REPORT})
    assert by_source == {PAYMENTS: ["2024-02"], RATES: ["2024-03"]}
    closed = ba.Timeliness(late=ba.OnLate.REFUSE)
    books = payments.opened(tmp_path / "home", timely(closed, report), spark=SPARK)
    with pytest.raises(PlanRefused, match=r"rows came into bronze\.payments after 2024-02 was accepted"):
        preview(books, payments.manifest("again"))
    january = date(2024, 1, 1), date(2024, 1, 31)
    preview(books, payments.manifest("again", *january))
    pinned = {"source": {"table": PAYMENTS, "snapshotId": platform.ledger.run("history").plan.source_snapshot_id}}
    preview(books, payments.manifest("again", **pinned))
    world.published(payments.manifest("restated"))
    assert examine(platform) == []


def test_the_first_rows_of_a_source_that_had_none_are_late(tmp_path: Path) -> None:
    of_orders, of_rates = TARGET.sources

    def served(late: ba.OnLate) -> Platform:
        empty = replace(of_orders, may_be_empty=True, timeliness=ba.Timeliness(late=late))
        return payments.opened(tmp_path / "home", replace(TARGET, sources=(empty, of_rates)), spark=SPARK)

    platform = served(ba.OnLate.REPORT)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(payments.manifest("history"))
    assert examine(platform) == []
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    assert ("late-rows", REVENUE) in {(one.kind, one.where) for one in examine(platform)}
    found = late_by_source(platform, platform.products.target(REVENUE), {ba.OnLate.REPORT})
    assert found == {ORDERS: ["2024-01", "2024-02", "2024-03"]}
    with pytest.raises(PlanRefused, match=r"rows came into silver\.orders after 2024-01 to 2024-03 was accepted"):
        preview(served(ba.OnLate.REFUSE), payments.manifest("again"))
    world.published(payments.manifest("restated"))
    assert examine(platform) == []


class VersionedRate(payments.Rate):
    """A rate, of which a column says how it is meant: it came with the second version, and the first had none."""

    schema_version: str = pa.Field(nullable=True)


def in_cents(rows: DataFrame) -> DataFrame:
    """Read the rates of version 2, which are in cents."""
    return rows.withColumn("euros", (F.col("euros") / 100).cast("decimal(12,2)"))


def versioned(**readers: Any) -> ba.TargetTable:
    of_orders, of_rates = TARGET.sources
    known = ba.Readers("schema_version", {None: ba.as_it_is, "2": in_cents} | readers)
    return replace(TARGET, sources=(of_orders, replace(of_rates, readers=known)))


def opened_with_versions(home: Path, target: ba.TargetTable) -> Platform:
    rates = replace(payments.INPUTS[1], model=VersionedRate)
    product = ba.Product("payments", (payments.INPUTS[0], rates), (target,), code=("benchmarks.payments",))
    platform = Platform.of(load_settings(home=home, spark=SPARK), [orders.product(), product])
    home.mkdir(parents=True, exist_ok=True)
    return platform


def test_rows_are_read_by_the_reader_of_their_version_and_a_version_that_none_knows_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    payments.fill(payments.opened(home, spark=SPARK))
    platform = opened_with_versions(home, versioned())
    initialise(platform)  # the column came later: files that lack it say NULL
    world = World(platform, home)
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    cents = {"currency": "USD", "valid_from": date(2024, 3, 1), "euros": Decimal("300.00"), "schema_version": "2"}
    payments.load(platform, RATES, VersionedRate, [cents], "in cents")
    world.published(payments.manifest("history"))
    by_hand = payments.expected(orders.rows_of(platform))
    days = {row["payment_id"]: row["paid_at"].date() for row in payments.payments()}
    price = {row["order_id"]: row["price"] for row in orders.rows_of(platform)}
    for number, (customer, on, euros) in by_hand.items():
        if number % 2 and days[number] >= date(2024, 3, 1) and euros is not None:
            by_hand[number] = customer, on, price[number] * 3
    assert payments.rows_of(platform) == by_hand
    assert reproduce(platform, "history").outcome is Outcome.EQUAL
    mixed = [cents | {"schema_version": "3"}, cents | {"schema_version": "2"}, cents | {"schema_version": None}]
    payments.load(platform, RATES, VersionedRate, mixed, "of a version that nobody knows")
    with pytest.raises(PlanRefused, match=r"bronze\.rates has rows of schema_version '3'"):
        preview(platform, payments.manifest("later"))
    preview(opened_with_versions(home, versioned(**{"3": ba.as_it_is})), payments.manifest("later"))
    wrong = versioned(**{"3": lambda rows: rows.withColumn("euros", F.lit(1.5))})
    record = World(platform := opened_with_versions(home, wrong), home).approved(payments.manifest("later"))
    with pytest.raises(Refused, match="the reader of schema_version '3' returns euros double"):
        World(platform, home).stage(record)


def test_what_is_superseded_upstream_is_kept_until_nobody_has_read_it(world: World) -> None:
    platform = world.platform
    read = newest(world, ORDERS)
    world.published(payments.manifest("history"))
    world.published(orders.manifest("dearer", orders.FIRST, orders.LAST, "2.0.0"))
    later = now() + timedelta(days=4_000)
    with mock.patch.object(platform.ledger, "now", return_value=later):
        collect(platform, find(platform, at=later), by="ana", at=later)
    assert platform.lakehouse.has_snapshot(ORDERS, read)
    assert reproduce(platform, "history").outcome is Outcome.EQUAL
    table = platform.lakehouse.table(ORDERS)
    for name in [name for name, ref in table.refs().items() if ref.snapshot_id == read]:
        table.manage_snapshots().remove_tag(name).commit()
    with table.maintenance.expire_snapshots() as expiry:  # somebody who minds no tag of ours
        expiry.by_id(read)
    found = reproduce(platform, "history")
    assert found.outcome is Outcome.NOT_COMPUTED
    (blocked,) = [one for one in found.conditions if one.blocks]
    assert (blocked.name, blocked.cause) == (ORDERS, Cause.RETIRED_SNAPSHOT)


def test_a_masked_column_of_a_second_source_is_seen_by_no_transform_and_shown_in_no_diff(world: World) -> None:
    platform = world.platform
    world.published(payments.manifest("plain"))
    policy = {
        "name": "masks",
        "classifications": {"personal": {"modes": [], "otherwise": "MASK"}},
        "sources": [
            {
                "table": ORDERS,
                "columns": {"customer": {"classification": "personal", "mask": "CONSTANT", "constant": "-"}},
            }
        ],
    }
    put_in_force(platform, policy)
    plan = world.published(payments.manifest("masked")) and platform.ledger.run("masked").plan
    (masked,) = [one for one in plan.sources if one.data is not None]
    assert [one.column for one in masked.data.masks] == ["customer"]
    assert {row[0] for row in payments.rows_of(platform).values()} == {"-", None}
    assert "customer-" not in str(plain(diff_run(platform, "masked")))


def test_dagster_launches_a_table_that_is_computed_from_another(world: World) -> None:
    platform = world.platform
    initialise_instance(platform.settings)
    record = world.announced(payments.manifest("history"))
    keys = [chunk.key for chunk in record.plan.chunks]
    with world.dagster() as instance:
        assert run_chunks(platform, instance, record, keys)
        found = instance.get_materialized_partitions(asset_key(REVENUE))
        assert found == {str(partition_key("history", key)) for key in keys}
    publish(platform, "history")
    assert payments.rows_of(platform) == payments.expected(orders.rows_of(platform))


# --- what a run that is planned anew is held to ---------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["late", "future", "empty"])
def test_a_conflict_is_not_planned_anew_over_what_a_plan_is_refused_for(tmp_path: Path, what: str) -> None:
    declared = {
        "late": ba.Timeliness(late=ba.OnLate.REFUSE),
        "future": ba.Timeliness(future=ba.OnFuture.REFUSE),
        "empty": ba.Timeliness(),
    }[what]
    of_orders, of_rates = TARGET.sources
    target = replace(TARGET, timeliness=declared, sources=(of_orders, replace(of_rates, timeliness=declared)))
    platform = payments.opened(tmp_path / "home", target, spark=SPARK)
    payments.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    if what != "late":
        world.published(payments.manifest("first"))
    world.validated(payments.manifest("second", conflict={"onConflict": "REPLAN"}))
    february = date(2024, 2, 1), date(2024, 2, 29)
    world.published(payments.manifest("between", *february))
    if what == "late":
        late = payments.payments()[0] | {"payment_id": 9_000, "paid_at": datetime(2024, 2, 14, tzinfo=UTC)}
        payments.load(platform, PAYMENTS, payments.Payment, [late], "late payment")
    elif what == "future":
        rates = [
            {"currency": "USD", "valid_from": day, "euros": Decimal("9.00")}
            for day in (date(2024, 2, 3), date(2030, 3, 1))
        ]
        payments.load(platform, RATES, payments.Rate, rates, "of the future")
    else:
        rollback(platform, "orders")
    with pytest.raises(PlanRefused) as by_plan:
        preview(platform, payments.manifest("third", *february))
    with pytest.raises(PlanRefused) as by_replan:
        publish(platform, "second")
    assert {one.rule for one in by_replan.value.problems} == {one.rule for one in by_plan.value.problems}
    assert platform.ledger.run("second").state is RunState.VALIDATED
    assert 9_000 not in payments.rows_of(platform)


def test_what_a_daily_upstream_was_read_at_is_not_said_to_be_superseded(tmp_path: Path) -> None:
    daily = replace(orders.TARGET, chunking=ba.Chunking.DAY, chunks_from="2023-01-01", chunks_until="2025-12-31")
    home = tmp_path / "home"
    product = ba.Product("regions", (), (regions.TARGET,), code=("benchmarks",))
    platform = Platform.of(load_settings(home=home, spark=SPARK), [orders.product(daily), payments.product(), product])
    home.mkdir(parents=True)
    platform.lakehouse.create_catalog()
    payments.fill(platform)
    world = World(platform, home)
    world.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    days = {"start": date(2024, 2, 1), "end": date(2024, 2, 29)}
    world.published(regions.manifest("by-region", target={"table": regions.REGIONS, "publishRange": days}))
    assert superseded_of(platform, platform.ledger.run("by-region")) == []
    assert [one for one in examine(platform) if one.kind == "upstream-superseded"] == []


def test_pieces_of_files_are_no_rows_that_came_late(tmp_path: Path) -> None:
    of_orders, of_rates = TARGET.sources
    late = ba.Timeliness(late=ba.OnLate.REFUSE)
    target = replace(TARGET, sources=(replace(of_orders, timeliness=late), of_rates))
    platform = payments.opened(tmp_path / "home", target, spark=SPARK)
    platform.lakehouse.catalog.create_namespace_if_not_exists("silver")
    schema = iceberg_schema(orders.Order)
    table = platform.lakehouse.catalog.create_table(ORDERS, schema, properties=dict(TABLE_PROPERTIES))
    rows = [
        row | {"ordered_on": row["ordered_at"].date(), "run_id": "theirs"} for row in orders.lines(1000).to_pylist()
    ]
    table.append(arrow.Table.from_pylist(rows, schema_to_pyarrow(schema, include_field_ids=False)))
    payments.fill(platform)
    World(platform, tmp_path / "home").published(payments.manifest("history"))
    days = {"start": date(2024, 2, 1), "end": date(2024, 2, 29)}
    asked = {"table": ORDERS, "publishRange": days, "filesAcrossBorder": "SPLIT"}
    assert split_files(platform, orders.manifest("split", *days.values(), target=asked)).pieces
    assert preview(platform, payments.manifest("again")).run_id == "again"
    table = platform.lakehouse.table(ORDERS)
    table.append(table.scan(limit=1).to_arrow())
    with pytest.raises(PlanRefused, match="rows came into"):
        preview(platform, payments.manifest("again"))
