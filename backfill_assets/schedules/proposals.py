"""Proposed restatements: planned runs over the published days of which a source has a newer version.

Put here what is proposed for a target, under which name, and what becomes of a proposal that another one takes the place of; the
sensor (`defs.proposal_sensor`) and the command both ask for it. Which days a newer version changes is `planning.newer_versions`';
from its plan on a proposal is a run like any other.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256

from backfill_assets import decisions
from backfill_assets.declarations.revisions import KnownVersion
from backfill_assets.declarations.schedules import RestatementPolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import fitting
from backfill_assets.planning.newer_versions import ChangedDay, Stretch, stale_stretches
from backfill_assets.planning.resolve import plan_run
from backfill_assets.who_decides import run_and_rule
from manifests.errors import InputRefused, Problem, Refused, StateMoved
from manifests.lifecycle import PUBLISH, PublicationState, RunState
from manifests.model import MAX_RUN_ID, DayRange, Kind, RunManifest, days_in_words, scope_in_words
from manifests.reading import manifest_from
from manifests.who_may import proposal_problems
from resources import logs
from resources.ledger.facade import RunRecord, operator

_log = logging.getLogger(__name__)
LAUNCHABLE = frozenset({RunState.APPROVED, RunState.RUNNING, RunState.STAGED})
"""States of a proposal in which its chunks are to be staged and gated without anybody saying so."""
_UNDER_WAY = LAUNCHABLE | {RunState.PLANNED, RunState.FAILED, RunState.VALIDATED}
_REASONS_SHOWN = 5
_DIGEST = 8


@dataclass(frozen=True)
class Proposal:
    """What has come of one stretch of days: the run that is proposed, or None; and why, in words."""

    days: DayRange
    record: RunRecord | None
    why: str


@dataclass(frozen=True)
class Proposed:
    """What is proposed for a target, stretch by stretch; `why` says it of the whole where there is none."""

    target: str
    proposals: tuple[Proposal, ...]
    why: str


def policy_of(target: TargetTable) -> RestatementPolicy:
    """Return what may be proposed for a target.

    Raises:
        InputRefused: if nothing may.
    """
    if target.restated is None:
        raise InputRefused(
            Problem(
                f"{target.name} does not say that restatements of it are proposed",
                "a restatement is proposed for a target whose source keeps every version of a day",
                "declare `restated` in the product, or plan a manifest of your own",
            )
        )
    return target.restated


def propose(platform: Platform, target: TargetTable) -> Proposed:
    """Plan a restatement of the published days of which the source has a newer version; two calls make one run of each.

    One run a stretch of chunks without a gap. A proposal that waits for approval, and whose days or versions are not those of today,
    is cancelled, and another takes its place. What somebody has approved, or planned for the same days, comes first: the rest
    of them is proposed once that has ended. What the rule of the table approves is approved.
    """
    with logs.bound(target=target.name):
        proposed = _proposed(platform, target)
        text = f"{len(proposed.proposals)} stretch(es) of days to restate: {proposed.why}"
        logs.event(_log, logging.INFO if proposed.proposals else logging.DEBUG, "restatements_proposed", text)
        return proposed


def foreseen(platform: Platform, target: TargetTable) -> str:
    """Say what would be proposed; plan nothing."""
    snapshot_id, stretches, why = _stale(platform, target)
    if snapshot_id is None or not stretches:
        return why
    return "; ".join(f"would propose {_reason(target, stretch)}" for stretch in stretches)


def _stale(platform: Platform, target: TargetTable) -> tuple[int | None, Sequence[Stretch], str]:
    """Return the source's snapshot, the stretches to restate with it, and in words why there are none or not all."""
    policy_of(target)
    snapshot_id = platform.lakehouse.snapshot_id(target.source)
    if snapshot_id is None:
        return None, (), f"{target.source} has no snapshot yet"
    found = stale_stretches(platform, target, snapshot_id)
    why = (
        "" if found.stretches else f"every published day of {target.name} has the versions in force in {target.source}"
    )
    if found.untold:
        gone = ", ".join(map(str, found.untold))
        why += f"{'; ' if why else ''}nothing is known of days computed from snapshot(s) {gone}, which {target.source} has no more"
    return snapshot_id, found.stretches, why


