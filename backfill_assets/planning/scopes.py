"""The days of a target that chunks are about, as scopes of its tables.

Put here how a plan's chunks become what the lakehouse is asked about; nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

from backfill_assets.declarations.target import TargetTable
from manifests.chunks import Chunk
from manifests.plan import PlannedChunk
from resources.lakehouse.facade import Scope


def chunk_scopes(target: TargetTable, chunks: Iterable[Chunk | PlannedChunk]) -> dict[str, Scope]:
    """Return the days of chunks as scopes of the target, by key."""
    instants = target.has_instants  # what the model says, once for all of them
    return {chunk.key: Scope(target.day_column, chunk.start, chunk.end, instants=instants) for chunk in chunks}


def scope_of(target: TargetTable, start: date, end: date) -> Scope:
    """Return days of a target, both inclusive, as a scope of its tables."""
    return Scope(target.day_column, start, end, instants=target.has_instants)
