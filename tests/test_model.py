"""Arbitrary interleavings of backfills in every mode, live writes, rollbacks, pauses and kills, against a simple model.

Real are the planner, the ledger, the leases, the commits, the catalog, the evidence, merges and corrections; only Spark is
left out: files are written by PyArrow, and what its workers do is done here. After each step table, corrections, versions,
states, holders and evidence are compared with `table_model`. HYPOTHESIS_PROFILE=long tries more.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from calendar import monthrange
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType
from table_model import Event, File, Killed, Model, Row, Run

from backfill_assets import derivation, faults, publication, ways
from backfill_assets import platform as platform_module
from backfill_assets.compute import entities_folder, lineage
from backfill_assets.executor import CHUNK_GATE, by_plan
from backfill_assets.loading import _spec
from backfill_assets.planning import plan_run
from backfill_assets.platform import Platform
from backfill_assets.schema import TABLE_PROPERTIES, Published, iceberg_schema
from backfill_assets.schema import Corrections as CorrectionsModel
from backfill_assets.target import CorrectionsTable, Product, TargetTable, TransformVersion
from manifests.chunks import Chunking
from manifests.errors import LeaseHeld, PlanRefused, PublicationRefused, Refused
from manifests.lifecycle import RunState
from manifests.model import Acceptance, Corrections, OlderVersion, OnConflict, PublishMode, manifest_from
from manifests.planner import PlannedChunk, StagedFile
from resources.lakehouse import LOAD_PROPERTY, Scope, commit_replacement, local_path
from resources.leases import Leases
from resources.ledger import GatedChunk, Verdict
from resources.processes import name_of
from resources.settings import load_settings
from resources.tables import leases as leases_table

DAYS, EVENTS, SOURCE = "silver.days", "silver.days_corrections", "bronze.day_events"
MONTHS = ("2020-01", "2020-02", "2020-03", "2020-04")
NAMES = ("ann", "bob", "cem")
NOBODY = 2**22 + 1
"""A process id above every real one."""
PUBLISHING = ("sealed", "tagged", "prepared", "leased", "committed", "recorded")


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


def here(_platform: Any, _plan: Any, tasks: Any, function: Callable[..., Any]) -> list[str]:
    """Do in this process what Spark's workers would."""
    columns = {"chunk": [chunk for chunk, _, _ in tasks], "task": [task for _, _, task in tasks]}
    batch = arrow.RecordBatch.from_pydict(columns)
    return [text for found in function(iter([batch])) for text in found.column("result").to_pylist()]


