"""Gates over values of any type: bytes in rows that break a rule, known cases of each type, files that are none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import every_type
import pandera.polars as pa
import polars as pl
import pyarrow.parquet as pq
import pytest
from every_type import TARGET, frame_of, some_rows
from pyspark.sql import functions as F
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.declarations import finding
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.schema import dtypes, iceberg_schema, spark_schema
from backfill_assets.declarations.standard import table_files
from backfill_assets.declarations.target import Finding
from backfill_assets.installation import Platform
from backfill_assets.worker.chunk_rules import KEY_RULE, check_rows
from backfill_assets.worker.columns import table_of
from backfill_assets.worker.violations import Violation
from benchmarks.small_table import serves
from manifests.chunks import Chunk
from manifests.model import Mode
from resources.settings import load_settings

# --- rows with bytes that break a rule ----------------------------------------------------------------------------------

ROWS = pl.DataFrame(
    {"id": [b"\xff", b"\xff", b"b"], "n": [1, 2, 3], "tags": [[b"\xfe"], [], None]},
    schema={"id": pl.Binary, "n": pl.Int64, "tags": pl.List(pl.Binary)},
)
COLUMNS = {"id": pa.Column(pl.Binary), "n": pa.Column(pl.Int64), "tags": pa.Column(pl.List(pl.Binary), nullable=True)}


def broken(schema: pa.DataFrameSchema) -> dict[str, Violation]:
    found: dict[str, Violation] = {}
    check_rows(schema, ROWS, found)
    return found


def test_rows_with_the_same_key_of_bytes_are_told_and_no_worker_panics() -> None:
    found = broken(pa.DataFrameSchema(COLUMNS, unique=["id"]))
    assert {name: one.count for name, one in found.items()} == {KEY_RULE: 2}
    assert [row["id"] for row in found[KEY_RULE].sample] == ["0xff", "0xff"]


def test_a_rule_about_rows_that_have_bytes_beside_names_those_that_break_it() -> None:
    rule = pa.Check(lambda data: data.lazyframe.select(pl.col("n") < 3), error="small")
    found = broken(pa.DataFrameSchema(COLUMNS, checks=[rule]))
    assert {name: one.count for name, one in found.items()} == {"small": 1}


def test_a_value_of_bytes_that_is_no_text_is_told() -> None:
    found = broken(pa.DataFrameSchema(COLUMNS | {"id": pa.Column(pl.Binary, pa.Check.eq(b"b", error="is b"))}))
    assert {name: one.count for name, one in found.items()} == {"id: is b": 2}


# --- what is refused with the declaration -------------------------------------------------------------------------------


def said_of(gate: ba.Reconciliation) -> list[str]:
    product = replace(every_type.PRODUCT, targets=(replace(TARGET, reconciliations=(gate,)),))
    return [one.what for one in problems_of([product])]


@pytest.mark.parametrize("column", ["raw", "id", "tags", "stop", "prices"])
def test_rows_are_not_counted_by_bytes_or_by_what_has_others_inside(column: str) -> None:
    said = said_of(ba.null_share_gate({"words": 5.0}, by=(column,)))
    assert any(one.startswith(f"'{column}' is ") for one in said), said


@pytest.mark.parametrize("column", ["words", "small", "yes", "on", "at", "amount", "double", "clock", "local"])
def test_rows_are_counted_by_any_other_column(column: str) -> None:
    assert said_of(ba.null_share_gate({"words": 5.0}, by=(column,))) == []


def test_a_pipe_is_no_file_of_a_gate(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "cases.csv")
    assert "cases.csv is not a regular file" in said_of(ba.known_keys_gate(str(tmp_path / "cases.csv")))
    assert "cases.csv is not a regular file" in said_of(
        ba.checksum_gate(str(tmp_path / "cases.csv"), ("chunk",), ("amount",))
    )


# --- known cases of each type -------------------------------------------------------------------------------------------

CELLS = {
    "words": "Zürich \u2713",
    "small": "-2147483648",
    "large": "9223372036854775807",
    "yes": "true",
    "on": "2012-02-29",
    "at": "2012-02-29T23:59:59.999999+00:00",
    "amount": "-35.05",
    "single": "nan",
    "double": "0.0",
    "raw": "0x00ff80",
    "id": "12345678-1234-5678-1234-567812345678",
    "clock": "23:59:59.999999",
    "local": "2020-03-29T02:30:00",
}
OTHER = {
    "words": "Zurich",
    "small": "1",
    "large": "1",
    "yes": "false",
    "on": "2012-02-28",
    "at": "2012-02-29T23:59:59.999998+00:00",
    "amount": "-35.06",
    "single": "1.5",
    "double": "1e-300",
    "raw": "0x00ff81",
    "id": "12345678-1234-5678-1234-567812345679",
    "clock": "23:59:59.999998",
    "local": "2020-03-29T02:30:00.000001",
}


@pytest.mark.parametrize("column", sorted(CELLS.keys() - {"words", "raw", "id"}))
def test_values_of_any_type_are_held_against_the_text_that_they_are_counted_under(column: str) -> None:
    kind = dtypes(TARGET.model)[column]
    (text,) = pl.Series([table_files.value_of(kind, CELLS[column])], dtype=kind).cast(pl.String)
    assert said_of(ba.enumeration_gate(column, (text,))) == []
    assert said_of(ba.enumeration_gate(column, ("x",))) == [f"the value 'x' is none that {column} has, which is {kind}"]


@pytest.mark.parametrize(
    ("kind", "cell", "value"),
    [
        (pl.Float64(), "0.1", 0.1),
        (pl.Float32(), "0.1", 0.10000000149011612),
        (pl.Time(), "08:15", time(8, 15)),
        (pl.Binary(), "0aff", b"\x0a\xff"),
        (pl.Binary(), "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678").bytes),
        (pl.Datetime("us"), "2020-03-29T02:30:00", datetime(2020, 3, 29, 2, 30)),  # noqa: DTZ001 - of no zone
    ],
)
def test_a_cell_is_a_value_of_its_columns_type(kind: pl.DataType, cell: str, value: Any) -> None:
    assert table_files.value_of(kind, cell) == value


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (pl.Float64(), "much"),
        (pl.Float32(), "1e39"),
        (pl.Time(), "25:00"),
        (pl.Time(), "12:00+01:00"),
        (pl.Binary(), "0x0"),
        (pl.Datetime("us"), "2020-03-29T02:30:00+01:00"),
        (pl.Datetime("us"), "2020-03-29T02:30:00.0000001"),
        (pl.Datetime("us", "UTC"), "2024-01-31T12:00:00.1234567+01:00"),
        (pl.Time(), "12:00:00,0000001"),
        (pl.Datetime("us", "UTC"), "2020-03-29T02:30:00"),
    ],
)
def test_a_cell_that_is_no_value_is_refused_with_an_example(kind: pl.DataType, cell: str) -> None:
    file = table_files.TableFile("cases.csv", ("x",), ((2, (cell,)),))
    _, (problem,) = table_files.values_of(file, {"x": kind}, "here")
    assert problem.what == f"line 2 of cases.csv: x is '{cell}'"
    assert problem.fix.startswith("for example ")


@pytest.mark.parametrize("column", ["tags", "stop", "prices"])
def test_a_known_case_has_no_value_with_others_inside(column: str, tmp_path: Path) -> None:
    (tmp_path / "cases.csv").write_text(f"name,day,{column}\na,2020-01-03,x\n")
    said = said_of(ba.known_keys_gate(str(tmp_path / "cases.csv")))
    assert any(one.startswith(f"cases.csv has {column}, which is ") for one in said), said


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "find_products", serves(every_type.PRODUCT))
        yield Platform.of(load_settings(home=tmp_path_factory.mktemp("values") / "home", spark=SPARK))


def compared(platform: Platform, folder: Path, text: str, target: ba.TargetTable = TARGET) -> Finding:
    """Hold the rows of every type, as Spark reads them, against a file of cases."""
    (folder / "cases.csv").write_text(text, encoding="utf-8")
    file = folder / "rows.parquet"
    if not file.exists():
        pq.write_table(table_of(frame_of(some_rows()), iceberg_schema(every_type.Events)), file)
    spark = platform.spark.session(Mode.BACKFILL)
    rows = (
        spark.read.schema(spark_schema(iceberg_schema(every_type.Events)))
        .parquet(str(file))
        .withColumn("day", F.to_date("seen_at"))
    )
    context: Any = SimpleNamespace(
        target=target,
        transform=SimpleNamespace(chunks=(Chunk("2020-01", 0, date(2020, 1, 1), date(2020, 1, 31)),)),
        source=rows,
        visible=lambda _days: rows,
        entities=lambda: None,
        tolerances={},
    )
    return ba.known_keys_gate(str(folder / "cases.csv")).check(context)


def test_known_cases_of_every_type_come_out_and_another_value_is_told(platform: Platform, tmp_path: Path) -> None:
    warehouse = Path(platform.settings.catalog["warehouse"].removeprefix("file://"))
    warehouse.mkdir(parents=True, exist_ok=True)
    assert set(CELLS) <= set(dtypes(TARGET.model))
    header = f"name,day,{','.join(CELLS)}\n"
    right = compared(platform, warehouse, f"{header}a,2020-01-03,{','.join(CELLS.values())}\n")
    assert right.passed, (right.summary, right.slices)
    wrong = compared(platform, warehouse, f"{header}a,2020-01-03,{','.join(OTHER.values())}\n")
    assert not wrong.passed
    assert wrong.exceptions is not None
    (row,) = wrong.exceptions().collect()
    assert row["what"].startswith(f"{', '.join(CELLS)} differ")
    assert '"raw":"0x00ff80"' in row["found"]


@pytest.mark.parametrize(("column", "cell"), [("id", CELLS["id"]), ("clock", CELLS["clock"]), ("double", "-0.0")])
def test_a_case_is_found_by_a_key_of_bytes_times_or_doubles(platform: Platform, column: str, cell: str) -> None:
    warehouse = Path(platform.settings.catalog["warehouse"].removeprefix("file://"))
    warehouse.mkdir(parents=True, exist_ok=True)
    target = replace(TARGET, key=("name", "day", column))
    found = compared(platform, warehouse, f"name,day,{column},small\na,2020-01-03,{cell},-2147483648\n", target)
    assert found.passed, found.summary
    missing = compared(platform, warehouse, f"name,day,{column},small\na,2020-01-03,{OTHER[column]},1\n", target)
    assert (missing.passed, missing.disagreeing) == (False, 1)
