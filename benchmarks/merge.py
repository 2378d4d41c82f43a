"""What MERGE_BY_KEY of 1% of the keys costs, as a ratio against a bare Spark join-and-write of the same files.

    python benchmarks/merge.py [--events LOG] [--cases N] [--rounds 3] [--percent 1]

The bare job reads the files that hold merged keys, takes those keys' rows out by a broadcast anti join, adds the
computed rows (which are there already: it computes nothing) and writes one sorted zstd file a chunk. The merge is the
whole run from its plan to its publication: computing the rows, copying the files, gating, Dagster's events, the commit.
Both run in one warm process, in turn, each once unmeasured first. Each merge is rolled back, which is timed as well.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from restatement import PeakMemory, _timed
from rich.console import Console
from rich.table import Table

from backfill_assets import demo
from backfill_assets.cli import execute
from backfill_assets.derivation import chunk_scopes
from backfill_assets.launch import announce_approval, initialise_instance, instance_at
from backfill_assets.loading import initialise, load_case_events
from backfill_assets.planning import plan_run
from backfill_assets.platform import Platform, open_platform, target_named
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.publication import rollback
from manifests.canonical import plain
from manifests.model import manifest_from
from resources.ledger import RunRecord
from resources.settings import load_settings


def bare(platform: Platform, record: RunRecord) -> None:
    """Join and write: today's files without the merged keys, and the computed rows, sorted, one file a chunk."""
    plan, target = record.plan, target_named(record.target)
    spark = platform.spark.session(plan.mode)
    chunks = platform.ledger.chunks(record.run_id)
    touched = [path for chunk in chunks for path in chunk.replaced]
    computed = spark.read.parquet(*(file.path for chunk in chunks for file in chunk.files))
    assert plan.merge is not None
    entities = spark.createDataFrame([(name,) for name in plan.merge.entities or ()], f"{target.entity} string")
    slots = spark.createDataFrame(
        [(chunk.start, number) for number, chunk in enumerate(plan.chunks)], "chunk_start date, slot int"
    )
    rest = spark.read.parquet(*touched).join(F.broadcast(entities), target.entity, "left_anti")
    rows = rest.unionByName(computed).withColumn("chunk_start", F.trunc(target.day_column, "MM"))
    placed = rows.join(F.broadcast(slots), "chunk_start").repartitionById(len(plan.chunks), F.col("slot"))
    folder = f"{platform.settings.catalog['warehouse']}/bare"
    placed.sortWithinPartitions(*target.key).drop("slot").write.partitionBy("chunk_start").parquet(folder)


def main() -> None:  # noqa: PLR0915 - a script, read from top to bottom
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=Path)
    parser.add_argument("--cases", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percent", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(home=Path(folder))
        initialise(Platform.of(settings))
        initialise_instance(settings)
        with open_platform(settings) as platform, instance_at(settings) as instance:
            load = enforcement.from_file(options.events) if options.events else enforcement.generated(options.cases, 1)
            load_case_events(platform, load, settings.quarantine_limit)
            scope = demo._months_of_source(platform)

            def run(run_id: str, **changes: Any) -> RunRecord:
                text = plain(demo._manifest(platform, demo.RESTATEMENT, scope).model_dump(mode="json", by_alias=True))
                text["target"] |= changes
                record = plan_run(
                    platform, manifest_from(text | {"runId": run_id, "validation": {}, "referenceData": []})
                )
                platform.ledger.decide(
                    run_id, approve=True, by="benchmark", comment="", self_approval=False, plan_hash=record.plan_hash
                )
                announce_approval(instance, record)
                if not execute(platform, instance, run_id, (), progress=False):
                    raise SystemExit(f"{run_id}: {platform.ledger.run(run_id).state_reason}")
                return platform.ledger.run(run_id)

            history = run("history")
            table = platform.lakehouse.table(history.target)
            total = int(table.current_snapshot().summary["total-records"])
            everyone = sorted(set(table.scan(selected_fields=("case_id",)).to_arrow()["case_id"].unique().to_pylist()))
            chosen = everyone[:: max(1, round(100 / options.percent))]
            shown = Table("round", "bare (s)", "plan to published (s)", "ratio", "publication (s)", "rollback (s)")
            memory = PeakMemory()
            for number in range(options.rounds + 1):
                with _timed() as whole:
                    record = run(f"merge-{number}", publishMode="MERGE_BY_KEY", merge={"entities": chosen})
                with _timed() as alone:
                    bare(platform, record)
                shutil.rmtree(Path(folder) / "warehouse" / "bare")
                (entry,) = platform.ledger.publications(record.run_id)
                commit = (entry["ended_at"] - entry["started_at"]).total_seconds()
                with _timed() as back:
                    rollback(platform, record.run_id)
                if number == 0:
                    memory.start()
                    continue
                seconds = [alone[0], whole[0], whole[0] / alone[0], commit, back[0]]
                shown.add_row(str(number), *(f"{value:.2f}" for value in seconds))
            memory.stop.set()
            chunks = platform.ledger.chunks(record.run_id)
            files = platform.lakehouse.files_by_chunk(
                history.target, None, chunk_scopes(target_named(history.target), history.plan.chunks)
            )
    keys = sum(chunk.rows or 0 for chunk in chunks)
    copied = sum(len(chunk.replaced) for chunk in chunks)
    console = Console()
    console.print(f"{load.source_file}: {total:,} rows; merged {keys:,} keys of {len(chosen):,} cases")
    console.print(f"{copied} of {sum(map(len, files.values()))} files copied: those that hold merged keys")
    console.print(shown)
    console.print(f"peak memory of all processes: {memory.peak:,.0f} MiB (proportional set size)")


if __name__ == "__main__":
    main()
