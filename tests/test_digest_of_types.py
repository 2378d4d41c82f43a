"""The digest of columns of every type: pinned, as it is written down, and the same whatever wrote the rows, in any split and order."""

from __future__ import annotations

import hashlib
import os
import random
import struct
import sys
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from time import perf_counter
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as spark
from random_values import TYPES, Entries, column, in_arrow, in_polars, otherwise, plain

from backfill_assets.declarations.schema import iceberg_type, spark_type
from backfill_assets.testing.sessions import new_folder, spark_sessions
from backfill_assets.worker.columns import scan_file
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.nested import differs, repeats_keys
from manifests.model import Mode

FRAMES = int(os.environ.get("DIGEST_FRAMES", "10000"))
"""How many random frames of each type the long test makes."""
MOST_ROWS = 6


def digest(kind: pl.DataType, *parts: pl.DataFrame | pl.Series, name: str = "value") -> str:
    columns = {"key": pl.Int64(), name: kind} if isinstance(parts[0], pl.DataFrame) else {name: kind}
    under_way = RowDigest(columns)
    for part in parts:
        under_way.update(part if isinstance(part, pl.DataFrame) else part.alias(name).to_frame())
    return under_way.result()


def one_each() -> dict[str, list[Any]]:
    """A few values of each type that have not changed since they were pinned."""
    nested: dict[str, Any] = {"a": 1, "b": "x", "c": 1.5, "d": [0.5, None]}
    return {
        "float": [1.5, float("nan"), -0.0, None, float("inf")],
        "double": [0.1, float("nan"), -0.0, None, -float("inf")],
        "decimal(38, 10)": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001"), None],
        "binary": [b"\x00\xff", b"", None],
        "uuid": [bytes(range(16)), None],
        "time": [time(23, 59, 59, 999_999), time(0), None],
        "timestamp": [datetime(2020, 3, 29, 2, 30), datetime(1969, 12, 31), None],  # noqa: DTZ001 - of no zone
        "list<double>": [[1.5, None], [], None],
        "list<string>": [["a", ""], [None], None],
        "struct": [nested, dict.fromkeys(nested), None],
        "map<string, double>": [Entries([("b", 1.0), ("a", None)]), Entries([]), None],
        "map<date, struct>": [Entries([(date(2020, 1, 2), nested), (date(2020, 1, 1), None)]), None],
        "list<struct>": [[nested, None], [], None],
        "list<map>": [[Entries([("b", 1.0), ("a", 2.0)]), None], None],
    }


PINS = {
    "float": "255de00199c6d01c4d802187f1cbfa9019c6073e1de05119c4c8fec6cbe48f7b",
    "double": "846353420039e3e7350f67cfeb409ac31c7ad80bf3f4031562adba3b80321ea0",
    "decimal(38, 10)": "3218c87e31653f4a8857517abeb65ed4b3ac67714e3a92528b22882282ca85eb",
    "binary": "9b60a59198e2c1aaf35e50c7f82a7eee7a845d9d8eebbacbd94cc5abda913bc0",
    "uuid": "1e83ad87e953c3316e6d802a7693a5588b0ab6b2c582f42db1a2d0bf42ee0531",
    "time": "7d411a75744547a4424d7f85a60bc21611d4055f27d694d55a70faf873639e3f",
    "timestamp": "872a47305c41672e34cb364d4e9f5b394a0d2896190f61b46b62d50576e76efb",
    "list<double>": "41c98446af978c745bf9b78b49eb6fbae2f151a1c4ec1482799280cf5dce6335",
    "list<string>": "7993102bd38cf84c238427e38e42424f51604f291f435ec1f7380628626142ca",
    "struct": "df771e263f5600ee436ee247ac76078fb219fa3d243119473c235eb30dba02e1",
    "map<string, double>": "3a2490e892498945c53882a1461ef45f1d3d8db4d329b8d3b2965355944c039d",
    "map<date, struct>": "59910ba85bb5f849d76fb9ae52cf0ff2353bd5b8b3e8db78869dcb6c9f08e2ba",
    "list<struct>": "3eebfc9116c8dbeebcb5a655add6c4561354ac4f88baa762a4b2bb35ada2e362",
    "list<map>": "3e01a429b26bd164fa586c27b52010b6997155ffbfd9c9034ba3ebb7010fda2f",
}


