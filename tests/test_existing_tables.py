"""Tables as people have them: whatever they are partitioned by and cut into, a run replaces its days and nothing else."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import pyarrow as arrow
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from rich.console import Console
from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.cli.explain_view import shown
from backfill_assets.declarations.finding import check_products
from backfill_assets.declarations.schema import TABLE_PROPERTIES, Corrections, iceberg_schema
from backfill_assets.declarations.target import CorrectionsTable, TargetTable
from backfill_assets.defs.launch import initialise_instance, run_chunks
from backfill_assets.defs.staging import asset_key, chunk_partitions, partition_key
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.review.diff import diff_run
from benchmarks import orders
from benchmarks.orders import ORDERS, TARGET, manifest, opened, rows_of
from manifests.chunks import Chunking, aligned, cut
from manifests.errors import DeclarationRefused, EnvironmentRefused, PlanRefused, PublicationRefused
from manifests.lifecycle import RunState

SPECS = {
    "nothing": (),
    "month": (("ordered_on", "month"),),
    "year": (("ordered_on", "year"),),
    "day": (("ordered_on", "day"),),
    "hour of an instant": (("ordered_at", "hour"),),
    "bucket": (("order_id", "bucket[4]"),),
    "month and bucket": (("ordered_on", "month"), ("customer", "bucket[3]")),
    "identity": (("region", "identity"), ("ordered_on", "month")),
    "truncated text": (("customer", "truncate[10]"),),
    "truncated number": (("order_id", "truncate[500]"), ("ordered_on", "month")),
    "truncated decimal": (("price", "truncate[5000]"),),
    "bucket of an instant": (("ordered_at", "bucket[2]"), ("ordered_on", "year")),
}


def spec_of(*parts: tuple[str, str]) -> PartitionSpec:
    schema = iceberg_schema(orders.Order)
    return PartitionSpec(
        *[
            PartitionField(schema.find_field(column).field_id, 1000 + place, parse_transform(how), f"part_{place}")
            for place, (column, how) in enumerate(parts)
        ]
    )


def foreign(platform: Platform, spec: PartitionSpec, model: type[pa.DataFrameModel] = orders.Order) -> None:
    """Make the target as another program would: its partitions, and rows of every day, by files of its own."""
    lakehouse = platform.lakehouse
    lakehouse.catalog.create_namespace_if_not_exists("silver")
    schema = iceberg_schema(model)
    table = lakehouse.catalog.create_table(ORDERS, schema, partition_spec=spec, properties=dict(TABLE_PROPERTIES))
    lines = orders.lines().to_pylist()
    for month in sorted({row["ordered_at"].strftime("%Y-%m") for row in lines}):
        own: list[dict[str, Any]] = [
            row | {"ordered_on": row["ordered_at"].date(), "run_id": "theirs", "processing_mode": "x"}
            for row in lines
            if row["ordered_at"].strftime("%Y-%m") == month
        ]
        table.append(arrow.Table.from_pylist(own, schema_to_pyarrow(schema, include_field_ids=False)))


@pytest.mark.parametrize("parts", SPECS.values(), ids=SPECS)
def test_days_of_a_table_are_restated_whatever_it_is_partitioned_by(
    tmp_path: Path, parts: tuple[tuple[str, str], ...]
) -> None:
    platform = opened(tmp_path / "home", spark=SPARK)
    foreign(platform, spec_of(*parts))
    orders.fill(platform)
    world = World(platform, tmp_path / "home")
    before = rows_of(platform)
    world.published(manifest("february", date(2024, 2, 1), date(2024, 2, 29)))
    after = rows_of(platform)
    inside = [row for row in after if row["ordered_on"].strftime("%Y-%m") == "2024-02"]
    assert {row["run_id"] for row in inside} == {"february"}
    assert [row for row in after if row not in inside] == [
        row for row in before if row["ordered_on"].strftime("%Y-%m") != "2024-02"
    ]
    plain = {row["order_id"]: row["price"] for row in before}
    assert {row["order_id"]: row["price"] - plain[row["order_id"]] for row in inside} == {
        row["order_id"]: 1 for row in before if row["ordered_on"].strftime("%Y-%m") == "2024-02"
    }
    assert verify(platform, data=True).everything == []
    # a reader who asks by what the table is partitioned by gets each row: no file has a partition that is not its rows'
    for column, _ in parts:
        for value in {row[column] for row in inside}:
            asked = f"{column} IS NULL" if value is None else f"{column} == '{value}'"
            if hasattr(value, "isoformat"):
                asked = f"{column} == '{value.isoformat()}'"
            elif value is not None and not isinstance(value, str):
                asked = f"{column} == {value}"
            found = platform.lakehouse.table(ORDERS).scan(row_filter=asked).to_arrow()["order_id"].to_pylist()
            assert sorted(found) == [row["order_id"] for row in after if row[column] == value], asked
    rollback(platform, "february")
    assert rows_of(platform) == before


CUTS = {
    "years of dates": (Chunking.YEAR, "ordered_on", ("2023", "2025"), date(2024, 1, 1), date(2024, 12, 31)),
    "years of instants": (Chunking.YEAR, "ordered_at", ("2023", "2025"), date(2023, 1, 1), date(2023, 12, 31)),
    "months of instants": (Chunking.MONTH, "ordered_at", ("2023-01", "2025-12"), date(2024, 2, 1), date(2024, 3, 31)),
    "weeks of dates": (Chunking.WEEK, "ordered_on", ("2023-W01", "2025-W52"), date(2023, 12, 25), date(2024, 1, 14)),
    "weeks of instants": (Chunking.WEEK, "ordered_at", ("2023-W01", "2025-W52"), date(2024, 1, 1), date(2024, 1, 7)),
    "days of instants": (Chunking.DAY, "ordered_at", ("2023-01-01", "2025-12-31"), date(2024, 2, 28), date(2024, 3, 1)),
}


def cut_target(how: str) -> tuple[TargetTable, date, date]:
    chunking, column, (first, last), start, end = CUTS[how]
    return replace(TARGET, chunking=chunking, day_column=column, chunks_from=first, chunks_until=last), start, end


@pytest.mark.parametrize("how", CUTS)
def test_a_table_is_cut_by_years_months_weeks_or_days_of_dates_or_instants(tmp_path: Path, how: str) -> None:
    target, start, end = cut_target(how)
    platform = opened(tmp_path / "home", target, spark=SPARK)
    orders.fill(platform)
    world = World(platform, tmp_path / "home")
    whole = aligned(target.chunking, orders.FIRST, orders.LAST)
    world.published(manifest("first", *whole, version="1.0.0", kind="BACKFILL"))
    before = rows_of(platform)
    assert [row["order_id"] for row in before] == list(range(2_000))
    published = world.published(manifest("second", start, end))
    keys = [chunk.key for chunk in cut(target.chunking, start, end)]
    assert [chunk.chunk for chunk in platform.ledger.chunks("second")] == keys
    after = rows_of(platform)
    assert {row["order_id"] for row in after if row["run_id"] == "second"} == {
        row["order_id"] for row in before if start <= row["ordered_at"].date() <= end
    }
    assert [row for row in after if row["run_id"] == "first"] == [
        row for row in before if not start <= row["ordered_at"].date() <= end
    ]
    assert len(after) == len(before)
    assert verify(platform, data=True).everything == []
    assert platform.ledger.run(published.run_id).state is RunState.PUBLISHED
    rollback(platform, "second")
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []


@pytest.mark.parametrize("parts", [(), (("ordered_at", "day"),)], ids=["unpartitioned", "by day"])
def test_rows_of_others_beside_a_run_of_a_table_of_instants_are_no_alarm(
    tmp_path: Path, parts: tuple[tuple[str, str], ...]
) -> None:
    target, start, end = cut_target("months of instants")
    platform = opened(tmp_path / "home", target, spark=SPARK)
    foreign(platform, spec_of(*parts))
    orders.fill(platform)
    world = World(platform, tmp_path / "home")
    before = rows_of(platform)
    world.published(manifest("second", start, end))
    assert verify(platform, data=True).everything == []
    after = rows_of(platform)
    assert [row for row in after if row["run_id"] != "second"] == [
        row for row in before if not start <= row["ordered_at"].date() <= end
    ]
    assert [one.kind for one in examine(platform)] == []  # what the table held before is nobody's mistake
    first = datetime(2024, 2, 1, tzinfo=UTC)
    more = orders.lines(3).to_pylist()
    own = [
        row | {"ordered_at": first, "ordered_on": first.date(), "run_id": "late", "processing_mode": "x"}
        for row in more
    ]
    schema = schema_to_pyarrow(iceberg_schema(orders.Order), include_field_ids=False)
    platform.lakehouse.table(ORDERS).append(arrow.Table.from_pylist(own, schema))
    assert any("chunk 2024-02" in one.where for one in verify(platform, data=True).everything)
    assert {"accepted-files-differ", "foreign-write"} <= {one.kind for one in examine(platform)}


@pytest.mark.parametrize("how", ["weeks of instants", "years of dates"])
def test_weeks_and_years_are_launched_from_dagster_by_their_keys(tmp_path: Path, how: str) -> None:
    target, _, _ = cut_target(how)
    platform = opened(tmp_path / "home", target, spark=SPARK)
    orders.fill(platform)
    initialise_instance(platform.settings)
    world = World(platform, tmp_path / "home")
    whole = aligned(target.chunking, orders.FIRST, orders.LAST)
    record = world.announced(manifest("launched", *whole, kind="BACKFILL"))
    keys = [chunk.key for chunk in record.plan.chunks]
    assert set(keys) <= set(chunk_partitions(target).get_partition_keys())
    with world.dagster() as instance:
        assert run_chunks(platform, instance, record, keys)
        assert instance.get_materialized_partitions(asset_key(ORDERS)) == {
            str(partition_key("launched", key)) for key in keys
        }
    assert platform.ledger.run("launched").state is RunState.VALIDATED


MERGED = {
    name: SPECS[name] for name in ("month and bucket", "identity", "truncated decimal", "bucket of an instant", "day")
}


@pytest.mark.parametrize("parts", MERGED.values(), ids=MERGED)
def test_entities_are_merged_whatever_a_table_is_partitioned_by(
    tmp_path: Path, parts: tuple[tuple[str, str], ...]
) -> None:
    platform = opened(tmp_path / "home", replace(TARGET, entity="customer"), spark=SPARK)
    foreign(platform, spec_of(*parts))
    orders.fill(platform)
    merged_and_undone(World(platform, tmp_path / "home"), parts)


def test_entities_are_merged_in_files_that_were_written_by_partitions_the_table_had_before(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", replace(TARGET, entity="customer"), spark=SPARK)
    foreign(platform, spec_of(("ordered_on", "month")))
    orders.fill(platform)
    with platform.lakehouse.table(ORDERS).update_spec() as update:
        update.add_field("customer", "bucket[3]")
        update.add_identity("region")
    merged_and_undone(World(platform, tmp_path / "home"), (("customer", "bucket[3]"), ("region", "identity")))


def merged_and_undone(world: World, parts: tuple[tuple[str, str], ...]) -> None:
    """Merge two customers of February, hold what readers get against a naive merge, and take it back."""
    platform, before = world.platform, rows_of(world.platform)
    chosen = ("customer-1", "customer-14")
    days = {"start": date(2024, 2, 1), "end": date(2024, 2, 29)}
    merge = {"publishMode": "MERGE_BY_KEY", "merge": {"entities": list(chosen)}}
    text = {"kind": "REPAIR", "target": {"table": ORDERS, "publishRange": days, **merge}}
    world.published(manifest("merged", days["start"], days["end"], **text))
    after = rows_of(platform)
    own = {
        row["order_id"]
        for row in before
        if row["customer"] in chosen and days["start"] <= row["ordered_on"] <= days["end"]
    }
    assert len(own) > 5
    assert {row["order_id"] for row in after if row["run_id"] == "merged"} == own
    assert [row["price"] for row in after] == [row["price"] + (row["order_id"] in own) for row in before]
    assert [row for row in after if row["order_id"] not in own] == [row for row in before if row["order_id"] not in own]
    # a reader who asks by what the table is partitioned by gets each row: no file has a partition that is not its rows'
    table = platform.lakehouse.table(ORDERS)
    inside = [row for row in after if row["order_id"] in own]
    for column in {column for column, _ in parts}:
        for value in {row[column] for row in inside if row[column] is not None}:
            said = (
                f"'{value}'"
                if isinstance(value, str)
                else f"'{value.isoformat()}'"
                if hasattr(value, "isoformat")
                else value
            )
            found = table.scan(row_filter=f"{column} == {said}").to_arrow()["order_id"].to_pylist()
            assert sorted(found) == [row["order_id"] for row in after if row[column] == value], value
    assert verify(platform, data=True).everything == []
    rollback(platform, "merged")
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []


def test_a_partition_that_no_row_could_be_written_by_is_refused_by_init_and_plan(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", spark=SPARK)
    schema = iceberg_schema(orders.Order)
    unknown = PartitionSpec(
        PartitionField(schema.find_field("customer").field_id, 1000, parse_transform("zorder"), "z")
    )
    foreign(platform, spec_of())
    table = platform.lakehouse.table(ORDERS)
    orders.fill(platform)
    with mock.patch.object(Table, "spec", return_value=unknown):
        with pytest.raises(EnvironmentRefused, match="zorder"):
            orders.fill(platform)
        with pytest.raises(PlanRefused, match="zorder"):
            plan_run(platform, manifest("odd", date(2024, 2, 1), date(2024, 2, 29)))
    assert table.spec().is_unpartitioned()


# --- tables without lineage columns -----------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> World:
    """An installation whose target says of no row which run made it, and has rows of somebody else."""
    platform = opened(tmp_path / "home", replace(TARGET, model=orders.Bare), spark=SPARK)
    foreign(platform, spec_of(("ordered_on", "month")), orders.Bare)
    orders.fill(platform)
    return World(platform, tmp_path / "home")


FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)


def test_a_table_without_lineage_columns_is_restated_compared_verified_and_undone(bare: World) -> None:
    platform, before = bare.platform, rows_of(bare.platform)
    assert "run_id" not in before[0]
    published = bare.published(manifest("second", *FEBRUARY))
    after = rows_of(platform)
    changed = [row for row in before if row["ordered_on"].strftime("%Y-%m") == "2024-02"]
    assert [row for row in after if row["ordered_on"].strftime("%Y-%m") != "2024-02"] == [
        row for row in before if row not in changed
    ]
    assert [row | {"price": row["price"] + 1} for row in changed] == [
        row for row in after if row["ordered_on"].strftime("%Y-%m") == "2024-02"
    ]
    compared = diff_run(platform, "second", table=True).diff
    assert (compared.changed, compared.added, compared.removed) == (len(changed), 0, 0)
    assert verify(platform, data=True).everything == []
    said = platform.lakehouse.table(ORDERS).snapshot_by_id(published.snapshot_id).summary.additional_properties
    record = platform.ledger.run("second")
    assert {key: said[f"backfill.{key}"] for key in ("run-id", "processing-mode", "transform-version")} == {
        "run-id": "second",
        "processing-mode": "BACKFILL",
        "transform-version": "2.0.0",
    }
    assert said["backfill.input-snapshot-id"] == str(record.plan.source_snapshot_id)
    assert said["backfill.produced-at"] == record.plan.run_clock.isoformat()
    bare.published(manifest("third", *FEBRUARY, version="1.0.0"))
    assert rows_of(platform) == before
    rollback(platform, "third")
    assert rows_of(platform) == after
    assert verify(platform, data=True).everything == []


def test_which_run_made_a_row_of_it_is_told_by_its_chunk(bare: World) -> None:
    platform = bare.platform
    mine = next(row for row in rows_of(platform) if row["ordered_on"].strftime("%Y-%m") == "2024-02")
    others = next(row for row in rows_of(platform) if row["ordered_on"].strftime("%Y-%m") == "2024-03")
    bare.published(manifest("second", *FEBRUARY))
    bare.published(manifest("third", *FEBRUARY, version="1.0.0"))
    rollback(platform, "third")
    found = explain(platform, ORDERS, [f"order_id={mine['order_id']}"])
    assert found.producer is not None
    assert (found.producer.run_id, found.accepted_run) == ("second", "second")
    assert [(one.action, one.made_by) for one in found.versions] == [
        ("rollback", "second"),
        ("publish", "third"),
        ("publish", "second"),
        ("", None),
    ]
    assert found.versions[1].because["transform version"] == ["2.0.0", "1.0.0"]
    found = explain(platform, ORDERS, [f"order_id={others['order_id']}"])
    assert (found.producer, found.accepted_run) == (None, None)
    assert found.row is not None
    console = Console(width=200)
    with console.capture() as capture:
        console.print(shown(found))
    assert "it is there; no run of this project made it" in capture.get()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"entity": "customer"}, "a merge leaves rows of several runs in a chunk"),
        ({"corrections": CorrectionsTable("silver.order_corrections", Corrections)}, "a correction names the run"),
    ],
)
def test_what_needs_lineage_columns_is_refused_where_a_table_has_none(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationRefused, match=said):
        check_products([orders.product(replace(TARGET, model=orders.Bare, **changes))])


# --- which partition a file gets --------------------------------------------------------------------------------------


def test_a_file_whose_footer_does_not_say_where_its_rows_lie_is_refused(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", spark=SPARK)
    foreign(platform, spec_of(("ordered_on", "month"), ("customer", "truncate[10]")))
    orders.fill(platform)
    world = World(platform, tmp_path / "home")
    before = rows_of(platform)
    record = world.validated(manifest("february", *FEBRUARY))
    with platform.lakehouse.table(ORDERS).transaction() as transaction:
        transaction.set_properties({"write.metadata.metrics.default": "none"})
    with pytest.raises(PublicationRefused, match="does not say the ends of column"):
        publish(platform, record.run_id)
    with pytest.raises(PlanRefused, match=r"write\.metadata\.metrics\.default=none"):
        plan_run(platform, manifest("again", *FEBRUARY))
    assert rows_of(platform) == before


def test_a_file_that_was_written_for_another_table_of_the_same_name_is_refused(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", spark=SPARK)
    orders.fill(platform)
    platform.lakehouse.catalog.drop_table(ORDERS)

    def make(*parts: tuple[str, str]) -> None:
        schema = iceberg_schema(orders.Order)
        spec, properties = spec_of(*parts), dict(TABLE_PROPERTIES)
        platform.lakehouse.catalog.create_table(ORDERS, schema, partition_spec=spec, properties=properties)

    make(("ordered_on", "month"), ("order_id", "bucket[4]"))
    record = World(platform, tmp_path / "home").validated(manifest("first", *FEBRUARY, kind="BACKFILL"))
    platform.lakehouse.catalog.drop_table(ORDERS)
    make(("ordered_on", "month"), ("customer", "bucket[8]"))
    with pytest.raises(PublicationRefused, match="was not written by the partitions that the table has now"):
        publish(platform, record.run_id)
    assert rows_of(platform) == []


def test_a_partition_field_that_was_removed_from_a_table_of_the_first_format_is_no_obstacle(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", spark=SPARK)
    orders.fill(platform)
    platform.lakehouse.catalog.drop_table(ORDERS)
    properties = dict(TABLE_PROPERTIES) | {"format-version": "1"}
    spec = spec_of(("ordered_on", "month"), ("order_id", "bucket[4]"))
    table = platform.lakehouse.catalog.create_table(
        ORDERS, iceberg_schema(orders.Order), partition_spec=spec, properties=properties
    )
    with table.update_spec() as update:
        update.remove_field("part_1")
    World(platform, tmp_path / "home").published(manifest("first", *FEBRUARY, kind="BACKFILL"))
    assert {row["run_id"] for row in rows_of(platform)} == {"first"}


def test_what_was_published_by_buckets_is_right_also_once_the_table_has_none(tmp_path: Path) -> None:
    platform = opened(tmp_path / "home", spark=SPARK)
    foreign(platform, spec_of(("ordered_on", "month"), ("order_id", "bucket[4]")))
    orders.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(manifest("february", *FEBRUARY))
    with platform.lakehouse.table(ORDERS).update_spec() as update:
        update.remove_field("part_1")
    text = {
        "kind": "RECONCILIATION",
        "validation": {"gates": ["published_rows_pass_rules", "published_rows_are_accepted"]},
    }
    found = reconcile(platform, world.approved(manifest("look", *FEBRUARY, **text)).run_id)
    assert {one.gate: one.passed for one in found if not one.chunk} == {
        "published_rows_pass_rules": True,
        "published_rows_are_accepted": True,
    }


# --- gates of every table, where rows belong to chunks by instants ----------------------------------------------------


def test_gates_that_count_and_compare_days_see_every_row_of_a_table_of_instants(tmp_path: Path) -> None:
    gates = (
        ba.row_count_gate(),
        ba.distribution_gate("region", least_rows=1),
        ba.bounded_change_gate("price", rise=1e6, fall=1e6, absolute=True, days_around=3),
    )
    target, start, end = cut_target("months of instants")
    platform = opened(tmp_path / "home", replace(target, reconciliations=gates), spark=SPARK)
    orders.fill(platform)
    world = World(platform, tmp_path / "home")
    world.published(manifest("first", *aligned(target.chunking, orders.FIRST, orders.LAST), "1.0.0", kind="BACKFILL"))
    world.published(manifest("second", start, end))
    verdicts = {one.gate: one for one in platform.ledger.verdicts("second") if not one.chunk}
    assert {gate.name: verdicts[gate.name].passed for gate in gates} == {gate.name: True for gate in gates}
    # each day of the two months has orders, the last one as well, and is compared with the day before it
    days = (end - start).days + 1
    series = verdicts[gates[2].name]
    assert (series.details["days"], series.details["compared"]) == (days, days)


def test_months_are_no_slices_of_a_table_that_is_cut_by_weeks(tmp_path: Path) -> None:
    module = tmp_path / "weekly.py"
    (tmp_path / "expected.csv").write_text("month,rows\n2024-01,5\n")
    module.write_text('import backfill_assets as ba\nGATE = ba.checksum_gate("expected.csv", ("month",))\n')
    spec = importlib.util.spec_from_file_location("weekly", module)
    assert spec is not None
    assert spec.loader is not None
    weekly = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(weekly)
    target, _, _ = cut_target("weeks of dates")
    with pytest.raises(DeclarationRefused, match="the month of a row is told from its chunk"):
        check_products([orders.product(replace(target, reconciliations=(weekly.GATE,)))])
