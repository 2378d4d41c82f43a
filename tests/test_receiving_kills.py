"""Wherever a receipt is killed: the same command again ends as if it had not been."""

from __future__ import annotations

import random
import shutil
import signal
import time
from dataclasses import replace
from typing import Any

import pytest
from feed_world import FEED, Site, file_of, fresh_site, path_of, receive_at, site_at, with_changes
from launches import begin

from backfill_assets import faults

POINTS = tuple(sorted(point for point in faults.POINTS if point.startswith("receiving.")))


def _landed() -> Site:
    """Return an installation to which a file of each kind has landed, beside one that was received before."""
    site = fresh_site()
    site.land(file_of(1, 2, 3), path_of(day="20240301"))
    site.receive()
    site.land(file_of(1, 2, 3), path_of(day="20240301", at="20240303T060000"))
    site.land(file_of(7, 2, 3), path_of(day="20240301", at="20240304T060000"))
    for number in range(2, 9):
        site.land(file_of(number, 2, 3), path_of(day=f"2024030{number}"))
    site.land(file_of(4, "x", 3), path_of(day="20240309"))
    site.land(b"meter,kwh,note\nm1,1,\n", path_of(day="20240310"))
    site.land(b"\0", path_of(day="20240311"))
    site.land(file_of(), "nothing.csv")
    return site


def _outcome(site: Site) -> dict[str, Any]:
    """Return what an installation has in the end, but for instants."""
    quarantine = site.rows("bronze.readings_quarantine").drop("ingested_at")
    return {
        "entries": sorted(
            (
                one.path,
                one.status,
                one.reason,
                one.rows,
                one.rejected,
                one.revision,
                one.file_id,
                one.attempt,
                one.load_id,
            )
            for one in site.entries
        ),
        "snapshots": {one.path: one.snapshot_id is not None for one in site.entries},
        "rows": site.rows().sort("file_id", "meter").rows(),
        "quarantine": quarantine.sort("source_file", "source_row").rows(),
        "archive": {kind: site.archived(kind) for kind in ("accepted", "rejected")},
        "landing": sorted(place.name for place in site.landing.rglob("*") if place.is_file()),
        "loads": len(site.platform.lakehouse.loads("bronze.readings")),
    }


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    site = _landed()
    site.receive()
    found = _outcome(site)
    assert {entry[1] for entry in found["entries"]} == {"ACCEPTED", "IGNORED", "CORRECTION", "QUARANTINED", "REJECTED"}
    assert found["landing"] == []
    return found


@pytest.mark.parametrize("point", POINTS)
def test_a_receipt_that_is_killed_ends_the_same_when_it_is_repeated(point: str, undisturbed: dict[str, Any]) -> None:
    site = _landed()
    home = str(site.platform.settings.home)
    begin(receive_at, home, environment={faults.VARIABLE: point}).finish(-signal.SIGKILL)
    again = site_at(site.platform.settings.home)
    again.receive()
    assert _outcome(again) == undisturbed


@pytest.mark.parametrize(
    ("first", "second"), [("receiving.recorded", "receiving.quarantined"), ("receiving.kept", "receiving.appended")]
)
def test_a_receipt_that_is_killed_twice_ends_the_same(first: str, second: str, undisturbed: dict[str, Any]) -> None:
    site = _landed()
    home = str(site.platform.settings.home)
    for point in (first, second):
        begin(receive_at, home, environment={faults.VARIABLE: point}).finish(-signal.SIGKILL)
    again = site_at(site.platform.settings.home)
    again.receive()
    assert _outcome(again) == undisturbed


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("point", ["receiving.recorded", "receiving.quarantined"])
def test_a_receipt_that_stopped_before_the_code_changed_is_decided_upon_anew(point: str, is_gone: bool) -> None:
    site = _landed()
    begin(receive_at, str(site.platform.settings.home), environment={faults.VARIABLE: point}).finish(-signal.SIGKILL)
    if is_gone:  # the bytes were kept
        shutil.rmtree(site.landing)
    later = site_at(
        site.platform.settings.home,
        with_changes(translator_version="1.1.0", limits=replace(FEED.limits, rejected_share=0.0)),
    )
    later.receive()
    by_path: dict[str, list[str]] = {}
    for one in later.entries:
        by_path.setdefault(one.path, []).append(str(one.status))
    assert by_path[path_of(day="20240302")] == ["REJECTED", "ACCEPTED"]
    assert by_path[path_of(day="20240309")] == ["REJECTED", "QUARANTINED"]
    assert later.rows().height == sum(one.rows for one in later.entries)
    quarantined = later.rows("bronze.readings_quarantine")["source_file"].to_list()
    assert sorted(quarantined) == [path_of(day="20240309"), path_of(day="20240310")]


def test_rows_that_were_appended_before_the_code_changed_stay(undisturbed: dict[str, Any]) -> None:
    site = _landed()
    home = str(site.platform.settings.home)
    begin(receive_at, home, environment={faults.VARIABLE: "receiving.appended"}).finish(-signal.SIGKILL)
    later = site_at(site.platform.settings.home, with_changes(translator_version="1.1.0"))
    later.receive()
    assert _outcome(later) == undisturbed


@pytest.mark.parametrize("seed", range(6))
def test_a_receipt_that_is_killed_at_any_moment_ends_the_same(seed: int, undisturbed: dict[str, Any]) -> None:
    rng = random.Random(seed)
    site = _landed()
    for _ in range(2):
        launched = begin(receive_at, str(site.platform.settings.home), environment={})
        time.sleep(rng.uniform(0.05, 2.0))
        launched.kill()
    again = site_at(site.platform.settings.home)
    again.receive()
    assert _outcome(again) == undisturbed