@pytest.mark.parametrize("name", list(one_each()))
def test_the_digest_of_known_values_is_pinned(name: str) -> None:
    # runs that lie years apart are compared by it: a change is a new algorithm version, never an edit
    assert digest(TYPES[name][0], in_polars(name, one_each()[name])) == f"rows-sha256-v1:{PINS[name]}"


def header(kind: str) -> bytes:
    return b"rows-sha256-v1" + b"\x00value\x01" + kind.encode()


def long(number: int) -> bytes:
    return number.to_bytes(8, "little", signed=True)


def test_the_encoding_is_the_one_that_is_written_down() -> None:
    # the module's docstring in plain Python
    nan, rows = bytes.fromhex("000000000000f87f"), 3
    floats = header("double") + bytes([0, 0, 1]) + nan + bytes(8) + bytes(8) + b"\x02" + long(rows)
    assert digest(pl.Float64(), pl.Series([float("nan"), -0.0, None], dtype=pl.Float64)).endswith(
        hashlib.sha256(floats).hexdigest()
    )
    singles = header("float") + bytes([0, 0]) + bytes.fromhex("0000c07f") + struct.pack("<f", 1.5) + b"\x02" + long(2)
    assert digest(pl.Float32(), pl.Series([float("nan"), 1.5], dtype=pl.Float32)).endswith(
        hashlib.sha256(singles).hexdigest()
    )
    raw = header("large_binary") + bytes([0, 1]) + long(2) + long(0) + b"\x00\xff" + b"\x02" + long(2)
    assert digest(pl.Binary(), pl.Series([b"\x00\xff", None])).endswith(hashlib.sha256(raw).hexdigest())
    kind = pl.Struct({"a b": pl.Int64, "m": pl.Map(pl.String, pl.List(pl.Int64))})
    value = {"a b": 7, "m": {"y": [1, 2], "x": None}}
    nested = header('struct<"a b":int64,"m":map<large_string,list<int64>>>')
    nested += bytes([0, 1])  # the second struct is NULL
    nested += bytes([0, 1]) + long(7) + long(0)  # a b: NULL where the struct is
    nested += bytes([0, 1]) + long(2) + long(0)  # m: two entries, and none
    nested += bytes([0, 0])  # the entries are structs
    nested += bytes([0, 0]) + long(1) + long(1) + b"xy"  # their keys, in order
    nested += bytes([1, 0]) + long(0) + long(2)  # their values
    nested += bytes([0, 0]) + long(1) + long(2)
    nested += b"\x02" + long(2)
    assert digest(kind, pl.Series([value, None], dtype=kind)).endswith(hashlib.sha256(nested).hexdigest())


# --- equal rows --------------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(TYPES)), st.integers(0, 2**32), st.integers(0, MOST_ROWS))
def test_the_writer_the_split_and_the_way_of_writing_do_not_matter(name: str, seed: int, rows: int) -> None:
    chance = random.Random(seed)
    values = column(name, chance, rows)
    again = [otherwise(value, chance) for value in values]
    series = pl.from_arrow(pa.table({"value": in_arrow(name, again)}))
    assert isinstance(series, pl.DataFrame)
    cut = chance.randint(0, rows)
    whole = in_polars(name, values) if rows else pl.Series(name, [], TYPES[name][0])

    assert digest(TYPES[name][0], whole) == digest(TYPES[name][0], series["value"][:cut], series["value"][cut:])


@given(st.sampled_from(list(TYPES)), st.integers(0, 2**32), st.lists(st.integers(1, MOST_ROWS), min_size=1, max_size=4))
def test_chunks_that_are_encoded_together_have_the_digests_that_they_have_alone(
    name: str, seed: int, rows: list[int]
) -> None:
    kind = TYPES[name][0]
    chunks = [in_polars(name, column(name, random.Random(seed + at), count)) for at, count in enumerate(rows)]
    together = pl.concat([one.alias("value").to_frame() for one in chunks])

    assert RowDigest({"value": kind}).of_each(together, rows) == [digest(kind, one) for one in chunks]


