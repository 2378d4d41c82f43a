"""Which runs have read, or will read, the rows of a load: those whose plans pin a snapshot that has them.

Put here what follows from plans and from the history of input tables. Taking a load back is `ingestion.table_loads`'s; what
of it is named as in need of attention, and when, is the doctor's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from backfill_assets.installation import Platform
from manifests.errors import Refused
from manifests.lifecycle import RunState
from manifests.model import Mode
from resources.lakehouse.loads import Load, content_of, without_content
from resources.ledger.facade import RunRecord

SHOWN = frozenset({RunState.PUBLISHED, RunState.SUPERSEDED})
"""States of a run whose rows readers see, or would see again if what came after it were rolled back."""
MAY_BE_SHOWN = frozenset(
    {
        RunState.PLANNED,
        RunState.APPROVED,
        RunState.RUNNING,
        RunState.STAGED,
        RunState.VALIDATED,
        RunState.FAILED,
        RunState.ROLLED_BACK,
    }
)
"""States from which a run may still be published, or reinstated."""


def pinned(platform: Platform, record: RunRecord) -> dict[str, frozenset[int]]:
    """Return the snapshots of each input table that a run reads: those of its plan, and of chunks planned anew."""
    snapshots: dict[str, set[int]] = defaultdict(set)
    for plan in platform.ledger.plans(platform.ledger.with_plan(record)).values():
        for table, snapshot_id in plan.source_pins:
            snapshots[table].add(snapshot_id)
        for pin in plan.references:
            snapshots[pin.table].add(pin.snapshot_id)
    return {table: frozenset(some) for table, some in snapshots.items()}


def publishing_with(platform: Platform, table: str, load_id: str) -> dict[str, RunState]:
    """Return the runs that show rows computed with a load, or may come to, with the state that each is in.

    Those too that have read its content by an earlier load of it; nobody where the content is in the table.

    Raises:
        IllegibleRow: if a plan on record cannot be read.
    """
    gone = {one.load_id for one in without_content(platform.lakehouse.loads(table))}
    loads = {one for one in gone if content_of(one) == content_of(load_id)}
    with_it = frozenset[int]().union(*(platform.lakehouse.snapshots_with_load(table, one) for one in loads))
    return {
        record.run_id: record.state
        for record in platform.ledger.runs(states=SHOWN | MAY_BE_SHOWN)
        if Mode(record.mode).publishes and not with_it.isdisjoint(pinned(platform, record).get(table, ()))
    }


def runs_reading(platform: Platform, table: str, load_id: str) -> dict[str, str]:
    """Return the runs whose plans read the rows of a load and that readers see, or may come to see; with the state of each.

    Raises:
        IllegibleRow: if a plan on record cannot be read.
    """
    with_it = platform.lakehouse.snapshots_with_load(table, load_id)
    return {
        record.run_id: record.state.value
        for record in platform.ledger.runs(states=SHOWN | MAY_BE_SHOWN)
        if Mode(record.mode).publishes and not with_it.isdisjoint(pinned(platform, record).get(table, ()))
    }


def taken_back(platform: Platform, pins: Mapping[str, Mapping[str, frozenset[int]]]) -> Iterator[tuple[str, str, Load]]:
    """Yield each load that a run has read, or will, and that was taken back since: the run, the table and the load.

    Content that was loaded again is there: what was computed with it is as it was. A table that is missing, or whose metadata
    cannot be read, has no loads here.

    Args:
        platform: the installation.
        pins: what `pinned` says of each run, by its id.
    """
    gone: dict[str, list[tuple[Load, frozenset[int]]]] = {}
    for run_id, pinned_by_it in pins.items():
        for table, snapshots in sorted(pinned_by_it.items()):
            if table not in gone:
                gone[table] = _gone(platform, table)
            for load, with_it in gone[table]:
                if not with_it.isdisjoint(snapshots):
                    yield run_id, table, load


def _gone(platform: Platform, table: str) -> list[tuple[Load, frozenset[int]]]:
    """Return the loads of a table whose content is not there any more, each with the snapshots that have its rows."""
    try:
        return [
            (load, platform.lakehouse.snapshots_with_load(table, load.load_id))
            for load in without_content(platform.lakehouse.loads(table))
        ]
    except Refused:
        return []
