"""Records of a topic that no client should have written: landed as they came, or refused by name. The brokers are librdkafka's own mock of some."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyiceberg.schema import assign_fresh_schema_ids
from raw_producer import produce_raw

import backfill_assets as ba
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.extraction.topic_records import Pace, RangeFailed, RangeRead, RangeTask, read_ranges

SCHEMA = assign_fresh_schema_ids(iceberg_schema(ba.TopicRecord)).model_dump_json()


@pytest.fixture
def brokers() -> Iterator[str]:
    cluster = Producer({"bootstrap.servers": "none:1", "test.mock.num.brokers": 1, "log_level": 0})
    found = cluster.list_topics("orders", timeout=10)
    yield ",".join(f"{one.host}:{one.port}" for one in found.brokers.values())
    del cluster


def landed(brokers: str, folder: Path, *records: dict[str, Any], until: int = 0) -> RangeRead | RangeFailed:
    producer = Producer({"bootstrap.servers": brokers, "log_level": 0})
    for one in records:
        producer.produce("orders", partition=0, **one)
    assert producer.flush(10) == 0
    task = RangeTask("0:0", 0, 0, until or len(records), str(folder), "load-1", 1 << 40)
    client = {"bootstrap.servers": brokers, "log_level": 0}
    (done,) = read_ranges(client, "orders", SCHEMA, 20.0, Pace(), iter([task]))
    return done


def test_a_header_whose_name_is_no_text_is_refused_with_its_offset(brokers: str, tmp_path: Path) -> None:
    produce_raw(brokers, "orders", b"a", [(b"good", b"\xff")])
    produce_raw(brokers, "orders", b"b", [(b"\xff\xfe", b"1")])
    done = landed(brokers, tmp_path, until=1)
    assert isinstance(done, RangeRead)
    done = landed(brokers, tmp_path, until=2)
    assert isinstance(done, RangeFailed)
    assert "the record at offset 1 has a header whose name is no UTF-8" in done.what
    assert "--until-offsets" in done.fix


def test_keys_values_and_headers_that_are_no_text_are_landed_as_they_came(brokers: str, tmp_path: Path) -> None:
    headers = [("a", None), ("a", b"\xff\x00"), ("", b"")]
    done = landed(brokers, tmp_path, {"value": None, "key": b"\xff\x00", "headers": headers}, {"value": b"\xfe"})
    assert isinstance(done, RangeRead)
    rows = pq.read_table(done.files[0]).to_pylist()
    assert [(one["record_key"], one["record_value"]) for one in rows] == [(b"\xff\x00", None), (None, b"\xfe")]
    assert [(one["name"], one["value"]) for one in rows[0]["record_headers"]] == headers