@given(st.sampled_from(list(TYPES)), st.integers(0, 2**32), st.integers(1, MOST_ROWS))
def test_the_digest_differs_where_and_only_where_a_value_does(name: str, seed: int, rows: int) -> None:
    chance = random.Random(seed)
    values, others = column(name, chance, rows), column(name, chance, 1)
    at = chance.randrange(rows)
    changed = [*values[:at], *others, *values[at + 1 :]]
    same = plain(values) == plain(changed)

    before, after = in_polars(name, values), in_polars(name, changed)
    assert (digest(TYPES[name][0], before) == digest(TYPES[name][0], after)) == same
    # the diff says the same as the digest
    frame = pl.DataFrame({"old": before, "new": after})
    assert frame.select(differs("old", "new", TYPES[name][0]).any()).item() != same


def test_what_is_empty_is_not_null_and_nothing_runs_over() -> None:
    kind = pl.List(pl.List(pl.Int64))
    ways = [
        [[[1], [2]]],
        [[[1, 2]]],
        [[[1], [2], []]],
        [[[], [1], [2]]],
        [[[1], [2], None]],
        [None],
        [[]],
        [[None]],
        [[[]]],
    ]
    assert len({digest(kind, pl.Series(way, dtype=kind)) for way in ways}) == len(ways)
    rows = [[[1], [2]], [[1, 2], []], [[], [1, 2]], [None, [1, 2]], [[1, 2], None]]
    of = pl.List(pl.Int64)
    assert len({digest(of, pl.Series(way, dtype=of)) for way in rows}) == len(rows)


def test_a_list_of_entries_is_not_a_map_and_the_names_of_fields_count() -> None:
    entries = pl.List(pl.Struct({"key": pl.String, "value": pl.Int64}))
    of = pl.Series([[{"key": "a", "value": 1}]], dtype=entries)
    other = pl.List(pl.Struct({"key": pl.String, "number": pl.Int64}))
    found = {
        digest(entries, of),
        digest(pl.Map(pl.String, pl.Int64), of.cast(pl.Map(pl.String, pl.Int64))),
        digest(other, pl.Series([[{"key": "a", "number": 1}]], dtype=other)),
    }
    assert len(found) == 3


def test_what_lies_under_a_null_of_a_nested_column_does_not_matter() -> None:
    valid = pa.py_buffer(bytes([0b101]))
    offsets = pa.array([0, 1, 3, 4], pa.int32()).buffers()[1]

    def lists(hidden: int) -> pl.DataFrame:
        values = pa.array([1, hidden, hidden, 4], pa.int64())
        array = pa.Array.from_buffers(pa.list_(pa.int64()), 3, [valid, offsets], children=[values])
        found = pl.from_arrow(pa.table({"value": array}))
        assert isinstance(found, pl.DataFrame)
        return found

    assert digest(pl.List(pl.Int64), lists(7)["value"]) == digest(pl.List(pl.Int64), lists(0)["value"])
    assert digest(pl.List(pl.Int64), lists(7)["value"]) == digest(
        pl.List(pl.Int64), pl.Series([[1], None, [4]], dtype=pl.List(pl.Int64))
    )


def test_a_key_that_a_map_has_twice_is_found_wherever_the_map_is() -> None:
    doubled = Entries([("a", 1.0), ("a", 2.0)])
    for name, value in (
        ("map<string, double>", doubled),
        ("list<map>", [None, doubled]),
    ):
        frame = pl.from_arrow(pa.table({"value": in_arrow(name, [value, None, column(name, random.Random(1), 1)[0]])}))
        assert isinstance(frame, pl.DataFrame)
        assert frame.select(repeats_keys(pl.col("value"), frame.schema["value"])).to_series().to_list() == [
            True,
            False,
            False,
        ]


# --- many --------------------------------------------------------------------------------------------------------------


