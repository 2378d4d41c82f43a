"""Made-up order lines with the dirt of real ones: repeated, cancelled, without customer, without price, out of order, broken.

Put here how an order and its lines come to be. The same number of orders and seed give the same rows on every Python version:
randomness is `random.Random(int).random()` alone, whose sequence Python documents as stable. What a row means is said nowhere
here; tests hold what is made of it against an independent count.
"""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from random import Random
from typing import Final

import polars as pl

from backfill_assets.products.orders.raw import (
    COUNTRY,
    CUSTOMER,
    DESCRIPTION,
    INVOICE,
    INVOICED,
    PRICE,
    QUANTITY,
    REQUIRED_COLUMNS,
    STOCK_CODE,
)

DEFAULT_START: Final = date(2010, 12, 1)
DEFAULT_END: Final = date(2011, 2, 28)
_SATURDAY: Final = 5

Row = dict[str, str | None]
"""A raw row, by the columns of `REQUIRED_COLUMNS`."""

_ITEMS: Final = tuple(
    (f"{20_000 + 7 * number}{suffix}", f"ITEM NUMBER {number} IN BLUE", f"{(number % 23 + 1) * 0.85:.2f}")
    for number, suffix in ((number, ("", "A", "b")[number % 3]) for number in range(40))
)
_CHARGES: Final = (
    ("POST", "POSTAGE", 1, "18.00"),
    ("DOT", "DOTCOM POSTAGE", 1, "32.15"),
    ("C2", "CARRIAGE", 1, "50.00"),
    ("M", "Manual", 1, "12.50"),
)
_TAKEN_BACK: Final = (
    ("D", "Discount", -1, "27.50"),
    ("CRUK", "CRUK Commission", -1, "1.60"),
    ("AMAZONFEE", "AMAZON FEE", -1, "41.20"),
    ("BANK CHARGES", "Bank Charges", -1, "15.00"),
    ("S", "SAMPLES", -1, "33.05"),
    ("POST", "POSTAGE", -1, "18.00"),
)
_STOCK: Final = (
    (-12, "damages"),
    (-3, "thrown away"),
    (-40, "?"),
    (-7, None),
    (9, "found"),
    (30, None),
    (-2, "check"),
    (4, "ITEM NUMBER 3 IN BLUE"),
)
_BROKEN: Final[tuple[Row, ...]] = (
    {QUANTITY: "a dozen"},
    {INVOICED: "01/12/2010 08:26"},
    {PRICE: "1,25"},
    {INVOICE: ""},
    {CUSTOMER: "anonymous"},
    {STOCK_CODE: None},
)


