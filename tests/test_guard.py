"""Attacks on the served UI: by pages of other sites, by viewers, by strangers; on the ports and through a real nginx.

What counts is the effect, not the answer: what Dagster has recorded is the same before and after. The same attacks on
Dagster's own webserver, without the guard, show that they are attacks.
"""

from __future__ import annotations

import asyncio
import html
import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import dagster as dg
import dagster_webserver
import pytest
from browserless import NAME, Answer, Way, basic, missing_for_nginx, nginx, to_port, to_tls_port
from dagster._core.definitions.selector import ScheduleSelector
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._scheduler.scheduler import launch_scheduled_runs
from dagster_graphql.schema import create_schema
from dagster_webserver.app import create_app_from_workspace_process_context
from graphql import get_named_type, parse
from servers import free_port
from support import at_once
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect as websocket
from worlds import World, make_world

from backfill_assets.defs.launch import instance_at
from backfill_assets.defs.launched_by import RUN_TAG, STOP_TAG
from backfill_assets.defs.staging import backfill_partitions
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.ui.graphql_requests import mutations_of
from backfill_assets.ui.guard import MAX_BODY, Door, Guard, Message, Receive, Role, Scope, Send
from backfill_assets.ui.mutations import BY_DRY_RUN, FORBIDDEN_MUTATIONS, OPERATOR_MUTATIONS
from backfill_assets.ui.pages import make_pages
from backfill_assets.ui.serving import (  # fmt: skip
    USER_TAG,
    Listener,
    _run,
    _stamping,
    _Stopping,
    guarded,
    listeners_of,
    noted_in,
    socket_folder,
)

ADDRESS = f"https://{NAME}"
USERS = {"olga": "an operator's", "victor": "a viewer's"}
TARGET = ["silver", "case_sla_daily"]
KEYS = backfill_partitions(CASE_SLA_DAILY).name
SENSOR = "live_silver_case_sla_daily_on_new_source"
SCHEDULE = "live_silver_case_sla_daily_daily"
PLACE = 'repositoryName: "__repository__", repositoryLocationName: "backfill_assets"'
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "backfill_assets"}
JSON = ("Content-Type", "application/json")
_numbers = itertools.count(1)


@dataclass
class Served:
    """The doors of one server, and what Dagster has recorded."""

    world: World
    instance: dg.DagsterInstance
    context: WorkspaceProcessContext
    ways: dict[str, Way] = field(default_factory=dict)

    def way(self, name: str) -> Way:
        if name not in self.ways:
            pytest.skip(f"nothing is asked through nginx: {missing_for_nginx()}")
        return self.ways[name]

    def recorded(self) -> dict[str, Any]:
        """Everything that a mutation could change."""
        storage, key = self.instance.event_log_storage, dg.AssetKey(TARGET)
        records = dg.AssetRecordsFilter(asset_key=key)
        check = dg.AssetCheckKey(key, "chunk_rules")
        return {
            "runs": sorted((run.run_id, run.status) for run in self.instance.get_runs()),
            "launches": sorted((one.backfill_id, one.status) for one in self.instance.get_backfills()),
            "keys": sorted(self.instance.get_dynamic_partitions(KEYS)),
            "materialised": len(self.instance.fetch_materializations(records, limit=1000).records),
            "observed": len(self.instance.fetch_observations(records, limit=1000).records),
            "checked": len(storage.get_asset_check_execution_history(check, limit=1000)),
            "sensors": sorted((s.instigator_name, s.status) for s in self.instance.all_instigator_state()),
            "limits": sorted(storage.get_concurrency_keys()),
            "runs of ours": sorted((run.run_id, run.state) for run in self.world.platform.ledger.runs()),
        }


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server with all its doors: two ports, two sockets with nginx before them, and Dagster without a guard."""
    folder = tmp_path_factory.mktemp("guard")
    world = make_world(folder / "home", cases=20)
    world.announced(world.manifest("offered"))
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        settings = world.platform.settings
        patch.setenv("BACKFILL_HOME", str(world.home))
        patch.setenv("DAGSTER_HOME", str(settings.dagster_home))
        instance = stack.enter_context(instance_at(settings))
        instance.add_run(dg.DagsterRun(job_name="seeded", run_id="00000000-0000-4000-8000-000000000001"))
        instance.report_runless_asset_event(dg.AssetMaterialization(TARGET))
        code = ModuleTarget("backfill_assets.definitions", None, None, "backfill_assets")
        context = stack.enter_context(WorkspaceProcessContext(instance, code))
        pages = make_pages(world.platform.ledger, world.platform.evidence)
        operator, viewer, bare = free_port(), free_port(), free_port()
        doors = [
            *listeners_of(settings, port=operator, read_only=False, behind=""),
            *listeners_of(settings, port=viewer, read_only=True, behind=""),
            *listeners_of(settings, port=0, read_only=False, behind=ADDRESS),
        ]
        note = noted_in(folder / "mutations.jsonl")
        stopped = world.platform.ledger.stops.known
        apps = [(guarded(context, pages, door.door, note, stopped), door.open()) for door in doors]
        apps.append((create_app_from_workspace_process_context(context), Listener(Door(Role.OPERATOR), bare).open()))
        served = Served(world, instance, context)
        for name, port in (("operator", operator), ("viewer", viewer), ("unguarded", bare)):
            served.ways[name] = Way(name, to_port(port), f"127.0.0.1:{port}", f"http://127.0.0.1:{port}")
        if not missing_for_nginx():
            port, certificate = stack.enter_context(nginx(folder / "nginx", socket_folder(settings), USERS, ["olga"]))
            to = to_tls_port(port, certificate)
            for name, user in (("nginx operator", "olga"), ("nginx viewer", "victor")):
                served.ways[name] = Way(name, to, NAME, ADDRESS, (basic(user, USERS[user]),))
            served.ways["nginx stranger"] = Way("nginx stranger", to, NAME, ADDRESS)
        stopping = _Stopping()
        serving = threading.Thread(target=lambda: asyncio.run(_run(apps, [], stopping)))
        serving.start()
        stack.callback(serving.join)
        stack.callback(lambda: setattr(stopping, "now", True))
        _until(lambda: served.ways["operator"].ask("/server_info", method="GET").status == 200)
        yield served


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- what is attempted ------------------------------------------------------------------------------------------------


def mutation(name: str) -> str:
    """Return a mutation that would change something, as a document without variables."""
    number = next(_numbers)
    place = 'repositoryName: "__repository__", repositoryLocationName: "backfill_assets"'
    sensor = f'sensorSelector: {{{place}, sensorName: "{SENSOR}"}}'
    asset = '{path: ["silver", "case_sla_daily"]}'
    arguments = {
        "addDynamicPartition": f'partitionsDefName: "{KEYS}", partitionKey: "k{number}", repositorySelector: {{{place}}}',
        "deleteDynamicPartitions": f'partitionsDefName: "{KEYS}", partitionKeys: ["offered"], repositorySelector: {{{place}}}',
        "launchPartitionBackfill": f'backfillParams: {{assetSelection: [{asset}], partitionNames: ["offered|2010-01"], title: "{number}"}}',
        "launchRun": f'executionParams: {{selector: {{{place}, jobName: "publish_silver_case_sla_daily"}}, '
        'executionMetadata: {tags: [{key: "dagster/partition", value: "offered"}]}}',
        "startSensor": sensor,
        "setSensorCursor": f'{sensor}, cursor: "{number}"',
        "sensorDryRun": f'selectorData: {{{place}, sensorName: "{SENSOR}"}}, cursor: null',
        "wipeAssets": f"assetPartitionRanges: [{{assetKey: {asset}}}]",
        "reportRunlessAssetEvents": f"eventParams: {{eventType: ASSET_MATERIALIZATION, assetKey: {asset}}}",
        "reportAssetCheckEvaluations": f'eventParams: {{assetKey: {asset}, checkName: "chunk_rules", passed: true}}',
        "deleteRun": 'runId: "00000000-0000-4000-8000-000000000001"',
        "terminateRuns": 'runIds: ["00000000-0000-4000-8000-000000000001"]',
        "setConcurrencyLimit": f'concurrencyKey: "c{number}", limit: 1',
        "shutdownRepositoryLocation": 'repositoryLocationName: "backfill_assets"',
        "reloadWorkspace": "",
    }[name]
    document = f"{name}({arguments})" if arguments else name
    return document if name == "setConcurrencyLimit" else f"{document} {{ __typename }}"


def text_of(name: str) -> str:
    return f"mutation {{ {mutation(name)} }}"


def request_of(name: str) -> str:
    return json.dumps({"query": text_of(name)})


START_PAGE = b'<!DOCTYPE html><html lang="en"><head>'
"""What Dagster answers with to any GET that it knows no other answer to."""
Attack = Callable[[Way], Answer]
ADD = "addDynamicPartition"
EVIL = ("Origin", "https://evil.example")


def by_page(*, body: str = "json", headers: Sequence[tuple[str, str]] = (JSON, EVIL), **asked: Any) -> Attack:
    """A page of another site, open in an operator's browser, which adds what it knows of the operator."""

    def attack(way: Way) -> Answer:
        content = request_of(ADD) if body == "json" else body
        return way.ask(asked.get("target", "/graphql"), content, headers=headers, host=asked.get("host"))

    return attack


