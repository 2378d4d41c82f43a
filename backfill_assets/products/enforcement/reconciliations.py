"""What must agree once every chunk of a run is staged: records, totals, outcomes, and the change against history.

They recompute clocks from the whole source in their own way (no warm-up, no cutting, no days), so that a mistake in the
transform's is not repeated here; only what a day and a deadline is they share with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.products.enforcement.transforms import CALENDAR, DAY_OF, RULES, local_date, with_deadline
from backfill_assets.target import Finding, Level, Reconciliation, ReconciliationContext

SAMPLE = 20
ROW_CHANGE = "row_change_percent"
BREACH_CHANGE = "breach_change_percent"
TOLERANCES = {ROW_CHANGE: 20.0, BREACH_CHANGE: 20.0}
PENALTY = "Add penalty"


def _clocks(context: ReconciliationContext) -> DataFrame:
    """One row per case and clock, expected and found side by side; computed once for the gates that share it.

    Expected, from the source: `expected_on` (first start), `deadline`, `breached` (no stop before the deadline) and
    `penalty_on` (local day of the penalty: a fact of the world, local whatever the run takes for a day). Found, from
    the staged rows: `started_on` and, where its last row is staged, `ended_as` and `breach_on`.
    """
    expected = _expected(context)
    ends = context.staged.where("business_date = started_on OR sla_state <> 'RUNNING'")
    is_last = F.col("sla_state") != "RUNNING"
    found = ends.groupBy("case_id", "clock").agg(
        F.first("jurisdiction").alias("found_in"),
        F.min(F.when(F.col("business_date") == F.col("started_on"), F.col("started_on"))).alias("started_on"),
        F.max(F.when(is_last, F.col("sla_state"))).alias("ended_as"),
        F.max(F.when(is_last, F.col("breach_on"))).alias("breach_on"),
    )
    return expected.join(found, ["case_id", "clock"], "full_outer")


def _expected(context: ReconciliationContext) -> DataFrame:
    rules = context.transform.references[RULES]
    day_of = DAY_OF[context.transform.version]
    used = F.array_distinct(F.flatten(F.collect_list(F.array_append("stop_activities", F.col("start_activity")))))
    by_place = rules.groupBy("jurisdiction").agg(used.alias("used"), F.first("time_zone").alias("time_zone"))
    is_penalty = F.col("activity") == PENALTY
    events = (
        context.source.join(F.broadcast(by_place), "jurisdiction")
        .where(F.array_contains("used", F.col("activity")) | is_penalty)
        .select(
            "case_id",
            "jurisdiction",
            "activity",
            day_of(F.col("event_at"), F.col("time_zone")).alias("day"),
            F.when(is_penalty, local_date(F.col("event_at"), F.col("time_zone"))).alias("penalty_day"),
        )
    )
    cases = events.groupBy("case_id", "jurisdiction").agg(
        F.collect_set(F.struct("activity", "day")).alias("seen"), F.min("penalty_day").alias("penalty_on")
    )
    rule = F.struct("valid_from", "length", "unit", "stop_activities")
    newest_first = rules.groupBy("jurisdiction", "clock", "start_activity").agg(
        F.sort_array(F.collect_list(rule), asc=False).alias("rules")
    )
    started = (
        cases.join(F.broadcast(newest_first), "jurisdiction")
        .withColumn("started_on", F.expr("array_min(filter(seen, e -> e.activity = start_activity).day)"))
        .withColumn("rule", F.expr("get(filter(rules, r -> r.valid_from <= started_on), 0)"))
        .where("rule IS NOT NULL")
        .select("case_id", "jurisdiction", "clock", "started_on", "seen", "penalty_on", "rule.*")
    )
    in_time = "e -> array_contains(stop_activities, e.activity) AND e.day >= started_on AND e.day < breach_on"
    return with_deadline(started, rules, context.transform.references[CALENDAR]).select(
        "case_id",
        "clock",
        "jurisdiction",
        F.col("started_on").alias("expected_on"),
        F.col("breach_on").alias("deadline"),
        (~F.expr(f"exists(seen, {in_time})")).alias("breached"),
        "penalty_on",
    )


def every_started_case_is_present(context: ReconciliationContext) -> Finding:
    """Record: each case and clock that starts in the publish range has its first row, and no other has one."""
    scope = context.transform.publish_range
    in_range = F.col("expected_on").between(scope.start, scope.end)
    expected_on = F.when(in_range, F.col("expected_on"))
    clocks = context.shared("clocks", _clocks).withColumn("expected_on", expected_on)
    wrong = ~F.col("expected_on").eqNullSafe(F.col("started_on"))
    counted = clocks.agg(F.count("expected_on").alias("expected"), F.count_if(wrong).alias("wrong")).collect()[0]
    shown = clocks.where(wrong).select("case_id", "clock", "expected_on", "started_on").orderBy("case_id", "clock")
    return Finding(
        counted["wrong"] == 0,
        f"{counted['expected']:,} clocks started in the range; {counted['wrong']:,} are missing, extra or on another day",
        {"expected": counted["expected"], "wrong": counted["wrong"]},
        _sample(shown) if counted["wrong"] else [],
    )


def breach_totals_agree(context: ReconciliationContext) -> Finding:
    """State: breaches by jurisdiction and month, recomputed without days, equal those the chunk gates counted."""
    scope = context.transform.publish_range
    recomputed = (
        context.shared("clocks", _clocks)
        .where(F.col("breached") & F.col("deadline").between(scope.start, scope.end))
        .groupBy("jurisdiction", F.date_format("deadline", "yyyy-MM").alias("month"))
        .count()
        .collect()
    )
    expected = {(row["jurisdiction"], row["month"]): row["count"] for row in recomputed}
    found: dict[tuple[str, str], int] = defaultdict(int)
    for row in context.measures:
        if row["sla_state"] == "BREACHED":
            found[row["jurisdiction"], row["chunk"][:7]] += row["rows"]
    everywhere = expected.keys() | found.keys()
    differing = sorted(key for key in everywhere if expected.get(key, 0) != found.get(key, 0))
    sample = [
        {"jurisdiction": key[0], "month": key[1], "recomputed": expected.get(key, 0), "staged": found.get(key, 0)}
        for key in differing[:SAMPLE]
    ]
    return Finding(
        not differing,
        f"{sum(expected.values()):,} breaches recomputed, {sum(found.values()):,} staged; "
        f"{len(differing)} of {len(everywhere)} jurisdiction-months differ",
        {"recomputed": sum(expected.values()), "staged": sum(found.values()), "differing": len(differing)},
        sample,
    )


def payment_breaches_are_penalties(context: ReconciliationContext) -> Finding:
    """Outcome: a PAYMENT deadline falls on the local day the penalty was really added, where the log has penalties.

    A deadline that was met may have a penalty all the same (the payment was short); its day must be right, too. A
    breach without a penalty is wrong in a jurisdiction that adds penalties, up to the last day the source knows.
    """
    clocks = context.shared("clocks", _clocks)
    adding = [
        row["jurisdiction"]
        for row in clocks.where("penalty_on IS NOT NULL").select("jurisdiction").distinct().collect()
    ]
    ends = clocks.where((F.col("clock") == "PAYMENT") & F.col("ended_as").isNotNull())
    known = (F.col("breach_on") <= F.lit(context.source_last_day.date())) & F.col("found_in").isin(adding)
    missing = (F.col("ended_as") == "BREACHED") & F.col("penalty_on").isNull() & known
    wrong = missing | F.coalesce(F.col("penalty_on") != F.col("breach_on"), F.lit(False))
    counted = ends.agg(F.count("penalty_on").alias("compared"), F.count_if(wrong).alias("wrong")).collect()[0]
    shown = ends.where(wrong).select("case_id", "found_in", "ended_as", "breach_on", "penalty_on").orderBy("case_id")
    return Finding(
        counted["wrong"] == 0,
        f"{counted['compared']:,} PAYMENT deadlines compared with penalties; {counted['wrong']:,} on another day or missing",
        {"compared": counted["compared"], "wrong": counted["wrong"], "jurisdictions": sorted(adding)},
        _sample(shown) if counted["wrong"] else [],
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
    return [
        {name: None if value is None else str(value) for name, value in row.asDict().items()}
        for row in frame.limit(SAMPLE).collect()
    ]


ALL = (
    Reconciliation(
        "every_started_case_is_present",
        Level.RECORD,
        "Each case and clock that starts in the publish range has its first row, and no other has one.",
        every_started_case_is_present,
    ),
    Reconciliation(
        "breach_totals_agree",
        Level.STATE,
        "Breaches by jurisdiction and month, recomputed from the source, equal the staged ones.",
        breach_totals_agree,
    ),
    Reconciliation(
        "payment_breaches_are_penalties",
        Level.OUTCOME,
        "PAYMENT deadlines fall on the local day on which the penalty was added, where the log has penalties.",
        payment_breaches_are_penalties,
    ),
    Reconciliation(
        "change_within_tolerance",
        Level.CHANGE,
        "Rows and breaches changed against the accepted version by no more than the manifest tolerates.",
        change_within_tolerance,
    ),
)
