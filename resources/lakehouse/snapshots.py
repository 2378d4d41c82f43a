"""A snapshot of a table, file by file: what its metadata says, the hashes of its metadata files, and what readers find by it.

Put here what is read from Iceberg's metadata to be kept as evidence, or to be held against it: past every cache, so that what
lies in the warehouse now is what is looked at. What must agree with what is `backfill_assets.audit.sealed_metadata`'s;
commits are `commits`'s.
"""

from __future__ import annotations

import json
from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import cached_property, partial
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import expression_evaluator, inclusive_projection, manifest_evaluator
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus, ManifestFile, read_manifest_list
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DateType, TimestamptzType

from resources.lakehouse.contents import proven_sha256
from resources.lakehouse.file_access import says_how_files_are_opened
from resources.lakehouse.pyiceberg_private import may_hold
from resources.lakehouse.scopes import DAY_MICROSECONDS
from resources.lakehouse.storage import place_of

Facts = dict[str, Any]
Days = tuple[date, date]
"""The first and the last, both included."""
_EPOCH = date(1970, 1, 1)
_BYTES_OF_INSTANT = 8
_OF_DAYS = frozenset({"identity", "day", "month"})
"""Transforms of a partition by which `said_days` knows the days of a file."""
_READERS = 16
_LAYOUT = frozenset({"id", "name", "type", "required"})
_DEFAULTS = frozenset({"initial-default", "write-default"})
_REDIRECTS = (
    "write.data.path",
    "write.metadata.path",
    "write.folder-storage.path",
    "write.object-storage.enabled",
    "write.object-storage.path",
    "write.location-provider.impl",
    "write.py-location-provider.impl",
    "write.delete.isolation-level",
)
"""Properties of Iceberg that send new files elsewhere, have other code choose their place, or weaken what keeps writers apart."""


def schema_facts(schema: Schema) -> dict[str, list[str]]:
    """Return the columns of a schema as readers resolve them: name and type by field id."""
    return {str(field.field_id): [field.name, str(field.field_type)] for field in schema.fields}


def layout_facts(schema: Schema) -> list[Facts]:
    """Return what else a schema fixes of its columns, in order: what is inside them, which are required, and what is read where a file lacks one.

    In the words of Iceberg's specification, so that no version of a library says it otherwise.
    """
    return [
        {
            name: value
            for name, value in json.loads(field.model_dump_json(by_alias=True)).items()
            if name in _LAYOUT or (name in _DEFAULTS and value is not None)
        }
        for field in schema.fields
    ]


def spec_facts(table: Table) -> dict[str, list[list[Any]]]:
    """Return a table's partition specs by id: source column, field id, transform and name of each field."""
    return {
        str(spec.spec_id): [[one.source_id, one.field_id, str(one.transform), one.name] for one in spec.fields]
        for spec in table.metadata.partition_specs
    }


def table_facts(table: Table) -> Facts:
    """Return what says how the files of a table are read: its identity, its current columns, and how it is partitioned."""
    return {
        "uuid": str(table.metadata.table_uuid),
        "schemaId": table.schema().schema_id,
        "fields": schema_facts(table.schema()),
        "layout": layout_facts(table.schema()),
        "formatVersion": table.format_version,
        "specs": spec_facts(table),
        "writing": writing_facts(table),
    }


def writing_facts(table: Table) -> dict[str, str | None]:
    """Return what says where the next files of a table go and how they are laid out; None for a property that is not set.

    And what has others open its files by other code, or elsewhere, if it is set (see `redirected_access`).
    """
    properties = {f"property {name}": table.properties.get(name) for name in (*_REDIRECTS, *redirected_access(table))}
    spec = table.spec()
    laid_out = [[one.source_id, str(one.transform), one.name] for one in spec.fields]
    return {"location": table.location(), "default partition spec": str(laid_out), **properties}


def redirected_access(table: Table) -> list[str]:
    """Return the properties of a table that say how its files are opened: who goes by the table reads by them, this project does not."""
    return sorted(filter(says_how_files_are_opened, table.properties))


