"""Somebody acts while somebody else is in the middle of something: each order of events that has once gone wrong.

The model (`test_model`) tries orders at random; those that are known are here, on the same installation without Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
import table_world
from servers import Postgres
from table_model import File, Killed, Row, Run
from table_world import DAYS, EVENTS, MONTHS, NOBODY, Installation, day_of, only_this_table

from backfill_assets import decisions, faults
from backfill_assets.audit.verification import verify
from backfill_assets.evidence.links import strange_links
from backfill_assets.evidence.record_damage import damaged_files
from backfill_assets.evidence.records import records_of
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.disagreements import Disagreement
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import accepting, ending, undoing
from backfill_assets.publication import publisher as publication
from backfill_assets.publication.change import Change
from backfill_assets.publication.leasing import collecting_lease, leases_of
from backfill_assets.publication.recording import record_landed, tell_again
from benchmarks.small_table import closed
from manifests.errors import (
    EnvironmentRefused,
    InputRefused,
    LeaseHeld,
    LeaseLost,
    PublicationDeferred,
    PublicationRefused,
    StateMoved,
)
from manifests.lifecycle import RunState
from manifests.model import Corrections, OnConflict, PublishMode
from resources.evidence.chain import Chain
from resources.evidence.store import SEALED, EvidenceStore
from resources.lakehouse import commits
from resources.lakehouse.facade import local_path
from resources.lakehouse.history import forget
from resources.ledger.facade import OBSOLETE, ChunkState
from resources.ledger.leases import Leases
from resources.processes import name_of
from resources.settings import load_settings

pytestmark = pytest.mark.matrix

ACTS: dict[str, Any] = {
    "publish": publication.publish,
    "rollback": undoing.rollback,
    "reinstate": undoing.reinstate,
}


@pytest.fixture
def it() -> Iterator[Installation]:
    with only_this_table():
        installation = Installation()
        yield installation
        closed(installation.platform)


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
    return [one.state for one in it.platform.ledger.publications(run.run_id)]


def publish(it: Installation, run: Run) -> None:
    publication.publish(it.platform, run.run_id)


def cancel(it: Installation, run: Run) -> None:
    ending.cancel(it.platform, run.run_id, "ada", "not wanted")


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

    with at(point, die), mock.patch.object(Leases, "_end"), pytest.raises(Killed):
        yield
    it.edit_leases(sa.true(), pid=NOBODY, process=name_of(NOBODY))


def sleeps_beyond_its_lease(it: Installation) -> None:
    it.edit_leases(sa.true(), expires_at=datetime.now(UTC) - timedelta(seconds=1))


def fence_all(it: Installation) -> None:
    """Do what another publisher does first that takes every scope over, and then dies."""
    sleeps_beyond_its_lease(it)
    leases = leases_of(it.platform)
    taken = leases.acquire(DAYS, date.min, date.max, "other", "publish")
    for token in taken.lost:
        for table in (DAYS, EVENTS):
            it.platform.lakehouse.fence(table, token)
    leases.fenced(taken.lost)
    leases.release(taken)


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
    found = publication.settle_conflict

    def late(*arguments: Any) -> None:
        monkeypatch.setattr(publication, "settle_conflict", found)
        it.live(MONTHS[0], None, removed=file)
        sleeps_beyond_its_lease(it)
        with killed_at(it, "publishing.committed"):
            publish(it, run)
        found(*arguments)

    monkeypatch.setattr(publication, "settle_conflict", late)
    with pytest.raises(PublicationDeferred if terms is OnConflict.WAIT else LeaseLost):
        publish(it, run)
    assert state(it, run) is RunState.VALIDATED  # neither REJECTED nor RUNNING: it has landed
    publish(it, run)
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)


@pytest.mark.parametrize("computed", [False, True])
def test_a_publisher_that_slept_before_it_sealed_seals_nothing_of_the_plan_made_anew(
    it: Installation, monkeypatch: pytest.MonkeyPatch, computed: bool
) -> None:
    publish(it, staged(it, "earlier"))
    run = staged(it, "run", on_conflict=OnConflict.REPLAN, value=2)
    real = publication.require_no_staged_row_erased

    def is_computed_anew() -> None:
        row = Row("run", day_of(MONTHS[0], 4), 7, 1, "run")
        it.stage(run, {MONTHS[0]: [File(frozenset({row}))]}, passes=True)

    def slow(*arguments: Any) -> None:
        monkeypatch.setattr(publication, "require_no_staged_row_erased", real)
        sleeps_beyond_its_lease(it)
        publish(it, staged(it, "another", value=5))
        with pytest.raises(PublicationDeferred):
            publish(it, run)
        if computed:
            is_computed_anew()

    monkeypatch.setattr(publication, "require_no_staged_row_erased", slow)
    with pytest.raises(LeaseLost):
        publish(it, run)
    assert it.platform.evidence.bundles("run") == []
    if not computed:
        is_computed_anew()
    publish(it, run)
    assert (state(it, run), names(it)) == (RunState.PUBLISHED, ["run"])
    assert verify(it.platform).everything == []


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
    undoing.rollback(it.platform, later)
    assert publication.publish(it.platform, run.run_id).new is False
    undoing.rollback(it.platform, run.run_id)
    assert (names(it), state(it, run)) == ([], RunState.ROLLED_BACK)


def test_an_acceptance_on_record_takes_nothing_back_from_the_run_that_followed(it: Installation) -> None:
    run = staged(it, "run", mode=PublishMode.VERSIONED, version="v1", later=True)
    publish(it, run)

    def is_superseded() -> None:
        sleeps_beyond_its_lease(it)
        publish(it, staged(it, "later"))

    with at("accepting.committed", is_superseded):
        accepting.accept(it.platform, run.run_id)
    assert it.platform.ledger.accepted(DAYS)[MONTHS[0]] == "later"
    assert (names(it), state(it, run)) == (["later"], RunState.SUPERSEDED)


# --- commits whose outcome is not known -------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [cancel, reject])
def test_a_commit_that_arrives_after_the_run_was_ended_does_not_land(it: Installation, end: Any) -> None:
    run = staged(it, "run")
    with it.answer_lost() as late, pytest.raises(EnvironmentRefused, match=r"outcome of a commit .* is unknown"):
        publish(it, run)
    end(it, run)
    assert [arrives() for arrives in late] == [False]
    assert (names(it), it.platform.ledger.accepted(DAYS)) == ([], {})


def test_a_commit_that_arrives_before_anybody_looks_is_recorded(it: Installation) -> None:
    run = staged(it, "run")
    with it.answer_lost() as late, pytest.raises(EnvironmentRefused):
        publish(it, run)
    assert [arrives() for arrives in late] == [True]
    with pytest.raises(PublicationRefused, match="has landed"):
        cancel(it, run)
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)


def test_a_rollback_that_arrives_after_others_were_at_it_does_not_land(it: Installation) -> None:
    run = staged(it, "run")
    publish(it, run)
    with it.answer_lost() as late, pytest.raises(EnvironmentRefused):
        undoing.rollback(it.platform, run.run_id)
    publish(it, staged(it, "later"))
    undoing.rollback(it.platform, "later")
    assert [arrives() for arrives in late] == [False]
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)


# --- planning anew while somebody computes ----------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["before it is planned anew", "afterwards"])
@pytest.mark.parametrize("empty", [True, False])
def test_a_launch_by_an_earlier_plan_stages_and_fails_nothing(it: Installation, opened: str, empty: bool) -> None:
    """An empty chunk has no rows that a gate could ask for their plan: what it would replace was lost once."""
    ledger, month = it.platform.ledger, MONTHS[0]
    publish(it, staged(it, "earlier"))
    run = Run("run", PublishMode.REPLACE_PARTITIONS, MONTHS[:1], OnConflict.REPLAN)
    it.plan(run)
    edition = ledger.edition("run")

    def opens() -> tuple[int, str] | None:
        location = it.platform.lakehouse.location(DAYS)
        return ledger.start_attempt("run", [month], edition=edition, actor="ada", location=location)

    late = opens() if opened.startswith("before") else None
    row = Row("run", day_of(month, 3), 1, 1, "run")
    it.stage(run, {month: [] if empty else [File(frozenset({row}))]}, passes=True)
    it.live(month, File(frozenset({Row("live", day_of(month, 9), 1, 1, "live")})))
    with pytest.raises(PublicationDeferred):
        publish(it, run)
    if late is None:
        with pytest.raises(StateMoved, match="planned anew"):
            opens()
    else:
        with pytest.raises(StateMoved, match="planned anew"):
            ledger.stage("run", late[0], {month: []})
        assert ledger.fail_attempt("run", late[0], "lost", chunk=month, fails_run="lost", actor="ada") == OBSOLETE
    assert (state(it, run), ledger.chunks("run")[0].state) == (RunState.RUNNING, ChunkState.PLANNED)
    it.stage(run, {month: [File(frozenset({row}))]}, passes=True)
    publish(it, run)
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)


# --- corrections of rows that have changed ----------------------------------------------------------------------------


@pytest.mark.parametrize("terms", list(OnConflict))
@pytest.mark.parametrize("way", list(Corrections))
def test_corrections_of_rows_that_others_have_replaced_follow_the_conflict_policy(
    it: Installation, way: Corrections, terms: OnConflict
) -> None:
    publish(it, staged(it, "earlier"))
    run = staged(it, "run", mode=PublishMode.CORRECTION_EVENTS, corrections=way, on_conflict=terms)
    publish(it, staged(it, "another", value=2))
    refusal = PublicationRefused if terms is OnConflict.REFUSE else PublicationDeferred
    with pytest.raises(refusal, match=r"changed since|no longer holds"):
        publish(it, run)
    states = {OnConflict.REFUSE: RunState.REJECTED, OnConflict.WAIT: RunState.VALIDATED}
    assert (state(it, run), issued(it), names(it)) == (states.get(terms, RunState.RUNNING), [], ["another"])
    if terms is OnConflict.REPLAN:
        row = Row("run", day_of(MONTHS[0], 3), 1, 1, "run")
        it.stage(run, {MONTHS[0]: [File(frozenset({row}))]}, passes=True)
        publish(it, run)
        assert {(event.corrects, event.kind) for event in it.corrections()} == {("another", "REMOVED"), (None, "ADDED")}


def test_rows_that_change_just_before_their_corrections_are_issued_are_found(it: Installation) -> None:
    publish(it, staged(it, "earlier"))
    run = staged(it, "run", mode=PublishMode.CORRECTION_EVENTS, corrections=Corrections.INSTEAD)
    file = File(frozenset({Row("live", day_of(MONTHS[0], 9), 1, 1, "live")}))
    with (
        at("publishing.leased", lambda: it.live(MONTHS[0], file)),
        pytest.raises(PublicationRefused, match="no longer holds"),
    ):
        publish(it, run)
    assert (state(it, run), issued(it)) == (RunState.REJECTED, [])


def test_corrections_do_not_come_back_for_rows_that_others_have_replaced(it: Installation) -> None:
    publish(it, staged(it, "earlier"))
    run = staged(it, "run", mode=PublishMode.CORRECTION_EVENTS, corrections=Corrections.INSTEAD)
    publish(it, run)
    undoing.rollback(it.platform, run.run_id)
    another = staged(it, "another", value=2)
    publish(it, another)
    with pytest.raises(PublicationRefused, match="no longer holds"):
        undoing.reinstate(it.platform, run.run_id)
    assert (state(it, run), issued(it)) == (RunState.ROLLED_BACK, [])
    undoing.rollback(it.platform, another.run_id)
    undoing.reinstate(it.platform, run.run_id)
    assert (state(it, run), set(issued(it))) == (RunState.PUBLISHED, {"run"})


def test_corrections_whose_base_has_expired_do_not_come_back_and_leave_nothing_open(it: Installation) -> None:
    publish(it, staged(it, "earlier"))
    run = staged(it, "run", mode=PublishMode.CORRECTION_EVENTS, corrections=Corrections.INSTEAD)
    base = it.platform.lakehouse.snapshot_id(DAYS)
    publish(it, run)
    undoing.rollback(it.platform, run.run_id)
    publish(it, staged(it, "another", value=2))
    undoing.rollback(it.platform, "another")
    assert base is not None
    forget(it.platform.lakehouse.table(DAYS), refs=["before-run", "before-another"], snapshot_ids=[base])
    with pytest.raises(InputRefused, match=f"has no snapshot {base}"):
        undoing.reinstate(it.platform, run.run_id)
    assert (state(it, run), issued(it)) == (RunState.ROLLED_BACK, [])
    assert entries(it, run) == ["COMMITTED", "COMMITTED", "REFUSED"]


# --- changes of two tables --------------------------------------------------------------------------------------------


def beside(it: Installation, run_id: str, value: int = 1) -> Run:
    return staged(it, run_id, mode=PublishMode.CORRECTION_EVENTS, corrections=Corrections.BESIDE, value=value)


def issued(it: Installation) -> list[str]:
    return sorted(event.run for event in it.corrections())


def test_a_change_of_two_tables_is_undone_in_both_or_in_none(it: Installation) -> None:
    """A collection that died has removed from one of them what its undoing would show again."""
    publish(it, staged(it, "earlier"))
    run = beside(it, "run", value=2)
    publish(it, run)
    announced = it.platform.lakehouse.snapshot_id(EVENTS)
    undoing.rollback(it.platform, run.run_id)
    assert announced is not None
    forget(it.platform.lakehouse.table(EVENTS), refs=[], snapshot_ids=[announced])
    with pytest.raises(PublicationRefused, match="has expired"):
        undoing.reinstate(it.platform, run.run_id)
    assert (state(it, run), issued(it), names(it)) == (RunState.ROLLED_BACK, [], ["earlier"])
    assert entries(it, run) == ["COMMITTED", "COMMITTED", "REFUSED"]


@pytest.mark.parametrize("overtaken", [False, True])
def test_a_publication_that_stopped_halfway_is_completed_before_another_one(it: Installation, overtaken: bool) -> None:
    run = beside(it, "run")

    def another_publishes() -> None:
        sleeps_beyond_its_lease(it)
        publish(it, staged(it, "later"))

    if overtaken:
        later = staged(it, "first")  # planned on the table before
        with at("publishing.halfway", lambda: [sleeps_beyond_its_lease(it), cancel(it, later)]):
            publish(it, run)
    else:
        with killed_at(it, "publishing.halfway"):
            publish(it, run)
        another_publishes()
    assert issued(it) == ["run"]
    assert state(it, run) is (RunState.PUBLISHED if overtaken else RunState.SUPERSEDED)
    assert entries(it, run) == ["COMMITTED"]


def test_a_publisher_that_lost_its_lease_halfway_is_not_refused_as_if_nothing_had_changed(it: Installation) -> None:
    run = beside(it, "run")
    with at("publishing.halfway", lambda: fence_all(it)), pytest.raises(LeaseLost):
        publish(it, run)
    assert (entries(it, run), names(it), issued(it)) == (["INTENT"], ["run"], [])
    with pytest.raises(PublicationRefused, match="has landed"):
        cancel(it, run)
    assert (state(it, run), issued(it)) == (RunState.PUBLISHED, ["run"])


def others_correct(it: Installation) -> None:
    """Append a correction past the project, in the days of the runs."""
    table = it.platform.lakehouse.table(EVENTS)
    issued_once = [table.scan(snapshot_id=one.snapshot_id).to_arrow() for one in table.snapshots()]
    table.append(next(rows for rows in issued_once if rows.num_rows).slice(0, 1))


@pytest.mark.parametrize("dies", [False, True])
@pytest.mark.parametrize("action", [undoing.rollback, undoing.reinstate])
def test_a_change_that_is_undone_halfway_is_completed_whatever_others_have_added(
    it: Installation, action: Any, dies: bool
) -> None:
    publish(it, staged(it, "earlier"))
    run = beside(it, "run", value=2)
    publish(it, run)
    told = issued(it)
    back = action is undoing.rollback
    if not back:
        undoing.rollback(it.platform, run.run_id)
    if dies:
        with killed_at(it, "undoing.halfway"):
            action(it.platform, run.run_id)
        others_correct(it)
        action(it.platform, run.run_id)
    else:
        with at("undoing.halfway", lambda: others_correct(it)):
            action(it.platform, run.run_id)
    assert state(it, run) is (RunState.ROLLED_BACK if back else RunState.PUBLISHED)
    assert names(it) == (["earlier"] if back else ["run"])
    assert it.platform.lakehouse.table(EVENTS).scan().to_arrow().num_rows == 1 + (0 if back else len(told))
    publish(it, staged(it, "another", value=3))


@pytest.mark.parametrize("action", [undoing.rollback, undoing.reinstate])
def test_a_change_that_was_undone_halfway_is_completed_before_another_one(it: Installation, action: Any) -> None:
    run = beside(it, "run")
    publish(it, run)
    back = action is undoing.rollback
    if not back:
        undoing.rollback(it.platform, run.run_id)
    with killed_at(it, "undoing.halfway"):
        action(it.platform, run.run_id)
    cancel(it, staged(it, "another"))
    assert state(it, run) is (RunState.ROLLED_BACK if back else RunState.PUBLISHED)
    assert (names(it), issued(it)) == (([], []) if back else (["run"], ["run"]))


def test_each_renaming_of_a_version_has_a_record_of_its_own(it: Installation) -> None:
    """None of them commits anything: each entry has the snapshot of the candidate."""
    run = staged(it, "version", mode=PublishMode.VERSIONED, version="v2", later=True)
    publish(it, run)
    for act in (undoing.rollback, undoing.reinstate) * 2:
        act(it.platform, run.run_id)
        assert not act(it.platform, run.run_id).new
        assert [one for one in examine(it.platform) if one.where == run.run_id] == []
        assert verify(it.platform).everything == []
    told = [one.name for one in records_of(it.platform, run.run_id)]
    assert told == ["publish", "rollback", "reinstate-3", "rollback-4", "reinstate-5"]
    untold = mock.patch.object(undoing, "tell_the_world", side_effect=Killed)
    with untold, pytest.raises(Killed):
        undoing.rollback(it.platform, run.run_id)
    assert [one.kind for one in examine(it.platform)] == ["evidence-not-told"]
    mend(it.platform)
    assert examine(it.platform) == []
    assert [one.name for one in records_of(it.platform, run.run_id)] == [*told, "rollback-6"]


def test_a_publication_that_nobody_told_of_is_recorded_before_its_acceptance(it: Installation) -> None:
    run = staged(it, "version", mode=PublishMode.VERSIONED, version="v2", later=True)
    with killed_at(it, "publishing.recorded"):
        publish(it, run)
    accepting.accept(it.platform, run.run_id)
    assert [one.name for one in records_of(it.platform, run.run_id)] == ["publish", "accept"]
    assert verify(it.platform).everything == []


def test_corrections_come_back_though_what_they_were_in_has_expired(it: Installation) -> None:
    run = beside(it, "run")
    publish(it, run)
    undoing.rollback(it.platform, run.run_id)
    with killed_at(it, "undoing.halfway"):
        undoing.reinstate(it.platform, run.run_id)
    table = it.platform.lakehouse.table(EVENTS)
    kept = {table.current_snapshot().snapshot_id, *(one.snapshot_id for one in table.refs().values())}
    gone = [one.snapshot_id for one in table.snapshots() if one.snapshot_id not in kept]
    assert gone
    table.maintenance.expire_snapshots().by_ids(gone).commit()  # another program: gc keeps them
    undoing.reinstate(it.platform, run.run_id)
    assert (state(it, run), names(it), issued(it)) == (RunState.PUBLISHED, ["run"], ["run"])
    undoing.rollback(it.platform, run.run_id)
    assert (state(it, run), names(it), issued(it)) == (RunState.ROLLED_BACK, [], [])


@pytest.mark.parametrize("act", ["publish", "rollback", "reinstate"])
def test_corrections_that_others_add_while_those_of_a_change_are_committed_are_no_reason(
    it: Installation, act: str
) -> None:
    publish(it, staged(it, "earlier"))
    publish(it, beside(it, "run0", value=9))
    run = beside(it, "run", value=2)
    if act != "publish":
        publish(it, run)
    if act == "reinstate":
        undoing.rollback(it.platform, run.run_id)
    real, added = commits.commit_replacement, list[int]()

    def whose() -> list[str]:
        found: list[str] = it.platform.lakehouse.table(EVENTS).scan().to_arrow()["run_id"].to_pylist()
        return found

    of_others = whose().count("run0")

    def overtaken(table: Any, *args: Any, **values: Any) -> Any:
        if table.name()[-1] == EVENTS.partition(".")[2] and not added:
            added.append(1)
            others_correct(it)
        return real(table, *args, **values)

    with mock.patch.object(commits, "commit_replacement", overtaken):
        ACTS[act](it.platform, run.run_id)
    assert added
    assert state(it, run) is (RunState.ROLLED_BACK if act == "rollback" else RunState.PUBLISHED)
    assert whose().count("run0") == of_others + 1
    assert ("run" in whose()) is (act != "rollback")


@pytest.mark.parametrize("harm", ["gone", "changed", "renamed column", "other partitions"])
@pytest.mark.parametrize("act", ["publish", "reinstate"])
def test_a_change_of_two_tables_is_refused_before_the_first_if_its_corrections_cannot_be_committed(
    it: Installation, act: str, harm: str
) -> None:
    publish(it, staged(it, "earlier"))
    run = beside(it, "run", value=2)
    if act == "reinstate":
        publish(it, run)
        undoing.rollback(it.platform, run.run_id)
    seen, was = names(it), state(it, run)
    derived = [file for chunk in it.platform.ledger.chunks(run.run_id) for file in chunk.derived]
    path = Path(local_path(derived[0].path))
    table = it.platform.lakehouse.table(EVENTS)
    if harm == "gone":
        path.unlink()
    elif harm == "changed":
        path.write_bytes(path.read_bytes()[:-40] + b"x" * 40)
    elif harm == "renamed column":
        with table.update_schema() as schema:
            schema.rename_column("reason", "why")
    else:
        with table.update_spec() as spec:
            spec.add_identity("name")
    again = ACTS[act]
    if act == "reinstate" and harm in {"renamed column", "other partitions"}:  # the files come back as they were
        again(it.platform, run.run_id)
        assert state(it, run) is RunState.PUBLISHED
    else:
        for _ in range(2):
            with pytest.raises((PublicationRefused, EnvironmentRefused)):
                again(it.platform, run.run_id)
        assert (names(it), state(it, run) in {was, RunState.REJECTED}) == (seen, True)
    publish(it, staged(it, "another", value=3))  # and nobody else is in its way
    assert names(it) == ["another"]


@pytest.mark.parametrize("way_out", ["cancel", "publish", "another"])
def test_corrections_that_an_earlier_version_announced_for_nothing_are_taken_back(
    it: Installation, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = beside(it, "run")
    with monkeypatch.context() as earlier:
        tables = Change.tables.fget
        earlier.setattr(Change, "tables", property(lambda change: tables(change)[::-1]))
        with killed_at(it, "publishing.halfway"):
            publish(it, run)
    assert (issued(it), names(it)) == (["run"], [])
    if way_out == "cancel":
        cancel(it, run)
    elif way_out == "another":
        publish(it, staged(it, "another"))
        cancel(it, run)
    else:
        it.live(MONTHS[0], File(frozenset({Row("live", day_of(MONTHS[0], 9), 1, 1, "live")})))
        with pytest.raises(PublicationRefused, match="no longer holds"):
            publish(it, run)
    assert issued(it) == []
    assert state(it, run) in {RunState.CANCELLED, RunState.REJECTED}


def test_corrections_that_an_earlier_version_announced_are_issued_with_their_change(
    it: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = beside(it, "run")
    with monkeypatch.context() as earlier:
        tables = Change.tables.fget
        earlier.setattr(Change, "tables", property(lambda change: tables(change)[::-1]))
        with killed_at(it, "publishing.halfway"):
            publish(it, run)
    publish(it, run)
    assert (names(it), issued(it), state(it, run)) == (["run"], ["run"], RunState.PUBLISHED)
    undoing.rollback(it.platform, run.run_id)
    assert (names(it), issued(it)) == ([], [])


# --- repairs from an older look ---------------------------------------------------------------------------------------


def test_a_repair_that_was_decided_before_a_reinstatement_rolls_nothing_back(it: Installation) -> None:
    run = staged(it, "run")
    publish(it, run)
    with killed_at(it, "undoing.committed"):
        undoing.rollback(it.platform, run.run_id)
    # what an examination has found here is repaired after people have gone on
    undoing.rollback(it.platform, run.run_id)
    undoing.reinstate(it.platform, run.run_id)
    assert record_landed(it.platform, run.run_id, "rollback", 2) is None
    assert tell_again(it.platform, run.run_id, "rollback", 2) is None
    assert (names(it), state(it, run)) == (["run"], RunState.PUBLISHED)


def test_a_repair_that_was_decided_before_newer_decisions_brings_nothing_back(it: Installation) -> None:
    run = staged(it, "run")
    publish(it, run)
    undoing.rollback(it.platform, run.run_id)
    with killed_at(it, "undoing.committed"):
        undoing.reinstate(it.platform, run.run_id)
    undoing.reinstate(it.platform, run.run_id)  # it records what landed
    undoing.rollback(it.platform, run.run_id)
    before = it.platform.lakehouse.snapshot_id(DAYS)
    for action, number in (("reinstate", 3), ("accept", 2), ("publish", 1)):
        assert record_landed(it.platform, run.run_id, action, number) is None
        assert tell_again(it.platform, run.run_id, action, number) is None
    assert (names(it), state(it, run)) == ([], RunState.ROLLED_BACK)
    assert it.platform.lakehouse.snapshot_id(DAYS) == before


def test_a_repair_records_a_rollback_that_landed(it: Installation) -> None:
    run = staged(it, "run")
    publish(it, run)
    with killed_at(it, "undoing.committed"):
        undoing.rollback(it.platform, run.run_id)
    assert record_landed(it.platform, run.run_id, "rollback", 2) == it.platform.lakehouse.snapshot_id(DAYS)
    assert (names(it), state(it, run)) == ([], RunState.ROLLED_BACK)


def untagged(it: Installation) -> Disagreement:
    """Return the finding that nothing protects the base of `run`, which is published over what another one published."""
    publish(it, staged(it, "first"))
    publish(it, staged(it, "run"))
    it.platform.lakehouse.table(DAYS).manage_snapshots().remove_tag("before-run").commit()
    (found,) = [one for one in examine(it.platform) if one.kind == "base-tag-missing"]
    return found


def test_a_base_is_not_tagged_for_a_run_that_was_rolled_back_since_it_was_looked_at(it: Installation) -> None:
    found = untagged(it)
    undoing.rollback(it.platform, "run")
    assert found.repair is not None
    assert "nothing was done" in found.repair()
    assert "before-run" not in it.platform.lakehouse.refs(DAYS)


def test_a_base_is_not_tagged_while_snapshots_are_collected(it: Installation) -> None:
    found = untagged(it)
    assert found.repair is not None
    with collecting_lease(it.platform, DAYS), pytest.raises(LeaseHeld):
        found.repair()
    assert found.repair() == "created tag before-run"
    assert "before-run" in it.platform.lakehouse.refs(DAYS)


# --- what is said of a record while its process is at it --------------------------------------------------------------


def test_a_record_whose_link_is_still_to_come_is_no_damaged_one(it: Installation) -> None:
    run = staged(it, "run")
    with killed_at(it, "recording.written"):
        publish(it, run)
    assert damaged_files(it.platform, "run") == []
    record = it.platform.evidence.records("run") / "publish.json"
    record.write_text(record.read_text().replace('"PUBLISHED"', '"CANCELLED"'))  # nobody has made what is due
    assert damaged_files(it.platform, "run") == ["run/records/publish.json"]


def test_a_record_that_comes_while_damaged_files_are_looked_for_is_none(
    it: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = staged(it, "run")
    publish(it, run)
    read = Chain.read

    def slowly(chain: Chain) -> Any:
        found = read(chain)
        monkeypatch.setattr(Chain, "read", read)
        undoing.rollback(it.platform, "run")
        return found

    monkeypatch.setattr(Chain, "read", slowly)
    assert damaged_files(it.platform, "run") == []


def test_the_record_of_another_run_is_not_that_of_the_run_in_whose_folder_it_lies(it: Installation) -> None:
    for name in ("one", "two"):
        publish(it, staged(it, name))
    records = it.platform.evidence.records
    shutil.copy(records("one") / "publish.json", records("two") / "publish.json")
    assert "two/records/publish.json" in {one.where for one in verify(it.platform).everything}
    with pytest.raises(EnvironmentRefused, match="publish"):
        undoing.rollback(it.platform, "two")
    assert names(it) == ["two"]


def test_a_bundle_that_each_init_of_an_earlier_version_has_adopted_is_no_alarm(it: Installation) -> None:
    publish(it, staged(it, "run"))
    chain = it.platform.evidence.chain
    (sealed,) = (link for link in chain.contents() if link["event"] == SEALED)
    said = {name: value for name, value in sealed.items() if name not in {"number", "previous", "hash"}}
    repeated = chain.append(said, since=chain.length(), same=lambda _: False)

    def strange(adopted: set[str]) -> list[str]:
        links = chain.read().links
        found = strange_links(it.platform.evidence, links, runs={"run"}, known={"run"}, adopted=adopted)
        return [one.where for one in found]

    assert strange(set()) == [f"chain link {repeated.number}"]
    assert strange({"run"}) == []


def test_a_session_that_the_server_ends_puts_no_record_in_the_place_of_others(
    tmp_path: Path, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL ends a transaction that stands still for a minute; here it is told to."""
    url = postgres_server.database()
    idle = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    with only_this_table():
        platform = Platform.of(load_settings(home=tmp_path / "home", ledger_url=url))
        table_world.initialise(platform)
        it = Installation(platform)
        publish(it, staged(it, "one"))
        two = staged(it, "two", value=2)
        other = Platform.of(load_settings(home=tmp_path / "home", ledger_url=url))
        real, ended = EvidenceStore.append, []

        def append(store: EvidenceStore, run_id: str, *said: Any) -> Path:
            if run_id == "one" and not ended:
                engine = sa.create_engine(url)
                with engine.connect() as connection:
                    ended.append(connection.execute(sa.text(idle)).scalar_one())
                engine.dispose()
                undoing.rollback(other, "two")
            return real(store, run_id, *said)

        monkeypatch.setattr(EvidenceStore, "append", append)
        with pytest.raises(sa.exc.OperationalError):
            publish(it, two)
        assert ended == [1]
        assert sorted(one.name for one in it.platform.evidence.records("one").iterdir()) == [
            "publish.json",
            "restored-2.json",
        ]
        assert verify(it.platform).everything == []
        assert examine(it.platform) == []
        undoing.rollback(it.platform, "one")
        assert names(it) == []
        for platform in (it.platform, other):
            platform.ledger.engine.dispose()
    postgres_server.drop(url)
