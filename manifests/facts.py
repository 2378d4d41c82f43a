"""What the planner is told of a target, its source and its references: facts, as plain data.

Put here what is looked up before a plan is made, so that a plan can be made and tested without a catalog. What looks it up is
`backfill_assets.planning.resolve`; the policy's own facts are in `manifests.data_terms`, those of the kinds in `manifests.kinds`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from manifests.chunks import Chunking
from manifests.division import Division, parts_of
from manifests.kinds import Present
from manifests.merge_policy import MergePolicy
from manifests.timeliness import AS_OTHERS, Timeliness


@dataclass(frozen=True)
class FurtherSource:
    """What a target declares of a source beside the first: which of its rows a chunk needs, and whether there may be none.

    `days_before` is None where everything before is read. `for_gates`: whether gates alone look at it, and no transform.
    """

    table: str
    time_column: str
    days_before: int | None
    days_after: int
    may_be_empty: bool
    timeliness: Timeliness = AS_OTHERS
    for_gates: bool = False


@dataclass(frozen=True)
class DeclaredStart:
    """What a target declares of the states that its runs may start from: their table, and its versions that fit each of its own."""

    table: str
    fits: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class TargetContract:
    """What the planner must know of a declared target.

    Attributes:
        table: the target's name.
        chunking: how its partitions are cut.
        transform: the name of its transform; `versions` are those that can be run.
        source: the first table it is computed from; `references` are those read beside it, `sources` the further sources.
        warm_up_days: days before the publish range that the transform needs, with the pinned references.
        reads_look_back: whether rows before the warm-up are read as well (few columns of them).
        gates: the run-level gates it declares; `tolerances` are their names and default values.
        required_gates: those of the gates that no manifest can leave out.
        entity: the source and target column whose values a merge recomputes whole; None where it cannot be merged into.
        version_column: the target column that says which of two rows of a key is newer.
        has_corrections: whether it has a corrections table.
        timeliness: what is declared of rows of the first source that are not in time.
        published_gates: those that a reconciliation can hold published rows against.
        rows_say_why: whether its rows have the reason of their run.
        first_chunk: key of the first chunk it can have, and `last_chunk` of the last; None for no limit.
        division: what it is divided by beside time; None where it is not.
        merge_policy: what becomes of history that meets what LIVE wrote; None where it declares none. `live_from` is the first day
            that LIVE owns, where that is declared.
        start: the states that its runs may start from; None where they begin with the first row.
    """

    table: str
    chunking: Chunking
    transform: str
    versions: tuple[str, ...]
    source: str
    references: tuple[str, ...]
    warm_up_days: int
    reads_look_back: bool
    gates: tuple[str, ...]
    tolerances: Mapping[str, float]
    first_chunk: str | None = None
    last_chunk: str | None = None
    required_gates: tuple[str, ...] = ()
    entity: str | None = None
    version_column: str = "produced_at"
    has_corrections: bool = False
    published_gates: tuple[str, ...] = ()
    rows_say_why: bool = False
    summed: tuple[str, ...] = ()
    division: Division | None = None
    sources: tuple[FurtherSource, ...] = ()
    timeliness: Timeliness = AS_OTHERS
    merge_policy: MergePolicy | None = None
    live_from: date | None = None
    start: DeclaredStart | None = None

    def parts(self, values: Sequence[str] | None) -> tuple[str, ...]:
        """Return the parts that each time is cut into: those of a manifest's `values`, or all; none where there are no parts."""
        return parts_of(self.division, values)


@dataclass(frozen=True)
class SourceFile:
    """One data file of the pinned source, from its metadata; days are UTC, and inclusive."""

    rows: int
    bytes: int
    first_day: date
    last_day: date


@dataclass(frozen=True)
class SourceState:
    """A source at the snapshot that the run will read; `has_dates` where its rows have days, and no instants."""

    table: str
    snapshot_id: int
    committed_at: datetime
    files: tuple[SourceFile, ...]
    has_dates: bool = False


@dataclass(frozen=True)
class AcceptedReference:
    """A snapshot of a reference table that a person has accepted, and the run that it was accepted with."""

    snapshot_id: int
    run_id: str


@dataclass(frozen=True)
class ReferenceState:
    """What is known of one reference table: its newest snapshot, its named versions, and the accepted runs' pins."""

    table: str
    current: int | None
    snapshots: frozenset[int]
    versions: Mapping[str, int]
    recorded: frozenset[int] = frozenset()
    """Snapshots with which the runs accepted today in the publish range were made."""
    taken_back: frozenset[str] = frozenset()
    """Versions whose load was undone."""
    accepted: tuple[AcceptedReference, ...] = ()
    """What people have accepted, the latest first."""


@dataclass(frozen=True)
class BaseState:
    """What a publish mode must know of the tables at the plan's base, and what lies beside live.

    Attributes:
        rows_in_scope: rows in files of the publish range.
        files_beyond: files, in words, that hold rows of the publish range and of other days; or of more than one of its
            chunks, where chunks are compared with what the target holds of them.
        refs: names of its tags and branches.
        source_snapshots: the snapshots in the history of its source.
        corrections_snapshot_id: the current snapshot of its corrections table.
        complete_until: the day of its watermark, and `complete_at` the commit of the source snapshot that it was complete
            with; None where there is none.
        accepted: keys of the chunks that an accepted run holds.
        live_at: commit of the newest source snapshot that the runs accepted in the publish range were made from, if LIVE has
            ever published there; else None.
        held_at: the same, whoever has published there.
        complete_sources, held_sources: the same commits of the sources beside the first, by table: of those that it was complete
            with, and of those that were read for what is held in the publish range.
        present: what the kinds of runs are held against; None where nothing was looked up.
        schemas: the id of the schema of each table that the run reads or writes.
    """

    rows_in_scope: int = 0
    files_beyond: tuple[str, ...] = ()
    refs: frozenset[str] = frozenset()
    source_snapshots: frozenset[int] = frozenset()
    corrections_snapshot_id: int | None = None
    complete_until: date | None = None
    complete_at: datetime | None = None
    accepted: frozenset[str] = frozenset()
    live_at: datetime | None = None
    held_at: datetime | None = None
    present: Present | None = None
    schemas: Mapping[str, int] = field(default_factory=dict)
    complete_sources: Mapping[str, datetime] = field(default_factory=dict)
    held_sources: Mapping[str, datetime] = field(default_factory=dict)
