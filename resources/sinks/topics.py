"""The sink that is a topic of a Kafka broker: events written in transactions, and read back as everybody may read them.

Put here what speaks to the broker. Who may write to which topic is `policy`'s, what an event is `topic_events`', and which events
there are the publication's. The client is confluent-kafka's, which the extra `kafka` brings; it is imported when a topic is opened.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from manifests.errors import Problem, SinkRefused
from resources.settings import REDACTED
from resources.sinks.declared import SinkDeclaration, ToTopic
from resources.sinks.leaders import once_led
from resources.sinks.message_headers import headers_of
from resources.sinks.topic_events import PUBLICATION, SEQUENCE, Heard, Message, Throttle

WAIT_SECONDS = 30.0
"""How long a broker may take to answer."""
_TRANSACTION_SECONDS = 10.0
"""How long a transaction stays open: a reader of committed events waits for its end."""
_ABORT_SECONDS = 5.0
_LOOK_SECONDS = 0.1
_TIMEOUT_MS = 60_000
"""After how long a broker ends a transaction of which it hears no more."""
_TAIL = 4_096
"""Offsets that are read from the end of a partition to find the last event of a publication; eight times more, each time it is not there."""
_GROUP = 64
_DIGITS = 18
_END = "_PARTITION_EOF"
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
"""What the client calls the end of a partition, and that another producer has this one's transactions."""
_LEAST_SECRET = 4
"""Characters from which on a value of a setting is kept out of what is said."""
"""Messages that are let through at once."""
_AGAIN = "look at the broker; the same command goes on where it stopped"


@dataclass(frozen=True)
class TopicFacts:
    """Which topic it is, so that one that was made anew is told from it: ids of cluster and topic, and how many partitions."""

    topic: str
    cluster_id: str
    topic_id: str
    partitions: int

    def __str__(self) -> str:
        return f"the topic {self.topic} is {self.topic_id} of cluster {self.cluster_id}, with {self.partitions} partition(s)"


