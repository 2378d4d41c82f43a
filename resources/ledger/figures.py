"""Figures of runs, read from the ledger: what the metrics show. Looking only.

Put here the SQL and what a figure means; how it is named and exposed is `backfill_assets.operations.metrics`'. A figure that the
ledger does not have is None or left out, never 0.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import sqlalchemy as sa

from manifests.estimates import Estimate
from manifests.lifecycle import AttemptState, PublicationState, RunState
from resources.ledger.admissions import still_waits
from resources.ledger.cells import legible, parsed
from resources.ledger.chunks import STAGED
from resources.ledger.leases import RELEASED
from resources.ledger.plans import said
from resources.ledger.tables import (
    attempts,
    chunks,
    leases,
    publications,
    runs,
    transitions,
    verdicts,
    waits,
    watermarks,
)

OVER = frozenset({RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK, RunState.REJECTED, RunState.CANCELLED})
"""States in which nothing more happens to a run by itself."""


_CLOCKS_APART = timedelta(seconds=5)
"""How far the clock of the ledger's server may be behind that of a publisher."""


@dataclass(frozen=True)
class Attempt:
    """An attempt that staged its chunks: how long it took, how many of its chunks are the run's today."""

    seconds: float
    chunks: int
    holds: int


@dataclass
class RunFigures:
    """One run. `planned` and `read` are by part of the input (`range`, `look_back`); None where it is not on record.

    `broken` counts verdicts that did not pass, by gate and rule (empty for a gate of the whole run); `rejected` counts
    rows that break a rule by the newest verdict of their chunk.
    """

    run_id: str
    table: str
    mode: str
    kind: str
    state: RunState
    since: datetime | None = None
    waiting_since: datetime | None = None
    chunks: Counter[str] = field(default_factory=Counter)
    output_rows: int = 0
    output_bytes: int = 0
    changed_rows: Counter[str] = field(default_factory=Counter)
    planned: dict[str, Estimate] = field(default_factory=dict)
    read_rows: dict[str, int] | None = None
    read_bytes: dict[str, int] | None = None
    suppressed_chunks: int | None = None
    suppressed_rows: int | None = None
    attempts: Counter[str] = field(default_factory=Counter)
    staged: list[Attempt] = field(default_factory=list)
    broken: Counter[tuple[str, str]] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    publications: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True)
class Complete:
    """Up to when a target is complete: the end of its last complete day, and the commit of the source it knows."""

    table: str
    until: datetime
    source_at: datetime


@dataclass(frozen=True)
class Figures:
    """What the ledger says at an instant: every run by table, mode and state, and some runs one by one."""

    at: datetime
    counts: dict[tuple[str, str, str], int]
    runs: list[RunFigures]
    left_out: int
    complete: list[Complete]


def figures(engine: sa.Engine, *, at: datetime, days: int, most: int) -> Figures:
    """Read the figures of the runs that are not over, or have been so for at most `days`: the `most` newest of them.

    Runs that are not over come first: of more than `most` runs, those that ended longest ago are left out.

    Raises:
        IllegibleRow: if a cell that they need cannot be read: a figure without it would be wrong.
    """
    with engine.connect() as connection, legible("the ledger"):
        known = connection.execute(
            sa.select(runs.c.run_id, runs.c.target, runs.c.mode, runs.c.kind, runs.c.state, runs.c.updated_at)
        ).all()
        counts = Counter((one.target, one.mode, one.state) for one in known)
        recent = [one for one in known if one.state not in OVER or one.updated_at >= at - timedelta(days=days)]
        recent.sort(key=lambda one: (one.state in OVER, -one.updated_at.timestamp(), one.run_id))
        shown = {
            one.run_id: RunFigures(one.run_id, one.target, one.mode, one.kind, RunState(one.state))
            for one in recent[:most]
        }
        complete = [
            Complete(row.target, _end_of(row.complete_until), _instant(row.source_at))
            for row in connection.execute(_newest_watermarks())
        ]
        for keys in _portions(list(shown)):
            _read(connection, keys, shown)
    return Figures(at, dict(counts), list(shown.values()), len(known) - len(shown), complete)


def _portions(keys: Sequence[str], size: int = 500) -> list[Sequence[str]]:
    """Cut keys into lists that a database takes as parameters."""
    return [keys[start : start + size] for start in range(0, len(keys), size)]


def _read(connection: sa.Connection, keys: Sequence[str], shown: dict[str, RunFigures]) -> None:
    reads, look_back = said(runs.c.plan, "reads"), said(runs.c.plan, "look_back")
    plans = sa.select(runs.c.run_id, reads.label("range"), look_back.label("look_back"))
    for row in connection.execute(plans.where(runs.c.run_id.in_(keys))):
        parts = {"range": row.range, "look_back": row.look_back}
        shown[row.run_id].planned = {
            name: Estimate(**parsed(runs.c.plan, part, dict)) for name, part in parts.items() if part is not None
        }
    since = sa.select(transitions.c.run_id, sa.func.max(transitions.c.at).label("at"))
    for row in connection.execute(since.where(transitions.c.run_id.in_(keys)).group_by(transitions.c.run_id)):
        shown[row.run_id].since = row.at
    waiting = sa.select(waits).where(waits.c.run_id.in_(keys), waits.c.ended_at.is_(None))
    for row in connection.execute(waiting.order_by(waits.c.since_at.desc())):
        if still_waits(connection, row, shown[row.run_id].state):
            shown[row.run_id].waiting_since = row.since_at
    held = _read_chunks(connection, keys, shown)
    _read_attempts(connection, keys, shown, held)
    _read_verdicts(connection, keys, shown)
    _read_publications(connection, keys, shown)


