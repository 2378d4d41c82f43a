"""What the checks of `backfill verify` share: what they find and how it is shown, and what they look things up by.

Put here nothing that checks. What is held against what is for the modules beside this one; the order is `verification`'s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from backfill_assets.audit.unknown_files import UnknownFiles
from backfill_assets.publication.under_way import Intent
from manifests.canonical import canonical_json
from resources.lakehouse.snapshots import Seen

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHOWN = 200
"""Characters shown of a value."""
_CONTEXT = 40
REPAIR = "`backfill doctor --repair` completes the record"
"""The way out where a process ended before it could put everything on record."""


@dataclass(frozen=True)
class Problem:
    """Something that is not as the evidence has it: where, what, and both values."""

    run_id: str
    where: str
    what: str
    expected: str = ""
    found: str = ""


class Report(Protocol):
    """Where findings go."""

    notes: list[str]

    def add(self, where: str, what: str, expected: Any = "", found: Any = "") -> None:
        """Name something that is not as the evidence has it."""


@dataclass(frozen=True)
class World:
    """What the checks look things up by.

    Attributes:
        seen: returns a table as its metadata shows it now; None if it cannot be read, which is said where it is found out.
        intents: returns the actions that are under way, or were interrupted, so that the ledger does not know yet what they did.
        gone: names a snapshot that the metadata no longer holds, if policy keeps it still: where, and when it was made.
        unknown: says what files hold that are not known; None where nothing is opened.
    """

    seen: Callable[[str], Seen | None]
    intents: Callable[[], Sequence[Intent]]
    gone: Callable[[str, datetime], None]
    unknown: UnknownFiles | None = None


@dataclass
class Findings:
    """What the checks of one run have found."""

    run_id: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    is_behind: bool = False
    """Whether something is missing that an event just now would explain."""
    is_blind: bool = False
    """Whether neither evidence nor ledger can say what the run's tables are to be."""

    def add(self, where: str, what: str, expected: Any = "", found: Any = "") -> None:
        """Name something that is not as the evidence has it."""
        left, right = around(text_of(expected), text_of(found))
        self.problems.append(Problem(self.run_id, where, what, left, right))


def shown_hash(found: str) -> str:
    """Say that it is a hash, or what lies in the place of what could be hashed."""
    return f"SHA-256 {found}" if _SHA256.fullmatch(found) else found


def text_of(value: Any) -> str:
    """Return a value as it is shown, and as it is hashed."""
    if value is None:
        return "null"
    return value if isinstance(value, str) else canonical_json(value)


def around(expected: str, found: str) -> tuple[str, str]:
    """Return two values, or where they are long, what is around the first place at which they differ."""
    if max(len(expected), len(found)) <= _SHOWN:
        return expected, found
    place = next((at for at, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), 0)
    start = max(0, place - _CONTEXT)

    def cut(text: str) -> str:
        head, tail = "…" if start else "", "…" if start + _SHOWN < len(text) else ""
        return f"{head}{text[start : start + _SHOWN]}{tail}"

    return cut(expected), cut(found)
