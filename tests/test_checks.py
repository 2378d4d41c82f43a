"""Each gate's asset check has its own verdict, whatever the others say: read from Dagster's records of real runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from small_worlds import copy_of

from backfill_assets import execution
from backfill_assets.defs import build as definitions
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at, run_chunks
from backfill_assets.defs.staging import asset_key, partitions_of, range_tags, staging_job_name
from backfill_assets.installation import Platform
from backfill_assets.operations.pausing import pause
from backfill_assets.staging import executor
from benchmarks import small_table
from manifests.errors import Problem, RunStopped, TransformRefused
from manifests.plan import PlannedChunk
from manifests.reading import manifest_from

KEY = asset_key(small_table.READINGS)
PASSED, FAILED, SKIPPED = "passed", "FAILED", "skipped"


@pytest.fixture
def platform() -> Iterator[Platform]:
    with small_table.declared():
        platform = copy_of(with_instance)
        yield platform
        small_table.closed(platform)


def with_instance(platform: Platform) -> None:
    small_table.initialise(platform)
    initialise_instance(platform.settings)


def launched(platform: Platform, run_id: str, **changes: object) -> tuple[str, dict[str, str], list[str], list[str]]:
    """Stage and gate a run in Dagster; return how it ended, what its checks show, what it logged, and why it failed."""
    chunks, why = changes.pop("chunks", None), list[str]()
    text = small_table.manifest_data(run_id, "REPLACE_PARTITIONS", small_table.SCOPE) | changes
    record = small_table.planned(platform, manifest_from(text))
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, record)
        keys = list(chunks or [chunk.key for chunk in record.plan.chunks])
        run_chunks(platform, instance, record, keys, failed=why.append)
        (run,) = instance.get_runs(limit=1)
        messages = [entry.user_message for entry in instance.all_logs(run.run_id)]
        graph = definitions.build_definitions(platform).resolve_asset_graph()
        shown = {check.name: _shown(instance, check, run) for check in graph.asset_check_keys if check.asset_key == KEY}
    return run.status.value, shown, messages, why


def _shown(instance: dg.DagsterInstance, check: dg.AssetCheckKey, run: dg.DagsterRun) -> str:
    """Return what Dagster's pages show of a check after a run; see `resolve_status` of its execution records."""
    history = instance.event_log_storage.get_asset_check_execution_history(check, limit=100)
    said = set()
    for record in (one for one in history if one.run_id == run.run_id):
        if record.event is None or record.status.value == "PLANNED":
            said.add(FAILED if run.status is dg.DagsterRunStatus.FAILURE else SKIPPED)
            continue
        evaluation = record.event.dagster_event.asset_check_evaluation_data
        said.add(PASSED if evaluation.passed else f"{evaluation.severity.value}: {evaluation.description}")
    assert len({text.partition(":")[0] for text in said}) <= 1  # of each chunk the same
    return min(said, default=SKIPPED)


def test_a_transform_that_is_refused_is_refused_once_and_no_other_stretch_of_chunks_is_tried(
    platform: Platform,
) -> None:
    tried: list[list[str]] = []

    def refused(_run: object, chunks: Sequence[PlannedChunk], *_: object) -> None:
        tried.append([chunk.key for chunk in chunks])
        raise TransformRefused(Problem("it lacks declared columns ['value']", "alike for every chunk", "add it"))

    scope = {"table": small_table.READINGS, "publishRange": {"start": "2020-01-01", "end": "2020-03-31"}}
    with mock.patch.object(executor, "compute_batch", refused):
        ended, *_, why = launched(platform, "misspelt", target=scope, chunks=["2020-01", "2020-03"])
    assert ended == "FAILURE"
    assert tried == [["2020-01"]]
    assert len([text for text in why if "lacks declared columns" in text]) == 1


def test_what_a_stop_has_cut_short_is_no_failure_of_its_own(platform: Platform) -> None:
    def stopped(*_: object) -> None:
        said = Problem("'cut' was stopped by olga", "nothing of it is computed", "resume it")
        raise RunStopped(said) from ValueError("An error occurred while calling o566.parquet.")

    with mock.patch.object(executor, "compute_batch", stopped):
        ended, *_, why = launched(platform, "cut")
    assert (ended, why) == ("CANCELED", [])


