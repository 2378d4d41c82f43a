"""Who has decided what about a run, and under which policy: reviews, what publishers decide, acceptances.

Put here what the ledger keeps of decisions besides the approval and rejection that move a run (`Ledger.decide`). Whether
somebody may decide is the policy's. Nothing here is ever changed or deleted: a decision about another plan is void, and
stays on record.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from manifests.canonical import canonical_json, sha256_of
from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import RunState
from manifests.policy import Role, same_name
from resources import actors
from resources.ledger import instants, judged, policy_in_force
from resources.ledger.cells import parsed
from resources.ledger.facade import Ledger, RunRecord, Verdict, _move, _require_name, now
from resources.ledger.locks import lock_run
from resources.ledger.tables import (
    acceptances,
    amendments,
    approvals,
    attempts,
    erasure_lists,
    policies,
    publications,
    runs,
    transitions,
    verdicts,
)

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
_INSTANTS = (
    runs.c.updated_at,
    transitions.c.at,
    approvals.c.at,
    attempts.c.started_at,
    verdicts.c.at,
    publications.c.started_at,
    acceptances.c.at,
)


# --- decisions --------------------------------------------------------------------------------------------------------


def record(
    ledger: Ledger,
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
    _require_name(by)
    with ledger.engine.begin() as connection:
        if policy_hash:
            policy_in_force.require_still(connection, policy_hash)
        lock_run(connection, run_id)
        found = ledger.run(run_id, connection=connection)
        if found.state not in states:
            raise TransitionRefused(
                Problem(
                    f"run '{run_id}' is {found.state}",
                    f"a {role} decides while it is {', '.join(sorted(states))}",
                    "see `backfill status` for what it waits for",
                )
            )
        require_plan(found, plan_hash)
        at = now()
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


def require_plan(found: RunRecord, plan_hash: str) -> None:
    """Refuse a decision about another plan than the run has.

    Raises:
        TransitionRefused: naming both.
    """
    if plan_hash != found.plan_hash:
        raise TransitionRefused(
            Problem(
                f"the plan of '{found.run_id}' is {found.plan_hash}, not {plan_hash}",
                "a decision is about the plan that was looked at",
                "look at the plan again",
            )
        )


def reviewers(ledger: Ledger, run_id: str, plan_hash: str) -> set[str]:
    """Return who has reviewed this plan of a run."""
    return {
        same_name(one["decided_by"])
        for one in ledger.approvals(run_id)
        if one["decision"] == REVIEWED and one["plan_hash"] == plan_hash
    }


def approval_of(ledger: Ledger, found: RunRecord) -> dict[str, Any] | None:
    """Return the approval of a run's plan, or None."""
    return next(
        (
            one
            for one in reversed(ledger.approvals(found.run_id))
            if one["decision"] == "APPROVED" and one["plan_hash"] == found.plan_hash
        ),
        None,
    )


def publication_decided(ledger: Ledger, found: RunRecord) -> dict[str, Any] | None:
    """Return the newest decision of a publisher about a run's plan, or None.

    A decision from before chunks were planned anew is about other rows, and does not count: unlike an approval, which covers
    what the approved manifest asks for, it says of rows that somebody could look at that readers are to see them.
    """
    return next(
        (
            one
            for one in reversed(ledger.approvals(found.run_id))
            if one["decision"] == PUBLISH and one["plan_hash"] == found.plan_hash and is_of_present_rows(ledger, one)
        ),
        None,
    )


def is_of_present_rows(ledger: Ledger, decision: Mapping[str, Any]) -> bool:
    """Return whether no chunk of its run was planned anew after a decision."""
    anew = _planned_anew(ledger, decision["run_id"]).get(decision["run_id"])
    return anew is None or bool(decision["at"] >= anew)


def _planned_anew(ledger: Ledger, run_id: str | None) -> dict[str, datetime]:
    """Return when chunks of a run (of each, if None) were planned anew last, for those of which any were."""
    query = sa.select(amendments.c.run_id, sa.func.max(amendments.c.at)).group_by(amendments.c.run_id)
    if run_id is not None:
        query = query.where(amendments.c.run_id == run_id)
    with ledger.engine.connect() as connection:
        return {name: at for name, at in connection.execute(query)}  # noqa: C416 - rows are no pairs to mypy


