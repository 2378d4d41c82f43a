"""Who had accepted the chunks of a target when a snapshot was what its readers saw.

Put here how the ledger's record of who holds what is held against the history of the table. A plan pins the rows that its
gates and reconciliations compare with; others publish, roll back and reinstate while it is judged, so that who holds a
chunk by then says nothing about those rows. What is compared with them is the product's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from backfill_assets.installation import Platform
from backfill_assets.planning.accepted_base import unrecorded, unrecorded_at
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from resources.lakehouse.lineage import Past, past_before
from resources.ledger.accepted_versions import AcceptedVersion
from resources.ledger.facade import PublicationRecord


def accepted_then(
    platform: Platform, target: str, snapshot_id: int | None, keys: Collection[str] | None = None
) -> dict[str, str]:
    """Return the run that had been accepted for each chunk of a target (of `keys`, if given) when main was a snapshot.

    None of them had been, where `snapshot_id` is None: the table had no rows.

    Raises:
        EnvironmentRefused: if the ledger does not say yet: a change of theirs that led to that snapshot is not on record.
        InputRefused: if the snapshot is gone.
    """
    if snapshot_id is None:
        return {}
    held, committed, past = _known_of(platform, target, snapshot_id)
    if past is None:
        raise InputRefused(
            Problem(
                f"{target} has snapshot {snapshot_id} no more",
                "what is judged is held against the rows that its plan was made on",
                "plan the change again, under a new run id, on the table as it is now",
            )
        )
    if problems := _of_chunks(platform, unrecorded(platform, target, past, committed), keys):
        raise EnvironmentRefused(problems)
    return _holders(past, held, committed, keys)


def unrecorded_then(platform: Platform, target: str, snapshot_id: int | None, keys: Collection[str]) -> list[Problem]:
    """Return what `accepted_then` would refuse: each change of these chunks that led to a snapshot and is not on record."""
    return _of_chunks(platform, unrecorded_at(platform, target, snapshot_id), keys)


def _of_chunks(
    platform: Platform, changes: Iterable[tuple[str, str, Problem]], keys: Collection[str] | None
) -> list[Problem]:
    """Say which of these changes may have changed who holds some chunks (any, without `keys`)."""
    return [
        problem
        for run_id, _, problem in changes
        if keys is None or any(chunk.key in keys for chunk in platform.ledger.run(run_id).plan.chunks)
    ]


def held_then(platform: Platform, target: str, snapshot_id: int | None, keys: Collection[str]) -> dict[str, str] | None:
    """Return the same, as far as it is on record; None where the snapshot is gone."""
    if snapshot_id is None:
        return {}
    held, committed, past = _known_of(platform, target, snapshot_id)
    return None if past is None else _holders(past, held, committed, keys)


def _known_of(
    platform: Platform, target: str, snapshot_id: int
) -> tuple[Sequence[AcceptedVersion], Collection[PublicationRecord], Past | None]:
    """Return who has held what, what was committed, and what led to a snapshot; None of a snapshot that is gone."""
    held = platform.ledger.holdings(target)  # before what was committed is read: each of these came by one of those
    committed = platform.ledger.committed(target)
    return held, committed, past_before(platform.lakehouse.table(target), snapshot_id)


def _holders(
    past: Past, held: Sequence[AcceptedVersion], committed: Collection[PublicationRecord], keys: Collection[str] | None
) -> dict[str, str]:
    changed_by = {one.ended_at: one.snapshot_id for one in committed}

    def had_happened(at: datetime | None) -> bool:
        return at is not None and past.has(changed_by.get(at), at)

    return {
        one.chunk: one.run_id
        for one in held
        if (keys is None or one.chunk in keys) and had_happened(one.accepted_at) and not had_happened(one.ended_at)
    }