def _read_chunks(
    connection: sa.Connection, keys: Sequence[str], shown: dict[str, RunFigures]
) -> Counter[tuple[str, int]]:
    """Read the chunks; return how many each attempt of a run holds."""
    held: Counter[tuple[str, int]] = Counter()
    c = chunks.c
    # measures can be long: only those of chunks that say what happened to how many rows are wanted
    happened = sa.case((c.measures.like('%"happened"%'), c.measures), else_="{}").label("happened")
    query = sa.select(c.run_id, c.state, c.attempt, c.rows, c.bytes, happened).where(c.run_id.in_(keys))
    for row in connection.execute(query):
        run = shown[row.run_id]
        run.chunks[row.state] += 1
        if row.state not in STAGED:
            continue
        held[row.run_id, row.attempt] += 1
        run.output_rows += row.rows or 0
        run.output_bytes += row.bytes or 0
        run.changed_rows.update(parsed(c.measures, row.happened, dict).get("happened", {}))
    return held


def _read_attempts(
    connection: sa.Connection, keys: Sequence[str], shown: dict[str, RunFigures], held: Counter[tuple[str, int]]
) -> None:
    measures: dict[str, list[dict[str, int]]] = defaultdict(list)
    for row in connection.execute(sa.select(attempts).where(attempts.c.run_id.in_(keys)).order_by(attempts.c.id)):
        run = shown[row.run_id]
        run.attempts[row.state] += 1
        if (
            row.state == AttemptState.STAGED
        ):  # when others ended is not always known: their process may just have been gone
            seconds = (row.ended_at - row.started_at).total_seconds()
            run.staged.append(
                Attempt(seconds, len(parsed(attempts.c.chunks, row.chunks, list)), held[row.run_id, row.attempt])
            )
            measures[row.run_id].append(parsed(attempts.c.measures, row.measures, dict))
    for run_id, found in measures.items():
        run = shown[run_id]
        run.suppressed_chunks = _sum(found, "suppressed_chunks")
        run.suppressed_rows = _sum(found, "suppressed_rows")
        if all("range_rows" in one for one in found):  # else a sum would leave something out
            parts = [part for part in ("range", "look_back") if any(f"{part}_rows" in one for one in found)]
            run.read_rows = {part: sum(one.get(f"{part}_rows", 0) for one in found) for part in parts}
            run.read_bytes = {part: sum(one.get(f"{part}_bytes", 0) for one in found) for part in parts}


def _sum(found: Sequence[dict[str, int]], name: str) -> int | None:
    """Return a sum over attempts, None if one of them does not have it on record."""
    return sum(one[name] for one in found) if all(name in one for one in found) else None


def _read_verdicts(connection: sa.Connection, keys: Sequence[str], shown: dict[str, RunFigures]) -> None:
    v = verdicts.c
    newest: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    # of verdicts that pass, only that they came after one that did not
    details = sa.case((v.passed, "{}"), else_=v.details).label("details")
    query = sa.select(v.run_id, v.chunk, v.gate, v.passed, details).where(v.run_id.in_(keys)).order_by(v.id)
    for row in connection.execute(query):
        violations = parsed(v.details, row.details, dict).get("violations", [])
        newest[row.run_id, row.chunk, row.gate] = violations
        if not row.passed:
            rules = {one["rule"] for one in violations} or {""}
            shown[row.run_id].broken.update((row.gate, rule) for rule in rules)
    for (run_id, _, _), violations in newest.items():
        for one in violations:
            shown[run_id].rejected[one["rule"]] += one["count"]


def _read_publications(connection: sa.Connection, keys: Sequence[str], shown: dict[str, RunFigures]) -> None:
    """Read how long publications took: of those that were recorded by the process that made them, under its lease."""
    p = publications.c
    query = (
        sa.select(p.run_id, p.action, p.started_at, p.ended_at, leases.c.ended_at.label("released_at"))
        .join(leases, leases.c.id == p.token)
        .where(p.run_id.in_(keys), p.state == PublicationState.COMMITTED, leases.c.ended_how == RELEASED)
        .order_by(p.id)
    )
    for row in connection.execute(query):
        if row.ended_at > row.released_at + _CLOCKS_APART:
            continue  # it could not say what came of its commit, and somebody else has recorded it later
        shown[row.run_id].publications[row.action].append((row.ended_at - row.started_at).total_seconds())


def _newest_watermarks() -> sa.Select[Any]:
    newest = (
        sa.select(sa.func.max(watermarks.c.id)).where(watermarks.c.ended_at.is_(None)).group_by(watermarks.c.target)
    )
    return (
        sa.select(
            watermarks.c.target,
            watermarks.c.complete_until,
            said(runs.c.plan, "source_committed_at").label("source_at"),
        )
        .join(runs, runs.c.run_id == watermarks.c.run_id)
        .where(watermarks.c.id.in_(newest))
        .order_by(watermarks.c.target)
    )


def _end_of(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC) + timedelta(days=1)


def _instant(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found
