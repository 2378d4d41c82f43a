"""The instants that records of a topic say themselves, read by the function that the topic declares.

Put here what is done with that function's answers, wherever the records come from. Imported by Spark's Python workers: nothing of PySpark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pyarrow as arrow

from backfill_assets.declarations.places import place
from backfill_assets.declarations.topics import EventTime, KafkaRecord
from manifests.errors import Problem

COLUMN = "event_time"
"""The column of a landed record that has the instant."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,60}")
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
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a product's own kinds of errors are its errors, too
        raise NotTimedError(offset, _raised(error)) from None
    if found is None:
        return None
    try:
        what, utc = _in_utc(found)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - what it returns, and its time zone, may be the product's as well
        what, utc = "returns no instant of the years 1 to 9999 (UTC)", None
    if utc is None:
        raise NotTimedError(offset, what)
    return utc


def _in_utc(found: object) -> tuple[str, datetime | None]:
    """Return what a function has returned as an instant in UTC, or None and why it is none."""
    if not isinstance(found, datetime):
        return f"returns a {_name_of(found)}", None
    if found.utcoffset() is None:
        return "returns a time without a time zone", None
    utc = found.astimezone(UTC)
    if utc.utcoffset() != timedelta(0):
        return f"returns a {_name_of(found)} that is no instant", None
    return "", datetime.combine(utc.date(), utc.time(), UTC)  # of a subclass, what a column has room for


def _raised(error: BaseException) -> str:
    """Say that a function has raised an error: its kind and the line, and not its text, which may quote a record."""
    try:
        at = f" ({where})" if (where := place(error)) else ""
        return f"raises {_name_of(error)}{at}"
    except Exception:  # noqa: BLE001 - an error may lie about itself
        return "raises an error"


def _name_of(thing: object) -> str:
    """Return what a class is called, if that is a name, and not a text that somebody has made one of."""
    name = type(thing).__name__
    return name if _NAME.fullmatch(name) else "value of a class without a name"
