"""The sink that is a cache: values that somebody has computed from published rows, served until their chunk changes.

Put here the cache itself: what an application keeps in it and gets from it (`ChunkCache`), and what a run does to it
(`InvalidatedChunks`). It is one SQLite file in the installation's home folder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from resources.sinks.declared import Told

_WAIT_SECONDS = 30
_TABLES = (
    "CREATE TABLE IF NOT EXISTS told (run_id TEXT, action TEXT, PRIMARY KEY (run_id, action))",
    (
        "CREATE TABLE IF NOT EXISTS generations (target TEXT, chunk TEXT, generation INTEGER NOT NULL, "
        "run_id TEXT NOT NULL, action TEXT NOT NULL, PRIMARY KEY (target, chunk))"
    ),
    (
        "CREATE TABLE IF NOT EXISTS kept (target TEXT, chunk TEXT, name TEXT, value BLOB NOT NULL, "
        "generation INTEGER NOT NULL, PRIMARY KEY (target, chunk, name))"
    ),
)


def cache_file(home: Path, cache: str) -> Path:
    """Return the file of a cache."""
    return home / "caches" / f"{cache}.db"


class ChunkCache:
    """Values by table, chunk and name.

    A reader asks for the chunk's `generation`, then reads rows, computes, and keeps the value under that generation: if a run has
    changed the chunk meanwhile, the value is not kept. Between a commit and the moment the cache is told of it (or of a telling
    that failed, until it is repeated), values of before are served: it is a cache, and the table is what counts.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def generation(self, table: str, chunk: str) -> int:
        """Return how many actions of runs have changed a chunk: 0 of one that none has."""
        with _opened(self._file) as database:
            return _generation(database, table, chunk)

    def changed_by(self, table: str, chunk: str) -> tuple[str, str] | None:
        """Return the run and action that has changed a chunk last; None of one that none has."""
        with _opened(self._file) as database:
            found = database.execute(
                "SELECT run_id, action FROM generations WHERE target = ? AND chunk = ?", (table, chunk)
            ).fetchone()
        return None if found is None else (str(found[0]), str(found[1]))

    def keep(self, table: str, chunk: str, name: str, value: bytes, generation: int) -> bool:
        """Keep a value that was computed at a generation; return False, and keep nothing, if the chunk has changed since."""
        with _opened(self._file) as database:
            if _generation(database, table, chunk) != generation:
                return False
            database.execute(
                "INSERT OR REPLACE INTO kept VALUES (?, ?, ?, ?, ?)", (table, chunk, name, value, generation)
            )
            return True

    def get(self, table: str, chunk: str, name: str) -> bytes | None:
        """Return a value that was kept, if its chunk has not changed since."""
        with _opened(self._file) as database:
            found = database.execute(
                "SELECT value FROM kept JOIN generations USING (target, chunk, generation) "
                "WHERE target = ? AND chunk = ? AND name = ? "
                "UNION ALL SELECT value FROM kept WHERE target = ? AND chunk = ? AND name = ? AND generation = 0 "
                "AND NOT EXISTS (SELECT 1 FROM generations WHERE target = kept.target AND chunk = kept.chunk)",
                (table, chunk, name) * 2,
            ).fetchone()
        return None if found is None else bytes(found[0])


class InvalidatedChunks:
    """What a run does to a cache: every value of the chunks that it changes is gone, in one transaction, once a run and action.

    A rollback is told like a publication: what was kept before the publication is computed anew rather than trusted.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def send(self, told: Told) -> None:
        """Give each changed chunk its next generation, and remove what was kept of it.

        Raises:
            sqlite3.Error: if the file cannot be written, or is no cache.
        """
        with _opened(self._file) as database:
            new = database.execute("INSERT OR IGNORE INTO told VALUES (?, ?)", (told.run_id, told.action)).rowcount
            if not new:
                return
            for chunk in told.chunks:
                database.execute("DELETE FROM kept WHERE target = ? AND chunk = ?", (told.table, chunk))
                database.execute(
                    "INSERT INTO generations VALUES (?, ?, 1, ?, ?) ON CONFLICT (target, chunk) DO UPDATE SET "
                    "generation = generation + 1, run_id = excluded.run_id, action = excluded.action",
                    (told.table, chunk, told.run_id, told.action),
                )


def _generation(database: sqlite3.Connection, table: str, chunk: str) -> int:
    found = database.execute(
        "SELECT generation FROM generations WHERE target = ? AND chunk = ?", (table, chunk)
    ).fetchone()
    return 0 if found is None else int(found[0])


@contextmanager
def _opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Yield a cache, in one transaction that nobody else writes in."""
    file.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(file, timeout=_WAIT_SECONDS, isolation_level=None)
    try:
        database.execute("PRAGMA synchronous = FULL")
        database.execute("BEGIN IMMEDIATE")
        for statement in _TABLES:
            database.execute(statement)
        yield database
        database.execute("COMMIT")
    finally:
        database.close()  # what was not committed is rolled back
