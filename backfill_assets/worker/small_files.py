"""Small files of many chunks, read at once: opening each by a query of its own costs several times what its rows do.

Put here how they are held in memory, and how the rows of several become one frame. What is made of the rows is for whoever asks.
Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq

from resources.files import stores

SMALL_BYTES = 256 << 10
"""The most bytes of a file that is held."""


@dataclass(frozen=True)
class Held:
    """A file that is in memory whole: its bytes, and what its footer says."""

    raw: bytes
    footer: pq.FileMetaData

    @property
    def rows(self) -> int:
        """How many rows its row groups have: as many as are read of it."""
        return sum(self.footer.row_group(number).num_rows for number in range(self.footer.num_row_groups))


def held(path: str) -> Held | None:
    """Return a small file of this machine; None of a larger one, and of a store's.

    Raises:
        OSError: if it cannot be read.
        arrow.ArrowInvalid: if it has no footer.
    """
    if not stores.is_local(path) or Path(stores.local_path(path)).stat().st_size > SMALL_BYTES:
        return None
    return held_of(stores.content(path))


def held_of(raw: bytes) -> Held:
    """Return a file by its bytes.

    Raises:
        arrow.ArrowInvalid: if it has no footer.
    """
    return Held(raw, stores.footer(raw))


def read_at_once(files: Sequence[Held], scanned: Callable[[list[bytes]], pl.LazyFrame]) -> Iterator[pl.DataFrame]:
    """Yield the rows of files, one after the other: a frame for each form of file, which is `scanned` at once.

    Raises:
        arrow.ArrowInvalid: if the columns of one have no sense.
        pl.exceptions.PolarsError: if one cannot be read, or has not the rows that its footer says.
    """
    yield from (rows for _, rows in _of_forms(files, scanned))


def numbered(
    files: Sequence[tuple[int, Held]], scanned: Callable[[list[bytes]], pl.LazyFrame], place: str
) -> Iterator[pl.DataFrame]:
    """Yield what `read_at_once` does, with the number that each file has in a column `place`."""
    for of_form, rows in _of_forms([file for _, file in files], scanned):
        numbers = np.array([files[one][0] for one in of_form], dtype=np.uint32)
        each = np.repeat(numbers, [files[one][1].rows for one in of_form])
        yield rows.with_columns(pl.Series(place, each, dtype=pl.UInt32))


def _of_forms(
    files: Sequence[Held], scanned: Callable[[list[bytes]], pl.LazyFrame]
) -> Iterator[tuple[list[int], pl.DataFrame]]:
    for of_form in _by_form(files):
        rows = scanned([files[one].raw for one in of_form]).collect(engine="in-memory").rechunk()
        if rows.height != sum(files[one].rows for one in of_form):
            raise pl.exceptions.ComputeError(f"{rows.height} rows are read of files that say otherwise")
        yield of_form, rows


def _by_form(files: Sequence[Held]) -> list[list[int]]:
    """Return which files have the same columns: names, types and field ids."""
    forms: list[tuple[pq.ParquetSchema, arrow.Schema, list[int]]] = []
    for number, file in enumerate(files):
        own = file.footer.schema
        with stores.decoding():
            columns = own.to_arrow_schema()
        for form, known, alike in forms:
            if own.equals(form) and columns.equals(known, check_metadata=True):
                alike.append(number)
                break
        else:
            forms.append((own, columns, [number]))
    return [alike for *_, alike in forms]
