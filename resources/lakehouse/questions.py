"""What is asked of the tables of one installation's catalog, each by its name: history, facts, pinned reads.

Put here what one call asks of a table and changes nothing, and nothing of how it is answered: that is in the rooms beside this
one (`reads`, `lookups`, `loads`, `exchanges`, `summaries`). What is done to a table, or would be refused, is `facade`'s, which is
what other packages have of both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from itertools import takewhile
from typing import Any

from pyarrow import RecordBatch
from pyiceberg.expressions import BooleanExpression, EqualTo
from pyiceberg.manifest import DataFile
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from manifests.division import Division
from manifests.facts import ReferenceState, SourceFile, SourceState
from manifests.log_pins import PinnedLog
from manifests.log_ranges import LogRange
from manifests.staged_file import StagedFile
from resources.lakehouse import data_files, exchanges, lookups, reads, rows_by_file
from resources.lakehouse.catalog import Tables
from resources.lakehouse.exchanges import Exchange
from resources.lakehouse.landed_logs import LandedLoad, landed_loads, other_changes
from resources.lakehouse.lineage import ancestors
from resources.lakehouse.live_files import pinned_snapshot
from resources.lakehouse.loads import LOAD_PROPERTY, Load, loads_of, snapshots_with
from resources.lakehouse.reads import PinnedRead
from resources.lakehouse.rows_by_file import RowsOfFile
from resources.lakehouse.scopes import Scope, read_of_log
from resources.lakehouse.summaries import RUN_PROPERTY, each_with, snapshot_with, summary_of


class Questions(Tables):
    """What is asked of the tables of one catalog; see the module."""

    # --- history --------------------------------------------------------------------------------------------------

    def snapshot_id(self, name: str) -> int | None:
        """Return the current snapshot of a table, or None where nothing was ever committed."""
        snapshot = self.table(name).current_snapshot()
        return None if snapshot is None else snapshot.snapshot_id

    def snapshot_of(self, name: str, ref: str = MAIN_BRANCH) -> int | None:
        """Return the snapshot that a ref names, or None."""
        snapshot = self.table(name).snapshot_by_name(ref)
        return None if snapshot is None else snapshot.snapshot_id

    def refs(self, name: str) -> frozenset[str]:
        """Return the names of a table's branches and tags."""
        return frozenset(self.table(name).refs())

    def has_snapshot(self, name: str, snapshot_id: int) -> bool:
        """Return whether a table's metadata has a snapshot: one that has expired it has no more."""
        return self.table(name).snapshot_by_id(snapshot_id) is not None

    def history(self, name: str) -> frozenset[int]:
        """Return the snapshots of the current one's history, itself included."""
        return frozenset(snapshot.snapshot_id for snapshot in ancestors(self.table(name)))

    def snapshots_in_order(self, name: str) -> list[int]:
        """Return the snapshots of the current one's history, the newest first."""
        return [snapshot.snapshot_id for snapshot in ancestors(self.table(name))]

    def runs_since(self, name: str, snapshot_id: int) -> frozenset[str]:
        """Return the runs of which snapshots of the current one's history are that came after one of it.

        Nobody where that one is not in the history.
        """
        history = list(ancestors(self.table(name)))
        later = takewhile(lambda snapshot: snapshot.snapshot_id != snapshot_id, history)
        runs = frozenset(summary_of(snapshot).get(RUN_PROPERTY, "") for snapshot in later) - {""}
        return runs if any(snapshot.snapshot_id == snapshot_id for snapshot in history) else frozenset()

    def loads(self, name: str) -> list[Load]:
        """Return the loads in a table's history, oldest first."""
        return loads_of(self.table(name))

    def snapshots_with_load(self, name: str, load_id: str) -> frozenset[int]:
        """Return the snapshots of a table's history whose rows include those of a load."""
        return snapshots_with(self.table(name), load_id)

    def find_load(self, name: str, load_id: str) -> Snapshot | None:
        """Return the snapshot that a load was appended as, or None."""
        return snapshot_with(self.table(name), LOAD_PROPERTY, load_id)

    def find_publication(
        self, name: str, run_id: str, action: str, ref: str = MAIN_BRANCH, sequence: int | None = None
    ) -> Snapshot | None:
        """Return the (newest) snapshot in which a run's action landed, if it is in the history of a ref's snapshot."""
        return snapshot_with(self.table(name), RUN_PROPERTY, run_id, action, ref, sequence)

    def find_own(
        self,
        name: str,
        run_id: str,
        action: str,
        is_own: Callable[[Exchange], bool],
        ref: str = MAIN_BRANCH,
        sequence: int | None = None,
    ) -> Snapshot | None:
        """Return the newest snapshot that says it is a run's action, and is so by what it has exchanged.

        Raises:
            UnreadableMetadata: if the manifests of one that says so cannot be read.
        """
        table = self.table(name)
        said = each_with(table, RUN_PROPERTY, run_id, action, ref, sequence)
        return next((one for one in said if is_own(exchanges.exchanged(table, one))), None)

    def is_described(self, name: str, exchange: Exchange, staged: Sequence[StagedFile]) -> bool:
        """Whether a snapshot describes those staged files that it brought as they are; one that was lost or damaged since, as it was staged.

        Raises:
            EnvironmentRefused: if one could not be read just now.
        """
        return exchanges.is_described(self.table(name), exchange, staged)

    def unlike(
        self, name: str, snapshot_id: int, base: int | None, gone: Collection[str], staged: Sequence[StagedFile]
    ) -> list[str]:
        """Return the files by which a candidate is not its base with staged files in place of those `gone`; see `exchanges`."""
        return exchanges.unlike(self.table(name), snapshot_id, base, gone, staged)

    def is_listed_at(self, name: str, snapshot_ids: Collection[int], files: Sequence[DataFile]) -> bool:
        """Whether each of some files is listed just so at one of these snapshots; where one has expired nobody knows."""
        table, paths = self.table(name), {file.file_path for file in files}
        if not files or any(table.snapshot_by_id(one) is None for one in snapshot_ids):
            return True
        then = [file for one in snapshot_ids for file in exchanges.listed(table, one, paths)]
        return all(any(exchanges.same([file], [other]) for other in then) for file in files)

    # --- facts, from metadata alone -------------------------------------------------------------------------------

    def source_state(
        self, name: str, time_column: str, snapshot_id: int | None, *, is_whole: bool = False
    ) -> SourceState:
        """Describe a source at a snapshot (the current one if None); `is_whole`: rows without a time are read as well.

        Raises:
            InputRefused: if the snapshot does not exist or has deletes this project cannot read.
        """
        return lookups.source_state(self.table(name), name, time_column, snapshot_id, is_whole=is_whole)

    def files_of_log(
        self, log: PinnedLog, time_column: str, snapshot_id: int, *, is_whole: bool = False
    ) -> tuple[SourceFile, ...]:
        """Return the files of a source at a snapshot that may hold rows at the positions that a run reads of its log.

        `is_whole`: rows without a time are read as well.
        """
        table = self.table(log.table)
        snapshot = pinned_snapshot(table, snapshot_id)
        return lookups.source_files(table, time_column, snapshot, read_of_log(log), is_whole=is_whole)

    def landed_loads(self, name: str, snapshot_id: int | None = None) -> list[LandedLoad]:
        """Return the loads of ranges of a log that its table has at a snapshot (None: now), oldest first; see `landed_logs`."""
        return landed_loads(self.table(name), snapshot_id)

    def other_changes(self, name: str, snapshot_id: int) -> list[str]:
        """Return what else than loads of ranges has changed the rows of a log's table up to a snapshot, in words."""
        return other_changes(self.table(name), snapshot_id)

    def first_day_added(self, name: str, time_column: str, since: int, until: int) -> date | None:
        """Return the first day (UTC) of the files that a source has at one snapshot and had not at an earlier one.

        None where there are none, or the earlier snapshot has expired.
        """
        return lookups.first_day_added(self.table(name), time_column, since, until)

    def files_added(self, name: str, time_column: str, since: int | None, until: int) -> list[SourceFile]:
        """Return the files that a source has at one snapshot and had not at an earlier one, if there was one; none where that has expired."""
        return lookups.files_added(self.table(name), time_column, since, until)

    def files_after(self, name: str, time_column: str, snapshot_id: int, after: date) -> list[SourceFile]:
        """Return the files of a source at a snapshot that have a row after an instant, or after a date of a column of dates."""
        return lookups.files_after(self.table(name), time_column, snapshot_id, after)

    def nulls_in(self, name: str, snapshot_id: int, column: str) -> int:
        """Return how many rows of a table at a snapshot have NULL in a column, by what its files say of themselves."""
        return lookups.nulls_in(self.table(name), snapshot_id, column)

    def last_times(
        self, name: str, snapshot_id: int, place: tuple[str, str | None], column: str, ranges: Sequence[LogRange]
    ) -> tuple[dict[LogRange, datetime | None], list[LogRange]]:
        """Return by range of a log's positions the last instant in a column, by the bounds of files; and the ranges of which they do not tell.

        `place` are the columns of a row's position and of its partition, if it has more than one.
        """
        return lookups.last_times(self.table(name), snapshot_id, place, column, ranges)

    def possible_rows(self, name: str, snapshot_id: int, column: str, keys: Collection[str]) -> int:
        """Return the rows of a source's files that may hold one of some values of a text column, by the files' bounds."""
        return lookups.possible_rows(self.table(name), snapshot_id, column, keys)

    def reference_state(self, name: str, recorded: frozenset[int]) -> ReferenceState:
        """Describe a reference table: its snapshots and its named versions."""
        return lookups.reference_state(self.table(name), name, recorded)

    def has_version(self, name: str, version: str) -> bool:
        """Return whether a snapshot of a reference table has this name, also one whose content was taken back."""
        return lookups.has_version(self.table(name), version)

    def total_rows(self, name: str, snapshot_id: int | None = None) -> int | None:
        """Return the rows of a table as the summary of its current, or of another, snapshot counts them.

        None where it does not say, or where the table does not know the snapshot any more.
        """
        return lookups.total_rows(self.table(name), snapshot_id)

    def changed_files(self, name: str, snapshot: Snapshot) -> tuple[int, int]:
        """Return how many data files a snapshot added and removed, from its summary."""
        return lookups.changed_files(self.table(name), snapshot)

    def rows_in(self, name: str, scope: Scope) -> int:
        """Return how many rows the current files of a scope hold."""
        return lookups.rows_in(self.table(name), scope)

    def files_in(self, name: str, snapshot_id: int, scopes: Iterable[Scope]) -> list[str]:
        """Return the data files that may hold rows of scopes at a snapshot, each once."""
        return lookups.paths_in(self.table(name), snapshot_id, scopes)

    def parent_of(self, name: str, snapshot_id: int) -> int | None:
        """Return the snapshot that a snapshot was made on; None where it was the first, or is not there."""
        snapshot = self.table(name).snapshot_by_id(snapshot_id)
        return None if snapshot is None else snapshot.parent_snapshot_id

    def files_beyond(
        self,
        name: str,
        scope: Scope,
        chunk_of: Callable[[datetime], str] | None = None,
        division: Division | None = None,
    ) -> list[str]:
        """Describe the current files that may hold rows of a scope and of other days, or of other values or buckets than its own.

        With `chunk_of` (from an instant to the key of its time) also those that hold rows of more than one chunk, by that and
        by the `division` of the table.
        """
        return lookups.files_beyond(self.table(name), scope, chunk_of, division)

    def file_rows_by_chunk(
        self, name: str, snapshot_id: int | None, scopes: Mapping[str, Scope], *, branch: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the data files of each scope (a chunk's days, by its key) at a snapshot, with their rows; None: as it is now.

        Raises:
            InputRefused: if a file lies in more than one chunk.
        """
        return lookups.file_rows_by_chunk(self.table(name), snapshot_id, scopes, branch=branch)

    def paths_by_chunk(
        self, name: str, snapshot_id: int | None, scopes: Mapping[str, Scope], *, with_others: bool = False
    ) -> dict[str, set[str]]:
        """Return the data files that may hold rows of each scope at a snapshot, those of several chunks for each of them."""
        return lookups.paths_by_chunk(self.table(name), snapshot_id, scopes, with_others=with_others)

    def files_by_chunk(
        self, name: str, snapshot_id: int | None, scopes: Mapping[str, Scope], *, branch: str | None = None
    ) -> dict[str, tuple[str, ...]]:
        """Return the data files of each scope, as `file_rows_by_chunk` does, in the order of their names.

        Raises:
            InputRefused: if a file lies in more than one chunk.
        """
        by_chunk = self.file_rows_by_chunk(name, snapshot_id, scopes, branch=branch)
        return {key: tuple(sorted(files)) for key, files in by_chunk.items()}

    # --- reads ----------------------------------------------------------------------------------------------------

    def pinned(
        self,
        name: str,
        snapshot_id: int | None,
        row_filter: BooleanExpression | None = None,
        schema_id: int | None = None,
    ) -> PinnedRead:
        """Plan a read of a table at a snapshot: the files that may hold rows of `row_filter`. Without a snapshot: none.

        It is read by a schema of the table: today's, if none is given.

        Raises:
            InputRefused: if the table has no such snapshot or schema, or a file has deletes.
        """
        return reads.pinned(self.table(name), name, snapshot_id, row_filter, schema_id)

    def pinned_since(
        self, name: str, since: int, until: int, schema_id: int | None = None
    ) -> tuple[PinnedRead, PinnedRead]:
        """Plan a read of the files that have come to a table after snapshot `since`, up to `until`, and one of those that have gone.

        Raises:
            InputRefused: if the table has no such snapshot or schema, or rows of it are deleted by their values.
        """
        return reads.pinned_since(self.table(name), name, since, until, schema_id)

    def files_with_nulls_since(self, name: str, since: int, until: int, column: str) -> list[str]:
        """Return the files that came to a table after snapshot `since`, up to `until`, or have gone, and may have NULL in a column.

        Raises:
            InputRefused: as `pinned_since` does.
        """
        return reads.files_with_nulls_since(self.table(name), since, until, column)

    def unread(
        self, name: str, snapshot_id: int, row_filter: BooleanExpression | None = None
    ) -> tuple[list[str], list[str]]:
        """Return what a read at a snapshot would not find as it was written: files that are gone, and files of another length.

        Raises:
            UnreadableMetadata: if the snapshot's manifests cannot be read.
        """
        return reads.unread(self.table(name), snapshot_id, row_filter)

    def rows(self, name: str, snapshot_id: int) -> list[dict[str, Any]]:
        """Return all rows of a (small) reference table at a snapshot."""
        return reads.all_rows(self.table(name), snapshot_id)

    def batches(
        self, name: str, snapshot_id: int, row_filter: BooleanExpression, columns: Sequence[str] | None = None
    ) -> Iterator[RecordBatch]:
        """Yield the rows of a table at a snapshot that pass a filter, as Arrow batches; memory is one file's."""
        return reads.batches(self.table(name), snapshot_id, row_filter, columns)

    def days_of_other_files(self, name: str, column: str, before: int, now: int) -> set[date]:
        """Return the days, in a column of dates, of rows in files that one of two snapshots has and the other has not."""
        return reads.values_of_other_files(self.table(name), before, now, column)

    def values_in(
        self, name: str, snapshot_id: int, column: str, row_filter: BooleanExpression, *, of_rows: bool = False
    ) -> dict[Any, str]:
        """Return the values of a column of text or integers in the files of a read, or in its rows, each with a file; NULL as None."""
        return reads.values_in(self.table(name), snapshot_id, column, row_filter, of_rows=of_rows)

    def has_value(self, name: str, column: str, value: str) -> bool:
        """Tell whether a row of a table, as it is now, has a value in a column of text."""
        scan = self.table(name).scan(EqualTo(term=column, value=value), selected_fields=(column,), limit=1)
        return bool(scan.to_arrow().num_rows)

    def some_rows(self, name: str, limit: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many rows a table has, and at most `limit` of them."""
        return reads.some_rows(self.table(name), limit)

    def rows_by_file(self, name: str, columns: Sequence[str], *, load_id: str | None = None) -> Iterator[RowsOfFile]:
        """Yield some columns of a table as it is now, file by file, each with its load; or those of the files of one load."""
        return rows_by_file.rows_by_file(self.table(name), columns, load_id=load_id)

    def rows_where(self, name: str, columns: Sequence[str], row_filter: BooleanExpression) -> Any:
        """Return some columns of the rows of a table that a filter selects, as it is now, as an Arrow table."""
        return rows_by_file.rows_where(self.table(name), columns, row_filter)

    def as_gated(self, name: str, staged: Iterable[StagedFile]) -> frozenset[str]:
        """Return the paths of those staged files that are there, with the contents that were gated.

        Raises:
            EnvironmentRefused: if one could not be read just now.
        """
        return data_files.as_gated(self.table(name), staged)

    def rows_of_run(self, name: str, run_id: str) -> tuple[int | None, list[str]]:
        """Return how many rows of a run a table shows, and the files that they may be in; None where one cannot be read."""
        return reads.rows_of_run(self.table(name), run_id)
