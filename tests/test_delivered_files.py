"""What a delivered file says is what is loaded, value by value, or it is refused: nothing in between.

Put here what libraries that read CSV and Parquet let pass in silence. Files are held against models without a table.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandera.polars as pandera
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import backfill_assets as ba
from backfill_assets import delivered_files
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.ingestion import file_formats, typed_values
from backfill_assets.ingestion.input_files import REASON, RECORD, ROW, InputFile
from backfill_assets.ingestion.typed_values import as_declared
from backfill_assets.products.enforcement import loading
from backfill_assets.worker.columns import table_of
from manifests.errors import InputRefused

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)


class Meters(pandera.DataFrameModel):
    name: str = pandera.Field(nullable=True)
    number: pl.Int64 = pandera.Field(nullable=True)
    day: date = pandera.Field(nullable=True)
    at: ba.Instant = pandera.Field(nullable=True)
    size: pl.Float64 = pandera.Field(nullable=True)
    price: Annotated[pl.Decimal, 10, 2] = pandera.Field(nullable=True)
    checked: bool = pandera.Field(nullable=True)
    note: str = pandera.Field(nullable=True)


class Names(pandera.DataFrameModel):
    name: str = pandera.Field(nullable=True)


class Lists(pandera.DataFrameModel):
    name: str
    numbers: pl.List(pl.Int32) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    sizes: pl.List(pl.Float64) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    prices: pl.List(pl.Decimal(10, 2)) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    instants: pl.List(pl.Datetime("us", "UTC")) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    words: pl.List(pl.String) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    nested: pl.List(pl.List(pl.Int32)) = pandera.Field(nullable=True)  # type: ignore[valid-type]


class Clocks(pandera.DataFrameModel):
    name: str
    clock: pl.Time = pandera.Field(nullable=True)
    clocks: pl.List(pl.Time) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    opening: pl.Struct({"at": pl.Time, "note": pl.String}) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    by_day: pl.Map(pl.String, pl.List(pl.Time)) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    by_clock: pl.Map(pl.Time, pl.Int32) = pandera.Field(nullable=True)  # type: ignore[valid-type]
    stay: pl.Struct({"since": pl.Datetime("us", "UTC")}) = pandera.Field(nullable=True)  # type: ignore[valid-type]


class Singles(pandera.DataFrameModel):
    name: str
    score: pl.Float32 = pandera.Field(nullable=True)
    size: pl.Float64 = pandera.Field(nullable=True)


def a_csv(folder: Path, content: str | bytes) -> Path:
    file = folder / "a.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def a_parquet(folder: Path, **columns: Any) -> Path:
    file = folder / "a.parquet"
    pq.write_table(pa.table(columns), file)
    return file


def read(file: Path, model: type[pandera.DataFrameModel] = Meters) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return the rows that pass, without their absent values, and the reason of each row that does not."""
    passed: list[dict[str, Any]] = []
    rejected: dict[int, str] = {}
    for checked in InputFile(file, model).batches():
        passed += checked.passed.drop(ROW).to_dicts()
        rejected |= dict(checked.rejected.select(ROW, REASON).iter_rows())
    return [{name: value for name, value in row.items() if value is not None} for row in passed], rejected


def refusal(file: Path, model: type[pandera.DataFrameModel] = Meters) -> str:
    with pytest.raises(InputRefused) as refused:
        read(file, model)
    (problem,) = refused.value.problems
    assert problem.rule
    assert problem.fix
    return problem.what


def texts(*values: bytes, kind: pa.DataType | None = None) -> pa.Array:
    """Return text of any bytes, as a writer that checks nothing makes it."""
    binary = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), binary.buffers()).cast(kind or pa.string())


# --- quotes -----------------------------------------------------------------------------------------------------------


def test_a_quote_that_is_never_closed_refuses_the_file_and_names_its_line(tmp_path: Path) -> None:
    rows = [f"m{row},{row}," for row in range(200)]
    rows[3] += '"note not closed'
    file = a_csv(tmp_path, "\n".join(["name,number,note", *rows, ""]))
    assert f"{file} opens a quote in line 5 that is never closed" in refusal(file)
    file = a_csv(tmp_path, "\r\n".join(["name,number,note", *rows]))
    assert "line 5" in refusal(file)


