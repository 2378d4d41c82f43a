"""A run leaves one trace, whichever processes work for it; a collector that is not well costs spans, and neither runs nor time."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from launches import CONTEXT
from pydantic import ValidationError
from small_worlds import copy_of
from span_collector import Collector, Span, collecting
from traced_processes import ended, killed_once_committed, staged_and_published, started

from backfill_assets.cli.command import cli
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import prepare, publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.schedules.live import tick
from backfill_assets.staging import executor
from benchmarks.small_table import (
    HISTORY,
    READINGS,
    SCOPE,
    SOURCE,
    WITH_LIVE,
    closed,
    compute_events,
    declared,
    initialise,
    load_events,
    manifest,
    manifest_data,
    opened,
    planned,
    staged,
)
from manifests.errors import EnvironmentRefused, PlanRefused, Problem, PublicationDeferred, TransitionRefused
from manifests.model import Mode
from manifests.reading import manifest_from
from manifests.trace_settings import Traces
from resources import logs
from resources.logs import traces
from resources.settings import load_settings
from resources.spark import one_reach
from resources.spark.sessions import ModeSpark

REPLACE = "REPLACE_PARTITIONS"
SECRET = "s3cr3t-of-the-collector"
QUOTED = "1234567890123"
TOKEN = {"Authorization": f"Bearer {SECRET}"}


@pytest.fixture(autouse=True)
def _off_afterwards() -> Iterator[None]:
    yield
    traces.end()


def on(collector: Collector, **settings: Any) -> None:
    traces.configure(Traces(endpoint=collector.address, **settings))


def with_sink(run_id: str, mode: str, scope: tuple[str, str], **options: Any) -> Any:
    return manifest_from(manifest_data(run_id, mode, scope, **options) | {"safety": {"sinks": ["run_audit"]}})


def unreadable(*_: Any) -> Any:
    raise ValueError(f"meter m3 said {QUOTED}")


# --- what a run leaves ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, Path]]:
    """What an installation's day sends: runs that are published, taken back, fail and are refused; and its log."""
    home = tmp_path_factory.mktemp("traces") / "home"
    file = home.parent / "log.jsonl"
    log = logging.getLogger(logs.ROOT)
    before = (list(log.handlers), log.level, log.propagate)
    with collecting() as collector, declared():
        platform = opened(home, log_file=file, log_format="json")
        logs.configure(platform.settings)
        initialise(platform)
        on(collector, headers=TOKEN)
        _a_day(platform)
        traces.end()
        closed(platform)
        log.handlers, log.level, log.propagate = before
        yield collector, file


def _a_day(platform: Platform) -> None:
    planned(platform, with_sink("history", REPLACE, HISTORY, computed_by="1"))
    staged(platform, "history")
    publish(platform, "history")
    planned(platform, manifest("swapped", "SHADOW_SWAP", SCOPE))
    staged(platform, "swapped")
    prepare(platform, "swapped")
    publish(platform, "swapped")
    rollback(platform, "swapped")
    planned(platform, manifest("failed", REPLACE, SCOPE))
    with mock.patch.object(executor, "compute_batch", unreadable):
        staged(platform, "failed")
    with pytest.raises(PlanRefused):
        plan_run(platform, manifest("refused", REPLACE, ("2019-01-01", "2019-12-31")))


@pytest.fixture(scope="module")
def spans(collected: tuple[Collector, Path]) -> list[Span]:
    return collected[0].spans


def of_run(spans: list[Span], run_id: str) -> list[Span]:
    return [span for span in spans if span.trace == f"{traces.trace_id(run_id):032x}"]


def tree(spans: list[Span]) -> Counter[str]:
    """Return how many spans lie under which: names from the root down, with / between them."""
    by_id = {span.id: span for span in spans}

    def path(span: Span) -> str:
        name = span.name.removeprefix("backfill.")
        return f"{path(by_id[span.parent])}/{name}" if span.parent else name

    return Counter(map(path, spans))


