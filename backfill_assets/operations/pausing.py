"""A run that is paused, and goes on: who may do either, and with what reason.

Put here what is asked of a person who pauses or resumes a run. What a pause holds is `resources.ledger.pauses`'; what pauses a run
without a person is for who finds the cause, and goes by the same row.
"""

from __future__ import annotations

from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import name_problems
from backfill_assets.who_decides import in_the_name_of, require_none, run_and_rule, who_decides
from manifests.errors import Problem
from manifests.model import SHORTEST_REASON
from manifests.policy import Role, Rule, same_name
from manifests.text import seen
from manifests.who_may import role_problems
from resources.ledger.facade import RunRecord
from resources.ledger.stops import Stop


def pause(platform: Platform, run_id: str, *, by: str, reason: str, through: str) -> tuple[Stop, RunRecord]:
    """Pause a run, whoever computes it: it is safe, and anybody who is named may; return the run as it is then.

    Raises:
        InputRefused: if the ledger holds no such run.
        TransitionRefused: if nothing of it could be under way, it is paused, the reason is too short, or the name is none.
    """
    platform.ledger.run(run_id)
    decides, problems = who_decides(by)
    require_none(problems + _reason_problems(reason, "who pauses a run says why"))
    done = platform.ledger.pauses.pause(run_id, by=decides.name, through=through, reason=reason)
    return done, platform.ledger.run(run_id)


def resume(platform: Platform, run_id: str, *, by: str | None, reason: str) -> list[Stop]:
    """Decide that a paused run goes on; return the pauses that end with it. It is launched by whoever launches it next.

    What a person has paused, anybody who is named may resume. What was paused by a limit of the run is for an approver of it, who by
    four eyes is not its requester.

    Raises:
        InputRefused: if the ledger holds no such run.
        TransitionRefused: if it is not paused, the reason is too short, or the policy does not let this person.
    """
    with in_the_name_of(platform, run_id, by, reason) as person:
        problems = _reason_problems(reason, "who resumes a run says why")
        holding = platform.ledger.pauses.holding(run_id)
        if any(one.cause for one in holding):
            record, policy, rule = run_and_rule(platform, run_id)
            problems += name_problems(platform, person)
            problems += role_problems(policy, rule, Role.APPROVER, person, record.target)
            problems += _own_run(record, rule, person)
        require_none(problems)
        return platform.ledger.pauses.resume(run_id, by=person, reason=reason, seen={one.id for one in holding})


def _own_run(record: RunRecord, rule: Rule, person: str) -> list[Problem]:
    """Say that a limit of a run is not for its requester to lift, as its plan is not for them to approve."""
    if not rule.four_eyes or same_name(person) != same_name(record.requested_by):
        return []
    return [
        Problem(
            f"'{person}' requested run '{record.run_id}', and a limit of it has paused it",
            "who lets it go on differs from the requester",
            "ask somebody else who may approve it",
        )
    ]


def _reason_problems(reason: str, rule: str) -> list[Problem]:
    if len(seen(reason)) >= SHORTEST_REASON:
        return []
    return [
        Problem(
            f"the reason '{reason}' is too short" if reason.strip() else "no reason is given",
            rule,
            f"give --reason at least {SHORTEST_REASON} visible characters",
        )
    ]
