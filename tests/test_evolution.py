"""A table that got a column after runs were published: rows of before read as NULL, nothing is an alarm, nothing a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pytest
from pyiceberg.expressions import GreaterThanOrEqual
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.types import IntegerType, StringType
from pyspark.sql import DataFrame
from small_worlds import copy_of
from worlds import SPARK

from backfill_assets import Inputs, TransformContext
from backfill_assets.audit import reproduce as reproducing
from backfill_assets.audit.conditions import Cause
from backfill_assets.audit.explain import explain
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.declarations import finding
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Instant, iceberg_schema
from backfill_assets.declarations.target import ACCEPTED_ROWS_GATE, PUBLISHED_RULES_GATE, TargetTable, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Disagreement
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.publication.publisher import publish
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation
from backfill_assets.reconciliation.reconcile import reconcile
from backfill_assets.review import diff as diff_module
from benchmarks import small_table
from benchmarks.small_table import HISTORY, READINGS, SCOPE, SOURCE, TARGET, Reading, manifest, planned, serves, staged
from manifests.errors import EnvironmentRefused, PlanRefused
from manifests.lifecycle import RunState
from resources.ledger.facade import RunRecord, Verdict


class ReadingWithStatus(Reading):
    """The same, with what came later."""

    status: str = pa.Field(nullable=True, description="How it was read.")


class ReadingWithAnotherType(Reading):
    """The same, with a column of another type."""

    value: pl.Int32 = pa.Field(description="What it said.")


REFERENCE = "reference.events"
EVOLVED = replace(TARGET, model=ReadingWithStatus)


@pytest.fixture
def platform() -> Iterator[Platform]:
    """A table whose four months are published."""
    with small_table.declared():
        found = copy_of(with_history, spark=SPARK)
        yield found
        small_table.closed(found)


def with_history(platform: Platform) -> None:
    small_table.initialise(platform)
    planned(platform, manifest("before", "REPLACE_PARTITIONS", HISTORY, computed_by="1"))
    staged(platform, "before")
    publish(platform, "before")


def evolve(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    with platform.lakehouse.table(READINGS).update_schema() as update:
        update.add_column("status", StringType())
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (EVOLVED,))))


def test_older_runs_are_verified_and_new_ones_published_beside_them(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolve(platform, monkeypatch)
    assert verify(platform, data=True).everything == []
    planned(platform, manifest("after", "REPLACE_PARTITIONS", SCOPE))
    staged(platform, "after")
    publish(platform, "after")
    done = verify(platform, data=True)
    assert done.everything == []
    assert [run.chunks_read for run in done.runs] == [4, 2]


def test_a_run_whose_table_has_another_column_since_it_was_planned_is_refused_by_the_column(platform: Platform) -> None:
    """Else its transform would be blamed for a column that it never knew of."""
    planned(platform, manifest("after", "REPLACE_PARTITIONS", SCOPE))
    with platform.lakehouse.table(READINGS).update_schema() as update:
        update.add_column("status", StringType())
    with pytest.raises(EnvironmentRefused, match=r"has a column status \(string\), which its model does not declare"):
        staged(platform, "after")
    assert platform.ledger.run("after").state is RunState.APPROVED
    with platform.lakehouse.table(READINGS).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("status")
    assert staged(platform, "after").state is RunState.VALIDATED


def test_a_diff_and_an_explanation_show_the_new_column_as_null_before(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolve(platform, monkeypatch)
    planned(platform, manifest("after", "REPLACE_PARTITIONS", SCOPE))
    staged(platform, "after")
    changed = {one.column: one.changed for one in diff_module.diff_run(platform, "after").diff.columns}
    assert changed["status"] == 0
    assert changed["value"] > 0
    publish(platform, "after")
    row = next(one for one in small_table.rows_of("2", *map(date.fromisoformat, SCOPE)) if one["value"] % 1000)
    told = explain(platform, READINGS, [f"meter={row['meter']}", f"day={row['day']}"])
    assert told.row is not None
    assert told.row["status"] is None
    assert all("status" not in version.changed for version in told.versions)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("MERGE_BY_KEY", {"merge": {"entities": ["m1"]}}), ("CORRECTION_EVENTS", {"corrections": "BESIDE"})],
)
def test_rows_with_the_new_column_are_merged_into_older_files_and_correct_them(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, mode: str, options: dict[str, Any]
) -> None:
    evolve(platform, monkeypatch)
    rows_of = small_table.rows_of
    monkeypatch.setattr(small_table, "rows_of", lambda *asked: [row | {"status": "read"} for row in rows_of(*asked)])
    planned(platform, manifest("after", mode, SCOPE, **options))
    staged(platform, "after")
    publish(platform, "after")
    seen = platform.lakehouse.table(READINGS).scan().to_arrow().to_pylist()
    assert {row["status"] for row in seen if row["run_id"] == "after"} == {"read"}
    assert {row["status"] for row in seen if row["run_id"] == "before"} == {None}
    assert verify(platform, data=True).everything == []


def test_a_plan_is_refused_where_table_and_model_differ_and_names_the_column(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = manifest("after", "REPLACE_PARTITIONS", SCOPE)
    with platform.lakehouse.table(READINGS).update_schema() as update:
        update.add_column("quality", IntegerType())
    with pytest.raises(PlanRefused, match=r"has a column quality \(int\), which its model does not declare"):
        planned(platform, contract)
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (EVOLVED,))))
    with pytest.raises(PlanRefused) as refused:
        planned(platform, contract)
    said = [problem.what for problem in refused.value.problems]
    assert [text.partition("column ")[2].split()[0].rstrip(",") for text in said] == ["quality", "status"]
    assert [(one.kind, one.where, one.what) for one in examine(platform)] == [
        ("columns-differ", READINGS, what) for what in said
    ]
    other = replace(TARGET, model=ReadingWithAnotherType)
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (other,))))
    with pytest.raises(PlanRefused, match="has the column value as long, and its model declares int"):
        planned(platform, contract)
    assert platform.ledger.find("after") is None


class Event(pa.DataFrameModel):
    """What is read: `small_table` makes its table."""

    id: str = pa.Field(description="Which.")
    at: Instant = pa.Field(description="When.")


class EventOfMore(Event):
    """The same, with a column that came later."""

    quality: pl.Int32 = pa.Field(nullable=True, description="How good it is.")


class EventOfText(Event):
    """The same, with another type of that column."""

    quality: str = pa.Field(nullable=True, description="How good it is.")


def test_a_plan_that_reads_a_table_without_what_its_model_declares_is_refused_and_names_the_column(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reads(model: type[pa.DataFrameModel], *, as_reference: bool = False) -> list[Disagreement]:
        name = REFERENCE if as_reference else SOURCE
        target = replace(TARGET, references=(REFERENCE,)) if as_reference else TARGET
        table = InputTable(name, "Events.", model, TARGET.owners, is_reference=True)
        monkeypatch.setattr(finding, "find_products", serves(Product("readings", (table,), (target,))))
        return [one for one in examine(platform) if one.kind == "columns-differ"]

    contract = manifest("after", "REPLACE_PARTITIONS", SCOPE)
    lacking = f"{SOURCE} has no column quality, which its model declares as int"
    assert [(one.where, one.what) for one in reads(EventOfMore)] == [(SOURCE, lacking)]
    with pytest.raises(PlanRefused) as refused:
        planned(platform, contract)
    assert [one.what for one in refused.value.problems] == [lacking]
    with platform.lakehouse.table(SOURCE).update_schema() as update:
        update.add_column("quality", IntegerType())
    other = f"{SOURCE} has the column quality as int, and its model declares string"
    assert [one.what for one in reads(EventOfText)] == [other]
    with pytest.raises(PlanRefused) as refused:
        planned(platform, contract)
    assert [one.what for one in refused.value.problems] == [other]
    platform.lakehouse.ensure(REFERENCE, iceberg_schema(Event), UNPARTITIONED_PARTITION_SPEC, {})
    reads(EventOfText, as_reference=True)
    with pytest.raises(PlanRefused, match=f"{REFERENCE} has no column quality, which its model declares as string"):
        planned(platform, contract)
    # a column that the model does not declare is nothing to whoever reads the table
    assert [one.where for one in reads(Event)] == [SOURCE]
    assert planned(platform, contract).state == RunState.APPROVED


def gained(monkeypatch: pytest.MonkeyPatch, target: TargetTable = EVOLVED) -> None:
    """Have the model a column more, which the table has not yet."""
    monkeypatch.setattr(finding, "find_products", serves(Product("readings", (), (target,))))


def reconciled(platform: Platform) -> tuple[RunRecord, dict[str, Verdict]]:
    record = plan_reconciliation(platform, manifest_of(platform, EVOLVED))
    verdicts = {one.gate: one for one in reconcile(platform, record.run_id)}
    return platform.ledger.run(record.run_id), verdicts


def test_a_reconciliation_is_refused_until_the_table_has_the_column_and_then_finds_nothing_wrong_with_older_rows(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    gained(monkeypatch)
    with pytest.raises(PlanRefused) as refused:
        reconciled(platform)
    (problem,) = refused.value.problems
    assert problem.what == f"{READINGS} has no column status, which its model declares as string"
    assert "`backfill init --preview` shows" in problem.fix
    evolve(platform, monkeypatch)
    record, verdicts = reconciled(platform)
    assert {gate: one.summary for gate, one in verdicts.items()} == {
        PUBLISHED_RULES_GATE: "4 of 4 published chunks pass every rule",
        ACCEPTED_ROWS_GATE: "4 of 4 published chunks hold the accepted rows",
    }
    assert record.state is RunState.VALIDATED
    with small_table_row_changed(platform):
        record, verdicts = reconciled(platform)
    assert [gate for gate, one in verdicts.items() if not one.passed] == [ACCEPTED_ROWS_GATE], "a row is another one"
    assert verdicts[ACCEPTED_ROWS_GATE].summary == "3 of 4 published chunks hold the accepted rows"


@contextmanager
def small_table_row_changed(platform: Platform) -> Iterator[None]:
    """Somebody else writes a month again, in files that have the new column, with another value in one row."""
    table = platform.lakehouse.table(READINGS)
    scope = GreaterThanOrEqual("day", "2020-04-01")
    rows = table.scan(row_filter=scope).to_arrow().to_pylist()
    rows[0]["value"] += 1
    before = table.current_snapshot()
    assert before is not None
    table.overwrite(arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema())), overwrite_filter=scope)
    yield
    platform.lakehouse.point(READINGS, expected={}, branches={"main": before.snapshot_id})


def test_what_is_written_again_with_the_new_column_unset_holds_the_accepted_rows(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolve(platform, monkeypatch)
    table = platform.lakehouse.table(READINGS)
    table.overwrite(table.scan().to_arrow())  # as a compaction does
    record, verdicts = reconciled(platform)
    assert record.state is RunState.VALIDATED, verdicts
    assert all(one.passed for one in verdicts.values())


def test_an_older_run_is_reproduced_by_newer_code_over_the_columns_of_its_time(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproducing, "compute_batch", small_table.compute)
    newer = replace(platform.ledger.run("before").plan.code, content_hash="0" * 64)
    monkeypatch.setattr(Platform, "code_of", lambda *_: newer)  # a model is code
    gained(monkeypatch)
    done = reproduce(platform, "before")  # the table has not got the column yet
    assert (done.outcome, done.causes) == (Outcome.DIFFERENT, (Cause.CODE,))
    assert done.difference is not None
    assert "does not pass its gate: column_in_dataframe" in done.difference.note
    assert any("check out git commit" in fix or "install the package" in fix for fix in done.what_to_do)
    evolve(platform, monkeypatch)
    done = reproduce(platform, "before")
    assert (done.outcome, done.causes) == (Outcome.EQUAL, ())
    assert done.summary.startswith("equal, although the code differs: all 4 chunks have the recorded digest")


def test_an_older_run_whose_transform_does_not_return_the_new_column_is_not_computed_and_says_so(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def readings(inputs: Inputs, _context: TransformContext) -> DataFrame:
        return inputs.source.selectExpr("id AS meter", "CAST(at AS date) AS day", "1L AS value")

    older = replace(EVOLVED, versions={version: TransformVersion(readings) for version in EVOLVED.versions})
    for prepare in (gained, lambda patch, target: evolve(platform, patch) or gained(patch, target)):
        prepare(monkeypatch, older)
        done = reproduce(platform, "before")
        assert (done.outcome, done.difference) == (Outcome.NOT_COMPUTED, None)
        assert {one.note for one in done.chunks} == {f"what readings 1 returned for {READINGS} lacks status"}
        assert "lacks status" in done.summary
