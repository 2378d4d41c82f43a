"""Stopping means stopping: whoever stops a run, nothing fails, nothing is tried again, and nothing is published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dagster as dg
import pytest
from click.testing import CliRunner
from table_model import Killed
from table_world import NOBODY
from test_pages import page

from backfill_assets import decisions, faults
from backfill_assets.cli.command import cli
from backfill_assets.defs import staging
from backfill_assets.defs.dagster_private import BACKFILL_ID_TAG, BulkActionStatus, PartitionBackfill
from backfill_assets.defs.decision_jobs import stop_run
from backfill_assets.defs.launch import initialise_instance
from backfill_assets.defs.launched_by import RUN_TAG, STOP_TAG, USER_TAG
from backfill_assets.defs.lost_runs import end_lost_runs
from backfill_assets.defs.publish import publication_requests, recomputation_requests
from backfill_assets.defs.staging import PROCESS_TAG, launched_by_dagster
from backfill_assets.defs.terminated import note_terminated
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.operations.runbook import steps
from backfill_assets.publication.publisher import publish
from backfill_assets.staging import executor, stopping, watched_launch
from benchmarks import kills, small_table
from benchmarks.kills import CASES
from benchmarks.small_table import closed, manifest, planned, staged
from manifests.chunks import in_words
from manifests.errors import PublicationRefused, RunStopped
from manifests.lifecycle import RunState
from resources import actors
from resources.actors import SOMEBODY, Actor, Channel
from resources.ledger import stops
from resources.ledger.leases import Leases
from resources.ledger.stops import Stops
from resources.ledger.tables import leases
from resources.processes import name_of

pytestmark = pytest.mark.matrix

REPLACE = next(case for case in CASES if case.name == "REPLACE_PARTITIONS")
RUN = "stopped"
FOR_EVER = 60.0


@pytest.fixture
def platform(kept_site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    kills.restore(kept_site)
    platform = kills.at(kept_site)
    monkeypatch.setattr(type(platform.spark), "interrupt", lambda _: None)
    planned(platform, manifest(RUN, REPLACE.mode, REPLACE.scope))
    yield platform
    closed(platform)


def keys(platform: Platform) -> list[str]:
    return [chunk.key for chunk in platform.ledger.run(RUN).plan.chunks]


def meanwhile(act: Callable[[], Any]) -> None:
    threading.Timer(0.2, act).start()


def by_signal(number: signal.Signals) -> Callable[[Platform], None]:
    return lambda _: os.kill(os.getpid(), number)


def elsewhere(platform: Platform) -> None:
    platform.ledger.stops.stop(RUN, by="olga", through="backfill stop", reason="the cluster is needed")


def once_computing(platform: Platform) -> None:
    until = time.monotonic() + FOR_EVER
    while not platform.ledger.attempts(RUN) and time.monotonic() < until:
        time.sleep(0.02)
    elsewhere(platform)


def for_ever(*_: Any, **__: Any) -> Any:
    until = time.monotonic() + FOR_EVER
    while time.monotonic() < until:
        time.sleep(0.05)
    raise AssertionError("nobody has ended it")


def for_ever_then(error: Exception) -> Callable[..., Any]:
    """Stand for a call to the JVM: it answers, with an error, once its jobs were cancelled."""

    def work(*_: Any, **__: Any) -> Any:
        launch = stopping._active[RUN]
        until = time.monotonic() + FOR_EVER
        while launch.stop is None and time.monotonic() < until:
            time.sleep(0.02)
        raise error

    return work


def launch(platform: Platform, work: Callable[[], Any]) -> None:
    with stopping.launched(platform, RUN):
        work()


def disturbed(platform: Platform, act: Callable[[Platform], None], work: Callable[..., Any]) -> Callable[..., Any]:
    """Return work that has the run stopped while it is done."""

    def both(*arguments: Any, **named: Any) -> Any:
        meanwhile(lambda: act(platform))
        return work(*arguments, **named)

    return both


def stopped(platform: Platform, work: Callable[[], Any]) -> float:
    """Launch work that is stopped; return how long it took."""
    began = time.monotonic()
    with pytest.raises(RunStopped):
        launch(platform, work)
    return time.monotonic() - began


def require_stopped(platform: Platform) -> None:
    """Nothing has failed, nothing was halved or tried again, and nobody publishes it."""
    assert [one.state for one in platform.ledger.attempts(RUN)] in ([], ["STOPPED"], ["STAGED"])
    assert not [one for one in platform.ledger.chunks(RUN) if one.error]
    assert platform.ledger.stops.held(RUN) is not None
    assert list(publication_requests(platform, small_table.TARGET)) == []


@pytest.mark.parametrize(
    ("act", "through"),
    [
        pytest.param(by_signal(signal.SIGINT), "SIGINT", id="Ctrl-C"),
        pytest.param(by_signal(signal.SIGTERM), "SIGTERM", id="SIGTERM"),
        pytest.param(elsewhere, "backfill stop", id="elsewhere"),
    ],
)
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(for_ever, id="in Python"),
        pytest.param(for_ever_then(ValueError("Job 3 cancelled part of cancelled job tags")), id="in the JVM"),
    ],
)
def test_a_stop_ends_a_batch_at_once_which_has_not_failed(
    platform: Platform,
    monkeypatch: pytest.MonkeyPatch,
    act: Callable[[Platform], None],
    through: str,
    work: Callable[..., Any],
) -> None:
    monkeypatch.setattr(executor, "compute_batch", disturbed(platform, act, work))
    assert stopped(platform, lambda: executor.stage_chunks(platform, RUN, keys(platform))) < FOR_EVER / 4
    require_stopped(platform)
    stop = platform.ledger.stops.held(RUN)
    assert stop is not None
    assert stop.through.startswith(through)
    assert platform.ledger.run(RUN).state is RunState.RUNNING
    assert str(platform.ledger.launches.waits(platform.ledger.run(RUN))).endswith(f"(`backfill resume {RUN}`)")
    monkeypatch.setattr(executor, "compute_batch", small_table.compute)
    with stopping.launched(platform, RUN):
        assert staged(platform, RUN).state is RunState.VALIDATED
    assert publish(platform, RUN).new


def test_the_end_of_a_run_ends_its_batch_at_once(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def cancel(_: Platform) -> None:
        decisions.cancel(platform, RUN, by="grace", comment="no longer wanted")

    monkeypatch.setattr(executor, "compute_batch", disturbed(platform, cancel, for_ever))
    began = time.monotonic()
    with pytest.raises(RunStopped, match=rf"'{RUN}' was cancelled by grace .*no longer wanted") as refused:
        launch(platform, lambda: executor.stage_chunks(platform, RUN, keys(platform)))
    assert time.monotonic() - began < FOR_EVER / 4
    assert (refused.value.headline, "backfill resume" in str(refused.value)) == ("the run is over", False)
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STOPPED"]
    assert platform.ledger.run(RUN).state is RunState.CANCELLED
    assert platform.ledger.stops.of_run(RUN) == [], "it was cancelled, and nobody has stopped it beside that"
    assert f"'{RUN}' was cancelled by grace" in caplog.text


def test_the_command_stop_ends_the_batch_of_a_run_that_is_over_and_says_that_nothing_goes_on(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    platform.ledger.start_attempt(RUN, keys(platform), edition=0, actor="ada", location="/staging")
    decisions.cancel(platform, RUN, by="grace")
    assert said("stop", RUN, "--by", "olga").endswith("what is staged stays; it is CANCELLED")
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STOPPED"]
    assert "nothing of it is under way" in str(CliRunner().invoke(cli, ["stop", RUN, "--by", "olga"]).exception)


def test_signals_are_whose_they_were_before_and_are_not_lost_between_two_parts(platform: Platform) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

    def go_on() -> None:
        signal.signal(signal.SIGINT, lambda *_: None)  # as Dagster does between two steps
        os.kill(os.getpid(), signal.SIGINT)
        stopping.going_on(RUN)()
        raise AssertionError("it goes on")

    with pytest.raises(RunStopped):
        launch(platform, go_on)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_a_second_ctrl_c_does_not_wait_for_the_jvm(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_launch, "_in_py4j", lambda _: True)
    monkeypatch.setattr(watched_launch, "_JVM_SECONDS", FOR_EVER)

    def twice(_: Platform) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(executor, "compute_batch", disturbed(platform, twice, for_ever))
    assert stopped(platform, lambda: executor.stage_chunks(platform, RUN, keys(platform))) < FOR_EVER / 4
    require_stopped(platform)


@pytest.mark.parametrize("gate", ["run_gates", "_run_verdicts"])
def test_a_stop_while_gates_judge_leaves_what_is_staged_and_judges_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    usual = getattr(judging, gate)
    work = for_ever_then(ValueError("cancelled"))
    monkeypatch.setattr(judging, gate, disturbed(platform, by_signal(signal.SIGINT), work))
    stopped(platform, lambda: staged(platform, RUN))
    require_stopped(platform)
    assert platform.ledger.run(RUN).state is RunState.STAGED
    assert not [one for one in platform.ledger.verdicts(RUN) if not one.chunk]
    monkeypatch.setattr(judging, gate, usual)
    with stopping.launched(platform, RUN):
        assert staged(platform, RUN).state is RunState.VALIDATED
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["STAGED"], "nothing staged is computed again"


def test_a_validated_run_that_is_stopped_is_published_by_nobody(platform: Platform) -> None:
    staged(platform, RUN)
    assert [one.partition_key for one in publication_requests(platform, small_table.TARGET)] == [RUN]
    before = platform.lakehouse.snapshot_id(small_table.READINGS)
    done, record = decisions.stop(platform, RUN, by="olga", through="backfill stop")
    assert (done.note, record.state) == ("", RunState.VALIDATED)
    require_stopped(platform)
    for act in (publish, decisions.publish):
        with pytest.raises(PublicationRefused, match="olga"):
            act(platform, RUN)
    with pytest.raises(RunStopped), stopping.launched(platform, RUN, resumes=False):
        pass
    assert platform.lakehouse.snapshot_id(small_table.READINGS) == before
    (launched,) = [step for step in steps(platform, RUN) if step.title == "Launch"]
    assert launched.commands == (f"backfill resume {RUN}",)
    with stopping.launched(platform, RUN):
        pass
    assert [one.partition_key for one in publication_requests(platform, small_table.TARGET)] == [RUN]
    assert publish(platform, RUN).new


def test_a_stop_just_before_a_launch_ends_is_one_of_that_launch(platform: Platform) -> None:
    staged(platform, RUN)
    with pytest.raises(RunStopped, match="olga"):
        launch(platform, lambda: elsewhere(platform))


def ready_for_the_command(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a run that only waits for its publication, in the home that commands find."""
    initialise_instance(platform.settings)
    staged(platform, RUN)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))


