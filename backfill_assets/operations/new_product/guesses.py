"""What is guessed of a table by its names and types: what identifies a row, when it happened, what it is about.

Put here a guess, and the words that say why it was made. Whoever reads the draft decides: nothing is guessed about values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from backfill_assets.declarations.canonical_types import canonical_type
from manifests.chunks import Chunking

INSTANT = pl.Datetime("us", "UTC")
_NAMES = re.compile(r"(^|_)(id|key|code|no|nr|number|uuid)$")
_ENTITIES = (pl.String, pl.Int32, pl.Int64)


@dataclass(frozen=True)
class NamedColumn:
    """A column as a model declares it: its name, its Polars type, whether it may be empty, and what it is.

    `repeats`: whether several rows have the same value; None where nobody has looked.
    """

    name: str
    kind: pl.DataType
    nullable: bool = False
    description: str = ""
    repeats: bool | None = None

    @property
    def python(self) -> str:
        """Its type as a model is written."""
        return type_in_words(self.kind)


@dataclass(frozen=True)
class PartitionedBy:
    """What the partitions of a table say of days: the date column they are cut by, if any, and how."""

    day_column: str | None = None
    chunking: Chunking = Chunking.MONTH


@dataclass(frozen=True)
class GuessedKey:
    """The columns that are taken for a table's key, and what is to be looked at about them."""

    columns: tuple[str, ...]
    guessed: tuple[str, ...]


def type_in_words(kind: pl.DataType) -> str:
    """Return a type as a model is written."""
    if isinstance(kind, pl.List):
        inner: Any = kind.inner  # of which Polars reads no annotation
        return f"pl.List({f'pl.{inner!r}' if isinstance(inner, (pl.Decimal, pl.Datetime)) else type_in_words(inner)})"
    if isinstance(kind, pl.Decimal):
        return f"Annotated[pl.Decimal, {kind.precision}, {kind.scale}]"
    if isinstance(kind, pl.Datetime):
        return "ba.Instant" if kind.time_zone else "ba.LocalTimestamp"
    simple: dict[Any, str] = {pl.String: "str", pl.Boolean: "bool"}
    return simple.get(kind.base_type(), f"pl.{kind.base_type().__name__}")


def without_target_type(kind: pl.DataType) -> bool:
    """Whether a target cannot have a column of a type: its rows have no digest then."""
    try:
        canonical_type("", kind)
    except (TypeError, ValueError):
        return True
    return False


def time_column_of(columns: Sequence[NamedColumn], wanted: str | None) -> tuple[str | None, list[str]]:
    """Return the column that says when a row happened, and the others that might."""
    instants = [one.name for one in columns if one.kind == INSTANT]
    found = wanted if wanted in instants else next(iter(instants), None)
    return found, [one for one in instants if one != found]


def entity_of(columns: Sequence[NamedColumn]) -> tuple[str, str] | None:
    """Return the column that reads like the name of what rows are about, and why it is taken; None where none does."""
    usable = [one for one in columns if one.kind.base_type() in _ENTITIES and one.repeats is not False]
    usable = [
        one for one in usable if not (one.repeats and one.nullable)
    ]  # where values were seen, some rows have none
    for one in usable:
        if found := _NAMES.search(one.name):
            return one.name, f"{one.name} ends with {found[2]}" if found[1] else f"it is called {one.name}"
    seen = next((one.name for one in usable if one.repeats and one.kind == pl.String()), None)
    return None if seen is None else (seen, f"many rows have the same {seen}")


def key_of(columns: Sequence[NamedColumn], identifiers: Sequence[str], time_column: str, day: str) -> GuessedKey:
    """Return what identifies a row: the identifier fields of the schema, or else what its names say."""
    names = [one.name for one in columns]
    if identifiers and set(identifiers) <= set(names):
        return GuessedKey(tuple(identifiers), ())
    found = [one.name for one in columns if one.kind.base_type() in _ENTITIES and _NAMES.search(one.name)]
    when = time_column if time_column in names else day
    said = f"{', '.join(found)} and {when}" if found else when
    why = f"key: {said}, guessed from names; the schema has no identifier fields that are copied"
    return GuessedKey((*found, when), (why,))


def day_name(taken: Collection[str]) -> str:
    """Return a name for the day of a row that no other column has."""
    return next(name for name in ("day", "on_day", "day_of_row", "day_in_utc") if name not in taken)
