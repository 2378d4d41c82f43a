"""What readers get: the tables' current metadata, and the rows that are found by it, held against the evidence.

Put here what is compared between what a run's evidence has of its tables (`seals`) and what the catalog's metadata says now.
Everything of the metadata is read anew and by hand, entry by entry; rows are read file by file, columns found by their field
ids under the names that the table's current schema gives, with no code of the engine that wrote them. Nothing is changed.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual
from pyiceberg.schema import Schema
from pyiceberg.transforms import Transform
from pyiceberg.types import DateType, DecimalType, IcebergType, PrimitiveType, TimestamptzType

from backfill_assets.audit.findings import Report, World
from backfill_assets.audit.listed_files import counts_in, not_as_rows
from backfill_assets.audit.table_metadata import check_log, check_numbers, check_refs, check_writing
from backfill_assets.audit.unknown_files import Holds, UnknownIn
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, dtypes
from backfill_assets.evidence.seals import Sealed, digest_types
from backfill_assets.publication.under_way import Effect, effects
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.key_order import by_key
from manifests.lifecycle import ACCEPT, REINSTATE, ROLLBACK
from manifests.model import Acceptance
from resources.lakehouse.facade import RUN_PROPERTY
from resources.lakehouse.lineage import withdrawn
from resources.lakehouse.snapshots import (
    Days,
    Entry,
    Facts,
    Seen,
    day_bounds,
    days_of,
    layout_facts,
    schema_facts,
    spec_facts,
    summary_facts,
)
from resources.lakehouse.storage import Storage, place_of, store_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHOWN_FILES = 3
_WIDER = {("int", "long"), ("float", "double")}
"""Changes of a column's type by which no value changes, as Iceberg allows them."""
_PLANNED = {
    "run_id": "run_id",
    "processing_mode": "mode",
    "transform_version": "transform_version",
    "input_snapshot_id": "source_snapshot_id",
    "produced_at": "run_clock",
}
"""What a plan says of each lineage column, by column."""
_UNPROVABLE = "is of nobody's run, and cannot be opened: what readers get by it of accepted days cannot be proved"
_MISLED = "is not that of a file of rows that readers find there"
_UNREADABLE = (OSError, arrow.ArrowException, pl.exceptions.PolarsError, ValueError, KeyError, TypeError)


# --- the metadata -----------------------------------------------------------------------------------------------------


def check_metadata(world: World, sealed: Sealed, report: Report) -> None:
    """Hold the current metadata of a run's tables against what was sealed: columns, specs, snapshots, files and branches."""
    said: set[str] = set()
    for name, facts in sealed.tables.items():
        if (seen := world.seen(name)) is not None:
            _same_table(seen, facts, report, said)
    for commit in sealed.commits:
        seen = world.seen(str(commit["table"]))
        if seen is None:
            continue
        _same_table(seen, commit, report, said)
        _same_snapshot(world, seen, commit, report)
    if sealed.is_whole and {one["snapshot_id"] for one in sealed.changes} - {
        one["snapshotId"] for one in sealed.commits
    }:
        report.notes.append(
            "published by a version of this project that did not seal columns and metadata files: they are held against "
            "the ledger's files, and with --data against the files' own columns"
        )
    changed = dict.fromkeys([sealed.table, *sealed.tables])
    for table in filter(None, map(world.seen, changed)):
        check_log(table, sealed, report)
        check_numbers(table, report)
    for table in filter(None, map(world.seen, dict.fromkeys([*changed, sealed.target.name]))):
        check_refs(table, sealed, report)
    if (seen := world.seen(sealed.table)) is not None:
        _on_main(seen, sealed, report)
        _claims(world, seen, sealed, report)
        _version(world, seen, sealed, report)


def _same_table(seen: Seen, facts: Mapping[str, Any], report: Report, said: set[str]) -> None:
    def add(where: str, what: str, expected: Any, found: Any) -> None:
        if where not in said:  # bundle and records say it of the same table
            said.add(where)
            report.add(where, what, expected, found)

    metadata = seen.table.metadata
    if str(metadata.table_uuid) != facts["uuid"]:
        add(f"{seen.name} uuid", "is another table than the one that was published", facts["uuid"], metadata.table_uuid)
    _same_columns(seen, facts, add)
    specs = spec_facts(seen.table)
    for number, fields in facts["specs"].items():
        if specs.get(number) != fields:
            what = "is not the one that was sealed: files are looked for by it"
            add(f"{seen.name} partition spec {number}", what, fields, specs.get(number, "nothing"))
    check_writing(seen, facts, add)


