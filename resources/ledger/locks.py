"""What keeps a ledger transaction that reads and then writes from being overtaken.

Put here the locks only; the transactions that take them are the ledger's and its neighbours'.

On SQLite every transaction that writes begins with BEGIN IMMEDIATE (`transactions`): writers come one after the other, and
these functions add nothing. On PostgreSQL transactions are READ COMMITTED: between a SELECT and the write that relies on
it another process may commit. So a transaction that decides by what it reads first locks what it decides about, and reads
after that:

- of one run (its plan and approval, the number of its next attempt, its chunks and what they add up to): `lock_run`;
- of a target (which run holds which chunk, which run superseded which): `lock_target`, all of the target's runs;
- under a lease of a scope (what its holder decides, from what it has seen in the table): `require_lease`, so that a
  holder that was paused until another one took its scope over changes nothing in the ledger, either;
- of the journal (which entry is the newest): `lock_journal`, taken last of all, so that nobody waits in a circle for it;
- of the schema, where there is no row to lock yet: `lock_schema`;
- of the policy in force, which is the newest of many rows: `lock_policy`;
- of the quarantined rows of an input table, of each of which the newest of many rows counts: `lock_quarantine`.

A first plan has no row to lock: of two that are recorded at once the primary key refuses one, and the ledger does it
again. Rather locks than SERIALIZABLE: nothing has to be repeated, and the loser waits and is told what it lost to. Runs
are locked one at a time, or all of a target ordered by id, and before anything else is written: nobody waits in a
circle. A lock ends with its transaction; FOR NO KEY UPDATE lets others insert rows that refer to the run meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection

from manifests.errors import LeaseLost, Problem
from resources.ledger.tables import leases, runs

_WAIT = "60s"
"""How long a transaction waits for another one, and how long one may stand still that others wait for."""
_SCHEMA = 0x6C65646765720001
"""The advisory lock of a ledger's schema: "ledger" in ASCII, and a number."""
_POLICY = 0x6C65646765720002
"""The advisory lock of the policy in force."""
_JOURNAL = 0x6C65646765720003
"""The advisory lock of a ledger's journal."""


def lock_run(connection: sa.Connection, run_id: str) -> None:
    """Let no other transaction change a run, or what belongs to it, until this one has ended."""
    connection.execute(sa.select(runs.c.run_id).where(runs.c.run_id == run_id).with_for_update(key_share=True))


def lock_runs(connection: sa.Connection, run_ids: Iterable[str]) -> None:
    """Let no other transaction change some runs of a target until this one has ended; they are locked ordered by id, as all of them are."""
    for run_id in sorted(set(run_ids)):
        lock_run(connection, run_id)


def lock_target(connection: sa.Connection, target: str) -> None:
    """Let no other transaction change any run of a target, or who holds its chunks, until this one has ended."""
    connection.execute(
        sa.select(runs.c.run_id).where(runs.c.target == target).order_by(runs.c.run_id).with_for_update(key_share=True)
    )


def require_lease(connection: sa.Connection, token: int) -> None:
    """Let no other transaction take a lease over until this one has ended.

    Raises:
        LeaseLost: if it was taken over, or given back.
    """
    held = sa.select(leases.c.target, leases.c.ended_at).where(leases.c.id == token)
    found = connection.execute(held.with_for_update(key_share=True)).one()
    if found.ended_at is not None:
        raise LeaseLost(lost(found.target, token))


def lost(target: str, token: int) -> Problem:
    """Return what is said to a publisher that lost its lease."""
    return Problem(
        f"lease {token} of {target} was lost: it expired, and somebody else has taken its scope over",
        "who has lost a lease cannot commit, even if it was only paused",
        "give the same command again: it finds what has landed; a publication lands if the table still is what the plan was made on",
    )


def lock_schema(connection: sa.Connection) -> None:
    """Let no other transaction migrate the ledger until this one has ended."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_SCHEMA)))


def lock_policy(connection: sa.Connection) -> None:
    """Let no other transaction decide about the policy in force until this one has ended."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_POLICY)))


def hold_policy(connection: sa.Connection) -> None:
    """Let no other transaction put a policy in force until this one has ended; several hold it at once."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock_shared(_POLICY)))


def lock_quarantine(connection: sa.Connection, table: str) -> None:
    """Let no other transaction decide about the quarantined rows of an input table until this one has ended."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(f"quarantine of {table}"))))


def lock_journal(connection: sa.Connection) -> None:
    """Let no other transaction write an entry of the journal until this one has ended; taken last, just before the commit."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_JOURNAL)))


def bound_waiting(engine: sa.Engine) -> None:
    """Let no connection of a PostgreSQL engine wait for ever, nor a paused process make the others wait for ever."""

    @sa.event.listens_for(engine, "connect")
    def _(connection: DBAPIConnection, _record: object) -> None:
        cursor = connection.cursor()
        cursor.execute(f"SET lock_timeout = '{_WAIT}'")
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{_WAIT}'")
        cursor.close()
        connection.commit()
