"""What becomes of files of a merge or a correction on their way to Spark's workers and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile

from backfill_assets.audit.explain import explain
from backfill_assets.audit.report import report
from backfill_assets.installation import Platform
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.staging import executor
from backfill_assets.worker.violations import READ_RULE
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
from manifests.errors import EnvironmentRefused, PublicationRefused
from manifests.lifecycle import RunState
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import Scope, local_path


@contextmanager
def world(home: Path) -> Iterator[Platform]:
    """A table with four months that version 1 has published."""
    with declared():
        platform = opened(home)
        initialise(platform)
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


def gone(file: Path) -> None:
    file.unlink()


def cut(file: Path) -> None:
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:100])


DERIVING = pytest.mark.parametrize(
    ("mode", "options"), [("MERGE_BY_KEY", {"merge": {"entities": ["m1"]}}), ("CORRECTION_EVENTS", {})]
)


@DERIVING
@pytest.mark.parametrize("damage", [gone, cut])
def test_a_derived_file_that_was_damaged_before_its_gate_is_made_again(
    tmp_path: Path, mode: str, options: dict[str, Any], damage: Callable[[Path], None]
) -> None:
    with world(tmp_path / "home") as platform:
        record = planned(platform, manifest("run", mode, SCOPE, **options))
        executor.stage_chunks(platform, "run", [chunk.key for chunk in record.plan.chunks])
        damaged = next(file for chunk in platform.ledger.chunks("run") for file in chunk.derived)
        damage(Path(local_path(damaged.path)))
        assert staged(platform, "run").state is RunState.FAILED
        (failed,) = [verdict for verdict in platform.ledger.verdicts("run") if not verdict.passed]
        (violation,) = failed.details["violations"]
        assert (violation["rule"], violation["sample"][0]["file"]) == (READ_RULE, local_path(damaged.path))
        assert staged(platform, "run").state is RunState.VALIDATED
        publish(platform, "run")


@DERIVING
def test_nothing_is_derived_of_rows_that_cannot_be_read(tmp_path: Path, mode: str, options: dict[str, Any]) -> None:
    with world(tmp_path / "home") as platform:
        planned(platform, manifest("run", mode, SCOPE, **options))
        scope = {"2020-02": Scope("day", date(2020, 2, 1), date(2020, 2, 29))}
        path, *_ = platform.lakehouse.files_by_chunk(READINGS, None, scope)["2020-02"]
        file = Path(local_path(path))
        away = file.rename(tmp_path / "away")
        with pytest.raises(EnvironmentRefused, match=f"{file.name} cannot be read"):
            staged(platform, "run")
        away.rename(file)
        assert staged(platform, "run").state is RunState.VALIDATED


@pytest.mark.parametrize("damage", [gone, cut])
def test_a_row_is_not_explained_by_corrections_that_cannot_be_read(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with world(tmp_path / "home") as platform:
        published(platform, "correct", "CORRECTION_EVENTS")
        one = platform.lakehouse.table(CORRECTIONS).scan().to_arrow().to_pylist()[0]
        key = [f"meter={one['meter']}", f"day={one['day']}"]
        assert explain(platform, READINGS, key).corrections
        for chunk in platform.ledger.chunks("correct"):
            for file in chunk.derived:
                damage(Path(local_path(file.path)))
        with pytest.raises(EnvironmentRefused, match=f"a file of {CORRECTIONS} cannot be read"):
            explain(platform, READINGS, key)


def test_what_a_merge_leaves_of_an_earlier_run_is_said_and_what_must_be_rolled_back_first(tmp_path: Path) -> None:
    with world(tmp_path / "home") as platform:
        published(platform, "merge", "MERGE_BY_KEY", HISTORY, merge={"entities": ["m1"]})
        assert platform.ledger.run("history").state is RunState.SUPERSEDED
        earlier, later = (" ".join(report(platform, run_id).split()) for run_id in ("history", "merge"))
        assert "Readers see its rows no more" not in earlier
        assert "Where merge merged rows into its chunks, readers see its rows of other entities still" in earlier
        assert "It takes the place of the rows of its entities that history had published." in later
        with pytest.raises(PublicationRefused, match=r"SUPERSEDED \(by run merge\)[\s\S]*roll back merge first"):
            rollback(platform, "history")
        published(platform, "whole", "REPLACE_PARTITIONS", HISTORY)
        assert "Readers see its rows no more" in report(platform, "merge")
