"""Rules of planning that are asked once more before a publication: what was accepted meanwhile, or was not on record then.

Put here rules about what the ledger knows, held against it as it is under the lease. What the target's files have to say is
`conflicts`'s, what the run's own state and gates have to say `requirements`'.
"""

from __future__ import annotations

from dataclasses import replace

from backfill_assets.declarations.target import no_warm_up
from backfill_assets.planning.accepted_base import base_state, touches
from backfill_assets.publication.change import Change
from manifests.errors import Problem
from manifests.facts import SourceState
from manifests.kinds import FIRST_OUTPUT, Present, kind_problems
from manifests.live_problems import live_problems
from manifests.model import DayRange, Mode


def problems_by_now(change: Change) -> list[Problem]:
    """Return what speaks against a plan by what has been accepted by now.

    Older knowledge never replaces newer, LIVE leaves no day out between it and what is complete, and what a kind never
    replaces it does not replace either where its plan could not know of it. Chunks that were planned anew count by the
    source that they were planned anew on.
    """
    manifest, target = change.record.manifest, change.target
    scope = manifest.target.publish_range
    known = base_state(change.platform, target, scope)
    oldest = min(change.plans.values(), key=lambda plan: plan.source_committed_at, default=change.plan)
    source = SourceState(target.source, oldest.source_snapshot_id, oldest.source_committed_at, ())
    problems = live_problems(manifest, replace(target, warm_up_days=no_warm_up).contract({}), source, known)
    policy = target.live
    first = known.complete_until is None and not any(key < change.plan.chunks[0].key for key in known.accepted)
    if manifest.execution_mode is Mode.LIVE and first and policy is not None and policy.begins_on is None:
        problems.append(
            Problem(
                f"nothing of {target.name} is complete before {scope.start}",
                "LIVE goes on from what is published, or from the first day that its policy names (begins_on)",
                "publish the history before it once more; LIVE goes on from there",
            )
        )
    present = known.present or Present()
    held = {
        key: one
        for key, one in present.holders.items()
        if touches(DayRange.model_construct(start=present.days[key][0], end=present.days[key][1]), scope)
    }
    if held and manifest.kind in FIRST_OUTPUT:
        now = Present(held, {key: present.days[key] for key in held})
        problems += kind_problems(manifest, now, oldest.source_snapshot_id, told_apart=False)
    return problems
