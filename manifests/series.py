"""A progressive run as a series of manifests, one a step.

Put here how a publish range is cut into steps and what the steps are called. That each step waits for the one before it is
`backfill_assets.publication.requirements`'.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from manifests.chunks import Chunking, aligned, cut
from manifests.model import RunManifest
from manifests.reading import manifest_from


def series_of(manifest: RunManifest, chunking: Chunking) -> tuple[RunManifest, ...]:
    """Return the steps of a progressive manifest, in order; the manifest itself where it is not progressive.

    A step is a manifest like any other, with a part of the publish range and a run id that ends in its number.
    """
    if manifest.progressive is None:
        return (manifest,)
    publish = manifest.target.publish_range
    chunks = list(cut(chunking, *aligned(chunking, publish.start, publish.end)))
    size = manifest.progressive.chunks_per_step
    parts = [chunks[first : first + size] for first in range(0, len(chunks), size)]
    data = manifest.model_dump(mode="json", by_alias=True)
    steps = []
    for number, part in enumerate(parts, start=1):
        target = data["target"] | {
            "publishRange": {
                "start": max(part[0].start, publish.start).isoformat(),
                "end": min(part[-1].end, publish.end).isoformat(),
            }
        }
        series = {"of": manifest.run_id, "step": number, "steps": len(parts)}
        changes = {"runId": step_id(manifest.run_id, number), "progressive": None, "series": series, "target": target}
        if manifest.validation.expected is not None:
            others = {chunk.key for other in parts if other is not part for chunk in other}
            if number > 1:  # of a chunk that no step has the first one says so
                others |= manifest.validation.expected.chunks.keys() - {chunk.key for chunk in chunks}
            changes["validation"] = data["validation"] | {"expected": _without(data["validation"]["expected"], others)}
        steps.append(manifest_from(data | changes))
    return tuple(steps)


def _without(expected: dict[str, Any], keys: Collection[str]) -> dict[str, Any] | None:
    """Return expected figures without those of some chunks; None where nothing is left."""
    left = expected | {"chunks": {key: one for key, one in expected["chunks"].items() if key not in keys}}
    return left if left["chunks"] or left["whole"] is not None else None


def step_id(series: str, step: int) -> str:
    """Return the run id of a step of a progressive run."""
    return f"{series}.s{step:03}"
