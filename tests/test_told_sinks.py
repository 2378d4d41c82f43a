"""What runs tell the sinks that products declare: once, in order, whatever an adapter does, and nobody whom the policy does not allow."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import sink_receivers
from click.testing import CliRunner
from servers import receiving
from small_worlds import copy_of

import backfill_assets as ba
from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.cli.command import cli
from backfill_assets.declarations import finding
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.run_on_record import StepState
from backfill_assets.operations.runbook import TITLES, steps
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.schedules import live
from benchmarks.small_table import (
    PRODUCT,
    READINGS,
    WITH_LIVE,
    closed,
    compute_events,
    declared,
    initialise,
    load_events,
    manifest_data,
    opened,
    planned,
    serves,
    staged,
    take_load_back,
)
from manifests.errors import SinkRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.sinks.caches import ChunkCache, cache_file
from resources.sinks.declared import SinkClass
from resources.sinks.event_logs import events_of, log_file

ROOT = Path(__file__).parents[1]
OWNERS = ("team:metering",)
TOKEN = "s3cr3t-of-the-index"
TOPIC = ba.Sink("meter_events", SinkClass.EVENT_TOPIC, "what runs did", OWNERS, ba.ToEventLog())
HOOK = ba.Sink(
    "meter_hook", SinkClass.NOTIFICATION, "a chat", OWNERS, ba.ToWebhook(token="token"), told_of=("publish",)
)
CACHE = ba.Sink("meter_cache", SinkClass.CACHE, "sums of a month", OWNERS, ba.ToCache())
TABLE = ba.Sink("meter_runs", SinkClass.ANALYTICAL_TABLE, "a row an action", OWNERS, ba.ToTable("audit.meter_runs"))
INDEX = ba.Sink(
    "meter_index",
    SinkClass.SEARCH_INDEX,
    "search over readings",
    OWNERS,
    "sink_receivers:Index",
    isolated=True,
    settings=("folder", "token"),
    time_limit_seconds=1,
)
ALL = (TOPIC, HOOK, CACHE, TABLE, INDEX)


@contextmanager
def serving(*sinks: ba.Sink) -> Iterator[None]:
    """Serve the small table with these sinks, all of which its LIVE policy grants."""
    assert WITH_LIVE.live is not None
    granted = replace(WITH_LIVE.live, sinks=tuple(one.name for one in sinks), side_effects_allowed=True)
    target = replace(WITH_LIVE, live=granted)
    product = replace(PRODUCT, targets=(target,), sinks=sinks)
    with declared(target, compute_events), mock.patch.object(finding, "find_products", serves(product)):
        yield


def with_history(platform: Platform) -> None:
    initialise(platform)
    take_load_back(platform, "events")
    load_events(platform, "base", "2020-01-02", "2020-02-02")
    ran(platform, "history", ("2020-01-01", "2020-02-29"), kind="BOOTSTRAP")
    publish(platform, "history")


def ran(platform: Platform, run_id: str, scope: tuple[str, str], **fields: Any) -> str:
    planned(platform, manifest_from(manifest_data(run_id, "REPLACE_PARTITIONS", scope) | fields))
    assert staged(platform, run_id).state is RunState.VALIDATED
    return run_id


def live_ran(platform: Platform, day: str) -> str:
    load_events(platform, f"load-{day}", day)
    found = live.tick(platform, platform.products.target(READINGS))
    assert found.record is not None, found.why
    assert staged(platform, found.record.run_id).state is RunState.VALIDATED
    return found.record.run_id


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.received.append((self.headers["Authorization"], body))
        self.send_response(server.answer)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with receiving(Receiver) as server:
        yield server


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Any) -> Path:
    """Settings of every sink; returns the folder of what the product's own adapters keep."""
    monkeypatch.delenv("BACKFILL_CONFIG", raising=False)
    monkeypatch.setenv("BACKFILL_SINKS__METER_INDEX__FOLDER", str(tmp_path / "index"))
    monkeypatch.setenv("BACKFILL_SINKS__METER_INDEX__TOKEN", TOKEN)
    monkeypatch.setenv("BACKFILL_SINKS__METER_HOOK__URL", f"http://127.0.0.1:{receiver.server_address[1]}/in")
    monkeypatch.setenv("BACKFILL_SINKS__METER_HOOK__TOKEN", "of-the-hook")
    return tmp_path / "index"


