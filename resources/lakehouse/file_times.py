"""The times that data files have in a column of dates or instants, and how many of their rows have none: by bounds and counts.

Put here what a file of a table says of one column of time. Which files are asked is `lookups`'. The one thing that is read of a file
itself is its footer, of one that says nothing of a column: whether it has it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, time, timedelta
from functools import lru_cache

from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import PYARROW_PARQUET_FIELD_ID_KEY
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import DateType, NestedField, PrimitiveType, TimestamptzType

from manifests.chunks import EVER
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import MOST_POSITION, LogRange
from resources.files import stores
from resources.lakehouse.file_access import access_to
from resources.lakehouse.metadata import column_of, readable_bounds, readable_rows, wrong_type

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Times = tuple[datetime, datetime]
"""The first instant and the last one; of dates, their midnights in UTC."""


def times_of_file(table: Table, file: DataFile, column: str) -> Times | None:
    """Return the first and the last instant of a file in a column of dates or instants; None of one without any, all of time without a column.

    Raises:
        InputRefused: if the file has instants and does not say which.
    """
    if not column:
        return datetime.combine(EVER[0], time.min, UTC), datetime.combine(EVER[1], time.max, UTC)
    field = column_of(table, column)
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    if low is None or high is None:
        if nulls_of_file(table, file, field) == file.record_count:
            return None
        raise no_bounds(file, column)
    kind = field.field_type
    if isinstance(kind, DateType):
        unit = timedelta(days=1)
    elif isinstance(kind, TimestamptzType):
        unit = timedelta(microseconds=1)
    else:
        raise wrong_type(table, field, "a date or timestamptz")
    with readable_bounds(table):
        return _EPOCH + int(from_bytes(kind, low)) * unit, _EPOCH + int(from_bytes(kind, high)) * unit


def last_times_of_ranges(
    table: Table, files: Iterable[DataFile], place: tuple[str, str | None], column: str, ranges: Sequence[LogRange]
) -> tuple[dict[LogRange, datetime | None], list[LogRange]]:
    """Return the last instant of the rows at some positions of a log, by the bounds of files; and the ranges of which these do not tell.

    Args:
        table: a table of the log.
        files: its files at a snapshot.
        place: the columns of a row's position and of its partition; None where there is one partition only.
        column: the column of instants.
        ranges: the positions, none of them twice.

    Returns:
        By range the last instant, None of one without any; and those of which a file has only a part, or does not say its positions.
    """
    found: dict[LogRange, datetime | None] = dict.fromkeys(ranges)
    open_: set[LogRange] = set()
    by_partition: dict[int, list[LogRange]] = {}
    for one in sorted(ranges):
        by_partition.setdefault(one.partition, []).append(one)
    for file in files:
        (first, last), at = _bounds(table, file, place[0]), _bounds(table, file, place[1])
        for own in (own for partition, own in by_partition.items() if at[0] <= partition <= at[1]):
            for one in own[bisect_right(own, first, key=_until) :]:
                if one.start > last:
                    break
                if not (at[0] == at[1] and one.start <= first and last < one.until):
                    open_.add(one)
                elif (times := times_of_file(table, file, column)) is not None:
                    before = found[one]
                    found[one] = times[1] if before is None else max(before, times[1])
    return {one: at for one, at in found.items() if one not in open_}, sorted(open_)


def _until(one: LogRange) -> int:
    return one.until


def _bounds(table: Table, file: DataFile, column: str | None) -> tuple[int, int]:
    """Return the least and the greatest whole number of a file in a column; 0 without a column, any number where it does not say."""
    if column is None:
        return 0, 0
    field = column_of(table, column)
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    if low is None or high is None:
        return -1, MOST_POSITION
    with readable_bounds(table):
        kind = field.field_type
        assert isinstance(kind, PrimitiveType)
        return int(from_bytes(kind, low)), int(from_bytes(kind, high))


def no_bounds(file: DataFile, column: str) -> InputRefused:
    """Return the refusal of a file that does not say of which time it is."""
    return InputRefused(
        Problem(
            f"{file.file_path} has no bounds for {column}",
            "a source keeps column metrics for its time column; the planner works from metadata alone",
            f"set write.metadata.metrics.column.{column}=full and rewrite the file",
        )
    )


def nulls_of_file(table: Table, file: DataFile, field: NestedField) -> int:
    """Return how many rows of a file have NULL in a column; none of one that does not say, and may have it.

    Raises:
        EnvironmentRefused: if it says nothing of the column, and cannot be read.
    """
    counts = file.null_value_counts or {}
    if field.field_id in counts or not counts or field.initial_default is not None:
        return counts.get(field.field_id, 0)
    with readable_rows(table), stores.opened_by(access_to(table.io.properties)):
        return 0 if _may_have(file.file_path, field.field_id) else file.record_count


@lru_cache(maxsize=100_000)
def _may_have(path: str, field_id: int) -> bool:
    """Return whether a file may have a column, by its footer: one that was written before there was the column has not. Files never change."""
    own = [
        (field.metadata or {}).get(PYARROW_PARQUET_FIELD_ID_KEY)
        for field in stores.footer(path).schema.to_arrow_schema()
    ]
    return None in own or str(field_id).encode() in own