def by_get(target: str = "/graphql", method: str = "GET", headers: Sequence[tuple[str, str]] = ()) -> Attack:
    return lambda way: way.ask(f"{target}?query={quote(text_of(ADD))}", method=method, headers=headers)


def form(kind: str, body: str = "") -> Attack:
    """A form, or a script, that a browser sends elsewhere without asking: the query is in the address."""
    return lambda way: way.ask(f"/graphql?query={quote(text_of(ADD))}", body, headers=[("Content-Type", kind)])


CROSS_SITE: dict[str, Attack] = {
    "a link or an image": by_get(),
    "an image on a path with a slash": by_get("/graphql/"),
    "an image on an encoded path": by_get("/%67raphql"),
    "an image on a doubled slash": by_get("//graphql"),
    "an image, whatever it accepts": by_get(headers=[("Accept", "image/*")]),
    "a GET that says it is a POST": by_get(headers=[("X-HTTP-Method-Override", "POST")]),
    "a HEAD": by_get(method="HEAD"),
    "a GET with variables": lambda way: way.ask(
        "/graphql?query="
        + quote(f"mutation($k: String!) {{ {mutation(ADD).replace(f'k{next(_numbers) - 1}', 'x')} }}")
        + "&variables="
        + quote('{"k": "x"}'),
        method="GET",
    ),
    "a form, URL encoded": form("application/x-www-form-urlencoded", "a=b"),
    "a form, multipart": form("multipart/form-data; boundary=x", "--x--"),
    "a form, as plain text": form("text/plain", "a=b"),
    "a script without a type": lambda way: way.ask(f"/graphql?query={quote(text_of(ADD))}"),
    "JSON under the name of plain text": by_page(headers=[("Content-Type", "text/plain")]),
    "JSON behind plain text": by_page(headers=[("Content-Type", "text/plain; application/json")]),
    "JSON before plain text": by_page(headers=[("Content-Type", "application/json, text/plain"), EVIL]),
    "two types": by_page(headers=[("Content-Type", "text/plain"), JSON]),
    "GraphQL as a type behind plain text": lambda way: way.ask(
        body=text_of(ADD), headers=[("Content-Type", "text/plain; application/graphql")]
    ),
    "GraphQL as a type": lambda way: way.ask(
        body=text_of(ADD), headers=[("Content-Type", "application/graphql"), EVIL]
    ),
    "JSON from another site": by_page(),
    "JSON from a page without an origin": by_page(headers=[JSON, ("Origin", "null")]),
    "JSON from an empty origin": by_page(headers=[JSON, ("Origin", "")]),
    "JSON from the same host, other port": by_page(headers=[JSON, ("Origin", "http://127.0.0.1:1")]),
    "JSON from a name that begins alike": lambda way: way.ask(
        body=request_of(ADD), headers=[JSON, ("Origin", f"{way.origin}.evil.example")]
    ),
    "JSON from the other scheme": lambda way: way.ask(
        body=request_of(ADD),
        headers=[JSON, ("Origin", way.origin.replace("https:", "ftp:").replace("http:", "https:"))],
    ),
    "JSON with two origins": lambda way: way.ask(body=request_of(ADD), headers=[JSON, EVIL, ("Origin", way.origin)]),
    "JSON that the browser calls cross-site": by_page(headers=[JSON, ("Sec-Fetch-Site", "cross-site")]),
    "JSON that the browser calls same-site": by_page(headers=[JSON, ("Sec-Fetch-Site", "same-site")]),
    "a name that was pointed here": by_page(headers=[JSON, EVIL], host="evil.example"),
    "a name that was pointed here, its own origin": by_page(headers=[JSON, EVIL], host="evil.example:443"),
    "a name that was pointed here, no origin": by_page(headers=[JSON], host="evil.example"),
    "two names": lambda way: way.ask(body=request_of(ADD), headers=[JSON, ("Host", "evil.example")]),
    "no name": by_page(headers=[JSON], host=""),
    "a preflight": by_get(method="OPTIONS", headers=[EVIL, ("Access-Control-Request-Method", "POST")]),
    "a PUT": by_get(method="PUT", headers=[JSON]),
    "a report without a body": lambda way: way.ask(f"/report_asset_materialization/{'/'.join(TARGET)}"),
    "a report of an observation": lambda way: way.ask(f"/report_asset_observation/{'/'.join(TARGET)}?data_version=1"),
    "a report of a check": lambda way: way.ask(
        f"/report_asset_check/{'/'.join(TARGET)}?check_name=chunk_rules&passed=true"
    ),
    "two accepted types": by_get(headers=[("Accept", "application/json"), ("Accept", "text/html")]),
    "two accepted types, the page first": by_get(headers=[("Accept", "text/html"), ("Accept", "application/json")]),
    "a HEAD that accepts two types": by_get(
        method="HEAD", headers=[("Accept", "application/json"), ("Accept", "text/html")]
    ),
    "a report on an encoded path": lambda way: way.ask(f"/%72eport_asset_materialization/{'/'.join(TARGET)}"),
}
"""What a page of another site can make a browser send; and more than it can."""


