"""Each change of what readers see is on the page of its published asset, once, whoever made it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from click.testing import CliRunner, Result

from backfill_assets import definitions, faults, publication
from backfill_assets import platform as platform_module
from backfill_assets.changes import tell_changes, untold
from backfill_assets.cli import cli
from backfill_assets.launch import announce_approval, initialise_instance, instance_at, run_publication
from backfill_assets.platform import Platform
from backfill_assets.staging import RUN_TAG, asset_key, backfill_partitions
from benchmarks import small_table

KEY = asset_key(f"{small_table.READINGS}_published")
SPRING, MARCH = ("2020-01-01", "2020-04-30"), ("2020-03-01", "2020-03-31")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    home = tmp_path / "home"
    monkeypatch.setenv("BACKFILL_HOME", str(home))
    with small_table.declared():
        monkeypatch.setattr(definitions, "PRODUCTS", platform_module.PRODUCTS)
        platform = small_table.opened(home)
        small_table.initialise(platform)
        initialise_instance(platform.settings)
        yield platform
        small_table.closed(platform)


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
    assert "| march | 1 | 2020-03 to 2020-03 |" in seen
    assert "| spring | 3 | 2020-01 to 2020-04 |" in seen
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
    publication.rollback(platform, "spring")
    publication.reinstate(platform, "spring")

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
            sensor.evaluate_tick(context)
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
        publication.rollback(platform, "spring")
        record = platform.ledger.run("march")
        announce_approval(instance, record)
        assert run_publication(platform, instance, record) is False  # its base is gone
        validated(platform, "april", ("2020-04-01", "2020-04-30"))
        announce_approval(instance, platform.ledger.run("april"))
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


def test_what_a_job_of_the_ui_publishes_and_rolls_back_is_seen_on_the_published_asset(platform: Platform) -> None:
    validated(platform, "spring", SPRING, "1")
    definitions_ = definitions.build_definitions(platform)
    with instance_at(platform.settings) as instance:
        for job, op in (("publish_run", "publish"), ("roll_back_run", "roll_back")):
            config = {"ops": {op: {"config": {"run_id": "spring", "by": "olga", "comment": "as agreed"}}}}
            done = definitions_.resolve_job_def(job).execute_in_process(instance=instance, run_config=config)
            assert done.success
    assert [(run, change) for run, change, _ in told(platform)] == [("spring", "publish"), ("spring", "rollback")]
