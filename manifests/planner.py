"""From a manifest to a plan: scope, chunks, pins and estimates, as plain data.

Nothing here opens a table: what the planner must know of the tables, the code and the clock is handed to it, so
that a plan can be made and tested without a catalog. What a plan is executed by is `manifests.stages`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from functools import cached_property
from itertools import accumulate, islice

from pydantic import TypeAdapter

from manifests.canonical import LATER, canonical_json, sha256_of
from manifests.chunks import Chunk, Chunking, aligned, cut, first_day, key_of, last_day
from manifests.data_terms import OLD_DATA_GATE, DataTerms, SourceFacts, WantedRead, data_terms
from manifests.errors import PlanRefused, Problem
from manifests.kinds import Present, kind_problems
from manifests.model import (
    Acceptance,
    Conflict,
    Corrections,
    DayRange,
    Kind,
    Mode,
    OlderVersion,
    OnConflict,
    PublishMode,
    ReferenceData,
    RunManifest,
    Sample,
    Semantics,
)
from manifests.policy import Policy, Role
from manifests.reading import manifest_from
from manifests.who_may import request_problems

ZONE_MARGIN = timedelta(days=1)
"""Read beyond the input range on both sides: a local day lies up to 14 hours off the UTC day of the same date."""


_SHOWN_FILES = 10


@dataclass(frozen=True)
class TargetContract:
    """What the planner must know of a declared target.

    Attributes:
        table: the target's name.
        chunking: how its partitions are cut.
        transform: the name of its transform; `versions` are those that can be run.
        source: the one table it is computed from; `references` are those read beside it.
        warm_up_days: days before the publish range that the transform needs, with the pinned references.
        reads_look_back: whether rows before the warm-up are read as well (few columns of them).
        gates: the run-level gates it declares; `tolerances` are their names and default values.
        required_gates: those of the gates that no manifest can leave out.
        entity: the source and target column whose values a merge recomputes whole; None where it cannot be merged into.
        version_column: the target column that says which of two rows of a key is newer.
        has_corrections: whether it has a corrections table.
        published_gates: those that a reconciliation can hold published rows against.
        first_chunk: key of the first chunk it can have, and `last_chunk` of the last; None for no limit.
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


@dataclass(frozen=True)
class SourceFile:
    """One data file of the pinned source, from its metadata; days are UTC, and inclusive."""

    rows: int
    bytes: int
    first_day: date
    last_day: date


@dataclass(frozen=True)
class SourceState:
    """The source at the snapshot that the run will read."""

    table: str
    snapshot_id: int
    committed_at: datetime
    files: tuple[SourceFile, ...]


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
        present: what the kinds of runs are held against; None where nothing was looked up.
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
    present: Present | None = None


_SHORT_HASH = 12


@dataclass(frozen=True)
class ProductCode:
    """Which code a product is: its packages, the distribution that brought them, and what `CodeIdentity` says of its own."""

    name: str
    packages: tuple[str, ...]
    distribution: str | None
    content_hash: str
    lock_hash: str | None
    git_commit: str | None
    dirty: bool

    def __str__(self) -> str:
        return f"product {self.name} {_code_in_words(self)}"


@dataclass(frozen=True)
class CodeIdentity:
    """Which code: the git commit where there is one, and always a hash of the packages' contents.

    `product` is the code of the product that declares the target. Plans that were made before a product had code of its
    own have none: the hash of this package covered it.
    """

    package_version: str
    content_hash: str
    lock_hash: str | None
    git_commit: str | None
    dirty: bool
    product: ProductCode | None = field(default=None, metadata=LATER)

    def __str__(self) -> str:
        return "; ".join([_code_in_words(self), *([str(self.product)] if self.product else [])])

    @property
    def parts(self) -> tuple[CodeIdentity | ProductCode, ...]:
        """This package's code, and the product's."""
        return (self,) if self.product is None else (self, self.product)

    @property
    def is_dirty(self) -> bool:
        """Whether a part is not what its commit says."""
        return any(part.dirty for part in self.parts)

    def is_same(self, other: CodeIdentity) -> bool:
        """Return whether another identity names the same contents; which commits they were checked out from does not count."""
        return [part.content_hash for part in self.parts] == [part.content_hash for part in other.parts]


