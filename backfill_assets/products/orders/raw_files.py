"""Files of order lines, Parquet or CSV, read batch by batch as text.

Put here what a delivered file must look like to be read. What its rows are is `raw`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from backfill_assets.delivered_files import damaged
from backfill_assets.products.orders.raw import REQUIRED_COLUMNS
from manifests.errors import InputRefused, Problem

if TYPE_CHECKING:
    # pyarrow ships no types
    pa: Any
    pa_csv: Any
    pq: Any
else:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

BATCH_ROWS: Final = 200_000
_CSV_BLOCK_BYTES: Final = 16 * 1024 * 1024


def read_batches(path: Path, batch_rows: int = BATCH_ROWS) -> Iterator[pl.DataFrame]:
    """Yield a file's rows as text, in file order, with `source_row` counted from 0.

    Raises:
        InputRefused: if the file is none of order lines, or breaks off.
    """
    first = 0
    try:
        for batch in _batches(path, batch_rows):
            if (bad := damaged(batch, first)) is not None:
                raise _refused(
                    path, f"has a damaged value in {bad.column}, row {bad.row:,} ({bad.why})", "text is UTF-8"
                )
            frame = pl.DataFrame(pa.Table.from_batches([batch])).select(pl.col(REQUIRED_COLUMNS).cast(pl.String))
            yield frame.with_columns(pl.int_range(first, first + pl.len(), dtype=pl.Int64).alias("source_row"))
            first += batch.num_rows
    # Polars panics with an exception of its own where it meets what it does not know
    except (pa.ArrowException, OSError, UnicodeError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _refused(path, f"cannot be read to its end ({error})", "a file is read whole or not at all") from error
    if not first:
        raise _refused(path, "has no rows", "an empty delivery looks just like a lost one")


def require_shape(path: Path) -> None:
    """Refuse a file that is none of order lines, before a row of it is read.

    Raises:
        InputRefused: saying what it lacks.
    """
    try:
        if path.suffix.lower() == ".parquet":
            with pq.ParquetFile(path) as file:
                schema = file.schema_arrow
        elif path.suffix.lower() == ".csv":
            with pa_csv.open_csv(path, **_csv_options()) as reader:
                schema = reader.schema
        else:
            raise _refused(path, f"has the extension {path.suffix!r}", "order lines come as .parquet or .csv")
    except (pa.ArrowException, OSError, UnicodeError, KeyError) as error:
        raise _refused(path, f"is not readable ({error})", "order lines come as .parquet or .csv") from error
    _require_columns(path, schema.names)
    wrong = [
        f"{name} {kind}"
        for name in REQUIRED_COLUMNS
        if pa.types.is_nested(kind := schema.field(name).type) or pa.types.is_binary(kind)
    ]
    if wrong:
        raise _refused(path, f"has {', '.join(wrong)}", "each column has one reading as text")


def _require_columns(path: Path, found: Sequence[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in found]
    if missing:
        what = f"lacks {', '.join(missing)}, having {', '.join(found)}"
        raise _refused(path, what, f"order lines have {', '.join(REQUIRED_COLUMNS)}")
    twice = [name for name in REQUIRED_COLUMNS if list(found).count(name) > 1]
    if twice:
        raise _refused(path, f"has {', '.join(twice)} more than once", "a column has one meaning")


def _batches(path: Path, batch_rows: int) -> Iterator[Any]:
    columns = list(REQUIRED_COLUMNS)
    if path.suffix.lower() == ".parquet":
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield from file.iter_batches(batch_size=batch_rows, columns=columns)
    else:
        with pa_csv.open_csv(path, **_csv_options()) as reader:
            for block in reader:
                yield block.select(columns)


def _csv_options() -> dict[str, Any]:
    return {
        "read_options": pa_csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
        "parse_options": pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=True),
        "convert_options": pa_csv.ConvertOptions(
            # text throughout: a guessed type would turn 007 into 7
            column_types=dict.fromkeys(REQUIRED_COLUMNS, pa.string()),
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            null_values=[""],
        ),
    }


def _refused(path: Path, wrong: str, rule: str) -> InputRefused:
    return InputRefused(Problem(f"{path.name} {wrong}", rule, "correct the file, or have it delivered again"))
