"""Columns that change under runs: what was published before is verified, reconciled, compared, undone and computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table
from small_worlds import copy_of
from worlds import SPARK

from backfill_assets.audit import reproduce as reproducing
from backfill_assets.audit.explain import explain
from backfill_assets.audit.report import report
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.declarations import finding
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schema import Published, PublishedInFull
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.operations import columns
from backfill_assets.operations.columns import differences, evolve
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import preview
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.review import diff as diff_module
from backfill_assets.worker.columns import scan_file
from benchmarks import small_table
from benchmarks.small_table import HISTORY, READINGS, SCOPE, SOURCE, TARGET, manifest, planned, serves, staged
from manifests.errors import EnvironmentRefused, LeaseHeld, LeaseLost, PublicationRefused, TransitionRefused
from manifests.lifecycle import RunState
from resources.lakehouse.facade import local_path


class Before(Published):
    """What one meter said on one day, in few bits."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    value: pl.Int32 = pa.Field(description="What it said.")
    note: str = pa.Field(nullable=True, description="What was written beside it.")


class Added(Before):
    """With a column that came later."""

    status: str = pa.Field(nullable=True, description="How it was read.")


class Widened(Published):
    """With more bits."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    value: pl.Int64 = pa.Field(description="What it said.")
    note: str = pa.Field(nullable=True, description="What was written beside it.")


class Renamed(Published):
    """With another name of what it said."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    said: pl.Int32 = pa.Field(description="What it said.", metadata={"renamed_from": "value"})
    note: str = pa.Field(nullable=True, description="What was written beside it.")


class Reordered(Published):
    """In another order."""

    note: str = pa.Field(nullable=True, description="What was written beside it.")
    value: pl.Int32 = pa.Field(description="What it said.")
    day: date = pa.Field(description="The day.")
    meter: str = pa.Field(description="The meter.")


class Described(Published):
    """In other words."""

    meter: str = pa.Field(description="The meter that was read.")
    day: date = pa.Field(description="The day.")
    value: pl.Int32 = pa.Field(description="What it said.")
    note: str = pa.Field(nullable=True)


class AllOfIt(Published):
    """All of that at once."""

    status: str = pa.Field(nullable=True, description="How it was read.")
    day: date = pa.Field(description="The day of the reading.")
    meter: str = pa.Field(description="The meter.")
    said: pl.Int64 = pa.Field(description="What it said.", metadata={"renamed_from": "value"})
    remark: str = pa.Field(nullable=True, metadata={"renamed_from": "note"})


class InFull(PublishedInFull):
    """With the lineage columns that a table may have besides."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    value: pl.Int32 = pa.Field(description="What it said.")
    note: str = pa.Field(nullable=True, description="What was written beside it.")


CHANGES: dict[str, type[pa.DataFrameModel]] = {
    "added": Added,
    "widened": Widened,
    "renamed": Renamed,
    "reordered": Reordered,
    "all of it": AllOfIt,
    "in full": InFull,
}
REAL = small_table.rows_of
DECLARED = replace(TARGET, model=Before)


def rows_as(model: type[pa.DataFrameModel]) -> Callable[..., list[dict[str, Any]]]:
    """Return the rows of a version of the transform under the names that a model has for them."""
    columns = model.to_schema().columns

    def rows_of(version: str, start: date, end: date) -> list[dict[str, Any]]:
        rows = [row | {"note": f"note of {row['day']}"} for row in REAL(version, start, end)]
        return [
            {
                "meter": row["meter"],
                "day": row["day"],
                "said" if "said" in columns else "value": row["value"],
                "remark" if "remark" in columns else "note": row["note"],
            }
            | ({"status": "read"} if "status" in columns else {})
            for row in rows
        ]

    return rows_of


def with_history(platform: Platform) -> None:
    """Make the table as it was before."""
    small_table.initialise(platform)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with (
        small_table.declared(DECLARED),
        mock.patch.object(small_table, "Reading", Before),
        mock.patch.object(small_table, "rows_of", rows_as(Before)),
    ):
        found = copy_of(with_history, spark=SPARK)
        planned(found, manifest("before", "REPLACE_PARTITIONS", HISTORY, computed_by="1"))
        staged(found, "before")
        publish(found, "before")
        yield found
        small_table.closed(found)


@pytest.fixture
def becomes(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Callable[[type[pa.DataFrameModel]], TargetTable]:
    """Have the product declare another model, and its transform return rows of it."""
    del platform  # which is there before, and goes later
    monkeypatch.setattr(reproducing, "compute_batch", small_table.compute)

    def declare(model: type[pa.DataFrameModel]) -> TargetTable:
        target = replace(TARGET, model=model)
        monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (target,))))
        monkeypatch.setattr(small_table, "rows_of", rows_as(model))
        return target

    return declare


def values(platform: Platform, column: str, run_id: str | None = None, **scan: Any) -> list[Any]:
    """Return a column of what readers see in key order; only of one run's rows, if it is named."""
    found = platform.lakehouse.table(READINGS).scan(**scan).to_arrow().to_pylist()
    found.sort(key=lambda row: (row["meter"], row["day"]))
    return [row[column] for row in found if run_id in {None, row["run_id"]}]


