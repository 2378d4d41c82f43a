"""What people decide about a run, held against the policy in force: review, approval, publication, acceptance, rollback.

The command, the jobs of the UI, LIVE and the demo all decide through here. Put here what must be asked of the policy
before the ledger is told; what a decision changes is the ledger's and the publisher's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from backfill_assets.evidence.events import REFUSED
from backfill_assets.evidence.records import catch_up
from backfill_assets.execution import execute_publication
from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import name_problems
from backfill_assets.publication import accepting, ending, undoing
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.announcements import Published, changes_on_record
from backfill_assets.publication.heads import keep
from backfill_assets.staging.executor import require_young
from manifests.errors import DecisionRefused, EnvironmentRefused, InputRefused, Problem, Refused, TransitionRefused
from manifests.lifecycle import REINSTATE, ROLLBACK, RunState, check_transition
from manifests.model import Mode
from manifests.policy import Policy, Role, Rule, same_name
from manifests.who_may import break_glass_problems, role_problems
from resources import actors
from resources.actors import SOMEBODY, Actor, Proof
from resources.ledger import approvals
from resources.ledger.facade import RunRecord, Verdict
from resources.ledger.stops import Stop

SHORTEST_HASH = 12
"""Characters of a plan's hash that name it well enough, as `status` and the launch dialog show it."""
_SHORTEST_REASON = 10
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
    with _in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        _raise(name_problems(platform, person))
        return _approve(platform, run_id, by=person, comment=comment, plan_hash=plan_hash, break_glass=break_glass)


@_with_head_kept
def approve_by_policy(platform: Platform, run_id: str, *, by: str, comment: str) -> RunRecord:
    """Approve a planned run in the name of its target's policy: a live run that a tick has written, or a reconciliation.

    Raises:
        TransitionRefused: if it is neither, or as for `approve`.
    """
    mode = platform.ledger.run(run_id).plan.mode
    if mode not in {Mode.LIVE, Mode.RECONCILIATION}:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' has mode {mode}",
                "policies approve what LIVE's tick has written, and what changes nothing",
                f"`backfill approve {run_id} --by NAME`",
            )
        )
    with actors.acting(Actor(by, actors.current().channel, Proof.PLATFORM)):
        return _approve(platform, run_id, by=by, comment=comment)


