"""What the tests build their worlds from: plain functions, no fixtures.

Put here data that several test modules need (a manifest, a plan, rows of the shipped target, tables of a catalog).
Everything is small and real; nothing is mocked.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import MonthTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from backfill_assets.installation import Platform
from manifests.chunks import Chunking
from manifests.code_identity import CodeIdentity
from manifests.facts import ReferenceState, SourceFile, SourceState, TargetContract
from manifests.lifecycle import RunState
from manifests.model import Kind, RunManifest
from manifests.plan import Plan
from manifests.planner import make_plan
from manifests.policy import parse_policy
from manifests.reading import manifest_from
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import ACTION_PROPERTY, RUN_PROPERTY, Lakehouse, Scope
from resources.ledger.facade import GatedChunk, Ledger, RunRecord, Verdict
from resources.ledger.transactions import system_clock as now

TARGET = "silver.case_sla_daily"
SOURCE = "bronze.case_events"
RULES = "silver.sla_rules"
CALENDAR = "silver.jurisdiction_calendar"
RUN_CLOCK = datetime(2024, 5, 1, 12, tzinfo=UTC)
REQUESTER = "ada"
APPROVER = "grace"
Evaluation = TypeVar("Evaluation", dg.SensorEvaluationContext, dg.ScheduleEvaluationContext)


def at_a_tick(context: Evaluation) -> Evaluation:
    """Return the context in which Dagster's daemon evaluates a sensor or a schedule; Dagster builds that of a trial."""
    context._log_key = ["__repository__", "its name", "1"]
    return context


# --- the contract -----------------------------------------------------------------------------------------------------


def manifest_data(run_id: str = "restate-2012", **changes: Any) -> dict[str, Any]:
    """Return the smallest complete manifest, as its author writes it; `changes` replace whole top-level fields."""
    return {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": REQUESTER,
        "reason": "appeals were counted from the wrong day",
        "source": {"table": SOURCE},
        "transform": {"name": "case_sla_daily", "version": "2"},
        "target": {"table": TARGET, "publishRange": {"start": "2012-01-01", "end": "2012-03-31"}},
        **changes,
    }


def a_manifest(run_id: str = "restate-2012", **changes: Any) -> RunManifest:
    """Return the manifest of `manifest_data`."""
    return manifest_from(manifest_data(run_id, **changes))


def publishing(start: str, end: str, table: str = TARGET) -> dict[str, Any]:
    """Return a manifest's `target` with another publish range."""
    return {"table": table, "publishRange": {"start": start, "end": end}}


def a_contract(**changes: Any) -> TargetContract:
    """Return what the planner knows of a monthly target with two references."""
    fields: dict[str, Any] = {
        "table": TARGET,
        "chunking": Chunking.MONTH,
        "transform": "case_sla_daily",
        "versions": ("1", "2"),
        "source": SOURCE,
        "references": (RULES, CALENDAR),
        "warm_up_days": 60,
        "reads_look_back": True,
        "gates": ("all_chunks_staged", "record_counts"),
        "tolerances": {"row_change": 20.0},
    }
    return TargetContract(**(fields | changes))


def monthly_files(start: date, months: int, *, rows: int = 100, size: int = 1_000) -> tuple[SourceFile, ...]:
    """Return one source file a month."""
    files = []
    for _ in range(months):
        after = (start + timedelta(days=31)).replace(day=1)
        files.append(SourceFile(rows, size, start, after - timedelta(days=1)))
        start = after
    return tuple(files)


def a_source(files: Sequence[SourceFile] | None = None, **changes: Any) -> SourceState:
    """Return a source with a file of 100 rows a month from 2010 to 2013."""
    found = monthly_files(date(2010, 1, 1), 48) if files is None else tuple(files)
    fields: dict[str, Any] = {
        "table": SOURCE,
        "snapshot_id": 11,
        "committed_at": datetime(2024, 4, 30, tzinfo=UTC),
        "files": found,
    }
    return SourceState(**(fields | changes))


def a_reference(table: str, **changes: Any) -> ReferenceState:
    """Return a reference table with two named versions; the newest snapshot is 102."""
    fields: dict[str, Any] = {
        "table": table,
        "current": 102,
        "snapshots": frozenset({101, 102}),
        "versions": {"2023": 101, "2024": 102},
    }
    return ReferenceState(**(fields | changes))