def test_a_quote_that_leaves_the_last_row_short_of_cells_is_named_by_its_line_all_the_same(tmp_path: Path) -> None:
    file = a_csv(tmp_path, 'name,number,note\nx,1,a\n"x,2,b\nx,3,c\n')
    assert f"{file} opens a quote in line 3 that is never closed" in refusal(file)


def test_text_of_another_encoding_is_named_by_its_line_and_cell(tmp_path: Path) -> None:
    file = a_csv(tmp_path, b"name,number,note\nx,1,a\nx,2,caf\xe9\n")
    assert refusal(file) == f"{file} cannot be read: line 3 is not UTF-8: b'caf\\xe9'"


def test_a_column_that_is_spelt_another_way_is_answered_with_the_one_that_was_meant(tmp_path: Path) -> None:
    with pytest.raises(InputRefused) as refused:
        read(a_csv(tmp_path, "name,prices,colour\nx,1.00,red\n"))
    (problem,) = refused.value.problems
    assert problem.fix == "did you write prices for price? if not, leave them out, or declare them"


def test_a_column_without_any_value_has_no_type_and_is_null(tmp_path: Path) -> None:
    none = pa.nulls(2)
    columns = dict.fromkeys(("number", "day", "at", "size", "price", "checked", "note"), none)
    assert read(a_parquet(tmp_path, name=["a", "b"], **columns)) == ([{"name": "a"}, {"name": "b"}], {})
    lists = dict.fromkeys(("numbers", "sizes", "prices", "instants", "words", "nested"), none)
    assert read(a_parquet(tmp_path, name=["a", "b"], **lists), Lists)[0] == [{"name": "a"}, {"name": "b"}]
    _, rejected = read(a_parquet(tmp_path, name=none), Lists)
    assert rejected == {0: "name: null", 1: "name: null"}


def test_a_local_time_is_told_how_an_instant_is_written(tmp_path: Path) -> None:
    with pytest.raises(InputRefused) as refused:
        read(a_parquet(tmp_path, at=pa.array([NOON.replace(tzinfo=None)])))
    assert refused.value.problems[0].fix == "write the column as timestamptz, with a time zone"


def test_a_stray_quote_that_another_one_seems_to_close_refuses_the_file_and_names_both_lines(tmp_path: Path) -> None:
    file = a_csv(tmp_path, 'name,number\na,"1\nb,2\nc,3\nd,"4\ne,5\n')
    assert "opens a quote in line 2, and after the one that closes it, in line 5, comes '4'" in refusal(file)
    assert "line 2, and" in refusal(a_csv(tmp_path, 'name,number\n"a"x,1\nb,2\n'))


def test_a_line_end_in_a_cell_that_is_no_text_refuses_the_file_whose_rows_it_swallowed(tmp_path: Path) -> None:
    file = a_csv(tmp_path, 'name,number\na,1\nb,"1\nc,2\nd,3"\ne,5\n')
    assert "has a line end within column number, in row 1" in refusal(file)
    assert refusal(a_csv(tmp_path, 'name,day\na,"2024-01-01\r"\n'))


def test_quotes_that_are_closed_and_doubled_say_what_they_enclose(tmp_path: Path) -> None:
    file = a_csv(tmp_path, '\ufeff"name","number",note\r\n"a ""b"", c","1",""\r\n"""",2,"two\nlines"\r\nd,3,"""end"""')
    assert read(file)[0] == [
        {"name": 'a "b", c', "number": 1, "note": ""},
        {"name": '"', "number": 2, "note": "two\nlines"},
        {"name": "d", "number": 3, "note": '"end"'},
    ]


def test_a_quote_in_the_middle_of_a_cell_is_a_character_like_any_other(tmp_path: Path) -> None:
    file = a_csv(tmp_path, 'name,number\n5" pipe,1\n6"",2\n "x,3\n')
    assert [row["name"] for row in read(file)[0]] == ['5" pipe', '6""', ' "x']


