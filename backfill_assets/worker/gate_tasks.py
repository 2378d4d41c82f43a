"""What the gate of a chunk gets, and what it says: plain data, which travels as `resources.spark.chunk_work` has it.

Put here a field that goes to a worker or comes back. What is done with it is `chunk_gate`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from backfill_assets.declarations.tallies import Tally
from backfill_assets.declarations.target import TargetTable
from backfill_assets.worker.references import import_path_of
from backfill_assets.worker.violations import Violation
from manifests.division import Division
from resources.files.fingerprints import Fingerprint


@dataclass(frozen=True)
class GateSpec:
    """What the files of every chunk of one run are held against.

    `model`, `measure` and `outline` are named `module:attribute`, so that a worker imports them from the same installed
    package. `lineage` has the planned value of each lineage column. `schema` is that of the table (Iceberg JSON) where its
    files are read as readers see them: a column that a file has not yet is NULL. Staged files have every column.
    `parts` says by what a chunk has files of several partitions (source column and transform): their keys may interleave, and
    each staged file lies in one partition.
    `tallies` are what the target's gates have counted. `division` is what the table is divided by beside time. `rewritten` are rows
    that other runs, or other programs, have made: what is in their lineage columns, or not, is theirs to say.
    """

    model: str
    key: tuple[str, ...]
    day_column: str
    lineage: Mapping[str, Any]
    measure: str | None
    outline: str | None = None
    outline_columns: tuple[str, ...] = ()
    schema: str = ""
    parts: tuple[tuple[str, str], ...] = ()
    tallies: tuple[Tally, ...] = ()
    division: Division | None = None
    rewritten: bool = False


@dataclass(frozen=True)
class DigestColumn:
    """A column that a digest is made of: its name and its Iceberg type then, and the name that it has in what is read."""

    name: str
    kind: str
    now: str


@dataclass(frozen=True)
class GateTask:
    """The staged files of one chunk; `rows` as counted from their footers when they were staged.

    `outline` is the path that its outline is written to: a new one each time, so that nothing is ever overwritten. `digest`
    are the columns that its digest is made of, in order: all that the model declares, if none are given. `hour` and `part` are the
    chunk's own, where its table has these.
    """

    chunk: str
    attempt: int
    start: date
    end: date
    paths: tuple[str, ...]
    rows: int
    outline: str = ""
    digest: tuple[DigestColumn, ...] = ()
    hour: int | None = None
    part: str = ""


@dataclass(frozen=True)
class GateResult:
    """What the gate saw of one chunk.

    `measures` are rows of slice columns and sums; `digest` is empty where the rows could not be put in key order;
    `outline` is the path of the outline, empty where none was written; `hashes` are those of the files by path; `sums` are
    those of the number columns, exact, as text; `tallies` those of the spec by name, as `tallying.Counted.as_record` has them.
    """

    chunk: str
    attempt: int
    rows: int
    digest: str
    measures: list[dict[str, Any]]
    violations: list[Violation]
    outline: str = ""
    hashes: Mapping[str, Fingerprint] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    tallies: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def summary(self) -> str:
        """Say in one line what was found."""
        if self.passed:
            return f"{self.rows:,} rows pass every rule"
        return "; ".join(f"{violation.rule}: {violation.count:,}" for violation in self.violations)


def spec_of(target: TargetTable, lineage: Mapping[str, Any], parts: tuple[tuple[str, str], ...] = ()) -> GateSpec:
    """Return what the chunks of a target are held against, with the planned value of each lineage column."""
    return GateSpec(
        model=import_path_of(target.model),
        key=target.key,
        day_column=target.day_column,
        lineage=lineage,
        measure=None if target.measure is None else import_path_of(target.measure),
        outline=None if target.outline is None else import_path_of(target.outline.rows),
        outline_columns=() if target.outline is None else target.outline.columns,
        parts=parts,
        tallies=target.tallies,
        division=target.chunk_values,
    )
