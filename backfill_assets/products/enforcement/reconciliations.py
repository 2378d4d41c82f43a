"""What must agree once every chunk of a run is staged: records, totals, outcomes, and the change against history.

Each recomputes from the source in its own way (joins and aggregates over clocks, never the transform's code for
states and days), so that a mistake in the transform is not repeated here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.products.enforcement.transforms import CALENDAR, DAY_OF, RULES, local_date, with_deadline, zones
from backfill_assets.target import Finding, Level, Reconciliation, ReconciliationContext

SAMPLE = 20
ROW_CHANGE = "row_change_percent"
BREACH_CHANGE = "breach_change_percent"
TOLERANCES = {ROW_CHANGE: 20.0, BREACH_CHANGE: 20.0}
PENALTY = "Add penalty"


def _days(context: ReconciliationContext) -> DataFrame:
    """Each event's day as the run's transform version sees it."""
    day_of = DAY_OF[context.transform.version]
    return context.source.join(F.broadcast(zones(context.transform.references[RULES])), "jurisdiction").select(
        "case_id", "jurisdiction", "activity", day_of(F.col("event_at"), F.col("time_zone")).alias("day"),
        local_date(F.col("event_at"), F.col("time_zone")).alias("local_day"),
    )


def _started(days: DataFrame, rules: DataFrame) -> DataFrame:
    """One row per case and clock that ever started, with the rule valid on that day."""
    starts = rules.select("jurisdiction", "clock", F.col("start_activity").alias("activity")).distinct()
    first = (
        days.join(F.broadcast(starts), ["jurisdiction", "activity"])
        .groupBy("case_id", "jurisdiction", "clock")
        .agg(F.min("day").alias("started_on"))
    )
    newest = rules.groupBy("jurisdiction", "clock").agg(
        F.sort_array(F.collect_list(F.struct("valid_from", "length", "unit", "stop_activities")), asc=False).alias("rules")
    )
    return (
        first.join(F.broadcast(newest), ["jurisdiction", "clock"])
        .withColumn("rule", F.expr("filter(rules, r -> r.valid_from <= started_on)[0]"))
        .where("rule IS NOT NULL")
        .select("case_id", "jurisdiction", "clock", "started_on", "rule.length", "rule.unit", "rule.stop_activities")
    )


def every_started_case_is_present(context: ReconciliationContext) -> Finding:
    """Record: each case and clock that starts in the publish range has its first row, and no other has one."""
    scope = context.transform.publish_range
    expected = (
        _started(_days(context), context.transform.references[RULES])
        .where(F.col("started_on").between(scope.start, scope.end))
        .select("case_id", "clock", F.col("started_on").alias("expected_on"))
    )
    found = context.staged.where("business_date = started_on").select("case_id", "clock", "started_on")
    compared = expected.join(found, ["case_id", "clock"], "full_outer")
    wrong = ~F.col("expected_on").eqNullSafe(F.col("started_on"))
    counted = compared.agg(F.count("expected_on").alias("expected"), F.count_if(wrong).alias("wrong")).collect()[0]
    sample = _sample(compared.where(wrong).orderBy("case_id", "clock")) if counted["wrong"] else []
    return Finding(
        counted["wrong"] == 0,
        f"{counted['expected']:,} clocks started in the range; {counted['wrong']:,} are missing, extra or on another day",
        {"expected": counted["expected"], "wrong": counted["wrong"]},
        sample,
    )


def breach_totals_agree(context: ReconciliationContext) -> Finding:
    """State: breaches by jurisdiction and month, recomputed without days, equal those the chunk gates counted."""
    scope = context.transform.publish_range
    rules = context.transform.references[RULES]
    days = _days(context)
    clocks = with_deadline(_started(days, rules), rules, context.transform.references[CALENDAR]).where(
        F.col("breach_on").between(scope.start, scope.end)
    )
    stops = days.select("case_id", "jurisdiction", F.col("activity").alias("stop"), F.col("day").alias("stop_day"))
    stopped = (
        clocks.withColumn("stop", F.explode("stop_activities"))
        .join(stops, ["case_id", "jurisdiction", "stop"])
        .where("stop_day >= started_on AND stop_day < breach_on")
        .select("case_id", "clock")
        .distinct()
    )
    recomputed = (
        clocks.join(stopped, ["case_id", "clock"], "left_anti")
        .groupBy("jurisdiction", F.date_format("breach_on", "yyyy-MM").alias("month"))
        .count()
        .collect()
    )
    expected = {(row["jurisdiction"], row["month"]): row["count"] for row in recomputed}
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in context.measures:
        if row["sla_state"] == "BREACHED":
            found[row["jurisdiction"], row["chunk"][:7]] += row["rows"]
    differing = sorted(key for key in expected.keys() | found.keys() if expected.get(key, 0) != found.get(key, 0))
    sample = [
        {"jurisdiction": place, "month": month, "recomputed": expected.get((place, month), 0), "staged": found[place, month]}
        for place, month in differing[:SAMPLE]
    ]
    return Finding(
        not differing,
        f"{sum(expected.values()):,} breaches recomputed, {sum(found.values()):,} staged; "
        f"{len(differing)} of {len(expected.keys() | found.keys())} jurisdiction-months differ",
        {"recomputed": sum(expected.values()), "staged": sum(found.values()), "differing": len(differing)},
        sample,
    )


def payment_breaches_are_penalties(context: ReconciliationContext) -> Finding:
    """Outcome: a PAYMENT deadline falls on the local day the penalty was really added, in jurisdictions that add them.

    The penalty is a fact of the world: its day is local whatever the transform version takes for a day.
    """
    penalties = (
        _days(context)
        .where(F.col("activity") == PENALTY)
        .groupBy("case_id", "jurisdiction")
        .agg(F.min("local_day").alias("penalty_on"))
    )
    where_added = penalties.select("jurisdiction").distinct()
    known_until = context.source_last_day.date()
    ends = (
        context.staged.where((F.col("clock") == "PAYMENT") & F.col("sla_state").isin("BREACHED", "MET"))
        .select("case_id", "jurisdiction", "sla_state", "breach_on")
        .join(F.broadcast(where_added), "jurisdiction", "left_semi")
        .join(penalties, ["case_id", "jurisdiction"], "left")
    )
    missing = (F.col("sla_state") == "BREACHED") & F.col("penalty_on").isNull() & (F.col("breach_on") <= F.lit(known_until))
    wrong = missing | (F.col("penalty_on") != F.col("breach_on"))
    counted = ends.agg(
        F.count_if(F.col("penalty_on").isNotNull()).alias("compared"), F.count_if(F.coalesce(wrong, F.lit(False))).alias("wrong")
    ).collect()[0]
    sample = _sample(ends.where(wrong).orderBy("case_id")) if counted["wrong"] else []
    return Finding(
        counted["wrong"] == 0,
        f"{counted['compared']:,} PAYMENT deadlines compared with penalties; {counted['wrong']:,} on another day or missing",
        {"compared": counted["compared"], "wrong": counted["wrong"]},
        sample,
    )


def change_within_tolerance(context: ReconciliationContext) -> Finding:
    """Change: rows and breaches against the accepted version, where there is one, within the manifest's tolerance."""
    comparable = {chunk for chunk, measures in context.accepted.items() if measures is not None}
    if not comparable:
        return Finding(True, "no accepted version to compare with", {"comparable_chunks": 0})
    new = _totals(row for row in context.measures if row["chunk"] in comparable)
    old = _totals(row for measures in context.accepted.values() for row in measures or ())
    details: dict[str, Any] = {"comparable_chunks": len(comparable)}
    passed, said = True, []
    for name, tolerance in ((("rows", ROW_CHANGE)), ("breaches", BREACH_CHANGE)):
        change = _percent(old[name], new[name])
        limit = context.tolerances[tolerance]
        passed &= abs(change) <= limit
        details[name] = {"accepted": old[name], "staged": new[name], "change_percent": round(change, 4), "limit": limit}
        said.append(f"{name} {old[name]:,} -> {new[name]:,} ({change:+.2f}%, limit {limit:g}%)")
    return Finding(passed, "; ".join(said), details)


