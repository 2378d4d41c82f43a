"""Every line of the log carries its run, chunk, source range, transform version, target and mode, and no row's values."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from support import lost_once_recorded
from test_metrics import misplaced

from backfill_assets import faults
from backfill_assets.cli.command import cli
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.operations.garbage import collect, find
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.ending import cancel
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.schedules.live import tick
from backfill_assets.staging import executor
from benchmarks.small_table import (
    HISTORY,
    READINGS,
    SCOPE,
    TARGET,
    closed,
    declared,
    initialise,
    manifest,
    opened,
    planned,
    staged,
)
from manifests.errors import EnvironmentRefused, InputRefused, PlanRefused, PublicationRefused
from resources import logs
from resources.ledger.transactions import system_clock as now
from resources.logs import FIELDS, ROOT, bound, configure, event, lines, without_passwords
from resources.settings import load_settings

REPLACE = "REPLACE_PARTITIONS"
LOG = logging.getLogger(f"{ROOT}.tests")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Give the logger back as it was."""
    log = logging.getLogger(ROOT)
    before = (list(log.handlers), log.level, log.propagate)
    yield
    for handler in set(log.handlers) - set(before[0]):
        handler.close()
    log.handlers, log.level, log.propagate = before
    logging.Logger.manager._clear_cache()


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def unreadable(*_: Any) -> Any:
    raise ValueError("meter m3 said 1234567890123")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What a whole day of an installation writes: runs that end well and badly, the doctor, the garbage."""
    folder = tmp_path_factory.mktemp("logs")
    log = logging.getLogger(ROOT)
    before = (list(log.handlers), log.level, log.propagate)
    with declared():
        platform = opened(
            folder / "home", log_file=folder / "log.jsonl", log_format="json", log_level="DEBUG", keep_dead_runs_days=0
        )
        with mock.patch.object(sys, "stderr", StringIO()):
            configure(platform.settings)
            initialise(platform)
            _a_day(platform)
        closed(platform)
    log.handlers, log.level, log.propagate = before
    return lines_of(folder / "log.jsonl")


def _a_day(platform: Platform) -> None:
    planned(platform, manifest("history", REPLACE, HISTORY, computed_by="1"))
    staged(platform, "history")
    publish(platform, "history")
    planned(platform, manifest("taken-back", REPLACE, SCOPE))
    staged(platform, "taken-back")
    publish(platform, "taken-back")
    rollback(platform, "taken-back")
    planned(platform, manifest("failed", REPLACE, SCOPE))
    with mock.patch.object(executor, "compute_batch", unreadable):
        staged(platform, "failed")
    with mock.patch.object(executor, "compute_batch", misplaced):
        staged(platform, "failed")
    with pytest.raises(PublicationRefused):
        publish(platform, "failed")
    cancel(platform, "failed", "ada", "nobody wants it")
    with pytest.raises(PlanRefused):
        plan_run(platform, manifest("refused", REPLACE, ("2019-01-01", "2019-12-31")))
    with pytest.raises(InputRefused):
        tick(platform, TARGET)
    planned(platform, manifest("untold", REPLACE, SCOPE))
    staged(platform, "untold")
    with mock.patch.object(faults, "reach", lost_once_recorded), pytest.raises(ConnectionError):
        publish(platform, "untold")
    mend(platform)
    at = now() + timedelta(seconds=1)
    collect(platform, find(platform, at=at), by="ada", at=at)


def test_every_line_has_every_field(written: list[dict[str, Any]]) -> None:
    known = {"at", "level", "event", "message", *FIELDS, "data", "logger", "process"}
    assert all(set(line) == known for line in written)
    assert all(line["event"] and line["message"] for line in written)
    assert all(datetime.fromisoformat(line["at"]).tzinfo is UTC or line["at"].endswith("+00:00") for line in written)
    about_runs = [
        line for line in written if not line["event"].startswith(("disagreement", "repaired", "garbage", "live"))
    ]
    for line in about_runs:
        missing = [name for name in FIELDS if line[name] is None and name != "chunk_id"]
        expected = ["source_range", "transform_version"] if line["event"] == "planning_refused" else []
        assert missing == expected, line
        assert (line["target"], line["mode"]) == (READINGS, "BACKFILL")


def test_a_line_about_a_chunk_has_its_key_and_what_it_reads(written: list[dict[str, Any]]) -> None:
    about = {"attempt_started", "attempt_failed", "chunk_staged", "chunk_verdict"}
    chunked = [line for line in written if line["event"] in about]
    assert {line["event"] for line in chunked} == about
    for line in chunked:
        assert line["source_range"].startswith(f"{line['chunk_id']}-01..{line['chunk_id']}-"), line
    assert all(line["chunk_id"] is None for line in written if line["event"] not in about)


def test_a_chunk_reads_its_warm_up_too() -> None:
    from support import a_plan

    plan = a_plan()
    with logs.of_chunk(plan, plan.chunks[1]):
        assert lines._bound.get()["source_range"] == "2011-12-03..2012-02-29"
        assert plan.warm_up_days == 60
        assert lines._bound.get()["chunk_id"] == "2012-02"
    assert lines._bound.get() == {}


def test_each_step_of_a_run_is_written(written: list[dict[str, Any]]) -> None:
    def of(run_id: str) -> list[str]:
        return [line["event"] for line in written if line["run_id"] == run_id]

    chunks = ["attempt_started"] * 2 + ["chunk_staged"] * 2 + ["chunk_verdict"] * 2 + ["run_verdict"] * 3
    ended = ["publish_started", "publish_done", "rollback_started", "rollback_done"]
    assert of("taken-back") == ["planned", "staging_started", *chunks, *ended]
    failing = of("failed")
    assert failing.count("attempt_failed") == 4, "a batch of two, and each of them alone"
    assert failing[-4:] == ["publish_started", "publish_refused", "cancel_started", "cancel_done"]
    assert of("refused") == ["planning_refused"]
    rest = {line["event"] for line in written if line["run_id"] is None}
    assert rest == {"live_refused", "disagreement", "repaired", "garbage_collected"}
    assert of("history")[-2:] == ["publish_started", "publish_done"], "the doctor told the evidence again"


def test_a_failure_is_said_with_its_kind_and_rules_and_no_values(written: list[dict[str, Any]]) -> None:
    whole = json.dumps(written)
    assert "1234567890123" not in whole
    assert "m3" not in {word for line in written for word in line["message"].split()}
    failed = [line for line in written if line["event"] == "attempt_failed"]
    assert {line["data"]["error"] for line in failed} == {"ValueError"}
    assert [(line["data"]["chunks"], line["level"]) for line in failed] == [(2, "INFO")] * 2 + [(1, "WARNING")] * 2
    (first, _) = [line for line in written if line["event"] == "chunk_verdict" and not line["data"]["passed"]]
    assert first["level"] == "WARNING"
    assert first["data"]["rules"] == {"day: in its chunk": first["data"]["rules"]["day: in its chunk"]}
    assert "day: in its chunk" in first["message"]


# --- how and where ----------------------------------------------------------------------------------------------------


def configured(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> StringIO:
    stderr = StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    configure(load_settings(**settings))
    return stderr


def test_by_default_only_warnings_that_nobody_else_says_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = configured(monkeypatch)
    event(LOG, logging.INFO, "fine", "all is well")
    event(LOG, logging.WARNING, "told", "the report says it", told=True)
    event(LOG, logging.WARNING, "untold", "look here")
    assert [line.split(" ", 3)[2:] for line in stderr.getvalue().splitlines()] == [["WARNING", "-: look here"]]


def test_json_on_stderr_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = configured(monkeypatch, log_format="json", log_level="INFO")
    event(LOG, logging.INFO, "fine", "all is well")
    event(LOG, logging.WARNING, "told", "the report says it", told=True)
    assert [json.loads(line)["event"] for line in stderr.getvalue().splitlines()] == ["fine", "told"]


def test_a_file_has_what_the_terminal_does_not_show(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stderr = configured(monkeypatch, log_file=tmp_path / "log", log_format="json")
    with bound(run_id="r1", target="t"):
        event(LOG, logging.INFO, "fine", "all is well", rows=3)
    (line,) = lines_of(tmp_path / "log")
    assert (line["run_id"], line["target"], line["mode"], line["data"]) == ("r1", "t", None, {"rows": 3})
    assert stderr.getvalue() == ""
    (tmp_path / "log").rename(tmp_path / "log.1")
    event(LOG, logging.INFO, "after", "it was rotated")
    assert [one["event"] for one in lines_of(tmp_path / "log")] == ["after"]


def test_a_file_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentRefused, match="log file"):
        configure(load_settings(log_file=tmp_path / "absent" / "log"))


def test_py4j_writes_no_traceback_of_an_interruption(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    configured(monkeypatch)
    root, broken, interrupted = logging.getLogger(), BrokenPipeError(32, "Broken pipe"), KeyboardInterrupt()
    root.error("Exception while sending command.", exc_info=broken)
    root.error("KeyboardInterrupt while sending command.", exc_info=interrupted)
    broken.__context__ = interrupted
    root.error("Exception while sending command.", exc_info=broken)
    assert [one.getMessage() for one in caplog.records] == ["Exception while sending command."]


def test_configuring_again_writes_no_line_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch)
    stderr = configured(monkeypatch)
    event(LOG, logging.WARNING, "untold", "look here")
    assert len(stderr.getvalue().splitlines()) == 1


def test_text_has_run_and_chunk_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = configured(monkeypatch)
    with bound(run_id="r1", chunk_id="2012-01"):
        event(LOG, logging.WARNING, "untold", "two\nlines")
    assert stderr.getvalue().endswith("WARNING r1 2012-01: two lines\n")


def test_no_password_of_a_url_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = configured(monkeypatch)
    event(LOG, logging.WARNING, "untold", "postgresql://backfill:p4ss@db.example.com/x does not answer")
    assert "p4ss" not in stderr.getvalue()
    assert without_passwords("postgresql://backfill:p4ss@db/x") == "postgresql://backfill:***@db/x"
    assert without_passwords("at 12:30, ada@example.com") == "at 12:30, ada@example.com"


def test_only_known_fields_are_bound_and_each_thread_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = configured(monkeypatch)
    with pytest.raises(TypeError, match="colour"), bound(colour="red"):
        pass
    with bound(run_id="mine"):
        other = threading.Thread(target=lambda: event(LOG, logging.WARNING, "untold", "theirs"))
        other.start()
        other.join()
        event(LOG, logging.WARNING, "untold", "mine")
    said = stderr.getvalue().splitlines()
    assert "-: theirs" in said[0]
    assert "mine: mine" in said[1]


def test_the_log_of_a_dagster_run_has_the_warnings_as_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    configured(monkeypatch)
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    run = logging.getLogger("of a dagster run")
    run.propagate = False
    run.setLevel(logging.DEBUG)
    run.addHandler(handler)
    with logs.also_to(run), bound(run_id="r1", chunk_id="2012-01"):
        event(LOG, logging.WARNING, "chunk_failed", "10 rows, 100% of them", told=True)
        event(LOG, logging.INFO, "detail", "not this")
    event(LOG, logging.WARNING, "after", "nor this")
    assert heard == ["WARNING 2012-01: 10 rows, 100% of them"]


def test_json_on_stdout_stays_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path))
    monkeypatch.setenv("BACKFILL_LOG_LEVEL", "DEBUG")
    monkeypatch.setenv("BACKFILL_LOG_FORMAT", "json")
    with declared():
        platform = opened(tmp_path)
        initialise(platform)
        plan_run(platform, manifest("planned", REPLACE, SCOPE))
        closed(platform)
        found = CliRunner().invoke(cli, ["doctor", "--json"], catch_exceptions=False)
    assert json.loads(found.stdout)["repaired"] == []
