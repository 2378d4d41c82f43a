"""How a table is divided into chunks beside time, or without it: by the values of a column, by ranges or by buckets of it.

Put here the declaration as plain data, the names that parts have in the keys of chunks, and what a safe name is. How a key is
put together is `manifests.chunks`'; how rows and files are told apart by their part, for those who read or write them.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from manifests.canonical import LATER
from manifests.errors import Problem

TEXT, NUMBER, DAY, MIXED = "text", "number", "day", "mixed"
"""What the values of a division, or its bounds, are."""
NULL_PART = "_null"
"""The part of rows whose column is NULL: no value begins like that."""
MINUS = "minus"
"""Before a number below 0."""
Literal: TypeAlias = str | int | date | None
_KINDS = {str: TEXT, int: NUMBER, date: DAY}
MOST_VALUES, MOST_BUCKETS = 1_000, 1_024
MOST_CHUNKS = 200_000
"""Of a table that is divided: Dagster's launch dialog lists every key."""
_MOST_LETTERS = 64
_WHOLE_TEXT = 15
"""Letters of a text that Iceberg's bounds of a file always have whole, and tell apart: it cuts them at 16."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
_RULE = (
    "a value is part of a chunk's key, of paths and of addresses: 1 to 64 letters of ASCII, digits, '.', '_' and '-', the first a "
    "letter or a digit, the last no '.', and no '..'"
)


@dataclass(frozen=True)
class Division:
    """The parts that each time of a table is divided into: `values` of a column, so many `buckets` of it, or ranges between `bounds`.

    A bucket is Iceberg's: of a table that is partitioned by `bucket[N](column)` a chunk's part is the partition. Values and bounds
    are in texts, each as a key says it; `kind` is what they are texts of. `nulls`: rows without a value are a part of their own.
    """

    column: str
    values: tuple[str, ...] = ()
    buckets: int = 0
    bounds: tuple[str, ...] = field(default=(), metadata=LATER)
    kind: str = field(default=TEXT, metadata=LATER)
    nulls: bool = field(default=False, metadata=LATER)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parts by their names in keys, in the order of texts: by which ledgers and launch dialogs sort keys."""
        nulls = (NULL_PART,) if self.nulls else ()
        if self.bounds:
            return tuple(sorted((*self.ranges, *nulls)))
        if self.values or self.nulls:
            return tuple(sorted((*self.values, *nulls)))
        return tuple(bucket_name(number, self.buckets) for number in range(self.buckets))

    @property
    def transform(self) -> str:
        """The transform of a table's partitions whose values are the parts, as Iceberg writes it."""
        return f"bucket[{self.buckets}]" if self.buckets else "identity"

    @property
    def has_values(self) -> bool:
        """Whether each part is a value."""
        return not self.buckets and not self.bounds

    @cached_property
    def ranges(self) -> dict[str, tuple[Literal, Literal]]:
        """By name, the first value of each range (None: it has no first one) and the one that it ends before (None: no end)."""
        ends = [None, *(self.literal(one) for one in self.bounds), None]
        said = ["", *self.bounds, ""]
        names = [
            f"below-{after}" if not at else f"from-{at}" if not after else f"{at}-to-{after}"
            for at, after in pairwise(said)
        ]
        return dict(zip(names, pairwise(ends), strict=True)) if self.bounds else {}

    def literal(self, text: str) -> Literal:
        """Return the value that a text of a value or a bound says; None of the part of rows without one.

        Raises:
            ValueError: if it is not the text of any.
        """
        if text == NULL_PART:
            return None
        if self.kind == NUMBER:
            return _number_of(text)
        return date.fromisoformat(text) if self.kind == DAY else text

    def part_of(self, value: Any) -> str | None:
        """Return the value or range that a value of the column lies in; None where no part has it. Of values it may be undeclared."""
        if value is None:
            return NULL_PART if self.nulls else None
        if not self.bounds:
            return said_as(value)
        number = bisect_right([self.literal(one) for one in self.bounds], value)
        return list(self.ranges)[number]

    def __str__(self) -> str:
        """Say by what it is."""
        if self.bounds:
            return f"{self.column}, in {len(self.bounds) + 1} ranges"
        return f"{self.column}, in {self.buckets} buckets" if self.buckets else f"{self.column}, by value"


