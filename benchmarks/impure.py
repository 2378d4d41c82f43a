"""Transforms whose rows depend on more than the plan, and some that only look so: how many of which are caught, and when.

    python -m benchmarks.impure

Runs each on a small table until its gates have judged, and prints by which look it was caught: before anything is staged,
by an expression of its plan, or when a chunk is computed again in other surroundings. Another way to be impure is a line in
`IMPURE`, with a function of inputs and context that returns the rows of the table.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from time import time as seconds_now
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets.declarations import finding
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import Instant, Published
from backfill_assets.declarations.target import PURITY_GATE, Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.staging.executor import stage_chunks
from benchmarks.small_table import serves
from manifests.chunks import Chunking
from manifests.errors import TransformRefused
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.ledger.facade import Verdict
from resources.settings import load_settings

SOURCE, TABLE = "bronze.meter_events", "silver.meter_days"
NAMES = ("ann", "bob", "cem", "dora", "eve", "finn", "gil", "hana")
EVENTS_A_DAY = 3
VARIABLE = "METER_FACTOR"
Transform = Callable[[Inputs, TransformContext], DataFrame]


class MeterEvent(pa.DataFrameModel):
    """An event of a meter."""

    name: str = pa.Field(description="Whose.")
    at: Instant = pa.Field(description="When.")
    value: pl.Int64 = pa.Field(description="How much.")
    note: str = pa.Field(description="What was said.")


class MeterDay(Published):
    """What a meter measured on a day."""

    name: str = pa.Field(description="Whose.")
    day: pl.Date = pa.Field(description="When.")
    value: pl.Int64 = pa.Field(nullable=True, description="How much.")
    label: str = pa.Field(nullable=True, description="What was said.")


def _declared(transform: Transform, **changes: Any) -> Product:
    target = TargetTable(
        name=TABLE,
        description="A row a meter and day.",
        model=MeterDay,
        key=("name", "day"),
        day_column="day",
        chunking=Chunking.MONTH,
        chunks_from="2020-01",
        chunks_until="2020-12",
        source=SOURCE,
        source_time_column="at",
        transform="meter_days",
        versions={"1": TransformVersion(transform)},
        owners=("team:tests",),
    )
    events = InputTable(SOURCE, "Events of meters.", MeterEvent, ("team:tests",), partition_by="at")
    return Product("meters", (events,), (replace(target, **changes),), code=("backfill_assets.products.enforcement",))


# --- what is tried ----------------------------------------------------------------------------------------------------


def day_of() -> Any:
    return F.to_date("at").alias("day")


def daily(inputs: Inputs, *, value: Any = None, label: Any = None) -> DataFrame:
    """The rows of the table by what is made of a meter's events of a day."""
    return inputs.source.groupBy("name", day_of()).agg(
        (F.sum("value") if value is None else value).cast("bigint").alias("value"),
        (F.max("note") if label is None else label).cast("string").alias("label"),
    )


def labelled(inputs: Inputs, label: Any) -> DataFrame:
    """The rows of the table with a label of each row, or of all."""
    return daily(inputs).withColumn("label", (label if hasattr(label, "cast") else F.lit(str(label))).cast("string"))


def by_python(inputs: Inputs, make: Callable[[pd.DataFrame], pd.Series]) -> DataFrame:
    """The rows of the table with a label that a Python worker makes."""

    def label(frames: Any) -> Any:
        for frame in frames:
            yield frame.assign(label=make(frame))

    return daily(inputs).mapInPandas(label, "name string, day date, value bigint, label string")


def ranked(inputs: Inputs, function: Any) -> DataFrame:
    """The rows of the table by a window over events that tie."""
    ties = Window.partitionBy("name", F.to_date("at")).orderBy(F.to_date("at"))
    rows = inputs.source.withColumn("_made", function.over(ties))
    return daily(Inputs(rows, None), label=F.max(F.when(F.col("note").endswith("0"), F.col("_made").cast("string"))))


def carried(inputs: Inputs, _: TransformContext) -> DataFrame:
    """What has come in so far, by what is read: a state that lasts, without the earlier rows that it needs."""
    so_far = Window.partitionBy("name").orderBy("day")
    return daily(inputs).withColumn("value", F.sum("value").over(so_far))


