"""Topics of a real broker, landed: what is in a range, what is refused by name, and that nobody who reads live notices."""

from __future__ import annotations

import threading
import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as arrow
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from real_servers.kafka import SOON_COMPACTED, SOON_DELETED, Broker, kafka_broker
from real_servers.processes import MissingServerError, wait_until
from topic_world import TopicSite, numbered, produce, site, transaction

import backfill_assets as ba
from backfill_assets.extraction.brokers import Brokers
from backfill_assets.extraction.refusals import ExtractionRefused
from backfill_assets.extraction.topic_records import Pace
from backfill_assets.ingestion.archived_topics import land_archive
from backfill_assets.ingestion.landing import land
from backfill_assets.ingestion.table_loads import undo_load
from backfill_assets.ingestion.topic_ranges import Wanted
from manifests.errors import InputRefused
from manifests.log_ranges import LogRange, gaps
from resources.lakehouse.loads import LOAD_PROPERTY, LOG_PROPERTY

pytestmark = pytest.mark.servers


@pytest.fixture
def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def at(tmp_path: Path, broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> TopicSite:
    return site(tmp_path / "home", broker.bootstrap_servers, name, monkeypatch)


def refusal(of: Any) -> str:
    with pytest.raises((InputRefused, ExtractionRefused)) as found:
        of()
    return "\n".join(f"{one.what} | {one.rule} | {one.fix}" for one in found.value.problems)


def test_a_record_is_landed_as_it_came(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name, settings={"retention.ms": "-1"})
    moment = 1_700_000_000_123
    headers = [("a", b"1"), ("b", None), ("a", b"\x00\xff")]
    produce(broker.bootstrap_servers, name, [(b"key", b"value")], headers=headers, time=moment)
    produce(broker.bootstrap_servers, name, [(None, b""), (b"", None), (b"key", None)], time=moment + 1)
    done = at.land()
    assert [(one.rows, one.landed.ranges[0].range) for one in done.loads] == [(4, LogRange(0, 0, 4))]
    at_ms = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=moment)
    assert at.rows().to_pylist()[0] == {
        "log_partition": 0,
        "log_offset": 0,
        "record_time": at_ms,
        "record_time_type": "CREATE_TIME",
        "record_key": b"key",
        "record_value": b"value",
        "record_headers": [{"name": one, "value": value} for one, value in headers],
    }
    assert [(one["record_key"], one["record_value"], one["record_headers"]) for one in at.rows().to_pylist()[1:]] == [
        (None, b"", []),
        (b"", None, []),
        (b"key", None, []),
    ]
    (load,) = at.loads
    assert (load.landed.ranges[0].first_time, load.landed.ranges[0].last_time) == (
        at_ms,
        at_ms + timedelta(milliseconds=1),
    )
    assert load.landed.log.name == name
    assert len(load.landed.log.server) == len(load.landed.log.incarnation) == 22


def test_what_the_broker_stamps_is_told_apart(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name, settings={"message.timestamp.type": "LogAppendTime"})
    produce(broker.bootstrap_servers, name, numbered(0, 1), time=5_000)
    at.land()
    (row,) = at.rows().to_pylist()
    assert row["record_time_type"] == "LOG_APPEND_TIME"
    assert row["record_time"] > datetime(2020, 1, 1, tzinfo=UTC)


def test_a_range_has_what_committed_transactions_wrote_and_ends_before_an_open_one(
    broker: Broker, at: TopicSite, name: str
) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 2))  # 0, 1
    transaction(broker.bootstrap_servers, name, numbered(2, 2), end="commit", name=f"{name}-a")  # 2, 3, mark 4
    transaction(broker.bootstrap_servers, name, numbered(4, 3), end="abort", name=f"{name}-b")  # 5 to 7, mark 8
    at.land()
    assert at.offsets() == {0: [0, 1, 2, 3]}
    assert at.ranges == [LogRange(0, 0, 9)]
    open_one = transaction(broker.bootstrap_servers, name, numbered(7, 2), end="leave", name=f"{name}-c")  # 9, 10
    produce(broker.bootstrap_servers, name, numbered(9, 1))  # 11
    assert at.land().loads == ()
    said = refusal(lambda: at.land(until={0: 12}))
    assert f"partition 0 of {name} is wanted until 12, and ends at 9; until 12, transactions are open" in said
    open_one.commit_transaction(30)  # mark 12
    at.land()
    assert at.offsets() == {0: [0, 1, 2, 3, 9, 10, 11]}
    assert at.ranges == [LogRange(0, 0, 9), LogRange(0, 9, 13)]


