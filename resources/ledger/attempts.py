"""Attempts: who computes which chunks of a run, where to, and how it has ended.

Put here the transactions of computing: an attempt is opened, and ends staged or failed. What ends it from outside is a stop
(`stops`) or another plan of its chunks (`amendments`).
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from manifests.canonical import canonical_json
from manifests.chunks import in_words
from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import COMPUTABLE, AttemptState, ChunkState, RunState, check_transition
from manifests.staged_file import StagedFile
from resources.ledger import instants, plans, stops
from resources.ledger.admissions import Asked, admit, end_admissions, require_place
from resources.ledger.amendments import OBSOLETE, require_same_plan
from resources.ledger.cells import parsed
from resources.ledger.chunks import STAGED, DerivedFiles, open_ones
from resources.ledger.measured import LOST, UNSEEN, was_found_lost
from resources.ledger.part import Part, Stored
from resources.ledger.runs import RunRecord, locked_run, move_run, run_of
from resources.ledger.tables import attempts, chunks
from resources.processes import has_ended, this_process


@dataclass(frozen=True)
class AttemptRecord(Stored):
    """One attempt; `chunks` and `measures` are JSON, and `process` names the one that computes."""

    table: ClassVar[sa.Table] = attempts

    id: int
    run_id: str
    attempt: int
    chunks: str
    state: AttemptState
    prefix: str
    dagster_run_id: str
    host: str
    pid: int
    process: str
    started_at: datetime
    ended_at: datetime | None
    error: str
    measures: str

    @property
    def keys(self) -> list[str]:
        """Its chunks.

        Raises:
            IllegibleRow: if the row does not say which.
        """
        return parsed(attempts.c.chunks, self.chunks, list)

    @property
    def is_running(self) -> bool:
        """Whether it has not ended, as far as the ledger knows."""
        return self.state is AttemptState.RUNNING

    @property
    def seconds(self) -> float | None:
        """For how long it has computed; None while it does, and where its process was found gone: then nobody knows."""
        if self.ended_at is None or was_found_lost(self.state, self.error):
            return None
        return (self.ended_at - self.started_at).total_seconds()

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        return cls(**{**row._mapping, "state": AttemptState(row.state)})  # noqa: SLF001 - SQLAlchemy's public name


_CHUNKS_FAILED = re.compile(r"[0-9]+ chunk\(s\) failed: ")
_NUMBERS_AT_ONCE = 500
"""Attempts that a statement asks for one by one: a database has a limit."""


class Attempts(Part):
    """The attempts at computing chunks of a ledger's runs."""

    def start_attempt(
        self,
        run_id: str,
        keys: Sequence[str],
        *,
        edition: int,
        actor: str,
        location: str,
        dagster_run_id: str = "",
        asked: Asked | None = None,
        most_at_once: int | None = None,
    ) -> tuple[int, str] | None:
        """Open an attempt at computing `keys`; return its number and the folder it writes to.

        `edition` is that of the run (`edition`) when the plan that they are computed with was read. The number is new for
        the run, so an attempt never writes where another one has. None, and nothing is changed, if another launch has staged all
        of them meanwhile: the run may be further by now. With `asked` and `most_at_once`, the run's limits let it begin (`admissions`).

        Raises:
            MustWait: if the limits do not, yet.
            BudgetSpent: if they do not, at all.
            RunStopped: if somebody has stopped the run.
            StateMoved: if one of the chunks was planned anew since its plan was read.
        """
        if asked is not None:
            self._end_admissions(run_id)
        with self.engine.begin() as connection:
            record = locked_run(connection, run_id)
            if not open_ones(connection, run_id, keys):
                return None
            stops.refuse_held(connection, run_id)
            require_same_plan(connection, run_id, keys, edition)
            _require_computable(record)
            require_place(connection, run_id, most_at_once)
            if record.state is not RunState.RUNNING:
                move_run(connection, run_id, record.state, RunState.RUNNING, actor, f"computing {len(keys)} chunk(s)")
            last = connection.execute(
                sa.select(sa.func.max(attempts.c.attempt)).where(attempts.c.run_id == run_id)
            ).scalar()
            number = (last or 0) + 1
            started = instants.now(connection)  # before it is admitted: what it takes is never less than what it says
            if asked is not None:
                admit(connection, run_id, number, asked)
            prefix = f"{location}/run={run_id}/attempt-{number}"
            connection.execute(
                attempts.insert().values(
                    run_id=run_id,
                    attempt=number,
                    chunks=json.dumps(list(keys)),
                    state=AttemptState.RUNNING,
                    prefix=prefix,
                    dagster_run_id=dagster_run_id,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    process=this_process(),
                    started_at=started,
                )
            )
        return number, prefix

    def _end_admissions(self, run_id: str) -> None:
        """Put on record which batches have ended, by itself: whoever has to wait writes nothing else, and an end counts once found."""
        with self.engine.begin() as connection:
            end_admissions(connection, run_id)

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
        at = instants.now(self.engine)
        with self.engine.begin() as connection:
            record = locked_run(connection, run_id)
            stops.refuse_stopped(connection, run_id)
            if state_of_attempt(connection, run_id, attempt) == OBSOLETE:
                raise plans.computed_in_vain(run_id, list(files))
            if record.state is not RunState.RUNNING:
                raise TransitionRefused(
                    Problem(
                        f"run '{run_id}' became {record.state} while attempt {attempt} was computed",
                        "chunks are staged while their run is RUNNING",
                        "nothing of the attempt is used; see `backfill status`",
                    )
                )
            suppressed = _stage_chunks(connection, run_id, attempt, files, derived or {}, at)
            measures = dict(reads or {}) | {
                "suppressed_chunks": len(suppressed),
                "suppressed_rows": sum(file.rows for chunk in suppressed for file in files[chunk]),
            }
            _end_staged(connection, run_id, attempt, measures, at)
            end_admissions(connection, run_id)

    def fail_attempts_of_dead_processes(self, run_id: str) -> None:
        """Record as failed what is on record as being computed by processes of this machine that are no more."""
        query = sa.select(attempts).where(attempts.c.run_id == run_id, attempts.c.state == AttemptState.RUNNING)
        gone = [one.attempt for one in self._stored(AttemptRecord, query) if has_ended(one)]
        if not gone:
            return
        with self.engine.begin() as connection:
            connection.execute(
                attempts.update()
                .where(
                    attempts.c.run_id == run_id, attempts.c.attempt.in_(gone), attempts.c.state == AttemptState.RUNNING
                )
                .values(state=AttemptState.FAILED, ended_at=instants.now(connection), error=LOST)
            )
            end_admissions(connection, run_id)

    def fail_attempt(
        self,
        run_id: str,
        attempt: int,
        error: str,
        *,
        chunk: str | None = None,
        fails_run: str = "",
        actor: str = "",
        stopped: bool = False,
    ) -> str:
        """Record that an attempt failed, or was `stopped`; return the state it has ended in, which is that unless it had ended before.

        With `chunk`, that this one chunk did and why. With `fails_run`, a reason, that the run did: `actor` moves it from
        RUNNING to FAILED; where another launch has moved it on meanwhile, that is what it is. An attempt that has ended
        stays as it ended, and its chunk and its run as well: another attempt may be at it by now.
        """
        at = instants.now(self.engine)
        ended = AttemptState.STOPPED if stopped else AttemptState.FAILED
        with self.engine.begin() as connection:
            record = locked_run(connection, run_id)
            failed = connection.execute(
                attempts.update()
                # one that a stop or another plan of its chunks has ended has not failed
                .where(
                    attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.state == AttemptState.RUNNING
                )
                .values(state=ended, ended_at=at, error=error)
            )
            end_admissions(connection, run_id)
            if failed.rowcount != 1:
                _confirm_end(connection, run_id, attempt)
                return state_of_attempt(connection, run_id, attempt)
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
                move_run(connection, run_id, RunState.RUNNING, RunState.FAILED, actor, fails_run)
        return ended

    def resume(self, run_id: str, actor: str) -> RunRecord:
        """Move a run that may compute to RUNNING, if it is not there yet, and return it.

        Raises:
            RunStopped: if somebody has stopped the run.
        """
        with self.engine.begin() as connection:
            record = locked_run(connection, run_id)
            stops.refuse_held(connection, run_id)
            if record.state in {RunState.APPROVED, RunState.FAILED}:
                move_run(connection, run_id, record.state, RunState.RUNNING, actor, "computing chunks")
            return run_of(connection, run_id)

    def settle(self, run_id: str, actor: str) -> RunState:
        """Move a run to what its chunks say: FAILED if one failed, STAGED once all are staged; return its state.

        A run that has failed for some of its chunks says so of those that have failed since as well.
        """
        with self.engine.begin() as connection:
            record = locked_run(connection, run_id)
            has_failed = record.state is RunState.FAILED and _CHUNKS_FAILED.match(record.state_reason) is not None
            if record.state not in {RunState.RUNNING, RunState.STAGED} and not has_failed:
                return record.state
            mine = sa.select(chunks.c.state, sa.func.count()).where(chunks.c.run_id == run_id).group_by(chunks.c.state)
            found = {str(state): int(number) for state, number in connection.execute(mine)}
            if ChunkState.FAILED in found:
                named = sa.select(chunks.c.chunk).where(chunks.c.run_id == run_id, chunks.c.state == ChunkState.FAILED)
                failed = sorted(connection.execute(named).scalars())
                reason = f"{len(failed)} chunk(s) failed: {in_words(failed)}"
                state = record.state
                if has_failed and reason != record.state_reason:
                    state = RunState.RUNNING
                    move_run(connection, run_id, record.state, state, actor, "more chunks have failed")
                if state is not RunState.FAILED:
                    move_run(connection, run_id, state, RunState.FAILED, actor, reason)
                return RunState.FAILED
            if found.keys() <= STAGED and record.state is RunState.RUNNING:
                move_run(
                    connection, run_id, record.state, RunState.STAGED, actor, f"{sum(found.values())} chunks staged"
                )
                return RunState.STAGED
            return record.state

    def attempts(self, run_id: str, numbers: Collection[int] | None = None) -> list[AttemptRecord]:
        """Return the run's attempts (those of `numbers`, if given), in order."""
        query = sa.select(attempts).where(attempts.c.run_id == run_id)
        wanted = None if numbers is None else set(numbers)
        if wanted is not None and len(wanted) <= _NUMBERS_AT_ONCE:
            query = query.where(attempts.c.attempt.in_(sorted(wanted)))
        found = self._stored(AttemptRecord, query.order_by(attempts.c.id))
        return found if wanted is None else [one for one in found if one.attempt in wanted]


