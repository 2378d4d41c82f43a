"""Approvals: who has decided what about a run, about which plan and why.

Put here approvals and rejections, which move a run, and the decisions that move none by themselves: reviews and what publishers
decide. Whether somebody may decide is the policy's. Nothing here is ever changed or deleted: a decision about another plan is
void, and stays on record. What owners accept of a gate is `acceptances`'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from manifests.dry_runs import DryRunLink, link_from_json
from manifests.errors import DecisionRefused, Problem, TransitionRefused
from manifests.lifecycle import DecisionKind, RunState
from manifests.policy import Role, same_name
from resources import actors
from resources.ledger import freezes, instants, policy_in_force
from resources.ledger.acceptances import Acceptances
from resources.ledger.cells import legible
from resources.ledger.dry_run_links import lock_with_dry_run, require_dry_run
from resources.ledger.locks import require_lease
from resources.ledger.part import Part, Stored
from resources.ledger.runs import (
    RunRecord,
    locked_run,
    move_run,
    require_name,
    require_plan,
    require_state,
)
from resources.ledger.tables import acceptances, amendments, approvals, runs

REVIEWED, PUBLISH, ROLLBACK, REINSTATE, ACCEPT = (
    DecisionKind.REVIEWED,
    DecisionKind.PUBLISH,
    DecisionKind.ROLLBACK,
    DecisionKind.REINSTATE,
    DecisionKind.ACCEPT,
)
"""Decisions that move no run by themselves; the others are Ledger.decide's."""
REVIEWABLE = frozenset(
    {
        RunState.PLANNED,
        RunState.APPROVED,
        RunState.RUNNING,
        RunState.STAGED,
        RunState.VALIDATED,
        RunState.FAILED,
    }
)


@dataclass(frozen=True)
class ApprovalRecord(Stored):
    """One decision about a run's plan."""

    table: ClassVar[sa.Table] = approvals

    id: int
    run_id: str
    decision: DecisionKind
    decided_by: str
    comment: str
    plan_hash: str
    self_approved: bool
    role: Role
    break_glass: str
    channel: str
    proof: str
    policy_hash: str
    at: datetime
    dry_run: str = ""
    """The text of `rests_on`; empty where it is None."""

    @property
    def rests_on(self) -> DryRunLink | None:
        """The dry run that it rests on; None where the policy asked for none."""
        return link_from_json(self.dry_run)

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        link_from_json(row.dry_run)  # one that cannot be read is said where the row is read
        return cls(**{**row._mapping, "decision": DecisionKind(row.decision), "role": Role(row.role)})  # noqa: SLF001 - SQLAlchemy's public name


@dataclass(frozen=True)
class RunDecision:
    """One decision about a run, of whatever role. `void`: about a plan, rows or numbers that are no longer the run's.

    `approval` is the id of its row among the approvals; None of what an owner has accepted of a gate.
    """

    run_id: str
    decision: str
    role: str
    by: str
    at: datetime
    plan_hash: str
    comment: str
    break_glass: str
    self_approved: bool
    policy_hash: str
    channel: str
    proof: str
    void: bool
    approval: int | None = None
    rests_on: DryRunLink | None = None

    def as_record(self) -> dict[str, Any]:
        """Return it as `backfill decisions --json` gives it."""
        return {
            "runId": self.run_id,
            "decision": self.decision,
            "role": self.role,
            "by": self.by,
            "at": self.at,
            "planHash": self.plan_hash,
            "comment": self.comment,
            "breakGlass": self.break_glass,
            "selfApproved": self.self_approved,
            "policyHash": self.policy_hash,
            "channel": self.channel,
            "proof": self.proof,
            "void": self.void,
            "dryRun": self.rests_on,
        }