def carried_on(inputs: Inputs, context: TransformContext) -> DataFrame:
    """The same of a target that declares its look-back."""
    if inputs.look_back is None:
        return carried(inputs, context)
    columns = ("name", "at", "value", "note")
    return carried(Inputs(inputs.source.select(*columns).unionByName(inputs.look_back.select(*columns)), None), context)


COUNTED = [0]


def counted(inputs: Inputs, _: TransformContext) -> DataFrame:
    COUNTED[0] += 1
    return labelled(inputs, COUNTED[0])


REMEMBERED: dict[str, str] = {}


def remembered(inputs: Inputs, context: TransformContext) -> DataFrame:
    """What the first call of a process was told."""
    return labelled(inputs, REMEMBERED.setdefault(context.run_id, str(len(REMEMBERED) + context.slots[-1])))


def numbered_in_partition(inputs: Inputs, _: TransformContext) -> DataFrame:
    def number(frames: Any) -> Any:
        count = 0
        for frame in frames:
            yield frame.assign(label=[str(count + place) for place in range(len(frame))])
            count += len(frame)

    return daily(inputs).mapInPandas(number, "name string, day date, value bigint, label string")


def counted_in_worker(inputs: Inputs, _: TransformContext) -> DataFrame:
    def number(frames: Any) -> Any:
        import sys

        for frame in frames:
            sys.meters_seen = getattr(sys, "meters_seen", 0) + len(frame)  # type: ignore[attr-defined]
            yield frame.assign(label=str(sys.meters_seen))  # type: ignore[attr-defined]

    return daily(inputs).mapInPandas(number, "name string, day date, value bigint, label string")


