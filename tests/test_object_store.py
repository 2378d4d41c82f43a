"""The whole data path on an S3 server that keeps its objects on disk: tables, staging, outlines, derived files, and Spark.

The JVM of these tests has other jars than that of all others: this module ends the one that is there, and its own at the end.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import polars as pl
import pyarrow as arrow
import pyarrow.fs as pafs
import pytest
import worlds
from pyspark import SparkContext, TaskContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from real_servers.processes import MissingServerError
from real_servers.s3 import Store, spark_jars
from worlds import FEW_GATES, TARGET, World, make_world, with_version

from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.garbage import collect, find
from backfill_assets.products.enforcement import transforms
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from backfill_assets.review.diff import diff_here
from backfill_assets.staging.compute import staged_files
from manifests.errors import EnvironmentRefused, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.lakehouse.storage import filesystem_of
from resources.ledger.transactions import system_clock as now
from resources.spark import pyspark_private
from resources.spark.object_store import COMMIT_PROTOCOL

pytestmark = pytest.mark.servers

OTHER_SECRET = "secret-of-another-bucket"
OF_ANOTHER_BUCKET = "spark.hadoop.fs.s3a.bucket.other.secret.key"
START, END = date(2010, 1, 1), date(2010, 3, 31)
CASES = 80
FEBRUARY = (date(2010, 2, 1), date(2010, 2, 28))
YEARS = timedelta(days=800)


def end_jvm() -> None:
    """End the JVM of this process, if there is one: its class path is what it was started with."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if context is not None:
        SparkSession(context).stop()
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Have Spark begin with what reaches S3; where it writes its own log of events."""
    try:
        jars = spark_jars()
    except MissingServerError as reason:
        pytest.skip(f"nothing is tested with Spark on S3: {reason}")
    folder = tmp_path_factory.mktemp("events")
    with_s3 = {
        "spark.driver.extraClassPath": f"{jars}/*",
        "spark.master": "local[2,2]",  # a task that fails is tried once more, as on a cluster
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        OF_ANOTHER_BUCKET: OTHER_SECRET,
    }
    end_jvm()
    with mock.patch.dict(worlds.SPARK, with_s3):
        yield folder
    end_jvm()


@pytest.fixture(scope="module")
def world(disk_store: Store, events: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """An installation whose tables are in S3; a history with a bug is published, and restated."""
    home = tmp_path_factory.mktemp("s3") / "home"
    home.mkdir()
    where = {"uri": f"sqlite:///{home}/catalog.db", "warehouse": f"s3://{disk_store.bucket('lake')}/warehouse"}
    catalog = {"type": "sql", **where, **disk_store.properties()}
    made = make_world(home, cases=CASES, start=START, end=END, catalog=catalog)
    made.published(made.manifest("history", version="2.4.1"))
    made.published(made.manifest("fixed"))
    return made


@pytest.fixture(scope="module")
def locally(world: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same on local files."""
    with mock.patch.dict(worlds.SPARK):
        del worlds.SPARK[OF_ANOTHER_BUCKET]  # or the two would open S3 by different settings, in one JVM
        made = make_world(tmp_path_factory.mktemp("local") / "home", cases=CASES, start=START, end=END, gates=FEW_GATES)
    made.published(made.manifest("history", version="2.4.1"))
    made.validated(made.manifest("fixed"))
    return made


def target(mode: str, scope: tuple[date, date] = FEBRUARY, **options: Any) -> dict[str, Any]:
    publish_range = {"start": scope[0], "end": scope[1]}
    return {"table": TARGET, "publishMode": mode, "publishRange": publish_range, **options}


def require_untampered(world: World) -> None:
    done = verify(world.platform, data=True)
    assert [(problem.run_id, problem.where, problem.what) for problem in done.everything] == []


def test_the_digests_are_those_of_local_files_and_no_data_is_local(
    world: World, locally: World, disk_store: Store
) -> None:
    for run in ("history", "fixed"):
        assert world.digests(run) == locally.digests(run)
        assert None not in world.digests(run).values()
    chunks = world.platform.ledger.chunks("fixed")
    assert all(file.path.startswith("s3://lake/warehouse/") for chunk in chunks for file in chunk.files)
    assert [len(file.sha256) for chunk in chunks for file in chunk.files] == [64] * len(chunks)
    assert [str(file) for file in world.home.rglob("*.parquet")] == []
    assert [one for one in disk_store.objects("lake/warehouse") if "_temporary" in one or "__magic" in one] == []
    require_untampered(world)
    require_untampered(locally)


