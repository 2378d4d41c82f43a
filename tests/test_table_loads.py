"""Loading files into declared input tables, and taking loads back: real tables, no Spark."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import pandera.polars as pandera
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import put_in_force

import backfill_assets as ba
from backfill_assets.cli.command import cli, main
from backfill_assets.declarations import finding
from backfill_assets.declarations.deliveries import Counted
from backfill_assets.declarations.places import ROOT
from backfill_assets.ingestion import table_loads
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.ingestion.input_files import InputFile, as_json
from backfill_assets.ingestion.own_loaders import delivered
from backfill_assets.ingestion.table_loads import load_file, undo_load
from backfill_assets.ingestion.typed_values import as_declared
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.initialise import initialise
from benchmarks.small_table import serves
from manifests.errors import DeclarationRefused, EnvironmentRefused, InputRefused, Problem, Refused, TransitionRefused
from manifests.model import ReferenceData
from manifests.reference_pins import pin_reference
from resources import actors
from resources.actors import Actor, Channel, Proof
from resources.settings import load_settings

READINGS, TARIFFS = "bronze.readings", "reference.tariffs"
NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


class Readings(pandera.DataFrameModel):
    meter: str = pandera.Field(str_length={"min_value": 1})
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int32 = pandera.Field(ge=0)
    price: Annotated[pl.Decimal, 12, 2] = pandera.Field(nullable=True)

    @ba.row_rule("a free reading has no price")
    def _free(cls, data: pandera.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select((pl.col("watt_hours") > 0) | pl.col("price").is_null())

    class Config:
        unique = ("meter", "read_at")


class Tariffs(pandera.DataFrameModel):
    name: str = pandera.Field(unique=True)
    cents: pl.Int64 = pandera.Field(ge=0)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loads") / "home"


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Platform:
    inputs = (
        ba.InputTable(READINGS, "readings", Readings, ("team:x",), partition_by="read_at"),
        ba.InputTable(TARIFFS, "tariffs", Tariffs, ("team:x",), is_reference=True),
    )
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", inputs, ())))
    opened = Platform.of(load_settings(home=tmp_path / "home", quarantine_limit=0.5))
    initialise(opened)
    return opened


class Logged(pandera.DataFrameModel):
    meter_id: str = pandera.Field()
    read_at: ba.Instant = pandera.Field()
    watt_hours: pl.Int64 = pandera.Field()


@pytest.fixture
def logged(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> Platform:
    """The installation with the input table of the documentation's own loader besides."""
    table = ba.InputTable("bronze.meter_readings", "readings", Logged, ("team:x",), partition_by="read_at")
    product = ba.Product("metering", (*platform.products.inputs, table), ())
    monkeypatch.setattr(finding, "find_products", serves(product))
    opened = Platform.of(load_settings(home=platform.settings.home, quarantine_limit=0.5))
    initialise(opened)
    return opened


def shown_loader() -> dict[str, Any]:
    """Return the names of the loader that the documentation shows."""
    page = ROOT / "docs" / "adding-a-table.md"
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL) if "ba.Loader(" in one]
    module = ModuleType("shown_loader")
    sys.modules[module.__name__] = module
    exec(compile(block, str(page), "exec"), module.__dict__)
    return module.__dict__


def test_the_loader_that_is_shown_delivers_what_its_table_and_the_quarantine_get(
    logged: Platform, tmp_path: Path
) -> None:
    loader = shown_loader()["LOADER"]
    file = tmp_path / "log.txt"
    file.write_text("m1;2024-07-01T12:00:00;0.5\nm1;2024-01-01T12:00:00;1.25\nm1;noon;2\n")
    for new in (True, False):
        done = load_delivery(logged, loader.table, delivered("readings-log", lambda: loader.from_file(file)), 0.5)
        assert (done.new, done.counted.events, done.counted.quarantined) == (new, 2, 1)
    assert [(one["read_at"].hour, one["watt_hours"]) for one in held(logged, loader.table)] == [(10, 500), (11, 1250)]
    (rejected,) = held(logged, f"{loader.table}_quarantine")
    assert (rejected["source_row"], rejected["record"]) == (2, '"m1;noon;2\\n"')


