"""Dagster's SQLite event log, with one open connection for its index and one transaction for a batch of events.

Dagster opens, commits and closes a database (and makes an engine for it) for every event, two or three times for one of an
asset: a run over 162 chunks spends more time on that than on its gates. Events of assets, one a chunk, are stored by one
statement, as Dagster does it in PostgreSQL, and so are the evaluations of a check. What is stored, and where, is Dagster's. The
database of a run is still opened and closed for each event outside a batch: the UI follows a run by watching that file.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from threading import get_ident
from typing import Any

import dagster as dg
import sqlalchemy as sa

from backfill_assets.defs.dagster_private import (
    INDEX_SHARD_NAME,
    SQLITE_BUSY_TIMEOUT_SECONDS,
    ConfigurableClassData,
    SqliteEventLog,
)

_KINDS = dg.DagsterEventType
_OF_ASSETS = frozenset({_KINDS.ASSET_MATERIALIZATION, _KINDS.ASSET_MATERIALIZATION_PLANNED, _KINDS.ASSET_OBSERVATION})
"""Events that come one a partition."""
_AT_ONCE = 500
"""Evaluations that are kept until they are stored by one statement."""


class PooledSqliteEventLog(SqliteEventLog):
    """The event log of the embedded default; `home` is DAGSTER_HOME."""

    def __init__(self, home: str, inst_data: ConfigurableClassData | None = None) -> None:
        self._index_engine: sa.Engine | None = None
        self._batch: dict[str, sa.Connection] | None = None
        self._batch_thread = 0
        self._evaluations: list[dg.EventLogEntry] = []
        self._tables: set[str] = set()
        self._asset_columns: set[str] = set()
        super().__init__(str(Path(home, "history", "runs")), inst_data)

    @classmethod
    def config_type(cls) -> dict[str, Any]:
        """Return what `dagster.yaml` says of it."""
        return {"home": dg.StringSource}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Any) -> "PooledSqliteEventLog":
        """Make one from `dagster.yaml`."""
        return cls(inst_data=inst_data, **config_value)

    def store_event_batch(self, events: Sequence[dg.EventLogEntry]) -> None:
        """Store events in one transaction a database; Dagster stores them singly if this fails."""
        with self.together(*sorted({event.run_id for event in events})):
            for (_, kind), some in groupby(events, lambda event: (event.run_id, event.dagster_event_type)):
                of_kind = list(some)
                if kind in _OF_ASSETS and len(of_kind) > 1:
                    self._store_evaluations()  # which came before them
                    self.store_asset_events(of_kind)
                else:
                    for event in of_kind:
                        self.store_event(event)

    def store_event(self, event: dg.EventLogEntry) -> None:
        """Store an event: of a transaction that stores several, an evaluation of a check together with those that follow it."""
        if not self._stores_together():
            super().store_event(event)
            return
        mine = _check_and_partition(event)
        if self._evaluations and (mine is None or not _alike(self._evaluations[0], event)):
            self._store_evaluations()
        if mine is None:
            super().store_event(event)
            return
        self._evaluations.append(event)
        if len(self._evaluations) >= _AT_ONCE:
            self._store_evaluations()

    def _store_evaluations(self) -> None:
        waiting, self._evaluations = self._evaluations, []
        if waiting:
            self.store_check_evaluations(waiting)

    def _stores_together(self) -> bool:
        """Whether this thread stores several events in one transaction."""
        return self._batch is not None and self._batch_thread == get_ident()

    @contextmanager
    def together(self, *run_ids: str) -> Iterator[None]:
        """Store what this thread stores of runs in the body in one transaction a database: all of it, or none if it fails.

        The body uses the log for these runs only: the log is locked, also for other threads. It sees what it has stored, but for
        evaluations of checks, which may be stored at its end.
        """
        with self.lock, ExitStack() as transactions:
            batch: dict[str, sa.Connection] = {}
            for shard in (INDEX_SHARD_NAME, *run_ids):
                engine = self._engine(shard)
                if shard != INDEX_SHARD_NAME:
                    transactions.callback(engine.dispose)
                batch[shard] = transactions.enter_context(engine.begin())
            self._batch, self._batch_thread = batch, get_ident()
            transactions.callback(self._end_batch)
            yield
            self._store_evaluations()

    def _end_batch(self) -> None:
        self._batch, self._batch_thread, self._evaluations = None, 0, []

    @contextmanager
    def connection_to(self, shard: str) -> Iterator[sa.Connection]:
        """Yield a connection to a database: that of the batch, the one that is kept open to the index, or Dagster's own."""
        if self._batch is not None and self._stores_together():
            yield self._batch[shard]
        elif shard == INDEX_SHARD_NAME and self.is_ready(shard):
            with self.lock, self._engine(shard).begin() as connection:
                yield connection
        else:
            with super().connection_to(shard) as connection:
                yield connection

    def has_table(self, table_name: str) -> bool:
        """Return whether the index has a table; Dagster asks at every event, and none ever goes away."""
        if table_name not in self._tables and super().has_table(table_name):
            self._tables.add(table_name)
        return table_name in self._tables

    def has_asset_column(self, connection: sa.Connection, column: str) -> bool:
        """Return whether the index has a column for assets; none ever goes away."""
        if column not in self._asset_columns and super().has_asset_column(connection, column):
            self._asset_columns.add(column)
        return column in self._asset_columns

    def _engine(self, shard: str) -> sa.Engine:
        """Return an engine for a database, made ready by Dagster if it is new; that of the index is kept."""
        if shard == INDEX_SHARD_NAME and self._index_engine is not None:
            return self._index_engine
        engine = sa.create_engine(
            self.conn_string_for_shard(shard), pool_size=1, connect_args={"timeout": SQLITE_BUSY_TIMEOUT_SECONDS}
        )
        if not self.is_ready(shard):
            self.make_ready(shard, engine)
        if shard == INDEX_SHARD_NAME:
            self._index_engine = engine
        return engine

    def dispose(self) -> None:
        """Close the index."""
        super().dispose()
        if self._index_engine is not None:
            self._index_engine.dispose()


def _check_and_partition(event: dg.EventLogEntry) -> tuple[object, str, str] | None:
    """Return of an evaluation of a check for a partition, by a run, which these are; None of any other event."""
    if event.dagster_event is None or event.dagster_event_type is not _KINDS.ASSET_CHECK_EVALUATION or not event.run_id:
        return None
    told: Any = event.dagster_event.event_specific_data
    return None if told.partition is None else (told.asset_check_key, str(told.partition), event.run_id)


def _alike(one: dg.EventLogEntry, other: dg.EventLogEntry) -> bool:
    """Whether two evaluations are of one check in one run, so that one statement stores both."""
    told: list[Any] = [event.get_dagster_event().event_specific_data for event in (one, other)]
    return one.run_id == other.run_id and told[0].asset_check_key == told[1].asset_check_key


def stored_together(instance: dg.DagsterInstance, run_id: str) -> AbstractContextManager[None]:
    """Return in what to store many events of a run: one transaction where the log is the embedded one."""
    log = instance.event_log_storage
    return log.together(run_id) if isinstance(log, PooledSqliteEventLog) else nullcontext()
