"""The tables computed in Spark: from lines to events, from events to states and revenue.

Put here which rows are translated together, and the aggregates. What lines mean is the translator's: pure Python, which Spark's
workers are handed the lines of a customer at a time. A cancellation reaches back as far as there are sales (368 days in the
real log, and no rule ends it), and which sale has pieces left follows from every cancellation before: the look-back is all
earlier lines, so that a chunk that is computed alone has the rows that it has in a batch. A run that starts from the orders of a
month's end reads these in place of the lines up to then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.target import Inputs, TransformContext, TransformVersion
from backfill_assets.products.orders.books import opened
from backfill_assets.products.orders.books import rows_of as rows_of_book
from backfill_assets.products.orders.lines import COLUMNS, Line, line_of
from backfill_assets.products.orders.rules import EventType
from backfill_assets.products.orders.translator import Aside, Book, Event, Origin, translate

LINES, EVENTS, ASIDE = "bronze.order_lines", "silver.order_events", "silver.order_lines_set_aside"
MONTH_ENDS = "silver.orders_at_month_end"
LOOK_BACK_COLUMNS = COLUMNS
_EVENT_COLUMNS = {
    "event_id": "string",
    "event_type": "string",
    "origin": "string",
    "order_id": "string",
    "order_day": "date",
    "sequence": "int",
    "business_at": "timestamp",
    "business_day": "date",
    "invoice_no": "string",
    "stock_code": "string",
    "description": "string",
    "quantity": "int",
    "unit_price": "decimal(12,3)",
    "amount": "decimal(18,3)",
    "customer_id": "string",
    "country": "string",
    "reversal": "string",
    "why_unmatched": "string",
    "reverses_event_id": "string",
    "reversed_at": "timestamp",
    "reverses_file": "string",
    "reverses_row": "bigint",
    "source_system": "string",
    "source_file": "string",
    "source_row": "bigint",
    "extracted_at": "timestamp",
}
_ASIDE_COLUMNS = {
    "source_file": "string",
    "source_row": "bigint",
    "business_day": "date",
    "outcome": "string",
    "reason": "string",
    "repeats_file": "string",
    "repeats_row": "bigint",
    "line_id": "string",
    "invoice_no": "string",
    "stock_code": "string",
    "description": "string",
    "quantity": "int",
    "unit_price": "decimal(12,3)",
    "customer_id": "string",
}
_SALE = {
    "stock_code": "string",
    "description": "string",
    "quantity": "int",
    "unit_price": "decimal(12,3)",
    "country": "string",
    "invoiced_at": "timestamp",
    "business_day": "date",
    "source_system": "string",
    "source_file": "string",
    "source_row": "bigint",
    "extracted_at": "timestamp",
    "left": "int",
}
_MONTH_END_COLUMNS = {
    "as_of": "date",
    "account": "string",
    "order_id": "string",
    "order_day": "date",
    "customer_id": "string",
    "is_placed": "boolean",
    "pieces_left": "bigint",
    "is_open": "boolean",
    "times_cancelled": "int",
    "events": "int",
    "sales": f"array<struct<{', '.join(f'{name}: {kind}' for name, kind in _SALE.items())}>>",
}


_A_DAY = timedelta(days=1)


def order_events(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the events of the context's chunks; see the module for what is read."""
    return _translated(inputs, context, _EVENT_COLUMNS, _events_of)


