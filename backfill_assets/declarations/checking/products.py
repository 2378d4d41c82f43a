"""What an installation's products declare, held together when it is loaded: each mistake is a reason of one refusal.

Put here what is said of products, and of all of them together. What is said of one table or one gate is the other modules'.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from backfill_assets.declarations.checking.apis import of_all_apis
from backfill_assets.declarations.checking.changelogs import of_all_changelogs
from backfill_assets.declarations.checking.columns import ColumnTypes, declared_columns
from backfill_assets.declarations.checking.feeds import of_all_feeds
from backfill_assets.declarations.checking.fields import readable_part, wrong_fields
from backfill_assets.declarations.checking.gates import not_gates, with_gates
from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.checking.migrations import of_all_migrations
from backfill_assets.declarations.checking.revisions import of_restated
from backfill_assets.declarations.checking.sinks import of_all_sinks, of_live_sinks
from backfill_assets.declarations.checking.source_tables import of_circles
from backfill_assets.declarations.checking.sql import of_sql_files
from backfill_assets.declarations.checking.starts import of_starts
from backfill_assets.declarations.checking.tables import of_input
from backfill_assets.declarations.checking.targets import of_target
from backfill_assets.declarations.checking.topic_sinks import of_all_topic_sinks
from backfill_assets.declarations.checking.topics import of_all_topics
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.quarantine import with_quarantines
from backfill_assets.declarations.sources import sources_of
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from resources.code.sources import missing_of
from resources.sinks.declared import PLATFORM_SINKS


def problems_of(declared: Sequence[Product]) -> list[Problem]:
    """Return everything in the declarations of an installation's products that cannot be used.

    Of a table with a field that holds something else than it is declared to hold, nothing but that is said.
    """
    wrong = [list(_in_words("a product", wrong_fields(product))) for product in declared]
    usable: list[Product] = []
    whole: list[Product] = []
    left_out: list[InputTable | TargetTable] = []
    for product, problems in zip(declared, wrong, strict=True):
        if not problems:
            usable.append(product)
            whole.append(product)
        elif (part := readable_part(product)) is not None:
            usable.append(part[0])
            left_out += part[1]
    return [
        *chain.from_iterable(wrong),
        *_in_words("the products", _problems(usable, left_out)),
        *_in_words("the products", chain.from_iterable(map(_of_code, whole))),
        *_in_words("the products", chain.from_iterable(map(_of_files, whole))),
        *_in_words("the products", chain.from_iterable(map(of_sql_files, whole))),
    ]


def _problems(declared: Sequence[Product], left_out: Sequence[InputTable | TargetTable]) -> Iterator[Problem]:
    """Hold products together; of tables that are left out, it is known that they are there, and not what they have."""
    inputs = [table for product in declared for table in with_quarantines(product.inputs)]
    targets = [target for product in declared for target in product.targets]
    columns: dict[str, ColumnTypes | None] = {
        name: None for table in left_out for name in (table.name, f"{table.name}_quarantine")
    }
    tables: list[InputTable | TargetTable] = [*inputs, *targets]
    for table in tables:
        columns[table.name], problems = declared_columns(table.name, table.model)
        yield from problems
    yield from _twice(declared, inputs, targets)
    yield from of_all_sinks(declared, columns)
    yield from of_all_topic_sinks(declared)
    yield from of_all_feeds(declared, columns)
    yield from of_all_apis(declared, columns, (name for product in declared for name in product.loaders))
    yield from of_all_migrations(declared, columns)
    yield from of_all_topics(declared, columns, ())
    yield from of_all_changelogs(declared, columns)
    sinks = dict(PLATFORM_SINKS) | {sink.name: sink for product in declared for sink in product.sinks}
    yield from of_circles(targets)
    references = {table.name for table in inputs if table.is_reference}
    references |= {table.name for table in left_out if isinstance(table, InputTable)}
    for product in declared:
        yield from _of_paths(product)
        for name in product.loaders:
            if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
                yield Problem(
                    f"a loader is named {name!r}",
                    "it is a command: small letters, digits and hyphens, where a table's name has a dot",
                    "for example case-events",
                    f"product {product.name}",
                )
        for own in product.inputs:
            yield from _in_words(own.name, of_input(own, columns))
        for target in product.targets:
            yield from _in_words(target.name, _of_target(target, columns, references))
            if columns.get(target.source) is not None:
                yield from _in_words(target.name, of_restated(target, {table.name: table for table in inputs}))
            yield from _in_words(target.name, of_starts(target, columns, {table.name: table for table in tables}))
            if target.live is not None:
                yield from _in_words(target.name, of_live_sinks(target.live, f"{target.name}: live", sinks))


def _of_code(product: Product) -> Iterator[Problem]:
    """Say that what counts as a product's code computes none of its tables: no change of those would void a plan."""
    tables: list[Any] = [*product.inputs, *product.targets]
    things = [table.model for table in tables]
    things += [getattr(one, "function", None) for target in product.targets for one in target.versions.values()]
    modules = {str(name) for one in things if (name := getattr(one, "__module__", None))}
    if (
        product.code
        and modules
        and not any(f"{one}.".startswith(f"{name}.") for one in modules for name in product.code)
    ):
        yield Problem(
            f"code is {', '.join(product.code)}, and has none of {', '.join(sorted(modules))}",
            "it names the packages and modules whose files compute the tables: a change of them voids a plan",
            "name those, or leave `code` out",
            f"product {product.name}",
        )


