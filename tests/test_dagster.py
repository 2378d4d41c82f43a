"""What Dagster is told and asks for: partitions, checks, sensors, refusals of the bodies. With a server: test_browser.py."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, cast
from unittest import mock

import dagster as dg
import pytest
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.run_coordinator.base import SubmitRunContext
from dagster._core.run_coordinator.queued_run_coordinator import QueuedRunCoordinator
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import IWorkspaceProcessContext
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from worlds import World, make_world

from backfill_assets.cli.launching import execute
from backfill_assets.coordination import DecisionsFirst
from backfill_assets.defs.build import build_definitions
from backfill_assets.defs.decision_jobs import DECISION_JOBS, stop_run
from backfill_assets.defs.inputs import observations
from backfill_assets.defs.launch import report_inputs, run_chunks, run_publication
from backfill_assets.defs.lost_runs import end_lost_runs
from backfill_assets.defs.publish import publication_requests
from backfill_assets.defs.run_queue import AT_ONCE, LIVE_FIRST, PUBLICATION
from backfill_assets.defs.staging import (
    PROCESS_TAG,
    asset_key,
    backfill_partitions,
    chunk_partitions,
    one_run,
    partition_key,
    stretches,
)
from backfill_assets.installation import Platform
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.review.diff import recorded_diff
from backfill_assets.staging.executor import require_computable
from manifests.chunks import CHUNK_GATE
from manifests.errors import InputRefused, Problem
from manifests.lifecycle import RunState
from resources.ledger.facade import RunRecord
from resources.ledger.transactions import system_clock as now
from resources.processes import this_process

MONTHS = ("2010-01", "2011-12")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("dagster") / "home", cases=200)


def test_chunks_and_checks_of_a_range_run_are_seen_per_partition(world: World) -> None:
    record = world.announced(world.manifest("seen"))
    with world.dagster() as instance:
        chunks = [chunk.key for chunk in record.plan.chunks]
        assert run_chunks(world.platform, instance, record, chunks[:3] + chunks[5:7])
        materialized = instance.get_materialized_partitions(asset_key("silver.case_sla_daily"))
        mine = {key for key in materialized if key.startswith("seen|")}
        assert mine == {str(partition_key("seen", chunk)) for chunk in chunks[:3] + chunks[5:7]}
        told = {
            event.partition: event.metadata["dagster/partition_row_count"].value
            for record_ in instance.fetch_materializations(asset_key("silver.case_sla_daily"), limit=100).records
            if (event := record_.asset_materialization) is not None and event.partition in mine
        }
        rows = {
            str(partition_key(record.run_id, one.chunk)): one.rows
            for one in world.platform.ledger.chunks(record.run_id)
        }
        assert told == {partition: rows[partition] for partition in mine}
        assert len({*told.values()}) > 1
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


def test_months_that_are_not_adjacent_are_launched_each_by_itself_and_a_launch_says_why_it_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = {"chunks": ["2010-02", "2010-03", "2011-01"]}
    record = world.announced(world.with_few_gates().manifest("sample", mode="DRY_RUN", sample=sample, safety={}))
    assert stretches(CASE_SLA_DAILY, record, sample["chunks"]) == [("2010-02", "2010-03"), ("2011-01", "2011-01")]
    assert stretches(CASE_SLA_DAILY, record, ["2010-03", "2011-01"]) == [("2010-03", "2010-03"), ("2011-01", "2011-01")]
    failed: list[str] = []
    with world.dagster() as instance:
        assert execute(world.platform, instance, "sample", (), progress=False, failed=failed.append)
        assert failed == []
        assert world.platform.ledger.run("sample").state is RunState.VALIDATED
        diff = recorded_diff(world.platform, "sample")
        assert diff is not None, "a dry run is looked at by people"
        assert [one.chunk for one in diff.chunks] == sample["chunks"]
        early = world.announced(world.manifest("refused"))
        with monkeypatch.context() as patch:
            patch.setattr("backfill_assets.defs.staging.require_computable", _refused)
            assert not run_chunks(world.platform, instance, early, ["2010-01", "2010-02"], failed=failed.append)
    (why,) = failed
    assert why.startswith("2010-01 to 2010-02: ")
    assert "the disk is full" in why
    assert "make room" in why


def test_launches_build_the_definitions_once_and_hold_the_code_once_before_dagster_does(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, held = list[Platform](), list[str]()

    def build(platform: Platform) -> dg.Definitions:
        built.append(platform)
        return build_definitions(platform)

    def hold(platform: Platform, run_id: str, *given: Any, **named: Any) -> RunRecord:
        held.append(run_id)
        return require_computable(platform, run_id, *given, **named)

    monkeypatch.setattr("backfill_assets.defs.launch._built", [], raising=False)
    monkeypatch.setattr("backfill_assets.defs.launch.build_definitions", build)
    monkeypatch.setattr("backfill_assets.staging.executor.require_computable", hold)
    monkeypatch.setattr("backfill_assets.defs.staging.require_computable", _refused)
    for name in ("first", "second"):
        world.announced(world.manifest(name))
    with world.dagster() as instance:
        for name in ("first", "second"):
            assert not execute(world.platform, instance, name, (), progress=False)
    assert built == [world.platform]
    assert held == ["first", "second"]


def _refused(*_: object, **__: object) -> None:
    raise InputRefused(Problem("the disk is full", "files are written somewhere", "make room"))


def test_decisions_do_not_wait_in_the_queue_of_what_computes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {job.name for job in DECISION_JOBS} == AT_ONCE
    with world.dagster() as instance:
        coordinator = instance.run_coordinator
        assert isinstance(coordinator, DecisionsFirst)
        launched, queued = list[str](), list[str]()
        monkeypatch.setattr(type(instance), "launch_run", lambda _self, run_id, _workspace: launched.append(run_id))
        queue = QueuedRunCoordinator
        monkeypatch.setattr(queue, "submit_run", lambda _self, context: queued.append(context.dagster_run.run_id))
        config = {"ops": {"stop": {"config": {"run_id": "seen", "by": "olga"}}}}
        decided = instance.create_run_for_job(stop_run, run_config=config)
        computed = instance.create_run_for_job(_nothing)
        for run in (decided, computed):
            coordinator.submit_run(SubmitRunContext(run, workspace=None))
            instance.delete_run(run.run_id)
    assert (launched, queued) == ([decided.run_id], [computed.run_id])


def test_live_waits_in_the_queue_for_no_backfill_and_one_backfill_for_the_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Dagster's own daemon, of the settings that an installation begins with."""
    with world.dagster() as instance:
        launcher = type(instance.run_launcher)
        monkeypatch.setattr(launcher, "launch_run", lambda _, context: started.append(context.dagster_run.run_id))
        context = cast("IWorkspaceProcessContext", mock.Mock(instance=instance))
        runs, started = dict[str, str](), list[str]()

        def ask(name: str, tags: Mapping[str, str] = MappingProxyType({})) -> None:
            run = instance.create_run_for_job(_nothing, tags=dict(tags), remote_job_origin=_ORIGIN)
            runs[run.run_id] = name
            instance.run_coordinator.submit_run(SubmitRunContext(run, workspace=cast("Any", None)))

        def begun() -> list[str]:
            list(QueuedRunCoordinatorDaemon(interval_seconds=1).run_iteration(context))
            found = [runs[one] for one in started]
            started.clear()
            return found

        try:
            ask("backfill")
            assert begun() == ["backfill"]
            ask("another backfill")
            assert begun() == []
            ask("live", LIVE_FIRST)
            assert begun() == ["live"]
            ask("publication", PUBLICATION)
            ask("another publication", PUBLICATION)
            assert begun() == ["publication"]
            for run_id, name in runs.items():
                if name in {"backfill", "live", "publication"}:
                    run = instance.get_run_by_id(run_id)
                    assert run is not None
                    instance.report_run_canceled(run)
            ask("live again", LIVE_FIRST)
            assert begun() == ["live again", "another backfill", "another publication"]
        finally:
            for run_id in runs:
                instance.delete_run(run_id)


