"""The rows of an input table, file by file, each file with the load that has brought it.

Put here reads for those who want to know where rows came from, or which are there. How a load is recognised is `loads`'; reads
of what a plan has pinned are `reads`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from resources.lakehouse.loads import loads_of
from resources.lakehouse.metadata import readable_metadata, readable_rows


@dataclass(frozen=True)
class RowsOfFile:
    """The rows (an Arrow table) of one file, and the load that has brought it; empty where another program has."""

    load_id: str
    rows: Any


def rows_by_file(table: Table, columns: Sequence[str], *, load_id: str | None = None) -> Iterator[RowsOfFile]:
    """Yield some columns of a table as it is now, file by file; with a load, of the files that it has brought, as it has left them.

    Files come in the order in which they came into the table.

    Raises:
        EnvironmentRefused: if one of the files cannot be read.
    """
    by_snapshot = {load.snapshot_id: load.load_id for load in loads_of(table)}
    wanted = next((snapshot_id for snapshot_id, one in by_snapshot.items() if one == load_id), None)
    if load_id is not None and wanted is None:
        return
    snapshot = table.current_snapshot() if wanted is None else table.snapshot_by_id(wanted)
    if snapshot is None:
        return
    came = _came_with(table, snapshot)
    with readable_metadata(table, snapshot):
        tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files())
    order = {one.snapshot_id: number for number, one in enumerate(table.snapshots())}
    tasks.sort(key=lambda task: (order.get(came.get(task.file.file_path, 0), -1), task.file.file_path))
    schema = table.schema().select(*columns)
    for task in tasks:
        brought = came.get(task.file.file_path, 0)
        if wanted is None or brought == wanted:
            with readable_rows(table):
                rows = ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_table([task])
            yield RowsOfFile(by_snapshot.get(brought, ""), rows)


def rows_where(table: Table, columns: Sequence[str], row_filter: BooleanExpression) -> Any:
    """Return some columns of the rows of a table that a filter selects, as it is now, as an Arrow table.

    Raises:
        EnvironmentRefused: if a file cannot be read.
    """
    with readable_rows(table):
        return table.scan(row_filter=row_filter, selected_fields=tuple(columns)).to_arrow()


def _came_with(table: Table, snapshot: Snapshot) -> dict[str, int]:
    """Return by which snapshot each file of a snapshot came into the table."""
    with readable_metadata(table, snapshot):
        return {
            entry.data_file.file_path: entry.snapshot_id or 0
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io)
        }
