"""The tables' columns, as pandera models: the one declaration that every schema is derived from.

Rules that hold within one row or one chunk stand here and are the chunk gate; what compares tables is in `reconciliations`.
Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from typing import Annotated

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.quarantine import Quarantine
from backfill_assets.declarations.schema import Instant, Published, row_rule
from backfill_assets.products.orders.matching import Reversal, WhyUnmatched
from backfill_assets.products.orders.rules import EventType
from backfill_assets.products.orders.translator import Origin, SetAside

Price = Annotated[pl.Decimal, 12, 3]
Amount = Annotated[pl.Decimal, 18, 3]
STATES = ("OPEN", "PARTLY_CANCELLED", "CANCELLED")
SALES = pl.List(
    pl.Struct(
        {
            "stock_code": pl.String,
            "description": pl.String,
            "quantity": pl.Int32,
            "unit_price": pl.Decimal(12, 3),
            "country": pl.String,
            "invoiced_at": pl.Datetime("us", "UTC"),
            "business_day": pl.Date,
            "source_system": pl.String,
            "source_file": pl.String,
            "source_row": pl.Int64,
            "extracted_at": pl.Datetime("us", "UTC"),
            "left": pl.Int32,
        }
    )
)


class OrderLines(pa.DataFrameModel):
    """One row of a delivered file, typed; append-only."""

    invoice_no: str = pa.Field(description="The invoice, with the letter in front of its number.")
    stock_code: str = pa.Field(description="The item, or a code of a charge, as it came.")
    description: str = pa.Field(nullable=True, description="Name of the item, or somebody's note.")
    quantity: pl.Int32 = pa.Field(description="Pieces; below 0 where they come back or are gone.")
    unit_price: Price = pa.Field(description="Price of a piece, in pounds.")
    customer_id: str = pa.Field(nullable=True, description="The customer, where one is known.")
    country: str = pa.Field(nullable=True, description="Where the customer is.")
    invoiced_at: Instant = pa.Field(description="The instant that the line states.")
    business_day: pl.Date = pa.Field(description="Its day at the shop.")
    source_system: str = pa.Field(description="The system that wrote the line.")
    source_file: str = pa.Field(description="File the line came in.")
    source_row: pl.Int64 = pa.Field(ge=0, description="0-based row in that file.")
    extracted_at: Instant = pa.Field(description="When the file was taken over.")


class OrderLinesQuarantine(Quarantine):
    """Rows that are no lines."""


class OrderLinesSetAside(Published):
    """One row per line that is no event."""

    source_file: str = pa.Field(description="File the line came in.")
    source_row: pl.Int64 = pa.Field(ge=0, description="0-based row in that file.")
    business_day: pl.Date = pa.Field(description="The line's day at the shop.")
    outcome: str = pa.Field(isin=tuple(SetAside), description="Whether it repeats a line or cannot be classified.")
    reason: str = pa.Field(description="Which rule could not be met.")
    repeats_file: str = pa.Field(nullable=True, description="File of the line that it repeats.")
    repeats_row: pl.Int64 = pa.Field(nullable=True, description="Row of the line that it repeats.")
    line_id: str = pa.Field(description="The same for lines that say the same.")
    invoice_no: str = pa.Field(description="The invoice.")
    stock_code: str = pa.Field(description="The item.")
    description: str = pa.Field(nullable=True, description="Name of the item, or somebody's note.")
    quantity: pl.Int32 = pa.Field(description="Pieces.")
    unit_price: Price = pa.Field(description="Price of a piece.")
    customer_id: str = pa.Field(nullable=True, description="The customer.")

    class Config:
        """The key is unique."""

        unique = ["source_file", "source_row"]  # noqa: RUF012 - pandera's way

    @row_rule("a repetition names the line that it repeats, and nothing else does")
    def _names_what_it_repeats(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        repeats = pl.col("outcome") == SetAside.DUPLICATE.value
        return data.lazyframe.select(repeats == pl.col("repeats_row").is_not_null())


class OrderEvents(Published):
    """One row per domain event."""

    event_id: str = pa.Field(str_length=32, description="Hash of what happened: the same event has the same id.")
    event_type: str = pa.Field(isin=tuple(EventType), description="What happened.")
    origin: str = pa.Field(isin=tuple(Origin), description="NATIVE: a line says so. SYNTHETIC: it follows from lines.")
    order_id: str = pa.Field(description="The order that it is about: of a cancellation the one it reverses.")
    order_day: pl.Date = pa.Field(description="The day of that order.")
    sequence: pl.Int32 = pa.Field(ge=0, description="Place among the events of the order, from 0.")
    business_at: Instant = pa.Field(nullable=True, description="When it happened, where that is known.")
    business_day: pl.Date = pa.Field(description="The day at the shop.")
    invoice_no: str = pa.Field(description="The invoice that says so.")
    stock_code: str = pa.Field(nullable=True, description="The item; none of a synthetic event.")
    description: str = pa.Field(nullable=True, description="Name of the item, or somebody's note.")
    quantity: pl.Int32 = pa.Field(description="Pieces, with their sign; 0 of a synthetic event.")
    unit_price: Price = pa.Field(nullable=True, description="Price of a piece.")
    amount: Amount = pa.Field(description="Quantity by price.")
    customer_id: str = pa.Field(nullable=True, description="The customer, where one is known.")
    country: str = pa.Field(nullable=True, description="Where the customer is.")
    reversal: str = pa.Field(nullable=True, isin=tuple(Reversal), description="How much of a cancellation has a sale.")
    why_unmatched: str = pa.Field(nullable=True, isin=tuple(WhyUnmatched), description="Why these pieces have none.")
    reverses_event_id: str = pa.Field(nullable=True, description="The OrderLineAdded that it reverses.")
    reversed_at: Instant = pa.Field(nullable=True, description="When that happened.")
    reverses_file: str = pa.Field(nullable=True, description="File of the line that it reverses.")
    reverses_row: pl.Int64 = pa.Field(nullable=True, description="Row of the line that it reverses.")
    source_system: str = pa.Field(description="The system that wrote the line.")
    source_file: str = pa.Field(description="File of the line that says so, or from which it is known.")
    source_row: pl.Int64 = pa.Field(ge=0, description="0-based row in that file.")
    extracted_at: Instant = pa.Field(description="When that file was taken over.")

    class Config:
        """The key is unique."""

        unique = ["event_id"]  # noqa: RUF012 - pandera's way

    @row_rule("no line is cancelled before it was placed")
    def _causality(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("reversed_at") <= pl.col("business_at"))

    @row_rule("a cancellation names the sale that it reverses, or says why there is none")
    def _named(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        cancels = pl.col("event_type") == EventType.LINE_CANCELLED.value
        named = pl.col("reverses_event_id").is_not_null() != pl.col("why_unmatched").is_not_null()
        nothing = pl.col("reverses_event_id").is_null() & pl.col("why_unmatched").is_null()
        return data.lazyframe.select(pl.when(cancels).then(named).otherwise(nothing))

    @row_rule("an amount is quantity by price")
    def _amount(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        price = pl.col("unit_price").cast(pl.Decimal(38, 3)).fill_null(0)
        return data.lazyframe.select(pl.col("amount").cast(pl.Decimal(38, 3)) == price * pl.col("quantity"))

    @row_rule("nothing happens before the day of its order")
    def _not_before_its_order(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("business_day") >= pl.col("order_day"))


class OrdersAtMonthEnd(Published):
    """One row per order and end of a month: what the lines up to then leave of it, and all that is needed to go on from there."""

    as_of: pl.Date = pa.Field(description="The last day of a month; lines of later days are not in it.")
    account: str = pa.Field(description="Whose it is: the customer, or the invoice where none is known.")
    order_id: str = pa.Field(description="The order, or another invoice: of a cancellation its own.")
    order_day: pl.Date = pa.Field(description="Its first day.")
    customer_id: str = pa.Field(nullable=True, description="The customer, of an order with sales.")
    is_placed: bool = pa.Field(description="Whether goods were ordered on it.")
    pieces_left: pl.Int64 = pa.Field(ge=0, description="Pieces that were paid for and are not cancelled.")
    is_open: bool = pa.Field(description="Whether anything is left of it.")
    times_cancelled: pl.Int32 = pa.Field(ge=0, description="How often nothing of it was left.")
    events: pl.Int32 = pa.Field(ge=0, description="How many events there are of it.")
    sales: SALES = pa.Field(  # type: ignore[valid-type]
        description="Its lines that a cancellation can take back, in the order of business, with the pieces left."
    )

    class Config:
        """The key is unique."""

        unique = ["as_of", "account", "order_id"]  # noqa: RUF012 - pandera's way

    @row_rule("a state is of the last day of a month")
    def _month_end(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("as_of") == pl.col("as_of").dt.month_end())

    @row_rule("an order is open as long as pieces of it are left")
    def _open(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select(pl.col("is_open") == (pl.col("pieces_left") > 0))

    @row_rule("what is left of a customer's order is left of its sales")
    def _left(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        left = pl.col("sales").list.eval(pl.element().struct.field("left")).list.sum()
        return data.lazyframe.select(pl.col("customer_id").is_null() | (left == pl.col("pieces_left")))


class OrderState(Published):
    """One row per order, as the newest of its events leaves it."""

    order_id: str = pa.Field(description="The order.")
    order_day: pl.Date = pa.Field(description="The day on which it was placed.")
    source_version: pl.Int64 = pa.Field(ge=1, description="How many events it is made of: a newer state has more.")
    placed_at: Instant = pa.Field(description="When it was placed.")
    changed_at: Instant = pa.Field(description="When the newest of its events happened.")
    customer_id: str = pa.Field(nullable=True, description="The customer, where one is known.")
    country: str = pa.Field(nullable=True, description="Where the customer is.")
    lines: pl.Int64 = pa.Field(ge=1, description="Lines of goods.")
    pieces: pl.Int64 = pa.Field(ge=1, description="Pieces ordered.")
    pieces_cancelled: pl.Int64 = pa.Field(ge=0, description="Pieces taken back.")
    goods: Amount = pa.Field(ge=0, description="Worth of the pieces ordered.")
    goods_cancelled: Amount = pa.Field(ge=0, description="Worth of the pieces taken back.")
    charges: Amount = pa.Field(description="What else its invoice charges.")
    state: str = pa.Field(isin=STATES, description="OPEN, PARTLY_CANCELLED or CANCELLED.")
    is_deleted: bool = pa.Field(description="Whether nothing of it is left: readers of open orders leave it out.")
    deleted_at: Instant = pa.Field(nullable=True, description="When the last of it was cancelled.")

    class Config:
        """The key is unique."""

        unique = ["order_id"]  # noqa: RUF012 - pandera's way

    @row_rule("no more is taken back than was ordered")
    def _no_more_than_ordered(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        pieces = pl.col("pieces_cancelled") <= pl.col("pieces")
        return data.lazyframe.select(pieces & (pl.col("goods_cancelled") <= pl.col("goods")))

    @row_rule("an order is deleted exactly where it is cancelled, and says when")
    def _deleted(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        cancelled, deleted = pl.col("state") == "CANCELLED", pl.col("is_deleted")
        return data.lazyframe.select((cancelled == deleted) & (deleted == pl.col("deleted_at").is_not_null()))


class DailyRevenue(Published):
    """One row per calendar day, also of one without orders."""

    day: pl.Date = pa.Field(description="The day at the shop.")
    orders: pl.Int64 = pa.Field(ge=0, description="Orders placed.")
    lines: pl.Int64 = pa.Field(ge=0, description="Lines of goods added.")
    events: pl.Int64 = pa.Field(ge=0, description="Events of the day, of any type.")
    sold: Amount = pa.Field(ge=0, description="Goods ordered.")
    cancelled: Amount = pa.Field(le=0, description="Goods taken back, below 0.")
    postage: Amount = pa.Field(description="Postage and carriage charged, less what was taken back.")
    discounts: Amount = pa.Field(description="Discounts granted, below 0.")
    adjusted: Amount = pa.Field(description="What was adjusted by hand.")
    revenue: Amount = pa.Field(description="The five of these together.")
    fees: Amount = pa.Field(description="Fees of others and samples: no revenue.")
    bad_debt: Amount = pa.Field(description="Bad debt adjusted: no revenue.")

    class Config:
        """The key is unique."""

        unique = ["day"]  # noqa: RUF012 - pandera's way

    @row_rule("revenue is the sum of its parts")
    def _sum(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        parts = pl.sum_horizontal(
            pl.col("sold", "cancelled", "postage", "discounts", "adjusted").cast(pl.Decimal(38, 3))
        )
        return data.lazyframe.select(pl.col("revenue").cast(pl.Decimal(38, 3)) == parts)

    @row_rule("a day without events has nothing")
    def _empty(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        return data.lazyframe.select((pl.col("events") > 0) | (pl.col("lines") + pl.col("orders") == 0))


def measure_order_events(rows: pl.DataFrame) -> pl.DataFrame:
    """Count events, their pieces and their tenths of a cent by type and origin."""
    return rows.group_by("event_type", "origin", maintain_order=True).agg(
        rows=pl.len().cast(pl.Int64),
        pieces=pl.col("quantity").cast(pl.Int64).sum(),
        mils=(pl.col("amount") * 1000).cast(pl.Int64).sum(),
    )


def measure_order_state(rows: pl.DataFrame) -> pl.DataFrame:
    """Count orders and their pieces by state."""
    return rows.group_by("state", maintain_order=True).agg(
        rows=pl.len().cast(pl.Int64), pieces=pl.col("pieces").sum(), cancelled=pl.col("pieces_cancelled").sum()
    )
