"""Admissions: which batches of a run were let begin within its limits, and what waits for them until when.

Put here the SQL of them. A batch is admitted in the transaction that opens its attempt, under the run's lock: whoever asks, on whatever
machine, asks the same rows, so that all launches of a run share one allowance. The rules are `manifests.pace`'s.

Instants are those of the clock that all hosts share, where there is one: the database server's. A batch has ended when that is put on record,
once, by the same clock: in the transaction that ends its attempt, or where somebody finds that its process is no more.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from manifests.costs import RunCosts, in_usd
from manifests.errors import Problem, PublicationDeferred
from manifests.lifecycle import COMPUTABLE, AttemptState, DecisionKind, PublicationState, RunState
from manifests.model import Mode
from manifests.pace import MARGIN, WINDOW, Admitted, PlannedPace, Wait, Work, over_budget, soonest, waits, whom
from manifests.reading import stored_manifest
from resources.ledger import instants
from resources.ledger.cells import illegible
from resources.ledger.freezes import freezing
from resources.ledger.measured import is_lost, taken
from resources.ledger.part import Part
from resources.ledger.tables import admissions, approvals, attempts, publications, runs, stops
from resources.ledger.tables import waits as waiting
from resources.processes import has_ended, is_busy, this_process

BUDGET = "BUDGET"
"""The cause of a pause of a run that has spent what it may take in all."""
_UNDER_WAY = (RunState.APPROVED, RunState.RUNNING, RunState.STAGED, RunState.VALIDATED)
_WHY = "limits: "
"""What the reason of such a wait begins with."""
_DECISION = " --by NAME --reason TEXT"
"""What `backfill resume` is given of a run that is paused."""
_MOMENT = timedelta(seconds=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_OF_ITS_ATTEMPT = sa.and_(attempts.c.run_id == admissions.c.run_id, attempts.c.attempt == admissions.c.attempt)


class MustWait(Exception):  # noqa: N818 - it is no error: the batch begins later
    """A batch may not begin yet; nothing was written."""

    def __init__(self, found: Sequence[Wait], at: datetime) -> None:
        super().__init__("; ".join(one.why for one in found))
        self.waits, self.at = tuple(found), at

    @property
    def until(self) -> datetime | None:
        """When all of it may be over; None where that depends on others."""
        return soonest(self.waits)


class BudgetSpent(Exception):  # noqa: N818 - it is no error: the run is paused
    """A batch would take the run beyond what it may take in all; nothing was written."""


@dataclass(frozen=True)
class Asked:
    """What a batch asks to be admitted with: its run's pace, what it is given to read, and by which prices the run costs."""

    pace: PlannedPace
    work: Work
    costs: RunCosts | None = None


@dataclass(frozen=True)
class Waiting:
    """A launch of a run that waits for a limit, and until when; None where that depends on others."""

    run_id: str
    why: str
    since_at: datetime
    until_at: datetime | None
    host: str
    pid: int
    process: str

    def __str__(self) -> str:
        said = with_end(self.why, self.until_at)
        return said if is_busy(self) else f"{said}; it waits on {self.host}; {_if_gone(self.run_id)}"


def with_end(why: str, until: datetime | None) -> str:
    """Return what is waited for in words, with when that is over where anybody can say so."""
    return why if until is None else f"{why}, until {until:%Y-%m-%d %H:%M:%S} UTC"


def admit(connection: sa.Connection, run_id: str, attempt: int, asked: Asked) -> None:
    """Admit a batch as an attempt of a run, which the caller has locked, and end what this process has waited for.

    Raises:
        MustWait: if it may not begin yet.
        BudgetSpent: if it may not begin at all.
        IllegibleRow: if what is on record of other batches cannot be so.
    """
    _require_legible(connection, run_id)
    newest = connection.execute(sa.select(sa.func.max(admissions.c.at)).where(admissions.c.run_id == run_id)).scalar()
    present = instants.shared(connection)
    at = present if newest is None else max(present, newest)
    mine = admissions.c.run_id == run_id
    rows, size = connection.execute(
        sa.select(
            sa.func.coalesce(sa.func.sum(admissions.c.rows), 0), sa.func.coalesce(sa.func.sum(admissions.c.bytes), 0)
        ).where(mine)
    ).one()
    times = _times(connection, run_id)
    if why := over_budget(asked.pace, asked.work, int(rows), int(size), times):
        raise BudgetSpent(why)
    left = left_of(connection, run_id, asked.pace, asked.costs, int(size), asked.work.bytes)
    if left is not None and left.seconds <= 0:
        raise BudgetSpent(left.why)
    if found := waits(asked.pace, asked.work, _admitted(connection, run_id, asked.pace, at), at, present):
        raise MustWait(found, present)
    work = asked.work
    connection.execute(
        admissions.insert().values(
            run_id=run_id, attempt=attempt, chunks=work.chunks, rows=work.rows, bytes=work.bytes, at=at
        )
    )
    _end_own(connection, run_id)


