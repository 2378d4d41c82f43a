"""Acceptances: what owners have accepted of what gates found, and what a run still waits for.

Put here changes that ask for an owner: which verdicts ask, which numbers were accepted, and the run that moves on once nothing
else stands against it. An acceptance of another plan, or of other numbers, does not count, and stays on record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa

from manifests.canonical import canonical_json, sha256_of
from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import RunState
from resources import actors
from resources.ledger import instants, judged, policy_in_force
from resources.ledger.cells import parsed
from resources.ledger.part import Part, Stored
from resources.ledger.runs import RunRecord, locked_run, move_run, require_plan, run_of
from resources.ledger.tables import acceptances, runs, verdicts
from resources.ledger.verdicts import Verdict, Verdicts


@dataclass(frozen=True)
class AcceptanceRecord(Stored):
    """What an owner has accepted of a run-level gate; `numbers` are JSON, and `numbers_hash` is their hash."""

    table: ClassVar[sa.Table] = acceptances

    id: int
    run_id: str
    gate: str
    accepted_by: str
    reason: str
    plan_hash: str
    numbers: str
    numbers_hash: str
    channel: str
    proof: str
    policy_hash: str
    at: datetime

    def __str__(self) -> str:
        return accepted_in_words(self.accepted_by, self.reason)


class Acceptances(Part):
    """What owners have accepted of a ledger's runs."""

    def accepted_gates(self, run_id: str) -> dict[str, str]:
        """Return the run-level gates whose newest verdict asks and is accepted, with the hash of the accepted numbers."""
        return {gate: one.numbers_hash for gate, one in self.accepted_changes(run_id).items()}

    def accepted_changes(self, run_id: str) -> dict[str, AcceptanceRecord]:
        """Return the run-level gates whose newest verdict asks and is accepted, with what was accepted last.

        An acceptance of another plan, or of other numbers, does not count.
        """
        asking = {
            verdict.gate: sha256_of(numbers_of(verdict))
            for verdict in Verdicts(self.engine).verdicts(run_id, of_chunks=False)
            if _asks(verdict)
        }
        if not asking:
            return {}
        with self.engine.connect() as connection:
            plan_hash = run_of(connection, run_id).plan_hash
        return {
            one.gate: one
            for one in self.acceptances(run_id)
            if one.plan_hash == plan_hash and asking.get(one.gate) == one.numbers_hash
        }

    def asking(self, run_id: str) -> list[Verdict]:
        """Return the run-level verdicts that wait for an owner's acceptance."""
        accepted = self.accepted_gates(run_id)
        return [
            verdict
            for verdict in Verdicts(self.engine).verdicts(run_id, of_chunks=False)
            if _asks(verdict) and verdict.gate not in accepted
        ]

    def acceptances(self, run_id: str) -> list[AcceptanceRecord]:
        """Return what owners have accepted of a run, in order."""
        query = sa.select(acceptances).where(acceptances.c.run_id == run_id).order_by(acceptances.c.id)
        return self._stored(AcceptanceRecord, query)

    def accept_change(
        self,
        run_id: str,
        verdict: Verdict,
        *,
        by: str,
        reason: str,
        plan_hash: str,
        gates: Iterable[str],
        policy_hash: str = "",
    ) -> RunState:
        """Record that an owner accepts what a gate found, and move the run on once nothing else stands against it.

        Args:
            run_id: the run.
            verdict: what the gate said, as the owner has seen it.
            by: the owner.
            reason: why it is right.
            plan_hash: the plan the owner has seen.
            gates: every run-level gate of the plan.
            policy_hash: the policy that the decision was held against.

        Raises:
            TransitionRefused: if the run does not wait for it, or plan or numbers are others by now.
        """
        numbers = numbers_of(verdict)
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            found = locked_run(connection, run_id)
            require_plan(found, plan_hash)
            wanted = set(gates)
            _require_waiting_for(connection, found, verdict, wanted)
            at = instants.now(connection)
            instants.require_after_run(connection, run_id, at)
            connection.execute(
                acceptances.insert().values(
                    run_id=run_id,
                    gate=verdict.gate,
                    accepted_by=by,
                    reason=reason,
                    plan_hash=plan_hash,
                    numbers=canonical_json(numbers),
                    numbers_hash=sha256_of(numbers),
                    policy_hash=policy_hash,
                    **actors.columns(by),
                    at=at,
                )
            )
            if not _nothing_stands_against(connection, run_id, plan_hash, wanted):
                return found.state
            why = f"{len(wanted)} run-level gates passed, with what {by} accepted of {verdict.gate}"
            move_run(connection, run_id, found.state, RunState.VALIDATED, by, why)
        return RunState.VALIDATED

    def validate_accepted(self, run_id: str, gates: Iterable[str], *, by: str, why: str) -> bool:
        """Move a staged run to VALIDATED if its gates judged what is staged and passed, or had their numbers accepted before.

        Returns False, having changed nothing, if that is not so (any more).
        """
        with self.engine.begin() as connection:
            found = locked_run(connection, run_id)
            staged, wanted = judged.present(connection, run_id), set(gates)
            verdicts_now = _newest(connection, run_id)
            if found.state is not RunState.STAGED or not all(
                gate in verdicts_now and judged.is_about(verdicts_now[gate].judged, staged) for gate in wanted
            ):
                return False
            if not _nothing_stands_against(connection, run_id, found.plan_hash, wanted):
                return False
            move_run(connection, run_id, found.state, RunState.VALIDATED, by, why)
        return True

    def note_waiting(self, run_id: str, why: str) -> None:
        """Say what a staged run waits for, where people look for its state."""
        with self.engine.begin() as connection:
            connection.execute(
                runs.update()
                .where(runs.c.run_id == run_id, runs.c.state == RunState.STAGED.value)
                .values(state_reason=why, updated_at=instants.now(connection))
            )


