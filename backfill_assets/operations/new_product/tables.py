"""What a table of the catalog says to somebody who declares one: columns, days, identifiers and partitions.

Put here what is read of a table. What is guessed from it is `guesses`' and `drafts`' to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

import polars as pl
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, MonthTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from backfill_assets.declarations.checking.tables import of_name
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, is_column_name
from backfill_assets.installation import Platform
from backfill_assets.operations.new_product.drafts import Likeness, Source
from backfill_assets.operations.new_product.guesses import (
    INSTANT,
    NamedColumn,
    PartitionedBy,
    time_column_of,
    without_target_type,
)
from manifests.chunks import Chunking
from manifests.errors import InputRefused, Problem

_TYPES: Mapping[type, pl.DataType] = {
    StringType: pl.String(),
    IntegerType: pl.Int32(),
    LongType: pl.Int64(),
    FloatType: pl.Float32(),
    DoubleType: pl.Float64(),
    BooleanType: pl.Boolean(),
    DateType: pl.Date(),
    TimeType: pl.Time(),
    TimestampType: pl.Datetime("us"),
    BinaryType: pl.Binary(),
    TimestamptzType: INSTANT,
}


def source_of(platform: Platform, name: str, time_column: str | None = None) -> Source:
    """Return a table of the catalog as the source of a new product.

    Raises:
        InputRefused: if there is none, or none of its columns can be declared.
    """
    _require_full_name(name)
    table = platform.lakehouse.table(name)
    owner = platform.products.of_table(name)
    columns, left_out = _columns(table)
    of_runs = [one.name for one in columns if one.name in LINEAGE_COLUMNS]
    left_out += tuple(
        f"column {one}: left out, because rows that are published have one of their own" for one in of_runs
    )
    columns = tuple(one for one in columns if one.name not in of_runs)
    if not columns:
        raise InputRefused(
            Problem(
                f"{name} has no column that can be declared: {'; '.join(left_out)}", "a source has one", "name another"
            )
        )
    partitioned_by = _partitions(table)[0].get("month of an instant")
    return Source(
        name,
        columns,
        days=_days(platform, name, table, columns, time_column or partitioned_by),
        time_column=time_column,
        declared_by="" if owner is None else owner.name,
        partitioned_by=partitioned_by,
        left_out=left_out,
    )


def likeness_of(platform: Platform, name: str) -> Likeness:
    """Return a table of the catalog as what a new target is to be like.

    Raises:
        InputRefused: if there is none, or a product has it already.
    """
    _require_full_name(name)
    table = platform.lakehouse.table(name)
    if (owner := platform.products.of_table(name)) is not None:
        raise InputRefused(
            Problem(
                f"{name} is declared by the product {owner.name}",
                "a table is declared once",
                "name another table, or compute from this one with --source",
            )
        )
    columns, unlike = _columns(table)
    names = {one.name for one in columns}
    own = tuple(one for one in columns if one.name not in LINEAGE_COLUMNS)
    targets = tuple(one for one in own if not without_target_type(one.kind))
    unlike += tuple(
        f"column {one.name}: left out, because a target has no {one.python}" for one in own if one not in targets
    )
    found, others = _partitions(table)
    dates = {one.name for one in targets if one.kind == pl.Date()}
    by_month, by_day = found.get("month of a date"), found.get("day of a date")
    day = by_day or by_month
    if day is None and len(dates) == 1:
        day = next(iter(dates))
        unlike += (f"day_column: {day}, because it is the only date; {name} is not partitioned by one",)
    chunking = Chunking.DAY if by_day or (day is None and "day of an instant" in found) else Chunking.MONTH
    return Likeness(
        name,
        targets,
        tuple(sorted(table.schema().identifier_field_names())),
        PartitionedBy(day if day in dates else None, chunking),
        carries_lineage=set(LINEAGE_COLUMNS) <= names,
        unlike=(*unlike, *others),
    )


def _require_full_name(name: str) -> None:
    if any(of_name(name, "")):
        raise InputRefused(
            Problem(
                f"{name!r} is no table that can be declared",
                "a table's name is <namespace>.<table>, of letters, digits and underscores",
                "write both parts",
            )
        )


def _columns(table: Table) -> tuple[tuple[NamedColumn, ...], tuple[str, ...]]:
    """Return the columns of a table that can be declared, and of the others which they are and why not."""
    found: list[NamedColumn] = []
    left_out: list[str] = []
    for field in table.schema().fields:
        kind = _polars(field.field_type)
        if kind is None:
            left_out.append(f"column {field.name}: left out, because this command writes no {field.field_type}")
        elif not is_column_name(field.name):
            left_out.append(f"column {field.name!r}: left out, because a model has no such name")
        else:
            found.append(NamedColumn(field.name, kind, not field.required, field.doc or ""))
    return tuple(found), tuple(left_out)


def _polars(kind: Any) -> pl.DataType | None:
    if isinstance(kind, DecimalType):
        return pl.Decimal(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        inner = _polars(kind.element_type)
        return None if inner is None else pl.List(inner)
    return _TYPES.get(type(kind))


def _partitions(table: Table) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the columns that partitions are months or days of, by what they are; and what else partitions are, in words."""
    found: dict[str, str] = {}
    others: list[str] = []
    for field in table.spec().fields:
        column = table.schema().find_field(field.source_id)
        units: dict[type, str] = {MonthTransform: "month", DayTransform: "day"}
        kinds: dict[type, str] = {DateType: "a date", TimestamptzType: "an instant"}
        unit, of = units.get(type(field.transform)), kinds.get(type(column.field_type))
        if unit is None or of is None:
            others.append(
                f"partitions: {field.transform} of {column.name} is left out of the new table; a table that exists keeps its own"
            )
        else:
            found.setdefault(f"{unit} of {of}", column.name)
    return found, tuple(others)


def _days(
    platform: Platform, name: str, table: Table, columns: tuple[NamedColumn, ...], wanted: str | None
) -> tuple[date, date] | None:
    """Return the first and the last day of a source's rows by its files' bounds; None where it has none, or they say nothing."""
    time_column, _ = time_column_of(columns, wanted)
    if time_column is None or table.current_snapshot() is None:
        return None
    try:
        state = platform.lakehouse.source_state(name, time_column, None)
    except InputRefused:
        return None  # what keeps files from being read is said by `plan`, whoever is to read them
    if not state.files:
        return None
    return min(file.first_day for file in state.files), max(file.last_day for file in state.files)
