"""Tables without time: their chunks are values or buckets alone, and a run replaces its own, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pyarrow as arrow
import pytest
from click.testing import CliRunner
from pyiceberg.io.pyarrow import schema_to_pyarrow
from worlds import SPARK, World, killed_at

import backfill_assets as ba
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.cli.launching import select_chunks
from backfill_assets.declarations.finding import check_products
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.launch import announce_approval, initialise_instance, run_chunks
from backfill_assets.defs.staging import asset_key, chunk_partitions, partition_key
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import plan_run, plan_series
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.review.diff import diff_run
from benchmarks import customers, sales
from benchmarks.customers import BY_JURISDICTION, CUSTOMERS, INPUT, JURISDICTIONS, manifest, opened, rows_of
from manifests.chunks import EVER, part_of
from manifests.division import ByBucket
from manifests.errors import DeclarationRefused, InputRefused, PlanRefused, PublicationRefused, Refused
from manifests.lifecycle import RunState

BY_BUCKET = replace(BY_JURISDICTION, chunk_values=ByBucket("customer", 4))
TIMELESS = {"value": BY_JURISDICTION, "bucket": BY_BUCKET}


def made(tmp_path: Path, target: TargetTable = BY_JURISDICTION, **rows: object) -> World:
    platform = opened(tmp_path / "home", target, spark=SPARK)
    customers.fill(platform, **rows)
    return World(platform, tmp_path / "home")


def whose(world: World) -> Counter[tuple[str | None, str]]:
    """Count the rows that readers get by jurisdiction and run."""
    return Counter((row["jurisdiction"], row["run_id"]) for row in rows_of(world.platform))


@pytest.mark.parametrize("target", TIMELESS.values(), ids=TIMELESS)
def test_a_table_without_time_is_restated_and_rolled_back(tmp_path: Path, target: TargetTable) -> None:
    world = made(tmp_path, target)
    world.published(manifest("first"))
    before = rows_of(world.platform)
    assert len(before) == 30
    assert set(world.platform.ledger.accepted(CUSTOMERS)) == set(target.parts)
    world.published(manifest("second", "2"))
    assert {row["run_id"] for row in rows_of(world.platform)} == {"second"}
    assert [row["credit"] for row in rows_of(world.platform)] == [row["credit"] + 1 for row in before]
    assert verify(world.platform, data=True).everything == []
    rollback(world.platform, "second")
    assert rows_of(world.platform) == before
    assert verify(world.platform, data=True).everything == []
    assert examine(world.platform) == []


def test_runs_over_disjoint_values_stand_beside_each_other(tmp_path: Path) -> None:
    world = made(tmp_path)
    platform = world.platform
    world.published(manifest("all"))
    california = world.validated(manifest("california", "2", ["CA"]))
    new_york = world.validated(manifest("new-york", "2", ["NY"]))
    both = world.validated(manifest("both", "2", ["CA", "WA"]))
    publish(platform, california.run_id)
    publish(platform, new_york.run_id)
    assert whose(world) == {("CA", "california"): 10, ("NY", "new-york"): 10, ("WA", "all"): 10}
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, both.run_id)
    assert platform.ledger.accepted(CUSTOMERS) == {"CA": "california", "NY": "new-york", "WA": "all"}
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []
    rollback(platform, "california")
    assert whose(world)["CA", "all"] == whose(world)["NY", "new-york"] == 10
    with pytest.raises(Refused, match="held by later run"):
        rollback(platform, "all")
    assert verify(platform, data=True).everything == []
    assert BY_JURISDICTION.parts == JURISDICTIONS


def test_a_run_that_waits_while_its_table_is_declared_otherwise_is_published_as_it_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its chunks are named by the bounds of its plan: before the commit, after it, and when it is taken back."""
    world = made(tmp_path, BY_NUMBERS)
    world.published(manifest("first"))
    before = rows_of(world.platform)
    below = world.validated(manifest("below", "2", ["below-10"]))
    between = world.validated(manifest("between", "2", ["10-to-20"]))
    with killed_at("publishing.committed", monkeypatch):
        publish(world.platform, between.run_id)
    declared = replace(BY_NUMBERS, chunk_values=ba.ByRange("customer", (10, 15, 20)))
    product = Product("customers", (INPUT,), (declared,), code=("benchmarks.customers",))
    platform = Platform.of(world.platform.settings, [product])
    publish(platform, below.run_id)
    publish(platform, between.run_id)
    assert platform.ledger.accepted(CUSTOMERS) == {"below-10": "below", "10-to-20": "between", "from-20": "first"}
    rollback(platform, "between")
    rollback(platform, "below")
    assert rows_of(platform) == before
    assert verify(world.platform, data=True).everything == []


