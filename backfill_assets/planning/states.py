"""States that a run starts from, looked up when it is planned: who holds them, what made them, and what has come since.

Put here what is asked of tables, ledger and policy. Why a state may not be started from is `manifests.starts`'.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import date

from backfill_assets.declarations.target import TargetTable, no_warm_up
from backfill_assets.installation import Platform
from backfill_assets.planning.upstream import upstream_of
from manifests.chunks import first_day, key_of, last_day
from manifests.errors import PlanRefused
from manifests.further_sources import PinnedSource
from manifests.model import RunManifest
from manifests.plan import Plan
from manifests.starts import FoundStart, MadeState, pin_of_start, start_problems
from resources.ledger.facade import RunRecord


def found_start(
    platform: Platform, target: TargetTable, manifest: RunManifest, source_snapshot_id: int
) -> FoundStart | None:
    """Return what is known of the states that a manifest names; None where it names none, or none that its target declares.

    `source_snapshot_id` is the snapshot of the source that the run would read.

    Raises:
        Refused: as `upstream_of` does of any target that is read.
    """
    asked, declared = manifest.source.start_from, target.starts_from
    if asked is None or declared is None or asked.table != declared.table:
        return None
    states = platform.products.target(declared.table)
    chunk = key_of(states.chunking, asked.day)
    ends = last_day(states.chunking, first_day(states.chunking, chunk))
    policy = tuple(_spoken_of(platform, target, states))
    found = FoundStart(states.day_column, chunk, ends, policy=policy)
    snapshot_id = platform.lakehouse.snapshot_id(states.name)
    if snapshot_id is None:
        return found
    state = platform.lakehouse.source_state(states.name, states.day_column, snapshot_id)
    holders = [
        one for one in upstream_of(platform, states.name, snapshot_id, asked.day, asked.day) if chunk in one.chunks
    ]
    if not holders:
        return found
    record = platform.ledger.with_plan(platform.ledger.run(holders[0].run_id))
    made = _made(platform, target, record, platform.ledger.plans(record)[chunk], source_snapshot_id, asked.day)
    return FoundStart(states.day_column, chunk, ends, state, made, policy)


def restarted(
    platform: Platform, target: TargetTable, manifest: RunManifest, plan: Plan, source_snapshot_id: int
) -> PinnedSource:
    """Return the pin of the states that a plan starts from on the tables as they are now.

    Raises:
        PlanRefused: if a run could not start from them any more.
    """
    found = found_start(platform, target, manifest, source_snapshot_id)
    contract = replace(target, warm_up_days=no_warm_up).contract({})
    if problems := start_problems(manifest, contract, found, plan.input_range):
        raise PlanRefused(problems)
    assert manifest.source.start_from is not None
    assert found is not None
    return pin_of_start(manifest.source.start_from, found)


def _made(
    platform: Platform, target: TargetTable, record: RunRecord, plan: Plan, source_snapshot_id: int, day: date
) -> MadeState:
    then, now = plan.code.product, platform.code_of(plan.target, loaded_only=True).product
    is_same = then is not None and now is not None and then.content_hash == now.content_hash
    code = ("", "") if is_same else (str(then or plan.code), str(now))
    made_of = plan.source_snapshot_id
    assert target.starts_from is not None
    came: tuple[date, ...] | None = ()
    is_ancestor = _is_ancestor(platform, target.source, made_of, source_snapshot_id)
    if is_ancestor is None:
        came = None
    elif is_ancestor:
        column = target.starts_from.source_day
        days = platform.lakehouse.days_of_other_files(target.source, column, made_of, source_snapshot_id)
        came = tuple(sorted(one for one in days if one is not None and one <= day))
    return MadeState(record.run_id, plan.transform_version, *code, made_of, is_ancestor is not False, came)


def _is_ancestor(platform: Platform, name: str, earlier: int, later: int) -> bool | None:
    """Return whether a snapshot of a table is in the history of another one, or is that; None where the first is gone."""
    table = platform.lakehouse.table(name)
    one, other = table.snapshot_by_id(earlier), table.snapshot_by_id(later)
    if one is None or other is None:
        return None
    # by main, whose history is known also where snapshots within it have expired
    history = platform.lakehouse.history(name)
    known = earlier == later or {earlier, later} <= history
    return known and (one.sequence_number or 0) <= (other.sequence_number or 0)


def _spoken_of(platform: Platform, target: TargetTable, states: TargetTable) -> Iterator[str]:
    """Yield the tables of which the policy says what of them may be used, for the run or for the states."""
    read = ((target.source, target.name), (states.name, target.name), (states.source, states.name))
    yield from dict.fromkeys(name for name, reader in read if platform.policy.source_rule(name, reader) is not None)
