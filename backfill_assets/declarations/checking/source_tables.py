"""Mistakes in the sources of a target beside its first: their columns, their windows, and targets that are made of one another.

Put here what is said of several sources and of circles among targets. What is said of the first source alone is `targets`'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.columns import DAY, ColumnTypes, of_declared_table, of_kind
from backfill_assets.declarations.checking.names import texts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.source_tables import Readers, SourceTable, StartsFrom, Window
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.fields import MOST_DAYS
from manifests.timeliness import OnFuture, OnLate, Timeliness


def of_sources(target: TargetTable, columns: Mapping[str, ColumnTypes | None]) -> Iterator[Problem]:
    """Say what is wrong with the sources of a target beside its first."""
    yield from _of_readers(target.readers, columns.get(target.source), target.source, f"{target.name}: readers")
    if target.readers is not None and target.look_back_columns:
        yield Problem(
            f"{target.name} has readers of {target.source}, and look_back_columns",
            "a reader is given whole rows, and a look-back has a few columns of each",
            "read the earlier rows as a source of their own, ba.SourceTable(..., reads=ba.EVERYTHING_UNTIL_END), or widen the warm-up",
            f"{target.name}: readers",
        )
    seen = {target.source, *texts(target.references)}
    for place, one in enumerate(target.sources):
        field = f"sources[{place}]"
        where = f"{target.name}: {field}"
        if not isinstance(one, SourceTable):
            rule = "a source beside the first is a ba.SourceTable"
            yield Problem(f"it is {in_words(one)}", rule, 'ba.SourceTable("bronze.prices", "valid_on")', where)
            continue
        wrong = [*_wrong_fields(one, where)]
        yield from wrong
        if wrong:
            continue
        yield from of_declared_table(target.name, field, one.table, columns)
        if one.table == target.name:
            yield Problem(
                f"{target.name} is its own source",
                "a table is computed from others",
                "name the table whose rows are read; earlier rows of the same table are no input",
                where,
            )
        elif one.table in seen:
            yield Problem(
                f"{one.table} is a source or a reference of {target.name} already",
                "a table is read once, in one way",
                "widen its window, or take one of them out",
                where,
            )
        seen.add(one.table)
        if (theirs := columns.get(one.table)) is not None:
            yield from of_kind(target.name, field, one.time_column, one.table, theirs, DAY)
        yield from _of_readers(one.readers, columns.get(one.table), one.table, f"{where}.readers")


def _wrong_fields(one: SourceTable, where: str) -> Iterator[Problem]:
    """Say which fields of a source hold something else than they are declared to hold."""
    window: Any = one.reads
    days = f"a whole number of days, 0 to {MOST_DAYS}"
    asked: list[tuple[str, Any, bool, str]] = [
        ("table", one.table, isinstance(one.table, str), "the name of a table"),
        ("time_column", one.time_column, isinstance(one.time_column, str), "the name of a column of it"),
        ("reads", window, isinstance(window, Window), "a ba.Window, or ba.EVERYTHING_UNTIL_END"),
        ("may_be_empty", one.may_be_empty, isinstance(one.may_be_empty, bool), "True or False"),
        ("for_gates", one.for_gates, isinstance(one.for_gates, bool), "True or False"),
    ]
    times: Any = one.timeliness
    readers: Any = one.readers
    asked.append(("readers", readers, readers is None or isinstance(readers, Readers), "a ba.Readers, or None"))
    asked.append(("timeliness", times, isinstance(times, Timeliness), "a ba.Timeliness"))
    if isinstance(times, Timeliness):
        asked += [
            ("timeliness.late", times.late, isinstance(times.late, OnLate), "a ba.OnLate"),
            ("timeliness.future", times.future, isinstance(times.future, OnFuture), "a ba.OnFuture"),
        ]
    if isinstance(window, Window):
        asked += [
            (
                "reads.before",
                window.before,
                window.before is None or _is_days(window.before),
                f"{days}; None: all there are",
            ),
            ("reads.after", window.after, _is_days(window.after), days),
        ]
    for name, value, is_right, kind in asked:
        if not is_right:
            yield Problem(f"{name} is {in_words(value)}", f"it is {kind}", f"give `{name}` {kind}", where)


def _of_readers(readers: Any, columns: ColumnTypes | None, table: str, where: str) -> Iterator[Problem]:
    """Say what is wrong with the readers of a source: no version, a column that there is not, what is no function of rows."""
    if not isinstance(readers, Readers):
        return
    if not isinstance(readers.by_version, Mapping) or not readers.by_version:
        rule = "each version that rows may be of has a reader, `ba.as_it_is` where it needs none"
        yield Problem(f"by_version is {in_words(readers.by_version)}", rule, 'for example {"2": ba.as_it_is}', where)
        return
    for version, reader in readers.by_version.items():
        if not callable(reader):
            rule = "a reader is a function of the rows of a version, and returns rows with the same columns"
            yield Problem(f"the reader of {version!r} is {in_words(reader)}", rule, "name a function", where)
    if columns is None:
        return
    kind = columns.get(readers.column)
    if kind is None or not (kind == pl.String or kind.is_integer()):
        shown = (
            f"{table} has no column {readers.column!r}" if kind is None else f"{readers.column!r} of {table} is {kind}"
        )
        yield Problem(shown, "the column that says a row's version is one of text or of integers", "correct it", where)
        return
    wanted = str if kind == pl.String else int
    for version in readers.by_version:
        if version is not None and type(version) is not wanted:
            rule = f"a version is a value of {readers.column!r}, which is {kind}, or None for rows without one"
            yield Problem(f"a version is {version!r}", rule, f"write it as {wanted.__name__}", where)


def _is_days(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_DAYS


def of_circles(targets: Sequence[TargetTable]) -> Iterator[Problem]:
    """Say which targets are, by way of others, made of themselves: none of them could be computed first."""
    made_of = {one.name: [name for name in _sources_of(one) if name != one.name] for one in targets}
    said: set[frozenset[str]] = set()
    for name in made_of:
        circle = _way_back(name, made_of)
        if circle and frozenset(circle) not in said:
            said.add(frozenset(circle))
            yield Problem(
                f"{' is computed from '.join((*circle, circle[0]))}",
                "a target may be another's source, and none is made of itself: neither could be computed first",
                "take one of these sources out, or have the rows that both need in a table of their own",
                f"{name}: sources",
            )


def _sources_of(target: TargetTable) -> list[str]:
    further = target.sources if isinstance(target.sources, (tuple, list)) else ()
    states = [target.starts_from.table] if isinstance(target.starts_from, StartsFrom) else []
    return [target.source, *(one.table for one in further if isinstance(one, SourceTable)), *states]


def _way_back(name: str, made_of: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the targets by which one is made of itself, beginning with it; none where it is not."""
    ways, seen = [[name]], {name}
    while ways:
        way = ways.pop(0)
        for one in made_of.get(way[-1], ()):
            if one == name:
                return way
            if one not in seen:
                seen.add(one)
                ways.append([*way, one])
    return []
