"""The products that one installation serves: every table by its name, and the product and group that it belongs to.

Put here questions about what is declared. How products are found is `declarations.finding`'s, whether what they declare
can be used `declarations.checking`'s, and what is in a table the lakehouse's. Nothing here opens anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from backfill_assets.declarations.quarantine import with_quarantines
from backfill_assets.declarations.sources import modules_of
from backfill_assets.declarations.target import InputTable, Product, TargetTable
from manifests.errors import InputRefused, Problem
from resources.sinks.declared import PLATFORM_SINKS, SinkDeclaration

if TYPE_CHECKING:
    import pandera.polars as pa

_Table = TypeVar("_Table", InputTable, TargetTable)


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