def a_code(**changes: Any) -> CodeIdentity:
    """Return the identity of clean, committed code."""
    fields: dict[str, Any] = {
        "package_version": "0.1.0",
        "content_hash": "c" * 64,
        "lock_hash": "d" * 64,
        "git_commit": "e" * 40,
        "dirty": False,
    }
    return CodeIdentity(**(fields | changes))


def a_plan(manifest: RunManifest | None = None, **changes: Any) -> Plan:
    """Plan a manifest on tables described by plain data; `changes` replace arguments of `make_plan`."""
    arguments: dict[str, Any] = {
        "contract": a_contract(),
        "source": a_source(),
        "references": {RULES: a_reference(RULES), CALENDAR: a_reference(CALENDAR)},
        "base_snapshot_id": 7,
        "code": a_code(),
        "configuration_hash": "f" * 64,
        "run_clock": RUN_CLOCK,
    }
    return make_plan(manifest or a_manifest(), **(arguments | changes))


# --- the ledger -------------------------------------------------------------------------------------------------------


def planned(
    ledger: Ledger, run_id: str, start: str = "2012-01-01", end: str = "2012-03-31", **changes: Any
) -> RunRecord:
    """Record the plan of a run over whole months."""
    manifest = a_manifest(run_id, target=publishing(start, end), **changes)
    if manifest.kind is Kind.LIVE:
        ledger.ticks.record(manifest, now())
    return ledger.record_plan(manifest, a_plan(manifest), REQUESTER)


def approved(ledger: Ledger, run_id: str, start: str = "2012-01-01", end: str = "2012-03-31") -> RunRecord:
    """Record a plan and have it approved by somebody else."""
    record = planned(ledger, run_id, start, end)
    ledger.decide(
        run_id, approve=True, by=APPROVER, comment="looks right", self_approval=False, plan_hash=record.plan_hash
    )
    return ledger.run(run_id)


def staged_files(record: RunRecord, attempt: int) -> dict[str, list[StagedFile]]:
    """Return one made-up staged file for each chunk of a run's attempt."""
    return {
        chunk.key: [StagedFile(f"/staging/{record.run_id}/attempt-{attempt}/{chunk.key}.parquet", 10, 100)]
        for chunk in record.plan.chunks
    }


def moved(ledger: Ledger, run_id: str, wanted: RunState, actor: str, reason: str = "") -> None:
    """Move a run from whatever state it is in, as somebody would who has just looked."""
    ledger.move(run_id, wanted, actor, reason, expected=ledger.run(run_id).state)


def stage_all(ledger: Ledger, record: RunRecord) -> int:
    """Stage every chunk of a run in one attempt; return its number."""
    keys = [chunk.key for chunk in record.plan.chunks]
    attempt, _ = ledger.start_attempt(record.run_id, keys, edition=0, actor=REQUESTER, location="/staging")
    ledger.stage(record.run_id, attempt, staged_files(record, attempt))
    ledger.settle(record.run_id, REQUESTER)
    return attempt


def gated(chunk: str, attempt: int, *, passed: bool = True, digest: str = "rows-sha256-v1:aa") -> GatedChunk:
    """Return what a gate could have said of a chunk."""
    summary = "10 rows pass every rule" if passed else "unique key: 2"
    verdict = Verdict("chunk_gate", passed, summary, {"rows": 10}, chunk, attempt)
    return GatedChunk(chunk, attempt, digest if passed else "", 10, {"slices": []}, verdict)


def pass_all(ledger: Ledger, record: RunRecord, attempt: int) -> None:
    """Let every chunk of an attempt pass its gate, and the run pass its own."""
    ledger.record_gated(record.run_id, [gated(chunk.key, attempt) for chunk in record.plan.chunks])
    ledger.record_verdicts(record.run_id, [Verdict(gate, True, "agrees", {}) for gate in record.plan.gates])


def put_in_force(platform: Platform, text: dict[str, Any]) -> None:
    """Put a policy in force in an installation: somebody proposes it as its file, somebody else adopts it."""
    file, policies = platform.settings.home / "policy.yaml", platform.ledger.policies
    file.write_text(yaml.safe_dump(text))
    if parse_policy(file.read_text()).hash == platform.policy.hash:
        return
    proposed = policies.propose(platform.settings, file, by="keeper", comment="", at=now(), who={})
    policies.adopt(proposed, by="another keeper", comment="", at=now(), who={})


# --- tables -----------------------------------------------------------------------------------------------------------

DAYS = "silver.days"
DAYS_SCHEMA = Schema(
    NestedField(1, "id", StringType(), required=False),
    NestedField(2, "day", DateType(), required=False),
    NestedField(3, "value", LongType(), required=False),
)
BY_MONTH = PartitionSpec(PartitionField(2, 1000, MonthTransform(), "day_month"))


