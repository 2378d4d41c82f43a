"""Leases: who may publish into which days of a target, and how one that lost that right is kept out.

Put here who holds a scope, since when and until when. A lease is polite, a fence is certain: a holder's lease may run
out while it sleeps, and no clock can tell it so before its next commit. Whoever takes such a scope over is therefore
given the tokens of the leases that were lost, fences each of them in the target itself (`Lakehouse.fence`), and only
then works. A commit that carries a fenced token fails in the catalog, however long its process slept. So nothing that
matters for the data rests on a clock: a wrong one can only make somebody wait, or try again.

A token is the lease's row id: it only grows. A lease ends RELEASED by its holder; LOST once its holder does not know
what came of a commit, or somebody has taken its scope over, and it must still be fenced; FENCED when that is done. A new holder is given every overlapping lease that is LOST,
not only those it found expired itself: the one before it may have died before it could fence.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import sqlalchemy as sa

from manifests.errors import LeaseHeld, LeaseLost, Problem
from resources.ledger import now
from resources.locks import lost
from resources.processes import has_ended, this_process
from resources.tables import Utc, leases

RELEASED, LOST, FENCED = "RELEASED", "LOST", "FENCED"


@dataclass(frozen=True)
class Lease:
    """The right to publish into days of a target, both inclusive.

    `lost` are the tokens of leases whose scope this one took over, `losers` the runs that held them: they must be fenced
    before anything is published.
    """

    token: int
    target: str
    start: date
    end: date
    run_id: str
    action: str
    lost: tuple[int, ...]
    losers: tuple[str, ...]


class Leases:
    """The leases of a ledger; `seconds` is how long one lasts that nobody releases."""

    def __init__(self, engine: sa.Engine, seconds: float) -> None:
        self._engine = engine
        self._lasts = timedelta(seconds=seconds)

    def acquire(self, target: str, start: date, end: date, run_id: str, action: str) -> Lease:
        """Take the days `start` to `end` of a target.

        An expired lease is taken over, and so is one whose process on this machine has ended.

        Raises:
            LeaseHeld: if somebody holds one of the days.
        """
        with self._engine.begin() as connection:
            _one_at_a_time(connection, target)
            found = connection.execute(
                sa.select(leases)
                .where(
                    leases.c.target == target,
                    leases.c.start_day <= end,
                    leases.c.end_day >= start,
                    sa.or_(leases.c.ended_at.is_(None), leases.c.ended_how == LOST),
                )
                .order_by(leases.c.id)
            ).all()
            at = _instant(connection, target)  # after the look: no lease begins before those it saw had ended
            held = [one for one in found if one.ended_at is None and one.expires_at > at and not _is_gone(one)]
            if held:
                raise LeaseHeld(_held(one) for one in held)
            lost, losers = tuple(one.id for one in found), tuple(one.run_id for one in found)
            connection.execute(
                leases.update()
                .where(leases.c.id.in_(lost), leases.c.ended_at.is_(None))
                .values(ended_at=at, ended_how=LOST)
            )
            result = connection.execute(
                leases.insert().values(
                    target=target,
                    start_day=start,
                    end_day=end,
                    run_id=run_id,
                    action=action,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    process=this_process(),
                    acquired_at=at,
                    expires_at=at + self._lasts,
                )
            )
            assert result.inserted_primary_key is not None
            return Lease(int(result.inserted_primary_key[0]), target, start, end, run_id, action, lost, losers)

    def fenced(self, tokens: Iterable[int]) -> None:
        """Record that lost leases are fenced in their target."""
        with self._engine.begin() as connection:
            connection.execute(
                leases.update()
                .where(leases.c.id.in_(list(tokens)), leases.c.ended_how == LOST)
                .values(ended_how=FENCED)
            )

    def renew(self, lease: Lease) -> None:
        """Refuse if a lease was lost, else let it last its full time again: the check before a commit.

        One that expired while nobody else wanted its scope is still held.

        Raises:
            LeaseLost: if somebody has taken its scope over, or it was released.
        """
        with self._engine.begin() as connection:
            at = _instant(connection, lease.target)
            changed = connection.execute(
                leases.update()
                .where(leases.c.id == lease.token, leases.c.ended_at.is_(None))
                .values(expires_at=at + self._lasts)
            )
        if changed.rowcount != 1:
            raise LeaseLost(lost(lease.target, lease.token))

    def release(self, lease: Lease) -> None:
        """Give a lease back; one that was lost stays so."""
        self._end(lease, RELEASED)

    def lose(self, lease: Lease) -> None:
        """Give a lease back under which something may still land: the next holder of its scope must fence it."""
        self._end(lease, LOST)

    def _end(self, lease: Lease, how: str) -> None:
        with self._engine.begin() as connection:
            connection.execute(
                leases.update()
                .where(leases.c.id == lease.token, leases.c.ended_at.is_(None))
                .values(ended_at=_instant(connection, lease.target), ended_how=how)
            )


def _one_at_a_time(connection: sa.Connection, target: str) -> None:
    """Let the transactions that take leases of a target follow one another.

    SQLite's ledger begins each transaction as the only writer; PostgreSQL has a lock for it, given back at the end.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(f"lease of {target}"))))


def _instant(connection: sa.Connection, target: str) -> datetime:
    """Return the present instant, never before the newest one on record: a clock that was set back does not count.

    A ledger on a server is asked for its clock, which all hosts share; SQLite has this machine's.
    """
    newest = connection.execute(
        sa.select(sa.func.max(leases.c.acquired_at), sa.func.max(leases.c.ended_at)).where(leases.c.target == target)
    ).one()
    server = connection.dialect.name == "postgresql"
    present: datetime = (
        connection.execute(sa.select(sa.func.clock_timestamp(type_=Utc))).scalar_one() if server else now()
    )
    instants: list[datetime] = [present, *(one for one in newest if one is not None)]
    return max(instants)


def _is_gone(holder: sa.Row[tuple[object, ...]]) -> bool:
    """Tell whether a lease's process ran on this machine and has ended."""
    return has_ended(dict(holder._mapping))  # noqa: SLF001 - SQLAlchemy's public name


def _held(holder: sa.Row[tuple[object, ...]]) -> Problem:
    return Problem(
        f"{holder.target} {holder.start_day} to {holder.end_day} is held by run '{holder.run_id}' ({holder.action}, "
        f"process {holder.pid} on {holder.host}, lease {holder.id}) since {holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC",
        "one publisher at a time changes a scope",
        f"run the same command again when it is done; its lease ends with its process, else at "
        f"{holder.expires_at:%Y-%m-%d %H:%M:%S} UTC",
    )
