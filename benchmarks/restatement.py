"""What a restatement costs: plan to published, as a ratio against the bare Spark job, in one warm process.

    python -m benchmarks.restatement [--events LOG] [--cases N] [--rounds 3] [--warm-up 2] [--duckdb]

The bare job is the best we can write: the same pinned files, the same transform, one sorted zstd file a chunk; no plan,
ledger, gate, Dagster or publication. Both run in the same Spark session on the same data, in turn, the bare job first and
last: a restatement is held against the mean of the two bare jobs beside it, since a machine's speed drifts. History is
published first, and both run unmeasured as often as `--warm-up` says: the JVM compiles for several rounds. Prints
seconds, the ratio of each round and of all together, and peak memory; what comes after the publication (Dagster's events
of it, the report) is shown apart. Beside it stands the ratio of the processor seconds of both, with what comes after the
publication: other programs move it less.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets.cli import demo
from backfill_assets.gates import judging
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import preview
from backfill_assets.publication import publisher as publication
from backfill_assets.run_context import RunContext
from backfill_assets.staging import executor
from backfill_assets.staging.compute import pinned_inputs, transform_context
from backfill_assets.staging.rows import lineage
from benchmarks import duckdb_job
from benchmarks.installation import Installation, PeakMemory, installed, log_options, seconds_of, timed
from manifests.plan import Plan
from resources.ledger.transactions import system_clock as now

_HEADINGS = ("bare job before", "and after", "to published", "ratio", "of it gates", "publication", "later")
_GATES = ("run_gates", "_run_verdicts")


def bare(platform: Platform, plan: Plan) -> None:
    """The bare job of a plan: read, transform, sorted write."""
    target = platform.products.target(plan.target)
    run = RunContext(platform, target, plan)
    inputs = pinned_inputs(run, plan.chunks)
    rows = target.versions[plan.transform_version].function(inputs, transform_context(run, plan.chunks))
    constants = [F.lit(value).alias(name) for name, value in lineage(plan).items()]
    folder = f"{platform.settings.catalog['warehouse']}/bare"
    rows.select("*", *constants, F.trunc(target.day_column, "MM").alias("chunk")).write.partitionBy("chunk").parquet(
        folder
    )


class Rounds:
    """The measured rounds: each restatement stands between two bare jobs, and beside DuckDB's where it is asked for."""

    def __init__(self, world: Installation, memory: PeakMemory, *, with_duckdb: bool) -> None:
        self._world = world
        self._memory = memory
        self._with_duckdb = with_duckdb
        self.bares: list[list[float]] = []
        self.wholes: list[list[float]] = []
        self.gates: list[float] = []
        self.duckdb: list[duckdb_job.Job] = []
        self.table = Table("round", *_HEADINGS, caption="seconds")

    def bare(self, number: int) -> list[float]:
        """Time the bare job of a restatement as it would be planned now: a new run id, a new run clock."""
        world = self._world
        plan = preview(world.platform, world.manifest(demo.RESTATEMENT, f"bare-{number}"))
        with timed() as seconds:
            bare(world.platform, plan)
        shutil.rmtree(world.folder / "warehouse" / "bare")
        if self._with_duckdb and number >= 0:
            with self._memory.paused():
                self.duckdb.append(by_duckdb(world, plan))
        return seconds

    def warm_up(self, number: int) -> None:
        """Run both once, unmeasured."""
        self.bare(-1)
        self._world.run(self._world.manifest(demo.RESTATEMENT, f"warm-up-{number}"))

    def measure(self, number: int, before: list[float]) -> list[float]:
        """Measure a restatement and the bare job after it, which is returned."""
        began = now()
        with timed() as whole, _parts() as parts:
            self._world.run(self._world.manifest(demo.RESTATEMENT, f"restatement-{number}"))
        (entry,) = self._world.platform.ledger.publications(f"restatement-{number}")
        commit = seconds_of(entry)
        published = commit + (entry.started_at - began).total_seconds()
        after = self.bare(number)
        beside = [(first + second) / 2 for first, second in zip(before, after, strict=True)]
        gated = sum(parts[name] for name in _GATES)
        row = (before[0], after[0], published, published / beside[0], gated, commit, whole[0] - published)
        self.table.add_row(str(number), *(f"{value:.2f}" for value in row))
        self.bares.append(beside)
        self.wholes.append([published, whole[1]])
        self.gates.append(gated)
        return after

    def told(self) -> Iterator[str]:
        """Yield what all rounds together say."""
        (bares, bares_computed), (wholes, wholes_computed) = (_sums(one) for one in (self.bares, self.wholes))
        ratios = [mine[0] / theirs[0] for mine, theirs in zip(self.wholes, self.bares, strict=True)]
        yield f"all rounds together: {wholes / bares:.2f}; median of the rounds: {median(ratios):.2f}"
        yield f"gates: {sum(self.gates) / wholes:.1%} of the time to published"
        computed = [mine[1] / theirs[1] for mine, theirs in zip(self.wholes, self.bares, strict=True)]
        yield (
            f"processor seconds: {wholes_computed / bares_computed:.2f} all rounds together; "
            f"{', '.join(f'{ratio:.2f}' for ratio in computed)}; bare {bares_computed / len(ratios):.1f}"
        )
        if self.duckdb:
            mean = sum(job.seconds for job in self.duckdb) / len(self.duckdb)
            bare_mean = bares / len(self.bares)
            each = ", ".join(f"{job.seconds:.2f}" for job in self.duckdb)
            yield (
                f"DuckDB, same files and rows: {mean:.2f} s ({each}), {self.duckdb[-1].memory:,.0f} MiB; "
                f"the bare job of Spark takes {bare_mean / mean:.2f} times that"
            )


