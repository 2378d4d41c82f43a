"""How a transaction of the ledger begins: `engine.connect()` reads, `engine.begin()` writes.

Put here what each of the two may do and how long it waits; what a transaction locks once it has begun is `locks`'. Who
reads sees one moment of the ledger, cannot write, waits for no writer and keeps none waiting: on SQLite by a deferred
transaction over the write-ahead log, on PostgreSQL by REPEATABLE READ, READ ONLY. Who writes on SQLite takes its one
write lock at once (BEGIN IMMEDIATE), so that what is decided upon is read under it.
"""

from __future__ import annotations

import atexit
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakSet

import sqlalchemy as sa

from manifests.errors import LedgerLocked, Problem
from resources.files.space import refusal
from resources.files.sqlite_files import requiring_files
from resources.ledger.cells import IllegibleCell, Utc
from resources.ledger.locks import bound_waiting
from resources.ledger.server_time import ServerTime

READ_WAIT = 5
"""Seconds that a reader of a SQLite ledger waits where the whole file is locked: copied over, or opened exclusively."""
WRITE_WAIT = 60
"""Seconds that a writer waits for the one before it."""
_WRITES = "ledger_writes"
_READ_ONLY = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"
_WRITE_LOCKS = range(0x40000000, 0x40000002)
"""The bytes that SQLite locks in a database whose whole file it locks; see "The Locking-Page" in its file format."""
_WAL_WRITE_LOCK = 120
"""The byte that a writer locks in the index of the write-ahead log; see "WAL Locks" in SQLite's walformat."""
_OF_A_CELL = re.compile("Could not decode to UTF-8|malformed JSON")
"""What SQLite says of a text that is none, and of one from which a query wants what is said in it."""
_POSIX_LOCK = 8
"""Columns of a line in /proc/locks."""


Clock = Callable[[], datetime]
"""Tells the present instant, UTC."""


def system_clock() -> datetime:
    """Return the present instant by the clock of this machine."""
    return datetime.now(UTC)


