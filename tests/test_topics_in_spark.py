"""A topic of a real broker, landed by Spark's workers, and a target computed from it; who reads live keeps up meanwhile."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from real_servers.kafka import Broker
from topic_world import TopicSite, numbered, produce, site, transaction
from worlds import SPARK

import backfill_assets as ba
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from benchmarks import topic_orders
from benchmarks.topic_replay import replayed
from resources.settings import load_settings

pytestmark = pytest.mark.servers


@pytest.fixture
def name(broker: Broker) -> str:
    name = f"t{uuid.uuid4().hex[:12]}"
    broker.create(name, partitions=4, settings={"retention.ms": "-1"})
    return name


@pytest.fixture
def at(tmp_path: Path, broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> TopicSite:
    monkeypatch.setenv("BACKFILL_TOPICS__ORDERS__PASSWORD", "p4ss-9f8a7b6c")
    return site(tmp_path / "home", broker.bootstrap_servers, name, monkeypatch, spark=True)


def test_workers_land_what_this_process_would(
    broker: Broker, at: TopicSite, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(4):
        produce(broker.bootstrap_servers, name, numbered(0, 2_000), partition=partition, headers=[("h", b"1")])
        transaction(
            broker.bootstrap_servers, name, numbered(0, 30), partition=partition, end="abort", name=f"{name}{partition}"
        )
    at.land()
    assert "BACKFILL_TOPICS__ORDERS__PASSWORD" not in os.environ  # neither the JVM nor its workers have inherited it
    here = site(tmp_path / "here", broker.bootstrap_servers, name, monkeypatch)
    here.land()
    assert at.rows().equals(here.rows())
    assert at.rows().num_rows == 8_000


def test_a_target_is_computed_from_what_is_landed(broker: Broker, name: str, tmp_path: Path) -> None:
    for partition in range(4):
        records = [(b"o%d" % number, b'{"status": "NEW", "cents": %d}' % number) for number in range(50)]
        produce(
            broker.bootstrap_servers,
            name,
            [*records, (b"o1", None)],
            partition=partition,
            time=1_767_225_600_000 + partition * 864_000_000,
        )
    settings = load_settings(
        home=tmp_path / "home", spark=SPARK, topics={"orders": {"bootstrap_servers": broker.bootstrap_servers}}
    )
    platform = Platform.of(settings, [topic_orders.product(name)])
    initialise(platform)
    replayed(platform, "replay")
    rows = platform.lakehouse.table(topic_orders.EVENTS).scan().to_arrow()
    assert rows.num_rows == 200
    assert sum(rows["cents"].to_pylist()) == 4 * sum(range(50))


def test_who_reads_live_keeps_up_while_a_range_is_landed(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for partition in range(4):
        produce(broker.bootstrap_servers, name, [(b"k", bytes(200))] * 20_000, partition=partition)
    live = _Live(broker.bootstrap_servers, name)
    try:
        time.sleep(3)
        without = live.lags(3)
        other = site(
            tmp_path / "home", broker.bootstrap_servers, name, monkeypatch, limits=ba.TopicLimits(positions=30_000)
        )
        landing = threading.Thread(target=other.land)
        landing.start()
        during = live.lags(3)
        landing.join()
    finally:
        live.end()
    assert other.rows().num_rows >= 80_000
    print(f"live lag: {median(without) * 1000:.1f} ms without, {median(during) * 1000:.1f} ms during a landing")
    assert median(during) < max(2 * median(without), 0.25)  # a quarter of a second: two cores do all of it here


class _Live:
    """A producer and a consumer of the topic, which measure how long a record takes from one to the other."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._seen: list[tuple[float, float]] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._write, self._read)]
        for one in self._threads:
            one.start()

    def lags(self, seconds: float) -> list[float]:
        """Return the lags of the records that come in so many seconds."""
        begun = time.time()
        time.sleep(seconds)
        return [arrived - sent for sent, arrived in self._seen if sent >= begun]

    def end(self) -> None:
        """End both."""
        self._over.set()
        for one in self._threads:
            one.join()

    def _write(self) -> None:
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self._bootstrap, "linger.ms": 0, "log_level": 0})
        while not self._over.wait(0.02):
            producer.produce(self._topic, repr(time.time()).encode(), b"live", 0)
            producer.poll(0)
        producer.flush(10)

    def _read(self) -> None:
        from confluent_kafka import Consumer

        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": f"live-{self._topic}",
            "auto.offset.reset": "latest",
        }
        consumer = Consumer(settings | {"log_level": 0})
        consumer.subscribe([self._topic])
        while not self._over.is_set():
            message = consumer.poll(0.2)
            if message is not None and message.error() is None and message.key() == b"live":
                self._seen.append((float(message.value()), time.time()))
        consumer.close()