def _proposed(platform: Platform, target: TargetTable) -> Proposed:
    snapshot_id, stretches, why = _stale(platform, target)
    if snapshot_id is None:
        return Proposed(target.name, (), why)
    _withdraw(platform, target, snapshot_id, stretches)
    found = []
    for stretch in stretches:
        try:
            found.append(_of_stretch(platform, target, snapshot_id, stretch))
        except Refused as refusal:  # the other stretches are not to blame
            problem = refusal.problems[0]
            found.append(Proposal(stretch.days, None, f"{problem.what}: {problem.rule}; {problem.fix}"))
    return Proposed(target.name, tuple(found), "; ".join([*(one.why for one in found), *([why] if why else [])]))


def _withdraw(platform: Platform, target: TargetTable, snapshot_id: int, stretches: Sequence[Stretch]) -> None:
    """Cancel the proposals that wait for approval, and that are not what is proposed today."""
    current = {(stretch.days, stretch.values) for stretch in stretches}
    for record in _open(platform, target):
        same = _scope(record) in current and record.plan.source_snapshot_id == snapshot_id
        if record.state is RunState.PLANNED and _is_proposal(target, record) and not same:
            why = f"{target.source} says something else by now, at snapshot {snapshot_id}"
            with suppress(StateMoved):  # somebody has decided about it just now: that comes first
                expected, plan_hash = RunState.PLANNED, record.plan_hash
                platform.ledger.move(
                    record.run_id, RunState.CANCELLED, operator(), why, expected=expected, plan_hash=plan_hash
                )


def _of_stretch(platform: Platform, target: TargetTable, snapshot_id: int, stretch: Stretch) -> Proposal:
    for record in _open(platform, target):
        scope, values = _scope(record)
        if scope.start > stretch.days.end or scope.end < stretch.days.start:
            continue
        if values is not None and stretch.values is not None and set(values).isdisjoint(stretch.values):
            continue
        is_this = (scope, values) == (stretch.days, stretch.values)
        if _is_proposal(target, record) and is_this and record.plan.source_snapshot_id == snapshot_id:
            return _by_rule(platform, target, _current(platform, record), stretch)
        why = f"{record.run_id} is {record.state} and changes {record.plan.scope}: what is left is proposed after it"
        return Proposal(stretch.days, None, why)
    run_id, taken = _free_run_id(platform, target, snapshot_id, stretch)
    if run_id is None:
        return Proposal(stretch.days, None, taken)
    manifest = _written(target, run_id, snapshot_id, stretch)
    platform.ledger.ticks.record(manifest, platform.ledger.now())
    return _by_rule(platform, target, plan_run(platform, manifest), stretch)


def _current(platform: Platform, record: RunRecord) -> RunRecord:
    """Return a proposal with a plan that can be approved today: policy and code may have changed since it was made."""
    if record.state is not RunState.PLANNED:
        return record
    is_current = record.plan.policy == platform.policy.hash
    is_current &= record.plan.code.is_same(platform.code_of(record.target))
    return record if is_current else plan_run(platform, record.manifest)


def _by_rule(platform: Platform, target: TargetTable, record: RunRecord, stretch: Stretch) -> Proposal:
    """Approve a proposal if the rule of its table does; return it as it is then, and who it waits for."""
    said = _reason(target, stretch)
    if record.state is not RunState.PLANNED:
        return Proposal(stretch.days, record, f"{record.run_id} is {record.state}: {said}")
    rule = run_and_rule(platform, record.run_id)[2]
    if problems := proposal_problems(rule, record.run_id, len(record.plan.chunks)):
        return Proposal(stretch.days, record, f"{record.run_id} waits for approval ({problems[0].rule}): {said}")
    comment = f"as the rule for {', '.join(rule.tables)} says of proposals"
    by = policy_of(target).approved_by
    record = decisions.approve_by_policy(platform, record.run_id, by=by, comment=comment)
    return Proposal(stretch.days, record, f"{record.run_id} is {record.state} by rule: {said}")


def _open(platform: Platform, target: TargetTable) -> list[RunRecord]:
    """Return the runs that may change the target yet."""
    return [one for one in platform.ledger.runs(target=target.name, states=_UNDER_WAY) if one.plan.mode.publishes]


