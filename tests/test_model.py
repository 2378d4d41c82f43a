"""Arbitrary interleavings of backfills in every mode, live writes, rollbacks, pauses and kills, against a simple model.

Real are the planner, the ledger, the leases, the commits, the catalog, the evidence, merges and corrections; only Spark is
left out: files are written by PyArrow, and what its workers do is done here. After each step table, corrections, versions,
states, holders and evidence are compared with `table_model`. HYPOTHESIS_PROFILE=long tries more.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from table_model import File, Killed, Launch, Model, Row, Run
from table_world import DAYS, MONTHS, NAMES, NOBODY, Installation, day_of, only_this_table

from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.publication import accepting, ending, undoing
from backfill_assets.publication import publisher as publication
from benchmarks.small_table import closed
from manifests.errors import LeaseHeld, PlanRefused, PublicationRefused, Refused
from manifests.lifecycle import RunState
from manifests.model import Corrections, OlderVersion, OnConflict, PublishMode
from resources.ledger.leases import Leases
from resources.ledger.tables import leases as leases_table
from resources.processes import name_of

PUBLISHING = ("sealed", "tagged", "prepared", "leased", "committed", "recorded")

seeds = st.integers(0, 2**16)
spans = st.tuples(st.integers(0, 3), st.integers(0, 2)).map(lambda it: MONTHS[it[0] : it[0] + it[1] + 1])
months = st.sampled_from(MONTHS)
launches = st.sampled_from(["", "read", "opened"])


class TableUnderChange(RuleBasedStateMachine):
    """One table, its runs, and everybody who changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = only_this_table()
        self.scene.__enter__()
        self.it = Installation()
        self.model = Model(MONTHS)
        self.numbers = count(1)
        self.live_files: list[tuple[str, File]] = []
        self.launched: list[tuple[Launch, Callable[[], None]]] = []
        self.seen = (0, self.it.platform.lakehouse.snapshot_id(DAYS))

    def teardown(self) -> None:
        closed(self.it.platform)
        self.scene.__exit__(None, None, None)

    # --- helpers --------------------------------------------------------------------------------------------------

    def runs(self, *states: RunState) -> list[Run]:
        return [run for run in self.model.runs.values() if not states or run.state in states]

    def draw(self, data: st.DataObject, runs: list[Run]) -> Run:
        return self.model.runs[data.draw(st.sampled_from([run.run_id for run in runs]))]

    def both(self, real: Callable[[], Any], model: Callable[[], Any]) -> None:
        """Do the same in both worlds: both do it, or both refuse it for the same kind of reason."""
        wanted = _outcome(model)
        found = _outcome(real)
        assert _kind(found) is _kind(wanted), f"the model says {wanted!r}, the project {found!r}"

    def act(self, action: str, run: Run, point: str = "", real: Any = None, model: Any = None) -> None:
        """Publish, roll back, reinstate or accept a run; at `point` of it, do something else."""
        fired: list[str] = []

        def at(do: Any, mark: str) -> Callable[[str], None]:
            def reach(name: str) -> None:
                if name == point and mark not in fired:
                    fired.append(mark)
                    do()

            return reach

        doing = {
            "publish": publication.publish,
            "rollback": undoing.rollback,
            "reinstate": undoing.reinstate,
            "accept": accepting.accept,
        }[action]
        same = getattr(self.model, action)
        end = Leases._end

        def unless_killed(leases: Leases, lease: Any, how: str) -> None:
            if not self.it.killed:
                end(leases, lease, how)

        with (
            mock.patch.object(publication.faults, "reach", at(real, "real")),
            mock.patch.object(Leases, "_end", unless_killed),
        ):
            self.both(
                lambda: doing(self.it.platform, run.run_id),
                lambda: same(run, at(model, "model")),
            )
        assert len(fired) in {0, 2}, f"only {fired} got to {point}"
        if self.it.killed:
            self.it.edit_leases(leases_table.c.run_id == run.run_id, pid=NOBODY, process=name_of(NOBODY))
            self.it.killed = False

    def given(self, mode: PublishMode, beside: str = "", **options: Any) -> Run:
        """Return a validated run over the first two months."""
        run = Run(f"run-{next(self.numbers):03}", mode, MONTHS[:2], **options)
        self.model.plan(run)
        self.it.plan(run)
        self._stage(run, next(self.numbers), beside)
        return run

    def cancel(self, run: Run) -> None:
        self.both(
            lambda: ending.cancel(self.it.platform, run.run_id, "ada", "not wanted"),
            lambda: self.model.cancel(run),
        )

    def die(self) -> None:
        self.it.killed = True
        raise Killed

    def die_in_the_model(self) -> None:
        raise Killed

    def agree(self) -> None:
        """Compare everything there is."""
        self.the_table_is_what_the_model_says()
        self.corrections_and_versions_are_what_the_model_says()
        self.the_ledger_says_what_the_model_says()
        self.the_evidence_of_what_was_published_is_whole()

    def computed(self, run: Run, seed: int, wanted: set[str]) -> dict[str, list[File]]:
        """What a transform makes of some months: whatever it is, the same in both worlds."""
        chance = random.Random(seed)
        names = sorted(run.entities) if run.mode is PublishMode.MERGE_BY_KEY else NAMES
        revision = next(self.numbers)
        found = {}
        for month in sorted(wanted):
            rows = [
                Row(name, day_of(month, number), chance.randrange(3), revision, run.run_id)
                for name in names
                for number in (3, 20)
                if chance.random() < 0.6
            ]
            split = chance.randrange(len(rows) + 1)
            found[month] = [File(frozenset(part)) for part in (rows[:split], rows[split:]) if part]
        return found

    # --- runs -----------------------------------------------------------------------------------------------------

    @rule(
        mode=st.sampled_from(PublishMode),
        months=spans,
        on_conflict=st.sampled_from(OnConflict),
        seed=seeds,
        options=st.tuples(st.integers(1, 2), st.booleans(), st.sampled_from(OlderVersion)),
        beside=launches,
    )
    def a_run_is_planned_approved_and_staged(
        self, mode: PublishMode, months: tuple[str, ...], on_conflict: OnConflict, seed: int, options: Any, beside: str
    ) -> None:
        number, choice, older = options
        run = Run(f"run-{next(self.numbers):03}", mode, months, on_conflict, max_replans=number)
        if mode is PublishMode.VERSIONED:
            run.version, run.later = f"v{number}", choice
        if mode is PublishMode.CORRECTION_EVENTS:
            run.corrections = Corrections.BESIDE if choice else Corrections.INSTEAD
        if mode is PublishMode.MERGE_BY_KEY:
            lives = [row.name for row in self.model.rows() if row.run == "live"]
            run.entities, run.older = frozenset([NAMES[number], *lives[:number]]), older
        if not self.model.plannable(run):
            try:
                self.it.plan(run)
            except PlanRefused:
                return
            raise AssertionError(f"{run} was planned")
        self.model.plan(run)
        self.it.plan(run)
        self._stage(run, seed, beside)

    def _stage(self, run: Run, seed: int, beside: str = "") -> None:
        """Stage what waits, perhaps `beside` another launch of it that has read its plan, or opened its attempt, before."""
        if beside and not run.stopped:
            self.model.launch(run, opens=beside == "opened")
            self.launched.append((run.launches[-1], self.it.launch(run.run_id, run.waiting, opens=beside == "opened")))
        computed = self.computed(run, seed, run.waiting)
        passes: list[bool] = []
        self.both(
            lambda: self.it.stage(run, computed, passes=all(passes)),
            lambda: passes.append(self.model.stage(run, computed)),
        )

    @precondition(lambda self: self.runs(RunState.RUNNING))
    @rule(data=st.data(), seed=seeds, beside=launches)
    def months_planned_anew_are_computed(self, data: st.DataObject, seed: int, beside: str) -> None:
        self._stage(self.draw(data, self.runs(RunState.RUNNING)), seed, beside)

    @precondition(lambda self: self._late())
    @rule(data=st.data())
    def a_launch_that_took_its_time_goes_on(self, data: st.DataObject) -> None:
        self.go_on(data.draw(st.sampled_from(self._late())))

    def go_on(self, late: tuple[Launch, Callable[[], None]]) -> None:
        self.launched.remove(late)
        self.both(late[1], lambda: self.model.go_on(late[0]))

    def _late(self) -> list[tuple[Launch, Callable[[], None]]]:
        return [one for one in self.launched if one[0].run.state is not RunState.FAILED]

    # --- stops ----------------------------------------------------------------------------------------------------

    def _stop(self, run: Run) -> None:
        self.it.platform.ledger.stops.stop(run.run_id, by="olga", through="backfill stop")

    @precondition(lambda self: self.runs())
    @rule(data=st.data())
    def a_run_is_stopped(self, data: st.DataObject) -> None:
        run = self.draw(data, self.runs())
        self.both(lambda: self._stop(run), lambda: self.model.stop(run))

    @precondition(lambda self: any(run.stopped for run in self.runs()))
    @rule(data=st.data())
    def a_stopped_run_is_launched_again(self, data: st.DataObject) -> None:
        run = self.draw(data, [run for run in self.runs() if run.stopped])
        self.it.platform.ledger.stops.launched(run.run_id, by="ada")
        self.model.resume(run)

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data())
    def a_run_is_stopped_while_its_tables_change(self, data: st.DataObject) -> None:
        action, run, point = self._action_and_point(data)
        self.stopped_at(action, run, point)

    def stopped_at(self, action: str, run: Run, point: str) -> None:
        found: list[Any] = []
        self.act(
            action,
            run,
            point,
            lambda: found.append(_outcome(lambda: self._stop(run))),
            lambda: found.append(_outcome(lambda: self.model.stop(run))),
        )
        assert not found or _kind(found[0]) is _kind(found[1]), found

    # --- publications ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.runs(RunState.VALIDATED))
    @rule(data=st.data())
    def a_validated_run_is_published(self, data: st.DataObject) -> None:
        self.act("publish", self.draw(data, self.runs(RunState.VALIDATED)))

    @precondition(lambda self: self.runs(RunState.PUBLISHED))
    @rule(data=st.data())
    def a_published_run_is_rolled_back(self, data: st.DataObject) -> None:
        self.act("rollback", self.draw(data, self.runs(RunState.PUBLISHED)))

    @precondition(lambda self: self.runs(RunState.ROLLED_BACK))
    @rule(data=st.data())
    def a_rollback_is_rolled_back(self, data: st.DataObject) -> None:
        self.act("reinstate", self.draw(data, self.runs(RunState.ROLLED_BACK)))

    @precondition(lambda self: any(run.later for run in self.runs(RunState.PUBLISHED)))
    @rule(data=st.data())
    def a_version_is_accepted(self, data: st.DataObject) -> None:
        self.act("accept", self.draw(data, [run for run in self.runs(RunState.PUBLISHED) if run.later]))

    @precondition(lambda self: self.runs())
    @rule(data=st.data(), action=st.sampled_from(["publish", "rollback", "reinstate", "accept"]))
    def somebody_tries_what_may_make_no_sense(self, data: st.DataObject, action: str) -> None:
        self.act(action, self.draw(data, self.runs()))

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.RUNNING))
    @rule(data=st.data())
    def a_run_is_cancelled(self, data: st.DataObject) -> None:
        self.cancel(self.draw(data, self.runs(RunState.VALIDATED, RunState.RUNNING)))

    # --- crashes, pauses, crowds ----------------------------------------------------------------------------------

    def _action_and_point(self, data: st.DataObject) -> tuple[str, Run, str]:
        states = (RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK)
        run = self.draw(data, self.runs(*states))
        if run.state is RunState.VALIDATED:
            return "publish", run, f"publishing.{data.draw(st.sampled_from(PUBLISHING))}"
        if run.state is RunState.ROLLED_BACK:
            return "reinstate", run, "undoing.committed"
        if run.later and "accept" not in run.done and data.draw(st.booleans()):
            return "accept", run, "accepting.committed"
        return "rollback", run, "undoing.committed"

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data())
    def a_publisher_is_killed(self, data: st.DataObject) -> None:
        action, run, point = self._action_and_point(data)
        self.act(action, run, point, self.die, self.die_in_the_model)

    @precondition(lambda self: self.model.leases)
    @rule()
    def a_dead_publisher_was_on_a_machine_nobody_can_ask(self) -> None:
        for lease in self.model.leases:
            if lease.state != "expired":  # whoever held it, and wherever: it is nobody's any more
                lease.state = "elsewhere"
        self.it.edit_leases(sa.true(), host="another-machine")

    @precondition(lambda self: any(lease.state == "elsewhere" for lease in self.model.leases))
    @rule()
    def time_passes_and_leases_expire(self) -> None:
        for lease in self.model.leases:
            lease.state = "expired"
        self._expire()

    def _expire(self) -> None:
        self.it.edit_leases(sa.true(), expires_at=datetime.now(UTC) - timedelta(seconds=1))

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data(), paused=st.booleans())
    def two_publishers_at_once(self, data: st.DataObject, paused: bool) -> None:
        """One publishes while another is at some point of its own; perhaps that one has slept beyond its lease."""
        action, run, point = self._action_and_point(data)
        others = [one for one in self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK) if one != run]
        if not others:
            return
        other = self.draw(data, others)
        then = {RunState.VALIDATED: "publish", RunState.PUBLISHED: "rollback"}.get(other.state, "reinstate")
        found: list[Any] = []
        real = publication.publish if then == "publish" else getattr(undoing, then)

        def meanwhile() -> None:
            if paused:
                self._expire()
            found.append(_outcome(lambda: real(self.it.platform, other.run_id)))

        def in_the_model() -> None:
            if paused:
                for lease in self.model.leases:
                    lease.state = "expired"
            found.append(_outcome(lambda: getattr(self.model, then)(other, lambda _: None)))

        self.act(action, run, point, meanwhile, in_the_model)
        assert not found or _kind(found[0]) is _kind(found[1]), found

    # --- the doctor, and commits whose answer is lost -------------------------------------------------------------

    @precondition(lambda self: self.runs())
    @rule()
    def the_doctor_repairs(self) -> None:
        self._mend()

    def _mend(self) -> None:
        mend(self.it.platform)
        self.model.mend()

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data(), meanwhile=st.sampled_from(["nothing", "doctor", "cancel", "again", "another", "live"]))
    def an_answer_is_lost_and_the_commit_arrives_later(self, data: st.DataObject, meanwhile: str) -> None:
        """Somebody else acts before it arrives; a change of two commits is the directed tests' (`test_interleavings`)."""
        run = self.draw(data, self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
        action = {RunState.VALIDATED: "publish", RunState.PUBLISHED: "rollback"}.get(run.state, "reinstate")
        if run.later and run.state is RunState.PUBLISHED and "accept" not in run.done:
            action = "accept"
        if run.corrections is not None or (run.version is not None and action in {"rollback", "reinstate"}):
            return
        self.unanswered(action, run, partial(self._meanwhile, meanwhile, run, action, data))

    def _meanwhile(self, what: str, run: Run, action: str, data: st.DataObject) -> None:
        others = [one for one in self.runs(RunState.VALIDATED) if one is not run]
        if what == "doctor":
            self._mend()
        elif what == "cancel":
            self.cancel(run)
        elif what == "again":
            self.act(action, run)
        elif what == "another" and others:
            self.act("publish", self.draw(data, others))
        elif what == "live":
            file = self._live_file(run.months[0], 0)
            self.model.live(run.months[0], file)
            self.it.live(run.months[0], file)

    def unanswered(self, action: str, run: Run, meanwhile: Callable[[], None]) -> list[bool]:
        """Lose the answer to a run's commit; let it arrive after `meanwhile`, and say whether it has landed."""
        self.model.answers = run.later and action == "publish"  # a version is shown to nobody yet
        with self.it.answer_lost() as late:
            self.act(action, run)
        self.model.answers = True
        meanwhile()
        landed = [arrives() for arrives in late]
        assert landed == self.model.arrive()
        return landed

    # --- live -----------------------------------------------------------------------------------------------------

    def _live_file(self, month: str, revision: int) -> File:
        name = f"live-{next(self.numbers)}"
        file = File(frozenset({Row(name, day_of(month, 10), 7, revision, "live")}))
        self.live_files.append((month, file))
        return file

    @rule(month=months, newer=st.booleans(), instead=st.booleans())
    def live_writes_past_the_project(self, month: str, newer: bool, instead: bool) -> None:
        file = self._live_file(month, 10**6 if newer else 0)
        self.model.live(month, file, instead=instead)
        self.it.live(month, file, instead=instead)

    @precondition(lambda self: any(file in self.model.main[month] for month, file in self.live_files))
    @rule()
    def live_takes_back_what_it_wrote_last(self) -> None:
        month, file = [(month, file) for month, file in self.live_files if file in self.model.main[month]][-1]
        self.model.live(month, None, removed=file)
        self.it.live(month, None, removed=file)

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data(), month=months)
    def live_writes_in_the_middle_of_a_publication(self, data: st.DataObject, month: str) -> None:
        action, run, point = self._action_and_point(data)
        file = self._live_file(month, 0)
        self.act(action, run, point, lambda: self.it.live(month, file), lambda: self.model.live(month, file))

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def the_table_is_what_the_model_says(self) -> None:
        assert self.it.rows() == self.model.rows()

    @invariant()
    def main_moves_exactly_when_the_model_says(self) -> None:
        commit, snapshot = self.seen
        self.seen = self.model.commit, self.it.platform.lakehouse.snapshot_id(DAYS)
        assert (commit == self.seen[0]) == (snapshot == self.seen[1])

    @invariant()
    def corrections_and_versions_are_what_the_model_says(self) -> None:
        assert self.it.corrections() == self.model.rows(self.model.corrections)
        assert self.it.versions() == set(self.model.versions)
        for name, run_id in self.model.versions.items():
            run = self.model.runs[run_id]
            assert self.it.rows(name) == self.model.rows(run.base_main | run.after)

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        ledger = self.it.platform.ledger
        found = {record.run_id: record.state for record in ledger.runs(target=DAYS)}
        assert found == {run.run_id: run.state for run in self.model.runs.values()}
        assert ledger.accepted(DAYS) == self.model.holders

    @invariant()
    def the_evidence_of_what_was_published_is_whole(self) -> None:
        for run in self.runs(RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK):
            done = [one for one in self.it.platform.ledger.publications(run.run_id) if one.state == "COMMITTED"]
            assert [one.action for one in done] == run.done
            assert {one.evidence_root for one in done} == {self.it.platform.evidence.verify(run.run_id)}


