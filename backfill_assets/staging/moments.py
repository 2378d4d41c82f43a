"""Days and instants as Spark's literals.

Put here how a moment of Python is said to Spark. Spark's own `lit` takes it through Java's old calendar, which is ten days off
before 1582-10-15; Iceberg, Arrow and Python count by one calendar for all times.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def at(moment: date) -> Column:
    """Return an instant (a `datetime` with a zone) as a timestamp, a date as a date."""
    if isinstance(moment, datetime):
        return F.timestamp_micros(F.lit((moment - _EPOCH) // timedelta(microseconds=1)))
    return F.date_from_unix_date(F.lit((moment - _EPOCH.date()).days))
