"""What a translator gives for a column is what the column has, or its row is quarantined: nothing in between.

Put here what the libraries that make columns of Python values let pass in silence, for files and for answers of servers alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from io import BytesIO
from types import SimpleNamespace
from typing import Annotated, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pandera.polars as pandera
import polars as pl
import pyarrow.parquet as pq
import pytest
from api_product import FEED as SHOP
from feed_world import FEED as READINGS
from hypothesis import given
from hypothesis import strategies as st

import backfill_assets as ba
from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.extraction.indexes import Entry
from backfill_assets.extraction.records import digest_of
from backfill_assets.ingestion.judged_files import FileToJudge, judged_files
from backfill_assets.ingestion.kept_responses import Kept, KeptDelivery
from backfill_assets.ingestion.versions import Change, Found, Version
from backfill_assets.worker.columns import table_of
from resources.ledger.extractions import ExtractionRecord, ExtractionState, ResponseRecord

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
LOCAL = NOON.replace(tzinfo=None)
FAR_EAST = timezone(timedelta(hours=14))


class Values(pandera.DataFrameModel):
    report_date: pl.Date
    published_at: ba.Instant
    file_id: str
    text: str = pandera.Field(nullable=True)
    truth: bool = pandera.Field(nullable=True)
    short: pl.Int32 = pandera.Field(nullable=True)
    number: pl.Int64 = pandera.Field(nullable=True)
    single: pl.Float32 = pandera.Field(nullable=True)
    double: pl.Float64 = pandera.Field(nullable=True)
    price: Annotated[pl.Decimal, 12, 2] = pandera.Field(nullable=True)
    day: pl.Date = pandera.Field(nullable=True)
    at: ba.Instant = pandera.Field(nullable=True)
    local: ba.LocalTimestamp = pandera.Field(nullable=True)
    clock: pl.Time = pandera.Field(nullable=True)
    content: pl.Binary = pandera.Field(nullable=True)
    uuid: ba.Uuid = pandera.Field(nullable=True)
    numbers: pl.List(pl.Int64) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    prices: pl.List(pl.Decimal(12, 2)) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    instants: pl.List(pl.Datetime("us", "UTC")) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    address: pl.Struct({"street": pl.String, "number": pl.Int32}) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    levels: pl.Map(pl.String, pl.Float32) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    deep: pl.List(pl.Struct({"at": pl.Date, "by": pl.Map(pl.Int64, pl.List(pl.Time))})) = pandera.Field(nullable=True)  # type: ignore[valid-type]


def _datetime(year: int, zone: timezone | None = None) -> datetime:
    """Return the first or the last instant of a calendar."""
    last = year == 9999
    return datetime(year, 12 if last else 1, 31 if last else 1, 23 if last else 0, tzinfo=zone)


class Level(IntEnum):
    HIGH = 3


COLUMNS = tuple(dtypes(Values))[3:]
TABLE = ba.InputTable("bronze.values", "Values.", Values, ("team:values",))
_EDGES = [
    *(2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400),
    *(True, False, "7", "1e3", "nan", "true", "2024-01-01", "2024-01-01T00:00:00Z", "12:00", "a\0b", "\ud800"),
    *(0.0, -0.0, 0.1, 7.0, 7.9, 1e300, 1e-300, 2.0**24, math.inf, math.nan, Level.HIGH),
    *map(
        Decimal,
        ("7", "7.0", "1.9", "0.1", "1E+3", "1E+999999", "1.005", "1.500", "-0", "0E+9", "NaN", "sNaN", "Infinity"),
    ),
    *(NOON, LOCAL, _datetime(9999), _datetime(1), _datetime(9999, UTC), _datetime(1, FAR_EAST)),
    *(NOON.astimezone(FAR_EAST), date(2024, 1, 1), date.min, date.max, time(1, 2, 3, 4), time(1, tzinfo=UTC)),
    *(timedelta(hours=1), 1j, object, b"", b"x" * 16, bytearray(b"x"), (), [], {}, frozenset({1})),
    *(
        np.int64(3),
        np.int32(3),
        np.float64(0.1),
        np.float32(0.1),
        np.True_,
        np.timedelta64(5, "ns"),
        np.datetime64("2024-01-01"),
    ),
    *(pd.Timestamp("2024-01-01T00:00:00.000000001Z"), pd.Timestamp("2024-01-01T00:00:00.000001Z"), pd.NaT, pd.NA),
    *(
        [1, 2.5],
        [True],
        ["1"],
        [None, 1],
        (1, 2),
        pl.Series([1, 2]),
        [Decimal("1.505")],
        [Decimal("1.5"), 2],
        [LOCAL],
        [NOON, None],
    ),
    *(
        {"street": "a", "number": 1},
        {"street": "a"},
        {"street": "a", "number": 1.5},
        {"street": "a", "number": 1, "town": "b"},
    ),
    *({"a": 0.5, "b": None}, {"a": 0.1}, {"a": 2**24 + 1}, {1: 0.5}, {None: 0.5}),
    *([{"key": "a", "value": 0.5}], [{"key": "a", "value": 0.5}, {"key": "a", "value": 1.5}], [{"key": "a"}]),
    *(
        [{"at": date(2024, 1, 1), "by": {1: [time(1), None]}}, None],
        [{"at": NOON, "by": None}],
        [{"at": None, "by": {1: [1]}}],
    ),
]
ONE = (
    st.sampled_from(_EDGES)
    | st.integers()
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.floats(width=32)
    | st.decimals()
    | st.decimals(-(10**11), 10**11, places=2)
    | st.text(max_size=4)
    | st.binary(max_size=3)
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.sampled_from([UTC, FAR_EAST]))
    | st.times()
)
ANY = st.recursive(
    ONE,
    lambda inner: (
        st.lists(st.none() | inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=2) | st.integers(-3, 3) | st.sampled_from(["street", "number", "at", "by"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=5,
)


def is_the_same(held: Any, given_value: Any, kind: pl.DataType) -> bool:
    """Whether what a column has is the value that was given for it: the same one, and of the type that the column stands for."""
    if held is None or given_value is None:
        return held is given_value
    if isinstance(kind, pl.List):
        elements = list(given_value)
        return len(held) == len(elements) and all(
            is_the_same(*pair, _of(kind.inner)) for pair in zip(held, elements, strict=True)
        )
    if isinstance(kind, pl.Struct):
        types = {field.name: _of(field.dtype) for field in kind.fields}
        return given_value.keys() <= types.keys() and all(
            is_the_same(held[name], given_value.get(name), one) for name, one in types.items()
        )
    if isinstance(kind, pl.Map):
        mine = list(held if isinstance(held, list) else held.items())
        entries = [(one["key"], one["value"]) if isinstance(one, dict) else one for one in mine]
        theirs = (
            [(one["key"], one["value"]) for one in given_value]
            if isinstance(given_value, (list, tuple))
            else list(given_value.items())
        )
        return len(entries) == len(theirs) and all(
            is_the_same(ours[0], other[0], _of(kind.key)) and is_the_same(ours[1], other[1], _of(kind.value))
            for ours, other in zip(sorted(entries), sorted(theirs), strict=True)
        )
    if isinstance(held, UUID):
        held = held.bytes
    if isinstance(given_value, (bool, np.bool_)) != isinstance(kind, pl.Boolean):
        return False
    if isinstance(given_value, datetime) != isinstance(kind, pl.Datetime) or isinstance(given_value, str) != isinstance(
        kind, pl.String
    ):
        return False
    if isinstance(kind, pl.Datetime) and (given_value.tzinfo is None) != (kind.time_zone is None):
        return False
    given_value = given_value.item() if isinstance(given_value, np.number) else given_value
    if isinstance(given_value, Decimal) and isinstance(held, float) and held != given_value:
        return Decimal(str(np.float32(held)) if isinstance(kind, pl.Float32) else repr(held)) == given_value
    both_nan = isinstance(held, float) and held != held and given_value != given_value  # noqa: PLR0124
    return both_nan or bool(held == given_value)


def _of(kind: Any) -> pl.DataType:
    return kind() if isinstance(kind, type) else kind


def of_file(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    """Return the rows that a file's translator brings into a table, and those that are quarantined with rule and detail."""
    feed = replace(READINGS, translate=lambda _records, _facts: ba.Translated(list(enumerate(rows))))
    facts = ba.FileFacts("a.csv", date(2024, 1, 1), NOON, "0" * 64, 0, "", is_withdrawn=True)
    (judged,) = judged_files([FileToJudge(facts, bytes, "file-1")], feed, TABLE)
    assert (judged.refused, judged.unreadable) == ("", "")
    return written(judged.rows), [(one.row, one.rule, one.detail) for one, _ in judged.rejected]