class Approvals(Part):
    """The decisions about a ledger's runs."""

    def decide(
        self,
        run_id: str,
        *,
        approve: bool,
        by: str,
        comment: str,
        self_approval: bool,
        plan_hash: str,
        break_glass: str = "",
        expected: RunState = RunState.PLANNED,
        token: int | None = None,
        policy_hash: str = "",
        dry_run: DryRunLink | None = None,
    ) -> None:
        """Record an approval or a rejection and move the run.

        Args:
            run_id: the run.
            approve: approve, or reject.
            by: who decides.
            comment: why.
            self_approval: whether the policy lets a requester approve their own run.
            plan_hash: the plan the decider has seen.
            break_glass: why four eyes were not waited for, where somebody who may has decided so.
            expected: the state in which the run was decided about; only a rejection may come after PLANNED.
            token: of the lease under which it was decided; None: under none.
            policy_hash: the policy that the decision was held against.
            dry_run: the dry run that an approval rests on; None where it needs none.

        Raises:
            StateMoved: if the run is in another state than `expected` by now.
            LeaseLost: if the lease was taken over: what was looked at under it may have changed.
            TransitionRefused: if the state, the plan or the person does not allow it, another policy is in force by now, or
                the dry run is no longer what it was.
        """
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            if token is not None:
                require_lease(connection, token)
            lock_with_dry_run(connection, run_id, dry_run)
            record = locked_run(connection, run_id)
            wanted = RunState.APPROVED if approve else RunState.REJECTED
            require_state(record, expected, wanted)
            own = same_name(by) == same_name(record.requested_by)
            require_name(by)
            if approve and own and not self_approval and not break_glass:
                raise _own_run(run_id, by)
            require_plan(record, plan_hash)
            require_dry_run(connection, dry_run, {RunState.VALIDATED})
            at = instants.now(connection)
            instants.require_after_run(connection, run_id, at)
            decided = DecisionKind.APPROVED if approve else DecisionKind.REJECTED
            beside = {"comment": comment, "break_glass": break_glass, "policy_hash": policy_hash}
            beside["dry_run"] = "" if dry_run is None else dry_run.to_json()
            _insert(connection, record, decided, by, at, self_approved=own and approve, **beside)
            move_run(connection, run_id, expected, wanted, by, comment)
            if approve:
                freezes.begin(connection, record.manifest, at)

    def approvals(self, run_id: str) -> list[ApprovalRecord]:
        """Return the decisions on a run, in order."""
        return self._stored(
            ApprovalRecord, sa.select(approvals).where(approvals.c.run_id == run_id).order_by(approvals.c.id)
        )

    def record_decision(
        self,
        run_id: str,
        decision: str,
        *,
        role: Role,
        by: str,
        comment: str,
        plan_hash: str,
        states: Collection[RunState],
        break_glass: str = "",
        policy_hash: str = "",
        edition: int | None = None,
    ) -> None:
        """Record a decision about the plan that was looked at, held against a policy.

        With `edition`, it is about rows as well: those of the run when it had been planned anew so often (`edition`).

        Raises:
            TransitionRefused: if the run is in none of `states`, or the plan, or what was computed, is another one by now.
        """
        require_name(by)
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            found = locked_run(connection, run_id)
            if found.state not in states:
                raise TransitionRefused(
                    Problem(
                        f"run '{run_id}' is {found.state}",
                        f"a {role} decides while it is {', '.join(sorted(states))}",
                        f"`backfill status {run_id}` says where it stands",
                    )
                )
            require_plan(found, plan_hash)
            if edition is not None:
                _require_edition(connection, run_id, edition)
            at = instants.now(connection)
            instants.require_after_run(connection, run_id, at)
            _insert(
                connection,
                found,
                decision,
                by,
                at,
                comment=comment,
                self_approved=False,
                role=role.value,
                break_glass=break_glass,
                policy_hash=policy_hash,
            )

    def reviewers(self, run_id: str, plan_hash: str) -> set[str]:
        """Return who has reviewed this plan of a run."""
        return {
            same_name(one.decided_by)
            for one in self.approvals(run_id)
            if one.decision == REVIEWED and one.plan_hash == plan_hash
        }

    def approval_of(self, found: RunRecord) -> ApprovalRecord | None:
        """Return the approval of a run's plan, or None."""
        return next(
            (
                one
                for one in reversed(self.approvals(found.run_id))
                if one.decision == DecisionKind.APPROVED and one.plan_hash == found.plan_hash
            ),
            None,
        )

    def publication_decided(self, found: RunRecord) -> ApprovalRecord | None:
        """Return the newest decision of a publisher about a run's plan, or None.

        A decision from before chunks were planned anew is about other rows, and does not count: unlike an approval, which
        covers what the approved manifest asks for, it says of rows that somebody could look at that readers are to see them.
        """
        return next(
            (
                one
                for one in reversed(self.approvals(found.run_id))
                if one.decision == PUBLISH and one.plan_hash == found.plan_hash and self.is_of_present_rows(one)
            ),
            None,
        )

    def is_of_present_rows(self, decision: ApprovalRecord) -> bool:
        """Return whether no chunk of its run was planned anew after a decision."""
        anew = self._planned_anew(decision.run_id).get(decision.run_id)
        return anew is None or decision.at >= anew

    def _planned_anew(self, run_id: str | None) -> dict[str, datetime]:
        """Return when chunks of a run (of each, if None) were planned anew last, for those of which any were."""
        query = sa.select(amendments.c.run_id, sa.func.max(amendments.c.at)).group_by(amendments.c.run_id)
        if run_id is not None:
            query = query.where(amendments.c.run_id == run_id)
        with self.engine.connect() as connection:
            return {name: at for name, at in connection.execute(query)}  # noqa: C416 - rows are no pairs to mypy

    def broken_glass(self, run_id: str) -> list[ApprovalRecord]:
        """Return the decisions on a run for which somebody broke the glass."""
        return [one for one in self.approvals(run_id) if one.break_glass]

    def decisions(self, run_id: str | None = None, *, break_glass: bool = False) -> list[RunDecision]:
        """Return every decision (of a run, if given) in order: who, in which role, when, about which plan, and why.

        `void` is true of a decision about a plan, rows or numbers that are no longer the run's.
        """
        anew = self._planned_anew(run_id)
        query = sa.select(approvals, runs.c.plan_hash.label("present")).join(runs, runs.c.run_id == approvals.c.run_id)
        taken = sa.select(acceptances, runs.c.plan_hash.label("present")).join(
            runs, runs.c.run_id == acceptances.c.run_id
        )
        if run_id is not None:
            query, taken = query.where(approvals.c.run_id == run_id), taken.where(acceptances.c.run_id == run_id)
        with self.engine.connect() as connection:
            decided = connection.execute(query).all()
            accepted = [] if break_glass else connection.execute(taken).all()
        with legible("ledger approvals"):
            found = [_decision_of(row, anew.get(row.run_id)) for row in decided if row.break_glass or not break_glass]
        known = Acceptances(self.engine)
        still = {name: known.accepted_gates(name) for name in {row.run_id for row in accepted}}
        found += [_acceptance_of(row, still[row.run_id]) for row in accepted]
        return sorted(found, key=lambda one: (one.at, one.run_id))


