"""LIVE: the manifests that a schedule writes and a policy approves. From there on a live run is a run like any other.

Put here what the next live run of a target is, and the policy's approval of it; both are asked for by the schedule and
the sensor (`live_triggers`) and by the command. How it is planned, staged, gated and published is nobody's business here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from hashlib import sha256

from backfill_assets import decisions
from backfill_assets.planning import plan_run
from backfill_assets.platform import Platform
from backfill_assets.target import LivePolicy, TargetTable
from backfill_assets.ways import PUBLISH
from manifests.chunks import aligned, first_day
from manifests.errors import InputRefused, Problem, TransitionRefused
from manifests.lifecycle import RunState
from manifests.model import MAX_RUN_ID, Kind, RunManifest, manifest_from
from manifests.planner import SourceState
from resources import watermarks
from resources.ledger import RunRecord, now
from resources.watermarks import Watermark

LAUNCHABLE = frozenset({RunState.APPROVED, RunState.RUNNING, RunState.STAGED})
"""States of a live run in which its chunks are to be staged and gated without anybody saying so."""
_OPEN = LAUNCHABLE | {RunState.PLANNED, RunState.FAILED, RunState.VALIDATED}
_ATTEMPTS = 5
"""Live runs for one source snapshot: each after the first stands in for one that lost its scope to somebody else."""


@dataclass(frozen=True)
class Tick:
    """What a tick found or made for a target: a live run that is under way, or none; and why, in words."""

    target: str
    record: RunRecord | None
    why: str


def policy_of(target: TargetTable) -> LivePolicy:
    """Return the live policy of a target.

    Raises:
        InputRefused: if it has none.
    """
    if target.live is None:
        raise InputRefused(
            Problem(
                f"{target.name} declares no live policy",
                "LIVE does what a target's policy allows",
                "declare `live` in the product, or run a manifest of another kind",
            )
        )
    return target.live


def tick(platform: Platform, target: TargetTable) -> Tick:
    """Go on with the live run that is under way, or plan and approve the next; two ticks make one run.

    One run at a time: a new source snapshot waits until the run before it is over, and the next run takes it in.

    Raises:
        Refused: if the next run cannot be planned, or the policy does not cover what is planned.
    """
    policy_of(target)
    under_way = [
        record for record in platform.ledger.runs(target=target.name, states=_OPEN) if _is_ours(record.run_id, target)
    ]
    if under_way:
        record = approve_by_policy(platform, target, under_way[0])
        return Tick(target.name, record, f"{record.run_id} is {record.state}: {record.state_reason}")
    manifest, why = _next(platform, target)
    if manifest is None:
        return Tick(target.name, None, why)
    record = approve_by_policy(platform, target, plan_run(platform, manifest))
    return Tick(target.name, record, why)


def live_manifest(platform: Platform, target: TargetTable) -> RunManifest | None:
    """Return the manifest of the next live run, or None where there is nothing to do.

    Its run id follows from the source snapshot, its range from the watermark: from there, less the rewind, to the last day
    that the source knows, in whole chunks.
    """
    return _next(platform, target)[0]


def approve_by_policy(platform: Platform, target: TargetTable, record: RunRecord) -> RunRecord:
    """Approve a planned live run in the name of the target's policy; return the run as it is then.

    Raises:
        TransitionRefused: if its manifest is not what the policy writes: that is for people to approve.
    """
    if record.state is not RunState.PLANNED:
        return record
    if record.plan.policy != platform.policy.hash:  # it has changed since: a plan is approved under the one in force
        record = plan_run(platform, record.manifest)
    policy, text = policy_of(target), record.manifest
    scope = text.target.publish_range
    expected = _written(target, record.run_id, text.source.snapshot_id, scope.start, scope.end, text.reason)
    if text != expected:
        raise TransitionRefused(
            Problem(
                f"the manifest of '{record.run_id}' is not what the live policy of {target.name} writes today",
                f"{policy.approved_by} approves what it would write itself, and nothing else",
                f"`backfill reject {record.run_id} --by NAME`, or have somebody approve it",
            )
        )
    comment = f"as the live policy of {target.name} says"
    return decisions.approve(platform, record.run_id, by=policy.approved_by, comment=comment)


def _next(platform: Platform, target: TargetTable) -> tuple[RunManifest | None, str]:
    """Return the manifest of the next live run and what it is for, or None and why there is none."""
    policy_of(target)
    if platform.lakehouse.snapshot_id(target.source) is None:
        return None, f"{target.source} has no snapshot yet"
    source = platform.lakehouse.source_state(target.source, target.source_time_column, None)
    if not source.files:
        return None, f"{target.source} holds no rows at snapshot {source.snapshot_id}"
    # a day after today is a mistake of the source: it must not open chunks of the future
    known = min(max(file.last_day for file in source.files), now().date())
    watermark = watermarks.current(platform.ledger.engine, target.name)
    if (
        watermark is not None
        and watermark.source_snapshot_id == source.snapshot_id
        and watermark.complete_until >= known
    ):
        return None, f"{target.name} is complete up to {watermark.complete_until} with snapshot {source.snapshot_id}"
    run_id, taken = _free_run_id(platform, target, source.snapshot_id)
    if run_id is None:
        return None, taken
    begins = _begins(platform, target, watermark)
    if begins is None:
        return None, f"nothing is published of {target.name} yet, and its live policy names no first day (begins_on)"
    owned = policy_of(target).begins_on
    if owned is not None and known < owned:
        return None, f"LIVE owns {target.name} from {owned} on, and {target.source} knows nothing after {known} yet"
    begins = max(min(begins, known), min(file.first_day for file in source.files))
    start, end = aligned(target.chunking, begins, known)
    why = f"Live: {target.name} from {start} to {known}, with source snapshot {source.snapshot_id}."
    why += _left_out(platform, target, watermark, source, start)
    return _written(target, run_id, source.snapshot_id, start, end, why), why


def _begins(platform: Platform, target: TargetTable, watermark: Watermark | None) -> date | None:
    """Return the first day that live covers next: the day after the watermark, less the rewind.

    Without a watermark it is the newest chunk that was accepted (before there were watermarks, or after a rollback of
    the first), or where the policy says that LIVE begins.
    """
    policy = policy_of(target)
    if watermark is not None:
        follows = watermark.complete_until + timedelta(days=1)
        begins = follows - timedelta(days=policy.rewind_days)
    else:
        accepted = platform.ledger.accepted(target.name)
        if not accepted:
            return policy.begins_on
        begins = first_day(target.chunking, max(accepted))
    return begins if policy.begins_on is None else max(begins, policy.begins_on)


def _left_out(
    platform: Platform, target: TargetTable, watermark: Watermark | None, source: SourceState, start: date
) -> str:
    """Say in words which days before the run got new rows, too: those are for a repair."""
    if watermark is None or watermark.source_snapshot_id == source.snapshot_id:
        return ""
    earliest = platform.lakehouse.first_day_added(
        target.source, target.source_time_column, watermark.source_snapshot_id, source.snapshot_id
    )
    if earliest is None or earliest >= start:
        return ""
    return (
        f" Rows of days back to {earliest} have come since snapshot {watermark.source_snapshot_id}: those before {start} "
        "are not covered by this run, a repair takes them in."
    )


def _free_run_id(platform: Platform, target: TargetTable, snapshot_id: int) -> tuple[str | None, str]:
    """Return the run id of the next live run for a source snapshot, or None and why there is to be none.

    A run that lost its scope to another publication stands aside for another attempt. One that a person has ended, or
    rolled back, was ended for a reason: LIVE goes on with the next snapshot.
    """
    first = f"{_prefix(target)}{snapshot_id}"
    for number in range(1, _ATTEMPTS + 1):
        run_id = first if number == 1 else f"{first}.{number}"
        record = platform.ledger.find(run_id)
        if record is None:
            return run_id, ""
        tried = [entry["state"] for entry in platform.ledger.publications(run_id) if entry["action"] == PUBLISH]
        if record.state is not RunState.REJECTED or "REFUSED" not in tried:
            return None, f"{run_id} is {record.state}: {record.state_reason}"
    return None, f"{_ATTEMPTS} live runs for snapshot {snapshot_id} were refused by {target.name}: see their reasons"


def _prefix(target: TargetTable) -> str:
    """Return what the ids of the target's live runs begin with; a snapshot id and an attempt have room behind it."""
    name = target.name.replace(".", "-")
    room = MAX_RUN_ID - len("live--") - len(f"{2**63}.{_ATTEMPTS}")
    if len(name) > room:
        name = f"{name[: room - 9]}-{sha256(name.encode()).hexdigest()[:8]}"
    return f"live-{name}-"


def _is_ours(run_id: str, target: TargetTable) -> bool:
    return run_id.startswith(_prefix(target)) and run_id.removeprefix(_prefix(target)).partition(".")[0].isdigit()


def _written(
    target: TargetTable, run_id: str, snapshot_id: int | None, start: date, end: date, reason: str
) -> RunManifest:
    """Return the one manifest that the policy writes for a snapshot and a range."""
    policy = policy_of(target)
    return manifest_from(
        {
            "runId": run_id,
            "kind": Kind.LIVE.value,
            "requestedBy": policy.requested_by,
            "reason": reason,
            "source": {"table": target.source, "snapshotId": snapshot_id},
            "transform": {"name": target.transform, "version": policy.transform_version},
            "target": {
                "table": target.name,
                "publishMode": policy.publish_mode.value,
                "publishRange": {"start": start.isoformat(), "end": end.isoformat()},
            },
            "safety": {"sinks": list(policy.sinks), "sideEffectsAllowed": policy.side_effects_allowed},
            "validation": {
                "gates": None if policy.gates is None else list(policy.gates),
                "tolerances": dict(policy.tolerances),
            },
            "development": policy.development,
            "purpose": policy.purpose,
        },
        where=f"live policy of {target.name}",
    )
