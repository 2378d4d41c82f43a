"""The dry run that an approval rests on: which one on record counts for a run, and whether it still stands when the run is published.

Put here what is looked up in ledger and journal. The reasons that follow from two plans are `manifests.dry_run_proof`'s, what a dry
run leaves as evidence `backfill_assets.evidence.dry_runs`'; how one is made, `backfill_assets.planning.dry_runs`' to say.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from backfill_assets.evidence.dry_runs import changed_since, dry_run_facts
from backfill_assets.evidence.preconditions import unexplained_of
from backfill_assets.installation import Platform
from backfill_assets.planning.dry_runs import asked_of, dry_run_age_problems, found_of
from backfill_assets.publication.gate_problems import gate_problems
from manifests.canonical import sha256_of
from manifests.dry_run_proof import Asked, other_snapshots, reasons_against, reasons_against_contents
from manifests.dry_run_samples import dry_run_id
from manifests.dry_runs import DryRunLink, DryRunTerms
from manifests.errors import Problem, Refused
from manifests.lifecycle import WAS_PUBLISHED, RunState
from manifests.model import Mode
from resources.ledger.dry_run_links import STANDS
from resources.ledger.facade import RunRecord

_SPEAKS_AGAINST = frozenset({RunState.FAILED, RunState.REJECTED})
"""States of a newer dry run of the same that are said where an older one counts."""
_SHOWN = 3
"""Dry runs of which it is said why they do not count."""


def dry_run_for(platform: Platform, record: RunRecord) -> tuple[DryRunLink | None, list[Problem]]:
    """Return the newest dry run that counts for a run which needs one, or why there is none; neither of a run that needs none."""
    terms = record.plan.dry_run
    if terms is None:
        return None, []
    asked, at = asked_of(platform, record), platform.ledger.latest()
    refused: list[Problem] = []
    against: list[str] = []
    for one in reversed(platform.ledger.runs(target=record.target, mode=Mode.DRY_RUN)):
        try:
            reasons = _reasons(platform, asked, terms, one, at)
            if not reasons:
                return replace(_link(platform, asked, one), against=tuple(against)), []
            if one.state in _SPEAKS_AGAINST and not reasons_against_contents(asked, terms, found_of(platform, one)):
                why = f" ({one.state_reason})" if one.state_reason else ""
                against.append(f"'{one.run_id}' is {one.state}{why}")
        except Refused as refusal:
            reasons = [f"it cannot be read: {refusal.problems[0].what}"]
        if len(refused) < _SHOWN:
            refused.append(_does_not_count(one, record.run_id, terms, reasons))
    return None, [_missing(record, terms), *refused]


def link_problems(platform: Platform, record: RunRecord) -> list[Problem]:
    """Say why the approval of a run which needs a dry run rests on none any more; how old it is was asked when it was approved."""
    terms, approval = record.plan.dry_run, platform.ledger.approval_of(record)
    if terms is None or approval is None:  # that nobody has approved it is said elsewhere
        return []
    if (link := approval.rests_on) is None:
        return [_without_link(record, "names no dry run")]
    found = platform.ledger.find(link.run_id)
    if found is None:
        return [_without_link(record, f"rests on dry run '{link.run_id}', which is not on record")]
    if found.state not in STANDS or found.plan_hash != link.plan_hash:
        why = f" ({found.state_reason})" if found.state_reason else ""
        return [_without_link(record, f"rests on dry run '{link.run_id}', which is {found.state} by now{why}")]
    if changed_since(platform, link):
        return [_without_link(record, f"rests on dry run '{link.run_id}', whose results on record are others by now")]
    return []


def approved_on(platform: Platform, record: RunRecord) -> DryRunLink | None:
    """Return the dry run that the approval of a run's plan rests on; None where it rests on none."""
    approval = platform.ledger.approval_of(record)
    return None if approval is None else approval.rests_on


