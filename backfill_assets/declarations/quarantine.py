"""The quarantine of an input table: where the rows of its loads are kept that its model does not accept.

Put here what such a table looks like, which input tables get one, and how rejected rows are told of in a line. What is wrong
with a row is said by whatever read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import Instant
from manifests.errors import Problem
from manifests.text import visible

WITHHELD = "withheld, because the policy protects columns of this table"
_SHOWN_REASONS = 5
_DETAIL_LENGTH = 100


class Quarantine(pa.DataFrameModel):
    """A row of a delivered file that was not loaded, and why."""

    source_file: str = pa.Field(description="Name of the delivered file.")
    source_row: pl.Int64 = pa.Field(ge=0, description="Number of the row in it, from 0.")
    reason: str = pa.Field(description="The rule that the row breaks, the first of several.")
    detail: str = pa.Field(nullable=True, description="The offending value, in words.")
    record: str = pa.Field(description="The row as it came, as JSON text.")
    ingested_at: Instant = pa.Field(description="When the file was loaded.")


@dataclass(frozen=True)
class FirstRow:
    """The first row of a file that breaks a rule: its number, from 0, and the offending value in words.

    `file` is the name of one of several files of lines: its lines are told by their numbers from 1, as editors do.
    """

    row: int
    detail: str
    file: str = ""

    def in_words(self, reason: str, *, withheld: bool = False) -> str:
        """Say it in a line; a detail that is the reason over again, or is `withheld`, is left out."""
        where = f"{visible(self.file)} line {self.row + 1:,}" if self.file else f"row {self.row:,}"
        if withheld or self.detail in {"", reason}:
            return where
        detail = visible(self.detail)
        return f"{where}: {detail if len(detail) <= _DETAIL_LENGTH else f'{detail[:_DETAIL_LENGTH]}…'}"


@dataclass
class Rejections:
    """How many rows of a file are rejected, by reason, and the first row of each."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, FirstRow] = field(default_factory=dict)

    def add(self, rows: pl.DataFrame, *, row: str, reason: str, detail: str) -> None:
        """Count the rejected rows of a batch, given the names of three of its columns; batches come in file order."""
        found = rows.sort(row).group_by(reason, maintain_order=True).agg(pl.len(), pl.first(row), pl.first(detail))
        for why, number, where, what in found.iter_rows():
            self.counts[why] += number
            self.first.setdefault(why, FirstRow(where, what or ""))

    @property
    def total(self) -> int:
        """How many rows are rejected."""
        return self.counts.total()

    def in_words(self, *, withheld: bool) -> str:
        """Return the most frequent reasons, each with its number of rows and its first row; without values if `withheld`."""
        told = [
            f"{reason} ({number:,}, first in {self.first[reason].in_words(reason, withheld=withheld)})"
            for reason, number in self.counts.most_common(_SHOWN_REASONS)
        ]
        more = f"; and {len(self.counts) - _SHOWN_REASONS} more reason(s)" if len(self.counts) > _SHOWN_REASONS else ""
        counted = "" if all(one.file for one in self.first.values()) else "; rows are counted from 0"
        return "; ".join(told) + more + counted


def limit_problems(
    table: InputTable, source: str, reasons: Rejections, rows: int, limit: float, *, withheld: bool
) -> list[Problem]:
    """Say why a load is refused for what of it would be quarantined: too much in all, or for one rule; all reasons at once.

    Args:
        table: the input table.
        source: what is loaded, in words.
        reasons: the rows that would be quarantined.
        rows: all rows of the load.
        limit: the share of them that may be quarantined, 0 to 1.
        withheld: whether values are not shown.
    """
    problems = []
    if reasons.total > limit * rows:
        problems.append(
            Problem(
                f"{source}: {reasons.total:,} of {rows:,} rows ({reasons.total / rows:.1%}) are not rows of {table.name}: "
                f"{reasons.in_words(withheld=withheld)}",
                f"at most {limit:.1%} of a load may be quarantined (setting quarantine_limit)",
                "correct the file, or raise the limit if the rows are rightly unusable",
            )
        )
    for rule, share in table.quarantine_limits.items():
        number = reasons.counts[rule]
        if number > share * rows:
            first = reasons.first.get(rule)
            where = "" if first is None else f", first in {first.in_words(rule, withheld=withheld)}"
            problems.append(
                Problem(
                    f"{source}: {number:,} of {rows:,} rows ({number / rows:.1%}) break the rule '{rule}'{where}",
                    f"at most {share:.1%} of a load of {table.name} may break it (quarantine_limits of its declaration)",
                    "correct the file, or raise the limit of the rule where that is right",
                )
            )
    return problems


def with_quarantines(tables: Iterable[InputTable]) -> list[InputTable]:
    """Return input tables, each followed by the quarantine that it needs and has not declared.

    A reference table has none: it is replaced whole or not at all.
    """
    declared = list(tables)
    served = {table.quarantine_of for table in declared}
    found = []
    for table in declared:
        found.append(table)
        if not (table.is_reference or table.quarantine_of or table.name in served):
            found.append(
                InputTable(
                    f"{table.name}_quarantine",
                    f"Rows of loads of {table.name} that its model does not accept, each with the rule it breaks.",
                    Quarantine,
                    table.owners,
                    quarantine_of=table.name,
                )
            )
    return found
