"""Tables of hours, and tables that are divided by value or bucket beside time: what a run replaces is its own part, and nothing else."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import pyarrow as arrow
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform, MonthTransform
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from worlds import SPARK, World, killed_at

import backfill_assets as ba
from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.cli.launching import select_chunks
from backfill_assets.declarations.finding import check_products
from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.defs.launch import announce_approval, initialise_instance, run_chunks
from backfill_assets.defs.staging import asset_key, chunk_partitions, partition_key, stretches
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import plan_run, plan_series
from backfill_assets.planning.run_costs import batches_read
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.review.diff import diff_run
from benchmarks import sales
from benchmarks.sales import (
    BY_HOUR,
    BY_HOUR_AND_VALUE,
    BY_MONTH,
    CORRECTIONS,
    JURISDICTIONS,
    MERGED,
    SALES,
    manifest,
    opened,
    rows_of,
)
from manifests.division import ByBucket, ByRange, ByValue
from manifests.errors import (
    DeclarationRefused,
    InputRefused,
    ManifestRefused,
    PlanRefused,
    PublicationDeferred,
    PublicationRefused,
    Refused,
)
from manifests.lifecycle import RunState
from resources.ledger.facade import RunRecord

JANUARY, FEBRUARY = (date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 2, 1), date(2024, 2, 29))
BY_PLAIN_MONTH = replace(BY_MONTH, chunk_values=None)
BY_BUCKET = replace(BY_MONTH, chunk_values=ByBucket("sale", 4))
DIVIDED = {
    "month and value": BY_MONTH,
    "month and bucket": BY_BUCKET,
    "month and range": replace(BY_MONTH, chunk_values=ByRange("cents", (500, 2_000))),
    "hour": BY_HOUR,
    "hour and value": BY_HOUR_AND_VALUE,
}


def made(tmp_path: Path, target: TargetTable, **rows: object) -> World:
    platform = opened(tmp_path / "home", target, spark=SPARK)
    sales.fill(platform, **rows)  # type: ignore[arg-type]
    return World(platform, tmp_path / "home")


def whose(world: World) -> Counter[tuple[str, str | None, str]]:
    """Count the rows that readers get by month, jurisdiction and run."""
    return Counter((f"{row['day']:%Y-%m}", row["jurisdiction"], row["run_id"]) for row in rows_of(world.platform))


@pytest.mark.parametrize("target", DIVIDED.values(), ids=DIVIDED)
def test_a_divided_table_is_restated_and_rolled_back(tmp_path: Path, target: TargetTable) -> None:
    last = date(2024, 1, 3) if target.chunking == "HOUR" else date(2024, 2, 29)
    world = made(tmp_path, target, last=last)
    world.published(manifest("first", end=last))
    before = rows_of(world.platform)
    assert len(before) == 6 * ((last - date(2024, 1, 1)).days + 1)
    world.published(manifest("second", end=last, version="2"))
    assert {row["run_id"] for row in rows_of(world.platform)} == {"second"}
    assert verify(world.platform, data=True).everything == []
    rollback(world.platform, "second")
    assert rows_of(world.platform) == before
    assert verify(world.platform, data=True).everything == []
    assert examine(world.platform) == []


def test_runs_over_disjoint_values_of_the_same_days_stand_beside_each_other(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, last=date(2024, 2, 29))
    platform = world.platform
    world.published(manifest("all", end=FEBRUARY[1]))
    world.published(manifest("california", end=FEBRUARY[1], version="2", target={"values": ["CA"]}))
    # planned on the same base as the next one, and published after it: its values are others
    new_york = world.validated(manifest("new-york", end=FEBRUARY[1], version="2", target={"values": ["NY"]}))
    world.published(manifest("washington", *FEBRUARY, version="2", target={"values": ["WA"]}))
    publish(platform, new_york.run_id)
    months = ("2024-01", "2024-02")
    of = {"CA": "california", "NY": "new-york"}
    expected = {
        (month, one, of.get(one, "washington" if month == "2024-02" else "all"))
        for month in months
        for one in JURISDICTIONS
    }
    assert set(whose(world)) == expected
    assert platform.ledger.accepted(SALES) == {f"{month}~{one}": run for month, one, run in expected}
    assert platform.ledger.run("all").state is RunState.PUBLISHED  # it holds a chunk still
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []
    # each is undone by itself, whatever has come into other values since
    rollback(platform, "california")
    assert whose(world)["2024-01", "CA", "all"] == whose(world)["2024-01", "NY", "new-york"]
    assert platform.ledger.accepted(SALES)["2024-02~WA"] == "washington"
    with pytest.raises(Refused, match="held by later run"):
        rollback(platform, "all")
    assert verify(platform, data=True).everything == []


def test_a_write_into_another_value_is_no_conflict_and_one_into_its_own_is(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, last=date(2024, 1, 31))
    platform = world.platform
    world.published(manifest("all", end=JANUARY[1]))
    first = world.validated(manifest("first", end=JANUARY[1], version="2", target={"values": ["CA"]}))
    second = world.validated(manifest("second", end=JANUARY[1], version="2", target={"values": ["CA", "NY"]}))
    world.published(manifest("elsewhere", end=JANUARY[1], version="2", target={"values": ["WA"]}))
    publish(platform, first.run_id)
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, second.run_id)
    assert platform.ledger.accepted(SALES) == {"2024-01~CA": "first", "2024-01~NY": "all", "2024-01~WA": "elsewhere"}


def test_a_row_whose_value_is_not_declared_fails_its_chunk_by_name(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, last=date(2024, 1, 31), jurisdictions=("CA", "TX", "WA", None))
    run = world.ran(manifest("run", end=JANUARY[1], target={"values": ["NY", "WA"]}))
    chunks = {chunk.chunk: chunk for chunk in world.platform.ledger.chunks("run")}
    (verdict,) = [one for one in world.platform.ledger.verdicts("run") if one.chunk == "2024-01~NY"]
    assert chunks["2024-01~WA"].state == "PASSED"
    assert not verdict.passed
    (broken,) = verdict.details["violations"]
    assert broken["rule"] == "jurisdiction: in its chunk, NY"
    assert broken["count"] == 2 * 31 + 31
    assert {row["jurisdiction"] for row in broken["sample"]} <= {"TX", None}
    assert run.state is RunState.FAILED
    with pytest.raises(Refused):
        publish(world.platform, "run")
    assert rows_of(world.platform) == []


def without_days(target: TargetTable, *, clustered: bool = False) -> TargetTable:
    """Return the target with sales of which those of a day, six of them, have none."""

    def transform(inputs: Inputs, context: TransformContext) -> DataFrame:
        rows, day = sales.sales(inputs, context), F.col(target.day_column)
        return rows.withColumn(target.day_column, F.when(F.to_date(day) != F.lit("2024-01-02").cast("date"), day))

    return replace(target, versions={"1": TransformVersion(transform, clustered=clustered)})


def broken_by(world: World, run_id: str) -> dict[str, dict[str, int]]:
    """Return how many rows break each rule, by the chunks of which any do; no other gate of the run has failed."""
    failed = [one for one in world.platform.ledger.verdicts(run_id) if not one.passed]
    assert all(one.chunk for one in failed), failed
    return {one.chunk: {rule["rule"]: rule["count"] for rule in one.details["violations"]} for one in failed}


@pytest.mark.parametrize("target", [BY_PLAIN_MONTH, *DIVIDED.values()], ids=["month", *DIVIDED])
def test_rows_without_a_day_fail_the_first_chunk_of_their_part(tmp_path: Path, target: TargetTable) -> None:
    last = date(2024, 1, 3) if target.chunking == "HOUR" else date(2024, 2, 29)
    world = made(tmp_path, without_days(target), last=last)
    run = world.ran(manifest("run", end=last))
    broken, first = broken_by(world, "run"), "2024-01-01T00" if target.chunking == "HOUR" else "2024-01"
    assert all(found.keys() == {f"{target.day_column}: not_nullable"} for found in broken.values())
    assert sum(count for found in broken.values() for count in found.values()) == 6
    assert {chunk.partition("~")[0] for chunk in broken} == {first}
    assert run.state is RunState.FAILED
    with pytest.raises(Refused):
        publish(world.platform, "run")


def test_rows_without_a_day_are_found_however_they_are_clustered_and_in_no_part_but_their_own(tmp_path: Path) -> None:
    last = date(2024, 2, 29)
    world = made(tmp_path / "clustered", without_days(BY_PLAIN_MONTH, clustered=True), last=last)
    world.ran(manifest("run", end=last))
    assert broken_by(world, "run")["2024-01"]["day: not_nullable"] == 6
    world = made(tmp_path / "divided", without_days(BY_MONTH), last=last)
    world.ran(manifest("run", end=last, target={"values": ["NY"]}, limits={"maxChunksPerJob": 1}))
    assert broken_by(world, "run") == {"2024-01~NY": {"day: not_nullable": 2}}


def test_values_are_published_one_after_the_other_each_undone_by_itself(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, last=date(2024, 2, 29))
    platform = world.platform
    world.published(manifest("all", end=FEBRUARY[1]))
    whole = manifest("fix", end=FEBRUARY[1], version="2", progressive={"values": [["NY"], "rest"]})
    records = plan_series(platform, whole)
    assert [(one.run_id, one.plan.values, len(one.plan.chunks)) for one in records] == [
        ("fix.s001", ("NY",), 2),
        ("fix.s002", ("CA", "WA"), 4),
    ]
    for record in records:
        platform.ledger.decide(
            record.run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
        )
    world.stage(records[1])
    with pytest.raises(Refused, match=r"fix\.s001"):
        publish(platform, "fix.s002")
    world.stage(records[0])
    publish(platform, "fix.s001")
    assert {run for _, one, run in whose(world) if one != "NY"} == {"all"}
    publish(platform, "fix.s002")
    assert {run for *_, run in whose(world)} == {"fix.s001", "fix.s002"}
    rollback(platform, "fix.s002")
    assert {one: run for _, one, run in whose(world)} == {"NY": "fix.s001", "CA": "all", "WA": "all"}
    assert verify(platform, data=True).everything == []


def test_a_launch_in_dagster_takes_values_by_ranges_of_chunks(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, last=date(2024, 2, 29))
    platform = world.platform
    initialise_instance(platform.settings)
    record = world.approved(manifest("run", end=FEBRUARY[1]))
    keys = chunk_partitions(BY_MONTH).get_partition_keys()
    assert keys[0] == "2024-01~CA"
    assert keys[12] == "2024-01~NY"
    assert len(keys) == 12 * 3
    wanted = select_chunks(record, ["CA", "2024-02~WA"])
    assert wanted == ["2024-01~CA", "2024-02~CA", "2024-02~WA"]
    assert stretches(BY_MONTH, record, wanted) == [("2024-01~CA", "2024-02~CA"), ("2024-02~WA", "2024-02~WA")]
    assert select_chunks(record, ["2024-02"]) == ["2024-02~CA", "2024-02~NY", "2024-02~WA"]
    assert select_chunks(record, ["2024-01~NY..2024-02~NY"]) == ["2024-01~NY", "2024-02~NY"]
    with pytest.raises(InputRefused, match="name the same value or bucket"):
        select_chunks(record, ["2024-01~NY..2024-02~WA"])
    with world.dagster() as instance:
        announce_approval(platform, instance, record)
        assert run_chunks(platform, instance, record, wanted)
        assert {chunk.chunk for chunk in platform.ledger.chunks("run") if chunk.state == "PASSED"} == set(wanted)
        there = instance.get_materialized_partitions(asset_key(SALES))
        assert there == {str(partition_key("run", key)) for key in wanted}
        assert run_chunks(platform, instance, record, select_chunks(record, []))
    assert platform.ledger.run("run").state is RunState.VALIDATED


def launched(world: World, record: RunRecord, *ranges: str) -> list[str]:
    """Launch chunks of an approved run in Dagster, as the command does; return why any did not succeed."""
    initialise_instance(world.platform.settings)
    failures: list[str] = []
    with world.dagster() as instance:
        announce_approval(world.platform, instance, record)
        run_chunks(world.platform, instance, record, select_chunks(record, ranges), failed=failures.append)
    return failures


def read_by(platform: Platform, run_id: str) -> tuple[int, int]:
    """Return the rows and bytes that a run's attempts were given to read."""
    measures = [json.loads(one.measures) for one in platform.ledger.attempts(run_id)]
    rows, size = (
        sum(one[f"range_{what}"] + one.get(f"look_back_{what}", 0) for one in measures) for what in ("rows", "bytes")
    )
    return rows, size


