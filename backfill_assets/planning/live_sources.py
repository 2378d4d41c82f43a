"""Sources beside the first, as LIVE sees them: which snapshots its next run reads, and what has come since the last.

Put here what is asked of tables and ledger for a tick. Which days the next run covers, and that it is approved, is `backfill_assets.schedules.live`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.further_sources import days_off
from resources.ledger.watermarks import Watermark


def newest_of_further(platform: Platform, target: TargetTable) -> dict[str, int]:
    """Return the current snapshot of each source beside the first; none of a table that has none yet."""
    found = {one.table: platform.lakehouse.snapshot_id(one.table) for one in target.sources}
    return {table: snapshot_id for table, snapshot_id in found.items() if snapshot_id is not None}


def read_of_further(platform: Platform, watermark: Watermark) -> dict[str, int]:
    """Return what the run that brought a target to its watermark has read of each source beside the first."""
    plan = platform.ledger.run(watermark.run_id).plan
    return {one.table: one.snapshot_id for one in plan.sources if one.snapshot_id is not None}


def first_days_changed(
    platform: Platform, target: TargetTable, since: Mapping[str, int], until: Mapping[str, int]
) -> dict[str, date]:
    """Return the first day of the target for which rows have come into each source, of those that have changed.

    A row of a further source is read for days after its own as well: the first of them is `reads.after` days before it.
    """
    days_after = {one.table: one.reads.after for one in target.sources}
    found = {}
    for table, now in until.items():
        before, column = since.get(table), target.every_source[table]
        if before == now:
            continue
        if before is None:  # it had no snapshot: all that it has is new
            files = platform.lakehouse.source_state(table, column, now).files
            first = min((file.first_day for file in files), default=None)
        else:
            first = platform.lakehouse.first_day_added(table, column, before, now)
        if first is not None:
            found[table] = days_off(first, -days_after.get(table, 0))
    return found
