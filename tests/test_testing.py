"""A transform tested alone does what a run does to its rows, and is told what is wrong with it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pytest
from clocks_by_hand import clocks_by_hand
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from worlds import END, FEW_GATES, KEY, SPARK, START, VALUES, generated, make_world

import backfill_assets as ba
from backfill_assets.products.enforcement import CASE_SLA_DAILY, loading
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import compute_batch
from backfill_assets.testing import RUN_CLOCK, Trial, TrialError, transformed
from backfill_assets.testing.given_rows import frame_of
from backfill_assets.testing.sessions import new_folder
from benchmarks.customers import BY_JURISDICTION
from benchmarks.customers import INPUT as CUSTOMERS_INPUT
from manifests.errors import DeclarationRefused, InputRefused, ManifestRefused, PlanRefused, TransformRefused
from resources.lakehouse.facade import local_path


class Readings(pa.DataFrameModel):
    """A reading of a meter."""

    meter: str = pa.Field(description="The meter.")
    read_at: ba.Instant = pa.Field(description="When it was read.")
    watt_hours: pl.Int64 = pa.Field(description="Energy used since the reading before.")
    note: str = pa.Field(nullable=True, description="What was said about it.")


class Tariffs(pa.DataFrameModel):
    """What a meter's energy is billed with."""

    meter: str = pa.Field(description="The meter.")
    days: pl.Int32 = pa.Field(description="Days that a bill looks back.")


class Daily(ba.Published):
    """A row a meter and day."""

    meter: str = pa.Field(description="The meter.")
    day: pl.Date = pa.Field(description="The day, in UTC.")
    watt_hours: pl.Int64 = pa.Field(ge=0, description="Energy of that day.")