def first_of_group(inputs: Inputs, _: TransformContext) -> DataFrame:
    def first(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.head(1)[["name", "day", "value", "note"]].rename(columns={"note": "label"})

    events = inputs.source.withColumn("day", F.to_date("at"))
    return events.groupBy("name", "day").applyInPandas(first, "name string, day date, value bigint, label string")


def fetched(port: int) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        return connection.recv(100).decode()


SERVED: list[int] = []
"""The port at which a rate is answered."""


def fetched_by_worker(inputs: Inputs, _: TransformContext) -> DataFrame:
    port, fetch = SERVED[0], fetched

    def label(frame: pd.DataFrame) -> pd.Series:
        import socket

        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            return pd.Series([connection.recv(100).decode()] * len(frame), index=frame.index)

    del fetch
    return by_python(inputs, label)


def limited(inputs: Inputs, _: TransformContext) -> DataFrame:
    return daily(Inputs(inputs.source.limit(500), None))


def deduplicated(inputs: Inputs, _: TransformContext) -> DataFrame:
    rows = inputs.source.withColumn("day", F.to_date("at")).dropDuplicates(["name", "day"])
    return rows.select("name", "day", "value", F.col("note").alias("label"))


def asked_before(inputs: Inputs, _: TransformContext) -> DataFrame:
    """A job of the transform's own picks the row that comes first."""
    row = inputs.source.first()
    assert row is not None
    return labelled(inputs, row["note"])


def doubles() -> Any:
    return F.pow(F.lit(10.0), F.col("value") % 17) / 7


def constant(frame: pd.DataFrame, value: object) -> pd.Series:
    return pd.Series([str(value)] * len(frame), index=frame.index)


STATIC, COMPUTED = "before it is staged", "when it is computed again"
IMPURE: dict[str, tuple[str, Transform]] = {
    # clocks of Spark
    "current_timestamp": (STATIC, lambda i, _: labelled(i, F.current_timestamp())),
    "current_date": (STATIC, lambda i, _: labelled(i, F.current_date())),
    "now in SQL": (STATIC, lambda i, _: labelled(i, F.expr("now()"))),
    "localtimestamp": (STATIC, lambda i, _: labelled(i, F.localtimestamp())),
    "unix_timestamp": (STATIC, lambda i, _: labelled(i, F.unix_timestamp())),
    "today in words": (STATIC, lambda i, _: labelled(i, F.lit("today").cast("date"))),
    "now in words": (STATIC, lambda i, _: labelled(i, F.to_timestamp(F.lit(" Now ")))),
    "today in a text that is parsed": (STATIC, lambda i, _: labelled(i, F.expr("DATE 'today'"))),
    "now in a text with escapes": (
        STATIC,
        lambda i, _: daily(i).drop("label").selectExpr("*", "CAST(TIMESTAMP_NTZ\n'\\u006eow' AS STRING) AS label"),
    ),
    "tomorrow in a condition": (STATIC, lambda i, _: daily(i).where("day < DATE /* the next */ 'Tomorrow UTC'")),
    "yesterday in a filter": (STATIC, lambda i, _: daily(i).where(F.col("day") < F.lit("yesterday"))),
    "tomorrow in two parts": (STATIC, lambda i, _: labelled(i, F.concat(F.lit("to"), F.lit("morrow")).cast("date"))),
    "current date in a filter": (STATIC, lambda i, _: daily(i).where(F.col("day") < F.current_date())),
    # chance of Spark
    "rand": (STATIC, lambda i, _: labelled(i, F.rand())),
    "rand with a seed": (STATIC, lambda i, _: labelled(i, F.rand(42))),
    "randn": (STATIC, lambda i, _: labelled(i, F.randn())),
    "uuid": (STATIC, lambda i, _: labelled(i, F.expr("uuid()"))),
    "shuffle": (STATIC, lambda i, _: labelled(i, F.shuffle(F.split(F.lit("a b c d e f"), " ")))),
    "sample": (STATIC, lambda i, _: daily(Inputs(i.source.sample(0.5, seed=1), None))),
    "randstr": (STATIC, lambda i, _: labelled(i, F.expr("randstr(5)"))),
    # places
    "monotonically_increasing_id": (STATIC, lambda i, _: labelled(i, F.monotonically_increasing_id())),
    "spark_partition_id": (STATIC, lambda i, _: labelled(i, F.spark_partition_id())),
    "input_file_name": (
        STATIC,
        lambda i, _: daily(Inputs(i.source.withColumn("note", F.input_file_name()), None)),
    ),
    "current_user": (STATIC, lambda i, _: labelled(i, F.current_user())),
    "reflection": (STATIC, lambda i, _: labelled(i, F.expr("reflect('java.lang.System', 'nanoTime')"))),
    # the order of rows
    "first": (COMPUTED, lambda i, _: daily(i, label=F.first("note"))),
    "last": (COMPUTED, lambda i, _: daily(i, label=F.last("note"))),
    "any_value": (COMPUTED, lambda i, _: daily(i, label=F.any_value("note"))),
    "collect_list": (COMPUTED, lambda i, _: daily(i, label=F.array_join(F.collect_list("note"), ","))),
    "listagg": (COMPUTED, lambda i, _: daily(i, label=F.expr("listagg(note, ',')"))),
    "row_number over ties": (COMPUTED, lambda i, _: ranked(i, F.row_number())),
    "lag over ties": (COMPUTED, lambda i, _: ranked(i, F.lag("note"))),
    "max_by over ties": (COMPUTED, lambda i, _: daily(i, label=F.max_by("note", F.to_date("at")))),
    "dropDuplicates": (COMPUTED, deduplicated),
    "limit": (COMPUTED, limited),
    "first row of a job": (COMPUTED, asked_before),
    "first row of a pandas group": (COMPUTED, first_of_group),
    # sums that are not associative
    "sum of doubles": (COMPUTED, lambda i, _: daily(i, label=F.sum(doubles()))),
    "mean of doubles": (COMPUTED, lambda i, _: daily(i, label=F.avg(doubles()))),
    "deviation of doubles": (COMPUTED, lambda i, _: daily(i, label=F.stddev(doubles()))),
    # how many partitions, which batch
    "row number in its partition": (COMPUTED, numbered_in_partition),
    "number of shuffle partitions": (
        COMPUTED,
        lambda i, _: labelled(i, i.source.sparkSession.conf.get("spark.sql.shuffle.partitions")),
    ),
    "number of read partitions": (COMPUTED, lambda i, _: labelled(i, i.source.rdd.getNumPartitions())),
    "chunks of the batch": (COMPUTED, lambda i, c: labelled(i, len(c.chunks))),
    "a state without its look-back": (COMPUTED, carried),
    "slots of the batch": (COMPUTED, lambda i, c: labelled(i, c.slots[-1])),
    # Python, while the frame is built
    "datetime.now": (COMPUTED, lambda i, _: labelled(i, datetime.now(UTC))),
    "year of now": (COMPUTED, lambda i, _: labelled(i, datetime.now(UTC).year)),
    "date.today": (COMPUTED, lambda i, _: labelled(i, date.today())),
    "day by time": (COMPUTED, lambda i, _: labelled(i, int(seconds_now() // 86_400))),
    "strftime": (COMPUTED, lambda i, _: labelled(i, time.strftime("%Y"))),
    "random": (COMPUTED, lambda i, _: labelled(i, random.random())),
    "numpy's random": (COMPUTED, lambda i, _: labelled(i, np.random.default_rng().random())),
    "uuid4": (COMPUTED, lambda i, _: labelled(i, uuid.uuid4())),
    "environment": (COMPUTED, lambda i, _: labelled(i, os.environ[VARIABLE])),
    "network": (COMPUTED, lambda i, _: labelled(i, fetched(SERVED[0]))),
    "another program": (COMPUTED, lambda i, _: labelled(i, subprocess.check_output(["uname", "-r"]))),
    "naive datetime": (COMPUTED, lambda i, _: labelled(i, datetime(2020, 1, 1).timestamp())),
    "host's name": (COMPUTED, lambda i, _: labelled(i, socket.gethostname())),
    "process id": (COMPUTED, lambda i, _: labelled(i, os.getpid())),
    "global counter": (COMPUTED, counted),
    # Python, in workers of Spark
    "hash of a worker": (COMPUTED, lambda i, _: by_python(i, lambda f: f["name"].map(lambda one: str(hash(one))))),
    "order of a set": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, ",".join(set("abcdefgh"))))),
    "clock of a worker": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, date.today()))),
    "pandas' clock": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, pd.Timestamp.now().date()))),
    "random of a worker": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, random.random()))),
    "environment of a worker": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, os.environ.get("HOME")))),
    "zone of a worker": (
        COMPUTED,
        lambda i, _: by_python(i, lambda f: constant(f, datetime.fromtimestamp(86_400 * 18_300))),
    ),
    "process of a worker": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, os.getpid()))),
    "network of a worker": (COMPUTED, fetched_by_worker),
    "state of a worker": (COMPUTED, counted_in_worker),
    "size of a batch": (COMPUTED, lambda i, _: by_python(i, lambda f: constant(f, len(f)))),
}
"""What is impure, by what it does wrong: when it is caught, and the transform."""


