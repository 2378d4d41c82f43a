"""The core of a run by whichever Spark the settings name, in a process of its own.

PySpark's functions are a server's or a JVM's in a whole process: the tests' own process has a JVM. What is found is printed as
JSON; what it has to be is `test_spark_elsewhere.py`'s.

    python tests/elsewhere_core.py whole|session|approved|another|staged|result|refused|real|year|part|batches
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql import functions as F
from worlds import TARGET, World, enforcement, generated

from backfill_assets.audit.reproduce import reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.defs.launch import announce_approval, initialise_instance
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import preview
from backfill_assets.publication.undoing import rollback
from backfill_assets.staging import stopping
from backfill_assets.staging.executor import stage_chunks
from backfill_assets.staging.unsteady import unsteady
from manifests.errors import Refused
from manifests.model import Mode
from resources.lakehouse.facade import RUN_PROPERTY
from resources.settings import load_settings
from resources.spark.cores import tasks_at_once
from resources.spark.sessions import computing_otherwise, is_refused_write

START, END = date(2010, 1, 1), date(2010, 12, 31)
SPRING = (date(2010, 3, 1), date(2010, 5, 31))
RUN = os.environ.get("ELSEWHERE_RUN", "elsewhere")
UNSTEADY = [
    *("current_date()", "current_timestamp()", "now()", "localtimestamp()", "current_time()", "curdate()"),
    *("rand(3)", "randn()", "uuid()", "randstr(5)", "uniform(0, 9)", "shuffle(array(1, 2))"),
    *("monotonically_increasing_id()", "spark_partition_id()", "input_file_name()", "input_file_block_start()"),
    *("input_file_block_length()", "current_user()", "current_database()", "current_catalog()"),
    *("reflect('java.lang.Math', 'random')", "java_method('java.lang.Math', 'random')"),
    *("cast('today' as date)", "cast(concat('to', 'day') as date)", "to_timestamp('now')", "day > to_date('tomorrow')"),
    *("unix_timestamp()", "try_cast('today' as date)", "try_to_date('today')", "try_to_timestamp(concat('n', 'ow'))"),
    *("to_timestamp_ntz('now')", "to_timestamp_ltz('now')", "try_to_timestamp('now', 'yyyy')", "upper('a\nrand(1)')"),
    *(
        "day > 'yesterday'",
        "upper('rand(1)')",
        "cast('2020-01-01' as date)",
        "to_date('2020', 'yyyy')",
        "upper(`text`)",
    ),
]
"""Expressions of SQL over the columns `id`, `day` and `text`: those that are refused, and some that are not."""


def opened() -> World:
    settings = load_settings()
    return World(Platform.of(settings), settings.home, START, END)


def made() -> World:
    world = opened()
    initialise(world.platform)
    initialise_instance(world.platform.settings)
    load_delivery(world.platform, enforcement.EVENTS, generated(150, 7, START, END), 0.5)
    return world


def manifest(world: World) -> Any:
    return world.manifest(RUN, target=world.scope(*SPRING), limits={"maxChunksPerJob": 2})


def whole() -> dict[str, Any]:
    """Plan, stage, gate, publish, verify, reproduce, roll back."""
    world = made()
    world.published(manifest(world))
    rows = world.rows().drop("run_id", "input_snapshot_id", "produced_at", strict=False)
    verdicts = world.platform.ledger.verdicts(RUN)
    again = reproduce(world.platform, RUN)
    state = world.platform.ledger.run(RUN).state.value
    rollback(world.platform, RUN)
    return {
        "remote": is_remote(),
        "digests": world.digests(RUN),
        "rows": rows.height,
        "gates": sorted({(one.gate, one.passed) for one in verdicts}),
        "reproduced": again.outcome.value,
        "state": state,
        "after": world.platform.ledger.run(RUN).state.value,
        "left": world.rows().height,
        "verified": [one.what for one in verify(world.platform, data=True).everything],
        "master": world.platform.spark.session(Mode.BACKFILL).conf.get("spark.master"),
    }


def session() -> dict[str, Any]:
    """What a session of a mode may do, and what is seen of a transform."""
    world = opened()
    initialise(world.platform)
    warehouse = Path(world.platform.settings.catalog["warehouse"].removeprefix("file://"))
    warehouse.mkdir(parents=True, exist_ok=True)
    outside = world.home.parent / f"outside-{world.home.name}"
    (outside / "there").mkdir(parents=True)
    (outside / "there" / "rows.csv").write_text("a\n1\n")
    spark = world.platform.spark.session(Mode.BACKFILL)
    frame = spark.range(3)
    found: dict[str, Any] = {
        "inside": tried(lambda: written(spark, frame, f"file://{warehouse}/numbers")),
        "read outside": tried(lambda: spark.read.csv(f"file://{outside}/there", header=True).count()),
        "write outside": tried(lambda: frame.write.parquet(f"file://{outside}/numbers")),
        "left outside": sorted(one.name for one in outside.iterdir()),
        "builder": SparkSession.builder.getOrCreate().conf.get("spark.backfill.mode"),
        "success file": (warehouse / "numbers" / "_SUCCESS").exists(),
        "tasks": tasks_at_once(spark),
        "worker": worker_of(spark),
        "secrets": sorted(name for name in worker_of(spark)["names"] if name.startswith("BACKFILL_SINKS")),
    }
    with computing_otherwise(spark):
        found["worker elsewhere"] = worker_of(spark)
    table = spark.range(2).select("id", F.lit(date(2020, 1, 1)).alias("day"), F.lit("rand(1)").alias("text"))
    found["unsteady"] = {one: sorted(set(unsteady(table.select(F.expr(one).alias("x"))))) for one in UNSTEADY}
    found["unsteady"] |= {name: sorted(set(unsteady(frame))) for name, frame in unsteady_frames(spark, table).items()}
    silent = world.platform.spark.session(Mode.RECONCILIATION)
    found["reconciliation"] = refused_write(lambda: silent.range(3).write.parquet(f"file://{warehouse}/never"))
    found["reconciliation wrote"] = (warehouse / "never").exists()
    return found


def unsteady_frames(spark: SparkSession, table: DataFrame) -> dict[str, DataFrame]:
    """Return frames of which the expression is not in what a client asks for, or by another name; and some that only look like one."""
    table.select("id", F.rand().alias("x")).createOrReplaceTempView("of_chance")
    spark.range(4).sample(0.5, seed=1).createOrReplaceTempView("sampled")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW identified AS SELECT id, uuid() AS x FROM of_chance")
    looks_like = table.select(F.lit("rand(1)").alias("text"), F.col("id").alias("rand(3)"))
    return {
        "sample": table.sample(0.5, seed=1),
        "sample by": table.sampleBy("id", {0: 0.5}, seed=1),
        "clock as a function": table.select(F.unix_timestamp().alias("x")),
        "view": spark.table("of_chance"),
        "view in a text": spark.sql("SELECT id, x FROM of_chance"),
        "view of a view": spark.sql("SELECT x FROM identified"),
        "sampled view": spark.table("sampled"),
        "text": looks_like.where("`rand(3)` > 0"),
        "text in a query": spark.sql("SELECT upper('rand(1)'), :said AS said", args={"said": "uuid()"}),
        "function of Python": table.select(F.udf(user, "string")("text").alias("x")),
    }


def user(text: str) -> str:
    return text


def tried(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except Exception as error:  # noqa: BLE001 - whichever it is, it is said
        return f"refused: {type(error).__name__}"


def refused_write(act: Callable[[], Any]) -> bool:
    try:
        act()
    except Exception as error:  # noqa: BLE001 - whichever it is, it is judged
        return is_refused_write(error)
    return False


def written(spark: SparkSession, frame: DataFrame, place: str) -> int:
    frame.write.mode("overwrite").parquet(place)
    return spark.read.parquet(place).count()


def worker_of(spark: SparkSession) -> dict[str, Any]:
    """Return what Python code of a product finds in a worker."""

    def say(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        said = {"zone": os.environ.get("TZ"), "seed": os.environ.get("PYTHONHASHSEED"), "names": sorted(os.environ)}
        said["folder"] = str(Path.cwd())
        yield pa.RecordBatch.from_pydict({"said": [json.dumps(said)]})

    [row] = spark.range(0, 1, 1, 1).mapInArrow(say, "said string").collect()
    answer: dict[str, Any] = json.loads(row["said"])
    return answer


def approved() -> dict[str, Any]:
    """Make a run that `backfill run` can compute."""
    return announced(made())


def another() -> dict[str, Any]:
    """Make one more run of an installation that is there."""
    return announced(opened())


def announced(world: World) -> dict[str, Any]:
    """Plan a run, have it approved, and let Dagster know of it."""
    record = world.approved(manifest(world))
    with world.dagster() as instance:
        announce_approval(world.platform, instance, record)
    return {"run": record.run_id}


def staged() -> dict[str, Any]:
    """Compute and gate a run that is approved."""
    world = opened()
    world.stage(world.platform.ledger.run(RUN))
    record = world.platform.ledger.run(RUN)
    return {"state": record.state.value, "why": record.state_reason, "host": socket.gethostname()}


def result() -> dict[str, Any]:
    """Say what became of a run, and whether everything on record is as it was written."""
    world = opened()
    return {
        "state": world.platform.ledger.run(RUN).state.value,
        "digests": world.digests(RUN),
        "rows": world.rows().height,
        "runs": sorted(set(world.rows()["run_id"])),
        "snapshots": snapshots_of(world),
        "publications": [one.state.value for one in world.platform.ledger.publications(RUN)],
        "verified": [f"{one.where}: {one.what}" for one in verify(world.platform, data=True).everything],
    }


def snapshots_of(world: World) -> int:
    """Return how many snapshots of the target say that they are the run's."""
    snapshots = world.platform.lakehouse.table(TARGET).snapshots()
    return sum(one.summary is not None and one.summary.get(RUN_PROPERTY) == RUN for one in snapshots)


