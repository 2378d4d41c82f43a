"""In which part of a divided table a file lies, by what metadata says of it: its partition, or the ends of its values.

Put here what is told of a file without opening it. What a division is, is `manifests.division`'s; which rows a part has, for those
who read or write them.
"""

from __future__ import annotations

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from manifests.division import Division, bucket_name
from resources.lakehouse.metadata import column_of, readable_bounds
from resources.lakehouse.partitions import is_in_buckets

NO_PART = ""
"""The part of a file all of whose rows lie in none: their column is NULL."""
_WHOLE = 16
"""Bounds of texts may be cut after so many characters: a shorter one is a value."""


def part_of_file(table: Table, division: Division, file: DataFile) -> str | None:
    """Return the part that all rows of a file lie in; None where metadata does not say, or it holds rows of several.

    Of values it is the value, whether it is declared or not.
    """
    field = column_of(table, division.column)
    for place, one in enumerate(table.specs()[file.spec_id].fields):
        if one.source_id != field.field_id:
            continue
        value = file.partition[place]
        if division.values and isinstance(one.transform, IdentityTransform):
            return NO_PART if value is None else str(value)
        if is_in_buckets(one.transform, division):
            return NO_PART if value is None else bucket_name(value % division.buckets, division.buckets)
    return _by_bounds(table, division, file)


def known_part(table: Table, division: Division, file: DataFile) -> str | None:
    """Return what `part_of_file` does; None as well where readers find no column that the table is divided by."""
    return part_of_file(table, division, file) if division.column in table.schema().column_names else None


def _by_bounds(table: Table, division: Division, file: DataFile) -> str | None:
    """Return the value of a file that has one alone, by the ends of its column."""
    field = column_of(table, division.column)
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    nulls = (file.null_value_counts or {}).get(field.field_id)
    if not division.values or low is None or low != high or nulls != 0 or not isinstance(field.field_type, StringType):
        return None
    with readable_bounds(table):
        value = str(from_bytes(field.field_type, low))
    return value if len(value) < _WHOLE else None


def lies_in(table: Table, division: Division, parts: tuple[str, ...], file: DataFile) -> bool:
    """Whether all rows of a file lie in one of some parts."""
    return part_of_file(table, division, file) in parts


def may_lie_in(table: Table, division: Division, parts: tuple[str, ...], file: DataFile) -> bool:
    """Whether rows of a file may lie in one of some parts."""
    part = part_of_file(table, division, file)
    return part is None or part in parts