def _code_in_words(code: CodeIdentity | ProductCode) -> str:
    git = f"git {code.git_commit[:_SHORT_HASH]}" if code.git_commit else "no git"
    return f"{code.content_hash[:_SHORT_HASH]} ({git}{', with uncommitted changes' if code.dirty else ''})"


@dataclass(frozen=True)
class Estimate:
    """What will be read, from Iceberg metadata alone."""

    files: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class PlannedChunk:
    """A chunk, and what computing it alone would read."""

    key: str
    index: int
    start: date
    end: date
    reads: Estimate


@dataclass(frozen=True)
class PinnedReference:
    """A reference table at one snapshot, and why that one."""

    table: str
    snapshot_id: int
    semantics: Semantics
    version: str | None


@dataclass(frozen=True)
class StagedFile:
    """One staged data file; `rows` and `bytes` are read from its footer and its length.

    `sha256` (of all its bytes) and `footer` (of its Parquet footer) are those of the file as its gate read it; empty before
    that, and where the gate could not hash what it read.
    """

    path: str
    rows: int
    bytes: int
    sha256: str = field(default="", metadata=LATER)
    footer: str = field(default="", metadata=LATER)


@dataclass(frozen=True)
class MergeTerms:
    """What a merge recomputes: the entities with source rows that came after a snapshot, or the named ones."""

    entity: str
    changed_since: int | None
    entities: tuple[str, ...] | None
    version_column: str
    on_older_version: OlderVersion


@dataclass(frozen=True)
class ConflictTerms:
    """What becomes of the run when part of its scope has changed since the plan; None in a plan means: it is refused."""

    on_conflict: OnConflict
    max_replans: int
    wait_minutes: int


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

    @cached_property
    def hash(self) -> str:
        """SHA-256 (hex) of the plan's canonical JSON."""
        return sha256_of(self)

    def to_json(self) -> str:
        """Return the plan as canonical JSON; `plan_from_json` reads it back."""
        return canonical_json(self)

    @property
    def derives(self) -> bool:
        """Whether what is published is derived from the computed rows, not those themselves."""
        return self.merge is not None or self.corrections is not None

    @property
    def complete_until(self) -> date:
        """The last day of the publish range that the source knows."""
        return self.source_ends or self.publish_range.end

    @property
    def publishes(self) -> bool:
        """Whether the run may ever be published."""
        return self.mode.publishes

    def chunk(self, key: str) -> PlannedChunk:
        """Return the chunk named `key`; KeyError where the plan has none."""
        return self._by_key[key]

    @cached_property
    def _by_key(self) -> dict[str, PlannedChunk]:
        return {chunk.key: chunk for chunk in self.chunks}

    def batches(self, keys: frozenset[str] | None = None) -> list[tuple[PlannedChunk, ...]]:
        """Return the chunks (only those of `keys`, if given) as batches of one Spark job each, in order."""
        wanted = iter([chunk for chunk in self.chunks if keys is None or chunk.key in keys])
        batches = []
        while batch := tuple(islice(wanted, self.max_chunks_per_job)):
            batches.append(batch)
        return batches


_PLAN = TypeAdapter(Plan)


def plan_from_json(text: str) -> Plan:
    """Read back a plan that `Plan.to_json` wrote."""
    return _PLAN.validate_json(text)


