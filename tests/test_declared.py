"""What products declare is held together when it is loaded: every mistake is a reason of one refusal, in words."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import date
from decimal import Decimal
from functools import partial, wraps
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar

import dagster as dg
import pandera.polars as pa
import polars as pl
import pytest
from click.testing import CliRunner

import backfill_assets as ba
from backfill_assets.cli.command import cli, main
from backfill_assets.declarations import finding
from backfill_assets.declarations.checking import imports as declared
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.column_types import no_map_key
from backfill_assets.declarations.finding import check_products, find_products, imported_loader, installed
from backfill_assets.declarations.products import Products
from backfill_assets.declarations.sinks import PLATFORM_TABLES
from backfill_assets.gates.exception_table import EXCEPTIONS_TABLE
from backfill_assets.operations import initialise as initialising
from manifests.errors import DeclarationRefused, InputRefused
from resources.settings import load_settings

ROOT = Path(__file__).resolve().parent.parent
OWNERS = ("team:metering",)


class Readings(pa.DataFrameModel):
    """One reading."""

    meter_id: str
    read_at: ba.Instant
    watt_hours: pl.Int64


class Meters(pa.DataFrameModel):
    """One meter."""

    meter_id: str
    city: str


class Daily(ba.Published):
    """One row a meter and day."""

    meter_id: str
    day: pl.Date
    watt_hours: pl.Int64


class Unique(Daily):
    """A row whose model says what is unique."""

    class Config:
        unique = ("meter_id", "day")


class Misdated(Daily):
    """A row whose model says what is unique, and misspells it."""

    class Config:
        unique = ("meter_id", "dya")


class Nullable(ba.Published):
    """A row that may have no meter."""

    meter_id: str = pa.Field(nullable=True)
    day: pl.Date
    watt_hours: pl.Int64


class Inexact(ba.Published):
    """A row with types that no table has."""

    meter_id: str
    day: pl.Date
    share: pl.Float16
    parts: pl.List(pl.UInt32)  # type: ignore[valid-type]
    small: pl.Int8
    short: pl.Int16
    took: pl.Duration
    by_share: pl.Map(pl.Float64, pl.String)  # type: ignore[valid-type]
    local: pl.Datetime("ns")  # type: ignore[valid-type]
    of: pl.Struct({"a": pl.String, "A": pl.String})  # type: ignore[valid-type]


class Varied(ba.Published):
    """A row with types that cannot do everything."""

    meter_id: str
    day: pl.Date
    share: pl.Float64
    tags: pl.List(pl.String)  # type: ignore[valid-type]
    codes: pl.Map(pl.String, pl.Int64)  # type: ignore[valid-type]
    place: pl.Struct({"x": pl.Int32})  # type: ignore[valid-type]
    raw: pl.Binary
    order_id: ba.Uuid
    clock: pl.Time
    local: ba.LocalTimestamp


class Swapped(ba.Published):
    """A row with decimals that there are not."""

    meter_id: str
    day: pl.Date
    price: Annotated[pl.Decimal, 2, 12]
    total: Annotated[pl.Decimal, 50, 2]
    below: Annotated[pl.Decimal, 12, -2]


class Alone(pa.DataFrameModel):
    """Not a published row."""

    meter_id: str
    day: pl.Date


def meter_daily(*_: Any) -> Any:
    raise NotImplementedError


def first_rows(rows: pl.DataFrame) -> pl.DataFrame:
    return rows


AGREES = replace(
    ba.state_level(
        "energy_agrees",
        "The energy agrees.",
        slices=("chunk",),
        measures=("watt_hours",),
        expected=lambda _: (),
        tolerance="energy_percent",
    ),
    tolerances={"energy_per_cent": 1.0},
)
METERS_THERE = ba.keys("meters", eligible=lambda context: context.source, key=("metre_id",))
INPUT = ba.InputTable("bronze.readings", "Readings.", Readings, OWNERS, partition_by="read_at")
METERS = ba.InputTable("reference.meters", "Meters.", Meters, OWNERS, is_reference=True)
TARGET = ba.TargetTable(
    name="silver.daily",
    description="A row a meter and day.",
    model=Daily,
    key=("meter_id", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source="bronze.readings",
    source_time_column="read_at",
    references=("reference.meters",),
    look_back_columns=("meter_id",),
    entity="meter_id",
    transform="daily",
    versions={"1.0.0": ba.TransformVersion(meter_daily)},
    owners=OWNERS,
)


HOOK = ba.Sink("breach_notifications", ba.SinkClass.NOTIFICATION, "a webhook", ("team:a",), ba.ToWebhook())


def said(
    *targets: ba.TargetTable, inputs: tuple[ba.InputTable, ...] = (INPUT, METERS), sinks: tuple[ba.Sink, ...] = ()
) -> list[str]:
    return [f"{one.where}: {one.what}" for one in problems_of([ba.Product("metering", inputs, targets, sinks=sinks)])]


def test_what_is_exported_is_there_and_is_imported_when_it_is_asked_for() -> None:
    assert [name for name in ba.__all__ if getattr(ba, name, None) is None] == []
    with pytest.raises(AttributeError, match="has no attribute 'TargetTabel'"):
        getattr(ba, "TargetTabel")  # noqa: B009 - mypy knows that it is not there
    asked = "import sys, backfill_assets.cli.command; print(sorted({'pandera', 'polars', 'dagster', 'pyiceberg'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_shipped_and_shown_has_no_mistake() -> None:
    assert problems_of(find_products(None).declared) == []
    assert said(TARGET) == []


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"day_column": "dya"}, "silver.daily: day_column: 'dya' is no column of silver.daily; did you mean 'day'?"),
        ({"day_column": "meter_id"}, "silver.daily: day_column: 'meter_id' of silver.daily is String"),
        (
            {"day_column": "produced_at"},
            "silver.daily: day_column: day_column of silver.daily names 'produced_at', a lineage column",
        ),
        ({"key": ("run_id",)}, "silver.daily: key: key of silver.daily names 'run_id', a lineage column"),
        ({"entity": "run_id"}, "silver.daily: entity: entity of silver.daily names 'run_id', a lineage column"),
        ({"key": ("meter_id", "hour")}, "silver.daily: key: 'hour' is no column of silver.daily"),
        ({"key": "meter_id"}, "silver.daily: key: key is the text 'meter_id'"),
        (
            {"look_back_columns": ("meter_id", "nope")},
            "silver.daily: look_back_columns: 'nope' is no column of bronze.readings",
        ),
        (
            {"source_time_column": "red_at"},
            "silver.daily: source_time_column: 'red_at' is no column of bronze.readings; did you mean 'read_at'?",
        ),
        (
            {"source_time_column": "watt_hours"},
            "silver.daily: source_time_column: 'watt_hours' of bronze.readings is Int64",
        ),
        ({"entity": "day"}, "silver.daily: entity: 'day' is no column of bronze.readings"),
        (
            {"version_column": "revision"},
            "silver.daily: version_column: 'revision' is no column of silver.daily",
        ),
        (
            {"references": ("reference.meter",)},
            "silver.daily: references: no product declares the table 'reference.meter'; did you mean 'reference.meters'?",
        ),
        (
            {"source": "bronze.reading"},
            "silver.daily: source: no product declares the table 'bronze.reading'; did you mean 'bronze.readings'?",
        ),
        ({"versions": {}}, "silver.daily: versions: versions is empty"),
        ({"chunks_from": "2020-1"}, "silver.daily: chunks_from: '2020-1' is not a chunk"),
        ({"chunks_until": "2020-12-31"}, "silver.daily: chunks_until: '2020-12-31' is not a chunk"),
        ({"chunks_until": 2020}, "silver.daily: chunks_until: chunks_until is 2020"),
        (
            {"chunks_from": "2021-01"},
            "silver.daily: chunks_from: chunks_from 2021-01 is after chunks_until 2020-12",
        ),
        (
            {"outline": ba.Outline(("meter_id", "dy"), meter_daily)},
            "silver.daily: outline: 'dy' is no column of silver.daily; did you mean 'day'?",
        ),
        (
            {"measure": lambda rows: rows},
            "silver.daily: measure: '<lambda>' is not a name of module test_declared",
        ),
        (
            {"column_origins": {"energy": (ba.ColumnOrigin("bronze.readings", "watts"),)}},
            "silver.daily: column_origins['energy']: 'watts' is no column of bronze.readings; did you mean 'watt_hours'?",
        ),
        ({"model": Alone}, "silver.daily: entity: Alone does not inherit Published, and entity is declared"),
        ({"owners": ("the metering team",)}, "silver.daily: owners=('the metering team',)"),
        ({"live": ba.LivePolicy("2.0.0", 1)}, "silver.daily: live: '2.0.0' is no version"),
        (
            {"reconciled": ba.ReconciliationPolicy(gates=("published_rows_pass_rule",))},
            "silver.daily: reconciled: 'published_rows_pass_rule' is no gate; did you mean 'published_rows_pass_rules'?",
        ),
        (
            {"corrections": ba.CorrectionsTable("silver.daily_corrections", ba.Corrections)},
            "silver.daily: corrections: 'meter_id' is no column of silver.daily_corrections",
        ),
        ({"name": "daily"}, "daily: name: a table is named 'daily'"),
        (
            {"reconciliations": (ba.change_gate(), ba.change_gate())},
            "silver.daily: reconciliations: gate change_within_tolerance is declared 2 times",
        ),
        (
            {"key": ("meter_id",), "model": Unique},
            "silver.daily: key: the key of silver.daily is meter_id, and its model says that meter_id, day is unique",
        ),
        (
            {"model": Nullable},
            "silver.daily: entity: silver.daily declares entity='meter_id', and its model allows NULL in meter_id",
        ),
        ({"live": ba.LivePolicy("1.0.0", -1)}, "silver.daily: live: rewind_days is -1"),
        (
            {"live": ba.LivePolicy("1.0.0", 1, begins_on=date(2020, 3, 5))},
            "silver.daily: live: begins_on is 2020-03-05, in the middle of a MONTH",
        ),
        ({"warm_up_days": 30}, "silver.daily: warm_up_days: warm_up_days is 30"),
        ({"measure": "daily"}, "silver.daily: measure: measure is 'daily'"),
        (
            {"versions": {"1.0.0": ba.TransformVersion(None)}},
            "silver.daily: versions['1.0.0']: versions['1.0.0'] is None",
        ),  # type: ignore[arg-type]
        (
            {"reconciliations": (ba.record_gate(("metre_id",)),)},
            "silver.daily: gate every_entity_is_present: 'metre_id' is no column of bronze.readings; did you mean 'meter_id'?",
        ),
        (
            {"reconciliations": (ba.record_gate(("meter_id", "read_at")),)},
            "silver.daily: gate every_entity_is_present: 'read_at' is no column of silver.daily; did you mean 'produced_at'?",
        ),
        (
            {"reconciliations": (ba.duplicate_gate(("meter_id", "red_at"), "twice"),)},
            "silver.daily: gate twice: 'red_at' is no column of bronze.readings; did you mean 'read_at'?",
        ),
        (
            {"reconciliations": (ba.duplicate_gate("meter_id"),)},  # type: ignore[arg-type]
            "silver.daily: gate no_source_row_is_there_twice: its source columns are the text 'meter_id'",
        ),
        (
            {"reconciliations": (ba.record_gate(("meter_id",), zone="Europe/Roma"),)},
            "silver.daily: gate every_entity_is_present: 'Europe/Roma' is no time zone; did you mean 'Europe/Rome'?",
        ),
        (
            {"reconciliations": (AGREES,)},
            "silver.daily: gate energy_agrees: 'energy_percent' is no tolerance; did you mean 'energy_per_cent'?",
        ),
        (
            {"reconciliations": (ba.record_level("meters", "Every meter is there.", METERS_THERE),)},
            "silver.daily: gate meters: 'metre_id' is no column of silver.daily; did you mean 'meter_id'?",
        ),
        (
            {
                "reconciliations": (ba.record_gate(("meter_id", "day"), "days"),),
                "outline": ba.Outline(("meter_id",), first_rows),
            },
            "silver.daily: gate days: 'day' is no column of the outline of silver.daily",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_mistake_is_named_with_its_place(changes: dict[str, Any], found: str) -> None:
    assert found in [one.replace("tests.test_declared", "test_declared") for one in said(replace(TARGET, **changes))]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"column_origins": {"kwh": (ba.ColumnOrigin(["a"], "b"),)}}, "TypeError: "),  # type: ignore[arg-type]
        ({"tolerances": {("a", "b"): 1.0}, "column_origins": {"kwh": (ba.ColumnOrigin({}, "b"),)}}, "TypeError: "),  # type: ignore[arg-type]
    ],
    ids=["a list", "a dictionary"],
)
def test_a_value_of_a_form_that_nobody_expects_is_a_refusal_in_words(changes: dict[str, Any], error: str) -> None:
    found = said(replace(TARGET, day_column="dya", **changes))
    what = f"{TARGET.name}: a value in its declaration is of another form than it is declared to have: {error}"
    assert [one for one in found if one.startswith(what)], found


def test_a_unique_of_another_form_is_a_refusal_in_words() -> None:
    class Counted(Readings):
        class Config:
            unique = 3  # type: ignore[assignment]

    assert any("of another form" in one for one in said(TARGET, inputs=(replace(INPUT, model=Counted), METERS)))


class OfAnotherKey(ba.Corrections):
    """A correction whose key is of another type, with a column that nothing fills."""

    meter_id: pl.Int64
    day: pl.Date
    why: str


def of_three(rows: Any, more: Any, most: Any) -> Any:
    raise NotImplementedError


def with_a_third(function: Any) -> Any:
    """Give a function a third argument, as a product's own decorator might."""

    @wraps(function)
    def given(*two: Any) -> Any:
        return function(*two, 3)

    return given


