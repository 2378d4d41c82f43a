"""Rows that came late and rows of the future: what a target declares of them by source, and what is refused for it.

Late is a row that came into a source after the snapshot that an accepted chunk was made from, with a time that the chunk reads.
Of the future is a row with a time after the commit of the pinned snapshot. Put here the words and rules; which files have such
rows is looked up by `backfill_assets.planning.late_rows`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum

from manifests.chunks import in_words
from manifests.errors import Problem

FUTURE_GATE = "rows_of_the_future"
"""Run-level gate of every plan that leaves out rows of the future: counts them, source by source."""


class OnLate(StrEnum):
    """What becomes of late rows of accepted chunks."""

    IGNORE = "IGNORE"
    REPORT = "REPORT"
    REFUSE = "REFUSE"


class OnFuture(StrEnum):
    """What becomes of rows of the future."""

    KEEP = "KEEP"
    LEAVE_OUT = "LEAVE_OUT"
    REFUSE = "REFUSE"


@dataclass(frozen=True)
class Timeliness:
    """What a target declares of rows that are not in time, of one source.

    Attributes:
        late: `IGNORE`: nothing is said of them, and whoever restates a chunk takes them in; `REPORT`: the same, and the doctor
            names the chunks; `REFUSE`: an accepted chunk takes in none, so that a run which would is not planned.
        future: `KEEP`: they are rows as all others; `LEAVE_OUT`: they are not read, and a gate counts them; `REFUSE`: a run whose
            days have any is not planned.
    """

    late: OnLate = OnLate.IGNORE
    future: OnFuture = OnFuture.KEEP


AS_OTHERS = Timeliness()
"""Rows that are not in time are rows as all others."""


@dataclass(frozen=True)
class FoundTimes:
    """What of a source is not in time, by the bounds of its files: rows of files with some of the future, and chunks with late rows."""

    future_rows: int = 0
    late: tuple[str, ...] = ()


IN_TIME = FoundTimes()
"""Of a source of which nothing is known to be out of time."""


def newest_in_time(committed_at: datetime, *, has_dates: bool) -> date:
    """Return the last instant, or the last date, that is not of the future: a date may be a day ahead somewhere."""
    return committed_at.date() + timedelta(days=1) if has_dates else committed_at


def timeliness_problems(table: str, declared: Timeliness, found: FoundTimes) -> Iterator[Problem]:
    """Say which rows of a source may not be read for their time."""
    if declared.future is OnFuture.REFUSE and found.future_rows:
        yield Problem(
            f"{table} has rows of the future in the days that are read: files of {found.future_rows:,} rows, by their bounds, "
            "go on after the commit of their snapshot",
            "the target declares that such rows are refused (future=REFUSE)",
            "correct them in the source, or narrow the publish range",
        )
    if declared.late is OnLate.REFUSE and found.late:
        yield Problem(
            f"rows came into {table} after {in_words(found.late)} was accepted, with times that it reads",
            "the target declares that accepted chunks take in no late rows (late=REFUSE)",
            "name the snapshot that was read then (source.snapshotId, or sources); or leave these chunks out of the publish range",
        )