def require_place(connection: sa.Connection, run_id: str, most: int | None) -> None:
    """Let no batch of a run, which the caller has locked, begin beside as many as other processes of this machine compute.

    Raises:
        MustWait: naming those.
    """
    running = (attempts.c.run_id == run_id, attempts.c.state == AttemptState.RUNNING)
    rows = connection.execute(sa.select(attempts).where(*running).order_by(attempts.c.id))
    busy = [str(row.attempt) for row in rows if row.pid != os.getpid() and is_busy(row)]
    if most is not None and len(busy) >= most:
        why = f"limits.maxRunsInParallel is {most:,}, on one machine; under way here: attempt {', '.join(busy)}"
        raise MustWait([Wait(why, None)], instants.shared(connection))


def _require_legible(connection: sa.Connection, run_id: str) -> None:
    """Refuse to go by batches on record that this project has not written so.

    Raises:
        IllegibleRow: naming the first of them.
    """
    a, latest = admissions.c, instants.shared(connection) + _DAY
    odd = (
        (sa.or_(a.chunks < 0, a.rows < 0, a.bytes < 0), "a batch has a negative count"),
        (sa.or_(a.at > latest, a.ended_at > latest), f"a batch began, or ended, after {latest:%Y-%m-%d %H:%M} UTC"),
        (a.ended_at < a.at, "a batch ended before it began"),
    )
    for which, why in odd:
        number = connection.execute(sa.select(a.id).where(a.run_id == run_id, which).order_by(a.id).limit(1)).scalar()
        if number is not None:
            raise illegible(f"ledger admissions {number}", why)


def _times(connection: sa.Connection, run_id: str) -> int:
    """Return how often the budgets of a run are allowed: once with its approval, and with each resumption of a run that has spent them."""
    again = (stops.c.run_id == run_id, stops.c.cause == BUDGET, stops.c.resumed_at.is_not(None))
    return 1 + int(connection.execute(sa.select(sa.func.count()).select_from(stops).where(*again)).scalar_one())


@dataclass(frozen=True)
class Left:
    """How long a run may compute still, and which limit says so."""

    seconds: float
    why: str


def left_of(
    connection: sa.Connection, run_id: str, pace: PlannedPace, costs: RunCosts | None, size: int, more: int = 0
) -> Left | None:
    """Return how long a run may compute still by its time and its money, once it has read `more` bytes than `size`; None: for ever."""
    if pace.duration_minutes is None and pace.cost_usd is None:
        return None
    seconds, times = _computed(connection, run_id), _times(connection, run_id)
    again = f", allowed {times} times" if times > 1 else ""
    under_way = _admitted(connection, run_id, pace, instants.shared(connection), _DECISION)
    counted, found = whom([one for one in under_way if one.way_out]), []
    if pace.duration_minutes is not None:
        most = f"safety.maxDurationMinutes is {pace.duration_minutes:,}{again}"
        why = f"{most}: {seconds / 60:,.1f} minutes are computed{counted}"
        found.append(Left(60 * pace.duration_minutes * times - seconds, why))
    if pace.cost_usd is not None and costs is not None:
        usd = costs.usd_of(seconds, size + more, taken(connection, run_id).written)
        once = f" once the next batch has read its {more:,} bytes" if more else ""
        a_second = costs.usd_of(1, 0, 0)
        if usd is not None and a_second is not None:
            why = f"safety.maxCostUsd is {in_usd(pace.cost_usd)}{again}: ${in_usd(usd)} are spent{once}{counted}"
            found.append(Left(_lasts(pace.cost_usd * times - usd, a_second), why))
    return min(found, key=lambda one: one.seconds, default=None)


def _lasts(usd: float, a_second: float) -> float:
    """Return for how many seconds money lasts: not at all once it is spent, and for ever where no second costs anything.

    What reading alone has spent to the cent is enough for what was read.
    """
    if a_second > 0:
        return max(0.0, usd / a_second)
    return math.inf if usd >= 0 else 0.0


