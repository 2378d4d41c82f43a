"""Branches and tags of a table: moved, made and removed, each in a commit of its own that adds no file.

Put here what changes a ref. Refs that are removed with the snapshots they name are `history`'s; the names of those that mark
the past are `lineage`'s, those of fences, `fences`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotRefUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from manifests.errors import Problem, PublicationRefused
from resources.lakehouse.catalog import Tables
from resources.lakehouse.commits import ensure_snapshot, retry
from resources.lakehouse.fences import fence_of, not_fenced, require_unfenced
from resources.logs import traces


def set_ref(name: str, snapshot_id: int, kind: SnapshotRefType = SnapshotRefType.TAG) -> SetSnapshotRefUpdate:
    """Return the update that has a ref name a snapshot; nothing expires with it or because of it."""
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=kind,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )


def pin_of(snapshot_id: int) -> str:
    """Return the name of the tag by which plans keep a snapshot that they read."""
    return f"pinned-{snapshot_id}"


def tag(tables: Tables, name: str, tag: str, snapshot_id: int) -> None:
    """Tag a snapshot so that it is never expired; in a transaction of its own, and safe to repeat.

    Raises:
        PublicationRefused: if the tag names another snapshot.
    """

    def create(table: Table) -> None:
        reference = table.refs().get(tag)
        if reference is None:
            table.manage_snapshots().create_tag(snapshot_id, tag).commit()
        elif reference.snapshot_id != snapshot_id:
            raise PublicationRefused(
                Problem(
                    f"tag {tag} of {name} names snapshot {reference.snapshot_id}",
                    "a tag is never moved",
                    "look at the table's refs",
                )
            )

    retry(tables, name, create)


def fence(tables: Tables, name: str, token: int) -> None:
    """Keep the holder of a lost lease out: from here on a commit that carries its token fails in the catalog.

    The fence is a tag. Nothing reads the snapshot it names: the one that main shows when the fence lands, because no
    expiry takes that one, and an expiry takes the tags of a snapshot with it (`history.forget` moves a fence on).
    A table without snapshots is given an empty one first, on no branch; readers never see it. Safe to repeat.
    """

    def create(table: Table) -> None:
        if fence_of(token) in table.refs():
            return
        ensure_snapshot(table)
        table.refresh()
        shown = table.current_snapshot()
        requirements = (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertRefSnapshotId(ref=fence_of(token), snapshot_id=None),
            AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=None if shown is None else shown.snapshot_id),
        )
        named = (shown or table.snapshots()[0]).snapshot_id
        table.catalog.commit_table(table, requirements, (set_ref(fence_of(token), named),))

    retry(tables, name, create)


def open_branch(tables: Tables, name: str, branch: str, snapshot_id: int | None) -> None:
    """Open a branch at a snapshot; safe to repeat. On an empty table its first commit opens it.

    The catalog refuses a branch beside main where there is no snapshot at all: a table without one is given an empty
    one first, on no branch; readers never see it.
    """

    def create(table: Table) -> None:
        if snapshot_id is not None and branch not in table.refs():
            table.manage_snapshots().create_branch(snapshot_id, branch).commit()

    if snapshot_id is None:
        retry(tables, name, ensure_snapshot)
    retry(tables, name, create)


def point(
    tables: Tables,
    name: str,
    *,
    expected: Mapping[str, int | None],
    branches: Mapping[str, int] | None = None,
    tags: Mapping[str, int] | None = None,
    removed: Iterable[str] = (),
    token: int | None = None,
) -> None:
    """Move, make and remove refs in one commit; see `Lakehouse.point`."""
    branches, tags, removed = branches or {}, tags or {}, list(removed)
    updates: tuple[TableUpdate, ...] = (
        *(set_ref(ref, snapshot_id, SnapshotRefType.BRANCH) for ref, snapshot_id in branches.items()),
        *(set_ref(ref, snapshot_id) for ref, snapshot_id in tags.items()),
        *(RemoveSnapshotRefUpdate(ref_name=ref) for ref in removed),
    )
    required: tuple[TableRequirement, ...] = (
        *(AssertRefSnapshotId(ref=ref, snapshot_id=snapshot_id) for ref, snapshot_id in expected.items()),
        *not_fenced(token),
    )
    wanted: dict[str, int | None] = {**branches, **tags, **dict.fromkeys(removed)}
    tried = False

    def swap(table: Table) -> None:
        nonlocal tried
        if tried and all(named_by(table, ref) == snapshot_id for ref, snapshot_id in wanted.items()):
            return  # it has landed, whatever the catalog has said, and whoever has the lease by now
        require_unfenced(table, token)
        tried = True
        _require_pointing(table, name, required)
        requirements = (AssertTableUUID(uuid=table.metadata.table_uuid), *required)
        table.catalog.commit_table(table, requirements, updates)

    refs = ", ".join(sorted(wanted))
    with traces.span("commit", table=name, refs=refs, snapshot_id=_one_of(wanted.values())):
        retry(tables, name, swap)


def _one_of(snapshots: Iterable[int | None]) -> str | None:
    """Return the snapshot that refs are to name, where it is one."""
    named = {one for one in snapshots if one is not None}
    return str(named.pop()) if len(named) == 1 else None


def _require_pointing(table: Table, name: str, required: Iterable[TableRequirement]) -> None:
    """Refuse to swap refs that do not name what they are expected to name."""
    for requirement in required:
        try:
            requirement.validate(table.metadata)
        except CommitFailedException as error:
            raise PublicationRefused(
                Problem(
                    f"{name} has moved: {error}",
                    "a pointer is swapped from the snapshot the run was planned on",
                    "plan the change again, under a new run id, on the table as it is now",
                )
            ) from error


def named_by(table: Table, ref: str) -> int | None:
    """Return the snapshot that a ref names, whatever kind it is; None if there is no such ref."""
    reference = table.refs().get(ref)
    return None if reference is None else reference.snapshot_id