@with_a_third
def injected(rows: Any, more: Any, most: Any) -> Any:
    raise NotImplementedError


LIVE = ba.LivePolicy("1.0.0", 1)
OWN_GATE = ba.Reconciliation("mine", ba.Level.STATE, "Mine.", lambda context: ba.Finding(True, str(context.tolerances)))
DAILY_TOLERANCE = partial(ba.change_gate, percent=5.0)
SUMS = partial(
    ba.state_level,
    "sums_agree",
    "They agree.",
    slices=(),
    measures=("rows",),
    expected=lambda context: context.measures,
)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"measure": of_three}, "measure: of_three cannot be called with rows: missing a required argument: 'more'"),
        (
            {"outline": ba.Outline(("meter_id",), of_three)},
            "outline.rows: of_three cannot be called with rows: missing a required argument: 'more'",
        ),
        ({"outline": ba.Outline(("meter_id",), None)}, "outline.rows: outline.rows is None"),  # type: ignore[arg-type]
        (
            {"versions": {"1.0.0": ba.TransformVersion(first_rows)}},  # type: ignore[arg-type]
            "versions['1.0.0']: first_rows cannot be called with inputs and context: too many positional arguments",
        ),
        (
            {"warm_up_days": lambda: 3},
            "warm_up_days: <lambda> cannot be called with references: too many positional arguments",
        ),
        (
            {"reconciliations": (ba.Reconciliation("mine", ba.Level.STATE, "Mine.", of_three),)},
            "gate mine: of_three cannot be called with context: missing a required argument: 'more'",
        ),
        (
            {"corrections": ba.CorrectionsTable("silver.fixes", OfAnotherKey)},
            "corrections: 'meter_id' of silver.fixes is Int64, and of silver.daily String",
        ),
        (
            {"corrections": ba.CorrectionsTable("silver.fixes", OfAnotherKey)},
            "corrections: 'why' of silver.fixes is no column of the key of silver.daily",
        ),
        ({"corrections": ba.CorrectionsTable("silver.fixes", None)}, "corrections: model is None"),  # type: ignore[arg-type]
        ({"model": {"meter_id": str}}, "model: model is {'meter_id': <class 'str'>}"),
        ({"key": ("meter_id", "day", "meter_id")}, "key: key has 'meter_id' 2 times"),
        ({"look_back_columns": ("read_at",) * 3}, "look_back_columns: look_back_columns has 'read_at' 3 times"),
        ({"references": ("reference.meters",) * 2}, "references: references has 'reference.meters' 2 times"),
        ({"references": ("bronze.readings",)}, "references: bronze.readings is the source"),
        ({"references": ("silver.daily",)}, "references: silver.daily is no reference table"),
        (
            {"reconciliations": (DAILY_TOLERANCE(),), "tolerances": {"change_percnt": 1.0}},
            "tolerances: no gate looks for the tolerance 'change_percnt'; did you mean 'change_percent'?",
        ),
        (
            {"reconciliations": (DAILY_TOLERANCE(), SUMS()), "tolerances": {"change_percnt": 1.0}},
            "tolerances: no gate looks for the tolerance 'change_percnt'; did you mean 'change_percent'?",
        ),
        ({"live": replace(LIVE, gates="every")}, "live: gates is the text 'every'"),  # type: ignore[arg-type]
        ({"live": replace(LIVE, rewind_days="1")}, "live: rewind_days is '1'"),  # type: ignore[arg-type]
        ({"live": replace(LIVE, begins_on="2024-04-01")}, "live: begins_on is '2024-04-01'"),  # type: ignore[arg-type]
        ({"live": replace(LIVE, rewind_days=10**7)}, "live: rewind_days is 10000000"),
        (
            {"versions": {"1.0.0": ba.TransformVersion(meter_daily, clustered="no")}},  # type: ignore[arg-type]
            "versions: clustered of version '1.0.0' is 'no'",
        ),
        ({"reconciliations": (replace(OWN_GATE, level="STATE"),)}, "gate mine: level is 'STATE'"),  # type: ignore[type-var]
        (
            {"reconciliations": (replace(OWN_GATE, name="chunk_rules"),)},
            "reconciliations: gate chunk_rules is the platform's own",
        ),
        ({"live": replace(LIVE, late_after_hours=0)}, "live: late_after_hours is 0"),
        ({"live": replace(LIVE, cron="daily at two")}, "live: cron is 'daily at two': "),
        ({"live": replace(LIVE, cron="0 15 2 * * *")}, "live: cron is '0 15 2 * * *': it does not have 5 fields"),
        ({"live": replace(LIVE, cron="0 0 31 2 *")}, "live: cron is '0 0 31 2 *': failed to find next date"),
        ({"live": replace(LIVE, sinks=("run_adit",))}, "live: sinks: names 'run_adit'"),
        ({"live": replace(LIVE, sinks="run_audit")}, "live: sinks is the text 'run_audit'"),  # type: ignore[arg-type]
        (
            {"live": replace(LIVE, sinks=("breach_notifications",))},
            "live: sinks has breach_notifications, and side_effects_allowed is False",
        ),
        ({"reconciled": ba.ReconciliationPolicy(gates=())}, "reconciled: gates is empty"),
        ({"chunking": "MONTH"}, "chunking: chunking is 'MONTH'"),
        ({"model": ba.TargetTable}, "model: model is the class TargetTable"),
        (
            {"reconciliations": (replace(OWN_GATE, needs={}),)},  # type: ignore[arg-type]
            "reconciliations: needs of gate mine is {}",
        ),
        (
            {"reconciliations": (replace(OWN_GATE, tolerances=None),)},  # type: ignore[arg-type]
            "reconciliations: tolerances of gate mine is None",
        ),
        (
            {"reconciliations": (replace(OWN_GATE, needs=ba.Needs(tolerances="percent")),)},  # type: ignore[arg-type]
            "gate mine: its tolerances are the text 'percent'",
        ),
        ({"live": replace(LIVE, begins_on=date(2021, 1, 1))}, "live: begins_on is 2021-01-01, outside of the chunks"),
        ({"live": replace(LIVE, begins_on=date(2019, 12, 1))}, "live: begins_on is 2019-12-01, outside of the chunks"),
        (
            {"live": replace(LIVE, requested_by="ada", approved_by="ada")},
            "live: requested_by and approved_by are both 'ada'",
        ),
        (
            {"live": replace(LIVE, begins_on=date(2020, 2, 1)), "chunks_from": "2020-1"},
            "chunks_from: '2020-1' is not a chunk",
        ),
        ({"reconciled": ba.ReconciliationPolicy(days=-1)}, "reconciled: days is -1"),
        ({"reconciled": ba.ReconciliationPolicy(days=0)}, "reconciled: days is 0"),
        ({"reconciled": ba.ReconciliationPolicy(cron="61 * * * *")}, "reconciled: cron is '61 * * * *': "),
        ({"reconciled": ba.ReconciliationPolicy(gates="keys")}, "reconciled: gates is the text 'keys'"),  # type: ignore[arg-type]
    ],
)
def test_what_used_to_pass_until_it_was_needed_is_refused_when_it_is_declared(
    changes: dict[str, Any], found: str
) -> None:
    problems = said(replace(TARGET, **changes), sinks=(HOOK,))
    assert any(one.startswith(f"silver.daily: {found}") for one in problems), problems


