"""Each change of what readers see is on the page of its published asset, once, whoever made it."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result
from small_worlds import copy_of
from support import at_a_tick

from backfill_assets import decisions, faults
from backfill_assets.cli.command import cli
from backfill_assets.defs import build as definitions
from backfill_assets.defs import changes
from backfill_assets.defs import publish as publish_module
from backfill_assets.defs.changes import tell_changes, untold
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at, run_publication
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.staging import asset_key, backfill_partitions
from backfill_assets.defs.untold import dagster_disagreements
from backfill_assets.installation import Platform
from backfill_assets.publication import publisher as publication
from backfill_assets.publication import undoing
from benchmarks import small_table
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import RunState
from resources.ledger import telling
from resources.ledger.facade import Ledger

KEY = asset_key(f"{small_table.READINGS}_published")
SPRING, MARCH = ("2020-01-01", "2020-04-30"), ("2020-03-01", "2020-03-31")


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    with small_table.declared():
        platform = copy_of(with_instance)
        monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
        yield platform
        small_table.closed(platform)


def with_instance(platform: Platform) -> None:
    small_table.initialise(platform)
    initialise_instance(platform.settings)


def validated(platform: Platform, run_id: str, scope: tuple[str, str], version: str = "2") -> None:
    small_table.planned(platform, small_table.manifest(run_id, "REPLACE_PARTITIONS", scope, computed_by=version))
    small_table.staged(platform, run_id)


def say(*words: str) -> Result:
    found = CliRunner().invoke(cli, [*words, "--by", "ops"] if words[0] != "doctor" else list(words))
    assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
    return found


def told(platform: Platform) -> list[tuple[str, str, int]]:
    """Return what the asset says, in order: partition, change, rows that readers see."""
    with instance_at(platform.settings) as instance:
        found = [record.asset_materialization for record in instance.fetch_materializations(KEY, limit=100).records]
    return [
        (one.partition, one.metadata["change"].value, one.metadata["dagster/row_count"].value)
        for one in reversed(found)
        if one is not None
    ]


def rows(platform: Platform) -> int:
    return len(small_table.rows(platform))


def test_publications_rollbacks_and_reinstatements_of_the_command_are_seen_on_the_published_asset(
    platform: Platform,
) -> None:
    validated(platform, "spring", SPRING, "1")
    validated_later = "march"
    expected: list[tuple[str, str, int]] = []
    for words in (("publish", "spring"), ("publish", "march"), ("rollback", "march"), ("reinstate", "march")):
        if words == ("publish", "march"):
            validated(platform, validated_later, MARCH)
        assert say(*words).exit_code == 0
        expected.append((words[1], words[0], rows(platform)))
        assert told(platform) == expected
    assert len({seen for _, _, seen in expected}) > 1
    assert say("publish", "march").exit_code == 0  # said again: nothing was done, and nothing is told
    assert told(platform) == expected
    with instance_at(platform.settings) as instance:
        latest = instance.get_latest_materialization_event(KEY).asset_materialization
        partitions = instance.get_dynamic_partitions(backfill_partitions(small_table.TARGET).name)
        materialized = instance.get_materialized_partitions(KEY)
    assert latest.metadata["run"].value == "march"
    assert latest.metadata["snapshot"].value == str(platform.lakehouse.snapshot_id(small_table.READINGS))
    seen = latest.metadata["what readers see"].value
    assert "| march | 1 | 2020-03 |" in seen
    assert "| spring | 3 | 2020-01 to 2020-04 without 2020-03 |" in seen
    assert set(partitions) >= {"spring", "march"} == materialized


def test_a_dagster_that_cannot_be_reached_hinders_no_publication_and_is_told_later_once(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    home, away = platform.settings.dagster_home, platform.settings.dagster_home.with_name("away")
    shutil.move(home, away)
    said = say("publish", "spring")
    assert said.exit_code == 0
    assert "published" in said.output
    assert "Dagster was not told" in said.output
    assert say("rollback", "spring", "--json").exit_code == 0
    doctor = say("doctor", "--json")
    assert doctor.exit_code == 1
    assert "dagster-unreachable" in doctor.output
    shutil.move(away, home)
    doctor = say("doctor", "--json")
    assert (doctor.exit_code, doctor.output.count('"dagster-not-told"')) == (1, 2)
    assert say("doctor", "--repair").exit_code == 0
    assert [(run, change) for run, change, _ in told(platform)] == [("spring", "publish"), ("spring", "rollback")]
    assert say("doctor", "--repair").exit_code == 0
    assert len(told(platform)) == 2


def test_the_sensor_tells_what_is_missing_in_order_and_several_at_once_tell_it_once(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    publication.publish(platform, "spring")
    undoing.rollback(platform, "spring")
    undoing.reinstate(platform, "spring")

    def tell(_: int) -> None:
        with instance_at(platform.settings) as instance:
            tell_changes(platform, instance)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(tell, range(8)))
    assert [change for _, change, _ in told(platform)] == ["publish", "rollback", "reinstate"]
    sensor = definitions.build_definitions(platform).resolve_sensor_def("tell_changes")
    with instance_at(platform.settings) as instance:
        for cursor in (None, '{"silver.readings": 99}'):
            context = dg.build_sensor_context(instance, cursor=cursor, resources={"platform": platform})
            sensor.evaluate_tick(at_a_tick(context))
    assert len(told(platform)) == 3


def test_what_the_publish_asset_tells_by_itself_is_told_by_nobody_else(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    with instance_at(platform.settings) as instance:
        under_way = instance.create_run_for_job(
            dg.GraphDefinition("publishing").to_job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={"dagster/partition": "spring", RUN_TAG: "spring"},
        )
        publication.publish(platform, "spring")
        assert tell_changes(platform, instance) == []  # somebody publishes it just now, and will tell
        instance.report_run_failed(instance.get_run_by_id(under_way.run_id), "its process was killed")
        (done,) = tell_changes(platform, instance)
        assert (done.run_id, done.action) == ("spring", "publish")
        validated(platform, "march", MARCH)
        undoing.rollback(platform, "spring")
        record = platform.ledger.run("march")
        announce_approval(platform, instance, record)
        assert run_publication(platform, instance, record) is False  # its base is gone
        validated(platform, "april", ("2020-04-01", "2020-04-30"))
        announce_approval(platform, instance, platform.ledger.run("april"))
        assert run_publication(platform, instance, platform.ledger.run("april"))
        assert untold(platform, instance) == []
    changes = [(run, change) for run, change, _ in told(platform)]
    assert changes == [("spring", "publish"), ("spring", "rollback"), ("april", "publish")]


def test_a_publication_that_was_killed_before_dagster_heard_of_it_is_told_by_the_doctor(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated(platform, "spring", SPRING, "1")

    class Killed(BaseException):
        pass

    def reach(point: str) -> None:
        if point == "publishing.committed":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        with pytest.raises(Killed):
            publication.publish(platform, "spring")
    assert told(platform) == []
    said: Any = say("doctor", "--repair", "--json")
    assert said.exit_code == 0, said.output
    assert [(run, change) for run, change, _ in told(platform)] == [("spring", "publish")]


def test_what_jobs_of_the_ui_publish_roll_back_and_reinstate_is_seen_on_the_published_asset(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    definitions_ = definitions.build_definitions(platform)
    with instance_at(platform.settings) as instance:
        jobs = {"publish_run": "publish", "roll_back_run": "roll_back", "reinstate_run": "reinstate"}
        for job, op in jobs.items():
            config = {"ops": {op: {"config": {"run_id": "spring", "by": "olga", "comment": "as agreed"}}}}
            done = definitions_.resolve_job_def(job).execute_in_process(instance=instance, run_config=config)
            assert done.success
    assert [(run, change) for run, change, _ in told(platform)] == [
        ("spring", "publish"),
        ("spring", "rollback"),
        ("spring", "reinstate"),
    ]


def test_a_job_of_the_ui_ends_a_run_that_nobody_wants_and_not_one_that_readers_see(platform: Platform) -> None:
    validated(platform, "unwanted", SPRING, "1")
    job = definitions.build_definitions(platform).resolve_job_def("cancel_run")
    config = {
        "ops": {"cancel": {"config": {"run_id": "unwanted", "by": "olga", "comment": "superseded by a better plan"}}}
    }
    with instance_at(platform.settings) as instance:
        assert job.execute_in_process(instance=instance, run_config=config).success
        assert platform.ledger.run("unwanted").state is RunState.CANCELLED
        last = platform.ledger.history("unwanted")[-1]
        assert (last.actor, last.channel) == ("olga", "UI")
        assert "superseded by a better plan" in last.reason
        validated(platform, "seen", SPRING, "1")
        decisions.publish(platform, "seen", by="olga")
        config["ops"]["cancel"]["config"]["run_id"] = "seen"
        assert not job.execute_in_process(instance=instance, run_config=config, raise_on_error=False).success
    assert platform.ledger.run("seen").state is RunState.PUBLISHED


def latest(instance: dg.DagsterInstance) -> dict[str, Any]:
    event = instance.get_latest_materialization_event(KEY)
    assert event is not None
    assert event.asset_materialization is not None
    return {name: found.value for name, found in event.asset_materialization.metadata.items()}


def test_two_dagster_runs_of_one_publication_tell_it_once_though_it_is_rolled_back_before_the_first_ends(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first compares rows, for minutes on a large table; somebody asks again meanwhile, and then rolls back."""
    validated(platform, "spring", SPRING, "1")
    after_publication = publish_module.after_publication
    others: list[str] = []

    def slow(its_platform: Platform, run_id: str) -> Path | None:
        if not others:
            others.append(run_id)
            with instance_at(platform.settings) as other:
                assert latest(other)["change"] == "publish"  # readers see it, and so does Dagster
                assert run_publication(platform, other, platform.ledger.run("spring"))
            assert say("rollback", "spring").exit_code == 0
        return after_publication(its_platform, run_id)

    monkeypatch.setattr(publish_module, "after_publication", slow)
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, platform.ledger.run("spring"))
        assert run_publication(platform, instance, platform.ledger.run("spring"))
        assert untold(platform, instance) == []
        assert latest(instance)["change"] == "rollback"
        found = instance.fetch_observations(KEY, limit=10).records
    assert [(run, change) for run, change, _ in told(platform)] == [("spring", "publish"), ("spring", "rollback")]
    said = [one.asset_observation.metadata for one in found if one.asset_observation is not None]
    assert [one["change"].value for one in said] == ["publish", "none: it was published before"]  # the newest first
    assert all("report" in one for one in said)
    assert ["what readers see" in one for one in said] == [False, True]  # by the time of the first it is rolled back


