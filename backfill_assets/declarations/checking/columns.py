"""Columns and tables that a declaration names: that they are declared, and of a type that can be stored.

Put here a mistake that any table can make with a name or a type. Which fields of a target name columns is `targets`' to
say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.canonical_types import canonical_type
from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.checking.names import did_you_mean
from backfill_assets.declarations.column_types import is_floating, is_nested
from backfill_assets.declarations.schema import dtypes, iceberg_type
from manifests.errors import Problem

COLUMN_TYPES = (
    "a column is str, bool, pl.Int32, pl.Int64, pl.Float32, pl.Float64, Annotated[pl.Decimal, p, s], pl.Date, pl.Time, ba.Instant, "
    "ba.LocalTimestamp, pl.Binary, ba.Uuid, or pl.List, pl.Struct or pl.Map of such ones"
)
IN_MODEL = "correct the name, or declare the column in the model"
ColumnTypes = Mapping[str, pl.DataType]
_NOT_IN_CONFIG = re.compile(r"api\.checks\.Check'>' object has no attribute '(\w+)'")
_WITHOUT_TYPE = re.compile(r"missing annotations: \[(.*)\]")
_Config = pa.DataFrameModel.Config


# --- one kind of mistake each -----------------------------------------------------------------------------------------

DATE = ("a date (pl.Date)", lambda kind: kind == pl.Date)
DAY = (
    "a date (pl.Date) or an instant (ba.Instant, timestamptz)",
    lambda kind: kind in (pl.Date, pl.Datetime("us", "UTC")),
)
INSTANT = ("an instant (ba.Instant, timestamptz)", lambda kind: kind == pl.Datetime("us", "UTC"))


def in_columns(
    table: str,
    field: str,
    names: Iterable[str],
    of: str,
    columns: Mapping[str, Any],
    fix: str = IN_MODEL,
) -> Iterator[Problem]:
    """Say of names that must be columns of a table which of them are none."""
    for name in names:
        if name not in columns:
            yield Problem(
                f"{name!r} is no column of {of}" + did_you_mean(name, columns),
                f"columns of {of} are {', '.join(columns)}",
                fix,
                f"{table}: {field}",
            )


def declared_columns(table: str, model: type[pa.DataFrameModel]) -> tuple[ColumnTypes | None, list[Problem]]:
    """Return the columns of a model; where it has none, None and why."""
    try:
        columns = dtypes(model)
    except Exception as error:  # noqa: BLE001 - pandera raises what it meets in a model
        what, rule = python_words(error), "pandera makes a schema of it"
        if isinstance(error, AttributeError) and (unknown := _NOT_IN_CONFIG.search(str(error))):
            known = [name for name in dir(_Config) if not name.startswith("_")]
            what = f"Config of {model.__name__} has {unknown[1]}" + did_you_mean(unknown[1], known)
            rule = f"pandera takes it for a check of that name; what it knows itself is {', '.join(known)}"
        if missing := _WITHOUT_TYPE.search(what):
            what = f"{model.__name__} has no type for {missing[1]}"
            rule = "a column is declared with its type, `name: type = pa.Field(...)`; what pandera itself is told is a class named Config, and a constant is a ClassVar"
        return None, [Problem(what, rule, "correct the model", f"{table}: model")]
    if not columns:
        what = f"{model.__name__} declares no column"
        return None, [Problem(what, "a table has one or more", "declare them, each with its type", f"{table}: model")]
    return columns, []


def of_unique(table: str, model: type[pa.DataFrameModel]) -> Iterator[Problem]:
    """Say which names in a model's `Config.unique` are no columns of it; Polars would look for them in every file."""
    schema = model.to_schema()
    yield from in_columns(table, "model.Config.unique", schema.unique or (), table, schema.columns)


def of_kind(
    table: str, field: str, name: str, of: str, columns: ColumnTypes, kind: tuple[str, Callable[[Any], bool]]
) -> Iterator[Problem]:
    """Say that a name must be a column of a kind, and is none or of another."""
    yield from in_columns(table, field, (name,), of, columns)
    if name in columns and not kind[1](columns[name]):
        yield Problem(
            f"{name!r} of {of} is {columns[name]}",
            f"{field} names {kind[0]}",
            "name another column, or correct its type in the model",
            f"{table}: {field}",
        )


def of_declared_table(
    table: str, field: str, name: str, columns: Mapping[str, Any], offered: Sequence[str] | None = None
) -> Iterator[Problem]:
    """Say that a name must be a declared table, and is none."""
    if name not in columns:
        names = sorted(columns) if offered is None else offered
        yield Problem(
            f"no product declares the table {name!r}" + did_you_mean(name, names),
            f"declared are {', '.join(names) or 'none'}",
            "correct the name, or declare it as an InputTable of a product",
            f"{table}: {field}",
        )


def in_table(name: str, kind: pl.DataType) -> None:
    """Require that a column has a type in Iceberg, and an encoding in the row digest."""
    iceberg_type(name, kind)  # first: it says of a decimal's digits what is wrong with them
    canonical_type(name, kind)


def without_type(table: str, columns: ColumnTypes) -> Iterator[Problem]:
    """Say of each column that its type cannot be stored."""
    for name, kind in columns.items():
        try:
            in_table(name, kind)
        except (TypeError, ValueError) as error:
            yield Problem(str(error), COLUMN_TYPES, _instead(kind), f"{table}: model")


def _instead(kind: pl.DataType) -> str:
    """Say what is declared instead of a type that cannot be stored."""
    base = kind.base_type()
    if kind == pl.Datetime:
        return "an instant is `ba.Instant`, a timestamp without a zone `ba.LocalTimestamp`"
    if base in {pl.Int8, pl.Int16, pl.UInt8, pl.UInt16}:
        return "declare pl.Int32, which holds each of its values: Iceberg has no narrower integer"
    if base == pl.UInt32:
        return "declare pl.Int64, which holds each of its values: Iceberg has no integer without a sign"
    if base in {pl.UInt64, pl.Int128, pl.UInt128}:
        return "declare pl.Int64 where its values fit, else Annotated[pl.Decimal, 38, 0]"
    if base == pl.Float16:
        return "declare pl.Float32, which holds each of its values"
    if base in {pl.Categorical, pl.Enum}:
        return "declare str; `isin` in pa.Field says which values there are"
    if base == pl.Duration:
        return "declare pl.Int64, and count microseconds (or days) in it"
    return "declare another type; money is a decimal"


def orders_rows(kind: pl.DataType) -> bool:
    """Return whether values of a type are in one order for everybody, so that they identify and order rows."""
    return not is_nested(kind) and not is_floating(kind)
