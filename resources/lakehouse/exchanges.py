"""What a snapshot has exchanged, entry by entry: which files came with it and which went, and whether it describes them rightly.

Put here how a candidate, or a snapshot that says it is a run's, is held against what it should be. A set of paths does not
tell: the same files may be listed twice, with bounds by which readers do not find their rows, or in a manifest that nobody
opens for them. Which files should have come and gone is said by those who publish.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot

from manifests.errors import PublicationRefused
from manifests.staged_file import StagedFile
from resources.lakehouse.data_files import Footer, data_files, require_gated_bytes
from resources.lakehouse.live_files import pinned_snapshot
from resources.lakehouse.metadata import readable_metadata


@dataclass(frozen=True)
class Exchange:
    """What a snapshot has exchanged.

    Attributes:
        snapshot: the snapshot.
        came: the files that it lists and the one before did not, each as often as it does.
        gone: the files that the one before listed and it does not.
        before: the paths that the one before listed; None where that one has expired, and `came` and `gone` are what the
            snapshot's own manifests say.
        hidden: the files that the list of its manifests keeps readers from finding.
    """

    snapshot: Snapshot
    came: list[DataFile]
    gone: list[DataFile]
    before: frozenset[str] | None
    hidden: frozenset[str]


_Manifests = list[tuple[ManifestFile, list[ManifestEntry]]]


@dataclass(frozen=True)
class _Room:
    """What a list of manifests says of the values of one partition field in one of them."""

    kind: Any
    low: Any
    high: Any
    has_null: bool
    has_nan: bool

    def has(self, value: Any) -> bool:
        """Whether it can be there, as a reader takes it."""
        if value is None or _is_nan(value):
            return self.has_null if value is None else self.has_nan
        if self.low is None or self.high is None:
            return False
        here = from_bytes(self.kind, to_bytes(self.kind, value))
        return bool(self.low <= here <= self.high)


def exchanged(table: Table, snapshot: Snapshot) -> Exchange:
    """Return what a snapshot has exchanged for the files of the one before it.

    Raises:
        UnreadableMetadata: if the manifests of either cannot be read.
    """
    parent = snapshot.parent_snapshot_id
    earlier = None if parent is None else table.snapshot_by_id(parent)
    if earlier is None and (parent is not None or snapshot.sequence_number != 1):
        # the one before has expired, and its id with it where another one was made the first
        manifests = _manifests(table, snapshot)
        own, hidden = _said_by_itself(snapshot, manifests), _hidden(table, snapshot, None, manifests)
        return Exchange(snapshot, own[ManifestEntryStatus.ADDED], own[ManifestEntryStatus.DELETED], None, hidden)
    before, manifests = [] if earlier is None else _live(_manifests(table, earlier)), _manifests(table, snapshot)
    came, gone = _differences(_live(manifests), before)
    hidden = _hidden(table, snapshot, earlier, manifests)
    return Exchange(snapshot, came, gone, frozenset(file.file_path for file in before), hidden)


def taken_out(table: Table, snapshot: Snapshot) -> list[DataFile]:
    """Return the files that a snapshot has taken out of its table, as its own manifests have them.

    Raises:
        UnreadableMetadata: if they cannot be read.
    """
    return _said_by_itself(snapshot, _manifests(table, snapshot))[ManifestEntryStatus.DELETED]


def unlike(
    table: Table, snapshot_id: int, base: int | None, gone: Collection[str], staged: Sequence[StagedFile]
) -> list[str]:
    """Return the files by which a snapshot is not its base with staged files in place of those that are `gone`; sorted.

    `base` of None is the table before its first snapshot.

    Raises:
        InputRefused: if the table has no such snapshot.
        PublicationRefused: if a staged file is not the one that was gated.
        UnreadableMetadata: if the manifests of either snapshot cannot be read.
    """
    footers = dict(zip((file.path for file in staged), require_gated_bytes(table, staged), strict=True))
    snapshot, earlier = pinned_snapshot(table, snapshot_id), None if base is None else pinned_snapshot(table, base)
    before, manifests = [] if earlier is None else _live(_manifests(table, earlier)), _manifests(table, snapshot)
    came, went = _differences(_live(manifests), before)
    found, wanted = (
        Counter(file.file_path for file in came) + Counter(file.file_path for file in went),
        Counter(file.path for file in staged) + Counter(set(gone)),
    )
    others = {*(found - wanted), *(wanted - found), *_hidden(table, snapshot, earlier, manifests)}
    return sorted(others | set(misdescribed(table, snapshot, came, staged, footers)))


def misdescribed(
    table: Table,
    snapshot: Snapshot,
    files: Iterable[DataFile],
    staged: Iterable[StagedFile],
    footers: Mapping[str, Footer] | None = None,
) -> list[str]:
    """Return the staged files whose description in a snapshot is not what their own footers say, as far as it goes.

    It may say less than the footers, as `write.metadata.metrics` has it, and bounds may be wider: no reader misses a row by
    that. Columns are those of the snapshot, partitions those of the spec that the file is listed under. `footers` are theirs by path, where
    they were read just now.

    Raises:
        PublicationRefused: if one of them is not there, or has no footer.
        EnvironmentRefused: if one could not be read just now.
    """
    own = {file.path: file for file in staged}
    listed = [file for file in files if file.file_path in own]
    wrong = []
    for number in sorted({file.spec_id for file in listed}):
        of_spec = [file for file in listed if file.spec_id == number]
        paths = [file.file_path for file in of_spec]
        try:
            known = None if footers is None else [footers[path] for path in paths]
            said = data_files(_described_fully(table, snapshot, number), paths, known)
        except (KeyError, ValueError):  # of PyIceberg: they do not fit that spec, or those columns
            wrong += paths
            continue
        wrong += [
            file.file_path
            for file, true in zip(of_spec, said, strict=True)
            if not _agrees(table, snapshot, file, true) or true.record_count != own[file.file_path].rows
        ]
    return sorted(set(wrong))


def is_described(table: Table, exchange: Exchange, staged: Sequence[StagedFile]) -> bool:
    """Whether a snapshot describes the staged files that it brought as they are; one that was lost or damaged since, as it was staged.

    What became of a file after it was committed says nothing about who committed it.

    Raises:
        EnvironmentRefused: if one could not be read just now.
    """
    came = {file.file_path: file for file in exchange.came}
    brought = [file for file in staged if file.path in came]
    if any(
        (came[file.path].record_count, came[file.path].file_size_in_bytes) != (file.rows, file.bytes)
        for file in brought
    ):
        return False
    doubtful = _each_misdescribed(table, exchange, brought)
    return all(not _is_as_gated(table, file) for file in doubtful)


def _each_misdescribed(table: Table, exchange: Exchange, staged: Sequence[StagedFile]) -> list[StagedFile]:
    """Return the staged files that a snapshot does not describe as their footers say, or that have none."""
    try:
        wrong = set(misdescribed(table, exchange.snapshot, exchange.came, staged))
    except PublicationRefused:
        if len(staged) == 1:
            return list(staged)
        half = len(staged) // 2
        return [one for some in (staged[:half], staged[half:]) for one in _each_misdescribed(table, exchange, some)]
    return [file for file in staged if file.path in wrong]


def _is_as_gated(table: Table, file: StagedFile) -> bool:
    try:
        require_gated_bytes(table, [file])
    except PublicationRefused:
        return False
    return True


def same(files: Iterable[DataFile], others: Iterable[DataFile]) -> bool:
    """Whether the same files are listed in both, each as often, and described alike."""
    return Counter(map(_described, files)) == Counter(map(_described, others))


def listed(table: Table, snapshot_id: int, paths: Collection[str]) -> list[DataFile]:
    """Return those files of a snapshot that have one of some paths."""
    return [file for file in _live(_manifests(table, pinned_snapshot(table, snapshot_id))) if file.file_path in paths]


# --- reading ----------------------------------------------------------------------------------------------------------


def _manifests(table: Table, snapshot: Snapshot) -> _Manifests:
    """Return the manifests of a snapshot, each with its entries."""
    with readable_metadata(table, snapshot):
        return [
            (one, one.fetch_manifest_entry(table.io, discard_deleted=False)) for one in snapshot.manifests(table.io)
        ]


def _said_by_itself(snapshot: Snapshot, manifests: _Manifests) -> dict[ManifestEntryStatus, list[DataFile]]:
    """Return the files that the manifests which a snapshot has written have, by what they say of each."""
    own = {status: list[DataFile]() for status in ManifestEntryStatus}
    for manifest, entries in manifests:
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in entries:
                own[entry.status].append(entry.data_file)
    return own


def _live(manifests: _Manifests) -> list[DataFile]:
    """Return what a snapshot with these manifests lists, also what deletes rows."""
    return [
        entry.data_file for _, entries in manifests for entry in entries if entry.status != ManifestEntryStatus.DELETED
    ]


def _differences(files: Sequence[DataFile], others: Sequence[DataFile]) -> tuple[list[DataFile], list[DataFile]]:
    """Return the files that are listed in one and not, or less often, in the other; and those of the other."""
    own, theirs = list(map(_described, files)), list(map(_described, others))
    return _without(files, own, Counter(theirs)), _without(others, theirs, Counter(own))


def _without(
    files: Sequence[DataFile], described: Sequence[tuple[Any, ...]], left: Counter[tuple[Any, ...]]
) -> list[DataFile]:
    missing = []
    for file, said in zip(files, described, strict=True):
        if left[said]:
            left[said] -= 1
        else:
            missing.append(file)
    return missing


def _described(file: DataFile) -> tuple[Any, ...]:
    """Return the path of a file, and all else that its manifest says of it."""
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
        _partition(file),
        file.record_count,
        file.file_size_in_bytes,
        *(frozenset((one or {}).items()) for one in figures),
        tuple(file.split_offsets or ()),
        tuple(file.equality_ids or ()),
        file.sort_order_id,
        file.key_metadata,
    )


def _partition(file: DataFile) -> tuple[Any, ...]:
    values = (file.partition[place] for place in range(len(file.partition)))
    return tuple("NaN" if _is_nan(value) else value for value in values)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


# --- what a manifest says, and what is so -----------------------------------------------------------------------------


def _described_fully(table: Table, snapshot: Snapshot, spec_id: int) -> Table:
    """Return a table with the columns of a snapshot, under one of its specs, whose files are described with all figures."""
    figures = TableProperties.DEFAULT_WRITE_METRICS_MODE, TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
    properties = {name: value for name, value in table.properties.items() if not name.startswith(figures)}
    changes = {
        "properties": properties | {TableProperties.DEFAULT_WRITE_METRICS_MODE: "full"},
        "default_spec_id": spec_id,
        "current_schema_id": table.schema().schema_id if snapshot.schema_id is None else snapshot.schema_id,
    }
    described = copy(table)
    described.metadata = table.metadata.model_copy(update=changes)
    return described


def _agrees(table: Table, snapshot: Snapshot, file: DataFile, true: DataFile) -> bool:
    """Whether a file's description says nothing but what is so."""
    exact = (
        (file.content, true.content),
        (file.file_format, true.file_format),
        (_partition(file), _partition(true)),
        (file.record_count, true.record_count),
        (file.file_size_in_bytes, true.file_size_in_bytes),
    )
    counts = (
        (file.value_counts, true.value_counts),
        (file.null_value_counts, true.null_value_counts),
        (file.nan_value_counts, true.nan_value_counts),
    )
    if any(said != found for said, found in exact) or file.equality_ids or file.key_metadata:
        return False
    if file.split_offsets and list(file.split_offsets) != list(true.split_offsets or ()):
        return False
    if any(not (said or {}).items() <= (found or {}).items() for said, found in counts):
        return False
    schema = table.schemas()[snapshot.schema_id] if snapshot.schema_id is not None else table.schema()
    for said, found, is_lower in (
        (file.lower_bounds or {}, true.lower_bounds or {}, True),
        (file.upper_bounds or {}, true.upper_bounds or {}, False),
    ):
        for field_id, raw in said.items():
            if field_id not in found:
                return False
            if raw == found[field_id]:
                continue
            kind = schema.find_type(field_id)
            bound, value = from_bytes(kind, raw), from_bytes(kind, found[field_id])  # type: ignore[arg-type]
            if (bound > value) if is_lower else (bound < value):
                return False
    return True