@pytest.fixture
def machine() -> Iterator[TableUnderChange]:
    machine = TableUnderChange()
    yield machine
    machine.agree()
    machine.teardown()


def test_an_accepted_version_holds_its_months_also_after_its_rollback_was_undone(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.VERSIONED, version="v1", later=True)
    for action in ("publish", "accept", "rollback", "reinstate", "rollback", "reinstate"):
        machine.act(action, run)
        machine.agree()
    assert set(machine.model.holders.values()) == {run.run_id}


def test_an_acceptance_that_could_not_be_recorded_is_before_the_next_publication(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.VERSIONED, version="v1", later=True)
    machine.act("publish", run)
    machine.act("accept", run, "accepting.committed", machine.die, machine.die_in_the_model)
    later = machine.given(PublishMode.REPLACE_PARTITIONS)
    machine.act("publish", later)
    machine.agree()
    machine.act("accept", run)
    assert (run.state, set(machine.model.holders.values())) == (RunState.SUPERSEDED, {later.run_id})
    machine.agree()
    machine.act("rollback", later)


@pytest.mark.parametrize("mode", [PublishMode.REPLACE_PARTITIONS, PublishMode.VERSIONED])
def test_a_run_whose_publication_landed_is_not_cancelled(machine: TableUnderChange, mode: PublishMode) -> None:
    versioned = mode is PublishMode.VERSIONED
    run = machine.given(mode, version="v1" if versioned else None, later=versioned)
    machine.act("publish", run, "publishing.committed", machine.die, machine.die_in_the_model)
    machine.cancel(run)
    assert run.state is RunState.PUBLISHED


