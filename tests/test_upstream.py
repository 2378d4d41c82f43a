"""What this project takes for granted of the libraries it stands on, each checked by running it.

Put here a behaviour that no public documentation promises, or that is private, and that the code leans on. If an
upgrade turns one of these red, look at the module that its comment names before anything is published with it.
"""

from __future__ import annotations

import inspect
import json
import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy
from datetime import UTC, date, datetime, timedelta
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import dagster as dg
import pandera.polars as pa
import polars as pl
import private_names
import pyarrow
import pyarrow.parquet as pq
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from dagster_webserver.webserver import DagsterWebserver
from pandera.errors import SchemaErrors
from private_names import UNKNOWN, Use, modules, uses_in
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.expressions.visitors import manifest_evaluator
from pyiceberg.io.pyarrow import (
    ArrowProjectionVisitor,
    PyArrowLocalFileSystem,
    parquet_file_to_data_file,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, TableRequirement
from pyiceberg.transforms import MonthTransform
from pyiceberg.types import DateType, ListType, LongType, MapType, NestedField, StringType, StructType
from pyspark import worker as pyspark_worker
from pyspark.errors import ArithmeticException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as spark_types
from pyspark.sql.connect.expressions import SQLExpression
from pyspark.sql.connect.session import SparkSession as RemoteSession

from backfill_assets.declarations.pandera_private import answers_of, is_built_in
from backfill_assets.defs.dagster_private import (
    AssetCheckEvaluationTargetMaterializationData,
    add_asset_metadata,
    answer_with_contexts,
    instance_of,
    with_run_storage,
)
from backfill_assets.defs.staging import RANGE_END, RANGE_START
from manifests.errors import StoreRefused
from manifests.model import Mode
from resources.files import s3_objects
from resources.files.botocore_private import StoreClock
from resources.files.s3_objects import Bucket, UnwholeError
from resources.lakehouse.pyiceberg_private import (
    Append,
    FileIOWithOwnDisk,
    QuickTransaction,
    Replacement,
    dated_by,
    holds_only,
    may_hold,
    open_as_the_catalog_says,
    write_data_files,
)
from resources.settings import load_settings
from resources.spark import local_files
from resources.spark.mode_settings import OPEN_FILES
from resources.spark.pyspark_private import (
    analysed,
    daemon_of_workers,
    define_class,
    gateway_of,
    has_class,
    hearing_sql,
    settings_of,
    versions,
    with_lines,
    without_lines,
)
from resources.spark.sessions import ModeSpark, computing_otherwise
from resources.spark.surroundings import ZONE

# --- PyIceberg: resources/lakehouse/ ----------------------------------------------------------------------------------

NAME = "test.days"
SCHEMA = Schema(NestedField(1, "day", DateType(), required=False), NestedField(2, "value", LongType(), required=False))
BY_MONTH = PartitionSpec(PartitionField(1, 1000, MonthTransform(), "day_month"))
JANUARY = And(GreaterThanOrEqual("day", "2012-01-01"), LessThanOrEqual("day", "2012-01-31"))


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return load_catalog(
        "lake", type="sql", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=(tmp_path / "warehouse").as_uri()
    )


@pytest.fixture
def days(catalog: Catalog) -> Table:
    """A table with a file in January and one in February, in one snapshot."""
    catalog.create_namespace("test")
    table = catalog.create_table(
        NAME, SCHEMA, partition_spec=BY_MONTH, properties={"write.delete.isolation-level": "serializable"}
    )
    table.append(day_values({"2012-01-10": 1, "2012-02-10": 1}))
    return catalog.load_table(NAME)


def day_values(values: dict[str, int]) -> pyarrow.Table:
    rows = [{"day": date.fromisoformat(day), "value": value} for day, value in values.items()]
    return pyarrow.Table.from_pylist(rows, schema=schema_to_pyarrow(SCHEMA))


def replace_january(
    table: Table,
    *,
    scoped: bool = True,
    before_commit: Callable[[], Any] = lambda: None,
    properties: dict[str, str] | None = None,
) -> None:
    """Replace January's file by another one as `lakehouse.commits.commit_replacement` does."""
    old = [task.file for task in table.scan(row_filter=JANUARY).plan_files()]
    new = list(write_data_files(table, day_values({"2012-01-10": 2})))
    with table.transaction() as transaction:
        with transaction.update_snapshot(snapshot_properties=properties or {}).overwrite() as update:
            if scoped:
                update.delete_by_predicate(JANUARY)
            for file in old:
                update.delete_data_file(file)
            for file in new:
                update.append_data_file(file)
        before_commit()


def values(catalog: Catalog) -> list[tuple[str, int]]:
    rows = catalog.load_table(NAME).scan().to_arrow().to_pylist()
    return sorted((row["day"].isoformat(), row["value"]) for row in rows)


def newest(catalog: Catalog) -> Snapshot:
    snapshot = catalog.load_table(NAME).current_snapshot()
    assert snapshot is not None
    return snapshot


def test_pyiceberg_replaces_files_by_predicate_in_one_snapshot(catalog: Catalog, days: Table) -> None:
    before = newest(catalog)
    replace_january(days)
    assert newest(catalog).parent_snapshot_id == before.snapshot_id
    assert len(catalog.load_table(NAME).snapshots()) == 2
    assert values(catalog) == [("2012-01-10", 2), ("2012-02-10", 1)]


def test_pyiceberg_lets_a_concurrent_append_outside_the_predicate_through(catalog: Catalog, days: Table) -> None:
    other = catalog.load_table(NAME)
    replace_january(days, before_commit=lambda: other.append(day_values({"2012-03-10": 1})))
    assert values(catalog) == [("2012-01-10", 2), ("2012-02-10", 1), ("2012-03-10", 1)]


def test_pyiceberg_fails_the_commit_for_a_concurrent_append_inside_the_predicate(catalog: Catalog, days: Table) -> None:
    other = catalog.load_table(NAME)
    with pytest.raises(ValidationException):
        replace_january(days, before_commit=lambda: other.append(day_values({"2012-01-20": 1})))
    assert values(catalog) == [("2012-01-10", 1), ("2012-01-20", 1), ("2012-02-10", 1)]


def test_pyiceberg_fails_the_commit_when_a_file_to_replace_is_gone(catalog: Catalog, days: Table) -> None:
    other = catalog.load_table(NAME)
    with pytest.raises(ValidationException):
        replace_january(days, before_commit=lambda: replace_january(other))
    assert len(catalog.load_table(NAME).snapshots()) == 2


def test_pyiceberg_has_two_exceptions_for_a_commit_that_lost() -> None:
    """Neither is the other: a conflict found while repeating is no `CommitFailedException`. Both must be caught."""
    assert not issubclass(ValidationException, CommitFailedException)
    assert not issubclass(CommitFailedException, ValidationException)


def test_pyicebergs_evaluator_of_manifests_remembers_the_one_it_is_asked_about(catalog: Catalog, days: Table) -> None:
    """Asked by two threads at once it answers for the other's manifest; `_OverwriteFiles` asks it from a pool."""
    evaluate = manifest_evaluator(days.spec(), days.schema(), AlwaysTrue())
    (manifest,) = newest(catalog).manifests(days.io)
    assert evaluate(manifest)
    assert evaluate.__self__.partition_fields is manifest.partitions  # type: ignore[attr-defined]


def test_pyiceberg_fails_the_commit_that_may_not_be_repeated(catalog: Catalog, days: Table) -> None:
    with days.transaction() as transaction:
        transaction.set_properties({"commit.retry.num-retries": "0"})
    other = catalog.load_table(NAME)
    with pytest.raises(CommitFailedException):
        replace_january(days, before_commit=lambda: other.append(day_values({"2012-03-10": 1})))


def test_pyiceberg_without_a_predicate_fails_the_commit_for_an_append_anywhere(catalog: Catalog, days: Table) -> None:
    """Why the predicate is given although every file to delete is named."""
    other = catalog.load_table(NAME)
    with pytest.raises(ValidationException):
        replace_january(days, scoped=False, before_commit=lambda: other.append(day_values({"2012-03-10": 1})))


def test_pyiceberg_keeps_the_properties_of_a_snapshot_also_when_the_commit_was_repeated(
    catalog: Catalog, days: Table
) -> None:
    other = catalog.load_table(NAME)
    given = {"backfill.run-id": "run-one", "backfill.action": "publish"}
    replace_january(days, before_commit=lambda: other.append(day_values({"2012-03-10": 1})), properties=given)
    summary = newest(catalog).summary
    assert summary is not None
    found = summary.additional_properties
    assert {name: found.get(name) for name in given} == given
    # what `Lakehouse.changed_files` reads
    assert (found["added-data-files"], found["deleted-data-files"]) == ("1", "1")


def test_pyiceberg_makes_data_files_of_rows_and_of_staged_files(days: Table, tmp_path: Path) -> None:
    written = list(write_data_files(days, day_values({"2012-01-05": 1, "2012-02-05": 1})))
    assert [type(file) for file in written] == [DataFile, DataFile]
    assert list(inspect.signature(parquet_file_to_data_file).parameters) == ["io", "table_metadata", "file_path"]
    file = tmp_path / "staged.parquet"
    pq.write_table(day_values({"2012-01-05": 1}), file)
    found = parquet_file_to_data_file(days.io, days.metadata, file.as_uri())
    assert (found.record_count, found.file_size_in_bytes) == (1, file.stat().st_size)
    assert found.partition[0] == (2012 - 1970) * 12


def test_pyiceberg_refuses_an_optional_parquet_column_for_a_required_one(catalog: Catalog, tmp_path: Path) -> None:
    """Why `schema.iceberg_schema` declares every column optional: Spark writes computed columns as optional."""
    catalog.create_namespace("test")
    strict = catalog.create_table("test.strict", Schema(NestedField(1, "value", LongType(), required=True)))
    file = tmp_path / "staged.parquet"
    column = pyarrow.field("value", pyarrow.int64(), nullable=True, metadata={"PARQUET:field_id": "1"})
    pq.write_table(pyarrow.table({"value": [1]}, schema=pyarrow.schema([column])), file)
    with pytest.raises(ValueError, match=r"required|optional"):
        parquet_file_to_data_file(strict.io, strict.metadata, file.as_uri())


OVERRIDDEN = {name for name, value in vars(Replacement).items() if inspect.isfunction(value)} & set(
    dir(Replacement.__base__)
)
"""The methods of PyIceberg's overwrite that a replacement overrides."""


class Watched(Replacement):
    """A replacement that notes which of the methods that it overrides PyIceberg calls."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.called: set[str] = set()
        for name in OVERRIDDEN:
            setattr(self, name, partial(self.note, name, getattr(self, name)))

    def note(self, name: str, method: Callable[..., Any], *args: Any) -> Any:
        self.called.add(name)
        return method(*args)


def replace_by(table: Table, *required: TableRequirement, before_commit: Callable[[], Any] = lambda: None) -> Watched:
    """Replace January's file with requirements of our own, as `lakehouse.commits.commit_replacement` does."""
    old = [task.file for task in table.scan(row_filter=JANUARY).plan_files()]
    with QuickTransaction(table) as transaction:
        replacement = Watched(Operation.OVERWRITE, transaction, table.io)
        replacement.own_requirements = required
        with replacement as update:
            update.delete_by_predicate(JANUARY)
            for file in old:
                update.delete_data_file(file)
            for file in write_data_files(table, day_values({"2012-01-10": 2})):
                update.append_data_file(file)
        before_commit()
    return replacement


def test_pyiceberg_calls_what_a_replacement_overrides(catalog: Catalog, days: Table) -> None:
    assert replace_by(days).called == OVERRIDDEN
    assert len(OVERRIDDEN) == 6
    assert values(catalog) == [("2012-01-10", 2), ("2012-02-10", 1)]


@pytest.mark.parametrize("crowded", [False, True])
def test_pyiceberg_has_the_catalog_check_what_a_replacement_requires_at_each_try(
    catalog: Catalog, days: Table, crowded: bool
) -> None:
    """The fence of a lost lease is such a requirement. The catalog checks it in the metadata that the commit replaces."""
    other = catalog.load_table(NAME)
    meanwhile = partial(other.append, day_values({"2012-03-10": 1})) if crowded else lambda: None
    never = AssertRefSnapshotId(ref="main", snapshot_id=4711)
    with pytest.raises(CommitFailedException, match="4711"):
        replace_by(days, never, before_commit=meanwhile)
    assert ("2012-01-10", 1) in values(catalog)


def test_pyiceberg_has_the_requirement_of_a_fence_that_came_while_the_commit_was_tried_again(
    catalog: Catalog, days: Table
) -> None:
    unfenced = AssertRefSnapshotId(ref="fence-1", snapshot_id=None)

    def fence() -> None:
        other = catalog.load_table(NAME)
        other.append(day_values({"2012-03-10": 1}))
        other.manage_snapshots().create_tag(newest(catalog).snapshot_id, "fence-1").commit()

    with pytest.raises(CommitFailedException, match="fence-1"):
        replace_by(days, unfenced, before_commit=fence)
    assert values(catalog) == [("2012-01-10", 1), ("2012-02-10", 1), ("2012-03-10", 1)]


def test_pyiceberg_asks_an_append_which_manifests_it_goes_on_from(catalog: Catalog, days: Table) -> None:
    asked: list[int] = []

    class Asked(Append):
        def _existing_manifests(self) -> list[ManifestFile]:
            found = super()._existing_manifests()
            asked.append(len(found))
            return found

    with days.transaction() as transaction:
        append = Asked(Operation.APPEND, transaction, days.io)
        append.table = days
        with append as update:
            for file in write_data_files(days, day_values({"2012-03-10": 1})):
                update.append_data_file(file)
    assert asked == [1]
    assert ("2012-03-10", 1) in values(catalog)


def test_pyiceberg_replaces_the_updates_of_a_transaction_and_never_adds_to_them_in_place(days: Table) -> None:
    """By their identity `QuickTransaction` knows whether its metadata is still right."""
    transaction = QuickTransaction(days)
    before = transaction._updates
    transaction.set_properties(owner="somebody")
    assert isinstance(before, tuple)
    assert transaction._updates is not before
    assert transaction._table is days


def test_pyiceberg_keeps_the_partition_of_a_file_at_a_known_place_and_a_read_one_knows_its_spec(days: Table) -> None:
    [new] = write_data_files(days, day_values({"2012-01-05": 1}))
    assert new[3] is new.partition
    assert [task.file._spec_id for task in days.scan(row_filter=JANUARY).plan_files()] == [days.spec().spec_id]


def test_pyiceberg_tells_files_that_hold_nothing_else_from_those_that_may_hold_something(days: Table) -> None:
    files = [task.file for task in days.scan().plan_files()]
    [both] = write_data_files(days, day_values({"2012-01-05": 1, "2012-01-31": 1}))
    half = And(GreaterThanOrEqual("day", "2012-01-10"), LessThanOrEqual("day", "2012-01-31"))
    assert sorted(holds_only(days.schema(), JANUARY)(file) for file in files) == [False, True]
    assert sorted(may_hold(days.schema(), JANUARY)(file) for file in files) == [False, True]
    assert (holds_only(days.schema(), half)(both), may_hold(days.schema(), half)(both)) == (False, True)


class OnOneDisk(FileIOWithOwnDisk):
    """Opens local files with a file system that the test knows."""

    disk = PyArrowLocalFileSystem()

    def local_disk(self) -> Any:
        return self.disk


def test_pyiceberg_asks_a_file_io_for_its_local_disk(tmp_path: Path) -> None:
    assert OnOneDisk({}).fs_by_scheme("file", None) is OnOneDisk.disk


def test_pyiceberg_opens_tables_by_the_code_that_the_table_names_unless_it_is_kept_from_it(
    catalog: Catalog, days: Table
) -> None:
    kept = open_as_the_catalog_says(load_catalog("lake", **catalog.properties))
    with kept.load_table(NAME).transaction() as transaction:
        transaction.set_properties({"py-io-impl": "nowhere.NotThere"})
    with pytest.raises(ValueError, match="NotThere"):
        catalog.load_table(NAME)
    assert kept.load_table(NAME).properties["py-io-impl"] == "nowhere.NotThere"


# --- Dagster: backfill_assets/defs/{staging,checks,launch,build}.py, backfill_assets/ui/serving.py -----------------------


def test_dagster_takes_an_evaluation_for_one_partition_with_its_target() -> None:
    key = dg.AssetKey(["silver", "case_sla_daily"])
    target = AssetCheckEvaluationTargetMaterializationData(storage_id=7, run_id="a-run", timestamp=1.0)
    evaluation = dg.AssetCheckEvaluation(
        asset_key=key,
        check_name="chunk_rules",
        passed=False,
        partition="restate-2012|2012-03",
        blocking=True,
        description="3 rows break a rule",
        metadata={"rows": dg.MetadataValue.int(3)},
        target_materialization_data=target,
    )
    assert evaluation.partition == "restate-2012|2012-03"
    assert evaluation.blocking
    assert evaluation.target_materialization_data == target


def test_dagster_orders_the_dimensions_of_a_partition_by_name() -> None:
    key = dg.MultiPartitionKey({"chunk": "2012-03", "backfill": "restate-2012"})
    assert str(key) == "restate-2012|2012-03"
    months = dg.StaticPartitionsDefinition(["2012-03"])
    runs = dg.StaticPartitionsDefinition(["restate-2012"])
    both = dg.MultiPartitionsDefinition({"chunk": months, "backfill": runs})
    assert list(both.get_partition_keys()) == ["restate-2012|2012-03"]


def test_dagster_writes_months_and_days_as_chunk_keys() -> None:
    months = dg.MonthlyPartitionsDefinition(start_date="2011-12", end_date="2012-04", fmt="%Y-%m")
    assert list(months.get_partition_keys()) == ["2011-12", "2012-01", "2012-02", "2012-03"]
    days = dg.DailyPartitionsDefinition(start_date="2012-02-28", end_date="2012-03-01", fmt="%Y-%m-%d")
    assert list(days.get_partition_keys()) == ["2012-02-28", "2012-02-29"]


def test_dagster_reads_the_size_of_event_batches_when_it_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """`defs.build` sets the variable after Dagster was imported."""
    with dg.DagsterInstance.ephemeral() as instance:
        monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "0")
        assert not instance._is_batch_writing_enabled()
        monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", "500")
        assert instance._is_batch_writing_enabled()
        assert instance._get_event_batch_size() == 500