def test_a_byte_that_changes_in_a_staged_object_is_not_published(world: World) -> None:
    few = world.with_few_gates()
    run = few.validated(few.manifest("tampered", target=target("REPLACE_PARTITIONS")))
    before = few.snapshots()
    (chunk,) = few.platform.ledger.chunks(run.run_id)
    filesystem, place, _ = filesystem_of(few.platform.lakehouse.table(TARGET), chunk.files[0].path)
    change_one_byte(filesystem, place)
    with pytest.raises(PublicationRefused, match=r"the content of s3://.* has the SHA-256"):
        publish(few.platform, run.run_id)
    assert few.snapshots() == before
    assert few.platform.ledger.run(run.run_id).state is RunState.REJECTED


def change_one_byte(filesystem: pafs.FileSystem, place: str) -> None:
    """Change a byte of a page of an object; its length and its footer stay."""
    with filesystem.open_input_file(place) as stream:
        raw = bytearray(stream.read())
    raw[20] ^= 1
    with filesystem.open_output_stream(place) as stream:
        stream.write(bytes(raw))


def test_a_merge_changes_its_entities_alone_and_is_taken_back(world: World) -> None:
    few = world.with_few_gates()
    before = few.rows()
    cases = sorted(set(before.filter(pl.col("business_date").is_between(*FEBRUARY))["case_id"]))[:5]
    mine = pl.col("case_id").is_in(cases) & pl.col("business_date").is_between(*FEBRUARY)
    merge = target("MERGE_BY_KEY", merge={"entities": cases})
    run = few.validated(few.manifest("merged", target=merge, validation={}))
    diff = diff_here(few.platform, run.run_id)
    assert (diff.added, diff.removed, diff.changed) == (0, 0, 0), "it computes what is there by the same version"
    publish(few.platform, run.run_id)
    (chunk,) = few.platform.ledger.chunks("merged")
    assert chunk.replaced
    assert all(file.path.startswith("s3://") and len(file.sha256) == 64 for file in chunk.derived)
    after = few.rows()
    assert after.filter(~mine).equals(before.filter(~mine))
    assert set(after.filter(mine)["run_id"]) == {"merged"}
    assert after.drop(worlds_lineage(after)).equals(before.drop(worlds_lineage(before)))
    rollback(few.platform, "merged")
    assert few.rows().equals(before)


def worlds_lineage(rows: pl.DataFrame) -> list[str]:
    names = ("run_id", "processing_mode", "transform_version", "input_snapshot_id", "produced_at")
    return [name for name in names if name in rows.columns]


def test_a_change_by_events_is_written_beside(world: World) -> None:
    few = world.with_few_gates()
    rows = few.rows()
    older = few.manifest("events", version="2.4.1", target=target("CORRECTION_EVENTS"))
    few.published(older)
    table = few.platform.lakehouse.table("silver.case_sla_daily_corrections")
    found = table.scan().to_arrow()
    assert found.num_rows > 0
    assert all(path.startswith("s3://") for path in table.inspect.files()["file_path"].to_pylist())
    assert few.rows().equals(rows), "the rows are as they were"
    rollback(few.platform, "events")


def test_a_run_is_reproduced_and_what_a_rollback_needs_is_there(world: World, disk_store: Store) -> None:
    done = reproduce(world.platform, "fixed")
    assert done.outcome is Outcome.EQUAL, done.summary
    assert [one for one in disk_store.objects("lake/warehouse") if "reproduce" in one] == []


def test_garbage_of_dead_runs_goes_and_no_row_with_it(world: World, disk_store: Store) -> None:
    few = world.with_few_gates()
    dead = few.validated(few.manifest("dead", target=target("REPLACE_PARTITIONS")))
    paths = [file.path for chunk in few.platform.ledger.chunks("dead") for file in chunk.files]
    few.platform.ledger.move("dead", RunState.CANCELLED, "ana", "not wanted", expected=RunState.VALIDATED)
    assert dead.state is RunState.VALIDATED
    rows, at = few.rows(), now() + YEARS
    collected = collect(few.platform, find(few.platform, at=at), by="ana", at=at)
    assert sum(one.files for one in collected) > 0
    left = set(disk_store.objects("lake/warehouse"))
    assert left.isdisjoint(path.removeprefix("s3://") for path in paths)
    assert few.rows().equals(rows)