def test_a_rollback_undoes_a_reinstatement_that_could_not_be_recorded(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.REPLACE_PARTITIONS)
    machine.act("publish", run)
    machine.act("rollback", run)
    machine.act("reinstate", run, "undoing.committed", machine.die, machine.die_in_the_model)
    machine.act("rollback", run)
    assert machine.it.rows() == []


@pytest.mark.parametrize("point", ["sealed", "leased"])
def test_corrections_are_not_issued_beside_a_replacement_that_is_refused(machine: TableUnderChange, point: str) -> None:
    run = machine.given(PublishMode.CORRECTION_EVENTS, corrections=Corrections.BESIDE)
    file = machine._live_file(MONTHS[0], 0)
    machine.act(
        "publish",
        run,
        f"publishing.{point}",
        lambda: machine.it.live(MONTHS[0], file),
        lambda: machine.model.live(MONTHS[0], file),
    )
    assert (run.state, machine.it.corrections()) == (RunState.REJECTED, [])


def test_what_the_doctor_has_closed_never_lands(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.REPLACE_PARTITIONS)
    assert machine.unanswered("publish", run, machine._mend) == [False]
    assert [one.state for one in machine.it.platform.ledger.publications(run.run_id)] == ["REFUSED"]
    machine.act("publish", run)
    assert run.state is RunState.PUBLISHED


