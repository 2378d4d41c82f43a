"""Quarantined rows held against the rules of today, and which of them may come into their table.

Put here which reader a raw row belongs to: the model of its table, or the loader of the product that has quarantined it; and what
keeps one out although it passes: a row like it is there. How rows are read back is `raw_records`'; what is done with those that
pass, `releases`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import polars as pl
from pyiceberg.expressions import AlwaysTrue, In

from backfill_assets.declarations.column_types import is_nested
from backfill_assets.declarations.deliveries import Delivery, Loader, QuarantinedRecord
from backfill_assets.declarations.finding import imported_loader
from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.ingestion.deliveries import as_counted
from backfill_assets.ingestion.input_files import ROW, unique_columns
from backfill_assets.ingestion.own_loaders import delivered
from backfill_assets.ingestion.raw_records import RawRecords
from backfill_assets.ingestion.repeated_keys import repeated_rows
from backfill_assets.installation import Platform
from backfill_assets.planning.quarantine_cases import RawRow
from backfill_assets.worker.columns import table_of
from backfill_assets.worker.nested import as_text
from manifests.errors import InputRefused, Problem

_VALUES_ASKED_FOR = 1_000
"""So many values of a column are looked for in the bounds of files; for more, every file is read."""
IS_THERE = "the table has an equal row"


@dataclass
class Judged:
    """What the rules of today say of raw rows.

    Attributes:
        broken: by the place of a row in the sequence, the rule that it breaks.
        rows: how many rows the table gets of those that pass.
        batches: yields them as Arrow tables with the columns of the table.
    """

    broken: dict[int, str] = field(default_factory=dict)
    rows: int = 0
    batches: list[Callable[[], Iterator[Any]]] = field(default_factory=list)


def judge_again(
    platform: Platform, table: InputTable, rows: Sequence[RawRow], at: datetime, *, beside_equal: bool
) -> Judged:
    """Hold raw rows against the rules of today.

    Args:
        platform: the installation.
        table: the input table.
        rows: the raw rows, each as often as it is to come in.
        at: when they are brought in.
        beside_equal: whether a row passes although the table has an equal one.

    Raises:
        InputRefused: if rows were quarantined by a loader that cannot read them back, or one does not keep to its word.
    """
    _require_read_back(platform, table, rows)
    judged = Judged()
    by_loader: dict[str, list[int]] = defaultdict(list)
    own: list[int] = []
    has_loader = bool(_loaders_of(platform, table))
    for number, row in enumerate(rows):
        of_columns = row.load_id.startswith(f"{table.name}:") or (not row.load_id and not has_loader)
        (own if of_columns or not has_loader else by_loader[row.load_id]).append(number)
    if own:
        _judge_by_model(platform, table, rows, own, judged, beside_equal=beside_equal)
    if by_loader:
        name, read = _reader(platform, table)
        for numbers in by_loader.values():  # of one load each: two of them may have files of one name
            _judge_by_loader(table, name, read, rows, numbers, at, judged)
    return judged


def _judge_by_model(
    platform: Platform,
    table: InputTable,
    rows: Sequence[RawRow],
    numbers: Sequence[int],
    judged: Judged,
    *,
    beside_equal: bool,
) -> None:
    records = RawRecords([rows[number] for number in numbers], table.model)
    broken = dict(records.unreadable)
    passed: list[pl.DataFrame] = []
    with repeated_rows(records, table) as repeated:
        for checked in map(repeated.split, records.batches()):
            broken |= dict(checked.rejected.select(ROW, "_reason").iter_rows())
            passed.append(checked.passed)
    frames = [frame for frame in passed if frame.height]
    if frames:
        whole = pl.concat(frames).sort(ROW)
        there = _there_already(platform, table, whole, beside_equal=beside_equal)
        broken |= there
        whole = whole.filter(~pl.col(ROW).is_in(pl.Series(list(there), dtype=pl.Int64).implode()))
        if whole.height:
            schema = iceberg_schema(table.model)
            judged.rows += whole.height
            judged.batches.append(lambda: iter([table_of(whole.drop(ROW), schema)]))
    judged.broken |= {numbers[place]: rule for place, rule in broken.items()}


def _there_already(platform: Platform, table: InputTable, rows: pl.DataFrame, *, beside_equal: bool) -> dict[int, str]:
    """Return which of the rows are in the table already, by a key that is unique or by all of their values; and why they stay."""
    found: dict[int, str] = {}
    keys = unique_columns(table.model)
    for columns in keys:
        for number in _with_equal(platform, table, rows, columns):
            found.setdefault(number, f"{', '.join(columns)}: the table has a row with this key")
    if not keys and not beside_equal:
        found |= dict.fromkeys(_with_equal(platform, table, rows, tuple(rows.drop(ROW).columns)), IS_THERE)
    return found


def _with_equal(platform: Platform, table: InputTable, rows: pl.DataFrame, columns: Sequence[str]) -> list[int]:
    """Return the numbers of the rows whose values of some columns a row of the table has; NULL is a value like any other."""
    present = pl.from_arrow(platform.lakehouse.rows_where(table.name, columns, _filter(rows, columns)))
    assert isinstance(present, pl.DataFrame)
    kinds = rows.schema
    plain = [
        as_text(pl.col(name), kinds[name]).alias(name) if is_nested(kinds[name]) else pl.col(name) for name in columns
    ]
    ours = rows.select(ROW, *plain)
    theirs = present.cast({name: kinds[name] for name in columns}).select(plain).unique()
    return ours.join(theirs, on=list(columns), how="semi", nulls_equal=True)[ROW].to_list()


def _filter(rows: pl.DataFrame, columns: Sequence[str]) -> Any:
    """Return a filter that no row of the same values is left out by: by the column whose values say most and are few enough."""
    best: list[Any] = []
    name = ""
    for column in columns:
        kind = rows.schema[column]
        if not isinstance(kind, pl.String | pl.Int32 | pl.Int64 | pl.Date) or rows[column].null_count():
            continue
        values = rows[column].unique().sort().to_list()
        if len(best) < len(values) <= _VALUES_ASKED_FOR:
            best, name = values, column
    return In(term=name, literals=best) if best else AlwaysTrue()


def _judge_by_loader(
    table: InputTable,
    name: str,
    read: Callable[[Sequence[QuarantinedRecord]], Delivery],
    rows: Sequence[RawRow],
    numbers: Sequence[int],
    at: datetime,
    judged: Judged,
) -> None:
    places = {(rows[number].source_file, rows[number].source_row): number for number in numbers}
    records = [
        QuarantinedRecord(rows[number].source_file, rows[number].source_row, rows[number].record) for number in numbers
    ]
    broken: dict[int, str] = {}
    delivery = delivered(name, lambda: read(records))
    for batch in delivery.quarantined(at):
        for file, row, rule in zip(
            *(batch[column].to_pylist() for column in ("source_file", "source_row", "reason")), strict=True
        ):
            if (file, row) not in places:
                raise _other_rows(name, f"it quarantines row {row} of {file}, and was given none such")
            broken[places[file, row]] = rule
    judged.broken |= broken
    passing = [record for number, record in zip(numbers, records, strict=True) if number not in broken]
    if not passing:
        return
    again = delivered(name, lambda: read(passing))
    counted = again.count(at)
    if counted.quarantined:
        raise _other_rows(
            name, f"it quarantines {counted.quarantined:,} of {len(passing):,} rows that it has passed before"
        )
    judged.rows += counted.events
    judged.batches.append(lambda: as_counted(again.rows(at), counted.events, f"from_records of {name}", table.name))


def _require_read_back(platform: Platform, table: InputTable, rows: Sequence[RawRow]) -> None:
    """Refuse rows of what is read as a whole: a record of a file, or of a server's answer, means nothing without the rest of it.

    Raises:
        InputRefused: if the table is filled by a feed, with what reads its files or answers once more.
    """
    where = f"it came from {rows[0].source_file}" if rows else "what came"
    for feed in platform.products.feeds.values():
        if feed.table == table.name:
            way_out = f"`backfill receive {feed.name} --again FILE_ID` reads a file once more by the rules of today (`backfill files {feed.name}`)"
            raise _read_whole(table, feed.name, where, way_out)
    for api in platform.products.apis.values():
        if api.table == table.name:
            way_out = f"take its loads back (`backfill unload {table.name}`), and `backfill load {api.name}` reads the kept answers once more"
            raise _read_whole(table, api.name, where, way_out)


def _read_whole(table: InputTable, feed: str, where: str, way_out: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"rows of {table.name} come by the feed {feed}, and {where}",
            "what a feed brings is translated as a whole, and a record alone is not",
            f"{way_out}; then reject the cases",
        )
    )


def _loaders_of(platform: Platform, table: InputTable) -> dict[str, Loader]:
    """Return the products' own loaders of a table, by name."""
    found = {
        name: imported_loader(path, product.name)
        for product in platform.products
        for name, path in product.loaders.items()
    }
    return {name: loader for name, loader in found.items() if loader.table == table.name}


def _reader(platform: Platform, table: InputTable) -> tuple[str, Callable[[Sequence[QuarantinedRecord]], Delivery]]:
    """Return what reads back what the loader of a table has quarantined, with the loader's name.

    Raises:
        InputRefused: if none does, or several do.
    """
    loaders = _loaders_of(platform, table)
    able = {name: loader.from_records for name, loader in loaders.items() if loader.from_records is not None}
    if len(able) == 1:
        return next(iter(able.items()))
    names = ", ".join(sorted(loaders))
    raise InputRefused(
        Problem(
            f"the loader {names} of {table.name} has no `from_records`"
            if not able
            else f"the loaders {', '.join(sorted(able))} of {table.name} have `from_records`, and a row does not say whose it is",
            "what a loader has quarantined is read back by that loader alone: it knows what its raw rows mean",
            "give it `from_records`, or deliver the rows again in a corrected file, and reject the cases"
            if not able
            else "leave one of them with `from_records` that reads the rows of all",
        )
    )


def _other_rows(name: str, what: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"`from_records` of the loader {name}: {what}",
            "it makes rows of the table of the raw rows that it is given, or quarantines them again by the same file and number",
            "correct the loader; nothing was written",
        )
    )
