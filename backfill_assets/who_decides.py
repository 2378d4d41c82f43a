"""Who decides about a run: the name that is recorded, the rule that holds, and what stands against a decision.

Put here what is asked of those who decide and of the plan that they have seen, whatever they decide. It records nothing:
that is `decisions`'. Which roles a policy has, and who has them, is `manifests.who_may`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import name_problems
from manifests.errors import DecisionRefused, Problem
from manifests.policy import Policy, Role, Rule, same_name
from manifests.who_may import break_glass_problems, role_problems
from resources import actors
from resources.actors import SOMEBODY, Actor, Proof
from resources.ledger.facade import RunRecord

SHORTEST_HASH = 12
"""Characters of a plan's hash that name it well enough, as `status` and the launch dialog show it."""


def run_and_rule(platform: Platform, run_id: str) -> tuple[RunRecord, Policy, Rule]:
    """Return a run, the policy in force, and its rule that holds for those who decide: people, or the platform itself."""
    platform.ledger.policies.require_explained()
    record, policy = platform.ledger.run(run_id), platform.policy
    is_ours = actors.current().proof is Proof.PLATFORM
    rule = (policy.rule_for if is_ours else policy.rule_for_people)(record.target, record.kind)
    return record, policy, rule


@contextmanager
def in_the_name_of(platform: Platform, run_id: str, by: str | None, *said: str) -> Iterator[str]:
    """Have what the body decides be recorded as decided by who acts, under the name that is given; yield that name.

    `said` is what they give as reasons.

    Raises:
        TransitionRefused: if the name is not the one under which they are logged in, or the policy wants to know who
            they are and only their word says so; if name or reasons would show other text than there is.
    """
    decides, problems = who_decides(by)
    problems += [problem for text in said for problem in actors.no_reason(text)]
    record, policy, rule = run_and_rule(platform, run_id)
    if not problems and rule.authenticated and not decides.is_authenticated:
        problems.append(
            Problem(
                f"nothing but the name shows that '{decides.name}' decides about '{record.run_id}'",
                f"the policy '{policy.name}' wants authenticated decisions for {record.target}",
                "decide in the UI behind its proxy, or as the user that the policy's `identity` knows, without --by",
            )
        )
    require_none(problems)
    with actors.acting(decides):
        yield decides.name


def who_decides(by: str | None) -> tuple[Actor, list[Problem]]:
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
        return decides, [Problem("no name is given", "a decision has a name", "give `by`")]
    return decides, actors.no_name(decides.name)


def publisher_problems(
    platform: Platform,
    record: RunRecord,
    policy: Policy,
    rule: Rule,
    by: str,
    break_glass: str,
    *,
    not_the_approver: bool,
) -> list[Problem]:
    """Return why a person may not decide as a publisher, who must be another than the approver if `not_the_approver`."""
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


def review_problems(platform: Platform, record: RunRecord, rule: Rule, by: str) -> list[Problem]:
    """Return that too few others have reviewed the plan before a person approves it."""
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


def owner_problems(platform: Platform, record: RunRecord, policy: Policy, rule: Rule, by: str) -> list[Problem]:
    """Return why a person may not accept a change as an owner of the run's target."""
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
                f"'{by}' requested run '{record.run_id}'",
                "who accepts a change differs from the requester",
                "ask another",
            )
        )
    return problems


def other_policy_problems(record: RunRecord, policy: Policy) -> list[Problem]:
    """Return that a plan was made under another policy than the one in force."""
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


def whole_hash(record: RunRecord, seen: str | None) -> str:
    """Return the plan's hash where the characters seen are its beginning; else those, which will be refused."""
    if seen is None:
        return record.plan_hash
    return record.plan_hash if len(seen) >= SHORTEST_HASH and record.plan_hash.startswith(seen) else seen


def require_none(problems: list[Problem]) -> None:
    """Refuse a decision for all that stands against it.

    Raises:
        DecisionRefused: if anything does.
    """
    if problems:
        raise DecisionRefused(problems)
