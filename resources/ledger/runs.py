"""Runs: their plans, states and transitions.

Put here what records a run and moves it from one state to the next. Which moves there are is the lifecycle's
(`manifests.lifecycle`); what else changes with a move (chunks, decisions, publications) is for the entity's own module.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from manifests.errors import DecisionRefused, InputRefused, Problem, StateMoved, TransitionRefused
from manifests.lifecycle import APPROVED_OR_LATER, ChunkState, RunState, check_transition
from manifests.model import MAX_RUN_ID, Kind, Mode, RunManifest
from manifests.plan import Plan
from manifests.reading import stored_manifest
from resources import actors
from resources.ledger import freezes, instants, plans, ticks
from resources.ledger.admissions import end_waits
from resources.ledger.cells import legible
from resources.ledger.locks import lock_run, lock_target, require_lease
from resources.ledger.part import Part, Stored
from resources.ledger.tables import chunks, runs, transitions

_RUN = tuple(column for column in runs.c if column.name != "plan")
"""What a record of a run is made of; its plan is fetched when somebody asks for it."""
_CHUNKS_AT_ONCE, _RUNS_AT_ONCE = 10_000, 400


@dataclass(frozen=True)
class RunRecord:
    """One run as the ledger holds it. What its manifest says as well (range, mode, version) needs no plan."""

    run_id: str
    kind: str
    mode: str
    target: str
    state: RunState
    state_reason: str
    requested_by: str
    manifest: RunManifest
    manifest_hash: str
    plan_hash: str
    created_at: datetime
    updated_at: datetime
    _fetch_plan: Callable[[], Plan] = field(repr=False, compare=False)

    @cached_property
    def plan(self) -> Plan:
        """The run's plan, fetched and parsed when it is first asked for; see `resources.ledger.plans`.

        Raises:
            StateMoved: if the run was planned anew since the record was read.
        """
        return self._fetch_plan()

    @property
    def was_planned_anew(self) -> bool:
        """Whether somebody has planned the run anew since the record was read, as long as nobody had approved it.

        For whoever looks at many runs. If not, the plan is there from now on, whatever becomes of the run.
        """
        try:
            _ = self.plan
        except StateMoved:
            return True
        else:
            return False


@dataclass(frozen=True)
class TransitionRecord(Stored):
    """One move of a run from a state to the next."""

    table: ClassVar[sa.Table] = transitions

    id: int
    run_id: str
    from_state: RunState
    to_state: RunState
    at: datetime
    actor: str
    reason: str
    channel: str
    proof: str

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        return cls(**{**row._mapping, "from_state": RunState(row.from_state), "to_state": RunState(row.to_state)})  # noqa: SLF001 - SQLAlchemy's public name


class Runs(Part):
    """The runs of a ledger."""

    def record_plan(self, manifest: RunManifest, plan: Plan, actor: str) -> RunRecord:
        """Record a plan: a new run, or a new plan of a run that nobody has approved yet.

        A run that is approved or later is immutable: the same text is answered with the recorded run, whatever
        the tables look like by now; another text is refused.
        """
        try:
            return self._record_plan(manifest, plan, actor)
        except (
            sa.exc.IntegrityError
        ):  # somebody recorded the first plan of this run at the same moment: it is there now
            return self._record_plan(manifest, plan, actor)

    def _record_plan(self, manifest: RunManifest, plan: Plan, actor: str) -> RunRecord:
        at = instants.now(self.engine)
        values = {
            "kind": manifest.kind.value,
            "mode": plan.mode.value,
            "target": plan.target,
            "requested_by": manifest.requested_by,
            "manifest": manifest.canonical(),
            "manifest_hash": manifest.hash,
            "plan": plan.to_json(),
            "plan_hash": plan.hash,
            "updated_at": at,
        }
        with self.engine.begin() as connection:
            lock_run(connection, plan.run_id)
            row = connection.execute(
                sa.select(runs.c.state, runs.c.manifest_hash).where(runs.c.run_id == plan.run_id)
            ).one_or_none()
            if wrong := ticks.problems_in(connection, manifest):
                raise TransitionRefused(wrong)
            if row is None:
                connection.execute(
                    runs.insert().values(
                        run_id=plan.run_id, state=RunState.DRAFT, state_reason="", created_at=at, **values
                    )
                )
                move_run(connection, plan.run_id, RunState.DRAFT, RunState.PLANNED, actor, "planned")
            elif RunState(row.state) in APPROVED_OR_LATER:
                _require_same_text(plan.run_id, row.state, row.manifest_hash, manifest.hash)
                return run_of(connection, plan.run_id)
            else:
                connection.execute(runs.update().where(runs.c.run_id == plan.run_id).values(**values))
                connection.execute(chunks.delete().where(chunks.c.run_id == plan.run_id))
            _insert_chunks(connection, plan, at)
        record = self.run(plan.run_id)
        if record.plan_hash != plan.hash:
            return record
        # nobody reads back what was just written: of a million chunks that takes seconds
        return replace(record, _fetch_plan=partial(plans.still, self.engine, plan))

    def existing(self, manifest: RunManifest) -> RunRecord | None:
        """Return the run if it is approved or later, so that it is not planned anew.

        Raises:
            TransitionRefused: if the recorded text is another one.
        """
        record = self.find(manifest.run_id)
        if record is None or record.state not in APPROVED_OR_LATER:
            return None
        _require_same_text(manifest.run_id, record.state, record.manifest_hash, manifest.hash)
        return record

    def find(self, run_id: str) -> RunRecord | None:
        """Return the run, or None."""
        with self.engine.connect() as connection:
            return find_run(connection, run_id)

    def run(self, run_id: str) -> RunRecord:
        """Return the run.

        Raises:
            InputRefused: if the ledger holds no such run.
        """
        with self.engine.connect() as connection:
            return run_of(connection, run_id)

    def with_plan(self, record: RunRecord) -> RunRecord:
        """Return a run with its plan: as it was read, or, if it was planned anew since, as it is by now."""
        while record.was_planned_anew:
            record = self.run(record.run_id)
        return record

    def targets(self) -> set[str]:
        """Return the tables that runs are on record of."""
        with self.engine.connect() as connection:
            return set(connection.execute(sa.select(runs.c.target).distinct()).scalars())

    def runs_named(self, run_ids: Collection[str]) -> dict[str, RunRecord]:
        """Return runs by their ids, which are looked up together.

        Raises:
            InputRefused: if the ledger holds no run of one of them.
        """
        found: dict[str, RunRecord] = {}
        ordered = sorted(run_ids)
        with self.engine.connect() as connection, legible("ledger runs"):
            for start in range(0, len(ordered), _RUNS_AT_ONCE):
                query = sa.select(*_RUN).where(runs.c.run_id.in_(ordered[start : start + _RUNS_AT_ONCE]))
                found |= {row.run_id: _run_record(self.engine, row) for row in connection.execute(query)}
        return {run_id: found.get(run_id) or self.run(run_id) for run_id in ordered}

    def runs(
        self, *, target: str | None = None, states: Iterable[RunState] | None = None, mode: Mode | None = None
    ) -> list[RunRecord]:
        """Return runs, oldest first."""
        query = sa.select(*_RUN).order_by(runs.c.created_at, runs.c.run_id)
        if target is not None:
            query = query.where(runs.c.target == target)
        if states is not None:
            query = query.where(runs.c.state.in_([state.value for state in states]))
        if mode is not None:
            query = query.where(runs.c.mode == mode.value)
        with self.engine.connect() as connection, legible("ledger runs"):
            return [_run_record(self.engine, row) for row in connection.execute(query)]

    def named_like(self, run_id: str) -> list[RunRecord]:
        """Return the other runs whose ids differ from one by `.` and `_` alone, oldest first."""
        alike = sa.func.replace(runs.c.run_id, ".", "_") == run_id.replace(".", "_")
        query = sa.select(*_RUN).where(alike, runs.c.run_id != run_id).order_by(runs.c.created_at, runs.c.run_id)
        with self.engine.connect() as connection, legible("ledger runs"):
            return [_run_record(self.engine, row) for row in connection.execute(query)]

    def move(
        self,
        run_id: str,
        wanted: RunState,
        actor: str,
        reason: str = "",
        *,
        expected: RunState,
        token: int | None = None,
        plan_hash: str | None = None,
    ) -> None:
        """Move a run from the state it was found in to another one, if the lifecycle allows it.

        Args:
            run_id: the run.
            wanted: the state to come.
            actor: who moves it.
            reason: why.
            expected: the state that was looked at when it was decided to move it.
            token: of the lease under which it was decided; None: under none.
            plan_hash: of the plan that was looked at; None: whatever it is.

        Raises:
            StateMoved: if the run is in another state than `expected` by now.
            DecisionRefused: if it has another plan by now.
            LeaseLost: if the lease was taken over: what was looked at under it may have changed.
            TransitionRefused: if the lifecycle does not allow it.
        """
        require_name(actor)
        with self.engine.begin() as connection:
            if token is not None:
                require_lease(connection, token)
            record = locked_run(connection, run_id)
            require_state(record, expected, wanted)
            if plan_hash is not None:
                require_plan(record, plan_hash)
            move_run(connection, run_id, expected, wanted, actor, reason)

    def history(self, run_id: str) -> list[TransitionRecord]:
        """Return the run's transitions, in order."""
        return self._stored(
            TransitionRecord, sa.select(transitions).where(transitions.c.run_id == run_id).order_by(transitions.c.id)
        )


