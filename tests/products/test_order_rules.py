"""The translator of order lines, rule by rule: what each line means, what it repeats, and what a cancellation reverses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

import polars as pl
import pytest

from backfill_assets.products.orders import generator, raw
from backfill_assets.products.orders.lines import Line, identity, line_of
from backfill_assets.products.orders.matching import Reversal, WhyUnmatched
from backfill_assets.products.orders.raw import (
    COUNTRY,
    CUSTOMER,
    DESCRIPTION,
    INVOICE,
    INVOICED,
    PRICE,
    QUANTITY,
    STOCK_CODE,
    Reason,
)
from backfill_assets.products.orders.rules import RULES, EventType, Unclassified, rule_of
from backfill_assets.products.orders.translator import Event, Origin, SetAside, Translated, translate

AT = datetime(2011, 3, 1, 9, tzinfo=UTC)


def line(invoice: str = "536365", code: str = "85123A", pieces: int = 6, price: str = "2.55", **changes: Any) -> Line:
    """Return a line of goods that somebody ordered, unless it is changed."""
    said = Line(
        invoice_no=invoice,
        stock_code=code,
        description="WHITE HANGING HEART",
        quantity=pieces,
        unit_price=Decimal(price),
        customer_id="17850",
        country="United Kingdom",
        invoiced_at=AT,
        business_day=AT.date(),
        source_system="retail-shop",
        source_file="lines.csv",
        source_row=0,
        extracted_at=AT + timedelta(days=300),
    )
    if "days" in changes:
        days = timedelta(days=changes.pop("days"))
        changes |= {"invoiced_at": AT + days, "business_day": (AT + days).date()}
    return replace(said, **changes)


def numbered(*lines: Line) -> list[Line]:
    """Return lines with the rows that they would have in a file."""
    return [replace(one, source_row=place) for place, one in enumerate(lines)]


def translated(*lines: Line) -> Translated:
    return translate(numbered(*lines), "1.0.0")


def of_type(found: Translated, wanted: EventType) -> list[Event]:
    return [one for one in found.events if one.event_type is wanted]


def stock(pieces: int, note: str | None, **changes: Any) -> Line:
    return line("700001", pieces=pieces, price="0", description=note, customer_id=None, **changes)


MEANINGS: list[tuple[Line, EventType | Unclassified]] = [
    (line(), EventType.ORDER_LINE_ADDED),
    (line(price="0"), EventType.ORDER_LINE_ADDED),  # a gift, to somebody
    (line(customer_id=None), EventType.ORDER_LINE_ADDED),
    (line(code="gift_0001_20"), EventType.ORDER_LINE_ADDED),
    (line("C536366", pieces=-6), EventType.LINE_CANCELLED),
    (line("C536366", pieces=-6, customer_id=None), EventType.LINE_CANCELLED),
    (line(code="POST", pieces=1), EventType.POSTAGE_CHARGED),
    (line(code="DOT", pieces=1), EventType.POSTAGE_CHARGED),
    (line(code="C2", pieces=1), EventType.POSTAGE_CHARGED),
    (line("C536366", code="POST", pieces=-1), EventType.POSTAGE_CHARGED),
    (line("C536366", code="BANK CHARGES", pieces=-1), EventType.FEE_CHARGED),
    (line("C536366", code="AMAZONFEE", pieces=-1), EventType.FEE_CHARGED),
    (line("C536366", code="CRUK", pieces=-1), EventType.FEE_CHARGED),
    (line("C536366", code="D", pieces=-1), EventType.DISCOUNT_GRANTED),
    (line("C536366", code="S", pieces=-1), EventType.SAMPLE_SENT),
    (line(code="M", pieces=1), EventType.MANUALLY_ADJUSTED),
    (line(code="m", pieces=1), EventType.MANUALLY_ADJUSTED),
    (line("A563185", code="B", pieces=1, price="11062.06"), EventType.BAD_DEBT_ADJUSTED),
    (line("A563186", code="B", pieces=1, price="-11062.06"), EventType.BAD_DEBT_ADJUSTED),
    (stock(-12, "damages"), EventType.STOCK_WRITTEN_OFF),
    (stock(-12, "Unsaleable, destroyed."), EventType.STOCK_WRITTEN_OFF),
    (stock(-12, "wet/rusty"), EventType.STOCK_WRITTEN_OFF),
    (stock(-12, "?missing"), EventType.STOCK_WRITTEN_OFF),
    (stock(-2, "stock check"), EventType.STOCK_ADJUSTED),
    (stock(-2, "CHECK"), EventType.STOCK_ADJUSTED),
    (stock(25, "Found"), EventType.STOCK_ADJUSTED),
    (stock(3, "reverse 21/5/10 adjustment"), EventType.STOCK_ADJUSTED),
    (line("A563185", code="85123A"), Unclassified.UNKNOWN_ADJUSTMENT),
    (line("X563185"), Unclassified.UNKNOWN_INVOICE_KIND),
    (line("c563185", pieces=-1), Unclassified.UNKNOWN_INVOICE_KIND),
    (line(pieces=0), Unclassified.NO_QUANTITY),
    (line(price="-1"), Unclassified.NEGATIVE_PRICE),
    (line(pieces=-6), Unclassified.SIGN_CONTRADICTS_INVOICE),
    (line("C536366", pieces=6), Unclassified.SIGN_CONTRADICTS_INVOICE),
    (line(code="POST", pieces=-1), Unclassified.SIGN_CONTRADICTS_INVOICE),
    (line(pieces=-6, price="0"), Unclassified.SIGN_CONTRADICTS_INVOICE),  # a customer's, and not the stock's
    (line(code="POST", pieces=1, price="0"), Unclassified.AMOUNT_MISSING),
    (line("C536366", pieces=-6, price="0"), Unclassified.AMOUNT_MISSING),
    (stock(-7, None), Unclassified.STOCK_MOVEMENT_UNEXPLAINED),
    (stock(-7, "?"), Unclassified.STOCK_MOVEMENT_UNEXPLAINED),
    (stock(-7, "sold as set on dotcom"), Unclassified.STOCK_MOVEMENT_UNEXPLAINED),
    (stock(7, None), Unclassified.PRICE_AND_CUSTOMER_MISSING),
    (stock(7, "BLUE CHECK CUSHION COVER"), Unclassified.PRICE_AND_CUSTOMER_MISSING),  # the name of an item is no note
]


@pytest.mark.parametrize(("said", "meaning"), MEANINGS)
def test_a_line_means_what_its_rule_says(said: Line, meaning: EventType | Unclassified) -> None:
    assert rule_of(said).meaning is meaning
    found = translate([said], "1.0.0")
    if isinstance(meaning, Unclassified):
        assert [(one.outcome, one.reason) for one in found.aside] == [(SetAside.UNCLASSIFIED, meaning)]
        assert found.events == ()
    else:
        assert found.aside == ()
        assert [one.event_type for one in found.events if one.origin is Origin.NATIVE] == [meaning]


def test_each_rule_decides_over_a_line_and_each_reason_is_given() -> None:
    decided = {rule_of(said).name for said, _ in MEANINGS}
    assert decided == {rule.name for rule in RULES["1.0.0"]}
    assert {one for _, one in MEANINGS if isinstance(one, Unclassified)} == set(Unclassified)
    native = {one for _, one in MEANINGS if isinstance(one, EventType)}
    assert native == set(EventType) - {EventType.ORDER_PLACED, EventType.ORDER_CANCELLED}


# --- orders and their events --------------------------------------------------------------------------------------------


def test_an_order_is_placed_by_its_first_line_and_that_event_is_synthetic() -> None:
    found = translated(
        line(code="B2", invoiced_at=AT + timedelta(minutes=1)), line(code="A1"), line(code="POST", pieces=1)
    )
    said = [(one.event_type.value, one.origin.value, one.sequence, one.line.stock_code) for one in found.events]
    assert said == [
        ("OrderPlaced", "SYNTHETIC", 0, "A1"),
        ("OrderLineAdded", "NATIVE", 1, "A1"),
        ("PostageCharged", "NATIVE", 2, "POST"),
        ("OrderLineAdded", "NATIVE", 3, "B2"),
    ]
    assert {one.order_id for one in found.events} == {"536365"}
    assert of_type(translated(line(code="POST", pieces=1)), EventType.ORDER_PLACED) == [], "postage alone is no order"


def test_a_repetition_is_set_aside_with_the_line_that_it_repeats() -> None:
    later = AT + timedelta(days=400)
    again = replace(line(), source_file="again.csv", source_row=7, extracted_at=later)
    found = translate([again, *numbered(line(), line(), line(pieces=7))], "1.0.0")
    assert [(one.line.source_file, one.line.source_row) for one in found.aside] == [("lines.csv", 1), ("again.csv", 7)]
    assert {(one.outcome, one.repeats and one.repeats.source_row) for one in found.aside} == {(SetAside.DUPLICATE, 0)}
    assert sum(one.quantity for one in found.events) == 13


def test_events_keep_the_order_of_business_whatever_the_order_of_extraction() -> None:
    sale, back = line(days=0, source_row=9), line("C536400", pieces=-6, days=3, source_row=2)
    found = translate([back, sale], "1.0.0")
    assert [one.event_type for one in found.events] == [
        EventType.ORDER_PLACED,
        EventType.ORDER_LINE_ADDED,
        EventType.LINE_CANCELLED,
        EventType.ORDER_CANCELLED,
    ]


# --- cancellations ------------------------------------------------------------------------------------------------------


def reversals(found: Translated) -> list[tuple[int, str | None, Reversal | None, str | None]]:
    return [
        (one.quantity, one.reverses and one.reverses.invoice_no, one.reversal, one.why)
        for one in of_type(found, EventType.LINE_CANCELLED)
    ]


def test_a_cancellation_reverses_the_latest_earlier_sale_with_pieces_left() -> None:
    sales = [line("1001", pieces=4), line("1002", pieces=5, days=1), line("1003", pieces=9, days=30)]
    found = translated(*sales, line("C1", pieces=-5, days=2), line("C2", pieces=-3, days=3))
    assert reversals(found) == [(-5, "1002", Reversal.MATCHED, None), (-3, "1001", Reversal.MATCHED, None)]
    assert [one.order_id for one in of_type(found, EventType.ORDER_CANCELLED)] == ["1002"]


def test_a_cancellation_of_several_sales_is_an_event_for_each_and_the_rest_is_unmatched() -> None:
    found = translated(line("1001", pieces=4), line("1002", pieces=5, days=1), line("C1", pieces=-11, days=2))
    assert reversals(found) == [
        (-5, "1002", Reversal.PARTLY, None),
        (-4, "1001", Reversal.PARTLY, None),
        (-2, None, Reversal.PARTLY, WhyUnmatched.NOTHING_LEFT),
    ]
    cancelled = of_type(found, EventType.LINE_CANCELLED)
    assert [one.order_id for one in cancelled] == ["1002", "1001", "C1"]
    assert len({one.event_id for one in cancelled}) == 3


@pytest.mark.parametrize(
    "other",
    [
        line("1001", customer_id="99"),
        line("1001", code="85123B"),
        line("1001", price="2.56"),
        line("1001", days=9),
        line("1001", customer_id=None),
    ],
    ids=["another customer", "another item", "another price", "a later sale", "nobody known"],
)
def test_a_cancellation_reverses_no_other_sale(other: Line) -> None:
    found = translated(other, line("C1", pieces=-6, days=2))
    assert reversals(found) == [(-6, None, Reversal.UNMATCHED, WhyUnmatched.NO_EARLIER_SALE)]
    anonymous = translated(line("1001"), line("C1", pieces=-6, days=2, customer_id=None))
    assert reversals(anonymous) == [(-6, None, Reversal.UNMATCHED, WhyUnmatched.NO_CUSTOMER)]


def test_the_suffix_of_an_item_is_compared_in_either_case() -> None:
    found = translated(line("1001", code="85123a"), line("C1", code="85123A", pieces=-6, days=1))
    assert reversals(found) == [(-6, "1001", Reversal.MATCHED, None)]


def test_an_order_that_got_another_line_after_it_was_cancelled_may_be_cancelled_again() -> None:
    found = translated(
        line("1001", pieces=2),
        line("C1", pieces=-2, days=1),
        line("1001", pieces=3, days=2),
        line("C2", pieces=-3, days=3),
    )
    cancelled = of_type(found, EventType.ORDER_CANCELLED)
    assert [one.order_id for one in cancelled] == ["1001", "1001"]
    assert len({one.event_id for one in cancelled}) == 2


# --- what holds of any lines --------------------------------------------------------------------------------------------


def made_up(orders: int, seed: int) -> dict[str, list[Line]]:
    """Return generated lines as they are handed to the translator: those of a customer, or of an invoice, together."""
    frame = generator.generate(orders, seed)
    rows = raw.classify(frame, source_system="generator", source_file="g", ingested_at=AT).lines
    groups: dict[str, list[Line]] = {}
    for row in rows.iter_rows(named=True):
        groups.setdefault(row["customer_id"] or f"invoice {row['invoice_no']}", []).append(line_of(row))
    return groups


def all_events(groups: dict[str, list[Line]]) -> Translated:
    parts = [translate(lines, "1.0.0") for lines in groups.values()]
    return Translated(
        tuple(one for part in parts for one in part.events), tuple(one for part in parts for one in part.aside)
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_same_lines_in_any_order_have_the_same_events(seed: int) -> None:
    groups = made_up(200, seed)
    mixed = {
        name: sorted(lines, key=lambda _: draw.random()) for draw in [Random(seed)] for name, lines in groups.items()
    }
    assert all_events(mixed) == all_events(groups)
    ids = [one.event_id for one in all_events(groups).events]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("until", [date(2010, 12, 20), date(2011, 1, 15), date(2011, 2, 20)])
def test_what_is_known_later_changes_no_event_of_before(until: date) -> None:
    groups = made_up(300, 3)
    early = {name: [one for one in lines if one.business_day <= until] for name, lines in groups.items()}
    whole, part = all_events(groups), all_events({name: lines for name, lines in early.items() if lines})
    assert part.events == tuple(one for one in whole.events if one.line.business_day <= until)
    assert part.aside == tuple(one for one in whole.aside if one.line.business_day <= until)


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_lost_and_nothing_is_cancelled_before_it_was_sold(seed: int) -> None:
    groups = made_up(200, seed)
    found = all_events(groups)
    native = [one for one in found.events if one.origin is Origin.NATIVE]
    lines = [one for every in groups.values() for one in every]
    rows = {one.line.source_row for one in native} | {one.line.source_row for one in found.aside}
    assert rows == {one.source_row for one in lines}
    assert not {one.line.source_row for one in native} & {one.line.source_row for one in found.aside}
    aside = sum((one.line.amount for one in found.aside), Decimal(0))
    assert sum((one.amount for one in native), aside) == sum((one.amount for one in lines), Decimal(0))
    taken: dict[int, int] = {}
    for one in native:
        if one.reverses is not None:
            assert one.reverses.place < one.line.place
            row = one.reverses.source_row
            taken[row] = taken.get(row, 0) - one.quantity
            assert taken[row] <= one.reverses.quantity
    assert taken, "something was cancelled"


def test_ids_are_the_same_in_every_version_of_the_code() -> None:
    """They are on record: an id that changes would make another event of what happened."""
    said = line()
    assert said.line_id == "3bd7d540a8b711255c5a96b8e50595d7"
    assert [one.event_id for one in translate([said], "1.0.0").events] == [
        "cf4677fe68a56745a3597c453082bfa2",
        "5ceea572aac4776bccae3a1b8aad1129",
    ]
    assert identity("a", "bc") != identity("ab", "c")
    assert identity(None) != identity("")


# --- rows that are no lines ---------------------------------------------------------------------------------------------


def classified(rows: Sequence[dict[str, str | None]]) -> raw.Classified:
    good = {
        INVOICE: "536365",
        STOCK_CODE: "85123A",
        DESCRIPTION: "HEART",
        QUANTITY: "6",
        INVOICED: "2010-12-01 08:26:00",
        PRICE: "2.55",
        CUSTOMER: "17850.0",
        COUNTRY: None,
    }
    frame = pl.DataFrame([good | row for row in rows], schema=dict.fromkeys(raw.REQUIRED_COLUMNS, pl.String))
    numbered_rows = frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("source_row"))
    return raw.classify(numbered_rows, source_system="shop", source_file="f.csv", ingested_at=AT)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({INVOICE: None}, Reason.BAD_INVOICE),
        ({INVOICE: "CC1"}, Reason.BAD_INVOICE),
        ({STOCK_CODE: " "}, Reason.BAD_STOCK_CODE),
        ({STOCK_CODE: "a\0b"}, Reason.BAD_STOCK_CODE),
        ({DESCRIPTION: "\ufeffHEART"}, Reason.BAD_DESCRIPTION),
        ({QUANTITY: "6.5"}, Reason.BAD_QUANTITY),
        ({QUANTITY: "3000000000"}, Reason.BAD_QUANTITY),
        ({QUANTITY: None}, Reason.BAD_QUANTITY),
        ({INVOICED: "2010-02-30 08:00:00"}, Reason.BAD_TIME),
        ({INVOICED: "01/12/2010 08:26"}, Reason.BAD_TIME),
        ({INVOICED: "2011-03-27 01:30:00"}, Reason.AMBIGUOUS_TIME),  # skipped
        ({INVOICED: "2011-10-30 01:30:00"}, Reason.AMBIGUOUS_TIME),  # there twice
        ({PRICE: "2.5555"}, Reason.BAD_PRICE),
        ({PRICE: "NaN"}, Reason.BAD_PRICE),
        ({PRICE: None}, Reason.BAD_PRICE),
        ({CUSTOMER: "anonymous"}, Reason.BAD_CUSTOMER),
    ],
)
def test_a_row_that_is_no_line_is_quarantined_with_its_reason(row: dict[str, str | None], reason: Reason) -> None:
    found = classified([{}, row])
    assert found.lines["source_row"].to_list() == [0]
    assert found.quarantined.select("source_row", "reason").rows() == [(1, reason.value)]
    assert found.quarantined["detail"][0].startswith(next(iter(row)))


def test_a_row_is_typed_as_the_shop_meant_it() -> None:
    found = classified([{}, {INVOICED: "2011-06-01T23:30:00", CUSTOMER: None, PRICE: "-0.001", QUANTITY: "-3.0"}])
    first, second = found.lines.iter_rows(named=True)
    assert (first["customer_id"], first["unit_price"], first["quantity"]) == ("17850", Decimal("2.550"), 6)
    assert second["invoiced_at"] == datetime(2011, 6, 1, 22, 30, tzinfo=UTC)
    assert second["business_day"] == date(2011, 6, 1)
    assert (second["customer_id"], second["unit_price"], second["quantity"]) == (None, Decimal("-0.001"), -3)


def test_the_generator_writes_the_same_rows_each_time_and_every_kind_of_dirt() -> None:
    frame = generator.generate(400, 1)
    assert frame.equals(generator.generate(400, 1))
    assert not frame.equals(generator.generate(400, 2))
    reasons = set(raw.classify(frame, source_system="g", source_file="g", ingested_at=AT).quarantined["reason"])
    assert reasons == {"BAD_QUANTITY", "BAD_TIME", "BAD_PRICE", "BAD_INVOICE", "BAD_CUSTOMER", "BAD_STOCK_CODE"}
    found = all_events(made_up(400, 1))
    assert {one.event_type for one in found.events} == set(EventType)
    assert {one.reason for one in found.aside} >= {
        "REPEATS_A_LINE",
        Unclassified.STOCK_MOVEMENT_UNEXPLAINED,
        Unclassified.PRICE_AND_CUSTOMER_MISSING,
        Unclassified.UNKNOWN_INVOICE_KIND,
    }
    assert {one.reversal for one in found.events} == {None, *Reversal}
    assert {one.why for one in found.events} == {None, *WhyUnmatched}
    rows = raw.classify(frame, source_system="g", source_file="g", ingested_at=AT).lines
    assert not rows["invoiced_at"].is_sorted(), "the order of extraction is not that of business"
