"""Input tables whose rows are a log's: by which columns they have their places in it.

Put here what a product declares of such a table. How records get there is `ingestion`'s; ranges of a log are `manifests.log_ranges`'.
Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from dataclasses import dataclass

from backfill_assets.declarations.arguments import said_at_once
from manifests.lateness import Lateness
from manifests.log_ranges import LogKind

OWN_TIMES = {LogKind.KAFKA: "record_time", LogKind.CHANGELOG: "committed_at"}
"""The column whose times a landing keeps of each range that it brings: of another one, files say what they have."""


@said_at_once
@dataclass(frozen=True)
class LogPlace:
    """Where the rows of an input table say which place of a log they are from. None of the columns is nullable.

    Attributes:
        kind: what wrote the log.
        position: the column of whole numbers (long) with a row's position: its offset, or the LSN of the commit that it is part of.
            Several rows may have one position: they belong together, and no range parts them.
        partition: the column of whole numbers (int) with its partition; None of a log that has one only, which is 0.
        lateness: how late records may come, by which it follows which days are complete; None: nothing is said of that, and every
            day that has a record counts as complete.
        time: the column by which that is judged (timestamptz), if any is said: such as the time of the record, or of the commit.
    """

    kind: LogKind
    position: str
    partition: str | None = None
    lateness: Lateness | None = None
    time: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a row's place, in the order of the log."""
        return (*(() if self.partition is None else (self.partition,)), self.position)
