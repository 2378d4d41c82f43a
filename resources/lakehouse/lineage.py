"""The snapshots behind a ref, in order: how a table's history is followed, also where an expiry has left gaps in it.

Put here how one snapshot leads to the one before it. What a snapshot holds is `live_files`'s to say; which snapshots may
expire is `backfill_assets.operations.garbage`'s, and removing them is `history`'s.

PyIceberg cuts the link from a snapshot to a parent that expires. So an expiry that takes snapshots from the middle of
main's history leaves a tag `past-<snapshot id>` at the newest snapshot of each part before a gap: it says that the
snapshot was in the history of main. Without it the publications before the gap would seem never to have landed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot

_PAST = "past-"


def past_of(snapshot_id: int) -> str:
    """Return the name of the tag that marks a snapshot as the newest of main's history before a gap."""
    return f"{_PAST}{snapshot_id}"


def is_past(ref: str, snapshot_id: int) -> bool:
    """Tell whether a ref that names a snapshot is such a mark."""
    return ref == past_of(snapshot_id)


def lineage_of(table: Table, ref: str | None = None) -> list[Snapshot]:
    """Return the snapshots from a branch or tag (main, if None) back to the oldest one known, newest first.

    Main's history goes on behind its gaps; of another ref it ends at the first one.
    """
    return list(ancestors(table, ref or MAIN_BRANCH))


def ancestors(table: Table, ref: str = MAIN_BRANCH) -> Iterator[Snapshot]:
    """Yield the snapshots of `lineage_of`, each once; a look-up that finds what it wants early follows no further."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}  # PyIceberg's own look-up is a search
    left = dict(by_id)
    refs = table.refs()
    last: Snapshot | None = None
    head = refs.get(ref)
    if head is None:
        return
    for last in _chain(left, head.snapshot_id):
        yield last
    if ref != MAIN_BRANCH or last is None:
        return
    marked = [by_id[one.snapshot_id] for name, one in refs.items() if is_past(name, one.snapshot_id)]
    for mark in sorted(marked, key=_age, reverse=True):
        if _age(mark) < _age(last):  # else main has been moved back behind it: it is no history of what main is now
            for last in _chain(left, mark.snapshot_id):
                yield last


@dataclass(frozen=True)
class Past:
    """What main had been, as far as the table knows, when it was a snapshot; see `past_before`.

    Attributes:
        snapshots: those that lead to it, itself first, and the older ones of main's history, also behind its gaps.
        before: those that main has been before it, and was moved back from.
        known: every snapshot that the table knows.
        at: when it was committed.
    """

    snapshots: tuple[Snapshot, ...]
    before: frozenset[int]
    known: frozenset[int]
    at: datetime

    def has(self, snapshot_id: int | None, recorded_at: datetime) -> bool:
        """Tell whether main had been a snapshot by then; of one that has expired since, when it was recorded says so."""
        if snapshot_id in self.known:
            return snapshot_id in self.before or any(one.snapshot_id == snapshot_id for one in self.snapshots)
        return recorded_at <= self.at


def past_before(table: Table, snapshot_id: int) -> Past | None:
    """Return what main had been when it was a snapshot; None if the table does not know that snapshot."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    present = by_id.get(snapshot_id)
    if present is None:
        return None
    own = list(_chain(dict(by_id), snapshot_id))
    seen = {one.snapshot_id for one in own}
    own += [one for one in ancestors(table) if one.snapshot_id not in seen and _age(one) < _age(present)]
    log = [entry.snapshot_id for entry in table.metadata.snapshot_log]
    newest = max((index for index, one in enumerate(log) if one == snapshot_id), default=0)
    at = datetime.fromtimestamp(present.timestamp_ms / 1000, UTC)
    return Past(tuple(own), frozenset(log[:newest]), frozenset(by_id), at)


def _chain(left: dict[int, Snapshot], snapshot_id: int) -> Iterator[Snapshot]:
    """Yield a snapshot and those that it leads to, out of those that are left: metadata that was changed may lead in a circle."""
    snapshot = left.pop(snapshot_id, None)
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else left.pop(parent, None)


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def withdrawn(version: str) -> str:
    """Return the name under which a version that was rolled back stays readable."""
    return f"withdrawn-{version}"


def base_tag(run_id: str) -> str:
    """Return the name of the tag at the snapshot that a run was planned on."""
    return f"before-{run_id}"


def amended_base_tag(run_id: str, snapshot_id: int) -> str:
    """Return the name of the tag at a snapshot that chunks of a run were planned anew on: no id of a run has an `@`."""
    return f"before-{run_id}@{snapshot_id}"