class LedgerEngine(sa.Engine):
    """An engine whose `begin()` writes, and whose rows are dated by one clock; see the module."""

    clock: Clock = staticmethod(system_clock)
    server_time: ServerTime | None = None

    def now(self, within: sa.Connection | None = None) -> datetime:
        """Return the present instant (UTC): by the clock that was given, by that of the server where it has one, or by this machine's.

        A server that has not said it of late is asked by the connection that the caller holds, or by one of its own.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: if the server does not answer, and never has; or if the caller's connection is of no use.
        """
        if (server_time := self.time_of_server) is None:
            return self.clock()
        if server_time.is_stale:
            if within is not None:
                server_time.learn(lambda: said_by_server(within))
            else:
                self._learn(server_time)
        return server_time.now()

    @property
    def time_of_server(self) -> ServerTime | None:
        """The time of the server by which rows are dated; None where they are by the clock that was given, or this machine's."""
        return self.server_time if self.clock is system_clock else None

    def _learn(self, server_time: ServerTime) -> None:
        try:
            with self.connect() as connection:
                server_time.learn(lambda: said_by_server(connection))
        except sa.exc.SQLAlchemyError:
            if not server_time.is_known:
                raise  # or what is done with the instant will say that the server is away

    @contextmanager
    def begin(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that may write, and commit it."""
        with self.connect() as connection:
            connection.execution_options(**{_WRITES: True})
            with connection.begin():
                yield connection


_open: WeakSet[LedgerEngine] = WeakSet()


@atexit.register
def _close() -> None:
    """Close connections as Python ends: SQLite then writes the write-ahead log into its database, which is whole on its own."""
    for engine in tuple(_open):
        engine.dispose()


def make_engine(url: str, clock: Clock | None = None) -> LedgerEngine:
    """Return the engine of a ledger, whose transactions begin as the module says; by this machine's clock, if none is given.

    Raises:
        ModuleNotFoundError, sqlalchemy.exc.NoSuchModuleError: if the driver that the URL names is not installed.
    """
    is_sqlite = sa.make_url(url).get_backend_name() == "sqlite"
    # the locks are made for READ COMMITTED, whatever the server's default is
    server = {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
    options: dict[str, Any] = {"connect_args": {"timeout": READ_WAIT}} if is_sqlite else server
    made = sa.create_engine(url, **options)
    engine = LedgerEngine(made.pool, made.dialect, made.url)
    if clock is not None:
        engine.clock = clock
    _open.add(engine)
    if is_sqlite:
        sa.event.listen(engine, "do_connect", requiring_files(url, "the ledger"))
        sa.event.listen(engine, "connect", _sqlite_connect)
        sa.event.listen(engine, "begin", _sqlite_begin)
        sa.event.listen(engine, "handle_error", _refuse_known)
    elif engine.dialect.name == "postgresql":
        bound_waiting(engine)
        sa.event.listen(engine, "begin", _postgres_begin)
        engine.server_time = ServerTime()
    return engine


def said_by_server(connection: sa.Connection) -> datetime:
    """Return the present instant by the clock of a PostgreSQL server, which all hosts share."""
    present: datetime = connection.execute(sa.select(sa.func.clock_timestamp(type_=Utc))).scalar_one()
    return present


def _sqlite_connect(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun below, not by the driver
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _sqlite_begin(connection: sa.Connection) -> None:
    writes = _writes(connection)
    if connection.info.get(_WRITES) is not writes:
        driver = connection.connection.driver_connection
        assert driver is not None
        driver.execute(f"PRAGMA query_only={'OFF' if writes else 'ON'}")
        driver.execute(f"PRAGMA busy_timeout={1000 * (WRITE_WAIT if writes else READ_WAIT)}")
        connection.info[_WRITES] = writes
    # a transaction that reads and then writes must not find somebody else's write in between
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgres_begin(connection: sa.Connection) -> None:
    if not _writes(connection):
        connection.exec_driver_sql(_READ_ONLY)


def _writes(connection: sa.Connection) -> bool:
    return bool(connection.get_execution_options().get(_WRITES, False))


def _refuse_known(context: sa.engine.ExceptionContext) -> None:
    """Turn SQLite's "database is locked" into a refusal that says by whom; what a full disk, or a damaged cell, makes it say into others."""
    error = context.original_exception
    if not isinstance(error, sqlite3.OperationalError):
        return
    assert context.engine is not None
    file = context.engine.url.database or ""
    if (full := refusal(error, file)) is not None:
        raise full from error
    if _OF_A_CELL.search(str(error)):
        raise IllegibleCell("the ledger", str(error.args[0])) from error
    code = getattr(error, "sqlite_errorcode", 0)  # the driver itself raises some: of a text that is no UTF-8, ...
    if code & 0xFF != sqlite3.SQLITE_BUSY:
        return
    writes = context.connection is not None and _writes(context.connection)
    raise LedgerLocked(
        Problem(
            f"the ledger {file} is locked by {_holder(file)}; waited {WRITE_WAIT if writes else READ_WAIT} s",
            "one process writes it at a time"
            if writes
            else "no other process has locked the whole file while it is read",
            "wait until that process is done, or end it; nothing was changed, the same command again goes on from here",
        )
    ) from error


def _holder(file: str) -> str:
    """Say which process holds a SQLite database, where the system tells.

    Never by opening the file: closing it again would take away the locks that this process holds on it.
    """
    try:
        database = Path(file).stat().st_ino
        index = Path(f"{file}-shm")
        shared = index.stat().st_ino if index.exists() else None
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return "another process"
    for line in lines:
        parts = line.split()
        if len(parts) != _POSIX_LOCK or parts[1] != "POSIX" or parts[3] != "WRITE":
            continue
        inode, first, last = int(parts[5].rpartition(":")[2]), int(parts[6]), parts[7]
        until = first if last == "EOF" else int(last)
        in_file = inode == database and first < _WRITE_LOCKS.stop and until >= _WRITE_LOCKS.start
        in_index = inode == shared and first <= _WAL_WRITE_LOCK <= until
        if (in_file or in_index) and int(parts[4]) > 0:
            return _named(int(parts[4]))
    return "another process"


def _named(pid: int) -> str:
    if pid == os.getpid():
        return "this process"
    try:
        return f"process {pid} ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return f"process {pid}"
