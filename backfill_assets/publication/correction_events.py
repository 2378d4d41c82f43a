"""The mode that says what is wrong with published rows, in a table of corrections: instead of a change, or beside it.

Put here CORRECTION_EVENTS: one commit to the corrections table, or one to the target and then one to the corrections.
Corrections only come and go as the run's own files; they never replace those of another run.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial

from backfill_assets.declarations.target import TargetTable
from backfill_assets.planning.old_data import PUBLISHING, require_nobody_erased
from backfill_assets.publication.change import Change, Options, Strategies
from backfill_assets.publication.table_by_table import TableByTable
from manifests.errors import EnvironmentRefused, Problem, PublicationRefused
from manifests.lifecycle import PUBLISH, REINSTATE, ROLLBACK, WITHDRAW
from manifests.model import Corrections, PublishMode
from manifests.plan import Plan
from manifests.staged_file import StagedFile
from manifests.stages import TableCommit
from resources.lakehouse.facade import Commit

_SHOWN = 10
"""Files that a refusal names."""
_ONCE = "what comes in are the run's own files of corrections, and readers see each correction once"


def _corrections(target: TargetTable) -> str:
    """Return the table that the target's corrections come into."""
    return target.name if target.corrections is None else target.corrections.name


class AppendCorrections(TableByTable):
    """Corrections stand for the change: they are appended to the corrections table, and the target stays as it is."""

    shows_main = False

    @classmethod
    def of(cls, options: Options) -> AppendCorrections:
        """Return the strategy of a plan with these options."""
        return ReplaceAndCorrect() if options.corrections == Corrections.BESIDE else AppendCorrections()

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits: rows of the corrections table, and nothing of the target."""
        table = _corrections(target)
        return (TableCommit(table, f"appends correction events to {table}"),)

    def is_derived(self, target: TargetTable, table: str) -> bool:
        """Whether what comes into a table was derived of the computed files: corrections are."""
        return table == _corrections(target)

    def holds(self, _change: Change) -> list[str]:
        """Return nothing: the target keeps the rows of those that hold its chunks."""
        return []

    def base_of(self, change: Change, table: str, plan: Plan) -> int | None:
        """Return the snapshot of a table that a plan was made on."""
        is_corrections = table == _corrections(change.target)
        return plan.corrections_base_snapshot_id if is_corrections else plan.base_snapshot_id

    def gone(self, target: TargetTable, table: str, _named: Collection[str]) -> Collection[str] | None:
        """Return nothing for the corrections table, which only gets more rows; None for the target: all of its days."""
        return () if table == _corrections(target) else None

    def require_committable(self, change: Change) -> None:
        """Refuse what can be refused before the first commit: what is corrected must be there, changed or not."""
        if change.has_landed:
            return
        corrections = _corrections(change.target)
        own = self.files(change, corrections)
        if _are_written_by_others(change, own):
            _require_not_written_by_others(change, own)
        for table in dict.fromkeys([change.target.name, *change.tables]):
            replaced = table == change.tables[0] == change.target.name
            change.platform.lakehouse.require_unchanged(table, self.scopes(change, table), replaced=replaced)

    def require_undoable(self, change: Change, action: str, _undone: str) -> None:
        """Refuse to bring corrections back for rows that others have replaced: they are about the rows of the run's base."""
        if action == REINSTATE:
            target = change.target.name
            change.platform.lakehouse.require_unchanged(target, self.scopes(change, target))


