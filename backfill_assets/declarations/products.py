"""The products that one installation serves: every table by its name, and the product and group that it belongs to.

Put here questions about what is declared. How products are found is `declarations.finding`'s, whether what they declare
can be used `declarations.checking`'s, and what is in a table the lakehouse's. Nothing here opens anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.declarations.changelogs import Changelog
from backfill_assets.declarations.feeds import FileFeed
from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.quarantine import with_quarantines
from backfill_assets.declarations.sources import modules_of
from backfill_assets.declarations.target import TargetTable
from backfill_assets.declarations.topics import Topic
from manifests.errors import InputRefused, Problem
from resources.sinks.declared import PLATFORM_SINKS, SinkDeclaration

if TYPE_CHECKING:
    import pandera.polars as pa

_Table = TypeVar("_Table", InputTable, TargetTable)
_Feed = TypeVar("_Feed", FileFeed, ApiFeed, Topic, Changelog)


@dataclass(frozen=True)
class Products:
    """What an installation's products declare, together."""

    declared: tuple[Product, ...]

    def __iter__(self) -> Iterator[Product]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)

    @cached_property
    def targets(self) -> tuple[TargetTable, ...]:
        """Every target of every product."""
        return tuple(target for product in self.declared for target in product.targets)

    @cached_property
    def inputs(self) -> tuple[InputTable, ...]:
        """Every input table of every product, and the quarantine of each that has none declared."""
        return tuple(table for product in self.declared for table in with_quarantines(product.inputs))

    @cached_property
    def sinks(self) -> dict[str, SinkDeclaration]:
        """Every sink that a manifest can grant, by name: the platform's, and those of every product."""
        return dict(PLATFORM_SINKS) | {sink.name: sink for product in self.declared for sink in product.sinks}

    @cached_property
    def feeds(self) -> dict[str, FileFeed]:
        """Every feed of every product, by name."""
        return {feed.name: feed for product in self.declared for feed in product.feeds}

    @cached_property
    def apis(self) -> dict[str, ApiFeed]:
        """Every feed from a server, of every product, by name."""
        return {feed.name: feed for product in self.declared for feed in product.apis}

    @cached_property
    def migrations(self) -> dict[str, Migration]:
        """Every read model that moves from one target to another, by name."""
        return {one.name: one for product in self.declared for one in product.migrations}

    @cached_property
    def changelogs(self) -> dict[str, Changelog]:
        """Every changelog of every product, by name."""
        return {one.name: one for product in self.declared for one in product.changelogs}

    def changelog(self, name: str) -> Changelog:
        """Return a declared changelog.

        Raises:
            InputRefused: if no product declares it.
        """
        if name in self.topics:
            fix = f"give no folder, but --new, offsets, times or an archive: `backfill land {name} --new`"
            raise InputRefused(Problem(f"{name} is a topic", "the records of a topic are read from its brokers", fix))
        how = "declare it: `changelogs=(ba.Changelog(...),)` of a product"
        return _feed(name, self.changelogs, f"no product declares the changelog {name!a}", "", how)

    def migration(self, name: str) -> Migration:
        """Return a declared migration.

        Raises:
            InputRefused: if no product declares it.
        """
        if name in self.migrations:
            return self.migrations[name]
        raise InputRefused(
            Problem(
                f"no product declares the migration {name!a}",
                f"declared are {', '.join(sorted(self.migrations)) or 'none'}",
                "declare it: `migrations=(ba.Migration(...),)` of a product",
            )
        )

    def api(self, name: str) -> ApiFeed:
        """Return a declared feed from a server.

        Raises:
            InputRefused: if no product declares it.
        """
        return _feed(
            name,
            self.apis,
            f"no product declares the API feed {name!a}",
            "; the name of a table has a dot in it",
            "declare it: `apis=(FEED,)` of a product",
        )

    @cached_property
    def topics(self) -> dict[str, Topic]:
        """Every topic that is landed, of every product, by name."""
        return {topic.name: topic for product in self.declared for topic in product.topics}

    def topic(self, name: str) -> Topic:
        """Return a declared topic.

        Raises:
            InputRefused: if no product declares it.
        """
        if name in self.changelogs:
            raise InputRefused(is_a_changelog(name))
        what = f"no product declares the topic {name!a}"
        return _feed(name, self.topics, what, "", "declare it: `topics=(TOPIC,)` of a product")

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The modules that models and functions of the products are in."""
        return tuple(dict.fromkeys(name for product in self.declared for name in modules_of(product)))

    @cached_property
    def models(self) -> dict[str, type[pa.DataFrameModel]]:
        """The model of every table, by the table's name."""
        of_targets = {name: model for target in self.targets for name, model in target.models}
        return {table.name: table.model for table in self.inputs} | of_targets

    def target(self, name: str) -> TargetTable:
        """Return a declared target.

        Raises:
            InputRefused: if no product declares it.
        """
        return _named(name, self.targets, "target", self.declared)

    def find_target(self, name: str) -> TargetTable | None:
        """Return a declared target, or None where no product declares it."""
        return next((target for target in self.targets if target.name == name), None)

    def input(self, name: str) -> InputTable:
        """Return a declared input table.

        Raises:
            InputRefused: if no product declares it.
        """
        offered = [table for table in self.inputs if table.name == name or not table.quarantine_of]
        return _named(name, offered, "input table", self.declared)

    def feed(self, name: str) -> FileFeed:
        """Return a declared feed.

        Raises:
            InputRefused: if no product declares it.
        """
        return _feed(name, self.feeds, f"feed {name} is not declared", "", "declare it as a `FileFeed` of a product")

    def quarantine_of(self, table: InputTable) -> InputTable:
        """Return the quarantine of an input table; of a reference table, which has none, the table itself."""
        return next((one for one in self.inputs if one.quarantine_of == table.name), table)

    def of_table(self, name: str) -> Product | None:
        """Return the product that declares a table, or None where none does."""
        return next((product for product in self.declared if name in {one for one, _ in tables_of(product)}), None)

    def of_sink(self, name: str) -> Product | None:
        """Return the product that declares a sink, or None of the platform's own."""
        return next((product for product in self.declared if name in {one.name for one in product.sinks}), None)

    def group_of(self, table: str) -> str:
        """Return the group that the assets of a table are in: its product's name, as Dagster writes names of groups."""
        product = self.of_table(table)
        return "backfill" if product is None else re.sub(r"[^A-Za-z0-9_]", "_", product.name)


