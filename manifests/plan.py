"""A plan: a manifest resolved, as the record that is hashed, approved, stored and executed.

Put here what a plan says, and what can be asked of it alone. How it is made is `manifests.planner`'s; what it is executed by,
`manifests.stages`'. A field that is added gets a default and `LATER`: the hashes of plans on record stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from typing import Any

from manifests.batch_sizes import BatchSizes, cut, rows_of_chunks
from manifests.breaker import PlannedBreaker
from manifests.canonical import LATER, canonical_pieces, reader_of, sha256_of_text
from manifests.chunks import Chunking
from manifests.code_identity import CodeIdentity
from manifests.compaction import CompactionTerms
from manifests.costs import RunCosts
from manifests.data_terms import DataTerms
from manifests.division import Division
from manifests.dry_runs import DryRunTerms
from manifests.estimates import Estimate
from manifests.file_sizes import FileSizes
from manifests.further_sources import PinnedSource, UpstreamRun
from manifests.log_breaks import InheritedBreaks
from manifests.log_pins import PinnedLog
from manifests.merge_policy import MergePolicy
from manifests.model import (
    Acceptance,
    Corrections,
    DayRange,
    Mode,
    OlderVersion,
    OnConflict,
    PublishMode,
    Semantics,
    scope_in_words,
)
from manifests.pace import PlannedPace
from manifests.planned_topics import PlannedTopic
from manifests.timeliness import newest_in_time


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk, and what computing it alone would read."""

    key: str
    index: int
    start: date
    end: date
    reads: Estimate
    hour: int | None = field(default=None, metadata=LATER)
    """Its hour, of a table of hours; `part` is its value or bucket, of a table that is divided beside time."""
    part: str = field(default="", metadata=LATER)
    writes: int | None = field(default=None, metadata=LATER)
    """The rows that the run has written of it that holds it today: about as many are written again; None where nobody knows."""


@dataclass(frozen=True)
class PinnedReference:
    """A reference table at one snapshot, and why that one."""

    table: str
    snapshot_id: int
    semantics: Semantics
    version: str | None
    accepted_with: str = field(default="", metadata=LATER)
    """The run with which a person accepted this snapshot, where that is why it is read; empty where nobody has accepted one."""


@dataclass(frozen=True)
class PinnedSchema:
    """The columns of a table when the plan was made, by the id of its schema: source and references are read by it."""

    table: str
    schema_id: int


_ENTITIES_SHOWN = 5


@dataclass(frozen=True)
class ChangedSince:
    """A source beside the first, and the snapshot of it after which rows count as changed."""

    table: str
    snapshot_id: int


@dataclass(frozen=True)
class MergeTerms:
    """What a merge recomputes: the entities with source rows that came after a snapshot, or the named ones.

    `changed_since` is of the first source; `sources` says the same of those beside it. `policy` says what becomes of history that
    meets what LIVE wrote, whose days begin with `cut_line`; None where the target declares none, and of LIVE itself.
    """

    entity: str
    changed_since: int | None
    entities: tuple[str, ...] | None
    version_column: str
    on_older_version: OlderVersion
    sources: tuple[ChangedSince, ...] = field(default=(), metadata=LATER)
    policy: MergePolicy | None = field(default=None, metadata=LATER)
    cut_line: date | None = field(default=None, metadata=LATER)

    def describe(self) -> list[tuple[str, str]]:
        """Say in words what is merged, and what becomes of newer rows."""
        if self.entities is None:
            which = f"each {self.entity} with source rows that came after snapshot {self.changed_since}"
            which += "".join(f", or after snapshot {one.snapshot_id} of {one.table}" for one in self.sources)
        else:
            shown = ", ".join(self.entities[:_ENTITIES_SHOWN])
            more = f" and {len(self.entities) - _ENTITIES_SHOWN:,} more" if len(self.entities) > _ENTITIES_SHOWN else ""
            which = f"{len(self.entities):,} of {self.entity}: {shown}{more}"
        older = {
            OlderVersion.REFUSE: "the run fails",
            OlderVersion.KEEP: "that row stays",
            OlderVersion.OVERWRITE: "that row is overwritten",
        }
        newer = f"{older[self.on_older_version]} ({self.on_older_version})"
        said = [("merges", which), (f"where a row has a newer {self.version_column}", newer)]
        return said if self.policy is None else [*said, ("where history meets LIVE", self.policy.describe())]


