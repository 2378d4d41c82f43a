"""A value of a file as its column's declared type, or null where it would not be the same: nothing is rounded or guessed.

Put here which types can become which, and how text is read as one. What is said of a value that is lost is `input_files`'.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl
import pyarrow as arrow

from backfill_assets.declarations.column_types import inner_types, instance_of
from backfill_assets.delivered_files import is_no_text
from backfill_assets.ingestion.translated_values import says
from backfill_assets.worker.nested import repeats_keys
from manifests.fields import EARLIEST, LATEST

_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_INSTANT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:[0-5]\d(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})$"
"""A leap second (:60) is none: it would be stored as the next minute's first."""
_LOCAL = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:[0-5]\d(\.\d{1,6})?)?$"
_TIME = r"^\d{2}:\d{2}(:[0-5]\d(\.\d{1,6})?)?$"
_WHOLE = r"^[+-]?\d+$"
_DIGITS = {pl.Float32: 8, pl.Float64: 16}
"""So many digits of an integer may be more than a float has; more than 38 are more than an integer of Polars' has."""
_LONG = r"^[+-]?0*[1-9]\d{38,}(\.0*)?$"
_MAY_BE_WHOLE = r"[eE](\+?\d|-0+$)|0\.?[eE]-"
"""A number with an exponent by which, or by zeros at its end, it may be an integer."""
_ROUNDED_FROM = {pl.Float32: 2.0**24, pl.Float64: 2.0**53}
"""Of a smaller number, a float has every integer."""
_MOST_DIGITS = 767
"""So many digits a double may have, and no more."""
_NOT_ZERO = r"^[+-]?[0.]*[1-9]"
_NUMBER = r"^[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$"


def can_hold(declared: pl.DataType, found: Any) -> bool:
    """Return whether values of an Arrow type can be compared, one by one, with what they become as the declared type."""
    kinds = arrow.types
    if kinds.is_null(found):  # a writer that infers types has found no value; whether there may be none says the model
        return True
    if kinds.is_dictionary(found):
        return can_hold(declared, found.value_type)
    if isinstance(declared, pl.List):
        is_list = kinds.is_list(found) or kinds.is_large_list(found)
        return is_list and bool(can_hold(declared.inner, found.value_type))  # type: ignore[arg-type]
    if isinstance(declared, pl.Struct | pl.Map):
        return _is_the_same(declared, found)
    return _can_hold_one(declared, found)


def _can_hold_one(declared: pl.DataType, found: Any) -> bool:
    kinds = arrow.types
    base = declared.base_type()
    if base == pl.String:
        return bool(kinds.is_string(found) or kinds.is_large_string(found) or kinds.is_string_view(found))
    if base in {pl.Int32, pl.Int64}:
        return bool(kinds.is_integer(found))
    if base in {pl.Float32, pl.Float64}:
        return bool(kinds.is_floating(found) or kinds.is_integer(found))
    if base == pl.Decimal:
        return bool(kinds.is_decimal128(found) or kinds.is_integer(found))
    if base == pl.Datetime:
        return bool(kinds.is_timestamp(found) and (found.tz is None) == (declared.time_zone is None))  # type: ignore[attr-defined]
    if base == pl.Binary:
        is_bytes = (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary, kinds.is_binary_view)
        return found == arrow.uuid() or any(is_kind(found) for is_kind in is_bytes)
    same = {pl.Boolean: kinds.is_boolean, pl.Date: kinds.is_date32, pl.Time: kinds.is_time}.get(base)
    return same is not None and bool(same(found))


def _is_the_same(declared: pl.DataType, found: Any) -> bool:
    """Return whether an Arrow type is a declared one: of what has others inside no value is converted."""
    try:
        empty = pl.from_arrow(arrow.table({"_": arrow.array([], found)}))
    except (arrow.ArrowException, pl.exceptions.PolarsError):
        return False
    assert isinstance(empty, pl.DataFrame)
    return empty.schema["_"] == declared


def may_be(declared: pl.DataType) -> str:
    """Say of which types of a Parquet file `can_hold` accepts a column."""
    if isinstance(declared, pl.List):
        return f"lists: their elements from {may_be(declared.inner)}"  # type: ignore[arg-type]
    if isinstance(declared, pl.Struct | pl.Map):
        return "its declared type alone: what has others inside is not converted"
    base = declared.base_type()
    if base == pl.Datetime and declared.time_zone is None:  # type: ignore[attr-defined]
        return "timestamps without a time zone, of any unit"
    words = {
        pl.String: "text",
        pl.Int32: "integers of any width",
        pl.Int64: "integers of any width",
        pl.Float32: "floating-point numbers or integers",
        pl.Float64: "floating-point numbers or integers",
        pl.Binary: "bytes",
        pl.Time: "times of day, of any unit",
        pl.Decimal: "decimals or integers",
        pl.Datetime: "timestamps with a time zone, of any unit",
        pl.Boolean: "booleans",
        pl.Date: "days (date32)",
    }
    return words.get(base, "its declared type alone")


