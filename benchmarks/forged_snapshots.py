"""Forgeries by somebody who knows Iceberg's format: whole snapshots and metadata files that agree with one another.

Put here what leaves every file that this project has sealed as it is, so that no hash shows it: a new snapshot of main that
lists the same files otherwise, files of other programs that say other days than they hold, metadata that changes what is read
by it. Each function changes a copy of an installation of `small_table`, as those of `forgeries` do, to which they belong.
"""

from __future__ import annotations

import copy
import json
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table.metadata import TableMetadataV1
from pyiceberg.typedef import Record

from benchmarks.forgeries import _OF_A_MANIFEST, Forged, Forger
from benchmarks.small_table import CORRECTIONS, READINGS, SOURCE
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import local_path
from resources.lakehouse.snapshots import Entry, Seen

_FORMAT, _VALUES, _NANS, _SPLITS, _LOWER, _UPPER = 2, 7, 9, 13, 10, 11
"""Places of a data file's facts in its manifest's record."""
_PATH_FIELD, _POSITION_FIELD = 2147483546, 2147483545
"""Field ids of the columns of a file of deleted positions."""
_ELSEWHERE = struct.pack("<i", -25_000)
"""A day of long ago, as a bound."""
_OTHER_HOST = "hdfs://elsewhere.example:8020"


def _with(manifest: ManifestFile, **changed: Any) -> ManifestFile:
    return ManifestFile.from_args(**{name: getattr(manifest, name) for name in _OF_A_MANIFEST} | changed)


def edit_metadata(forger: Forger, edit: Callable[[dict[str, Any]], None], name: str = READINGS) -> None:
    """Point the catalog to a new metadata file; the one that was sealed stays as it is."""
    file = Path(local_path(forger.table(name).metadata_location))
    content = json.loads(file.read_bytes())
    edit(content)
    new = file.with_name(f"{int(file.name.partition('-')[0]) + 1:05}-{uuid4()}.metadata.json")
    new.write_text(json.dumps(content))
    forger.catalog(f"file://{new}", name)


def _new_snapshot(
    forger: Forger, manifests: Callable[[int, int], Sequence[ManifestFile]], name: str = READINGS, how: str = "replace"
) -> int:
    """Put a new snapshot on main that has the manifests which its id and sequence number are made to; return its id."""
    table = forger.table(name)
    main = table.current_snapshot()
    assert main is not None
    assert not isinstance(table.metadata, TableMetadataV1)
    snapshot_id, number = forger.random.getrandbits(60), table.metadata.last_sequence_number + 1
    path = main.manifest_list.rpartition("/")[0] + f"/snap-{snapshot_id}-0-{uuid4()}.avro"
    made = list(manifests(snapshot_id, number))
    with write_manifest_list(2, table.io.new_output(path), snapshot_id, main.snapshot_id, number, "deflate") as listed:
        listed.add_manifests(made)
    at = int(time.time() * 1000)

    def edit(content: dict[str, Any]) -> None:
        new = {
            "snapshot-id": snapshot_id,
            "parent-snapshot-id": main.snapshot_id,
            "sequence-number": number,
            "timestamp-ms": at,
            "manifest-list": path,
            "summary": {"operation": how},
            "schema-id": content["current-schema-id"],
        }
        content["snapshots"].append(new)
        content["current-snapshot-id"] = content["refs"]["main"]["snapshot-id"] = snapshot_id
        content["snapshot-log"].append({"snapshot-id": snapshot_id, "timestamp-ms": at})
        content |= {"last-sequence-number": number, "last-updated-ms": at}

    edit_metadata(forger, edit, name)
    return snapshot_id