def test_dagster_names_the_tags_of_a_range_as_the_launcher_does() -> None:
    assert (ASSET_PARTITION_RANGE_START_TAG, ASSET_PARTITION_RANGE_END_TAG) == (RANGE_START, RANGE_END)


def test_dagster_finds_dynamic_partitions_of_the_instance_in_a_loading_context() -> None:
    runs = dg.DynamicPartitionsDefinition(name="backfills_of_a_table")
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("backfills_of_a_table", ["restate-2012"])
        assert instance.has_dynamic_partition("backfills_of_a_table", "restate-2012")
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            assert list(runs.get_partition_keys()) == ["restate-2012"]


def test_dagster_puts_metadata_that_was_accumulated_on_the_partition_it_is_of() -> None:
    days = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-01-03")

    @dg.asset(partitions_def=days, backfill_policy=dg.BackfillPolicy.single_run())
    def daily(context) -> None:  # a name in text is no annotation that Dagster takes
        add_asset_metadata(context, {key: {"day": key} for key in context.partition_keys})

    tags = {ASSET_PARTITION_RANGE_START_TAG: "2024-01-01", ASSET_PARTITION_RANGE_END_TAG: "2024-01-02"}
    with dg.DagsterInstance.ephemeral() as instance:
        job = dg.Definitions(assets=[daily], jobs=[dg.define_asset_job("all", [daily])]).resolve_job_def("all")
        assert job.execute_in_process(instance=instance, tags=tags).success
        records = instance.fetch_materializations(daily.key, limit=10).records
    told = {one.partition_key: one.asset_materialization.metadata["day"].value for one in records}
    assert told == {"2024-01-01": "2024-01-01", "2024-01-02": "2024-01-02"}


