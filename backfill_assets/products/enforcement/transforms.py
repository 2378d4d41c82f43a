"""From case events to one row per case, clock and day: the transform, in its versions.

Pure functions of frames and a context. A version that was published stays runnable by name, bugs included: 2.4.1
takes UTC dates for local ones, which moves every event around midnight to the wrong day.

How it is computed: clocks first (one shuffle by case), then cut by chunk, one Spark partition a chunk and sorted while
there is one row a clock and chunk, and only then multiplied into days, in place; the order survives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.target import Inputs, TransformContext, TransformVersion
from manifests.errors import PlanRefused, Problem

RULES = "reference.sla_rules"
CALENDAR = "reference.jurisdiction_calendar"
LOOK_BACK_COLUMNS = ("case_id", "jurisdiction", "activity", "event_seq", "event_at", "amount")
BUSINESS_DAYS_A_WEEK, DAYS_A_WEEK = 5, 7
HOLIDAY_MARGIN_DAYS = 45
"""More days than any stretch of holidays adds to a clock of business days."""


def longest_clock(references: Mapping[str, list[dict[str, Any]]]) -> int:
    """Return the days the longest clock can run: the warm-up.

    Raises:
        PlanRefused: if a rule cannot be computed by any version of the transform.
    """
    rules = references[RULES]
    paused = sorted({f"{rule['jurisdiction']} {rule['clock']}" for rule in rules if rule["pause_activities"]})
    if paused:
        raise PlanRefused(
            Problem(
                f"{RULES} pauses {', '.join(paused)}",
                "no version of case_sla_daily can pause a clock yet",
                "use a version of the rules without pause activities",
            )
        )
    return max((_calendar_days(rule["length"], rule["unit"]) for rule in rules), default=0)


def _calendar_days(length: int, unit: str) -> int:
    if unit == "CALENDAR_DAY":
        return length
    return -(-length * DAYS_A_WEEK // BUSINESS_DAYS_A_WEEK) + DAYS_A_WEEK + HOLIDAY_MARGIN_DAYS


def utc_date(instant: Column, zone: Column) -> Column:  # noqa: ARG001 - the bug is that the zone is not used
    """Return the UTC date: what 2.4.1 takes for the day of an event."""
    return F.to_date(instant)


def local_date(instant: Column, zone: Column) -> Column:
    """Return the date in the jurisdiction's zone (the session's zone is UTC)."""
    return F.to_date(F.from_utc_timestamp(instant, zone))


DAY_OF = {"2.4.1": utc_date, "3.1.0": local_date, "3.2.0": local_date}
"""By transform version: from an instant and a zone to the day it counts for. 3.2.0 is `case_age`'s."""


