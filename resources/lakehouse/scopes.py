"""Days of a table: what one publication may touch, and filters on a column, as Iceberg expressions.

Put here how a range of days or of instants is said to Iceberg. Which files lie in it is `live_files`'s; whether a file lies
wholly inside, `containment`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time

from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan, LessThanOrEqual, Or

DAY_MICROSECONDS = 86_400_000_000
"""Microseconds of a day, by which an instant's number says its day of UTC."""


@dataclass(frozen=True)
class Scope:
    """Days of a table's day column, both inclusive: what one publication may touch.

    `instants`: the column holds instants (timestamptz), whose days are those of UTC, and not dates.
    """

    column: str
    start: date
    end: date
    instants: bool = False

    @property
    def filter(self) -> BooleanExpression:
        """The scope as an Iceberg expression."""
        return days_filter(self.column, self.start, self.end, instants=self.instants)

    def __str__(self) -> str:
        return f"{self.start} to {self.end}"


def any_of(scopes: Sequence[Scope]) -> BooleanExpression:
    """Return the filter of the rows that lie in any of some scopes, at least one."""
    filters = [scope.filter for scope in scopes]
    return filters[0] if len(filters) == 1 else Or(*filters)


def span_of(scopes: Sequence[Scope]) -> Scope:
    """Return the scope from the first day to the last day of some scopes, at least one, of the same column."""
    return replace(scopes[0], start=min(scope.start for scope in scopes), end=max(scope.end for scope in scopes))


def days_filter(column: str, start: date, end: date, *, instants: bool) -> BooleanExpression:
    """Rows of days, both inclusive; of a column of instants (timestamptz) those of UTC."""
    first: date = datetime.combine(start, time.min, UTC) if instants else start
    last: date = datetime.combine(end, time.max, UTC) if instants else end
    return And(
        GreaterThanOrEqual(term=column, value=first.isoformat()), LessThanOrEqual(term=column, value=last.isoformat())
    )


def between(column: str, start: date, end: date) -> BooleanExpression:
    """Rows with start <= column < end: instants of a column of instants, dates of one of dates."""
    return And(GreaterThanOrEqual(term=column, value=start.isoformat()), LessThan(term=column, value=end.isoformat()))


def before(column: str, end: date) -> BooleanExpression:
    """Rows with column < end: an instant of a column of instants, a date of one of dates."""
    return LessThan(term=column, value=end.isoformat())
