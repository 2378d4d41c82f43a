"""A made-up bank: transactions side by side on a table of accounts, the messages that Debezium would make of them, and the truth.

Put here how accounts come to change. The same seed gives the same messages on every version of Python: randomness is
`random.Random(int).random()` alone. What a change means is said nowhere here: `Bank.rows_at` replays what the bank has done, and no
message, so that tests can hold against it what is made of the messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, Final

SCHEMA, TABLE, DATABASE = "public", "accounts", "bank"
SYSTEM: Final = "7301234567890123456"
NOT_SENT: Final = "__debezium_unavailable_value"
LONG: Final = 60
"""A note of so many letters is kept out of its row, and not sent by an update that leaves it as it is."""
EPOCH: Final = datetime(2024, 1, 1, 6, tzinfo=UTC)

Row = dict[str, Any]
COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "1": ("account_id", "owner", "email", "balance", "opened_at", "note"),
    "2": ("account_id", "owner", "email", "balance", "opened_at", "note", "tier"),
    "3": ("account_id", "owner", "contact", "balance", "opened_at", "note", "tier"),
}
"""The table's columns by version: one was added, then one renamed."""


@dataclass(frozen=True)
class Message:
    """A message as Debezium's engine hands it over: key and value, each JSON or None."""

    key: Row | None
    value: Row | None

    def line(self) -> str:
        """Return it as a line of a delivered file."""
        return json.dumps({"key": self.key, "value": self.value})


@dataclass(frozen=True)
class _Change:
    op: str
    lsn: int
    key: int | None
    row: Row | None = None
    sent: Row | None = None


@dataclass
class _Open:
    number: int
    changes: list[_Change] = field(default_factory=list)
    rows: dict[int, Row | None] = field(default_factory=dict)


