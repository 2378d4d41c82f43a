"""What brokers are asked of a topic before anything of it is read: which log it is, and which offsets there are.

Put here the questions of metadata, and what a client of a topic is configured with. How records are read is `topic_records`'; which range
is landed, and what is refused, `ingestion.topic_ranges`'. No group is ever joined, and no offset committed: whoever reads the topic live
does not notice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import uuid4

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from backfill_assets.declarations.topics import Topic, place_of_topic_setting
from backfill_assets.extraction.refusals import TopicRefused
from backfill_assets.extraction.topic_state import PartitionState, TopicState
from manifests.errors import EnvironmentRefused, Problem
from manifests.log_ranges import LogIdentity, LogKind
from resources.settings import REDACTED
from resources.sinks.leaders import once_led

_ADDRESSES = re.compile(r"[A-Za-z0-9._-]+:\d{1,5}(,[A-Za-z0-9._-]+:\d{1,5})*|\[[0-9A-Fa-f:]+\]:\d{1,5}")
_LEAST_SECRET = 4
"""Characters from which on a text is looked for: a shorter one would be found in anything."""
_QUIET = 0
"""Level of librdkafka's own log lines to stderr (emergencies only): what it has to say is in the refusal."""
_Answer = TypeVar("_Answer")


def required_topic_settings(topic: Topic, settings: Mapping[str, str]) -> None:
    """Refuse to ask brokers whose addresses or credentials are not set.

    Raises:
        EnvironmentRefused: naming all of them, and the value of none.
    """
    problems = [
        Problem(
            f"the setting {name} of the topic {topic.name} is not set",
            "brokers are asked with the addresses and the credentials that the topic names",
            f"set {place_of_topic_setting(topic.name, name)}",
        )
        for name in topic.needs
        if not settings.get(name)
    ]
    said = settings.get(topic.bootstrap)
    if said and not _ADDRESSES.fullmatch(said):
        problems.append(
            Problem(
                f"the setting {topic.bootstrap} of the topic {topic.name} is no list of addresses",
                "it is HOST:PORT, or several with commas between them",
                f"correct {place_of_topic_setting(topic.name, topic.bootstrap)}; a credential has a setting of its own",
            )
        )
    if problems:
        raise EnvironmentRefused(problems)


def client_settings(topic: Topic, settings: Mapping[str, str]) -> dict[str, Any]:
    """Return what any client of a topic is configured with, credentials among it: for librdkafka's eyes only."""
    found: dict[str, Any] = {
        "bootstrap.servers": settings[topic.bootstrap],
        "log_level": _QUIET,
        "socket.keepalive.enable": True,
        "allow.auto.create.topics": False,
    }
    if (security := topic.security) is None:
        return found
    found["security.protocol"] = security.protocol
    if security.has_password:
        found |= {
            "sasl.mechanisms": security.mechanism,
            "sasl.username": settings[security.username],
            "sasl.password": settings[security.password],
        }
    pems = {
        "ssl.ca.pem": security.authority,
        "ssl.certificate.pem": security.certificate,
        "ssl.key.pem": security.key,
    }
    return found | {option: settings[name] for option, name in pems.items() if name}


