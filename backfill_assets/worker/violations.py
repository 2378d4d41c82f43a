"""A rule that rows of a chunk break: how many of them, and a few as an example; and files that cannot be read.

Put here how a violation is counted and shown. Which rules there are is `chunk_rules`' to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from manifests.errors import EnvironmentRefused, Problem
from resources.files import stores

SAMPLE_ROWS = 5
"""Offending rows shown per rule."""
READ_RULE = "readable"
UNREAD_RULE = "could be read just now"
"""No rule that a chunk can break: its file could not be read, and nothing is known of it; see `require_read`."""


@dataclass
class Violation:
    """A rule that rows break: how many, and a few of them."""

    rule: str
    count: int = 0
    sample: list[dict[str, Any]] = field(default_factory=list)


def unreadable(path: str, error: Exception) -> Violation:
    """Return that a file is missing or damaged; or, where the error does not prove that, that it could not be read just now.

    Of a store nothing is damaged by one reading alone.
    """
    # an error of the operating system has a number; one about what was read has none. A store's own have none, either
    of_reading = isinstance(error, OSError) and (error.errno is not None or not stores.is_local(path))
    proven = isinstance(error, FileNotFoundError) or not of_reading
    if not of_reading:
        try:
            stores.require_alike(path)
        except OSError as other:
            error, proven = other, False
    sample = {"file": path, "error": f"{type(error).__name__}: {error}"[:500]}
    return Violation(READ_RULE if proven else UNREAD_RULE, 1, [sample])


def add_unreadable(violations: dict[str, Violation], path: str, error: Exception) -> None:
    """Add that a file could not be read."""
    found = unreadable(path, error)
    add_violation(violations, found.rule, found.count, found.sample)


def require_read(violations: Iterable[Violation]) -> None:
    """Refuse what was found of chunks of which a file could not be read: it is no verdict.

    Raises:
        EnvironmentRefused: naming the files.
    """
    unread = [one for one in violations if one.rule == UNREAD_RULE]
    if unread:
        raise EnvironmentRefused(
            Problem(
                f"{sample['file']} could not be read just now: {sample['error']}",
                "a file that cannot be read says nothing about its rows",
                "nothing was judged; run the same command again; if it stays so, see `backfill doctor`",
            )
            for one in unread
            for sample in one.sample
        )


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can hold it, for people to read: equal values are shown alike, whoever has read them."""
    return {name: shown_value(value) for name, value in row.items()}


def shown_value(value: Any) -> Any:
    """Return a value as JSON can hold it: numbers that are no integers as text, bytes in hexadecimal digits, nested ones as JSON."""
    if isinstance(value, (int, bool, type(None), str)):
        return value
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(_inside(value), ensure_ascii=False, sort_keys=True)
    if isinstance(value, float):
        return str(value + 0.0)  # the zeros are one
    return f"0x{value.hex()}" if isinstance(value, bytes) else str(value)


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(shown_value(name)): _inside(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(one, tuple) for one in value):  # a map, as PyArrow has it
            return _inside(dict(value))
        return [_inside(one) for one in value]
    return shown_value(value)


def add_violation(violations: dict[str, Violation], rule: str, count: int, sample: list[dict[str, Any]]) -> None:
    """Add to what is known of a rule: how many rows break it, and a few of them."""
    violation = violations.setdefault(rule, Violation(rule))
    violation.count += count
    violation.sample += sample[: SAMPLE_ROWS - len(violation.sample)]