def ordered_rows(inputs: Inputs, _: TransformContext) -> DataFrame:
    total = Window.partitionBy("name", F.to_date("at")).orderBy("at", "note")
    rows = inputs.source.withColumn("_made", F.row_number().over(total))
    return daily(Inputs(rows, None), label=F.max(F.when(F.col("_made") == 1, F.col("note"))))


def told_how_long_it_took(inputs: Inputs, _: TransformContext) -> DataFrame:
    began = time.perf_counter()
    rows = daily(inputs)
    assert time.perf_counter() >= began
    assert os.environ.get(VARIABLE)
    assert datetime.now(UTC)
    return rows


PURE: dict[str, Transform] = {
    "sums": lambda i, _: daily(i),
    "the first of what is alike": lambda i, _: daily(i, label=F.first(F.col("name"))),
    "a list in order": lambda i, _: daily(i, label=F.array_join(F.sort_array(F.collect_list("note")), ",")),
    "a window over what never ties": ordered_rows,
    "exact means": lambda i, _: daily(i, label=F.avg(F.col("value").cast("decimal(20,4)"))),
    "the run's clock": lambda i, c: labelled(i, c.run_clock),
    "a seeded generator": lambda i, _: labelled(i, random.Random(7).random()),
    "an aware datetime": lambda i, _: labelled(i, datetime(2020, 1, 1, tzinfo=UTC).timestamp()),
    "a clock of which nothing is kept": told_how_long_it_took,
    "today in a text of a text": lambda i, _: labelled(i, F.expr("upper(\"DATE 'today'\") -- DATE 'today'")),
    "the epoch in a text that is parsed": lambda i, _: labelled(i, F.expr("DATE 'epoch'")),
    "today as a text": lambda i, _: labelled(i, F.lit("today")),
    "the epoch in words": lambda i, _: labelled(i, F.lit("epoch").cast("date")),
    "a literal that looks like a function": lambda i, _: labelled(i, F.lit("rand() now()")),
    "pandas on rows": lambda i, _: by_python(i, lambda f: f["name"].str.upper()),
    "a set in order": lambda i, _: by_python(i, lambda f: constant(f, ",".join(sorted(set("hgfedcba"))))),
    "a hash of Spark": lambda i, _: labelled(i, F.xxhash64("name", "day")),
}


