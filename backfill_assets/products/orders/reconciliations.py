"""Run-level gates of the product: every line is accounted for, revenue is that of the lines, cancellations come after sales.

Each looks at the lines themselves by another way than the translator's: counted and added up in SQL, without its rules, or
gone through in plain loops (`direct`).
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql.pandas.types import from_arrow_schema

from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.target import Finding, Level, Reconciliation, ReconciliationContext
from backfill_assets.products.orders import direct
from backfill_assets.products.orders.rules import EventType
from backfill_assets.products.orders.transforms import ASIDE, LINES
from backfill_assets.products.orders.transforms import EVENTS as ORDER_EVENTS

_PLACE = ["source_file", "source_row"]
_ADDED = EventType.ORDER_LINE_ADDED.value


def _lines_in_range(context: ReconciliationContext) -> DataFrame:
    days = context.transform.publish_range
    return context.source.where(F.col("business_day").between(F.lit(days.start), F.lit(days.end)))


def _accounted(context: ReconciliationContext) -> DataFrame:
    """Return each line of the range with how many of the two it is: the line of native events, or set aside."""
    days = context.transform.publish_range
    events = context.staged.where("origin = 'NATIVE'").select(*_PLACE).distinct().withColumn("as_event", F.lit(1))
    aside = context.sources[ASIDE].where(F.col("business_day").between(F.lit(days.start), F.lit(days.end)))
    aside = aside.select(*_PLACE).withColumn("as_aside", F.lit(1))
    lines = _lines_in_range(context).select(*_PLACE).withColumn("as_line", F.lit(1))
    counted = lines.join(events, _PLACE, "full").join(aside, _PLACE, "full")
    return counted.select(
        *_PLACE, *(F.coalesce(name, F.lit(0)).alias(name) for name in ("as_line", "as_event", "as_aside"))
    )


def every_line_is_accounted_for(context: ReconciliationContext) -> Finding:
    """Record: each line is either of an event or set aside, never both, and nothing else is there."""
    counted = context.shared("lines accounted for", _accounted)
    wrong = counted.where("as_line != 1 OR as_event + as_aside != 1")
    found = counted.agg(
        F.sum("as_line").alias("lines"),
        F.sum("as_event").alias("events"),
        F.sum("as_aside").alias("aside"),
        F.count_if(F.expr("as_line != 1 OR as_event + as_aside != 1")).alias("wrong"),
    ).collect()[0]
    lines, events, aside, amiss = (found[name] or 0 for name in ("lines", "events", "aside", "wrong"))
    said = f"{lines:,} lines: {events:,} are of events, {aside:,} are set aside"
    return Finding(
        not amiss,
        said if not amiss else f"{said}; {amiss:,} are neither, or both: publish {ASIDE} from the same lines first",
        compared=lines,
        disagreeing=amiss,
        exceptions=lambda: _as_exceptions(wrong),
    )


def _as_exceptions(wrong: DataFrame) -> DataFrame:
    found = F.struct("as_line", "as_event", "as_aside")
    return wrong.select(
        F.to_json(F.struct("source_file")).alias("slice"),
        F.to_json(F.struct(*_PLACE)).alias("key"),
        F.lit('{"as_line": 1, "one of the others": 1}').alias("expected"),
        F.to_json(found).alias("found"),
        F.lit("a line is that of an event, or is set aside").alias("what"),
    )


def amounts_agree_with_the_lines(context: ReconciliationContext) -> Finding:
    """State: by day, the events are worth what the lines are worth that are not set aside, to a tenth of a cent."""
    days = context.transform.publish_range
    worth = F.sum(F.col("quantity") * F.col("unit_price"))
    aside = context.sources[ASIDE].where(F.col("business_day").between(F.lit(days.start), F.lit(days.end)))
    lines = _lines_in_range(context).join(aside.select(*_PLACE), _PLACE, "anti")
    expected = lines.groupBy("business_day").agg(worth.cast("decimal(24,3)").alias("expected"))
    found = context.staged.groupBy("business_day").agg(F.sum("amount").cast("decimal(24,3)").alias("found"))
    both = expected.join(found, "business_day", "full").where("NOT (expected <=> found)").orderBy("business_day")
    rows = both.limit(100).collect()
    slices = [
        {"business_day": f"{row['business_day']}", "expected": f"{row['expected']}", "found": f"{row['found']}"}
        for row in rows
    ]
    said = "every day's events are worth what its lines are" if not rows else f"{len(rows)} day(s) differ"
    return Finding(not rows, said, disagreeing=len(rows), slices=slices)


def cancellations_follow_sales(context: ReconciliationContext) -> Finding:
    """State: what a cancellation reverses is an earlier line of the same customer, item and price, and no more than it sold."""
    sale = context.source.select(
        F.col("source_file").alias("reverses_file"),
        F.col("source_row").alias("reverses_row"),
        F.col("customer_id").alias("sold_to"),
        F.upper("stock_code").alias("sold"),
        F.col("unit_price").alias("sold_for"),
        F.col("quantity").alias("pieces_sold"),
        F.col("invoiced_at").alias("sold_at"),
    )
    reversing = context.staged.where("reverses_row IS NOT NULL")
    both = reversing.join(sale, ["reverses_file", "reverses_row"], "left").groupBy("reverses_file", "reverses_row")
    fits = (
        F.coalesce(F.col("sold_at") <= F.col("business_at"), F.lit(False))
        & (F.col("sold_to") == F.col("customer_id"))
        & (F.col("sold") == F.upper("stock_code"))
        & (F.col("sold_for") == F.col("unit_price"))
    )
    judged = both.agg(
        F.min(fits).alias("fits"), F.sum("quantity").alias("taken"), F.max("pieces_sold").alias("pieces_sold")
    )
    wrong = "NOT coalesce(fits AND -taken <= pieces_sold, false)"
    counted = judged.agg(F.count(F.lit(1)).alias("all"), F.count_if(F.expr(wrong)).alias("wrong")).collect()[0]
    sales, amiss = counted["all"], counted["wrong"]
    return Finding(
        not amiss,
        f"{sales:,} sales are reversed, {amiss:,} of them by what does not fit",
        compared=sales,
        disagreeing=amiss,
        sample=[
            row.asDict() for row in judged.where(wrong).orderBy("reverses_file", "reverses_row").limit(5).collect()
        ],
    )


def reversed_sales_are_there(context: ReconciliationContext) -> Finding:
    """Record: the event of each sale that is reversed is among those of the run, or published; or its month is still to come.

    A sale whose line came when its month was published already is none of them: whoever reads the events finds a reversal of nothing.
    """
    days = context.transform.publish_range
    line = context.source.select(
        F.col("source_file").alias("reverses_file"),
        F.col("source_row").alias("reverses_row"),
        F.col("business_day").alias("sold_on"),
    )
    reversing = context.staged.where("reverses_event_id IS NOT NULL").join(
        line, ["reverses_file", "reverses_row"], "left"
    )
    begins = reversing.agg(F.min("sold_on").alias("day")).collect()[0]["day"] or days.start
    # whole months: whether one is published is told by any event of it
    there = context.visible(max(0, (days.start - begins.replace(day=1)).days))
    sales = there.where(F.col("event_type") == _ADDED).select(F.col("event_id").alias("reverses_event_id"))
    absent = reversing.join(sales, "reverses_event_id", "anti").withColumn("month", F.trunc("sold_on", "month"))
    known = there.select(F.trunc("business_day", "month").alias("month")).distinct()
    late = absent.join(known, "month", "left_semi")
    both = late.agg(F.count(F.lit(1)).alias("late"), F.min("month").alias("first")).collect()[0]
    total, waiting = reversing.count(), absent.count() - both["late"]
    said = f"{total:,} events reverse a sale; the event of the sale is missing of {both['late']:,}"
    if waiting:
        said += f"; {waiting:,} reverse sales of months of which no event is published yet"
    if both["late"]:
        said += (
            f": lines of {both['first']:%Y-%m} or later came when those months had been published; publish what is set aside and the "
            f"events again from {both['first']:%Y-%m} on (a RESTATEMENT)"
        )
    return Finding(
        not both["late"],
        said,
        details={
            "reversals": total,
            "sales_missing": both["late"],
            "months_to_come": waiting,
            "from": str(both["first"]),
        },
        compared=total,
        disagreeing=both["late"],
        exceptions=lambda: _as_late_sales(late),
    )


def _as_late_sales(late: DataFrame) -> DataFrame:
    return late.select(
        F.to_json(F.struct("month")).alias("slice"),
        F.to_json(F.struct("event_id")).alias("key"),
        F.to_json(F.struct("reverses_event_id", "sold_on", "reverses_file", "reverses_row")).alias("expected"),
        F.lit("null").alias("found"),
        F.lit("the sale that a cancellation reverses has an event: its line came after its month was published").alias(
            "what"
        ),
    )


_EVENTS_NEED = Needs(
    source=("source_file", "source_row", "business_day", "quantity", "unit_price", "customer_id", "stock_code"),
    target=("source_file", "source_row", "origin", "business_day", "amount", "reverses_row"),
)
EVENTS = (
    Reconciliation(
        "every_line_is_accounted_for",
        Level.RECORD,
        "Each line is of an event, or is set aside with its reason.",
        every_line_is_accounted_for,
        needs=_EVENTS_NEED,
    ),
    Reconciliation(
        "amounts_agree_with_the_lines",
        Level.STATE,
        "Each day's events are worth what its lines are.",
        amounts_agree_with_the_lines,
        needs=_EVENTS_NEED,
    ),
    Reconciliation(
        "cancellations_follow_sales",
        Level.RECORD,
        "No line is cancelled before it was placed, nor more of it than was sold.",
        cancellations_follow_sales,
        needs=_EVENTS_NEED,
    ),
    Reconciliation(
        "reversed_sales_are_there",
        Level.RECORD,
        "The event of each sale that is reversed is published with the run, or was before.",
        reversed_sales_are_there,
        needs=_EVENTS_NEED,
    ),
)


def states_follow_from_the_lines(context: ReconciliationContext) -> Finding:
    """State: each order's state from its events is the one that plain loops over its lines come to.

    The events reach up to the end of a month, and no later lines are looked at.
    """
    days = context.transform.publish_range
    reach = context.source.agg(F.last_day(F.max("business_day")).alias("day")).collect()[0]["day"]
    lines = context.sources[LINES].where(F.col("business_day") <= F.lit(reach)).select(*direct.READ)
    expected = _states_of(lines).where(F.col("order_day").between(F.lit(days.start), F.lit(days.end)))
    if (entities := context.entities()) is not None:
        expected = expected.join(entities, "order_id", "left_semi")
    sides = [_as_sides(expected, "expected"), _as_sides(context.staged, "found")]
    both = sides[0].join(sides[1], "order_id", "full")
    wrong = both.where("NOT (expected <=> found)")
    counted = both.agg(F.count(F.lit(1)).alias("all"), F.count_if(F.expr("NOT (expected <=> found)")).alias("wrong"))
    found = counted.collect()[0]
    said = f"{found['all']:,} orders, {found['wrong']:,} of them in another state than their lines up to {reach} leave them in"
    if found["wrong"]:
        said += f": where lines came late, publish {ORDER_EVENTS} of their months again, and then the states"
    return Finding(
        not found["wrong"],
        said,
        compared=found["all"],
        disagreeing=found["wrong"],
        exceptions=lambda: wrong.select(
            F.to_json(F.struct(F.trunc(F.coalesce("expected_on", "found_on"), "month").alias("month"))).alias("slice"),
            F.to_json(F.struct("order_id")).alias("key"),
            F.coalesce(F.to_json("expected"), F.lit("null")).alias("expected"),
            F.coalesce(F.to_json("found"), F.lit("null")).alias("found"),
            F.lit("the state from events is the state from lines").alias("what"),
        ),
    )


def _as_sides(states: DataFrame, name: str) -> DataFrame:
    return states.select("order_id", F.col("order_day").alias(f"{name}_on"), F.struct(*direct.COMPARED).alias(name))


def _states_of(lines: DataFrame) -> DataFrame:
    """Return what plain loops over the lines of each customer, or of each invoice without one, come to."""
    whose = F.coalesce(F.col("customer_id"), F.concat(F.lit("invoice "), F.col("invoice_no")))

    # Spark tells by the hints what it is to hand over
    def looping(group: pa.Table) -> pa.Table:
        return pa.Table.from_pylist(direct.states_of(group.to_pylist()), _STATES)

    return lines.groupBy(whose).applyInArrow(looping, from_arrow_schema(_STATES))


_MONEY, _AT = pa.decimal128(18, 3), pa.timestamp("us", "UTC")
_STATES = pa.schema(
    [
        ("order_id", pa.string()),
        ("order_day", pa.date32()),
        ("placed_at", _AT),
        ("lines", pa.int64()),
        ("pieces", pa.int64()),
        ("pieces_cancelled", pa.int64()),
        ("goods", _MONEY),
        ("goods_cancelled", _MONEY),
        ("charges", _MONEY),
        ("state", pa.string()),
        ("deleted_at", _AT),
    ]
)
STATE = (
    Reconciliation(
        "states_follow_from_the_lines",
        Level.STATE,
        "Each order's state from its events is the one that its lines come to, without events.",
        states_follow_from_the_lines,
        needs=Needs(source=("business_day",), target=("order_id", "order_day", *direct.COMPARED)),
    ),
)


def every_day_is_there(context: ReconciliationContext) -> Finding:
    """Record: each day of the publish range has its one row, whether anybody ordered or not."""
    days = context.transform.publish_range
    wanted = (days.end - days.start).days + 1
    found = context.staged.agg(F.count("day").alias("rows"), F.count_distinct("day").alias("days")).collect()[0]
    passed = found["rows"] == found["days"] == wanted
    return Finding(passed, f"{wanted:,} days, {found['days']:,} of them with a row", compared=wanted)


def revenue_is_that_of_the_events(context: ReconciliationContext) -> Finding:
    """State: revenue, fees and bad debt of the range are what its events are worth together."""
    days = context.transform.publish_range
    of_range = context.source.where(F.col("business_day").between(F.lit(days.start), F.lit(days.end)))
    expected = of_range.agg(F.sum("amount").alias("worth")).collect()[0]["worth"] or 0
    found = context.staged.agg(F.sum(F.expr("revenue + fees + bad_debt")).alias("worth")).collect()[0]["worth"] or 0
    return Finding(expected == found, f"events are worth {expected:,}, the days {found:,}")


REVENUE = (
    Reconciliation(
        "every_day_is_there", Level.RECORD, "Each calendar day has a row, also one without orders.", every_day_is_there
    ),
    Reconciliation(
        "revenue_is_that_of_the_events",
        Level.STATE,
        "The days are worth what the events are.",
        revenue_is_that_of_the_events,
    ),
)
