"""What other programs write and point at while a run is published, accepted, taken back or brought back.

Nothing of it is taken for a decision of somebody, or for the run's own doing. The table is the benchmarks' small one, without
Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.expressions import AlwaysTrue
from test_taking_back import (
    BESIDE,
    NO_RETENTION,
    ROLLED_BACK,
    compacted,
    entries,
    kinds,
    published,
    readers,
    state,
)

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, HISTORY, closed, declared, initialise, opened, rows
from manifests.errors import PublicationRefused
from resources.lakehouse.commits import commit_replacement


@pytest.fixture
def history(tmp_path: Path) -> Iterator[Platform]:
    """A table with rows of four months, published by the run `base-run`."""
    with declared():
        platform = opened(tmp_path / "home", **NO_RETENTION)
        initialise(platform)
        published(platform, "base-run", scope=HISTORY, computed_by="1")
        yield platform
        closed(platform)


def issued(platform: Platform) -> Counter[tuple[Any, ...]]:
    """Return the corrections that readers see, each with how often they see it."""
    return Counter(rows(platform, CORRECTIONS))


# --- corrections that another program has written into files of its own -----------------------------------------------


def rolled_back_beside_a_compaction(platform: Platform) -> None:
    """Roll `run` back while another program compacts the corrections: they stay, in a file of its own."""
    published(platform, "run", **BESIDE)
    real = faults.reach
    with mock.patch.object(
        faults, "reach", lambda point: compacted(platform) if point == "undoing.halfway" else real(point)
    ):
        rollback(platform, "run")
    assert kinds(platform) == [("corrections-left", "run")]


def test_corrections_that_are_there_still_are_not_brought_back_a_second_time(history: Platform) -> None:
    rolled_back_beside_a_compaction(history)
    before, left = rows(history), issued(history)
    with pytest.raises(
        PublicationRefused, match=rf"{left.total()} correction\(s\) of 'run' are in {CORRECTIONS}"
    ) as refused:
        reinstate(history, "run")
    assert "restate the scope with a new run" in str(refused.value)
    assert (state(history, "run"), rows(history), issued(history)) == (ROLLED_BACK, before, left)
    assert kinds(history) == [("corrections-left", "run")]
    assert [one for one in entries(history, "run") if one[1] == "INTENT"] == []
    without = history.lakehouse.table(CORRECTIONS)  # the way out
    commit_replacement(without, AlwaysTrue(), [task.file for task in without.scan().plan_files()], [], {})
    published(history, "again", **BESIDE)
    assert max(issued(history).values()) == 1
    assert readers(history)["2020-02"] == "again"


def test_corrections_that_cannot_be_read_are_not_taken_for_none(history: Platform) -> None:
    rolled_back_beside_a_compaction(history)
    before = rows(history)
    for task in history.lakehouse.table(CORRECTIONS).scan().plan_files():
        Path(task.file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(PublicationRefused, match=f"corrections of 'run' are in {CORRECTIONS} cannot be told"):
        reinstate(history, "run")
    assert (state(history, "run"), rows(history)) == (ROLLED_BACK, before)
