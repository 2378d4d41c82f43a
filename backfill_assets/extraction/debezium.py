"""Messages of Debezium, as JSON: a change of a row, the beginning or end of a transaction, or what says nothing of a row.

Put here how one message is read: pure, a text in, a record or the rule that it breaks out. Which messages make a whole transaction is
`change_files`'; what a change means, a product's. Which LSN is which was tried on a server: `lsn` of a change's source is its own, the
`id` of END has that of its transaction's commit, and `sequence` begins with the commit before it in the stream, or null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from manifests.log_ranges import lsn as lsn_in_words

_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"[0-9]{1,19}")
_HALF = re.compile(r"\\u[dD][89a-fA-F]")
"""What may be half of a letter that JSON writes in two halves."""
_TRANSACTION = re.compile(r"([0-9]{1,19})(?::([0-9]{1,19}))?")
"""The id of a transaction: the database's number, and the LSN of the message that names it."""
_LARGEST = 2**63 - 1
_LAST_POSITION = 2**63 - 2
"""Of a log: where a range ends is a number of 64 bits, too."""
_DEEPEST = 100
"""How deep a message is nested at most: with its schema it is some ten deep, and a column of JSON comes as a text."""
_OPS = ("c", "u", "d", "r", "t", "m")
TRUNCATE = "t"
MESSAGE = "m"
"""A message that a program has written into the log: part of a transaction, and no change of a row."""
_NO_ROW = (TRUNCATE, MESSAGE)
_CONNECTOR = "postgresql"
_SNAPSHOT_WORDS = (
    "false",
    "first",
    "first_in_data_collection",
    "true",
    "last_in_data_collection",
    "last",
    "incremental",
)
"""What `source.snapshot` says of a change (the first of them), or of a read."""


class UnreadableError(Exception):
    """A text is no message of Debezium: the rule that it breaks, and the offending value in words."""

    def __init__(self, rule: str, detail: str = "") -> None:
        """Say which rule it breaks."""
        super().__init__(rule, detail)
        self.rule, self.detail = rule, detail


