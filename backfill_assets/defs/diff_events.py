"""A recorded diff as Dagster shows it: metadata of the staged asset and of the publication.

Put here what Dagster is told. What is in a diff is `review.diff`'s; a recorded one is shown from its summary alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from backfill_assets.defs.launched_by import RUN_TAG
from backfill_assets.defs.staging import asset_key
from backfill_assets.installation import Platform
from backfill_assets.review.diff import diff_summary
from backfill_assets.review.markdown import table
from backfill_assets.review.wording import amount, changes_of, key_of_row, not_shown, within_tolerances
from manifests.plan import Plan


def metadata(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded diff as metadata of an asset."""
    names = ("column", "changed", "before", "after", "delta")
    columns = [[_cell(column[name]) for name in names] for column in summary["columns"]]
    chunk_names = ("chunk", "added", "removed", "changed", "unchanged")
    chunks = [[_cell(chunk[name]) for name in chunk_names] for chunk in summary["chunks"]]
    rows = [
        [row["column"], row["kind"], amount(row), row["chunk"], key_of_row(row), changes_of(row)]
        for row in summary["largest"]
    ]
    found: dict[str, Any] = {
        "run": summary["run_id"],
        "rows added": summary["added"],
        "rows removed": summary["removed"],
        "rows changed": summary["changed"],
        "rows unchanged": summary["unchanged"],
        "changes by column": dg.MetadataValue.md(table(names, columns)),
        "changes by chunk": dg.MetadataValue.md(table(chunk_names, chunks)),
        "largest changes": dg.MetadataValue.md(table(("column", "kind", "by", "chunk", "key", "what changed"), rows)),
    }
    if summary.get("within"):
        found["within tolerance"] = within_tolerances(summary)
    if summary.get("concealed"):
        found["rows not shown"] = not_shown(summary["concealed"])
    if kept := summary.get("changes_table"):
        found["changed rows"] = f"{kept['rows']:,} in {kept['table']}, snapshot {kept['snapshot_id']}"
    return found


def _cell(value: object) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def report(platform: Platform, instance: dg.DagsterInstance, plan: Plan, summary: Mapping[str, Any]) -> None:
    """Show a diff on the staged asset, and on the partition of the run that its publication is."""
    target = platform.products.target(plan.target)
    shown = metadata(summary)
    tags = {RUN_TAG: plan.run_id}
    for event in (
        dg.AssetObservation(asset_key(target.name), description=f"diff of {plan.run_id}", metadata=shown, tags=tags),
        dg.AssetObservation(asset_key(f"{target.name}_published"), partition=plan.run_id, metadata=shown, tags=tags),
    ):
        instance.report_runless_asset_event(event)


def of_run(platform: Platform, run_id: str) -> dict[str, Any]:
    """Return the recorded diff of a run as metadata of its publication; empty if none was made."""
    summary = diff_summary(platform, run_id)
    return {} if summary is None else {f"diff: {name}": value for name, value in metadata(summary).items()}
