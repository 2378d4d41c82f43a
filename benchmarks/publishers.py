"""Eight publishers on one table at once: four on months of their own, four on one and the same month.

    python benchmarks/publishers.py [--seconds 60] [--ledger URL] [--catalog URI]

Each process plans, has approved, stages a small file a chunk, records its gate and publishes, in a loop, through the real planner, ledger, lease and
publication; only Spark is left out: the files are written by PyArrow. A publisher whose scope is held tries the same
run again; one whose scope has changed plans a new run on the table as it is. Without URLs, ledger and catalog are
SQLite files; data files are local. Afterwards the table is compared, row by row, with a serial replay of its
publications in the order of its snapshots, and the ledger with both. Prints what landed and what was refused.
"""

from __future__ import annotations

import argparse
import multiprocessing
import queue
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.parquet as pq
import sqlalchemy as sa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType
from rich.console import Console
from rich.table import Table

from backfill_assets.declarations import finding
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.schema import TABLE_PROPERTIES, Published, iceberg_schema
from backfill_assets.declarations.target import TargetTable, TransformVersion
from backfill_assets.installation import Platform
from backfill_assets.operations.initialise import _spec, make_ledger
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.worker.digest import RowDigest
from benchmarks.small_table import serves
from manifests.chunks import CHUNK_GATE, Chunking, cut
from manifests.errors import LeaseHeld, PublicationRefused
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import LOAD_PROPERTY, RUN_PROPERTY, local_path
from resources.ledger.facade import GatedChunk, RunRecord, Verdict
from resources.ledger.tables import leases, publications
from resources.settings import load_settings

DAYS = "silver.days"
SOURCE = "bronze.day_events"
SHARED = ("2020-07-01", "2020-07-31")
OWN = [(f"2020-{month}-01", f"2020-{month}-31") for month in ("01", "03", "05", "08")]
PUBLISHERS = {f"own-{n}": scope for n, scope in enumerate(OWN, 1)} | {f"shared-{n}": SHARED for n in range(1, 5)}


class Day(Published):
    """A row of the table: which run wrote this day."""

    day: date = pa.Field(description="The day.")
    value: str = pa.Field(description="The run that wrote it, and the day: no two runs write the same row.")


def _no_transform(*_: Any) -> Any:
    raise NotImplementedError("this table is written by its benchmark")


TARGET = TargetTable(
    name=DAYS,
    description="A row a day.",
    model=Day,
    key=("day",),
    day_column="day",
    chunking=Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source=SOURCE,
    source_time_column="at",
    references=(),
    warm_up_days=lambda _: 0,
    transform="days",
    versions={"1": TransformVersion(_no_transform)},
    owners=("team:benchmarks",),
)


def declare() -> None:
    """Make the table this process's only product."""
    finding.find_products = serves(Product("days", (), (TARGET,)))  # type: ignore[assignment]  # of this process


def opened(settings: dict[str, Any]) -> Platform:
    """Return the platform of an installation, in a process that has declared the table."""
    declare()
    return Platform.of(load_settings(**settings))


def initialise(platform: Platform) -> None:
    """Make ledger, catalog and tables; the source has an event a month."""
    platform.settings.home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    make_ledger(platform)
    schema = iceberg_schema(Day)
    platform.lakehouse.ensure(DAYS, schema, _spec(schema, "day", Chunking.MONTH), TABLE_PROPERTIES)
    events = Schema(NestedField(1, "id", StringType(), required=False), NestedField(2, "at", TimestamptzType(), False))
    platform.lakehouse.ensure(SOURCE, events, _spec(events, "at", Chunking.MONTH), TABLE_PROPERTIES)
    rows = [{"id": str(month), "at": datetime(2020, month, 1, tzinfo=UTC)} for month in range(1, 13)]
    platform.lakehouse.append(
        SOURCE, [arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(events))], {LOAD_PROPERTY: "events"}
    )


