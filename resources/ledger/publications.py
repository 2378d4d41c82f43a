"""Publications: what was about to change a target, what landed, and which run each chunk is from since.

Put here the entries of publications, rollbacks, reinstatements and acceptances, and what the ledger makes of one that landed,
in one transaction. What is committed to a table, and when, is the publisher's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from manifests.dry_runs import DryRunLink
from manifests.errors import LeaseLost, Problem
from manifests.lifecycle import ACCEPT, PublicationState, RunState
from manifests.plan import Plan
from resources import actors
from resources.ledger import accepted_versions, instants, policy_in_force, stops, watermarks
from resources.ledger.accepted_versions import AcceptedVersion
from resources.ledger.admissions import require_commit
from resources.ledger.cells import illegible
from resources.ledger.dry_run_links import STANDS, lock_with_dry_run, require_dry_run
from resources.ledger.locks import lock_target, require_lease
from resources.ledger.part import Part, Stored
from resources.ledger.runs import RunRecord, holding_target, move_run, moved, require_state, run_of
from resources.ledger.tables import publications, runs

ABANDONED = PublicationState.ABANDONED
PROCESS_ENDED = "process ended"
"""What the note of something that was left open begins with, once a repair has closed it."""
RECORDED_BY_ANOTHER = "another process has recorded it"
"""The note of an intent whose outcome is on record already."""
BEFORE = {
    "publish": RunState.VALIDATED,
    "rollback": RunState.PUBLISHED,
    "reinstate": RunState.ROLLED_BACK,
    "accept": RunState.PUBLISHED,
}
"""The state of a run from which each action changes its tables."""


@dataclass(frozen=True)
class PublicationRecord(Stored):
    """One entry: an action that was about to change a target, and what has become of it."""

    table: ClassVar[sa.Table] = publications

    id: int
    run_id: str
    action: str
    state: PublicationState
    base_snapshot_id: int | None
    snapshot_id: int | None
    files_added: int
    files_removed: int
    evidence_root: str
    ref: str
    token: int | None
    actor: str
    note: str
    channel: str
    proof: str
    started_at: datetime
    ended_at: datetime | None

    @property
    def has_landed(self) -> bool:
        """Whether it has changed what readers see."""
        return self.state is PublicationState.COMMITTED

    @property
    def is_intent(self) -> bool:
        """Whether nobody has said yet what came of it."""
        return self.state is PublicationState.INTENT

    @property
    def snapshot(self) -> int:
        """The snapshot of one that has landed.

        Raises:
            IllegibleRow: if there is none.
        """
        if self.snapshot_id is None:
            raise illegible(f"ledger publications {self.id}", f"it is {self.state}, and has no snapshot")
        return self.snapshot_id

    @property
    def landed_at(self) -> datetime:
        """When one that has landed was put on record.

        Raises:
            IllegibleRow: if it does not say.
        """
        if self.ended_at is None:
            raise illegible(f"ledger publications {self.id}", f"it is {self.state}, and has no end")
        return self.ended_at

    @property
    def change(self) -> tuple[str, int | None]:
        """Its action, and the snapshot that it has committed."""
        return self.action, self.snapshot_id

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        return cls(**{**row._mapping, "state": PublicationState(row.state)})  # noqa: SLF001 - SQLAlchemy's public name


class Publications(Part):
    """The publications of a ledger's runs."""

    def open_publication(
        self,
        run_id: str,
        action: str,
        base: int | None,
        evidence_root: str,
        actor: str,
        *,
        ref: str = "",
        token: int | None = None,
        unless_stopped: bool = False,
        policy_hash: str = "",
        commits_per_hour: int | None = None,
        dry_run: DryRunLink | None = None,
    ) -> int:
        """Record the intent to change the target under a lease's token, before it is changed; return its id.

        Whoever holds the lease knows that nobody is at the same any more: an earlier intent is abandoned, and what came
        of it is found in the target and recorded under this one.

        Raises:
            LeaseLost: if the lease was taken over: the intent that counts is the new holder's.
            TransitionRefused: if `policy_hash`, against which it was held, is not that of the policy in force by now.
            RunStopped: if somebody has stopped the run, and `unless_stopped` asks for that. A stop that comes later finds
                the intent, and does not end it.
            PublicationDeferred: if the target takes no more than `commits_per_hour`, and has.
            DecisionRefused: if `dry_run`, which the approval rests on, was rejected meanwhile. A rejection that comes later
                finds the intent, and does not end it.
        """
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            if commits_per_hour is not None:  # others of the target would count the same entries
                target = str(connection.execute(sa.select(runs.c.target).where(runs.c.run_id == run_id)).scalar_one())
                lock_target(connection, target)
                require_commit(connection, run_id, target, commits_per_hour)
            if unless_stopped or dry_run is not None:
                lock_with_dry_run(connection, run_id, dry_run)
            if unless_stopped:
                stops.refuse_held(connection, run_id)
            require_dry_run(connection, dry_run, STANDS)
            if token is not None:
                require_lease(connection, token)
                _abandon(connection, run_id, action)
            result = connection.execute(
                publications.insert().values(
                    run_id=run_id,
                    action=action,
                    state=PublicationState.INTENT,
                    base_snapshot_id=base,
                    evidence_root=evidence_root,
                    ref=ref,
                    token=token,
                    actor=actor,
                    **actors.columns(actor),
                    started_at=instants.now(connection),
                )
            )
            assert result.inserted_primary_key is not None
            return int(result.inserted_primary_key[0])

    def close_refused(self, publication: int, note: str) -> None:
        """Record that a publication was refused and changed nothing; one that another process has closed stays as it is."""
        with self.engine.begin() as connection:
            connection.execute(
                publications.update()
                .where(publications.c.id == publication, publications.c.state == PublicationState.INTENT)
                .values(state=PublicationState.REFUSED, note=note, ended_at=instants.now(connection))
            )

    def _before_locking(self, run_id: str) -> tuple[Plan, str]:
        """Return the plan of a run and its hash, for a transaction that keeps nobody waiting while a plan is parsed."""
        with self.engine.connect() as connection:
            record = run_of(connection, run_id)
        return record.plan, record.plan_hash

    def accept(
        self,
        run_id: str,
        publication: int,
        *,
        snapshot_id: int,
        added: int,
        removed: int,
        actor: str,
        keys: Sequence[str] | None = None,
    ) -> None:
        """Record a publication that landed: accepted versions, supersession and state, in one transaction.

        `keys` are the chunks of the target that are the run's from now on; None: all of its plan.

        Raises:
            LeaseLost: if another process has taken the action over and not recorded it, or has gone on from it.
        """
        plan, plan_hash = self._before_locking(run_id)
        with self.engine.begin() as connection:
            record = holding_target(connection, run_id, plan_hash)
            at = instants.after_changes_of(connection, record.target)
            recorded = record.state in {RunState.PUBLISHED, RunState.SUPERSEDED}
            if recorded or not _close_publication(connection, publication, snapshot_id, added, removed, at):
                _close_recorded(connection, record, publication, at, recorded=recorded)
                return
            if keys is None:
                keys = [chunk.key for chunk in plan.chunks]
            before = accepted_versions.take(connection, record.target, keys, run_id, at)
            if len(keys) == len(plan.chunks):  # a run that changes some of the rows completes nothing
                watermarks.advance(connection, plan, at)
            require_state(record, BEFORE[_action_of(connection, publication)], RunState.PUBLISHED)
            move_run(connection, run_id, record.state, RunState.PUBLISHED, actor, f"snapshot {snapshot_id}")
            _supersede(connection, set(before.values()), run_id, actor)

    def undo(self, run_id: str, publication: int, *, snapshot_id: int, added: int, removed: int, actor: str) -> None:
        """Record a rollback that landed: the runs accepted before are accepted again; LeaseLost as of `accept`."""
        plan, plan_hash = self._before_locking(run_id)
        with self.engine.begin() as connection:
            record = holding_target(connection, run_id, plan_hash)
            at = instants.after_changes_of(connection, record.target)
            recorded = record.state is RunState.ROLLED_BACK
            if recorded or not _close_publication(connection, publication, snapshot_id, added, removed, at):
                _close_recorded(connection, record, publication, at, recorded=recorded)
                return
            keys = [chunk.key for chunk in plan.chunks]
            earlier = accepted_versions.held_before(connection, record.target, run_id, publication)
            accepted_versions.end(connection, record.target, keys, run_id, RunState.ROLLED_BACK, at, holder=run_id)
            for chunk, holder in earlier:
                accepted_versions.insert(connection, record.target, [chunk], holder, at)
            watermarks.withdraw(connection, plan, at)
            move_run(connection, run_id, RunState.PUBLISHED, RunState.ROLLED_BACK, actor, f"snapshot {snapshot_id}")
            for holder in sorted({holder for _, holder in earlier}):
                if run_of(connection, holder).state is RunState.SUPERSEDED:
                    move_run(
                        connection,
                        holder,
                        RunState.SUPERSEDED,
                        RunState.PUBLISHED,
                        actor,
                        f"readers have it again: {run_id} was rolled back",
                    )

    def accept_version(self, run_id: str, publication: int, *, snapshot_id: int, actor: str) -> None:
        """Record that a version published under its name is what main shows from now on; LeaseLost as of `accept`."""
        plan, plan_hash = self._before_locking(run_id)
        with self.engine.begin() as connection:
            record = holding_target(connection, run_id, plan_hash)
            at = instants.after_changes_of(connection, record.target)
            recorded = _is_accepted(connection, run_id)
            if recorded or not _close_publication(connection, publication, snapshot_id, 0, 0, at):
                _close_recorded(connection, record, publication, at, recorded=recorded)
                return
            if record.state is not RunState.PUBLISHED:
                raise moved(run_id, RunState.PUBLISHED, record.state)
            keys = [chunk.key for chunk in plan.chunks]
            before = accepted_versions.take(connection, record.target, keys, run_id, at)
            watermarks.advance(connection, plan, at)
            _supersede(connection, set(before.values()), run_id, actor)

    def accepted(self, target: str, keys: Iterable[str] | None = None) -> dict[str, str]:
        """Return the run accepted today for each chunk of a target (of `keys`, if given)."""
        with self.engine.connect() as connection:
            return accepted_versions.holders(connection, target, None if keys is None else list(keys))

    def holdings(self, target: str) -> list[AcceptedVersion]:
        """Return which run has held each chunk of a target, from when to when, oldest first.

        Both instants are those of the publication, rollback and so on that made it so: of those `committed` returns.
        """
        query = sa.select(accepted_versions.TABLE).where(accepted_versions.TABLE.c.target == target)
        return self._stored(AcceptedVersion, query.order_by(accepted_versions.TABLE.c.id))

    def publications(self, run_id: str) -> list[PublicationRecord]:
        """Return the publications and rollbacks of a run, in order."""
        return self._stored(
            PublicationRecord,
            sa.select(publications).where(publications.c.run_id == run_id).order_by(publications.c.id),
        )

    def all_publications(self) -> dict[str, list[PublicationRecord]]:
        """Return the publications and rollbacks of every run that has any, in order."""
        found: dict[str, list[PublicationRecord]] = {}
        for entry in self._stored(PublicationRecord, sa.select(publications).order_by(publications.c.id)):
            found.setdefault(entry.run_id, []).append(entry)
        return found

    def undecided(self) -> set[str]:
        """Return the runs with an entry of which nobody has said yet what came of it."""
        query = sa.select(publications.c.run_id).where(publications.c.state == PublicationState.INTENT)
        with self.engine.connect() as connection:
            return set(connection.execute(query).scalars())

    def landed(self, run_id: str) -> list[PublicationRecord]:
        """Return what a run has committed: its publications, rollbacks and so on that landed, in order."""
        return [entry for entry in self.publications(run_id) if entry.has_landed]

    def committed(self, target: str) -> list[PublicationRecord]:
        """Return the publications, rollbacks and so on of every run of a target that landed, in the order of their records.

        Those of one run come in the order of their entries, even where a ledger was written while its clock was set back.
        """
        of_target = runs.c.run_id == publications.c.run_id
        recorded_at = sa.func.max(publications.c.ended_at).over(
            partition_by=publications.c.run_id, order_by=publications.c.id
        )
        query = (
            sa.select(publications)
            .join(runs, of_target)
            .where(runs.c.target == target, publications.c.state == PublicationState.COMMITTED)
            .order_by(recorded_at, publications.c.id)
        )
        return self._stored(PublicationRecord, query)

    def interrupted_publications(self, target: str) -> list[tuple[int, str, str]]:
        """Return id, run and action of each publication of a target that may have landed and is not on record.

        Of several tries of the same run, the newest.
        """
        query = (
            sa.select(sa.func.max(publications.c.id), publications.c.run_id, publications.c.action)
            .join(runs, runs.c.run_id == publications.c.run_id)
            .where(runs.c.target == target, publications.c.state == PublicationState.INTENT)
            .where(sa.or_(*(sa.and_(publications.c.action == a, runs.c.state == s) for a, s in BEFORE.items())))
            .group_by(publications.c.run_id, publications.c.action)
            .order_by(sa.func.max(publications.c.id))
        )
        with self.engine.connect() as connection:
            return [(row[0], row[1], row[2]) for row in connection.execute(query)]