def _same_columns(seen: Seen, facts: Mapping[str, Any], add: Callable[[str, str, Any, Any], None]) -> None:
    own = next((one for one in seen.table.metadata.schemas if one.schema_id == facts["schemaId"]), None)
    current, then = schema_facts(seen.table.schema()), facts["fields"]
    if own is None:
        add(f"{seen.name} schema {facts['schemaId']}", "is gone: it is never changed or removed", then, "nothing")
    elif (found := schema_facts(own)) != then and own.schema_id != seen.table.schema().schema_id:
        add(f"{seen.name} schema {facts['schemaId']}", "is not the one that was sealed", then, found)
    else:
        for where, expected, shown in _laid_out_otherwise(facts.get("layout", []), layout_facts(own)):
            add(f"{seen.name} schema {facts['schemaId']} {where}", "is not the one that was sealed", expected, shown)
    _same_names_later(seen, facts, add)
    for field_id, (name, kind) in then.items():
        where = f"{seen.name} column {name} (field {field_id})"
        if field_id not in current:
            add(where, "is gone: readers do not find what was published in it", f"{name} {kind}", "nothing")
            continue
        new_name, new_kind = current[field_id]
        if new_name != name:
            add(where, "has another name: readers find its values under that one", name, new_name)
        if new_kind != kind and not _is_wider(kind, new_kind):
            add(where, "has another type", kind, new_kind)