def paths(table: Table) -> set[str]:
    return {task.file.file_path for task in table.scan().plan_files()}


def reconciled(platform: Platform, target: TargetTable) -> RunState:
    record = plan_reconciliation(platform, manifest_of(platform, target))
    verdicts = reconcile(platform, record.run_id)
    assert all(one.passed for one in verdicts), [one.summary for one in verdicts]
    return platform.ledger.run(record.run_id).state


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_published_before_a_change_of_columns_is_proved_compared_undone_and_computed_again(
    platform: Platform, becomes: Callable[[type[pa.DataFrameModel]], TargetTable], change: str
) -> None:
    before, table = values(platform, "value"), platform.lakehouse.table(READINGS)
    base = table.current_snapshot()
    assert base is not None
    target = becomes(CHANGES[change])
    said = "said" if "said" in target.model.to_schema().columns else "value"
    evolve(platform)
    assert paths(platform.lakehouse.table(READINGS)) == paths(table)

    # nothing that was published looks otherwise, but for its columns
    assert values(platform, said) == before
    assert verify(platform, data=True).everything == []
    assert [one for one in examine(platform) if one.kind == "columns-differ"] == []
    assert reconciled(platform, target) is RunState.VALIDATED
    done = reproduce(platform, "before")
    assert done.outcome is Outcome.EQUAL, done.summary

    # a new run is computed, compared with rows of before, published, and undone
    plan = planned(platform, manifest("after", "REPLACE_PARTITIONS", SCOPE)).plan
    assert plan.schema_of(READINGS) == platform.lakehouse.table(READINGS).schema().schema_id > 0
    assert plan.schema_of(SOURCE) == 0
    staged(platform, "after")
    differs = {one.column: one.changed for one in diff_module.diff_run(platform, "after").diff.columns}
    assert differs.pop(said) > 0
    assert differs.pop("status", 1) > 0, "it was NULL before"
    assert set(differs.values()) == {0}
    publish(platform, "after")
    after = values(platform, said)
    assert after != before
    assert verify(platform, data=True).everything == []
    assert reconciled(platform, target) is RunState.VALIDATED
    told = explain(platform, READINGS, ["meter=m1", "day=2020-02-04"])
    assert told.row is not None
    assert {name for one in told.versions for name in one.changed} <= {said, "status"}
    assert f", schema {plan.schema_of(READINGS)}" in report(platform, "after")
    rollback(platform, "after")
    assert values(platform, said) == before
    assert verify(platform, data=True).everything == []
    reinstate(platform, "after")
    assert values(platform, said) == after

    # an old snapshot has its columns, by PyIceberg and by the project's own reads
    assert values(platform, "value", snapshot_id=base.snapshot_id) == before
    own = platform.lakehouse.pinned(READINGS, base.snapshot_id, schema_id=0)
    assert own.schema.column_names == table.schema().column_names
    found = pl.concat(scan_file(local_path(path), own.schema.model_dump_json()).collect() for path in own.paths)
    assert found.sort("meter", "day")["value"].to_list() == before
    today = platform.lakehouse.pinned(READINGS, base.snapshot_id)
    found = pl.concat(scan_file(local_path(path), today.schema.model_dump_json()).collect() for path in today.paths)
    assert found.columns == [one.name for one in today.schema.fields]
    assert found.sort("meter", "day")[said].to_list() == before


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("MERGE_BY_KEY", {"merge": {"entities": ["m1"]}}),
        ("CORRECTION_EVENTS", {"corrections": "BESIDE"}),
        ("SHADOW_SWAP", {}),
        ("VERSIONED", {"version": "v2", "acceptance": "ON_PUBLICATION"}),
    ],
)
def test_every_publish_mode_goes_on_with_rows_of_before_all_changes(
    platform: Platform, becomes: Callable[[type[pa.DataFrameModel]], TargetTable], mode: str, options: dict[str, Any]
) -> None:
    before = values(platform, "value")
    target = becomes(AllOfIt)
    evolve(platform)
    planned(platform, manifest("after", mode, SCOPE, **options))
    staged(platform, "after")
    publish(platform, "after")
    assert set(values(platform, "status", "after")) == {"read"}
    assert set(values(platform, "status", "before")) <= {None}
    assert verify(platform, data=True).everything == []
    reconciled(platform, target)
    rollback(platform, "after")
    assert values(platform, "said") == before
    assert set(values(platform, "status")) == {None}
    assert verify(platform, data=True).everything == []


