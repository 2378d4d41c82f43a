"""The dry run of a planned run: which of its chunks it takes, and its manifest.

Put here how both follow from the run alone: the same run has the same sample whenever, wherever and by whomever it is asked for. How a
manifest becomes a run is `backfill_assets.planning.dry_runs`'; whether one counts, `dry_run_proof`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from manifests.chunks import Chunking
from manifests.dry_runs import MOST_SAMPLED
from manifests.model import MAX_RUN_ID, Mode, RunManifest, Semantics
from manifests.plan import Plan, PlannedChunk
from manifests.reading import manifest_from

DEFAULT_CHUNKS = 4
"""How many chunks a dry run has of a run of which the policy asks for none."""
_HEX = 8
_OF_A_STEP = {"maxRowsExpected", "maxDurationMinutes", "maxCostUsd"}
"""What is said of one step, and not of all of them, whose days and values a dry run spans."""


def sampled(
    run_id: str, chunks: Sequence[PlannedChunk], wanted: int, steps: Sequence[Sequence[PlannedChunk]] = ()
) -> tuple[str, ...]:
    """Return the keys of the chunks that a dry run takes, in their order: first, last, largest, and others that follow from the run's id.

    Of a progressive run it takes one of each step, or more: no step is approved on others' chunks alone.

    Args:
        run_id: the run.
        chunks: all of its chunks, in order.
        wanted: how many; fewer where there are fewer, or where a manifest names no more.
        steps: the chunks of each step, the first of these that which is asked about; more are taken where
            not each has one among `wanted`.
    """
    if not chunks:
        return ()
    largest = max(chunks, key=lambda one: (one.reads.rows, one.reads.bytes))  # the first of several
    ends = [chunks[0], chunks[-1], largest]
    others = sorted(chunks, key=lambda one: hashlib.sha256(f"{run_id}/{one.key}".encode()).digest())
    first = dict.fromkeys(one.key for one in [*ends, *others])
    if len(steps) > 1:
        own = [next(key for key in first if key in keys) for keys in ({one.key for one in step} for step in steps)]
        needed = dict.fromkeys([own[0], *(one.key for one in ends), *own])
        first, wanted = needed | first, max(wanted, len(needed))
    taken = set(list(first)[: min(wanted, MOST_SAMPLED)])
    return tuple(one.key for one in chunks if one.key in taken)


def dry_run_id(run_id: str, plan_hash: str, number: int = 1) -> str:
    """Return the id of a run's dry run: another plan has another, and so has a further one of the same plan."""
    ending = f".dry-{plan_hash[:_HEX]}" + (f"-{number}" if number > 1 else "")
    if len(run_id) + len(ending) <= MAX_RUN_ID:
        return run_id + ending
    own = hashlib.sha256(run_id.encode()).hexdigest()[:_HEX]
    return f"{run_id[: MAX_RUN_ID - len(ending) - _HEX - 1].rstrip('.-_')}-{own}{ending}"


def dry_run_manifest(
    manifest: RunManifest, plans: Sequence[Plan], keys: Sequence[str], *, run_id: str, requested_by: str
) -> RunManifest:
    """Return the manifest of a dry run of some chunks of a run, on what its plan has pinned.

    Args:
        manifest: the run's; of a progressive one, that of the step whose plan is the first of `plans`.
        plans: of the run, or of all steps.
        keys: the chunks.
        run_id: of the dry run.
        requested_by: who asks for it.
    """
    plan, data = plans[0], manifest.as_data()
    for name in ("freeze", "series", "progressive", "conflict"):
        data.pop(name, None)
    left_out = {"canary", "requiresManualPublish"} | (_OF_A_STEP if len(plans) > 1 else set())
    safety = {name: value for name, value in data["safety"].items() if name not in left_out}
    if len(plans) > 1:
        data["limits"].pop("budget", None)  # a step's, too
    return manifest_from(
        data
        | {
            "runId": run_id,
            "mode": Mode.DRY_RUN.value,
            "requestedBy": requested_by,
            "reason": f"Dry run of '{manifest.run_id}' (plan {plan.hash[:12]}) on {len(keys)} of its chunks, before it is approved.",
            "source": data["source"] | {"snapshotId": plan.source_snapshot_id},
            "sources": [
                {"table": one.table, "snapshotId": one.snapshot_id}
                for one in plan.sources
                if one.snapshot_id is not None and one.day is None
            ],
            "referenceData": [
                {"name": pin.table, "semantics": Semantics.AS_DECIDED.value, "snapshotId": pin.snapshot_id}
                for pin in plan.references
            ],
            "target": data["target"] | _scope(plans),
            "safety": safety | {"sinks": [], "sideEffectsAllowed": False},
            "validation": _validation(manifest, data["validation"], keys),
            "sample": {"chunks": list(keys)},
        }
    )


def _scope(plans: Sequence[Plan]) -> dict[str, Any]:
    """Return the fields of the target that say what all of the plans may change."""
    said: dict[str, Any] = {}
    if plans[0].chunking is not Chunking.WHOLE:
        start, end = min(one.publish_range.start for one in plans), max(one.publish_range.end for one in plans)
        said["publishRange"] = {"start": start.isoformat(), "end": end.isoformat()}
    if any(one.values is not None for one in plans):
        values = dict.fromkeys(value for one in plans for value in one.values or ())
        said["values"] = None if any(one.values is None for one in plans) else list(values)
    return said


def _validation(manifest: RunManifest, data: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return what the chunks are held against: the figures that are expected of others, and of all of them, are left out."""
    if manifest.validation.expected is None:
        return data
    chunks = {key: one for key, one in data["expected"]["chunks"].items() if key in keys}
    return data | {"expected": data["expected"] | {"whole": None, "chunks": chunks} if chunks else None}
