"""What of a target could be rewritten into fewer files, chunk by chunk, from metadata alone.

Put here what is counted of the files of a chunk, and which deletes cannot be applied with them. What is made of the figures is
`manifests.compaction`'s; how a file of a scope is listed, `live_files`'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from manifests.errors import Problem
from resources.lakehouse.live_files import files_and_deletes, pinned_snapshot
from resources.lakehouse.lookups import paths_by_chunk
from resources.lakehouse.scopes import Scope, span_of

FILE_SIZE_PROPERTY = "write.target-file-size-bytes"
"""Iceberg's table property of how large a writer makes a file."""
_SHOWN = 5


@dataclass(frozen=True)
class ChunkFiles:
    """The files of a chunk at a snapshot.

    Attributes:
        paths: its data files; `deletes` are the files that delete rows of them.
        rows: its rows without those that are deleted: fewer may be left, where deletes of other chunks are in the same file.
        groups: rows and bytes of the data files of each partition of the table, as they are without what a file has but once.
    """

    paths: tuple[str, ...]
    deletes: tuple[str, ...]
    rows: int
    groups: tuple[tuple[int, int], ...]


def chunk_files(table: Table, snapshot_id: int, scopes: Mapping[str, Scope]) -> dict[str, ChunkFiles]:
    """Return the files of each scope (a chunk's, by its key) at a snapshot, and what they say of themselves.

    Raises:
        InputRefused: if rows of the table are deleted by their values, or a file does not say which days it holds.
    """
    if not scopes:
        return {}
    snapshot, whole = pinned_snapshot(table, snapshot_id), span_of(list(scopes.values()))
    files: dict[str, DataFile] = {}
    deletes: dict[str, Sequence[DataFile]] = {}
    for file, of_file in files_and_deletes(table, snapshot, whole.filter):
        files[file.file_path], deletes[file.file_path] = file, of_file
    found = {}
    for key, paths in paths_by_chunk(table, snapshot_id, scopes).items():
        own = [files[path] for path in sorted(paths & files.keys())]
        gone = {one.file_path: one.record_count for file in own for one in deletes[file.file_path]}
        rows = max(0, sum(file.record_count for file in own) - sum(gone.values()))
        paths_of_rows = tuple(file.file_path for file in own)
        found[key] = ChunkFiles(paths_of_rows, tuple(sorted(gone)), rows, _by_partition(own))
    return found


def _by_partition(files: Sequence[DataFile]) -> tuple[tuple[int, int], ...]:
    groups: dict[tuple[object, ...], tuple[int, int]] = {}
    for file in files:
        place = (file.spec_id, *(file.partition[number] for number in range(len(file.partition))))
        rows, size = groups.get(place, (0, 0))
        groups[place] = rows + file.record_count, size + _bytes_of_columns(file)
    return tuple(groups.values())


def _bytes_of_columns(file: DataFile) -> int:
    """Return how many bytes the columns of a file have; the whole file's where it does not say: small ones are half footer."""
    return sum((file.column_sizes or {}).values()) or int(file.file_size_in_bytes)


def deletes_beyond(table: Table, snapshot_id: int, deletes: Collection[str], paths: Collection[str]) -> list[Problem]:
    """Say which files that delete rows of some data files may delete rows of others, too: they cannot go with these alone.

    Raises:
        InputRefused: if rows of the table are deleted by their values.
    """
    if not deletes:
        return []
    beyond: dict[str, list[str]] = {}
    for file, of_file in files_and_deletes(table, pinned_snapshot(table, snapshot_id), AlwaysTrue()):
        for one in of_file if file.file_path not in paths else ():
            if one.file_path in deletes:
                beyond.setdefault(one.file_path, []).append(file.file_path)
    return [
        Problem(
            f"{path} deletes rows of files in the publish range, and may delete rows of {len(others)} file(s) outside of it: "
            + ", ".join(others[:_SHOWN]),
            "a file that deletes rows goes when all of the files are rewritten whose rows it deletes",
            "widen the publish range (or target.values) to all of them",
        )
        for path, others in sorted(beyond.items())
    ]