def _abandon(connection: sa.Connection, run_id: str, action: str) -> None:
    """Close the intents of an action of a run: what came of them is for a later entry to say."""
    is_open = publications.c.state == PublicationState.INTENT
    connection.execute(
        publications.update()
        .where(publications.c.run_id == run_id, publications.c.action == action, is_open)
        .values(
            state=ABANDONED,
            note="it did not say what came of it; a later entry does",
            ended_at=instants.now(connection),
        )
    )


def _supersede(connection: sa.Connection, holders: Iterable[str], by: str, actor: str) -> None:
    """Move the runs that hold no chunk any more since another one has taken theirs.

    What has landed is on record, whatever state a holder is in: earlier versions could give a chunk back to one that
    was rolled back.
    """
    for holder in sorted(holders):
        published = run_of(connection, holder).state is RunState.PUBLISHED
        if published and not accepted_versions.still_holds(connection, holder):
            move_run(connection, holder, RunState.PUBLISHED, RunState.SUPERSEDED, actor, f"by run {by}")


def _action_of(connection: sa.Connection, publication: int) -> str:
    query = sa.select(publications.c.action).where(publications.c.id == publication)
    return str(connection.execute(query).scalar_one())


def _close_publication(
    connection: sa.Connection, publication: int, snapshot_id: int, added: int, removed: int, at: datetime
) -> bool:
    changed = connection.execute(
        publications.update()
        .where(publications.c.id == publication, publications.c.state == PublicationState.INTENT)
        .values(
            state=PublicationState.COMMITTED,
            snapshot_id=snapshot_id,
            files_added=added,
            files_removed=removed,
            ended_at=at,
        )
    )
    return changed.rowcount == 1


