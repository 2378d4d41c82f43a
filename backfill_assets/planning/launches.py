"""Which chunks of a table a launch takes together: one Dagster run, and so batches of their own.

Put here how chunks follow one another in a table. How they are launched is `defs.launch`'s; what they read, `run_costs`'.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from backfill_assets.declarations.target import TargetTable
from manifests.chunks import EVER, Chunking, Placed, cut, first_instant, last_instant, time_of
from manifests.plan import PlannedChunk


def stretches_of(target: TargetTable, chunks: Iterable[PlannedChunk]) -> list[list[PlannedChunk]]:
    """Return chunks by stretches without gaps, in the order of the table.

    A gap is one of the table's chunks: those of a sample follow one another in the plan, and not in the table. Of a table that is
    divided beside time a stretch is of one value or bucket, but for those that it has from the first time to the last.
    """
    places = {part: place for place, part in enumerate(parts_in_order(target))}
    found: list[list[PlannedChunk]] = []
    for chunk in sorted(chunks, key=lambda one: (places.get(one.part, 0), first_instant(one))):
        if found and _follow(target, found[-1][-1], chunk):
            found[-1].append(chunk)
        else:
            found.append([chunk])
    return found


def parts_in_order(target: TargetTable) -> tuple[str, ...]:
    """Return the parts in the order of the dimension: of a table without time that of their keys."""
    if target.chunking is not Chunking.WHOLE:
        return target.parts
    return tuple(chunk.part for chunk in cut(target.chunking, *EVER, target.parts))


def _follow(target: TargetTable, one: Placed, other: Placed) -> bool:
    """Whether a chunk is the next one in the dimension: in time; or the first of all times, after the last one of the part before."""
    if one.part == other.part:
        return last_instant(one) + timedelta(microseconds=1) == first_instant(other)
    parts = parts_in_order(target)
    number, after = parts.index(one.part), parts.index(other.part)
    ends = time_of(one.key) == target.chunks_until and time_of(other.key) == target.chunks_from
    return ends and after == number + 1