def test_a_range_without_a_record_is_landed_too(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name)
    transaction(broker.bootstrap_servers, name, numbered(0, 3), end="abort", name=name)
    (load,) = at.land().loads
    assert (load.rows, [one.range for one in load.landed.ranges]) == (0, [LogRange(0, 0, 4)])
    assert at.land().loads == ()
    produce(broker.bootstrap_servers, name, numbered(3, 1))
    at.land()
    assert at.offsets() == {0: [4]}


def test_offsets_that_compaction_has_emptied_are_landed_as_a_range_without_them(
    broker: Broker, at: TopicSite, name: str
) -> None:
    broker.create(name, settings=SOON_COMPACTED)
    produce(broker.bootstrap_servers, name, [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None)])
    time.sleep(0.5)
    produce(broker.bootstrap_servers, name, [(b"c", b"1")])
    count = 0

    def compacted() -> bool:
        nonlocal count
        count += 1
        other = site(
            at.platform.settings.home.parent / f"look-{count}", broker.bootstrap_servers, name, pytest.MonkeyPatch()
        )
        other.land()
        return 0 not in other.offsets()[0]

    wait_until(compacted, "compaction", 60, every=1.0)
    at.land()
    assert at.offsets()[0][-1] == 4
    assert 0 not in at.offsets()[0]
    assert at.ranges == [LogRange(0, 0, 5)]


def test_offsets_that_retention_has_taken_are_refused_and_a_gap_is_accepted_by_decision(
    broker: Broker, at: TopicSite, name: str
) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 3))
    at.land()
    produce(broker.bootstrap_servers, name, numbered(3, 5))
    _delete_before(broker, name, 6)
    said = refusal(at.land)
    assert f"{name}: offsets 3 to 5 of partition 0 (3) cannot be landed" in said
    assert "partition 0 begins with offset 6 now" in said
    assert "--accept-gap REASON" in said
    left = refusal(lambda: at.land(start={0: 6}))
    assert f"{name}: offsets 3 to 5 of partition 0 (3) would be missing, between load " in left
    assert "and what is asked for, beginning with 6; the topic begins with offset 6 there by now" in left
    assert len(at.loads) == 1
    at.land(accept_gap="retention was a day too short")
    assert at.offsets() == {0: [0, 1, 2, 6, 7]}
    assert (at.loads[-1].gap, at.loads[-1].reason) == ((LogRange(0, 3, 6),), "retention was a day too short")
    produce(broker.bootstrap_servers, name, numbered(8, 1))
    at.land()  # the gap is on record, and is not asked about again
    assert at.offsets() == {0: [0, 1, 2, 6, 7, 8]}


def test_retention_by_time_is_seen_as_well(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name, settings=SOON_DELETED)
    produce(broker.bootstrap_servers, name, numbered(0, 3))
    at.land()
    produce(broker.bootstrap_servers, name, numbered(3, 3))
    time.sleep(0.5)
    produce(broker.bootstrap_servers, name, numbered(6, 1))
    admin = broker.admin()

    def gone() -> bool:
        return _low(admin, name) > 3

    wait_until(gone, "retention", 60, every=0.5)
    assert "cannot be landed: retention has removed them" in refusal(at.land)


def test_a_topic_that_was_made_anew_is_refused(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 3))
    at.land()
    broker.delete(name)
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 5))
    said = refusal(at.land)
    assert f"{name} was made anew: its id is" in said
    assert at.offsets() == {0: [0, 1, 2]}


def test_a_topic_that_is_not_there_is_refused(broker: Broker, at: TopicSite, name: str) -> None:
    said = refusal(at.land)
    assert f"has no topic {name}, or does not show it" in said
    assert "correct `topic` in the declaration, or the addresses (BACKFILL_TOPICS__" in said
    assert name not in broker.admin().list_topics(timeout=10).topics  # nobody has made it by asking