def of_api(rows: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[tuple[int, str, str]]]:
    """Return the same of the translator of a server's answers."""
    filled = {"report_date": date(2024, 1, 1), "published_at": NOON, "file_id": ""}
    absent = dict.fromkeys(dtypes(Values))
    body = json.dumps({"data": {"items": list(range(len(rows)))}}).encode()

    def translate(record: int, _facts: ba.ResponseFacts) -> Mapping[str, Any]:
        return absent | filled | rows[record]

    feed = replace(SHOP, translate=translate, deleted_column="")
    answer = ResponseRecord(
        "", "e-1", 1, "", "", 1, 1, "GET", "http://shop", "{}", 200, "{}", 1, len(body), "0" * 64, NOON
    )
    done = ExtractionState.COMPLETE
    record = ExtractionRecord(
        "e-1", "shop", 1, "", "{}", done, "", 1, len(rows), 1, NOON, NOON, "", "", "{}", "", NOON, NOON
    )
    archive = SimpleNamespace(read=lambda _answer: body)
    kept = Kept(record, archive, {1: answer})  # type: ignore[arg-type]
    found = [
        Found(Change.NEW, Version(1, Entry(str(number), 0, digest_of(number), 1, number, 0, "")))
        for number in range(len(rows))
    ]
    delivery = KeptDelivery(feed, Values, record, lambda _number: kept, found)
    loaded = [row for batch in delivery.rows(NOON) for row in written(batch)]
    lost = [row for batch in delivery.quarantined(NOON) for row in batch.to_pylist()]
    counted = delivery.count(NOON)
    assert (counted.events, counted.quarantined) == (len(loaded), len(lost))
    return loaded, [(row["source_row"], row["reason"], row["detail"]) for row in lost]


