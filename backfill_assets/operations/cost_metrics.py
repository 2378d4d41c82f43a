"""Metrics of what runs take and cost: estimated, and so far.

Put here what is exposed of it; how it is reckoned is `manifests.costs`', and every other metric `metrics`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from resources.ledger.facade import Ledger
from resources.ledger.figures import RunFigures


def families(run: Sequence[str]) -> list[Metric]:
    """Return the metrics, each with the labels of a run, without values."""
    estimated = "absent where no run of the transform was on record"
    return [
        GaugeMetricFamily(
            "backfill_estimated_seconds", f"Seconds of computing that the plan estimated; {estimated}.", labels=run
        ),
        GaugeMetricFamily(
            "backfill_core_seconds",
            "Seconds of a run's attempts that have ended, whatever became of them, times the cores of its plan.",
            labels=run,
        ),
        GaugeMetricFamily(
            "backfill_estimated_core_seconds", f"Core-seconds that the plan estimated; {estimated}.", labels=run
        ),
        GaugeMetricFamily(
            "backfill_cost_usd", "What a run has cost so far, by the prices of its plan, in US dollars.", labels=run
        ),
        GaugeMetricFamily(
            "backfill_estimated_cost_usd", f"What the plan estimated that the run costs; {estimated}.", labels=run
        ),
    ]


def add_costs(made: Mapping[str, Any], ledger: Ledger, runs: Sequence[RunFigures]) -> None:
    """Add what is known of runs; what is not is left out, and never 0."""
    for run_id, costs in ledger.costs([run.run_id for run in runs]).items():
        (run,) = (one for one in runs if one.run_id == run_id)
        labels, done = (run_id, run.table, run.mode), ledger.taken(run_id)
        core_seconds = None if costs.cores is None else done.seconds * costs.cores
        values = {
            "backfill_estimated_seconds": costs.seconds,
            "backfill_estimated_core_seconds": costs.core_seconds,
            "backfill_estimated_cost_usd": costs.usd,
            "backfill_core_seconds": core_seconds if done.seconds else None,
            "backfill_cost_usd": costs.usd_of(done.seconds, done.charged, done.written) if done.seconds else None,
        }
        for name, value in values.items():
            if value is not None:
                made[name].add_metric(labels, value)
