"""What a reader saw, as numbers by month, and what that is beside what history and the restatement look like.

Put here how looks are noted and judged. How each kind of table is looked at is `readers`'. A reader writes a line of JSON for each
look that differs from the one before: the `months` with their figures, or the `error` that it met instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Figures = tuple[int, ...]
"""Of a month: rows, the days open of each times its day of the month, breaches, rows without a deadline."""
Months = dict[str, Figures]

FIGURES = (
    "COUNT(*), COALESCE(SUM(CAST(days_open AS BIGINT) * EXTRACT(DAY FROM business_date)), 0), "
    "SUM(CASE WHEN sla_state = 'BREACHED' THEN 1 ELSE 0 END), SUM(CASE WHEN breach_on IS NULL THEN 1 ELSE 0 END)"
)
"""The figures in SQL."""
_BAD = 3


@dataclass(frozen=True)
class Look:
    """What a reader saw from `at` (seconds, monotonic) on: months, or an error."""

    at: float
    months: Months
    error: str = ""
    polls: int = 0


@dataclass(frozen=True)
class Expected:
    """What months look like before the restatement and after it."""

    before: Months
    after: Months

    def letter(self, month: str, months: Months) -> str:
        """Return what one month is: b(efore), a(fter), - (no rows), ! (rows that break a rule), ? (neither)."""
        figures = months.get(month)
        if figures is None:
            return "-"
        if figures == self.after[month]:
            return "a"
        if figures == self.before[month]:
            return "b"
        return "!" if figures[_BAD] else "?"

    def shown(self, look: Look) -> str:
        """Return a look as a word: a letter a month, or its error."""
        return "error" if look.error else "".join(self.letter(month, look.months) for month in sorted(self.after))


def read_looks(file: Path) -> list[Look]:
    """Return what a reader has noted; a last line that a kill has cut off is not read."""
    if not file.exists():
        return []
    whole, _, _ = file.read_text().rpartition("\n")
    return [_look(json.loads(line)) for line in whole.splitlines()]


def _look(line: Mapping[str, Any]) -> Look:
    months = {month: tuple(figures) for month, figures in line.get("months", {}).items()}
    return Look(line["at"], months, line.get("error", ""), line.get("polls", 0))


def distinct(looks: Sequence[Look], expected: Expected) -> list[str]:
    """Return the states that were seen, each once, in the order of their first look; errors count as one."""
    return list(dict.fromkeys(expected.shown(look) for look in looks))


def is_between(state: str) -> bool:
    """Return whether a state is neither history nor the restatement."""
    return set(state) not in ({"a"}, {"b"})


def in_words(state: str) -> str:
    """Return a state in words: what months a reader finds."""
    if state == "error":
        return "an error"
    if not is_between(state):
        return "the restatement" if state[0] == "a" else "history"
    names = {
        "a": "restated",
        "b": "as before",
        "-": "empty",
        "!": "with bad rows",
        "?": "with rows of neither",
    }
    counts = {letter: state.count(letter) for letter in names if letter in state}
    return ", ".join(f"{count} month{'s' * (count > 1)} {names[letter]}" for letter, count in counts.items())
