"""A table that eight writers change is, at any LSN, what the landed messages of its changes come to."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
from real_servers.changing import Happened, Workload, change, create, exact
from real_servers.debezium import Debezium
from real_servers.landed import at, captured
from real_servers.postgresql import LogicalPostgres, logical_postgres
from real_servers.replaying import Numbered, states
from real_servers.supervised import Supervised

from backfill_assets.installation import Platform
from resources.spark.chunk_work import ThisProcess

pytestmark = pytest.mark.servers
WORKLOAD = Workload(
    transactions=int(os.environ.get("BACKFILL_TEST_TRANSACTIONS", "2000")),
    changes=int(os.environ.get("BACKFILL_TEST_CHANGES", "20000")),
    moments=int(os.environ.get("BACKFILL_TEST_MOMENTS", "50")),
    server_restarts=int(os.environ.get("BACKFILL_TEST_RESTARTS", "2")),
    engine_restarts=int(os.environ.get("BACKFILL_TEST_RESTARTS", "2")),
)
"""Server and engine are each killed once and restarted once; the engine is run as `docs/change-data-capture.md` says (`supervised.py`)."""


@pytest.fixture(scope="module")
def changed(
    tmp_path_factory: pytest.TempPathFactory, debezium_environment: None
) -> Iterator[tuple[Debezium, Happened]]:
    """What happened, and the engine that has captured it; the server is of its own, since it is killed."""
    folder = tmp_path_factory.mktemp("changed")
    with logical_postgres() as server:
        database = server.database().rpartition("/")[2]
        create(server, database, WORKLOAD)
        engine = Supervised(server, database, ["public.account"], folder / "engine", "work")
        try:
            yield engine, change(server, database, engine, WORKLOAD, folder / "moments")
        finally:
            engine.kill()


def test_everything_that_a_log_can_show_happened(changed: tuple[Debezium, Happened]) -> None:
    counts = changed[1].counts
    print(dict(counts))
    for what in ("inserts", "updates", "deletes", "key changes", "taken back", "savepoints taken back"):
        assert counts[what] > 10, what
    restarts = (
        counts["server killed"] + counts["server restarted"],
        counts["engine killed"] + counts["engine restarted"],
    )
    assert restarts == (WORKLOAD.server_restarts, WORKLOAD.engine_restarts)
    assert counts["column added"] == counts["column renamed"] == 1
    assert counts["changes"] >= 0.8 * WORKLOAD.changes
    assert sum("__debezium_unavailable_value" in str(one["value"]) for one in changed[0].records()) > 100


def test_messages_replayed_by_a_plain_loop_come_to_what_the_server_said_at_each_lsn(
    changed: tuple[Debezium, Happened],
) -> None:
    engine, happened = changed
    moments = sorted(happened.moments, key=lambda one: one.position)
    assert len(moments) == WORKLOAD.moments
    numbered = Numbered()
    for moment, rows in zip(moments, states(engine.records(), [one.position for one in moments]), strict=True):
        said = numbered.of_lines(moment.lines())
        assert sorted(map(numbered.of_row, rows.values())) == said, f"at {moment.position}"


def test_the_history_that_a_run_publishes_of_landed_changes_is_what_the_server_said_at_each_lsn(
    changed: tuple[Debezium, Happened], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, happened = changed
    monkeypatch.setattr(Platform, "workers", ThisProcess())  # Spark's workers do not import what a test declares
    world = captured(tmp_path / "home")
    done = world.land(engine.landing)
    assert (done.open, done.unreadable, len(done.loads)) == ((), {}, 1)
    assert world.land(engine.landing).loads == (), "what is landed comes once"
    history = world.history("history")
    numbered = Numbered()
    numbers = history.with_columns(says=pl.Series([numbered.of_row(row) for row in history.iter_rows(named=True)]))
    for moment in happened.moments:
        found = numbers.filter(at(moment.position))["says"].sort().to_list()
        assert found == numbered.of_lines(moment.lines()), f"at {moment.position}"
    world.platform.ledger.close()


def test_a_moment_sees_what_was_committed_up_to_its_lsn_and_nothing_else(
    logical_server: LogicalPostgres, tmp_path: Path
) -> None:
    """Writers commit all the while; the server's own decoding says where each commit ends."""
    database = logical_server.database().rpartition("/")[2]
    with logical_server.connection(database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE mark (number bigint)")
        cursor.execute("CREATE PUBLICATION marks FOR TABLE mark")
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("SELECT pg_create_logical_replication_slot('marks', 'pgoutput')")
    over = threading.Event()
    threads = [threading.Thread(target=_mark, args=(logical_server, database, over)) for _ in range(6)]
    for thread in threads:
        thread.start()
    seen: dict[int, set[int]] = {}
    try:
        for _ in range(30):
            with exact(logical_server, database, "mark") as (position, look):
                look.execute("SELECT number FROM mark")
                seen[position] = {number for (number,) in look.fetchall()}
    finally:
        over.set()
        for thread in threads:
            thread.join()
    cursor.execute(
        "SELECT xid::text::bigint, data FROM pg_logical_slot_get_binary_changes('marks', NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'marks')"
    )
    ends = {xid: struct.unpack(">Q", data[10:18])[0] for xid, data in cursor.fetchall() if bytes(data[:1]) == b"C"}
    connection.close()
    assert len(ends) > 200, "they did commit meanwhile"
    assert len({len(numbers) for numbers in seen.values()}) > 20
    for position, numbers in seen.items():
        assert numbers == {xid for xid, end in ends.items() if end <= position}, position


def _mark(server: LogicalPostgres, database: str, over: threading.Event) -> None:
    connection = server.connection(database)
    while not over.is_set():
        with connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO mark VALUES (txid_current())")
    connection.close()