def misquoted(text: str) -> bool:
    """Return whether a quote is not closed, or not at the end of its cell: character by character, as Arrow reads."""
    place = "begins"
    for character in text.removeprefix("\ufeff"):
        match place, character:
            case "enclosed", '"':
                place = "after"
            case "enclosed", _:
                pass
            case (("begins" | "after"), '"'):
                place = "enclosed"
            case _, "," | "\r" | "\n":
                place = "begins"
            case "after", _:
                return True
            case _:
                place = "within"
    return place == "enclosed"


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text('",\n\rx\ufeff', max_size=30), block=st.integers(3, 40))
def test_misquoted_text_is_refused_wherever_the_blocks_it_is_read_in_end(tmp_path: Path, text: str, block: int) -> None:
    file = a_csv(tmp_path, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivered_files, "_READ", block)
        try:
            delivered_files.content_hash(file)
        except InputRefused:
            assert misquoted(text)
        else:
            assert not misquoted(text)


def a_log(last: str) -> str:
    rows = [f'A{row},Payment,2006-07-24T00:00:00+02:00,1,0,IT,"fine"' for row in range(20)]
    rows[1] = f"A1,Payment,2006-07-24T00:00:00+02:00,1,0,{last}"
    return "\n".join(["case:concept:name,concept:name,time:timestamp,amount,_event_seq,jurisdiction,note", *rows, ""])


@pytest.mark.parametrize(
    ("last", "says"),
    [
        ('IT,"not closed', "comes 'f'"),
        ('"IT,x', "comes 'f'"),
        ('"IT\nA1,Payment,2006-07-24T00:00:00+02:00,1,0,IT",x', "has a line end within jurisdiction, in row 1"),
    ],
)
def test_a_case_log_with_a_stray_quote_is_refused(tmp_path: Path, last: str, says: str) -> None:
    with pytest.raises(InputRefused) as refused:
        loading.from_file(a_csv(tmp_path, a_log(last))).count(NOON)
    assert says in str(refused.value)


def test_a_case_log_whose_last_quote_is_not_closed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="opens a quote in line 3 that is never closed"):
        loading.from_file(a_csv(tmp_path, a_log('IT,"open').replace('"fine"', "fine")))


# --- text ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
@pytest.mark.parametrize("bad", [b"z\xff", b"m\xff", b"\xff\xfe", b"a\xed\xa0\x80"])
def test_text_of_a_parquet_file_that_is_not_utf_8_refuses_the_file_and_names_its_place(
    tmp_path: Path, bad: bytes, kind: pa.DataType
) -> None:
    values = [b"m%d" % row for row in range(50)]
    values[17] = bad
    file = a_parquet(tmp_path, number=list(range(50)), name=texts(*values, kind=kind))
    assert f"{file} has a damaged value in column name, row 17" in refusal(file)


def test_damaged_text_is_numbered_by_its_row_in_the_file_also_in_a_later_batch(tmp_path: Path) -> None:
    file = a_parquet(tmp_path, name=texts(*[b"a"] * 8, b"\xff", b"b"))
    with pytest.raises(InputRefused, match="column name, row 8"):
        list(InputFile(file, Meters).batches(rows=3))


def test_damaged_text_in_a_list_refuses_the_file(tmp_path: Path) -> None:
    words = pa.ListArray.from_arrays(pa.array([0, 1, 3]), texts(b"a", b"b", b"\xff"))
    assert "column words, row 1" in refusal(a_parquet(tmp_path, name=["a", "b"], words=words), Lists)


def test_a_case_log_with_damaged_text_is_refused(tmp_path: Path) -> None:
    file = a_parquet(
        tmp_path,
        **{
            "case:concept:name": texts(b"A1", b"A\xff"),
            "concept:name": ["Payment"] * 2,
            "time:timestamp": ["2006-07-24T00:00:00+02:00"] * 2,
            "amount": [1.0, 2.0],
            "_event_seq": [0, 1],
        },
    )
    with pytest.raises(InputRefused, match="damaged value in case:concept:name, row 1"):
        loading.from_file(file).count(NOON)


# --- values of text -----------------------------------------------------------------------------------------------------