def _hidden(table: Table, snapshot: Snapshot, earlier: Snapshot | None, manifests: _Manifests) -> frozenset[str]:
    """Return the files that readers do not find, as a snapshot's list of manifests says what is in each of these.

    What the one before has listed just so is not its doing; where that is not known, no manifest is but those of its own.
    """
    hidden: set[str] = set()
    with readable_metadata(table, earlier or snapshot):
        known = [] if earlier is None else earlier.manifests(table.io)
    for manifest, entries in manifests:
        if manifest in known or (earlier is None and manifest.added_snapshot_id != snapshot.snapshot_id):
            continue
        live = [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]
        counted = Counter(entry.status for entry in entries)
        said = {
            ManifestEntryStatus.ADDED: manifest.added_files_count,
            ManifestEntryStatus.EXISTING: manifest.existing_files_count,
        }
        content = {ManifestContent.DELETES if entry.data_file.content.value else ManifestContent.DATA for entry in live}
        miscounted = any(number is not None and number != counted[status] for status, number in said.items())
        if miscounted or not content <= {manifest.content}:
            hidden.update(entry.data_file.file_path for entry in live)
            continue
        with readable_metadata(table, snapshot, manifest.manifest_path):
            rooms = _rooms(manifest, _partition_kinds(table, manifest.partition_spec_id))
            hidden.update(entry.data_file.file_path for entry in live if not _is_found(rooms, entry.data_file))
    return frozenset(hidden)


def _partition_kinds(table: Table, spec_id: int) -> list[Any]:
    """Return the types of the fields of a spec; none where one is of a column that the table has no more."""
    try:
        return [one.field_type for one in table.specs()[spec_id].partition_type(table.schema()).fields]
    except ValueError:
        return []


def _rooms(manifest: ManifestFile, kinds: Sequence[Any]) -> list[_Room]:
    """Return what the list says of the partitions in a manifest, field by field."""
    found = []
    for kind, summary in zip(kinds, manifest.partitions or (), strict=False):
        low = high = None
        if summary.lower_bound is not None and summary.upper_bound is not None:
            low, high = from_bytes(kind, summary.lower_bound), from_bytes(kind, summary.upper_bound)
        found.append(_Room(kind, low, high, bool(summary.contains_null), summary.contains_nan is not False))
    return found


def _is_found(rooms: Sequence[_Room], file: DataFile) -> bool:
    """Whether what the list says of the partitions in a manifest has room for that of a file in it."""
    return all(room.has(file.partition[place]) for place, room in enumerate(rooms))