def is_a_changelog(name: str) -> Problem:
    """Return what is said where a changelog is named, and a topic is meant."""
    fix = f"give the folder with its files, and no options of topics: `backfill land {name} FOLDER`"
    return Problem(f"{name} is a changelog", "the changes of a database come as files", fix)


def _feed(name: str, declared: Mapping[str, _Feed], what: str, beside: str, how: str) -> _Feed:
    """Return a declared feed, or refuse a name that none has, with the one that was meant."""
    if name in declared:
        return declared[name]
    close = get_close_matches(name, declared, n=1)
    raise InputRefused(
        Problem(
            what,
            f"declared are {', '.join(sorted(declared)) or 'none'}{beside}",
            f"{f'did you mean {close[0]}? ' if close else ''}correct the name, or {how}",
        )
    )


def tables_of(product: Product) -> list[tuple[str, str]]:
    """Return the name of each table that `backfill init` makes for a product, and what it is for."""
    inputs = [(table.name, _purpose(table)) for table in with_quarantines(product.inputs)]
    targets = [(target.name, "target") for target in product.targets]
    corrections = [
        (target.corrections.name, f"corrections of {target.name}")
        for target in product.targets
        if target.corrections is not None
    ]
    return [*inputs, *targets, *corrections]


def _purpose(table: InputTable) -> str:
    if table.is_reference:
        return "reference"
    return f"quarantine of {table.quarantine_of}" if table.quarantine_of else "input"


def _named(name: str, tables_declared: Sequence[_Table], what: str, products: Sequence[Product]) -> _Table:
    tables = {table.name: table for table in tables_declared}
    if name not in tables:
        close = get_close_matches(name, tables, n=1)
        purpose = next((purpose for one in products for table, purpose in tables_of(one) if table == name), None)
        raise InputRefused(
            Problem(
                f"{what} {name} is not declared" + (f": it is declared as {purpose}" if purpose else ""),
                f"declared are {', '.join(sorted(tables)) or 'none: no product is served'}",
                f"{f'did you mean {close[0]}? ' if close else ''}correct the name, declare it in a product, or have its product served (setting `products`)",
            )
        )
    return tables[name]
