"""The gate of rows of the future: how many were left out of each source.

Put here what is counted where a target declares that such rows are not read. Leaving them out is `staging.compute`'s; what is
refused for them already when a run is planned, `manifests.timeliness`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.target import Finding
from backfill_assets.run_context import RunContext


def future_rows_finding(run: RunContext, sources: Mapping[str, DataFrame]) -> Finding:
    """Count the rows of the future up to the end of the plan's read: `sources` have every row up to there, by table name."""
    plan, columns = run.plan, run.target.every_source
    newest: dict[str, date | None] = {plan.source: plan.newest} | {one.table: one.newest for one in plan.sources}
    counts = {
        table: sources[table].where(F.col(columns[table]) > F.lit(last)).count()
        for table, last in newest.items()
        if last is not None
    }
    said = ", ".join(f"{count:,} of {table}" for table, count in counts.items())
    return Finding(True, f"rows with a time after their snapshot's commit were left out: {said}", {"left_out": counts})
