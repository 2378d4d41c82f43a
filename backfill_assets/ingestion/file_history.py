"""What is on record of the files of a feed, with what has become of their loads since.

Put here questions to the import ledger that need the lakehouse or plans. The ledger's own are `resources.ledger.imports`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from backfill_assets.installation import Platform
from backfill_assets.planning.pinned_loads import SHOWN, pinned
from manifests.model import DayRange
from resources.ledger.imports import ImportRecord, ImportStatus


@dataclass(frozen=True)
class FileOnRecord:
    """A file that came by a feed.

    Attributes:
        entry: what the import ledger says.
        runs: the runs whose published rows were computed with its load, and whose days have its business date.
        taken_back_by: who took its load back; empty while its rows are in the table.
    """

    entry: ImportRecord
    runs: tuple[str, ...] = ()
    taken_back_by: str = ""


def files_on_record(
    platform: Platform, feed: str, *, status: str | None = None, business_date: date | None = None
) -> list[FileOnRecord]:
    """Return the files of a feed, oldest first.

    Raises:
        InputRefused: if the feed is not declared.
        IllegibleRow: if a row of the ledger cannot be read.
    """
    declared = platform.products.feed(feed)
    wanted = None if status is None else ImportStatus(status.upper())
    entries = platform.ledger.imports.of_feed(declared.name, status=wanted, business_date=business_date)
    loads = {load.load_id: load for load in platform.lakehouse.loads(declared.table)}
    read: dict[str, tuple[DayRange, frozenset[int]]] = {}
    for record in platform.ledger.runs(states=SHOWN):
        if snapshots := pinned(platform, record).get(declared.table):
            read[record.run_id] = platform.ledger.with_plan(record).plan.publish_range, snapshots
    having = {
        load_id: platform.lakehouse.snapshots_with_load(declared.table, load_id)
        for load_id in {one.load_id for one in entries if one.load_id in loads}
    }
    found = []
    for one in entries:
        load = loads.get(one.load_id)
        day, snapshots = one.business_date, having.get(one.load_id, frozenset())
        used = tuple(
            run_id
            for run_id, (scope, pins) in read.items()
            if one.rows and day is not None and scope.start <= day <= scope.end and not pins.isdisjoint(snapshots)
        )
        found.append(FileOnRecord(one, used, "" if load is None else load.undone_by or ""))
    return found
