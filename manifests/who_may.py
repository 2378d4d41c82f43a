"""Who may act in a role, break the glass or ask for a run, and how old a run may become, by the policy.

Put here why a person or a run is refused by a rule. Which rule counts is `policy`'s; who has decided what is the ledger's.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from manifests.errors import Problem
from manifests.model import SHORTEST_REASON, RunManifest
from manifests.policy import Policy, Role, Rule, same_name
from manifests.text import seen


def role_problems(policy: Policy, rule: Rule, role: Role, by: str, table: str) -> list[Problem]:
    """Say why a person may not act in a role."""
    entries = rule.of(role)
    if entries is None or policy.includes(entries, by):
        return []
    return [
        Problem(
            f"'{by}' is no {role} of {table}",
            f"the policy '{policy.name}' names {', '.join(entries) or 'nobody'}",
            policy.way_out(entries, f"have the policy changed ({role}s of the rule for {', '.join(rule.tables)})"),
        )
    ]


def break_glass_problems(policy: Policy, rule: Rule, by: str, reason: str, table: str) -> list[Problem]:
    """Say why a person may not break the glass."""
    problems = []
    if len(seen(reason)) < SHORTEST_REASON:
        problems.append(
            Problem(
                f"the reason '{reason}' is too short",
                "who breaks the glass says why",
                f"give at least {SHORTEST_REASON} visible characters",
            )
        )
    if not policy.includes(rule.break_glass, by):
        problems.append(
            Problem(
                f"'{by}' may not break the glass for {table}",
                f"the policy '{policy.name}' names {', '.join(rule.break_glass) or 'nobody'}",
                policy.way_out(rule.break_glass, "wait for those who may decide without it"),
            )
        )
    return problems


def proposal_problems(rule: Rule, run_id: str, chunks: int) -> list[Problem]:
    """Say why the rule of a table leaves a proposed restatement of so many chunks to a person; nothing if it approves it."""
    most = 0 if rule.proposals is None else rule.proposals.approved_up_to_chunks
    if chunks <= most:
        return []
    tables = ", ".join(rule.tables)
    return [
        Problem(
            f"'{run_id}' was proposed, and changes {chunks:,} chunk(s)",
            f"the rule for {tables} approves proposals of up to {most:,}"
            if most
            else f"the rule for {tables} leaves what is proposed to a person",
            f"`backfill approve {run_id} --by NAME`, or have the policy changed (`proposals` of the rule)",
        )
    ]


def age_problems(
    rule: Rule, run_id: str, *, planned_at: datetime, approved_at: datetime | None, at: datetime
) -> list[Problem]:
    """Say why a run is too old to be computed or published.

    Args:
        rule: the rule for the run.
        run_id: the run.
        planned_at: when its plan was made.
        approved_at: when that was approved; None if it is not.
        at: now; never before the newest instant on record, so that a clock set back makes nothing younger.
    """
    problems = []
    for what, since, limit in (
        ("planned", planned_at, rule.max_age_days.since_planning),
        ("approved", approved_at, rule.max_age_days.since_approval),
    ):
        if since is None or limit is None or at - since <= timedelta(days=limit):
            continue
        days = (at - since) / timedelta(days=1)
        problems.append(
            Problem(
                f"run '{run_id}' was {what} {days:,.1f} days ago ({since:%Y-%m-%d %H:%M} UTC)",
                f"the policy allows {limit:g} days from there to the publication",
                f"`backfill cancel {run_id} --by NAME`, and plan the change again under a new run id",
            )
        )
    return problems


def roles_of_nobody(policy: Policy, manifest: RunManifest, owners: Sequence[str], *, may_ask: bool) -> list[str]:
    """Say what a run waits for that nobody could ever do, since no person is who may: it is no reason to refuse its plan.

    `owners` are those whom its table declares; `may_ask` says that it has gates of its table, which may ask one of them. A policy that
    says nothing of owners and groups is not held to the team that a table declares: a gate that asks says so, and few ever do.
    """
    rule = policy.rule_for_people(manifest.target.table, manifest.kind)
    requester = {same_name(manifest.requested_by)} if rule.four_eyes else set()
    glass = " without breaking the glass" if policy.persons(rule.break_glass) else ""
    declared = owners if policy.groups else None
    accepting = (declared if rule.owners is None else rule.owners) if may_ask else None
    approving = set() if rule.approvers is None or glass else policy.persons(rule.approvers) - requester
    only_approver = approving if len(approving) == 1 else set()
    reviews = rule.reviews_required
    review = "review its plan" if reviews <= 1 else f"have {reviews} people review its plan"
    publishers = rule.publishers if manifest.execution_mode.publishes else None
    said = []
    for what, entries, others, needed in (
        (review, rule.reviewers if reviews else None, {same_name(manifest.requested_by)} | only_approver, reviews),
        (f"approve it{glass}", rule.approvers, requester, 1),
        (f"publish it{glass}", publishers, only_approver if rule.publisher_differs_from_approver else set(), 1),
        ("accept what a gate may ask an owner about", accepting, requester, 1),
    ):
        if entries is None or len(policy.persons(entries) - others) >= needed:
            continue
        who = ", ".join(entries) or "nobody"
        said.append(f"nobody can {what}: that is for {who}, and {_why_nobody(policy, manifest, entries, others)}")
    return said


def _why_nobody(policy: Policy, manifest: RunManifest, entries: Sequence[str], others: set[str]) -> str:
    """Say why too few of those who are meant by `entries` are left without `others`."""
    persons = policy.persons(entries)
    if not persons:
        return f"the policy '{policy.name}' has no person there"
    if persons == {same_name(manifest.requested_by)}:
        return "only the requester is one of them"
    left = len(persons - others)
    return f"without its requester and its only approver {left or 'none'} of them {'is' if left == 1 else 'are'} left"


def request_problems(policy: Policy, manifest: RunManifest) -> list[Problem]:
    """Say why the policy does not let the requester ask for this run."""
    table = manifest.target.table
    rule = policy.rule_for(table, manifest.kind)
    return role_problems(policy, rule, Role.REQUESTER, manifest.requested_by, table)
