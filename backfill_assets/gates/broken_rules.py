"""The rows that break a rule of their table, chunk by chunk, as the newest verdicts have them.

Put here how they are read from verdicts. What a rule is, is `worker.chunk_rules`'; how rows are shown, the commands'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from resources.ledger.facade import Verdict


@dataclass(frozen=True)
class BrokenRule:
    """A rule that rows of a chunk break: how many rows, and the first few of them."""

    gate: str
    chunk: str
    rule: str
    rows: int
    sample: tuple[Mapping[str, Any], ...]


def broken_rules(verdicts: Iterable[Verdict]) -> list[BrokenRule]:
    """Return the rules that chunks break, in the order of chunk and rule."""
    found = [
        BrokenRule(one.gate, one.chunk, broken["rule"], int(broken["count"]), tuple(broken["sample"]))
        for one in verdicts
        if one.chunk and not one.passed
        for broken in one.details.get("violations", ())
    ]
    return sorted(found, key=lambda one: (one.chunk, one.rule))