def case_sla_daily(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Compute the rows of the context's chunks, each in the partition of its slot, sorted by key; see the module."""
    rules, calendar = context.references[RULES], context.references[CALENDAR]
    clocks = with_deadline(_clocks(inputs, rules, context), calendar)
    return _daily(clocks, context)


def _clocks(inputs: Inputs, rules: DataFrame, context: TransformContext) -> DataFrame:
    """One row per case and clock: its rule, when it started and stopped, and the amount known at the start."""
    day_of = DAY_OF[context.version]
    activities = F.array_distinct(F.flatten(F.collect_list(F.array_append("stop_activities", F.col("start_activity")))))
    relevant = rules.groupBy("jurisdiction").agg(
        activities.alias("activities"), F.first("time_zone").alias("time_zone")
    )
    read = inputs.source.select(*LOOK_BACK_COLUMNS)
    if inputs.look_back is not None:
        # a clock starts once, and an amount lasts: neither can be told from the warm-up alone
        read = read.unionByName(inputs.look_back.select(*LOOK_BACK_COLUMNS))
    events = (
        read.join(F.broadcast(relevant), "jurisdiction")
        .where(F.array_contains("activities", F.col("activity")) | F.col("amount").isNotNull())
        .select(
            "case_id",
            "jurisdiction",
            F.struct(
                day_of(F.col("event_at"), F.col("time_zone")).alias("day"), "event_seq", "activity", "amount"
            ).alias("e"),
        )
    )
    cases = events.groupBy("case_id", "jurisdiction").agg(F.collect_list("e").alias("events"))
    window = Window.partitionBy("jurisdiction", "clock").orderBy("valid_from")
    ruled = rules.withColumn("valid_until", F.lead("valid_from").over(window))
    clocks = (
        cases.join(F.broadcast(ruled), "jurisdiction")
        .withColumn(
            "started_on", F.expr("array_min(transform(filter(events, e -> e.activity = start_activity), e -> e.day))")
        )
        .where("started_on >= valid_from AND (valid_until IS NULL OR started_on < valid_until)")
    )
    stops = "filter(events, e -> array_contains(stop_activities, e.activity) AND e.day >= started_on)"
    stated = "filter(events, e -> e.amount IS NOT NULL AND e.day <= started_on)"
    return clocks.select(
        "case_id",
        "jurisdiction",
        "clock",
        "length",
        "unit",
        "time_zone",
        "started_on",
        F.expr(f"array_min(transform({stops}, e -> e.day))").alias("stopped_on"),
        F.expr(f"array_max(transform({stated}, e -> struct(e.day, e.event_seq, e.amount))).amount").alias("amount"),
    )


def with_deadline(clocks: DataFrame, calendar: DataFrame) -> DataFrame:
    """Add `breach_on`: started_on and the rule's length, in the rule's unit.

    Business days: the length-th business day after the start; the start itself does not count, whatever day it is.
    A calendar that does not reach far enough leaves breach_on NULL, which the gate refuses.
    """
    counted = F.sum(F.col("is_business_day").cast("int")).over(Window.partitionBy("jurisdiction").orderBy("day"))
    # small: one task, no shuffle
    days = calendar.coalesce(1).select("jurisdiction", "day", "is_business_day", counted.alias("nth"))
    starts = days.select("jurisdiction", F.col("day").alias("_counted_from"), F.col("nth").alias("_nth"))
    ends = days.where("is_business_day").select(
        "jurisdiction", F.col("nth").alias("_last"), F.col("day").alias("_business_deadline")
    )
    in_business_days = F.col("unit") == "BUSINESS_DAY"
    return (
        clocks.withColumn("_counted_from", F.when(in_business_days, F.col("started_on")))
        .join(F.broadcast(starts), ["jurisdiction", "_counted_from"], "left")
        .withColumn("_last", F.col("_nth") + F.col("length"))
        .join(F.broadcast(ends), ["jurisdiction", "_last"], "left")
        .withColumn(
            "breach_on",
            F.when(in_business_days, F.col("_business_deadline")).when(
                F.col("unit") == "CALENDAR_DAY", F.date_add("started_on", F.col("length"))
            ),
        )
        .drop("_counted_from", "_nth", "_last", "_business_deadline")
    )


def _daily(clocks: DataFrame, context: TransformContext) -> DataFrame:
    """Cut clocks by chunk, bring each chunk to the partition of its slot in key order, then multiply into days."""
    spark: SparkSession = clocks.sparkSession
    chunks = spark.createDataFrame(
        [(slot, chunk.start, chunk.end) for slot, chunk in zip(context.slots, context.chunks, strict=True)],
        "slot int, chunk_start date, chunk_end date",
    )
    ended_on = F.least("breach_on", "stopped_on")
    last_state = F.when(F.col("stopped_on") < F.col("breach_on"), "MET").otherwise("BREACHED")
    # NULL deadlines must reach the gate, not vanish here: such a clock is kept on its first day
    until = F.coalesce("ended_on", "started_on")
    months = F.sequence(F.trunc("started_on", "MM"), F.trunc(until, "MM"), F.expr("INTERVAL 1 MONTH"))
    cut = (
        clocks.withColumn("ended_on", F.when(F.col("breach_on").isNotNull(), ended_on))
        .withColumn("last_state", last_state)
        .withColumn("breach_at", F.to_utc_timestamp(F.col("breach_on").cast("timestamp"), F.col("time_zone")))
        .withColumn("chunk_start", F.explode(months))
        .join(F.broadcast(chunks), "chunk_start")
        .repartitionById(context.slots[-1] + 1, F.col("slot"))
        .sortWithinPartitions("case_id", "clock")
    )
    days = F.sequence(F.greatest("started_on", "chunk_start"), F.least(until, F.col("chunk_end")))
    is_last = F.col("business_date") == F.col("ended_on")
    is_breach = is_last & (F.col("last_state") == "BREACHED")
    return cut.withColumn("business_date", F.explode(days)).select(
        "case_id",
        "clock",
        "jurisdiction",
        "business_date",
        "started_on",
        "breach_on",
        F.datediff("business_date", "started_on").alias("days_open"),
        F.when(is_last, F.col("last_state")).otherwise("RUNNING").alias("sla_state"),
        F.when(is_breach, F.col("breach_at")).alias("breach_at"),
        "amount",
    )


VERSIONS = {version: TransformVersion(case_sla_daily, clustered=True) for version in ("2.4.1", "3.1.0")}
