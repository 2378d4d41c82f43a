"""Which sale a cancellation reverses: of the same customer, item and price, the latest earlier one with pieces left.

Put here how cancellations are matched, and nothing of what an event looks like. A cancellation of more pieces than the latest
sale has left goes on to the sale before; what is left over in the end is unmatched, and said so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from backfill_assets.products.orders.lines import Line


class Reversal(StrEnum):
    """How much of a cancellation finds the sale that it reverses."""

    MATCHED = "MATCHED"
    PARTLY = "PARTLY"
    """Some pieces of the line have a sale, others have none."""
    UNMATCHED = "UNMATCHED"


class WhyUnmatched(StrEnum):
    """Why pieces of a cancellation reverse nothing that is known."""

    NO_CUSTOMER = "NO_CUSTOMER"
    NO_EARLIER_SALE = "NO_EARLIER_SALE"
    """The customer has not bought the item at this price before."""
    NOTHING_LEFT = "NOTHING_LEFT"
    """What was bought has been cancelled already."""


@dataclass(frozen=True, slots=True)
class Reversed:
    """A part of a cancellation: so many pieces, and the sale that they came from, or why there is none."""

    line: Line
    part: int
    pieces: int
    sale: Line | None
    reversal: Reversal
    why: WhyUnmatched | None = None


_Same = tuple[str | None, str, Decimal]
"""The customer, item and price that a cancellation and the sale that it reverses have alike."""


@dataclass(slots=True)
class Sale:
    """A line of goods that were paid for, and how many pieces of it are not cancelled."""

    line: Line
    left: int


class Sales:
    """Sales, as they become known in the order of business, and what of them is left."""

    def __init__(self) -> None:
        self._open: dict[_Same, list[Sale]] = {}
        self.all: list[Sale] = []
        """Every sale in the order of business, also those that nothing is left of: who has bought an item is told by it."""

    def sell(self, line: Line) -> None:
        """Take in a sale: it is the latest one of its customer, item and price."""
        self.take_over(Sale(line, line.quantity))

    def take_over(self, sale: Sale) -> None:
        """Take in a sale of which some pieces may have been cancelled; later ones than those there are."""
        line = sale.line
        key = line.customer_id, line.item, line.unit_price
        self.all.append(sale)
        known = self._open.setdefault(key, [])
        if sale.left:
            known.append(sale)

    def cancel(self, line: Line) -> list[Reversed]:
        """Return the parts of a cancellation, the latest sale first; those that find none come last, as one."""
        if line.customer_id is None:
            why = WhyUnmatched.NO_CUSTOMER
            return [Reversed(line, 0, -line.quantity, None, Reversal.UNMATCHED, why)]
        key = line.customer_id, line.item, line.unit_price
        taken = list(self._taken(key, -line.quantity))
        rest = -line.quantity - sum(pieces for _, pieces in taken)
        how = Reversal.PARTLY if rest else Reversal.MATCHED
        parts = [Reversed(line, part, pieces, sale, how) for part, (sale, pieces) in enumerate(taken)]
        if rest:
            why = WhyUnmatched.NOTHING_LEFT if key in self._open else WhyUnmatched.NO_EARLIER_SALE
            how = Reversal.PARTLY if taken else Reversal.UNMATCHED
            parts.append(Reversed(line, len(taken), rest, None, how, why))
        return parts

    def _taken(self, key: _Same, wanted: int) -> Iterator[tuple[Line, int]]:
        sales = self._open.get(key, [])
        while wanted and sales:
            latest = sales[-1]
            pieces = min(wanted, latest.left)
            latest.left -= pieces
            wanted -= pieces
            if not latest.left:
                sales.pop()
            yield latest.line, pieces