def set_aside(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return the lines of the context's chunks that are no events."""
    return _translated(inputs, context, _ASIDE_COLUMNS, _aside_of)


def _translated(
    inputs: Inputs,
    context: TransformContext,
    columns: Mapping[str, str],
    rows_of: Callable[..., list[dict[str, Any]]],
) -> DataFrame:
    """Translate the lines of each customer, and of each invoice without one, by themselves."""
    read = _lines_read(inputs)
    days = context.chunks[0].start, max(chunk.end for chunk in context.chunks)
    schema = _schema(columns)
    version, types = context.version, tuple(columns.items())

    # Spark tells by the hints what it is to hand over
    def translating(group: pa.Table) -> pa.Table:
        return _of_group(rows_of, version, days, types, group)

    def going_on(group: pa.Table, orders: pa.Table) -> pa.Table:
        return _of_group(rows_of, version, days, types, group, orders)

    lines = read.groupBy(_whose().alias("whose"))
    states = inputs.sources.get(MONTH_ENDS)
    if states is None:
        return lines.applyInArrow(translating, schema)
    # accounts without a later line have nothing to go on with
    states = states.join(read.select(_whose().alias("account")).distinct(), "account", "left_semi")
    return lines.cogroup(states.groupBy(F.col("account").alias("whose"))).applyInArrow(going_on, schema)


def orders_at_month_end(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return every order as the lines up to the end of each of the context's chunks leave it."""
    version, types = context.version, tuple(_MONTH_END_COLUMNS.items())
    ends = tuple(sorted(chunk.end for chunk in context.chunks))

    def writing_down(group: pa.Table) -> pa.Table:
        return _orders_of_group(version, ends, types, group)

    return (
        _lines_read(inputs).groupBy(_whose().alias("account")).applyInArrow(writing_down, _schema(_MONTH_END_COLUMNS))
    )


def _whose() -> Column:
    """Return whose a line is; what an invoice without a customer says is told from it alone, and meets no customer of that number."""
    return F.coalesce(F.col("customer_id"), F.concat(F.lit("invoice "), F.col("invoice_no")))


def _lines_read(inputs: Inputs) -> DataFrame:
    read = inputs.source.select(*COLUMNS)
    return read if inputs.look_back is None else read.unionByName(inputs.look_back.select(*COLUMNS))


def _schema(columns: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


_ARROW = {
    "string": "string",
    "boolean": "bool_",
    "date": "date32",
    "int": "int32",
    "bigint": "int64",
}


def _arrow_type(kind: str) -> Any:
    if kind == "timestamp":
        return pa.timestamp("us", "UTC")
    if kind.startswith("array<struct<"):
        return pa.list_(pa.struct([(name, _arrow_type(one)) for name, one in _SALE.items()]))
    if kind.startswith("decimal"):
        digits, scale = kind.removeprefix("decimal(").removesuffix(")").split(",")
        return pa.decimal128(int(digits), int(scale))
    return getattr(pa, _ARROW[kind])()


def _of_group(
    rows_of: Callable[..., list[dict[str, Any]]],
    version: str,
    days: tuple[date, date],
    columns: tuple[tuple[str, str], ...],
    group: pa.Table,
    orders: pa.Table | None = None,
) -> pa.Table:
    """Translate the lines of one group in a worker of Spark; only rows of the batch's days are handed back.

    `orders` are those of the account that its lines go on from; None where there are all of its lines.
    """
    schema = pa.schema([(name, _arrow_type(kind)) for name, kind in columns])
    if not _touches(group, days):
        return schema.empty_table()
    lines = _lines_in(group)
    book = None if orders is None else opened(orders.to_pylist(), lines)
    return pa.Table.from_pylist(rows_of(translate(lines, version, book), days), schema)


def _lines_in(group: pa.Table) -> list[Line]:
    return [line_of(row) for row in group.select(list(COLUMNS)).to_pylist()]


def _orders_of_group(
    version: str, ends: tuple[date, ...], columns: tuple[tuple[str, str], ...], group: pa.Table
) -> pa.Table:
    """Enter the lines of one account up to each of some days, and write down what its orders are then."""
    account = _account(group.select(["customer_id", "invoice_no"]).slice(0, 1).to_pylist()[0])
    book, lines, rows = Book(), _lines_in(group), list[dict[str, Any]]()
    begun = date.min
    for end in ends:
        book.enter((line for line in lines if begun <= line.business_day <= end), version)
        rows += rows_of_book(book, account, end)
        begun = end + _A_DAY
    return pa.Table.from_pylist(rows, pa.schema([(name, _arrow_type(kind)) for name, kind in columns]))


def _account(row: Mapping[str, Any]) -> str:
    """Return whose a line is, as `_whose` says it."""
    return str(row["customer_id"] or f"invoice {row['invoice_no']}")


def _touches(group: pa.Table, days: tuple[date, date]) -> bool:
    """Return whether a line of a group is of the batch's days: an event has the day of the line that tells of it."""
    first, last = days
    return any(first <= day <= last for day in group.column("business_day").unique().to_pylist())


def _events_of(translated: Any, days: tuple[date, date]) -> list[dict[str, Any]]:
    first, last = days
    return [event_row(one) for one in translated.events if first <= one.line.business_day <= last]


def _aside_of(translated: Any, days: tuple[date, date]) -> list[dict[str, Any]]:
    first, last = days
    return [aside_row(one) for one in translated.aside if first <= one.line.business_day <= last]


def event_row(event: Event) -> dict[str, Any]:
    """Return an event in the columns of `silver.order_events`."""
    line, sale = event.line, event.reverses
    native = event.origin is Origin.NATIVE
    sold = None if sale is None else Event(EventType.ORDER_LINE_ADDED, Origin.NATIVE, "", sale.business_day, sale)
    return {
        "event_id": event.event_id,
        "event_type": event.event_type.value,
        "origin": event.origin.value,
        "order_id": event.order_id,
        "order_day": event.order_day,
        "sequence": event.sequence,
        "business_at": line.invoiced_at,
        "business_day": line.business_day,
        "invoice_no": line.invoice_no,
        "stock_code": line.stock_code if native else None,
        "description": line.description if native else None,
        "quantity": event.quantity,
        "unit_price": line.unit_price if native else None,
        "amount": event.amount,
        "customer_id": line.customer_id,
        "country": line.country,
        "reversal": None if event.reversal is None else event.reversal.value,
        "why_unmatched": event.why,
        "reverses_event_id": None if sold is None else sold.event_id,
        "reversed_at": None if sale is None else sale.invoiced_at,
        "reverses_file": None if sale is None else sale.source_file,
        "reverses_row": None if sale is None else sale.source_row,
        "source_system": line.source_system,
        "source_file": line.source_file,
        "source_row": line.source_row,
        "extracted_at": line.extracted_at,
    }


def aside_row(aside: Aside) -> dict[str, Any]:
    """Return a line that is no event in the columns of `silver.order_lines_set_aside`."""
    line, said = aside.line, aside.repeats
    return {
        "source_file": line.source_file,
        "source_row": line.source_row,
        "business_day": line.business_day,
        "outcome": aside.outcome.value,
        "reason": str(aside.reason),
        "repeats_file": None if said is None else said.source_file,
        "repeats_row": None if said is None else said.source_row,
        "line_id": line.line_id,
        "invoice_no": line.invoice_no,
        "stock_code": line.stock_code,
        "description": line.description,
        "quantity": line.quantity,
        "unit_price": line.unit_price,
        "customer_id": line.customer_id,
    }


def _is(*types: EventType) -> Column:
    return F.col("event_type").isin([one.value for one in types])


def _sum_of(column: str, which: Column, kind: str) -> Column:
    return F.sum(F.when(which, F.col(column)).otherwise(F.lit(0))).cast(kind)


_CHARGES = (
    EventType.POSTAGE_CHARGED,
    EventType.FEE_CHARGED,
    EventType.DISCOUNT_GRANTED,
    EventType.SAMPLE_SENT,
    EventType.MANUALLY_ADJUSTED,
)


def order_state(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return each order as its events leave it, whenever they happened: events are read by the day of their order."""
    del context
    added, cancelled = _is(EventType.ORDER_LINE_ADDED), _is(EventType.LINE_CANCELLED)
    orders = (
        inputs.source.groupBy("order_id", "order_day")
        .agg(
            F.max(_is(EventType.ORDER_PLACED)).alias("placed"),
            F.count(F.lit(1)).alias("source_version"),
            F.min(F.when(_is(EventType.ORDER_PLACED), F.col("business_at"))).alias("placed_at"),
            F.max("business_at").alias("changed_at"),
            # of an order all lines have one customer and, as a rule, one country
            F.max(F.when(added, F.col("customer_id"))).alias("customer_id"),
            F.max(F.when(added, F.col("country"))).alias("country"),
            F.count_if(added).alias("lines"),
            _sum_of("quantity", added, "bigint").alias("pieces"),
            (-_sum_of("quantity", cancelled, "bigint")).alias("pieces_cancelled"),
            _sum_of("amount", added, "decimal(18,3)").alias("goods"),
            (-_sum_of("amount", cancelled, "decimal(18,3)")).alias("goods_cancelled"),
            _sum_of("amount", _is(*_CHARGES), "decimal(18,3)").alias("charges"),
            F.max(F.when(_is(EventType.ORDER_CANCELLED), F.col("business_at"))).alias("deleted_at"),
            # an order that got another line after it was cancelled is there again
            F.max(F.when(_is(EventType.ORDER_CANCELLED), F.col("sequence"))).alias("cancelled_as"),
            F.max(F.when(added, F.col("sequence"))).alias("added_as"),
        )
        .where("placed")
    )
    deleted = F.coalesce(F.col("cancelled_as") > F.col("added_as"), F.lit(False))
    state = F.when(deleted, "CANCELLED").when(F.col("pieces_cancelled") > 0, "PARTLY_CANCELLED").otherwise("OPEN")
    return orders.select(
        "order_id",
        "order_day",
        "source_version",
        "placed_at",
        "changed_at",
        "customer_id",
        "country",
        "lines",
        "pieces",
        "pieces_cancelled",
        "goods",
        "goods_cancelled",
        "charges",
        state.alias("state"),
        deleted.alias("is_deleted"),
        F.when(deleted, F.col("deleted_at")).alias("deleted_at"),
    )


def daily_revenue(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return a row for each day of the context's chunks: a day without events has zeros, and is there."""
    days = inputs.source.sparkSession.createDataFrame(
        [(chunk.start, chunk.end) for chunk in context.chunks], "first date, last date"
    ).select(F.explode(F.sequence("first", "last")).alias("day"))
    money = partial(_sum_of, "amount", kind="decimal(18,3)")
    sums: Iterable[tuple[str, Column]] = (
        ("sold", money(_is(EventType.ORDER_LINE_ADDED))),
        ("cancelled", money(_is(EventType.LINE_CANCELLED))),
        ("postage", money(_is(EventType.POSTAGE_CHARGED))),
        ("discounts", money(_is(EventType.DISCOUNT_GRANTED))),
        ("adjusted", money(_is(EventType.MANUALLY_ADJUSTED))),
        ("fees", money(_is(EventType.FEE_CHARGED, EventType.SAMPLE_SENT))),
        ("bad_debt", money(_is(EventType.BAD_DEBT_ADJUSTED))),
    )
    found = inputs.source.groupBy(F.col("business_day").alias("day")).agg(
        F.count_if(_is(EventType.ORDER_PLACED)).alias("orders"),
        F.count_if(_is(EventType.ORDER_LINE_ADDED)).alias("lines"),
        F.count(F.lit(1)).alias("events"),
        *(column.alias(name) for name, column in sums),
    )
    zero = F.lit(0)
    revenue = F.col("sold") + F.col("cancelled") + F.col("postage") + F.col("discounts") + F.col("adjusted")
    amounts = [F.coalesce(F.col(name), zero).cast("decimal(18,3)").alias(name) for name, _ in sums]
    return days.join(found, "day", "left").select(
        "day",
        *(F.coalesce(F.col(name), zero).cast("bigint").alias(name) for name in ("orders", "lines", "events")),
        *amounts[:5],
        F.coalesce(revenue, zero).cast("decimal(18,3)").alias("revenue"),
        *amounts[5:],
    )


EVENT_VERSIONS = {"1.0.0": TransformVersion(order_events)}
ASIDE_VERSIONS = {"1.0.0": TransformVersion(set_aside)}
STATE_VERSIONS = {"1.0.0": TransformVersion(order_state)}
MONTH_END_VERSIONS = {"1.0.0": TransformVersion(orders_at_month_end)}
REVENUE_VERSIONS = {"1.0.0": TransformVersion(daily_revenue)}
