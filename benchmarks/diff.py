"""What a diff costs: all of it, as a ratio against a bare Spark full outer join of the two versions, in one warm process.

    python benchmarks/diff.py [--events LOG] [--cases N] [--rounds 3] [--home FOLDER]

The bare join reads both versions' files, joins them on the key and counts the kinds of change; it keeps no column apart, no
sum, no row. History is published and a restatement staged first; with --home they are kept there and found the next time.
Each of the two runs once unmeasured. Prints seconds, the ratio of each round, what the diff found and whether the join
found the same, and the memory of the driver: this process and its JVM, before and at most during the diffs, of a diff of a
few chunks and of all.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from functools import reduce
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets.cli import demo
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, dtypes
from backfill_assets.gates.chunk_changes import sides_of
from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.ingestion.deliveries import load_delivery
from backfill_assets.installation import Platform, open_platform
from backfill_assets.operations.initialise import initialise
from backfill_assets.planning.resolve import plan_run
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.publication.publisher import publish
from backfill_assets.review.diff import _require_staged, diff_run
from backfill_assets.staging.executor import stage_chunks
from backfill_assets.staging.pinned_rows import read
from manifests.canonical import plain
from manifests.lifecycle import RunState
from manifests.reading import manifest_from
from resources.files.places import local
from resources.lakehouse.facade import PinnedRead
from resources.settings import load_settings

RUN, FEW = "restatement", "few-chunks"


class DriverMemory(threading.Thread):
    """Samples the resident memory (MiB) of this process and of its JVM, without Spark's Python workers."""

    def __init__(self, jvm: int) -> None:
        super().__init__(daemon=True)
        self.jvm, self.stop = jvm, threading.Event()
        self.now = self.peak = self._look()

    def _look(self) -> tuple[float, float]:
        return _resident("self"), _resident(str(self.jvm))

    def restart(self) -> None:
        """Begin anew from what is used now."""
        self.now = self.peak = self._look()

    def run(self) -> None:
        """Sample ten times a second until stopped."""
        while not self.stop.wait(0.1):
            found = self._look()
            self.peak = (max(self.peak[0], found[0]), max(self.peak[1], found[1]))

    def text(self) -> str:
        """Say what was used before and at most."""
        python, jvm = zip(self.now, self.peak, strict=True)
        return f"Python {python[0]:,.0f} -> {python[1]:,.0f} MiB, JVM {jvm[0]:,.0f} -> {jvm[1]:,.0f} MiB"


