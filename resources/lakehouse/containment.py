"""Whether a data file lies wholly inside what a commit may change.

Put here what is told of a file from table metadata alone. A scan asks which files MAY hold rows of a filter; a commit
that deletes whole files must know that they hold no OTHER rows: a table that was filled by somebody else, or before its
partitions were what they are now, has files that reach beyond a chunk. What follows from the answer is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import ResidualEvaluator, residual_evaluator_of
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestamptzType

from manifests.chunks import EVER
from manifests.errors import Problem, PublicationRefused
from resources.lakehouse.metadata import column_of, readable_bounds
from resources.lakehouse.parts import lies_in
from resources.lakehouse.pyiceberg_private import holds_only
from resources.lakehouse.scopes import DAY_MICROSECONDS, Scope

_SHOWN = 10
_RULE = "a commit replaces whole files, and nothing outside what it is for may change"
_EPOCH = date(1970, 1, 1)


def reaching_beyond(table: Table, where: BooleanExpression, files: Iterable[DataFile]) -> list[DataFile]:
    """Return the files that may hold rows which `where` does not select.

    A file lies inside by the bounds of its columns (and without NULLs there), or by its partition, in the partition spec
    that it was written with. One of which neither says so may hold anything.
    """
    with readable_bounds(table):
        by_bounds = holds_only(table.schema(), where)
    partitions: dict[int, ResidualEvaluator] = {}

    def by_partition(file: DataFile) -> bool:
        if file.spec_id not in partitions:
            spec = table.specs()[file.spec_id]
            partitions[file.spec_id] = residual_evaluator_of(spec, where, case_sensitive=True, schema=table.schema())
        return partitions[file.spec_id].residual_for(file.partition) == AlwaysTrue()

    with readable_bounds(table):
        return [file for file in files if not by_bounds(file) and not by_partition(file)]


def reaching_out(table: Table, scope: Scope, files: Iterable[DataFile]) -> list[DataFile]:
    """Return the data files that may hold rows of other days, hours, values or buckets than a scope's."""
    listed, division = [file for file in files if file.content == DataFileContent.DATA], scope.division
    beyond = {id(file) for file in reaching_beyond(table, scope.time_filter, listed)}
    if division is not None and scope.parts:
        beyond |= {id(file) for file in listed if not lies_in(table, division, scope.parts, file)}
    return [file for file in listed if id(file) in beyond]


def require_in_scope(table: Table, scope: Scope, files: Iterable[DataFile]) -> None:
    """Refuse to delete files that may hold rows of other days, hours, values or buckets than a scope's.

    Raises:
        PublicationRefused: naming each, with its days.
    """
    _require_none(table, reaching_out(table, scope, files), str(scope), scope.column)


def require_inside(table: Table, where: BooleanExpression, what: str, files: Iterable[DataFile]) -> None:
    """Refuse to delete files that may hold rows which `where` (`what`, in words) does not select.

    Raises:
        PublicationRefused: naming each.
    """
    _require_none(table, reaching_beyond(table, where, files), what, None)


def _require_none(table: Table, beyond: Sequence[DataFile], what: str, column: str | None) -> None:
    if not beyond:
        return
    name = ".".join(table.name())
    shown = [in_words(table, column, file) for file in beyond[:_SHOWN]] + (["…"] if len(beyond) > _SHOWN else [])
    raise PublicationRefused(
        Problem(
            f"{len(beyond)} file(s) of {name} may hold rows that are not of {what}: {'; '.join(shown)}",
            _RULE,
            "rewrite these files by the table's partitions, then plan the change again under a new run id",
        )
    )


def days_of(table: Table, column: str, file: DataFile) -> tuple[date, date] | None:
    """Return the first and last day of a file in a column of dates or instants (their days of UTC), both inclusive.

    None where its metrics do not say. Without a column, of a table without time, they are those of all time.
    """
    if not column:
        return EVER
    field = column_of(table, column)
    low, high = (file.lower_bounds or {}).get(field.field_id), (file.upper_bounds or {}).get(field.field_id)
    kind = field.field_type
    if low is None or high is None or not isinstance(kind, (DateType, TimestamptzType)):
        return None
    with readable_bounds(table):
        first, last = (int(from_bytes(kind, bound)) for bound in (low, high))
    if isinstance(kind, TimestamptzType):
        first, last = first // DAY_MICROSECONDS, last // DAY_MICROSECONDS
    return _EPOCH + timedelta(days=first), _EPOCH + timedelta(days=last)


def instants_of(table: Table, column: str, file: DataFile) -> tuple[datetime, datetime] | None:
    """Return the first and last instant (UTC) of a file in a column of dates or instants: of a date the first of its day, and the last.

    None where its metrics do not say.
    """
    days = days_of(table, column, file)
    if days is None:
        return None
    field = column_of(table, column) if column else None
    if field is None or not isinstance(field.field_type, TimestamptzType):
        return datetime.combine(days[0], time.min, UTC), datetime.combine(days[1], time.max, UTC)
    ends = (file.lower_bounds or {})[field.field_id], (file.upper_bounds or {})[field.field_id]
    with readable_bounds(table):
        low, high = (int(from_bytes(field.field_type, bound)) for bound in ends)
    start = datetime.combine(_EPOCH, time.min, UTC)
    return start + timedelta(microseconds=low), start + timedelta(microseconds=high)


def in_words(table: Table, column: str | None, file: DataFile) -> str:
    """Name a file with its rows and its bounds in a column of days."""
    if column == "":
        return f"{file.file_path} ({file.record_count:,} rows)"
    known = None if column is None else days_of(table, column, file)
    bounds = "no bounds" if known is None else f"{column} {known[0]} to {known[1]}"
    return f"{file.file_path} ({file.record_count:,} rows, {bounds})"