def _listed_anew(forger: Forger, edit: Callable[[DataFile], None], place: str) -> None:
    """Have a new snapshot of main list a file otherwise, in a manifest of its own making."""
    table = forger.table()
    seen = Seen(table)
    old = seen.entries[place][0].manifest

    def manifests(snapshot_id: int, number: int) -> list[ManifestFile]:
        path = old.manifest_path.rpartition("/")[0] + f"/{uuid4()}-m0.avro"
        spec = table.specs()[old.partition_spec_id]
        with write_manifest(2, spec, table.schema(), table.io.new_output(path), snapshot_id, "deflate") as out:
            for entry in old.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.data_file.file_path.endswith(place):
                    edit(entry.data_file)
                out.existing(entry)
        made = out.to_manifest_file()
        own = {"min_sequence_number": old.min_sequence_number, "added_snapshot_id": snapshot_id}
        others = [one for one in seen.manifests if one.manifest_path != old.manifest_path]
        return [*others, _with(made, sequence_number=number, **own)]

    _new_snapshot(forger, manifests)


def _of_file(forger: Forger, what: str, place: int, change: Callable[[Any, DataFile], Any], words: str) -> Forged:
    entry = forger._entry()

    def edit(file: DataFile) -> None:
        file._data[place] = change(file._data[place], file)

    _listed_anew(forger, edit, entry.place)
    return Forged(f"{what} of {entry.place}", (words,))


# --- how a file is listed ---------------------------------------------------------------------------------------------


def rows_among_deletes(forger: Forger) -> Forged:
    """List a manifest of rows as one of deleted rows: readers do not look for rows in it."""
    seen = Seen(forger.table())
    chosen = forger._entry().manifest.manifest_path

    def manifests(*_: int) -> list[ManifestFile]:
        changed = {"content": ManifestContent.DELETES}
        return [_with(one, **changed) if one.manifest_path == chosen else one for one in seen.manifests]

    _new_snapshot(forger, manifests)
    return Forged(f"{chosen} listed among the deletes", (" manifest content",))


def nothing_in_a_manifest(forger: Forger) -> Forged:
    """List a manifest as one without live files: Spark does not open it."""
    seen = Seen(forger.table())
    chosen = forger._entry().manifest.manifest_path

    def manifests(*_: int) -> list[ManifestFile]:
        changed = {"added_files_count": 0, "existing_files_count": 0}
        return [_with(one, **changed) if one.manifest_path == chosen else one for one in seen.manifests]

    _new_snapshot(forger, manifests)
    return Forged(f"{chosen} listed as one without files", (" manifest file counts",))


def another_format(forger: Forger) -> Forged:
    """List a file as one of another format."""
    return _of_file(forger, "format", _FORMAT, lambda *_: FileFormat.ORC, " file_format")


def another_host(forger: Forger) -> Forged:
    """List a file under the same path on another host."""
    return _of_file(forger, "host", 1, lambda path, _: _OTHER_HOST + local_path(path), " store")


def all_not_a_number(forger: Forger) -> Forged:
    """Say that every value of a column is NaN: a filter finds none of them."""
    field = forger._column("day").field_id

    def change(counts: Any, file: DataFile) -> Any:
        file._data[_VALUES] = {**(file._data[_VALUES] or {}), field: file.record_count}
        return {**(counts or {}), field: file.record_count}

    return _of_file(forger, f"NaN count of field {field}", _NANS, change, " NaN count of ")


def as_many_values_as_nulls(forger: Forger) -> Forged:
    """Say that a column has as many values as it has NULLs: a filter finds none of them."""
    field = forger._column("day").field_id
    return _of_file(
        forger,
        f"value count of field {field}",
        _VALUES,
        lambda counts, _: {**(counts or {}), field: 0},
        " value count of ",
    )


def split_behind_the_rows(forger: Forger) -> Forged:
    """Say that what can be read by itself begins behind the rows: Spark begins there."""
    return _of_file(forger, "split offsets", _SPLITS, lambda _, file: [file.file_size_in_bytes - 1], " split offsets")


# --- what other programs' files hold ----------------------------------------------------------------------------------


