"""Pinned reads: which files a read of a table at a snapshot needs, whether they are there, and the rows of small tables.

Put here what reads rows, or says what somebody else will read: Spark reads the files of a `PinnedRead`. Facts of a table
that need no data file are `lookups`'s; how the files of a snapshot are listed is `live_files`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyarrow import ArrowException, RecordBatch
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression, EqualTo
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, PrimitiveType

from manifests.errors import InputRefused, Problem
from resources.files.stores import NO_STORE, StoreAccess
from resources.lakehouse.file_access import access_to
from resources.lakehouse.live_files import files_and_deletes, pinned_snapshot
from resources.lakehouse.metadata import column_of, readable_metadata, readable_rows
from resources.lakehouse.storage import ask_each


@dataclass(frozen=True)
class PinnedRead:
    """The data files of one table at one snapshot that a read needs, and the schema they are read with.

    `rows` and `bytes` are those of the whole files: a read may leave some of their rows out. `deleted` are those of the files
    of which rows are deleted, each with the files that say which, by position; `access` opens those for who reads them by itself.
    """

    table: str
    snapshot_id: int | None
    schema: Schema
    paths: tuple[str, ...]
    rows: int = 0
    bytes: int = 0
    deleted: tuple[tuple[str, tuple[str, ...]], ...] = ()
    access: StoreAccess = field(default=NO_STORE, compare=False)


def pinned(
    table: Table,
    name: str,
    snapshot_id: int | None,
    row_filter: BooleanExpression | None = None,
    schema_id: int | None = None,
) -> PinnedRead:
    """Plan a read of a table at a snapshot: the files that may hold rows of `row_filter`, by a schema of it (None: today's).

    A table without a snapshot is an empty read.

    Raises:
        InputRefused: if the table has no such snapshot or schema, or rows of it are deleted by their values.
    """
    schema = _schema(table, name, schema_id)
    if snapshot_id is None:
        return PinnedRead(name, None, schema, ())
    snapshot = pinned_snapshot(table, snapshot_id)
    found = list(files_and_deletes(table, snapshot, row_filter or AlwaysTrue()))
    paths = tuple(sorted(file.file_path for file, _ in found))
    rows, size = sum(file.record_count for file, _ in found), sum(file.file_size_in_bytes for file, _ in found)
    deleted = sorted((file.file_path, tuple(one.file_path for one in deletes)) for file, deletes in found if deletes)
    access = access_to(table.io.properties)
    return PinnedRead(name, snapshot.snapshot_id, schema, paths, rows, size, tuple(deleted), access)


def _schema(table: Table, name: str, schema_id: int | None) -> Schema:
    schema = table.schema() if schema_id is None else table.schemas().get(schema_id)
    if schema is None:
        raise InputRefused(
            Problem(
                f"{name} has schema {schema_id} no more",
                "what a plan pins is read by the columns that the table had then",
                "plan the change again under a new run id; somebody has removed the schema from the table's metadata",
            )
        )
    return schema


def pinned_since(
    table: Table, name: str, since: int, until: int, schema_id: int | None = None
) -> tuple[PinnedRead, PinnedRead]:
    """Plan a read of the files that have come to a table after snapshot `since`, up to `until`, and one of those that have gone.

    A file from which other rows are deleted by then has gone as it was, and has come as it is. All of both are read by one schema.

    Raises:
        InputRefused: if the table has no such snapshot or schema, or rows of it are deleted by their values.
    """
    schema = _schema(table, name, schema_id)
    came, gone = _exchanged(table, since, until)
    access = access_to(table.io.properties)
    return _read_of(name, until, schema, came, access), _read_of(name, since, schema, gone, access)


_Files = dict[str, tuple[DataFile, tuple[str, ...]]]


def _read_of(name: str, snapshot_id: int, schema: Schema, files: _Files, access: StoreAccess) -> PinnedRead:
    deleted = tuple((path, deletes) for path, (_, deletes) in sorted(files.items()) if deletes)
    rows, size = (sum(of(file) for file, _ in files.values()) for of in (_rows, _bytes))
    return PinnedRead(name, snapshot_id, schema, tuple(sorted(files)), rows, size, deleted, access)


def _rows(file: DataFile) -> int:
    return int(file.record_count)


def _bytes(file: DataFile) -> int:
    return int(file.file_size_in_bytes)


def files_with_nulls_since(table: Table, since: int, until: int, column: str) -> list[str]:
    """Return the files that came to a table after a snapshot, or have gone since, and may have NULL in a column.

    Raises:
        InputRefused: as `pinned_since` does.
    """
    of = column_of(table, column).field_id
    came, gone = _exchanged(table, since, until)
    files = {path: file for path, (file, _) in (*gone.items(), *came.items())}
    return sorted(path for path, file in files.items() if (file.null_value_counts or {}).get(of) != 0)


def _exchanged(table: Table, since: int, until: int) -> tuple[_Files, _Files]:
    before, after = (_files_at(table, one) for one in (since, until))
    came = {path: file for path, file in after.items() if path not in before or before[path][1] != file[1]}
    gone = {path: file for path, file in before.items() if path not in after or after[path][1] != file[1]}
    return came, gone


def _files_at(table: Table, snapshot_id: int) -> _Files:
    found = files_and_deletes(table, pinned_snapshot(table, snapshot_id), AlwaysTrue())
    return {file.file_path: (file, tuple(sorted(one.file_path for one in deletes))) for file, deletes in found}


def unread(table: Table, snapshot_id: int, row_filter: BooleanExpression | None = None) -> tuple[list[str], list[str]]:
    """Return what a read at a snapshot would not find as it was written: files that are gone, and files of another length.

    Looks at file lengths only and opens no data file.

    Raises:
        UnreadableMetadata: if the snapshot's manifests cannot be read.
    """
    with readable_metadata(table, pinned_snapshot(table, snapshot_id)):
        try:
            tasks = table.scan(row_filter=row_filter or AlwaysTrue(), snapshot_id=snapshot_id).plan_files()
            read = {file.file_path: file for task in tasks for file in (task.file, *task.delete_files)}
            expected = sorted((path, int(file.file_size_in_bytes)) for path, file in read.items())
        except FileNotFoundError as error:  # one of the snapshot's own manifests
            return [str(error)], []

    def length(path: str) -> int | None:
        try:
            return len(table.io.new_input(path))
        except FileNotFoundError:
            return None

    lengths = ask_each(length, [path for path, _ in expected])
    gone = [path for (path, _), size in zip(expected, lengths, strict=True) if size is None]
    changed = [path for (path, was), size in zip(expected, lengths, strict=True) if size not in {None, was}]
    return gone, changed


def all_rows(table: Table, snapshot_id: int) -> list[dict[str, Any]]:
    """Return all rows of a (small) reference table at a snapshot, by the columns that it has today.

    Raises:
        EnvironmentRefused: if one of its files cannot be read.
    """
    with readable_rows(table):
        tasks = table.scan(snapshot_id=snapshot_id).plan_files()
        # a scan of a snapshot would have the columns of its time, and who asks knows those of the model
        rows: list[dict[str, Any]] = (
            ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue()).to_table(tasks).to_pylist()
        )
    return rows


def batches(
    table: Table, snapshot_id: int, row_filter: BooleanExpression, columns: Sequence[str] | None = None
) -> Iterator[RecordBatch]:
    """Yield the rows of a table at a snapshot that pass a filter, by the columns of today (None: all); memory is one file's.

    Raises:
        EnvironmentRefused: if one of its files cannot be read.
    """
    schema = table.schema() if columns is None else table.schema().select(*columns)
    with readable_metadata(table, pinned_snapshot(table, snapshot_id)):
        tasks = list(table.scan(row_filter=row_filter, snapshot_id=snapshot_id).plan_files())
    with readable_rows(table):
        for task in tasks:
            yield from ArrowScan(table.metadata, table.io, schema, row_filter).to_record_batches([task])


def values_of_other_files(table: Table, before: int, now: int, column: str) -> set[Any]:
    """Return the values of a column in the rows of files that one of two snapshots has and the other has not.

    Of a file that both have with other rows deleted, all of its values.

    Raises:
        EnvironmentRefused: if one of the files cannot be read.
    """
    sides = []
    for snapshot_id in (before, now):
        with readable_metadata(table, pinned_snapshot(table, snapshot_id)):
            tasks = list(table.scan(snapshot_id=snapshot_id).plan_files())
        sides.append(
            {(task.file.file_path, *sorted(one.file_path for one in task.delete_files)): task for task in tasks}
        )
    others = [task for key, task in {**sides[0], **sides[1]}.items() if key not in sides[0] or key not in sides[1]]
    found: set[Any] = set()
    with readable_rows(table):
        for task in others:
            scan = ArrowScan(table.metadata, table.io, table.schema().select(column), AlwaysTrue())
            for batch in scan.to_record_batches([task]):
                found.update(batch.column(column).unique().to_pylist())
    return found


def values_in(
    table: Table,
    snapshot_id: int,
    column: str,
    row_filter: BooleanExpression,
    schema_id: int | None = None,
    *,
    of_rows: bool = False,
) -> dict[Any, str]:
    """Return the values of a column of text or integers in the files of a read, each with a file that has it; NULL as None.

    A file is opened only where its bounds do not say that all of its rows have one value. With `of_rows` each one is, and only
    rows that pass the filter count.

    Raises:
        EnvironmentRefused: if one of its files cannot be read.
    """
    name = ".".join(table.name())
    snapshot, schema = pinned_snapshot(table, snapshot_id), _schema(table, name, schema_id)
    field = schema.find_field(column)
    found: dict[Any, str] = {}
    with readable_metadata(table, snapshot):
        tasks = list(table.scan(row_filter=row_filter, snapshot_id=snapshot_id).plan_files())
    for task in tasks:
        value = None if of_rows else _only_value(task.file, field)
        if value is not None:
            found.setdefault(value, task.file.file_path)
            continue
        with readable_rows(table):
            counted = row_filter if of_rows else AlwaysTrue()
            rows = ArrowScan(table.metadata, table.io, schema.select(column), counted).to_table([task])
        for one in rows[column].unique().to_pylist():
            found.setdefault(one, task.file.file_path)
    return found


def _only_value(file: DataFile, field: NestedField) -> Any:
    """Return the one value that all rows of a file have, by its bounds; None where they do not say so."""
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if nulls != 0 or low is None or low != high or not isinstance(field.field_type, PrimitiveType):
        return None
    return from_bytes(field.field_type, low)


def some_rows(table: Table, limit: int) -> tuple[int, list[dict[str, Any]]]:
    """Return how many rows a table has, and at most `limit` of them.

    Raises:
        EnvironmentRefused: if one of its files cannot be read.
    """
    with readable_rows(table):
        rows: list[dict[str, Any]] = table.scan(limit=limit).to_arrow().to_pylist()
        return table.scan().count(), rows


def rows_of_run(table: Table, run_id: str) -> tuple[int | None, list[str]]:
    """Return how many rows of a run a table shows its readers, and the files that they may be in.

    None where one of those files cannot be read: nothing is known of its rows then.

    Raises:
        UnreadableMetadata: if the current snapshot's manifests cannot be read.
    """
    current = table.current_snapshot()
    if current is None:
        return 0, []
    with readable_metadata(table, current):
        scan = table.scan(row_filter=EqualTo(term="run_id", value=run_id), selected_fields=("run_id",))
        paths = [task.file.file_path for task in scan.plan_files()]
    try:
        return scan.to_arrow().num_rows if paths else 0, paths
    except (OSError, ArrowException):
        return None, paths