def a_lakehouse(folder: Path) -> Lakehouse:
    """Open a SQLite catalog with its files below `folder`, created if it is not there."""
    lakehouse = Lakehouse("lake", catalog_properties(folder))
    lakehouse.create_catalog()
    return lakehouse


def catalog_properties(folder: Path) -> dict[str, str]:
    """Return the properties of a SQLite catalog below `folder`."""
    return {"type": "sql", "uri": f"sqlite:///{folder / 'catalog.db'}", "warehouse": f"file://{folder}/warehouse"}


def day_rows(*days: str, value: int = 0) -> pa.Table:
    """Return rows of the small table `silver.days`, one a day."""
    rows = [{"id": f"case-{day}", "day": date.fromisoformat(day), "value": value} for day in days]
    return pa.Table.from_pylist(rows, schema=schema_to_pyarrow(DAYS_SCHEMA))


def stage_file(table: Table, name: str, rows: pa.Table) -> StagedFile:
    """Write a data file with field ids below the table's location, in no snapshot of it."""
    path = Path(table.location().removeprefix("file://")) / "data" / "run=test" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.cast(schema_to_pyarrow(table.schema())), path)
    return StagedFile(f"file://{path}", rows.num_rows, path.stat().st_size)


def scope(start: str, end: str) -> Scope:
    """Return days of the table `silver.days`."""
    return Scope("day", date.fromisoformat(start), date.fromisoformat(end))


def of_run(run_id: str, action: str = "publish") -> dict[str, str]:
    """Return the snapshot properties that say whose publication it is."""
    return {RUN_PROPERTY: run_id, ACTION_PROPERTY: action}


# --- rows of the shipped target ---------------------------------------------------------------------------------------

LINEAGE: dict[str, Any] = {
    "run_id": "restate-2012",
    "processing_mode": "BACKFILL",
    "transform_version": "2",
    "input_snapshot_id": 11,
    "produced_at": RUN_CLOCK,
}


# --- what may lie in a file's place -----------------------------------------------------------------------------------


def put_folder(place: Path) -> None:
    place.mkdir()


def put_pipe(place: Path) -> None:
    os.mkfifo(place)


def put_socket(place: Path) -> None:
    with chdir(place.parent), socket.socket(socket.AF_UNIX) as made:  # a socket's whole path may be too long
        made.bind(place.name)


def put_link(place: Path) -> None:
    place.symlink_to("/dev/zero")


def put_link_to_nothing(place: Path) -> None:
    place.symlink_to(place.with_name("nowhere"))


NO_FILES: tuple[Callable[[Path], None], ...] = (put_folder, put_pipe, put_socket, put_link, put_link_to_nothing)
"""What makes something that is no regular file."""


@contextmanager
def at_once() -> Iterator[None]:
    """Fail where the body waits for something that never comes."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(30)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def sla_row(number: int = 0, day: date = date(2012, 3, 10), **changes: Any) -> dict[str, Any]:
    """Return one valid row of `silver.case_sla_daily`: a clock that is running on `day`."""
    return {
        "case_id": f"case-{number:05}",
        "clock": "PAYMENT",
        "jurisdiction": "IT",
        "business_date": day,
        "started_on": day - timedelta(days=3),
        "breach_on": day + timedelta(days=57),
        "days_open": 3,
        "sla_state": "RUNNING",
        "breach_at": None,
        "amount": Decimal("35.00"),
        **LINEAGE,
        **changes,
    }


def lost_once_recorded(point: str) -> None:
    """Fail, in the place of `faults.reach`, where the ledger knows of a publication and the evidence does not."""
    if point == "publishing.recorded":
        raise ConnectionError("the store of the evidence is away")


def diff_record(**said: Any) -> dict[str, Any]:
    """Return what a record of a diff says, of a run that changes nothing but for what is `said`."""
    counts = {"added": 0, "removed": 0, "changed": 0, "unchanged": 0}
    shown = {"columns": [], "chunks": [], "largest": [], "sample": [], "kept": {}}
    names = {"diff_id": "d" * 64, "run_id": "run", "target": "silver.table", "publish_mode": "REPLACE_PARTITIONS"}
    made = {"base_snapshot_id": None, "key": ["id"], "made_at": "2024-01-01T00:00:00Z", "made_by": "ann"}
    return {**names, **made, **counts, **shown, **said}
