"""At which snapshots a manifest has the sources beside the first read, and since which a merge takes their rows for changed.

Put here the fields of a manifest that name a snapshot of a further source, a state to start from, or positions of a log. What is pinned
where it names none is the planner's; what a plan keeps of it, `further_sources`' and `log_pins`'.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from manifests.fields import Day, Part, SnapshotId, TableName


class FurtherPin(Part):
    """At which snapshot a source beside the first is read; without it the planner pins the current one."""

    table: TableName
    snapshot_id: SnapshotId


class ChangedSource(Part):
    """Since which snapshot of a source beside the first rows count as changed."""

    table: TableName
    changed_since: SnapshotId


class StartFrom(Part):
    """From which recorded state a run starts, instead of from the first row: a table of states, and the day of the state."""

    table: TableName
    day: Day


_LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOST = 2**63
_FIRST_YEAR, _LAST_YEAR = 1969, 9999


def position_of(value: Any) -> int:
    """Return a position as a number: an offset, or an LSN as the server writes it.

    Raises:
        ValueError: if it is neither.
    """
    if isinstance(value, str) and (lsn := _LSN.fullmatch(value.strip())):
        value = int(lsn[1], 16) * 2**32 + int(lsn[2], 16)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST:
        return value
    raise ValueError(POSITION_WORDS)


POSITION_WORDS = "a position is a whole number (an offset) or an LSN as the server writes it (0/16B3748), or a mapping from partition to it"


def _positions(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return {0: position_of(value)}
    if not value:
        raise ValueError("positions name a partition at least")
    found: dict[int, int] = {}
    for key, one in value.items():
        number = int(key) if isinstance(key, str) and re.fullmatch(r"[0-9]{1,6}", key) else key
        if not isinstance(number, int) or isinstance(number, bool) or number < 0 or number in found:
            raise ValueError(f"a partition is a whole number, named once: {key!r}")
        found[number] = position_of(one)
    return found


def _instant(value: Any) -> Any:
    if isinstance(value, str) and _DAY.fullmatch(value):
        try:
            value = date.fromisoformat(value)
        except ValueError:
            raise ValueError(INSTANT_WORDS) from None
    if type(value) is date:
        value = datetime.combine(value, time(), UTC)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            value = None
    if isinstance(value, datetime) and value.tzinfo is not None and _FIRST_YEAR < value.year < _LAST_YEAR:
        return value
    raise ValueError(INSTANT_WORDS)


INSTANT_WORDS = "an instant is a day (UTC), or has a time and a zone, from 1970 on: 2026-01-31, 2026-01-31T08:30:00Z"
Positions = Annotated[dict[int, int], BeforeValidator(_positions), Field(description=POSITION_WORDS)]
MomentOfLog = Annotated[datetime, BeforeValidator(_instant), Field(description=INSTANT_WORDS)]


class IncompleteDays(StrEnum):
    """What becomes of a run over days of which records of a log may still come."""

    REFUSE = "REFUSE"
    PUBLISH = "PUBLISH"


class Breaks(StrEnum):
    """What becomes of a run over days, or beyond positions, that a break in a changelog leaves unknown."""

    REFUSE = "REFUSE"
    PUBLISH = "PUBLISH"


class SourceLog(Part):
    """Which positions of a log are read, of those that were landed: from `from` on, up to `until`, which is not read.

    In place of positions an instant may be named: for each partition, the first position with a record of that time or later. Without
    any, all that was landed is read.
    """

    from_: Positions | None = Field(default=None, alias="from")
    until: Positions | None = None
    from_time: MomentOfLog | None = None
    until_time: MomentOfLog | None = None
    incomplete_days: IncompleteDays = IncompleteDays.REFUSE
    breaks: Breaks = Breaks.REFUSE
    _later = frozenset({"breaks"})

    @property
    def names_positions(self) -> bool:
        """Whether it says where to begin, or to end."""
        return any(one is not None for one in (self.from_, self.until, self.from_time, self.until_time))

    @property
    def without_positions(self) -> Self:
        """The rest of what it says."""
        return self.model_copy(update=dict.fromkeys(("from_", "until", "from_time", "until_time")))

    @model_validator(mode="after")
    def _each_end_once(self) -> Self:
        for name, at, instant in (("from", self.from_, self.from_time), ("until", self.until, self.until_time)):
            if at is not None and instant is not None:
                raise ValueError(
                    f"give {name} or {name}Time, one of them: both say where to {'begin' if name == 'from' else 'end'}"
                )
        if self.from_ is not None and self.until is not None and self.from_.keys() != self.until.keys():
            raise ValueError("from and until name the same partitions: those that are read")
        return self