def test_dagster_tells_a_coordinator_whose_queue_it_is() -> None:
    coordinator = dg.QueuedRunCoordinator()
    with dg.DagsterInstance.ephemeral() as instance:
        coordinator.register_instance(instance)
        assert instance_of(coordinator) is instance


def test_dagster_keeps_runs_by_the_storage_that_it_was_given() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        storage = object()
        assert with_run_storage(copy(instance), storage).run_storage is storage
        assert instance.run_storage is not storage


def test_dagster_answers_a_request_with_the_context_that_is_made_for_it() -> None:
    """The guard's permissions are those of this context: with another one, viewers could change what they see."""
    server: Any = object.__new__(DagsterWebserver)
    answer_with_contexts(server, lambda conn: nullcontext(f"made for {conn}"))  # type: ignore[arg-type,return-value]
    with server.request_context("a request") as context:
        assert context == "made for a request"


# --- pandera: backfill_assets/worker/chunk_rules.py, backfill_assets/declarations/ -----------------------------------------


class Readings(pa.DataFrameModel):
    meter: str
    hour: pl.Int64 = pa.Field(ge=0, le=23)

    class Config:
        unique = ("meter", "hour")
        strict = True


def failures(schema: pa.DataFrameSchema, frame: pl.DataFrame) -> pl.DataFrame:
    with pytest.raises(SchemaErrors) as caught:
        schema.validate(frame, lazy=True)
    found = caught.value.failure_cases
    assert isinstance(found, pl.DataFrame)
    return found


