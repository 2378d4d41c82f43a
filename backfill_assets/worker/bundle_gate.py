"""Small chunks judged together: each step is done once for all of them, of the rows of all.

Put here what says of one chunk among several that it breaks no rule, and what its verdict then has. Whatever breaks a rule, or may,
is judged by itself: that is `chunk_gate`'s, which says what is wrong. Runs in Spark's workers: imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

import numpy as np
import polars as pl
from numpy.typing import NDArray

from backfill_assets.declarations.schema import dtypes, iceberg_type
from backfill_assets.worker.chunk_rules import INSTANT, instants
from backfill_assets.worker.gate_tasks import GateSpec, GateTask
from backfill_assets.worker.key_order import follows
from backfill_assets.worker.partitions import partition_values
from backfill_assets.worker.references import imported_by_path
from manifests.division import NULL_PART, Division, bucket_number

Flags = NDArray[np.bool_]
NUMBER = "__number"
"""Which of the chunks a row is of."""


class Bundle:
    """The rows of several chunks, one after the other, none without rows.

    Attributes:
        frame: the rows of all.
        rows: how many each chunk has.
        numbers: which chunk each row is of.
    """

    def __init__(self, tasks: Sequence[GateTask], frame: pl.DataFrame, rows: Sequence[int]) -> None:
        self._tasks = tasks
        self.frame = frame
        self.rows = np.array(rows)
        self._starts = np.concatenate([[0], np.cumsum(self.rows)[:-1]])
        self.numbers = np.repeat(np.arange(len(rows), dtype=np.uint32), self.rows)

    def passing(self, spec: GateSpec) -> list[bool]:
        """Return of each chunk whether its keys are in order, and its rows in its days and its part."""
        passing = self._in_key_order(spec.key)
        if spec.day_column:
            passing &= self._in_their_days(spec.day_column)
        if spec.division is not None and any(task.part for task in self._tasks):
            passing &= self._in_their_parts(spec, spec.division)
        return [bool(one) for one in passing]

    def _in_key_order(self, key: Sequence[str]) -> Flags:
        """Return of each chunk whether every key is above the one before it."""
        ordered = _flags(self.frame.lazy().select(follows(key)).collect().to_series())
        ordered[self._starts] = True
        return self._all_of(ordered)

    def _in_their_days(self, column: str) -> Flags:
        """Return of each chunk whether every row lies in its days, or its hour."""
        of_hours = {task.hour is not None for task in self._tasks}
        days = self.frame[column] if column in self.frame.columns else pl.Series([], dtype=pl.Null)
        if days.dtype == INSTANT and of_hours == {False}:
            days = days.dt.date()
        if len(of_hours) > 1 or days.dtype != (INSTANT if True in of_hours else pl.Date):
            return np.zeros(len(self._tasks), dtype=np.bool_)
        ends: list[tuple[date, date]] = [
            (one.start, one.end) if one.hour is None else instants(one.start, one.end, one.hour) for one in self._tasks
        ]
        low, high = (self._by_row(pl.Series([one[side] for one in ends], dtype=days.dtype)) for side in (0, 1))
        return self._all_of(_flags((days >= low) & (days <= high)))

    def _in_their_parts(self, spec: GateSpec, division: Division) -> Flags:
        """Return of each chunk whether every row lies in its part."""
        if not all(task.part for task in self._tasks) or division.column not in self.frame.columns:
            return np.zeros(len(self._tasks), dtype=np.bool_)
        try:
            return self._held_in_parts(spec, division)
        except (TypeError, ValueError, ArithmeticError, LookupError, pl.exceptions.PolarsError):
            # an end or a value that the column cannot hold, say: each chunk is judged by itself
            return np.zeros(len(self._tasks), dtype=np.bool_)

    def _held_in_parts(self, spec: GateSpec, division: Division) -> Flags:
        values, parts = self.frame[division.column], [task.part for task in self._tasks]
        if division.bounds:
            return self._all_of(self._in_ranges(division, values, parts))
        if division.buckets:
            kind = iceberg_type(division.column, dtypes(imported_by_path(spec.model))[division.column])
            values = pl.Series(partition_values(division.transform, kind)(values.to_arrow()), dtype=pl.Int32)
            expected = pl.Series([bucket_number(part) for part in parts], dtype=pl.Int32)
        else:
            expected = pl.Series([division.literal(part) for part in parts], dtype=values.dtype)
        return self._all_of(_flags(values.eq_missing(self._by_row(expected))))

    def _in_ranges(self, division: Division, values: pl.Series, parts: Sequence[str]) -> Flags:
        ends = [(None, None) if part == NULL_PART else division.ranges[part] for part in parts]
        low, high = (self._by_row(pl.Series([one[side] for one in ends], dtype=values.dtype)) for side in (0, 1))
        wants_null = self._by_row(pl.Series([part == NULL_PART for part in parts], dtype=pl.Boolean))
        above, below = (values >= low).fill_null(value=False), (values < high).fill_null(value=False)
        inside = values.is_not_null() & (low.is_null() | above) & (high.is_null() | below)
        return _flags((wants_null & values.is_null()) | (~wants_null & inside))

    def _all_of(self, rows: Flags) -> Flags:
        """Return of each chunk whether something is true of all its rows."""
        return np.asarray(np.logical_and.reduceat(rows, self._starts), dtype=np.bool_)

    def _by_row(self, values: pl.Series) -> pl.Series:
        """Return a value of each chunk for each of its rows."""
        return values.gather(pl.Series(self.numbers))


def _flags(values: pl.Series) -> Flags:
    """Return what is true; what is NULL is not."""
    return np.array(values.fill_null(value=False).to_numpy(), dtype=np.bool_)
