"""Instants of the ledger: the present one, and what is done about a clock that was set back.

Put here the clock that rows are written by, and how its instants are held against those on record: no decision is recorded
before what it is about, and no change of a target before the one that it follows.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import sqlalchemy as sa

from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import PublicationState
from resources.ledger.cells import legible
from resources.ledger.tables import (
    acceptances,
    amendments,
    approvals,
    attempts,
    policy_decisions,
    publications,
    runs,
    transitions,
    verdicts,
)
from resources.ledger.transactions import LedgerEngine, said_by_server

CLOCK_TOLERANCE = timedelta(minutes=1)
"""How far the clocks of two machines may be apart before it is said."""
_OF_A_RUN = (runs.c.updated_at, transitions.c.at, approvals.c.at, acceptances.c.at, amendments.c.at)
_OF_ALL = (
    runs.c.updated_at,
    transitions.c.at,
    approvals.c.at,
    attempts.c.started_at,
    verdicts.c.at,
    publications.c.started_at,
    acceptances.c.at,
)
_MOMENT = timedelta(microseconds=1)
"""What instants of a ledger differ by at least."""


def now(of: sa.Connection | sa.Engine) -> datetime:
    """Return the present instant (UTC) by the clock that a ledger was opened with, or that of its server: see `LedgerEngine.now`."""
    engine = of.engine
    assert isinstance(engine, LedgerEngine)
    return engine.now(of if isinstance(of, sa.Connection) and of.in_transaction() else None)


def shared_clock(engine: sa.Engine) -> Callable[[], datetime] | None:
    """Return what tells the present instant by a server's clock, as `now` does; None where this machine's is all there is."""
    assert isinstance(engine, LedgerEngine)
    return None if engine.server_time is None else engine.now


def shared(connection: sa.Connection) -> datetime:
    """Return the present instant by the clock that all hosts of a ledger share, as its server says it at this very moment."""
    engine = connection.engine
    assert isinstance(engine, LedgerEngine)
    return engine.clock() if engine.time_of_server is None else said_by_server(connection)


def latest(connection: sa.Connection) -> datetime:
    """Return now, or the newest instant on record where the clock stands before it."""
    newest = now(connection)
    for column in _OF_ALL:
        recorded: datetime | None = connection.execute(sa.select(sa.func.max(column))).scalar()
        newest = newest if recorded is None else max(newest, recorded)
    return newest


def after_changes_of(connection: sa.Connection, target: str) -> datetime:
    """Return the present instant, but after that of every change of a target on record: their order is that of the instants.

    Ask for it once the target is locked: whoever waited for the lock changes it later than who held it. A clock that was
    set back does not count.
    """
    newest = connection.execute(
        sa.select(sa.func.max(publications.c.ended_at))
        .join(runs, runs.c.run_id == publications.c.run_id)
        .where(runs.c.target == target, publications.c.state == PublicationState.COMMITTED)
    ).scalar()
    present = now(connection)
    with legible("ledger publications of " + target):  # the calendar's last instant has none after it
        return present if newest is None else max(present, newest + _MOMENT)


def require_after_run(connection: sa.Connection, run_id: str, at: datetime) -> None:
    """Refuse to record a decision about a run before what is on record of it.

    Raises:
        TransitionRefused: if the clock stands before that.
    """
    for column in _OF_A_RUN:
        newest = connection.execute(sa.select(sa.func.max(column)).where(column.table.c.run_id == run_id)).scalar()
        _require(newest, at, f"run '{run_id}'")


def after_decisions(connection: sa.Connection, run_id: str, at: datetime) -> datetime:
    """Return an instant, but after every decision about a run on record: what makes them void is later than they are."""
    newest: datetime | None = connection.execute(
        sa.select(sa.func.max(approvals.c.at)).where(approvals.c.run_id == run_id)
    ).scalar()
    return at if newest is None else max(at, newest + _MOMENT)


def require_after_policy(connection: sa.Connection, at: datetime) -> None:
    """Refuse to record a decision about the policy before the one that is on record.

    Raises:
        TransitionRefused: if the clock stands before that.
    """
    _require(connection.execute(sa.select(sa.func.max(policy_decisions.c.at))).scalar(), at, "the policy")


def _require(newest: datetime | None, at: datetime, what: str) -> None:
    if newest is None or at >= newest:
        return
    raise TransitionRefused(
        Problem(
            f"the clock stands at {at:%Y-%m-%d %H:%M:%S} UTC, and {what} was last changed at {newest:%Y-%m-%d %H:%M:%S} UTC",
            "nothing is decided before what it is about",
            "set the machine's clock right; if it was ahead before, wait until it has come there again",
        )
    )