def test_the_event_of_a_publication_says_what_changed_and_an_observation_what_the_rows_say(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    with instance_at(platform.settings) as instance:
        announce_approval(platform, instance, platform.ledger.run("spring"))
        assert run_publication(platform, instance, platform.ledger.run("spring"))
        shown = latest(instance)
        (observed,) = instance.fetch_observations(KEY, limit=10).records
        assert instance.get_materialized_partitions(KEY) == {"spring"}
    assert shown["chunks"] == 4
    assert shown["what changed"].startswith("![by chunk")
    assert shown["snapshot"] == str(platform.lakehouse.snapshot_id(small_table.READINGS))
    assert "| spring | 4 |" in shown["what readers see"]
    assert observed.asset_observation is not None
    assert observed.asset_observation.partition == "spring"
    assert observed.asset_observation.metadata.keys() >= {*shown, "report"}
    assert any(name.startswith("diff: ") for name in observed.asset_observation.metadata)


def test_of_two_publishers_who_wait_for_the_ledger_each_is_seen_in_its_turn(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    validated(platform, "april", ("2020-04-01", "2020-04-30"), "1")
    validated(platform, "march", MARCH)
    before_locking = Ledger._before_locking
    others: list[str] = []

    def overtaken(own: Ledger, run_id: str) -> Any:
        found = before_locking(own, run_id)
        if not others:
            others.append(run_id)
            assert say("publish", "march").exit_code == 0
        return found

    monkeypatch.setattr(Ledger, "_before_locking", overtaken)
    assert say("publish", "april").exit_code == 0
    assert [(run, change) for run, change, _ in told(platform)] == [("march", "publish"), ("april", "publish")]
    with instance_at(platform.settings) as instance:
        assert instance.get_materialized_partitions(KEY) == {"march", "april"}
        assert "| april | 1 |" in latest(instance)["what readers see"]


def test_a_change_that_is_told_after_a_later_one_of_another_run_materialises_its_partition(platform: Platform) -> None:
    """As versions left it that told by the clock; of the same run, the later one stays what its partition shows."""
    validated(platform, "april", ("2020-04-01", "2020-04-30"), "1")
    validated(platform, "march", MARCH)
    for run_id in ("april", "march"):
        publication.publish(platform, run_id)
    undoing.rollback(platform, "march")
    *_, back = changes.recorded(platform, small_table.READINGS)
    with instance_at(platform.settings) as instance:
        event = changes._event(back, changes.metadata(platform, back, is_newest=True), [], set())
        instance.report_runless_asset_event(event)
        assert [change.run_id for change in tell_changes(platform, instance)] == ["april", "march"]
        assert instance.get_materialized_partitions(KEY) == {"march", "april"}
        assert latest(instance)["run"] == "april"
        seen = latest(instance)["what readers see"]
        assert "| april | 1 |" in seen
        assert "march" not in seen
        assert tell_changes(platform, instance) == []
    assert [(run, change) for run, change, _ in told(platform)] == [("march", "rollback"), ("april", "publish")]


def test_no_publication_waits_for_a_dagster_that_hangs(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "WAIT", 0.5)
    validated(platform, "april", ("2020-04-01", "2020-04-30"), "1")
    validated(platform, "march", MARCH)
    publication.publish(platform, "april")
    hangs, goes_on = threading.Event(), threading.Event()
    report = dg.DagsterInstance.report_runless_asset_event

    def slow(instance: dg.DagsterInstance, event: Any) -> None:
        if not hangs.is_set():
            hangs.set()
            assert goes_on.wait(120)
        report(instance, event)

    monkeypatch.setattr(dg.DagsterInstance, "report_runless_asset_event", slow)

    def tell() -> None:
        with instance_at(platform.settings) as instance:
            tell_changes(platform, instance)

    with ThreadPoolExecutor(1) as pool:
        telling_it = pool.submit(tell)
        try:
            assert hangs.wait(60)
            said = say("publish", "march")
            assert said.exit_code == 0, said.output
            assert "Dagster was not told" in said.output
            with instance_at(platform.settings) as instance:
                with pytest.raises(EnvironmentRefused, match="another process is telling Dagster"):
                    tell_changes(platform, instance)
                sensor = definitions.build_definitions(platform).resolve_sensor_def("tell_changes")
                sensor.evaluate_tick(at_a_tick(dg.build_sensor_context(instance, resources={"platform": platform})))
            assert not telling_it.done()
        finally:
            goes_on.set()
        telling_it.result(60)
    tell()
    assert [(run, change) for run, change, _ in told(platform)] == [("april", "publish"), ("march", "publish")]


def test_the_doctor_leaves_what_waits_for_a_publication_that_tells_by_itself(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    publication.publish(platform, "spring")
    undoing.rollback(platform, "spring")
    (first, second) = dagster_disagreements(platform)
    with instance_at(platform.settings) as instance:
        under_way = instance.create_run_for_job(
            dg.GraphDefinition("publishing").to_job(),
            status=dg.DagsterRunStatus.STARTED,
            tags={"dagster/partition": "spring", RUN_TAG: "spring"},
        )
        assert list(dagster_disagreements(platform)) == []
        assert second.repair is not None
        assert "not told yet" in second.repair()  # it was found just before that run began
        assert told(platform) == []
        instance.report_run_failed(instance.get_run_by_id(under_way.run_id), "its process was killed")
    assert first.repair is not None
    assert first.repair() == "told Dagster: publish of spring, rollback of spring"
    assert second.repair() == "Dagster knows of it by now"