class Installation:
    """A real installation of one small table, and what its operators, LIVE and Spark would do."""

    def __init__(self, home: Path) -> None:
        self.platform = Platform.of(load_settings(home=home))
        home.mkdir(parents=True, exist_ok=True)
        self.platform.lakehouse.create_catalog()
        self.platform.ledger.migrate()
        for name, model in ((DAYS, Day), (EVENTS, DayCorrection)):
            schema = iceberg_schema(model)
            self.platform.lakehouse.ensure(name, schema, _spec(schema, "day", Chunking.MONTH), TABLE_PROPERTIES)
        events = Schema(
            NestedField(1, "id", StringType(), required=False), NestedField(2, "at", TimestamptzType(), False)
        )
        self.platform.lakehouse.ensure(SOURCE, events, _spec(events, "at", Chunking.MONTH), TABLE_PROPERTIES)
        rows = [{"id": month, "at": datetime.fromisoformat(f"{month}-05").replace(tzinfo=UTC)} for month in MONTHS]
        load = arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(events))
        self.platform.lakehouse.append(SOURCE, [load], {LOAD_PROPERTY: "events"})
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

    def stage(self, run: Run, computed: dict[str, list[File]], *, passes: bool) -> None:
        """Stage and gate months of a run; the derived files are judged by the gate's own code, which must say `passes`."""
        platform, ledger = self.platform, self.platform.ledger
        record = ledger.run(run.run_id)
        keys = sorted(computed)
        attempt, prefix = ledger.start_attempt(
            run.run_id, keys, actor="ada", location=platform.lakehouse.location(DAYS)
        )
        if run.mode is PublishMode.MERGE_BY_KEY:
            folder = Path(local_path(entities_folder(prefix)))
            folder.mkdir(parents=True)
            pl.DataFrame({"name": sorted(run.entities)}).write_parquet(folder / "part-0.parquet")
        files: dict[str, list[StagedFile]] = {}
        derived = {}
        plans = by_plan(ledger.plans(record), keys)
        for plan, mine in plans:
            chunks: list[PlannedChunk] = [chunk for chunk in plan.chunks if chunk.key in mine]
            for chunk in chunks:
                files[chunk.key] = [
                    self._write(Path(local_path(prefix)) / f"{chunk.key}-{number}.parquet", file, lineage(plan))
                    for number, file in enumerate(computed[chunk.key])
                ]
            derived |= derivation.derive_batch(platform, TARGET, plan, chunks, prefix, files)
        ledger.stage(run.run_id, attempt, files, derived)
        ledger.settle(run.run_id, "ada")
        found = {chunk.chunk: chunk for chunk in ledger.chunks(run.run_id)}
        gated = []
        for plan, mine in plans:
            judged = derivation.judge_derived(platform, TARGET, plan, [found[key] for key in mine])
            for key in mine:
                good = key not in judged or not judged[key].violations
                verdict = Verdict(CHUNK_GATE, good, "read back", {}, key, attempt)
                gated.append(GatedChunk(key, attempt, "rows", found[key].rows or 0, {"slices": []}, verdict))
        ledger.record_gated(run.run_id, gated)
        ledger.settle(run.run_id, "ada")
        assert all(one.verdict.passed for one in gated) == passes, (run, gated)
        if passes:
            ledger.record_verdicts(run.run_id, [Verdict(gate, True, "as staged", {}) for gate in record.plan.gates])
            ledger.move(run.run_id, RunState.VALIDATED, "ada", "gates passed")

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
    with (
        mock.patch.object(platform_module, "PRODUCTS", (Product("days", (), (TARGET,)),)),
        mock.patch.object(derivation, "in_workers", here),
        mock.patch.dict(os.environ, {"BACKFILL_OPERATOR": "ada"}),
    ):
        os.environ.pop(faults.VARIABLE, None)
        yield


seeds = st.integers(0, 2**16)
spans = st.tuples(st.integers(0, 3), st.integers(0, 2)).map(lambda it: MONTHS[it[0] : it[0] + it[1] + 1])
months = st.sampled_from(MONTHS)


