"""A file of a product's package that a gate reads: a table in CSV, whose cells mean what a column's type says.

Put here how such a file is found, cut into cells, and read by the type of a column. What is in it is its gate's to say. It is code of
the product: who changes it changes the product, and voids the plans of its tables. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

import re
import stat
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Context, Decimal, InvalidOperation
from functools import partial
from inspect import currentframe
from pathlib import Path
from typing import Any
from uuid import UUID

import polars as pl

from backfill_assets.declarations.checking.names import did_you_mean
from manifests.errors import Problem

MOST_ROWS = 100_000
"""Rows that such a file may have: it is read by people, and whole."""
_CELL = re.compile(r'("(?:[^"]|"")*"|[^",\r\n]*)(,|\r?\n|\Z)')
_UUID = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_OWN = "backfill_assets.declarations"
_SHOWN = 60
NO_VALUE = (ValueError, InvalidOperation, OverflowError)
"""What `value_of` raises of a cell that is none."""
_EXACT = Context(prec=100)
"""Python's own context has 28 digits, and a column's decimal up to 38."""
Cells = tuple[str | None, ...]


@dataclass(frozen=True)
class TableFile:
    """The cells of a file: its columns, and its rows with the line each begins on. None is an empty cell, "" a quoted one."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[int, Cells], ...]


def beside_caller(file: str) -> Path:
    """Return the path of a file: as it is given, below the folder of the module that declares the gate."""
    frame = currentframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OWN):
        frame = frame.f_back
    module = "" if frame is None else str(frame.f_globals.get("__file__") or "")
    return (Path(module).parent / file) if module else Path(file)


def read(path: Path) -> tuple[TableFile | None, list[Problem]]:
    """Return what is in a file; where it is no table, None and why."""
    rule = "it is a CSV file in UTF-8, with a header line and commas"
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for a writer
            fix = "write the table to a file beside the module that declares the gate"
            return None, [Problem(f"{path.name} is not a regular file", "a gate reads its file", fix)]
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        fix = "put it beside the module that declares the gate, or correct its name"
        return None, [Problem(f"{path.name} cannot be read: {error.strerror}", "a gate reads its file", fix)]
    except UnicodeDecodeError as error:
        return None, [Problem(f"byte {error.start:,} of {path.name} is no UTF-8", rule, "save it in UTF-8")]
    text = text.removeprefix("\ufeff")
    rows: list[tuple[int, Cells]] = []
    try:
        for row in _rows(text):
            rows.append(row)
            if len(rows) > MOST_ROWS + 1:
                raise ValueError(f"has more than {MOST_ROWS:,} rows")  # noqa: TRY301 - told as the others are
    except ValueError as error:
        return None, [Problem(f"{path.name} {error}", rule, "correct the file")]
    if not rows or not all(rows[0][1]):
        what = f"{path.name} has no header line" if not rows else f"a column of {path.name} has no name"
        return None, [Problem(what, rule, "name its columns in the first line")]
    header = tuple(name or "" for name in rows[0][1])
    problems = [
        Problem(f"{path.name} has the column {name!r} {times} times", "a column is named once", "take the others out")
        for name, times in Counter(header).items()
        if times > 1
    ]
    problems += [
        Problem(
            f"line {line:,} of {path.name} has {len(cells)} cells, and its header {len(header)}",
            "a row has a cell for each column",
            "put a text with a comma in quotes",
        )
        for line, cells in rows[1:]
        if len(cells) != len(header)
    ]
    if len(rows) == 1:
        problems.append(Problem(f"{path.name} has no row", "a gate compares with what its file has", "fill it"))
    return (None, problems) if problems else (TableFile(path.name, header, tuple(rows[1:])), [])


def _rows(text: str) -> Iterator[tuple[int, Cells]]:
    """Yield the rows of a text, each with its line; lines without anything are left out."""
    at, line, begins, cells = 0, 1, 1, list[str | None]()
    while at < len(text):
        found = _CELL.match(text, at)
        if found is None:
            raise ValueError(f"has a stray quote in line {line:,}")
        cell, end = found.groups()
        cells.append(cell[1:-1].replace('""', '"') if cell.startswith('"') else cell or None)
        line += cell.count("\n") + end.count("\n")
        at = found.end()
        if end != ",":
            if cells != [None]:
                yield begins, tuple(cells)
            begins, cells = line, []
    if cells:  # it ends with a comma
        yield begins, (*cells, None)


def wrong_columns(
    file: TableFile, known: Iterable[str], wanted: Iterable[str], what: str, where: str
) -> Iterator[Problem]:
    """Say which columns of a file are none that it may have, and which it lacks."""
    known = list(known)
    for name in file.columns:
        if name not in known:
            yield Problem(
                f"{file.name} has the column {name!r}{did_you_mean(name, known)}",
                f"its columns are {what}: {', '.join(known)}",
                "correct the name, or take the column out",
                where,
            )
    for name in wanted:
        if name not in file.columns:
            yield Problem(f"{file.name} has no column {name!r}", f"it has {what}", "add the column", where)