def generate(orders: int, seed: int, start: date = DEFAULT_START, end: date = DEFAULT_END) -> pl.DataFrame:
    """Return the lines of so many orders as text, in the order in which they are delivered, with `source_row`.

    Nobody orders on a Saturday. Every tenth line is delivered later than others of later days: the order of extraction is not
    that of business.
    """
    draw = Random(seed)  # noqa: S311 - no secret
    days = [start + timedelta(days=number) for number in range((end - start).days + 1)]
    days = [day for day in days if day.weekday() != _SATURDAY]
    rows: list[tuple[float, Row]] = []
    sold: list[tuple[datetime, Row]] = []
    for number in range(orders):
        at = _moment(draw, days[number * len(days) // max(orders, 1)])
        for row in _order(draw, number, at, sold, end):
            late = 20.0 * 86_400 * draw.random() if draw.random() < 0.1 else 0.0  # noqa: PLR2004
            rows.append((_seconds(row, start) + late, row))
            if draw.random() < 0.02:  # noqa: PLR2004
                rows.append((_seconds(row, start) + late + 1, dict(row)))
    ordered = [row for _, row in sorted(rows, key=lambda pair: pair[0])]
    for place in range(0, len(ordered), 97):
        ordered.insert(place, {**ordered[place], **_BROKEN[place // 97 % len(_BROKEN)]})
    frame = pl.DataFrame(ordered, schema=dict.fromkeys(REQUIRED_COLUMNS, pl.String))
    return frame.with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias("source_row"))


def _order(draw: Random, number: int, at: datetime, sold: list[tuple[datetime, Row]], end: date) -> list[Row]:
    """Return what is written of one order, and what is cancelled, charged or written off beside it."""
    customer = None if draw.random() < 0.2 else f"{12_000 + int(draw.random() * 25)}.0"  # noqa: PLR2004
    head: Row = {
        INVOICE: f"{536_000 + number}",
        INVOICED: f"{at}",
        CUSTOMER: customer,
        COUNTRY: "EIRE" if number % 9 == 0 else "United Kingdom",
    }
    rows: list[Row] = []
    for place in range(1 + int(draw.random() * 6)):
        code, name, price = _ITEMS[int(draw.random() * len(_ITEMS))]
        pieces = 1 + int(draw.random() * 24)
        # some invoices go on a minute later
        later = {INVOICED: f"{at + timedelta(minutes=1)}"} if place and number % 31 == 0 else {}
        free = "0.0" if customer and draw.random() < 0.02 else price  # noqa: PLR2004
        row: Row = {**head, STOCK_CODE: code, DESCRIPTION: f"{name} ", QUANTITY: f"{pieces}", PRICE: free}
        rows.append({**row, **later})
    sold.extend((at, row) for row in rows)
    if draw.random() < 0.2:  # noqa: PLR2004
        code, name, pieces, price = _CHARGES[number % len(_CHARGES)]
        rows.append({**head, STOCK_CODE: code, DESCRIPTION: name, QUANTITY: f"{pieces}", PRICE: price})
    rows += _beside(draw, number, at, sold, end)
    return rows


def _beside(draw: Random, number: int, at: datetime, sold: list[tuple[datetime, Row]], end: date) -> list[Row]:
    rows: list[Row] = []
    if number % 4 == 1:
        rows += _cancellation(draw, number, at, sold, end)
    if number % 11 == 0:
        code, name, pieces, price = _TAKEN_BACK[number // 11 % len(_TAKEN_BACK)]
        rows.append(_written(f"C{736_000 + number}", at, "12001.0", code, name, pieces, price))
    if number % 7 == 0:
        gone, note = _STOCK[number // 7 % len(_STOCK)]
        rows.append(_written(f"{836_000 + number}", at, None, _ITEMS[number % len(_ITEMS)][0], note, gone, "0.0"))
    if number % 60 == 30:  # noqa: PLR2004
        rows.append(_written(f"A{936_000 + number}", at, None, "B", "Adjust bad debt", 1, "-110.62"))
    if number % 80 == 40:  # noqa: PLR2004
        rows.append(_written(f"X{936_000 + number}", at, "12001.0", "20000", "ITEM", 1, "1.00"))
    return rows


def _cancellation(draw: Random, number: int, at: datetime, sold: list[tuple[datetime, Row]], end: date) -> list[Row]:
    """Return the lines of an invoice that takes back a line, a part, more than was sold, or a whole order."""
    chosen = sold[int(draw.random() * len(sold))][1]
    whole = number % 12 == 1
    taken = [row for _, row in sold if row[INVOICE] == chosen[INVOICE]] if whole else [chosen]
    last = datetime.combine(end, time(18))
    when = min(at + timedelta(days=int(draw.random() ** 2 * 40), hours=1), last)
    rows: list[Row] = []
    for row in taken:
        sign = 1 if whole else (1, 0.5, 1, 1.7)[number // 4 % 4]
        pieces = max(1, int(int(row[QUANTITY] or 1) * sign))
        back: Row = {INVOICE: f"C{636_000 + number}", INVOICED: f"{when}", QUANTITY: f"{-pieces}"}
        rows.append({**row, **back})
    return rows


def _written(
    invoice: str, at: datetime, customer: str | None, code: str, name: str | None, pieces: int, price: str
) -> Row:
    return {
        INVOICE: invoice,
        STOCK_CODE: code,
        DESCRIPTION: name,
        QUANTITY: f"{pieces}",
        INVOICED: f"{at}",
        PRICE: price,
        CUSTOMER: customer,
        COUNTRY: "United Kingdom",
    }


def _moment(draw: Random, day: date) -> datetime:
    return datetime.combine(day, time(7 + int(draw.random() * 11), int(draw.random() * 60)))


def _seconds(row: Row, start: date) -> float:
    return (datetime.fromisoformat(row[INVOICED] or "") - datetime.combine(start, time())).total_seconds()
