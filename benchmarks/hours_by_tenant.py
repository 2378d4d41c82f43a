"""What a run over many small chunks costs: a table of three sources, by hour and tenant, from plan to published, beside the bare job.

    python -m benchmarks.hours_by_tenant [--days 4] [--tenants 20] [--readings 10] [--runs 2] [--per-job 240] [--without-bare]

Chunks are 24 x days x tenants. Each run is planned, approved, launched as `backfill run` launches it, and published. Prints the
seconds and the processor seconds of each part, whole and a chunk; the bare job is the same transform, one file a chunk, in the
same session, the bare commit PyIceberg's own of the same files to an empty table. `--profile` prints where the driver's time of one part goes. 90 days are 43,200 chunks, and a quarter of an hour.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from unittest import mock

from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets import execution
from backfill_assets.cli.launching import execute
from backfill_assets.defs.launch import initialise_instance, instance_at
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.announcements import Published
from backfill_assets.publication.publisher import publish
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import pinned_inputs, transform_context
from backfill_assets.staging.rows import lineage
from benchmarks.installation import timed
from benchmarks.metering import FIRST, READINGS, USAGE, opened
from manifests.model import RunManifest
from manifests.plan import Plan
from manifests.reading import manifest_from


def bare(platform: Platform, plan: Plan) -> None:
    """The bare job of a plan: read, transform, a file a chunk."""
    declared = platform.products.target(plan.target)
    run = RunContext(platform, declared, plan)
    inputs = pinned_inputs(run, plan.chunks)
    rows = declared.versions[plan.transform_version].function(inputs, transform_context(run, plan.chunks))
    constants = [F.lit(value).alias(name) for name, value in lineage(plan).items()]
    keyed = rows.select(
        "*", *constants, F.date_trunc("hour", "read_at").alias("chunk_hour"), F.col("tenant").alias("of")
    )
    folder = f"{platform.settings.catalog['warehouse']}/bare"
    keyed.repartition("chunk_hour", "of").write.partitionBy("chunk_hour", "of").parquet(folder)
    shutil.rmtree(folder.removeprefix("file://"))


def bare_commit(platform: Platform, number: int, part: Callable[[str], AbstractContextManager[None]]) -> None:
    """Commit the files that readers see to an empty table of the same columns and partitions, as PyIceberg does it by itself."""
    published = platform.lakehouse.table(USAGE)
    files = [task.file for task in published.scan().plan_files()]
    empty = platform.lakehouse.catalog.create_table(
        f"silver.bare_{number}", published.schema(), partition_spec=published.spec()
    )
    with part("bare commit"), empty.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)


def contract(run_id: str, days: int, per_job: int) -> RunManifest:
    """Return the manifest of a run over all chunks of the first days, so many a Spark job."""
    return manifest_from(
        {
            "runId": run_id,
            "kind": "RESTATEMENT",
            "requestedBy": "ana",
            "reason": "a reason that is long enough",
            "source": {"table": READINGS},
            "transform": {"name": "usage", "version": "1.0.0"},
            "target": {"table": USAGE, "publishRange": {"start": FIRST, "end": FIRST + timedelta(days=days - 1)}},
            "limits": {"maxChunksPerJob": per_job},
            "development": True,
        }
    )


@contextmanager
def profiled(wanted: bool) -> Iterator[None]:
    """Print where the time of the body goes, if that is wanted."""
    if not wanted:
        yield
        return
    with cProfile.Profile() as profile:
        yield
    pstats.Stats(profile).sort_stats("cumulative").print_stats(70)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--readings", type=int, default=10, help="readings of an hour of a tenant")
    parser.add_argument("--runs", type=int, default=2, help="runs over all of it, one after the other")
    parser.add_argument("--per-job", type=int, default=240, help="chunks of a Spark job")
    parser.add_argument("--without-bare", action="store_true", help="leave the bare job out")
    parser.add_argument("--plan-only", action="store_true", help="plan, and no more")
    parser.add_argument("--profile", choices=["plan", "run", "publication"], help="print where its time goes")
    options = parser.parse_args()
    chunks = 24 * options.days * options.tenants
    table = Table("part", "s", "CPU s", "ms a chunk", "CPU ms a chunk")

    def add(name: str, *seconds: float) -> None:
        table.add_row(name, *(f"{one:.2f}" for one in seconds), *(f"{1000 * one / chunks:.2f}" for one in seconds))

    @contextmanager
    def part(name: str) -> Iterator[None]:
        with timed() as took, profiled(name.endswith(options.profile or " ")):
            yield
        add(name, *took)

    def timed_publication(platform: Platform, run_id: str) -> Published:
        with part("of it publication"):
            return publish(platform, run_id)

    with tempfile.TemporaryDirectory(prefix="hours-by-tenant-") as folder:
        platform = opened(Path(folder), options.tenants, options.days, options.readings)
        initialise_instance(platform.settings)
        with instance_at(platform.settings) as instance:
            for number in range(options.runs):
                run_id = f"run-{number}"
                with part("plan"):
                    record = plan_run(platform, contract(run_id, options.days, options.per_job))
                if options.plan_only:
                    break
                if not options.without_bare:
                    with part("bare"):
                        bare(platform, record.plan)
                platform.ledger.decide(
                    run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
                )
                with part("run"), mock.patch.object(execution, "publish", timed_publication):
                    if not execute(platform, instance, run_id, (), progress=False):
                        raise SystemExit(f"{run_id}: {platform.ledger.run(run_id).state_reason}")
                bare_commit(platform, number, part)
    Console().print(f"{chunks:,} chunks of {options.readings} rows, {options.runs} run(s) over all of them")
    Console().print(table)


if __name__ == "__main__":
    main()
