"""The rows that break a rule of their table, chunk by chunk, as the newest verdicts have them.

Put here how they are read from verdicts, and in which order their columns are shown. What a rule is, is `worker.chunk_rules`'; how rows are shown, the commands'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from resources.ledger.facade import Verdict


@dataclass(frozen=True)
class BrokenRule:
    """A rule that rows of a chunk break: how many rows, and the first few of them."""

    gate: str
    chunk: str
    rule: str
    rows: int
    sample: tuple[Mapping[str, Any], ...]


def as_declared(table: TargetTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with its key first, then the columns in the order of the model; without those of the lineage."""
    lineage = lineage_columns(table.model)
    order = [*table.key, *dtypes(table.model), *row]
    return {name: row[name] for name in dict.fromkeys(order) if name in row and name not in lineage}


def broken_rules(verdicts: Iterable[Verdict]) -> list[BrokenRule]:
    """Return the rules that chunks break, in the order of chunk and rule."""
    found = [
        BrokenRule(one.gate, one.chunk, broken["rule"], int(broken["count"]), tuple(broken["sample"]))
        for one in verdicts
        if one.chunk and not one.passed
        for broken in one.details.get("violations", ())
    ]
    return sorted(found, key=lambda one: (one.chunk, one.rule))
