"""A row of exceptions as people read it: its parts are JSON on record, and words where they are shown.

Put here how a part is worded. What is kept, and what a program is told (`--json`), stays JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

PARTS = ("slice", "key", "expected", "found")
"""What is JSON in a row of exceptions; see `target.EXCEPTION_COLUMNS`."""


def worded(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row that disagrees with its JSON in words, first where it is and last what: the ledger sorts by name.

    Of rows that are none of the exception table's nothing changes.
    """
    if "what" not in row:
        return dict(row)
    others = [name for name in row if name not in (*PARTS, "what")]
    order = [*(name for name in ("slice", "key") if name in row), *others, "expected", "found", "what"]
    return {name: part(name, row[name]) if name in PARTS else row[name] for name in order if name in row}


def part(name: str, value: Any) -> Any:
    """Return `{"expected": 1}` of the part `expected` as 1, several values with their names, and none as nothing."""
    if not isinstance(value, str) or not value.startswith("{"):
        return value
    try:
        values = json.loads(value)
    except (ValueError, RecursionError):  # a product's own text
        return value
    words = (
        _word(values[name])
        if list(values) == [name]
        else ", ".join(f"{one}={_word(found)}" for one, found in values.items())
    )
    return words.encode("utf-8", "backslashreplace").decode()  # an escape may be half a character


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
