"""A topic is read no faster than is declared, by threads that let others go first. The brokers are librdkafka's own mock of some."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer
from pyiceberg.schema import assign_fresh_schema_ids

import backfill_assets as ba
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.extraction import topic_records
from backfill_assets.extraction.record_files import RecordFiles
from backfill_assets.extraction.topic_records import Pace, RangeRead, RangeTask, read_ranges

SCHEMA = assign_fresh_schema_ids(iceberg_schema(ba.TopicRecord)).model_dump_json()
RECORDS, SIZE = 1_500, 500


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """Brokers that have a topic `orders` with records of SIZE bytes, RECORDS in each of two partitions."""
    cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    found = cluster.list_topics("orders", timeout=10)
    addresses = ",".join(f"{one.host}:{one.port}" for one in found.brokers.values())
    for number in range(2 * RECORDS):
        cluster.produce("orders", os.urandom(SIZE), partition=number % 2)
        cluster.poll(0)
    assert cluster.flush(30) == 0
    yield addresses
    del cluster  # the brokers are gone with it


def read_at(brokers: str, pace: Pace, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int, int]]:
    """Read both partitions, and return when how many records and bytes came."""
    came: list[tuple[float, int, int]] = []
    write = RecordFiles.write

    def noted(files: RecordFiles, rows: object, size: int) -> None:
        came.append((time.monotonic(), rows.num_rows, size))  # type: ignore[attr-defined]
        write(files, rows, size)  # type: ignore[arg-type]

    monkeypatch.setattr(RecordFiles, "write", noted)
    client = {"bootstrap.servers": brokers, "log_level": 0}
    tasks = [RangeTask(f"{one}", one, 0, RECORDS, str(folder), "load-1", 1 << 40) for one in (0, 1)]
    done = list(read_ranges(client, "orders", SCHEMA, 20.0, pace, iter(tasks)))
    assert [one.rows for one in done if isinstance(one, RangeRead)] == [RECORDS, RECORDS], done
    return came


@pytest.mark.parametrize(
    ("pace", "seconds"), [(Pace(records=2_000), 1.5), (Pace(bytes=1_000_000), 1.5), (Pace(10_000, 1_500_000), 1.0)]
)
def test_no_second_has_more_than_the_pace_lets_through(
    brokers: str, pace: Pace, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = read_at(brokers, pace, tmp_path, monkeypatch)
    took = came[-1][0] - came[0][0]
    print(f"{took:.2f} s for {2 * RECORDS:,} records at {pace}")
    assert took > 0.7 * seconds
    for begin, _, _ in came:
        within = [(records, size) for at, records, size in came if begin <= at < begin + 1.0]
        for rate, many in ((pace.records, sum(one for one, _ in within)), (pace.bytes, sum(one for _, one in within))):
            assert not rate or many <= 1.6 * rate


def test_without_a_pace_nothing_is_waited_for(brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    # the module's alone: other threads of the process sleep as they do
    monkeypatch.setattr(topic_records, "time", SimpleNamespace(sleep=slept.append, monotonic=time.monotonic))
    read_at(brokers, Pace(), tmp_path, monkeypatch)
    assert not slept


def test_no_more_is_asked_for_ahead_than_a_second_lets_through() -> None:
    asked = Pace(records=3_000, bytes=5 << 20).fetching()
    assert asked["queued.min.messages"] == 3_000
    assert asked["queued.max.messages.kbytes"] == 5 << 10
    assert max(asked["fetch.max.bytes"], asked["max.partition.fetch.bytes"]) == 5 << 20
    assert Pace(records=1, bytes=1).fetching()["max.partition.fetch.bytes"] == 1 << 20, "a record of the usual most"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority of each thread")
def test_who_reads_gives_way_and_the_worker_itself_does_not(
    brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of(thread: int) -> int:
        return os.getpriority(os.PRIO_PROCESS, thread)

    mine, seen = of(0), set()
    columns = topic_records._columns

    def noted(*words: object) -> object:
        seen.add((of(threading.get_native_id()), max(of(int(one.name)) for one in Path("/proc/self/task").iterdir())))
        return columns(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(topic_records, "_columns", noted)
    read_at(brokers, Pace(), tmp_path, monkeypatch)
    below = min(19, mine + 10)
    assert seen == {(below, below)}
    assert of(0) == mine
