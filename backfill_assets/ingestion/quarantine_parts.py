"""The quarantined rows of a load: which of them are there already, from a load that stopped before it came to its table.

Put here how a load that is begun anew finds what it has left in the quarantine. That the quarantine comes first is
`table_loads`' and `deliveries`'.
"""

from __future__ import annotations

from collections.abc import Mapping

from backfill_assets.declarations.quarantine import FirstRow
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from resources.lakehouse.loads import (
    ACTOR_PROPERTY,
    LOAD_PROPERTY,
    REASON_PROPERTY,
    REASONS_PROPERTY,
    Load,
    load_of_part,
    part_of_load,
)
from resources.ledger.facade import operator


def part_to_append(
    platform: Platform,
    quarantine: str,
    load_id: str,
    reasons: Mapping[str, int],
    first: Mapping[str, FirstRow],
    *,
    token: int,
) -> dict[str, str] | None:
    """Return the properties by which the quarantined rows of a load are appended; None if there is nothing to append.

    What an earlier begin of the load has left is kept if it is the same: as many rows for each reason, from the same row on.
    Else the rules have changed since, and it is taken back, under the lease of a token: a row of the load is in the table or in the
    quarantine.
    """
    begins = {reason: one.row for reason, one in first.items()}  # a product's own loader need not say it
    said = sha256_of({reason: [number, begins.get(reason)] for reason, number in reasons.items()})
    parts = [one for one in platform.lakehouse.loads(quarantine) if load_of_part(one.load_id) == load_id]
    there = next((one for one in reversed(parts) if one.undone_by is None), None)
    if there is not None:
        if _is_the_same(there, said, sum(reasons.values())):
            return None
        why = {ACTOR_PROPERTY: operator(), REASON_PROPERTY: "its load had stopped, and was begun anew by other rules"}
        platform.lakehouse.undo_load(quarantine, there.load_id, why, token=token)
    if not reasons:
        return None
    return {LOAD_PROPERTY: part_of_load(load_id, len(parts) + 1), REASONS_PROPERTY: said}


def _is_the_same(there: Load, said: str, rows: int) -> bool:
    """Return whether quarantined rows are those of these reasons; of an earlier version it is known how many they are."""
    return there.reasons == said if there.reasons else there.rows == rows
