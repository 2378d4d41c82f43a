"""Rows of a table in Parquet files, as those of a snapshot are, and which of them a read needs.

Put here what stands for a table in the lakehouse. What is read for a chunk is `computing`'s to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.declarations.target import InputTable
from backfill_assets.testing.sessions import new_folder
from backfill_assets.worker.columns import table_of
from manifests.facts import SourceFile
from resources.lakehouse.facade import PinnedRead

SNAPSHOT = 1


class StoredRows:
    """Rows of a table in Parquet files with field ids, as those of a snapshot are, and which of them a read needs."""

    def __init__(self, table: InputTable, parts: Sequence[pl.DataFrame], time_column: str | None = None) -> None:
        self._name, self._schema = table.name, iceberg_schema(table.model)
        self._files: list[tuple[str, int, int, datetime | None, datetime | None]] = []
        for part in parts:
            if part.is_empty():
                continue
            path = new_folder().with_suffix(".parquet")
            pq.write_table(table_of(part, self._schema), path)
            first, last = (None, None) if time_column is None else _bounds(part[time_column])
            self._files.append((str(path), part.height, path.stat().st_size, first, last))

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

    def between(self, start: datetime, end: datetime) -> PinnedRead:
        """A read of the files that may have rows of a window."""
        return self._pinned(lambda first, last: first is not None and first < end and last >= start)

    def before(self, end: datetime) -> PinnedRead:
        """A read of the files that may have rows before an instant."""
        return self._pinned(lambda first, _: first is not None and first < end)

    def _pinned(self, wanted: Callable[[Any, Any], bool]) -> PinnedRead:
        paths = tuple(f"file://{path}" for path, _, _, first, last in self._files if wanted(first, last))
        return PinnedRead(self._name, SNAPSHOT, self._schema, paths)


def _bounds(instants: pl.Series) -> tuple[datetime | None, datetime | None]:
    first, last = instants.min(), instants.max()
    return (first, last) if isinstance(first, datetime) and isinstance(last, datetime) else (None, None)