def values_of(
    file: TableFile, kinds: Mapping[str, pl.DataType], where: str
) -> tuple[list[dict[str, Any]], list[Problem]]:
    """Return the rows of a file as values of their columns' types, `_line` with them, and which cells are none.

    A column that has no type stays text.
    """
    found: list[dict[str, Any]] = []
    problems = []
    for line, cells in file.rows:
        row: dict[str, Any] = {"_line": line}
        for name, cell in zip(file.columns, cells, strict=True):
            kind = kinds.get(name)
            try:
                row[name] = cell if kind is None or cell is None else value_of(kind, cell)
            except NO_VALUE:
                what = f"line {line:,} of {file.name}: {name} is {cell!r}"[:200]
                problems.append(Problem(what, f"{name} is {kind}", f"for example {_example(kind)}", where))
        found.append(row)
    return found, problems[:_SHOWN]


def _example(kind: pl.DataType | None) -> str:
    if isinstance(kind, pl.Datetime) and kind.time_zone is None:
        return "2024-01-31T12:00:00"
    return "" if kind is None else _EXAMPLES[kind.base_type()]


_EXAMPLES: Mapping[Any, str] = {
    pl.String: "text",
    pl.Int32: "12",
    pl.Int64: "12",
    pl.Boolean: "true",
    pl.Date: "2024-01-31",
    pl.Datetime: "2024-01-31T12:00:00+01:00",
    pl.Decimal: "12.50",
    pl.Float32: "12.5",
    pl.Float64: "12.5",
    pl.Time: "12:30:00",
    pl.Binary: "0x0aff, or a UUID as it is usually written",
}
_TRUTHS = {"true": True, "false": False}
_WHOLE = re.compile(r"-?\d{1,19}")
_FINER = re.compile(r"[.,]\d{7}")


def value_of(kind: pl.DataType, cell: str) -> Any:
    """Return a cell as a value of a column's type.

    Raises:
        ValueError, InvalidOperation, OverflowError: if it is none (`NO_VALUE`).
    """
    if kind == pl.String:
        return cell
    if isinstance(kind, pl.Decimal):
        return _decimal(kind, cell)
    if isinstance(kind, pl.Datetime) and kind.time_zone is None:
        return _on_a_wall(cell)
    return _PARSED[kind.base_type()](cell)


def _whole(cell: str, bits: int) -> int:
    if not _WHOLE.fullmatch(cell) or not -(2**bits) <= int(cell) < 2**bits:
        raise ValueError(cell)
    return int(cell)


def _truth(cell: str) -> bool:
    if cell not in _TRUTHS:
        raise ValueError(cell)
    return _TRUTHS[cell]


def _day(cell: str) -> date:
    day = date.fromisoformat(cell)
    if day.isoformat() != cell:
        raise ValueError(cell)
    return day


def _to_the_microsecond(cell: str) -> str:
    """Return a time that has no more digits than a column's: Python leaves out what is beyond them."""
    if _FINER.search(cell):
        raise ValueError(cell)
    return cell


def _instant(cell: str) -> datetime:
    at = datetime.fromisoformat(_to_the_microsecond(cell))
    if at.tzinfo is None:
        raise ValueError(cell)
    return at.astimezone(UTC)


def _on_a_wall(cell: str) -> datetime:
    at = datetime.fromisoformat(_to_the_microsecond(cell))
    if at.tzinfo is not None:
        raise ValueError(cell)
    return at


def _time(cell: str) -> time:
    at = time.fromisoformat(_to_the_microsecond(cell))
    if at.tzinfo is not None:
        raise ValueError(cell)
    return at


def _single(cell: str) -> float:
    """Return the number of 32 bits that is next to a decimal, as it is once a table has it."""
    return float(struct.unpack("<f", struct.pack("<f", float(cell)))[0])


def _bytes(cell: str) -> bytes:
    return UUID(cell).bytes if _UUID.fullmatch(cell) else bytes.fromhex(cell.removeprefix("0x"))


def has_values(kind: pl.DataType) -> bool:
    """Whether a cell can say a value of a column's type: of what has others inside none can."""
    return isinstance(kind, pl.Decimal) or kind.base_type() in _EXAMPLES


_PARSED: Mapping[Any, Callable[[str], Any]] = {
    pl.Int32: partial(_whole, bits=31),
    pl.Int64: partial(_whole, bits=63),
    pl.Boolean: _truth,
    pl.Date: _day,
    pl.Datetime: _instant,
    pl.Float32: _single,
    pl.Float64: float,
    pl.Time: _time,
    pl.Binary: _bytes,
}


def _decimal(kind: pl.Decimal, cell: str) -> Decimal:
    """Return a decimal that the column can have: nothing is rounded."""
    value = Decimal(cell)
    if not value.is_finite():
        raise ValueError(cell)
    exact = value.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if exact != value or len(exact.as_tuple().digits) > (kind.precision or 38):
        raise ValueError(cell)
    return exact