def as_json(query: str, **more: Any) -> Attack:
    return lambda way: way.ask(body=json.dumps({"query": query, **more}), headers=[JSON, ("Origin", way.origin)])


def asking(name: str) -> Attack:
    return lambda way: way.ask(body=request_of(name), headers=[JSON, ("Origin", way.origin)])


MUTATIONS = (
    "addDynamicPartition", "deleteDynamicPartitions", "launchPartitionBackfill", "launchRun", "startSensor",
    "setSensorCursor", "sensorDryRun", "wipeAssets", "reportRunlessAssetEvents", "reportAssetCheckEvaluations",
    "deleteRun", "terminateRuns", "setConcurrencyLimit", "shutdownRepositoryLocation", "reloadWorkspace",
)  # fmt: skip
LIMIT = 'setConcurrencyLimit(concurrencyKey: "by-trick", limit: 1)'
WITHOUT_ROLE: dict[str, Attack] = {
    **{name: asking(name) for name in MUTATIONS},
    "under another name": as_json(f"mutation {{ version: {LIMIT} }}"),
    "in a fragment": as_json(f"mutation {{ ...F }} fragment F on Mutation {{ {LIMIT} }}"),
    "in an inline fragment": as_json(f"mutation {{ ... on Mutation {{ {LIMIT} }} }}"),
    "in fragments that go round": as_json(
        f"mutation {{ ...A }} fragment A on Mutation {{ ...B {LIMIT} }} fragment B on Mutation {{ ...A }}"
    ),
    "as the second of two operations": as_json(f"query A {{ version }} mutation B {{ {LIMIT} }}", operationName="B"),
    "behind a directive": as_json(f"mutation {{ {LIMIT} @include(if: true) }}"),
    "behind a comment": as_json(f"# query\n\ufeffmutation {{ {LIMIT} }}"),
    "under a key given twice": lambda way: way.ask(
        body='{"query": "{ version }", "query": ' + json.dumps(f"mutation {{ {LIMIT} }}") + "}",
        headers=[JSON, ("Origin", way.origin)],
    ),
    "in a batch": lambda way: way.ask(
        body=json.dumps([{"query": f"mutation {{ {LIMIT} }}"}]), headers=[JSON, ("Origin", way.origin)]
    ),
    "in another encoding": lambda way: way.ask(
        body=json.dumps({"query": f"mutation {{ {LIMIT} }}"}).encode("utf-16"), headers=[JSON, ("Origin", way.origin)]
    ),
    "with the query in the address, too": lambda way: way.ask(
        f"/graphql?query={quote(f'mutation {{ {LIMIT} }}')}",
        json.dumps({"query": f"mutation {{ {LIMIT} }}"}),
        headers=[JSON, ("Origin", way.origin)],
    ),
    "as somebody else": lambda way: way.ask(
        body=json.dumps({"query": f"mutation {{ {LIMIT} }}"}),
        headers=[JSON, ("X-Backfill-User", "olga"), ("X-Backfill-Role", "operator"), ("X-Remote-User", "olga")],
    ),
    "compressed": lambda way: way.ask(body=request_of(ADD), headers=[JSON, ("Content-Encoding", "gzip")]),
    "in too large a body": lambda way: way.ask(
        body=json.dumps({"query": f"mutation {{ {LIMIT} }}", "pad": "x" * MAX_BODY}), headers=[JSON]
    ),
    "nested without end": lambda way: way.ask(body='{"query": "{' + "a{" * 200_000 + '"}', headers=[JSON]),
    "a report": lambda way: way.ask(f"/report_asset_materialization/{'/'.join(TARGET)}", "{}", headers=[JSON]),
    "a second request hidden in the first": lambda way: way.send(
        f"POST /graphql HTTP/1.1\r\nHost: {way.host}\r\n".encode()
        + "".join(f"{name}: {value}\r\n" for name, value in way.headers).encode()
        + b"Content-Type: application/json\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        + b"0\r\n\r\nPOST /graphql HTTP/1.1\r\n\r\n"
    ),
}
"""What somebody who may only look could try."""


