"""A Kafka broker of the tests: Apache Kafka in KRaft mode, broker and controller in one process.

`kafka.xml` beside this module names the version; Maven fetches its jars once. Retention and compaction happen soon for topics
that are created with `SOON_DELETED` or `SOON_COMPACTED`: the broker looks twice a second. Since Kafka 4 no segment may be
smaller than 1 MiB, so those topics begin a new one by time: a segment is left alone while records go to it, so write one
more record after `segment.ms` to have the older ones looked at.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from servers import free_port

from real_servers.processes import (
    MissingServerError,
    end_of_log,
    ended,
    jars_by_maven,
    java,
    started,
    wait_until,
)

SOON_DELETED = {"retention.ms": "1000", "segment.ms": "200"}
SOON_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "200",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": "500",
    "delete.retention.ms": "200",
}
"""Settings of a topic, for `Broker.create`."""
_POM = Path(__file__).with_name("kafka.xml")
_START_SECONDS = 240.0
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    # internal topics of one replica and few partitions: transactions and groups are usable at once
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    # a broker that was killed is let in again when its session has ended
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    # what a transaction left open holds back is given up soon after its timeout
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # retention and compaction are looked at soon, and their files removed
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "200",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": str(16 * 2**20),
    "log.cleaner.io.buffer.size": str(256 * 2**10),
}


def jars() -> Path:
    """Return the folder of the broker's jars, fetched by Maven if they are not there yet.

    Raises:
        MissingServerError: if they cannot be had.
    """
    java()
    return jars_by_maven("kafka", _POM, "org.apache.kafka:kafka_2.13")


class Broker:
    """A broker with its data in a folder; stopped or killed, it starts again on the same port with the same data."""

    def __init__(self, folder: Path, heap: str = "512m") -> None:
        """Format a folder's storage and start the broker.

        Raises:
            MissingServerError: if jars or Java are missing, or it does not start, with what it said.
        """
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._java = [
            java(),
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-Dorg.slf4j.simpleLogger.logFile=System.out",
            "-cp",
            f"{jars()}/*",
        ]
        self._ports = free_port(), free_port()
        self._configure()
        self._format()
        self.start()

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self._ports[0]}"

    def _configure(self) -> None:
        port, controller = self._ports
        settings = {
            **_SETTINGS,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "log.dirs": str(self.folder / "data"),
        }
        text = "".join(f"{name}={value}\n" for name, value in settings.items())
        (self.folder / "server.properties").write_text(text)

    def _format(self) -> None:
        # one that begins with a dash would be taken for an option
        cluster = "K" + urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
        arguments = ["kafka.tools.StorageTool", "format", "-t", cluster, "-c", "server.properties", "--standalone"]
        code = started([*self._java, *arguments], self.folder).wait()
        if code != 0:
            raise MissingServerError(f"Kafka's storage cannot be formatted: {end_of_log(self.folder)}")

    def start(self) -> None:
        """Start the broker, and wait until it answers.

        Raises:
            MissingServerError: if it ends instead, or takes too long.
        """
        self._process = started([*self._java, "kafka.Kafka", "server.properties"], self.folder)
        try:
            wait_until(self._answers, "a broker that starts", _START_SECONDS, every=0.2)
            wait_until(self._leads, "a broker that leads its partitions", _START_SECONDS, every=0.2)
        except (TimeoutError, MissingServerError) as error:
            self.kill()
            raise MissingServerError(f"Kafka does not start ({error}): {end_of_log(self.folder)}") from error

    def _answers(self) -> bool:
        from confluent_kafka import KafkaException

        if self._process is None or self._process.poll() is not None:
            raise MissingServerError("its process ended")
        try:
            return bool(self.admin().list_topics(timeout=2).brokers)
        except KafkaException:  # not yet
            return False

    def _leads(self) -> bool:
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        admin = self.admin()
        try:
            topics = admin.list_topics(timeout=5).topics
            places = [TopicPartition(name, place) for name, one in topics.items() for place in one.partitions]
            asked = admin.list_offsets({place: OffsetSpec.latest() for place in places}) if places else {}
            for answer in asked.values():
                answer.result(5)
        except KafkaException:  # not yet
            return False
        return True

    def admin(self) -> Any:
        """Return a client that administers this broker."""
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def groups(self) -> dict[str, dict[tuple[str, int], int]]:
        """Return the offsets that every consumer group has committed, by topic and partition."""
        from confluent_kafka import ConsumerGroupTopicPartitions

        admin = self.admin()  # kept until it is answered: a client that nobody holds gives up what it has asked for
        listed = admin.list_consumer_groups().result(120)
        assert not listed.errors, listed.errors
        found = {}
        for group in listed.valid:
            asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group.group_id)])
            places = asked[group.group_id].result(30).topic_partitions
            found[group.group_id] = {(one.topic, one.partition): one.offset for one in places}
        return found

    def create(self, topic: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic, with settings of its own, and wait until its partitions are led."""
        from confluent_kafka.admin import NewTopic

        admin = self.admin()
        wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=dict(settings or {}))
        admin.create_topics([wanted])[topic].result(30)
        wait_until(lambda: self._led(admin, topic) == partitions, f"leaders of the partitions of {topic}")

    @staticmethod
    def _led(admin: Any, topic: str) -> int:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions.values()
        return sum(one.leader >= 0 for one in found)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone: a new one of its name is another topic."""
        admin = self.admin()
        admin.delete_topics([topic])[topic].result(30)
        wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, f"the end of {topic}")

    def stop(self) -> None:
        """Let the broker end in order; its data stay."""
        ended(self._process, signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once, as `kill -9` does; its data stay."""
        ended(self._process, signal.SIGKILL)

    def restart(self, *, kill: bool = False) -> None:
        """Stop or kill the broker, and start it again with the same data on the same port."""
        if kill:
            self.kill()
        else:
            self.stop()
        self.start()


@contextmanager
def kafka_broker(heap: str = "512m") -> Iterator[Broker]:
    """Yield a broker that is there for this block, and leave nothing behind.

    Raises:
        MissingServerError: if none can be had, with the package that is missing.
    """
    folder = Path(tempfile.mkdtemp(prefix="backfill-kafka-"))
    broker = None
    try:
        broker = Broker(folder, heap)
        yield broker
    finally:
        if broker is not None:
            broker.kill()
        shutil.rmtree(folder, ignore_errors=True)
