"""In which folders the rows of a batch are written: one for each chunk, and in it one for each partition of the table.

Put here how Spark is told where a row belongs, and how it is read back from a path. What a partition spec says is
`resources.lakehouse.partitions`'; which rows there are, `rows`'.
"""

from __future__ import annotations

from dataclasses import dataclass

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
from pyiceberg.types import BinaryType, StringType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.functions import arrow_udf

from backfill_assets.declarations.schema import spark_type
from backfill_assets.declarations.target import TargetTable
from backfill_assets.worker.partitions import partition_values
from manifests.chunks import Chunking
from resources.lakehouse.partitions import SPEC_IN_PATH, parts_of_chunks, spec_folder

CHUNK_FOLDER = "chunk"
_TRUNC = {Chunking.YEAR: "YEAR", Chunking.MONTH: "MM", Chunking.WEEK: "WEEK"}


def first_day_of_chunk(day: Column, chunking: Chunking) -> Column:
    """Return the first day of the chunk that a day (a date, or an instant's in UTC) lies in."""
    return F.to_date(day) if chunking is Chunking.DAY else F.trunc(day, _TRUNC[chunking])


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
    by = parts_of_chunks(table, target.day_column, target.chunking)
    return Parts(by, spec_folder(table), table.schema())


def in_folders(rows: DataFrame, target: TargetTable, chunking: Chunking, parts: Parts) -> DataFrame:
    """Return rows with the names of their folders; sorted where a chunk has several.

    Spark writes a row where its folders say, in the order in which it comes.
    """
    rows = rows.withColumn(CHUNK_FOLDER, first_day_of_chunk(F.col(target.day_column), chunking))
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
