"""Random columns of every type: equal frames that were made in different ways, and frames that differ in one cell.

Put here how values are made, and in how many ways equal ones can be written. What is held of their digests is for the tests.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from typing import Any

import polars as pl
import pyarrow as pa

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANS = (0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FF8DEADBEEF0001)
"""Bits of some that are no number, quiet and signalling, with and without a sign."""
_NULLS = 0.2
_EXACT = Context(prec=60)


def _float(chance: random.Random) -> float:
    kind = chance.randrange(6)
    if kind == 0:
        return float("nan")
    if kind == 1:
        return chance.choice((0.0, -0.0, float("inf"), -float("inf"), 5e-324))
    bits: float = struct.unpack("<d", chance.randbytes(8))[0]
    return float("nan") if bits != bits else bits  # noqa: PLR0124 - it is no number


def _single(chance: random.Random) -> float:
    kind = chance.randrange(6)
    if kind == 0:
        return float("nan")
    if kind == 1:
        return chance.choice((0.0, -0.0, float("inf"), -float("inf")))
    bits: float = struct.unpack("<f", chance.randbytes(4))[0]
    return float("nan") if bits != bits else bits  # noqa: PLR0124 - it is no number


def _decimal(digits: int, scale: int) -> Callable[[random.Random], Decimal]:
    def one(chance: random.Random) -> Decimal:
        number = chance.randint(-(10**digits) + 1, 10**digits - 1) // 10 ** chance.randrange(digits)
        return Decimal(number).scaleb(-scale, _EXACT)

    return one


def _text(chance: random.Random) -> str:
    return "".join(chance.choice("ab\u00e9\u4e2d\U0001f600\u0301 ") for _ in range(chance.randrange(5)))


def _time(chance: random.Random) -> time:
    return (datetime.min + timedelta(microseconds=chance.randrange(86_400_000_000))).time()  # noqa: DTZ901 - a time of day


def _instant(chance: random.Random) -> datetime:
    return _EPOCH + timedelta(microseconds=chance.randint(-(10**15), 10**15))


SIMPLE: dict[str, tuple[pl.DataType, pa.DataType, Callable[[random.Random], Any]]] = {
    "string": (pl.String(), pa.string(), _text),
    "int": (pl.Int32(), pa.int32(), lambda chance: chance.randint(-(2**31), 2**31 - 1)),
    "long": (pl.Int64(), pa.int64(), lambda chance: chance.randint(-(2**63), 2**63 - 1)),
    "boolean": (pl.Boolean(), pa.bool_(), lambda chance: chance.random() < 0.5),
    "date": (pl.Date(), pa.date32(), lambda chance: date(1970, 1, 1) + timedelta(days=chance.randint(-30_000, 30_000))),
    "timestamptz": (pl.Datetime("us", "UTC"), pa.timestamp("us", "UTC"), _instant),
    "timestamp": (pl.Datetime("us"), pa.timestamp("us"), lambda chance: _instant(chance).replace(tzinfo=None)),
    "time": (pl.Time(), pa.time64("us"), _time),
    "decimal(12, 2)": (pl.Decimal(12, 2), pa.decimal128(12, 2), _decimal(12, 2)),
    "decimal(38, 10)": (pl.Decimal(38, 10), pa.decimal128(38, 10), _decimal(38, 10)),
    "float": (pl.Float32(), pa.float32(), _single),
    "double": (pl.Float64(), pa.float64(), _float),
    "binary": (pl.Binary(), pa.binary(), lambda chance: chance.randbytes(chance.randrange(5))),
    "uuid": (pl.Binary(), pa.uuid(), lambda chance: chance.randbytes(16)),
}


def _maybe(value: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    return lambda chance: None if chance.random() < _NULLS else value(chance)


def _list_of(name: str, most: int = 4) -> tuple[pl.DataType, pa.DataType, Callable[[random.Random], Any]]:
    kind, arrow, value = TYPES[name]
    one = _maybe(value)
    return pl.List(kind), pa.list_(arrow), lambda chance: [one(chance) for _ in range(chance.randrange(most))]


def _struct_of(**fields: str) -> tuple[pl.DataType, pa.DataType, Callable[[random.Random], Any]]:
    of = {name: TYPES[kind] for name, kind in fields.items()}
    values = {name: _maybe(value) for name, (_, _, value) in of.items()}
    return (
        pl.Struct({name: kind for name, (kind, _, _) in of.items()}),
        pa.struct([(name, arrow) for name, (_, arrow, _) in of.items()]),
        lambda chance: {name: value(chance) for name, value in values.items()},
    )


def _map_of(key: str, value: str) -> tuple[pl.DataType, pa.DataType, Callable[[random.Random], Any]]:
    (key_kind, key_arrow, keys), (kind, arrow, values) = TYPES[key], TYPES[value]
    one = _maybe(values)
    return (
        pl.Map(key_kind, kind),
        pa.map_(key_arrow, arrow),
        lambda chance: Entries({keys(chance): one(chance) for _ in range(chance.randrange(4))}.items()),
    )


class Entries(list[tuple[Any, Any]]):
    """The entries of a map, in some order."""


TYPES = dict(SIMPLE)
"""Every type that is tried: of Polars, of Arrow, and how a value is made."""
TYPES["list<double>"] = _list_of("double")
TYPES["list<string>"] = _list_of("string")
TYPES["struct"] = _struct_of(a="int", b="string", c="float", d="list<double>")
TYPES["map<string, double>"] = _map_of("string", "double")
TYPES["map<date, struct>"] = _map_of("date", "struct")
TYPES["list<struct>"] = _list_of("struct", 3)
TYPES["list<map>"] = _list_of("map<string, double>", 3)
TYPES["struct of map"] = _struct_of(m="map<date, struct>", l="list<struct>", b="binary")


def column(name: str, chance: random.Random, rows: int) -> list[Any]:
    """Return the values of a column of a type, some of them NULL."""
    one = _maybe(TYPES[name][2])
    return [one(chance) for _ in range(rows)]


def plain(value: Any) -> Any:
    """Return a value in a form in which equal ones are equal: what is no number, both zeros, and the order of a map do not count."""
    if isinstance(value, float):
        return "nan" if value != value else value + 0.0  # noqa: PLR0124 - it is no number
    if isinstance(value, Entries):
        return ("map", tuple(sorted(((plain(key), plain(one)) for key, one in value), key=lambda pair: str(pair[0]))))
    if isinstance(value, list):
        return ("list", tuple(map(plain, value)))
    if isinstance(value, dict):
        return ("struct", tuple((key, plain(one)) for key, one in value.items()))
    return value


def otherwise(value: Any, chance: random.Random) -> Any:
    """Return an equal value, written otherwise: another zero, map entries in another order."""
    if isinstance(value, float):
        return -value if value == 0 else value
    if isinstance(value, Entries):
        entries = [(key, otherwise(one, chance)) for key, one in value]
        chance.shuffle(entries)
        return Entries(entries)
    if isinstance(value, list):
        return [otherwise(one, chance) for one in value]
    if isinstance(value, dict):
        return {key: otherwise(one, chance) for key, one in value.items()}
    return value


def in_arrow(name: str, values: list[Any]) -> pa.Array:
    """Return values as an Arrow array; each NaN of a column of doubles has other bits."""
    array = pa.array(values, TYPES[name][1])
    if name != "double":
        return array
    bits = array.view(pa.int64()).to_pylist()
    for at, value in enumerate(values):
        if value is not None and value != value:  # noqa: PLR0124 - it is no number
            bits[at] = struct.unpack("<q", struct.pack("<Q", _NANS[at % len(_NANS)]))[0]
    return pa.array(bits, pa.int64()).view(pa.float64())


def in_polars(name: str, values: list[Any]) -> pl.Series:
    """Return values as a Polars series, by its own constructor where it has one for them."""
    kind = TYPES[name][0]
    if name in SIMPLE:
        return pl.Series(name, values, kind, strict=True)
    # of nested values PyArrow's is read, and handed over in pieces
    chunked = pa.chunked_array([pa.array([value], TYPES[name][1]) for value in values], TYPES[name][1])
    series = pl.from_arrow(pa.table({name: chunked}))
    assert isinstance(series, pl.DataFrame)
    return series[name]