def reader_settings(client: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a consumer is configured with beside: it is in no group that anybody has, and commits nothing."""
    return {
        **client,
        "group.id": f"backfill-reads-without-a-group-{uuid4().hex}",  # librdkafka asks for one, and never joins it here
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }


def shown(text: object, client: Mapping[str, Any]) -> str:
    """Return what an error says, in one line and without any credential."""
    said = str(text)
    for option in ("sasl.password", "ssl.key.pem"):
        secret = client.get(option, "")
        if len(secret) >= _LEAST_SECRET:
            said = said.replace(secret, REDACTED)
    return " ".join(said.split())[:300]


class Brokers:
    """Asks the brokers of one topic; closed when it is left."""

    def __init__(self, topic: Topic, settings: Mapping[str, str]) -> None:
        """Prepare to ask; nothing is sent yet.

        Raises:
            EnvironmentRefused: if a setting of the topic is missing or cannot be one.
        """
        required_topic_settings(topic, settings)
        self._topic = topic
        self.client = client_settings(topic, settings)
        self.addresses = settings[topic.bootstrap]
        self._seconds = float(min(30, topic.limits.silence_seconds))
        self._last_error = ""
        try:
            self._admin = AdminClient(self.client | {"error_cb": self._heard})
            self._consumer = Consumer(reader_settings(self.client) | {"error_cb": self._heard})
        except KafkaException as error:  # of librdkafka, before it connects: a certificate that is none, say
            raise EnvironmentRefused(
                Problem(
                    f"no client of the topic {topic.name} can be made: {shown(error, self.client)}",
                    "the settings of a topic are what librdkafka takes",
                    "correct its security, or the values of its settings",
                )
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._consumer.close()

    def state(self) -> TopicState:
        """Return which log the topic is, and which offsets it has.

        Raises:
            TopicRefused: if the brokers do not answer, or have no such topic.
        """
        name = self._topic.topic
        cluster = self._asked("which cluster it is", lambda: self._admin.describe_cluster().result(self._seconds))
        described = self._asked(
            f"which topic {name} is",
            lambda: self._admin.describe_topics(TopicCollection([name]))[name].result(self._seconds),
        )
        numbers = [one.id for one in described.partitions]
        wanted = [TopicPartition(name, one) for one in numbers]
        low = self._offsets(wanted, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)
        high = self._offsets(wanted, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)
        stable = self._offsets(wanted, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)
        return TopicState(
            LogIdentity(LogKind.KAFKA, str(cluster.cluster_id), name, str(described.topic_id)),
            {one: PartitionState(low[one], stable[one], high[one]) for one in numbers},
            self._is_compacted(),
        )

    def first_since(self, instant: datetime, partitions: Iterable[int]) -> dict[int, int | None]:
        """Return by partition the first offset whose record has a time from an instant on; None where none has.

        Times need not grow with offsets: what comes after that offset may be earlier.
        """
        name = self._topic.topic
        milliseconds = max(
            0, int(instant.timestamp() * 1000)
        )  # below are offsets by name, as the log's beginning and end
        wanted = [TopicPartition(name, one, milliseconds) for one in partitions]

        def ask() -> list[TopicPartition]:
            answers: list[TopicPartition] = self._consumer.offsets_for_times(wanted, timeout=self._seconds)
            for one in answers:
                if one.error is not None:
                    raise KafkaException(one.error)
            return answers

        found = self._asked(f"which records of {name} are from {instant.astimezone(UTC):%Y-%m-%d %H:%M:%S} on", ask)
        return {one.partition: (one.offset if one.offset >= 0 else None) for one in found}

    def _offsets(self, wanted: list[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel) -> dict[int, int]:
        def ask() -> dict[int, int]:
            asked = self._admin.list_offsets(dict.fromkeys(wanted, spec), isolation_level=isolation)
            return {place.partition: int(answer.result(self._seconds).offset) for place, answer in asked.items()}

        return self._asked(f"which offsets {self._topic.topic} has", ask) if wanted else {}

    def _is_compacted(self) -> bool:
        resource = ConfigResource(ResourceType.TOPIC, self._topic.topic)
        found = self._asked(
            f"how {self._topic.topic} is kept",
            lambda: self._admin.describe_configs([resource])[resource].result(self._seconds),
        )
        return "compact" in str(found["cleanup.policy"].value)

    def _heard(self, error: object) -> None:
        self._last_error = shown(error, self.client)

    def _asked(self, what: str, ask: Callable[[], _Answer]) -> _Answer:
        try:
            return once_led(ask, self._seconds)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise self._refused_unknown() from None
            raise self._refused(what, shown(error, self.client)) from None
        except TimeoutError as error:  # of a future, which says nothing more
            self._consumer.poll(1)  # hands on what librdkafka has heard of its connections, within a second
            raise self._refused(what, shown(error, self.client) or f"no answer in {self._seconds:g} s") from None

    def _refused_unknown(self) -> TopicRefused:
        topic = self._topic
        place = place_of_topic_setting(topic.name, topic.bootstrap)
        return TopicRefused(
            Problem(
                f"{self.addresses} has no topic {topic.topic}, or does not show it to whoever asks",
                "a topic is landed that is there, under the name that its declaration has",
                f"correct `topic` in the declaration, or the addresses ({place}), or grant the right to describe it; nothing was written",
                f"topic {topic.name}",
            )
        )

    def _refused(self, what: str, why: str) -> TopicRefused:
        heard = (
            f"; the last thing heard: {self._last_error}" if self._last_error and self._last_error not in why else ""
        )
        return TopicRefused(
            Problem(
                f"{self.addresses} does not say {what}: {why}{heard}",
                "what is landed of a topic is known before it is read",
                "see that the brokers run, that they are those, and that who asks may describe the topic; nothing was written",
                f"topic {self._topic.name}",
            )
        )
