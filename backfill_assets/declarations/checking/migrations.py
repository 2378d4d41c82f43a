"""Mistakes in the migrations of read models that products declare.

Put here what can be said of the two tables of a migration without opening them. What is in them is asked where it is planned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.columns import ColumnTypes
from backfill_assets.declarations.checking.names import did_you_mean, names_of
from backfill_assets.declarations.checking.parts import parts_of_kind, wrong_parts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.product import Product
from backfill_assets.declarations.target import TargetTable
from manifests.chunks import Chunking
from manifests.errors import Problem
from manifests.migration_steps import CutOver
from manifests.text import NAME_RULE, not_a_name

_NAME = re.compile(r"[a-z](?:_?[a-z0-9])*")
_LONGEST_NAME = 40
_LARGEST = 1e300
_TEXTS = ("old", "new", "transform_version", "requested_by")


def wrong_migration_fields(product: Product) -> Iterator[Problem]:
    """Yield each field of a product's migrations that nobody can use, whatever else is declared."""
    return wrong_parts(product, "migrations", Migration, _of_fields, "ba.Migration(...)")


def usable_migrations(product: Product) -> tuple[Migration, ...]:
    """Return those migrations of a product whose fields are what they are declared to be."""
    return tuple(one for one in parts_of_kind(product, "migrations", Migration) if not any(_of_fields(one)))


def _of_fields(one: Migration) -> Iterator[Problem]:
    name: Any = one.name
    where = f"migration {name}" if isinstance(name, str) and name.isprintable() else "a migration"
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        rule = f"a read model is named by small letters, digits and single '_', at most {_LONGEST_NAME}, a letter first"
        yield Problem(f"name is {in_words(name)}", rule, "for example case_sla", where)
    for field in _TEXTS:
        value: Any = getattr(one, field)
        if not isinstance(value, str) or not value.strip():
            yield Problem(f"{field} is {in_words(value)}", "it is a text", f'write {field}="..."', where)
    if isinstance(one.requested_by, str) and (wrong := not_a_name(one.requested_by)) is not None:
        yield Problem(f"requested_by is {in_words(one.requested_by)}: {wrong}", NAME_RULE, "write who it is", where)
    yield from _of_mappings(one, where)
    for field in ("not_compared", "consumers"):
        value = getattr(one, field)
        if not isinstance(value, (tuple, list)) or len(names_of(value)) != len(value):
            yield Problem(
                f"{field} is {in_words(value)}",
                "several names are a tuple; one name in brackets is no tuple",
                f"write {field}=('...',)",
                where,
            )
    for consumer in names_of(one.consumers):
        if not consumer.strip() or (wrong := not_a_name(consumer)) is not None:
            yield Problem(f"consumers has {in_words(consumer)}", NAME_RULE, "write its name", where)
    if not isinstance(one.cut_over, CutOver):
        known = ", ".join(f"ba.CutOver.{each.name}" for each in CutOver)
        yield Problem(f"cut_over is {in_words(one.cut_over)}", f"it is one of {known}", "write one of these", where)
    yield from _of_numbers(one, where)


def _of_mappings(one: Migration, where: str) -> Iterator[Problem]:
    columns: Any = one.columns
    if not isinstance(columns, Mapping) or not all(isinstance(part, str) for pair in columns.items() for part in pair):
        rule = "it gives the new name of a column by its old one"
        yield Problem(f"columns is {in_words(columns)}", rule, "write columns={'old': 'new'}", where)
    tolerances: Any = one.tolerances
    fits = isinstance(tolerances, Mapping) and all(
        isinstance(name, str) and _is_number(value) and 0 <= value <= _LARGEST for name, value in tolerances.items()
    )
    if not fits:
        rule = "it gives the largest difference, 0 or more, by a column's old name"
        yield Problem(f"tolerances is {in_words(tolerances)}", rule, "write tolerances={'amount': 0.01}", where)
    if not isinstance(one.slice_column, str):
        rule = "it is the name of a column of text, or is left out"
        yield Problem(f"slice_column is {in_words(one.slice_column)}", rule, "write its old name", where)


