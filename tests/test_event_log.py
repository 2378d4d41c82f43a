"""The event log of the embedded default stores what Dagster's own stores, and a batch of events whole or not at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import sqlalchemy as sa
from dagster._core.events import DagsterEvent
from dagster._core.events.log import EventLogEntry
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage

from backfill_assets.defs.event_storage import PooledSqliteEventLog, stored_together
from backfill_assets.defs.launch import initialise_instance, instance_at
from resources.settings import load_settings

DAYS = dg.DailyPartitionsDefinition("2024-01-01", end_date="2024-02-01")
RANGE = {"dagster/asset_partition_range_start": "2024-01-01", "dagster/asset_partition_range_end": "2024-01-31"}


@dg.asset(partitions_def=DAYS, backfill_policy=dg.BackfillPolicy.single_run())
def daily(context: dg.AssetExecutionContext) -> None:
    for key in context.partition_keys:
        context.add_asset_metadata({"day": key}, partition_key=key)


@dg.asset_check(asset=daily, blocking=True)
def is_fine() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True, metadata={"rows": 7})


@dg.asset_check(asset=daily, partitions_def=DAYS)
def is_fine_by_day() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=True)


JOB = dg.Definitions(assets=[daily], asset_checks=[is_fine, is_fine_by_day], jobs=[dg.define_asset_job("all", [daily])])


def run(instance: dg.DagsterInstance) -> str:
    result = JOB.resolve_job_def("all").execute_in_process(instance=instance, tags=RANGE)
    assert result.success
    return result.run_id


def seen(instance: dg.DagsterInstance, run_id: str) -> dict[str, Any]:
    """What people see of a run, without what differs from run to run."""
    records = instance.fetch_materializations(daily.key, limit=100).records
    checks = instance.event_log_storage.get_asset_check_execution_history(is_fine.check_key, limit=50)
    by_day = instance.event_log_storage.get_asset_check_execution_history(is_fine_by_day.check_key, limit=50)
    (asset,) = instance.get_asset_records([daily.key])
    last = asset.asset_entry.last_materialization_record
    assert last is not None
    planned = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    return {
        "events": [entry.dagster_event_type for entry in instance.all_logs(run_id)],
        "materialised": sorted(instance.get_materialized_partitions(daily.key)),
        "metadata": sorted(str(record.asset_materialization.metadata["day"].value) for record in records),
        "last": (last.partition_key, asset.asset_entry.last_run_id == run_id),
        "numbers": [one.storage_id for one in records],
        "planned": [one.event_log_entry.get_dagster_event().partition for one in planned.records],
        "by_partition": sorted((str(check.partition), check.status.value) for check in by_day),
        "checks": [(check.status, check.event.dagster_event.event_type) for check in checks],
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    settings = load_settings(home=tmp_path / 'it\'s a "home"')  # a path that YAML would trip over
    initialise_instance(settings)
    return settings.dagster_home


@pytest.fixture
def instance(home: Path) -> Iterator[dg.DagsterInstance]:
    with instance_at(load_settings(home=home.parent)) as instance:
        yield instance


def test_an_installation_uses_it_below_its_home(instance: dg.DagsterInstance, home: Path) -> None:
    run_id = run(instance)
    assert isinstance(instance.event_log_storage, PooledSqliteEventLog)
    assert (home / "history" / "runs" / f"{run_id}.db").is_file()


@pytest.mark.parametrize("batch", ["0", "500"])
def test_what_it_stores_is_what_dagster_stores(
    instance: dg.DagsterInstance, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: str
) -> None:
    monkeypatch.setenv("DAGSTER_EVENT_BATCH_SIZE", batch)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    ours = run(instance)
    with dg.DagsterInstance.from_config(str(tmp_path / "plain")) as plain:
        theirs = run(plain)
        assert seen(instance, ours) == seen(plain, theirs)
    assert len(seen(instance, ours)["materialised"]) == 31
    # and Dagster's own class reads the same files
    own = SqliteEventLogStorage(str(home / "history" / "runs"))
    assert len(own.get_logs_for_run(ours)) == len(instance.all_logs(ours))
    assert own.get_materialized_partitions(daily.key) == instance.get_materialized_partitions(daily.key)


def test_a_batch_that_fails_leaves_nothing_of_itself(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = instance.event_log_storage
    assert isinstance(log, PooledSqliteEventLog)
    run_id = run(instance)
    before = seen(instance, run_id)
    entries = [entry for entry in instance.all_logs(run_id) if is_materialisation(entry)]
    tried: list[int] = []

    def fails_at_its_tags(_: PooledSqliteEventLog, __: sa.Connection, events: Any, numbers: list[int]) -> None:
        tried.extend(numbers)
        assert len(seen(instance, run_id)["metadata"]) == len(before["metadata"]) + len(events)
        raise OSError("the disk is full")

    monkeypatch.setattr(PooledSqliteEventLog, "_store_asset_event_tags", fails_at_its_tags)
    with pytest.raises(OSError, match="disk is full"):
        log.store_event_batch(entries)
    monkeypatch.undo()
    assert len(set(tried)) == len(entries)
    assert seen(instance, run_id) == before
    log.store_event_batch(entries[:3])  # and it still works
    assert len(seen(instance, run_id)["metadata"]) == len(before["metadata"]) + 3


def test_what_is_stored_together_is_stored_whole_or_not_at_all(instance: dg.DagsterInstance) -> None:
    run_id = run(instance)
    before = seen(instance, run_id)
    entries = [entry for entry in instance.all_logs(run_id) if is_materialisation(entry)]

    def fail_after_one() -> None:
        with stored_together(instance, run_id):
            instance.event_log_storage.store_event(entries[0])
            # seen by the thread that stores
            assert len(seen(instance, run_id)["metadata"]) == len(before["metadata"]) + 1
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        fail_after_one()
    assert seen(instance, run_id) == before
    with stored_together(instance, run_id):
        for entry in entries[:3]:
            instance.event_log_storage.store_event(entry)
    assert len(seen(instance, run_id)["metadata"]) == len(before["metadata"]) + 3


def test_a_column_of_the_index_is_looked_for_once(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = instance.event_log_storage
    assert isinstance(log, PooledSqliteEventLog)
    looked: list[str] = []
    look = SqlEventLogStorage._has_asset_key_col_on_connection

    def count(self: SqlEventLogStorage, conn: sa.Connection, column_name: str) -> bool:
        looked.append(column_name)
        return look(self, conn, column_name)

    monkeypatch.setattr(SqlEventLogStorage, "_has_asset_key_col_on_connection", count)
    log._asset_columns.clear()
    run(instance)
    assert "last_materialization_timestamp" in looked  # by Dagster, for each of many events of assets
    assert len(looked) == len(set(looked))
    assert [log.has_asset_key_col("no_such") for _ in range(2)] == [False, False]
    assert looked[-2:] == ["no_such"] * 2


def is_materialisation(entry: EventLogEntry) -> bool:
    event: DagsterEvent | None = entry.dagster_event
    return event is not None and event.is_step_materialization
