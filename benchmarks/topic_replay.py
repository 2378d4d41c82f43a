"""What a replay of a topic costs: landed, computed, gated and published, beside a bare Spark read, transform and write of the same range.

    PYTHONPATH=tests python -m benchmarks.topic_replay [--messages 500000] [--rounds 2] [--chunkings 100000,10000] [--bootstrap HOST:PORT]

A broker is started for it unless one is named. Messages are written in 12 partitions, in transactions, of which each tenth is aborted, with
keys that repeat; the topic is compacted before anything is read, and then left as it is. The bare job reads with a Python data source, one
input partition a range and the consumer of this project, and writes one zstd file a day. Both run in the same Spark session, the bare job
before and after each replay, and both run once unmeasured before: the JVM compiles, and Spark's Python workers start (of the replay, the
first `--warm-up` offsets of each partition). Every round but the first computes fewer chunks together, and the digests of its chunks are compared with those of the first. With
`--live`, somebody writes to the topic and somebody reads it live meanwhile: what a record takes from one to the other is told by part of the
replay, beside what it takes before (and whether an offset of any group has moved). With `--chunkings`, the same range is landed once more in loads of so many positions, and every digest of the
rows is compared. Prints seconds, messages a second, the ratio, the load of the machine, and peak memory.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

import backfill_assets as ba
from backfill_assets.extraction import topic_records
from backfill_assets.extraction.brokers import Brokers, reader_settings
from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.ingestion.landing import land
from backfill_assets.ingestion.topic_ranges import Wanted
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.staging.executor import stage_chunks
from backfill_assets.worker.digest import RowDigest
from benchmarks import topic_orders
from benchmarks.installation import PeakMemory
from benchmarks.live_topic import LiveTopic
from manifests.canonical import sha256_of
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.reading import manifest_from
from resources.settings import load_settings

PARTITIONS = 12
FIRST_MS = 1_767_225_600_000  # 2026-01-01
MONTH_MS = 31 * 86_400_000
A_TRANSACTION = 5_000
QUIET_SECONDS = 10.0


def written(bootstrap: str, topic: str, messages: int) -> None:
    """Write so many messages, of which a tenth is in aborted transactions; a key in twenty repeats the one before."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewTopic,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {
        "cleanup.policy": "compact", "segment.bytes": str(16 << 20), "min.cleanable.dirty.ratio": "0.01",
        "max.message.bytes": str(8 << 20),
    }  # fmt: skip
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=settings)])[topic].result(30)
    time.sleep(1)
    producer = Producer({
        "bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer", "linger.ms": 20, "batch.size": 1 << 20,
        "queue.buffering.max.messages": 2_000_000, "compression.type": "lz4",
    })  # fmt: skip
    producer.init_transactions(60)
    chance = random.Random(1)
    for begin in range(0, messages, A_TRANSACTION):
        producer.begin_transaction()
        for number in range(begin, min(begin + A_TRANSACTION, messages)):
            order = number - (number % 20 == 0) * 12
            value = json.dumps(
                {
                    "status": ("NEW", "PAID", "SENT")[number % 3],
                    "cents": chance.randrange(100_000),
                    "note": "as it was said",
                }
            )
            headers = [("trace", b"%d" % number)] if number % 10 == 0 else None
            producer.produce(
                topic,
                value,
                f"order-{order}",
                number % PARTITIONS,
                timestamp=FIRST_MS + number * MONTH_MS // messages,
                headers=headers,
            )
        producer.flush(60)  # or an abort would purge what was never sent
        if (begin // A_TRANSACTION) % 10 == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    time.sleep(20)  # compaction of the segments that are closed
    resource = ConfigResource(ResourceType.TOPIC, topic)
    for name, value in (("cleanup.policy", "delete"), ("retention.ms", "-1")):
        resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin.incremental_alter_configs([resource])[resource].result(30)
    time.sleep(2)


_KINDS = arrow.schema(
    [
        ("log_partition", arrow.int32()),
        ("log_offset", arrow.int64()),
        ("record_time", arrow.timestamp("us", "UTC")),
        ("record_time_type", arrow.string()),
        ("record_key", arrow.binary()),
        ("record_value", arrow.binary()),
        ("record_headers", arrow.list_(arrow.struct([("name", arrow.string()), ("value", arrow.binary())]))),
        ("load_id", arrow.string()),
    ]
)
"""The columns as Spark takes them."""


class _Range(InputPartition):
    def __init__(self, partition: int, start: int, until: int) -> None:
        self.partition, self.start, self.until = partition, start, until


class _Reader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self._options = dict(options)

    def partitions(self) -> list[InputPartition]:
        return [_Range(*one) for one in json.loads(self._options["ranges"])]

    def read(self, partition: Any) -> Iterator[arrow.RecordBatch]:
        from confluent_kafka import Consumer

        client = {"bootstrap.servers": self._options["bootstrap"], "log_level": 0}
        consumer = Consumer(reader_settings(client) | topic_records.Pace().fetching())
        task = topic_records.RangeTask("", partition.partition, partition.start, partition.until, "", "bare", 1 << 60)
        for batch in topic_records._Records(
            consumer, self._options["topic"], task, 60.0, client, [], topic_records.Pace()
        ).batches():
            yield from topic_records._columns(batch, task, _KINDS, "")[0].combine_chunks().to_batches()
        consumer.close()


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bare_topic"

    def schema(self) -> str:
        return (
            "log_partition int, log_offset bigint, record_time timestamp, record_time_type string, record_key binary, "
            "record_value binary, record_headers array<struct<name: string, value: binary>>, load_id string"
        )

    def reader(self, schema: Any) -> DataSourceReader:
        del schema
        return _Reader(self.options)


def bare(spark: SparkSession, bootstrap: str, topic: str, ranges: list[list[int]], folder: Path) -> float:
    """Read, transform, sort and write the range, a folder a day; return seconds."""
    begun = time.monotonic()
    rows = spark.read.format("bare_topic").options(bootstrap=bootstrap, topic=topic, ranges=json.dumps(ranges)).load()
    decoded = topic_orders.decoded(rows).repartition("day").sortWithinPartitions("day", "log_partition", "log_offset")
    decoded.write.partitionBy("day").parquet(f"file://{folder}")
    took = time.monotonic() - begun
    shutil.rmtree(folder)
    return took


def installation(
    home: Path, bootstrap: str, topic: str, limits: ba.TopicLimits | None = None, beside: Sequence[Path] = ()
) -> Platform:
    """Return an installation of the topic; its sessions reach folders `beside` its warehouse."""
    for one in beside:
        one.mkdir(parents=True)
    settings = load_settings(
        home=home, table_folders=[str(one) for one in beside], topics={"orders": {"bootstrap_servers": bootstrap}}
    )
    platform = Platform.of(settings, [topic_orders.product(topic, limits)])
    initialise(platform)
    return platform


def _last_day(platform: Platform) -> date:
    """Return the last day that has landed records."""
    loads = platform.lakehouse.landed_loads(topic_orders.LOG)
    return max(one.last_time for load in loads for one in load.landed.ranges if one.last_time is not None).date()


def replayed(
    platform: Platform, run_id: str, wanted: Wanted | None = None, together: int | None = None
) -> dict[str, float]:
    """Land what is wanted (what is new, if None), plan, compute, gate and publish it, so many chunks together; return seconds by part."""
    parts: dict[str, float] = {}
    at = time.monotonic()

    def done(part: str) -> None:
        nonlocal at
        parts[part], at = time.monotonic() - at, time.monotonic()

    land(platform, platform.products.topic("orders"), wanted or Wanted(new=True))
    done("land")
    manifest = {
        "runId": run_id, "kind": "BACKFILL", "requestedBy": "ana", "reason": "a replay of the topic, measured",
        "source": {"table": topic_orders.LOG}, "transform": {"name": "order_events", "version": "1"},
        "target": {"table": topic_orders.EVENTS, "publishRange": {"start": "2026-01-01", "end": str(_last_day(platform))}},
        "development": True,
    } | ({} if together is None else {"limits": {"maxChunksPerJob": together}})  # fmt: skip
    record = plan_run(platform, manifest_from(manifest))
    platform.ledger.decide(run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash)
    done("plan")
    stage_chunks(platform, run_id, [chunk.key for chunk in record.plan.chunks])
    done("stage")
    gate_chunks(platform, run_id)
    gate_run(platform, run_id)
    done("gate")
    found = platform.ledger.run(run_id)
    if found.state is not RunState.VALIDATED:
        raise SystemExit(f"{found.state}: {found.state_reason}")
    publish(platform, run_id)
    done("publish")
    return parts


def digest(platform: Platform) -> str:
    """Return the SHA-256 of every landed row but for its load, in the order of the log."""
    table = platform.lakehouse.table(topic_orders.LOG)
    found: RowDigest | None = None
    for partition in range(PARTITIONS):
        rows = pl.from_arrow(table.scan(row_filter=f"log_partition = {partition}").to_arrow().drop_columns(["load_id"]))
        assert isinstance(rows, pl.DataFrame)
        found = RowDigest(dict(rows.schema)) if found is None else found
        found.update(rows.sort("log_offset"))
    return "" if found is None else found.result()


def _quiet(live: LiveTopic | None) -> tuple[float, float]:
    """Return the instants between which nothing but the live reader reads."""
    begun = time.time()
    if live is not None:
        time.sleep(QUIET_SECONDS)
    return begun, time.time()


def _tell_lags(live: LiveTopic | None, quiet: tuple[float, float], begun: float, parts: dict[str, float]) -> None:
    """Print what a live record took before a replay that has begun at an instant, in each part of it, and in all of it."""
    if live is None:
        return
    spans, at = {"without": quiet}, begun
    for part, seconds in parts.items():
        spans[part], at = (at, at + seconds), at + seconds
    spans["whole replay"] = (begun, at)
    for name, (since, until) in spans.items():
        if until - since > 1:
            median, most, many = live.lags(since, until)
            print(f"  live lag, {name}: {median:.1f} ms, 95 % within {most:.1f} ms ({many:,} records)", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--warm-up", type=int, default=50_000, help="offsets of each partition that are replayed unmeasured"
    )
    parser.add_argument("--offsets", type=int, default=0, help="of each partition at most, if not 0")
    parser.add_argument("--chunkings", default="")
    parser.add_argument("--live", action="store_true", help="measure what a live reader notices")
    parser.add_argument("--pace", type=int, default=0, help="records a second that are landed at most")
    parser.add_argument("--readers", type=int, default=0, help="workers that read at once at most")
    parser.add_argument("--bootstrap", default="")
    parser.add_argument("--topic", default="", help="a topic that an earlier round has written")
    options = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="topic-replay-")))
        bootstrap = options.bootstrap
        if not bootstrap:
            from real_servers.kafka import kafka_broker

            bootstrap = stack.enter_context(kafka_broker()).bootstrap_servers
        topic = options.topic or f"orders-{int(time.time())}"
        if not options.topic:
            begun = time.monotonic()
            written(bootstrap, topic, options.messages)
            print(
                f"topic {topic}: {options.messages:,} messages written in {time.monotonic() - begun:.0f} s", flush=True
            )
        measured(options, home, bootstrap, topic)


