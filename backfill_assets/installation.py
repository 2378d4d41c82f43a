"""What the pieces of one installation are, opened together: settings, ledger, lakehouse, Spark, sinks, evidence.

Both the command and Dagster's resources hold a `Platform`; functions that do the work are given one. No logic here. The
pieces, and what the products declare, are imported when they are first asked for: PyIceberg, pandera and Polars take
seconds, and a command that only reads the ledger needs none of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from manifests.errors import InputRefused, Problem
from manifests.policy import Policy
from resources.evidence.store import EvidenceStore
from resources.ledger.facade import Ledger
from resources.ledger.policy_in_force import InForce, in_force
from resources.settings import Settings

if TYPE_CHECKING:
    from backfill_assets.declarations.target import InputTable, Product, TargetTable
    from resources.lakehouse.facade import Lakehouse
    from resources.sinks import Sinks
    from resources.spark.sessions import ModeSpark

    PRODUCTS: Sequence[Product]

WORKER_MODULES = ("backfill_assets.worker.chunk_gate", "backfill_assets.products.registry")
"""What Spark's Python workers have imported when they begin."""
_Table = TypeVar("_Table", "InputTable", "TargetTable")


def __getattr__(name: str) -> Any:
    """Return what this code location serves, `PRODUCTS`, found when it is first asked for.

    Raises:
        DeclarationRefused: if a declaration cannot be used.
    """
    if name != "PRODUCTS":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from backfill_assets.declarations import checking  # noqa: PLC0415

    found = globals()["PRODUCTS"] = checking.products()
    return found


@dataclass(frozen=True)
class Platform:
    """The opened pieces; each opens its connections at first use."""

    settings: Settings
    ledger: Ledger
    evidence: EvidenceStore
    _spark: ModeSpark | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Platform:
        """Assemble the platform of an installation; opens nothing yet."""
        ledger = Ledger(settings.ledger_url)
        evidence = EvidenceStore(settings.evidence_folder)
        ledger.journal.chain = evidence.chain
        return cls(settings, ledger, evidence)

    @cached_property
    def lakehouse(self) -> Lakehouse:
        """The Iceberg tables."""
        from resources.lakehouse.facade import Lakehouse  # noqa: PLC0415

        return Lakehouse(self.settings.catalog_name, self.settings.catalog)

    @cached_property
    def spark(self) -> ModeSpark:
        """Spark, a session an execution mode."""
        from resources.spark.sessions import ModeSpark  # noqa: PLC0415

        return self._spark or ModeSpark(self.settings, WORKER_MODULES)

    @cached_property
    def sinks(self) -> Sinks:
        """The sinks that a mode may reach."""
        from resources.sinks import Sinks  # noqa: PLC0415

        return Sinks(self.ledger, self.lakehouse)

    def with_spark(self, spark: ModeSpark) -> Platform:
        """Return the same installation, computing with other sessions."""
        return replace(self, _spark=spark)

    @property
    def policy(self) -> Policy:
        """The policy in force, looked up anew each time: one that is adopted counts at once."""
        return self.policy_in_force.policy

    @property
    def policy_in_force(self) -> InForce:
        """The policy in force, with the decision that has put it there."""
        return in_force(self.ledger.engine, self.settings.home)


@contextmanager
def open_platform(settings: Settings) -> Iterator[Platform]:
    """Yield the platform of an initialised installation and close its ledger.

    Raises:
        EnvironmentRefused: if the ledger's schema is not this code's.
    """
    platform = Platform.of(settings)
    try:
        platform.ledger.require_current()
        yield platform
    finally:
        platform.ledger.engine.dispose()


def group_of(table: str) -> str:
    """Return the group that the assets of a table are in: its product's name, as Dagster writes names of groups."""
    from backfill_assets.declarations.quarantine import with_quarantines  # noqa: PLC0415

    names = [
        product.name
        for product in declared_products()
        if table in {*(one.name for one in with_quarantines(product.inputs)), *(one.name for one in product.targets)}
    ]
    return re.sub(r"[^A-Za-z0-9_]", "_", names[0]) if names else "backfill"


def declared_products() -> Sequence[Product]:
    """Return the products that this process serves."""
    found: Sequence[Product] = sys.modules[__name__].PRODUCTS
    return found


def declared_targets() -> list[TargetTable]:
    """Return every target of every product."""
    return [target for product in declared_products() for target in product.targets]


def target_named(name: str) -> TargetTable:
    """Return a declared target.

    Raises:
        InputRefused: if no product declares it.
    """
    return _named(name, declared_targets(), "target")


def input_tables() -> list[InputTable]:
    """Return every input table of every product, and the quarantine of each that has none declared."""
    from backfill_assets.declarations.quarantine import with_quarantines  # noqa: PLC0415

    return [table for product in declared_products() for table in with_quarantines(product.inputs)]


def input_named(name: str) -> InputTable:
    """Return a declared input table.

    Raises:
        InputRefused: if no product declares it.
    """
    return _named(name, input_tables(), "input table")


def tables_of(product: Product) -> list[tuple[str, str]]:
    """Return the name of each table that `backfill init` makes for a product, and what it is for."""
    from backfill_assets.declarations.quarantine import with_quarantines  # noqa: PLC0415

    inputs = [
        (
            table.name,
            "reference"
            if table.is_reference
            else f"quarantine of {table.quarantine_of}"
            if table.quarantine_of
            else "input",
        )
        for table in with_quarantines(product.inputs)
    ]
    targets = [(target.name, "target") for target in product.targets]
    corrections = [
        (target.corrections.name, f"corrections of {target.name}")
        for target in product.targets
        if target.corrections is not None
    ]
    return [*inputs, *targets, *corrections]


def _named(name: str, tables_declared: Sequence[_Table], what: str) -> _Table:
    tables = {table.name: table for table in tables_declared}
    if name not in tables:
        close = get_close_matches(name, tables, n=1)
        raise InputRefused(
            Problem(
                f"{what} {name} is not declared",
                f"declared are {', '.join(sorted(tables))}",
                f"{f'did you mean {close[0]}? ' if close else ''}correct the name, or declare it in a product",
            )
        )
    return tables[name]
