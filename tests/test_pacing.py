"""A launch keeps its run's pace: it waits and says for what, is paused when a budget is spent, and learns what runs take."""

from __future__ import annotations

import html
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy.exc import OperationalError
from support import put_in_force
from test_pages import page

from backfill_assets.cli import status as status_command
from backfill_assets.cli.command import cli
from backfill_assets.defs.publish import publication_requests
from backfill_assets.evidence.run_costs import costs_of
from backfill_assets.installation import Platform
from backfill_assets.operations import pausing
from backfill_assets.operations.metrics import LedgerCollector
from backfill_assets.planning.resolve import plan_run, preview
from backfill_assets.planning.run_costs import cores_of, with_costs
from backfill_assets.publication.publisher import publish
from backfill_assets.run_context import RunContext
from backfill_assets.staging import breaker_checks, executor, pacing, stopping, watched_launch
from backfill_assets.staging.compute import scans_of
from benchmarks import kills, small_table
from benchmarks.small_table import closed, manifest_data, planned, staged
from manifests.costs import Prices, in_time, in_usd
from manifests.errors import PlanRefused, PublicationDeferred, RunStopped
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.reading import manifest_from
from resources import processes
from resources.ledger import measured
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import Ledger
from resources.ledger.tables import attempts
from resources.settings import load_settings

RUN = "paced"
YEAR = ("2020-01-01", "2020-12-31")
NOON = datetime(2031, 3, 10, 12, 0, tzinfo=UTC)
ENOUGH = "the figure is right, and the limit was not"


class SimulatedClock:
    """The ledger's clock; who sleeps lets it go on."""

    def __init__(self) -> None:
        self.at = NOON
        self.slept: list[float] = []

    def __call__(self) -> datetime:
        self.at += timedelta(microseconds=1)
        return self.at

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimulatedClock:
    found = SimulatedClock()
    monkeypatch.setattr(pacing, "sleep", found.sleep)
    monkeypatch.setattr(pacing, "_LOOK_SECONDS", 86_400.0)
    return found