@pytest.mark.parametrize(
    ("target", "end", "readings"),
    [
        ({"values": ["CA", "WA"]}, FEBRUARY[1], 2),  # each value by itself
        ({}, date(2024, 12, 31), 1),  # all times of the table: one launch takes the values together
        ({"values": ["CA", "WA"]}, date(2024, 12, 31), 2),  # but for those between which there is another
        ({"values": ["NY", "WA"]}, date(2024, 12, 31), 1),
    ],
    ids=["some times", "all times", "all times of values apart", "all times of neighbours"],
)
def test_what_a_launch_over_values_reads_is_what_its_plan_estimates(
    tmp_path: Path, target: dict[str, object], end: date, readings: int
) -> None:
    world = made(tmp_path, BY_MONTH, last=end)
    record = world.approved(manifest("run", end=end, target=target))
    reads = batches_read(record.plan, BY_MONTH)
    assert reads.rows == readings * record.plan.reads.rows > 0
    assert launched(world, record) == []
    assert read_by(world.platform, "run") == (reads.rows, reads.bytes)


def test_a_run_that_failed_names_every_chunk_that_has(tmp_path: Path) -> None:
    """The last value's chunks fail at their gate, when the run has failed for those of the value before it."""
    world = made(tmp_path, BY_MONTH, last=date(2024, 1, 31), jurisdictions=("CA", "somewhere"))
    record = world.approved(manifest("run", end=JANUARY[1]))
    assert len(launched(world, record)) == 3
    found = world.platform.ledger.run("run")
    assert (found.state, found.state_reason) == (RunState.FAILED, "3 chunk(s) failed: 2024-01 of CA, NY, WA")
    assert verify(world.platform, data=True).everything == []


