"""What an extraction is asked for: which records, by which pattern, and whether they are held against what was loaded.

Put here how a person's words become one question, which is the same text for the same words. In which order a server is asked
then is `conversation`'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from backfill_assets.declarations.apis import (
    PATTERNS,
    ApiFeed,
    ByCursor,
    ByIdRange,
    BySnapshotExport,
    ByTimeWindow,
    Pattern,
)
from manifests.errors import InputRefused, Problem

_OPTIONS = {
    ByCursor: "no option",
    ByTimeWindow: "--from T --until T",
    ByIdRange: "--ids A..B",
    BySnapshotExport: "--snapshot",
}


@dataclass(frozen=True)
class Question:
    """What is asked of a server: the pattern, and the ends of the time or of the numbers that it is asked for.

    `start` is in the time, `end` is not; `first` and `last` are both in the range. With `reconciles`, what the server has is held
    against what was loaded. `tombstones`: whether what it has no more becomes a row.
    """

    pattern: Pattern
    start: datetime | None = None
    end: datetime | None = None
    first: int | None = None
    last: int | None = None
    reconciles: bool = False
    tombstones: bool = False

    @property
    def pattern_name(self) -> str:
        """The pattern's name, as it is on record."""
        return type(self.pattern).__name__

    def as_record(self) -> dict[str, Any]:
        """Return it JSON-ready, without the pattern, whose declaration may change."""
        said = {"from": self.start, "until": self.end, "first": self.first, "last": self.last}
        said |= {"reconciles": self.reconciles, "tombstones": self.tombstones}
        return {name: value for name, value in said.items() if value not in {None, False}}


def question(
    feed: ApiFeed,
    *,
    start: str | None = None,
    end: str | None = None,
    ids: str | None = None,
    snapshot: bool = False,
    reconciles: bool = False,
) -> Question:
    """Return what options of the command ask a feed for.

    Raises:
        InputRefused: if they ask for what the feed cannot be asked for, or for nothing.
    """
    given = {ByTimeWindow: start is not None or end is not None, ByIdRange: ids is not None, BySnapshotExport: snapshot}
    wanted: list[type[Any]] = [kind for kind, is_given in given.items() if is_given]
    offered = ", ".join(_OPTIONS[kind] for kind in PATTERNS if feed.pattern(kind) is not None)
    kind: type[Any] = wanted[0] if wanted else ByCursor
    pattern = feed.pattern(kind)
    if len(wanted) > 1 or pattern is None:
        options = " and ".join(_OPTIONS[one] for one in wanted) or _OPTIONS[ByCursor]
        raise InputRefused(
            Problem(
                f"the feed {feed.name} is asked for with {options}",
                f"it can be asked for with one of: {offered}",
                f"see `patterns` of {feed.name}, and `backfill extract --help`",
            )
        )
    asked = Question(pattern, reconciles=reconciles, tombstones=reconciles and bool(feed.deleted_column))
    if kind is ByTimeWindow:
        begins, ends = _instants(start, end)
        return replace(asked, start=begins, end=ends)
    if kind is ByIdRange:
        first, last = _range(ids or "")
        return replace(asked, first=first, last=last)
    return asked


def _instants(start: str | None, end: str | None) -> tuple[datetime, datetime]:
    found: list[datetime] = []
    problems = []
    for name, text in (("--from", start), ("--until", end)):
        try:
            instant = datetime.fromisoformat(text or "")
            found.append((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).astimezone(UTC))
        except (ValueError, OverflowError):  # or it is before or after all years that there are, in UTC
            problems.append(
                Problem(
                    f"{name} is {text!r}",
                    "it is a day or an instant, as 2024-01-31 or 2024-01-31T08:00Z",
                    f"give {name}",
                )
            )
    if not problems and not found[0] < found[1]:
        problems.append(
            Problem(f"--from {start} is not before --until {end}", "--until is not in the time", "correct them")
        )
    if problems:
        raise InputRefused(problems)
    return found[0], found[1]


def _range(ids: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})", ids)
    if found is None or int(found[1]) > int(found[2]):
        raise InputRefused(
            Problem(f"--ids is {ids!r}", "it is A..B, two numbers, both in the range", "as in --ids 1..5000")
        )
    return int(found[1]), int(found[2])