def broken_glass(ledger: Ledger, run_id: str) -> list[dict[str, Any]]:
    """Return the decisions on a run for which somebody broke the glass."""
    return [one for one in ledger.approvals(run_id) if one["break_glass"]]


def decisions(ledger: Ledger, run_id: str | None = None, *, break_glass: bool = False) -> list[dict[str, Any]]:
    """Return every decision (of a run, if given) in order: who, in which role, when, about which plan, and why.

    `void` is true of a decision about a plan, rows or numbers that are no longer the run's.
    """
    anew = _planned_anew(ledger, run_id)
    query = sa.select(approvals, runs.c.plan_hash.label("present")).join(runs, runs.c.run_id == approvals.c.run_id)
    taken = sa.select(acceptances, runs.c.plan_hash.label("present")).join(runs, runs.c.run_id == acceptances.c.run_id)
    if run_id is not None:
        query, taken = query.where(approvals.c.run_id == run_id), taken.where(acceptances.c.run_id == run_id)
    with ledger.engine.connect() as connection:
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
            "void": one["plan_hash"] != one["present"]
            or (one["decision"] == PUBLISH and one["at"] < anew.get(one["run_id"], one["at"])),
        }
        for one in decided
        if one["break_glass"] or not break_glass
    ]
    still = {name: accepted_gates(ledger, name) for name in {one["run_id"] for one in accepted}}
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


# --- time -------------------------------------------------------------------------------------------------------------


def latest(ledger: Ledger) -> datetime:
    """Return now, or the newest instant on record where the clock stands before it."""
    newest = now()
    with ledger.engine.connect() as connection:
        for column in _INSTANTS:
            found: datetime | None = connection.execute(sa.select(sa.func.max(column))).scalar()
            newest = newest if found is None else max(newest, found)
    return newest


# --- changes that ask for an owner ------------------------------------------------------------------------------------


def numbers_of(verdict: Verdict) -> dict[str, Any]:
    """Return what an owner accepts: what the gate said, and its numbers."""
    return {"summary": verdict.summary, "details": dict(verdict.details)}


def accepted_gates(ledger: Ledger, run_id: str) -> dict[str, str]:
    """Return the run-level gates whose newest verdict asks and is accepted, with the hash of the accepted numbers.

    An acceptance of another plan, or of other numbers, does not count.
    """
    asking = {verdict.gate: sha256_of(numbers_of(verdict)) for verdict in ledger.verdicts(run_id) if _asks(verdict)}
    if not asking:
        return {}
    plan_hash = ledger.run(run_id).plan_hash
    return {
        one["gate"]: one["numbers_hash"]
        for one in acceptances_of(ledger, run_id)
        if one["plan_hash"] == plan_hash and asking.get(one["gate"]) == one["numbers_hash"]
    }


def asking(ledger: Ledger, run_id: str) -> list[Verdict]:
    """Return the run-level verdicts that wait for an owner's acceptance."""
    accepted = accepted_gates(ledger, run_id)
    return [verdict for verdict in ledger.verdicts(run_id) if _asks(verdict) and verdict.gate not in accepted]