def test_partitions_that_were_added_are_named_and_landed_from_0_on(broker: Broker, at: TopicSite, name: str) -> None:
    from confluent_kafka.admin import NewPartitions

    broker.create(name, partitions=2)
    produce(broker.bootstrap_servers, name, numbered(0, 3))
    at.land()
    admin = broker.admin()
    admin.create_partitions([NewPartitions(name, 3)])[name].result(30)
    wait_until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3, "partition", 30)
    produce(broker.bootstrap_servers, name, numbered(3, 2), partition=2)
    done = at.land()
    assert 2 in done.resolved.new_partitions
    assert at.offsets() == {0: [0, 1, 2], 2: [0, 1]}


def test_times_are_resolved_into_offsets(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name, partitions=2, settings={"retention.ms": "-1"})
    for hour, partition in enumerate((0, 1, 0, 1, 0)):
        produce(broker.bootstrap_servers, name, numbered(hour, 1), partition=partition, time=1 + hour * 3_600_000)
    begun = datetime(1970, 1, 1, tzinfo=UTC)
    at.land(since=begun + timedelta(hours=1), before=begun + timedelta(hours=4))
    assert at.offsets() == {0: [1], 1: [0, 1]}
    assert at.ranges == [LogRange(0, 1, 2), LogRange(1, 0, 2)]


@pytest.mark.parametrize("positions", [1, 7, 100])
def test_other_chunkings_land_the_same_rows(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, positions: int
) -> None:
    broker.create(name, partitions=3)
    for partition in range(3):
        produce(broker.bootstrap_servers, name, numbered(0, 5 + partition), partition=partition)
        transaction(
            broker.bootstrap_servers, name, numbered(5, 2), partition=partition, end="abort", name=f"{name}{partition}"
        )
    whole = site(tmp_path / "whole", broker.bootstrap_servers, name, monkeypatch)
    whole.land()
    parts = site(
        tmp_path / "parts", broker.bootstrap_servers, name, monkeypatch, limits=ba.TopicLimits(positions=positions)
    )
    parts.land()
    assert parts.rows().equals(whole.rows())
    assert len(whole.loads) == 1
    assert len(parts.loads) >= 27 // positions
    assert all(
        sum(one.range.until - one.range.start for one in load.landed.ranges) <= positions for load in parts.loads
    )


def test_a_load_ends_at_its_bytes_and_the_next_one_goes_on(
    broker: Broker, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, partitions=2)
    for partition in range(2):
        produce(broker.bootstrap_servers, name, [(None, bytes(200_000))] * 40, partition=partition)
    at = site(tmp_path / "home", broker.bootstrap_servers, name, monkeypatch, limits=ba.TopicLimits(bytes=4 << 20))
    done = at.land()
    assert len(done.loads) > 1
    assert at.offsets() == {0: [*range(40)], 1: [*range(40)]}


def test_a_load_that_was_taken_back_is_landed_again(broker: Broker, at: TopicSite, name: str) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 2))
    at.land()
    produce(broker.bootstrap_servers, name, numbered(2, 2))
    at.land()
    undo_load(at.platform, at.topic.table, at.loads[0].load_id, by="somebody", reason="a test")
    assert at.ranges == [LogRange(0, 2, 4)]
    at.land(start={0: 0}, until={0: 2})
    assert at.offsets() == {0: [0, 1, 2, 3]}


def test_nobody_who_reads_live_notices(broker: Broker, at: TopicSite, name: str) -> None:
    from confluent_kafka import Consumer, TopicPartition

    broker.create(name, partitions=2)
    for partition in range(2):
        produce(broker.bootstrap_servers, name, numbered(0, 50), partition=partition)
    live = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": f"live-{name}", "enable.auto.commit": False}
    )
    live.commit(offsets=[TopicPartition(name, 0, 20), TopicPartition(name, 1, 7)], asynchronous=False)
    before = broker.groups()
    assert before[f"live-{name}"] == {(name, 0): 20, (name, 1): 7}
    at.land()
    assert broker.groups() == before
    live.close()