def make_plan(
    manifest: RunManifest,
    *,
    contract: TargetContract,
    source: SourceState,
    references: Mapping[str, ReferenceState],
    base_snapshot_id: int | None,
    code: CodeIdentity,
    configuration_hash: str,
    run_clock: datetime,
    base: BaseState | None = None,
    policy: Policy | None = None,
    facts: SourceFacts | None = None,
) -> Plan:
    """Resolve `manifest` against the tables as they are.

    Args:
        manifest: the contract.
        contract: the declared target it names.
        source: its source, at the snapshot to be read.
        references: the state of each reference table the target reads.
        base_snapshot_id: the target's current snapshot.
        base: what the planner must know of the target there; None where nothing was looked up.
        policy: the policy in force; None: everybody may do everything.
        facts: what the policy must know of source and target; None where it asks nothing of them.
        code: the identity of the running code.
        configuration_hash: hash of the settings that can change the output.
        run_clock: the instant the run takes for "now".

    Raises:
        PlanRefused: with every reason at once.
    """
    problems: list[Problem] = []
    problems += _name_problems(manifest, contract)
    problems += _code_problems(manifest, code)
    publish = manifest.target.publish_range
    problems += _scope_problems(publish, contract, source)
    problems += _mode_problems(manifest, contract, base or BaseState())
    problems += _file_problems(publish, contract, base or BaseState())
    problems += _live_problems(manifest, contract, source, base or BaseState())
    warm_up = contract.warm_up_days
    if manifest.warm_up is not None:
        if manifest.warm_up.days < warm_up:
            problems.append(
                Problem(
                    f"warmUp.days is {manifest.warm_up.days}",
                    f"{contract.table} needs at least {warm_up} days (its longest clock) to be right at the range's edge",
                    "leave warmUp out, or raise it",
                )
            )
        warm_up = max(manifest.warm_up.days, warm_up)
    inputs = DayRange.model_construct(start=publish.start - timedelta(days=warm_up), end=publish.end)
    problems += _source_range_problems(manifest, inputs, source)
    pins, pin_problems = _pin_references(manifest, contract, references)
    problems += pin_problems
    files = _FileIndex(source.files)
    reads = _estimate(files, inputs.start, inputs.end)
    chunks = tuple(_planned(chunk, files, warm_up) for chunk in cut(contract.chunking, publish.start, publish.end))
    if manifest.sample is not None:
        chunks, sample_problems = _sampled(manifest.sample, chunks)
        problems += sample_problems
    limit = manifest.safety.max_rows_expected
    if limit is not None and reads.rows > limit:
        problems.append(
            Problem(
                f"the run would read {reads.rows:,} rows of {source.table}",
                f"safety.maxRowsExpected is {limit:,}",
                "narrow the publish range, or raise the limit if the figure is right",
            )
        )
    terms, needs_publisher = None, False
    if policy is not None:
        problems += request_problems(policy, manifest)
        problems += _kind_problems(manifest, contract, source, base, policy)
        needs_publisher = policy.rule_for(contract.table, manifest.kind).of(Role.PUBLISHER) is not None
    if policy is not None and facts is not None:
        wanted = WantedRead(
            inputs,
            warm_up,
            ZONE_MARGIN,
            contract.chunking,
            lambda day: sum(
                file.rows
                for file in source.files
                if file.first_day < day and (contract.reads_look_back or file.last_day >= inputs.start - ZONE_MARGIN)
            ),
        )
        terms, refusals = data_terms(policy, manifest, facts, wanted, run_clock)
        problems += refusals
    gates = _gates(manifest, contract)
    if terms is not None and terms.leaves_out_rows:
        gates += (OLD_DATA_GATE,)
    if problems:
        raise PlanRefused(problems)
    return Plan(
        run_id=manifest.run_id,
        manifest_hash=manifest.hash,
        mode=manifest.execution_mode,
        target=contract.table,
        chunking=contract.chunking,
        publish_mode=manifest.target.publish_mode,
        publish_range=publish,
        base_snapshot_id=base_snapshot_id,
        source=source.table,
        source_snapshot_id=source.snapshot_id,
        source_committed_at=source.committed_at,
        input_range=inputs,
        warm_up_days=warm_up,
        read_from=_midnight(inputs.start) - ZONE_MARGIN,
        read_until=_midnight(inputs.end + timedelta(days=1)) + ZONE_MARGIN,
        reads=reads,
        look_back=_estimate(files, date.min, inputs.start - ZONE_MARGIN - timedelta(days=1), margin=False)
        if contract.reads_look_back
        else None,
        references=pins,
        transform=contract.transform,
        transform_version=manifest.transform.version,
        chunks=chunks,
        gates=gates,
        tolerances={
            name: float(value)
            for name, value in (*contract.tolerances.items(), *manifest.validation.tolerances.items())
        },
        max_chunks_per_job=manifest.limits.max_chunks_per_job,
        max_runs_in_parallel=manifest.limits.max_runs_in_parallel,
        max_rows_expected=limit,
        manual_publish=manifest.safety.requires_manual_publish or needs_publisher,
        code=code,
        configuration_hash=configuration_hash,
        run_clock=run_clock.astimezone(UTC),
        merge=_merge_terms(manifest, contract),
        version=manifest.target.version,
        acceptance=manifest.target.acceptance,
        corrections=manifest.target.correction_events,
        corrections_base_snapshot_id=None if base is None else base.corrections_snapshot_id,
        conflict=None
        if manifest.conflict == Conflict()
        else ConflictTerms(
            manifest.conflict.on_conflict, manifest.conflict.max_replans, manifest.conflict.wait_minutes
        ),
        source_ends=ends if (ends := max(file.last_day for file in source.files)) < publish.end else None,
        policy=None if policy is None else policy.hash,
        data=terms,
    )