@dataclass(frozen=True)
class ConflictTerms:
    """What becomes of the run when part of its scope has changed since the plan; None in a plan means: it is refused."""

    on_conflict: OnConflict
    max_replans: int
    wait_minutes: int

    def describe(self) -> str:
        """Say in words what becomes of the run."""
        match self.on_conflict:
            case OnConflict.REPLAN:
                return f"those chunks are planned anew, at most {self.max_replans} time(s) (REPLAN)"
            case OnConflict.WAIT:
                return f"the run waits for up to {self.wait_minutes:,} minutes for the other change to be undone (WAIT)"
        return "the run is refused (REFUSE)"


def references_in_words(pins: Iterable[tuple[str, str | None, int]]) -> str:
    """Return reference tables, each with the name of its version, if it has one, and its snapshot, in the order of their names."""
    return "; ".join(
        f"{table} {version or 'unnamed'} (snapshot {snapshot})" for table, version, snapshot in sorted(pins)
    )


@dataclass(frozen=True)
class Plan:
    """A manifest resolved: everything that decides the output of the run, and nothing else.

    `publish_range` is what may change; `input_range` is read; both are days, inclusive. `read_from` (inclusive) and
    `read_until` (exclusive) are the instants of the pinned read. `base_snapshot_id` is the target's snapshot that the
    publication replaces part of; None for a table that has none.
    """

    run_id: str
    manifest_hash: str
    mode: Mode
    target: str
    chunking: Chunking
    publish_mode: PublishMode
    publish_range: DayRange
    base_snapshot_id: int | None
    source: str
    source_snapshot_id: int
    source_committed_at: datetime
    input_range: DayRange
    warm_up_days: int
    read_from: datetime
    read_until: datetime
    reads: Estimate
    look_back: Estimate | None
    references: tuple[PinnedReference, ...]
    transform: str
    transform_version: str
    chunks: tuple[PlannedChunk, ...]
    gates: tuple[str, ...]
    tolerances: dict[str, float]
    max_chunks_per_job: int
    max_runs_in_parallel: int
    max_rows_expected: int | None
    manual_publish: bool
    code: CodeIdentity
    configuration_hash: str
    run_clock: datetime
    merge: MergeTerms | None = field(default=None, metadata=LATER)
    version: str | None = field(default=None, metadata=LATER)
    acceptance: Acceptance | None = field(default=None, metadata=LATER)
    corrections: Corrections | None = field(default=None, metadata=LATER)
    corrections_base_snapshot_id: int | None = field(default=None, metadata=LATER)
    conflict: ConflictTerms | None = field(default=None, metadata=LATER)
    source_ends: date | None = field(default=None, metadata=LATER)
    """The last day the source knows, where that is before the end of the publish range."""
    policy: str | None = field(default=None, metadata=LATER)
    """Hash of the policy that was in force."""
    data: DataTerms | None = field(default=None, metadata=LATER)
    """What the run may not see of its source; None: it may see everything."""
    schemas: tuple[PinnedSchema, ...] = field(default=(), metadata=LATER)
    """Of each table that the run reads or writes; none in plans of an earlier version."""
    reason: str | None = field(default=None, metadata=LATER)
    """Why, from the manifest, where the target's rows say it themselves; else the manifest alone does."""
    division: Division | None = field(default=None, metadata=LATER)
    """What the target is divided by beside time."""
    values: tuple[str, ...] | None = field(default=None, metadata=LATER)
    """The values or buckets that may change, where not all of them may."""
    sources: tuple[PinnedSource, ...] = field(default=(), metadata=LATER)
    """The sources beside the first, each at its snapshot."""
    upstream: tuple[UpstreamRun, ...] = field(default=(), metadata=LATER)
    """Where the first source is a target itself, the runs that held the chunks that are read."""
    leaves_out_future: bool = field(default=False, metadata=LATER)
    """Whether rows of the first source with a time after the commit of its snapshot are not read."""
    source_has_dates: bool = field(default=False, metadata=LATER)
    """Whether rows of the first source have days, and no instants."""
    output_checked: bool = field(default=False, metadata=LATER)
    """Whether the transform was asked, when the plan was made, if it returns the declared columns in types that fit."""
    logs: tuple[PinnedLog, ...] = field(default=(), metadata=LATER)
    """Of the sources that are logs, the positions that are read."""
    topics: tuple[PlannedTopic, ...] = field(default=(), metadata=LATER)
    """The topics that its published rows go to as events."""
    inherited_breaks: tuple[InheritedBreaks, ...] = field(default=(), metadata=LATER)
    """Of the sources that are targets themselves, the breaks of the changelogs that they are computed from."""
    pace: PlannedPace | None = field(default=None, metadata=LATER)
    """How fast and when it may go, and how much it may take in all; None: without a limit."""
    breaker: PlannedBreaker | None = field(default=None, metadata=LATER)
    """Past which thresholds it is paused, and its canary."""
    costs: RunCosts | None = field(default=None, metadata=LATER)
    """What it is estimated to take; None where nothing is on record to learn from, and nothing costs or is limited."""
    compaction: CompactionTerms | None = field(default=None, metadata=LATER)
    """Of a compaction, what is rewritten into what; None where rows are computed."""
    dry_run: DryRunTerms | None = field(default=None, metadata=LATER)
    """Why nobody approves it without a dry run of some of its chunks, by the policy; None: anybody does who may."""
    file_sizes: FileSizes | None = field(default=None, metadata=LATER)
    """How large its files become; None where none of those that it writes is published as it is, and in plans of an earlier version."""
    batch_sizes: BatchSizes | None = field(default=None, metadata=LATER)
    """How many rows a batch has; None where its manifest says how many chunks, nothing is computed, and in plans of an earlier version."""

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the plan's canonical JSON."""
        return sha256_of_text(self.to_json())

    def to_json(self) -> str:
        """Return the plan as canonical JSON; `plan_from_json` reads it back."""
        text = "".join(canonical_pieces(self))
        vars(self).setdefault("hash", sha256_of_text(text))  # asked for with it: a plan of many chunks is written once
        return text

    def schema_of(self, table: str) -> int | None:
        """Return the schema that a table had when the plan was made; None if it is not on record."""
        return next((one.schema_id for one in self.schemas if one.table == table), None)

    def log_of(self, table: str) -> PinnedLog | None:
        """Return what is read of a source that is a log; None of any other."""
        return next((one for one in self.logs if one.table == table), None)

    def of_logs(self) -> list[tuple[str, str]]:
        """Say in words which positions of logs are read, and what is not known of them, or of those that its sources are computed from."""
        return logs_in_words(self.logs, self.inherited_breaks)

    def at(self, instant: datetime) -> date:
        """Return an instant at midnight as the first source's time column has it: the instant, or its date."""
        return instant.date() if self.source_has_dates else instant

    @property
    def newest(self) -> date | None:
        """The last instant, or date, of the first source's rows that are read; None where those of the future are as well."""
        if not self.leaves_out_future:
            return None
        return newest_in_time(self.source_committed_at, has_dates=self.source_has_dates)

    @property
    def leaves_out_rows(self) -> bool:
        """Whether the policy has the run leave out rows of one of its sources."""
        return any(
            terms is not None and terms.leaves_out_rows for terms in (self.data, *(one.data for one in self.sources))
        )

    @property
    def source_pins(self) -> list[tuple[str, int]]:
        """Every source with its pinned snapshot, the first one first; without those that had none."""
        further = [(one.table, one.snapshot_id) for one in self.sources if one.snapshot_id is not None]
        return [(self.source, self.source_snapshot_id), *further]

    @property
    def start(self) -> PinnedSource | None:
        """The states that it starts from, among its sources; None of a plan that begins with the first row."""
        return next((one for one in self.sources if one.day is not None), None)

    @property
    def made_of(self) -> list[tuple[str, int]]:
        """The same without the states that it starts from: those have been made of the first source."""
        states = None if self.start is None else self.start.table
        return [(table, snapshot_id) for table, snapshot_id in self.source_pins if table != states]

    @property
    def reference_versions(self) -> str:
        """Each reference table by name with its version and snapshot, as rows say it that tell their whole lineage."""
        return references_in_words((pin.table, pin.version, pin.snapshot_id) for pin in self.references)

    @property
    def derives(self) -> bool:
        """Whether what is published is derived from the computed rows, not those themselves."""
        return self.merge is not None or self.corrections is not None

    @property
    def complete_until(self) -> date:
        """The last day of the publish range that the source knows."""
        return self.source_ends or self.publish_range.end

    @property
    def scope(self) -> str:
        """What may change, in words: the days, and the values or buckets where not all of them may."""
        return scope_in_words(self.publish_range, self.values)

    @property
    def publishes(self) -> bool:
        """Whether the run may ever be published."""
        return self.mode.publishes

    def chunk(self, key: str) -> PlannedChunk:
        """Return the chunk named `key`; KeyError where the plan has none."""
        return self.chunks[self._places[key]]

    def those_of(self, keys: Iterable[str]) -> list[PlannedChunk]:
        """Return its chunks among `keys`, in order; takes what they take, however many chunks it has."""
        places = sorted({self._places[key] for key in keys if key in self._places})
        return [self.chunks[place] for place in places]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {chunk.key: place for place, chunk in enumerate(self.chunks)}

    def batches(self, keys: frozenset[str] | None = None) -> list[tuple[PlannedChunk, ...]]:
        """Return the chunks (only those of `keys`, if given) as batches of one Spark job each, in order."""
        return list(self._batches) if keys is None else self._in_batches(self.those_of(keys))

    @cached_property
    def _batches(self) -> tuple[tuple[PlannedChunk, ...], ...]:
        return tuple(self._in_batches(self.chunks))

    def _in_batches(self, chunks: Sequence[PlannedChunk]) -> list[tuple[PlannedChunk, ...]]:
        places = None if self.pace is None else self.pace.chunks_in_parallel
        return self.cut(chunks, self.max_chunks_per_job if places is None else min(places, self.max_chunks_per_job))

    def cut(self, chunks: Sequence[PlannedChunk], most: int) -> list[tuple[PlannedChunk, ...]]:
        """Return chunks of it in batches of so many at most, and of no more rows than a batch has."""
        sizes = self.batch_sizes
        rows = [0 if sizes is None else self._rows_by_key[one.key] for one in chunks]
        return [tuple(chunks[own]) for own in cut(rows, most, None if sizes is None else sizes.rows)]

    @cached_property
    def _rows_by_key(self) -> dict[str, int]:
        assert self.batch_sizes is not None
        rows = rows_of_chunks(self.chunks, self.reads.rows, self.batch_sizes.rows_a_chunk)
        return {chunk.key: own for chunk, own in zip(self.chunks, rows, strict=True)}

    def of_sizes(self) -> list[tuple[str, str]]:
        """Say in words how large its batches and files are, and why; nothing of a run that computes nothing."""
        if self.mode is Mode.RECONCILIATION:
            return []
        batches = self.batches()
        sizes = sorted({len(batch) for batch in batches})
        of_chunks = f"{sizes[0]:,} chunk(s)" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,} chunks"
        why = f"at most {self.max_chunks_per_job:,} (limits.maxChunksPerJob)"
        why = why if self.batch_sizes is None else self.batch_sizes.describe()
        jobs = f"{len(batches):,} Spark job(s)"
        if len({chunk.part for chunk in self.chunks}) > 1:  # a launch takes each value or bucket by itself
            jobs, of_chunks = f"{jobs} or more", f"at most {sizes[-1]:,} chunk(s)"
        said = [("batches", f"{jobs} of {of_chunks}: {why}")]
        return said if self.file_sizes is None else [*said, ("files", self.file_sizes.describe())]


def read_until(plan: Plan, source: PinnedSource) -> date:
    """Return until when (exclusive) a plan reads rows of a further source: a date, or an instant."""
    return source.window(plan.publish_range.start, plan.publish_range.end)[1]


def logs_in_words(logs: Iterable[PinnedLog], inherited: Iterable[InheritedBreaks]) -> list[tuple[str, str]]:
    """Say in words what a plan keeps of logs, as pairs of a name and what is said of it."""
    return [pair for one in logs for pair in one.describe()] + [pair for one in inherited for pair in one.describe()]


def logs_of(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the same of a plan that is plain data, as a bundle has it.

    Raises:
        ValueError: if that is not what a plan keeps of logs.
    """
    kept = reader_of(tuple[tuple[PinnedLog, ...], tuple[InheritedBreaks, ...]])
    return logs_in_words(*kept.validate_python((plan["logs"], plan["inherited_breaks"])))


def plan_from_json(text: str) -> Plan:
    """Read back a plan that `Plan.to_json` wrote."""
    return reader_of(Plan).validate_json(text)