@pytest.mark.parametrize(
    "changes",
    [
        {"warm_up_days": lambda references, days=3: days * len(references)},
        {"versions": {"1.0.0": ba.TransformVersion(injected)}},
        {"reconciliations": (OWN_GATE, DAILY_TOLERANCE()), "tolerances": {"energy_percent": 1.0}},
        {"measure": max},  # of one that is not written in Python nobody knows what it takes
        {"reconciliations": (DAILY_TOLERANCE(),), "tolerances": {"change_percent": 1.0, "of_my_own": 2.0}},
        {"live": replace(LIVE, cron="*/5 0-6,22 * jan-mar mon-fri", begins_on=date(2020, 12, 1), sinks=("run_audit",))},
        {"reconciled": ba.ReconciliationPolicy(cron="@daily", days=1)},
        {"live": replace(LIVE, sinks=("breach_notifications",), side_effects_allowed=True)},
    ],
)
def test_what_is_unusual_and_right_is_taken(changes: dict[str, Any]) -> None:
    assert said(replace(TARGET, **changes), sinks=(HOOK,)) == []


def test_a_schedule_is_one_that_dagster_runs() -> None:
    values = (
        "*",
        "0",
        "7",
        "60",
        "1-5",
        "*/5",
        "L",
        "mon",
        "1#2",
        "5-1",
        "1,2",
        "a",
        "0/15",
        "31",
        "?",
        "5L",
        "L5",
        "fri-mon",
    )
    crons = [" ".join(("0", "0", "*", "*", "*")[:at] + (one,) + ("*",) * (4 - at)) for one in values for at in range(5)]
    for cron in (*crons, "", "@daily", "@Weekly", "@reboot", "0 0 30 2 *", "0 0 30 2 mon", "0 15 2 * * *", "0 r * * *"):
        found = said(replace(TARGET, reconciled=ba.ReconciliationPolicy(cron=cron)))
        try:
            dg.ScheduleDefinition(job_name="any", cron_schedule=cron)
        except dg.DagsterInvalidDefinitionError:
            assert found, cron
        else:
            assert found == [], cron


def test_every_mistake_is_named_at_once() -> None:
    wrong = replace(TARGET, day_column="dya", source="bronze.reading", versions={}, chunks_from="2020-1")
    assert len(said(wrong)) == 4


def test_a_column_that_a_model_calls_unique_is_one_of_its_columns() -> None:
    class Misread(Readings):
        class Config:
            unique = ("meter_id", "raed_at")

    class Misnamed(Meters):
        class Config:
            unique = "metre_id"

    class Corrected(ba.Corrections):
        meter_id: str
        day: pl.Date

        class Config:
            unique = ("correction_id", "dya")

    target = replace(TARGET, model=Misdated, corrections=ba.CorrectionsTable("silver.daily_corrections", Corrected))
    inputs = (replace(INPUT, model=Misread), replace(METERS, model=Misnamed))
    assert said(target, inputs=inputs) == [
        "bronze.readings: model.Config.unique: 'raed_at' is no column of bronze.readings; did you mean 'read_at'?",
        "reference.meters: model.Config.unique: 'metre_id' is no column of reference.meters; did you mean 'meter_id'?",
        "silver.daily: model.Config.unique: 'dya' is no column of silver.daily; did you mean 'day'?",
        "silver.daily_corrections: model.Config.unique: 'dya' is no column of silver.daily_corrections; did you mean 'day'?",
    ]


def test_a_model_of_corrections_that_pandera_refuses_is_named() -> None:
    class Corrected(ba.Corrections):
        meter_id: str
        day: pl.Date

        @pa.check("dya")
        def _any(cls, data: Any) -> bool:  # noqa: N805
            return data is not None

    table = ba.CorrectionsTable("silver.daily_corrections", Corrected)
    (found,) = said(replace(TARGET, corrections=table))
    assert found.startswith("silver.daily_corrections: model: SchemaInitError: Check _any is assigned")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"transform": " "}, "silver.daily: transform: transform is ' '"),
        ({"transform": "Daily use"}, "silver.daily: transform: transform is 'Daily use'"),
        (
            {"versions": {"": ba.TransformVersion(meter_daily), "1": ba.TransformVersion(meter_daily)}},
            "silver.daily: versions: a version is named ''",
        ),
        ({"owners": ("team: ",)}, "silver.daily: owners=('team: ',)"),
        ({"owners": ("",)}, "silver.daily: owners=('',)"),
        ({"owners": ("@",)}, "silver.daily: owners=('@',)"),
        ({"owners": " ,"}, "silver.daily: owners=' ,'"),
        ({"tolerances": {"": 1.0}}, "silver.daily: tolerances: a tolerance is named ''"),
        ({"live": ba.LivePolicy("1.0.0", 1, requested_by=" ")}, "silver.daily: live: requested_by is ' '"),
        (
            {"reconciled": ba.ReconciliationPolicy(approved_by="")},
            "silver.daily: reconciled: approved_by is ''",
        ),
    ],
)
def test_a_name_that_nobody_could_say_is_refused(changes: dict[str, Any], found: str) -> None:
    assert said(replace(TARGET, **changes)) == [found]


def test_every_gate_that_names_what_is_not_there_is_named_at_once() -> None:
    gates = (ba.record_gate(("metre_id",), zone="Mars/Olympus"), ba.duplicate_gate(("red_at",)))
    found = said(replace(TARGET, reconciliations=gates))
    assert [one.split(": ")[1:3] for one in found] == [
        ["gate every_entity_is_present", "'metre_id' is no column of bronze.readings; did you mean 'meter_id'?"],
        ["gate every_entity_is_present", "'metre_id' is no column of silver.daily; did you mean 'meter_id'?"],
        ["gate every_entity_is_present", "'Mars/Olympus' is no time zone"],
        ["gate no_source_row_is_there_twice", "'red_at' is no column of bronze.readings; did you mean 'read_at'?"],
    ]


def test_a_gate_may_name_an_offset_instead_of_a_zone() -> None:
    for zone in ("UTC", "+02:00", "-11:30", "Europe/Rome", "Etc/GMT+2"):
        assert said(replace(TARGET, reconciliations=(ba.duplicate_gate(("meter_id",), zone=zone),))) == []


def test_types_without_an_encoding_are_named_column_by_column() -> None:
    found = said(replace(TARGET, model=Inexact))
    assert [one.split(" has ")[0] for one in found] == [
        "silver.daily: model: column share: Float16",
        "silver.daily: model: column parts.element: UInt32",
        "silver.daily: model: column small: Int8",
        "silver.daily: model: column short: Int16",
        "silver.daily: model: column took: Duration(time_unit='us')",
        f"silver.daily: model: column by_share: Float64 is no key of a map: {no_map_key(pl.Float64())}",
        "silver.daily: model: column local: instants are Datetime('us', 'UTC'), not Datetime(time_unit='ns', time_zone=None)",
        "silver.daily: model: column of: a struct with two fields of one name, as Spark and SQL read it",
    ]
    problems = problems_of([ba.Product("metering", (INPUT, METERS), (replace(TARGET, model=Inexact),))])
    assert [one.fix.partition(":")[0].partition(",")[0] for one in problems[:4]] == [
        "declare pl.Float32",
        "declare another type; money is a decimal",
        "declare pl.Int32",
        "declare pl.Int32",
    ]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("key", ["share", "tags", "codes", "place"]),
        ("version_column", ["share", "tags", "codes", "place", "raw", "order_id", "clock"]),
        ("entity", ["share", "tags", "codes", "place", "raw", "order_id", "clock"]),
        ("outline", ["tags", "codes", "place", "clock"]),
        ("diff_tolerances", ["tags", "codes", "place", "raw", "order_id", "clock", "local", "meter_id", "day"]),
    ],
)
def test_a_type_that_cannot_do_what_a_field_wants_is_refused_by_name(field: str, wrong: list[str]) -> None:
    given: dict[str, Callable[[str], Any]] = {
        "key": lambda name: ("meter_id", "day", name),
        "version_column": lambda name: name,
        "entity": lambda name: name,
        "outline": lambda name: ba.Outline((name,), lambda rows: rows),
        "diff_tolerances": lambda name: {name: 0.5},
    }
    base = replace(TARGET, model=Varied, entity=None)
    found = []
    for name in ("share", "tags", "codes", "place", "raw", "order_id", "clock", "local", "meter_id", "day"):
        if name in {"meter_id", "day"} and field == "key":
            continue
        target = replace(base, **{field: given[field](name)})
        about = [one for one in said(target) if f": {field}: {field} names '{name}', which is " in one]
        found += [name] if about else []
    assert found == wrong


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), "1e-9", True])
def test_a_tolerance_of_a_diff_is_a_number_above_0(value: Any) -> None:
    found = said(replace(TARGET, model=Varied, entity=None, diff_tolerances={"share": value}))
    assert found == [f"silver.daily: diff_tolerances: the tolerance of 'share' is {value!r}"]
    assert said(replace(TARGET, model=Varied, entity=None, diff_tolerances={"share": 1e-9})) == []


