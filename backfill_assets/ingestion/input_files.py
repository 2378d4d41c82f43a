"""The rows of a delivered file: read in batches, given the declared types, and held against the model of their table.

Put here what a file must look like and what is wrong with a row. Every row of a file either has the declared types and
passes every rule of its table's model, or is rejected with a reason; no value is rounded, truncated or guessed. How a file
is opened is `file_formats`', how a value gets its type `typed_values`'; where rows go is `table_loads`'s. Nothing here opens a
table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pandera.errors import SchemaErrors

from backfill_assets.declarations.column_types import instance_of, is_nested
from backfill_assets.declarations.schema import dtypes, iceberg_schema, uuids
from backfill_assets.delivered_files import SeenFile, content_hash, damaged, is_no_text, without_nul
from backfill_assets.ingestion.file_formats import (
    csv_batches,
    csv_columns,
    in_utc,
    open_parquet,
    parquet_columns,
    readable,
    require_file,
)
from backfill_assets.ingestion.typed_values import (
    as_declared,
    can_hold,
    local_instant,
    may_be,
    within_reach,
)
from backfill_assets.worker.nested import as_text
from manifests.errors import InputRefused, Problem
from resources.lakehouse.type_words import type_words

ROW = "_source_row"
"""The number of a row in its file, from 0."""
REASON = "_reason"
DETAIL = "_detail"
RECORD = "_record"
_UUID_BYTES = 16
_DETAIL_LENGTH = 200


@dataclass(frozen=True)
class Checked:
    """Rows of a file: those that pass, with the declared columns, and those that do not, with reason, detail and record.

    Both frames have the column `ROW`.
    """

    passed: pl.DataFrame
    rejected: pl.DataFrame


class InputFile:
    """A Parquet or CSV file with rows of a declared table."""

    def __init__(self, path: Path, model: type[pa.DataFrameModel]) -> None:
        """Open a file, look at its columns and read it once, for the hash of its content.

        Raises:
            InputRefused: if it cannot be read, or does not have the columns and types of the model: all reasons at once; or
                if a quote in it would make one cell of several.
        """
        self._held_against(model, path)
        self._is_text = path.suffix.lower() == ".csv"
        with readable(path):
            require_file(path)
            self._seen = SeenFile.now(path)
            try:
                found = csv_columns(path) if self._is_text else parquet_columns(path)
            except arrow.ArrowException:
                content_hash(path)  # of a quote that is not closed it says the line, and Arrow that a row lacks cells
                raise
            self._columns = self._required(found)
            self.content_hash = content_hash(path)

    def _held_against(self, model: type[pa.DataFrameModel], path: Path) -> None:
        """Say what rows are held against; `path` is how they are called."""
        self._path, self._model = path, model
        self._types = {name: instance_of(kind) for name, kind in dtypes(model).items()}
        self._names = {field.name: type_words(field.field_type) for field in iceberg_schema(model).fields}
        self._uuids = uuids(model)
        self._schema = without_uniqueness(model.to_schema())

    def batches(self, rows: int = 200_000) -> Iterator[Checked]:
        """Yield the rows of the file in batches of about `rows`, in file order; memory is one batch's.

        Raises:
            InputRefused: for damage further down the file, for a line end within a cell that is no text, if a rule of the
                model is about the whole table at once, or if the file was changed since it was opened.
        """
        first = 0
        with readable(self._path):
            for batch in csv_batches(self._path, self._columns) if self._is_text else self._parquet_batches(rows):
                yield self._check(batch.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias(ROW)))
                first += batch.height
        self._seen.require_unchanged()  # whoever reads it to the end commits what it has read after that

    def _required(self, found: dict[str, Any]) -> list[str]:
        """Return the declared columns that the file has."""
        columns = self._model.to_schema().columns
        problems = []
        missing = [name for name in self._types if name not in found and not columns[name].nullable]
        unknown = [name for name in found if name not in self._types]
        left = [name for name in self._types if name not in found]
        meant = [f"{name} for {close[0]}" for name in unknown if (close := get_close_matches(name, left, n=1))]
        guess = f"did you write {', '.join(meant)}? if not, " if meant else ""
        for names, what, way_out in (
            (missing, "lacks", "add them; only a column that may be null can be left out"),
            (unknown, "has, and the model does not declare,", f"{guess}leave them out, or declare them"),
        ):
            if names:
                problems.append(
                    Problem(
                        f"{self._path} {what} the column(s) {', '.join(names)}",
                        f"the file has the columns of the table: {', '.join(self._types)}",
                        way_out,
                    )
                )
        for name, kind in found.items():
            if name in self._types and not self._is_text and not can_hold(self._types[name], kind):
                problems.append(
                    Problem(
                        f"column {name} of {self._path} is {kind}; it is declared as {self._names[name]}",
                        f"such a column is filled from {may_be(self._types[name])}: nothing else says the same without "
                        "rounding or guessing",
                        f"write the column as {self._names[name]}"
                        + (", with a time zone" if self._names[name] == "timestamptz" else ""),
                    )
                )
        if self._is_text:
            problems += [
                Problem(
                    f"column {name} is declared as {self._names[name]}",
                    "text has no lists, no bytes, and nothing that has others inside",
                    "deliver a Parquet file for this table",
                )
                for name, kind in self._types.items()
                if is_nested(kind) or isinstance(kind, pl.Binary)
            ]
        if problems:
            raise InputRefused(problems)
        return [name for name in self._types if name in found]

    def _parquet_batches(self, rows: int) -> Iterator[pl.DataFrame]:
        with open_parquet(self._path) as file:
            first = 0
            for batch in file.iter_batches(rows, columns=self._columns):
                if (bad := damaged(batch, first)) is not None:
                    raise InputRefused(
                        Problem(
                            f"{self._path} has a damaged value in column {bad.column}, row {bad.row:,}, counted from 0: {bad.why}",
                            "text is UTF-8, and every value is one of its column's type",
                            "have the file written again; nothing of it was loaded",
                        )
                    )
                first += batch.num_rows
                frame = pl.from_arrow(arrow.Table.from_batches([in_utc(batch)]))
                assert isinstance(frame, pl.DataFrame)
                yield frame

    def _check(self, raw: pl.DataFrame) -> Checked:
        absent = [pl.lit(None, kind).alias(name) for name, kind in self._types.items() if name not in raw.columns]
        typed = raw.select(
            ROW,
            *absent,
            *(as_declared(pl.col(name), raw.schema[name], self._types[name]).alias(name) for name in self._columns),
        ).select(ROW, *self._types)
        typed = typed.with_columns(pl.when(pl.col(name).bin.size() == _UUID_BYTES).then(name) for name in self._uuids)
        if self._is_text:
            self._require_whole_rows(raw, typed)
        without_offset = [
            pl.when(local_instant(pl.col(name))).then(pl.lit(f"{name}: no offset from UTC"))
            for name in self._columns
            if self._types[name] == pl.Datetime("us", "UTC") and isinstance(raw.schema[name], pl.String)
        ]
        no_text = [
            pl.when(is_no_text(pl.col(name))).then(
                pl.lit(f"{name}: has a NUL character, or begins with a byte order mark")
            )
            for name in self._columns
            if isinstance(self._types[name], pl.String) and isinstance(raw.schema[name], pl.String)
        ]
        reasons = [
            *without_offset,
            *no_text,
        ] + [
            pl.when(pl.col(name).is_not_null() & typed[name].is_null()).then(pl.lit(f"{name}: not {self._names[name]}"))
            for name in self._columns
        ]
        reasons += [
            pl.when(pl.lit(typed[name].is_null())).then(pl.lit(f"{name}: null"))
            for name, column in self._schema.columns.items()
            if not column.nullable
        ]
        said = raw.select(ROW, pl.coalesce([*reasons, pl.lit(None, pl.String)]).alias(REASON))
        broken = self._broken(typed.filter(said[REASON].is_null()))
        reason = said.join(broken, on=ROW, how="left", maintain_order="left").select(
            pl.coalesce(REASON, "_rule").alias(REASON)
        )[REASON]
        return Checked(
            typed.filter(reason.is_null()), self._rejected(raw.with_columns(reason).filter(reason.is_not_null()))
        )

    def _require_whole_rows(self, raw: pl.DataFrame, typed: pl.DataFrame) -> None:
        """Refuse a file in which rows have become part of a cell: text may have a line end, and nothing else."""
        for name in self._columns:
            if isinstance(self._types[name], pl.String):
                continue
            found = raw.filter(typed[name].is_null() & raw[name].str.contains(r"[\r\n]"))
            if found.height:
                raise InputRefused(
                    Problem(
                        f"{self._path} has a line end within column {name}, in row {found.item(0, ROW):,}, counted from 0",
                        f"a {self._names[name]} has no line end: between two stray quotes, rows are read as one cell",
                        "correct the quotes of that row; nothing of it was loaded",
                    )
                )

    def _broken(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that break a rule of the model, each with the first rule it breaks."""
        broken, about_all = broken_rules(self._schema, rows)
        if about_all:
            raise InputRefused(
                Problem(
                    f"the rule(s) {', '.join(about_all)} are not met by {self._path}",
                    "every rule of the table's model holds of what is loaded",
                    "correct the file; a rule that names no row rejects the whole file",
                )
            )
        return broken

    def _rejected(self, rows: pl.DataFrame) -> pl.DataFrame:
        shown = rows.with_columns(as_json({name: rows.schema[name] for name in self._columns}).alias(RECORD))
        column = pl.col(REASON).str.split(": ").list.first()
        value: pl.Expr = reduce(
            lambda other, name: (
                pl.when(column == name).then(_as_text(pl.col(name), rows.schema[name])).otherwise(other)
            ),
            [name for name in self._columns if not is_nested(rows.schema[name])],
            pl.lit(None, pl.String),
        )
        value = without_nul(value.str.slice(0, _DETAIL_LENGTH))
        detail = pl.coalesce(pl.format("{} is {}", column, value), pl.col(REASON))
        return shown.select(ROW, REASON, detail.alias(DETAIL), RECORD)