def test_a_run_that_was_planned_before_a_change_is_neither_computed_nor_published(
    platform: Platform, becomes: Callable[[type[pa.DataFrameModel]], TargetTable]
) -> None:
    planned(platform, manifest("approved", "REPLACE_PARTITIONS", SCOPE))
    planned(platform, manifest("validated", "REPLACE_PARTITIONS", SCOPE))
    assert staged(platform, "validated").state is RunState.VALIDATED
    becomes(Added)
    evolve(platform)
    said = f"was planned for schema 0 of {READINGS}, and it has schema 1 now"
    with pytest.raises(TransitionRefused, match=said):
        staged(platform, "approved")
    with pytest.raises(PublicationRefused, match=said):
        publish(platform, "validated")
    assert platform.ledger.run("validated").state is RunState.VALIDATED
    assert platform.ledger.publications("validated") == []
    assert set(values(platform, "run_id")) == {"before"}


def test_a_change_of_words_leaves_plans_as_they_are(
    platform: Platform, becomes: Callable[[type[pa.DataFrameModel]], TargetTable]
) -> None:
    planned(platform, manifest("validated", "REPLACE_PARTITIONS", SCOPE))
    staged(platform, "validated")
    becomes(Described)
    assert set(evolve(platform)) == {READINGS}
    publish(platform, "validated")
    assert verify(platform, data=True).everything == []


def test_columns_are_not_changed_by_who_was_fenced_after_the_last_look(
    platform: Platform, becomes: Callable[[type[pa.DataFrameModel]], TargetTable]
) -> None:
    becomes(Added)
    own, schema = columns.apply_changes, platform.lakehouse.table(READINGS).schema()

    def late(table: Table, declared: Any, token: int | None) -> int:
        assert token is not None
        platform.lakehouse.fence(READINGS, token)
        return own(table, declared, token)

    with mock.patch.object(columns, "apply_changes", late), pytest.raises(LeaseLost):
        evolve(platform)
    assert platform.lakehouse.table(READINGS).schema() == schema
    assert set(evolve(platform)) == {READINGS}


def test_columns_are_not_changed_while_somebody_publishes(
    platform: Platform, becomes: Callable[[type[pa.DataFrameModel]], TargetTable]
) -> None:
    becomes(Added)
    leases = platform.ledger.leases(60)
    lease = leases.acquire(READINGS, date(2020, 2, 1), date(2020, 2, 28), "somebody", "publish")
    with pytest.raises(LeaseHeld, match="is held by run 'somebody'"):
        evolve(platform)
    assert [one.table for one in differences(platform) if one.changes] == [READINGS]
    leases.release(lease)
    assert set(evolve(platform)) == {READINGS}


def test_a_name_that_somebody_has_given_past_this_project_is_an_alarm(platform: Platform) -> None:
    with platform.lakehouse.table(READINGS).update_schema() as update:
        update.rename_column("note", "remark")
    assert any("has another name" in one.what for one in verify(platform).everything)


def test_a_column_that_rows_are_found_by_keeps_its_name(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(Published):
        meter_id: str = pa.Field(description="The meter.", metadata={"renamed_from": "meter"})
        day: date = pa.Field(description="The day.")
        value: pl.Int32 = pa.Field(description="What it said.")
        note: str = pa.Field(nullable=True, description="What was written beside it.")

    target = replace(TARGET, model=Other, key=("meter_id", "day"), entity="meter_id")
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (target,))))
    with pytest.raises(EnvironmentRefused, match="a column that rows are found by"):
        evolve(platform)


def test_a_plan_says_for_which_columns_it_is_made(platform: Platform) -> None:
    plan = preview(platform, manifest("after", "CORRECTION_EVENTS", SCOPE, corrections="BESIDE"))
    assert [(one.table, one.schema_id) for one in plan.schemas] == [
        (SOURCE, 0),
        (READINGS, 0),
        (small_table.CORRECTIONS, 0),
    ]
    assert schema_to_pyarrow(platform.lakehouse.table(READINGS).schema()).names[-1] == "produced_at"