def summary_facts(snapshot: Snapshot) -> dict[str, str]:
    """Return the whole summary of a snapshot, its operation included."""
    if snapshot.summary is None:
        return {}
    return {**snapshot.summary.additional_properties, "operation": snapshot.summary.operation.value}


def snapshot_facts(table: Table, snapshot: Snapshot, *, every: bool = False) -> Facts:
    """Return what is kept of a snapshot: what the metadata says of it, and the hashes of the files that say it.

    Those are the metadata file by which it is found now, its manifest list, and the manifests that it has written itself;
    the manifest list names the others, which came with earlier snapshots. With `every` they are all hashed.

    Raises:
        OSError: if one of them cannot be read.
        ValueError: if it is not what Iceberg writes.
    """
    manifests = [one for one in manifests_of(table, snapshot) if every or one.added_snapshot_id == snapshot.snapshot_id]
    return {
        "table": ".".join(table.name()),
        **table_facts(table),
        "snapshotId": snapshot.snapshot_id,
        "parentId": snapshot.parent_snapshot_id,
        "sequence": snapshot.sequence_number,
        "at": snapshot.timestamp_ms,
        "snapshotSchemaId": snapshot.schema_id,
        "summary": summary_facts(snapshot),
        "manifestList": hashed(table, snapshot.manifest_list),
        "manifests": all_hashed(table, [one.manifest_path for one in manifests]),
        "metadata": hashed(table, table.metadata_location),
    }


def hashed(table: Table, path: str) -> Facts:
    """Return path, bytes and SHA-256 (hex) of a file of a table's metadata.

    Raises:
        OSError: if it cannot be read, or of a store has other bytes each time it is.
    """
    return {"path": path, "bytes": len(table.io.new_input(path)), "sha256": proven_sha256(table, path)}


def all_hashed(table: Table, paths: Sequence[str]) -> list[Facts]:
    """Return path, bytes and SHA-256 (hex) of files, order kept: of a store many at once.

    Raises:
        OSError: if one of them cannot be read.
    """
    if all("://" not in path or path.startswith("file:") for path in paths):
        return [hashed(table, path) for path in paths]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(partial(hashed, table), paths))


