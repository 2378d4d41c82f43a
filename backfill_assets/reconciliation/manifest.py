"""The manifest of a reconciliation, and its approval in the name of the target's policy.

Put here how one is asked for: which published chunks, against which snapshot of the source, by whom. What is done about it is
`reconciliation.reconcile`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta

from backfill_assets import decisions
from backfill_assets.declarations.schedules import ReconciliationPolicy
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.live_names import fitting
from backfill_assets.planning.resolve import plan_run
from manifests.chunks import Chunking, aligned, first_day, last_day
from manifests.errors import InputRefused, Problem
from manifests.lifecycle import RunState
from manifests.model import MAX_RUN_ID, DayRange, Kind, Mode, RunManifest
from manifests.reading import manifest_from
from resources.ledger.facade import RunRecord, operator


def policy_of(target: TargetTable) -> ReconciliationPolicy:
    """Return how a target is reconciled: as it declares, or else against everything it has."""
    return target.reconciled or ReconciliationPolicy()


def manifest_of(
    platform: Platform,
    target: TargetTable,
    *,
    days: DayRange | None = None,
    source_snapshot_id: int | None = None,
    gates: Sequence[str] = (),
    requested_by: str | None = None,
) -> RunManifest:
    """Write the manifest of a reconciliation of published chunks, by default of all; the source is read as it is now.

    Raises:
        InputRefused: if nothing is published in those days.
    """
    policy = policy_of(target)
    held = sorted(platform.ledger.accepted(target.name))
    if not held:
        raise InputRefused(
            Problem(
                f"nothing of {target.name} is published",
                "a reconciliation looks at published rows",
                "publish a run first; see `backfill status`",
            )
        )
    timeless = target.chunking is Chunking.WHOLE
    if timeless and days is not None:
        raise InputRefused(
            Problem(
                f"{target.name} has no time, and days are named",
                "a table without time is reconciled whole",
                "name no days",
            )
        )
    first, last = first_day(target.chunking, held[0]), last_day(target.chunking, first_day(target.chunking, held[-1]))
    if days is None:
        begins = first if policy.days is None else max(first, last - timedelta(days=policy.days - 1))
        start, end = aligned(target.chunking, begins, last)
    else:
        start, end = aligned(target.chunking, days.start, days.end)
    publish = {"start": start.isoformat(), "end": end.isoformat()}
    chosen = list(gates) or policy.gates
    at = platform.ledger.now()
    source = "its current snapshot" if source_snapshot_id is None else f"snapshot {source_snapshot_id}"
    return manifest_from(
        {
            "runId": _free_run_id(platform, target, f"{at:%Y%m%d-%H%M%S}"),
            "kind": Kind.RECONCILIATION.value,
            "requestedBy": requested_by or operator(),
            "reason": f"Reconciliation of {target.name} as published{'' if timeless else f' from {start} to {end}'} with {target.source} at {source}.",
            "source": {"table": target.source, "snapshotId": source_snapshot_id},
            "transform": {"name": target.transform, "version": _version_held(platform, target, held, end)},
            "target": {"table": target.name} | ({} if timeless else {"publishRange": publish}),
            "validation": {"gates": None if chosen is None else list(chosen)},
            "purpose": policy.purpose,
            # it changes nothing, so that any code may run it; the record says when that was not committed
            "development": platform.code_of(target.name).is_dirty,
        },
        where=f"reconciliation of {target.name}",
    )


def _version_held(platform: Platform, target: TargetTable, held: Sequence[str], end: date) -> str:
    """Return the transform version of the newest published chunk of a range; other chunks are held to their own."""
    newest = [key for key in held if first_day(target.chunking, key) <= end] or list(held)
    return platform.ledger.run(platform.ledger.accepted(target.name, [newest[-1]])[newest[-1]]).plan.transform_version


def _free_run_id(platform: Platform, target: TargetTable, at: str) -> str:
    name = target.name.replace(".", "-").replace("_", "-")
    room = MAX_RUN_ID - len(f"reconcile--{at}.999")
    first, number = f"reconcile-{fitting(name, room)}-{at}", 1
    while platform.ledger.find(run_id := first if number == 1 else f"{first}.{number}") is not None:
        number += 1
    return run_id


def plan_reconciliation(platform: Platform, manifest: RunManifest) -> RunRecord:
    """Plan a reconciliation and approve it in the name of the target's policy: it changes nothing.

    Raises:
        InputRefused: if the manifest is of another kind.
        Refused: if it cannot be planned.
    """
    if manifest.execution_mode is not Mode.RECONCILIATION:
        raise InputRefused(
            Problem(
                f"the manifest of '{manifest.run_id}' has mode {manifest.execution_mode}",
                "a policy approves reconciliations, which change nothing",
                "`backfill plan` and `backfill approve` are for all others",
            )
        )
    record = plan_run(platform, manifest)
    if record.state is RunState.PLANNED:
        decisions.approve_by_policy(
            platform,
            record.run_id,
            by=policy_of(platform.products.target(record.target)).approved_by,
            comment="a reconciliation reads what is published and changes nothing",
        )
    return platform.ledger.run(record.run_id)