def numbers_of(verdict: Verdict) -> dict[str, Any]:
    """Return what an owner accepts: what the gate said, and its numbers."""
    return numbers_in(verdict.summary, dict(verdict.details))


def numbers_in(summary: Any, details: Any) -> dict[str, Any]:
    """Return what an owner accepts of a verdict, from its cells."""
    return {"summary": summary, "details": details}


def accepted_in_words(by: str, reason: str) -> str:
    """Return what is said of an owner's acceptance."""
    return f"accepted by {by}: {reason}"


def _require_waiting_for(
    connection: sa.Connection, record: RunRecord, verdict: Verdict, gates: Collection[str]
) -> None:
    """Refuse to accept what a run does not wait for.

    Raises:
        TransitionRefused: if it is not STAGED, or its gates have judged other files or found other numbers by now.
    """
    run_id = record.run_id
    if record.state is not RunState.STAGED:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' is {record.state}",
                "a change is accepted while its run is STAGED and waits for it",
                "see `backfill status`",
            )
        )
    newest = _newest(connection, run_id)
    _require_present(connection, run_id, [newest[gate] for gate in gates if gate in newest])
    if verdict.gate not in newest or numbers_of(newest[verdict.gate]) != numbers_of(verdict):
        raise TransitionRefused(
            Problem(
                f"{verdict.gate} of '{run_id}' has other numbers by now",
                "an acceptance is about the numbers that were looked at",
                f"look at `backfill status {run_id}` again",
            )
        )


def _nothing_stands_against(connection: sa.Connection, run_id: str, plan_hash: str, gates: Iterable[str]) -> bool:
    """Tell whether each run-level gate has passed, or an owner has accepted the numbers of its newest verdict."""
    newest = _newest(connection, run_id)
    query = sa.select(acceptances.c.gate, acceptances.c.numbers_hash).where(
        acceptances.c.run_id == run_id, acceptances.c.plan_hash == plan_hash
    )
    taken = {(row.gate, row.numbers_hash) for row in connection.execute(query)}
    return all(
        gate in newest
        and (newest[gate].passed or (_asks(newest[gate]) and (gate, sha256_of(numbers_of(newest[gate]))) in taken))
        for gate in gates
    )


def _require_present(connection: sa.Connection, run_id: str, found: Iterable[Verdict]) -> None:
    """Refuse verdicts that are not about what is staged.

    Raises:
        TransitionRefused: saying which.
    """
    staged = judged.present(connection, run_id)
    older = sorted(one.gate for one in found if not judged.is_about(one.judged, staged))
    if older:
        raise TransitionRefused(
            Problem(
                f"{', '.join(older)} judged files of '{run_id}' that are not what is staged now",
                "a verdict counts for the files it was made of",
                f"`backfill run {run_id}` judges what is staged; look at `backfill status {run_id}` again",
            )
        )


def _newest(connection: sa.Connection, run_id: str) -> dict[str, Verdict]:
    query = sa.select(verdicts).where(verdicts.c.run_id == run_id, verdicts.c.chunk == "").order_by(verdicts.c.id)
    return {
        row.gate: Verdict(
            row.gate,
            row.passed,
            row.summary,
            parsed(verdicts.c.details, row.details, dict),
            asks=row.asks,
            judged=row.judged,
        )
        for row in connection.execute(query)
    }


def _asks(verdict: Verdict) -> bool:
    return verdict.asks and not verdict.passed and not verdict.chunk
