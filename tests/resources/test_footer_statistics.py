"""What is read of a footer is what PyIceberg reads of it, field by field: of every type, mode of metrics and kind of file."""

from __future__ import annotations

import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from resources.lakehouse.footer_statistics import Described, FootersOfSchema

_TYPES = {
    "yes": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "small": DecimalType(7, 2),
    "medium": DecimalType(15, 4),
    "large": DecimalType(38, 10),
    "day": DateType(),
    "hour": TimeType(),
    "at": TimestampType(),
    "instant": TimestamptzType(),
    "text": StringType(),
    "raw": BinaryType(),
    "fixed": FixedType(4),
    "uuid": UUIDType(),
}
SCHEMA = Schema(
    *(NestedField(number, name, kind, required=False) for number, (name, kind) in enumerate(_TYPES.items(), 1))
)
NESTED = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "tags", ListType(11, StringType(), element_required=False), required=False),
    NestedField(3, "sizes", MapType(12, StringType(), 13, LongType(), value_required=False), required=False),
    NestedField(4, "place", StructType(NestedField(14, "x", DoubleType(), required=False)), required=False),
)
NAN = float("nan")


def row(number: int, **other: Any) -> dict[str, Any]:
    """Return a row in which each number has other values, and some have long texts."""
    return {
        "yes": number % 2 == 0,
        "int": number - 2,
        "long": number * 2**40,
        "float": number / 4,
        "double": -number / 8,
        "small": Decimal(number) / 4,
        "medium": -Decimal(number) / 16,
        "large": Decimal(number * 10**20) / 16,
        "day": date(2012, 1, 1 + number),
        "hour": time(number, 30),
        "at": datetime(2012, 1, 1, number),  # noqa: DTZ001 - it has none
        "instant": datetime(2012, 1, 1, number, tzinfo=UTC),
        "text": f"é{number}" * (1 + 20 * (number % 3)),
        "raw": b"\xff" * (20 if number == 5 else 1) + bytes([number]),
        "fixed": bytes([number] * 4),
        "uuid": UUID(int=number).bytes,
    } | other


ROWS = {
    "one": [row(1)],
    "the same again": [row(1)],
    "several": [row(2), row(3), row(4)],
    "an end in common": [row(1), row(3)],
    "nulls": [row(1), dict.fromkeys(_TYPES)],
    "nothing but nulls": [dict.fromkeys(_TYPES)],
    "no upper bound": [row(5, text="\U0010ffff" * 20)],
    "zero": [row(1, float=0.0, double=0.0)],
    "minus zero": [row(1, float=-0.0, double=-0.0)],
    "no number": [row(1, float=NAN, double=NAN)],
    "some number": [row(1, float=NAN, double=1.0), row(2, float=1.0, double=NAN)],
    "none, as a text": [row(1, text="None", raw=b"None")],
}


def footer(rows: list[dict[str, Any]], schema: Schema = SCHEMA, **how: Any) -> pq.FileMetaData:
    arrow = schema_to_pyarrow(schema)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=arrow), sink, **{"store_decimal_as_integer": True} | how)
    return pq.read_metadata(pa.BufferReader(sink.getvalue()))


def as_pyiceberg(metadata: pq.FileMetaData, schema: Schema, properties: dict[str, str]) -> dict[str, Any]:
    found = data_file_statistics_from_parquet_metadata(
        metadata, compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema)
    )
    return of(found) | found.to_serialized_dict()


def of(statistics: Any) -> dict[str, Any]:
    """Return the ends of columns as a partition is told by them, and how each would be written."""
    ends = {
        field_id: (repr(one.current_min), repr(one.current_max), one.primitive_type, one.trunc_length)
        for field_id, one in statistics.column_aggregates.items()
    }
    return {"ends": ends, "partitioned by": statistics.null_value_counts}


def read_as(known: pq.FileMetaData, schema: Schema, properties: dict[str, str]) -> FootersOfSchema:
    return FootersOfSchema(known, compute_statistics_plan(schema, properties), parquet_path_to_id_mapping(schema))


def as_read(found: Described | None) -> dict[str, Any]:
    assert found is not None
    return of(found.statistics) | found.as_arguments()


