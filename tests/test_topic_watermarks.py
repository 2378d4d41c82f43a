"""What a landing says of when a topic is complete, and which partitions it names; brokers are librdkafka's own mock of some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Producer
from topic_world import site

from backfill_assets.extraction.brokers import Brokers
from backfill_assets.extraction.topic_state import PartitionState, TopicState
from backfill_assets.ingestion.landing import _complete_before
from manifests.lateness import Lateness, Watermark
from manifests.log_ranges import LogIdentity, LogKind, LogRange

LOG = LogIdentity(LogKind.KAFKA, "cluster-1", "orders", "topic-1")
ASKED = datetime(2026, 3, 5, tzinfo=UTC)
NOW = ASKED + timedelta(hours=1)


def state(*partitions: PartitionState) -> TopicState:
    return TopicState(LOG, dict(enumerate(partitions)), is_compacted=False)


@pytest.mark.parametrize(
    ("asked", "partitions", "first", "complete"),
    [
        (ASKED, [PartitionState(0, 10, 10)], {0: 7}, ASKED),
        (ASKED, [PartitionState(0, 10, 10), PartitionState(0, 4, 4)], {0: 10}, ASKED),
        (None, [PartitionState(0, 10, 10)], {0: 7}, None),
        # what is still to come is landed by nobody
        (NOW + timedelta(seconds=1), [PartitionState(0, 10, 10)], {0: 7}, None),
        # behind an open transaction may lie records from before: nobody may read them yet
        (ASKED, [PartitionState(0, 10, 10), PartitionState(0, 5, 8)], {0: 7, 1: 6}, None),
        (ASKED, [PartitionState(0, 10, 10), PartitionState(0, 5, 8)], {0: 7}, None),
        (ASKED, [PartitionState(0, 10, 10), PartitionState(0, 5, 8)], {0: 7, 1: 5}, ASKED),
    ],
)
def test_a_landing_by_time_claims_no_more_than_it_could_read(
    asked: datetime | None, partitions: list[PartitionState], first: Mapping[int, int], complete: datetime | None
) -> None:
    found = _complete_before(asked, state(*partitions), lambda *_: dict(first), NOW)
    assert found == complete
    assert Lateness(Watermark.BY_BATCH).complete_before({0: ASKED}, found) == complete


@pytest.fixture
def brokers() -> Iterator[str]:
    """Brokers whose topic `orders` has four partitions, with ten records in each of the first two."""
    cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    addresses = ",".join(f"{one.host}:{one.port}" for one in cluster.list_topics("orders", timeout=10).brokers.values())
    for number in range(20):
        cluster.produce("orders", b"{}", partition=number % 2)
    assert cluster.flush(30) == 0
    yield addresses
    del cluster  # the brokers are gone with it


def test_partitions_of_which_nothing_is_landed_are_named_so_that_they_hold_back_what_is_complete(
    brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # these brokers have neither an id of a topic nor isolation levels to ask by
    there = state(*[PartitionState(0, 10, 10)] * 2, *[PartitionState(0, 0, 0)] * 2)
    monkeypatch.setattr(Brokers, "state", lambda _: there)
    at = site(tmp_path / "home", brokers, "orders", monkeypatch)
    at.land(start={0: 0}, until={0: 10})
    assert at.ranges == [LogRange(0, 0, 10), *(LogRange(one, 0, 0) for one in (1, 2, 3))]
    landed = {one.range.partition: one.last_time for load in at.loads for one in load.landed.ranges}
    assert landed[0] is not None
    assert Lateness(Watermark.BY_PARTITION).complete_before(landed) is None
    at.land(start={1: 0}, until={1: 10})
    assert [one for one in at.ranges if one.partition == 1] == [LogRange(1, 0, 0), LogRange(1, 0, 10)]
