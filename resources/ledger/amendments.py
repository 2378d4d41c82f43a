"""Amendments: chunks of an approved run that were planned anew, as its conflict policy allows.

Put here what is recorded then and which plan each chunk has. Whether a conflict may be met so is the publisher's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import sqlalchemy as sa

from manifests.lifecycle import AttemptState, ChunkState, RunState
from manifests.plan import Plan
from resources.ledger import instants, plans
from resources.ledger.admissions import end_admissions
from resources.ledger.cells import parsed
from resources.ledger.locks import lock_run, require_lease
from resources.ledger.part import Part, Stored
from resources.ledger.plans import Terms
from resources.ledger.runs import RunRecord, move_run
from resources.ledger.tables import amendments, attempts, chunks

OBSOLETE = AttemptState.OBSOLETE


@dataclass(frozen=True)
class AmendmentRecord(Stored):
    """One time that chunks were planned anew; `chunks` and `plan` are JSON."""

    table: ClassVar[sa.Table] = amendments

    id: int
    run_id: str
    number: int
    chunks: str
    plan: str
    reason: str
    actor: str
    at: datetime


class Amendments(Part):
    """The amendments of a ledger's runs."""

    def replan(
        self, run_id: str, plan: Plan, keys: Sequence[str], *, actor: str, reason: str, token: int | None = None
    ) -> int:
        """Plan chunks of a validated run anew, as its approved conflict policy allows: they are computed again.

        Whoever computes one of them still, by the plan that it had, computes in vain: that attempt is OBSOLETE. Returns the
        number of the amendment.

        Raises:
            StateMoved: if the run is VALIDATED no more.
            LeaseLost: if the lease under which the conflict was found was taken over.
        """
        with self.engine.begin() as connection:
            if token is not None:
                require_lease(connection, token)
            lock_run(connection, run_id)
            at = instants.after_decisions(connection, run_id, instants.now(connection))
            move_run(connection, run_id, RunState.VALIDATED, RunState.RUNNING, actor, reason)
            last = connection.execute(
                sa.select(sa.func.max(amendments.c.number)).where(amendments.c.run_id == run_id)
            ).scalar()
            number = (last or 0) + 1
            connection.execute(
                amendments.insert().values(
                    run_id=run_id,
                    number=number,
                    chunks=json.dumps(list(keys)),
                    plan=plan.to_json(),
                    reason=reason,
                    actor=actor,
                    at=at,
                )
            )
            connection.execute(
                chunks.update()
                .where(chunks.c.run_id == run_id, chunks.c.chunk == sa.bindparam("key"))
                .values(state=ChunkState.PLANNED, files="[]", derived="[]", replaced="[]", digest=None, measures="{}"),
                [{"key": key} for key in keys],
            )
            running = sa.select(attempts.c.attempt, attempts.c.chunks).where(
                attempts.c.run_id == run_id, attempts.c.state == AttemptState.RUNNING
            )
            in_vain = [
                one
                for one in connection.execute(running)
                if not set(keys).isdisjoint(parsed(attempts.c.chunks, one.chunks, list))
            ]
            connection.execute(
                attempts.update()
                .where(attempts.c.run_id == run_id, attempts.c.attempt.in_([one.attempt for one in in_vain]))
                .values(state=OBSOLETE, ended_at=at, error=f"its chunks were planned anew: {reason}")
            )
            end_admissions(connection, run_id)
        return number

    def edition(self, run_id: str) -> int:
        """Return how often chunks of a run were planned anew: the number of its newest amendment, 0 if there is none.

        Ask for it before `plans`: who computes by them names it to `start_attempt`, which finds out what is obsolete.
        """
        with self.engine.connect() as connection:
            newest = sa.select(sa.func.max(amendments.c.number)).where(amendments.c.run_id == run_id)
            return int(connection.execute(newest).scalar() or 0)

    def amendments(self, run_id: str) -> list[AmendmentRecord]:
        """Return how often and why chunks of a run were planned anew, in order."""
        return self._stored(
            AmendmentRecord, sa.select(amendments).where(amendments.c.run_id == run_id).order_by(amendments.c.number)
        )

    def plans(self, record: RunRecord) -> dict[str, Plan]:
        """Return the plan of each chunk of a run: the approved one, or the one it was planned anew with."""
        found = {chunk.key: record.plan for chunk in record.plan.chunks}
        for amendment in self.amendments(record.run_id):
            plan = plans.parsed(amendment.plan)
            found |= dict.fromkeys(parsed(amendments.c.chunks, amendment.chunks, list), plan)
        return found

    def by_plan(self, record: RunRecord, keys: Collection[str]) -> list[tuple[Plan, frozenset[str]]]:
        """Group chunks of a run by the plan of each: the approved one first, then those they were planned anew with, as its chunks are in order.

        What is not a chunk of the run is in no group.
        """
        approved = record.plan
        anew: dict[str, Plan] = {}
        for amendment in self.amendments(record.run_id):
            plan = plans.parsed(amendment.plan)
            anew |= dict.fromkeys(parsed(amendments.c.chunks, amendment.chunks, list), plan)
        groups: dict[str, tuple[Plan, set[str]]] = {}
        for chunk in approved.those_of(keys):
            own = anew.get(chunk.key, approved)
            groups.setdefault(own.hash, (own, set()))[1].add(chunk.key)
        return [(plan, frozenset(own)) for plan, own in groups.values()]

    def terms(self, run_ids: Collection[str] | None = None) -> dict[str, Terms]:
        """Return what the plans of runs say but for their chunks, by run: of all, or of those that are named; see `Terms`."""
        return plans.terms(self.engine, run_ids)


def require_same_plan(connection: sa.Connection, run_id: str, keys: Sequence[str], edition: int) -> None:
    """Refuse to compute chunks by a plan that one of them has no longer; the caller has locked the run.

    Raises:
        StateMoved: naming the chunks that were planned anew since the run had this edition.
    """
    query = sa.select(amendments.c.chunks).where(amendments.c.run_id == run_id, amendments.c.number > edition)
    anew = {key for text in connection.execute(query).scalars() for key in parsed(amendments.c.chunks, text, list)}
    if changed := [key for key in keys if key in anew]:
        raise plans.computed_in_vain(run_id, changed)
