"""Values that a product's translator gives for columns, held against the types of these columns: nothing is rounded or guessed.

Put here which Python values are values of which type, and how rows of them become a frame. Which rules of a table's model a row breaks
is asked by whoever makes rows of what was translated; text that is to be read as a type is `typed_values`'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from struct import pack, unpack
from typing import Any

import pandera.polars as pa
import polars as pl
from numpy import float32

from backfill_assets.declarations.column_types import inner_types, instance_of
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import dtypes, uuids
from backfill_assets.extraction.records import is_text
from manifests.fields import EARLIEST, LATEST

_NUL = "\0"
_DETAIL_LENGTH = 200
_UUID_BYTES = 16
_EXACT = Context(prec=80, traps=[InvalidOperation, Inexact])
_BITS = {pl.Int32: 31, pl.Int64: 63}
_ENTRY = {"key", "value"}

Reader = Callable[[Any], Any]
"""Returns what a frame is given for a value that is not None; `InexactValue` where the column cannot hold the value itself."""


class InexactValue(Exception):  # noqa: N818 - a value of a row, and no failure
    """A value that its column cannot hold as it is: the rule that it breaks, and the value in words."""

    def __init__(self, rule: str, detail: str) -> None:
        """Keep both for the quarantine, each as text that every record can hold."""
        super().__init__(rule)
        self.rule, self.detail = plain(rule), plain(detail)


class _Lost(Exception):  # noqa: N818 - told as `InexactValue`, with the column
    """What is said of a value instead of `not` its type, and after the value."""

    def __init__(self, rule: str = "", why: str = "", *, shown: bool = True) -> None:
        super().__init__(rule)
        self.rule, self.why, self.shown = rule, why, shown


class TranslatedColumns:
    """The columns of a model, each with what reads a translator's values for it."""

    def __init__(self, model: type[pa.DataFrameModel]) -> None:
        """Look up the types of a model."""
        self.types = {name: instance_of(kind) for name, kind in dtypes(model).items()}
        of_uuids = uuids(model)
        self._words = {name: "uuid" if name in of_uuids else str(kind) for name, kind in self.types.items()}
        self._readers = {name: _uuid if name in of_uuids else _reader(kind) for name, kind in self.types.items()}

    def exact(self, name: str, value: Any) -> Any:
        """Return what a frame is given for a value of a column: the same value, as the one Python type that stands for its column's.

        Raises:
            InexactValue: if the column would hold another value.
        """
        if value is None:
            return None
        try:
            return self._readers[name](value)
        except _Lost as lost:
            said = f"{name} is {_shown(value)}{lost.why}" if lost.shown else ""
            raise InexactValue(f"{name}: {lost.rule or f'not {self._words[name]}'}", said) from None

    def exact_row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a row as `exact` does.

        Raises:
            InexactValue: of the first value that its column would hold as another one.
        """
        return {name: self.exact(name, value) for name, value in row.items()}

    def frame(
        self, rows: Sequence[Mapping[str, Any]], filled: Mapping[str, Sequence[Any]] | None = None
    ) -> pl.DataFrame:
        """Return rows of exact values as a frame; a column that a row lacks is NULL, those in `filled` have these values instead."""
        filled = filled or {}
        return pl.DataFrame(
            [
                pl.Series(name, filled[name] if name in filled else [row.get(name) for row in rows], kind, strict=True)
                for name, kind in self.types.items()
            ]
        )


def _reader(kind: pl.DataType) -> Reader:
    base = kind.base_type()
    if isinstance(kind, pl.List):
        return partial(_list, _reader(inner_types(kind)[0]))
    if isinstance(kind, pl.Map):
        key, value = map(_reader, inner_types(kind))
        return partial(_map, key, value)
    if isinstance(kind, pl.Struct):
        return partial(_struct, {field.name: _reader(instance_of(field.dtype)) for field in kind.fields})
    if base in _BITS:
        return partial(_integer, 1 << _BITS[base])
    if isinstance(kind, pl.Decimal):
        return partial(_decimal, kind)
    if isinstance(kind, pl.Datetime):
        return _instant if kind.time_zone else _local_timestamp
    readers: dict[Any, Reader] = {
        pl.String: _text,
        pl.Boolean: _boolean,
        pl.Float32: partial(_float, is_single=True),
        pl.Float64: _float,
        pl.Date: _day,
        pl.Time: _time,
        pl.Binary: _bytes,
    }
    return readers[base]


def _as_python(value: Any) -> Any:
    """Return a number of numpy's as Python's; anything else as it is."""
    is_scalar = getattr(getattr(value, "dtype", None), "kind", "") in {"i", "u", "f", "b"} and not getattr(
        value, "ndim", 1
    )
    return value.item() if is_scalar else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _Lost
    if _NUL in value:
        raise _Lost("has a NUL character", shown=False)
    if not is_text(value):
        raise _Lost("has half of a character")
    return value[:]  # of a class derived from text, the text


def _boolean(value: Any) -> bool:
    value = _as_python(value)
    if not isinstance(value, bool):
        raise _no_value(value)
    return value


def _integer(limit: int, value: Any) -> int:
    value = _as_python(value)
    if not isinstance(value, int) or isinstance(value, bool) or not -limit <= value < limit:
        raise _no_value(value)
    return int(value)


def _float(value: Any, *, is_single: bool = False) -> float:
    value = _as_python(value)
    if not isinstance(value, (int, float, Decimal)) or isinstance(value, bool):
        raise _no_value(value)
    if isinstance(value, Decimal) and not value.is_finite():
        raise _Lost
    try:
        number = float(value)
        held = unpack("f", pack("f", number))[0] if is_single else number
    except OverflowError:
        raise _Lost from None
    if held != value and value == value and not (isinstance(value, Decimal) and says(value, held, is_single=is_single)):  # noqa: PLR0124 - NaN is a value
        raise _Lost
    return float(held)


def says(digits: Decimal, number: float, *, is_single: bool = False) -> bool:
    """Whether decimal digits are those by which a number of floating point is written: 21.7 says a double, and is none."""
    return Decimal(str(float32(number)) if is_single else repr(number)) == digits


def _decimal(kind: pl.Decimal, value: Any) -> Decimal:
    value = _as_python(value)
    if not isinstance(value, (int, Decimal)) or isinstance(value, bool):
        raise _no_value(value)
    number = Decimal(value)
    if not fits(number, kind):
        raise _Lost
    # Polars takes no more digits than its own, and those that say nothing are many
    return number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT) if number else Decimal(0)


def _day(value: Any) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise _no_value(value)
    if not EARLIEST <= value <= LATEST:
        raise _Lost(why=", which no run reaches")
    return value


def _instant(value: Any) -> datetime:
    found = _to_the_microsecond(value)
    if found.utcoffset() is None:
        raise _Lost("no offset from UTC")
    try:
        instant = found.astimezone(UTC)
        shown = _in_its_zone(found, instant)
    except OverflowError:  # by its offset it is in no year at all
        raise _Lost(why=", which no run reaches") from None
    _day_is_reached(instant)
    if shown.replace(tzinfo=None) != found.replace(tzinfo=None):
        raise _Lost("no time of its zone")
    return instant


def _in_its_zone(found: datetime, instant: datetime) -> datetime:
    """Return an instant as its zone has it: of a time that a clock put forward has left out, Python takes another one."""
    if isinstance(found.tzinfo, timezone):
        return found
    try:
        return instant.astimezone(found.tzinfo)
    # a zone of a translator's own that says nothing of a clock put forward has none
    except (ValueError, NotImplementedError):
        return found


def _local_timestamp(value: Any) -> datetime:
    found = _to_the_microsecond(value)
    if found.tzinfo is not None:
        raise _Lost("an offset from UTC")
    _day_is_reached(found)
    return found


def _to_the_microsecond(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise _no_value(value)
    # those of pandas have nanoseconds, and one that is none
    if getattr(value, "nanosecond", 0) or value != value:  # noqa: PLR0124
        raise _Lost
    return value if type(value) is datetime else datetime.combine(value.date(), value.timetz())


def _day_is_reached(value: datetime) -> None:
    if not EARLIEST <= value.date() <= LATEST:
        raise _Lost(why=", which no run reaches")


def _time(value: Any) -> time:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise _no_value(value)
    return value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise _no_value(value)
    return bytes(value)


def _uuid(value: Any) -> bytes:
    if len(_bytes(value)) != _UUID_BYTES:
        raise _Lost
    return bytes(value)


def _no_value(value: Any) -> _Lost:
    """Return what is said of a value of another Python type."""
    return _Lost("has a NUL character", shown=False) if isinstance(value, str) and _NUL in value else _Lost()


def _list(element: Reader, value: Any) -> list[Any]:
    if isinstance(value, pl.Series):
        value = value.to_list()
    if not isinstance(value, (list, tuple)):
        raise _no_value(value)
    return [None if one is None else element(one) for one in value]


def _struct(fields: Mapping[str, Reader], value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value.keys() <= fields.keys():
        raise _no_value(value)
    found = {name: value.get(name) for name in fields}
    return {name: None if one is None else fields[name](one) for name, one in found.items()}


def _map(key: Reader, value: Reader, given: Any) -> dict[Any, Any]:
    """Return the entries of a map, given as one or as what Polars writes of one: a list of keys and values."""
    if isinstance(given, Mapping):
        entries = list(given.items())
    elif isinstance(given, (list, tuple)) and all(isinstance(one, Mapping) and one.keys() == _ENTRY for one in given):
        entries = [(one["key"], one["value"]) for one in given]
    else:
        raise _no_value(given)
    if any(name is None for name, _ in entries):
        raise _Lost
    found = {key(name): None if one is None else value(one) for name, one in entries}
    if len(found) != len(entries):  # a key is there twice
        raise _Lost
    return found


def _shown(value: Any) -> str:
    """Return a value in words; by its type, where it has none."""
    try:
        return str(value) if isinstance(value, (str, date)) else repr(value)
    except ANY_ERROR:
        return f"an object of the type {type(value).__name__}"


def fits(value: Decimal, kind: pl.Decimal) -> bool:
    """Whether a decimal is kept to its last digit."""
    if not value.is_finite():
        return False
    if not value:
        return True
    _, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits))
    last = int(exponent) + len(text) - len(text.rstrip("0"))
    return -last <= kind.scale and value.adjusted() + 1 <= (kind.precision or 38) - kind.scale


def plain(text: str) -> str:
    """Return text that every record can hold, no longer than a detail is."""
    return text.replace(_NUL, "").encode(errors="replace").decode()[:_DETAIL_LENGTH]
