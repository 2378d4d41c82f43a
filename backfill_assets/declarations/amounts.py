"""How far an amount is off another: numbers as they are, however long, and what is no number.

Put here what is asked of two amounts alone. Which are held against each other, and how far they may be off, is said by
`reconciliations` and `standard_gates`. Imported by Spark's Python workers with the products: keep it light.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any


def off(expected: Any, found: Any, *, relative: bool) -> float:
    """Return how far a value is off, in its unit or in percent of what was expected.

    Whole and decimal numbers are compared as they are, however long. What is no number is equal to itself alone, and
    infinitely far from anything else.
    """
    if expected == found or (expected != expected and found != found):  # noqa: PLR0124 - how NaN is told
        return 0.0
    try:
        off = abs(float(difference(expected, found)))
    except OverflowError:  # a whole number of more than 300 digits
        return math.inf
    if not math.isfinite(off):
        return math.inf
    if not relative or off == 0:
        return off
    of = abs(float(expected))
    return off * 100.0 / of if of else math.inf


def difference(expected: Any, found: Any) -> Any:
    """Return by how much a value is more than another: exactly, unless one of them is binary."""
    if isinstance(expected, float) or isinstance(found, float):
        return float(found) - float(expected)
    return found - expected


def for_record(value: Any) -> Any:
    """Return a value as JSON can have it: decimals, and what is no number, as text."""
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
