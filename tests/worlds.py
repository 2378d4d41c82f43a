"""Whole installations for tests: real ledger, real Iceberg tables, real Spark, generated or real events."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from backfill_assets import faults
from backfill_assets.declarations import finding
from backfill_assets.declarations.target import TargetTable, TransformVersion
from backfill_assets.defs.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement import CASE_SLA_DAILY, PRODUCT, generator, raw
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.products.enforcement.loading import RawLoad
from backfill_assets.publication.announcements import Published
from backfill_assets.publication.publisher import publish
from backfill_assets.staging.executor import stage_chunks
from benchmarks.small_table import serves
from manifests.lifecycle import RunState
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.ledger.facade import RunRecord
from resources.settings import load_settings

# a test's data are small: the JVM's optimising compiler would cost more than it saves. Without it the JVM would also have
# room for the code of a few runs only, and then compile nothing any more
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC"
SPARK = {"spark.driver.extraJavaOptions": JAVA_OPTIONS, "spark.sql.shuffle.partitions": "2"}
TARGET = "silver.case_sla_daily"
KEY = ["case_id", "clock", "business_date"]
VALUES = ["jurisdiction", "started_on", "breach_on", "days_open", "sla_state", "breach_at", "amount"]
NUMBERS = ["days_open", "amount"]
"""The target's key, its other columns without those of lineage, and which of them are numbers."""
START, END = date(2010, 1, 1), date(2011, 12, 31)
FEW_GATES = ["all_chunks_staged", "rows_within_expected", "change_within_tolerance"]
"""Those that read nothing: for runs of tests that are about something else. A reconciliation costs more than such a run."""
HISTORY_GATES = ["all_chunks_staged", "every_started_case_is_present", "breach_totals_agree"]


@dataclass
class World:
    platform: Platform
    home: Path
    start: date = START
    end: date = END
    counter: list[int] = field(default_factory=lambda: [0])
    gates: Sequence[str] | None = None
    """What the runs are held against unless they say otherwise; None: everything, but for the history with its bug."""

    def manifest(self, run_id: str | None = None, *, version: str = "3.1.0", **changes: Any) -> RunManifest:
        self.counter[0] += 1
        text: dict[str, Any] = {
            "runId": run_id or f"test-{self.counter[0]}",
            "kind": "RESTATEMENT",
            "requestedBy": "ana",
            "reason": "a reason that is long enough",
            "source": {"table": "bronze.case_events"},
            "transform": {"name": "case_sla_daily", "version": version},
            "target": {"table": TARGET, "publishRange": {"start": self.start, "end": self.end}},
            "safety": {"sinks": ["run_audit"]},
            "development": True,
        }
        if self.gates is not None:
            text["validation"] = {"gates": list(self.gates)}
        elif version == "2.4.1":
            text["validation"] = {"gates": HISTORY_GATES}
        return manifest_from(text | changes)

    def with_few_gates(self) -> World:
        """Return the same installation for runs that are held against what reads nothing."""
        return replace(self, gates=FEW_GATES)

    def scope(self, start: date, end: date) -> dict[str, Any]:
        return {"table": TARGET, "publishRange": {"start": start, "end": end}}

    def approved(self, manifest: RunManifest | None = None) -> RunRecord:
        record = plan_run(self.platform, manifest or self.manifest())
        self.platform.ledger.decide(
            record.run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
        )
        return self.platform.ledger.run(record.run_id)

    def stage(self, record: RunRecord, chunks: Sequence[str] | None = None) -> Any:
        keys = list(chunks or [chunk.key for chunk in record.plan.chunks])
        outcome = stage_chunks(self.platform, record.run_id, keys)
        gate_chunks(self.platform, record.run_id)
        gate_run(self.platform, record.run_id)
        return outcome

    def ran(self, manifest: RunManifest | None = None) -> RunRecord:
        """A run whose chunks are all staged and gated, whatever the gates said."""
        record = self.approved(manifest)
        self.stage(record)
        return self.platform.ledger.run(record.run_id)

    def validated(self, manifest: RunManifest | None = None) -> RunRecord:
        found = self.ran(manifest)
        errors = {chunk.chunk: chunk.error for chunk in self.platform.ledger.chunks(found.run_id) if chunk.error}
        assert found.state is RunState.VALIDATED, f"{found.state}: {found.state_reason} {errors}"
        return found

    def published(self, manifest: RunManifest | None = None) -> Published:
        return publish(self.platform, self.validated(manifest).run_id)

    def digests(self, run_id: str) -> dict[str, str | None]:
        return {chunk.chunk: chunk.digest for chunk in self.platform.ledger.chunks(run_id)}

    def rows(self, snapshot_id: int | None = None) -> pl.DataFrame:
        table = self.platform.lakehouse.table(TARGET)
        frame = pl.from_arrow(table.scan(snapshot_id=snapshot_id).to_arrow())
        assert isinstance(frame, pl.DataFrame)
        return frame.sort("case_id", "clock", "business_date")

    def snapshots(self) -> list[int]:
        return [snapshot.snapshot_id for snapshot in self.platform.lakehouse.table(TARGET).snapshots()]

    @contextmanager
    def dagster(self):
        with instance_at(self.platform.settings) as instance:
            yield instance

    def announced(self, manifest: RunManifest | None = None) -> RunRecord:
        record = self.approved(manifest)
        with self.dagster() as instance:
            announce_approval(self.platform, instance, record)
        return record