@pytest.mark.parametrize(
    ("member", "gives", "said"),
    [
        ("load_id", property(lambda _: 1 // 0), "ZeroDivisionError"),
        ("load_id", None, "has no load_id"),
        ("load_id", property(lambda _: None), "the load_id of a Wrong is None, and no text"),
        ("load_id", property(lambda _: "day-\ud800"), "half a character, no text"),
        ("load_id", property(lambda _: "day~2"), "the load_id of a Wrong is 'day~2': after a ~ comes the number"),
        ("source_file", property(lambda _: " "), "the source_file of a Wrong is ' ', and no text"),
        ("source_file", property(lambda one: one.nothing), "has no attribute 'nothing'"),
        ("count", lambda *_: sys.exit(3), "it ends the process"),
        ("count", lambda *_: (2, 0), r"count gives a tuple, not a .*Counted"),
        ("count", lambda *_: Counted(1, 0.0, {}, {}), "quarantined of count is 0.0, and no number of rows"),  # type: ignore[arg-type]
        ("count", lambda *_: Counted(False, 0, {}, {}), "events of count is False, and no number of rows"),
        ("count", lambda *_: Counted(-5, 0, {}, {}), "events of count is -5, and no number of rows"),
        ("count", lambda *_: Counted(10**400, 0, {}, {}), "events of count is 10+, and no number of rows"),
        ("count", lambda *_: Counted(1, 1, {"odd": 2}, {}), "by_reason of count has 2 rows, quarantined 1"),
        ("count", lambda *_: Counted(1, 0, None, {}), "by_reason of count gives a NoneType"),  # type: ignore[arg-type]
        (
            "count",
            lambda *_: Counted(9, 0, {}, {}),
            "1 rows are delivered for bronze.meter_readings, and 9 were counted",
        ),
        ("rows", lambda *_: iter([arrow_of({"meter_id": 1})]), "does not fit it"),
        ("rows", lambda *_: iter([arrow_of({"meter_id": timedelta(1)})]), "does not fit it"),
        ("rows", lambda *_: iter([1]), "rows gives a int, not a pyarrow.lib.Table"),
        ("rows", lambda *_: iter([arrow_of({"meter_id": "m1"})]), "does not fit it"),
        ("rows", lambda *_: (1 // 0 for _ in range(1)), "ZeroDivisionError"),
        ("quarantined", lambda *_: iter([arrow_of({"row": 1})]), "does not fit it"),
    ],
)
def test_a_loader_that_raises_or_delivers_what_does_not_fit_is_refused_by_name(
    logged: Platform, tmp_path: Path, member: str, gives: Any, said: str
) -> None:
    names = shown_loader()
    file = tmp_path / "log.txt"
    file.write_text("m1;2024-07-01T12:00:00;0.5\nm1;noon;2\n")
    wrong = type("Wrong", (names["ReadingsLog"],), {member: gives})
    with pytest.raises(InputRefused, match=said) as refused:
        load_delivery(logged, "bronze.meter_readings", delivered("readings-log", lambda: wrong(file)), 0.5)
    assert "loader" in str(refused.value)
    assert held(logged, "bronze.meter_readings") == []


@pytest.mark.parametrize("table", [TARIFFS, "bronze.meter_readings_quarantine"])
def test_a_loader_brings_rows_into_an_input_table_and_no_other(logged: Platform, tmp_path: Path, table: str) -> None:
    """Its rejected rows would come into the reference table, which has no quarantine."""
    file = tmp_path / "log.txt"
    file.write_text("m1;noon;2\n")
    loader, before = shown_loader()["LOADER"], held(logged, table)
    with pytest.raises(InputRefused, match=f"{table} is (a reference table|the quarantine of bronze.meter_readings)"):
        load_delivery(logged, table, delivered("readings-log", lambda: loader.from_file(file)), 1.0)
    assert held(logged, table) == before


def test_a_load_whose_taking_back_was_killed_halfway_is_not_loaded_a_second_time_beside(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "readings.csv"
    file.write_text("meter,read_at,watt_hours,price\nm1,2024-01-01T12:00:00Z,1,\nm1,2024-01-01T13:00:00Z,-1,\n")
    quarantine = f"{READINGS}_quarantine"
    loaded = load_file(platform, READINGS, file).load.load_id
    real, done = platform.lakehouse.undo_load, []

    def killed(name: str, *given: Any, **named: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(name)
        return real(name, *given, **named)

    monkeypatch.setattr(platform.lakehouse, "undo_load", killed)
    with pytest.raises(KeyboardInterrupt):
        undo_load(platform, READINGS, loaded, by="ada", reason="the wrong file")
    monkeypatch.setattr(platform.lakehouse, "undo_load", real)
    with pytest.raises(InputRefused, match="the same content is loaded once"):
        load_file(platform, READINGS, file)
    undo_load(platform, READINGS, loaded, by="ada", reason="the wrong file")
    assert (held(platform), held(platform, quarantine)) == ([], [])
    load_file(platform, READINGS, file)
    assert (len(held(platform)), len(held(platform, quarantine))) == (1, 1)


class Unanswerable(Readings):
    watt_hours: pl.Int32 = pandera.Field(ge="0")


def test_a_rule_that_no_row_could_be_held_against_is_no_fault_of_the_file(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = ba.InputTable(READINGS, "readings", Unanswerable, ("team:x",), partition_by="read_at")
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", (table,), ())))
    opened = Platform.of(load_settings(home=platform.settings.home, quarantine_limit=0.5))
    file = tmp_path / "readings.csv"
    file.write_text("meter,read_at,watt_hours,price\nm1,2024-01-01T12:00:00Z,1,\n")
    with pytest.raises(DeclarationRefused, match="'watt_hours: greater_than_or_equal_to' of Unanswerable") as refused:
        load_file(opened, READINGS, file)
    assert [one.where for one in refused.value.problems] == ["bronze.readings: model"]
    assert held(opened, READINGS) == []


@pytest.mark.parametrize(
    ("references", "said"),
    [
        ("test_table_loads:NOPE", "has no attribute 'NOPE'"),
        ("test_table_loads:NOON", "test_table_loads:NOON is a datetime"),
    ],
)
def test_reference_data_that_is_not_there_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, references: str, said: str
) -> None:
    table = ba.InputTable(TARIFFS, "tariffs", Tariffs, ("team:x",), is_reference=True)
    product = ba.Product("metering", (table,), (), references=references)
    monkeypatch.setattr(finding, "find_products", serves(product))
    with pytest.raises(DeclarationRefused, match=said):
        initialise(Platform.of(load_settings(home=tmp_path / "home")))
    assert not (tmp_path / "home").exists()


class WiderLogged(Logged):
    watt_hours: Annotated[pl.Decimal, 20, 3] = pandera.Field()


class WiderReadings(Readings):
    watt_hours: pl.Int64 = pandera.Field(ge=0)
    note: str = pandera.Field(nullable=True)

    class Config:
        unique = ("meter", "read_at")


class OtherTariffs(Tariffs):
    cents: str = pandera.Field()


def test_a_table_that_is_not_as_its_model_says_takes_no_load_and_every_column_that_differs_is_named(
    logged: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = {READINGS: WiderReadings, TARIFFS: OtherTariffs, "bronze.meter_readings": WiderLogged}
    inputs = tuple(replace(one, model=models.get(one.name, one.model)) for one in logged.products.inputs)
    monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", inputs, ())))
    platform = Platform.of(logged.settings)
    file = tmp_path / "readings.csv"
    for table, wrong in (
        (READINGS, ("no column note", "the column watt_hours as int, and its model declares long")),
        (TARIFFS, ("the column cents as long, and its model declares string",)),
    ):
        with pytest.raises(EnvironmentRefused) as refused:
            load_file(platform, table, file)
        assert [said in one.what for one, said in zip(refused.value.problems, wrong, strict=True)] == [True] * len(
            wrong
        )
    log = tmp_path / "log.txt"
    log.write_text("m1;2024-07-01T12:00:00;0.5\nm1;noon;2\n")
    loader = shown_loader()["LOADER"]
    with pytest.raises(EnvironmentRefused, match=r"watt_hours as long, and its model declares decimal\(20, 3\)"):
        load_delivery(platform, loader.table, delivered("readings-log", lambda: loader.from_file(log)), 0.5)
    assert {name: held(platform, name) for name in (READINGS, loader.table, f"{loader.table}_quarantine")} == {
        READINGS: [],
        loader.table: [],
        f"{loader.table}_quarantine": [],
    }
    said = [(one.kind, one.where) for one in examine(platform)]
    assert said == [("columns-differ", name) for name in (READINGS, READINGS, TARIFFS, loader.table)]


def test_a_loader_that_returns_no_delivery_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="it returns a PosixPath, which has no load_id, source_file"):
        delivered("readings-log", lambda: tmp_path)


def arrow_of(row: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([row])


def rows(*, meter: str = "m1", first: int = 0, number: int = 4) -> list[dict[str, Any]]:
    return [
        {"meter": meter, "read_at": NOON + timedelta(hours=hour), "watt_hours": hour + 1, "price": None}
        for hour in range(first, first + number)
    ]


def parquet(path: Path, content: Sequence[dict[str, Any]], **types: pa.DataType) -> Path:
    kinds = {
        "meter": pa.string(),
        "read_at": pa.timestamp("us", "UTC"),
        "watt_hours": pa.int32(),
        "price": pa.decimal128(12, 2),
    }
    columns = list(content[0])
    schema = pa.schema([(name, (kinds | types)[name]) for name in columns])
    pq.write_table(pa.Table.from_pylist(list(content), schema=schema), path)
    return path


def held(platform: Platform, table: str = READINGS) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = platform.lakehouse.table(table).scan().to_arrow().to_pylist()
    return found


def test_rows_that_the_model_accepts_are_loaded_and_the_others_quarantined_with_their_reason(
    platform: Platform, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "meter,read_at,watt_hours,price\n"
        "m1,2024-01-01T12:00:00Z,5,1.50\n"
        "m1,2024-01-01T14:00:00+01:00,7,\n"
        "m1,2024-01-01 15:00:00.5Z,0,\n"
        "m2,2024-01-01T12:00:00Z,3,0.1\n"
        "m2,2024-01-01T13:00:00Z,-3,\n"
        "m2,2024-01-01T14:00:00,3,\n"
        "m2,2024-01-01T15:00:00Z,0,1.00\n"
        "m2,2024-01-01T16:00:00Z,1,1.005\n"
    )
    done = load_file(platform, READINGS, file)
    assert (done.load.rows, done.load.quarantined, done.load.file) == (4, 4, "a.csv")
    assert done.by_reason == {
        "a free reading has no price": 1,
        "price: not decimal(12, 2)": 1,
        "read_at: no offset from UTC": 1,
        "watt_hours: greater_than_or_equal_to(0)": 1,
    }
    loaded = {(row["meter"], row["read_at"]): (row["watt_hours"], str(row["price"])) for row in held(platform)}
    assert loaded == {
        ("m1", NOON): (5, "1.50"),
        ("m1", NOON + timedelta(hours=1)): (7, "None"),
        ("m1", NOON + timedelta(hours=3, seconds=0.5)): (0, "None"),
        ("m2", NOON): (3, "0.10"),
    }
    kept = {row["source_row"]: row for row in held(platform, f"{READINGS}_quarantine")}
    assert sorted(kept) == [4, 5, 6, 7]
    assert kept[5]["detail"] == "read_at is 2024-01-01T14:00:00"
    assert json.loads(kept[7]["record"])["price"] == "1.005"


def test_a_refused_load_shows_the_first_row_of_each_reason(platform: Platform, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(
        "meter,read_at,watt_hours,price\n"
        'm1,2024-01-01T12:00:00Z,5,"1,50"\n'
        'm1,2024-01-01T13:00:00Z,5,"2,50"\n'
        "m1,2024-02-30T14:00:00Z,5,\n"
        "m1,2024-02-28T14:00:00,5,\n"
        f"m1,2024-02-28T14:00:00Z,{'9' * 200},\n"
        "m1,2024-02-28T15:00:00Z,0,1.00\n"
    )
    with pytest.raises(InputRefused) as refused:
        load_file(platform, READINGS, file)
    said = refused.value.problems[0].what
    assert "price: not decimal(12, 2) (2, first in row 0: price is 1,50)" in said
    assert "read_at: not timestamptz (1, first in row 2: read_at is 2024-02-30T14:00:00Z)" in said
    assert "read_at: no offset from UTC (1, first in row 3: read_at is 2024-02-28T14:00:00)" in said
    assert "a free reading has no price (1, first in row 5)" in said
    assert "9…" in said
    assert "9" * 100 not in said
    assert "rows are counted from 0" in said


@pytest.mark.parametrize(
    ("instant", "reason"),
    [
        ("2024-02-28T14:00", "no offset from UTC"),
        ("2024-02-28 14:00:00.5", "no offset from UTC"),
        ("2024-02-30T14:00:00", "not timestamptz"),
        ("2024-02-28T25:00:00", "not timestamptz"),
        ("2024-02-28", "not timestamptz"),
        ("2024-02-28T14:00:00 CET", "not timestamptz"),
    ],
)
def test_a_missing_offset_is_told_from_a_day_that_does_not_exist(
    platform: Platform, tmp_path: Path, instant: str, reason: str
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"meter,read_at,watt_hours,price\nm1,2024-01-01T12:00:00Z,5,\nm1,{instant},5,\n")
    assert load_file(platform, READINGS, file).by_reason == {f"read_at: {reason}": 1}


def test_a_column_of_another_type_is_refused_with_the_types_that_it_may_have(
    platform: Platform, tmp_path: Path
) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist([{**rows()[0], "watt_hours": 1.0, "price": "1.50"}]), file)
    with pytest.raises(InputRefused) as refused:
        load_file(platform, READINGS, file)
    said = {problem.what: problem.rule for problem in refused.value.problems}
    assert "filled from integers of any width" in said[f"column watt_hours of {file} is double; it is declared as int"]
    assert (
        "filled from decimals or integers"
        in said[f"column price of {file} is string; it is declared as decimal(12, 2)"]
    )


def with_rejected_rows(path: Path) -> Path:
    path.write_text(
        "meter,read_at,watt_hours,price\n"
        "m1,2024-01-01T12:00:00Z,5,\n"
        "m1,2024-01-01T13:00:00Z,-3,\n"
        "secret,2024-01-01T14:00:00Z,-4,\n"
        "m1,2024-01-01T15:00:00Z,5,\n"
    )
    return path


def test_a_command_shows_the_rows_of_a_quarantine(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backfill_assets.defs.launch import initialise_instance

    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    monkeypatch.setenv("BACKFILL_QUARANTINE_LIMIT", "0.5")

    def run(*words: str) -> str:
        return CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False).stdout

    assert "no rows" in run("loads", READINGS, "--quarantine")
    said = run("load", READINGS, str(with_rejected_rows(tmp_path / "a.csv")))
    assert "quarantined watt_hours: greater_than_or_equal_to(0): 2, first in row 1: watt_hours is -3" in said
    assert f"backfill loads {READINGS} --quarantine" in said
    shown = json.loads(run("loads", READINGS, "--quarantine", "--json"))
    assert (shown["table"], shown["total"]) == (f"{READINGS}_quarantine", 2)
    assert {row["source_row"]: json.loads(row["record"])["meter"] for row in shown["rows"]} == {1: "m1", 2: "secret"}
    assert all(text in run("loads", READINGS, "--quarantine") for text in ("a.csv", "watt_hours is -4", "secret"))
    some = json.loads(run("loads", READINGS, "--quarantine", "--limit", "1", "--json"))
    assert (some["total"], len(some["rows"])) == (2, 1)
    for words, says in (((TARIFFS, "--quarantine"), "has no quarantine"), ((READINGS, "--limit", "1"), "--quarantine")):
        with pytest.raises(InputRefused, match=says):
            run("loads", *words)


def test_values_of_a_table_that_the_policy_protects_are_in_no_message_and_no_listing(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backfill_assets.defs.launch import initialise_instance

    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    monkeypatch.setenv("BACKFILL_QUARANTINE_LIMIT", "0.5")
    put_in_force(
        platform,
        {
            "name": "private meters",
            "classifications": {"personal": {"modes": ["LIVE"], "otherwise": "REFUSE"}},
            "sources": [{"table": READINGS, "columns": {"meter": {"classification": "personal"}}}],
        },
    )

    def run(*words: str) -> str:
        return CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False).stdout

    said = run("load", READINGS, str(with_rejected_rows(tmp_path / "a.csv")))
    said += run("loads", READINGS, "--quarantine") + run("loads", READINGS, "--quarantine", "--json")
    assert "withheld" in said
    assert "a.csv" in said
    assert "secret" not in said
    assert "is -3" not in said
    bad = tmp_path / "b.csv"
    bad.write_text("meter,read_at,watt_hours,price\nsecret,2024-01-01T12:00:00Z,-5,\n")
    with pytest.raises(InputRefused) as refused:
        load_file(platform, READINGS, bad)
    assert "first in row 0)" in str(refused.value)
    assert "is -5" not in str(refused.value)


def test_rows_that_share_a_unique_key_are_all_quarantined_wherever_in_the_file_they_are(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill_assets.ingestion.repeated_keys._KEYS_AT_ONCE", 3)
    file = parquet(tmp_path / "a.parquet", [*rows(number=6), *rows(meter="m2"), *rows(number=1)])
    monkeypatch.setattr(InputFile.batches, "__defaults__", (2,))
    done = load_file(platform, READINGS, file)
    assert done.by_reason == {"meter, read_at: not unique": 2}
    assert {row["source_row"] for row in held(platform, f"{READINGS}_quarantine")} == {0, 10}
    assert len(held(platform)) == 9


def test_a_value_that_its_type_cannot_hold_is_quarantined_not_bent(platform: Platform, tmp_path: Path) -> None:
    content = rows(number=3)
    content[1]["watt_hours"] = 2**31
    content[2]["read_at"] = NOON + timedelta(microseconds=1)
    file = parquet(tmp_path / "a.parquet", content, watt_hours=pa.int64(), read_at=pa.timestamp("us", "Europe/Rome"))
    assert load_file(platform, READINGS, file).by_reason == {"watt_hours: not int": 1}
    assert {row["read_at"] for row in held(platform)} == {NOON, NOON + timedelta(microseconds=1)}


@pytest.mark.parametrize(
    "instant",
    [
        "2012-06-30T23:59:60Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
    ],
)
def test_an_instant_that_no_run_can_reach_or_no_clock_shows_is_quarantined(
    platform: Platform, tmp_path: Path, instant: str
) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"meter,read_at,watt_hours,price\nm1,2024-01-01T12:00:00Z,5,\nm1,{instant},5,\n")
    assert load_file(platform, READINGS, file).by_reason == {"read_at: not timestamptz": 1}
    (kept,) = held(platform, f"{READINGS}_quarantine")
    assert kept["detail"] == f"read_at is {instant}"


def test_typed_instants_beyond_what_a_run_can_reach_are_quarantined(platform: Platform, tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", rows(number=4), read_at=pa.timestamp("us", "UTC"))
    table = pq.read_table(file)
    odd = pa.array([2**62, -(2**62), 0, -62_135_596_800_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    pq.write_table(table.set_column(1, "read_at", odd), file)
    with pytest.raises(InputRefused, match="3"):  # most of it: the whole load
        load_file(platform, READINGS, file)
    pq.write_table(
        pa.concat_tables(
            [table.set_column(1, "read_at", odd), pq.read_table(parquet(tmp_path / "b.parquet", rows(number=9)))]
        ),
        file,
    )
    assert load_file(platform, READINGS, file).by_reason == {"read_at: not timestamptz": 3}


def test_a_day_beyond_any_calendar_is_no_value_and_is_shown_as_its_number(capfd: pytest.CaptureFixture[str]) -> None:
    days = pl.DataFrame({"day": pl.Series([0, 2**31 - 1, -(2**31)], dtype=pl.Int32).cast(pl.Date)})
    shown = days.select(as_json({"day": pl.Date()})).to_series().to_list()
    assert [json.loads(one)["day"] for one in shown] == ["1970-01-01", "2147483647", "-2147483648"]
    assert days.select(as_declared(pl.col("day"), pl.Date(), pl.Date())).to_series().is_null().to_list() == [0, 1, 1]
    assert "panicked" not in capfd.readouterr().err


def test_a_file_of_other_columns_is_refused_with_every_reason_and_nothing_is_written(
    platform: Platform, tmp_path: Path
) -> None:
    content = [{"meter": "m1", "read_at": NOON.replace(tzinfo=None), "watt_hours": 1.0, "colour": "red"}]
    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(content), file)
    with pytest.raises(InputRefused) as refused:
        load_file(platform, READINGS, file)
    text = str(refused.value)
    assert "does not declare, the column(s) colour" in text
    assert "column read_at" in text
    assert "column watt_hours" in text
    assert ", with a time zone" in text
    assert held(platform) == held(platform, f"{READINGS}_quarantine") == []


def unreadable(path: Path) -> list[Path]:
    whole = parquet(path / "whole.parquet", rows(number=1000)).read_bytes()
    wide = pa.table({"meter": pa.array([1], pa.decimal256(50, 2))})
    pq.write_table(wide, path / "wide.parquet")
    contents = {
        "cut.parquet": whole[:-50],
        "middle.parquet": whole[:200] + b"\0" * 200 + whole[400:],
        "text.parquet": b"meter,read_at",
        "empty.csv": b"",
        "latin.csv": "meter,read_at,watt_hours\nmäter,2024-01-01T00:00:00Z,1\n".encode("latin-1"),
        "ragged.csv": b"meter,read_at,watt_hours\nm1,2024-01-01T00:00:00Z,1,7\n",
        "twice.csv": b"meter,meter,read_at,watt_hours\nm1,m1,2024-01-01T00:00:00Z,1\n",
        "header.csv": b"meter,read_at,watt_hours,price\n",
        "name.txt": b"meter,read_at,watt_hours\n",
    }
    for name, content in contents.items():
        (path / name).write_bytes(content)
    return [path / "wide.parquet", path / "absent.csv", path, *(path / name for name in contents)]


def test_what_cannot_be_read_is_refused_and_nothing_is_written(platform: Platform, tmp_path: Path) -> None:
    for file in unreadable(tmp_path):
        with pytest.raises(InputRefused) as refused:
            load_file(platform, READINGS, file)
        assert file.name in str(refused.value)
    assert platform.lakehouse.snapshot_id(READINGS) is None
    assert platform.lakehouse.snapshot_id(f"{READINGS}_quarantine") is None


def test_too_many_rejected_rows_refuse_the_whole_load(platform: Platform, tmp_path: Path) -> None:
    content = rows(number=4)
    for row in content[:3]:
        row["watt_hours"] = -1
    with pytest.raises(InputRefused, match=r"3 of 4 rows \(75.0%\).*greater_than_or_equal_to"):
        load_file(platform, READINGS, parquet(tmp_path / "a.parquet", content))
    assert platform.lakehouse.snapshot_id(f"{READINGS}_quarantine") is None


def test_the_same_content_is_refused_under_any_name_until_its_load_was_taken_back(
    platform: Platform, tmp_path: Path
) -> None:
    file = parquet(tmp_path / "a.parquet", rows())
    other = file.rename(tmp_path / "b.parquet")
    first = load_file(platform, READINGS, other)
    with pytest.raises(InputRefused, match="the same content is loaded once"):
        load_file(platform, READINGS, other)
    assert not load_file(platform, READINGS, other, if_new=True).new
    load_file(platform, READINGS, parquet(tmp_path / "c.parquet", rows(meter="m2")))
    assert len(held(platform)) == 8

    undone = undo_load(platform, READINGS, first.load.load_id, by="ada", reason="loaded too early")
    assert {row["meter"] for row in held(platform)} == {"m2"}
    again = undo_load(platform, READINGS, first.load.load_id, by="grace", reason="again")
    assert (undone.new, again) == (True, replace(undone, new=False))
    assert (undone.load.undone_by, undone.load.undone_because) == ("ada", "loaded too early")

    again = load_file(platform, READINGS, other)
    assert again.load.load_id != first.load.load_id
    assert len(held(platform)) == 8
    with pytest.raises(InputRefused, match="the same content is loaded once"):
        load_file(platform, READINGS, other)
    assert [load.undone_by for load in platform.lakehouse.loads(READINGS)] == ["ada", None, None]


def test_undoing_a_load_takes_its_quarantined_rows_back_as_well(platform: Platform, tmp_path: Path) -> None:
    content = rows()
    content[0]["watt_hours"] = -1
    done = load_file(platform, READINGS, parquet(tmp_path / "a.parquet", content))
    before = platform.lakehouse.snapshot_id(READINGS)
    undo_load(platform, READINGS, done.load.load_id, by="ada", reason="wrong file")
    assert held(platform) == held(platform, f"{READINGS}_quarantine") == []
    # a plan that pinned the snapshot before still reads its rows
    assert len(platform.lakehouse.rows(READINGS, before or 0)) == 3


@pytest.mark.parametrize("by", ["grac\u0435", "gra\u200bce", "grace\nada", " "])
def test_nobody_takes_a_load_back_under_a_name_that_looks_like_anothers(
    platform: Platform, tmp_path: Path, by: str
) -> None:
    done = load_file(platform, READINGS, parquet(tmp_path / "a.parquet", rows()))
    with pytest.raises(Refused, match=r"is no name|no name or no reason"):
        undo_load(platform, READINGS, done.load.load_id, by=by, reason="wrong file")
    assert len(held(platform)) == 4


def test_where_the_policy_says_how_people_are_known_a_typed_name_takes_no_load_back(
    platform: Platform, tmp_path: Path
) -> None:
    done = load_file(platform, READINGS, parquet(tmp_path / "a.parquet", rows()))
    put_in_force(platform, {"name": "known people", "identity": {"authenticate": "OPERATING_SYSTEM"}})
    with actors.acting(Actor("olga", Channel.CLI, Proof.OPERATING_SYSTEM)):
        with pytest.raises(TransitionRefused, match="decides about the loads of"):
            undo_load(platform, READINGS, done.load.load_id, by="grace", reason="wrong file")
        assert undo_load(platform, READINGS, done.load.load_id, by="Olga", reason="wrong file").load.undone_by == "olga"


def test_an_undoing_that_was_cut_short_is_finished_by_the_same_command(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = rows()
    content[0]["watt_hours"] = -1
    done = load_file(platform, READINGS, parquet(tmp_path / "a.parquet", content))
    plain = type(platform.lakehouse).undo_load

    def cut(lakehouse: Any, name: str, *arguments: Any, **named: Any) -> Any:
        if name.endswith("_quarantine"):
            raise KeyboardInterrupt
        return plain(lakehouse, name, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(type(platform.lakehouse), "undo_load", cut)
        with pytest.raises(KeyboardInterrupt):
            undo_load(platform, READINGS, done.load.load_id, by="ada", reason="wrong file")
    assert undo_load(platform, READINGS, done.load.load_id, by="ada", reason="wrong file").new
    assert held(platform) == held(platform, f"{READINGS}_quarantine") == []
    assert not undo_load(platform, READINGS, done.load.load_id, by="ada", reason="wrong file").new


def hash_of(load_id: str) -> str:
    return load_id.partition(":")[2]


def test_a_load_is_named_by_its_id_by_the_hash_in_it_or_by_a_beginning_of_either(
    platform: Platform, tmp_path: Path
) -> None:
    decided = {"by": "ada", "reason": "wrong file"}
    one = load_file(platform, READINGS, parquet(tmp_path / "a.parquet", rows())).load.load_id
    load_file(platform, READINGS, parquet(tmp_path / "b.parquet", rows(meter="m2")))
    for short in (hash_of(one)[:3], "", "zzzz"):
        with pytest.raises(InputRefused) as refused:
            undo_load(platform, READINGS, short, **decided)
        (problem,) = refused.value.problems
        assert f"{READINGS} has no load '{short}'" in problem.what
        assert all(text in problem.what for text in (one, "a.parquet", "b.parquet"))
        assert "of the hash in it from 4 characters on" in problem.rule
    assert undo_load(platform, READINGS, hash_of(one)[:4], **decided).load.load_id == one


def test_the_whole_id_of_a_load_is_that_loads_also_where_another_id_begins_with_it(
    platform: Platform, tmp_path: Path
) -> None:
    decided = {"by": "ada", "reason": "wrong file"}
    file = parquet(tmp_path / "a.parquet", rows())
    old = load_file(platform, READINGS, file).load.load_id
    undo_load(platform, READINGS, old, **decided)
    new = load_file(platform, READINGS, file).load.load_id
    assert new == f"{old}#2"
    for text in (old, hash_of(old)):
        done = undo_load(platform, READINGS, text, **decided)
        assert (done.load.load_id, done.new) == (old, False)
    with pytest.raises(InputRefused, match=f"names 2 loads of {READINGS}"):
        undo_load(platform, READINGS, hash_of(old)[:20], **decided)
    done = undo_load(platform, READINGS, hash_of(new), **decided)
    assert (done.load.load_id, done.new) == (new, True)


def test_the_command_that_a_refused_load_names_takes_the_load_back(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backfill_assets.defs.launch import initialise_instance

    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    file = parquet(tmp_path / "a.parquet", rows())
    for _ in range(2):  # the second time, another load's id begins as this one's does
        load_file(platform, READINGS, file)
        with pytest.raises(InputRefused) as refused:
            load_file(platform, READINGS, file)
        (words,) = re.findall("`backfill (.*)`", refused.value.problems[0].fix)
        done = CliRunner().invoke(cli, shlex.split(words), catch_exceptions=False, standalone_mode=False)
        assert "taken back (4 rows)" in done.stdout
        again = CliRunner().invoke(cli, shlex.split(words), catch_exceptions=False, standalone_mode=False)
        assert "was taken back before" in again.stdout
        assert "nothing was done" in again.stdout
        assert held(platform) == []


def test_all_that_a_command_was_not_given_is_asked_for_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, asked in (
        (["unload", READINGS], ("LOAD", "--by", "--reason")),
        (["unload", READINGS, "0607", "--by", "ada"], ("--reason",)),
        (["unload", READINGS, "0607"], ("--by", "--reason")),
        (["accept-change", "a-run"], ("--gate", "--reason")),
    ):
        monkeypatch.setattr(sys, "argv", ["backfill", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        said = capsys.readouterr().err.partition("Error: ")[2]
        assert all(one in said for one in asked), said
        assert "TABLE" not in said
    monkeypatch.setattr(sys, "argv", ["backfill", "unload"])
    with pytest.raises(SystemExit):
        main()
    assert "TABLE, argument LOAD, option --by, option --reason" in capsys.readouterr().err


def test_a_load_whose_files_were_rewritten_is_not_undone(platform: Platform, tmp_path: Path) -> None:
    done = load_file(platform, READINGS, parquet(tmp_path / "a.parquet", rows()))
    table = platform.lakehouse.table(READINGS)
    table.overwrite(table.scan().to_arrow())
    with pytest.raises(InputRefused, match="no longer in the table"):
        undo_load(platform, READINGS, done.load.load_id, by="ada", reason="wrong file")
    assert len(held(platform)) == 4
    with pytest.raises(InputRefused, match="has no load 'nothing'"):
        undo_load(platform, READINGS, "nothing", by="ada", reason="wrong file")


def test_a_reference_table_is_replaced_as_a_named_version_and_the_one_before_comes_back(
    platform: Platform, tmp_path: Path
) -> None:
    def tariffs(name: str, *lines: str) -> Path:
        (tmp_path / name).write_text("\n".join(["name,cents", *lines]) + "\n")
        return tmp_path / name

    load_file(platform, TARIFFS, tariffs("old.csv", "day,30", "night,20"), version="2023")
    new = load_file(platform, TARIFFS, tariffs("new.csv", "day,31"), version="2024")
    assert held(platform, TARIFFS) == [{"name": "day", "cents": 31}]
    assert set(platform.lakehouse.reference_state(TARIFFS, frozenset()).versions) == {"2023", "2024"}
    with pytest.raises(InputRefused, match="takes no row that its model refuses"):
        load_file(platform, TARIFFS, tariffs("bad.csv", "day,31", "night,-1"))
    other = tariffs("other.csv", "day,99")
    for name in ("2023", "2024"):
        with pytest.raises(InputRefused, match=f"has a version '{name}' already"):
            load_file(platform, TARIFFS, other, version=name)
    for name in (" ", "../..", "<b>", "v" * 20_000):
        with pytest.raises(InputRefused, match="cannot name a version"):
            load_file(platform, TARIFFS, other, version=name)
    undo_load(platform, TARIFFS, new.load.load_id, by="ada", reason="not in force yet")
    with pytest.raises(InputRefused, match="has a version '2024' already"):
        load_file(platform, TARIFFS, other, version="2024")
    state = platform.lakehouse.reference_state(TARIFFS, frozenset())
    by_name = {name: ReferenceData(name=TARIFFS, semantics="AS_DECIDED", version=name) for name in ("2023", "2024")}
    refused = pin_reference(by_name["2024"], state)
    assert isinstance(refused, Problem)
    assert "version 2024 was taken back" in refused.what
    assert "choose one of 2023, or name the snapshotId" in refused.fix
    assert pin_reference(by_name["2023"], state).version == "2023"
    assert {row["name"]: row["cents"] for row in held(platform, TARIFFS)} == {"day": 30, "night": 20}


def test_content_of_a_reference_table_that_was_replaced_since_comes_back_only_if_somebody_says_so(
    platform: Platform, tmp_path: Path
) -> None:
    first, second = files = [tmp_path / f"{cents}.csv" for cents in (30, 31)]
    for file in files:
        file.write_text(f"name,cents\nday,{file.stem}\n")
    loaded = [load_file(platform, TARIFFS, file, if_new=True) for file in (first, second, first, second)]
    assert [one.new for one in loaded] == [
        True,
        True,
        False,
        False,
    ]  # a job that loads every file of a folder, each turn
    assert held(platform, TARIFFS) == [{"name": "day", "cents": 31}]
    with pytest.raises(InputRefused, match=r"30\.csv was loaded .* since then 31\.csv has replaced it.*") as refused:
        load_file(platform, TARIFFS, first)
    assert "--again" in str(refused.value)
    again = load_file(platform, TARIFFS, first, again=True)
    assert again.new
    assert again.load.load_id == f"{loaded[0].load.load_id}#2"
    assert held(platform, TARIFFS) == [{"name": "day", "cents": 30}]
    for said in (False, True):
        with pytest.raises(InputRefused, match=r"is in reference\.tariffs already"):
            load_file(platform, TARIFFS, first, again=said)
    undo_load(platform, TARIFFS, again.load.load_id, by="ada", reason="not in force yet")
    assert held(platform, TARIFFS) == [{"name": "day", "cents": 31}]
    state = platform.lakehouse.reference_state(
        TARIFFS, frozenset()
    )  # the first load of that content was not taken back
    name = loaded[0].load.load_id.partition(":")[2][:12]
    assert (state.versions[name], name in state.taken_back) == (loaded[0].load.snapshot_id, False)
    assert load_file(platform, TARIFFS, first, again=True).load.load_id.endswith("#3")


def test_a_load_is_not_taken_for_one_that_an_expired_snapshot_tells_of_no_more(
    platform: Platform, tmp_path: Path
) -> None:
    file = parquet(tmp_path / "a.parquet", rows())
    for _ in range(2):
        load = load_file(platform, READINGS, file).load
        undo_load(platform, READINGS, load.load_id, by="ada", reason="not in force yet")
    oldest = platform.lakehouse.loads(READINGS)[0]
    platform.lakehouse.table(READINGS).maintenance.expire_snapshots().by_id(oldest.snapshot_id).commit()
    assert [one.load_id[-2:] for one in platform.lakehouse.loads(READINGS)] == ["#2"]
    load = load_file(platform, READINGS, file)
    assert load.new
    assert load.load.load_id.endswith("#3")
    assert load.load.undone_by is None
    assert held(platform)


def test_two_loads_at_once_of_other_content_do_not_give_it_one_name(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, cents in (("a.csv", 30), ("b.csv", 31)):
        (tmp_path / name).write_text(f"name,cents\nday,{cents}\n")
    real = table_loads._require_new_version

    def overtaken(*arguments: Any) -> None:
        real(*arguments)
        monkeypatch.setattr(table_loads, "_require_new_version", real)
        load_file(platform, TARIFFS, tmp_path / "b.csv", version="2024")

    monkeypatch.setattr(table_loads, "_require_new_version", overtaken)
    with pytest.raises(InputRefused, match="has a version '2024' already"):
        load_file(platform, TARIFFS, tmp_path / "a.csv", version="2024")
    assert [row["cents"] for row in held(platform, TARIFFS)] == [31]
    assert load_file(platform, TARIFFS, tmp_path / "a.csv", version="2025").new


def test_a_load_that_somebody_takes_back_while_it_is_made_is_not_said_to_be_there(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = parquet(tmp_path / "a.parquet", rows())
    real = table_loads.load_to_make

    def overtaken(*args: Any, **values: Any) -> Any:
        found = real(*args, **values)
        monkeypatch.setattr(table_loads, "load_to_make", real)
        done = load_file(platform, READINGS, file)
        undo_load(platform, READINGS, done.load.load_id, by="ada", reason="not in force yet")
        return found

    monkeypatch.setattr(table_loads, "load_to_make", overtaken)
    with pytest.raises(InputRefused, match="was taken back by ada while it was made here"):
        load_file(platform, READINGS, file)
    assert not held(platform)
    assert load_file(platform, READINGS, file).new


def test_tables_that_are_not_loaded_into_are_refused_by_name(platform: Platform, tmp_path: Path) -> None:
    file = parquet(tmp_path / "a.parquet", rows())
    for table, version, says in (
        ("bronze.meters", None, "not declared"),
        (f"{READINGS}_quarantine", None, "is the quarantine of"),
        (READINGS, "2024", "has no named versions"),
    ):
        with pytest.raises(InputRefused, match=says):
            load_file(platform, table, file, version=version)


def test_the_commands_load_list_and_take_back(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from backfill_assets.defs.launch import initialise_instance

    initialise_instance(platform.settings)
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    file = parquet(tmp_path / "a.parquet", rows())

    def run(*words: str) -> Any:
        return CliRunner().invoke(cli, list(words), catch_exceptions=False, standalone_mode=False)

    loaded = json.loads(run("load", READINGS, str(file), "--json").stdout)
    assert loaded["load"]["rows"] == 4
    with pytest.raises(InputRefused):
        run("load", READINGS, str(file))
    assert "loaded before" in run("load", READINGS, str(file), "--if-new").stdout
    load_id = loaded["load"]["load_id"]
    assert load_id in run("loads", READINGS, "--json").stdout
    other = parquet(tmp_path / "other.parquet", rows(meter="m2"))
    second = json.loads(run("load", READINGS, str(other), "--json").stdout)["load"]["load_id"]
    decided = ("--by", "ada", "--reason", "wrong file")
    both = load_id[: next(n for n, (a, b) in enumerate(zip(load_id, second, strict=False)) if a != b)]
    with pytest.raises(InputRefused) as refused:
        run("unload", READINGS, both, *decided)
    assert all(one in refused.value.problems[0].what for one in (load_id, second, "2 loads", "other.parquet"))
    with pytest.raises(InputRefused):
        run("unload", READINGS, "", *decided)
    assert f"load {load_id} taken back (4 rows)" in run("unload", READINGS, load_id[: len(both) + 4], *decided).stdout
    assert [one["undone_at"] is None for one in json.loads(run("loads", READINGS, "--json").stdout)] == [False, True]
    assert json.loads(run("loads", READINGS, "--json").stdout)[0]["undone_because"] == "wrong file"
    assert "wrong file" in run("loads", READINGS).stdout


def test_init_lists_no_table_of_a_product_that_is_not_served(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(platform.settings.home))
    said = CliRunner().invoke(cli, ["init"], catch_exceptions=False).stdout
    assert READINGS in said
    assert "enforcement" not in said
    assert "case" not in said


def test_init_lists_the_tables_of_each_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    said = CliRunner().invoke(cli, ["init"], catch_exceptions=False).stdout.splitlines()
    assert said[1] == "  product accounts"
    assert "  product enforcement" in said
    assert "    bronze.case_events_quarantine: quarantine of bronze.case_events" in said
    assert "    silver.case_sla_daily_corrections: corrections of silver.case_sla_daily" in said
    made = Platform.of(load_settings()).lakehouse.catalog
    assert all(made.table_exists(line.split(":")[0].strip()) for line in said[2:] if not line.startswith("  product"))


# --- files that change while they are loaded --------------------------------------------------------------------------


def _replaced(file: Path, text: str) -> None:
    """Replace a file as a delivery does: whole, by a name."""
    other = file.with_suffix(".next")
    other.write_text(text)
    other.rename(file)


@pytest.mark.parametrize("at", ["_require_few", "_append_rows"])
@pytest.mark.parametrize("change", [_replaced, lambda file, text: file.write_text(text)], ids=["replaced", "written"])
def test_a_file_that_is_changed_while_it_is_loaded_is_not_loaded(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, change: Any
) -> None:
    file = tmp_path / "today.csv"
    head = "meter,read_at,watt_hours,price\n"
    old = head + "".join(f"m{hour},2024-01-01T1{hour}:00:00Z,{hour},\n" for hour in range(4))
    new = head + "".join(f"n{hour},2024-01-02T1{hour}:00:00Z,{hour if hour < 1 else -1},\n" for hour in range(5))
    file.write_text(old)
    real = getattr(table_loads, at)

    def meanwhile(*of: Any, **named: Any) -> Any:
        change(file, new)
        return real(*of, **named)

    with monkeypatch.context() as patched:
        patched.setattr(table_loads, at, meanwhile)
        with pytest.raises(InputRefused, match="was changed while it was loaded"):
            load_file(platform, READINGS, file)
    assert platform.lakehouse.loads(READINGS) == []
    file.write_text(old)
    assert load_file(platform, READINGS, file).load.rows == 4


def test_a_reference_table_gets_no_content_under_the_name_of_another(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tariffs.csv"
    file.write_text("name,cents\nday,30\n")
    real = table_loads._require_few

    def meanwhile(*of: Any, **named: Any) -> None:
        file.write_text("name,cents\nday,31\n")
        real(*of, **named)

    monkeypatch.setattr(table_loads, "_require_few", meanwhile)
    with pytest.raises(InputRefused, match="was changed while it was loaded"):
        load_file(platform, TARIFFS, file, version="2024")
    assert platform.lakehouse.loads(TARIFFS) == []


def test_what_an_own_loader_reads_is_one_content(logged: Platform, tmp_path: Path) -> None:
    loader = shown_loader()["LOADER"]
    file = tmp_path / "log.txt"
    file.write_text("m1;2024-07-01T12:00:00;0.5\n")
    delivery = delivered("readings-log", lambda: loader.from_file(file), file)
    file.write_text("m1;2024-07-01T12:00:00;0.7\n")  # as many rows
    with pytest.raises(InputRefused, match="was changed while it was loaded"):
        load_delivery(logged, loader.table, delivery, 0.5)
    assert logged.lakehouse.loads(loader.table) == []


def test_older_content_replaces_what_somebody_has_seen_and_nothing_newer(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {cents: tmp_path / f"{cents}.csv" for cents in (30, 31, 99)}
    for cents, file in files.items():
        file.write_text(f"name,cents\nday,{cents}\n")
    load_file(platform, TARIFFS, files[30])
    load_file(platform, TARIFFS, files[31])
    real = table_loads._require_few

    def meanwhile(*of: Any, **named: Any) -> None:
        monkeypatch.setattr(table_loads, "_require_few", real)
        load_file(platform, TARIFFS, files[99])
        real(*of, **named)

    monkeypatch.setattr(table_loads, "_require_few", meanwhile)
    with pytest.raises(InputRefused, match=r"99\.csv was loaded into reference\.tariffs meanwhile"):
        load_file(platform, TARIFFS, files[30], again=True)
    assert [row["cents"] for row in held(platform, TARIFFS)] == [99]
    load_file(platform, TARIFFS, files[30], again=True)
    assert [row["cents"] for row in held(platform, TARIFFS)] == [30]


# --- loads that stop between the quarantine and the table -------------------------------------------------------------


def _allowing(low: int, high: int) -> type[pandera.DataFrameModel]:
    class Bounded(pandera.DataFrameModel):
        meter: str = pandera.Field()
        read_at: ba.Instant = pandera.Field()
        watt_hours: pl.Int32 = pandera.Field(ge=low, le=high)

    return Bounded


@pytest.mark.parametrize(
    ("first", "then", "parts"),
    [((0, 4), (0, 4), 1), ((0, 4), (1, 4), 2), ((0, 4), (0, 5), 1), ((0, 4), (1, 5), 2), ((0, 5), (0, 4), 1)],
    ids=["the same", "stricter", "looser", "other", "none before"],
)
def test_each_row_is_in_the_table_or_in_the_quarantine_also_where_the_rules_have_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: tuple[int, int], then: tuple[int, int], parts: int
) -> None:
    file, home = tmp_path / "a.csv", tmp_path / "home"
    lines = [f"m{number},2024-01-01T1{number}:00:00Z,{number}\n" for number in range(6)]
    file.write_text("meter,read_at,watt_hours\n" + "".join(lines))

    def opened(bounds: tuple[int, int]) -> Platform:
        table = ba.InputTable(READINGS, "readings", _allowing(*bounds), ("team:x",), partition_by="read_at")
        monkeypatch.setattr(finding, "find_products", serves(ba.Product("metering", (table,), ())))
        return Platform.of(load_settings(home=home, quarantine_limit=0.5))

    class Died(BaseException):
        """The process ends."""

    begun = opened(first)
    initialise(begun)
    real = begun.lakehouse.append

    def dies(name: str, *of: Any, **named: Any) -> Any:
        if name == READINGS:
            raise Died
        return real(name, *of, **named)

    monkeypatch.setattr(begun.lakehouse, "append", dies)
    with pytest.raises(Died):
        load_file(begun, READINGS, file)

    again = opened(then)
    done = load_file(again, READINGS, file)
    loaded = sorted(row["watt_hours"] for row in held(again, READINGS))
    rejected = sorted(row["source_row"] for row in held(again, f"{READINGS}_quarantine"))
    assert loaded == list(range(then[0], then[1] + 1))
    assert rejected == sorted(set(range(6)) - set(loaded))
    assert (done.load.rows, done.load.quarantined) == (len(loaded), len(rejected))
    assert len(again.lakehouse.loads(f"{READINGS}_quarantine")) == (parts if rejected or first != (0, 5) else 0)
    undo_load(again, READINGS, done.load.load_id, by="ada", reason="a try of the loads")
    assert held(again, READINGS) == held(again, f"{READINGS}_quarantine") == []


def test_content_that_was_taken_back_is_not_new(platform: Platform, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("meter,read_at,watt_hours,price\nm1,2024-01-01T10:00:00Z,1,\n")
    first = load_file(platform, READINGS, file, if_new=True)
    undo_load(platform, READINGS, first.load.load_id, by="ada", reason="the wrong meter")
    done = load_file(platform, READINGS, file, if_new=True)
    assert (done.new, done.load.undone_by, held(platform, READINGS)) == (False, "ada", [])
    assert load_file(platform, READINGS, file).new  # somebody says so
    assert not load_file(platform, READINGS, file, if_new=True).new
    assert len(held(platform, READINGS)) == 1
