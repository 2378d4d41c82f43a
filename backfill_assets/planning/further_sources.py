"""Sources beside a target's first, looked up when a run is planned: their snapshots, and which runs made what is read of a target.

Put here what is asked of tables, ledger and policy. What is read of each, and why it may not be, is
`manifests.further_sources`'; the first source is looked up in `resolve`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.inherited_breaks import inherited_breaks
from backfill_assets.planning.late_rows import found_times
from backfill_assets.planning.old_data import facts_of
from backfill_assets.planning.source_versions import require_known_versions
from backfill_assets.planning.states import restarted
from backfill_assets.planning.upstream import days_read, upstream_of, upstream_of_first
from manifests.errors import PlanRefused
from manifests.facts import FurtherSource, SourceState
from manifests.further_sources import FoundSource, PinnedSource, UpstreamRun, absences, pin_of, touched_days
from manifests.model import DayRange, RunManifest
from manifests.plan import Plan
from manifests.timeliness import timeliness_problems


def found_sources(
    platform: Platform,
    target: TargetTable,
    manifest: RunManifest,
    first: SourceState,
    warm_up: int,
    today: date,
    kept: Callable[[], AbstractContextManager[None]],
    *,
    keep: bool,
) -> dict[str, FoundSource]:
    """Return what is known of each source, the first one too; one that is refused is left out, and its refusal is `kept`.

    With `keep` the erased subjects that a plan pins are kept in the ledger.
    """
    wanted, policy = {one.table: one.snapshot_id for one in manifest.sources}, platform.policy
    found = {}
    with kept():
        upstream = upstream_of_first(platform, target, manifest, warm_up, first)
        breaks = inherited_breaks(platform, target.source, upstream)
        found[target.source] = FoundSource(first, upstream=upstream, breaks=breaks)
    for source in target.sources:
        with kept():
            state = _state(platform, source.contract, wanted.get(source.table))
            if state is None:
                found[source.table] = FoundSource(None)
                continue
            facts = facts_of(platform, policy, target, source.table, state.snapshot_id, today, keep=keep)
            upstream = _upstream(platform, source.contract, state, manifest.target.publish_range)
            breaks = inherited_breaks(platform, source.table, upstream)
            found[source.table] = FoundSource(state, facts, upstream, breaks)
    states = states_of(found)
    with kept():
        require_known_versions(platform, target, manifest, states, warm_up)
    for name, times in found_times(platform, target, manifest, states).items():
        found[name] = replace(found[name], times=times)
    return found


def states_of(found: Mapping[str, FoundSource]) -> dict[str, SourceState]:
    """Return the state of each source that has a snapshot, by name."""
    return {name: one.state for name, one in found.items() if one.state is not None}


def _state(platform: Platform, source: FurtherSource, wanted: int | None) -> SourceState | None:
    """Return a source at the snapshot that is wanted, or as it is now; None of a table without a snapshot."""
    if platform.lakehouse.snapshot_id(source.table) is None:
        return None
    return platform.lakehouse.source_state(source.table, source.time_column, wanted)


def _upstream(
    platform: Platform, source: FurtherSource, state: SourceState, publish: DayRange
) -> tuple[UpstreamRun, ...]:
    first, last = touched_days(pin_of(source, state), publish.start, publish.end)
    return upstream_of(platform, source.table, state.snapshot_id, first, last)


def repinned(
    platform: Platform, target: TargetTable, manifest: RunManifest, plan: Plan, first: SourceState
) -> tuple[PinnedSource, ...]:
    """Return the pins of a plan on the tables as they are now: newest snapshots, everything else as it was approved.

    `first` is the first source as it is now.

    Raises:
        PlanRefused: if rows have come of a version that no reader knows, or that a plan is refused for: late, of the future; or
            if there are none where there have to be some.
    """
    pins, states = [], {plan.source: first}
    for pin in plan.sources:
        if pin.day is not None:
            pins.append(restarted(platform, target, manifest, plan, first.snapshot_id))
            continue
        snapshot_id = platform.lakehouse.snapshot_id(pin.table)
        if snapshot_id is None:
            pins.append(pin)
            continue
        state = platform.lakehouse.source_state(pin.table, pin.time_column, snapshot_id)
        states[pin.table] = state
        upstream = upstream_of(platform, pin.table, snapshot_id, *days_read(plan)[pin.table])
        moved = replace(pin, has_dates=state.has_dates, snapshot_id=snapshot_id, committed_at=state.committed_at)
        pins.append(replace(moved, upstream=upstream))
    require_known_versions(platform, target, manifest, states, plan.warm_up_days)
    _require_as_declared(platform, target, manifest, plan, pins, states)
    return tuple(pins)


def _require_as_declared(
    platform: Platform,
    target: TargetTable,
    manifest: RunManifest,
    plan: Plan,
    pins: Sequence[PinnedSource],
    states: Mapping[str, SourceState],
) -> None:
    """Refuse sources as they are now for what a plan is refused for: rows that are not in time, chunks for which there are none.

    Raises:
        PlanRefused: with everything that the target's declaration says against them.
    """
    times = found_times(platform, target, manifest, states)
    problems = [
        problem
        for name, found in times.items()
        for problem in timeliness_problems(name, target.timeliness_of(name), found)
    ]
    declared = {one.table: one.contract for one in target.sources}
    chunks = [(chunk.key, chunk.start, chunk.end) for chunk in plan.chunks]
    for pin in (one for one in pins if one.day is None):
        problems += absences(declared[pin.table], pin, states.get(pin.table), chunks)
    if problems:
        raise PlanRefused(problems)