def test_text_with_a_nul_or_a_byte_order_mark_is_rejected_with_that_reason(tmp_path: Path) -> None:
    reason = "name: has a NUL character, or begins with a byte order mark"
    written = ["a\0b", "\ufeffname", "fine", "\0", "in\ufeffside"]
    csv = a_csv(tmp_path, "name,number\n" + "".join(f"{name},1\n" for name in written))
    for file in (csv, a_parquet(tmp_path, name=written, number=[1] * 5)):
        passed, rejected = read(file)
        assert [row["name"] for row in passed] == ["fine", "in\ufeffside"]
        assert rejected == {0: reason, 1: reason, 3: reason}
    (checked,) = InputFile(csv, Meters).batches()
    assert json.loads(checked.rejected.item(0, RECORD))["name"] == "a\0b"
    assert not checked.rejected["_detail"].str.contains("\0", literal=True).any()


def test_a_list_with_such_a_text_is_rejected(tmp_path: Path) -> None:
    file = a_parquet(tmp_path, name=["a", "b"], words=[["a", "", None], ["a", "b\0"]])
    assert read(file, Lists) == ([{"name": "a", "words": ["a", "", None]}], {1: "words: not list<string>"})


def test_a_case_whose_id_has_a_nul_is_quarantined(tmp_path: Path) -> None:
    log = a_log("IT,x").replace("A3", "A\x003").replace("A4", "\ufeffA4")
    counted = loading.from_file(a_csv(tmp_path, log)).count(NOON)
    assert counted.by_reason == {"BAD_CASE_ID": 2}
    assert "\0" not in counted.first["BAD_CASE_ID"].detail


# --- lists --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "kind", "good", "bad"),
    [
        ("numbers", pa.list_(pa.int64()), [1, None, 3], [1, 2**40, 3]),
        ("sizes", pa.large_list(pa.int64()), [1, 2**53], [2**53 + 1]),
        ("prices", pa.list_(pa.decimal128(20, 3)), [Decimal("1.500"), Decimal("0.010")], [Decimal("1.505")]),
        ("instants", pa.list_(pa.timestamp("us", "Europe/Rome")), [NOON, None], [datetime(1, 1, 1, tzinfo=UTC)]),
        ("instants", pa.list_(pa.timestamp("ns", "UTC")), [NOON], [1]),
        ("nested", pa.list_(pa.list_(pa.int64())), [[1, None], None, []], [[1], [2**40]]),
    ],
)
def test_a_list_with_an_element_that_its_type_cannot_hold_is_rejected_not_bent(
    tmp_path: Path, column: str, kind: pa.DataType, good: list[Any], bad: list[Any]
) -> None:
    lists = pa.array([good, bad, None, []], kind)
    file = a_parquet(tmp_path, name=list("abcd"), **{column: lists})
    passed, rejected = read(file, Lists)
    assert passed == [{"name": "a", column: good}, {"name": "c"}, {"name": "d", column: []}]
    assert set(rejected) == {1}
    assert rejected[1].startswith(f"{column}: not list<")


def test_a_rejected_row_with_a_list_is_kept_as_it_came(tmp_path: Path) -> None:
    file = a_parquet(
        tmp_path,
        name=["a", None],
        numbers=[[1], [2, None]],
        nested=pa.array([[], [[3], None]], pa.list_(pa.list_(pa.int32()))),
    )
    (checked,) = InputFile(file, Lists).batches()
    assert checked.rejected[REASON].to_list() == ["name: null"]
    assert json.loads(checked.rejected.item(0, RECORD)) == {
        "name": None,
        "numbers": ["2", None],
        "nested": [["3"], None],
    }


