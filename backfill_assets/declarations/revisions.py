"""Which rows of an input table supersede which: tables that keep every version of what was said about a day.

Put here what a product declares of them, and which version of a day is in force. How rows are read is `audit.as_of`'s, which
published days a newer version changes `planning.newer_versions`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

import polars as pl

from backfill_assets.declarations.arguments import said_at_once


@said_at_once
@dataclass(frozen=True)
class Revisions:
    """Where the rows of an input table say what they are about, since when it was said, and to which version they belong.

    All rows of a day that came in one version belong together: a later version replaces every row of an earlier one. The version of
    a day that is in force at an instant is the one that was said last, no later than it: the greatest `system`, then the greatest
    `sequence`, then the last name in `version`. None of the columns is nullable.

    Attributes:
        valid: the column with the day that a row is about (date): valid time.
        system: the column with the instant at which its producer said so (timestamptz): system time.
        version: the column with the name of the version (text), such as the id of a delivered file.
        sequence: a column of whole numbers that orders versions said at the same instant; None where there is none.
    """

    valid: str
    system: str
    version: str
    sequence: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that tell versions apart, in the order of their precedence behind the day."""
        ordered = (self.system, *([] if self.sequence is None else [self.sequence]), self.version)
        return (self.valid, *ordered)


@dataclass(frozen=True, order=True)
class KnownVersion:
    """A version of what was said about a day, and how many rows it has; the later one is the greater one."""

    system: datetime
    sequence: int
    version: str
    rows: int = field(default=0, compare=False)


def in_force(revisions: Revisions, batches: Iterator[Any], until: datetime | None = None) -> dict[date, KnownVersion]:
    """Return the version of each day that is in force at an instant (None: at the end), from Arrow batches of the columns.

    Memory is that of the days, and of one batch.
    """
    found: dict[date, KnownVersion] = {}
    sequence = pl.lit(0) if revisions.sequence is None else pl.col(revisions.sequence)
    for batch in batches:
        frame = pl.from_arrow(batch)
        assert isinstance(frame, pl.DataFrame)
        if until is not None:
            frame = frame.filter(pl.col(revisions.system) <= until)
        said = frame.select(
            day=revisions.valid, system=revisions.system, sequence=sequence.cast(pl.Int64), version=revisions.version
        )
        counted = said.group_by("day", "system", "sequence", "version").agg(rows=pl.len())
        newest = counted.sort("system", "sequence", "version").group_by("day").last()
        for day, *of_version in newest.select("day", "system", "sequence", "version", "rows").iter_rows():
            known = KnownVersion(*of_version)
            before = found.get(day)
            if before == known:
                found[day] = replace(known, rows=before.rows + known.rows)
            elif before is None or known > before:
                found[day] = known
    return found


def of_versions(revisions: Revisions, rows: pl.DataFrame, wanted: Mapping[date, KnownVersion]) -> pl.DataFrame:
    """Return the rows that belong to one version of each day, with their columns in their order."""
    names = {"day": revisions.valid, "system": revisions.system, "version": revisions.version}
    if revisions.sequence is not None:
        names["sequence"] = revisions.sequence
    values: dict[str, list[Any]] = {
        "day": list(wanted),
        "system": [one.system for one in wanted.values()],
        "sequence": [one.sequence for one in wanted.values()],
        "version": [one.version for one in wanted.values()],
    }
    chosen = pl.DataFrame(
        {column: pl.Series(values[name], dtype=rows.schema[column]) for name, column in names.items()}
    )
    return rows.join(chosen, on=list(names.values()), how="semi", maintain_order="left")
