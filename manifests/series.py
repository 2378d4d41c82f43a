"""A progressive run as a series of manifests, one a step.

Put here how a publish range, or its values, is cut into steps and what the steps are called. That each step waits for the one before it is
`backfill_assets.publication.requirements`'.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date
from typing import Any

from manifests.chunks import EVER, HOURS, Chunking, aligned, cut
from manifests.model import RunManifest
from manifests.reading import manifest_from


def series_of(manifest: RunManifest, chunking: Chunking, names: Sequence[str] = ()) -> tuple[RunManifest, ...]:
    """Return the steps of a progressive manifest, in order; the manifest itself where it is not progressive.

    A step is a manifest like any other, with a part of the publish range or of its values, and a run id that ends in its number.
    `names` are the values or buckets that the target is divided by.
    """
    if manifest.progressive is None:
        return (manifest,)
    data = manifest.as_data()
    if chunking is Chunking.WHOLE:
        parts = [(EVER, values) for values in _groups(manifest, names)]
    else:
        parts = [(days, values) for values in _values(manifest, names) for days in _days(manifest, chunking)]
    keys = [
        [chunk.key for chunk in cut(chunking, *aligned(chunking, start, end), values or names)]
        for (start, end), values in parts
    ]
    steps = []
    for number, ((start, end), values) in enumerate(parts, start=1):
        target = dict(data["target"])
        if chunking is not Chunking.WHOLE:
            target["publishRange"] = {"start": start.isoformat(), "end": end.isoformat()}
        if values is not None:
            target["values"] = list(values)
        series = {"of": manifest.run_id, "step": number, "steps": len(parts)}
        changes = {"runId": step_id(manifest.run_id, number), "progressive": None, "series": series, "target": target}
        if (expected := manifest.validation.expected) is not None:
            others = {key for other in range(len(keys)) if other != number - 1 for key in keys[other]}
            if number > 1:  # of a chunk that no step has the first one says so
                others |= expected.chunks.keys() - {key for own in keys for key in own}
            changes["validation"] = data["validation"] | {"expected": _without(data["validation"]["expected"], others)}
        steps.append(manifest_from(data | changes))
    return tuple(steps)


def _without(expected: dict[str, Any], keys: Collection[str]) -> dict[str, Any] | None:
    """Return expected figures without those of some chunks; None where nothing is left."""
    left = expected | {"chunks": {key: one for key, one in expected["chunks"].items() if key not in keys}}
    return left if left["chunks"] or left["whole"] is not None else None


def _days(manifest: RunManifest, chunking: Chunking) -> list[tuple[date, date]]:
    """Return the days of the steps that publish the same values: of hours a step has the days that its first chunks lie in."""
    publish, progressive = manifest.target.publish_range, manifest.progressive
    if progressive is None or progressive.chunks_per_step is None:
        return [(publish.start, publish.end)]
    # whole days are published: a step of a table of hours has as many as its chunks fill
    times = Chunking.DAY if chunking is Chunking.HOUR else chunking
    chunks = list(cut(times, *aligned(times, publish.start, publish.end)))
    size = -(-progressive.chunks_per_step // (len(HOURS) if chunking is Chunking.HOUR else 1))
    parts = [chunks[first : first + size] for first in range(0, len(chunks), size)]
    return [(max(part[0].start, publish.start), min(part[-1].end, publish.end)) for part in parts]


def _groups(manifest: RunManifest, names: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Return the values of the steps of a target without time: as they are named, or so many chunks a step."""
    size = None if manifest.progressive is None else manifest.progressive.chunks_per_step
    if size is None:
        return _values(manifest, names)
    wanted = manifest.target.values
    all_of_it = names if wanted is None else [name for name in names if name in wanted]
    return [tuple(all_of_it[first : first + size]) for first in range(0, len(all_of_it), size)]


def _values(manifest: RunManifest, names: Sequence[str]) -> list[tuple[str, ...] | None]:
    """Return the values of the steps, in order; None for all that the manifest is about."""
    progressive, wanted = manifest.progressive, manifest.target.values
    if progressive is None or progressive.values is None:
        return [wanted]
    named = {name for step in progressive.values if step != "rest" for name in step}
    rest = tuple(name for name in wanted or names if name not in named)
    steps = [rest if step == "rest" else step for step in progressive.values]
    return [step for step in steps if step]


def step_id(series: str, step: int) -> str:
    """Return the run id of a step of a progressive run."""
    return f"{series}.s{step:03}"