def a_file(forger: Forger, name: str) -> Entry:
    """Return a file of an accepted chunk of a table."""
    return forger.random.choice(forger.accepted(Seen(forger.table(name))))


def delete_rows(
    forger: Forger, name: str, made: Callable[[arrow.Table], arrow.Table] = lambda positions: positions
) -> str:
    """Commit a file of deleted positions of an accepted file, which says by bounds and partition that it is of another day.

    With `made` the file has what that makes of them.
    """
    table = forger.table(name)
    seen, entry = Seen(table), a_file(forger, name)
    place = Path(local_path(table.location())) / "data" / f"{uuid4()}-deletes.parquet"
    place.parent.mkdir(exist_ok=True)
    columns = {"file_path": (arrow.string(), _PATH_FIELD), "pos": (arrow.int64(), _POSITION_FIELD)}
    schema = arrow.schema(
        [
            arrow.field(column, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
            for column, (kind, number) in columns.items()
        ]
    )
    positions = arrow.table({"file_path": [entry.file.file_path] * 3, "pos": [0, 1, 2]}, schema=schema)
    pq.write_table(made(positions), place)
    day = table.schema().find_field("day").field_id
    partition = copy.deepcopy(entry.file.partition)
    if forger.random.random() < 0.5:
        partition = Record(-600)
    bounds = {day: _ELSEWHERE, _PATH_FIELD: entry.file.file_path.encode()}
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{place}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=3,
        file_size_in_bytes=place.stat().st_size,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds=bounds,
        upper_bounds=bounds,
        spec_id=table.spec().spec_id,
    )

    def manifests(snapshot_id: int, number: int) -> list[ManifestFile]:
        path = seen.manifests[0].manifest_path.rpartition("/")[0] + f"/{uuid4()}-m0.avro"
        with write_manifest(2, table.spec(), table.schema(), table.io.new_output(path), snapshot_id, "deflate") as out:
            out.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=snapshot_id,
                    sequence_number=None,
                    file_sequence_number=None,
                    data_file=file,
                )
            )
        own = {"content": ManifestContent.DELETES, "sequence_number": number, "min_sequence_number": number}
        return [*seen.manifests, _with(out.to_manifest_file(), **own)]

    _new_snapshot(forger, manifests, name, "overwrite")
    return str(place)


def _again(forger: Forger, name: str, *, lies: bool) -> Path:
    """Append the rows of an accepted file in another one, which says that they are of another day if it `lies`."""
    table, entry = forger.table(name), a_file(forger, name)
    again = Path(entry.place).with_name(f"part-{uuid4()}.parquet")
    pq.write_table(pq.read_table(entry.place), again)
    file = parquet_file_to_data_file(table.io, table.metadata, f"file://{again}")
    if lies:
        day = table.schema().find_field("day").field_id
        for side in (_LOWER, _UPPER):
            file._data[side] = {**file._data[side], day: _ELSEWHERE}
        file._data[3] = Record(-600)
    commit_replacement(table, AlwaysTrue(), [], [file], {})
    return again


def deletes_of_another_day(forger: Forger) -> Forged:
    """Delete rows of an accepted file by a file of positions that says it is of another day."""
    return Forged("deleted positions of another day", (delete_rows(forger, READINGS),))


def rows_of_another_day(forger: Forger) -> Forged:
    """Append rows of accepted days in a file that says other days."""
    return Forged("rows that say another day", (str(_again(forger, READINGS, lies=True)),))


def deletes_of_corrections(forger: Forger) -> Forged:
    """Delete corrections by a file of positions."""
    return Forged("deleted positions of corrections", (delete_rows(forger, CORRECTIONS),))


def corrections_again(forger: Forger) -> Forged:
    """Append the corrections of a run once more under its id."""
    return Forged("corrections once more", (str(_again(forger, CORRECTIONS, lies=forger.random.random() < 0.5)),))


