"""A table that several writers change at once, captured by Debezium, and what the server says the table was at some LSNs.

Put here the changes, the incidents (restarts and kills of server and engine, columns that are added and renamed) and the oracle;
what is held against it is the tests'. `change(...)` runs a `Workload` from the snapshot to the last change in the landing folder, and
returns its moments. Writers draw what they do from a seed, but who comes first is theirs to find out: no two runs are equal,
and the oracle is asked while they write.

A moment is exact: the oracle locks the table, which is had between two commits, and reads the LSN and the rows under that lock
(`test_changing_tables.py` holds this against the commits in the log). A transaction whose END is at or below `Moment.position` is
in it, no other is. A slot that exports a snapshot with its consistent point is not exact: on a busy machine one of 30 snapshots
did not see a transaction whose commit was in the log before that point, since a commit is written before it is visible.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg2

from real_servers.debezium import Debezium
from real_servers.postgresql import LogicalPostgres, lsn
from real_servers.writing import TABLE, Columns, Writer

LAST_ID = -1
"""The key of a row that is inserted when everything else has happened."""
_PATIENCE_SECONDS = 600.0
_BESIDE_A_SNAPSHOT, _BESIDE_AN_INCIDENT = 0.2, 0.03
"""The share of the transactions that may happen while the engine takes its snapshot, and while a restart or the like goes on."""


@dataclass(frozen=True)
class Workload:
    """What happens.

    Attributes:
        transactions: that are committed or taken back, by all writers.
        changes: of rows, about as many as are committed.
        moments: how many states of the table the server is asked for, spread evenly over the transactions.
        writers: connections that write at once.
        server_restarts, engine_restarts: how often each is ended and started again, by turns in order and by `kill -9`.
        seed: of what each writer does.
    """

    transactions: int = 2_000
    changes: int = 20_000
    moments: int = 50
    writers: int = 8
    server_restarts: int = 0
    engine_restarts: int = 0
    seed: int = 20


@dataclass(frozen=True)
class Moment:
    """The table as the server said it was at an LSN: a line of JSON a row, compressed, in `file`; rows in no order."""

    position: int
    file: Path
    columns: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the rows as the server wrote them: objects of JSON."""
        return gzip.decompress(self.file.read_bytes()).decode().splitlines()


@dataclass
class Happened:
    """What has happened so far: counts by name, moments in order, and what failed that should not."""

    moments: list[Moment] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[BaseException] = field(default_factory=list)
    captured_from: int | None = None
    """How many transactions had ended when the engine's snapshot was written; None before it was."""
    until_incident: float = float("inf")
    """How many transactions may have ended before the next incident is over: a restart takes as long as many of them."""

    @property
    def transactions(self) -> int:
        """How many have ended, committed or not."""
        return self.counts["committed"] + self.counts["taken back"]

    def is_due(self, workload: Workload, moment: float) -> bool:
        """Tell whether so many transactions have ended that it is time for a moment, which are spread evenly."""
        if self.captured_from is None:
            return False
        left = workload.transactions - self.captured_from
        return self.transactions >= self.captured_from + moment * left / workload.moments


def change(server: LogicalPostgres, database: str, engine: Debezium, workload: Workload, folder: Path) -> Happened:
    """Let a workload happen on a database whose table `create` made, beside an engine that has not been started.

    Returns:
        What happened, when all of it is in the engine's landing folder.

    Raises:
        AssertionError: if a part of it failed, with the first failure.
        TimeoutError: if it does not come to its end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    happened, columns = Happened(), Columns()
    writers = [
        Writer(number, workload, lambda: server.connection(database), columns, happened)
        for number in range(workload.writers)
    ]
    # the engine's snapshot is taken while they write
    tasks: list[Callable[[], None]] = [writer.run for writer in writers]
    tasks.append(lambda: _ask(server, database, workload, folder, happened))
    threads = [threading.Thread(target=_noted, args=(task, happened), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    # here, since what a thread starts ends with that thread
    _noted(lambda: _have_incidents(server, database, engine, workload, columns, happened), happened)
    until = time.monotonic() + _PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        if thread.is_alive():
            happened.failures.append(TimeoutError("the workload does not come to its end"))
    if happened.failures:
        raise AssertionError(f"{len(happened.failures)} failures, the first: {happened.failures[0]!r}") from (
            happened.failures[0]
        )
    _finish(server, database, engine)
    return happened


def _noted(task: Callable[[], None], happened: Happened) -> None:
    try:
        task()
    except BaseException as error:  # noqa: BLE001 - of a thread: whoever waits for it says it
        happened.failures.append(error)


def create(server: LogicalPostgres, database: str, workload: Workload) -> None:
    """Make the table, with rows that the engine's snapshot will find."""
    connection = server.connection(database)
    try:
        with connection, connection.cursor() as cursor:
            for statement in TABLE:
                cursor.execute(statement)
            for number in range(workload.writers):
                Writer(number, workload, lambda: connection, Columns(), Happened()).begin_with(cursor)
    finally:
        connection.close()