RESULT = "evaluationResult { skipReason runRequests { runKey } }"
A_SCHEDULE = f'scheduleOrError(scheduleSelector: {{{PLACE}, scheduleName: "{SCHEDULE}"}})'
A_TICK = f"futureTick(tickTimestamp: 1700000000) {{ {RESULT} }}"
A_SENSOR = f'sensorOrError(sensorSelector: {{{PLACE}, sensorName: "withdraw_dead_runs"}})'
DRY_RUNS = {
    SCHEDULE: f'scheduleDryRun(selectorData: {{{PLACE}, scheduleName: "{SCHEDULE}"}}, timestamp: 1700000000)',
    SENSOR: f'sensorDryRun(selectorData: {{{PLACE}, sensorName: "{SENSOR}"}}, cursor: null)',
    "withdraw_dead_runs": f'sensorDryRun(selectorData: {{{PLACE}, sensorName: "withdraw_dead_runs"}}, cursor: null)',
    "end_lost_runs": f'sensorDryRun(selectorData: {{{PLACE}, sensorName: "end_lost_runs"}}, cursor: null)',
    "tell_changes": f'sensorDryRun(selectorData: {{{PLACE}, sensorName: "tell_changes"}}, cursor: null)',
}
EVALUATIONS = {
    "the tick of a schedule": f"{{ {A_SCHEDULE} {{ ... on Schedule {{ {A_TICK} }} }} }}",
    "the ticks of a schedule": f"{{ {A_SCHEDULE} {{ ... on Schedule {{ futureTicks(limit: 1) {{ results {{ {RESULT} }} }} }} }} }}",
    "the next tick of a sensor": f"{{ {A_SENSOR} {{ ... on Sensor {{ nextTick {{ {RESULT} }} }} }} }}",
    "the next tick of a state": f"{{ {A_SENSOR} {{ ... on Sensor {{ sensorState {{ nextTick {{ {RESULT} }} }} }} }} }}",
    "under another name": f"{{ {A_SCHEDULE} {{ ... on Schedule {{ {A_TICK.replace('evaluation', 'version: evaluation')} }} }} }}",
    "in fragments": f"{{ ...Q }} fragment Q on Query {{ {A_SCHEDULE} {{ ...S }} }} fragment S on Schedule {{ {A_TICK} }}",
    "beside a query that runs nothing": f"query A {{ version }} query B {{ {A_SCHEDULE} {{ ... on Schedule {{ {A_TICK} }} }} }}",
    "with what a mutation answers": f"mutation {{ startSensor(sensorSelector: {{{PLACE}, "
    f'sensorName: "withdraw_dead_runs"}}) {{ ... on Sensor {{ nextTick {{ {RESULT} }} }} }} }}',
    "beside a dry run": f"mutation A {{ {DRY_RUNS[SENSOR]} {{ ...T }} }} "
    f"query B {{ {A_SCHEDULE} {{ ... on Schedule {{ futureTick(tickTimestamp: 1700000000) {{ ...T }} }} }} }} "
    f"fragment T on DryRunInstigationTick {{ {RESULT} }}",
    "as a subscription": f"subscription {{ x {{ {RESULT} }} }}",
}
"""What runs the body of a schedule or a sensor without saying that it changes anything."""


def refused(answer: Answer) -> bool:
    return answer.status == 0 or 400 <= answer.status < 500 or START_PAGE in answer.body


def unchanged(served: Served, way: Way, attack: Attack) -> Answer:
    before = served.recorded()
    answer = attack(way)
    assert served.recorded() == before
    return answer


@pytest.mark.parametrize("way", ["operator", "nginx operator"])
@pytest.mark.parametrize("attack", CROSS_SITE)
def test_nothing_is_changed_by_a_page_of_another_site(served: Served, way: str, attack: str) -> None:
    assert refused(unchanged(served, served.way(way), CROSS_SITE[attack]))


@pytest.mark.parametrize("way", ["viewer", "nginx viewer"])
@pytest.mark.parametrize("attack", WITHOUT_ROLE)
def test_nothing_is_changed_by_a_viewer(served: Served, way: str, attack: str) -> None:
    assert refused(unchanged(served, served.way(way), WITHOUT_ROLE[attack]))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (basic("olga", "a guess"),),
        (basic("nobody", "x"),),
        (basic("", ""),),
        (("X-Backfill-User", "olga"),),
        (("X-Backfill-User", "olga"), ("X-Forwarded-User", "olga"), ("X-Forwarded-For", "127.0.0.1")),
    ],
    ids=["unnamed", "wrong password", "unknown name", "empty name", "name in a header", "names in headers"],
)
def test_a_stranger_neither_changes_nor_sees_anything(served: Served, headers: tuple[tuple[str, str], ...]) -> None:
    way = served.way("nginx stranger")
    before = served.recorded()
    assert way.ask(body=request_of("setConcurrencyLimit"), headers=[JSON, *headers]).status == 401
    assert way.ask("/backfill/offered", method="GET", headers=headers).status == 401
    assert served.recorded() == before