def outcomes(platform: Platform, run_id: str) -> dict[str, list[str]]:
    """Return what became of each sink of a run, once it was published: without what was asked when it was planned."""
    found: dict[str, list[str]] = {}
    for one in platform.ledger.sink_attempts(run_id):
        if one.action != "plan":
            found.setdefault(one.sink, []).append(one.decision)
    return found


def reason_of(platform: Platform, run_id: str, sink: str) -> str:
    return [
        one.reason for one in platform.ledger.sink_attempts(run_id) if (one.sink, one.decision) == (sink, "FAILED")
    ][-1]


# --- a day of LIVE ----------------------------------------------------------------------------------------------------


def test_live_tells_every_class_of_sink_once_and_in_order(told: Path, receiver: Any) -> None:
    with serving(*ALL):
        platform = copy_of(with_history)
        cache = ChunkCache(cache_file(platform.settings.home, "meter_cache"))
        assert cache.keep(READINGS, "2020-03", "sum", b"0", cache.generation(READINGS, "2020-03"))
        run_id = live_ran(platform, "2020-03-03")
        assert outcomes(platform, run_id) == {}  # nobody is told before it is published
        publish(platform, run_id)
        assert outcomes(platform, run_id) == {one.name: ["ALLOWED", "SENT"] for one in ALL}
        publish(platform, run_id)
        assert outcomes(platform, run_id) == {one.name: ["ALLOWED", "SENT"] for one in ALL}
        rollback(platform, run_id)
        reinstate(platform, run_id)

        events = events_of(log_file(platform.settings.home, "meter_events"))
        actions = [one["action"] for one in events]
        assert [one.partition("-")[0] for one in actions] == ["publish", "rollback", "reinstate"]
        assert {(one["runId"], one["table"], one["mode"]) for one in events} == {(run_id, READINGS, "LIVE")}
        assert "2020-03" in events[0]["chunks"]
        snapshot = platform.ledger.landed(run_id)[0].snapshot_id
        assert events[0]["details"]["snapshot_id"] == snapshot

        ((authorization, body),) = receiver.received  # it is told of publications alone
        assert (authorization, body["runId"], body["action"]) == ("Bearer of-the-hook", run_id, "publish")
        assert cache.get(READINGS, "2020-03", "sum") is None
        assert cache.changed_by(READINGS, "2020-03") == (run_id, actions[-1])
        assert sorted(one.name for one in told.iterdir()) == sorted(f"{run_id}~{action}.json" for action in actions)
        rows = platform.lakehouse.table("audit.meter_runs").scan().to_arrow().to_pylist()
        assert sorted((one["run_id"], one["action"]) for one in rows) == sorted((run_id, one) for one in actions)
        assert verify(platform, data=True).everything == []
        assert examine(platform) == []
        closed(platform)


def test_a_row_of_a_products_own_table_is_verified_like_that_of_the_platform(told: Path) -> None:
    with serving(TABLE):
        platform = copy_of(with_history)
        run_id = live_ran(platform, "2020-03-03")
        publish(platform, run_id)
        table = platform.lakehouse.table("audit.meter_runs")
        table.delete("action = 'publish'")
        found = [one.where for one in verify(platform, [run_id], data=True).everything]
        assert any(one.startswith("audit.meter_runs") for one in found), found
        closed(platform)


def test_a_backfill_tells_what_keeps_runs_apart_and_no_other(told: Path) -> None:
    with serving(*ALL):
        platform = copy_of(with_history)
        own = ("meter_cache", "meter_runs", "meter_index")
        ran(platform, "repair", ("2020-02-01", "2020-02-29"), safety={"sinks": list(own)})
        publish(platform, "repair")
        assert outcomes(platform, "repair") == {name: ["ALLOWED_ISOLATED", "SENT"] for name in own}
        assert [one.name for one in told.iterdir()] == ["repair~publish.json"]
        with pytest.raises(SinkRefused, match="for 2 reasons") as refused:
            ran(platform, "other", ("2020-02-01", "2020-02-29"), safety={"sinks": ["meter_events", "meter_hook"]})
        assert "asks for the sink 'meter_events'" in str(refused.value)
        assert "a sink of class NOTIFICATION has side effects, and only LIVE may cause any" in str(refused.value)
        assert platform.ledger.find("other") is None
        assert [one.decision for one in platform.ledger.sink_attempts("other")] == ["REFUSED", "REFUSED"]
        assert not log_file(platform.settings.home, "meter_events").exists()
        closed(platform)