def _insert_chunks(connection: sa.Connection, plan: Plan, at: datetime) -> None:
    """Put the chunks of a plan on record, so many at a time that what is written of them needs no memory to speak of."""
    alike = {"run_id": plan.run_id, "state": ChunkState.PLANNED, "attempt": 0, "error": "", "updated_at": at}
    alike |= {"files": "[]", "derived": "[]", "replaced": "[]", "measures": "{}"}
    for start in range(0, len(plan.chunks), _CHUNKS_AT_ONCE):
        some = plan.chunks[start : start + _CHUNKS_AT_ONCE]
        connection.execute(chunks.insert(), [{"chunk": one.key, "idx": one.index, **alike} for one in some])


def find_run(connection: sa.Connection, run_id: str) -> RunRecord | None:
    """Return the run as a transaction sees it, or None."""
    with legible(f"ledger runs {run_id}"):
        row = connection.execute(sa.select(*_RUN).where(runs.c.run_id == run_id)).one_or_none()
        return None if row is None else _run_record(connection.engine, row)


def run_of(connection: sa.Connection, run_id: str) -> RunRecord:
    """Return the run, as a transaction sees it.

    Raises:
        InputRefused: if the ledger holds no such run.
    """
    record = find_run(connection, run_id)
    if record is None:
        known = list(connection.execute(sa.select(runs.c.run_id)).scalars())
        alike = difflib.get_close_matches(run_id[:MAX_RUN_ID], known, n=3)
        meant = f"did you mean {' or '.join(alike)}? " if alike else ""
        raise InputRefused(
            Problem(
                f"run '{run_id}' is unknown",
                "a run is planned first",
                f"{meant}see `backfill status` for the known runs",
            )
        )
    return record


