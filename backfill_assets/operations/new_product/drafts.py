"""What a new product declares: its input table, its target and the manifest of its first run, before it is written down.

Put here what a draft is made from: an example, a file, a table that its rows come from, a table that it is to be like. What is
guessed of a table is `guesses`'; how a draft becomes files, `folders`'.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date

import polars as pl

from backfill_assets.declarations.schema import LINEAGE_COLUMNS
from backfill_assets.operations.new_product.guesses import (
    INSTANT,
    NamedColumn,
    PartitionedBy,
    day_name,
    entity_of,
    key_of,
    time_column_of,
)
from manifests.chunks import Chunking, last_day
from manifests.chunks import key_of as chunk_of
from manifests.errors import InputRefused, Problem

SAMPLE = "sample.csv"
"""The file with rows that a product begins with, where nobody has named another."""
_COUNT = "events"
_EXAMPLE_DAYS = (date(2024, 1, 1), date(2024, 3, 31))
_EXAMPLE = (
    NamedColumn("thing_id", pl.String(), description="What it happened to."),
    NamedColumn("happened_at", INSTANT, description="When it happened."),
    NamedColumn("amount", pl.Int64(), nullable=True, description="How much of it, if it was counted."),
)


@dataclass(frozen=True)
class Source:
    """Where the rows of a new product come from.

    Attributes:
        table: its name.
        columns: what a row has.
        days: the first and the last day that rows are known of; None where there are none, or nobody looked.
        declared_by: the product that declares the table already; empty where this one does.
        time_column: the instant that says when rows happened; None where nobody has said.
        partitioned_by: the instant by whose month the table is partitioned; None where it is not.
        file: the file that it is to be loaded from; empty where it is not.
        left_out: columns of the table that no declaration has a type for, with their types.
    """

    table: str
    columns: tuple[NamedColumn, ...]
    days: tuple[date, date] | None = None
    declared_by: str = ""
    partitioned_by: str | None = None
    time_column: str | None = None
    file: str = ""
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class Likeness:
    """A table that a new target is to be like.

    Attributes:
        table: its name.
        columns: those that a target can have, without the lineage columns.
        identifiers: the identifier fields of its schema.
        partitioned_by: what its partitions say of days.
        carries_lineage: whether it has the columns that say which run made a row.
        unlike: what it has that is not taken over, in words.
    """

    table: str
    columns: tuple[NamedColumn, ...]
    identifiers: tuple[str, ...]
    partitioned_by: PartitionedBy
    carries_lineage: bool
    unlike: tuple[str, ...] = ()


@dataclass(frozen=True)
class Draft:
    """A new product, as its files say it.

    Attributes:
        name: of the product, its package and its folder.
        source: where its rows come from; `time_column` is when they happened.
        target: the name of its table, with `columns`, `key`, `day_column` and `chunking`.
        entity: of a target that counts its source's rows by day, the column that they are counted by besides; None for none.
        copied: of a target that has its source's rows one by one, the columns that are copied; None where rows are counted.
        days: the publish range of the first run: whole chunks.
        guessed: what somebody has to look at, in words.
        is_sql: whether the transform is a file of SQL.
    """

    name: str
    source: Source
    time_column: str
    target: str
    columns: tuple[NamedColumn, ...]
    key: tuple[str, ...]
    day_column: str
    chunking: Chunking
    days: tuple[date, date]
    entity: str | None = None
    copied: tuple[str, ...] | None = None
    guessed: tuple[str, ...] = field(default=())
    is_sql: bool = False

    @property
    def transform(self) -> str:
        """The name of its transform: that of the table."""
        return self.target.partition(".")[2].lower()

    @property
    def first_chunk(self) -> str:
        """The first chunk that its table can have."""
        return chunk_of(self.chunking, self.days[0])


def example(name: str) -> Source:
    """Return what a product begins with that nobody has named a table or a file for."""
    return Source(f"bronze.{name}_events", _EXAMPLE, _EXAMPLE_DAYS, partitioned_by="happened_at", file=SAMPLE)


def draft(name: str, source: Source | None, like: Likeness | None, *, is_sql: bool = False) -> Draft:
    """Return a new product: what it counts of a source, or what of a source it needs to be like a table.

    Raises:
        InputRefused: if rows cannot be placed in time, or a table has nothing that a target can have.
    """
    if like is None:
        return replace(_counting(name, source or example(name)), is_sql=is_sql)
    return replace(_like(name, like, source), is_sql=is_sql)


def _counting(name: str, source: Source) -> Draft:
    """Draft a target that counts: what is true of every table, and wrong of none."""
    time_column, times = _time_of(source)
    guessed = [*source.left_out, *times]
    chunking = Chunking.MONTH
    found = entity_of([one for one in source.columns if one.name not in {*LINEAGE_COLUMNS, _COUNT}])
    entity = None if found is None else found[0]
    day = day_name({entity or ""})
    columns = [NamedColumn(day, pl.Date(), description="The day, in UTC.")]
    if found is not None:
        kind = next(one for one in source.columns if one.name == entity)
        columns.insert(0, replace(kind, nullable=False))
        guessed.append(f"key: rows are counted by {entity} and day, because {found[1]}")
    else:
        guessed.append("key: rows are counted by day alone, because no column reads like the name of something")
    return Draft(
        name, source, time_column, f"silver.{name}_daily",
        (*columns, NamedColumn(_COUNT, pl.Int64(), description="Rows of that day.")),
        tuple(one.name for one in columns), day, chunking,
        _whole_chunks(source, chunking, guessed), entity=entity, guessed=tuple(guessed),
    )  # fmt: skip


def _like(name: str, like: Likeness, source: Source | None) -> Draft:
    """Draft a target that has the columns of a table, each row copied from one of a source."""
    guessed = [*like.unlike, *(() if source is None else source.left_out)]
    if source is None:
        source = Source(f"bronze.{name}_rows", like.columns)
        guessed.append(f"source: {source.table} is new, and has the columns of {like.table}; load it, or name --source")
    time_column, times = _time_of(source)
    guessed += times
    held = {one.name: one for one in source.columns}
    copied = [one for one in like.columns if one.name in held and held[one.name].kind == one.kind]
    for one in (one for one in like.columns if one not in copied):
        found = f"as {held[one.name].python}" if one.name in held else "not"
        guessed.append(
            f"column {one.name}: left out, because {source.table} has it {found}; compute it, and declare it as {one.python}"
        )
    if not copied:
        raise InputRefused(
            Problem(
                f"{source.table} has no column of {like.table}",
                "a first transform copies what a source has under the same name and with the same type",
                "name another --source, or begin without --from-table",
            )
        )
    day = like.partitioned_by.day_column
    columns = list(copied)
    if day is None or day not in {one.name for one in copied}:
        day = day_name(set(held))
        columns.append(NamedColumn(day, pl.Date(), description=f"The day of {time_column}, in UTC."))
        guessed.append(f"day_column: {day} is new, and is the day of {time_column} in UTC")
    found_key = key_of(copied, like.identifiers, time_column, day)
    guessed += found_key.guessed
    return Draft(
        name, source, time_column, _own_name(name, like, guessed),
        tuple(replace(one, nullable=one.nullable and one.name not in found_key.columns) for one in columns),
        found_key.columns, day, like.partitioned_by.chunking, _whole_chunks(source, like.partitioned_by.chunking, guessed),
        copied=tuple(one.name for one in copied), guessed=tuple(guessed),
    )  # fmt: skip


def _own_name(name: str, like: Likeness, guessed: list[str]) -> str:
    """Return the name of a target: that of the table it is like, if runs can publish into that."""
    if like.carries_lineage:
        return like.table
    own = f"{like.table.partition('.')[0]}.{name}_{like.table.partition('.')[2]}"
    guessed.append(
        f"name: {own} and not {like.table}, which lacks the lineage columns ({', '.join(LINEAGE_COLUMNS)}); "
        "what is published has them"
    )
    return own


def _time_of(source: Source) -> tuple[str, list[str]]:
    """Return when rows of a source happened, and what is guessed about it."""
    found, others = time_column_of(source.columns, source.time_column or source.partitioned_by)
    if found is None:
        raise InputRefused(
            Problem(
                f"{source.table} has no column that is an instant (timestamptz)",
                "rows are read by when they happened, and an instant says so in any time zone",
                "add such a column (in a file: 2024-01-31T08:30:00+01:00, with the offset), or name another table",
            )
        )
    why = f"source_time_column: {found}, and not {', '.join(others)}"
    return found, [why] if others and source.time_column is None else []


def _whole_chunks(source: Source, chunking: Chunking, guessed: list[str]) -> tuple[date, date]:
    """Return the days of the first run: the chunks that the source is known to have rows of."""
    if source.days is None:
        guessed.append(
            f"publishRange of the manifest: {source.table} has no rows yet; write the first and the last day"
        )
    first, last = source.days or _EXAMPLE_DAYS
    if chunking is Chunking.DAY:
        return first, last
    return first.replace(day=1), last_day(chunking, last.replace(day=1))