class ForeignError(UnreadableError):
    """A message says that it is of something that nothing here can read: what it means nobody knows, so its whole delivery is refused.

    `what` says what it says and at which LSN, `fix` what to do.
    """

    def __init__(self, what: str, rule: str, fix: str) -> None:
        """Say what it says, which rule that breaks, and what to do."""
        super().__init__(rule, what)
        self.what, self.fix = what, fix


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a row, or what a snapshot has read of one.

    Attributes:
        op: c, u, d, r or t; m of a message in the log.
        table: schema.table.
        lsn: of the change; of a read, that of its snapshot.
        previous: the commit before its transaction in the stream; None where the connector did not know one.
        transaction: the database's id; None of a read.
        order: its place in its transaction, from 1, over all tables; 0 of a read.
        key: the message's key, if it came with one.
        before: the row before as it came, a JSON text; None where nothing came. `after`: the row after.
        row: the one of them that says which columns there are, read; None where there is none.
        micros: when its transaction was committed, or the row read, in microseconds since 1970.
        snapshot: what a read says of its place in its snapshot: `first`, `true`, `last`, ...; empty of any other change.
        database: the one that its source names; None where it names none.
        was: the row before, read; None where nothing came.
    """

    op: str
    table: str
    lsn: int
    previous: int | None
    transaction: str | None
    order: int
    key: Mapping[str, Any] | None
    before: str | None
    after: str | None
    row: Mapping[str, Any] | None
    micros: int
    snapshot: str
    database: str | None = None
    was: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Boundary:
    """The beginning or the end of a transaction; the LSN of an end is that of the commit, and `count` how many changes it has."""

    is_end: bool
    transaction: str
    lsn: int
    count: int


@dataclass(frozen=True, slots=True)
class SaysNothing:
    """A message that says nothing of a row: a tombstone, or a heartbeat."""

    what: str


Read = Change | Boundary | SaysNothing
_Part = tuple[Any, int, int]


def message_of(line: str) -> Read:
    """Return what a line says: `{"key": …, "value": …}`, each as JSON or as a text of it, or the value alone; schemas may be there or not.

    Raises:
        UnreadableError: if it is no message of Debezium.
        ForeignError: if it is one, of another database than PostgreSQL or of a snapshot of an unknown kind.
    """
    parts = _members(line, 0)
    if parts is None:
        raise UnreadableError("a line is a JSON object", line[:80])
    key, text, at = None, line, 0
    if "value" in parts and "op" not in parts:
        key = _key(parts["key"][0]) if "key" in parts else None
        value, at, _ = parts["value"]
        if value is None:
            return SaysNothing("tombstone")
        is_text = isinstance(value, str)
        if is_text:
            text, at = value, 0
        parts = _members(text, at, is_checked=not is_text)
    if parts is not None and set(parts) == {"schema", "payload"}:
        if parts["payload"][0] is None:
            return SaysNothing("tombstone")
        parts = _members(text, parts["payload"][1], is_checked=True)
    if parts is None:
        raise UnreadableError("a message's value is a JSON object", text[at : at + 80])
    if "status" in parts:
        return _boundary({name: value for name, (value, _, _) in parts.items()})
    if set(parts) == {"ts_ms"}:
        return SaysNothing("heartbeat")
    return _change(text, parts, key)


def _change(text: str, parts: Mapping[str, _Part], key: Mapping[str, Any] | None) -> Change:
    said = {name: value for name, (value, _, _) in parts.items()}
    op, source = said.get("op"), said.get("source")
    if op not in _OPS:
        raise UnreadableError("op is one of " + ", ".join(_OPS), str(op)[:80])
    if not isinstance(source, Mapping):
        raise UnreadableError("a change has a source", str(source)[:80])
    snapshot = _snapshot(source)
    lsn, sequence = _lsn(source.get("lsn"), "source.lsn"), _sequence(source.get("sequence"))
    if op == "r":
        if snapshot in {"false", "incremental"}:
            raise UnreadableError(
                "a read is part of a snapshot of the whole table, none of an incremental one", snapshot
            )
        transaction, order = None, 0
    else:
        transaction, order = _place(said.get("transaction"))
        snapshot = ""
    rows = {name: said.get(name) for name in ("before", "after")}
    needed = _row_of(op, rows, key)
    texts = {name: None if rows[name] is None else text[parts[name][1] : parts[name][2]] for name in rows}
    return Change(
        op,
        _table(op, source),
        lsn,
        sequence,
        transaction,
        order,
        key,
        texts["before"],
        texts["after"],
        needed,
        _micros(source),
        snapshot,
        _database(source),
        rows["before"],
    )


def _row_of(
    op: str, rows: Mapping[str, Mapping[str, Any] | None], key: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """Return the row of a change that says which columns there are; None where it is of no row."""
    for name, row in rows.items():
        if not (row is None or isinstance(row, Mapping)):
            raise UnreadableError(f"{name} is a row or null", str(row)[:80])
    if op in _NO_ROW:
        if op == TRUNCATE and (key is not None or any(row is not None for row in rows.values())):
            raise UnreadableError("a truncate is of all rows, and names none: it has no key and no row")
        return None
    needed = rows["before"] if op == "d" else rows["after"]
    if needed is None:
        raise UnreadableError("a change has its row: a delete the one before, any other the one after", f"op {op}")
    if op == "d" and rows["after"] is not None:
        raise UnreadableError("a delete leaves no row", "after")
    return needed


def _table(op: str, source: Mapping[str, Any]) -> str:
    """Return the table of a change: one that names none would be taken for a change of another table, and left out."""
    names = source.get("schema"), source.get("table")
    if op != MESSAGE and not all(isinstance(name, str) and name for name in names):
        raise UnreadableError("source names the table: schema and table", str(names)[:80])
    return ".".join(map(str, names))


def _snapshot(source: Mapping[str, Any]) -> str:
    """Return what a source says of its place in a snapshot; `false` where it says nothing.

    Raises:
        ForeignError: if it says something that no connector of PostgreSQL says, or is another connector's.
    """
    position = source.get("lsn")
    at = f" at LSN {lsn_in_words(position)}" if type(position) is int and 0 <= position <= _LAST_POSITION else ""
    connector, said = source.get("connector"), source.get("snapshot")
    if connector not in (None, _CONNECTOR):
        raise ForeignError(
            f"source.connector is {connector!r:.80}{at}",
            f"a log of changes is PostgreSQL's: source.connector is {_CONNECTOR}",
            "take the files of another connector out of the folder: their positions and transactions are read otherwise",
        )
    if said is not None and said not in _SNAPSHOT_WORDS:
        raise ForeignError(
            f"source.snapshot is {said!r:.80}{at}",
            f"source.snapshot is one of {', '.join(_SNAPSHOT_WORDS)}",
            "deliver the messages as Debezium has written them, without a transform that rewrites source: by this word a"
            " snapshot is told from a change, and its last row from the others",
        )
    return said or _SNAPSHOT_WORDS[0]


def _database(source: Mapping[str, Any]) -> str | None:
    database = source.get("db")
    if not (database is None or isinstance(database, str)):
        raise UnreadableError("source.db is the name of a database", str(database)[:80])
    return database


def _boundary(said: Mapping[str, Any]) -> Boundary:
    status = said["status"]
    if status not in ("BEGIN", "END"):
        raise UnreadableError("a transaction's message is BEGIN or END, with its id", str(status)[:80])
    number, lsn = _transaction(said.get("id"))
    count = said.get("event_count")
    if status == "END" and (type(count) is not int or count < 0):
        raise UnreadableError("END says how many changes its transaction has", str(count)[:80])
    return Boundary(status == "END", number, _lsn(lsn, "the LSN in a transaction's id"), count or 0)


def _place(transaction: Any) -> tuple[str, int]:
    """Return the transaction of a change and its place in it."""
    if not isinstance(transaction, Mapping):
        raise UnreadableError(
            "a change names its transaction: the connector is to have provide.transaction.metadata=true"
        )
    (number, _), order = _transaction(transaction.get("id")), transaction.get("total_order")
    order = int(order) if isinstance(order, str) and _NUMBER.fullmatch(order) else order
    if type(order) is not int or not 1 <= order <= _LARGEST:
        raise UnreadableError("a change has its place in its transaction, from 1", str(transaction)[:80])
    return number, order


def _transaction(value: Any) -> tuple[str, str | None]:
    """Return the number of a transaction and the LSN beside it, of `571:24023128`."""
    found = _TRANSACTION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise UnreadableError("the id of a transaction is a text with its number, as 571:24023128", str(value)[:80])
    return found[1], found[2]


def _lsn(value: Any, what: str) -> int:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = int(value)
    if type(value) is not int or not 0 <= value <= _LAST_POSITION:
        raise UnreadableError(f"{what} is a whole number from 0, less than 2^63 - 1", str(value)[:80])
    return value


def _sequence(value: Any) -> int | None:
    """Return the commit before, of `["24023119", "24023128"]`."""
    try:
        said = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, list) or len(said) != 2:  # noqa: PLR2004 - commit before, and LSN
        raise UnreadableError("source.sequence has the commit before and the LSN", str(value)[:80])
    return None if said[0] is None else _lsn(said[0], "the commit before")


def _micros(source: Mapping[str, Any]) -> int:
    micros, millis = source.get("ts_us"), source.get("ts_ms")
    if type(micros) is int and 0 <= micros <= _LARGEST // 1_000:
        return micros
    if type(millis) is int and 0 <= millis <= _LARGEST // 1_000_000:
        return millis * 1_000
    raise UnreadableError("source says when it was: ts_us or ts_ms", f"{micros}, {millis}"[:80])


def _key(value: Any) -> Mapping[str, Any] | None:
    try:
        said = _whole(value) if isinstance(value, str) else value
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise UnreadableError("a message's key is JSON", str(value)[:80]) from None
    if isinstance(said, Mapping) and set(said) == {"schema", "payload"}:
        said = said["payload"]
    if not (said is None or isinstance(said, Mapping)):
        raise UnreadableError("a message's key is an object or null", str(said)[:80])
    return said


def _no_number(text: str) -> Any:
    raise UnreadableError("a number is none that JSON has", text)


def members_once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of a JSON object: which of two of one name counts, readers of JSON do not agree about.

    Raises:
        UnreadableError: if one is there twice, however its name is written.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _twice(next(name for name in names if names.count(name) > 1))
    return found


def _twice(name: str) -> UnreadableError:
    return UnreadableError("a message has each member once", name[:80])


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=members_once)
_OF_CHECKED = json.JSONDecoder()
"""Of an object within one that was read already: what is within it is not checked twice, which takes its time."""


def _whole(text: str) -> Any:
    said = _DECODER.decode(text)
    _require_shallow(text, 0, len(text), said)
    _require_letters(text, 0, len(text), said)
    return said


def _too_deep() -> UnreadableError:
    return UnreadableError(f"a message is nested no deeper than {_DEEPEST} times")


def _require_shallow(text: str, begin: int, end: int, said: Any) -> None:
    """Refuse what is nested so deep that how far it can be read depends on who reads it."""
    if text.count("{", begin, end) + text.count("[", begin, end) <= _DEEPEST:
        return
    level = [said]
    for _ in range(_DEEPEST):
        inside = [value for one in level for value in (one.values() if isinstance(one, dict) else one)]
        level = [value for value in inside if isinstance(value, dict | list)]
        if not level:
            return
    raise _too_deep()


def _require_letters(text: str, begin: int, end: int, said: Any) -> None:
    """Refuse half a letter, as an escape without its other half is: no text has one, and nothing could be written of it."""
    if _HALF.search(text, begin, end) is None:
        return
    try:
        json.dumps(said, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UnreadableError(
            "a text of JSON has whole letters", f"half a letter: {error.object[error.start]!a}"
        ) from None


def _members(text: str, at: int, *, is_checked: bool = False) -> dict[str, _Part] | None:
    """Return the members of the JSON object that begins at a place: each value, and where it begins and ends; None if there is no object.

    One that `is_checked` is within another whose members were returned before.

    Raises:
        UnreadableError: if it is damaged, nested too deep, or has a member twice, or anything within it does.
    """
    decoder = _OF_CHECKED if is_checked else _DECODER
    at = first = _after_space(text, at)
    if text[at : at + 1] != "{":
        return None
    found: dict[str, _Part] = {}
    at = _after_space(text, at + 1)
    while text[at : at + 1] != "}":
        name, value, begin, end = _member(text, at, decoder)
        if name in found:
            raise _twice(name)
        found[name] = value, begin, end
        at = _after_space(text, end)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        elif text[at : at + 1] != "}":
            raise UnreadableError("a line is a whole JSON object", text[at : at + 80] or "it ends too early")
    if is_checked:
        return found
    said = {name: value for name, (value, _, _) in found.items()}
    _require_shallow(text, first, at + 1, said)
    _require_letters(text, first, at, said)
    return found


def _member(text: str, at: int, decoder: json.JSONDecoder) -> tuple[str, Any, int, int]:
    """Return the member that begins at a place: its name, its value, and where that begins and ends."""
    try:
        if text[at] != '"':
            raise UnreadableError("a line is a whole JSON object", text[at : at + 80])
        name, at = decoder.raw_decode(text, at)
        at = _after_space(text, at)
        if text[at] != ":":
            raise UnreadableError("a line is a whole JSON object", text[at : at + 80])
        begin = _after_space(text, at + 1)
        value, end = decoder.raw_decode(text, begin)
    except RecursionError:
        raise _too_deep() from None
    except (ValueError, IndexError) as error:
        raise UnreadableError("a line is a whole JSON object", str(error)[:80]) from None
    return name, value, begin, end


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
