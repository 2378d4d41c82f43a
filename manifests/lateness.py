"""Until when a log is complete: what is declared of records that come late, and the watermark that follows from it.

Put here the words and the rule. The times that a log's records have are `log_pins`'; rows that come into a source after a chunk
was accepted are `timeliness`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum

from manifests.log_ranges import LogRange


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
            return None if batch is None else _before(batch, self.disorder)
        known = [one for one in last.values() if one is not None]
        if not known:
            return None
        newest = max(known)
        if self.watermark is Watermark.BY_TIME:
            return _before(newest, self.disorder)
        idle = self.idle
        counted = [one for one in last.values() if idle is None or (one is not None and newest - one <= idle)]
        behind = [one for one in counted if one is not None]
        return None if len(behind) < len(counted) else _before(min(behind), self.disorder)

    def describe(self) -> str:
        """Say the declaration in words."""
        idle = "" if self.idle is None else f", idle after {self.idle}"
        return f"{self.watermark}, up to {self.disorder} late{idle}"


@dataclass(frozen=True)
class FalseTime:
    """A time that the log itself contradicts: all that was landed after it is further behind than records may come.

    Attributes:
        range: the positions that have it.
        at: that time, the greatest of them.
        after: the greatest time of what lies behind it in the same partition, furthest behind.
    """

    range: LogRange
    at: datetime
    after: datetime

    def describe(self) -> str:
        """Say it in words."""
        return f"{self.range} has a record of {self.at.isoformat()}, and what was landed after it ends at {self.after.isoformat()}"


def last_times(
    read: Iterable[tuple[LogRange, datetime | None]], disorder: timedelta
) -> tuple[dict[int, datetime | None], tuple[FalseTime, ...]]:
    """Return by partition the greatest time of what is read that can be believed, and the times that cannot.

    Args:
        read: stretches of a log, each with the greatest time of its records; None of one without any.
        disorder: how far behind the greatest time a record may come. A later stretch that is wholly further behind says that the time
            before it is false, or that the log is not as it is declared: that stretch makes nothing complete.
    """
    stretches = sorted(read, key=lambda one: one[0])
    last: dict[int, datetime | None] = {}
    false: list[FalseTime] = []
    for partition in sorted({one.partition for one, _ in stretches}):
        known = [(one.start, at, one) for one, at in stretches if one.partition == partition and at is not None]
        while known:
            begins, at, stretch = max(known, key=lambda one: one[1])
            behind = [time for start, time, _ in known if start > begins and time < _before(at, disorder)]
            if not behind:
                break
            false.append(FalseTime(stretch, at, min(behind)))
            known.remove((begins, at, stretch))
        last[partition] = max((at for _, at, _ in known), default=None)
    return last, tuple(false)


def last_complete_day(complete_before: datetime) -> date:
    """Return the last day of UTC that is over before an instant."""
    return _before(complete_before, timedelta(days=1)).date()


def _before(instant: datetime, time: timedelta) -> datetime:
    """Return the instant so much before another; the first one that there is where there is none before it."""
    first = datetime.min.replace(tzinfo=UTC)
    return instant - time if instant - first >= time else first
