"""Dry runs of planned runs: which run needs one by the policy, and the manifest of one.

Put here what is looked up for both. The terms of a policy are `manifests.dry_runs`', which chunks a dry run takes
`manifests.dry_run_samples`'; which one counts, `backfill_assets.publication.dry_runs`' to find.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from backfill_assets.installation import Platform
from manifests.chunks import cut
from manifests.division import parts_of
from manifests.dry_run_proof import Asked, FoundDryRun, is_empty, reasons_against
from manifests.dry_run_samples import DEFAULT_CHUNKS, dry_run_id, dry_run_manifest, sampled
from manifests.dry_runs import terms_of
from manifests.errors import Problem, TransitionRefused
from manifests.estimates import FileIndex
from manifests.facts import SourceFile, SourceState
from manifests.lifecycle import ENDED, WAS_PUBLISHED, RunState
from manifests.model import Kind, Mode, RunManifest
from manifests.plan import Plan
from manifests.policy import Policy
from manifests.series import step_id
from manifests.who_may import age_problems, proposal_problems
from resources.ledger.facade import RunRecord

_OF_THE_SAMPLE: Mapping[str, bool | set[str]] = {
    "requested_by": True,
    "reason": True,
    "sample": True,
    "safety": True,
    "limits": {"budget"},
    "target": {"publish_range", "values"},
    "validation": {"expected"},
}
"""Fields in which dry runs of one run differ: who asks for it, which chunks it takes, and what follows from these."""
_OF_THE_STEP: Mapping[str, bool | set[str]] = {
    "run_id": True,
    "series": {"step"},
    "target": {"publish_range", "values"},
    "validation": {"expected"},
}
"""Fields in which the steps of one progressive run differ."""


def with_dry_run_terms(
    platform: Platform,
    plan: Plan,
    manifest: RunManifest,
    policy: Policy,
    source: SourceState,
    whole: RunManifest | None = None,
) -> Plan:
    """Return a plan with why it needs a dry run by a policy, if it does: not where the platform approves it itself.

    `whole` is the progressive manifest that it is a step of: all steps count together.
    """
    rule = policy.rule_for(plan.target, manifest.kind)
    if rule.dry_run is None or not plan.publishes or manifest.kind is Kind.LIVE:
        return plan
    by_rule = platform.ledger.ticks.has_proposed(manifest)
    if by_rule and not proposal_problems(rule, plan.run_id, len(plan.chunks)):
        return plan
    chunks, rows = _size(platform, plan, manifest, source, whole)
    return replace(plan, dry_run=terms_of(rule.dry_run, chunks, rows))


def _size(
    platform: Platform, plan: Plan, manifest: RunManifest, source: SourceState, whole: RunManifest | None
) -> tuple[int, int]:
    """Return how many chunks a run has and how many source rows it would read, all steps of a progressive one together."""
    if whole is not None and whole.progressive is not None:
        target, days = platform.products.target(plan.target), whole.target.publish_range
        chunks = cut(plan.chunking, days.start, days.end, parts_of(target.chunk_values, whole.target.values))
        first = days.start - timedelta(days=plan.warm_up_days)
        return len(list(chunks)), FileIndex(_files_read(platform, plan, source)).read_for(first, days.end).rows
    others = [one.plan for one in _steps_beside(platform, manifest)]
    plans = [plan, *others]
    return sum(len(one.chunks) for one in plans), sum(one.reads.rows for one in plans)


def _files_read(platform: Platform, plan: Plan, source: SourceState) -> tuple[SourceFile, ...]:
    """Return the files of a plan's first source that may hold what it reads: of a log, those at its positions."""
    log = plan.log_of(plan.source)
    if log is None or log.is_whole:
        return source.files
    target = platform.products.target(plan.target)
    place = log, target.source_time_column, source.snapshot_id
    return platform.lakehouse.files_of_log(*place, is_whole=target.reads_whole)


def asked_of(platform: Platform, record: RunRecord) -> Asked:
    """Return what a dry run of a run is held against: its plan, and the chunks of all steps where it is one."""
    beside = _steps_beside(platform, record.manifest)
    reads = {chunk.key: chunk.reads.rows for one in (record, *beside) for chunk in one.plan.chunks}
    left = len(record.plan.chunks) + sum(len(one.plan.chunks) for one in beside if _is_open(one))
    return Asked(record.run_id, record.plan, record.manifest.development, reads.keys(), left, reads)


def found_of(platform: Platform, record: RunRecord) -> FoundDryRun:
    """Return a run on record as a dry run that could count."""
    passed = [one.at for one in platform.ledger.history(record.run_id) if one.to_state is RunState.VALIDATED]
    at = passed[-1] if passed else None
    rows = {one.chunk: one.rows for one in platform.ledger.chunks(record.run_id)}
    return FoundDryRun(record.run_id, record.plan, record.manifest.development, record.state, at, rows)


