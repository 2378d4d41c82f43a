"""Approvals: who has decided what about a run, about which plan and why.

Put here approvals and rejections, which move a run, and the decisions that move none by themselves: reviews and what publishers
decide. Whether somebody may decide is the policy's. Nothing here is ever changed or deleted: a decision about another plan is
void, and stays on record. What owners accept of a gate is `acceptances`'.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa

from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import RunState
from manifests.policy import Role, same_name
from resources import actors
from resources.ledger import freezes, instants, policy_in_force
from resources.ledger.acceptances import Acceptances
from resources.ledger.locks import require_lease
from resources.ledger.part import Part
from resources.ledger.runs import RunRecord, locked_run, move_run, require_name, require_plan, require_state
from resources.ledger.tables import acceptances, approvals, runs

REVIEWED, PUBLISH, ROLLBACK, REINSTATE, ACCEPT = "REVIEWED", "PUBLISH", "ROLLBACK", "REINSTATE", "ACCEPT"
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

        Raises:
            StateMoved: if the run is in another state than `expected` by now.
            LeaseLost: if the lease was taken over: what was looked at under it may have changed.
            TransitionRefused: if the state, the plan or the person does not allow it, or another policy is in force by now.
        """
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            if token is not None:
                require_lease(connection, token)
            record = locked_run(connection, run_id)
            wanted = RunState.APPROVED if approve else RunState.REJECTED
            require_state(record, expected, wanted)
            own = same_name(by) == same_name(record.requested_by)
            require_name(by)
            if approve and own and not self_approval and not break_glass:
                raise TransitionRefused(
                    Problem(
                        f"'{by}' requested run '{run_id}'",
                        "the approver differs from the requester",
                        "ask somebody else; a policy with fourEyes: false allows it, on record",
                    )
                )
            require_plan(record, plan_hash)
            at = instants.now()
            instants.require_after_run(connection, run_id, at)
            connection.execute(
                approvals.insert().values(
                    run_id=run_id,
                    decision="APPROVED" if approve else "REJECTED",
                    decided_by=by,
                    comment=comment,
                    plan_hash=record.plan_hash,
                    self_approved=own and approve,
                    break_glass=break_glass,
                    policy_hash=policy_hash,
                    **actors.columns(by),
                    at=at,
                )
            )
            move_run(connection, run_id, expected, wanted, by, comment)
            if approve:
                freezes.begin(connection, record.manifest, at)

    def approvals(self, run_id: str) -> list[dict[str, Any]]:
        """Return the decisions on a run, in order."""
        return self._rows(sa.select(approvals).where(approvals.c.run_id == run_id).order_by(approvals.c.id))

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
    ) -> None:
        """Record a decision about the plan that was looked at, held against a policy.

        Raises:
            TransitionRefused: if the run is in none of `states`, or the plan is another one by now.
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
                        "see `backfill status` for what it waits for",
                    )
                )
            require_plan(found, plan_hash)
            at = instants.now()
            instants.require_after_run(connection, run_id, at)
            connection.execute(
                approvals.insert().values(
                    run_id=run_id,
                    decision=decision,
                    decided_by=by,
                    comment=comment,
                    plan_hash=found.plan_hash,
                    self_approved=False,
                    role=role.value,
                    break_glass=break_glass,
                    policy_hash=policy_hash,
                    **actors.columns(by),
                    at=at,
                )
            )

    def reviewers(self, run_id: str, plan_hash: str) -> set[str]:
        """Return who has reviewed this plan of a run."""
        return {
            same_name(one["decided_by"])
            for one in self.approvals(run_id)
            if one["decision"] == REVIEWED and one["plan_hash"] == plan_hash
        }

    def approval_of(self, found: RunRecord) -> dict[str, Any] | None:
        """Return the approval of a run's plan, or None."""
        return next(
            (
                one
                for one in reversed(self.approvals(found.run_id))
                if one["decision"] == "APPROVED" and one["plan_hash"] == found.plan_hash
            ),
            None,
        )

    def publication_decided(self, found: RunRecord) -> dict[str, Any] | None:
        """Return the newest decision of a publisher about a run's plan, or None."""
        return next(
            (
                one
                for one in reversed(self.approvals(found.run_id))
                if one["decision"] == PUBLISH and one["plan_hash"] == found.plan_hash
            ),
            None,
        )

    def broken_glass(self, run_id: str) -> list[dict[str, Any]]:
        """Return the decisions on a run for which somebody broke the glass."""
        return [one for one in self.approvals(run_id) if one["break_glass"]]

    def decisions(self, run_id: str | None = None, *, break_glass: bool = False) -> list[dict[str, Any]]:
        """Return every decision (of a run, if given) in order: who, in which role, when, about which plan, and why.

        `void` is true of a decision about a plan, or numbers, that are no longer the run's.
        """
        query = sa.select(approvals, runs.c.plan_hash.label("present")).join(runs, runs.c.run_id == approvals.c.run_id)
        taken = sa.select(acceptances, runs.c.plan_hash.label("present")).join(
            runs, runs.c.run_id == acceptances.c.run_id
        )
        if run_id is not None:
            query, taken = query.where(approvals.c.run_id == run_id), taken.where(acceptances.c.run_id == run_id)
        with self.engine.connect() as connection:
            decided = [row._mapping for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name
            accepted = [] if break_glass else [row._mapping for row in connection.execute(taken)]  # noqa: SLF001
        found = [
            {
                "runId": one["run_id"],
                "decision": one["decision"],
                "role": one["role"],
                "by": one["decided_by"],
                "at": one["at"],
                "planHash": one["plan_hash"],
                "comment": one["comment"],
                "breakGlass": one["break_glass"],
                "selfApproved": bool(one["self_approved"]),
                "policyHash": one["policy_hash"],
                "channel": one["channel"],
                "proof": one["proof"],
                "void": one["plan_hash"] != one["present"],
            }
            for one in decided
            if one["break_glass"] or not break_glass
        ]
        accepted_by_run = Acceptances(self.engine)
        still = {name: accepted_by_run.accepted_gates(name) for name in {one["run_id"] for one in accepted}}
        found += [
            {
                "runId": one["run_id"],
                "decision": f"ACCEPTED {one['gate']}",
                "role": Role.OWNER.value,
                "by": one["accepted_by"],
                "at": one["at"],
                "planHash": one["plan_hash"],
                "comment": one["reason"],
                "breakGlass": "",
                "selfApproved": False,
                "policyHash": one["policy_hash"],
                "channel": one["channel"],
                "proof": one["proof"],
                "void": one["numbers_hash"] != still[one["run_id"]].get(one["gate"]),
            }
            for one in accepted
        ]
        return sorted(found, key=lambda one: (one["at"], one["runId"]))