# --- the installation -------------------------------------------------------------------------------------------------


@contextmanager
def answering() -> Iterator[int]:
    """Answer each connection with a rate, and yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:  # it was closed
                    return
                with connection:
                    connection.sendall(b"1.25")

        threading.Thread(target=answer, daemon=True).start()
        yield server.getsockname()[1]


@contextmanager
def installed(home: Path, **settings: Any) -> Iterator[Platform]:
    """Yield an installation with three months of events, of which several share an instant."""
    found = Platform.of(load_settings(home=home, **settings))
    with mock.patch.object(finding, "find_products", serves(_declared(lambda i, _: daily(i)))):
        initialise(found)
        found.spark  # noqa: B018 - which modules its workers import is asked of the products
    rows = []
    for offset in range(91):
        for number, name in enumerate(NAMES):
            at = datetime(2020, 1, 1, 12, tzinfo=UTC) + timedelta(days=offset)
            rows += [
                {
                    "name": name,
                    "at": at,
                    "value": 1000 * offset + 37 * number + event,
                    "note": f"{offset}-{number}-{event}",
                }
                for event in range(EVENTS_A_DAY)
            ]
    schema = schema_to_pyarrow(found.lakehouse.table(SOURCE).schema())
    found.lakehouse.append(SOURCE, [arrow.Table.from_pylist(rows, schema=schema)], {LOAD_PROPERTY: "events"})
    with answering() as port:
        SERVED[:] = [port]
        yield found


_numbers = iter(range(10_000))


def ran(platform: Platform, transform: Transform, *, declared: Mapping[str, Any] | None = None, **changes: Any) -> str:
    """Run a transform until it is judged, and return the run's id; `changes` are its manifest's, `declared` the target's.

    Raises:
        TransformRefused: if it is caught before anything is staged.
    """
    product = _declared(transform, **(declared or {}))
    with (
        mock.patch.object(finding, "find_products", serves(product)),
        mock.patch.dict(os.environ, {VARIABLE: "3"}),
    ):
        return _ran(Platform(platform.settings, platform.ledger, platform.evidence, platform.spark), changes)


def _ran(mine: Platform, changes: Mapping[str, Any]) -> str:
    run_id = f"run-{next(_numbers)}"
    manifest: dict[str, Any] = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ada",
        "reason": "is it pure",
        "source": {"table": SOURCE},
        "transform": {"name": "meter_days", "version": "1"},
        "target": {"table": TABLE, "publishRange": {"start": "2020-01-01", "end": "2020-03-31"}},
        "development": True,
    }
    record = plan_run(mine, manifest_from({**manifest, **changes}))
    mine.ledger.decide(run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash)
    outcome = stage_chunks(mine, run_id, [chunk.key for chunk in record.plan.chunks])
    assert not outcome.failed, outcome.failed
    gate_chunks(mine, run_id)
    gate_run(mine, run_id)
    return run_id


def verdict_of(platform: Platform, run_id: str) -> Verdict:
    (found,) = [one for one in platform.ledger.verdicts(run_id) if one.gate == PURITY_GATE]
    return found


def main() -> None:
    """Run all of them, and print what was caught."""
    told = Table("transform", "caught", "seconds", "what is said")
    caught = dict.fromkeys((STATIC, COMPUTED, "not"), 0)
    with tempfile.TemporaryDirectory() as folder, installed(Path(folder) / "home") as platform:
        for name, transform in [*((name, one) for name, (_, one) in IMPURE.items()), *PURE.items()]:
            began = time.perf_counter()
            try:
                verdict = verdict_of(platform, ran(platform, transform))
                when, said = ("not" if verdict.passed else COMPUTED), verdict.summary
            except TransformRefused as refusal:
                when, said = STATIC, refusal.problems[0].what
            caught[when] += name in IMPURE
            expected = "not" if name in PURE else IMPURE[name][0]
            unlike = "" if when == expected else f", expected: {expected}"
            told.add_row(name, f"{when}{unlike}", f"{time.perf_counter() - began:.1f}", said)
    console = Console(width=200)
    console.print(told)
    console.print(f"{len(IMPURE)} impure transforms: " + "; ".join(f"{one} {count}" for one, count in caught.items()))


if __name__ == "__main__":
    main()
