"""What a line means: the rules by which each is a domain event of some type, or cannot be classified with confidence.

Put here what can be said of one line alone. What it repeats or reverses is told from other lines, by `translator` and
`matching`. The first rule that holds decides; each has its name, by which it is counted and tested.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from backfill_assets.products.orders.lines import Line


class EventType(StrEnum):
    """What happened, in the words of the domain."""

    ORDER_PLACED = "OrderPlaced"
    ORDER_LINE_ADDED = "OrderLineAdded"
    LINE_CANCELLED = "LineCancelled"
    ORDER_CANCELLED = "OrderCancelled"
    STOCK_WRITTEN_OFF = "StockWrittenOff"
    STOCK_ADJUSTED = "StockAdjusted"
    POSTAGE_CHARGED = "PostageCharged"
    FEE_CHARGED = "FeeCharged"
    DISCOUNT_GRANTED = "DiscountGranted"
    SAMPLE_SENT = "SampleSent"
    MANUALLY_ADJUSTED = "ManuallyAdjusted"
    BAD_DEBT_ADJUSTED = "BadDebtAdjusted"


class Unclassified(StrEnum):
    """Why a line is no event."""

    UNKNOWN_INVOICE_KIND = "UNKNOWN_INVOICE_KIND"
    """The letter before the number is none that is known."""
    UNKNOWN_ADJUSTMENT = "UNKNOWN_ADJUSTMENT"
    """An adjustment invoice of something else than bad debt."""
    NO_QUANTITY = "NO_QUANTITY"
    """A line of nothing."""
    NEGATIVE_PRICE = "NEGATIVE_PRICE"
    """Only an adjustment of bad debt has a price below 0."""
    SIGN_CONTRADICTS_INVOICE = "SIGN_CONTRADICTS_INVOICE"
    """A cancellation that adds pieces, or an invoice with a price or a customer that takes some away."""
    AMOUNT_MISSING = "AMOUNT_MISSING"
    """A charge, discount or cancellation without a price."""
    PRICE_AND_CUSTOMER_MISSING = "PRICE_AND_CUSTOMER_MISSING"
    """Goods that nobody has paid for and nobody has got; no word says that they were found in the stock."""
    STOCK_MOVEMENT_UNEXPLAINED = "STOCK_MOVEMENT_UNEXPLAINED"
    """Pieces that are gone without a sale; no word says whether they were lost or only counted."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what it asks of a line, and what a line is for which it holds."""

    name: str
    holds: Callable[[Line], bool]
    meaning: EventType | Unclassified


CHARGES = {
    "POST": EventType.POSTAGE_CHARGED,
    "DOT": EventType.POSTAGE_CHARGED,
    "C2": EventType.POSTAGE_CHARGED,
    "BANK CHARGES": EventType.FEE_CHARGED,
    "AMAZONFEE": EventType.FEE_CHARGED,
    "CRUK": EventType.FEE_CHARGED,
    "D": EventType.DISCOUNT_GRANTED,
    "S": EventType.SAMPLE_SENT,
    "M": EventType.MANUALLY_ADJUSTED,
}
"""Stock codes that are no goods, and what a line of one is; below 0 it is taken back."""
BAD_DEBT = "B"

_LOST = re.compile(
    r"damag|broken|break|smash|crush|crack|\bwet\b|rust|mou?ld|destroy|throw|unsale?able|faulty|missing|\blost\b|dirty|"
    r"stain|discolou?r|smudge|dagamed|water|rotting"
)
_COUNTED = re.compile(
    r"found|adjust|\bcount|\bcheck|re-?vers|incorrect|\bstock\b|barcode|wrong(?:ly)? (?:cod|mark|barcod)|mix(?:ed)? ?up|correct"
)


def _note(line: Line) -> str:
    """Return what somebody in the warehouse has noted, in small letters; the name of an item, in capitals, is no note."""
    text = (line.description or "").strip()
    return "" if text.isupper() and " " in text else text.lower()


def is_cancellation(line: Line) -> bool:
    """Return whether a line is of an invoice that takes another back."""
    return line.invoice_no.startswith("C")


def _is_plain(line: Line) -> bool:
    return line.invoice_no.isdigit()


def _is_charge(line: Line) -> bool:
    return line.item in CHARGES


def _is_stock_movement(line: Line) -> bool:
    """Return whether nobody paid for the pieces and nobody got them."""
    return _is_plain(line) and line.unit_price == 0 and line.customer_id is None and not _is_charge(line)


def _contradicts(line: Line) -> bool:
    if is_cancellation(line):
        return line.quantity > 0
    return line.quantity < 0 and not _is_stock_movement(line)


def _of_charge(code: str) -> Callable[[Line], bool]:
    return lambda line: line.item == code


RULES_1_0 = (
    Rule(
        "bad debt is adjusted by invoices that begin with A",
        lambda line: line.invoice_no.startswith("A") and line.item == BAD_DEBT,
        EventType.BAD_DEBT_ADJUSTED,
    ),
    Rule(
        "what else such an invoice adjusts is not known",
        lambda line: line.invoice_no.startswith("A"),
        Unclassified.UNKNOWN_ADJUSTMENT,
    ),
    Rule(
        "an invoice is plain, or a cancellation",
        lambda line: not (_is_plain(line) or is_cancellation(line)),
        Unclassified.UNKNOWN_INVOICE_KIND,
    ),
    Rule("a line is of something", lambda line: line.quantity == 0, Unclassified.NO_QUANTITY),
    Rule("a price is not below 0", lambda line: line.unit_price < 0, Unclassified.NEGATIVE_PRICE),
    Rule("the sign is that of the invoice", _contradicts, Unclassified.SIGN_CONTRADICTS_INVOICE),
    Rule(
        "a charge or a cancellation has an amount",
        lambda line: line.unit_price == 0 and (_is_charge(line) or is_cancellation(line)),
        Unclassified.AMOUNT_MISSING,
    ),
    *(Rule(f"{code} is no goods", _of_charge(code), meaning) for code, meaning in CHARGES.items()),
    Rule("goods of a cancellation come back", is_cancellation, EventType.LINE_CANCELLED),
    Rule(
        "pieces without price and customer that a word says are lost",
        lambda line: _is_stock_movement(line) and line.quantity < 0 and bool(_LOST.search(_note(line))),
        EventType.STOCK_WRITTEN_OFF,
    ),
    Rule(
        "pieces without price and customer that a word says were counted",
        lambda line: _is_stock_movement(line) and bool(_COUNTED.search(_note(line))),
        EventType.STOCK_ADJUSTED,
    ),
    Rule(
        "no word says why pieces are gone",
        lambda line: _is_stock_movement(line) and line.quantity < 0,
        Unclassified.STOCK_MOVEMENT_UNEXPLAINED,
    ),
    Rule("no word says why pieces are there", _is_stock_movement, Unclassified.PRICE_AND_CUSTOMER_MISSING),
    Rule("all others are goods that were ordered", lambda _line: True, EventType.ORDER_LINE_ADDED),
)
"""The rules of version 1.0.0, in the order in which they are asked."""

RULES = {"1.0.0": RULES_1_0}
"""The rules of each version of the translator."""


def rule_of(line: Line, rules: tuple[Rule, ...] = RULES_1_0) -> Rule:
    """Return the first rule that holds for a line; the last holds for all."""
    return next(rule for rule in rules if rule.holds(line))
