"""Runs whose files have about a declared size, and whose batches follow from rows and memory: the rows are the same whatever these are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from test_compaction import streamed
from test_pages import page
from test_taking_back import dying_at
from worlds import SPARK, World

from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.cli.cost_view import takes
from backfill_assets.declarations.target import TargetTable, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.planning import batch_sizes
from backfill_assets.planning.file_sizes import declared_file_size, rows_of_settings
from backfill_assets.planning.resolve import plan_run
from benchmarks import orders
from benchmarks.orders import ORDERS, opened, rows_of
from manifests.errors import ManifestRefused, PlanRefused, Refused
from manifests.lifecycle import RunState
from manifests.model import Mode, RunManifest
from resources.lakehouse.compactable import FILE_SIZE_PROPERTY
from resources.lakehouse.facade import local_path
from resources.settings import ROWS_PER_FILE_KEY, load_settings
from resources.spark.memory import memory_of, size_of

SIZE = 40_000
_KIB = 1 << 10


def filled(tmp_path: Path, target: TargetTable = orders.TARGET, lines: int = 160_000) -> World:
    platform = opened(tmp_path / "home", target, spark=SPARK)
    orders.fill(platform, lines)
    return World(platform, tmp_path / "home")


def contract(run_id: str, start: date = orders.FIRST, end: date = orders.LAST, **changes: Any) -> RunManifest:
    target = {"table": ORDERS, "publishRange": {"start": start, "end": end}} | changes.pop("target", {})
    return orders.manifest(run_id, start, end, target=target, **changes)


def staged(platform: Platform, run_id: str) -> dict[str, list[str]]:
    return {one.chunk: [local_path(file.path) for file in one.files] for one in platform.ledger.chunks(run_id)}


def require_cut(platform: Platform, run_id: str, size: int, *, but_the_last: bool = False) -> list[int]:
    """Require that the files of each chunk follow one another in the order of the key, each of about a size; return the sizes."""
    found = []
    for chunk, paths in staged(platform, run_id).items():
        keys = [arrow.array(pq.read_table(path)["order_id"].to_pylist()) for path in paths]
        for own in keys:
            assert own.to_pylist() == sorted(own.to_pylist()), chunk
        keys.sort(key=lambda own: own[0].as_py())
        assert all(one[-1].as_py() < after[0].as_py() for one, after in pairwise(keys)), chunk
        sizes = [Path(path).stat().st_size for path in paths]
        assert len(sizes) > 2, chunk
        found += sizes
        if but_the_last:
            sizes.remove(min(sizes))
        assert min(sizes) >= 0.5 * size, chunk
        assert max(sizes) <= 1.5 * size, chunk
    print(f"{len(found)} files of {min(found):,} to {max(found):,} bytes, {size:,} wanted")
    return found


# --- files --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["the manifest", "the declaration", "the table"])
def test_a_chunk_of_more_than_the_size_is_several_files_of_about_it_with_the_digest_of_one(
    tmp_path: Path, by: str
) -> None:
    world = filled(tmp_path)
    platform = world.platform
    world.published(contract("history"))
    one_each = staged(platform, "history")
    assert [len(paths) for paths in one_each.values()] == [1] * 4, "small chunks have one file each"
    before, said = rows_of(platform), {}
    if by == "the table":
        with platform.lakehouse.table(ORDERS).transaction() as transaction:
            transaction.set_properties({"write.target-file-size-bytes": str(SIZE)})
    elif by == "the declaration":
        world = World(opened(tmp_path / "home", replace(orders.TARGET, file_size_bytes=SIZE), spark=SPARK), world.home)
        platform = world.platform
    else:
        said = {"fileSizeBytes": SIZE}
    plan = plan_run(platform, contract("restated", target=said)).plan
    assert plan.file_sizes is not None
    assert plan.file_sizes.file_size_bytes == SIZE
    assert plan.file_sizes.learned_from == "the largest chunks of run 'history'"
    words = {"the manifest": "target.fileSizeBytes", "the table": "write.target-file-size-bytes"}
    assert plan.file_sizes.said_by == words.get(by, "file_size_bytes of the declaration")
    world.published(contract("restated", target=said))
    assert len(require_cut(platform, "restated", SIZE)) > 12
    assert world.digests("restated") == world.digests("history")
    without = [{name: value for name, value in row.items() if name != "run_id"} for row in before]
    assert [
        {name: value for name, value in row.items() if name in without[0]} | {"produced_at": None}
        for row in rows_of(platform)
    ] == [row | {"produced_at": None} for row in without]
    assert verify(platform, data=True).everything == []
    assert reproduce(platform, "restated").outcome is Outcome.EQUAL


def test_a_first_run_is_reckoned_from_its_source_and_the_second_one_knows(tmp_path: Path) -> None:
    world = filled(tmp_path)
    world.validated(contract("first", target={"fileSizeBytes": SIZE}))
    plan = world.platform.ledger.run("first").plan
    assert plan.file_sizes is not None
    assert plan.file_sizes.learned_from == "the types of its columns, packed as the files of bronze.order_lines are"
    require_cut(world.platform, "first", SIZE, but_the_last=True)
    again = plan_run(world.platform, contract("second", target={"fileSizeBytes": SIZE})).plan
    assert again.file_sizes is not None
    assert again.file_sizes.learned_from == "the largest chunks of run 'first'"


def test_what_another_program_has_written_says_how_large_a_row_is(tmp_path: Path) -> None:
    platform = streamed(tmp_path, lots=1, lines=8_000).platform
    snapshot = platform.lakehouse.table(ORDERS).current_snapshot().snapshot_id
    plan = plan_run(platform, contract("restated")).plan
    assert plan.file_sizes is not None
    assert plan.file_sizes.learned_from == f"the files of snapshot {snapshot}"
    assert (plan.file_sizes.file_size_bytes, plan.file_sizes.said_by) == (128 << 20, "the default")
    assert plan.file_sizes.rows_per_file == 4_000_000, "a gate takes a file into memory whole"


def test_a_transform_that_is_clustered_by_itself_has_its_chunks_cut_alike(tmp_path: Path) -> None:
    def clustered(inputs: Any, context: Any) -> Any:
        starts = [(chunk.start, slot) for chunk, slot in zip(context.chunks, context.slots, strict=True)]
        slots = inputs.source.sparkSession.createDataFrame(starts, "start date, slot int")
        found = orders.orders(inputs, context).join(slots, F.trunc("ordered_on", "MM") == F.col("start"))
        placed = found.repartitionById(context.slots[-1] + 1, F.col("slot"))
        return placed.sortWithinPartitions("order_id").drop("start", "slot")

    versions = {**orders.TARGET.versions, "3.0.0": TransformVersion(clustered, clustered=True)}
    world = filled(tmp_path, replace(orders.TARGET, versions=versions))
    days = date(2024, 1, 1), date(2024, 1, 31)
    world.validated(contract("plain", *days))
    world.validated(contract("clustered", *days, version="3.0.0", target={"fileSizeBytes": SIZE}))
    require_cut(world.platform, "clustered", SIZE, but_the_last=True)
    assert world.digests("clustered") == world.digests("plain")


def test_a_size_that_is_none_is_refused_wherever_it_is_said(tmp_path: Path) -> None:
    world = filled(tmp_path, lines=100)
    with pytest.raises(ManifestRefused, match=r"target\.fileSizeBytes is for runs that write files; a reconciliation"):
        contract("reconciled", kind="RECONCILIATION", target={"fileSizeBytes": SIZE})
    with world.platform.lakehouse.table(ORDERS).transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": "large"})
    with pytest.raises(PlanRefused, match=r"write\.target-file-size-bytes of silver\.orders is 'large'") as refused:
        plan_run(world.platform, contract("restated"))
    assert refused.value.problems[0].fix == "correct the table's property, or name target.fileSizeBytes"
    assert plan_run(world.platform, contract("restated", target={"fileSizeBytes": SIZE})).plan.file_sizes is not None
    declared = replace(orders.TARGET, file_size_bytes="128 MiB")  # type: ignore[arg-type]
    with pytest.raises(Refused, match=r"a whole number of bytes, 1,024 to 1,099,511,627,776, or None"):
        plan_run(opened(tmp_path / "other", declared, spark=SPARK), contract("restated"))


# --- batches ------------------------------------------------------------------------------------------------------------


@contextmanager
def computing_in(memory: int) -> Iterator[None]:
    with mock.patch.object(batch_sizes, "memory_of", return_value=(memory, "spark.driver.memory")):
        yield


def batches(platform: Platform, run_id: str) -> list[list[str]]:
    return [one.keys for one in platform.ledger.attempts(run_id)]


def test_large_chunks_are_computed_in_small_batches_and_a_killed_run_goes_on_with_those(tmp_path: Path) -> None:
    world = filled(tmp_path)
    platform = world.platform
    world.published(contract("together"))
    assert [len(one) for one in batches(platform, "together")] == [4]
    with computing_in(2_900 * _KIB):
        record = world.approved(contract("apart"))
    assert record.plan.batch_sizes is not None
    assert 41_000 < record.plan.batch_sizes.rows < 76_000, "for one chunk, and not for two"
    assert record.plan.batch_sizes.learned_from == ("together",)
    assert [len(batch) for batch in record.plan.batches()] == [1] * 4
    with dying_at(platform, "staging.recorded"):
        world.stage(record)
    world.stage(record)
    assert [len(one) for one in batches(platform, "apart")] == [1] * 4, "no chunk is computed twice"
    assert platform.ledger.run("apart").state is RunState.VALIDATED
    assert world.digests("apart") == world.digests("together")


def test_a_manifest_that_says_how_many_chunks_has_just_as_many(tmp_path: Path) -> None:
    platform = filled(tmp_path).platform
    with computing_in(2_900 * _KIB):
        plan = plan_run(platform, contract("three", limits={"maxChunksPerJob": 3})).plan
    assert plan.batch_sizes is None
    assert [len(batch) for batch in plan.batches()] == [3, 1]


def test_the_run_page_and_the_terminal_say_how_large_batches_and_files_are(tmp_path: Path) -> None:
    world = filled(tmp_path, lines=2_000)
    planned = plan_run(world.platform, contract("shown", target={"fileSizeBytes": SIZE})).plan
    said = dict(planned.of_sizes())
    assert said["batches"].startswith("1 Spark job(s) of 4 chunk(s): at most ")
    assert "16 times what fits into " in said["batches"]
    assert said["files"].startswith("of about 39.1 KiB (target.fileSizeBytes), at most ")
    on_page, facts = page(world.platform, "/backfill/shown"), dict(takes(planned))
    for name, words in said.items():
        assert escape(words) in on_page
        assert facts[name] == words


@pytest.mark.parametrize(
    ("spark", "found"),
    [
        ({}, (2 << 30, "the default of spark.driver.memory")),
        ({"spark.driver.memory": "1536m"}, (1536 << 20, "spark.driver.memory")),
        ({"spark.driver.memory": "2048"}, (2 << 30, "spark.driver.memory")),
        ({"spark.master": "local[*]", "spark.driver.memory": "4G"}, (4 << 30, "spark.driver.memory")),
        (
            {"spark.master": "spark://host:7077", "spark.executor.memory": "3g", "spark.executor.instances": "4"},
            (12 << 30, "spark.executor.memory of 4 executor(s)"),
        ),
        ({"spark.remote": "sc://host:15002"}, (2 << 30, "the default, as no setting says spark.executor.memory")),
    ],
    ids=["nothing", "of a driver", "without a unit", "every core", "of executors", "somebody else's server"],
)
def test_memory_is_what_the_settings_say(tmp_path: Path, spark: dict[str, str], found: tuple[int, str]) -> None:
    assert memory_of(load_settings(home=tmp_path, spark=spark), Mode.BACKFILL) == found


def test_memory_that_is_no_size_refuses_the_plan_and_says_where_it_is_set(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, spark_by_mode={Mode.LIVE: {"spark.driver.memory": "lots"}})
    assert memory_of(settings, Mode.BACKFILL)[0] == 2 << 30
    with pytest.raises(PlanRefused, match=r"spark\.driver\.memory is 'lots' in the settings") as refused:
        memory_of(settings, Mode.LIVE)
    assert "2g, 1536m" in refused.value.problems[0].rule
    assert "backfill.toml" in refused.value.problems[0].fix


@pytest.mark.parametrize(
    "said",
    ["2 g", "0g", "-1g", "1.5g", "\N{ARABIC-INDIC DIGIT TWO}g", "9" * 5_000 + "g", "9" * 310, "9999p", "nan", ""],
)
def test_memory_that_spark_would_not_read_is_none(said: str) -> None:
    with pytest.raises(PlanRefused, match="right after it: 2g, 1536m") as refused:
        size_of("spark.driver.memory", said)
    assert len(refused.value.problems[0].what) < 120


@pytest.mark.parametrize(
    "said", ["0", "-5", "1e8", "128MB", str(2**63), "\N{FULLWIDTH DIGIT NINE}" * 6, "9" * 5_000, "\N{SUPERSCRIPT TWO}"]
)
def test_a_property_or_a_setting_that_is_no_number_crashes_nothing(said: str) -> None:
    target, manifest = mock.Mock(file_size_bytes=None), mock.Mock()
    manifest.target.file_size_bytes = None
    target.name = "sales"
    with pytest.raises(PlanRefused, match="of sales is") as refused:
        declared_file_size(target, {FILE_SIZE_PROPERTY: said}, manifest)
    assert len(refused.value.problems[0].what) < 120
    assert rows_of_settings({ROWS_PER_FILE_KEY: said}) is None


@pytest.mark.parametrize("said", [str((1 << 40) + 1), str(2**63 - 1)])
def test_a_table_whose_writers_are_to_begin_no_second_file_has_the_largest_files_there_are(said: str) -> None:
    target, manifest = mock.Mock(file_size_bytes=None), mock.Mock()
    manifest.target.file_size_bytes = None
    assert declared_file_size(target, {FILE_SIZE_PROPERTY: said}, manifest) == (1 << 40, FILE_SIZE_PROPERTY)