class TableUnderChange(RuleBasedStateMachine):
    """One table, its runs, and everybody who changes it."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = only_this_table()
        self.scene.__enter__()
        self.folder = tempfile.TemporaryDirectory()
        self.it = Installation(Path(self.folder.name) / "home")
        self.model = Model(MONTHS)
        self.numbers = count(1)
        self.live_files: list[tuple[str, File]] = []
        self.seen = (0, self.it.platform.lakehouse.snapshot_id(DAYS))

    def teardown(self) -> None:
        self.it.platform.ledger.engine.dispose()
        self.folder.cleanup()
        self.scene.__exit__(None, None, None)

    # --- helpers --------------------------------------------------------------------------------------------------

    def runs(self, *states: RunState) -> list[Run]:
        return [run for run in self.model.runs.values() if not states or run.state in states]

    def draw(self, data: st.DataObject, runs: list[Run]) -> Run:
        return self.model.runs[data.draw(st.sampled_from([run.run_id for run in runs]))]

    def both(self, real: Callable[[], Any], model: Callable[[], Any]) -> None:
        """Do the same in both worlds: both do it, or both refuse it for the same kind of reason."""
        wanted = _outcome(model)
        found = _outcome(real)
        assert _kind(found) is _kind(wanted), f"the model says {wanted!r}, the project {found!r}"

    def act(self, action: str, run: Run, point: str = "", real: Any = None, model: Any = None) -> None:
        """Publish, roll back, reinstate or accept a run; at `point` of it, do something else."""
        fired: list[str] = []

        def at(do: Any, mark: str) -> Callable[[str], None]:
            def reach(name: str) -> None:
                if name == point and mark not in fired:
                    fired.append(mark)
                    do()

            return reach

        doing = {
            "publish": publication.publish,
            "rollback": publication.rollback,
            "reinstate": publication.reinstate,
            "accept": publication.accept,
        }[action]
        same = getattr(self.model, action)
        release = Leases.release

        def unless_killed(leases: Leases, lease: Any) -> None:
            if not self.it.killed:
                release(leases, lease)

        with (
            mock.patch.object(publication.faults, "reach", at(real, "real")),
            mock.patch.object(Leases, "release", unless_killed),
        ):
            self.both(
                lambda: doing(self.it.platform, run.run_id),
                lambda: same(run, at(model, "model")),
            )
        assert len(fired) in {0, 2}, f"only {fired} got to {point}"
        if self.it.killed:
            self.it.edit_leases(leases_table.c.run_id == run.run_id, pid=NOBODY, process=name_of(NOBODY))
            self.it.killed = False

    def given(self, mode: PublishMode, **options: Any) -> Run:
        """Return a validated run over the first two months."""
        run = Run(f"run-{next(self.numbers):03}", mode, MONTHS[:2], **options)
        self.model.plan(run)
        self.it.plan(run)
        self._stage(run, next(self.numbers))
        return run

    def cancel(self, run: Run) -> None:
        self.both(
            lambda: publication.cancel(self.it.platform, run.run_id, "ada", "not wanted"),
            lambda: self.model.cancel(run),
        )

    def die(self) -> None:
        self.it.killed = True
        raise Killed

    def die_in_the_model(self) -> None:
        raise Killed

    def agree(self) -> None:
        """Compare everything there is."""
        self.the_table_is_what_the_model_says()
        self.corrections_and_versions_are_what_the_model_says()
        self.the_ledger_says_what_the_model_says()
        self.the_evidence_of_what_was_published_is_whole()

    def computed(self, run: Run, seed: int, wanted: set[str]) -> dict[str, list[File]]:
        """What a transform makes of some months: whatever it is, the same in both worlds."""
        chance = random.Random(seed)
        names = sorted(run.entities) if run.mode is PublishMode.MERGE_BY_KEY else NAMES
        revision = next(self.numbers)
        found = {}
        for month in sorted(wanted):
            rows = [
                Row(name, day_of(month, number), chance.randrange(3), revision, run.run_id)
                for name in names
                for number in (3, 20)
                if chance.random() < 0.6
            ]
            split = chance.randrange(len(rows) + 1)
            found[month] = [File(frozenset(part)) for part in (rows[:split], rows[split:]) if part]
        return found

    # --- runs -----------------------------------------------------------------------------------------------------

    @rule(
        mode=st.sampled_from(PublishMode),
        months=spans,
        on_conflict=st.sampled_from(OnConflict),
        seed=seeds,
        options=st.tuples(st.integers(1, 2), st.booleans(), st.sampled_from(OlderVersion)),
    )
    def a_run_is_planned_approved_and_staged(
        self, mode: PublishMode, months: tuple[str, ...], on_conflict: OnConflict, seed: int, options: Any
    ) -> None:
        number, choice, older = options
        run = Run(f"run-{next(self.numbers):03}", mode, months, on_conflict, max_replans=number)
        if mode is PublishMode.VERSIONED:
            run.version, run.later = f"v{number}", choice
        if mode is PublishMode.CORRECTION_EVENTS:
            run.corrections = Corrections.BESIDE if choice else Corrections.INSTEAD
        if mode is PublishMode.MERGE_BY_KEY:
            lives = [row.name for row in self.model.rows() if row.run == "live"]
            run.entities, run.older = frozenset([NAMES[number], *lives[:number]]), older
        if not self.model.plannable(run):
            try:
                self.it.plan(run)
            except PlanRefused:
                return
            raise AssertionError(f"{run} was planned")
        self.model.plan(run)
        self.it.plan(run)
        self._stage(run, seed)

    def _stage(self, run: Run, seed: int) -> None:
        computed = self.computed(run, seed, run.waiting)
        self.it.stage(run, computed, passes=self.model.stage(run, computed))

    @precondition(lambda self: self.runs(RunState.RUNNING))
    @rule(data=st.data(), seed=seeds)
    def months_planned_anew_are_computed(self, data: st.DataObject, seed: int) -> None:
        self._stage(self.draw(data, self.runs(RunState.RUNNING)), seed)

    @precondition(lambda self: self.runs(RunState.VALIDATED))
    @rule(data=st.data())
    def a_validated_run_is_published(self, data: st.DataObject) -> None:
        self.act("publish", self.draw(data, self.runs(RunState.VALIDATED)))

    @precondition(lambda self: self.runs(RunState.PUBLISHED))
    @rule(data=st.data())
    def a_published_run_is_rolled_back(self, data: st.DataObject) -> None:
        self.act("rollback", self.draw(data, self.runs(RunState.PUBLISHED)))

    @precondition(lambda self: self.runs(RunState.ROLLED_BACK))
    @rule(data=st.data())
    def a_rollback_is_rolled_back(self, data: st.DataObject) -> None:
        self.act("reinstate", self.draw(data, self.runs(RunState.ROLLED_BACK)))

    @precondition(lambda self: any(run.later for run in self.runs(RunState.PUBLISHED)))
    @rule(data=st.data())
    def a_version_is_accepted(self, data: st.DataObject) -> None:
        self.act("accept", self.draw(data, [run for run in self.runs(RunState.PUBLISHED) if run.later]))

    @precondition(lambda self: self.runs())
    @rule(data=st.data(), action=st.sampled_from(["publish", "rollback", "reinstate", "accept"]))
    def somebody_tries_what_may_make_no_sense(self, data: st.DataObject, action: str) -> None:
        self.act(action, self.draw(data, self.runs()))

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.RUNNING))
    @rule(data=st.data())
    def a_run_is_cancelled(self, data: st.DataObject) -> None:
        self.cancel(self.draw(data, self.runs(RunState.VALIDATED, RunState.RUNNING)))

    # --- crashes, pauses, crowds ----------------------------------------------------------------------------------

    def _action_and_point(self, data: st.DataObject) -> tuple[str, Run, str]:
        states = (RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK)
        run = self.draw(data, self.runs(*states))
        if run.state is RunState.VALIDATED:
            return "publish", run, f"publishing.{data.draw(st.sampled_from(PUBLISHING))}"
        if run.state is RunState.ROLLED_BACK:
            return "reinstate", run, "undoing.committed"
        if run.later and "accept" not in run.done and data.draw(st.booleans()):
            return "accept", run, "accepting.committed"
        return "rollback", run, "undoing.committed"

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data())
    def a_publisher_is_killed(self, data: st.DataObject) -> None:
        action, run, point = self._action_and_point(data)
        self.act(action, run, point, self.die, self.die_in_the_model)

    @precondition(lambda self: self.model.leases)
    @rule()
    def a_dead_publisher_was_on_a_machine_nobody_can_ask(self) -> None:
        for lease in self.model.leases:
            if lease.state != "expired":  # whoever held it, and wherever: it is nobody's any more
                lease.state = "elsewhere"
        self.it.edit_leases(sa.true(), host="another-machine")

    @precondition(lambda self: any(lease.state == "elsewhere" for lease in self.model.leases))
    @rule()
    def time_passes_and_leases_expire(self) -> None:
        for lease in self.model.leases:
            lease.state = "expired"
        self._expire()

    def _expire(self) -> None:
        self.it.edit_leases(sa.true(), expires_at=datetime.now(UTC) - timedelta(seconds=1))

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data(), paused=st.booleans())
    def two_publishers_at_once(self, data: st.DataObject, paused: bool) -> None:
        """One publishes while another is at some point of its own; perhaps that one has slept beyond its lease."""
        action, run, point = self._action_and_point(data)
        others = [one for one in self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK) if one != run]
        if not others:
            return
        other = self.draw(data, others)
        then = {RunState.VALIDATED: "publish", RunState.PUBLISHED: "rollback"}.get(other.state, "reinstate")
        found: list[Any] = []
        real = getattr(publication, then)

        def meanwhile() -> None:
            if paused:
                self._expire()
            found.append(_outcome(lambda: real(self.it.platform, other.run_id)))

        def in_the_model() -> None:
            if paused:
                for lease in self.model.leases:
                    lease.state = "expired"
            found.append(_outcome(lambda: getattr(self.model, then)(other, lambda _: None)))

        self.act(action, run, point, meanwhile, in_the_model)
        assert not found or _kind(found[0]) is _kind(found[1]), found

    # --- live -----------------------------------------------------------------------------------------------------

    def _live_file(self, month: str, revision: int) -> File:
        name = f"live-{next(self.numbers)}"
        file = File(frozenset({Row(name, day_of(month, 10), 7, revision, "live")}))
        self.live_files.append((month, file))
        return file

    @rule(month=months, newer=st.booleans(), instead=st.booleans())
    def live_writes_past_the_project(self, month: str, newer: bool, instead: bool) -> None:
        file = self._live_file(month, 10**6 if newer else 0)
        self.model.live(month, file, instead=instead)
        self.it.live(month, file, instead=instead)

    @precondition(lambda self: any(file in self.model.main[month] for month, file in self.live_files))
    @rule()
    def live_takes_back_what_it_wrote_last(self) -> None:
        month, file = [(month, file) for month, file in self.live_files if file in self.model.main[month]][-1]
        self.model.live(month, None, removed=file)
        self.it.live(month, None, removed=file)

    @precondition(lambda self: self.runs(RunState.VALIDATED, RunState.PUBLISHED, RunState.ROLLED_BACK))
    @rule(data=st.data(), month=months)
    def live_writes_in_the_middle_of_a_publication(self, data: st.DataObject, month: str) -> None:
        action, run, point = self._action_and_point(data)
        file = self._live_file(month, 0)
        self.act(action, run, point, lambda: self.it.live(month, file), lambda: self.model.live(month, file))

    # --- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def the_table_is_what_the_model_says(self) -> None:
        assert self.it.rows() == self.model.rows()

    @invariant()
    def main_moves_exactly_when_the_model_says(self) -> None:
        commit, snapshot = self.seen
        self.seen = self.model.commit, self.it.platform.lakehouse.snapshot_id(DAYS)
        assert (commit == self.seen[0]) == (snapshot == self.seen[1])

    @invariant()
    def corrections_and_versions_are_what_the_model_says(self) -> None:
        assert self.it.corrections() == self.model.rows(self.model.corrections)
        assert self.it.versions() == set(self.model.versions)
        for name, run_id in self.model.versions.items():
            run = self.model.runs[run_id]
            assert self.it.rows(name) == self.model.rows(run.base_main | run.after)

    @invariant()
    def the_ledger_says_what_the_model_says(self) -> None:
        ledger = self.it.platform.ledger
        found = {record.run_id: record.state for record in ledger.runs(target=DAYS)}
        assert found == {run.run_id: run.state for run in self.model.runs.values()}
        assert ledger.accepted(DAYS) == self.model.holders

    @invariant()
    def the_evidence_of_what_was_published_is_whole(self) -> None:
        for run in self.runs(RunState.PUBLISHED, RunState.SUPERSEDED, RunState.ROLLED_BACK):
            done = [one for one in self.it.platform.ledger.publications(run.run_id) if one["state"] == "COMMITTED"]
            assert [one["action"] for one in done] == run.done
            assert {one["evidence_root"] for one in done} == {self.it.platform.evidence.verify(run.run_id)}


@pytest.fixture
def machine() -> Iterator[TableUnderChange]:
    machine = TableUnderChange()
    yield machine
    machine.agree()
    machine.teardown()


def test_an_accepted_version_holds_its_months_also_after_its_rollback_was_undone(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.VERSIONED, version="v1", later=True)
    for action in ("publish", "accept", "rollback", "reinstate", "rollback", "reinstate"):
        machine.act(action, run)
        machine.agree()
    assert set(machine.model.holders.values()) == {run.run_id}


def test_an_acceptance_that_could_not_be_recorded_is_before_the_next_publication(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.VERSIONED, version="v1", later=True)
    machine.act("publish", run)
    machine.act("accept", run, "accepting.committed", machine.die, machine.die_in_the_model)
    later = machine.given(PublishMode.REPLACE_PARTITIONS)
    machine.act("publish", later)
    machine.agree()
    machine.act("accept", run)
    assert (run.state, set(machine.model.holders.values())) == (RunState.SUPERSEDED, {later.run_id})
    machine.agree()
    machine.act("rollback", later)


@pytest.mark.parametrize("mode", [PublishMode.REPLACE_PARTITIONS, PublishMode.VERSIONED])
def test_a_run_whose_publication_landed_is_not_cancelled(machine: TableUnderChange, mode: PublishMode) -> None:
    versioned = mode is PublishMode.VERSIONED
    run = machine.given(mode, version="v1" if versioned else None, later=versioned)
    machine.act("publish", run, "publishing.committed", machine.die, machine.die_in_the_model)
    machine.cancel(run)
    assert run.state is RunState.PUBLISHED


def test_a_rollback_undoes_a_reinstatement_that_could_not_be_recorded(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.REPLACE_PARTITIONS)
    machine.act("publish", run)
    machine.act("rollback", run)
    machine.act("reinstate", run, "undoing.committed", machine.die, machine.die_in_the_model)
    machine.act("rollback", run)
    assert machine.it.rows() == []


@pytest.mark.parametrize("point", ["sealed", "leased"])
def test_corrections_are_not_issued_beside_a_replacement_that_is_refused(machine: TableUnderChange, point: str) -> None:
    run = machine.given(PublishMode.CORRECTION_EVENTS, corrections=Corrections.BESIDE)
    file = machine._live_file(MONTHS[0], 0)
    machine.act(
        "publish",
        run,
        f"publishing.{point}",
        lambda: machine.it.live(MONTHS[0], file),
        lambda: machine.model.live(MONTHS[0], file),
    )
    assert (run.state, machine.it.corrections()) == (RunState.REJECTED, [])


@pytest.mark.parametrize("mode", [PublishMode.SHADOW_SWAP, PublishMode.VERSIONED])
@pytest.mark.parametrize("point", ["publishing.sealed", "preparing.opened", "publishing.prepared"])
def test_a_gate_step_that_prepares_beside_a_publisher_gets_nothing_rejected(
    machine: TableUnderChange, mode: PublishMode, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "_PREPARING_SECONDS", -1.0)
    run = machine.given(mode, version="v1" if mode is PublishMode.VERSIONED else None)
    beside: list[str | None] = []
    prepare = partial(publication.prepare, machine.it.platform, run.run_id)
    with mock.patch.object(ways.faults, "reach", lambda name: beside.append(prepare()) if name == point else None):
        publication.publish(machine.it.platform, run.run_id)
    machine.model.publish(run, lambda _: None)
    assert beside == [None]  # it is the publisher's turn


def test_a_publisher_beside_a_gate_step_that_prepares_waits_for_its_turn(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.SHADOW_SWAP)
    held: list[BaseException | None] = []

    def publishes(point: str) -> None:
        if point == "preparing.opened":
            held.append(_outcome(lambda: publication.publish(machine.it.platform, run.run_id)))

    with mock.patch.object(ways.faults, "reach", publishes):
        assert publication.prepare(machine.it.platform, run.run_id) == f"candidate-{run.run_id}"
    assert [type(one) for one in held] == [LeaseHeld]
    machine.act("publish", run)


def test_a_replacement_is_not_rolled_back_where_its_corrections_cannot_be(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.CORRECTION_EVENTS, corrections=Corrections.BESIDE)
    machine.act("publish", run)
    machine.act("publish", machine.given(PublishMode.CORRECTION_EVENTS, corrections=Corrections.INSTEAD))
    machine.act("rollback", run)
    assert run.state is RunState.PUBLISHED


def test_first_rows_are_not_planned_anew_over_those_of_others(machine: TableUnderChange) -> None:
    run = machine.given(PublishMode.APPEND_ONLY, on_conflict=OnConflict.REPLAN)
    file = machine._live_file(MONTHS[0], 0)
    machine.model.live(MONTHS[0], file)
    machine.it.live(MONTHS[0], file)
    machine.act("publish", run)
    assert run.state is RunState.REJECTED


def _outcome(do: Callable[[], Any]) -> BaseException | None:
    """Return what a refusal or a kill raised, None where it was done."""
    try:
        do()
    except (Refused, Killed) as error:
        return error
    return None


def _kind(outcome: BaseException | None) -> type | None:
    return PublicationRefused if isinstance(outcome, PublicationRefused) else type(outcome)


_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
TestTableUnderChange = TableUnderChange.TestCase
TestTableUnderChange.settings = settings(
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "1000" if _LONG else "25")),
    stateful_step_count=30 if _LONG else 12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
