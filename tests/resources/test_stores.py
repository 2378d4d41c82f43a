"""Files of a store are read and written as local ones are, by the access that the catalog gives, which nobody is shown."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
import uuid
from io import BytesIO
from pathlib import Path
from typing import cast
from unittest import mock

import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import pyspark
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, NestedField, StringType, UUIDType
from pyspark.sql import SparkSession
from real_servers.s3 import Store
from worlds import SPARK

from backfill_assets.worker.chunk_finishing import FinishTask, finish
from backfill_assets.worker.chunk_gate import _read
from backfill_assets.worker.columns import UNREADABLE, rows_of, scan_file
from backfill_assets.worker.file_batches import batches_of
from backfill_assets.worker.violations import READ_RULE, UNREAD_RULE, Violation, unreadable
from manifests.errors import EnvironmentRefused
from manifests.model import Mode
from resources.files import stores
from resources.files.fingerprints import Fingerprint
from resources.files.stores import StoreAccess
from resources.lakehouse.catalog import Tables
from resources.lakehouse.file_access import access_to
from resources.settings import load_settings
from resources.spark import one_reach
from resources.spark.mode_settings import of_the_jvm, session_settings
from resources.spark.object_store import COMMIT_PROTOCOL, is_in_s3, require_classes
from resources.spark.sessions import ModeSpark

SECRET = "secret-0f1e2d3c"
CATALOG = {
    "type": "sql",
    "uri": "postgresql+psycopg2://ana:of-the-database@host/catalog",
    "warehouse": "s3://lake/warehouse",
    "s3.endpoint": "http://127.0.0.1:9000",
    "s3.access-key-id": "tests",
    "s3.secret-access-key": SECRET,
    "s3.region": "eu-west-1",
}


def parquet(rows: int = 10) -> bytes:
    written = BytesIO()
    pl.DataFrame({"number": range(rows), "name": [f"n{one}" for one in range(rows)]}).write_parquet(written)
    return written.getvalue()


def write_half(path: str) -> None:
    with stores.output(path) as stream:
        stream.write(b"half")
        raise ValueError("on the way")


# --- access -----------------------------------------------------------------------------------------------------------


def test_an_access_has_what_opens_files_and_nothing_else_of_a_catalog() -> None:
    found = dict(access_to(CATALOG).of("s3://lake/warehouse/a.parquet"))
    assert found == {name: value for name, value in CATALOG.items() if name.startswith("s3.")}


def test_an_access_says_no_value() -> None:
    access = access_to(CATALOG)
    for said in (repr(access), str(access), f"{access}", repr([access])):
        assert "s3.secret-access-key" in said
        assert SECRET not in said
    assert pickle.loads(pickle.dumps(access)) == access


def test_what_a_server_hands_out_for_a_table_opens_its_files_alone() -> None:
    own = {"s3.session-token": "of the table"}
    access = access_to(CATALOG, {"s3://lake/table": own})
    assert dict(access.of("s3://lake/table/data/a.parquet")) == own
    assert dict(access.of("s3://lake/table")) == own
    assert "s3.session-token" not in dict(access.of("s3://lake/tables/data/a.parquet"))
    assert StoreAccess().of("s3://lake/table") == ()


def test_an_access_is_one_threads_for_as_long_as_it_is_said() -> None:
    before = stores._in_force.get()
    with stores.opened_by(access_to(CATALOG)):
        assert stores._in_force.get() == access_to(CATALOG)
    assert stores._in_force.get() is before


def test_who_reads_local_files_imports_no_catalog() -> None:
    script = (
        "import sys, resources.files.stores; print(sorted({'pyiceberg', 'polars', 'pyspark'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert said == "[]\n"


# --- local files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_local_file_is_written_whole_or_not_at_all(scheme: str, tmp_path: Path) -> None:
    path = f"{scheme}{tmp_path}/folder/a.parquet"
    with pytest.raises(ValueError, match="on the way"):
        write_half(path)
    assert list((tmp_path / "folder").iterdir()) == []
    with stores.output(path) as stream:
        stream.write(parquet())
        assert not (tmp_path / "folder" / "a.parquet").exists(), "it has its name once it is whole"
    assert stores.content(path) == parquet()
    assert stores.size_of(path) == len(parquet())
    assert stores.source(path) == f"{tmp_path}/folder/a.parquet"
    assert stores.footer(path).num_rows == 10


# --- Spark's settings -------------------------------------------------------------------------------------------------


def test_spark_is_told_what_the_catalog_says_of_the_store(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, catalog=CATALOG)
    found = session_settings(settings, Mode.BACKFILL)
    assert found["fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert found["fs.s3a.path.style.access"] == "true"
    assert found["fs.s3a.endpoint.region"] == "eu-west-1"
    assert (found["fs.s3a.access.key"], found["fs.s3a.secret.key"]) == ("tests", SECRET)
    assert found["fs.s3a.aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
    assert found["fs.s3.impl"] == "org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert found["fs.file.impl"].endswith("ViewFileSystemOverloadScheme"), "no local path is left to it"
    assert "fs.file.impl" not in session_settings(settings, Mode.LIVE)
    assert SECRET not in str(settings.shown())


def test_without_what_reaches_s3_no_session_begins(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, catalog=CATALOG, spark=SPARK)
    with pytest.raises(EnvironmentRefused) as refused:
        ModeSpark(settings).session(Mode.BACKFILL)
    said = str(refused.value)
    minor = pyspark.__version__.rpartition(".")[0]
    assert f"org.apache.spark:spark-hadoop-cloud_2.13 of Spark {minor} on Spark's class path" in said
    assert "org.apache.hadoop:hadoop-aws:3." in said
    assert "software.amazon.awssdk" in said
    assert SECRET not in said


def test_what_an_installation_sets_for_spark_goes_before(tmp_path: Path) -> None:
    own = {"spark.hadoop.fs.s3a.endpoint": "https://other", "fs.s3a.committer.name": "directory"}
    settings = load_settings(home=tmp_path, catalog={**CATALOG, "s3.session-token": "token"}, spark=own)
    found = session_settings(settings, Mode.LIVE)
    assert found["fs.s3a.endpoint"] == "https://other"
    assert found["fs.s3a.committer.name"] == "directory"
    assert found["fs.s3a.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")


def test_a_server_without_the_classes_of_s3_is_refused_by_artefact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's words are those of the JVM of these tests, which has no such class: a server passes the same on."""
    session = ModeSpark(load_settings(home=tmp_path / "local", spark=SPARK)).session(Mode.BACKFILL).newSession()
    remote = ModeSpark(load_settings(home=tmp_path, catalog=CATALOG, spark=SPARK))
    monkeypatch.setattr(remote, "_on_server", lambda _: session)
    with pytest.raises(
        EnvironmentRefused, match=r"Spark has no class org\.apache\.spark\.internal\.io\.cloud"
    ) as refused:
        remote.session(Mode.BACKFILL)
    assert "spark-hadoop-cloud_2.13 of the server's Spark on Spark's class path" in str(refused.value)


