"""What the pieces of one installation are, opened together: settings, products, ledger, lakehouse, Spark, sinks, evidence.

Both the command and Dagster's resources hold a `Platform`; functions that do the work are given one. No logic here. The
pieces, and what the products declare, are imported when they are first asked for: PyIceberg, pandera and Polars take
seconds, and a command that only reads the ledger needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from manifests.model import Mode
from manifests.policy import Policy
from resources.evidence.store import EvidenceStore
from resources.ledger.facade import Ledger
from resources.ledger.policy_in_force import InForce
from resources.settings import Settings

if TYPE_CHECKING:
    from backfill_assets.declarations.product import Product
    from backfill_assets.declarations.products import Products
    from manifests.code_identity import CodeIdentity
    from resources.code.sources import Sources
    from resources.lakehouse.facade import Lakehouse
    from resources.sinks.adapters import Sinks
    from resources.spark.chunk_work import Workers
    from resources.spark.sessions import ModeSpark


CHUNK_GATE = "backfill_assets.worker.chunk_gate"


@dataclass(frozen=True)
class Platform:
    """The opened pieces; each opens its connections at first use."""

    settings: Settings
    ledger: Ledger
    evidence: EvidenceStore
    _spark: ModeSpark | None = field(default=None, repr=False)
    _products: Products | None = field(default=None, repr=False)

    @classmethod
    def of(cls, settings: Settings, products: Sequence[Product] | None = None) -> Platform:
        """Assemble the platform of an installation; opens nothing yet.

        Args:
            settings: where things live.
            products: the products that it serves; None for those that the settings name, or that are installed.

        Raises:
            DeclarationRefused: if what the products declare cannot be used.
        """
        handed_in = None
        if products is not None:
            from backfill_assets.declarations import finding  # noqa: PLC0415

            handed_in = finding.check_products(products)
        ledger = Ledger(settings.ledger_url)
        evidence = EvidenceStore.at(settings.evidence_place, settings.catalog)
        ledger.journal.chain = evidence.chain
        return cls(settings, ledger, evidence, _products=handed_in)

    @property
    def products(self) -> Products:
        """What the products declare.

        Raises:
            DeclarationRefused: if a product is not there, or a declaration cannot be used.
        """
        from backfill_assets.declarations import finding  # noqa: PLC0415

        return finding.find_products(self.settings.products) if self._products is None else self._products

    @cached_property
    def lakehouse(self) -> Lakehouse:
        """The Iceberg tables."""
        from resources.lakehouse.facade import Lakehouse  # noqa: PLC0415

        return Lakehouse(self.settings.catalog_name, self.settings.catalog, self.ledger.shared_clock)

    @cached_property
    def spark(self) -> ModeSpark:
        """Spark, a session an execution mode."""
        from resources.spark.sessions import ModeSpark  # noqa: PLC0415

        if self._spark is not None:
            return self._spark
        return ModeSpark(
            self.settings,
            self.worker_modules,
            self._sinks_of_others,
            lambda: self.lakehouse.catalog.properties,
            self.code_of_workers,
        )

    @cached_property
    def workers(self) -> Workers:
        """Who does what is done with each chunk on its own: Spark's Python workers."""
        from resources.spark.workers import SparkWorkers  # noqa: PLC0415

        return SparkWorkers(self.spark, lambda: self.lakehouse.access)

    @property
    def _sinks_of_others(self) -> frozenset[str]:
        """The sinks that a mode other than LIVE may use: what they need is no credential of LIVE's."""
        from resources.sinks.policy import judge_granted  # noqa: PLC0415

        allowed = (one for one in self.products.sinks.values() if judge_granted(one, Mode.BACKFILL).is_allowed)
        return frozenset(one.name for one in allowed)

    def code_of_workers(self) -> str:
        """Say which code Spark's Python workers are to be: this package's, and that of each product."""
        from backfill_assets.declarations.sources import sources_of  # noqa: PLC0415
        from resources.code.of_workers import text_of  # noqa: PLC0415

        return text_of(map(sources_of, self.products.declared))

    @property
    def worker_modules(self) -> tuple[str, ...]:
        """What Spark's Python workers have imported when they begin."""
        return (CHUNK_GATE, *self.products.modules)

    @cached_property
    def sinks(self) -> Sinks:
        """The sinks that a mode may reach."""
        from backfill_assets.declarations.finding import imported_adapter  # noqa: PLC0415
        from resources.sinks.adapters import Sinks  # noqa: PLC0415

        return Sinks(self.ledger, self.lakehouse, self.products.sinks, self.settings.home, imported_adapter)

    def with_spark(self, spark: ModeSpark) -> Platform:
        """Return the same installation, computing with other sessions."""
        other = replace(self, _spark=spark)
        opened = {name: piece for name in ("lakehouse", "sinks") if (piece := self.__dict__.get(name)) is not None}
        other.__dict__.update(opened)
        return other

    def sources_of(self, target: str) -> Sources | None:
        """Return the code of the product that declares a target; None where no product does."""
        from backfill_assets.declarations.sources import sources_of  # noqa: PLC0415

        product = self.products.of_table(target)
        return None if product is None else sources_of(product)

    def code_of(self, target: str, *, loaded_only: bool = False) -> CodeIdentity:
        """Return which code computes a target here: this package, and the product that declares it.

        Raises:
            EnvironmentRefused: if Python would execute something else than the sources; with `loaded_only`, of what this
                process has imported so far.
        """
        from resources.code.identity import code_identity  # noqa: PLC0415

        return code_identity(self.sources_of(target), loaded_only=loaded_only)

    @property
    def policy(self) -> Policy:
        """The policy in force, looked up anew each time: one that is adopted counts at once."""
        return self.policy_in_force.policy

    @property
    def policy_in_force(self) -> InForce:
        """The policy in force, with the decision that has put it there."""
        return self.ledger.policies.in_force(self.settings.home)


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
        platform.ledger.close()