def written(rows: Any) -> list[dict[str, Any]]:
    """Return rows as a data file of the table has them."""
    table = table_of(rows, iceberg_schema(Values)) if isinstance(rows, pl.DataFrame) else rows
    file = BytesIO()
    pq.write_table(table, file)
    return pq.read_table(file).to_pylist()


BY = pytest.mark.parametrize("by", [of_file, of_api])


@BY
@given(st.sampled_from(COLUMNS), ANY)
def test_a_value_is_loaded_as_it_was_given_or_its_row_is_quarantined(by: Any, column: str, value: Any) -> None:
    loaded, lost = by([{column: value}])
    if loaded:
        assert not lost
        assert is_the_same(loaded[0][column], value, _of(dtypes(Values)[column]))
    else:
        ((number, rule, _),) = lost
        assert number == 0
        assert rule.startswith(f"{column}: ")


@BY
def test_every_value_that_libraries_bend_is_itself_or_quarantined(by: Any) -> None:
    given_values = [(column, value) for column in COLUMNS for value in _EDGES]
    loaded, lost = by([{column: value} for column, value in given_values])
    refused = {number for number, _, _ in lost}
    kept = [pair for number, pair in enumerate(given_values) if number not in refused]
    assert len(loaded) == len(kept) > len(COLUMNS)
    for row, (column, value) in zip(loaded, kept, strict=True):
        assert is_the_same(row[column], value, _of(dtypes(Values)[column])), (column, value)


@BY
@pytest.mark.parametrize(
    ("column", "value", "detail"),
    [
        ("number", 7.9, "number is 7.9"),
        ("number", Decimal("1.9"), "number is Decimal('1.9')"),
        ("number", "7", "number is 7"),
        ("number", True, "number is True"),
        ("short", 2**31, "short is 2147483648"),
        ("double", "1e3", "double is 1e3"),
        ("double", "nan", "double is nan"),
        ("double", 2**53 + 1, "double is 9007199254740993"),
        ("double", Decimal("0.10000000000000001"), "double is Decimal('0.10000000000000001')"),
        ("single", Decimal("0.123456789"), "single is Decimal('0.123456789')"),
        ("single", 1e300, "single is 1e+300"),
        ("single", 2**24 + 1, "single is 16777217"),
        ("single", 0.1, "single is 0.1"),
        ("day", 19000, "day is 19000"),
        ("day", NOON, "day is 2024-01-01 12:00:00+00:00"),
        ("at", 1704067200, "at is 1704067200"),
        ("at", "2024-01-01T00:00:00Z", "at is 2024-01-01T00:00:00Z"),
        ("at", pd.Timestamp(1, unit="ns", tz="UTC"), "at is 1970-01-01 00:00:00.000000001+00:00"),
        ("clock", 1, "clock is 1"),
        ("clock", timedelta(hours=1), "clock is datetime.timedelta(seconds=3600)"),
        ("text", 7, "text is 7"),
        ("uuid", b"short", "uuid is b'short'"),
        pytest.param("number", 10**5000, "number is an object of the type int", id="too-long-for-text"),
        ("numbers", [1, 2.5], "numbers is [1, 2.5]"),
        ("numbers", [True], "numbers is [True]"),
        ("prices", [Decimal("1.505")], "prices is [Decimal('1.505')]"),
        ("address", {"street": "a", "number": 1.5}, "address is {'street': 'a', 'number': 1.5}"),
        ("address", {"town": "b"}, "address is {'town': 'b'}"),
        ("levels", {"a": 2**24 + 1}, "levels is {'a': 16777217}"),
        ("levels", [{"key": "a", "value": 0}] * 2, "levels is [{'key': 'a', 'value': 0}, {'key': 'a', 'value': 0}]"),
    ],
)
def test_what_does_not_fit_its_column_is_quarantined_with_column_and_value(
    by: Any, column: str, value: Any, detail: str
) -> None:
    kind = "uuid" if column == "uuid" else str(_of(dtypes(Values)[column]))
    loaded, lost = by([{"text": "before"}, {column: value}, {"text": "after"}])
    assert [row["text"] for row in loaded] == ["before", "after"]
    assert lost == [(1, f"{column}: not {kind}", detail)]


