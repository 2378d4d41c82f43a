"""Until when a log is complete: what is declared of records that come late, and the watermark that follows from it.

Put here the words and the rule. The times that a log's records have are `log_pins`'; rows that come into a source after a chunk
was accepted are `timeliness`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum


class Watermark(StrEnum):
    """From what it follows until when a log is complete."""

    BY_PARTITION = "BY_PARTITION"
    BY_TIME = "BY_TIME"
    BY_BATCH = "BY_BATCH"


@dataclass(frozen=True)
class Lateness:
    """How late records of a log may come.

    Attributes:
        watermark: `BY_PARTITION`: the log is complete until the greatest time of the partition that is furthest behind; `BY_TIME`:
            until the greatest time of all partitions; `BY_BATCH`: until the time up to which a load was asked to land.
        disorder: how far behind the greatest time a record may come; the log is complete so much earlier.
        idle: of `BY_PARTITION`, how far a partition may be behind the greatest time of all, until it counts as one that nothing
            comes from and holds nothing back; None: never.
    """

    watermark: Watermark = Watermark.BY_PARTITION
    disorder: timedelta = timedelta(0)
    idle: timedelta | None = None

    def complete_before(self, last: Mapping[int, datetime | None], batch: datetime | None = None) -> datetime | None:
        """Return the instant before which a log is complete; None where nothing is known to be.

        Args:
            last: by partition, the greatest time of its records; None of one without any.
            batch: until when a load was asked to land, if all that it brought is read.
        """
        if self.watermark is Watermark.BY_BATCH:
            return None if batch is None else batch - self.disorder
        known = [one for one in last.values() if one is not None]
        if not known:
            return None
        newest = max(known)
        if self.watermark is Watermark.BY_TIME:
            return newest - self.disorder
        idle = self.idle
        counted = [one for one in last.values() if idle is None or (one is not None and newest - one <= idle)]
        behind = [one for one in counted if one is not None]
        return None if len(behind) < len(counted) else min(behind) - self.disorder

    def describe(self) -> str:
        """Say the declaration in words."""
        idle = "" if self.idle is None else f", idle after {self.idle}"
        return f"{self.watermark}, up to {self.disorder} late{idle}"


def last_complete_day(complete_before: datetime) -> date:
    """Return the last day of UTC that is over before an instant."""
    return complete_before.date() - timedelta(days=1)
