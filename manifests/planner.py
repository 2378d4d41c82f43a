"""From a manifest to a plan, by rules alone: each step is handed facts, and says what it makes of them or why it cannot.

Put here the steps in their order, and what becomes of a plan's fields. What the steps judge is in the modules beside this one
(`target_problems`, `publish_mode_problems`, `live_problems`, `kinds`, `who_may`, `data_terms`); what a plan is, in
`manifests.plan`. Nothing here opens a table or reads a clock: both are handed in, so that a plan can be made without a catalog.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any

from manifests.chunks import Chunking, cut
from manifests.code_identity import CodeIdentity, code_problems
from manifests.data_terms import OLD_DATA_GATE, DataTerms, SourceFacts, WantedRead, data_terms
from manifests.draft_figures import DraftFigures
from manifests.errors import PlanRefused, Problem
from manifests.estimates import ZONE_MARGIN, Estimate, FileIndex, of_sample
from manifests.expected import EXPECTED_FIGURES_GATE
from manifests.expected_problems import expected_problems
from manifests.facts import BaseState, ReferenceState, SourceState, TargetContract
from manifests.further_sources import FoundSource, PinnedSource, pin_sources
from manifests.kinds import kind_problems
from manifests.limit_problems import breaker_of, limit_problems, pace_of, pace_problems, row_limit_problems
from manifests.live_problems import live_problems
from manifests.log_breaks import InheritedBreaks
from manifests.log_pins import FoundLog, PinnedLog, last_complete, log_problems, pinned_logs, with_files_read
from manifests.merge_policy import MERGE_DECISIONS_GATE, stricter
from manifests.model import Conflict, DayRange, Kind, Mode, RunManifest
from manifests.plan import ChangedSince, ConflictTerms, MergeTerms, PinnedReference, PinnedSchema, Plan, PlannedChunk
from manifests.planned_topics import GrantedTopic, PlannedTopic, topic_problems
from manifests.policy import Policy, Role
from manifests.publish_mode_problems import (
    changed_source_problems,
    first_day_of_live,
    publish_mode_problems,
    whole_file_problems,
)
from manifests.reference_pins import pin_references
from manifests.starts import FoundStart, pin_of_start, start_problems
from manifests.target_problems import (
    name_problems,
    scope_problems,
    source_range_problems,
    time_problems,
    value_problems,
    warm_up_problems,
)
from manifests.timeliness import FUTURE_GATE, OnFuture, timeliness_problems
from manifests.who_may import request_problems


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
    uncommitted: Mapping[str, Sequence[str]] = MappingProxyType({}),
    sources: Mapping[str, FoundSource] = MappingProxyType({}),
    start: FoundStart | None = None,
    logs: Mapping[str, FoundLog] = MappingProxyType({}),
    topics: Sequence[GrantedTopic] = (),
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
        uncommitted: the files in which it is not what its commit says, by the product's name, or "" for the platform's.
        sources: what is known of each source beside the first, by its name; and more of the first.
        start: what is known of the states that the manifest has the run start from.
        logs: what is known of each source that is a log, by its name.
        topics: the topics that its rows would go to by the sinks that the manifest grants.
        configuration_hash: hash of the settings that can change the output.
        run_clock: the instant the run takes for "now".

    Raises:
        PlanRefused: with every reason at once.
    """
    asked = manifest, contract, source, references, base_snapshot_id, code, configuration_hash, run_clock
    given = _Given(*asked, base, policy, facts, uncommitted, sources, start, logs, topics)
    problems, scope = _problems_of_target(given), _scope(given)
    chunks, sample_problems = _chunks(given, scope)
    if manifest.sample is not None and not contract.reads_look_back:
        scope = replace(scope, reads=of_sample(scope.reads, {(one.start, one.end): one.reads for one in chunks}))
    problems += [*source_range_problems(manifest, scope.inputs, source), *given.pinned_references[1]]
    problems += [*sample_problems, *_expected_problems(manifest, contract, [chunk.key for chunk in chunks])]
    problems += [*row_limit_problems(manifest, source.table, scope.reads), *_policy_problems(given)]
    terms, data_problems = _data_terms(given, scope)
    further, source_problems = _further_sources(given, scope)
    if manifest.kind is not Kind.COMPACTION:  # which of the chunks it rewrites is not known yet
        problems += pace_problems(pace_of(manifest, policy), chunks, _look_back(given, scope), scope.reads, further)
    days = [(one.key, one.start, one.end) for one in chunks] if given.logs or given.inherited_breaks else []
    source_problems += log_problems(manifest, contract, given.logs, days, given.inherited_breaks)
    if problems := [*problems, *data_problems, *source_problems]:
        raise PlanRefused(problems)
    return _plan(given, scope, chunks, terms, further)


