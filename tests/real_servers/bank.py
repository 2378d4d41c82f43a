"""A bank's database for `make demo-cdc`: its accounts on a real PostgreSQL, what happens to them, and what the server says they are.

Put here statements and questions; what is landed, published and held against the answers is `demo_cdc.py`'s.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from backfill_assets.declarations.schema import dtypes
from backfill_assets.products.accounts import ACCOUNT_HISTORY
from backfill_assets.products.accounts.transforms import ACCOUNT
from real_servers.changing import exact
from real_servers.postgresql import LogicalPostgres, lsn

_ACCOUNTS = 200
_TABLE = (
    (
        "CREATE TABLE accounts (account_id bigint PRIMARY KEY, owner text NOT NULL, email text, balance numeric(12, 2) NOT NULL,"
        " opened_at timestamp NOT NULL, note text)"
    ),
    "ALTER TABLE accounts ALTER note SET STORAGE EXTERNAL",  # long notes are stored apart, and not sent by other updates
    (
        "INSERT INTO accounts SELECT n, 'owner ' || n % 40, 'owner' || n % 40 || '@example.org', 100 * n,"
        " timestamp '2024-01-01' + n * interval '4 hours', CASE WHEN n % 5 = 0 THEN repeat('noted ', 500) END"
        f" FROM generate_series(1, {_ACCOUNTS}) n"
    ),
)


@dataclass(frozen=True)
class Told:
    """What the server said its accounts were at an LSN, with the names and types of the published tables."""

    lsn: int
    rows: pl.DataFrame

    def write(self, file: Path) -> Path:
        """Write it as a file that `backfill compare-source` reads."""
        self.rows.write_parquet(file)
        return file


class Bank:
    """The database, and two connections that change it side by side."""

    def __init__(self, server: LogicalPostgres) -> None:
        """Make the table and its first accounts."""
        self.server, self.database = server, server.database().rpartition("/")[2]
        self._draw = random.Random(20)
        self._next = _ACCOUNTS + 1
        self.aborted = self.committed = 0
        self._said = "note = 'moved'"
        self.connect()
        for statement in _TABLE:
            self._one.cursor().execute(statement)
        self._one.commit()

    def connect(self) -> None:
        """Connect anew, as after a restart of the server."""
        self._one, self._other = (self.server.connection(self.database) for _ in range(2))

    def work(self, transactions: int) -> None:
        """Let transactions happen by turns on both connections, so that they interleave in the log; one in ten is taken back."""
        for _ in range(transactions // 2):
            cursors = [connection.cursor() for connection in (self._one, self._other)]
            for half, cursor in enumerate(cursors):
                self._some(cursor, half)
            for half, cursor in enumerate(cursors):
                cursor.execute(
                    "UPDATE accounts SET balance = balance + 1 WHERE account_id %% 2 = %s AND account_id %% 20 < 4",
                    (half,),
                )
            for connection in (self._other, self._one):
                if self._draw.random() < 0.1:
                    connection.rollback()
                    self.aborted += 1
                else:
                    connection.commit()
                    self.committed += 1

    def _some(self, cursor: Any, half: int) -> None:
        """Open, close, renumber and move money: each connection has the accounts of even or of odd numbers."""
        new = self._next + (self._next + half) % 2
        self._next = new + 1
        cursor.execute(
            "INSERT INTO accounts (account_id, owner, balance, opened_at, note)"
            " VALUES (%s, %s, 10, timestamp '2024-02-03 04:05:06', repeat('long ', 600))",
            (new, f"owner {new % 40}"),
        )
        chance = self._draw.random()
        at = self._draw.randrange(half, self._next, 2)
        if chance < 0.3:
            cursor.execute("DELETE FROM accounts WHERE account_id = %s", (at,))
        elif chance < 0.5:
            number = self._next + (self._next + half) % 2
            self._next = number + 1
            cursor.execute("UPDATE accounts SET account_id = %s WHERE account_id = %s", (number, at))
        else:
            cursor.execute(f"UPDATE accounts SET {self._said} WHERE account_id = %s", (at,))

    def add_tier(self) -> None:
        """Add a column, without a default: of a default the log says nothing until a row is next written."""
        self._alter("ALTER TABLE accounts ADD COLUMN tier text")
        self._said = "tier = 'gold'"

    def rename_email(self) -> None:
        """Rename a column."""
        self._alter("ALTER TABLE accounts RENAME COLUMN email TO contact")

    def _alter(self, statement: str) -> None:
        self._one.cursor().execute(statement)
        self._one.commit()

    def told(self) -> Told:
        """Ask what the accounts are now, at an LSN that is exact: between two commits."""
        with exact(self.server, self.database, "accounts") as (position, cursor):
            cursor.execute("SELECT to_jsonb(accounts)->>'tier', to_jsonb(accounts)->>'email', to_jsonb(accounts)->>'contact',"
                           " account_id::text, opened_at::date, owner, balance, note FROM accounts")  # fmt: skip
            rows = [
                {"account_id": number, "opened_on": opened, "owner": owner, "contact": contact or email}
                | {"balance": balance, "note": note, "tier": tier}
                for tier, email, contact, number, opened, owner, balance, note in cursor.fetchall()
            ]
        kinds = {name: kind for name, kind in dtypes(ACCOUNT_HISTORY.model).items() if name in ACCOUNT}
        return Told(position, pl.DataFrame(rows, schema={name: kinds[name] for name in ACCOUNT}))

    def mark(self, text: str) -> None:
        """Write a last row that the engine can be waited for by."""
        self._one.cursor().execute(
            "INSERT INTO accounts (account_id, owner, balance, opened_at) VALUES (%s, %s, 0, timestamp '2024-02-03')",
            (self._next, text),
        )
        self._one.commit()
        self._next += 1

    def drop_slot(self, slot: str) -> None:
        """Drop a slot, as somebody does who needs the room that its log takes."""
        self._one.cursor().execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        self._one.commit()

    def slot_begins(self, slot: str) -> int | None:
        """Return where a slot begins; None while there is none."""
        cursor = self._one.cursor()
        cursor.execute("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", (slot,))
        found = cursor.fetchone()
        self._one.commit()
        return None if found is None or found[0] is None else lsn(found[0])