def test_a_run_is_one_trace_whose_roots_are_what_was_asked_for(spans: list[Span]) -> None:
    assert tree(of_run(spans, "history")) == {
        "plan": 1,
        "plan/plan.sources": 1,
        "plan/plan.further_sources": 1,
        "plan/plan.checks": 1,
        "stage": 1,
        "stage/batch": 1,
        "stage/batch/batch.compute": 1,
        "stage/batch/batch.derive": 1,
        "gate_chunks": 1,
        "gate_run": 1,
        "gate_run/gate": len({one.attributes["gate"] for one in spans if one.name == "backfill.gate"}),
        "publish": 1,
        "publish/commit": 1,
        "publish/sink": 1,
    }
    assert len({span.id for span in spans}) == len(spans)


def test_a_candidate_and_a_rollback_are_in_the_trace_of_their_run(spans: list[Span]) -> None:
    found = tree(of_run(spans, "swapped"))
    assert [found[one] for one in ("prepare", "prepare/commit", "publish", "publish/commit", "rollback")] == [1] * 5
    assert found["rollback/commit"] >= 1


def test_spans_say_which_table_chunks_attempt_gate_snapshot_and_sink(spans: list[Span]) -> None:
    own = {span.name.removeprefix("backfill."): span.attributes for span in of_run(spans, "history")}
    assert all(span.attributes["run_id"] == "history" for span in of_run(spans, "history") if not span.parent)
    assert own["plan"] | {"target": READINGS, "mode": "BACKFILL", "chunks": 4} == own["plan"]
    assert own["plan.sources"]["source"] == SOURCE
    batch = {"attempt": 1, "chunks": 4, "first_chunk": "2020-01", "last_chunk": "2020-04", "files": 8}
    assert own["batch"] | batch == own["batch"]
    assert own["gate_chunks"]["rows"] == own["batch"]["rows"] > 0
    gates = {span.attributes["gate"]: span.attributes["passed"] for span in spans if span.name == "backfill.gate"}
    assert {"all_chunks_staged", "rows_within_expected"} <= gates.keys()
    assert set(gates.values()) == {True}
    assert own["publish"]["publish_mode"] == REPLACE
    assert own["commit"] | {"table": READINGS, "action": "publish", "files_added": 8} == own["commit"]
    assert own["commit"]["snapshot_id"] == own["publish"]["snapshot_id"]
    assert int(own["commit"]["snapshot_id"]) > 2**53  # in words: a page's script would round the number
    assert own["sink"] | {"sink": "run_audit", "action": "publish"} == own["sink"]


def test_a_batch_that_fails_is_an_error_by_its_kind_and_quotes_no_row(collected: tuple[Collector, Path]) -> None:
    batches = [span for span in of_run(collected[0].spans, "failed") if span.name == "backfill.batch"]
    assert batches
    assert all(span.failed and span.attributes["error.type"] == span.said == "ValueError" for span in batches)
    assert all(span.events == ({"name": "exception", "exception.type": "ValueError"},) for span in batches)
    assert not any(QUOTED.encode() in body or SECRET.encode() in body for body in collected[0].bodies)


def test_a_refused_plan_says_why(spans: list[Span]) -> None:
    (plan,) = (span for span in of_run(spans, "refused") if not span.parent)
    assert (plan.name, plan.failed, plan.attributes["error.type"]) == ("backfill.plan", True, "PlanRefused")
    assert plan.events[0]["exception.message"] == plan.said
    assert "2019" in plan.said


def test_lines_of_the_log_say_in_which_span_they_were_written(collected: tuple[Collector, Path]) -> None:
    collector, file = collected
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    told = {line["event"]: (line["trace_id"], line["span_id"]) for line in lines if line["run_id"] == "history"}
    roots = {span.name: (span.trace, span.id) for span in of_run(collector.spans, "history") if not span.parent}
    assert told["planned"] == roots["backfill.plan"]
    assert told["publish_started"] == roots["backfill.publish"]
    assert told["chunk_staged"] == roots["backfill.stage"]


def test_spans_are_posted_where_collectors_take_them_with_the_headers(collected: tuple[Collector, Path]) -> None:
    (path, headers), *_ = collected[0].requests
    assert path == "/v1/traces"
    assert headers["authorization"] == TOKEN["Authorization"]


