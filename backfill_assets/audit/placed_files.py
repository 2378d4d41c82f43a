"""Which files of main may hold rows of a chunk, told from one look at each: a table of many chunks has many files.

Put here the index by days and by values or buckets. Whether readers who ask for a chunk do open a file is said by their filter
(`published_rows`), which this spares of files that lie elsewhere by what metadata says of them; what lies in which part,
`run_in_table`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from datetime import date
from itertools import accumulate

from backfill_assets.audit.run_in_table import part_said
from backfill_assets.evidence.seals import Sealed
from resources.lakehouse.scopes import Scope
from resources.lakehouse.snapshots import Entry, Seen, said_days

_Placed = tuple[date, date, int, Entry]
"""First and last day, and the place in the order of the table's files."""


class PlacedFiles:
    """The files of main by part and days; those of which metadata does not say it lie anywhere."""

    def __init__(self, seen: Seen, sealed: Sealed) -> None:
        scope = next(iter(sealed.scopes.values()), None)
        schema, column = seen.table.schema(), sealed.target.day_column
        # by the column that readers ask for today, whatever its name was
        day = schema.find_field(column).field_id if column in schema.column_names else None
        found: dict[str | None, list[_Placed]] = defaultdict(list)
        for number, entry in enumerate(one for entries in seen.entries.values() for one in entries):
            part = None if scope is None else part_said(seen, scope, entry)
            days = said_days(seen, entry, day) if entry.is_data and day is not None else None
            found[part].append((*(days or (date.min, date.max)), number, entry))
        self._parts = {part: sorted(placed, key=lambda one: one[:3]) for part, placed in found.items()}
        self._starts = {part: [one[0] for one in placed] for part, placed in self._parts.items()}
        self._ends = {part: list(accumulate((one[1] for one in placed), max)) for part, placed in self._parts.items()}

    def near(self, scope: Scope) -> list[Entry]:
        """Return the files that may hold rows of a scope, in the order of the table's files."""
        parts = {None, *scope.parts} if scope.parts else set(self._parts)
        found = [one for part in parts if part in self._parts for one in self._of(part, scope)]
        return [entry for *_, entry in sorted(found, key=lambda one: one[2])]

    def _of(self, part: str | None, scope: Scope) -> list[_Placed]:
        placed, ends, found = self._parts[part], self._ends[part], list[_Placed]()
        for number in range(bisect_right(self._starts[part], scope.end) - 1, -1, -1):
            if ends[number] < scope.start:
                break
            if placed[number][1] >= scope.start:
                found.append(placed[number])
        return found