def unexplained_link(platform: Platform, record: RunRecord) -> list[Problem]:
    """Say that the dry run which a run's approval rests on was changed by hand since."""
    link = approved_on(platform, record)
    if link is None or platform.ledger.find(link.run_id) is None:
        return []
    run_id = link.run_id
    wrong = unexplained_of(platform, run_id)
    return [_without_link(record, f"rests on dry run '{run_id}': {wrong[0].where} {wrong[0].what}")] if wrong else []


def dry_run_in_words(platform: Platform, record: RunRecord) -> str:
    """Say which dry run the approval of a run rests on, or which one counts for it, or that it still needs one; empty if it needs none."""
    if record.plan.dry_run is None:
        return ""
    if (rests_on := approved_on(platform, record)) is not None:
        return f"approved on {rests_on.describe()}"
    if record.state is not RunState.PLANNED:
        return record.plan.dry_run.describe()
    link, _ = dry_run_for(platform, record)
    if link is not None:
        return f"required, and there is {link.describe()}"
    return f"{record.plan.dry_run.describe()}; none counts yet: `backfill plan --dry-run-of {record.run_id}`"


def _reasons(platform: Platform, asked: Asked, terms: DryRunTerms, record: RunRecord, at: datetime) -> list[str]:
    """Return each reason why a run on record is no dry run that counts; the ledger's journal is asked last, where none is found."""
    ledger, run_id = platform.ledger, record.run_id
    found = found_of(platform, record)
    if reasons := reasons_against(asked, terms, found, at):
        return reasons
    if found.plan.hash != record.plan_hash or record.manifest.hash != found.plan.manifest_hash:
        reasons.append("its plan or manifest on record does not match its hash")
    reasons += [one.what for one in gate_problems(platform, run_id, found.plan, ledger.standing_chunks(run_id))]
    if platform.ledger.approval_of(record) is None:
        reasons.append("no approval of its plan is on record")
    reasons += [one.what for one in dry_run_age_problems(platform, record, at)]
    reasons += [f"{one.where} {one.what}" for one in unexplained_of(platform, run_id)[:_SHOWN]]
    return reasons


def _link(platform: Platform, asked: Asked, record: RunRecord) -> DryRunLink:
    facts, found = dry_run_facts(platform, record.run_id), found_of(platform, record)
    assert found.validated_at is not None, "one without would not count"
    rows = sum(one["rows"] or 0 for one in facts["chunks"])
    others = other_snapshots(asked.plan, found.plan)
    done = len(facts["chunks"])
    return DryRunLink(record.run_id, record.plan_hash, sha256_of(facts), done, rows, found.validated_at, others)


def _missing(record: RunRecord, terms: DryRunTerms) -> Problem:
    run_id, own = record.run_id, dry_run_id(record.run_id, record.plan_hash)
    return Problem(
        f"no dry run counts for run '{run_id}', which has {terms.why}",
        f"the policy asks for one before the approval: {terms.rule}",
        f"`backfill plan --dry-run-of {run_id}` makes one, as '{own}' if that id is free; `backfill approve` and `backfill run` it, "
        "and approve this run then",
    )


def _does_not_count(dry: RunRecord, run_id: str, terms: DryRunTerms, reasons: list[str]) -> Problem:
    return Problem(
        f"dry run '{dry.run_id}' does not count: {'; '.join(reasons)}",
        f"what counts is {terms.rule}",
        f"mend what is said of it, or leave it: `backfill plan --dry-run-of {run_id}` makes another one; where that still names this "
        f"one, `backfill cancel {dry.run_id} --by NAME` first",
    )


def _without_link(record: RunRecord, what: str) -> Problem:
    again = "plan the change again under a new run id, with a dry run of its own"
    return Problem(
        f"the approval of '{record.run_id}' {what}",
        "what was approved on a dry run is published while that dry run stands",
        again if record.state in WAS_PUBLISHED else f"`backfill cancel {record.run_id} --by NAME`, and {again}",
    )
