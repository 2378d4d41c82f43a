"""The sensor of a landing folder, the job that it asks for, and what metrics say of the files that came."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from feed_world import FEED, Site, file_of, fresh_site, path_of, with_changes
from support import at_a_tick

import backfill_assets as ba
from backfill_assets.defs.build import build_definitions
from backfill_assets.defs.landing_sensor import landing_sensor, receiving_job, request_for
from backfill_assets.extraction.landed_files import lying_below
from backfill_assets.ingestion.receiving import receive
from backfill_assets.operations import metrics

QUICK = with_changes(settled_seconds=1)
JOB = "receive_readings"


@pytest.fixture
def site() -> Site:
    return fresh_site(QUICK)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def settle() -> None:
    time.sleep(1.05)


def asked(site: Site, instance: dg.DagsterInstance, feed: ba.FileFeed = QUICK) -> Any:
    """Return what the sensor says at a tick."""
    context = at_a_tick(dg.build_sensor_context(instance, resources={"platform": site.platform}))
    return landing_sensor(feed, receiving_job(feed))(context)


def ran(site: Site, instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """Run the job that was asked for."""
    tags = {**request.tags, "dagster/sensor_name": "receive_readings_on_landing"}
    job = receiving_job(QUICK)
    return job.execute_in_process(
        instance=instance, tags=tags, resources={"platform": site.platform}, raise_on_error=False
    )


def test_what_lies_there_is_received_once_and_by_the_sensor(site: Site, instance: dg.DagsterInstance) -> None:
    assert "nothing lies there" in asked(site, instance).skip_message
    site.land(file_of(1, 2, 3))
    assert "1 file(s) were changed within 1 s" in asked(site, instance).skip_message
    settle()
    request = asked(site, instance)
    assert asked(site, instance).run_key == request.run_key, "what lies there names the run"
    done = ran(site, instance, request)
    assert done.success
    assert site.statuses() == ["ACCEPTED"]
    assert site.entries[0].received_by == "sensor receive_readings_on_landing"
    (told,) = [one.event_specific_data for one in done.all_events if one.event_type_value == "STEP_OUTPUT"]
    assert told.metadata["files ACCEPTED"].value == 1
    observed = [one.asset_key for one in done.all_events if one.event_type_value == "ASSET_OBSERVATION"]
    assert dg.AssetKey(["bronze", "readings"]) in observed
    assert "nothing lies there" in asked(site, instance).skip_message


def test_a_file_that_somebody_is_writing_is_left_alone_and_its_neighbour_received(
    site: Site, instance: dg.DagsterInstance
) -> None:
    site.land(file_of(1, 2, 3))
    settle()
    request = asked(site, instance)
    half = site.land(file_of(4, 5, 6)[:-4], path_of("20240105"))
    assert ran(site, instance, request).success
    assert (site.statuses(), half.exists()) == (["ACCEPTED"], True)
    half.write_bytes(file_of(4, 5, 6))
    past = time.time() - 3_600
    os.utime(half, (past, past))  # as a copy that keeps times does
    assert "were changed within" in asked(site, instance).skip_message
    settle()
    assert ran(site, instance, asked(site, instance)).success
    assert site.statuses() == ["ACCEPTED", "ACCEPTED"]


def test_what_stays_in_the_folder_is_not_received_again_until_something_comes(
    site: Site, instance: dg.DagsterInstance
) -> None:
    site.land(b"x" * 30_000, "much.csv")
    settle()
    assert ran(site, instance, asked(site, instance)).success
    assert "were received, and stay" in asked(site, instance).skip_message
    site.land(file_of(1, 2, 3))
    settle()
    assert ran(site, instance, asked(site, instance)).success
    assert site.statuses() == ["REJECTED", "ACCEPTED"]


def test_a_receipt_that_fails_is_asked_for_three_times(
    site: Site, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.land(file_of(1, 2, 3))
    settle()

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    keys = []
    with monkeypatch.context() as patched:
        patched.setattr("backfill_assets.defs.landing_sensor.receive", fails)
        for _ in range(3):
            request = asked(site, instance)
            keys.append(request.run_key)
            assert not ran(site, instance, request).success
        assert "3 times in vain" in asked(site, instance).skip_message
    assert len(set(keys)) == 3
    site.land(file_of(4, 5, 6), path_of("20240105"))
    settle()
    assert isinstance(asked(site, instance), dg.RunRequest), "other files are another matter"


def test_files_and_their_list_are_received_together(site: Site, instance: dg.DagsterInstance) -> None:
    listed = with_changes(
        settled_seconds=1,
        time=ba.DeliveryIndex("index-*.csv", "{path}", "published"),
        path=r"day=(?P<date>\d{8})/a\.csv",
    )
    site.land(file_of(1, 2, 3), "day=20240101/a.csv")
    settle()
    assert "the list of the files is not there: index-*.csv" in asked(site, instance, listed).skip_message
    site.land(b"path,published\nday=20240101/a.csv,2024-01-02T06:00:00Z\n", "index-1.csv")
    assert "received together" in asked(site, instance, listed).skip_message
    settle()
    assert isinstance(asked(site, instance, listed), dg.RunRequest)


def test_who_tries_the_sensor_out_launches_nothing(site: Site, instance: dg.DagsterInstance) -> None:
    site.land(file_of(1, 2, 3))
    settle()
    tried = landing_sensor(QUICK, receiving_job(QUICK))(
        dg.build_sensor_context(instance, resources={"platform": site.platform})
    )
    assert isinstance(tried, dg.SkipReason)
    assert "would receive" in str(tried.skip_message)


def test_each_feed_has_a_sensor_that_is_off_and_looks_without_opening_anything(
    site: Site, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    defs = build_definitions(site.platform)
    sensor = next(one for one in defs.sensors or () if one.name == "receive_readings_on_landing")
    assert isinstance(sensor, dg.SensorDefinition)
    assert sensor.default_status is dg.DefaultSensorStatus.STOPPED
    assert JOB in {one.name for one in defs.get_repository_def().get_all_jobs()}
    site.land(file_of(1, 2, 3))
    (site.landing / "link").symlink_to("/etc/passwd")
    os.mkfifo(site.landing / "pipe")
    site.land(b"half", "x.partial")
    settle()
    monkeypatch.setattr(os, "open", lambda *_a, **_k: pytest.fail("nothing is opened"))
    found = lying_below(site.landing, 1)
    assert (sorted(found.settled), found.young) == ([path_of(), "link", "pipe"], 0)


def test_a_folder_that_is_not_there_or_cannot_be_listed_is_said(site: Site, instance: dg.DagsterInstance) -> None:
    site.landing.rename(site.landing.with_name("gone"))
    found = request_for(site.platform, instance, FEED, JOB)
    assert isinstance(found, dg.SkipReason)
    assert "nothing has come yet" in str(found.skip_message)


def test_metrics_say_what_became_of_files_since_when_refused_ones_wait_and_how_far_a_feed_is(site: Site) -> None:
    def shown() -> dict[tuple[str, ...], float]:
        samples = metrics.samples(metrics.registry(site.platform))
        return {
            (one["name"].removeprefix("backfill_import_"), *one["labels"].values()): one["value"]
            for one in samples
            if one["name"].startswith("backfill_import_")
        }

    assert shown() == {}
    site.land(file_of(1, 2, 3))
    site.land(b"not,a\nfile,of it\n", path_of("20240105"))
    site.land(file_of("a", "b", "c"), path_of("20240106"))
    receive(site.platform, "readings")
    refused = {str(one.status): one.first_seen.timestamp() for one in site.entries if one.status != "ACCEPTED"}
    assert shown() == {
        ("files", "readings", "ACCEPTED"): 1,
        ("files", "readings", "REJECTED"): 1,
        ("files", "readings", "QUARANTINED"): 1,
        ("refused_since_timestamp_seconds", "readings", "REJECTED"): refused["REJECTED"],
        ("refused_since_timestamp_seconds", "readings", "QUARANTINED"): refused["QUARANTINED"],
        ("last_business_date_timestamp_seconds", "readings"): datetime(2024, 1, 1, tzinfo=UTC).timestamp(),
    }
    site.land(file_of(7, 8, 9), path_of("20240106"))
    receive(site.platform, "readings")
    found = shown()
    assert ("refused_since_timestamp_seconds", "readings", "QUARANTINED") not in found, "its path was taken since"
    assert found["last_business_date_timestamp_seconds", "readings"] == datetime(2024, 1, 6, tzinfo=UTC).timestamp()
