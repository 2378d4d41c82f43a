"""A small table that every publish mode can change, and the real machinery around it, without Spark.

Put here what benchmarks and tests of crashes share: the declaration, an installation of it, and the two places where
Spark is left out. Chunks are computed and written by PyArrow and the work of Spark's workers is done in this process;
planning, ledger, executor, gates, merge, corrections, leases, publication and evidence are the project's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import NestedField, StringType, TimestamptzType

from backfill_assets.declarations import finding
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.products import Products
from backfill_assets.declarations.schedules import LivePolicy
from backfill_assets.declarations.schema import TABLE_PROPERTIES, Corrections, Published, dtypes, iceberg_schema
from backfill_assets.declarations.sources import sources_of
from backfill_assets.declarations.target import CorrectionsTable, Finding, Outline, TargetTable, TransformVersion
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import _spec, make_ledger
from backfill_assets.planning.resolve import plan_run
from backfill_assets.run_context import RunContext
from backfill_assets.staging import executor
from backfill_assets.staging.compute import entities_folder, staged_files
from backfill_assets.staging.folders import CHUNK_FOLDER
from backfill_assets.staging.rows import lineage
from manifests.chunks import Chunking
from manifests.lifecycle import COMPUTABLE, RunState
from manifests.plan import PlannedChunk
from manifests.reading import manifest_from
from manifests.staged_file import StagedFile
from resources.code.identity import code_identity
from resources.lakehouse.facade import LOAD_PROPERTY, Lakehouse, local_path
from resources.lakehouse.loads import ACTOR_PROPERTY, REASON_PROPERTY
from resources.ledger.facade import RunRecord
from resources.settings import load_settings
from resources.spark.chunk_work import ThisProcess

READINGS = "silver.readings"
CORRECTIONS = "silver.readings_corrections"
SOURCE = "bronze.reading_events"
METERS = tuple(f"m{number}" for number in range(6))
HISTORY = ("2020-01-01", "2020-04-30")
SCOPE = ("2020-02-01", "2020-03-31")
EMPTY = ("2020-05-01", "2020-06-30")
EVERY_DAYS = 6
"""A meter is read every so many days: rows are few, and each file has several of each meter."""


class Reading(Published):
    """What one meter said on one day."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")
    value: pl.Int64 = pa.Field(description="What it said.")


class Correction(Corrections):
    """A reading that was corrected."""

    meter: str = pa.Field(description="The meter.")
    day: date = pa.Field(description="The day.")


def _no_transform(*_: Any) -> Any:
    raise NotImplementedError("this table is computed by `compute`")


TARGET = TargetTable(
    name=READINGS,
    description="A row a meter and day.",
    model=Reading,
    key=("meter", "day"),
    day_column="day",
    chunking=Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source=SOURCE,
    source_time_column="at",
    references=(),
    warm_up_days=lambda _: 0,
    transform="readings",
    versions={"1": TransformVersion(_no_transform), "2": TransformVersion(_no_transform)},
    owners=("team:benchmarks",),
    entity="meter",
    corrections=CorrectionsTable(CORRECTIONS, Correction),
)
PRODUCT = Product("readings", (), (TARGET,))


def first_readings(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the first row of each meter, for `OUTLINED`."""
    return rows.sort("day").unique("meter", keep="first", maintain_order=True)


OUTLINED = replace(TARGET, outline=Outline(("meter", "day"), first_readings))
"""The same table, of whose chunks a gate keeps an outline."""
GATES = ("all_chunks_staged", "rows_within_expected")
WITH_LIVE = replace(TARGET, live=LivePolicy(transform_version="2", rewind_days=0, development=True, gates=GATES))
"""The same table, kept by LIVE; what is known of a month is its source's events: see `compute_events`."""


def rows_of(version: str, start: date, end: date) -> list[dict[str, Any]]:
    """Return what a version of the transform computes of some days: the second corrects, adds and leaves out."""
    rows = []
    for number, meter in enumerate(METERS):
        for offset in range((end - start).days + 1):
            day = start + timedelta(days=offset)
            if (day.toordinal() + number) % EVERY_DAYS:
                continue
            value = 1000 * number + day.toordinal()
            if version == "2":
                if value % 7 == 0:
                    continue
                value += 5 if value % 3 == 0 else 0
            elif value % 11 == 0:
                continue
            rows.append({"meter": meter, "day": day, "value": value})
    return rows


def compute(run: RunContext, chunks: Sequence[PlannedChunk], prefix: str, *_: Any) -> dict[str, list[StagedFile]]:
    """Compute chunks as `compute.compute_batch` does, by PyArrow: two files a chunk, halves of the meters; reads nothing."""
    platform, target, plan = run.platform, run.target, run.plan
    schema = schema_to_pyarrow(platform.lakehouse.table(target.name).schema())
    wanted: set[str] | None = None
    if plan.merge is not None:
        wanted = set(plan.merge.entities or ())
        folder = Path(local_path(entities_folder(prefix)))
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow.table({plan.merge.entity: sorted(wanted)}), folder / "part-0.parquet")
    constants = lineage(plan, target.model)
    for chunk in chunks:
        folder = Path(local_path(prefix)) / f"{CHUNK_FOLDER}={chunk.start}"
        rows = [row | constants for row in rows_of(plan.transform_version, chunk.start, chunk.end)]
        rows = [row for row in rows if wanted is None or row["meter"] in wanted]
        folder.mkdir(parents=True, exist_ok=True)
        for part, meters in enumerate((METERS[:3], METERS[3:])):
            mine = [row for row in rows if row["meter"] in meters]
            if mine:
                pq.write_table(arrow.Table.from_pylist(mine, schema=schema), folder / f"part-{part}.parquet")
    return staged_files(platform, target, prefix, plan.chunking, [chunk.key for chunk in chunks])


