"""The snapshots that plans pin in tables which are read, kept there by tags until no run on record needs them.

Another program's expiry keeps what a tag names: without one it would remove what a plan is to be computed from, or what a
published run would be reproduced from. Put here which tags there are to be. When they may go is
`operations.released_pins`'; the base of a target, which a publication replaces, has tags of its own (`publication.change`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from backfill_assets.installation import Platform
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from manifests.plan import Plan
from resources.lakehouse.partitions import WRITTEN_FORMAT
from resources.lakehouse.refs import pin_of
from resources.ledger.facade import RunRecord


def pins_of(plans: Iterable[Plan]) -> dict[str, set[int]]:
    """Return the snapshots that plans read, by table."""
    found: dict[str, set[int]] = {}
    for plan in plans:
        for table, snapshot_id in plan.source_pins:
            found.setdefault(table, set()).add(snapshot_id)
        if plan.merge is not None and plan.merge.changed_since is not None:
            found[plan.source].add(plan.merge.changed_since)
            for one in plan.merge.sources:
                found.setdefault(one.table, set()).add(one.snapshot_id)
        for pin in plan.references:
            found.setdefault(pin.table, set()).add(pin.snapshot_id)
    return found


def pins_of_run(platform: Platform, record: RunRecord) -> dict[str, set[int]]:
    """Return the snapshots that the plans of a run read, also those that it was planned anew with, by table."""
    whole = platform.ledger.with_plan(record)
    return pins_of([whole.plan, *platform.ledger.plans(whole).values()])


def keep(platform: Platform, pins: Mapping[str, AbstractSet[int]]) -> None:
    """Tag snapshots in their tables, where no tag is there yet; safe to repeat.

    A snapshot that its table does not have any more is passed over: whoever reads it says so.

    Raises:
        EnvironmentRefused: if a table cannot be tagged.
    """
    if not platform.settings.tag_pinned_snapshots:
        return
    for name, snapshot_ids in sorted(pins.items()):
        for snapshot_id in untagged_of(platform, name, snapshot_ids):
            _tag(platform, name, snapshot_id)


def untagged_of(platform: Platform, name: str, snapshot_ids: Iterable[int]) -> list[int]:
    """Return those snapshots that a table has, and that no tag of a plan keeps.

    None of a table of a format that cannot be written here: whoever expires its snapshots has to keep what plans read.
    """
    try:
        table = platform.lakehouse.table(name)
    except InputRefused:  # it is not there
        return []
    if table.format_version > WRITTEN_FORMAT:
        return []
    known, refs = {one.snapshot_id for one in table.snapshots()}, table.refs()
    return sorted(one for one in set(snapshot_ids) & known if pin_of(one) not in refs)


def _tag(platform: Platform, name: str, snapshot_id: int) -> None:
    try:
        platform.lakehouse.tag(name, pin_of(snapshot_id), snapshot_id)
    except EnvironmentRefused as refusal:
        raise EnvironmentRefused(
            Problem(
                f"snapshot {snapshot_id} of {name} cannot be tagged: {refusal.problems[0].what}",
                "what a plan pins is tagged, so that no other program's expiry removes it",
                "run the same command again; where this installation may not write to the table, set "
                "tag_pinned_snapshots to false and have its snapshots kept by whoever expires them",
            )
        ) from refusal