def test_pandera_reports_failures_as_a_frame_of_known_columns() -> None:
    found = failures(Readings.to_schema(), pl.DataFrame({"meter": ["a", "b"], "hour": [1, 99]}))
    expected = {"failure_case", "schema_context", "column", "check", "check_number", "index"}
    assert set(found.columns) == expected
    [row] = found.to_dicts()
    assert (row["schema_context"], row["column"], row["index"]) == ("Column", "hour", 1)
    assert "less_than_or_equal_to(23)" in row["check"]


def test_pandera_reports_a_key_that_is_not_unique_under_a_known_name() -> None:
    found = failures(Readings.to_schema(), pl.DataFrame({"meter": ["a", "a", "b"], "hour": [1, 1, 1]}))
    assert found["check"].unique().to_list() == ["multiple_fields_uniqueness"]
    assert found["schema_context"].unique().to_list() == ["DataFrameSchema"]


def test_pandera_reports_a_check_by_its_error_text_and_a_builtin_one_never_by_its_name() -> None:
    checks = [
        pa.Check.eq(1, name="by name"),
        pa.Check.eq(1, error="by error"),
        pa.Check(lambda data: data.lazyframe.select(pl.col(data.key) == 1), name="own check"),
    ]
    schema = pa.DataFrameSchema({"hour": pa.Column(pl.Int64, checks=checks)})
    found = failures(schema, pl.DataFrame({"hour": [2]}))
    assert found.sort("check_number")["check"].to_list() == ["equal_to(1)", "by error", "own check"]


def test_pandera_validates_a_shallow_copy_of_a_schema_and_leaves_the_original() -> None:
    """The gate caches the base schema; what a run and a chunk add is in copies, and uniqueness is taken from them."""
    base = Readings.to_schema()
    changed, hour = copy(base), copy(base.columns["hour"])
    hour.checks = [*hour.checks, pa.Check.in_range(5, 6, error="in its chunk")]
    changed.columns = base.columns | {"hour": hour}
    changed.unique = None

    assert list(base.unique) == ["meter", "hour"]
    assert [one.name for one in base.columns["hour"].checks] == ["greater_than_or_equal_to", "less_than_or_equal_to"]
    twice = pl.DataFrame({"meter": ["a", "a"], "hour": [7, 7]})
    assert set(failures(changed, twice)["check"]) == {"in its chunk"}
    assert set(failures(base, twice)["check"]) == {"multiple_fields_uniqueness"}


def test_pandera_has_dispatchers_for_its_own_checks_and_the_very_function_of_others() -> None:
    named_like_one = pa.Check(lambda data: data.lazyframe.select(pl.col(data.key) == 1), name="isin")
    assert [is_built_in(check) for check in (pa.Check.isin([1]), copy(pa.Check.isin([1])), named_like_one)] == [
        True,
        True,
        False,
    ]


def test_pandera_asks_a_check_of_a_frame_by_its_function() -> None:
    whole = pa.Check(lambda data: data.lazyframe.select(pl.len() > 1))
    assert answers_of(whole, pl.LazyFrame({"hour": [1, 2]})).collect().to_series().to_list() == [True]


# --- Spark, and Polars on what it writes: resources/spark/sessions.py, backfill_assets/staging/{compute,executor}.py, -----
# --- backfill_assets/worker/chunk_gate.py -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upstream") / "home" / "warehouse"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def spark(warehouse: Path) -> SparkSession:
    """A session made as the project makes them: other test modules share its JVM, so it is left running."""
    return ModeSpark(load_settings(home=warehouse.parent)).session(Mode.BACKFILL)


def written(frame: DataFrame, folder: Path, *by: str) -> list[Path]:
    writer = frame.write.partitionBy(*by) if by else frame.write
    writer.parquet(folder.as_uri())
    return sorted(folder.rglob("*.parquet"))


def test_polars_reads_a_timestamp_that_spark_wrote_as_utc_microseconds(spark: SparkSession, warehouse: Path) -> None:
    instant = datetime(2012, 3, 25, 1, 30, 0, 123456, tzinfo=UTC)
    [file] = written(spark.createDataFrame([(instant,)], "at timestamp").coalesce(1), warehouse / "timestamps")
    frame = pl.read_parquet(file)
    assert frame.schema["at"] == pl.Datetime("us", "UTC")
    assert frame["at"].to_list() == [instant]


def test_spark_puts_each_id_in_the_partition_of_that_number(spark: SparkSession) -> None:
    frame = spark.range(40).withColumn("slot", (F.col("id") % 5).cast("int"))
    placed = frame.repartitionById(5, F.col("slot")).withColumn("partition", F.spark_partition_id())
    assert {tuple(row) for row in placed.select("slot", "partition").distinct().collect()} == {
        (slot, slot) for slot in range(5)
    }


def test_spark_sessions_of_one_jvm_have_their_own_runtime_settings(spark: SparkSession) -> None:
    other = spark.newSession()
    before = spark.conf.get("spark.sql.shuffle.partitions")
    other.conf.set("spark.sql.shuffle.partitions", "3")
    other.conf.set("spark.backfill.test", "theirs")
    assert other.conf.get("spark.sql.shuffle.partitions") == "3"
    assert spark.conf.get("spark.sql.shuffle.partitions") == before != "3"
    assert spark.conf.get("spark.backfill.test", "unset") == "unset"


def test_spark_writes_field_ids_from_metadata_that_is_attached_last(spark: SparkSession, warehouse: Path) -> None:
    value = F.lit(1).cast("bigint")
    attached = value.alias("kept", metadata={"parquet.field.id": 7})
    lost = attached.cast("bigint").alias("lost")
    frame = spark.range(1).select(attached, lost).coalesce(1)
    [file] = written(frame, warehouse / "field-ids")
    schema = pq.read_schema(file)
    assert schema.field("kept").metadata[b"PARQUET:field_id"] == b"7"
    assert b"PARQUET:field_id" not in (schema.field("lost").metadata or {})


