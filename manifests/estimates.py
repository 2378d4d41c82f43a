"""How much of its source a run reads: files, rows and bytes, from the days that the source's files say they have.

Put here what is counted from metadata alone. Which days a run reads is `manifests.planner`'s; what of them the policy forbids is
`manifests.data_terms`'s.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import accumulate

from manifests.facts import SourceFile

ZONE_MARGIN = timedelta(days=1)
"""Read beyond the input range on both sides: a local day lies up to 14 hours off the UTC day of the same date."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What will be read, from Iceberg metadata alone."""

    files: int
    rows: int
    bytes: int


def of_sample(whole: Estimate, each: Mapping[tuple[date, date], Estimate]) -> Estimate:
    """Return what some chunks of a range read, by what each of their days reads; neighbours share days, and are no more than the range."""
    return Estimate(
        min(whole.files, sum(one.files for one in each.values())),
        min(whole.rows, sum(one.rows for one in each.values())),
        min(whole.bytes, sum(one.bytes for one in each.values())),
    )


class FileIndex:
    """Source files by their days: what a range of days touches is found in the logarithm of their number.

    What a range touches is what begins by its end, without what ends before its start.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        # bounds that some other program wrote the wrong way round belong into no order
        self._odd = [file for file in files if file.first_day > file.last_day]
        even = [file for file in files if file.first_day <= file.last_day]
        self._begin = _RunningSums(even, lambda file: file.first_day)
        self._end = _RunningSums(even, lambda file: file.last_day)

    def touched(self, first: date, last: date) -> Estimate:
        """Return how many files, rows and bytes a range of days touches, both inclusive; nothing where it is empty."""
        found = [file for file in self._odd if file.first_day <= last and file.last_day >= first]
        sums = [len(found), sum(file.rows for file in found), sum(file.bytes for file in found)]
        if first <= last:
            begun, ended = self._begin.until(last), self._end.before(first)
            sums = [own + more - less for own, more, less in zip(sums, begun, ended, strict=True)]
        return Estimate(*sums)

    def read_for(self, first: date, last: date) -> Estimate:
        """Return what is read for a range of local days: what the range touches with its margin on both sides."""
        low = first - ZONE_MARGIN if first > date.min else first
        return self.touched(low, last + ZONE_MARGIN)


class _RunningSums:
    """Numbers of files, rows and bytes, summed up in the order of a day of each file."""

    def __init__(self, files: Sequence[SourceFile], day: Callable[[SourceFile], date]) -> None:
        ordered = sorted(files, key=day)
        self._days = [day(file) for file in ordered]
        parts = [(1, file.rows, file.bytes) for file in ordered]
        self._sums = list(accumulate(parts, _add, initial=(0, 0, 0)))

    def until(self, day: date) -> tuple[int, int, int]:
        return self._sums[bisect_right(self._days, day)]

    def before(self, day: date) -> tuple[int, int, int]:
        return self._sums[bisect_left(self._days, day)]


def _add(one: tuple[int, int, int], other: tuple[int, int, int]) -> tuple[int, int, int]:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]
