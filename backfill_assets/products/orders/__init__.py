"""Orders of a shop: domain events rebuilt from the lines of invoices, the state of each order, and revenue by day."""

from __future__ import annotations

from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.source_tables import SourceTable, StartsFrom, Window
from backfill_assets.declarations.target import ColumnOrigin, TargetTable
from backfill_assets.products.orders import reconciliations, schemas, transforms
from manifests.chunks import Chunking
from manifests.merge_policy import MergePolicy

OWNERS = ("team:order-data",)
_YEARS_LATER = 36_500
"""Days after an order in which a line may take it back: no rule ends that."""

ORDER_LINES = InputTable(
    name=transforms.LINES,
    description="Every line of every delivered file, typed, with its place in it. Append-only.",
    model=schemas.OrderLines,
    owners=OWNERS,
    partition_by="invoiced_at",
)
QUARANTINE = InputTable(
    name="bronze.order_lines_quarantine",
    description="Rows of delivered files that are no lines, with the reason and the raw row.",
    model=schemas.OrderLinesQuarantine,
    owners=OWNERS,
    quarantine_of=ORDER_LINES.name,
)


def _from_lines(*columns: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(ORDER_LINES.name, column) for column in columns)


def _from_events(*columns: str) -> tuple[ColumnOrigin, ...]:
    return tuple(ColumnOrigin(transforms.EVENTS, column) for column in columns)


SET_ASIDE = TargetTable(
    name=transforms.ASIDE,
    description="Lines that are no events: repetitions of others, and those that cannot be classified with confidence.",
    model=schemas.OrderLinesSetAside,
    key=("source_file", "source_row"),
    day_column="business_day",
    chunking=Chunking.MONTH,
    chunks_from="2009-01",
    source=ORDER_LINES.name,
    source_time_column="invoiced_at",
    look_back_columns=transforms.LOOK_BACK_COLUMNS,
    versions=transforms.ASIDE_VERSIONS,
    owners=OWNERS,
    column_origins={name: _from_lines(name) for name in ("source_file", "source_row", "invoice_no", "customer_id")},
)
ORDER_EVENTS = TargetTable(
    name=transforms.EVENTS,
    description="What happened, event by event: orders placed, lines added and cancelled, charges, stock written off.",
    model=schemas.OrderEvents,
    key=("event_id",),
    day_column="business_day",
    chunking=Chunking.MONTH,
    chunks_from="2009-01",
    source=ORDER_LINES.name,
    source_time_column="invoiced_at",
    # a gate holds every line against those that are set aside
    sources=(SourceTable(SET_ASIDE.name, "business_day", may_be_empty=True, for_gates=True),),
    look_back_columns=transforms.LOOK_BACK_COLUMNS,
    versions=transforms.EVENT_VERSIONS,
    starts_from=StartsFrom(transforms.MONTH_ENDS, "business_day", fits={"1.0.0": ("1.0.0",)}),
    measure=schemas.measure_order_events,
    reconciliations=reconciliations.EVENTS,
    owners=OWNERS,
    column_origins={
        name: _from_lines(name) for name in ("invoice_no", "customer_id", "stock_code", "source_file", "source_row")
    },
)
ORDERS_AT_MONTH_END = TargetTable(
    name=transforms.MONTH_ENDS,
    description="Each order at the end of each month, with what is left of its sales: later months can be computed from it.",
    model=schemas.OrdersAtMonthEnd,
    key=("as_of", "account", "order_id"),
    day_column="as_of",
    chunking=Chunking.MONTH,
    chunks_from="2009-01",
    source=ORDER_LINES.name,
    source_time_column="invoiced_at",
    look_back_columns=transforms.LOOK_BACK_COLUMNS,
    versions=transforms.MONTH_END_VERSIONS,
    owners=OWNERS,
    column_origins={"order_id": _from_lines("invoice_no"), "customer_id": _from_lines("customer_id")},
)
ORDER_STATE = TargetTable(
    name="silver.order_state",
    description="Each order as its newest event leaves it; one of which nothing is left is there, and says so.",
    model=schemas.OrderState,
    key=("order_id",),
    day_column="order_day",
    chunking=Chunking.MONTH,
    chunks_from="2009-01",
    source=ORDER_EVENTS.name,
    # events are read by the day of their order, whenever they happened: a cancellation reaches the order that it reverses
    source_time_column="order_day",
    # a gate computes the states from the lines, those of later days among them
    sources=(
        SourceTable(
            ORDER_LINES.name, "invoiced_at", Window(before=None, after=_YEARS_LATER), may_be_empty=True, for_gates=True
        ),
    ),
    reconciliations=reconciliations.STATE,
    versions=transforms.STATE_VERSIONS,
    measure=schemas.measure_order_state,
    entity="order_id",
    version_column="source_version",
    merge_policy=MergePolicy(),
    owners=OWNERS,
    column_origins={
        "order_id": _from_events("order_id"),
        "customer_id": _from_events("customer_id"),
        "state": _from_events("event_type", "quantity"),
    },
)
DAILY_REVENUE = TargetTable(
    name="gold.daily_revenue",
    description="A row per calendar day: what was sold, cancelled and charged; a day without orders has zeros.",
    model=schemas.DailyRevenue,
    key=("day",),
    day_column="day",
    chunking=Chunking.DAY,
    chunks_from="2009-01-01",
    chunks_until="2030-12-31",
    source=ORDER_EVENTS.name,
    source_time_column="business_day",
    versions=transforms.REVENUE_VERSIONS,
    reconciliations=reconciliations.REVENUE,
    owners=OWNERS,
    column_origins={"revenue": _from_events("amount", "event_type"), "day": _from_events("business_day")},
)

PRODUCT = Product(
    name="orders",
    inputs=(ORDER_LINES, QUARANTINE),
    targets=(SET_ASIDE, ORDERS_AT_MONTH_END, ORDER_EVENTS, ORDER_STATE, DAILY_REVENUE),
    loaders={"order-lines": "backfill_assets.products.orders.loading:ORDER_LINES"},
)
