"""How a delivered file is opened: its columns and its batches, from Parquet or CSV, as Arrow reads them.

Put here another format of files, and what makes a file unreadable as one. Which columns and types a table's file has is
`input_files`' to say, what a value becomes `typed_values`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as arrow
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

from manifests.errors import InputRefused, Problem

_CSV_BLOCK = 16 << 20
"""Bytes of CSV text in memory at once; one line cannot be longer."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
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


def require_file(path: Path) -> None:
    """Refuse what is no file, or has no name of a format that is read."""
    if not path.is_file():
        what = "is not a file" if path.exists() else "does not exist"
        raise InputRefused(Problem(f"{path} {what}", "a load is one file", "name the file"))
    if path.suffix.lower() not in {".parquet", ".csv"}:
        raise InputRefused(
            Problem(
                f"{path} ends in '{path.suffix}'", "a file is .parquet or .csv", "convert it, or name it as what it is"
            )
        )


def open_parquet(path: Path) -> Any:
    """Open a Parquet file whose pages are held against their checksums."""
    # a page without a checksum is believed; Arrow believes the others too, unless it is told to look
    return pq.ParquetFile(path, page_checksum_verification=True)


def parquet_columns(path: Path) -> dict[str, Any]:
    """Return the columns of a Parquet file and their Arrow types."""
    with open_parquet(path) as file:
        fields = list(file.schema_arrow)
    _require_once(path, [field.name for field in fields])
    return {field.name: field.type for field in fields}


def in_utc(batch: Any) -> Any:
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


def csv_columns(path: Path) -> dict[str, Any]:
    """Return the columns of a CSV file, all of them text."""
    with _open_csv(path) as reader:
        names = reader.schema.names
    _require_once(path, names)
    return dict.fromkeys(names, arrow.string())


def csv_batches(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield columns of a CSV file, batch by batch, as text."""
    # an empty line is a row without a value where a row is one cell; where it is several, it is none
    with _open_csv(path, columns, empty_lines=len(columns) == 1) as reader:
        for batch in reader:
            frame = pl.from_arrow(arrow.Table.from_batches([batch]))
            assert isinstance(frame, pl.DataFrame)
            yield frame
