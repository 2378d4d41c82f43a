"""The servers that tests of logs start do what those tests rely on."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from real_servers.debezium import Debezium, debezium
from real_servers.kafka import Broker, kafka_broker
from real_servers.postgresql import LogicalPostgres, logical_postgres
from real_servers.processes import wait_until
from real_servers.recording import AGAIN, FILE, KILLED, LAST, killed, recorded
from real_servers.supervised import Supervised

pytestmark = pytest.mark.servers


def first_offset(consumer: Consumer, topic: str) -> int:
    """Return the first offset of a topic's only partition; a broker that was just restarted may not lead it yet."""
    until = time.monotonic() + 60
    while True:
        try:
            return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[0])
        except KafkaException:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def committed(broker: Broker, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Return the values of a topic's only partition, read without a group's offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
    try:
        start = first_offset(consumer, topic)
        consumer.assign([TopicPartition(topic, 0, start)])
        found = []
        while (message := consumer.poll(60)) is not None:
            if message.error() is None:
                found.append(message.value())
            elif message.error().name() == "_PARTITION_EOF":
                return found
        raise AssertionError(f"the end of {topic} was not reached, only {found}")
    finally:
        consumer.close()


def produce(broker: Broker, topic: str, values: list[bytes], *, abort: bool = False) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": f"of-{topic}"})
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, key=b"k")
    if abort:
        producer.flush(30)
        producer.abort_transaction(30)
    else:
        producer.commit_transaction(30)


def test_a_transaction_is_read_back_from_a_broker_and_an_aborted_one_is_not(broker: Broker) -> None:
    broker.create("read-back")
    produce(broker, "read-back", [b"1", b"2"])
    produce(broker, "read-back", [b"3"], abort=True)
    assert committed(broker, "read-back") == [b"1", b"2"]
    assert committed(broker, "read-back", "read_uncommitted") == [b"1", b"2", b"3"]


def test_records_survive_a_broker_that_is_killed() -> None:
    with kafka_broker() as broker:
        broker.create("kept")
        produce(broker, "kept", [b"1", b"2"])
        where = broker.bootstrap_servers

        def is_there() -> bool:
            return committed(broker, "kept") == [b"1", b"2"]

        # a broker answers a commit before its mark is in the partition, and one that is killed in between writes that much later
        wait_until(is_there, "records of a transaction that was committed", 60, every=0.5)
        broker.restart(kill=True)
        assert broker.bootstrap_servers == where
        wait_until(is_there, "records of a broker that was killed", 60, every=0.5)
        broker.restart()
        wait_until(is_there, "records of a broker that was stopped", 60, every=0.5)
        left = broker.folder
    assert not left.exists()


def test_what_is_committed_survives_a_server_that_is_killed() -> None:
    with logical_postgres() as server:
        url = server.database()
        database = url.rpartition("/")[2]
        with server.connection(database) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id int PRIMARY KEY)")
            cursor.execute("INSERT INTO t VALUES (1)")
        connection.close()
        server.restart(kill=True)
        assert asked(server, database, "SELECT id FROM t") == [(1,)]
        server.restart()
        assert asked(server, database, "SELECT id FROM t") == [(1,)]
        left = server.folder
    assert not left.exists()


def asked(server: LogicalPostgres, database: str, query: str) -> list[tuple[Any, ...]]:
    connection = server.connection(database)
    try:
        with connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def values(engine: Debezium) -> list[dict[str, Any]]:
    return [json.loads(record["value"]) for record in engine.records() if record["value"] is not None]


