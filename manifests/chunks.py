"""Cutting days into chunks: the only place that knows what a chunk key looks like.

A chunk is one partition of the target and the unit of computing, checking, retrying and reporting. Its key is its time (an hour,
a day, a week, a month, a year) and, where a table is divided beside time, the part of it: `2012-03~CA`. A table without time has
chunks of parts alone, whose key is the part: `CA`. Which parts a table has is `manifests.division`'s; which rows lie in a chunk,
for those who read or write them.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Protocol

from manifests.errors import InputRefused, Problem


class Chunking(StrEnum):
    """By which part of its day a row belongs to a chunk."""

    YEAR = "YEAR"
    MONTH = "MONTH"
    WEEK = "WEEK"
    """From Monday to Sunday, as ISO 8601 counts them."""
    DAY = "DAY"
    HOUR = "HOUR"
    """Of an instant, in UTC; what is planned and published are whole days of them."""
    WHOLE = "WHOLE"
    """By none: the table has no time, and its chunks are its values or buckets alone, each of all time."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One chunk: its key, its place in its run (0-based), its first and last day (both inclusive).

    Of a table of hours `hour` is its hour of that day; of a table that is divided beside time `part` is its value or bucket.
    """

    key: str
    index: int
    start: date
    end: date
    hour: int | None = None
    part: str = ""


class Placed(Protocol):
    """What has the place of a chunk: a `Chunk`, or a plan's."""

    @property
    def key(self) -> str:
        """Its key."""

    @property
    def start(self) -> date:
        """Its first day."""

    @property
    def end(self) -> date:
        """Its last day."""

    @property
    def hour(self) -> int | None:
        """Its hour of that day; None of chunks of whole days."""

    @property
    def part(self) -> str:
        """Its value or bucket; empty where a table is not divided beside time."""


CHUNK_GATE = "chunk_rules"
"""The gate that every chunk must pass: the target's pandera model on its staged files."""
PART = "~"
"""Between the time and the part in a key: nothing to Dagster, to a URL, a path, a glob or a range of chunks."""
HOURS = range(24)
EVER = date(1000, 1, 1), date(9000, 12, 31)
"""First and last day of a chunk without time: all that a manifest can name. Rows are never held against them."""

_KEY = {
    Chunking.YEAR: re.compile(r"\d{4}"),
    Chunking.MONTH: re.compile(r"\d{4}-\d{2}"),
    Chunking.WEEK: re.compile(r"(\d{4})-W(\d{2})"),
    Chunking.DAY: re.compile(r"\d{4}-\d{2}-\d{2}"),
    Chunking.HOUR: re.compile(r"(\d{4}-\d{2}-\d{2})T([01]\d|2[0-3])"),
}
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
KEY_FORMAT = {
    Chunking.YEAR: "%Y",
    Chunking.MONTH: "%Y-%m",
    Chunking.WEEK: "%G-W%V",
    Chunking.DAY: "%Y-%m-%d",
    Chunking.HOUR: "%Y-%m-%dT%H",
}
"""How `strftime` writes the key of a chunk from its first day."""
EXAMPLES = {
    Chunking.YEAR: "2012",
    Chunking.MONTH: "2012-03",
    Chunking.WEEK: "2012-W09",
    Chunking.DAY: "2012-03-31",
    Chunking.HOUR: "2012-03-31T05",
    Chunking.WHOLE: "CA",
}
"""The time in a key of each chunking; of one without time, a part."""

_KEY_LENGTH = {chunking: len(example) for chunking, example in EXAMPLES.items()}
_DAY = EXAMPLES[Chunking.DAY]
_SIX_DAYS = timedelta(days=6)
_MISSING_NAMED, _STRETCHES_NAMED, _PARTS_NAMED = 3, 6, 6
_TICK = timedelta(microseconds=1)


def key_of(chunking: Chunking, day: date, part: str = "") -> str:
    """Return the key of the chunk that holds `day`, in a part; of hours that of a `datetime`, and of a date the first.

    Without time it is the part, behind `PART` if it reads like a time: `CA`, `~2024`.
    """
    if chunking is Chunking.WHOLE:
        return f"{PART}{part}" if _is_time(part) else part
    if chunking is Chunking.WEEK:
        year, week, _ = day.isocalendar()
        text = f"{year:04}-W{week:02}"
    elif chunking is Chunking.HOUR:
        hour = day.hour if isinstance(day, datetime) else 0
        text = f"{day.isoformat()[: len(_DAY)]}T{hour:02}"
    else:
        text = day.isoformat()[: _KEY_LENGTH[chunking]]
    return f"{text}{PART}{part}" if part else text


def time_of(key: str) -> str:
    """Return the time in a chunk's key; empty where it is a part alone."""
    return _halves(key)[0]


def part_of(key: str) -> str:
    """Return the part in a chunk's key; empty where it has none."""
    return _halves(key)[1]