def test_everything_that_goes_by_days_is_refused_by_name_where_a_table_without_time_is_declared() -> None:
    wrong = replace(
        BY_JURISDICTION,
        day_column="since",
        chunks_from="2024-01",
        chunks_until="2024-12",
        warm_up_days=lambda _: 3,
        look_back_columns=("customer",),
        timeliness=ba.Timeliness(late=ba.OnLate.REFUSE),
        live=ba.LivePolicy("1", rewind_days=1),
        reconciled=ba.ReconciliationPolicy(),
        entity="jurisdiction",
        chunk_values=None,
    )
    with pytest.raises(DeclarationRefused) as refused:
        check_products([Product("customers", (INPUT,), (wrong,))])
    said = [problem.what for problem in refused.value.problems]
    fields = ("day_column", "chunks_from", "chunks_until", "warm_up_days", "look_back_columns", "timeliness", "live")
    for field in (*fields, "reconciled", "entity"):
        assert f"{CUSTOMERS} has no time, and declares {field}" in said
    assert f"{CUSTOMERS} has no time, and no chunk_values" in said


def test_a_table_with_time_says_by_which_column_and_from_when() -> None:
    timed = replace(BY_JURISDICTION, chunking=ba.Chunking.MONTH)
    with pytest.raises(DeclarationRefused) as refused:
        check_products([Product("customers", (INPUT,), (timed,))])
    assert {problem.what for problem in refused.value.problems} == {
        "day_column is missing", "chunks_from is missing", "source_time_column is missing",
    }  # fmt: skip


def test_a_manifest_that_speaks_of_days_is_refused_by_name(tmp_path: Path) -> None:
    platform = made(tmp_path).platform
    days = {"start": "2024-01-01", "end": "2024-01-31"}
    wrong = manifest(
        "wrong",
        source={"table": customers.RAW, "range": days},
        target={"table": CUSTOMERS, "publishRange": days, "values": ["TX"], "filesAcrossBorder": "SPLIT"},
        cutLine="2024-02-01",
        freeze={"hours": 2},
        warmUp={"days": 3},
    )
    with pytest.raises(PlanRefused) as refused:
        plan_run(platform, wrong)
    said = {problem.what for problem in refused.value.problems}
    assert "target.publishRange is 2024-01-01 to 2024-01-31" in said
    assert "target.values names TX" in said
    for field in ("cutLine", "freeze", "warmUp", "source.range", "target.filesAcrossBorder"):
        assert f"{field} is given" in said


def test_a_series_publishes_so_many_parts_a_step(tmp_path: Path) -> None:
    world = made(tmp_path)
    records = plan_series(world.platform, manifest("all", progressive={"chunksPerStep": 2}))
    assert [(one.run_id, one.plan.values) for one in records] == [("all.s001", ("CA", "NY")), ("all.s002", ("WA",))]


BY_TENANT = replace(BY_JURISDICTION, chunk_values=ba.ByValue("tenant", (1, -2, 2024, None)))
BY_DAY = replace(BY_JURISDICTION, chunk_values=ba.ByValue("since", (date(2024, 1, 1), date(2024, 2, 1), None)))
BY_TEXT_OR_NONE = replace(BY_JURISDICTION, chunk_values=ba.ByValue("jurisdiction", (*JURISDICTIONS, None)))
BY_NUMBERS = replace(BY_JURISDICTION, chunk_values=ba.ByRange("customer", (10, 20)))
BY_TENANTS = replace(BY_JURISDICTION, chunk_values=ba.ByRange("tenant", (-1, 2000), nulls=True))
BY_DAYS = replace(BY_JURISDICTION, chunk_values=ba.ByRange("since", (date(2024, 1, 15),), nulls=True))
BY_TEXTS = replace(BY_JURISDICTION, chunk_values=ba.ByRange("jurisdiction", ("MA", "TX"), nulls=True))
ODD = {
    "number": (BY_TENANT, ["1", "_null", "minus2", "~2024"]),
    "day": (BY_DAY, ["_null", "~2024-01-01", "~2024-02-01"]),
    "text or none": (BY_TEXT_OR_NONE, ["CA", "NY", "WA", "_null"]),
    "range of numbers": (BY_NUMBERS, ["10-to-20", "below-10", "from-20"]),
    "range of numbers or none": (BY_TENANTS, ["_null", "below-minus1", "from-2000", "minus1-to-2000"]),
    "range of days": (BY_DAYS, ["_null", "below-2024-01-15", "from-2024-01-15"]),
    "range of texts": (BY_TEXTS, ["MA-to-TX", "_null", "below-MA", "from-TX"]),
}
ROWS = {
    "jurisdictions": (*JURISDICTIONS, None),
    "tenants": (1, -2, 2024, None),
    "days": (date(2024, 1, 1), date(2024, 2, 1), None),
}