def test_what_opens_file_systems_is_on_no_command_line(tmp_path: Path) -> None:
    own = {"spark.hadoop.fs.s3a.bucket.other.secret.key": SECRET, "spark.hadoop.fs.azure.account.key.x": SECRET}
    of_mode = {Mode.REPLAY: {"spark.hadoop.fs.s3a.secret.key": f"{SECRET}-of-replay"}}
    settings = load_settings(home=tmp_path, catalog=CATALOG, spark=own, spark_by_mode=of_mode)
    found = session_settings(settings, Mode.REPLAY)
    assert [name for name, value in of_the_jvm(found).items() if SECRET in value] == []
    assert found["fs.s3a.bucket.other.secret.key"] == found["fs.azure.account.key.x"] == SECRET
    assert found["fs.s3a.secret.key"] == f"{SECRET}-of-replay"
    assert of_the_jvm(found)["spark.hadoop.parquet.enable.summary-metadata"] == "false"


def test_no_two_sessions_of_a_jvm_open_s3_as_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, other = cast("SparkSession", object()), cast("SparkSession", object())
    mine, theirs = {"fs.s3a.access.key": "mine"}, {"fs.s3a.access.key": "theirs"}
    monkeypatch.setattr(one_reach, "_reached", [(root, tmp_path, Mode.LIVE, mine)])
    one_reach.require_one_store(root, tmp_path, Mode.BACKFILL, mine)
    one_reach.require_one_store(root, tmp_path / "of-another", Mode.BACKFILL, {})
    for home, s3 in ((tmp_path, theirs), (tmp_path, {}), (tmp_path / "of-another", theirs)):
        with pytest.raises(EnvironmentRefused, match=r"than LIVE has in this process: fs\.s3a\.access\.key") as refused:
            one_reach.require_one_store(root, home, Mode.BACKFILL, s3)
        assert "theirs" not in str(refused.value)
    one_reach.require_one_store(other, tmp_path, Mode.BACKFILL, theirs)