def draft_problems(
    manifest: RunManifest,
    contract: TargetContract,
    source: SourceState | None,
    references: Mapping[str, ReferenceState],
) -> list[Problem]:
    """Return what contradicts its target in a manifest some fields of which are not its author's.

    Only what each field says by itself is looked at: names, pins where `references` are known, the range where `source` is.
    """
    problems = _name_problems(manifest, contract)
    if source is not None:
        problems += _scope_problems(manifest.target.publish_range, contract, source)
    if references:
        problems += _pin_references(manifest, contract, references)[1]
    return problems


def series_of(manifest: RunManifest, chunking: Chunking) -> tuple[RunManifest, ...]:
    """Return the steps of a progressive manifest, in order; the manifest itself where it is not progressive.

    A step is a manifest like any other, with a part of the publish range and a run id that ends in its number.
    """
    if manifest.progressive is None:
        return (manifest,)
    publish = manifest.target.publish_range
    chunks = list(cut(chunking, *aligned(chunking, publish.start, publish.end)))
    size = manifest.progressive.chunks_per_step
    parts = [chunks[first : first + size] for first in range(0, len(chunks), size)]
    data = manifest.model_dump(mode="json", by_alias=True)
    steps = []
    for number, part in enumerate(parts, start=1):
        target = data["target"] | {
            "publishRange": {
                "start": max(part[0].start, publish.start).isoformat(),
                "end": min(part[-1].end, publish.end).isoformat(),
            }
        }
        series = {"of": manifest.run_id, "step": number, "steps": len(parts)}
        changes = {"runId": step_id(manifest.run_id, number), "progressive": None, "series": series, "target": target}
        steps.append(manifest_from(data | changes))
    return tuple(steps)


def step_id(series: str, step: int) -> str:
    """Return the run id of a step of a progressive run."""
    return f"{series}.s{step:03}"


def _sampled(sample: Sample, chunks: tuple[PlannedChunk, ...]) -> tuple[tuple[PlannedChunk, ...], list[Problem]]:
    unknown = sorted(set(sample.chunks) - {chunk.key for chunk in chunks})
    if unknown:
        return chunks, [
            Problem(
                f"sample.chunks names {', '.join(unknown)}",
                f"the publish range has chunks {chunks[0].key} to {chunks[-1].key}",
                "correct the chunk keys",
            )
        ]
    return tuple(chunk for chunk in chunks if chunk.key in sample.chunks), []


def _merge_terms(manifest: RunManifest, contract: TargetContract) -> MergeTerms | None:
    merge = manifest.target.merge
    if merge is None or contract.entity is None:
        return None
    return MergeTerms(
        contract.entity, merge.changed_since, merge.entities, contract.version_column, merge.on_older_version
    )


