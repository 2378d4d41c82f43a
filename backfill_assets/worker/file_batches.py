"""Rows of a Parquet file, batch by batch: memory is a batch's, however large the file and its row groups are.

Put here how a file is read from its beginning to its end. What a column is called in an older file is `columns`'. Imported by Spark's
Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq

from resources.files import stores

_ROWS = 10_000
_BYTES = 16 << 20
"""Rows, and bytes of what they are on the average, that are read at once."""
_BUFFER = 1 << 20
"""Bytes of a column that are taken from the file at once."""


def batches_of(
    path: str, columns: Sequence[str], wanted: Callable[[pq.RowGroupMetaData], bool] = lambda _: True
) -> Iterator[pl.DataFrame]:
    """Yield columns of a file in its order, a batch after the other; row groups that are not `wanted` are passed over.

    Raises:
        OSError: if a part of it cannot be read.
        arrow.ArrowInvalid: if what was read has no sense, or texts that are none.
    """
    try:
        yield from _batches(path, columns, wanted)
    except (MemoryError, FileNotFoundError):  # Arrow's lack of memory is no word about the file
        raise
    except (
        OSError,
        arrow.ArrowException,
        UnicodeDecodeError,
    ) as error:  # of a damaged footer names of columns may be no text
        if stores.is_local(path):
            raise error if isinstance(error, OSError) else arrow.ArrowInvalid(f"{path}: {error}") from error
        _require_damaged(path, columns)
        raise OSError(f"{path} could not be read in parts, and can be as a whole: {error}") from error


def _require_damaged(path: str, columns: Sequence[str]) -> None:
    """Raise of a store's file what is wrong with it: whether its network was, or its bytes are, an error of reading does not say.

    Raises:
        OSError: if it cannot be read.
        arrow.ArrowInvalid: if its bytes have no sense.
    """
    raw = BytesIO(stores.content(path))
    with stores.decoding():
        pq.read_table(raw, columns=list(columns)).validate(full=True)


def _batches(
    path: str, columns: Sequence[str], wanted: Callable[[pq.RowGroupMetaData], bool]
) -> Iterator[pl.DataFrame]:
    with (
        stores.opened_input(path) as stream,
        pq.ParquetFile(stream, buffer_size=_BUFFER, pre_buffer=False) as file,
    ):
        for number in range(file.num_row_groups):
            group = file.metadata.row_group(number)
            if not wanted(group):
                continue
            rows = rows_of_bytes(_BYTES, group.num_rows, group.total_byte_size)
            for batch in file.iter_batches(min(_ROWS, rows), row_groups=[number], columns=list(columns)):
                # other writers do not look whether a text is one, and Polars would not either
                batch.validate(full=True)
                found = pl.from_arrow(batch)
                assert isinstance(found, pl.DataFrame)
                yield found


def rows_of_bytes(room: int, rows: int, size: int) -> int:
    """Return how many of so many rows, which have so many bytes, fit into some room: one at least."""
    return max(1, room * rows // max(1, size))


def bytes_of(path: str) -> tuple[int, int]:
    """Return how many rows a file has, and how many bytes they are before they are compressed."""
    found = stores.footer(path)
    return found.num_rows, sum(found.row_group(number).total_byte_size for number in range(found.num_row_groups))
