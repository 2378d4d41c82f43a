"""The ledger: the SQL record of runs, chunks, attempts, verdicts, approvals, publications and sink requests.

Put here what must be true across processes and crashes; every state change is one transaction and a
compare-and-set, and a transaction that reads before it writes takes a lock first (`locks` says which and why). Dagster's event log is a view for people; what gates a publication is read from here. Instants are
UTC. Schema changes are alembic migrations in `resources/ledger/migrations`.
"""

from __future__ import annotations

import difflib
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from manifests.canonical import LATER, canonical_json
from manifests.errors import EnvironmentRefused, InputRefused, Problem, StateMoved, TransitionRefused
from manifests.lifecycle import APPROVED_OR_LATER, COMPUTABLE, ROLLBACK, RunState, check_transition
from manifests.model import MAX_RUN_ID, Kind, Mode, RunManifest, stored_manifest
from manifests.planner import Plan, StagedFile
from manifests.policy import same_name
from resources import actors
from resources.ledger import freezes, instants, judged, plans, policy_in_force, stops, ticks, watermarks
from resources.ledger.cells import legible, parsed
from resources.ledger.journal import Journal
from resources.ledger.locks import lock_run, lock_schema, lock_target, require_lease
from resources.ledger.tables import (
    accepted_versions,
    amendments,
    approvals,
    attempts,
    chunks,
    journal,
    publications,
    runs,
    sink_attempts,
    transitions,
    verdicts,
)
from resources.ledger.transactions import make_engine
from resources.processes import has_ended, is_busy, this_process

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig

OBSOLETE = "OBSOLETE"
"""State of an attempt whose chunks were planned anew before it was staged: nothing of it is used, and nothing has failed."""
RAISED = "raised"
"""In the details of a verdict: the error of a gate that could not judge."""
ABANDONED = "ABANDONED"
"""State of a publication whose process ended before it could say what came of it; another entry says so."""
BEFORE = {
    "publish": RunState.VALIDATED,
    "rollback": RunState.PUBLISHED,
    "reinstate": RunState.ROLLED_BACK,
    "accept": RunState.PUBLISHED,
}
"""The state of a run from which each action changes its tables."""
_MOMENT = timedelta(microseconds=1)
"""What instants of a ledger differ by at least."""
_MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION = sa.table("alembic_version", sa.column("version_num", sa.String))
"""Where alembic keeps the revision of a schema."""
_RUN = tuple(column for column in runs.c if column.name != "plan")
"""What a record of a run is made of; its plan is fetched when somebody asks for it."""


class ChunkState(StrEnum):
    """Where a chunk stands."""

    PLANNED = "PLANNED"
    STAGED = "STAGED"
    PASSED = "PASSED"
    FAILED = "FAILED"


STAGED = frozenset({ChunkState.STAGED, ChunkState.PASSED})
"""States of a chunk whose files are on record."""


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
class ChunkRecord:
    """One chunk of one run. `digest` is set once its gate has read the files back.

    `files` hold the computed rows. Where something else is published (merged rows, corrections) it is `derived` from
    them, and `replaced` are the target's files that it takes the place of.
    """

    chunk: str
    index: int
    state: ChunkState
    attempt: int
    rows: int | None
    bytes: int | None
    files: tuple[StagedFile, ...]
    digest: str | None
    measures: dict[str, Any]
    error: str
    derived: tuple[StagedFile, ...] = ()
    replaced: tuple[str, ...] = ()


@dataclass(frozen=True)
class DerivedFiles:
    """What was made of one chunk's computed rows; see `ChunkRecord`. `counts` says what happened to how many rows."""

    files: tuple[StagedFile, ...] = ()
    replaced: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """What a gate said of a chunk, or of the whole run where `chunk` is empty."""

    gate: str
    passed: bool
    summary: str
    details: Mapping[str, Any]
    chunk: str = ""
    attempt: int = 0
    at: datetime | None = None
    asks: bool = field(default=False, metadata=LATER)
    """It neither passes nor fails: an owner has to accept what it found, with a reason."""
    judged: str = field(default="", metadata=LATER)
    """Of a run-level verdict: which staged files it is about; see `judged`."""


@dataclass(frozen=True)
class GatedChunk:
    """What the gate of one chunk measured of the staged files of one attempt; `files` and `derived` with their hashes."""

    chunk: str
    attempt: int
    digest: str
    rows: int
    measures: Mapping[str, Any]
    verdict: Verdict
    files: tuple[StagedFile, ...] | None = None
    derived: tuple[StagedFile, ...] | None = None


def now() -> datetime:
    """The present instant, UTC."""
    return datetime.now(UTC)


def operator() -> str:
    """Return the name of who acts; see `resources.actors`."""
    return actors.current().name