def _mode_problems(manifest: RunManifest, contract: TargetContract, base: BaseState) -> list[Problem]:
    """Return what a publish mode must refuse already when it is planned."""
    target, problems = manifest.target, []
    publish = target.publish_range
    if target.first_rows_only and base.rows_in_scope:
        problems.append(
            Problem(
                f"{contract.table} holds {base.rows_in_scope:,} rows in files of {publish.start} to {publish.end}",
                f"{target.publish_mode} writes first rows only: never beside those of another run",
                "narrow the publish range to empty chunks, or choose REPLACE_PARTITIONS",
            )
        )
    if target.version is not None and {target.version, f"withdrawn-{target.version}"} & base.refs:
        problems.append(
            Problem(
                f"{contract.table} has a version {target.version} already",
                "a version is never overwritten",
                "give target.version the next name",
            )
        )
    if target.merge is not None:
        since = target.merge.changed_since
        if contract.entity is None:
            problems.append(
                Problem(
                    f"{contract.table} declares no entity",
                    "MERGE_BY_KEY recomputes whole entities",
                    "declare `entity` in the product, or choose REPLACE_PARTITIONS",
                )
            )
        if since is not None and since not in base.source_snapshots:
            problems.append(
                Problem(
                    f"merge.changedSince names snapshot {since}",
                    f"it is a snapshot in the history of {contract.source}",
                    "see the table's snapshots",
                )
            )
    if target.correction_events is not None and not contract.has_corrections:
        problems.append(
            Problem(
                f"{contract.table} declares no corrections table",
                f"{target.publish_mode} are appended to the table that the product declares for them",
                "declare `corrections` in the product, or choose another publishMode",
            )
        )
    return problems


def _file_problems(publish: DayRange, contract: TargetContract, base: BaseState) -> list[Problem]:
    """Return what keeps files of the target from being replaced whole."""
    if not base.files_beyond or base.rows_in_scope:
        return []
    shown = "; ".join(base.files_beyond[:_SHOWN_FILES]) + ("; …" if len(base.files_beyond) > _SHOWN_FILES else "")
    return [
        Problem(
            f"{len(base.files_beyond)} file(s) of {contract.table} may hold days of {publish.start} to {publish.end} and "
            f"others, or of several of its chunks: {shown}",
            "a publication replaces whole files, and nothing outside its publish range may change",
            "rewrite these files by the table's partitions; or widen the publish range to all of their days",
        )
    ]


def _kind_problems(
    manifest: RunManifest, contract: TargetContract, source: SourceState, base: BaseState | None, policy: Policy
) -> list[Problem]:
    """Return what contradicts the kind that the manifest names; nobody's choice of rules is looked at without a policy."""
    if base is None or base.present is None:
        return []
    told_apart = policy.tells_apart(contract.source, contract.table, Kind.RESTATEMENT, Kind.BACKFILL)
    return kind_problems(manifest, base.present, source.snapshot_id, told_apart=told_apart)


def _live_problems(
    manifest: RunManifest, contract: TargetContract, source: SourceState, base: BaseState
) -> list[Problem]:
    """Return what keeps history and LIVE from meeting: a crossed cut line, days between them, older knowledge."""
    problems = _gap_problems(manifest, contract, base)
    publish, cut_line = manifest.target.publish_range, manifest.cut_line
    if cut_line is not None and publish.end >= cut_line + timedelta(days=manifest.overlap_days):
        days = (publish.end - cut_line).days + 1
        problems.append(
            Problem(
                f"target.publishRange ends on {publish.end}, {days} day(s) beyond the cut line {cut_line}",
                f"LIVE owns the days from the cut line on; overlapDays is {manifest.overlap_days}",
                f"end it before {cut_line}, or declare overlapDays: {days} if the overlap is meant",
            )
        )
    is_live = manifest.execution_mode is Mode.LIVE
    newest = base.complete_at if is_live else base.live_at
    if manifest.execution_mode is Mode.RECONCILIATION:
        newest = None  # nothing is replaced
    if newest is not None and source.committed_at < newest:
        held = (
            f"complete with {contract.source}" if is_live else f"published by LIVE in this range from {contract.source}"
        )
        problems.append(
            Problem(
                f"the source snapshot {source.snapshot_id} is of {source.committed_at.isoformat()}",
                f"{contract.table} is {held} as of {newest.isoformat()}: older knowledge never replaces newer",
                "leave source.snapshotId out, so that the current snapshot is read, or narrow the publish range",
            )
        )
    return problems