def _require_computable(record: RunRecord) -> None:
    """Refuse an attempt at chunks of a run that is in no state for it.

    Raises:
        TransitionRefused: saying in which state it is.
    """
    if record.state is not RunState.RUNNING:
        check_transition(record.run_id, record.state, RunState.RUNNING)
    if record.state not in COMPUTABLE:  # a VALIDATED run only goes back where its publisher plans chunks anew
        raise TransitionRefused(
            Problem(
                f"run '{record.run_id}' is {record.state}",
                f"chunks are computed while it is {', '.join(sorted(COMPUTABLE))}",
                "see `backfill status` for what the run waits for",
            )
        )


def _stage_chunks(
    connection: sa.Connection,
    run_id: str,
    attempt: int,
    files: Mapping[str, Sequence[StagedFile]],
    derived: Mapping[str, DerivedFiles],
    at: datetime,
) -> list[str]:
    """Stage chunks of a locked run, but for those that are: whoever staged one first keeps it, since two launches of it compute the same rows.

    Return those. All of them are one statement: a chunk's own would cost more than what it says.
    """
    wanted = open_ones(connection, run_id, files.keys())
    values = [
        {
            "one_chunk": chunk,
            "rows": sum(file.rows for file in staged),
            "bytes": sum(file.bytes for file in staged),
            "files": canonical_json(list(staged)),
            "derived": canonical_json(list(made.files)),
            "replaced": canonical_json(list(made.replaced)),
            "measures": canonical_json({"happened": dict(made.counts)} if made.counts else {}),
        }
        for chunk, staged in files.items()
        if chunk in wanted
        for made in [derived.get(chunk, DerivedFiles())]
    ]
    if values:
        connection.execute(
            chunks.update()
            .where(
                chunks.c.run_id == run_id,
                chunks.c.chunk == sa.bindparam("one_chunk"),
                *(
                    chunks.c.state != state for state in sorted(STAGED)
                ),  # a list of values would be one for each statement
            )
            .values(state=ChunkState.STAGED, attempt=attempt, digest=None, error="", updated_at=at),
            values,
        )
    return [chunk for chunk in files if chunk not in wanted]


