"""The instants that records of a topic say themselves, read by the function that the topic declares.

Put here what is done with that function's answers, wherever the records come from. Imported by Spark's Python workers: nothing of PySpark.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import pyarrow as arrow

from backfill_assets.declarations.places import place
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.topics import EventTime, KafkaRecord
from manifests.errors import Problem

COLUMN = "event_time"
"""The column of a landed record that has the instant."""
_KIND = arrow.timestamp("us", "UTC")
FIX = "correct the function, and land the range again; nothing of it was landed"
RULE = "event_time returns the instant that a record says, with its time zone, or None of a record that has none"


class NotTimedError(Exception):
    """The function of a topic has no answer to a record. No value of the record is told, nor the text of what was raised.

    Attributes:
        offset: the record's.
        problem: what the function did, and what to do.
    """

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset
        self.problem = Problem(f"event_time {what} for the record at offset {offset:,}", RULE, FIX)


def event_times(read: EventTime, records: Iterable[tuple[int, KafkaRecord]]) -> arrow.Array:
    """Return the instants of records, to the microsecond; NULL of those that have none.

    Args:
        read: the topic's `event_time`.
        records: each with its offset.

    Raises:
        NotTimedError: of the first record of which the function raises, or returns what is no instant.
    """
    return arrow.array([_instant(read, offset, record) for offset, record in records], _KIND)


def _instant(read: EventTime, offset: int, record: KafkaRecord) -> datetime | None:
    try:
        found = read(record)
    except ANY_ERROR as error:
        at = f" ({where})" if (where := place(error)) else ""
        raise NotTimedError(offset, f"raises {type(error).__name__}{at}") from error
    if found is None:
        return None
    if not isinstance(found, datetime):
        raise NotTimedError(offset, f"returns a {type(found).__name__}")
    try:
        has_zone = found.tzinfo is not None and found.utcoffset() is not None
        utc = found.astimezone(UTC) if has_zone else None
    except ANY_ERROR as error:  # a time zone may be the product's as well
        raise NotTimedError(offset, "returns an instant that is none of the years 1 to 9999 in UTC") from error
    if utc is None:
        raise NotTimedError(offset, "returns a time without a time zone")
    return datetime.combine(utc.date(), utc.time(), UTC)  # of a subclass, what a column has room for