def locked_run(connection: sa.Connection, run_id: str) -> RunRecord:
    """Return a run that nobody else changes until the transaction has ended."""
    lock_run(connection, run_id)
    return run_of(connection, run_id)


def holding_target(connection: sa.Connection, run_id: str, plan_hash: str) -> RunRecord:
    """Return a run; nobody else changes its target's runs and who holds its chunks until the transaction has ended.

    Raises:
        StateMoved: if its plan is another one than that of `plan_hash`, which was looked at before.
    """
    lock_target(connection, run_of(connection, run_id).target)
    record = run_of(connection, run_id)
    if record.plan_hash != plan_hash:
        raise plans.planned_anew(run_id, plan_hash)
    return record


def _run_record(engine: sa.Engine, row: Any) -> RunRecord:
    return RunRecord(
        row.run_id,
        Kind(row.kind).value,
        Mode(row.mode).value,
        row.target,
        RunState(row.state),
        row.state_reason,
        row.requested_by,
        stored_manifest(row.manifest),
        row.manifest_hash,
        row.plan_hash,
        row.created_at,
        row.updated_at,
        partial(plans.fetch, engine, row.run_id, row.plan_hash),
    )


def move_run(
    connection: sa.Connection, run_id: str, current: RunState, wanted: RunState, actor: str, reason: str
) -> None:
    """Move a run that a transaction has locked, and put the transition on record.

    Raises:
        StateMoved: if it is not in the state `current` any more.
        TransitionRefused: if the lifecycle does not allow it.
    """
    check_transition(run_id, current, wanted)
    at = instants.now(connection)
    changed = connection.execute(
        runs.update()
        .where(runs.c.run_id == run_id, runs.c.state == current.value)
        .values(state=wanted.value, state_reason=reason, updated_at=at)
    )
    if changed.rowcount != 1:
        raise moved(run_id, current)
    connection.execute(
        transitions.insert().values(
            run_id=run_id,
            from_state=current.value,
            to_state=wanted.value,
            at=at,
            actor=actor,
            reason=reason,
            **actors.columns(actor),
        )
    )
    if wanted in freezes.OVER:
        freezes.end(connection, run_id, at)
        end_waits(connection, run_id)


def require_state(record: RunRecord, expected: RunState, wanted: RunState) -> None:
    """Refuse to move a run that the lifecycle does not let, or that is not in the state that was looked at."""
    check_transition(record.run_id, record.state, wanted)
    if record.state is not expected:
        raise moved(record.run_id, expected, record.state)


def moved(run_id: str, expected: RunState, found: str = "in another state") -> StateMoved:
    """Return what is said to somebody who has decided about a run that is in another state by now."""
    return StateMoved(
        Problem(
            f"run '{run_id}' is no longer {expected} but {found}",
            "a transition starts from the state it was decided on",
            "somebody else moved it: look at `backfill status` again",
        )
    )


def require_name(actor: str) -> None:
    """Refuse somebody without a name.

    Raises:
        TransitionRefused: saying what a name is.
    """
    if problems := actors.no_name(actor):
        raise TransitionRefused(problems)


def require_plan(record: RunRecord, plan_hash: str) -> None:
    """Refuse a decision about another plan than the run has.

    Raises:
        TransitionRefused: naming both.
    """
    if plan_hash != record.plan_hash:
        raise DecisionRefused(
            Problem(
                f"the plan of '{record.run_id}' is {record.plan_hash}, not {plan_hash}",
                "a decision is about the plan that was looked at",
                "look at the plan again",
            )
        )


def _require_same_text(run_id: str, state: str, recorded: str, given: str) -> None:
    if recorded != given:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' is {state} with manifest {recorded}; this text is {given}",
                "after approval a manifest cannot change",
                "give the changed manifest a run id of its own",
            )
        )
