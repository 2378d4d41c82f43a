"""A run's change of its tables, and what a publish mode's strategy has to say about such a change.

Put here what every mode has in common: the run, its plans, what is staged, the marks by which its commits are recognised.
Every commit says in its snapshot's summary which run, action and number of action it is of, so that nothing is done twice
after a crash. What is committed where is the strategies', one module a family of modes, which ends with the modes that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Protocol

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Snapshot

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_then import held_then
from backfill_assets.planning.scopes import chunk_scopes, stretch_scopes
from backfill_assets.run_context import RunContext
from manifests.lifecycle import PUBLISH, REINSTATE, ROLLBACK, WITHDRAW
from manifests.model import PublishMode
from manifests.plan import Plan, PlannedChunk
from manifests.staged_file import StagedFile
from manifests.stages import PrepareCandidate, TableCommit
from resources.lakehouse.exchanges import Exchange
from resources.lakehouse.facade import (
    ACTION_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SEQUENCE_PROPERTY,
    VERSION_PROPERTY,
    Commit,
    Scope,
)
from resources.lakehouse.lineage import amended_base_tag, base_tag
from resources.lakehouse.summaries import CLOCK_PROPERTY, MODE_PROPERTY, SOURCE_PROPERTY, numbers_said
from resources.ledger.facade import ChunkRecord, PublicationRecord, RunRecord

MAIN = "main"
"""The branch that readers of a table get."""


def branch_of(run_id: str) -> str:
    """Return the name of the branch on which the candidate of a run waits."""
    return f"candidate-{run_id}"


@dataclass(frozen=True)
class Options:
    """What a plan says of its publish mode beside the mode's name; a damaged ledger may say anything.

    Attributes:
        version: the name of the version that is published.
        acceptance: when that version becomes what main shows; see `manifests.model.Acceptance`.
        corrections: whether correction events stand for the change or beside it; see `manifests.model.Corrections`.
        compacts: whether rows are written anew as they are.
    """

    version: str | None = None
    acceptance: str | None = None
    corrections: str | None = None
    compacts: bool = False


class PublishStrategy(Protocol):
    """How a publish mode changes its tables, and takes the change back.

    A strategy decides nothing: what must precede an action, and what is recorded of it, is said by the action (`publisher`,
    `undoing`, `accepting`). Everything that commits does so under the lease whose token the change carries, finds what has
    landed before, and is safe to repeat.
    """

    @property
    def first_rows_only(self) -> bool:
        """Whether the mode writes first rows only, and never replaces those of somebody else."""

    @property
    def waits_on_branch(self) -> bool:
        """Whether what is published waits on a branch before, and the publication moves references alone."""

    @property
    def shows_main(self) -> bool:
        """Whether readers of the target's main see the publication."""

    @property
    def accepted_later(self) -> bool:
        """Whether main is made to show what was published by an action of its own."""

    @property
    def leaves_files(self) -> bool:
        """Whether files of the days that it changes may stay in the target."""

    def commits(self, target: TargetTable) -> tuple[TableCommit, ...]:
        """Return what a publication commits to which table, in that order: what its stage says, and what is done."""

    def candidate(self, target: TargetTable, run_id: str) -> PrepareCandidate | None:
        """Return what is committed to a branch before, where the mode does that."""

    def tables(self, target: TargetTable) -> list[str]:
        """Return every table that is committed to, in that order: first the one by which the ledger knows the change."""

    def is_derived(self, target: TargetTable, table: str) -> bool:
        """Whether what comes into a table was derived of the computed files; else these themselves come."""

    @property
    def same_rows(self) -> bool:
        """Whether readers have the rows that they had, so that files which delete some of them come and go with the others."""

    def changes(self, derived: Collection[Any], replaced: Collection[Any]) -> bool:
        """Whether a chunk's days are changed of which these files were derived, and which names these to be replaced."""

    def gone(self, target: TargetTable, table: str, named: Collection[str]) -> Collection[str] | None:
        """Return the files that go out of a table, of a change whose chunks have `named` some; None: all of its days."""

    def days(self, plan: Plan, action: str) -> tuple[date, date]:
        """Return the first and last day of the target that an action's commits may change."""

    def holds(self, change: Change) -> list[str]:
        """Return the chunks of the target that are the run's once it is published."""

    def files(self, change: Change, table: str) -> list[StagedFile]:
        """Return the staged files that come into a table."""

    def base_of(self, change: Change, table: str, plan: Plan) -> int | None:
        """Return the snapshot of a table that a plan was made on; None where it had none."""

    def replaced(self, change: Change, table: str) -> AbstractSet[str] | None:
        """Return the files that go out of a table for those; None if a base that says which has expired."""

    def conflicts(self, change: Change) -> list[str]:
        """Return the chunks whose files in the target are no longer those of their base."""

    def prepare(self, change: Change, root: str) -> None:
        """Commit what waits on a branch, where it does."""

    def publish(self, change: Change, root: str) -> Commit:
        """Make the change, or find that it was made; return the commit by which the ledger knows it.

        Raises:
            PublicationRefused: before anything was committed.
        """

    def accept(self, change: Change) -> Commit:
        """Make what was published be what main shows, or find that it is; where that takes an action of its own."""

    def has_landed(self, change: Change) -> bool:
        """Whether the publication was committed, at least to its first table: its process may have died before it could say so."""

    def take_announcement_back(self, change: Change) -> None:
        """Take back what was committed beside a change that its first table never got; without that, change nothing."""

    def is_half_done(self, change: Change, action: str, sequence: int) -> bool:
        """Whether an action has made some of its commits, and not the others yet."""

    def recorded_late(self, change: Change, action: str, sequence: int) -> Commit | None:
        """Return what an action has committed, if all of it has landed: for one that died before it could say so."""

    def returning(self, change: Change, action: str, undone: str) -> list[str]:
        """Return the files that undoing the run's last change (`undone`) would show readers again, in any of its tables."""

    def has_undone(self, change: Change, action: str, sequence: int) -> bool:
        """Whether an undoing of the run was committed, in any of its tables."""

    def undo(self, change: Change, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Undo the run's last change (`undone`) as a new one (`action`), or find that it was undone.

        Raises:
            PublicationRefused: if it cannot be undone.
        """


Strategies = Mapping[PublishMode, Callable[[Options], PublishStrategy]]
"""What makes the strategy of each mode of a family, of what a plan says of its mode."""


@dataclass(frozen=True)
class Change:
    """One run's change of its tables.

    Attributes:
        platform: the installation.
        target: the run's target.
        record: the run.
        chunks: what is staged.
        plans: the plan of each chunk, by key.
        strategy: how its publish mode changes tables.
        token: of the lease under which it is committed.
    """

    platform: Platform
    target: TargetTable
    record: RunRecord
    chunks: Sequence[ChunkRecord]
    plans: Mapping[str, Plan]
    strategy: PublishStrategy
    token: int | None = None

    @property
    def plan(self) -> Plan:
        """The approved plan."""
        return self.record.plan

    @property
    def run(self) -> RunContext:
        """The run with its approved plan."""
        return RunContext(self.platform, self.target, self.plan)

    @property
    def tables(self) -> list[str]:
        """Every table that the run changes, in the order in which it does."""
        return self.strategy.tables(self.target)

    @property
    def branch(self) -> str:
        """The branch on which a candidate waits."""
        return branch_of(self.record.run_id)

    @property
    def base_tags(self) -> dict[str, int]:
        """The tags that keep the run's bases in the target from expiry: that of its plan, and those of chunks planned anew."""
        approved = self.plan.base_snapshot_id
        bases = {plan.base_snapshot_id for plan in self.plans.values()} - {approved, None}
        anew = {amended_base_tag(self.record.run_id, base): base for base in bases if base is not None}
        return anew if approved is None else {base_tag(self.record.run_id): approved} | anew

    @property
    def expired_bases(self) -> list[int]:
        """The snapshots that chunks were planned on and the target has no more."""
        lakehouse = self.platform.lakehouse
        return [base for base in self.base_tags.values() if not lakehouse.has_snapshot(self.target.name, base)]

    @property
    def has_landed(self) -> bool:
        """Whether the publication was committed, at least to its first table."""
        return self.strategy.has_landed(self)

    def has_begun(self, action: str) -> bool:
        """Whether the ledger has an intent of an action, and not what came of it.

        By it alone what a table shows is taken for the run's own doing: any program can show what waits on a branch.
        """
        tries = [entry for entry in self.platform.ledger.publications(self.record.run_id) if entry.action == action]
        return bool(tries) and tries[-1].is_intent

    @property
    def committed(self) -> list[PublicationRecord]:
        """What the ledger says that the run has committed, oldest first."""
        return self.platform.ledger.landed(self.record.run_id)

    def properties(self, action: str, sequence: int, root: str) -> dict[str, str]:
        """Return what the snapshot of an action says of itself."""
        return {
            RUN_PROPERTY: self.record.run_id,
            ACTION_PROPERTY: action,
            SEQUENCE_PROPERTY: str(sequence),
            PLAN_PROPERTY: self.record.plan_hash,
            VERSION_PROPERTY: self.plan.transform_version,
            MODE_PROPERTY: self.plan.mode.value,
            SOURCE_PROPERTY: str(self.plan.source_snapshot_id),
            CLOCK_PROPERTY: self.plan.run_clock.isoformat(),
            EVIDENCE_PROPERTY: root,
        }

    def last(self, table: str, action: str, ref: str = MAIN) -> Snapshot | None:
        """Return the newest snapshot of an action of the run in the history of what a ref of a table names."""
        return self.platform.lakehouse.find_publication(table, self.record.run_id, action, ref)

    def own(self, table: str, ref: str = MAIN, *, in_part: bool = False) -> Snapshot | None:
        """Return the run's publication in the history of what a ref of a table names: by what it has done, not only says.

        What a snapshot says of itself any program can write that may write to the table. With `in_part` also one that has
        brought some of the run's files alone: the others were gone when it was made.
        """
        return self._found(table, PUBLISH, None, ref, in_part=in_part)

    def withdrawn(self, table: str) -> Snapshot | None:
        """Return the newest snapshot that took files of the run out of a table in which they were announced too early."""
        staged = {file.path for file in self.strategy.files(self, table)}

        def is_own(exchange: Exchange) -> bool:
            gone = {file.file_path for file in exchange.gone}
            return bool(gone) and gone <= staged and not exchange.came

        return self.platform.lakehouse.find_own(table, self.record.run_id, WITHDRAW, is_own)

    def landed(self, table: str, action: str, sequence: int, *, in_part: bool = False) -> Commit | None:
        """Return what an action of a number has committed to a table's main; None if nothing. `in_part` as of `own`."""
        number = None if action == PUBLISH else sequence
        snapshot = self._found(table, action, number, MAIN, in_part=in_part)
        if snapshot is None:
            return None
        return Commit(snapshot.snapshot_id, *self.platform.lakehouse.changed_files(table, snapshot))

    def later(self, number: int) -> tuple[str, Snapshot] | None:
        """Return the newest rollback or reinstatement of the run that its table shows after its `number`th change, and which it is.

        By what it has done, not only says: the ledger is older than the table then.
        """
        table = self.tables[0]
        said = numbers_said(self.platform.lakehouse.table(table), self.record.run_id, {ROLLBACK, REINSTATE})
        for own, action in sorted(said, reverse=True):
            if own > number and (shown := self._found(table, action, own, MAIN, in_part=False)) is not None:
                return action, shown
        return None

    def shown_by(self, table: str, action: str) -> Snapshot | None:
        """Return the newest rollback or reinstatement of the run in a table's main, by what it has done."""
        return self._found(table, action, None, MAIN, in_part=False)

    def _found(self, table: str, action: str, sequence: int | None, ref: str, *, in_part: bool) -> Snapshot | None:
        """Return the newest snapshot of an action that has exchanged the run's files for those that they replace, or back.

        Each once, described as it is, and nothing else. Where a base has expired, only the run's own files tell.
        """
        lakehouse, staged = self.platform.lakehouse, self.strategy.files(self, table)
        bases = {base for plan in self.plans.values() if (base := self.strategy.base_of(self, table, plan)) is not None}
        brings = action != ROLLBACK

        def is_own(exchange: Exchange) -> bool:
            own, others = (exchange.came, exchange.gone) if brings else (exchange.gone, exchange.came)
            if exchange.hidden or not self._are_own(table, exchange, own, brings=brings, in_part=in_part):
                return False
            if (replaced := self.strategy.replaced(self, table)) is None:
                return True
            if sorted(file.file_path for file in others) != sorted(replaced):
                return False
            if brings:
                return lakehouse.is_described(table, exchange, staged)
            return lakehouse.is_listed_at(table, bases | self._replaced_at(table), others)

        return lakehouse.find_own(table, self.record.run_id, action, is_own, ref, sequence)

    def _replaced_at(self, table: str) -> set[int]:
        """Return the snapshots of a table whose files the run's own have replaced: what a rollback brings back is theirs.

        Another program may have listed the files of the base anew before.
        """
        shown = (self.own(table), self.shown_by(table, REINSTATE))
        return {one.parent_snapshot_id for one in shown if one is not None and one.parent_snapshot_id is not None}

    def _are_own(
        self, table: str, exchange: Exchange, files: Sequence[DataFile], *, brings: bool, in_part: bool
    ) -> bool:
        """Whether files that came, or went, are those of the run; with `in_part` those that could come, or were there to go."""
        paths, staged = [file.file_path for file in files], {file.path for file in self.strategy.files(self, table)}
        if len(paths) != len(set(paths)) or not staged.issuperset(paths):
            return False
        rest = staged.difference(paths)
        if not in_part or not rest:
            return not rest
        if exchange.before is None:
            return True  # what was there before it nobody knows any more
        if not brings:
            return rest.isdisjoint(exchange.before)
        left = [file for file in self.strategy.files(self, table) if file.path in rest]
        return self.platform.lakehouse.as_gated(table, left) <= exchange.before

    def scopes(self, keys: Iterable[str], bases: Mapping[str, int | None]) -> list[tuple[Scope, int | None]]:
        """Return chunks as scopes, each stretch without a gap with the snapshot whose files it must still hold."""
        wanted = set(keys)
        by_base: dict[int | None, list[PlannedChunk]] = {}
        for chunk in self.plan.chunks:
            if chunk.key in wanted:
                by_base.setdefault(bases[chunk.key], []).append(chunk)
        found = [
            (replace(scope, same_rows=self.strategy.same_rows), base)
            for base, chunks in by_base.items()
            for scope in stretch_scopes(self.target, chunks)
        ]
        return sorted(found, key=lambda one: (one[0].first, one[0].parts))

    @property
    def chunk_scopes(self) -> dict[str, Scope]:
        """Each planned chunk as a scope, by key."""
        return chunk_scopes(self.target, self.plan.chunks, same_rows=self.strategy.same_rows)


def held_by_others_since(change: Change) -> dict[str, str]:
    """Return the chunks of a run that other runs have taken since its base, and hold, each with its holder.

    Their files may be the same, where neither then nor now there is any. Of a base that has expired nothing is known.
    """
    platform, target = change.platform, change.target.name
    today = platform.ledger.accepted(target, list(change.plans))
    found: dict[str, str] = {}
    for base in {plan.base_snapshot_id for plan in change.plans.values()}:
        keys = [key for key, plan in change.plans.items() if plan.base_snapshot_id == base]
        then = held_then(platform, target, base, keys)
        if then is not None:
            found |= {key: today[key] for key in keys if key in today and then.get(key) != today[key]}
    return found
