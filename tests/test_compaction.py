"""Chunks in many small files, or of which rows are deleted, rewritten into fewer files by a run that leaves every row as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
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
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor.examination import examine
from backfill_assets.operations.doctor.repairing import mend
from backfill_assets.operations.splitting import split_files
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.publication.undoing import reinstate, rollback
from backfill_assets.staging import executor
from backfill_assets.worker.chunk_rewritten import ADDED_RULE, CHANGED_RULE, LOST_RULE
from benchmarks import orders
from benchmarks.orders import ORDERS, opened, rows_of
from manifests.errors import InputRefused, ManifestRefused, PlanRefused, Problem, PublicationRefused
from manifests.lifecycle import RunState
from manifests.model import Mode, RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import local_path
from resources.lakehouse.pyiceberg_private import Append, WriterOfDeletes
from resources.ledger.transactions import system_clock

FEBRUARY = date(2024, 2, 1), date(2024, 2, 29)
_PATH, _POSITION = 2147483546, 2147483545
"""Field ids of a file of deleted positions."""


def compaction(
    run_id: str = "compact", start: date = orders.FIRST, end: date = orders.LAST, **changes: Any
) -> RunManifest:
    target = {"table": ORDERS, "publishRange": {"start": start, "end": end}} | changes.pop("target", {})
    text = {"runId": run_id, "kind": "COMPACTION", "requestedBy": "ana", "reason": "a reason that is long enough"}
    return manifest_from(text | {"target": target, "development": True} | changes)


def streamed(
    tmp_path: Path,
    *parts: tuple[str, str],
    lots: int = 12,
    lines: int = 2_000,
    target: TargetTable = orders.TARGET,
    more: Mapping[str, Sequence[Any]] = MappingProxyType({}),
    **properties: str,
) -> World:
    """Return an installation whose target a stream has written, lot after lot: as many files a month as there are lots.

    `more` are values of further columns, taken in turns.
    """
    platform = opened(tmp_path / "home", target, spark=SPARK)
    lakehouse, schema = platform.lakehouse, iceberg_schema(target.model)
    lakehouse.catalog.create_namespace_if_not_exists("silver")
    table = lakehouse.catalog.create_table(
        ORDERS,
        schema,
        partition_spec=spec_of(*(parts or (("ordered_on", "month"),))),
        properties=TABLE_PROPERTIES | properties,
    )
    rows = orders.lines(lines).to_pylist()
    for place, row in enumerate(rows):
        row |= {name: values[place % len(values)] for name, values in more.items()}
    stream(table, rows, lots)
    orders.fill(platform, lines)
    return World(platform, tmp_path / "home")


def stream(table: Table, lines: Sequence[Mapping[str, Any]], lots: int) -> None:
    rows = [
        {**row, "ordered_on": row["ordered_at"].date(), "run_id": "theirs", "processing_mode": "x"} for row in lines
    ]
    for lot in range(lots):
        table.append(
            arrow.Table.from_pylist(rows[lot::lots], schema_to_pyarrow(table.schema(), include_field_ids=False))
        )


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
    pq.write_table(
        arrow.table({"file_path": [file.file_path] * len(places), "pos": list(places)}, schema=schema), place
    )
    bounds = _bounds(file)
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


def _bounds(file: DataFile) -> dict[int, bytes]:
    return {_PATH: file.file_path.encode()}


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


def test_a_compaction_keeps_its_limits_by_what_it_reads_of_its_own_table(tmp_path: Path) -> None:
    """Its source is its target, whose days are no instants of the source that the target declares."""
    world = streamed(tmp_path)
    limits = {"budget": {"rows": 2_000}, "maxRowsPerMinute": 1_000, "maxChunksPerJob": 1}
    done = world.published(compaction(limits=limits))
    assert (done.files_added, done.files_removed) == (4, 48)
    read = [json.loads(one.measures)["range_rows"] for one in world.platform.ledger.attempts("compact")]
    assert len(read) == 4
    assert sum(read) == 2_000
    assert verify(world.platform, data=True).everything == []
    again = streamed(tmp_path / "again")
    with pytest.raises(PlanRefused, match="would read 2,000 rows"):
        plan_run(again.platform, compaction(limits={"budget": {"rows": 1_999}}))


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


def test_rows_keep_every_value_whatever_columns_are_named(tmp_path: Path) -> None:
    more = {"file": ("a.csv", None, "b.csv"), "score": (0.0, -0.0, float("nan"), None, 1.5, float("inf"))}
    platform = (
        world := streamed(tmp_path, lots=2, target=replace(orders.TARGET, model=orders.Delivered), more=more)
    ).platform
    before = [str(row) for row in rows_of(platform)]
    assert "-0.0" in "".join(before)
    world.published(compaction())
    assert [str(row) for row in rows_of(platform)] == before
    assert verify(platform, data=True).everything == []


# --- how large files become ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "target", "properties", "said_by"),
    [
        ((), {"fileSizeBytes": 20_000}, {}, "target.fileSizeBytes"),
        ((), {}, {"write.target-file-size-bytes": "20000"}, "write.target-file-size-bytes"),
        ((("region", "identity"), ("ordered_on", "month")), {"fileSizeBytes": 20_000}, {}, "target.fileSizeBytes"),
    ],
    ids=["as the manifest says", "as the table says", "in several partitions a chunk"],
)
def test_files_become_about_as_large_as_is_declared(
    tmp_path: Path, parts: tuple[Any, ...], target: dict[str, Any], properties: dict[str, str], said_by: str
) -> None:
    world = streamed(tmp_path, *parts, lots=8, lines=48_000, **properties)
    platform = world.platform
    before = rows_of(platform)
    plan = plan_run(platform, compaction(target=target)).plan
    assert plan.compaction is not None
    assert (plan.compaction.file_size_bytes, plan.compaction.said_by) == (20_000, said_by)
    world.published(compaction(target=target))
    assert rows_of(platform) == before
    sizes = [task.file.file_size_in_bytes for task in files(platform)]
    print(f"{len(sizes)} files of {min(sizes):,} to {max(sizes):,} bytes, {20_000:,} wanted")
    assert len(sizes) == sum(one.into for one in plan.compaction.chunks)
    assert min(sizes) > 0.5 * 20_000
    assert max(sizes) < 2 * 20_000
    assert verify(platform, data=True).everything == []


# --- what a gate catches ------------------------------------------------------------------------------------------------

SPOILT: dict[str, tuple[Callable[[arrow.Table], arrow.Table], str]] = {
    "a value": (lambda rows: with_first(rows, "price", Decimal("999.99")), CHANGED_RULE),
    "lineage": (lambda rows: with_first(rows, "run_id", "somebody-else"), CHANGED_RULE),
    "a row less": (lambda rows: rows.slice(1), LOST_RULE),
    "a row more": (
        lambda rows: arrow.concat_tables([rows, with_first(rows.slice(rows.num_rows - 1), "order_id", 9_999)]),
        ADDED_RULE,
    ),
}


def with_first(rows: arrow.Table, column: str, value: Any) -> arrow.Table:
    place = rows.schema.get_field_index(column)
    values = rows[column].to_pylist()
    field = rows.schema.field(column)
    return rows.set_column(place, field, arrow.array([value, *values[1:]], field.type))


@pytest.mark.parametrize("how", SPOILT)
def test_a_row_that_is_another_after_staging_is_named_and_nothing_is_published(tmp_path: Path, how: str) -> None:
    world = streamed(tmp_path, lots=3)
    spoil, rule = SPOILT[how]
    computed = executor.compute_batch

    def spoilt(*arguments: Any) -> Any:
        found = computed(*arguments)
        (file,) = found["2024-02"]
        rows = spoil(pq.read_table(local_path(file.path)))
        pq.write_table(rows, local_path(file.path))
        size = Path(local_path(file.path)).stat().st_size
        return {**found, "2024-02": [replace(file, rows=rows.num_rows, bytes=size)]}

    with mock.patch.object(executor, "compute_batch", spoilt):
        record = world.ran(compaction())
    assert record.state is RunState.FAILED
    errors = {chunk.chunk: chunk.error for chunk in world.platform.ledger.chunks("compact") if chunk.error}
    assert errors.keys() == {"2024-02"}, errors
    assert rule in errors["2024-02"]
    assert len(files(world.platform)) == 12


# --- others, meanwhile --------------------------------------------------------------------------------------------------


def appended(platform: Platform, at: Callable[[dict[str, Any]], bool] = lambda _: True) -> None:
    lines = [{**row, "order_id": row["order_id"] + 10_000} for row in orders.lines(10).to_pylist() if at(row)]
    stream(platform.lakehouse.table(ORDERS), lines, 1)


@pytest.mark.parametrize(
    "change",
    [appended, lambda platform: deleted(platform, lambda row: row["order_id"] == 500)],
    ids=["rows are appended", "a row is deleted"],
)
def test_what_others_write_into_the_scope_meanwhile_refuses_the_publication(
    tmp_path: Path, change: Callable[[Platform], Any]
) -> None:
    world = streamed(tmp_path, lots=3)
    platform = world.platform
    world.validated(compaction())
    change(platform)
    before = rows_of(platform)
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, "compact")
    assert platform.ledger.run("compact").state is RunState.REJECTED
    assert rows_of(platform) == before
    world.published(compaction("once-more"))
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []


def test_a_run_over_the_same_days_and_a_compaction_refuse_each_other(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=3)
    platform = world.platform
    world.validated(compaction("first"))
    world.validated(orders.manifest("restated", *FEBRUARY))
    publish(platform, "restated")
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, "first")
    world.validated(orders.manifest("later", date(2024, 1, 1), date(2024, 1, 31)))
    world.published(compaction("second", end=date(2024, 1, 31)))
    with pytest.raises(PublicationRefused, match="somebody else has written into the scope"):
        publish(platform, "later")
    assert verify(platform, data=True).everything == []


# --- whose a chunk is ---------------------------------------------------------------------------------------------------


def test_chunks_stay_those_of_the_run_that_published_them(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=1)
    platform, days = world.platform, {"start": orders.FIRST, "end": orders.LAST}
    session = platform.spark.session(Mode.BACKFILL)
    session.conf.set("spark.sql.files.maxRecordsPerFile", "100")
    try:
        world.published(orders.manifest("history", orders.FIRST, orders.LAST))
    finally:
        session.conf.set("spark.sql.files.maxRecordsPerFile", "4000000")
    before, held = rows_of(platform), platform.ledger.accepted(ORDERS)
    assert len(files(platform)) > 16
    world.published(compaction())
    assert len(files(platform)) == 4
    assert rows_of(platform) == before
    assert platform.ledger.accepted(ORDERS) == held
    assert platform.ledger.run("history").state is RunState.PUBLISHED
    checked = verify(platform, data=True)
    assert checked.everything == []
    assert verify(platform).everything == []
    (of_history,) = [one for one in checked.runs if one.run_id == "history"]
    assert any("compaction 'compact'" in note for note in verify(platform, ["history"]).runs[0].notes)
    assert of_history.chunks_read == 4
    assert wrong(platform) == set()
    said = explain(platform, ORDERS, ["order_id=500"])
    assert (said.accepted_run, said.producer and said.producer.run_id) == ("history", "history")
    assert reproduce(platform, "history").outcome is Outcome.EQUAL
    assert reproduce(platform, "compact").outcome is Outcome.EQUAL
    with pytest.raises(PublicationRefused, match="were rewritten by compaction") as refused:
        rollback(platform, "history")
    assert refused.value.problems[0].fix.startswith("roll back compact first")
    world.published(orders.manifest("restated", *FEBRUARY, version="1.0.0"))
    assert wrong(platform) == set()
    assert verify(platform, data=True).everything == []
    with pytest.raises(PublicationRefused):
        rollback(platform, "compact")
    rollback(platform, "restated")
    assert rows_of(platform) == before
    assert wrong(platform) == set()
    assert verify(platform, data=True).everything == []
    rollback(platform, "compact")
    rollback(platform, "history")
    assert verify(platform, data=True).everything == []
    assert days["start"] == orders.FIRST


def refused_to_reinstate(platform: Platform, run_id: str) -> Problem:
    with pytest.raises(PublicationRefused) as refused:
        reinstate(platform, run_id)
    (problem,) = refused.value.problems
    assert platform.ledger.run(run_id).state is RunState.ROLLED_BACK
    assert problem.what in platform.ledger.publications(run_id)[-1].note
    return problem


GENERAL = "somebody else has written into the scope since the plan was made"


def test_a_compaction_is_not_reinstated_before_the_runs_whose_files_it_has_rewritten(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=3)
    platform, january = world.platform, (date(2024, 1, 1), date(2024, 1, 31))
    session = platform.spark.session(Mode.BACKFILL)
    session.conf.set("spark.sql.files.maxRecordsPerFile", "100")
    try:
        world.published(orders.manifest("february", *FEBRUARY))
        world.published(orders.manifest("january", *january))
    finally:
        session.conf.set("spark.sql.files.maxRecordsPerFile", "4000000")
    world.published(compaction())
    for run_id in ("compact", "february", "january"):
        rollback(platform, run_id)
    problem = refused_to_reinstate(platform, "compact")
    assert problem.fix.startswith("reinstate january, february first, in this order, and then this one; ")
    assert "january, february were rolled back after it" in problem.what
    assert ".parquet" not in problem.what
    reinstate(platform, "january")
    assert refused_to_reinstate(platform, "compact").fix.startswith("reinstate february first, and then this one; ")
    appended(platform, lambda row: row["ordered_at"].month == 2)
    assert refused_to_reinstate(platform, "compact").rule == GENERAL  # february alone does not bring back what was left


def test_runs_and_a_compaction_that_are_rolled_back_are_reinstated_in_the_opposite_order(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=3)
    platform = world.platform
    world.published(compaction())
    compact = rows_of(platform)
    world.published(orders.manifest("february", *FEBRUARY))
    before = rows_of(platform)
    for run_id in ("february", "compact"):
        rollback(platform, run_id)
    problem = refused_to_reinstate(platform, "february")
    assert problem.fix.startswith("reinstate compact first, and then this one; ")
    reinstate(platform, "compact")
    assert rows_of(platform) == compact
    reinstate(platform, "february")
    assert rows_of(platform) == before
    assert verify(platform, data=True).everything == []
    for run_id in ("february", "compact"):
        rollback(platform, run_id)
    world.published(orders.manifest("another", *FEBRUARY, version="1.0.0"))
    assert refused_to_reinstate(platform, "compact").rule == GENERAL  # which stands, and is nobody's to reinstate
    rollback(platform, "another")
    reinstate(platform, "compact")
    assert rows_of(platform) == compact


def test_a_collection_of_garbage_leaves_what_readers_get_of_a_compaction(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=3)
    platform, later = world.platform, system_clock() + timedelta(days=400)
    world.published(compaction())
    before = rows_of(platform)
    found = garbage.find(platform, at=later)
    garbage.collect(platform, found, by="ana", at=later)
    assert rows_of(platform) == before
    assert verify(platform, data=True, at=later).everything == []
    assert wrong(platform) == set()


# --- crashes ------------------------------------------------------------------------------------------------------------

EVERYWHERE = (
    "staging.written",
    "staging.recorded",
    "gating.judged",
    "gating.recorded",
    "gating.run_judged",
    "publishing.sealed",
    "publishing.tagged",
    "publishing.leased",
    "publishing.committed",
    "publishing.recorded",
)


def test_a_crash_at_any_point_ends_as_if_nothing_had_happened(tmp_path: Path) -> None:
    world = streamed(tmp_path, lots=3)
    platform = world.platform
    deleted(platform, lambda row: row["order_id"] % 7 == 3)
    before, snapshots = rows_of(platform), len(platform.lakehouse.table(ORDERS).snapshots())
    record = world.approved(compaction())
    for point in EVERYWHERE:
        with dying_at(platform, point):
            if platform.ledger.run("compact").state is not RunState.VALIDATED:
                world.stage(record)
            publish(platform, "compact")
        assert rows_of(platform) == before, point
    publish(platform, "compact")
    assert len(platform.lakehouse.table(ORDERS).snapshots()) == snapshots + 1
    for point in ("undoing.begun", "undoing.committed"):
        with dying_at(platform, point):
            rollback(platform, "compact")
        assert rows_of(platform) == before, point
    mend(platform)
    rollback(platform, "compact")
    assert platform.ledger.run("compact").state is RunState.ROLLED_BACK
    assert rows_of(platform) == before
    assert len(platform.lakehouse.table(ORDERS).snapshots()) == snapshots + 2
    assert verify(platform, data=True).everything == []


# --- what is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"target": {"publishMode": "VERSIONED", "version": "v1"}}, "publishMode is REPLACE_PARTITIONS, not VERSIONED"),
        ({"source": {"table": "bronze.order_lines"}}, r"reads its own target, silver\.orders"),
        ({"transform": {"name": "orders", "version": "1.0.0"}}, "has no transform"),
        ({"validation": {"gates": ["all_chunks_staged"]}}, r"does not go with validation\.gates"),
        ({"warmUp": {"days": 3}}, "does not go with warmUp"),
        ({"safety": {"sinks": ["run_audit"]}}, r"does not go with safety\.sinks"),
        ({"conflict": {"onConflict": "REPLAN"}}, "onConflict is REFUSE or WAIT"),
        ({"kind": "RESTATEMENT", "target": {"fileSizeBytes": 5_000}}, "source"),
    ],
    ids=lambda one: "" if isinstance(one, str) else next(iter(one)),
)
def test_a_manifest_says_nothing_that_a_compaction_has_no_use_for(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ManifestRefused, match=said):
        compaction(**changes)


def test_what_cannot_be_compacted_is_refused_by_name(tmp_path: Path) -> None:
    platform = streamed(tmp_path, ("region", "identity"), lots=2).platform
    with pytest.raises(PlanRefused, match="may hold days of 2024-02-01 to 2024-02-29 and others") as refused:
        plan_run(platform, compaction("february", *FEBRUARY))
    assert "target.filesAcrossBorder to SPLIT" in refused.value.problems[0].fix
    with pytest.raises(PlanRefused, match="or of several of its chunks"):
        plan_run(platform, compaction("all"))
    done = split_files(platform, compaction("all", target={"filesAcrossBorder": "SPLIT"}))
    assert done.pieces > 0
    table = platform.lakehouse.table(ORDERS)
    with table.transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": "large"})
    with pytest.raises(PlanRefused, match=r"write\.target-file-size-bytes of silver\.orders is 'large'"):
        plan_run(platform, compaction("all"))
    deleted(platform, lambda row: row["order_id"] == 500, content=DataFileContent.EQUALITY_DELETES)
    with pytest.raises(InputRefused, match=r"file\(s\) of equality deletes"):
        plan_run(platform, compaction("all"))


def test_a_file_of_deletes_that_reaches_beyond_the_range_is_refused_by_name(tmp_path: Path) -> None:
    platform = streamed(tmp_path, lots=2).platform
    table = platform.lakehouse.table(ORDERS)
    with mock.patch(f"{__name__}._bounds", return_value={}):  # of any file of its partition
        deleted(platform, lambda row: row["order_id"] == 500)
    assert table.name()
    (path,) = {one.file_path for task in files(platform) for one in task.delete_files}
    touched = [task.file.file_path for task in files(platform) if task.delete_files]
    assert len(touched) == 2
    world = World(platform, tmp_path / "home")
    before = rows_of(platform)
    world.published(compaction())
    assert rows_of(platform) == before
    assert path not in {one.file_path for task in files(platform) for one in task.delete_files}
