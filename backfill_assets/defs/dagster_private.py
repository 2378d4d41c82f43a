"""Everything private of Dagster that this project uses, behind names of its own; `tests/test_upstream.py` pins each.

Put here what `dagster` itself does not export: types that its public functions return and take, and what is done by a private
method or attribute. No other module names any of it, and a test looks that none does: an upgrade of Dagster is judged by this
file. Every process that opens an instance loads this module (`backfill_assets.event_log`): import nothing here that
`import dagster` has not loaded already, except where it is needed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import dagster as dg
import sqlalchemy as sa
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationTargetMaterializationData
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.errors import DagsterAssetCheckFailedError
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus, PartitionBackfill
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.compute_log_manager import CapturedLogContext
from dagster._core.storage.event_log.schema import AssetCheckExecutionsTable, SqlEventLogStorageTable
from dagster._core.storage.event_log.sqlite.sqlite_event_log import INDEX_SHARD_NAME, SqliteEventLogStorage
from dagster._core.storage.runs import RunStorage
from dagster._core.storage.sqlite import SQLITE_BUSY_TIMEOUT_SECONDS
from dagster._core.storage.tags import BACKFILL_ID_TAG, PRIORITY_TAG, RUN_KEY_TAG
from dagster._core.workspace.context import WorkspaceProcessContext, WorkspaceRequestContext
from dagster._core.workspace.load_target import ModuleTarget, WorkspaceFileTarget
from dagster._core.workspace.permissions import PermissionResult, Permissions
from dagster._serdes import ConfigurableClassData

if TYPE_CHECKING:
    import threading

    from dagster._cli.proxy_server_manager import ProxyServerManager
    from dagster_webserver.webserver import DagsterWebserver
    from starlette.requests import HTTPConnection

__all__ = [
    "BACKFILL_ID_TAG",
    "DAEMON_MODULE",
    "INDEX_SHARD_NAME",
    "PRIORITY_TAG",
    "RUN_KEY_TAG",
    "SQLITE_BUSY_TIMEOUT_SECONDS",
    "AssetCheckEvaluationTargetMaterializationData",
    "BulkActionStatus",
    "BulkActionsFilter",
    "CapturedLogContext",
    "ConfigurableClassData",
    "DagsterAssetCheckFailedError",
    "ModuleTarget",
    "PartitionBackfill",
    "PermissionResult",
    "Permissions",
    "RunStorage",
    "SqliteEventLog",
    "UnresolvedAssetJobDefinition",
    "WorkspaceFileTarget",
    "WorkspaceProcessContext",
    "WorkspaceRequestContext",
    "add_asset_metadata",
    "answer_with_contexts",
    "code_servers",
    "instance_of",
    "with_run_storage",
]


# --- runs -------------------------------------------------------------------------------------------------------------


def add_asset_metadata(context: dg.AssetExecutionContext, metadata: Mapping[str, Mapping[str, Any]]) -> None:
    """Add metadata to the materialisation of each partition of a run.

    As `context.add_asset_metadata`, which for each lists all partitions of the run again, and copies what all others have:
    0.8 s for 162 of them, and the square of that ratio for more.
    """
    step = context.get_step_execution_context()
    before = step._metadata_accumulator  # noqa: SLF001
    told = dict(before.per_output_metadata)
    for partition, own in metadata.items():
        alone = before.empty().with_additional_asset_metadata(
            asset_key=context.asset_key, metadata=own, partition_key=partition
        )
        told |= {of: {**told.get(of, {}), **more} for of, more in alone.per_output_metadata.items()}
    step._metadata_accumulator = type(before)(per_output_metadata=told)  # noqa: SLF001


def instance_of(coordinator: dg.QueuedRunCoordinator) -> dg.DagsterInstance:
    """Return the instance whose queue a coordinator is."""
    return coordinator._instance  # noqa: SLF001


# --- the event log ----------------------------------------------------------------------------------------------------


class SqliteEventLog(SqliteEventLogStorage):
    """Dagster's SQLite event log, whose connections a subclass may make otherwise.

    A shard is one database: that of a run, by the run's id, or the index of all (`INDEX_SHARD_NAME`).
    """

    _empty: bytes | None = None
    """A database of a run without events, as Dagster makes it."""

    @property
    def lock(self) -> threading.Lock:
        """What keeps threads of this process from using a database at once; not reentrant."""
        return self._db_lock

    def is_ready(self, shard: str) -> bool:
        """Whether this process has seen to it that a database has its tables."""
        return shard in self._initialized_dbs

    def make_ready(self, shard: str, engine: sa.Engine) -> None:
        """Have a database that is new have the tables that Dagster makes; one that is there has Dagster look at it."""
        if shard == INDEX_SHARD_NAME or not self._copied(Path(self.path_for_shard(shard))):
            self._initdb(engine)
        self._initialized_dbs.add(shard)

    def _copied(self, database: Path) -> bool:
        """Put a database without events where none is, and say whether that was so: to make its tables anew takes a tenth of a second.

        It is one that Dagster has made, once in this process, and is there at once or not at all: others may be at it as well.
        """
        if database.exists():
            return False
        if self._empty is None:
            self._empty = self._made_empty()
        with tempfile.TemporaryDirectory(dir=database.parent) as folder:
            copy = Path(folder, database.name)
            with copy.open("wb") as file:
                file.write(self._empty)
                os.fsync(file.fileno())
            try:
                os.link(copy, database)  # unless somebody was faster
            except OSError:
                return False
        return True

    def _made_empty(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "empty.db")
            engine = sa.create_engine(f"sqlite:///{file}", poolclass=sa.NullPool)
            self._initdb(engine)
            engine.dispose()
            return file.read_bytes()

    def connection_to(self, shard: str) -> AbstractContextManager[sa.Connection]:
        """Return in what to use a connection to a database, in a transaction of its own; Dagster opens and closes it."""
        return super()._connect(shard)

    def has_asset_column(self, connection: sa.Connection, column: str) -> bool:
        """Return whether the index has a column for assets; Dagster asks at every event of an asset."""
        return super()._has_asset_key_col_on_connection(connection, column)

    def store_asset_events(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events of assets, all of one kind and of one run, as Dagster stores them in PostgreSQL: a statement for all of them.

        What the index says of an asset is what its last event says.
        """
        rows = [self._event_to_row(event) for event in events]
        with self.run_connection(events[0].run_id) as connection:
            connection.execute(SqlEventLogStorageTable.insert(), rows)
        with self.index_connection() as connection:
            numbers = self._inserted(connection, rows)
            self._store_asset_event_tags(connection, events, list(numbers))
            last = {event.get_dagster_event().asset_key: at for at, event in enumerate(events)}
            for at in sorted(last.values()):
                self._store_asset_event(connection, events[at], numbers[at])

    def store_check_evaluations(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store evaluations of one check in one run, each of a partition: a statement for all, where Dagster has four for each."""
        found = [cast("Any", event.get_dagster_event().event_specific_data) for event in events]
        rows = [self._event_to_row(event) for event in events]
        of_checks = AssetCheckExecutionsTable.c
        alike = {
            "asset_key": found[0].asset_key.to_string(),
            "check_name": found[0].check_name,
            "run_id": events[0].run_id,
        }
        mine = [of_checks[name] == value for name, value in alike.items()]
        with self.run_connection(events[0].run_id) as connection:
            connection.execute(SqlEventLogStorageTable.insert(), rows)
        with self.index_connection() as connection:
            numbers = self._inserted(connection, rows)
            planned = set(connection.execute(sa.select(of_checks.partition).where(*mine)).scalars())
            values = [
                {
                    "of_partition": one.partition,
                    "execution_status": self._status_of(one),
                    "evaluation_event": row["event"],
                    "evaluation_event_timestamp": row["timestamp"],
                    "evaluation_event_storage_id": number,
                    "materialization_event_storage_id": target.storage_id if target else None,
                }
                for one, row, number in zip(found, rows, numbers, strict=True)
                for target in [one.target_materialization_data]
            ]
            if known := [one for one in values if one["of_partition"] in planned]:
                of_one = AssetCheckExecutionsTable.update().where(
                    *mine, of_checks.partition == sa.bindparam("of_partition")
                )
                connection.execute(of_one, known)
            if others := [one for one in values if one["of_partition"] not in planned]:
                last = {
                    one.pop("of_partition"): one for one in others
                }  # as if each took the place of the one before it
                new = [alike | one | {"partition": partition} for partition, one in last.items()]
                connection.execute(AssetCheckExecutionsTable.insert(), new)

    @staticmethod
    def _inserted(connection: sa.Connection, rows: Sequence[Mapping[str, Any]]) -> range:
        """Insert events, and return their numbers, in order.

        Asked for them, SQLAlchemy inserts one row after the other. From its first row on, nobody else writes until the transaction
        ends, and SQLite numbers each row by one more than the largest.
        """
        connection.execute(SqlEventLogStorageTable.insert(), rows)
        last = int(connection.execute(sa.select(sa.func.max(SqlEventLogStorageTable.c.id))).scalar_one())
        return range(last - len(rows) + 1, last + 1)

    @staticmethod
    def _status_of(evaluation: Any) -> str:
        status = AssetCheckExecutionRecordStatus
        return str((status.SUCCEEDED if evaluation.passed else status.FAILED).value)

    def _store_asset_check_evaluation_planned(self, event: dg.EventLogEntry, event_id: int | None) -> None:
        """Say that a check is planned, of each partition; Dagster writes of each an event that names all of them.

        Here it names none: the row has its own. The evaluation takes its place, and the log of the run has the event as it was.
        """
        about = event.get_dagster_event()
        planned = cast("Any", about.event_specific_data)
        bare = type(planned)(asset_key=planned.asset_key, check_name=planned.check_name)
        text = dg.serialize_value(event._replace(dagster_event=about._replace(event_specific_data=bare)))
        of_all = {
            "asset_key": planned.asset_key.to_string(),
            "check_name": planned.check_name,
            "run_id": event.run_id,
            "execution_status": AssetCheckExecutionRecordStatus.PLANNED.value,
            "evaluation_event": text,
            "evaluation_event_timestamp": self._event_insert_timestamp(event),  # type: ignore[no-untyped-call]
            "evaluation_event_storage_id": event_id,
        }
        partitions = planned.partitions_subset.get_partition_keys() if planned.partitions_subset else [None]
        with self.index_connection() as connection:
            connection.execute(AssetCheckExecutionsTable.insert(), [of_all | {"partition": one} for one in partitions])

    @contextmanager
    def _connect(self, shard: str) -> Iterator[sa.Connection]:
        with self.connection_to(shard) as connection:
            yield connection

    def _has_asset_key_col_on_connection(self, conn: sa.Connection, column_name: str) -> bool:
        return self.has_asset_column(conn, column_name)


# --- the webserver ----------------------------------------------------------------------------------------------------

DAEMON_MODULE = "dagster._daemon"
"""The module that runs as Dagster's daemon."""


def code_servers(instance: dg.DagsterInstance, target: ModuleTarget) -> ProxyServerManager:
    """Return what keeps a server of a module's definitions running while it is entered; it starts another one for one that ends."""
    from dagster._cli.proxy_server_manager import ProxyServerManager  # noqa: PLC0415 - only who serves needs it

    return ProxyServerManager(instance, target, code_server_log_level="WARNING")


def with_run_storage(instance: dg.DagsterInstance, storage: Any) -> dg.DagsterInstance:
    """Have an instance keep its runs by what acts as a storage of runs, and return it."""
    instance._run_storage = cast("RunStorage", storage)  # noqa: SLF001 - there is no other way in
    return instance


def answer_with_contexts(
    server: DagsterWebserver[Any, Any], context_of: Callable[[HTTPConnection], WorkspaceRequestContext]
) -> None:
    """Have a webserver answer each request with the context that is made for it here, and not with its own."""
    server._make_request_context = context_of  # type: ignore[method-assign,assignment]  # noqa: SLF001
