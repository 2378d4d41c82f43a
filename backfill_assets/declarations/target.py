"""How a team declares a table: `TargetTable`, and the vocabulary of the pure functions it names.

Put here what a product writes down. The asset, its checks, the publish asset and its sensor are made from the
declaration elsewhere; nothing here imports Dagster or opens anything. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.arguments import said_at_once
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.schedules import LivePolicy, ReconciliationPolicy, RestatementPolicy
from backfill_assets.declarations.schema import PublishedInFull, dtypes, summed_columns
from backfill_assets.declarations.source_tables import Readers, SourceTable, StartsFrom
from backfill_assets.declarations.sql_transforms import SqlTransform
from backfill_assets.declarations.tallies import (
    ChunkRows,
    ChunkTallies,
    NoTallies,
    Tally,
    every_entity,
    no_frame,
    no_rows,
)
from manifests.chunks import Chunk, Chunking, key_of
from manifests.division import Division
from manifests.errors import Problem
from manifests.facts import TargetContract
from manifests.merge_policy import MergePolicy
from manifests.model import DayRange, Mode
from manifests.timeliness import AS_OTHERS, Timeliness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_LAST_HOUR = datetime(2099, 12, 31, 23, tzinfo=UTC)
"""In the last chunk of a table that does not say which its last one is: the launch dialog offers none that is yet to come."""
ALL_CHUNKS_GATE = "all_chunks_staged"
"""Run-level gate that every target has: each planned chunk is staged and has passed its own gate."""
EXPECTED_ROWS_GATE = "rows_within_expected"
"""Run-level gate that every target has: the run wrote at most the manifest's maxRowsExpected."""
PURITY_GATE = "recomputed_chunks_are_equal"
"""Run-level gate that every target has: some chunks, computed again in other surroundings, have the rows that are staged."""
PLATFORM_GATES = (ALL_CHUNKS_GATE, EXPECTED_ROWS_GATE, PURITY_GATE)
"""The run-level gates that no manifest can leave out."""

PUBLISHED_RULES_GATE = "published_rows_pass_rules"
"""Gate of a reconciliation that every target has: what readers see passes the target's own row rules."""
ACCEPTED_ROWS_GATE = "published_rows_are_accepted"
"""Gate of a reconciliation that every target has: what readers see is what was gated and accepted, row by row."""


@dataclass(frozen=True)
class TransformContext:
    """What a transform may know besides its input frames.

    Attributes:
        run_id: the run.
        mode: the execution mode.
        run_clock: the only "now" there is.
        version: the transform version that was asked for.
        references: the pinned reference frames, by table name.
        publish_range: days that may change, both inclusive.
        chunks: the chunks of this batch; rows of other days are dropped afterwards, or may be left out already.
        slots: the Spark partition that each of these chunks is written from; small chunks share one.
        configuration: what the product was configured with.
    """

    run_id: str
    mode: Mode
    run_clock: datetime
    version: str
    references: Mapping[str, DataFrame]
    publish_range: DayRange
    chunks: tuple[Chunk, ...]
    slots: tuple[int, ...]
    configuration: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Inputs:
    """The pinned input frames of a transform.

    `source` holds the rows of the input range (warm-up included, with a margin of a day on both sides); `look_back` the declared
    look-back columns of every earlier row, or None where there is none to read; `sources`, by table, each further source's window.

    Of a run that starts from a state its rows are in `sources`, by the states' table (else that is not among them: ask with `get`), and
    the other frames have no row that is in it.
    """

    source: DataFrame
    look_back: DataFrame | None
    sources: Mapping[str, DataFrame] = field(default_factory=dict)


Transform = Callable[[Inputs, TransformContext], "DataFrame"]
Tables = Mapping[str, "Mapping[str, pl.DataType] | None"]
"""The columns of every declared table by its name; None of one whose model has none."""


