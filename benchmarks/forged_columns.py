"""Forgeries of a table by files whose columns engines find differently, or whose partition says otherwise than they what is in them.

Put here what is hidden in a file's own columns from one who takes the wrong one of them. Files that lie by bounds and partition
alone are `forged_snapshots`'. Each function changes a copy of an installation of `small_table`, as those of `forgeries` do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as arrow
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import parquet_file_to_data_file
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import Record

from benchmarks.forged_snapshots import a_file, delete_rows, edit_metadata
from benchmarks.forgeries import Forged, Forger
from benchmarks.small_table import CORRECTIONS, READINGS
from resources.lakehouse.commits import commit_replacement

_PARTITION, _BYTES, _NULLS, _LOWER, _UPPER = 3, 5, 8, 10, 11
"""Places of a data file's facts in its manifest's record."""
_LONG_AGO = date(1901, 1, 1)
_ACCEPTED = (date(2020, 1, 9), date(2020, 2, 3), date(2020, 3, 31))
"""Days that are accepted of every installation."""
_ID = "PARQUET:field_id"

Made = Callable[[arrow.Table], arrow.Table]


def append(
    forger: Forger, made: Made, name: str = READINGS, *, month: int | None = -600, day: int | None = -25_000
) -> Path:
    """Append rows made of those of an accepted file, in a file that says that they are of a month and a day, if any."""
    table, entry = forger.table(name), a_file(forger, name)
    place = Path(entry.place).with_name(f"part-{uuid4()}.parquet")
    rows = pq.read_table(entry.place)
    pq.write_table(rows, place)
    file = parquet_file_to_data_file(table.io, table.metadata, f"file://{place}")
    pq.write_table(made(rows), place)
    say(file, table.schema().find_field("day").field_id, month, day)
    file._data[_BYTES] = place.stat().st_size
    commit_replacement(table, AlwaysTrue(), [], [file], {})
    return place


def say(file: DataFile, field: int, month: int | None, day: int | None) -> None:
    """Have a manifest say of a file that its rows are of a month and a day, by their numbers since 1970, or of none."""
    file._data[_PARTITION] = Record(month)
    for side in (_LOWER, _UPPER):
        others: Mapping[int, bytes] = {key: value for key, value in file._data[side].items() if key != field}
        file._data[side] = others if day is None else {**others, field: struct.pack("<i", day)}
    if day is None:
        file._data[_NULLS] = {key: value for key, value in file._data[_NULLS].items() if key != field}


def twice(rows: arrow.Table, column: str, value: Any, name: str = "") -> arrow.Table:
    """Return rows with one more column of the field id that a column has; under its name, if there is no other."""
    field = rows.schema.field(column)
    more = arrow.array([value] * rows.num_rows, field.type)
    schema = arrow.schema([*rows.schema, field.with_name(name or column)])
    return arrow.table([*rows.columns, arrow.chunked_array([more])], schema=schema)


def with_day(rows: arrow.Table, days: arrow.Array, name: str = "day", *, has_id: bool = True) -> arrow.Table:
    """Return rows with other days, in a column of another type, under another name, or without its field id."""
    at = rows.schema.get_field_index("day")
    field = arrow.field(name, days.type, metadata=rows.schema.field(at).metadata if has_id else None)
    return rows.set_column(at, field, days)


def without_ids(rows: arrow.Table) -> arrow.Table:
    """Return rows of which no column has a field id."""
    return rows.cast(arrow.schema([arrow.field(one.name, one.type) for one in rows.schema]))


def rows_with_a_second_day(forger: Forger) -> Forged:
    """Append rows of accepted days that have days of long ago as well, in a column of the same field id."""
    name = forger.random.choice(["day", "elsewhere"])
    place = append(forger, lambda rows: twice(rows, "day", _LONG_AGO, name))
    return Forged(f"rows with a second column of days, {name}", (str(place),))


def corrections_with_a_second_run(forger: Forger) -> Forged:
    """Append corrections in the name of a run that name nobody's run as well, in a column of the same field id."""
    name = forger.random.choice(["run_id", "elsewhere"])
    place = append(forger, lambda rows: twice(rows, "run_id", "nobody", name), CORRECTIONS)
    return Forged(f"corrections with a second column of runs, {name}", (str(place),))