def test_a_decimal_has_digits_before_the_point_and_no_more_than_there_is_place_for() -> None:
    assert [one.partition("; ")[2] for one in said(replace(TARGET, model=Swapped)) if "decimal" in one] == [
        "not 2 and 12",
        "not 50 and 2",
        "not 12 and -2",
    ]


def test_a_name_stands_for_one_table_in_all_products() -> None:
    two = (ba.Product("a", (INPUT, METERS), (TARGET,)), ba.Product("b", (INPUT,), ()))
    assert "table bronze.readings is declared 2 times" in [one.what for one in problems_of(two)]


def test_an_input_is_partitioned_by_an_instant() -> None:
    found = said(TARGET, inputs=(replace(INPUT, partition_by="watt_hours"), METERS))
    assert found == ["bronze.readings: partition_by: 'watt_hours' of bronze.readings is Int64"]


# --- a product that cannot be imported --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("was", "becomes", "found"),
    [
        ("ba.InputTable(", "ba.InputTabel(", "did you mean 'InputTable'?"),
        ("source_time_column=", "time_column=", "TargetTable has no time_column; did you mean source_time_column?"),
        ("from pyspark.sql import DataFrame", "from pyspark.sql import DataFrames", "did you mean 'DataFrame'?"),
        ("OWNERS = (", "OWNERS = ((", "'(' was never closed"),
    ],
)
def test_what_keeps_a_product_from_being_imported_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, becomes: str, found: str
) -> None:
    right = (ROOT / "docs" / "tutorial" / "metering.py").read_text(encoding="utf-8")
    product = tmp_path / "metering_declared.py"
    product.write_text(right.replace(was, becomes), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(DeclarationRefused) as caught:
        find_products(["metering_declared:PRODUCT"])
    (problem,) = caught.value.problems
    assert found in problem.what
    assert "`python -c 'import metering_declared'`" in problem.fix
    file, _, line = problem.where.rpartition(":")
    assert file == str(product)
    wrong = right.splitlines()[int(line) - 1]
    assert wrong.startswith(("READINGS = ", "DAILY = ", "OWNERS = ", "from pyspark.sql import DataFrame"))


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("sys.exit()", "SystemExit: it ends the process"),
        ("sys.exit(0)", "SystemExit: 0: it ends the process"),
        ("raise GeneratorExit('x')", "GeneratorExit: x: it ends the process"),
        ("raise type('Odd', (Exception,), {'__str__': lambda _: 1 / 0})", "Odd: its own words raise ZeroDivisionError"),
    ],
)
def test_a_product_that_ends_the_process_or_has_no_words_for_its_error_is_refused_with_its_line(
    tmp_path: Path, line: str, found: str
) -> None:
    said = said_by(tmp_path, f"import sys\n\n{line}\n", "init")
    assert f"metering.py:3: {found}" in said


def test_a_function_of_a_product_that_ends_the_process_is_no_success_of_the_command(tmp_path: Path) -> None:
    text = (
        "import sys\nimport backfill_assets as ba\n\n\ndef fill():\n    sys.exit()\n\n\n"
        "PRODUCT = ba.Product('metering', (), (), references='metering:fill')\n"
    )
    assert "metering.py:6, in fill: SystemExit: it ends the process" in said_by(tmp_path, text, "init")


def test_whatever_else_ends_the_process_is_no_success_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "argv", ["backfill", "init"])
    monkeypatch.setattr(initialising, "shipped_references", lambda _: sys.exit())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "a function of a product has ended the process" in capsys.readouterr().err


def test_every_argument_that_a_declaration_does_not_have_or_lacks_is_named_at_once() -> None:
    with pytest.raises(TypeError) as caught:
        ba.TargetTable("silver.daily", day_colum="day", keys=("meter_id",), nothing_like_it=1)  # type: ignore[call-arg]
    reasons = [one.what for one in declared.import_problems(caught.value, "metering")]
    assert reasons[:3] == [
        "TargetTable has no day_colum; did you mean day_column?",
        "TargetTable has no keys; did you mean key?",
        "TargetTable has no nothing_like_it",
    ]
    assert reasons[3:] == [
        f"TargetTable lacks {name}"
        for name in (
            "description", "model", "chunking", "source", "versions", "owners",
        )
    ]  # fmt: skip


WRONG_TWICE = """
import backfill_assets as ba
OUTLINE = ba.Outline(column=("meter_id",), rows=None)
LIVE = ba.LivePolicy("1.0.0", rewind=1)
LAST = OUTLINE.columns[0]
"""


def test_the_arguments_of_every_declaration_of_every_product_are_named_at_once(folder: Path) -> None:
    (folder / "zzz_parts.py").write_text(WRONG_TWICE)
    (folder / "zzz_lacking.py").write_text("import zzz_parts\nimport backfill_assets as ba\nPRODUCT = ba.Product()\n")
    (folder / "zzz_raises.py").write_text("1 // 0\n")
    expected = [
        ("Outline has no column; did you mean columns?", "zzz_parts.py:3"),
        ("LivePolicy has no rewind; did you mean rewind_days?", "zzz_parts.py:4"),
        ("ZeroDivisionError: integer division or modulo by zero", "zzz_raises.py:1"),
    ]
    for _ in range(2):  # what was imported with a mistake is imported anew
        found = refusal_of("zzz_lacking:PRODUCT", "zzz_raises:PRODUCT")
        assert [(one.what, Path(one.where).name) for one in found] == expected
    (folder / "zzz_parts.py").write_text(WRONG_TWICE.replace("LAST", "# "))
    found = [(one.what, Path(one.where).name) for one in refusal_of("zzz_lacking:PRODUCT")]
    assert found == expected[:2] + [
        (f"Product lacks {name}", "zzz_lacking.py:3") for name in ("name", "inputs", "targets")
    ]
    with pytest.raises(TypeError, match="Outline has no column"):  # by itself, the first is Python's error
        importlib.import_module("zzz_lacking")
    (folder / "zzz_parts.py").write_text("")
    (folder / "zzz_lacking.py").write_text("import backfill_assets as ba\nPRODUCT = ba.Product('twice', (), ())\n")
    importlib.invalidate_caches()
    assert [one.name for one in find_products(["zzz_lacking:PRODUCT"])] == ["twice"]


@pytest.mark.parametrize(
    ("module", "refused"),
    [
        ("import zzz_parts\nfrom zzz_later import LIVE\n", True),  # what it imported beside stays out of reach, too
        ("try:\n    import zzz_parts\nexcept TypeError:\n    pass\n", False),  # it knows what to do about it
    ],
)
def test_what_was_declared_wrongly_is_served_by_nobody(folder: Path, module: str, refused: bool) -> None:
    (folder / "zzz_parts.py").write_text(WRONG_TWICE)
    (folder / "zzz_later.py").write_text("from zzz_parts import LIVE\n")
    product = "import backfill_assets as ba\nPRODUCT = ba.Product('mine', (), ())\n"
    (folder / "zzz_module.py").write_text(module + product)
    (folder / "zzz_beside.py").write_text("import zzz_later\n" + product)
    if refused:
        assert len(refusal_of("zzz_module:PRODUCT")) == 2
    else:
        assert len(find_products(["zzz_module:PRODUCT"])) == 1
    assert len(refusal_of("zzz_beside:PRODUCT")) == 2
    assert not {"zzz_parts", "zzz_later", "zzz_beside"} & sys.modules.keys()


def test_a_module_that_is_named_is_looked_for_and_not_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "zzz_ends").mkdir()
    (folder / "zzz_ends" / "__init__.py").write_text("raise SystemExit(3)\n")
    monkeypatch.setitem(sys.modules, "zzz_made", ModuleType("zzz_made"))
    for path in ("zzz_ends.tables:reference_rows", "zzz_made:reference_rows"):
        assert problems_of([ba.Product("mine", (), (), references=path, loaders={"rows": path})]) == []
    (problem,) = problems_of([ba.Product("mine", (), (), references="zzz_nowhere.tables:reference_rows")])
    assert problem.what == "references='zzz_nowhere.tables:reference_rows', and there is no zzz_nowhere"


@pytest.mark.parametrize(
    ("code", "missing"),
    [
        ("LOADR = 1\n", "LOADER in zzz_loading"),
        ("if True:\n    LOADER = 1\n", None),
        ("try:\n    from json import loads as LOADER\nexcept ImportError:\n    LOADER = None\n", None),
        ("def made():\n    LOADER = 1\nprint(LOADER)\n", "LOADER in zzz_loading"),
        ("def LOADER(): ...\n", None),
        ("for LOADER in (1, 2): pass\n", None),
        ("from json import *\n", None),
        ("def __getattr__(name): return 3\n", None),
        ("globals().update(LOADER=3)\n", None),
        ("from json import*\n", None),
        ("from json import \\\n  *\n", None),
        ("[LOADER := one for one in (1, 2)]\n", None),
        ("import sys\nsys.modules[__name__] = sys\n", None),
        ("raise SystemExit(3)\n", "LOADER in zzz_loading"),
        ("this is no Python\n", None),  # said when it is imported, with its line
    ],
)
def test_an_attribute_that_is_named_is_looked_for_in_the_file(folder: Path, code: str, missing: str | None) -> None:
    (folder / "zzz_loading.py").write_text(code)
    importlib.invalidate_caches()
    found = problems_of([ba.Product("mine", (), (), loaders={"rows": "zzz_loading:LOADER"})])
    what = f"loaders['rows']='zzz_loading:LOADER', and there is no {missing}"
    assert [one.what for one in found] == ([what] if missing else [])
    assert "zzz_loading" not in sys.modules


def test_a_module_of_a_package_that_was_imported_is_looked_for(folder: Path) -> None:
    """A package itself may have any attribute, also one that it imports when it is asked for."""
    (folder / "zzz_pack").mkdir()
    lazily = "def __getattr__(name):\n    raise SystemExit(3)\n"
    (folder / "zzz_pack" / "__init__.py").write_text(lazily)
    importlib.invalidate_caches()
    importlib.import_module("zzz_pack")
    try:
        assert problems_of([ba.Product("mine", (), (), references="zzz_pack:rows")]) == []
        (problem,) = problems_of([ba.Product("mine", (), (), references="zzz_pack.tables:rows")])
    finally:
        del sys.modules["zzz_pack"]
    assert problem.what == "references='zzz_pack.tables:rows', and there is no zzz_pack.tables"


