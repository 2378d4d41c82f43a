"""One byte changed anywhere in evidence, chain or ledger, verified, and put back.

A place is a byte of a file of the evidence store, or of a value in a row of the SQLite ledger. Whatever is not a change that
the database keeps (a number whose text is another way to write it, a key that is taken) is no place and is drawn again.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from backfill_assets.audit.findings import Problem
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from resources.files.places import local
from resources.ledger.rows import tables_of_runs

KINDS = ("bundle", "records", "chain", "manifest", "ledger", "ledger")
"""What is drawn from: a third of the changes are of the ledger, published runs or not, and its journal; a sixth of each of the others."""
JOURNAL = "journal"


@dataclass(frozen=True)
class Tampered:
    """One change: what, where, and what `verify` must name."""

    kind: str
    where: str
    names: str
    run_ids: tuple[str, ...]
    undo: Callable[[], None]


class Tamperer:
    """Draws places and changes one byte of each."""

    def __init__(self, platform: Platform, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = platform.evidence
        self.database = Path(platform.ledger.url.removeprefix("sqlite:///"))
        self.sealed = self.store.run_ids()
        self.runs = [run.run_id for run in platform.ledger.runs()]
        self.columns = self._columns()
        platform.ledger.engine.dispose()

    def change(self, number: int) -> Tampered:
        """Make a change; `number` decides of what kind."""
        kind = KINDS[number % len(KINDS)]
        if kind == "ledger":
            while (done := self._cell(*self.random.choice(self.columns))) is None:
                pass
            return done
        if kind == "manifest" and self.random.random() < 0.5:
            while (done := self._cell("runs", "manifest")) is None:
                pass
            return done
        files = {
            "bundle": [
                file for run in self.sealed for folder in self.store.bundles(run) for file in local(folder).iterdir()
            ],
            "records": [file for run in self.sealed for file in local(self.store.records(run)).glob("*.json")],
            "chain": list(local(self.store.chain.folder).glob("*.json")),
            "manifest": [local(folder / "manifest.json") for run in self.sealed for folder in self.store.bundles(run)],
        }[kind]
        return self._file(kind, self.random.choice(sorted(files)))

    def _file(self, kind: str, file: Path) -> Tampered:
        raw = file.read_bytes()
        place = self.random.randrange(len(raw))
        other = raw[place] ^ (1 << self.random.randrange(8))
        overwrite(file, raw[:place] + bytes([other]) + raw[place + 1 :])
        name = str(file.relative_to(local(self.store.folder)))
        names = f"chain {file.name}" if kind == "chain" else name
        runs = () if kind == "chain" else (name.split("/", maxsplit=1)[0],)
        return Tampered(kind, f"{name} byte {place}", names, runs, lambda: overwrite(file, raw))

    def _columns(self) -> list[tuple[str, str]]:
        """Every column of every table that has a value in a row of a run, published or not."""
        with closing(sqlite3.connect(self.database)) as connection:
            return [
                (table, column)
                for table in [*tables_of_runs(), JOURNAL]
                for _, column, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall()
                if self._rows(connection, table, column)
            ]

    def _rows(self, connection: sqlite3.Connection, table: str, column: str) -> list[tuple[int, str]]:
        marks = ",".join("?" * len(self.runs))
        query = f"SELECT rowid, run_id FROM {table} WHERE run_id IN ({marks}) AND length(CAST({column} AS BLOB)) > 0"
        return connection.execute(query + " ORDER BY rowid", self.runs).fetchall()

    def _cell(self, table: str, column: str) -> Tampered | None:
        with closing(sqlite3.connect(self.database)) as connection:
            rowid, run = self.random.choice(self._rows(connection, table, column))
            (raw, kind), *_ = connection.execute(
                f"SELECT CAST({column} AS BLOB), typeof({column}) FROM {table} WHERE rowid = ?", (rowid,)
            ).fetchall()
            place = self.random.randrange(len(raw))
            other = bytes([raw[place] ^ (1 << self.random.randrange(8))])
            changed = raw[:place] + other + raw[place + 1 :]
            if not self._write(connection, table, column, rowid, changed):
                return None
            cell = f"SELECT CAST({column} AS BLOB) FROM {table} WHERE rowid = ?"
            here = rowid
            if not (
                kept := connection.execute(cell, (here,)).fetchone()
            ):  # a column that is SQLite's own number of the row
                here = int(changed)
                kept = connection.execute(cell, (here,)).fetchone()

        def undo() -> None:
            with closing(sqlite3.connect(self.database)) as again:
                cast = {"integer": "INTEGER", "text": "TEXT"}[kind]
                again.execute(f"UPDATE {table} SET {column} = CAST(? AS {cast}) WHERE rowid = ?", (raw, here))
                again.commit()

        if kept[0] == raw:  # another way to write the same number: the database has kept nothing of it
            undo()
            return None
        where = f"{table}.{column} of {run}, row {rowid}, byte {place}"
        return Tampered("ledger", where, f"ledger {table} ", () if table == JOURNAL else (run,), undo)

    @staticmethod
    def _write(connection: sqlite3.Connection, table: str, column: str, rowid: int, raw: bytes) -> bool:
        try:  # the column's type decides what becomes of the text, as it does for anybody's UPDATE
            connection.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT) WHERE rowid = ?", (raw, rowid))
        except sqlite3.IntegrityError:
            return False
        connection.commit()
        return True


def overwrite(file: Path, raw: bytes) -> None:
    """Give a file that is kept from being written another content."""
    file.chmod(0o644)
    file.write_bytes(raw)
    file.chmod(0o444)


def problems_of(platform: Platform, tampered: Tampered) -> list[Problem]:
    """Verify what the change is of: the chain always, and the run."""
    return verify(platform, list(tampered.run_ids)).everything


def missed(platform: Platform, number: int, seed: int) -> tuple[list[str], list[str]]:
    """Make changes one at a time; return those that were not found, and those that were not named."""
    tamperer = Tamperer(platform, seed)
    unnoticed, unnamed = [], []
    for one in range(number):
        tampered = tamperer.change(one)
        try:
            found = problems_of(platform, tampered)
        finally:
            tampered.undo()
        if not found:
            unnoticed.append(tampered.where)
        elif not any(problem.where.startswith(tampered.names) for problem in found):
            unnamed.append(f"{tampered.where}: {[(problem.where, problem.what) for problem in found]}")
    return unnoticed, unnamed