def validated(platform: Platform, run_id: str, start: str, end: str) -> RunRecord:
    """Take a run as far as its publication: planned, approved, staged, gated."""
    manifest = manifest_from(
        {
            "runId": run_id,
            "kind": "RESTATEMENT",
            "requestedBy": "ada",
            "reason": "publishers beside one another",
            "source": {"table": SOURCE},
            "transform": {"name": "days", "version": "1"},
            "target": {"table": DAYS, "publishRange": {"start": start, "end": end}},
            "development": True,
        }
    )
    ledger = platform.ledger
    record = plan_run(platform, manifest)
    ledger.decide(run_id, approve=True, by="grace", comment="", self_approval=False, plan_hash=record.plan_hash)
    keys = [chunk.key for chunk in record.plan.chunks]
    table = platform.lakehouse.table(DAYS)
    started = ledger.start_attempt(run_id, keys, edition=0, actor="ada", location=platform.lakehouse.location(DAYS))
    if started is None:
        raise SystemExit(f"{run_id}: there is nothing left to compute")
    attempt, prefix = started
    files, gated = {}, []
    for chunk in cut(Chunking.MONTH, record.plan.publish_range.start, record.plan.publish_range.end):
        days = [chunk.start + timedelta(days=n) for n in range((chunk.end - chunk.start).days + 1)]
        rows = [
            {
                "day": day,
                "value": f"{run_id} {day}",
                "run_id": run_id,
                "processing_mode": record.plan.mode.value,
                "transform_version": "1",
                "input_snapshot_id": record.plan.source_snapshot_id,
                "produced_at": record.plan.run_clock,
            }
            for day in days
        ]
        path = Path(local_path(prefix)) / f"{chunk.key}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(arrow.Table.from_pylist(rows, schema=schema_to_pyarrow(table.schema())), path)
        files[chunk.key] = [StagedFile(f"file://{path}", len(rows), path.stat().st_size)]
        digest = RowDigest({"day": pl.Date(), "value": pl.String()})
        digest.update(pl.read_parquet(path))
        verdict = Verdict(CHUNK_GATE, True, "read back", {"rows": len(rows)}, chunk.key, attempt)
        gated.append(GatedChunk(chunk.key, attempt, digest.result(), len(rows), {"slices": []}, verdict))
    ledger.stage(run_id, attempt, files)
    ledger.settle(run_id, "ada")
    ledger.record_gated(run_id, gated)
    ledger.record_verdicts(run_id, [Verdict(gate, True, "as staged", {}) for gate in record.plan.gates])
    ledger.move(run_id, RunState.VALIDATED, "ada", "gates passed", expected=RunState.STAGED)
    return ledger.run(run_id)


@dataclass
class Tally:
    """What one publisher did. `landed` are its runs in order; the rest are counts of refusals."""

    name: str
    landed: list[str] = field(default_factory=list)
    held: int = 0
    changed: int = 0
    waiting: int = 0
    failure: str = ""
    longest: float = 0.0


def publish_in_a_loop(name: str, settings: dict[str, Any], seconds: float, start: Any, meet: Any, told: Any) -> None:
    """Publish run after run of one scope until the time is over; tell the tally at the end.

    Those of a shared scope meet before their first publication, so that they collide however slow the machine is.
    """
    tally = Tally(name)
    try:
        platform = opened(settings)
        start.wait()
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            number += 1
            record = validated(platform, f"{name}-{number}", *PUBLISHERS[name])
            if number == 1 and PUBLISHERS[name] == SHARED:
                meet.wait()
            _publish_one(platform, record, until, tally)
    except Exception as error:  # noqa: BLE001 - told to the parent, which fails
        tally.failure = f"{type(error).__name__}: {error}"
        start.abort()
        meet.abort()
    told.put(tally)


def _publish_one(platform: Platform, record: RunRecord, until: float, tally: Tally) -> None:
    while True:
        began = time.monotonic()
        try:
            publish(platform, record.run_id)
        except LeaseHeld:
            tally.held += 1
            if time.monotonic() > until:
                tally.waiting += 1  # it stays VALIDATED, on record
                return
            time.sleep(random.uniform(0.1, 0.5))
        except PublicationRefused:
            tally.changed += 1
            return
        else:
            tally.landed.append(record.run_id)
            tally.longest = max(tally.longest, time.monotonic() - began)
            return


def disagreements(platform: Platform, tallies: list[Tally]) -> list[str]:
    """Compare the table with a serial replay of its snapshots, and both with the ledger and what publishers saw."""
    table = platform.lakehouse.table(DAYS)
    history = publications_of(table)
    rows, holders = replay(platform, [run_id for _, run_id in history])
    present = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["day"])
    with platform.ledger.engine.connect() as connection:
        recorded = connection.execute(sa.select(publications).where(publications.c.state == "COMMITTED")).all()
    told = [run_id for tally in tallies for run_id in tally.landed]
    agreements = {
        "the table is what the serial replay makes": present == rows,
        "the ledger's publications are the table's snapshots": sorted(history)
        == sorted((one.snapshot_id, one.run_id) for one in recorded),
        "what the publishers were told had landed is in the table": sorted(told) == sorted(run for _, run in history),
        "the ledger's accepted versions are those of the replay": platform.ledger.accepted(DAYS) == holders,
    }
    return [
        *(f"not so: {agreement}" for agreement, holds in agreements.items() if not holds),
        *_wrong_states(platform, [run_id for _, run_id in history], set(holders.values())),
        *_wrong_order(platform, [run_id for _, run_id in history], {one.run_id: one.token for one in recorded}),
        *(f"{tally.name}: {tally.failure}" for tally in tallies if tally.failure),
        *(
            f"{tally.name}: alone in its scope, and refused or without a publication"
            for tally in tallies
            if tally.name.startswith("own-") and (tally.changed or tally.held or tally.waiting or not tally.landed)
        ),
    ]


