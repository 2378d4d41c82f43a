"""Tables whose metadata somebody has damaged, in the catalog or in the warehouse: refused or named, and nothing falls over."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Timer
from typing import Any
from unittest import mock

import pyarrow as arrow
import pytest
from pyiceberg.catalog.rest import RestCatalog, TableResponse
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import clear_manifest_cache
from small_worlds import put_back, set_aside

from backfill_assets.audit.conditions import conditions_of
from backfill_assets.audit.explain import explain
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from backfill_assets.operations.clock import recorded_instants
from backfill_assets.operations.doctor.accepted_files import ChunksByTime
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import rollback
from benchmarks import small_table
from benchmarks.changed_bytes import overwrite
from benchmarks.small_table import (
    CORRECTIONS,
    HISTORY,
    READINGS,
    SCOPE,
    SOURCE,
    closed,
    declared,
    manifest,
    planned,
    staged,
)
from manifests.chunks import Chunking
from manifests.errors import EnvironmentRefused
from manifests.lifecycle import RunState
from resources.lakehouse.facade import LOAD_PROPERTY, Lakehouse
from resources.lakehouse.pyiceberg_private import open_as_the_catalog_says
from resources.lakehouse.storage import Storage, place_of

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("looked_at_again_at_once")]

KEY = ["meter=m1", "day=2020-02-04"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Published history, a correction of two months of it, and a run whose chunks are gated and which waits to be published."""
    home = tmp_path_factory.mktemp("metadata") / "home"
    with declared():
        platform = small_table.opened(home)
        small_table.initialise(platform)
        for run_id, scope, version in (("history", HISTORY, "1"), ("fixed", SCOPE, "2"), ("waiting", SCOPE, "1")):
            planned(platform, manifest(run_id, "REPLACE_PARTITIONS", scope, computed_by=version))
            staged(platform, run_id)
            if run_id != "waiting":
                publish(platform, run_id)
        closed(platform)
    return set_aside(home)


@pytest.fixture
def platform(kept: Path) -> Iterator[Platform]:
    clear_manifest_cache()
    with put_back(kept) as opened:
        yield opened
    clear_manifest_cache()  # it knows files by their names


def metadata_of(platform: Platform, table: str = READINGS) -> Path:
    return Path(place_of(platform.lakehouse.table(table).metadata_location))


def lists(platform: Platform, table: str = READINGS) -> tuple[Path, list[Path]]:
    """Return the manifest list of what readers of a table see, and the manifests that it names."""
    found = platform.lakehouse.table(table)
    snapshot = found.current_snapshot()
    assert snapshot is not None
    manifests = [Path(place_of(one.manifest_path)) for one in snapshot.manifests(found.io)]
    clear_manifest_cache()
    return Path(place_of(snapshot.manifest_list)), manifests


def plan(platform: Platform) -> None:
    plan_run(platform, manifest("another", "REPLACE_PARTITIONS", SCOPE))


def publish_it(platform: Platform) -> None:
    publish(platform, "waiting")


def roll_back(platform: Platform) -> None:
    rollback(platform, "fixed")


def explain_it(platform: Platform) -> None:
    explain(platform, READINGS, KEY)


def append(platform: Platform) -> None:
    schema = schema_to_pyarrow(platform.lakehouse.table(SOURCE).schema())
    rows = arrow.Table.from_pylist([{"id": "13", "at": datetime(2020, 12, 2, tzinfo=UTC)}], schema=schema)
    platform.lakehouse.append(SOURCE, [rows], {LOAD_PROPERTY: "one more"})


def undo(platform: Platform) -> None:
    loads = platform.lakehouse.loads(SOURCE)
    platform.lakehouse.undo_load(SOURCE, loads[-1].load_id, {})


# --- what the catalog names -------------------------------------------------------------------------------------------


def written(raw: bytes) -> Callable[[Platform, str], None]:
    return lambda platform, table: overwrite(metadata_of(platform, table), raw)


def removed(platform: Platform, table: str) -> None:
    metadata_of(platform, table).unlink()


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Platform, str], None]:
    """Return what changes a table's metadata file, which stays JSON."""

    def edit(platform: Platform, table: str) -> None:
        file = metadata_of(platform, table)
        said = json.loads(file.read_bytes())
        change(said)
        overwrite(file, json.dumps(said).encode())

    return edit


