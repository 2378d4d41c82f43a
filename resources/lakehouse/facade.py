"""The tables of one installation's catalog, as other packages speak to them: pinned reads, and commits.

Put here what one call does to a table by name, or would be refused to, and nothing of how it is done: that is in the rooms beside
this one (`load_commits`, `replacements`, `refs`). What one call asks is `questions`'. Computing and writing data files is Spark's;
deciding whether a commit may happen is the publisher's. Every commit here is one snapshot, by metadata alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from pyiceberg.expressions import BooleanExpression
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

from manifests.staged_file import StagedFile
from resources.lakehouse import data_files, load_commits, refs, replacements
from resources.lakehouse.commits import Commit
from resources.lakehouse.live_files import ScopeChanged
from resources.lakehouse.load_commits import LoadedSince, VersionTaken
from resources.lakehouse.loads import DATA_VERSION_PROPERTY, LOAD_PROPERTY
from resources.lakehouse.questions import Questions
from resources.lakehouse.reads import PinnedRead
from resources.lakehouse.scopes import Scope, before, between, in_ranges, read_of_log
from resources.lakehouse.storage import local_path
from resources.lakehouse.summaries import (
    ACTION_PROPERTY,
    DIFF_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SEQUENCE_PROPERTY,
    VERSION_PROPERTY,
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
    "in_ranges",
    "local_path",
    "read_of_log",
]


class Lakehouse(Questions):
    """What is asked of the tables of one catalog, and done to them, each by its name; see the module."""

    # --- commits of loads -----------------------------------------------------------------------------------------

    def append(
        self, name: str, batches: Iterable[Any], properties: Mapping[str, str], *, token: int | None = None
    ) -> Commit | None:
        """Append Arrow tables as one snapshot; nothing is committed if writing any of them fails.

        Memory is bounded by one batch. Returns None if a snapshot with the same load id is in the table already, also if
        it came there while the files were written. With the `token` of a lease, it is done under that.

        Raises:
            LeaseLost: if the token is fenced; nothing has changed then.
        """
        return load_commits.append(self, name, batches, properties, token)

    def append_files(
        self, name: str, paths: Sequence[str], properties: Mapping[str, str], *, token: int | None = None
    ) -> Snapshot:
        """Append staged files as one snapshot, or find the one that has the same load id; with the `token` of a lease, under that.

        Raises:
            LeaseLost: if the token is fenced; nothing has changed then.
        """
        return load_commits.append_files(self, name, paths, properties, token)

    def overwrite_rows(
        self,
        name: str,
        rows: Any,
        properties: Mapping[str, str],
        *,
        new_version: bool = False,
        replacing: str | None = None,
        token: int | None = None,
    ) -> Commit | None:
        """Make `rows` (an Arrow table) the whole content of a small table, as one snapshot with a named version.

        Returns None if another process has committed the same load.

        Raises:
            LeaseLost: if the `token` of a lease is given, and fenced; nothing has changed then.
            VersionTaken: if `new_version` asks for a name that no snapshot has, and one has it by now; nothing has changed then.
            LoadedSince: if the load `replacing` is not the newest any more; nothing has changed then.
        """
        return load_commits.overwrite_rows(
            self, name, rows, properties, new_version=new_version, replacing=replacing, token=token
        )

    def undo_load(
        self, name: str, load_id: str, properties: Mapping[str, str], *, token: int | None = None
    ) -> Snapshot:
        """Take back the files of a load as one snapshot, or find the one that took them back.

        Files that the load replaced come back. Snapshots that plans have pinned stay readable. With the `token` of a lease, it
        is done under that.

        Raises:
            LeaseLost: if the token is fenced; nothing has changed then.
            InputRefused: if the table has no such load, or its files are no longer those that it brought.
        """
        return load_commits.undo_load(self, name, load_id, properties, token)

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