def make_world(
    home: Path,
    *,
    cases: int,
    seed: int = 7,
    start: date = START,
    end: date = END,
    gates: Sequence[str] | None = None,
    **settings_: Any,
) -> World:
    settings = load_settings(home=home, spark=SPARK, **settings_)
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    load_delivery(platform, enforcement.EVENTS, generated(cases, seed, start, end), 0.5)
    return World(platform, home, start, end, gates=gates)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it."""


@contextmanager
def killed_at(point: str, monkeypatch: pytest.MonkeyPatch):
    def reach(here: str) -> None:
        if here == point:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(faults, "reach", reach)
        with pytest.raises(Killed):
            yield


def keep(world: World, copy: Path) -> Callable[[], World]:
    """Copy a world's home as it is; the function returned puts it back in place, for tests that damage it."""

    def forget_connections() -> None:
        world.platform.ledger.engine.dispose()
        world.platform.lakehouse._catalog = None

    def put_back() -> World:
        forget_connections()
        shutil.rmtree(world.home)
        shutil.copytree(copy, world.home, symlinks=True)
        return world

    forget_connections()
    shutil.copytree(world.home, copy, symlinks=True)
    return put_back


def generated(cases: int, seed: int, start: date, end: date) -> RawLoad:
    name = f"generated-{cases}-{seed}-{start}-{end}"
    return RawLoad(name, name, lambda: raw.number_rows(generator.generate(cases, seed, start=start, end=end)))


def real_world(home: Path, log: Path) -> World:
    settings = load_settings(home=home, spark=SPARK)
    platform = Platform.of(settings)
    initialise(platform)
    initialise_instance(settings)
    load_delivery(platform, enforcement.EVENTS, enforcement.from_file(log), 0.0)
    return World(platform, home, date(2000, 1, 1), date(2013, 6, 30))


def declare(monkeypatch: pytest.MonkeyPatch, target: TargetTable) -> None:
    """Let the product have this one target for the length of a test."""
    monkeypatch.setattr(
        finding,
        "find_products",
        serves(replace(PRODUCT, targets=(target,), code=("backfill_assets.products.enforcement",))),
    )


def with_version(
    monkeypatch: pytest.MonkeyPatch, version: str, function: Callable[..., Any], *, clustered: bool = True
) -> TargetTable:
    """Declare one more version of the transform for the length of a test."""
    target = replace(
        CASE_SLA_DAILY, versions={**CASE_SLA_DAILY.versions, version: TransformVersion(function, clustered=clustered)}
    )
    declare(monkeypatch, target)
    return target