def test_one_failed_gate_leaves_the_checks_green_that_passed(platform: Platform) -> None:
    ended, shown, messages, why = launched(platform, "bad", safety={"maxRowsExpected": 5})
    assert ended == "FAILURE"
    assert shown == {
        "all_chunks_staged": PASSED,
        "recomputed_chunks_are_equal": PASSED,
        "chunk_rules": PASSED,
        "figures_are_those_expected": PASSED,
        "old_data_policy": PASSED,
        "rows_within_expected": "ERROR: 52 rows written, limit 5",
    }
    assert why == ["2020-02 to 2020-03: rows_within_expected has not passed: 52 rows written, limit 5"]
    assert not [text for text in messages if "did not yield or return" in text]


def helpers() -> dict[int, str]:
    """The processes that Dagster has started to show what a run prints, with their command lines."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if parent == os.getpid() and ("watch_orphans" in command or command.startswith("tail ")):
                found[int(entry.name)] = command
    return found


def test_ctrl_c_in_a_terminal_ends_none_of_dagsters_helpers_and_shows_nothing_of_them(
    platform: Platform, capfd: pytest.CaptureFixture[str]
) -> None:
    rows_of, seen = small_table.rows_of, list[tuple[set[int], set[int]]]()

    def interrupted(version: str, *days: object) -> list[dict[str, object]]:
        if not seen:
            time.sleep(0.5)  # until Python has started in them
            before = set(helpers())
            for pid in before:
                os.kill(pid, signal.SIGINT)  # as a terminal does with the whole process group
            time.sleep(0.5)
            seen.append((before, set(helpers())))
        return rows_of(version, *days)

    with mock.patch.object(small_table, "rows_of", interrupted):
        ended, *_ = launched(platform, "interrupted")
    (both,) = seen
    assert ended == "SUCCESS"
    assert "Traceback" not in capfd.readouterr().err
    assert len(both[0]) == 4
    assert both[0] == both[1]
    assert helpers() == {}


def test_what_no_gate_has_judged_is_neither_green_nor_an_error(platform: Platform) -> None:
    ended, shown, messages, why = launched(platform, "part", chunks=["2020-02"])
    assert (ended, shown["chunk_rules"], shown["all_chunks_staged"], why) == ("SUCCESS", PASSED, SKIPPED, [])
    assert not [text for text in messages if "did not yield or return" in text]

    def twice(version: str, *days: object) -> list[dict[str, object]]:
        return [row for row in rows_of(version, *days) for _ in range(2)]

    rows_of = small_table.rows_of
    with mock.patch.object(small_table, "rows_of", twice):
        ended, shown, messages, why = launched(platform, "doubled")
    assert ended == "FAILURE"
    assert shown.pop("chunk_rules").startswith("ERROR: unique key")
    assert shown == {
        "all_chunks_staged": "WARN: not judged: not every chunk has passed its rules",
        "figures_are_those_expected": PASSED,
        "old_data_policy": PASSED,
        "rows_within_expected": "WARN: not judged: not every chunk has passed its rules",
        "recomputed_chunks_are_equal": "WARN: not judged: not every chunk has passed its rules",
    }
    assert why == ["2020-02 to 2020-03: chunk_rules has not passed: 2020-02: unique key: 50; 2020-03: unique key: 54"]


def newest(platform: Platform, check: str) -> dict[str | None, str]:
    """Return what Dagster's pages show of a check by partition: its newest execution there, whichever run or act it is of."""
    with instance_at(platform.settings) as instance:
        found: dict[str | None, str] = {}
        log = instance.event_log_storage
        for record in log.get_asset_check_execution_history(dg.AssetCheckKey(KEY, check), limit=200):
            if record.partition in found:
                continue
            told = None if record.event is None else record.event.dagster_event
            if told is None or record.status.value == "PLANNED":
                run = instance.get_run_by_id(record.run_id)
                assert run is not None
                found[record.partition] = FAILED if run.status is dg.DagsterRunStatus.FAILURE else SKIPPED
                continue
            data = told.asset_check_evaluation_data
            found[record.partition] = PASSED if data.passed else f"{data.severity.value}: {data.description}"
    return found