def test_a_changed_row_is_in_the_landing_folder_and_again_after_a_kill_before_it_was_acknowledged(
    logical_server: LogicalPostgres, debezium_environment: None
) -> None:
    database = logical_server.database().rpartition("/")[2]
    asked(logical_server, database, "CREATE TABLE t (id int PRIMARY KEY, word text)")
    asked(logical_server, database, "INSERT INTO t VALUES (1, 'before')")
    with debezium(logical_server, database, ["public.t"], "again") as engine:
        engine.until('"op":"r"')
        asked(logical_server, database, "UPDATE t SET word = 'after' WHERE id = 1")
        engine.until("after")
        engine.hold("held")
        asked(logical_server, database, "UPDATE t SET word = 'held' WHERE id = 1")
        engine.until("held")
        engine.kill()
        engine.release()
        engine.start()
        asked(logical_server, database, "DELETE FROM t")
        engine.until('"op":"d"')
        engine.stop()
        assert not engine.running
        changes = [(one["op"], (one["after"] or {}).get("word")) for one in values(engine) if "op" in one]
    assert list(dict.fromkeys(changes)) == [("r", "before"), ("u", "after"), ("u", "held"), ("d", None)]
    assert changes.count(("u", "held")) == 2, changes


Said = tuple[str, str | None, str | None, Any, Any]


@pytest.fixture(scope="module")
def small_history(
    logical_server: LogicalPostgres, debezium_environment: None
) -> tuple[list[dict[str, Any]], list[tuple[int, int, int]]]:
    """What the engine says of the small history, and by the server's own word each transaction's id, start and end of its commit."""
    with recorded(logical_server) as (engine, cursor):
        cursor.execute(
            "SELECT xid::text::bigint, data FROM pg_logical_slot_peek_binary_changes('witness', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'shop_publication')"
        )
        commits = [(xid, bytes(data)) for xid, data in cursor.fetchall() if bytes(data[:1]) == b"C"]
        return engine.records(), [(xid, *struct.unpack(">QQ", data[2:18])) for xid, data in commits]


def said(record: dict[str, Any]) -> Said:
    """Return a message without what is another in each recording: LSNs, transactions' ids, times."""
    value = None if record["value"] is None else json.loads(record["value"])
    if value is not None and "status" in value:
        return (record["destination"], None, value["status"], value["event_count"], value["data_collections"])
    if value is None:
        return (record["destination"], record["key"], None, None, None)
    rows = {name: value[name] for name in ("before", "after")}
    orders = None if value["transaction"] is None else value["transaction"]["total_order"]
    return (record["destination"], record["key"], value["op"], rows, (value["source"]["snapshot"], orders))


def test_the_recorded_messages_are_what_the_engine_says_today(small_history: Any) -> None:
    kept = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
    assert [said(record) for record in small_history[0]] == [said(record) for record in kept]


def test_the_end_of_a_transaction_names_the_end_of_its_commit_and_no_row_does(small_history: Any) -> None:
    records, commits = small_history
    found = [json.loads(record["value"]) for record in records if record["value"] is not None]
    ends = [tuple(map(int, one["id"].split(":"))) for one in found if one.get("status") == "END"]
    assert ends == [(xid, end) for xid, _, end in commits]
    positions = [end for _, end in ends]
    assert positions == sorted(set(positions)), "they ascend along the stream"

    rows = [one for one in found if one.get("op") in {"c", "u", "d", "t"}]
    assert [one["source"]["lsn"] for one in rows] != sorted(one["source"]["lsn"] for one in rows)
    of_row = {one["transaction"]["id"] for one in rows if one["source"]["txId"] == ends[9][0]}
    assert len(of_row) > 1, "transactions that interleave: each row has an id of its own"
    assert all(one["transaction"]["id"] == f"{one['source']['txId']}:{one['source']['lsn']}" for one in rows)


def test_a_row_names_the_end_of_the_transaction_before_its_own(small_history: Any) -> None:
    found = [json.loads(record["value"]) for record in small_history[0] if record["value"] is not None]
    last: str | None = None
    chained = 0
    for one in found:
        if one.get("status") == "END":
            last = one["id"].partition(":")[2]
        elif one.get("op") in {"c", "u", "d", "t"}:
            assert json.loads(one["source"]["sequence"]) == [last, str(one["source"]["lsn"])]
            chained += 1
    assert chained > 20


def recorded_of_killed() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KILLED.read_text(encoding="utf-8").splitlines()]