def measured(options: argparse.Namespace, home: Path, bootstrap: str, topic: str) -> None:
    """Print what each round took."""
    others = [
        home / name / "warehouse" for name in ("warm-up", *(f"round-{number}" for number in range(options.rounds)))
    ]
    first = installation(home / "first", bootstrap, topic, beside=others)
    spark = first.spark.session(Mode.BACKFILL)
    spark.dataSource.register(_Source)
    with Brokers(first.products.topic("orders"), first.settings.of_topic("orders")) as brokers:
        state = brokers.state()
    most = options.offsets or 1 << 62
    ranges = [[partition, one.low, min(one.stable, one.low + most)] for partition, one in state.partitions.items()]
    wanted = Wanted(start={one: low for one, low, _ in ranges}, until={one: until for one, _, until in ranges})
    offsets = sum(until - start for _, start, until in ranges)
    folder = home / "first" / "warehouse" / "bare"
    memory = PeakMemory()
    memory.start()
    live = None
    try:
        bare(spark, bootstrap, topic, ranges, folder)
        if options.warm_up:
            few = {partition: min(until, low + options.warm_up) for partition, low, until in ranges}
            warmed = installation(home / "warm-up", bootstrap, topic).with_spark(first.spark)
            replayed(warmed, "warm-up", Wanted(start=wanted.start, until=few))
        before = bare(spark, bootstrap, topic, ranges, folder)
        live = LiveTopic(bootstrap, topic) if options.live else None
        quiet = _quiet(live)
        digests: list[dict[str, str | None]] = []
        for number in range(options.rounds):
            limits = ba.TopicLimits(records_per_second=options.pace, readers=options.readers)
            platform = installation(home / f"round-{number}", bootstrap, topic, limits).with_spark(first.spark)
            begun, at = time.monotonic(), time.time()
            parts = replayed(platform, f"replay-{number}", wanted, None if number == 0 else 3)
            took = time.monotonic() - begun
            _tell_lags(live, quiet, at, parts)
            after = bare(spark, bootstrap, topic, ranges, folder)
            rows = sum(one.rows for one in platform.lakehouse.loads(topic_orders.LOG))
            digests.append({one.chunk: one.digest for one in platform.ledger.chunks(f"replay-{number}")})
            print(
                f"round {number}: replay {took:.1f} s ({rows:,} records of {offsets:,} offsets, {rows / took:,.0f}/s), bare {before:.1f} s and "
                f"{after:.1f} s, ratio {took / ((before + after) / 2):.2f}; "
                + ", ".join(f"{part} {seconds:.1f}" for part, seconds in parts.items())
                + f"; digests of {len(digests[-1])} chunks {'equal' if digests[-1] == digests[0] else 'DIFFER'}"
                + f"; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            before = after
        if live is not None:
            moved = {one for one, offsets in live.committed().items() if offsets != live.offsets.get(one)}
            print(f"groups: {sorted(live.offsets)}, offsets moved of: {sorted(moved)}", flush=True)
    finally:
        memory.stop.set()
        memory.join()
        if live is not None:
            live.end()
    print(f"peak memory of all processes but the broker: {memory.peak:,.0f} MiB", flush=True)
    print(f"digests of the chunks: {sha256_of(digests[0])}", flush=True)
    if options.chunkings:
        _land_otherwise(home, platform, (bootstrap, topic), wanted, tuple(map(int, options.chunkings.split(","))))


def _land_otherwise(
    home: Path, landed: Platform, log: tuple[str, str], wanted: Wanted, chunkings: Sequence[int]
) -> None:
    """Land the same range of a log once more, in loads of so many positions each, and compare the digests of what was landed."""
    known = digest(landed)
    print(f"digest of the landed rows: {known}", flush=True)
    for positions in chunkings:
        limits = ba.TopicLimits(positions=positions)
        other = installation(home / f"by-{positions}", *log, limits).with_spark(landed.spark)
        begun = time.monotonic()
        done = land(other, other.products.topic("orders"), wanted)
        took, equal = time.monotonic() - begun, digest(other) == known
        print(
            f"in loads of {positions:,}: {len(done.loads)} loads, {took:.1f} s, digests {'equal' if equal else 'DIFFER'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