def _gap_problems(manifest: RunManifest, contract: TargetContract, base: BaseState) -> list[Problem]:
    """Return the days between what is complete and the run, and between the run and its cut line, that nobody covers.

    Only LIVE and runs with a cut line promise to leave none. A step of a series meets the steps before and after it.
    """
    is_live, cut_line, series = manifest.execution_mode is Mode.LIVE, manifest.cut_line, manifest.series
    if not is_live and cut_line is None:
        return []
    publish, one_day = manifest.target.publish_range, timedelta(days=1)
    stretches = []
    if series is None or series.step == 1:
        complete = [last_day(contract.chunking, first_day(contract.chunking, key)) for key in base.accepted]
        since = max((day for day in complete if day < publish.start), default=None)
        if is_live and base.complete_until is not None:
            since = base.complete_until
        if since is not None:
            stretches.append((since + one_day, publish.start - one_day))
    if cut_line is not None and (series is None or series.step == series.steps):
        stretches.append((publish.end + one_day, cut_line - one_day))
    gaps = [gap for first, last in stretches if (gap := _uncovered(contract.chunking, first, last, base.accepted))]
    return [
        Problem(
            f"the days {start} to {end} would be covered by nobody",
            f"{'LIVE' if is_live else 'a run with a cut line'} leaves no days out between it and what is complete in "
            f"{contract.table}, or its cut line",
            "widen target.publishRange over them, or publish them first",
        )
        for start, end in gaps
    ]


def _uncovered(chunking: Chunking, start: date, end: date, accepted: frozenset[str]) -> tuple[date, date] | None:
    """Return the first and last day from `start` to `end` that no accepted chunk holds; None if each is held.

    A chunk that begins before `start` is complete up to there only: its other days are not covered.
    """
    if start > end:
        return None
    chunks = cut(chunking, *aligned(chunking, start, end))
    missing = [chunk for chunk in chunks if chunk.start < start or chunk.key not in accepted]
    return (max(missing[0].start, start), min(missing[-1].end, end)) if missing else None


def _gates(manifest: RunManifest, contract: TargetContract) -> tuple[str, ...]:
    chosen = manifest.validation.gates
    if manifest.execution_mode is Mode.RECONCILIATION:
        return tuple(gate for gate in contract.published_gates if chosen is None or gate in chosen)
    if chosen is None:
        return contract.gates
    return tuple(gate for gate in contract.gates if gate in chosen or gate in contract.required_gates)


def _planned(chunk: Chunk, files: _FileIndex, warm_up: int) -> PlannedChunk:
    reads = _estimate(files, chunk.start - timedelta(days=warm_up), chunk.end)
    return PlannedChunk(chunk.key, chunk.index, chunk.start, chunk.end, reads)


def _estimate(files: _FileIndex, start: date, end: date, *, margin: bool = True) -> Estimate:
    edge = ZONE_MARGIN if margin else timedelta(0)
    low = start - edge if start > date.min else start
    return files.touched(low, end + edge)


