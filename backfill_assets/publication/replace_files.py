"""The modes that replace files of the target by staged ones, in one commit: all of their days, or those that a merge names.

Put here APPEND_ONLY, REPLACE_PARTITIONS (also of a compaction, which puts the same rows in fewer files) and MERGE_BY_KEY. How a merge makes its files is the staging's.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from backfill_assets.declarations.target import TargetTable
from backfill_assets.publication.change import Change, Options, Strategies
from backfill_assets.publication.table_by_table import TableByTable
from manifests.model import PublishMode
from manifests.stages import TableCommit


class ReplaceFiles(TableByTable):
    """The files of the publish range give way to the staged ones."""

    @classmethod
    def of(cls, options: Options) -> TableByTable:
        """Return the strategy of a plan with these options."""
        return Compact() if options.compacts else cls()


class Compact(TableByTable):
    """The files of chunks, and those that delete rows of them, give way to staged ones with the same rows.

    The rows stay those of the runs that have made them, and the chunks are held by whoever holds them. Both commits, that of the
    publication and that of its rollback, are of Iceberg's operation `replace`.
    """

    same_rows = True

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits."""
        return (
            TableCommit(
                target.name, f"replaces the files of these chunks in {target.name} by fewer, with the same rows"
            ),
        )

    def holds(self, _change: Change) -> list[str]:
        """Return nothing: each chunk is held by the run that holds it."""
        return []

    def returning(self, change: Change, action: str, undone: str) -> list[str]:
        """Return the data files that undoing the run's last change would show readers again."""
        coming, last = super().returning(change, action, undone), change.last(change.target.name, undone)
        if last is None or last.parent_snapshot_id is None:
            return coming
        of_rows = set(change.platform.lakehouse.pinned(change.target.name, last.parent_snapshot_id).paths)
        return [path for path in coming if path in of_rows]


class AddFirstRows(TableByTable):
    """The staged files come into days that hold no rows."""

    first_rows_only = True

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits."""
        return (TableCommit(target.name, f"adds files to {target.name}, where these days hold no rows"),)


class MergeByKey(TableByTable):
    """Files that hold changed rows give way to copies of them into which those rows are merged; the others stay."""

    leaves_files = True

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits."""
        what = f"replaces those files of {target.name} that hold changed rows by copies with the rows merged in"
        return (TableCommit(target.name, what),)

    def is_derived(self, _target: TargetTable, _table: str) -> bool:
        """Whether what comes into a table was derived of the computed files: it is copies of the target's own."""
        return True

    def changes(self, derived: Collection[Any], replaced: Collection[Any]) -> bool:
        """Whether a file of a chunk comes or goes."""
        return bool(derived or replaced)

    def gone(self, _target: TargetTable, _table: str, named: Collection[str]) -> Collection[str]:
        """Return the files that have given way to copies."""
        return named


STRATEGIES: Strategies = {
    PublishMode.APPEND_ONLY: AddFirstRows.of,
    PublishMode.REPLACE_PARTITIONS: ReplaceFiles.of,
    PublishMode.MERGE_BY_KEY: MergeByKey.of,
}
