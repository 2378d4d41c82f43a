"""Changes of a table behind the project's back: in its catalog, its metadata and manifests, and by writers that lie.

Put here one function a forgery; each changes a copy of an installation of `small_table` and returns what it did and which of
these words `backfill verify` must say where it names it. Some are clumsy (a file edited where it lies), some careful (new
files that agree with one another, and the catalog pointed to them). What is made of them is `tampering`'s.
"""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import (
    DataFileContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.publication.modes import change_of
from backfill_assets.publication.publisher import publish
from benchmarks.small_table import CORRECTIONS, READINGS
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import RUN_PROPERTY, local_path
from resources.lakehouse.snapshots import Entry, Seen, manifests_of

_PARTITION, _RECORDS, _BYTES, _NULLS, _LOWER, _UPPER = 3, 4, 5, 8, 10, 11
"""Places of a data file's facts in its manifest's record."""
WAITING = "waiting"
"""The run of the installation that waits for its publication."""


class _Killed(BaseException):
    """Stands for SIGKILL."""


@dataclass(frozen=True)
class Forged:
    """What was changed, and the words of which at least one must be in what is said of it."""

    what: str
    words: tuple[str, ...]


class Forger:
    """Changes the tables of one installation; `random` decides what and where."""

    def __init__(self, platform: Platform, seed: random.Random) -> None:
        self.platform, self.random = platform, seed

    # --- what it works with -----------------------------------------------------------------------------------

    def table(self, name: str = READINGS) -> Table:
        """Return a table as it is now."""
        return self.platform.lakehouse.table(name)

    def metadata(self, edit: Callable[[dict[str, Any]], None], name: str = READINGS) -> None:
        """Change a table's metadata: where it lies, or in a new file that the catalog is pointed to."""
        table = self.table(name)
        file = Path(local_path(table.metadata_location))
        content = json.loads(file.read_bytes())
        edit(content)
        if self.random.random() < 0.5:
            file.write_text(json.dumps(content))
            return
        new = file.with_name(f"{int(file.name.partition('-')[0]) + 1:05}-{uuid4()}.metadata.json")
        new.write_text(json.dumps(content))
        self.catalog(f"file://{new}", name)

    def catalog(self, location: str, name: str = READINGS) -> None:
        """Point the catalog to another metadata file."""
        self._sql(
            "UPDATE iceberg_tables SET metadata_location = ? WHERE table_namespace || '.' || table_name = ?",
            location,
            name,
        )

    def _sql(self, statement: str, *values: Any) -> None:
        file = str(self.platform.lakehouse._properties["uri"]).removeprefix("sqlite:///").partition("?")[0]
        with closing(sqlite3.connect(file)) as connection:
            assert connection.execute(statement, values).rowcount > 0
            connection.commit()

    def accepted(self, seen: Seen) -> list[Entry]:
        """Return the live files that are a run's, in order."""
        return [one for place in sorted(seen.entries) for one in seen.entries[place] if "/run=" in one.place]

    def rewrite(self, edit: Callable[[ManifestEntry], ManifestEntry | None], place: str) -> str:
        """Change the entry of a file in its manifest: there, or in a new manifest, list and metadata; return the manifest."""
        table = self.table()
        seen = Seen(table)
        manifest = seen.entries[place][0].manifest
        entries = []
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            is_it = entry.data_file.file_path.endswith(place)
            changed = edit(entry) if is_it else entry
            entries += [] if changed is None else [changed]
        if self.random.random() < 0.5:
            self._manifest(table, manifest.manifest_path, manifest, entries)
            return manifest.manifest_path
        path = manifest.manifest_path.rpartition("/")[0] + f"/{uuid4()}-m0.avro"
        new = self._manifest(table, path, manifest, entries)
        assert seen.main is not None
        others = [one for one in seen.manifests if one.manifest_path != manifest.manifest_path]
        self.main_lists(table, seen.main, [*others, new])
        return path

    @staticmethod
    def _manifest(table: Table, path: str, old: ManifestFile, entries: Sequence[ManifestEntry]) -> ManifestFile:
        spec = table.specs()[old.partition_spec_id]
        assert old.added_snapshot_id is not None
        Path(local_path(path)).unlink(missing_ok=True)
        with write_manifest(
            2, spec, table.schema(), table.io.new_output(path), old.added_snapshot_id, "deflate"
        ) as out:
            for entry in entries:
                out.add_entry(entry)
        made = out.to_manifest_file()
        return ManifestFile.from_args(
            **{name: getattr(made, name) for name in _OF_A_MANIFEST}
            | {"sequence_number": old.sequence_number, "min_sequence_number": old.min_sequence_number}
        )

    def main_lists(self, table: Table, snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
        """Give main's snapshot another list of manifests, under a new name, and have the metadata name it."""
        path = snapshot.manifest_list.rpartition("/")[0] + f"/snap-{snapshot.snapshot_id}-0-{uuid4()}.avro"
        self._list(table, path, snapshot, manifests)

        def edit(content: dict[str, Any]) -> None:
            _of(content, snapshot.snapshot_id)["manifest-list"] = path

        self.metadata(edit)

    @staticmethod
    def _list(table: Table, path: str, snapshot: Snapshot, manifests: Sequence[ManifestFile]) -> None:
        Path(local_path(path)).unlink(missing_ok=True)
        out = table.io.new_output(path)
        number = snapshot.sequence_number or 0
        with write_manifest_list(
            2, out, snapshot.snapshot_id, snapshot.parent_snapshot_id, number, "deflate"
        ) as listed:
            listed.add_manifests(list(manifests))

    def _entry(self) -> Entry:
        return self.random.choice(self.accepted(Seen(self.table())))

    def _column(self, *but: str) -> Any:
        return self.random.choice([one for one in self.table().schema().fields if one.name not in but])

    # --- columns ----------------------------------------------------------------------------------------------

    def swapped_columns(self) -> Forged:
        """Swap the names of two columns of one type."""
        fields = list(self.table().schema().fields)
        pairs = [
            (a, b) for a in fields for b in fields if a.field_id < b.field_id and str(a.field_type) == str(b.field_type)
        ]
        first, second = self.random.choice(pairs)

        def edit(content: dict[str, Any]) -> None:
            for one in _columns(content):
                one["name"] = {first.name: second.name, second.name: first.name}.get(one["name"], one["name"])

        self.metadata(edit)
        return Forged(f"swapped {first.name} and {second.name}", (f"column {first.name} ", f"column {second.name} "))

    def renamed_column(self) -> Forged:
        """Give a column another name."""
        field = self._column()

        def edit(content: dict[str, Any]) -> None:
            for one in _columns(content):
                one["name"] = "other" if one["name"] == field.name else one["name"]

        self.metadata(edit)
        return Forged(f"renamed {field.name}", (f"column {field.name} ",))

    def dropped_column(self) -> Forged:
        """Drop a column, in the current schema or by a new one."""
        field = self._column("day")

        def edit(content: dict[str, Any]) -> None:
            current = next(one for one in content["schemas"] if one["schema-id"] == content["current-schema-id"])
            kept = [one for one in current["fields"] if one["name"] != field.name]
            if self.random.random() < 0.5:
                current["fields"] = kept
                return
            number = max(one["schema-id"] for one in content["schemas"]) + 1
            content["schemas"].append({**current, "schema-id": number, "fields": kept})
            content["current-schema-id"] = number

        self.metadata(edit)
        return Forged(f"dropped {field.name}", (f"column {field.name} ",))

    def retyped_column(self) -> Forged:
        """Give a column another type."""
        field = self._column()

        def edit(content: dict[str, Any]) -> None:
            for one in _columns(content):
                if one["name"] == field.name:
                    one["type"] = "binary" if one["type"] == "string" else "string"

        self.metadata(edit)
        return Forged(f"retyped {field.name}", (f"column {field.name} ", "cannot be read"))

    def changed_spec(self) -> Forged:
        """Have files looked for by another transform."""

        def edit(content: dict[str, Any]) -> None:
            for spec in content["partition-specs"]:
                spec["fields"][0]["transform"] = self.random.choice(["day", "year", "void"])

        self.metadata(edit)
        return Forged("changed the partition spec", ("partition spec", "partition"))

    # --- manifests --------------------------------------------------------------------------------------------

    def _of_file(self, what: str, place: int, change: Callable[[Any, Any], Any]) -> Forged:
        entry = self._entry()
        schema = self.table().schema()

        def edit(one: ManifestEntry) -> ManifestEntry:
            one.data_file._data[place] = change(one.data_file._data[place], schema)
            return one

        manifest = self.rewrite(edit, entry.place)
        return Forged(f"{what} of {entry.place}", (entry.place, manifest, "manifest list"))

    def partition_value(self) -> Forged:
        """Put a file into another partition."""

        def change(record: Any, _: Any) -> Any:
            record[0] = (record[0] or 0) + self.random.choice([-12, -1, 1, 500])
            return record

        return self._of_file("partition", _PARTITION, change)

    def narrowed_bounds(self) -> Forged:
        """Say that a file's values end earlier, or begin later, than they do."""
        side, other = self.random.choice([(_LOWER, _UPPER), (_UPPER, _LOWER)])
        entry = self._entry()
        bounds = (entry.file.lower_bounds, entry.file.upper_bounds)
        differing = sorted(one for one in bounds[0] if bounds[0][one] != bounds[1].get(one))
        field = self.random.choice(differing)

        def edit(one: ManifestEntry) -> ManifestEntry:
            data = one.data_file._data
            data[side] = {**data[side], field: data[other][field]}
            return one

        manifest = self.rewrite(edit, entry.place)
        return Forged(f"bounds of field {field} of {entry.place}", (entry.place, manifest, "manifest list"))

    def record_count(self) -> Forged:
        """Say that a file has another number of rows."""
        return self._of_file("record_count", _RECORDS, lambda count, _: count + self.random.choice([-1, 1, 1000]))

    def file_size(self) -> Forged:
        """Say that a file has another length."""
        return self._of_file("file size", _BYTES, lambda size, _: size + self.random.choice([-7, 9]))

    def null_counts(self) -> Forged:
        """Say that a column of a file is NULL throughout."""

        def change(counts: Any, schema: Any) -> Any:
            return {**(counts or {}), schema.find_field("value").field_id: 999}

        return self._of_file("null counts", _NULLS, change)

    def deletes_instead(self) -> Forged:
        """Say that a file of rows is one of deleted rows."""
        return self._of_file("content", 0, lambda *_: DataFileContent.POSITION_DELETES)

    def without_a_file(self) -> Forged:
        """Take a file out of its manifest, or mark it as deleted."""
        entry = self._entry()

        def edit(one: ManifestEntry) -> ManifestEntry:
            one.status = ManifestEntryStatus.DELETED
            return one

        manifest = self.rewrite(edit, entry.place)
        return Forged(f"took {entry.place} out", (entry.place, manifest))

    def changed_copy(self) -> Forged:
        """Have a manifest name a changed copy of a file, with as many rows."""
        entry = self._entry()
        copy, rows = self._copy(entry)

        def edit(one: ManifestEntry) -> ManifestEntry:
            one.data_file._data[1] = f"file://{copy}"
            one.data_file._data[_BYTES] = copy.stat().st_size
            return one

        manifest = self.rewrite(edit, entry.place)
        return Forged(f"{rows} changed rows in a copy of {entry.place}", (entry.place, manifest, "another digest"))

    def _copy(self, entry: Entry) -> tuple[Path, int]:
        found = pq.read_table(entry.place)
        place = found.schema.get_field_index("value")
        values = found.column(place).to_pylist()
        at = self.random.randrange(len(values))
        values[at] = (values[at] or 0) + 1
        changed = found.set_column(place, found.schema.field(place), arrow.array(values, arrow.int64()))
        copy = Path(entry.place).with_name(f"part-{uuid4()}.parquet")
        pq.write_table(changed, copy)
        return copy, 1

    def older_list(self) -> Forged:
        """Put an older snapshot's manifest list in the place of main's."""
        table = self.table()
        seen = Seen(table)
        assert seen.main is not None
        older = self.random.choice(list(seen.lineage.values())[1:])
        if self.random.random() < 0.5:
            shutil.copyfile(local_path(older.manifest_list), local_path(seen.main.manifest_list))
        else:

            def edit(content: dict[str, Any]) -> None:
                _of(content, seen.main.snapshot_id)["manifest-list"] = older.manifest_list  # type: ignore[union-attr]

            self.metadata(edit)
        return Forged(
            f"the manifest list of {older.snapshot_id}", (f"snapshot {seen.main.snapshot_id}", "manifest list")
        )

    def shorter_list(self) -> Forged:
        """Leave a manifest out of main's list."""
        table = self.table()
        seen = Seen(table)
        assert seen.main is not None
        manifests = manifests_of(table, seen.main)
        gone = self.random.choice(manifests)
        left = [one for one in manifests if one is not gone]
        if self.random.random() < 0.5:
            self._list(table, seen.main.manifest_list, seen.main, left)
        else:
            self.main_lists(table, seen.main, left)
        return Forged(f"left {gone.manifest_path} out", ("manifest list", "readers get other files"))

    # --- snapshots and branches -------------------------------------------------------------------------------

    def older_main(self) -> Forged:
        """Move main to an older snapshot, as anybody can with PyIceberg."""
        table = self.table()
        seen = Seen(table)
        older = self.random.choice(list(seen.lineage.values())[1:])
        table.manage_snapshots().set_current_snapshot(snapshot_id=older.snapshot_id).commit()
        return Forged(f"main to {older.snapshot_id}", (f"{READINGS} main",))

    def two_mains(self) -> Forged:
        """Have the metadata name two snapshots as main's."""
        seen = Seen(self.table())
        older = self.random.choice(list(seen.lineage.values())[1:])
        key = self.random.choice(["current-snapshot-id", "refs"])

        def edit(content: dict[str, Any]) -> None:
            if key == "refs":
                content["refs"]["main"]["snapshot-id"] = older.snapshot_id
            else:
                content[key] = older.snapshot_id

        self.metadata(edit)
        return Forged(f"{key} to {older.snapshot_id}", (f"{READINGS} main",))

    def older_metadata(self) -> Forged:
        """Point the catalog to an older metadata file."""
        log = [one.metadata_file for one in self.table().metadata.metadata_log]
        newest = max(number for number, one in enumerate(log) if self._lacks_a_publication(one))
        older = self.random.choice(log[1 : newest + 1])
        self.catalog(older)
        return Forged(f"metadata {older}", (READINGS,))

    def _lacks_a_publication(self, location: str) -> bool:
        content = json.loads(Path(local_path(location)).read_bytes())
        current = self.table().metadata.current_snapshot_id
        return bool(content.get("current-snapshot-id") != current)

    def other_table(self) -> Forged:
        """Have the catalog show another table under the name."""
        self.catalog(self.table(CORRECTIONS).metadata_location)
        return Forged("another table", (READINGS,))

    def no_table(self) -> Forged:
        """Take the table out of the catalog."""
        self._sql("DELETE FROM iceberg_tables WHERE table_namespace || '.' || table_name = ?", READINGS)
        return Forged("no table", (READINGS,))

    def _published(self) -> Snapshot:
        seen = Seen(self.table())
        return self.random.choice([one for one in seen.lineage.values() if "backfill.run-id" in _said(one)])

    def changed_time(self) -> Forged:
        """Say that a snapshot was made at another time."""
        snapshot = self._published()

        def edit(content: dict[str, Any]) -> None:
            _of(content, snapshot.snapshot_id)["timestamp-ms"] += self.random.choice([-1000, 1, 86_400_000])

        self.metadata(edit)
        return Forged(f"time of {snapshot.snapshot_id}", (f"snapshot {snapshot.snapshot_id} time",))

    def changed_summary(self) -> Forged:
        """Change something of a snapshot's summary."""
        snapshot = self._published()
        key = self.random.choice(sorted(_said(snapshot)))

        def edit(content: dict[str, Any]) -> None:
            summary = _of(content, snapshot.snapshot_id)["summary"]
            text = summary[key]
            summary[key] = str(int(text) + 1) if text.isdigit() else f"{text}x"

        self.metadata(edit)
        return Forged(f"summary {key} of {snapshot.snapshot_id}", (f"snapshot {snapshot.snapshot_id}",))

    def changed_parent(self) -> Forged:
        """Have a snapshot follow another one than it did."""
        seen = Seen(self.table())
        snapshots = list(seen.lineage.values())
        number = self.random.randrange(len(snapshots) - 2)
        snapshot, other = snapshots[number], snapshots[-1]

        def edit(content: dict[str, Any]) -> None:
            _of(content, snapshot.snapshot_id)["parent-snapshot-id"] = other.snapshot_id

        self.metadata(edit)
        return Forged(
            f"parent of {snapshot.snapshot_id}", (f"snapshot {snapshot.snapshot_id} parent", f"{READINGS} main")
        )

    def moved_version(self) -> Forged:
        """Have the name of a version name another snapshot."""
        seen = Seen(self.table())
        name = self.random.choice([one for one in seen.table.refs() if one.startswith("v")])
        named = seen.table.refs()[name].snapshot_id
        other = self.random.choice([one for one in seen.by_id if one != named])

        def edit(content: dict[str, Any]) -> None:
            content["refs"][name]["snapshot-id"] = other

        self.metadata(edit)
        return Forged(f"version {name} to {other}", (f"version {name}",))

    # --- writers that lie -------------------------------------------------------------------------------------

    def _lie(self) -> dict[str, str]:
        """Return the summary of a snapshot that names a published run."""
        said = _said(self._published())
        return {key: value for key, value in said.items() if key.startswith("backfill.")}

    def appended(self) -> Forged:
        """Append rows under a summary that names a published run."""
        table = self.table()
        entry = self._entry()
        copy, _ = self._copy(entry)
        commit_replacement(
            table,
            AlwaysTrue(),
            [],
            [parquet_file_to_data_file(table.io, table.metadata, f"file://{copy}")],
            self._lie(),
        )
        return Forged("appended rows", ("never committed it", "readers get other files"))

    def deleted(self) -> Forged:
        """Delete rows under a summary that names a published run."""
        entry = self._entry()
        commit_replacement(self.table(), AlwaysTrue(), [entry.file], [], self._lie())
        return Forged(f"deleted {entry.place}", ("never committed it", entry.place))

    def replaced(self) -> Forged:
        """Replace a file by a changed one of as many rows, under a summary that names nobody or a published run."""
        table = self.table()
        entry = self._entry()
        copy, _ = self._copy(entry)
        said = self._lie() if self.random.random() < 0.5 else {}
        new = parquet_file_to_data_file(table.io, table.metadata, f"file://{copy}")
        commit_replacement(table, AlwaysTrue(), [entry.file], [new], said)
        return Forged(f"replaced {entry.place}", ("never committed it", "another digest", entry.place, copy.name))

    def _interrupted(self) -> dict[str, str]:
        """Have the publication of a run end once it has said that it comes; return what its snapshot would say of itself."""

        def reach(point: str) -> None:
            if point == "publishing.tagged":
                raise _Killed

        with mock.patch.object(faults, "reach", reach), suppress(_Killed):
            publish(self.platform, WAITING)
        ledger, root = self.platform.ledger, self.platform.evidence.verify(WAITING)
        said = change_of(self.platform, ledger.run(WAITING), ledger.chunks(WAITING)).properties("publish", 1, root)
        return said if self.random.random() < 0.5 else {RUN_PROPERTY: WAITING}

    def appended_for_an_interrupted_run(self) -> Forged:
        """Append rows to somebody's days under the name of a run whose publication was interrupted."""
        said, table = self._interrupted(), self.table()
        copy, _ = self._copy(self._entry())
        new = parquet_file_to_data_file(table.io, table.metadata, f"file://{copy}")
        commit_replacement(table, AlwaysTrue(), [], [new], said)
        return Forged(f"appended rows for '{WAITING}'", ("readers get other files",))

    def deleted_for_an_interrupted_run(self) -> Forged:
        """Publish an interrupted run in its name, and take somebody's file out with it."""
        said, table = self._interrupted(), self.table()
        entry = self._entry()
        own = [file.path for chunk in self.platform.ledger.chunks(WAITING) for file in chunk.files]
        new = [parquet_file_to_data_file(table.io, table.metadata, path) for path in own]
        commit_replacement(table, AlwaysTrue(), [entry.file], new, said)
        return Forged(f"deleted {entry.place} for '{WAITING}'", ("readers get other files", entry.place))

    def part_of_an_interrupted_run(self) -> Forged:
        """Publish some of the files of an interrupted run in its name."""
        said, table = self._interrupted(), self.table()
        own = [file.path for chunk in self.platform.ledger.chunks(WAITING) for file in chunk.files]
        new = [
            parquet_file_to_data_file(table.io, table.metadata, path) for path in own[: self.random.randrange(len(own))]
        ]
        commit_replacement(table, AlwaysTrue(), [], new, said)
        return Forged(f"{len(new)} of {len(own)} files of '{WAITING}'", ("never committed it",))

    # --- bytes ------------------------------------------------------------------------------------------------

    def metadata_byte(self) -> Forged:
        """Change a byte of a metadata file that a reader of main needs."""
        seen = Seen(self.table())
        assert seen.main is not None
        own = {
            one.snapshot_id
            for run in self.platform.ledger.runs()
            for one in self.platform.ledger.publications(run.run_id)
        }
        files = [one.manifest_path for one in seen.manifests if one.added_snapshot_id in own]
        path = self.random.choice([*files, seen.main.manifest_list])
        self._byte(Path(local_path(path)))
        return Forged(f"a byte of {path}", (path, Path(path).name, "cannot be read"))

    def data_byte(self) -> Forged:
        """Change a byte of a file of rows."""
        entry = self._entry()
        self._byte(Path(entry.place))
        return Forged(f"a byte of {entry.place}", (entry.place,))

    def outline_byte(self) -> Forged:
        """Change a byte of the outline of a chunk, beside the table."""
        file = self._outline()
        self._byte(file)
        return Forged(f"a byte of {file}", (f"outline {file}",))

    def outline_removed(self) -> Forged:
        """Remove the outline of a chunk."""
        file = self._outline()
        file.unlink()
        return Forged(f"{file} removed", (f"outline {file}",))

    def _outline(self) -> Path:
        ledger = self.platform.ledger
        sealed = [run.run_id for run in ledger.runs() if ledger.publications(run.run_id)]
        outlines = [chunk.measures["outline"] for run_id in sealed for chunk in ledger.chunks(run_id)]
        return Path(self.random.choice([path for path in outlines if path]))

    def _byte(self, file: Path) -> None:
        raw = bytearray(file.read_bytes())
        raw[self.random.randrange(len(raw))] ^= 1 << self.random.randrange(8)
        file.write_bytes(bytes(raw))


FORGERIES: tuple[Callable[[Forger], Forged], ...] = (
    Forger.swapped_columns,
    Forger.renamed_column,
    Forger.dropped_column,
    Forger.retyped_column,
    Forger.changed_spec,
    Forger.partition_value,
    Forger.narrowed_bounds,
    Forger.record_count,
    Forger.file_size,
    Forger.null_counts,
    Forger.deletes_instead,
    Forger.without_a_file,
    Forger.changed_copy,
    Forger.older_list,
    Forger.shorter_list,
    Forger.older_main,
    Forger.two_mains,
    Forger.older_metadata,
    Forger.other_table,
    Forger.no_table,
    Forger.changed_time,
    Forger.changed_summary,
    Forger.changed_parent,
    Forger.moved_version,
    Forger.appended,
    Forger.deleted,
    Forger.replaced,
    Forger.appended_for_an_interrupted_run,
    Forger.deleted_for_an_interrupted_run,
    Forger.part_of_an_interrupted_run,
    Forger.metadata_byte,
    Forger.data_byte,
    Forger.outline_byte,
    Forger.outline_removed,
)
_OF_A_MANIFEST = (
    "manifest_path",
    "manifest_length",
    "partition_spec_id",
    "content",
    "sequence_number",
    "min_sequence_number",
    "added_snapshot_id",
    "added_files_count",
    "existing_files_count",
    "deleted_files_count",
    "added_rows_count",
    "existing_rows_count",
    "deleted_rows_count",
    "partitions",
    "key_metadata",
)


def _said(snapshot: Snapshot) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def _of(content: dict[str, Any], snapshot_id: int) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in content["snapshots"] if one["snapshot-id"] == snapshot_id)
    return found


def _columns(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for schema in content["schemas"] for one in schema["fields"]]
