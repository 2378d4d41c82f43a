"""What differs between rows: one value, or how often a row is there; and the error that says so.

Put here how a difference is shown. What is compared with what is `trial`'s, what is its likely cause `causes`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

_SHOWN = 5


class TrialError(AssertionError):
    """A transform is not what it is held against: `differences` are the first of them, `cause` is what is most likely."""

    def __init__(self, what: str, differences: Sequence[Difference] = (), cause: str = "") -> None:
        self.differences, self.cause = tuple(differences), cause
        lines = [what, *(f"  - {one}" for one in differences[:_SHOWN])]
        if len(differences) > _SHOWN:
            lines.append(f"  - and {len(differences) - _SHOWN:,} more")
        super().__init__("\n".join([*lines, *([f"likely cause: {cause}"] if cause else [])]))


@dataclass(frozen=True)
class Difference:
    """One value that differs: what is `found`, and what is `expected` or, in another way of computing it, was found before.

    `column` is empty where the whole row is there a different number of times.
    """

    key: Mapping[str, Any]
    column: str
    expected: Any
    found: Any
    word: str = "expected"

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        if self.column:
            return f"{key}: {self.column} is {_shown(self.found)}, {self.word} {_shown(self.expected)}"
        return f"{key}: the row is there {_times(self.found)}, {self.word} {_times(self.expected)}"


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number:,} times")


def _by_key(frame: pl.DataFrame, width: int) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    rows: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in frame.iter_rows():
        rows.setdefault(row[:width], []).append(row[width:])
    return rows


def rows_in(differences: Sequence[Difference]) -> str:
    """Say how many rows differ."""
    keys = {tuple(one.key.values()) for one in differences}
    return f"{len(keys):,} row(s) differ"


def differences_between(
    expected: pl.DataFrame, found: pl.DataFrame, key: Sequence[str], others: Sequence[str], word: str
) -> list[Difference]:
    """Return what differs between rows, in the order of their keys; `others` are the columns that are compared."""
    sides = [frame.select(*key, *others).sort(*key, *others) for frame in (expected, found)]
    if sides[0].equals(sides[1]):
        return []
    left, right = (_by_key(frame, len(key)) for frame in sides)
    differences = []
    for one in sorted(left.keys() | right.keys(), key=lambda values: [(part is not None, part) for part in values]):
        named, before, after = dict(zip(key, one, strict=True)), left.get(one, []), right.get(one, [])
        if len(before) != len(after):
            differences.append(Difference(named, "", len(before), len(after), word))
            continue
        for old, new in zip(before, after, strict=True):
            pairs = zip(others, old, new, strict=True)
            differences += [Difference(named, name, was, now, word) for name, was, now in pairs if was != now]
    return differences
