"""The digest of a chunk: equal rows give equal digests, whatever wrote them.

SHA-256 over the rows in key order in a canonical encoding. The encoding is part of the contract between runs that may
lie years apart: a change is a new algorithm version, never an edit. This module is imported by Spark's Python
workers: keep it light.

Encoding `rows-sha256-v1`. A header names the columns and their canonical types. Rows are cut into blocks of 65,536,
wherever the files they came from begin and end. Of each block, column by column: one byte a row for "is null"
(1 or 0), then the values with nulls as zeros: integers, dates (days), instants and timestamps without zone (microseconds),
times of day (microseconds) and decimals (unscaled 128 bit) little-endian; booleans one byte; text and bytes as 64-bit byte lengths,
then all their bytes (text in UTF-8). Floating-point numbers are IEEE 754, little-endian: each NaN is the quiet one without
payload (0x7ff8000000000000, of 32 bits 0x7fc00000), and the negative zero is the positive one, since SQL compares them so; NaN is not
NULL. What has others inside: of a struct each field as a column of its own, NULL where the struct is; of a list the 64-bit number
of elements of each row, then all elements as a column; a map is the list of its entries (structs of key and value) in the order
of their keys. The row count closes it. Lineage columns are left out: they are constant within a run and checked against its plan,
and without them runs can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from backfill_assets.declarations.canonical_types import canonical_type, canonical_word
from backfill_assets.worker.nested import in_one_form

ALGORITHM = "rows-sha256-v1"
BLOCK_ROWS = 65_536
_OfRange = Callable[[int, int], Iterable[memoryview | bytes]]
"""Gives what is hashed of a column's rows from one to before another."""


class RowDigest:
    """A digest under way: give it frames in key order, then ask for the result."""

    def __init__(self, columns: Mapping[str, pl.DataType]) -> None:
        self._types = {name: canonical_type(name, dtype) for name, dtype in columns.items()}
        self._hash = hashlib.sha256(ALGORITHM.encode())
        for name, dtype in columns.items():
            self._hash.update(f"\x00{name}\x01{canonical_word(name, dtype)}".encode())
        self._rest: list[pa.Table] = []
        self._waiting = 0
        self.rows = 0

    def table_of(self, frame: pl.DataFrame) -> pa.Table:
        """Return rows as they are encoded."""
        table = in_one_form(frame.select(list(self._types))).to_arrow()
        return table.cast(pa.schema(list(self._types.items())))

    def update(self, frame: pl.DataFrame) -> None:
        """Add rows, which come after those added before in key order."""
        table = self.table_of(frame)
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
        return self._closed(self._hash, self.rows)

    def of_each(self, frame: pl.DataFrame, rows: Sequence[int]) -> list[str]:
        """Return the results of several digests of which none has rows yet: of the first so many rows of a frame, of the next, and so on.

        What is encoded of a row depends on no other row, so that a column is encoded once. None may have more than BLOCK_ROWS rows.
        """
        columns = [of_range for column in self.table_of(frame).columns for of_range in _by_range(_in_one_piece(column))]
        found, start = [], 0
        for count in rows:
            own = self._hash.copy()
            for of_range in columns:
                for part in of_range(start, start + count):
                    own.update(part)
            start += count
            found.append(self._closed(own, count))
        return found

    def _closed(self, begun: Any, rows: int) -> str:
        begun.update(b"\x02" + rows.to_bytes(8, "little"))
        return f"{ALGORITHM}:{begun.hexdigest()}"

    def _block(self, block: pa.Table) -> None:
        for column in block.columns:
            for part in _encoded(_in_one_piece(column)):
                self._hash.update(part)


def _in_one_piece(column: pa.ChunkedArray) -> pa.Array:
    # one piece is taken as it is: `combine_chunks` would copy it
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _by_range(array: pa.Array) -> Iterator[_OfRange]:
    """Yield what gives of a range of rows what `_encoded` yields of these rows alone."""
    kind = array.type
    if pa.types.is_nested(kind) or not len(array):
        yield lambda start, end: _encoded(array.slice(start, end - start))
        return
    yield _of_width(_nulls(array), 1)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        yield _of_texts(*_texts(array))
    else:
        (values,) = _values(array)
        yield _of_width(values, 1 if pa.types.is_boolean(kind) else kind.bit_width // 8)


def _of_width(values: memoryview | bytes, width: int) -> _OfRange:
    whole = memoryview(values)
    return lambda start, end: (whole[start * width : end * width],)


def _of_texts(offsets: NDArray[np.int64], data: memoryview | bytes) -> _OfRange:
    lengths, begins = memoryview(_lengths(offsets)), (offsets - offsets[0]).tolist()
    return lambda start, end: (lengths[start:end], data[begins[start] : begins[end]])


def _encoded(array: pa.Array) -> Iterator[memoryview | bytes]:
    """Yield what is hashed of a column, or of what is inside one."""
    yield _nulls(array)
    if pa.types.is_large_list(array.type):
        yield _buffer(pc.list_value_length(array).fill_null(0))
        yield from _encoded(array.flatten())  # what lies under a null is left out
    elif pa.types.is_struct(array.type):
        for field in array.flatten():  # a field is NULL where its struct is
            yield from _encoded(field)
    else:
        yield from _values(array)


def _nulls(array: pa.Array) -> memoryview | bytes:
    return _buffer(array.is_null().cast(pa.uint8())) if array.null_count else bytes(len(array))


def _values(array: pa.Array) -> list[memoryview | bytes]:
    kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        offsets, text = _texts(array)
        return [_lengths(offsets), text]
    if pa.types.is_boolean(kind):
        return [_buffer(array.fill_null(False).cast(pa.uint8()))]
    if pa.types.is_floating(kind):
        return [_canonical_floats(array)]
    # what lies under a null is whatever the writer left there: zeros take its place
    return [_buffer(array.fill_null(_zero(kind)) if array.null_count else array)]


def _texts(array: pa.Array) -> tuple[NDArray[np.int64], memoryview | bytes]:
    """Return where the texts of an array begin, with the end of the last, and all their bytes: from the first of these on."""
    filled = array.fill_null(pa.scalar(b"").cast(array.type)) if array.null_count else array
    offsets = np.frombuffer(filled.buffers()[1], dtype=np.int64)[filled.offset : filled.offset + len(filled) + 1]
    data = filled.buffers()[2]
    text = b"" if data is None or not len(filled) else memoryview(data)[int(offsets[0]) : int(offsets[-1])]
    return offsets, text


def _lengths(offsets: NDArray[np.int64]) -> memoryview:
    return np.diff(offsets).astype("<i8", copy=False).data


def _canonical_floats(array: pa.Array) -> bytes:
    """Return numbers with one NaN and one zero."""
    numbers = array.fill_null(0.0).to_numpy(zero_copy_only=False).copy()
    numbers[numbers == 0] = 0.0
    numbers[np.isnan(numbers)] = np.nan
    return bytes(numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).data)


def _zero(kind: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(bytes(kind.bit_width // 8))])[0]


def _buffer(array: pa.Array) -> memoryview | bytes:
    """Return the values of an array of one width as they lie in memory."""
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    return b"" if buffer is None else memoryview(buffer)[array.offset * width : (array.offset + len(array)) * width]