def acceptances_of(ledger: Ledger, run_id: str) -> list[dict[str, Any]]:
    """Return what owners have accepted of a run, in order."""
    query = sa.select(acceptances).where(acceptances.c.run_id == run_id).order_by(acceptances.c.id)
    with ledger.engine.connect() as connection:
        rows = [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name
    return [row | {"numbers": parsed(acceptances.c.numbers, row["numbers"], dict)} for row in rows]


def accept_change(
    ledger: Ledger,
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
        ledger: the ledger.
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
    with ledger.engine.begin() as connection:
        if policy_hash:
            policy_in_force.require_still(connection, policy_hash)
        lock_run(connection, run_id)
        found = ledger.run(run_id, connection=connection)
        require_plan(found, plan_hash)
        if found.state is not RunState.STAGED:
            raise TransitionRefused(
                Problem(
                    f"run '{run_id}' is {found.state}",
                    "a change is accepted while its run is STAGED and waits for it",
                    "see `backfill status`",
                )
            )
        newest, wanted = _newest(connection, run_id), set(gates)
        _require_present(connection, run_id, [newest[gate] for gate in wanted if gate in newest])
        if verdict.gate not in newest or numbers_of(newest[verdict.gate]) != numbers:
            raise TransitionRefused(
                Problem(
                    f"{verdict.gate} of '{run_id}' has other numbers by now",
                    "an acceptance is about the numbers that were looked at",
                    f"look at `backfill status {run_id}` again",
                )
            )
        at = now()
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
        why = f"{len(wanted)} run gates passed, with what {by} accepted of {verdict.gate}"
        _move(connection, run_id, found.state, RunState.VALIDATED, by, why)
    return RunState.VALIDATED


def validate_accepted(ledger: Ledger, run_id: str, gates: Iterable[str], *, by: str, why: str) -> bool:
    """Move a staged run to VALIDATED if its gates judged what is staged and passed, or had their numbers accepted before.

    Returns False, having changed nothing, if that is not so (any more).
    """
    with ledger.engine.begin() as connection:
        lock_run(connection, run_id)
        found = ledger.run(run_id, connection=connection)
        staged, wanted = judged.present(connection, run_id), set(gates)
        verdicts_now = _newest(connection, run_id)
        if found.state is not RunState.STAGED or not all(
            gate in verdicts_now and judged.is_about(verdicts_now[gate].judged, staged) for gate in wanted
        ):
            return False
        if not _nothing_stands_against(connection, run_id, found.plan_hash, wanted):
            return False
        _move(connection, run_id, found.state, RunState.VALIDATED, by, why)
    return True


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


def note_waiting(ledger: Ledger, run_id: str, why: str) -> None:
    """Say what a staged run waits for, where people look for its state."""
    with ledger.engine.begin() as connection:
        connection.execute(
            runs.update()
            .where(runs.c.run_id == run_id, runs.c.state == RunState.STAGED.value)
            .values(state_reason=why, updated_at=now())
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


# --- what was in force ------------------------------------------------------------------------------------------------


def keep_policy(ledger: Ledger, policy_hash: str, text: Mapping[str, Any]) -> None:
    """Keep what a policy says under its hash; safe to repeat."""
    _keep(ledger, policies, policy_hash, {"text": canonical_json(dict(text))})


def policy_text(ledger: Ledger, policy_hash: str | None) -> dict[str, Any] | None:
    """Return what the policy of a hash says, or None where it was not kept."""
    query = sa.select(policies.c.text).where(policies.c.hash == policy_hash)
    with ledger.engine.connect() as connection:
        text = connection.execute(query).scalar()
    return None if text is None else parsed(policies.c.text, text, dict)


def keep_subjects(ledger: Ledger, list_hash: str, hashes: Collection[str]) -> None:
    """Keep a list of erased subjects, as hashes of their keys, under its hash; safe to repeat."""
    _keep(ledger, erasure_lists, list_hash, {"subjects": json.dumps(sorted(hashes))})


def kept_subjects(ledger: Ledger, list_hash: str) -> frozenset[str]:
    """Return the hashes of the keys of a list.

    Raises:
        TransitionRefused: if it was not kept: without it nobody knows whom the plan leaves out.
    """
    query = sa.select(erasure_lists.c.subjects).where(erasure_lists.c.hash == list_hash)
    with ledger.engine.connect() as connection:
        text = connection.execute(query).scalar()
    if text is None:
        raise TransitionRefused(
            Problem(
                f"the list of erased subjects {list_hash} is not in the ledger",
                "a run leaves out whom its plan names",
                "plan the change again, under a new run id",
            )
        )
    return frozenset(parsed(erasure_lists.c.subjects, text, list))


def _keep(ledger: Ledger, table: sa.Table, key: str, values: Mapping[str, Any]) -> None:
    try:
        with ledger.engine.begin() as connection:
            if connection.execute(sa.select(table.c.hash).where(table.c.hash == key)).scalar() is None:
                connection.execute(table.insert().values(hash=key, at=now(), **values))
    except sa.exc.IntegrityError:
        return  # somebody else kept the same at the same moment
