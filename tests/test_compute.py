"""How a batch is laid out before Spark writes it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from support import a_lakehouse, a_plan
from worlds import FEW_GATES, World, make_world

from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.declarations.target import TransformContext, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import needed_columns
from backfill_assets.planning.resolve import preview
from backfill_assets.products.enforcement import CASE_SLA_DAILY
from backfill_assets.run_context import RunContext
from backfill_assets.staging import compute
from backfill_assets.staging.compute import compute_batch, require_arrived, staged_files
from backfill_assets.staging.folders import number_of, number_of_chunk
from backfill_assets.staging.rows import _clustered, slots_of
from backfill_assets.worker.chunk_finishing import finishing
from benchmarks.small_table import TARGET
from manifests.chunks import Chunk, Chunking, aligned, following
from manifests.errors import EnvironmentRefused, TransformRefused
from manifests.estimates import Estimate
from manifests.model import Mode
from manifests.plan import PlannedChunk
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import local_path
from resources.lakehouse.storage import place_of
from resources.spark.mode_settings import OPEN_FILES
from resources.spark.workers import SparkWorkers

DAY = date(2012, 1, 1)


def chunks(reads: list[int]) -> list[PlannedChunk]:
    days = [DAY + timedelta(days=number) for number in range(len(reads))]
    return [
        PlannedChunk(str(number), number, day, day, Estimate(1, rows, rows))
        for number, (day, rows) in enumerate(zip(days, reads, strict=True))
    ]


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=250), st.integers(1, 64))
def test_chunks_share_a_partition_in_order_and_never_more_than_it_has_files_open(reads: list[int], cores: int) -> None:
    slots = slots_of(chunks(reads), cores)
    assert len(slots) == len(reads)
    assert slots[0] == 0
    assert {after - before for before, after in pairwise(slots)} <= {0, 1}
    assert max(Counter(slots).values()) <= OPEN_FILES
    assert len(set(slots)) >= min(len(reads), cores)


def test_a_large_chunk_has_a_partition_of_its_own_and_small_ones_share() -> None:
    assert slots_of(chunks([25_000] * 162), 2) == tuple(range(162))
    assert len(set(slots_of(chunks([400] * 24), 2))) == 4
    assert slots_of(chunks([400] * 24), 64) == tuple(range(24))
    assert slots_of(chunks([0]), 8) == (0,)


@pytest.mark.parametrize("chunking", [Chunking.DAY, Chunking.WEEK, Chunking.MONTH, Chunking.YEAR])
def test_spark_finds_the_number_of_a_chunk_as_this_process_does(world: World, chunking: Chunking) -> None:
    chance = random.Random(chunking.value)
    days = [date.min + timedelta(days=chance.randrange(7), weeks=1), date(1969, 12, 28), date(1970, 1, 1), date.max]
    days += [date(1582, 10, 1) + timedelta(days=number) for number in range(20)]  # where calendars once skipped days
    days += [date(1890, 1, 1) + timedelta(days=chance.randrange(100_000)) for _ in range(500)]
    frame = world.platform.spark.session(Mode.BACKFILL).createDataFrame([(day,) for day in days], "day date")
    number = number_of_chunk(F.col("day"), chunking).alias("number")
    for day, found in frame.select("day", number).collect():
        start, end = aligned(chunking, day, day)
        assert found == number_of(start, chunking), day
        if end < date.max:
            assert number_of(following(chunking, start), chunking) == found + 1


def test_each_chunk_is_written_from_the_partition_of_its_slot_also_where_others_lie_between(world: World) -> None:
    days = [DAY + timedelta(days=number) for number in (0, 1, 2, 40, 41, 700)]
    rows = world.platform.spark.session(Mode.BACKFILL).createDataFrame([(day,) for day in days * 50], "day date")
    planned = tuple(Chunk(str(day), 0, day, day) for day in days)
    context = cast("TransformContext", SimpleNamespace(chunks=planned, slots=(0, 0, 1, 1, 2, 3)))
    target = replace(TARGET, day_column="day", chunking=Chunking.DAY, key=("day",))
    placed = _clustered(rows, target, context).select("day", F.spark_partition_id().alias("slot")).distinct().collect()
    assert {row["day"]: row["slot"] for row in placed} == dict(zip(days, context.slots, strict=True))


def test_chunks_without_rows_leave_the_workers_nothing_to_do(world: World) -> None:
    """A table whose files the workers write again, for its lists or UUIDs, may have a batch without a file."""
    work = finishing(iceberg_schema(CASE_SLA_DAILY.model).model_dump_json(), CASE_SLA_DAILY.key)
    assert world.platform.workers.do(Mode.BACKFILL, work, []) == []
    workers = SparkWorkers(world.platform.spark, lambda: world.platform.lakehouse.access)
    assert workers.spread(Mode.BACKFILL, []).collect() == []


class Rows:
    """A frame that knows only whether it is empty."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.asked = 0

    def isEmpty(self) -> bool:  # noqa: N802 - Spark's name
        self.asked += 1
        return not self.number


