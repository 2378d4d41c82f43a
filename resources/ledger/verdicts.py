"""Verdicts: what gates say of chunks and of runs, and what follows for both.

Put here how verdicts are recorded and read. How a gate comes to one is the gates'; what an owner may accept is
`acceptances`'.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from manifests.canonical import LATER, canonical_json
from manifests.lifecycle import ChunkState, RunState
from manifests.model import Mode
from manifests.staged_file import StagedFile
from resources.ledger import instants, judged
from resources.ledger.cells import as_said
from resources.ledger.chunks import by_the_statement
from resources.ledger.locks import lock_run
from resources.ledger.part import Part
from resources.ledger.runs import locked_run, move_run
from resources.ledger.tables import chunks, runs, verdicts

RAISED = "raised"
"""In the details of a verdict: the error of a gate that could not judge."""


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


class Standing(NamedTuple):
    """The newest verdict of a gate on a chunk, or on the whole run, without what it says in words."""

    passed: bool
    attempt: int
    judged: str


_WAITING = sa.or_(
    chunks.c.state == ChunkState.STAGED, sa.and_(chunks.c.state == ChunkState.PLANNED, chunks.c.attempt == 0)
)
"""Chunks that wait for a verdict.

One that no attempt ever staged is a reconciliation's, which judges what is published; one that was planned anew has lost the files
that were looked at.
"""


class Verdicts(Part):
    """The verdicts on a ledger's runs and their chunks."""

    def record_gated(self, run_id: str, gated: Sequence[GatedChunk]) -> None:
        """Record what the gates measured, and their verdicts, for chunks of one pass."""
        at = instants.now(self.engine)
        with self.engine.begin() as connection:
            lock_run(connection, run_id)  # or two passes over the same chunks could wait for each other's rows
            waiting = sa.select(chunks.c.chunk, chunks.c.attempt).where(chunks.c.run_id == run_id, _WAITING)
            there = {
                (row.chunk, row.attempt)
                for some in by_the_statement([item.chunk for item in gated])
                for row in connection.execute(waiting.where(chunks.c.chunk.in_(some)))
            }
            # else another attempt has replaced the files, or another launch has judged them
            mine = [item for item in gated if (item.chunk, item.attempt) in there]
            _record_measured(connection, run_id, mine, at)
            insert_verdicts(connection, run_id, [item.verdict for item in mine], at)

    def record_verdicts(self, run_id: str, found: Sequence[Verdict]) -> None:
        """Record run-level verdicts."""
        at = instants.now(self.engine)
        with self.engine.begin() as connection:
            insert_verdicts(connection, run_id, found, at)

    def judge(self, run_id: str, found: Sequence[Verdict], actor: str, *, of: str) -> bool:
        """Record run-level verdicts and move the run: to VALIDATED, or to FAILED naming the gates that did not pass.

        Of one that could not judge, the reason has the error. It stays STAGED where nothing failed and a gate asks for an owner. `of` names the chunks that were judged
        (`judged.name_of`).

        Returns False, having recorded nothing, if the run is STAGED no more, or other files are staged: another launch has
        judged it meanwhile, or chunks of it were computed again.
        """
        at = instants.now(self.engine)
        failed = [verdict.gate for verdict in found if not verdict.passed and not verdict.asks]
        with self.engine.begin() as connection:
            staged = locked_run(connection, run_id).state is RunState.STAGED
            if not staged or judged.present(connection, run_id) != of:
                return False
            insert_verdicts(connection, run_id, [replace(verdict, judged=of) for verdict in found], at)
            if not failed and any(verdict.asks for verdict in found):
                return True
            state = RunState.FAILED if failed else RunState.VALIDATED
            why = f"gate(s) not passed: {', '.join(failed)}" if failed else f"{len(found)} run-level gates passed"
            raised = [f"{one.gate} raised {one.details[RAISED]}" for one in found if one.details.get(RAISED)]
            why = "; ".join([why, *raised])
            move_run(connection, run_id, RunState.STAGED, state, actor, why)
        return True

    def verdicts(self, run_id: str, *, of_chunks: bool = True) -> list[Verdict]:
        """Return the newest verdict of each gate and chunk of a run; without those of chunks, which may be very many, if not `of_chunks`."""
        query = sa.select(verdicts).where(verdicts.c.run_id == run_id)
        with self.engine.connect() as connection:
            return _newest(connection, query if of_chunks else query.where(verdicts.c.chunk == ""))

    def last_judged(self, target: str) -> str | None:
        """Return the run of a target that gates have judged last: as a whole, or by a chunk that keeps it from that.

        A reconciliation has gates of its own.
        """
        joined = verdicts.join(runs, runs.c.run_id == verdicts.c.run_id)
        mine = (runs.c.target == target, runs.c.mode != Mode.RECONCILIATION.value)
        query = sa.select(verdicts.c.id, verdicts.c.run_id).select_from(joined).where(*mine)
        newest = query.order_by(verdicts.c.id.desc()).limit(1)
        with self.engine.connect() as connection:
            # two questions: of chunks, which are very many, none is looked at that was judged before
            as_a_whole = connection.execute(newest.where(verdicts.c.chunk == "")).first()
            since = 0 if as_a_whole is None else as_a_whole.id
            failed = connection.execute(newest.where(verdicts.c.id > since, sa.not_(verdicts.c.passed))).first()
        last = failed or as_a_whole
        return None if last is None else str(last.run_id)

    def verdicts_of_chunks(self, run_id: str, keys: Collection[str]) -> list[Verdict]:
        """Return the newest verdict of each gate on chunks of a run."""
        query = sa.select(verdicts).where(verdicts.c.run_id == run_id)
        with self.engine.connect() as connection:
            return [
                one
                for some in by_the_statement(keys)
                for one in _newest(connection, query.where(verdicts.c.chunk.in_(some)))
            ]

    def verdicts_not_passed(self, run_id: str) -> list[Verdict]:
        """Return the newest verdict of each gate and chunk of a run, of those that have not passed."""
        failed = sa.select(verdicts.c.chunk).where(verdicts.c.run_id == run_id, sa.not_(verdicts.c.passed))
        query = sa.select(verdicts).where(verdicts.c.run_id == run_id, verdicts.c.chunk.in_(failed))
        with self.engine.connect() as connection:
            return [one for one in _newest(connection, query) if not one.passed]

    def standing_verdicts(self, run_id: str) -> dict[tuple[str, str], Standing]:
        """Return by chunk and gate how each newest verdict of a run stands."""
        found = verdicts.c
        query = sa.select(found.chunk, found.gate, found.passed, found.attempt, found.judged)
        with self.engine.connect() as connection:
            rows = connection.execute(query.where(found.run_id == run_id).order_by(found.id))
            return {(chunk, gate): Standing(passed, attempt, judged) for chunk, gate, passed, attempt, judged in rows}


