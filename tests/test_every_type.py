"""A target with a column of every type, by real Spark: planned, computed, judged, published, compared, and taken back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import every_type
import polars as pl
import pyarrow.parquet as pq
import pytest
from every_type import SOURCE, TARGET, frame_of, some_rows
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.types import ListType, MapType
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.cli.diff_view import shown
from backfill_assets.declarations import finding
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.evidence.diff_records import Within, diff_of
from backfill_assets.ingestion.table_loads import load_file
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import Made, diff_run
from backfill_assets.testing import Trial
from backfill_assets.worker.columns import table_of
from backfill_assets.worker.nested import comparable
from benchmarks.small_table import manifest_data, planned, serves, staged
from manifests.canonical import plain
from manifests.errors import TransformRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.lakehouse.facade import local_path
from resources.lakehouse.type_words import type_words
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
    contract = manifest_data(run_id, mode, ("2020-01-01", "2020-02-29"), computed_by=version, **more)
    contract["source"] = {"table": SOURCE.name}
    contract["transform"]["name"] = TARGET.transform
    contract["target"]["table"] = TARGET.name
    return staged(platform, planned(platform, manifest_from(contract)).run_id)


def errors(platform: Platform, run_id: str) -> Mapping[str, str | None]:
    return {chunk.chunk: chunk.error for chunk in platform.ledger.chunks(run_id)}


def rows_of(platform: Platform) -> pl.DataFrame:
    table = platform.lakehouse.table(TARGET.name)
    frame = pl.from_arrow(table.scan().to_arrow())
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


def test_what_is_published_verifies_to_the_last_row(types: Platform) -> None:
    found = verify(types, data=True)
    assert found.everything == []


def test_the_files_that_are_staged_are_read_alike_by_whoever_goes_by_field_ids(types: Platform) -> None:
    schema = types.lakehouse.table(TARGET.name).schema()
    paths = [local_path(file.path) for chunk in types.ledger.chunks("first") for file in chunk.files]
    for path in paths:
        own = pyarrow_to_schema(pq.read_schema(path))  # raises where a field has no id
        assert {field.field_id: type_words(field.field_type) for field in own.fields} == {
            field.field_id: type_words(field.field_type) for field in schema.fields
        }
        assert ids_in(own.as_struct()) == ids_in(schema.as_struct())
    assert not list(Path(paths[0]).parent.glob("*.partial"))


def ids_in(kind: Any) -> list[int]:
    """Return every field id in a type, in the order in which it is written."""
    own = [kind.element_field] if isinstance(kind, ListType) else list(getattr(kind, "fields", ()))
    own = [kind.key_field, kind.value_field] if isinstance(kind, MapType) else own
    return [number for field in own for number in (field.field_id, *ids_in(field.field_type))]


def test_values_that_no_json_has_are_shown(types: Platform) -> None:
    told = explain(types, TARGET.name, ["name=a", "day=2020-01-03"])
    assert told.row is not None
    row = {name: told.row[name] for name in ("single", "double", "raw", "id", "clock", "local", "prices", "huge")}
    assert row == {
        "single": "nan",
        "double": "0.0",
        "raw": "0x00ff80",
        "id": "12345678-1234-5678-1234-567812345678",
        "clock": "23:59:59.999999",
        "local": "2020-03-29 02:30:00",
        "prices": '{"a": "1.5", "m": null, "z": "nan"}',
        "huge": "9" * 34 + ".9999",
    }
    assert told.source is not None
    assert told.source.total == 1
    json.dumps(plain(told), allow_nan=False)


def test_a_diff_with_a_tolerance_says_how_many_values_are_within_it(
    types: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    near = replace(TARGET, diff_tolerances={"double": 1e-9})
    ran(types, "near", "2")
    exact = diff_run(types, "near").diff
    monkeypatch.setattr(finding, "find_products", serves(replace(every_type.PRODUCT, targets=(near,))))
    platform = Platform.of(types.settings)
    found = diff_run(platform, "near").diff
    assert (exact.changed, exact.within, exact.within_rows) == (2, (), 0)
    assert (found.changed, found.unchanged, found.within_rows) == (1, 2, 1)
    assert found.within == (Within("double", "1e-09", 1),)
    assert found.diff_id != exact.diff_id
    assert diff_of(json.loads(json.dumps(plain(found)))) == found
    console = Console(width=250, file=StringIO())
    console.print(shown(Made(found, new=True)))
    assert "1 row(s) differ in nothing else and count as unchanged; double: 1 value(s) within 1e-09" in (
        console.file.getvalue()  # type: ignore[attr-defined]
    )


def test_rows_are_merged_by_key_and_those_of_others_stay_as_they_were(types: Platform) -> None:
    before = compared(rows_of(types))
    record = ran(types, "merged", "2", "MERGE_BY_KEY", merge={"entities": ["a"]})
    assert record.state is RunState.VALIDATED, errors(types, "merged")
    publish(types, "merged")
    after = compared(rows_of(types))
    assert after.filter(pl.col("name") != "a").equals(before.filter(pl.col("name") != "a"))
    assert not after.equals(before)
    rollback(types, "merged")
    assert compared(rows_of(types)).equals(before)


def test_a_transform_is_tried_on_rows_of_every_type() -> None:
    trial = Trial(TARGET, "1", frame_of(some_rows()), publish_range=("2020-01-01", "2020-02-29"), inputs=(SOURCE,))
    assert not any(trial.violations().values())
    assert compared(trial.rows().sort("name")).equals(compared(frame_of(some_rows())))
    trial.require_pure()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            lambda rows: rows.withColumn("id", F.encode(F.lit("short"), "UTF-8")),
            "id of silver.every_type with a value that is none of its type: a UUID has not 16 bytes",
        ),
        (
            lambda rows: rows.withColumn("id", F.lit("12345678-1234-5678-1234-567812345678")),
            "returned id of silver.every_type as string; it is declared as binary",
        ),
        (
            lambda rows: rows.withColumn("stop", F.col("stop").dropFields("fee")),
            "returned stop of silver.every_type as struct",
        ),
        (
            lambda rows: rows.withColumn("single", F.col("double")),
            "returned single of silver.every_type as double; it is declared as float",
        ),
        (
            lambda rows: rows.withColumn("local", F.col("at")),
            "returned local of silver.every_type as timestamp; it is declared as timestamp_ntz",
        ),
    ],
)
def test_a_value_or_a_type_that_is_not_the_declared_one_is_refused_before_anything_is_staged(
    wrong: Callable[[DataFrame], DataFrame], said: str
) -> None:
    target = replace(
        TARGET,
        versions={"1": ba.TransformVersion(lambda inputs, context: wrong(every_type.as_they_came(inputs, context)))},
    )
    trial = Trial(target, "1", frame_of(some_rows()), publish_range=("2020-01-01", "2020-02-29"), inputs=(SOURCE,))
    with pytest.raises(TransformRefused, match=re.escape(said)):
        trial.rows()