def test_a_local_warehouse_is_not_written_as_s3_is(tmp_path: Path) -> None:
    for place in (f"file://{tmp_path}/warehouse", f"file:{tmp_path}/warehouse"):
        local = {**CATALOG, "warehouse": place}
        found = session_settings(load_settings(home=tmp_path, catalog=local), Mode.BACKFILL)
        assert COMMIT_PROTOCOL not in found
        assert not [name for name in found if "s3" in name]
        assert any(name.startswith("fs.viewfs.mounttable.default.link./") for name in found)
        require_classes(cast("SparkSession", object()), local, found)


def test_where_the_catalogs_server_has_the_warehouse_its_word_counts(tmp_path: Path) -> None:
    asked: list[str] = []

    def opened() -> dict[str, str]:
        asked.append("once")
        return {"warehouse": "lake", "s3.endpoint": "http://127.0.0.1:9000", "s3.secret-access-key": SECRET}

    rest = {"type": "rest", "uri": "http://127.0.0.1:9/", "warehouse": "lake"}
    spark = ModeSpark(load_settings(home=tmp_path, catalog=rest), opened=opened)
    found = session_settings(spark._settings, Mode.BACKFILL)
    assert found["fs.s3a.endpoint"] == "http://127.0.0.1:9000"
    assert "fs.file.impl" in found
    assert is_in_s3(spark._settings.catalog)
    assert session_settings(spark._settings, Mode.LIVE)
    assert asked == ["once"]
    for place in ("s3://lake/warehouse", f"file://{tmp_path}/warehouse"):
        told = ModeSpark(load_settings(home=tmp_path, catalog={**CATALOG, "warehouse": place}), opened=opened)
        assert told._settings.catalog["warehouse"] == place
    assert asked == ["once"], "it is not asked where the installation says it"


def test_without_keys_spark_looks_for_them_itself(tmp_path: Path) -> None:
    bare = {name: value for name, value in CATALOG.items() if "key" not in name}
    found = session_settings(load_settings(home=tmp_path, catalog=bare), Mode.LIVE)
    assert not [name for name in found if "key" in name or "credentials" in name]
    anonymous = session_settings(load_settings(home=tmp_path, catalog={**bare, "s3.anonymous": "true"}), Mode.LIVE)
    assert anonymous["fs.s3a.aws.credentials.provider"].endswith(".AnonymousAWSCredentialsProvider")


def test_an_installation_on_local_files_knows_nothing_of_s3(tmp_path: Path) -> None:
    found = session_settings(load_settings(home=tmp_path), Mode.BACKFILL)
    assert not [name for name, value in found.items() if "s3" in name or "cloud" in value]


# --- S3 ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(moto_store: Store) -> str:
    return f"s3://{moto_store.bucket(f'b{uuid.uuid4().hex}')}/some folder/chunk=2010-01-01"


@pytest.mark.servers
def test_a_file_of_s3_is_read_and_written_as_a_local_one(moto_store: Store, folder: str) -> None:
    path = f"{folder}/a.parquet"
    with stores.opened_by(access_to(moto_store.properties())):
        with pytest.raises(ValueError, match="on the way"):
            write_half(path)
        with pytest.raises(FileNotFoundError):
            stores.content(path)
        with stores.output(path) as stream:
            pq.write_table(arrow.table({"number": range(1_000)}), stream)
        assert stores.size_of(path) == len(stores.content(path))
        assert rows_of(path) == stores.footer(path).num_rows == 1_000
        assert scan_file(path, "", ["number"]).collect()["number"].sum() == 499_500
        assert sum(batch.height for batch in batches_of(path, ["number"])) == 1_000
        stores.remove(path)
        stores.remove(path)
        assert moto_store.objects(folder.removeprefix("s3://")) == []


@pytest.mark.servers
def test_a_file_is_asked_for_once_in_one_piece_of_work_and_anew_in_the_next(moto_store: Store, folder: str) -> None:
    path = f"{folder}/a"
    with stores.opened_by(access_to(moto_store.properties())):
        put(path, b"first")
        with stores.each_read_once():
            assert stores.content(path) == b"first"
            moto_store.filesystem.delete_file(path.removeprefix("s3://"))
            assert stores.content(path) == b"first"
            put(path, b"second")
            assert stores.content(path) == b"second", "what is written there is not what was read"
        put(path, b"third")
        assert stores.content(path) == b"third"
        with stores.each_read_once():
            assert stores.content(path) == b"third"


def put(path: str, raw: bytes) -> None:
    with stores.output(path) as stream:
        stream.write(raw)