def _computed(connection: sa.Connection, run_id: str) -> float:
    """Return for how many seconds batches of a run have computed until now, by the shared clock; see `measured.is_lost`."""
    rows = connection.execute(
        sa.select(admissions.c.at, admissions.c.ended_at.label("over_at"), attempts)
        .join(attempts, _OF_ITS_ATTEMPT)
        .where(admissions.c.run_id == run_id)
    ).all()
    present = instants.shared(connection)
    lasted: list[float] = [((row.over_at or present) - row.at).total_seconds() for row in rows if not is_lost(row)]
    return sum(max(0.0, one) for one in lasted)


def _admitted(
    connection: sa.Connection, run_id: str, pace: PlannedPace, at: datetime, decision: str = ""
) -> list[Admitted]:
    """Return the batches of a run that count at an instant: those under way, and those that have ended within its rates' window and its pause."""
    since = at - max(WINDOW + 2 * MARGIN, timedelta(seconds=pace.pause_seconds or 0))
    query = (
        sa.select(
            *(admissions.c[name] for name in ("chunks", "rows", "bytes", "at", "attempt")),
            admissions.c.ended_at.label("over_at"),
            *(attempts.c[name] for name in ("host", "pid", "process")),
        )
        .outerjoin_from(admissions, attempts, _OF_ITS_ATTEMPT)
        .where(admissions.c.run_id == run_id, sa.or_(admissions.c.ended_at.is_(None), admissions.c.ended_at >= since))
        .order_by(admissions.c.id.desc())
    )
    return [
        Admitted(Work(row.chunks, row.rows, row.bytes), row.at, row.over_at, *_by(run_id, row, decision))
        for row in connection.execute(query)
    ]


def _by(run_id: str, row: sa.Row[Any], decision: str) -> tuple[str, str]:
    """Say who computes a batch that is under way, and what to do where that cannot be seen from this machine."""
    if row.over_at is not None or row.host is None:
        return "", ""
    said = f"attempt {row.attempt} on {row.host} since {row.at:%Y-%m-%d %H:%M:%S} UTC"
    return said, "" if is_busy(row) else _if_gone(run_id, decision)


def _if_gone(run_id: str, decision: str = "") -> str:
    """Say what to do about a machine that cannot be seen from here."""
    return f"if that machine is no more: `backfill stop {run_id} --by NAME`, then `backfill resume {run_id}{decision}`"


def end_admissions(connection: sa.Connection, run_id: str) -> None:
    """Put on record, by the shared clock, that batches of a run have ended: those whose attempts have, or whose processes are no more.

    Call it in the transaction that ends an attempt. An end that is on record stays what it is, however often somebody looks.
    """
    columns = (admissions.c.id, admissions.c.at, attempts.c.state, attempts.c.started_at)
    query = sa.select(*columns, attempts.c.host, attempts.c.pid, attempts.c.process).join(attempts, _OF_ITS_ATTEMPT)
    rows = connection.execute(query.where(admissions.c.run_id == run_id, admissions.c.ended_at.is_(None))).all()
    over = [row for row in rows if row.state != AttemptState.RUNNING or has_ended(row)]
    if not over:
        return
    at = instants.shared(connection)
    for row in over:
        still_open = (admissions.c.id == row.id, admissions.c.ended_at.is_(None))
        connection.execute(admissions.update().where(*still_open).values(ended_at=max(row.at, at)))


def end_waits(connection: sa.Connection, run_id: str) -> None:
    """End what launches of a run wait for a limit for, on whatever machine: it was stopped, or is over."""
    if over := [number for number, _ in _open(connection, waiting.c.run_id == run_id)]:
        connection.execute(waiting.update().where(waiting.c.id.in_(over)).values(ended_at=instants.now(connection)))


def still_waits(connection: sa.Connection, row: sa.Row[Any], state: RunState) -> bool:
    """Whether an open wait of a run is one: what waits for a limit is a process that lives, of a run that may compute."""
    return not str(row.why).startswith(_WHY) or (state in COMPUTABLE and _lives(connection, row))


def _lives(connection: sa.Connection, one: sa.Row[Any] | Waiting) -> bool:
    """Whether a process waits still, as far as anybody can tell of one that cannot be seen from here.

    Where the end of its wait was known, it would have put a later one on record by now; where that depends on others, it has
    not begun what somebody has begun since.
    """
    if has_ended(one) or is_busy(one):
        return not has_ended(one)
    if one.until_at is not None:
        return bool(instants.shared(connection) <= one.until_at + instants.CLOCK_TOLERANCE)
    since = (attempts.c.run_id == one.run_id, attempts.c.started_at > one.since_at)
    return connection.execute(sa.select(attempts.c.id).where(*since).limit(1)).first() is None


