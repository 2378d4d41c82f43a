"""A summary whose paths of partitions are asked for once counts files as PyIceberg's own does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as arrow
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import SnapshotSummaryCollector
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.partition_counts import CountedOnce

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


@pytest.mark.parametrize("limit", [0, 2, 1_000])
def test_files_are_counted_as_pyiceberg_counts_them(table: Table, limit: int) -> None:
    theirs, ours = SnapshotSummaryCollector(limit), CountedOnce(limit)
    for number, entry in enumerate(entries_in(table)):
        for counted in (theirs, ours):
            (counted.add_file, counted.remove_file)[number % 3 == 0](entry.data_file, table.schema(), table.spec())
    assert ours.build() == theirs.build()
    assert ours.build()["changed-partition-count"] == str(ROWS + 1)


def test_partitions_are_told_apart_by_their_values() -> None:
    schema = Schema(
        NestedField(1, "a", StringType(), required=False), NestedField(2, "b", StringType(), required=False)
    )
    spec = PartitionSpec(*(PartitionField(one, 999 + one, IdentityTransform(), "ab"[one - 1]) for one in (1, 2)))
    counted = CountedOnce(0)
    for values in (("1/b=2", "3"), ("1", "2/b=3"), (None, "x"), ("None", "x"), ("null", "x"), ("null", "x")):
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path="f",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=1,
            file_size_in_bytes=1,
        )
        counted.add_file(file, schema, spec)
    assert counted.build()["changed-partition-count"] == "5"


def test_the_commit_of_a_replacement_says_how_many_partitions_it_changes(table: Table) -> None:
    files = [entry.data_file for entry in entries_in(table)]
    commit_replacement(table, AlwaysTrue(), files[:30], files[:20], {})
    table.refresh()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    said = snapshot.summary.additional_properties
    assert (said["added-data-files"], said["deleted-data-files"], said["changed-partition-count"]) == ("20", "30", "30")
    assert said["total-data-files"] == str(ROWS + 1 - 10)
