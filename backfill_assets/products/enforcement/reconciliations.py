"""What must agree once every chunk of a run is staged: records, totals, outcomes, and the change against history.

They recompute clocks from the whole source in their own way (no warm-up, no cutting, no days), so that a mistake in the
transform's is not repeated here; only what a day and a deadline is they share with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import sqrt
from statistics import median
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.products.enforcement.transforms import CALENDAR, DAY_OF, RULES, local_date, with_deadline
from backfill_assets.target import Finding, Level, Reconciliation, ReconciliationContext

SAMPLE = 20
ROW_CHANGE = "row_change_percent"
BREACH_CHANGE = "breach_change_percent"
UNUSUAL_CHANGE = "unusual_change_percent"
UNUSUAL_COUNT = "unusual_change_breaches"
UNUSUAL_SPREAD = "unusual_change_spread"
TOLERANCES = {ROW_CHANGE: 20.0, BREACH_CHANGE: 20.0, UNUSUAL_CHANGE: 50.0, UNUSUAL_COUNT: 50.0, UNUSUAL_SPREAD: 6.0}
_HISTORY_MONTHS = 6
"""Months of its own history below which nothing can be said of what is usual for a slice."""
_MAD_TO_SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""
PENALTY = "Add penalty"
_CLOCK = ("case_id", "jurisdiction", "clock")
_CONDITIONS = ("misplaced", "recomputed", "penalised", "compared", "displaced", "unpenalised")
"""Of a clock: its first row is missing, extra or on another day; it breaches in range; it has a penalty; its penalty can be
compared with its deadline; they differ; its breach has no penalty."""


def _clocks(context: ReconciliationContext) -> DataFrame:
    """One row per case, jurisdiction and clock, expected and found side by side, and what is wrong with it.

    Expected, from the source: `expected_on` (first start, if in the publish range), `deadline`, `breached` (no stop
    before the deadline) and `penalty_on` (local day of the penalty: a fact of the world, local whatever the run takes
    for a day). Found, from the staged rows: `started_on` and, where its last row is staged, `breached_as` (whether it
    says BREACHED) and `breach_on`. The conditions are those of `_CONDITIONS`.
    """
    scope = context.transform.publish_range
    is_last = F.col("sla_state") != "RUNNING"
    found = context.staged.groupBy(*_CLOCK).agg(
        F.min(F.when(F.col("business_date") == F.col("started_on"), F.col("started_on"))).alias("started_on"),
        F.max(F.when(is_last, F.col("sla_state") == "BREACHED")).alias("breached_as"),
        F.max(F.when(is_last, F.col("breach_on"))).alias("breach_on"),
    )
    clocks = (
        _expected(context)
        .join(found.hint("shuffle_hash"), list(_CLOCK), "full_outer")
        .withColumn("expected_on", F.when(F.col("expected_on").between(scope.start, scope.end), F.col("expected_on")))
    )
    is_ended_payment = (F.col("clock") == "PAYMENT") & F.col("breached_as").isNotNull()
    is_known = F.col("breach_on") <= F.lit(context.source_last_day.date())
    return clocks.withColumns(
        {
            "misplaced": ~F.col("expected_on").eqNullSafe(F.col("started_on")),
            "recomputed": F.col("breached") & F.col("deadline").between(scope.start, scope.end),
            "penalised": F.col("penalty_on").isNotNull(),
            "compared": is_ended_payment & F.col("penalty_on").isNotNull(),
            "displaced": is_ended_payment & (F.col("penalty_on") != F.col("breach_on")),
            "unpenalised": is_ended_payment & F.col("breached_as") & F.col("penalty_on").isNull() & is_known,
        }
    )


def _expected(context: ReconciliationContext) -> DataFrame:
    """Every event once for each rule of a clock it matters to, and all else in one shuffle by case, clock and rule."""
    rules = context.transform.references[RULES]
    day_of = DAY_OF[context.transform.version]
    start, stops, penalty = F.col("start_activity"), F.col("stop_activities"), F.lit(PENALTY)
    matters = (
        rules.withColumn("activity", F.explode(F.array_distinct(F.concat(stops, F.array(start, penalty)))))
        .withColumn("starts", F.col("activity") == start)
        .withColumn("stops", F.array_contains(stops, F.col("activity")))
        .groupBy("jurisdiction", "activity")
        .agg(
            F.first("time_zone").alias("time_zone"),
            F.collect_list(F.struct("clock", "valid_from", "starts", "stops")).alias("for"),
        )
    )
    is_penalty = F.col("activity") == PENALTY
    instant, zone = F.col("event_at"), F.col("time_zone")
    events = (
        context.source.join(F.broadcast(matters), ["jurisdiction", "activity"])
        # days before the explosion: Spark parses the zone's name again for each row
        .select(
            "case_id",
            "jurisdiction",
            day_of(instant, zone).alias("day"),
            F.when(is_penalty, local_date(instant, zone)).alias("penalty_day"),
            "for",
        )
        .select("case_id", "jurisdiction", "day", "penalty_day", F.inline("for"))
    )
    first_start = F.min(F.when(F.col("starts"), F.col("day"))).over(Window.partitionBy(*_CLOCK, "valid_from"))
    since = Window.partitionBy("jurisdiction", "clock").orderBy("valid_from")
    ruled = rules.select(
        "jurisdiction", "clock", "length", "unit", "valid_from", F.lead("valid_from").over(since).alias("valid_until")
    )
    started = (
        events.withColumn("expected_on", first_start)
        .join(F.broadcast(ruled), ["jurisdiction", "clock", "valid_from"])
        .where("expected_on >= valid_from AND (valid_until IS NULL OR expected_on < valid_until)")
        .withColumn("started_on", F.col("expected_on"))
    )
    in_time = F.col("stops") & (F.col("day") >= F.col("expected_on")) & (F.col("day") < F.col("breach_on"))
    return (
        with_deadline(started, rules, context.transform.references[CALENDAR])
        .groupBy(*_CLOCK, "expected_on", F.col("breach_on").alias("deadline"))
        .agg((~F.bool_or(in_time)).alias("breached"), F.min("penalty_day").alias("penalty_on"))
    )


def _counts(context: ReconciliationContext) -> list[Row]:
    """Count all that the gates ask of clocks, in one job: by jurisdiction, and by month where it is of deadlines.

    A deadline that was met may have a penalty all the same (the payment was short); its day must be right, too. A
    breach without a penalty is wrong in a jurisdiction that adds penalties, up to the last day the source knows.
    """
    clocks = _clocks(context)
    month = F.when(F.col("recomputed"), F.date_format("deadline", "yyyy-MM"))
    judged = clocks.select("jurisdiction", month.alias("month"), "expected_on", *_CONDITIONS)
    counts = [F.count_if(F.col(name)).alias(name) for name in _CONDITIONS]
    return judged.groupBy("jurisdiction", "month").agg(F.count("expected_on").alias("expected"), *counts).collect()


def every_started_case_is_present(context: ReconciliationContext) -> Finding:
    """Record: each case and clock that starts in the publish range has its first row, and no other has one."""
    counts = context.shared("counts", _counts)
    expected, wrong = (sum(row[name] for row in counts) for name in ("expected", "misplaced"))
    return Finding(
        wrong == 0,
        f"{expected:,} clocks started in the range; {wrong:,} are missing, extra or on another day",
        {"expected": expected, "wrong": wrong},
        _sample(context, F.col("misplaced"), "expected_on", "started_on") if wrong else [],
    )


def breach_totals_agree(context: ReconciliationContext) -> Finding:
    """State: breaches by jurisdiction and month, recomputed without days, equal those the chunk gates counted."""
    counts = context.shared("counts", _counts)
    expected = {(row["jurisdiction"], row["month"]): row["recomputed"] for row in counts if row["recomputed"]}
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
    """Outcome: a PAYMENT deadline falls on the local day the penalty was really added, where the log has penalties."""
    counts = context.shared("counts", _counts)
    adding = sorted({row["jurisdiction"] for row in counts if row["penalised"]})
    compared, displaced = (sum(row[name] for row in counts) for name in ("compared", "displaced"))
    missing = sum(row["unpenalised"] for row in counts if row["jurisdiction"] in adding)
    wrong = displaced + missing
    condition = F.col("displaced") | (F.col("unpenalised") & F.col("jurisdiction").isin(adding))
    return Finding(
        wrong == 0,
        f"{compared:,} PAYMENT deadlines compared with penalties; {wrong:,} on another day or missing",
        {"compared": compared, "wrong": wrong, "jurisdictions": adding},
        _sample(context, condition, "breached_as", "breach_on", "penalty_on") if wrong else [],
    )


def change_within_tolerance(context: ReconciliationContext) -> Finding:
    """Change: rows and breaches against the accepted version, where there is one, within the manifest's tolerance."""
    comparable = {chunk for chunk, measures in context.accepted.items() if measures is not None}
    if not comparable:
        return Finding(True, "no accepted version to compare with", {"comparable_chunks": 0})
    new = _totals(row for row in context.after if row["chunk"] in comparable)
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