def next_commit(connection: sa.Connection, run_id: str, target: str, most: int, at: datetime) -> datetime | None:
    """Return when a run may publish into a target that takes so many commits an hour; None if it may now.

    Those of LIVE do not count, nor does an intent of the run itself, which was interrupted.
    """
    began = publications.c.started_at
    recent = _commits(run_id, target).where(began >= at - _HOUR).with_only_columns(began).order_by(began)
    found = list(connection.execute(recent).scalars())
    return None if len(found) < most else found[len(found) - most] + _HOUR + timedelta(microseconds=1)


def _commits(run_id: str, target: str) -> sa.Select[tuple[int]]:
    """Return what counts the publications of a target for a run; they begin by the clocks of the machines that make them."""
    return (
        sa.select(sa.func.count())
        .select_from(publications)
        .join(runs, runs.c.run_id == publications.c.run_id)
        .where(
            runs.c.target == target,
            runs.c.mode != Mode.LIVE.value,
            sa.or_(
                publications.c.state == PublicationState.COMMITTED,
                sa.and_(publications.c.state == PublicationState.INTENT, publications.c.run_id != run_id),
            ),
        )
    )


def require_commit(connection: sa.Connection, run_id: str, target: str, most: int | None) -> None:
    """Refuse a publication into a target that has taken its commits of the hour; the caller has locked the target.

    LIVE waits for nobody, whatever its plan says.

    Raises:
        PublicationDeferred: saying until when.
    """
    mode = connection.execute(sa.select(runs.c.mode).where(runs.c.run_id == run_id)).scalar()
    if most is None or mode == Mode.LIVE.value:
        return
    until = next_commit(connection, run_id, target, most, instants.shared(connection))
    if until is not None:
        raise PublicationDeferred(
            Problem(
                f"'{run_id}' waits for its publication until {until:%Y-%m-%d %H:%M:%S} UTC",
                f"limits.maxCommitsPerHour is {most}, and {target} has taken as many within the last hour",
                "nothing: the sensor publishes it then; by hand, the same command does, later",
            )
        )


