"""Of which entities a source that was written anew says something else, whatever types its columns have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from worlds import SPARK

from backfill_assets.installation import Platform
from backfill_assets.staging import compute
from manifests.model import Mode
from resources.settings import load_settings


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    home = tmp_path_factory.mktemp("spark") / "home"
    return Platform.of(load_settings(home=home, spark=SPARK)).spark.session(Mode.BACKFILL)


@pytest.mark.parametrize(
    "value", ["map('x', {})", "array(map('x', {}))", "named_struct('of', map('x', {}))", "array(named_struct('n', {}))"]
)
def test_an_entity_is_found_whose_rows_differ_in_a_value_of_any_type(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    now, then = (spark.sql(f"select 'a' account, {value.format(number)} said") for number in (1, 2))
    frames = {"now": now, "then": then}
    monkeypatch.setattr(compute, "read", lambda _spark, one: frames[one.table])
    monkeypatch.setattr(compute, "in_log", lambda _plan, _table, rows: rows)
    came, gone = (SimpleNamespace(table=name, paths=("file",)) for name in frames)
    nothing: Any = None
    found = compute._changed(spark, nothing, "account", came, gone)  # type: ignore[arg-type]
    assert {row.account for row in found.collect()} == {"a"}