def draft_problems(
    manifest: RunManifest,
    contract: TargetContract,
    source: SourceState | None,
    references: Mapping[str, ReferenceState],
    figures: DraftFigures | None = None,
) -> list[Problem]:
    """Return what contradicts its target in a manifest some fields of which are not its author's.

    Only what each field says by itself is looked at: names, pins where `references` are known, the range where `source` is, and
    the `figures` that it expects.
    """
    problems = [
        *name_problems(manifest, contract),
        *value_problems(manifest, contract),
        *time_problems(manifest, contract),
    ]
    if source is not None:
        problems += scope_problems(manifest.target.publish_range, contract, source)
    if references:
        problems += pin_references(manifest, contract, references)[1]
    return [*problems, *(figures or DraftFigures()).problems(manifest, contract, known=source is not None)]


def _expected_problems(manifest: RunManifest, contract: TargetContract, planned: Sequence[str] | None) -> list[Problem]:
    """Return what in the figures that a manifest expects no run of it could be held against."""
    is_part = manifest.sample is not None or manifest.progressive is not None or manifest.series is not None
    expected = manifest.validation.expected
    return list(expected_problems(expected, contract, planned, derives=manifest.target.derives, part=is_part))


@dataclass(frozen=True)
class _Given:
    """What a plan is made from: the arguments of `make_plan`."""

    manifest: RunManifest
    contract: TargetContract
    source: SourceState
    references: Mapping[str, ReferenceState]
    base_snapshot_id: int | None
    code: CodeIdentity
    configuration_hash: str
    run_clock: datetime
    base: BaseState | None
    policy: Policy | None
    facts: SourceFacts | None
    uncommitted: Mapping[str, Sequence[str]]
    sources: Mapping[str, FoundSource]
    start: FoundStart | None
    logs: Mapping[str, FoundLog]
    topics: Sequence[GrantedTopic]

    @cached_property
    def pinned_references(self) -> tuple[tuple[PinnedReference, ...], list[Problem]]:
        """Its reference tables as they are pinned, and why they may not be read."""
        return pin_references(self.manifest, self.contract, self.references)

    @cached_property
    def pinned_logs(self) -> tuple[PinnedLog, ...]:
        """What is read of the sources that are logs."""
        return pinned_logs(self.manifest, self.source.table, self.logs)

    @property
    def inherited_breaks(self) -> tuple[InheritedBreaks, ...]:
        """The breaks of the changelogs that its sources are computed from."""
        return tuple(one for _, found in sorted(self.sources.items()) for one in found.breaks)

    @property
    def first(self) -> FoundSource:
        """What else is known of the first source."""
        return self.sources.get(self.source.table, FoundSource(self.source))

    @property
    def publish(self) -> DayRange:
        """The days that may change."""
        return self.manifest.target.publish_range

    @property
    def parts(self) -> tuple[str, ...]:
        """The values or buckets that may change, where the target is divided by them."""
        return self.contract.parts(self.manifest.target.values)


@dataclass(frozen=True)
class _Scope:
    """The days that a run reads, and what its source has of them."""

    warm_up: int
    inputs: DayRange
    files: FileIndex
    reads: Estimate


# --- the steps --------------------------------------------------------------------------------------------------------


