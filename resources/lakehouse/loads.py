"""The loads of an input table, as its snapshots tell of them: what came in, from which file, and what was taken back.

Put here how a load is recognised in a table's history and what undoing one changes of its files. How they are
committed is `load_commits`'s; which rows of a file are loaded is said elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from manifests.errors import InputRefused, Problem
from resources.lakehouse.lineage import ancestors
from resources.lakehouse.metadata import committed_at, count_said, readable_metadata
from resources.lakehouse.summaries import summary_of

LOAD_PROPERTY = "backfill.load-id"
"""Marks a load; a load id occurs in one snapshot of a table."""
FILE_PROPERTY = "backfill.load-file"
ACTOR_PROPERTY = "backfill.load-by"
REJECTED_PROPERTY = "backfill.load-quarantined"
REASON_PROPERTY = "backfill.load-reason"
GAP_PROPERTY = "backfill.load-log-gap"
"""Of a load of a changelog: what is missing before it, who has accepted that, and why, as JSON."""
REASONS_PROPERTY = "backfill.load-reasons"
"""Stands for why the rows of a load are quarantined: how many for each reason, and the first of each."""
DATA_VERSION_PROPERTY = "backfill.data-version"
"""Names the version of a reference table that a snapshot is."""
LOG_PROPERTY = "backfill.load-log"
"""Says which positions of a log a load has brought, of a table that a log is landed in."""
OPEN_PROPERTY = "backfill.load-log-open"
"""The archived file with the changes of transactions that were open at the end of a delivery: their end comes later."""
STANDING_PROPERTY = "backfill.log-standing"
"""Of a snapshot that took a load of a log back, what is landed all the same, as that of a load says what it has brought."""
UNDOES_PROPERTY = "backfill.undoes-load"
"""Marks the snapshot that took a load back; its value is that load's id."""
LANDING_FOLDER = "landing="
"""What the name of a folder begins with that has the files of one attempt to land a range, in the folder `data` of its table."""
_AGAIN = "~"
_NUMBERED = re.compile(rf"{_AGAIN}\d+$")


@dataclass(frozen=True)
class Load:
    """A load of a table; `rows` were loaded, `quarantined` were not. `undone_by` is None while its rows are there.

    `version` names what a load of a reference table brought, as a manifest asks for it; else it is empty. So are `reasons`,
    but for quarantined rows: they stand for why those are there.
    """

    load_id: str
    snapshot_id: int
    at: datetime
    file: str
    rows: int
    quarantined: int
    by: str
    undone_by: str | None = None
    undone_at: datetime | None = None
    undone_because: str = ""
    version: str = ""
    reasons: str = ""


def loads_of(table: Table) -> list[Load]:
    """Return the loads in the history of a table, oldest first."""
    found: list[Load] = []
    undone: dict[str, Snapshot] = {}
    for snapshot in ancestors(table):
        said = summary_of(snapshot)
        if (taken_back := said.get(UNDOES_PROPERTY)) is not None:
            undone[taken_back] = snapshot
        if (load_id := said.get(LOAD_PROPERTY)) is None:
            continue
        undo = undone.get(load_id)
        why = {} if undo is None else summary_of(undo)
        found.append(
            Load(
                load_id,
                snapshot.snapshot_id,
                committed_at(table, snapshot),
                said.get(FILE_PROPERTY, ""),
                count_said(table, snapshot, "added-records") or 0,
                count_said(table, snapshot, REJECTED_PROPERTY) or 0,
                said.get(ACTOR_PROPERTY, ""),
                None if undo is None else why.get(ACTOR_PROPERTY, ""),
                None if undo is None else committed_at(table, undo),
                why.get(REASON_PROPERTY, ""),
                said.get(DATA_VERSION_PROPERTY, ""),
                said.get(REASONS_PROPERTY, ""),
            )
        )
    return found[::-1]


def snapshots_with(table: Table, load_id: str) -> frozenset[int]:
    """Return the snapshots in the history of a table whose rows include those of a load.

    A load with a data version takes the place of all before it; once it is taken back, they are what they were.
    """
    found: set[int] = set()
    is_there = False
    in_its_place: set[str] = set()
    for snapshot in reversed(list(ancestors(table))):
        said = summary_of(snapshot)
        loaded, undone = said.get(LOAD_PROPERTY), said.get(UNDOES_PROPERTY)
        in_its_place.discard(undone or "")
        if load_id in (loaded, undone):
            is_there = loaded == load_id
        elif is_there and loaded is not None and DATA_VERSION_PROPERTY in said:
            in_its_place.add(loaded)
        if is_there and not in_its_place:
            found.add(snapshot.snapshot_id)
    return frozenset(found)


