"""`backfill new-product`: what it writes runs as it is, says what is guessed, and is written over nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, MonthTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    FloatType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

import backfill_assets as ba
from backfill_assets.cli.command import cli
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.finding import products_named
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, TABLE_PROPERTIES, iceberg_schema
from backfill_assets.ingestion.guessed_columns import guessed_columns
from backfill_assets.ingestion.input_files import InputFile
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.operations.new_product import folders
from manifests.errors import InputRefused, Refused
from manifests.reading import load_manifest
from resources.settings import load_settings

APPOINTMENTS = """appointment_id,patient_no,ward,booked_at,ended_at,minutes,fee,first_visit,birthday,note
1,007,ENT,2024-02-03T08:30:00+01:00,2024-02-03T09:00:00+01:00,30,12.50,true,1980-01-31,
2,008,ENT,2024-02-03T09:30:00+01:00,,15,7.5,false,1990-05-01,late
3,007,EYE,2024-03-03T08:30:00+01:00,2024-03-03T09:00:00+01:00,,1.25,TRUE,1980-01-31,
"""


OTHER, ONE = "Annotated[pl.Decimal, 12, 3]", "Annotated[pl.Decimal, 10, 3]"
LACKS = f"which lacks the lineage columns ({', '.join(LINEAGE_COLUMNS)}); what is published has them"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in; what is imported from it is forgotten afterwards."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def platform(here: Path) -> Platform:
    """An installation that serves nothing yet."""
    made = Platform.of(load_settings(products=[]))
    initialise(made)
    return made


def asked(*words: str) -> dict[str, Any]:
    """Ask for a product; return what the command says of it."""
    done = CliRunner().invoke(cli, ["new-product", *words, "--json"])
    if done.exception is not None:
        raise done.exception
    found: dict[str, Any] = json.loads(done.output)
    return found


def declared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(folder))
    return import_module(folder.name.removesuffix("-product"))


def written_tests(folder: Path) -> dict[str, Any]:
    """Execute the test that was written; return its functions."""
    (name,) = (folder / "tests").iterdir()
    made: dict[str, Any] = {"__name__": name.stem}
    exec(compile(name.read_text(encoding="utf-8"), str(name), "exec"), made)
    return {one: function for one, function in made.items() if one.startswith("test_")}


def written_lines(folder: Path) -> int:
    files = [*folder.glob("*/__init__.py"), *folder.glob("*.yaml"), *folder.glob("*/*.sql")]
    return sum(bool(line.strip()) for file in files for line in file.read_text(encoding="utf-8").splitlines())


def make_table(platform: Platform, name: str, schema: Schema, *partitions: tuple[int, Any, str]) -> Any:
    fields = (
        PartitionField(source, 1000 + number, transform, of)
        for number, (source, transform, of) in enumerate(partitions)
    )
    return platform.lakehouse.ensure(name, schema, PartitionSpec(*fields), TABLE_PROPERTIES)


READINGS = Schema(
    NestedField(6, "run_id", StringType()),
    NestedField(1, "meter_id", StringType(), required=True, doc="The meter."),
    NestedField(2, "read_at", TimestamptzType()),
    NestedField(3, "level", UUIDType()),
    NestedField(4, "kwh", DecimalType(12, 3)),
    NestedField(5, "changed_at", TimestamptzType()),
)


@pytest.mark.parametrize("sql", [False, True], ids=["python", "sql"])
def test_a_product_that_is_begun_with_nothing_passes_its_own_test_and_its_rows_can_be_loaded(
    here: Path, monkeypatch: pytest.MonkeyPatch, sql: bool
) -> None:
    said = asked("clinic", *(["--sql"] if sql else []))
    folder = here / "clinic-product"
    assert said["folder"] == str(folder)
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == set(said["files"])
    assert written_lines(folder) < 60
    module = declared(folder, monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    manifest = load_manifest(folder / "clinic-daily-first.yaml")
    assert manifest.target.table == module.TARGET.name
    assert manifest.transform.name == module.TARGET.transform
    for test in written_tests(folder).values():
        test()
    (checked,) = InputFile(folder / "sample.csv", module.SOURCE.model).batches()
    assert (checked.passed.height, checked.rejected.height) == (546, 0)
    assert said["next"][4] == "backfill load bronze.clinic_events clinic-product/sample.csv"


def test_the_columns_of_a_file_have_the_narrowest_type_that_leaves_every_value_what_it_is(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = here / "appointments.csv"
    file.write_text(APPOINTMENTS, encoding="utf-8")
    assert {one.name: (str(one.kind), one.nullable) for one in guessed_columns(file)} == {
        "appointment_id": ("Int64", False),
        "patient_no": ("String", False),
        "ward": ("String", False),
        "booked_at": ("Datetime(time_unit='us', time_zone='UTC')", False),
        "ended_at": ("Datetime(time_unit='us', time_zone='UTC')", True),
        "minutes": ("Int64", True),
        "fee": ("Decimal(precision=8, scale=2)", False),
        "first_visit": ("Boolean", False),
        "birthday": ("Date", False),
        "note": ("String", True),
    }
    said = asked("clinic", "--file", "appointments.csv")
    module = declared(here / "clinic-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    (checked,) = InputFile(file, module.SOURCE.model).batches()
    assert (checked.passed.height, checked.rejected.height) == (3, 0)
    manifest = load_manifest(here / "clinic-product" / "clinic-daily-first.yaml")
    days = manifest.target.publish_range
    assert (str(days.start), str(days.end)) == ("2024-02-01", "2024-03-31")
    assert said["review"] == [
        "source_time_column: booked_at, and not ended_at",
        "key: rows are counted by day alone, because no column reads like the name of something",
    ]
    assert written_tests(here / "clinic-product").keys() >= {"test_rows_depend_on_nothing_but_what_is_read"}


def test_rows_of_a_file_are_counted_by_what_many_of_them_have_and_by_the_time_that_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = datetime(2024, 3, 1, tzinfo=UTC)
    lines = [f"{n},w{n % 2},{begin.isoformat()},{begin.replace(month=5).isoformat()}" for n in range(8)]
    (here / "f.csv").write_text("\n".join(["row_id,ward,booked_at,began_at", *lines]), encoding="utf-8")
    said = asked("clinic", "--file", "f.csv", "--time", "began_at", "--sql")
    assert said["review"] == ["key: rows are counted by ward and day, because many rows have the same ward"]
    module = declared(here / "clinic-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    assert (module.TARGET.key, module.TARGET.source_time_column) == (("ward", "day"), "began_at")
    assert module.TARGET.chunks_from == "2024-05"
    with pytest.raises(InputRefused, match=r"--time is ward, which is no instant of f\.csv"):
        asked("other", "--file", "f.csv", "--time", "ward")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("id,at\n1,2024-01-01T08:00:00\n", "column at of f.csv has local times, such as 2024-01-01T08:00:00"),
        ("id,at\n", "f.csv has no rows"),
        ("Order No,class x\n1,2\n", "f.csv has the column(s) 'Order No', 'class x'"),
        ("id,class,validate\n1,2,3\n", "f.csv has the column(s) 'class', 'validate'"),
        ("id,day\n1,2024-01-01\n", "bronze.clinic_rows has no column that is an instant (timestamptz)"),
        ("ID,at,id\n1,2024-01-01T08:00:00Z,2\n", "f.csv has the columns ID and id, which differ by case alone"),
        ('id,at\n1,"2024\n', "f.csv opens a quote in line 2"),
    ],
)
def test_a_file_that_no_load_could_take_as_it_is_is_refused_and_nothing_is_written(
    here: Path, text: str, what: str
) -> None:
    (here / "f.csv").write_text(text, encoding="utf-8")
    with pytest.raises(Refused) as refused:
        asked("clinic", "--file", "f.csv")
    assert refused.value.problems[0].what.startswith(what)
    assert [one.name for one in here.iterdir()] == ["f.csv"]


def test_a_parquet_file_is_declared_with_its_own_types(here: Path) -> None:
    times = arrow.array([0], arrow.timestamp("ms", "Europe/Rome"))
    rows = arrow.table({"id": arrow.array([1], arrow.int16()), "at": times, "xs": [[1.5]], "day": [None]})
    pq.write_table(rows, here / "f.parquet")
    found = {one.name: str(one.kind) for one in guessed_columns(here / "f.parquet")}
    assert found == {
        "id": "Int64",
        "at": "Datetime(time_unit='us', time_zone='UTC')",
        "xs": "List(Float64)",
        "day": "String",
    }


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("My Clinic", "a product is called 'My Clinic'"),
        ("../clinic", "a product is called '../clinic'"),
        ("json", "json is a module that Python finds already"),
        ("polars", "polars is a module that Python finds already"),
        ("class", "class is a word of Python"),
        ("enforcement", "a product enforcement is installed"),
        ("there", "there-product exists"),
    ],
)
def test_a_name_that_is_taken_or_none_is_refused_before_anything_is_written(here: Path, name: str, what: str) -> None:
    (here / "there-product").write_text("mine", encoding="utf-8")
    with pytest.raises(InputRefused) as refused:
        asked(name)
    assert what in [one.what for one in refused.value.problems]
    assert [one.name for one in here.iterdir()] == ["there-product"]
    assert (here / "there-product").read_text(encoding="utf-8") == "mine"


def test_all_files_are_written_or_none(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_text

    def full(path: Path, text: str, **how: Any) -> int:
        if path.name.endswith(".yaml"):
            raise OSError(28, "No space left on device")
        return real(path, text, **how)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(InputRefused, match="No space left on device"):
            asked("clinic")
    assert list(here.iterdir()) == []
    asked("clinic")
    assert [one.name for one in here.iterdir()] == ["clinic-product"]


def test_somebody_who_makes_the_folder_meanwhile_keeps_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = folders.contents

    def slowly(draft: Any) -> dict[str, str]:
        (here / "clinic-product").mkdir()
        (here / "clinic-product" / "mine").touch()
        return real(draft)

    monkeypatch.setattr(folders, "contents", slowly)
    with pytest.raises(InputRefused, match="clinic-product cannot be written"):
        asked("clinic")
    assert [str(one.relative_to(here)) for one in here.rglob("*")] == ["clinic-product", "clinic-product/mine"]


def test_a_table_of_the_catalog_is_counted_by_what_it_is_about_and_its_odd_columns_are_named(
    platform: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_table(platform, "lake.readings", READINGS, (2, MonthTransform(), "read_at_month"))
    times = [datetime(2023, 5, 7, tzinfo=UTC), datetime(2023, 7, 1, tzinfo=UTC)]
    rows = [{"meter_id": "m1", "read_at": at, "changed_at": at} for at in times]
    table.append(arrow.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    said = asked("metering", "--source", "lake.readings")
    assert said["review"] == [
        "column level: left out, because this command writes no uuid",
        "column run_id: left out, because rows that are published have one of their own",
        "source_time_column: read_at, and not changed_at",
        "key: rows are counted by meter_id and day, because meter_id ends with id",
    ]
    module = declared(here / "metering-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    assert module.SOURCE.partition_by == "read_at"
    assert module.TARGET.key == ("meter_id", "day")
    days = load_manifest(here / "metering-product" / "metering-daily-first.yaml").target.publish_range
    assert (str(days.start), str(days.end)) == ("2023-05-01", "2023-07-31")
    written_tests(here / "metering-product")["test_rows_are_what_somebody_says_by_hand"]()


def test_a_table_that_another_product_declares_is_named_and_not_declared_again(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = Platform.of(load_settings())
    initialise(serving)
    asked("hearings", "--source", "bronze.case_events")
    module = declared(here / "hearings-product", monkeypatch)
    assert module.PRODUCT.inputs == ()
    assert module.TARGET.source == "bronze.case_events"
    enforcement = next(one for one in products_named(None).declared if one.name == "enforcement")
    assert problems_of([enforcement, module.PRODUCT]) == []


STAYS = Schema(
    NestedField(1, "stay_no", LongType(), required=True),
    NestedField(2, "patient_id", StringType()),
    NestedField(3, "began_at", TimestamptzType()),
    NestedField(4, "ended_on", DateType()),
    NestedField(5, "score", UUIDType()),
    identifier_field_ids=[1],
)


def test_a_target_is_like_a_table_as_far_as_its_source_has_the_columns(
    platform: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(
        platform, "gold.stays", STAYS, (4, DayTransform(), "ended_on_day"), (2, BucketTransform(16), "patient_bucket")
    )
    said = asked("wards", "--from-table", "gold.stays")
    module = declared(here / "wards-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    target = module.TARGET
    assert (target.name, target.key, target.day_column, target.chunking) == (
        "gold.wards_stays",
        ("stay_no",),
        "ended_on",
        ba.Chunking.DAY,
    )
    assert said["review"] == [
        "column score: left out, because this command writes no uuid",
        "partitions: bucket[16] of patient_id is left out of the new table; a table that exists keeps its own",
        "source: bronze.wards_rows is new, and has the columns of gold.stays; load it, or name --source",
        f"name: gold.wards_stays and not gold.stays, {LACKS}",
        "publishRange of the manifest: bronze.wards_rows has no rows yet; write the first and the last day",
    ]
    assert {"test_rows_pass_the_rules_of_the_model"} <= written_tests(here / "wards-product").keys()


def test_a_source_and_a_target_whose_names_differ_before_the_point_have_a_class_each(
    platform: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = NestedField(1, "visit_id", StringType()), NestedField(2, "at", TimestamptzType())
    published = (NestedField(10 + at, one, StringType()) for at, one in enumerate(LINEAGE_COLUMNS))
    make_table(platform, "bronze.visits", Schema(*columns))
    make_table(platform, "silver.visits", Schema(*columns, *published))
    asked("clinic", "--source", "bronze.visits", "--from-table", "silver.visits")
    module = declared(here / "clinic-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    assert (module.TARGET.model.__name__, module.SOURCE.model.__name__) == ("VisitsRow", "Visits")
    assert list(module.SOURCE.model.to_schema().columns) == ["visit_id", "at"]


def test_every_type_that_has_a_word_in_polars_is_declared(
    platform: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = (TimestamptzType(), FloatType(), TimestampType(), TimeType(), BinaryType(), DecimalType(9, 2))
    plain = [NestedField(at, f"c{at}", kind) for at, kind in enumerate(kinds, 1)]
    lists = [NestedField(10 + at, f"c{10 + at}", ListType(100 + at, one.field_type)) for at, one in enumerate(plain, 1)]
    make_table(platform, "silver.odd", Schema(*plain, *lists))
    said = asked("odds", "--from-table", "silver.odd")
    assert not [one for one in said["review"] if one.startswith("column ")]
    module = declared(here / "odds-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    found = [str(field.field_type) for field in iceberg_schema(module.SOURCE.model).fields]
    assert found == [str(field.field_type) for field in (*plain, *lists)]
    for test in written_tests(here / "odds-product").values():
        test()


def test_columns_that_a_source_lacks_are_left_out_and_a_guessed_key_is_marked(
    platform: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(platform, "lake.readings", READINGS)
    like = Schema(
        NestedField(1, "meter_id", StringType()),
        NestedField(2, "read_at", TimestamptzType()),
        NestedField(3, "kwh", DecimalType(10, 3)),
        NestedField(4, "quality", StringType()),
    )
    make_table(platform, "silver.hourly", like, (2, MonthTransform(), "read_at_month"))
    said = asked("hourly", "--source", "lake.readings", "--from-table", "silver.hourly")
    assert said["review"] == [
        "column level: left out, because this command writes no uuid",
        "column run_id: left out, because rows that are published have one of their own",
        "source_time_column: read_at, and not changed_at",
        f"column kwh: left out, because lake.readings has it as {OTHER}; compute it, and declare it as {ONE}",
        "column quality: left out, because lake.readings has it not; compute it, and declare it as str",
        "day_column: day is new, and is the day of read_at in UTC",
        "key: meter_id and read_at, guessed from names; the schema has no identifier fields that are copied",
        f"name: silver.hourly_hourly and not silver.hourly, {LACKS}",
        "publishRange of the manifest: lake.readings has no rows yet; write the first and the last day",
    ]
    text = (here / "hourly-product" / "hourly" / "__init__.py").read_text(encoding="utf-8")
    assert 'key=("meter_id", "read_at"),  # review' in text
    module = declared(here / "hourly-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    for test in written_tests(here / "hourly-product").values():
        test()


def test_a_table_that_runs_can_publish_into_keeps_its_name(
    platform: Platform, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked("clinic")
    like = iceberg_schema(declared(here / "clinic-product", monkeypatch).TARGET.model)
    make_table(platform, "silver.old_daily", like, (2, MonthTransform(), "day_month"))
    events = (
        NestedField(1, "thing_id", StringType()),
        NestedField(2, "day", DateType()),
        NestedField(3, "events", LongType()),
    )
    make_table(platform, "lake.days", Schema(*events, NestedField(4, "at", TimestamptzType())))
    asked("older", "--from-table", "silver.old_daily", "--source", "lake.days")
    module = declared(here / "older-product", monkeypatch)
    assert problems_of([module.PRODUCT]) == []
    assert (module.TARGET.name, module.TARGET.day_column) == ("silver.old_daily", "day")
    with pytest.raises(InputRefused, match="has no column that is an instant"):
        asked("oldest", "--from-table", "silver.old_daily")


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--source", "lake.nothing"), "table lake.nothing does not exist"),
        (("--from-table", "lake.nothing"), "table lake.nothing does not exist"),
        (
            ("--from-table", "lake.nothing", "--source", "lake.nothing"),
            "lake.nothing was given as --source and as --from-table",
        ),
        (("--from-table", "stays"), "'stays' is no table that can be declared"),
        (("--source", "a.b", "--file", "f.csv"), "both --file and --source were given"),
        (("--file", "f.csv"), "f.csv does not exist"),
        (("--time", "at"), "--time was given without --file or --source"),
        (("--source", "lake.my-table"), "'lake.my-table' is no table that can be declared"),
    ],
)
def test_what_a_product_cannot_be_made_from_is_refused(
    platform: Platform, here: Path, words: tuple[str, ...], what: str
) -> None:
    with pytest.raises(Refused) as refused:
        asked("clinic", *words)
    assert refused.value.problems[0].what == what
    assert list(here.iterdir()) == []
