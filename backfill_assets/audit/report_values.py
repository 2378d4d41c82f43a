"""How values look in a report: numbers, changes, instants, cells.

Put here a filter of the template. Which values are shown is `report`'s to say.
"""

from __future__ import annotations

import re
from typing import Any

from markupsafe import Markup, escape


def number(value: Any) -> str:
    """Return a number with its thousands apart."""
    return "-" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)


def signed(after: int, before: int | None) -> str:
    """Return a change with its sign."""
    return "-" if before is None else f"{after - before:+,}" if after != before else "0"


def percent(after: int, before: int | None) -> str:
    """Return a change in percent."""
    if before is None:
        return "-"
    if after == before:
        return "0%"
    return f"{(after - before) * 100 / before:+.2f}%" if before else "new"


def instant(value: Any) -> str:
    """Return an instant to the second, in UTC."""
    return "-" if value is None else f"{str(value)[:19].replace('T', ' ')} UTC"


def prose(text: str) -> Markup:
    """Return a sentence with what stands between backticks as code, and nothing else of it as markup."""
    return Markup(re.sub(r"`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped before


def figure(value: str | None) -> str:
    """Return an exact figure that is given as text with its thousands apart."""
    if value is None:
        return "-"
    whole, point, rest = value.partition(".")
    return f"{int(whole):,}{point}{rest}" if whole.lstrip("-").isdigit() and whole != "-0" else value


def cell(value: Any) -> str:
    """Return a value as people write it: of a mapping each name with its value, of a list the values."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell(one)}" for name, one in value.items()) or "-"
    if isinstance(value, list):
        return ", ".join(map(cell, value)) or "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)