def _totals(measures: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    totals = {"rows": 0, "breaches": 0}
    for row in measures:
        totals["rows"] += row["rows"]
        totals["breaches"] += row["rows"] if row["sla_state"] == "BREACHED" else 0
    return totals


def _percent(old: int, new: int) -> float:
    if old == 0:
        return 0.0 if new == 0 else 100.0
    return (new - old) * 100.0 / old


def _sample(frame: DataFrame) -> list[dict[str, Any]]:
    return [{name: None if value is None else str(value) for name, value in row.asDict().items()} for row in frame.limit(SAMPLE).collect()]


ALL = (
    Reconciliation(
        "every_started_case_is_present", Level.RECORD,
        "Each case and clock that starts in the publish range has its first row, and no other has one.",
        every_started_case_is_present,
    ),
    Reconciliation(
        "breach_totals_agree", Level.STATE,
        "Breaches by jurisdiction and month, recomputed from the source, equal the staged ones.",
        breach_totals_agree,
    ),
    Reconciliation(
        "payment_breaches_are_penalties", Level.OUTCOME,
        "PAYMENT deadlines fall on the local day on which the penalty was added, where the log has penalties.",
        payment_breaches_are_penalties,
    ),
    Reconciliation(
        "change_within_tolerance", Level.CHANGE,
        "Rows and breaches changed against the accepted version by no more than the manifest tolerates.",
        change_within_tolerance,
    ),
)