# --- values of CSV --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "text"),
    [
        ("size", "1e400"),
        ("size", "-1.7976931348623157e309"),
        ("size", "1e-400"),
        ("size", "9007199254740993"),
        ("size", "inf"),
        ("size", "\u0663"),
        ("day", "2020-2-3"),
        ("day", "+2020-01-01"),
        ("day", "20200101"),
        ("day", "2020-01-01 "),
        ("day", "2020-02-30"),
        ("at", "2020-01-01T00:00:00+99:99"),
        ("at", "2020-01-01T00:00:00+24:00"),
        ("at", "2020-01-01T00:00:00+01:60"),
        ("at", "2020-01-01T00:00:00.1234567Z"),
        ("at", "2020-01-01T24:00:00Z"),
        ("number", "9223372036854775808"),
        ("number", " 7"),
        ("number", "1_000"),
        ("number", "1.0"),
        ("price", "99999999999.00"),
        ("price", "1.005"),
        ("price", "1e2"),
        ("checked", "1"),
    ],
)
def test_text_that_is_no_value_of_its_column_is_rejected(tmp_path: Path, column: str, text: str) -> None:
    passed, rejected = read(a_csv(tmp_path, f"name,{column}\na,{text}\nb,\n"))
    assert passed == [{"name": "b"}]
    assert rejected[0].startswith(f"{column}: not ")


@pytest.mark.parametrize(
    ("column", "text", "value"),
    [
        ("size", "1.7976931348623157e308", 1.7976931348623157e308),
        ("size", "5e-324", 5e-324),
        ("size", "0e-400", 0.0),
        ("size", "0.1", 0.1),
        ("size", "9007199254740992", 2.0**53),
        ("size", "100000000000000000000000000000000000000000", 1e41),
        ("day", "2020-02-03", date(2020, 2, 3)),
        ("at", "2020-01-01 00:00+05:30", datetime(2019, 12, 31, 18, 30, tzinfo=UTC)),
        ("number", "-9223372036854775808", -(2**63)),
        ("price", "-12345678.90000", Decimal("-12345678.90")),
        ("checked", "True", True),
    ],
)
def test_text_that_says_a_value_of_its_column_is_that_value(
    tmp_path: Path, column: str, text: str, value: object
) -> None:
    assert read(a_csv(tmp_path, f"name,{column}\na,{text}\n")) == ([{"name": "a", column: value}], {})


# --- what else is let pass ------------------------------------------------------------------------------------------------


def test_an_empty_line_is_a_row_without_a_value_where_there_is_one_column(tmp_path: Path) -> None:
    (checked,) = InputFile(a_csv(tmp_path, 'name\na\n\n""\n'), Names).batches()
    assert checked.passed["name"].to_list() == ["a", None, ""]
    (checked,) = InputFile(a_csv(tmp_path, "name,note\na,1\n\nb,2\n"), Meters).batches()
    assert checked.passed["name"].to_list() == ["a", "b"]


def test_a_last_cell_that_is_empty_is_null_also_where_the_line_does_not_end(tmp_path: Path) -> None:
    for end in ("", "\n", "\r\n"):
        (checked,) = InputFile(a_csv(tmp_path, f'name,note\n"a",{end}'), Meters).batches()
        assert checked.passed.select("name", "note").rows() == [("a", None)]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_in_any_of_the_three_ways(tmp_path: Path, end: str) -> None:
    file = a_csv(tmp_path, end.join(["name,number", "a,1", 'b,"2"', ""]))
    assert read(file)[0] == [{"name": "a", "number": 1}, {"name": "b", "number": 2}]


def test_a_parquet_page_that_is_not_what_its_checksum_says_refuses_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    table = pa.table({"name": ["meter-one", "meter-two"], "number": [1, 2]})
    pq.write_table(
        table, file, compression="none", use_dictionary=False, write_statistics=False, write_page_checksum=True
    )
    content = file.read_bytes()
    assert content.count(b"meter-two") == 1
    file.write_bytes(content.replace(b"meter-two", b"meter-six"))
    assert "CRC" in refusal(file)


