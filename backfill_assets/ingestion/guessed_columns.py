"""Which columns a file has, for a table that is yet to be declared: the narrowest type that takes every value as it is.

Put here how a type is found in values. What a file of a declared table must look like is `input_files`', and what a load makes of
a value `typed_values`': a type is taken here only if that leaves each value what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import polars as pl
import pyarrow as arrow

from backfill_assets.declarations.schema import is_column_name
from backfill_assets.delivered_files import content_hash
from backfill_assets.ingestion.file_formats import (
    csv_batches,
    csv_columns,
    in_utc,
    open_parquet,
    parquet_columns,
    readable,
    require_file,
)
from backfill_assets.ingestion.typed_values import as_declared, local_instant
from manifests.errors import InputRefused, Problem

INSTANT = pl.Datetime("us", "UTC")
_CODE = r"^[+-]?0\d|^\+|[eE]"
"""Digits that are a name and not a number: with zeros in front, with a plus, or in a notation that nobody counts in."""
_DIGITS = 38
_ROOM = 4
"""Digits before the point that a decimal is given besides those that were seen."""


@dataclass(frozen=True)
class GuessedColumn:
    """A column of a file: its type, and what its values say.

    `nullable`: whether a row has none. `repeats`: whether they are half as many as rows, or fewer. `days`: the first and the last
    day of an instant's values.
    """

    name: str
    kind: pl.DataType
    nullable: bool
    repeats: bool = False
    days: tuple[date, date] | None = None


def guessed_columns(path: Path) -> list[GuessedColumn]:
    """Return the columns of a CSV or Parquet file; it is read as a whole, once for each kind of type.

    Raises:
        InputRefused: if it cannot be read, has no rows, or a column is of no type that a load could fill; all reasons at once.
    """
    with readable(path):
        require_file(path)
        content_hash(path)  # names the line of a quote that is not closed
        is_text = path.suffix.lower() == ".csv"
        found = csv_columns(path) if is_text else parquet_columns(path)
        _require_names(path, found)
        _require_apart(path, found)
        batches = list(csv_batches(path, list(found)) if is_text else _parquet(path))
    rows = pl.concat(batches) if batches else pl.DataFrame()
    if not rows.height:
        raise InputRefused(Problem(f"{path} has no rows", "types are found in values", "name a file with some"))
    problems: list[Problem] = []
    columns = [_column(path, rows[name], problems) for name in found]
    if problems:
        raise InputRefused(problems)
    return [one for one in columns if one is not None]


def _require_names(path: Path, names: Mapping[str, object]) -> None:
    wrong = [name for name in names if not is_column_name(name)]
    if wrong:
        raise InputRefused(
            Problem(
                f"{path} has the column(s) {', '.join(map(repr, wrong))}",
                "a column is an attribute of a model: ASCII letters, digits and '_', a letter first, and no word of Python or pandera",
                "rename them in the file's header, for example 'Order No.' as order_no",
            )
        )


def _require_apart(path: Path, names: Mapping[str, object]) -> None:
    """Refuse columns whose names differ by case alone: Spark takes one for the other."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.lower(), []).append(name)
    if twice := [found for found in alike.values() if len(found) > 1]:
        raise InputRefused(
            Problem(
                f"{path} has the columns {'; '.join(' and '.join(found) for found in twice)}, which differ by case alone",
                "Spark and SQL know a column by its name in any case",
                "rename one of them in the file's header",
            )
        )


def _parquet(path: Path) -> Iterator[pl.DataFrame]:
    with open_parquet(path) as file:
        for batch in file.iter_batches():
            frame = pl.from_arrow(arrow.Table.from_batches([in_utc(batch)]))
            assert isinstance(frame, pl.DataFrame)
            yield frame


def _column(path: Path, values: pl.Series, problems: list[Problem]) -> GuessedColumn | None:
    """Return a column with its type, or say why it has none."""
    there = values.drop_nulls()
    kind = pl.String() if there.is_empty() else _kind(there)
    if kind is None:
        problems.append(
            Problem(
                f"column {values.name} of {path} is {values.dtype}",
                "an input table has text, integers, floats, decimals, truths, days, instants with a time zone, and lists",
                "write the column as one of these",
            )
        )
        return None
    if isinstance(kind, pl.String) and not there.is_empty() and _all(there, local_instant(pl.col(values.name))):
        problems.append(
            Problem(
                f"column {values.name} of {path} has local times, such as {there[0]}",
                "which instant a local time is depends on where it is: a load asks nobody",
                "write it with its offset (2024-01-31T08:30:00+01:00), or write a loader for the file: see Loading input in "
                "docs/adding-a-table.md",
            )
        )
        return None
    days = None
    if kind == INSTANT:
        instants = _as(there, kind)
        days = (instants.min().date(), instants.max().date())  # type: ignore[union-attr]
    repeats = not isinstance(kind, pl.List) and 0 < there.n_unique() * 2 <= values.len()
    return GuessedColumn(values.name, kind, values.null_count() > 0, repeats, days)


def _kind(values: pl.Series) -> pl.DataType | None:
    if values.dtype != pl.String:
        return _declared_as(values.dtype)
    if not _any(values, pl.col(values.name).str.contains(_CODE)):
        if _takes(values, pl.Int64()):
            return pl.Int64()
        decimal = _decimal(values)
        if decimal is not None and _takes(values, decimal):
            return decimal
    return next((kind for kind in (pl.Boolean(), pl.Date(), INSTANT) if _takes(values, kind)), pl.String())


def _declared_as(kind: pl.DataType) -> pl.DataType | None:
    """Return how a column of a Parquet file's type is declared; None where a load could not fill it."""
    if isinstance(kind, pl.List):
        inner = _declared_as(kind.inner)  # type: ignore[arg-type]
        return None if inner is None else pl.List(inner)
    if isinstance(kind, pl.Datetime):
        return INSTANT if kind.time_zone is not None else None
    if isinstance(kind, pl.Decimal) or kind.base_type() in {pl.String, pl.Boolean, pl.Date, pl.Int32, pl.Int64}:
        return kind
    if kind.is_integer():
        return pl.Int64()
    return pl.Float64() if kind.is_float() else None


def _decimal(values: pl.Series) -> pl.Decimal | None:
    """Return a decimal with room for the digits of every value, and some more before the point; None if some are no digits."""
    digits = values.str.strip_prefix("-").str.split_exact(".", 1).struct.unnest()
    before = digits["field_0"].str.len_chars().max()
    after = digits["field_1"].str.len_chars().max()
    if not isinstance(before, int) or not isinstance(after, int) or before + after + _ROOM > _DIGITS:
        return None
    return pl.Decimal(before + after + _ROOM, after)


def _takes(values: pl.Series, kind: pl.DataType) -> bool:
    return not _as(values, kind).null_count()


def _as(values: pl.Series, kind: pl.DataType) -> pl.Series:
    name = values.name
    return values.to_frame().select(as_declared(pl.col(name), values.dtype, kind).alias(name))[name]


def _all(values: pl.Series, condition: pl.Expr) -> bool:
    return bool(values.to_frame().select(condition.all()).item())


def _any(values: pl.Series, condition: pl.Expr) -> bool:
    return bool(values.to_frame().select(condition.any()).item())
