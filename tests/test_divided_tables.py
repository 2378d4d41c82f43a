"""Tables of hours, and tables that are divided by value or bucket beside time: what a run replaces is its own part, and nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from worlds import SPARK, World

from backfill_assets.audit.verification import verify
from backfill_assets.declarations.target import TargetTable
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.publication.undoing import rollback
from benchmarks import sales
from benchmarks.sales import BY_HOUR, BY_HOUR_AND_VALUE, BY_MONTH, manifest, opened, rows_of
from manifests.division import ByBucket

JANUARY, FEBRUARY = (date(2024, 1, 1), date(2024, 1, 31)), (date(2024, 2, 1), date(2024, 2, 29))
BY_BUCKET = replace(BY_MONTH, chunk_values=ByBucket("sale", 4))
DIVIDED = {
    "month and value": BY_MONTH,
    "month and bucket": BY_BUCKET,
    "hour": BY_HOUR,
    "hour and value": BY_HOUR_AND_VALUE,
}


def made(tmp_path: Path, target: TargetTable, **rows: object) -> World:
    platform = opened(tmp_path / "home", target, spark=SPARK)
    sales.fill(platform, **rows)  # type: ignore[arg-type]
    return World(platform, tmp_path / "home")


def whose(world: World) -> Counter[tuple[str, str | None, str]]:
    """Count the rows that readers get by month, jurisdiction and run."""
    return Counter((f"{row['day']:%Y-%m}", row["jurisdiction"], row["run_id"]) for row in rows_of(world.platform))


@pytest.mark.parametrize("target", DIVIDED.values(), ids=DIVIDED)
def test_a_divided_table_is_restated_and_rolled_back(tmp_path: Path, target: TargetTable) -> None:
    last = date(2024, 1, 3) if target.chunking == "HOUR" else date(2024, 2, 29)
    world = made(tmp_path, target, last=last)
    world.published(manifest("first", end=last))
    before = rows_of(world.platform)
    assert len(before) == 6 * ((last - date(2024, 1, 1)).days + 1)
    world.published(manifest("second", end=last, version="2"))
    assert {row["run_id"] for row in rows_of(world.platform)} == {"second"}
    assert verify(world.platform, data=True).everything == []
    rollback(world.platform, "second")
    assert rows_of(world.platform) == before
    assert verify(world.platform, data=True).everything == []
    assert examine(world.platform) == []
