"""What a restatement costs: plan to published, as a ratio against the bare Spark job, in one warm process.

    python -m benchmarks.restatement [--events LOG] [--cases N] [--rounds 3] [--warm-up 2]

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
from benchmarks.installation import PeakMemory, installed, log_options, seconds_of, timed
from manifests.plan import Plan
from resources.ledger.transactions import system_clock as now


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


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2, help="rounds before those that are measured")
    parser.add_argument("--parts", action="store_true", help="print what each part of a restatement took")
    options = parser.parse_args()
    with installed(options) as world:

        def run_bare(number: int) -> list[float]:
            """Time the bare job of a restatement as it would be planned now: a new run id, a new run clock."""
            plan = preview(world.platform, world.manifest(demo.RESTATEMENT, f"bare-{number}"))
            with timed() as seconds:
                bare(world.platform, plan)
            shutil.rmtree(world.folder / "warehouse" / "bare")
            return seconds

        record = world.run(world.manifest(demo.HISTORY, "history"))
        for number in range(options.warm_up):
            run_bare(-number)
            world.run(world.manifest(demo.RESTATEMENT, f"warm-up-{number}"))
        memory = PeakMemory()
        memory.start()
        headings = ("bare job before", "and after", "to published", "ratio", "publication", "later")
        table = Table("round", *headings, caption="seconds")
        bares, wholes = [], []
        before, bare_computed = run_bare(0)
        bares_computed, wholes_computed = [], []
        for number in range(1, options.rounds + 1):
            began = now()
            with timed() as whole, _parts(options.parts):
                world.run(world.manifest(demo.RESTATEMENT, f"restatement-{number}"))
            (entry,) = world.platform.ledger.publications(f"restatement-{number}")
            commit = seconds_of(entry)
            published = commit + (entry.started_at - began).total_seconds()
            after, computed = run_bare(number)
            beside = (before + after) / 2
            seconds = (before, after, published, published / beside, commit, whole[0] - published)
            table.add_row(str(number), *(f"{value:.2f}" for value in seconds))
            bares.append(beside)
            wholes.append(published)
            bares_computed.append((bare_computed + computed) / 2)
            wholes_computed.append(whole[1])
            before, bare_computed = after, computed
        ratios = [mine / theirs for mine, theirs in zip(wholes, bares, strict=True)]
        memory.stop.set()
        rows = sum(chunk.rows or 0 for chunk in world.platform.ledger.chunks("restatement-1"))
        chunks = len(record.plan.chunks)
    Console().print(f"{world.load.source_file}: {rows:,} rows in {chunks} chunks")
    Console().print(table)
    Console().print(f"all rounds together: {sum(wholes) / sum(bares):.2f}; median of the rounds: {median(ratios):.2f}")
    ratios = [mine / theirs for mine, theirs in zip(wholes_computed, bares_computed, strict=True)]
    together = sum(wholes_computed) / sum(bares_computed)
    rounds_ = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    Console().print(
        f"processor seconds: {together:.2f} all rounds together; {rounds_}; bare {sum(bares_computed) / len(ratios):.1f}"
    )
    Console().print(f"peak memory of all processes: {memory.peak:,.0f} MiB (proportional set size)")


@contextmanager
def _parts(wanted: bool) -> Iterator[None]:
    """Print what each part took, by wrapping the functions the assets call."""
    if not wanted:
        yield
        return
    named = [
        (executor, "compute_batch"),
        (judging, "run_gates"),
        (judging, "_run_verdicts"),
        (publication, "bundle_files"),
    ]
    kept = [getattr(module, name) for module, name in named]

    def telling(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            with timed() as took:
                result = function(*arguments, **options)
            print(f"  {name}: {took[0]:.1f} s", flush=True)
            return result

        return call

    for (module, name), function in zip(named, kept, strict=True):
        setattr(module, name, telling(name, function))
    try:
        yield
    finally:
        for (module, name), function in zip(named, kept, strict=True):
            setattr(module, name, function)


if __name__ == "__main__":
    main()