def _sums(rounds: list[list[float]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*rounds, strict=True)))


def by_duckdb(world: Installation, plan: Plan) -> duckdb_job.Job:
    """Have DuckDB compute a plan's rows from the files that the bare job reads; end if they are not as many as Spark's."""
    target = world.platform.products.target(plan.target)
    inputs = pinned_inputs(RunContext(world.platform, target, plan), plan.chunks)
    read = [inputs.source, *([] if inputs.look_back is None else [inputs.look_back])]
    files = sorted({file for frame in read for file in frame.inputFiles()})
    job = duckdb_job.run(plan, files, lineage(plan), world.folder / "duckdb")
    found = world.platform.lakehouse.table(plan.target).scan(selected_fields=("days_open", "breach_at")).to_arrow()
    published = (found.num_rows, pc.sum(found["days_open"]).as_py(), found.num_rows - found["breach_at"].null_count)
    if job.written != published:
        raise SystemExit(
            f"DuckDB has written {job.written}, published are {published}: the two computed different rows"
        )
    return job


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before those that are measured")
    parser.add_argument("--duckdb", action="store_true", help="have DuckDB compute the same (with PYTHONPATH=tests)")
    options = parser.parse_args()
    with installed(options) as world:
        memory = PeakMemory()
        rounds = Rounds(world, memory, with_duckdb=options.duckdb)
        record = world.run(world.manifest(demo.HISTORY, "history"))
        for number in range(options.warm_up):
            rounds.warm_up(number)
        memory.start()
        before = rounds.bare(0)
        for number in range(1, options.rounds + 1):
            before = rounds.measure(number, before)
        memory.stop.set()
        rows = sum(chunk.rows or 0 for chunk in world.platform.ledger.chunks("restatement-1"))
        chunks = len(record.plan.chunks)
    Console().print(f"{world.load.source_file}: {rows:,} rows in {chunks} chunks")
    Console().print(rounds.table)
    for line in (*rounds.told(), memory.in_words()):
        Console().print(line)


@contextmanager
def _parts() -> Iterator[dict[str, float]]:
    """Yield what each part took, by wrapping the functions the assets call."""
    named = [
        (executor, "compute_batch"),
        (judging, "run_gates"),
        (judging, "_run_verdicts"),
        (publication, "bundle_files"),
    ]
    kept = [getattr(module, name) for module, name in named]
    took = {name: 0.0 for _, name in named}

    def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with timed() as seconds:
                result = function(*arguments, **options)
            took[name] += seconds[0]
            return result

        return call

    for (module, name), function in zip(named, kept, strict=True):
        setattr(module, name, telling(name, function))
    try:
        yield took
    finally:
        for (module, name), function in zip(named, kept, strict=True):
            setattr(module, name, function)


if __name__ == "__main__":
    main()
