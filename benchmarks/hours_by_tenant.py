"""What a run over many small chunks costs: a table of three sources, by hour and tenant, from plan to published, beside the bare job.

    python -m benchmarks.hours_by_tenant [--days 4] [--tenants 20] [--readings 10] [--profile PHASE]

Chunks are 24 x days x tenants. Prints the seconds and the processor seconds of each phase, whole and for each chunk, and how much
of it is left when the bare job (the same transform, one file a chunk, in the same session) is taken off. `--profile` prints where
the driver's time of one phase goes: plan, stage, gates or publish.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets.gates.judging import gate_chunks, gate_run
from backfill_assets.installation import Platform
from backfill_assets.planning.resolve import plan_run
from backfill_assets.publication.publisher import publish
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import pinned_inputs, transform_context
from backfill_assets.staging.executor import stage_chunks
from backfill_assets.staging.rows import lineage
from benchmarks.installation import timed
from benchmarks.metering import FIRST, READINGS, USAGE, opened
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


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=4)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--readings", type=int, default=10, help="readings of an hour of a tenant")
    parser.add_argument("--profile", choices=["plan", "stage", "gates", "publish"], help="print where its time goes")
    parser.add_argument("--runs", type=int, default=2, help="runs over all of it, one after the other")
    parser.add_argument("--plan-only", action="store_true", help="plan, and no more")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hours-by-tenant-"))
    table = Table("phase", "s", "CPU s", "ms a chunk", "CPU ms a chunk")
    try:
        platform = opened(folder, options.tenants, options.days, options.readings)
        chunks = 24 * options.days * options.tenants

        @contextmanager
        def phase(name: str) -> Iterator[None]:
            profile = cProfile.Profile() if options.profile == name else None
            with timed() as took:
                if profile is not None:
                    profile.enable()
                yield
                if profile is not None:
                    profile.disable()
            table.add_row(
                name, *(f"{value:.2f}" for value in took), *(f"{1000 * value / chunks:.2f}" for value in took)
            )
            if profile is not None:
                pstats.Stats(profile).sort_stats("cumulative").print_stats(70)

        for run_id in [f"run-{number}" for number in range(options.runs)]:
            contract = manifest_from(
                {
                    "runId": run_id,
                    "kind": "RESTATEMENT",
                    "requestedBy": "ana",
                    "reason": "a reason that is long enough",
                    "source": {"table": READINGS},
                    "transform": {"name": "usage", "version": "1.0.0"},
                    "target": {
                        "table": USAGE,
                        "publishRange": {"start": FIRST, "end": FIRST + timedelta(days=options.days - 1)},
                    },
                    "development": True,
                }
            )
            with phase("plan"):
                record = plan_run(platform, contract)
            if options.plan_only:
                break
            with phase("bare"):
                bare(platform, record.plan)
            platform.ledger.decide(
                run_id, approve=True, by="bob", comment="", self_approval=False, plan_hash=record.plan_hash
            )
            with phase("stage"):
                stage_chunks(platform, run_id, [chunk.key for chunk in record.plan.chunks])
            with phase("gates"):
                gate_chunks(platform, run_id)
                gate_run(platform, run_id)
            with phase("publish"):
                publish(platform, run_id)
        rows = chunks * options.readings
        Console().print(
            f"{chunks:,} chunks of {options.readings} rows ({rows:,}), {options.runs} runs over all of them"
        )
        Console().print(table)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
