"""How a table is divided into chunks beside time: by the values of a column, or by buckets of it.

Put here the declaration as plain data, the names that parts have in the keys of chunks, and what a safe name is. How a key is
put together is `manifests.chunks`'; how rows and files are told apart by their part, for those who read or write them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from manifests.errors import Problem

MOST_VALUES, MOST_BUCKETS = 1_000, 1_024
MOST_CHUNKS = 200_000
"""Of a table that is divided: Dagster's launch dialog lists every key."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9_-])?")
_RULE = (
    "a value is part of a chunk's key, of paths and of addresses: 1 to 64 letters of ASCII, digits, '.', '_' and '-', the first a "
    "letter or a digit, the last no '.', and no '..'"
)


@dataclass(frozen=True)
class Division:
    """The parts that each time of a table is divided into: `values` of a column, or so many `buckets` of it.

    A bucket is Iceberg's: of a table that is partitioned by `bucket[N](column)` a chunk's part is the partition.
    """

    column: str
    values: tuple[str, ...] = ()
    buckets: int = 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parts by their names in keys, in the order of texts: by which ledgers and launch dialogs sort keys."""
        if self.values:
            return tuple(sorted(self.values))
        return tuple(bucket_name(number, self.buckets) for number in range(self.buckets))

    @property
    def transform(self) -> str:
        """The transform of a table's partitions whose values are the parts, as Iceberg writes it."""
        return "identity" if self.values else f"bucket[{self.buckets}]"

    def __str__(self) -> str:
        """Say by what it is."""
        return f"{self.column}, by value" if self.values else f"{self.column}, in {self.buckets} buckets"


def parts_of(division: Division | None, values: Iterable[str] | None) -> tuple[str, ...]:
    """Return the parts that each time is cut into: those of a manifest's `values`, or all; none where there are no parts."""
    names = () if division is None else division.names
    wanted = None if values is None else set(values)
    return names if wanted is None else tuple(name for name in names if name in wanted)


def by_value(column: str, values: Iterable[str]) -> Division:
    """Divide a table by the values of a column of text: the closed list of those that it has.

    A row with another value, or with none, lies in no chunk: the gate of the chunks of its time refuses it by name.
    """
    listed = isinstance(values, Iterable) and not isinstance(values, str)
    return Division(column, tuple(values) if listed else values)  # type: ignore[arg-type]  # what is no list is named later


def by_bucket(column: str, buckets: int) -> Division:
    """Divide a table by Iceberg's buckets of a column: a stated hash that every engine agrees on, and that never changes."""
    return Division(column, (), buckets)


ByValue, ByBucket = by_value, by_bucket
"""As declarations name them: what they return stands for."""


def bucket_name(number: int, buckets: int) -> str:
    """Return how a key names a bucket: `b03of16`. How many there are is said, since another number is another division."""
    return f"b{number:0{len(str(buckets - 1))}}of{buckets}"


def bucket_number(name: str) -> int | None:
    """Return the number of a bucket that a key names; None of a name that is none."""
    found = re.fullmatch(r"b(\d+)of\d+", name)
    return None if found is None else int(found[1])


def division_problems(division: Any, where: str) -> Iterator[Problem]:
    """Say what a division cannot be, whatever table it is of."""
    example = 'ba.ByValue("jurisdiction", ("CA", "WA")), or ba.ByBucket("entity", 8)'
    if not isinstance(division, Division):
        yield Problem(f"chunk_values is a {type(division).__name__}", f"it is {example}", "say it so", where)
        return
    if not isinstance(division.column, str):
        yield Problem("chunk_values names no column", f"it is {example}", "say it so", where)
        return
    if not isinstance(division.values, tuple) or not all(isinstance(one, str) for one in division.values):
        yield Problem(
            "the values of chunk_values are no tuple of texts", f"it is {example}", "give each value as a text", where
        )
        return
    if division.buckets or not division.values:
        yield from _bucket_problems(division, where)
        return
    if len(division.values) > MOST_VALUES:
        yield Problem(
            f"chunk_values has {len(division.values):,} values",
            f"a table is divided by up to {MOST_VALUES:,} values",
            "divide it by buckets of the column (ba.ByBucket)",
            where,
        )
        return
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
        "name the values, or how many buckets there are",
        where,
    )
