"""In which part of a divided table a file lies, by what metadata says of it: its partition, or the ends of its values.

Put here what is told of a file without opening it. What a division is, is `manifests.division`'s; which rows a part has, for those
who read or write them.
"""

from __future__ import annotations

from datetime import date, timedelta

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DateType, IntegerType, LongType, StringType

from manifests.division import Division, bucket_name
from resources.lakehouse.metadata import column_of, readable_bounds
from resources.lakehouse.partitions import is_in_buckets

NO_PART = ""
"""The part of a file all of whose rows lie in none: their column is NULL."""
_EPOCH = date(1970, 1, 1)
_DIVIDED = (StringType, IntegerType, LongType, DateType)
_WHOLE = 16
"""Bounds of texts may be cut after so many characters: a shorter one is a value."""


def part_of_file(table: Table, division: Division, file: DataFile) -> str | None:
    """Return the part that all rows of a file lie in; None where metadata does not say, or it holds rows of several.

    Of values it is the value, whether it is declared or not; of ranges the one that its ends lie in.
    """
    field = column_of(table, division.column)
    is_day = isinstance(field.field_type, DateType)
    for place, one in enumerate(table.specs()[file.spec_id].fields):
        if one.source_id != field.field_id:
            continue
        value = file.partition[place]
        if not division.buckets and isinstance(one.transform, IdentityTransform):
            return division.part_of(_day_at(value) if is_day and isinstance(value, int) else value) or NO_PART
        if is_in_buckets(one.transform, division):
            return NO_PART if value is None else bucket_name(value % division.buckets, division.buckets)
    return _by_bounds(table, division, file)


def known_part(table: Table, division: Division, file: DataFile) -> str | None:
    """Return what `part_of_file` does; None as well where readers find no column that the table is divided by."""
    return part_of_file(table, division, file) if division.column in table.schema().column_names else None


def _by_bounds(table: Table, division: Division, file: DataFile) -> str | None:
    """Return the value of a file that has one alone, or the range of one that lies in it, by the ends of its column."""
    field = column_of(table, division.column)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if division.buckets:
        return None
    if nulls == file.record_count and (division.bounds or division.nulls):
        return division.part_of(None) or NO_PART
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    if low is None or high is None or nulls != 0 or not isinstance(field.field_type, _DIVIDED):
        return None
    with readable_bounds(table):
        ends = [from_bytes(field.field_type, one) for one in (low, high)]
    if isinstance(field.field_type, DateType):
        ends = [_day_at(one) if isinstance(one, int) else one for one in ends]
    if division.bounds:  # an end that was cut lies outside of those of the rows, never inside
        first, last = (division.part_of(one) for one in ends)
        return first if first == last else None
    if ends[0] != ends[1] or (isinstance(ends[0], str) and len(ends[0]) >= _WHOLE):
        return None
    return division.part_of(ends[0])


def _day_at(number: int) -> date:
    return _EPOCH + timedelta(days=number)


def lies_in(table: Table, division: Division, parts: tuple[str, ...], file: DataFile) -> bool:
    """Whether all rows of a file lie in one of some parts."""
    return part_of_file(table, division, file) in parts


def may_lie_in(table: Table, division: Division, parts: tuple[str, ...], file: DataFile) -> bool:
    """Whether rows of a file may lie in one of some parts."""
    part = part_of_file(table, division, file)
    return part is None or part in parts