def test_a_column_that_a_file_has_twice_refuses_it(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    pq.write_table(
        pa.Table.from_arrays([pa.array(["a"]), pa.array([1]), pa.array([2])], ["name", "number", "number"]), file
    )
    assert "has the column(s) number twice" in refusal(file)


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_an_instant_of_any_unit_and_zone_is_that_instant_and_what_no_run_reaches_is_rejected(
    tmp_path: Path, unit: str
) -> None:
    for zone in ("UTC", "Europe/Rome", "+05:30"):
        at = pa.array([0, 2**62, -(2**62), None], pa.timestamp(unit, zone))
        passed, rejected = read(a_parquet(tmp_path, name=list("abcd"), at=at))
        assert passed == [{"name": "a", "at": datetime(1970, 1, 1, tzinfo=UTC)}, {"name": "d"}]
        assert rejected == {1: "at: not timestamptz", 2: "at: not timestamptz"}


@pytest.mark.parametrize(
    ("column", "kind", "good", "bad"),
    [
        ("clock", pa.time64("ns"), 1_000, 1),
        ("clocks", pa.list_(pa.time64("ns")), [1_000, None], [1_000, 1_001]),
        ("opening", pa.struct({"at": pa.time64("ns"), "note": pa.string()}), {"at": 1_000, "note": "a"}, {"at": 1}),
        ("opening", pa.struct({"at": pa.time64("us"), "note": pa.string()}), {"note": "a"}, {"note": "a\0"}),
        ("by_day", pa.map_(pa.string(), pa.list_(pa.time64("ns"))), [("a", [1_000]), ("b", None)], [("a", [1_000, 1])]),
        ("by_clock", pa.map_(pa.time64("ns"), pa.int32()), [(1_000, 1)], [(1_000, 1), (1_001, 2)]),
        ("stay", pa.struct({"since": pa.timestamp("us", "UTC")}), {"since": 1}, {"since": 2**62}),
    ],
)
def test_a_value_inside_or_a_time_of_day_that_its_table_cannot_hold_is_rejected_with_its_row(
    tmp_path: Path, column: str, kind: pa.DataType, good: Any, bad: Any
) -> None:
    file = a_parquet(tmp_path, name=["a", "b", "c"], **{column: pa.array([good, bad, None], kind)})
    (checked,) = InputFile(file, Clocks).batches()
    assert checked.passed["name"].to_list() == ["a", "c"]
    (reason,) = checked.rejected[REASON]
    assert reason.startswith(f"{column}: not ")
    table_of(checked.passed.drop(ROW), iceberg_schema(Clocks))  # as a load writes it


@pytest.mark.parametrize(
    "text", ["16777217", "123456789", "-16777217", "0016777217", "+16777217", "16777217.0", "1e39"]
)
def test_an_integer_that_no_float_can_be_is_rejected_also_of_the_short_ones(tmp_path: Path, text: str) -> None:
    assert read(a_csv(tmp_path, f"name,score\na,{text}\n"), Singles) == ([], {0: "score: not float"})


@pytest.mark.parametrize(
    "text", ["9007199254740993", "9007199254740993.00", "-00000000000000000000000000009007199254740993"]
)
def test_an_integer_that_no_double_can_be_is_rejected_however_it_is_written(tmp_path: Path, text: str) -> None:
    assert read(a_csv(tmp_path, f"name,size\na,{text}\n"), Singles) == ([], {0: "size: not double"})


@pytest.mark.parametrize("column", ["score", "size"])
@pytest.mark.parametrize(
    "text",
    [
        "9" * 39,
        f"-{10**40 + 1}",
        f"+0{10**40 + 1}.00",
        "12345678901234567890e0",
        "9007199254740993e0",
        "-9007199254740993E+0",
        "9.007199254740993e15",
        "90071992547409930e-1",
        "90071992547409930.e-1",
        "9007199254740993e-00",
        "9007199254740993.0e0",
        "0.9007199254740993e16",
        "1.234567890123456789e18",
    ],
)
def test_an_integer_of_any_length_or_with_an_exponent_is_rejected_where_it_would_be_rounded(
    tmp_path: Path, column: str, text: str
) -> None:
    kind = {"score": "float", "size": "double"}[column]
    assert read(a_csv(tmp_path, f"name,{column}\na,{text}\n"), Singles) == ([], {0: f"{column}: not {kind}"})


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1e3", 1e3),
        ("1e23", 1e23),
        ("9.9999999999999992e22", 1e23),
        ("1.7976931348623157E+308", 1.7976931348623157e308),
        ("9007199254740992e0", 2.0**53),
        ("90071992547409920e-1", 2.0**53),
        (str(int(1e39)), 1e39),
        (f"{int(1e300)}.000", 1e300),
        ("12345678901234567890e-5", 123456789012345.67890),
        ("0e99999999999999999999", 0.0),
        ("1.2345678901234567e-7", 1.2345678901234567e-7),
    ],
)
def test_an_integer_that_a_double_can_be_or_is_written_as_and_a_fraction_are_that_double(
    tmp_path: Path, text: str, size: float
) -> None:
    assert read(a_csv(tmp_path, f"name,size\na,{text}\n"), Singles) == ([{"name": "a", "size": size}], {})


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(2.0**-44)
@example(2.0**1000)
def test_a_float_is_itself_however_it_is_written(number: float) -> None:
    single = float(np.clip(np.float64(number), -3.4e38, 3.4e38).astype(np.float32))
    for kind, held, shortest in (
        (pl.Float64(), number, repr(number)),
        (pl.Float32(), single, str(np.float32(single))),
        (pl.Float32(), single, repr(single)),
    ):
        texts = [shortest, f"{held:.16e}", f"{held:.17g}", f"{held:.0f}" if held == int(held) else shortest]
        texts += [f"{held:.18e}", f"{held:.20g}", f"{held:.40e}"]  # as numpy.savetxt and printf write them
        found = pl.DataFrame({"text": texts}).select(as_declared(pl.col("text"), pl.String(), kind))["text"]
        assert found.to_list() == [held] * len(texts)


