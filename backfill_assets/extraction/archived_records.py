"""Records of a topic that lie in Parquet files: what offsets these have, and how a worker copies some of them.

Put here what is known of a file of an archive. Which of its offsets are landed is `ingestion.archived_topics`'. A file is read batch by
batch; one whose rows do not lie in the order of their offsets is read once for each part of them that is sorted. Imported by Spark's
Python workers: nothing of PySpark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from backfill_assets.declarations.schema import polars_type
from backfill_assets.declarations.topics import TIME_TYPES, EventTime, KafkaRecord
from backfill_assets.extraction import event_times
from backfill_assets.extraction.record_files import RecordFiles
from backfill_assets.worker.columns import UNREADABLE
from backfill_assets.worker.file_batches import batches_of, bytes_of, rows_of_bytes
from backfill_assets.worker.violations import READ_RULE, Violation, require_read, unreadable
from manifests.errors import Problem
from manifests.log_ranges import LogRange
from resources.files import stores

_RULE = "an archive has records as they are landed: the columns of `ba.TopicRecord`, but for load_id"
_FIX = "correct the archive, or write it anew; nothing was landed"
_ROWS, _SLICE_BYTES = 10_000, 16 << 20
"""Rows that are written at once, and bytes of them."""
_SORTED_BYTES = 64 << 20
"""Bytes of the rows that are sorted at once, of a file whose rows do not lie in the order of their offsets."""
_OFFSETS = 2_000_000
"""Offsets that are looked at together for whether one is there twice."""
_BUCKETS = 65_536
"""In how many like parts of a range its records are counted."""
_UNREADABLE = (*UNREADABLE, arrow.ArrowException, UnicodeDecodeError)
"""What reading a file raises that is damaged: names of its columns may be no text either."""
_MOST_PARTITIONS, _MOST_OFFSETS = 2**31 - 1, 2**63 - 2
_UNITS = {"ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799
"""The seconds of the years 1 to 9999, which Iceberg and Python can both write."""
_LOAD, _PARTITION, _OFFSET = "load_id", "log_partition", "log_offset"
_PLACE = (_PARTITION, _OFFSET)
_OWN = frozenset({_LOAD, event_times.COLUMN})
"""Columns that a landing writes itself, whatever an archive has of that name."""


@dataclass(frozen=True)
class ArchivedFile:
    """A file of an archive: its offsets, a range for each partition that it has, from its first record to its last."""

    path: str
    ranges: tuple[LogRange, ...]


@dataclass(frozen=True)
class CopyTask:
    """Ranges of a file to copy; `chunk` is the file."""

    chunk: str
    ranges: tuple[LogRange, ...]
    folder: str
    load_id: str


@dataclass(frozen=True)
class Copied:
    """What was copied of one range of a file. Times are microseconds since 1970, None without a record.

    `unreadable` says why a part of the file cannot be read, `unread` why it could not be just now, `refused` to which record the
    topic's `event_time` has no answer; empty where all is well. `untimed` is how many records it found no instant in.
    """

    chunk: str
    partition: int
    start: int
    until: int
    files: tuple[str, ...]
    rows: int
    first_time: int | None
    last_time: int | None
    unreadable: str = ""
    unread: str = ""
    refused: str = ""
    untimed: int = 0


class _UnreadablePartError(Exception):
    """A part of a file cannot be read, whatever its first rows say: it is damaged, or could not be read just now."""

    def __init__(self, found: Violation) -> None:
        super().__init__(found.sample[0]["error"])
        self.is_proven = found.rule == READ_RULE


def files_below(place: Path) -> list[str]:
    """Return the Parquet files that a place is, or has below it, in order."""
    return [str(place)] if place.is_file() else sorted(str(one) for one in place.rglob("*.parquet") if one.is_file())


def looked_at(path: str, schema: Schema) -> ArchivedFile | Problem:
    """Return which offsets a file has, or why it is no file of an archive of a table with such columns.

    Raises:
        EnvironmentRefused: if it could not be read just now.
    """
    kinds = {field.name: polars_type(field.field_type) for field in schema.fields if field.name not in _OWN}
    try:
        own = pl.scan_parquet(stores.ending(path), hive_partitioning=False, glob=False).collect_schema()
        wrong = [name for name, kind in kinds.items() if not _reads_as(own.get(name), kind)]
        if wrong:
            said = ", ".join(f"{name} is {own.get(name, 'missing')}" for name in wrong)
            return Problem(f"{path}: {said}", _RULE, _FIX)
        return _places_of(path)
    except _UNREADABLE as error:
        require_read([unreadable(path, error)])
        return Problem(f"{path} cannot be read: {type(error).__name__}", "an archive is Parquet files", _FIX)


def _places_of(path: str) -> ArchivedFile | Problem:
    """Return the offsets of a file with the columns of a record, read batch by batch, or what is wrong with them."""
    odd_rows = 0
    found: dict[int, _Places] = {}
    for rows in batches_of(path, (_PARTITION, _OFFSET, "record_time", "record_time_type", "record_headers")):
        odd_rows += rows.select(_odd(rows.schema["record_time"]).sum()).item()
        for (partition,), own in rows.drop_nulls(_PARTITION).group_by(_PARTITION, maintain_order=True):
            found.setdefault(partition, _Places()).add(own[_OFFSET].drop_nulls())
    if odd_rows:
        what = f"{path}: {odd_rows:,} rows have no place, no time type or no list of headers with names, or a time before year 1 or after 9999"
        return Problem(what, _RULE, _FIX)
    ranges = {partition: LogRange(partition, own.first, own.last + 1) for partition, own in sorted(found.items())}
    twice = sum(_repeated(path, one) for one in ranges.values() if not found[one.partition].ascending)
    if twice:
        return Problem(f"{path}: {twice:,} offsets are there more than once", "a record has one offset", _FIX)
    return ArchivedFile(path, tuple(ranges.values()))


def _odd(time: pl.DataType) -> pl.Expr:
    """Return which rows are no records: without a place that a topic may have, a time that can be written, or their headers."""
    assert isinstance(time, pl.Datetime)
    unit = _UNITS[time.time_unit]
    at, headers = pl.col("record_time").to_physical(), pl.col("record_headers")
    names = headers.list.eval(pl.element().is_null() | pl.element().struct.field("name").is_null())
    return (
        pl.any_horizontal(
            pl.col(name).is_null() | (pl.col(name) < 0) | (pl.col(name) > most)
            for name, most in ((_PARTITION, _MOST_PARTITIONS), (_OFFSET, _MOST_OFFSETS))
        )
        | ((at < _FIRST_SECOND * unit) | (at > _LAST_SECOND * unit)).fill_null(False)
        | ~pl.col("record_time_type").is_in(TIME_TYPES).fill_null(False)
        | headers.is_null()
        | names.list.any().fill_null(False)
    )


class _Places:
    """What is known of a partition's offsets in a file: the least, the greatest, and whether each is greater than the one before."""

    def __init__(self) -> None:
        self.first, self.last, self.ascending = 1 << 63, -1, True

    def add(self, offsets: pl.Series) -> None:
        """Take in the offsets of the next rows, in the order of the file."""
        if offsets.is_empty():
            return
        own = offsets.to_numpy()
        self.ascending = self.ascending and int(own[0]) > self.last and bool((own[1:] > own[:-1]).all())
        self.first, self.last = min(self.first, int(own.min())), max(self.last, int(own.max()))


