"""Of a store nothing is held against a file that one answer alone says: what is missing or damaged there is proven, or not known."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from real_servers.misbehaving import CUT, NOT_FOUND, SWALLOWED, UNAVAILABLE, Proxy, misbehaving
from real_servers.s3 import Store

from backfill_assets.audit.first_difference import in_key_order
from backfill_assets.extraction.archived_records import CopyTask, copy_files, looked_at
from backfill_assets.review.diff import _require_read
from backfill_assets.worker import chunk_diff
from backfill_assets.worker.changed_rows import CompareSpec, RowsOfAll
from backfill_assets.worker.chunk_diff import CompareTask
from backfill_assets.worker.chunk_gate import _read
from backfill_assets.worker.columns import UNREADABLE, rows_of, scan_file, table_of
from backfill_assets.worker.file_batches import batches_of
from backfill_assets.worker.violations import READ_RULE, UNREAD_RULE, Violation, unreadable
from manifests.errors import EnvironmentRefused, PublicationRefused
from manifests.log_ranges import LogRange
from manifests.staged_file import StagedFile
from resources.files import stores
from resources.files.stores import NO_STORE, StoreAccess
from resources.lakehouse.contents import CONTENT_PROPERTY, content_property
from resources.lakehouse.file_access import access_to
from resources.lakehouse.gated_contents import require_gated_contents
from resources.lakehouse.snapshots import hashed
from resources.lakehouse.storage import Storage
from resources.settings import load_settings
from resources.spark.chunk_work import ChunkWork, in_worker, task_text

SCHEMA = Schema(
    NestedField(1, "number", LongType(), required=False), NestedField(2, "name", StringType(), required=False)
)


def parquet(rows: int = 1_000) -> bytes:
    written = BytesIO()
    frame = pl.DataFrame({"number": range(rows), "name": [f"n{one}" for one in range(rows)]})
    pq.write_table(table_of(frame, SCHEMA), written, compression="none")
    return written.getvalue()


def put(path: str, raw: bytes) -> None:
    with stores.output(path) as stream:
        stream.write(raw)


def rule_of(path: str) -> str:
    """Return what the gate, and every other reader of a table's files, say of a file."""
    violations: dict[str, Violation] = {}
    assert _read(path, violations, {}, "") is None
    with pytest.raises(UNREADABLE) as raised:
        scan_file(path, SCHEMA.model_dump_json()).collect()
    rule = unreadable(path, cast("Exception", raised.value)).rule
    assert violations.keys() == {rule}
    return rule


def gated(path: str, raw: bytes) -> StagedFile:
    return StagedFile(path, 1, len(raw), sha256=hashlib.sha256(raw).hexdigest())


def table_with(access: StoreAccess, location: str) -> Table:
    """Return as much of a table as is asked how its files are opened."""
    io = load_file_io(dict(access.of(location)))
    return cast("Table", SimpleNamespace(io=io, location=lambda: location, name=lambda: ("a", "table")))


# --- without a store --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    chunk: str


def opened_while(tasks: Iterable[Task]) -> Iterator[str]:
    for task in tasks:
        stores.opened("s3://lake/a")
        yield f"{task.chunk} {len(stores._in_force.get().by_place)}"


def test_an_access_ends_with_its_work() -> None:
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "handed-out"}
    access = access_to({"s3.endpoint": "http://127.0.0.1:1", "s3.region": "eu", **keys})
    work = ChunkWork(opened_while, Task, str)
    batch = arrow.RecordBatch.from_pydict({"task": [task_text(Task("one")), task_text(Task("two"))]})
    results = [text for found in in_worker(work, access, [batch]) for text in found["result"].to_pylist()]
    assert results == ['"one 1"', '"two 1"']
    assert (stores._in_force.get(), stores._had.get()) == (NO_STORE, None)
    stopped = in_worker(work, access, [batch])
    next(stopped)
    stopped.close()
    assert (stores._in_force.get(), stores._had.get()) == (NO_STORE, None)


