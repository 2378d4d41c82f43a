"""Rows of a file that repeat a key which the table's model says is unique.

Put here how they are found, without the file in memory. What else is wrong with a row is `input_files`'s to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pyarrow.parquet as pq

from backfill_assets.declarations.product import InputTable
from backfill_assets.ingestion.input_files import (
    DETAIL,
    REASON,
    RECORD,
    ROW,
    Checked,
    InputFile,
    as_json,
    unique_columns,
)

_KEYS_AT_ONCE = 2_000_000
"""Keys whose repetitions are looked for in memory at once."""


class RepeatedRows:
    """The rows of a file whose key another row of it has, by the columns that the model says are unique."""

    def __init__(self, rows: dict[tuple[str, ...], pl.Series]) -> None:
        self._rows = rows

    def split(self, checked: Checked) -> Checked:
        """Reject the rows of a batch that repeat a key."""
        passed, rejected = checked.passed, checked.rejected
        for columns, numbers in self._rows.items():
            again = passed.filter(pl.col(ROW).is_in(numbers.implode()))
            if again.height:
                names, kinds = ", ".join(columns), again.schema
                shown = again.select(
                    ROW,
                    pl.lit(f"{names}: not unique").alias(REASON),
                    as_json({name: kinds[name] for name in columns}).alias(DETAIL),
                    as_json({name: kind for name, kind in kinds.items() if name != ROW}).alias(RECORD),
                )
                passed, rejected = passed.join(again, on=ROW, how="anti"), pl.concat([rejected, shown])
        return Checked(passed, rejected)


@contextmanager
def repeated_rows(opened: InputFile, table: InputTable) -> Iterator[RepeatedRows]:
    """Find the rows that repeat a key; memory is that of some keys at once, whatever the file's length."""
    unique = unique_columns(table.model)
    found: dict[tuple[str, ...], pl.Series] = {}
    if unique:
        with TemporaryDirectory(prefix="backfill-load-") as folder:
            wanted = sorted({name for columns in unique for name in columns})
            keys, rows = Path(folder, "keys.parquet"), 0
            writer: pq.ParquetWriter | None = None
            for checked in opened.batches():
                part = checked.passed.select(ROW, *wanted).to_arrow()
                writer = writer or pq.ParquetWriter(keys, part.schema)
                writer.write_table(part)
                rows += part.num_rows
            if writer is not None:
                writer.close()
                found = {columns: _repetitions(keys, columns, rows) for columns in unique}
    yield RepeatedRows(found)


def _repetitions(keys: Path, columns: tuple[str, ...], rows: int) -> pl.Series:
    parts = max(1, -(-rows // _KEYS_AT_ONCE))
    found = [
        pl.scan_parquet(keys)
        .filter(pl.struct(columns).hash(0) % parts == part)
        .filter(pl.len().over(columns) > 1)
        .select(ROW)
        .collect()[ROW]
        for part in range(parts)
    ]
    return pl.concat(found)
