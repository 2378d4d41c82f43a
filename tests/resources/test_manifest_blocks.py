"""Manifests in blocks of many entries say, byte for byte, what PyIceberg's own say in a block each; and are counted alike."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as arrow
import pytest
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.avro.encoder import BinaryEncoder
from pyiceberg.avro.file import AvroFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.avro.writer import IntegerWriter
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile, write_manifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import SnapshotSummaryCollector
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

from resources.lakehouse import manifest_blocks
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.manifest_blocks import CountedOnce, ManifestInBlocks, encoder_of

ROWS = 40
MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with a file a day and tenant; one of its files has no tenant, and no number."""
    schema = Schema(
        NestedField(1, "at", TimestamptzType(), required=True),
        NestedField(2, "tenant", StringType(), required=False),
        NestedField(3, "watts", LongType(), required=False),
    )
    spec = PartitionSpec(
        PartitionField(1, 1000, DayTransform(), "day"), PartitionField(2, 1001, IdentityTransform(), "of")
    )
    folder = (tmp_path / "warehouse").as_uri()
    catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=folder)
    catalog.create_namespace("silver")
    table = catalog.create_table("silver.usage", schema, partition_spec=spec)
    rows = [
        {"at": MIDNIGHT + timedelta(days=one), "tenant": f"größe/{one % 3}", "watts": -(7**one) % 2**62}
        for one in range(ROWS)
    ]
    rows.append({"at": MIDNIGHT, "tenant": None, "watts": None})
    table.append(arrow.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return table


def entries_in(table: Table) -> list[ManifestEntry]:
    (manifest,) = table.current_snapshot().manifests(table.io)  # type: ignore[union-attr]
    return manifest.fetch_manifest_entry(table.io)


def written(table: Table, writer: Any, entries: list[ManifestEntry]) -> ManifestFile:
    with writer:
        for number, entry in enumerate(entries):
            (writer.add, writer.existing, writer.delete)[number % 3](entry)
    found: ManifestFile = writer.to_manifest_file()
    return found


def both(table: Table, folder: Path, codec: str) -> tuple[ManifestFile, ManifestFile]:
    """Write the same entries by PyIceberg and in blocks."""
    schema, spec, own = table.schema(), table.spec(), table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    theirs, ours = (table.io.new_output(f"file://{folder}/{name}.avro") for name in ("theirs", "ours"))
    entries = entries_in(table)
    return (
        written(table, write_manifest(2, spec, schema, theirs, own, codec), entries),  # type: ignore[arg-type]
        written(table, ManifestInBlocks(spec, schema, ours, own, codec), entries),  # type: ignore[arg-type]
    )


def blocks_of(table: Table, manifest: ManifestFile) -> list[tuple[int, bytes]]:
    """Return of each block how many records it says it has, and its content."""
    found = []
    with AvroFile[ManifestEntry](table.io.new_input(manifest.manifest_path)) as file:
        codec = file.header.compression_codec()
        while True:
            try:
                number = file.decoder.read_int()
            except EOFError:
                return found
            raw = file.decoder.read_bytes()
            assert file.decoder.read(16) == file.header.sync
            found.append((number, raw if codec is None else codec.decompress(raw)))


@pytest.mark.parametrize("codec", ["gzip", "null"])
def test_entries_are_the_same_bytes_in_fewer_blocks(table: Table, tmp_path: Path, codec: str) -> None:
    theirs, ours = both(table, tmp_path, codec)
    one_each, together = blocks_of(table, theirs), blocks_of(table, ours)
    assert [number for number, _ in one_each] == [1] * (ROWS + 1)
    assert [number for number, _ in together] == [ROWS + 1]
    assert b"".join(content for _, content in one_each) == together[0][1]
    assert ours.fetch_manifest_entry(table.io, discard_deleted=False) == theirs.fetch_manifest_entry(
        table.io, discard_deleted=False
    )
    for place in range(len(theirs)):
        if place not in {0, 1}:  # path and length
            assert ours[place] == theirs[place]
    assert ours.manifest_length < theirs.manifest_length
    assert ours.manifest_length == (tmp_path / "ours.avro").stat().st_size


def test_a_block_ends_where_it_is_long_and_all_are_read_again(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_blocks, "_BLOCK", 1_000)
    theirs, ours = both(table, tmp_path, "gzip")
    numbers = [number for number, _ in blocks_of(table, ours)]
    assert sum(numbers) == ROWS + 1
    assert 1 < len(numbers) < ROWS
    assert ours.fetch_manifest_entry(table.io) == theirs.fetch_manifest_entry(table.io)


def test_a_manifest_whose_writer_was_stopped_has_none_of_what_was_gathered(table: Table, tmp_path: Path) -> None:
    output = table.io.new_output(f"file://{tmp_path}/half.avro")
    writer = ManifestInBlocks(table.spec(), table.schema(), output, 1, "gzip")

    def stop() -> None:
        with writer:
            writer.add(entries_in(table)[0])
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        stop()
    with AvroFile[ManifestEntry](output.to_input_file()) as file:
        assert list(file) == []


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)])
def test_numbers_are_written_as_pyiceberg_writes_them(tmp_path: Path, number: int) -> None:
    file = (tmp_path / "number").open("wb+")
    with file:
        BinaryEncoder(file).write_int(number)  # type: ignore[arg-type]
    raw = (tmp_path / "number").read_bytes()
    assert encoder_of(IntegerWriter())(number) == raw
    assert encoder_of(IntegerWriter())(number) == raw  # as it was kept
    assert new_decoder(raw).read_int() == number


