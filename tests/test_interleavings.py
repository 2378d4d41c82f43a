"""Somebody acts while somebody else is in the middle of something: each order of events that has once gone wrong.

The model (`test_model`) tries orders at random; those that are known are here, on the same installation without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from table_model import File, Killed, Row, Run
from table_world import DAYS, MONTHS, NOBODY, Installation, day_of, only_this_table

from backfill_assets import decisions, faults, publication
from manifests.errors import LeaseLost, PublicationDeferred, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import OnConflict, PublishMode
from resources.leases import Leases
from resources.processes import name_of


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Installation]:
    with only_this_table():
        installation = Installation(tmp_path / "home")
        yield installation
        installation.platform.ledger.engine.dispose()


def staged(it: Installation, run_id: str, *, judged: bool = True, value: int = 1, **options: Any) -> Run:
    """Return a run over the first month whose only row is named as itself; VALIDATED if it is `judged`."""
    run = Run(run_id, options.pop("mode", PublishMode.REPLACE_PARTITIONS), MONTHS[:1], **options)
    it.plan(run)
    row = Row(run_id, day_of(MONTHS[0], 3), value, 1, run_id)
    it.stage(run, {MONTHS[0]: [File(frozenset({row}))]}, passes=True, whole=judged)
    return run


def names(it: Installation) -> list[str]:
    return sorted(row.name for row in it.rows())


def state(it: Installation, run: Run) -> RunState:
    return it.platform.ledger.run(run.run_id).state


def entries(it: Installation, run: Run) -> list[str]:
    return [one["state"] for one in it.platform.ledger.publications(run.run_id)]


def publish(it: Installation, run: Run) -> None:
    publication.publish(it.platform, run.run_id)


def cancel(it: Installation, run: Run) -> None:
    publication.cancel(it.platform, run.run_id, "ada", "not wanted")


def reject(it: Installation, run: Run) -> None:
    decisions.reject(it.platform, run.run_id, by="grace", comment="not wanted")


@contextmanager
def at(point: str, *acts: Callable[[], Any]) -> Iterator[None]:
    """Do something when a process reaches a point of `faults` for the first time, something else the next time, and so on."""
    todo = list(acts)

    def reach(name: str) -> None:
        if name == point and todo:
            todo.pop(0)()

    with mock.patch.object(faults, "reach", reach):
        yield
    assert not todo, f"{point} was not reached"


@contextmanager
def killed_at(it: Installation, point: str) -> Iterator[None]:
    """Let a process die at a point: it gives no lease back, and is no more."""

    def die() -> None:
        raise Killed

    gives_nothing_back = mock.patch.multiple(Leases, release=mock.DEFAULT, lose=mock.DEFAULT, create=True)
    with at(point, die), gives_nothing_back, pytest.raises(Killed):
        yield
    it.edit_leases(sa.true(), pid=NOBODY, process=name_of(NOBODY))


def sleeps_beyond_its_lease(it: Installation) -> None:
    it.edit_leases(sa.true(), expires_at=datetime.now(UTC) - timedelta(seconds=1))


# --- ending a run while it is published -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [cancel, reject])
def test_a_run_that_is_published_since_it_was_looked_at_is_not_ended(it: Installation, end: Any) -> None:
    """It was FAILED or STAGED when its end was decided, and VALIDATED and committed when that was to be recorded."""
    run = staged(it, "run", judged=False)
    failed = {"expected": RunState.STAGED}

    def is_published() -> None:
        if end is reject:
            it.platform.ledger.move("run", RunState.RUNNING, "ada", expected=RunState.FAILED)
            it.platform.ledger.settle("run", "ada")
        it.judge("run")
        with killed_at(it, "publishing.committed"):
            publish(it, run)

    if end is reject:
        it.platform.ledger.move("run", RunState.FAILED, "ada", **failed)
    with at("ending.looked", is_published), pytest.raises(PublicationRefused, match="has landed"):
        end(it, run)
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)
    assert it.platform.ledger.accepted(DAYS) == {MONTHS[0]: "run"}


@pytest.mark.parametrize("end", [cancel, reject])
def test_a_run_that_moved_on_since_it_was_looked_at_is_looked_at_again(it: Installation, end: Any) -> None:
    run = staged(it, "run", judged=end is reject)

    def moves_on() -> None:
        if end is cancel:
            it.judge("run")
        else:
            it.platform.ledger.replan("run", it.platform.ledger.run("run").plan, [MONTHS[0]], actor="ada", reason="")
            it.platform.ledger.settle("run", "ada")
            it.platform.ledger.move("run", RunState.FAILED, "ada", expected=RunState.RUNNING)

    with at("ending.looked", moves_on):
        end(it, run)
    assert state(it, run) is (RunState.CANCELLED if end is cancel else RunState.REJECTED)


@pytest.mark.parametrize("end", [cancel, reject])
def test_one_that_slept_between_its_look_and_its_decision_ends_nothing(it: Installation, end: Any) -> None:
    run = staged(it, "run")

    def sleeps() -> None:
        sleeps_beyond_its_lease(it)
        with killed_at(it, "publishing.committed"):
            publish(it, run)

    with at("ending.leased", sleeps), pytest.raises(LeaseLost):
        end(it, run)
    assert (names(it), state(it, run)) == (["run"], RunState.VALIDATED)
    publish(it, run)
    assert state(it, run) is RunState.PUBLISHED


@pytest.mark.parametrize("terms", list(OnConflict))
def test_a_publisher_that_slept_after_it_found_a_conflict_decides_nothing(
    it: Installation, terms: OnConflict, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = staged(it, "run", on_conflict=terms)
    file = File(frozenset({Row("live", day_of(MONTHS[0], 9), 1, 1, "live")}))
    it.live(MONTHS[0], file)
    found = publication._in_conflict

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(publication, "_in_conflict", found)
        it.live(MONTHS[0], None, removed=file)
        sleeps_beyond_its_lease(it)
        with killed_at(it, "publishing.committed"):
            publish(it, run)
        found(*arguments)

    monkeypatch.setattr(publication, "_in_conflict", late)
    with pytest.raises(PublicationDeferred if terms is OnConflict.WAIT else LeaseLost):
        publish(it, run)
    assert state(it, run) is RunState.VALIDATED  # neither REJECTED nor RUNNING: it has landed
    publish(it, run)
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)


def test_a_publisher_that_slept_does_not_abandon_the_intent_of_the_one_that_took_over(it: Installation) -> None:
    run = staged(it, "run")

    def sleeps() -> None:
        sleeps_beyond_its_lease(it)
        with killed_at(it, "publishing.committed"):
            publish(it, run)

    with at("publishing.sealed", sleeps), pytest.raises(LeaseLost):
        publish(it, run)
    assert entries(it, run) == ["INTENT"]
    publish(it, staged(it, "later"))  # planned on what the run has shown, recorded before the later one
    assert state(it, run) is RunState.SUPERSEDED


# --- records that another process has closed --------------------------------------------------------------------------


def test_a_publication_on_record_is_not_made_a_refused_one(it: Installation) -> None:
    run, later = staged(it, "run"), "later"

    def is_superseded() -> None:
        sleeps_beyond_its_lease(it)
        publish(it, staged(it, later))

    with killed_at(it, "publishing.committed"):
        publish(it, run)
    with at("publishing.prepared", is_superseded), pytest.raises(LeaseLost):
        publish(it, run)
    assert entries(it, run) == ["ABANDONED", "COMMITTED"]
    publication.rollback(it.platform, later)
    assert publication.publish(it.platform, run.run_id).new is False
    publication.rollback(it.platform, run.run_id)
    assert (names(it), state(it, run)) == ([], RunState.ROLLED_BACK)


def test_an_acceptance_on_record_takes_nothing_back_from_the_run_that_followed(it: Installation) -> None:
    run = staged(it, "run", mode=PublishMode.VERSIONED, version="v1", later=True)
    publish(it, run)

    def is_superseded() -> None:
        sleeps_beyond_its_lease(it)
        publish(it, staged(it, "later"))

    with at("accepting.committed", is_superseded):
        publication.accept(it.platform, run.run_id)
    assert it.platform.ledger.accepted(DAYS)[MONTHS[0]] == "later"
    assert (names(it), state(it, run)) == (["later"], RunState.SUPERSEDED)