def real() -> dict[str, Any]:
    """Stage and gate the whole of a real log, which the variable ELSEWHERE_LOG names."""
    settings = load_settings()
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    load_delivery(platform, enforcement.EVENTS, enforcement.from_file(Path(os.environ["ELSEWHERE_LOG"])), 0.0)
    world = World(platform, settings.home, date(2000, 1, 1), date(2013, 6, 30))
    record = world.validated(world.manifest(RUN))
    return {
        "state": record.state.value,
        "why": record.state_reason,
        "digests": world.digests(RUN),
        "rows": sum(chunk.rows or 0 for chunk in platform.ledger.chunks(RUN)),
    }


def year() -> dict[str, Any]:
    """Make a run of the whole year, a month a batch, whose batches read one and a half times what its limit allows in ten minutes."""
    world, limits = made(), {"maxChunksPerJob": 1, "maxRunsInParallel": 2}
    plan = preview(world.platform, world.manifest("unpaced", target=world.scope(START, END), limits=limits))
    pace = sum(chunk.reads.rows for chunk in plan.chunks) // 15
    world.approved(world.manifest(RUN, target=world.scope(START, END), limits=limits | {"maxRowsPerMinute": pace}))
    return {"chunks": len(plan.chunks), "pace": pace}


def part() -> dict[str, Any]:
    """Compute every other chunk of a run, from the first or the second on, as ELSEWHERE_PART says: another process has the others."""
    world = opened()
    keys = [chunk.key for chunk in world.platform.ledger.run(RUN).plan.chunks][int(os.environ["ELSEWHERE_PART"]) :: 2]
    with stopping.launched(world.platform, RUN):
        done = stage_chunks(world.platform, RUN, keys)
    return {"computed": done.computed, "failed": done.failed}


def batches() -> dict[str, Any]:
    """Say when each batch of a run was computed, and how many rows it has read."""
    attempts = opened().platform.ledger.attempts(RUN)
    return {
        "batches": [
            (one.started_at.isoformat(), one.ended_at.isoformat(), json.loads(one.measures)["range_rows"])
            for one in attempts
            if one.ended_at is not None
        ]
    }


def refused() -> dict[str, Any]:
    """Stage a run whose workers are of other code; say what is refused, and what was written."""
    world = made()
    record = world.approved(manifest(world))
    try:
        world.stage(record)
        said = ""
    except Refused as refusal:
        said = str(refusal)
    data = Path(world.platform.lakehouse.location(TARGET).removeprefix("file://")) / "data"
    return {
        "said": said,
        "files": len(list(data.rglob("*.parquet"))),
        "state": world.platform.ledger.run(RUN).state.value,
    }


if __name__ == "__main__":
    known = (whole, session, approved, another, staged, result, refused, real, year, part, batches)
    done = {one.__name__: one for one in known}[sys.argv[1]]()
    print("FOUND " + json.dumps(done, default=str))
