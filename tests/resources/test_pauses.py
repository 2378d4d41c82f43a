"""A pause lets what is under way end and nothing begin, outlasts every launch, and ends by a decision on record."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support import REQUESTER, approved, pass_all, stage_all, staged_files

from manifests.errors import RunStopped, TransitionRefused
from manifests.lifecycle import RunState
from resources.actors import Actor, Channel, Proof, acting
from resources.ledger.facade import Ledger, RunRecord
from resources.ledger.stops import Stop
from resources.ledger.transactions import system_clock as now

WHY = "the month's end comes first"


def pause(ledger: Ledger, by: str = "olga", cause: str = "") -> Stop:
    return ledger.pauses.pause("run", by=by, through="backfill pause", reason=WHY, cause=cause)


def keys(record: RunRecord) -> list[str]:
    return [chunk.key for chunk in record.plan.chunks]


def test_what_is_under_way_is_staged_and_nothing_begins_after_it(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    number, _ = ledger.start_attempt("run", keys(record)[:1], edition=0, actor=REQUESTER, location="/staging")
    paused = pause(ledger)
    files = {keys(record)[0]: staged_files(record, number)[keys(record)[0]]}
    ledger.stage("run", number, files)
    assert [one.state for one in ledger.attempts("run")] == ["STAGED"]
    with pytest.raises(RunStopped, match=r"paused by olga.*month's end(.|\n)*backfill resume run"):
        ledger.start_attempt("run", keys(record), edition=0, actor=REQUESTER, location="/staging")
    assert ledger.pauses.held("run") == paused


def test_no_launch_ends_a_pause_however_late_it_was_asked_for(ledger: Ledger) -> None:
    approved(ledger, "run")
    paused = pause(ledger)
    for later in (None, paused.at + timedelta(days=1)):
        with pytest.raises(RunStopped, match="until somebody resumes the run"):
            ledger.stops.launched("run", by="ada", asked_at=later, knows=paused.id)
    assert ledger.pauses.held("run") == paused
    assert ledger.stops.newest_launch("run") is None, "a launch that a pause refuses is none"


def test_a_stop_of_a_paused_run_ends_what_is_under_way_and_the_pause_goes_on(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    number, _ = ledger.start_attempt("run", keys(record), edition=0, actor=REQUESTER, location="/staging")
    paused = pause(ledger)
    stopped = ledger.stops.stop("run", by="grace", through="backfill stop")
    assert not stopped.is_pause
    with pytest.raises(RunStopped, match="stopped by grace"):
        ledger.stage("run", number, staged_files(record, number))
    ledger.pauses.resume("run", by="ada", reason="the month is closed")
    assert ledger.stops.held("run") == stopped, "a stop ends with the next launch"
    ledger.stops.launched("run", by="ada")
    assert ledger.stops.held("run") is None
    assert [one.what for one in ledger.stops.of_run("run")] == [paused.what, stopped.what] == ["paused", "stopped"]


def test_a_pause_and_its_end_are_on_record_with_who_through_what_and_why(ledger: Ledger) -> None:
    approved(ledger, "run")
    with acting(Actor("olga", Channel.UI, Proof.PROXY)):
        pause(ledger)
    with acting(Actor("ada", Channel.CLI, Proof.OPERATING_SYSTEM)):
        (ended,) = ledger.pauses.resume("run", by="ada", reason="the month is closed")
    (found,) = ledger.stops.of_run("run")
    assert found == ended
    assert (found.stopped_by, found.channel, found.proof, found.reason) == ("olga", "UI", "PROXY", WHY)
    who = (found.resumed_by, found.resumed_channel, found.resumed_proof, found.resume_reason)
    assert who == ("ada", "CLI", "OPERATING_SYSTEM", "the month is closed")
    assert found.resumed_at is not None
    assert found.at <= found.resumed_at <= now()


def test_nothing_of_a_paused_run_is_published(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    pass_all(ledger, record, stage_all(ledger, record))
    ledger.move("run", RunState.VALIDATED, REQUESTER, expected=RunState.STAGED)
    pause(ledger)
    with pytest.raises(RunStopped, match="paused by olga"):
        ledger.open_publication("run", "publish", None, "", "ada", unless_stopped=True)


def test_a_run_is_paused_once_by_people_and_once_for_each_cause(ledger: Ledger) -> None:
    approved(ledger, "run")
    pause(ledger)
    with pytest.raises(TransitionRefused, match=r"paused by olga(.|\n)*holds until somebody resumes"):
        pause(ledger, by="grace")
    one = pause(ledger, by="the platform", cause="BUDGET")
    assert pause(ledger, by="the platform", cause="BUDGET") == one, "two processes find the same"
    ended = ledger.pauses.resume("run", by="ada", reason="both are settled")
    assert [found.cause for found in ended] == ["", "BUDGET"]
    assert ledger.pauses.held("run") is None


@pytest.mark.parametrize("reason", ["", "  "])
def test_neither_goes_without_a_reason(ledger: Ledger, reason: str) -> None:
    approved(ledger, "run")
    with pytest.raises(TransitionRefused, match="no reason is given"):
        ledger.pauses.pause("run", by="olga", through="backfill pause", reason=reason)
    pause(ledger)
    with pytest.raises(TransitionRefused, match="no reason is given"):
        ledger.pauses.resume("run", by="olga", reason=reason)


def test_what_is_not_paused_is_not_resumed_and_what_is_over_is_not_paused(ledger: Ledger) -> None:
    approved(ledger, "run")
    with pytest.raises(TransitionRefused, match="is not paused"):
        ledger.pauses.resume("run", by="ada", reason="why not then")
    ledger.move("run", RunState.CANCELLED, REQUESTER, expected=RunState.APPROVED)
    with pytest.raises(TransitionRefused, match="is CANCELLED"):
        pause(ledger)


def test_a_run_that_another_launch_has_failed_is_paused_while_a_batch_of_it_is_under_way(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    number, _ = ledger.start_attempt("run", keys(record)[:1], edition=0, actor=REQUESTER, location="/staging")
    ledger.move("run", RunState.FAILED, REQUESTER, expected=RunState.RUNNING)
    paused = pause(ledger)
    with pytest.raises(RunStopped, match="paused by olga"):
        ledger.start_attempt("run", keys(record), edition=0, actor=REQUESTER, location="/staging")
    assert ledger.pauses.held("run") == paused
    ledger.pauses.resume("run", by="ada", reason="the month's end is over")
    ledger.fail_attempt("run", number, "the machine was lost")
    with pytest.raises(TransitionRefused, match="or has failed while a batch of it is computed"):
        pause(ledger)


def test_who_resumes_a_run_has_seen_what_paused_it(ledger: Ledger) -> None:
    approved(ledger, "run")
    seen = pause(ledger)
    ledger.pauses.pause("run", by="the platform", through="its limits", reason="a budget is spent", cause="BUDGET")
    with pytest.raises(TransitionRefused, match="was meanwhile paused by the platform"):
        ledger.pauses.resume("run", by="ada", reason="the month is closed", seen={seen.id})
    assert len(ledger.pauses.holding("run")) == 2
    both = {one.id for one in ledger.pauses.holding("run")}
    assert len(ledger.pauses.resume("run", by="ada", reason="the month is closed", seen=both)) == 2


def test_a_publication_that_has_begun_is_let_finish_and_leaves_nothing_to_hold(ledger: Ledger) -> None:
    record = approved(ledger, "run")
    pass_all(ledger, record, stage_all(ledger, record))
    ledger.move("run", RunState.VALIDATED, REQUESTER, expected=RunState.STAGED)
    entry = ledger.open_publication("run", "publish", 7, "root", "ada")
    assert pause(ledger).note == "its publication by ada was under way and is not interrupted"
    assert ledger.pauses.held("run") is not None
    ledger.accept("run", entry, snapshot_id=100, added=3, removed=2, actor=REQUESTER)
    assert ledger.pauses.held("run") is None
    assert ledger.stops.held("run") is None
    with pytest.raises(TransitionRefused, match="'run' is PUBLISHED"):
        ledger.pauses.resume("run", by="ada", reason="the month is closed")


def test_a_run_that_is_only_stopped_or_over_is_not_resumed_and_that_is_said(ledger: Ledger) -> None:
    approved(ledger, "run")
    ledger.stops.stop("run", by="olga", through="backfill stop")
    with pytest.raises(TransitionRefused, match=r"is not paused: it was stopped by olga(.|\n)*without --no-launch"):
        ledger.pauses.resume("run", by="ada", reason="the month is closed")
    pause(ledger)
    ledger.move("run", RunState.CANCELLED, REQUESTER, expected=RunState.APPROVED)
    with pytest.raises(TransitionRefused, match="'run' is CANCELLED"):
        ledger.pauses.resume("run", by="ada", reason="the month is closed")