def events_at(platform: Platform, snapshot_id: int) -> list[tuple[str, date]]:
    """Return the events of the source at a snapshot, each with its day; a snapshot is read once."""
    if snapshot_id not in _EVENTS:
        found = platform.lakehouse.table(SOURCE).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
        _EVENTS[snapshot_id] = [(one["id"], one["at"].date()) for one in found]
    return _EVENTS[snapshot_id]


_EVENTS: dict[int, list[tuple[str, date]]] = {}


def compute_events(
    run: RunContext, chunks: Sequence[PlannedChunk], prefix: str, *_: Any
) -> dict[str, list[StagedFile]]:
    """Compute a row for each source event of the plan's pinned snapshot: so that rows tell what their run has known."""
    platform, target, plan = run.platform, run.target, run.plan
    schema = schema_to_pyarrow(platform.lakehouse.table(target.name).schema())
    events = events_at(platform, plan.source_snapshot_id)
    Path(local_path(prefix)).mkdir(parents=True, exist_ok=True)
    for chunk in chunks:
        own = [(name, day) for name, day in events if chunk.start <= day <= chunk.end]
        found = [{"meter": name, "day": day, "value": 1} | lineage(plan, target.model) for name, day in own]
        if found:
            folder = Path(local_path(prefix)) / f"{CHUNK_FOLDER}={chunk.start}"
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(arrow.Table.from_pylist(found, schema=schema), folder / "part-0.parquet")
    return staged_files(platform, target, prefix, plan.chunking, [chunk.key for chunk in chunks])


def load_events(platform: Platform, name: str, *days: str) -> None:
    """Load a file into the source that has an event a day."""
    schema = schema_to_pyarrow(platform.lakehouse.table(SOURCE).schema())
    found = [{"id": f"{name}-{day}", "at": datetime.fromisoformat(day).replace(tzinfo=UTC)} for day in days]
    platform.lakehouse.append(SOURCE, [arrow.Table.from_pylist(found, schema=schema)], {LOAD_PROPERTY: name})


def take_load_back(platform: Platform, name: str) -> None:
    """Take the file of a load out of the source."""
    platform.lakehouse.undo_load(SOURCE, name, {ACTOR_PROPERTY: "ada", REASON_PROPERTY: "the wrong file"})


def here() -> Any:
    """Have this process do what installations have Spark's workers do: a patch."""
    return mock.patch.object(Platform, "workers", ThisProcess())


def computed_once(*_: Any) -> Finding:
    """Stand for the gate that has Spark compute chunks again: what PyArrow writes here is no transform's."""
    return Finding(True, "computed by PyArrow, and not again")


def serves(*products: Product) -> Callable[[Sequence[str] | None], Products]:
    """Return what stands for `finding.find_products` where a process is to serve these products, as they are."""
    return lambda _names: Products(products)


@contextmanager
def declared(target: TargetTable = TARGET, computed: Callable[..., Any] = compute) -> Iterator[None]:
    """Make the table this process's only product, and leave Spark out."""
    with (
        mock.patch.object(finding, "find_products", serves(replace(PRODUCT, targets=(target,)))),
        mock.patch.object(executor, "compute_batch", computed),
        mock.patch.object(judging, "purity_finding", computed_once),
        here(),
    ):
        yield


def opened(home: Path, **settings: Any) -> Platform:
    """Return the platform of an installation."""
    code_identity(sources_of(PRODUCT))  # looked up once a process, and inherited by those that are forked from it
    return Platform.of(load_settings(home=home, **settings))


def closed(platform: Platform) -> None:
    """Close the connections of a platform, so that its files can be copied or taken away."""
    platform.ledger.engine.dispose()
    forget_catalog(platform.lakehouse)