def test_a_record_of_every_kind_is_written_as_pyiceberg_writes_it(table: Table) -> None:
    schema = Schema(
        NestedField(1, "flag", BooleanType(), required=True),
        NestedField(2, "ratio", DoubleType(), required=False),
        NestedField(3, "amount", DecimalType(9, 2), required=False),
        NestedField(4, "code", FixedType(3), required=True),
        NestedField(5, "id", UUIDType(), required=True),
        NestedField(6, "names", ListType(7, StringType(), element_required=True), required=False),
        NestedField(8, "by", MapType(9, StringType(), 10, DoubleType(), value_required=True), required=True),
        NestedField(11, "none", LongType(), required=False),
    )
    writer = construct_writer(schema)
    for names, by in ((["a", "ü"], {"x": 1.5, "y": -2.0}), ([], {})):
        record = Record(True, -0.0, Decimal("-1.25"), b"abc", UUID(int=7), names, by, None)
        theirs = BytesIO()
        writer.write(BinaryEncoder(theirs), record)  # type: ignore[arg-type]
        assert encoder_of(writer)(record) == theirs.getvalue()


@pytest.mark.parametrize("limit", [0, 2, 1_000])
def test_files_are_counted_as_pyiceberg_counts_them(table: Table, limit: int) -> None:
    theirs, ours = SnapshotSummaryCollector(limit), CountedOnce(limit)
    for number, entry in enumerate(entries_in(table)):
        for counted in (theirs, ours):
            (counted.add_file, counted.remove_file)[number % 3 == 0](entry.data_file, table.schema(), table.spec())
    assert ours.build() == theirs.build()
    assert ours.build()["changed-partition-count"] == str(ROWS + 1)


def test_the_commit_of_a_replacement_writes_its_manifests_in_blocks(table: Table) -> None:
    """Which are those of the files that come, of those that go, and of those that stay."""
    files = [entry.data_file for entry in entries_in(table)]
    commit_replacement(table, AlwaysTrue(), files[:30], files[:20], {})
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = snapshot.manifests(table.io)
    counted = sorted((one.added_files_count, one.existing_files_count, one.deleted_files_count) for one in manifests)
    assert counted == [(0, 0, 30), (0, 11, 0), (20, 0, 0)]
    assert [len(blocks_of(table, one)) for one in manifests] == [1, 1, 1]
    statuses = {entry.status for one in manifests for entry in one.fetch_manifest_entry(table.io, False)}
    assert statuses == set(ManifestEntryStatus)