@said_at_once
@dataclass(frozen=True)
class TransformVersion:
    """One version of a transform.

    `clustered`: each chunk of the output comes in one Spark partition, that of the context's `slots`, sorted by the table's
    key, so that it is written as it is. The gate would catch a lie.
    `without` are the columns that the table got after the version: it does not return them, they are NULL in its rows, and its
    digests are made of the others, so that they stay what they were.
    """

    function: Transform
    clustered: bool = False
    without: tuple[str, ...] = ()

    @classmethod
    def sql(cls, module: str, file: str) -> TransformVersion:
        """Return a version that is a file of SQL beside a module: `TransformVersion.sql(__name__, "meter_daily.sql")`."""
        return cls(SqlTransform(module, file))


EXCEPTION_COLUMNS = ("slice", "key", "expected", "found", "what")
"""Columns of a frame of exceptions, all text: slice, key, expected and found are JSON, `what` is in words."""


class Level(StrEnum):
    """What a reconciliation compares."""

    RECORD = "record"
    STATE = "state"
    OUTCOME = "outcome"
    CHANGE = "change"


@said_at_once
@dataclass(frozen=True)
class Finding:
    """What a reconciliation found.

    Attributes:
        passed: whether it agrees.
        summary: what was found, in one line.
        details: more of it, JSON-ready and bounded.
        sample: a few rows that disagree; taken from `exceptions` where those are given.
        asks: where it has not passed, it has not failed either: an owner of the table has to accept what was found, with a
            reason. Where it has passed, this says nothing.
        compared: how many things were held against each other, and `disagreeing` how many of them do not agree; both in
            the unit of the gate (entities, slices, chunks). None where it does not count.
        slices: the failing slices, worst first: their columns, and what was expected and found there.
        exceptions: every row that disagrees, as a frame with the columns of `EXCEPTION_COLUMNS`; asked for only if the
            gate has not passed.
    """

    passed: bool
    summary: str
    details: Mapping[str, Any] = field(default_factory=dict)
    sample: Sequence[Mapping[str, Any]] = ()
    asks: bool = False
    compared: int | None = None
    disagreeing: int | None = None
    slices: Sequence[Mapping[str, Any]] = ()
    exceptions: Callable[[], DataFrame] | None = None


@dataclass(frozen=True)
class ReconciliationContext:
    """What a reconciliation may look at, once every chunk of a run is staged.

    Attributes:
        transform: the context the chunks were computed with (all chunks of the run).
        source: every source row up to the end of the publish range, at the pinned snapshot; of a merge, those of the
            merged entities.
        source_rows: how many rows the source has at that snapshot, of which `source` has a part or all: for how many parts it takes.
        source_last_day: the last day (UTC) the source knows.
        staged: the outlines of the staged chunks, or all their rows where the target declares no outline.
        measures: what the chunk gates measured: rows of slice columns and sums, each with its `chunk`.
        after: the same of the chunks as readers would see them; differs from `measures` where only some entities are
            computed and merged.
        accepted: the same of the version that had been accepted of what the run was planned on; None for a chunk that had none.
        tolerances: by name.
        shared: returns what a function of the context found, under a name; gates that share it have it found once.
        source_time_column: the source's column of the rows' instants.
        rows: returns how many rows readers see of each chunk, before and after; looked up in metadata when called.
        tallies: what the chunk gates have counted for the gates that declare a `Tally`.
        visible: returns every row of the chunks as readers would have them, and of so many days around them those that they
            have at the plan's base; nothing is read until Spark is asked for it.
        entities: returns the entities that a merge computes, as a frame of that column, or None where all are computed.
        target: the declaration of the table.
        sources: by table name, every row of each further source up to the end of its window, at the pinned snapshot.
        tasks: how many tasks run at once: what is compared in parts needs no more of them, unless one would be too large.
    """

    transform: TransformContext
    source: DataFrame
    source_rows: int
    source_last_day: datetime
    staged: DataFrame
    measures: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    accepted: Mapping[str, Sequence[Mapping[str, Any]] | None]
    tolerances: Mapping[str, float]
    shared: Callable[[str, Callable[[ReconciliationContext], Any]], Any]
    source_time_column: str = ""
    rows: Callable[[], Mapping[str, ChunkRows]] = no_rows
    tallies: ChunkTallies = field(default_factory=NoTallies)
    visible: Callable[[int], DataFrame] = no_frame
    entities: Callable[[], DataFrame | None] = every_entity
    target: TargetTable | None = None
    sources: Mapping[str, DataFrame] = field(default_factory=dict)
    tasks: int = 1