def test_a_launch_that_is_refused_leaves_checks_and_chunks_as_they_were(platform: Platform) -> None:
    assert launched(platform, "good")[0] == "SUCCESS"
    record = platform.ledger.run("good")
    graph = definitions.build_definitions(platform).resolve_asset_graph()
    before = {one.name: newest(platform, one.name) for one in graph.asset_check_keys if one.asset_key == KEY}
    assert set(before["chunk_rules"].values()) == {PASSED}
    with instance_at(platform.settings) as instance:
        why: list[str] = []
        beyond = ("2020-01", "2020-03")  # which the plan begins after
        tags = range_tags("good", *beyond)
        job = definitions.build_definitions(platform).resolve_job_def(
            staging_job_name(platform.products.target(record.target))
        )
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            assert not job.execute_in_process(instance=instance, tags=tags, raise_on_error=False).success
        assert not run_chunks(platform, instance, record, ["2020-02"], failed=why.append)
        partitions = instance.get_materialized_partitions(KEY)
        statuses = instance.get_status_by_partition(KEY, list(partitions), job_partitions(platform))
    assert len(why) == 1
    after = newest(platform, "chunk_rules")
    assert {one: after[one] for one in before["chunk_rules"]} == before["chunk_rules"]
    (never,) = set(after) - set(before["chunk_rules"])
    assert (never, after[never]) == (
        "good|2020-01",
        "WARN: not judged: its gate has seen no rows of it",
    )
    for check in before.keys() - {"chunk_rules"}:
        assert newest(platform, check) == before[check]
    assert {str(one): str(status) for one, status in (statuses or {}).items()} == dict.fromkeys(
        before["chunk_rules"], "AssetPartitionStatus.MATERIALIZED"
    )


def test_a_launch_of_a_paused_run_or_of_two_leaves_checks_as_they_were(platform: Platform) -> None:
    assert launched(platform, "good")[0] == "SUCCESS"
    assert launched(platform, "part", chunks=["2020-02"])[0] == "SUCCESS"
    graph = definitions.build_definitions(platform).resolve_asset_graph()
    before = {one.name: newest(platform, one.name) for one in graph.asset_check_keys if one.asset_key == KEY}
    pause(platform, "part", by="olga", reason="somebody looks at it first", through="a test")
    with instance_at(platform.settings) as instance:
        record = platform.ledger.run("part")
        run_chunks(platform, instance, record, ["2020-02"])
        assert instance.get_runs(limit=1)[0].status is dg.DagsterRunStatus.CANCELED
    after = {one: newest(platform, one) for one in before}
    assert after.pop("chunk_rules") == before.pop("chunk_rules")
    assert {one: set(found.values()) for one, found in after.items()} == {one: {PASSED} for one in before}


def test_what_is_planned_anew_is_green_of_no_older_verdict(platform: Platform) -> None:
    assert launched(platform, "good")[0] == "SUCCESS"
    plan = platform.ledger.run("good").plan
    platform.ledger.replan("good", plan, ["2020-03"], actor="olga", reason="its input has changed")
    execute(platform)
    assert newest(platform, "chunk_rules")[None] == "WARN: 1 of 2 chunks of 'good' pass every rule"
    assert newest(platform, "chunk_rules")["good|2020-02"] == PASSED
    assert newest(platform, "chunk_rules")["good|2020-03"] == "WARN: not judged: its gate has seen no rows of it"
    assert newest(platform, "all_chunks_staged")[None].startswith(
        "WARN: not judged: chunks of the run are computed anew"
    )