def _newest(connection: sa.Connection, query: sa.Select[Any]) -> list[Verdict]:
    """Return the newest verdict of each gate and chunk among those that a query finds."""
    newest: dict[tuple[str, str], sa.Row[Any]] = {}
    for row in connection.execute(query.order_by(verdicts.c.id)):
        newest[row.chunk, row.gate] = row
    return [
        Verdict(
            row.gate,
            row.passed,
            row.summary,
            details_said(row.details),
            row.chunk,
            row.attempt,
            row.at,
            row.asks,
            row.judged,
        )
        for row in newest.values()
    ]


def details_said(details: Any) -> dict[str, Any]:
    """Return the details of a verdict: of the text of its cell, or of what `rows.cell` has read of that.

    Raises:
        IllegibleRow: if it says something else.
    """
    return as_said(verdicts.c.details, details, dict)


def _record_measured(connection: sa.Connection, run_id: str, gated: Iterable[GatedChunk], at: datetime) -> None:
    """Put on record what the gates measured of chunks: in one statement, but for those of which other files were hashed."""
    alike: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for item in gated:
        hashed = {"files": item.files, "derived": item.derived}
        own = {name: canonical_json(files) for name, files in hashed.items() if files is not None}
        measured = {
            "one_chunk": item.chunk,
            "one_attempt": item.attempt,
            "state": ChunkState.PASSED if item.verdict.passed else ChunkState.FAILED,
            "digest": item.digest,
            "measures": canonical_json(dict(item.measures)),
            "error": "" if item.verdict.passed else item.verdict.summary,
        }
        alike.setdefault(tuple(own), []).append(measured | own)
    for values in alike.values():
        connection.execute(
            chunks.update()
            .where(
                chunks.c.run_id == run_id,
                chunks.c.chunk == sa.bindparam("one_chunk"),
                chunks.c.attempt == sa.bindparam("one_attempt"),
                _WAITING,
            )
            .values(updated_at=at),
            values,
        )


def insert_verdicts(connection: sa.Connection, run_id: str, found: Iterable[Verdict], at: datetime) -> None:
    """Put verdicts on record, as given at an instant."""
    values = [
        {
            "run_id": run_id,
            "chunk": verdict.chunk,
            "gate": verdict.gate,
            "attempt": verdict.attempt,
            "passed": verdict.passed,
            "asks": verdict.asks,
            "summary": verdict.summary,
            "details": canonical_json(dict(verdict.details)),
            "judged": verdict.judged,
            "at": at,
        }
        for verdict in found
    ]
    if values:
        connection.execute(verdicts.insert(), values)