class ReplaceAndCorrect(AppendCorrections):
    """The target's files are replaced, and corrections beside them say what was wrong: two tables, a commit each.

    The target is first. Corrections only add rows, which can be done at any later time: a change of which the target's part
    was committed can always be completed. Announced first, they would stay for ever where the target's part can be made no
    more.
    """

    shows_main = True

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits to the target, and then to the corrections beside it."""
        return (*TableByTable.commits(self, target), *super().commits(target))

    def holds(self, change: Change) -> list[str]:
        """Return the chunks of the target that are the run's once it is published."""
        return self.changed(change)

    def landed(self, change: Change, table: str, action: str, sequence: int) -> Commit | None:
        """Return what an action has committed to a table and is there still: corrections may have been taken back alone."""
        beside = table != change.tables[0]
        if action != PUBLISH or not beside:
            return change.landed(table, action, sequence, in_part=beside)
        issued, gone = change.own(table, in_part=True), change.withdrawn(table)
        if issued is None or (gone is not None and (gone.sequence_number or 0) > (issued.sequence_number or 0)):
            return None
        return Commit(issued.snapshot_id, *change.platform.lakehouse.changed_files(table, issued))

    def require_committable(self, change: Change) -> None:
        """Refuse what can be refused before the first commit, also of what the second one brings."""
        if change.has_landed:
            return
        super().require_committable(change)
        for table in change.tables[1:]:
            change.platform.lakehouse.require_as_gated(table, self.files(change, table))

    def commit_to(self, change: Change, table: str, root: str) -> Commit:
        """Put the staged files into a table.

        Once the target has changed, what others add to the corrections is no reason any more to leave them out. Files of them
        that are gone or damaged by then are left to people: nobody could publish into these days before the change is recorded.
        """
        if table == change.tables[0]:
            return super().commit_to(change, table, root)
        return change.platform.lakehouse.exchange(
            table,
            [scope for scope, _ in self.scopes(change, table)],
            going=set(),
            coming=self._coming(change, table, PUBLISHING),
            at_snapshot_id=None,
            properties=change.properties(PUBLISH, 1, root),
            token=change.token,
            landed=partial(self.landed, change, table, PUBLISH, 1),
        )

    def _coming(self, change: Change, table: str, what: str) -> list[StagedFile]:
        """Return the run's own files of corrections that may come into a table; the doctor names the others.

        Not those that are gone or damaged, nor those of somebody who was erased once the target had changed. None where another program has written as many of the run's corrections into files of its own, as one does that
        compacts: readers see each correction once.
        """
        own = self.files(change, table)
        if _are_written_by_others(change, own):
            return []
        usable = change.platform.lakehouse.as_gated(table, own)
        return [file for file in own if file.path in usable and not _holds_erased(change, file, what)]

    def take_announcement_back(self, change: Change) -> None:
        """Take back corrections of a change that the target never got; without them, change nothing.

        Earlier versions of this project committed the corrections first: a process that ended in between has left them.
        """
        table = _corrections(change.target)
        if change.has_landed or self.landed(change, table, PUBLISH, 1) is None:
            return
        change.platform.lakehouse.exchange(
            table,
            [scope for scope, _ in self.scopes(change, table)],
            going={file.path for file in self.files(change, table)},
            coming=(),
            at_snapshot_id=None,
            properties=change.properties(WITHDRAW, 1, ""),
            token=change.token,
        )

    def require_undoable(self, change: Change, action: str, undone: str) -> None:
        """Refuse what is wrong with either table, before the first commit changes anything."""
        lakehouse = change.platform.lakehouse
        if action == REINSTATE:
            _require_not_written_by_others(change, self.files(change, _corrections(change.target)))
        for table in change.tables:
            last = self.require_in_history(change, table, undone)
            self.require_before(change, table, undone, last)
            lakehouse.require_restorable(
                table,
                [scope for scope, _ in self.scopes(change, table)],
                from_snapshot_id=last.snapshot_id,
                to_snapshot_id=last.parent_snapshot_id,
            )
        if action == REINSTATE:  # what comes back beside the target is committed as it was staged
            for table in change.tables[1:]:
                lakehouse.require_gated(table, self.files(change, table))

    def undo_in(self, change: Change, table: str, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Put back the files that the target had before; take the run's own corrections away, or bring them back.

        Of the corrections nothing but the run's own files comes and goes, and what another program has rewritten, expired or
        removed of them is left to people: by then the target has changed, and nobody could publish into these days before it is recorded.
        """
        if table == change.tables[0]:
            return super().undo_in(change, table, action, sequence, undone, root)
        landed, last = self.landed(change, table, action, sequence), change.last(table, undone)
        if landed is not None:
            return landed
        own = self.files(change, table)
        return change.platform.lakehouse.exchange(
            table,
            [scope for scope, _ in self.scopes(change, table)],
            going={file.path for file in own} if action == ROLLBACK else set(),
            coming=() if action == ROLLBACK else self._coming(change, table, f"the {action}"),
            at_snapshot_id=None if last is None else last.parent_snapshot_id,
            properties=change.properties(action, sequence, root),
            token=change.token,
            landed=partial(self.landed, change, table, action, sequence),
        )


def _holds_erased(change: Change, file: StagedFile, what: str) -> bool:
    """Return whether a file has a subject who is erased by today."""
    try:
        require_nobody_erased(change.run, [file.path], what)
    except PublicationRefused:
        return True
    return False


def _written_by_others(change: Change, own: Collection[StagedFile]) -> tuple[int, list[str]]:
    """Return how many of a run's corrections readers get from other files than its own, and the files that they may be in.

    Raises:
        EnvironmentRefused: if that cannot be told, as a file that may hold them cannot be read.
    """
    table, run_id = _corrections(change.target), change.record.run_id
    rows, files = change.platform.lakehouse.rows_of_run(table, run_id)
    if rows is None:
        raise EnvironmentRefused(
            Problem(
                f"whether corrections of '{run_id}' are in {table} cannot be told: a file that may hold them cannot be read: {_named(files)}",
                _ONCE,
                "nothing has changed; `backfill doctor` says which file is gone; give the command again when it can be read",
            )
        )
    return rows - sum(file.rows for file in own if file.path in files), files


def _are_written_by_others(change: Change, own: Collection[StagedFile]) -> bool:
    """Whether readers get as many of a run's corrections from others' files as are in those of its own that they do not get.

    Raises:
        EnvironmentRefused: if that cannot be told.
    """
    rows, files = _written_by_others(change, own)
    return 0 < sum(file.rows for file in own if file.path not in files) <= rows


def _require_not_written_by_others(change: Change, own: Collection[StagedFile]) -> None:
    """Refuse to bring in corrections of which rows are there: another program has written them into files of its own.

    They come as the run's own files, and readers would see such rows twice.

    Raises:
        PublicationRefused: naming the files, and saying how many rows they hold, or that this cannot be told.
    """
    try:
        rows, files = _written_by_others(change, own)
    except EnvironmentRefused as refusal:
        raise PublicationRefused(refusal.problems) from refusal
    if rows > 0:
        table, run_id = _corrections(change.target), change.record.run_id
        what = f"{rows:,} correction(s) of '{run_id}' are in {table}: another program has written them into files of its own"
        way_out = f"have the rows whose run_id is {run_id} taken out of {table}, and restate the scope with a new run"
        raise PublicationRefused(Problem(f"{what}: {_named(files)}", _ONCE, way_out))


def _named(files: Sequence[str]) -> str:
    return ", ".join(files[:_SHOWN]) + (f" … and {len(files) - _SHOWN} more" if len(files) > _SHOWN else "")


STRATEGIES: Strategies = {
    PublishMode.CORRECTION_EVENTS: AppendCorrections.of,
}
