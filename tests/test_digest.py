"""Equal rows have equal digests, whatever wrote them; any other rows have another one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from backfill_assets.worker.digest import BLOCK_ROWS, RowDigest

# How long an example takes says nothing about the domain, only about the machine.
unhurried = settings(deadline=None, max_examples=50)

COLUMNS: dict[str, pl.DataType] = {
    "name": pl.String(),
    "small": pl.Int32(),
    "large": pl.Int64(),
    "yes": pl.Boolean(),
    "day": pl.Date(),
    "at": pl.Datetime("us", "UTC"),
    "amount": pl.Decimal(12, 2),
}
ARROW = pa.schema(
    [
        ("name", pa.string()),
        ("small", pa.int32()),
        ("large", pa.int64()),
        ("yes", pa.bool_()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("amount", pa.decimal128(12, 2)),
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(max_size=5),
    "small": st.integers(-(2**31), 2**31 - 1),
    "large": st.integers(-(2**63), 2**63 - 1),
    "yes": st.booleans(),
    "day": st.dates(date(1900, 1, 1), date(2100, 1, 1)),
    "at": st.integers(-(10**15), 10**15).map(
        lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    ),
    "amount": st.decimals(-9_999_999_999, 9_999_999_999, places=2),
}
row_lists = st.lists(st.fixed_dictionaries({name: st.none() | value for name, value in VALUES.items()}), max_size=12)
SOME_ROWS: list[dict[str, Any]] = [
    {
        "name": "Zürich",
        "small": -1,
        "large": 2**40,
        "yes": True,
        "day": date(2012, 2, 29),
        "at": datetime(2012, 2, 29, 23, 59, 59, 999_999, UTC),
        "amount": Decimal("-35.05"),
    },
    dict.fromkeys(COLUMNS),
    {
        "name": "",
        "small": 0,
        "large": 0,
        "yes": False,
        "day": date(1970, 1, 1),
        "at": datetime(1969, 12, 31, 23, 0, 0, 0, UTC),
        "amount": Decimal("0.00"),
    },
]


def frame(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=COLUMNS)


def digest(*frames: pl.DataFrame, columns: dict[str, pl.DataType] | None = None) -> str:
    under_way = RowDigest(columns or COLUMNS)
    for one in frames:
        under_way.update(one)
    return under_way.result()


def test_the_digest_of_known_rows_is_pinned() -> None:
    # runs that lie years apart are compared by it: a change is a new algorithm version, never an edit
    assert digest(frame(SOME_ROWS)) == "rows-sha256-v1:f2251cab7370364f5626a6f3575323a843d307db020f556237b7858505aa83ed"
    assert (
        digest()
        == digest(frame([]))
        == "rows-sha256-v1:574d83800c025ea4d95cb4910bc4cb6abdb3ff48fab47ed08e9a41dfa65dbf4b"
    )


def test_the_encoding_is_the_one_that_is_written_down() -> None:
    # the module's docstring in plain Python, one value at a time
    encode: dict[str, Callable[[Any], bytes]] = {
        "name": lambda value: len(value.encode()).to_bytes(8, "little"),
        "small": lambda value: value.to_bytes(4, "little", signed=True),
        "large": lambda value: value.to_bytes(8, "little", signed=True),
        "yes": lambda value: bytes([value]),
        "day": lambda value: (value - date(1970, 1, 1)).days.to_bytes(4, "little", signed=True),
        "at": lambda value: ((value - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)).to_bytes(
            8, "little", signed=True
        ),
        "amount": lambda value: int(value.scaleb(2)).to_bytes(16, "little", signed=True),
    }
    widths = {"name": 8, "small": 4, "large": 8, "yes": 1, "day": 4, "at": 8, "amount": 16}
    kinds = ["large_string", "int32", "int64", "bool", "date32[day]", "timestamp[us, tz=UTC]", "decimal128(12, 2)"]
    expected = b"rows-sha256-v1"
    expected += b"".join(f"\x00{name}\x01{kind}".encode() for name, kind in zip(COLUMNS, kinds, strict=True))
    for name in COLUMNS:
        values = [row[name] for row in SOME_ROWS]
        expected += bytes(value is None for value in values)
        expected += b"".join(bytes(widths[name]) if value is None else encode[name](value) for value in values)
        if name == "name":
            expected += "".join(value or "" for value in values).encode()
    expected += b"\x02" + len(SOME_ROWS).to_bytes(8, "little")

    assert digest(frame(SOME_ROWS)) == f"rows-sha256-v1:{hashlib.sha256(expected).hexdigest()}"


def test_a_digest_names_its_algorithm() -> None:
    assert digest(frame(SOME_ROWS)).startswith("rows-sha256-v1:")


# --- what wrote the rows does not matter ------------------------------------------------------------------------------


@unhurried
@given(row_lists, st.data())
def test_how_rows_are_split_into_files_does_not_matter(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [rows[start:end] for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]

    assert digest(*[frame(part) for part in parts]) == digest(frame(rows))


@pytest.mark.parametrize("cuts", [[1], [BLOCK_ROWS], [BLOCK_ROWS - 1, BLOCK_ROWS + 1], [30_000, 60_000, 90_000], []])
def test_blocks_do_not_depend_on_where_files_end(cuts: list[int]) -> None:
    rows = 2 * BLOCK_ROWS + 777
    numbers = pl.int_range(rows, eager=True)
    whole = pl.DataFrame(
        {
            "name": pl.Series(numbers.cast(pl.String)).set(numbers % 7 == 0, None),
            "large": pl.Series(numbers * 3).set(numbers % 5 == 0, None),
            "yes": numbers % 2 == 0,
        }
    )
    columns = {name: COLUMNS[name] for name in whole.columns}
    edges = [0, *cuts, rows]
    parts = [whole[start:end] for start, end in pairwise(edges)]

    assert digest(*parts, columns=columns) == digest(whole, columns=columns)


@unhurried
@given(row_lists, st.integers(1, 5))
def test_arrow_chunks_and_offsets_do_not_matter(rows: list[dict[str, Any]], size: int) -> None:
    table = pa.Table.from_pylist([*rows, *rows], schema=ARROW)
    chunked = pa.Table.from_batches(table.to_batches(max_chunksize=size), schema=ARROW)
    sliced = chunked.slice(len(rows))

    assert digest(pl.DataFrame(pl.from_arrow(sliced, rechunk=False))) == digest(frame(rows))


def test_dictionary_encoding_does_not_matter() -> None:
    names = pl.DataFrame({"name": ["b", "a", None, "a", "b"]})
    columns = {"name": COLUMNS["name"]}

    expected = digest(names, columns=columns)
    assert digest(names.cast(pl.Categorical), columns=columns) == expected
    assert digest(names.cast(pl.Enum(["b", "a"])), columns=columns) == expected


def test_what_lies_under_a_null_does_not_matter() -> None:
    def numbers(under_null: int) -> pl.DataFrame:
        valid = pa.py_buffer(bytes([0b101]))
        large = pa.Array.from_buffers(pa.int64(), 3, [valid, pa.array([1, under_null, 3], pa.int64()).buffers()[1]])
        small = pa.Array.from_buffers(pa.int32(), 3, [valid, pa.array([1, under_null, 3], pa.int32()).buffers()[1]])
        yes = pa.Array.from_buffers(pa.bool_(), 3, [valid, pa.array([True, bool(under_null), True]).buffers()[1]])
        text = pa.array(["a", "x" * under_null, "c"], pa.large_string())
        name = pa.Array.from_buffers(pa.large_string(), 3, [valid, *text.buffers()[1:]])
        table = pa.table({"name": name, "small": small, "large": large, "yes": yes})
        assert table["large"].to_pylist() == [1, None, 3]
        return pl.DataFrame(pl.from_arrow(table))

    columns = {name: COLUMNS[name] for name in ("name", "small", "large", "yes")}
    assert digest(numbers(7), columns=columns) == digest(numbers(0), columns=columns)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": True},
        {"use_dictionary": False, "compression": "none"},
        {"row_group_size": 1},
        {"data_page_size": 1, "data_page_version": "2.0"},
        {"store_schema": False},
    ],
)
def test_the_writer_and_its_encodings_do_not_matter(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = SOME_ROWS * 50
    pq.write_table(pa.Table.from_pylist(rows, schema=ARROW), tmp_path / "arrow.parquet", **options)
    frame(rows).write_parquet(tmp_path / "polars.parquet", row_group_size=7)

    expected = digest(frame(rows))
    assert digest(pl.read_parquet(tmp_path / "arrow.parquet")) == expected
    assert digest(pl.read_parquet(tmp_path / "polars.parquet")) == expected


def test_the_order_of_columns_and_columns_beside_the_declared_ones_do_not_matter() -> None:
    rows = frame(SOME_ROWS)

    assert digest(rows.select(reversed(rows.columns)).with_columns(run_id=pl.lit("x"))) == digest(rows)


# --- any difference of the rows does ----------------------------------------------------------------------------------


@unhurried
@given(row_lists.filter(bool), st.data())
def test_any_changed_cell_changes_the_digest(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.sampled_from(list(COLUMNS)))
    value = data.draw(st.none() | VALUES[column])
    assume(value != rows[row][column])
    changed = [*rows[:row], {**rows[row], column: value}, *rows[row + 1 :]]

    assert digest(frame(changed)) != digest(frame(rows))


@unhurried
@given(row_lists.filter(bool), st.data())
def test_a_dropped_row_changes_the_digest(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(rows) - 1))

    assert digest(frame([*rows[:row], *rows[row + 1 :]])) != digest(frame(rows))


@unhurried
@given(row_lists, st.data())
def test_swapped_rows_change_the_digest(rows: list[dict[str, Any]], data: st.DataObject) -> None:
    swapped = data.draw(st.permutations(rows))
    assume(swapped != rows)

    assert digest(frame(swapped)) != digest(frame(rows))


def test_a_row_twice_changes_the_digest() -> None:
    assert len({digest(frame(SOME_ROWS[:1] * times)) for times in range(5)}) == 5


@pytest.mark.parametrize(
    ("column", "empty"),
    [
        ("name", ""),
        ("small", 0),
        ("large", 0),
        ("yes", False),
        ("day", date(1970, 1, 1)),
        ("at", datetime(1970, 1, 1, tzinfo=UTC)),
        ("amount", Decimal("0.00")),
    ],
)
def test_a_null_is_not_the_empty_value(column: str, empty: Any) -> None:
    row = dict.fromkeys(COLUMNS)

    assert digest(frame([row])) != digest(frame([{**row, column: empty}]))


def test_text_does_not_run_over_from_row_to_row() -> None:
    columns = {"name": COLUMNS["name"]}
    pairs = [["ab", "c"], ["a", "bc"], ["abc", ""], ["", "abc"], ["abc", None]]

    assert len({digest(pl.DataFrame({"name": pair}), columns=columns) for pair in pairs}) == len(pairs)


def test_values_do_not_run_over_from_column_to_column() -> None:
    columns = {"small": pl.Int32(), "large": pl.Int32()}
    ways = [{"small": [1, 2], "large": [3, 4]}, {"small": [1, 3], "large": [2, 4]}, {"small": [3, 4], "large": [1, 2]}]

    assert len({digest(pl.DataFrame(way, schema=columns), columns=columns) for way in ways}) == 3


def test_the_names_and_types_of_the_columns_are_in_the_digest() -> None:
    one = {"small": pl.Int32()}
    other_name = {"large": pl.Int32()}
    other_type = {"small": pl.Int64()}

    found = {
        digest(pl.DataFrame({name: [1]}, schema=kind), columns=kind)
        for kind in (one, other_name, other_type)
        for name in kind
    }
    assert len(found) == 3


def test_a_microsecond_counts() -> None:
    at = datetime(2012, 2, 29, tzinfo=UTC)
    rows = [{**SOME_ROWS[0], "at": at}, {**SOME_ROWS[0], "at": at + timedelta(microseconds=1)}]

    assert digest(frame(rows[:1])) != digest(frame(rows[1:]))


def test_the_same_instant_in_another_zone_is_the_same_row() -> None:
    columns = {"at": COLUMNS["at"]}
    utc = frame(SOME_ROWS).select("at")

    assert digest(utc.with_columns(pl.col("at").dt.convert_time_zone("Asia/Tokyo")), columns=columns) == digest(
        utc, columns=columns
    )


@pytest.mark.parametrize("kind", [pl.Int8(), pl.UInt64(), pl.Duration(), pl.Map(pl.Float64, pl.String)])
def test_a_type_that_no_table_has_is_named(kind: pl.DataType) -> None:
    with pytest.raises(TypeError, match="column share: "):
        RowDigest({"share": kind})


def test_the_rows_are_counted() -> None:
    under_way = RowDigest(COLUMNS)
    under_way.update(frame(SOME_ROWS))
    under_way.update(frame(SOME_ROWS[:1]))

    assert under_way.rows == 4