def _problems_of_target(given: _Given) -> list[Problem]:
    """Return what the target, its tables and the code say against the manifest."""
    manifest, contract, source = given.manifest, given.contract, given.source
    base = given.base or BaseState()
    return [
        *name_problems(manifest, contract),
        *([] if manifest.development else code_problems(given.code, given.uncommitted)),
        *scope_problems(given.publish, contract, source),
        *value_problems(manifest, contract),
        *publish_mode_problems(manifest, contract, base),
        *whole_file_problems(given.publish, contract, base, manifest.target.files_across_border),
        *live_problems(manifest, contract, source, base, _read_of_further(given)),
        *warm_up_problems(manifest, contract),
        *time_problems(manifest, contract),
        *topic_problems(manifest, given.topics),
    ]


def _read_of_further(given: _Given) -> dict[str, tuple[int | None, datetime | None]]:
    """Return the snapshot that is read of each source beside the first, and its commit; of those that were looked up."""
    found = {one.table: given.sources[one.table].state for one in given.contract.sources if one.table in given.sources}
    return {
        table: (None, None) if state is None else (state.snapshot_id, state.committed_at)
        for table, state in found.items()
    }


def _scope(given: _Given) -> _Scope:
    asked, publish = given.manifest.warm_up, given.publish
    warm_up = max(given.contract.warm_up_days, 0 if asked is None else asked.days)
    inputs = DayRange.model_construct(start=publish.start - timedelta(days=warm_up), end=publish.end)
    files = FileIndex(with_files_read(given.source, given.logs).files)
    return _Scope(warm_up, inputs, files, files.read_for(inputs.start, inputs.end))


def _chunks(given: _Given, scope: _Scope) -> tuple[tuple[PlannedChunk, ...], list[Problem]]:
    """Cut the publish range into chunks: all of them, or those of the sample."""
    # hours and parts of the same days are computed from the same rows
    reads = cache(lambda start, end: scope.files.read_for(start - timedelta(days=scope.warm_up), end))
    chunks = tuple(
        PlannedChunk(
            chunk.key, chunk.index, chunk.start, chunk.end, reads(chunk.start, chunk.end), chunk.hour, chunk.part
        )
        for chunk in cut(given.contract.chunking, given.publish.start, given.publish.end, given.parts)
    )
    sample = given.manifest.sample
    if sample is None:
        return chunks, []
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


def _policy_problems(given: _Given) -> list[Problem]:
    """Return what the policy says against who asks, and against the kind that the manifest names."""
    policy, contract = given.policy, given.contract
    if policy is None:
        return []
    problems = [*request_problems(policy, given.manifest), *limit_problems(given.manifest, policy)]
    if given.base is not None and given.base.present is not None:
        told_apart = any(
            policy.tells_apart(name, contract.table, Kind.RESTATEMENT, Kind.BACKFILL)
            for name in (contract.source, *(one.table for one in contract.sources))
        )
        read = frozenset(
            {(given.source.table, given.source.snapshot_id)}
            | {(name, one.state.snapshot_id) for name, one in given.sources.items() if one.state is not None}
        )
        problems += kind_problems(given.manifest, given.base.present, read, told_apart=told_apart)
    return problems


def _data_terms(given: _Given, scope: _Scope) -> tuple[DataTerms | None, list[Problem]]:
    """Return what the run may not see of its source by the policy, or why it may not be read at all."""
    if given.policy is None or given.facts is None:
        return None, []
    contract = given.contract
    read, looks_back = with_files_read(given.source, given.logs), contract.reads_look_back
    wanted = wanted_of_first(scope.inputs, scope.warm_up, contract.chunking, read, looks_back=looks_back)
    return data_terms(given.policy, given.manifest, given.facts, wanted, given.run_clock)


def wanted_of_first(
    inputs: DayRange, warm_up: int, chunking: Chunking, source: SourceState, *, looks_back: bool
) -> WantedRead:
    """Return what would be read of the first source, as the policy asks it."""

    def rows_before(day: date) -> int:
        return sum(
            file.rows
            for file in source.files
            if file.first_day < day and (looks_back or file.last_day >= inputs.start - ZONE_MARGIN)
        )

    return WantedRead(inputs, warm_up, ZONE_MARGIN, chunking, rows_before)