def breaches_look_reasonable(context: ReconciliationContext) -> Finding:
    """Change: breaches by jurisdiction and clock against the accepted version, and against the slice's own months.

    A slice is unusual if its breaches in the run, or in a month, differ from the accepted ones by at least so many and so
    many percent; a month only if it is also far outside what the slice's accepted months are. What only moved to the
    month beside (a deadline a day later) is no change. Not passed is not failed: an owner has to accept it.
    """
    comparable = {chunk for chunk, measures in context.accepted.items() if measures is not None}
    if not comparable:
        return Finding(True, "no accepted version to compare with", {"comparable_chunks": 0})
    new = _breaches((row["chunk"], row) for row in context.after if row["chunk"] in comparable)
    old = _breaches((chunk, row) for chunk, rows in context.accepted.items() for row in rows or ())
    months = sorted({chunk[:7] for chunk in comparable})
    unusual = []
    for place in sorted(old.keys() | new.keys()):
        before, after = ([side[place][month] for month in months] for side in (old, new))
        unusual += _unusual_total(context, place, sum(before), sum(after))
        unusual += _unusual_months(context, place, months, before, after)
    counts = {name: sum(sum(one.values()) for one in side.values()) for name, side in (("old", old), ("new", new))}
    return Finding(
        not unusual,
        f"breaches {counts['old']:,} -> {counts['new']:,} in {len(old.keys() | new.keys())} slices of {len(months)} months; "
        f"{len(unusual)} unusual",
        {
            "comparable_chunks": len(comparable),
            "accepted": counts["old"],
            "staged": counts["new"],
            "unusual": len(unusual),
        },
        unusual[:SAMPLE],
        asks=bool(unusual),
    )


