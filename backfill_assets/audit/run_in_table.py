"""How a run is found in a table: the fields, days and files that are its own, and what actions under way have done there.

Put here what several checks look up between a run's evidence and a table's metadata. Nothing is held against anything here.
"""

from __future__ import annotations

from datetime import date

from pyiceberg.expressions import BooleanExpression

from backfill_assets.audit.findings import World
from backfill_assets.audit.unknown_files import UnknownIn
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.seals import Sealed
from backfill_assets.publication.under_way import Effect, effects
from resources.lakehouse.facade import RUN_PROPERTY
from resources.lakehouse.scopes import days_filter
from resources.lakehouse.snapshots import Days, Entry, Seen, schema_facts, summary_facts


def field_of(seen: Seen, sealed: Sealed, column: str) -> int | None:
    """Return the field id of a column: as it was sealed, else as the table has it now."""
    facts = sealed.tables.get(seen.name) or next((one for one in sealed.commits if one["table"] == seen.name), None)
    fields = schema_facts(seen.table.schema()) if facts is None else facts["fields"]
    return next((int(number) for number, (name, _) in fields.items() if name == column), None)


def days_of_chunks(sealed: Sealed) -> dict[str, Days]:
    """Return first and last day of each planned chunk."""
    return {
        one["key"]: (date.fromisoformat(one["start"]), date.fromisoformat(one["end"])) for one in sealed.plan["chunks"]
    }


def shown_days(days: Days) -> str:
    """Return first and last day as they are shown."""
    return f"{days[0]} to {days[1]}"


def asked_for(target: TargetTable, days: Days) -> BooleanExpression:
    """Return the filter of a reader who asks for days of a target."""
    return days_filter(target.day_column, *days, instants=target.has_instants)


def files_as_left(seen: Seen, sealed: Sealed, days: Days) -> dict[str, Entry] | None:
    """Return the files of days as the run's last change left them; None if that snapshot has expired."""
    if not sealed.changes or sealed.target.day_column not in seen.table.schema().column_names:
        return None
    return seen.entries_at(sealed.changes[-1]["snapshot_id"], asked_for(sealed.target, days))


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