def test_spark_reads_columns_by_field_id_whatever_they_are_called(spark: SparkSession, warehouse: Path) -> None:
    frame = spark.range(3).select(F.col("id").alias("before", metadata={"parquet.field.id": 1})).coalesce(1)
    [file] = written(frame, warehouse / "renamed")
    renamed = spark_types.StructType(
        [spark_types.StructField("after", spark_types.LongType(), metadata={"parquet.field.id": 1})]
    )
    rows = spark.read.schema(renamed).parquet(file.as_uri()).collect()
    assert sorted(row["after"] for row in rows) == [0, 1, 2]


def test_spark_keeps_the_order_of_a_partition_that_it_writes_by_folder(spark: SparkSession, warehouse: Path) -> None:
    """Chunks are clustered and sorted before; a sort by folder would be a second one, and need not keep the order."""
    assert spark.conf.get("spark.sql.maxConcurrentOutputFileWriters") == str(OPEN_FILES)
    # in one partition, by a key in which the folders take turns
    frame = (
        spark.range(80_000)
        .withColumn("chunk", F.col("id") % OPEN_FILES)
        .withColumn("key", F.sha2(F.col("id").cast("string"), 256))
        .repartition(1)
        .sortWithinPartitions("key")
    )
    files = written(frame, warehouse / "in-order", "chunk")
    assert [file.parent.name for file in files] == [f"chunk={number}" for number in range(OPEN_FILES)]
    for file in files:
        keys = pl.read_parquet(file, hive_partitioning=False)["key"]
        assert len(keys) == 10_000
        assert keys.is_sorted()


def test_spark_cuts_a_folder_into_files_by_an_option_that_goes_before_its_setting(
    spark: SparkSession, warehouse: Path
) -> None:
    """Rows are counted for each folder, whatever others are written beside it, and files follow one another in the order of the rows."""
    assert spark.conf.get("spark.sql.files.maxRecordsPerFile") == "4000000"
    frame = (
        spark.range(8_000)
        .withColumn("chunk", F.when(F.col("id") % 4 == 0, "small").otherwise("large"))
        .repartition(1)
        .sortWithinPartitions("id")
    )
    folder = warehouse / "cut"
    frame.write.partitionBy("chunk").option("maxRecordsPerFile", "2500").parquet(folder.as_uri())
    files = {chunk: sorted(folder.glob(f"chunk={chunk}/*.parquet")) for chunk in ("small", "large")}
    keys = {chunk: [pl.read_parquet(file)["id"] for file in own] for chunk, own in files.items()}
    assert [len(one) for one in keys["small"]] == [2_000]
    assert [len(one) for one in keys["large"]] == [2_500, 2_500, 1_000]
    assert pl.concat(keys["large"]).is_sorted()


def test_spark_has_the_jvm_of_a_classic_session_in_its_gateway(spark: SparkSession) -> None:
    assert gateway_of(spark).proc.poll() is None


def test_spark_says_which_classes_it_finds_and_of_which_versions_it_is(spark: SparkSession) -> None:
    assert has_class(spark, "org.apache.spark.internal.io.FileCommitProtocol")
    assert not has_class(spark, "org.apache.hadoop.fs.s3a.NoSuchFileSystem")
    hadoop, own = versions(spark)
    assert own == spark.version
    assert hadoop.startswith("3.")


@pytest.mark.parametrize("is_folder", [True, False])
def test_local_files_get_the_permissions_that_the_program_gives_them(
    spark: SparkSession, tmp_path: Path, *, is_folder: bool
) -> None:
    wanted = {local_files.OF_VIEW: local_files.BY_PROGRAMS}
    assert local_files.without_programs(spark, wanted) == {local_files.OF_VIEW: local_files.BY_CALLS}
    jvm: Any = spark._jvm
    found: dict[str, list[str]] = {}
    for name in (local_files.BY_CALLS, local_files.BY_PROGRAMS):
        system = getattr(jvm, name)()
        system.initialize(jvm.java.net.URI("file:///"), jvm.org.apache.hadoop.conf.Configuration())
        for before, wanted in product((0o755, 0o2755, 0o4755, 0o1777, 0o7777), (0o755, 0o640, 0o1777)):
            one = tmp_path / f"{name}-{before:o}-{wanted:o}"
            one.mkdir() if is_folder else one.touch()
            one.chmod(before)
            permission = jvm.org.apache.hadoop.fs.permission.FsPermission(wanted)
            system.setPermission(jvm.org.apache.hadoop.fs.Path(f"file://{one}"), permission)
            found.setdefault(name, []).append(f"{stat.S_IMODE(one.stat().st_mode):o}")
    assert found[local_files.BY_CALLS] == found[local_files.BY_PROGRAMS]


def test_a_class_that_the_jvm_does_not_take_is_said(spark: SparkSession) -> None:
    assert define_class(spark, "org.apache.hadoop.fs.Other", "class {", beside=local_files.BY_PROGRAMS)
    assert not has_class(spark, "org.apache.hadoop.fs.Other")