class Topic:
    """A topic that a run may write to; whoever opens it with `transactional_id` fences whoever did before.

    Raises:
        SinkRefused: from every method, if the broker does not answer, refuses, or has fenced this publisher.
    """

    def __init__(self, sink: SinkDeclaration, topic: str, values: Mapping[str, str]) -> None:
        adapter = sink.adapter
        assert isinstance(adapter, ToTopic)
        self.name, self.declared = topic, adapter
        self._sink = sink.name
        self._settings = {
            "bootstrap.servers": values[adapter.servers],
            **{name.replace("_", "."): values[name] for name in adapter.security},
            "log_level": 2,
        }
        self._client = _client(sink.name)
        self._producer: Any = None

    # --- which topic it is --------------------------------------------------------------------------------------------

    def facts(self, *, make: bool = False) -> TopicFacts:
        """Return which topic it is; with `make`, one that is not there yet is made, to keep what is written to it.

        Raises:
            SinkRefused: if it is not there, or the broker removes events of it that later ones have the key of.
        """
        with self._said("be asked for"):
            admin = self._client.admin.AdminClient(self._settings)
            found = self._asked(admin)
            if found is None and make:
                self._make(admin)
                until = time.monotonic() + WAIT_SECONDS
                while (found := self._asked(admin)) is None and time.monotonic() < until:
                    time.sleep(_LOOK_SECONDS)  # a broker tells of what it has made a moment later
        if found is None:
            raise self._refused("is not there", "a topic that somebody declares is made by whoever owns the broker")
        return found

    def _asked(self, admin: Any) -> TopicFacts | None:
        known = admin.list_topics(timeout=WAIT_SECONDS)
        if self.name not in known.topics:  # to ask for it by its name could make it
            return None
        described = admin.describe_topics(self._client.TopicCollection([self.name]), request_timeout=WAIT_SECONDS)
        topic = described[self.name].result(WAIT_SECONDS)
        return TopicFacts(self.name, str(known.cluster_id), str(topic.topic_id), len(topic.partitions))

    def _make(self, admin: Any) -> None:
        kept = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
        wanted = self._client.admin.NewTopic(self.name, num_partitions=self.declared.partitions, config=kept)
        try:
            admin.create_topics([wanted], request_timeout=WAIT_SECONDS)[self.name].result(WAIT_SECONDS)
        except self._client.KafkaException as error:
            if error.args[0].code() != self._client.KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def require_kept(self) -> None:
        """Refuse a topic from which the broker removes what a later event has the key of: its record could not be read back.

        Raises:
            SinkRefused: if it is compacted.
        """
        with self._said("be asked for its settings"):
            kind = self._client.admin.ConfigResource
            resource = kind(kind.Type.TOPIC, self.name)
            admin = self._client.admin.AdminClient(self._settings)
            asked = admin.describe_configs([resource], request_timeout=WAIT_SECONDS)
            policy = asked[resource].result(WAIT_SECONDS)["cleanup.policy"].value
        if "compact" in str(policy):
            raise self._refused(
                f"has cleanup.policy={policy}",
                "what a run has published can be read again as it was, also where a later event has its key",
                "have its owner set cleanup.policy=delete, or leave `backfill_topic` out: each run has a topic of its own then",
            )

    # --- writing ------------------------------------------------------------------------------------------------------

    def fence(self, transactional_id: str) -> None:
        """Become the only publisher of an id: what another has open is aborted, and nothing more of it is written."""
        with self._said("be opened for writing"):
            self._producer = self._client.Producer(
                {
                    **self._settings,
                    "transactional.id": transactional_id,
                    "transaction.timeout.ms": _TIMEOUT_MS,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 20,
                }
            )
            self._producer.init_transactions(WAIT_SECONDS)

    def write(self, placed: Iterable[tuple[int, Message]]) -> Iterator[int]:
        """Write messages, each to its partition, in transactions; yield how many were written after each that was committed."""
        throttle = Throttle(self.declared.messages_per_second, self.declared.bytes_per_second)
        failed: list[Any] = []

        def delivered(error: Any, _message: Any) -> None:
            if error is not None:
                failed.append(error)

        group: list[tuple[int, Message]] = []
        # what is sent at once is let through at once: a transaction lasts no longer than that takes
        together = min(_GROUP, max(1, int(self.declared.messages_per_second * _TRANSACTION_SECONDS)))
        most_bytes = self.declared.bytes_per_second * _TRANSACTION_SECONDS
        done = open_ = length = 0
        until = 0.0
        for place, message in placed:
            if not open_:
                throttle.let_through(0, 0)  # what is owed is waited for while no transaction is open
                with self._said("be written to"):
                    self._producer.begin_transaction()
                until = time.monotonic() + _TRANSACTION_SECONDS
            group.append((place, message))
            open_, length = open_ + 1, length + message.bytes
            last = open_ == self.declared.batch or time.monotonic() > until
            if last or len(group) == together or length >= most_bytes:
                self._send(group, throttle, delivered)
                group, length = [], 0
            if last or (not group and time.monotonic() + throttle.owed() > until):
                self._commit(failed)
                done, open_ = done + open_, 0
                yield done
        if open_:
            self._send(group, throttle, delivered)
            self._commit(failed)
            yield done + open_

    def _send(self, group: list[tuple[int, Message]], throttle: Throttle, delivered: Any) -> None:
        throttle.let_through(len(group), sum(message.bytes for _, message in group))
        with self._said("be written to"):
            for place, message in group:
                sent = {"key": message.key, "value": message.value, "headers": list(message.headers)}
                while True:
                    try:
                        self._producer.produce(self.name, partition=place, on_delivery=delivered, **sent)
                        break
                    except BufferError:
                        self._producer.poll(0.1)
            self._producer.poll(0)

    def _commit(self, failed: list[Any]) -> None:
        with self._said("be written to"):
            if self._producer.flush(WAIT_SECONDS):
                raise TimeoutError(f"the broker has not taken every event within {WAIT_SECONDS:g} s")
            if failed:
                raise self._client.KafkaException(failed[0])
            self._producer.commit_transaction(WAIT_SECONDS)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Let go of the broker in the end; a transaction that is open then is aborted."""
        try:
            yield
        finally:
            producer, self._producer = self._producer, None
            if producer is not None:
                with suppress(
                    self._client.KafkaException
                ):  # none is open, or this publisher is fenced: nothing is left to abort
                    producer.abort_transaction(_ABORT_SECONDS)

    # --- reading ------------------------------------------------------------------------------------------------------

    def ends(self) -> dict[int, int]:
        """Return the offset after the last message of each partition, committed or not."""
        with self._said("be read"), self._consumer("read_uncommitted") as consumer:
            return {place: self._watermarks(consumer, place)[1] for place in range(self._partitions(consumer))}

    def written(self, publication: str, starts: Mapping[int, int]) -> int:
        """Return how many events of a publication are committed: it is written in its order, so that the last one tells.

        Raises:
            SinkRefused: if the broker has removed messages from `starts` on.
        """
        most, ends, span = -1, self.ends(), _TAIL
        self.require_there(starts, ends)
        left = dict(starts)
        while left:
            begins = {place: max(start, ends[place] - span) for place, start in left.items()}
            found = {place: number for number, place, *_ in self._of(publication, begins, ends)}  # the last one stays
            most = max([most, *found.values()])
            left = {place: start for place, start in left.items() if place not in found and begins[place] > start}
            span *= 8
        return most + 1

    def heard(self, publication: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, Heard]:
        """Return what each partition has of a publication between two offsets, as a reader of committed messages gets it."""
        self.require_there(starts, ends)
        heard = {place: Heard() for place in starts}
        for _, place, offset, message in self._of(publication, starts, ends):
            heard[place].add(message.key() or b"", message.value() or b"", tuple(headers_of(message) or ()), offset)
        return heard

    def require_there(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Refuse to tell anything of messages that the broker has removed, or lost: then a partition ends before `starts`."""
        with self._said("be read"), self._consumer("read_committed") as consumer:
            gone = [
                place
                for place, start in starts.items()
                if ends.get(place, 0) < start or self._watermarks(consumer, place)[0] > start
            ]
        if gone:
            raise self._refused(
                f"has no messages any more from where its publication begins, in partition {', '.join(map(str, gone))}",
                "what a run has published is told from the messages, and the broker has removed some",
                "keep them for longer (retention.ms of the topic); what is on record says what was written",
            )

    def _of(
        self, publication: str, starts: Mapping[int, int], ends: Mapping[int, int]
    ) -> Iterator[tuple[int, int, int, Any]]:
        """Yield each committed event of a publication: its number, partition, offset, and the message."""
        wanted = publication.encode()
        with self._said("be read"), self._consumer("read_committed") as consumer:
            left = {place for place, start in starts.items() if start < ends[place]}
            consumer.assign([self._client.TopicPartition(self.name, place, starts[place]) for place in sorted(left)])
            until = time.monotonic() + WAIT_SECONDS
            while left:
                for message in consumer.consume(1_000, 0.1):
                    place, offset = message.partition(), message.offset()
                    if message.error() is not None:
                        if message.error().name() != _END:
                            raise self._client.KafkaException(message.error())
                        # one who has a transaction open keeps readers of committed messages before the end
                        left -= {place} if offset >= ends[place] else set()
                        continue
                    until = time.monotonic() + WAIT_SECONDS
                    if offset >= ends[place]:
                        left.discard(place)
                        continue
                    headers = dict(headers_of(message) or ())  # no event of ours has a name that is no text
                    if headers.get(PUBLICATION) == wanted:
                        yield self._number(headers.get(SEQUENCE), place, offset), place, offset, message
                    if offset == ends[place] - 1:
                        left.discard(place)
                if left and time.monotonic() > until:
                    raise TimeoutError(f"partition {min(left)} was not read to its end within {WAIT_SECONDS:g} s")

    @contextmanager
    def _consumer(self, isolation: str) -> Iterator[Any]:
        """Yield what reads: it is of no group that is known to the broker, and commits nothing."""
        consumer = self._client.Consumer(
            {
                **self._settings,
                "group.id": "backfill-reads-back",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def _partitions(self, consumer: Any) -> int:
        return len(consumer.list_topics(self.name, timeout=WAIT_SECONDS).topics[self.name].partitions)

    def _watermarks(self, consumer: Any, place: int) -> tuple[int, int]:
        partition = self._client.TopicPartition(self.name, place)
        found = once_led(lambda: consumer.get_watermark_offsets(partition, timeout=WAIT_SECONDS), WAIT_SECONDS)
        if found is None:
            raise TimeoutError(f"partition {place} was not described within {WAIT_SECONDS:g} s")
        return int(found[0]), int(found[1])

    def _number(self, said: bytes | None, place: int, offset: int) -> int:
        if said is None or not said.isdigit() or len(said) > _DIGITS:
            raise self._refused(
                f"has a message in partition {place} at {offset:,} that names this publication and has no number in it",
                "events of a publication are written by it alone, each with its number",
                "find out who writes to the topic in its name; the run's events are not told from those",
            )
        return int(said)

    # --- refusals -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _said(self, what: str) -> Iterator[None]:
        try:
            yield
        except (self._client.KafkaException, SystemError) as error:
            # where several callbacks are due, the client goes on to the next one with an error that the last one has raised
            known = error if isinstance(error, self._client.KafkaException) else error.__cause__
            if not isinstance(known, self._client.KafkaException):
                raise
            said = known.args[0]
            if said.name() in _FENCED:
                raise self._refused(
                    "is written to by another process, which has fenced this one",
                    "events of a run are written by one process at a time: the one that began last",
                    "see what it does (`backfill status`); nothing of this one is written any more",
                ) from error
            raise self._refused(
                f"cannot {what}: {self._without_values(said.str())}", "a broker takes what it is sent"
            ) from error
        except (TimeoutError, BufferError) as error:
            raise self._refused(f"cannot {what}: {error or 'no answer'}", "a broker answers in time") from error

    def _without_values(self, text: str) -> str:
        """Return what an error says without any value of a setting that may be a credential."""
        for name in self.declared.security:
            value = str(self._settings[name.replace("_", ".")])
            if len(value) >= _LEAST_SECRET:
                text = text.replace(value, REDACTED)
        return text

    def _refused(self, what: str, rule: str, fix: str = _AGAIN) -> SinkRefused:
        return SinkRefused(Problem(f"the topic {self.name} of the sink {self._sink} {what}", rule, fix))


def _client(sink: str) -> Any:
    try:
        import confluent_kafka.admin  # noqa: PLC0415 - it is an extra, and whoever has no topic needs none of it
    except ImportError as error:
        raise SinkRefused(
            Problem(
                f"the sink {sink} is a topic, and confluent-kafka is not installed",
                "a broker is spoken to by it",
                "pip install 'backfill-assets[kafka]'",
            )
        ) from error
    return confluent_kafka
