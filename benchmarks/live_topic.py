"""Somebody who writes to a topic and somebody who reads it live, each a process of its own: how long a record takes from one to the other.

    python -m benchmarks.live_topic write|read HOST:PORT TOPIC

`LiveTopic` starts both, and says what they saw. The reader commits the offset that it begins at and none later, so that one that has moved
was moved by somebody else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

EVERY_SECONDS = 0.02


class LiveTopic:
    """A live writer and a live reader of a topic, until they are ended."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._folder = tempfile.TemporaryDirectory(prefix="live-topic-")
        self._seen = Path(self._folder.name) / "seen"
        command = [sys.executable, "-m", "benchmarks.live_topic"]
        with self._seen.open("w") as seen:
            self._processes = [
                subprocess.Popen([*command, "read", bootstrap, topic], stdout=seen),
                subprocess.Popen([*command, "write", bootstrap, topic]),
            ]
        until = time.monotonic() + 60
        while not self._seen.stat().st_size and time.monotonic() < until:
            time.sleep(0.1)
        self.offsets = self.committed()

    def lags(self, since: float, until: float) -> tuple[float, float, int]:
        """Return the median and the 95th percentile of what records took (ms) that were written between two instants, and how many."""
        rows = [line.split() for line in self._seen.read_text().splitlines() if line.count(" ") == 1]
        found = [1000 * (float(at) - float(sent)) for sent, at in rows if since <= float(sent) < until]
        cuts = quantiles(found, n=20)
        return cuts[9], cuts[18], len(found)

    def committed(self) -> dict[str, dict[int, int]]:
        """Return the offset that each group of the brokers has committed, by partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions
        from confluent_kafka.admin import AdminClient

        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        groups = [one.group_id for one in admin.list_consumer_groups().result(30).valid]
        found: dict[str, dict[int, int]] = {}
        for group in groups:
            asked: Any = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
            found[group] = {one.partition: one.offset for one in asked.topic_partitions}
        return found

    def end(self) -> None:
        """End both."""
        for one in self._processes:
            one.terminate()
            one.wait()
        self._folder.cleanup()


def _write(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    while True:
        producer.produce(topic, repr(time.time()).encode(), b"live", 0)
        producer.poll(0)
        time.sleep(EVERY_SECONDS)


def _read(bootstrap: str, topic: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": f"live-{topic}", "enable.auto.commit": False}
    consumer = Consumer(settings | {"auto.offset.reset": "latest"})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.commit(offsets=[TopicPartition(topic, 0, end)], asynchronous=False)
    consumer.subscribe([topic])
    while True:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None and message.key() == b"live":
            sys.stdout.write(f"{float(message.value())!r} {time.time()!r}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    {"write": _write, "read": _read}[sys.argv[1]](sys.argv[2], sys.argv[3])