@pytest.mark.parametrize("mode", [PublishMode.SHADOW_SWAP, PublishMode.VERSIONED])
@pytest.mark.parametrize("point", ["publishing.sealed", "preparing.opened", "publishing.prepared"])
def test_a_gate_step_that_prepares_beside_a_publisher_gets_nothing_rejected(
    machine: TableUnderChange, mode: PublishMode, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "_PREPARING_SECONDS", -1.0)
    run = machine.given(mode, version="v1" if mode is PublishMode.VERSIONED else None)
    beside: list[str | None] = []
    prepare = partial(publication.prepare, machine.it.platform, run.run_id)
    with mock.patch.object(
        publication.faults, "reach", lambda name: beside.append(prepare()) if name == point else None
    ):
        publication.publish(machine.it.platform, run.run_id)
    machine.model.publish(run, lambda _: None)
    assert beside == [None]  # it is the publisher's turn


def test_a_publisher_beside_a_gate_step_that_prepares_waits_for_its_turn(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.SHADOW_SWAP)
    held: list[BaseException | None] = []

    def publishes(point: str) -> None:
        if point == "preparing.opened":
            held.append(_outcome(lambda: publication.publish(machine.it.platform, run.run_id)))

    with mock.patch.object(publication.faults, "reach", publishes):
        assert publication.prepare(machine.it.platform, run.run_id) == f"candidate-{run.run_id}"
    assert [type(one) for one in held] == [LeaseHeld]
    machine.act("publish", run)


