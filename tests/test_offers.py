"""What the launch dialog offers: what may be launched, and not what is dead."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import pytest
from support import at_a_tick

from backfill_assets.decisions import reject
from backfill_assets.defs import build as definitions
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at, run_chunks
from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.staging import asset_key, backfill_partitions
from backfill_assets.publication import ending, undoing
from backfill_assets.publication import publisher as publication
from benchmarks import small_table
from manifests.lifecycle import RunState


def test_runs_that_are_over_are_offered_no_more_and_lose_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        initialise_instance(platform.settings)
        sensor = definitions.build_definitions(platform).resolve_sensor_def("withdraw_dead_runs")
        dimension = backfill_partitions(small_table.TARGET).name
        with instance_at(platform.settings) as instance:

            def offered() -> set[str]:
                sensor.evaluate_tick(at_a_tick(dg.build_sensor_context(instance, resources={"platform": platform})))
                return set(instance.get_dynamic_partitions(dimension))

            for run_id in ("approved", "rejected", "cancelled", "published"):
                contract = small_table.manifest(run_id, "REPLACE_PARTITIONS", small_table.SCOPE)
                announce_approval(platform, instance, small_table.planned(platform, contract))
            assert run_chunks(platform, instance, platform.ledger.run("cancelled"), ["2020-02"])
            small_table.staged(platform, "published")
            publication.publish(platform, "published")
            assert offered() == {"approved", "rejected", "cancelled", "published"}
            reject(platform, "rejected", by="grace")
            ending.cancel(platform, "cancelled", "ada", "not needed")
            busy = instance.create_run_for_job(
                dg.GraphDefinition("computing").to_job(),
                status=dg.DagsterRunStatus.STARTED,
                tags={RUN_TAG: "cancelled"},
            )
            assert offered() == {"approved", "cancelled", "published"}  # somebody still works for it
            instance.report_run_failed(instance.get_run_by_id(busy.run_id), "its process was killed")
            assert offered() == {"approved", "published"}
            events = instance.fetch_materializations(asset_key(small_table.READINGS), limit=10).records
            assert [one.partition_key for one in events] == ["cancelled|2020-02"]
            small_table.planned(platform, small_table.manifest("next", "REPLACE_PARTITIONS", small_table.SCOPE))
            announce_approval(platform, instance, platform.ledger.run("next"))
            small_table.staged(platform, "next")
            publication.publish(platform, "next")
            assert platform.ledger.run("published").state is RunState.SUPERSEDED
            assert offered() == {"approved", "next"}
            undoing.rollback(platform, "next")
            assert offered() == {"approved", "published"}  # which readers see again
            undoing.reinstate(platform, "next")
            assert offered() == {"approved", "next"}
            version = {"version": "v2", "acceptance": "LATER"}
            small_table.planned(platform, small_table.manifest("version", "VERSIONED", small_table.SCOPE, **version))
            announce_approval(platform, instance, platform.ledger.run("version"))
            small_table.staged(platform, "version")
            for act in (publication.publish, undoing.rollback):
                act(platform, "version")
            assert offered() == {"approved", "next"}
            undoing.reinstate(platform, "version")
            assert offered() == {"approved", "next", "version"}  # which readers see by its name
        small_table.closed(platform)
