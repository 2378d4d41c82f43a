"""Changes of columns: each is applied to a table without a rewritten file, or refused by its rule before anything is changed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from small_worlds import copy_of
from worlds import SPARK

from backfill_assets import faults
from backfill_assets.audit.verification import verify
from backfill_assets.cli.columns import preview
from backfill_assets.declarations import finding
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Instant
from backfill_assets.evidence.events import COLUMN_CHANGES
from backfill_assets.installation import Platform
from backfill_assets.operations.columns import differences, evolve
from backfill_assets.operations.initialise import initialise
from backfill_assets.staging.pinned_rows import read
from benchmarks import small_table
from benchmarks.small_table import TARGET, serves
from manifests.errors import DeclarationRefused, EnvironmentRefused
from manifests.model import Mode
from resources.lakehouse.column_changes import Change
from resources.lakehouse.facade import local_path

SAMPLES = "bronze.samples"
ROWS = [
    {
        "id": f"s{number}",
        "number": number,
        "wide": 10**12 + number,
        "share": number / 2,
        "price": Decimal(number) / 100,
        "marks": [number, number + 1],
        "seen": datetime(2024, 1, 1 + number, tzinfo=UTC),
        "note": None if number % 2 else f"note {number}",
        "parts": [{"name": f"part {number}", "grams": number}],
        "grid": [[number], []],
    }
    for number in range(5)
]
PARTS = StructType(
    NestedField(22, "name", StringType(), required=False), NestedField(23, "grams", LongType(), required=False)
)
GRID = ListType(25, IntegerType(), element_required=False)
BEFORE = Schema(
    NestedField(1, "id", StringType(), required=True),
    NestedField(2, "number", IntegerType(), required=False),
    NestedField(3, "wide", LongType(), required=False),
    NestedField(4, "share", FloatType(), required=False),
    NestedField(5, "price", DecimalType(9, 2), required=False),
    NestedField(6, "marks", ListType(20, IntegerType(), element_required=False), required=False),
    NestedField(7, "seen", TimestamptzType(), required=False),
    NestedField(8, "note", StringType(), required=False, doc="What was written."),
    NestedField(9, "parts", ListType(21, PARTS, element_required=False), required=False),
    NestedField(10, "grid", ListType(24, GRID, element_required=False), required=False),
)
"""A table that somebody else has made: it requires a column, and has one of floats."""


class Sample(pa.DataFrameModel):
    """Its model: what is left to say of the table as it was found is that nothing need be required, and floats are wider."""

    id: str
    number: pl.Int32 = pa.Field(nullable=True)
    wide: pl.Int64 = pa.Field(nullable=True)
    share: pl.Float64 = pa.Field(nullable=True)
    price: Annotated[pl.Decimal, 9, 2] = pa.Field(nullable=True)
    marks: pl.List(pl.Int32) = pa.Field(nullable=True)  # type: ignore[valid-type]
    seen: Instant = pa.Field(nullable=True)
    note: str = pa.Field(nullable=True, description="What was written.")
    parts: pl.List(pl.Struct({"name": pl.String, "grams": pl.Int64})) = pa.Field(nullable=True)  # type: ignore[valid-type]
    grid: pl.List(pl.List(pl.Int32)) = pa.Field(nullable=True)  # type: ignore[valid-type]


NAMES = ("id", "number", "wide", "share", "price", "marks", "seen", "note", "parts", "grid")


IN_PLACE = {"remark": "note", "count": "number", "small": "number", "large": "wide"}
"""Where a column stands that has another name now."""


def model(**changes: Any) -> type[pa.DataFrameModel]:
    """Return the model with columns that are declared otherwise: a pair of type and field, None for one that it has not."""
    kinds = {name: kind for name, kind in get_type_hints(Sample, include_extras=True).items() if name in NAMES}
    fields: dict[str, Any] = {
        name: pa.Field(nullable=name != "id", description="What was written." if name == "note" else None)
        for name in kinds
    }
    order = list(changes.pop("order", kinds))
    for name in (name for name, change in changes.items() if change is not None):
        kinds[name], fields[name] = changes[name]
        if name not in order:
            order.insert(order.index(IN_PLACE[name]) if name in IN_PLACE else len(order), name)
    order = [name for name in order if changes.get(name, ()) is not None]
    annotations = {name: kinds[name] for name in order}
    return type(
        "Changed", (pa.DataFrameModel,), {"__annotations__": annotations, **{name: fields[name] for name in order}}
    )


def nullable(**said: Any) -> Any:
    return pa.Field(nullable=True, **said)


def was(*names: str) -> Any:
    return nullable(metadata={"renamed_from": names[0] if len(names) == 1 else list(names)})


APPLIED: dict[str, tuple[dict[str, Any], set[Change]]] = {
    "a column is added": ({"status": (str, nullable())}, {Change.ADD}),
    "a list is added": ({"tags": (pl.List(pl.String), nullable())}, {Change.ADD}),
    "a column is added between others": (
        {"status": (str, nullable()), "order": ["id", "status", *NAMES[1:]]},
        {Change.ADD},
    ),
    "a column is renamed": ({"note": None, "remark": (str, was("note"))}, {Change.RENAME, Change.DOCUMENT}),
    "a column is renamed by an older name": (
        {"number": None, "count": (pl.Int32, was("tally", "number"))},
        {Change.RENAME},
    ),
    "a column is renamed and widened": (
        {"number": None, "count": (pl.Int64, was("number"))},
        {Change.RENAME, Change.WIDEN},
    ),
    "two columns are renamed and one is added": (
        {
            "number": None,
            "wide": None,
            "small": (pl.Int32, was("number")),
            "large": (pl.Int64, was("wide")),
            "huge": (Annotated[pl.Decimal, 38, 0], nullable()),
        },
        {Change.RENAME, Change.ADD},
    ),
    "an int becomes a long": ({"number": (pl.Int64, nullable())}, {Change.WIDEN}),
    "a decimal gets more digits": ({"price": (Annotated[pl.Decimal, 20, 2], nullable())}, {Change.WIDEN}),
    "what is in a list becomes wider": ({"marks": (pl.List(pl.Int64), nullable())}, {Change.WIDEN}),
    "what is in a list of lists becomes wider": (
        {"grid": (pl.List(pl.List(pl.Int64)), nullable())},
        {Change.WIDEN},
    ),
    "columns are put in another order": ({"order": NAMES[::-1]}, {Change.REORDER}),
    "a column is described": ({"number": (pl.Int32, nullable(description="How many."))}, {Change.DOCUMENT}),
    "a description is taken back": ({"note": (str, nullable())}, {Change.DOCUMENT}),
}
"""Changes that touch metadata alone. All tables of before also have a float that becomes a double, and a required column."""

REFUSED: dict[str, tuple[dict[str, Any], Change, str, str]] = {
    "a column is removed": ({"note": None}, Change.REMOVE, "note", "a column is not removed"),
    "a column has another name, and nobody says so": (
        {"note": None, "remark": (str, nullable())},
        Change.REMOVE,
        "note",
        "a column is not removed",
    ),
    "a long becomes an int": ({"wide": (pl.Int32, nullable())}, Change.NARROW, "wide", "a type only widens"),
    "what is in a structure becomes another": (
        {"parts": (pl.List(pl.Struct({"name": pl.String, "grams": pl.String})), nullable())},
        Change.RETYPE,
        "parts",
        "none of it reads as list<struct<name: string, grams: string>>",
    ),
    "a decimal gets fewer digits": (
        {"price": (Annotated[pl.Decimal, 5, 2], nullable())},
        Change.NARROW,
        "price",
        "a type only widens",
    ),
    "a decimal gets more digits after its point": (
        {"price": (Annotated[pl.Decimal, 12, 4], nullable())},
        Change.RETYPE,
        "price",
        "keeps the digits after its point",
    ),
    "a number becomes a text": ({"number": (str, nullable())}, Change.RETYPE, "number", "none of it reads as string"),
    "a text becomes a date": ({"note": (pl.Date, nullable())}, Change.RETYPE, "note", "none of it reads as date"),
    "a column is added that no row may be without": (
        {"status": (str, pa.Field())},
        Change.MAKE_REQUIRED,
        "status",
        "rows that are there have no value",
    ),
    "a column gets the name that another had": (
        {"gone": (str, nullable())},
        Change.REUSE,
        "gone",
        "a name that a column has had stays its own",
    ),
    "a column is renamed to the name that another had": (
        {"note": None, "gone": (str, was("note"))},
        Change.REUSE,
        "gone",
        "a name that a column has had stays its own",
    ),
}


def with_samples(platform: Platform) -> None:
    """Make the table with two files of rows; it has had a column that is gone."""
    small_table.initialise(platform)
    platform.lakehouse.catalog.create_namespace_if_not_exists("bronze")
    table = platform.lakehouse.catalog.create_table(SAMPLES, BEFORE, partition_spec=UNPARTITIONED_PARTITION_SPEC)
    with table.update_schema() as update:
        update.add_column("gone", StringType())
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("gone")
    for rows in (ROWS[:3], ROWS[3:]):
        table.append(arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema())))


@pytest.fixture
def platform() -> Iterator[Platform]:
    with small_table.declared():
        found = copy_of(with_samples, spark=SPARK)
        yield found
        small_table.closed(found)


@pytest.fixture
def declares(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[pa.DataFrameModel]], None]:
    def declare(own: type[pa.DataFrameModel]) -> None:
        table = InputTable(SAMPLES, "Samples.", own, TARGET.owners)
        monkeypatch.setattr(finding, "find_products", serves(Product("readings", (table,), (TARGET,))))

    return declare


def files_of(platform: Platform) -> dict[str, str]:
    """Return the SHA-256 of each file of rows below the table, by path, and that the snapshots list these."""
    table = platform.lakehouse.table(SAMPLES)
    paths = {Path(local_path(one)) for one in table.inspect.all_files()["file_path"].to_pylist()}
    below = set(Path(local_path(platform.lakehouse.location(SAMPLES))).rglob("*.parquet"))
    assert paths == below
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def rows_at(table: Table, snapshot_id: int) -> list[dict[str, Any]]:
    found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(found, key=lambda row: str(row["id"]))


@pytest.mark.parametrize("case", APPLIED)
def test_a_change_that_breaks_no_reader_is_one_commit_of_metadata(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None], case: str
) -> None:
    said, expected = APPLIED[case]
    own = model(**said)
    declares(own)
    before, files = platform.lakehouse.table(SAMPLES), files_of(platform)
    (difference,) = [one for one in differences(platform) if one.changes]
    assert {one.change for one in difference.changes} == expected | {Change.WIDEN, Change.MAKE_OPTIONAL}
    assert (difference.table, difference.problems) == (SAMPLES, [])
    assert platform.lakehouse.table(SAMPLES).metadata_location == before.metadata_location, "a preview writes nothing"

    evolve(platform)

    after = platform.lakehouse.table(SAMPLES)
    assert files_of(platform) == files
    assert len(after.metadata.metadata_log) == len(before.metadata.metadata_log) + 1, "one commit"
    assert after.snapshots() == before.snapshots()
    assert [one.name for one in after.schema().fields] == list(own.to_schema().columns)
    assert all(not one.required for one in after.schema().fields)
    assert isinstance(after.schema().find_field("share").field_type, DoubleType)
    assert [one for one in differences(platform) if one.changes] == []
    assert evolve(platform) == {}
    # readers get every row: what a column has, under the name that it has now, and NULL where there was none
    by_id = {one.field_id: one.name for one in before.schema().fields}
    now = sorted(after.scan().to_arrow().to_pylist(), key=lambda row: str(row["id"]))
    for row, then in zip(now, ROWS, strict=True):
        for column in after.schema().fields:
            old = by_id.get(column.field_id)
            assert row[column.name] == (None if old is None else then[old]), column.name
    # time travel: an old snapshot has the columns that it had
    for snapshot in after.snapshots():
        assert rows_at(after, snapshot.snapshot_id) == rows_at(before, snapshot.snapshot_id)


@pytest.mark.parametrize("case", REFUSED)
def test_a_change_that_breaks_readers_is_refused_by_its_rule_and_nothing_is_changed(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None], case: str
) -> None:
    said, change, column, rule = REFUSED[case]
    declares(model(**said, status2=(str, nullable())))  # what could be applied beside it is not
    before, files = platform.lakehouse.table(SAMPLES).metadata_location, files_of(platform)
    (difference,) = [one for one in differences(platform) if one.changes]
    refused = [one for one in difference.changes if one.problem is not None]
    assert [(one.change, one.column) for one in refused] == [(change, column)]
    with pytest.raises(EnvironmentRefused) as refusal:
        evolve(platform)
    (problem,) = refusal.value.problems
    assert rule in problem.rule
    assert column in problem.what
    assert SAMPLES in problem.what
    if change is not Change.REUSE:
        assert f"({SAMPLES}_v2)" in problem.fix
        assert "MIGRATION" in problem.fix
    assert platform.lakehouse.table(SAMPLES).metadata_location == before
    assert files_of(platform) == files


def test_a_column_that_was_renamed_gets_its_old_name_back(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None]
) -> None:
    for own in (model(note=None, remark=(str, was("note"))), model(note=(str, was("remark")))):
        declares(own)
        evolve(platform)
    table = platform.lakehouse.table(SAMPLES)
    assert table.schema().find_field("note").field_id == BEFORE.find_field("note").field_id
    assert [row["note"] for row in rows_at(table, table.snapshots()[-1].snapshot_id)] == [row["note"] for row in ROWS]


def test_what_is_called_otherwise_is_asked_whether_it_was_renamed(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None]
) -> None:
    declares(model(note=None, remark=(str, nullable())))
    with pytest.raises(EnvironmentRefused) as refusal:
        evolve(platform)
    assert 'remark: ... = pa.Field(metadata={"renamed_from": "note"})' in refusal.value.problems[0].fix


def killed_at(point: str, platform: Platform) -> None:
    """Have a child change the columns, and be killed at a point."""
    small_table.closed(platform)  # no connection goes with the child
    child = os.fork()
    if child == 0:
        os.environ[faults.VARIABLE] = point
        try:
            evolve(platform)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("point", ["evolving.listed", "evolving.committed"])
def test_whoever_is_killed_while_columns_are_changed_runs_the_same_command_again(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None], point: str
) -> None:
    own = model(note=None, remark=(str, was("note")), status=(str, nullable()))
    declares(own)
    files = files_of(platform)
    killed_at(point, platform)
    left = [one for one in differences(platform) if one.changes]
    assert bool(left) is (point == "evolving.listed"), "a commit is there or not, and never half of it"
    evolve(platform)
    table = platform.lakehouse.table(SAMPLES)
    assert [one.name for one in table.schema().fields] == list(own.to_schema().columns)
    assert table.schema().schema_id == max(one.schema_id for one in table.metadata.schemas)
    assert files_of(platform) == files
    listed = list(platform.evidence.records(COLUMN_CHANGES).glob("*-listed.json"))
    assert len(listed) == 1, "begun twice, and on record once"
    assert verify(platform).everything == []


def test_a_change_on_record_says_who_changed_what(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None]
) -> None:
    declares(model(note=None, remark=(str, was("note"))))
    before = platform.lakehouse.table(SAMPLES).schema().schema_id
    evolve(platform)
    (file,) = platform.evidence.records(COLUMN_CHANGES).glob("*-listed.json")
    listed = json.loads(file.read_text())["listed"]
    assert (listed["table"], listed["schemaId"]) == (SAMPLES, before)
    assert {"change": "rename", "column": "remark", "was": "note", "becomes": "remark", "fieldId": 8} in listed[
        "changes"
    ]
    file.write_text(file.read_text().replace("remark", "remarks"))
    assert verify(platform).problems, "a changed record is found"


@pytest.mark.parametrize(
    ("said", "code"),
    [({"status": (str, nullable())}, 3), ({"status": (str, nullable()), "wide": (pl.Int32, nullable())}, 2)],
)
def test_a_preview_tells_scripts_by_its_exit_code_and_people_by_a_table(
    platform: Platform,
    declares: Callable[[type[pa.DataFrameModel]], None],
    capsys: pytest.CaptureFixture[str],
    said: dict[str, Any],
    code: int,
) -> None:
    declares(model(**said))
    for as_json in (False, True):
        with pytest.raises(SystemExit) as ended:
            preview(platform, as_json)
        assert ended.value.code == code
        printed = capsys.readouterr().out
        if as_json:
            (found,) = [one for one in json.loads(printed)["tables"] if one["changes"]]
            assert found["table"] == SAMPLES
            assert {(one["change"], one["column"], one["applied"]) for one in found["changes"]} >= {
                ("add", "status", True)
            }
        else:
            assert "status" in printed
            assert ("would refuse all of it" in printed) is (code == 2)
    if code == 3:
        initialise(platform)
        preview(platform, as_json=False)
        assert "tables and models agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("own", "rule"),
    [
        (
            model(note=None, remark=(str, nullable(metadata={"renamed_from": 7}))),
            "it is the name that the column had before",
        ),
        (model(remark=(str, was("note"))), "a former name is nobody's any more"),
        (
            model(note=None, a=(str, was("note")), b=(str, was("note"))),
            "a column becomes one column, and a says the same",
        ),
    ],
)
def test_a_former_name_that_leaves_a_doubt_is_refused_with_its_declaration(
    own: type[pa.DataFrameModel], rule: str
) -> None:
    table = InputTable(SAMPLES, "Samples.", own, TARGET.owners)
    with pytest.raises(DeclarationRefused, match=rule):
        finding.check_products([Product("samples", (table,), ())])


def test_spark_reads_old_files_by_todays_columns_and_old_snapshots_by_their_own(
    platform: Platform, declares: Callable[[type[pa.DataFrameModel]], None]
) -> None:
    declares(
        model(
            number=None,
            count=(pl.Int64, was("number")),
            price=(Annotated[pl.Decimal, 20, 2], nullable()),
            marks=(pl.List(pl.Int64), nullable()),
            status=(str, nullable()),
            order=NAMES[::-1],
        )
    )
    first = platform.lakehouse.table(SAMPLES).schema().schema_id
    evolve(platform)
    snapshot_id = platform.lakehouse.snapshot_id(SAMPLES)
    spark = platform.spark.session(Mode.BACKFILL)
    today, then = (platform.lakehouse.pinned(SAMPLES, snapshot_id, schema_id=one) for one in (None, first))
    rows = [row.asDict() for row in read(spark, today).orderBy("id").collect()]
    for row, was_ in zip(rows, ROWS, strict=True):
        assert (row["count"], row["price"], row["marks"]) == (was_["number"], was_["price"], was_["marks"])
        assert (row["share"], row["status"]) == (was_["share"], None)
    old = [row.asDict() for row in read(spark, then, ("id", "number", "note")).orderBy("id").collect()]
    assert [(row["number"], row["note"]) for row in old] == [(row["number"], row["note"]) for row in ROWS]
    assert platform.lakehouse.rows(SAMPLES, snapshot_id or 0)[0].keys() == rows[0].keys(), (
        "whole rows have today's columns"
    )
