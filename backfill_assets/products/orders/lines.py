"""What an order line is to the translator: plain values, its identity, and its place among others.

Put here what any rule may ask of a single line. What a line means is `rules`'s; how a delivered file becomes lines, `raw`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any


@dataclass(frozen=True, slots=True)
class Line:
    """A line of an invoice, as `bronze.order_lines` has it.

    Attributes:
        invoice_no: the invoice; a letter in front says that it is none of goods sold.
        quantity: pieces; below 0 where they come back, or are gone.
        unit_price: price of a piece, to a tenth of a cent.
        invoiced_at: the instant that the line states.
        business_day: its local day.
        source_row: number of the row in its file, from 0.
        extracted_at: when the file was taken over.
    """

    invoice_no: str
    stock_code: str
    description: str | None
    quantity: int
    unit_price: Decimal
    customer_id: str | None
    country: str | None
    invoiced_at: datetime
    business_day: date
    source_system: str
    source_file: str
    source_row: int
    extracted_at: datetime

    @property
    def item(self) -> str:
        """The stock code as it is compared: its suffix is written in both cases."""
        return self.stock_code.upper()

    @property
    def amount(self) -> Decimal:
        """What the line is worth: quantity by price, exactly."""
        return self.quantity * self.unit_price

    @property
    def place(self) -> tuple[datetime, datetime, str, int]:
        """Where it stands in the order of business: by its own time; the order of extraction decides among equals only."""
        return self.invoiced_at, self.extracted_at, self.source_file, self.source_row

    @property
    def line_id(self) -> str:
        """The same for lines that say the same, whichever file or row they came in."""
        return identity(
            self.invoice_no,
            self.stock_code,
            self.description,
            self.quantity,
            f"{self.unit_price:.3f}",
            self.customer_id,
            self.country,
            self.invoiced_at.astimezone(UTC).isoformat(),
        )


COLUMNS = tuple(one.name for one in fields(Line))
"""The columns of an order line that the translator reads."""


def line_of(row: Mapping[str, Any]) -> Line:
    """Return the line in a row of `bronze.order_lines`."""
    return Line(*(row[name] for name in COLUMNS))


def identity(*parts: str | int | None) -> str:
    """Return 32 hexadecimal digits that are the same for the same parts, in every process and version of Python.

    A part is written with its length, so that no two lists of parts have the same text.
    """
    text = "".join("-;" if part is None else f"{len(str(part))}:{part};" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
