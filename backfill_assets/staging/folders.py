"""In which folders the rows of a batch are written: one for each chunk, and in it one for each partition of the table.

Put here how Spark is told where a row belongs, and how it is read back from a path. What a partition spec says is
`resources.lakehouse.partitions`'; which rows there are, `rows`'.

A row whose value no chunk of its time has (it is not declared, or NULL) is put into the first of them, and a row without a day into
the first chunk of the batch, or of its part: the gate of that chunk reads it and refuses it by name. Dropped, nobody would ever hear
of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    YearTransform,
    parse_transform,
)
from pyiceberg.types import BinaryType, IntegerType, StringType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.functions import arrow_udf

from backfill_assets.declarations.schema import iceberg_schema, spark_type
from backfill_assets.declarations.target import TargetTable
from backfill_assets.staging.moments import at
from backfill_assets.worker.partitions import partition_values
from manifests.chunks import EVER, PART, Chunking, Placed, first_instant, key_of, last_instant, part_of, time_of
from manifests.division import MINUS, NULL_PART, NUMBER, Division
from manifests.errors import Problem, TransformRefused
from manifests.staged_file import StagedFile
from resources.lakehouse.partitions import SPEC_IN_PATH, parts_of_chunks, spec_folder

_FOOTER_READERS = 8
MOST_DIGITS = 20
"""Of a whole number of 64 bits, and more."""
CHUNK_FOLDER = "chunk"
"""Name of the folder of a chunk: its first day, and after that its hour and its part, where chunks have these."""
_EPOCH, _THURSDAY = date(1970, 1, 1), 3
"""The day from which Spark counts days, and which day of its week that is, Monday being 0."""
_TRUNC = {Chunking.YEAR: "YEAR", Chunking.MONTH: "MM", Chunking.WEEK: "WEEK"}


def first_day_of_chunk(day: Column, chunking: Chunking) -> Column:
    """Return the first day of the chunk that a day (a date, or an instant's in UTC) lies in."""
    return F.to_date(day) if chunking is Chunking.DAY else F.trunc(day, _TRUNC[chunking])


def number_of(start: date, chunking: Chunking) -> int:
    """Return a number for the chunk of whole days that begins on a day: the one after it has the next."""
    if chunking is Chunking.MONTH:
        return start.year * 12 + start.month
    if chunking is Chunking.YEAR:
        return start.year
    days = start.toordinal() - _EPOCH.toordinal()
    return (days + _THURSDAY) // 7 if chunking is Chunking.WEEK else days


def number_of_chunk(day: Column, chunking: Chunking) -> Column:
    """Return what `number_of` does of the chunk of whole days that a day (a date, or an instant's in UTC) lies in."""
    if chunking is Chunking.MONTH:
        return F.year(day) * 12 + F.month(day)
    if chunking is Chunking.YEAR:
        return F.year(day)
    days = F.unix_date(F.to_date(day))
    return F.floor((days + _THURSDAY) / 7).cast("int") if chunking is Chunking.WEEK else days


def has_plain_chunks(target: TargetTable) -> bool:
    """Whether the chunks of a target are days, or whole days together, and nothing else."""
    return target.chunk_values is None and target.chunking is not Chunking.HOUR


def folder_of(chunk: Placed) -> str:
    """Return the text of a chunk's folder."""
    at = chunk.start.isoformat() if chunk.hour is None else f"{chunk.start}T{chunk.hour:02}"
    return f"{at}{PART}{chunk.part}" if chunk.part else at


def key_in(chunking: Chunking, folder: str) -> str:
    """Return the key of the chunk whose folder has a text.

    Raises:
        ValueError: if it is none of a chunk.
    """
    day, _, hour = time_of(folder).partition("T")
    start = date.fromisoformat(day)
    at = datetime.combine(start, time(int(hour)), UTC) if hour else start
    return key_of(chunking, at, part_of(folder))


def in_chunks(rows: DataFrame, target: TargetTable, chunks: Sequence[Placed]) -> DataFrame:
    """Return the rows that lie in chunks of hours or of parts, each with the text of its chunk's folder."""
    times: dict[tuple[datetime, datetime], list[str]] = {}
    for chunk in chunks:
        times.setdefault((first_instant(chunk), last_instant(chunk)), []).append(chunk.part)
    groups: dict[tuple[str, ...], list[tuple[datetime, datetime]]] = {}
    for (first, last), parts in sorted(times.items()):
        spans = groups.setdefault(tuple(parts), [])
        if spans and spans[-1][1] + _TICK == first:
            spans[-1] = spans[-1][0], last
        else:
            spans.append((first, last))
    day = F.col(target.day_column) if target.day_column else F.lit(None)
    part = None if target.chunk_values is None else part_name(target, F.col(target.chunk_values.column))
    folders = [_folder_in(target, day, part, *group) for group in groups.items()]
    if target.day_column:
        folders += (F.when(day.isNull(), folder) for folder in _without_day(target, part, chunks))
    return rows.withColumn(CHUNK_FOLDER, F.coalesce(*folders)).where(F.col(CHUNK_FOLDER).isNotNull())


_TICK = timedelta(microseconds=1)


def _without_day(target: TargetTable, part: Column | None, chunks: Sequence[Placed]) -> Iterator[Column]:
    """Yield the folders of rows without a day: those of the first chunk of each part."""
    times: dict[datetime, list[str]] = {}
    for name, chunk in {chunk.part: chunk for chunk in sorted(chunks, key=first_instant, reverse=True)}.items():
        times.setdefault(first_instant(chunk), []).append(name)
    for first, parts in times.items():
        day = at(first if target.has_instants else first.date())
        yield _folder_in(target, day, part, parts, [(first, first)])


def _folder_in(
    target: TargetTable,
    day: Column,
    part: Column | None,
    parts: Sequence[str],
    spans: Sequence[tuple[datetime, datetime]],
) -> Column:
    """Return the folder of rows of some times, which have these parts; NULL of a row of other times, or of another part."""
    inside = F.lit(target.chunking is Chunking.WHOLE)
    for first, last in spans if target.day_column else ():
        ends = (first, last) if target.has_instants else (first.date(), last.date())
        inside = inside | day.between(*map(at, ends))
    if target.chunking is Chunking.WHOLE:
        folder = F.lit(EVER[0].isoformat())
    elif target.chunking is Chunking.HOUR:
        folder = F.date_format(day, "yyyy-MM-dd'T'HH")
    else:
        folder = F.date_format(first_day_of_chunk(day, target.chunking), "yyyy-MM-dd")
    if part is not None:
        of_none = part.isNull() | ~part.isin(*target.parts)
        own = F.when(of_none, F.lit(parts[0])).when(part.isin(*parts), part)
        folder = F.concat(folder, F.lit(PART), own)
    return F.when(inside, folder)


def of_parts(source: DataFrame, target: TargetTable, chunks: Sequence[Placed]) -> DataFrame:
    """Return the source rows that chunks of some parts are compared with; all where they have every part.

    All as well where the source has no column by which it could be told: planning refuses a run that is judged so.
    """
    division, parts = target.chunk_values, {chunk.part for chunk in chunks}
    if division is None or parts >= set(target.parts) or division.column not in source.columns:
        return source
    return source.where(part_name(target, F.col(division.column)).isin(*sorted(parts)))


def part_name(target: TargetTable, column: Column) -> Column:
    """Return the name of the part that a row lies in, by the column that its table is divided by; NULL where that is."""
    division = target.chunk_values
    assert division is not None
    kind = iceberg_schema(target.model).find_field(division.column).field_type
    column = column.cast(
        spark_type(kind)
    )  # as it is written: Iceberg's hash of a decimal is not that of a whole number
    if not division.buckets:
        return _value_or_range(division, column)
    bucket = arrow_udf(partition_values(division.transform, kind), spark_type(IntegerType()))(column)  # type: ignore[call-overload]
    width = len(str(division.buckets - 1))
    number = F.lpad(bucket.cast("string"), width, "0")
    return F.concat(F.lit("b"), number, F.lit(f"of{division.buckets}"))  # as `division.bucket_name` writes it


def _value_or_range(division: Division, column: Column) -> Column:
    """Return the value or range that a row lies in, as `Division.part_of` says it."""
    if division.bounds:
        part, names = F.lit(list(division.ranges)[-1]), list(division.ranges)
        for name, bound in reversed(list(zip(names, division.bounds, strict=False))):
            end = division.literal(bound)
            below = column < (at(end) if isinstance(end, date) else F.lit(end))
            part = F.when(below, F.lit(name)).otherwise(part)
    elif division.kind == NUMBER:
        said = column.cast("string")
        part = F.when(column < 0, F.concat(F.lit(MINUS), F.substring(said, 2, MOST_DIGITS))).otherwise(said)
    else:
        part = column.cast("string")
        part = F.when(part != NULL_PART, part)  # no value is taken for the rows without one
    return F.when(column.isNotNull(), part).otherwise(F.lit(NULL_PART if division.nulls else None))


@dataclass(frozen=True)
class Parts:
    """By what the rows of one chunk lie in several partitions of a table, as `parts_of_chunks` has it, and by which spec."""

    by: tuple[tuple[str, str], ...] = ()
    folder: str = ""
    schema: Schema | None = None

    def __bool__(self) -> bool:
        """Whether a chunk has files of several partitions."""
        return bool(self.by)

    @property
    def folders(self) -> tuple[str, ...]:
        """The columns that name the folders of a row, outermost first."""
        return (CHUNK_FOLDER, SPEC_IN_PATH) if self else (CHUNK_FOLDER,)


NO_PARTS = Parts()
"""Of a table whose chunks are its partitions."""


def parts_of(table: Table, target: TargetTable) -> Parts:
    """Return by what the rows of a target's chunks lie in several partitions of its table, as that is today."""
    by = parts_of_chunks(table, target.day_column, target.chunking, target.chunk_values)
    return Parts(by, spec_folder(table), table.schema())


def in_folders(
    rows: DataFrame, target: TargetTable, chunking: Chunking, chunks: Sequence[Placed], parts: Parts
) -> DataFrame:
    """Return rows with the names of their folders, that of the chunk as `in_chunks` has it; sorted where a chunk has several.

    Spark writes a row where its folders say, in the order in which it comes.
    """
    if has_plain_chunks(target):
        first = at(min(chunk.start for chunk in chunks))
        day = F.coalesce(first_day_of_chunk(F.col(target.day_column), chunking), first)
        rows = rows.withColumn(CHUNK_FOLDER, day)
    if not parts:
        return rows
    label = F.concat(F.lit(parts.folder.removeprefix(f"{SPEC_IN_PATH}=")), F.lower(F.hex(_number(parts))))
    return rows.withColumn(SPEC_IN_PATH, label).sortWithinPartitions(*parts.folders, *target.key)


def _number(parts: Parts) -> Column:
    """Return a number that tells partitions apart; that no two share one is the gate's to see, which looks at the rows."""
    assert parts.schema is not None
    values = [_value(parts.schema, column, transform) for column, transform in parts.by]
    # a hash passes over NULL: whether a value is there is hashed as well
    return F.xxhash64(*(one for value in values for one in (value.isNull(), value)))


def _value(schema: Schema, column: str, transform: str) -> Column:
    """Return the partition of a column's values: those of one partition are equal, those of different ones are not."""
    source, kind = F.col(column), schema.find_field(column).field_type
    match parse_transform(transform):
        case IdentityTransform():
            return source
        case HourTransform():
            return F.date_trunc("HOUR", source)
        case DayTransform():
            return F.to_date(source)
        case MonthTransform():
            return F.trunc(source, "MM")
        case YearTransform():
            return F.trunc(source, "YEAR")
        case TruncateTransform() as cut if isinstance(kind, (StringType, BinaryType)):
            return F.substring(source, 1, cut.width)
        case TruncateTransform() | BucketTransform() as parted:
            result = spark_type(parted.result_type(kind))
            return arrow_udf(partition_values(transform, kind), result)(source)  # type: ignore[call-overload,no-any-return]
    raise ValueError(f"no rows can be written by {transform}({column})")


def files_below(
    filesystem: pafs.FileSystem, folder: str, scheme: str, chunking: Chunking, keys: Sequence[str]
) -> dict[str, list[StagedFile]]:
    """List what was written below a folder, by chunk; rows are read from each file's footer.

    Raises:
        FileNotFoundError: if the folder is not there.
        TransformRefused: if it holds other chunks.
    """
    found = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    infos = sorted(
        (
            info
            for info in found
            if info.is_file and info.base_name.endswith(".parquet") and f"/{CHUNK_FOLDER}=" in info.path[len(folder) :]
        ),
        key=lambda info: info.path,
    )

    def staged(info: pafs.FileInfo) -> tuple[str, StagedFile]:
        key = key_in(chunking, info.path[len(folder) :].partition(f"/{CHUNK_FOLDER}=")[2].partition("/")[0])
        with filesystem.open_input_file(info.path) as stream:
            rows = pq.read_metadata(stream).num_rows
        return key, StagedFile(f"{scheme}{info.path}", rows, info.size)

    files: dict[str, list[StagedFile]] = defaultdict(list, {key: [] for key in keys})
    with ThreadPoolExecutor(_FOOTER_READERS) as pool:
        for key, file in pool.map(staged, infos):
            if file.rows:  # Spark may leave a file without rows; it would only cost every later reader
                files[key].append(file)
    unknown = sorted(set(files) - set(keys))
    if unknown:
        raise TransformRefused(
            Problem(f"{scheme}{folder} holds chunks {unknown}", "a batch writes its own chunks only", "report it")
        )
    return dict(files)