@pytest.fixture
def platform(kept_site: Path, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    kills.restore(kept_site)
    found = kills.at(kept_site)
    chain, url = found.evidence.chain, found.ledger.url
    closed(found)
    paced = replace(found, ledger=Ledger(url, clock))
    paced.ledger.journal.chain = chain
    monkeypatch.setattr(executor, "compute_batch", computed(clock))
    monkeypatch.setattr(type(found.spark), "interrupt", lambda _: None)
    yield paced
    closed(paced)


def computed(clock: SimulatedClock, seconds: float = 5.0) -> Callable[..., Any]:
    """Return what computes a batch: it says what it was given to read, as Spark's job does, and takes its time."""

    def compute(run: RunContext, chunks: Any, prefix: str, count: Any) -> Any:
        for part, scan in scans_of(run, chunks):
            count(part, scan)
        clock.at += timedelta(seconds=seconds)
        return small_table.compute(run, chunks, prefix)

    return compute


def contract(run_id: str = RUN, scope: tuple[str, str] = YEAR, **parts: Any) -> Any:
    gates = {"validation": {"gates": ["all_chunks_staged"]}}
    return manifest_from(manifest_data(run_id, "REPLACE_PARTITIONS", scope) | gates | parts)


def launched(platform: Platform, run_id: str = RUN) -> RunState:
    with stopping.launched(platform, run_id):
        return staged(platform, run_id).state


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_launch_takes_no_more_rows_in_any_ten_minutes_than_the_limit_and_waits_as_long_as_it_has_to(
    platform: Platform, clock: SimulatedClock
) -> None:
    record = planned(platform, contract(limits={"maxRowsPerMinute": 1}))
    heard: list[str] = []
    executor.stage_chunks(
        platform,
        RUN,
        [chunk.key for chunk in record.plan.chunks],
        tell=lambda event, _, text: heard.append(f"{event} {text}"),
    )
    assert platform.ledger.run(RUN).state is RunState.STAGED
    rows = [
        (one.started_at, one.ended_at, json.loads(one.measures)["range_rows"]) for one in platform.ledger.attempts(RUN)
    ]
    assert sum(count for *_, count in rows) > 20
    for begin, *_ in rows:
        window = begin - timedelta(minutes=10)
        assert sum(count for start, end, count in rows if start <= begin and end >= window) <= 10
    assert clock.slept
    assert any(
        text.startswith("waiting limits.maxRowsPerMinute is 1, over any 10 minutes, until 2031") for text in heard
    )
    admitted = json.loads(json.dumps([one[2] for one in rows]))
    with platform.ledger.engine.connect() as connection:
        asked = connection.exec_driver_sql("SELECT rows FROM admissions ORDER BY id").scalars().all()
    assert asked == admitted, "what is asked for from metadata is what the batch is given to read"


def test_a_launch_waits_for_its_hours_and_says_so_in_status_and_on_its_page(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(platform, contract(limits={"windows": [{"opens": "22:00", "closes": "06:00", "zone": "Europe/Rome"}]}))
    shown: list[str] = []

    def look(seconds: float) -> None:
        record = platform.ledger.run(RUN)
        assert platform.ledger.launches.waits(record) is None
        shown.append(str(platform.ledger.admissions.waiting(RUN)[RUN]))
        shown.append(page(platform, f"/backfill/{RUN}"))
        shown.append(page(platform, "/backfill"))
        monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
        shown.append(" ".join(CliRunner().invoke(cli, ["status", RUN]).output.split()))
        shown.append(CliRunner().invoke(cli, ["status", RUN, "--json"]).output)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(status_command, "time", SimpleNamespace(sleep=interrupted))
            shown.append(said("status", RUN, "--watch"))
        clock.sleep(seconds)

    monkeypatch.setattr(pacing, "sleep", look)
    assert launched(platform) is RunState.VALIDATED
    until = "until 2031-03-10 21:00:00 UTC"
    assert [until in text for text in shown[:4]] == [True] * 4, shown[3]
    assert json.loads(shown[4])["waitsUntil"].startswith("2031-03-10T21:00:00")
    assert until in shown[5], "so does `status --watch`"
    assert platform.ledger.attempts(RUN)[0].started_at >= datetime(2031, 3, 10, 21, tzinfo=UTC)
    assert platform.ledger.admissions.waiting() == {}


@pytest.mark.parametrize("cause", ["LIVE_DELAY", "MEMORY"])
@pytest.mark.parametrize("hours", [(15, 23), (15, 16)], ids=["still at the end of the wait", "during the wait alone"])
def test_what_is_live_is_looked_at_as_a_batch_begins_and_not_as_its_wait_does(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, cause: str, hours: tuple[int, int]
) -> None:
    def is_so(of: str) -> bool:
        return cause == of and hours[0] <= clock.at.hour < hours[1]

    late = ("live-1", 601.0, RunState.FAILED)
    monkeypatch.setattr(pacing, "_LOOK_SECONDS", 1_800.0)
    monkeypatch.setattr(
        type(platform.ledger.admissions), "live_delay", lambda *_: late if is_so("LIVE_DELAY") else None
    )
    monkeypatch.setattr(breaker_checks, "free_memory_mb", lambda: 100 if is_so("MEMORY") else 4_096)
    windows = {"windows": [{"opens": "22:00", "closes": "06:00"}]}
    breaker = {"maxLiveDelaySeconds": 600, "minFreeMemoryMb": 512}
    planned(platform, contract(limits=windows, safety={"breaker": breaker}))
    if hours[1] == 16:
        assert launched(platform) is RunState.VALIDATED, "nothing was to begin then"
        return
    with pytest.raises(RunStopped, match="paused by the platform"):
        launched(platform)
    assert [one.cause for one in platform.ledger.pauses.holding(RUN)] == [cause]
    assert platform.ledger.attempts(RUN) == []
    assert clock.at >= datetime(2031, 3, 10, 21, 30, tzinfo=UTC), "it was looked at when the wait was over"


def test_a_launch_that_waits_is_ended_by_a_stop_and_by_a_pause(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(platform, contract(limits={"windows": [{"opens": "22:00", "closes": "23:00"}]}))

    def paused(seconds: float) -> None:
        clock.sleep(min(seconds, 1.0))
        pausing.pause(platform, RUN, by="olga", reason="not tonight, please", through="backfill pause")

    monkeypatch.setattr(pacing, "sleep", paused)
    with pytest.raises(RunStopped, match="not tonight"):
        launched(platform)
    assert platform.ledger.attempts(RUN) == []
    assert platform.ledger.admissions.waiting() == {}


@pytest.mark.parametrize(
    "limits", [{}, {"limits": {"maxChunksPerJob": 4, "maxRowsPerMinute": 10**9}}], ids=["no limits", "limits"]
)
def test_a_backfill_lets_live_go_first_between_two_batches_and_says_so(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, limits: dict[str, Any]
) -> None:
    planned(platform, contract(**{"limits": {"maxChunksPerJob": 4}} | limits))
    admissions = platform.ledger.admissions
    answers = iter([None, "live-7", "live-7"])
    monkeypatch.setattr(type(admissions), "live_computing", lambda _: next(answers, None))
    said: list[str] = []

    def look(seconds: float) -> None:
        said.append(str(admissions.waiting(RUN)[RUN]))
        assert len([one for one in platform.ledger.attempts(RUN) if one.is_running]) == 0
        clock.sleep(seconds)

    monkeypatch.setattr(pacing, "sleep", look)
    assert launched(platform) is RunState.VALIDATED
    assert said == ["LIVE comes first: 'live-7' computes"] * 2
    assert admissions.waiting() == {}


def test_a_pause_between_batches_is_kept(platform: Platform) -> None:
    planned(platform, contract(limits={"maxChunksInParallel": 4, "pauseBetweenBatchesSeconds": 120}))
    assert launched(platform) is RunState.VALIDATED
    found = platform.ledger.attempts(RUN)
    assert [len(one.keys) for one in found] == [4, 4, 4]
    gaps = [(after.started_at - before.ended_at) for before, after in pairwise(found) if before.ended_at]
    assert all(timedelta(seconds=120) <= gap < timedelta(seconds=125) for gap in gaps)


def test_two_launches_of_a_run_share_one_allowance(platform: Platform, clock: SimulatedClock) -> None:
    record = planned(platform, contract(limits={"maxChunksInParallel": 2}))
    keys = [chunk.key for chunk in record.plan.chunks]
    most: list[int] = []
    usual = executor.compute_batch

    def compute(*arguments: Any) -> Any:
        time.sleep(0.05)
        running = [one for one in platform.ledger.attempts(RUN) if one.is_running]
        most.append(sum(len(one.keys) for one in running))
        return usual(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(executor, "compute_batch", compute)
        patch.setattr(pacing, "sleep", lambda _: time.sleep(0.02))
        threads = [
            threading.Thread(target=executor.stage_chunks, args=(platform, RUN, half)) for half in (keys[:6], keys[6:])
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert {chunk.state for chunk in platform.ledger.chunks(RUN)} == {"STAGED"}
    assert max(most) == 2


@pytest.fixture
def elsewhere() -> Iterator[int]:
    """Another process of this machine, that lives."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process.pid
        process.kill()


@pytest.mark.parametrize("when", ["it asks", "it waits for its hours", "its batch has failed"])
def test_a_batch_begins_beside_none_of_another_process_whenever_that_has_begun(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch, elsewhere: int, when: str
) -> None:
    windows = {"windows": [{"opens": "22:00", "closes": "06:00"}]} if when == "it waits for its hours" else {}
    keys = [chunk.key for chunk in planned(platform, contract(limits=windows)).plan.chunks]
    ledger, usual, looks, heard = platform.ledger, executor.compute_batch, list[str](), list[str]()
    others: list[int] = []

    def begins() -> None:
        found = ledger.start_attempt(RUN, keys[-1:], edition=0, actor="ada", location="/elsewhere")
        assert found is not None
        others.append(found[0])
        with ledger.engine.begin() as connection:
            is_its = (attempts.c.run_id == RUN, attempts.c.attempt == found[0])
            its_process = {"pid": elsewhere, "process": processes.name_of(elsewhere)}
            connection.execute(attempts.update().where(*is_its).values(**its_process))

    def look(seconds: float) -> None:
        looks.append(str(ledger.admissions.waiting(RUN)[RUN]))
        clock.sleep(seconds)
        if when == "it waits for its hours" and not others:
            begins()
        elif len(looks) > 3:
            ledger.fail_attempt(RUN, others[0], "it only takes a place")

    def compute(*arguments: Any) -> Any:
        if when == "its batch has failed" and not others:
            raise ValueError("a machine was lost")
        return usual(*arguments)

    def failed(run_id: str, *arguments: Any, **named: Any) -> str:
        ended = end(ledger, run_id, *arguments, **named)
        if when == "its batch has failed" and not others:
            begins()
        return ended

    end = type(ledger).fail_attempt
    monkeypatch.setattr(type(ledger), "fail_attempt", lambda _, *some, **named: failed(*some, **named))
    monkeypatch.setattr(executor, "compute_batch", compute)
    monkeypatch.setattr(pacing, "sleep", look)
    if when == "it asks":
        begins()
    executor.stage_chunks(platform, RUN, keys, tell=lambda event, _, text: heard.append(f"{event} {text}"))
    assert ledger.run(RUN).state is RunState.STAGED
    said = f"limits.maxRunsInParallel is 1, on one machine; under way here: attempt {others[0]}"
    assert looks[-1] == said
    assert heard.count(f"waiting {said}") == 1, "it is said once"
    (other,) = [one for one in ledger.attempts(RUN) if one.attempt == others[0]]
    assert other.ended_at is not None
    assert all(one.started_at > other.ended_at for one in ledger.attempts(RUN) if one.attempt > others[0])
    with ledger.engine.connect() as connection:
        on_record = connection.exec_driver_sql("SELECT why FROM waits WHERE ended_at IS NOT NULL").scalars().all()
    assert f"limits: {said}" in on_record


def interrupted(_: float) -> None:
    raise KeyboardInterrupt


def said(*words: str) -> str:
    """Return what a command says, as one line."""
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_a_run_is_published_when_the_hour_of_its_table_has_room_again(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run_id, scope in (("first", ("2020-01-01", "2020-01-31")), (RUN, ("2020-02-01", "2020-02-29"))):
        planned(platform, contract(run_id, scope, limits={"maxCommitsPerHour": 1}))
        launched(platform, run_id)
    assert publish(platform, "first").new
    assert [one.partition_key for one in publication_requests(platform, small_table.TARGET)] == []
    with pytest.raises(PublicationDeferred, match=r"waits for its publication until 2031-03-10 13:\d\d:\d\d UTC"):
        publish(platform, RUN)
    assert platform.ledger.publications(RUN) == []
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    until = f"'{RUN}' waits for its publication until 2031-03-10 13:"
    (listed,) = [one for one in json.loads(said("status", "--json")) if one["runId"] == RUN]
    assert listed["waitsFor"].startswith(until)
    assert "limits.maxCommitsPerHour is 1" in listed["waitsFor"]
    for shown in (said("status", RUN), said("runbook", RUN), html.unescape(page(platform, f"/backfill/{RUN}"))):
        assert until in shown
    assert "the sensor publishes it then" in shown
    assert "within seconds" not in shown
    clock.at += timedelta(hours=1)
    assert [one.partition_key for one in publication_requests(platform, small_table.TARGET)] == [RUN]
    assert publish(platform, RUN).new


def test_no_more_publications_are_asked_for_than_the_hour_has_room_for_and_no_run_is_stranded(
    platform: Platform, clock: SimulatedClock
) -> None:
    months = (("2020-01-01", "2020-01-31"), ("2020-02-01", "2020-02-29"), ("2020-03-01", "2020-03-31"))
    for number, scope in enumerate(months):
        planned(platform, contract(f"run-{number}", scope, limits={"maxCommitsPerHour": 1}))
        launched(platform, f"run-{number}")
    requests = [*publication_requests(platform, small_table.TARGET)]
    assert len(requests) == 1
    assert [one.run_key for one in publication_requests(platform, small_table.TARGET)] == [requests[0].run_key], (
        "the same one, until it is published"
    )
    (first,) = [str(one.partition_key) for one in requests]
    assert publish(platform, first).new
    assert [*publication_requests(platform, small_table.TARGET)] == []
    clock.at += timedelta(hours=1)
    (second,) = publication_requests(platform, small_table.TARGET)
    by_hand = next(f"run-{number}" for number in range(3) if f"run-{number}" not in {first, second.partition_key})
    assert publish(platform, by_hand).new, "somebody was faster: what was asked for fails"
    clock.at += timedelta(hours=1)
    (again,) = publication_requests(platform, small_table.TARGET)
    assert again.partition_key == second.partition_key
    assert again.run_key != second.run_key, "and is asked for anew"


# --- budgets ----------------------------------------------------------------------------------------------------------


def reads_of_year(platform: Platform) -> int:
    return preview(platform, contract("looked-at")).reads.rows


def test_a_run_that_has_spent_its_rows_is_paused_with_its_state_kept_and_goes_on_as_an_approver_decides(
    platform: Platform,
) -> None:
    rows = reads_of_year(platform)
    planned(platform, contract(limits={"maxChunksPerJob": 1, "budget": {"rows": rows}}))
    with pytest.raises(RunStopped, match=r"paused by the platform \(its limits\)(.|\n)*limits.budget.rows is"):
        launched(platform)
    held = platform.ledger.pauses.held(RUN)
    assert held is not None
    assert (held.cause, held.proof) == ("BUDGET", "PLATFORM")
    done = len([one for one in platform.ledger.chunks(RUN) if one.state == "STAGED"])
    assert 0 < done < 12
    assert not any(one.state == "FAILED" for one in platform.ledger.attempts(RUN))
    while platform.ledger.pauses.held(RUN) is not None:
        pausing.resume(platform, RUN, by="grace", reason=ENOUGH)
        try:
            launched(platform)
        except RunStopped:
            continue
    assert platform.ledger.run(RUN).state is RunState.VALIDATED
    assert publish(platform, RUN).new
    rows_of = json.loads((platform.evidence.path(RUN) / "stops.json").read_text())
    assert rows_of[0]["resume_reason"] == ENOUGH
    assert json.loads((platform.evidence.path(RUN) / "admissions.json").read_text())


def test_a_run_that_has_computed_as_long_as_it_may_is_paused_between_two_batches(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", computed(clock, 70))
    planned(platform, contract(limits={"maxChunksPerJob": 1}, safety={"maxDurationMinutes": 3}))
    with pytest.raises(RunStopped, match=r"safety.maxDurationMinutes is 3: 3.5 minutes are computed"):
        launched(platform)
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STAGED"] * 3


def test_a_batch_that_outlasts_what_the_run_has_left_is_interrupted_and_has_not_failed(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = time.monotonic()

    def for_ever(*_: Any) -> Any:
        clock.at += timedelta(seconds=60)
        while time.monotonic() - begun < 30:
            time.sleep(0.05)
        raise AssertionError("nobody has ended it")

    monkeypatch.setattr(executor, "compute_batch", for_ever)
    monkeypatch.setattr(type(platform.ledger.admissions), "left", left_of(0.3))
    planned(platform, contract(safety={"maxDurationMinutes": 1}))
    with pytest.raises(RunStopped, match="paused by the platform"):
        launched(platform)
    assert time.monotonic() - begun < 15
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STOPPED"]
    assert [one.error for one in platform.ledger.chunks(RUN) if one.error] == []


def test_a_batch_that_outlasts_what_a_run_has_left_that_was_cancelled_meanwhile_ends_with_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun = time.monotonic()

    def for_long(*_: Any) -> Any:
        platform.ledger.move(RUN, RunState.CANCELLED, "ada", "no longer wanted", expected=RunState.RUNNING)
        while time.monotonic() - begun < 30:
            time.sleep(0.05)
        raise AssertionError("nobody has ended it")

    monkeypatch.setattr(executor, "compute_batch", for_long)
    monkeypatch.setattr(watched_launch, "LOOK_SECONDS", 60)
    monkeypatch.setattr(type(platform.ledger.admissions), "left", left_of(0.3))
    planned(platform, contract(safety={"maxDurationMinutes": 1}))
    with pytest.raises(RunStopped, match="cancelled by ada"):
        launched(platform)
    assert "could not be seen" not in caplog.text
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STOPPED"]


def test_a_pause_that_could_not_be_put_on_record_is_tried_again(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, tries = time.monotonic(), list[int]()
    usual = pacing.pause

    def for_long(*_: Any) -> Any:
        while time.monotonic() - begun < 30:
            time.sleep(0.05)
        raise AssertionError("nobody has ended it")

    def locked_once(*arguments: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise OperationalError("UPDATE", {}, Exception("database is locked"))
        return usual(*arguments)

    monkeypatch.setattr(executor, "compute_batch", for_long)
    monkeypatch.setattr(type(platform.ledger.admissions), "left", left_of(0.3))
    monkeypatch.setattr(pacing, "pause", locked_once)
    planned(platform, contract(safety={"maxDurationMinutes": 1}))
    with pytest.raises(RunStopped, match="paused by the platform"):
        launched(platform)
    assert len(tries) == 2
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STOPPED"], "it is the batch under way that ends"


def test_a_batch_goes_on_while_the_run_has_time_and_ends_when_others_have_taken_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left is asked again: another launch of the run takes of the same, and an approver may allow more."""
    from resources.ledger.admissions import Left

    begun, answers = time.monotonic(), [1_000.0, 0.2, 1_000.0, 0.0]

    def for_long(*_: Any) -> Any:
        while time.monotonic() - begun < 60:
            time.sleep(0.05)
        raise AssertionError("nobody has ended it")

    def left(*_: Any) -> Left:
        return Left(answers.pop(0) if answers else 0.0, "safety.maxDurationMinutes is 20: 19 minutes are computed")

    monkeypatch.setattr(executor, "compute_batch", for_long)
    monkeypatch.setattr(watched_launch, "_ASK_SECONDS", 0.3)
    monkeypatch.setattr(type(platform.ledger.admissions), "left", left)
    planned(platform, contract(safety={"maxDurationMinutes": 20}))
    with pytest.raises(RunStopped, match="paused by the platform"):
        launched(platform)
    assert answers == []


def left_of(seconds: float) -> Callable[..., Any]:
    """Return what says that a run has so many seconds left, and less and less."""
    from resources.ledger.admissions import Left

    ends = time.monotonic() + seconds
    why = "safety.maxDurationMinutes is 1: 0.9 minutes are computed"
    return lambda *_: Left(ends - time.monotonic(), why)


# --- estimates --------------------------------------------------------------------------------------------------------


@contextmanager
def priced(platform: Platform, **prices: float) -> Iterator[Platform]:
    yield replace(platform, settings=platform.settings.model_copy(update={"prices": Prices(**prices)}))


def test_a_plan_learns_from_recorded_runs_and_says_its_error_and_the_evidence_has_what_was_taken(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert preview(platform, contract()).costs is None, "nothing is on record of what runs have read"
    for number, seconds, last in ((1, 20, "2020-06-30"), (2, 24, "2020-08-31")):
        monkeypatch.setattr(executor, "compute_batch", computed(clock, seconds))
        planned(platform, contract(f"before-{number}", ("2020-01-01", last)))
        launched(platform, f"before-{number}")
    monkeypatch.setattr(executor, "compute_batch", computed(clock, 40))
    with priced(platform, usd_per_core_hour=3_600.0) as dear:
        planned(dear, contract())
        costs = dear.ledger.run(RUN).plan.costs
        assert costs is not None
        assert set(costs.learned_from) == {"before-1", "before-2"}
        assert costs.seconds is not None
        assert 30 < costs.seconds < 50
        assert costs.error is not None
        assert costs.usd == pytest.approx(costs.seconds * 2), "two cores, a dollar a second each"
        launched(dear)
        publish(dear, RUN)
        said = json.loads((dear.evidence.path(RUN) / "costs.json").read_text())
        assert said["estimated"]["seconds"] == costs.seconds
        assert said["taken"]["seconds"] == pytest.approx(40, abs=1)
        assert said["taken"]["usd"] == pytest.approx(80, abs=2)
        found = costs_of(dear.ledger, dear.ledger.run(RUN))
        assert found is not None
        assert str(found) in page(dear, f"/backfill/{RUN}").replace("&#x27;", "'")
        samples = {one.name for metric in LedgerCollector(dear, days=30, most=10).collect() for one in metric.samples}
    assert {
        "backfill_estimated_seconds",
        "backfill_core_seconds",
        "backfill_cost_usd",
        "backfill_estimated_cost_usd",
    } <= samples


def test_what_others_have_left_unreadable_or_computed_nothing_is_not_learned_from(
    platform: Platform, clock: SimulatedClock
) -> None:
    for name in ("good", "bad", *(f"looked-{number}" for number in range(3))):
        planned(platform, contract(name, ("2020-01-01", "2020-01-31")))
        launched(platform, name)
    version, ledger = platform.ledger.run("good").plan.transform_version, platform.ledger
    with ledger.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE runs SET mode = 'RECONCILIATION' WHERE run_id LIKE 'looked-%'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured, "_MOST", 2)
        assert {one.run_id for one in ledger.recorded(small_table.READINGS, version)} == {"good", "bad"}
        for text in ('{"range_rows": "many"}', "[]", "nonsense", '{"range_rows": null}', '{"range_rows": -5}'):
            with ledger.engine.begin() as connection:
                connection.execute(attempts.update().where(attempts.c.run_id == "bad").values(measures=text))
            assert [one.run_id for one in ledger.recorded(small_table.READINGS, version)] == ["good"], text
            with pytest.raises(IllegibleRow):
                ledger.taken("bad")


def test_an_estimate_beyond_the_limits_refuses_the_plan_with_every_reason(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", computed(clock, 90))
    planned(platform, contract("before"))
    launched(platform, "before")
    limits = {"maxDurationMinutes": 1, "maxCostUsd": 100.0}
    with priced(platform, usd_per_core_hour=3_600.0) as dear, pytest.raises(PlanRefused) as refusal:
        plan_run(dear, contract(safety=limits))
    assert "would compute for about 90 s (learned from before)" in str(refusal.value)
    assert "would cost about $180.00" in str(refusal.value)
    with pytest.raises(PlanRefused, match="no prices are set"):
        plan_run(platform, contract(safety={"maxCostUsd": 1.0}))


def test_a_plan_whose_reading_alone_costs_more_than_it_may_is_refused_though_no_run_is_on_record(
    platform: Platform,
) -> None:
    with priced(platform, usd_per_gb_read=1_000.0) as dear:
        costs = preview(dear, contract()).costs
        assert costs is not None
        assert (costs.seconds, costs.usd, costs.bytes > 0) == (None, None, True)
        reading = costs.bytes / 1e6
        assert preview(dear, contract(safety={"maxCostUsd": 2 * reading})).costs is not None
        with pytest.raises(
            PlanRefused, match=r"reading alone would cost about \$.*says what computing costs"
        ) as refusal:
            plan_run(dear, contract(safety={"maxCostUsd": reading / 2}))
        assert f"safety.maxCostUsd is {in_usd(reading / 2)}" in str(refusal.value)


def test_what_live_may_cost_is_held_and_nothing_else_is_reckoned_of_it(platform: Platform) -> None:
    for safety, is_held in (({"maxCostUsd": 50.0}, True), ({"maxDurationMinutes": 60}, False), ({}, False)):
        with priced(platform, usd_per_core_hour=1.0) as dear:
            plan = preview(dear, contract(safety=safety))
            live = replace(plan, mode=Mode.LIVE, costs=None)
            assert (with_costs(dear, live).costs is not None) == is_held, safety
        if is_held:
            with pytest.raises(PlanRefused, match="no prices are set"):
                with_costs(platform, live)


def test_a_run_that_has_cost_what_it_may_is_paused(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", computed(clock, 10))
    with priced(platform, usd_per_core_hour=3_600.0) as dear:
        planned(dear, contract(limits={"maxChunksPerJob": 1}, safety={"maxCostUsd": 50.0}))
        with pytest.raises(RunStopped, match=r"safety.maxCostUsd is 50.00: \$60.00 are spent"):
            launched(dear)


def test_what_a_run_costs_on_screens_is_what_pauses_it_with_what_was_tried_again(
    platform: Platform, clock: SimulatedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, failures = executor.compute_batch, [ValueError("a machine was lost")]

    def compute(*arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return usual(*arguments)

    monkeypatch.setattr(executor, "compute_batch", compute)
    with priced(platform, usd_per_gb_read=1_000.0) as dear:
        record = planned(dear, contract(limits={"maxChunksPerJob": 4}, safety={"maxCostUsd": 1_000.0}))
        launched(dear)
        found, pace, costs = costs_of(dear.ledger, dear.ledger.run(RUN)), record.plan.pace, record.plan.costs
        assert found is not None
        assert pace is not None
        left = dear.ledger.admissions.left(RUN, pace, costs)
        assert left is not None
        with dear.ledger.engine.connect() as connection:
            size = connection.exec_driver_sql("SELECT SUM(bytes) FROM admissions").scalar()
        assert size is not None
        assert size > found.taken.bytes > 0, "the batch that failed has read as well"
        assert found.usd == pytest.approx(size / 10**9 * 1_000)
        assert left.why.endswith(f": ${in_usd(found.usd)} are spent")
        (cost,) = (one for one in LedgerCollector(dear, days=30, most=10).collect() if one.name == "backfill_cost_usd")
        assert [one.value for one in cost.samples] == [found.usd]


def test_what_a_part_of_a_run_has_taken_is_held_against_no_estimate_of_all_of_it(platform: Platform) -> None:
    with priced(platform, usd_per_gb_read=1_000_000.0) as dear:
        planned(dear, contract("before"))
        launched(dear, "before")
        record = planned(dear, contract())
        costs = record.plan.costs
        assert costs is not None
        assert costs.seconds
        keys = [one.key for one in record.plan.chunks]

        def said() -> str:
            return str(costs_of(dear.ledger, dear.ledger.run(RUN)))

        executor.stage_chunks(dear, RUN, keys[:2])
        part = said()
        assert "% of the estimate" not in part
        assert f" of computing (of about {in_time(costs.seconds)} estimated for all)" in part
        assert f" MB read (of about {costs.rows:,} rows estimated for all)" in part
        executor.stage_chunks(dear, RUN, keys)
        assert "for all" not in said()
        assert "% of the estimate" in said()


@pytest.mark.parametrize(
    ("master", "more", "cores"),
    [
        ("local[3]", {}, 3),
        ("local", {}, 1),
        ("spark://host:7077", {}, None),
        ("spark://host:7077", {"spark.cores.max": "8"}, 8),
        ("spark://host:7077", {"spark.cores.max": "0"}, None),
        ("k8s://host", {"spark.executor.instances": "4", "spark.executor.cores": "2"}, 8),
        ("local[2]", {"spark.remote": "sc://host:15002"}, None),
    ],
)
def test_cores_are_those_of_the_settings(tmp_path: Path, master: str, more: dict[str, str], cores: int | None) -> None:
    settings = load_settings(home=tmp_path, spark={"spark.master": master} | more)
    assert cores_of(settings, Mode.BACKFILL) == cores


def test_what_the_policy_limits_holds_for_a_manifest_that_says_nothing(platform: Platform) -> None:
    rules = [{"tables": ["*"], "limits": {"maxChunksInParallel": 3, "pauseBetweenBatchesSeconds": 1}}]
    put_in_force(platform, {"apiVersion": "backfill-policy/v1", "name": "paced", "rules": rules})
    record = planned(platform, contract())
    assert record.plan.pace is not None
    assert record.plan.pace.chunks_in_parallel == 3
    with pytest.raises(PlanRefused, match="'paced' allows 3"):
        plan_run(platform, contract("more", limits={"maxChunksInParallel": 4}))
