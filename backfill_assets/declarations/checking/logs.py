"""Mistakes in what is declared of tables that records of a log are landed in.

Put here what `LogPlace` asks of the table that it stands in.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import polars as pl

from backfill_assets.declarations.checking.columns import INSTANT, ColumnTypes, of_kind
from backfill_assets.declarations.product import InputTable
from manifests.errors import Problem
from manifests.lateness import Lateness, Watermark

_WHOLE = {
    "position": ("a whole number (pl.Int64)", lambda kind: kind == pl.Int64),
    "partition": ("a whole number (pl.Int32)", lambda kind: kind == pl.Int32),
}


def of_log(table: InputTable, own: ColumnTypes) -> Iterator[Problem]:
    """Say which columns an input table names for the place of its rows in a log that it has not, or that cannot be one."""
    if table.log is None:
        return
    where = f"{table.name}: log"
    for name, kind in _WHOLE.items():
        if (column := getattr(table.log, name)) is not None:
            yield from of_kind(table.name, f"log.{name}", column, table.name, own, kind)
    if table.log.time is not None:
        yield from of_kind(table.name, "log.time", table.log.time, table.name, own, INSTANT)
    elif table.log.lateness is not None:
        rule = "how late records come is judged by the time that they have"
        yield Problem(f"{table.name} says how late records come, and not by which column", rule, "name log.time", where)
    yield from _of_lateness(table.log.lateness, where)
    columns = table.model.to_schema().columns
    for column in table.log.columns:
        if column in own and columns[column].nullable:
            rule = "a row without its place belongs to no range of the log"
            yield Problem(f"{column!r} of {table.name} may be NULL", rule, "take nullable=True off the column", where)
    if table.is_reference or table.quarantine_of or table.revisions is not None:
        what = "is a reference table" if table.is_reference else "is a quarantine"
        yield Problem(
            f"{table.name} {what if table.revisions is None else 'keeps versions of days'}, and is declared to be a log's",
            "records of a log are landed in a table that loads append to, each once",
            "leave log out, or land the log in a table of its own",
            where,
        )


def _of_lateness(lateness: Lateness | None, where: str) -> Iterator[Problem]:
    if lateness is None:
        return
    for name, value in (("disorder", lateness.disorder), ("idle", lateness.idle)):
        if value is not None and value < timedelta(0):
            yield Problem(f"lateness.{name} is {value}", "nothing is late by less than no time", "correct it", where)
    if lateness.idle is not None and lateness.watermark is not Watermark.BY_PARTITION:
        rule = "a partition that nothing comes from holds back the watermark of BY_PARTITION alone"
        yield Problem(f"lateness.idle is {lateness.idle}, of {lateness.watermark}", rule, "leave idle out", where)