def test_a_run_of_live_is_a_trace_as_well() -> None:
    with collecting() as collector, declared(WITH_LIVE, compute_events):
        platform = copy_of(_with_history)
        on(collector)
        load_events(platform, "may", "2020-05-02")
        record = tick(platform, WITH_LIVE).record
        assert record is not None
        staged(platform, record.run_id)
        publish(platform, record.run_id)
        traces.end()
        closed(platform)
    own = of_run(collector.spans, record.run_id)
    assert {span.attributes.get("mode") for span in own if not span.parent} == {"LIVE"}
    assert {"backfill.plan", "backfill.batch", "backfill.gate", "backfill.commit"} <= {span.name for span in own}


def _with_history(platform: Platform) -> None:
    initialise(platform)
    planned(platform, manifest("history", REPLACE, HISTORY))
    staged(platform, "history")
    publish(platform, "history")


# --- one trace, several processes -------------------------------------------------------------------------------------


def _spans_of_a_fork() -> None:
    with traces.span("forked", "shared"):
        pass


def test_what_several_processes_do_for_a_run_is_one_trace(tmp_path: Path) -> None:
    """One of them is forked while this one has a connection open; both end as Dagster's steps do, without `atexit`."""
    with collecting() as collector, declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        on(collector)
        planned(platform, manifest("shared", REPLACE, SCOPE))
        _wait_for(lambda: collector.named("backfill.plan"))
        closed(platform)
        stages = started(CONTEXT, staged_and_published, tmp_path / "home", collector.address, "shared")
        forked = started(multiprocessing.get_context("fork"), _spans_of_a_fork)
        assert (ended(forked), ended(stages)) == (0, 0)
        with traces.span("after", "shared"):
            pass
        traces.end()
    own = of_run(collector.spans, "shared")
    assert own == collector.spans
    processes = {span.name: span.process for span in own}
    assert processes["backfill.plan"] == processes["backfill.after"] == os.getpid()
    assert processes["backfill.batch"] == processes["backfill.publish"] == stages.pid
    assert processes["backfill.forked"] == forked.pid
    assert len({span.id for span in own}) == len(own)


def _wait_for(found: Any) -> None:
    end = time.monotonic() + 60
    while not found():
        assert time.monotonic() < end, "not within a minute"
        time.sleep(0.02)


# --- sampled, and off -------------------------------------------------------------------------------------------------


def test_a_run_is_sampled_whole_or_not_at_all_and_by_every_process_alike() -> None:
    runs = [f"run-{number}" for number in range(200)]
    with collecting() as collector:
        for _ in range(2):  # a process each, as far as sampling goes
            on(collector, sample_ratio=0.25)
            for run_id in runs:
                with traces.span("plan", run_id), traces.span("plan.sources"):
                    pass
            traces.end()
    by_trace = Counter(span.trace for span in collector.spans)
    assert 20 < len(by_trace) < 80
    assert set(by_trace.values()) == {4}


