"""Which records of an extraction are new to a table: by their key, their version and their content.

Put here what becomes of a record that was read before, or is read no more; all of it follows from the indexes of extractions, and
from which of them were loaded, and taken back, in which order. What a record means is the translator's, where it lies the archive's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from backfill_assets.extraction.indexes import Entry
from resources.ledger.extractions import ExtractionRecord, ExtractionState

_EPOCH_TEXT = "1970-01-01T00:00:00+00:00"
_MICROSECOND = timedelta(microseconds=1)
_WHOLE = frozenset({"ByCursor", "BySnapshotExport"})
"""Patterns that ask for everything: what they do not have, the server does not have."""


class Change(StrEnum):
    """What a record of an extraction is to a table."""

    NEW = "new"
    UPDATED = "updated"
    """The server has a newer version of it."""
    CORRECTED = "corrected"
    """The server has another content under the same version: it was changed without a word."""
    RETURNED = "returned"
    """The server has it again, and had it no more."""
    EQUAL = "equal"
    OUTDATED = "outdated"
    """What was loaded is newer."""
    DELETED = "deleted"
    """The server has it no more."""
    ABSENT = "absent"
    """It is not in the time that was asked for any more: deleted, or updated since."""
    UNUSABLE = "unusable"
    """It has no key, or no version."""


LOADED = frozenset({Change.NEW, Change.UPDATED, Change.CORRECTED, Change.RETURNED, Change.UNUSABLE})
"""What a load brings: a row of its table, or of its quarantine."""


@dataclass(frozen=True)
class Version:
    """The version of a record that a table has: where it lies, and whether it says that the server has it no more."""

    extraction: int
    entry: Entry
    is_deleted: bool = False


@dataclass(frozen=True)
class Found:
    """A record, what it is to the table, and the version that the table has."""

    change: Change
    version: Version
    before: Version | None = None


State = dict[str, Version]
"""What a table has, by key."""


def compared(
    state: State, record: ExtractionRecord, entries: Iterable[Entry], *, usable_alone: bool = False
) -> Iterator[Found]:
    """Yield each record of an extraction, and each that it should have and has not, with what it is to a table's state.

    A record that was read after the extraction had begun is not missed: the server may have it since. One that has its key is there,
    whatever else of it is unusable; and while one has no key, none is missed: it may be that one. Loads of earlier versions took
    what is usable alone for there.
    """
    there = set()
    is_keyless = False
    for entry in entries:
        mine = Version(record.number, entry)
        if entry.problem:
            if not usable_alone:
                is_keyless = is_keyless or not entry.key
                there.add(entry.key)
            yield Found(Change.UNUSABLE, mine)
            continue
        there.add(entry.key)
        before = state.get(entry.key)
        yield Found(_change(before, entry), mine, before)
    if is_keyless or not concludes_deletions(record):
        return
    assert record.first_at is not None
    began = _micros(record.first_at)
    for key, before in state.items():
        if key not in there and not before.is_deleted and before.entry.read_at < began:
            change = _missing(record, before.entry)
            if change is not None:
                last = replace(before.entry, read_at=began)
                yield Found(change, replace(before, entry=last, is_deleted=change is Change.DELETED), before)


def compared_then(state: State, record: ExtractionRecord, entries: Sequence[Entry], rows: int) -> list[Found]:
    """Return the same of an extraction that was loaded, as the load took it: `rows` came to the table or its quarantine."""
    found = list(compared(state, record, entries))
    if sum(is_brought(record, one) for one in found) != rows:
        before = list(compared(state, record, entries, usable_alone=True))
        if sum(is_brought(record, one) for one in before) == rows:
            return before
    return found


def is_brought(record: ExtractionRecord, found: Found) -> bool:
    """Whether a load brings a row for a record, to its table or to its quarantine."""
    return found.change in LOADED or (found.change is Change.DELETED and bool(record.question.get("tombstones")))


def concludes_deletions(record: ExtractionRecord) -> bool:
    """Whether an extraction tells what a server has no more: what was read otherwise each time does not."""
    return bool(record.question.get("reconciles")) and record.state is ExtractionState.COMPLETE


def keyless(found: Iterable[Found]) -> int:
    """Return how many records of an extraction have no usable key: nobody knows whose they are."""
    return sum(one.change is Change.UNUSABLE and not one.version.entry.key for one in found)


@dataclass(frozen=True)
class Brought:
    """What a load has brought, by key, and when it has seen what was there already, by key: the digest, and the microsecond."""

    versions: State
    seen: Mapping[str, tuple[str, int]]


def brought(record: ExtractionRecord, found: Iterable[Found]) -> Brought:
    """Return what the load of an extraction brings, of which it is known what its records are to the table."""
    versions: State = {}
    seen: dict[str, tuple[str, int]] = {}
    for one in found:
        entry = one.version.entry
        if one.change is Change.EQUAL:
            seen[entry.key] = (entry.digest, entry.read_at)
        elif one.change is not Change.UNUSABLE and is_brought(record, one):
            versions[entry.key] = one.version
    return Brought(versions, seen)


def merge(state: State, load: Brought) -> None:
    """Make a table's state what it is with a load: of each key the newest version, and when that was seen last."""
    for key, version in load.versions.items():
        held = state.get(key)
        if held is None or _age(version) >= _age(held):
            state[key] = version
    for key, (digest, read_at) in load.seen.items():
        held = state.get(key)
        if held is not None and not held.is_deleted and held.entry.digest == digest and held.entry.read_at < read_at:
            # what an extraction misses has to have been seen before that began
            state[key] = replace(held, entry=replace(held.entry, read_at=read_at))


def _age(version: Version) -> tuple[int, int]:
    return version.entry.version, version.entry.read_at


def _change(before: Version | None, entry: Entry) -> Change:
    if before is None:
        return Change.NEW
    held = before.entry
    if entry.version < held.version:
        return Change.OUTDATED
    if before.is_deleted:
        return Change.RETURNED if entry.read_at > held.read_at else Change.OUTDATED
    if entry.digest == held.digest:
        return Change.EQUAL
    if entry.version > held.version:
        return Change.UPDATED
    return Change.CORRECTED if entry.read_at > held.read_at else Change.OUTDATED


def _missing(record: ExtractionRecord, entry: Entry) -> Change | None:
    """Say what it means that an extraction does not have a record; None where it was not asked for it."""
    asked = record.question
    if record.pattern in _WHOLE:
        return Change.DELETED
    if record.pattern == "ByIdRange":
        if not (entry.key.isascii() and entry.key.isdecimal()):
            return None
        return Change.DELETED if asked["first"] <= int(entry.key) <= asked["last"] else None
    is_within = _instant_micros(asked["from"]) <= entry.version < _instant_micros(asked["until"])
    return Change.ABSENT if is_within else None


def _instant_micros(text: Any) -> int:
    return _micros(datetime.fromisoformat(str(text)))


def _micros(instant: datetime) -> int:
    return (instant - datetime.fromisoformat(_EPOCH_TEXT)) // _MICROSECOND