# --- Spark ------------------------------------------------------------------------------------------------------------


def test_the_keys_are_in_no_command_line_no_log_and_no_file(world: World, disk_store: Store, events: Path) -> None:
    gateway = SparkContext._gateway
    assert gateway is not None
    command = Path(f"/proc/{gateway.proc.pid}/cmdline").read_bytes()
    secret = disk_store.secret_key.encode()
    assert b"extraClassPath" in command
    assert secret not in command
    assert OTHER_SECRET.encode() not in command
    logged = [file for file in events.rglob("*") if file.is_file()]
    assert logged
    assert [str(file) for file in (*logged, *files_of(world.home)) if secret in file.read_bytes()] == []
    assert [str(file) for file in logged if OTHER_SECRET.encode() in file.read_bytes()] == []
    said = json.dumps(world.platform.settings.shown()) + repr(world.platform.lakehouse.access)
    assert disk_store.secret_key not in said
    session = world.platform.spark.session(Mode.BACKFILL)
    shown = {row["key"]: row["value"] for row in session.sql("SET").collect()}
    assert "fs.s3a.secret.key" in shown
    assert shown.keys() >= {"fs.s3a.bucket.other.secret.key"}
    assert {disk_store.secret_key, OTHER_SECRET}.isdisjoint(shown.values())


def test_another_mode_gets_no_session_that_would_be_handed_the_keys_of_the_first(
    world: World, disk_store: Store
) -> None:
    world.platform.spark.session(Mode.LIVE)
    others = {"fs.s3a.access.key": "nobody", "fs.s3a.secret.key": "nothing"}
    settings = world.platform.settings.model_copy(update={"spark_by_mode": {Mode.REPLAY: others}})
    anew = Platform.of(settings).spark
    with pytest.raises(
        EnvironmentRefused, match=r"S3 by other settings .*: fs\.s3a\.access\.key, fs\.s3a\.secret\.key"
    ) as refused:
        anew.session(Mode.REPLAY)
    assert disk_store.secret_key not in str(refused.value)
    assert anew.session(Mode.BACKFILL).conf.get("fs.s3a.access.key") == disk_store.access_key


