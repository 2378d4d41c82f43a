"""Sends the records of `benchmarks.parcels` to a broker in transactions, some of which are aborted; and reads a topic as anybody would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from random import Random
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.parcels import TOPIC, Sent


class Sender:
    """A producer of one topic; what it has committed is known."""

    def __init__(self, servers: str, topic: str = TOPIC, name: str = "scanners") -> None:
        self._topic, self._random = topic, Random(7)
        self._producer = Producer(
            {"bootstrap.servers": servers, "transactional.id": name, "linger.ms": 5, "log_level": 0}
        )
        self._producer.init_transactions(60)
        self.committed: list[Sent] = []
        self.aborted = 0

    def send(self, records: Iterable[Sent], *, together: int = 500, aborts: float = 0.15) -> None:
        """Send records, so many in a transaction; of a share of the transactions a part is sent first, and aborted."""
        left = iter(records)
        while batch := list(islice(left, together)):
            if self._random.random() < aborts:
                self._transaction(batch[: 1 + len(batch) // 3], commit=False)
            self._transaction(batch, commit=True)
            self.committed += batch

    def _transaction(self, batch: list[Sent], *, commit: bool) -> None:
        self._producer.begin_transaction()
        for one in batch:
            millis = int(one.at.timestamp() * 1000)
            self._produce(one, millis)
        if commit:
            self._producer.commit_transaction(60)
        else:
            self._producer.flush(60)
            self._producer.abort_transaction(60)
            self.aborted += len(batch)

    def _produce(self, one: Sent, millis: int) -> None:
        while True:
            try:
                self._producer.produce(self._topic, one.value, one.key, partition=one.partition, timestamp=millis)
            except BufferError:  # its queue is full
                self._producer.poll(0.1)
            else:
                return


def read_topic(servers: str, topic: str, isolation: str = "read_committed") -> Iterator[Any]:
    """Yield every message of a topic that there is now, partition by partition, without a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "nobody-reads",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    try:
        for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
            start, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            consumer.assign([TopicPartition(topic, partition, start)])
            while (message := consumer.poll(30)) is not None and message.error() is None:
                yield message
    finally:
        consumer.close()


def time_of(message: Any) -> datetime:
    """Return the timestamp of a message."""
    return datetime.fromtimestamp(message.timestamp()[1] / 1000, UTC)