PROPERTIES = {
    "as usual": {},
    "whole": {"write.metadata.metrics.default": "full"},
    "counts": {"write.metadata.metrics.default": "counts"},
    "nothing": {"write.metadata.metrics.default": "none"},
    "each its own": {
        "write.metadata.metrics.column.text": "truncate(3)",
        "write.metadata.metrics.column.raw": "truncate(2)",
        "write.metadata.metrics.column.long": "none",
        "write.metadata.metrics.column.double": "counts",
    },
}


@pytest.mark.parametrize("properties", PROPERTIES.values(), ids=PROPERTIES)
@pytest.mark.parametrize("as_integer", [True, False])
def test_every_type_is_read_as_pyiceberg_reads_it_whatever_was_read_before(
    properties: dict[str, str], as_integer: bool
) -> None:
    footers = [footer(rows, store_decimal_as_integer=as_integer) for rows in ROWS.values()]
    reader = read_as(footers[0], SCHEMA, properties)
    for one in [*footers, *reversed(footers)]:
        assert reader.has(one)
        assert as_read(reader.read(one)) == as_pyiceberg(one, SCHEMA, properties)


def test_columns_within_columns_are_read_as_pyiceberg_reads_them() -> None:
    rows = [{"id": 1, "tags": ["b", "a"], "sizes": [("x", 2)], "place": {"x": 0.5}}, {"id": 2}]
    footers = [footer(rows, NESTED), footer(rows[:1], NESTED), footer(rows[1:], NESTED)]
    reader = read_as(footers[0], NESTED, {})
    for one in footers:
        assert reader.has(one)
        assert as_read(reader.read(one)) == as_pyiceberg(one, NESTED, {})


def test_what_a_file_has_otherwise_is_left_to_pyiceberg() -> None:
    rows = [row(1), row(2)]
    reader = read_as(footer(rows), SCHEMA, {})
    without_rows = footer([])
    without_ends = (footer(rows, write_statistics=columns) for columns in (False, ["long"]))
    for odd in (without_rows, footer(rows, row_group_size=1), *without_ends):
        assert reader.has(odd)
        assert reader.read(odd) is None
        plan = compute_statistics_plan(SCHEMA, {}), parquet_path_to_id_mapping(SCHEMA)
        assert as_read(Described.by_pyiceberg(odd, *plan)) == as_pyiceberg(odd, SCHEMA, {})


def changed(schema: Schema, column: str, **to: Any) -> Schema:
    return Schema(*(one.model_copy(update=to) if one.name == column else one for one in schema.fields))


@pytest.mark.parametrize(
    ("known", "other"),
    [
        (SCHEMA, changed(SCHEMA, "text", name="words")),
        (SCHEMA, changed(SCHEMA, "text", field_id=77)),
        (SCHEMA, changed(SCHEMA, "text", required=True)),
        (SCHEMA, changed(SCHEMA, "at", field_type=TimestamptzType())),
        (SCHEMA, changed(SCHEMA, "medium", field_type=DecimalType(15, 3))),
        (SCHEMA, changed(SCHEMA, "fixed", field_type=BinaryType())),
        (SCHEMA, Schema(*SCHEMA.fields[:-1])),
        (SCHEMA, Schema(*reversed(SCHEMA.fields))),
        (NESTED, changed(NESTED, "tags", field_id=77)),
        (NESTED, changed(NESTED, "place", field_id=77)),
        (NESTED, changed(NESTED, "tags", required=True)),
        (
            NESTED,
            changed(NESTED, "sizes", field_type=MapType(12, StringType(), 13, IntegerType(), value_required=False)),
        ),
    ],
)
def test_another_schema_is_told_from_one_that_was_read(known: Schema, other: Schema) -> None:
    reader = read_as(footer([], known), known, {})
    assert reader.has(footer([], known))
    assert not reader.has(footer([], other))


