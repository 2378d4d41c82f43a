"""The runs by which a table of a read model gets what the other one has: planned here, approved, computed and published like any other.

Put here which manifest is written for a gap, and what becomes of it until it waits for a person. Which days are missing is `lag`'s.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count

from backfill_assets import decisions
from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.migration.lag import Gap
from backfill_assets.planning.resolve import plan_run
from backfill_assets.who_decides import run_and_rule
from manifests.chunks import first_day, last_day
from manifests.errors import InputRefused, Problem, StateMoved
from manifests.kinds import FILLS
from manifests.lifecycle import RunState
from manifests.model import DayRange, Kind, RunManifest
from manifests.reading import manifest_from
from manifests.who_may import proposal_problems
from resources.ledger.facade import RunRecord, operator

APPROVED_BY = "policy:migration"
OPEN = frozenset(
    {RunState.PLANNED, RunState.APPROVED, RunState.RUNNING, RunState.STAGED, RunState.FAILED, RunState.VALIDATED}
)
"""States of a run that may change its target yet."""
_DIGEST, _ATTEMPTS = 8, 5


@dataclass(frozen=True)
class CatchUp:
    """What fills one gap: a run, or None where another one has to end first; and what it waits for, in words."""

    gap: Gap
    record: RunRecord | None
    why: str


def catch_up(platform: Platform, migration: Migration, target: TargetTable, version: str, gap: Gap) -> CatchUp:
    """Plan the run that fills a gap of a target, unless it is there; two calls make one run.

    What the rule of the table approves of proposals is approved; else it waits for a person.
    """
    snapshot_id = platform.lakehouse.snapshot_id(target.source)
    if snapshot_id is None:
        raise InputRefused(
            Problem(f"{target.source} has no rows", "history is computed from a source", "load it first")
        )
    for record in platform.ledger.runs(target=target.name, states=OPEN):
        scope = record.plan.publish_range
        if not record.plan.mode.publishes or scope.start > gap.days.end or scope.end < gap.days.start:
            continue
        if not _is_ours(migration, record):
            return CatchUp(
                gap, None, f"{record.run_id} is {record.state} and changes {record.plan.scope}: it comes first"
            )
        if (scope, record.plan.source_snapshot_id) == (gap.days, snapshot_id) or record.state is not RunState.PLANNED:
            return _by_rule(platform, gap, record)
        _withdraw(platform, record)
    manifest = _written(platform, migration, target, version, gap, snapshot_id)
    platform.ledger.ticks.record(manifest, platform.ledger.now())
    return _by_rule(platform, gap, plan_run(platform, manifest))


def withdraw(platform: Platform, migration: Migration) -> None:
    """Cancel the runs of a migration that wait for approval: it went on, and asks for others from here."""
    for table in (migration.old, migration.new):
        for record in platform.ledger.runs(target=table, states={RunState.PLANNED}):
            if _is_ours(migration, record):
                _withdraw(platform, record)


def _withdraw(platform: Platform, record: RunRecord) -> None:
    """Cancel a run that waits for approval, and that fills another gap than there is today."""
    why = "the migration has gone on, or the tables have changed, since it was planned"
    with suppress(StateMoved):  # somebody has decided about it just now: that comes first
        platform.ledger.move(
            record.run_id,
            RunState.CANCELLED,
            operator(),
            why,
            expected=RunState.PLANNED,
            plan_hash=record.plan_hash,
        )


def _is_ours(migration: Migration, record: RunRecord) -> bool:
    return record.run_id.startswith(_prefix(migration)) and record.manifest.requested_by == migration.requested_by


def _prefix(migration: Migration) -> str:
    return f"migrate-{migration.name.replace('_', '-')[:24]}-"


def _by_rule(platform: Platform, gap: Gap, record: RunRecord) -> CatchUp:
    run_id = record.run_id
    if record.state is not RunState.PLANNED:
        return CatchUp(gap, record, f"{run_id} is {record.state}: `backfill run {run_id}`, or the UI, takes it on")
    if problems := proposal_problems(run_and_rule(platform, run_id)[2], run_id, len(record.plan.chunks)):
        return CatchUp(gap, record, f"{run_id} waits for approval ({problems[0].rule})")
    comment = "as the rule of its table says of proposals"
    record = decisions.approve_by_policy(platform, run_id, by=APPROVED_BY, comment=comment)
    return CatchUp(gap, record, f"{run_id} is {record.state} by rule: `backfill run {run_id}`, or the UI, takes it on")


def _written(
    platform: Platform, migration: Migration, target: TargetTable, version: str, gap: Gap, snapshot_id: int
) -> RunManifest:
    what = f"{target.name} {snapshot_id} {gap.days.start} {gap.days.end}"
    first = f"{_prefix(migration)}{gap.days.start:%Y%m%d}-{sha256(what.encode()).hexdigest()[:_DIGEST]}"
    run_id, ended = first, 0
    for number in count(2):
        record = platform.ledger.find(run_id)
        if record is None:
            break
        # one that the migration has withdrawn itself, before anybody decided about it, is no try
        ended += record.state is not RunState.CANCELLED or bool(platform.ledger.approvals(run_id))
        if ended == _ATTEMPTS:
            raise InputRefused(
                Problem(
                    f"{_ATTEMPTS} runs that were to fill {gap} of {target.name} have ended without it",
                    "a run that was ended is planned anew a few times, and not for ever",
                    f"see `backfill status {first}`; plan a manifest of your own for these days",
                )
            )
        run_id = f"{first}.{number}"
    return manifest_from(
        {
            "runId": run_id,
            "kind": _kind(platform, target, gap.days).value,
            "requestedBy": migration.requested_by,
            "reason": f"Migration {migration.name}: {target.name} lacks {gap}.",
            "source": {"table": target.source, "snapshotId": snapshot_id},
            "transform": {"name": target.transform, "version": version},
            "target": {
                "table": target.name,
                "publishRange": {"start": gap.days.start.isoformat(), "end": gap.days.end.isoformat()},
            },
            "development": migration.development,
            "purpose": migration.purpose,
        },
        where=f"migration {migration.name}",
    )


def _kind(platform: Platform, target: TargetTable, days: DayRange) -> Kind:
    """Return what a run over some days of a target is: a kind means something, and the planner holds it to that."""
    held = platform.ledger.accepted(target.name)
    starts = {key: first_day(target.chunking, key) for key in held}
    if any(start <= days.end and last_day(target.chunking, start) >= days.start for start in starts.values()):
        return Kind.RESTATEMENT
    kinds = {platform.ledger.run(run_id).kind for run_id in set(held.values())}
    return Kind.MIGRATION if kinds <= FILLS else Kind.BACKFILL