def manifest_of_dry_run(platform: Platform, run_id: str, requested_by: str) -> RunManifest:
    """Return the manifest of the dry run of a planned run, or of the first planned step of a progressive one.

    Steps that are published, or ended without it, are left out: a kind that replaces nothing is not planned over them. One that is on record and may still count is answered with its own manifest: the same command again makes no other.

    Raises:
        InputRefused: if the ledger holds no such run.
        TransitionRefused: if the run is not planned, or changes nothing.
    """
    record = _planned(platform, run_id)
    beside = _steps_beside(platform, record.manifest)
    steps = sorted([record, *filter(_is_open, beside)], key=_step)
    plans = [record.plan, *(one.plan for one in steps if one is not record)]
    chunks = [chunk for one in steps for chunk in one.plan.chunks]
    terms, series = record.plan.dry_run, record.manifest.series
    name = record.run_id if series is None else series.of
    wanted = DEFAULT_CHUNKS if terms is None else terms.least
    left = {chunk.key for chunk in chunks}
    scope = left | {chunk.key for one in beside for chunk in one.plan.chunks}
    for number in count(1):
        own = dry_run_id(record.run_id, record.plan_hash, number)
        known = platform.ledger.find(own)
        keys = sampled(name, chunks, wanted, [one.chunks for one in plans])
        made = dry_run_manifest(record.manifest, plans, keys, run_id=own, requested_by=requested_by)
        if known is None:
            return made
        if not _is_of(known, made, scope if known.state is RunState.VALIDATED else left):
            continue
        if not _is_spent(platform, record, known):
            return known.manifest
        asked, found = asked_of(platform, record), found_of(platform, known)
        if empty := sum(is_empty(asked, found, key) for key in found.rows):
            wanted = max(wanted, len(found.rows) + empty)  # others beside those that had no row
    raise AssertionError("numbers do not end")


def _is_of(known: RunRecord, made: RunManifest, scope: Collection[str]) -> bool:
    """Whether a run on record, under the id that a dry run would have, is that dry run, or one of other chunks of the run."""
    sample = known.manifest.sample
    if sample is None or known.manifest.execution_mode is not Mode.DRY_RUN or not set(sample.chunks) <= set(scope):
        return False
    its, ours = (one.model_dump(exclude=_OF_THE_SAMPLE) for one in (known.manifest, made))
    return its == ours and known.target == made.target.table


def _is_spent(platform: Platform, record: RunRecord, known: RunRecord) -> bool:
    """Whether nothing that counts can come of a dry run any more."""
    if known.state in ENDED:
        return True
    at = platform.ledger.latest()
    if known.state is RunState.PLANNED:  # planned again, it is as young as any
        return False
    with platform.ledger.reading() as moment:
        changed = moment.unexplained(moment.explain_run(known.run_id), known.run_id)
    if changed or dry_run_age_problems(platform, known, at):
        return True
    if known.state is not RunState.VALIDATED or record.plan.dry_run is None:
        return False
    return bool(reasons_against(asked_of(platform, record), record.plan.dry_run, found_of(platform, known), at))


def dry_run_age_problems(platform: Platform, record: RunRecord, at: datetime) -> list[Problem]:
    """Say that a dry run is older than the policy lets a run of its table and kind become."""
    approval = platform.ledger.approval_of(record)
    approved_at = None if approval is None else approval.at
    rule = platform.policy.rule_for(record.target, record.kind)
    return age_problems(rule, record.run_id, planned_at=record.plan.run_clock, approved_at=approved_at, at=at)


def _planned(platform: Platform, run_id: str) -> RunRecord:
    record = platform.ledger.find(run_id) or _first_planned_step(platform, run_id) or platform.ledger.run(run_id)
    problems = []
    if record.state is not RunState.PLANNED:
        problems.append(
            Problem(
                f"run '{record.run_id}' is {record.state}",
                "a dry run comes before the approval, and is of the plan that would be approved",
                "give the change a run id of its own, and plan it",
            )
        )
    if not record.manifest.execution_mode.publishes:
        problems.append(
            Problem(
                f"run '{record.run_id}' has mode {record.mode}",
                "a dry run is of a run that would change its target",
                "name that run",
            )
        )
    if problems:
        raise TransitionRefused(problems)
    return record


def _first_planned_step(platform: Platform, series: str) -> RunRecord | None:
    first = platform.ledger.find(step_id(series, 1))
    if first is None or first.manifest.series is None:
        return None
    steps = sorted([first, *_steps_beside(platform, first.manifest)], key=_step)
    return next((one for one in steps if one.state is RunState.PLANNED), first)


def _is_open(step: RunRecord) -> bool:
    """Whether a step is still to be published."""
    return step.state not in ENDED | WAS_PUBLISHED


def _step(record: RunRecord) -> int:
    return 0 if record.manifest.series is None else record.manifest.series.step


def _steps_beside(platform: Platform, manifest: RunManifest) -> list[RunRecord]:
    """Return the other steps of the series that a manifest is of, as far as they are on record and of the same change, in their order.

    What was rejected or cancelled is no step of it any more, nor is what only names the series: its manifest says something else.
    """
    series, found = manifest.series, []
    for number in range(1, series.steps + 1) if series is not None else ():
        one = platform.ledger.find(step_id(series.of, number)) if series is not None else None
        if one is None or one.run_id == manifest.run_id or one.state in ENDED:
            continue
        if _of_all_steps(one.manifest) == _of_all_steps(manifest):
            found.append(one)
    return found


def _of_all_steps(manifest: RunManifest) -> dict[str, Any]:
    return manifest.model_dump(exclude=_OF_THE_STEP)
