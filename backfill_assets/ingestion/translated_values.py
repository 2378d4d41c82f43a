"""Values that a product's translator gives for columns, held against the types of these columns: nothing is rounded or guessed.

Put here what a frame would take for another value without saying so. Which rules of a table's model a row breaks is asked by whoever
makes rows of what was translated.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import polars as pl

from backfill_assets.extraction.records import is_text
from manifests.fields import EARLIEST, LATEST

_NUL = "\0"
_DETAIL_LENGTH = 200
OTHER_TYPE = (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""What Polars raises of a value of another type."""


def odd_value(name: str, value: Any, kind: pl.DataType) -> tuple[str, str] | None:
    """Return the rule that a value breaks which a frame would take for another one, and the value in words; None if it breaks none."""
    if value is None:
        return None
    if isinstance(value, str) and _NUL in value:
        return f"{name}: has a NUL character", ""
    if isinstance(value, str) and isinstance(kind, pl.String) and not is_text(value):
        return f"{name}: has half of a character", plain(f"{name} is {value}")
    if isinstance(value, date) and not _is_within_reach(value):
        return f"{name}: not {kind}", plain(f"{name} is {value}, which no run reaches")
    if isinstance(value, datetime) and isinstance(kind, pl.Datetime):
        if (value.tzinfo is None) == (kind.time_zone is None):
            return None
        return f"{name}: {'no' if value.tzinfo is None else 'an'} offset from UTC", plain(f"{name} is {value}")
    is_other = isinstance(value, bool) != isinstance(kind, pl.Boolean)
    is_other |= isinstance(value, datetime) and isinstance(kind, pl.Date)
    if isinstance(kind, pl.Decimal) and not is_other:
        is_other = not isinstance(value, (Decimal, int)) or not fits(Decimal(value), kind)
    return (f"{name}: not {kind}", plain(f"{name} is {value!r}")) if is_other else None


def _is_within_reach(value: date) -> bool:
    """Whether a day or an instant is one that runs reach, in UTC; by its offset it may be in no year at all."""
    if not isinstance(value, datetime):
        return EARLIEST <= value <= LATEST
    try:
        day = (value if value.tzinfo is None else value.astimezone(UTC)).date()
    except OverflowError:
        return False
    return EARLIEST <= day <= LATEST


def wrong_type(name: str, value: Any, kind: pl.DataType) -> tuple[str, str] | None:
    """Return the rule that a value of another type than its column breaks, and the value in words; None if it has that type."""
    try:
        pl.Series([value], dtype=kind, strict=True)
    except OTHER_TYPE:
        return f"{name}: not {kind}", plain(f"{name} is {value!r}")
    return None


def fits(value: Decimal, kind: pl.Decimal) -> bool:
    """Whether a decimal is kept to its last digit."""
    if not value.is_finite():
        return False
    if not value:
        return True
    _, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits))
    last = int(exponent) + len(text) - len(text.rstrip("0"))
    return -last <= kind.scale and value.adjusted() + 1 <= (kind.precision or 38) - kind.scale


def plain(text: str) -> str:
    """Return text that every record can hold, no longer than a detail is."""
    return text.replace(_NUL, "").encode(errors="replace").decode()[:_DETAIL_LENGTH]