def _of_numbers(one: Migration, where: str) -> Iterator[Problem]:
    whole: tuple[tuple[str, int, int], ...] = (("readings", 1, 100), ("rewind_days", 0, 3660))
    for field, least, most in whole:
        value: Any = getattr(one, field)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            rule = f"it is a whole number from {least} to {most:,}"
            yield Problem(f"{field} is {in_words(value)}", rule, "correct it", where)
    if one.purpose is not None and not isinstance(one.purpose, str):
        yield Problem(
            f"purpose is {in_words(one.purpose)}", "it is a text, or is left out", 'write purpose="..."', where
        )
    if not isinstance(one.development, bool):
        yield Problem(f"development is {in_words(one.development)}", "it is True or False", "write one of them", where)
    if not _is_number(one.most_disagreeing) or not 0 <= one.most_disagreeing < 1:
        rule = "it is a share: from 0, below 1"
        yield Problem(f"most_disagreeing is {in_words(one.most_disagreeing)}", rule, "for example 0.001", where)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def of_all_migrations(declared: Sequence[Product], columns: Mapping[str, ColumnTypes | None]) -> Iterator[Problem]:
    """Say what is wrong with migrations beside the tables that the products declare."""
    targets = {target.name: target for product in declared for target in product.targets}
    migrations = [one for product in declared for one in product.migrations]
    for what, named in (
        ("migration", [one.name for one in migrations]),
        ("old table of a migration", [one.old for one in migrations]),
        ("new table of a migration", [one.new for one in migrations]),
    ):
        for name, times in Counter(named).items():
            if times > 1:
                rule = "a table moves once at a time"
                yield Problem(f"{name} is declared {times} times as {what}", rule, "leave one of them out")
    for one in migrations:
        yield from _of_migration(one, targets, columns)


def _of_migration(
    one: Migration, targets: Mapping[str, TargetTable], columns: Mapping[str, ColumnTypes | None]
) -> Iterator[Problem]:
    where = f"migration {one.name}"
    for field, name in (("old", one.old), ("new", one.new)):
        if name not in targets and columns.get(name, {}) is not None:
            rule = "both tables of a migration are declared targets"
            yield Problem(
                f"{field} is {name}{did_you_mean(name, targets)}", rule, "declare it, or correct the name", where
            )
    old, new = targets.get(one.old), targets.get(one.new)
    if old is None or new is None:
        return
    if old is new:
        rule = "a read model moves from one table to another"
        yield Problem(f"old and new are both {one.old}", rule, "name the other table", where)
        return
    if one.transform_version not in new.versions:
        rule = f"{new.name} can be computed with {', '.join(new.versions)}"
        yield Problem(f"transform_version is {one.transform_version!r}", rule, "name one of these", where)
    for side in (old, new):
        if side.chunking is Chunking.WHOLE:
            rule = "what one table has and the other lacks is told by day"
            yield Problem(f"{side.name} has no time", rule, "publish the new table as a run of its own", where)
    yield from _of_live(one, old, new, where)
    yield from _of_columns(one, old, new, columns, where)


def _of_live(one: Migration, old: TargetTable, new: TargetTable, where: str) -> Iterator[Problem]:
    """Say which way LIVE cannot go over."""
    if one.cut_over is CutOver.HARD and one.consumers:
        rule = "with a hard cut-over everybody goes over at once"
        yield Problem(
            f"consumers are {', '.join(one.consumers)}", rule, "leave them out, or declare DUAL_WRITES", where
        )
    if new.live is not None and new.live.transform_version != one.transform_version:
        yield Problem(
            f"transform_version is {one.transform_version!r}, and LIVE of {new.name} computes with {new.live.transform_version!r}",
            "the history of the new table, and what LIVE goes on with, say the same",
            "name one version in both",
            where,
        )
    if one.cut_over is CutOver.DUAL_WRITES and (old.live is None) != (new.live is None):
        has, lacks = (old, new) if new.live is None else (new, old)
        yield Problem(
            f"{has.name} declares `live`, and {lacks.name} does not",
            "with dual writes LIVE writes both tables",
            f"declare `live` of {lacks.name}, or cut_over=ba.CutOver.HARD",
            where,
        )


