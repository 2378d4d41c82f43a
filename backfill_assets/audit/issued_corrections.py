"""The corrections that a run issued: do readers of the corrections table get them, and nothing else in the run's name.

Put here what is compared of the corrections table. Files of the target itself are `accepted_files`' and `published_rows`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backfill_assets.audit.findings import Report, World
from backfill_assets.audit.listed_files import MISLED, not_as_rows
from backfill_assets.audit.rows_by_schema import read_by_schema
from backfill_assets.audit.run_in_table import came_with, effects_on, unknown_in
from backfill_assets.audit.unknown_files import UNPROVABLE
from backfill_assets.evidence.seals import Sealed
from manifests.lifecycle import ROLLBACK
from resources.lakehouse.snapshots import Entry, Seen
from resources.lakehouse.storage import Storage, place_of, store_of


def check_corrections(world: World, sealed: Sealed, report: Report) -> None:
    """Require that the corrections that a run issued are what readers of its corrections table get, and nothing else in its name."""
    if sealed.target.corrections is None or (seen := world.seen(sealed.target.corrections.name)) is None:
        return
    issues = bool(sealed.plan.get("corrections") and sealed.changes)
    shows = issues and sealed.changes[-1]["action"] != ROLLBACK
    own: set[str] = set()
    for chunk in sealed.rows.get("chunks", {}).values() if issues else ():
        for file in chunk["derived"]:
            own.add(place_of(file["path"]))
            _correction(world, seen, sealed, str(chunk["chunk"]), file, report, shows=shows)
    others = [entry for place, entries in seen.entries.items() if place not in own for entry in entries]
    deletes = [entry for entry in others if not entry.is_data]
    for entry in deletes if shows else ():
        where = f"{seen.name} {entry.place}{came_with(seen, entry)}"
        report.add(where, "is a file of deleted rows: readers may get fewer corrections", "nothing", "deleted rows")
    _more_corrections(world, seen, sealed, [entry for entry in others if entry.is_data], report, shows=shows)


def _more_corrections(
    world: World, seen: Seen, sealed: Sealed, others: Iterable[Entry], report: Report, *, shows: bool
) -> None:
    """Name each file of rows in the name of the run that no run has published; of one that has, that run is asked."""
    unknown = unknown_in(world, seen, sealed)
    for entry in others:
        if unknown.gated_for(entry.place) is not None:
            continue
        where, held = f"{seen.name} {entry.place}{came_with(seen, entry)}", unknown.holds(entry)
        if held.trouble and shows:
            report.add(where, UNPROVABLE, "a file that can be opened", held.trouble)
        if sealed.run_id in held.runs and not any(entry.place in one.came for one in effects_on(world, seen, sealed)):
            what = f"has rows in the name of '{sealed.run_id}', which has not issued them"
            report.add(where, what, "nothing", f"{entry.file.record_count:,} rows")


def _correction(
    world: World, seen: Seen, sealed: Sealed, key: str, file: Mapping[str, Any], report: Report, *, shows: bool
) -> None:
    """Hold what readers get of a file of corrections against what was issued; after a rollback that is nothing."""
    place = place_of(file["path"])
    where = f"{seen.name} chunk {key} {place}"
    listed = seen.entries.get(place, [])
    rows, wanted = [entry.file.record_count for entry in listed], [file["rows"]] if shows else []
    if rows != wanted and not any(place in one.gone | one.came for one in effects_on(world, seen, sealed)):
        report.add(where, "is not what readers get of these corrections", wanted, rows)
    for entry in listed:
        for name, expected, found in not_as_rows(entry, {store_of(file["path"])}):
            report.add(f"{where} {name}", MISLED, expected, found)


def read_corrections(seen: Seen, storage: Storage, sealed: Sealed, report: Report) -> None:
    """Read the corrections that a run issued as readers of their table do, and hold what manifests say against the rows."""
    for chunk in sealed.rows["chunks"].values():
        for file in chunk["derived"]:
            for entry in seen.entries.get(place_of(file["path"]), []):
                where = f"{seen.name} chunk {chunk['chunk']}"
                read_by_schema(seen, storage, sealed, entry, file, where, report)