def test_spark_says_all_settings_of_a_classic_session_at_once(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set("spark.backfill.test", 'quoted " and = and \\ and ü and\nbroken')
    assert settings_of(session) == session.conf.getAll
    session.conf.unset("spark.backfill.test")
    assert settings_of(session) == session.conf.getAll
    assert "spark.backfill.test" not in settings_of(session)


@pytest.mark.parametrize("hidden", ['"x","spark.sql.ansi.enabled":"true"', "1", "{"])
def test_a_setting_that_was_put_past_spark_hides_no_other(spark: SparkSession, hidden: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    jvm: Any = session._jvm
    raw = jvm.com.fasterxml.jackson.databind.util.RawValue(hidden)
    session._jsparkSession.sessionState().conf().settings().put("spark.backfill.test", raw)
    assert settings_of(session)["spark.sql.ansi.enabled"] == "false"
    assert settings_of(session).keys() == session.conf.getAll.keys()


# --- what is private is used in one module a library ------------------------------------------------------------------

ROOMS = {
    "botocore": "resources.files.botocore_private",
    "dagster": "backfill_assets.defs.dagster_private",
    "pandera": "backfill_assets.declarations.pandera_private",
    "pyiceberg": "resources.lakehouse.pyiceberg_private",
    "pyspark": "resources.spark.pyspark_private",
}
"""The one module in which the private names of a library are used."""
_CORE, _ICEBERG = "dagster._core", "pyiceberg.table.update.snapshot"
_PRODUCER = "operation, transaction, io, commit_uuid, snapshot_properties, branch"
_EVALUATOR = "schema, expr, case_sensitive, include_empty_files"
_LOG = f"{_CORE}.storage.event_log.sqlite.sqlite_event_log"
SET = "set on the object"
"""Stands for the parameters of what is no function: an attribute that the library's own methods set or read."""
NAMED = "named"
"""Stands for the parameters of what is only named: a type or a constant."""
PINNED = {
    "botocore": {"botocore.auth:S3SigV4Auth._modify_request_before_signing": "self, request"},
    "dagster": {
        "dagster._daemon": NAMED,
        "dagster._cli.proxy_server_manager:ProxyServerManager": "instance, workspace_load_target, code_server_log_level",
        f"{_CORE}.definitions.asset_checks.asset_check_evaluation:AssetCheckEvaluationTargetMaterializationData": NAMED,
        f"{_CORE}.definitions.unresolved_asset_job_definition:UnresolvedAssetJobDefinition": NAMED,
        f"{_CORE}.errors:DagsterAssetCheckFailedError": NAMED,
        f"{_CORE}.execution.backfill:BulkActionStatus": NAMED,
        f"{_CORE}.execution.backfill:BulkActionsFilter": NAMED,
        f"{_CORE}.execution.backfill:PartitionBackfill": NAMED,
        f"{_CORE}.execution.context.system:StepExecutionContext._metadata_accumulator": SET,
        f"{_CORE}.instance.instance:DagsterInstance._run_storage": SET,
        f"{_CORE}.run_coordinator.base:RunCoordinator._instance": SET,
        f"{_CORE}.storage.asset_check_execution_record:AssetCheckExecutionRecordStatus": NAMED,
        f"{_CORE}.storage.compute_log_manager:CapturedLogContext": NAMED,
        f"{_CORE}.storage.event_log.schema:AssetCheckExecutionsTable": NAMED,
        f"{_CORE}.storage.event_log.schema:SqlEventLogStorageTable": NAMED,
        f"{_LOG}:INDEX_SHARD_NAME": NAMED,
        f"{_LOG}:SqliteEventLogStorage": "base_dir, inst_data",
        f"{_LOG}:SqliteEventLogStorage._connect": "self, shard",
        f"{_LOG}:SqliteEventLogStorage._event_insert_timestamp": "self, event",
        f"{_LOG}:SqliteEventLogStorage._event_to_row": "self, event",
        f"{_LOG}:SqliteEventLogStorage._store_asset_check_evaluation_planned": "self, event, event_id",
        f"{_LOG}:SqliteEventLogStorage._store_asset_event": "self, conn, event, event_id",
        f"{_LOG}:SqliteEventLogStorage._store_asset_event_tags": "self, conn, events, event_ids",
        f"{_LOG}:SqliteEventLogStorage._db_lock": SET,
        f"{_LOG}:SqliteEventLogStorage._has_asset_key_col_on_connection": "self, conn, column_name",
        f"{_LOG}:SqliteEventLogStorage._initdb": "self, engine, for_index_shard",
        f"{_LOG}:SqliteEventLogStorage._initialized_dbs": SET,
        f"{_CORE}.storage.runs:RunStorage": NAMED,
        f"{_CORE}.storage.sqlite:SQLITE_BUSY_TIMEOUT_SECONDS": NAMED,
        f"{_CORE}.storage.tags:BACKFILL_ID_TAG": NAMED,
        f"{_CORE}.storage.tags:PRIORITY_TAG": NAMED,
        f"{_CORE}.storage.tags:RUN_KEY_TAG": NAMED,
        f"{_CORE}.workspace.context:WorkspaceProcessContext": NAMED,
        f"{_CORE}.workspace.context:WorkspaceRequestContext": NAMED,
        f"{_CORE}.workspace.load_target:ModuleTarget": NAMED,
        f"{_CORE}.workspace.load_target:WorkspaceFileTarget": NAMED,
        f"{_CORE}.workspace.permissions:PermissionResult": NAMED,
        f"{_CORE}.workspace.permissions:Permissions": NAMED,
        "dagster._serdes:ConfigurableClassData": NAMED,
        "dagster_webserver.webserver:DagsterWebserver._make_request_context": "self, conn",
    },
    "pandera": {"pandera.api.function_dispatch:Dispatcher": NAMED, "pandera:Check._check_fn": SET},
    "pyiceberg": {
        "pyiceberg.catalog:Catalog._load_file_io": "self, properties, location",
        "pyiceberg.catalog.rest:RestCatalog._response_to_table": "self, identifier_tuple, table_response",
        "pyiceberg.catalog.rest:RestCatalog._session": SET,
        "pyiceberg.expressions.visitors:_InclusiveMetricsEvaluator": _EVALUATOR,
        "pyiceberg.expressions.visitors:_StrictMetricsEvaluator": _EVALUATOR,
        "pyiceberg.io.pyarrow:PyArrowFileIO._initialize_local_fs": "self",
        "pyiceberg.io.pyarrow:_dataframe_to_data_files": "table_metadata, df, io, write_uuid, counter",
        "pyiceberg.manifest:DataFile._spec_id": SET,
        "pyiceberg.manifest:ManifestWriterV2._meta": SET,
        "pyiceberg.table:Transaction._requirements": SET,
        "pyiceberg.table:Transaction._table": SET,
        "pyiceberg.table:Transaction._updates": SET,
        f"{_ICEBERG}:_FastAppendFiles": _PRODUCER,
        f"{_ICEBERG}:_FastAppendFiles._existing_manifests": "self",
        f"{_ICEBERG}:_OverwriteFiles": _PRODUCER,
        f"{_ICEBERG}:_OverwriteFiles._added_data_files": SET,
        f"{_ICEBERG}:_OverwriteFiles._build_delete_files_partition_predicate": "self",
        f"{_ICEBERG}:_OverwriteFiles._build_manifest_evaluator": "self, spec_id",
        f"{_ICEBERG}:_OverwriteFiles._commit": "self",
        f"{_ICEBERG}:_OverwriteFiles._compression": SET,
        f"{_ICEBERG}:_OverwriteFiles._deleted_data_files": SET,
        f"{_ICEBERG}:_OverwriteFiles._existing_manifests": "self",
        f"{_ICEBERG}:_OverwriteFiles._manifests": "self",
        f"{_ICEBERG}:_OverwriteFiles._operation": SET,
        f"{_ICEBERG}:_OverwriteFiles._parent_snapshot_id": SET,
        f"{_ICEBERG}:_OverwriteFiles._process_manifests": "self, manifests",
        f"{_ICEBERG}:_OverwriteFiles._snapshot_id": SET,
        f"{_ICEBERG}:_OverwriteFiles._summary": "self, snapshot_properties",
        f"{_ICEBERG}:_OverwriteFiles._transaction": SET,
    },
    "pyspark": {
        "pyspark.daemon:manager": "",
        "pyspark.sql.classic.dataframe:DataFrame._jdf": SET,
        "pyspark.sql.connect.conf:RuntimeConf._set_all": "self, configs, silent",
        "pyspark.sql.connect.dataframe:DataFrame._explain_string": "self, extended, mode",
        "pyspark.sql.connect.dataframe:DataFrame._plan": SET,
        "pyspark.sql.connect.session:SparkSession._active_session": SET,
        "pyspark.sql.connect.session:SparkSession._default_session": SET,
        "pyspark:SparkContext._gateway": SET,
        "pyspark:SparkContext._jsc": SET,
        "pyspark.sql:SparkSession._activeSession": SET,
        "pyspark.sql:SparkSession._get_j_spark_session_class": "jvm",
        "pyspark.sql:SparkSession._instantiatedSession": SET,
        "pyspark.sql:SparkSession._jsparkSession": SET,
        "pyspark.sql:SparkSession._jvm": SET,
    },
}
"""Where each private name is in its library, and the parameters that it takes there."""


@pytest.fixture(scope="module")
def uses() -> list[Use]:
    return [use for module, file in modules().items() for use in uses_in(module, file.read_text(encoding="utf-8"))]


def test_a_private_name_of_a_library_is_used_in_that_librarys_module_only(uses: list[Use]) -> None:
    assert [str(use) for use in uses if use.module not in ROOMS.values()] == []
    elsewhere = [use for use in uses if use.library != UNKNOWN and use.module != ROOMS[use.library]]
    assert [str(use) for use in elsewhere] == []


@pytest.mark.parametrize("library", sorted(ROOMS))
def test_each_private_name_that_is_used_is_pinned_and_no_other(uses: list[Use], library: str) -> None:
    used = {use.name for use in uses if use.module == ROOMS[library]}
    assert {
        where if ":" not in where else where.rpartition(":")[2].rpartition(".")[2] for where in PINNED[library]
    } == used


@pytest.mark.parametrize(
    ("where", "takes"), [pin for pins in PINNED.values() for pin in pins.items()], ids=lambda pin: str(pin)[-60:]
)
def test_a_private_name_is_where_it_was_and_takes_what_it_took(where: str, takes: str) -> None:
    module, _, path = where.partition(":")
    owner, _, name = path.rpartition(".")
    found: Any = import_module(module)
    if takes == SET:
        cls = getattr(found, owner)
        assert any(name in private_names.mentioned(base) for base in cls.__mro__ if base is not object)
        return
    for part in path.split(".") if path else ():
        found = getattr(found, part)
    if takes != NAMED:
        assert ", ".join(inspect.signature(found).parameters) == takes


def test_a_request_to_s3_is_signed_at_the_instant_that_it_is_given_before_it_is_signed() -> None:
    # `resources.files.botocore_private`: a host whose clock is wrong signs by the store's
    clock = StoreClock(timedelta(hours=5))
    bucket = Bucket(
        "tests", {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.endpoint": "http://127.0.0.1:9"}
    )
    bucket._clock = clock
    sent: list[Any] = []

    def answered(request: Any, **_: Any) -> None:
        sent.append(request)
        raise UnwholeError("it is not sent")

    bucket._opened().meta.events.register("before-send.s3", answered)
    with mock.patch.object(s3_objects, "_WAITS", ()), pytest.raises(StoreRefused):
        bucket.begins("a")
    said = datetime.strptime(sent[0].headers["X-Amz-Date"].decode(), "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    assert abs(said - datetime.now(UTC) - clock.off) < timedelta(minutes=1)
    assert f"/{said:%Y%m%d}/us-east-1/s3/" in sent[0].headers["Authorization"].decode()


def test_spark_begins_other_workers_for_another_path_to_python_also_of_a_function_that_is_used_before(
    spark: SparkSession,
) -> None:
    # `resources.spark.surroundings`: another hash seed is what a process begins with
    @F.udf("string")
    def told(_: Any) -> str:
        return f"{os.environ.get('TZ')} {datetime.now(UTC).year} {hash('a set')}"

    def asked() -> str:
        (row,) = spark.range(1).select(told("id").alias("told")).collect()
        return str(row["told"])

    before = asked()
    with computing_otherwise(spark):
        other = asked()
    assert (before.split()[0], other.split()[0]) == ("UTC", ZONE)
    assert int(other.split()[1]) > int(before.split()[1])
    assert other.split()[2] != before.split()[2]  # the hash of one text
    assert asked() == before


def test_every_text_that_spark_parses_while_somebody_listens_is_heard(spark: SparkSession) -> None:
    heard: list[str] = []
    frame = spark.range(3)
    parse = F.expr  # as a module has it that has imported the function by its name
    with hearing_sql(heard.append):
        frame.select(parse("id + 1"))
        frame.selectExpr("id + 2", "id + 3").selectExpr(["`(id + 2)` + 4"])
        frame.filter("id < 5").where("id < 6").where(F.col("id") < 7)
        spark.sql("SELECT :one + 8 AS eight", args={"one": 1})
        spark.sql("SELECT {nine} AS nine", nine="DATE 'today'")
    frame.select(parse("id + 10"))
    assert [text for text in heard if "SELECT" not in text and "DATE" not in text] == [
        "id + 1",
        "id + 2",
        "id + 3",
        "`(id + 2)` + 4",
        "id < 5",
        "id < 6",
    ]
    assert {"SELECT :one + 8 AS eight", "SELECT {nine} AS nine", "DATE 'today'"} <= set(heard)
    # and by the parser alone: no trace of the word is left in what Spark made of it
    assert "today" not in json.dumps(analysed(frame.select(F.expr("DATE 'today'").alias("day"))))


def test_an_expression_knows_the_line_that_it_was_written_in_unless_nobody_wants_it(spark: SparkSession) -> None:
    # `place` names a product's line by it; what the platform writes is spared the questions
    def said(expression: Column) -> str:
        with pytest.raises(ArithmeticException, match="DIVIDE_BY_ZERO") as error:
            spark.range(1).select(expression).collect()
        return str(error.value)

    asked: list[str] = []
    view = type(spark._jvm)
    look_up = view.__getattr__

    def told(jvm: Any, name: str) -> Any:
        asked.append(name)
        return look_up(jvm, name)

    origin = "org.apache.spark.sql.catalyst.trees.PySparkCurrentOrigin"
    with mock.patch.object(view, "__getattr__", told):
        with without_lines():
            unknown = F.lit(1) / F.col("id")
            assert origin not in asked
            with with_lines():
                known = F.lit(1) / F.col("id")
        again = F.lit(1) / F.col("id")
    assert asked.count(origin) == 4
    assert __file__ not in said(unknown)
    assert all(f"was called from\n{__file__}:" in said(one) for one in (known, again))


def test_sorts_and_shuffles_take_as_much_memory_at_once_as_is_set(spark: SparkSession) -> None:
    # of Spark's own choice, 32 MB of a heap of 2 GB, the collector runs all the time
    memory = spark._jvm.org.apache.spark.SparkEnv.get().memoryManager()  # type: ignore[union-attr]
    assert memory.pageSizeBytes() == 4000 * 1024


def test_an_analysed_plan_has_the_class_of_each_expression_and_the_name_of_its_column(spark: SparkSession) -> None:
    # `staging.unsteady` refuses some by it
    frame = spark.range(2).select(F.upper(F.uuid()).alias("u"), F.lit("Rand()")).where(F.current_date() > "2020-01-01")
    text = json.dumps(analysed(frame.sample(0.5).union(frame)))
    for name in ("Uuid", "CurrentDate"):
        assert f'"org.apache.spark.sql.catalyst.expressions.{name}"' in text
    assert '"org.apache.spark.sql.catalyst.plans.logical.Sample"' in text
    assert '"name": "u"' in text
    assert "expressions.Rand" not in text


def test_a_worker_of_spark_looks_first_whether_it_may_work_and_says_what_it_raises() -> None:
    # `refuse_work` takes the place of what `main` looks up by its name, inside of the body whose errors the driver is told
    body = inspect.getsource(pyspark_worker.main)
    assert body.index("try:") < body.index("check_python_version(infile)") < body.index("read_udfs")
    assert "handle_worker_exception(" in body


def test_a_text_that_a_server_parses_is_made_in_one_place() -> None:
    # `hearing_sql` listens there, as a client parses none
    assert list(inspect.signature(SQLExpression.__init__).parameters) == ["self", "expr"]
    assert next(iter(inspect.signature(RemoteSession.sql).parameters)) == "self"
    heard: list[str] = []
    with hearing_sql(heard.append, connected=True):
        SQLExpression("DATE 'today'")
    assert heard == ["DATE 'today'"]


def test_the_daemon_of_workers_is_pysparks() -> None:
    assert daemon_of_workers().__module__ == "pyspark.daemon"


MODULE_WITH_USES = """
import dagster._core.errors
from pandera.api.function_dispatch import Dispatcher
from pyiceberg.io.pyarrow import PyArrowFileIO, _dataframe_to_data_files

class Ours:
    def __init__(self, other):
        self._own, self._other = 1, other._theirs

    def __eq__(self, other):
        return self._own == other._own

class Theirs(PyArrowFileIO):
    _ours = 1

    def _initialize_local_fs(self):
        return self._ours and super()._initialize_local_fs()

def ask(catalog):
    class Inner(PyArrowFileIO):
        _initialize_local_fs = None

    return getattr(catalog, "_load_file_io"), catalog._replace(name="dagster._daemon")
"""


def test_uses_are_told_from_what_is_private_of_this_project() -> None:
    module = ModuleType("module_with_uses")
    exec(compile(MODULE_WITH_USES, "module_with_uses.py", "exec"), module.__dict__)
    assert [(use.library, use.name) for use in uses_in("module_with_uses", MODULE_WITH_USES, module)] == [
        ("dagster", "dagster._core.errors"),
        ("pandera", "Dispatcher"),
        ("pyiceberg", "_dataframe_to_data_files"),
        (UNKNOWN, "_theirs"),
        ("pyiceberg", "_initialize_local_fs"),
        ("pyiceberg", "_initialize_local_fs"),
        ("pyiceberg", "_initialize_local_fs"),
        (UNKNOWN, "_load_file_io"),
        ("dagster", "dagster._daemon"),
    ]


# --- types of columns ---------------------------------------------------------------------------------------------------


def test_pyiceberg_loses_the_null_of_a_list_and_a_map_of_structs_and_ours_does_not(catalog: Catalog) -> None:
    one, other = (StructType(NestedField(number, "a", LongType(), required=False)) for number in (8, 9))
    catalog.create_namespace("silver")
    table = catalog.create_table(
        "silver.nested",
        Schema(
            NestedField(1, "number", LongType(), required=False),
            NestedField(2, "lists", ListType(3, one, element_required=False), required=False),
            NestedField(4, "maps", MapType(5, StringType(), 6, other, value_required=False), required=False),
        ),
    )
    rows = [
        {"number": 1, "lists": [{"a": 1}, None], "maps": [("x", {"a": 1})]},
        {"number": 2, "lists": None, "maps": None},
        {"number": 3, "lists": [], "maps": []},
    ]
    table.append(pyarrow.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema())))
    assert table.scan().to_arrow().to_pylist() == rows
    for name in ("list", "map"):  # where one of these keeps it, `keep_nested_nulls` can go
        own = getattr(ArrowProjectionVisitor, name).without_nulls
        with mock.patch.object(ArrowProjectionVisitor, name, own):
            assert table.scan().to_arrow().to_pylist()[1][f"{name}s"] == []


def test_pyiceberg_dates_all_metadata_by_the_clock_that_it_is_given(catalog: Catalog) -> None:
    """That of a table made, of a snapshot and of the log of `main`, and of a change without a snapshot."""
    at = datetime(2020, 1, 1, tzinfo=UTC)
    dated = dated_by(catalog, lambda: at)
    dated.create_namespace("test")
    table = dated.create_table("test.dated", SCHEMA)
    assert table.metadata.last_updated_ms == millis(at)
    for hours in (1, 2):
        at = datetime(2020, 1, 1, hours, tzinfo=UTC)
        table.append(pyarrow.table({"day": pyarrow.array([date(2012, 1, 1)]), "value": pyarrow.array([1])}))
        assert table.current_snapshot().timestamp_ms == table.metadata.last_updated_ms == millis(at)
    at = datetime(2020, 1, 1, 3, tzinfo=UTC)
    with table.transaction() as transaction:
        transaction.set_properties({"a": "b"})
    assert table.metadata.last_updated_ms == millis(at)
    at = datetime(2020, 1, 1, 4, tzinfo=UTC)
    table.manage_snapshots().rollback_to_snapshot(table.snapshots()[0].snapshot_id).commit()
    assert [one.timestamp_ms for one in table.metadata.snapshot_log][-1] == table.metadata.last_updated_ms == millis(at)
    before, at = table.metadata.last_updated_ms, datetime(2019, 1, 1, tzinfo=UTC)  # whoever was ahead has written it
    table.append(pyarrow.table({"day": pyarrow.array([date(2012, 1, 1)]), "value": pyarrow.array([1])}))
    assert table.current_snapshot().timestamp_ms == before + 1
    own = load_catalog("lake", **catalog.properties).create_table("test.own", SCHEMA)
    assert abs(own.metadata.last_updated_ms - millis(datetime.now(UTC))) < 60_000


def millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def test_spark_gives_no_field_id_to_what_is_inside_a_list_or_a_map(spark: SparkSession, warehouse: Path) -> None:
    tags = spark_types.ArrayType(spark_types.StringType())
    field = spark_types.StructField("tags", tags, metadata={"parquet.field.id": 1})
    rows = spark.createDataFrame([(["x"],)], spark_types.StructType([field]))
    found = pq.read_schema(written(rows, warehouse / "tags")[0]).field("tags")
    assert found.metadata == {b"PARQUET:field_id": b"1"}
    assert found.type.value_field.metadata is None


def test_polars_keeps_the_last_entry_of_a_key_that_a_map_in_a_file_has_twice(tmp_path: Path) -> None:
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    table = pyarrow.table({"m": pyarrow.array([[("a", 1), ("a", 2)]], kind)})
    pq.write_table(table, tmp_path / "m.parquet")
    entries = pl.List(pl.Struct({"key": pl.String, "value": pl.Int64}))
    of_file = pl.read_parquet(tmp_path / "m.parquet")["m"].cast(entries).to_list()
    of_arrow = pl.DataFrame(pl.from_arrow(table))["m"].cast(entries).to_list()
    assert (len(of_file[0]), len(of_arrow[0])) == (1, 2)
