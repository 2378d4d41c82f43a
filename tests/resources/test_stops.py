"""A stop ends what is under way, holds until the next launch, and is on record with who did both."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from support import REQUESTER, approved, pass_all, planned, stage_all, staged_files

from manifests.errors import RunStopped, TransitionRefused
from manifests.lifecycle import RunState
from resources.ledger import stops
from resources.ledger.facade import Ledger, RunRecord
from resources.ledger.instants import CLOCK_TOLERANCE
from resources.ledger.transactions import system_clock as now


def stop(ledger: Ledger, run_id: str = "run", by: str = "olga") -> stops.Stop:
    return ledger.stops.stop(run_id, by=by, through="backfill stop", reason="the cluster is needed")


def keys(record: RunRecord) -> list[str]:
    return [chunk.key for chunk in record.plan.chunks]


def validated(ledger: Ledger) -> RunRecord:
    record = approved(ledger, "run")
    pass_all(ledger, record, stage_all(ledger, record))
    ledger.move("run", RunState.VALIDATED, REQUESTER, expected=RunState.STAGED)
    return record


def test_a_stop_ends_the_attempt_under_way_and_nothing_of_it_is_staged(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    number, _ = ledger.start_attempt("run", keys(record), edition=0, actor=REQUESTER, location="/staging")
    stopped = stop(ledger)
    (attempt,) = ledger.attempts("run")
    assert attempt.state == stops.STOPPED
    assert "stopped by olga (backfill stop)" in attempt.error
    with pytest.raises(RunStopped, match=r"olga.*the cluster is needed"):
        ledger.stage("run", number, staged_files(record, number))
    with pytest.raises(RunStopped, match="backfill resume run"):
        ledger.start_attempt("run", keys(record), edition=0, actor=REQUESTER, location="/staging")
    ledger.fail_attempt("run", number, "the job was cancelled", chunk=keys(record)[0])
    assert ledger.attempts("run")[0].state == stops.STOPPED, "what a stop has ended has not failed"
    assert ledger.run("run").state is RunState.RUNNING
    assert ledger.stops.held("run") == stopped


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.CANCELLED])
def test_a_run_is_stopped_in_whatever_state_as_long_as_a_batch_of_it_is_under_way(
    ledger: Ledger, state: RunState
) -> None:
    record = approved(ledger, "run")
    number, _ = ledger.start_attempt("run", keys(record), edition=0, actor=REQUESTER, location="/staging")
    known = ledger.stops.newest("run")
    ledger.move("run", state, REQUESTER, expected=RunState.RUNNING)  # by another launch, or by a person
    stopped = stop(ledger)
    assert ledger.stops.after("run", known) == stopped, "the launch that computes it learns of it"
    assert [(one.attempt, one.state) for one in ledger.attempts("run")] == [(number, stops.STOPPED)]
    if state is RunState.CANCELLED:
        with pytest.raises(TransitionRefused, match="or while a batch of it is computed"):
            stop(ledger)


def test_what_was_staged_before_stays(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    stage_all(ledger, record)
    stop(ledger)
    assert {chunk.state for chunk in ledger.chunks("run")} == {"STAGED"}


def test_the_next_launch_ends_a_stop_and_both_are_on_record(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    first = stop(ledger)
    known = ledger.stops.launched("run", by="ada")
    assert known == first.id
    assert ledger.start_attempt("run", keys(record), edition=0, actor="ada", location="/staging") is not None
    second = stop(ledger, by="grace")
    assert second.id > first.id
    told = [(one.stopped_by, one.resumed_by) for one in ledger.stops.of_run("run")]
    assert told == [("olga", "ada"), ("grace", None)]
    assert ledger.stops.after("run", known) == second, "the launch that knows the first one learns of the second"


def test_a_launch_that_was_asked_for_before_the_stop_does_not_end_it(ledger: Ledger) -> None:
    approved(ledger, "run")
    asked = now()
    stop(ledger)
    with pytest.raises(RunStopped):
        ledger.stops.launched("run", by="ada", asked_at=asked)
    assert ledger.stops.held("run") is not None
    ledger.stops.launched("run", by="ada", asked_at=now() + timedelta(seconds=1))
    assert ledger.stops.held("run") is None


def test_where_two_clocks_are_compared_a_launch_that_was_asked_for_about_when_the_run_was_stopped_does_not_end_it(
    ledger: Ledger,
) -> None:
    approved(ledger, "run")
    found = stop(ledger)
    for seconds in (5, 59):
        asked = found.at + timedelta(seconds=seconds)
        until = f"{found.at + CLOCK_TOLERANCE:%H:%M:%S} UTC"
        with pytest.raises(
            RunStopped, match=rf"which of the two came first is not known(.|\n)*in Dagster after {until}"
        ):
            ledger.stops.launched("run", by="ada", asked_at=asked, tolerance=CLOCK_TOLERANCE)
    assert ledger.stops.held("run") == found
    late = found.at + CLOCK_TOLERANCE
    ledger.stops.launched("run", by="ada", asked_at=late, tolerance=CLOCK_TOLERANCE)
    assert ledger.stops.held("run") is None


def test_a_launch_in_dagster_after_a_terminate_there_ends_the_stop_at_once(ledger: Ledger) -> None:
    approved(ledger, "run")
    found = ledger.stops.stop("run", by="Dagster", through=f"{stops.TERMINATE} 1")
    asked = found.at + timedelta(seconds=1)
    ledger.stops.launched("run", by="ada", asked_at=asked, tolerance=CLOCK_TOLERANCE)
    assert ledger.stops.held("run") is None


def test_a_run_may_be_stopped_again_and_a_launch_that_was_asked_for_between_the_two_ends_neither(
    ledger: Ledger,
) -> None:
    approved(ledger, "run")
    stop(ledger)
    asked = now()
    second = stop(ledger, by="grace")
    assert ledger.stops.held("run") == second
    with pytest.raises(RunStopped, match="grace"):
        ledger.stops.launched("run", by="ada", asked_at=asked)
    ledger.stops.launched("run", by="ada")
    assert ledger.stops.held("run") is None, "one launch ends both"


def test_every_launch_is_on_record_and_one_that_a_stop_refuses_is_not(ledger: Ledger) -> None:
    approved(ledger, "run")
    assert ledger.stops.newest_launch("run") is None
    asked = now()
    ledger.stops.launched("run", by="ada")
    first = ledger.stops.newest_launch("run")
    assert first is not None
    assert first >= asked
    stop(ledger)
    with pytest.raises(RunStopped):
        ledger.stops.launched("run", by="ada", asked_at=asked)
    assert ledger.stops.newest_launch("run") == first


def test_a_stop_that_is_noted_late_ends_with_what_was_asked_for_after_it(ledger: Ledger) -> None:
    approved(ledger, "run")
    terminated = now()
    asked = now() + timedelta(seconds=1)
    late = ledger.stops.stop("run", by="Dagster", through=f"{stops.TERMINATE} 1", since=terminated)
    assert late.at == terminated
    ledger.stops.launched("run", by="ada", asked_at=asked, tolerance=CLOCK_TOLERANCE)
    assert ledger.stops.held("run") is None


@pytest.mark.parametrize("what", ["waits in the queue", "takes its next step"])
def test_a_stop_that_is_noted_late_ends_what_was_asked_for_before_it_and_has_begun_since(
    ledger: Ledger, what: str
) -> None:
    """A Dagster run launches with each of its steps: all of them were asked for when it was."""
    record = approved(ledger, "run")
    asked = now()
    first = ledger.stops.launched("run", by="ada", asked_at=asked)
    terminated = now()
    again = asked if what == "takes its next step" else asked + (terminated - asked) / 2
    ledger.stops.launched("run", by="ada", asked_at=again)
    ledger.start_attempt("run", keys(record), edition=0, actor="ada", location="/staging")
    late = ledger.stops.stop("run", by="Dagster", through=f"{stops.TERMINATE} 1", since=terminated)
    assert ledger.stops.held("run") == late
    assert [one.state for one in ledger.attempts("run")] == [stops.STOPPED]
    assert ledger.stops.after("run", first) == late, "whoever is under way learns of it"


def test_a_stop_that_is_noted_late_ends_nothing_once_any_launch_was_asked_for_after_it(ledger: Ledger) -> None:
    approved(ledger, "run")
    asked = now()
    terminated = now()
    ledger.stops.launched("run", by="ada", asked_at=terminated + timedelta(seconds=1))
    ledger.stops.launched("run", by="ada", asked_at=asked)  # it had waited in the queue, and begins after that
    with pytest.raises(TransitionRefused, match="was launched again"):
        ledger.stops.stop("run", by="Dagster", through=f"{stops.TERMINATE} 1", since=terminated)


def test_a_stop_prevents_a_publication_that_has_not_begun(ledger: Ledger) -> None:
    validated(ledger)
    stop(ledger)
    with pytest.raises(RunStopped):
        ledger.open_publication("run", "publish", 7, "root", REQUESTER, unless_stopped=True)
    assert ledger.publications("run") == []


def test_a_stop_lets_a_publication_finish_that_has_begun_and_says_so(ledger: Ledger) -> None:
    validated(ledger)
    entry = ledger.open_publication("run", "publish", 7, "root", REQUESTER, unless_stopped=True)
    assert "was under way and is not interrupted" in stop(ledger).note
    ledger.accept("run", entry, snapshot_id=100, added=3, removed=2, actor=REQUESTER)
    assert ledger.run("run").state is RunState.PUBLISHED
    assert ledger.stops.all_held() == {}, "a run that is published is not shown as stopped"


def test_what_is_not_under_way_is_not_stopped(ledger: Ledger) -> None:
    planned(ledger, "run")
    with pytest.raises(TransitionRefused, match="is PLANNED"):
        stop(ledger)
    with pytest.raises(TransitionRefused, match="is unknown"):
        stop(ledger, "another")
    with pytest.raises(TransitionRefused, match="no name is given"):
        stop(ledger, by=" ")
    assert ledger.stops.of_run("run") == []


def test_whoever_looked_before_a_launch_was_passed_on_needs_no_clock(ledger: Ledger) -> None:
    approved(ledger, "run")
    assert ledger.stops.known() == {}
    first = stop(ledger)
    seen = ledger.stops.known()
    assert seen == {"run": first.id}
    hours = timedelta(hours=3)
    for skew in (-hours, hours):  # whatever the clock of the launch says
        asked = now() + skew
        with pytest.raises(RunStopped, match="backfill resume run"):
            ledger.stops.launched("run", by="ada", asked_at=asked, tolerance=CLOCK_TOLERANCE, knows=0)
        assert ledger.stops.held("run") is not None
        ledger.stops.launched("run", by="ada", asked_at=asked, tolerance=CLOCK_TOLERANCE, knows=seen["run"])
        assert ledger.stops.held("run") is None
        seen = {"run": stop(ledger).id}


def test_a_terminate_that_is_noted_late_ends_with_a_launch_that_could_not_know_it(ledger: Ledger) -> None:
    approved(ledger, "run")
    terminated = now()
    ledger.stops.stop("run", by="Dagster", through=f"{stops.TERMINATE} 1", since=terminated)
    before, after = terminated - timedelta(seconds=1), terminated + timedelta(seconds=1)
    with pytest.raises(RunStopped):
        ledger.stops.launched("run", by="ada", asked_at=before, tolerance=CLOCK_TOLERANCE, knows=0)
    ledger.stops.launched("run", by="ada", asked_at=after, tolerance=CLOCK_TOLERANCE, knows=0)
    assert ledger.stops.held("run") is None


def test_a_stop_from_elsewhere_holds_although_a_terminate_was_noted_after_it(ledger: Ledger) -> None:
    approved(ledger, "run")
    asked = now()
    stop(ledger)
    ledger.stops.stop("run", by="Dagster", through=f"{stops.TERMINATE} 1", since=asked - timedelta(seconds=9))
    for knows in (None, 0):
        with pytest.raises(RunStopped, match="olga"):
            ledger.stops.launched("run", by="ada", asked_at=asked, tolerance=CLOCK_TOLERANCE, knows=knows)


@pytest.mark.parametrize("seed", range(8))
def test_of_launches_and_stops_in_any_order_and_by_any_clocks_those_pass_that_were_asked_for_after_every_stop_that_holds(
    ledger: Ledger, seed: int
) -> None:
    random = Random(seed)
    for one in ("run", "other"):
        approved(ledger, one)
    holding: dict[str, list[int]] = {"run": [], "other": []}
    asked: list[tuple[str, int, int]] = []
    for order in range(30):
        run_id = random.choice(["run", "other"])
        what = random.choice(["stop", "ask", "begin", "begin"])
        if what == "stop":
            stop(ledger, run_id)
            holding[run_id].append(order)
        elif what == "ask":
            asked.append((run_id, order, ledger.stops.known().get(run_id, 0)))
        elif asked:
            run_id, at, knows = asked.pop(random.randrange(len(asked)))
            clock = now() + timedelta(seconds=random.uniform(-90, 90))
            passes = all(one < at for one in holding[run_id])
            if passes:
                ledger.stops.launched(run_id, by="ada", asked_at=clock, tolerance=CLOCK_TOLERANCE, knows=knows)
                holding[run_id] = []
            else:
                with pytest.raises(RunStopped):
                    ledger.stops.launched(run_id, by="ada", asked_at=clock, tolerance=CLOCK_TOLERANCE, knows=knows)
        for one, held in holding.items():
            assert (ledger.stops.held(one) is not None) == bool(held)