def _tables(name: str, chance: random.Random) -> tuple[pa.Table, list[list[Any]]]:
    """Return random frames as one table, each row with its frame and key, in no order; and the values of each frame."""
    frames = [column(name, chance, chance.randint(1, MOST_ROWS)) for _ in range(FRAMES)]
    places = [(frame, key) for frame, values in enumerate(frames) for key in range(len(values))]
    chance.shuffle(places)
    values = [otherwise(frames[frame][key], chance) for frame, key in places]
    table = pa.table(
        {
            "frame": pa.array([frame for frame, _ in places], pa.int64()),
            "key": pa.array([key for _, key in places], pa.int64()),
            "value": in_arrow(name, values),
        }
    )
    return table, frames


def _digests(
    path: Path, kind: pl.DataType, split: random.Random | None = None, each: int = 1, at: int = 0
) -> dict[int, str]:
    """Return the digest of frames in a file, their rows in key order as the gate has them, in one part or in two.

    Of all frames, or of one in `each`, from `at` on; the order in which the rows lie in the file is another each time.
    """
    rows = scan_file(str(path), "").filter(pl.col("frame") % each == at).collect().sort("frame", "key")
    sizes = rows.group_by("frame", maintain_order=True).len()
    found, start = {}, 0
    for number, size in sizes.iter_rows():
        cut = 0 if split is None else split.randint(0, size)
        parts = ((start, cut), (start + cut, size - cut))
        found[number] = digest(kind, *(rows.slice(first, many) for first, many in parts if many))
        start += size
    return found


def _by_spark(table: pa.Table, kind: pl.DataType) -> Path:
    """Have Spark write a table that PyArrow has written, and return its file."""
    session, folder = spark_sessions().session(Mode.DRY_RUN), new_folder()
    folder.mkdir()
    given = folder / "given.parquet"
    pq.write_table(table, given, store_schema=False)
    of = spark_type(iceberg_type("value", kind), field_ids=False)
    schema = spark.StructType(
        [
            spark.StructField("frame", spark.LongType()),
            spark.StructField("key", spark.LongType()),
            spark.StructField("value", of),
        ]
    )
    # files of others have no field ids
    session.conf.set("spark.sql.parquet.fieldId.read.ignoreMissing", "true")
    session.read.schema(schema).parquet(f"file://{given}").coalesce(1).write.parquet(f"file://{folder}/spark")
    return next((folder / "spark").glob("*.parquet"))


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(reversed(TYPES)))
def test_of_ten_thousand_frames_no_two_have_one_digest_and_each_has_one(name: str, tmp_path: Path) -> None:
    started, kind, chance = perf_counter(), TYPES[name][0], random.Random(name)
    table, frames = _tables(name, chance)
    pq.write_table(table, tmp_path / "arrow.parquet", row_group_size=997)
    order = pl.Series(range(table.num_rows)).shuffle(seed=7)
    shuffled = pl.from_arrow(table)
    assert isinstance(shuffled, pl.DataFrame)
    shuffled[order].write_parquet(tmp_path / "polars.parquet", row_group_size=313)
    written = {
        "PyArrow": _digests(tmp_path / "arrow.parquet", kind),
        "Polars": _digests(tmp_path / "polars.parquet", kind, chance, each=2, at=0),
        "Spark": _digests(_by_spark(table, kind), kind, chance, each=2, at=1),
    }
    assert {writer: len(digests) for writer, digests in written.items()} == {
        "PyArrow": FRAMES,
        "Polars": FRAMES // 2,
        "Spark": FRAMES // 2,
    }
    unlike = {writer: at for writer, of in written.items() for at in of if of[at] != written["PyArrow"][at]}
    assert unlike == {}

    by_digest: dict[str, Any] = {}
    collisions = []
    for values, found in zip(frames, written["PyArrow"].values(), strict=True):
        content = plain(values)
        if by_digest.setdefault(found, content) != content:
            collisions.append(content)
    different = len({plain(values) for values in frames})
    seconds = perf_counter() - started
    print(
        f"{name}: {FRAMES:,} frames, {different:,} different ones, {len(by_digest):,} digests, {len(collisions)} collisions; "
        f"each the same from PyArrow and, in another split and order, from Polars or Spark; {seconds:.0f} s",
        file=sys.stderr,
    )
    assert collisions == []
    assert len(by_digest) == different
