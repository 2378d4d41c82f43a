"""Which rows of a target's sources are not in time: late for chunks that are accepted, or of the future. By metadata alone.

Put here what files say of them. What a target declares of such rows, and what is refused for it, is `manifests.timeliness`'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from functools import cache

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.upstream import days_of_chunk
from manifests.chunks import first_day, last_day
from manifests.estimates import ZONE_MARGIN
from manifests.facts import SourceFile, SourceState
from manifests.model import DayRange, Mode, RunManifest
from manifests.timeliness import FoundTimes, OnFuture, OnLate, newest_in_time


def found_times(
    platform: Platform, target: TargetTable, manifest: RunManifest, states: Mapping[str, SourceState]
) -> dict[str, FoundTimes]:
    """Return what is not in time of each source, in the state that a run would read it in, where the target declares anything of it.

    Nothing of a reconciliation, which compares and takes in nothing.
    """
    if manifest.execution_mode is Mode.RECONCILIATION:
        return {}
    publish, found = manifest.target.publish_range, {}
    for table, state in states.items():
        wanted = target.timeliness_of(table)
        future, late = 0, dict[str, list[SourceFile]]()
        if wanted.future is not OnFuture.KEEP:
            future = _future_rows(platform, target, state, publish)
        if wanted.late is OnLate.REFUSE:
            late = late_chunks(platform, target, table, state.snapshot_id, publish)
        found[table] = FoundTimes(future, tuple(sorted(late)))
    return found


def _future_rows(platform: Platform, target: TargetTable, state: SourceState, publish: DayRange) -> int:
    """Return the rows of files that go on after their snapshot's commit, and begin before the days that are read end."""
    after = newest_in_time(state.committed_at, has_dates=state.has_dates)
    days_after = next((one.reads.after for one in target.sources if one.table == state.table), 0)
    last = min(publish.end.toordinal() + days_after + ZONE_MARGIN.days, date.max.toordinal())
    column = target.every_source[state.table]
    files = platform.lakehouse.files_after(state.table, column, state.snapshot_id, after)
    return sum(file.rows for file in files if file.first_day.toordinal() <= last)


def late_chunks(
    platform: Platform, target: TargetTable, table: str, snapshot_id: int, scope: DayRange | None = None
) -> dict[str, list[SourceFile]]:
    """Return the accepted chunks (of a range, if given) with days of which files came into a source since they were made.

    Each with those files: all of them where the source had none. A file that somebody has written anew is one that came, and what is
    read of an expired snapshot is not known: such a chunk is not among them.
    """
    holders = {
        key: run_id
        for key, run_id in platform.ledger.accepted(target.name).items()
        if scope is None or _touches(target, key, scope)
    }

    @cache
    def added(since: int | None) -> tuple[SourceFile, ...]:
        return tuple(platform.lakehouse.files_added(table, target.every_source[table], since, snapshot_id))

    found = {}
    for run_id in sorted(set(holders.values())):
        record = platform.ledger.run(run_id)
        plans = platform.ledger.plans(platform.ledger.with_plan(record))
        for key in sorted(one for one, by in holders.items() if by == run_id):
            plan = plans.get(key, record.plan)
            pins = {one.table: one.snapshot_id for one in plan.sources} | {plan.source: plan.source_snapshot_id}
            since = pins.get(table)  # None of a source that had no snapshot yet
            if table not in pins or since == snapshot_id:
                continue
            first, last = days_of_chunk(target, plan, table, key)
            if files := [one for one in added(since) if one.first_day <= last and one.last_day >= first]:
                found[key] = files
    return found


def _touches(target: TargetTable, key: str, scope: DayRange) -> bool:
    begins = first_day(target.chunking, key)
    return begins <= scope.end and last_day(target.chunking, begins) >= scope.start


def late_by_source(platform: Platform, target: TargetTable, wanted: Collection[OnLate]) -> dict[str, list[str]]:
    """Return the accepted chunks that late rows have come for, by source, of those sources that declare one of these of them."""
    found = {}
    for table in target.every_source:
        snapshot_id = platform.lakehouse.snapshot_id(table)
        if target.timeliness_of(table).late in wanted and snapshot_id is not None:
            found[table] = sorted(late_chunks(platform, target, table, snapshot_id))
    return {table: chunks for table, chunks in found.items() if chunks}