def _own_run(run_id: str, by: str) -> DecisionRefused:
    return DecisionRefused(
        Problem(
            f"'{by}' requested run '{run_id}'",
            "the approver differs from the requester",
            "ask somebody else; a policy with fourEyes: false allows it, on record",
        )
    )


def _require_edition(connection: sa.Connection, run_id: str, edition: int) -> None:
    """Refuse a decision about rows of which some were computed after they were looked at."""
    anew = connection.execute(
        sa.select(sa.func.count()).where(amendments.c.run_id == run_id, amendments.c.number > edition)
    ).scalar_one()
    if anew:
        raise TransitionRefused(
            Problem(
                f"chunks of run '{run_id}' were planned anew and computed since you have looked at it",
                "a publisher decides about rows that could be looked at",
                f"look at `backfill diff {run_id}`, and decide again",
            )
        )


def _insert(
    connection: sa.Connection, record: RunRecord, decision: str, by: str, at: datetime, **values: str | bool
) -> None:
    """Put a decision about the plan that a run has on record; `values` are the other columns."""
    connection.execute(
        approvals.insert().values(
            run_id=record.run_id,
            decision=decision,
            decided_by=by,
            plan_hash=record.plan_hash,
            at=at,
            **actors.columns(by),
            **values,
        )
    )


def _decision_of(row: sa.Row[Any], anew: datetime | None) -> RunDecision:
    """Return the decision of a row; `anew` is when chunks of its run were planned anew last."""
    outlived = anew is not None and row.decision == PUBLISH and row.at < anew
    return RunDecision(
        row.run_id,
        row.decision,
        row.role,
        row.decided_by,
        row.at,
        row.plan_hash,
        row.comment,
        row.break_glass,
        bool(row.self_approved),
        row.policy_hash,
        row.channel,
        row.proof,
        void=row.plan_hash != row.present or outlived,
        approval=row.id,
        rests_on=link_from_json(row.dry_run),
    )


def _acceptance_of(row: sa.Row[Any], still: Mapping[str, str]) -> RunDecision:
    return RunDecision(
        row.run_id,
        f"ACCEPTED {row.gate}",
        Role.OWNER.value,
        row.accepted_by,
        row.at,
        row.plan_hash,
        row.reason,
        "",
        self_approved=False,
        policy_hash=row.policy_hash,
        channel=row.channel,
        proof=row.proof,
        void=row.numbers_hash != still.get(row.gate),
    )
