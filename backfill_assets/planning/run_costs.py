"""What a planned run is estimated to take and to cost, and whether that is within its limits.

Put here what is looked up for it: recorded runs of the same transform, cores and prices of the installation. How it is reckoned is
`manifests.costs`'.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.launches import stretches_of
from manifests.costs import RunCosts, estimate, in_time, in_usd
from manifests.errors import PlanRefused, Problem
from manifests.estimates import Estimate
from manifests.model import Mode
from manifests.plan import Plan
from resources.settings import DEFAULT_MASTER, Settings

_LOCAL = re.compile(r"local(?:\[(?P<cores>[0-9]+|\*)(?:,.*)?\])?")


def with_costs(platform: Platform, plan: Plan) -> Plan:
    """Return a plan with what it is estimated to take, where that is asked for or can be said.

    Raises:
        PlanRefused: if it would take longer, or cost more, than its manifest allows; or nobody could say what it costs.
    """
    if plan.mode is Mode.RECONCILIATION:  # it computes nothing
        return plan
    if plan.mode is Mode.LIVE and (plan.pace is None or plan.pace.cost_usd is None):  # nobody waits for a figure
        return plan
    found = platform.ledger.recorded(plan.target, plan.transform_version, but=plan.run_id)
    prices = platform.settings.prices if platform.settings.prices.are_given else None
    limited = plan.pace is not None and (plan.pace.duration_minutes is not None or plan.pace.cost_usd is not None)
    if not (found or prices is not None or limited):
        return plan
    reads = batches_read(plan, platform.products.target(plan.target))
    costs = estimate(reads.rows, reads.bytes, found, cores_of(platform.settings, plan.mode), prices)
    if problems := _problems(plan, costs):
        raise PlanRefused(problems)
    return replace(plan, costs=costs)


def batches_read(plan: Plan, target: TargetTable) -> Estimate:
    """Return what the batches of a plan read, each its own part and what is earlier: files that several share count for each."""
    if plan.compaction is not None:  # which reads the files that it rewrites
        rewritten = plan.compaction.chunks
        return Estimate(0, sum(one.rows for one in rewritten), sum(one.bytes for one in rewritten))
    launches = _launches(plan, target)
    before = plan.look_back or Estimate(0, 0, 0)
    times = sorted({(one.start, one.hour or 0) for one in plan.chunks})
    gone = {time: number / len(times) for number, time in enumerate(times)}
    rows = size = 0
    for batch in [batch for own in launches for batch in plan.batches(own)]:
        own_times = {(one.start, one.hour or 0) for one in batch}
        share, earlier = len(own_times) / len(times), gone[min(own_times)] if plan.look_back is not None else 0
        rows += max(*(one.reads.rows for one in batch), round(plan.reads.rows * share))
        size += max(*(one.reads.bytes for one in batch), round(plan.reads.bytes * share))
        rows += before.rows + round(plan.reads.rows * earlier)
        size += before.bytes + round(plan.reads.bytes * earlier)
    further = [one.reads for one in plan.sources if not one.for_gates] * len(launches)
    return Estimate(0, rows + sum(one.rows for one in further), size + sum(one.bytes for one in further))


def _launches(plan: Plan, target: TargetTable) -> list[frozenset[str] | None]:
    """Return the chunks that each launch of a plan takes, of a table that is divided beside time; None stands for all."""
    if len({chunk.part for chunk in plan.chunks}) == 1:
        return [None]
    return [frozenset(chunk.key for chunk in own) for own in stretches_of(target, plan.chunks)]


def cores_of(settings: Settings, mode: Mode) -> int | None:
    """Return how many cores the sessions of a mode compute with, by the settings; None where those do not say."""
    spark = settings.spark | settings.spark_by_mode.get(mode, {})
    local = _LOCAL.fullmatch(spark.get("spark.master", DEFAULT_MASTER))
    if local is not None and not settings.server_of(mode):  # of somebody else's server no master is set here
        cores = local["cores"] or "1"
        return os.cpu_count() if cores == "*" else int(cores) or None
    if (most := spark.get("spark.cores.max", "")).isdigit() and int(most):
        return int(most)
    executors, each = spark.get("spark.executor.instances", ""), spark.get("spark.executor.cores", "")
    # none at all says nothing: it would make computing free
    return int(executors) * int(each) or None if executors.isdigit() and each.isdigit() else None


def _problems(plan: Plan, costs: RunCosts) -> list[Problem]:
    pace, problems = plan.pace, []
    if pace is None:
        return []
    if pace.cost_usd is not None and (costs.prices is None or costs.usd_of(0, 0, 0) is None):
        what = "no prices are set" if costs.prices is None else "how many cores compute is not known"
        problems.append(
            Problem(
                f"safety.maxCostUsd is {in_usd(pace.cost_usd)}, and {what}",
                "what a run costs is reckoned from the installation's prices and cores",
                "set `prices` in backfill.toml (docs/deployment.md), and `spark.cores.max` where the master is no local one",
            )
        )
    said = f"learned from {', '.join(costs.learned_from[:3])}" + (", ..." if len(costs.learned_from) > 3 else "")  # noqa: PLR2004
    fix = "narrow the publish range, or raise the limit if the figure is right"
    if pace.duration_minutes is not None and costs.seconds is not None and costs.seconds > 60 * pace.duration_minutes:
        what = f"the run would compute for about {in_time(costs.seconds)} ({said})"
        problems.append(Problem(what, f"safety.maxDurationMinutes is {pace.duration_minutes:,}", fix))
    usd = costs.usd_of(0, costs.bytes, 0) if costs.usd is None else costs.usd
    if pace.cost_usd is not None and usd is not None and usd > pace.cost_usd:
        what = f"the run would cost about ${in_usd(usd)} ({said})"
        if costs.usd is None:
            what = f"reading alone would cost about ${in_usd(usd)}, and no run on record says what computing costs"
        problems.append(Problem(what, f"safety.maxCostUsd is {in_usd(pace.cost_usd)}", fix))
    return problems
