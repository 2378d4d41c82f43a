"""Pauses: who or what has paused a run and why, and who has resumed it and why.

Put here the SQL of them. A pause interrupts nothing: the batch that is under way ends and is staged, and nothing begins after it,
whoever launches the run, until somebody resumes it. It is a row of `stops`, so that whatever a stop holds, a pause holds as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import sqlalchemy as sa

from manifests.errors import Problem, TransitionRefused
from manifests.lifecycle import ENDED, WAS_PUBLISHED, AttemptState, PublicationState, RunState
from resources import actors
from resources.ledger import instants
from resources.ledger.locks import lock_run
from resources.ledger.part import Part
from resources.ledger.stops import PAUSE, STOPPABLE, Stop, nothing_under_way
from resources.ledger.tables import attempts, publications, runs, stops


class Pauses(Part):
    """The pauses of a ledger's runs."""

    def pause(self, run_id: str, *, by: str, through: str, reason: str, cause: str = "") -> Stop:
        """Pause a run; of one that is paused for the same cause already, return that pause.

        `cause` names what pauses it where no person does: who resumes it then answers for that. A publication that is under way is not
        interrupted: `note` says so, and once it has landed there is nothing left to hold. A run that another launch has failed is
        paused while a batch of it is under way.

        Raises:
            TransitionRefused: if nothing of the run could be under way, it is unknown, a person has paused it already, or no name
                or no reason is given.
        """
        _require_said(by, reason, "a pause says why")
        with self.engine.begin() as connection:
            lock_run(connection, run_id)
            state = connection.execute(sa.select(runs.c.state).where(runs.c.run_id == run_id)).scalar()
            may_go_on = state == RunState.FAILED and (cause or _is_computed(connection, run_id))
            if state not in STOPPABLE and not may_go_on:
                raise _nothing_to_pause(run_id, state)
            holding = _holding(connection, run_id)
            if same := [one for one in holding if one.cause == cause]:
                if cause:
                    return same[-1]
                raise _paused_already(same[-1])
            entry = connection.execute(
                sa.select(publications.c.actor).where(
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
                    at=instants.now(connection),
                    kind=PAUSE,
                    cause=cause,
                    **actors.columns(by),
                )
            )
            return _holding(connection, run_id)[-1]

    def resume(self, run_id: str, *, by: str, reason: str, seen: Collection[int] | None = None) -> list[Stop]:
        """End every pause of a run, and say who has decided so and why; return them as they are then.

        `seen` are the pauses that were looked at when it was decided; None: all of them.

        Raises:
            TransitionRefused: if it is not paused, or over, no name or no reason is given, or others hold it than were seen.
        """
        _require_said(by, reason, "who resumes a run says why")
        with self.engine.begin() as connection:
            lock_run(connection, run_id)
            holding = _holding(connection, run_id)
            _require_resumable(connection, run_id, holding, seen)
            who = {f"resumed_{name}": value for name, value in actors.columns(by).items()}
            ids = [one.id for one in holding]
            connection.execute(
                stops.update()
                .where(stops.c.id.in_(ids))
                .values(resumed_at=instants.now(connection), resumed_by=by, resume_reason=reason, **who)
            )
            rows = connection.execute(sa.select(stops).where(stops.c.id.in_(ids)).order_by(stops.c.id))
            return [Stop(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name

    def held(self, run_id: str) -> Stop | None:
        """Return the newest pause that holds a run, or None; nothing holds one that was published all the same."""
        with self.engine.connect() as connection:
            holding = _holding(connection, run_id)
        return holding[-1] if holding else None

    def holding(self, run_id: str) -> list[Stop]:
        """Return the pauses that hold a run, in order."""
        with self.engine.connect() as connection:
            return _holding(connection, run_id)


def _require_said(by: str, reason: str, rule: str) -> None:
    """Refuse a decision that nobody has taken, or for no reason."""
    problems = actors.no_name(by) + actors.no_reason(reason)
    if not reason.strip():
        problems.append(Problem("no reason is given", rule, "give --reason"))
    if problems:
        raise TransitionRefused(problems)


def _holding(connection: sa.Connection, run_id: str) -> list[Stop]:
    query = (
        sa.select(stops)
        .join(runs, runs.c.run_id == stops.c.run_id)
        .where(stops.c.run_id == run_id, stops.c.resumed_at.is_(None), stops.c.kind == PAUSE)
        .where(runs.c.state.not_in(WAS_PUBLISHED))
    )
    rows = connection.execute(query.order_by(stops.c.id))
    return [Stop(**row._mapping) for row in rows]  # noqa: SLF001 - SQLAlchemy's public name


def _is_computed(connection: sa.Connection, run_id: str) -> bool:
    """Return whether a batch of a run is under way, in whatever state another launch has brought the run."""
    running = (attempts.c.run_id == run_id, attempts.c.state == AttemptState.RUNNING)
    return connection.execute(sa.select(attempts.c.id).where(*running).limit(1)).first() is not None


def _require_resumable(
    connection: sa.Connection, run_id: str, holding: Sequence[Stop], seen: Collection[int] | None
) -> None:
    """Refuse to resume a run that no pause holds, that is over, or that something else has paused since somebody looked.

    Raises:
        TransitionRefused: saying which, and what to do.
    """
    state = connection.execute(sa.select(runs.c.state).where(runs.c.run_id == run_id)).scalar()
    open_stop = (stops.c.run_id == run_id, stops.c.resumed_at.is_(None), stops.c.kind != PAUSE)
    stop = connection.execute(sa.select(stops.c.stopped_by).where(*open_stop).order_by(stops.c.id.desc())).first()
    later = [] if seen is None else [one for one in holding if one.id not in seen]
    what, rule, fix = "", "", ""
    if state in ENDED or state in WAS_PUBLISHED:
        what, rule = f"run '{run_id}' is {state}", "a run goes on that is not over"
        fix = f"there is nothing to do: `backfill status {run_id}`"
    elif not holding and stop is not None:
        what, rule = f"run '{run_id}' is not paused: it was stopped by {stop.stopped_by}", "a launch ends a stop"
        fix = f"`backfill resume {run_id}` without --no-launch, or `backfill run {run_id}`"
    elif not holding:
        what, rule = f"run '{run_id}' is not paused", "a run is resumed that somebody has paused"
        fix = f"`backfill run {run_id}` launches it"
    elif later:
        what, rule = f"run '{run_id}' was meanwhile {later[-1]}", "who resumes a run decides about each of its pauses"
        fix = f"see `backfill status {run_id}`, and decide again"
    if what:
        raise TransitionRefused(Problem(what, rule, fix))


def _nothing_to_pause(run_id: str, state: RunState | None) -> TransitionRefused:
    rule = f"a run is paused while it is {', '.join(sorted(STOPPABLE))}, or has failed while a batch of it is computed"
    return nothing_under_way(run_id, state, rule)


def _paused_already(found: Stop) -> TransitionRefused:
    return TransitionRefused(
        Problem(
            f"run '{found.run_id}' was {found}",
            "a pause holds until somebody resumes the run",
            f"`backfill resume {found.run_id} --by NAME --reason TEXT` ends it",
        )
    )
