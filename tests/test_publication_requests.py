"""What the sensor asks for is asked for again where nothing came of it: a run key fires once.

A request may be refused before anything of it is on record: by a stop, by a policy that was adopted meanwhile, by chunks that
others have changed, or because its process failed. The table is the benchmarks' small one, without Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import dagster as dg
import pytest
from pyiceberg.expressions import AlwaysTrue
from support import put_in_force
from test_others_writing import described_anew
from test_own_changes import file_of_another
from test_taking_back import APRIL, FEBRUARY, TO_JUNE, history, platform, published, state, validated

from backfill_assets import faults
from backfill_assets.defs.publish import publication_requests, publish_job, publish_sensor
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.requirements import waits_for
from benchmarks import small_table
from benchmarks.small_table import planned, staged
from manifests.errors import DecisionRefused, InputRefused, PublicationDeferred, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import Conflict, OnConflict
from manifests.reading import manifest_from
from resources.lakehouse.commits import commit_replacement

__all__ = ["history", "platform"]


def asked(platform: Platform) -> list[str | None]:
    return [one.run_key for one in publication_requests(platform, small_table.TARGET)]


def stopped_and_resumed(platform: Platform) -> None:
    platform.ledger.stops.stop("run", by="ada", through="test", reason="wait")
    assert asked(platform) == []
    with pytest.raises(PublicationRefused, match="was stopped by ada"):
        publish(platform, "run")
    platform.ledger.stops.launched("run", by="ada")


def met_another_policy(platform: Platform) -> None:
    name = f"policy {len(platform.ledger.policies.history())}"

    def adopt(point: str) -> None:
        if point == "publishing.sealed":
            put_in_force(platform, {"name": name, "rules": []})

    with mock.patch.object(faults, "reach", adopt), pytest.raises(DecisionRefused, match="was put in force"):
        publish(platform, "run")


def planned_anew(platform: Platform) -> None:
    published(platform, "other", scope=TO_JUNE, computed_by="1")
    with pytest.raises(PublicationDeferred, match="planned anew"):
        publish(platform, "run")
    staged(platform, "run")


@pytest.mark.parametrize("happens", [stopped_and_resumed, met_another_policy, planned_anew])
def test_a_publication_that_was_refused_before_its_entry_is_asked_for_again(
    history: Platform, happens: Callable[[Platform], None]
) -> None:
    contract = small_table.manifest("run", "REPLACE_PARTITIONS", TO_JUNE)
    planned(history, contract.model_copy(update={"conflict": Conflict(onConflict=OnConflict.REPLAN)}))
    staged(history, "run")
    keys = asked(history)
    for _ in range(1 if happens is planned_anew else 2):
        happens(history)
        assert state(history, "run") is RunState.VALIDATED
        assert history.ledger.publications("run") == []
        keys += asked(history)
    assert len(set(keys)) == len(keys)
    assert asked(history) == keys[-1:], "what nothing has happened to is not asked for twice"
    assert publish(history, "run").new


def test_a_run_whose_days_cannot_be_looked_at_waits_and_keeps_no_other_from_being_asked_for(history: Platform) -> None:
    """Another program writes a file without bounds into the days of a run that waits for conflicts to end."""
    contract = small_table.manifest("run", "REPLACE_PARTITIONS", FEBRUARY)
    planned(history, contract.model_copy(update={"conflict": Conflict(onConflict=OnConflict.WAIT, waitMinutes=60)}))
    staged(history, "run")
    validated(history, "april", scope=APRIL)
    table = history.lakehouse.table(small_table.READINGS)
    unbound = described_anew(file_of_another(table), lower_bounds={}, upper_bounds={})
    commit_replacement(table, AlwaysTrue(), [], [unbound], {})
    assert asked(history) == ["april:0"]
    assert "has no bounds for day" in str(waits_for(history, history.ledger.run("run")))
    assert publish(history, "april").new
    with pytest.raises(InputRefused, match="has no bounds for day"):
        publish(history, "run")
    assert asked(history) == []


def without_entry() -> dg.JobDefinition:
    """Return what stands for publications whose processes end before they come to their entries."""

    @dg.job(name=publish_job(small_table.TARGET).name)
    def nothing() -> None:
        pass

    return nothing


def limited(platform: Platform, run_id: str, scope: tuple[str, str]) -> None:
    """Have a run validated whose table takes one publication more within this hour."""
    most = 1 + len(platform.ledger.committed(small_table.READINGS))
    parts = {"validation": {"gates": ["all_chunks_staged"]}, "limits": {"maxCommitsPerHour": most}}
    planned(platform, manifest_from(small_table.manifest_data(run_id, "REPLACE_PARTITIONS", scope) | parts))
    staged(platform, run_id)


def sensed(platform: Platform, instance: dg.DagsterInstance) -> tuple[list[dg.RunRequest], str]:
    """Return what the sensor asks for, and why it skips."""
    sensor = publish_sensor(small_table.TARGET, publish_job(small_table.TARGET))
    said: list[Any] = [*sensor(dg.build_sensor_context(instance=instance), platform=platform)]
    skipped = [str(one.skip_message) for one in said if isinstance(one, dg.SkipReason)]
    return [one for one in said if isinstance(one, dg.RunRequest)], "; ".join(skipped)


def launched(instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.DagsterRun:
    tags = {**request.tags, "dagster/run_key": str(request.run_key)}
    return instance.create_run_for_job(without_entry(), tags=tags)


@pytest.mark.parametrize("how", ["failed", "canceled"])
def test_a_request_that_has_come_to_nothing_takes_no_room_from_others_which_are_told_whom_they_wait_for(
    history: Platform, how: str
) -> None:
    limited(history, "run", FEBRUARY)
    limited(history, "april", APRIL)
    with dg.DagsterInstance.ephemeral() as instance:
        (request,), _ = sensed(history, instance)
        first = str(request.partition_key)
        (second,) = {"run", "april"} - {first}
        for _ in range(5 if how == "failed" else 1):
            run = launched(instance, request)
            _, skipped = sensed(history, instance)
            assert f"{second} waits: limits.maxCommitsPerHour leaves room for 1 publication(s)" in skipped
            assert f"{first} is asked for before it" in skipped
            if how == "failed":
                instance.report_run_failed(run)
            else:
                instance.report_run_canceled(run)
            (request,), _ = sensed(history, instance)
        assert request.partition_key == second, "nobody else takes the room"
        launched(instance, request)
        _, skipped = sensed(history, instance)
        why = "was asked for 5 times and failed" if how == "failed" else "was canceled in Dagster"
        assert f"{first} waits: its publication {why}" in skipped
        assert f"`backfill publish {first}`" in skipped
    assert publish(history, second).new


def test_a_run_whose_publication_is_queued_is_not_asked_for_anew(history: Platform) -> None:
    validated(history, "run")
    with dg.DagsterInstance.ephemeral() as instance:
        (request,), _ = sensed(history, instance)
        run = launched(instance, request)
        stopped_and_resumed(history)
        (again,), _ = sensed(history, instance)
        assert again.run_key == request.run_key, "it is queued, and finds what has happened itself"
        instance.report_run_failed(run)
        (anew,), _ = sensed(history, instance)
        assert anew.run_key != request.run_key


def test_a_request_that_failed_before_its_entry_is_repeated_a_few_times_and_then_left_to_people(
    history: Platform,
) -> None:
    validated(history, "run")
    sensor = publish_sensor(small_table.TARGET, publish_job(small_table.TARGET))

    nothing = without_entry()
    with dg.DagsterInstance.ephemeral() as instance:

        def sense() -> Any:
            (said,) = sensor(dg.build_sensor_context(instance=instance), platform=history)
            return said

        keys = set()
        for _ in range(5):
            request = sense()
            run = instance.create_run_for_job(nothing, tags={**request.tags, "dagster/run_key": request.run_key})
            assert sense().run_key == request.run_key, "Dagster knows it, and it is under way"
            instance.report_run_failed(run)
            keys.add(request.run_key)
        assert len(keys) == 5
        tick = sensor.evaluate_tick(dg.build_sensor_context(instance=instance, resources={"platform": history}))
        assert "run waits: its publication was asked for 5 times" in str(tick.skip_message)
        stopped_and_resumed(history)
        assert sense().run_key not in keys, "something has happened: it is asked for anew"