def test_what_is_killed_in_the_middle_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = made(tmp_path, BY_HOUR_AND_VALUE, last=date(2024, 1, 2))
    run = manifest("run", end=date(2024, 1, 2), target={"values": ["CA", "WA"]}, limits={"maxChunksPerJob": 60})
    record = world.approved(run)
    with killed_at("gating.judged", monkeypatch):
        world.stage(record, [chunk.key for chunk in record.plan.chunks[:60]])
    outcome = world.stage(record)
    assert len(outcome.skipped) == 60
    assert len(outcome.computed) == 2 * 24 * 2 - 60
    with killed_at("publishing.committed", monkeypatch):
        publish(world.platform, "run")
    assert len(rows_of(world.platform)) == 8
    assert (
        verify(world.platform, data=True).everything == []
    )  # what has landed is the run's, though it is not on record
    publish(world.platform, "run")
    assert [one.action for one in world.platform.ledger.landed("run")] == ["publish"]
    rollback(world.platform, "run")
    assert rows_of(world.platform) == []
    assert verify(world.platform, data=True).everything == []


IN_WEEKS = {"chunking": ba.Chunking.WEEK, "chunks_from": "2024-W01", "chunks_until": "2024-W52"}
DERIVED = {
    "month and value": MERGED,
    "month and bucket": replace(MERGED, chunk_values=ByBucket("sale", 4)),
    "month and range": replace(MERGED, chunk_values=ByRange("jurisdiction", ("MA", "TX"))),
    "week": replace(MERGED, chunk_values=None, **IN_WEEKS),  # type: ignore[arg-type]
    "week and bucket": replace(MERGED, chunk_values=ByBucket("sale", 3), **IN_WEEKS),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("target", DERIVED.values(), ids=DERIVED)
def test_a_merge_and_corrections_go_by_every_division(
    tmp_path: Path, target: TargetTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = date(2024, 2, 4)  # a Sunday
    days = {"end": last} if target.chunking is ba.Chunking.WEEK else {"end": FEBRUARY[1]}
    world = made(tmp_path, target, last=last)
    platform = world.platform
    world.published(manifest("all", **days))
    before = rows_of(platform)
    entities = [*(row["sale"] for row in before[:4]), "s31-0", "s31-1", "nobody"]
    merge = {"publishMode": "MERGE_BY_KEY", "merge": {"entities": entities}}
    world.validated(manifest("merged", **days, version="2", target=merge))
    with killed_at("publishing.committed", monkeypatch):
        publish(platform, "merged")
    publish(platform, "merged")
    assert [one.action for one in platform.ledger.landed("merged")] == ["publish"]
    merged = rows_of(platform)
    assert {row["sale"] for row in merged if row["run_id"] == "merged"} == set(entities) - {"nobody"}
    assert [row["cents"] for row in merged] == [row["cents"] + (row["sale"] in entities) for row in before]
    assert [row for row in merged if row["run_id"] == "all"] == [row for row in before if row["sale"] not in entities]
    assert verify(platform, data=True).everything == []
    some = {"publishMode": "CORRECTION_EVENTS", "corrections": "BESIDE"}
    if target.parts:
        some["values"] = list(target.parts[:1])  # type: ignore[assignment]
    world.validated(manifest("corrected", **days, version="2", target=some))
    with killed_at("publishing.committed", monkeypatch):
        publish(platform, "corrected")
    publish(platform, "corrected")
    issued = platform.lakehouse.table(CORRECTIONS).scan().to_arrow().to_pylist()
    there = [row for row in rows_of(platform) if row["run_id"] == "corrected"]
    held = platform.ledger.accepted(SALES)
    assert {key.partition("~")[2] for key, run in held.items() if run == "corrected"} == set(target.parts[:1] or ("",))
    assert sorted(row["sale"] for row in issued) == sorted({row["sale"] for row in there} - set(entities))
    assert len(there) > 20
    assert verify(platform, data=True).everything == []
    assert examine(platform) == []
    rollback(platform, "corrected")
    assert rows_of(platform) == merged
    rollback(platform, "merged")
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []


def test_a_table_of_others_says_what_keeps_it_from_being_divided(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", BY_MONTH, spark=SPARK)
    platform.lakehouse.catalog.create_namespace_if_not_exists("silver")
    schema = iceberg_schema(sales.Sale)
    month = PartitionField(schema.find_field("day").field_id, 1000, MonthTransform(), "day_month")
    table = platform.lakehouse.catalog.create_table(
        SALES, schema, partition_spec=PartitionSpec(month), properties=dict(TABLE_PROPERTIES)
    )
    sales.fill(platform, last=date(2024, 2, 29))
    rows = [
        row | {"day": row["sold_at"].date(), "run_id": "theirs", "processing_mode": "x"}
        for row in sales.raw([date(2024, 1, 5), date(2024, 1, 6)]).to_pylist()
    ]
    whole = schema_to_pyarrow(table.schema(), include_field_ids=False)
    table.append(arrow.Table.from_pylist(rows, whole))
    with pytest.raises(
        PlanRefused, match=r"is divided by jurisdiction, by value, and not partitioned by identity\(jurisdiction\)"
    ):
        plan_run(platform, manifest("run", end=FEBRUARY[1]))
    with table.update_spec() as update:
        update.add_field("jurisdiction", "identity")
    world = World(platform, tmp_path / "home")
    with pytest.raises(PlanRefused, match=r"1 file\(s\) of silver.sales may hold days"):
        plan_run(platform, manifest("california", end=FEBRUARY[1], target={"values": ["CA"]}))
    # without values the days are replaced whole, whatever their files hold
    world.published(manifest("run", end=FEBRUARY[1]))
    assert {run for *_, run in whose(world)} == {"run"}
    world.published(manifest("california", end=FEBRUARY[1], version="2", target={"values": ["CA"]}))
    assert {run for _, one, run in whose(world) if one != "CA"} == {"run"}
    assert verify(platform, data=True).everything == []


def test_published_values_are_reconciled_explained_and_compared(tmp_path: Path) -> None:
    target = replace(BY_MONTH, reconciliations=(ba.record_gate(("sale",), "every_sale"), ba.change_gate()))
    world = made(tmp_path, target, last=date(2024, 2, 29))
    platform = world.platform
    world.published(manifest("all", end=FEBRUARY[1]))
    world.published(manifest("york", end=FEBRUARY[1], version="2", target={"values": ["NY"]}))
    judged = reconcile(platform, plan_reconciliation(platform, manifest_of(platform, target)).run_id)
    assert [(one.gate, one.summary) for one in judged if not one.passed] == []
    row = next(one for one in rows_of(platform) if one["jurisdiction"] == "NY")
    said = explain(platform, SALES, ["jurisdiction=NY", f"day={row['day']}", f"sale={row['sale']}"])
    assert said.chunk == "2024-01~NY"
    assert said.accepted_run == "york"
    missing = manifest("none", end=FEBRUARY[1], version="3", target={"values": ["NY"]})
    record = world.ran(missing)  # which computes no sale of New York
    assert record.state is RunState.FAILED
    assert "every_sale" in record.state_reason
    diff = diff_run(platform, "york")
    assert {one.chunk for one in diff.diff.chunks} == {"2024-01~NY", "2024-02~NY"}


def test_what_a_manifest_says_of_values_is_held_against_the_declaration(tmp_path: Path) -> None:
    world = made(tmp_path, BY_MONTH, last=date(2024, 2, 29))
    platform = world.platform
    with pytest.raises(PlanRefused, match=r"target\.values names TX"):
        plan_run(platform, manifest("run", end=FEBRUARY[1], target={"values": ["CA", "TX"]}))
    with pytest.raises(PlanRefused, match=r"no step of progressive\.values publishes NY, WA"):
        plan_series(platform, manifest("run", end=FEBRUARY[1], progressive={"values": [["CA"]]}))
    with pytest.raises(PlanRefused, match=r"progressive\.values names TX"):
        plan_series(platform, manifest("run", end=FEBRUARY[1], progressive={"values": [["TX"], "rest"]}))
    for wrong in ([], [[]], ["rest", ["CA"]], [["CA"], ["CA"]]):
        with pytest.raises(ManifestRefused):
            manifest("run", progressive={"values": wrong})
    both = manifest("run", end=FEBRUARY[1], progressive={"values": [["WA"], "rest"], "chunksPerStep": 1})
    assert [[chunk.key for chunk in one.plan.chunks] for one in plan_series(platform, both)] == [
        ["2024-01~WA"],
        ["2024-02~WA"],
        ["2024-01~CA", "2024-01~NY"],
        ["2024-02~CA", "2024-02~NY"],
    ]
    world.published(manifest("all", end=FEBRUARY[1]))
    watermark = platform.ledger.watermarks.current(SALES)
    fewer = Platform.of(
        platform.settings, [sales.product(replace(BY_MONTH, chunk_values=ByValue("jurisdiction", ("CA", "NY"))))]
    )
    with pytest.raises(PlanRefused, match="and holds chunks of other parts: 2024-01 to 2024-02 of WA"):
        plan_run(fewer, manifest("fewer", end=FEBRUARY[1]))
    undivided = Platform.of(platform.settings, [sales.product(replace(BY_MONTH, chunk_values=None))])
    with pytest.raises(PlanRefused, match=r"target\.values names CA"):
        plan_run(undivided, manifest("none", end=FEBRUARY[1], target={"values": ["CA"]}))
    world.published(manifest("some", end=FEBRUARY[1], version="2", target={"values": ["NY"]}))
    assert platform.ledger.watermarks.current(SALES) == watermark


@pytest.mark.parametrize(
    ("target", "what"),
    [
        (
            replace(BY_MONTH, chunking=ba.Chunking.HOUR, chunks_from="2024-01-01T00", chunks_until="2024-01-31T23"),
            "is a date",
        ),
        (replace(BY_HOUR, chunks_from="2024-01-01T05"), "chunks_from is 2024-01-01T05"),
        (replace(BY_HOUR, chunks_until="2024-01-01T05"), "chunks_until is 2024-01-01T05"),
        (replace(BY_MONTH, chunks_from="2024-01~CA"), "chunks_from is 2024-01~CA"),
        (replace(BY_HOUR_AND_VALUE, chunks_until="2099-12-31T23"), "more than 200,000 chunks"),
        (replace(BY_MONTH, chunk_values=ByValue("state", ("CA",))), "'state' is no column of silver.sales"),
        (replace(BY_MONTH, chunk_values=ByValue("cents", ("CA",))), "'cents' of silver.sales is Int64"),
        (replace(BY_MONTH, chunk_values=ByBucket("sold_at", 4)), "'sold_at' of silver.sales is Datetime"),
        (replace(BY_MONTH, chunk_values=ByBucket("day", 4)), "chunk_values names 'day', the day column"),
        (replace(BY_MONTH, chunk_values=ByValue("run_id", ("CA",))), "which says which run made a row"),
        (replace(BY_MONTH, chunk_values=("CA",)), "chunk_values is a tuple"),  # type: ignore[arg-type]
        (replace(BY_MONTH, chunk_values=ByValue("jurisdiction", ("C/A",))), "the value 'C/A' cannot be part of"),
        (replace(MERGED, key=("day", "sale")), "none of its key, and declares corrections"),
    ],
)
def test_a_declaration_that_cannot_be_cut_so_is_refused_by_name(target: TargetTable, what: str) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        check_products([sales.product(target)])
    assert any(what in one.what for one in refused.value.problems), refused.value


# --- rows of others, and rows that are counted otherwise ----------------------------------------------------------------


def of_others(tmp_path: Path, jurisdictions: tuple[str | None, ...], *, by_value: bool = True) -> World:
    """Return an installation whose target somebody else has written: by month, and by value, or files of all values."""
    platform = opened(tmp_path / "home", BY_MONTH, spark=SPARK)
    platform.lakehouse.catalog.create_namespace_if_not_exists("silver")
    schema = iceberg_schema(sales.Sale)
    fields = [PartitionField(schema.find_field("day").field_id, 1000, MonthTransform(), "day_month")]
    if by_value:
        own = schema.find_field("jurisdiction").field_id
        fields.append(PartitionField(own, 1001, IdentityTransform(), "jurisdiction"))
    platform.lakehouse.catalog.create_table(
        SALES, schema, partition_spec=PartitionSpec(*fields), properties=dict(TABLE_PROPERTIES)
    )
    sales.fill(platform, last=date(2024, 3, 31))
    days = [date(2024, 1, 5), date(2024, 1, 6), date(2024, 2, 3), date(2024, 3, 4)]
    rows = [
        row | {"day": row["sold_at"].date(), "run_id": "theirs", "processing_mode": "x"}
        for row in sales.raw(days, jurisdictions=jurisdictions, name="f").to_pylist()
    ]
    appended(platform, rows)
    if not by_value:
        with platform.lakehouse.table(SALES).update_spec() as update:
            update.add_field("jurisdiction", "identity")
    return World(platform, tmp_path / "home")


def appended(platform: Platform, rows: list[dict[str, object]]) -> None:
    table = platform.lakehouse.table(SALES)
    table.append(arrow.Table.from_pylist(rows, schema_to_pyarrow(table.schema(), include_field_ids=False)))


def test_files_of_several_values_are_no_conflict_with_another_month(tmp_path: Path) -> None:
    world = of_others(tmp_path, JURISDICTIONS, by_value=False)
    world.validated(manifest("january", end=JANUARY[1]))
    world.published(manifest("march", date(2024, 3, 1), date(2024, 3, 31)))
    publish(world.platform, "january")
    assert world.platform.ledger.run("january").state is RunState.PUBLISHED
    assert verify(world.platform, data=True).everything == []


def test_rows_of_a_value_that_nobody_declared_go_with_their_month_also_where_one_value_was_planned_anew(
    tmp_path: Path,
) -> None:
    world = of_others(tmp_path, ("CA", "NY", "TX", None))
    before = whose(world)
    world.validated(manifest("january", end=JANUARY[1], conflict={"onConflict": "REPLAN"}))
    world.published(manifest("california", end=JANUARY[1], version="2", target={"values": ["CA"]}))
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(world.platform, "january")
    world.stage(world.platform.ledger.run("january"))
    publish(world.platform, "january")
    assert {(value, run) for month, value, run in whose(world) if month == "2024-01"} == {
        (one, "january") for one in JURISDICTIONS
    }
    assert {one for one in whose(world).items() if one[0][0] != "2024-01"} == {
        one for one in before.items() if one[0][0] != "2024-01"
    }
    assert verify(world.platform, data=True).everything == []


def test_a_row_of_such_a_value_that_comes_between_is_a_conflict_like_any_other(tmp_path: Path) -> None:
    world = of_others(tmp_path, JURISDICTIONS)
    waits = {"onConflict": "WAIT", "waitMinutes": 10}
    world.validated(manifest("january", end=JANUARY[1], conflict=waits))
    row = next(row for row in rows_of(world.platform) if row["day"] <= JANUARY[1])
    appended(world.platform, [row | {"jurisdiction": "TX", "sale": "new"}])
    with pytest.raises(PublicationDeferred, match="it waits until"):
        publish(world.platform, "january")
    assert world.platform.ledger.run("january").state is RunState.VALIDATED


@pytest.mark.parametrize("point", ["publishing.committed", "undoing.committed"])
def test_evidence_raises_no_alarm_over_such_rows_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    world = of_others(tmp_path, ("CA", "TX", None))
    world.validated(manifest("january", end=JANUARY[1]))
    if point == "undoing.committed":
        publish(world.platform, "january")
    with killed_at(point, monkeypatch):
        (rollback if point == "undoing.committed" else publish)(world.platform, "january")
    assert verify(world.platform, data=True).everything == []


def as_decimals(inputs: Inputs, context: TransformContext) -> DataFrame:
    rows = sales.sales(inputs, context)
    return rows if context.version == "1" else rows.withColumn("cents", F.col("cents").cast("decimal(10,0)"))


def test_a_bucket_is_that_of_the_declared_type_whatever_a_transform_returns(tmp_path: Path) -> None:
    versions = {"1": TransformVersion(as_decimals), "2": TransformVersion(as_decimals)}
    target = replace(BY_MONTH, versions=versions, chunk_values=ByBucket("cents", 4))
    world = made(tmp_path, target, last=date(2024, 1, 31))
    world.published(manifest("first", end=JANUARY[1]))
    before = Counter(row["sale"] for row in rows_of(world.platform))
    for bucket in ByBucket("cents", 4).names:
        wanted = {"values": [bucket]}
        world.published(manifest(f"second-{bucket}", end=JANUARY[1], version="2", target=wanted))
    assert Counter(row["sale"] for row in rows_of(world.platform)) == before
    assert verify(world.platform, data=True).everything == []


@pytest.mark.parametrize("how", ["hour", "month"])
def test_instants_before_the_calendar_changed_lie_in_the_chunks_of_their_days(tmp_path: Path, how: str) -> None:
    if how == "hour":
        target = replace(BY_HOUR, chunks_from="1570-01-01T00", chunks_until="1570-02-01T23")
    else:
        target = replace(BY_MONTH, chunks_from="1570-01", chunks_until="1570-03", chunk_values=None)
    first, last = date(1570, 1, 1), date(1570, 1, 31)
    world = made(tmp_path, target, first=first, last=last)
    world.published(manifest("first", first, last))
    assert len(rows_of(world.platform)) == 6 * 31


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"versions": {"1": TransformVersion(sales.sales, without=("jurisdiction",))}}, "without of version"),
        ({"chunk_values": ByValue("jurisdiction", None)}, "no tuple of texts"),  # type: ignore[arg-type]
        ({"chunk_values": ByValue("jurisdiction", 5)}, "no tuple of texts"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_divide_a_table_is_refused_with_the_declaration(changes: dict[str, object], said: str) -> None:
    with pytest.raises(DeclarationRefused, match=said):
        check_products([sales.product(replace(BY_MONTH, **changes))])  # type: ignore[arg-type]


def test_parts_that_the_source_does_not_tell_apart_are_judged_together_or_not_at_all(tmp_path: Path) -> None:
    """The source has no column `day`: what is published of one bucket cannot be held against its rows alone."""
    gates = (ba.record_gate(("sale",), "every_sale"),)
    target = replace(BY_HOUR, chunk_values=ByBucket("day", 2), reconciliations=gates)
    last = date(2024, 1, 4)
    world = made(tmp_path, target, last=last)
    platform = world.platform
    world.published(manifest("first", end=last))
    parts = {key.partition("~")[2] for key in platform.ledger.accepted(SALES)}
    assert parts == {"b0of2", "b1of2"}
    unlooked = {"validation": {"gates": ["all_chunks_staged"]}}
    one = {"target": {"values": ["b0of2"]}, "version": "2"}
    with pytest.raises(PlanRefused, match=r"bronze\.raw_sales has no column day"):
        plan_run(platform, manifest("one", end=last, **one))  # type: ignore[arg-type]
    world.validated(manifest("second", end=last, conflict={"onConflict": "REPLAN"}))
    world.published(manifest("one", end=date(2024, 1, 1), **one, **unlooked))  # type: ignore[arg-type]
    # other days stay reconciled; of those of which one bucket was made by other rules nothing can be said
    asked = {"kind": "RECONCILIATION"}
    with pytest.raises(PlanRefused, match=r"values of 2024-01-01T.* are published by different rules"):
        plan_run(platform, manifest("look", end=last, **asked))  # type: ignore[arg-type]
    rules = {"validation": {"gates": ["published_rows_pass_rules"]}}
    plan_run(platform, manifest("look", end=last, **asked, **rules))  # type: ignore[arg-type]
    days = manifest("rest", date(2024, 1, 2), last, **asked)  # type: ignore[arg-type]
    record = plan_run(platform, days)
    platform.ledger.decide(
        record.run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
    )
    assert [one.gate for one in reconcile(platform, record.run_id) if not one.passed] == []
    # what is planned anew of a run are all parts of a time
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "second")
    world.stage(platform.ledger.run("second"))
    publish(platform, "second")
    assert set(platform.ledger.accepted(SALES).values()) == {"second"}
    judged = reconcile(platform, plan_reconciliation(platform, manifest_of(platform, target)).run_id)
    assert [one.gate for one in judged if not one.passed] == []
    assert verify(platform, data=True).everything == []
