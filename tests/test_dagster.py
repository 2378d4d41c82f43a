"""As an operator does it: launches over GraphQL as the UI sends them, the daemon, the sensor, the refusals."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import dagster as dg
import pytest
from worlds import SPARK, World, make_world

from backfill_assets.checks import CHUNK_GATE
from backfill_assets.definitions import build_definitions
from backfill_assets.inputs import observations
from backfill_assets.launch import report_inputs, run_chunks, run_publication
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.publish import SENSOR_SECONDS, publication_requests
from backfill_assets.staging import asset_key, backfill_partitions, chunk_partitions, one_run, partition_key
from manifests.errors import InputRefused
from manifests.lifecycle import RunState
from resources.ledger import now

STAGING, PUBLISHED = "silver/case_sla_daily", "silver/case_sla_daily_published"
MONTHS = ("2010-01", "2011-12")


class Server:
    """A real webserver and daemon on an installation."""

    def __init__(self, world: World) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        environment = os.environ | {
            "DAGSTER_HOME": str(world.platform.settings.dagster_home),
            "BACKFILL_HOME": str(world.home),
            "BACKFILL_SPARK": json.dumps(SPARK),
        }
        self.log = (world.home / "server.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backfill_assets.cli", "ui", "--port", str(self.port)],
            env=environment,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": text, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = json.load(answer)
        assert "errors" not in data, data
        return data["data"]

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.log.close()


def until(what: str, condition: Callable[[], Any], seconds: float = 300) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(1)
    raise AssertionError(f"not within {seconds} s: {what}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("dagster") / "home", cases=200)


@pytest.fixture(scope="module")
def server(world: World) -> Iterator[Server]:
    server = Server(world)
    try:

        def answers() -> bool:
            assert server.process.poll() is None, (world.home / "server.log").read_text()[-3000:]
            try:
                return bool(
                    server.query(
                        "{ repositoriesOrError { __typename ... on RepositoryConnection { nodes { name } } } }"
                    )
                )
            except OSError:
                return False

        until("the webserver answers", answers, 120)
        yield server
    finally:
        server.stop()


LAUNCH = """
mutation LaunchPartitionBackfill($backfillParams: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $backfillParams) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}"""
RUNS = """
query($filter: RunsFilter!) { runsOrError(filter: $filter) { ... on Runs { results { runId status jobName } } } }"""
RELAUNCH = """
mutation($parentRunId: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $parentRunId, strategy: FROM_FAILURE}) {
    __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  }
}"""


def launch(server: Server, assets: list[str], keys: list[str]) -> str:
    params = {
        "assetSelection": [{"path": name.split("/")} for name in assets],
        "partitionNames": keys,
        "tags": [],
        "title": "test",
    }
    answer = server.query(LAUNCH, backfillParams=params)["launchPartitionBackfill"]
    assert answer["__typename"] == "LaunchBackfillSuccess", answer
    return answer["backfillId"]


def finished_runs(server: Server, backfill: str) -> list[dict[str, str]]:
    runs = server.query(RUNS, filter={"tags": [{"key": "dagster/backfill", "value": backfill}]})["runsOrError"][
        "results"
    ]
    return runs if runs and all(run["status"] in {"SUCCESS", "FAILURE", "CANCELED"} for run in runs) else []


def all_keys(run_id: str, world: World) -> list[str]:
    return [str(partition_key(run_id, chunk.key)) for chunk in world.platform.ledger.run(run_id).plan.chunks]


def test_a_range_launched_over_graphql_is_published_by_the_sensor_and_a_violated_gate_never_is(
    world: World, server: Server
) -> None:
    ledger = world.platform.ledger
    world.announced(world.manifest("good"))
    world.announced(world.manifest("bad", version="2.4.1", validation={}))  # the penalties' gate will not pass
    stop, seen = threading.Event(), []

    def read() -> None:
        while not stop.wait(0.2):
            rows = world.rows()
            seen.append((*sorted(rows["run_id"].unique()), rows.height))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        good = launch(server, [STAGING], all_keys("good", world))
        bad = launch(server, [STAGING], all_keys("bad", world))
        until("good is published by the sensor", lambda: ledger.run("good").state is RunState.PUBLISHED, 400)
    finally:
        stop.set()
        reader.join()
    rows = sum(chunk.rows or 0 for chunk in ledger.chunks("good"))
    assert {state for state in seen if state} <= {(0,), ("good", rows)}  # nothing in between
    (run,) = until("good's backfill ends", lambda: finished_runs(server, good))  # one Dagster run for 24 chunks
    assert run["status"] == "SUCCESS"
    (failed,) = until("bad's run ends", lambda: finished_runs(server, bad))
    assert ledger.run("bad").state is RunState.FAILED
    assert "payment_breaches_are_penalties" in ledger.run("bad").state_reason
    # by hand, and by re-execution from failure: refused all the same
    by_hand = launch(server, [PUBLISHED], ["bad"])
    (hand,) = until("the publish asset materialised by hand ends", lambda: finished_runs(server, by_hand))
    assert hand["status"] == "FAILURE"
    # the publication again, and the run that staged and gated: its only failed step is what judged the run
    relaunched = [reexecuted(server, hand["runId"]), reexecuted(server, failed["runId"])]
    for run_id in relaunched:
        until("the re-execution ends", lambda run_id=run_id: status_if_ended(server, run_id))
    assert status_if_ended(server, relaunched[0]) == "FAILURE"
    time.sleep(2 * SENSOR_SECONDS)  # the sensor has looked at what the re-executions left
    assert ledger.run("bad").state is RunState.FAILED
    assert len(world.snapshots()) == 1
    assert set(world.rows()["run_id"]) == {"good"}


def reexecuted(server: Server, run_id: str) -> str:
    """Re-execute a Dagster run from failure, as the UI does, and return the new run."""
    again = server.query(RELAUNCH, parentRunId=run_id)["launchRunReexecution"]
    assert again["__typename"] == "LaunchRunSuccess", again
    return str(again["run"]["runId"])


def status_if_ended(server: Server, run_id: str) -> str | None:
    found = server.query(RUNS, filter={"runIds": [run_id]})["runsOrError"]["results"]
    return found[0]["status"] if found[0]["status"] in {"SUCCESS", "FAILURE", "CANCELED"} else None


def test_chunks_and_checks_of_a_range_run_are_seen_per_partition(world: World) -> None:
    record = world.announced(world.manifest("seen"))
    with world.dagster() as instance:
        chunks = [chunk.key for chunk in record.plan.chunks]
        assert run_chunks(world.platform, instance, record, chunks[:3] + chunks[5:7])
        materialized = instance.get_materialized_partitions(asset_key("silver.case_sla_daily"))
        mine = {key for key in materialized if key.startswith("seen|")}
        assert mine == {str(partition_key("seen", chunk)) for chunk in chunks[:3] + chunks[5:7]}
        check = dg.AssetCheckKey(asset_key("silver.case_sla_daily"), CHUNK_GATE)
        history = instance.event_log_storage.get_asset_check_execution_history(check, limit=100)
        evaluated = {
            record.event.dagster_event.event_specific_data.partition: record.status.value
            for record in history
            if record.event and record.event.dagster_event
        }
        assert {key for key in evaluated if key and key.startswith("seen|")} == mine
        assert list(publication_requests(world.platform, CASE_SLA_DAILY)) == []
        assert run_chunks(world.platform, instance, record, chunks)
        requests = list(publication_requests(world.platform, CASE_SLA_DAILY))
        assert [request.partition_key for request in requests] == ["seen"]


def test_the_log_of_a_run_says_what_became_of_each_chunk_and_the_ledger_what_was_read(world: World) -> None:
    scope = world.scope(world.end.replace(month=6, day=1), world.end.replace(month=6, day=30))
    record = world.announced(world.manifest("logged", target=scope))
    with world.dagster() as instance:
        assert run_chunks(world.platform, instance, record, ["2011-06"])
        (run,) = instance.get_runs(dg.RunsFilter(tags={"backfill/run_id": "logged"}))
        said = {entry.user_message: entry.level for entry in instance.all_logs(run.run_id) if not entry.dagster_event}
    (chunk,) = world.platform.ledger.chunks("logged")
    assert said[f"2011-06: staged {chunk.rows:,} rows in 1 file(s) by attempt 1"] == logging.INFO
    assert said[f"2011-06: chunk_rules passed, {chunk.rows:,} rows"] == logging.INFO
    assert any(text.startswith("breach_totals_agree passed: ") for text in said)
    (attempt,) = world.platform.ledger.attempts("logged")
    read, planned = json.loads(attempt["measures"]), record.plan
    assert 0 < read["range_rows"] <= planned.reads.rows
    assert 0 < read["range_files"] <= planned.reads.files
    assert 0 < read["range_bytes"] <= planned.reads.bytes
    assert planned.look_back is not None
    assert 0 < read["look_back_rows"] <= planned.look_back.rows


def test_a_manual_publish_is_not_requested_by_the_sensor(world: World) -> None:
    manifest = world.manifest(
        "manual", safety={"requiresManualPublish": True}, target=world.scope(world.start, world.start.replace(day=31))
    )
    record = world.validated(manifest)
    assert record.state is RunState.VALIDATED
    assert "manual" not in [request.partition_key for request in publication_requests(world.platform, CASE_SLA_DAILY)]


def test_the_publish_asset_refuses_a_run_that_is_not_validated(world: World) -> None:
    record = world.announced(world.manifest("early"))
    before = world.snapshots()
    with world.dagster() as instance:
        assert not run_publication(world.platform, instance, record)
    assert world.snapshots() == before


def test_a_launch_of_an_unapproved_key_is_refused_by_the_body(world: World) -> None:
    with world.dagster() as instance:
        name = backfill_partitions(CASE_SLA_DAILY).name
        instance.add_dynamic_partitions(name, ["typed-by-hand"])  # as the launch dialog lets anybody do
        job = build_definitions(world.platform).resolve_job_def("stage_silver_case_sla_daily")
        result = job.execute_in_process(
            instance=instance, partition_key=str(partition_key("typed-by-hand", "2010-01")), raise_on_error=False
        )
        assert not result.success
    assert world.platform.ledger.find("typed-by-hand") is None


def test_a_launch_that_spans_two_backfills_is_refused() -> None:
    with pytest.raises(InputRefused, match="spans 2 backfill runs"):
        one_run(["a|2010-01", "b|2010-01"], CASE_SLA_DAILY)


def test_lineage_columns_owners_kinds_and_descriptions_are_there_for_people(world: World) -> None:
    graph = build_definitions(world.platform).resolve_asset_graph()
    staging = graph.get(asset_key("silver.case_sla_daily"))
    assert {key.to_user_string() for key in staging.parent_keys} == {
        "bronze/case_events",
        "reference/sla_rules",
        "reference/jurisdiction_calendar",
    }
    assert graph.get(asset_key("silver.case_sla_daily_published")).parent_keys == {staging.key}
    assert staging.kinds == {"pyspark", "iceberg"}
    assert staging.owners == ["team:enforcement-data"]
    columns = staging.metadata["dagster/column_schema"].columns
    assert [column.name for column in columns][:4] == ["case_id", "clock", "jurisdiction", "business_date"]
    assert all(column.description for column in columns)
    lineage = staging.metadata["dagster/column_lineage"].deps_by_column
    assert {dep.column_name for dep in lineage["breach_on"]} >= {"event_at", "length", "is_business_day"}
    keys = chunk_partitions(CASE_SLA_DAILY).get_partition_keys()
    assert set(MONTHS) <= set(keys)
    assert keys[-1] == now().strftime("%Y-%m")  # up to the present month


def test_input_assets_carry_their_snapshot_as_data_version(world: World) -> None:
    changed, known = observations(world.platform, {})
    versions = {event.asset_key.to_user_string(): event.tags["dagster/data_version"] for event in changed}
    lakehouse = world.platform.lakehouse
    assert versions["bronze/case_events"] == str(lakehouse.snapshot_id("bronze.case_events"))
    assert {"reference/sla_rules", "reference/jurisdiction_calendar"} <= set(versions)
    assert observations(world.platform, known)[0] == []  # nothing new since
    with world.dagster() as instance:
        report_inputs(world.platform, instance)
        (record,) = instance.fetch_observations(asset_key("reference.sla_rules"), limit=1).records
        assert record.asset_observation.tags["dagster/data_version"] == versions["reference/sla_rules"]
