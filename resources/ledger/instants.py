"""Decisions never go back in time: none is recorded before what it is about.

Put here what a decision's instant is held against. Where a clock that was set back must make nothing younger, see
`resources.ledger.approvals.latest`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from manifests.errors import Problem, TransitionRefused
from resources.ledger.tables import acceptances, amendments, approvals, policy_decisions, runs, transitions

CLOCK_TOLERANCE = timedelta(minutes=1)
"""How far the clocks of two machines may be apart before it is said."""
_OF_A_RUN = (runs.c.updated_at, transitions.c.at, approvals.c.at, acceptances.c.at, amendments.c.at)
_MOMENT = timedelta(microseconds=1)


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
