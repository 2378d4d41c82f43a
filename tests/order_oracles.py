"""What orders come to by other ways than the product's: a query and plain loops over a delivered file of order lines.

Nothing of the product is imported here: one mistake must not be made on both sides of a comparison.
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl

NO_GOODS = ("POST", "DOT", "C2", "BANK CHARGES", "AMAZONFEE", "CRUK", "D", "S", "M")
_SAID = ("InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country")


def revenue_by_day(file: Path) -> dict[date, dict[str, Decimal]]:
    """Return what each day with an amount comes to, by kind: one query of Polars straight over a Parquet file."""
    code, invoice = pl.col("StockCode").str.to_uppercase(), pl.col("InvoiceNo")
    pieces = pl.col("Quantity").cast(pl.Int64, strict=False)
    # in thousandths of a pound, which are whole
    price = (pl.col("UnitPrice").cast(pl.Float64, strict=False) * 1000).round().cast(pl.Int64)
    customer = pl.col("CustomerID")
    readable = (
        invoice.str.contains("^[A-Z]?[0-9]+$")
        & code.is_not_null()
        & (customer.is_null() | customer.cast(pl.Float64, strict=False).is_not_null())
    )
    kind = (
        pl.when(invoice.str.starts_with("A") & (code == "B"))
        .then(pl.lit("bad_debt"))
        .when((price <= 0) | (invoice.str.starts_with("C") != (pieces < 0)) | ~invoice.str.contains("^C?[0-9]+$"))
        .then(None)
        .when(code.is_in(["POST", "DOT", "C2"]))
        .then(pl.lit("postage"))
        .when(code.is_in(["BANK CHARGES", "AMAZONFEE", "CRUK", "S"]))
        .then(pl.lit("fees"))
        .when(code == "D")
        .then(pl.lit("discounts"))
        .when(code == "M")
        .then(pl.lit("adjusted"))
        .otherwise(pl.when(pieces > 0).then(pl.lit("sold")).otherwise(pl.lit("cancelled")))
    )
    rows = pl.scan_parquet(file).select(_SAID).unique().filter(readable)
    day = pl.col("InvoiceDate").str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    valued = rows.select(day=day, kind=kind, amount=pieces * price).drop_nulls()
    found: dict[date, dict[str, Decimal]] = defaultdict(dict)
    for when, what, amount in valued.group_by("day", "kind").agg(pl.col("amount").sum()).collect().iter_rows():
        found[when][what] = Decimal(amount) / 1000
    return dict(found)


def repeated_lines(file: Path) -> int:
    """Return how many lines of a file say exactly what another one says."""
    rows = pl.read_parquet(file, columns=list(_SAID))
    return rows.height - rows.unique().height


def states_of(file: Path) -> dict[str, dict[str, Any]]:
    """Return the state of each order, computed row by row: each cancellation looks through all earlier sales, latest first."""
    orders: dict[str, dict[str, Any]] = {}
    sales: dict[tuple[str, str, Decimal], list[dict[str, Any]]] = defaultdict(list)
    for row in _in_time(file):
        invoice, code, pieces, price = row["invoice"], row["code"], row["pieces"], row["price"]
        if (
            invoice.isdigit()
            and pieces > 0
            and code not in NO_GOODS
            and (price > 0 or (price == 0 and row["customer"]))
        ):
            order = orders.setdefault(invoice, _placed(row))
            order["lines"] += 1
            order["pieces"] += pieces
            order["goods"] += pieces * price
            order["left"] += pieces if price else 0
            order["deleted_at"] = None if price else order["deleted_at"]
            order["events"] += 1
            order["changed_at"] = row["at"]
            if row["customer"] and price:
                sales[row["customer"], code, price].append({"order": invoice, "left": pieces})
        elif invoice.startswith("C") and pieces < 0 and price > 0 and code not in NO_GOODS and row["customer"]:
            wanted = -pieces
            for sale in reversed(sales[row["customer"], code, price]):
                taken = min(wanted, sale["left"])
                if taken:
                    sale["left"] -= taken
                    wanted -= taken
                    _take_back(orders[sale["order"]], taken, price, row["at"])
    _charge(file, orders)
    return {name: _finished(order) for name, order in orders.items()}


def _placed(row: dict[str, Any]) -> dict[str, Any]:
    start = {"placed_at": row["at"], "customer": row["customer"], "events": 1, "deleted_at": None, "left": 0}
    sums = {"lines": 0, "pieces": 0, "goods": Decimal(0), "pieces_cancelled": 0, "goods_cancelled": Decimal(0)}
    return start | sums | {"charges": Decimal(0)}


def _take_back(order: dict[str, Any], taken: int, price: Decimal, at: datetime) -> None:
    order["pieces_cancelled"] += taken
    order["goods_cancelled"] += taken * price
    order["left"] -= taken
    order["events"] += 1
    order["changed_at"] = at
    if not order["left"]:
        order["deleted_at"] = at
        order["events"] += 1


def _charge(file: Path, orders: dict[str, dict[str, Any]]) -> None:
    """Add what an order's own invoice charges beside goods, whenever in it the charge is written."""
    for row in _in_time(file):
        order = orders.get(row["invoice"])
        if order is not None and row["code"] in NO_GOODS and row["pieces"] > 0 and row["price"] > 0:
            order["charges"] += row["pieces"] * row["price"]
            order["events"] += 1
            order["changed_at"] = max(order["changed_at"], row["at"])


def _finished(order: dict[str, Any]) -> dict[str, Any]:
    deleted = order["deleted_at"] is not None
    state = "CANCELLED" if deleted else "PARTLY_CANCELLED" if order["pieces_cancelled"] else "OPEN"
    return {name: value for name, value in order.items() if name != "left"} | {"state": state, "is_deleted": deleted}


def _in_time(file: Path) -> list[dict[str, Any]]:
    """Return what is said by lines that can be read, each thing once, in the order of the time that lines state."""
    seen, rows = set(), []
    for place, said in enumerate(pl.read_parquet(file, columns=list(_SAID)).iter_rows()):
        row = _read(said)
        if row is not None and said not in seen:
            seen.add(said)
            rows.append((row["at"], place, row))
    return [row for _, _, row in sorted(rows, key=lambda one: one[:2])]


def _read(said: tuple[Any, ...]) -> dict[str, Any] | None:
    invoice, code, _, pieces, at, price, customer, _ = said
    try:
        local = datetime.strptime(str(at), "%Y-%m-%d %H:%M:%S").replace(tzinfo=ZoneInfo("Europe/London"))
        known = None if customer is None else str(int(float(customer)))
        read = {"pieces": int(pieces), "price": round(Decimal(str(price)), 3), "at": local.astimezone(UTC)}
    except (ValueError, ArithmeticError):
        return None
    if not code or not re.fullmatch("[A-Z]?[0-9]+", invoice or ""):
        return None
    return {"invoice": invoice, "code": code.upper(), "customer": known} | read