@pytest.mark.parametrize("step", ["gate_chunks", "gate_run"])
def test_a_launch_that_is_stopped_while_gates_judge_leaves_checks_as_they_were(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    assert launched(platform, "good")[0] == "SUCCESS"
    graph = definitions.build_definitions(platform).resolve_asset_graph()
    run_level = [one.name for one in graph.asset_check_keys if one.asset_key == KEY and one.name != "chunk_rules"]

    def stopped(*_: object, **__: object) -> None:
        raise RunStopped(Problem("'cut' was stopped by olga", "nothing of it is computed", "resume it"))

    monkeypatch.setattr(execution, step, stopped)
    assert launched(platform, "cut")[0] == "CANCELED"
    assert {one: set(newest(platform, one).values()) for one in run_level} == {one: {PASSED} for one in run_level}
    of_cut = {text for key, text in newest(platform, "chunk_rules").items() if key is not None and "cut" in key}
    assert of_cut == {PASSED if step == "gate_run" else "WARN: not judged: its gate has seen no rows of it"}


def test_a_launch_of_a_part_of_what_is_planned_anew_tells_of_no_older_verdict(platform: Platform) -> None:
    assert launched(platform, "good")[0] == "SUCCESS"
    plan = platform.ledger.run("good").plan
    platform.ledger.replan("good", plan, ["2020-02", "2020-03"], actor="olga", reason="its input has changed")
    with instance_at(platform.settings) as instance:
        assert run_chunks(platform, instance, platform.ledger.run("good"), ["2020-02"])
    assert newest(platform, "all_chunks_staged")[None] == SKIPPED
    assert newest(platform, "chunk_rules")["good|2020-02"] == PASSED


def test_checks_that_show_a_run_whose_chunks_fail_show_no_earlier_run_after_a_launch_that_is_refused(
    platform: Platform,
) -> None:
    assert launched(platform, "good")[0] == "SUCCESS"

    def twice(version: str, *days: object) -> list[dict[str, object]]:
        return [row for row in rows_of(version, *days) for _ in range(2)]

    rows_of = small_table.rows_of
    with mock.patch.object(small_table, "rows_of", twice):
        assert launched(platform, "doubled")[0] == "FAILURE"
    before = newest(platform, "all_chunks_staged")
    assert before == {None: "WARN: not judged: not every chunk has passed its rules"}
    with instance_at(platform.settings) as instance:
        made = definitions.build_definitions(platform)
        job = made.resolve_job_def(staging_job_name(platform.products.target(small_table.READINGS)))
        tags = range_tags("doubled", "2020-01", "2020-03")  # the plan begins after the first
        with dg.partition_loading_context(dynamic_partitions_store=instance):
            assert not job.execute_in_process(instance=instance, tags=tags, raise_on_error=False).success
    assert newest(platform, "all_chunks_staged") == before
    execute(platform)
    assert newest(platform, "all_chunks_staged") == before


def job_partitions(platform: Platform) -> dg.PartitionsDefinition[str]:
    return partitions_of(platform.products.target(small_table.READINGS))


def test_whoever_executes_checks_by_themselves_is_told_again_what_gates_have_found(platform: Platform) -> None:
    graph = definitions.build_definitions(platform).resolve_asset_graph()
    checks = [one.name for one in graph.asset_check_keys if one.asset_key == KEY]
    none = dict.fromkeys(checks, "WARN: not judged: no run has come so far") | {"chunk_rules": SKIPPED}
    assert executed(platform) == (True, none)
    launched(platform, "bad", safety={"maxRowsExpected": 5})
    ended, shown = executed(platform)
    assert not ended, "a gate that blocks has not passed"
    assert shown == {
        "all_chunks_staged": PASSED,
        "recomputed_chunks_are_equal": PASSED,
        "chunk_rules": PASSED,
        "figures_are_those_expected": PASSED,
        "old_data_policy": PASSED,
        "rows_within_expected": "ERROR: 52 rows written, limit 5",
    }
    assert set(newest(platform, "chunk_rules")) == {None, "bad|2020-02", "bad|2020-03"}


def executed(platform: Platform) -> tuple[bool, dict[str, str]]:
    """Execute all checks as the page of an asset's checks does, and return what they show."""
    succeeds, run = execute(platform)
    with instance_at(platform.settings) as instance:
        keys = definitions.build_definitions(platform).resolve_asset_graph().asset_check_keys
        return succeeds, {one.name: _shown(instance, one, run) for one in keys if one.asset_key == KEY}


def execute(platform: Platform) -> tuple[bool, dg.DagsterRun]:
    job = dg.define_asset_job("checks_alone", selection=dg.AssetSelection.checks_for_assets(KEY))
    graph = dg.Definitions.merge(definitions.build_definitions(platform), dg.Definitions(jobs=[job]))
    with instance_at(platform.settings) as instance:
        result = graph.resolve_job_def("checks_alone").execute_in_process(instance=instance, raise_on_error=False)
        (run,) = instance.get_runs(limit=1)
    return result.success, run