def test_without_an_endpoint_or_with_nothing_sampled_nothing_of_opentelemetry_is_imported() -> None:
    script = (
        "import sys\n"
        "from manifests.trace_settings import Traces\n"
        "from resources.logs import traces\n"
        "for settings in (Traces(), Traces(endpoint='http://127.0.0.1:9', sample_ratio=0)):\n"
        "    traces.configure(settings)\n"
        "    with traces.span('plan', 'run'):\n"
        "        traces.note(chunks=1)\n"
        "traces.end()\n"
        "print([one for one in sys.modules if one.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_what_begins_within_no_run_leaves_nothing() -> None:
    with collecting() as collector:
        on(collector)
        with traces.span("commit", table=READINGS):
            traces.note(snapshot_id="1")
        traces.end()
    assert collector.spans == []


# --- a collector that is not well -------------------------------------------------------------------------------------


@pytest.fixture
def nobody_there() -> Iterator[str]:
    """The address of a port on which nobody listens, and nobody can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def seconds_of(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def many_spans() -> None:
    for number in range(6000):  # more than wait
        with traces.span("plan", f"run-{number % 50}"):
            pass


def test_a_collector_that_is_down_costs_no_time_and_says_nothing_on_stderr(
    nobody_there: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "log.jsonl"
    log = logging.getLogger(logs.ROOT)
    before = (list(log.handlers), log.level, log.propagate)
    logs.configure(load_settings(home=tmp_path / "home", log_file=file, log_format="json"))
    traces.configure(Traces(endpoint=nobody_there, timeout_seconds=0.5, headers=TOKEN))
    many_spans()  # the first one imports OpenTelemetry
    assert seconds_of(many_spans) < 10
    _wait_for(file.read_text)
    assert seconds_of(traces.end) < 2.5
    log.handlers, log.level, log.propagate = before
    assert capfd.readouterr() == ("", "")
    (line,) = map(json.loads, file.read_text().splitlines())
    assert (line["event"], line["level"]) == ("spans_not_sent", "INFO")
    assert SECRET not in file.read_text()


@pytest.mark.parametrize("seconds", [0.0, 0.4])
def test_the_end_of_a_process_waits_no_longer_than_it_may_for_a_collector_that_hangs(seconds: float) -> None:
    with collecting() as collector:
        collector.hangs = threading.Event()
        on(collector, exit_seconds=seconds)
        many_spans()
        _wait_for(lambda: collector.requests)
        assert seconds <= seconds_of(traces.end) < seconds + 2  # a request may take five


@pytest.mark.parametrize("answer", [400, 401, 503])
def test_a_collector_that_refuses_is_left_alone_for_a_while(answer: int, capfd: pytest.CaptureFixture[str]) -> None:
    with collecting() as collector:
        collector.answer = answer
        on(collector, timeout_seconds=0.3)
        many_spans()
        assert seconds_of(traces.end) < 2.5
    assert len(collector.requests) == 1
    assert capfd.readouterr().err == ""


def test_a_run_is_published_while_the_collector_hangs() -> None:
    with collecting() as collector, declared():
        collector.hangs = threading.Event()
        platform = copy_of(initialise)
        on(collector, exit_seconds=0.1)
        planned(platform, manifest("history", REPLACE, HISTORY))
        staged(platform, "history")
        assert publish(platform, "history").new
        assert seconds_of(traces.end) < 2
        closed(platform)


def test_a_run_goes_on_where_opentelemetry_cannot_be_begun(nobody_there: str) -> None:
    traces.configure(Traces(endpoint=nobody_there))
    with mock.patch.dict(sys.modules, {"resources.logs.span_export": None}), traces.span("plan", "run"):
        traces.note(chunks=1)
        traces.failed(ValueError())
    assert not traces._tracing.are_on


def test_what_only_waits_is_no_failure_and_what_is_refused_for_its_data_is_not_quoted() -> None:
    problem = Problem(f"it is {QUOTED}")
    with collecting() as collector:
        on(collector)
        for error in (PublicationDeferred(problem), TransitionRefused(problem), executor.InputRefused(problem)):
            with pytest.raises(type(error)), traces.span("publish", "run"):
                raise error
        traces.end()
    waits, refused, of_data = collector.spans
    assert (waits.failed, waits.events[0]["exception.message"]) == (False, problem.what)
    assert (refused.failed, refused.said) == (True, problem.what)
    assert (of_data.failed, of_data.said) == (True, "InputRefused")


def test_a_process_that_is_killed_leaves_the_spans_that_it_has_sent(tmp_path: Path) -> None:
    """And a run that is killed in a commit goes on in the same trace."""
    with collecting() as collector, declared():
        platform = opened(tmp_path / "home")
        initialise(platform)
        planned(platform, manifest("killed", REPLACE, SCOPE))
        closed(platform)
        child = started(CONTEXT, killed_once_committed, tmp_path / "home", collector.address, "killed")
        assert ended(child) == -9
        on(collector)
        platform = opened(tmp_path / "home")
        assert publish(platform, "killed").new is False
        traces.end()
        closed(platform)
    assert {span.name for span in collector.spans if span.process == child.pid} >= {"backfill.stage", "backfill.gate"}
    (again,) = (span for span in collector.named("backfill.publish") if span.process == os.getpid())
    assert (again.attributes["new"], again.failed) == (False, False)
    assert {span.trace for span in collector.spans} == {again.trace}


def test_neither_the_jvm_nor_its_workers_inherit_the_headers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKFILL_TRACES__HEADERS__AUTHORIZATION", SECRET)
    seen: list[str] = []

    def start(*_: Any) -> None:
        seen.append(repr(os.environ))

    with (
        mock.patch.object(ModeSpark, "_start_without_credentials", start),
        mock.patch.object(one_reach, "_confined", set()),
    ):
        Platform.of(load_settings(home=tmp_path), []).spark._start(Mode.BACKFILL)
    assert len(seen) == 1
    assert SECRET not in seen[0]
    assert (
        os.environ["BACKFILL_TRACES__HEADERS__AUTHORIZATION"] == SECRET
    )  # processes that are started later send spans


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"sample_ratio": 2},
        {"sample_ratio": -0.1},
        {"sample_ratio": float("nan")},
        {"timeout_seconds": 0},
        {"exit_seconds": 3600},
        {"endpoint": "collector:4318"},
        {"endpoint": "grpc://collector:4317"},
        {"endpoint": "http://"},
        {"endpoint": "http://collector:99999"},
        {"endpoint": "http://[collector"},
        {"endpoint": "http://collector/a b"},
        {"endpoint": f"http://user:{SECRET}@collector:4318"},
        {"endpoint": f"http://collector:4318?token={SECRET}"},
        {"headers": {"a b": SECRET}},
        {"headers": {"Content-Length": SECRET}},
        {"headers": {"token": f"{SECRET}\nother: header"}},
        {"headers": {"token": ""}},
        {"headers": {"token": f"{SECRET}\u00e9"}},
        {"sampling": 1},
    ],
    ids="-".join,
)
def test_settings_that_no_span_could_be_sent_by_are_refused(wrong: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused) as refused:
        load_settings(home=tmp_path, traces={"endpoint": "http://collector:4318"} | wrong)
    assert f"traces.{next(iter(wrong))}" in str(refused.value)
    assert "what to do" in str(refused.value)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://collector:4318", "http://collector:4318/v1/traces"),
        ("https://collector/", "https://collector/v1/traces"),
        ("https://traces.example.com/otlp", "https://traces.example.com/otlp/v1/traces"),
        ("http://[::1]:4318/v1/traces", "http://[::1]:4318/v1/traces"),
    ],
)
def test_an_endpoint_is_given_with_or_without_the_path_of_the_protocol(endpoint: str, address: str) -> None:
    assert Traces(endpoint=endpoint).address == address


def test_the_headers_are_never_shown(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, traces={"endpoint": "http://collector:4318", "headers": {"x-team": SECRET}})
    assert SECRET not in json.dumps(settings.shown())
    assert SECRET not in repr(settings)
    assert settings.output_hash() == load_settings(home=tmp_path).output_hash()
    with pytest.raises(ValidationError) as refused:
        Traces(headers={"a b": SECRET})
    assert SECRET not in str(refused.value.errors(include_input=False))


def test_what_sends_spans_is_asked_for_before_a_command_does_anything(tmp_path: Path, nobody_there: str) -> None:
    home, plan = tmp_path / "home", tmp_path / "manifest.yaml"
    with declared():
        platform = opened(home)
        initialise(platform)
        closed(platform)
        before = sorted(file.name for file in home.iterdir())
        plan.write_text(json.dumps(manifest_data("asked", REPLACE, SCOPE)))
        environment = {"BACKFILL_HOME": str(home), "BACKFILL_TRACES__ENDPOINT": nobody_there}
        with mock.patch.object(traces, "_NEEDED", ("opentelemetry_that_is_not.sdk",)):
            done = CliRunner().invoke(cli, ["plan", str(plan)], env=environment)
    assert isinstance(done.exception, EnvironmentRefused)
    assert "pip install 'backfill-assets[traces]'" in str(done.exception)
    assert sorted(file.name for file in home.iterdir()) == before
    assert opened(home).ledger.find("asked") is None
