"""In which part of a divided table a value lies.

Put here what is told of one value. What is told of rows is `worker.partitions`', what a division is `manifests.division`'s. Imported by
Spark's Python workers: keep it light.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any

from pyiceberg.types import IcebergType

from manifests.division import Division, bucket_name

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def internal(value: Any) -> Any:
    """Return a value as Iceberg's transforms take it."""
    if isinstance(value, datetime):
        return (value - (_EPOCH if value.tzinfo else _EPOCH.replace(tzinfo=None))) // timedelta(microseconds=1)
    if isinstance(value, time):
        since_midnight = datetime.combine(_EPOCH.date(), value) - datetime.combine(_EPOCH.date(), time())
        return since_midnight // timedelta(microseconds=1)
    return (value - _EPOCH.date()).days if isinstance(value, date) else value


def part_of_value(division: Division, kind: IcebergType, value: Any) -> str | None:
    """Return the part of a divided table that a row with a value lies in; None of one that lies in none."""
    if not division.buckets:
        part = division.part_of(value)
        return part if part in division.names else None
    if value is None:
        return None
    from pyiceberg.transforms import parse_transform  # noqa: PLC0415 - whoever declares a table imports this, few ask for a bucket

    bucket = parse_transform(division.transform).transform(kind)(internal(value))
    return None if bucket is None else bucket_name(bucket, division.buckets)