class _FileIndex:
    """Source files by their days: what a range of days touches is found in the logarithm of their number.

    What a range touches is what begins by its end, without what ends before its start.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        # bounds that some other program wrote the wrong way round belong into no order
        self._odd = [file for file in files if file.first_day > file.last_day]
        even = [file for file in files if file.first_day <= file.last_day]
        self._begin = _RunningSums(even, lambda file: file.first_day)
        self._end = _RunningSums(even, lambda file: file.last_day)

    def touched(self, first: date, last: date) -> Estimate:
        """Return how many files, rows and bytes a range of days touches, both inclusive; nothing where it is empty."""
        found = [file for file in self._odd if file.first_day <= last and file.last_day >= first]
        sums = [len(found), sum(file.rows for file in found), sum(file.bytes for file in found)]
        if first <= last:
            begun, ended = self._begin.until(last), self._end.before(first)
            sums = [own + more - less for own, more, less in zip(sums, begun, ended, strict=True)]
        return Estimate(*sums)


class _RunningSums:
    """Numbers of files, rows and bytes, summed up in the order of a day of each file."""

    def __init__(self, files: Sequence[SourceFile], day: Callable[[SourceFile], date]) -> None:
        ordered = sorted(files, key=day)
        self._days = [day(file) for file in ordered]
        parts = [(1, file.rows, file.bytes) for file in ordered]
        self._sums = list(accumulate(parts, _add, initial=(0, 0, 0)))

    def until(self, day: date) -> tuple[int, int, int]:
        return self._sums[bisect_right(self._days, day)]

    def before(self, day: date) -> tuple[int, int, int]:
        return self._sums[bisect_left(self._days, day)]


def _add(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _name_problems(manifest: RunManifest, contract: TargetContract) -> list[Problem]:
    problems = []
    if manifest.source.table != contract.source:
        problems.append(
            Problem(
                f"source.table is {manifest.source.table}",
                f"{contract.table} is computed from {contract.source}",
                "correct source.table",
            )
        )
    if manifest.transform.name != contract.transform:
        problems.append(
            Problem(
                f"transform.name is {manifest.transform.name}",
                f"{contract.table} is computed by {contract.transform}",
                "correct transform.name",
            )
        )
    elif manifest.transform.version not in contract.versions:
        problems.append(
            Problem(
                f"transform.version is {manifest.transform.version}",
                f"{contract.transform} can be run in {', '.join(contract.versions)}",
                "choose one of them, or add the version to the product",
            )
        )
    gates = contract.published_gates if manifest.execution_mode is Mode.RECONCILIATION else contract.gates
    problems += [
        Problem(
            f"validation.gates names {gate}",
            f"{contract.table} declares {', '.join(gates)}",
            "correct the gate's name",
        )
        for gate in manifest.validation.gates or ()
        if gate not in gates
    ]
    problems += [
        Problem(
            f"validation.tolerances names {name}",
            f"{contract.table} declares {', '.join(contract.tolerances) or 'none'}",
            "correct the tolerance's name",
        )
        for name in manifest.validation.tolerances
        if name not in contract.tolerances
    ]
    problems += [
        Problem(
            f"referenceData names {reference.name}",
            f"{contract.table} reads {', '.join(contract.references) or 'none'}",
            "remove it or correct the name",
        )
        for reference in manifest.reference_data
        if reference.name not in contract.references
    ]
    return problems


def _code_problems(manifest: RunManifest, code: CodeIdentity) -> list[Problem]:
    if manifest.development:
        return []
    return [
        Problem(
            f"{whose} is git commit {part.git_commit} with uncommitted changes"
            if part.git_commit is not None
            else f"{whose} lies in a git checkout, and git cannot say which commit it is of",
            "a run must say which code made it",
            "commit the changes, or mark the manifest `development: true`",
        )
        for part in code.parts
        if part.dirty
        for whose in [f"the code of product {part.name}" if isinstance(part, ProductCode) else "the code"]
    ]


def _scope_problems(publish: DayRange, contract: TargetContract, source: SourceState) -> list[Problem]:
    problems = []
    whole = aligned(contract.chunking, publish.start, publish.end)
    if whole != (publish.start, publish.end):
        problems.append(
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{contract.table} is published in whole {contract.chunking.lower()}s",
                f"use {whole[0]} to {whole[1]}",
            )
        )
    begins, ends = key_of(contract.chunking, publish.start), key_of(contract.chunking, publish.end)
    if begins < (contract.first_chunk or begins) or ends > (contract.last_chunk or ends):
        problems.append(
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{contract.table} is declared with chunks {contract.first_chunk} to {contract.last_chunk}",
                "narrow the range, or widen chunks_from and chunks_until in the product",
            )
        )
    if not source.files:
        problems.append(
            Problem(
                f"{source.table} holds no rows at snapshot {source.snapshot_id}",
                "a run reads existing input",
                "load the source first",
            )
        )
        return problems
    first = min(file.first_day for file in source.files)
    last = max(file.last_day for file in source.files)
    # a source may hold days at the ends of the calendar, which have no margin
    earliest, latest = max(first, date.min + ZONE_MARGIN), min(last, date.max - ZONE_MARGIN)
    covered = (key_of(contract.chunking, earliest - ZONE_MARGIN), key_of(contract.chunking, latest + ZONE_MARGIN))
    if begins < covered[0] or ends > covered[1]:
        problems.append(
            Problem(
                f"target.publishRange is {publish.start} to {publish.end}",
                f"{source.table} holds {first} to {last}; a {contract.chunking.lower()} of which it holds no day cannot be "
                "published (a day before and after is allowed for time zones)",
                "narrow the range, or load the missing input",
            )
        )
    return problems


def _source_range_problems(manifest: RunManifest, inputs: DayRange, source: SourceState) -> list[Problem]:
    given = manifest.source.range
    if given is None or not source.files:
        return []
    first = min(file.first_day for file in source.files)
    if given.start <= max(inputs.start, first) and given.end >= inputs.end:
        return []
    return [
        Problem(
            f"source.range is {given.start} to {given.end}",
            f"the publish range with its warm-up needs {max(inputs.start, first)} to {inputs.end}",
            "leave source.range out, or widen it",
        )
    ]


def _pin_references(
    manifest: RunManifest, contract: TargetContract, states: Mapping[str, ReferenceState]
) -> tuple[tuple[PinnedReference, ...], list[Problem]]:
    asked = {reference.name: reference for reference in manifest.reference_data}
    pins, problems = [], []
    for table in contract.references:
        pin = pin_reference(asked.get(table) or ReferenceData(name=table), states[table])
        if isinstance(pin, Problem):
            problems.append(pin)
        else:
            pins.append(pin)
    return tuple(pins), problems


def pin_reference(reference: ReferenceData, state: ReferenceState) -> PinnedReference | Problem:
    """Resolve what the manifest says of one reference table to a snapshot, or say why it cannot be."""
    snapshot: int | None
    if reference.version is not None:
        snapshot = state.versions.get(reference.version)
        if reference.version in state.taken_back:
            return Problem(
                f"referenceData {state.table} version {reference.version} was taken back",
                "what was taken back is not read under its name any more",
                f"choose one of {', '.join(sorted(state.versions.keys() - state.taken_back)) or 'none'}, or name the "
                f"snapshotId ({snapshot}) if it is to be read all the same",
            )
        if snapshot is None:
            return Problem(
                f"referenceData {state.table} version {reference.version} is unknown",
                f"known versions are {', '.join(sorted(state.versions)) or 'none'}",
                "choose one of them",
            )
    elif reference.snapshot_id is not None:
        snapshot = reference.snapshot_id
        if snapshot not in state.snapshots:
            return Problem(
                f"referenceData {state.table} has no snapshot {snapshot}",
                "a pinned snapshot exists in the table's history",
                "see the table's snapshots",
            )
    elif reference.semantics is Semantics.AS_RECORDED_THEN:
        if len(state.recorded) != 1:
            return Problem(
                f"referenceData {state.table} was recorded with {len(state.recorded)} snapshots in the publish range",
                "AS_RECORDED_THEN without a version needs exactly one, from the runs accepted there",
                "name the version or snapshotId",
            )
        snapshot = next(iter(state.recorded))
    else:
        snapshot = state.current
        if snapshot is None:
            return Problem(
                f"referenceData {state.table} has no snapshot", "a reference table holds a version", "load it"
            )
    version = next((name for name, pinned in sorted(state.versions.items()) if pinned == snapshot), None)
    return PinnedReference(state.table, snapshot, reference.semantics, version)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)
