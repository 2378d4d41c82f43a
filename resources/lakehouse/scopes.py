"""Days of a table: what one publication may touch, and filters on a column, as Iceberg expressions.

Put here how a range of days, of instants or of a log, and the values that a table is divided by, are said to Iceberg. Of a table without
time the column of days is "", and all of its rows lie in any range. Which files lie in it is `live_files`'s; whether a file lies wholly inside, `containment`'s; which part of a table one lies in, `parts`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
)

from manifests.chunks import HOURS
from manifests.division import NULL_PART, Division, Literal
from manifests.log_pins import PinnedLog
from manifests.log_ranges import LogRange

DAY_MICROSECONDS = 86_400_000_000
"""Microseconds of a day, by which an instant's number says its day of UTC."""
_RANGES_ASKED = 64


@dataclass(frozen=True)
class Scope:
    """Days of a table's day column, both inclusive: what one publication may touch.

    Attributes:
        column: the day column; "" of a table without time.
        start: the first day, from `from_hour` on.
        end: the last day, up to the end of `to_hour`.
        instants: the column holds instants (timestamptz), whose days are those of UTC, and not dates.
        division: what the table is divided by beside time, where `parts` says in which of its values or buckets the scope is.
        same_rows: what is committed to it leaves its rows as they are. Files that delete rows of its files belong to it then, and
            come and go with these; a commit of any other change refuses files of which rows are deleted.
    """

    column: str
    start: date
    end: date
    instants: bool = False
    from_hour: int = 0
    to_hour: int = HOURS[-1]
    division: Division | None = None
    parts: tuple[str, ...] = ()
    same_rows: bool = False

    @property
    def first(self) -> datetime:
        """When it begins, in UTC."""
        return datetime.combine(self.start, time(self.from_hour), UTC)

    @property
    def last(self) -> datetime:
        """Its last microsecond, in UTC."""
        return datetime.combine(self.end, time(self.to_hour, 59, 59, 999_999), UTC)

    @property
    def time_filter(self) -> BooleanExpression:
        """Its days and hours, of whatever part, as an Iceberg expression."""
        if not self.column or (self.from_hour, self.to_hour) == (HOURS[0], HOURS[-1]):
            return days_filter(self.column, self.start, self.end, instants=self.instants)
        return And(
            GreaterThanOrEqual(term=self.column, value=self.first.isoformat()),
            LessThanOrEqual(term=self.column, value=self.last.isoformat()),
        )

    @property
    def filter(self) -> BooleanExpression:
        """The scope as an Iceberg expression: of buckets, which no expression can say, it selects those of other parts as well."""
        if self.division is None or not self.parts or self.division.buckets:
            return self.time_filter
        return And(self.time_filter, _parts_filter(self.division, self.parts))

    @property
    def whole(self) -> Scope:
        """The whole days that it has a part of."""
        return Scope(self.column, self.start, self.end, self.instants, same_rows=self.same_rows)

    def __str__(self) -> str:
        if not self.column:
            return ", ".join(self.parts) or "all of it"
        is_whole = (self.from_hour, self.to_hour) == (HOURS[0], HOURS[-1])
        at = f"{self.start} to {self.end}" if is_whole else f"{self.first:%Y-%m-%dT%H} to {self.last:%Y-%m-%dT%H}"
        return at + (f" of {', '.join(self.parts)}" if self.parts else "")


def _parts_filter(division: Division, parts: Sequence[str]) -> BooleanExpression:
    """Rows of some values or ranges."""
    column, found = division.column, list[BooleanExpression]()
    if NULL_PART in parts:
        found.append(IsNull(term=column))
    there = [one for one in parts if one != NULL_PART]
    if there and not division.bounds:
        found.append(In(term=column, literals=[_said(division.literal(one)) for one in there]))
    for low, high in _spans(division, there) if division.bounds else ():
        first = NotNull(term=column) if low is None else GreaterThanOrEqual(term=column, value=_said(low))
        found.append(first if high is None else And(first, LessThan(term=column, value=_said(high))))
    return found[0] if len(found) == 1 else Or(*found)


def _said(value: Literal) -> str | int:
    """Return a value as an expression takes it."""
    return value.isoformat() if isinstance(value, date) else value if isinstance(value, int) else str(value)


def _spans(division: Division, parts: Sequence[str]) -> list[tuple[Literal, Literal]]:
    """Return ranges from where they begin to where they end, those that follow each other as one."""
    found: list[tuple[Literal, Literal]] = []
    for name, (low, high) in division.ranges.items():
        if name not in parts:
            continue
        if found and found[-1][1] == low and low is not None:
            found[-1] = found[-1][0], high
        else:
            found.append((low, high))
    return found


def any_of(scopes: Sequence[Scope]) -> BooleanExpression:
    """Return the filter of the rows that lie in any of some scopes, at least one."""
    filters = list({str(one): one for one in (scope.filter for scope in scopes)}.values())
    return filters[0] if len(filters) == 1 else Or(*filters)


def span_of(scopes: Sequence[Scope]) -> Scope:
    """Return the scope from the first day to the last day of some scopes, at least one, of the same column; of all parts."""
    start, end = min(scope.start for scope in scopes), max(scope.end for scope in scopes)
    return replace(scopes[0].whole, start=start, end=end)


def days_filter(column: str, start: date, end: date, *, instants: bool) -> BooleanExpression:
    """Rows of days, both inclusive; of a column of instants (timestamptz) those of UTC; without a column, every row."""
    if not column:
        return AlwaysTrue()
    first: date = datetime.combine(start, time.min, UTC) if instants else start
    last: date = datetime.combine(end, time.max, UTC) if instants else end
    return And(
        GreaterThanOrEqual(term=column, value=first.isoformat()), LessThanOrEqual(term=column, value=last.isoformat())
    )


def between(column: str, start: date, end: date) -> BooleanExpression:
    """Rows with start <= column < end: instants of a column of instants, dates of one of dates; without a column, every row."""
    if not column:
        return AlwaysTrue()
    return And(GreaterThanOrEqual(term=column, value=start.isoformat()), LessThan(term=column, value=end.isoformat()))


def in_ranges(position: str, partition: str | None, ranges: Sequence[LogRange]) -> BooleanExpression:
    """Rows at the positions of a log that some ranges have; of many ranges, also those in between."""
    if not ranges:
        return AlwaysFalse()
    if len(ranges) > _RANGES_ASKED:
        ranges = [LogRange(0, min(one.start for one in ranges), max(one.until for one in ranges))]
        partition = None
    found: BooleanExpression = AlwaysFalse()
    for one in ranges:
        place: BooleanExpression = And(
            GreaterThanOrEqual(term=position, value=one.start), LessThan(term=position, value=one.until)
        )
        if partition is not None:
            place = And(place, EqualTo(term=partition, value=one.partition))
        found = Or(found, place)
    return found


def read_of_log(log: PinnedLog | None) -> BooleanExpression:
    """Rows at the positions that a plan pins of a source that is a log; every row of one that is none, or is read whole."""
    return AlwaysTrue() if log is None or log.is_whole else in_ranges(log.position, log.partition, log.ranges)


def before(column: str, end: date) -> BooleanExpression:
    """Rows with column < end: an instant of a column of instants, a date of one of dates; without a column, every row."""
    if not column:
        return AlwaysTrue()
    return LessThan(term=column, value=end.isoformat())