def newest(said: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in said["snapshots"] if one["snapshot-id"] == said["current-snapshot-id"])


def fields(said: dict[str, Any]) -> list[dict[str, Any]]:
    return [field for schema in said["schemas"] for field in schema["fields"]]


def registered(location: str) -> Callable[[Platform, str], None]:
    """Return what makes the catalog name another metadata file."""

    def register(platform: Platform, table: str) -> None:
        with closing(sqlite3.connect(platform.settings.home / "catalog.db")) as connection:
            change = "UPDATE iceberg_tables SET metadata_location = ? WHERE table_namespace || '.' || table_name = ?"
            assert connection.execute(change, (location, table)).rowcount == 1
            connection.commit()

    return register


UNREADABLE = {
    "half": written(b"{"),
    "empty": written(b""),
    "null": written(b"null"),
    "no text": written(b"\xff\xfe\x00"),
    "too deep": written(b"[" * 100_000),
    "removed": removed,
    "an unknown type": edited(lambda said: [field.update(type="nope") for field in fields(said)]),
    "format 9": edited(lambda said: said.update({"format-version": 9})),
    "no manifest list": edited(lambda said: newest(said).pop("manifest-list")),
    "no schema": edited(lambda said: said.update(schemas=[])),
    "a scheme of nobody": registered("foo://x"),
    "a name that ends early": registered("a\0b"),
}


@pytest.mark.parametrize("damage", UNREADABLE.values(), ids=UNREADABLE)
def test_a_target_whose_metadata_cannot_be_read_is_refused_by_name_and_the_doctor_names_it_and_looks_on(
    platform: Platform, damage: Callable[[Platform, str], None]
) -> None:
    (platform.evidence.records("history") / "publish.json").unlink()
    damage(platform, READINGS)
    for command in (plan, publish_it, roll_back, explain_it):
        with pytest.raises(EnvironmentRefused, match=f"metadata of {READINGS} cannot be read") as refused:
            command(platform)
        (problem,) = refused.value.problems
        assert "restore" in problem.fix
        assert "backfill verify" in problem.fix
    found = {(one.kind, one.where) for one in examine(platform)}
    assert ("DATA-LOSS", READINGS) in found
    assert ("record-damaged", "history record publish") in found
    assert any(one.where == READINGS for one in verify(platform).everything)


def test_a_catalog_that_cannot_be_used_is_no_damaged_table(platform: Platform) -> None:
    closed(platform)
    overwrite(platform.settings.home / "catalog.db", b"no database" * 100)
    for command in (plan, examine):
        with pytest.raises(EnvironmentRefused, match="the catalog 'lake' cannot be opened"):
            command(platform)


@pytest.mark.parametrize("damage", [written(b"{"), removed, registered("foo://x")])
def test_a_source_whose_metadata_cannot_be_read_is_refused_by_name_and_nothing_is_published(
    platform: Platform, damage: Callable[[Platform, str], None]
) -> None:
    before = platform.lakehouse.snapshot_id(READINGS)
    damage(platform, SOURCE)
    for command in (plan, publish_it, append):
        with pytest.raises(EnvironmentRefused, match=f"metadata of {SOURCE} cannot be read"):
            command(platform)
    assert platform.lakehouse.snapshot_id(READINGS) == before
    assert platform.ledger.run("waiting").state is RunState.VALIDATED


# --- manifest lists and manifests -------------------------------------------------------------------------------------


def garbled(file: Path) -> None:
    overwrite(file, b"garbage")


