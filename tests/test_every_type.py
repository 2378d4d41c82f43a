"""A target with a column of every type, by real Spark: planned, computed, judged, published, compared, and taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import every_type
import polars as pl
import pyarrow.parquet as pq
import pytest
from every_type import SOURCE, TARGET, frame_of, some_rows
from worlds import SPARK

from backfill_assets.audit.explain import explain
from backfill_assets.declarations import finding
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_run
from backfill_assets.worker.columns import table_of
from backfill_assets.worker.nested import comparable
from benchmarks.small_table import manifest_data, planned, serves, staged
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.ledger.facade import RunRecord
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory):
    """An installation of that target, with the rows loaded and published once."""
    folder = tmp_path_factory.mktemp("types")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "find_products", serves(every_type.PRODUCT))
        patch.setattr(Platform, "workers", ThisProcess())  # Spark's workers do not import what a test declares
        platform = Platform.of(load_settings(home=folder / "home", spark=SPARK))
        initialise(platform)
        file = folder / "rows.parquet"
        pq.write_table(table_of(frame_of(some_rows()), iceberg_schema(every_type.Events)), file)
        assert load_file(platform, SOURCE.name, file).load.rows == len(some_rows())
        record = ran(platform, "first")
        assert record.state is RunState.VALIDATED, errors(platform, "first")
        publish(platform, "first")
        yield platform


def ran(
    platform: Platform, run_id: str, version: str = "1", mode: str = "REPLACE_PARTITIONS", **more: Any
) -> RunRecord:
    contract = manifest_data(run_id, mode, ("2020-01-01", "2020-02-29"), computed_by=version)
    contract["source"] = {"table": SOURCE.name}
    contract["transform"]["name"] = TARGET.transform
    contract["target"]["table"] = TARGET.name
    return staged(platform, planned(platform, manifest_from(contract | more)).run_id)


def errors(platform: Platform, run_id: str) -> Mapping[str, str | None]:
    return {chunk.chunk: chunk.error for chunk in platform.ledger.chunks(run_id)}


def rows_of(platform: Platform) -> pl.DataFrame:
    frame = pl.from_arrow(platform.lakehouse.table(TARGET.name).scan().to_arrow())
    assert isinstance(frame, pl.DataFrame)
    return frame.sort("name")


def compared(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select("name", *(comparable(name, kind).alias(name) for name, kind in every_type.KINDS.items()))


def test_every_value_comes_back_as_it_was(types: Platform) -> None:
    found, expected = compared(rows_of(types)), compared(frame_of(some_rows()))
    assert {
        name: (str(found[name].to_list()), str(expected[name].to_list()))
        for name in found.columns
        if not found[name].equals(expected[name])
    } == {}


def test_a_nested_value_that_changes_is_the_only_difference_and_can_be_taken_back(types: Platform) -> None:
    before = rows_of(types)
    ran(types, "second", "2")
    found = diff_run(types, "second", table=True).diff
    assert (found.changed, found.unchanged) == (2, 1)
    assert {one.column: one.changed for one in found.columns if one.changed} == {"stops": 1, "double": 1}
    publish(types, "second")
    assert not compared(rows_of(types)).equals(compared(before))
    told = explain(types, TARGET.name, ["name=a", "day=2020-01-03"])
    assert set(told.versions[0].changed) == {"stops"}
    rollback(types, "second")
    assert compared(rows_of(types)).equals(compared(before))