@pytest.mark.parametrize("name", sorted(FORBIDDEN_MUTATIONS))
def test_history_is_neither_forged_nor_deleted_by_an_operator(served: Served, name: str) -> None:
    if name == "deletePipelineRun":
        attack = as_json('mutation { deletePipelineRun(runId: "00000000-0000-4000-8000-000000000001") { __typename } }')
    else:
        attack = asking(name)
    answer = unchanged(served, served.way("operator"), attack)
    told = json.loads(answer.body)
    assert answer.status == 403
    assert set(told["error"]) == {"what", "rule", "whatToDo"}
    assert told["errors"][0]["message"]


@pytest.mark.parametrize("attack", ["a link or an image", "a form, as plain text", "JSON behind plain text",
    "a script without a type", "a name that was pointed here", "a report without a body", "a report of a check",
    "JSON from another site", "two accepted types"])  # fmt: skip
def test_dagster_itself_executes_what_the_guard_refuses(served: Served, attack: str) -> None:
    before = served.recorded()
    answer = CROSS_SITE[attack](served.way("unguarded"))
    assert answer.status == 200
    assert served.recorded() != before


@pytest.mark.parametrize("way", ["operator", "viewer", "nginx operator", "nginx viewer"])
@pytest.mark.parametrize("query", EVALUATIONS)
def test_looking_runs_the_body_of_no_schedule_and_no_sensor(served: Served, way: str, query: str) -> None:
    answer = unchanged(served, served.way(way), as_json(EVALUATIONS[query], operationName=None))
    assert answer.status == 403
    if "mutation" not in EVALUATIONS[query] or "operator" in way:
        told = json.loads(answer.body)["error"]
        assert told["what"] == "'evaluationResult' in a query"
        assert "who looks, runs nothing" in told["rule"]
        assert "dry run" in told["whatToDo"]
    assert over_websocket(served, way, served.way(way).origin, EVALUATIONS[query]) == "closed"


def test_dagster_itself_runs_the_body_of_a_schedule_for_a_query(served: Served) -> None:
    answer = unchanged(served, served.way("unguarded"), as_json(EVALUATIONS["the tick of a schedule"]))
    assert json.loads(answer.body)["data"]["scheduleOrError"]["futureTick"]["evaluationResult"]["skipReason"]


@pytest.mark.parametrize("name", DRY_RUNS)
def test_an_operator_tries_out_what_only_a_tick_does(served: Served, name: str) -> None:
    (mutation_name,) = {"scheduleDryRun"} if name == SCHEDULE else {"sensorDryRun"}
    text = f"mutation {{ {DRY_RUNS[name]} {{ ...T }} }} fragment T on DryRunInstigationTick {{ {RESULT} }}"
    answer = unchanged(served, served.way("operator"), as_json(text))
    found = json.loads(answer.body)["data"][mutation_name]["evaluationResult"]
    assert found["skipReason"].startswith("nothing was done: only a tick of Dagster's daemon acts. ")
    assert not found["runRequests"]
    assert unchanged(served, served.way("viewer"), as_json(text)).status == 403


def test_a_tick_of_dagsters_daemon_is_known_as_one(served: Served) -> None:
    """What Dagster calls the log of a tick, and of a dry run, is not documented: this notices when it changes."""
    log = logging.getLogger("test")
    name = ScheduleSelector(location_name="backfill_assets", repository_name="__repository__", schedule_name=SCHEDULE)
    schedule = served.context.create_request_context().get_schedule(name)
    served.instance.start_schedule(schedule)
    list(execute_sensor_iteration(served.context, log, None, None))
    for days in (0, 2):
        list(launch_scheduled_runs(served.context, log, datetime.now(UTC) + timedelta(days=days), {}))
    states = {state.instigator_name: state for state in served.instance.all_instigator_state()}
    for name in ("withdraw_dead_runs", "end_lost_runs", "tell_changes", SCHEDULE):
        (tick, *_) = served.instance.get_ticks(states[name].instigator_origin_id, states[name].selector_id)
        assert tick.status is TickStatus.SKIPPED, tick
        assert "nothing was done: only a tick" not in tick.skip_reason


def test_only_a_dry_run_shows_what_a_body_returns_in_dagsters_schema() -> None:
    types = create_schema().graphql_schema.type_map.values()
    fields = [(one.name, name, get_named_type(f.type).name) for one in types for name, f in getattr(one, "fields", {}).items()
              if hasattr(f, "type")]  # fmt: skip
    assert [(owner, name) for owner, name, returned in fields if returned == "TickEvaluation"] == [
        ("DryRunInstigationTick", "evaluationResult")
    ]
    assert {name for owner, name, _ in fields if owner == "Mutation" and name.endswith("DryRun")} == BY_DRY_RUN


def test_dagsters_own_pages_run_a_body_by_a_dry_run_only() -> None:
    pages = Path(dagster_webserver.__file__).parent / "webapp" / "build"
    operation = re.compile(r"(query|mutation|subscription|fragment) (\w+)")
    asking = set()
    for file in pages.rglob("*.js"):
        text = file.read_text()
        for place in re.finditer(r"evaluationResult \{", text):
            *_, last = operation.finditer(text[: place.start()])
            asking.add(last.groups())
    assert asking == {("mutation", "SensorDryRunMutation"), ("mutation", "ScheduleDryRunMutation")}


def test_every_mutation_of_dagster_is_known_to_be_allowed_or_not() -> None:
    known = set(create_schema().graphql_schema.mutation_type.fields)
    assert known >= OPERATOR_MUTATIONS
    assert known - OPERATOR_MUTATIONS == set(FORBIDDEN_MUTATIONS) | {
        "setAppManagedComponent", "deleteAppManagedComponent", "refreshComponentState"
    }  # fmt: skip


