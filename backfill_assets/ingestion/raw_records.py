"""Quarantined rows held against the model of their table once more: from their JSON text to rows with the declared types.

Put here how a raw row is read back, and which rule of today it breaks. Which rows are held against it, and where they go, is
`releases`'; what a product's own raw rows mean, its loader's. A value is read back as it was loaded: what came as text by the rules for
text, what came with a type as the text that Polars writes of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from struct import pack, unpack
from typing import Any

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.column_types import inner_types, instance_of, is_floating
from backfill_assets.ingestion.input_files import ROW, Checked, InputFile
from backfill_assets.planning.quarantine_cases import RawRow

_NINE_DIGITS = re.compile(r"(\.[0-9]{6})000((?:[+-][0-9]{2}:[0-9]{2})?)\Z")
"""What Polars writes of an instant with nanoseconds, where those are none; within lists, by the offset of the file's zone."""
_NO_NUMBERS = ("NaN", "inf", "-inf")
_FLOAT = re.compile(r"-?[0-9]+(\.[0-9]+(e[+-]?[0-9]+)?|e[+-]?[0-9]+)")
"""What Polars writes of a float: with a point or an exponent, and so nothing that it writes of an integer."""
_RULES_OF_TYPES = (": not ", ": has a NUL ")
"""What the rules say by which a value is none of its column's type: only the first of them is on record, and they are asked first."""


