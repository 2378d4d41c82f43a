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

    MONTH = "MONTH"
    DAY = "DAY"


@dataclass(frozen=True)
class Chunk:
    """One chunk: its key, its place in its run (0-based), its first and last day (both inclusive)."""

    key: str
    index: int
    start: date
    end: date


_KEY = {Chunking.MONTH: re.compile(r"\d{4}-\d{2}"), Chunking.DAY: re.compile(r"\d{4}-\d{2}-\d{2}")}
KEY_FORMAT = {Chunking.MONTH: "%Y-%m", Chunking.DAY: "%Y-%m-%d"}

_MISSING_NAMED, _STRETCHES_NAMED = 3, 6


def key_of(chunking: Chunking, day: date) -> str:
    """Return the key of the chunk that holds `day`."""
    return day.isoformat() if chunking is Chunking.DAY else day.isoformat()[:7]


def first_day(chunking: Chunking, key: str) -> date:
    """Return the first day of the chunk `key`.

    Raises:
        InputRefused: if `key` is not a key of this chunking.
    """
    start = None
    if _KEY[chunking].fullmatch(key):
        with suppress(ValueError):  # not a day of the calendar: refused below, with the rule
            start = date.fromisoformat(key if chunking is Chunking.DAY else f"{key}-01")
    if start is not None:
        return start
    example = "2012-03" if chunking is Chunking.MONTH else "2012-03-31"
    raise InputRefused(
        Problem(
            f"'{key}' is not a chunk",
            f"chunks are {chunking.lower()}s, written like {example}",
            "correct the chunk key",
        )
    )


def last_day(chunking: Chunking, start: date) -> date:
    """Return the last day of the chunk that begins on `start`."""
    if chunking is Chunking.DAY:
        return start
    return start.replace(day=monthrange(start.year, start.month)[1])


def following(chunking: Chunking, start: date) -> date:
    """Return the first day of the chunk after the one that begins on `start`."""
    if chunking is Chunking.DAY:
        return start + timedelta(days=1)
    return date(start.year + start.month // 12, start.month % 12 + 1, 1)


def aligned(chunking: Chunking, start: date, end: date) -> tuple[date, date]:
    """Return the smallest range of whole chunks that holds `start` to `end`."""
    begin = start if chunking is Chunking.DAY else start.replace(day=1)
    finish = end if chunking is Chunking.DAY else last_day(chunking, end.replace(day=1))
    return begin, finish


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
    chunking = Chunking.MONTH if _KEY[Chunking.MONTH].fullmatch(keys[0]) else Chunking.DAY
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
    chunking = Chunking.MONTH if _KEY[Chunking.MONTH].fullmatch(ordered[0]) else Chunking.DAY
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