def test_a_broker_that_goes_away_is_given_up_with_its_name_and_the_range(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        with kafka_broker() as own:
            own.create(name)
            produce(own.bootstrap_servers, name, numbered(0, 6_000), settings={"batch.num.messages": 100})
            limits = ba.TopicLimits(silence_seconds=5)
            at = site(tmp_path / "home", own.bootstrap_servers, name, monkeypatch, limits=limits)
            small = {"queued.min.messages": 1, "queued.max.messages.kbytes": 1, "max.partition.fetch.bytes": 4096}
            monkeypatch.setattr(Pace, "fetching", lambda _: small)
            monkeypatch.setattr("backfill_assets.ingestion.landing._Landing._pace", lambda *_: Pace(records=1_000))
            killer = threading.Timer(2.0, own.kill)
            killer.start()
            said = refusal(at.land)
            killer.join()
            assert f"{name} at {own.bootstrap_servers}, partition 0 from 0 until 6,000" in said
            assert "nothing came for 5 s from offset" in said
            assert at.loads == []
            own.start()
            at.land()
            assert at.offsets() == {0: [*range(6_000)]}
    except MissingServerError as reason:
        pytest.skip(f"nothing is tested on a Kafka broker: {reason}")


def _delete_before(broker: Broker, name: str, offset: int) -> None:
    from confluent_kafka import TopicPartition

    admin = broker.admin()
    for one in admin.delete_records([TopicPartition(name, 0, offset)]).values():
        one.result(30)


def _low(admin: Any, name: str) -> int:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    place = TopicPartition(name, 0)
    return int(admin.list_offsets({place: OffsetSpec.earliest()})[place].result(30).offset)


def archived(at: TopicSite, folder: Path, *ranges: tuple[int, int, int], change: Any = None) -> Path:
    """Write what is landed of some ranges into an archive, a file a range."""
    folder.mkdir()
    rows = at.rows()
    for number, (partition, start, until) in enumerate(ranges):
        places = zip(rows["log_partition"].to_pylist(), rows["log_offset"].to_pylist(), strict=True)
        own = rows.filter(arrow.array([one == partition and start <= offset < until for one, offset in places]))
        pq.write_table(own if change is None else change(own), folder / f"part-{number}.parquet")
    return folder


def test_an_archive_has_what_retention_has_taken_and_its_seam_is_an_offset(
    broker: Broker, at: TopicSite, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, partitions=2)
    for partition in range(2):
        headers = [("h", b"\x00"), ("h", None)]
        produce(broker.bootstrap_servers, name, numbered(0, 10), partition=partition, headers=headers)
    at.land()
    archive = archived(at, tmp_path / "archive", (0, 0, 4), (0, 4, 7), (1, 0, 10))
    _delete_before(broker, name, 5)
    late = site(tmp_path / "late", broker.bootstrap_servers, name, monkeypatch)
    late.land()
    assert late.offsets() == {0: [*range(5, 10)], 1: [*range(10)]}
    done = land_archive(late.platform, late.topic, str(archive))
    assert (done.resolved.missing, done.resolved.there) == (
        (LogRange(0, 0, 5),),
        (LogRange(0, 5, 7), LogRange(1, 0, 10)),
    )
    assert done.proven is not None
    assert done.proven.rows == 12
    assert late.rows().equals(at.rows())
    assert gaps(late.ranges) == ()
    assert land_archive(late.platform, late.topic, str(archive)).loads == ()
    assert late.land().loads == ()


def test_an_archive_that_differs_from_what_is_landed_is_refused_with_the_first_offset(
    broker: Broker, at: TopicSite, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 10))
    at.land()

    def change(rows: arrow.Table) -> arrow.Table:
        values = rows["record_value"].to_pylist()
        return rows.set_column(
            rows.column_names.index("record_value"), "record_value", arrow.array([*values[:6], b"other", *values[7:]])
        )

    archive = archived(at, tmp_path / "archive", (0, 0, 10), change=change)
    said = refusal(lambda: land_archive(at.platform, at.topic, str(archive)))
    assert (
        f"the archive {archive} and bronze.orders_log differ in partition 0 from offset 6 on: in record_value" in said
    )
    lacking = archived(
        at,
        tmp_path / "lacking",
        (0, 0, 10),
        change=lambda rows: rows.filter(arrow.array([True] * 3 + [False] + [True] * 6)),
    )
    said = refusal(lambda: land_archive(at.platform, at.topic, str(lacking)))
    assert "from offset 3 on: the table has a record there, and the other has none" in said


