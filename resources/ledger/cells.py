"""Cells of the ledger, held against their columns as they are read: SQLite keeps whatever it is given.

Put here what a cell of each kind may hold, and the one refusal for a cell that holds something else. Every query of
`tables` is checked so, wherever it is made. Rows as they are, whatever they hold, are read by `rows` and `journal`: these
name who changed what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any, TypeVar

import sqlalchemy as sa

from manifests.canonical import data_of
from manifests.errors import EnvironmentRefused, Problem

_Json = TypeVar("_Json", list[Any], dict[str, Any])
_Process = Callable[[Any], Any]
_SHOWN = 60
_EMPTY: Mapping[Any, list[Any] | dict[str, Any]] = MappingProxyType({"[]": [], "{}": {}})
_as_it_is: ContextVar[bool] = ContextVar("as_it_is", default=False)


class IllegibleRow(EnvironmentRefused):
    """A row has cells that this project has not written so: what it says, nobody can say."""


class IllegibleCell(IllegibleRow):
    """A cell is not of its column's kind; whoever reads it knows of which row it is."""

    def __init__(self, place: str, why: str) -> None:
        """Name the column, or what else is known of the place."""
        super().__init__(_problem(place, why))
        self.why = f"{place}: {why}"


def illegible(where: str, why: str) -> IllegibleRow:
    """Return the refusal of cells that cannot be read."""
    return IllegibleRow(_problem(where, why))


def _problem(where: str, why: str) -> Problem:
    return Problem(
        f"{where} has cells that cannot be read: {why}",
        "a cell holds what this project has written there",
        "`backfill verify --all` and `backfill doctor` name the row; find out who has changed it, and put back what was "
        "there, or the ledger from its backup",
    )


@contextmanager
def legible(where: str) -> Iterator[None]:
    """Refuse to read on where a cell holds what this project never writes there.

    Raises:
        IllegibleRow: naming the place.
    """
    try:
        yield
    except IllegibleCell as error:
        raise illegible(where, error.why) from error
    except (ValueError, TypeError, ArithmeticError, LookupError, AttributeError, RecursionError) as error:
        raise illegible(where, f"{type(error).__name__}: {str(error)[: 5 * _SHOWN]}") from error


def parsed(column: sa.Column[Any], text: str, kind: type[_Json]) -> _Json:
    """Return the data that a cell of a column says, which is a list or an object.

    Raises:
        IllegibleRow: naming the column, if it says something else.
    """
    try:
        found = data_of(text)
    except (ValueError, TypeError, RecursionError):
        with legible(
            _place_of(column)
        ):  # only now: a run has very many cells, and to enter it takes longer than to read one
            raise
    if not isinstance(found, kind):
        raise _wrong(_place_of(column), text)
    return found


def as_said(column: sa.Column[Any], said: Any, kind: type[_Json]) -> _Json:
    """Return what a cell of a column says, which is a list or an object: of its text, or of what `rows.cell` has read already.

    Raises:
        IllegibleRow: naming the column, if it says something else.
    """
    if isinstance(said, kind):
        return said
    if type(said) is str and type(_EMPTY.get(said)) is kind:  # most cells of very many rows
        return kind()
    return parsed(column, said, kind)


@contextmanager
def as_they_are() -> Iterator[None]:
    """Let cells be read whatever they hold: for whoever names those that were changed."""
    token = _as_it_is.set(True)
    try:
        yield
    finally:
        _as_it_is.reset(token)


def _place_of(column: sa.Column[Any]) -> str:
    return f"ledger {column.table.name}.{column.name}"


def _wrong(place: str, value: object) -> IllegibleCell:
    shown = repr(value)
    return IllegibleCell(place, shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…")


class _Checked:
    """What the kinds below share. `place` names the column; a server checks its own columns."""

    place = "ledger"

    def adapt(self, cls: type[Any], **named: Any) -> Any:
        """Let the kind that a database reads with know the column, too."""
        adapted = super().adapt(cls, **named)  # type: ignore[misc]
        if isinstance(adapted, _Checked):
            adapted.place = self.place
        return adapted

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> _Process | None:
        """Check before the database's own conversion, if it has one."""
        convert: _Process | None = super().result_processor(dialect, coltype)  # type: ignore[misc]
        return self._checked(convert) if dialect.name == "sqlite" else convert

    def _checked(self, convert: _Process | None) -> _Process:
        raise NotImplementedError

    def _odd(self, value: object) -> object:
        """Refuse a value, unless cells are read as they are."""
        if _as_it_is.get():
            return value
        raise _wrong(self.place, value)


class _CheckedText(_Checked):
    def _checked(self, convert: _Process | None) -> _Process:  # noqa: ARG002 - SQLite has none
        def process(value: Any) -> Any:
            if value is None or type(value) is str:
                return value
            return self._odd(value)

        return process


class _CheckedNumber(_Checked):
    def _checked(self, convert: _Process | None) -> _Process:  # noqa: ARG002 - SQLite has none
        def process(value: Any) -> Any:
            if value is None or type(value) is int:
                return value
            return self._odd(value)

        return process


class String(_CheckedText, sa.String):
    """A short text."""


class Text(_CheckedText, sa.Text):
    """A text."""


class Integer(_CheckedNumber, sa.Integer):
    """A number."""


class BigInteger(_CheckedNumber, sa.BigInteger):
    """A number of 64 bits."""


class Boolean(_Checked, sa.Boolean):
    """Yes or no."""

    def _checked(self, convert: _Process | None) -> _Process:  # noqa: ARG002 - it is this
        def process(value: Any) -> Any:
            if value is None or (type(value) is int and value in {0, 1}):
                return None if value is None else bool(value)
            return self._odd(value)

        return process


class _CheckedConversion(_Checked):
    def _checked(self, convert: _Process | None) -> _Process:
        assert convert is not None

        def process(value: Any) -> Any:
            try:
                return convert(value)
            except (ValueError, TypeError, OverflowError):
                return self._odd(value)

        return process


class Utc(_CheckedConversion, sa.TypeDecorator[datetime]):
    """An instant: UTC in, UTC out, whatever the database keeps of time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Store UTC."""
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Say UTC where the database has forgotten it."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Day(_CheckedConversion, sa.TypeDecorator[date]):
    """A day of the calendar."""

    impl = sa.Date
    cache_ok = True


def name_places(metadata: sa.MetaData) -> None:
    """Let each column's kind know the column, so that a refusal names it."""
    for table in metadata.tables.values():
        for column in table.c:
            if isinstance(column.type, _Checked):
                column.type.place = _place_of(column)