def _resident(pid: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / 1024


def prepare(platform: Platform, events: Path | None, cases: int) -> None:
    """Publish history and stage a restatement of all of it, and one of four months; safe to repeat."""
    few = platform.ledger.find(FEW)
    if few is not None and few.state is RunState.STAGED:
        return
    load = enforcement.from_file(events) if events else enforcement.generated(cases, 1)
    load_delivery(platform, enforcement.EVENTS, load, platform.settings.quarantine_limit)
    scope = demo._months_of_source(platform)
    for name, run_id, chunks in ((demo.HISTORY, "history", None), (demo.RESTATEMENT, RUN, None)):
        _staged(platform, name, run_id, scope, chunks)
    _staged(platform, demo.RESTATEMENT, FEW, scope, 4)


def _staged(platform: Platform, name: str, run_id: str, scope: tuple[date, date], months: int | None) -> None:
    record = platform.ledger.find(run_id)
    if record is None:
        text = plain(demo._manifest(platform, name, scope).model_dump(mode="json", by_alias=True)) | {"runId": run_id}
        text["development"] = True
        if months is not None:
            plan = platform.ledger.run(RUN).plan
            middle = len(plan.chunks) // 2
            chunks = plan.chunks[middle : middle + months]
            text["target"]["publishRange"] = {"start": str(chunks[0].start), "end": str(chunks[-1].end)}
        record = plan_run(platform, manifest_from(text))
        platform.ledger.decide(
            run_id, approve=True, by="benchmark", comment="", self_approval=False, plan_hash=record.plan_hash
        )
        record = platform.ledger.run(run_id)
    if record.state in {RunState.APPROVED, RunState.RUNNING, RunState.STAGED}:
        stage_chunks(platform, run_id, [chunk.key for chunk in record.plan.chunks])
        gate_chunks(platform, run_id)
        if run_id == "history":
            gate_run(platform, run_id)
            publish(platform, run_id)


def versions(platform: Platform, run_id: str) -> tuple[DataFrame, DataFrame]:
    """Return the frames of both versions, as the diff reads them."""
    record, chunks = _require_staged(platform, run_id)
    target = platform.products.target(record.target)
    sides = sides_of(platform, target, record, chunks).values()
    spark, schema = platform.spark.session(record.plan.mode), platform.lakehouse.table(target.name).schema()

    def frame(paths: Sequence[str]) -> DataFrame:
        rows = read(spark, PinnedRead(target.name, None, schema, tuple(paths)))
        return rows.drop(*LINEAGE_COLUMNS)

    return frame([p for side in sides for p in side.old]), frame([p for side in sides for p in side.new])


def bare_join(platform: Platform, run_id: str) -> dict[str, int]:
    """Join both versions on the key and count the kinds of change."""
    target = platform.products.target(platform.ledger.run(run_id).target)
    old, new = versions(platform, run_id)
    values = [name for name in dtypes(target.model) if name not in (*target.key, *LINEAGE_COLUMNS)]
    before = old.withColumnsRenamed({name: f"{name}_old" for name in values}).withColumn("was", F.lit(True))
    both = before.join(new.withColumn("is", F.lit(True)), list(target.key), "full_outer")
    same = reduce(lambda one, other: one & other, [F.col(name).eqNullSafe(F.col(f"{name}_old")) for name in values])
    kind = F.when(F.col("was").isNull(), "added").when(F.col("is").isNull(), "removed")
    rows = both.select(kind.when(same, "unchanged").otherwise("changed").alias("kind")).groupBy("kind").count()
    return {row["kind"]: row["count"] for row in rows.collect()}


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=Path)
    parser.add_argument("--cases", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--home", type=Path, help="keep history and staging here, and find them the next time")
    parser.add_argument("--prepare", action="store_true", help="stop after that")
    options = parser.parse_args()
    with _home(options.home) as home:
        settings = load_settings(home=home)
        initialise(Platform.of(settings))
        with open_platform(settings) as platform:
            prepare(platform, options.events, options.cases)
            if not options.prepare:
                measure(platform, options.rounds)


def measure(platform: Platform, rounds: int) -> None:
    """Run both in turn and print what they took."""
    console = Console(width=140)
    plan = platform.ledger.run(RUN).plan
    spark = platform.spark.session(plan.mode)
    memory = DriverMemory(int(spark._jvm.java.lang.ProcessHandle.current().pid()))  # type: ignore[union-attr]
    _forget(platform)
    with _said("diff of a few chunks, unmeasured"):
        diff_run(platform, FEW)
    with _said("diff, unmeasured"):
        diff_run(platform, RUN)
    with _said("bare join, unmeasured"):
        bare_join(platform, RUN)
    memory.start()
    table = Table("round", "bare full outer join (s)", "diff (s)", "ratio", "diff --table (s)", "ratio")
    used = ""
    for number in range(1, rounds + 1):
        with _said("bare join"):
            start = time.perf_counter()
            joined = bare_join(platform, RUN)
            alone = time.perf_counter() - start
        _forget(platform)
        memory.restart()
        with _said("diff"):
            start = time.perf_counter()
            made = diff_run(platform, RUN)
            took = time.perf_counter() - start
        used = memory.text()
        print(f"  driver memory: {used}", flush=True)
        _forget(platform, table=True)
        with _said("diff --table"):
            start = time.perf_counter()
            with_table = diff_run(platform, RUN, table=True)
            beside = time.perf_counter() - start
        table.add_row(
            str(number),
            f"{alone:.1f}",
            f"{took:.1f}",
            f"{took / alone:.2f}",
            f"{beside:.1f}",
            f"{beside / alone:.2f}",
        )
    _forget(platform)
    memory.restart()
    few = diff_run(platform, FEW).diff
    used_by_few = memory.text()
    memory.stop.set()
    diff = made.diff
    found = {kind: getattr(diff, kind) for kind in ("added", "removed", "changed", "unchanged")}
    assert {kind: number for kind, number in found.items() if number} == joined, (found, joined)
    assert with_table.table is not None
    text = ", ".join(f"{number:,} {kind}" for kind, number in found.items())
    console.print(f"{sum(found.values()):,} keys in {len(diff.chunks)} chunks: {text}; the bare join counts the same")
    console.print(table)
    size = len(json.dumps(plain(diff)))
    console.print(f"summary {size / 1e3:,.0f} KB; {with_table.table.rows:,} changed rows in {with_table.table.table}")
    console.print(f"driver memory, all {len(diff.chunks)} chunks: {used}")
    total = few.added + few.removed + few.changed + few.unchanged
    console.print(f"driver memory, {len(few.chunks)} chunks ({total:,} keys): {used_by_few}")


@contextmanager
def _said(what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.1f} s", flush=True)


def _forget(platform: Platform, *, table: bool = False) -> None:
    """Remove the records of earlier diffs, which would be shown instead of made, and of the changes table."""
    for run_id in (RUN, FEW):
        for file in local(platform.evidence.records(run_id)).glob("diff*.json"):
            file.unlink()
    name = f"{platform.ledger.run(RUN).target}_changes"
    if table and platform.lakehouse.catalog.table_exists(name):
        location = platform.lakehouse.table(name).location().removeprefix("file://")
        platform.lakehouse.catalog.drop_table(name)
        shutil.rmtree(location)


@contextmanager
def _home(kept: Path | None) -> Iterator[Path]:
    if kept is not None:
        yield kept.absolute()
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


if __name__ == "__main__":
    main()