def _end_staged(
    connection: sa.Connection, run_id: str, attempt: int, measures: Mapping[str, int], at: datetime
) -> None:
    """End an attempt as staged.

    Raises:
        TransitionRefused: if it has ended before.
    """
    ended = connection.execute(
        attempts.update()
        .where(attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.state == AttemptState.RUNNING)
        .values(state=AttemptState.STAGED, ended_at=at, measures=canonical_json(dict(measures)))
    )
    if ended.rowcount != 1:
        raise TransitionRefused(
            Problem(
                f"attempt {attempt} of run '{run_id}' was ended before it was staged",
                "files of an ended attempt are not used: they may be gone",
                "run the chunks again",
            )
        )


def _confirm_end(connection: sa.Connection, run_id: str, attempt: int) -> None:
    """Let the time of an attempt count that was stopped from a machine which could not see its process: this is that process."""
    own = (attempts.c.run_id == run_id, attempts.c.attempt == attempt, attempts.c.process == this_process())
    stopped = (attempts.c.state == AttemptState.STOPPED, attempts.c.error.startswith(UNSEEN))
    error = connection.execute(sa.select(attempts.c.error).where(*own, *stopped)).scalar()
    if error is not None:
        said = str(error).removeprefix(f"{UNSEEN}; ")
        connection.execute(attempts.update().where(*own, *stopped).values(error=said))


def chunks_of(attempt: AttemptRecord) -> list[str]:
    """Return the chunks of an attempt, from its row.

    Raises:
        IllegibleRow: if it does not say which.
    """
    return attempt.keys


def state_of_attempt(connection: sa.Connection, run_id: str, attempt: int) -> str:
    """Return the state of an attempt; empty if there is none of that number."""
    query = sa.select(attempts.c.state).where(attempts.c.run_id == run_id, attempts.c.attempt == attempt)
    return str(connection.execute(query).scalar() or "")
