"""Mistakes in the changelogs that products declare: their names, the tables of the database, and where changes are landed.

Put here what can be said of a changelog without a file of it. What is wrong with a delivered change is `extraction`'s to say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from backfill_assets.declarations.changelogs import UNKNOWN_VERSION, ChangedTable, Changelog, ChangeRecord
from backfill_assets.declarations.checking.columns import ColumnTypes, of_declared_table
from backfill_assets.declarations.checking.names import names_of
from backfill_assets.declarations.checking.parts import parts_of_kind, wrong_parts
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.checking.tables import of_owners
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.log_ranges import LogKind

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_TABLE = re.compile(r"[^.\s]+\.[^.\s]+")


def wrong_changelog_fields(product: Product) -> Iterator[Problem]:
    """Yield each field of a product's changelogs that nobody can use, whatever else is declared."""
    return wrong_parts(product, "changelogs", Changelog, _of_fields, "ba.Changelog(...)")


def usable_changelogs(product: Product) -> tuple[Changelog, ...]:
    """Return those changelogs of a product with which nothing is wrong by themselves."""
    return tuple(one for one in parts_of_kind(product, "changelogs", Changelog) if not any(_of_fields(one)))


def of_all_changelogs(products: Sequence[Product], columns: Mapping[str, ColumnTypes | None]) -> Iterator[Problem]:
    """Say which changelogs of some products cannot be landed: names and tables that two have, tables that are none of a log."""
    every = [one for product in products for one in product.changelogs]
    inputs = {table.name: table for product in products for table in product.inputs}
    for field, names in (("name", [one.name for one in every]), ("table", [one.table for one in every])):
        for name, times in Counter(names).items():
            if times > 1:
                rule = "a changelog has a name and a table of its own, in all products"
                yield Problem(
                    f"{times} changelogs have the {field} {name}", rule, "give one of them another", "changelogs"
                )
    for one in every:
        where = f"changelog {one.name}"
        yield from of_declared_table(where, "table", one.table, columns)
        table = inputs.get(one.table)
        if table is None:
            if columns.get(one.table) is not None:
                rule = "changes are landed in an input table: a target is computed"
                yield Problem(f"{one.table} is no input table", rule, "name the input table of the changes", where)
            continue
        yield from _of_landing(table, columns.get(table.name) or (), where)
    for target in (target for product in products for target in product.targets):
        yield from _of_merged(target, inputs.get(target.source))


def _of_landing(table: InputTable, own: Iterable[str], where: str) -> Iterator[Problem]:
    if not (isinstance(table.model, type) and issubclass(table.model, ChangeRecord)):
        rule = "a change is landed in the columns of ba.ChangeRecord"
        yield Problem(f"the model of {table.name} is none of them", rule, "inherit it in the table's model", where)
    elif more := [name for name in own if name not in ChangeRecord.to_schema().columns]:
        rule = "a change is landed as it came: the columns of ba.ChangeRecord, and no others"
        yield Problem(f"{table.name} has {', '.join(more)} besides", rule, "compute it in a target", where)
    log: Any = table.log
    if log is None or (log.kind, log.position, log.partition) != (LogKind.CHANGELOG, "commit_lsn", None):
        rule = "rows of a changelog have their place by the LSN of their commit"
        fix = 'write log=ba.LogPlace(ba.LogKind.CHANGELOG, "commit_lsn")'
        yield Problem(f"log of {table.name} is {in_words(log)}", rule, fix, where)


def _of_merged(target: TargetTable, source: InputTable | None) -> Iterator[Problem]:
    """Say that a target which may be merged by key is computed from changes: those of one entity do not say how it ended."""
    if target.entity is None or source is None or source.log is None or source.log.kind is not LogKind.CHANGELOG:
        return
    yield Problem(
        f"entity is {target.entity!r}, and {source.name} has the changes of a database",
        "MERGE_BY_KEY reads the rows of its entities alone, and an entity that a snapshot or a truncate has ended is told "
        "by rows that are not its own",
        "merge from a history of it, a target that is replaced as a whole (docs/change-data-capture.md has one of each); "
        "or leave `entity` out",
        f"{target.name}: entity",
    )


def _of_fields(one: Changelog) -> Iterator[Problem]:
    name: Any = one.name
    is_name = isinstance(name, str) and _NAME.fullmatch(name) is not None
    where = f"changelog {name}" if is_name else "a changelog"
    if not is_name:
        rule = "a changelog is named in small letters, digits and '_', at most 40, a letter first: its archive is named by it"
        yield Problem(f"name is {in_words(name)}", rule, "for example bank_changes", where)
    for field in ("description", "table"):
        value: Any = getattr(one, field)
        if not isinstance(value, str) or not value.strip():
            yield Problem(f"{field} is {in_words(value)}", "it is a text", f"give `{field}`", where)
    yield from of_owners(one.owners, "a changelog", where)
    tables: Any = one.tables
    if (
        not isinstance(tables, (tuple, list))
        or not tables
        or not all(isinstance(each, ChangedTable) for each in tables)
    ):
        rule = "a changelog has a tuple of one or more ba.ChangedTable"
        yield Problem(f"tables is {in_words(tables)}", rule, "declare each table of the database", where)
        return
    for table in tables:
        yield from _of_table(table, where)
    for text, times in Counter(str(each.name) for each in tables).items():
        if times > 1:
            yield Problem(f"{text} is declared {times} times", "a table is declared once", "take one out", where)


def _of_table(table: ChangedTable, of: str) -> Iterator[Problem]:
    name: Any = table.name
    where = f"{of}: {name}" if isinstance(name, str) else of
    if not isinstance(name, str) or not _TABLE.fullmatch(name):
        rule = "a table of a database is named schema.table"
        yield Problem(f"a table is named {in_words(name)}", rule, "for example public.accounts", where)
    key: Any = table.key
    if not isinstance(key, (tuple, list)) or not key or len(names_of(key)) != len(key) or len(set(key)) != len(key):
        rule = "rows are told apart by one or more columns, each named once, in a tuple"
        yield Problem(f"key is {in_words(key)}", rule, 'for example key=("account_id",)', where)
        key = ()
    versions: Any = table.versions
    if not isinstance(versions, Mapping) or not versions:
        rule = "each version that its rows are of has the names of their columns"
        yield Problem(f"versions is {in_words(versions)}", rule, 'for example {"1": ("account_id", "owner")}', where)
        return
    seen: dict[frozenset[str], Any] = {}
    for version, columns in versions.items():
        if not isinstance(version, str) or not version.strip() or version.startswith(UNKNOWN_VERSION):
            rule = f"a version is a text, and does not begin with {UNKNOWN_VERSION!r}"
            yield Problem(f"a version is {in_words(version)}", rule, "for example 1", where)
        if not isinstance(columns, (tuple, list)) or not columns or len(set(names_of(columns))) != len(columns):
            rule = "a version has the names of its columns, each once, in a tuple"
            yield Problem(f"version {in_words(version)} has {in_words(columns)}", rule, "correct it", where)
            continue
        if missing := [each for each in key if each not in columns]:
            rule = "a row of any version is told apart by its key"
            yield Problem(
                f"version {version} lacks {', '.join(missing)}", rule, "a renamed key is a table of its own", where
            )
        if (other := seen.setdefault(frozenset(columns), version)) != version:
            rule = "a row's version is told by its columns"
            yield Problem(f"versions {other} and {version} have the same columns", rule, "take one of them out", where)