@pytest.mark.parametrize(
    ("kind", "rules", "passes"),
    [
        (pl.Int64, {"ge": 3, "le": 2}, False),
        (pl.Int64, {"ge": 3, "le": 3}, True),
        (pl.Int64, {"gt": 3, "le": 3}, False),
        (pl.Int64, {"gt": 3, "lt": 4}, False),
        (pl.Int64, {"gt": 3, "lt": 5}, True),
        (pl.Int64, {"gt": 3.2, "lt": 3.9}, False),
        (pl.Int32, {"gt": 2**31}, False),
        (pl.Int32, {"le": 2**40}, True),
        (pl.Int64, {"isin": []}, False),
        (pl.Int64, {"isin": [1, 2], "ge": 3}, False),
        (pl.Int64, {"isin": [1, 2], "ge": 2}, True),
        (pl.Int64, {"isin": [1, 2], "eq": 2**70}, False),
        (pl.Int64, {"isin": range(3_000_000), "ge": 5_000_000}, True),  # too many to look at
        (pl.Int64, {"isin": pl.Series([1, 2])}, True),
        (pl.Int64, {"isin": pl.Series([1, 2]), "lt": 1}, False),
        (pl.Int64, {"eq": 1, "ne": 1}, False),
        (pl.Int64, {"eq": 1, "ne": 2}, True),
        (pl.Int64, {"isin": [1, 2], "notin": [2, 1]}, False),
        (pl.Int64, {"isin": [1, 2], "notin": [2], "ne": 1}, False),
        (pl.Int64, {"isin": [1, 2], "notin": [2]}, True),
        (str, {"isin": ["a"], "notin": "abc"}, True),  # a text is no list of values: pandera's to refuse
        (pl.Int64, {"ge": 2, "le": 1, "nullable": True}, True),  # NULL does
        (Annotated[pl.Decimal, 4, 2], {"ge": 0.1, "le": Decimal("0.1")}, True),
        (Annotated[pl.Decimal, 4, 2], {"ge": Decimal("NaN")}, True),
        (pl.Int64, {"in_range": {"min_value": 3, "max_value": 4}, "lt": 3}, False),
        (str, {"ge": "b", "le": "a"}, False),
        (str, {"isin": ["a", "b"], "str_matches": "b"}, True),
        (pl.Date, {"ge": date(2020, 1, 2), "le": date(2020, 1, 1)}, False),
        (Annotated[pl.Decimal, 4, 2], {"ge": 100}, False),
        (Annotated[pl.Decimal, 4, 2], {"ge": 99.99}, True),
        (Annotated[pl.Decimal, 4, 2], {"ge": "100.00"}, True),  # what nobody can compare here, nothing is said of
        (Annotated[pl.Decimal, 4, 2], {"gt": 3, "lt": 3}, False),
    ],
    ids=str,
)
def test_rules_that_leave_no_value_are_refused(kind: Any, rules: dict[str, Any], *, passes: bool) -> None:
    attributes = {"__annotations__": {"meter_id": str, "amount": kind}, "amount": pa.Field(**rules)}
    model = type("Model", (pa.DataFrameModel,), attributes)
    found = [one.what for one in problems_of([ba.Product("mine", (replace(METERS, model=model),), ())])]
    assert [one.partition(" passes its rules")[0].partition(" (")[0] for one in found] == (
        [] if passes else ["no value of column amount"]
    )


def test_a_model_that_lets_rows_pass_that_break_its_rules_is_refused() -> None:
    class Dropping(pa.DataFrameModel):
        meter_id: str = pa.Field(nullable="yes")  # type: ignore[arg-type]
        cents: pl.Int64 = pa.Field(ge=0, raise_warning=True, default=0)

        @pa.dataframe_check(raise_warning=True)
        def _some(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
            return data.lazyframe.select(pl.col("cents") > 0)

        class Config:
            drop_invalid_rows = True
            add_missing_columns = True

    found = [one.what for one in problems_of([ba.Product("mine", (replace(METERS, model=Dropping),), ())])]
    assert found == [
        "Config of Dropping has drop_invalid_rows",
        "Config of Dropping has add_missing_columns",
        "the rule cents: greater_than_or_equal_to of Dropping only warns (`raise_warning=True`)",
        "the rule _some of Dropping only warns (`raise_warning=True`)",
        "nullable of column meter_id is 'yes'",
        "column cents has a default (0)",
    ]


def test_a_column_that_may_be_left_out_or_does_not_say_its_digits_is_refused() -> None:
    class Loose(pa.DataFrameModel):
        meter_id: str | None
        city: str = pa.Field(nullable=True)
        price_: pl.Decimal = pa.Field(alias="price")
        area: str = pa.Field(regex=True)

    class Said(pa.DataFrameModel):
        cost: Annotated[pl.Decimal, 28, 0]

    def of(model: Any) -> list[str]:
        return [one.what for one in problems_of([ba.Product("mine", (replace(METERS, model=model),), ())])]

    assert of(Said) == []
    assert of(Loose) == [
        "column meter_id may be left out",
        "column price is a decimal that does not say its digits",
        "column area is a pattern (`regex=True`)",
    ]


def test_what_is_newer_is_said_of_any_two_rows() -> None:
    class Versioned(Daily):
        late: bool
        noted_at: ba.Instant = pa.Field(nullable=True)

    found = {
        name: [one for one in said(replace(TARGET, model=Versioned, version_column=name)) if "version_column" in one]
        for name in ("late", "noted_at", "watt_hours", "day")
    }
    assert found == {
        "late": ["silver.daily: version_column: version_column 'late' is a truth"],
        "noted_at": ["silver.daily: version_column: version_column 'noted_at' may be NULL"],
        "watt_hours": [],
        "day": [],
    }


def test_a_function_whose_parameters_stand_in_another_order_is_refused() -> None:
    def swapped(context: Any, inputs: Any) -> Any:
        raise NotImplementedError(context, inputs)

    def other_names(one: Any, inputs: Any) -> Any:
        raise NotImplementedError(one, inputs)

    found = [
        said(replace(TARGET, versions={"1.0.0": ba.TransformVersion(one)}))
        for one in (swapped, other_names, meter_daily)
    ]
    assert [[one.rpartition(": ")[2] for one in each] for each in found] == [["it takes context and inputs"], [], []]


def test_a_table_is_not_its_own_source_and_a_key_that_is_a_text_is_said_once() -> None:
    assert "silver.daily: source: silver.daily is its own source" in said(replace(TARGET, source="silver.daily"))
    assert said(replace(TARGET, key="meter_id")) == ["silver.daily: key: key is the text 'meter_id'"]


@pytest.mark.parametrize(
    ("mistake", "what"),
    [
        ("ba.Chunking.MONHT", "Chunking has no MONHT; did you mean 'MONTH'?: there are "),
        ("ba.Level.TOTALS", "Level has no TOTALS: there are RECORD, STATE, OUTCOME, CHANGE"),
    ],
)
def test_a_member_that_there_is_not_is_said_with_those_that_there_are(folder: Path, mistake: str, what: str) -> None:
    (folder / "zzz_member.py").write_text(f"import backfill_assets as ba\n{mistake}\n")
    (problem,) = refusal_of("zzz_member:PRODUCT")
    assert problem.what.startswith(what)
    assert problem.where.endswith("zzz_member.py:2")


def test_a_misspelt_word_in_config_is_said_with_those_that_pandera_knows() -> None:
    class Misspelt(pa.DataFrameModel):
        meter_id: str

        class Config:
            uniqe = ("meter_id",)

    (problem,) = problems_of([ba.Product("mine", (replace(METERS, model=Misspelt),), ())])
    assert problem.what == "Config of Misspelt has uniqe; did you mean 'unique'?"


def keys(**other: Any) -> Any:
    return ba.keys("meters", **{"eligible": lambda context: context.source, "key": ("meter_id",)} | other)


def totals(**other: Any) -> ba.Reconciliation:
    usual = {"slices": ("chunk",), "measures": ("watt_hours",), "expected": lambda _: ()}
    return ba.state_level("agrees", "They agree.", **usual | other)


THERE = ba.keys("meters", eligible=lambda context: context.source, key=("meter_id",))


@pytest.mark.parametrize(
    ("gate", "what"),
    [
        (lambda: ba.record_level("there", "They are there.", THERE), []),
        (lambda: ba.record_level("there", "They are there.", keys), ["entities is <function keys"]),
        (lambda: ba.record_level("there", 3, THERE), ["description is 3"]),
        (lambda: ba.record_level("there", "x", THERE, compared="all"), ["compared is 'all'"]),
        (lambda: ba.record_level("there", "x", THERE, by="day"), ["by is the text 'day'"]),
        (lambda: ba.record_level("there", "x", THERE, by=("day",)), ["a column of by is 'day'"]),
        (lambda: ba.record_level("there", "x", THERE, summary="{compard}"), ["summary is '{compard}'"]),
        (lambda: ba.outcome_level("there", "x", THERE, compared="missing", summary=5), ["summary is 5"]),
        (lambda: ba.record_level("there", "x", keys(eligible="rows")), ["eligible is 'rows'"]),
        (lambda: ba.record_level("there", "x", keys(key=())), ["key is ()"]),
        (lambda: ba.record_level("there", "x", keys(key="meter_id")), ["key is the text 'meter_id'"]),
        (
            lambda: ba.record_level("there", "x", keys(key=("meter_id", "meter_id"))),
            ["key is ('meter_id', 'meter_id')"],
        ),
        (lambda: ba.record_level("there", "x", keys(slices="day")), ["slices is the text 'day'"]),
        (lambda: ba.record_level("there", "x", keys(found=3)), ["found is 3"]),
        (totals, []),
        (lambda: totals(slices=()), []),
        (lambda: totals(slices="chunk"), ["slices is the text 'chunk'"]),
        (lambda: totals(measures=()), ["measures is ()"]),
        (lambda: totals(expected="rows"), ["expected is 'rows'"]),
        (lambda: totals(relative="yes", tolerance=3), ["relative is 'yes'", "tolerance is 3"]),
        (lambda: totals(relative=True, tolerance=None), ["relative is True"]),
        (lambda: totals(entities=keys), ["entities is <function keys"]),
        (
            lambda: ba.Reconciliation("g", ba.Level.STATE, "x", first_rows, mistakes="none"),
            ["mistakes of gate g is 'none'"],
        ),  # type: ignore[arg-type]
    ],
)
def test_what_the_pieces_of_a_gate_cannot_be_given_is_refused(gate: Any, what: list[str]) -> None:
    found = [one.partition(": ")[2].partition(": ")[2] for one in said(replace(TARGET, reconciliations=(gate(),)))]
    assert [one[: len(wanted)] for one, wanted in zip(found, what, strict=True)] == what


def test_a_tolerance_that_two_gates_bring_along_has_one_default() -> None:
    two = (ba.change_gate(percent=5), ba.change_gate("other", percent=7))
    assert said(replace(TARGET, reconciliations=two)) == [
        "silver.daily: tolerances: gates bring the tolerance 'change_percent' along as 5 and 7"
    ]
    assert said(replace(TARGET, reconciliations=two, tolerances={"change_percent": 6.0})) == []
    assert said(replace(TARGET, reconciliations=(two[0], ba.change_gate("other", percent=5)))) == []


async def in_time(*_: Any) -> Any:
    raise NotImplementedError


def one_by_one(*_: Any) -> Iterator[Any]:
    yield


def test_a_transform_that_would_return_nothing_by_itself_is_refused() -> None:
    found = [said(replace(TARGET, versions={"1.0.0": ba.TransformVersion(one)})) for one in (in_time, one_by_one)]
    assert [[one.rpartition(": ")[2] for one in each] for each in found] == [
        ["in_time is a coroutine (`async def`)"],
        ["one_by_one is a generator (it has a `yield`)"],
    ]


def test_small_slips_of_a_table_are_said_with_what_is_meant() -> None:
    origins: Any = {"watt_hours": ("bronze.readings",)}
    assert said(replace(TARGET, column_origins=origins)) == [
        "silver.daily: column_origins: column_origins['watt_hours'] has 'bronze.readings'"
    ]
    itself = replace(INPUT, quarantine_of=INPUT.name)
    assert "bronze.readings: quarantine_of: bronze.readings is its own quarantine" in said(
        TARGET, inputs=(itself, METERS)
    )
    nowhere = ba.CorrectionsTable(
        "corrections", type("Own", (ba.Corrections,), {"__annotations__": {"meter_id": str, "day": pl.Date}})
    )
    assert said(replace(TARGET, corrections=nowhere)) == ["silver.daily: corrections: a table is named 'corrections'"]


def test_names_that_are_no_columns_or_not_told_apart_are_refused() -> None:
    class Named(ba.Published):
        meter_id: str
        Meter_ID: str
        _queue: str
        _shared: ClassVar[dict[str, str]] = {}
        day: pl.Date
        watt_hours: pl.Int64
        run_id: pl.Int64  # type: ignore[assignment]

    of_model = "silver.daily: model: "
    found = [one.removeprefix(of_model) for one in said(replace(TARGET, model=Named)) if one.startswith(of_model)]
    assert [one for one in found if "is not a name of module" not in one] == [
        "_queue is no column: pandera takes no name that begins with _",
        "column meter_id has the name of another",
        "column Meter_ID has the name of another",
        "column run_id is declared as Int64",
    ]


@pytest.mark.parametrize("name", ["chunk", "Chunk", "PART"])
def test_a_column_with_the_name_of_a_folder_is_refused_however_it_is_written(name: str) -> None:
    model = type("Named", (Daily,), {"__annotations__": {name: str}})
    assert f"silver.daily: model: column {name} has the name of a folder" in said(replace(TARGET, model=model))


def test_code_that_computes_none_of_the_tables_is_refused() -> None:
    product = ba.Product("mine", (INPUT, METERS), (TARGET,))
    (problem,) = problems_of([replace(product, code=("json",))])
    assert problem.what.startswith("code is json, and has none of ")
    assert problems_of([replace(product, code=(__name__.partition(".")[0],))]) == problems_of([product]) == []


def test_a_table_does_not_have_the_name_of_one_of_the_platforms() -> None:
    assert {"audit.run_audit", EXCEPTIONS_TABLE} == PLATFORM_TABLES
    for name in PLATFORM_TABLES:
        (problem,) = problems_of([ba.Product("mine", (replace(METERS, name=name),), ())])
        assert problem.what == f"{name} is a table of the platform's own"


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        ("descripton='x'", "descripton; did you mean 'description'?"),
        ("nullabel=True", "nullabel; did you mean 'nullable'?"),
    ],
)
def test_a_misspelt_word_of_a_field_is_said_with_what_is_meant(folder: Path, field: str, meant: str) -> None:
    model = f"import pandera.polars as pa\nclass M(pa.DataFrameModel):\n    x: str = pa.Field({field})\n"
    (folder / "zzz_field.py").write_text(model)
    (problem,) = refusal_of("zzz_field:PRODUCT")
    assert problem.what == f"pa.Field has no {meant}"


