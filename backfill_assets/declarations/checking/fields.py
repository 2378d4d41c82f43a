"""Whether the fields of a product hold what they are declared to hold: whoever reads them relies on it.

Put here what is asked of a field alone, before anything in it is looked at. What is wrong with the tables that a product
declares is the other modules'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from backfill_assets.declarations.checking.apis import usable_apis, wrong_api_fields
from backfill_assets.declarations.checking.changelogs import usable_changelogs, wrong_changelog_fields
from backfill_assets.declarations.checking.feeds import usable_feeds, wrong_feed_fields
from backfill_assets.declarations.checking.migrations import usable_migrations, wrong_migration_fields
from backfill_assets.declarations.checking.sinks import usable_sinks, wrong_sink_fields
from backfill_assets.declarations.checking.table_fields import in_words, wrong_table_fields
from backfill_assets.declarations.checking.topics import usable_topics, wrong_topic_fields
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.text import NAME_RULE, not_a_name
from resources.code.sources import Sources

_PATH = "module:name"


def wrong_fields(product: Any) -> Iterator[Problem]:
    """Yield each field of a product that nobody can use: what it is, the rule, and what to write instead."""
    if not isinstance(product, Product):
        what, rule = f"a product is {in_words(product)}", "what is served is a `backfill_assets.Product`"
        yield Problem(what, rule, "hand in the product that has the tables", f"product {in_words(product)}")
        return
    yield from _of_name(product)
    yield from _of_tables(product, "inputs", InputTable)
    yield from _of_tables(product, "targets", TargetTable)
    references: Any = product.references
    if not (references is None or isinstance(references, str)):
        rule = f"it names a function, as `{_PATH}`, or is left out"
        yield _problem(product, f"references is {in_words(references)}", rule, f"write `{_PATH}` in quotes")
    yield from _of_loaders(product)
    yield from _of_code(product)
    yield from wrong_sink_fields(product)
    yield from wrong_feed_fields(product)
    yield from wrong_api_fields(product)
    yield from wrong_migration_fields(product)
    yield from wrong_topic_fields(product)
    yield from wrong_changelog_fields(product)


def readable_part(product: Product) -> tuple[Product, list[InputTable | TargetTable]] | None:
    """Return a product as far as its fields can be looked into, without its `code`, and those of its tables that cannot.

    None where it is not known which tables it declares, and under which names.
    """
    try:
        tables = [*_those(product.inputs), *_those(product.targets)]
        known = all(isinstance(one, (InputTable, TargetTable)) and isinstance(one.name, str) for one in tables)
        if not (known and isinstance(product.name, str)):
            return None
        unreadable = [one for one in tables if not _can_be_looked_into(one)]
        whole = [one for one in tables if not any(one is other for other in unreadable)]
        loaders: Mapping[Any, Any] = product.loaders if isinstance(product.loaders, Mapping) else {}
        readable = Product(
            name=product.name,
            inputs=tuple(one for one in whole if isinstance(one, InputTable)),
            targets=tuple(one for one in whole if isinstance(one, TargetTable)),
            references=product.references if isinstance(product.references, str) else None,
            loaders={one: path for one, path in loaders.items() if isinstance(one, str) and isinstance(path, str)},
            sinks=usable_sinks(product),
            feeds=usable_feeds(product),
            apis=usable_apis(product),
            migrations=usable_migrations(product),
            topics=usable_topics(product),
            changelogs=usable_changelogs(product),
        )
    except Exception:  # noqa: BLE001 - a value may raise anything when it is looked at, as `checking.products` says of it
        return None
    return readable, unreadable


def _those(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise TypeError("no tuple")
    return tuple(value)


def _can_be_looked_into(table: InputTable | TargetTable) -> bool:
    try:
        return not any(wrong_table_fields(table))
    except Exception:  # noqa: BLE001 - see above
        return False


def _of_name(product: Product) -> Iterator[Problem]:
    name: Any = product.name
    if not isinstance(name, str) or not name.strip():
        yield _problem(product, f"name is {in_words(name)}", NAME_RULE, "give the product a name, for example metering")
    elif (wrong := not_a_name(name)) is not None:
        what = f"name is {in_words(name)}: {wrong}"
        yield _problem(product, what, NAME_RULE, "write the name in one line of plain characters")


def _of_tables(product: Product, field: str, kind: type[InputTable | TargetTable]) -> Iterator[Problem]:
    tables: Any = getattr(product, field)
    rule, fix = f"it is a tuple of `{kind.__name__}`", f"write `{field}=(TABLE,)`, or `{field}=()` where there is none"
    if not isinstance(tables, (tuple, list)):
        yield _problem(product, f"{field} is {in_words(tables)}", rule, fix)
        return
    for table in tables:
        if not isinstance(table, kind):
            yield _problem(product, f"{field} has {in_words(table)}", rule, fix)
        else:
            yield from wrong_table_fields(table)


def _of_loaders(product: Product) -> Iterator[Problem]:
    loaders: Any = product.loaders
    rule, fix = f"it gives each loader's `{_PATH}` by its name", f"write `loaders={{'readings': '{_PATH}'}}`"
    if not isinstance(loaders, Mapping):
        yield _problem(product, f"loaders is {in_words(loaders)}", rule, fix)
        return
    for name, path in loaders.items():
        if not isinstance(name, str):
            yield _problem(product, f"loaders has {in_words(name)}", rule, fix)
        elif not isinstance(path, str):
            yield _problem(product, f"loaders[{name!a}] is {in_words(path)}", rule, fix)


def _of_code(product: Product) -> Iterator[Problem]:
    code: Any = product.code
    rule, fix = "it is a tuple of names of packages and modules", 'write `code=("our_tables",)`, or leave it out'
    if not isinstance(code, (tuple, list)):
        yield _problem(product, f"code is {in_words(code)}", rule, fix)
        return
    for name in code:
        if not isinstance(name, str):
            yield _problem(product, f"code has {in_words(name)}", rule, fix)
        elif not Sources("", (name,)).roots:
            what = f"code has {in_words(name)}, of which there is no file"
            yield _problem(product, what, f"{rule}: a change of their files voids a plan", "correct the name")


def _problem(product: Product, what: str, rule: str, fix: str) -> Problem:
    name: Any = product.name
    plain = isinstance(name, str) and name.isprintable() and name.strip()
    return Problem(what, rule, fix, f"product {name if plain else in_words(name)}")