def local_instant(text: pl.Expr) -> pl.Expr:
    """Return whether text is an existing date and time that says no offset from UTC, and so no instant."""
    parsed = text.str.replace(" ", "T", literal=True).str.replace(r"T(\d{2}:\d{2})$", "T${1}:00")
    exists = parsed.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False).is_not_null()
    return text.str.contains(_LOCAL) & exists


def as_declared(column: pl.Expr, found: pl.DataType, declared: pl.DataType) -> pl.Expr:
    """Return a column with its declared type; null where the value would not be the same, or no run could reach its day."""
    if isinstance(found, pl.Null):
        return column.cast(declared)
    if isinstance(declared, pl.Struct | pl.Map):
        return pl.when(~repeats_keys(column, declared) & ~_loses_inside(column, declared)).then(column)
    if isinstance(declared, pl.List):
        return _typed_lists(column, instance_of(found.inner), instance_of(declared.inner))  # type: ignore[attr-defined]
    converted = _converted(column, found, declared)
    if isinstance(declared, (pl.Date, pl.Datetime)):
        return pl.when(converted.dt.year().is_between(EARLIEST.year, LATEST.year)).then(converted)
    if isinstance(declared, pl.String):
        return pl.when(~is_no_text(converted)).then(converted)
    return converted


def within_reach(instants: pl.Expr, found: pl.DataType) -> pl.Expr:
    """Return instants, or days, without those that no run could reach: of some units, Polars cannot even convert them."""
    if isinstance(found, pl.Date):
        first_day, last_day = (
            int(datetime(one.year, one.month, one.day, tzinfo=UTC).timestamp()) // 86_400 for one in (EARLIEST, LATEST)
        )
        return pl.when(instants.to_physical().is_between(first_day, last_day)).then(instants)
    a_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[found.time_unit]  # type: ignore[attr-defined]
    first, after = (
        int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * a_second for year in (EARLIEST.year, LATEST.year + 1)
    )
    reached = instants.to_physical().cast(pl.Int128).is_between(pl.lit(first, pl.Int128), pl.lit(after - 1, pl.Int128))
    return pl.when(reached).then(instants)


def _typed_lists(column: pl.Expr, found: pl.DataType, declared: pl.DataType) -> pl.Expr:
    """Return lists with elements of their declared type; null where one of them would not be the same."""
    element = pl.element()
    typed = as_declared(element, found, declared)
    lost = column.list.eval(element.is_not_null() & typed.is_null()).list.any()
    return pl.when(~lost).then(column.list.eval(typed))