def _nothing_against(_target: TargetTable, _tables: Tables) -> Iterator[Problem]:
    yield from ()


@said_at_once
@dataclass(frozen=True)
class Reconciliation:
    """A run-level gate that a product declares.

    `exceptions_limit`: the most rows that are kept of those that disagree; their number is kept whole. `tolerances` are those that
    it brings along, by name with their defaults; the target's own come before them. `needs`: what its check looks for. `mistakes`: what the arguments it was made of cannot be; they are refused with the declaration.
    `tallies`: what the chunk gates are to count for it while they read the files. `against`: says what of it cannot be with
    a target whose columns are known (and those of other tables by name). `files`: those that it reads, which are code of the product.
    """

    name: str
    level: Level
    description: str
    check: Callable[[ReconciliationContext], Finding]
    exceptions_limit: int = 10_000
    tolerances: Mapping[str, float] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    mistakes: tuple[Problem, ...] = ()
    tallies: tuple[Tally, ...] = ()
    against: Callable[[TargetTable, Tables], Iterable[Problem]] = _nothing_against
    files: tuple[Path, ...] = ()


@said_at_once
@dataclass(frozen=True)
class Outline:
    """What the reconciliations look at of a chunk: `columns` of the rows that `rows` leaves of one of its files.

    The chunk gate keeps it beside the staged files while it reads those, so that no run-level gate reads every row again.
    """

    columns: tuple[str, ...]
    rows: Callable[[pl.DataFrame], pl.DataFrame]


@said_at_once
@dataclass(frozen=True)
class CorrectionsTable:
    """Where corrections to a target are appended: its name and its model, which inherits `schema.Corrections`."""

    name: str
    model: type[pa.DataFrameModel]


@said_at_once
@dataclass(frozen=True)
class ColumnOrigin:
    """From which upstream column a column is computed."""

    table: str
    column: str


def no_warm_up(references: Mapping[str, list[dict[str, Any]]]) -> int:
    """Return 0 days: a day's rows depend on that day's input alone."""
    del references
    return 0


