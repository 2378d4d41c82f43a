"""LIVE: the manifests that a schedule writes and a policy approves. From there on a live run is a run like any other.

Put here what the next live run of a target is, and the policy's approval of it; both are asked for by the schedule and
the sensor (`defs.live_triggers`) and by the command. How it is planned, staged, gated and published is nobody's business here.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date, timedelta

from backfill_assets import decisions
from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import ATTEMPTS, is_live_id, live_id
from backfill_assets.planning.live_sources import first_days_changed, newest_of_further, read_of_further
from backfill_assets.planning.read_models import live_stands_still
from backfill_assets.planning.resolve import plan_run
from backfill_assets.planning.schemas import schema_problems
from backfill_assets.publication.ending import cancel
from manifests.chunks import aligned
from manifests.errors import InputRefused, PlanRefused, Problem, Refused, TransitionRefused
from manifests.lifecycle import PUBLISH, PublicationState, RunState
from manifests.live_problems import complete_times
from manifests.model import Kind, Mode, RunManifest
from manifests.reading import manifest_from
from manifests.target_problems import no_rows
from resources import logs
from resources.ledger import ticks
from resources.ledger.facade import RunRecord, operator
from resources.ledger.watermarks import Watermark

_log = logging.getLogger(__name__)
LAUNCHABLE = frozenset({RunState.APPROVED, RunState.RUNNING, RunState.STAGED})
"""States of a live run in which its chunks are to be staged and gated without anybody saying so."""
_OPEN = LAUNCHABLE | {RunState.PLANNED, RunState.FAILED, RunState.VALIDATED}


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
    with logs.bound(target=target.name, mode=Mode.LIVE.value):
        try:
            done = _tick(platform, target)
        except Refused as refusal:
            text = f"live tick refused: {refusal.problems[0].what}"
            logs.event(_log, logging.WARNING, "live_refused", text, told=True)
            raise
        with logs.of_run(done.record.plan) if done.record is not None else nullcontext():
            logs.event(_log, logging.INFO if done.record else logging.DEBUG, "live_tick", done.why)
        return done


def _tick(platform: Platform, target: TargetTable) -> Tick:
    policy_of(target)
    under_way = _under_way(platform, target)
    if under_way and (stop := platform.ledger.stops.held(under_way[0].run_id)) is not None:
        run_id = under_way[0].run_id
        return Tick(target.name, None, f"{run_id} was {stop}; `backfill resume {run_id}` goes on")
    if under_way and (others := schema_problems(platform, target, under_way[0].plan)):
        run_id, why = under_way[0].run_id, others[0].what
        cancel(platform, run_id, operator(), f"{why}: LIVE goes on with the next snapshot of {target.source}")
        return Tick(target.name, None, f"{run_id} was cancelled: {why}")
    if under_way:
        _take_over(platform, target, under_way[0])
        record = approve_by_policy(platform, target, under_way[0])
        return Tick(target.name, record, f"{record.run_id} is {record.state}: {record.state_reason}")
    if why := live_stands_still(platform, target.name):
        return Tick(target.name, None, why)
    manifest, why = _next(platform, target)
    if manifest is None:
        return Tick(target.name, None, why)
    platform.ledger.ticks.record(manifest, platform.ledger.now())
    record = approve_by_policy(platform, target, plan_run(platform, manifest))
    return Tick(target.name, record, why)


def foreseen(platform: Platform, target: TargetTable) -> str:
    """Say what the next tick finds, or would plan and approve; plan and approve nothing."""
    if under_way := _under_way(platform, target):
        record = under_way[0]
        return f"{record.run_id} is {record.state}: {record.state_reason}"
    if why := live_stands_still(platform, target.name):
        return why
    manifest, why = _next(platform, target)
    return why if manifest is None else f"A tick would plan {manifest.run_id}. {why}"


def _under_way(platform: Platform, target: TargetTable) -> list[RunRecord]:
    return [
        record
        for record in platform.ledger.runs(target=target.name, states=_OPEN)
        if record.mode == Mode.LIVE and is_live_id(record.run_id, target)
    ]


def _take_over(platform: Platform, target: TargetTable, record: RunRecord) -> None:
    """Put on record that a tick has written a live run's manifest, if an earlier version of this project did not.

    Only what the tick would write itself, for the run's snapshot, becomes its own: a run that a person has planned in
    the name of LIVE does not.

    Raises:
        TransitionRefused: if it is another manifest.
    """
    if platform.ledger.ticks.has_written(record.manifest):
        return
    manifest, _ = _next(platform, target, again=record)
    if manifest != record.manifest:
        raise TransitionRefused(
            Problem(
                f"'{record.run_id}' is {record.state} with kind LIVE, and its manifest is not what LIVE would write",
                ticks.ONLY_TICKS,
                f"`backfill cancel {record.run_id} --by NAME`: LIVE goes on with the next snapshot of {target.source}",
            )
        )
    platform.ledger.ticks.record(manifest, platform.ledger.now())


def live_manifest(platform: Platform, target: TargetTable) -> RunManifest | None:
    """Return the manifest of the next live run, or None where there is nothing to do.

    Its run id follows from the source snapshot, its range from the watermark: from there, less the rewind, to the last day
    that the source knows, in whole chunks.
    """
    return _next(platform, target)[0]


def positions_read(platform: Platform, target: TargetTable) -> dict[str, dict[int, int]]:
    """Return up to which position of each partition a target has read its sources that are logs, by source.

    They stand in the plan of the run that brought the watermark where it is: both are accepted in one transaction.
    """
    mark = platform.ledger.watermarks.current(target.name)
    if mark is None:
        return {}
    pinned = platform.ledger.run(mark.run_id).plan.logs
    return {one.table: {place.partition: place.until for place in one.ranges} for one in pinned}


def approve_by_policy(platform: Platform, target: TargetTable, record: RunRecord) -> RunRecord:
    """Approve a planned live run in the name of the target's policy; return the run as it is then.

    Raises:
        TransitionRefused: if its manifest is not what the policy writes: that is for people to approve.
    """
    if record.state is not RunState.PLANNED:
        return record
    if wrong := platform.ledger.ticks.problems(record.manifest):
        raise TransitionRefused(wrong)
    if record.plan.policy != platform.policy.hash:  # it has changed since: a plan is approved under the one in force
        record = _planned_again(platform, record)
    policy, text = policy_of(target), record.manifest
    scope = text.target.publish_range
    further = {one.table: one.snapshot_id for one in text.sources}
    expected = _written(target, record.run_id, text.source.snapshot_id, further, scope.start, scope.end, text.reason)
    if text != expected:
        raise TransitionRefused(
            Problem(
                f"the manifest of '{record.run_id}' is not what the live policy of {target.name} writes today",
                f"{policy.approved_by} approves what it would write itself, and nothing else",
                f"`backfill reject {record.run_id} --by NAME`, or have somebody approve it",
            )
        )
    comment = f"as the live policy of {target.name} says"
    return decisions.approve_by_policy(platform, record.run_id, by=policy.approved_by, comment=comment)


def _planned_again(platform: Platform, record: RunRecord) -> RunRecord:
    """Plan a run under the policy that is in force by now; one that cannot be planned any more ends, for the next to begin.

    Raises:
        PlanRefused, InputRefused: as `plan_run`; the run is REJECTED then.
        TransitionRefused: if another tick has planned it meanwhile: the next one goes on with that.
    """
    try:
        return plan_run(platform, record.manifest)
    except (PlanRefused, InputRefused) as refusal:
        why = refusal.problems[0].what
        platform.ledger.move(
            record.run_id, RunState.REJECTED, operator(), why, expected=RunState.PLANNED, plan_hash=record.plan_hash
        )
        raise


def _next(platform: Platform, target: TargetTable, *, again: RunRecord | None = None) -> tuple[RunManifest | None, str]:
    """Return the manifest of the next live run and what it is for, or None and why there is none.

    With `again`, that of a run that there is already: for its source snapshot, under its id.
    """
    policy_of(target)
    if platform.lakehouse.snapshot_id(target.source) is None:
        return None, f"{target.source} has no snapshot yet"
    pinned = None if again is None else again.plan.source_snapshot_id
    source = platform.lakehouse.source_state(target.source, target.source_time_column, pinned)
    if not source.files:
        return None, no_rows(source).what
    # a day after today is a mistake of the source: it must not open chunks of the future
    known = min(max(file.last_day for file in source.files), platform.ledger.now().date())
    further = newest_of_further(platform, target)
    if again is not None:
        further = {one.table: one.snapshot_id for one in again.manifest.sources}
    now = {target.source: source.snapshot_id, **further}
    watermark = platform.ledger.watermarks.current(target.name)
    before = {} if watermark is None else _read_then(platform, target, watermark)
    is_same = all(before.get(table) == snapshot_id for table, snapshot_id in now.items())
    if watermark is not None and is_same and watermark.complete_until >= known:
        return None, f"{target.name} is complete up to {watermark.complete_until} with {_snapshots(target, now)}"
    run_id, taken = _free_run_id(platform, target, source.snapshot_id, further) if again is None else (again.run_id, "")
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
    why = f"Live: {target.name} from {start} to {known}, with source {_snapshots(target, now)}."
    why += _left_out(platform, target, before, now, start)
    return _written(target, run_id, source.snapshot_id, further, start, end, why), why


def _read_then(platform: Platform, target: TargetTable, watermark: Watermark) -> dict[str, int]:
    """Return the snapshots with which a target is complete, by source."""
    return {target.source: watermark.source_snapshot_id, **read_of_further(platform, watermark)}


def _snapshots(target: TargetTable, pinned: Mapping[str, int]) -> str:
    others = ", ".join(f"{snapshot_id} of {table}" for table, snapshot_id in pinned.items() if table != target.source)
    return f"snapshot {pinned[target.source]}" + (f" (and {others})" if others else "")


def _begins(platform: Platform, target: TargetTable, watermark: Watermark | None) -> date | None:
    """Return the first day that live covers next: the day after the watermark, less the rewind.

    Without a watermark it is the newest time that was accepted whole, in every part (before there were watermarks, or after a
    rollback of the first), or where the policy says that LIVE begins.
    """
    policy = policy_of(target)
    if watermark is not None:
        follows = watermark.complete_until + timedelta(days=1)
        begins = follows - timedelta(days=policy.rewind_days)
    else:
        complete = complete_times(target.chunking, platform.ledger.accepted(target.name), target.parts)
        if not complete:
            return policy.begins_on
        begins = max(complete)
    return begins if policy.begins_on is None else max(begins, policy.begins_on)


def _left_out(
    platform: Platform, target: TargetTable, before: Mapping[str, int], now: Mapping[str, int], start: date
) -> str:
    """Say in words for which days before the run rows have come, too, source by source: those are for a repair."""
    if not before:
        return ""
    said = ""
    for table, earliest in first_days_changed(platform, target, before, now).items():
        if earliest < start:
            of = "" if table == target.source else f" of {table}"
            since = f"since snapshot {before[table]}{of}" if table in before else f"into {table}, which had no snapshot"
            said += (
                f" Rows of days back to {earliest} have come {since}: those before {start} "
                "are not covered by this run, a repair takes them in."
            )
    return said


def _free_run_id(
    platform: Platform, target: TargetTable, snapshot_id: int, further: Mapping[str, int]
) -> tuple[str | None, str]:
    """Return the run id of the next live run for snapshots of the sources, or None and why there is to be none.

    A run that lost its scope to another publication stands aside for another attempt, and so does one that a tick has ended
    before it was approved. One that a person has ended, or rolled back, was ended for a reason: LIVE goes on with the next
    snapshot.
    """
    first = live_id(target, snapshot_id, further)
    for number in range(1, ATTEMPTS + 1):
        run_id = first if number == 1 else f"{first}.{number}"
        record = platform.ledger.find(run_id)
        if record is None:
            return run_id, ""
        tried = [entry.state for entry in platform.ledger.publications(run_id) if entry.action == PUBLISH]
        stands_aside = PublicationState.REFUSED in tried or not platform.ledger.approvals(run_id)
        if record.state is not RunState.REJECTED or not stands_aside:
            return None, f"{run_id} is {record.state}: {record.state_reason}"
    return None, f"{ATTEMPTS} live runs for snapshot {snapshot_id} were refused by {target.name}: see their reasons"


def _written(
    target: TargetTable,
    run_id: str,
    snapshot_id: int | None,
    further: Mapping[str, int],
    start: date,
    end: date,
    reason: str,
) -> RunManifest:
    """Return the one manifest that the policy writes for snapshots and a range."""
    policy = policy_of(target)
    return manifest_from(
        {
            "runId": run_id,
            "kind": Kind.LIVE.value,
            "requestedBy": policy.requested_by,
            "reason": reason,
            "source": {"table": target.source, "snapshotId": snapshot_id},
            "sources": [{"table": table, "snapshotId": pinned} for table, pinned in sorted(further.items())],
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