class Unlooked:
    """What cannot be looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("not for you")


@pytest.mark.parametrize(
    "value",
    [[Unlooked()], {"a": Unlooked()}, (Unlooked(),), 10**5000, pl.Series([1, 2])],
    ids=["list", "dict", "tuple", "number", "series"],
)
@pytest.mark.parametrize("field", [one.name for one in fields(TARGET)])
def test_a_value_that_cannot_even_be_looked_at_is_a_refusal(field: str, value: Any) -> None:
    said(replace(TARGET, **{field: value}))
    said(replace(TARGET, live=replace(LIVE, rewind_days=value)))


def test_an_argument_of_a_gate_that_is_misspelt_hides_no_other_mistake_of_its_target() -> None:
    gates = (
        ba.record_gate(("meter_id",), zones="UTC"),  # type: ignore[call-arg]
        ba.change_gate(percen=20.0, threshold=2),  # type: ignore[call-arg]
        ba.duplicate_gate(name="twice"),  # type: ignore[call-arg]
    )
    wrong = [
        "gate every_entity_is_present: record_gate has no zones; did you mean zone?",
        "gate change_within_tolerance: change_gate has no percen; did you mean percent?",
        "gate change_within_tolerance: change_gate has no threshold",
        "gate twice: duplicate_gate lacks columns",
    ]
    found = said(replace(TARGET, reconciliations=gates, day_column="dya"))
    assert [f"silver.daily: {one}" for one in wrong] == [one for one in found if ": gate " in one]
    assert len(found) == len(wrong) + 1
    with pytest.raises(TypeError) as caught:
        ba.TargetTable("silver.daily", day_colum="day", keys=("meter_id",), reconciliations=gates)  # type: ignore[call-arg]
    reasons = [one.what for one in declared.import_problems(caught.value, "metering")]
    assert [one for one in reasons if " lacks " not in one or "gate" in one] == [
        "TargetTable has no day_colum; did you mean day_column?",
        "TargetTable has no keys; did you mean key?",
        *wrong,
    ]


def test_an_argument_of_a_gate_that_is_misspelt_hides_no_wrong_value_of_the_same_call() -> None:
    gates = (
        ba.change_gate(percent=-10, ask=True),  # type: ignore[call-arg]
        ba.record_gate(zone="Europe/Rome", carried="no"),  # type: ignore[call-arg]
        ba.duplicate_gate((), "twice", zones="UTC"),  # type: ignore[call-arg]
    )
    found = [one for one in said(replace(TARGET, reconciliations=gates)) if ": gate " in one]
    assert found == [
        "silver.daily: gate change_within_tolerance: change_gate has no ask; did you mean asks?",
        "silver.daily: gate change_within_tolerance: percent is -10",
        "silver.daily: gate every_entity_is_present: record_gate lacks key",
        "silver.daily: gate every_entity_is_present: carried is 'no'",
        "silver.daily: gate twice: duplicate_gate has no zones; did you mean zone?",
        "silver.daily: gate twice: columns is ()",
    ]


def test_what_an_argument_of_a_gate_cannot_be_is_refused_with_the_declaration() -> None:
    wrong: dict[Any, list[str]] = {
        partial(ba.change_gate, percent="viel"): ["percent is 'viel'"],
        partial(ba.change_gate, percent=-5): ["percent is -5"],
        partial(ba.change_gate, percent=float("nan")): ["percent is nan"],
        partial(ba.change_gate, percent=float("inf")): ["percent is inf"],
        partial(ba.change_gate, percent=True, tolerance="Too Much", asks="yes"): [
            "percent is True", "tolerance is 'Too Much'", "asks is 'yes'",
        ],
        partial(ba.change_gate, tolerance=["x"]): ["tolerance is ['x']"],
        partial(ba.record_gate, 5): ["key is 5"],
        partial(ba.record_gate, ()): ["key is ()"],
        partial(ba.record_gate, ("meter_id", 5)): ["key is ('meter_id', 5)"],
        partial(ba.record_gate, "meter_id"): [
            "its source columns are the text 'meter_id'", "its target columns are the text 'meter_id'",
        ],
        partial(ba.record_gate, ["metre_id"], zone=["Mars"], carried=1): [
            "carried is 1",
            "'metre_id' is no column of bronze.readings; did you mean 'meter_id'?",
            "'metre_id' is no column of silver.daily; did you mean 'meter_id'?",
            "['Mars'] is no time zone",
        ],
        partial(ba.duplicate_gate, None): ["columns is None"],
        partial(ba.duplicate_gate, ("meter_id",), zone=2): ["2 is no time zone"],
    }  # fmt: skip
    for gate, reasons in wrong.items():
        built = gate()
        found = said(replace(TARGET, reconciliations=(built,)))
        assert found == [f"silver.daily: gate {built.name}: {one}" for one in reasons], gate
    for gate in (ba.change_gate, partial(ba.record_gate, ("meter_id",)), partial(ba.duplicate_gate, ("meter_id",))):
        for name in ("No Name", 5, ["a"]):
            (reason,) = said(replace(TARGET, reconciliations=(gate(name=name),)))
            assert reason == f"silver.daily: gate {name}: name is {name!r}"
    assert said(replace(TARGET, reconciliations=(ba.change_gate(percent=0), ba.record_gate(["meter_id"])))) == []  # type: ignore[arg-type]


def test_what_a_tolerance_or_a_gate_cannot_be_is_refused_with_the_declaration() -> None:
    gate = replace(AGREES, tolerances={"energy_percent": "viel"}, exceptions_limit=-1)
    assert said(replace(TARGET, reconciliations=(gate,), tolerances={"other": -1})) == [
        "silver.daily: tolerances: other is -1",
        "silver.daily: gate energy_agrees: energy_percent is 'viel'",
        "silver.daily: gate energy_agrees: exceptions_limit is -1",
    ]
    live = ba.LivePolicy("1.0.0", 1, tolerances={"change_percent": "viel"})  # type: ignore[dict-item]
    assert said(replace(TARGET, reconciliations=(ba.change_gate(),), live=live)) == [
        "silver.daily: live: change_percent is 'viel'"
    ]
    for given in (ba.change_gate(), (ba.change_gate,), 5):
        (reason,) = said(replace(TARGET, reconciliations=given))  # type: ignore[arg-type]
        assert reason.startswith("silver.daily: reconciliations: "), reason


def test_a_misspelt_table_is_answered_with_the_one_that_was_meant() -> None:
    with pytest.raises(InputRefused, match=r"did you mean silver\.case_sla_daily\? correct the name"):
        find_products(None).target("silver.case_sla_dayly")
    with pytest.raises(InputRefused, match=r"did you mean bronze\.case_events\?"):
        find_products(None).input("bronze.case_event")


def test_settings_of_a_folder_without_an_installation_say_so_and_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFILL_HOME", str(tmp_path / "elsewhere"))
    done = CliRunner().invoke(cli, ["config", "--json"])
    assert done.exit_code == 0
    assert "there is no installation at" in done.stderr
    assert "BACKFILL_HOME" in done.stderr
    assert json.loads(done.stdout)["home"].endswith("elsewhere")


def said_by(folder: Path, text: str, command: str, code: int = 2) -> str:
    (folder / "metering.py").write_text(text, encoding="utf-8")
    (folder / "home").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "backfill_assets.cli.command", *command.split()],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
        env=os.environ
        | {"PYTHONPATH": f"{folder}:{ROOT}", "BACKFILL_HOME": str(folder / "home"), "BACKFILL_PRODUCTS": '["metering:PRODUCT"]'},
    )  # fmt: skip
    assert done.returncode == code, done.stderr[-3000:]
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_a_command_refuses_what_a_product_declares_wrongly_without_a_traceback(tmp_path: Path) -> None:
    right = (ROOT / "docs" / "tutorial" / "metering.py").read_text(encoding="utf-8")
    line = right.splitlines().index("DAILY = ba.TargetTable(") + 1
    said = said_by(tmp_path, right.replace("day_column=", "dya_column="), "ui")
    assert f"metering.py:{line}: " in said
    said = said_by(tmp_path, right.replace('day_column="day"', 'day_column="dya"'), "init")
    assert "'dya' is no column of silver.meter_daily" in said


# --- where products come from -----------------------------------------------------------------------------------------


def test_what_is_installed_is_served_unless_the_settings_name_what_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metering_found.py").write_bytes((ROOT / "docs" / "tutorial" / "metering.py").read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    assert list(installed()) == ["accounts", "enforcement", "orders", "public_health"]
    assert [product.name for product in find_products(None)] == ["accounts", "enforcement", "orders", "public_health"]
    assert [product.name for product in find_products([])] == []
    by_path = find_products(["metering_found:PRODUCT", "enforcement"])
    assert [product.name for product in by_path] == ["metering", "enforcement"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["enforcment"], ["no product is called 'enforcment'"]),
        (["enforcement", "enforcement"], ["is named 2 times"]),
        (["enforcement", "backfill_assets.products.enforcement:PRODUCT"], ["is named 2 times"]),
        (["no_such_module:PRODUCT"], ["No module named 'no_such_module'"]),
        (["backfill_assets.products.enforcement:PRODUCTS"], ["did you mean 'PRODUCT'?"]),
        (["backfill_assets.products.enforcement:CASE_SLA_DAILY"], ["is a TargetTable"]),
        (["a:b", "c"], ["no product is called 'c'"]),
        ([""], ["no product is called ''"]),
        ([":PRODUCT"], ["no product is called ':PRODUCT'"]),
    ],
)
def test_a_product_that_is_not_there_is_refused(names: list[str], said: list[str]) -> None:
    with pytest.raises(DeclarationRefused) as refused:
        find_products(names)
    assert len(refused.value.problems) == len(said)
    for problem, text in zip(refused.value.problems, said, strict=True):
        assert text in problem.what, problem


@pytest.mark.parametrize(
    ("path", "what", "rule"),
    [
        (
            "here:PRODCT",
            "here:PRODCT: AttributeError: module 'here' has no attribute 'PRODCT'; did you mean 'PRODUCT'?",
            "here.py",
        ),
        (
            "nobodys:PRODUCT",
            "nobodys:PRODUCT: AttributeError: module 'nobodys' has no attribute 'PRODUCT'",
            "a folder without code",
        ),
        ("nothere:PRODUCT", "nothere:PRODUCT: No module named 'nothere'", "module:ATTRIBUTE"),
        (
            "here.beneath:PRODUCT",
            "here.beneath:PRODUCT: No module named 'here.beneath'; 'here' is not a package",
            "module:ATTRIBUTE",
        ),
        (".here:PRODUCT", "'.here:PRODUCT' is no path", "module:ATTRIBUTE"),
        ("sys:nope", "sys:nope: AttributeError: module 'sys' has no attribute 'nope'", "part of Python"),
    ],
)
def test_a_path_that_leads_to_no_product_blames_the_path(folder: Path, path: str, what: str, rule: str) -> None:
    distribution(folder, "here")
    (folder / "nobodys").mkdir()
    (problem,) = refusal_of(path)
    assert problem.what == what
    assert rule in problem.rule
    assert "correct the path" in problem.fix
    assert problem.where == ""


def distribution(folder: Path, name: str, *points: str) -> None:
    """Install a distribution with a product of its own, and entry points."""
    (folder / f"{name}.py").write_text(f"import backfill_assets as ba\nPRODUCT = ba.Product({name!r}, (), ())\n")
    said = folder / f"{name}-1.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (said / "entry_points.txt").write_text("\n".join(["[backfill_assets.products]", *points]))


def refusal_of(*names: str) -> list[Any]:
    with pytest.raises(DeclarationRefused) as refused:
        find_products(names or None)
    return list(refused.value.problems)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which distributions and their modules are imported, asked anew each time."""
    monkeypatch.syspath_prepend(tmp_path)
    finding.products_named.cache_clear()
    yield tmp_path
    finding.products_named.cache_clear()