def _loses_inside(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    """Return whether one of the values inside a struct or a map would not be the same."""
    inner = inner_types(kind)
    if isinstance(kind, pl.Struct):
        fields = zip(kind.fields, inner, strict=True)
        lost = pl.any_horizontal(
            pl.lit(value=False), *(_is_lost(values.struct.field(field.name), of) for field, of in fields)
        )
    else:
        entry = pl.Struct({"key": inner[0], "value": inner[1]})
        lost = values.cast(pl.List(entry)).list.eval(_loses_inside(pl.element(), entry)).list.any()
    return lost.fill_null(value=False)


def _is_lost(values: pl.Expr, kind: pl.DataType) -> pl.Expr:
    return values.is_not_null() & as_declared(values, kind, kind).is_null()


def _converted(column: pl.Expr, found: pl.DataType, declared: pl.DataType) -> pl.Expr:
    if isinstance(declared, pl.Time) and isinstance(found, pl.Time):  # Polars has nanoseconds, a table microseconds
        return pl.when(column.dt.nanosecond() % 1_000 == 0).then(column)
    if found == declared:
        return column
    if isinstance(found, pl.String) and not isinstance(declared, pl.String):
        return _parsed(column, declared)
    if isinstance(declared, pl.Datetime) and declared.time_zone is None:
        column = within_reach(column, found)
        unit = found.time_unit  # type: ignore[attr-defined]
        converted = column.dt.cast_time_unit("us")
        return pl.when(converted.dt.cast_time_unit(unit) == column).then(converted)
    if isinstance(declared, pl.Datetime):
        # by instant: another zone is another way to write it
        column = within_reach(column, found)
        converted = column.dt.convert_time_zone("UTC").dt.cast_time_unit("us")
        back = converted.dt.cast_time_unit(found.time_unit)  # type: ignore[attr-defined]
        return pl.when(back == column.dt.convert_time_zone("UTC")).then(converted)
    converted = column.cast(declared, strict=False)
    if isinstance(declared, pl.Float32 | pl.Float64):
        return pl.when(converted.is_nan() | (converted.cast(found, strict=False) == column)).then(converted)
    return pl.when(converted.cast(found, strict=False) == column).then(converted)


def _parsed(text: pl.Expr, declared: pl.DataType) -> pl.Expr:
    """Return what text says as a declared type; null where it does not say one."""
    if isinstance(declared, pl.Boolean):
        lower = text.str.to_lowercase()
        return pl.when(lower.is_in(["true", "false"])).then(lower == "true")
    if isinstance(declared, pl.Date):
        # the pattern decides: Polars takes signs and days of one digit
        return pl.when(text.str.contains(_DAY)).then(text.str.to_date("%Y-%m-%d", strict=False, exact=True))
    if isinstance(declared, pl.Datetime) and declared.time_zone is None:
        local = text.str.replace(" ", "T", literal=True).str.replace(r"T(\d{2}:\d{2})$", "T${1}:00")
        parsed = local.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
        return pl.when(text.str.contains(_LOCAL)).then(parsed)
    if isinstance(declared, pl.Time):
        whole = text.str.replace(r"^(\d{2}:\d{2})$", "${1}:00")
        return pl.when(text.str.contains(_TIME)).then(whole.str.to_time("%H:%M:%S%.f", strict=False))
    if isinstance(declared, pl.Datetime):
        plain = text.str.replace(" ", "T", literal=True).str.replace(r"Z$", "+00:00")
        seconds = plain.str.replace(r"T(\d{2}:\d{2})([+-])", "T${1}:00${2}")
        return pl.when(text.str.contains(_INSTANT)).then(
            seconds.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%#z", time_unit="us", time_zone="UTC", strict=False)
        )
    if isinstance(declared, pl.Decimal):
        fits = text.str.contains(rf"^[+-]?\d*(\.\d{{0,{declared.scale}}}0*)?$") & text.str.contains(r"\d")
        return pl.when(fits).then(text.cast(declared, strict=False))
    if isinstance(declared, pl.Float32 | pl.Float64):
        number = text.cast(declared, strict=False)
        # a decimal fraction is the float next to it; an integer, a number too large or one too small has to be the same
        integer = rf"^\+?(-?)0*([1-9]\d{{{_DIGITS[declared.base_type()] - 1},37}})(\.0*)?$"
        whole = pl.when(text.str.contains(integer)).then(text.str.replace(integer, "${1}${2}"))
        changed = number.is_infinite() | ((number == 0) & text.str.contains(_NOT_ZERO))
        rounded = whole.is_not_null() & (
            whole.cast(pl.Int128, strict=False) != number.cast(pl.Int128, strict=False)
        ).fill_null(value=True)
        is_another = _is_another_integer(text, number, declared)
        return pl.when(text.str.contains(_NUMBER) & ~changed & ~rounded & ~is_another).then(number)
    return pl.when(text.str.contains(_WHOLE)).then(text.cast(declared, strict=False))


def _is_another_integer(text: pl.Expr, number: pl.Expr, declared: pl.DataType) -> pl.Expr:
    """Return whether text says an integer that its float is not, where Polars has no integer of that text."""
    is_single = isinstance(declared, pl.Float32)
    # of a shorter text, the float has all digits
    with_exponent = text.str.contains(_MAY_BE_WHOLE) & (
        text.str.len_bytes() > _DIGITS[pl.Float32 if is_single else pl.Float64]
    )
    is_large = number.is_finite() & (number.abs() >= _ROUNDED_FROM[pl.Float32 if is_single else pl.Float64])
    asked = pl.when(is_large & (with_exponent | text.str.contains(_LONG))).then(text)

    def judged(pairs: pl.Series) -> pl.Series:
        found = pairs.struct.unnest().with_row_index("row").drop_nulls()
        lost = [row for row, said, held in found.iter_rows() if not _is_held(said, held, is_single=is_single)]
        return pl.Series(pairs.name, [False], pl.Boolean).new_from_index(0, len(pairs)).scatter(lost, values=True)

    pair = pl.struct(asked.alias("text"), number.alias("number"))
    return pair.map_batches(judged, return_dtype=pl.Boolean, is_elementwise=True)


def _is_held(text: str, number: float, *, is_single: bool) -> bool:
    """Return whether a float is the number that a text says, if that is an integer: itself, or as it is written, with any number of digits."""
    said = Decimal(text)
    if says(said, number) or said == number or (is_single and says(said, number, is_single=True)):
        return True
    _, digits, exponent = said.as_tuple()
    written = "".join(map(str, digits)).rstrip("0")
    is_whole = int(exponent) + len(digits) - len(written) >= 0
    return not is_whole or (len(written) <= _MOST_DIGITS and Decimal(f"{number:.{len(written) - 1}e}") == said)