def without_content(loads: Sequence[Load]) -> list[Load]:
    """Return the loads of a table, oldest first, whose content was taken back and was brought by no other load again.

    Content that a load with a data version has taken the place of is as it was: only who takes it back says that it was wrong.
    Then each load of it counts as taken back with the newest one, which somebody has undone.
    """
    left = [load for load in loads if load.undone_by is None]
    shown = left[-1:] if left and left[-1].version else left
    newest = {content_of(load.load_id): load for load in loads}
    there = {content_of(load.load_id) for load in shown}
    there |= {content for content, load in newest.items() if load.undone_by is None}
    gone = [load for load in loads if content_of(load.load_id) not in there]
    return [load if load.undone_by is not None else _undone_as(load, newest[content_of(load.load_id)]) for load in gone]


def _undone_as(load: Load, undone: Load) -> Load:
    return replace(load, undone_by=undone.undone_by, undone_at=undone.undone_at, undone_because=undone.undone_because)


@dataclass(frozen=True)
class LoadToMake:
    """What loading some content comes to.

    Attributes:
        load_id: of the load to make.
        before: the newest load that has brought this content and was not taken back.
        replaced_by: the load that has replaced it since, in a table that each load replaces as a whole.
    """

    load_id: str
    before: Load | None = None
    replaced_by: Load | None = None


def content_of(load_id: str) -> str:
    """Return which content a load has brought: its id, without the number of a content that was loaded once more."""
    return load_id.partition("#")[0]


def load_of_part(part: str) -> str:
    """Return the load that quarantined rows belong to, by the id that they were appended under: `part_of_load` of it."""
    return _NUMBERED.sub("", part)


def part_of_load(load_id: str, number: int) -> str:
    """Return the id that quarantined rows of a load are appended under, the `number`th ones of it."""
    return load_id if number == 1 else f"{load_id}{_AGAIN}{number}"


def load_to_make(loads: list[Load], content: str, *, replaces: bool = False) -> LoadToMake:
    """Return under which id content is loaded, and what has brought it before.

    Content that is loaded once more has an id of its own, above all that its loads ever had. In a table that each load
    `replaces` as a whole, the content there is that of the newest load that was not taken back.
    """
    numbers = [int(number or 1) for one, _, number in (load.load_id.partition("#") for load in loads) if one == content]
    load_id = content if not numbers else f"{content}#{max(numbers) + 1}"
    there = [load for load in loads if load.undone_by is None]
    before = next((load for load in reversed(there) if content_of(load.load_id) == content), None)
    newest = there[-1] if there else None
    return LoadToMake(load_id, before, newest if replaces and newest is not before else None)


def undoing(table: Table, load_id: str) -> tuple[list[DataFile], list[DataFile]] | None:
    """Return the files that go and those that come back if a load is taken back; None if it was taken back before.

    Raises:
        InputRefused: if the table has no such load, or its files are no longer those that it brought.
    """
    name = ".".join(table.name())
    snapshot = None
    for one in ancestors(table):
        said = summary_of(one)
        if said.get(UNDOES_PROPERTY) == load_id:
            return None
        if said.get(LOAD_PROPERTY) == load_id:
            snapshot = one
            break
    if snapshot is None:
        raise InputRefused(
            Problem(
                f"{name} has no load '{load_id}'", "a load is undone by its id", f"`backfill loads {name}` lists them"
            )
        )
    added, removed = _changes(table, snapshot)
    current = table.current_snapshot()
    assert current is not None
    with readable_metadata(table, current):
        present = {
            entry.data_file.file_path: entry.data_file
            for manifest in current.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }
    deletes = [path for path, file in present.items() if file.content is not DataFileContent.DATA]
    missing = sorted({file.file_path for file in added} - set(present))
    replaced_since = removed and len(present) != len(added)
    if missing or deletes or replaced_since:
        what = (
            f"{len(missing)} of its {len(added)} file(s) are no longer in the table"
            if missing
            else "the table has delete files"
            if deletes
            else "the table was loaded since"
        )
        raise InputRefused(
            Problem(
                f"load '{load_id}' of {name} cannot be undone: {what}",
                "undoing a load takes back the very files that it brought, and nothing else",
                "undo what came later first; where its files were rewritten, delete its rows by a condition",
            )
        )
    return [present[file.file_path] for file in added], removed


def _changes(table: Table, snapshot: Snapshot) -> tuple[list[DataFile], list[DataFile]]:
    """Return the data files that a snapshot added and removed."""
    with readable_metadata(table, snapshot):
        mine = [one for one in snapshot.manifests(table.io) if one.added_snapshot_id == snapshot.snapshot_id]
        entries = [entry for one in mine for entry in one.fetch_manifest_entry(table.io, discard_deleted=False)]
    own = [entry for entry in entries if entry.snapshot_id == snapshot.snapshot_id]
    added = [entry.data_file for entry in own if entry.status is ManifestEntryStatus.ADDED]
    removed = [entry.data_file for entry in own if entry.status is ManifestEntryStatus.DELETED]
    return added, removed
