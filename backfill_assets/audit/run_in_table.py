"""How a run is found in a table: the fields, days and files that are its own, and what actions under way have done there.

Put here what several checks look up between a run's evidence and a table's metadata. Nothing is held against anything here.
"""

from __future__ import annotations

from backfill_assets.audit.findings import World
from backfill_assets.audit.unknown_files import UnknownIn
from backfill_assets.evidence.seals import Sealed
from backfill_assets.publication.under_way import Effect, effects
from resources.lakehouse.facade import RUN_PROPERTY, Scope
from resources.lakehouse.parts import known_part
from resources.lakehouse.snapshots import Days, Entry, Seen, schema_facts, summary_facts


def field_of(seen: Seen, sealed: Sealed, column: str) -> int | None:
    """Return the field id of a column: as it was sealed, else as the table has it now."""
    facts = sealed.tables.get(seen.name) or next((one for one in sealed.commits if one["table"] == seen.name), None)
    fields = schema_facts(seen.table.schema()) if facts is None else facts["fields"]
    return next((int(number) for number, (name, _) in fields.items() if name == column), None)


def part_said(seen: Seen, scope: Scope, entry: Entry) -> str | None:
    """Return the value or bucket that a file lies in by what metadata says, where a scope is of one; None where it does not say."""
    if scope.division is None or not entry.is_data:
        return None
    return known_part(seen.table, scope.division, entry.file)


def is_of_others(seen: Seen, scope: Scope, entry: Entry) -> bool:
    """Whether a file lies in another value or bucket than a scope's."""
    part = part_said(seen, scope, entry)
    return part is not None and part not in scope.parts


def shown_days(days: Days) -> str:
    """Return first and last day as they are shown."""
    return f"{days[0]} to {days[1]}"


def files_as_left(seen: Seen, sealed: Sealed, scope: Scope) -> dict[str, Entry] | None:
    """Return the files of a chunk as the run's last change left them; None if that snapshot has expired."""
    day = sealed.target.day_column
    if not sealed.changes or (day and day not in seen.table.schema().column_names):
        return None
    found = seen.entries_at(sealed.changes[-1]["snapshot_id"], scope.filter)
    return None if found is None else {place: one for place, one in found.items() if not is_of_others(seen, scope, one)}


def came_with(seen: Seen, entry: Entry) -> str:
    """Say which snapshot a file came with, and whose that says it is."""
    snapshot = seen.by_id.get(entry.snapshot_id or 0)
    said = {} if snapshot is None else summary_facts(snapshot)
    who = f", which names the run {said[RUN_PROPERTY]}" if RUN_PROPERTY in said else ""
    return f" of snapshot {entry.snapshot_id} ({said.get('operation', 'unknown')}{who})"


def effects_on(world: World, seen: Seen, sealed: Sealed) -> list[Effect]:
    """Return what actions have done to a table of a run that the ledger does not know yet."""
    return effects(seen, sealed.target, field_of(seen, sealed, sealed.target.day_column), world.intents())


def unknown_in(world: World, seen: Seen, sealed: Sealed) -> UnknownIn:
    """Return what says of the files of one table what they hold; nothing, where none may be opened."""
    day, run = (field_of(seen, sealed, column) for column in (sealed.target.day_column, "run_id"))
    return UnknownIn(world.unknown, seen, sealed.target.name, day, run)
