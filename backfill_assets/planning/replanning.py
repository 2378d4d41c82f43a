"""A plan that is made anew on the tables as they are now, because somebody else has changed a part of its scope.

Put here what is looked up again, and what a plan made anew is refused for: what the declaration, the policy and the merge say of
newer rows of the sources. Which chunks are planned anew, and whether any are, is `publication.conflicts`'; the first plan, `resolve`'s.

A freeze is not asked: it holds back LIVE, whose manifests pin their sources, so that nothing of theirs is planned anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date

from backfill_assets.declarations.target import no_warm_up
from backfill_assets.planning.further_sources import repinned
from backfill_assets.planning.inherited_breaks import inherited_breaks
from backfill_assets.planning.landed_logs import found_logs
from backfill_assets.planning.merged_sources import changed_since_problems
from backfill_assets.planning.old_data import facts_of
from backfill_assets.planning.resolve import corrections_snapshot
from backfill_assets.planning.schemas import pinned_schemas
from backfill_assets.planning.upstream import days_read, require_policy_of_upstream, upstream_of
from backfill_assets.run_context import RunContext
from manifests.chunks import Chunking
from manifests.data_terms import DataTerms, data_terms
from manifests.errors import PlanRefused, Problem
from manifests.estimates import FileIndex
from manifests.facts import SourceState
from manifests.further_sources import PinnedSource, wanted_of
from manifests.log_pins import PinnedLog, last_complete, log_problems, pinned_logs, with_files_read
from manifests.model import RunManifest
from manifests.plan import Plan
from manifests.planner import wanted_of_first
from manifests.publish_mode_problems import changed_source_problems
from manifests.target_problems import no_rows

_EVERYTHING = DataTerms(None, 0, None, ())


def replanned(run: RunContext) -> Plan:
    """Return a plan on the tables as they are now: newest base and sources, everything else as it was approved.

    Raises:
        PlanRefused: if the sources hold what the plan would be refused for today: by the declaration, by the policy in force, by
            its limit of rows, or because nobody can tell any more what a merge has to compute.
    """
    platform, target, plan = run.platform, run.target, run.plan
    base_snapshot_id = platform.lakehouse.snapshot_id(target.name)  # first, as when it was planned
    place = target.source, target.source_time_column, None
    source = platform.lakehouse.source_state(*place, is_whole=target.reads_whole)
    if not source.files:
        raise PlanRefused([no_rows(source)])
    manifest = platform.ledger.run(plan.run_id).manifest
    newest = pinned_schemas(platform, target, manifest)
    read = {plan.source, *(one.table for one in plan.sources)}
    schemas = tuple(replace(one, schema_id=newest[one.table]) if one.table in read else one for one in plan.schemas)
    require_policy_of_upstream(platform, target)
    moved = replace(
        plan,
        schemas=schemas,
        base_snapshot_id=base_snapshot_id,
        corrections_base_snapshot_id=corrections_snapshot(platform, target) if plan.corrections is not None else None,
        source_snapshot_id=source.snapshot_id,
        source_committed_at=source.committed_at,
        sources=repinned(platform, target, manifest, plan, source),
        upstream=upstream_of(platform, plan.source, source.snapshot_id, *days_read(plan)[plan.source]),
        run_clock=platform.ledger.now(),
    )
    states = {target.source: source} | {
        one.table: platform.lakehouse.source_state(one.table, one.time_column, one.snapshot_id)
        for one in moved.sources
        if one.snapshot_id is not None
    }
    contract = replace(target, warm_up_days=no_warm_up).contract({})
    logs = found_logs(platform, target, manifest, states)
    moved = _with_logs(moved, pinned_logs(manifest, target.source, logs), source)
    read_of = {moved.source: moved.upstream} | {one.table: one.upstream for one in moved.sources if one.day is None}
    breaks = tuple(one for name, runs in sorted(read_of.items()) for one in inherited_breaks(platform, name, runs))
    moved = replace(moved, inherited_breaks=breaks)
    states[target.source] = source_read = with_files_read(source, logs)
    under_policy, problems = _under_policy(run, manifest, moved, states)
    chunks = [(one.key, one.start, one.end) for one in plan.chunks]
    problems += log_problems(manifest, contract, logs, chunks, breaks)
    problems += _row_limit(plan, source_read)
    problems += changed_source_problems(manifest, contract, moved.sources)
    problems += changed_since_problems(platform, target, manifest, dict(moved.source_pins))
    if problems:
        raise PlanRefused(problems)
    return under_policy


def _with_logs(plan: Plan, logs: Sequence[PinnedLog], source: SourceState) -> Plan:
    """Return a plan with what it reads of logs by now, and up to which day that is complete."""
    if not logs or plan.chunking is Chunking.WHOLE:
        return replace(plan, logs=tuple(logs))
    publish = plan.publish_range
    ends = last_complete(logs, publish.start, max(file.last_day for file in source.files))
    return replace(plan, logs=tuple(logs), source_ends=ends if ends < publish.end else None)


def _row_limit(plan: Plan, source: SourceState) -> list[Problem]:
    rows = FileIndex(source.files).read_for(plan.input_range.start, plan.input_range.end).rows
    if plan.max_rows_expected is None or rows <= plan.max_rows_expected:
        return []
    return [
        Problem(
            f"planned anew, the run would read {rows:,} rows of {source.table}",
            f"safety.maxRowsExpected is {plan.max_rows_expected:,}",
            "plan it under a new run id, with a limit that is right by now",
        )
    ]


def _under_policy(
    run: RunContext, manifest: RunManifest, plan: Plan, states: Mapping[str, SourceState]
) -> tuple[Plan, list[Problem]]:
    """Return a plan with what it may not see of its sources by the policy in force, or what speaks against it.

    All chunks of a run are computed under the same terms: where others hold today, it is refused. That rows of a retention have
    grown too old since changes nothing but from when on rows are used.
    """
    today = plan.run_clock.date()
    first, problems = _terms(run, manifest, plan, states[plan.source], None, today)
    data, found = _unchanged(plan.source, plan.data, first)
    problems += found
    pins: list[PinnedSource] = []
    for pin in plan.sources:
        terms, refused = pin.data, list[Problem]()
        if pin.table in states:
            now, refused = _terms(run, manifest, plan, states[pin.table], pin, today)
            terms, found = _unchanged(pin.table, pin.data, now)
            refused += found
        problems += refused
        pins.append(replace(pin, data=terms))
    return replace(plan, data=data, sources=tuple(pins)), problems


def _terms(
    run: RunContext, manifest: RunManifest, plan: Plan, state: SourceState, pin: PinnedSource | None, today: date
) -> tuple[DataTerms | None, list[Problem]]:
    """Return what the policy in force says of a source at its newest snapshot: what may not be seen, and why it may not be read."""
    platform, target = run.platform, run.target
    facts = facts_of(platform, platform.policy, target, state.table, state.snapshot_id, today, keep=False)
    if facts is None:
        return None, []
    if pin is None:
        wanted = wanted_of_first(
            plan.input_range, plan.warm_up_days, target.chunking, state, looks_back=plan.look_back is not None
        )
    else:
        wanted = wanted_of(pin, state, plan.publish_range, target.chunking)
    return data_terms(platform.policy, manifest, facts, wanted, plan.run_clock)


def _unchanged(table: str, then: DataTerms | None, now: DataTerms | None) -> tuple[DataTerms | None, list[Problem]]:
    """Return the terms of today where they are those of the plan, and else what is different about them."""
    changed = []
    before, after = then or _EVERYTHING, now or _EVERYTHING
    if _subjects(before) != _subjects(after):
        changed.append("whose rows are not used (erasure)")
    if before.masks != after.masks:
        changed.append("which columns are masked")
    if (before.not_before is None) != (after.not_before is None):
        changed.append("whether rows are too old to be used (retention)")
    if not changed:
        return now, []
    return then, [
        Problem(
            f"what the policy says of {table} has changed since the plan: {', '.join(changed)}",
            "all chunks of a run are computed under the same terms, and old data is used as policy allows today",
            "plan the change again under a new run id: it is planned under the policy in force",
        )
    ]


def _subjects(terms: DataTerms) -> tuple[str, str, str | None] | None:
    one = terms.erasure
    return None if one is None else (one.hash, one.column, one.target_column)
