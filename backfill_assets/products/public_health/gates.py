"""Run-level gates of the public health tables: that days are whole, and that what accumulates does not fall."""

from __future__ import annotations

from typing import Any

from backfill_assets.declarations.standard.series import monotonic_gate
from backfill_assets.declarations.tallies import Tally
from backfill_assets.declarations.target import Finding, Level, Reconciliation, ReconciliationContext
from backfill_assets.products.public_health.regions import REGIONS_OF_A_REPORT

_ROWS = Tally()


def _days_are_whole(context: ReconciliationContext) -> Finding:
    """Hold each day's rows against the regions there are; a day of which there is no report has none."""
    counted = {chunk: one.rows for chunk, one in sorted(context.tallies.computed(_ROWS).items())}
    failing: list[dict[str, Any]] = [
        {"chunk": chunk, "expected": REGIONS_OF_A_REPORT, "found": rows}
        for chunk, rows in counted.items()
        if rows not in {0, REGIONS_OF_A_REPORT}
    ]
    empty = sum(rows == 0 for rows in counted.values())
    summary = f"{len(counted) - empty - len(failing):,} day(s) have {REGIONS_OF_A_REPORT} regions, {empty:,} none"
    if failing:
        summary += f", and {len(failing):,} another number"
    return Finding(
        not failing,
        summary,
        {"days": len(counted), "empty": empty},
        failing[:10],
        compared=len(counted),
        disagreeing=len(failing),
        slices=failing,
    )


DAYS_ARE_WHOLE = Reconciliation(
    "days_have_every_region",
    Level.STATE,
    "Each day has a row for each region, or none where there is no report of it.",
    _days_are_whole,
    tallies=(_ROWS,),
)
CASES_NEVER_FALL = monotonic_gate("total_cases", ("region_code",), tolerated=1_000.0, days_around=7, asks=True)
"""Cases are counted since the beginning. Smaller corrections downwards are frequent; of one that takes back more, an owner is asked: of the
real reports there are two."""
DEATHS_NEVER_FALL = monotonic_gate("deaths", ("region_code",), tolerated=100.0, days_around=7, asks=True)
ALL = (DAYS_ARE_WHOLE, CASES_NEVER_FALL, DEATHS_NEVER_FALL)
