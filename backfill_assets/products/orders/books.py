"""Books of orders, written down as rows of the month ends and opened again from them.

Put here what a row has of an order, and how the translator goes on from rows. What is in a book, and what lines do to it, is
`translator`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from typing import Any

from backfill_assets.products.orders.lines import COLUMNS, Line
from backfill_assets.products.orders.matching import Sale
from backfill_assets.products.orders.translator import Book, Order

SALE_COLUMNS = tuple(name for name in COLUMNS if name not in {"invoice_no", "customer_id"})
"""What is written of the line of a sale; its order and its customer are those of the row."""


def rows_of(book: Book, account: str, as_of: date) -> Iterator[dict[str, Any]]:
    """Yield a row for each order of a book, with its sales; of one without a customer without any: no cancellation finds them."""
    sales: dict[str, list[dict[str, Any]]] = {}
    customers: dict[str, str] = {}
    for sale in book.sales.all:
        line = sale.line
        if line.customer_id is not None:
            customers[line.invoice_no] = line.customer_id
            written = {name: getattr(line, name) for name in SALE_COLUMNS}
            sales.setdefault(line.invoice_no, []).append(written | {"left": sale.left})
    for name, order in book.orders.items():
        yield {
            "as_of": as_of,
            "account": account,
            "order_id": name,
            "order_day": order.day,
            "customer_id": customers.get(name),
            "is_placed": order.placed,
            "pieces_left": order.left,
            "is_open": order.left > 0,
            "times_cancelled": order.cancelled,
            "events": order.events,
            "sales": sales.get(name, []),
        }


def opened(rows: Iterable[Mapping[str, Any]], lines: Collection[Line]) -> Book:
    """Return the book of an account as its rows of a day have it, to enter later lines into.

    Only sales are taken over that a line of these could take back: the others change nothing.
    """
    taken_back = {(line.item, line.unit_price) for line in lines if line.quantity < 0}
    book, sales = Book(), list[Sale]()
    for row in rows:
        book.orders[row["order_id"]] = Order(
            row["order_day"], row["is_placed"], row["pieces_left"], row["times_cancelled"], row["events"]
        )
        of_order = {"invoice_no": row["order_id"], "customer_id": row["customer_id"]}
        for written in row["sales"] if taken_back else ():
            said = written | of_order
            line = Line(*(said[name] for name in COLUMNS))
            if (line.item, line.unit_price) in taken_back:
                sales.append(Sale(line, written["left"]))
    for sale in sorted(sales, key=lambda one: one.line.place):
        book.sales.take_over(sale)
    return book