def test_a_struct_of_one_column_is_told_by_its_own_name() -> None:
    """It has as many columns as one without it: Parquet compares only what is in it."""

    def within(name: str, number: int) -> Schema:
        inner = StructType(NestedField(3, "x", LongType(), required=False))
        return Schema(
            NestedField(1, "id", LongType(), required=False), NestedField(number, name, inner, required=False)
        )

    known = within("place", 2)
    reader = read_as(footer([], known, store_schema=False), known, {})
    assert reader.has(footer([], known, store_schema=False))
    assert not reader.has(footer([], within("other", 2), store_schema=False))
    assert not reader.has(footer([], within("place", 77), store_schema=False))


def test_columns_are_those_that_the_row_group_says_as_pyiceberg_has_it() -> None:
    """Schema and row group name each column; where they differ, the second counts."""
    schema = Schema(NestedField(1, "aa", LongType(), required=False), NestedField(2, "bb", LongType(), required=False))
    known = footer([{"aa": 1, "bb": 2}], schema)
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([{"aa": 3, "bb": 4}], schema=schema_to_pyarrow(schema)), sink)
    raw = sink.getvalue().to_pybytes()
    at, beside = (raw.rindex(b"\x19\x18\x02" + name) + 3 for name in (b"aa", b"bb"))  # a list of one text of two bytes
    swapped = bytearray(raw)
    swapped[at : at + 2], swapped[beside : beside + 2] = b"bb", b"aa"
    odd = pq.read_metadata(pa.BufferReader(bytes(swapped)))
    assert [odd.row_group(0).column(place).path_in_schema for place in range(2)] == ["bb", "aa"]

    reader = read_as(known, schema, {})
    assert reader.has(odd)
    assert reader.read(odd) is None
    assert as_read(reader.read(known)) == as_pyiceberg(known, schema, {})


def test_ends_that_are_no_numbers_are_told_apart() -> None:
    """Arrow writes none; another writer may, and they are many."""
    schema = Schema(NestedField(1, "x", DoubleType(), required=False))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([[1.5]], schema=schema_to_pyarrow(schema)), sink, use_dictionary=False)
    raw = sink.getvalue().to_pybytes()
    end, others = struct.pack("<d", 1.5), (b"\x01\0\0\0\0\0\xf8\x7f", b"\x02\0\0\0\0\0\xf8\xff")
    footers = [pq.read_metadata(pa.BufferReader(raw.replace(end, other))) for other in others]
    reader = read_as(footers[0], schema, {})
    for one in footers:
        assert as_read(reader.read(one)) == as_pyiceberg(one, schema, {})


def test_columns_of_one_name_are_left_to_pyiceberg() -> None:
    schema = Schema(NestedField(1, "a", LongType(), required=False))
    field = schema_to_pyarrow(schema).field("a")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([[1], [2]], schema=pa.schema([field, field])), sink)
    twins = pq.read_metadata(pa.BufferReader(sink.getvalue()))
    reader = read_as(twins, schema, {})
    assert reader.has(twins)
    assert reader.read(twins) is None


def test_what_is_said_beside_a_schema_is_part_of_it() -> None:
    """Arrow and Spark keep there what Parquet's types do not say."""
    sink = pa.BufferOutputStream()
    said = schema_to_pyarrow(SCHEMA).with_metadata({"by": "somebody else"})
    pq.write_table(pa.Table.from_pylist([row(1)], schema=said), sink, store_decimal_as_integer=True)
    reader = read_as(footer([row(1)]), SCHEMA, {})
    assert not reader.has(pq.read_metadata(pa.BufferReader(sink.getvalue())))


def test_pyiceberg_is_not_asked_again_for_files_of_one_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    footers = [footer([row(number)]) for number in range(6)]
    reader = read_as(footers[0], SCHEMA, {})
    monkeypatch.setattr(
        "resources.lakehouse.footer_statistics.data_file_statistics_from_parquet_metadata",
        lambda *_: pytest.fail("PyIceberg was asked"),
    )
    assert None not in [reader.read(one) for one in footers]


def test_ends_that_differ_in_every_file_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resources.lakehouse.footer_statistics._MOST_KNOWN", 3)
    reader = read_as(footer([row(0)]), SCHEMA, {})
    for number in range(6):
        reader.read(footer([row(number)]))
    assert max(len(column._known) for column in reader._columns) == 3
    assert as_read(reader.read(footer([row(4)]))) == as_pyiceberg(footer([row(4)]), SCHEMA, {})