def rewritten_under_another_run(forger: Forger) -> Forged:
    """Replace a file by one with the same rows that say they are of another run, mode, version or input."""
    table, entry = forger.table(), forger._entry()
    rows = pq.read_table(entry.place)
    own = set(rows.column("run_id").to_pylist())
    others = {"run_id": "run-9", "transform_version": "9", "processing_mode": "LIVE", "input_snapshot_id": 42}
    for name in forger.random.sample(sorted(others), forger.random.randrange(1, len(others))):
        field = rows.schema.field(name)
        values = arrow.array([others[name]] * rows.num_rows, field.type)
        rows = rows.set_column(rows.schema.get_field_index(name), field, values)
    again = Path(entry.place).with_name(f"part-{uuid4()}.parquet")
    pq.write_table(rows, again)
    new = parquet_file_to_data_file(table.io, table.metadata, f"file://{again}")
    commit_replacement(table, AlwaysTrue(), [entry.file], [new], {})
    return Forged(f"{entry.place} of {own} under other names", (" lineage ", "lineage is another"))


# --- what the metadata says beside its snapshots ----------------------------------------------------------------------


def another_spec_of_the_source(forger: Forger) -> Forged:
    """Have the source's files looked for by another transform."""

    def edit(content: dict[str, Any]) -> None:
        for spec in content["partition-specs"]:
            spec["fields"][0]["transform"] = forger.random.choice(["day", "year", "void"])

    edit_metadata(forger, edit, SOURCE)
    return Forged("another partition spec of the source", (f"{SOURCE} partition spec",))


def another_schema_of_the_source(forger: Forger) -> Forged:
    """Rename a column of the source, in a schema that has another id than it had."""

    def edit(content: dict[str, Any]) -> None:
        content["schemas"][0]["schema-id"] = content["current-schema-id"] = 7
        content["schemas"][0]["fields"][0]["name"] = "was_id"
        for one in content["snapshots"]:
            one["schema-id"] = 7

    edit_metadata(forger, edit, SOURCE)
    return Forged("another schema of the source", (f"{SOURCE} schema", f"{SOURCE} snapshot"))


def log_goes_back(forger: Forger) -> Forged:
    """Have main's log say that readers had an older snapshot for a while, just before a run's change."""
    table = forger.table()
    log, seen = table.metadata.snapshot_log, Seen(table)
    at = forger.random.choice([n for n in range(2, len(log)) if seen.by_id[log[n].snapshot_id].parent_snapshot_id])

    def edit(content: dict[str, Any]) -> None:
        entries = content["snapshot-log"]
        when = entries[at - 1]["timestamp-ms"]
        entries.insert(at, {"snapshot-id": entries[0]["snapshot-id"], "timestamp-ms": when})

    edit_metadata(forger, edit)
    return Forged(f"main went back before {log[at].snapshot_id}", (f"{READINGS} snapshot log",))


def moved_base(forger: Forger) -> Forged:
    """Have the name that keeps what was before a run name another snapshot, or of one that holds chunks nothing."""
    seen, is_removed = Seen(forger.table()), forger.random.random() < 0.5
    holders = set(forger.platform.ledger.accepted(READINGS).values())
    names = [name for name in seen.table.refs() if name.startswith("before-")]
    kept = [name for name in names if name.removeprefix("before-") in holders]
    chosen = forger.random.choice(sorted(kept if is_removed else names))
    other = forger.random.choice([one for one in seen.by_id if one != seen.table.refs()[chosen].snapshot_id])

    def edit(content: dict[str, Any]) -> None:
        if is_removed:
            del content["refs"][chosen]
        else:
            content["refs"][chosen]["snapshot-id"] = other

    edit_metadata(forger, edit)
    return Forged(f"{chosen} {'removed' if is_removed else f'names {other}'}", (f"{READINGS} ref {chosen}",))


