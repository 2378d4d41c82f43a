"""The files of a raw event log, Parquet or CSV: read batch by batch, whole or not at all.

Put here what a delivered log must look like to be read. What its rows mean, and why one is quarantined, is `raw`'s.
"""

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import polars as pl

from backfill_assets.delivered_files import damaged
from backfill_assets.products.enforcement.raw import (
    ACTIVITY,
    AMOUNT,
    CASE_ID,
    EVENT_SEQ,
    JURISDICTION,
    REQUIRED_COLUMNS,
    TIMESTAMP,
    number_rows,
)

if TYPE_CHECKING:
    # pyarrow ships no types. Said here, where it is used, so that a checker comes to the
    # same verdict whether or not it is told to follow untyped imports.
    pa: Any
    pa_csv: Any
    pq: Any
else:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

_ArrowType: TypeAlias = Any
"""A `pyarrow.DataType`."""

# One block of CSV text held in memory; a single record cannot be longer than this.
_CSV_BLOCK_BYTES: Final = 16 * 1024 * 1024


class RawFileError(ValueError):
    """A raw file cannot be read as a case log."""


def read_batches(path: Path, batch_rows: int = 200_000) -> Iterator[pl.DataFrame]:
    """Stream a raw log as batches of at most `batch_rows` rows, in file order.

    A batch has `REQUIRED_COLUMNS`, ``jurisdiction`` if the file has it, and
    ``source_row`` (Int64), the 0-based number of the row in the file. Parquet keeps
    its types; CSV (comma, header line, UTF-8) gives text, with empty fields as null;
    blank lines of it are no rows.

    The file is checked at the call, before a row is read. Raises RawFileError, at the
    call or, for damage further down the file, while iterating.
    """
    if batch_rows < 1:
        message = f"batch_rows is {batch_rows}: a batch must hold at least one row"
        raise ValueError(message)
    if not path.exists():
        raise _refusal(path, "does not exist", "a raw log is one file", "check path")
    if not path.is_file():
        raise _refusal(path, "is not a file", "a raw log is one file", "name the file in it")
    match path.suffix.lower():
        case ".parquet":
            columns = _check_parquet(path)
            batches = _parquet_batches(path, columns, batch_rows)
        case ".csv":
            columns = _check_csv(path)
            batches = _csv_batches(path, columns, batch_rows)
        case other:
            raise _refusal(
                path,
                f"has the extension {other!r}",
                "a raw log is .parquet or .csv",
                "convert it, or rename it to what it is",
            )
    return number_rows(batches)


def _refusal(path: Path, wrong: str, rule: str, way_out: str) -> RawFileError:
    return RawFileError(f"raw log {path} {wrong}: {rule}; {way_out}")


def _needed(path: Path, found: Sequence[str]) -> list[str]:
    """Return the columns to read of those found, or refuse the file."""
    missing = [name for name in REQUIRED_COLUMNS if name not in found]
    if missing:
        raise _refusal(
            path,
            f"lacks the column(s) {', '.join(missing)}, having {', '.join(found)}",
            f"a raw log has {', '.join(REQUIRED_COLUMNS)}",
            "name the columns so, or deliver them",
        )
    needed = [name for name in (*REQUIRED_COLUMNS, JURISDICTION) if name in found]
    repeated = [name for name in needed if list(found).count(name) > 1]
    if repeated:
        raise _refusal(
            path,
            f"has the column(s) {', '.join(repeated)} more than once",
            "each column of a raw log has one meaning",
            "remove or rename the others",
        )
    return needed


def _no_rows(path: Path) -> RawFileError:
    return _refusal(
        path,
        "has no rows",
        "an empty delivery looks just like a lost one",
        "deliver it again, or leave it out",
    )


def _check_parquet(path: Path) -> list[str]:
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            names = list(schema.names)
            rows: int = file.metadata.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _refusal(
            path,
            f"is not readable as Parquet ({error})",
            "the extension .parquet promises a complete Parquet file",
            "deliver it again, or rename it to what it is",
        ) from error
    except UnicodeError as error:
        raise _refusal(
            path, f"has a column whose name is not UTF-8 ({error})", "names are UTF-8 text", "rename the column"
        ) from error
    columns = _needed(path, names)
    for name in columns:
        kind = schema.field(name).type
        if not _COLUMN_KINDS[name](kind):
            raise _refusal(
                path,
                f"has {name} of type {kind}",
                # A typed timestamp has lost the offset it was written with, and a nested
                # or binary value has no one reading as text.
                f"{name} must be {_COLUMN_KIND_NAMES[name]}",
                "write the column so",
            )
    if rows == 0:
        raise _no_rows(path)
    return columns


