"""What people decide about a run, held against the policy in force: review, approval, publication, acceptance, rollback.

The command, the jobs of the UI, LIVE and the demo all decide through here. Put here a decision: what is asked before the
ledger is told, and what is done then. Under whose name it is made, and what policy and plan say against it, is
`who_decides`'s; what a decision changes is the ledger's and the publisher's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from backfill_assets.evidence.events import REFUSED
from backfill_assets.evidence.record_writing import catch_up
from backfill_assets.execution import execute_publication
from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import name_problems
from backfill_assets.planning.read_models import decommissioned
from backfill_assets.publication import accepting, ending, publisher, undoing
from backfill_assets.publication.announcements import Published, changes_on_record
from backfill_assets.publication.dry_runs import dry_run_for
from backfill_assets.publication.heads import keep
from backfill_assets.publication.topic_publishing import publish_events
from backfill_assets.staging.executor import require_not_expired
from backfill_assets.who_decides import (
    in_the_name_of,
    other_policy_problems,
    owner_problems,
    publisher_problems,
    require_none,
    review_problems,
    run_and_rule,
    who_decides,
    whole_hash,
)
from manifests.errors import EnvironmentRefused, InputRefused, Problem, Refused, StoreRefused, TransitionRefused
from manifests.lifecycle import REINSTATE, ROLLBACK, RunState, check_transition
from manifests.model import SHORTEST_REASON, Mode
from manifests.policy import Policy, Role, Rule, same_name
from manifests.text import seen
from manifests.who_may import break_glass_problems, proposal_problems, role_problems
from resources import actors
from resources.actors import Actor, Proof
from resources.ledger import approvals
from resources.ledger.facade import RunRecord, Verdict
from resources.ledger.stops import Stop

_COMMIT_SECONDS, _LOOK_SECONDS = 20.0, 0.2
"""How long a stop waits for the end of a publication, and how often it looks."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


def _with_head_kept(
    decide: Callable[Concatenate[Platform, _P], _R],
) -> Callable[Concatenate[Platform, _P], _R]:
    """Have the chain's head kept elsewhere after a decision."""

    @wraps(decide)
    def decided(platform: Platform, /, *args: _P.args, **named: _P.kwargs) -> _R:
        done = decide(platform, *args, **named)
        keep(platform)
        return done

    return decided


@_with_head_kept
def approve(
    platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None, break_glass: str = ""
) -> RunRecord:
    """Approve a planned run; return it as it is then.

    Args:
        platform: the installation.
        run_id: the run.
        by: who approves.
        comment: why.
        plan_hash: the plan the approver has seen, or its first characters; None: the one it has.
        break_glass: why roles and four eyes are not waited for; for those whom the policy names.

    Raises:
        TransitionRefused: if the run's state, its plan, its age or the policy does not allow it.
    """
    with in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        require_none(name_problems(platform, person))
        return _approve(platform, run_id, by=person, comment=comment, plan_hash=plan_hash, break_glass=break_glass)


@_with_head_kept
def approve_by_policy(platform: Platform, run_id: str, *, by: str, comment: str) -> RunRecord:
    """Approve a planned run in the name of its target's policy: a live run that a tick has written, a reconciliation, or a proposal.

    Raises:
        TransitionRefused: if it is none of them, or as for `approve`; of a proposal, if the rule of its table leaves it to a person.
    """
    record = platform.ledger.run(run_id)
    mode, is_proposal = record.plan.mode, platform.ledger.ticks.has_proposed(record.manifest)
    if mode not in {Mode.LIVE, Mode.RECONCILIATION} and not is_proposal:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' has mode {mode}",
                "policies approve what LIVE's tick has written, what changes nothing, and what the platform has proposed",
                f"`backfill approve {run_id} --by NAME`",
            )
        )
    with actors.acting(Actor(by, actors.current().channel, Proof.PLATFORM)):
        if is_proposal:
            require_none(proposal_problems(run_and_rule(platform, run_id)[2], run_id, len(record.plan.chunks)))
        return _approve(platform, run_id, by=by, comment=comment, by_rule=is_proposal)


