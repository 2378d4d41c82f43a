"""What becomes of files of a merge or a correction on their way to Spark's workers and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from support import planned_a_second_ago

from backfill_assets.platform import Platform
from backfill_assets.publication import publish, rollback
from benchmarks.small_table import (
    CORRECTIONS,
    HISTORY,
    READINGS,
    SCOPE,
    closed,
    declared,
    initialise,
    manifest,
    opened,
    planned,
    rows,
    staged,
)
from manifests.lifecycle import RunState
from resources.lakehouse import commit_replacement, local_path


@contextmanager
def world(home: Path) -> Iterator[Platform]:
    """A table with four months that version 1 has published."""
    with declared():
        platform = opened(home)
        initialise(platform)
        with planned_a_second_ago():
            published(platform, "history", "REPLACE_PARTITIONS", HISTORY, computed_by="1")
        yield platform
        closed(platform)


def published(platform: Platform, run_id: str, mode: str, scope: tuple[str, str] = SCOPE, **options: object) -> None:
    record = staged(platform, planned(platform, manifest(run_id, mode, scope, **options)).run_id)
    assert record.state is RunState.VALIDATED
    publish(platform, run_id)


def rename(platform: Platform, scheme: str) -> None:
    """Let the catalog name the table's files otherwise, as Iceberg's Java library and imports of files do."""
    table = platform.lakehouse.table(READINGS)
    old = [task.file for task in table.scan().plan_files()]
    new = []
    for file in old:
        values = list(file._data)
        values[1] = f"{scheme}{local_path(file.file_path)}"
        new.append(DataFile(*values))
    commit_replacement(table, AlwaysTrue(), old, new, {})


@pytest.mark.parametrize("scheme", ["file:", ""], ids=["file:/x", "/x"])
def test_a_merge_replaces_the_files_by_the_names_that_the_catalog_has(tmp_path: Path, scheme: str) -> None:
    with world(tmp_path / "home") as platform:
        rename(platform, scheme)
        before = rows(platform)
        published(platform, "merge", "MERGE_BY_KEY", merge={"entities": ["m1"]})
        after = rows(platform)
        assert len({row[:2] for row in after}) == len(after), "each key once"
        assert [row for row in after if row[0] != "m1"] == [row for row in before if row[0] != "m1"]
        assert {row[3] for row in after if row[0] == "m1"} == {"history", "merge"}
        rollback(platform, "merge")
        assert rows(platform) == before


def test_derived_corrections_lie_below_their_own_table_wherever_the_warehouse_is(tmp_path: Path) -> None:
    with world(tmp_path / "data" / "home") as platform:
        published(platform, "correct", "CORRECTION_EVENTS")
        own = f"{platform.lakehouse.location(CORRECTIONS)}/run=correct/"
        files = [file.path for chunk in platform.ledger.chunks("correct") for file in chunk.derived]
        assert files
        assert [path for path in files if not path.startswith(own)] == []
