"""What must agree once every chunk of a run is staged: records, totals, outcomes, and the change against history.

Clocks are recomputed in another way than the transform's: that is `clocks`. What is asked of them stands here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import sqrt
from statistics import median
from typing import Any

import polars as pl
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.types import from_arrow_schema

from backfill_assets.declarations.reconciliations import (
    Comparison,
    Entities,
    Wrong,
    outcome_level,
    record_level,
    state_level,
)
from backfill_assets.declarations.target import Finding, Level, Reconciliation, ReconciliationContext
from backfill_assets.products.enforcement import clocks
from backfill_assets.products.enforcement.transforms import CALENDAR, DAY_OF, RULES, local_date

SAMPLE = 20
ROW_CHANGE = "row_change_percent"
BREACH_CHANGE = "breach_change_percent"
UNUSUAL_CHANGE = "unusual_change_percent"
UNUSUAL_COUNT = "unusual_change_breaches"
UNUSUAL_SPREAD = "unusual_change_spread"
TOLERANCES = {ROW_CHANGE: 20.0, BREACH_CHANGE: 20.0, UNUSUAL_CHANGE: 50.0, UNUSUAL_COUNT: 50.0, UNUSUAL_SPREAD: 6.0}
_EVENTS_A_PART = 250_000
"""Events of the source whose cases are compared at once, in a worker's memory: some 150 MB with what is found of them."""
_HISTORY_MONTHS = 6
"""Months of its own history below which nothing can be said of what is usual for a slice."""
_MAD_TO_SIGMA = 1.4826
"""From the median absolute deviation to the standard deviation of a normal distribution."""


def _clocks(context: ReconciliationContext) -> DataFrame:
    """One row per case, jurisdiction and clock, expected and found side by side, and what is wrong with it; see `clocks`."""
    rules = _collected(context.transform.references[RULES])
    counted = rules.filter(pl.col("unit") == "BUSINESS_DAY")["jurisdiction"].unique().to_list()
    calendar = context.transform.references[CALENDAR].where(F.col("jurisdiction").isin(counted))
    scope = context.transform.publish_range
    terms = clocks.terms_of(
        rules,
        _collected(calendar.select("jurisdiction", "day", "is_business_day")),
        start=scope.start,
        end=scope.end,
        last_day=context.source_last_day.date(),
    )
    # cases of both sides in one place: a part of them is compared in memory, and each part has a cost of its own, however small
    parts = max(1, -(-context.source_rows // (_EVENTS_A_PART * context.tasks))) * context.tasks
    both = _events(context, rules, terms).unionByName(_found(context), allowMissingColumns=True)
    return both.repartition(parts, "case_id").mapInArrow(
        partial(clocks.side_by_side, terms), from_arrow_schema(clocks.SIDE_BY_SIDE)
    )


def _collected(rows: DataFrame) -> pl.DataFrame:
    """Return the rows of a reference table, which are few."""
    return pl.DataFrame(rows.toArrow())


def _events(context: ReconciliationContext, rules: pl.DataFrame, terms: clocks.Terms) -> DataFrame:
    """What the source says of cases: the events that matter to a clock, and the day that the run takes each for."""
    day_of = DAY_OF[context.transform.version]
    zones = rules.sort("valid_from").unique("jurisdiction", keep="first").select("time_zone", "jurisdiction")

    def day(of: Callable[[Column, Column], Column]) -> Column:
        # zone by zone: Spark would parse a column of their names again for each row. Always in the same order, so that it
        # knows the code it has compiled for the run before
        found = F.lit(None).cast("date")
        for (zone,), own in zones.sort("time_zone", "jurisdiction").group_by("time_zone", maintain_order=True):
            is_here = F.col("jurisdiction").isin(own["jurisdiction"].to_list())
            found = F.when(is_here, of(F.col("event_at"), F.lit(zone))).otherwise(found)
        return found

    activities = sorted(set(terms.matters["activity"]))
    return context.source.where(F.col("activity").isin(activities)).select(
        "case_id",
        "jurisdiction",
        "activity",
        day(day_of).alias("day"),
        F.when(F.col("activity") == clocks.PENALTY, day(local_date)).alias("penalty_day"),
    )


def _found(context: ReconciliationContext) -> DataFrame:
    """What the staged rows say of clocks: a row for the first and one for the last day of each, where they are staged."""
    is_first, is_last = F.col("business_date") == F.col("started_on"), F.col("sla_state") != "RUNNING"
    return context.staged.where(is_first | is_last).select(
        *clocks.CLOCK,
        F.when(is_first, F.col("started_on")).alias("started_on"),
        F.when(is_last, F.col("sla_state") == "BREACHED").alias("breached_as"),
        F.when(is_last, F.col("breach_on")).alias("breach_on"),
    )


CLOCKS = Comparison("clocks", _clocks, clocks.CLOCK, ("jurisdiction", "month"), clocks.CONDITIONS)
"""All that the gates ask of clocks: counted in one job by jurisdiction and month of the breach, where there is one."""


def _recomputed_breaches(context: ReconciliationContext) -> list[dict[str, Any]]:
    """Return breaches by jurisdiction and month of the deadline, recomputed without days."""
    return [row | {"breaches": row["recomputed"]} for row in CLOCKS.counts(context) if row["recomputed"]]


def _counted_breaches(context: ReconciliationContext) -> list[dict[str, Any]]:
    """Return breaches by jurisdiction and month, as the chunk gates counted them."""
    return [
        {"jurisdiction": row["jurisdiction"], "month": row["chunk"][:7], "breaches": row["rows"]}
        for row in context.measures
        if row["sla_state"] == "BREACHED"
    ]


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


ALL = (
    record_level(
        "every_started_case_is_present",
        "Each case and clock that starts in the publish range has its first row, and no other has one.",
        Entities(
            CLOCKS,
            (
                Wrong("missing", "the first day of the clock is missing"),
                Wrong("extra", "no clock starts in the range"),
                Wrong("moved", "the clock starts on another day"),
            ),
            expected=("expected_on",),
            found=("started_on",),
        ),
        compared="started",
        by=("jurisdiction",),
        summary="{compared:,} clocks started in the range; {wrong:,} are missing, extra or on another day",
    ),
    state_level(
        "breach_totals_agree",
        "Breaches by jurisdiction and month, recomputed from the source, equal the staged ones.",
        slices=("jurisdiction", "month"),
        measures=("breaches",),
        expected=_recomputed_breaches,
        found=_counted_breaches,
        entities=Entities(
            CLOCKS,
            (
                Wrong("unbreached", "the breach is missing"),
                Wrong("overbreached", "the breach is extra"),
                Wrong("breached_elsewhere", "the breach is in another month"),
            ),
            expected=("breached", "deadline"),
            found=("breached_as", "breach_on"),
        ),
    ),
    # a deadline that was met may have a penalty all the same (the payment was short); its day must be right, too. A
    # breach without a penalty is wrong in a jurisdiction that adds penalties, before the last day of the source
    outcome_level(
        "payment_breaches_are_penalties",
        "PAYMENT deadlines fall on the local day on which the penalty was added, where the log has penalties.",
        Entities(
            CLOCKS,
            (
                Wrong("displaced", "the penalty was added on another day than the deadline"),
                Wrong("unpenalised", "no penalty was added for the breach", only_where="penalised"),
            ),
            expected=("penalty_on",),
            found=("breached_as", "breach_on"),
        ),
        by=("jurisdiction",),
        summary="{compared:,} PAYMENT deadlines compared with penalties; {wrong:,} on another day or missing",
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
