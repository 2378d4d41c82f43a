"""The digest of a chunk: equal rows give equal digests, whatever wrote them.

SHA-256 over the rows in key order in a canonical encoding. The encoding is part of the contract between runs that may
lie years apart: a change is a new algorithm version, never an edit. This module is imported by Spark's Python
workers: keep it light.

Encoding `rows-sha256-v1`. A header names the columns and their canonical types. Rows are cut into blocks of 65,536,
wherever the files they came from begin and end. Of each block, column by column: one byte a row for "is null"
(1 or 0), then the values with nulls as zeros: integers, dates (days), instants (microseconds UTC) and decimals
(unscaled 128 bit) little-endian; booleans one byte; text as 64-bit byte lengths, then all its UTF-8 bytes. The row
count closes it. Lineage columns are left out: they are constant within a run and checked against its plan, and
without them runs can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import polars as pl
import pyarrow as pa

from backfill_assets.declarations.canonical_types import canonical_type

ALGORITHM = "rows-sha256-v1"
BLOCK_ROWS = 65_536


class RowDigest:
    """A digest under way: give it frames in key order, then ask for the result."""

    def __init__(self, columns: Mapping[str, pl.DataType]) -> None:
        self._types = {name: canonical_type(name, dtype) for name, dtype in columns.items()}
        self._hash = hashlib.sha256(ALGORITHM.encode())
        for name, kind in self._types.items():
            self._hash.update(f"\x00{name}\x01{kind}".encode())
        self._rest: list[pa.Table] = []
        self._waiting = 0
        self.rows = 0

    def update(self, frame: pl.DataFrame) -> None:
        """Add rows, which come after those added before in key order."""
        table = frame.select(list(self._types)).to_arrow()
        table = table.cast(pa.schema(list(self._types.items())))
        self.rows += table.num_rows
        self._rest.append(table)
        self._waiting += table.num_rows
        if self._waiting >= BLOCK_ROWS:
            whole = pa.concat_tables(self._rest).combine_chunks()
            start = 0
            while whole.num_rows - start >= BLOCK_ROWS:
                self._block(whole.slice(start, BLOCK_ROWS))
                start += BLOCK_ROWS
            self._rest = [whole.slice(start)]
            self._waiting = whole.num_rows - start

    def result(self) -> str:
        """Return `<algorithm>:<hex>`; no rows can be added afterwards."""
        if self._waiting:
            self._block(pa.concat_tables(self._rest).combine_chunks())
        self._hash.update(b"\x02" + self.rows.to_bytes(8, "little"))
        return f"{ALGORITHM}:{self._hash.hexdigest()}"

    def _block(self, block: pa.Table) -> None:
        for column in block.columns:
            # one piece is taken as it is: `combine_chunks` would copy it
            array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            self._hash.update(_nulls(array))
            for part in _values(array):
                self._hash.update(part)


def _nulls(array: pa.Array) -> memoryview | bytes:
    return _buffer(array.is_null().cast(pa.uint8())) if array.null_count else bytes(len(array))


def _values(array: pa.Array) -> list[memoryview | bytes]:
    kind = array.type
    if pa.types.is_large_string(kind):
        filled = array.fill_null("") if array.null_count else array
        offsets = np.frombuffer(filled.buffers()[1], dtype=np.int64)[filled.offset : filled.offset + len(filled) + 1]
        data = filled.buffers()[2]
        text = b"" if data is None or not len(filled) else memoryview(data)[int(offsets[0]) : int(offsets[-1])]
        return [np.diff(offsets).astype("<i8", copy=False).data, text]
    if pa.types.is_boolean(kind):
        return [_buffer(array.fill_null(False).cast(pa.uint8()))]
    # what lies under a null is whatever the writer left there: zeros take its place
    return [_buffer(array.fill_null(_zero(kind)) if array.null_count else array)]


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(kind.bit_width // 8))])[0]


def _buffer(array: pa.Array) -> memoryview | bytes:
    """Return the values of an array of one width as they lie in memory."""
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    return b"" if buffer is None else memoryview(buffer)[array.offset * width : (array.offset + len(array)) * width]