def _of_files(product: Product) -> Iterator[Problem]:
    """Say which files of gates are not the product's code: a change of such a file would void no plan."""
    gates = (gate for target in product.targets for gate in with_gates(target).reconciliations)
    files = {file: gate for gate in gates for file in gate.files}
    there = {path.resolve() for path in sources_of(product).files().values()} if files else set()
    for file, gate in files.items():
        if file.exists() and file.resolve() not in there:
            yield Problem(
                f"{file} lies outside the code of product {product.name}",
                "the file of a gate is code: a change of it voids the plans, and a run is judged with the one that was planned",
                "put it into the package of the product, beside the module that declares the gate",
                f"product {product.name}: gate {gate.name}",
            )


def _of_paths(product: Product) -> Iterator[Problem]:
    """Say what is wrong with what a product names as `module:name`, as far as it is known before it is imported."""
    where = f"product {product.name}"
    named = {} if product.references is None else {"references": product.references}
    named |= {f"loaders[{name!r}]": path for name, path in product.loaders.items()}
    for name, path in named.items():
        if not re.fullmatch(r"\w+(\.\w+)*:\w+", path):
            yield Problem(
                f"{name}={path!r}",
                "it names a function or an attribute of a module, as `module:name`",
                "write the full name of the module, a colon and the name",
                where,
            )
            continue
        module, attribute = path.split(":")
        if (missing := missing_of(module, attribute)) is not None:
            yield Problem(
                f"{name}={path!r}, and there is no {missing}",
                "it is imported when it is needed, and its code counts as the product's",
                "correct the name, or install the distribution that has it",
                where,
            )


def _of_target(
    target: TargetTable, columns: Mapping[str, ColumnTypes | None], references: set[str]
) -> Iterator[Problem]:
    yield from not_gates(target)
    yield from of_target(with_gates(target), columns, references)


def _in_words(table: str, problems: Iterator[Problem]) -> Iterator[Problem]:
    """Yield problems; where looking for them fails on a value of a form that nobody expects, say that as the last of them."""
    try:
        yield from problems
    except Exception as error:  # noqa: BLE001 - a value may raise anything when it is looked at
        yield Problem(
            f"a value in its declaration is of another form than it is declared to have: {python_words(error)}",
            "each value has the type that the documentation gives it",
            "compare it with the tables of fields in docs/adding-a-table.md",
            table,
        )


def _twice(
    declared: Sequence[Product], inputs: Sequence[InputTable], targets: Sequence[TargetTable]
) -> Iterator[Problem]:
    named = [table.name for table in inputs] + [target.name for target in targets]
    named += [target.corrections.name for target in targets if target.corrections is not None]
    kinds = {"table": named + [target.changes for target in targets], "product": [one.name for one in declared]}
    for kind, names in kinds.items():
        for name, times in Counter(names).items():
            if times > 1:
                yield Problem(
                    f"{kind} {name} is declared {times} times",
                    f"a name stands for one {kind} in all products",
                    "give one of them another name; `<target>_changes` and `<input>_quarantine` are taken by the platform",
                )
