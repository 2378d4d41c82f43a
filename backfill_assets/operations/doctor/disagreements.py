"""What the doctor says: a disagreement, how sure it is, what can be done about it, and what was repaired.

Put here the form of a finding, and the findings and words that several looks share. When something disagrees is said by
the module that looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from manifests.errors import InputRefused
from resources.lakehouse.metadata import UnreadableMetadata
from resources.ledger.cells import IllegibleRow

_SHOWN = 10


class Confidence(StrEnum):
    """How sure a finding is."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


@dataclass(frozen=True)
class Disagreement:
    """Something that disagrees.

    Attributes:
        kind: the check's name for it, for scripts.
        where: the run, table, chunk or file.
        what: what disagrees with what.
        sure: how sure that is.
        fix: what to do about it.
        repair: does it and says what was done, or None where people must decide.
    """

    kind: str
    where: str
    what: str
    sure: Confidence
    fix: str
    repair: Callable[[], str] | None = field(default=None, compare=False, repr=False)

    def shown(self) -> dict[str, Any]:
        """Return the finding as JSON-ready data."""
        facts = {name: getattr(self, name) for name in ("kind", "where", "what", "sure", "fix")}
        return facts | {"repairable": self.repair is not None}


@dataclass(frozen=True)
class Repaired:
    """A finding that was repaired, and what was done."""

    found: Disagreement
    done: str


def not_checked(where: str, refusal: IllegibleRow) -> Disagreement:
    """Return the finding of cells that keep the doctor from looking. Which they are, and what was there, the journal says."""
    fix = "put right first what was changed by hand, then look again"
    return Disagreement("not-checked", where, refusal.problems[0].what, Confidence.CERTAIN, fix)


def data_loss(where: str, refusal: UnreadableMetadata) -> Disagreement:
    """Return the finding of metadata without which files that readers need cannot be found."""
    (problem,) = refusal.problems
    return Disagreement("DATA-LOSS", where, problem.what, Confidence.CERTAIN, problem.fix)


def damaged_metadata(where: str, refusal: UnreadableMetadata) -> Disagreement:
    """Return the finding of metadata that keeps the doctor from looking."""
    (problem,) = refusal.problems
    return Disagreement("metadata-damaged", where, problem.what, Confidence.CERTAIN, problem.fix)


def table_missing(where: str, refusal: InputRefused) -> Disagreement:
    """Return the finding of a declared table that the catalog does not have."""
    fix = "`backfill init`, or restore the catalog"
    return Disagreement("table-missing", where, refusal.problems[0].what, Confidence.CERTAIN, fix)


def some(items: Iterable[str]) -> str:
    """Return the first of these, and how many more there are."""
    shown = list(items)
    return "; ".join(shown[:_SHOWN]) + (f"; and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else "")


def outcome(changed: bool, text: str) -> str:
    """Return what a repair says that has changed something; else that there was nothing left to change."""
    return text if changed else "it had changed meanwhile: nothing was done"
