"""Watermarks: up to which event day, and with which source snapshot, a target is complete.

Put here the rules by which a watermark advances and is withdrawn. Both happen in the transaction in which the ledger
accepts a run or undoes it, and nowhere else. A row is never changed but ended, and the newest that is not ended counts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import ClassVar

import sqlalchemy as sa

from manifests.chunks import Chunking, key_of
from manifests.model import Corrections, Mode
from manifests.plan import Plan
from resources.ledger.part import Part, Stored
from resources.ledger.plans import said
from resources.ledger.tables import accepted_versions, runs, watermarks


@dataclass(frozen=True)
class Watermark:
    """A target is complete up to `complete_until` with all that its source knew at a snapshot.

    `source_at` is when that snapshot was committed; `run_id` is the run that brought the target there.
    """

    target: str
    run_id: str
    complete_until: date
    source_snapshot_id: int
    source_at: datetime
    at: datetime


@dataclass(frozen=True)
class WatermarkRecord(Stored):
    """One watermark as it is on record."""

    table: ClassVar[sa.Table] = watermarks

    id: int
    target: str
    run_id: str
    complete_until: date
    source_snapshot_id: int
    at: datetime
    ended_at: datetime | None


class Watermarks(Part):
    """The watermarks of a ledger's targets."""

    def current(self, target: str) -> Watermark | None:
        """Return the watermark of a target, or None where nothing is known to be complete."""
        with self.engine.connect() as connection:
            return _current(connection, target)


def advance(connection: sa.Connection, plan: Plan, at: datetime) -> None:
    """Advance the target's watermark by a run that is being accepted, if it goes on from where the target is complete.

    A run that reads an older snapshot of a source than the watermark's, that leaves days out in between, or that does not
    make its whole range complete (one without time, a merge of some entities, some of its values, corrections beside unchanged rows) moves nothing; nor does
    one of a newer source that ends where the target is complete already, if it is not LIVE's and begins later than the run that
    brought it there. Where the
    target has no watermark, a run that holds its newest chunk sets one.
    """
    if not _completes(plan):
        return
    present, until = _current(connection, plan.target), plan.complete_until
    if present is None:
        moves = not _holds_later_chunks(connection, plan)
    else:
        follows = plan.publish_range.start <= present.complete_until + timedelta(days=1)
        further = until > present.complete_until
        # of each source; one that the target is not known to have been computed from is new
        then = _read_at(connection, present) | {plan.source: present.source_at}
        now = {one.table: one.committed_at for one in plan.sources} | {plan.source: plan.source_committed_at}
        committed = [(at, then.get(table)) for table, at in now.items() if at is not None]
        is_newer = all(was is None or at >= was for at, was in committed)
        # LIVE begins where its policy rewinds to; what another run does not cover of the days before, it does not know either
        covers = plan.mode is Mode.LIVE or plan.publish_range.start <= _begins(connection, present.run_id)
        same_days_newer_source = (
            covers and until == present.complete_until and any(was is None or at > was for at, was in committed)
        )
        moves = follows and is_newer and (further or same_days_newer_source)
    if moves:
        connection.execute(
            watermarks.insert().values(
                target=plan.target,
                run_id=plan.run_id,
                complete_until=until,
                source_snapshot_id=plan.source_snapshot_id,
                at=at,
            )
        )


def withdraw(connection: sa.Connection, plan: Plan, at: datetime) -> None:
    """End the watermark of a run that is being rolled back, and those that went on from it.

    What counts then is the watermark from before the run: LIVE covers the days since once more.
    """
    mine = sa.select(sa.func.min(watermarks.c.id)).where(
        watermarks.c.run_id == plan.run_id, watermarks.c.ended_at.is_(None)
    )
    first = connection.execute(mine).scalar()
    if first is not None:
        connection.execute(
            watermarks.update()
            .where(watermarks.c.target == plan.target, watermarks.c.id >= first, watermarks.c.ended_at.is_(None))
            .values(ended_at=at)
        )


def _completes(plan: Plan) -> bool:
    if plan.chunking is Chunking.WHOLE:
        return False  # no day follows
    return plan.merge is None and plan.values is None and plan.corrections is not Corrections.INSTEAD


def _current(connection: sa.Connection, target: str) -> Watermark | None:
    row = connection.execute(
        sa.select(watermarks, said(runs.c.plan, "source_committed_at").label("source_at"))
        .join(runs, runs.c.run_id == watermarks.c.run_id)
        .where(watermarks.c.target == target, watermarks.c.ended_at.is_(None))
        .order_by(watermarks.c.id.desc())
        .limit(1)
    ).one_or_none()
    if row is None:
        return None
    source_at = datetime.fromisoformat(row.source_at).astimezone(UTC)
    return Watermark(target, row.run_id, row.complete_until, row.source_snapshot_id, source_at, row.at)


def _read_at(connection: sa.Connection, present: Watermark) -> dict[str, datetime]:
    """Return when the snapshots were committed that a target is complete with, of its sources beside the first."""
    query = sa.select(said(runs.c.plan, "sources")).where(runs.c.run_id == present.run_id)
    text = connection.execute(query).scalar()
    return {
        one["table"]: datetime.fromisoformat(one["committed_at"]).astimezone(UTC)
        for one in json.loads(text or "[]")
        if one["committed_at"] is not None
    }


def _begins(connection: sa.Connection, run_id: str) -> date:
    """Return the first day of a run's publish range."""
    text = connection.execute(sa.select(said(runs.c.plan, "publish_range")).where(runs.c.run_id == run_id)).scalar()
    return date.fromisoformat(json.loads(text or "{}")["start"])


def _holds_later_chunks(connection: sa.Connection, plan: Plan) -> bool:
    """Whether somebody holds a chunk of the target after the run's last day; `plan` is of a target with time."""
    # the times of one chunking are texts of one length, and in order; of hours the day says it
    last = key_of(Chunking.DAY if plan.chunking is Chunking.HOUR else plan.chunking, plan.publish_range.end)
    newest = connection.execute(
        sa.select(sa.func.max(sa.func.substr(accepted_versions.c.chunk, 1, len(last)))).where(
            accepted_versions.c.target == plan.target, accepted_versions.c.ended_at.is_(None)
        )
    ).scalar()
    return newest is not None and newest > last
