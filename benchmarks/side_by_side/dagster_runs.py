"""One Dagster run a partition: an asset with monthly partitions, and a check that blocks; each run in a process of its own.

    DAGSTER_HOME=... python -m benchmarks.side_by_side.dagster_runs NAME FILES TABLE VERSION CALENDAR MONTH...

The partitions are run one after the other, since each run has a Spark session of its own and takes both cores. As a backfill does that
is executed again from failure, partitions that have succeeded under NAME are left out. Prints a line for each run.
"""
# annotations are not postponed here: Dagster reads them

import subprocess
import sys
from pathlib import Path

import dagster as dg
import polars as pl

from benchmarks.side_by_side.script import restate

PARTITIONS = dg.MonthlyPartitionsDefinition(start_date="1995-01-01", end_date="2031-01-01")
_ONE = "one-run"
STARTED = "run of partition"


class Restatement(dg.Config):
    """What a run reads and writes."""

    files: str
    table: str
    version: str
    calendar: str


@dg.asset(
    partitions_def=PARTITIONS,
    check_specs=[dg.AssetCheckSpec("rows_are_good", asset="case_sla_daily", blocking=True)],
)
def case_sla_daily(context: dg.AssetExecutionContext, config: Restatement) -> dg.MaterializeResult:  # type: ignore[type-arg]  # with an argument Dagster takes it for several outputs
    """Overwrite a partition, then read it back and check it, as an asset check does."""
    month = context.partition_key[:7]
    restate(Path(config.files), Path(config.table), config.version, config.calendar, [month])
    rows = pl.read_parquet(str(Path(config.table) / f"month={month}" / "*.parquet"), hive_partitioning=False)
    found = breaking(rows)
    return dg.MaterializeResult(
        metadata={"rows": rows.height},
        check_results=[dg.AssetCheckResult(passed=not any(found.values()), check_name="rows_are_good", metadata=found)],
    )


def breaking(rows: pl.DataFrame) -> dict[str, int]:
    """Return how many rows break each rule of the chunk gate."""
    day, breached = pl.col("business_date"), pl.col("sla_state") == "BREACHED"
    required = ("case_id", "clock", "jurisdiction", "started_on", "breach_on", "days_open", "sla_state")
    counted = rows.select(
        empty=pl.any_horizontal(pl.col(*required).is_null()).sum(),
        twice=pl.struct("case_id", "clock", "business_date").is_duplicated().sum(),
        unknown=(
            ~pl.col("clock").is_in(["NOTIFICATION", "PAYMENT", "APPEAL"])
            | ~pl.col("sla_state").is_in(["RUNNING", "MET", "BREACHED"])
            | (pl.col("days_open") < 0)
        ).sum(),
        outside=((day < pl.col("started_on")) | (day > pl.col("breach_on"))).sum(),
        miscounted=((day - pl.col("started_on")).dt.total_days() != pl.col("days_open")).sum(),
        misjudged=(((day == pl.col("breach_on")) != breached) | (pl.col("breach_at").is_not_null() != breached)).sum(),
    )
    return {name: int(value or 0) for name, value in counted.row(0, named=True).items()}


def one_run(name: str, files: str, table: str, version: str, calendar: str, month: str) -> bool:
    """Run one partition; return whether it has succeeded, its check included."""
    config = Restatement(files=files, table=table, version=version, calendar=calendar)
    with dg.DagsterInstance.get() as instance:
        result = dg.materialize(
            [case_sla_daily],
            partition_key=f"{month}-01",
            instance=instance,
            tags={"restatement": name},
            run_config=dg.RunConfig(ops={"case_sla_daily": config}),
            raise_on_error=False,
        )
        return result.success and all(one.passed for one in result.get_asset_check_evaluations())


def succeeded(name: str) -> set[str]:
    """Return the partitions that a run of this restatement has succeeded for."""
    wanted = dg.RunsFilter(tags={"restatement": name}, statuses=[dg.DagsterRunStatus.SUCCESS])
    with dg.DagsterInstance.get() as instance:
        return {run.tags["dagster/partition"] for run in instance.get_runs(wanted)}


def main() -> int:
    """Run the partitions that have not succeeded yet; return 1 if one has failed."""
    if sys.argv[1] == _ONE:
        name, files, table, version, calendar, month = sys.argv[2:]
        return int(not one_run(name, files, table, version, calendar, month))
    name, files, table, version, calendar, *months = sys.argv[1:]
    done = succeeded(name)
    failed = 0
    for month in months:
        if f"{month}-01" not in done:
            print(f"{STARTED} {month}", flush=True)
            words = [sys.executable, "-m", "benchmarks.side_by_side.dagster_runs", _ONE]
            failed += (
                subprocess.run([*words, name, files, table, version, calendar, month], check=False).returncode != 0
            )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
