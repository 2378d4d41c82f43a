"""Breaks of changelogs behind targets that other targets are computed from, looked up when a run is planned.

Put here which runs' plans are asked, and of which loads. What a break is, and what it refuses, is `manifests.log_breaks`'; which runs hold
what is read, `upstream`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from backfill_assets.installation import Platform
from backfill_assets.planning.upstream import origins
from manifests.canonical import canonical_json
from manifests.further_sources import UpstreamRun
from manifests.log_breaks import InheritedBreaks, LogBreak, breaks_of
from manifests.log_pins import PinnedLog
from manifests.log_ranges import LogKind, LogRange
from manifests.plan import Plan


def inherited_breaks(platform: Platform, table: str, upstream: Iterable[UpstreamRun]) -> tuple[InheritedBreaks, ...]:
    """Return the breaks behind a source, by the plans of the runs that hold what is read of it; none of what is no target.

    Raises:
        EnvironmentRefused: if what a load of such a log says of its ranges cannot be read.
    """
    if not upstream or not _has_changelog(platform, table):
        return ()
    found: dict[str, set[LogBreak]] = {}
    for plan in _plans(platform, upstream):
        for one in plan.inherited_breaks:
            found.setdefault(one.log, set()).update(one.breaks)
        for log in plan.logs:
            if log.log.kind is LogKind.CHANGELOG:
                found.setdefault(log.table, set()).update(_read_by(platform, plan, log))
    return tuple(
        InheritedBreaks(table, log, tuple(sorted(breaks, key=lambda one: (one.lost, canonical_json(one)))))
        for log, breaks in sorted(found.items())
        if breaks
    )


def _has_changelog(platform: Platform, table: str) -> bool:
    """Whether a target is computed from a changelog, by way of others too; then only its runs' plans are worth reading."""
    logs = {one.name for one in platform.products.inputs if one.log is not None and one.log.kind is LogKind.CHANGELOG}
    return any(name in logs for name, _ in origins(platform, table))


def _plans(platform: Platform, upstream: Iterable[UpstreamRun]) -> Iterator[Plan]:
    """Yield the plans by which the chunks that are read were computed."""
    for run in upstream:
        plans = platform.ledger.plans(platform.ledger.with_plan(platform.ledger.run(run.run_id)))
        yield from {plan.hash: plan for chunk, plan in plans.items() if chunk in run.chunks}.values()


def _read_by(platform: Platform, plan: Plan, log: PinnedLog) -> tuple[LogBreak, ...]:
    """Return the breaks in what a plan has read of a log; of a merge from the log's beginning: earlier runs have read what it goes on from."""
    if plan.merge is None:
        return log.breaks
    until = max((one.until for one in log.ranges), default=0)
    # of a snapshot that is in the history of main no more, once others have expired, nothing is told: then what is landed by now
    loads = platform.lakehouse.landed_loads(log.table, dict(plan.source_pins)[log.table])
    loads = loads or platform.lakehouse.landed_loads(log.table)
    return breaks_of([one.landed for one in loads], [LogRange(0, 0, until)]) or log.breaks
