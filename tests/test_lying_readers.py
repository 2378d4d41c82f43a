"""Readers of versions that do not do what a reader is for: each is refused, before anything is published, and says why."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType
from worlds import SPARK, World

import backfill_assets as ba
from backfill_assets.declarations.source_tables import Reader
from backfill_assets.operations.initialise import initialise
from benchmarks import accounts
from benchmarks.accounts import ENTRIES, FEES, LIMITS, manifest
from manifests.errors import TransformRefused
from manifests.lifecycle import RunState

JANUARY = date(2024, 1, 1), date(2024, 1, 31)


def world_with(tmp_path: Path, reader: Reader, table: str = ENTRIES) -> World:
    """Return an installation in which one reader has the rows of one of two accounts of a source."""
    readers = ba.Readers("account", {"a0": ba.as_it_is, "a1": reader})
    of_limits, of_fees = accounts.TARGET.sources
    if table == ENTRIES:
        target = replace(accounts.TARGET, readers=readers)
    else:
        target = replace(accounts.TARGET, sources=(replace(of_limits, readers=readers), of_fees))
    platform = accounts.opened(tmp_path / "home", target, spark=SPARK)
    initialise(platform)
    accounts.load(platform, ENTRIES, accounts.entries(*JANUARY, accounts=2), "all")
    accounts.load(platform, LIMITS, accounts.limits(2), "all")
    accounts.load(platform, FEES, accounts.fees(), "all")
    return World(platform, tmp_path / "home")


def drops(rows: DataFrame) -> DataFrame:
    return rows.where("cents % 3 <> 0")


def doubles(rows: DataFrame) -> DataFrame:
    return rows.unionByName(rows.where(F.day("booked_at") == 7))


def moves(rows: DataFrame) -> DataFrame:
    return rows.withColumn("booked_at", F.col("booked_at") + F.expr("interval 1 day"))


def invents(rows: DataFrame) -> DataFrame:
    return rows.limit(0).unionByName(rows.limit(1))


def drops_limits(rows: DataFrame) -> DataFrame:
    return rows.where("cents > 100000")


def of_chance(rows: DataFrame) -> DataFrame:
    return rows.withColumn("cents", (F.rand() * 100).cast("bigint"))


def of_sparks_clock(rows: DataFrame) -> DataFrame:
    return rows.withColumn("cents", F.unix_timestamp())


def of_pythons_clock(rows: DataFrame) -> DataFrame:
    return rows.withColumn("cents", F.lit(datetime.now(tz=UTC).year).cast("bigint"))


def of_a_workers_chance(rows: DataFrame) -> DataFrame:
    drawn = F.udf(lambda cents: cents + random.SystemRandom().randrange(1_000_000), LongType())
    return rows.withColumn("cents", drawn("cents"))


def of_an_order(rows: DataFrame) -> DataFrame:
    return rows.withColumn("cents", F.monotonically_increasing_id())


def other_columns(rows: DataFrame) -> DataFrame:
    return rows.withColumnRenamed("cents", "amount")


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (drops, r"-1 row\(s\) of 'a1' at 2024-01-03 10:00"),
        (doubles, r"\+1 row\(s\) of 'a1' at 2024-01-07"),
        (moves, r"-1 row\(s\) of 'a1' at 2024-01-01 10:00"),
        (invents, "returns other rows than it is given"),
        (of_chance, r"rand"),
        (of_sparks_clock, r"unix_timestamp|current_timestamp|clock"),
        (of_an_order, "asks for MonotonicallyIncreasingID"),
        (other_columns, "the reader of account 'a1' returns cents missing"),
    ],
)
def test_a_reader_that_does_not_keep_its_rows_or_is_another_each_time_is_refused_before_anything_is_staged(
    tmp_path: Path, reader: Reader, said: str
) -> None:
    world = world_with(tmp_path, reader)
    record = world.approved(manifest("run", *JANUARY))
    with pytest.raises(TransformRefused, match=said):
        world.stage(record)
    assert [chunk.chunk for chunk in world.platform.ledger.chunks("run") if chunk.files] == []
    assert accounts.rows_of(world.platform) == []


def test_a_reader_of_a_further_source_is_held_to_the_same(tmp_path: Path) -> None:
    world = world_with(tmp_path, drops_limits, LIMITS)
    with pytest.raises(TransformRefused, match=r"of account of bronze\.limits returns other rows"):
        world.stage(world.approved(manifest("run", *JANUARY)))


@pytest.mark.parametrize("reader", [of_pythons_clock, of_a_workers_chance])
def test_a_reader_whose_values_follow_from_something_else_than_its_rows_fails_the_gate_of_recomputed_chunks(
    tmp_path: Path, reader: ba.Reader
) -> None:
    world = world_with(tmp_path, reader)
    record = world.ran(manifest("run", *JANUARY))
    assert record.state is RunState.FAILED
    assert "recomputed_chunks_are_equal" in record.state_reason


def in_dollars(rows: DataFrame) -> DataFrame:
    return rows.withColumn("cents", F.col("cents") * 100)


def test_a_reader_that_says_what_its_rows_mean_is_as_good_as_rows_that_say_it(tmp_path: Path) -> None:
    world = world_with(tmp_path, in_dollars)
    world.published(manifest("run", *JANUARY))
    booked = accounts.entries(*JANUARY, accounts=2)
    meant = [row | {"cents": row["cents"] * (100 if row["account"] == "a1" else 1)} for row in booked]
    expected = accounts.expected(meant, accounts.limits(2), accounts.fees())
    assert accounts.values_of(accounts.rows_of(world.platform)) == expected
