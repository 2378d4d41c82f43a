"""How each publish mode changes its tables, and how the change is taken back: commits only.

Put here what is committed where. Whether it may be is `publisher`'s; how a commit is made is the lakehouse's. Every
commit can be recognised afterwards by the run, the action and its number in the snapshot's summary, so that nothing is
done twice after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.table.snapshots import Snapshot

from backfill_assets import faults
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.staging.derivation import chunk_scopes, publishes_to
from manifests.errors import Problem, PublicationRefused
from manifests.lifecycle import ACCEPT, PUBLISH, REINSTATE, ROLLBACK, WITHDRAW, undone_by
from manifests.model import ON_BRANCH, Acceptance, Corrections
from manifests.planner import Plan, PlannedChunk, StagedFile
from resources.lakehouse.facade import (
    ACTION_PROPERTY,
    EVIDENCE_PROPERTY,
    PLAN_PROPERTY,
    RUN_PROPERTY,
    SEQUENCE_PROPERTY,
    VERSION_PROPERTY,
    Commit,
    Scope,
    ScopeChanged,
)
from resources.lakehouse.lineage import amended_base_tag, base_tag, withdrawn
from resources.ledger.facade import ChunkRecord, PublicationRecord, RunRecord

MAIN = "main"
_OTHERS_SECONDS = 60.0
"""How long the second table of a change is tried while others write into its scope."""


@dataclass(frozen=True)
class Change:
    """One run's change of its tables.

    Attributes:
        platform: the installation.
        target: the run's target.
        record: the run.
        chunks: what is staged.
        plans: the plan of each chunk, by key.
        token: of the lease under which it is committed.
    """

    platform: Platform
    target: TargetTable
    record: RunRecord
    chunks: Sequence[ChunkRecord]
    plans: Mapping[str, Plan]
    token: int | None = None

    # --- what it is about -----------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The approved plan."""
        return self.record.plan

    @property
    def table(self) -> str:
        """The table that the run's files come into."""
        return publishes_to(self.target, self.plan)

    @property
    def tables(self) -> list[str]:
        """Every table that the run changes, in the order in which it does: the target first.

        The corrections beside a replacement only add rows, which can be done at any later time: a change of which the
        target's part was committed can always be completed. Announced first, they would stay for ever where the
        target's part can be made no more.
        """
        beside = self.plan.corrections is Corrections.BESIDE
        return [self.target.name, self.table] if beside else [self.table]

    @property
    def branch(self) -> str:
        """The branch on which a candidate waits."""
        return f"candidate-{self.record.run_id}"

    @property
    def base_tags(self) -> dict[str, int]:
        """The tags that keep the run's bases in the target from expiry: that of its plan, and those of chunks planned anew."""
        approved = self.plan.base_snapshot_id
        bases = {plan.base_snapshot_id for plan in self.plans.values()} - {approved, None}
        anew = {amended_base_tag(self.record.run_id, base): base for base in bases if base is not None}
        return anew if approved is None else {base_tag(self.record.run_id): approved} | anew

    @property
    def moves_main(self) -> bool:
        """Whether readers of the target's main see the publication."""
        return self.plan.corrections is not Corrections.INSTEAD and self.plan.acceptance is not Acceptance.LATER

    @property
    def holds(self) -> list[str]:
        """The chunks of the target that are the run's once it is published."""
        if not self.moves_main:
            return []
        if self.plan.merge is not None:
            return [chunk.chunk for chunk in self.changed]
        return [chunk.key for chunk in self.plan.chunks]

    @property
    def changed(self) -> list[ChunkRecord]:
        """The chunks of a merge that it changes."""
        return [chunk for chunk in self.chunks if chunk.derived or chunk.replaced]

    def scopes(self, table: str) -> list[tuple[Scope, int | None]]:
        """Return what may be touched of a table, each with the snapshot whose files it must still hold."""
        keys = {chunk.chunk for chunk in self.changed} if self.plan.merge is not None else self.plans.keys()
        if self.plan.corrections is not None and table == self.table:
            bases = {key: plan.corrections_base_snapshot_id for key, plan in self.plans.items()}
        else:
            bases = {key: plan.base_snapshot_id for key, plan in self.plans.items()}
        return [
            (Scope(self.target.day_column, stretch[0].start, stretch[-1].end), base)
            for base, stretch in self._stretches(keys, bases)
        ]

    def _stretches(
        self, keys: Iterable[str], bases: Mapping[str, int | None]
    ) -> list[tuple[int | None, list[PlannedChunk]]]:
        """Return chunks that follow one another and have one base."""
        wanted = set(keys)
        stretches: list[tuple[int | None, list[PlannedChunk]]] = []
        for chunk in self.plan.chunks:
            if chunk.key not in wanted:
                continue
            base = bases[chunk.key]
            last = stretches[-1] if stretches else None
            if last and last[0] == base and last[1][-1].end + timedelta(days=1) == chunk.start:
                last[1].append(chunk)
            else:
                stretches.append((base, [chunk]))
        return stretches

    def files(self, table: str) -> list[StagedFile]:
        """Return the staged files that come into a table."""
        derived = self.plan.derives and table == self.table
        return [file for chunk in self.chunks for file in (chunk.derived if derived else chunk.files)]

    def properties(self, action: str, sequence: int, root: str) -> dict[str, str]:
        """Return what the snapshot of an action says of itself."""
        return {
            RUN_PROPERTY: self.record.run_id,
            ACTION_PROPERTY: action,
            SEQUENCE_PROPERTY: str(sequence),
            PLAN_PROPERTY: self.record.plan_hash,
            VERSION_PROPERTY: self.plan.transform_version,
            EVIDENCE_PROPERTY: root,
        }

    # --- publishing -----------------------------------------------------------------------------------------------

    def conflicts(self) -> list[str]:
        """Return the chunks whose files in the target are no longer those of their base.

        Also for corrections instead of a change: they say what to do with rows that the target had in those files.
        """
        if self.plan.publish_mode in ON_BRANCH:
            return []
        lakehouse, scopes = self.platform.lakehouse, chunk_scopes(self.target, self.plan.chunks)
        bases = {plan.base_snapshot_id for plan in self.plans.values()} - {lakehouse.snapshot_of(self.target.name)}
        if not bases:  # nothing at all has changed
            return []
        present = lakehouse.files_by_chunk(self.target.name, None, scopes)
        changed = []
        for base in bases:
            keys = [key for key, plan in self.plans.items() if plan.base_snapshot_id == base]
            own = {key: scopes[key] for key in keys}
            then = lakehouse.files_by_chunk(self.target.name, base, own) if base is not None else dict.fromkeys(own, ())
            changed += [key for key in keys if then[key] != present[key]]
        return sorted(changed)

    def prepare(self, root: str) -> None:
        """Commit the candidate to its branch, where its mode has one; safe to repeat."""
        if self.plan.publish_mode not in ON_BRANCH:
            return
        lakehouse, base = self.platform.lakehouse, self.plan.base_snapshot_id
        if lakehouse.find_publication(self.target.name, self.record.run_id, PUBLISH, self.branch) is not None:
            return
        lakehouse.open_branch(self.target.name, self.branch, base)
        faults.reach("preparing.opened")
        lakehouse.replace(
            self.target.name,
            self.scopes(self.target.name),
            staged=self.files(self.target.name),
            properties=self.properties(PUBLISH, 1, root),
            branch=self.branch,
            token=self.token,
        )

    def publish(self, root: str) -> Commit:
        """Make the change, or find that it was made: one commit a table."""
        tables = dict.fromkeys([self.target.name, *self.tables])  # what is corrected must be there, changed or not
        if len(tables) > 1 and not self.has_landed:  # what can be refused is, before the first of them changes
            for table in tables:
                self.platform.lakehouse.require_unchanged(
                    table, self.scopes(table), replaced=table == self.tables[0] == self.target.name
                )
            for table in self.tables[1:]:
                self.platform.lakehouse.require_as_gated(table, self.files(table))
        commits: list[Commit] = []
        for table in self.tables:
            if commits:
                faults.reach("publishing.halfway")
            commits.append(self._publish_to(table, root))
        return commits[0]

    def _publish_to(self, table: str, root: str) -> Commit:
        if self.plan.publish_mode in ON_BRANCH:
            return self._swap()
        landed = self._landed(table, PUBLISH, 1)
        if landed is not None:
            return landed
        replaced: set[str] | None = None
        if self.plan.merge is not None:
            replaced = {path for chunk in self.chunks for path in chunk.replaced}
        elif self.plan.corrections is not None and table == self.table:
            replaced = set()
        scopes = self.scopes(table)
        if not scopes:
            raise PublicationRefused(
                Problem(
                    f"run '{self.record.run_id}' changes no row of {table}",
                    "a publication changes something",
                    "cancel the run; its evidence stays on record",
                )
            )
        give_up = time.monotonic() + _OTHERS_SECONDS
        while True:
            if (
                table != self.tables[0]
            ):  # the target has changed: what others add to the corrections is no reason any more
                present = self.platform.lakehouse.snapshot_id(table)
                scopes = [(scope, present) for scope, _ in scopes]
            try:
                return self.platform.lakehouse.replace(
                    table,
                    scopes,
                    staged=self.files(table),
                    properties=self.properties(PUBLISH, 1, root),
                    replaced=replaced,
                    token=self.token,
                )
            except ScopeChanged:
                if table == self.tables[0] or time.monotonic() > give_up:
                    raise

    def _swap(self) -> Commit:
        """Point main, and a version's name, at the candidate: one commit of refs alone."""
        lakehouse, name = self.platform.lakehouse, self.target.name
        candidate = lakehouse.find_publication(name, self.record.run_id, PUBLISH, self.branch)
        if candidate is None:
            raise PublicationRefused(
                Problem(
                    f"the candidate of '{self.record.run_id}' is not on branch {self.branch} of {name}",
                    "what is published is what could be looked at",
                    "somebody moved the branch; look at the table's refs",
                )
            )
        snapshot = candidate.snapshot_id
        done = Commit(snapshot, *lakehouse.changed_files(name, candidate))
        version = self.plan.version
        named = version is None or self._named(version) is not None
        if named and (not self.moves_main or self._is_main(PUBLISH)):
            return done
        lakehouse.require_gated(name, self.files(name))
        expected: dict[str, int | None] = {} if version is None else {version: None, withdrawn(version): None}
        if had := [ref for ref in expected if lakehouse.snapshot_of(name, ref) is not None]:
            raise PublicationRefused(
                Problem(
                    f"{name} has a version {version} already: {', '.join(had)}",
                    "the name of a version is given once, also where that one was rolled back since this run was planned",
                    "plan the change again, under a new run id, and give target.version the next name",
                )
            )
        if self.moves_main:
            expected[MAIN] = self.plan.base_snapshot_id
        lakehouse.point(
            name,
            expected=expected,
            branches={MAIN: snapshot} if self.moves_main else {},
            tags={} if version is None else {version: snapshot},
            token=self.token,
        )
        return done

    def _is_main(self, action: str) -> bool:
        return self.platform.lakehouse.find_publication(self.target.name, self.record.run_id, action) is not None

    def accept(self) -> Commit:
        """Make a version that is published under its name what main shows, or find that it is."""
        lakehouse, name = self.platform.lakehouse, self.target.name
        assert self.plan.version is not None
        snapshot = self._named(self.plan.version)
        if snapshot is None:
            raise PublicationRefused(
                Problem(
                    f"{name} has no version {self.plan.version} of '{self.record.run_id}'",
                    "an accepted version exists, under the name of its plan",
                    "publish it first",
                )
            )
        if not self._is_main(PUBLISH):
            lakehouse.require_gated(name, self.files(name))
            expected: dict[str, int | None] = {MAIN: self.plan.base_snapshot_id}
            lakehouse.point(name, expected=expected, branches={MAIN: snapshot}, token=self.token)
        return Commit(snapshot, 0, 0)

    @property
    def has_landed(self) -> bool:
        """Whether the publication was committed, at least to the target: its process may have died before it could say so."""
        lakehouse, run_id = self.platform.lakehouse, self.record.run_id
        if lakehouse.find_publication(self.tables[0], run_id, PUBLISH) is not None:
            return True
        return self.plan.acceptance is Acceptance.LATER and self._named(self.plan.version or "") is not None

    def _named(self, version: str) -> int | None:
        """Return the snapshot that the name of a version names, if it says of itself that it is the run's publication.

        The candidate's branch does not tell: a collection takes it once the run is over, and the version keeps its name.
        """
        lakehouse, name = self.platform.lakehouse, self.target.name
        published = lakehouse.find_publication(name, self.record.run_id, PUBLISH, version)
        named = lakehouse.snapshot_of(name, version)
        return named if published is not None and published.snapshot_id == named else None

    def _names(self, action: str) -> tuple[str, str]:
        """Return the name that the run's version has before a rollback or reinstatement, and the one that it has after it."""
        version = self.plan.version or ""
        return (version, withdrawn(version)) if action == ROLLBACK else (withdrawn(version), version)

    def recorded_late(self, action: str, sequence: int) -> Commit | None:
        """Return what an action has committed, if it has in every table: for one that died before it could say so."""
        if action == ACCEPT:
            shown = self._landed(self.target.name, PUBLISH, 1)
            return None if shown is None else Commit(shown.snapshot_id, 0, 0)
        if self._is_by_name(action):
            named = self._named(self._names(action)[1])
            return None if named is None else Commit(named, 0, 0)
        found = [self._landed(table, action, sequence) for table in self.tables]
        return None if None in found else found[0]

    def _is_by_name(self, action: str) -> bool:
        """Whether an action changes the name of a version alone: what main shows, or does not show, is so already.

        So it is as long as the version is not accepted. One that is accepted is taken back from main, but where an earlier
        version of this project has taken it back by name alone: to bring it back its name is all that is missing.
        """
        if self.plan.acceptance is not Acceptance.LATER:
            return False
        done = self._done
        if self._is_main(PUBLISH):
            return action == REINSTATE and bool(done) and undone_by([one.change for one in done]) != ROLLBACK
        return not any(one.action == ACCEPT for one in done)

    @property
    def _done(self) -> list[PublicationRecord]:
        """What the ledger says that the run has committed, oldest first."""
        entries = self.platform.ledger.publications(self.record.run_id)
        return [one for one in entries if one.has_landed]

    def is_half_done(self, action: str, sequence: int) -> bool:
        """Whether an action was committed to the target, and not yet to the corrections beside it or a version's name."""
        if action in {ROLLBACK, REINSTATE} and self.plan.version is not None:
            old, new = self._names(action)
            landed = self._landed(self.target.name, action, sequence) is not None
            return landed and self._named(old) is not None and not self._is_taken(new)
        if len(self.tables) == 1 or action == ACCEPT:
            return False
        first, *others = (self._landed(table, action, sequence) for table in self.tables)
        return first is not None and None in others

    def take_announcement_back(self) -> None:
        """Take back corrections of a change that the target never got; without them, change nothing.

        Earlier versions of this project committed the corrections first: a process that ended in between has left them.
        """
        if len(self.tables) == 1 or self.has_landed or self._landed(self.table, PUBLISH, 1) is None:
            return
        lakehouse, present = self.platform.lakehouse, self.platform.lakehouse.snapshot_id(self.table)
        lakehouse.replace(
            self.table,
            [(scope, present) for scope, _ in self.scopes(self.table)],
            staged=[],
            properties=self.properties(WITHDRAW, 1, ""),
            replaced={file.path for file in self.files(self.table)},
            token=self.token,
        )

    # --- taking back ----------------------------------------------------------------------------------------------

    def returning(self, action: str, undone: str) -> list[str]:
        """Return the files that undoing the run's last change would show readers again, in any of its tables."""
        coming: list[str] = []
        for table in self.tables:
            last = self.platform.lakehouse.find_publication(table, self.record.run_id, undone)
            if self._is_by_name(action):  # what comes back is the candidate
                coming += [file.path for file in self.files(table)] if action == REINSTATE else []
            elif last is not None and last.parent_snapshot_id is not None:
                lakehouse, scopes = self.platform.lakehouse, [scope for scope, _ in self.scopes(table)]
                present = set(lakehouse.files_in(table, last.snapshot_id, scopes))
                earlier = lakehouse.files_in(table, last.parent_snapshot_id, scopes)
                coming += [path for path in earlier if path not in present]
        return coming

    def has_undone(self, action: str, sequence: int) -> bool:
        """Whether an action of the run was committed, in any of its tables."""
        if self._is_by_name(action):
            return self._named(self._names(action)[1]) is not None
        return any(self._landed(table, action, sequence) is not None for table in self.tables)

    def undo(self, action: str, sequence: int, undone: str, root: str) -> Commit:
        """Undo the run's last change (`undone`) as a new one (`action`), or find that it was undone: one commit a table."""
        if not self.has_undone(action, sequence):
            self._require_undoable(action, undone)
        commits: list[Commit] = []
        for table in self.tables:
            if commits:
                faults.reach("undoing.halfway")
            commits.append(self._undo_in(table, action, sequence, undone, root))
        return commits[0]

    def _require_undoable(self, action: str, undone: str) -> None:
        """Refuse what the commits of an undoing do not refuse by themselves, before the first of them changes anything.

        Of two tables, what is wrong with the second one. And corrections do not come back for rows that others have
        replaced, where the target is not changed with them: they say what to do with the rows of the run's base. The other
        name of a version must be free.
        """
        if self.plan.version is not None:
            self._require_renamable(action)
        if len(self.tables) > 1:
            for table in self.tables:
                last = self.platform.lakehouse.find_publication(table, self.record.run_id, undone)
                if last is None:
                    raise self._not_in_history(table, undone)
                self._require_before(table, undone, last)
                self.platform.lakehouse.require_restorable(
                    table,
                    [scope for scope, _ in self.scopes(table)],
                    from_snapshot_id=last.snapshot_id,
                    to_snapshot_id=last.parent_snapshot_id,
                )
            if action == REINSTATE:  # what comes back beside the target is committed as it was staged
                for table in self.tables[1:]:
                    self.platform.lakehouse.require_gated(table, self.files(table))
        if action == REINSTATE and self.target.name not in self.tables:
            self.platform.lakehouse.require_unchanged(self.target.name, self.scopes(self.target.name))

    def _undo_in(self, table: str, action: str, sequence: int, undone: str, root: str) -> Commit:
        lakehouse, run_id = self.platform.lakehouse, self.record.run_id
        version = self.plan.version
        last = lakehouse.find_publication(table, run_id, undone)
        done = self._landed(table, action, sequence)
        if self._is_by_name(action):
            done = Commit(self._candidate(), 0, 0)
        elif done is None and last is None:
            raise self._not_in_history(table, undone)
        elif done is None and table != self.tables[0]:
            done = self._undo_announcement(table, action, sequence, root, last)
        elif done is None and last is not None:
            self._require_before(table, undone, last)
            done = lakehouse.restore(
                table,
                [scope for scope, _ in self.scopes(table)],
                from_snapshot_id=last.snapshot_id,
                to_snapshot_id=last.parent_snapshot_id,
                properties=self.properties(action, sequence, root),
                token=self.token,
            )
        assert done is not None
        if version is not None:
            faults.reach("undoing.halfway")
            self._rename_version(*self._names(action))
        return done

    def _undo_announcement(self, table: str, action: str, sequence: int, root: str, last: Snapshot | None) -> Commit:
        """Take the corrections of a change away, or bring them back, whose target was changed already.

        Nothing but the run's own files comes and goes: what others have added meanwhile is no reason to leave it half done.
        """
        assert last is not None
        own = self.files(table)
        return self.platform.lakehouse.exchange(
            table,
            [scope for scope, _ in self.scopes(table)],
            going={file.path for file in own} if action == ROLLBACK else set(),
            coming=() if action == ROLLBACK else own,
            at_snapshot_id=last.parent_snapshot_id,
            properties=self.properties(action, sequence, root),
            token=self.token,
        )

    def _not_in_history(self, table: str, undone: str) -> PublicationRefused:
        return PublicationRefused(
            Problem(
                f"the {undone} of '{self.record.run_id}' is not in the history of {table}",
                "what is undone is what the table's history shows",
                "`backfill doctor` says whether a collection has removed it by policy, or somebody moved the table; "
                "restate the scope with a new run",
            )
        )

    def _require_before(self, table: str, undone: str, last: Snapshot) -> None:
        """Refuse to undo what an expiry has cut off: to "restore" nothing would empty the scope."""
        if last.parent_snapshot_id is None and (undone != PUBLISH or self._had_base(table)):
            raise PublicationRefused(
                Problem(
                    f"the snapshot before the {undone} of '{self.record.run_id}' has expired from {table}",
                    "what is undone gives way to the files of the snapshot before it",
                    "restate the scope with a new run",
                )
            )

    def _candidate(self) -> int:
        """Return the snapshot of a version, under either of its names.

        Raises:
            PublicationRefused: if neither of them names it.
        """
        version = self.plan.version or ""
        for name in (version, withdrawn(version)):
            if (named := self._named(name)) is not None:
                return named
        raise PublicationRefused(
            Problem(
                f"neither {version} nor {withdrawn(version)} of {self.target.name} names the snapshot of "
                f"'{self.record.run_id}'",
                "a version that main does not show is taken back, and brought back, by its name",
                "somebody moved or removed it; inspect the table's refs, or restate the scope with a new run",
            )
        )

    def _is_taken(self, name: str) -> bool:
        """Whether a name is that of another version."""
        return self.platform.lakehouse.snapshot_of(self.target.name, name) is not None and self._named(name) is None

    def _require_renamable(self, action: str) -> None:
        """Refuse to take a version back, or to bring it back, under a name that another one has.

        Raises:
            PublicationRefused: naming it; or if the version is to be known by its name, and has none.
        """
        old, new = self._names(action)
        if self._is_by_name(action):
            self._candidate()
        if self._named(old) is not None and self._is_taken(new):
            raise PublicationRefused(
                Problem(
                    f"{new} is the name of another version of {self.target.name} than that of '{self.record.run_id}'",
                    "a version that was rolled back is named withdrawn-<version>, and a reinstated one as it was published",
                    "restate the scope with a new run, and the next name for its version",
                )
            )

    def _had_base(self, table: str) -> bool:
        """Whether a table had a snapshot when the run, or any chunk of it, was planned."""
        plans = [self.plan, *self.plans.values()]
        if self.plan.corrections is not None and table == self.table:
            return any(plan.corrections_base_snapshot_id is not None for plan in plans)
        return any(plan.base_snapshot_id is not None for plan in plans)

    def _rename_version(self, old: str, new: str) -> None:
        """Give a version another name: a withdrawn one stays readable, and its name is not used again.

        Where that name is another version's by now, what main shows has changed already, and is put on record without it:
        else nobody could change the table any more.
        """
        snapshot = self._named(old)
        if snapshot is not None and not self._is_taken(new):
            expected: dict[str, int | None] = {old: snapshot, new: None}
            self.platform.lakehouse.point(
                self.target.name, expected=expected, tags={new: snapshot}, removed=[old], token=self.token
            )

    def _landed(self, table: str, action: str, sequence: int) -> Commit | None:
        lakehouse = self.platform.lakehouse
        found = lakehouse.find_publication(table, self.record.run_id, action, sequence=sequence)
        if found is not None and action == PUBLISH and table != self.tables[0]:
            gone = lakehouse.find_publication(table, self.record.run_id, WITHDRAW)
            if gone is not None and (gone.sequence_number or 0) > (found.sequence_number or 0):
                return None
        return None if found is None else Commit(found.snapshot_id, *lakehouse.changed_files(table, found))