def _is_accepted(connection: sa.Connection, run_id: str) -> bool:
    """Return whether an acceptance of a run is on record: a version is accepted once, also one that was brought back."""
    accepted = sa.select(sa.func.count()).where(
        publications.c.run_id == run_id,
        publications.c.action == ACCEPT,
        publications.c.state == PublicationState.COMMITTED,
    )
    return bool(connection.execute(accepted).scalar_one())


def _close_recorded(
    connection: sa.Connection, record: RunRecord, publication: int, at: datetime, *, recorded: bool
) -> None:
    """Close an intent whose outcome another process has put on record, perhaps with what came after it.

    Raises:
        LeaseLost: if it is not `recorded` that the run is what the intent makes it: somebody has closed the intent, and whoever
            takes what landed for what is now would be wrong.
    """
    if not recorded:
        raise LeaseLost(
            Problem(
                f"another process has taken over what entry {publication} of run '{record.run_id}' set out to do, while this "
                f"one was paused; the run is {record.state}",
                "only the process that holds its scope records a change, or its failure",
                f"`backfill status {record.run_id}` says what is on record; the same command again goes on from there",
            )
        )
    connection.execute(
        publications.update()
        .where(publications.c.id == publication, publications.c.state == PublicationState.INTENT)
        .values(state=PublicationState.REFUSED, note=RECORDED_BY_ANOTHER, ended_at=at)
    )
