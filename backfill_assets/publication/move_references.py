"""The modes whose candidate waits on a branch, for anybody to query: publication moves references, in one commit of them.

Put here SHADOW_SWAP and VERSIONED, and how a version is named, accepted, withdrawn and named again. A commit of references
has no snapshot of its own: what it did is read from what main and the names of versions show.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from pyiceberg.table.snapshots import Snapshot

from backfill_assets import faults
from backfill_assets.declarations.target import TargetTable
from backfill_assets.publication.change import MAIN, Change, Options, Strategies, branch_of
from backfill_assets.publication.table_by_table import TableByTable
from manifests.errors import Problem, PublicationRefused
from manifests.lifecycle import ACCEPT, PREPARE, PUBLISH, REINSTATE, ROLLBACK, undone_by
from manifests.model import Acceptance, PublishMode
from manifests.plan import Plan
from manifests.stages import PrepareCandidate, TableCommit
from resources.lakehouse.facade import Commit
from resources.lakehouse.lineage import withdrawn


class SwapMain(TableByTable):
    """Main is pointed to the candidate. Taken back, its files give way to those before it, as a new snapshot."""

    waits_on_branch = True

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits: references alone."""
        return (TableCommit(target.name, f"points main of {target.name} at the candidate"),)

    def candidate(self, target: TargetTable, run_id: str) -> PrepareCandidate | None:
        """Return what is committed to the candidate's branch."""
        (commit,) = super().commits(target)
        return PrepareCandidate(branch_of(run_id), commit)

    def days(self, plan: Plan, action: str) -> tuple[date, date]:
        """Return the days that an action's commits may change: all of them where a reference is moved."""
        return super().days(plan, action) if action == PREPARE else (date.min, date.max)

    def conflicts(self, _change: Change) -> list[str]:
        """Return nothing: whether main is still what the candidate was made on is a requirement of the commit itself."""
        return []

    def prepare(self, change: Change, root: str) -> None:
        """Commit the candidate to its branch; safe to repeat."""
        lakehouse, name = change.platform.lakehouse, change.target.name
        if change.last(name, PUBLISH, change.branch) is not None:
            return
        lakehouse.open_branch(name, change.branch, change.plan.base_snapshot_id)
        faults.reach("preparing.opened")
        lakehouse.replace(
            name,
            self.scopes(change, name),
            staged=self.files(change, name),
            properties=change.properties(PUBLISH, 1, root),
            branch=change.branch,
            token=change.token,
        )

    def publish(self, change: Change, _root: str) -> Commit:
        """Point references at the candidate, or find that they are: one commit of references alone."""
        lakehouse, name = change.platform.lakehouse, change.target.name
        if (shown := self.shown(change)) is not None:
            return Commit(shown.snapshot_id, *lakehouse.changed_files(name, shown))
        candidate = change.last(name, PUBLISH, change.branch)
        if candidate is None:
            raise PublicationRefused(
                Problem(
                    f"the candidate of '{change.record.run_id}' is not on branch {change.branch} of {name}",
                    "what is published is what could be looked at",
                    "somebody moved the branch; look at the table's refs",
                )
            )
        self.require_own(change, candidate.snapshot_id)
        lakehouse.point(
            name,
            expected=self.expected(change),
            branches={MAIN: candidate.snapshot_id} if self.shows_main else {},
            tags=dict.fromkeys(self.names, candidate.snapshot_id),
            token=change.token,
        )
        return Commit(candidate.snapshot_id, *lakehouse.changed_files(name, candidate))

    def require_own(self, change: Change, snapshot_id: int) -> None:
        """Refuse a candidate that is not the run's staged files in place of those of its days, on its base, and nothing else.

        What a snapshot says of itself anybody can write, and the branch is open to every program that may write the table.

        Raises:
            PublicationRefused: naming the files that came and went besides.
        """
        lakehouse, name, base = change.platform.lakehouse, change.target.name, change.plan.base_snapshot_id
        replaced = self.replaced(change, name) or frozenset()
        others = lakehouse.unlike(name, snapshot_id, base, replaced, self.files(change, name))
        if lakehouse.parent_of(name, snapshot_id) == base and not others:
            return
        raise PublicationRefused(
            Problem(
                f"snapshot {snapshot_id} of {name}, the candidate of '{change.record.run_id}', is not what was gated: "
                + (
                    f"{len(others)} file(s) came or went besides, or are listed otherwise, the first is {others[0]}"
                    if others
                    else "others were made before it"
                ),
                "what is published is the run's staged files, in place of those of its days at its base",
                f"somebody has written to the branch {change.branch}: find out who, and restate the scope with a new run",
            )
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the candidate is given."""
        return ()

    def shown(self, change: Change) -> Snapshot | None:
        """Return the run's own candidate, if every reference that is to name it does."""
        return change.own(change.target.name)

    def expected(self, change: Change) -> dict[str, int | None]:
        """Return the snapshot that each reference must name for the candidate to be published; None: there is none."""
        return {MAIN: change.plan.base_snapshot_id}


@dataclass(frozen=True)
class NameVersion(SwapMain):
    """Main is pointed to the candidate, and the candidate gets the name of a version, which stays beside earlier ones.

    Taken back, it stays readable under the name withdrawn-<version>.

    Attributes:
        version: the version's name.
    """

    version: str

    @classmethod
    def of(cls, options: Options) -> NameVersion:
        """Return the strategy of a plan with these options."""
        kind = NameVersionFirst if options.acceptance == Acceptance.LATER else NameVersion
        return kind(options.version or "")

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits: references alone."""
        return (TableCommit(target.name, f"names the candidate {self.version} and points main of {target.name} at it"),)

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the candidate is given."""
        return (self.version,)

    def shown(self, change: Change) -> Snapshot | None:
        """Return the run's own candidate, if every reference that is to name it does."""
        own = super().shown(change)
        return own if own is not None and own.snapshot_id == self.named(change, self.version) else None

    def expected(self, change: Change) -> dict[str, int | None]:
        """Return the snapshot that each reference must name for the candidate to be published.

        Raises:
            PublicationRefused: if the version's name is given already.
        """
        return self.expected_names(change) | super().expected(change)

    def expected_names(self, change: Change) -> dict[str, int | None]:
        """Return the names that must be free.

        Raises:
            PublicationRefused: if one of them is given already.
        """
        lakehouse, name = change.platform.lakehouse, change.target.name
        expected: dict[str, int | None] = {self.version: None, withdrawn(self.version): None}
        if had := [ref for ref in expected if lakehouse.snapshot_of(name, ref) is not None]:
            raise PublicationRefused(
                Problem(
                    f"{name} has a version {self.version} already: {', '.join(had)}",
                    "the name of a version is given once, also where that one was rolled back since this run was planned",
                    "plan the change again, under a new run id, and give target.version the next name",
                )
            )
        return expected

    def named(self, change: Change, version: str) -> int | None:
        """Return the snapshot that the name of a version names, if it says of itself that it is the run's publication.

        The candidate's branch does not tell: a collection takes it once the run is over, and the version keeps its name.
        """
        published = change.last(change.target.name, PUBLISH, version)
        snapshot = change.platform.lakehouse.snapshot_of(change.target.name, version)
        return snapshot if published is not None and published.snapshot_id == snapshot else None

    def renaming(self, action: str) -> tuple[str, str]:
        """Return the name that the version has before a rollback or reinstatement, and the one that it has after it."""
        pair = (self.version, withdrawn(self.version))
        return pair if action == ROLLBACK else pair[::-1]

    def is_taken(self, change: Change, name: str) -> bool:
        """Whether a name is that of another version."""
        named_at_all = change.platform.lakehouse.snapshot_of(change.target.name, name) is not None
        return named_at_all and self.named(change, name) is None

    def is_half_done(self, change: Change, action: str, sequence: int) -> bool:
        """Whether a rollback or reinstatement was committed to main, and the version's name does not say so yet."""
        if action not in {ROLLBACK, REINSTATE}:
            return False
        old, new = self.renaming(action)
        landed = change.landed(change.target.name, action, sequence) is not None
        return landed and self.named(change, old) is not None and not self.is_taken(change, new)

    def require_undoable(self, change: Change, action: str, _undone: str) -> None:
        """Refuse to take a version back, or to bring it back, under a name that another one has.

        Raises:
            PublicationRefused: naming it.
        """
        old, new = self.renaming(action)
        if self.named(change, old) is not None and self.is_taken(change, new):
            raise PublicationRefused(
                Problem(
                    f"{new} is the name of another version of {change.target.name} than that of '{change.record.run_id}'",
                    "a version that was rolled back is named withdrawn-<version>, and a reinstated one as it was published",
                    "restate the scope with a new run, and the next name for its version",
                )
            )

    def undo_in(self, change: Change, table: str, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Undo the run's last change of main, and give the version its other name."""
        done = super().undo_in(change, table, action, sequence, undone, root)
        return self.renamed(change, action, done)

    def renamed(self, change: Change, action: str, done: Commit) -> Commit:
        """Give the version its other name: a withdrawn one stays readable, and its name is not used again.

        Where that name is another version's by now, what main shows has changed already, and is put on record without it:
        else nobody could change the table any more.
        """
        faults.reach("undoing.halfway")
        old, new = self.renaming(action)
        snapshot = self.named(change, old)
        if snapshot is not None and not self.is_taken(change, new):
            expected: dict[str, int | None] = {old: snapshot, new: None}
            try:
                change.platform.lakehouse.point(
                    change.target.name, expected=expected, tags={new: snapshot}, removed=[old], token=change.token
                )
            except PublicationRefused:  # another holder of some of the run's days may have completed it just now
                if self.named(change, old) is not None or self.named(change, new) != snapshot:
                    raise
        return done


@dataclass(frozen=True)
class NameVersionFirst(NameVersion):
    """The candidate gets the name of a version alone; main is pointed to it by an acceptance, or never."""

    shows_main = False
    accepted_later = True

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits: the version's name alone."""
        what = (
            f"names the candidate {self.version} in {target.name}, and leaves main until somebody accepts the version"
        )
        return (TableCommit(target.name, what),)

    def holds(self, _change: Change) -> list[str]:
        """Return nothing: what main shows is another run's until the version is accepted."""
        return []

    def shown(self, change: Change) -> Snapshot | None:
        """Return the run's own candidate, if the name of the version names it."""
        own = change.own(change.target.name, self.version)
        return own if own is not None and own.snapshot_id == self.named(change, self.version) else None

    def expected(self, change: Change) -> dict[str, int | None]:
        """Return the names that must be free; main is not looked at."""
        return self.expected_names(change)

    def accept(self, change: Change) -> Commit:
        """Make a version that is published under its name what main shows, or find that it is."""
        lakehouse, name = change.platform.lakehouse, change.target.name
        snapshot = self.named(change, self.version)
        if snapshot is None:
            raise PublicationRefused(
                Problem(
                    f"{name} has no version {self.version} of '{change.record.run_id}'",
                    "an accepted version exists, under the name of its plan",
                    "publish it first",
                )
            )
        self.require_on_record(change, snapshot)
        if not self.is_main(change):
            self.require_own(change, snapshot)
            expected: dict[str, int | None] = {MAIN: change.plan.base_snapshot_id}
            lakehouse.point(name, expected=expected, branches={MAIN: snapshot}, token=change.token)
        return Commit(snapshot, 0, 0)

    def require_on_record(self, change: Change, snapshot: int) -> None:
        """Refuse a version whose name was moved since the ledger knows it.

        Raises:
            PublicationRefused: naming both snapshots.
        """
        published = next((entry.snapshot_id for entry in change.committed if entry.action == PUBLISH), snapshot)
        if snapshot != published:
            raise PublicationRefused(
                Problem(
                    f"{self.version} of {change.target.name} names snapshot {snapshot}, and '{change.record.run_id}' was "
                    f"published as {published}",
                    "the name of a version is given once",
                    "find out who moved it (`backfill verify`), and have it put back",
                )
            )

    def is_main(self, change: Change) -> bool:
        """Whether main was made to show the version, by whomever, and the run has not taken it back from main since."""
        name = change.target.name
        shown = [one for one in (change.own(name), change.shown_by(name, REINSTATE)) if one is not None]
        taken_back = change.shown_by(name, ROLLBACK)
        since = -1 if taken_back is None else taken_back.sequence_number or 0
        return any((one.sequence_number or 0) > since for one in shown)

    def is_by_name(self, change: Change, action: str) -> bool:
        """Whether an undoing changes the name of a version alone: what main shows, or does not show, is so already.

        So it is as long as the version is not accepted, but where another program has made main show it: that is taken back
        from main as well, and brought back by the name alone. One that is accepted is taken back from main, but where an earlier
        version of this project has taken it back by name alone: to bring it back its name is all that is missing.
        """
        done, name = change.committed, change.target.name
        if change.landed(name, action, len(done) + 1) is not None:
            return False  # it has changed main
        if not any(entry.action == ACCEPT for entry in done):
            return action == REINSTATE or not self.is_main(change)
        had_by_name = action == REINSTATE and change.last(name, PUBLISH) is not None
        return had_by_name and undone_by([one.change for one in done]) != ROLLBACK

    def has_landed(self, change: Change) -> bool:
        """Whether the publication was committed: main shows it, or its name names it."""
        return change.own(change.target.name) is not None or self.shown(change) is not None

    def recorded_late(self, change: Change, action: str, sequence: int) -> Commit | None:
        """Return what an action has committed: for one that died before it could say so."""
        if action == ACCEPT:
            shown = change.landed(change.target.name, PUBLISH, 1)
            return None if shown is None or not self.is_main(change) else Commit(shown.snapshot_id, 0, 0)
        if action == PUBLISH and (published := self.shown(change)) is not None:
            counts = change.platform.lakehouse.changed_files(change.target.name, published)
            return Commit(published.snapshot_id, *counts)
        if action != PUBLISH and self.is_by_name(change, action):
            named = self.named(change, self.renaming(action)[1])
            return None if named is None else Commit(named, 0, 0)
        return super().recorded_late(change, action, sequence)

    def returning(self, change: Change, action: str, undone: str) -> list[str]:
        """Return the files that undoing the run's last change would show readers again."""
        if self.is_by_name(change, action):  # what comes back is the candidate
            return [file.path for file in self.files(change, change.target.name)] if action == REINSTATE else []
        return super().returning(change, action, undone)

    def has_undone(self, change: Change, action: str, sequence: int) -> bool:
        """Whether an undoing of the run was committed: to main, or to the version's name where that is all."""
        if self.is_by_name(change, action):
            return self.named(change, self.renaming(action)[1]) is not None
        return super().has_undone(change, action, sequence)

    def require_undoable(self, change: Change, action: str, undone: str) -> None:
        """Refuse to take a version back, or to bring it back, that has no name, or under a name that another one has."""
        if self.is_by_name(change, action):
            self.require_named(change)
        super().require_undoable(change, action, undone)

    def undo_in(self, change: Change, table: str, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Undo the run's last change of main, where it has changed that, and give the version its other name."""
        if self.is_by_name(change, action):
            return self.renamed(change, action, Commit(self.require_named(change), 0, 0))
        return super().undo_in(change, table, action, sequence, undone, root)

    def require_named(self, change: Change) -> int:
        """Return the snapshot of the version, under either of its names.

        Raises:
            PublicationRefused: if neither of them names it.
        """
        for name in (self.version, withdrawn(self.version)):
            if (named := self.named(change, name)) is not None:
                self.require_on_record(change, named)
                return named
        raise PublicationRefused(
            Problem(
                f"neither {self.version} nor {withdrawn(self.version)} of {change.target.name} names the snapshot of "
                f"'{change.record.run_id}'",
                "a version that main does not show is taken back, and brought back, by its name",
                "somebody moved or removed it; inspect the table's refs, or restate the scope with a new run",
            )
        )


STRATEGIES: Strategies = {
    PublishMode.SHADOW_SWAP: SwapMain.of,
    PublishMode.VERSIONED: NameVersion.of,
}
