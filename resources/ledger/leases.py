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
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar

import sqlalchemy as sa

from manifests.errors import LeaseHeld, LeaseLost, Problem
from resources.ledger import instants
from resources.ledger.cells import IllegibleRow
from resources.ledger.locks import lost
from resources.ledger.part import Stored
from resources.ledger.tables import leases
from resources.ledger.transactions import said_by_server
from resources.processes import has_ended, this_process

RELEASED, LOST, FENCED = "RELEASED", "LOST", "FENCED"
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Lease:
    """The right to publish into days of a target, both inclusive.

    `lost` are the tokens of leases whose scope this one took over: they must be fenced before anything is published.
    """

    token: int
    target: str
    start: date
    end: date
    run_id: str
    action: str
    lost: tuple[int, ...]


@dataclass(frozen=True)
class LeaseRecord(Stored):
    """One lease as it is on record; its number is the fencing token."""

    table: ClassVar[sa.Table] = leases

    id: int
    target: str
    start_day: date
    end_day: date
    run_id: str
    action: str
    host: str
    pid: int
    process: str
    acquired_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    ended_how: str | None


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
            IllegibleRow: if nobody has ended a lease of the target that cannot be read: who holds what, nobody can say.
        """
        with self._engine.begin() as connection:
            _one_at_a_time(connection, target)
            holders = [one for one in _open(connection, target) if one.start_day <= end and one.end_day >= start]
            ended = _lost(connection, target, start, end)
            at = self._instant(connection, target)  # after the look: no lease begins before those it saw had ended
            held = [one for one in holders if one.expires_at > at and not _is_gone(one)]
            if held:
                raise LeaseHeld(_held(one) for one in held)
            lost = tuple(sorted({*ended, *(one.id for one in holders)}))
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
            return Lease(int(result.inserted_primary_key[0]), target, start, end, run_id, action, lost)

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
            at = self._instant(connection, lease.target)
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
                .values(ended_at=self._instant(connection, lease.target), ended_how=how)
            )

    def _instant(self, connection: sa.Connection, target: str) -> datetime:
        """Return the present instant, never before the newest one on record: a clock that was set back does not count.

        Nor does an instant after which the calendar has no room for a lease: no clock has said it. A ledger on a server is
        asked for its clock, which all hosts share; SQLite has this machine's.
        """
        server = connection.dialect.name == "postgresql"
        present = said_by_server(connection) if server else instants.now(connection)
        newest = [one for one in _newest(connection, target) if one < _LAST - self._lasts]
        return max(present, *newest) if newest else present


def _one_at_a_time(connection: sa.Connection, target: str) -> None:
    """Let the transactions that take leases of a target follow one another.

    SQLite's ledger begins each transaction as the only writer; PostgreSQL has a lock for it, given back at the end.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(f"lease of {target}"))))


def _open(connection: sa.Connection, target: str) -> list[sa.Row[Any]]:
    """Return the leases of a target that nobody has ended.

    Raises:
        IllegibleRow: naming the first that cannot be read.
    """
    open_ = sa.select(leases.c.id).where(leases.c.target == target, leases.c.ended_at.is_(None)).order_by(leases.c.id)
    found = []
    for token in connection.execute(open_).scalars().all():
        try:
            found.append(connection.execute(sa.select(leases).where(leases.c.id == token)).one())
        except IllegibleRow as refusal:
            what = f"lease {token} of {target}: {refusal.problems[0].what}"
            fix = "`backfill doctor` says whose it is; `backfill doctor --repair` ends it, and the next run to take its days fences it"
            raise IllegibleRow(Problem(what, "who holds a day is known before it is changed", fix)) from refusal
    return found


def _lost(connection: sa.Connection, target: str, start: date, end: date) -> list[int]:
    """Return the tokens of leases of these days that ended lost.

    One whose days cannot be read may be of these: a fence more does no harm.
    """
    ended = sa.select(leases.c.id).where(
        leases.c.target == target, leases.c.ended_at.is_not(None), leases.c.ended_how == LOST
    )
    found = []
    for token in connection.execute(ended).scalars().all():
        mine = leases.c.id == token
        with suppress(IllegibleRow):
            days = connection.execute(sa.select(leases.c.start_day, leases.c.end_day).where(mine)).one()
            if days.start_day > end or days.end_day < start:
                continue
        found.append(token)
    return found


def _newest(connection: sa.Connection, target: str) -> list[datetime]:
    """Return the newest instants on record of a target's leases; of leases that cannot be read, what can be."""
    instants = (leases.c.acquired_at, leases.c.ended_at)
    query = sa.select(*map(sa.func.max, instants)).where(leases.c.target == target)
    try:
        return [one for one in connection.execute(query).one() if one is not None]
    except IllegibleRow:  # the doctor names them
        known = connection.execute(sa.select(leases.c.id).where(leases.c.target == target)).scalars().all()
    found = []
    for token in known:
        for column in instants:
            with suppress(IllegibleRow):
                found.append(connection.execute(sa.select(column).where(leases.c.id == token)).scalar())
    return [one for one in found if one is not None]


def _is_gone(holder: sa.Row[Any]) -> bool:
    """Tell whether a lease's process ran on this machine and has ended."""
    return has_ended(holder)


def _held(holder: sa.Row[Any]) -> Problem:
    return Problem(
        f"{holder.target} {holder.start_day} to {holder.end_day} is held by run '{holder.run_id}' ({holder.action}, "
        f"process {holder.pid} on {holder.host}, lease {holder.id}) since {holder.acquired_at:%Y-%m-%d %H:%M:%S} UTC",
        "one publisher at a time changes a scope",
        f"run the same command again when it is done; its lease ends with its process, else at "
        f"{holder.expires_at:%Y-%m-%d %H:%M:%S} UTC",
    )
