"""Chunks in many small files, or of which rows are deleted, rewritten into fewer files by a run that leaves every row as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from test_existing_tables import spec_of
from test_taking_back import dying_at
from worlds import SPARK, World

from backfill_assets.audit.explain import explain
from backfill_assets.audit.reproduce import Outcome, reproduce
from backfill_assets.audit.verification import verify
from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.staging import executor
from benchmarks import orders
from benchmarks.orders import ORDERS, opened, rows_of
from manifests.errors import InputRefused, ManifestRefused, PlanRefused, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import local_path
from resources.lakehouse.pyiceberg_private import Append, WriterOfDeletes

FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)
_PATH, _POSITION = 2147483546, 2147483545
"""Field ids of a file of deleted positions."""


def compaction(run_id: str = "compact", start: date = orders.FIRST, end: date = orders.LAST, **changes: Any) -> RunManifest:
    target = {"table": ORDERS, "publishRange": {"start": start, "end": end}} | changes.pop("target", {})
    text = {"runId": run_id, "kind": "COMPACTION", "requestedBy": "ana", "reason": "a reason that is long enough"}
    return manifest_from(text | {"target": target, "development": True} | changes)


def streamed(tmp_path: Path, *parts: tuple[str, str], lots: int = 12, **properties: str) -> World:
    """Return an installation whose target a stream has written, lot after lot: as many files a month as there are lots."""
    platform = opened(tmp_path / "home", spark=SPARK)
    lakehouse, schema = platform.lakehouse, iceberg_schema(orders.Order)
    lakehouse.catalog.create_namespace_if_not_exists("silver")
    table = lakehouse.catalog.create_table(
        ORDERS,
        schema,
        partition_spec=spec_of(*(parts or (("ordered_on", "month"),))),
        properties=TABLE_PROPERTIES | properties,
    )
    stream(table, orders.lines().to_pylist(), lots)
    orders.fill(platform)
    return World(platform, tmp_path / "home")


def stream(table: Table, lines: Sequence[Mapping[str, Any]], lots: int) -> None:
    rows = [{**row, "ordered_on": row["ordered_at"].date(), "run_id": "theirs", "processing_mode": "x"} for row in lines]
    for lot in range(lots):
        table.append(arrow.Table.from_pylist(rows[lot::lots], schema_to_pyarrow(table.schema(), include_field_ids=False)))


class _Deleting(Append):
    """An append of files that delete rows, as engines make it that delete by position."""

    def new_manifest_writer(self, spec: Any) -> Any:
        return WriterOfDeletes(spec, self.schema(), self.new_manifest_output(), self._snapshot_id, self._compression)

    def _commit(self) -> Any:
        self.table = self._transaction._table
        return super()._commit()


def deleted(platform: Platform, wanted: Callable[[dict[str, Any]], bool], *, content: Any = None) -> int:
    """Delete rows of the table by position, a file of deletes for each data file; return how many rows."""
    table, gone = platform.lakehouse.table(ORDERS), 0
    files = []
    for task in table.scan().plan_files():
        rows = pq.read_table(local_path(task.file.file_path)).to_pylist()
        places = [number for number, row in enumerate(rows) if wanted(row)]
        if places:
            files.append(_deletes(table, task.file, places, content or DataFileContent.POSITION_DELETES))
            gone += len(places)
    with table.transaction() as transaction, _Deleting(Operation.DELETE, transaction, table.io) as update:
        for file in files:
            update.append_data_file(file)
    return gone


def _deletes(table: Table, file: DataFile, places: Sequence[int], content: DataFileContent) -> DataFile:
    place = Path(local_path(table.location())) / "data" / f"{uuid4()}-deletes.parquet"
    columns = {"file_path": (arrow.string(), _PATH), "pos": (arrow.int64(), _POSITION)}
    schema = arrow.schema(
        arrow.field(name, kind, nullable=False, metadata={"PARQUET:field_id": str(number)})
        for name, (kind, number) in columns.items()
    )
    pq.write_table(arrow.table({"file_path": [file.file_path] * len(places), "pos": list(places)}, schema=schema), place)
    bounds = {_PATH: file.file_path.encode()}
    nothing: dict[int, int] = {}
    return DataFile.from_args(
        content=content,
        file_path=f"file://{place}",
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        record_count=len(places),
        file_size_in_bytes=place.stat().st_size,
        column_sizes=nothing,
        value_counts=nothing,
        null_value_counts=nothing,
        nan_value_counts=nothing,
        lower_bounds=bounds,
        upper_bounds=bounds,
        spec_id=file.spec_id,
        equality_ids=[1] if content == DataFileContent.EQUALITY_DELETES else None,
    )


def files(platform: Platform) -> list[Any]:
    return list(platform.lakehouse.table(ORDERS).scan().plan_files())


def told(platform: Platform) -> dict[str, str]:
    summary = platform.lakehouse.table(ORDERS).current_snapshot().summary
    return {**summary.additional_properties, "operation": summary.operation.value}


def wrong(platform: Platform) -> set[str]:
    return {one.kind for one in examine(platform)} - {"untold"}


def test_what_a_stream_has_written_is_compacted_rolled_back_and_brought_back(tmp_path: Path) -> None:
    world = streamed(tmp_path)
    platform = world.platform
    before, old = rows_of(platform), {task.file.file_path for task in files(platform)}
    assert len(old) == 48
    done = world.published(compaction())
    assert rows_of(platform) == before
    assert len(files(platform)) == 4
    assert (done.files_added, done.files_removed) == (4, 48)
    assert told(platform)["operation"] == "replace"
    assert told(platform)["total-records"] == "2000"
    assert platform.ledger.accepted(ORDERS) == {}
    assert verify(platform, data=True).everything == []
    assert wrong(platform) == set()
    found = reproduce(platform, "compact")
    assert found.outcome is Outcome.EQUAL, found.summary
    with pytest.raises(PlanRefused, match="has more files than it needs"):
        plan_run(platform, compaction("again"))
    rollback(platform, "compact")
    assert {task.file.file_path for task in files(platform)} == old
    assert rows_of(platform) == before
    assert told(platform)["operation"] == "replace"
    reinstate(platform, "compact")
    assert len(files(platform)) == 4
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []
    assert wrong(platform) == set()


def test_deletes_are_applied_and_come_back_with_the_files_whose_rows_they_delete(tmp_path: Path) -> None:
    world = streamed(tmp_path)
    platform = world.platform
    assert deleted(platform, lambda row: row["order_id"] % 7 == 3) == 286
    before = rows_of(platform)
    assert len(before) == 2_000 - 286
    plan = plan_run(platform, compaction()).plan
    assert plan.compaction is not None
    assert sum(one.deletes for one in plan.compaction.chunks) == 48
    assert sum(one.rows for one in plan.compaction.chunks) == len(before)
    done = world.published(compaction())
    assert rows_of(platform) == before
    assert done.files_removed == 96
    assert [task.delete_files for task in files(platform)] == [set()] * 4
    assert told(platform)["total-delete-files"] == "0"
    assert told(platform)["total-records"] == str(len(before))
    assert verify(platform, data=True).everything == []
    assert wrong(platform) == set()
    assert reproduce(platform, "compact").outcome is Outcome.EQUAL
    rollback(platform, "compact")
    assert rows_of(platform) == before, "what was deleted stays deleted"
    assert sum(len(task.delete_files) for task in files(platform)) == 48
    assert verify(platform, data=True).everything == []
    reinstate(platform, "compact")
    assert rows_of(platform) == before
    assert not any(task.delete_files for task in files(platform))