class _AnHourAhead(tzinfo):
    """A zone as a translator may have one: it says its offset, and nothing of a clock put forward."""

    def utcoffset(self, _when: datetime | None) -> timedelta:
        return timedelta(hours=1)


class _NeverPutForward(_AnHourAhead):
    def dst(self, _when: datetime | None) -> None:
        return None


@BY
def test_an_instant_of_a_zone_that_says_nothing_of_a_clock_put_forward_is_loaded(by: Any) -> None:
    times = [datetime(2024, 3, 31, 2, 30, tzinfo=zone) for zone in (_AnHourAhead(), _NeverPutForward())]
    loaded, lost = by([{"at": one} for one in times])
    assert lost == []
    assert [row["at"].isoformat() for row in loaded] == ["2024-03-31T01:30:00+00:00"] * 2


@BY
def test_a_time_that_a_zone_has_left_out_is_no_instant_and_one_that_it_has_twice_is_the_one_that_is_meant(
    by: Any,
) -> None:
    zone = ZoneInfo("Europe/Berlin")
    given_times = [
        datetime(2024, 3, 31, 2, 30, tzinfo=zone),  # from 2 to 3 there was none
        datetime(2024, 3, 31, 3, tzinfo=zone),
        datetime(2024, 10, 27, 2, 30, tzinfo=zone),
        datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=1),
    ]
    loaded, lost = by([{"at": one} for one in given_times])
    assert lost == [(0, "at: no time of its zone", "at is 2024-03-31 02:30:00+01:00")]
    assert [row["at"].isoformat() for row in loaded] == [
        "2024-03-31T01:00:00+00:00",
        "2024-10-27T00:30:00+00:00",
        "2024-10-27T01:30:00+00:00",
    ]


@BY
@pytest.mark.parametrize(
    ("column", "value", "held"),
    [
        ("double", 2**53, 2.0**53),
        ("double", Decimal("1.5"), 1.5),
        ("double", Decimal("21.7"), 21.7),
        ("double", Decimal("0.1000000000000000055511151231257827021181583404541015625"), 0.1),
        ("single", Decimal("0.1"), float(np.float32(0.1))),
        ("single", np.float32(0.1), float(np.float32(0.1))),
        ("price", 7, Decimal("7.00")),
        ("price", Decimal("1E+3"), Decimal("1000.00")),
        ("price", Decimal("1.50000"), Decimal("1.50")),
        ("price", Decimal("1.5" + "0" * 44), Decimal("1.50")),
        ("price", Decimal("9999999999.99" + "0" * 60), Decimal("9999999999.99")),
        ("price", Decimal("0E+9"), Decimal("0.00")),
        ("number", np.int64(3), 3),
        ("number", Level.HIGH, 3),
        ("at", NOON.astimezone(FAR_EAST), NOON),
        ("at", pd.Timestamp("2024-01-01T12:00Z"), NOON),
        ("address", {"street": "a"}, {"street": "a", "number": None}),
        ("levels", {"a": 1, "b": None}, [("a", 1.0), ("b", None)]),
        ("numbers", (1, None), [1, None]),
        ("text", None, None),
    ],
)
def test_what_its_column_can_hold_is_held_exactly(by: Any, column: str, value: Any, held: Any) -> None:
    ((row,), lost) = by([{column: value}])
    assert (row[column], lost) == (held, [])
