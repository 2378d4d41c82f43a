"""What the checks of `backfill verify` share: where they tell what they find, and what they look things up by.

Put here nothing that checks. What is held against what is for the modules beside this one; the order is `verification`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from backfill_assets.audit.unknown_files import UnknownFiles
from backfill_assets.publication.under_way import Intent
from resources.lakehouse.snapshots import Seen


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