def test_a_replacement_is_not_rolled_back_where_its_corrections_cannot_be(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.CORRECTION_EVENTS, corrections=Corrections.BESIDE)
    machine.act("publish", run)
    machine.act("publish", machine.given(PublishMode.CORRECTION_EVENTS, corrections=Corrections.INSTEAD))
    machine.act("rollback", run)
    assert run.state is RunState.PUBLISHED


def test_first_rows_are_not_planned_anew_over_those_of_others(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.APPEND_ONLY, on_conflict=OnConflict.REPLAN)
    file = machine._live_file(MONTHS[0], 0)
    machine.model.live(MONTHS[0], file)
    machine.it.live(MONTHS[0], file)
    machine.act("publish", run)
    assert run.state is RunState.REJECTED


@pytest.mark.parametrize(("point", "state"), [("sealed", RunState.VALIDATED), ("tagged", RunState.PUBLISHED)])
def test_a_stop_holds_a_publication_whose_intent_is_not_on_record_yet(
    machine: TableUnderChange, point: str, state: RunState
) -> None:
    run = machine.given(PublishMode.REPLACE_PARTITIONS)
    machine.stopped_at("publish", run, f"publishing.{point}")
    assert run.state is state
    machine.act("publish", run)
    assert run.state is state


@pytest.mark.parametrize("beside", ["read", "opened"])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_launch_by_a_plan_that_the_run_has_no_longer_changes_nothing(
    machine: TableUnderChange, beside: str, stopped: bool
) -> None:
    run = machine.given(PublishMode.REPLACE_PARTITIONS, beside, on_conflict=OnConflict.REPLAN)
    file = machine._live_file(MONTHS[0], 0)
    machine.model.live(MONTHS[0], file)
    machine.it.live(MONTHS[0], file)
    machine.act("publish", run)
    assert (run.state, run.waiting) == (RunState.RUNNING, {MONTHS[0]})
    if stopped:
        machine.both(lambda: machine._stop(run), lambda: machine.model.stop(run))
    machine.go_on(machine.launched[0])
    assert run.waiting == {MONTHS[0]}


