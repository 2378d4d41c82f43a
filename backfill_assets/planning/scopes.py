"""The chunks of a target, as scopes of its tables.

Put here how a plan's chunks become what the lakehouse is asked about; nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import date

from backfill_assets.declarations.target import TargetTable
from manifests.chunks import HOURS, Placed, stretches_of
from resources.lakehouse.facade import Scope


def chunk_scopes(target: TargetTable, chunks: Iterable[Placed], *, same_rows: bool = False) -> dict[str, Scope]:
    """Return chunks as scopes of the target, by key; `same_rows` as of a `Scope`."""
    instants, division = target.has_instants, target.chunk_values  # what the model says, once for all of them
    return {
        chunk.key: Scope(
            target.day_column,
            chunk.start,
            chunk.end,
            instants,
            HOURS[0] if chunk.hour is None else chunk.hour,
            HOURS[-1] if chunk.hour is None else chunk.hour,
            division if chunk.part else None,
            (chunk.part,) if chunk.part else (),
            same_rows=same_rows,
        )
        for chunk in chunks
    }


def stretch_scopes(target: TargetTable, chunks: Iterable[Placed]) -> list[Scope]:
    """Return chunks, in order of time, as few scopes: of each stretch without a gap one, of all parts where it has them all."""
    instants, division, found = target.has_instants, target.chunk_values, []
    for stretch in stretches_of(chunks):
        first, last = stretch.first, stretch.last
        parts = () if set(target.parts) <= set(stretch.parts) else stretch.parts
        from_hour = HOURS[0] if first.hour is None else first.hour
        to_hour = HOURS[-1] if last.hour is None else last.hour
        within = division if parts else None
        found.append(Scope(target.day_column, first.start, last.end, instants, from_hour, to_hour, within, parts))
    return found


def scope_of(target: TargetTable, start: date, end: date, values: Sequence[str] | None = None) -> Scope:
    """Return days of a target, both inclusive, as a scope of its tables: of some values or buckets, if these are given."""
    division = None if values is None else target.chunk_values
    parts = () if division is None else tuple(values or ())
    return Scope(target.day_column, start, end, instants=target.has_instants, division=division, parts=parts)