class RawRecords(InputFile):
    """Quarantined rows of a table whose files have its own columns; the number of a row is its place in the sequence."""

    def __init__(self, rows: Sequence[RawRow], model: type[pa.DataFrameModel]) -> None:
        """Read the rows back; `unreadable` has, by the number of a row, why one can be no row of the model's columns."""
        self._held_against(model, Path("the quarantined rows"))
        self._is_text = False  # a line end within a cell is one row's, and none of a file
        self.unreadable: dict[int, str] = {}
        self._groups: dict[tuple[bool, tuple[str, ...], tuple[str, ...]], list[tuple[int, dict[str, Any]]]] = {}
        for number, row in enumerate(rows):
            values = self._values(number, row)
            from_text = row.source_file.lower().endswith(".csv")
            if values is not None and not from_text and (wrong := self._wrong_float(row.rule, values)):
                self.unreadable[number] = wrong
            elif values is not None:
                numbers = () if from_text else self._numbers(values)
                self._groups.setdefault((from_text, tuple(values), numbers), []).append((number, values))

    def batches(self, rows: int = 200_000) -> Iterator[Checked]:
        """Yield the rows, held against the model, in batches of about `rows`.

        Raises:
            InputRefused: if a rule of the model is about the whole table at once, and is not met.
        """
        for (from_text, names, numbers), found in self._groups.items():
            self._columns = [name for name in self._types if name in names]
            for start in range(0, len(found), rows):
                part = found[start : start + rows]
                columns = [self._column(name, part, numbers, from_text=from_text) for name in self._columns]
                frame = pl.DataFrame([*columns, pl.Series(ROW, [number for number, _ in part], pl.Int64)])
                yield self._check(frame)

    def _values(self, number: int, row: RawRow) -> dict[str, Any] | None:
        """Return the values of a raw row by column; None where it is unreadable."""
        try:
            values = json.loads(row.record)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            self.unreadable[number] = "the raw row has no columns"
            return None
        for name, value in values.items():
            if (why := self._wrong(name, value)) is not None:
                self.unreadable[number] = f"{name}: {why}"
                return None
        return values

    def _wrong(self, name: str, value: Any) -> str | None:
        if name not in self._types:
            return "not declared"
        if value is None:
            return None
        kind = self._types[name]
        if not _is_read_back(kind):
            return f"{self._names[name]} is not read back from the quarantine"
        is_right = _are_lists_of_text(value, _depth(kind)) if isinstance(kind, pl.List) else isinstance(value, str)
        return None if is_right else f"not {self._names[name]}"

    def _wrong_float(self, rule: str, values: Mapping[str, Any]) -> str:
        """Return what is said of a typed value that its column of floating point cannot hold; empty where each column holds its own.

        One that was refused for that stays so: read from its text, the float next to it would come in. Of a row that was refused for
        another type, nothing was said of the columns after that one.
        """
        floats = {name: f"{name}: not {self._names[name]}" for name in values if self._is_of_floats(name)}
        if rule in floats.values():
            return rule
        if not any(mark in rule for mark in _RULES_OF_TYPES):
            return ""
        wrong = (floats[name] for name in floats if _rounds(values[name], _innermost(self._types[name])))
        return next(wrong, "")

    def _is_of_floats(self, name: str) -> bool:
        return is_floating(_innermost(self._types[name]))

    def _numbers(self, values: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the columns of floating point with a number that is none: no text of a file says one, and a typed value may be one, or have it."""
        return tuple(name for name, value in values.items() if self._is_of_floats(name) and _has_no_number(value))

    def _column(
        self, name: str, part: Sequence[tuple[int, Mapping[str, Any]]], numbers: Sequence[str], *, from_text: bool
    ) -> pl.Series:
        kind = self._types[name]
        found = [values[name] for _, values in part]
        if name in numbers:
            return pl.Series(name, [_each(float, one) for one in found], _with_inner(kind, pl.Float64()))
        if not from_text and isinstance(_innermost(kind), pl.Datetime | pl.Time):
            found = [_each(_to_the_microsecond, one) for one in found]
        column = pl.Series(name, found, _with_inner(kind, pl.String()))
        return column.str.decode("hex", strict=False) if isinstance(kind, pl.Binary) else column


def _with_inner(kind: pl.DataType, inner: pl.DataType) -> pl.DataType:
    """Return a type, or lists of it where a declared type is such lists."""
    return pl.List(_with_inner(instance_of(kind.inner), inner)) if isinstance(kind, pl.List) else inner


def _each(read: Callable[[str], Any], value: Any) -> Any:
    """Return what is read from a text, or from each one in lists."""
    if isinstance(value, list):
        return [_each(read, one) for one in value]
    return None if value is None else read(value)


def _to_the_microsecond(text: str) -> str:
    return _NINE_DIGITS.sub(r"\1\2", text)


def _has_no_number(value: Any) -> bool:
    """Return whether a text, or one in lists, is NaN or infinite, and the others are of floats as well."""
    texts: list[str] = []
    _each(texts.append, value)
    return not set(texts).isdisjoint(_NO_NUMBERS) and all(one in _NO_NUMBERS or _FLOAT.fullmatch(one) for one in texts)


def _innermost(kind: pl.DataType) -> pl.DataType:
    return _innermost(instance_of(kind.inner)) if isinstance(kind, pl.List) else kind


def _rounds(value: Any, kind: pl.DataType) -> bool:
    """Return whether a text of a double, or one in lists, is of one that no float is; of an integer, its text alone tells."""
    if isinstance(value, list):
        return any(_rounds(one, kind) for one in value)
    if value is None or not isinstance(kind, pl.Float32):
        return False
    try:
        double = float(value)
        return bool(unpack("f", pack("f", double))[0] != double == double)  # noqa: PLR0124 - NaN is a value
    except OverflowError:
        return True
    except ValueError:  # it is no number, and its text tells
        return False


def _depth(kind: pl.DataType) -> int:
    return 1 + _depth(instance_of(kind.inner)) if isinstance(kind, pl.List) else 0


def _are_lists_of_text(value: Any, depth: int) -> bool:
    if value is None:
        return True
    if not depth:
        return isinstance(value, str)
    return isinstance(value, list) and all(_are_lists_of_text(one, depth - 1) for one in value)


@cache
def _is_read_back(kind: pl.DataType) -> bool:
    """Whether values of a type are read back from text: nothing that has others inside but lists, and no lists of bytes."""
    if isinstance(kind, pl.List):
        inner = inner_types(kind)[0]
        return not isinstance(inner, pl.Binary) and _is_read_back(inner)
    return not isinstance(kind, pl.Struct | pl.Map)
