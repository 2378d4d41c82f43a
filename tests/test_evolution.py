"""A table that got a column after runs were published: rows of before read as NULL, nothing is an alarm, nothing a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pytest
from pyiceberg.types import IntegerType, StringType

from backfill_assets import installation as platform_module
from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.declarations.target import Product
from backfill_assets.installation import Platform
from backfill_assets.operations import doctor
from backfill_assets.publication.publisher import publish
from backfill_assets.review import diff as diff_module
from benchmarks import small_table
from benchmarks.small_table import HISTORY, READINGS, SCOPE, TARGET, Reading, manifest, planned, staged
from manifests.errors import PlanRefused


class ReadingWithStatus(Reading):
    """The same, with what came later."""

    status: str = pa.Field(nullable=True, description="How it was read.")


class ReadingWithAnotherType(Reading):
    """The same, with a column of another type."""

    value: pl.Int32 = pa.Field(description="What it said.")


EVOLVED = replace(TARGET, model=ReadingWithStatus)


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    """A table whose four months are published."""
    with small_table.declared(), mock.patch.object(diff_module, "in_workers", small_table.here):
        found = small_table.opened(tmp_path / "home")
        small_table.initialise(found)
        planned(found, manifest("before", "REPLACE_PARTITIONS", HISTORY, computed_by="1"))
        staged(found, "before")
        publish(found, "before")
        yield found
        small_table.closed(found)


def evolve(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    with platform.lakehouse.table(READINGS).update_schema() as update:
        update.add_column("status", StringType())
    monkeypatch.setattr(platform_module, "PRODUCTS", (Product("readings", (), (EVOLVED,)),))


def test_older_runs_are_verified_and_new_ones_published_beside_them(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolve(platform, monkeypatch)
    assert verify(platform, data=True).everything == []
    planned(platform, manifest("after", "REPLACE_PARTITIONS", SCOPE))
    staged(platform, "after")
    publish(platform, "after")
    done = verify(platform, data=True)
    assert done.everything == []
    assert [run.chunks_read for run in done.runs] == [4, 2]


def test_a_diff_and_an_explanation_show_the_new_column_as_null_before(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolve(platform, monkeypatch)
    planned(platform, manifest("after", "REPLACE_PARTITIONS", SCOPE))
    staged(platform, "after")
    changed = {one.column: one.changed for one in diff_module.diff_run(platform, "after").diff.columns}
    assert changed["status"] == 0
    assert changed["value"] > 0
    publish(platform, "after")
    row = next(one for one in small_table.rows_of("2", *map(date.fromisoformat, SCOPE)) if one["value"] % 1000)
    told = explain(platform, READINGS, [f"meter={row['meter']}", f"day={row['day']}"])
    assert told.row is not None
    assert told.row["status"] is None
    assert all("status" not in version.changed for version in told.versions)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("MERGE_BY_KEY", {"merge": {"entities": ["m1"]}}), ("CORRECTION_EVENTS", {"corrections": "BESIDE"})],
)
def test_rows_with_the_new_column_are_merged_into_older_files_and_correct_them(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, mode: str, options: dict[str, Any]
) -> None:
    evolve(platform, monkeypatch)
    rows_of = small_table.rows_of
    monkeypatch.setattr(small_table, "rows_of", lambda *asked: [row | {"status": "read"} for row in rows_of(*asked)])
    planned(platform, manifest("after", mode, SCOPE, **options))
    staged(platform, "after")
    publish(platform, "after")
    seen = platform.lakehouse.table(READINGS).scan().to_arrow().to_pylist()
    assert {row["status"] for row in seen if row["run_id"] == "after"} == {"read"}
    assert {row["status"] for row in seen if row["run_id"] == "before"} == {None}
    assert verify(platform, data=True).everything == []


def test_a_plan_is_refused_where_table_and_model_differ_and_names_the_column(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = manifest("after", "REPLACE_PARTITIONS", SCOPE)
    with platform.lakehouse.table(READINGS).update_schema() as update:
        update.add_column("quality", IntegerType())
    with pytest.raises(PlanRefused, match=r"has a column quality \(int\), which its model does not declare"):
        planned(platform, contract)
    monkeypatch.setattr(platform_module, "PRODUCTS", (Product("readings", (), (EVOLVED,)),))
    with pytest.raises(PlanRefused) as refused:
        planned(platform, contract)
    said = [problem.what for problem in refused.value.problems]
    assert [text.partition("column ")[2].split()[0].rstrip(",") for text in said] == ["quality", "status"]
    assert [(one.kind, one.where, one.what) for one in doctor.examine(platform)] == [
        ("columns-differ", READINGS, "; ".join(said))
    ]
    other = replace(TARGET, model=ReadingWithAnotherType)
    monkeypatch.setattr(platform_module, "PRODUCTS", (Product("readings", (), (other,)),))
    with pytest.raises(PlanRefused, match="has the column value as long, and its model declares int"):
        planned(platform, contract)
    assert platform.ledger.find("after") is None