def test_numbers_of_which_a_float_has_every_integer_are_judged_by_polars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(typed_values, "_is_held", lambda text, *_, **__: asked.append(text) or True)
    numbers = [0.0, 1.5, -123.25, 2.0**53 - 1, 9e15, 1e-300, 2.0**53, -1e22]
    text = pl.DataFrame(
        {"text": [*(f"{one:.18e}" for one in numbers), "1" + "0" * 400 + "e99", "0e-00000000000000000"]}
    )
    text.select(as_declared(pl.col("text"), pl.String(), pl.Float64()))
    assert asked == [f"{2.0**53:.18e}", f"{-1e22:.18e}"]


_OF_MANY_DIGITS = st.integers(10**17, 10**44).map(lambda number: 10 * number + 1)
"""More than the 17 that a double may be written with."""


@given(_OF_MANY_DIGITS | st.integers(60, 148).map(lambda power: -(2**power)), st.integers(0, 3))
def test_an_integer_with_an_exponent_is_exact_or_rejected(number: int, zeros: int) -> None:
    text = pl.DataFrame({"text": [f"{number}e0", f"{number}{'0' * zeros}e-{zeros}", f"{number}.{'0' * zeros}"]})
    for kind, most, held in ((pl.Float32(), 2**128, np.float32), (pl.Float64(), 2**1024, float)):
        found = text.select(as_declared(pl.col("text"), pl.String(), kind))["text"].to_list()
        assert found == [number if abs(number) < most and float(held(number)) == number else None] * 3


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("16777216", 2.0**24),
        ("-33554432.0", -(2.0**25)),
        ("+0000000000000000000005", 5.0),
        ("0.1", 0.10000000149011612),
    ],
)
def test_a_number_that_a_float_can_be_or_the_fraction_next_to_it_is_that_float(
    tmp_path: Path, text: str, score: float
) -> None:
    assert read(a_csv(tmp_path, f"name,score\na,{text}\n"), Singles) == ([{"name": "a", "score": score}], {})


@given(st.integers(-(10**30), 10**30) | st.integers(-(2**26), 2**26))
def test_an_integer_of_a_csv_is_exact_or_rejected_in_a_column_of_floats(number: int) -> None:
    text = pl.DataFrame({"text": [str(number)]})
    for kind, size in ((pl.Float32(), "f"), (pl.Float64(), "d")):
        (held,) = text.select(as_declared(pl.col("text"), pl.String(), kind))["text"]
        assert held == (number if struct.unpack(size, struct.pack(size, number))[0] == number else None)


