"""What runs have taken, read from the ledger: to learn from, and to hold a run's own budgets against.

Put here the SQL of it. What follows for the next run is `manifests.costs`' to reckon; figures for the metrics are `figures`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter

from manifests.compaction import COMPACTION, REWRITING_VERSION
from manifests.costs import Measured, RunCosts
from manifests.lifecycle import AttemptState, RunState
from manifests.model import Mode
from manifests.staged_file import StagedFile
from resources.ledger.cells import IllegibleRow, illegible, legible, parsed
from resources.ledger.chunks import staged_files
from resources.ledger.plans import said
from resources.ledger.tables import accepted_versions, admissions, attempts, chunks, runs
from resources.processes import has_ended

_MOST = 20
"""Recorded runs that are learned from, the newest ones."""
_LARGEST = 16
"""Chunks of these runs whose files say how many bytes a row takes, those with the most rows: small files are half footer."""
_COSTS = TypeAdapter(RunCosts)
LOST = "its process ended"
"""What the error of an attempt begins with whose process was no more when somebody looked: for how long it computed, nobody knows."""
UNSEEN = "its process could not be seen"
"""What it begins with where the attempt was stopped from another machine, until its own process has put its end on record."""
_ALSO_LOST = (LOST, "process ended", UNSEEN)
_DONE = (RunState.STAGED, RunState.VALIDATED, RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK)


@dataclass(frozen=True)
class Taken:
    """What a run has taken: rows and bytes that staged attempts were given to read, bytes staged, seconds of all attempts.

    `charged` are the bytes that it is charged for: where its batches were admitted by limits, those of all of them, staged or not.
    Seconds of attempts are not counted whose processes were found dead, or could not be seen: how long they have computed is not on record.
    """

    rows: int
    bytes: int
    written: int
    seconds: float
    charged: int


@dataclass(frozen=True)
class Written:
    """What recorded runs have written: rows and bytes of their largest chunks, and the rows that their chunks have on the average.

    `files` are those of the largest chunk of all.
    """

    run_ids: tuple[str, ...]
    rows: int
    bytes: int
    rows_a_chunk: int
    files: tuple[StagedFile, ...]


def recorded(connection: sa.Connection, target: str, version: str, *, but: str = "") -> list[Measured]:
    """Return what the newest runs of a target have taken whose every chunk was staged: of a transform's version, if there are any.

    `but` is a run that is left out. Runs of which it is not on record what they were given to read are, too.
    """
    # who rewrites files says nothing of how long rows are computed, nor the other way round
    alike = (runs.c.kind == COMPACTION) if version == REWRITING_VERSION else (runs.c.kind != COMPACTION)
    done = _done(target, but).where(alike).limit(5 * _MOST)
    same = done.where(said(runs.c.plan, "transform_version") == version)
    return _learned(connection, same) or _learned(connection, done)


def _done(target: str, but: str) -> sa.Select[tuple[str]]:
    """Return the query of the runs of a target whose every chunk was staged, the newest first; `but` is left out."""
    return (
        sa.select(runs.c.run_id)
        .where(
            runs.c.target == target,
            runs.c.state.in_(_DONE),
            runs.c.run_id != but,
            runs.c.mode != Mode.RECONCILIATION.value,  # it has computed nothing
        )
        .order_by(runs.c.updated_at.desc(), runs.c.run_id)
    )


def written(connection: sa.Connection, target: str, version: str, *, but: str = "") -> Written | None:
    """Return what the newest runs of a target have written: of a transform's version, if there are any; None where none are on record.

    `but` is a run that is left out. So are merges: what those compute of a chunk is a part of its rows.
    """
    newest = _done(target, but).add_columns(runs.c.plan, runs.c.updated_at).limit(5 * _MOST).subquery()
    done = sa.select(newest.c.run_id).where(said(newest.c.plan, "merge").is_(None))
    done = done.order_by(newest.c.updated_at.desc(), newest.c.run_id).limit(_MOST)
    same = done.where(said(newest.c.plan, "transform_version") == version)
    return _written(connection, same) or _written(connection, done)


def _written(connection: sa.Connection, query: sa.Select[tuple[str]]) -> Written | None:
    """Return what runs have written; None where that is not on record, or nobody can read it: another run is not refused for that."""
    try:
        with legible("ledger chunks"):
            return _written_by(connection, query)
    except IllegibleRow:
        return None


def _written_by(connection: sa.Connection, query: sa.Select[tuple[str]]) -> Written | None:
    of_runs = chunks.c.run_id.in_(connection.execute(query).scalars().all())
    of_all = sa.select(sa.func.count(), sa.func.sum(chunks.c.rows)).where(of_runs, chunks.c.rows > 0)
    number, rows = connection.execute(of_all).one()
    if not number:
        return None
    largest = (
        sa.select(chunks.c.run_id, chunks.c.chunk, chunks.c.rows, chunks.c.bytes)
        .where(of_runs, chunks.c.rows > 0, chunks.c.bytes > 0)
        .order_by(chunks.c.rows.desc(), chunks.c.run_id, chunks.c.chunk)
        .limit(_LARGEST)
    )
    found = connection.execute(largest).all()
    if not found:
        return None
    first = sa.and_(chunks.c.run_id == found[0].run_id, chunks.c.chunk == found[0].chunk)
    files = staged_files(chunks.c.files, connection.execute(sa.select(chunks.c.files).where(first)).scalar_one())
    named = tuple(dict.fromkeys(row.run_id for row in found))
    total, size = sum(row.rows for row in found), sum(row.bytes for row in found)
    return Written(named, total, size, round(int(rows) / number), files)


def rows_held(connection: sa.Connection, target: str) -> dict[str, int]:
    """Return how many rows each chunk of a target has that a run holds today, as that run has computed it.

    Nothing of a chunk that was merged into, of whose rows a run has computed a part; and of none where nobody can read the figures.
    """
    holds = accepted_versions.c
    today = sa.and_(holds.target == target, holds.ended_at.is_(None))
    holders = sa.select(holds.run_id).where(today).distinct()
    merges = sa.select(runs.c.run_id).where(runs.c.run_id.in_(holders), said(runs.c.plan, "merge").is_not(None))
    query = (
        sa.select(holds.chunk, chunks.c.rows)
        .join(chunks, sa.and_(chunks.c.run_id == holds.run_id, chunks.c.chunk == holds.chunk))
        .where(today, chunks.c.rows.is_not(None), holds.run_id.not_in(connection.execute(merges).scalars().all()))
    )
    try:
        return {row.chunk: row.rows for row in connection.execute(query)}
    except IllegibleRow:
        return {}


def _learned(connection: sa.Connection, query: sa.Select[tuple[str]]) -> list[Measured]:
    """Return what the first runs have taken of which that is on record."""
    found: list[Measured] = []
    for run_id in connection.execute(query).scalars().all():
        if len(found) < _MOST and (one := _measured(connection, run_id)) is not None:
            found.append(one)
    return found


def _measured(connection: sa.Connection, run_id: str) -> Measured | None:
    """Return what a run has taken; None where that is not on record, or nobody can read it: another run is not refused for that."""
    try:
        one = taken(connection, run_id)
    except IllegibleRow:
        return None
    return Measured(run_id, one.rows, one.bytes, one.written, one.seconds) if one.rows and one.seconds > 0 else None


def costs(connection: sa.Connection, run_ids: Sequence[str]) -> dict[str, RunCosts]:
    """Return what the plans of runs have estimated; of those that have."""
    asked = sa.select(runs.c.run_id, said(runs.c.plan, "costs").label("costs")).where(runs.c.run_id.in_(run_ids))
    found = connection.execute(asked).all()
    return {row.run_id: _COSTS.validate_json(row.costs) for row in found if row.costs is not None}


def taken(connection: sa.Connection, run_id: str, at: datetime | None = None) -> Taken:
    """Return what a run has taken so far: of attempts under way until `at`, if that is given; else they do not count."""
    seconds, sums = 0.0, defaultdict[str, int](int)
    query = sa.select(attempts).where(attempts.c.run_id == run_id).order_by(attempts.c.id)
    for row in connection.execute(query):
        ended = at if row.state == AttemptState.RUNNING else row.ended_at
        if ended is not None and not is_lost(row):
            seconds += max(0.0, (ended - row.started_at).total_seconds())
        if row.state == AttemptState.STAGED:
            for name, count in _counts(row).items():
                if not name.startswith("suppressed_"):
                    sums[name.rpartition("_")[2]] += count
    size = connection.execute(sa.select(sa.func.sum(chunks.c.bytes)).where(chunks.c.run_id == run_id)).scalar()
    read = connection.execute(sa.select(sa.func.sum(admissions.c.bytes)).where(admissions.c.run_id == run_id)).scalar()
    charged = sums["bytes"] if read is None else int(read)
    return Taken(sums["rows"], sums["bytes"], int(size or 0), seconds, charged)


def is_lost(row: sa.Row[Any]) -> bool:
    """Whether the process of an attempt was, or is, no more when nobody had put its end on record."""
    if row.state == AttemptState.RUNNING:
        return has_ended(row)
    return was_found_lost(row.state, str(row.error))


def was_found_lost(state: str, error: str) -> bool:
    """Whether an attempt's end was put on record by others, who only found its process gone, or could not see it."""
    return state != AttemptState.STAGED and error.startswith(_ALSO_LOST)


def _counts(row: sa.Row[Any]) -> dict[str, int]:
    """Return what a staged attempt was given to read.

    Raises:
        IllegibleRow: if its cell says anything else.
    """
    found = parsed(attempts.c.measures, row.measures, dict)
    for name, count in found.items():
        if not isinstance(count, int) or count < 0:
            raise illegible(f"ledger attempts {row.id}", f"{name} is {count!r}, and no count")
    return found
