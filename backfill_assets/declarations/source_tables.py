"""Sources beside the first: which tables they are, by which column their rows have days, and which days of them a chunk needs.

Put here what a team declares of them. What is wrong with a declaration is `checking.source_tables`' to say; what is read of a
pinned one, `manifests.further_sources`'. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from dataclasses import dataclass

from backfill_assets.declarations.arguments import said_at_once
from manifests.facts import FurtherSource
from manifests.timeliness import AS_OTHERS, Timeliness


@said_at_once
@dataclass(frozen=True)
class Window:
    """Which days of a source a chunk needs: so many `before` its first day and `after` its last one.

    `before=None` stands for everything before. Rows of instants come with a day of margin on both sides, for time zones; rows of
    dates come without one. A batch of chunks reads the days of all of them.
    """

    before: int | None = 0
    after: int = 0


EVERYTHING_UNTIL_END = Window(before=None)
"""All rows up to the end of a chunk's last day."""


@said_at_once
@dataclass(frozen=True)
class SourceTable:
    """A source beside the first.

    Attributes:
        table: an input table, or another target, which is read as it is accepted when a run is planned.
        time_column: the column by which its rows have days: of instants, or of dates.
        reads: which days of it a chunk needs.
        may_be_empty: whether a chunk is computed where the source holds no rows in the days that it needs; else such a plan is
            refused, by the bounds of the source's files.
        timeliness: what becomes of rows that come late, and of rows of the future.
    """

    table: str
    time_column: str
    reads: Window = Window()
    may_be_empty: bool = False
    timeliness: Timeliness = AS_OTHERS

    @property
    def contract(self) -> FurtherSource:
        """What the planner must know of it."""
        window = self.reads.before, self.reads.after
        return FurtherSource(self.table, self.time_column, *window, self.may_be_empty, self.timeliness)