def _is_proposal(target: TargetTable, record: RunRecord) -> bool:
    return record.run_id.startswith(_prefix(target)) and record.manifest.requested_by == policy_of(target).requested_by


def under_way(platform: Platform, target: TargetTable) -> list[RunRecord]:
    """Return the proposals for a target that are approved, by whomever, and not staged and gated yet; oldest first."""
    found = [one for one in _open(platform, target) if one.state in LAUNCHABLE and _is_proposal(target, one)]
    return sorted(found, key=lambda record: record.plan.run_clock)


def _prefix(target: TargetTable) -> str:
    name = target.name.replace(".", "-").replace("_", "-").lower()
    room = MAX_RUN_ID - len("proposed--20000101-.5") - _DIGEST
    return f"proposed-{fitting(name, room)}-"


_ATTEMPTS = 5


def _scope(record: RunRecord) -> tuple[DayRange, tuple[str, ...] | None]:
    return record.plan.publish_range, record.plan.values


def _free_run_id(platform: Platform, target: TargetTable, snapshot_id: int, stretch: Stretch) -> tuple[str | None, str]:
    """Return the run id of a proposal, or None and why there is to be none.

    One that was published and rolled back, or that a person has ended, was ended for a reason: it is proposed again with the next
    snapshot of the source. One that the platform has cancelled itself stands aside, as does one that lost its chunks to another
    publication, and a run that is no proposal.
    """
    days = stretch.days
    what = f"{snapshot_id} {days.start} {days.end}" + "".join(f" {value}" for value in stretch.values or ())
    first = f"{_prefix(target)}{days.start:%Y%m%d}-{sha256(what.encode()).hexdigest()[:_DIGEST]}"
    for number in range(1, _ATTEMPTS + 1):
        run_id = first if number == 1 else f"{first}.{number}"
        record = platform.ledger.find(run_id)
        if record is None:
            return run_id, ""
        if not _is_proposal(target, record):
            continue
        tried = [entry.state for entry in platform.ledger.publications(run_id) if entry.action == PUBLISH]
        lost = record.state is RunState.REJECTED and PublicationState.REFUSED in tried
        if lost or (record.state is RunState.CANCELLED and not platform.ledger.approvals(run_id)):
            continue
        return None, f"{run_id} is {record.state}: {record.state_reason}"
    return None, f"{_ATTEMPTS} proposals for {days_in_words(days)} were cancelled: see their reasons"


def _reason(target: TargetTable, stretch: Stretch) -> str:
    told = [_of_day(one) for one in stretch.because[:_REASONS_SHOWN]]
    left = len(stretch.because) - len(told)
    more = f", and {left:,} more day(s)" if left else ""
    return (
        f"{scope_in_words(stretch.days, stretch.values)}: {target.source} has another version of {len(stretch.because):,} day(s) than when "
        f"they were published: {', '.join(told)}{more}"
    )


def _of_day(one: ChangedDay) -> str:
    return f"{one.day} ({_version(one.before)}, now {_version(one.now)})"


def _version(known: KnownVersion | None) -> str:
    return "none" if known is None else f"{known.version} of {known.system:%Y-%m-%d %H:%M} UTC"


def _written(target: TargetTable, run_id: str, snapshot_id: int, stretch: Stretch) -> RunManifest:
    """Return the one manifest that is proposed for a snapshot of the source and a stretch of days."""
    policy = policy_of(target)
    return manifest_from(
        {
            "runId": run_id,
            "kind": Kind.RESTATEMENT.value,
            "requestedBy": policy.requested_by,
            "reason": f"Proposed: {_reason(target, stretch)}.",
            "source": {"table": target.source, "snapshotId": snapshot_id},
            "transform": {"name": target.transform, "version": policy.transform_version},
            "target": {
                "table": target.name,
                "publishRange": {"start": stretch.days.start.isoformat(), "end": stretch.days.end.isoformat()},
                "values": None if stretch.values is None else list(stretch.values),
            },
            "validation": {
                "gates": None if policy.gates is None else list(policy.gates),
                "tolerances": dict(policy.tolerances),
            },
            "development": policy.development,
            "purpose": policy.purpose,
        },
        where=f"proposal for {target.name}",
    )