def _laid_out_otherwise(sealed: Sequence[Facts], now: Sequence[Facts]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a schema says of its columns otherwise than it was sealed, if it was: their order, or one of them."""
    order, found = ([one["id"] for one in columns] for columns in (sealed, now))
    if sealed and order != found:
        yield "order of columns", order, found
    by_id = {one["id"]: one for one in now}
    for one in sealed:
        if (other := by_id.get(one["id"], {})) != one:
            yield f"column {one['name']} (field {one['id']}) as it is laid out", one, other


def _same_names_later(seen: Seen, facts: Mapping[str, Any], add: Callable[[str, str, Any, Any], None]) -> None:
    """Require that what main came to show after a commit is read by schemas in which its columns have their names."""
    if (number := facts.get("sequence")) is None:
        return
    used = {one.schema_id for one in seen.lineage.values() if (one.sequence_number or 0) > number}
    for schema in seen.table.metadata.schemas:
        if schema.schema_id not in used - {facts["schemaId"], seen.table.schema().schema_id}:
            continue
        found = schema_facts(schema)
        for field_id, (name, kind) in facts["fields"].items():
            new_name, new_kind = found.get(field_id, ("nothing", kind))
            if new_name != name or (new_kind != kind and not _is_wider(kind, new_kind)):
                what = "is another: who asks for a snapshot that was made with it finds its values otherwise"
                where = f"{seen.name} schema {schema.schema_id} column {name} (field {field_id})"
                add(where, what, f"{name} {kind}", f"{new_name} {new_kind}")


def _is_wider(old: str, new: str) -> bool:
    if (old, new) in _WIDER:
        return True
    if not (old.startswith("decimal(") and new.startswith("decimal(")):
        return False
    (was, scale), (now, same) = (kind.removeprefix("decimal(").removesuffix(")").split(",") for kind in (old, new))
    return scale.strip() == same.strip() and int(now) >= int(was)


def _same_snapshot(world: World, seen: Seen, commit: Mapping[str, Any], report: Report) -> None:
    """Hold a snapshot, and the files that say what is in it, against what was kept when it was committed."""
    where = f"{seen.name} snapshot {commit['snapshotId']}"
    snapshot = seen.by_id.get(commit["snapshotId"])
    listed = commit["manifestList"]
    if snapshot is None:
        world.gone(where, _EPOCH + timedelta(milliseconds=commit["at"]))
        in_use = {one.manifest_path for one in seen.manifests}
        _same_files(seen, [one for one in commit["manifests"] if one["path"] in in_use], "manifest", report)
        return
    if snapshot.timestamp_ms != commit["at"]:
        report.add(f"{where} time", "is not when it was committed", commit["at"], snapshot.timestamp_ms)
    if snapshot.sequence_number != commit["sequence"]:
        report.add(f"{where} sequence number", "is not its own", commit["sequence"], snapshot.sequence_number)
    if snapshot.schema_id != commit["snapshotSchemaId"]:
        report.add(f"{where} schema", "is not its own", commit["snapshotSchemaId"], snapshot.schema_id)
    parent = commit["parentId"]
    if snapshot.parent_snapshot_id != parent and (snapshot.parent_snapshot_id is not None or parent in seen.by_id):
        report.add(f"{where} parent", "is not the snapshot that it followed", parent, snapshot.parent_snapshot_id)
    summary = summary_facts(snapshot)
    for key in sorted(summary.keys() | commit["summary"].keys()):
        if summary.get(key) != commit["summary"].get(key):
            what = "is not what was committed"
            report.add(f"{where} summary {key}", what, commit["summary"].get(key), summary.get(key))
    if snapshot.manifest_list != listed["path"]:
        report.add(f"{where} manifest list", "is another file", listed["path"], snapshot.manifest_list)
    _same_files(seen, [listed], "manifest list", report)
    _same_files(seen, commit["manifests"], "manifest", report)
    _same_files(seen, [commit["metadata"]], "metadata file", report, may_go=True)


def _same_files(
    seen: Seen, files: Iterable[Mapping[str, Any]], kind: str, report: Report, *, may_go: bool = False
) -> None:
    for file in files:
        found = seen.sha256(file["path"])
        if found == file["sha256"] or (found is None and may_go):
            continue
        what = "was changed after it was committed" if found else "is missing, and the metadata needs it"
        shown = f"SHA-256 {found}" if found else "nothing"
        report.add(f"{seen.name} {kind} {file['path']}", what, f"SHA-256 {file['sha256']}", shown)


def _on_main(seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that main's history has every snapshot of the run that main was ever made to show."""
    main = None if seen.main is None else seen.main.snapshot_id
    if seen.named_main != main:
        where = f"{seen.name} main"
        report.add(where, "is named by the branch and by the metadata as two snapshots", seen.named_main, main)
    if sealed.plan.get("acceptance") == Acceptance.LATER and not any(one["action"] == ACCEPT for one in sealed.changes):
        return  # under its version's name only
    oldest = next(reversed(seen.lineage.values()), None)
    for entry in sealed.changes:
        snapshot = seen.by_id.get(entry["snapshot_id"])
        if snapshot is None or snapshot.snapshot_id in seen.lineage:
            continue
        if oldest is not None and (snapshot.sequence_number or 0) < (oldest.sequence_number or 0):
            continue  # an expiry has cut the links there
        what = f"does not have the {entry['action']} of '{sealed.run_id}' in its history: readers get an older state"
        report.add(f"{seen.name} main", what, snapshot.snapshot_id, main)


def _claims(world: World, seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that each snapshot of main's history that says it is the run's is on record."""
    recorded = {one["snapshot_id"] for one in sealed.changes}
    recorded |= {one["snapshotId"] for one in sealed.commits}
    claimed = {
        number: one
        for number, one in seen.lineage.items()
        if number not in recorded
        and one.summary
        and one.summary.additional_properties.get(RUN_PROPERTY) == sealed.run_id
    }
    explained = {one.snapshot_id for one in _effects(world, seen, sealed)} if claimed else set()
    for number, snapshot in claimed.items():
        if number in explained:
            continue  # said of the ledger's entry
        what = f"says that it is of '{sealed.run_id}', which never committed it: somebody else wrote it"
        report.add(f"{seen.name} snapshot {number}", what, "no such snapshot", summary_facts(snapshot))


def _effects(world: World, seen: Seen, sealed: Sealed) -> list[Effect]:
    """Return what actions have done to a table of a run that the ledger does not know yet."""
    return effects(seen, sealed.target, _field_of(seen, sealed, sealed.target.day_column), world.intents())


def _version(world: World, seen: Seen, sealed: Sealed, report: Report) -> None:
    """Require that the name of a version names what was published under it."""
    version = sealed.plan.get("version")
    if not version or not sealed.changes:
        return
    shown = [one for one in sealed.changes if one["action"] != ACCEPT]
    is_withdrawn = shown[-1]["action"] == ROLLBACK
    name = withdrawn(version) if is_withdrawn else version
    published = next(one["snapshot_id"] for one in shown if one["action"] not in {ROLLBACK, REINSTATE})
    refs = {name: ref.snapshot_id for name, ref in seen.table.refs().items()}
    found = refs.get(name)
    if found != published:
        other = version if is_withdrawn else withdrawn(version)
        if refs.get(other) == published and any(one.run_id == sealed.run_id for one in world.intents()):
            return  # it is just being given its other name
        what = f"does not name the snapshot of '{sealed.run_id}'"
        report.add(f"{seen.name} version {name}", what, published, "nothing" if found is None else found)


# --- the files that readers get ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rewritten:
    """A chunk whose rows readers get from other files than those accepted, as many of them."""

    chunk: str
    files: tuple[Entry, ...]


@dataclass(frozen=True)
class Looked:
    """What was found of the files of accepted chunks that is not wrong by itself.

    Attributes:
        rewritten: chunks that somebody has rewritten: whether the rows are the same is for `read_chunk` to say.
        moving: chunks of which readers get what an action brought that is not on record yet.
    """

    rewritten: frozenset[str] = frozenset()
    moving: frozenset[str] = frozenset()


def check_files(world: World, sealed: Sealed, report: Report) -> Looked:
    """Hold the files that main's metadata lists for the run's accepted chunks against those accepted; from metadata alone."""
    seen = world.seen(sealed.target.name)
    chunks = sealed.accepted
    if seen is not None:
        _corrections(world, sealed, report)
    if seen is None or not chunks:
        return Looked()
    day = _field_of(seen, sealed, sealed.target.day_column)
    days = _days_of(sealed)
    own = {str(chunk["chunk"]): _own(seen, sealed, chunk, days[str(chunk["chunk"])]) for chunk in chunks}
    missing = _missing(seen, own, day, days, report)
    expected = {place_of(file["path"]): key for key, files in own.items() for file in files}
    strays = _strays(world, seen, sealed, {key: days[key] for key in own}, expected, report)
    if sealed.plan.get("merge") and sealed.changes[-1]["snapshot_id"] not in seen.by_id:
        strays = {}  # an expiry has taken what says which files the merge left alone
    rewritten: list[Rewritten] = []
    moving: set[str] = set()
    known = _effects(world, seen, sealed) if missing or strays else []
    for key in sorted(missing.keys() | strays.keys()):
        lost, new = _unexplained(known, key, missing.get(key, []), strays.get(key, []))
        if lost or new:
            rewritten += _judged(seen, key, own[key], lost, new, report)
        else:
            moving.add(key)
    if moving:
        whose = sorted({f"{one.intent.action} of '{one.intent.run_id}'" for one in known if one.keys & moving})
        report.notes.append(
            f"readers get {len(moving)} of its chunks from what is not on record yet: the {', '.join(whose)} is under way, or "
            "was interrupted (`backfill doctor`)"
        )
    return Looked(frozenset(one.chunk for one in rewritten), frozenset(moving))


def _unexplained(
    known: Sequence[Effect], key: str, missing: Sequence[Mapping[str, Any]], strays: Sequence[Entry]
) -> tuple[list[Mapping[str, Any]], list[Entry]]:
    """Return the missing and the stray files of a chunk that no action has taken or brought that is not on record yet."""
    lost = [file for file in missing if not any(one.has_taken(key, place_of(file["path"])) for one in known)]
    return lost, [entry for entry in strays if not any(one.has_brought(key, entry.place) for one in known)]


def _missing(
    seen: Seen,
    own: Mapping[str, Sequence[Mapping[str, Any]]],
    day: int | None,
    days: Mapping[str, Days],
    report: Report,
) -> dict[str, list[Mapping[str, Any]]]:
    """Return the accepted files that readers do not get, by chunk; hold what is said of the others against what is known."""
    missing: dict[str, list[Mapping[str, Any]]] = {}
    for key, files in own.items():
        for file in files:
            place = place_of(file["path"])
            listed = seen.entries.get(place, [])
            if not listed:
                missing.setdefault(key, []).append(file)
                continue
            where = f"{seen.name} chunk {key} {place}"
            if len(listed) > 1:
                report.add(where, "is listed more than once: readers get its rows twice", "once", len(listed))
            _entry(seen, where, listed[0], file, day, days[key], report)
    return missing


def _judged(
    seen: Seen,
    key: str,
    own: Sequence[Mapping[str, Any]],
    missing: Sequence[Mapping[str, Any]],
    strays: Sequence[Entry],
    report: Report,
) -> list[Rewritten]:
    """Name a chunk whose files are others than those accepted, or return it if as many rows came in their place."""
    came = sum(entry.file.record_count for entry in strays)
    if all(entry.is_data for entry in strays) and came == sum(file["rows"] for file in missing):
        stores = {store_of(file["path"]) for file in own}
        for entry in strays:
            for name, expected, found in not_as_rows(entry, stores):
                report.add(f"{seen.name} chunk {key} {entry.place} {name}", _MISLED, expected, found)
        return [Rewritten(key, tuple(strays))]
    had = sum(file["rows"] for file in own)
    names = [f"- {place_of(file['path'])}" for file in missing]
    names += [f"+ {entry.place}{_by(seen, entry)}" for entry in strays]
    more = f" and {len(names) - _SHOWN_FILES} more" if len(names) > _SHOWN_FILES else ""
    has = had - sum(file["rows"] for file in missing) + came
    deletes = sum(not entry.is_data for entry in strays)
    report.add(
        f"{seen.name} chunk {key}",
        f"readers get other files than those accepted: {'; '.join(names[:_SHOWN_FILES])}{more}",
        f"{had:,} rows in {len(own)} file(s)",
        f"{has:,} rows in {len(own) - len(missing) + len(strays) - deletes} file(s)"
        + (f", with {deletes} file(s) of deleted rows" if deletes else ""),
    )
    return []


def _by(seen: Seen, entry: Entry) -> str:
    """Say which snapshot a file came with, and whose that says it is."""
    snapshot = seen.by_id.get(entry.snapshot_id or 0)
    said = {} if snapshot is None else summary_facts(snapshot)
    who = f", which names the run {said[RUN_PROPERTY]}" if RUN_PROPERTY in said else ""
    return f" of snapshot {entry.snapshot_id} ({said.get('operation', 'unknown')}{who})"


def _own(seen: Seen, sealed: Sealed, chunk: Mapping[str, Any], days: Days) -> list[Mapping[str, Any]]:
    """Return the files that were accepted of a chunk: those of the run, and beside a merge those that it left alone."""
    if not sealed.plan.get("merge"):
        return list(chunk["files"])
    derived = {place_of(file["path"]): file for file in chunk["derived"]}
    left = _at(seen, sealed, days) or {}
    beside = [
        {"path": one.file.file_path, "rows": one.file.record_count, "bytes": one.file.file_size_in_bytes}
        for place, one in left.items()
        if place not in derived
    ]
    return [*derived.values(), *beside]


def _at(seen: Seen, sealed: Sealed, days: Days) -> dict[str, Entry] | None:
    """Return the files of days as the run's last change left them; None if that snapshot has expired."""
    if not sealed.changes or sealed.target.day_column not in seen.table.schema().column_names:
        return None
    return seen.entries_at(sealed.changes[-1]["snapshot_id"], _asked(sealed.target.day_column, days))


def _asked(column: str, days: Days) -> BooleanExpression:
    """Return the filter of a reader who asks for days."""
    return And(
        GreaterThanOrEqual(term=column, value=days[0].isoformat()),
        LessThanOrEqual(term=column, value=days[1].isoformat()),
    )


def _entry(
    seen: Seen, where: str, entry: Entry, file: Mapping[str, Any], day: int | None, days: Days, report: Report
) -> None:
    """Hold what a manifest says of an accepted file against what is known of it without opening it."""
    for name, listed, known in (
        ("record_count", entry.file.record_count, file["rows"]),
        ("file_size_in_bytes", entry.file.file_size_in_bytes, file["bytes"]),
    ):
        if listed != known:
            report.add(f"{where} {name}", "is not that of the file that was accepted", known, listed)
    for name, expected, found in not_as_rows(entry, {store_of(file["path"])}):
        report.add(f"{where} {name}", _MISLED, expected, found)
    bounds = day_bounds(entry, day)
    if bounds is not None and not (days[0] <= bounds[0] and bounds[1] <= days[1]):
        report.add(f"{where} bounds", "lie outside of the chunk", _span(days), _span(bounds))
    spec = seen.table.specs()[entry.file.spec_id]
    for place, field in enumerate(spec.fields):
        if field.source_id != day:
            continue
        transform = field.transform.transform(DateType())
        low, high = (transform((one - _EPOCH.date()).days) for one in days)
        value = entry.file.partition[place]
        if value is None or not low <= value <= high:
            what = "is not that of the chunk's days: filters do not find the rows"
            report.add(f"{where} partition {field.name}", what, low if low == high else f"{low} to {high}", value)


def _strays(
    world: World,
    seen: Seen,
    sealed: Sealed,
    days: Mapping[str, Days],
    known: Mapping[str, str],
    report: Report,
) -> dict[str, list[Entry]]:
    """Return the files in which readers may find rows of chunks, or that delete such, and are not `known` to be theirs, by chunk.

    A file is where its bounds and partition say; where it may be opened, also where its rows are.
    """
    day, unknown = _field_of(seen, sealed, sealed.target.day_column), _unknown(world, seen, sealed)
    by_start = sorted(days.items(), key=lambda item: item[1])
    starts = [span[0] for _, span in by_start]

    def within(low: date, high: date) -> Iterator[str]:
        for number in range(bisect_right(starts, high) - 1, -1, -1):
            key, span = by_start[number]
            if span[1] < low:
                break
            yield key

    found: dict[str, list[Entry]] = {}
    for place, entries in seen.entries.items():
        for entry in entries if place not in known else ():
            keys = set(within(*days_of(seen, entry, day)))
            gated = unknown.gated_for(place) if entry.is_data else None
            held = Holds() if gated is not None and not any(within(*gated)) else unknown.holds(entry)
            keys |= {key for one in held.days for key in within(one, one)}
            keys |= {known[file] for file in held.deletes if file in known}
            if held.trouble and not keys:
                report.add(f"{seen.name} {place}", _UNPROVABLE, "a file that can be opened", held.trouble)
            for key in sorted(keys):
                found.setdefault(key, []).append(entry)
    return found


def _unknown(world: World, seen: Seen, sealed: Sealed) -> UnknownIn:
    """Return what says of the files of one table what they hold; nothing, where none may be opened."""
    day, run = (_field_of(seen, sealed, column) for column in (sealed.target.day_column, "run_id"))
    return UnknownIn(world.unknown, seen, sealed.target.name, day, run)


def _field_of(seen: Seen, sealed: Sealed, column: str) -> int | None:
    """Return the field id of a column: as it was sealed, else as the table has it now."""
    facts = sealed.tables.get(seen.name) or next((one for one in sealed.commits if one["table"] == seen.name), None)
    fields = schema_facts(seen.table.schema()) if facts is None else facts["fields"]
    return next((int(number) for number, (name, _) in fields.items() if name == column), None)


def _days_of(sealed: Sealed) -> dict[str, Days]:
    """Return first and last day of each planned chunk."""
    return {
        one["key"]: (date.fromisoformat(one["start"]), date.fromisoformat(one["end"])) for one in sealed.plan["chunks"]
    }


def _span(days: Days) -> str:
    return f"{days[0]} to {days[1]}"


def _corrections(world: World, sealed: Sealed, report: Report) -> None:
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
        where = f"{seen.name} {entry.place}{_by(seen, entry)}"
        report.add(where, "is a file of deleted rows: readers may get fewer corrections", "nothing", "deleted rows")
    _more_corrections(world, seen, sealed, [entry for entry in others if entry.is_data], report, shows=shows)


def _more_corrections(
    world: World, seen: Seen, sealed: Sealed, others: Iterable[Entry], report: Report, *, shows: bool
) -> None:
    """Name each file of rows in the name of the run that no run has published; of one that has, that run is asked."""
    unknown = _unknown(world, seen, sealed)
    for entry in others:
        if unknown.gated_for(entry.place) is not None:
            continue
        where, held = f"{seen.name} {entry.place}{_by(seen, entry)}", unknown.holds(entry)
        if held.trouble and shows:
            report.add(where, _UNPROVABLE, "a file that can be opened", held.trouble)
        if sealed.run_id in held.runs and not any(entry.place in one.came for one in _effects(world, seen, sealed)):
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
    if rows != wanted and not any(place in one.gone | one.came for one in _effects(world, seen, sealed)):
        report.add(where, "is not what readers get of these corrections", wanted, rows)
    for entry in listed:
        for name, expected, found in not_as_rows(entry, {store_of(file["path"])}):
            report.add(f"{where} {name}", _MISLED, expected, found)


# --- the rows that readers get ----------------------------------------------------------------------------------------


def read_chunk(
    seen: Seen, storage: Storage, sealed: Sealed, chunk: Mapping[str, Any], report: Report, *, rewritten: bool = False
) -> bool:
    """Read a chunk as a reader of main does who asks for its days; return whether its rows have the digest on record.

    Which files are opened is decided by manifests, partitions and bounds; what a column is called by the current schema. Of a
    chunk that was merged into, each file is read, and its rows are those of the files as they were gated.
    What manifests say of each file is held against its rows. Memory is one file's, or one chunk's where files overlap.
    """
    key, days = str(chunk["chunk"]), _days_of(sealed)[str(chunk["chunk"])]
    where = f"{seen.name} chunk {key}"
    column = sealed.target.day_column
    if column not in seen.table.schema().column_names:
        report.add(where, f"cannot be asked for by its days: readers find no column {column}", column, "nothing")
        return False
    finds = seen.finder(_asked(column, days))
    merges = bool(sealed.plan.get("merge"))
    own = {place_of(file["path"]): file for file in chunk["derived" if merges else "files"]}
    opened = [one for entries in seen.entries.values() for one in entries if finds(one)]
    whole = True
    for place in sorted(own.keys() & seen.entries.keys() - {one.place for one in opened}):
        report.add(f"{where} {place}", "is not found by readers who ask for its days", _span(days), "not opened")
        whole = False
    if any(not one.is_data for one in opened):
        report.add(where, "has files of deleted rows on it: readers get fewer rows than were accepted")
        return False
    frames, all_right = _frames(seen, storage, opened, own, where, column, days, report)
    whole &= all_right
    if frames is None:
        return False
    accepted: str | None = str(chunk["digest"])
    more = LINEAGE_COLUMNS if merges else ()  # of one run's rows the plan says what is in them
    try:
        if merges:
            accepted = _as_merged(seen, storage, sealed, own, where, days, report) if rewritten else None
        found = _digest(sealed, frames, more) if accepted is not None else None
    except _UNREADABLE as error:
        report.add(where, f"cannot be read by the current schema: {type(error).__name__}: {str(error)[:200]}")
        return False
    if found != accepted:
        also = ", or their lineage is another" if merges else ""
        report.add(where, f"readers get rows of another digest{also}", accepted, found)
        return False
    for name, expected, said in _other_lineage(sealed, key, frames) if rewritten and not merges else ():
        report.add(f"{where} lineage {name}", "is not that of the run that holds the chunk", expected, said)
        whole = False
    return whole


def _other_lineage(sealed: Sealed, key: str, frames: Sequence[pl.DataFrame]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each lineage column of which rows say something else than the plan of their chunk: no digest has these columns."""
    plan = sealed.plan_of(key)
    planned = {column: plan.get(name) for column, name in _PLANNED.items()}
    for name, expected in planned.items():
        own = datetime.fromisoformat(str(expected)) if name == "produced_at" and expected is not None else expected
        found = {value for frame in frames if name in frame.columns for value in frame[name].unique().to_list()}
        if own is not None and (others := found - {own}):
            yield name, expected, ", ".join(sorted(map(str, others)))


def _frames(
    seen: Seen,
    storage: Storage,
    opened: Sequence[Entry],
    own: Mapping[str, Mapping[str, Any]],
    where: str,
    column: str,
    days: Days,
    report: Report,
) -> tuple[list[pl.DataFrame] | None, bool]:
    """Read files by the current schema; return their rows of days (None if one cannot be read), and whether all is right."""
    frames, whole = [], True
    for entry in opened:
        frame, is_right = _read(seen, storage, entry, own.get(entry.place), seen.table.schema(), where, report)
        whole &= is_right
        if frame is None:
            return None, False
        frames.append(frame.filter(pl.col(column).is_between(*days)))
    return frames, whole


def _as_merged(
    seen: Seen,
    storage: Storage,
    sealed: Sealed,
    own: Mapping[str, Mapping[str, Any]],
    where: str,
    days: Days,
    report: Report,
) -> str | None:
    """Compute the digest of all rows of a chunk as a merge left it; None if its files are not there any more."""
    at = _at(seen, sealed, days)
    if at is None or len(storage.look(at)) != len(at):
        report.notes.append(
            f"{where} was rewritten, and the files it was merged into are gone: they cannot be compared"
        )
        return None
    frames, _ = _frames(seen, storage, list(at.values()), own, where, sealed.target.day_column, days, report)
    return None if frames is None else _digest(sealed, frames, LINEAGE_COLUMNS)


def read_corrections(seen: Seen, storage: Storage, sealed: Sealed, report: Report) -> None:
    """Read the corrections that a run issued as readers of their table do, and hold what manifests say against the rows."""
    for chunk in sealed.rows["chunks"].values():
        for file in chunk["derived"]:
            for entry in seen.entries.get(place_of(file["path"]), []):
                where = f"{seen.name} chunk {chunk['chunk']}"
                _read(seen, storage, entry, file, seen.table.schema(), where, report)


def _digest(sealed: Sealed, frames: Sequence[pl.DataFrame], more: Sequence[str] = ()) -> str:
    """Compute the digest of a chunk's rows, whatever files they came in, of `more` columns than those of digests as well."""
    key = list(sealed.target.key)
    types = digest_types(sealed, frames[0].schema if frames else None)
    types |= {name: kind for name, kind in dtypes(sealed.target.model).items() if name in more}
    digest = RowDigest(types)
    ordered = [by_key(frame, key)[0] for frame in frames if frame.height]
    ordered.sort(key=lambda frame: [(value is not None, value) for value in frame.select(key).row(0)])
    overlap = any(before.select(key).row(-1) >= after.select(key).row(0) for before, after in pairwise(ordered))
    for frame in [pl.concat(ordered, how="vertical_relaxed").sort(key)] if overlap else ordered:
        digest.update(frame.cast({name: kind for name, kind in types.items() if frame.schema[name] != kind}))
    return digest.result()


def _read(
    seen: Seen,
    storage: Storage,
    entry: Entry,
    file: Mapping[str, Any] | None,
    schema: Schema,
    where: str,
    report: Report,
) -> tuple[pl.DataFrame | None, bool]:
    """Read a file by the current schema; return its rows, and whether its columns and its manifest say what is so.

    A file of the run that is missing or damaged is named by whoever reads it as it was gated (`proof`).
    """
    at = f"{where} {entry.place}"
    try:
        raw = storage.content(entry.place)
    except OSError as error:
        if file is None:
            report.add(at, f"cannot be read: {error}")
        return None, False
    if file is not None and file.get("sha256") and hashlib.sha256(raw).hexdigest() != file["sha256"]:
        return None, False
    is_right = True
    try:
        frame, renamed = by_field_id(raw, schema)
        for field_id, own, name in renamed:
            report.add(f"{at} column {own} (field {field_id})", "readers find it under another name", own, name)
            is_right = False
        for name, expected, shown in (*counts_in(entry, raw, frame, schema), *_lies(seen, entry, frame, schema)):
            report.add(f"{at} {name}", "its manifest says otherwise than its rows", expected, shown)
            is_right = False
    except _UNREADABLE as error:
        report.add(at, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")
        return None, False
    return frame, is_right


def by_field_id(raw: bytes, schema: Schema) -> tuple[pl.DataFrame, list[tuple[int, str, str]]]:
    """Return a Parquet file's rows as a schema reads them, and each column that has another name there than in the file.

    Columns are found by their field ids; one that the file lacks is NULL. A file without ids is read by names.
    """
    found = pq.read_table(BytesIO(raw))
    ids: dict[int, int] = {}
    for position, column in enumerate(found.schema):
        number = (column.metadata or {}).get(b"PARQUET:field_id")
        if number is not None:
            ids[int(number)] = position
    columns, renamed = {}, []
    place: int | None
    for field in schema.fields:
        place = ids.get(field.field_id) if ids else found.schema.get_field_index(field.name)
        if place is None or place < 0:
            columns[field.name] = arrow.nulls(found.num_rows, _arrow_type(field.field_type))
            continue
        columns[field.name] = found.column(place)
        if (own := found.schema.field(place).name) != field.name:
            renamed.append((field.field_id, own, field.name))
    frame = pl.from_arrow(arrow.table(columns))
    assert isinstance(frame, pl.DataFrame)
    return frame, renamed


def _arrow_type(kind: IcebergType) -> arrow.DataType:
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415 - of the few files that lack a column

    return schema_to_pyarrow(kind)


def _lies(seen: Seen, entry: Entry, frame: pl.DataFrame, schema: Schema) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a manifest says of a file and its rows do not: name, what is true, and what it says."""
    file = entry.file
    for field in schema.fields:
        if not isinstance(field.field_type, PrimitiveType):
            continue
        values = frame[field.name]
        for side, bounds, real in (
            ("lower", file.lower_bounds, values.min()),
            ("upper", file.upper_bounds, values.max()),
        ):
            raw = (bounds or {}).get(field.field_id)
            if raw is None or real is None:
                continue
            says, is_ = _comparable(from_bytes(field.field_type, raw), field.field_type), _internal(real)
            if says > is_ if side == "lower" else says < is_:
                yield f"{side} bound of {field.name}", real, says
    for place, part in enumerate(seen.table.specs()[file.spec_id].fields):
        found = schema.find_field(part.source_id)
        wrong = _partitions(part.transform, found.field_type, frame[found.name]) - {file.partition[place]}
        if wrong:
            yield f"partition {part.name}", sorted(wrong, key=str), file.partition[place]


def _partitions(transform: Transform[Any, Any], kind: IcebergType, values: pl.Series) -> set[Any]:
    """Return the partitions that values belong to: of ordered ones the ends decide."""
    few = [values.min(), values.max()] if isinstance(kind, (DateType, TimestamptzType)) else values.unique().to_list()
    apply = transform.transform(kind)
    return {apply(_internal(value)) for value in few}


def _internal(value: Any) -> Any:
    """Return a value as Iceberg's transforms take it."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


def _comparable(bound: Any, kind: IcebergType) -> Any:
    """Return a bound as its column's values compare with it."""
    return Decimal(bound) if isinstance(kind, DecimalType) else bound
