"""A table's history is followed from main to its oldest snapshot, in time that grows with its length and no faster."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from support import DAYS_SCHEMA, at_once

from resources.lakehouse.lineage import lineage_of, past_of
from resources.lakehouse.summaries import RUN_PROPERTY, snapshot_with


def a_table(parents: dict[int, int | None], refs: dict[str, int]) -> Table:
    """Return a table of which only the history is made up; the numbers of snapshots say their order."""
    snapshots = [
        Snapshot(
            snapshot_id=one,
            parent_snapshot_id=parent,
            sequence_number=one,
            timestamp_ms=one,
            manifest_list="",
            summary=Summary(Operation.APPEND, **{RUN_PROPERTY: f"run-{one}"}),
            schema_id=0,
        )
        for one, parent in parents.items()
    ]
    named = {
        name: SnapshotRef(
            snapshot_id=one, snapshot_ref_type=SnapshotRefType.BRANCH if name == "main" else SnapshotRefType.TAG
        )
        for name, one in refs.items()
    }
    metadata = TableMetadataV2(
        location="file:///nowhere",
        last_updated_ms=0,
        last_column_id=3,
        schemas=[DAYS_SCHEMA],
        current_schema_id=0,
        partition_specs=[PartitionSpec()],
        default_spec_id=0,
        last_partition_id=999,
        sort_orders=[],
        default_sort_order_id=0,
        snapshots=snapshots,
        current_snapshot_id=refs["main"],
        refs=named,
        last_sequence_number=max(parents),
    )
    catalog: Any = None
    return Table(("silver", "days"), metadata, "file:///nowhere/metadata.json", load_file_io({}, ""), catalog)


def test_a_long_history_is_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table({one: one - 1 or None for one in range(1, 2001)}, {"main": 2000})
    searched: list[int] = []
    search = TableMetadataV2.snapshot_by_id

    def counted(self: TableMetadataV2, snapshot_id: int) -> Snapshot | None:
        searched.append(snapshot_id)
        return search(self, snapshot_id)

    monkeypatch.setattr(TableMetadataV2, "snapshot_by_id", counted)
    assert snapshot_with(table, RUN_PROPERTY, "nobody") is None
    found = snapshot_with(table, RUN_PROPERTY, "run-1")
    assert found is not None
    assert found.snapshot_id == 1
    assert searched == [], "each of them is a search through all snapshots"


def test_gaps_are_bridged_by_their_marks_and_by_nothing_else() -> None:
    parents = {1: None, 2: 1, 4: None, 5: 4, 8: None, 9: 8}
    table = a_table(parents, {"main": 9, past_of(5): 5, past_of(2): 2})
    assert [one.snapshot_id for one in lineage_of(table)] == [9, 8, 5, 4, 2, 1]
    unmarked = a_table(parents, {"main": 9, past_of(2): 2, "mine": 5, past_of(7): 5})
    assert [one.snapshot_id for one in lineage_of(unmarked)] == [9, 8, 2, 1]
    moved_back = a_table(parents, {"main": 4, past_of(5): 5, past_of(2): 2})
    assert [one.snapshot_id for one in lineage_of(moved_back)] == [4, 2, 1]
    assert [one.snapshot_id for one in lineage_of(table, past_of(5))] == [5, 4]


def test_a_parent_that_is_named_and_gone_ends_a_part() -> None:
    """Iceberg's Java library leaves the name of an expired parent where PyIceberg takes it away."""
    table = a_table({1: None, 3: 2, 4: 3}, {"main": 4, past_of(1): 1})
    assert [one.snapshot_id for one in lineage_of(table)] == [4, 3, 1]


def test_a_history_that_leads_in_a_circle_has_an_end() -> None:
    table = a_table({1: 3, 2: 1, 3: 2}, {"main": 3, past_of(1): 1})
    with at_once():
        assert [one.snapshot_id for one in lineage_of(table)] == [3, 2, 1]
        assert snapshot_with(table, RUN_PROPERTY, "nobody") is None