def _approve(
    platform: Platform,
    run_id: str,
    *,
    by: str,
    comment: str,
    plan_hash: str | None = None,
    break_glass: str = "",
    by_rule: bool = False,
) -> RunRecord:
    record, policy, rule = run_and_rule(platform, run_id)
    check_transition(run_id, record.state, RunState.APPROVED)
    problems = other_policy_problems(record, policy) + platform.ledger.ticks.problems(record.manifest)
    if break_glass:
        problems += break_glass_problems(policy, rule, by, break_glass, record.target)
    else:
        # the rule itself approves a proposal, whoever the people are that it names
        problems += [] if by_rule else role_problems(policy, rule, Role.APPROVER, by, record.target)
        problems += review_problems(platform, record, rule, by)
    dry_run, none_counts = (None, []) if by_rule else dry_run_for(platform, record)
    require_none(problems + none_counts)
    require_not_expired(platform, record)
    platform.ledger.decide(
        run_id,
        approve=True,
        by=by,
        comment=comment,
        self_approval=not rule.four_eyes,
        plan_hash=whole_hash(record, plan_hash),
        break_glass=break_glass,
        policy_hash=policy.hash,
        dry_run=dry_run,
    )
    return platform.ledger.run(run_id)


@_with_head_kept
def reject(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    """Reject a run for good; return it as it is then.

    Raises:
        LeaseHeld: if it is being published just now.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if its publication has landed and was not recorded: readers have seen it.
        TransitionRefused: if the run's state, its plan or the policy does not allow it.
    """
    with in_the_name_of(platform, run_id, by, comment) as person:
        return _reject(platform, run_id, by=person, comment=comment, plan_hash=plan_hash)


def _reject(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    record, policy, rule = run_and_rule(platform, run_id)
    check_transition(run_id, record.state, RunState.REJECTED)
    require_none(name_problems(platform, by) + role_problems(policy, rule, Role.APPROVER, by, record.target))

    def end(found: RunState, token: int | None) -> None:
        platform.ledger.decide(
            run_id,
            approve=False,
            by=by,
            comment=comment,
            self_approval=not rule.four_eyes,
            plan_hash=whole_hash(record, plan_hash),
            policy_hash=policy.hash,
            expected=found,
            token=token,
        )

    ending.end_unpublished(platform, run_id, end)
    return platform.ledger.run(run_id)


@_with_head_kept
def cancel(platform: Platform, run_id: str, *, by: str, comment: str = "") -> RunRecord:
    """End a run without a publication; return it as it is then.

    Raises:
        LeaseHeld: if it is being published just now.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if its publication has landed and was not recorded: readers have seen it.
        TransitionRefused: if the run is over, or the policy wants to know who decides, and nothing but a name says so.
    """
    with in_the_name_of(platform, run_id, by, comment) as person:
        require_none(name_problems(platform, person))
        ending.cancel(platform, run_id, person, comment)
        return platform.ledger.run(run_id)


@_with_head_kept
def review(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    """Record that somebody has looked at a run's plan, or at what it has computed.

    Raises:
        TransitionRefused: if the run is over, its plan is another one, or the policy does not allow it.
    """
    with in_the_name_of(platform, run_id, by, comment) as person:
        return _review(platform, run_id, by=person, comment=comment, plan_hash=plan_hash)


def _review(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    record, policy, rule = run_and_rule(platform, run_id)
    problems = name_problems(platform, by) + role_problems(policy, rule, Role.REVIEWER, by, record.target)
    if rule.four_eyes and same_name(by) == same_name(record.requested_by):
        problems.append(
            Problem(f"'{by}' requested run '{run_id}'", "a reviewer differs from the requester", "ask somebody else")
        )
    require_none(problems)
    platform.ledger.record_decision(
        run_id,
        approvals.REVIEWED,
        role=Role.REVIEWER,
        by=by,
        comment=comment,
        plan_hash=whole_hash(record, plan_hash),
        states=approvals.REVIEWABLE,
        policy_hash=policy.hash,
    )
    return record


def stop(platform: Platform, run_id: str, *, by: str, reason: str = "", through: str) -> tuple[Stop, RunRecord]:
    """Stop a run, whoever computes it: it is safe, and anybody who is named may; return the run as it is then.

    A publication that has begun is waited for: what came of it is the run's state.

    Raises:
        InputRefused: if the ledger holds no such run.
        TransitionRefused: if nothing of it could be under way, no name is given, or the name is not that of who is logged in.
    """
    platform.ledger.run(run_id)
    decides, problems = who_decides(by)
    require_none(problems)
    done = platform.ledger.stops.stop(run_id, by=decides.name, through=through, reason=reason)
    until = time.monotonic() + _COMMIT_SECONDS
    while done.note and time.monotonic() < until:
        if not any(entry.is_intent for entry in platform.ledger.publications(run_id)):
            break
        time.sleep(_LOOK_SECONDS)
    return done, platform.ledger.run(run_id)


def publish(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide to publish a validated run, and publish it; safe to repeat.

    Args:
        platform: the installation.
        run_id: the run.
        by: who publishes; None: who acts.
        comment: why.
        break_glass: why roles are not waited for; for those whom the policy names. No gate is ever skipped.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    edition = platform.ledger.edition(run_id)  # before the run is looked at: what is planned anew later is other rows
    with in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        record, policy, rule = run_and_rule(platform, run_id)
        if record.state is RunState.VALIDATED and record.plan.publishes:
            _decide_publication(platform, record, policy, rule, person, comment, break_glass, edition)
        return execute_publication(platform, run_id)


def rollback(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide to roll a published run back, and do it; safe to repeat. Arguments as of `publish`.

    It takes a publisher. That somebody else approved the run is not asked: what readers saw before comes back.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    with in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        # what an interrupted reinstatement has shown to everybody is what is decided about
        published = undoing.up_to_date(platform, run_id, ROLLBACK).state is RunState.PUBLISHED
        after = changes_on_record(platform, run_id)
        with _decided(platform, run_id, approvals.ROLLBACK, person, comment, break_glass, wanted=published):
            done = undoing.rollback(platform, run_id, after=after)
        publish_events(platform, run_id)
        return done


def reinstate(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide to undo the rollback of a run, and do it; safe to repeat. Arguments, and who may, as of `publish`.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    with in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        rolled_back = undoing.up_to_date(platform, run_id, REINSTATE).state is RunState.ROLLED_BACK
        after = changes_on_record(platform, run_id)
        with _decided(platform, run_id, approvals.REINSTATE, person, comment, break_glass, wanted=rolled_back):
            done = undoing.reinstate(platform, run_id, after=after)
        publish_events(platform, run_id)
        return done


def accept(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide that main shows a version, and make it so; safe to repeat. Arguments, and who may, as of `publish`.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    with in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        after = changes_on_record(platform, run_id)
        wanted = accepting.may_be_accepted(platform, run_id)
        with _decided(platform, run_id, approvals.ACCEPT, person, comment, break_glass, wanted=wanted):
            return accepting.accept(platform, run_id, after=after)


@contextmanager
def _decided(
    platform: Platform, run_id: str, decision: str, by: str, comment: str, break_glass: str, *, wanted: bool
) -> Iterator[None]:
    """Record a publisher's decision about a publication that there is, before the body acts on it.

    Nothing is decided where it is not `wanted`: it is done already, or the body will refuse it in its own words. The
    evidence is told of the decision whatever comes of it.
    """
    if not wanted:
        yield
        return
    record, policy, rule = run_and_rule(platform, run_id)
    alone = rule.publisher_differs_from_approver and decision != approvals.ROLLBACK
    problems = publisher_problems(platform, record, policy, rule, by, break_glass, not_the_approver=alone)
    require_none(problems + decommissioned(platform, record.target))
    _record_publisher(platform, record, policy, decision, by, comment, break_glass)
    try:
        yield
    except Refused as refusal:
        # where the evidence is damaged, which may be why it is refused, nothing is added to it
        with suppress(OSError, ValueError, KeyError, EnvironmentRefused, StoreRefused):
            why = "; ".join(problem.what for problem in refusal.problems)
            catch_up(platform, run_id, REFUSED, {"action": decision.lower(), "why": why})
        raise


@_with_head_kept
def accept_change(
    platform: Platform, run_id: str, gate: str, *, by: str, reason: str, plan_hash: str | None = None
) -> RunRecord:
    """Accept, as an owner of the table, what a gate asks an owner for; return the run as it is then.

    Raises:
        InputRefused: if the gate does not ask, or no reason is given.
        TransitionRefused: if it is not an owner's, or plan or numbers are others by now.
    """
    with in_the_name_of(platform, run_id, by, reason) as person:
        return _accept_change(platform, run_id, gate, by=person, reason=reason, plan_hash=plan_hash)


def _accept_change(
    platform: Platform, run_id: str, gate: str, *, by: str, reason: str, plan_hash: str | None = None
) -> RunRecord:
    record, policy, rule = run_and_rule(platform, run_id)
    asking = {verdict.gate: verdict for verdict in platform.ledger.asking(run_id)}
    if gate not in asking:
        raise InputRefused(
            Problem(
                f"'{gate}' of '{run_id}' does not ask for an owner",
                f"asking are {', '.join(sorted(asking)) or 'none'}",
                f"see `backfill status {run_id}`",
            )
        )
    if len(seen(reason)) < SHORTEST_REASON:
        raise InputRefused(
            Problem(
                f"the reason '{reason}' is too short",
                "an owner says why the change is right",
                f"give --reason of at least {SHORTEST_REASON} visible characters",
            )
        )
    require_none(owner_problems(platform, record, policy, rule, by))
    platform.ledger.accept_change(
        run_id,
        asking[gate],
        by=by,
        reason=reason,
        plan_hash=whole_hash(record, plan_hash),
        gates=record.plan.gates,
        policy_hash=policy.hash,
    )
    publisher.prepare(platform, run_id)
    return platform.ledger.run(run_id)


def asking(platform: Platform, run_id: str) -> list[Verdict]:
    """Return the verdicts of a run that wait for an owner."""
    return platform.ledger.asking(run_id)


def decider(platform: Platform, by: str | None, about: str = "the policy") -> Actor:
    """Return who decides about what belongs to no run, under the name that is given: the policy itself, or an input's load.

    Raises:
        TransitionRefused: if the policy in force wants to know who people are, and nothing but the name says so.
    """
    platform.ledger.policies.require_explained()
    policy, actor = platform.policy, actors.current()
    decides = actor.under(by) if by is not None and by.strip() else actor
    problems = actors.no_name(decides.name) + name_problems(platform, decides.name)
    wanted = policy.identity is not None or any(rule.authenticated for rule in policy.rules)
    if wanted and not decides.is_authenticated:
        problems.append(
            Problem(
                f"nothing but the name shows that '{decides.name}' decides about {about}",
                f"the policy '{policy.name}' says how people are known, or wants to know who decides",
                "decide as the user that its `identity` knows, without --by",
            )
        )
    require_none(problems)
    return decides


def _decide_publication(
    platform: Platform,
    record: RunRecord,
    policy: Policy,
    rule: Rule,
    by: str,
    comment: str,
    break_glass: str,
    edition: int,
) -> None:
    alone = rule.publisher_differs_from_approver
    require_none(publisher_problems(platform, record, policy, rule, by, break_glass, not_the_approver=alone))
    _record_publisher(platform, record, policy, approvals.PUBLISH, by, comment, break_glass, edition)


def _record_publisher(
    platform: Platform,
    record: RunRecord,
    policy: Policy,
    decision: str,
    by: str,
    comment: str,
    break_glass: str,
    edition: int | None = None,
) -> None:
    """Record what a publisher decides, unless it is what was decided last: the same command again decides nothing new."""
    newest = next(iter(reversed(platform.ledger.approvals(record.run_id))), None)
    said = (decision, by, record.plan_hash, comment, break_glass, policy.hash)
    names = ("decision", "decided_by", "plan_hash", "comment", "break_glass", "policy_hash")
    same = newest is not None and said == tuple(getattr(newest, name) for name in names)
    if newest is not None and same and platform.ledger.is_of_present_rows(newest):
        return
    platform.ledger.record_decision(
        record.run_id,
        decision,
        role=Role.PUBLISHER,
        by=by,
        comment=comment,
        plan_hash=record.plan_hash,
        states={record.state},
        break_glass=break_glass,
        policy_hash=policy.hash,
        edition=edition,
    )
