"""What MERGE_BY_KEY of 1% of the keys costs, as a ratio against a bare Spark join-and-write of the same files.

    python -m benchmarks.merge [--events LOG] [--cases N] [--rounds 3] [--percent 1]

The bare job reads the files that hold merged keys, takes those keys' rows out by a broadcast anti join, adds the
computed rows (which are there already: it computes nothing) and writes one sorted zstd file a chunk. The merge is the
whole run from its plan to its publication: computing the rows, copying the files, gating, Dagster's events, the commit.
Both run in one warm process, in turn, each once unmeasured first. Each merge is rolled back, which is timed as well.
"""

from __future__ import annotations

import shutil

from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

from backfill_assets.cli import demo
from backfill_assets.installation import Platform
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.publication.undoing import rollback
from benchmarks.installation import PeakMemory, installed, log_options, seconds_of, timed
from resources.ledger.facade import RunRecord


def bare(platform: Platform, record: RunRecord) -> None:
    """Join and write: today's files without the merged keys, and the computed rows, sorted, one file a chunk."""
    plan, target = record.plan, platform.products.target(record.target)
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


def main() -> None:
    """Run the benchmark."""
    parser = log_options(__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--percent", type=float, default=1.0)
    options = parser.parse_args()
    with installed(options) as world:
        platform = world.platform
        history = world.run(world.manifest(demo.RESTATEMENT, "history", validation={}, referenceData=[]))
        table = platform.lakehouse.table(history.target)
        total = platform.lakehouse.total_rows(history.target)
        everyone = sorted(set(table.scan(selected_fields=("case_id",)).to_arrow()["case_id"].unique().to_pylist()))
        chosen = everyone[:: max(1, round(100 / options.percent))]
        way = {"publishMode": "MERGE_BY_KEY", "merge": {"entities": chosen}}
        shown = Table("round", "bare (s)", "plan to published (s)", "ratio", "publication (s)", "rollback (s)")
        memory = PeakMemory()
        for number in range(options.rounds + 1):
            with timed() as whole:
                record = world.run(
                    world.manifest(demo.RESTATEMENT, f"merge-{number}", target=way, validation={}, referenceData=[])
                )
            with timed() as alone:
                bare(platform, record)
            shutil.rmtree(world.folder / "warehouse" / "bare")
            (entry,) = platform.ledger.publications(record.run_id)
            commit = seconds_of(entry)
            with timed() as back:
                rollback(platform, record.run_id)
            if number == 0:
                memory.start()
                continue
            seconds = [alone[0], whole[0], whole[0] / alone[0], commit, back[0]]
            shown.add_row(str(number), *(f"{value:.2f}" for value in seconds))
        memory.stop.set()
        chunks = platform.ledger.chunks(record.run_id)
        files = platform.lakehouse.files_by_chunk(
            history.target, None, chunk_scopes(platform.products.target(history.target), history.plan.chunks)
        )
    keys = sum(chunk.rows or 0 for chunk in chunks)
    copied = sum(len(chunk.replaced) for chunk in chunks)
    console = Console()
    console.print(f"{world.load.source_file}: {total:,} rows; merged {keys:,} keys of {len(chosen):,} cases")
    console.print(f"{copied} of {sum(map(len, files.values()))} files copied: those that hold merged keys")
    console.print(shown)
    console.print(f"peak memory of all processes: {memory.peak:,.0f} MiB (proportional set size)")


if __name__ == "__main__":
    main()