def publications_of(table: Any) -> list[tuple[int, str]]:
    """Return snapshot and run of each publication of a table, oldest first."""
    by_id = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    found = []
    snapshot = table.current_snapshot()
    while snapshot is not None:
        found.append((snapshot.snapshot_id, snapshot.summary.additional_properties[RUN_PROPERTY]))
        snapshot = by_id.get(snapshot.parent_snapshot_id)
    return found[::-1]


def replay(platform: Platform, run_ids: list[str]) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the rows, by day, and each chunk's run, after publishing runs one after another from their staged files."""
    rows: dict[date, dict[str, Any]] = {}
    holders: dict[str, str] = {}
    for run_id in run_ids:
        days = platform.ledger.run(run_id).plan.publish_range
        rows = {day: row for day, row in rows.items() if not days.start <= day <= days.end}
        for chunk in platform.ledger.chunks(run_id):
            holders[chunk.chunk] = run_id
            for file in chunk.files:
                rows |= {row["day"]: row for row in pq.read_table(local_path(file.path)).to_pylist()}
    return [rows[day] for day in sorted(rows)], holders


def _wrong_states(platform: Platform, landed: list[str], holders: set[str]) -> list[str]:
    """Who holds a chunk is PUBLISHED, who held one is SUPERSEDED, who was refused is not called either."""
    wrong = []
    for run in platform.ledger.runs(target=DAYS):
        allowed = {RunState.REJECTED, RunState.VALIDATED}
        if run.run_id in landed:
            allowed = {RunState.PUBLISHED if run.run_id in holders else RunState.SUPERSEDED}
        if run.state not in allowed:
            wrong.append(f"{run.run_id} is {run.state}")
    return wrong


def _wrong_order(platform: Platform, landed: list[str], token: dict[str, int]) -> list[str]:
    """In each scope publications land in the order of their tokens, and no lease begins before the last one ended."""
    with platform.ledger.engine.connect() as connection:
        held = connection.execute(sa.select(leases).order_by(leases.c.id)).all()
    wrong = []
    for scope in set(PUBLISHERS.values()):
        tokens = [token[run_id] for run_id in landed if PUBLISHERS[run_id.rpartition("-")[0]] == scope]
        mine = [one for one in held if one.start_day.isoformat() == scope[0]]
        if tokens != sorted(tokens):
            wrong.append(f"{scope[0]}: publications did not land in the order of their tokens")
        if any(later.acquired_at < earlier.ended_at for earlier, later in pairwise(mine)):
            wrong.append(f"{scope[0]}: two leases at once")
    return wrong


def measure(settings: dict[str, Any], seconds: float) -> tuple[list[Tally], list[str]]:
    """Run the publishers for some seconds; return what each did, and everything that does not agree afterwards."""
    platform = opened(settings)
    initialise(platform)
    context = multiprocessing.get_context("forkserver")
    start, told = context.Barrier(len(PUBLISHERS)), context.Queue()
    meet = context.Barrier(list(PUBLISHERS.values()).count(SHARED))
    processes = [
        context.Process(target=publish_in_a_loop, args=(name, settings, seconds, start, meet, told))
        for name in PUBLISHERS
    ]
    for process in processes:
        process.start()
    tallies: list[Tally] = []
    while len(tallies) < len(processes):
        try:
            tallies.append(told.get(timeout=5))
        except queue.Empty:
            if not any(process.is_alive() for process in processes):
                break
    for process in processes:
        process.join()
    missing = set(PUBLISHERS) - {tally.name for tally in tallies}
    return sorted(tallies, key=lambda tally: tally.name), [
        *(f"{name} ended without a word" for name in sorted(missing)),
        *disagreements(platform, tallies),
    ]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--ledger", help="SQLAlchemy URL of an empty database; default: a SQLite file")
    parser.add_argument("--catalog", help="URI of an SQL catalog in an empty database; default: a SQLite file")
    options = parser.parse_args()
    # imported once, not eight times; by its name, since Python 3.11 does not preload a main module
    multiprocessing.get_context("forkserver").set_forkserver_preload(["benchmarks.publishers"])
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"home": Path(folder)}
        if options.ledger:
            settings["ledger_url"] = options.ledger
        if options.catalog:
            settings["catalog"] = {"type": "sql", "uri": options.catalog, "warehouse": f"file://{folder}/warehouse"}
        tallies, found = measure(settings, options.seconds)
    table = Table("publisher", "landed", "scope held", "scope changed", "still waiting", "slowest (s)")
    total: Counter[str] = Counter()
    for tally in tallies:
        counts = {"landed": len(tally.landed), "held": tally.held, "changed": tally.changed, "waiting": tally.waiting}
        total.update(counts)
        table.add_row(tally.name, *map(str, counts.values()), f"{tally.longest:.2f}")
    table.add_row("all", *(str(total[name]) for name in ("landed", "held", "changed", "waiting")), "")
    console = Console()
    console.print(table)
    console.print(f"{total['landed'] / options.seconds:.1f} publications/s for {options.seconds:.0f} s")
    if found:
        raise SystemExit("\n".join(found))
    console.print("the table equals the serial replay of its publications; the ledger agrees")


if __name__ == "__main__":
    main()
