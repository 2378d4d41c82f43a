"""Cutting days into chunks: the only place that knows what a chunk key looks like.

A chunk is one partition of the target and the unit of computing, checking, retrying and reporting.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from itertools import pairwise

from manifests.errors import InputRefused, Problem


class Chunking(StrEnum):
    """By which part of its day a row belongs to a chunk."""

    YEAR = "YEAR"
    MONTH = "MONTH"
    WEEK = "WEEK"
    """From Monday to Sunday, as ISO 8601 counts them."""
    DAY = "DAY"


@dataclass(frozen=True)
class Chunk:
    """One chunk: its key, its place in its run (0-based), its first and last day (both inclusive)."""

    key: str
    index: int
    start: date
    end: date


_KEY = {
    Chunking.YEAR: re.compile(r"\d{4}"),
    Chunking.MONTH: re.compile(r"\d{4}-\d{2}"),
    Chunking.WEEK: re.compile(r"(\d{4})-W(\d{2})"),
    Chunking.DAY: re.compile(r"\d{4}-\d{2}-\d{2}"),
}
KEY_FORMAT = {Chunking.YEAR: "%Y", Chunking.MONTH: "%Y-%m", Chunking.WEEK: "%G-W%V", Chunking.DAY: "%Y-%m-%d"}
"""How `strftime` writes the key of a chunk from its first day."""
EXAMPLES = {
    Chunking.YEAR: "2012",
    Chunking.MONTH: "2012-03",
    Chunking.WEEK: "2012-W09",
    Chunking.DAY: "2012-03-31",
}
"""A key of each chunking."""

_KEY_LENGTH = {chunking: len(example) for chunking, example in EXAMPLES.items()}
_DAY = EXAMPLES[Chunking.DAY]
_SIX_DAYS = timedelta(days=6)
_MISSING_NAMED, _STRETCHES_NAMED = 3, 6


def key_of(chunking: Chunking, day: date) -> str:
    """Return the key of the chunk that holds `day`."""
    if chunking is Chunking.WEEK:
        year, week, _ = day.isocalendar()
        return f"{year:04}-W{week:02}"
    return day.isoformat()[: _KEY_LENGTH[chunking]]


def first_day(chunking: Chunking, key: str) -> date:
    """Return the first day of the chunk `key`.

    Raises:
        InputRefused: if `key` is not a key of this chunking.
    """
    start = None
    if found := _KEY[chunking].fullmatch(key):
        with suppress(ValueError):  # not a day of the calendar: refused below, with the rule
            if chunking is Chunking.WEEK:
                start = date.fromisocalendar(int(found[1]), int(found[2]), 1)
            else:
                start = date.fromisoformat(key + "-01-01"[: len(_DAY) - len(key)])
    if start is not None:
        return start
    example = EXAMPLES[chunking]
    raise InputRefused(
        Problem(
            f"'{key}' is not a chunk",
            f"chunks are {chunking.lower()}s, written like {example}",
            "correct the chunk key",
        )
    )


def last_day(chunking: Chunking, start: date) -> date:
    """Return the last day of the chunk that begins on `start`."""
    match chunking:
        case Chunking.YEAR:
            return start.replace(month=12, day=31)
        case Chunking.MONTH:
            return start.replace(day=monthrange(start.year, start.month)[1])
        case Chunking.WEEK:
            return start + min(_SIX_DAYS, date.max - start)
        case Chunking.DAY:
            return start


def following(chunking: Chunking, start: date) -> date:
    """Return the first day of the chunk after the one that begins on `start`."""
    return last_day(chunking, start) + timedelta(days=1)


def aligned(chunking: Chunking, start: date, end: date) -> tuple[date, date]:
    """Return the smallest range of whole chunks that holds `start` to `end`."""
    return _begin(chunking, start), last_day(chunking, _begin(chunking, end))


def _begin(chunking: Chunking, day: date) -> date:
    """Return the first day of the chunk that holds `day`."""
    match chunking:
        case Chunking.YEAR:
            return day.replace(month=1, day=1)
        case Chunking.MONTH:
            return day.replace(day=1)
        case Chunking.WEEK:
            return day - timedelta(days=day.weekday())
        case Chunking.DAY:
            return day


def chunking_of(key: str) -> Chunking | None:
    """Return what a chunk's key is one of; None for a text that is no key."""
    return next((chunking for chunking, pattern in _KEY.items() if pattern.fullmatch(key)), None)


def cut(chunking: Chunking, start: date, end: date) -> Iterator[Chunk]:
    """Cut whole chunks from `start` to `end` (both inclusive and aligned), in order."""
    index, day = 0, start
    while day <= end:
        last = last_day(chunking, day)
        yield Chunk(key_of(chunking, day), index, day, last)
        if last >= end:  # the day after may be beyond the calendar
            return
        index, day = index + 1, following(chunking, day)


def are_adjacent(keys: Sequence[str]) -> bool:
    """Whether chunks in order have no gap between them."""
    chunking = chunking_of(keys[0]) or Chunking.DAY
    firsts = [first_day(chunking, key) for key in keys]
    return all(following(chunking, one) == after for one, after in pairwise(firsts))


def span(keys: Collection[str]) -> str:
    """Return the first and the last of some chunks in words; one chunk is named once."""
    return f"{min(keys)} to {max(keys)}" if len(keys) > 1 else next(iter(keys))


def in_words(keys: Iterable[str]) -> str:
    """Return chunks as people say them: `2020-01 to 2020-09 without 2020-04`; a gap never reads as if it were among them."""
    ordered = sorted(set(keys))
    if not ordered:
        return "none"
    chunking = chunking_of(ordered[0]) or Chunking.DAY
    try:
        first, *_, last = [first_day(chunking, key) for key in (ordered[0], *ordered)]
    except InputRefused:  # a row that was changed by hand names no chunk
        return ", ".join(ordered[:_STRETCHES_NAMED])
    stretches: list[list[str]] = []
    missing: list[str] = []
    there, follows = set(ordered), 0
    for chunk in cut(chunking, first, last_day(chunking, last)):
        if chunk.key not in there:
            missing.append(chunk.key)
        elif stretches and chunk.index == follows:
            stretches[-1].append(chunk.key)
            follows += 1
        else:
            stretches.append([chunk.key])
            follows = chunk.index + 1
    if len(stretches) > 1 and len(missing) <= min(_MISSING_NAMED, len(ordered) - 1):
        return f"{ordered[0]} to {ordered[-1]} without {', '.join(missing)}"
    said = [one[0] if len(one) == 1 else f"{one[0]} to {one[-1]}" for one in stretches]
    more = f" and {len(said) - _STRETCHES_NAMED} more" if len(said) > _STRETCHES_NAMED else ""
    return ", ".join(said[:_STRETCHES_NAMED]) + more