def unique_columns(model: type[pa.DataFrameModel]) -> list[tuple[str, ...]]:
    """Return the columns, or combinations of columns, whose values a model says are unique."""
    schema = model.to_schema()
    together = [tuple(schema.unique)] if schema.unique else []
    return together + [(name,) for name, column in schema.columns.items() if column.unique]


def as_json(columns: Mapping[str, pl.DataType]) -> pl.Expr:
    """Return rows as JSON text, each value as text, because JSON has no NaN and no decimals; lists are lists of it."""
    return pl.struct(_as_text(pl.col(name), kind).alias(name) for name, kind in columns.items()).struct.json_encode()


def _as_text(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    if isinstance(kind, pl.Struct | pl.Map | pl.Binary):
        return as_text(values, kind)
    if isinstance(kind, pl.List):
        return values.list.eval(_as_text(pl.element(), kind.inner))  # type: ignore[arg-type]
    if isinstance(kind, pl.Datetime | pl.Date):  # what is beyond any calendar is its number
        number = values.to_physical().cast(pl.String)
        reached = within_reach(values, kind)
        if (
            isinstance(kind, pl.Datetime) and kind.time_zone is not None
        ):  # text has no seconds of an offset: Paris had some until 1911
            reached = reached.dt.convert_time_zone("UTC")
        return pl.coalesce(reached.cast(pl.String), number)
    if isinstance(kind, pl.Time):  # a cast leaves out what is less than a second
        return values.dt.to_string("iso")
    if kind.is_float():  # the digits of a double say a float as well, and its own are those of another double
        values = values.cast(pl.Float64)
    return values.cast(pl.String, strict=False)


def broken_rules(schema: pa.DataFrameSchema, rows: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows (with the column `ROW`) that break a rule of a schema, each with the first, and the rules about all of them that are broken."""
    none = pl.DataFrame(schema={ROW: pl.Int64, "_rule": pl.String})
    if not rows.height:
        return none, []
    try:
        schema.validate(rows.drop(ROW), lazy=True)
    except SchemaErrors as errors:
        cases = errors.failure_cases
    else:
        return none, []
    about_all = list(map(str, cases.filter(pl.col("index").is_null())["check"].unique().to_list()))
    rule = (
        pl.when(pl.col("schema_context") == "DataFrameSchema")
        .then(pl.col("check"))
        .otherwise(pl.format("{}: {}", "column", "check"))
    )
    numbers = pl.DataFrame({"index": range(rows.height), ROW: rows[ROW]}, schema_overrides={"index": pl.Int64})
    broken: pl.DataFrame = (
        cases.filter(pl.col("index").is_not_null())
        .select(pl.col("index").cast(pl.Int64), rule.alias("_rule"))
        .unique("index", keep="first", maintain_order=True)
        .join(numbers, on="index")
        .select(ROW, "_rule")
    )
    return broken, about_all


def without_uniqueness(schema: pa.DataFrameSchema) -> pa.DataFrameSchema:
    """Return a schema for one batch of a file: what is unique is unique among all of them."""
    schema = copy(schema)
    schema.unique, schema.columns = None, dict(schema.columns)
    for name, column in schema.columns.items():
        schema.columns[name] = copy(column)
        schema.columns[name].unique = False
    return schema
