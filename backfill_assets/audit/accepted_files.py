"""Which files readers get of a run's accepted chunks: those that were accepted, others, or more, from metadata alone.

Put here what follows from the entries of manifests that main shows. How an entry misleads readers about its own file is
`listed_files`', the target's corrections are `issued_corrections`', rows `published_rows`'s.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from pyiceberg.transforms import DayTransform, MonthTransform, YearTransform
from pyiceberg.types import DateType

from backfill_assets.audit.findings import Report, World
from backfill_assets.audit.issued_corrections import check_corrections
from backfill_assets.audit.listed_files import MISLED, not_as_rows
from backfill_assets.audit.run_in_table import (
    came_with,
    effects_on,
    field_of,
    files_as_left,
    is_of_others,
    part_said,
    shown_days,
    unknown_in,
)
from backfill_assets.audit.unknown_files import UNPROVABLE, Holds
from backfill_assets.evidence.seals import Sealed
from backfill_assets.publication.under_way import Effect
from resources.lakehouse.scopes import Scope
from resources.lakehouse.snapshots import Days, Entry, Seen, day_bounds, is_of_no_day, said_days
from resources.lakehouse.storage import place_of, store_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OF_DAYS = (DayTransform, MonthTransform, YearTransform)
_SHOWN_FILES = 3
TWICE = "is listed more than once: readers get its rows twice"
"""What is wrong with a file that main's manifests name twice."""


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
        check_corrections(world, sealed, report)
    if seen is None or not chunks:
        return Looked()
    day = field_of(seen, sealed, sealed.target.day_column)
    scopes = sealed.scopes
    own = {str(chunk["chunk"]): _own(seen, sealed, chunk, scopes[str(chunk["chunk"])]) for chunk in chunks}
    missing = _missing(seen, own, day, scopes, report)
    expected = {place_of(file["path"]): key for key, files in own.items() for file in files}
    strays = _strays(world, seen, sealed, {key: scopes[key] for key in own}, expected, report)
    if sealed.plan.get("merge") and sealed.changes[-1]["snapshot_id"] not in seen.by_id:
        strays = {}  # an expiry has taken what says which files the merge left alone
    rewritten: list[Rewritten] = []
    moving: set[str] = set()
    known = effects_on(world, seen, sealed) if missing or strays else []
    for key in sorted(missing.keys() | strays.keys()):
        lost, new = _unexplained(known, key, missing.get(key, []), strays.get(key, []))
        if lost or new:
            rewritten += _judged(seen, key, own[key], lost, new, report)
        else:
            moving.add(key)
            _hold_brought(seen, key, scopes[key], strays.get(key, []), known, day, report)
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


def _hold_brought(
    seen: Seen,
    key: str,
    scope: Scope,
    entries: Sequence[Entry],
    known: Sequence[Effect],
    day: int | None,
    report: Report,
) -> None:
    """Hold what is said of files that an action brought into a chunk which is not on record yet against what it has staged."""
    staged = {place: file for one in known for place, file in one.staged.items()}
    for place in sorted({entry.place for entry in entries}):
        listed, where = seen.entries[place], f"{seen.name} chunk {key} {place}"
        if len(listed) > 1:
            report.add(where, TWICE, "once", len(listed))
        if place in staged:
            _entry(seen, where, listed[0], staged[place], day, scope, report)


def _own(seen: Seen, sealed: Sealed, chunk: Mapping[str, Any], scope: Scope) -> list[Mapping[str, Any]]:
    """Return the files that were accepted of a chunk: those of the run, and beside a merge those that it left alone."""
    if not sealed.plan.get("merge"):
        return list(chunk["files"])
    derived = {place_of(file["path"]): file for file in chunk["derived"]}
    left = files_as_left(seen, sealed, scope) or {}
    beside = [
        {"path": one.file.file_path, "rows": one.file.record_count, "bytes": one.file.file_size_in_bytes}
        for place, one in left.items()
        if place not in derived
    ]
    return [*derived.values(), *beside]


