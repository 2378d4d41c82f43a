"""What landed messages of Debezium come to, by a plain loop: the state of the table of `changing.py` at LSNs.

It shares no code with what it is held against: the oracle of `changing.py`, and the project's reconstruction. It takes what comes
twice once, orders transactions by their END, and holds each END to the changes that came before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

UNAVAILABLE = "__debezium_unavailable_value"
Row = dict[str, Any]


@dataclass
class Transaction:
    """One transaction: its changes by LSN (and the delete of a changed key before its insert), and the position of its END.

    `order` is the place that the last change had when it came: an engine that goes on after a kill may count anew from 1.
    """

    changes: dict[tuple[int, int], Row] = field(default_factory=dict)
    position: int | None = None
    order: int = 0


def transactions(records: Iterable[Mapping[str, Any]]) -> tuple[int, dict[int, Row], list[Transaction]]:
    """Return the LSN of the snapshot, the rows it found by key, and the transactions after it in their order.

    Raises:
        AssertionError: if changes are missing before an END, or an END is.
    """
    snapshot, read, found = 0, {}, {}
    for record in records:
        if record["value"] is None:  # a tombstone
            continue
        value = json.loads(record["value"])
        if "status" in value:
            number, _, position = value["id"].partition(":")
            one = found.setdefault(int(number), Transaction())
            if value["status"] == "END":
                assert value["event_count"] == one.order, f"{number}: {one.order} changes before {value}"
                one.position = int(position)
            else:
                one.order = 0
        elif value["op"] == "r":
            snapshot, read[value["after"]["id"]] = value["source"]["lsn"], value["after"]
        else:
            one = found.setdefault(value["source"]["txId"], Transaction())
            order = value["transaction"]["total_order"]
            assert order <= one.order + 1, f"{one.order} changes before {value}"
            one.order = order
            one.changes[value["source"]["lsn"], int(value["op"] == "c")] = value
    open_ones = [number for number, one in found.items() if one.position is None]
    assert open_ones == [], "transactions without an END"
    return snapshot, read, sorted(found.values(), key=lambda one: one.position or 0)


def states(records: Iterable[Mapping[str, Any]], positions: Sequence[int]) -> Iterator[dict[int, Row]]:
    """Yield the rows by key at each of some ascending LSNs, which are not before the snapshot; the dictionary is one and the same.

    Raises:
        AssertionError: if a change does not fit the state that it finds, or a position is before the snapshot.
    """
    snapshot, rows, after = transactions(records)
    pending = iter(after)
    following = next(pending, None)
    for position in positions:
        assert position >= snapshot, f"at {position} nothing had been captured: the snapshot is of {snapshot}"
        while following is not None and (following.position or 0) <= position:
            _apply(following, rows)
            following = next(pending, None)
        yield rows


def _apply(transaction: Transaction, rows: dict[int, Row]) -> None:
    removed: dict[int, Row] = {}
    for _, change in sorted(transaction.changes.items()):
        at = change["source"]["lsn"]
        if change["op"] == "d":
            removed[at] = rows.pop(change["before"]["id"])
            continue
        new = change["after"]
        if change["op"] == "u":
            old = rows[new["id"]]
        else:
            assert new["id"] not in rows, f"{new['id']} was there already"
            old = removed.get(at, {})  # a changed key: the delete of the old one is of the same record of the log
        rows[new["id"]] = {name: old[name] if value == UNAVAILABLE else value for name, value in new.items()}


def comparable(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a row says whoever wrote it, the server or Debezium, under the newest names; `grade` is NULL before it was there."""
    balance, changed = row["balance"], row["changed"]
    return (
        row["id"],
        row["owner"],
        None if balance is None else f"{float(balance):.2f}",
        row["seen"] if "seen" in row else row["visits"],
        row["notes"],
        None if changed is None else datetime.fromisoformat(changed),
        row.get("grade"),
    )


class Numbered:
    """A number for each thing that a row can say, whoever wrote it: two rows say the same where their numbers are equal.

    A table is asked for again and again and most of its rows are as they were: each line of the server is read once.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._lines: dict[str, int] = {}

    def of_row(self, row: Mapping[str, Any]) -> int:
        """Return the number of what a row says."""
        return self._numbers.setdefault(comparable(row), len(self._numbers))

    def of_lines(self, lines: Iterable[str]) -> list[int]:
        """Return the numbers of what lines of JSON say, in order of size."""
        return sorted(self._of_line(line) for line in lines)

    def _of_line(self, line: str) -> int:
        if line not in self._lines:
            self._lines[line] = self.of_row(json.loads(line))
        return self._lines[line]