@pytest.mark.servers
def test_a_store_is_opened_by_what_is_said_and_not_by_the_environment(
    moto_store: Store, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{folder}/a.parquet"
    with stores.opened_by(access_to(moto_store.properties())), stores.output(path) as stream:
        stream.write(parquet())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    with stores.opened_by(access_to(moto_store.properties())):
        assert stores.content(path) == parquet()


@pytest.mark.servers
def test_the_bytes_that_a_gate_judges_in_s3_are_those_that_it_hashes(moto_store: Store, folder: str) -> None:
    path, raw = f"{folder}/a.parquet", parquet()
    hashes: dict[str, Fingerprint] = {}
    violations: dict[str, Violation] = {}
    with stores.opened_by(access_to(moto_store.properties())):
        with stores.output(path) as stream:
            stream.write(raw)
        frame = _read(path, violations, hashes, "")
    assert frame is not None
    assert frame.height == 10
    assert hashes[path].sha256 == hashlib.sha256(raw).hexdigest()
    assert violations == {}


@pytest.mark.servers
def test_a_damaged_file_of_s3_breaks_a_rule_and_one_that_cannot_be_reached_breaks_none(
    moto_store: Store, folder: str
) -> None:
    path = f"{folder}/a.parquet"
    access = access_to(moto_store.properties())
    with stores.opened_by(access):
        with stores.output(path) as stream:
            stream.write(parquet()[:-20])
        assert rule_of(path) == rule_of(f"{folder}/gone.parquet") == READ_RULE
    with stores.opened_by(access_to({**moto_store.properties(), "s3.endpoint": "http://127.0.0.1:1"})):
        assert rule_of(path) == UNREAD_RULE


def rule_of(path: str) -> str:
    try:
        scan_file(path, "").collect()
    except UNREADABLE as error:
        return unreadable(path, error).rule
    raise AssertionError(f"{path} can be read")


@pytest.mark.servers
def test_a_file_of_s3_is_finished_in_its_place_or_left_as_it_was(moto_store: Store, folder: str) -> None:
    schema = Schema(
        NestedField(1, "name", StringType(), required=False),
        NestedField(2, "marks", ListType(3, LongType(), element_required=False), required=False),
        NestedField(4, "id", UUIDType(), required=False),
    )
    rows = pl.DataFrame({"name": ["ann", "bob"], "marks": [[1], [2, 3]], "id": [b"0" * 16, b"1" * 16]})
    path = f"{folder}/a.parquet"
    with stores.opened_by(access_to(moto_store.properties())):
        for wrong in (False, True):
            own = rows.with_columns(id=pl.lit(b"short")) if wrong else rows
            with stores.output(path) as stream:
                pq.write_table(own.to_arrow(), stream)
            before = stores.content(path)
            found = finish(schema, ("name",), FinishTask("2010-01", path))
            assert found.column == ("id" if wrong else "")
            assert (stores.content(path) == before) == wrong
            if not wrong:
                assert found.size == stores.size_of(path)
                assert found.rows == stores.footer(path).num_rows == 2
                assert stores.footer(path).schema.to_arrow_schema().field("marks").type.value_field.metadata
    assert moto_store.objects(folder.removeprefix("s3://")) == [path.removeprefix("s3://")]


@pytest.mark.servers
def test_wrong_keys_prove_nothing_of_a_file(disk_store: Store) -> None:
    path = f"s3://{disk_store.bucket(f'b{uuid.uuid4().hex}')}/a.parquet"
    with stores.opened_by(access_to(disk_store.properties())), stores.output(path) as stream:
        stream.write(parquet())
    with stores.opened_by(access_to({**disk_store.properties(), "s3.secret-access-key": "wrong"})):
        assert rule_of(path) == UNREAD_RULE


def test_what_a_server_hands_out_no_more_opens_nothing(tmp_path: Path) -> None:
    where = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    tables = Tables("lake", {"type": "sql", **where})
    tables.create_catalog()
    table = tables.ensure("a.table", Schema(NestedField(1, "name", StringType())), UNPARTITIONED_PARTITION_SPEC, {})
    table.io.properties["s3.session-token"] = "of the table"
    with mock.patch.object(tables.catalog, "load_table", return_value=table):
        tables.table("a.table")
    assert dict(tables.access.of(f"{table.location()}/data/a"))["s3.session-token"] == "of the table"
    tables.table("a.table")
    assert "s3.session-token" not in dict(tables.access.of(f"{table.location()}/data/a"))


@pytest.mark.servers
def test_a_catalog_on_s3_says_what_opens_its_tables(moto_store: Store, tmp_path: Path) -> None:
    bucket = moto_store.bucket(f"b{uuid.uuid4().hex}")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"s3://{bucket}/warehouse"}
    tables = Tables("lake", {**properties, **moto_store.properties()})
    tables.create_catalog()
    with stores.opened_by(tables.access), stores.output(f"s3://{bucket}/a") as stream:
        stream.write(b"there")
    assert moto_store.objects(bucket) == [f"{bucket}/a"]
    assert "sqlite" not in str(tables.access.by_place)