def _of_columns(
    one: Migration,
    old: TargetTable,
    new: TargetTable,
    columns: Mapping[str, ColumnTypes | None],
    where: str,
) -> Iterator[Problem]:
    there, here = columns.get(old.name), columns.get(new.name)
    if there is None or here is None:
        return
    pairs: list[tuple[str, Mapping[str, Any], TargetTable, str]] = [
        *(("columns", there, old, name) for name in one.columns),
        *(("columns", here, new, name) for name in one.columns.values()),
        *(("not_compared", there, old, name) for name in one.not_compared),
        *(("tolerances", there, old, name) for name in one.tolerances),
        *([("slice_column", there, old, one.slice_column)] if one.slice_column else []),
    ]
    wrong = False
    for field, known, target, name in pairs:
        if name not in known:
            wrong = True
            rule = f"it names columns of {target.name}"
            yield Problem(f"{field} has {name!r}{did_you_mean(name, known)}", rule, "correct the name", where)
    if wrong:
        return
    key = tuple(one.columns.get(name, name) for name in old.key)
    if sorted(key) != sorted(new.key):
        yield Problem(
            f"the key of {old.name} is {', '.join(old.key)}, that of {new.name} {', '.join(new.key)}",
            "a row of one table is held against the row of the same key in the other",
            "declare `columns` for key columns that have other names; a table of another grain is published as one of its own",
            where,
        )
        return
    day = one.columns.get(old.day_column, old.day_column)
    if day != new.day_column:
        rule = "a row belongs to the same day in both tables"
        yield Problem(
            f"{old.name} has its days in {old.day_column}, {new.name} in {new.day_column}",
            rule,
            f"declare columns={{{old.day_column!r}: {new.day_column!r}}}, if they say the same",
            where,
        )
    yield from _of_pairs(one, old, there, here, where)


def _of_pairs(one: Migration, old: TargetTable, there: ColumnTypes, here: ColumnTypes, where: str) -> Iterator[Problem]:
    """Say which columns have no counterpart, or one that nobody can hold them against."""
    for name in one.compared(old):
        counterpart = one.columns.get(name, name)
        if counterpart not in here:
            yield Problem(
                f"{old.name} has {name}, and {one.new} has no {counterpart}{did_you_mean(counterpart, here)}",
                "each column of the old table is compared, or it is said on purpose that it is not",
                f"declare columns={{{name!r}: '...'}}, or not_compared=({name!r},)",
                where,
            )
        elif there[name] != here[counterpart] and not (
            name in one.tolerances and _are_numbers(there[name], here[counterpart])
        ):
            yield Problem(
                f"{name} of {old.name} is {there[name]}, {counterpart} of {one.new} is {here[counterpart]}",
                "values are compared that have one type, or two numbers within a tolerance",
                f"declare not_compared=({name!r},), or of numbers tolerances={{{name!r}: 0.0}}",
                where,
            )
        elif name in one.tolerances and not _are_numbers(there[name], here[counterpart]):
            rule = "numbers may differ by a little"
            yield Problem(f"tolerances has {name}, which is {there[name]}", rule, "leave it out", where)
    if one.slice_column and one.slice_column not in one.compared(old):
        rule = "slices are told by a column that both tables say alike"
        yield Problem(f"slice_column {one.slice_column} is not compared", rule, "name another column", where)
    if one.slice_column and there[one.slice_column] != pl.String:
        rule = "slices are named by a text"
        yield Problem(
            f"slice_column {one.slice_column} is {there[one.slice_column]}", rule, "name a column of text", where
        )
    for name in (one.slice_column, *old.key):
        if name in one.not_compared:
            rule = "rows are found and told apart by it"
            yield Problem(f"not_compared has {name}", rule, "leave it out there", where)


def _are_numbers(*kinds: Any) -> bool:
    return all(kind.is_numeric() for kind in kinds)
