"""The days of a target that chunks are about, as scopes of its tables.

Put here how a plan's chunks become what the lakehouse is asked about; nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from backfill_assets.declarations.target import TargetTable
from manifests.plan import PlannedChunk
from resources.lakehouse.facade import Scope


def chunk_scopes(target: TargetTable, chunks: Sequence[PlannedChunk]) -> dict[str, Scope]:
    """Return the days of chunks as scopes of the target, by key."""
    return {chunk.key: scope_of(target, chunk.start, chunk.end) for chunk in chunks}


def scope_of(target: TargetTable, start: date, end: date) -> Scope:
    """Return days of a target, both inclusive, as a scope of its tables."""
    return Scope(target.day_column, start, end, instants=target.has_instants)
