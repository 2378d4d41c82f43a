"""What a table's metadata still reaches: snapshots, refs, and the files they reference; and making it forget.

Put here what reads or shortens the history of an Iceberg table by its metadata. What may be forgotten is the policy's
to say (`backfill_assets.garbage`); commits of data are `lakehouse`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, RemoveSnapshotsUpdate, TableUpdate

from manifests.errors import EnvironmentRefused, Problem
from resources.storage import place_of


@dataclass(frozen=True)
class Referenced:
    """The places that snapshots reference: data and delete files with their bytes and rows, and their manifests."""

    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    manifests: frozenset[str] = frozenset()

    def __contains__(self, path: str) -> bool:
        return path in self.files or path in self.manifests


def referenced(table: Table, snapshot_ids: Collection[int] | None = None) -> Referenced:
    """Return what snapshots of a table (all that its metadata holds, if None) reference; each manifest is read once.

    Raises:
        EnvironmentRefused: if a manifest cannot be read: nothing can be said of the table's files then.
    """
    files: dict[str, tuple[int, int]] = {}
    manifests: set[str] = set()
    for snapshot in table.snapshots():
        if snapshot_ids is not None and snapshot.snapshot_id not in snapshot_ids:
            continue
        manifests.add(place_of(snapshot.manifest_list))
        try:
            for manifest in snapshot.manifests(table.io):
                if (path := place_of(manifest.manifest_path)) in manifests:
                    continue
                manifests.add(path)
                for entry in manifest.fetch_manifest_entry(table.io):
                    file = entry.data_file
                    files[place_of(file.file_path)] = (file.file_size_in_bytes, file.record_count)
        except (OSError, ValueError) as error:
            raise EnvironmentRefused(
                Problem(
                    f"the metadata of snapshot {snapshot.snapshot_id} of {'.'.join(table.name())} cannot be read: "
                    f"{type(error).__name__}: {error}",
                    "every manifest of every snapshot is readable, or nobody knows which files are in use",
                    "restore the table's metadata folder from its backup",
                )
            ) from error
    return Referenced(files, frozenset(manifests))


def lineage_of(table: Table, ref: str | None = None) -> list[Snapshot]:
    """Return the snapshots from a branch or tag (the current snapshot, if None) back to the oldest one known."""
    snapshot = table.current_snapshot() if ref is None else table.snapshot_by_name(ref)
    chain = []
    while snapshot is not None:
        chain.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return chain


def expirable(table: Table, needed: Collection[int], *, before_ms: int, released: Collection[str] = ()) -> list[int]:
    """Return the snapshots older than an instant that neither a ref nor `needed` holds, oldest first.

    Of a branch only the oldest part can go: without a snapshot in its middle, nothing before it would be found any more
    (PyIceberg cuts the parent link, and publications are found by these links). `released` are refs that will be gone.
    """
    refs = {name: ref for name, ref in table.refs().items() if name not in released}
    held = set(needed) | {one.snapshot_id for one in table.snapshots() if one.timestamp_ms >= before_ms}
    kept = held | {ref.snapshot_id for ref in refs.values()}
    for name, ref in refs.items():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH:
            chain = [snapshot.snapshot_id for snapshot in lineage_of(table, name)]
            deepest = max((index for index, one in enumerate(chain) if one in held), default=0)
            kept.update(chain[: deepest + 1])
    oldest_first = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    return [one.snapshot_id for one in oldest_first if one.snapshot_id not in kept]


def forget(table: Table, *, refs: Iterable[str], snapshot_ids: Iterable[int]) -> None:
    """Remove refs and snapshots from a table's metadata, in one commit; deletes no file.

    A snapshot that a ref still names stays. The commit asks that every ref is where it was looked at.

    Raises:
        EnvironmentRefused: if somebody moved a ref meanwhile; nothing is removed then.
    """
    present_refs = table.refs()
    gone = [name for name in refs if name in present_refs and name != MAIN_BRANCH]
    held = {ref.snapshot_id for name, ref in present_refs.items() if name not in gone}
    present = {snapshot.snapshot_id for snapshot in table.snapshots()}
    ids = [one for one in snapshot_ids if one in present and one not in held]
    updates: tuple[TableUpdate, ...] = tuple(RemoveSnapshotRefUpdate(ref_name=name) for name in gone)
    if ids:
        updates = (*updates, RemoveSnapshotsUpdate(snapshot_ids=ids))
    if not updates:
        return
    requirements = tuple(
        AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id) for name, ref in present_refs.items()
    )
    try:
        table.catalog.commit_table(table, requirements, updates)
    except CommitFailedException as error:
        raise EnvironmentRefused(
            Problem(
                f"{'.'.join(table.name())} changed meanwhile: {error}",
                "a history is shortened as it was looked at",
                "nothing was removed from it; look again, and repeat the command",
            )
        ) from error
