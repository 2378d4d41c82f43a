"""Rows and files of a chunk in key order.

Put here how they are brought into it. What the order is used for is for the digest, the gate and the merge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import polars as pl

from backfill_assets.worker.columns import UNREADABLE
from backfill_assets.worker.violations import Violation, add_unreadable
from resources.files import stores

Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)


def in_key_order(paths: Sequence[str], key: Sequence[str], violations: dict[str, Violation]) -> list[str]:
    """Return the files of a chunk by their first keys; one that cannot be read, or has no row, is left out."""
    if len(paths) <= 1:
        return list(paths)
    first_keys = []
    for path in paths:
        try:
            head = (
                pl.scan_parquet(stores.source(path), hive_partitioning=False, glob=False).select(key).head(1).collect()
            )
        except UNREADABLE as error:
            add_unreadable(violations, path, error)
            continue
        if head.height:
            first_keys.append((head.row(0), path))
    # a null in a key is the row rules' to report; here it only must not stop the sorting
    first_keys.sort(key=lambda pair: rank(pair[0]))
    return [path for _, path in first_keys]


def by_key(frame: pl.DataFrame, key: Sequence[str]) -> tuple[pl.DataFrame, bool]:
    """Return the frame in key order, and whether every key is there and above the one before it."""
    if not set(key) <= set(frame.columns):
        return frame, False
    is_above = follows(key).slice(1).all(ignore_nulls=False)
    if frame.height <= 1 or frame.lazy().select(is_above).collect().item() is True:
        return frame, True
    return frame.sort(key), False


def follows(key: Sequence[str]) -> pl.Expr:
    """Return whether the key of a row is above the one before it; NULL where one is not there."""
    ordered = pl.lit(False)
    for column in reversed(key):
        before = pl.col(column).shift(1)
        ordered = (pl.col(column) > before) | ((pl.col(column) == before) & ordered)
    return ordered


def one_order(frames: Iterable[pl.DataFrame], key: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield the rows of files in key order: those at once whose keys interleave, as those of several partitions do.

    Args:
        frames: the rows of each file, by key; files come in the order of their first keys.
        key: the columns of the key.
    """
    held: pl.DataFrame | None = None
    for frame in frames:
        if held is None or not held.height:
            held = frame
        elif frame.height and rank(held.select(key).row(-1)) >= rank(frame.select(key).row(0)):
            held = pl.concat([held, frame], how="vertical_relaxed").sort(key)
        elif frame.height:
            yield held
            held = frame
    if held is not None:
        yield held


def rank(values: Iterable[Any]) -> list[tuple[bool, Any]]:
    """Make a key comparable where one of its values is NULL: these come first, as Polars sorts them."""
    return [(value is not None, value) for value in values]


def rows_between(rows: Frame, key: Sequence[str], begins: Any, ends: Any) -> Frame:
    """Return rows with begins <= key < ends; None stands for no limit."""
    chosen = pl.lit(True)
    if begins is not None:
        chosen = chosen & ~_below(key, begins)
    if ends is not None:
        chosen = chosen & _below(key, ends)
    return rows.filter(chosen)


def _below(key: Sequence[str], limit: Sequence[Any]) -> pl.Expr:
    below = pl.lit(False)
    for column, value in reversed(list(zip(key, limit, strict=True))):
        below = (pl.col(column) < pl.lit(value)) | ((pl.col(column) == pl.lit(value)) & below)
    return below
