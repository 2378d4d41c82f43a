"""Freezes, and the LIVE publications that wait for them.

Put here the SQL of both. A freeze is written when a run whose manifest asks for it is approved, and ends with the run
or after its hours; who asks whether a scope is frozen, and what is done then, is the publisher's and the sensor's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import ClassVar

import sqlalchemy as sa

from manifests.lifecycle import RunState
from manifests.model import DayRange, Mode, RunManifest
from manifests.plan import Plan
from manifests.reading import stored_manifest
from resources.ledger.part import Part, Stored
from resources.ledger.tables import freezes, runs, waits

OVER = frozenset({RunState.PUBLISHED, RunState.REJECTED, RunState.CANCELLED, RunState.ROLLED_BACK})
"""States that end the freeze of a run, and its own waiting."""
_WHY = "frozen by "
"""What the reason of a wait begins with: runs may wait for other things, too."""
_OPEN: Sequence[sa.ColumnElement[bool]] = (waits.c.ended_at.is_(None), waits.c.why.startswith(_WHY))


@dataclass(frozen=True)
class Frozen:
    """Days of a target (both inclusive) into which LIVE does not publish until an instant, for the sake of a run."""

    run_id: str
    target: str
    start: date
    end: date
    until: datetime

    def __str__(self) -> str:
        return f"{self.run_id} ({self.start} to {self.end}, at most until {self.until:%Y-%m-%d %H:%M} UTC)"


def begin(connection: sa.Connection, manifest: RunManifest, at: datetime) -> None:
    """Freeze the scope of a run that is being approved, if its manifest asks for it and it will publish."""
    if manifest.freeze is None or not manifest.execution_mode.publishes:
        return
    scope = manifest.target.publish_range
    connection.execute(
        freezes.insert().values(
            target=manifest.target.table,
            run_id=manifest.run_id,
            start_day=scope.start,
            end_day=scope.end,
            from_at=at,
            until_at=at + timedelta(hours=manifest.freeze.hours),
        )
    )


def end(connection: sa.Connection, run_id: str, at: datetime) -> None:
    """End the freeze of a run that is over, and every wait that was for it or of it."""
    connection.execute(
        freezes.update().where(freezes.c.run_id == run_id, freezes.c.ended_at.is_(None)).values(ended_at=at)
    )
    connection.execute(waits.update().where(waits.c.run_id == run_id, *_OPEN).values(ended_at=at))
    targets = sa.select(runs.c.target).where(runs.c.run_id == run_id)
    waiting = sa.select(runs.c.target, runs.c.manifest).join(waits, runs.c.run_id == waits.c.run_id)
    for row in connection.execute(waiting.where(waits.c.target.in_(targets), *_OPEN)).all():
        other = stored_manifest(row.manifest)
        _settle(connection, other.run_id, row.target, other.target.publish_range, at)


@dataclass(frozen=True)
class FreezeRecord(Stored):
    """One freeze as it is on record; both days are included."""

    table: ClassVar[sa.Table] = freezes

    id: int
    target: str
    run_id: str
    start_day: date
    end_day: date
    from_at: datetime
    until_at: datetime
    ended_at: datetime | None


class Freezes(Part):
    """The freezes of a ledger, and the LIVE runs that wait for them."""

    def ask(self, plan: Plan, at: datetime) -> tuple[Frozen, ...]:
        """Return what a run must wait for before it publishes, and have its waiting on record, or the end of it.

        Only LIVE waits: everybody else is held by the approval of his own run.
        """
        if plan.mode is not Mode.LIVE:
            return ()
        with self.engine.begin() as connection:
            return _settle(connection, plan.run_id, plan.target, plan.publish_range, at)

    def waiting(self, target: str | None = None) -> dict[str, str]:
        """Return why each run that waits for a freeze (of a target, if given) does."""
        query = sa.select(waits.c.run_id, waits.c.why).where(*_OPEN).order_by(waits.c.id)
        if target is not None:
            query = query.where(waits.c.target == target)
        with self.engine.connect() as connection:
            return {row.run_id: row.why for row in connection.execute(query)}

    def waits_of(self, run_id: str) -> int:
        """Return how often a run has begun to wait for a freeze."""
        query = sa.select(sa.func.count()).where(waits.c.run_id == run_id, waits.c.why.startswith(_WHY))
        with self.engine.connect() as connection:
            return int(connection.execute(query).scalar_one())


def _settle(connection: sa.Connection, run_id: str, target: str, scope: DayRange, at: datetime) -> tuple[Frozen, ...]:
    """Make the wait row of a run say what is so at an instant, and return what freezes its scope."""
    found = freezing(connection, run_id, target, scope, at)
    is_mine = waits.c.run_id == run_id
    open_wait = connection.execute(sa.select(waits.c.id).where(is_mine, *_OPEN)).first()
    if found and open_wait is None:
        why = _WHY + "; ".join(map(str, found))
        connection.execute(waits.insert().values(run_id=run_id, target=target, why=why, since_at=at))
    elif not found and open_wait is not None:
        connection.execute(waits.update().where(is_mine, *_OPEN).values(ended_at=at))
    return found


def freezing(connection: sa.Connection, run_id: str, target: str, scope: DayRange, at: datetime) -> tuple[Frozen, ...]:
    """Return what freezes days of a target for a run at an instant."""
    frozen = freezes.c
    rows = connection.execute(
        sa.select(freezes)
        .where(
            frozen.target == target,
            frozen.run_id != run_id,
            frozen.ended_at.is_(None),
            frozen.until_at > at,
            frozen.start_day <= scope.end,
            frozen.end_day >= scope.start,
        )
        .order_by(frozen.id)
    )
    return tuple(Frozen(row.run_id, row.target, row.start_day, row.end_day, row.until_at) for row in rows)
