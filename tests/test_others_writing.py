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
    APRIL,
    BESIDE,
    FEBRUARY,
    LATER,
    NO_RETENTION,
    PUBLISHED,
    ROLLED_BACK,
    compacted,
    dying_at,
    entries,
    expired_by_another_program,
    kinds,
    published,
    readers,
    state,
)

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.publication.accepting import accept
from backfill_assets.publication.undoing import reinstate, rollback
from benchmarks.small_table import CORRECTIONS, HISTORY, closed, declared, initialise, opened, rows
from manifests.errors import PublicationRefused
from manifests.lifecycle import ACCEPT
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


# --- an acceptance on a base that has expired -------------------------------------------------------------------------


def test_an_acceptance_whose_base_has_expired_is_refused_by_name_and_leaves_no_intent(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    expired_by_another_program(history, base)
    with pytest.raises(PublicationRefused, match=f"snapshot {base}.* has expired") as refused:
        accept(history, "later")
    assert "new run id" in str(refused.value)
    assert [one for one in entries(history, "later") if one[1] == "INTENT"] == []
    assert state(history, "later") is PUBLISHED
    assert [one for one in examine(history) if one.kind.startswith("intent")] == []
    rollback(history, "later")
    assert (state(history, "later"), readers(history)["2020-02"]) == (ROLLED_BACK, "base-run")


def test_an_acceptance_whose_base_expires_while_it_looks_leaves_no_intent(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    published(history, "elsewhere", scope=APRIL)
    real = history.ledger.open_publication

    def opened_late(*arguments: Any, **named: Any) -> int:
        entry = real(*arguments, **named)
        expired_by_another_program(history, base)
        return entry

    with (
        mock.patch.object(history.ledger, "open_publication", opened_late),
        pytest.raises(PublicationRefused, match="has expired"),
    ):
        accept(history, "later")
    assert [one for one in entries(history, "later") if one[0] == ACCEPT] == [(ACCEPT, "REFUSED")]


def test_an_acceptance_that_landed_is_recorded_although_its_base_has_expired_since(history: Platform) -> None:
    published(history, "later", mode="VERSIONED", scope=FEBRUARY, **LATER)
    base = history.ledger.run("later").plan.base_snapshot_id
    assert base is not None
    with dying_at(history, "accepting.committed"):
        accept(history, "later")
    expired_by_another_program(history, base)
    accept(history, "later")
    assert (entries(history, "later")[-1], readers(history)["2020-02"]) == ((ACCEPT, "COMMITTED"), "later")