def _repeated(path: str, one: LogRange) -> int:
    """Return how many offsets of a range are in a file once more; memory is that of so many offsets."""
    found = 0
    for part in _parts(path, one, _OFFSETS):
        offsets = pl.concat([_offsets(rows, part) for rows in batches_of(path, _PLACE, may_have_rows(part))])
        found += offsets.len() - offsets.n_unique()
    return found


def _parts(path: str, one: LogRange, most: int) -> list[LogRange]:
    """Return a range in parts of about so many records of a file at most, as they lie between its offsets."""
    width = -(-(one.until - one.start) // _BUCKETS)
    counts = np.zeros(_BUCKETS, np.int64)
    for rows in batches_of(path, _PLACE, may_have_rows(one)):
        counts += np.bincount((_offsets(rows, one).to_numpy() - one.start) // width, minlength=_BUCKETS)
    found, start, held = [], one.start, 0
    for bucket in np.flatnonzero(counts):
        if held and held + counts[bucket] > most:
            found.append(LogRange(one.partition, start, one.start + int(bucket) * width))
            start, held = found[-1].until, 0
        held += int(counts[bucket])
    return [*found, LogRange(one.partition, start, one.until)]


def _offsets(rows: pl.DataFrame, one: LogRange) -> pl.Series:
    return rows.filter(_within(one))[_OFFSET].cast(pl.Int64)


def _within(one: LogRange) -> pl.Expr:
    offset = pl.col(_OFFSET)
    return (pl.col(_PARTITION) == one.partition) & offset.is_between(one.start, one.until, closed="left")


def may_have_rows(one: LogRange) -> Callable[[pq.RowGroupMetaData], bool]:
    """Return what tells whether a row group may have rows of a range, by what is written of its least and greatest values."""
    bounds = {_PARTITION: (one.partition, one.partition), _OFFSET: (one.start, one.until - 1)}

    def may_have(group: pq.RowGroupMetaData) -> bool:
        columns = [group.column(number) for number in range(group.num_columns)]
        said = {column.path_in_schema: column.statistics for column in columns if column.path_in_schema in bounds}
        return all(
            own is None or not own.has_min_max or (own.min <= bounds[name][1] and own.max >= bounds[name][0])
            for name, own in said.items()
        )

    return may_have


def _reads_as(own: pl.DataType | None, kind: pl.DataType) -> bool:
    """Whether values of a file's column are those of the table's, whatever the width of a number or the unit of a time."""
    if own is None:
        return False
    if kind.is_integer():
        return own.is_integer()
    if isinstance(kind, pl.Datetime):
        return isinstance(own, pl.Datetime) and own.time_zone is not None
    return own == kind


def copy_files(schema: str, tasks: Iterator[CopyTask], *, event_time: EventTime | None = None) -> Iterator[Copied]:
    """Copy ranges of files, one after the other, each into files of its own, in the order of their offsets.

    Args:
        schema: the table's columns, Iceberg's JSON.
        tasks: what to copy.
        event_time: reads from a record its instant, where the topic declares that.
    """
    table = Schema.model_validate_json(schema)
    kinds = pl.Schema({field.name: polars_type(field.field_type) for field in table.fields if field.name not in _OWN})
    for task in tasks:
        for one in task.ranges:
            rows = _readable(task.chunk, _in_order(task.chunk, one, kinds))
            try:
                yield _copied(rows, one, task, schema_to_pyarrow(table), table.column_names, event_time)
            except event_times.NotTimedError as error:
                yield Copied(
                    task.chunk, one.partition, one.start, one.until, (), 0, None, None, refused=error.problem.what
                )
            except _UnreadablePartError as error:
                said, is_proven = str(error), error.is_proven
                why = (said, "") if is_proven else ("", said)
                yield Copied(task.chunk, one.partition, one.start, one.until, (), 0, None, None, *why)


def _readable(path: str, parts: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the same, and say of what cannot be read that it cannot: what is written meanwhile has errors of its own."""
    while True:
        try:
            rows = next(parts, None)
        except _UNREADABLE as error:
            raise _UnreadablePartError(unreadable(path, error)) from error
        if rows is None:
            return
        yield rows


def _in_order(path: str, one: LogRange, kinds: pl.Schema) -> Iterator[pl.DataFrame]:
    """Yield the rows that a file has of a range in the order of their offsets: as they lie there, or part by part where they do not."""
    places = _Places()
    for rows in batches_of(path, _PLACE, may_have_rows(one)):
        places.add(_offsets(rows, one))
    if places.ascending:
        for rows in batches_of(path, list(kinds), may_have_rows(one)):
            yield rows.filter(_within(one)).cast(kinds)
        return
    for part in _parts(path, one, rows_of_bytes(_SORTED_BYTES, *bytes_of(path))):
        # by Arrow, whose rows are copied: those of Polars would hold every batch that one of them is from
        own = [rows.filter(_within(part)).to_arrow() for rows in batches_of(path, list(kinds), may_have_rows(part))]
        found = pl.from_arrow(arrow.concat_tables(own))
        assert isinstance(found, pl.DataFrame)
        yield found.sort(_OFFSET).cast(kinds)


def _copied(
    parts: Iterator[pl.DataFrame],
    one: LogRange,
    task: CopyTask,
    kinds: arrow.Schema,
    names: Sequence[str],
    event_time: EventTime | None,
) -> Copied:
    order = [name for name in names if "." not in name]
    low = high = None
    count = untimed = 0
    with RecordFiles(task.folder, one.partition, kinds) as files:
        for rows in parts:
            # values that a file has once, for many rows, are whole in each of them from here on
            for part in rows.iter_slices(
                min(_ROWS, rows_of_bytes(_SLICE_BYTES, rows.height, int(rows.estimated_size())))
            ):
                own = part.with_columns(pl.lit(task.load_id).alias(_LOAD))
                if event_time is not None:
                    own = own.with_columns(times := _event_times(event_time, part))
                    untimed += times.null_count()
                whole = own.select(order).to_arrow().cast(kinds)
                files.write(whole, whole.nbytes)
            count += rows.height
            stamps = rows["record_time"].dt.epoch("us").drop_nulls()
            if not stamps.is_empty():
                first, last = int(stamps.to_numpy().min()), int(stamps.to_numpy().max())
                low, high = first if low is None else min(low, first), last if high is None else max(high, last)
    return Copied(
        task.chunk, one.partition, one.start, one.until, tuple(files.paths), count, low, high, untimed=untimed
    )


def _event_times(read: EventTime, rows: pl.DataFrame) -> pl.Series:
    """Return the instants that records say.

    Raises:
        NotTimedError: if the topic's function has no answer to one of them.
    """
    records = (
        (
            row[_OFFSET],
            KafkaRecord(
                row["record_key"],
                row["record_value"],
                tuple((one["name"], one["value"]) for one in row["record_headers"]),
                row["record_time"],
            ),
        )
        for row in rows.iter_rows(named=True)
    )
    return pl.Series(event_times.COLUMN, event_times.event_times(read, records))