@pytest.mark.parametrize("action", ["publish", "cancel"])
@pytest.mark.parametrize("beside", ["", "read", "opened"])
def test_a_run_that_is_over_is_stopped_only_while_a_batch_of_it_is_under_way(
    machine: TableUnderChange, beside: str, action: str
) -> None:
    run = machine.given(PublishMode.REPLACE_PARTITIONS, beside)
    if action == "publish":
        machine.act("publish", run)
    else:
        machine.cancel(run)
    assert run.state is (RunState.PUBLISHED if action == "publish" else RunState.CANCELLED)
    machine.both(lambda: machine._stop(run), lambda: machine.model.stop(run))
    assert run.stopped is (beside == "opened")
    for late in tuple(machine.launched):
        machine.go_on(late)


def _outcome(do: Callable[[], Any]) -> BaseException | None:
    """Return what a refusal or a kill raised, None where it was done."""
    try:
        do()
    except (Refused, Killed) as error:
        return error
    return None


def _kind(outcome: BaseException | None) -> type | None:
    return PublicationRefused if isinstance(outcome, PublicationRefused) else type(outcome)


_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def tried(examples: int) -> settings:
    return settings(
        max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", examples)),
        stateful_step_count=30 if _LONG else 12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )


@pytest.mark.check
class TestTableUnderChange(TableUnderChange.TestCase):
    settings = tried(5)


@pytest.mark.exhaustive
class TestTableUnderChangeAtLength(TableUnderChange.TestCase):
    settings = tried(1000 if _LONG else 25)
