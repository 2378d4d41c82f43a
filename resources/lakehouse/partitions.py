"""How a table is partitioned, beside how it is cut into chunks: which parts of a chunk lie in files of their own.

A table has the partitions it has: those that `backfill init` gives it, or others that whoever made it has chosen. A staged file
lies in one chunk and in one partition. Put here what follows from a partition spec alone. How rows are brought into files is
`backfill_assets.staging`'s; whether the rows of a file do lie in one partition, the gate's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.partitioning import PartitionField, PartitionSpec, partition_record_value
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DoubleType, FloatType

from manifests.chunks import Chunking
from manifests.division import Division
from manifests.errors import Problem

WRITTEN_FORMAT = 2
"""The newest format of Iceberg's tables that PyIceberg writes."""
SPEC_IN_PATH = "part"
"""Name of the folder in a staged file's path that has its partition spec, where a chunk has files of several partitions."""
_MOST_KNOWN = 10_000
"""Ends of a partition field that are kept: files of one part of a table have the same ones again and again."""
_WITHIN: dict[Chunking, tuple[type, ...]] = {
    Chunking.YEAR: (YearTransform,),
    Chunking.MONTH: (MonthTransform, YearTransform),
    Chunking.WEEK: (),
    Chunking.DAY: (DayTransform, MonthTransform, YearTransform),
    Chunking.HOUR: (HourTransform, DayTransform, MonthTransform, YearTransform),
    Chunking.WHOLE: (),
}
"""By chunking: the transforms of the day column that all rows of a chunk have one value of."""


def parts_of_chunks(
    table: Table, column: str, chunking: Chunking, division: Division | None = None
) -> tuple[tuple[str, str], ...]:
    """Return by what the rows of one chunk may lie in several partitions: source column and transform, as Iceberg writes it.

    Args:
        table: the table, of whose current spec it is asked.
        column: the column by which rows belong to chunks.
        chunking: how they do.
        division: what the table is divided by besides. A bucket is one of these parts all the same: nothing but the folder says
            under which spec a file of it was written.
    """
    schema = table.schema()
    found = []
    for field in _fields(table.spec()):
        name = schema.find_column_name(field.source_id) or ""
        if name == column and _is_within(field, schema, chunking):
            continue
        is_value = division is not None and division.has_values and name == division.column
        if is_value and isinstance(field.transform, (IdentityTransform, TruncateTransform)):
            continue
        found.append((name, str(field.transform)))
    return tuple(found)


def is_divided(table: Table, division: Division) -> bool:
    """Whether metadata says of each new file in which part of a division it lies: by the table's current spec, of ranges by bounds."""
    if division.bounds:
        return True
    schema = table.schema()
    for field in _fields(table.spec()):
        if schema.find_column_name(field.source_id) != division.column:
            continue
        if division.has_values and isinstance(field.transform, IdentityTransform):
            return True
        if is_in_buckets(field.transform, division):
            return True
    return False


def is_in_buckets(transform: Any, division: Division) -> bool:
    """Whether the buckets of a partition are those of a division, or finer: a bucket of 16 lies in one of 8."""
    return bool(
        division.buckets and isinstance(transform, BucketTransform) and transform.num_buckets % division.buckets == 0
    )


def _is_within(field: PartitionField, schema: Schema, chunking: Chunking) -> bool:
    """Whether all rows of a chunk have one value of a partition field of the day column."""
    is_date = isinstance(schema.find_field(field.source_id).field_type, DateType)
    if chunking is Chunking.DAY and is_date and isinstance(field.transform, IdentityTransform):
        return True
    return isinstance(field.transform, _WITHIN[chunking])


def partition_problems(table: Table) -> list[Problem]:
    """Say by what a table is partitioned that no file can be written for."""
    schema, name = table.schema(), ".".join(table.name())
    problems = []
    for field in _fields(table.spec()):
        column = schema.find_column_name(field.source_id)
        if isinstance(field.transform, UnknownTransform):
            what = f"{name} is partitioned by {column} with {field.transform!r}, which is not known here"
        elif column is not None and isinstance(schema.find_field(field.source_id).field_type, FloatType | DoubleType):
            what = f"{name} is partitioned by {field.transform}({column}), a column of floating point"
        elif column is None or "." in column:
            what = f"{name} is partitioned by {column or f'the field {field.source_id}'}, which is no column of its own"
        else:
            continue
        rule = (
            "rows are written by the table's partitions: identity, bucket, truncate, year, month, day or hour of a column that is "
            "no floating-point number"
        )
        problems.append(Problem(what, rule, "change its partitions (PyIceberg: `table.update_spec()`)"))
    return problems


def _fields(spec: PartitionSpec) -> Iterator[PartitionField]:
    return (field for field in spec.fields if not isinstance(field.transform, VoidTransform))


class Partitions:
    """The partitions of staged files, all of whose rows lie in one, by a table's current spec.

    Of ordered transforms the ends of the file's values say which. A bucket says nothing of the values between: that all of them
    lie in one was judged by the gate, under the spec that the file's path names.
    """

    def __init__(self, table: Table) -> None:
        self._schema = table.schema()
        self._fields = [(field, PartitionSpec(field), dict[Any, Any]()) for field in table.spec().fields]
        self._folder = f"/{spec_folder(table)}"

    def of(self, path: str, statistics: DataFileStatistics) -> Record:
        """Return the partition of a file.

        Raises:
            ValueError: if its rows lie in several, if its footer does not say, or if it was written for another spec.
        """
        return Record(*[self._value(path, statistics, *field) for field in self._fields])

    def _value(
        self,
        path: str,
        statistics: DataFileStatistics,
        field: PartitionField,
        alone: PartitionSpec,
        known: dict[Any, Any],
    ) -> Any:
        """Return what a file has of a partition field; `known` are those of the ends that other files had."""
        if isinstance(field.transform, VoidTransform):
            return None
        schema = self._schema
        aggregated = statistics.column_aggregates.get(field.source_id)
        if aggregated is None or aggregated.current_min is None or aggregated.current_max is None:
            if statistics.null_value_counts.get(field.source_id) == statistics.record_count:
                return None
            # without its ends nothing says where the rows lie: under no partition at all, readers would not find them
            raise ValueError(
                f"the footer of {path} does not say the ends of column {schema.find_column_name(field.source_id)}"
            )
        is_bucket = isinstance(field.transform, BucketTransform)
        if is_bucket and self._folder not in path:
            raise ValueError(f"{path} was not written by the partitions that the table has now")
        ends = aggregated.current_min, aggregated.current_max
        if ends in known:
            return known[ends]
        if is_bucket:
            bucket = field.transform.transform(schema.find_field(field.source_id).field_type)
            value = bucket(partition_record_value(field, aggregated.current_min, schema))
        else:
            value = statistics.partition(alone, schema)[0]
        if len(known) < _MOST_KNOWN:
            known[ends] = value
        return value


def spec_folder(table: Table) -> str:
    """Return how the folder of files begins that were written by the partitions that a table has now.

    By what they are, and of which table: an id is given again once the spec that had it is gone.
    """
    parts = [[field.source_id, str(field.transform)] for field in table.spec().fields]
    said = json.dumps([str(table.metadata.table_uuid), parts])
    return f"{SPEC_IN_PATH}={hashlib.sha256(said.encode()).hexdigest()[:16]}-"
