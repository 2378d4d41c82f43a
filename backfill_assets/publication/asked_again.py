"""Rules of planning that are asked once more before a publication: what was accepted meanwhile, or was not on record then.

Put here rules about what the ledger knows, held against it as it is under the lease. What the target's files have to say is
`conflicts`'s, what the run's own state and gates have to say `requirements`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from backfill_assets.declarations.target import no_warm_up
from backfill_assets.planning.accepted_base import base_state
from backfill_assets.publication.change import Change
from backfill_assets.publication.leasing import landed_beside
from manifests.errors import Problem, PublicationDeferred
from manifests.facts import SourceState
from manifests.kinds import FIRST_OUTPUT, kind_problems
from manifests.live_problems import live_problems
from manifests.model import Mode
from manifests.plan import Plan


def problems_by_now(change: Change) -> list[Problem]:
    """Return what speaks against a plan by what has been accepted by now.

    Older knowledge never replaces newer, LIVE leaves no day out between it and what is complete, and what a kind never
    replaces it does not replace either where its plan could not know of it. A chunk that was planned anew counts by the
    source that it was planned anew on.
    """
    by_plan: dict[str, list[str]] = {}
    for key, plan in change.plans.items():
        by_plan.setdefault(plan.hash, []).append(key)
    found = [problem for keys in by_plan.values() for problem in _of_plan(change, change.plans[keys[0]], keys)]
    return list(dict.fromkeys(found))


def require_neighbours_on_record(change: Change) -> None:
    """Have a run that leaves no day out wait until what others have committed beside it is on record: it may pass.

    Raises:
        PublicationDeferred: naming each change.
    """
    manifest = change.record.manifest
    if manifest.execution_mode is not Mode.LIVE and manifest.cut_line is None:
        return
    if waiting := [*landed_beside(change.platform, change.record)]:
        raise PublicationDeferred(waiting)


def _of_plan(change: Change, plan: Plan, keys: list[str]) -> Iterator[Problem]:
    manifest, target = change.record.manifest, change.target
    wanted = manifest.target
    known = base_state(change.platform, target, wanted.publish_range, keys=keys, values=wanted.values)
    source = SourceState(target.source, plan.source_snapshot_id, plan.source_committed_at, ())
    further = {one.table: (one.snapshot_id, one.committed_at) for one in plan.sources if one.day is None}
    yield from live_problems(manifest, replace(target, warm_up_days=no_warm_up).contract({}), source, known, further)
    present = known.present
    if manifest.kind in FIRST_OUTPUT and present is not None and present.holders:
        # whether LIVE has begun elsewhere was asked when it was planned
        held = replace(present, live_has_begun=False)
        yield from kind_problems(manifest, held, frozenset(plan.made_of), told_apart=False)
    policy = target.live
    is_first = known.complete_until is None and not any(key <= change.plan.chunks[0].key for key in known.accepted)
    if manifest.execution_mode is Mode.LIVE and is_first and policy is not None and policy.begins_on is None:
        yield Problem(
            f"nothing of {target.name} is complete before {manifest.target.publish_range.start}",
            "LIVE goes on from what is published, or from the first day that its policy names (begins_on)",
            "publish the history before it once more; LIVE goes on from there",
        )
