"""The gates of `declarations.standard` that ask Spark, on rows that are given to them: series from day to day, and references."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyiceberg.types import StringType
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from test_standard_checks import SOURCE, TARGET
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.declarations.divided import part_of_value
from backfill_assets.declarations.target import Finding
from backfill_assets.installation import Platform
from manifests.chunks import cut
from manifests.division import Division
from manifests.model import DayRange, Mode
from resources.settings import load_settings

REGIONS = "reference.regions"
JUNE = DayRange.model_construct(start=date(2020, 6, 1), end=date(2020, 6, 30))
Figures = Sequence[tuple[str | None, str, Any]]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    home = tmp_path_factory.mktemp("spark") / "home"
    return Platform.of(load_settings(home=home, spark=SPARK)).spark.session(Mode.BACKFILL)


def frame(spark: SparkSession, figures: Figures, kind: str = "decimal(12,2)") -> DataFrame:
    rows = [(region, date.fromisoformat(day), value) for region, day, value in figures]
    return spark.createDataFrame(rows, f"region string, day date, amount {kind}")


def judged(gate: ba.Reconciliation, rows: DataFrame, there: DataFrame | None = None, **options: Any) -> Finding:
    """Have a gate judge June of 2020; `rows` are what readers would have of June and the days around."""
    tolerances = options.pop("tolerances", {})
    merged = options.pop("merged", None)
    target = options.pop("target", TARGET)
    staged = options.pop("staged", None)
    chunks = options.pop("chunks", None) or tuple(cut(target.chunking, JUNE.start, JUNE.end, target.parts))
    kept: dict[str, Any] = {}

    def shared(name: str, find: Any) -> Any:
        if name not in kept:
            kept[name] = find(context)
        return kept[name]

    def visible(days: int) -> DataFrame:
        return rows.where(F.col("day").between(F.date_sub(F.lit(JUNE.start), days), F.date_add(F.lit(JUNE.end), days)))

    context = ba.ReconciliationContext(
        transform=cast("Any", SimpleNamespace(publish_range=JUNE, chunks=chunks, references={REGIONS: there})),
        source=cast("Any", there if there is not None else rows),
        source_rows=0,
        source_last_day=cast("Any", None),
        staged=cast("Any", staged),
        measures=[],
        after=[],
        accepted={},
        tolerances=dict(gate.tolerances) | tolerances,
        shared=shared,
        source_time_column="day",
        visible=visible,
        entities=lambda: merged,
        target=target,
    )
    return gate.check(context)


def falls(found: Finding) -> list[tuple[str | None, str]]:
    return [(one["region"], one["day"]) for one in found.slices]


GATE = ba.monotonic_gate("amount", ("region",))


def test_a_figure_that_rises_or_stays_passes_and_one_that_falls_is_named(spark: SparkSession) -> None:
    rows = frame(
        spark,
        [
            *(("N", f"2020-06-{day:02}", Decimal(day)) for day in range(1, 11)),
            ("N", "2020-06-11", Decimal(10)),
            ("S", "2020-06-01", Decimal(5)),
            ("S", "2020-06-02", Decimal("4.99")),
        ],
    )
    found = judged(GATE, rows)
    assert (found.passed, found.compared, found.disagreeing) == (False, 11, 1)
    assert falls(found) == [("S", "2020-06-02")]
    assert found.summary == "11 steps of amount from a day to the next by region; 1 fall by more than 0"
    assert found.exceptions is not None
    (row,) = found.exceptions().collect()
    assert json.loads(row["slice"]) == {"region": "S"}
    assert row["what"] == "amount falls by more than it may"
    assert judged(GATE, rows, tolerances={"amount_never_falls_tolerated": 0.01}).passed
    assert judged(ba.monotonic_gate("amount", ("region",), asks=True), rows).asks


def test_days_around_the_run_are_compared_with_its_own_and_not_with_one_another(spark: SparkSession) -> None:
    rows = frame(
        spark,
        [
            ("N", "2020-05-30", Decimal(9)),
            ("N", "2020-05-31", Decimal(8)),  # before the run: not its doing
            ("N", "2020-06-01", Decimal(7)),
            ("N", "2020-06-30", Decimal(10)),
            ("N", "2020-07-01", Decimal(9)),
            ("N", "2020-07-02", Decimal(8)),
        ],
    )
    assert falls(judged(GATE, rows)) == [("N", "2020-06-01"), ("N", "2020-07-01")]


def test_a_day_without_a_figure_is_passed_over(spark: SparkSession) -> None:
    rows = frame(
        spark,
        [
            ("N", "2020-06-01", Decimal(7)),
            ("N", "2020-06-02", None),
            ("N", "2020-06-05", Decimal(6)),
            (None, "2020-06-01", Decimal(2)),
            (None, "2020-06-02", Decimal(1)),
        ],
    )
    assert sorted(falls(judged(GATE, rows)), key=str) == [("N", "2020-06-05"), (None, "2020-06-02")]


def test_rows_of_a_slice_and_day_are_added_up_and_nothing_to_compare_is_said(spark: SparkSession) -> None:
    rows = frame(spark, [("N", "2020-06-01", 3), ("S", "2020-06-01", 4), ("N", "2020-06-02", 9)], "bigint")
    assert judged(ba.monotonic_gate("amount"), rows).passed
    nothing = judged(ba.monotonic_gate("amount"), frame(spark, [("N", "2020-06-02", 9)], "bigint"))
    assert (nothing.passed, nothing.compared) == (True, 0)
    assert nothing.summary.startswith("nothing to compare: no day from 2020-06-01 to 2020-06-30")
    fall = judged(
        ba.monotonic_gate("amount", falling=True),
        frame(spark, [("N", "2020-06-01", 1), ("N", "2020-06-02", 2)], "bigint"),
    )
    assert fall.summary.endswith("1 rise by more than 0")


def test_a_change_is_bounded_in_percent_of_the_day_before_or_in_its_own_unit(spark: SparkSession) -> None:
    rows = frame(
        spark,
        [
            ("N", "2020-06-01", Decimal(100)),
            ("N", "2020-06-02", Decimal(150)),
            ("N", "2020-06-03", Decimal("225.01")),
            ("N", "2020-06-04", Decimal(112)),
            ("S", "2020-06-01", Decimal(0)),
            ("S", "2020-06-02", Decimal("0.01")),
        ],
    )
    in_percent = ba.bounded_change_gate("amount", ("region",), rise=50.0, fall=60.0, asks=True)
    found = judged(in_percent, rows)
    assert (found.passed, found.asks) == (False, True)
    assert falls(found) == [("N", "2020-06-03"), ("S", "2020-06-02")], "from nothing any change is more than a percent"
    assert (
        found.summary
        == "4 steps of amount from a day to the next by region; 2 rise by more than 50% or fall by more than 60%"
    )
    in_units = ba.bounded_change_gate("amount", ("region",), fall=113.0, absolute=True)
    assert falls(judged(in_units, rows)) == [("N", "2020-06-04")]
    assert judged(in_units, rows, tolerances={"amount_changes_within_bounds_fall": 113.01}).passed


def test_whole_numbers_of_any_size_are_held_against_their_bounds(spark: SparkSession) -> None:
    most = 2**63 - 1
    rows = frame(
        spark,
        [
            ("N", "2020-06-01", 1),
            ("N", "2020-06-02", most),
            ("N", "2020-06-03", -most),
            *(("N", "2020-06-04", most) for _ in range(3)),
        ],
        "bigint",
    )
    found = judged(ba.bounded_change_gate("amount", ("region",), rise=50.0, fall=50.0), rows)
    assert falls(found) == [("N", "2020-06-04"), ("N", "2020-06-03"), ("N", "2020-06-02")]
    assert [one["step"] for one in found.slices] == [str(4 * most), str(-2 * most), str(most - 1)]


def test_what_rows_refer_to_is_there_and_a_null_refers_to_nothing(spark: SparkSession) -> None:
    rows = frame(
        spark,
        [("N", "2020-06-01", 1), ("N", "2020-06-02", 1), ("X", "2020-06-01", 1), (None, "2020-06-03", 1)],
        "bigint",
    )
    there = spark.createDataFrame([("N",), ("S",), ("N",), (None,)], "name string")
    gate = ba.reference_gate(("region",), REGIONS, ("name",), asks=True)
    found = judged(gate, rows, there)
    assert (found.passed, found.asks, found.compared, found.disagreeing) == (False, True, 2, 1)
    assert found.summary == (
        "2 different values of region; 1 of them are not in reference.regions; 1 combinations with NULL refer to nothing"
    )
    assert found.exceptions is not None
    (row,) = found.exceptions().collect()
    assert (json.loads(row["key"]), json.loads(row["found"])) == ({"region": "X"}, {"rows": 1})
    assert judged(gate, rows.where("region IS NULL OR region = 'N'"), there).passed


def test_of_a_merge_only_its_entities_have_to_refer_to_something(spark: SparkSession) -> None:
    rows = frame(spark, [("N", "2020-06-01", 1), ("X", "2020-06-01", 1)], "bigint")
    there = spark.createDataFrame([("N",)], "region string")
    gate = ba.reference_gate(("region",), REGIONS)
    assert judged(gate, rows, there, merged=spark.createDataFrame([("N",)], "region string")).passed
    assert not judged(gate, rows, there, merged=spark.createDataFrame([("X",)], "region string")).passed


def test_two_columns_refer_together_and_the_source_is_a_table_to_refer_to(spark: SparkSession) -> None:
    rows = frame(spark, [("N", "2020-06-01", 1), ("S", "2020-06-02", 1)], "bigint")
    there = frame(spark, [("N", "2020-06-01", 1), ("N", "2020-06-02", 1), ("S", "2020-06-01", 1)], "bigint")
    found = judged(ba.reference_gate(("region", "day"), SOURCE.name), rows, there)
    assert (found.compared, found.disagreeing) == (2, 1)


# --- entities -----------------------------------------------------------------------------------------------------------


def test_entities_without_a_value_in_their_key_are_the_same_on_both_sides(spark: SparkSession) -> None:
    source = frame(spark, [("N", "2020-06-01", 1), (None, "2020-06-02", 1)], "bigint")
    described = ba.keys("regions", eligible=lambda context: context.source, key=("region",), slices=("day",))
    for gate in (ba.record_gate(("region",)), ba.record_level("regions", "Regions are there.", described)):
        found = judged(gate, source, staged=source)
        assert (found.passed, found.compared) == (True, 2), found.summary
        missing = judged(gate, source, staged=source.where("region = 'N'"))
        assert (missing.passed, missing.disagreeing) == (False, 1)
        assert missing.exceptions is not None
        (row,) = missing.exceptions().collect()
        assert (json.loads(row["key"]), row["what"]) == ({"region": None}, "missing")


# --- known cases --------------------------------------------------------------------------------------------------------


def known(folder: Path, text: str, **options: Any) -> ba.Reconciliation:
    (folder / "cases.csv").write_text(text)
    return ba.known_keys_gate(str(folder / "cases.csv"), **options)


def test_a_case_of_a_key_that_several_chunks_have_is_the_row_of_its_day(spark: SparkSession, tmp_path: Path) -> None:
    target = replace(TARGET, key=("region",), chunking=ba.Chunking.DAY, chunks_from="2020-01-01")
    rows = frame(spark, [("N", "2020-06-01", Decimal(10)), ("N", "2020-06-02", Decimal(20))])
    both = known(tmp_path, "region,day,amount\nN,2020-06-01,10\nN,2020-06-02,20\n")
    found = judged(both, rows, target=target)
    assert (found.passed, found.compared) == (True, 2)
    other = judged(known(tmp_path, "region,day,amount\nN,2020-06-02,10\n"), rows, target=target)
    assert (other.passed, other.disagreeing) == (False, 1)
    gone = known(tmp_path, "region,day,absent\nN,2020-06-03,true\n", absent="absent")
    assert judged(gone, rows, target=target).passed


@pytest.mark.parametrize(
    "division", [ba.ByBucket("region", 4), ba.ByValue("region", ("N", "S")), ba.ByRange("region", ("O",))]
)
def test_a_case_is_compared_by_the_runs_that_have_its_part(
    spark: SparkSession, tmp_path: Path, division: Division
) -> None:
    target = replace(TARGET, key=("region", "day"), chunk_values=division)
    gate = known(tmp_path, "region,day,amount\nN,2020-06-01,10\n")
    rows = frame(spark, [("N", "2020-06-01", Decimal(10))])
    part = part_of_value(division, StringType(), "N")
    chunks = tuple(cut(target.chunking, JUNE.start, JUNE.end, target.parts))
    own = judged(gate, rows, target=target, chunks=tuple(one for one in chunks if one.part == part))
    assert (own.passed, own.compared) == (True, 1)
    others = judged(gate, rows.limit(0), target=target, chunks=tuple(one for one in chunks if one.part != part))
    assert (others.passed, others.compared) == (True, 0)
    assert others.summary.endswith("; 1 of other days or parts are not compared")


def test_a_case_of_the_part_without_a_value_is_the_row_without_one(spark: SparkSession, tmp_path: Path) -> None:
    target = replace(TARGET, key=("day",), chunk_values=ba.ByValue("region", ("N", None)))
    rows = frame(spark, [("N", "2020-06-01", Decimal(7)), (None, "2020-06-01", Decimal(5))])
    found = judged(known(tmp_path, "region,day,amount\nN,2020-06-01,7\n,2020-06-01,5\n"), rows, target=target)
    assert (found.passed, found.compared) == (True, 2)
