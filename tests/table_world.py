"""A real installation of one small table without Spark: planner, ledger, leases, commits, catalog and evidence are the real ones.

Put here what the model's tests and those of directed interleavings share: the table, its runs in every publish mode, what
LIVE and Spark would do to it (files are written by PyArrow, and what Spark's workers do is done in this process), and
what is there afterwards.
"""

from __future__ import annotations

import json
import os
from calendar import monthrange
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table.update import SetSnapshotRefUpdate
from pyiceberg.types import NestedField, StringType, TimestamptzType
from small_worlds import copy_of
from table_model import Event, File, Row, Run

from backfill_assets import faults
from backfill_assets.declarations import finding
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schema import TABLE_PROPERTIES, Published, iceberg_schema
from backfill_assets.declarations.schema import Corrections as CorrectionsModel
from backfill_assets.declarations.target import CorrectionsTable, TargetTable, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import _spec, make_ledger
from backfill_assets.planning.resolve import plan_run
from backfill_assets.run_context import RunContext
from backfill_assets.staging import derivation
from backfill_assets.staging.compute import entities_folder
from backfill_assets.staging.rows import lineage
from benchmarks.small_table import here, serves
from manifests.chunks import CHUNK_GATE, Chunking
from manifests.model import Acceptance, PublishMode
from manifests.plan import PlannedChunk
from manifests.reading import manifest_from
from manifests.staged_file import StagedFile
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.facade import LOAD_PROPERTY, Scope, local_path
from resources.ledger import judged
from resources.ledger.facade import GatedChunk, Verdict
from resources.ledger.tables import leases as leases_table

DAYS, EVENTS, SOURCE = "silver.days", "silver.days_corrections", "bronze.day_events"
MONTHS = ("2020-01", "2020-02", "2020-03", "2020-04")
NAMES = ("ann", "bob", "cem")
NOBODY = 2**22 + 1
"""A process id above every real one."""


class Day(Published):
    """A row: what somebody was worth on a day."""

    name: str = pa.Field(description="Who.")
    day: date = pa.Field(description="When.")
    value: pl.Int64 = pa.Field(description="How much.")
    revision: pl.Int64 = pa.Field(description="Which of two rows is newer.")


class DayCorrection(CorrectionsModel):
    """A correction of a row."""

    name: str = pa.Field(description="Who.")
    day: date = pa.Field(description="When.")


def _no_transform(*_: Any) -> Any:
    raise NotImplementedError("this table is written by its test")


TARGET = TargetTable(
    name=DAYS,
    description="A row a name and day.",
    model=Day,
    key=("name", "day"),
    day_column="day",
    chunking=Chunking.MONTH,
    chunks_from=MONTHS[0],
    chunks_until=MONTHS[-1],
    source=SOURCE,
    source_time_column="at",
    references=(),
    warm_up_days=lambda _: 0,
    transform="days",
    versions={"1": TransformVersion(_no_transform)},
    owners=("team:tests",),
    entity="name",
    version_column="revision",
    corrections=CorrectionsTable(EVENTS, DayCorrection),
)


def day_of(month: str, number: int) -> date:
    return date.fromisoformat(f"{month}-{number:02}")


def scope_of(month: str) -> Scope:
    first = day_of(month, 1)
    return Scope("day", first, first.replace(day=monthrange(first.year, first.month)[1]))


def initialise(platform: Platform) -> None:
    """Make ledger, catalog and tables; the source has an event a month."""
    platform.settings.home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    make_ledger(platform)
    for name, model in ((DAYS, Day), (EVENTS, DayCorrection)):
        schema = iceberg_schema(model)
        platform.lakehouse.ensure(name, schema, _spec(schema, "day", Chunking.MONTH), TABLE_PROPERTIES)
    events = Schema(NestedField(1, "id", StringType(), required=False), NestedField(2, "at", TimestamptzType(), False))
    platform.lakehouse.ensure(SOURCE, events, _spec(events, "at", Chunking.MONTH), TABLE_PROPERTIES)
    rows = [{"id": month, "at": datetime.fromisoformat(f"{month}-05").replace(tzinfo=UTC)} for month in MONTHS]
    load = arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(events))
    platform.lakehouse.append(SOURCE, [load], {LOAD_PROPERTY: "events"})


