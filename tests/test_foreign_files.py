"""Files that other programs write beside published ones: what they hide from readers of metadata is found, what is lawful is no alarm."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as arrow
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file, schema_to_pyarrow
from pyiceberg.typedef import Record
from test_readers import made, platform

from backfill_assets.audit import unknown_files
from backfill_assets.audit.file_columns import columns_of
from backfill_assets.audit.verification import verify
from backfill_assets.installation import Platform
from benchmarks import small_table
from benchmarks.forged_columns import FORGED_COLUMNS, append, say, twice, with_day, without_ids
from benchmarks.forgeries import Forged, Forger
from benchmarks.small_table import READINGS
from resources.lakehouse.commits import commit_replacement
from resources.lakehouse.snapshots import Entry, Seen, day_at, days_of

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("looked_at_again_at_once")]

__all__ = ["made", "platform"]

LONG_AGO = -600, -25_000
"""A month and a day in it of which nothing is accepted, by their numbers since 1970."""
UNPROVABLE = "belongs to no known run, and cannot be opened"
MORE = "readers get other files than those accepted"


def forger(platform: Platform, seed: int = 1) -> Forger:
    return Forger(platform, random.Random(seed))


def said(platform: Platform, *, data: bool = True) -> list[str]:
    found = verify(platform, data=data).everything
    return [f"{one.where}: {one.what} ({one.found})" for one in found]


def entry_of(platform: Platform, place: Path) -> tuple[Seen, Entry]:
    seen = Seen(platform.lakehouse.table(READINGS))
    return seen, seen.entries[str(place)][0]


def days(rows: arrow.Table, number: int) -> arrow.Array:
    return arrow.array([number] * rows.num_rows, arrow.int32()).cast(arrow.date32())


# --- which column is which --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("forgery", FORGED_COLUMNS)
def test_rows_that_are_hidden_in_the_columns_of_a_file_of_others_are_named(
    platform: Platform, forgery: Callable[[Forger], Forged], seed: int
) -> None:
    forged = forgery(forger(platform, seed))
    assert said(platform, data=False) == []
    found = said(platform)
    assert any(forged.words[0] in one for one in found)
    assert not any("not everything could be checked" in one for one in found)


def test_what_arrow_notes_beside_a_schema_does_not_say_which_column_is_which() -> None:
    notes = arrow.schema(
        [
            arrow.field(name, arrow.date32(), metadata={"PARQUET:field_id": one})
            for name, one in (("a", "1"), ("b", "2"))
        ]
    )
    rows = arrow.table({"a": [date(2020, 1, 1)], "b": [date(1901, 1, 1)]})
    sink = arrow.BufferOutputStream()
    with pq.ParquetWriter(sink, rows.schema, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({b"ARROW:schema": base64.b64encode(notes.serialize().to_pybytes())})
    raw = sink.getvalue().to_pybytes()
    assert pq.read_schema(arrow.BufferReader(raw)).field("a").metadata == {b"PARQUET:field_id": b"1"}
    with pytest.raises(ValueError, match="have no field ids"):
        columns_of(raw, None)


def test_a_field_id_that_stands_again_inside_of_a_column_is_not_read() -> None:
    inner = arrow.field("day", arrow.date32(), metadata={"PARQUET:field_id": "1"})
    schema = arrow.schema([inner, arrow.field("more", arrow.struct([inner]), metadata={"PARQUET:field_id": "2"})])
    sink = arrow.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    with pytest.raises(ValueError, match="field id 1 stands more than once"):
        columns_of(sink.getvalue().to_pybytes(), None)


def test_a_column_whose_name_begins_like_the_days_is_not_read_for_them(platform: Platform) -> None:
    def made(rows: arrow.Table) -> arrow.Table:
        field = arrow.field("day.x", arrow.date32(), metadata={"PARQUET:field_id": "99"})
        return rows.add_column(0, field, days(rows, LONG_AGO[1]))

    place = append(forger(platform), made)
    assert any(MORE in one and str(place) in one for one in said(platform))


def test_accepted_rows_written_again_with_a_second_column_of_values_are_named(platform: Platform) -> None:
    hand = forger(platform)
    entry, table = hand._entry(), hand.table()
    rows = pq.read_table(entry.place)
    place = Path(entry.place).with_name("again.parquet")
    pq.write_table(rows, place)
    file = parquet_file_to_data_file(table.io, table.metadata, f"file://{place}")
    at = rows.schema.get_field_index("value")
    forged = rows.set_column(at, rows.schema.field(at), arrow.array([7] * rows.num_rows, rows.schema.field(at).type))
    decoy = [*forged.columns, rows.column(at)]
    pq.write_table(arrow.table(decoy, schema=twice(rows, "value", 7, "other").schema), place)
    file._data[5] = place.stat().st_size
    commit_replacement(table, AlwaysTrue(), [entry.file], [file], {})
    found = said(platform)
    assert any(str(place) in one and "stands more than once" in one for one in found)


def test_rows_without_field_ids_are_found_by_the_names_that_the_table_maps_to_them(platform: Platform) -> None:
    table = platform.lakehouse.table(READINGS)
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": table.schema().name_mapping.model_dump_json()})
    append(forger(platform), lambda rows: without_ids(with_day(rows, days(rows, LONG_AGO[1]))))
    assert said(platform) == []
    place = append(forger(platform), without_ids)
    found = said(platform)
    assert any(MORE in one and str(place) in one for one in found)


# --- days that no calendar has, and none ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("month", "day"),
    [
        ((10_000 - 1970) * 12, 2_932_897),
        ((9999 - 1970) * 12 + 11, 2_932_896),
        (-1970 * 12 - 1, -719_600),
        (2**31 - 1, 2**31 - 1),
        (-(2**31), -(2**31)),
    ],
)
@pytest.mark.parametrize("is_bounded", [True, False])
def test_rows_of_others_on_days_that_no_calendar_has_are_no_alarm_and_hide_none(
    platform: Platform, month: int, day: int, *, is_bounded: bool
) -> None:
    append(
        forger(platform),
        lambda rows: with_day(rows, days(rows, day)),
        month=month,
        day=day if is_bounded else None,
    )
    assert said(platform, data=False) == []
    assert said(platform) == []
    place = append(forger(platform), lambda rows: rows, month=(2020 - 1970) * 12, day=None)
    found = said(platform, data=False)
    assert found
    assert all(MORE in one and str(place) in one for one in found)


def test_days_by_their_numbers_end_where_the_calendar_does() -> None:
    assert day_at(0) == date(1970, 1, 1)
    assert (day_at(-719_162), day_at(2_932_896)) == (date.min, date.max)
    assert (day_at(-719_163), day_at(2_932_897)) == (date.min, date.max)


def without_days(platform: Platform) -> Path:
    """Have another program append a row whose day is NULL, and return its file."""
    table = platform.lakehouse.table(READINGS)
    before = set(Seen(table).entries)
    schema = schema_to_pyarrow(table.schema())
    row = {**dict.fromkeys(schema.names), "meter": "m1", "value": 1}
    table.append(arrow.Table.from_pylist([row], schema=schema))
    small_table.forget_catalog(platform.lakehouse)
    (place,) = set(Seen(platform.lakehouse.table(READINGS)).entries) - before
    return Path(place)


def test_rows_of_others_that_have_no_day_are_no_alarm(platform: Platform) -> None:
    without_days(platform)
    assert said(platform, data=False) == []
    assert said(platform) == []


def test_rows_that_have_no_day_and_cannot_be_opened_are_named(platform: Platform) -> None:
    place = without_days(platform)
    place.write_bytes(b"nothing that anybody could read")
    assert said(platform, data=False) == []
    assert all(UNPROVABLE in one and str(place) in one for one in said(platform))
    assert said(platform)


def test_a_file_that_may_hold_any_day_is_one_of_every_day_to_what_changes_a_table(platform: Platform) -> None:
    seen, entry = entry_of(platform, without_days(platform))
    assert days_of(seen, entry, seen.table.schema().find_field("day").field_id) == (date.min, date.max)


def test_a_file_whose_partition_has_fewer_values_than_its_fields_cannot_be_opened(platform: Platform) -> None:
    seen, entry = entry_of(platform, without_days(platform))
    entry.file._data[3] = Record()
    day, run = (seen.table.schema().find_field(name).field_id for name in ("day", "run_id"))
    assert unknown_files._opened(seen, entry, day, run).trouble.startswith("IndexError")


def test_a_file_of_which_nothing_says_its_days_is_where_its_rows_are(platform: Platform) -> None:
    """It says that its partition has no day, and that it has no NULLs: readers cannot go by that."""

    def add(number: int) -> Path:
        hand = forger(platform)
        table = hand.table()
        rows = pq.read_table(hand._entry().place)
        place = Path(hand._entry().place).with_name(f"of-{abs(number)}.parquet")
        pq.write_table(with_day(rows, days(rows, number)), place)
        file = parquet_file_to_data_file(table.io, table.metadata, f"file://{place}")
        field = table.schema().find_field("day").field_id
        nulls = file.null_value_counts
        say(file, field, None, None)
        file._data[8] = {**nulls, field: 0}
        commit_replacement(table, AlwaysTrue(), [], [file], {})
        return place

    place = add(LONG_AGO[1])
    assert any(MORE in one and str(place) in one for one in said(platform, data=False))
    assert said(platform) == []
    other = add((date(2020, 2, 3) - date(1970, 1, 1)).days)
    found = said(platform)
    assert any(MORE in one and str(other) in one for one in found)
    assert all("2020-02" in one for one in found)
