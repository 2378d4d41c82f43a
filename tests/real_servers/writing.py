"""A writer of the table that `changing.py` has changed: transactions of inserts, updates, deletes and key changes, some taken back.

A writer creates, deletes and renumbers only rows whose key is its number modulo the number of writers, so that it knows which
there are; it updates others', too. Keys of deleted rows come again. Notes longer than 2,000 characters are stored apart
(TOAST), so that a change of another column does not send them.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg2

if TYPE_CHECKING:
    from real_servers.changing import Happened, Workload

TABLE = (
    (
        "CREATE TABLE account (id bigint PRIMARY KEY, owner text NOT NULL, balance numeric(14, 2), visits int, notes text,"
        " changed timestamptz)"
    ),
    "ALTER TABLE account ALTER notes SET STORAGE EXTERNAL",
)
_ROW = (
    "left(md5(n || %(salt)s), 8), (hashtext(n || %(salt)s) %% 1000000)::numeric / 100, abs(hashtext(%(salt)s || n) %% 100),"
    " CASE abs(hashtext('notes' || n || %(salt)s) %% 10) WHEN 0 THEN repeat(md5(n || %(salt)s), 80) WHEN 1 THEN NULL"
    " ELSE md5(n || %(salt)s) || ' \\ \"quoted\", é ' END, clock_timestamp()"
)
"""Values of a new row with the key `n`."""
_MOST_LIVE = 400
_SECONDS_BEFORE_THE_SNAPSHOT = 0.2
_ABORTED, _PARTLY_TAKEN_BACK = 0.08, 0.15


class Columns:
    """The columns whose names change meanwhile."""

    def __init__(self) -> None:
        self.visits = "visits"
        self.graded = False

    def add(self, connection: Any, counts: Counter[str]) -> None:
        """Add a column amid a transaction, which has changed rows before and changes them after."""
        self._change(connection, counts, "added", "ALTER TABLE account ADD COLUMN grade int", "grade = 1")
        self.graded = True

    def rename(self, connection: Any, counts: Counter[str]) -> None:
        """Rename a column amid a transaction."""
        statement = "ALTER TABLE account RENAME COLUMN visits TO seen"
        self._change(connection, counts, "renamed", statement, "seen = seen + 1")
        self.visits = "seen"

    @staticmethod
    def _change(connection: Any, counts: Counter[str], what: str, statement: str, after: str) -> None:
        few = "WHERE id IN (SELECT id FROM account ORDER BY id LIMIT 5)"
        try:
            with connection, connection.cursor() as cursor:
                cursor.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
                cursor.execute(f"UPDATE account SET owner = 'column {what}' {few}")
                cursor.execute(statement)
                cursor.execute(f"UPDATE account SET {after} {few}")
        finally:
            connection.close()
        counts[f"column {what}"] += 1


class Writer:
    """One connection, what it draws from, and the keys of its rows."""

    def __init__(
        self,
        number: int,
        workload: Workload,
        connect: Callable[[], Any],
        columns: Columns,
        happened: Happened,
    ) -> None:
        self._number, self._step = number, workload.writers
        self._workload, self._happened, self._columns = workload, happened, columns
        self._connect = connect
        self._random = random.Random(f"{workload.seed} {number}")
        self._live: list[int] = []
        self._free: list[int] = []
        self._next = number + self._step
        self._changed = 0
        self._mean = workload.changes / workload.transactions / (1 - _ABORTED) / 0.93

    def begin_with(self, cursor: Any) -> None:
        """Insert rows before all else happens."""
        self._insert(cursor, 40)

    def run(self) -> None:
        """Write until all transactions have happened; after a restart of the server, look again which rows there are."""
        connection = None
        while self._has_more():
            try:
                if connection is None:
                    connection = self._connect()
                    self._look(connection)
                self._transaction(connection)
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                if not isinstance(error, psycopg2.errors.DeadlockDetected):
                    connection = None
                    self._count("connections lost")
                    time.sleep(0.05)
                else:
                    connection.rollback()
                    self._look(connection)
                    self._count("taken back")
        if connection is not None:
            connection.close()

    def _has_more(self) -> bool:
        """Wait while the oracle or an incident lags behind; tell whether anything is left to do."""
        happened, workload = self._happened, self._workload
        if happened.captured_from is None:  # the engine has yet to take its snapshot: beside writers, so not too late
            time.sleep(_SECONDS_BEFORE_THE_SNAPSHOT)
        while not happened.failures:
            asked = len(happened.moments)
            if happened.transactions >= workload.transactions:
                return False
            in_time = asked == workload.moments or not happened.is_due(workload, asked + 1.5)
            if in_time and happened.transactions < happened.until_incident:
                return True
            time.sleep(0.002)
        return False

    def _count(self, what: str, how_many: int = 1) -> None:
        with _COUNTING:
            self._happened.counts[what] += how_many

    def _look(self, connection: Any) -> None:
        """Learn which rows are this writer's: a commit whose answer was lost may have happened."""
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM account WHERE id >= 0 AND id %% %s = %s", (self._step, self._number))
            self._live = [key for (key,) in cursor.fetchall()]
        self._free = []
        self._next = max([self._next, *(key + self._step for key in self._live)])

    def _transaction(self, connection: Any) -> None:
        before = self._live[:], self._free[:]
        self._changed = 0
        commits = self._random.random() >= _ABORTED
        wanted = max(1, round(self._random.expovariate(1 / self._mean)))
        try:
            with connection.cursor() as cursor:
                while self._changed < wanted:
                    self._some(cursor, wanted - self._changed)
            if commits:
                connection.commit()
            else:
                connection.rollback()
        except psycopg2.errors.UndefinedColumn:  # it was renamed meanwhile
            connection.rollback()
            commits = False
        if not commits:
            self._live, self._free = before
        self._count("committed" if commits else "taken back")
        self._count("changes", self._changed if commits else 0)

    def _some(self, cursor: Any, left: int) -> None:
        """Change some rows; now and then, take it back and change others."""
        many = min(left, max(1, round(self._random.expovariate(1 / 12))))
        if self._random.random() < _PARTLY_TAKEN_BACK:
            live, free, changed = self._live[:], self._free[:], self._changed
            cursor.execute("SAVEPOINT here")
            self._act(cursor, many)
            if self._random.random() < 0.5:
                cursor.execute("ROLLBACK TO here")
                self._live, self._free, self._changed = live, free, changed
                self._count("savepoints taken back")
            else:
                cursor.execute("RELEASE here")
                return
        self._act(cursor, many)

    def _act(self, cursor: Any, many: int) -> None:
        room = len(self._live) < _MOST_LIVE
        chance = self._random.random()
        if not self._live or chance < (0.45 if room else 0.10):
            self._insert(cursor, many)
        elif chance < 0.60:
            self._delete(cursor, many)
        elif chance < 0.68:
            self._renumber(cursor, min(many, 20))
        elif chance < 0.75:
            self._of_others(cursor)
        else:
            self._update(cursor, many)

    def _drawn(self, many: int) -> list[int]:
        return self._random.sample(self._live, min(many, len(self._live)))

    def _new(self, many: int) -> list[int]:
        keys = []
        for _ in range(many):
            if self._free and self._random.random() < 0.5:
                keys.append(self._free.pop(self._random.randrange(len(self._free))))
            else:
                keys.append(self._next)
                self._next += self._step
        return keys

    def _did(self, cursor: Any, what: str) -> None:
        self._changed += cursor.rowcount
        self._count(what, cursor.rowcount)

    def _salt(self) -> str:
        return str(self._random.random())

    def _insert(self, cursor: Any, many: int) -> None:
        keys = self._new(many)
        columns = f"id, owner, balance, {self._columns.visits}, notes, changed"
        values = {"keys": keys, "salt": self._salt()}
        cursor.execute(f"INSERT INTO account ({columns}) SELECT n, {_ROW} FROM unnest(%(keys)s::bigint[]) n", values)
        self._live += keys
        self._did(cursor, "inserts")

    def _delete(self, cursor: Any, many: int) -> None:
        keys = self._drawn(many)
        cursor.execute("DELETE FROM account WHERE id = ANY(%s)", (keys,))
        gone = set(keys)
        self._live = [key for key in self._live if key not in gone]
        self._free += keys
        self._did(cursor, "deletes")

    def _renumber(self, cursor: Any, many: int) -> None:
        """Change keys, to new ones or to those of rows that are gone."""
        old = self._drawn(many)
        new = self._new(len(old))
        cursor.execute(
            "UPDATE account SET id = m.new FROM unnest(%s::bigint[], %s::bigint[]) AS m(old, new) WHERE id = m.old",
            (old, new),
        )
        gone = set(old)
        self._live = [key for key in self._live if key not in gone] + new
        self._free += old
        self._did(cursor, "key changes")

    def _of_others(self, cursor: Any) -> None:
        """Update one row of whichever writer; two that meet may be a deadlock, of which the server takes one back."""
        key = self._random.randrange(1, self._next)
        cursor.execute("UPDATE account SET balance = balance + 0.01 WHERE id = %s", (key,))
        self._did(cursor, "updates")

    def _update(self, cursor: Any, many: int) -> None:
        sets = ["balance = -balance", "changed = clock_timestamp()"]
        if self._random.random() < 0.5:
            sets.append(f"{self._columns.visits} = {self._columns.visits} + 1")
        if self._random.random() < 0.2:
            sets.append("notes = CASE id % 4 WHEN 0 THEN repeat(md5(id || %(salt)s), 80) WHEN 1 THEN NULL ELSE '' END")
        if self._columns.graded and self._random.random() < 0.5:
            sets.append("grade = abs(hashtext(%(salt)s || id) % 9)")
        statement = f"UPDATE account SET {', '.join(sets)} WHERE id = ANY(%(keys)s)".replace("% ", "%% ")
        cursor.execute(statement, {"keys": self._drawn(many), "salt": self._salt()})
        self._did(cursor, "updates")


_COUNTING = threading.Lock()