@pytest.mark.parametrize("headers", [[("Accept", "text/html")], [("Accept", "text/html, application/json")]], ids=str)
def test_a_page_that_a_get_opens_asks_nothing(served: Served, headers: list[tuple[str, str]]) -> None:
    answer = unchanged(served, served.way("viewer"), by_get(headers=headers))
    assert answer.status == 200
    assert b"GraphiQL" in answer.body


@pytest.mark.parametrize(
    "name", [b"accept", b"host", b"origin", b"content-type", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"]
)
def test_a_header_that_decides_is_given_once(name: bytes) -> None:
    status, body = answered(b'{"query": "{ version }"}', (name, b"localhost"), (name, b"localhost"))
    assert status == 403
    assert f"several headers {name.decode()}" in body


@pytest.mark.parametrize("path", ["/graphql", "/graphql/"])
def test_what_is_handed_on_of_a_get_is_what_was_judged(path: str) -> None:
    handed_on: list[Scope] = []

    async def app(scope: Scope, _receive: Receive, _send: Send) -> None:
        handed_on.append(scope)

    async def nothing(*_: object) -> Message:
        return {}

    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"query=mutation",
             "headers": [(b"host", b"localhost"), (b"accept", b"text/html")]}  # fmt: skip
    asyncio.run(Guard(app, Door(Role.OPERATOR))(scope, nothing, nothing))
    assert handed_on[0]["query_string"] == b""


@pytest.mark.parametrize("path", ["/notebook", "/dagit/notebook"])
def test_no_notebook_of_the_machine_is_opened(served: Served, path: str) -> None:
    where = f"{path}?repoLocName=backfill_assets&path=/tmp/any.ipynb"
    answer = served.way("viewer").ask(where, method="GET")
    assert answer.status == 404
    assert json.loads(answer.body)["error"]["what"] == "a notebook"


def test_the_mutations_of_a_document_are_found_wherever_they_stand() -> None:
    document = parse("mutation A { x: one ...F } fragment F on Mutation { two ... { three } } query B { four }")
    assert mutations_of(document) == ("one", "two", "three")


def fragments(number: int) -> str:
    chain = " ".join(f"fragment f{one} on Mutation {{ ...f{one + 1} ...f{one + 1} }}" for one in range(number))
    return f"mutation A {{ ...f0 }} {chain} fragment f{number} on Mutation {{ wipe }}"


@pytest.mark.parametrize("number", [60, 2_000])
def test_fragments_neither_hide_a_mutation_nor_take_for_ever_to_be_followed(number: int) -> None:
    with at_once():
        assert mutations_of(parse(fragments(number))) == ("wipe",)


def answered(body: bytes, *headers: tuple[bytes, bytes], address: str = "") -> tuple[int, str]:
    """Return status and body of what a guard answers to a POST; 200 where it hands the request on."""
    sent: list[Message] = []

    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    host = (address.removeprefix("https://") or "localhost").encode()
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/graphql",
        "query_string": b"",
        "headers": [(b"host", host), (b"content-type", b"application/json"), *headers],
    }
    asyncio.run(Guard(app, Door(Role.OPERATOR, address))(scope, receive, send))
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize("levels", [150, 970, 100_000])
@pytest.mark.parametrize("shape", ["[", '{"a":'])
def test_a_request_that_is_nested_too_deeply_is_refused(levels: int, shape: str) -> None:
    end = "]" if shape == "[" else "1}"
    nested = shape * levels + end * (levels if shape == "[" else 1) + ("}" * (levels - 1) if shape != "[" else "")
    status, body = answered(f'{{"query": "{{ version }}", "variables": {nested}}}'.encode())
    assert status == 400
    assert "a query that cannot be read" in body


@pytest.mark.parametrize(
    "more",
    [
        {"variables": "[" * 100_000},
        {"variables": '{"a":' + "[" * 970 + "]" * 970 + "}"},
        {"variables": "no JSON"},
        {"variables": [1]},
        {"variables": 1},
        {"variables": {"a": "\ud800"}},
        {"operationName": "\udc00"},
        {"operationName": {"a": 1}},
    ],
)
def test_what_dagster_could_not_take_beside_the_query_is_refused(more: dict[str, Any]) -> None:
    status, body = answered(json.dumps({"query": "{ version }", **more}).encode())
    assert status == 400
    assert "a query that cannot be read" in body
    assert heard(json.dumps({"type": "start", "id": "1", "payload": {"query": LOGS, **more}})) is None


def test_variables_that_come_as_text_are_judged_and_handed_on_as_what_they_say() -> None:
    status, body = answered(json.dumps({"query": "{ version }", "variables": '{"a": {"b": 1}}'}).encode())
    assert (status, json.loads(body)["variables"]) == (200, {"a": {"b": 1}})


def heard(message: str | bytes) -> str | bytes | None:
    """Return what Dagster hears of a message on a websocket; None where the guard has closed it."""
    told: list[Message] = []

    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        told.append(await receive())

    async def receive() -> Message:
        return {"type": "websocket.receive", "bytes" if isinstance(message, bytes) else "text": message}

    async def send(_message: Message) -> None:
        pass

    scope = {"type": "websocket", "path": "/graphql", "headers": [(b"host", b"localhost")]}
    asyncio.run(Guard(app, Door(Role.OPERATOR))(scope, receive, send))
    return told[0].get("text", told[0].get("bytes"))


@pytest.mark.parametrize(
    ("message", "is_heard"),
    [
        ({"type": "connection_init", "payload": {}}, True),
        (
            {"type": "start", "id": "1", "payload": {"query": "{ version }", "variables": {}, "operationName": None}},
            True,
        ),
        ({"type": "stop", "id": "1"}, True),
        ({"type": "stop", "id": []}, False),
        ({"type": "start", "id": {}, "payload": {"query": "{ version }"}}, False),
        ({"type": "start", "id": "1", "payload": [1]}, False),
        ([{"type": "stop"}], False),
    ],
)
def test_a_websocket_takes_messages_of_its_protocol_only(message: object, is_heard: bool) -> None:
    text = json.dumps(message)
    assert heard(text) == (text if is_heard else None)
    assert heard(text.encode()) is None


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("olga", 200),
        ("Ольга", 200),
        ("Öre", 200),
        ("ol\u200bga", 400),
        ("\u043elga", 400),
        ("olga\u2028", 400),
        ("olga\U00016fe4", 400),
    ],
)
def test_a_name_that_looks_like_another_is_nobodys_in_the_ui(name: str, status: int) -> None:
    header = (b"x-backfill-user", name.encode())
    assert answered(b'{"query": "{ version }"}', header, address="https://b.example.org")[0] == status


