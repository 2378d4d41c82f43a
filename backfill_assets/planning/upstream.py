"""Targets that other targets are computed from: which of their runs made what is read, and whether that is still what is accepted.

Put here what the ledger says of them. A target is read at one snapshot of its main, as its readers see it: a publication is
one commit, so that none is ever half in it. Which of its days are read is `manifests.further_sources`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_then import accepted_then
from manifests.chunks import first_day, in_words, last_day
from manifests.errors import PlanRefused, Problem
from manifests.estimates import ZONE_MARGIN
from manifests.facts import SourceState
from manifests.further_sources import UpstreamRun, touched_days
from manifests.model import RunManifest
from manifests.plan import Plan
from resources.ledger.facade import RunRecord


@dataclass(frozen=True)
class Superseded:
    """Chunks of an upstream target that a run has read, and that another run holds by now, or none (`by` is empty)."""

    table: str
    chunks: tuple[str, ...]
    read: str
    by: str

    def describe(self) -> str:
        """Say in words what was read, and what there is now."""
        now = f"run '{self.by}' holds it now" if self.by else "no run holds it any more"
        read = f"as run '{self.read}' published it" if self.read else "when no run held it"
        return f"{in_words(list(self.chunks))} of {self.table} was read {read}; {now}"


def upstream_of(platform: Platform, table: str, snapshot_id: int, first: date, last: date) -> tuple[UpstreamRun, ...]:
    """Return the runs that held the chunks of a target with days of a range when it was read; none of what is no target.

    Raises:
        EnvironmentRefused: if the ledger does not say so yet: a change that led to the snapshot is not on record.
        PlanRefused: if the snapshot was never what readers of the target see.
    """
    target = platform.products.find_target(table)
    if target is None:
        return ()
    if snapshot_id not in platform.lakehouse.history(table):
        raise PlanRefused(
            Problem(
                f"snapshot {snapshot_id} of {table} is not in the history of its main",
                "a target is read as it was accepted, and never as a candidate",
                "publish the run first, or leave the snapshot out: what is accepted is read",
            )
        )
    return by_run(_in_range(target, accepted_then(platform, table, snapshot_id), first, last))


def upstream_of_first(
    platform: Platform, target: TargetTable, manifest: RunManifest, warm_up: int, source: SourceState
) -> tuple[UpstreamRun, ...]:
    """Return the runs that hold what is read of a target's first source, where that is a target itself."""
    publish, asked = manifest.target.publish_range, manifest.warm_up
    days = timedelta(days=max(warm_up, 0 if asked is None else asked.days)) + ZONE_MARGIN
    first = date.min if target.look_back_columns else publish.start - days
    return upstream_of(platform, target.source, source.snapshot_id, first, publish.end + ZONE_MARGIN)


def require_policy_of_upstream(platform: Platform, target: TargetTable) -> None:
    """Refuse to read a target of which the policy says nothing, although it says something of what that is computed from.

    What was published there before a subject was erased, a column was masked or rows grew too old would else be read on.

    Raises:
        PlanRefused: naming each such target, and what the policy speaks of.
    """
    policy, problems = platform.policy, []
    for name in target.every_source:
        if platform.products.find_target(name) is None or policy.source_rule(name, target.name) is not None:
            continue
        spoken_of = [origin for origin, reader in origins(platform, name) if policy.source_rule(origin, reader)]
        if spoken_of:
            problems.append(
                Problem(
                    f"{name} is computed from {', '.join(dict.fromkeys(spoken_of))}, of which the policy says what may be used; "
                    f"of {name} as a source of {target.name} it says nothing",
                    "old data is used as policy allows today, by whichever table it comes",
                    f"have the policy say it of {name}, too: who is erased, which columns are masked, how long rows are kept",
                )
            )
    if problems:
        raise PlanRefused(problems)


def origins(platform: Platform, name: str) -> Iterator[tuple[str, str]]:
    """Yield each table that a target is computed from, by way of others too, with the target that reads it."""
    target = platform.products.find_target(name)
    for origin in () if target is None else target.every_source:
        yield origin, name
        yield from origins(platform, origin)


def by_run(holders: Mapping[str, str]) -> tuple[UpstreamRun, ...]:
    """Return runs by name, each with its chunks in order."""
    runs: dict[str, list[str]] = {}
    for chunk, run_id in sorted(holders.items()):
        runs.setdefault(run_id, []).append(chunk)
    return tuple(UpstreamRun(run_id, tuple(chunks)) for run_id, chunks in sorted(runs.items()))


def _in_range(target: TargetTable, holders: Mapping[str, str], first: date, last: date) -> dict[str, str]:
    return {chunk: run_id for chunk, run_id in holders.items() if touches_days(target, chunk, first, last)}


def touches_days(target: TargetTable, chunk: str, first: date, last: date) -> bool:
    """Return whether a chunk of a target has a day of a range, both inclusive."""
    begins = first_day(target.chunking, chunk)
    return begins <= last and last_day(target.chunking, begins) >= first


_TICK = timedelta(microseconds=1)


def days_read(plan: Plan) -> dict[str, tuple[date, date]]:
    """Return the first and the last day, both inclusive, that a plan reads of each source."""
    begins = date.min if plan.look_back is not None else plan.read_from.date()
    publish = plan.publish_range
    found = {plan.source: (begins, (plan.read_until - _TICK).date())}  # until is exclusive
    return found | {one.table: touched_days(one, publish.start, publish.end) for one in plan.sources}


def superseded_of(platform: Platform, record: RunRecord) -> list[Superseded]:
    """Return the same of the chunks that a run holds today, by the plans that they were computed from; none of one that holds none."""
    whole = platform.ledger.with_plan(record)
    mine = {chunk for chunk, run_id in platform.ledger.accepted(record.target).items() if run_id == record.run_id}
    plans = {plan.hash: plan for key, plan in platform.ledger.plans(whole).items() if key in mine}
    found = [one for plan in plans.values() for one in superseded(platform, plan)]
    return list(dict.fromkeys(found))


def superseded(platform: Platform, plan: Plan) -> Iterator[Superseded]:
    """Yield what has become of the upstream targets that a plan reads, where others hold by now what it has read."""
    read = {plan.source: plan.upstream} | {one.table: one.upstream for one in plan.sources}
    for table, (first, last) in days_read(plan).items():
        target = platform.products.find_target(table)
        if target is None:
            continue
        then = {chunk: one.run_id for one in read[table] for chunk in one.chunks}
        now = _in_range(target, platform.ledger.accepted(table), first, last)
        changed: dict[tuple[str, str], list[str]] = {}
        for chunk in sorted(then.keys() | now.keys()):
            if then.get(chunk) != now.get(chunk):
                changed.setdefault((then.get(chunk, ""), now.get(chunk, "")), []).append(chunk)
        for (was, by), chunks in sorted(changed.items()):
            yield Superseded(table, tuple(chunks), was, by)