def halved(file: Path) -> None:
    overwrite(file, file.read_bytes()[: file.stat().st_size // 2])


def scrambled(file: Path) -> None:
    """Change what lies behind the header: the compressed block is none any more."""
    raw = file.read_bytes()
    overwrite(file, raw[: -len(raw) // 8] + bytes(255 - one for one in raw[-len(raw) // 8 : -16]) + raw[-16:])


def with_a_hole(file: Path) -> None:
    raw = file.read_bytes()
    overwrite(file, raw[:1200] + bytes(16) + raw[1216:])


DAMAGES = pytest.mark.parametrize("damage", [Path.unlink, garbled, halved, scrambled, with_a_hole])


@DAMAGES
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_the_doctor_names_damaged_metadata_of_what_readers_see_and_looks_on(
    platform: Platform, which: str, damage: Callable[[Path], None]
) -> None:
    manifest_list, manifests = lists(platform)
    replaced = platform.ledger.chunks("history")[1].files[0]
    Path(place_of(replaced.path)).unlink()  # only the older snapshot has it
    damaged = manifest_list if which == "list" else manifests[0]
    damage(damaged)
    found = [one for one in examine(platform) if one.kind == "DATA-LOSS"]
    assert [one for one in found if "cannot be read" in one.what and damaged.name in f"{one.what} {one.fix}"], found
    assert [one for one in found if one.where == f"{READINGS} older snapshots" and replaced.path[-40:] in one.what], (
        found
    )
    named = [f"{one.where} {one.what}" for one in verify(platform).everything]
    assert any(damaged.name in one for one in named), named


@DAMAGES
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_a_row_of_damaged_metadata_is_not_explained_and_nothing_is_published_over_it(
    platform: Platform, which: str, damage: Callable[[Path], None]
) -> None:
    manifest_list, manifests = lists(platform)
    for file in [manifest_list] if which == "list" else manifests:
        damage(file)
    for command in (explain_it, publish_it, roll_back):
        with pytest.raises(EnvironmentRefused, match=f"of {READINGS} cannot be read"):
            command(platform)


@DAMAGES
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_nothing_is_published_or_loaded_over_damaged_metadata_of_its_source_until_it_is_restored(
    platform: Platform, which: str, damage: Callable[[Path], None]
) -> None:
    manifest_list, manifests = lists(platform, SOURCE)
    file = manifest_list if which == "list" else manifests[0]
    raw, before = file.read_bytes(), platform.lakehouse.snapshot_id(READINGS)
    damage(file)
    commands = [plan, undo]
    if which == "list":  # an append looks into no manifest, and the evidence has those by their bytes
        commands.append(append)
        if damage is not Path.unlink:  # of a list that is gone the evidence says so
            commands.append(publish_it)
    for command in commands:
        with pytest.raises(EnvironmentRefused, match=f"of {SOURCE} cannot be read"):
            command(platform)
    assert platform.lakehouse.snapshot_id(READINGS) == before
    file.write_bytes(raw)
    assert publish(platform, "waiting").new


@DAMAGES
@pytest.mark.parametrize("which", ["list", "manifest"])
def test_a_run_whose_source_has_damaged_metadata_cannot_be_reproduced_which_is_said(
    platform: Platform, which: str, damage: Callable[[Path], None]
) -> None:
    manifest_list, manifests = lists(platform, SOURCE)
    file = manifest_list if which == "list" else manifests[0]
    damage(file)
    recorded = {one.chunk: one for one in platform.ledger.chunks("fixed")}
    pin = {one.name: one for one in conditions_of(platform, platform.ledger.run("fixed").plan, recorded)}[SOURCE]
    assert (pin.same, pin.blocks) == (False, True)
    assert file.name in pin.present


# --- JSON that says odd things ----------------------------------------------------------------------------------------


def summary(key: str, value: str) -> Callable[[dict[str, Any]], object]:
    return lambda said: newest(said)["summary"].update({key: value})


@pytest.mark.parametrize("key", ["total-records", "total-data-files", "total-files-size"])
def test_a_count_that_is_none_is_refused_before_anything_is_committed(platform: Platform, key: str) -> None:
    before = platform.lakehouse.snapshot_id(READINGS)
    raw = metadata_of(platform).read_bytes()
    edited(summary(key, "x"))(platform, READINGS)
    for command in (publish_it, roll_back):
        with pytest.raises(EnvironmentRefused, match=f"of {READINGS} says {key}: 'x'"):
            command(platform)
    assert platform.lakehouse.snapshot_id(READINGS) == before
    overwrite(metadata_of(platform), raw)
    assert publish(platform, "waiting").new


@pytest.mark.parametrize(
    ("key", "command"),
    [
        ("total-records", append),
        ("total-records", lambda platform: platform.lakehouse.total_rows(SOURCE)),
        ("added-records", lambda platform: platform.lakehouse.loads(SOURCE)),
    ],
)
def test_a_count_of_a_source_that_is_none_is_refused_by_name(
    platform: Platform, key: str, command: Callable[[Platform], object]
) -> None:
    edited(summary(key, "x"))(platform, SOURCE)
    with pytest.raises(EnvironmentRefused, match=f"of {SOURCE} says {key}: 'x'"):
        command(platform)


def test_a_change_whose_number_is_none_is_named_by_the_doctor_and_it_looks_on(platform: Platform) -> None:
    Path(place_of(platform.ledger.chunks("fixed")[0].files[0].path)).unlink()
    edited(summary("backfill.sequence", "x"))(platform, READINGS)
    found = {one.kind: one for one in examine(platform)}
    assert "backfill.sequence: 'x'" in found["metadata-damaged"].what
    assert "DATA-LOSS" in found


@pytest.mark.parametrize("column", [{"name": "days"}, {"type": "string"}], ids=["gone", "text"])
def test_a_target_without_its_day_column_is_named_by_the_doctor(platform: Platform, column: dict[str, str]) -> None:
    edited(lambda said: [one.update(column) for one in fields(said) if one["name"] == "day"])(platform, READINGS)
    found = {one.kind: one for one in examine(platform)}
    assert "day" in found["metadata-damaged"].what
    for command in (publish_it, explain_it):
        with pytest.raises(EnvironmentRefused):
            command(platform)


def test_a_target_at_a_place_that_nothing_can_open_is_refused_and_named_by_the_doctor(platform: Platform) -> None:
    edited(lambda said: said.update(location="foo://x"))(platform, READINGS)
    assert [one for one in examine(platform) if one.kind == "DATA-LOSS" and "foo://x" in one.what]
    with pytest.raises(EnvironmentRefused, match="foo://x"):
        publish_it(platform)


@pytest.mark.parametrize(
    "damage",
    [
        edited(lambda said: said.update(location="foo://x")),
        edited(lambda said: said.update({"format-version": 3, "next-row-id": 0})),
        edited(
            lambda said: [one.update(transform="nope") for spec in said["partition-specs"] for one in spec["fields"]]
        ),
    ],
    ids=["at a place that nothing can open", "of a format that is not written", "of an unknown transform"],
)
def test_a_target_that_cannot_be_committed_to_is_refused_and_nothing_changes(
    platform: Platform, damage: Callable[[Platform, str], None]
) -> None:
    file = metadata_of(platform)
    raw, before = file.read_bytes(), platform.lakehouse.snapshot_id(READINGS)
    damage(platform, READINGS)
    for command in (publish_it, roll_back):
        with pytest.raises(EnvironmentRefused, match=READINGS):
            command(platform)
    assert platform.lakehouse.snapshot_id(READINGS) == before
    overwrite(metadata_of(platform), raw)
    assert publish(platform, "waiting").new
    assert rollback(platform, "waiting").new


@pytest.mark.parametrize(
    "damage",
    [
        edited(lambda said: [one.update({"timestamp-ms": 10**18}) for one in said["snapshots"]]),
        edited(lambda said: [one.update(name="when") for one in fields(said) if one["name"] == "at"]),
        edited(lambda said: [one.update(type="string") for one in fields(said) if one["name"] == "at"]),
    ],
    ids=["an instant beyond time", "no time column", "a time column of text"],
)
def test_a_source_of_odd_instants_is_refused_when_a_run_is_planned_on_it(
    platform: Platform, damage: Callable[[Platform, str], None]
) -> None:
    damage(platform, SOURCE)
    with pytest.raises(EnvironmentRefused, match=SOURCE):
        plan(platform)


def test_instants_beyond_time_are_refused_where_they_are_shown(platform: Platform) -> None:
    edited(lambda said: [one.update({"timestamp-ms": 10**18}) for one in said["snapshots"]])(platform, READINGS)
    edited(lambda said: [one.update({"timestamp-ms": 10**18}) for one in said["snapshots"]])(platform, SOURCE)
    edited(lambda said: said.update({"last-updated-ms": 10**18}))(platform, SOURCE)
    for command in (explain_it, lambda platform: platform.lakehouse.loads(SOURCE)):
        with pytest.raises(EnvironmentRefused, match="committed at"):
            command(platform)
    with pytest.raises(EnvironmentRefused, match=f"{SOURCE} says that it was updated at"):
        recorded_instants(platform, [SOURCE])


# --- what is no file --------------------------------------------------------------------------------------------------


def data_file(platform: Platform) -> Path:
    return Path(place_of(platform.ledger.chunks("fixed")[0].files[0].path))


@contextmanager
def a_pipe(file: Path) -> Iterator[None]:
    """Put a pipe in the place of a file; whoever opens it waits, but not for ever: an error follows then."""
    file.unlink()
    os.mkfifo(file)
    was_waited_for = []

    def write() -> None:
        was_waited_for.append(file)
        os.close(os.open(file, os.O_RDWR | os.O_NONBLOCK))

    writer = Timer(30, write)
    writer.start()
    try:
        yield
    finally:
        writer.cancel()
    assert not was_waited_for


@pytest.mark.parametrize(
    "of",
    [metadata_of, lambda one: lists(one)[0], lambda one: lists(one)[1][0], data_file],
    ids=["metadata", "list", "manifest", "data"],
)
def test_a_pipe_in_the_place_of_a_file_is_named_and_not_waited_for(
    platform: Platform, of: Callable[[Platform], Path]
) -> None:
    file = of(platform)
    with a_pipe(file):
        assert any(file.name in one.where or file.name in one.what for one in verify(platform, data=True).everything)
        assert examine(platform)
        if of is not data_file:  # a rollback is metadata only
            with pytest.raises(EnvironmentRefused, match="is a pipe, not a file"):
                rollback(platform, "fixed")


class Planted(PyArrowFileIO):
    """Code that nobody has told this project to read files with."""

    made = 0

    def __init__(self, *arguments: Any) -> None:
        Planted.made += 1
        super().__init__(*arguments)


def says(name: str, value: str) -> Callable[[Platform, str], None]:
    return edited(lambda said: said["properties"].update({name: value}))


READERS_OF_OTHERS = {
    "pyarrow": "pyiceberg.io.pyarrow.PyArrowFileIO",
    "planted": f"{Planted.__module__}.{Planted.__qualname__}",
    "fsspec": "pyiceberg.io.fsspec.FsspecFileIO",
    "nobody's": "nobody.has.It",
    "no name": "x",
}


@pytest.mark.parametrize("implementation", READERS_OF_OTHERS.values(), ids=READERS_OF_OTHERS)
def test_a_table_does_not_say_by_which_code_its_files_are_read_and_one_that_does_is_named(
    platform: Platform, implementation: str
) -> None:
    for table in (READINGS, SOURCE, CORRECTIONS):
        says("py-io-impl", implementation)(platform, table)
    Planted.made = 0
    where = {one.where for one in verify(platform, data=True).everything}
    assert f"{READINGS} property py-io-impl" in where
    assert not [one for one in where if "not everything could be checked" in one]
    named = [one for one in examine(platform) if one.where == READINGS]
    assert [(one.kind, "py-io-impl" in one.what) for one in named] == [("file-access-redirected", True)]
    assert publish(platform, "waiting").new
    assert rollback(platform, "waiting").new
    append(platform)
    with a_pipe(file := data_file(platform)):
        assert any(file.name in one.where or file.name in one.what for one in verify(platform, data=True).everything)
    assert Planted.made == 0


@pytest.mark.parametrize(
    "name",
    ["s3.endpoint", "gcs.service.host", "adls.dfs-storage-authority", "hdfs.host", "client.region", "hf.endpoint"],
)
def test_a_table_does_not_say_where_its_files_are_asked_for_and_one_that_does_is_named(
    platform: Platform, name: str
) -> None:
    says(name, "evil.example")(platform, READINGS)
    assert name not in platform.lakehouse.table(READINGS).io.properties
    assert f"{READINGS} property {name}" in {one.where for one in verify(platform).everything}
    assert [(one.kind, name in one.what) for one in examine(platform)] == [("file-access-redirected", True)]


def test_a_fence_of_a_lease_that_was_never_given_is_named(platform: Platform) -> None:
    given = platform.ledger.repairs.newest_token()
    head = platform.lakehouse.snapshot_of(READINGS)
    assert head is not None
    assert given > 0
    for tag in (f"fence-{given}", f"fence-{given + 4}", "fence-²", f"fence-{'9' * 5000}"):
        platform.lakehouse.tag(READINGS, tag, head)
    named = [(one.kind, one.where) for one in examine(platform)]
    assert named == [("fence-unknown", f"{READINGS} tag fence-{given + 4}")]


@pytest.mark.parametrize("name", ["DEFAULT_SCHEME", "DEFAULT_NETLOC"])
def test_a_table_does_not_say_where_places_without_a_scheme_are(platform: Platform, name: str) -> None:
    says(name, "s3")(platform, READINGS)
    assert name not in platform.lakehouse.table(READINGS).io.properties
    assert f"{READINGS} property {name}" in {one.where for one in verify(platform).everything}


def test_a_catalog_whose_files_are_not_read_through_pyarrow_is_refused_where_files_are_looked_at(
    platform: Platform,
) -> None:
    closed(platform)
    catalog = {**platform.settings.catalog, "py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
    with pytest.raises(EnvironmentRefused, match=r"py-io-impl names pyiceberg\.io\.fsspec\.FsspecFileIO"):
        Storage(Lakehouse("lake", catalog).table(READINGS))


def test_a_rest_server_hands_out_how_files_are_opened_and_the_metadata_does_not(platform: Platform) -> None:
    says("s3.endpoint", "evil.example")(platform, READINGS)
    loaded = platform.lakehouse.table(READINGS)
    with mock.patch.object(RestCatalog, "__init__", return_value=None):
        catalog = RestCatalog("rest")
    catalog.name, catalog.properties, catalog._auth_manager = "rest", {"s3.region": "eu"}, None
    catalog._session = mock.Mock(hooks={"response": []})
    response = TableResponse(
        **{"metadata-location": loaded.metadata_location}, metadata=loaded.metadata, config={"s3.access-key-id": "lent"}
    )
    open_as_the_catalog_says(catalog)
    table = catalog._response_to_table(("silver", "readings"), response)
    assert table.io.properties == {"s3.region": "eu", "s3.access-key-id": "lent"}
    assert table.properties["s3.endpoint"] == "evil.example"


@pytest.mark.parametrize(
    "name", ["write.parquet.compression-codec", "history.expire.max-snapshot-age-ms", "s3", "owner"]
)
def test_a_property_that_says_nothing_of_reading_files_is_named_by_nobody(platform: Platform, name: str) -> None:
    says(name, "1")(platform, READINGS)
    assert examine(platform) == []
    assert not [one for one in verify(platform).everything if name in one.where]


def test_a_folder_in_the_place_of_a_metadata_file_is_that_tables_damage_and_the_doctor_looks_on(
    platform: Platform,
) -> None:
    file = metadata_of(platform, CORRECTIONS)
    file.unlink()
    file.mkdir()
    assert [(one.kind, one.where) for one in examine(platform)] == [("DATA-LOSS", CORRECTIONS)]


@pytest.mark.parametrize("location", ["file:///", "http://127.0.0.1:1/x.json", "nobody-knows://x/y.json"])
def test_an_entry_of_the_catalog_that_is_no_file_is_that_tables_damage(platform: Platform, location: str) -> None:
    registered(location)(platform, READINGS)
    assert ("DATA-LOSS", READINGS) in {(one.kind, one.where) for one in examine(platform)}


def test_a_file_whose_bounds_span_the_calendar_is_looked_at_at_once() -> None:
    months = ChunksByTime(Chunking.MONTH, ["2020-03", "2020-01", "no month"])
    ends = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    assert months.between(*ends) == ["2020-01", "2020-03"]
    assert months.between(_at(2020, 1, 31), _at(2020, 2, 29)) == ["2020-01"]
    assert months.between(_at(2020, 2, 1), _at(2020, 2, 29)) == []
    assert ChunksByTime(Chunking.DAY, ["2020-01-31", "2020-02-01"]).between(_at(2020, 2, 1), ends[1]) == ["2020-02-01"]
    hours = ChunksByTime(Chunking.HOUR, ["2020-01-31T23~CA", "2020-02-01T00~CA", "2020-02-01T00~WA"])
    assert hours.between(_at(2020, 2, 1), _at(2020, 2, 1)) == ["2020-02-01T00~CA", "2020-02-01T00~WA"]


def _at(year: int, month: int, day: int) -> datetime:
    return datetime(year, month, day, tzinfo=UTC)


def test_a_path_that_no_file_can_have_is_no_file(platform: Platform) -> None:
    storage, file = Storage(platform.lakehouse.table(READINGS)), data_file(platform)
    assert set(storage.look(["/a\0b", "", str(file)])) == {str(file)}


@pytest.mark.parametrize("said", ["[5]", "5", "{"])
def test_a_bundle_that_does_not_say_what_a_run_changes_is_named_by_the_doctor_which_looks_on(
    platform: Platform, said: str
) -> None:
    overwrite(platform.evidence.path("fixed") / "changes.json", said.encode())
    assert ("evidence-damaged", "fixed") in {(one.kind, one.where) for one in examine(platform)}