# --- websockets -------------------------------------------------------------------------------------------------------

LOGS = "subscription { locationStateChangeEvents { event { message } } }"


def over_websocket(served: Served, way: str, origin: str | None, query: str) -> str:
    """Start an operation on a websocket; return how that went: `open`, `closed` or the status of a refusal."""
    target = served.way(way)
    headers = dict(target.headers)
    url = f"ws://{target.host}/graphql"
    try:
        with websocket(
            url, sock=target.connect(), subprotocols=["graphql-ws"], origin=origin, additional_headers=headers,
            close_timeout=1, compression=None,
        ) as connection:  # fmt: skip
            connection.send(json.dumps({"type": "connection_init"}))
            assert json.loads(connection.recv(10))["type"] == "connection_ack"
            connection.send(json.dumps({"type": "start", "id": "1", "payload": {"query": query}}))
            try:
                return str(json.loads(connection.recv(1)).get("type"))
            except TimeoutError:
                return "open"
    except InvalidStatus as refusal:
        return str(refusal.response.status_code)
    except ConnectionClosed:
        return "closed"


@pytest.mark.parametrize("way", ["operator", "viewer", "nginx operator", "nginx viewer"])
def test_a_websocket_follows_runs_for_the_servers_own_pages_only(served: Served, way: str) -> None:
    before = served.recorded()
    assert over_websocket(served, way, served.way(way).origin, LOGS) == "open"
    assert over_websocket(served, way, "https://evil.example", LOGS) == "403"
    assert over_websocket(served, way, "null", LOGS) == "403"
    assert over_websocket(served, way, served.way(way).origin, f"mutation {{ {LIMIT} }}") == "closed"
    assert served.recorded() == before


def test_dagster_itself_lets_any_page_follow_runs(served: Served) -> None:
    assert over_websocket(served, "unguarded", "https://evil.example", LOGS) == "open"


def test_a_click_leads_from_every_page_of_dagsters_to_the_runs(served: Served) -> None:
    for target in ("/", "/assets"):
        answer = served.way("viewer").ask(target, method="GET", headers=[("Accept", "text/html")])
        assert answer.status == 200
        assert b'<a href="/backfill" ' in answer.body
        assert answer.body.endswith(b"</html>")


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/backfill/proof/evidence/../../../ledger.db",
        "/backfill/proof/evidence/%2e%2e/%2e%2e/ledger.db",
        "/backfill/proof/evidence/..%2f..%2fledger.db",
        "/backfill/proof/evidence//etc/passwd",
        "/backfill/proof/evidence/%2fetc%2fpasswd",
        "/backfill/proof/evidence/away",
        "/backfill/proof/evidence/plan.json%00.html",
        "/backfill/proof/evidence/bundle",
        "/backfill/%2e%2e/evidence/ledger.db",
        "/backfill/..%2f..%2f/evidence/etc/passwd",
        "/logs/../../../../etc/passwd",
        "/logs/%2e%2e/%2e%2e/%2e%2e/dagster.yaml",
        "/logs/..%2f..%2fdagster.yaml",
    ],
)
@pytest.mark.parametrize("way", ["operator", "nginx viewer"])
def test_no_file_is_served_but_evidence(served: Served, way: str, path: str) -> None:
    folder = served.world.home / "evidence" / "proof" / "bundle"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "plan.json").write_text("{}")
        (folder.parent / "away").symlink_to(served.world.home / "ledger.db")
    answer = served.way(way).ask(path, method="GET")
    assert refused(answer)
    assert b"SQLite format" not in answer.body
    assert b"root:" not in answer.body
    assert b"telemetry:" not in answer.body


def test_evidence_opens_as_a_page_of_nowhere(served: Served) -> None:
    folder = served.world.home / "evidence" / "report" / "bundle"
    folder.mkdir(parents=True)
    (folder / "report.html").write_text("<script>parent</script>")
    answer = served.way("viewer").ask("/backfill/report/evidence/bundle/report.html", method="GET")
    assert answer.status == 200
    policies = answer.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policies  # whose origin is null: the guard refuses what it asks
    assert "allow-same-origin" not in policies
    assert "frame-ancestors 'none'" in policies