def daily(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    by_day = inputs.source.withColumn("day", F.to_date("read_at")).groupBy("meter", "day")
    return by_day.agg(F.sum("watt_hours").alias("watt_hours"))


OWNERS = ("team:tests",)
READINGS = ba.InputTable("bronze.readings", "Readings.", Readings, OWNERS, partition_by="read_at")
TARIFFS = ba.InputTable("reference.tariffs", "Tariffs.", Tariffs, OWNERS, is_reference=True)
DAILY = ba.TargetTable(
    name="silver.daily",
    description="Consumption by meter and day.",
    model=Daily,
    key=("meter", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2024-01",
    chunks_until="2024-12",
    source=READINGS.name,
    source_time_column="read_at",
    transform="daily",
    versions={"1.0.0": ba.TransformVersion(daily)},
    owners=OWNERS,
)
ROWS = [
    {
        "meter": meter,
        "read_at": datetime(2024, 1, 1, 6, tzinfo=UTC) + timedelta(hours=12 * at),
        "watt_hours": 10 * at + on,
    }
    for on, meter in enumerate(("m1", "m2"))
    for at in range(2 * 91)
]
TWO_MONTHS = ("2024-01-01", "2024-02-29")


@pytest.fixture(scope="module", autouse=True)
def _small_jvm() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BACKFILL_SPARK", json.dumps(SPARK))
        yield


def trial(function: Callable[..., DataFrame] = daily, rows: Any = ROWS, **changes: Any) -> Trial:
    """Return a trial of another transform of the target; what is changed is the target's, or the trial's own."""
    own = {name: changes.pop(name) for name in ("publish_range", "references", "run_clock") if name in changes}
    version = ba.TransformVersion(function, clustered=changes.pop("clustered", False))
    target = replace(DAILY, versions={"1.0.0": version}, **changes)
    return Trial(target, "1.0.0", rows, **({"publish_range": TWO_MONTHS, "inputs": (READINGS, TARIFFS)} | own))


def changed(value: Any) -> Callable[..., DataFrame]:
    """Return the transform with another value for the energy."""
    return lambda inputs, context: daily(inputs, context).withColumn("watt_hours", value(context).cast("long"))


def by_hand(source: list[dict[str, Any]], _: Any) -> list[dict[str, Any]]:
    days: dict[tuple[str, date], int] = {}
    for row in source:
        key = row["meter"], row["read_at"].date()
        days[key] = days.get(key, 0) + row["watt_hours"]
    return [{"meter": meter, "day": day, "watt_hours": energy} for (meter, day), energy in days.items()]


# --- rows in, rows out ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound() -> Trial:
    return trial()


def test_rows_are_those_of_the_publish_range_in_key_order_with_their_lineage(sound: Trial) -> None:
    rows = sound.rows()
    assert rows.height == 2 * 60
    assert rows.select(*DAILY.key).rows() == sorted(rows.select(*DAILY.key).rows())
    assert (rows["day"].min(), rows["day"].max()) == (date(2024, 1, 1), date(2024, 2, 29))
    assert rows.select(list(rows.columns[3:])).unique().rows() == [("trial", "BACKFILL", "1.0.0", 1, RUN_CLOCK)]
    alone = transformed(DAILY, "1.0.0", ROWS, publish_range=TWO_MONTHS, inputs=(READINGS,))
    assert alone.equals(rows)


def test_rows_may_come_as_polars_or_arrow_and_may_leave_columns_out(sound: Trial) -> None:
    frame = pl.DataFrame(ROWS).with_columns(pl.col("read_at").cast(pl.Datetime("ms", "Europe/Rome")))
    for rows in (frame, frame.to_arrow()):
        assert trial(rows=rows).rows().equals(sound.rows())


def test_a_transform_is_given_its_window_with_a_day_of_margin_and_everything_earlier_as_look_back() -> None:
    seen: list[Any] = []

    def looking(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
        ends = [F.min("read_at").alias("first"), F.max("read_at").alias("last")]
        own = inputs.source.agg(*ends).toArrow().to_pylist()[0]
        earlier = inputs.look_back
        before = (
            None
            if earlier is None
            else (earlier.columns, earlier.agg(F.count("*").alias("n")).toArrow()["n"][0].as_py())
        )
        rates = {row["meter"]: row["days"] for row in context.references[TARIFFS.name].toArrow().to_pylist()}
        seen.append(
            (own["first"], own["last"], before, rates, context.configuration["per"], [c.key for c in context.chunks])
        )
        return daily(inputs, context)

    rates = [{"meter": "m1", "days": 3}, {"meter": "m2", "days": 5}]
    given = {
        "references": {TARIFFS.name: rates},
        "warm_up_days": lambda rows: max(row["days"] for row in rows[TARIFFS.name]),
        "look_back_columns": ("meter",),
        "configuration": {"per": "day"},
    }
    target_changes = {name: value for name, value in given.items() if name != "references"}
    target = replace(
        DAILY, references=(TARIFFS.name,), versions={"1.0.0": ba.TransformVersion(looking)}, **target_changes
    )
    one = Trial(
        target, "1.0.0", ROWS,
        publish_range=("2024-02-01", "2024-02-29"), references=given["references"], inputs=(READINGS, TARIFFS),
    )  # fmt: skip
    assert one.plan.warm_up_days == 5
    assert set(one.rows()["day"].dt.month()) == {2}
    first, last, before, found, per, chunks = seen[0]
    assert (first, last) == (datetime(2024, 1, 26, 6, tzinfo=UTC), datetime(2024, 3, 1, 18, tzinfo=UTC))
    assert before == (["meter"], 2 * 2 * 25), (
        "every earlier row, its look-back column alone, and none that the window has"
    )
    assert (found, per, chunks) == ({"m1": 3, "m2": 5}, "day", ["2024-02"])
    seen.clear()
    whole = replace(one, publish_range=("2024-01-01", "2024-01-31"))
    whole.rows()
    assert seen[0][2] is None, "there is nothing earlier"


# --- what the platform refuses ----------------------------------------------------------------------------------------


def a_double(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    return daily(inputs, context).withColumn("watt_hours", F.col("watt_hours") / 2)


def without_energy(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    return daily(inputs, context).drop("watt_hours").withColumn("extra", F.lit(1))


def misspelt(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    return daily(inputs, context).select("meter", "day", "wat_hours")


def of_another_type_and_more(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    return a_double(inputs, context).withColumn("extra", F.lit(1))


def in_another_zone(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    inputs.source.sparkSession.conf.set("spark.sql.session.timeZone", "Europe/Oslo")
    return daily(inputs, context)


def of_pandas(inputs: ba.Inputs, context: ba.TransformContext) -> Any:
    del context
    return type("DataFrame", (), {"columns": [], "__module__": "pandas.core.frame"})()


def of_an_unknown_name(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    doubled = F.udf(lambda value: 2 * twice(value), "long")  # type: ignore[name-defined] # noqa: F821 - the slip
    return daily(inputs, context).withColumn("watt_hours", doubled("watt_hours"))


def undeclared(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    return context.references["reference.rates"]


def reading(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    return inputs.source.sparkSession.read.parquet("file:///etc")


def writing(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    """Write below the warehouse, which the session reaches."""
    inputs.source.write.parquet(f"file://{new_folder()}")
    return daily(inputs, context)


def ending_the_process(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    sys.exit(3)


def with_settings_put_back(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    settings = inputs.source.sparkSession.conf
    before = {name: settings.get(name) for name in ("spark.sql.autoBroadcastJoinThreshold", "spark.sql.ansi.enabled")}
    for name in before:
        settings.set(name, "-1" if name.endswith("Threshold") else "false")
    rows = daily(inputs, context)
    for name, value in before.items():
        settings.set(name, str(value))
    return rows


def writing_by_another_session(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    session = SparkSession.builder.getOrCreate()
    assert session is SparkSession.active() is SparkSession.getActiveSession()
    session.range(3).write.parquet("file:///tmp/of_a_transform")
    return daily(inputs, context)


def without_the_lock(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    inputs.source.sparkSession.conf.unset("spark.sql.sources.commitProtocolClass")
    return daily(inputs, context)


def writing_without_the_lock(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    rows = without_the_lock(inputs, context)
    rows.write.parquet("file:///dev/null/nowhere")
    return rows


def writing_to_the_lake(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    rows = daily(inputs, context)
    rows.writeTo("lake.silver.daily").append()
    return rows


def with_a_name(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    SparkSession.builder.appName("mine").getOrCreate()
    return daily(inputs, context)


def test_a_transform_may_call_its_application_something(sound: Trial) -> None:
    assert trial(with_a_name).rows().equals(sound.rows())


def test_a_trial_leaves_a_test_its_own_session(tmp_path: Path) -> None:
    mine = SparkSession.builder.getOrCreate()
    (tmp_path / "a.txt").write_text("hello")
    trial().rows()
    assert SparkSession.builder.getOrCreate() is SparkSession.active() is mine
    assert SparkSession.builder.getOrCreate().read.text(f"file://{tmp_path}/a.txt").count() == 1


def writing_in_a_worker(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    def noted(batches: Iterator[Any]) -> Iterator[Any]:
        SparkSession.builder.getOrCreate().range(3).write.parquet("file:///tmp/of_a_worker")
        yield from batches

    rows = daily(inputs, context)
    return rows.mapInArrow(noted, rows.schema)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (a_double, r"returned watt_hours of silver\.daily as double; it is declared as bigint"),
        (without_energy, r"returned for silver\.daily lacks watt_hours; has besides extra"),
        (
            of_another_type_and_more,
            r"(?s)returned for silver\.daily has besides extra.*returned watt_hours of silver\.daily as double",
        ),
        (misspelt, r"cannot be built: AnalysisException: .*wat_hours.*test_testing\.py:\d+, in misspelt"),
        (undeclared, r"the target declares no reference 'reference\.rates': it has none"),
        (in_another_zone, r"daily 1\.0\.0 changes the session's spark\.sql\.session\.timeZone"),
        (of_pandas, r"returned a DataFrame of pandas"),
        (ending_the_process, r"cannot be built: SystemExit: 3 \(.*test_testing\.py:\d+, in ending_the_process\)"),
        (of_an_unknown_name, r"raises NameError: name 'twice' is not defined \(.*test_testing\.py:\d+, in"),
        (writing_without_the_lock, r"daily 1\.0\.0 changes the session's spark\.sql\.sources\.commitProtocolClass"),
        (without_the_lock, r"daily 1\.0\.0 changes the session's spark\.sql\.sources\.commitProtocolClass"),
        (
            writing_to_the_lake,
            r"(?s)REQUIRES_SINGLE_PART_NAMESPACE.*in writing_to_the_lake\).*reads what it is given, and writes nothing",
        ),
        (writing_in_a_worker, r"daily 1\.0\.0 asks for a Spark session \(.*test_testing\.py:\d+, in noted\)"),
        (reading, r"(?s)cannot be built: AnalysisException: .*PATH_NOT_FOUND.*no path outside the warehouse exists"),
        (writing_by_another_session, r"daily 1\.0\.0 writes files itself .*; nothing was written"),
        (writing, r"daily 1\.0\.0 writes files itself \(.*test_testing\.py:\d+, in writing\); nothing was written"),
    ],
)
def test_what_a_run_refuses_of_a_transform_is_refused(function: Callable[..., DataFrame], said: str) -> None:
    with pytest.raises(TransformRefused, match=said):
        trial(function).rows()
    assert trial()._computing.session.conf.get("spark.sql.session.timeZone") == "UTC"


def test_settings_that_a_transform_has_put_back_are_none_that_it_changes(sound: Trial) -> None:
    one = trial(with_settings_put_back)
    before = one._computing.session.conf.getAll
    assert one.rows().equals(sound.rows())
    assert one._computing.session.conf.getAll == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": [("m1", 3)]}, "the rows of bronze.readings have a tuple"),
        ({"rows": "m1,3"}, "the rows of bronze.readings are a str"),
        ({"rows": {"meter": "m1"}}, "the rows of bronze.readings are a dict"),
        ({"rows": 3}, "the rows of bronze.readings are a int"),
        ({"publish_range": "2024-01"}, "publish_range is '2024-01'"),
        ({"publish_range": ("2024-01-01",)}, "publish_range is "),
        ({"publish_range": None}, "publish_range is None"),
        ({"run_clock": "2024-01-01"}, "run_clock is '2024-01-01'"),
        ({"run_clock": datetime(2024, 1, 1)}, "run_clock is a datetime"),  # noqa: DTZ001
        ({"references": [3]}, "references is "),
    ],
    ids=str,
)
def test_an_argument_of_another_kind_is_refused_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputRefused, match=said):
        trial(**changes).rows()


@pytest.mark.parametrize(
    ("inputs", "said"),
    [((), r"bronze\.readings: no installed product declares it"), ((TARIFFS,), r"bronze\.readings: none of inputs")],
)
def test_a_source_that_nobody_declares_is_asked_for(inputs: tuple[ba.InputTable, ...], said: str) -> None:
    with pytest.raises(InputRefused, match=rf"(?s){said}.*inputs=\(SOURCE, REFERENCE\)"):
        Trial(DAILY, "1.0.0", ROWS, publish_range=TWO_MONTHS, inputs=inputs).rows()


def test_what_the_planner_refuses_is_refused() -> None:
    def refused(kind: type[Exception], said: str, **changes: Any) -> None:
        with pytest.raises(kind, match=said):
            trial(**changes).rows()

    refused(PlanRefused, "published in whole months", publish_range=("2024-01-01", "2024-01-30"))
    refused(PlanRefused, "is declared with chunks 2024-01 to 2024-12", publish_range=("2025-01-01", "2025-01-31"))
    refused(PlanRefused, "a month of which it holds no day", publish_range=("2024-06-01", "2024-06-30"))
    refused(PlanRefused, "bronze.readings holds no rows", rows=[])
    refused(PlanRefused, "warm_up_days: it returned -1", warm_up_days=lambda _: -1)
    refused(ManifestRefused, "publishRange", publish_range=("2024-02-01", "2024-01-31"))
    refused(DeclarationRefused, "look_back_columns", look_back_columns=("kwh",))
    with pytest.raises(PlanRefused, match=r"transform\.version is 2\.0\.0"):
        Trial(DAILY, "2.0.0", ROWS, publish_range=TWO_MONTHS, inputs=(READINGS,)).rows()
    needy = replace(DAILY, references=(TARIFFS.name,))
    with pytest.raises(InputRefused, match=r"the rows of reference\.tariffs are missing; reference\.x is no reference"):
        Trial(
            needy, "1.0.0", ROWS, publish_range=TWO_MONTHS, inputs=(READINGS, TARIFFS), references={"reference.x": []}
        ).rows()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"read_at": datetime(2024, 1, 1)}, "read_at of bronze.readings is not .*: a datetime without a time zone"),  # noqa: DTZ001
        ({"watt_hours": 1.5}, "watt_hours of bronze.readings is not Int64"),
        ({"watt_hours": "1"}, "watt_hours of bronze.readings is not Int64"),
        ({"kwh": 1}, "a row of bronze.readings has kwh, which is no column"),
    ],
)
def test_source_rows_are_of_their_types_and_nothing_is_parsed(row: dict[str, Any], said: str) -> None:
    with pytest.raises(InputRefused, match=said):
        trial(rows=[ROWS[0] | row]).rows()


def test_frames_are_not_parsed_either() -> None:
    frame = pl.DataFrame(ROWS)
    for wrong in (
        pl.col("watt_hours").cast(pl.String),
        pl.col("watt_hours") / 3,
        pl.col("read_at").dt.replace_time_zone(None),
    ):
        with pytest.raises(InputRefused, match="is not"):
            trial(rows=frame.with_columns(wrong)).rows()
    narrow = frame.with_columns(pl.col("watt_hours").cast(pl.Int16))
    assert trial(rows=narrow).rows().height == 120


# --- held against a plain function ------------------------------------------------------------------------------------


def test_a_plain_function_makes_the_same_rows(sound: Trial) -> None:
    sound.require_same_as(by_hand)
    sound.require_same_as(by_hand(ROWS, {}))


def test_what_differs_is_named_by_key_and_column(sound: Trial) -> None:
    def otherwise(source: list[dict[str, Any]], references: Any) -> list[dict[str, Any]]:
        rows = by_hand(source, references)
        rows[3]["watt_hours"] += 1
        return [*rows[:7], *rows[8:], {"meter": "m3", "day": date(2024, 1, 1), "watt_hours": 1}]

    with pytest.raises(TrialError) as told:
        sound.require_same_as(otherwise)
    assert str(told.value).splitlines() == [
        "daily 1.0.0 of silver.daily does not compute what is expected: 3 row(s) differ",
        "  - meter=m1, day=2024-01-04: watt_hours is 130, expected 131",
        "  - meter=m1, day=2024-01-08: the row is there once, expected never",
        "  - meter=m3, day=2024-01-01: the row is there never, expected once",
    ]
    with pytest.raises(InputRefused, match=r"a row of silver\.daily lacks watt_hours"):
        sound.require_same_as([{"meter": "m1", "day": date(2024, 1, 1)}])


# --- held against the model -------------------------------------------------------------------------------------------


def test_rows_are_held_against_the_model_as_a_gate_does(sound: Trial) -> None:
    assert sound.violations() == {}
    negative = trial(changed(lambda _: F.when(F.col("day") == "2024-02-03", -1).otherwise(1)))
    (chunk,) = negative.violations()
    (violation,) = negative.violations()[chunk]
    assert (chunk, violation.rule, violation.count) == ("2024-02", "watt_hours: greater_than_or_equal_to(0)", 2)
    assert violation.sample[0]["day"] == "2024-02-03"
    twice = trial(lambda inputs, context: daily(inputs, context).unionByName(daily(inputs, context)))
    assert [[one.rule for one in found] for found in twice.violations().values()] == [["unique key"]] * 2


def test_a_row_without_a_day_breaks_a_rule_and_is_held_against_what_is_expected() -> None:
    undated = trial(lambda *given: daily(*given).withColumn("day", F.expr("nullif(day, DATE '2024-02-03')")))
    assert {chunk: [(one.rule, one.count) for one in found] for chunk, found in undated.violations().items()} == {
        "2024-01": [("day: not_nullable", 2)]
    }
    with pytest.raises(TrialError) as told:
        undated.require_same_as(by_hand)
    assert "meter=m1, day=None: the row is there once, expected never" in str(told.value)
    undated.require_pure()
    undated.require_no_look_ahead()


def test_a_table_without_time_is_tried_without_days() -> None:
    def customer(number: int) -> dict[str, Any]:
        since = date(2024, 1, 1) if number % 2 else None
        return {"customer": number, "jurisdiction": "CA" if number % 3 else "NY", "since": since, "credit": number}

    target = replace(BY_JURISDICTION, source_time_column="since")
    for one in (target, BY_JURISDICTION):
        found = Trial(one, "2", [customer(number) for number in range(9)], inputs=(CUSTOMERS_INPUT,))
        found.require_same_as(lambda rows, _: [row | {"credit": row["credit"] + 1} for row in rows])
        assert found.violations() == {}
        found.require_pure()
        with pytest.raises(InputRefused, match="no source row that the transform is given lies after"):
            found.require_no_look_ahead()
    with pytest.raises(PlanRefused, match="has no time"):
        replace(found, publish_range=TWO_MONTHS).rows()


def test_a_time_of_day_without_a_zone_is_given_as_one() -> None:
    class Local(pa.DataFrameModel):
        at: ba.LocalTimestamp

    noon = datetime(2024, 1, 1, 12)  # noqa: DTZ001 - the type is of such times
    for rows in ([{"at": noon}], pl.DataFrame({"at": [noon]})):
        assert frame_of("bronze.local", Local, rows)["at"].to_list() == [noon]
    for rows in ([{"at": noon.replace(tzinfo=UTC)}], pl.DataFrame({"at": [noon.replace(tzinfo=UTC)]})):
        with pytest.raises(InputRefused, match=r"at of bronze\.local is not Datetime"):
            frame_of("bronze.local", Local, rows)


def test_a_row_of_a_value_that_is_not_declared_breaks_a_rule() -> None:
    known, row = ba.ByValue("meter", ("m1", "m2")), {**ROWS[0], "meter": "m3"}
    undeclared = trial(rows=[*ROWS, row], chunk_values=known)
    assert {chunk: [one.rule for one in found] for chunk, found in undeclared.violations().items()} == {
        "2024-01~m1": ["meter: in its chunk, m1"]
    }


def test_a_transform_that_says_it_is_clustered_and_is_not_breaks_a_rule() -> None:
    scattered = trial(lambda inputs, context: daily(inputs, context).repartition(5), clustered=True)
    assert {one.rule for found in scattered.violations().values() for one in found} == {
        "files have disjoint key ranges"
    }


def test_a_clustered_transform_that_returns_other_days_as_well_has_them_cut(sound: Trial) -> None:
    sorted_by_key = trial(
        lambda inputs, context: daily(inputs, context).coalesce(1).sortWithinPartitions(*DAILY.key), clustered=True
    )
    assert sorted_by_key.violations() == {}
    assert sorted_by_key.rows().equals(sound.rows())


# --- pure -------------------------------------------------------------------------------------------------------------


def test_a_pure_transform_is_said_to_be_one(sound: Trial) -> None:
    sound.require_pure()


def first_of_the_day(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    by_day = inputs.source.withColumn("day", F.to_date("read_at")).groupBy("meter", "day")
    return by_day.agg(F.first("watt_hours").alias("watt_hours"))


def since_the_beginning(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    until = Window.partitionBy("meter").orderBy("day")
    return daily(inputs, context).withColumn("watt_hours", F.sum("watt_hours").over(until))


def until_the_end(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    whole = Window.partitionBy("meter")
    last = F.unix_seconds(F.max("read_at").over(whole))
    return inputs.source.select("meter", F.to_date("read_at").alias("day"), last.alias("watt_hours")).distinct()


def since_noon(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    noon = F.lit(datetime(2024, 2, 3, 12))  # noqa: DTZ001 - the mistake
    source = inputs.source.withColumn("watt_hours", F.when(F.col("read_at") < noon, 0).otherwise(F.col("watt_hours")))
    return daily(replace(inputs, source=source), context)


ALONE = "with chunk 2024-0{} alone"


@pytest.mark.parametrize(
    ("function", "how", "cause"),
    [
        (changed(lambda _: F.rand() * 1_000_000), "computed once more", r"its plan has rand\(\)"),
        (changed(lambda _: F.rand(7) * 1_000_000), "reverse order|spread over more files", r"its plan has rand\(\)"),
        (
            changed(lambda _: F.monotonically_increasing_id()),
            "reverse order|more files",
            r"monotonically_increasing_id\(\)",
        ),
        (first_of_the_day, "from source rows in reverse order", r"its plan has first\(\); order by columns"),
        (since_noon, "in a process whose time zone is Pacific/Auckland", "a datetime without a time zone"),
        (changed(lambda context: F.lit(len(context.chunks))), ALONE.format(1), "as `context.chunks`"),
        (changed(lambda context: F.lit(len(set(context.slots)))), "more files|alone", "context.chunks|Spark partition"),
        (since_the_beginning, ALONE.format(2), r"before the 0 day\(s\) of its warm-up"),
        (until_the_end, ALONE.format(1), "it looks ahead"),
    ],
)
def test_a_transform_that_is_not_pure_is_told_how_and_why(
    function: Callable[..., DataFrame], how: str, cause: str
) -> None:
    with pytest.raises(TrialError, match=how) as told:
        trial(function).require_pure()
    assert re.search(cause, told.value.cause)
    if told.value.differences:
        assert told.value.differences[0].column == "watt_hours"
        assert set(told.value.differences[0].key) == {"meter", "day"}


def share_of_the_day(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    of_all = F.sum("watt_hours").over(Window.partitionBy("day"))
    share = F.floor(100 * F.col("watt_hours") / of_all)
    return daily(inputs, context).withColumn("watt_hours", share)


def test_rows_of_an_entity_that_depend_on_another_are_found_where_entities_are_merged() -> None:
    with pytest.raises(TrialError, match="computed of 1 values of meter alone: 31 row") as told:
        trial(share_of_the_day, entity="meter").require_pure()
    assert "MERGE_BY_KEY" in told.value.cause
    trial(share_of_the_day).require_pure()


@pytest.mark.parametrize(
    ("value", "asked"),
    [
        (lambda _: F.unix_seconds(F.current_timestamp()), r"current_timestamp\(\)"),
        (lambda _: F.year(F.current_date()), r"current_date\(\)"),
        (lambda _: F.lit(date.today().year), r"date\.today\(\) \(test_testing\.py, line \d+\)"),  # noqa: DTZ011
        (lambda _: F.lit(datetime.now(UTC).year), r"datetime\.now\(\) \(test_testing\.py, line \d+\)"),
    ],
)
def test_a_clock_that_is_asked_is_named_although_rows_are_the_same_today(value: Callable[..., Any], asked: str) -> None:
    with pytest.raises(TrialError, match=f"asks a clock: {asked}"):
        trial(changed(value)).require_pure()


def test_a_session_in_another_zone_has_other_days(sound: Trial) -> None:
    with pytest.raises(TrialError, match="in a session whose time zone is Asia/Tokyo") as told:
        sound.require_pure(session_zone="Asia/Tokyo")
    assert "to_date" in told.value.cause
    assert sound._computing.session.conf.get("spark.sql.session.timeZone") == "UTC"


# --- no look-ahead ----------------------------------------------------------------------------------------------------


def test_rows_that_depend_on_later_source_rows_are_found() -> None:
    with pytest.raises(TrialError, match="without the source rows from 2024-02-02 00:00 on") as told:
        trial(until_the_end).require_no_look_ahead()
    assert told.value.cause.startswith("it looks ahead")
    assert told.value.differences[0].column == "watt_hours"
    for function in (daily, since_the_beginning):
        trial(function).require_no_look_ahead()


def test_a_trial_that_cannot_tell_whether_it_looks_ahead_says_so() -> None:
    with pytest.raises(InputRefused, match="give the trial two chunks or more"):
        trial(publish_range=("2024-01-01", "2024-01-31")).require_no_look_ahead()


# --- the shipped product ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    return {name: rows for name, rows, _ in loading.reference_tables()}


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    load = generated(60, 11, START, END)
    return pl.concat([pl.DataFrame(pl.from_arrow(part)) for part in load.rows(RUN_CLOCK)])


def test_the_shipped_product_computes_what_its_clocks_say_one_by_one(
    events: pl.DataFrame, references: dict[str, Any]
) -> None:
    whole = Trial(CASE_SLA_DAILY, "3.1.0", events, publish_range=(START, END), references=references)
    assert whole.rows().height > 1000
    whole.require_same_as(clocks_by_hand)
    assert whole.violations() == {}
    with pytest.raises(TrialError, match="does not compute what is expected"):
        replace(whole, version="2.4.1").require_same_as(clocks_by_hand)


@pytest.mark.parametrize(("version", "until"), [("3.1.0", "2011-01-31"), ("2.4.1", "2010-12-31")])
def test_the_shipped_product_is_pure_and_does_not_look_ahead(
    events: pl.DataFrame, references: dict[str, Any], version: str, until: str
) -> None:
    months = ("2010-11-01", until)
    shipped = Trial(CASE_SLA_DAILY, version, events, publish_range=months, references=references)
    assert shipped.rows().height > 100
    shipped.require_pure()
    shipped.require_no_look_ahead()


def test_a_trial_has_the_rows_that_a_run_stages(tmp_path: Path) -> None:
    world = make_world(tmp_path / "home", cases=60, gates=FEW_GATES)
    record = world.approved(world.manifest())
    plan, lakehouse = record.plan, world.platform.lakehouse
    prefix = f"{lakehouse.location(record.target)}/whole"
    files = compute_batch(RunContext.of(world.platform, record), plan.chunks, prefix)
    staged = pl.concat(
        pl.read_parquet(local_path(file.path), hive_partitioning=False) for found in files.values() for file in found
    )
    tables = {
        name: lakehouse.table(name).scan().to_arrow() for name in (CASE_SLA_DAILY.source, *CASE_SLA_DAILY.references)
    }
    alone = transformed(
        CASE_SLA_DAILY,
        plan.transform_version,
        tables[CASE_SLA_DAILY.source],
        publish_range=(plan.publish_range.start, plan.publish_range.end),
        references={name: tables[name] for name in CASE_SLA_DAILY.references},
    )
    columns = [*KEY, *VALUES]
    assert staged.schema == alone.schema
    assert staged.select(columns).sort(KEY).equals(alone.select(columns))
