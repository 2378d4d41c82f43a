"""What runs have taken, read from the ledger: to learn from, and to hold a run's own budgets against.

Put here the SQL of it. What follows for the next run is `manifests.costs`' to reckon; figures for the metrics are `figures`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from pydantic import TypeAdapter

from manifests.costs import Measured, RunCosts
from manifests.lifecycle import AttemptState, RunState
from resources.ledger.cells import parsed
from resources.ledger.plans import said
from resources.ledger.tables import attempts, chunks, runs

_MOST = 20
"""Recorded runs that are learned from, the newest ones."""
_COSTS = TypeAdapter(RunCosts)
_DONE = (RunState.STAGED, RunState.VALIDATED, RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK)


@dataclass(frozen=True)
class Taken:
    """What a run has taken: rows and bytes that staged attempts were given to read, bytes staged, seconds of all attempts."""

    rows: int
    bytes: int
    written: int
    seconds: float


def recorded(connection: sa.Connection, target: str, version: str, *, but: str = "") -> list[Measured]:
    """Return what the newest runs of a target have taken whose every chunk was staged: of a transform's version, if there are any.

    `but` is a run that is left out. Runs of which it is not on record what they were given to read are, too.
    """
    done = (
        sa.select(runs.c.run_id, said(runs.c.plan, "transform_version").label("version"))
        .where(runs.c.target == target, runs.c.state.in_(_DONE), runs.c.run_id != but)
        .order_by(runs.c.updated_at.desc(), runs.c.run_id)
        .limit(5 * _MOST)
    )
    found = connection.execute(done).all()
    same = [row.run_id for row in found if row.version == version]
    learned = [_measured(connection, run_id) for run_id in (same or [row.run_id for row in found])[:_MOST]]
    return [one for one in learned if one is not None]


def _measured(connection: sa.Connection, run_id: str) -> Measured | None:
    one = taken(connection, run_id)
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
        seconds += max(0.0, (ended - row.started_at).total_seconds()) if ended is not None else 0.0
        if row.state == AttemptState.STAGED:
            for name, count in parsed(attempts.c.measures, row.measures, dict).items():
                if not name.startswith("suppressed_"):
                    sums[name.rpartition("_")[2]] += count
    size = connection.execute(sa.select(sa.func.sum(chunks.c.bytes)).where(chunks.c.run_id == run_id)).scalar()
    return Taken(sums["rows"], sums["bytes"], int(size or 0), seconds)