def test_without_sparks_jars_no_attempt_is_begun(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    few = world.with_few_gates()
    record = few.approved(few.manifest("without-jars"))
    monkeypatch.setattr(pyspark_private, "has_class", lambda _, name: not name.startswith("org.apache.hadoop.fs.s3a"))
    anew = replace(few, platform=Platform.of(few.platform.settings))
    with pytest.raises(EnvironmentRefused, match=r"org\.apache\.hadoop:hadoop-aws:3\.4\.\d+ on Spark's class path"):
        anew.stage(record)
    assert few.platform.ledger.attempts("without-jars") == []
    assert few.platform.ledger.run("without-jars").state is RunState.APPROVED


def test_a_batch_without_rows_is_staged_as_one(world: World) -> None:
    platform = world.platform
    prefix = f"{platform.lakehouse.location(TARGET)}/run=empty/attempt=1"
    rows = platform.spark.session(Mode.BACKFILL).range(0).withColumn("chunk", F.lit("2010-01-01"))
    rows.write.partitionBy("chunk").parquet(prefix)
    declared = platform.products.target(TARGET)
    assert staged_files(platform, declared, prefix, declared.chunking, ["2010-01"]) == {"2010-01": []}
    with pytest.raises(EnvironmentRefused, match="does not exist"):
        staged_files(platform, declared, f"{prefix}-gone", declared.chunking, ["2010-01"])


def files_of(folder: Path) -> list[Path]:
    return [file for file in folder.rglob("*") if file.is_file()]


def test_a_session_of_another_mode_than_live_has_no_local_file(world: World, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a\n1\n")
    session = world.platform.spark.session(Mode.BACKFILL)
    for place in (f"file://{tmp_path}/rows.csv", f"{tmp_path}/rows.csv"):
        with pytest.raises(AnalysisException, match="PATH_NOT_FOUND"):
            session.read.text(place)
    with pytest.raises(Exception, match=r"File/Directory does not exist: /"):
        session.range(1).write.parquet(f"file://{tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_a_session_that_writes_nothing_writes_nothing_to_s3(world: World, disk_store: Store) -> None:
    session = world.platform.spark.session(Mode.RECONCILIATION)
    with pytest.raises(Exception, match="FileCommitProtocol"):
        session.range(1).write.parquet("s3://lake/nothing")
    with world.platform.spark.writing_evidence(Mode.RECONCILIATION) as writes:
        assert writes.conf.get(COMMIT_PROTOCOL, "").endswith("PathOutputCommitProtocol")
        writes.range(1).coalesce(1).write.parquet("s3://lake/evidence")
    assert disk_store.objects("lake/nothing") == []
    assert len(disk_store.objects("lake/evidence")) == 1
    with pytest.raises(Exception, match="FileCommitProtocol"):
        session.range(1).write.parquet("s3://lake/nothing")


def test_a_task_that_fails_on_its_way_leaves_no_row_twice(world: World, disk_store: Store) -> None:
    session = world.platform.spark.session(Mode.BACKFILL)

    def fails_once(batches: Iterator[arrow.RecordBatch]) -> Iterator[arrow.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            if number == 2 and context.attemptNumber() == 0:
                raise ValueError("a worker that is lost")
            yield batch

    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    rows = session.range(0, 4_000, 1, 4).withColumn("chunk", F.col("id") % 3)
    rows.mapInArrow(fails_once, rows.schema).write.partitionBy("chunk").parquet("s3://lake/retried")
    assert session.read.parquet("s3://lake/retried").agg(F.sum("id"), F.count("id")).first() == (7_998_000, 4_000)
    found = disk_store.objects("lake/retried")
    assert len(found) == 12, found
    assert [one for one in found if not re.search(r"/chunk=\d/part-\d{5}-[^/]*\.parquet$", one)] == []


def test_a_job_that_fails_leaves_nothing(world: World, disk_store: Store) -> None:
    session = world.platform.spark.session(Mode.BACKFILL)
    rows = session.range(0, 1_000, 1, 4).withColumn(
        "number", F.when(F.col("id") == 999, F.raise_error(F.lit("poison"))).otherwise(F.col("id"))
    )
    with pytest.raises(Exception, match="poison"):
        rows.write.parquet("s3://lake/failed")
    assert disk_store.objects("lake/failed") == []


def test_who_looks_while_a_job_writes_sees_no_file_of_it(world: World, disk_store: Store) -> None:
    session = world.platform.spark.session(Mode.BACKFILL)
    seen: list[list[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found = disk_store.objects("lake/looked-at")
            seen.append([one for one in found if one.endswith(".parquet")])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        rows = session.range(0, 400_000, 1, 8).withColumn("text", F.repeat(F.sha2(F.col("id").cast("string"), 256), 4))
        rows.write.parquet("s3://lake/looked-at")
    finally:
        over.set()
        watcher.join()
    assert len(disk_store.objects("lake/looked-at")) == 8
    assert len([one for one in seen if not one]) > 3, "nothing was there while tasks wrote"


def test_a_poisoned_chunk_fails_alone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    few = world.with_few_gates()

    def poisoned(inputs: Any, context: Any) -> Any:
        rows = transforms.case_sla_daily(inputs, context.__class__(**{**context.__dict__, "version": "3.1.0"}))
        is_bad = F.date_format("business_date", "yyyy-MM") == "2010-02"
        return rows.withColumn("amount", F.when(is_bad, F.raise_error(F.lit("poison"))).otherwise(F.col("amount")))

    with_version(monkeypatch, "9.9.9", poisoned)
    monkeypatch.setitem(transforms.DAY_OF, "9.9.9", transforms.local_date)
    record = few.approved(few.manifest("poisoned", version="9.9.9"))
    outcome = few.stage(record)
    assert set(outcome.failed) == {"2010-02"}
    assert set(outcome.computed) == {"2010-01", "2010-03"}
    assert "AWS_ACCESS_KEY_ID" not in os.environ
