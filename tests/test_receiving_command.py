"""The commands of files that are published again, as they are installed: what they print, for people and for scripts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launches import launch

from backfill_assets.products.public_health import REGIONAL_FILES, generator

FEED = REGIONAL_FILES.name


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An installation that serves the product of the feed."""
    home = tmp_path_factory.mktemp("command") / "home"
    found = {"BACKFILL_HOME": str(home), "BACKFILL_PRODUCTS": '["backfill_assets.products.public_health:PRODUCT"]'}
    launch("init", environment=found).finish(0)
    return found


def _said(*arguments: str, environment: dict[str, str], expected: int = 0) -> Any:
    launched = launch(*arguments, "--json", environment=environment)
    launched.finish(expected)
    return json.loads(launched.output)


def test_what_landed_is_received_listed_and_left_alone_the_second_time(environment: dict[str, str]) -> None:
    landing = Path(environment["BACKFILL_HOME"]) / "landing" / FEED
    landing.mkdir(parents=True, exist_ok=True)
    versions = generator.write_landing(landing, days=10, seed=3)
    (landing / "stray.csv").write_text("no report\n")
    done = _said("receive", FEED, environment=environment)
    assert sum(done["by_status"].values()) == len(versions) + 1
    assert (done["by_status"]["ACCEPTED"], done["by_status"]["REJECTED"]) == (10, 1)
    assert done["rows"] >= 10 * 21
    assert not [place for place in landing.rglob("*") if place.is_file()]
    assert _said("receive", FEED, environment=environment)["by_status"] == {}

    (rejected,) = _said("files", FEED, "--status", "rejected", environment=environment)
    assert rejected["entry"]["path"] == "stray.csv"
    of_day = _said("files", FEED, "--date", f"{versions[0].day}", environment=environment)
    assert {one["entry"]["business_date"] for one in of_day} == {f"{versions[0].day}"}

    people = launch("files", FEED, "--limit", "3", environment=environment)
    people.finish(0)
    assert f"3 of {len(versions) + 1} files of {FEED}" in people.output
    assert "1 REJECTED" in people.output


def test_a_feed_that_is_not_there_and_a_path_that_is_not_are_refused(environment: dict[str, str]) -> None:
    for arguments, said in (
        (("receive", "regional_report"), "did you mean regional_reports?"),
        (("receive", FEED, "nowhere.tar.xz"), "nowhere.tar.xz does not exist"),
        (("files", "nothing"), "feed nothing is not declared"),
        (("receive", FEED, "--again", "20200101-00001-x"), "has no file"),
    ):
        launched = launch(*arguments, environment=environment)
        launched.finish(2)
        assert said in " ".join(launched.errors.split()), launched.errors
