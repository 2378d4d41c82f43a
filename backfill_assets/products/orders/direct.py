"""The state of orders straight from rows of lines, without events: plain loops, by which the states from events are judged.

Put here what that needs, and nothing of the translator, its rules or its matching: one mistake must not be made on both sides of a
comparison. What is compared, and what is said of it, is `reconciliations`'. Imported by Spark's Python workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

SAID = (
    "invoice_no",
    "stock_code",
    "description",
    "quantity",
    "unit_price",
    "customer_id",
    "country",
    "invoiced_at",
)
"""What a row says: of rows that say the same in all of it, one counts."""
PLACE = ("extracted_at", "source_file", "source_row")
READ = (*SAID, "business_day", *PLACE)
"""The columns of a line that a state is computed from."""
COMPARED = (
    "placed_at",
    "lines",
    "pieces",
    "pieces_cancelled",
    "goods",
    "goods_cancelled",
    "charges",
    "state",
    "deleted_at",
)
"""The columns of a state that follow from rows of lines alone."""
_NO_GOODS = ("POST", "DOT", "C2", "BANK CHARGES", "AMAZONFEE", "CRUK", "D", "S", "M")

Row = Mapping[str, Any]


def states_of(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the state of each order among rows of lines of one customer, or of one invoice without a customer.

    Each cancellation looks through all sales so far, the latest first.
    """
    orders: dict[str, dict[str, Any]] = {}
    days: dict[str, Any] = {}
    sales: list[dict[str, Any]] = []
    charges: defaultdict[str, Decimal] = defaultdict(Decimal)
    for row in _in_time(rows):
        number, code, pieces, price = row["invoice_no"], row["stock_code"].upper(), row["quantity"], row["unit_price"]
        if number.isdigit() and pieces > 0 and price > 0 and code in _NO_GOODS:
            days.setdefault(number, row["business_day"])
            charges[number] += pieces * price
        elif number.isdigit() and pieces > 0 and code not in _NO_GOODS and _is_ordered(row):
            day = days.setdefault(number, row["business_day"])
            order = orders.setdefault(number, _placed(number, day, row))
            order["lines"] += 1
            order["pieces"] += pieces
            order["goods"] += pieces * price
            if price > 0:
                order["left"] += pieces
                sales.append({"order": number, "what": (code, price), "left": pieces})
            order["deleted_at"] = None
        elif number.startswith("C") and pieces < 0 and price > 0 and code not in _NO_GOODS and row["customer_id"]:
            _take_back(row, (code, price), -pieces, sales, orders)
    return [_finished(order, charges[name]) for name, order in orders.items()]


def _in_time(rows: Iterable[Row]) -> list[Row]:
    """Return what rows say, each thing once, in the order of the time that they state."""
    ordered = sorted(rows, key=lambda row: (row["invoiced_at"], *(row[name] for name in PLACE)))
    said: dict[tuple[Any, ...], Row] = {}
    for row in ordered:
        said.setdefault(tuple(row[name] for name in SAID), row)
    return list(said.values())


def _is_ordered(row: Row) -> bool:
    return bool(row["unit_price"] > 0 or (row["unit_price"] == 0 and row["customer_id"] is not None))


def _placed(number: str, day: Any, row: Row) -> dict[str, Any]:
    sums = {"lines": 0, "pieces": 0, "pieces_cancelled": 0, "goods": Decimal(0), "goods_cancelled": Decimal(0)}
    return {
        "order_id": number,
        "order_day": day,
        "placed_at": row["invoiced_at"],
        "deleted_at": None,
        "left": 0,
        **sums,
    }


def _take_back(
    row: Row, what: tuple[str, Decimal], wanted: int, sales: list[dict[str, Any]], orders: Mapping[str, dict[str, Any]]
) -> None:
    for sale in reversed(sales):
        taken = min(wanted, sale["left"]) if sale["what"] == what else 0
        if not taken:
            continue
        sale["left"] -= taken
        wanted -= taken
        order = orders[sale["order"]]
        order["left"] -= taken
        order["pieces_cancelled"] += taken
        order["goods_cancelled"] += taken * what[1]
        if not order["left"]:
            order["deleted_at"] = row["invoiced_at"]


def _finished(order: dict[str, Any], charges: Decimal) -> dict[str, Any]:
    deleted = order["deleted_at"] is not None
    state = "CANCELLED" if deleted else "PARTLY_CANCELLED" if order["pieces_cancelled"] else "OPEN"
    kept = {name: value for name, value in order.items() if name != "left"}
    return kept | {"charges": charges, "state": state}
