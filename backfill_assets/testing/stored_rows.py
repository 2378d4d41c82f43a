"""Rows of a table in Parquet files, as those of a snapshot are, and which of them a read needs.

Put here what stands for a table in the lakehouse. What is read for a chunk is `computing`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.testing.sessions import new_folder
from backfill_assets.worker.columns import table_of
from manifests.chunks import EVER
from manifests.facts import SourceFile, SourceState
from resources.lakehouse.facade import PinnedRead

SNAPSHOT = 1


class StoredRows:
    """Rows of a table in Parquet files with field ids, as those of a snapshot are, and which of them a read needs."""

    def __init__(self, table: InputTable, parts: Sequence[pl.DataFrame], time_column: str | None = None) -> None:
        self._name, self._schema = table.name, iceberg_schema(table.model)
        self._files: list[tuple[str, int, int, datetime | None, datetime | None]] = []
        kinds = dtypes(table.model)  # those of a target's lineage are not given
        self._has_dates = time_column is not None and kinds.get(time_column) == pl.Date
        for part in parts:
            if part.is_empty():
                continue
            missing = [pl.lit(None, kind).alias(name) for name, kind in kinds.items() if name not in part.columns]
            path = new_folder().with_suffix(".parquet")
            pq.write_table(table_of(part.with_columns(missing), self._schema), path)
            first, last = (None, None) if time_column is None else _bounds(part, time_column)
            self._files.append((str(path), part.height, path.stat().st_size, first, last))

    def state(self, at: datetime) -> SourceState:
        """What the planner is told of the table."""
        return SourceState(self._name, SNAPSHOT, at, self.source_files, self._has_dates)

    @property
    def source_files(self) -> tuple[SourceFile, ...]:
        """What the planner is told of them."""
        return tuple(
            SourceFile(rows, size, first.date(), last.date())
            for _, rows, size, first, last in self._files
            if first is not None and last is not None
        )

    @property
    def whole(self) -> PinnedRead:
        """A read of every file."""
        return self._pinned(lambda *_: True)

    def between(self, start: date, end: date) -> PinnedRead:
        """A read of the files that may have rows of a window: of dates, or of instants."""
        start, end = _instant(start), _instant(end)
        return self._pinned(lambda first, last: first is not None and first < end and last >= start)

    def before(self, end: date) -> PinnedRead:
        """A read of the files that may have rows before a date, or an instant."""
        end = _instant(end)
        return self._pinned(lambda first, _: first is not None and first < end)

    def _pinned(self, wanted: Callable[[Any, Any], bool]) -> PinnedRead:
        paths = tuple(f"file://{path}" for path, _, _, first, last in self._files if wanted(first, last))
        return PinnedRead(self._name, SNAPSHOT, self._schema, paths)


def _bounds(part: pl.DataFrame, time_column: str) -> tuple[datetime | None, datetime | None]:
    """Return from when to when rows are; from ever for ever where they are read whole, by no column."""
    if not time_column:
        return _instant(EVER[0]), _instant(EVER[1])
    first, last = part[time_column].min(), part[time_column].max()
    return (_instant(first), _instant(last)) if isinstance(first, date) and isinstance(last, date) else (None, None)


def _instant(value: date) -> datetime:
    return value if isinstance(value, datetime) else datetime.combine(value, time.min, UTC)
