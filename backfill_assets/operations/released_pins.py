"""Tags by which plans keep the snapshots that they read: which of them no run needs any more, and letting these go.

Put here what concerns tables that are read. What is collected of the tables that runs change is `garbage`'s; which tags a plan
has is `planning.pinned_snapshots`'.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from pyiceberg.table.refs import SnapshotRefType

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.planning.pinned_snapshots import pins_of
from manifests.errors import InputRefused
from resources.lakehouse.refs import pin_of
from resources.ledger.facade import RunRecord


def tables_read(platform: Platform) -> list[str]:
    """Return the tables that plans read: those that targets are computed from, sources and references, and targets, which compactions read."""
    return sorted({name for target in platform.products.targets for name in (target.name, *target.every_read)})


def needed_pins(platform: Platform, records: Sequence[RunRecord], over: Container[str]) -> dict[str, set[int]]:
    """Return the snapshots that runs need which are not over, by table."""
    terms = platform.ledger.terms()
    return pins_of(one for record in records if record.run_id not in over for one in terms[record.run_id].each)


def releasable(platform: Platform, name: str, needed: Container[int]) -> list[str]:
    """Return the tags of a table by which plans keep snapshots that nobody needs: each is our own, and where we put it."""
    try:
        refs = platform.lakehouse.table(name).refs()
    except InputRefused:  # declared and not made yet
        return []
    return sorted(
        tag
        for tag, ref in refs.items()
        if tag == pin_of(ref.snapshot_id)
        and ref.snapshot_ref_type is SnapshotRefType.TAG
        and ref.snapshot_id not in needed
    )


def release(platform: Platform, name: str, tags: Sequence[str]) -> None:
    """Remove tags from a table, in one commit.

    A plan is recorded before its snapshots are tagged. So whoever was recorded before the tags went is found by who looks
    afterwards, as `garbage.collect` does, and whoever is recorded later does not find them.
    """
    refs = platform.lakehouse.table(name).refs()
    going = {tag: refs[tag].snapshot_id for tag in tags if tag in refs and tag == pin_of(refs[tag].snapshot_id)}
    if going:
        platform.lakehouse.point(name, expected=going, removed=list(going))
        faults.reach("collecting.released")