def _missing(
    seen: Seen,
    own: Mapping[str, Sequence[Mapping[str, Any]]],
    day: int | None,
    scopes: Mapping[str, Scope],
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
                report.add(where, TWICE, "once", len(listed))
            _entry(seen, where, listed[0], file, day, scopes[key], report)
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
                report.add(f"{seen.name} chunk {key} {entry.place} {name}", MISLED, expected, found)
        return [Rewritten(key, tuple(strays))]
    had = sum(file["rows"] for file in own)
    names = [f"- {place_of(file['path'])}" for file in missing]
    names += [f"+ {entry.place}{came_with(seen, entry)}" for entry in strays]
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


def _entry(
    seen: Seen, where: str, entry: Entry, file: Mapping[str, Any], day: int | None, scope: Scope, report: Report
) -> None:
    """Hold what a manifest says of an accepted file against what is known of it without opening it."""
    for name, listed, known in (
        ("record_count", entry.file.record_count, file["rows"]),
        ("file_size_in_bytes", entry.file.file_size_in_bytes, file["bytes"]),
    ):
        if listed != known:
            report.add(f"{where} {name}", "is not that of the file that was accepted", known, listed)
    for name, expected, found in not_as_rows(entry, {store_of(file["path"])}):
        report.add(f"{where} {name}", MISLED, expected, found)
    days = scope.start, scope.end
    if is_of_others(seen, scope, entry):
        said = part_said(seen, scope, entry)
        report.add(f"{where} partition", "is not that of the chunk: filters do not find the rows", scope.parts[0], said)
    bounds = day_bounds(entry, day)
    if bounds is not None and not (days[0] <= bounds[0] and bounds[1] <= days[1]):
        report.add(f"{where} bounds", "lie outside of the chunk", shown_days(days), shown_days(bounds))
    spec = seen.table.specs()[entry.file.spec_id]
    for place, field in enumerate(spec.fields):
        if field.source_id != day or not isinstance(field.transform, _OF_DAYS):
            continue
        transform = field.transform.transform(DateType())
        low, high = (transform((one - _EPOCH.date()).days) for one in days)
        value = entry.file.partition[place]
        if value is None or not low <= value <= high:
            what = "is not that of the chunk's days: filters do not find the rows"
            report.add(f"{where} partition {field.name}", what, low if low == high else f"{low} to {high}", value)


def _by_days(scopes: Mapping[str, Scope]) -> Callable[[date, date], Iterator[str]]:
    """Return what says which chunks have days, both ends included."""
    by_start: dict[Days, list[str]] = {}
    for key, scope in sorted(scopes.items()):
        by_start.setdefault((scope.start, scope.end), []).append(key)
    spans = sorted(by_start)
    starts = [span[0] for span in spans]

    def within(low: date, high: date) -> Iterator[str]:
        for number in range(bisect_right(starts, high) - 1, -1, -1):
            if spans[number][1] < low:
                break
            yield from by_start[spans[number]]

    return within


def _strays(
    world: World,
    seen: Seen,
    sealed: Sealed,
    scopes: Mapping[str, Scope],
    known: Mapping[str, str],
    report: Report,
) -> dict[str, list[Entry]]:
    """Return the files in which readers may find rows of chunks, or that delete such, and are not `known` to be theirs, by chunk.

    A file is where its bounds and partition say; where it may be opened, also where its rows are, and only there if they do
    not say. One whose partition says that its rows have no day is nowhere else: whoever asks for days does not get them.
    """
    day, unknown = field_of(seen, sealed, sealed.target.day_column), unknown_in(world, seen, sealed)
    within = _by_days(scopes)
    found: dict[str, list[Entry]] = {}
    for place, entries in seen.entries.items():
        for entry in entries if place not in known else ():
            gated = unknown.gated_for(place) if entry.is_data else None
            held = Holds() if gated is not None and not any(within(*gated)) else unknown.holds(entry)
            says = said_days(seen, entry, day)
            # without time, only its partition says where a file is
            is_known = bool(sealed.target.day_column) and unknown.are_opened and entry.is_data and not held.trouble
            if says is None and (is_known or is_of_no_day(seen, entry, day)):
                keys = set() if gated is None else set(within(*gated))
            else:
                keys = set(within(*(says or (date.min, date.max))))
            keys |= {key for one in held.days for key in within(one, one)}
            keys |= {known[file] for file in held.deletes if file in known}
            if held.trouble and not keys:
                report.add(f"{seen.name} {place}", UNPROVABLE, "a file that can be opened", held.trouble)
            for key in sorted(keys):
                if not is_of_others(seen, scopes[key], entry):
                    found.setdefault(key, []).append(entry)
    return found
