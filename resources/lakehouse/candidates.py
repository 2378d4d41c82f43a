"""A candidate on a branch, held file by file against what was gated and what its base has.

Put here the comparison alone: which candidate, which base and what of it gives way is said by those who publish. A set of paths
does not tell a candidate: the same files may be listed twice, or with bounds by which readers do not find their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from manifests.staged_file import StagedFile
from resources.lakehouse.data_files import gated_data_files
from resources.lakehouse.live_files import all_files, pinned_snapshot


def unlike(
    table: Table, snapshot_id: int, base: int | None, gone: Collection[str], staged: Sequence[StagedFile]
) -> list[str]:
    """Return the files by which a snapshot is not its base with staged files in place of those that are `gone`; sorted.

    A file counts as often as it is listed, and with all that its manifest says of it. None: the base is the table before
    its first snapshot.

    Raises:
        InputRefused: if the table has no such snapshot.
        PublicationRefused: if a staged file is not the one that was gated.
    """
    before = [] if base is None else all_files(table, pinned_snapshot(table, base))
    wanted = Counter(_described(file) for file in before if file.file_path not in gone)
    for file in gated_data_files(table, staged):
        file.spec_id = table.spec().spec_id  # a file that no manifest has yet does not say it
        wanted[_described(file)] += 1
    there = Counter(_described(file) for file in all_files(table, pinned_snapshot(table, snapshot_id)))
    return sorted({path for path, *_ in ((wanted - there) + (there - wanted))})


def _described(file: DataFile) -> tuple[Any, ...]:
    """Return the path of a file, and all else that its manifest says of it."""
    partition = tuple(file.partition[place] for place in range(len(file.partition)))
    figures: tuple[Mapping[int, Any] | None, ...] = (
        file.column_sizes,
        file.value_counts,
        file.null_value_counts,
        file.nan_value_counts,
        file.lower_bounds,
        file.upper_bounds,
    )
    return (
        file.file_path,
        file.content,
        file.file_format,
        file.spec_id,
        partition,
        file.record_count,
        file.file_size_in_bytes,
        *map(_by_column, figures),
        tuple(file.split_offsets or ()),
        tuple(file.equality_ids or ()),
        file.sort_order_id,
        file.key_metadata,
    )


def _by_column(figures: Mapping[int, Any] | None) -> frozenset[tuple[int, Any]]:
    return frozenset((figures or {}).items())