@dataclass
class Bank:
    """A bank at work: its transactions are in `messages`, each whole, in the order of their commits.

    Attributes:
        seed: of all that is random.
        accounts: how many numbers of accounts there are.
        seconds: the most that goes by between two steps.
        truncates: the share of transactions that empty the table.
        renumbers: the share of changes of an account that give it another number.
    """

    seed: int
    accounts: int = 20
    seconds: int = 3_600
    truncates: float = 0.01
    renumbers: float = 0.1
    messages: list[Message] = field(default_factory=list)
    commits: list[tuple[int, datetime]] = field(default_factory=list)
    version: str = "1"
    _effects: list[tuple[int, dict[int, Row | None] | None]] = field(default_factory=list)
    _rows: dict[int, Row] = field(default_factory=dict)
    _lsn: int = 1_000
    _number: int = 700
    _last_commit: int = 0
    _previous: int | None = None
    _at: datetime = EPOCH

    def __post_init__(self) -> None:
        """Begin with the seed."""
        self._draw = Random(self.seed)  # noqa: S311 - no secret

    # --- what happens -------------------------------------------------------------------------------------------------

    def work(self, transactions: int) -> None:
        """Begin, go on with and end so many transactions, up to three at a time; some of them are given up."""
        begun, open_ones = 0, list[_Open]()
        while begun < transactions or open_ones:
            if begun < transactions and len(open_ones) < 3 and self._chance(0.5):  # noqa: PLR2004
                self._number += 1
                begun += 1
                open_ones.append(_Open(self._number))
            elif open_ones:
                one = open_ones[self._below(len(open_ones))]
                if self._chance(0.6):
                    self._step(one, open_ones)
                elif one.changes:
                    open_ones.remove(one)
                    if self._chance(0.9):
                        self._commit(one)
            if begun < transactions and not open_ones and self._chance(self.truncates):
                self._truncate()

    def snapshot(self) -> int:
        """Have the table read whole, with nothing under way; return the LSN that the reads are of."""
        lsn = self._next_lsn()
        self._tick()
        rows = sorted(self._rows.items())
        for place, (key, row) in enumerate(rows):
            mark = "last" if place == len(rows) - 1 else "first" if place == 0 else "true"
            source = self._source(lsn, None, mark, None)
            value = {
                "before": None,
                "after": dict(row),
                "source": source,
                "transaction": None,
                "op": "r",
                "ts_ms": self._millis,
            }
            self.messages.append(Message({"account_id": key}, value))
        self.commits.append((lsn, self._at))
        self._previous = None  # an engine that has just begun knows of no commit before
        return lsn

    def evolve(self) -> None:
        """Go on with the next version of the table: a column more, or one under another name."""
        old, self.version = self.version, str(int(self.version) + 1)
        if self.version not in COLUMNS:
            raise ValueError(f"there is no version {self.version} of the table")
        names = {"email": "contact"} if old == "2" else {}
        self._rows = {
            key: self._as_now({names.get(name, name): said for name, said in row.items()})
            for key, row in self._rows.items()
        }
        # readers of the truth are told in the newest names, whenever it was
        self._effects.append((self._lsn, {key: dict(row) for key, row in self._rows.items()}))

    def rows_at(self, lsn: int) -> dict[int, Row]:
        """Return the rows of the table right after the commit at an LSN, by account, under the names of that time."""
        rows: dict[int, Row] = {}
        for commit, changed in self._effects:
            if commit > lsn:
                break
            if changed is None:
                rows.clear()
                continue
            for key, row in changed.items():
                if row is None:
                    rows.pop(key, None)
                else:
                    rows[key] = row
        return rows

    @property
    def lsn(self) -> int:
        """The newest position."""
        return self._lsn

    # --- steps --------------------------------------------------------------------------------------------------------

    def _step(self, one: _Open, others: list[_Open]) -> None:
        """Create, change, delete or renumber an account that no other transaction has touched."""
        taken = {key for other in others if other is not one for key in other.rows}
        free = [key for key in range(1, self.accounts + 1) if key not in taken]
        if not free:
            return
        key = free[self._below(len(free))]
        row = one.rows[key] if key in one.rows else self._rows.get(key)
        if row is None:
            self._put(one, "c", key, self._new(key))
        elif self._chance(0.15):
            one.changes.append(_Change("d", self._next_lsn(), key))
            one.rows[key] = None
        elif self._chance(self.renumbers):
            other = free[self._below(len(free))]
            if (one.rows[other] if other in one.rows else self._rows.get(other)) is None:
                self._renumber(one, key, other, row)
        else:
            self._update(one, key, row)

    def _put(self, one: _Open, op: str, key: int, row: Row, sent: Row | None = None) -> None:
        one.changes.append(_Change(op, self._next_lsn(), key, row, row if sent is None else sent))
        one.rows[key] = row

    def _update(self, one: _Open, key: int, row: Row) -> None:
        changed = row | {"balance": f"{self._below(100_000) / 100:.2f}"}
        if self._chance(0.2):
            changed["note"] = self._note()
        if self._chance(0.1):
            changed["owner"] = f"owner {self._below(50)}"
        left = len(str(row["note"] or "")) >= LONG and changed["note"] == row["note"]
        self._put(one, "u", key, changed, changed | ({"note": NOT_SENT} if left else {}))

    def _renumber(self, one: _Open, key: int, other: int, row: Row) -> None:
        """Give an account another number: one change of the log, which comes as a delete and a create."""
        lsn, moved = self._next_lsn(), row | {"account_id": other}
        left = {"note": NOT_SENT} if len(str(row["note"] or "")) >= LONG else {}
        one.changes += [_Change("d", lsn, key), _Change("c", lsn, other, moved, moved | left)]
        one.rows |= {key: None, other: moved}

    def _truncate(self) -> None:
        self._number += 1
        one = _Open(self._number, [_Change("t", self._next_lsn(), None)])
        self._emit(one)
        self._effects.append((self._last_commit, None))
        self._rows.clear()

    def _commit(self, one: _Open) -> None:
        self._emit(one)
        self._effects.append((self._last_commit, one.rows))
        for key, row in one.rows.items():
            if row is None:
                self._rows.pop(key, None)
            else:
                self._rows[key] = row

    # --- messages -----------------------------------------------------------------------------------------------------

    def _emit(self, one: _Open) -> None:
        began, commit = one.changes[0].lsn, self._next_lsn()
        self._tick()
        name = f"{one.number}:{began}"
        self._boundary("BEGIN", name, None)
        for place, change in enumerate(one.changes, 1):
            before = None if change.op != "d" else self._key_only(change.key)
            value = {
                "before": before,
                "after": change.sent,
                "source": self._source(change.lsn, one.number, "false", self._previous),
                "transaction": {"id": name, "total_order": place, "data_collection_order": place},
                "op": change.op,
                "ts_ms": self._millis + 5,
            }
            key = None if change.key is None else {"account_id": change.key}
            self.messages.append(Message(key, value))
            if change.op == "d":
                self.messages.append(Message(key, None))
        self._boundary("END", f"{one.number}:{commit}", len(one.changes))
        self.commits.append((commit, self._at))
        self._last_commit = self._previous = commit

    def _boundary(self, status: str, name: str, count: int | None) -> None:
        tables = None if count is None else [{"data_collection": f"{SCHEMA}.{TABLE}", "event_count": count}]
        value = {"status": status, "id": name, "event_count": count, "data_collections": tables, "ts_ms": self._millis}
        self.messages.append(Message({"id": name}, value))

    def _source(self, lsn: int, transaction: int | None, snapshot: str, previous: int | None) -> Row:
        micros = self._millis * 1_000
        said = json.dumps([None if previous is None else str(previous), str(lsn)], separators=(",", ":"))
        return {
            "version": "3.6.3.Final",
            "connector": "postgresql",
            "name": DATABASE,
            "ts_ms": self._millis,
            "snapshot": snapshot,
            "db": DATABASE,
            "sequence": said,
            "ts_us": micros,
            "ts_ns": micros * 1_000,
            "schema": SCHEMA,
            "table": TABLE,
            "txId": transaction,
            "lsn": lsn,
            "xmin": None,
        }

    def _key_only(self, key: int | None) -> Row:
        return dict.fromkeys(COLUMNS[self.version]) | {"account_id": key}

    # --- values -------------------------------------------------------------------------------------------------------

    def _new(self, key: int) -> Row:
        opened = int((self._at - timedelta(days=self._below(40))).timestamp()) * 1_000_000
        row = {
            "account_id": key,
            "owner": f"owner {self._below(50)}",
            "email": f"a{key}@example.com" if self._chance(0.8) else None,
            "balance": f"{self._below(100_000) / 100:.2f}",
            "opened_at": opened,
            "note": self._note(),
        }
        if self.version == "3":
            row["contact"] = row.pop("email")
        return self._as_now(row)

    def _as_now(self, row: Row) -> Row:
        return {name: row.get(name) for name in COLUMNS[self.version]}

    def _note(self) -> str | None:
        return (None, "", "short", "ä long note, " * 8, "another long note, " * 6)[self._below(5)]

    @property
    def _millis(self) -> int:
        return int(self._at.timestamp() * 1_000)

    def _tick(self) -> None:
        self._at += timedelta(milliseconds=1 + self._below(self.seconds * 1_000))

    def _next_lsn(self) -> int:
        self._lsn += 8 + self._below(200)
        return self._lsn

    def _below(self, bound: int) -> int:
        return int(self._draw.random() * bound)

    def _chance(self, share: float) -> bool:
        return self._draw.random() < share


def log_facts(slot: str = "backfill", timeline: int = 1) -> Row:
    """Return what `log.json` says beside the files of the bank."""
    return {"system_identifier": SYSTEM, "timeline": timeline, "database": DATABASE, "slot": slot}


def lines_of(messages: list[Message]) -> Iterator[str]:
    """Yield messages as lines of a delivered file."""
    return (one.line() for one in messages)