class Ledger:
    """One connection pool to the ledger; see the module."""

    def __init__(self, url: str) -> None:
        self.url = url
        parsed = make_url(url)
        self._sqlite = parsed.get_backend_name() == "sqlite"
        try:
            self.engine = make_engine(url)
        except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise EnvironmentRefused(
                Problem(
                    f"the ledger {parsed!r} needs a database driver that is not installed: {error}",
                    "the ledger is SQLite or PostgreSQL, through a driver that SQLAlchemy knows",
                    "correct BACKFILL_LEDGER_URL, or install the driver (the extra `postgres` brings psycopg2)",
                )
            ) from error
        except (ValueError, TypeError) as error:
            raise EnvironmentRefused(
                Problem(
                    f"the ledger {parsed!r} has an option that its driver cannot read: {error}",
                    "what follows ? in the URL of the ledger are options of its driver",
                    "correct BACKFILL_LEDGER_URL",
                )
            ) from error
        self.journal = Journal(self.engine)

    # --- schema ---------------------------------------------------------------------------------------------------

    def migrate(self, complete: Callable[[sa.Connection, str | None], None] = lambda *_: None) -> str | None:
        """Bring the schema to this version of the code; safe to repeat. Return the revision it had; None for a new ledger.

        The journal adopts the runs that were there before it: `Journal.adopted` names them. `complete` is told the revision
        that the ledger had, in the same transaction: a process that dies has done all of it or nothing.

        Raises:
            EnvironmentRefused: if the database cannot be opened or was made by newer code.
        """
        try:
            if self._sqlite and (file := make_url(self.url).database):
                Path(file).parent.mkdir(parents=True, exist_ok=True)
            found = self._revision()
            self._refuse_newer(found)
            with self.engine.begin() as connection:
                lock_schema(connection)
                had_journal = sa.inspect(connection).has_table(journal.name)
                _upgrade(connection)
                if not had_journal:
                    self.journal.adopt(connection)  # its lock is not the last one here: nobody else uses such a ledger
                complete(connection, found)
                return found
        except (sa.exc.DBAPIError, OSError) as error:
            raise self._unusable(error) from error

    def require_current(self) -> None:
        """Refuse to work on a schema of another version.

        Raises:
            EnvironmentRefused: if the ledger is missing, older or newer.
        """
        head = revisions()[-1]
        try:
            found = self._revision()
        except sa.exc.DBAPIError as error:
            raise self._unusable(error) from error
        self._refuse_newer(found)
        if found != head:
            raise EnvironmentRefused(
                Problem(
                    f"the ledger {self.engine.url!r} has schema {found or 'none'}",
                    f"this code needs schema {head}",
                    "run `backfill init` (it creates or upgrades the ledger)",
                )
            )
        if missing := self._missing():
            raise EnvironmentRefused(
                Problem(
                    f"the ledger {self.engine.url!r} has schema {found}, but lacks {', '.join(missing)}",
                    "a schema is whole",
                    "somebody has changed it by hand: restore the ledger from its backup",
                )
            )

    def _missing(self) -> list[str]:
        """Return the tables, and the columns of others, that this code reads and the database does not have."""
        with self.engine.connect() as connection:
            inspected = sa.inspect(connection).get_multi_columns()
        there = {name: {one["name"] for one in columns} for (_, name), columns in inspected.items()}
        return [
            name if name not in there else f"{name}.{column}"
            for name, table in sorted(runs.metadata.tables.items())
            for column in (table.columns.keys() if name in there else [""])
            if name not in there or column not in there[name]
        ]

    def _revision(self) -> str | None:
        file = make_url(self.url).database if self._sqlite else None
        if file is not None and not Path(file).exists():
            return None  # looking must not create it
        with self.engine.connect() as connection:
            if not sa.inspect(connection).has_table(_VERSION.name):
                return None
            return connection.execute(sa.select(_VERSION.c.version_num)).scalar_one_or_none()

    def _refuse_newer(self, found: str | None) -> None:
        known = revisions()
        if found is not None and found not in known:
            raise EnvironmentRefused(
                Problem(
                    f"the ledger {self.engine.url!r} has schema {found}",
                    f"this code knows the schemas {', '.join(known)}",
                    "the ledger was made by newer code: upgrade this installation's code",
                )
            )

    def _unusable(self, error: Exception) -> EnvironmentRefused:
        return EnvironmentRefused(
            Problem(
                f"the ledger {self.engine.url!r} cannot be opened: {getattr(error, 'orig', None) or error}",
                "the ledger is a database this user can read and write",
                "check BACKFILL_LEDGER_URL, or restore the database from its backup",
            )
        )

    # --- runs -----------------------------------------------------------------------------------------------------

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
        at = now()
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
                _move(connection, plan.run_id, RunState.DRAFT, RunState.PLANNED, actor, "planned")
            elif RunState(row.state) in APPROVED_OR_LATER:
                _require_same_text(plan.run_id, row.state, row.manifest_hash, manifest.hash)
                return self.run(plan.run_id, connection=connection)
            else:
                connection.execute(runs.update().where(runs.c.run_id == plan.run_id).values(**values))
                connection.execute(chunks.delete().where(chunks.c.run_id == plan.run_id))
            connection.execute(
                chunks.insert(),
                [
                    {
                        "run_id": plan.run_id,
                        "chunk": chunk.key,
                        "idx": chunk.index,
                        "attempt": 0,
                        "files": "[]",
                        "measures": "{}",
                        "error": "",
                        "state": ChunkState.PLANNED,
                        "updated_at": at,
                    }
                    for chunk in plan.chunks
                ],
            )
        return self.run(plan.run_id)

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
            return _find(connection, run_id)

    def run(self, run_id: str, *, connection: sa.Connection | None = None) -> RunRecord:
        """Return the run.

        Raises:
            InputRefused: if the ledger holds no such run.
        """
        record = _find(connection, run_id) if connection is not None else self.find(run_id)
        if record is None:
            with nullcontext(connection) if connection is not None else self.engine.connect() as looking:
                known = list(looking.execute(sa.select(runs.c.run_id)).scalars())
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

    def with_plan(self, record: RunRecord) -> RunRecord:
        """Return a run with its plan: as it was read, or, if it was planned anew since, as it is by now."""
        while record.was_planned_anew:
            record = self.run(record.run_id)
        return record

    def runs(self, *, target: str | None = None, states: Iterable[RunState] | None = None) -> list[RunRecord]:
        """Return runs, oldest first."""
        query = sa.select(*_RUN).order_by(runs.c.created_at, runs.c.run_id)
        if target is not None:
            query = query.where(runs.c.target == target)
        if states is not None:
            query = query.where(runs.c.state.in_([state.value for state in states]))
        with self.engine.connect() as connection, legible("ledger runs"):
            return [_run_record(self.engine, row) for row in connection.execute(query)]

    def _locked(self, connection: sa.Connection, run_id: str) -> RunRecord:
        """Return a run that nobody else changes until the transaction has ended."""
        lock_run(connection, run_id)
        return self.run(run_id, connection=connection)

    def move(
        self,
        run_id: str,
        wanted: RunState,
        actor: str,
        reason: str = "",
        *,
        expected: RunState,
        token: int | None = None,
    ) -> None:
        """Move a run from the state it was found in to another one, if the lifecycle allows it.

        Args:
            run_id: the run.
            wanted: the state to come.
            actor: who moves it.
            reason: why.
            expected: the state that was looked at when it was decided to move it.
            token: of the lease under which it was decided; None: under none.

        Raises:
            StateMoved: if the run is in another state than `expected` by now.
            LeaseLost: if the lease was taken over: what was looked at under it may have changed.
            TransitionRefused: if the lifecycle does not allow it.
        """
        _require_name(actor)
        with self.engine.begin() as connection:
            if token is not None:
                require_lease(connection, token)
            record = self._locked(connection, run_id)
            _require_state(record, expected, wanted)
            _move(connection, run_id, expected, wanted, actor, reason)

    def history(self, run_id: str) -> list[dict[str, Any]]:
        """Return the run's transitions, in order."""
        return self._rows(sa.select(transitions).where(transitions.c.run_id == run_id).order_by(transitions.c.id))

    # --- approval -------------------------------------------------------------------------------------------------

    def decide(
        self,
        run_id: str,
        *,
        approve: bool,
        by: str,
        comment: str,
        self_approval: bool,
        plan_hash: str,
        break_glass: str = "",
        expected: RunState = RunState.PLANNED,
        token: int | None = None,
        policy_hash: str = "",
    ) -> None:
        """Record an approval or a rejection and move the run.

        Args:
            run_id: the run.
            approve: approve, or reject.
            by: who decides.
            comment: why.
            self_approval: whether the policy lets a requester approve their own run.
            plan_hash: the plan the decider has seen.
            break_glass: why four eyes were not waited for, where somebody who may has decided so.
            expected: the state in which the run was decided about; only a rejection may come after PLANNED.
            token: of the lease under which it was decided; None: under none.
            policy_hash: the policy that the decision was held against.

        Raises:
            StateMoved: if the run is in another state than `expected` by now.
            LeaseLost: if the lease was taken over: what was looked at under it may have changed.
            TransitionRefused: if the state, the plan or the person does not allow it, or another policy is in force by now.
        """
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            if token is not None:
                require_lease(connection, token)
            record = self._locked(connection, run_id)
            wanted = RunState.APPROVED if approve else RunState.REJECTED
            _require_state(record, expected, wanted)
            own = same_name(by) == same_name(record.requested_by)
            _require_name(by)
            if approve and own and not self_approval and not break_glass:
                raise TransitionRefused(
                    Problem(
                        f"'{by}' requested run '{run_id}'",
                        "the approver differs from the requester",
                        "ask somebody else; a policy with fourEyes: false allows it, on record",
                    )
                )
            if plan_hash != record.plan_hash:
                raise TransitionRefused(
                    Problem(
                        f"the plan of '{run_id}' is {record.plan_hash}, not {plan_hash}",
                        "a decision is about the plan that was looked at",
                        "look at the plan again",
                    )
                )
            at = now()
            instants.require_after_run(connection, run_id, at)
            connection.execute(
                approvals.insert().values(
                    run_id=run_id,
                    decision="APPROVED" if approve else "REJECTED",
                    decided_by=by,
                    comment=comment,
                    plan_hash=record.plan_hash,
                    self_approved=own and approve,
                    break_glass=break_glass,
                    policy_hash=policy_hash,
                    **actors.columns(by),
                    at=at,
                )
            )
            _move(connection, run_id, expected, wanted, by, comment)
            if approve:
                freezes.begin(connection, record.manifest, at)

    def approvals(self, run_id: str) -> list[dict[str, Any]]:
        """Return the decisions on a run, in order."""
        return self._rows(sa.select(approvals).where(approvals.c.run_id == run_id).order_by(approvals.c.id))

    # --- chunks and attempts --------------------------------------------------------------------------------------

    def chunks(self, run_id: str) -> list[ChunkRecord]:
        """Return the run's chunks, in order."""
        with self.engine.connect() as connection, legible(f"ledger chunks of {run_id}"):
            found = connection.execute(sa.select(chunks).where(chunks.c.run_id == run_id).order_by(chunks.c.idx))
            return [_chunk_record(row) for row in found]

    def start_attempt(
        self,
        run_id: str,
        keys: Sequence[str],
        *,
        edition: int,
        actor: str,
        location: str,
        dagster_run_id: str = "",
    ) -> tuple[int, str] | None:
        """Open an attempt at computing `keys`; return its number and the folder it writes to.

        `edition` is that of the run (`edition`) when the plan that they are computed with was read. The number is new for
        the run, so an attempt never writes where another one has. None, and nothing is changed, if another launch has
        staged all of them meanwhile: the run may be further by now.

        Raises:
            RunStopped: if somebody has stopped the run.
            StateMoved: if one of the chunks was planned anew since its plan was read.
        """
        with self.engine.begin() as connection:
            record = self._locked(connection, run_id)
            waiting = sa.select(chunks.c.chunk).where(chunks.c.run_id == run_id, chunks.c.state.not_in(STAGED))
            if set(keys).isdisjoint(connection.execute(waiting).scalars()):
                return None
            stops.refuse_held(connection, run_id)
            _require_same_plan(connection, run_id, keys, edition)
            if record.state is not RunState.RUNNING:
                check_transition(run_id, record.state, RunState.RUNNING)
            if record.state not in COMPUTABLE:  # a VALIDATED run only goes back where its publisher plans chunks anew
                raise TransitionRefused(
                    Problem(
                        f"run '{run_id}' is {record.state}",
                        f"chunks are computed while it is {', '.join(sorted(COMPUTABLE))}",
                        "see `backfill status` for what the run waits for",
                    )
                )
            if record.state is not RunState.RUNNING:
                _move(connection, run_id, record.state, RunState.RUNNING, actor, f"computing {len(keys)} chunk(s)")
            last = connection.execute(
                sa.select(sa.func.max(attempts.c.attempt)).where(attempts.c.run_id == run_id)
            ).scalar()
            number = (last or 0) + 1
            prefix = f"{location}/run={run_id}/attempt-{number}"
            connection.execute(
                attempts.insert().values(
                    run_id=run_id,
                    attempt=number,
                    chunks=json.dumps(list(keys)),
                    state="RUNNING",
                    prefix=prefix,
                    dagster_run_id=dagster_run_id,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    process=this_process(),
                    started_at=now(),
                )
            )
        return number, prefix

    def stage(
        self,
        run_id: str,
        attempt: int,
        files: Mapping[str, Sequence[StagedFile]],
        derived: Mapping[str, DerivedFiles] | None = None,
        reads: Mapping[str, int] | None = None,
    ) -> None:
        """Commit the chunks of an attempt as STAGED: from this transaction on they exist.

        `files` has an entry per chunk of the attempt; an empty chunk has no file and is staged all the same. `derived`
        has one per chunk where something else than the computed rows is published. `reads` says how much the attempt was
        given to read, where that is known; it is kept with the attempt, beside what another attempt had staged before.

        Raises:
            StateMoved: if chunks of the attempt were planned anew since it was opened.
            TransitionRefused: if the attempt has ended for another reason, or the run has moved on.
        """
        at = now()
        suppressed: list[str] = []
        with self.engine.begin() as connection:
            record = self._locked(connection, run_id)
            stops.refuse_held(connection, run_id)
            if _state_of_attempt(connection, run_id, attempt) == OBSOLETE:
                raise plans.computed_in_vain(run_id, list(files))
            if record.state is not RunState.RUNNING:
                raise TransitionRefused(
                    Problem(
                        f"run '{run_id}' became {record.state} while attempt {attempt} was computed",
                        "chunks are staged while their run is RUNNING",
                        "nothing of the attempt is used; see `backfill status`",
                    )
                )
            for chunk, staged in files.items():
                made = (derived or {}).get(chunk, DerivedFiles())
                # whoever staged a chunk first keeps it: two launches of the same chunk compute the same rows
                changed = connection.execute(
                    chunks.update()
                    .where(
                        chunks.c.run_id == run_id,
                        chunks.c.chunk == chunk,
                        chunks.c.state.not_in(STAGED),
                    )
                    .values(
                        state=ChunkState.STAGED,
                        attempt=attempt,
                        rows=sum(f.rows for f in staged),
                        bytes=sum(f.bytes for f in staged),
                        files=canonical_json(list(staged)),
                        derived=canonical_json(list(made.files)),
                        replaced=canonical_json(list(made.replaced)),
                        digest=None,
                        measures=canonical_json({"happened": dict(made.counts)} if made.counts else {}),
                        error="",
                        updated_at=at,
                    )
                )
                suppressed += [chunk] if changed.rowcount == 0 else []
            measures = dict(reads or {}) | {
                "suppressed_chunks": len(suppressed),
                "suppressed_rows": sum(file.rows for chunk in suppressed for file in files[chunk]),
            }
            ended = connection.execute(
                attempts.update()
                .where(attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.state == "RUNNING")
                .values(state="STAGED", ended_at=at, measures=canonical_json(measures))
            )
            if ended.rowcount != 1:
                raise TransitionRefused(
                    Problem(
                        f"attempt {attempt} of run '{run_id}' was ended before it was staged",
                        "files of an ended attempt are not used: they may be gone",
                        "run the chunks again",
                    )
                )

    def batches_under_way(self, run_id: str) -> list[int]:
        """Return the attempts of a run that other living processes of this machine are computing."""
        running = [one for one in self.attempts(run_id) if one["state"] == "RUNNING" and is_busy(one)]
        return [one["attempt"] for one in running if one["pid"] != os.getpid()]

    def end_attempts_of_the_dead(self, run_id: str) -> None:
        """Record as failed what is on record as being computed by processes of this machine that are no more."""
        gone = [one["attempt"] for one in self.attempts(run_id) if one["state"] == "RUNNING" and has_ended(one)]
        with self.engine.begin() as connection:
            connection.execute(
                attempts.update()
                .where(attempts.c.run_id == run_id, attempts.c.attempt.in_(gone), attempts.c.state == "RUNNING")
                .values(state="FAILED", ended_at=now(), error="its process ended")
            )

    def fail_attempt(
        self,
        run_id: str,
        attempt: int,
        error: str,
        *,
        chunk: str | None = None,
        fails_run: str = "",
        actor: str = "",
    ) -> str:
        """Record that an attempt failed; return the state it has ended in, which is FAILED unless it had ended before.

        With `chunk`, that this one chunk did and why. With `fails_run`, a reason, that the run did: `actor` moves it from
        RUNNING to FAILED; where another launch has moved it on meanwhile, that is what it is. An attempt that has ended
        stays as it ended, and its chunk and its run as well: another attempt may be at it by now.
        """
        at = now()
        with self.engine.begin() as connection:
            record = self._locked(connection, run_id)
            failed = connection.execute(
                attempts.update()
                # one that a stop or another plan of its chunks has ended has not failed
                .where(attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.state == "RUNNING")
                .values(state="FAILED", ended_at=at, error=error)
            )
            if failed.rowcount != 1:
                return _state_of_attempt(connection, run_id, attempt)
            if chunk is not None:
                connection.execute(
                    chunks.update()
                    .where(
                        chunks.c.run_id == run_id,
                        chunks.c.chunk == chunk,
                        chunks.c.state.not_in(STAGED),
                    )
                    .values(state=ChunkState.FAILED, attempt=attempt, error=error, updated_at=at)
                )
            if fails_run and record.state is RunState.RUNNING:
                _move(connection, run_id, RunState.RUNNING, RunState.FAILED, actor, fails_run)
        return "FAILED"

    def resume(self, run_id: str, actor: str) -> RunRecord:
        """Move a run that may compute to RUNNING, if it is not there yet, and return it.

        Raises:
            RunStopped: if somebody has stopped the run.
        """
        with self.engine.begin() as connection:
            record = self._locked(connection, run_id)
            stops.refuse_held(connection, run_id)
            if record.state in {RunState.APPROVED, RunState.FAILED}:
                _move(connection, run_id, record.state, RunState.RUNNING, actor, "computing chunks")
            return self.run(run_id, connection=connection)

    def settle(self, run_id: str, actor: str) -> RunState:
        """Move a run to what its chunks say: FAILED if one failed, STAGED once all are staged; return its state."""
        with self.engine.begin() as connection:
            record = self._locked(connection, run_id)
            found = connection.execute(sa.select(chunks.c.chunk, chunks.c.state).where(chunks.c.run_id == run_id)).all()
            failed = sorted(row.chunk for row in found if row.state == ChunkState.FAILED)
            if failed and record.state in {RunState.RUNNING, RunState.STAGED}:
                reason = f"{len(failed)} chunk(s) failed: {', '.join(failed[:10])}"
                _move(connection, run_id, record.state, RunState.FAILED, actor, reason)
                return RunState.FAILED
            all_staged = all(row.state in STAGED for row in found)
            if all_staged and record.state is RunState.RUNNING:
                _move(connection, run_id, record.state, RunState.STAGED, actor, f"{len(found)} chunks staged")
                return RunState.STAGED
            return record.state

    def attempts(self, run_id: str) -> list[dict[str, Any]]:
        """Return the run's attempts, in order."""
        return self._rows(sa.select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.id))

    # --- gates ----------------------------------------------------------------------------------------------------

    def record_gated(self, run_id: str, gated: Sequence[GatedChunk]) -> None:
        """Record what the gates measured, and their verdicts, for chunks of one pass."""
        at = now()
        with self.engine.begin() as connection:
            lock_run(connection, run_id)  # or two passes over the same chunks could wait for each other's rows
            for item in gated:
                hashed = {"files": item.files, "derived": item.derived}
                changed = connection.execute(
                    chunks.update()
                    .where(
                        chunks.c.run_id == run_id,
                        chunks.c.chunk == item.chunk,
                        chunks.c.attempt == item.attempt,
                        # a chunk that no attempt ever staged is a reconciliation's, which judges what is published; one
                        # that was planned anew has lost the files that were looked at
                        sa.or_(
                            chunks.c.state == ChunkState.STAGED,
                            sa.and_(chunks.c.state == ChunkState.PLANNED, chunks.c.attempt == 0),
                        ),
                    )
                    .values(
                        state=ChunkState.PASSED if item.verdict.passed else ChunkState.FAILED,
                        digest=item.digest,
                        measures=canonical_json(dict(item.measures)),
                        **{name: canonical_json(files) for name, files in hashed.items() if files is not None},
                        error="" if item.verdict.passed else item.verdict.summary,
                        updated_at=at,
                    )
                )
                if (
                    changed.rowcount == 1
                ):  # else another attempt has replaced the files, or another launch has judged them
                    _insert_verdict(connection, run_id, item.verdict, at)

    def record_verdicts(self, run_id: str, found: Sequence[Verdict]) -> None:
        """Record run-level verdicts."""
        at = now()
        with self.engine.begin() as connection:
            for verdict in found:
                _insert_verdict(connection, run_id, verdict, at)

    def judge(self, run_id: str, found: Sequence[Verdict], actor: str, *, of: str) -> bool:
        """Record run-level verdicts and move the run: to VALIDATED, or to FAILED naming the gates that did not pass.

        Of one that could not judge, the reason has the error. It stays STAGED where nothing failed and a gate asks for an owner. `of` names the chunks that were judged
        (`judged.name_of`).

        Returns False, having recorded nothing, if the run is STAGED no more, or other files are staged: another launch has
        judged it meanwhile, or chunks of it were computed again.
        """
        at = now()
        failed = [verdict.gate for verdict in found if not verdict.passed and not verdict.asks]
        with self.engine.begin() as connection:
            staged = self._locked(connection, run_id).state is RunState.STAGED
            if not staged or judged.present(connection, run_id) != of:
                return False
            for verdict in found:
                _insert_verdict(connection, run_id, replace(verdict, judged=of), at)
            if not failed and any(verdict.asks for verdict in found):
                return True
            state = RunState.FAILED if failed else RunState.VALIDATED
            why = f"gate(s) not passed: {', '.join(failed)}" if failed else f"{len(found)} run gates passed"
            raised = [f"{one.gate} raised {one.details[RAISED]}" for one in found if one.details.get(RAISED)]
            why = "; ".join([why, *raised])
            _move(connection, run_id, RunState.STAGED, state, actor, why)
        return True

    def verdicts(self, run_id: str) -> list[Verdict]:
        """Return the newest verdict of each gate and chunk of a run."""
        newest: dict[tuple[str, str], Verdict] = {}
        with self.engine.connect() as connection:
            for row in connection.execute(
                sa.select(verdicts).where(verdicts.c.run_id == run_id).order_by(verdicts.c.id)
            ):
                newest[row.chunk, row.gate] = Verdict(
                    row.gate,
                    row.passed,
                    row.summary,
                    parsed(verdicts.c.details, row.details, dict),
                    row.chunk,
                    row.attempt,
                    row.at,
                    row.asks,
                    row.judged,
                )
        return list(newest.values())

    # --- publication ----------------------------------------------------------------------------------------------

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
    ) -> int:
        """Record the intent to change the target under a lease's token, before it is changed; return its id.

        Whoever holds the lease knows that nobody is at the same any more: an earlier intent is abandoned, and what came
        of it is found in the target and recorded under this one.

        Raises:
            LeaseLost: if the lease was taken over: the intent that counts is the new holder's.
            TransitionRefused: if `policy_hash`, against which it was held, is not that of the policy in force by now.
            RunStopped: if somebody has stopped the run, and `unless_stopped` asks for that. A stop that comes later finds
                the intent, and does not end it.
        """
        with self.engine.begin() as connection:
            if policy_hash:
                policy_in_force.require_still(connection, policy_hash)
            if unless_stopped:
                lock_run(connection, run_id)
                stops.refuse_held(connection, run_id)
            if token is not None:
                require_lease(connection, token)
                connection.execute(
                    publications.update()
                    .where(
                        publications.c.run_id == run_id,
                        publications.c.action == action,
                        publications.c.state == "INTENT",
                    )
                    .values(state=ABANDONED, note="it did not say what came of it; a later entry does", ended_at=now())
                )
            result = connection.execute(
                publications.insert().values(
                    run_id=run_id,
                    action=action,
                    state="INTENT",
                    base_snapshot_id=base,
                    evidence_root=evidence_root,
                    ref=ref,
                    token=token,
                    actor=actor,
                    **actors.columns(actor),
                    started_at=now(),
                )
            )
            assert result.inserted_primary_key is not None
            return int(result.inserted_primary_key[0])

    def close_refused(self, publication: int, note: str) -> None:
        """Record that a publication was refused and changed nothing; one that another process has closed stays as it is."""
        with self.engine.begin() as connection:
            connection.execute(
                publications.update()
                .where(publications.c.id == publication, publications.c.state == "INTENT")
                .values(state="REFUSED", note=note, ended_at=now())
            )

    def _holding_target(self, connection: sa.Connection, run_id: str, plan_hash: str) -> RunRecord:
        """Return a run; nobody else changes its target's runs and who holds its chunks until the transaction has ended.

        Raises:
            StateMoved: if its plan is another one than that of `plan_hash`, which was looked at before.
        """
        lock_target(connection, self.run(run_id, connection=connection).target)
        record = self.run(run_id, connection=connection)
        if record.plan_hash != plan_hash:
            raise plans.planned_anew(run_id, plan_hash)
        return record

    def _before_locking(self, run_id: str) -> tuple[Plan, str]:
        """Return the plan of a run and its hash, for a transaction that keeps nobody waiting while a plan is parsed."""
        record = self.run(run_id)
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
        """
        plan, plan_hash = self._before_locking(run_id)
        with self.engine.begin() as connection:
            record = self._holding_target(connection, run_id, plan_hash)
            at = _instant(connection, record.target)
            recorded = record.state in {RunState.PUBLISHED, RunState.SUPERSEDED}
            if recorded or not _close_publication(connection, publication, snapshot_id, added, removed, at):
                _close_recorded(connection, publication, at)
                return
            if keys is None:
                keys = [chunk.key for chunk in plan.chunks]
            before = _take(connection, record.target, keys, run_id, at)
            if len(keys) == len(plan.chunks):  # a run that changes some of the rows completes nothing
                watermarks.advance(connection, plan, at)
            _require_state(record, BEFORE[_action_of(connection, publication)], RunState.PUBLISHED)
            _move(connection, run_id, record.state, RunState.PUBLISHED, actor, f"snapshot {snapshot_id}")
            self._supersede(connection, set(before.values()), run_id, actor)

    def undo(self, run_id: str, publication: int, *, snapshot_id: int, added: int, removed: int, actor: str) -> None:
        """Record a rollback that landed: the runs accepted before are accepted again."""
        plan, plan_hash = self._before_locking(run_id)
        with self.engine.begin() as connection:
            record = self._holding_target(connection, run_id, plan_hash)
            at = _instant(connection, record.target)
            recorded = record.state is RunState.ROLLED_BACK
            if recorded or not _close_publication(connection, publication, snapshot_id, added, removed, at):
                _close_recorded(connection, publication, at)
                return
            keys = [chunk.key for chunk in plan.chunks]
            earlier = _held_before(connection, record.target, run_id, publication)
            _end_accepted(connection, record.target, keys, run_id, "ROLLED_BACK", at, holder=run_id)
            for chunk, holder in earlier:
                _insert_accepted(connection, record.target, [chunk], holder, at)
            watermarks.withdraw(connection, plan, at)
            _move(connection, run_id, RunState.PUBLISHED, RunState.ROLLED_BACK, actor, f"snapshot {snapshot_id}")
            for holder in sorted({holder for _, holder in earlier}):
                if self.run(holder, connection=connection).state is RunState.SUPERSEDED:
                    _move(
                        connection, holder, RunState.SUPERSEDED, RunState.PUBLISHED, actor, f"run {run_id} rolled back"
                    )

    def accept_version(self, run_id: str, publication: int, *, snapshot_id: int, actor: str) -> None:
        """Record that a version published under its name is what main shows from now on."""
        plan, plan_hash = self._before_locking(run_id)
        with self.engine.begin() as connection:
            record = self._holding_target(connection, run_id, plan_hash)
            at = _instant(connection, record.target)
            if not _close_publication(connection, publication, snapshot_id, 0, 0, at):
                return  # another process has recorded it, perhaps with what came after it
            if record.state is not RunState.PUBLISHED:
                raise _moved(run_id, RunState.PUBLISHED, record.state)
            keys = [chunk.key for chunk in plan.chunks]
            before = _take(connection, record.target, keys, run_id, at)
            watermarks.advance(connection, plan, at)
            self._supersede(connection, set(before.values()), run_id, actor)

    def _supersede(self, connection: sa.Connection, holders: Iterable[str], by: str, actor: str) -> None:
        """Move the runs that hold no chunk any more since another one has taken theirs.

        What has landed is on record, whatever state a holder is in: earlier versions could give a chunk back to one that
        was rolled back.
        """
        for holder in sorted(holders):
            published = self.run(holder, connection=connection).state is RunState.PUBLISHED
            if published and not _still_holds(connection, holder):
                _move(connection, holder, RunState.PUBLISHED, RunState.SUPERSEDED, actor, f"by run {by}")

    def replan(
        self, run_id: str, plan: Plan, keys: Sequence[str], *, actor: str, reason: str, token: int | None = None
    ) -> int:
        """Plan chunks of a validated run anew, as its approved conflict policy allows: they are computed again.

        Whoever computes one of them still, by the plan that it had, computes in vain: that attempt is OBSOLETE. Returns the
        number of the amendment.

        Raises:
            StateMoved: if the run is VALIDATED no more.
            LeaseLost: if the lease under which the conflict was found was taken over.
        """
        at = now()
        with self.engine.begin() as connection:
            if token is not None:
                require_lease(connection, token)
            lock_run(connection, run_id)
            _move(connection, run_id, RunState.VALIDATED, RunState.RUNNING, actor, reason)
            last = connection.execute(
                sa.select(sa.func.max(amendments.c.number)).where(amendments.c.run_id == run_id)
            ).scalar()
            number = (last or 0) + 1
            connection.execute(
                amendments.insert().values(
                    run_id=run_id,
                    number=number,
                    chunks=json.dumps(list(keys)),
                    plan=plan.to_json(),
                    reason=reason,
                    actor=actor,
                    at=at,
                )
            )
            connection.execute(
                chunks.update()
                .where(chunks.c.run_id == run_id, chunks.c.chunk == sa.bindparam("key"))
                .values(state=ChunkState.PLANNED, files="[]", derived="[]", replaced="[]", digest=None, measures="{}"),
                [{"key": key} for key in keys],
            )
            running = sa.select(attempts.c.attempt, attempts.c.chunks).where(
                attempts.c.run_id == run_id, attempts.c.state == "RUNNING"
            )
            in_vain = [
                one
                for one in connection.execute(running)
                if not set(keys).isdisjoint(parsed(attempts.c.chunks, one.chunks, list))
            ]
            connection.execute(
                attempts.update()
                .where(attempts.c.run_id == run_id, attempts.c.attempt.in_([one.attempt for one in in_vain]))
                .values(state=OBSOLETE, ended_at=at, error=f"its chunks were planned anew: {reason}")
            )
        return number

    def edition(self, run_id: str) -> int:
        """Return how often chunks of a run were planned anew: the number of its newest amendment, 0 if there is none.

        Ask for it before `plans`: who computes by them names it to `start_attempt`, which finds out what is obsolete.
        """
        with self.engine.connect() as connection:
            newest = sa.select(sa.func.max(amendments.c.number)).where(amendments.c.run_id == run_id)
            return int(connection.execute(newest).scalar() or 0)

    def amendments(self, run_id: str) -> list[dict[str, Any]]:
        """Return how often and why chunks of a run were planned anew, in order."""
        return self._rows(sa.select(amendments).where(amendments.c.run_id == run_id).order_by(amendments.c.number))

    def plans(self, record: RunRecord) -> dict[str, Plan]:
        """Return the plan of each chunk of a run: the approved one, or the one it was planned anew with."""
        found = {chunk.key: record.plan for chunk in record.plan.chunks}
        for amendment in self.amendments(record.run_id):
            plan = plans.parsed(amendment["plan"])
            found |= dict.fromkeys(parsed(amendments.c.chunks, amendment["chunks"], list), plan)
        return found

    def accepted(self, target: str, keys: Iterable[str] | None = None) -> dict[str, str]:
        """Return the run accepted today for each chunk of a target (of `keys`, if given)."""
        with self.engine.connect() as connection:
            return _holders(connection, target, None if keys is None else list(keys))

    def publications(self, run_id: str) -> list[dict[str, Any]]:
        """Return the publications and rollbacks of a run, in order."""
        return self._rows(sa.select(publications).where(publications.c.run_id == run_id).order_by(publications.c.id))

    def committed(self, target: str) -> list[dict[str, Any]]:
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
            .where(runs.c.target == target, publications.c.state == "COMMITTED")
            .order_by(recorded_at, publications.c.id)
        )
        return self._rows(query)

    def interrupted_publications(self, target: str) -> list[tuple[int, str, str]]:
        """Return id, run and action of each publication of a target that may have landed and is not on record.

        Of several tries of the same run, the newest.
        """
        query = (
            sa.select(sa.func.max(publications.c.id), publications.c.run_id, publications.c.action)
            .join(runs, runs.c.run_id == publications.c.run_id)
            .where(runs.c.target == target, publications.c.state == "INTENT")
            .where(sa.or_(*(sa.and_(publications.c.action == a, runs.c.state == s) for a, s in BEFORE.items())))
            .group_by(publications.c.run_id, publications.c.action)
            .order_by(sa.func.max(publications.c.id))
        )
        with self.engine.connect() as connection:
            return [(row[0], row[1], row[2]) for row in connection.execute(query)]

    # --- sinks ----------------------------------------------------------------------------------------------------

    def record_sink_attempt(
        self, run_id: str, *, sink: str, sink_class: str, mode: str, action: str, decision: str, reason: str
    ) -> None:
        """Record that a sink was asked for, and the answer."""
        with self.engine.begin() as connection:
            connection.execute(
                sink_attempts.insert().values(
                    run_id=run_id,
                    sink=sink,
                    sink_class=sink_class,
                    mode=mode,
                    action=action,
                    decision=decision,
                    reason=reason,
                    at=now(),
                )
            )

    def sink_attempts(self, run_id: str) -> list[dict[str, Any]]:
        """Return the sink requests of a run, in order."""
        return self._rows(sa.select(sink_attempts).where(sink_attempts.c.run_id == run_id).order_by(sink_attempts.c.id))

    def _rows(self, query: sa.Select[Any]) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name


def chunks_of(attempt: Mapping[str, Any]) -> list[str]:
    """Return the chunks of an attempt, from its row.

    Raises:
        IllegibleRow: if it does not say which.
    """
    return parsed(attempts.c.chunks, attempt["chunks"], list)


@contextmanager
def open_ledger(url: str) -> Iterator[Ledger]:
    """Yield a ledger of the current schema and close its connections."""
    ledger = Ledger(url)
    try:
        ledger.require_current()
        yield ledger
    finally:
        ledger.engine.dispose()


@cache
def revisions() -> tuple[str, ...]:
    """Return the revisions of the schema that this code knows, oldest first: what the names of the migrations begin with."""
    return tuple(sorted(file.name.partition("_")[0] for file in (_MIGRATIONS / "versions").glob("[0-9]*_*.py")))


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command  # noqa: PLC0415 - half a second, and hardly any command upgrades a ledger

    config = _alembic_config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _alembic_config() -> AlembicConfig:
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.set_main_option("path_separator", "os")
    return config


def _require_name(actor: str) -> None:
    if problems := actors.no_name(actor):
        raise TransitionRefused(problems)


def _require_same_text(run_id: str, state: str, recorded: str, given: str) -> None:
    if recorded != given:
        raise TransitionRefused(
            Problem(
                f"run '{run_id}' is {state} with manifest {recorded}; this text is {given}",
                "after approval a manifest cannot change",
                "give the changed manifest a run id of its own",
            )
        )


def _move(connection: sa.Connection, run_id: str, current: RunState, wanted: RunState, actor: str, reason: str) -> None:
    check_transition(run_id, current, wanted)
    at = now()
    changed = connection.execute(
        runs.update()
        .where(runs.c.run_id == run_id, runs.c.state == current.value)
        .values(state=wanted.value, state_reason=reason, updated_at=at)
    )
    if changed.rowcount != 1:
        raise _moved(run_id, current)
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


def _require_state(record: RunRecord, expected: RunState, wanted: RunState) -> None:
    """Refuse to move a run that the lifecycle does not let, or that is not in the state that was looked at."""
    check_transition(record.run_id, record.state, wanted)
    if record.state is not expected:
        raise _moved(record.run_id, expected, record.state)


def _moved(run_id: str, expected: RunState, found: str = "in another state") -> StateMoved:
    return StateMoved(
        Problem(
            f"run '{run_id}' is no longer {expected} but {found}",
            "a transition starts from the state it was decided on",
            "somebody else moved it: look at `backfill status` again",
        )
    )


def _require_same_plan(connection: sa.Connection, run_id: str, keys: Sequence[str], edition: int) -> None:
    """Refuse to compute chunks by a plan that one of them has no longer; the caller has locked the run.

    Raises:
        StateMoved: naming the chunks that were planned anew since the run had this edition.
    """
    query = sa.select(amendments.c.chunks).where(amendments.c.run_id == run_id, amendments.c.number > edition)
    anew = {key for text in connection.execute(query).scalars() for key in parsed(amendments.c.chunks, text, list)}
    if changed := [key for key in keys if key in anew]:
        raise plans.computed_in_vain(run_id, changed)


def _state_of_attempt(connection: sa.Connection, run_id: str, attempt: int) -> str:
    query = sa.select(attempts.c.state).where(attempts.c.run_id == run_id, attempts.c.attempt == attempt)
    return str(connection.execute(query).scalar() or "")


def _action_of(connection: sa.Connection, publication: int) -> str:
    query = sa.select(publications.c.action).where(publications.c.id == publication)
    return str(connection.execute(query).scalar_one())


def _find(connection: sa.Connection, run_id: str) -> RunRecord | None:
    with legible(f"ledger runs {run_id}"):
        row = connection.execute(sa.select(*_RUN).where(runs.c.run_id == run_id)).one_or_none()
        return None if row is None else _run_record(connection.engine, row)


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


def _staged_files(column: sa.Column[Any], text: str) -> tuple[StagedFile, ...]:
    found = tuple(StagedFile(**file) for file in parsed(column, text, list))
    for file in found:
        if type(file.rows) is not int or type(file.bytes) is not int:
            raise TypeError(f"{column.name} has a file of {file.rows!r} rows and {file.bytes!r} bytes")
        if not all(isinstance(one, str) for one in (file.path, file.sha256, file.footer)):
            raise TypeError(f"{column.name} has a file of which path or hash is no text: {file.path!r}")
    return found


def _chunk_record(row: Any) -> ChunkRecord:
    return ChunkRecord(
        row.chunk,
        row.idx,
        ChunkState(row.state),
        row.attempt,
        row.rows,
        row.bytes,
        _staged_files(chunks.c.files, row.files),
        row.digest,
        parsed(chunks.c.measures, row.measures, dict),
        row.error,
        _staged_files(chunks.c.derived, row.derived),
        tuple(parsed(chunks.c.replaced, row.replaced, list)),
    )


def _insert_verdict(connection: sa.Connection, run_id: str, verdict: Verdict, at: datetime) -> None:
    connection.execute(
        verdicts.insert().values(
            run_id=run_id,
            chunk=verdict.chunk,
            gate=verdict.gate,
            attempt=verdict.attempt,
            passed=verdict.passed,
            asks=verdict.asks,
            summary=verdict.summary,
            details=canonical_json(dict(verdict.details)),
            judged=verdict.judged,
            at=at,
        )
    )


def _instant(connection: sa.Connection, target: str) -> datetime:
    """Return the present instant, but after that of every change of a target on record: their order is that of the instants.

    Ask for it once the target is locked: whoever waited for the lock changes it later than who held it. A clock that was
    set back does not count.
    """
    newest = connection.execute(
        sa.select(sa.func.max(publications.c.ended_at))
        .join(runs, runs.c.run_id == publications.c.run_id)
        .where(runs.c.target == target, publications.c.state == "COMMITTED")
    ).scalar()
    present = now()
    with legible("ledger publications of " + target):  # the calendar's last instant has none after it
        return present if newest is None else max(present, newest + _MOMENT)


def _close_publication(
    connection: sa.Connection, publication: int, snapshot_id: int, added: int, removed: int, at: datetime
) -> bool:
    changed = connection.execute(
        publications.update()
        .where(publications.c.id == publication, publications.c.state == "INTENT")
        .values(state="COMMITTED", snapshot_id=snapshot_id, files_added=added, files_removed=removed, ended_at=at)
    )
    return changed.rowcount == 1


def _close_recorded(connection: sa.Connection, publication: int, at: datetime) -> None:
    """Close an intent whose outcome another process has put on record, perhaps with what came after it."""
    connection.execute(
        publications.update()
        .where(publications.c.id == publication, publications.c.state == "INTENT")
        .values(state="REFUSED", note="another process has recorded it", ended_at=at)
    )


def _holders(connection: sa.Connection, target: str, keys: Sequence[str] | None) -> dict[str, str]:
    query = sa.select(accepted_versions.c.chunk, accepted_versions.c.run_id).where(
        accepted_versions.c.target == target, accepted_versions.c.ended_at.is_(None)
    )
    wanted = None if keys is None else set(keys)
    return {row.chunk: row.run_id for row in connection.execute(query) if wanted is None or row.chunk in wanted}


def _take(connection: sa.Connection, target: str, keys: Sequence[str], run_id: str, at: datetime) -> dict[str, str]:
    """Make a run the holder of chunks; return who held them before."""
    before = _holders(connection, target, keys)
    if keys:
        _end_accepted(connection, target, keys, run_id, "SUPERSEDED", at)
        _insert_accepted(connection, target, keys, run_id, at)
    return before


def _held_before(connection: sa.Connection, target: str, run_id: str, rollback: int) -> list[tuple[str, str]]:
    """Return the chunks that a run took when it was last published, reinstated or accepted, each with who held it then.

    That is since the rollback before the one that is being recorded: of a chunk that nobody held then, nobody holds it again.
    A chunk that was taken from the run since, and given back to it, is one that it took then. And nobody who is rolled
    back holds anything: earlier versions could have it so.
    """
    rolled_back = sa.select(sa.func.max(publications.c.ended_at)).where(
        publications.c.run_id == run_id,
        publications.c.action == ROLLBACK,
        publications.c.state == "COMMITTED",
        publications.c.id != rollback,
    )
    since = connection.execute(rolled_back).scalar()
    taken = (
        sa.select(accepted_versions.c.chunk, accepted_versions.c.run_id)
        .join(runs, runs.c.run_id == accepted_versions.c.run_id)
        .where(
            accepted_versions.c.target == target,
            accepted_versions.c.ended_by == run_id,
            accepted_versions.c.ended_how == "SUPERSEDED",
            sa.true() if since is None else accepted_versions.c.ended_at > since,
            runs.c.state.in_([RunState.PUBLISHED, RunState.SUPERSEDED]),
        )
        .order_by(accepted_versions.c.id)
    )
    return [(row.chunk, row.run_id) for row in connection.execute(taken)]


def _still_holds(connection: sa.Connection, run_id: str) -> bool:
    query = sa.select(sa.func.count()).where(
        accepted_versions.c.run_id == run_id, accepted_versions.c.ended_at.is_(None)
    )
    return bool(connection.execute(query).scalar_one())


def _end_accepted(
    connection: sa.Connection,
    target: str,
    keys: Sequence[str],
    by: str,
    how: str,
    at: datetime,
    *,
    holder: str | None = None,
) -> None:
    current = accepted_versions.c
    connection.execute(
        accepted_versions.update()
        .where(
            current.target == target,
            current.ended_at.is_(None),
            current.chunk == sa.bindparam("key"),
            sa.true() if holder is None else current.run_id == holder,
        )
        .values(ended_at=at, ended_by=by, ended_how=how),
        [{"key": key} for key in keys],
    )


def _insert_accepted(connection: sa.Connection, target: str, keys: Sequence[str], run_id: str, at: datetime) -> None:
    connection.execute(
        accepted_versions.insert(),
        [{"target": target, "chunk": key, "run_id": run_id, "accepted_at": at} for key in keys],
    )