def deletes_with_a_second_path(forger: Forger) -> Forged:
    """Delete rows of an accepted file by a file of positions that names another one as well, in a column of the same field id."""
    name = forger.random.choice(["file_path", "elsewhere"])
    place = delete_rows(forger, READINGS, lambda rows: twice(rows, "file_path", "file:///nowhere.parquet", name))
    return Forged(f"deleted positions with a second column of paths, {name}", (place,))


def rows_without_ids(forger: Forger) -> Forged:
    """Append rows of accepted days in columns without field ids, or of which the days have none, and another column their name."""
    if forger.random.random() < 0.5:
        place = append(forger, without_ids)
    else:
        place = append(forger, lambda rows: with_day(rows, rows.column("day"), "d", has_id=False))
    return Forged("rows in columns without field ids", (str(place),))


def rows_of_another_type(forger: Forger) -> Forged:
    """Append rows whose days are numbers, or instants."""
    kind = forger.random.choice([arrow.int32(), arrow.timestamp("us")])
    place = append(forger, lambda rows: with_day(rows, rows.column("day").cast(kind)))
    return Forged(f"days of {kind}", (str(place),))


def rows_of_no_day(forger: Forger) -> Forged:
    """Append rows of accepted days in a file that says by its partition that they have none."""
    return Forged("rows that say they have no day", (str(append(forger, lambda rows: rows, month=None, day=None)),))


def _in_own_partitions(forger: Forger, made: Made, column: str, value: Any, name: str) -> Path:
    """Append rows in a partition by the values of a column, which says that they have another one than they have."""
    field = forger.table(name).schema().find_field(column).field_id
    own = {"source-id": field, "field-id": 2_000, "transform": "identity", "name": f"own_{column}"}

    def edit(content: dict[str, Any]) -> None:
        content["partition-specs"].append({"spec-id": 7, "fields": [own]})
        content["last-partition-id"] = own["field-id"]

    edit_metadata(forger, edit, name)
    table, entry = forger.table(name), a_file(forger, name)
    place = Path(entry.place).with_name(f"part-{uuid4()}.parquet")
    rows = made(pq.read_table(entry.place))
    pq.write_table(rows, place)
    file = parquet_file_to_data_file(table.io, table.metadata, f"file://{place}")
    file._data[_PARTITION] = Record(value)
    file.spec_id = 7
    commit_replacement(table, AlwaysTrue(), [], [file], {})
    return place


def rows_in_partitions_of_days(forger: Forger) -> Forged:
    """Append rows of long ago in a partition by days, whose value is an accepted one: engines give readers that of the partition."""
    long_ago = arrow.scalar(_LONG_AGO, arrow.date32())
    value = (forger.random.choice(_ACCEPTED) - date(1970, 1, 1)).days

    def made(rows: arrow.Table) -> arrow.Table:
        return with_day(rows, arrow.repeat(long_ago, rows.num_rows))

    place = _in_own_partitions(forger, made, "day", value, READINGS)
    return Forged("rows in a partition of an accepted day", (str(place),))


def corrections_in_partitions_of_runs(forger: Forger) -> Forged:
    """Append corrections of nobody's run in a partition by runs, which says that they are of one that issued some."""
    rows = pq.read_table(a_file(forger, CORRECTIONS).place)
    run_id = rows.column("run_id")[0].as_py()

    def made(rows: arrow.Table) -> arrow.Table:
        at = rows.schema.get_field_index("run_id")
        return rows.set_column(
            at, rows.schema.field(at), arrow.array(["nobody"] * rows.num_rows, rows.schema.field(at).type)
        )

    place = _in_own_partitions(forger, made, "run_id", run_id, CORRECTIONS)
    return Forged(f"corrections in a partition of {run_id}", (str(place),))


FORGED_COLUMNS: tuple[Callable[[Forger], Forged], ...] = (
    rows_with_a_second_day,
    corrections_with_a_second_run,
    deletes_with_a_second_path,
    rows_without_ids,
    rows_of_another_type,
    rows_of_no_day,
    rows_in_partitions_of_days,
    corrections_in_partitions_of_runs,
)
"""Every kind, in turn."""
