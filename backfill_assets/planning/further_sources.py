"""Sources beside a target's first, looked up when a run is planned: their snapshots, and which runs made what is read of a target.

Put here what is asked of tables, ledger and policy. What is read of each, and why it may not be, is
`manifests.further_sources`'; the first source is looked up in `resolve`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import date

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import facts_of
from manifests.facts import FurtherSource, SourceState
from manifests.further_sources import FoundSource, PinnedSource
from manifests.model import RunManifest
from manifests.plan import Plan
from manifests.policy import Policy


def found_sources(
    platform: Platform,
    target: TargetTable,
    manifest: RunManifest,
    policy: Policy,
    today: date,
    kept: Callable[[], AbstractContextManager[None]],
    *,
    keep: bool,
) -> dict[str, FoundSource]:
    """Return what is known of each source beside the first; one that is refused is left out, and its refusal is `kept`.

    With `keep` the erased subjects that a plan pins are kept in the ledger.
    """
    wanted = {one.table: one.snapshot_id for one in manifest.sources}
    found = {}
    for source in target.sources:
        with kept():
            state = _state(platform, source.contract, wanted.get(source.table))
            facts = None
            if state is not None:
                asked = platform, policy, target, source.table, state.snapshot_id
                facts = facts_of(*asked, today, keep=keep)
            found[source.table] = FoundSource(state, facts)
    return found


def _state(platform: Platform, source: FurtherSource, wanted: int | None) -> SourceState | None:
    """Return a source at the snapshot that is wanted, or as it is now; None of a table without a snapshot."""
    if platform.lakehouse.snapshot_id(source.table) is None:
        return None
    return platform.lakehouse.source_state(source.table, source.time_column, wanted)


def repinned(platform: Platform, plan: Plan) -> tuple[PinnedSource, ...]:
    """Return the pins of a plan on the tables as they are now: newest snapshots, everything else as it was approved."""
    pins = []
    for pin in plan.sources:
        snapshot_id = platform.lakehouse.snapshot_id(pin.table)
        if snapshot_id is None:
            pins.append(pin)
            continue
        state = platform.lakehouse.source_state(pin.table, pin.time_column, snapshot_id)
        moved = replace(pin, has_dates=state.has_dates, snapshot_id=snapshot_id, committed_at=state.committed_at)
        pins.append(moved)
    return tuple(pins)