def _number_of(text: str) -> int:
    return -int(text.removeprefix(MINUS)) if text.startswith(MINUS) else int(text)


def parts_of(division: Division | None, values: Iterable[str] | None) -> tuple[str, ...]:
    """Return the parts that each time is cut into: those of a manifest's `values`, or all; none where there are no parts."""
    names = () if division is None else division.names
    wanted = None if values is None else set(values)
    return names if wanted is None else tuple(name for name in names if name in wanted)


def by_value(column: str, values: Iterable[str | int | date | None]) -> Division:
    """Divide a table by the values of a column of text, of whole numbers or of days: the closed list of those that it has.

    None among them makes a part of the rows without a value, whose name is `_null`. A row with another value, or with none that
    is declared, lies in no chunk: the gate of the chunks of its time refuses it by name.
    """
    if not isinstance(values, Iterable) or isinstance(values, str):
        return Division(column, values)  # type: ignore[arg-type]  # what is no list is named later
    listed = list(values)
    there = [one for one in listed if one is not None]
    kind, texts = _kind_of(there)
    return Division(column, texts, kind=kind, nulls=len(there) < len(listed))


def by_range(column: str, bounds: Iterable[str | int | date], *, nulls: bool = False) -> Division:
    """Divide a table by ranges of a column of text, of whole numbers or of days: what lies below, between and from some bounds on.

    A bound is the first value of the range that begins with it. With `nulls` the rows without a value are a part, `_null`; else
    the gate of the chunks of their time refuses them by name.
    """
    if not isinstance(bounds, Iterable) or isinstance(bounds, str):
        return Division(column, bounds=bounds, nulls=nulls)  # type: ignore[arg-type]  # what is no list is named later
    kind, texts = _kind_of(list(bounds))
    return Division(column, bounds=texts or ("",), kind=kind, nulls=nulls)


def _kind_of(values: Sequence[Any]) -> tuple[str, tuple[str, ...]]:
    """Return what values are, and each as a text; what is none of the kinds is left as it is, and named later."""
    kinds = {_KINDS.get(type(one), MIXED) for one in values}
    kind = next(iter(kinds)) if len(kinds) == 1 else MIXED if kinds else TEXT
    return kind, tuple(values if kind == MIXED else map(said_as, values))


def said_as(value: Any) -> str:
    """Return a value as the key of its chunk says it: a number with its sign as a word, a day as ISO 8601 writes it."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, int):
        return f"{MINUS}{-value}" if value < 0 else str(value)
    return repr(value) if value == NULL_PART else str(value)  # no value is taken for the rows without one


def by_bucket(column: str, buckets: int) -> Division:
    """Divide a table by Iceberg's buckets of a column: a stated hash that every engine agrees on, and that never changes."""
    return Division(column, (), buckets)


ByValue, ByBucket, ByRange = by_value, by_bucket, by_range
"""As declarations name them: what they return stands for."""


def division_from(said: Mapping[str, Any]) -> Division:
    """Return a division as the text of a plan says it."""
    return Division(
        said["column"],
        tuple(said["values"]),
        said["buckets"],
        tuple(said.get("bounds", ())),
        said.get("kind", TEXT),
        said.get("nulls", False),
    )


def bucket_name(number: int, buckets: int) -> str:
    """Return how a key names a bucket: `b03of16`. How many there are is said, since another number is another division."""
    return f"b{number:0{len(str(buckets - 1))}}of{buckets}"


def bucket_number(name: str) -> int | None:
    """Return the number of a bucket that a key names; None of a name that is none."""
    found = re.fullmatch(r"b(\d+)of\d+", name)
    return None if found is None else int(found[1])