@lru_cache(maxsize=1 << 16)
def _halves(key: str) -> tuple[str, str]:
    """Return the time and the part in a key: a text without `PART` is a time if it reads like one, and else a part."""
    text, mark, part = key.partition(PART)
    return (text, part) if mark or _is_time(text) or not _PART.fullmatch(text) else ("", text)


def _is_time(text: str) -> bool:
    return any(pattern.fullmatch(text) for pattern in _KEY.values())


def first_day(chunking: Chunking, key: str) -> date:
    """Return the first day of the chunk `key`, in whichever part.

    Raises:
        InputRefused: if `key` is not a key of this chunking.
    """
    start = None
    if chunking is Chunking.WHOLE:
        start = EVER[0] if chunking_of(key) is Chunking.WHOLE else None
    elif found := _KEY[chunking].fullmatch(time_of(key)):
        with suppress(ValueError):  # not a day of the calendar: refused below, with the rule
            if chunking is Chunking.WEEK:
                start = date.fromisocalendar(int(found[1]), int(found[2]), 1)
            elif chunking is Chunking.HOUR:
                start = date.fromisoformat(found[1])
            else:
                start = date.fromisoformat(found[0] + "-01-01"[: len(_DAY) - len(found[0])])
    if start is not None:
        return start
    example = EXAMPLES[chunking]
    raise InputRefused(
        Problem(
            f"'{key}' is not a chunk",
            f"chunks are values or buckets alone, written like {example}"
            if chunking is Chunking.WHOLE
            else f"chunks are {chunking.lower()}s, written like {example}",
            "correct the chunk key",
        )
    )


def hour_of(chunking: Chunking, key: str) -> int | None:
    """Return the hour of a chunk's key; None of chunks of whole days."""
    found = _KEY[chunking].fullmatch(time_of(key)) if chunking is Chunking.HOUR else None
    return None if found is None else int(found[2])


def first_instant(chunk: Placed) -> datetime:
    """Return when a chunk begins, in UTC."""
    return datetime.combine(chunk.start, time(chunk.hour or 0), UTC)


def last_instant(chunk: Placed) -> datetime:
    """Return the last microsecond of a chunk, in UTC."""
    hour = HOURS[-1] if chunk.hour is None else chunk.hour
    return datetime.combine(chunk.end, time(hour, 59, 59, 999_999), UTC)


def last_day(chunking: Chunking, start: date) -> date:
    """Return the last day of the chunk that begins on `start`."""
    match chunking:
        case Chunking.YEAR:
            return start.replace(month=12, day=31)
        case Chunking.MONTH:
            return start.replace(day=monthrange(start.year, start.month)[1])
        case Chunking.WEEK:
            return start + min(_SIX_DAYS, date.max - start)
        case Chunking.DAY | Chunking.HOUR:
            return start
        case Chunking.WHOLE:
            return EVER[1]


def following(chunking: Chunking, start: date) -> date:
    """Return the first day of the chunk after the one that begins on `start`; of hours that of the next day."""
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
        case Chunking.DAY | Chunking.HOUR:
            return day
        case Chunking.WHOLE:
            return EVER[0]


def chunking_of(key: str) -> Chunking | None:
    """Return what a chunk's key is one of; None for a text that is no key."""
    text, part = _halves(key)
    if part and not text:
        return Chunking.WHOLE if _PART.fullmatch(part) else None
    return next((chunking for chunking, pattern in _KEY.items() if pattern.fullmatch(text)), None)


def cut(chunking: Chunking, start: date, end: date, parts: Sequence[str] = ()) -> Iterator[Chunk]:
    """Cut whole chunks from `start` to `end` (both inclusive and aligned), in order of time and, in one time, of the parts."""
    if chunking is Chunking.WHOLE:  # in the order of their keys, as those of time are
        keys = sorted((key_of(chunking, start, part), part) for part in parts)
        yield from (Chunk(key, index, *EVER, None, part) for index, (key, part) in enumerate(keys))
        return
    index, day = 0, start
    hours = HOURS if chunking is Chunking.HOUR else (None,)
    while day <= end:
        last = last_day(chunking, day)
        for hour in hours:
            text = key_of(chunking, day) if hour is None else f"{day.isoformat()}T{hour:02}"
            for part in parts or ("",):
                yield Chunk(f"{text}{PART}{part}" if part else text, index, day, last, hour, part)
                index += 1
        if last >= end:  # the day after may be beyond the calendar
            return
        day = following(chunking, day)


def chunk_before(chunking: Chunking, chunk: Placed) -> Chunk | None:
    """Return the chunk of the same part that ends on the day before one begins, of hours the last of that day; None where none can be."""
    if chunking is Chunking.WHOLE or chunk.start == date.min:
        return None
    day = chunk.start - timedelta(days=1)
    *_, found = cut(chunking, *aligned(chunking, day, day), [chunk.part] if chunk.part else ())
    return found


