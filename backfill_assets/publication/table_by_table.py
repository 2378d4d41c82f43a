"""What the families of publish modes have in common: files come into tables and go out of them, one commit a table.

Put here what is so for every table that a mode changes, and its undoing, which puts back the files of the snapshot before.
What a family does otherwise is in its own module. How a commit is made is the lakehouse's.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet
from datetime import date
from functools import partial
from typing import Any

from pyiceberg.table.snapshots import Snapshot

from backfill_assets import faults
from backfill_assets.declarations.target import TargetTable
from backfill_assets.publication.change import Change, Options, held_by_others_since
from manifests.chunks import Chunking, time_of
from manifests.errors import Problem, PublicationRefused
from manifests.lifecycle import PUBLISH
from manifests.plan import Plan
from manifests.staged_file import StagedFile
from manifests.stages import PrepareCandidate, TableCommit
from resources.lakehouse.facade import Commit, Scope


class TableByTable:
    """A strategy that replaces the staged chunks' days in the target; families change what they do otherwise."""

    first_rows_only = False
    waits_on_branch = False
    shows_main = True
    accepted_later = False
    leaves_files = False
    same_rows = False

    @classmethod
    def of(cls, _options: Options) -> TableByTable:
        """Return the strategy of a plan with these options."""
        return cls()

    # --- what it is about -----------------------------------------------------------------------------------------

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits to which table, in that order."""
        which = "parts" if target.chunking is Chunking.WHOLE else "days"
        return (TableCommit(target.name, f"replaces the files of these {which} in {target.name}"),)

    def candidate(self, _target: TargetTable, _run_id: str) -> PrepareCandidate | None:
        """Return nothing: readers see everything at once."""
        return None

    def tables(self, target: TargetTable) -> list[str]:
        """Return every table that is committed to, in that order."""
        return list(dict.fromkeys(commit.table for commit in self.commits(target)))

    def is_derived(self, _target: TargetTable, _table: str) -> bool:
        """Whether what comes into a table was derived of the computed files."""
        return False

    def days(self, plan: Plan, _action: str) -> tuple[date, date]:
        """Return the first and last day of the target that an action's commits may change."""
        return plan.publish_range.start, plan.publish_range.end

    def changes(self, _derived: Collection[Any], _replaced: Collection[Any]) -> bool:
        """Whether a chunk's days are changed."""
        return True

    def changed(self, change: Change) -> list[str]:
        """Return the chunks whose days are changed."""
        unchanged = {chunk.chunk for chunk in change.chunks if not self.changes(chunk.derived, chunk.replaced)}
        return [chunk.key for chunk in change.plan.chunks if chunk.key not in unchanged]

    def holds(self, change: Change) -> list[str]:
        """Return the chunks of the target that are the run's once it is published."""
        return self.changed(change)

    def files(self, change: Change, table: str) -> list[StagedFile]:
        """Return the staged files that come into a table."""
        derived = self.is_derived(change.target, table)
        return [file for chunk in change.chunks for file in (chunk.derived if derived else chunk.files)]

    def base_of(self, _change: Change, _table: str, plan: Plan) -> int | None:
        """Return the snapshot of a table that a plan was made on; None where it had none."""
        return plan.base_snapshot_id

    def scopes(self, change: Change, table: str) -> list[tuple[Scope, int | None]]:
        """Return what may be touched of a table, each with the snapshot whose files it must still hold."""
        bases = {key: self.base_of(change, table, plan) for key, plan in change.plans.items()}
        return change.scopes(self.changed(change), bases)

    def gone(self, _target: TargetTable, _table: str, _named: Collection[str]) -> Collection[str] | None:
        """Return the files that go out of a table; None: all of its days."""
        return None

    def replaced(self, change: Change, table: str) -> AbstractSet[str] | None:
        """Return the files that go out of a table for the staged ones; None if a base that says which has expired."""
        named = {path for chunk in change.chunks for path in chunk.replaced}
        gone = self.gone(change.target, table, named)
        if gone is not None:
            return set(gone)
        lakehouse, scopes = change.platform.lakehouse, self.scopes(change, table)
        if not all(base is None or lakehouse.has_snapshot(table, base) for _, base in scopes):
            return None
        return {path for scope, base in scopes if base is not None for path in lakehouse.files_in(table, base, [scope])}

    def landed(self, change: Change, table: str, action: str, sequence: int) -> Commit | None:
        """Return what an action of a number has committed to a table and is there still; None if nothing."""
        return change.landed(table, action, sequence)

    # --- publishing -----------------------------------------------------------------------------------------------

    def conflicts(self, change: Change) -> list[str]:
        """Return the chunks whose files in the target are no longer those of their base, or that another run has taken since.

        Also for corrections instead of a change: they say what to do with rows that the target had in those files.
        """
        lakehouse, target, plans = change.platform.lakehouse, change.target, change.plans
        scopes = change.chunk_scopes
        bases = {plan.base_snapshot_id for plan in plans.values()} - {lakehouse.snapshot_of(target.name)}
        if not bases:  # nothing at all has changed
            return []
        whole = change.plan.values is None  # files of values that nobody has declared go with the others of their time
        listed = partial(lakehouse.paths_by_chunk, target.name, scopes=scopes, with_others=whole)
        present = listed(None)
        changed = set(held_by_others_since(change))
        for base in bases:
            then = listed(base) if base is not None else {}
            own = [key for key, plan in plans.items() if plan.base_snapshot_id == base]
            changed |= {key for key in own if then.get(key, set()) != present[key]}
        if target.parts and whole:  # parts of a time keep one base, so that all files of the time go by it
            times = {time_of(key) for key in changed}
            changed = {key for key in plans if time_of(key) in times}
        return sorted(changed)

    def prepare(self, change: Change, root: str) -> None:
        """Commit what waits on a branch, where it does."""

    def publish(self, change: Change, root: str) -> Commit:
        """Make the change, or find that it was made: one commit a table."""
        self.require_committable(change)
        commits: list[Commit] = []
        for table in change.tables:
            if commits:
                faults.reach("publishing.halfway")
            commits.append(self.landed(change, table, PUBLISH, 1) or self.commit_to(change, table, root))
        return commits[0]

    def require_committable(self, change: Change) -> None:
        """Refuse what the commits do not refuse by themselves, unless the first of them has landed."""

    def commit_to(self, change: Change, table: str, root: str) -> Commit:
        """Put the staged files into a table, in place of those that go out of it."""
        scopes = self.scopes(change, table)
        if not scopes:
            raise PublicationRefused(
                Problem(
                    f"run '{change.record.run_id}' changes no row of {table}",
                    "a publication changes something",
                    "there is nothing to do: readers have these rows already, and the run's evidence stays on record",
                )
            )
        return self.replace(change, table, root, scopes)

    def replace(self, change: Change, table: str, root: str, scopes: list[tuple[Scope, int | None]]) -> Commit:
        """Commit the publication to a table whose scopes must hold the files of their snapshots."""
        gone = self.gone(change.target, table, {path for chunk in change.chunks for path in chunk.replaced})
        return change.platform.lakehouse.replace(
            table,
            scopes,
            staged=self.files(change, table),
            properties=change.properties(PUBLISH, 1, root),
            replaced=None if gone is None else set(gone),
            token=change.token,
        )

    def accept(self, change: Change) -> Commit:
        """Refuse: what is published of these modes is what main shows, or is never.

        Raises:
            PublicationRefused: always.
        """
        raise PublicationRefused(
            Problem(
                f"run '{change.record.run_id}' is accepted with its publication",
                "what is accepted later was published under a name first",
                f"see `backfill status {change.record.run_id}`",
            )
        )

    # --- what has landed ------------------------------------------------------------------------------------------

    def has_landed(self, change: Change) -> bool:
        """Whether the publication was committed, at least to its first table."""
        return change.own(change.tables[0]) is not None

    def take_announcement_back(self, change: Change) -> None:
        """Take back what was committed beside a change that its first table never got, where there is anything beside it."""

    def is_half_done(self, change: Change, action: str, sequence: int) -> bool:
        """Whether an action has made some of its commits, and not the others yet."""
        first, *others = (self.landed(change, table, action, sequence) for table in change.tables)
        return first is not None and None in others

    def recorded_late(self, change: Change, action: str, sequence: int) -> Commit | None:
        """Return what an action has committed, if it has in every table."""
        commits = [self.landed(change, table, action, sequence) for table in change.tables]
        return None if None in commits else commits[0]

    # --- taking back ----------------------------------------------------------------------------------------------

    def returning(self, change: Change, _action: str, undone: str) -> list[str]:
        """Return the files that undoing the run's last change would show readers again, in any of its tables."""
        coming: list[str] = []
        for table in change.tables:
            last = change.last(table, undone)
            if last is not None and last.parent_snapshot_id is not None:
                lakehouse, scopes = change.platform.lakehouse, [scope for scope, _ in self.scopes(change, table)]
                present = set(lakehouse.files_in(table, last.snapshot_id, scopes))
                earlier = lakehouse.files_in(table, last.parent_snapshot_id, scopes)
                coming += [path for path in earlier if path not in present]
        return coming

    def has_undone(self, change: Change, action: str, sequence: int) -> bool:
        """Whether an undoing of the run was committed, in any of its tables."""
        return any(self.landed(change, table, action, sequence) is not None for table in change.tables)

    def undo(self, change: Change, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Undo the run's last change (`undone`) as a new one (`action`), or find that it was undone: one commit a table."""
        if not self.has_undone(change, action, sequence):
            self.require_undoable(change, action, undone)
        commits: list[Commit] = []
        for table in change.tables:
            if commits:
                faults.reach("undoing.halfway")
            commits.append(self.undo_in(change, table, action, sequence, undone, root))
        return commits[0]

    def require_undoable(self, change: Change, action: str, undone: str) -> None:
        """Refuse what the commits of an undoing do not refuse by themselves, before the first of them changes anything."""

    def undo_in(self, change: Change, table: str, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Undo the run's last change in a table, or find that it was undone there."""
        landed = self.landed(change, table, action, sequence)
        if landed is not None:
            return landed
        last = self.require_in_history(change, table, undone)
        return self.restore(change, table, action, sequence, undone, root, last)

    def restore(
        self, change: Change, table: str, action: str, sequence: int, undone: str, root: str, last: Snapshot
    ) -> Commit:
        """Put back the files that a table had before the snapshot of the run's last change."""
        self.require_before(change, table, undone, last)
        return change.platform.lakehouse.restore(
            table,
            [scope for scope, _ in self.scopes(change, table)],
            from_snapshot_id=last.snapshot_id,
            to_snapshot_id=last.parent_snapshot_id,
            properties=change.properties(action, sequence, root),
            token=change.token,
        )

    def require_in_history(self, change: Change, table: str, undone: str) -> Snapshot:
        """Return the snapshot of the run's last change of a table.

        Raises:
            PublicationRefused: if the table's history does not show it.
        """
        last = change.last(table, undone)
        if last is not None:
            self.require_last_on_record(change, table, undone, last)
            return last
        raise PublicationRefused(
            Problem(
                f"the {undone} of '{change.record.run_id}' is not in the history of {table}",
                "what is undone is what the table's history shows",
                "`backfill doctor` says whether a collection has removed it by policy, or somebody moved the table; "
                "restate the scope with a new run",
            )
        )

    def require_last_on_record(self, change: Change, table: str, undone: str, last: Snapshot) -> None:
        """Refuse to undo a snapshot that says it is the run's last change, and is not the one on record.

        Raises:
            PublicationRefused: naming both.
        """
        recorded = change.committed[-1].snapshot_id if change.committed and table == change.tables[0] else None
        if recorded in {None, last.snapshot_id}:
            return
        raise PublicationRefused(
            Problem(
                f"snapshot {last.snapshot_id} of {table} says that it is the {undone} of '{change.record.run_id}', which the "
                f"ledger has as {recorded}: somebody else wrote it",
                "what is undone is what was committed, and rows of others do not go with it",
                "`backfill verify` names what was written; take that back, or restate the scope with a new run",
            )
        )

    def require_before(self, change: Change, table: str, undone: str, last: Snapshot) -> None:
        """Refuse to undo what an expiry has cut off: to "restore" nothing would empty the scope.

        Raises:
            PublicationRefused: if the snapshot before the run's last change is gone.
        """
        plans = [change.plan, *change.plans.values()]
        had_base = any(self.base_of(change, table, plan) is not None for plan in plans)
        if last.parent_snapshot_id is None and (undone != PUBLISH or had_base):
            raise PublicationRefused(
                Problem(
                    f"the snapshot before the {undone} of '{change.record.run_id}' has expired from {table}",
                    "what is undone gives way to the files of the snapshot before it",
                    "restate the scope with a new run",
                )
            )