@pytest.mark.parametrize("is_seen", [True, False], ids=["before", "after"])
def test_a_command_whose_run_is_stopped_before_its_publication_does_not_say_that_it_has_begun(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, is_seen: bool
) -> None:
    """Stopped just before the command asks what is to be published, or just after its launch has looked for the last time."""
    ready_for_the_command(platform, monkeypatch)

    def requests(*arguments: Any) -> Any:
        if is_seen:
            elsewhere(platform)
            return publication_requests(*arguments)
        return []

    ending = watched_launch.Launch.ending

    @contextmanager
    def ended(its: watched_launch.Launch) -> Iterator[None]:
        with ending(its):
            yield
        elsewhere(platform)

    monkeypatch.setattr("backfill_assets.defs.publish.publication_requests", requests)
    if not is_seen:
        monkeypatch.setattr(watched_launch.Launch, "ending", ended)
    done = CliRunner().invoke(cli, ["run", RUN])
    assert done.exit_code != 0
    assert "the cluster is needed" in done.output
    assert "had begun" not in done.output
    assert platform.ledger.run(RUN).state is RunState.VALIDATED


def test_a_command_that_ends_while_another_process_publishes_its_run_says_that(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_for_the_command(platform, monkeypatch)

    def requests(*_: Any) -> Any:
        platform.ledger.open_publication(RUN, "PUBLISH", None, "", "sensor")
        elsewhere(platform)
        return []

    monkeypatch.setattr("backfill_assets.defs.publish.publication_requests", requests)
    done = CliRunner().invoke(cli, ["run", RUN])
    assert done.exit_code == 0, done.output
    assert "its publication by sensor was under way and is not interrupted" in " ".join(done.output.split())
    assert "nothing more is computed or published" not in " ".join(done.output.split())


@pytest.mark.parametrize("ends", ["its process was killed", "it was refused"])
def test_a_command_whose_run_is_stopped_beside_a_publication_of_which_nothing_comes_says_that_it_is_stopped(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    ready_for_the_command(platform, monkeypatch)
    if ends == "its process was killed":

        def die(point: str) -> None:
            if point == "publishing.tagged":
                raise Killed

        with mock.patch.object(faults, "reach", die), mock.patch.object(Leases, "_end"), pytest.raises(Killed):
            publish(platform, RUN)
        with platform.ledger.engine.begin() as connection:
            connection.execute(leases.update().values(pid=NOBODY, process=name_of(NOBODY)))

    def requests(*arguments: Any) -> Any:
        if ends == "its process was killed":
            elsewhere(platform)
        else:
            entry = platform.ledger.open_publication(RUN, "PUBLISH", None, "", "sensor")
            elsewhere(platform)
            platform.ledger.close_refused(entry, "the lease is lost")
        return publication_requests(*arguments)

    monkeypatch.setattr("backfill_assets.defs.publish.publication_requests", requests)
    done = CliRunner().invoke(cli, ["run", RUN])
    assert done.exit_code != 0, done.output
    assert "nothing more is computed or published" in " ".join(done.output.split())
    assert platform.ledger.run(RUN).state is RunState.VALIDATED


def test_what_failed_is_said_also_of_a_run_that_was_stopped_then(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready_for_the_command(platform, monkeypatch)

    def fails(*_: Any, failed: Callable[[str], None]) -> bool:
        elsewhere(platform)
        failed("the ledger is away")
        return False

    monkeypatch.setattr("backfill_assets.defs.launch.run_publication", fails)
    done = CliRunner().invoke(cli, ["run", RUN])
    assert done.exit_code != 0
    assert "the cluster is needed" in done.output
    assert "the ledger is away" in done.output


@pytest.mark.parametrize(
    ("point", "published"), [("publishing.sealed", False), ("publishing.leased", True), ("publishing.committed", True)]
)
def test_a_stop_prevents_a_publication_or_lets_its_commit_finish(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, point: str, published: bool
) -> None:
    staged(platform, RUN)
    before = platform.lakehouse.snapshot_id(small_table.READINGS)

    def reach(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGINT)
            stopping._active[RUN].drain()

    monkeypatch.setattr(faults, "reach", reach)
    if published:
        assert publish(platform, RUN).new
    else:
        with pytest.raises(RunStopped):
            publish(platform, RUN)
    (stop,) = platform.ledger.stops.of_run(RUN)
    assert ("is not interrupted" in stop.note) == published
    assert (platform.ledger.run(RUN).state is RunState.PUBLISHED) == published
    assert (platform.lakehouse.snapshot_id(small_table.READINGS) != before) == published


def test_a_dagster_run_that_is_terminated_stops_its_run_and_ends_cancelled(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", for_ever)

    @dg.op
    def compute(context):
        meanwhile(lambda: context.instance.report_run_canceling(context.run))  # no signal reaches it
        with launched_by_dagster(context, platform, RUN):
            executor.stage_chunks(platform, RUN, keys(platform))

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        compute()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
        assert instance.get_run_by_id(result.run_id).status is dg.DagsterRunStatus.CANCELED
    require_stopped(platform)
    stop = platform.ledger.stops.held(RUN)
    assert stop is not None
    assert stop.through == f"Terminate of the Dagster run {result.run_id}"


def test_a_dagster_run_of_a_run_that_is_stopped_elsewhere_ends_cancelled_and_so_does_one_asked_for_before(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", for_ever)
    asked: list[str] = []

    @dg.op
    def compute(context):
        asked.append(context.run_id)
        if len(asked) == 1:
            meanwhile(lambda: once_computing(platform))
        else:
            elsewhere(platform)  # while it was queued
        with launched_by_dagster(context, platform, RUN):
            executor.stage_chunks(platform, RUN, keys(platform))

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        compute()

    with dg.DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            result = job.execute_in_process(instance=instance, raise_on_error=False)
            assert instance.get_run_by_id(result.run_id).status is dg.DagsterRunStatus.CANCELED
            require_stopped(platform)
            platform.ledger.stops.launched(RUN, by="ada")
    assert len(platform.ledger.attempts(RUN)) == 1, "the second one has computed nothing"


def in_dagster(instance: dg.DagsterInstance, act: Callable[[Any], Any], **tags: str) -> dg.DagsterRun:
    """Have a Dagster run of these tags do something; return it as it ended."""

    @dg.op
    def work(context):
        act(context)

    @dg.job(executor_def=dg.in_process_executor)
    def job() -> None:
        work()

    result = job.execute_in_process(
        instance=instance, raise_on_error=False, tags={f"dagster/{name}": value for name, value in tags.items()}
    )
    return instance.get_run_by_id(result.run_id)


def test_a_sensor_that_looked_before_a_stop_has_nothing_computed_after_it(platform: Platform) -> None:
    staged(platform, RUN)
    record = platform.ledger.run(RUN)
    platform.ledger.replan(RUN, record.plan, keys(platform)[:1], actor="ada", reason="conflict")
    (request,) = recomputation_requests(platform, small_table.TARGET)
    elsewhere(platform)

    def compute(context: Any) -> None:
        with launched_by_dagster(context, platform, RUN):
            staged(platform, RUN)

    with dg.DagsterInstance.ephemeral() as instance:
        assert request.tags[RUN_TAG] == RUN
        assert in_dagster(instance, compute, sensor_name="after_conflict").status is dg.DagsterRunStatus.CANCELED
    assert platform.ledger.run(RUN).state is RunState.RUNNING
    require_stopped(platform)


@pytest.mark.parametrize(
    ("tags", "ends"),
    [
        ({"sensor_name": "after_conflict"}, False),
        ({"schedule_name": "live_daily"}, False),
        ({"parent_run_id": "1", "retry_number": "1"}, False),
        ({"sensor_name": "after_conflict", "parent_run_id": "1"}, True),
        ({}, True),
    ],
    ids=["sensor", "schedule", "Dagster's retry", "re-executed by somebody", "somebody"],
)
def test_only_what_a_person_launches_ends_a_stop(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, tags: dict[str, str], ends: bool
) -> None:
    elsewhere(platform)
    monkeypatch.setattr(staging, "CLOCK_TOLERANCE", timedelta(0))  # as if the stop were older

    def launch_it(context: Any) -> None:
        with launched_by_dagster(context, platform, RUN):
            pass

    with dg.DagsterInstance.ephemeral() as instance:
        status = in_dagster(instance, launch_it, **tags).status
    assert status is (dg.DagsterRunStatus.SUCCESS if ends else dg.DagsterRunStatus.CANCELED)
    assert (platform.ledger.stops.held(RUN) is None) == ends


def test_a_stop_holds_whose_clock_is_behind_that_of_the_launch_before_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = timedelta(seconds=5)

    class Behind(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.now(tz) - behind

    def compute(context: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(stops, "datetime", Behind)
            elsewhere(platform)  # while the launch waited in the queue
        with launched_by_dagster(context, platform, RUN):
            staged(platform, RUN)

    with dg.DagsterInstance.ephemeral() as instance:
        assert in_dagster(instance, compute).status is dg.DagsterRunStatus.CANCELED
    assert platform.ledger.attempts(RUN) == []
    require_stopped(platform)


def test_a_launch_in_dagster_ends_a_stop_that_the_server_knew_of_however_young_and_no_other(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(platform)

    def compute(context: Any) -> None:
        with launched_by_dagster(context, platform, RUN):
            staged(platform, RUN)

    def asked(knows: int | None) -> dg.DagsterRunStatus:
        @dg.op
        def work(context):
            compute(context)

        @dg.job(executor_def=dg.in_process_executor)
        def job() -> None:
            work()

        tags = {} if knows is None else {STOP_TAG: str(knows)}
        result = job.execute_in_process(instance=instance, raise_on_error=False, tags=tags)
        return instance.get_run_by_id(result.run_id).status

    with dg.DagsterInstance.ephemeral() as instance:
        seen = platform.ledger.stops.known()[RUN]
        assert asked(None) is dg.DagsterRunStatus.CANCELED, "the clocks of two machines may be a minute apart"
        assert asked(seen - 1) is dg.DagsterRunStatus.CANCELED, "it was asked for before the stop"
        require_stopped(platform)
        assert asked(seen) is dg.DagsterRunStatus.SUCCESS
    assert platform.ledger.run(RUN).state is RunState.VALIDATED


def test_the_end_of_a_process_that_computes_a_live_run_is_no_stop_of_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", disturbed(platform, by_signal(signal.SIGTERM), for_ever))
    monkeypatch.setattr(
        watched_launch, "Mode", SimpleNamespace(LIVE=platform.ledger.run(RUN).mode)
    )  # it counts as LIVE

    def compute(context: Any) -> None:
        with launched_by_dagster(context, platform, RUN):
            executor.stage_chunks(platform, RUN, keys(platform))

    with dg.DagsterInstance.ephemeral() as instance:
        ended = in_dagster(instance, compute)
        assert ended.status is dg.DagsterRunStatus.FAILURE, "nobody has cancelled it"
        assert not [one for one in platform.ledger.chunks(RUN) if one.error]
        assert platform.ledger.stops.of_run(RUN) == []
        # the service is started again, and LIVE's schedule launches the run
        monkeypatch.setattr(executor, "compute_batch", small_table.compute)

        def again(context: Any) -> None:
            with launched_by_dagster(context, platform, RUN):
                staged(platform, RUN)

        assert in_dagster(instance, again, schedule_name="live_daily").status is dg.DagsterRunStatus.SUCCESS
    assert platform.ledger.run(RUN).state is RunState.VALIDATED


def test_a_signal_to_a_process_of_dagster_says_that_nobody_is_known_to_have_stopped_the_run(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "compute_batch", disturbed(platform, by_signal(signal.SIGTERM), for_ever))

    def compute(context: Any) -> None:
        with actors.acting(Actor(SOMEBODY, Channel.UI)), launched_by_dagster(context, platform, RUN):
            executor.stage_chunks(platform, RUN, keys(platform))

    with dg.DagsterInstance.ephemeral() as instance:
        assert in_dagster(instance, compute).status is dg.DagsterRunStatus.CANCELED
    require_stopped(platform)
    stop = platform.ledger.stops.held(RUN)
    assert str(stop).startswith("stopped by nobody as far as is known (SIGTERM to process ")
    assert str(stop).endswith("UTC: its process was told to end, as all are whose server or daemon in Dagster ends")


def test_a_launch_that_was_terminated_without_its_process_noting_it_is_stopped_once(platform: Platform) -> None:
    @dg.job
    def nothing() -> None:
        """Stand for a launch whose process is gone."""

    with dg.DagsterInstance.ephemeral() as instance:
        waiting = instance.create_run_for_job(nothing, tags={RUN_TAG: RUN})
        instance.report_run_canceled(waiting)
        assert note_terminated(platform, instance, waiting.run_id) is None, "it has never begun"
        done = nothing.execute_in_process(instance=instance, tags={RUN_TAG: RUN})
        stop = note_terminated(platform, instance, done.run_id)
        assert stop is not None
        assert stop.through == f"Terminate of the Dagster run {done.run_id}"
        assert note_terminated(platform, instance, done.run_id) is None, "it is on record"
        again = nothing.execute_in_process(instance=instance, tags={RUN_TAG: RUN})
        platform.ledger.stops.launched(RUN, by="ada")
        staged(platform, RUN)
        assert note_terminated(platform, instance, again.run_id) is None, "somebody has launched it since"


def test_what_was_launched_after_a_terminate_is_not_stopped_when_that_is_noted(platform: Platform) -> None:
    staged(platform, RUN)
    with dg.DagsterInstance.ephemeral() as instance:
        terminated = in_dagster(instance, lambda _: None)  # its process was killed, and has noted nothing
        instance.add_run_tags(terminated.run_id, {RUN_TAG: RUN})
        with stopping.launched(platform, RUN):  # somebody launches it again: it is VALIDATED, and begins no attempt
            assert note_terminated(platform, instance, terminated.run_id) is None
        assert platform.ledger.stops.of_run(RUN) == []


def test_a_launch_that_comes_while_the_terminate_before_it_is_noted_goes_on(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Stops.stop

    def stop_after_a_launch(*arguments: Any, **named: Any) -> stops.Stop:
        platform.ledger.stops.launched(RUN, by="olga")
        platform.ledger.resume(RUN, "olga")
        platform.ledger.start_attempt(RUN, keys(platform), edition=0, actor="olga", location="/nowhere")
        return stop(*arguments, **named)

    with dg.DagsterInstance.ephemeral() as instance:
        terminated = in_dagster(instance, lambda _: None)
        instance.add_run_tags(terminated.run_id, {RUN_TAG: RUN})
        monkeypatch.setattr(Stops, "stop", stop_after_a_launch)
        assert note_terminated(platform, instance, terminated.run_id) is None
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["RUNNING"]
    assert platform.ledger.stops.held(RUN) is None


def begun(instance: dg.DagsterInstance) -> dg.DagsterRun:
    """Return a Dagster run of the run whose process has begun, and says nothing more."""

    @dg.job
    def nothing() -> None:
        """Stand for what it does."""

    run = instance.create_run_for_job(nothing, tags={RUN_TAG: RUN})
    instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "nothing"), run.run_id)
    return run


def given_up(instance: dg.DagsterInstance, run: dg.DagsterRun) -> None:
    """Have Dagster's monitoring give a run up that nobody could cancel."""
    instance.report_run_canceled(instance.get_run_by_id(run.run_id))


def launched_again(platform: Platform) -> None:
    time.sleep(0.01)
    platform.ledger.stops.launched(RUN, by="ada")
    platform.ledger.start_attempt(RUN, keys(platform), edition=0, actor="ada", location="/nowhere")


def test_a_terminate_that_nobody_answers_stops_at_the_instant_that_it_was_given(platform: Platform) -> None:
    """Dagster gives the run up minutes later, when somebody has launched it again."""
    with dg.DagsterInstance.ephemeral() as instance:
        first = begun(instance)
        platform.ledger.stops.launched(RUN, by="ada")
        instance.report_run_canceling(first)
        launched_again(platform)
        given_up(instance, first)
        assert note_terminated(platform, instance, first.run_id) is None
    assert platform.ledger.stops.of_run(RUN) == []
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["RUNNING"]


def test_a_terminate_that_nobody_answers_stops_what_was_launched_before_it(platform: Platform) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first = begun(instance)
        launched_again(platform)
        instance.report_run_canceling(first)
        asked = platform.ledger.now()
        given_up(instance, first)
        stop = note_terminated(platform, instance, first.run_id)
    assert stop is not None
    assert stop.at <= asked
    require_stopped(platform)


def test_a_dagster_run_that_was_asked_for_before_a_terminate_and_begins_before_that_is_noted_is_stopped_by_it(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def noted_meanwhile(*_: Any, **__: Any) -> Any:
        assert note_terminated(platform, instance, first.run_id) is not None
        for_ever()

    monkeypatch.setattr(executor, "compute_batch", noted_meanwhile)

    def wait_in_the_queue(context: Any) -> None:
        instance.report_run_canceling(first)
        given_up(instance, first)  # its process was killed
        with launched_by_dagster(context, platform, RUN):
            executor.stage_chunks(platform, RUN, keys(platform))

    with dg.DagsterInstance.ephemeral() as instance:
        first = begun(instance)
        assert in_dagster(instance, wait_in_the_queue).status is dg.DagsterRunStatus.CANCELED
    require_stopped(platform)


@pytest.mark.parametrize("again", [{"parent_run_id": "1"}, {"parent_run_id": "1", "retry_number": "1"}])
def test_what_somebody_executes_again_was_asked_for_then_also_if_it_is_of_a_whole_that_was_asked_for_before(
    again: dict[str, str],
) -> None:
    """Dagster copies the tag of its backfill to it, as long as that goes on."""

    @dg.job
    def nothing() -> None:
        """Stand for a launch."""

    tags = {f"dagster/{name}": value for name, value in again.items()}
    backfill = PartitionBackfill(
        backfill_id="whole",
        status=BulkActionStatus.REQUESTED,
        from_failure=False,
        tags={},
        backfill_timestamp=1.0,
        partition_names=[],
    )
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_backfill(backfill)
        of_it = instance.create_run_for_job(nothing, tags={BACKFILL_ID_TAG: "whole"})
        executed_again = instance.create_run_for_job(nothing, tags={BACKFILL_ID_TAG: "whole", **tags})
        assert staging._asked_at(instance, of_it.run_id).timestamp() == 1.0
        created = instance.get_run_record_by_id(executed_again.run_id).create_timestamp.timestamp()
        is_decided = "retry_number" not in again
        assert staging._asked_at(instance, executed_again.run_id).timestamp() == (created if is_decided else 1.0)


def test_a_process_that_answers_a_terminate_late_ends_itself_and_not_what_was_launched_after_it(
    platform: Platform,
) -> None:
    def terminated(context: Any) -> None:
        with launched_by_dagster(context, platform, RUN):
            launch = stopping._active[RUN]
            with launch._lock:  # it hangs, and looks at nothing
                context.instance.report_run_canceling(context.run)
                launched_again(platform)
            for _ in range(100):
                stopping.going_on(RUN)()
                time.sleep(0.05)

    with dg.DagsterInstance.ephemeral() as instance:
        assert in_dagster(instance, terminated).status is dg.DagsterRunStatus.CANCELED
    assert platform.ledger.stops.of_run(RUN) == []
    assert [one.state for one in platform.ledger.attempts(RUN)] == ["RUNNING"]


def test_a_dagster_run_that_was_ended_by_a_stop_on_record_is_no_terminate_of_its_own(platform: Platform) -> None:
    """It had waited in the queue, and met the stop when it began; somebody has asked for another launch since."""
    elsewhere(platform)

    def meet(context: Any) -> None:
        with launched_by_dagster(context, platform, RUN):
            pass

    with dg.DagsterInstance.ephemeral() as instance:
        met = in_dagster(instance, meet)
        instance.add_run_tags(met.run_id, {RUN_TAG: RUN})
        assert met.status is dg.DagsterRunStatus.CANCELED
        assert note_terminated(platform, instance, met.run_id) is None
    assert len(platform.ledger.stops.of_run(RUN)) == 1


@pytest.mark.parametrize("is_terminated", [True, False])
def test_a_terminated_dagster_run_whose_process_is_gone_has_not_failed(platform: Platform, is_terminated: bool) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        first = begun(instance)
        instance.add_run_tags(first.run_id, {PROCESS_TAG: name_of(NOBODY)})
        if is_terminated:
            instance.report_run_canceling(first)
        assert end_lost_runs(instance) == [first.run_id]
        ended = instance.get_run_by_id(first.run_id).status
        assert ended is (dg.DagsterRunStatus.CANCELED if is_terminated else dg.DagsterRunStatus.FAILURE)
        if is_terminated:
            assert note_terminated(platform, instance, first.run_id) is not None
    assert (platform.ledger.stops.held(RUN) is not None) == is_terminated


def test_a_launch_that_waits_in_the_queue_while_the_terminate_before_it_is_noted_ends_that_stop(
    platform: Platform,
) -> None:
    def note_and_join(context: Any) -> None:
        stop = note_terminated(platform, context.instance, terminated.run_id)  # it was asked for before that
        assert stop is not None
        with launched_by_dagster(context, platform, RUN):
            staged(platform, RUN)

    with dg.DagsterInstance.ephemeral() as instance:
        terminated = in_dagster(instance, lambda _: None)
        instance.add_run_tags(terminated.run_id, {RUN_TAG: RUN})
        assert in_dagster(instance, note_and_join).status is dg.DagsterRunStatus.SUCCESS
    assert platform.ledger.run(RUN).state is RunState.VALIDATED


def test_a_command_that_only_looks_is_ended_by_ctrl_c_and_stops_no_run(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched_launch, "_in_py4j", lambda _: True)
    cancelled: list[float] = []
    monkeypatch.setattr(type(platform.spark), "interrupt", lambda _: cancelled.append(time.monotonic()))

    def look() -> None:
        with stopping.interruptible(platform):
            meanwhile(lambda: os.kill(os.getpid(), signal.SIGINT))
            until = time.monotonic() + FOR_EVER
            while not cancelled and time.monotonic() < until:
                time.sleep(0.02)
            raise ValueError("Job 3 cancelled part of cancelled job tags")

    with pytest.raises(KeyboardInterrupt):
        look()
    assert platform.ledger.stops.of_run(RUN) == []


def test_a_run_that_was_stopped_while_it_was_computed_says_so_first_wherever_it_is_looked_at(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.stage_chunks(platform, RUN, keys(platform)[:1])
    elsewhere(platform)
    record = platform.ledger.run(RUN)
    assert (record.state, record.state_reason) == (RunState.RUNNING, "computing chunks")
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    for words in (["status", RUN], ["status"], ["runbook", RUN], ["runbook", RUN, "--markdown"]):
        said = CliRunner().invoke(cli, words, catch_exceptions=False).output
        assert "computing chunks" not in said, words
        assert "stopped by olga" in " ".join(said.split()), words
    status = [
        line.split() for line in CliRunner().invoke(cli, ["status", RUN], catch_exceptions=False).output.splitlines()
    ]
    (state,) = [" ".join(line) for line in status if "state" in line]
    assert f"RUNNING, stopped by olga at {platform.ledger.stops.of_run(RUN)[0].at:%Y-%m-%d %H:%M:%S} UTC" in state
    assert "RUNNING, stopped" in " ".join(CliRunner().invoke(cli, ["status"], catch_exceptions=False).output.split())
    assert "computing" not in page(platform, f"/backfill/{RUN}")
    with pytest.raises(PublicationRefused) as refused:
        publish(platform, RUN)
    assert "was stopped by olga" in refused.value.problems[0].what
    assert refused.value.problems[0].fix == f"`backfill resume {RUN}`, or launch its chunks again in Dagster"
    assert "computing chunks" not in str(refused.value)


def test_a_run_of_which_nobody_computes_what_is_left_is_not_refused_as_one_that_is_computed(platform: Platform) -> None:
    executor.stage_chunks(platform, RUN, keys(platform)[:1])
    with pytest.raises(PublicationRefused, match="waits for a launch of"):
        publish(platform, RUN)


def said(*words: str) -> str:
    """Return what a command prints, its lines joined."""
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def test_status_of_a_run_of_which_nobody_computes_what_is_left_says_what_it_waits_for_and_not_that_it_computes(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *left = keys(platform)
    executor.stage_chunks(platform, RUN, [first])
    assert platform.ledger.run(RUN).state_reason == "computing chunks"
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    waits = f"waits for a launch of {in_words(left)}, {len(left)} chunk(s) (`backfill run {RUN}`)"
    for words in (["status"], ["status", RUN]):
        shown = said(*words)
        assert "computing" not in shown, words
        assert "stopped by" not in shown, words
        assert "RUNNING, stopped" not in shown, words
    assert waits in said("status", RUN)
    assert "waits for a launch of" in said("status")
    one = json.loads(said("status", RUN, "--json"))
    assert (one["state"], one["waitsForLaunchOf"], one["waitsFor"]) == ("RUNNING", left, waits)
    assert one["stops"] == []
    (listed,) = [run for run in json.loads(said("status", "--json")) if run["runId"] == RUN]
    assert listed["waitsFor"] == waits
    staged(platform, RUN)
    assert json.loads(said("status", RUN, "--json"))["waitsForLaunchOf"] is None
    assert "waits for a launch" not in said("status")


def test_a_run_whose_launch_ended_before_it_gated_what_it_had_staged_waits_for_a_launch_until_there_is_one(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with mock.patch("os.getpid", return_value=ended.pid):
        executor.stage_chunks(platform, RUN, keys(platform))
    every = keys(platform)
    waits = f"waits for a launch of {in_words(every)}, {len(every)} chunk(s) (`backfill run {RUN}`)"
    one = json.loads(said("status", RUN, "--json"))
    assert (one["state"], one["waitsForLaunchOf"], one["waitsFor"]) == ("STAGED", every, waits)
    assert "waits for a launch of" in said("status")
    platform.ledger.stops.launched(RUN, by="ada")
    assert json.loads(said("status", RUN, "--json"))["waitsForLaunchOf"] is None
    judging.gate_chunks(platform, RUN)
    assert json.loads(said("status", RUN, "--json"))["waitsForLaunchOf"] is None
    with mock.patch.object(Stops, "newest_launch", return_value=None):
        assert json.loads(said("status", RUN, "--json"))["waitsForLaunchOf"] == every, "nobody has judged the run"
        judging.gate_run(platform, RUN)
        assert json.loads(said("status", RUN, "--json"))["waitsForLaunchOf"] is None


def test_status_of_a_run_that_is_computed_says_that_and_waits_for_nothing(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    shown: dict[str, Any] = {}

    def look(*arguments: Any, **named: Any) -> Any:
        shown.update(json.loads(said("status", RUN, "--json")), text=said("status", RUN))
        return small_table.compute(*arguments, **named)

    monkeypatch.setattr(executor, "compute_batch", look)
    executor.stage_chunks(platform, RUN, keys(platform))
    assert (shown["state"], shown["why"], shown["waitsForLaunchOf"]) == ("RUNNING", "computing chunks", None)
    assert "waits for a launch" not in shown["text"]


def test_the_command_stop_ends_a_run_in_the_name_that_is_given_and_says_how_it_goes_on(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor.stage_chunks(platform, RUN, keys(platform)[:1])
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    shown = said("stop", RUN, "--by", "olga", "--reason", "month's end")
    (stop,) = platform.ledger.stops.of_run(RUN)
    assert (stop.stopped_by, stop.through, stop.reason, stop.note) == ("olga", "backfill stop", "month's end", "")
    assert shown == f"{RUN}: {stop} what is staged stays; `backfill resume {RUN}` goes on"
    require_stopped(platform)
    told = json.loads(said("stop", RUN, "--by", "ada", "--json"))
    again = platform.ledger.stops.held(RUN)
    assert again is not None
    assert (told["runId"], told["state"], told["stop"]["stopped_by"]) == (RUN, "RUNNING", "ada")
    assert (again.stopped_by, again.id) == ("ada", told["stop"]["id"])
    found = json.loads(said("decisions", RUN, "--json"))
    assert [(one["decision"], one["by"], one["channel"]) for one in found if one["decision"] == "STOPPED"] == [
        ("STOPPED", "olga", "backfill stop"),
        ("STOPPED", "ada", "backfill stop"),
    ]


def test_the_command_stop_needs_a_name_and_a_run_of_which_something_may_be_under_way(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    nameless = CliRunner().invoke(cli, ["stop", RUN])
    assert (nameless.exit_code, "--by" in nameless.output) == (2, True)
    assert "no name is given" in str(CliRunner().invoke(cli, ["stop", RUN, "--by", " "]).exception)
    assert "is unknown" in str(CliRunner().invoke(cli, ["stop", "nobody-planned-it", "--by", "olga"]).exception)
    decisions.cancel(platform, RUN, by="grace")
    assert f"run '{RUN}' is CANCELLED" in str(CliRunner().invoke(cli, ["stop", RUN, "--by", "olga"]).exception)
    assert platform.ledger.stops.of_run(RUN) == []


def test_a_publication_that_the_command_stop_meets_is_said_and_let_finish(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged(platform, RUN)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    entry = platform.ledger.open_publication(RUN, "PUBLISH", None, "", "sensor")

    def end_it() -> None:
        until = time.monotonic() + FOR_EVER
        while platform.ledger.stops.held(RUN) is None and time.monotonic() < until:
            time.sleep(0.02)
        platform.ledger.close_refused(entry, "the lease is lost")

    meanwhile(end_it)
    shown = said("stop", RUN, "--by", "olga")
    assert shown.endswith("its publication by sensor was under way and is not interrupted; it is VALIDATED")
    assert "what is staged stays" not in shown
    assert [one.state for one in platform.ledger.publications(RUN)] == ["REFUSED"], "it has waited for its end"
    require_stopped(platform)


@pytest.mark.parametrize(
    ("typed", "tags", "by"),
    [("olga", {}, "olga"), ("", {USER_TAG: "petra"}, "petra"), ("Petra", {USER_TAG: "petra"}, "petra")],
    ids=["typed", "logged in", "both"],
)
def test_the_job_stop_run_stops_a_run_in_the_name_of_who_asks(
    platform: Platform, typed: str, tags: dict[str, str], by: str
) -> None:
    executor.stage_chunks(platform, RUN, keys(platform)[:1])
    with dg.DagsterInstance.ephemeral() as instance:
        done = asked_to_stop(platform, instance, {"by": typed, "comment": "month's end"}, tags)
        assert done.success
        told = [one.message for one in instance.all_logs(done.run_id)]
        assert instance.get_run_by_id(done.run_id).tags[RUN_TAG] == RUN
    (stop,) = platform.ledger.stops.of_run(RUN)
    assert (stop.stopped_by, stop.through, stop.reason) == (by, "the job stop_run", "month's end")
    assert any(str(stop) in text and "the run is RUNNING" in text for text in told)
    require_stopped(platform)


@pytest.mark.parametrize(
    ("typed", "tags", "why"),
    [
        ("", {}, "no name is given"),
        ("olga", {USER_TAG: "petra"}, "'olga' was typed, and 'petra' is logged in"),
        ("", {"dagster/sensor_name": "anything"}, "no name is given"),
    ],
)
def test_the_job_stop_run_refuses_in_words_whom_nobody_names(
    platform: Platform, typed: str, tags: dict[str, str], why: str
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        done = asked_to_stop(platform, instance, {"by": typed}, tags)
        (failure,) = [event.step_failure_data for event in done.all_events if event.is_step_failure]
    assert why in str(failure.user_failure_data or failure.error)
    assert platform.ledger.stops.of_run(RUN) == []


def asked_to_stop(
    platform: Platform, instance: dg.DagsterInstance, form: dict[str, str], tags: dict[str, str]
) -> dg.ExecuteInProcessResult:
    return stop_run.execute_in_process(
        run_config={"ops": {"stop": {"config": {"run_id": RUN} | form}}},
        resources={"platform": platform},
        instance=instance,
        raise_on_error=False,
        tags=tags,
    )
