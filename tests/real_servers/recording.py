"""What Debezium says of a small history: `python -m real_servers.recording` writes it to `tests/recorded`.

`debezium_changes.jsonl` is a history without an incident, `debezium_killed.jsonl` one whose engine was killed amid a transaction, `debezium_again.jsonl` (not
recorded anew: two transactions of a workload of `changing.py`) what comes again after a server was killed.
Put here the history and how it is recorded; what the messages mean is said here, and held by `test_real_servers.py`. The settings
are `SETTINGS` of `debezium.py`. Each line is a message as `debezium_engine.py` writes it, in the order of the stream:

    {"destination": "shop.public.stock", "key": "{\\"id\\":2}", "value": "{\\"before\\":null,\\"after\\":{…},\\"source\\":{…},…}"}

Values of the kinds of message, `source` and the times shortened:

    read      {"before":null,"after":{"id":1,"item":"bolt",…},"source":{"snapshot":"last","sequence":"[null,\\"26370152\\"]",
               "txId":730,"lsn":26370152,…},"transaction":null,"op":"r"}
    begin     {"status":"BEGIN","id":"735:26376624","event_count":null,"data_collections":null,"ts_ms":…}      shop.transaction
    insert    {"before":null,"after":{…},"source":{"sequence":"[\\"26376480\\",\\"26376624\\"]","txId":735,"lsn":26376624,…},
               "transaction":{"id":"735:26376624","total_order":1,"data_collection_order":1},"op":"c"}
    update    {"before":null,"after":{"quantity":8,"notes":"__debezium_unavailable_value",…},…,"op":"u"}      unchanged, TOASTed
    delete    {"before":{"id":2,"item":"","quantity":null,…},"after":null,…,"op":"d"}         the key only: others are no values
    tombstone null, with the key of the delete before it
    key       a delete of the old key, its tombstone, then an insert of the new one (`op` is `c`), in one transaction; the insert
               has "__debezium_unavailable_value" where a TOASTed column is what it was under the old key
    truncate  {"before":null,"after":null,…,"op":"t"}, and the message's key is null
    end       {"status":"END","id":"735:26377192","event_count":2,"data_collections":[{"data_collection":"public.stock",
               "event_count":2}],"ts_ms":…}; tombstones are not counted

Which LSN is which (an experiment with interleaved transactions says so, and the server's own pgoutput beside it):

- `source.lsn` is that of the row's record in the log. It does not ascend where transactions interleave, and two messages (the
  delete and the insert of a changed key) can have the same.
- `transaction.id` is `<txId>:<source.lsn>`: another one for each row. Only what stands before the colon names the transaction.
- The `id` of END is `<txId>:<end of the commit's record>`. It ascends along the stream, and a state of the server at an LSN
  holds the transactions whose END is at or below it. No message has the LSN at which the commit's record begins.
- `source.sequence[0]` is the END of the transaction before it in this stream (null if the offset file knows of none): a chain,
  by which a transaction that is missing is found. `source.sequence[1]` is `source.lsn`.
- Where the engine was killed amid a transaction, it goes on amid it: some rows come again, BEGIN does not; `total_order` and the
  `event_count` of END count on as if nothing had happened, but `source.sequence[0]` of what follows is an LSN within the
  transaction, the one that the offset file had. The next transaction's is right again.
- Where transactions interleave, those that were delivered come again without their changes: a BEGIN, and an END whose `event_count`
  is 0. The one that was being delivered comes with a second BEGIN and the changes that follow, whose `total_order` begins at 1
  again, as does the `event_count` of its END. So a change is told from another by its transaction, `source.lsn` and `op` (and key,
  where COPY has written many rows at one LSN), never by `total_order`; and of ENDs of one transaction none says how many
  changes it has. A workload of a million changes had 18 such transactions at five restarts.
- **Changes can be lost**: the offset is an LSN, and the delete and the insert of a changed key have the same. An engine that went on
  after it had acknowledged a batch that ends with the delete never delivered the insert (key 86465 of a workload of a million
  changes), and no count or sequence told. The tests' engine therefore acknowledges whole transactions only, unless it is told
  otherwise. That is not enough where transactions interleave: the LSN of an END is also that of the record that follows on the commit,
  which may be a row of a transaction that is still open. The search for the place to go on (`WalPositionLocator`) takes it for the
  one that was delivered last, and leaves out all of its transaction up to there (`test_real_servers.py` has it happen).
  `supervised.py` has an engine that never goes on from an offset, and loses none.
- A read's `source.lsn` is the consistent point of the slot that was created for the snapshot: END at or below it is in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from real_servers.debezium import Debezium, debezium
from real_servers.postgresql import LogicalPostgres, logical_postgres

FILE = Path(__file__).resolve().parent.parent / "recorded" / "debezium_changes.jsonl"
AGAIN = FILE.with_name("debezium_again.jsonl")
KILLED = FILE.with_name("debezium_killed.jsonl")
TABLES = ("public.stock", "public.shelf")
_SMALL = {"max.batch.size": "4", "max.queue.size": "8"}
LAST = "the last of all"
"""A text that only the last message contains."""
_TABLES = (
    (
        "CREATE TABLE stock (id bigint PRIMARY KEY, item text NOT NULL, quantity int, price numeric(12, 2),"
        " notes text, changed timestamptz, noticed timestamp, day date, counted boolean, tags jsonb)"
    ),
    "ALTER TABLE stock ALTER notes SET STORAGE EXTERNAL",
    "CREATE TABLE shelf (place text, level int, item bigint, PRIMARY KEY (place, level))",
    "ALTER TABLE shelf REPLICA IDENTITY FULL",
    (
        "INSERT INTO stock VALUES (1, 'bolt', 5, 0.10, NULL, '2026-01-02 03:04:05.678901+01', '2026-01-02 03:04:05.678901',"
        " '2026-01-02', true, '{\"a\": [1, 2.50]}')"
    ),
    "INSERT INTO shelf VALUES ('north', 1, 1)",
)
_HISTORY = (
    "INSERT INTO stock VALUES (2, 'nut', 7, 0.05, repeat('long ', 600), '2026-01-02 03:04:05+00')",
    "UPDATE stock SET quantity = 8 WHERE id = 2",  # its notes are stored apart, and not said
    "UPDATE stock SET notes = 'short' WHERE id = 2",
    "DELETE FROM stock WHERE id = 2",
    "UPDATE stock SET id = 3 WHERE id = 1",
    "INSERT INTO stock (id, item, notes) VALUES (5, 'washer', repeat('long ', 600))",
    "UPDATE stock SET id = 6 WHERE id = 5",  # the insert of the new key does not say its notes, either
    "UPDATE shelf SET level = 2; UPDATE shelf SET item = 3; DELETE FROM shelf",  # one transaction
)
_AFTER = (
    "ALTER TABLE stock ADD COLUMN maker text DEFAULT 'unknown'",
    "INSERT INTO stock (id, item, maker) VALUES (50, 'gear', 'Ada')",
    "ALTER TABLE stock RENAME COLUMN maker TO made_by",
    "UPDATE stock SET quantity = 1 WHERE id = 50",
    "INSERT INTO stock SELECT n, 'many' FROM generate_series(60, 62) n; TRUNCATE stock",
    f"INSERT INTO stock (id, item) VALUES (99, '{LAST}')",
)


@contextmanager
def recorded(server: LogicalPostgres) -> Iterator[tuple[Debezium, Any]]:
    """Let the small history happen in a database of its own; yield the engine that has captured it, and a cursor there.

    A slot `witness` has what the server itself says of everything but the snapshot.
    """
    database = server.database().rpartition("/")[2]
    connections = [server.connection(database) for _ in range(3)]
    one, other, third = (connection.cursor() for connection in connections)
    connections[0].autocommit = True
    try:
        for statement in _TABLES:
            one.execute(statement)
        with debezium(server, database, TABLES, "shop") as engine:
            engine.until('"snapshot":"last"')
            one.execute("SELECT pg_create_logical_replication_slot('witness', 'pgoutput')")
            for statement in _HISTORY:
                one.execute(statement)
            _interleave(other, third)
            for statement in _AFTER:
                one.execute(statement)
            engine.until(LAST)
            engine.until('"END"', after=LAST)
            engine.stop()
            yield engine, one
    finally:
        for connection in connections:
            connection.close()


def _interleave(one: Any, other: Any) -> None:
    """Let two transactions write by turns; the one that began last commits first. A third has rows that it takes back."""
    one.execute("INSERT INTO stock (id, item) VALUES (10, 'one')")
    other.execute("INSERT INTO stock (id, item) VALUES (20, 'other')")
    one.execute("INSERT INTO stock (id, item) VALUES (11, 'one')")
    other.execute("UPDATE stock SET quantity = 4 WHERE id = 3")
    one.execute("UPDATE stock SET quantity = 2 WHERE id = 10")
    other.connection.commit()
    one.connection.commit()
    one.execute("INSERT INTO stock (id, item) VALUES (30, 'kept')")
    one.execute("SAVEPOINT here; INSERT INTO stock (id, item) VALUES (31, 'taken back'); ROLLBACK TO here")
    one.execute("SAVEPOINT here; INSERT INTO stock (id, item) VALUES (32, 'kept')")
    one.connection.commit()
    one.execute("INSERT INTO stock (id, item) VALUES (40, 'aborted')")
    one.connection.rollback()


@contextmanager
def killed(server: LogicalPostgres) -> Iterator[Debezium]:
    """Kill the engine amid a transaction of 16 rows that it captures in batches of 4, and let it go on; yield it then."""
    database = server.database().rpartition("/")[2]
    connection = server.connection(database)
    connection.autocommit = True
    cursor = connection.cursor()
    try:
        cursor.execute("CREATE TABLE line (id bigint PRIMARY KEY, word text)")
        cursor.execute("INSERT INTO line VALUES (1, 'before')")
        with debezium(server, database, ["public.line"], "cut", _SMALL, "batches") as engine:
            engine.until('"snapshot":"last"')
            cursor.execute("INSERT INTO line VALUES (2, 'one of its own')")
            engine.until("one of its own")
            engine.hold("row 11")
            cursor.execute("INSERT INTO line SELECT 10 + n, 'row ' || n FROM generate_series(1, 16) n")
            engine.until("row 11")
            engine.kill()
            engine.release()
            engine.start()
            cursor.execute(f"INSERT INTO line VALUES (3, '{LAST}')")
            engine.until(LAST)
            engine.until('"END"', after=LAST)
            engine.stop()
            yield engine
    finally:
        connection.close()


def main() -> None:
    """Record both histories anew."""
    with logical_postgres() as server:
        with recorded(server) as (engine, _):
            _write(engine, FILE)
        with killed(server) as engine:
            _write(engine, KILLED)


def _write(engine: Debezium, file: Path) -> None:
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in engine.records()]
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(lines), encoding="utf-8")
    print(f"{file}: {len(lines)} messages")


if __name__ == "__main__":
    main()
