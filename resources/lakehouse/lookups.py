"""Facts of a table that planning and gates ask for, from metadata alone: days, rows, files and versions.

Put here what is answered without opening a data file. What is read of the rows is `reads`'s; what the history says of loads,
`loads`'s; what the facts mean for a run is for those who ask.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DateType, StringType

from manifests.chunks import EVER
from manifests.division import Division
from manifests.errors import InputRefused, Problem
from manifests.facts import ReferenceState, SourceFile, SourceState
from manifests.log_ranges import LogRange
from resources.lakehouse.containment import in_words, instants_of, reaching_out
from resources.lakehouse.file_times import last_times_of_ranges, no_bounds, nulls_of_file, times_of_file
from resources.lakehouse.live_files import data_files_in, files_and_deletes, files_at, live_files, pinned_snapshot
from resources.lakehouse.loads import DATA_VERSION_PROPERTY, LOAD_PROPERTY, UNDOES_PROPERTY
from resources.lakehouse.metadata import (
    column_of,
    committed_at,
    count_said,
    readable_bounds,
    readable_metadata,
)
from resources.lakehouse.parts import NO_PART, part_of_file
from resources.lakehouse.scopes import Scope, span_of
from resources.lakehouse.summaries import ACTION_PROPERTY, SPLIT, leaves_rows, summary_of


def source_state(
    table: Table, name: str, time_column: str, snapshot_id: int | None, *, is_whole: bool = False
) -> SourceState:
    """Describe a source at a snapshot (the current one if None); `is_whole`: rows without a time are read as well.

    Raises:
        InputRefused: if the snapshot does not exist, or rows of it are deleted by their values.
    """
    snapshot = pinned_snapshot(table, snapshot_id)
    files = source_files(table, time_column, snapshot, AlwaysTrue(), is_whole=is_whole)
    has_dates = bool(time_column) and isinstance(column_of(table, time_column).field_type, DateType)
    return SourceState(name, snapshot.snapshot_id, committed_at(table, snapshot), files, has_dates)


def source_files(
    table: Table, time_column: str, snapshot: Snapshot, row_filter: BooleanExpression, *, is_whole: bool = False
) -> tuple[SourceFile, ...]:
    """Return the files of a source at a snapshot that may hold rows of a filter.

    Those whose rows have no time are left out; with `is_whole` they count as older than any other.

    Raises:
        InputRefused: if rows of the table are deleted by their values.
    """
    found = []
    for file, _ in files_and_deletes(table, snapshot, row_filter):
        one = _source_file(table, file, time_column)
        if one is None and is_whole:
            one = SourceFile(file.record_count, file.file_size_in_bytes, EVER[0], EVER[0])
        if one is not None:
            found.append(one)
    return tuple(found)


def nulls_in(table: Table, snapshot_id: int, column: str) -> int:
    """Return how many rows at a snapshot have NULL in a column, by what files say of themselves; of one that says nothing, none."""
    field = column_of(table, column)
    files = files_and_deletes(table, pinned_snapshot(table, snapshot_id), AlwaysTrue())
    return sum(nulls_of_file(table, file, field) for file, _ in files)


def last_times(
    table: Table, snapshot_id: int, place: tuple[str, str | None], column: str, ranges: Sequence[LogRange]
) -> tuple[dict[LogRange, datetime | None], list[LogRange]]:
    """Return the last instants at positions of a log, and the ranges of which files do not tell; see `file_times.last_times_of_ranges`."""
    files = (file for file, _ in files_and_deletes(table, pinned_snapshot(table, snapshot_id), AlwaysTrue()))
    return last_times_of_ranges(table, files, place, column, ranges)


def files_after(table: Table, time_column: str, snapshot_id: int, after: date) -> list[SourceFile]:
    """Return the files of a source at a snapshot that have a row after an instant, or after a date of a column of dates."""
    end = after if isinstance(after, datetime) else datetime.combine(after, time.min, UTC)
    found = []
    for file, _ in files_and_deletes(table, pinned_snapshot(table, snapshot_id), AlwaysTrue()):
        times = times_of_file(table, file, time_column)
        if times is not None and times[1] > end:
            low, high = times
            found.append(SourceFile(file.record_count, file.file_size_in_bytes, low.date(), high.date()))
    return found


def first_day_added(table: Table, time_column: str, since: int, until: int) -> date | None:
    """Return the first day (UTC) of the files that a source has at one snapshot and had not, or not with the same rows, at another.

    None where there are none, or the earlier snapshot has expired.
    """
    return min((one.first_day for one in files_added(table, time_column, since, until)), default=None)


def files_added(table: Table, time_column: str, since: int | None, until: int) -> list[SourceFile]:
    """Return the files that a source has at one snapshot and had not, or not with the same rows, at another.

    All of them where there was no other yet (`since` is None); none where the earlier snapshot has expired.
    """
    earlier = None if since is None else table.snapshot_by_id(since)
    if earlier is None and since is not None:
        return []

    def with_deletes(snapshot: Snapshot) -> dict[tuple[str, ...], DataFile]:
        found = files_and_deletes(table, snapshot, AlwaysTrue())
        return {(file.file_path, *(one.file_path for one in deletes)): file for file, deletes in found}

    known = {} if earlier is None else with_deletes(earlier)
    parted = _parted(table, {path for key in known for path in key}, until)
    new = [
        file
        for key, file in with_deletes(pinned_snapshot(table, until)).items()
        if key not in known and (len(key) > 1 or file.file_path not in parted)
    ]
    described = (_source_file(table, file, time_column) for file in new)
    return [one for one in described if one is not None]


def _parted(table: Table, known: set[str], until: int) -> set[str]:
    """Return the files that splits and compactions up to a snapshot have made of some files: their rows are no new ones."""
    splits: list[Snapshot] = []
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    snapshot = by_id.pop(until, None)
    while snapshot is not None:
        if summary_of(snapshot).get(ACTION_PROPERTY) == SPLIT or leaves_rows(snapshot):
            splits.append(snapshot)
        snapshot = by_id.pop(snapshot.parent_snapshot_id or 0, None)
    found: set[str] = set()
    for snapshot in reversed(splits):
        came, gone = changed_by(table, snapshot)
        if gone and gone <= known | found:
            found |= came
    return found


def possible_rows(table: Table, snapshot_id: int, column: str, keys: Collection[str]) -> int:
    """Return the rows of a source's files that may hold one of some values of a text column, by the files' bounds.

    A file without bounds may hold any of them.
    """
    field, wanted = column_of(table, column), sorted(keys)
    rows = 0
    for file, _ in files_and_deletes(table, pinned_snapshot(table, snapshot_id), AlwaysTrue()):
        low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
        possible = bool(wanted)
        if low is not None and high is not None and isinstance(field.field_type, StringType):
            with readable_bounds(table):
                first, last = from_bytes(field.field_type, low), from_bytes(field.field_type, high)
            place = bisect_left(wanted, first)
            possible = place < len(wanted) and wanted[place] <= last
        rows += file.record_count if possible else 0
    return rows


def reference_state(table: Table, name: str, recorded: frozenset[int]) -> ReferenceState:
    """Describe a reference table: its snapshots and its named versions."""
    current = table.current_snapshot()
    named: dict[str, list[tuple[int, str | None]]] = {}
    undone = set()
    for snapshot in table.snapshots():
        summary = summary_of(snapshot)
        undone.add(summary.get(UNDOES_PROPERTY))
        if version := summary.get(DATA_VERSION_PROPERTY):
            named.setdefault(version, []).append((snapshot.snapshot_id, summary.get(LOAD_PROPERTY)))
    # content that came back has its name twice: it stands for the newest load that was not taken back
    there = {
        version: [(snapshot_id, load) for snapshot_id, load in made if load is None or load not in undone]
        for version, made in named.items()
    }
    return ReferenceState(
        name,
        None if current is None else current.snapshot_id,
        frozenset(snapshot.snapshot_id for snapshot in table.snapshots()),
        {version: (there[version] or made)[-1][0] for version, made in named.items()},
        recorded,
        frozenset(version for version, left in there.items() if not left),
    )


def has_version(table: Table, version: str) -> bool:
    """Return whether a snapshot of a reference table has this name, also one whose content was taken back."""
    return any(summary_of(snapshot).get(DATA_VERSION_PROPERTY) == version for snapshot in table.snapshots())


def rows_in(table: Table, scope: Scope) -> int:
    """Return how many rows the current files of a scope hold."""
    return sum(file.record_count for file in data_files_in(table, table.current_snapshot(), scope))


def files_beyond(
    table: Table,
    scope: Scope,
    chunk_of: Callable[[datetime], str] | None = None,
    division: Division | None = None,
) -> list[str]:
    """Describe the files that `files_across` returns."""
    return [in_words(table, scope.column, file) for file in files_across(table, scope, chunk_of, division)]


def files_across(
    table: Table,
    scope: Scope,
    chunk_of: Callable[[datetime], str] | None = None,
    division: Division | None = None,
) -> list[DataFile]:
    """Return the current files that may hold rows of a scope and of other days, or of other values or buckets than its own.

    With `chunk_of` (from an instant to the key of its time) also those that hold rows of more than one chunk, by that and by
    the `division` of the table.
    """
    files = data_files_in(table, table.current_snapshot(), scope)
    beyond = {file.file_path for file in reaching_out(table, scope, files)}
    if chunk_of is not None:
        for file in files:
            ends = instants_of(table, scope.column, file)
            is_split = division is not None and part_of_file(table, division, file) is None
            if ends is None or is_split or chunk_of(ends[0]) != chunk_of(ends[1]):
                beyond.add(file.file_path)
    return [file for file in files if file.file_path in beyond]


def paths_in(table: Table, snapshot_id: int, scopes: Iterable[Scope]) -> list[str]:
    """Return the data files that may hold rows of scopes at a snapshot, each once."""
    return list(dict.fromkeys(file.file_path for scope in scopes for file in files_at(table, snapshot_id, scope)))


def changed_by(table: Table, snapshot: Snapshot) -> tuple[set[str], set[str]]:
    """Return the data files that a snapshot brought into a table, and those that it took out: also where the one before it has expired.

    Raises:
        UnreadableMetadata: if its manifests cannot be read.
    """
    files: dict[ManifestEntryStatus, set[str]] = {status: set() for status in ManifestEntryStatus}
    with readable_metadata(table, snapshot):
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                    files[entry.status].add(entry.data_file.file_path)
    return files[ManifestEntryStatus.ADDED], files[ManifestEntryStatus.DELETED]


def file_rows_by_chunk(
    table: Table, snapshot_id: int | None, scopes: Mapping[str, Scope], *, branch: str | None = None
) -> dict[str, dict[str, int]]:
    """Return the data files of each scope (a chunk's, by its key) at a snapshot, with their rows; None: as it is now.

    Raises:
        InputRefused: if a file lies in more than one chunk.
    """
    snapshot = (
        table.snapshot_by_name(branch or MAIN_BRANCH) if snapshot_id is None else pinned_snapshot(table, snapshot_id)
    )
    files: dict[str, dict[str, int]] = {key: {} for key in scopes}
    if snapshot is None or not scopes:
        return files
    whole, division = span_of(list(scopes.values())), next(iter(scopes.values())).division
    times: dict[datetime, dict[str, tuple[str, Scope]]] = {}
    for key, scope in scopes.items():
        times.setdefault(scope.first, {})[scope.parts[0] if scope.parts else NO_PART] = key, scope
    starts = sorted(times)
    lasts = [next(iter(times[start].values()))[1].last for start in starts]
    for file in live_files(table, snapshot, whole.filter):
        low, high = _times_of_rows(table, file, whole.column)
        place = bisect_right(starts, low) - 1
        part = NO_PART if division is None else part_of_file(table, division, file)
        if place >= 0 and high <= lasts[place] and part is not None:
            if part in times[starts[place]]:  # else of a part that is none of these
                files[times[starts[place]][part][0]][file.file_path] = file.record_count
        elif any(first <= high and low <= last for first, last in zip(starts, lasts, strict=True)):
            raise InputRefused(
                Problem(
                    f"{file.file_path} holds {low.date()} to {high.date()}"
                    + ("" if division is None or part is not None else f", and rows of several parts ({division})"),
                    "a file of a target lies in one chunk",
                    "rewrite the file by chunk",
                )
            )
    return files


def paths_by_chunk(
    table: Table, snapshot_id: int | None, scopes: Mapping[str, Scope], *, with_others: bool = False
) -> dict[str, set[str]]:
    """Return the data files that may hold rows of each scope (a chunk, by its key) at a snapshot; None: as it is now.

    Unlike `file_rows_by_chunk` it takes a file that lies in several chunks, and names it for each of them. `with_others`: one of a
    value that none of the scopes has is named for all parts of its time.
    """
    snapshot = table.current_snapshot() if snapshot_id is None else pinned_snapshot(table, snapshot_id)
    found: dict[str, set[str]] = {key: set() for key in scopes}
    if snapshot is None or not scopes:
        return found
    ordered = sorted(scopes.items(), key=lambda item: item[1].first)
    division, parts = ordered[0][1].division, {part for scope in scopes.values() for part in scope.parts}
    lasts, whole = [scope.last for _, scope in ordered], span_of(list(scopes.values()))
    listed: Iterable[tuple[DataFile, Sequence[DataFile]]]
    if whole.same_rows:
        listed = files_and_deletes(table, snapshot, whole.filter)
    else:
        listed = ((file, ()) for file in live_files(table, snapshot, whole.filter))
    for file, deletes in listed:
        low, high = _times_of_rows(table, file, ordered[0][1].column)
        part = None if division is None else part_of_file(table, division, file)
        if part is not None and part not in parts:
            if not with_others:
                continue
            part = None
        for key, scope in ordered[bisect_left(lasts, low) :]:
            if scope.first > high:
                break
            if part is None or part in scope.parts:
                found[key].update((file.file_path, *(one.file_path for one in deletes)))
    return found


def total_rows(table: Table, snapshot_id: int | None = None) -> int | None:
    """Return the rows of a table as the summary of its current, or of another, snapshot counts them.

    None where it does not say, or where the table does not know the snapshot any more.
    """
    snapshot = table.current_snapshot() if snapshot_id is None else table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return 0 if snapshot_id is None else None
    return count_said(table, snapshot, "total-records")


def changed_files(table: Table, snapshot: Snapshot) -> tuple[int, int]:
    """Return how many data files a snapshot added and removed, from its summary."""
    known = table.snapshot_by_id(snapshot.snapshot_id)
    if known is None:
        return 0, 0
    return count_said(table, known, "added-data-files") or 0, count_said(table, known, "deleted-data-files") or 0


def _times_of_rows(table: Table, file: DataFile, column: str) -> tuple[datetime, datetime]:
    """Return the first and the last instant of a file of a target, each of whose rows has one.

    Raises:
        InputRefused: if the file does not say which.
    """
    found = times_of_file(table, file, column)
    if found is None:
        raise no_bounds(file, column)
    return found


def _source_file(table: Table, file: DataFile, column: str) -> SourceFile | None:
    """Describe a file of a source; None of one whose rows have no time."""
    found = times_of_file(table, file, column)
    if found is None:
        return None
    return SourceFile(file.record_count, file.file_size_in_bytes, found[0].date(), found[1].date())