def forget_catalog(lakehouse: Lakehouse) -> None:
    """Close a lakehouse's catalog; it is opened again at its next use."""
    if lakehouse._catalog is not None:
        lakehouse._catalog.engine.dispose()  # type: ignore[attr-defined]
        lakehouse._catalog = None


def initialise(platform: Platform) -> None:
    """Make ledger, catalog and tables; the source has an event a month."""
    platform.settings.home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    make_ledger(platform)
    for name, model in ((READINGS, Reading), (CORRECTIONS, Correction)):
        schema = iceberg_schema(model)
        platform.lakehouse.ensure(name, schema, _spec(schema, "day", Chunking.MONTH), TABLE_PROPERTIES)
    events = Schema(NestedField(1, "id", StringType(), required=False), NestedField(2, "at", TimestamptzType(), False))
    platform.lakehouse.ensure(SOURCE, events, _spec(events, "at", Chunking.MONTH), TABLE_PROPERTIES)
    rows = [{"id": str(month), "at": datetime(2020, month, 1, tzinfo=UTC)} for month in range(1, 13)]
    platform.lakehouse.append(
        SOURCE, [arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(events))], {LOAD_PROPERTY: "events"}
    )


def manifest(run_id: str, mode: str, scope: tuple[str, str], *, computed_by: str = "2", **options: Any) -> Any:
    """Return the manifest of a run; `options` are its target's."""
    return manifest_from(manifest_data(run_id, mode, scope, computed_by=computed_by, **options))


def manifest_data(
    run_id: str, mode: str, scope: tuple[str, str], *, computed_by: str = "2", **options: Any
) -> dict[str, Any]:
    """Return the manifest of a run as its author writes it."""
    return {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ada",
        "reason": "meters that were misread",
        "source": {"table": SOURCE},
        "transform": {"name": "readings", "version": computed_by},
        "target": {
            "table": READINGS,
            "publishMode": mode,
            "publishRange": {"start": scope[0], "end": scope[1]},
            **options,
        },
        "development": True,
    }


def planned(platform: Platform, contract: Any) -> RunRecord:
    """Plan a manifest and have it approved, if that is not on record yet."""
    record = plan_run(platform, contract)
    if record.state is RunState.PLANNED:
        platform.ledger.decide(
            record.run_id, approve=True, by="grace", comment="", self_approval=False, plan_hash=record.plan_hash
        )
    return platform.ledger.run(record.run_id)


def staged(platform: Platform, run_id: str) -> RunRecord:
    """Stage and gate an approved run, as `backfill run` does: what is done already is skipped."""
    record = platform.ledger.run(run_id)
    if record.state in COMPUTABLE:
        executor.stage_chunks(platform, run_id, [chunk.key for chunk in record.plan.chunks])
        judging.gate_chunks(platform, run_id)
        judging.gate_run(platform, run_id)
    return platform.ledger.run(run_id)


def rows(
    platform: Platform, table: str = READINGS, ref: str = "main", loaded: Table | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a table that readers of a ref see, in order, without the instant at which a run was planned.

    `loaded` is the table if it was looked up already: what it refers to is read, whatever has happened since.
    """
    found = loaded or platform.lakehouse.table(table)
    snapshot = found.snapshot_by_name(ref)
    if snapshot is None:
        return []
    columns = [name for name in dtypes(Reading if table == READINGS else Correction) if name != "produced_at"]
    values = found.scan(snapshot_id=snapshot.snapshot_id, selected_fields=tuple(columns)).to_arrow().select(columns)
    return sorted((tuple(row.values()) for row in values.to_pylist()), key=repr)


def seen(platform: Platform, table: str = READINGS, ref: str = "main") -> list[tuple[Any, ...]]:
    """Return what `rows` does; of a file that was read before only its size and time are looked at again."""
    loaded = platform.lakehouse.table(table)
    snapshot = loaded.snapshot_by_name(ref)
    if snapshot is None:
        return []
    columns = list(dtypes(Reading if table == READINGS else Correction))
    columns.remove("produced_at")
    found: list[tuple[Any, ...]] = []
    for task in loaded.scan(snapshot_id=snapshot.snapshot_id).plan_files():
        assert not task.delete_files
        path = local_path(task.file.file_path)
        stat = Path(path).stat()
        key = (path, stat.st_size, stat.st_mtime_ns)
        if key not in _ROWS:
            values = pq.read_table(path, columns=columns, partitioning=None).select(columns).to_pylist()
            _ROWS[key] = [tuple(row.values()) for row in values]
        found += _ROWS[key]
    return sorted(found, key=repr)


_ROWS: dict[tuple[str, int, int], list[tuple[Any, ...]]] = {}
