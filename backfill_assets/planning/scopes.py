"""The days of a target that chunks are about, as scopes of its tables.

Put here how a plan's chunks become what the lakehouse is asked about; nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from backfill_assets.declarations.target import TargetTable
from manifests.plan import PlannedChunk
from resources.lakehouse.facade import Scope


def chunk_scopes(target: TargetTable, chunks: Sequence[PlannedChunk]) -> dict[str, Scope]:
    """Return the days of chunks as scopes of the target, by key."""
    return {chunk.key: Scope(target.day_column, chunk.start, chunk.end) for chunk in chunks}
