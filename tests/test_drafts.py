"""A run that nobody has approved is planned anew while somebody looks at all runs: whoever looks is told of the others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from test_pages import page

from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication import publisher as publication
from benchmarks import small_table
from resources.ledger import plans

APRIL = ("2020-04-01", "2020-04-30")


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """Return an installation whose draft is planned anew the moment somebody who has looked at it asks for its plan."""
    fetch, terms, todo = plans.fetch, plans.terms, ["draft"]
    with small_table.declared():
        platform = small_table.opened(tmp_path / "home")
        small_table.initialise(platform)
        small_table.planned(platform, small_table.manifest("history", "REPLACE_PARTITIONS", APRIL))
        small_table.staged(platform, "history")
        publication.publish(platform, "history")
        plan_run(platform, small_table.manifest("draft", "REPLACE_PARTITIONS", APRIL))

        def planned_anew() -> None:
            if todo:
                todo.clear()
                plan_run(platform, small_table.manifest("draft", "REPLACE_PARTITIONS", APRIL, computed_by="1"))

        def late(engine: Any, run_id: str, plan_hash: str) -> Any:
            if run_id == "draft":
                planned_anew()
            return fetch(engine, run_id, plan_hash)

        def late_terms(engine: Any, run_ids: Any = None) -> Any:
            if run_ids is None or "draft" in run_ids:
                planned_anew()
            return terms(engine, run_ids)

        monkeypatch.setattr(plans, "fetch", late)
        monkeypatch.setattr(plans, "terms", late_terms)
        yield platform
        small_table.closed(platform)
    assert not todo, "nobody has asked for the plan"


def doctor(platform: Platform) -> None:
    assert {one.kind for one in examine(platform)} <= {"diff-missing"}
    (lost,) = platform.ledger.run("history").plan.chunks
    (chunk,) = platform.ledger.chunks("history")
    assert chunk.chunk == lost.key
    Path(chunk.files[0].path.removeprefix("file://")).unlink()  # what else disagrees is said all the same
    assert "DATA-LOSS" in {one.kind for one in examine(platform)}


def collector(platform: Platform) -> None:
    found = garbage.find(platform, at=datetime.now(UTC))
    assert {one.table for one in found} >= {small_table.READINGS, small_table.CORRECTIONS}
    assert not any(one.snapshots for one in found)


def page_of_the_run(platform: Platform) -> None:
    assert "readings 1" in page(platform, "/backfill/draft")


def page_of_the_plan(platform: Platform) -> None:
    assert json.loads(page(platform, "/backfill/draft/plan.json"))["transform_version"] == "1"


@pytest.mark.parametrize("looks", [doctor, collector, page_of_the_run, page_of_the_plan])
def test_a_draft_that_is_planned_anew_hides_nothing_from_who_looks(
    platform: Platform, looks: Callable[[Platform], None]
) -> None:
    looks(platform)