def lineage_from(table: Table, snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it, newest first, as far as the metadata links them."""
    by_id = {one.snapshot_id: one for one in table.snapshots()}
    found: Snapshot | None = snapshot
    while found is not None:
        yield found
        found = by_id.pop(found.parent_snapshot_id or 0, None)


def manifests_of(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    """Return the manifests of a snapshot, read anew: PyIceberg itself remembers those it has seen once.

    Raises:
        OSError: if the list of them cannot be read.
        ValueError: if it is not one.
    """
    with _as_written(snapshot.manifest_list):
        return list(read_manifest_list(table.io.new_input(snapshot.manifest_list)))


@contextmanager
def _as_written(path: str) -> Iterator[None]:
    """Say of a file of the metadata that it is not what Iceberg writes; what its bytes make PyIceberg raise may be anything."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Entry:
    """A live file of a snapshot, as its manifest describes it; `snapshot_id` is the one that added it."""

    place: str
    file: DataFile
    snapshot_id: int | None
    manifest: ManifestFile

    @property
    def is_data(self) -> bool:
        """Whether it holds rows; else it says which rows of others are deleted."""
        return self.file.content == DataFileContent.DATA


class Seen:
    """One table, as its current metadata shows it to readers of main."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.name = ".".join(table.name())
        self.by_id = {one.snapshot_id: one for one in table.snapshots()}
        self.main = table.current_snapshot()
        self._hashes: dict[str, str | None] = {}
        self._live: dict[int, dict[str, Entry] | None] = {}

    @property
    def named_main(self) -> int | None:
        """The snapshot that the branch `main` names."""
        ref = self.table.refs().get(MAIN_BRANCH)
        return None if ref is None else ref.snapshot_id

    @cached_property
    def lineage(self) -> dict[int, Snapshot]:
        """Main's snapshot and those before it by id, newest first, as far as the metadata links them."""
        found: dict[int, Snapshot] = {}
        one = self.main
        while one is not None and one.snapshot_id not in found:
            found[one.snapshot_id] = one
            one = None if one.parent_snapshot_id is None else self.by_id.get(one.parent_snapshot_id)
        return found

    def sha256(self, path: str) -> str | None:
        """Return the SHA-256 (hex) of a file of the metadata as it is now; None if it is not there."""
        if path not in self._hashes:
            try:
                self._hashes[path] = str(hashed(self.table, path)["sha256"])
            except FileNotFoundError:
                self._hashes[path] = None
        return self._hashes[path]

    @cached_property
    def manifests(self) -> list[ManifestFile]:
        """The manifests of main."""
        return [] if self.main is None else manifests_of(self.table, self.main)

    @cached_property
    def entries(self) -> dict[str, list[Entry]]:
        """The live files of main by place; more than one of a place is more than a reader wants.

        Raises:
            OSError, ValueError: if a manifest cannot be read.
        """
        found: dict[str, list[Entry]] = {}
        for entry in entries_of(self.table, self.manifests):
            found.setdefault(entry.place, []).append(entry)
        return found

    def live(self, snapshot_id: int | None) -> dict[str, Entry] | None:
        """Return the live files of a snapshot by place, of no snapshot none; None if the metadata has it no more."""
        if snapshot_id is None:
            return {}
        if snapshot_id not in self._live:
            snapshot = self.by_id.get(snapshot_id)
            manifests = [] if snapshot is None else manifests_of(self.table, snapshot)
            found = {one.place: one for one in entries_of(self.table, manifests)}
            self._live[snapshot_id] = None if snapshot is None else found
        return self._live[snapshot_id]

    def entries_at(self, snapshot_id: int, row_filter: BooleanExpression) -> dict[str, Entry] | None:
        """Return the files of another snapshot that a reader with a filter opens; None if the metadata has it no more."""
        snapshot = self.by_id.get(snapshot_id)
        if snapshot is None:
            return None
        finds, by_manifest = self.finder(row_filter), self._by_manifest(row_filter)
        manifests = [one for one in manifests_of(self.table, snapshot) if by_manifest(one)]
        return {one.place: one for one in entries_of(self.table, manifests) if finds(one)}

    def _by_manifest(self, row_filter: BooleanExpression) -> Callable[[ManifestFile], bool]:
        schema, specs = self.table.schema(), self.table.specs()
        known: dict[int, Callable[[ManifestFile], bool]] = {}

        def may_have(manifest: ManifestFile) -> bool:
            number = manifest.partition_spec_id
            if number not in known:
                wanted = inclusive_projection(schema, specs[number], True)(row_filter)
                known[number] = manifest_evaluator(specs[number], schema, wanted, True)
            return known[number](manifest)

        return may_have

    def finder(self, row_filter: BooleanExpression) -> Callable[[Entry], bool]:
        """Return whether a reader with a filter opens a file: by the manifest's summary, its partition and its bounds."""
        schema, specs = self.table.schema(), self.table.specs()
        by_spec: dict[int, Callable[[Any], bool]] = {}
        by_manifest = self._by_manifest(row_filter)
        by_bounds = may_hold(schema, row_filter)

        def finds(entry: Entry) -> bool:
            number = entry.manifest.partition_spec_id
            if number not in by_spec:
                spec = specs[number]
                wanted = inclusive_projection(schema, spec, True)(row_filter)
                partition = Schema(*spec.partition_type(schema).fields)
                by_spec[number] = expression_evaluator(partition, wanted, True)
            in_partition = by_spec[number](entry.file.partition)
            return by_manifest(entry.manifest) and in_partition and by_bounds(entry.file)

        return finds


def entries_of(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[Entry]:
    """Yield the live files that manifests name.

    Raises:
        OSError: if a manifest cannot be read.
        ValueError: if it is none.
    """
    for manifest in manifests:
        with _as_written(manifest.manifest_path):
            entries = manifest.fetch_manifest_entry(table.io)
        for entry in entries:
            if entry.status != ManifestEntryStatus.DELETED:
                yield Entry(place_of(entry.data_file.file_path), entry.data_file, entry.snapshot_id, manifest)


def days_of(seen: Seen, entry: Entry, day: int | None) -> Days:
    """Return the days that a file may hold, by its bounds, else by its partition; all of them where nothing says.

    What deletes rows deletes them in its partition, whatever its bounds are of.
    """
    return said_days(seen, entry, day) or (date.min, date.max)


def said_days(seen: Seen, entry: Entry, day: int | None) -> Days | None:
    """Return what `days_of` does; None where neither bounds nor partition say."""
    bounds = day_bounds(entry, day) if entry.is_data else None
    if bounds is not None:
        return bounds
    for transform, value in _day_partitions(seen, entry, day):
        if isinstance(value, int):
            return _days_of_month(value) if transform == "month" else (day_at(value), day_at(value))
    return None


def is_of_no_day(seen: Seen, entry: Entry, day: int | None) -> bool:
    """Whether a file of rows says by its partition that its rows have no day, and nothing else that is said of it denies it."""
    file = entry.file
    bounded = any(day in (bounds or {}) for bounds in (file.lower_bounds, file.upper_bounds))
    nulls = (file.null_value_counts or {}).get(day or 0, file.record_count)
    values = [value for _, value in _day_partitions(seen, entry, day)]
    return entry.is_data and not bounded and nulls == file.record_count and values != [] and set(values) == {None}


def _day_partitions(seen: Seen, entry: Entry, day: int | None) -> list[tuple[str, Any]]:
    """Return transform and value of each part of a file's partition that says which days it holds."""
    fields = enumerate(seen.table.specs()[entry.file.spec_id].fields)
    return [
        (str(field.transform), entry.file.partition[place])
        for place, field in fields
        if field.source_id == day and str(field.transform) in _OF_DAYS
    ]


def day_at(number: int) -> date:
    """Return a day by its number since 1970; one before or after all that Python knows is the first or the last of them."""
    return date.fromordinal(min(max(_EPOCH.toordinal() + number, 1), date.max.toordinal()))


def _days_of_month(number: int) -> Days:
    """Return the first and the last day of a month by its number since 1970; the nearest that Python knows."""
    year, month = divmod(1970 * 12 + number, 12)
    if not date.min.year <= year <= date.max.year:
        nearest = date.min if year < date.min.year else date.max
        return nearest, nearest
    return date(year, month + 1, 1), date(year, month + 1, monthrange(year, month + 1)[1])


def day_bounds(entry: Entry, day: int | None) -> Days | None:
    """Return the first and the last day that a file says it holds; None if it does not say."""
    if day is None:
        return None
    low, high = (entry.file.lower_bounds or {}).get(day), (entry.file.upper_bounds or {}).get(day)
    if low is None or high is None:
        return None
    return _day_of(low), _day_of(high)


def _day_of(bound: bytes) -> date:
    """Return the day of a bound: a date has four bytes, an instant eight, and its day is that of UTC."""
    if len(bound) == _BYTES_OF_INSTANT:
        return day_at(int(from_bytes(TimestamptzType(), bound)) // DAY_MICROSECONDS)
    return day_at(int(from_bytes(DateType(), bound)))


def committed(table: Table, properties: Mapping[str, str]) -> Snapshot | None:
    """Return the newest snapshot of a table, on whatever branch, whose summary says all of that; None if there is none."""
    said = (
        (one, one.summary.additional_properties if one.summary else {})
        for one in sorted(table.snapshots(), key=lambda one: one.sequence_number or 0, reverse=True)
    )
    return next((one for one, found in said if properties.items() <= found.items()), None)