def _further_sources(given: _Given, scope: _Scope) -> tuple[tuple[PinnedSource, ...], list[Problem]]:
    """Return how the sources beside the first, and states to start from, are pinned, or why they may not be read."""
    contract, publish = given.contract, given.publish
    cells = cut(contract.chunking, publish.start, publish.end) if contract.sources else ()
    chunks = [(chunk.key, chunk.start, chunk.end) for chunk in cells]
    asked = given.manifest, contract.sources, given.sources, chunks, contract.chunking, given.policy, given.run_clock
    pins, problems = pin_sources(*asked)
    problems += changed_source_problems(given.manifest, contract, pins)
    problems += start_problems(given.manifest, contract, given.start, scope.inputs)
    if (states := given.manifest.source.start_from) is not None and given.start is not None and not problems:
        pins = (*pins, pin_of_start(states, given.start))
    return pins, [*timeliness_problems(contract.source, contract.timeliness, given.first.times), *problems]


# --- the plan's fields ------------------------------------------------------------------------------------------------


def _limits(given: _Given) -> dict[str, Any]:
    """Return the fields of a plan that say how fast it goes, and how much it takes at most."""
    manifest = given.manifest
    return {
        "max_chunks_per_job": manifest.limits.max_chunks_per_job,
        "max_runs_in_parallel": manifest.limits.max_runs_in_parallel,
        "max_rows_expected": manifest.safety.max_rows_expected,
        "pace": pace_of(manifest, given.policy),
        "breaker": breaker_of(manifest),
    }


def _plan(
    given: _Given,
    scope: _Scope,
    chunks: tuple[PlannedChunk, ...],
    terms: DataTerms | None,
    further: tuple[PinnedSource, ...],
) -> Plan:
    manifest, contract, source, base = given.manifest, given.contract, given.source, given.base or BaseState()
    return Plan(
        run_id=manifest.run_id,
        manifest_hash=manifest.hash,
        mode=manifest.execution_mode,
        target=contract.table,
        chunking=contract.chunking,
        publish_mode=manifest.target.publish_mode,
        publish_range=given.publish,
        base_snapshot_id=given.base_snapshot_id,
        source=source.table,
        source_snapshot_id=source.snapshot_id,
        source_committed_at=source.committed_at,
        input_range=scope.inputs,
        warm_up_days=scope.warm_up,
        read_from=_midnight(scope.inputs.start) - ZONE_MARGIN,
        read_until=_midnight(scope.inputs.end + timedelta(days=1)) + ZONE_MARGIN,
        reads=scope.reads,
        look_back=_look_back(given, scope),
        references=given.pinned_references[0],
        transform=contract.transform,
        transform_version=manifest.transform.version,
        chunks=chunks,
        gates=_gates(manifest, contract, (terms, *(one.data for one in further))),
        leaves_out_future=contract.timeliness.future is OnFuture.LEAVE_OUT,
        tolerances=_tolerances(manifest, contract),
        manual_publish=manifest.safety.requires_manual_publish or _needs_publisher(given),
        code=given.code,
        configuration_hash=given.configuration_hash,
        run_clock=given.run_clock.astimezone(UTC),
        merge=_merge_terms(manifest, contract),
        version=manifest.target.version,
        acceptance=manifest.target.acceptance,
        corrections=manifest.target.correction_events,
        corrections_base_snapshot_id=base.corrections_snapshot_id,
        conflict=_conflict_terms(manifest.conflict),
        source_ends=_source_ends(given),
        policy=None if given.policy is None else given.policy.hash,
        data=terms,
        schemas=tuple(PinnedSchema(table, number) for table, number in sorted(base.schemas.items())),
        reason=manifest.reason if contract.rows_say_why else None,
        division=contract.division,
        values=_values(given),
        sources=further,
        upstream=given.first.upstream,
        source_has_dates=source.has_dates,
        logs=given.pinned_logs,
        topics=tuple(PlannedTopic(one.sink, one.topic) for one in given.topics),
        inherited_breaks=given.inherited_breaks,
        **_limits(given),
    )