@dg.job
def _nothing() -> None:
    """Stands for any job."""


_ORIGIN = RemoteJobOrigin(
    repository_origin=RemoteRepositoryOrigin(InProcessCodeLocationOrigin(LoadableTargetOrigin()), "any"),
    job_name="_nothing",
)


def test_a_run_whose_process_was_killed_is_ended_and_no_other(world: World) -> None:
    dead = subprocess.Popen([sys.executable, "-c", "pass"])
    dead.wait()
    host, number, began = this_process().rsplit("/", 2)
    gone = f"{host}/{dead.pid}/1"
    processes = {
        "dead": gone,
        "another since": f"{host}/{number}/1",  # the number of a process is used again
        "alive": this_process(),
        "elsewhere": f"another-host/{dead.pid}/{began}",
        "in another container": f"{host.rpartition('/')[0]}/pid:[1]/{dead.pid}/{began}",
        "of another form": "somebody",
        "unknown": None,
    }
    with world.dagster() as instance:
        runs = {
            name: instance.create_run_for_job(
                _nothing,
                status=dg.DagsterRunStatus.STARTED,
                tags={} if process is None else {PROCESS_TAG: process},
            ).run_id
            for name, process in processes.items()
        }
        again = instance.create_run_for_job(
            _nothing,
            status=dg.DagsterRunStatus.STARTED,
            tags={PROCESS_TAG: gone},  # of its parent, until its own process has said so
            parent_run_id=runs["dead"],
            root_run_id=runs["dead"],
        ).run_id
        assert set(end_lost_runs(instance)) == {runs["dead"], runs["another since"]}
        assert end_lost_runs(instance) == []
        states = {name: instance.get_run_by_id(run_id).status.value for name, run_id in runs.items()}
        assert states == dict.fromkeys(processes, "STARTED") | {"dead": "FAILURE", "another since": "FAILURE"}
        said = [one.message for one in instance.all_logs(runs["dead"])]
        assert any("launch it again, nothing staged is lost" in text for text in said)
        for run_id in (again, *runs.values()):
            instance.delete_run(run_id)


def test_the_ledger_says_what_an_attempt_has_read(world: World) -> None:
    scope = world.scope(world.end.replace(month=6, day=1), world.end.replace(month=6, day=30))
    record = world.announced(world.manifest("logged", target=scope))
    with world.dagster() as instance:
        assert run_chunks(world.platform, instance, record, ["2011-06"])
    (attempt,) = world.platform.ledger.attempts("logged")
    read, planned = json.loads(attempt.measures), record.plan
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
    (failed,) = [event.step_failure_data for event in result.get_step_failure_events()]
    assert failed.user_failure_data is not None  # Dagster heads the failure with it, above any stack
    assert "typed-by-hand" in (failed.user_failure_data.description or "")
    assert failed.user_failure_data.metadata["refusal"].value == "InputRefused"
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
    published = graph.get(asset_key("silver.case_sla_daily_published"))
    late = published.freshness_policy_or_from_metadata
    assert late is not None
    assert late.fail_window.to_timedelta() == timedelta(hours=CASE_SLA_DAILY.live.late_after_hours)
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