class Installation:
    """A real installation of one small table, and what its operators, LIVE and Spark would do."""

    def __init__(self, platform: Platform | None = None) -> None:
        self.platform = platform or copy_of(initialise)
        self.arrow_schema = schema_to_pyarrow(self.platform.lakehouse.table(DAYS).schema())
        self.killed = False

    # --- runs -----------------------------------------------------------------------------------------------------

    def plan(self, run: Run) -> None:
        target: dict[str, Any] = {
            "table": DAYS,
            "publishMode": run.mode.value,
            "publishRange": {
                "start": day_of(run.months[0], 1).isoformat(),
                "end": scope_of(run.months[-1]).end.isoformat(),
            },
        }
        if run.mode is PublishMode.MERGE_BY_KEY:
            target["merge"] = {"entities": sorted(run.entities), "onOlderVersion": run.older.value}
        if run.version is not None:
            acceptance = Acceptance.LATER if run.later else Acceptance.ON_PUBLICATION
            target |= {"version": run.version, "acceptance": acceptance.value}
        if run.corrections is not None:
            target["corrections"] = run.corrections.value
        manifest = manifest_from(
            {
                "runId": run.run_id,
                "kind": "RESTATEMENT",
                "requestedBy": "ada",
                "reason": "compared with a model",
                "source": {"table": SOURCE},
                "transform": {"name": "days", "version": "1"},
                "target": target,
                "conflict": {"onConflict": run.on_conflict.value, "maxReplans": run.max_replans},
                "development": True,
            }
        )
        record = plan_run(self.platform, manifest)
        self.platform.ledger.decide(
            run.run_id, approve=True, by="grace", comment="", self_approval=False, plan_hash=record.plan_hash
        )

    def stage(self, run: Run, computed: dict[str, list[File]], *, passes: bool, whole: bool = True) -> None:
        """Stage and gate months of a run; the derived files are judged by the gate's own code, which must say `passes`.

        A run that is not judged as a `whole` stays STAGED.
        """
        platform, ledger = self.platform, self.platform.ledger
        record = ledger.run(run.run_id)
        keys = sorted(computed)
        attempt, prefix = ledger.start_attempt(
            run.run_id,
            keys,
            edition=ledger.edition(run.run_id),
            actor="ada",
            location=platform.lakehouse.location(DAYS),
        )
        if run.mode is PublishMode.MERGE_BY_KEY:
            folder = Path(local_path(entities_folder(prefix)))
            folder.mkdir(parents=True)
            pl.DataFrame({"name": sorted(run.entities)}).write_parquet(folder / "part-0.parquet")
        files: dict[str, list[StagedFile]] = {}
        derived = {}
        plans = ledger.by_plan(record, keys)
        for plan, mine in plans:
            chunks: list[PlannedChunk] = [chunk for chunk in plan.chunks if chunk.key in mine]
            for chunk in chunks:
                files[chunk.key] = [
                    self._write(Path(local_path(prefix)) / f"{chunk.key}-{number}.parquet", file, lineage(plan))
                    for number, file in enumerate(computed[chunk.key])
                ]
            derived |= derivation.derive_batch(RunContext(platform, TARGET, plan), chunks, prefix, files)
        ledger.stage(run.run_id, attempt, files, derived)
        ledger.settle(run.run_id, "ada")
        found = {chunk.chunk: chunk for chunk in ledger.chunks(run.run_id)}
        gated = []
        for plan, mine in plans:
            of_derived = derivation.judge_derived(RunContext(platform, TARGET, plan), [found[key] for key in mine])
            for key in mine:
                good = key not in of_derived or not of_derived[key].violations
                verdict = Verdict(CHUNK_GATE, good, "read back", {}, key, attempt)
                gated.append(GatedChunk(key, attempt, "rows", found[key].rows or 0, {"slices": []}, verdict))
        ledger.record_gated(run.run_id, gated)
        ledger.settle(run.run_id, "ada")
        assert all(one.verdict.passed for one in gated) == passes, (run, gated)
        if passes and whole:
            self.judge(run.run_id)

    def launch(self, run_id: str, months: Iterable[str], *, opens: bool) -> Callable[[], None]:
        """Read what a launch computes months by, perhaps open its attempt; return what it does when it goes on."""
        ledger, keys = self.platform.ledger, sorted(months)
        edition = ledger.edition(run_id)

        def start() -> tuple[int, str] | None:
            location = self.platform.lakehouse.location(DAYS)
            return ledger.start_attempt(run_id, keys, edition=edition, actor="ada", location=location)

        opened = start() if opens else None

        def go_on() -> None:
            if opened is None:
                assert start() is None, "it would compute what another launch has staged"
            else:
                ledger.stage(run_id, opened[0], dict.fromkeys(keys, ()))

        return go_on

    def judge(self, run_id: str) -> None:
        """Have every run-level gate pass: the run is VALIDATED then."""
        gates = self.platform.ledger.run(run_id).plan.gates
        verdicts = [Verdict(gate, True, "as staged", {}) for gate in gates]
        staged = judged.name_of(self.platform.ledger.chunks(run_id))
        assert self.platform.ledger.judge(run_id, verdicts, "ada", of=staged)

    def _write(self, path: Path, file: File, facts: dict[str, Any]) -> StagedFile:
        rows = sorted(file.rows, key=lambda row: row.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        values = [{"name": r.name, "day": r.day, "value": r.value, "revision": r.revision} | facts for r in rows]
        pq.write_table(arrow.Table.from_pylist(values, schema=self.arrow_schema), path)
        return StagedFile(f"file://{path}", len(rows), path.stat().st_size)

    # --- others ---------------------------------------------------------------------------------------------------

    def live(self, month: str, added: File | None, *, instead: bool = False, removed: File | None = None) -> None:
        """Write past the project: append a file to a month, replace it whole, or take back what was appended."""
        lakehouse = self.platform.lakehouse
        facts = {"run_id": "live", "processing_mode": "LIVE", "transform_version": "1", "input_snapshot_id": 1}
        tables = []
        if added is not None:
            values = [
                {"name": r.name, "day": r.day, "value": r.value, "revision": r.revision, "produced_at": None} | facts
                for r in added.rows
            ]
            tables = [arrow.Table.from_pylist(values, schema=self.arrow_schema)]
        if not instead and removed is None:
            (row,) = added.rows if added else ()
            lakehouse.append(DAYS, tables, {LOAD_PROPERTY: row.name})
            return
        from pyiceberg.io.pyarrow import _dataframe_to_data_files

        table = lakehouse.table(DAYS)
        new = [file for one in tables for file in _dataframe_to_data_files(table.metadata, one, table.io)]
        old = [task.file for task in table.scan(row_filter=scope_of(month).filter).plan_files()]
        if removed is not None:
            (row,) = removed.rows
            old = [f for f in old if row.name in pq.read_table(local_path(f.file_path))["name"].to_pylist()]
            assert len(old) == 1
        commit_replacement(table, scope_of(month).filter, old, new, {})

    def edit_leases(self, condition: Any, **values: Any) -> None:
        with self.platform.ledger.engine.begin() as connection:
            connection.execute(
                leases_table.update().where(leases_table.c.ended_at.is_(None), condition).values(**values)
            )

    @contextmanager
    def answer_lost(self, table: str = DAYS) -> Iterator[list[Callable[[], bool]]]:
        """Lose the answer to the next commit to a table's main; yield what lets it arrive later and says whether it landed."""
        catalog = self.platform.lakehouse.catalog
        commit, late = catalog.commit_table, []

        def lose(asked: Any, requirements: Any, updates: Any) -> Any:
            moves_main = any(isinstance(one, SetSnapshotRefUpdate) and one.ref_name == "main" for one in updates)
            if late or not moves_main or ".".join(asked.name()) != table:
                return commit(asked, requirements, updates)

            def arrives() -> bool:
                try:
                    commit(asked, requirements, updates)
                except CommitFailedException:
                    return False
                return True

            late.append(arrives)
            raise CommitStateUnknownException("the connection was lost")

        with mock.patch.object(catalog, "commit_table", lose):
            yield late

    # --- what is there --------------------------------------------------------------------------------------------

    def rows(self, ref: str | None = None) -> list[Row]:
        table = self.platform.lakehouse.table(DAYS)
        snapshot = None if ref is None else table.snapshot_by_name(ref)
        scan = table.scan(snapshot_id=None if snapshot is None else snapshot.snapshot_id)
        found = scan.to_arrow().select(["name", "day", "value", "revision", "run_id"]).to_pylist()
        return sorted((Row(*row.values()) for row in found), key=repr)

    def corrections(self) -> list[Event]:
        found = self.platform.lakehouse.table(EVENTS).scan().to_arrow().to_pylist()
        assert len({(row["correction_id"]) for row in found}) == len(found)
        return sorted(
            (
                Event(
                    row["name"],
                    row["day"],
                    row["event_type"],
                    _values(row["old_values"]),
                    _values(row["new_values"]),
                    row["corrects_run_id"],
                    row["run_id"],
                )
                for row in found
            ),
            key=repr,
        )

    def versions(self) -> set[str]:
        return {ref for ref in self.platform.lakehouse.refs(DAYS) if ref.startswith(("v", "withdrawn-"))}


def _values(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = json.loads(text)
    return int(found["value"]), int(found["revision"])


@contextmanager
def only_this_table() -> Iterator[None]:
    """Make the table the process's only product, and do workers' work here; put back what was before."""
    products = (Product("days", (), (TARGET,)),)
    with (
        mock.patch.object(finding, "find_products", serves(*products)),
        here(),
        mock.patch.dict(os.environ, {"BACKFILL_OPERATOR": "ada"}),
    ):
        os.environ.pop(faults.VARIABLE, None)
        yield
