"""What a restatement costs: plan to published, as a ratio against the bare Spark job, in one warm process.

    python benchmarks/restatement.py [--events LOG] [--cases N] [--rounds 3]

The bare job is the best we can write: the same pinned files, the same transform, one sorted zstd file a chunk; no plan,
ledger, gate, Dagster or publication. Both run in the same Spark session on the same data, in turn. History is published
first, and each of the two runs once unmeasured, which warms the JVM and its Python workers. Prints seconds, the ratio of each round, and peak memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets import demo, executor, publication
from backfill_assets.cli import execute
from backfill_assets.compute import pinned_inputs, transform_context
from backfill_assets.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.loading import initialise, load_case_events
from backfill_assets.planning import plan_run, preview
from backfill_assets.platform import Platform, open_platform, target_named
from backfill_assets.products.enforcement import loading as enforcement
from manifests.canonical import plain
from manifests.model import RunManifest, manifest_from
from manifests.planner import Plan
from resources.ledger import RunRecord
from resources.settings import load_settings


class PeakMemory(threading.Thread):
    """Samples the proportional memory of this process and all its descendants (MiB)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0
        self.stop = threading.Event()

    def run(self) -> None:
        """Sample twice a second until stopped."""
        while not self.stop.wait(0.5):
            self.peak = max(self.peak, sum(map(_pss, _descendants(os.getpid()))) / 1024)


def _descendants(root: int) -> list[int]:
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue  # it has just ended
            parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found, waiting = [], [root]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += parents.get(one, [])
    return found


def _pss(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")), 0)


def bare(platform: Platform, plan: Plan) -> None:
    """The bare job of a plan: read, transform, sorted write."""
    target = target_named(plan.target)
    inputs = pinned_inputs(platform, target, plan, plan.chunks)
    rows = target.versions[plan.transform_version].function(inputs, transform_context(platform, plan, plan.chunks))
    constants = [F.lit(value).alias(name) for name, value in executor.lineage(plan).items()]
    folder = f"{platform.settings.catalog['warehouse']}/bare"
    rows.select("*", *constants, F.trunc(target.day_column, "MM").alias("chunk")).write.partitionBy("chunk").parquet(
        folder
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=Path)
    parser.add_argument("--cases", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", action="store_true", help="print what each part of a restatement took")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(home=Path(folder))
        initialise(Platform.of(settings))
        initialise_instance(settings)
        with open_platform(settings) as platform, instance_at(settings) as instance:
            load = enforcement.from_file(options.events) if options.events else enforcement.generated(options.cases, 1)
            load_case_events(platform, load, settings.quarantine_limit)
            scope = demo._months_of_source(platform)

            def manifest(name: str, run_id: str) -> RunManifest:
                text = plain(demo._manifest(platform, name, scope).model_dump(mode="json", by_alias=True))
                return manifest_from(text | {"runId": run_id})

            def restate(name: str, run_id: str) -> RunRecord:
                record = plan_run(platform, manifest(name, run_id))
                platform.ledger.decide(
                    run_id, approve=True, by="benchmark", comment="", self_approval=False, plan_hash=record.plan_hash
                )
                announce_approval(instance, record)
                if not execute(platform, instance, run_id, (), progress=False):
                    raise SystemExit(f"{run_id}: {platform.ledger.run(run_id).state_reason}")
                return platform.ledger.run(run_id)

            def run_bare(number: int) -> list[float]:
                """Time the bare job of a restatement as it would be planned now: a new run id, a new run clock."""
                plan = preview(platform, manifest(demo.RESTATEMENT, f"bare-{number}"))
                with _timed() as seconds:
                    bare(platform, plan)
                shutil.rmtree(Path(folder) / "warehouse" / "bare")
                return seconds

            record = restate(demo.HISTORY, "history")
            run_bare(0)
            restate(demo.RESTATEMENT, "restatement-0")
            memory = PeakMemory()
            memory.start()
            table = Table("round", "bare job (s)", "plan to published (s)", "ratio", "publication (s)")
            for number in range(1, options.rounds + 1):
                alone = run_bare(number)
                with _timed() as whole, _parts(options.parts):
                    restate(demo.RESTATEMENT, f"restatement-{number}")
                (entry,) = platform.ledger.publications(f"restatement-{number}")
                commit = (entry["ended_at"] - entry["started_at"]).total_seconds()
                table.add_row(
                    str(number), f"{alone[0]:.1f}", f"{whole[0]:.1f}", f"{whole[0] / alone[0]:.2f}", f"{commit:.2f}"
                )
            memory.stop.set()
            rows = sum(chunk.rows or 0 for chunk in platform.ledger.chunks("restatement-1"))
    Console().print(f"{load.source_file}: {rows:,} rows in {len(record.plan.chunks)} chunks")
    Console().print(table)
    Console().print(f"peak memory of all processes: {memory.peak:,.0f} MiB (proportional set size)")


@contextmanager
def _timed() -> Iterator[list[float]]:
    seconds: list[float] = []
    start = time.perf_counter()
    yield seconds
    seconds.append(time.perf_counter() - start)


@contextmanager
def _parts(wanted: bool) -> Iterator[None]:
    """Print what each part took, by wrapping the functions the assets call."""
    if not wanted:
        yield
        return
    named = [
        (executor, "compute_batch"),
        (executor, "run_gates"),
        (executor, "_run_verdicts"),
        (publication, "bundle_files"),
    ]
    kept = [getattr(module, name) for module, name in named]

    def timed(name: str, function):  # noqa: ANN001, ANN202
        def call(*arguments, **options):  # noqa: ANN002, ANN003, ANN202
            with _timed() as took:
                result = function(*arguments, **options)
            print(f"  {name}: {took[0]:.1f} s", flush=True)
            return result

        return call

    for (module, name), function in zip(named, kept, strict=True):
        setattr(module, name, timed(name, function))
    try:
        yield
    finally:
        for (module, name), function in zip(named, kept, strict=True):
            setattr(module, name, function)


if __name__ == "__main__":
    main()