@pytest.mark.parametrize("part", ["a#b", "a?b", "a\tb", "a\x7fb", "a\nb", "a//b", "/a"])
def test_a_name_that_is_not_read_alike_everywhere_is_refused(part: str, tmp_path: Path) -> None:
    for ask in (stores.place_of, stores.opened):
        with pytest.raises(EnvironmentRefused, match="an object of a store has one name"):
            ask(f"s3://lake/warehouse/{part}/f.parquet")
    with pytest.raises(EnvironmentRefused, match=r"catalog\.warehouse"):
        load_settings(home=tmp_path, catalog={"type": "sql", "uri": "sqlite://", "warehouse": f"s3://lake/{part}"})
    assert stores.place_of(f"{tmp_path}/{part}") == f"{tmp_path}/{part}", "a local file has the name that it has"


def test_a_local_file_may_have_as_long_a_name_as_any(tmp_path: Path) -> None:
    path = tmp_path / f"{'k' * 247}.parquet"
    with stores.output(str(path)) as stream:
        stream.write(b"rows")
        assert [one.name.startswith(".") for one in tmp_path.iterdir()] == [True]
    assert path.read_bytes() == b"rows"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError):
        stores.size_of(f"{tmp_path}/none")


def damaged_footers() -> list[bytes]:
    raw = parquet(10)
    begins = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    flipped = []
    for place in range(begins, len(raw), 7):
        one = bytearray(raw)
        one[place] ^= 0x80
        flipped.append(bytes(one))
    return [raw[:-20], b"", b"PAR1", *flipped]


def test_a_damaged_footer_is_read_or_proven_damage_whoever_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, int] = {}
    for raw in damaged_footers():
        monkeypatch.setattr(stores, "content", lambda _, raw=raw: raw)
        try:
            scan_file("s3://lake/a", SCHEMA.model_dump_json()).collect()
        except UNREADABLE as error:
            rule = unreadable("s3://lake/a", error).rule
            found[rule] = found.get(rule, 0) + 1
    assert found.keys() == {READ_RULE}
    assert found[READ_RULE] > 20


# --- a store that misbehaves ------------------------------------------------------------------------------------------


@pytest.fixture
def proxy(disk_store: Store) -> Iterator[Proxy]:
    with misbehaving(disk_store.endpoint) as one:
        yield one


@pytest.fixture
def access(proxy: Proxy, disk_store: Store) -> StoreAccess:
    return access_to({**disk_store.properties(), "s3.endpoint": proxy.endpoint})


@pytest.fixture
def folder(disk_store: Store) -> str:
    return f"s3://{disk_store.bucket(f'b{uuid.uuid4().hex}')}/folder"


def as_nobody(disk_store: Store, **other: str) -> StoreAccess:
    return access_to({**disk_store.properties(), "s3.access-key-id": "nobody", **other})


@pytest.mark.servers
def test_who_cannot_see_a_bucket_does_not_know_that_its_files_are_gone(
    disk_store: Store, proxy: Proxy, access: StoreAccess, folder: str
) -> None:
    path, raw = f"{folder}/a.parquet", parquet()
    of_no_bucket = f"s3://b{uuid.uuid4().hex}/a.parquet"
    with stores.opened_by(access):
        put(path, raw)
        assert rule_of(f"{folder}/gone.parquet") == READ_RULE
        assert rule_of(of_no_bucket) == UNREAD_RULE
        with pytest.raises(FileNotFoundError):
            stores.size_of(f"{folder}/gone.parquet")
        with pytest.raises(OSError, match="cannot be seen with these keys"):
            stores.size_of(of_no_bucket)
    with pytest.raises(PublicationRefused, match="it is gone"):
        require_gated_contents(table_with(access, folder), [gated(f"{folder}/gone.parquet", raw)])
    nobody = as_nobody(disk_store)
    with stores.opened_by(nobody):
        assert rule_of(path) == UNREAD_RULE
    with pytest.raises(EnvironmentRefused, match="could not be read just now"):
        require_gated_contents(table_with(nobody, folder), [gated(path, raw)])
    place = stores.place_of(path)
    assert Storage(table_with(access, folder)).look([place, f"{place}-gone"]).keys() == {place}
    with pytest.raises((OSError, EnvironmentRefused)):
        Storage(table_with(nobody, folder)).look([place])
    with pytest.raises((OSError, EnvironmentRefused)):
        Storage(table_with(access, of_no_bucket.rpartition("/")[0])).look([stores.place_of(of_no_bucket)])
    proxy.answers = lambda *_: NOT_FOUND
    with stores.opened_by(access):
        assert rule_of(path) == UNREAD_RULE
    with pytest.raises(EnvironmentRefused, match="could not be read just now"):
        require_gated_contents(table_with(access, folder), [gated(path, raw)])


