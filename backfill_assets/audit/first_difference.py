"""The first row, in key order, in which the files of a chunk differ from those of another computation of it.

Put here how rows of two sets of files are compared. Which files, and what follows, is `reproduce`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import polars as pl

from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.key_order import rank
from resources.files import stores


@dataclass(frozen=True)
class RowDifference:
    """The first row in key order that differs: changed, or there on one side only (the other is None)."""

    key: dict[str, Any]
    recorded: dict[str, Any] | None
    reproduced: dict[str, Any] | None

    @property
    def columns(self) -> list[str]:
        """Names of the columns whose values differ."""
        one, other = self.recorded, self.reproduced
        if one is None or other is None:
            return [*(one or other or {})]
        return [name for name in one if one[name] != other[name]]


def digest_of_files(paths: Sequence[str], kinds: Mapping[str, pl.DataType], key: Sequence[str]) -> str:
    """Return the digest of the rows of files, in key order."""
    digest = RowDigest(kinds)
    for frame in in_key_order(paths, {name: pl.col(name) for name in kinds}, key):
        digest.update(frame)
    return digest.result()


def first_differing_row(
    recorded: Sequence[str],
    reproduced: Sequence[str],
    columns: Sequence[str],
    key: Sequence[str],
    now: Mapping[str, pl.Expr] | None = None,
) -> RowDifference | None:
    """Compare the rows of two sets of Parquet files in key order, a file at a time; return the first difference.

    `now` says how a column is found in the reproduced files where it has another name there, or a wider type.

    Raises:
        OSError: if a file cannot be read.
        PolarsError: if a file does not have the columns, or has them in other types.
    """
    own = {name: pl.col(name) for name in columns}
    sides = [in_key_order(recorded, own, key), in_key_order(reproduced, own | dict(now or {}), key)]
    one, other = (next(side, None) for side in sides)
    while one is not None and other is not None:
        if one.schema != other.schema:
            differing = sorted({name for name, _ in set(one.schema.items()) ^ set(other.schema.items())})
            raise pl.exceptions.SchemaError(f"the type of {', '.join(differing)} is not the recorded one")
        length = min(one.height, other.height)
        if not one.head(length).equals(other.head(length)):
            unequal = pl.DataFrame([one[name][:length].ne_missing(other[name][:length]) for name in columns])
            at = unequal.select(pl.any_horizontal(pl.all())).to_series().arg_true()[0]
            left, right = one.row(at, named=True), other.row(at, named=True)
            ranks = [rank(row[name] for name in key) for row in (left, right)]
            return _row_difference(left if ranks[0] <= ranks[1] else None, right if ranks[1] <= ranks[0] else None, key)
        one = one[length:] if one.height > length else next(sides[0], None)
        other = other[length:] if other.height > length else next(sides[1], None)
    rest = [None if frame is None else frame.row(0, named=True) for frame in (one, other)]
    return None if rest == [None, None] else _row_difference(rest[0], rest[1], key)


def _row_difference(
    recorded: dict[str, Any] | None, reproduced: dict[str, Any] | None, key: Sequence[str]
) -> RowDifference:
    one, other = (
        None
        if row is None
        else {name: value if isinstance(value, (int, type(None))) else str(value) for name, value in row.items()}
        for row in (recorded, reproduced)
    )
    present = one if one is not None else other
    assert present is not None
    return RowDifference({name: present[name] for name in key}, one, other)


def in_key_order(paths: Sequence[str], columns: Mapping[str, pl.Expr], key: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield the rows of files in key order, a file at a time; all at once where their key ranges overlap."""
    bounds = []
    for path in paths:
        ends = _ends(path, key)
        if ends.height:
            bounds.append((rank(ends.row(0)), rank(ends.row(-1)), path))
    bounds.sort()
    apart = all(later[0] > earlier[1] for earlier, later in pairwise(bounds))
    ordered = [path for *_, path in bounds]
    for group in ([path] for path in ordered) if apart else [ordered]:
        yield pl.concat([_rows(path, columns) for path in group]).sort(key)


def _ends(path: str, key: Sequence[str]) -> pl.DataFrame:
    keys = pl.scan_parquet(stores.source(path), hive_partitioning=False, glob=False).select(key).sort(key)
    return pl.concat([keys.head(1), keys.tail(1)]).collect()


def _rows(path: str, columns: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Return columns of a file; of a store it is in memory whole until they are collected: one at a time."""
    return pl.scan_parquet(stores.source(path), hive_partitioning=False, glob=False).select(columns.values()).collect()
