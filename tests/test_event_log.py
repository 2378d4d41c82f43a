"""The event log of the embedded default stores what Dagster's own stores, and a batch of events whole or not at all."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
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


# --- evaluations of checks --------------------------------------------------------------------------------------------

EACH_DAY = dg.AssetCheckKey(daily.key, "each_day")


@dg.multi_asset_check(specs=[dg.AssetCheckSpec("each_day", asset=daily.key, partitions_def=DAYS)], name="days")
def each_day(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
    op = context.op_execution_context
    with stored_together(op.instance, op.run_id):
        for key in op.partition_keys:
            yield dg.AssetCheckEvaluation(
                asset_key=daily.key,
                check_name="each_day",
                passed=key != "2024-01-07",
                partition=key,
                metadata={"day": key},
                severity=dg.AssetCheckSeverity.WARN,
            )
    yield dg.Output(None, output_name=op.op_def.output_defs[0].name)


def evaluated(instance: dg.DagsterInstance) -> str:
    jobs = [dg.define_asset_job("all", dg.AssetSelection.assets(daily))]
    job = dg.Definitions(assets=[daily], asset_checks=[each_day], jobs=jobs).resolve_job_def("all")
    result = job.execute_in_process(instance=instance, tags=RANGE)
    assert result.success
    return result.run_id


def evaluations(instance: dg.DagsterInstance, run_id: str) -> dict[str, Any]:
    """What people see of the check of each day, newest first, and of the run's log, without what differs from run to run."""
    history = instance.event_log_storage.get_asset_check_execution_history(EACH_DAY, limit=100)
    facts = []
    for one in history:
        assert one.event is not None
        told = one.event.get_dagster_event().event_specific_data
        said = told.metadata["day"].value if hasattr(told, "metadata") else ""
        facts.append((one.partition, one.status.value, said, one.id))
        assert one.event.run_id == one.run_id == run_id
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key([EACH_DAY])[EACH_DAY]
    return {
        "history": facts,
        "latest": (latest.partition, latest.status.value),
        "events": [entry.dagster_event_type for entry in instance.all_logs(run_id)],
        "days": [
            entry.get_dagster_event().event_specific_data.partition
            for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
        ],
    }