_Place = tuple[str, str]


def _breaches(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[_Place, dict[str, int]]:
    """Count breaches by jurisdiction and clock, and by month."""
    found: dict[_Place, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for chunk, row in rows:
        if row["sla_state"] == "BREACHED":
            found[row["jurisdiction"], row["clock"]][chunk[:7]] += row["rows"]
    return found


def _unusual_total(context: ReconciliationContext, place: _Place, before: int, after: int) -> list[dict[str, Any]]:
    if not _is_large(context, before, abs(after - before)):
        return []
    return [_said(place, "all", before, after)]


def _unusual_months(
    context: ReconciliationContext, place: _Place, months: list[str], before: list[int], after: list[int]
) -> list[dict[str, Any]]:
    if len(months) < _HISTORY_MONTHS:
        return []
    usual = median(before)
    deviation = _MAD_TO_SIGMA * median(abs(count - usual) for count in before)
    spread = max(deviation, sqrt(usual), 1.0)  # counts scatter by their square root at the least
    changes = [now - then for then, now in zip(before, after, strict=True)]
    found = []
    for number, change in enumerate(changes):
        beside = [changes[at] for at in (number - 1, number + 1) if 0 <= at < len(changes)]
        moved = sum(abs(one) for one in beside if one * change < 0)
        is_far = abs(after[number] - usual) > context.tolerances[UNUSUAL_SPREAD] * spread
        if is_far and _is_large(context, before[number], abs(change) - moved):
            found.append(_said(place, months[number], before[number], after[number]) | {"usual": usual})
    return found


def _is_large(context: ReconciliationContext, before: int, change: int) -> bool:
    enough = change >= context.tolerances[UNUSUAL_COUNT]
    return enough and change * 100 >= context.tolerances[UNUSUAL_CHANGE] * before


def _said(place: _Place, month: str, before: int, after: int) -> dict[str, Any]:
    change = f"{_percent(before, after):+.1f}%"
    return {
        "jurisdiction": place[0],
        "clock": place[1],
        "month": month,
        "accepted": before,
        "staged": after,
        "change": change,
    }


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


def _sample(context: ReconciliationContext, condition: Column, *columns: str) -> list[dict[str, Any]]:
    """Return a few of the clocks that are wrong; they are computed again, which only a failed gate has to pay for."""
    shown = _clocks(context).where(condition).select(*_CLOCK, *columns).orderBy(*_CLOCK).limit(SAMPLE)
    return [
        {name: None if value is None else str(value) for name, value in row.asDict().items()} for row in shown.collect()
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
    Reconciliation(
        "breaches_look_reasonable",
        Level.CHANGE,
        "Breaches by jurisdiction and clock did not change beyond reason; if they did, an owner accepts it with a reason.",
        breaches_look_reasonable,
    ),
)
