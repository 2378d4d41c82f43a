"""What a table's metadata still reaches: snapshots, refs, and the files they reference; and making it forget.

Put here what reads or shortens the history of an Iceberg table by its metadata. What may be forgotten is the policy's
to say (`backfill_assets.operations.garbage`); commits of data are `commits`'s, of refs alone `refs`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from pydantic import Field
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    TableRequirement,
    TableUpdate,
)

from manifests.errors import EnvironmentRefused, Problem
from resources.lakehouse.catalog_errors import known_outcome, reachable
from resources.lakehouse.fences import fence_of, is_fence, require_unfenced
from resources.lakehouse.lineage import is_past, lineage_of, past_of
from resources.lakehouse.metadata import UnreadableMetadata, readable_metadata
from resources.lakehouse.refs import pin_of, set_ref
from resources.lakehouse.storage import place_of


@dataclass(frozen=True)
class Referenced:
    """The places that snapshots reference: data and delete files with their bytes and rows, and their manifests."""

    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    manifests: frozenset[str] = frozenset()

    def __contains__(self, path: str) -> bool:
        return path in self.files or path in self.manifests


def referenced(
    table: Table, snapshot_ids: Collection[int] | None = None, *, damages: list[UnreadableMetadata] | None = None
) -> Referenced:
    """Return what snapshots of a table (all that its metadata holds, if None) reference; each manifest is read once.

    With `damages` a manifest list or manifest that cannot be read is put there and passed over: what is returned is not
    all then.

    Raises:
        UnreadableMetadata: without `damages`, if one cannot be read: nothing can be said of the table's files then.
    """
    files: dict[str, tuple[int, int]] = {}
    manifests: set[str] = set()
    for snapshot in table.snapshots():
        if snapshot_ids is not None and snapshot.snapshot_id not in snapshot_ids:
            continue
        manifests.add(place_of(snapshot.manifest_list))
        with _passed_over(damages):
            with readable_metadata(table, snapshot, snapshot.manifest_list):
                listed = snapshot.manifests(table.io)
            for manifest in listed:
                if (path := place_of(manifest.manifest_path)) in manifests:
                    continue
                manifests.add(path)
                with _passed_over(damages), readable_metadata(table, snapshot, manifest.manifest_path):
                    for entry in manifest.fetch_manifest_entry(table.io):
                        file = entry.data_file
                        files[place_of(file.file_path)] = (file.file_size_in_bytes, file.record_count)
    return Referenced(files, frozenset(manifests))


@contextmanager
def _passed_over(damages: list[UnreadableMetadata] | None) -> Iterator[None]:
    try:
        yield
    except UnreadableMetadata as refusal:
        if damages is None:
            raise
        damages.append(refusal)


def expirable(table: Table, needed: Collection[int], *, before_ms: int, released: Collection[str] = ()) -> list[int]:
    """Return the snapshots older than an instant that neither a ref nor `needed` holds, oldest first.

    They may lie in the middle of main's history: `forget` keeps what lies before them in it. Of another branch all stays
    down to where it left main. `released` are refs that will be gone; fences and the marks of gaps hold nothing, since
    `forget` moves them on.
    """
    refs = {name: ref for name, ref in table.refs().items() if name not in released}
    kept = set(needed) | {one.snapshot_id for one in table.snapshots() if one.timestamp_ms >= before_ms}
    kept |= {ref.snapshot_id for name, ref in refs.items() if not _moves_on(table, name)}
    main = {snapshot.snapshot_id for snapshot in lineage_of(table)}
    for name, ref in refs.items():
        if ref.snapshot_ref_type is SnapshotRefType.BRANCH and name != MAIN_BRANCH:
            for snapshot in lineage_of(table, name):
                kept.add(snapshot.snapshot_id)
                if snapshot.snapshot_id in main:
                    break
    oldest_first = sorted(table.snapshots(), key=lambda snapshot: snapshot.timestamp_ms)
    return [one.snapshot_id for one in oldest_first if one.snapshot_id not in kept]


def _moves_on(table: Table, ref: str) -> bool:
    """Tell whether a ref is one of ours whose snapshot does not matter: a fence is there, or is not."""
    named = table.refs()[ref].snapshot_id
    return is_past(ref, named) or (is_fence(ref) and table.current_snapshot() is not None)


class _SeenOtherwise(CommitFailedException):
    """A refusal that was made here, before anything was sent: nothing of the commit has landed."""


class _AsSeen(AssertTableUUID):
    """The requirement that a table has the refs it was looked at with, by name, and no other; and still what goes.

    A catalog that checks what Iceberg's specification knows sees the assertion of the table's UUID; one that PyIceberg
    commits to by itself (SQL) is held to all of it, in the metadata that the commit replaces.
    """

    seen: frozenset[str] = Field(exclude=True)
    going: frozenset[int] = Field(exclude=True)

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]  # as in PyIceberg
        super().validate(base_metadata)
        other = set(base_metadata.refs if base_metadata else ()) ^ self.seen
        if other:
            raise _SeenOtherwise(f"Requirement failed: refs were made or removed: {', '.join(sorted(other))}")
        gone = self.going - {one.snapshot_id for one in (base_metadata.snapshots if base_metadata else ())}
        if gone:
            raise _SeenOtherwise(f"Requirement failed: {len(gone)} snapshots were removed, such as {min(gone)}")


def forget(table: Table, *, refs: Iterable[str], snapshot_ids: Iterable[int], token: int | None = None) -> None:
    """Remove refs and snapshots from a table's metadata, in one commit; deletes no file.

    A snapshot that a ref still names stays. Publications before the snapshots that go are still found in the history of
    main (see `lineage`), and fences stay, at its newest snapshot. The commit asks that the table has the refs it was
    looked at with, where they were, and that the lease of `token` is not fenced.

    Raises:
        EnvironmentRefused: if somebody made, moved or removed a ref meanwhile, and nothing is removed then; or if the
            catalog does not say what came of it.
        LeaseLost: if the token is fenced.
    """
    require_unfenced(table, token)
    present_refs = table.refs()
    gone = [name for name in refs if name in present_refs and name != MAIN_BRANCH]
    held = {ref.snapshot_id for name, ref in present_refs.items() if name not in gone and not _moves_on(table, name)}
    present = {snapshot.snapshot_id for snapshot in table.snapshots()}
    ids = {one for one in snapshot_ids if one in present and one not in held}
    if not gone and not ids:
        return
    moved, needless = _moved_on(table, ids)
    updates: tuple[TableUpdate, ...] = (
        *(RemoveSnapshotRefUpdate(ref_name=name) for name in (*gone, *needless)),
        *(set_ref(name, snapshot) for name, snapshot in moved.items()),
        *([RemoveSnapshotsUpdate(snapshot_ids=sorted(ids))] if ids else []),
    )
    as_seen = dict.fromkeys(moved) | {name: ref.snapshot_id for name, ref in present_refs.items()}
    requirements: list[TableRequirement] = [
        _AsSeen(uuid=table.metadata.table_uuid, seen=frozenset(present_refs), going=frozenset(ids)),
        *(AssertRefSnapshotId(ref=name, snapshot_id=snapshot) for name, snapshot in as_seen.items()),
        # a server that checks what the specification knows would take a pin that is made meanwhile along with its snapshot
        *(
            AssertRefSnapshotId(ref=pin_of(one), snapshot_id=None)
            for one in sorted(ids)
            if pin_of(one) not in present_refs
        ),
    ]
    if token is not None:
        requirements.append(AssertRefSnapshotId(ref=fence_of(token), snapshot_id=None))
    name = ".".join(table.name())
    try:
        with known_outcome(name):
            table.catalog.commit_table(table, tuple(requirements), updates)
    except CommitFailedException as error:
        with reachable(table.catalog.name):
            now = table.catalog.load_table(table.name())
        remains = set(gone) & set(now.refs()) or ids & {one.snapshot_id for one in now.snapshots()}
        if not remains and not isinstance(error, _SeenOtherwise):
            return  # it has landed, whatever the catalog has said of it
        require_unfenced(now, token)
        raise EnvironmentRefused(
            Problem(
                f"{name} changed meanwhile: {error}",
                "a history is shortened as it was looked at",
                "nothing was removed from it; look again, and repeat the command",
            )
        ) from error


def _moved_on(table: Table, going: Collection[int]) -> tuple[dict[str, int], list[str]]:
    """Return the tags that an expiry sets: fences at main's newest snapshot, marks before its gaps; and marks without use."""
    kept = [snapshot for snapshot in lineage_of(table) if snapshot.snapshot_id not in going]
    marks = {
        past_of(before.snapshot_id): before.snapshot_id
        for after, before in pairwise(kept)
        if after.parent_snapshot_id != before.snapshot_id
    }
    refs = table.refs()
    needless = [name for name, ref in refs.items() if is_past(name, ref.snapshot_id) and name not in marks]
    fences = {name: kept[0].snapshot_id for name, ref in refs.items() if is_fence(name) and ref.snapshot_id in going}
    return fences | {name: one for name, one in marks.items() if name not in refs}, needless
