"""An installation with a topic that is landed, for tests of topics; what stands on a broker asks for `broker`.

Put here the product that these tests share, producers, and what a table has. Brokers are `real_servers.kafka`'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import backfill_assets as ba
from backfill_assets.ingestion.landing import Landed, land
from backfill_assets.ingestion.topic_ranges import Wanted
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from manifests.log_ranges import LogRange
from resources.lakehouse.landed_logs import LandedLoad, landed_loads
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

TABLE = ba.InputTable("bronze.orders_log", "Records of a topic.", ba.TopicRecord, ("team:orders",), log=ba.TOPIC_PLACE)
TOPIC = ba.Topic("orders", "An order.", ("team:orders",), os.environ.get("TEST_TOPIC", "orders"), TABLE.name)
PRODUCT = ba.Product("shop", (TABLE,), (), topics=(TOPIC,))


@dataclass
class TopicSite:
    """An installation, and the topic that is landed in it."""

    platform: Platform
    topic: ba.Topic

    def land(self, *, accept_gap: str | None = None, **wanted: Any) -> Landed:
        """Land what is wanted, or whatever is new."""
        return land(self.platform, self.topic, Wanted(**wanted) if wanted else Wanted(new=True), accept_gap=accept_gap)

    @property
    def loads(self) -> list[LandedLoad]:
        """The loads that have brought ranges."""
        return landed_loads(self.platform.lakehouse.table(self.topic.table))

    @property
    def ranges(self) -> list[LogRange]:
        """The ranges that they have brought, in their order."""
        return [one.range for load in self.loads for one in load.landed.ranges]

    def rows(self) -> pa.Table:
        """The rows of the table but for which load has brought them, in the order of the log."""
        rows = self.platform.lakehouse.table(self.topic.table).scan().to_arrow().drop_columns(["load_id"])
        return rows.sort_by([("log_partition", "ascending"), ("log_offset", "ascending")])

    def offsets(self) -> dict[int, list[int]]:
        """The offsets that the rows have, by partition."""
        found: dict[int, list[int]] = {}
        for one in self.rows().select(["log_partition", "log_offset"]).to_pylist():
            found.setdefault(one["log_partition"], []).append(one["log_offset"])
        return found


def site(
    home: Path,
    bootstrap: str,
    topic: str,
    monkeypatch: Any,
    *,
    limits: ba.TopicLimits | None = None,
    spark: bool = False,
) -> TopicSite:
    """Return an installation with nothing landed; without `spark` this process reads, as a worker would."""
    if not spark:
        monkeypatch.setattr(Platform, "workers", ThisProcess())
    declared = replace(TOPIC, topic=topic, limits=limits or ba.TopicLimits(silence_seconds=15))
    product = replace(PRODUCT, topics=(declared,))
    settings = load_settings(home=home, topics={"orders": {"bootstrap_servers": bootstrap}})
    platform = Platform.of(settings, [product])
    initialise(platform)
    return TopicSite(platform, declared)


Record = tuple[bytes | None, bytes | None]
"""A key and a value."""


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[Record],
    *,
    partition: int = 0,
    headers: Sequence[tuple[str, bytes | None]] | None = None,
    time: int = 0,
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write records to a partition, and wait until the broker has them; `time` is of all of them (ms), 0 for now."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **(settings or {})})
    for key, value in records:
        producer.produce(topic, value, key, partition, timestamp=time, headers=None if headers is None else [*headers])
    assert producer.flush(30) == 0


def transaction(
    bootstrap: str, topic: str, records: Iterable[Record], *, partition: int = 0, end: str = "commit", name: str = "tx"
) -> Any:
    """Write records in a transaction that is committed, aborted, or left open; the producer is returned."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for key, value in records:
        producer.produce(topic, value, key, partition)
    producer.flush(30)
    if end == "commit":
        producer.commit_transaction(30)
    elif end == "abort":
        producer.abort_transaction(30)
    return producer


def numbered(first: int, count: int, keys: int = 7) -> list[Record]:
    """Return records that say their number."""
    return [(f"k{number % keys}".encode(), b'{"n": %d}' % number) for number in range(first, first + count)]