@pytest.mark.parametrize(("target", "keys"), ODD.values(), ids=ODD)
def test_each_row_lies_in_the_chunk_of_its_value_or_range_and_is_replaced_with_it(
    tmp_path: Path, target: TargetTable, keys: list[str]
) -> None:
    world = made(tmp_path, target, **ROWS)
    platform, division = world.platform, target.chunk_values
    assert division is not None
    world.published(manifest("first"))
    assert sorted(platform.ledger.accepted(CUSTOMERS)) == keys
    before = rows_of(platform)
    assert len(before) == 30
    part = part_of(keys[0])
    world.published(manifest("second", "2", [part]))
    in_part = {row["customer"] for row in before if division.part_of(row[division.column]) == part}
    assert 0 < len(in_part) < 30
    assert {row["customer"] for row in rows_of(platform) if row["run_id"] == "second"} == in_part
    assert len(rows_of(platform)) == 30
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []
    rollback(platform, "second")
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []


def test_a_value_that_reads_like_a_time_is_told_from_it_where_chunks_are_named(tmp_path: Path) -> None:
    world = made(tmp_path, BY_TENANT, **ROWS)
    record = plan_run(world.platform, manifest("run"))
    assert select_chunks(record, ["2024", "_null"]) == ["_null", "~2024"]
    assert select_chunks(record, ["~2024"]) == ["~2024"]
    with pytest.raises(InputRefused, match="name each part by itself"):
        select_chunks(record, ["1..minus2"])
    timed = replace(sales.BY_MONTH, chunk_values=ba.ByValue("jurisdiction", ("CA", "2024-01")), chunks_until="2024-03")
    platform = sales.opened(tmp_path / "timed", timed, spark=SPARK)
    sales.fill(platform, last=date(2024, 2, 29), jurisdictions=("CA", "2024-01"))
    record = plan_run(platform, sales.manifest("run", end=date(2024, 2, 29)))
    with pytest.raises(InputRefused, match=r"write ~2024-01 for the value.*2024-01\.\.2024-01 for the time"):
        select_chunks(record, ["2024-01"])
    assert select_chunks(record, ["~2024-01"]) == ["2024-01~2024-01", "2024-02~2024-01"]
    assert select_chunks(record, ["2024-01..2024-01"]) == ["2024-01~2024-01", "2024-01~CA"]


def test_a_launch_in_dagster_takes_parts_by_ranges_of_chunks(tmp_path: Path) -> None:
    world = made(tmp_path, BY_TENANT, **ROWS)
    platform = world.platform
    initialise_instance(platform.settings)
    record = world.approved(manifest("run"))
    keys = chunk_partitions(BY_TENANT).get_partition_keys()
    assert keys == ["1", "_null", "minus2", "~2024"]
    wanted = select_chunks(record, ["_null", "2024"])
    with world.dagster() as instance:
        announce_approval(platform, instance, record)
        assert run_chunks(platform, instance, record, wanted)
        assert {chunk.chunk for chunk in platform.ledger.chunks("run") if chunk.state == "PASSED"} == set(wanted)
        there = instance.get_materialized_partitions(asset_key(CUSTOMERS))
        assert there == {str(partition_key("run", key)) for key in wanted}
        assert run_chunks(platform, instance, record, select_chunks(record, []))
    assert platform.ledger.run("run").state is RunState.VALIDATED
    publish(platform, "run")
    assert len(rows_of(platform)) == 30


def test_nothing_that_is_shown_of_a_table_without_time_speaks_of_days(tmp_path: Path) -> None:
    world = made(tmp_path)
    initialise_instance(world.platform.settings)
    world.published(manifest("first"))
    world.published(manifest("york", "2", ["NY"]))
    variables = {"BACKFILL_HOME": str(world.home), "BACKFILL_PRODUCTS": json.dumps(["benchmarks.customers:PRODUCT"])}
    said = {}
    for arguments in (
        ["status"],
        ["status", "york"],
        ["diff", "york"],
        ["explain", CUSTOMERS, "--key", "customer=1"],
        ["runbook", "york"],
        ["report", "york", "--output", str(page := tmp_path / "york.html")],
        ["metrics"],
        ["verify", "york", "--data"],
    ):
        done = CliRunner().invoke(cli, arguments, env=variables)
        assert done.exit_code == 0, (arguments, done.output)
        said[arguments[0]] = done.output
        for day in (EVER[0], EVER[1], EVER[0] - timedelta(days=1), EVER[1] + timedelta(days=2)):
            assert str(day) not in done.output, (arguments, done.output)
    assert "NY" in said["status"]
    assert "all of its rows" in said["explain"]
    assert "RESTATEMENT of <code>silver.customers</code>, NY." in page.read_text()
    head = page.read_text().partition("<h2>Manifest")[0]
    assert str(EVER[1]) not in head.partition("Plan")[0]


