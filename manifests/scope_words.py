"""Which part of a target a run may change, in words.

Put here what is said of a publish range and of values beside it. What they are is `model`'s; how chunks are named, `chunks`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from manifests.model import ALL_TIME, DayRange


def days_in_words(days: DayRange) -> str:
    """Say which days are meant; of a target without time, that nothing is left out."""
    return "all of it" if days == ALL_TIME else f"{days.start} to {days.end}"


def scope_in_words(days: DayRange, values: Sequence[str] | None) -> str:
    """Say which part of a target may change: days, and values or buckets where not all of them may."""
    if days == ALL_TIME and values is not None:
        return ", ".join(values)
    return days_in_words(days) + ("" if values is None else f" of {', '.join(values)}")