# --- honest writers -------------------------------------------------------------------------------------------------------

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.text(max_size=8) | st.text('",\n\r\0\ufeff x', max_size=8),
    "number": st.integers(-(2**63), 2**63 - 1),
    "day": st.dates(),
    "at": st.datetimes(timezones=st.just(UTC)),
    "size": st.floats(allow_nan=False, allow_infinity=False),
    "price": st.decimals(-99_999_999, 99_999_999, places=2),
    "checked": st.booleans(),
    "note": st.text(max_size=8) | st.text('",\n\r x', max_size=8),
}
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | kind for name, kind in VALUES.items()}), min_size=1, max_size=12
)
ARROW = {
    "name": [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()],
    "number": [pa.int64()],
    "day": [pa.date32()],
    "at": [pa.timestamp("us", "UTC"), pa.timestamp("us", "Asia/Kolkata"), pa.timestamp("us", "-03:30")],
    "size": [pa.float64()],
    "price": [pa.decimal128(10, 2), pa.decimal128(20, 4)],
    "checked": [pa.bool_()],
    "note": [pa.string()],
}


def as_field(value: object, *, quoted: bool) -> str:
    """Write a value as RFC 4180 has it: nothing for null, two quotes for text that is empty."""
    if value is None:
        return ""
    text = value.isoformat() if isinstance(value, date) else str(value)
    needed = not text or any(character in text for character in '",\r\n')
    return '"{}"'.format(text.replace('"', '""')) if needed or quoted else text


def is_refused_by_rule(name: str, value: object) -> bool:
    """Return whether a value that a file can hold is one that no table takes."""
    if isinstance(value, str):
        return "\0" in value or value.startswith("\ufeff")
    return isinstance(value, date) and not 1000 <= value.year <= 9000


def comes_back(file: Path, written: list[dict[str, Any]], names: list[str]) -> None:
    """Assert that every row of a file is read as it was written, or is rejected for a value that no table takes."""
    passed: dict[int, dict[str, Any]] = {}
    rejected: dict[int, str] = {}
    for checked in InputFile(file, Meters).batches(rows=3):
        passed |= {row.pop(ROW): row for row in checked.passed.to_dicts()}
        rejected |= dict(checked.rejected.select(ROW, REASON).iter_rows())
    wrong = {
        number: [name for name in names if is_refused_by_rule(name, row[name])] for number, row in enumerate(written)
    }
    assert {number: reason.partition(":")[0] in wrong[number] for number, reason in rejected.items()} == {
        number: True for number, found in wrong.items() if found
    }
    assert passed == {
        number: {name: row[name] if name in names else None for name in VALUES}
        for number, row in enumerate(written)
        if not wrong[number]
    }


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=ROWS,
    names=st.permutations(list(VALUES)).flatmap(lambda all_of: st.integers(1, 8).map(lambda some: all_of[:some])),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    options=st.fixed_dictionaries({name: st.booleans() for name in ("quoted", "marked", "ended")}),
    block=st.integers(400, 2000),
)
def test_what_an_honest_writer_puts_into_a_csv_file_comes_back_or_is_rejected_row_by_row(
    tmp_path: Path,
    rows: list[dict[str, Any]],
    names: list[str],
    end: str,
    options: dict[str, bool],
    block: int,
) -> None:
    lines = [names, *([as_field(row[name], quoted=options["quoted"]) for name in names] for row in rows)]
    text = end.join(",".join(line) for line in lines)
    # a last row that is an empty line is one only if it ends
    ended = options["ended"] or not any(lines[-1])
    file = a_csv(tmp_path, ("\ufeff" if options["marked"] else "") + text + (end if ended else ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_formats, "_CSV_BLOCK", block)
        patch.setattr(delivered_files, "_READ", block)
        comes_back(file, rows, names)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=ROWS,
    kinds=st.fixed_dictionaries({name: st.sampled_from(kinds) for name, kinds in ARROW.items()}),
    group=st.integers(1, 12),
)
def test_what_an_honest_writer_puts_into_a_parquet_file_comes_back_or_is_rejected_row_by_row(
    tmp_path: Path, rows: list[dict[str, Any]], kinds: dict[str, pa.DataType], group: int
) -> None:
    columns = {
        name: pa.array([row[name] for row in rows], pa.string() if name == "name" else kind).cast(kind)
        for name, kind in kinds.items()
    }
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=group)
    comes_back(file, rows, list(VALUES))