def test_an_engine_that_is_killed_amid_a_transaction_goes_on_amid_it(
    logical_server: LogicalPostgres, debezium_environment: None
) -> None:
    with killed(logical_server) as engine:
        for records in (engine.records(), recorded_of_killed()):
            found = [json.loads(record["value"]) for record in records]
            assert [one["event_count"] for one in found if one.get("status") == "END"] == [1, 16, 1]
            assert [one["status"] for one in found if "status" in one].count("BEGIN") == 3, "none comes again"
            rows = [one for one in found if one.get("op") == "c" and "row" in one["after"]["word"]]
            orders = [one["transaction"]["total_order"] for one in rows]
            assert len(orders) > 16, "some rows come again"
            assert set(orders) == set(range(1, 17)), "none is missing"
            cut = next(place for place, order in enumerate(orders) if order < max(orders[: place + 1]))
            assert orders[cut:] == list(range(orders[cut], 17)), "in order from where it goes on"

            own = {one["source"]["lsn"] for one in rows}
            before = {int(json.loads(one["source"]["sequence"])[0]) for one in rows[cut:]}
            assert before <= own, "what it names as the transaction before is an LSN of its own"
            ends = [one["id"].partition(":")[2] for one in found if one.get("status") == "END"]
            last = next(one for one in found if LAST in str(one))
            assert json.loads(last["source"]["sequence"])[0] == ends[1]


def test_what_was_delivered_comes_again_without_its_changes() -> None:
    found = [json.loads(json.loads(line)["value"]) for line in AGAIN.read_text(encoding="utf-8").splitlines()]
    assert [one["event_count"] for one in found if one.get("status") == "END"] == [2, 2, 0, 0]
    ends = [one["id"] for one in found if one.get("status") == "END"]
    assert ends[:2] == ends[2:], "of the same commits"


def captured_around_a_restart(server: LogicalPostgres, engine: Debezium, database: str) -> set[int]:
    """Restart an engine while a transaction is open that wrote right after the last commit that it has; return the keys it captures."""
    one, other = (server.connection(database) for _ in range(2))
    engine.start()
    engine.until('"snapshot":"last"')
    one.cursor().execute("INSERT INTO t VALUES (1, 'of the open one')")
    other.cursor().execute("INSERT INTO t VALUES (2, 'committed meanwhile')")
    other.commit()
    one.cursor().execute("INSERT INTO t VALUES (3, 'of the open one')")  # its record begins where the commit's ends
    engine.until('"END"', after="committed meanwhile")
    engine.stop()  # in order: all that is to be acknowledged is
    one.commit()
    other.cursor().execute(f"INSERT INTO t VALUES (4, '{LAST}')")
    other.commit()
    engine.start()
    engine.until('"END"', after=LAST)
    engine.stop()
    one.close()
    other.close()
    return {one["after"]["id"] for one in values(engine) if one.get("op") == "c"}


def test_an_engine_that_reads_its_slot_anew_has_what_one_that_goes_on_from_an_offset_has_lost(
    logical_server: LogicalPostgres, debezium_environment: None, tmp_path: Path
) -> None:
    """What `docs/change-data-capture.md` says of offsets: the search for the place to go on takes a row for one that was delivered."""
    found: dict[str, list[set[int]]] = {"offset": [], "slot": []}
    for number in range(3):
        for kind, build in (("offset", Debezium), ("slot", Supervised)):
            database = logical_server.database().rpartition("/")[2]
            asked(logical_server, database, "CREATE TABLE t (id int PRIMARY KEY, word text)")
            asked(logical_server, database, "INSERT INTO t VALUES (0, 'before')")
            engine = build(logical_server, database, ["public.t"], tmp_path / f"{kind}{number}", f"{kind}{number}")
            try:
                found[kind].append(captured_around_a_restart(logical_server, engine, database))
            finally:
                engine.kill()
        if found["offset"][-1] != {1, 2, 3, 4}:
            break  # else the server has written something of its own in between
    assert all(keys == {1, 2, 3, 4} for keys in found["slot"]), found
    assert found["offset"][-1] == {2, 4}, f"if nothing is lost any more, the docs may say so: {found}"
