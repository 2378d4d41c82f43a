"""The tables of one installation's catalog, as other packages speak to them: pinned reads, and commits.

Put here what one call asks of a table by name, and nothing of how it is answered: that is in the rooms beside this one
(`reads`, `lookups`, `loads`, `load_commits`, `replacements`, `refs`). Computing and writing data files is Spark's; deciding
whether a commit may happen is the publisher's. Every commit here is one snapshot, by metadata alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from itertools import takewhile
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from manifests.facts import ReferenceState, SourceState
from manifests.staged_file import StagedFile
from resources.lakehouse import data_files, exchanges, load_commits, lookups, reads, refs, replacements
from resources.lakehouse.catalog import Tables
from resources.lakehouse.commits import Commit
from resources.lakehouse.exchanges import Exchange
from resources.lakehouse.lineage import ancestors
from resources.lakehouse.live_files import ScopeChanged
from resources.lakehouse.load_commits import LoadedSince, VersionTaken
from resources.lakehouse.loads import DATA_VERSION_PROPERTY, LOAD_PROPERTY, Load, loads_of, snapshots_with
from resources.lakehouse.reads import PinnedRead
from resources.lakehouse.scopes import Scope, before, between
from resources.lakehouse.storage import local_path
from resources.lakehouse.summaries import (
    ACTION_PROPERTY,
    DIFF_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SEQUENCE_PROPERTY,
    VERSION_PROPERTY,
    each_with,
    snapshot_with,
    summary_of,
)

__all__ = [
    "ACTION_PROPERTY",
    "DATA_VERSION_PROPERTY",
    "DIFF_PROPERTY",
    "EVIDENCE_PROPERTY",
    "LOAD_PROPERTY",
    "PLAN_PROPERTY",
    "RUN_PROPERTY",
    "SEQUENCE_PROPERTY",
    "VERSION_PROPERTY",
    "Commit",
    "Lakehouse",
    "LoadedSince",
    "PinnedRead",
    "Scope",
    "ScopeChanged",
    "VersionTaken",
    "before",
    "between",
    "local_path",
]


class Lakehouse(Tables):
    """What is asked of the tables of one catalog, and done to them, each by its name; see the module."""

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

    def is_listed_at(self, name: str, snapshot_ids: Collection[int], files: Sequence[DataFile]) -> bool:
        """Whether each of some files is listed just so at one of these snapshots; where one has expired nobody knows."""
        table, paths = self.table(name), {file.file_path for file in files}
        if not files or any(table.snapshot_by_id(one) is None for one in snapshot_ids):
            return True
        then = [file for one in snapshot_ids for file in exchanges.listed(table, one, paths)]
        return all(any(exchanges.same([file], [other]) for other in then) for file in files)

    # --- facts, from metadata alone -------------------------------------------------------------------------------

    def source_state(self, name: str, time_column: str, snapshot_id: int | None) -> SourceState:
        """Describe a source at a snapshot (the current one if None).

        Raises:
            InputRefused: if the snapshot does not exist or has deletes this project cannot read.
        """
        return lookups.source_state(self.table(name), name, time_column, snapshot_id)

    def first_day_added(self, name: str, time_column: str, since: int, until: int) -> date | None:
        """Return the first day (UTC) of the files that a source has at one snapshot and had not at an earlier one.

        None where there are none, or the earlier snapshot has expired.
        """
        return lookups.first_day_added(self.table(name), time_column, since, until)

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

    def files_beyond(self, name: str, scope: Scope, chunk_of: Callable[[date], str] | None = None) -> list[str]:
        """Describe the current files that may hold rows of a scope and of other days.

        With `chunk_of` (from a day to the key of its chunk) also those that hold rows of more than one chunk.
        """
        return lookups.files_beyond(self.table(name), scope, chunk_of)

    def file_rows_by_chunk(
        self, name: str, snapshot_id: int | None, scopes: Mapping[str, Scope], *, branch: str | None = None
    ) -> dict[str, dict[str, int]]:
        """Return the data files of each scope (a chunk's days, by its key) at a snapshot, with their rows; None: as it is now.

        Raises:
            InputRefused: if a file lies in more than one chunk.
        """
        return lookups.file_rows_by_chunk(self.table(name), snapshot_id, scopes, branch=branch)

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

    def pinned(self, name: str, snapshot_id: int | None, row_filter: BooleanExpression | None = None) -> PinnedRead:
        """Plan a read of a table at a snapshot: the files that may hold rows of `row_filter`. Without a snapshot: none.

        Raises:
            InputRefused: if the table has no such snapshot, or a file has deletes.
        """
        return reads.pinned(self.table(name), name, snapshot_id, row_filter)

    def pinned_since(self, name: str, since: int, until: int) -> PinnedRead:
        """Plan a read of what was appended to a table after snapshot `since`, up to `until`.

        Raises:
            InputRefused: if files of `since` are gone by then: the table was not only appended to.
        """
        return reads.pinned_since(self.table(name), name, since, until)

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

    def some_rows(self, name: str, limit: int) -> tuple[int, list[dict[str, Any]]]:
        """Return how many rows a table has, and at most `limit` of them."""
        return reads.some_rows(self.table(name), limit)

    def as_gated(self, name: str, staged: Iterable[StagedFile]) -> frozenset[str]:
        """Return the paths of those staged files that are there, with the contents that were gated.

        Raises:
            EnvironmentRefused: if one could not be read just now.
        """
        return data_files.as_gated(self.table(name), staged)

    def rows_of_run(self, name: str, run_id: str) -> tuple[int | None, list[str]]:
        """Return how many rows of a run a table shows, and the files that they may be in; None where one cannot be read."""
        return reads.rows_of_run(self.table(name), run_id)

    # --- commits of loads -----------------------------------------------------------------------------------------

    def append(self, name: str, batches: Iterable[Any], properties: Mapping[str, str]) -> Commit | None:
        """Append Arrow tables as one snapshot; nothing is committed if writing any of them fails.

        Memory is bounded by one batch. Returns None if a snapshot with the same load id is in the table already, also if
        it came there while the files were written.
        """
        return load_commits.append(self, name, batches, properties)

    def append_files(self, name: str, paths: Sequence[str], properties: Mapping[str, str]) -> Snapshot:
        """Append staged files as one snapshot, or find the one that has the same load id."""
        return load_commits.append_files(self, name, paths, properties)

    def overwrite_rows(
        self,
        name: str,
        rows: Any,
        properties: Mapping[str, str],
        *,
        new_version: bool = False,
        replacing: str | None = None,
    ) -> Commit | None:
        """Make `rows` (an Arrow table) the whole content of a small table, as one snapshot with a named version.

        Returns None if another process has committed the same load.

        Raises:
            VersionTaken: if `new_version` asks for a name that no snapshot has, and one has it by now; nothing has changed then.
            LoadedSince: if the load `replacing` is not the newest any more; nothing has changed then.
        """
        return load_commits.overwrite_rows(self, name, rows, properties, new_version=new_version, replacing=replacing)

    def undo_load(self, name: str, load_id: str, properties: Mapping[str, str]) -> Snapshot:
        """Take back the files of a load as one snapshot, or find the one that took them back.

        Files that the load replaced come back. Snapshots that plans have pinned stay readable.

        Raises:
            InputRefused: if the table has no such load, or its files are no longer those that it brought.
        """
        return load_commits.undo_load(self, name, load_id, properties)

    # --- commits of runs ------------------------------------------------------------------------------------------

    def replace(
        self,
        name: str,
        scopes: Sequence[tuple[Scope, int | None]],
        *,
        staged: Sequence[StagedFile],
        properties: Mapping[str, str],
        replaced: Collection[str] | None = None,
        branch: str = MAIN_BRANCH,
        token: int | None = None,
    ) -> Commit:
        """Replace files of scopes by staged ones, as one snapshot.

        Args:
            name: the table.
            scopes: what may be touched, each with the snapshot whose files it must hold (None: no file).
            staged: the files that come in.
            properties: of the snapshot.
            replaced: the files that go; None: all of the scopes.
            branch: what the snapshot is committed to.
            token: of the lease under which it is done; without one nothing fences the commit.

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if a scope's files are no longer those of its base, one that would go is none of them or
                holds rows of other days, or a staged file is not the one that was gated; nothing has changed then.
        """
        return replacements.replace_staged(
            self, name, scopes, staged=staged, properties=properties, replaced=replaced, branch=branch, token=token
        )

    def restore(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        from_snapshot_id: int,
        to_snapshot_id: int | None,
        properties: Mapping[str, str],
        token: int | None = None,
    ) -> Commit:
        """Put the files that scopes had at `to_snapshot_id` back in place of those of `from_snapshot_id`.

        Files that both have stay as they are. A file that held days beside its scope comes back if those days, too, have
        the files of `from_snapshot_id` still; none that holds them goes.

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if a scope's files are no longer those of `from_snapshot_id`, or one that would go holds
                rows of other days.
        """
        return replacements.restore(
            self,
            name,
            scopes,
            from_snapshot_id=from_snapshot_id,
            to_snapshot_id=to_snapshot_id,
            properties=properties,
            token=token,
        )

    def exchange(
        self,
        name: str,
        scopes: Sequence[Scope],
        *,
        going: AbstractSet[str],
        coming: Sequence[StagedFile],
        at_snapshot_id: int | None,
        properties: Mapping[str, str],
        token: int | None = None,
        landed: Callable[[], Commit | None] = lambda: None,
    ) -> Commit:
        """Take files out of scopes, and bring others back as they were at a snapshot, whatever else is in the scopes by now.

        What is to go and is not there any more has gone. What comes back of a snapshot that has expired is made of the file
        itself, which must be as it was gated. One snapshot is made, even where nothing is left to go or to come; none where
        `landed` says that another process has made it.

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if a file that is to come is not as it was; nothing has changed then.
        """
        return replacements.exchange(
            self,
            name,
            scopes,
            going=going,
            coming=coming,
            at_snapshot_id=at_snapshot_id,
            properties=properties,
            token=token,
            landed=landed,
        )

    def put_rows(
        self, name: str, where: BooleanExpression, staged: Sequence[StagedFile], properties: Mapping[str, str]
    ) -> int:
        """Make staged files the rows of a run in a table that keeps those of many, as one snapshot; return the snapshot.

        `where` selects the files of the run: those that it has by now give way. If the newest snapshot of the run in the
        table's history has the same diff id, that is it, and nothing is put there twice.
        """
        return replacements.put_rows(self, name, where, staged, properties)

    # --- what would be refused ------------------------------------------------------------------------------------

    def require_gated(self, name: str, staged: Sequence[StagedFile]) -> None:
        """Refuse files whose contents are not those that were gated, before a ref makes them visible."""
        data_files.require_gated_bytes(self.table(name), staged)

    def unlike(
        self, name: str, snapshot_id: int, base: int | None, gone: Collection[str], staged: Sequence[StagedFile]
    ) -> list[str]:
        """Return the files by which a candidate is not its base with staged files in place of those `gone`; see `exchanges`."""
        return exchanges.unlike(self.table(name), snapshot_id, base, gone, staged)

    def require_as_gated(self, name: str, staged: Sequence[StagedFile]) -> None:
        """Refuse files that `replace` would refuse to commit: gone, or other rows, footers or contents than were gated."""
        data_files.gated_data_files(self.table(name), staged)

    def require_unchanged(
        self, name: str, scopes: Sequence[tuple[Scope, int | None]], *, replaced: bool = False
    ) -> None:
        """Refuse if a scope's files are no longer those of its snapshot: for changes of more than one table.

        With `replaced` also if they may not be replaced, because they hold rows of other days.

        Raises:
            PublicationRefused: naming the files that came and went, or reach beyond the scope.
        """
        replacements.require_unchanged(self.table(name), scopes, replaced=replaced)

    def require_restorable(
        self, name: str, scopes: Sequence[Scope], *, from_snapshot_id: int, to_snapshot_id: int | None
    ) -> None:
        """Refuse what `restore` would refuse of this table just now; changes nothing."""
        replacements.restoration(self.table(name), scopes, from_snapshot_id, to_snapshot_id)

    # --- commits of refs ------------------------------------------------------------------------------------------

    def tag(self, name: str, tag: str, snapshot_id: int) -> None:
        """Tag a snapshot so that it is never expired; in a transaction of its own, and safe to repeat.

        Raises:
            PublicationRefused: if the tag names another snapshot.
        """
        refs.tag(self, name, tag, snapshot_id)

    def fence(self, name: str, token: int) -> None:
        """Keep the holder of a lost lease out: from here on a commit that carries its token fails in the catalog."""
        refs.fence(self, name, token)

    def open_branch(self, name: str, branch: str, snapshot_id: int | None) -> None:
        """Open a branch at a snapshot; safe to repeat. On an empty table its first commit opens it."""
        refs.open_branch(self, name, branch, snapshot_id)

    def point(
        self,
        name: str,
        *,
        expected: Mapping[str, int | None],
        branches: Mapping[str, int] | None = None,
        tags: Mapping[str, int] | None = None,
        removed: Iterable[str] = (),
        token: int | None = None,
    ) -> None:
        """Move, make and remove refs in one commit, if the refs of `expected` name those snapshots (None: do not exist).

        Raises:
            LeaseLost: if the token is fenced.
            PublicationRefused: if they do not; nothing has changed then.
        """
        refs.point(self, name, expected=expected, branches=branches, tags=tags, removed=removed, token=token)