@pytest.mark.servers
def test_a_cut_answer_of_full_length_is_no_damage(proxy: Proxy, access: StoreAccess, folder: str) -> None:
    path, raw = f"{folder}/a.parquet", parquet(100_000)
    with stores.opened_by(access):
        put(path, raw)
        proxy.answers = lambda method, _: CUT if method == "GET" else None
        assert len(stores.content(path)) == len(raw), "nobody says that it is cut"
        assert rule_of(path) == UNREAD_RULE
        with pytest.raises(OSError, match="two readings"):
            rows_of(path)
        with pytest.raises(EnvironmentRefused, match="two readings"):
            require_gated_contents(table_with(access, folder), [gated(path, raw)])
        proxy.answers = lambda *_: None
        put(path, raw[:-20])
        assert rule_of(path) == READ_RULE
        with pytest.raises(arrow.ArrowInvalid):
            rows_of(path)
        with pytest.raises(PublicationRefused, match="has the SHA-256"):
            require_gated_contents(table_with(access, folder), [gated(path, raw)])


@pytest.mark.servers
def test_a_file_that_is_read_in_parts_is_damaged_only_if_the_whole_is(
    proxy: Proxy, access: StoreAccess, folder: str
) -> None:
    path, raw = f"{folder}/a.parquet", bytearray(parquet(100_000))
    with stores.opened_by(access):
        put(path, bytes(raw))
        proxy.answers = lambda method, _: UNAVAILABLE if method == "GET" else None
        with pytest.raises(OSError, match=r"503|unavailable|UNKNOWN|AWS Error"):
            list(batches_of(path, ["name"]))
        proxy.answers = lambda *_: None
        at = raw.index(b"n50000")
        raw[at : at + 6] = b"\xff" * 6  # no text
        put(path, bytes(raw))
        with pytest.raises(arrow.ArrowInvalid):
            list(batches_of(path, ["name"]))


@pytest.mark.servers
def test_what_a_store_has_not_kept_is_not_written(proxy: Proxy, access: StoreAccess, folder: str) -> None:
    with stores.opened_by(access):
        proxy.answers = lambda method, _: SWALLOWED if method in {"PUT", "POST"} else None
        with pytest.raises(OSError, match=r"no such file|UploadId|PutObject|Error"):
            put(f"{folder}/a", b"rows")


@pytest.mark.servers
def test_a_comparison_calls_no_unreachable_file_damaged(proxy: Proxy, access: StoreAccess, folder: str) -> None:
    old, new = f"{folder}/old.parquet", f"{folder}/new.parquet"
    spec = CompareSpec("run", ("number",), ("name",), 1, 1, table=SCHEMA.model_dump_json())
    with stores.opened_by(access):
        for path in (old, new):
            put(path, parquet(10))

        def found() -> chunk_diff.ChunkCompared:
            (one,) = [
                one
                for one in chunk_diff._compare(spec, [CompareTask("c", (old,), (new,), ())])
                if not isinstance(one, RowsOfAll)
            ]
            return one

        proxy.answers = lambda _, path: UNAVAILABLE if "new.parquet" in path else None
        one = found()
        assert (one.unreadable, bool(one.unread)) == ("", True)
        with pytest.raises(EnvironmentRefused, match="could not be read just now"):
            _require_read("run", {"c": one})
        proxy.answers = lambda *_: None
        put(new, parquet(10)[:-20])
        assert found().unreadable.startswith(new)
        put(new, parquet(10))
        assert (found().unreadable, found().unread) == ("", "")


@pytest.mark.servers
def test_an_archive_that_cannot_be_reached_is_not_called_damaged(
    proxy: Proxy, access: StoreAccess, folder: str
) -> None:
    path = f"{folder}/a.parquet"
    with stores.opened_by(access):
        put(path, parquet(10))
        proxy.answers = lambda method, _: UNAVAILABLE if method == "GET" else None
        with pytest.raises(EnvironmentRefused, match="could not be read just now"):
            looked_at(path, SCHEMA)
        task = CopyTask(path, (LogRange(0, 0, 5),), folder, "load")
        (copied,) = copy_files(SCHEMA.model_dump_json(), iter([task]))
        assert (copied.unreadable, bool(copied.unread)) == ("", True)