def _approve(
    platform: Platform, run_id: str, *, by: str, comment: str, plan_hash: str | None = None, break_glass: str = ""
) -> RunRecord:
    record, policy, rule = _of(platform, run_id)
    check_transition(run_id, record.state, RunState.APPROVED)
    problems = _same_policy(record, policy) + platform.ledger.ticks.problems(record.manifest)
    if break_glass:
        problems += break_glass_problems(policy, rule, by, break_glass, record.target)
    else:
        problems += role_problems(policy, rule, Role.APPROVER, by, record.target)
        problems += _review_problems(platform, record, rule, by)
    _raise(problems)
    require_young(platform, record)
    platform.ledger.decide(
        run_id,
        approve=True,
        by=by,
        comment=comment,
        self_approval=not rule.four_eyes,
        plan_hash=_whole_hash(record, plan_hash),
        break_glass=break_glass,
        policy_hash=policy.hash,
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
    with _in_the_name_of(platform, run_id, by, comment) as person:
        return _reject(platform, run_id, by=person, comment=comment, plan_hash=plan_hash)


def _reject(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    record, policy, rule = _of(platform, run_id)
    check_transition(run_id, record.state, RunState.REJECTED)
    _raise(name_problems(platform, by) + role_problems(policy, rule, Role.APPROVER, by, record.target))

    def end(found: RunState, token: int | None) -> None:
        platform.ledger.decide(
            run_id,
            approve=False,
            by=by,
            comment=comment,
            self_approval=not rule.four_eyes,
            plan_hash=_whole_hash(record, plan_hash),
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
    with _in_the_name_of(platform, run_id, by, comment) as person:
        _raise(name_problems(platform, person))
        ending.cancel(platform, run_id, person, comment)
        return platform.ledger.run(run_id)


@_with_head_kept
def review(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    """Record that somebody has looked at a run's plan, or at what it has computed.

    Raises:
        TransitionRefused: if the run is over, its plan is another one, or the policy does not allow it.
    """
    with _in_the_name_of(platform, run_id, by, comment) as person:
        return _review(platform, run_id, by=person, comment=comment, plan_hash=plan_hash)


def _review(platform: Platform, run_id: str, *, by: str, comment: str = "", plan_hash: str | None = None) -> RunRecord:
    record, policy, rule = _of(platform, run_id)
    problems = name_problems(platform, by) + role_problems(policy, rule, Role.REVIEWER, by, record.target)
    if rule.four_eyes and same_name(by) == same_name(record.requested_by):
        problems.append(
            Problem(f"'{by}' requested run '{run_id}'", "a reviewer differs from the requester", "ask somebody else")
        )
    _raise(problems)
    platform.ledger.record_decision(
        run_id,
        approvals.REVIEWED,
        role=Role.REVIEWER,
        by=by,
        comment=comment,
        plan_hash=_whole_hash(record, plan_hash),
        states=approvals.REVIEWABLE,
        policy_hash=policy.hash,
    )
    return record


def stop(platform: Platform, run_id: str, *, by: str, reason: str = "", through: str) -> tuple[Stop, RunRecord]:
    """Stop a run, whoever computes it: it is safe, and anybody who is named may; return the run as it is then.

    A publication that has begun is waited for: what came of it is the run's state.

    Raises:
        InputRefused: if the ledger holds no such run.
        TransitionRefused: if nothing of it could be under way, nobody is named, or the name is not that of who is logged in.
    """
    platform.ledger.run(run_id)
    decides, problems = _who_decides(by)
    _raise(problems)
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
    with _in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        return _publish(platform, run_id, by=person, comment=comment, break_glass=break_glass)


def _publish(platform: Platform, run_id: str, *, by: str, comment: str = "", break_glass: str = "") -> Published:
    record, policy, rule = _of(platform, run_id)
    if record.state is RunState.VALIDATED and record.plan.publishes:
        _decide_publication(platform, record, policy, rule, by, comment, break_glass)
    return execute_publication(platform, run_id)


def rollback(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide to roll a published run back, and do it; safe to repeat. Arguments as of `publish`.

    It takes a publisher. That somebody else approved the run is not asked: what readers saw before comes back.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    with _in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        return _rollback(platform, run_id, by=person, comment=comment, break_glass=break_glass)


def _rollback(platform: Platform, run_id: str, *, by: str, comment: str = "", break_glass: str = "") -> Published:
    # what an interrupted reinstatement has shown to everybody is what is decided about
    published = undoing.up_to_date(platform, run_id, ROLLBACK).state is RunState.PUBLISHED
    after = changes_on_record(platform, run_id)
    with _decided(platform, run_id, approvals.ROLLBACK, by, comment, break_glass, wanted=published):
        return undoing.rollback(platform, run_id, after=after)


def reinstate(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide to undo the rollback of a run, and do it; safe to repeat. Arguments, and who may, as of `publish`.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    with _in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        return _reinstate(platform, run_id, by=person, comment=comment, break_glass=break_glass)


def _reinstate(platform: Platform, run_id: str, *, by: str, comment: str = "", break_glass: str = "") -> Published:
    rolled_back = undoing.up_to_date(platform, run_id, REINSTATE).state is RunState.ROLLED_BACK
    after = changes_on_record(platform, run_id)
    with _decided(platform, run_id, approvals.REINSTATE, by, comment, break_glass, wanted=rolled_back):
        return undoing.reinstate(platform, run_id, after=after)


def accept(
    platform: Platform, run_id: str, *, by: str | None = None, comment: str = "", break_glass: str = ""
) -> Published:
    """Decide that main shows a version, and make it so; safe to repeat. Arguments, and who may, as of `publish`.

    Raises:
        Refused: if the policy or the publisher does not allow it.
    """
    with _in_the_name_of(platform, run_id, by, comment, break_glass) as person:
        return _accept(platform, run_id, by=person, comment=comment, break_glass=break_glass)


def _accept(platform: Platform, run_id: str, *, by: str, comment: str = "", break_glass: str = "") -> Published:
    with _decided(
        platform,
        run_id,
        approvals.ACCEPT,
        by,
        comment,
        break_glass,
        wanted=accepting.may_be_accepted(platform, run_id),
    ):
        return accepting.accept(platform, run_id)


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
    record, policy, rule = _of(platform, run_id)
    alone = rule.publisher_differs_from_approver and decision != approvals.ROLLBACK
    _raise(_publisher_problems(platform, record, policy, rule, by, break_glass, not_the_approver=alone))
    _record_publisher(platform, record, policy, decision, by, comment, break_glass)
    try:
        yield
    except Refused:
        # where the evidence is damaged, which may be why it is refused, nothing is added to it
        with suppress(OSError, ValueError, KeyError, EnvironmentRefused):
            catch_up(platform, run_id, REFUSED, {"action": decision.lower()})
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
    with _in_the_name_of(platform, run_id, by, reason) as person:
        return _accept_change(platform, run_id, gate, by=person, reason=reason, plan_hash=plan_hash)


def _accept_change(
    platform: Platform, run_id: str, gate: str, *, by: str, reason: str, plan_hash: str | None = None
) -> RunRecord:
    record, policy, rule = _of(platform, run_id)
    asking = {verdict.gate: verdict for verdict in platform.ledger.asking(run_id)}
    if gate not in asking:
        raise InputRefused(
            Problem(
                f"'{gate}' of '{run_id}' does not ask for an owner",
                f"asking are {', '.join(sorted(asking)) or 'none'}",
                f"see `backfill status {run_id}`",
            )
        )
    if len(reason.strip()) < _SHORTEST_REASON:
        raise InputRefused(
            Problem(f"the reason '{reason}' is too short", "an owner says why the change is right", "give --reason")
        )
    owners = platform.products.target(record.target).owners if rule.owners is None else rule.owners
    problems = name_problems(platform, by)
    if not policy.includes(owners, by):
        problems.append(
            Problem(
                f"'{by}' is no owner of {record.target}",
                f"owners are {', '.join(owners) or 'nobody'}",
                policy.way_out(owners, "have the policy changed: its `groups` say who belongs to a team"),
            )
        )
    if rule.four_eyes and same_name(by) == same_name(record.requested_by):
        problems.append(
            Problem(
                f"'{by}' requested run '{run_id}'", "who accepts a change differs from the requester", "ask another"
            )
        )
    _raise(problems)
    platform.ledger.accept_change(
        run_id,
        asking[gate],
        by=by,
        reason=reason,
        plan_hash=_whole_hash(record, plan_hash),
        gates=record.plan.gates,
        policy_hash=policy.hash,
    )
    publication.prepare(platform, run_id)
    return platform.ledger.run(run_id)


def asking(platform: Platform, run_id: str) -> list[Verdict]:
    """Return the verdicts of a run that wait for an owner."""
    return platform.ledger.asking(run_id)


def _of(platform: Platform, run_id: str) -> tuple[RunRecord, Policy, Rule]:
    platform.ledger.policies.require_explained()
    record, policy = platform.ledger.run(run_id), platform.policy
    is_ours = actors.current().proof is Proof.PLATFORM
    rule = (policy.rule_for if is_ours else policy.rule_for_people)(record.target, record.kind)
    return record, policy, rule


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
    _raise(problems)
    return decides


@contextmanager
def _in_the_name_of(platform: Platform, run_id: str, by: str | None, *said: str) -> Iterator[str]:
    """Have what the body decides be recorded as decided by who acts, under the name that is given; yield that name.

    `said` is what they give as reasons.

    Raises:
        TransitionRefused: if the name is not the one under which they are logged in, or the policy wants to know who
            they are and only their word says so; if name or reasons would show other text than there is.
    """
    decides, problems = _who_decides(by)
    problems += [problem for text in said for problem in actors.no_reason(text)]
    record, policy, rule = _of(platform, run_id)
    if not problems and rule.authenticated and not decides.is_authenticated:
        problems.append(
            Problem(
                f"nothing but the name shows that '{decides.name}' decides about '{record.run_id}'",
                f"the policy '{policy.name}' wants authenticated decisions for {record.target}",
                "decide in the UI behind its proxy, or as the user that the policy's `identity` knows, without --by",
            )
        )
    _raise(problems)
    with actors.acting(decides):
        yield decides.name


def _who_decides(by: str | None) -> tuple[Actor, list[Problem]]:
    """Return who acts, under the name that is given; and what is wrong with that name."""
    actor = actors.current()
    decides = actor.under(by) if by is not None and by.strip() else actor
    if actor.proof is Proof.PROXY and decides is not actor:
        return decides, [
            Problem(
                f"'{by}' was typed, and '{actor.name}' is logged in",
                "a decision in the UI carries the name of who is logged in",
                "leave the name out, or have the other one log in",
            )
        ]
    if not decides.name.strip() or same_name(decides.name) == same_name(SOMEBODY):
        return decides, [Problem("nobody is named", "a decision has a name", "give `by`")]
    return decides, actors.no_name(decides.name)


def _decide_publication(
    platform: Platform, record: RunRecord, policy: Policy, rule: Rule, by: str, comment: str, break_glass: str
) -> None:
    alone = rule.publisher_differs_from_approver
    _raise(_publisher_problems(platform, record, policy, rule, by, break_glass, not_the_approver=alone))
    _record_publisher(platform, record, policy, approvals.PUBLISH, by, comment, break_glass)


def _publisher_problems(
    platform: Platform,
    record: RunRecord,
    policy: Policy,
    rule: Rule,
    by: str,
    break_glass: str,
    *,
    not_the_approver: bool,
) -> list[Problem]:
    if break_glass:
        return name_problems(platform, by) + break_glass_problems(policy, rule, by, break_glass, record.target)
    problems = name_problems(platform, by) + role_problems(policy, rule, Role.PUBLISHER, by, record.target)
    approval = platform.ledger.approval_of(record)
    own = approval is not None and same_name(approval.decided_by) == same_name(by)
    if not_the_approver and own:
        problems.append(
            Problem(
                f"'{by}' approved run '{record.run_id}'",
                f"the policy '{policy.name}' wants another publisher",
                "ask somebody else",
            )
        )
    return problems


def _record_publisher(
    platform: Platform, record: RunRecord, policy: Policy, decision: str, by: str, comment: str, break_glass: str
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
    )


def _review_problems(platform: Platform, record: RunRecord, rule: Rule, by: str) -> list[Problem]:
    found = platform.ledger.reviewers(record.run_id, record.plan_hash) - {same_name(by)}
    if len(found) >= rule.reviews_required:
        return []
    return [
        Problem(
            f"the plan of '{record.run_id}' has {len(found)} review(s) by others than '{by}'",
            f"the policy wants {rule.reviews_required} before it is approved; reviews of an earlier plan do not count",
            f"`backfill review {record.run_id} --by NAME`",
        )
    ]


def _same_policy(record: RunRecord, policy: Policy) -> list[Problem]:
    if record.plan.policy in {None, policy.hash}:
        return []
    return [
        Problem(
            f"'{record.run_id}' was planned under another policy ({str(record.plan.policy)[:SHORTEST_HASH]}); "
            f"'{policy.name}' ({policy.hash[:SHORTEST_HASH]}) is in force",
            "a plan is approved under the policy that it was made under",
            "plan the same manifest again (`backfill plan`), look at it, and approve that plan",
        )
    ]


def _whole_hash(record: RunRecord, seen: str | None) -> str:
    """Return the plan's hash where the characters seen are its beginning; else those, which will be refused."""
    if seen is None:
        return record.plan_hash
    return record.plan_hash if len(seen) >= SHORTEST_HASH and record.plan_hash.startswith(seen) else seen


def _raise(problems: list[Problem]) -> None:
    if problems:
        raise DecisionRefused(problems)