def cell_of(key: str) -> tuple[str, int]:
    """Return where a chunk stands in a table of them: a row's name, and its place in the row, from 1 on.

    A row has the months or weeks of a year, the days of a month, the hours of a day or the years of a decade, of one part; a part
    without time has a row of its own.
    """
    text, part = time_of(key), part_of(key)
    match chunking_of(key):
        case Chunking.YEAR:
            row, place = f"{text[:3]}0s", int(text[3:]) + 1
        case Chunking.HOUR:
            row, place = text[: len(_DAY)], int(text[-2:]) + 1
        case Chunking.WHOLE:
            return part, 1
        case None:  # a row that was changed by hand names no chunk
            return key, 1
        case _:
            row, place = text.rpartition("-")[0], int(text[-2:])
    return (f"{row} of {part}" if part else row), place


def are_adjacent(keys: Sequence[str]) -> bool:
    """Whether chunks in order have no gap between them: of parts, each of which has the same times."""
    return len(_stretches_in(keys)) == 1


@dataclass(frozen=True)
class Stretch:
    """Chunks without a gap: all times from the first to the last chunk, in each of the parts (of their first time)."""

    first: Placed
    last: Placed
    parts: tuple[str, ...]


def stretches_of(chunks: Iterable[Placed]) -> list[Stretch]:
    """Return chunks, in order of time, as stretches without a gap; parts with the same times are together."""
    spans: dict[str, list[tuple[Placed, Placed]]] = {}
    for chunk in chunks:
        own = spans.setdefault(chunk.part, [])
        if own and last_instant(own[-1][1]) + _TICK == first_instant(chunk):
            own[-1] = own[-1][0], chunk
        else:
            own.append((chunk, chunk))
    found: dict[tuple[datetime, datetime], Stretch] = {}
    for part, own in spans.items():
        for first, last in own:
            at = first_instant(first), last_instant(last)
            before = found.get(at)
            found[at] = (
                Stretch(first, last, (part,)) if before is None else replace(before, parts=(*before.parts, part))
            )
    return [found[at] for at in sorted(found)]


def span(keys: Collection[str]) -> str:
    """Return the first and the last of some chunks in words; one chunk is named once."""
    if len(keys) == 1:
        return next(iter(keys))
    parts = sorted({part_of(key) for key in keys})
    if parts == [""]:
        return f"{min(keys)} to {max(keys)}"
    times = sorted({time_of(key) for key in keys})
    if times == [""]:
        return _parts_in_words(parts)
    return f"{_span_of_times(times)} of {_parts_in_words(parts)}"


def _span_of_times(times: Sequence[str]) -> str:
    return times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}"


def _parts_in_words(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _PARTS_NAMED} more" if len(parts) > _PARTS_NAMED else ""
    return ", ".join(parts[:_PARTS_NAMED]) + more


def in_words(keys: Iterable[str]) -> str:
    """Return chunks as people say them: `2020-01 to 2020-09 without 2020-04`; a gap never reads as if it were among them."""
    times: dict[str, set[str]] = {}
    for key in keys:
        times.setdefault(part_of(key), set()).add(time_of(key))
    if not times:
        return "none"
    alike: dict[frozenset[str], list[str]] = {}
    for part in sorted(times):
        alike.setdefault(frozenset(times[part]), []).append(part)
    said = [
        _parts_in_words(parts)
        if own == {""}
        else _times_in_words(own) + (f" of {_parts_in_words(parts)}" if parts != [""] else "")
        for own, parts in alike.items()
    ]
    more = f"; and {len(said) - _STRETCHES_NAMED} more" if len(said) > _STRETCHES_NAMED else ""
    return "; ".join(said[:_STRETCHES_NAMED]) + more


def _stretches_in(keys: Iterable[str]) -> list[Stretch]:
    """Return keys as stretches without a gap."""
    ordered = sorted(set(keys))
    chunking = chunking_of(ordered[0]) or Chunking.DAY
    return stretches_of(chunk_named(chunking, key) for key in ordered)


def chunk_named(chunking: Chunking, key: str) -> Chunk:
    """Return the chunk of a key, by itself.

    Raises:
        InputRefused: if `key` is not a key of this chunking.
    """
    first = first_day(chunking, key)
    return Chunk(key, 0, first, last_day(chunking, first), hour_of(chunking, key), part_of(key))


def _times_in_words(times: Collection[str]) -> str:
    ordered = sorted(times)
    chunking = chunking_of(ordered[0]) or Chunking.DAY
    try:
        first, *_, last = [first_day(chunking, key) for key in (ordered[0], *ordered)]
    except InputRefused:  # a row that was changed by hand names no chunk
        return ", ".join(ordered[:_STRETCHES_NAMED])
    stretches: list[list[str]] = []
    missing: list[str] = []
    there, follows = set(ordered), 0
    for chunk in cut(chunking, first, last_day(chunking, last)):
        if not ordered[0] <= chunk.key <= ordered[-1]:
            continue  # an hour of the first or the last day
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