def test_a_name_that_two_distributions_give_another_product_is_refused_with_both(folder: Path) -> None:
    distribution(folder, "zzz_taking", "enforcement = zzz_taking:PRODUCT", "zzz = zzz_taking:PRODUCT")
    for names in ((), ("enforcement",)):
        (problem,) = refusal_of(*names)
        assert problem.what == (
            "the entry point enforcement is backfill_assets.products.enforcement:PRODUCT of backfill-assets, and "
            "zzz_taking:PRODUCT of zzz_taking"
        )
        assert "uninstall" in problem.fix
    named = find_products(["zzz", "backfill_assets.products.enforcement:PRODUCT"])
    assert [one.name for one in named] == ["zzz_taking", "enforcement"], "who names what is meant is served"


def test_a_product_with_two_entry_points_is_refused_in_words_of_entry_points(folder: Path) -> None:
    distribution(folder, "zzz_twice", "one = zzz_twice:PRODUCT", "other = zzz_twice:PRODUCT")
    (problem,) = refusal_of()
    assert (
        problem.what == "the entry points one of zzz_twice, other of zzz_twice are the same product, zzz_twice:PRODUCT"
    )
    assert "`products`" in problem.fix
    assert [one.name for one in find_products(["one"])] == ["zzz_twice"]


def test_one_name_of_one_product_in_two_distributions_is_that_product(folder: Path) -> None:
    distribution(folder, "zzz_old", "same = zzz_old:PRODUCT")
    distribution(folder, "zzz_new", "same = zzz_old:PRODUCT")
    assert [one.name for one in find_products(None)] == [
        "accounts",
        "enforcement",
        "orders",
        "public_health",
        "zzz_old",
    ]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"name": None}, "name is None"),
        ({"name": ""}, "name is ''"),
        ({"name": "../..\n\x1b[2J"}, "name is '../..\\n\\x1b[2J': U+001B at character 6"),
        ({"targets": ("a",)}, "targets has 'a'"),
        ({"targets": None}, "targets is None"),
        ({"targets": (one for one in ())}, "targets is a generator"),
        ({"targets": TARGET}, "targets is a TargetTable"),
        ({"inputs": 3}, "inputs is 3"),
        ({"inputs": (METERS, TARGET)}, "inputs has a TargetTable"),
        ({"loaders": ["a"]}, "loaders is ['a']"),
        ({"loaders": {"a": 3}}, "loaders['a'] is 3"),
        ({"loaders": {3: "a:b"}}, "loaders has 3"),
        ({"references": 3}, "references is 3"),
        ({"code": "os"}, "code is 'os'"),
        ({"code": ("json", 3)}, "code has 3"),
        ({"code": ("no_such_package",)}, "code has 'no_such_package', of which there is no file"),
    ],
)
def test_a_field_of_a_product_that_is_of_no_use_is_refused_by_name(given: dict[str, Any], found: str) -> None:
    whole: dict[str, Any] = {"name": "metering", "inputs": (), "targets": ()}
    other = ba.Product("other", (INPUT,), (), references="nowhere")
    problems = problems_of([ba.Product(**whole | given), other])
    assert [one.what for one in problems][1:] == ["references='nowhere'"], problems
    assert problems[0].what.startswith(found)
    assert all(one.rule and one.fix and one.where.startswith("product ") for one in problems)


