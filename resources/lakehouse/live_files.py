"""The data files that a snapshot of a table has: all of them, or those that may hold rows of a scope.

Put here how the live files of a snapshot are listed, and whether a scope still has those it had. Files that no snapshot has
yet are `data_files`'s; what is read of the files, `reads`'s; whether one lies wholly inside a scope, `containment`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import chain

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.table.snapshots import Snapshot

from manifests.errors import InputRefused, Problem, PublicationRefused
from resources.lakehouse.metadata import readable_metadata
from resources.lakehouse.parts import may_lie_in
from resources.lakehouse.scopes import Scope

_SHOWN = 20
"""Files that came or went which a refusal names."""


class ScopeChanged(PublicationRefused):
    """Somebody else has written into the scope since the plan was made."""


def pinned_snapshot(table: Table, snapshot_id: int | None) -> Snapshot:
    """Return a snapshot that the table's metadata has; the current one if None.

    Raises:
        InputRefused: if there is none.
    """
    name = ".".join(table.name())
    if snapshot_id is None:
        current = table.current_snapshot()
        if current is None:
            raise InputRefused(Problem(f"{name} has no snapshot", "a table that is read holds data", "load it first"))
        return current
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise InputRefused(
            Problem(
                f"{name} has no snapshot {snapshot_id}",
                "a pinned snapshot exists in the table's history",
                "it may have expired, or belong to another table; see the table's snapshots",
            )
        )
    return snapshot


def live_files(table: Table, snapshot: Snapshot, row_filter: BooleanExpression) -> Iterator[DataFile]:
    """Yield the data files of a snapshot that may hold rows of a filter.

    Raises:
        InputRefused: if one of them has deletes on it.
        UnreadableMetadata: if the snapshot's manifests cannot be read.
    """
    for file, deletes in files_and_deletes(table, snapshot, row_filter):
        if deletes:
            raise InputRefused(
                Problem(
                    f"{file.file_path} of {'.'.join(table.name())} has {len(deletes)} delete file(s)",
                    "publications work on data files without deletes",
                    "rewrite its data files first: by a run of kind COMPACTION over their days",
                )
            )
        yield file


def files_and_deletes(
    table: Table, snapshot: Snapshot, row_filter: BooleanExpression
) -> Iterator[tuple[DataFile, Sequence[DataFile]]]:
    """Yield the data files of a snapshot that may hold rows of a filter, each with the files that delete rows of it by position.

    Raises:
        InputRefused: if rows of the table are deleted by their values.
        UnreadableMetadata: if the snapshot's manifests cannot be read.
    """
    with readable_metadata(table, snapshot):
        # what a scan would say of each file besides (what is left of the filter to apply) takes twice as long as all else
        planner = ManifestGroupPlanner(table.metadata, table.io, row_filter)
        entries = planner.plan_manifest_entries(snapshot.manifests(table.io))
        files = [entry.data_file for entry in chain.from_iterable(entries)]
    if all(file.content == DataFileContent.DATA for file in files):
        yield from ((file, ()) for file in files)
        return
    by_value = [file for file in files if file.content == DataFileContent.EQUALITY_DELETES]
    if by_value:
        raise InputRefused(
            Problem(
                f"{'.'.join(table.name())} has {len(by_value)} file(s) of equality deletes: {by_value[0].file_path}",
                "rows that are deleted by position are left out of what is read; those deleted by value are not looked for",
                "have the engine that writes it rewrite the files that have deletes, and drop what is left over; in Spark: CALL "
                f"<catalog>.system.rewrite_data_files(table => '{'.'.join(table.name())}', options => "
                "map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true'))",
            )
        )
    with readable_metadata(table, snapshot):
        tasks = list(table.scan(row_filter=row_filter, snapshot_id=snapshot.snapshot_id).plan_files())
    for task in tasks:
        yield task.file, sorted(task.delete_files, key=lambda one: one.file_path)


def all_files(table: Table, snapshot: Snapshot | None) -> list[DataFile]:
    """Return all data files of a snapshot; None stands for the table before its first one."""
    return [] if snapshot is None else list(live_files(table, snapshot, AlwaysTrue()))


def files_in(table: Table, snapshot: Snapshot | None, scope: Scope) -> list[DataFile]:
    """Return the files that may hold rows of a scope; a snapshot of None stands for the table before its first one."""
    if snapshot is None:
        return []
    if scope.same_rows:
        return _with_deletes(table, snapshot, scope)
    return [file for file in live_files(table, snapshot, scope.filter) if _is_of_parts(table, scope, file)]


def data_files_in(table: Table, snapshot: Snapshot | None, scope: Scope) -> list[DataFile]:
    """Return the files that may hold rows of a scope, without those that delete rows."""
    return [file for file in files_in(table, snapshot, scope) if file.content == DataFileContent.DATA]


def _is_of_parts(table: Table, scope: Scope, file: DataFile) -> bool:
    return scope.division is None or not scope.parts or may_lie_in(table, scope.division, scope.parts, file)


def _with_deletes(table: Table, snapshot: Snapshot, scope: Scope) -> list[DataFile]:
    """Return the data files that may hold rows of a scope, and after them the files that delete rows of these, each once."""
    own = [one for one in files_and_deletes(table, snapshot, scope.filter) if _is_of_parts(table, scope, one[0])]
    deletes = {one.file_path: one for _, of_file in own for one in of_file}
    return [*(file for file, _ in own), *(deletes[path] for path in sorted(deletes))]


def sequence_numbers(table: Table, snapshot: Snapshot) -> dict[str, int]:
    """Return the data sequence number of each file of a snapshot, by path: what deletes rows does so in files of no later one.

    Raises:
        UnreadableMetadata: if the snapshot's manifests cannot be read.
    """
    with readable_metadata(table, snapshot):
        entries = [one for manifest in snapshot.manifests(table.io) for one in manifest.fetch_manifest_entry(table.io)]
    return {one.data_file.file_path: one.sequence_number or 0 for one in entries}


def files_at(table: Table, snapshot_id: int | None, scope: Scope) -> list[DataFile]:
    """Return the files of a scope at a snapshot; None stands for the table before its first one.

    Raises:
        InputRefused: if the table has no such snapshot.
    """
    return [] if snapshot_id is None else files_in(table, pinned_snapshot(table, snapshot_id), scope)


def is_at(current: Snapshot | None, snapshot_id: int | None) -> bool:
    """Tell whether a snapshot is the one of an id; None stands for no snapshot."""
    return (None if current is None else current.snapshot_id) == snapshot_id


def unchanged_files(table: Table, current: Snapshot | None, scope: Scope, snapshot_id: int | None) -> list[DataFile]:
    """Return the files of a scope at a snapshot, if the current one still has the same; see `require_same_files`."""
    then = files_at(table, snapshot_id, scope)
    if not is_at(current, snapshot_id):  # else nothing at all has changed, and nothing is listed again
        require_same_files(".".join(table.name()), scope, then, files_in(table, current, scope))
    return then


def require_same_files(name: str, scope: Scope, base: Sequence[DataFile], present: Sequence[DataFile]) -> None:
    """Refuse if a scope does not hold exactly the files it held at the base.

    Raises:
        ScopeChanged: naming the files that came and went.
    """
    before, after = {file.file_path for file in base}, {file.file_path for file in present}
    if before == after:
        return
    changes = [f"+ {path}" for path in sorted(after - before)] + [f"- {path}" for path in sorted(before - after)]
    shown = changes[:_SHOWN] + ([f"… and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else [])
    raise ScopeChanged(
        Problem(
            f"{name} no longer holds the plan's files in {scope}:\n      " + "\n      ".join(shown),
            "somebody else has written into the scope since the plan was made",
            "plan the change again, under a new run id, on the table as it is now",
        )
    )


def require_present(name: str, replaced: Collection[str], old: Sequence[DataFile]) -> None:
    """Refuse to replace files that are not there: what was made of them would come in beside them.

    Raises:
        PublicationRefused: naming them.
    """
    missing = sorted(set(replaced) - {file.file_path for file in old})
    if missing:
        raise PublicationRefused(
            Problem(
                f"{len(missing)} file(s) are to be replaced and are not files of {name} in its scope: {'; '.join(missing[:10])}",
                "a file that is replaced goes in the commit in which its copy comes",
                "plan the change again, under a new run id",
            )
        )
