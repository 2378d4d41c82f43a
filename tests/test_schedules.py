"""One actor stopped anywhere while another one acts to the end: a share of `benchmarks/interleavings.py`, the same each time."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import interleavings
from benchmarks.interleavings import CASES, MEMORY, Schedule, Site, draw, play
from benchmarks.kills import Case
from benchmarks.stopped_actors import DIES, EXPIRED, FATES, PAUSED, staged_world

BY_NAME = {case.name: case for case in CASES}
REPLACE, VERSIONED, MERGE = BY_NAME["REPLACE_PARTITIONS"], BY_NAME["VERSIONED"], BY_NAME["MERGE_BY_KEY"]
LEDGER, READ, COMMIT = "ledger transaction", "catalog read", "catalog commit"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        staged_world(),
    ):
        yield Site(Path(folder))


def spread(places: list[int], most: int) -> list[int]:
    """Return at most so many of them, evenly spread."""
    return places if len(places) <= most else [places[n * (len(places) - 1) // (most - 1)] for n in range(most)]


@pytest.mark.parametrize(
    ("state", "first", "second", "how", "where", "most"),
    [
        ("staged", "cancel", "judge, land", PAUSED, LEDGER, 5),
        ("staged", "judge", "judge, and stage again", PAUSED, LEDGER, 6),
        ("validated", "publish", "collect", PAUSED, COMMIT, 2),
        ("validated", "publish", "cancel", EXPIRED, COMMIT, 2),
        ("validated", "load", "load", PAUSED, READ, 3),
        ("validated", "live", "live", PAUSED, COMMIT, 1),
        ("landed", "publish", "next, rolled back", EXPIRED, LEDGER, 4),
        ("untold", "doctor", "rollback, reinstate", EXPIRED, LEDGER, 4),
        ("undone", "doctor", "rollback, reinstate", EXPIRED, LEDGER, 4),
        ("redone", "rollback", "publish next", DIES, LEDGER, 2),
    ],
)
def test_whoever_is_stopped_and_goes_on_later_undoes_and_doubles_nothing(
    site: Site, state: str, first: str, second: str, how: str, where: str, most: int
) -> None:
    site.build(REPLACE)
    passed, _ = site.length(REPLACE, state, first)
    places = spread([at for at, name in enumerate(passed) if name == where], most)
    assert places, passed
    for at in places:
        assert play(site, Schedule(REPLACE, state, first, second, at, how, where)) == []


@pytest.mark.matrix
@pytest.mark.parametrize("second", ["cancel", "reject", "doctor"])
@pytest.mark.parametrize("fate", FATES)
def test_a_commit_whose_answer_is_lost_is_seen_of_a_published_run_or_not_at_all(
    site: Site, second: str, fate: str
) -> None:
    site.build(REPLACE)
    _, commits = site.length(REPLACE, "validated", "publish")
    assert commits
    schedule = Schedule(REPLACE, "validated", "publish", second, commits - 1, f"commit {fate}", "without an answer")
    assert play(site, schedule) == []


@pytest.mark.matrix
@pytest.mark.parametrize("fate", ["commit landed", "commit late"])
@pytest.mark.parametrize(("state", "first"), [("published", "rollback"), ("rolled back", "reinstate")])
def test_a_version_has_the_name_that_its_run_has_a_right_to_whoever_ends_the_interrupted_change(
    site: Site, state: str, first: str, fate: str
) -> None:
    site.build(VERSIONED)
    schedule = Schedule(VERSIONED, state, first, "publish beside", 0, fate, "without an answer")
    assert play(site, schedule) == []


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        (case, shape)
        for case in (REPLACE, MERGE)
        for shape in interleavings.SHAPES
        if (case, shape) != (REPLACE, "of nobody")
    ],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_table_of_another_shape_keeps_its_rows(site: Site, case: Case, shape: str) -> None:
    """One file of several months, files under other names, files that the driver does not see, rows of nobody: refused, or done right."""
    site.build(case)
    ((first,), _) = interleavings.STATES[shape]
    passed, _ = site.length(case, shape, first)
    at = len(passed) // 2
    assert play(site, Schedule(case, shape, first, "doctor", at, PAUSED, passed[at])) == []


@pytest.mark.parametrize("schedules", [3, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_a_share_of_the_campaign_finds_nothing_wrong(
    site: Site, monkeypatch: pytest.MonkeyPatch, schedules: int
) -> None:
    cases = [REPLACE, VERSIONED]
    monkeypatch.setattr(interleavings, "CASES", cases)
    chance = random.Random(16)
    for _ in range(schedules):
        schedule = draw(site, chance)
        assert play(site, schedule) == [], schedule


def test_what_is_lost_doubled_or_of_no_published_run_is_found(site: Site) -> None:
    """The campaign can fail: a row more than was published, a row less, and rows of a run that was taken back."""
    site.build(REPLACE)
    world = site.world(REPLACE, site.kept(REPLACE, "published"))
    assert interleavings.settled(site, world, thoroughly=False) == []
    expected = site.expected[REPLACE.run_id].months[world.run]
    row = expected["2020-03"].pop()
    assert any("1 too many" in one for one in interleavings.settled(site, world, thoroughly=False))
    expected["2020-03"] = sorted([*expected["2020-03"], row, row], key=repr)
    assert any("1 rows are lost" in one for one in interleavings.settled(site, world, thoroughly=False))
    expected["2020-03"].remove(row)
    world.live.add("never written")
    assert any("rows of LIVE" in one for one in interleavings.settled(site, world, thoroughly=False))