@pytest.mark.servers
def test_files_of_a_store_are_in_memory_one_at_a_time(
    access: StoreAccess, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = ([f"{folder}/{side}{one}.parquet" for one in range(4)] for side in ("old", "new"))
    spec = CompareSpec("run", ("number",), ("name",), 1, 1, table=SCHEMA.model_dump_json())
    task = CompareTask("c", tuple(old), tuple(new), ())
    held, most, real = 0, 0, stores.content

    class Held(bytes):
        def __del__(self) -> None:
            nonlocal held
            held -= 1

    def counted(path: str) -> bytes:
        nonlocal held, most
        found = Held(real(path))
        held += 1
        most = max(most, held)
        return found

    with stores.opened_by(access):
        for number in range(4):
            rows = pl.DataFrame({"number": range(number * 10, number * 10 + 10), "name": "n"})
            for path in (old[number], new[number]):
                written = BytesIO()
                pq.write_table(table_of(rows, SCHEMA), written)
                put(path, written.getvalue())
        monkeypatch.setattr(stores, "content", counted)
        monkeypatch.setattr(chunk_diff, "SLICE_ROWS", 10)
        slices = list(chunk_diff._slices(spec, [task], {}))
        assert [(one.height, other.height) for one, other in slices] == [(10, 10)] * 4
        assert most <= 1
        assert sum(frame.height for frame in in_key_order(old, {"number": pl.col("number")}, ["number"])) == 40
        assert most <= 1


@pytest.mark.servers
def test_no_hash_is_kept_of_an_answer_that_was_cut(proxy: Proxy, access: StoreAccess, folder: str) -> None:
    """What evidence says of a file is what every later reading is held against."""
    path, raw = f"{folder}/outline.parquet", parquet(10_000)
    with stores.opened_by(access):
        put(path, raw)
    table, known = table_with(access, folder), hashlib.sha256(raw).hexdigest()
    cut = iter([CUT])
    proxy.answers = lambda method, _: next(cut, None) if method == "GET" else None
    assert hashed(table, path) == {"path": path, "bytes": len(raw), "sha256": known}
    cut = iter([CUT])
    assert json.loads(content_property(table, [path])[CONTENT_PROPERTY]) == {"outline.parquet": known}
    proxy.answers = lambda method, _: CUT if method == "GET" else None
    for read in (hashed, lambda *given: content_property(given[0], [given[1]])):
        with pytest.raises(OSError, match="have other bytes"):
            read(table, path)


@pytest.mark.servers
def test_a_cut_answer_accuses_nobody(proxy: Proxy, access: StoreAccess, folder: str) -> None:
    path, raw = f"{folder}/a.parquet", parquet(10_000)
    with stores.opened_by(access):
        put(path, raw)
    storage, place, known = Storage(table_with(access, folder)), stores.place_of(path), hashlib.sha256(raw).hexdigest()

    with stores.opened_by(access):
        put(f"{path}-other", raw[::-1])

    def read(expected: str, *cut: int) -> tuple[bytes | None, int]:
        """Return what is read while these requests are cut, None where nobody can say; and the number of requests."""
        proxy.answers, asked = (lambda *_: None), []
        storage.content(f"{place}-other")  # where an answer is cut there is what lay in memory: not this very file

        def answers(method: str, _path: str) -> str | None:
            asked.append(method)
            return CUT if method == "GET" and asked.count("GET") in cut else None

        proxy.answers = answers
        with suppress(OSError):
            return storage.content(place, sha256=expected), asked.count("GET")
        return None, asked.count("GET")

    assert read(known) == (raw, 1), "what it is to be is believed at once"
    assert read(known[::-1])[0] == raw, "it is another file, and that is certain"
    assert [read("", cut)[0] for cut in range(1, 4)] == [None, None, None]
    assert read(known, 1)[0] is None
    assert read(known, 2) == (raw, 1)
