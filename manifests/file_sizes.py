"""How large the files become that a run writes: rows a file, from a size that is declared and the bytes that a row has taken so far.

Plain arithmetic only. Who declares a size, and what earlier files say of a row, is looked up in `backfill_assets.planning.file_sizes`; how
files of a compaction are cut, which knows every row it rewrites, `manifests.compaction` says.

Rows are counted while they are written, so that nothing is read twice for it: a chunk's files have `rows_per_file` rows each, in the order of
the key, and its last file has the rest. Where it is known about how many rows the chunks will have, `rows_per_file` is chosen so that the rest is
no small file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_LEAST, _MOST = 2 / 3, 3 / 2
"""How far rows a file may be from those that fill one, so that chunks are cut evenly."""
_SPARE = 4
"""A chunk may have more rows than is known by this part of a file, before they begin another one."""
_SIZES_LOOKED_AT = 64
"""Of very many chunks that are cut, so many are looked at: from the smallest to the largest, evenly."""
_DIGITS = re.compile("[0-9]{1,19}")
_MOST_OF_LONG = 2**63 - 1
_SHOWN = 40
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_STEP = 1_024


@dataclass(frozen=True)
class FileSizes:
    """How large the files of a run become, and why.

    Attributes:
        file_size_bytes: how large a file becomes, about; `said_by` is who says so.
        row_bytes: how many bytes a row takes in a file, by `learned_from`, in words; `own_bytes` are those of a file besides, whatever
            rows it has: its footer and its dictionaries.
        rows_per_file: the most rows of a file: what a chunk has besides is in another file.
    """

    file_size_bytes: int
    said_by: str
    row_bytes: float
    own_bytes: int
    learned_from: str
    rows_per_file: int

    def describe(self) -> str:
        """Say in words how large files become, and why."""
        rows = "1 row" if self.rows_per_file == 1 else f"at most {self.rows_per_file:,} rows"
        own = f" beside {in_bytes(self.own_bytes)} of a file's own" if self.own_bytes else ""
        return (
            f"of about {in_bytes(self.file_size_bytes)} ({self.said_by}), {rows} each: a row takes about {self.row_bytes:,.4g} "
            f"bytes{own}, by {self.learned_from}"
        )


def whole_number(said: str) -> int | None:
    """Return the number that a setting or a property says; None if it is none, or larger than the 64 bits that Java reads it into."""
    return int(said) if _DIGITS.fullmatch(said) and int(said) <= _MOST_OF_LONG else None


def shortened(said: str) -> str:
    """Return what a setting or a property says as a refusal quotes it."""
    return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}..."


def in_bytes(size: int) -> str:
    """Return a number of bytes as people say it: `20,000 bytes` as `19.5 KiB`."""
    if size == 1:
        return "1 byte"
    value, unit = float(size), 0
    while value >= _STEP and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{value:,.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def rows_that_fill(file_size: int, row_bytes: float, own_bytes: int = 0) -> int:
    """Return how many rows of so many bytes fill a file of a size, which has some bytes of its own: one row at least.

    Rows are given half of it at least: a file with few of them has smaller dictionaries than one with many.
    """
    return max(1, int((file_size - min(own_bytes, file_size // 2)) / row_bytes))


def even_rows(full: int, chunks: Sequence[int], most: int | None = None) -> int:
    """Return how many rows a file has at most, so that chunks of about so many rows are cut without a small rest.

    Args:
        full: the rows that fill a file.
        chunks: the rows of chunks, as far as those are known.
        most: the most rows that a file may have, whatever fills it; None for no such limit.

    What is returned lies between two thirds of `full` and one and a half times as much, but for `most`. A rest is small that fills less than
    half a file; of several answers that leave equally few, the nearest to `full` is taken, and of two as near the smaller.
    """
    limit = full if most is None else min(full, most)
    least, greatest = max(1, round(full * _LEAST)), max(1, round(full * _MOST))
    if most is not None:
        least, greatest = min(least, most), min(greatest, most)
    sizes = _some(sorted({rows for rows in chunks if rows > limit}))
    found = {limit}
    for rows in sizes:
        near = max(1, round(rows / full))
        for files in (near - 1, near, near + 1):
            if files > 0:  # with some rows to spare, fewer of each the more files there are
                found.add(-(-rows * (_SPARE * files + 1) // (_SPARE * files * files)))
    allowed = [one for one in found if least <= one <= greatest]
    return min(allowed, key=lambda one: (_small_rests(one, sizes, full), abs(one - full), one), default=limit)


def _some(sizes: Sequence[int]) -> list[int]:
    if len(sizes) <= _SIZES_LOOKED_AT:
        return list(sizes)
    return [sizes[number * (len(sizes) - 1) // (_SIZES_LOOKED_AT - 1)] for number in range(_SIZES_LOOKED_AT)]


def _small_rests(per_file: int, sizes: Sequence[int], full: int) -> int:
    return sum(1 for rows in sizes if rows > per_file and 0 < 2 * (rows % per_file) < full)
