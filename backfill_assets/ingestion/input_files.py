"""The rows of a delivered file: read in batches, given the declared types, and held against the model of their table.

Put here what a file must look like and what is wrong with a row. Every row of a file either has the declared types and
passes every rule of its table's model, or is rejected with a reason; no value is rounded, truncated or guessed. Where rows
go is `table_loads`'s; nothing here opens a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import reduce
from io import RawIOBase
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from pandera.errors import SchemaErrors

from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.delivered_files import content_hash, damaged, is_no_text, without_nul
from manifests.errors import InputRefused, Problem
from manifests.model import EARLIEST, LATEST

ROW = "_source_row"
"""The number of a row in its file, from 0."""
REASON = "_reason"
DETAIL = "_detail"
RECORD = "_record"
_CSV_BLOCK = 16 << 20
"""Bytes of CSV text in memory at once; one line cannot be longer."""
_DETAIL_LENGTH = 200
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_INSTANT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:[0-5]\d(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})$"
"""A leap second (:60) is none: it would be stored as the next minute's first."""
_LOCAL = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:[0-5]\d(\.\d{1,6})?)?$"
_WHOLE = r"^[+-]?\d+$"
_INTEGER = r"^[+-]?\d{16,38}$"
"""So many digits may be more than a float has, and no more than an integer of Polars'."""
_NOT_ZERO = r"^[+-]?[0.]*[1-9]"
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"


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
        self._path, self._model = path, model
        self._types = {name: _instance(kind) for name, kind in dtypes(model).items()}
        self._names = {field.name: str(field.field_type) for field in iceberg_schema(model).fields}
        self._schema = _without_uniqueness(model.to_schema())
        self._is_text = path.suffix.lower() == ".csv"
        with _readable(path):
            _require_file(path)
            try:
                found = _csv_columns(path) if self._is_text else _parquet_columns(path)
            except arrow.ArrowException:
                content_hash(path)  # of a quote that is not closed it says the line, and Arrow that a row lacks cells
                raise
            self._columns = self._required(found)
            self.content_hash = content_hash(path)

    def batches(self, rows: int = 200_000) -> Iterator[Checked]:
        """Yield the rows of the file in batches of about `rows`, in file order; memory is one batch's.

        Raises:
            InputRefused: for damage further down the file, for a line end within a cell that is no text, or if a rule of the
                model is about the whole table at once.
        """
        first = 0
        with _readable(self._path):
            for batch in _csv_batches(self._path, self._columns) if self._is_text else self._parquet_batches(rows):
                yield self._check(batch.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias(ROW)))
                first += batch.height

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
            if name in self._types and not self._is_text and not _can_hold(self._types[name], kind):
                problems.append(
                    Problem(
                        f"column {name} of {self._path} is {kind}; it is declared as {self._names[name]}",
                        f"such a column is filled from {_may_be(self._types[name])}: nothing else says the same without "
                        "rounding or guessing",
                        f"write the column as {self._names[name]}"
                        + (", with a time zone" if self._names[name] == "timestamptz" else ""),
                    )
                )
        if self._is_text:
            problems += [
                Problem(
                    f"column {name} is declared as {self._names[name]}",
                    "text has no lists",
                    "deliver a Parquet file for this table",
                )
                for name, kind in self._types.items()
                if isinstance(kind, pl.List)
            ]
        if problems:
            raise InputRefused(problems)
        return [name for name in self._types if name in found]

    def _parquet_batches(self, rows: int) -> Iterator[pl.DataFrame]:
        with _open_parquet(self._path) as file:
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
                frame = pl.from_arrow(arrow.Table.from_batches([_in_utc(batch)]))
                assert isinstance(frame, pl.DataFrame)
                yield frame

    def _check(self, raw: pl.DataFrame) -> Checked:
        absent = [pl.lit(None, kind).alias(name) for name, kind in self._types.items() if name not in raw.columns]
        typed = raw.select(
            ROW,
            *absent,
            *(_typed(pl.col(name), raw.schema[name], self._types[name]).alias(name) for name in self._columns),
        ).select(ROW, *self._types)
        if self._is_text:
            self._require_whole_rows(raw, typed)
        without_offset = [
            pl.when(_local_instant(pl.col(name))).then(pl.lit(f"{name}: no offset from UTC"))
            for name in self._columns
            if isinstance(self._types[name], pl.Datetime) and isinstance(raw.schema[name], pl.String)
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
        none = pl.DataFrame(schema={ROW: pl.Int64, "_rule": pl.String})
        if not rows.height:
            return none
        try:
            self._schema.validate(rows.drop(ROW), lazy=True)
        except SchemaErrors as errors:
            cases = errors.failure_cases
        else:
            return none
        about_all = cases.filter(pl.col("index").is_null())["check"].unique().to_list()
        if about_all:
            raise InputRefused(
                Problem(
                    f"the rule(s) {', '.join(map(str, about_all))} are not met by {self._path}",
                    "every rule of the table's model holds of what is loaded",
                    "correct the file; a rule that names no row rejects the whole file",
                )
            )
        rule = (
            pl.when(pl.col("schema_context") == "DataFrameSchema")
            .then(pl.col("check"))
            .otherwise(pl.format("{}: {}", "column", "check"))
        )
        numbers = pl.DataFrame({"index": range(rows.height), ROW: rows[ROW]}, schema_overrides={"index": pl.Int64})
        broken: pl.DataFrame = (
            cases.select(pl.col("index").cast(pl.Int64), rule.alias("_rule"))
            .unique("index", keep="first", maintain_order=True)
            .join(numbers, on="index")
            .select(ROW, "_rule")
        )
        return broken

    def _rejected(self, rows: pl.DataFrame) -> pl.DataFrame:
        shown = rows.with_columns(as_json({name: rows.schema[name] for name in self._columns}).alias(RECORD))
        column = pl.col(REASON).str.split(": ").list.first()
        value: pl.Expr = reduce(
            lambda other, name: (
                pl.when(column == name).then(_as_text(pl.col(name), rows.schema[name])).otherwise(other)
            ),
            [name for name in self._columns if not isinstance(rows.schema[name], pl.List)],
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
    if isinstance(kind, pl.List):
        return values.list.eval(_as_text(pl.element(), kind.inner))  # type: ignore[arg-type]
    if isinstance(kind, pl.Datetime):  # what is beyond any calendar is its number
        number = values.to_physical().cast(pl.String)
        return pl.coalesce(_within_reach(values, kind).cast(pl.String), number)
    return values.cast(pl.String, strict=False)


def _without_uniqueness(schema: pa.DataFrameSchema) -> pa.DataFrameSchema:
    """Return a schema for one batch of a file: what is unique is unique among all of them."""
    schema = copy(schema)
    schema.unique, schema.columns = None, dict(schema.columns)
    for name, column in schema.columns.items():
        schema.columns[name] = copy(column)
        schema.columns[name].unique = False
    return schema


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn what libraries say of an unreadable file into a refusal."""
    try:
        yield
    # Polars panics with an exception of its own where it meets what it does not know
    except (
        OSError,
        arrow.ArrowException,
        UnicodeError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
    ) as error:
        said = str(error).splitlines() or [repr(error)]
        if path.suffix.lower() == ".csv" and (line := _no_utf_8(path)):
            said = [line]
        raise InputRefused(
            Problem(
                f"{path} cannot be read: {said[0][:500]}",
                "a file is a readable Parquet file, or CSV in UTF-8 with a header line and commas",
                "correct the file, or deliver it again; nothing of it was loaded",
            )
        ) from error


def _no_utf_8(path: Path) -> str:
    """Say in which line of a file of text a cell is not UTF-8; empty where none is, or the file cannot be read."""
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    line.decode()
                except UnicodeDecodeError as error:
                    cell = line[: error.start].rpartition(b",")[2] + line[error.start :].partition(b",")[0]
                    return f"line {number:,} is not UTF-8: {cell.strip()[:80]!r}"
    except OSError:
        pass
    return ""


def _require_file(path: Path) -> None:
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputRefused(Problem(f"{path} {what}", "a load is one file", "name the file"))
    if path.suffix.lower() not in {".parquet", ".csv"}:
        raise InputRefused(
            Problem(
                f"{path} ends in '{path.suffix}'", "a file is .parquet or .csv", "convert it, or name it as what it is"
            )
        )


def _open_parquet(path: Path) -> Any:
    # a page without a checksum is believed; Arrow believes the others too, unless it is told to look
    return pq.ParquetFile(path, page_checksum_verification=True)


def _parquet_columns(path: Path) -> dict[str, Any]:
    with _open_parquet(path) as file:
        fields = list(file.schema_arrow)
    _require_once(path, [field.name for field in fields])
    return {field.name: field.type for field in fields}


def _in_utc(batch: Any) -> Any:
    """Return a batch whose instants are shown in UTC: they are the same, and Polars knows no zone such as +05:30."""
    for place, field in enumerate(batch.schema):
        if arrow.types.is_timestamp(field.type) and field.type.tz is not None:
            column = batch.column(place).cast(arrow.timestamp(field.type.unit, "UTC"))
            batch = batch.set_column(place, field.name, column)
    return batch


def _require_once(path: Path, names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputRefused(
            Problem(f"{path} has the column(s) {', '.join(twice)} twice", "a column has one name", "correct the header")
        )


class _Ended(RawIOBase):
    """The bytes of a CSV file, and a line end if it lacks its last.

    Without it, Arrow takes an empty last cell for a quoted one where the cell before was: text that is empty, and not null.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._last = b"\n"

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block = self._file.read(size)
        self._last = block[-1:] or self._last
        if (size < 0 or len(block) < size) and self._last not in {b"\n", b"\r"}:
            block, self._last = block + b"\n", b"\n"
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


def _open_csv(path: Path, columns: Sequence[str] = (), *, empty_lines: bool = False) -> Any:
    return arrow_csv.open_csv(
        arrow.PythonFile(_Ended(path), mode="r"),
        read_options=arrow_csv.ReadOptions(block_size=_CSV_BLOCK),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=not empty_lines),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(columns, arrow.string()),
            include_columns=list(columns),
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )


def _csv_columns(path: Path) -> dict[str, Any]:
    with _open_csv(path) as reader:
        names = reader.schema.names
    _require_once(path, names)
    return dict.fromkeys(names, arrow.string())


def _csv_batches(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    # an empty line is a row without a value where a row is one cell; where it is several, it is none
    with _open_csv(path, columns, empty_lines=len(columns) == 1) as reader:
        for batch in reader:
            frame = pl.from_arrow(arrow.Table.from_batches([batch]))
            assert isinstance(frame, pl.DataFrame)
            yield frame


def _can_hold(declared: pl.DataType, found: Any) -> bool:
    """Return whether values of an Arrow type can be compared, one by one, with what they become as the declared type."""
    kinds = arrow.types
    if kinds.is_null(found):  # a writer that infers types has found no value; whether there may be none says the model
        return True
    if kinds.is_dictionary(found):
        return _can_hold(declared, found.value_type)
    if isinstance(declared, pl.List):
        is_list = kinds.is_list(found) or kinds.is_large_list(found)
        return is_list and bool(_can_hold(declared.inner, found.value_type))  # type: ignore[arg-type]
    base = declared.base_type()
    if base == pl.String:
        return bool(kinds.is_string(found) or kinds.is_large_string(found) or kinds.is_string_view(found))
    if base in {pl.Int32, pl.Int64}:
        return bool(kinds.is_integer(found))
    if base == pl.Float64:
        return bool(kinds.is_floating(found) or kinds.is_integer(found))
    if base == pl.Decimal:
        return bool(kinds.is_decimal128(found) or kinds.is_integer(found))
    if base == pl.Datetime:
        return bool(kinds.is_timestamp(found) and found.tz is not None)
    same = {pl.Boolean: kinds.is_boolean, pl.Date: kinds.is_date32}.get(base)
    return same is not None and bool(same(found))


def _may_be(declared: pl.DataType) -> str:
    """Say of which types of a Parquet file `_can_hold` accepts a column."""
    if isinstance(declared, pl.List):
        return f"lists: their elements from {_may_be(declared.inner)}"  # type: ignore[arg-type]
    base = declared.base_type()
    words = {
        pl.String: "text",
        pl.Int32: "integers of any width",
        pl.Int64: "integers of any width",
        pl.Float64: "floating-point numbers or integers",
        pl.Decimal: "decimals or integers",
        pl.Datetime: "timestamps with a time zone, of any unit",
        pl.Boolean: "booleans",
        pl.Date: "days (date32)",
    }
    return words.get(base, "its declared type alone")


def _local_instant(text: pl.Expr) -> pl.Expr:
    """Return whether text is an existing date and time that says no offset from UTC, and so no instant."""
    parsed = text.str.replace(" ", "T", literal=True).str.replace(r"T(\d{2}:\d{2})$", "T${1}:00")
    exists = parsed.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False).is_not_null()
    return text.str.contains(_LOCAL) & exists


def _typed(column: pl.Expr, found: pl.DataType, declared: pl.DataType) -> pl.Expr:
    """Return a column with its declared type; null where the value would not be the same, or no run could reach its day."""
    if isinstance(found, pl.Null):
        return column.cast(declared)
    if isinstance(declared, pl.List):
        return _typed_lists(column, _instance(found.inner), _instance(declared.inner))  # type: ignore[attr-defined]
    converted = _converted(column, found, declared)
    if isinstance(declared, (pl.Date, pl.Datetime)):
        return pl.when(converted.dt.year().is_between(EARLIEST.year, LATEST.year)).then(converted)
    if isinstance(declared, pl.String):
        return pl.when(~is_no_text(converted)).then(converted)
    return converted


def _instance(kind: Any) -> pl.DataType:
    """Return a type as an object: pandera and lists have those without parameters as classes."""
    found: pl.DataType = kind() if isinstance(kind, type) else kind
    return found


def _within_reach(instants: pl.Expr, found: pl.DataType) -> pl.Expr:
    """Return instants without those that no run could reach: of some units, Polars cannot even convert them."""
    a_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[found.time_unit]  # type: ignore[attr-defined]
    first, after = (
        int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * a_second for year in (EARLIEST.year, LATEST.year + 1)
    )
    reached = instants.to_physical().cast(pl.Int128).is_between(pl.lit(first, pl.Int128), pl.lit(after - 1, pl.Int128))
    return pl.when(reached).then(instants)


def _typed_lists(column: pl.Expr, found: pl.DataType, declared: pl.DataType) -> pl.Expr:
    """Return lists with elements of their declared type; null where one of them would not be the same."""
    element = pl.element()
    typed = _typed(element, found, declared)
    lost = column.list.eval(element.is_not_null() & typed.is_null()).list.any()
    return pl.when(~lost).then(column.list.eval(typed))


def _converted(column: pl.Expr, found: pl.DataType, declared: pl.DataType) -> pl.Expr:
    if found == declared:
        return column
    if isinstance(found, pl.String) and not isinstance(declared, pl.String):
        return _parsed(column, declared)
    if isinstance(declared, pl.Datetime):
        # by instant: another zone is another way to write it
        column = _within_reach(column, found)
        converted = column.dt.convert_time_zone("UTC").dt.cast_time_unit("us")
        back = converted.dt.cast_time_unit(found.time_unit)  # type: ignore[attr-defined]
        return pl.when(back == column.dt.convert_time_zone("UTC")).then(converted)
    converted = column.cast(declared, strict=False)
    if isinstance(declared, pl.Float64):
        return pl.when(converted.is_nan() | (converted.cast(found, strict=False) == column)).then(converted)
    return pl.when(converted.cast(found, strict=False) == column).then(converted)


def _parsed(text: pl.Expr, declared: pl.DataType) -> pl.Expr:
    """Return what text says as a declared type; null where it does not say one."""
    if isinstance(declared, pl.Boolean):
        lower = text.str.to_lowercase()
        return pl.when(lower.is_in(["true", "false"])).then(lower == "true")
    if isinstance(declared, pl.Date):
        # the pattern decides: Polars takes signs and days of one digit
        return pl.when(text.str.contains(_DAY)).then(text.str.to_date("%Y-%m-%d", strict=False, exact=True))
    if isinstance(declared, pl.Datetime):
        plain = text.str.replace(" ", "T", literal=True).str.replace(r"Z$", "+00:00")
        seconds = plain.str.replace(r"T(\d{2}:\d{2})([+-])", "T${1}:00${2}")
        return pl.when(text.str.contains(_INSTANT)).then(
            seconds.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", time_unit="us", time_zone="UTC", strict=False)
        )
    if isinstance(declared, pl.Decimal):
        fits = text.str.contains(rf"^[+-]?\d*(\.\d{{0,{declared.scale}}}0*)?$") & text.str.contains(r"\d")
        return pl.when(fits).then(text.cast(declared, strict=False))
    if isinstance(declared, pl.Float64):
        number = text.cast(declared, strict=False)
        # a decimal fraction is the float next to it; an integer, a number too large or one too small has to be the same
        whole = pl.when(text.str.contains(_INTEGER)).then(text.str.strip_prefix("+"))
        changed = number.is_infinite() | ((number == 0) & text.str.contains(_NOT_ZERO))
        rounded = whole.is_not_null() & (
            whole.cast(pl.Int128, strict=False) != number.cast(pl.Int128, strict=False)
        ).fill_null(value=True)
        return pl.when(text.str.contains(_NUMBER) & ~changed & ~rounded).then(number)
    return pl.when(text.str.contains(_WHOLE)).then(text.cast(declared, strict=False))