def moved_candidate(forger: Forger) -> Forged:
    """Have a candidate's branch name another snapshot."""
    seen = Seen(forger.table())
    chosen = forger.random.choice(sorted(name for name in seen.table.refs() if name.startswith("candidate-")))
    other = forger.random.choice([one for one in seen.by_id if one != seen.table.refs()[chosen].snapshot_id])

    def edit(content: dict[str, Any]) -> None:
        content["refs"][chosen]["snapshot-id"] = other

    edit_metadata(forger, edit)
    return Forged(f"{chosen} names {other}", (f"{READINGS} ref {chosen}",))


def another_kind_of_name(forger: Forger) -> Forged:
    """Make a tag of a run a branch, or its candidate's branch a tag."""
    others = {"branch": "tag", "tag": "branch"}
    refs = forger.table().refs()
    chosen = forger.random.choice(sorted(name for name in refs if name.startswith(("candidate-", "before-"))))

    def edit(content: dict[str, Any]) -> None:
        content["refs"][chosen]["type"] = others[content["refs"][chosen]["type"]]

    edit_metadata(forger, edit)
    return Forged(f"{chosen} is another kind of name", (f"{READINGS} ref {chosen} type",))


def later_schema_with_swapped_names(forger: Forger) -> Forged:
    """Have another program's newest snapshot name a schema in which two columns have each other's names."""
    seen = Seen(forger.table())
    snapshot_id = _new_snapshot(forger, lambda *_: list(seen.manifests))

    def edit(content: dict[str, Any]) -> None:
        current = next(one for one in content["schemas"] if one["schema-id"] == content["current-schema-id"])
        names = {"meter": "transform_version", "transform_version": "meter"}
        fields = [{**one, "name": names.get(one["name"], one["name"])} for one in current["fields"]]
        content["schemas"].append({**current, "schema-id": 9, "fields": fields})
        next(one for one in content["snapshots"] if one["snapshot-id"] == snapshot_id)["schema-id"] = 9

    edit_metadata(forger, edit)
    return Forged(f"schema 9 of {snapshot_id}", (f"{READINGS} schema 9",))


def columns_in_another_order(forger: Forger) -> Forged:
    """Put the columns of each schema into another order."""

    def edit(content: dict[str, Any]) -> None:
        for one in content["schemas"]:
            one["fields"] = one["fields"][::-1]

    edit_metadata(forger, edit)
    return Forged("columns in another order", (f"{READINGS} schema",))


def a_required_column(forger: Forger) -> Forged:
    """Have a column be required, or say what it is by default."""
    key, value = forger.random.choice([("required", True), ("initial-default", 1)])

    def edit(content: dict[str, Any]) -> None:
        for schema in content["schemas"]:
            next(one for one in schema["fields"] if one["name"] == "value")[key] = value

    edit_metadata(forger, edit)
    return Forged(f"value {key}", (f"{READINGS} schema",))


def ids_given_again(forger: Forger) -> Forged:
    """Have the next column, partition field or snapshot get a number that is taken."""
    key, value = forger.random.choice([("last-column-id", 3), ("last-partition-id", 999), ("last-sequence-number", 0)])

    def edit(content: dict[str, Any]) -> None:
        content[key] = value

    edit_metadata(forger, edit)
    return Forged(f"{key} {value}", (f"{READINGS} {key}",))


FORGED_SNAPSHOTS: tuple[Callable[[Forger], Forged], ...] = (
    rows_among_deletes,
    nothing_in_a_manifest,
    another_format,
    another_host,
    all_not_a_number,
    as_many_values_as_nulls,
    split_behind_the_rows,
    deletes_of_another_day,
    rows_of_another_day,
    deletes_of_corrections,
    corrections_again,
    rewritten_under_another_run,
    another_spec_of_the_source,
    another_schema_of_the_source,
    log_goes_back,
    moved_base,
    moved_candidate,
    later_schema_with_swapped_names,
    columns_in_another_order,
    a_required_column,
    ids_given_again,
    another_kind_of_name,
)
"""Every kind, in turn."""