def test_an_archive_that_is_none_is_refused_with_every_reason(
    broker: Broker, at: TopicSite, name: str, tmp_path: Path
) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 10))
    at.land()
    archive = archived(at, tmp_path / "archive", (0, 0, 4), (0, 3, 6))
    pq.write_table(at.rows().drop_columns(["record_key"]), archive / "without.parquet")
    (archive / "broken.parquet").write_bytes(b"PAR1 and no more")
    said = refusal(lambda: land_archive(at.platform, at.topic, str(archive)))
    assert "partition 0 from 3 until 4 is in several files of the archive: part-0.parquet, part-1.parquet" in said
    assert "record_key is missing" in said
    assert "broken.parquet cannot be read" in said
    (tmp_path / "empty").mkdir()
    assert "has no Parquet file" in refusal(lambda: land_archive(at.platform, at.topic, str(tmp_path / "empty")))


def test_offsets_between_files_of_an_archive_are_left_out_by_decision_only(
    broker: Broker, at: TopicSite, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 10))
    at.land()
    archive = archived(at, tmp_path / "archive", (0, 0, 3), (0, 5, 8))
    other = site(tmp_path / "other", broker.bootstrap_servers, name, monkeypatch)
    assert "partition 0 from 3 until 5: no file of the archive has it" in refusal(
        lambda: land_archive(other.platform, other.topic, str(archive))
    )
    land_archive(other.platform, other.topic, str(archive), accept_gap="these were test orders")
    assert other.offsets() == {0: [0, 1, 2, 5, 6, 7]}
    assert other.loads[0].gap == (LogRange(0, 3, 5),)


def test_what_is_landed_is_proven_equal_by_reading_it_again(
    broker: Broker, at: TopicSite, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create(name, partitions=2)
    for partition in range(2):
        produce(broker.bootstrap_servers, name, numbered(0, 40), partition=partition)
    at.land(start={0: 0, 1: 0}, until={0: 10, 1: 25})
    wanted = Wanted(start={0: 5, 1: 0}, until={0: 20, 1: 20})
    done = land(at.platform, at.topic, wanted, prove_overlap=True)
    assert done.proven is not None
    assert (done.proven.rows, done.proven.ranges) == (25, (LogRange(0, 5, 10), LogRange(1, 0, 20)))
    assert at.ranges == [LogRange(0, 0, 10), LogRange(1, 0, 25), LogRange(0, 10, 20)]
    other = f"{name}-other"
    broker.create(other, partitions=2)
    for partition in range(2):
        produce(broker.bootstrap_servers, other, numbered(100, 40), partition=partition)
    # as if a broker had other records at the same offsets: what it says of itself is the first topic's
    real = Brokers.state
    monkeypatch.setattr(Brokers, "state", lambda self: replace(real(self), log=at.loads[0].landed.log))
    forged = replace(at.topic, topic=other)
    with pytest.raises(InputRefused, match="differ in partition 0 from offset 5 on: in "):
        land(at.platform, forged, wanted, prove_overlap=True)


def test_an_archive_that_is_a_table_says_itself_which_offsets_have_no_record(
    broker: Broker, at: TopicSite, name: str
) -> None:
    broker.create(name)
    produce(broker.bootstrap_servers, name, numbered(0, 4))  # 0 to 3
    transaction(broker.bootstrap_servers, name, numbered(4, 2), end="abort", name=name)  # 4, 5, mark 6
    produce(broker.bootstrap_servers, name, numbered(7, 3))  # 7 to 9
    at.land()
    whole, (load,) = at.rows(), at.loads
    lakehouse, table = at.platform.lakehouse, at.platform.lakehouse.table(at.topic.table)
    lakehouse.catalog.create_namespace_if_not_exists("cold")
    lakehouse.catalog.create_table("cold.orders", table.schema())
    rows = table.scan().to_arrow()
    parts = [
        rows.filter(arrow.compute.less(rows["log_offset"], 4)),
        rows.filter(arrow.compute.greater(rows["log_offset"], 4)),
    ]
    lakehouse.append("cold.orders", parts, {LOAD_PROPERTY: "copied", LOG_PROPERTY: load.landed.to_json()})
    undo_load(at.platform, at.topic.table, load.load_id, by="somebody", reason="a test")
    land_archive(at.platform, at.topic, "cold.orders")
    assert at.ranges == [LogRange(0, 0, 10)]
    assert at.rows().equals(whole)