# --- what happens beside the writers -----------------------------------------------------------------------------------


def _ask(server: LogicalPostgres, database: str, workload: Workload, folder: Path, happened: Happened) -> None:
    """Ask for the state of the table again and again while the writers write, from when the engine has its snapshot."""
    for number in range(workload.moments):
        while not happened.is_due(workload, number + 0.5) and not happened.failures:
            time.sleep(0.002)
        while len(happened.moments) == number and not happened.failures:
            try:
                happened.moments.append(moment(server, database, folder / f"moment-{number:04d}.jsonl.gz"))
            except (psycopg2.OperationalError, psycopg2.InterfaceError):  # the server is being restarted
                time.sleep(0.05)


def moment(server: LogicalPostgres, database: str, file: Path) -> Moment:
    """Ask the server for the state of the table now, at an LSN that is exact.

    Raises:
        psycopg2.Error: if it is not there, or goes away meanwhile.
    """
    with exact(server, database, "account") as (position, cursor):
        with gzip.open(file, "wb", compresslevel=1) as written:
            # csv with a quote and a delimiter that no text of JSON has: each row is a line as it is
            copy = "COPY (SELECT to_jsonb(account) FROM account) TO STDOUT (FORMAT csv, DELIMITER E'\\x02', QUOTE E'\\x01')"
            cursor.copy_expert(copy, written)
        cursor.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 'account'::regclass AND attnum > 0 AND NOT attisdropped"
            " ORDER BY attnum"
        )
        return Moment(position, file, tuple(name for (name,) in cursor.fetchall()))


@contextmanager
def exact(server: LogicalPostgres, database: str, table: str) -> Iterator[tuple[int, Any]]:
    """Yield an LSN, and a cursor that sees of a table what was committed up to there and nothing else, for this block.

    Who has written to the table holds a lock until the commit can be seen, so a lock on it is had between commits.
    """
    with _closing(server.connection(database)) as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLE {table} IN SHARE MODE")
        cursor.execute("SELECT pg_current_wal_insert_lsn()")
        yield lsn(cursor.fetchone()[0]), cursor


@contextmanager
def _closing(connection: Any) -> Iterator[Any]:
    try:
        yield connection
    finally:
        connection.close()


def _have_incidents(
    server: LogicalPostgres, database: str, engine: Debezium, workload: Workload, columns: Columns, happened: Happened
) -> None:
    """Start the engine when a few transactions have happened; then restart it and the server, and change columns, in time."""

    def capture() -> None:
        engine.start()
        engine.until('"snapshot":"last"')
        happened.captured_from = happened.transactions

    incidents: list[tuple[float, Callable[[], None]]] = [(0.01, capture)]
    for number in range(workload.server_restarts):
        kill = number % 2 == 0
        share = 0.25 + 0.7 * number / workload.server_restarts
        incidents.append((share, lambda kill=kill: _restart_server(server, happened, kill=kill)))  # type: ignore[misc]
    for number in range(workload.engine_restarts):
        kill = number % 2 == 0
        share = 0.30 + 0.65 * number / workload.engine_restarts
        incidents.append((share, lambda kill=kill: _restart_engine(engine, happened, kill=kill)))  # type: ignore[misc]
    incidents.append((0.45, lambda: columns.add(server.connection(database), happened.counts)))
    incidents.append((0.70, lambda: columns.rename(server.connection(database), happened.counts)))
    for share, incident in sorted(incidents, key=lambda one: one[0]):
        beside = _BESIDE_A_SNAPSHOT if incident is capture else _BESIDE_AN_INCIDENT
        happened.until_incident = (share + beside) * workload.transactions
        while happened.transactions < share * workload.transactions and not happened.failures:
            time.sleep(0.005)
        if happened.failures:
            return
        incident()
    happened.until_incident = float("inf")


def _restart_server(server: LogicalPostgres, happened: Happened, *, kill: bool) -> None:
    server.restart(kill=kill)
    happened.counts["server killed" if kill else "server restarted"] += 1


def _restart_engine(engine: Debezium, happened: Happened, *, kill: bool) -> None:
    if kill:
        engine.kill()
    else:
        engine.stop()
    engine.start()
    happened.counts["engine killed" if kill else "engine restarted"] += 1


def _finish(server: LogicalPostgres, database: str, engine: Debezium) -> None:
    """Wait until the engine has captured everything."""
    with _closing(server.connection(database)) as connection, connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO account (id, owner) VALUES (%s, 'the last of all')", (LAST_ID,))
    engine.until("the last of all", _PATIENCE_SECONDS)
    engine.until('"END"', after="the last of all")
    engine.stop()
    engine.name_log(server, database)
