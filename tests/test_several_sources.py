"""A table of three sources, one of them another target: each is pinned, in a window of its own, end to end in one launch."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from worlds import SPARK, World

from backfill_assets.audit.verification import verify
from benchmarks import orders, payments


@pytest.fixture
def world(tmp_path: Path) -> World:
    """An installation in which orders are published, and payments and rates are loaded."""
    platform = payments.opened(tmp_path / "home", spark=SPARK)
    payments.fill(platform)
    found = World(platform, tmp_path / "home")
    found.published(orders.manifest("orders", orders.FIRST, orders.LAST, "1.0.0"))
    return found


def test_a_table_of_three_sources_is_restated_in_one_launch_and_says_what_counting_by_hand_gives(world: World) -> None:
    platform = world.platform
    world.published(payments.manifest("history"))
    expected = payments.expected(orders.rows_of(platform))
    assert payments.rows_of(platform) == expected
    assert len(expected) > 500
    # orders of December are read for January's payments, and those that were paid later than the window are not
    assert any(row[1] is not None and row[1] < date(2024, 1, 1) for row in expected.values())
    assert verify(platform, data=True).everything == []
