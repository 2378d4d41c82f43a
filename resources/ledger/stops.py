"""Stops: who has stopped a run, through what and when, and who launched it again.

Put here the SQL of them. A stop is of a run, not of a process: it ends every attempt at the run that is under way, and
holds until somebody launches the run again; nothing is staged or published before. A pause is a row of the same table that lets
what is under way end by itself and holds until somebody resumes the run: `pauses` has what is its own. What a process does when
it finds that its run was stopped is `backfill_assets.staging.watched_launch`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from manifests.errors import Problem, RunStopped, TransitionRefused
from manifests.lifecycle import ENDED, WAS_PUBLISHED, AttemptState, PublicationState, RunState
from manifests.text import visible
from resources import actors
from resources.ledger import instants
from resources.ledger.admissions import end_admissions, end_waits
from resources.ledger.locks import lock_run
from resources.ledger.measured import LOST, UNSEEN
from resources.ledger.part import Part
from resources.ledger.tables import attempts, launches, publications, runs, stops
from resources.processes import has_ended, is_busy

STOPPABLE = frozenset({RunState.APPROVED, RunState.RUNNING, RunState.STAGED, RunState.VALIDATED})
"""States in which something of a run may be under way, or be done next without anybody saying so."""
TERMINATE = "Terminate of the Dagster run"
"""How a stop begins to say that it came through Dagster, which also says when the launches after it were asked for."""
STOPPED = AttemptState.STOPPED
STOP, PAUSE = "STOP", "PAUSE"
"""What the next launch ends, and what only a decision does. Nothing undoes the end of a run, whose `kind` is the state it has ended in."""


@dataclass(frozen=True)
class Stop:
    """One stop or pause of a run. `resumed_at` is None while it holds; `note` says what it met that it could not stop.

    `cause` names what has paused the run where no person has, `resume_reason` why somebody has ended a pause.
    """

    id: int
    run_id: str
    stopped_by: str
    through: str
    reason: str
    note: str
    at: datetime
    resumed_at: datetime | None
    resumed_by: str | None
    kind: str = STOP
    cause: str = ""
    channel: str = ""
    proof: str = ""
    resume_reason: str = ""
    resumed_channel: str = ""
    resumed_proof: str = ""

    @property
    def is_pause(self) -> bool:
        """Whether only a decision ends it."""
        return self.kind == PAUSE

    @property
    def what(self) -> str:
        """What it has done to its run, in a word."""
        return {STOP: "stopped", PAUSE: "paused"}.get(self.kind, self.kind.lower())

    def __str__(self) -> str:
        why = f": {visible(self.reason)}" if self.reason else ""
        return f"{self.what} by {self.stopped_by} ({self.through}), {self.at:%Y-%m-%d %H:%M:%S} UTC{why}"


class Stops(Part):
    """The stops of a ledger's runs, and the launches that end them."""

    def stop(self, run_id: str, *, by: str, through: str, reason: str = "", since: datetime | None = None) -> Stop:
        """Stop a run: end its attempts that are under way, and let nothing be staged or published until it is launched again.

        A publication that is under way is not ended: `note` says so. `since` is when it was stopped, where that is noted late:
        what is asked for after that launches it again and is not stopped. What was asked for before it is, also where it has begun,
        or taken its next step, since. A run of which a batch is under way is stopped in whatever state: another launch may have failed it.

        Raises:
            TransitionRefused: if nothing of it could be under way, it is unknown, or no name is given; or if a launch that has
                begun was asked for after `since`.
        """
        if problems := actors.no_name(by) + actors.no_reason(reason):
            raise TransitionRefused(problems)
        at = instants.now(self.engine)
        with self.engine.begin() as connection:
            lock_run(connection, run_id)
            running = (attempts.c.run_id == run_id, attempts.c.state == AttemptState.RUNNING)
            rows = connection.execute(sa.select(attempts).where(*running)).all()
            state = connection.execute(sa.select(runs.c.state).where(runs.c.run_id == run_id)).scalar()
            if state not in STOPPABLE and not rows:
                rule = (
                    f"a run is stopped while it is {', '.join(sorted(STOPPABLE))}, or while a batch of it is computed"
                )
                raise nothing_under_way(run_id, state, rule)
            if since is not None and (later := _newest_launch(connection, run_id)) is not None and later > since:
                raise _launched_since(run_id, later, since)
            entry = connection.execute(
                sa.select(publications.c.actor, publications.c.started_at).where(
                    publications.c.run_id == run_id, publications.c.state == PublicationState.INTENT
                )
            ).first()
            note = "" if entry is None else f"its publication by {entry.actor} was under way and is not interrupted"
            connection.execute(
                stops.insert().values(
                    run_id=run_id,
                    stopped_by=by,
                    through=through,
                    reason=reason,
                    note=note,
                    at=at if since is None else min(since, at),
                )
            )
            found = [one for one in _holding(connection, run_id) if not one.is_pause][-1]
            for row in rows:
                error = f"{LOST}; {found}" if has_ended(row) else str(found) if is_busy(row) else f"{UNSEEN}; {found}"
                connection.execute(
                    attempts.update()
                    .where(*running, attempts.c.id == row.id)
                    .values(state=STOPPED, ended_at=at, error=error)
                )
            end_admissions(connection, run_id)
            end_waits(connection, run_id)
        return found

    def launched(
        self,
        run_id: str,
        *,
        by: str,
        asked_at: datetime | None = None,
        tolerance: timedelta = timedelta(0),
        knows: int | None = None,
    ) -> int:
        """Record that somebody launches a run: a stop before that holds no longer; return the number of its newest stop.

        A launch that meets no stop is on record, too, by when it was asked for: what is noted late of an earlier one does not end
        it. Each step of a Dagster run is recorded, and all of them by when that run was asked for.

        `knows` is the number of the newest stop that held the run when the launch was asked for (0: none did), where somebody
        looked before the launch was passed on (`known`). A run's stops are numbered in the order in which they are recorded, one
        at a time under the run's lock: all up to that number were on record before the launch, and all others come after it. No
        clock is asked.

        `asked_at` is when the launch was asked for, if not now. Where nobody looked: one that was asked for before the stop does
        not end it, nor does one that was asked for less than `tolerance` after it, where the clocks of two machines are compared.
        A Terminate of Dagster's is noted late: it is held against Dagster's own clock, and needs no tolerance.

        Raises:
            RunStopped: if the run was stopped after the launch was asked for, or nobody can say which came first; or if it is
                paused, whenever that was asked for.
        """
        with self.engine.begin() as connection:
            lock_run(connection, run_id)
            if holding := _holding(connection, run_id):
                for found in reversed(holding):
                    if found.is_pause:
                        raise refusal(found)
                    refuse_earlier(found, asked_at, tolerance, knows)
                open_ones = stops.update().where(stops.c.run_id == run_id, stops.c.resumed_at.is_(None))
                connection.execute(open_ones.values(resumed_at=instants.now(connection), resumed_by=by))
            at = asked_at or instants.now(connection)
            connection.execute(launches.insert().values(run_id=run_id, launched_by=by, at=at))
            return _newest(connection, run_id)

    def newest_launch(self, run_id: str) -> datetime | None:
        """Return when the newest launch of a run was asked for, of those that have begun; None if nobody has launched it."""
        with self.engine.connect() as connection:
            return _newest_launch(connection, run_id)

    def newest(self, run_id: str) -> int:
        """Return the number of a run's newest stop; 0 if it was never stopped."""
        with self.engine.connect() as connection:
            return _newest(connection, run_id)

    def after(self, run_id: str, number: int) -> Stop | None:
        """Return the newest stop of a run if it came after the one of a number, whether or not it still holds.

        A pause is none: it interrupts nothing.
        """
        with self.engine.connect() as connection:
            row = connection.execute(
                sa.select(stops)
                .where(stops.c.run_id == run_id, stops.c.id > number, stops.c.kind == STOP)
                .order_by(stops.c.id.desc())
            ).first()
        return None if row is None else Stop(**row._mapping)  # noqa: SLF001 - SQLAlchemy's public name

    def held(self, run_id: str) -> Stop | None:
        """Return the newest stop that holds a run, or None."""
        with self.engine.connect() as connection:
            return _held(connection, run_id)

    def known(self) -> dict[str, int]:
        """Return the number of the newest stop that holds each run that one holds; see `launched`."""
        query = sa.select(stops.c.run_id, sa.func.max(stops.c.id)).where(stops.c.resumed_at.is_(None))
        with self.engine.connect() as connection:
            return {run_id: int(number) for run_id, number in connection.execute(query.group_by(stops.c.run_id))}

    def all_held(self, run_ids: Iterable[str] | None = None) -> dict[str, Stop]:
        """Return the stops that hold runs (of `run_ids`, if given) that are not over, by run."""
        query = (
            sa.select(stops)
            .join(runs, runs.c.run_id == stops.c.run_id)
            .where(stops.c.resumed_at.is_(None), runs.c.state.in_([*STOPPABLE, RunState.FAILED]))
            .order_by(stops.c.id)
        )
        wanted = None if run_ids is None else set(run_ids)
        with self.engine.connect() as connection:
            found = [Stop(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001
        found.sort(key=lambda one: (one.is_pause, one.id))
        return {one.run_id: one for one in found if wanted is None or one.run_id in wanted}

    def of_run(self, run_id: str) -> list[Stop]:
        """Return the stops of a run, in order."""
        return self.all_of(run_id)

    def all_of(self, run_id: str | None) -> list[Stop]:
        """Return the stops of a run, or of all, in order."""
        query = sa.select(stops).order_by(stops.c.id)
        if run_id is not None:
            query = query.where(stops.c.run_id == run_id)
        with self.engine.connect() as connection:
            return [Stop(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001


def refuse_held(connection: sa.Connection, run_id: str) -> None:
    """Refuse what may not be done while a stop or a pause holds; the caller has locked the run.

    Raises:
        RunStopped: saying who stopped it and when.
    """
    if (found := _held(connection, run_id)) is not None:
        raise refusal(found)


def refuse_stopped(connection: sa.Connection, run_id: str) -> None:
    """Refuse what may not be done while a stop holds; a pause lets what is under way end.

    Raises:
        RunStopped: saying who stopped it and when.
    """
    if holding := [one for one in _holding(connection, run_id) if not one.is_pause]:
        raise refusal(holding[-1])


def refusal(found: Stop) -> RunStopped:
    """Return what a launch or a publication is told that meets a stop or a pause."""
    if found.is_pause:
        paused = RunStopped(
            Problem(
                f"run '{found.run_id}' was {found}",
                "what is staged stays; nothing more is computed or published until somebody resumes the run, and says why",
                f"`backfill resume {found.run_id} --by NAME --reason TEXT`, or the job resume_run in Dagster",
            )
        )
        paused.headline = "the run is paused"
        return paused
    if found.kind in ENDED:
        over = RunStopped(
            Problem(
                f"run '{found.run_id}' was {found}",
                "nothing more is computed or published of a run that is over; what is staged stays on record",
                "nothing; the same change again is a new run id",
            )
        )
        over.headline = "the run is over"
        return over
    return RunStopped(
        Problem(
            f"run '{found.run_id}' was {found}",
            "what is staged stays; nothing more is computed or published until somebody launches the run again",
            f"`backfill resume {found.run_id}`, or launch its chunks again in Dagster",
        )
    )


def refuse_earlier(found: Stop, asked_at: datetime | None, tolerance: timedelta, knows: int | None) -> None:
    """Refuse a launch that was asked for before a stop that holds, or of which nobody can say that it was not; see `Stops.launched`.

    Raises:
        RunStopped: saying who stopped the run and when.
    """
    if asked_at is None or (knows is not None and found.id <= knows):
        return
    terminated = found.through.startswith(TERMINATE)
    if found.at > asked_at or (knows is not None and not terminated):
        raise refusal(found)
    if not terminated and found.at > asked_at - tolerance:
        raise _in_doubt(found, asked_at, tolerance)


def _in_doubt(found: Stop, asked_at: datetime, tolerance: timedelta) -> RunStopped:
    seconds = f"{tolerance.total_seconds():.0f} s"
    return RunStopped(
        Problem(
            f"run '{found.run_id}' was {found}, and this launch was asked for at {asked_at:%H:%M:%S} UTC",
            f"the clocks of two machines may be {seconds} apart: which of the two came first is not known, and the stop holds",
            f"`backfill resume {found.run_id}`, or launch its chunks in Dagster after {found.at + tolerance:%H:%M:%S} UTC",
        )
    )


def _held(connection: sa.Connection, run_id: str) -> Stop | None:
    """Return what holds a run: the newest pause, which outlasts a stop, or else the newest stop."""
    holding = _holding(connection, run_id)
    return max(holding, key=lambda one: (one.is_pause, one.id), default=None)


def _holding(connection: sa.Connection, run_id: str) -> list[Stop]:
    """Return the stops that hold a run, in order; the next launch ends them all."""
    still_holds = sa.or_(
        stops.c.kind != PAUSE, runs.c.state.not_in(WAS_PUBLISHED)
    )  # a pause came too late for that one
    query = (
        sa.select(stops)
        .join(runs, runs.c.run_id == stops.c.run_id)
        .where(stops.c.run_id == run_id, stops.c.resumed_at.is_(None), still_holds)
        .order_by(stops.c.id)
    )
    return [Stop(**row._mapping) for row in connection.execute(query)]  # noqa: SLF001 - SQLAlchemy's public name


def _newest_launch(connection: sa.Connection, run_id: str) -> datetime | None:
    newest: datetime | None = connection.execute(
        sa.select(sa.func.max(launches.c.at)).where(launches.c.run_id == run_id)
    ).scalar()
    return newest


def nothing_under_way(run_id: str, state: RunState | None, rule: str) -> TransitionRefused:
    """Return the refusal to stop or to pause a run of which nothing is under way."""
    fix = f"nothing of it is under way; `backfill status {run_id}` says what comes next"
    return TransitionRefused(Problem(f"run '{run_id}' is {state or 'unknown'}", rule, fix))


def _launched_since(run_id: str, later: datetime, since: datetime) -> TransitionRefused:
    return TransitionRefused(
        Problem(
            f"run '{run_id}' was launched again at {later:%Y-%m-%d %H:%M:%S} UTC",
            f"a stop of {since:%Y-%m-%d %H:%M:%S} UTC that is noted late ends what was launched before it",
            f"there is nothing to do; to stop what was launched since: `backfill stop {run_id} --by NAME`",
        )
    )


def _newest(connection: sa.Connection, run_id: str) -> int:
    found = connection.execute(sa.select(sa.func.max(stops.c.id)).where(stops.c.run_id == run_id)).scalar()
    return int(found or 0)