def test_rows_that_were_computed_and_are_nowhere_are_not_taken_for_none() -> None:
    prefix = "/staging/attempt-1"
    for written in (3, None):
        with pytest.raises(EnvironmentRefused, match="rows and 0 are found below /staging/attempt-1"):
            require_arrived(cast("DataFrame", Rows(3)), written, {"2020-01": [], "2020-02": []}, prefix)
    require_arrived(cast("DataFrame", Rows(0)), None, {"2020-01": []}, prefix)
    found = Rows(3)
    for written in (3, None):
        require_arrived(cast("DataFrame", found), written, {"2020-01": [StagedFile("/x", 3, 9)], "2020-02": []}, prefix)
    require_arrived(cast("DataFrame", found), 0, {"2020-01": []}, prefix)
    assert found.asked == 0, "nothing is computed twice where Spark says what it has written"


def test_a_batch_of_which_a_part_is_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = make_world(tmp_path / "home", cases=40, gates=FEW_GATES)
    record = world.approved(world.manifest())
    target, plan, folder = CASE_SLA_DAILY, record.plan, world.platform.lakehouse.location(record.target)
    run = RunContext.of(world.platform, record)
    files = compute_batch(run, plan.chunks, f"{folder}/whole")
    assert sum(file.rows for staged in files.values() for file in staged) > 0

    def without_one(*arguments: Any) -> dict[str, list[StagedFile]]:
        lost = next(Path(local_path(arguments[2])).rglob("*.parquet"))
        lost.unlink()  # an executor's own disk, which this process does not see
        return staged_files(*arguments)

    monkeypatch.setattr(compute, "staged_files", without_one)
    with pytest.raises(EnvironmentRefused, match=r"Spark has written [\d,]+ rows and [\d,]+ are found below"):
        compute_batch(run, plan.chunks, f"{folder}/part")
    monkeypatch.undo()
    rows_of = target.versions[plan.transform_version].function
    none = TransformVersion(lambda inputs, context: rows_of(inputs, context).where("business_date < '1900-01-01'"))
    nothing = replace(target, versions={plan.transform_version: none})
    found = compute_batch(replace(run, target=nothing), plan.chunks, f"{folder}/none")
    assert found == {chunk.key: [] for chunk in plan.chunks}


def test_a_folder_that_is_not_there_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    lakehouse = a_lakehouse(tmp_path)
    lakehouse.ensure(TARGET.name, iceberg_schema(TARGET.model), UNPARTITIONED_PARTITION_SPEC, {})
    platform = cast("Platform", SimpleNamespace(lakehouse=lakehouse))
    prefix = tmp_path / "attempt-1"
    with pytest.raises(EnvironmentRefused, match="attempt-1 does not exist"):
        staged_files(platform, TARGET, f"file://{prefix}", Chunking.MONTH, ["2020-01"])
    prefix.mkdir()
    assert staged_files(platform, TARGET, f"file://{prefix}", Chunking.MONTH, ["2020-01"]) == {"2020-01": []}


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("hdfs://nn:8020/lake/x", "/lake/x"),
        ("viewfs://lake/x", "/x"),
        ("s3://bucket/lake/x", "bucket/lake/x"),
        ("file:///lake/x", "/lake/x"),
    ],
)
def test_a_place_is_what_pyiceberg_makes_of_a_location(uri: str, place: str) -> None:
    assert place_of(uri) == PyArrowFileIO.parse_location(uri)[2] == place


def test_a_transform_that_asks_for_a_reference_by_another_name_is_told_which_there_are(tmp_path: Path) -> None:
    def mistaken(_: Any, context: Any) -> DataFrame:
        frame: DataFrame = context.references["reference.rules"]
        return frame

    world = make_world(tmp_path / "home", cases=60, seed=7)
    record = world.announced(world.manifest("mistaken", validation={"gates": FEW_GATES}))
    target = replace(CASE_SLA_DAILY, versions={record.plan.transform_version: TransformVersion(mistaken)})
    run = RunContext(world.platform, target, record.plan)
    with pytest.raises(
        TransformRefused, match=r"no reference 'reference\.rules': it has reference\.jurisdiction_calendar"
    ) as told:
        compute_batch(run, record.plan.chunks[:1], str(tmp_path / "staged"))
    assert str(told.value).startswith("the transform is refused")


def test_what_is_read_of_earlier_rows_has_the_column_that_places_them_in_time() -> None:
    target = replace(TARGET, look_back_columns=("id",))
    assert needed_columns(target, a_plan(), target.look_back_columns) == ("id", "at")
    assert needed_columns(target, a_plan(), ("at", "id")) == ("at", "id")


def test_what_spark_is_given_to_read_is_what_was_asked_for_and_the_next_plan_learns_from_it(world: World) -> None:
    """By the shipped product, whose transform looks back."""
    few = world.with_few_gates()
    record = few.approved(few.manifest("first", limits={"maxRowsPerMinute": 10**9, "maxChunksPerJob": 12}))
    few.stage(record)
    measured = [json.loads(one.measures) for one in few.platform.ledger.attempts("first")]
    rows = [
        sum(count for name, count in one.items() if name.endswith("_rows") and name != "suppressed_rows")
        for one in measured
    ]
    assert len(rows) == 2
    assert measured[1]["look_back_rows"] > 0
    with few.platform.ledger.engine.connect() as connection:
        asked = (
            connection.exec_driver_sql("SELECT rows FROM admissions WHERE run_id = 'first' ORDER BY id").scalars().all()
        )
    assert asked == rows
    costs = preview(few.platform, few.manifest("next")).costs
    assert costs is not None
    assert costs.learned_from == ("first",)
    assert costs.seconds is not None
    assert costs.seconds > 0
