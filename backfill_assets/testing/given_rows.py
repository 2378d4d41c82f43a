"""Rows as an author gives them, with the declared types; nothing is parsed, rounded or guessed.

Put here what may be given, and why it is refused. Where they are put is `stored_rows`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import pandera.polars as pa
import polars as pl
import pyarrow as arrow

from backfill_assets.declarations.schema import dtypes, lineage_columns
from manifests.errors import InputRefused, Problem

Rows: TypeAlias = Iterable[Mapping[str, Any]] | pl.DataFrame | arrow.Table
"""Rows of a table: mappings by column name (what is left out is NULL), or a Polars or PyArrow table of the declared types."""


def frame_of(name: str, model: type[pa.DataFrameModel], rows: Rows, *, complete: bool = False) -> pl.DataFrame:
    """Return rows as a frame of a model's columns, without those of lineage; nothing is parsed, rounded or guessed.

    Raises:
        InputRefused: if they are no rows; naming what is no column, or the column whose values are not of its type; with
            `complete` also columns that are left out.
    """
    lineage = set(lineage_columns(model))
    kinds = {column: kind for column, kind in dtypes(model).items() if column not in lineage}
    if isinstance(rows, arrow.Table):
        rows = pl.DataFrame(pl.from_arrow(rows))
    if isinstance(rows, pl.DataFrame):
        _require_known(name, kinds, set(rows.columns) - lineage, complete=complete)
        there = [_cast(name, rows[column], kind) for column, kind in kinds.items() if column in rows.columns]
        missing = [pl.lit(None, kind).alias(column) for column, kind in kinds.items() if column not in rows.columns]
        return pl.DataFrame(there).with_columns(missing).select(*kinds)
    found = [_by_column(name, row) for row in _each(name, rows)]
    for row in found:
        _require_known(name, kinds, set(row) - lineage, complete=complete)
    columns = {
        column: _column(name, column, kind, [row.get(column) for row in found]) for column, kind in kinds.items()
    }
    return pl.DataFrame(columns)


def _each(name: str, rows: Any) -> list[Any]:
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise _no_rows(name, f"are a {type(rows).__name__}")
    return list(rows)


def _by_column(name: str, row: Any) -> dict[str, Any]:
    if not hasattr(row, "keys"):
        raise _no_rows(name, f"have a {type(row).__name__}")
    return dict(row)


def _no_rows(name: str, what: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"the rows of {name} {what}",
            "rows are mappings by column name, or a Polars or PyArrow table of the declared types",
            'for example [{"meter_id": "m1", "kwh": 3}]',
        )
    )


def _require_known(name: str, kinds: Mapping[str, Any], found: set[str], *, complete: bool) -> None:
    wrong = [f"has {one}, which is no column" for one in sorted(found - kinds.keys())]
    wrong += [f"lacks {one}" for one in kinds if complete and one not in found]
    if wrong:
        raise InputRefused(
            Problem(f"a row of {name} {'; '.join(wrong)}", f"its columns are {', '.join(kinds)}", "correct the rows")
        )


def _column(name: str, column: str, kind: pl.DataType, values: list[Any]) -> pl.Series:
    is_instant = isinstance(kind, pl.Datetime) and kind.time_zone is not None
    if is_instant and any(isinstance(one, datetime) and one.tzinfo is None for one in values):
        raise _not_of_type(name, column, kind, "a datetime without a time zone is no instant")
    try:
        made = pl.Series(column, values, kind, strict=True)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise _not_of_type(name, column, kind, str(error)) from error
    if made.dtype != kind:
        raise _not_of_type(name, column, kind, f"it would be {made.dtype}")
    for given, kept in zip(values, made, strict=True):
        if not _is_kept(given, kept):
            raise _not_of_type(name, column, kind, f"{given!r} would become {kept!r}")
    return made


def _is_kept(given: Any, kept: Any) -> bool:
    """Whether a value is in a frame what it was before: numbers of other kinds are rounded without a word."""
    if isinstance(kept, pl.Series):
        return [*given] == kept.to_list()
    of_another_kind = any(isinstance(given, kind) and not isinstance(kept, kind) for kind in (bool, float))
    return given is kept or (given == kept and not of_another_kind)


def _cast(name: str, values: pl.Series, kind: pl.DataType) -> pl.Series:
    """Widen or narrow numbers and units as long as every value stays what it is."""
    of_a_kind = (
        values.dtype in {kind, pl.Null()}
        or (values.dtype.is_integer() and kind.is_integer())
        or (
            isinstance(values.dtype, pl.Datetime)
            and isinstance(kind, pl.Datetime)
            and (values.dtype.time_zone is None) == (kind.time_zone is None)
        )
        or (isinstance(values.dtype, pl.Decimal) and isinstance(kind, pl.Decimal))
    )
    if not of_a_kind:
        raise _not_of_type(name, values.name, kind, f"it is {values.dtype}")
    try:
        cast = values.cast(kind, strict=True)
        same = cast.cast(values.dtype, strict=True).equals(values, null_equal=True)
    except pl.exceptions.PolarsError as error:
        raise _not_of_type(name, values.name, kind, str(error)) from error
    if not same:
        raise _not_of_type(name, values.name, kind, f"it is {values.dtype}, and values would change")
    return cast


def _not_of_type(name: str, column: str, kind: pl.DataType, why: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"{column} of {name} is not {kind}: {why.partition(chr(10))[0]}",
            "a column has its declared type",
            "correct the rows",
        )
    )
