"""What the ledger says of things left open, and closing them: one transaction each, a compare-and-set.

Put here the questions and corrections that only `backfill doctor` and `backfill gc` have. What is right and safe is
decided there; a correction whose row is no longer as it was looked at changes nothing and says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from manifests.lifecycle import AttemptState, ChunkState, PublicationState, RunState
from resources.ledger import instants
from resources.ledger.admissions import end_admissions
from resources.ledger.cells import IllegibleRow, parsed
from resources.ledger.chunks import STAGED, ChunkRecord
from resources.ledger.freezes import FreezeRecord
from resources.ledger.leases import LOST, LeaseRecord
from resources.ledger.part import Part
from resources.ledger.publications import PublicationRecord
from resources.ledger.runs import locked_run, move_run
from resources.ledger.tables import (
    approvals,
    attempts,
    chunks,
    freezes,
    leases,
    publications,
    runs,
    transitions,
    verdicts,
    watermarks,
)
from resources.ledger.watermarks import WatermarkRecord
from resources.processes import has_ended

_INSTANTS = (
    runs.c.updated_at,
    transitions.c.at,
    chunks.c.updated_at,
    attempts.c.started_at,
    attempts.c.ended_at,
    verdicts.c.at,
    approvals.c.at,
    publications.c.started_at,
    publications.c.ended_at,
    leases.c.acquired_at,
    watermarks.c.at,
)


class Repairs(Part):
    """What a ledger has open, and corrections of it."""

    def newest_instants(self) -> dict[str, datetime]:
        """Return the newest instant of each kind of record, by table and column, without those that cannot be read."""
        newest = {}
        with self.engine.connect() as connection:
            for column in _INSTANTS:
                with suppress(IllegibleRow):  # the journal names the cell, `illegible_leases` that of a lease
                    found = connection.execute(sa.select(sa.func.max(column))).scalar()
                    if found is not None:
                        newest[f"{column.table.name}.{column.name}"] = found
        return newest

    def open_leases(self) -> list[LeaseRecord]:
        """Return the leases that nobody has ended and that can be read."""
        found = []
        open_ = sa.select(leases.c.id).where(leases.c.ended_at.is_(None)).order_by(leases.c.id)
        with self.engine.connect() as connection:
            for number in connection.execute(open_).scalars().all():
                with suppress(IllegibleRow):
                    row = connection.execute(sa.select(leases).where(leases.c.id == number)).one()
                    found.append(LeaseRecord.of(row))
        return found

    def illegible_leases(self) -> dict[int, tuple[str, bool]]:
        """Return by number why leases cannot be read, and whether nobody has ended them: the journal has nothing of leases."""
        with self.engine.connect() as connection:
            with suppress(IllegibleRow):
                connection.execute(sa.select(leases)).all()
                return {}
            is_open = leases.c.ended_at.is_(None)
            found = {}
            for number, open_ in connection.execute(sa.select(leases.c.id, is_open).order_by(leases.c.id)).all():
                try:
                    connection.execute(sa.select(leases).where(leases.c.id == number)).one()
                except IllegibleRow as refusal:
                    found[number] = (refusal.problems[0].what, bool(open_))
            return found

    def lose_lease(self, token: int) -> bool:
        """End a lease as lost: it holds nobody up any more, and whoever takes its days next fences it."""
        with self.engine.begin() as connection:
            changed = connection.execute(
                leases.update()
                .where(leases.c.id == token, leases.c.ended_at.is_(None))
                .values(ended_at=instants.now(connection), ended_how=LOST)
            )
            return changed.rowcount == 1

    def lease(self, token: int) -> LeaseRecord | None:
        """Return the lease with this fencing token."""
        found = self._stored(LeaseRecord, sa.select(leases).where(leases.c.id == token))
        return found[0] if found else None

    def newest_token(self) -> int:
        """Return the highest fencing token that was given; 0 if none was."""
        with self.engine.connect() as connection:
            return connection.execute(sa.select(sa.func.max(leases.c.id))).scalar() or 0

    def is_given_up(self, intent: PublicationRecord) -> bool:
        """Return whether nobody is at what an intent says: its lease has ended, or the process that held it is provably dead."""
        held = None if intent.token is None else self.lease(intent.token)
        return held is not None and (held.ended_at is not None or has_ended(held))

    def open_freezes(self) -> list[FreezeRecord]:
        """Return the freezes that nobody has ended."""
        return self._stored(FreezeRecord, sa.select(freezes).where(freezes.c.ended_at.is_(None)).order_by(freezes.c.id))

    def open_watermarks(self) -> list[WatermarkRecord]:
        """Return the watermarks that hold today."""
        return self._stored(
            WatermarkRecord, sa.select(watermarks).where(watermarks.c.ended_at.is_(None)).order_by(watermarks.c.id)
        )

    def named_paths(self, run_id: str) -> set[str]:
        """Return every text that the chunks of a run hold about files: computed and derived files, outlines, whatever it names."""
        named: set[str] = set()
        query = sa.select(chunks.c.files, chunks.c.derived, chunks.c.replaced, chunks.c.measures)
        with self.engine.connect() as connection:
            rows = connection.execute(query.where(chunks.c.run_id == run_id)).all()
        for row in rows:
            for name, text in row._mapping.items():  # noqa: SLF001 - SQLAlchemy's public name
                column = chunks.c[name]
                named.update(_texts(parsed(column, text, dict) if name == "measures" else parsed(column, text, list)))
        return named

    def end_attempt(self, run_id: str, attempt: int, error: str) -> bool:
        """Record that the process of a running attempt is no more."""
        with self.engine.begin() as connection:
            changed = connection.execute(
                attempts.update()
                .where(
                    attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.state == AttemptState.RUNNING
                )
                .values(state=AttemptState.FAILED, ended_at=instants.now(connection), error=error)
            )
            end_admissions(connection, run_id)
            return changed.rowcount == 1

    def close_publication(self, publication: int, state: PublicationState, note: str) -> bool:
        """Close a publication that is still an intent."""
        with self.engine.begin() as connection:
            changed = connection.execute(
                publications.update()
                .where(publications.c.id == publication, publications.c.state == PublicationState.INTENT)
                .values(state=state, note=note, ended_at=instants.now(connection))
            )
            return changed.rowcount == 1

    def plan_again(self, run_id: str, chunk: ChunkRecord, why: str, actor: str) -> bool:
        """Set a staged chunk back, so that it is computed again; a run that was STAGED is RUNNING again."""
        with self.engine.begin() as connection:
            record = locked_run(connection, run_id)
            if record.state not in {RunState.RUNNING, RunState.STAGED, RunState.FAILED}:
                return False
            changed = connection.execute(
                chunks.update()
                .where(
                    chunks.c.run_id == run_id,
                    chunks.c.chunk == chunk.chunk,
                    chunks.c.attempt == chunk.attempt,
                    chunks.c.state.in_(STAGED),
                )
                .values(
                    state=ChunkState.PLANNED,
                    rows=None,
                    bytes=None,
                    files="[]",
                    derived="[]",
                    replaced="[]",
                    digest=None,
                    measures="{}",
                    error=why,
                    updated_at=instants.now(connection),
                )
            )
            if changed.rowcount != 1:
                return False
            if record.state is RunState.STAGED:
                move_run(connection, run_id, record.state, RunState.RUNNING, actor, f"chunk {chunk.chunk}: {why}")
            return True

    def end_freeze(self, freeze: int, at: datetime) -> bool:
        """End a freeze whose time is over."""
        with self.engine.begin() as connection:
            changed = connection.execute(
                freezes.update()
                .where(freezes.c.id == freeze, freezes.c.ended_at.is_(None), freezes.c.until_at < at)
                .values(ended_at=at)
            )
            return changed.rowcount == 1


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