def _values(given: _Given) -> tuple[str, ...] | None:
    """Return the values that may change, in the declaration's order; None where all of them may."""
    return None if given.parts == given.contract.parts(None) else given.parts


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def _look_back(given: _Given, scope: _Scope) -> Estimate | None:
    """Return what is read of the days before the warm-up and its margin, where the transform looks back at all.

    Where the run starts from a state, of the days after that, and the margin.
    """
    if not given.contract.reads_look_back:
        return None
    states = given.manifest.source.start_from
    return scope.files.touched(
        date.min if states is None else states.day, scope.inputs.start - ZONE_MARGIN - timedelta(days=1)
    )


def _gates(manifest: RunManifest, contract: TargetContract, terms: Sequence[DataTerms | None]) -> tuple[str, ...]:
    """Return the run-level gates: those chosen, those that nobody can leave out, and those of what applies to this run alone."""
    chosen = manifest.validation.gates
    if manifest.execution_mode is Mode.RECONCILIATION:
        gates = tuple(gate for gate in contract.published_gates if chosen is None or gate in chosen)
    elif chosen is None:
        gates = contract.gates
    else:
        gates = tuple(gate for gate in contract.gates if gate in chosen or gate in contract.required_gates)
    if manifest.validation.expected is not None:
        gates = (*gates, EXPECTED_FIGURES_GATE)
    if any(one is not None and one.leaves_out_rows for one in terms):
        gates = (*gates, OLD_DATA_GATE)
    if (merge := _merge_terms(manifest, contract)) is not None and merge.policy is not None:
        gates = (*gates, MERGE_DECISIONS_GATE)
    declared = (contract.timeliness, *(one.timeliness for one in contract.sources))
    return (*gates, FUTURE_GATE) if any(one.future is OnFuture.LEAVE_OUT for one in declared) else gates


def _tolerances(manifest: RunManifest, contract: TargetContract) -> dict[str, float]:
    declared, stated = contract.tolerances, manifest.validation.tolerances
    return {name: float(value) for name, value in (*declared.items(), *stated.items())}


def _needs_publisher(given: _Given) -> bool:
    """Whether the policy names who publishes: then nobody else does, and nothing by itself."""
    if given.policy is None:
        return False
    return given.policy.rule_for(given.contract.table, given.manifest.kind).of(Role.PUBLISHER) is not None


def _merge_terms(manifest: RunManifest, contract: TargetContract) -> MergeTerms | None:
    merge = manifest.target.merge
    if merge is None or contract.entity is None:
        return None
    return MergeTerms(
        contract.entity,
        merge.changed_since,
        merge.entities,
        contract.version_column,
        merge.on_older_version,
        tuple(ChangedSince(one.table, one.changed_since) for one in merge.sources),
        **_policy_terms(manifest, contract),
    )


def _policy_terms(manifest: RunManifest, contract: TargetContract) -> dict[str, Any]:
    """Return the policy under which a merge of history meets LIVE, and LIVE's first day; nothing of LIVE itself."""
    merge, declared = manifest.target.merge, contract.merge_policy
    if merge is None or declared is None or manifest.execution_mode is Mode.LIVE:
        return {}
    return {"policy": stricter(declared, merge.policy), "cut_line": first_day_of_live(manifest, contract)}


def _conflict_terms(conflict: Conflict) -> ConflictTerms | None:
    if conflict == Conflict():
        return None
    return ConflictTerms(conflict.on_conflict, conflict.max_replans, conflict.wait_minutes)


def _source_ends(given: _Given) -> date | None:
    """Return the last day that the sources know, where the publish range goes on after it; None without time.

    Of a log whose declaration says how late records come, the last day that is complete; the one before the range where none is.
    """
    if given.contract.chunking is Chunking.WHOLE:
        return None
    ends = max(file.last_day for file in given.source.files)
    ends = last_complete(given.pinned_logs, given.publish.start, ends)
    return ends if ends < given.publish.end else None
