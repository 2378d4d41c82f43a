"""Messages lie in the partitions that Kafka's own producers choose, at the pace that is allowed, and are written in transactions.

The broker is librdkafka's mock cluster, in memory; what it does not do (fencing, aborts, ids of topics) is asked of a real one in
`tests/test_topics.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from raw_producer import produce_raw

from manifests.errors import SinkRefused
from resources.sinks import topics
from resources.sinks.declared import SinkClass, SinkDeclaration, ToTopic
from resources.sinks.topic_events import PUBLICATION, SEQUENCE, Heard, Message, Throttle, partition_of
from resources.sinks.topics import Topic


@pytest.mark.parametrize(
    ("key", "hashed"),
    [  # of the tests of Kafka's Java client
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_a_key_lies_where_kafkas_own_producers_put_it(key: bytes, hashed: int) -> None:
    assert partition_of(key, 0x80000000) == hashed & 0x7FFFFFFF
    assert partition_of(key, 12) == (hashed & 0x7FFFFFFF) % 12


def test_a_throttle_lets_no_more_through_than_messages_and_bytes_allow() -> None:
    clock = [0.0]

    def pause(seconds: float) -> None:
        clock[0] += seconds

    throttle = Throttle(100, 1_000, lambda: clock[0], pause)
    for _ in range(11):
        throttle.let_through(10, 10)
    assert clock[0] == pytest.approx(1.0)  # a hundred were let through before the eleventh ten
    clock[0] += 60  # what was not used is not saved up
    began = clock[0]
    for _ in range(11):
        throttle.let_through(1, 500)
    assert clock[0] - began == pytest.approx(5.0)


def test_the_hash_of_a_partition_tells_where_one_part_ends() -> None:
    def hashed(*messages: tuple[bytes, bytes, tuple[tuple[str, bytes], ...]]) -> str:
        heard = Heard()
        for key, value, headers in messages:
            heard.add(key, value, headers)
        return heard.hash.hexdigest()

    one = (b"ab", b"c", (("h", b"1"),))
    others = [
        hashed((b"a", b"bc", (("h", b"1"),))),
        hashed((b"ab", b"c", (("h1", b""),))),
        hashed((b"ab", b"c", ()), (b"h", b"1", ())),
        hashed(one, one),
        hashed(),
        hashed((b"ab", b"c", (("h", None),))),
        hashed((b"ab", b"c", (("h", b""),))),
    ]
    assert len({hashed(one), *others}) == 8
    assert hashed(one) == hashed(one)


# --- a broker in memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def topic() -> Iterator[Topic]:
    cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    brokers = cluster.list_topics("events", timeout=10).brokers.values()
    adapter = ToTopic("events", "silver.days", ("id",), batch=10)
    sink = SinkDeclaration("day_events", SinkClass.EVENT_TOPIC, "days", ("team:test",), adapter)
    opened = Topic(sink, "events", {"bootstrap_servers": ",".join(f"{one.host}:{one.port}" for one in brokers)})
    with opened.opened():
        yield opened


def message(number: int, publication: bytes = b"run/day_events/1") -> Message:
    headers = ((PUBLICATION, publication), (SEQUENCE, str(number).encode()))
    return Message(number, b"key", b"value %d" % number, headers)


def test_messages_are_written_in_transactions_and_read_back(topic: Topic) -> None:
    topic.fence("backfill.run.day_events")
    starts = topic.ends()
    assert set(starts.values()) == {0}
    assert topic.written("run/day_events/1", starts) == 0
    done = list(topic.write((number % 3, message(number)) for number in range(25)))
    assert done == [10, 20, 25]
    assert topic.written("run/day_events/1", starts) == 25
    assert topic.written("run/day_events/2", starts) == 0
    heard = topic.heard("run/day_events/1", starts, topic.ends())
    expected = {place: Heard() for place in starts}
    for number in range(25):
        one = message(number)
        expected[number % 3].add(one.key, one.value, one.headers)
    assert {place: (one.events, one.hash.hexdigest()) for place, one in heard.items()} == {
        place: (one.events, one.hash.hexdigest()) for place, one in expected.items()
    }
    assert (heard[0].first, heard[0].last) == (0, max(heard[0].last, 8))


def test_an_event_that_somebody_else_has_written_is_another_one_also_with_a_header_without_value(topic: Topic) -> None:
    topic.fence("backfill.run.day_events")
    starts = topic.ends()
    list(topic.write([(0, message(0))]))
    own = topic.heard("run/day_events/1", starts, topic.ends())[0].hash.hexdigest()
    forged = replace(message(1), headers=(*message(1).headers, ("x-op", None)))  # type: ignore[arg-type]
    producer = Producer({"bootstrap.servers": topic._settings["bootstrap.servers"]})
    producer.produce("events", b"value", b"key", partition=0, headers=list(forged.headers))
    assert producer.flush(10) == 0
    found = topic.heard("run/day_events/1", starts, topic.ends())[0]
    assert (found.events, found.hash.hexdigest() == own) == (2, False)


def test_a_record_of_others_whose_headers_are_no_text_is_passed_over(topic: Topic) -> None:
    topic.fence("backfill.run.day_events")
    starts = topic.ends()
    produce_raw(topic._settings["bootstrap.servers"], "events", b"value", [(b"\xff\xfe", b"1")])
    list(topic.write([(0, message(0))]))
    assert topic.written("run/day_events/1", starts) == 1
    assert topic.heard("run/day_events/1", starts, topic.ends())[0].events == 1


def test_the_last_event_is_found_far_from_the_end(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_TAIL", 2)
    topic.fence("backfill.run.day_events")
    starts = topic.ends()
    list(topic.write((0, message(number)) for number in range(7)))
    list(topic.write((0, message(number, b"other/day_events/1")) for number in range(50)))
    assert topic.written("run/day_events/1", starts) == 7


def test_a_broker_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "WAIT_SECONDS", 1.0)
    adapter = ToTopic("events", "silver.days", ("id",))
    sink = SinkDeclaration("day_events", SinkClass.EVENT_TOPIC, "days", ("team:test",), adapter)
    topic = Topic(sink, "events", {"bootstrap_servers": "127.0.0.1:1"})
    for ask in (topic.facts, topic.ends, lambda: topic.fence("backfill.run.day_events")):
        with pytest.raises(SinkRefused, match="the topic events of the sink day_events cannot be"):
            ask()


@pytest.mark.parametrize(
    "slow", [{"messages_per_second": 40}, {"messages_per_second": 100_000, "bytes_per_second": 40_000}]
)
def test_a_transaction_is_over_in_time_however_slowly_a_topic_is_written_to(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, slow: dict[str, int]
) -> None:
    monkeypatch.setattr(topics, "_TRANSACTION_SECONDS", 0.25)
    topic.declared = replace(topic.declared, batch=1_000, **slow)
    topic.fence("backfill.run.day_events")
    begun: list[float] = []
    lasted: list[float] = []
    begin, commit = topic._producer.begin_transaction, topic._commit

    class Watched:
        """The producer, of which it is known when a transaction began."""

        def __init__(self, producer: Any) -> None:
            self._producer = producer

        def __getattr__(self, name: str) -> Any:
            return getattr(self._producer, name)

        def begin_transaction(self) -> None:
            begin()
            begun.append(time.monotonic())

    def committed(failed: list[Any]) -> None:
        lasted.append(time.monotonic() - begun[-1])
        commit(failed)

    topic._producer = Watched(topic._producer)
    monkeypatch.setattr(topic, "_commit", committed)
    large = [replace(message(number), value=bytes(1_000)) for number in range(90)]
    at = time.monotonic()
    assert [*topic.write((0, one) for one in large)][-1] == 90
    assert time.monotonic() - at > 1.5, "90 at 40 a second"
    assert max(lasted) < 0.6, lasted
    assert topic.written("run/day_events/1", dict.fromkeys(topic.ends(), 0)) == 90


def test_a_credential_in_the_setting_of_something_else_is_not_quoted() -> None:
    secret = "pa55-that-was-misplaced"
    adapter = ToTopic("events", "silver.days", ("id",), security=("security_protocol", "sasl_username"))
    sink = SinkDeclaration("day_events", SinkClass.EVENT_TOPIC, "days", ("team:test",), adapter)
    values = {"bootstrap_servers": "127.0.0.1:1", "security_protocol": secret, "sasl_username": "u"}
    with pytest.raises(SinkRefused) as refusal:
        Topic(sink, "events", values).facts()
    assert "security.protocol" in str(refusal.value)
    assert secret not in str(refusal.value)


def test_a_setting_that_the_client_does_not_know_is_refused() -> None:
    adapter = ToTopic("events", "silver.days", ("id",), security=("sasl_pasword",))
    sink = SinkDeclaration("day_events", SinkClass.EVENT_TOPIC, "days", ("team:test",), adapter)
    topic = Topic(sink, "events", {"bootstrap_servers": "127.0.0.1:1", "sasl_pasword": "very-secret"})
    with pytest.raises(SinkRefused) as refusal:
        topic.facts()
    assert "very-secret" not in str(refusal.value)
