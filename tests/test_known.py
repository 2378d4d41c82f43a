"""Runs that know different things, one actor stopped anywhere: a share of `benchmarks/known.py`, the same each time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from backfill_assets.publication.publisher import publish
from benchmarks import known, known_rules
from benchmarks.interleavings import MEMORY
from benchmarks.known import Site, draw, on_the_table, play
from benchmarks.known_acts import HISTORY, Step, World
from benchmarks.small_table import closed, events_at, manifest_data, planned, staged
from benchmarks.stopped_actors import staged_world
from manifests.reading import manifest_from


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder, staged_world():
        yield Site(Path(folder) / known.NAME)


@pytest.fixture
def world(site: Site) -> Iterator[World]:
    """A table whose May LIVE has published, of which a load was taken back since."""
    with on_the_table(0):
        found = site.world(
            0, (Step("load", 0), Step("live, publish", 1), Step("take back", 2), Step("load", 3, (6, 6)))
        )
        yield found
        for platform in (found.platform, found.others):  # the next one is in its place
            closed(platform)


@pytest.mark.parametrize("number", range(6))
def test_a_share_of_the_campaign_finds_nothing_wrong(site: Site, number: int) -> None:
    schedule = draw(16, number)
    assert play(site, schedule) == [], schedule


def test_a_schedule_is_the_same_each_time_it_is_drawn() -> None:
    assert [draw(3, number) for number in range(20)] == [draw(3, number) for number in range(20)]
    assert len({draw(3, number).prelude for number in range(20)}) == 4
    assert "take back: rollback" in draw(3, 0, "known*take back: rollback").name


def test_rows_that_their_holder_has_not_known_are_found(world: World) -> None:
    assert known_rules.disagreements(world) == []
    (source,) = {
        plan.source_snapshot_id for plan in world.others.ledger.plans(world.others.ledger.run(HISTORY)).values()
    }
    events = events_at(world.others, source)
    more = ("never", events[0][1])
    for of_others in (events[1:], [*events, more], [*events, events[0]]):
        with mock.patch.dict("benchmarks.small_table._EVENTS", {source: of_others}):
            assert any("is held by history" in one for one in known_rules.disagreements(world))


def test_who_has_taken_what_it_must_not_is_found(world: World) -> None:
    """The guards are silenced one by one: what they keep away is found by who looks at the ledger alone."""
    silent = mock.patch("backfill_assets.publication.publisher.problems_by_now", return_value=[])
    known_before = mock.patch("manifests.planner.live_problems", return_value=[])
    kinds = mock.patch("manifests.planner.kind_problems", return_value=[])
    for run_id, kind, why in (("older", "RESTATEMENT", "by older knowledge"), ("fill", "BACKFILL", "never does")):
        text = manifest_data(run_id, "REPLACE_PARTITIONS", ("2020-05-01", "2020-05-31")) | {"kind": kind}
        if kind == "RESTATEMENT":
            snapshots = world.platform.lakehouse.table("bronze.reading_events").metadata.snapshots
            text["source"]["snapshotId"] = snapshots[2].snapshot_id
        with silent, known_before, kinds:
            planned(world.platform, manifest_from(text))
            staged(world.platform, run_id)
            publish(world.platform, run_id)
        found = known_rules.disagreements(world)
        assert [one for one in found if one.startswith(f"{run_id} (") and why in one], found