def test_what_is_killed_in_the_middle_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made(tmp_path)
    record = world.approved(manifest("run"))
    with killed_at("gating.judged", monkeypatch):
        world.stage(record, ["CA"])
    outcome = world.stage(record)
    assert (len(outcome.skipped), len(outcome.computed)) == (1, 2)
    with killed_at("publishing.committed", monkeypatch):
        publish(world.platform, "run")
    assert verify(world.platform, data=True).everything == []
    publish(world.platform, "run")
    assert [one.action for one in world.platform.ledger.landed("run")] == ["publish"]
    assert verify(world.platform, data=True).everything == []


def test_published_parts_are_reconciled_and_compared_and_rows_of_others_are_named(tmp_path: Path) -> None:
    gates = (
        ba.record_gate(("customer",), "every_one"),
        ba.duplicate_gate(("customer",)),
        ba.change_gate(),
        ba.row_count_gate("rows", against="source", lower=0, upper=0),
    )
    target = replace(BY_JURISDICTION, reconciliations=gates)
    world = made(tmp_path, target)
    platform = world.platform
    world.published(manifest("first"))
    world.published(manifest("york", "2", ["NY"]))
    judged = reconcile(platform, plan_reconciliation(platform, manifest_of(platform, target)).run_id)
    assert [(one.gate, one.summary) for one in judged if not one.passed] == []
    assert {one.chunk for one in diff_run(platform, "york").diff.chunks} == {"NY"}
    assert platform.ledger.watermarks.current(CUSTOMERS) is None
    table = platform.lakehouse.table(CUSTOMERS)
    strange = next(row for row in rows_of(platform) if row["jurisdiction"] == "CA") | {"customer": 1_000}
    table.append(arrow.Table.from_pylist([strange], schema_to_pyarrow(table.schema(), include_field_ids=False)))
    found = [one.where for one in verify(platform, data=True).everything]
    assert found
    assert all("CA" in one for one in found), found
    assert any(one.kind == "accepted-files-differ" and "CA" in one.where for one in examine(platform))
    judged = reconcile(platform, plan_reconciliation(platform, manifest_of(platform, target)).run_id)
    assert "every_one" in {one.gate for one in judged if not one.passed}


def test_a_row_that_no_part_has_fails_its_chunk_by_name(tmp_path: Path) -> None:
    world = made(tmp_path, jurisdictions=("CA", "TX", None))
    assert world.ran(manifest("run")).state is RunState.FAILED
    (verdict,) = [one for one in world.platform.ledger.verdicts("run") if one.chunk == "CA"]
    (broken,) = verdict.details["violations"]
    assert (broken["rule"], broken["count"]) == ("jurisdiction: in its chunk, CA", 20)


def test_a_gate_that_goes_by_time_is_refused_where_there_is_none() -> None:
    gates = (
        ba.distribution_gate("credit"),
        ba.bounded_change_gate("credit", rise=1.0),
        ba.checksum_gate("sums.csv", ("chunk",), ("credit",)),
    )
    with pytest.raises(DeclarationRefused) as refused:
        check_products([Product("customers", (INPUT,), (replace(BY_JURISDICTION, reconciliations=gates),))])
    assert [one.what for one in refused.value.problems].count(f"{CUSTOMERS} has no time") == len(gates)


@pytest.mark.parametrize("target", [BY_JURISDICTION, BY_TEXTS, BY_BUCKET], ids=["value", "range", "bucket"])
def test_evidence_names_a_dividing_column_that_somebody_has_renamed(tmp_path: Path, target: TargetTable) -> None:
    world = made(tmp_path, target)
    world.published(manifest("first"))
    assert target.chunk_values is not None
    with world.platform.lakehouse.table(CUSTOMERS).update_schema(allow_incompatible_changes=True) as update:
        update.rename_column(target.chunk_values.column, "region")
    found = verify(world.platform, data=True).everything
    assert any("region" in f"{one.where} {one.found}" for one in found), found
    assert examine(world.platform) is not None
    with pytest.raises(Refused):
        plan_run(world.platform, manifest("second", "2"))