def _is_text(kind: _ArrowType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_string_view(kind)
        # A column of nothing but nulls, which its rows will be quarantined for.
        or pa.types.is_null(kind)
    )


def _is_text_or_integer(kind: _ArrowType) -> bool:
    return _is_text(kind) or bool(pa.types.is_integer(kind))


def _is_text_or_number(kind: _ArrowType) -> bool:
    return _is_text_or_integer(kind) or bool(pa.types.is_floating(kind) or pa.types.is_decimal128(kind))


_COLUMN_KINDS: Final[dict[str, Callable[[_ArrowType], bool]]] = {
    CASE_ID: _is_text_or_integer,
    ACTIVITY: _is_text,
    TIMESTAMP: _is_text,
    AMOUNT: _is_text_or_number,
    EVENT_SEQ: _is_text_or_integer,
    JURISDICTION: _is_text,
}
_COLUMN_KIND_NAMES: Final[dict[str, str]] = {
    CASE_ID: "text or an integer",
    ACTIVITY: "text",
    TIMESTAMP: "ISO-8601 text with an offset",
    AMOUNT: "a number (a decimal of at most 38 digits) or text",
    EVENT_SEQ: "an integer or text",
    JURISDICTION: "text",
}


def _parquet_batches(path: Path, columns: list[str], batch_rows: int) -> Iterator[pl.DataFrame]:
    try:
        # Pages that have a checksum are read silently without it, unless it is asked for.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            first = 0
            for batch in file.iter_batches(batch_size=batch_rows, columns=columns):
                if (bad := damaged(batch, first)) is not None:
                    raise _refusal(
                        path,
                        f"has a damaged value in {bad.column}, row {bad.row:,}, counted from 0 ({bad.why})",
                        "text is UTF-8",
                        "have the file written again",
                    )
                first += batch.num_rows
                yield _to_polars(batch)
    # Polars panics with an exception of its own where it meets what it does not know
    except (pa.ArrowException, OSError, UnicodeError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _refusal(
            path,
            f"breaks off ({error})",
            "a raw log is read whole or not at all",
            "deliver it again",
        ) from error


def _check_csv(path: Path) -> list[str]:
    try:
        # utf-8-sig: spreadsheet programs open a UTF-8 file with a byte order mark.
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file, strict=True)
            header = next(filter(None, lines), None)
            first_row = next(filter(None, lines), None)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise _refusal(
            path,
            f"is not readable as CSV ({error})",
            "a CSV raw log is UTF-8 text with commas and a header line",
            "convert it",
        ) from error
    if header is None:
        raise _no_rows(path)
    columns = _needed(path, header)
    if first_row is None:
        raise _no_rows(path)
    return columns


def _csv_batches(path: Path, columns: list[str], batch_rows: int) -> Iterator[pl.DataFrame]:
    read = 0
    try:
        with pa_csv.open_csv(
            path,
            read_options=pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
            parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=True),
            convert_options=pa_csv.ConvertOptions(
                include_columns=columns,
                # Text throughout: a guessed type would turn 007 into 7.
                column_types=dict.fromkeys(columns, pa.string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
                null_values=[""],
            ),
        ) as reader:
            for block in reader:
                for start in range(0, block.num_rows, batch_rows):
                    batch = _to_polars(block.slice(start, batch_rows))
                    _require_whole_rows(path, batch, read + start)
                    yield batch
                read += block.num_rows
    except (pa.ArrowException, OSError) as error:
        raise _refusal(
            path,
            f"breaks off ({error})",
            "each line of a CSV raw log is UTF-8 and has the header's columns",
            "mend that line, or deliver the file again",
        ) from error


def _require_whole_rows(path: Path, batch: pl.DataFrame, first: int) -> None:
    """Refuse a file in which stray quotes have made one cell of several rows."""
    for name in batch.columns:
        rows = batch[name].str.contains(r"[\r\n]").arg_true()
        if len(rows):
            raise _refusal(
                path,
                f"has a line end within {name}, in row {first + rows[0]:,}, counted from 0",
                "no column of a raw log that is read has line ends: between two stray "
                "quotes, rows are read as one cell",
                "correct the quotes of that row",
            )


def _to_polars(batch: Any) -> pl.DataFrame:
    frame = pl.DataFrame(batch)
    # Dictionary-encoded text and columns of nulls are text like any other.
    return frame.with_columns(pl.col(pl.Categorical, pl.Enum, pl.Null).cast(pl.String))