# --- the policy -------------------------------------------------------------------------------------------------------


def test_a_grant_of_a_product_that_is_served_no_more_is_refused_and_on_record(told: Path) -> None:
    with serving(INDEX):
        platform = copy_of(with_history)
        home = platform.settings.home
        ran(platform, "repair", ("2020-02-01", "2020-02-29"), safety={"sinks": ["meter_index"]})
        closed(platform)
    with serving():
        platform = opened(home)
        publish(platform, "repair")
        assert outcomes(platform, "repair") == {"meter_index": ["REFUSED", "FAILED"]}
        assert platform.ledger.run("repair").state is RunState.PUBLISHED
        closed(platform)
    with serving(INDEX):
        platform = opened(home)
        publish(platform, "repair")
        assert outcomes(platform, "repair")["meter_index"][-1] == "SENT"
        closed(platform)


# --- adapters that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [ValueError, OSError, SystemExit, GeneratorExit])
def test_an_adapter_that_raises_is_on_record_without_its_secrets_and_is_told_again(
    told: Path, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(replace(INDEX, adapter="sink_receivers:Raises"), TOPIC):
        platform = copy_of(with_history)
        run_id = live_ran(platform, "2020-03-03")
        monkeypatch.setattr(sink_receivers.Raises, "raised", raised)
        assert publish(platform, run_id).new
        assert platform.ledger.run(run_id).state is RunState.PUBLISHED
        assert outcomes(platform, run_id) == {"meter_index": ["ALLOWED", "FAILED"], "meter_events": ["ALLOWED", "SENT"]}
        said = reason_of(platform, run_id, "meter_index")
        assert f"the sink meter_index raised {raised.__name__}: the index answers 500 to the token ***" in said
        assert TOKEN not in said + capsys.readouterr().err
        monkeypatch.setattr(sink_receivers.Raises, "raised", None)
        assert not publish(platform, run_id).new
        assert outcomes(platform, run_id)["meter_index"] == ["ALLOWED", "FAILED", "ALLOWED", "SENT"]
        assert outcomes(platform, run_id)["meter_events"] == ["ALLOWED", "SENT"]
        assert verify(platform).everything == []
        closed(platform)


@pytest.mark.parametrize("adapter", ["Hangs", "OpensNothing"])
def test_an_adapter_that_hangs_is_left_behind_when_its_time_is_up(told: Path, adapter: str) -> None:
    sink_receivers.Hangs.released.clear()
    with serving(replace(INDEX, adapter=f"sink_receivers:{adapter}"), TOPIC):
        platform = copy_of(with_history)
        run_id = live_ran(platform, "2020-03-03")
        publish(platform, run_id)
        assert outcomes(platform, run_id) == {"meter_index": ["ALLOWED", "FAILED"], "meter_events": ["ALLOWED", "SENT"]}
        assert "took longer than 1 s" in reason_of(platform, run_id, "meter_index")
        assert platform.ledger.run(run_id).state is RunState.PUBLISHED
        sink_receivers.Hangs.released.set()
        publish(platform, run_id)
        assert outcomes(platform, run_id)["meter_index"][-1] == "SENT"
        assert [one.name for one in told.iterdir()] == [f"{run_id}~publish.json"]
        closed(platform)


@pytest.mark.parametrize(
    ("changes", "unset", "said"),
    [
        ({}, "BACKFILL_SINKS__METER_INDEX__TOKEN", "the sink meter_index lacks its setting token"),
        ({"adapter": "sink_receivers:mute"}, "", "makes a dict, which has no `send`"),
        ({"adapter": "sink_receivers:unclassed"}, "", "is of class None, and the sink meter_index of SEARCH_INDEX"),
        ({"adapter": "sink_receivers:Ticket"}, "", "is of class TICKET, and the sink meter_index of SEARCH_INDEX"),
        ({"adapter": "sink_receivers:OF_CLASS"}, "", "is a dict"),
        ({"adapter": "sink_receivers:Gone"}, "", "has no attribute 'Gone'"),
        ({"adapter": "nobody_has_this:Index"}, "", "No module named 'nobody_has_this'"),
    ],
)
def test_an_adapter_that_cannot_be_opened_is_on_record_and_changes_nothing_else(
    told: Path, changes: dict[str, Any], unset: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if unset:
        monkeypatch.delenv(unset)
    with serving(replace(INDEX, **changes), TOPIC):
        platform = copy_of(with_history)
        run_id = live_ran(platform, "2020-03-03")
        publish(platform, run_id)
        assert outcomes(platform, run_id) == {"meter_index": ["ALLOWED", "FAILED"], "meter_events": ["ALLOWED", "SENT"]}
        assert said in reason_of(platform, run_id, "meter_index")
        assert platform.ledger.run(run_id).state is RunState.PUBLISHED
        closed(platform)


def test_a_webhook_that_answers_with_an_error_is_told_again(told: Path, receiver: Any) -> None:
    receiver.answer = 503
    with serving(HOOK):
        platform = copy_of(with_history)
        run_id = live_ran(platform, "2020-03-03")
        publish(platform, run_id)
        assert outcomes(platform, run_id) == {"meter_hook": ["ALLOWED", "FAILED"]}
        receiver.answer = 200
        publish(platform, run_id)
        assert outcomes(platform, run_id)["meter_hook"][-1] == "SENT"
        assert [body["runId"] for _, body in receiver.received] == [run_id, run_id]
        closed(platform)


# --- a process that is killed -----------------------------------------------------------------------------------------

KILLED_HERE = """
import sys
sys.path.insert(0, {tests!r})
import test_told_sinks as it
with it.serving(*it.ALL):
    it.publish(it.opened(it.Path({home!r})), {run_id!r})
"""


@pytest.mark.parametrize("point", ["publishing.committed", "recording.sent"])
def test_a_process_that_is_killed_around_its_sinks_leaves_each_told_once_by_the_same_command(
    told: Path, receiver: Any, point: str
) -> None:
    with serving(*ALL):
        platform = copy_of(with_history)
        home = platform.settings.home
        run_id = live_ran(platform, "2020-03-03")
        closed(platform)
        script = KILLED_HERE.format(tests=str(Path(__file__).parent), home=str(home), run_id=run_id)
        environment = os.environ | {faults.VARIABLE: point, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
        platform = opened(home)
        sent_before = len(events_of(log_file(home, "meter_events")))
        assert sent_before == (1 if point == "recording.sent" else 0)
        for _ in range(2):
            publish(platform, run_id)
        assert platform.ledger.run(run_id).state is RunState.PUBLISHED
        assert {name: said[-1] for name, said in outcomes(platform, run_id).items()} == {
            one.name: "SENT" for one in ALL
        }
        assert [one["action"] for one in events_of(log_file(home, "meter_events"))] == ["publish"]
        assert len(receiver.received) == 1
        assert [one.name for one in told.iterdir()] == [f"{run_id}~publish.json"]
        assert platform.lakehouse.table("audit.meter_runs").scan().to_arrow().num_rows == 1
        assert ChunkCache(cache_file(home, "meter_cache")).generation(READINGS, "2020-03") == 1
        assert verify(platform, data=True).everything == []
        assert examine(platform) == []
        closed(platform)


# --- what people are shown --------------------------------------------------------------------------------------------


def said_by_the_command(home: Path, *words: str) -> Any:
    done = CliRunner(env={"BACKFILL_HOME": str(home)}).invoke(cli, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_command_lists_each_sink_with_what_each_mode_may_do_and_why(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BACKFILL_SINKS__METER_HOOK__URL")
    with serving(*ALL):
        platform = copy_of(with_history)
        closed(platform)
        found = {one["name"]: one for one in said_by_the_command(platform.settings.home, "sinks")}
        text = CliRunner(env={"BACKFILL_HOME": str(platform.settings.home)}).invoke(cli, ["sinks"]).output
    assert list(found) == sorted([*(one.name for one in ALL), "run_audit"])
    hook, index = found["meter_hook"], found["meter_index"]
    assert (hook["sinkClass"], hook["product"], hook["toldOf"]) == ("NOTIFICATION", "readings", ["publish"])
    assert (hook["settings"], index["settings"]) == ({"url": False, "token": True}, {"folder": True, "token": True})
    assert {mode: may["decision"] for mode, may in hook["modes"].items()} == {
        "LIVE": "ALLOWED",
        "BACKFILL": "REFUSED",
        "REPLAY": "REFUSED",
        "DRY_RUN": "REFUSED",
        "RECONCILIATION": "REFUSED",
    }
    assert index["modes"]["REPLAY"]["decision"] == "ALLOWED_ISOLATED"
    assert (
        hook["modes"]["BACKFILL"]["why"] == "a sink of class NOTIFICATION has side effects, and only LIVE may cause any"
    )
    assert (hook["liveOf"], found["run_audit"]["liveOf"], found["run_audit"]["product"]) == ([READINGS], [], "")
    assert "missing here" in text
    assert TOKEN not in json.dumps(found) + text
    assert "of-the-hook" not in json.dumps(found) + text


def test_a_plan_says_whom_the_run_will_tell(told: Path, tmp_path: Path) -> None:
    manifest = manifest_data("repair", "REPLACE_PARTITIONS", ("2020-02-01", "2020-02-29"))
    file = tmp_path / "manifest.json"
    file.write_text(json.dumps(manifest | {"safety": {"sinks": ["meter_index", "run_audit"]}}))
    with serving(*ALL):
        platform = copy_of(with_history)
        closed(platform)
        found = said_by_the_command(platform.settings.home, "plan", str(file), "--preview")
        shown = CliRunner(env={"BACKFILL_HOME": str(platform.settings.home)}).invoke(
            cli, ["plan", str(file), "--preview"]
        )
    assert found["tells"] == [
        "meter_index (SEARCH_INDEX), of publish, rollback, reinstate, accept",
        "run_audit (ANALYTICAL_TABLE), of publish, rollback, reinstate, accept",
    ]
    assert "tells" in shown.output
    assert "meter_index (SEARCH_INDEX)" in shown.output


def test_the_doctor_names_settings_that_live_lacks_and_settings_of_nobody(
    told: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_SINKS__METER_INDXE__TOKEN", "misspelt-and-secret")
    monkeypatch.setenv("BACKFILL_SINKS__METER_INDEX__REGION", "eu")
    with serving(*ALL):
        platform = copy_of(with_history)
        home = platform.settings.home

        def found() -> list[tuple[str, str]]:
            mine = opened(home)
            said = examine(mine)
            closed(mine)
            assert not any("misspelt" in f"{one.what}{one.fix}" for one in said)
            return sorted((one.kind, f"{one.where}: {one.what}") for one in said)

        unknown = [
            (
                "sink-setting-unknown",
                "meter_index: the setting region is set for it, and its settings are folder, token",
            ),
            (
                "sink-setting-unknown",
                "meter_indxe: the setting token is set for it, and no product declares such a sink",
            ),
        ]
        monkeypatch.delenv("BACKFILL_SINKS__METER_HOOK__URL")
        assert found() == unknown  # LIVE does not keep the table here
        publish(platform, live_ran(platform, "2020-03-03"))
        closed(platform)
        missing = f"meter_hook: LIVE of {READINGS} tells it, and its setting url is not set here"
        assert found() == [("sink-setting-missing", missing), *unknown]


def test_the_runbook_waits_for_no_sink_that_is_not_told_of_the_action(told: Path, receiver: Any) -> None:
    with serving(HOOK):
        platform = copy_of(with_history)
        run_id = live_ran(platform, "2020-03-03")
        publish(platform, run_id)
        rollback(platform, run_id)
        tell = steps(platform, run_id)[TITLES.index("Tell")]
        assert (tell.state, len(receiver.received)) == (StepState.DONE, 1)
        closed(platform)