@said_at_once
@dataclass(frozen=True)
class TargetTable:
    """A table whose history may be rewritten, as its product declares it.

    Attributes:
        name: `<namespace>.<table>` in the catalog; `description` is what a row is, for people.
        model: pandera model; the only declaration of the columns. Inherits `Published`.
        key: columns that identify a row and order it within its chunk.
        day_column: the column by which rows belong to chunks: of dates, or of instants, whose days are those of UTC.
        chunking: by which part of its day a row belongs to a chunk; `Chunking.WHOLE` of a table without time, which has no day column.
        chunks_from: the first chunk that the table can have; `chunks_until` the last one, that of the end of 2099 if left out. Of
            a table that is divided beside time both are written without the part.
        chunk_values: by what each time of it is divided into chunks, besides: `ByValue`, `ByRange` or `ByBucket`; None: by nothing.
        source: the table it is computed from, whose rows are placed in time by `source_time_column` (timestamptz); completeness,
            LIVE, merges and `entity` go by it. `sources` are those read beside it, each in a window of its own.
        timeliness: what becomes of rows of it that come late, and of rows of the future; `readers` what its rows mean by their
            version. The further sources say of themselves.
        references: reference tables read beside it; `look_back_columns` are needed of every row before the warm-up, empty for none.
        warm_up_days: from the pinned rows of the references to the days needed before the publish range.
        transform: its name, that of the table without its namespace, in small letters, if left out; `versions` are those that can be run.
        measure: from the rows of a file of a chunk to a small frame of slice columns and integer sums; those of files are added up.
        outline: the few rows and columns of a chunk that the reconciliations look at; None if they need all.
        reconciliations: run-level gates.
        tolerances: names and default values of what the reconciliations tolerate.
        diff_tolerances: by column of floating point, up to which difference two values are the same to a diff, which says how many
            are so; every other column, and the digest, are compared exactly.
        owners: users or teams, as Dagster writes them.
        column_origins: column lineage. A column of one origin is a copy of it to the policy: its mask is its, in what is shown.
        configuration: constants of the product that its transform gets; `chunks_per_run` the most chunks one Dagster run takes.
        entity: the column, of source and target, whose values MERGE_BY_KEY recomputes whole, never nullable, nor is the key then; None: no merge.
        version_column: which of two rows of a key is newer.
        corrections: the table for CORRECTION_EVENTS; None: there are none.
        live: what LIVE may do to it; None for a table that has no LIVE. `merge_policy`: what becomes of history that meets its rows.
        reconciled: how its published rows are held against the source on a schedule; None for no schedule.
        restated: what is proposed when the source has newer versions of days that are published; None: nothing is.
        starts_from: the states that its runs may start from; None: each begins with the first row.
        file_size_bytes: how large the files of its runs become, about, unless a manifest says; None: as large as the table's property says.
    """

    name: str
    description: str
    model: type[pa.DataFrameModel]
    key: tuple[str, ...]
    day_column: str = field(default="", kw_only=True)
    chunking: Chunking
    chunks_from: str = field(default="", kw_only=True)
    source: str
    source_time_column: str = field(default="", kw_only=True)
    versions: Mapping[str, TransformVersion]
    owners: tuple[str, ...]
    chunks_until: str = ""
    transform: str = ""
    references: tuple[str, ...] = ()
    warm_up_days: Callable[[Mapping[str, list[dict[str, Any]]]], int] = no_warm_up
    look_back_columns: tuple[str, ...] = ()
    measure: Callable[[pl.DataFrame], pl.DataFrame] | None = None
    outline: Outline | None = None
    reconciliations: tuple[Reconciliation, ...] = ()
    tolerances: Mapping[str, float] = field(default_factory=dict)
    column_origins: Mapping[str, tuple[ColumnOrigin, ...]] = field(default_factory=dict)
    configuration: Mapping[str, Any] = field(default_factory=dict)
    chunks_per_run: int = 240
    entity: str | None = None
    version_column: str = "produced_at"
    corrections: CorrectionsTable | None = None
    live: LivePolicy | None = None
    reconciled: ReconciliationPolicy | None = None
    diff_tolerances: Mapping[str, float] = field(default_factory=dict)
    chunk_values: Division | None = None
    sources: tuple[SourceTable, ...] = ()
    timeliness: Timeliness = AS_OTHERS
    readers: Readers | None = None
    restated: RestatementPolicy | None = None
    merge_policy: MergePolicy | None = None
    starts_from: StartsFrom | None = None
    file_size_bytes: int | None = None

    def __post_init__(self) -> None:
        """Fill in what follows from the other fields."""
        if isinstance(self.transform, str) and isinstance(self.name, str) and not self.transform:
            object.__setattr__(self, "transform", self.name.rpartition(".")[2].lower())
        if isinstance(self.chunks_until, str) and isinstance(self.chunking, Chunking) and not self.chunks_until:
            object.__setattr__(self, "chunks_until", key_of(self.chunking, _LAST_HOUR))

    @property
    def published_gates(self) -> tuple[str, ...]:
        """The gates that a reconciliation can hold published rows against: all but those about a change."""
        own = (item.name for item in self.reconciliations if item.level is not Level.CHANGE)
        return (PUBLISHED_RULES_GATE, ACCEPTED_ROWS_GATE, *own)

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What its gates have counted of each chunk, each once."""
        return tuple(dict.fromkeys(one for item in self.reconciliations for one in item.tallies))

    @property
    def all_tolerances(self) -> dict[str, float]:
        """The tolerances of its gates and its own, by name with their defaults; its own come first."""
        of_gates = {name: value for item in self.reconciliations for name, value in item.tolerances.items()}
        return of_gates | dict(self.tolerances)

    @property
    def has_instants(self) -> bool:
        """Whether rows belong to chunks by an instant's day of UTC, and not by a date."""
        return isinstance(dtypes(self.model).get(self.day_column), pl.Datetime)

    @property
    def reads_whole(self) -> bool:
        """Whether its source is read whole, with the rows that have no time."""
        return not self.window_column

    @property
    def window_column(self) -> str:
        """The column by which rows of the first source are read in a window; "" of a target without time, which reads it whole."""
        return "" if self.chunking is Chunking.WHOLE else self.source_time_column

    @property
    def parts(self) -> tuple[str, ...]:
        """The values or buckets that each of its times is divided into; none where it is not."""
        return () if self.chunk_values is None else self.chunk_values.names

    @property
    def every_source(self) -> dict[str, str]:
        """The time column of each source, by its table: the first one first."""
        return {self.source: self.source_time_column} | {one.table: one.time_column for one in self.sources}

    @property
    def every_read(self) -> tuple[str, ...]:
        """Every table that a run of it may read: sources, references, and states to start from."""
        states = () if self.starts_from is None else (self.starts_from.table,)
        return (*self.every_source, *self.references, *states)

    def readers_of(self, source: str) -> Readers | None:
        """Return what rows of a source mean by their version; None where they all mean the same."""
        return self.readers if source == self.source else {one.table: one.readers for one in self.sources}.get(source)

    def timeliness_of(self, source: str) -> Timeliness:
        """Return what is declared of rows of a source that are not in time."""
        return {one.table: one.timeliness for one in self.sources}.get(source, self.timeliness)

    @property
    def changed_tables(self) -> list[str]:
        """The tables that its runs change."""
        return [name for name, _ in self.models]

    @property
    def models(self) -> list[tuple[str, type[pa.DataFrameModel]]]:
        """The tables that its runs change, each with its model."""
        own = (self.name, self.model)
        return [own] if self.corrections is None else [own, (self.corrections.name, self.corrections.model)]

    @property
    def changes(self) -> str:
        """The table that the changed rows of its runs are put into, if anybody asks for it."""
        return f"{self.name}_changes"

    def without(self, version: str) -> tuple[str, ...]:
        """Return the columns that the table got after a version; none of a version that is not declared."""
        found = self.versions.get(version)
        return () if found is None else found.without

    def contract(self, reference_rows: Mapping[str, list[dict[str, Any]]]) -> TargetContract:
        """Return what the planner must know, with the warm-up that the pinned references ask for."""
        return TargetContract(
            table=self.name,
            chunking=self.chunking,
            transform=self.transform,
            versions=tuple(self.versions),
            source=self.source,
            references=self.references,
            warm_up_days=self.warm_up_days(reference_rows),
            reads_look_back=bool(self.look_back_columns),
            gates=(*PLATFORM_GATES, *(item.name for item in self.reconciliations)),
            tolerances=self.all_tolerances,
            first_chunk=self.chunks_from or None,
            last_chunk=self.chunks_until or None,
            required_gates=PLATFORM_GATES,
            entity=self.entity,
            version_column=self.version_column,
            has_corrections=self.corrections is not None,
            published_gates=self.published_gates,
            rows_say_why=issubclass(self.model, PublishedInFull),
            summed=summed_columns(self.model, self.key),
            division=self.chunk_values,
            sources=tuple(one.contract for one in self.sources),
            timeliness=self.timeliness,
            merge_policy=self.merge_policy,
            live_from=None if self.live is None else self.live.begins_on,
            start=None if self.starts_from is None else self.starts_from.contract,
        )