WRONG_KINDS: tuple[Any, ...] = (None, 3, "x", "", (), [], object(), ("x", 3), {"a": 3}, TARGET)


@pytest.mark.parametrize("table", [TARGET, INPUT], ids=["target", "input"])
def test_a_field_of_a_table_of_whatever_kind_raises_nothing(table: Any) -> None:
    said_of = set()
    for name in (one.name for one in fields(table)):
        for value in WRONG_KINDS:
            changed = replace(table, **{name: value})
            inputs, targets = ((INPUT, METERS), (changed,)) if table is TARGET else ((changed, METERS), (TARGET,))
            if problems_of([ba.Product("metering", inputs, targets)]):
                said_of.add(name)
    assert said_of == {one.name for one in fields(table)}


def test_what_is_handed_in_for_a_product_is_one() -> None:
    with pytest.raises(DeclarationRefused, match="a product is 3"):
        check_products([3])  # type: ignore[list-item]
    with pytest.raises(DeclarationRefused, match="a product is a TargetTable"):
        check_products([TARGET])  # type: ignore[list-item]


def test_every_field_of_a_product_that_is_of_no_use_is_said_at_once() -> None:
    wrong: Any = {"name": "", "inputs": 3, "targets": None, "references": 3, "loaders": 3, "code": "os"}
    assert [one.what.split()[0] for one in problems_of([ba.Product(**wrong)])] == list(wrong)


def test_a_field_of_no_use_hides_no_mistake_elsewhere() -> None:
    """Of a table that cannot be looked into nothing else is said, nor of a name of it by others."""
    unreadable = replace(INPUT, partition_by=3)  # type: ignore[arg-type]
    wrong = replace(TARGET, key=("metre",), references=("reference.meters", "reference.rates"))
    for product in (
        ba.Product("metering", (unreadable, METERS), (wrong,), references="nowhere", code=(3,)),  # type: ignore[arg-type]
        ba.Product("metering", (unreadable, replace(METERS, owners=3)), (wrong,), references="nowhere", code=(3,)),  # type: ignore[arg-type]
    ):
        found = [one.what.partition(";")[0] for one in problems_of([product])]
        for what in (
            "partition_by is 3",
            "code has 3",
            "references='nowhere'",
            "'metre' is no column of silver.daily",
            "no product declares the table 'reference.rates'",
        ):
            assert what in found
        assert not [one for one in found if "bronze.readings" in one or "reference.meters" in one]


class Ours(ba.Product):
    """A product as its author makes it."""

    def __init__(self, *targets: ba.TargetTable) -> None:
        super().__init__("metering", (INPUT, METERS), targets)


class Unruly:
    """What raises when it is looked into."""

    def __repr__(self) -> str:
        raise RuntimeError("not for you")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("nor for you")


def test_a_product_of_a_class_of_its_authors_is_taken_as_it_is() -> None:
    assert problems_of([Ours(TARGET)]) == []
    (problem,) = problems_of([Ours(replace(TARGET, day_column=3))])  # type: ignore[arg-type]
    assert problem.what == "day_column is 3"


@pytest.mark.parametrize("field", ["name", "inputs", "targets", "references", "loaders", "code"])
@pytest.mark.parametrize("value", [Unruly(), [Unruly()], {"a": Unruly()}, 3], ids=["one", "list", "dict", "number"])
def test_of_a_product_that_cannot_be_looked_into_that_is_said_and_nothing_false(field: str, value: Any) -> None:
    other = ba.Product("other", (replace(METERS, name="reference.others"),), (), code=("json",))
    product = ba.Product("metering", (INPUT, METERS), (TARGET,))
    found = [one.what for one in problems_of([replace(product, **{field: value}), other])]
    assert found
    assert "code is json, and has none of " in " ".join(found)
    assert not [one for one in found if "no product declares" in one]


@pytest.mark.parametrize(
    ("measured", "what"),
    [
        ("rows", "its measured columns are the text 'rows'"),
        (5, "its measured columns are 5"),
        (None, "its measured columns are None"),
    ],
)
def test_what_a_gate_looks_for_of_measures_is_a_tuple_of_names(measured: Any, what: str) -> None:
    gate = ba.Reconciliation("own", ba.Level.STATE, "x", lambda _: None, needs=ba.Needs(measured=measured))  # type: ignore[arg-type,return-value]
    assert [one for one in said(replace(TARGET, reconciliations=(gate,))) if what in one]


def test_one_owner_without_a_comma_is_said_to_be_no_tuple() -> None:
    owner: Any = "team:metering"
    for found in (said(replace(TARGET, owners=owner)), said(TARGET, inputs=(replace(INPUT, owners=owner), METERS))):
        assert [one.partition(": ")[2] for one in found] == ["owners: owners is the text 'team:metering'"]


def test_who_asks_and_who_approves_differ_by_more_than_capitals() -> None:
    live = ba.LivePolicy(transform_version="1.0.0", rewind_days=0, requested_by="Ada", approved_by="ADA")
    assert [one.partition(": ")[2] for one in said(replace(TARGET, live=live))] == [
        "live: requested_by and approved_by are both 'Ada'"
    ]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('OK = F.col("a")', "AssertionError: it asks Spark for something while it is imported"),
        ("SESSION = SparkSession.builder.getOrCreate()", "zzz_spark starts Spark while it is imported"),
    ],
)
def test_a_module_that_asks_spark_while_it_is_imported_is_refused_in_words(folder: Path, line: str, what: str) -> None:
    (folder / "zzz_spark.py").write_text(
        f"from pyspark.sql import SparkSession\nfrom pyspark.sql import functions as F\n{line}\n"
    )
    code = (
        "from backfill_assets.declarations.finding import find_products\n"
        "from manifests.errors import DeclarationRefused\n"
        "for _ in range(2):\n    try:\n        find_products(['zzz_spark:PRODUCT'])\n"
        "    except DeclarationRefused as refused:\n        print(refused.problems[0].what)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=Path(__file__).parent.parent,
    )
    assert [one.startswith(what) for one in done.stdout.strip().splitlines()] == [True, True], "each time it is asked"


def test_what_has_no_type_in_a_model_is_said_with_what_pandera_is_told() -> None:
    class Small(ba.Published):
        meter_id: str
        day: pl.Date

        class config:  # noqa: N801 - the slip
            unique = ("meter_id", "day")

    assert "silver.daily: model: Small has no type for 'config'" in said(replace(TARGET, model=Small))


def test_lists_in_place_of_tuples_are_taken() -> None:
    assert problems_of([ba.Product("metering", [INPUT, METERS], [TARGET], code=[__name__.partition(".")[0]])]) == []  # type: ignore[arg-type]


def test_a_loader_that_is_none_is_refused() -> None:
    with pytest.raises(DeclarationRefused, match="is a function"):
        imported_loader("backfill_assets.products.enforcement.loading:from_file", "enforcement")
    wrong = ba.Product("metering", (INPUT, METERS), (TARGET,), loaders={"Bad.Name": "nowhere"})
    assert [one.what for one in problems_of([wrong])] == [
        "loaders['Bad.Name']='nowhere'",
        "a loader is named 'Bad.Name'",
    ]


def test_products_that_are_handed_in_are_held_to_the_same_rules(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home")
    metering = ba.Product("metering", (INPUT, METERS), (TARGET,))
    assert [one.name for one in ba.Platform.of(settings, [metering]).products.targets] == ["silver.daily"]
    assert len(ba.Platform.of(settings, []).products) == 0, "none is not all that are installed"
    with pytest.raises(DeclarationRefused, match="declared 2 times"):
        ba.build_definitions(settings=settings, products=[metering, metering])


def test_the_definitions_of_products_merge_with_a_projects_own(tmp_path: Path) -> None:
    @dg.asset(deps=[dg.AssetKey(["silver", "daily_published"])])
    def dashboard() -> None:
        raise NotImplementedError

    ours = ba.build_definitions(
        settings=load_settings(home=tmp_path / "home"),
        products=[ba.Product("metering", (INPUT, METERS), (TARGET,))],
        resources={"mailer": "a project's own"},
    )
    merged = dg.Definitions.merge(dg.Definitions(assets=[dashboard]), ours)
    graph = merged.resolve_asset_graph()
    assert graph.get(dg.AssetKey("dashboard")).parent_keys == {dg.AssetKey(["silver", "daily_published"])}
    assert graph.get(dg.AssetKey(["silver", "daily"])).group_name == "metering"
    assert {"mailer", "platform"} <= set(merged.resources or {})


def test_an_input_that_a_project_fills_itself_is_its_own_asset(tmp_path: Path) -> None:
    @dg.asset(key=INPUT.name.split("."))
    def filled_by_them() -> None:
        raise NotImplementedError

    settings = load_settings(home=tmp_path / "home")
    products = [ba.Product("metering", (INPUT, METERS), (TARGET,))]
    ours = ba.build_definitions(settings=settings, products=products, made_elsewhere=[INPUT.name])
    graph = dg.Definitions.merge(dg.Definitions(assets=[filled_by_them]), ours).resolve_asset_graph()
    assert graph.get(dg.AssetKey(INPUT.name.split("."))).is_materializable
    assert dg.AssetKey(INPUT.name.split(".")) in graph.get(dg.AssetKey(["silver", "daily"])).parent_keys
    with pytest.raises(InputRefused, match=r"input table silver\.daily is not declared: it is declared as target"):
        ba.build_definitions(settings=settings, products=products, made_elsewhere=["silver.daily"])


def test_a_table_that_is_asked_for_as_another_kind_is_said_to_be_declared_as_what_it_is() -> None:
    products = Products((ba.Product("mine", (INPUT, METERS), (TARGET,)),))
    with pytest.raises(InputRefused, match=f"input table {TARGET.name} is not declared: it is declared as target"):
        products.input(TARGET.name)
    with pytest.raises(InputRefused, match=f"target {INPUT.name} is not declared: it is declared as input"):
        products.target(INPUT.name)