def rows_of_checks(log: SqliteEventLogStorage) -> list[tuple[Any, ...]]:
    columns = "partition, run_id, execution_status, evaluation_event_storage_id, materialization_event_storage_id"
    query = f"SELECT {columns}, evaluation_event FROM asset_check_executions ORDER BY id"
    with log.index_connection() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def test_evaluations_that_are_stored_together_are_what_dagster_stores(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    ours = evaluated(instance)
    with dg.DagsterInstance.from_config(str(tmp_path / "plain")) as plain:
        theirs = evaluated(plain)
        assert evaluations(instance, ours) == evaluations(plain, theirs)
        own, log = plain.event_log_storage, instance.event_log_storage
        assert isinstance(own, SqliteEventLogStorage)
        assert isinstance(log, SqliteEventLogStorage)
        same = slice(2, 5)  # but for the ids of the runs, and what is in the texts
        assert [row[same] for row in rows_of_checks(log)] == [row[same] for row in rows_of_checks(own)]
    assert [row[2] for row in rows_of_checks(log)].count("FAILED") == 1


def test_evaluations_that_nobody_has_planned_are_stored_as_dagster_stores_them(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    run_id = evaluated(instance)
    entries = [
        entry._replace(run_id="of-nobody")
        for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    ]
    log, own = instance.event_log_storage, SqliteEventLogStorage(str(tmp_path / "plain"))
    assert isinstance(log, PooledSqliteEventLog)
    with log.together("of-nobody"):
        for entry in entries:
            log.store_event(entry)
    for entry in entries:
        own.store_event(entry)

    mine = [row[:3] + row[4:] for row in rows_of_checks(log) if row[1] == "of-nobody"]
    assert mine == [row[:3] + row[4:] for row in rows_of_checks(own)]
    assert len(mine) == 31


def test_a_batch_keeps_the_order_of_its_events_and_the_last_of_two_evaluations(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    run_id = evaluated(instance)
    of_checks = list(instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION))
    entries = [*of_checks, *filter(is_materialisation, instance.all_logs(run_id))]
    about = of_checks[0].get_dagster_event()
    partition = about.event_specific_data.partition  # type: ignore[union-attr]
    other = dg.AssetCheckEvaluation(asset_key=daily.key, check_name="each_day", passed=False, partition=partition)
    entries.append(of_checks[0]._replace(dagster_event=about._replace(event_specific_data=other)))
    batch = [entry._replace(run_id="of-nobody") for entry in entries]
    log, own = instance.event_log_storage, SqliteEventLogStorage(str(tmp_path / "plain"))
    log.store_event_batch(batch[:-1])
    log.store_event_batch(batch[-1:])
    log.store_event_batch([one._replace(run_id="of-nobody-else") for one in (batch[0], batch[-1])])
    for entry in batch:
        own.store_event(entry)
    assert [one.dagster_event_type for one in log.get_logs_for_run("of-nobody")] == [
        one.dagster_event_type for one in own.get_logs_for_run("of-nobody")
    ]
    assert isinstance(log, PooledSqliteEventLog)
    (again,) = (row for row in rows_of_checks(log) if row[1] == "of-nobody-else")
    assert again[2] == "FAILED"


def test_evaluations_of_a_body_that_fails_are_not_stored(instance: dg.DagsterInstance) -> None:
    run_id = evaluated(instance)
    entries = list(instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION))
    before = evaluations(instance, run_id)

    def fail() -> None:
        with stored_together(instance, run_id):
            for entry in entries:
                instance.event_log_storage.store_event(entry)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk is full"):
        fail()
    with stored_together(instance, run_id):
        pass  # nothing of it is left to be stored
    assert evaluations(instance, run_id) == before


def test_what_is_asked_to_store_evaluations_does_not_grow_with_them(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = instance.event_log_storage
    assert isinstance(log, PooledSqliteEventLog)
    entries = list(instance.all_logs(evaluated(instance), of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION))
    asked: list[str] = []
    monkeypatch.setattr(log, "connection_to", _listening(log.connection_to, asked))

    numbers = []
    for some in (entries[:2], entries):
        asked.clear()
        with log.together(entries[0].run_id):
            for entry in some:
                log.store_event(entry)
        numbers.append(len(asked))
    assert numbers[0] == numbers[1] > 0


def _listening(connect: Any, asked: list[str]) -> Any:
    @contextmanager
    def listening(shard: str) -> Iterator[sa.Connection]:
        def listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            asked.append(statement)

        with connect(shard) as connection:
            sa.event.listen(connection, "before_cursor_execute", listen)
            try:
                yield connection
            finally:
                sa.event.remove(connection, "before_cursor_execute", listen)

    return listening


def test_a_planned_check_takes_no_more_for_each_partition_the_more_there_are(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dagster writes the names of all partitions into the row of each."""
    texts: list[str] = []
    log = instance.event_log_storage
    assert isinstance(log, PooledSqliteEventLog)
    store = PooledSqliteEventLog.store_check_evaluations

    def look(self: PooledSqliteEventLog, events: Any) -> None:
        with self.index_connection() as connection:
            texts.extend(connection.execute(sa.text("SELECT evaluation_event FROM asset_check_executions")).scalars())
        store(self, events)

    monkeypatch.setattr(PooledSqliteEventLog, "store_check_evaluations", look)
    run_id = evaluated(instance)

    planned = [dg.deserialize_value(text, EventLogEntry).get_dagster_event() for text in texts]
    assert [one.event_specific_data.check_name for one in planned] == ["each_day"] * 31
    assert not any(one.event_specific_data.partitions_subset for one in planned)
    (logged,) = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED)
    told: Any = logged.get_dagster_event().event_specific_data
    assert len(told.partitions_subset.get_partition_keys()) == 31


# --- databases of runs ------------------------------------------------------------------------------------------------


def _described(file: Path) -> tuple[list[Any], ...]:
    """What a database has: its tables and indexes, the version of both, and how it is written."""
    asked = ("SELECT type, name, sql FROM sqlite_master ORDER BY 1, 2", "SELECT * FROM alembic_version")
    with closing(sqlite3.connect(file)) as connection:
        return tuple(list(connection.execute(one)) for one in (*asked, "PRAGMA journal_mode", "PRAGMA page_size"))


def test_the_database_of_a_run_is_one_that_dagster_has_made_once(
    instance: dg.DagsterInstance, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[sa.Engine] = []
    make = SqliteEventLogStorage._initdb

    def count(self: SqliteEventLogStorage, engine: sa.Engine, for_index_shard: bool = False) -> None:
        made.append(engine)
        make(self, engine, for_index_shard)

    monkeypatch.setattr(SqliteEventLogStorage, "_initdb", count)
    ours = [run(instance) for _ in range(3)]
    assert len(made) == 2  # the index, and the first one

    theirs = SqliteEventLogStorage(str(tmp_path / "plain"))
    with theirs.run_connection("a-run"):
        pass
    as_dagster_has_it = _described(tmp_path / "plain" / "a-run.db")
    runs = home / "history" / "runs"
    assert all(_described(runs / f"{run_id}.db") == as_dagster_has_it for run_id in ours)
    assert not [one for one in runs.iterdir() if one.is_dir()]


def test_a_database_that_somebody_else_has_made_meanwhile_is_left_to_dagster(
    instance: dg.DagsterInstance, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = instance.event_log_storage
    assert isinstance(log, PooledSqliteEventLog)
    own = SqliteEventLogStorage(str(home / "history" / "runs"))
    link = os.link

    def overtaken(source: Path, place: Path) -> None:
        with own.run_connection("a-run"):
            pass
        link(source, place)

    monkeypatch.setattr(os, "link", overtaken)
    entry = next(iter(instance.all_logs(run_id := run(instance))))
    log.store_event(entry._replace(run_id="a-run"))
    assert len(instance.all_logs("a-run")) == 1
    assert instance.all_logs(run_id)