class Admissions(Part):
    """The batches of a ledger's runs that were admitted, and the launches that wait for a limit."""

    def wait(self, run_id: str, target: str, found: MustWait) -> None:
        """Put on record what this process waits for on behalf of a run, and until when."""
        why = _WHY + str(found)
        with self.engine.begin() as connection:
            open_ones = sa.select(waiting.c.id, waiting.c.why, waiting.c.until_at).where(*_own(run_id))
            row = connection.execute(open_ones.order_by(waiting.c.id.desc())).first()
            if row is not None and row.why == why:
                if _apart(row.until_at, found.until):
                    connection.execute(waiting.update().where(waiting.c.id == row.id).values(until_at=found.until))
                return
            _end_own(connection, run_id)
            connection.execute(
                waiting.insert().values(
                    run_id=run_id,
                    target=target,
                    why=why,
                    since_at=instants.now(connection),
                    until_at=found.until,
                    host=socket.gethostname(),
                    pid=os.getpid(),
                    process=this_process(),
                )
            )

    def require_commit(self, run_id: str, target: str, most: int | None) -> None:
        """Refuse a publication into a target that has taken its commits of the hour, as far as anybody sees by now.

        Raises:
            PublicationDeferred: saying until when.
        """
        if most is not None:
            with self.engine.connect() as connection:
                require_commit(connection, run_id, target, most)

    def left(self, run_id: str, pace: PlannedPace, costs: RunCosts | None) -> Left | None:
        """Return how long a run may compute still; None: for ever. See `left_of`."""
        with self.engine.connect() as connection:
            read = sa.select(sa.func.sum(admissions.c.bytes)).where(admissions.c.run_id == run_id)
            return left_of(connection, run_id, pace, costs, int(connection.execute(read).scalar() or 0))

    def room(self, run_id: str, target: str, most: int) -> tuple[int, int]:
        """Return how many publications of a target may begin within this hour, and how many have begun before it.

        The second number grows whenever room is made, and never else but for entries that were left open.
        """
        with self.engine.connect() as connection:
            is_recent = publications.c.started_at >= instants.shared(connection) - _HOUR
            counting = _commits(run_id, target)
            recent = connection.execute(counting.where(is_recent)).scalar_one()
            before = connection.execute(counting.where(sa.not_(is_recent))).scalar_one()
        return max(0, most - recent), before

    def live_delay(self, target: str, but: str = "") -> tuple[str, float, RunState] | None:
        """Return the live run of a target that was approved first of those not published, how many seconds ago, and its state.

        None if there is none. `but` is the run that is to make way: it is none of them, nor is one that waits for its freeze, or
        that a person has stopped or paused.
        """
        approved = (
            sa.select(sa.func.max(approvals.c.at))
            .where(approvals.c.run_id == runs.c.run_id, approvals.c.decision == DecisionKind.APPROVED)
            .scalar_subquery()
        )
        since = sa.func.coalesce(approved, runs.c.created_at, type_=runs.c.created_at.type).label("since")
        by_people = sa.select(stops.c.run_id).where(stops.c.resumed_at.is_(None), stops.c.cause == "")
        query = sa.select(runs.c.run_id, runs.c.manifest, runs.c.state, since).where(
            runs.c.target == target,
            runs.c.mode == Mode.LIVE.value,
            runs.c.state.in_([*_UNDER_WAY, RunState.FAILED]),
            runs.c.run_id != but,
            runs.c.run_id.not_in(by_people),
        )
        with self.engine.connect() as connection:
            present = instants.shared(connection)
            for row in connection.execute(query.order_by(since, runs.c.run_id)).all():
                scope = stored_manifest(row.manifest).target.publish_range
                if not any(one.run_id == but for one in freezing(connection, row.run_id, target, scope, present)):
                    return row.run_id, (present - row.since).total_seconds(), RunState(row.state)
        return None

    def live_computing(self) -> str | None:
        """Return a live run of which a batch is computed at this moment, of any target; None if there is none.

        A batch that began more than an hour ago is none: its machine may be gone, and nobody here could tell.
        """
        query = (
            sa.select(attempts.c.run_id, attempts.c.host, attempts.c.pid, attempts.c.process)
            .join(runs, runs.c.run_id == attempts.c.run_id)
            .where(runs.c.mode == Mode.LIVE.value, runs.c.state.in_(_UNDER_WAY))
            .where(attempts.c.state == AttemptState.RUNNING)
            .order_by(attempts.c.id)
        )
        with self.engine.connect() as connection:
            since = instants.shared(connection) - _HOUR
            found = connection.execute(query.where(attempts.c.started_at >= since)).all()
        return next((str(one.run_id) for one in found if not has_ended(one)), None)

    def wait_no_more(self, run_id: str) -> None:
        """End on record what this process waits for on behalf of a run, and what processes did that are no more."""
        with self.engine.connect() as connection:
            if not _open(connection, waiting.c.run_id == run_id):
                return
        with self.engine.begin() as connection:
            _end_own(connection, run_id)

    def waiting(self, run_id: str | None = None) -> Mapping[str, Waiting]:
        """Return what launches that live wait for, by run; see `still_waits`."""
        mine = sa.true() if run_id is None else waiting.c.run_id == run_id
        computable = sa.select(runs.c.run_id).where(runs.c.state.in_(COMPUTABLE))
        with self.engine.connect() as connection:
            found = _open(connection, sa.and_(mine, waiting.c.run_id.in_(computable)))
            return {one.run_id: one for _, one in found if _lives(connection, one)}


def _own(run_id: str) -> tuple[sa.ColumnElement[bool], ...]:
    mine = waiting.c.process == this_process()
    return (waiting.c.run_id == run_id, waiting.c.ended_at.is_(None), waiting.c.why.startswith(_WHY), mine)


def _open(connection: sa.Connection, which: sa.ColumnElement[bool]) -> list[tuple[int, Waiting]]:
    w = waiting.c
    query = sa.select(w.id, w.run_id, w.why, w.since_at, w.until_at, w.host, w.pid, w.process)
    rows = connection.execute(query.where(which, w.ended_at.is_(None), w.why.startswith(_WHY)).order_by(w.id))
    return [(number, Waiting(run_id, why.removeprefix(_WHY), *rest)) for number, run_id, why, *rest in rows]


def _end_own(connection: sa.Connection, run_id: str) -> None:
    """End the waits of this process for a run, and those of processes of this machine that are no more."""
    over = [
        number
        for number, one in _open(connection, waiting.c.run_id == run_id)
        if has_ended(one) or one.process == this_process()
    ]
    if over:
        connection.execute(waiting.update().where(waiting.c.id.in_(over)).values(ended_at=instants.now(connection)))


def _apart(one: datetime | None, other: datetime | None) -> bool:
    if one is None or other is None:
        return one is not other
    return abs(one - other) > _MOMENT