# --- what must go on working ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["operator", "viewer", "nginx operator", "nginx viewer"])
def test_pages_and_queries_are_answered_with_protecting_headers(served: Served, way: str) -> None:
    door = served.way(way)
    for path in ("/", "/backfill", "/backfill/offered", "/backfill/offered/manifest.json", "/server_info"):
        answer = door.ask(path, method="GET", headers=[("Sec-Fetch-Site", "none")])
        assert answer.status == 200, path
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    linked = [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"), ("Sec-Fetch-Dest", "document")]
    assert door.ask("/backfill/offered", method="GET", headers=linked).status == 200  # a link in a mail
    framed = [*linked[:2], ("Sec-Fetch-Dest", "iframe")]
    assert door.ask("/backfill/offered", method="GET", headers=framed).status == 403
    answer = as_json("{ canBulkTerminate permissions { permission value } }")(door)
    assert answer.status == 200
    allowed = [one["permission"] for one in json.loads(answer.body)["data"]["permissions"] if one["value"]]
    assert bool(allowed) == ("operator" in way)


def test_an_operator_launches_and_the_launch_says_who(served: Served) -> None:
    way = served.way("nginx operator")
    before = {one.backfill_id for one in served.instance.get_backfills()}
    forged = '{key: "backfill/launched_by", value: "victor"}'
    query = text_of("launchPartitionBackfill").replace("title:", f"tags: [{forged}], title:")
    answer = way.ask(
        body=json.dumps({"query": query}),
        headers=[JSON, ("Origin", way.origin), ("Sec-Fetch-Site", "same-origin"), ("X-Backfill-User", "victor")],
    )
    assert answer.status == 200, answer.body
    (launched,) = [one for one in served.instance.get_backfills() if one.backfill_id not in before]
    assert launched.tags[USER_TAG] == "olga"
    assert launched.tags[RUN_TAG] == "offered", "its runs carry it from their beginning"


def test_a_launch_says_which_stop_was_on_record_when_it_was_asked_for_whatever_was_sent(served: Served) -> None:
    on_record = served.world.platform.ledger.stops
    forged = f'{{key: "{STOP_TAG}", value: "999"}}'
    query = text_of("launchPartitionBackfill").replace("title:", f"tags: [{forged}], title:")
    for _ in range(2):
        seen = on_record.known().get("offered", 0)
        before = {one.backfill_id for one in served.instance.get_backfills()}
        assert as_json(query)(served.way("operator")).status == 200
        (launched,) = [one for one in served.instance.get_backfills() if one.backfill_id not in before]
        assert launched.tags[STOP_TAG] == str(seen)
        on_record.stop("offered", by="olga", through="backfill stop")
    assert seen > 0


def test_what_is_launched_is_stamped_whatever_the_instance_has_launched_before() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        before, made = instance.run_domain, _stamping(instance, "olga", {})
        assert made.run_domain is not before
        assert made.run_domain._instance is made


def test_a_name_is_stamped_on_every_run_that_is_launched_whatever_was_sent(served: Served) -> None:
    for door, expected in (("nginx operator", "olga"), ("operator", None)):
        way = served.way(door)
        before = {one.run_id for one in served.instance.get_runs()}
        named = ("backfill/launched_by", "dagster/schedule_name", "dagster/sensor_name")
        forged = ", ".join(f'{{key: "{name}", value: "victor"}}' for name in named)
        query = text_of("launchRun").replace("tags: [", f"tags: [{forged}, ")
        own = [("Origin", way.origin), ("Sec-Fetch-Site", "same-origin")]
        answer = way.ask(body=json.dumps({"query": query}), headers=[JSON, *own])
        assert answer.status == 200, answer.body
        (launched,) = [one for one in served.instance.get_runs() if one.run_id not in before]
        assert launched.tags.get(USER_TAG) == expected
        assert not launched.tags.keys() & {"dagster/schedule_name", "dagster/sensor_name"}, "neither has launched it"
        assert launched.tags["dagster/partition"] == launched.tags[RUN_TAG] == "offered"


FEED = """query($view: RunsFeedView!, $tags: [ExecutionTag!]) {
  runsFeedOrError(limit: 50, view: $view, filter: {tags: $tags}) { ... on RunsFeedConnection { results { id } } }
}"""


def test_the_page_of_a_run_leads_to_every_dagster_run_of_it_also_to_those_of_a_range(served: Served) -> None:
    name = "00000000-0000-4000-8000-0000000000{:02}"
    alone, of_range = name.format(10), name.format(11)
    ours = {RUN_TAG: "offered"}
    served.instance.add_run(dg.DagsterRun(job_name="staging", run_id=alone, tags=ours))
    served.instance.add_run(dg.DagsterRun(job_name="staging", run_id=of_range, tags=ours | {"dagster/backfill": "b"}))
    way = served.way("operator")
    page = way.ask("/backfill/offered", method="GET").body.decode()
    (address,) = re.findall(r"href='([^']+)'>its Dagster runs", page)
    asked = parse_qs(urlsplit(html.unescape(address)).query)
    key, _, value = asked["q[0]"][0].removeprefix("tag:").partition("=")
    variables = {"view": asked["view"][0].upper(), "tags": [{"key": key, "value": value}]}
    answer = json.loads(as_json(FEED, variables=variables)(way).body)
    assert {alone, of_range} <= {one["id"] for one in answer["data"]["runsFeedOrError"]["results"]}


def test_on_a_port_nobody_is_believed_to_be_anybody(served: Served) -> None:
    way = served.way("operator")
    before = {one.backfill_id for one in served.instance.get_backfills()}
    answer = way.ask(body=request_of("launchPartitionBackfill"), headers=[JSON, ("X-Backfill-User", "olga")])
    assert answer.status == 200, answer.body
    (launched,) = [one for one in served.instance.get_backfills() if one.backfill_id not in before]
    assert USER_TAG not in launched.tags


def test_what_was_asked_is_on_record(served: Served, tmp_path: Path) -> None:
    answer = as_json('mutation { setConcurrencyLimit(concurrencyKey: "noted", limit: 1) }')(served.way("operator"))
    assert answer.status == 200
    lines = (served.world.home.parent / "mutations.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    assert (last["role"], last["mutations"], last["user"]) == ("operator", ["setConcurrencyLimit"], "")


def test_dagsters_pages_are_told_what_nobody_may_and_why(served: Served) -> None:
    query = """{ permissions { ...P } workspaceOrError { ... on Workspace { locationEntries { permissions { ...P } } } } }
    fragment P on Permission { permission value disabledReason }"""
    answer = json.loads(as_json(query)(served.way("operator")).body)["data"]
    for permissions in (answer["permissions"], answer["workspaceOrError"]["locationEntries"][0]["permissions"]):
        found = {one["permission"]: one for one in permissions}
        for name in ("edit_dynamic_partitions", "wipe_assets", "delete_pipeline_run", "report_runless_asset_events"):
            assert not found[name]["value"]
            assert len(found[name]["disabledReason"]) > 40
        assert found["launch_partition_backfill"]["value"]
