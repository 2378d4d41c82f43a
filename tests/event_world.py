"""A small table whose published rows go to a topic, and consumers of it; without Spark.

Put here what tests of topics share: the declaration, how it is served, and how a topic is read. A broker is `real_servers`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from real_servers.kafka import Broker

import backfill_assets as ba
from backfill_assets.declarations import finding
from backfill_assets.installation import Platform
from benchmarks.small_table import (
    HISTORY,
    PRODUCT,
    READINGS,
    SCOPE,
    TARGET,
    declared,
    initialise,
    manifest_data,
    planned,
    serves,
    staged,
)
from manifests.reading import manifest_from

LIVE_TOPIC = "readings"
EVENTS = ba.Sink(
    "reading_events",
    ba.SinkClass.EVENT_TOPIC,
    "each reading, for whoever computes with them",
    ("team:metering",),
    ba.ToTopic(LIVE_TOPIC, READINGS, key=("meter",), partitions=3, batch=7),
)
SETTING = "BACKFILL_SINKS__READING_EVENTS__BOOTSTRAP_SERVERS"
Headers = Mapping[str, str]


def with_topic(**fields: Any) -> ba.Sink:
    """Return the sink with other fields of its adapter."""
    assert isinstance(EVENTS.adapter, ba.ToTopic)
    return replace(EVENTS, adapter=replace(EVENTS.adapter, **fields))


@contextmanager
def serving(*sinks: ba.Sink, target: ba.TargetTable = TARGET) -> Iterator[None]:
    """Serve the small table with these sinks."""
    product = replace(PRODUCT, targets=(target,), sinks=sinks or (EVENTS,))
    with declared(target), mock.patch.object(finding, "find_products", serves(product)):
        yield


def with_history(platform: Platform) -> None:
    """Make an installation of which the first version of every reading is published, by a run that tells no topic."""
    from backfill_assets.publication.publisher import publish

    initialise(platform)
    planned(platform, manifest_from(manifest_data("history", "REPLACE_PARTITIONS", HISTORY, computed_by="1")))
    staged(platform, "history")
    publish(platform, "history")


def ran(
    platform: Platform,
    run_id: str = "restate",
    mode: str = "REPLACE_PARTITIONS",
    options: Mapping[str, Any] | None = None,
    sinks: Sequence[str] = (EVENTS.name,),
) -> str:
    """Plan, approve and compute a run whose manifest grants topics; `options` are its target's."""
    data = manifest_data(run_id, mode, SCOPE, **(options or {})) | {"safety": {"sinks": list(sinks)}}
    planned(platform, manifest_from(data))
    assert staged(platform, run_id).state == "VALIDATED"
    return run_id


def own_topic(run_id: str = "restate") -> str:
    """Return the topic of a run's own."""
    return f"{LIVE_TOPIC}.backfill.{run_id}"


def of_broker(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield where a broker listens, which is what the sink is set to; its topics are removed in the end."""
    monkeypatch.delenv("BACKFILL_CONFIG", raising=False)
    monkeypatch.setenv(SETTING, broker.bootstrap_servers)
    yield broker.bootstrap_servers
    for topic in broker.admin().list_topics(timeout=10).topics:
        if not topic.startswith("__"):
            broker.delete(topic)


def read(servers: str, topic: str) -> list[tuple[int, int, bytes, bytes, dict[str, str]]]:
    """Return partition, offset, key, value and headers of every committed message, by partition and offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "of-the-tests",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        places = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, place, 0) for place in places])
        left, found = set(places), []
        while left:
            message = consumer.poll(20)
            assert message is not None, f"{topic} is not read to its end"
            if message.error() is not None:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
                continue
            headers = {name: raw.decode() for name, raw in message.headers() or ()}
            found.append((message.partition(), message.offset(), message.key(), message.value(), headers))
        return sorted(found, key=lambda one: one[:2])
    finally:
        consumer.close()


def ids(messages: list[Any], operation: str = "publish") -> Counter[str]:
    """Return how often each event id is there, of messages of one operation."""
    return Counter(one[4]["x-event-id"] for one in messages if one[4]["x-op"] == operation)