def division_problems(division: Any, where: str) -> Iterator[Problem]:
    """Say what a division cannot be, whatever table it is of."""
    example = (
        'ba.ByValue("jurisdiction", ("CA", "WA")), ba.ByRange("customer_id", (1000, 2000)), or ba.ByBucket("entity", 8)'
    )
    if not isinstance(division, Division):
        yield Problem(f"chunk_values is a {type(division).__name__}", f"it is {example}", "say it so", where)
        return
    if not isinstance(division.column, str):
        yield Problem("chunk_values names no column", f"it is {example}", "say it so", where)
        return
    said, what = (division.bounds, "bounds") if division.bounds else (division.values, "values")
    if not isinstance(said, tuple) or division.kind == MIXED or not all(isinstance(one, str) for one in said):
        yield Problem(
            f"the {what} of chunk_values are no tuple of texts, of whole numbers or of days",
            f"it is {example}",
            f"give {what} of one kind",
            where,
        )
        return
    if type(division.nulls) is not bool:
        yield Problem(f"nulls of chunk_values is {division.nulls!r}", "it is True or False", "say it so", where)
        return
    if division.kind == NUMBER and (far := [one for one in said if not -(2**63) <= _number_of(one) < 2**63]):
        yield Problem(
            f"chunk_values has {', '.join(far)}", "a whole number of a column has 64 bits", "choose another", where
        )
        return
    if division.buckets or not (said or division.nulls):
        yield from _bucket_problems(division, where)
        return
    if len(said) > MOST_VALUES:
        yield Problem(
            f"chunk_values has {len(said):,} {what}",
            f"a table is divided by up to {MOST_VALUES:,} {what}",
            "divide it by buckets of the column (ba.ByBucket)",
            where,
        )
        return
    yield from _range_problems(division, where) if division.bounds else _value_problems(division, where)


def _range_problems(division: Division, where: str) -> Iterator[Problem]:
    """Say which bounds are none, do not rise, or are too long for a key."""
    unfit = [one for one in division.bounds if not _NAME.fullmatch(one) or ".." in one]
    for one in unfit:
        yield Problem(f"the bound {one!r} cannot be part of a chunk's key", _RULE, "choose another bound", where)
    if unfit:
        return
    ends = [division.literal(one) for one in division.bounds]
    for (low, high), (at, after) in zip(pairwise(ends), pairwise(division.bounds), strict=True):
        if low >= high:  # type: ignore[operator]  # of one kind
            yield Problem(
                f"chunk_values has the bound {after} after {at}",
                "bounds rise: each is the first value of the next range",
                "put them in order, each once",
                where,
            )
            return
    long = [one for one in division.bounds if division.kind == TEXT and len(one) > _WHOLE_TEXT]
    if long:
        yield Problem(
            f"chunk_values has the bound(s) {', '.join(long)}",
            f"bounds that are texts have up to {_WHOLE_TEXT} letters: Iceberg knows of a file's longer texts how they begin, which "
            "does not say on which side of such a bound they lie",
            "choose shorter bounds, or divide it by buckets of the column (ba.ByBucket)",
            where,
        )
        return
    if len(division.ranges) <= len(division.bounds):
        yield Problem(
            f"two ranges of chunk_values have one name: {', '.join(division.ranges)}",
            "a range is named by its bounds: below-B, A-to-B, from-A",
            "choose other bounds",
            where,
        )
        return
    names = [name.lower() for name in division.ranges]
    for name in division.ranges:
        if len(name) > _MOST_LETTERS or names.count(name.lower()) > 1:
            yield Problem(
                f"the range {name} cannot be part of a chunk's key",
                f"it has up to {_MOST_LETTERS} letters, and two ranges never differ by upper and lower case alone",
                "choose shorter bounds, or others",
                where,
            )


def _value_problems(division: Division, where: str) -> Iterator[Problem]:
    for value in division.values:
        if not _NAME.fullmatch(value) or ".." in value:
            yield Problem(
                f"the value {value!r} cannot be part of a chunk's key",
                _RULE,
                "divide by buckets of the column instead",
                where,
            )
    counted = Counter(value.lower() for value in division.values)
    for value in sorted(value for value, number in counted.items() if number > 1):
        alike = [one for one in division.values if one.lower() == value]
        yield Problem(
            f"chunk_values has {' and '.join(alike)}",
            "each value is named once, and two never differ by upper and lower case alone: folders may not tell them apart",
            "name it once, or divide by buckets of the column",
            where,
        )


def _bucket_problems(division: Division, where: str) -> Iterator[Problem]:
    if division.values:
        what = "chunk_values has values and buckets"
    elif type(division.buckets) is int and 1 < division.buckets <= MOST_BUCKETS:
        return
    elif not division.buckets:
        what = "chunk_values has no values"
    else:
        what = f"chunk_values has {division.buckets!r} buckets"
    yield Problem(
        what,
        f"a table is divided by its values, at least one, or by 2 to {MOST_BUCKETS:,} buckets",
        "name the values, the bounds of ranges, or how many buckets there are",
        where,
    )
