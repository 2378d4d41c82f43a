"""What has been accepted of a target: what a manifest is held against when it is planned, and a plan when it is published.

Put here what the ledger knows. What the table has of a range is looked up in `resolve`, what is made of both is the rules'
of `manifests`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.chunks import first_day, last_day, part_of
from manifests.errors import Problem
from manifests.facts import BaseState
from manifests.kinds import Holder, Present
from manifests.lifecycle import ACCEPT, PUBLISH, ROLLBACK, RunState
from manifests.model import DayRange, Kind, Mode
from manifests.plan import Plan
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY
from resources.lakehouse.lineage import Past, past_before
from resources.ledger.facade import PublicationRecord


def base_state(
    platform: Platform,
    target: TargetTable,
    scope: DayRange,
    snapshot_id: int | None = None,
    keys: Collection[str] | None = None,
    values: Collection[str] | None = None,
) -> BaseState:
    """Return what is known of a target: how far it is complete, and of a range that LIVE has written, by what source.

    With `snapshot_id`, what led to that snapshot counts, whether it is on record yet or not. With `keys`, the runs that hold
    these chunks are looked at, and no others. With `values` (or buckets), what is held of others says nothing of how old it is.
    """
    watermark = platform.ledger.watermarks.current(target.name)
    accepted = _holders(platform, target, snapshot_id)
    wanted = accepted.keys() if keys is None else frozenset(keys)
    holders = {key: run_id for key, run_id in accepted.items() if key in wanted}
    records = platform.ledger.runs_named(set(holders.values()))
    terms = platform.ledger.terms({*records, *([] if watermark is None else [watermark.run_id])})
    # of a chunk that was planned anew, by the plan that it was computed from
    made_by = {key: terms[run_id].of(key) for key, run_id in holders.items()}
    days = {key: _days(target, key) for key in holders}
    states = [RunState.PUBLISHED, RunState.SUPERSEDED]
    published = platform.ledger.runs(target=target.name, states=states, mode=Mode.LIVE)
    live = [one for one in ({one.run_id: one for one in published} | records).values() if one.mode == Mode.LIVE]
    was_live = any(touches(one.manifest.target.publish_range, scope) for one in live)
    of_scope = [key for key in holders if touches(days[key], scope) and (values is None or part_of(key) in values)]
    newest = max((made_by[key].source_committed_at for key in of_scope), default=None)
    complete = None if watermark is None else terms[watermark.run_id].approved
    return BaseState(
        complete_sources=_newest_of_further([] if complete is None else [complete]),
        held_sources=_newest_of_further([made_by[key] for key in of_scope]),
        complete_until=None if watermark is None else watermark.complete_until,
        complete_at=None if watermark is None else watermark.source_at,
        accepted=frozenset(accepted),
        live_at=newest if was_live else None,
        held_at=newest,
        present=Present(
            holders={
                key: Holder(
                    Kind(records[run_id].kind),
                    records[run_id].manifest.transform.version,
                    frozenset(made_by[key].made_of),
                )
                for key, run_id in holders.items()
            },
            days={key: (one.start, one.end) for key, one in days.items()},
            live_has_begun=bool(live),
        ),
    )


def _newest_of_further(plans: Sequence[Plan]) -> dict[str, datetime]:
    """Return when the newest snapshot was committed that plans have read of each source beside the first."""
    found: dict[str, datetime] = {}
    for one in (one for plan in {id(plan): plan for plan in plans}.values() for one in plan.sources if one.day is None):
        if one.committed_at is not None:
            found[one.table] = max(one.committed_at, found.get(one.table, one.committed_at))
    return found


def _days(target: TargetTable, key: str) -> DayRange:
    first = first_day(target.chunking, key)
    return DayRange.model_construct(start=first, end=last_day(target.chunking, first))


def touches(mine: DayRange, scope: DayRange) -> bool:
    """Return whether two ranges have a day in common."""
    return mine.start <= scope.end and mine.end >= scope.start


def _holders(platform: Platform, target: TargetTable, snapshot_id: int | None) -> dict[str, str]:
    """Return the run that each chunk is from: also by a change that led to a snapshot, and is on record later."""
    ledger = platform.ledger
    found = ledger.accepted(target.name)
    for run_id, action, _ in unrecorded_at(platform, target.name, snapshot_id):
        plan = ledger.run(run_id).plan
        if action != ROLLBACK and plan.compaction is None:  # which holds no chunk
            found |= dict.fromkeys((chunk.key for chunk in plan.chunks), run_id)
    return found


def unrecorded_at(platform: Platform, target: str, snapshot_id: int | None) -> list[tuple[str, str, Problem]]:
    """Return what `unrecorded` says of a snapshot; nothing where there is none, or it has expired since it was looked up."""
    if snapshot_id is None or not platform.ledger.interrupted_publications(target):
        return []
    past = past_before(platform.lakehouse.table(target), snapshot_id)
    return [] if past is None else [*unrecorded(platform, target, past, platform.ledger.committed(target))]


def not_on_record(run_id: str, action: str, where: str) -> Problem:
    """Say what has landed, and how it comes to be on record."""
    return Problem(
        f"{action} of run '{run_id}' has landed in {where}, and is not on record",
        "the ledger says who has what, and does not say it yet",
        "`backfill doctor --repair` records it, unless another process is doing so; then run the same command again",
    )


def unrecorded(
    platform: Platform, target: str, past: Past, committed: Collection[PublicationRecord]
) -> Iterator[tuple[str, str, Problem]]:
    """Yield the run and the action of each change that led to a snapshot and is not on record, and that in words."""
    known = {(one.run_id, one.snapshot_id, one.action) for one in committed}
    for _, run_id, action in platform.ledger.interrupted_publications(target):
        written = PUBLISH if action == ACCEPT else action
        for snapshot in past.snapshots:
            if (said := snapshot.summary) is None:
                continue
            is_its_own = said.get(RUN_PROPERTY) == run_id and said.get(ACTION_PROPERTY) == written
            if is_its_own and (run_id, snapshot.snapshot_id, action) not in known:
                yield (
                    run_id,
                    action,
                    not_on_record(run_id, action, f"{target}, as snapshot {snapshot.snapshot_id}"),
                )
