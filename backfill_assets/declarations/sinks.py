"""How a team declares a sink: `Sink`, and what an adapter of its own has to do, `SinkAdapter`.

Put here the vocabulary between a product, which knows what is to be told of its runs and by what, and the platform, which
decides who may tell and keeps the record. Nothing here opens a sink. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from typing import Protocol

from backfill_assets.declarations.arguments import said_at_once
from resources.sinks.declared import (
    PLATFORM_SINKS,
    SinkClass,
    SinkDeclaration,
    ToCache,
    ToEventLog,
    Told,
    ToTable,
    ToTopic,
    ToWebhook,
    tables_of,
)

__all__ = ["Sink", "SinkAdapter", "SinkClass", "ToCache", "ToEventLog", "ToTable", "ToTopic", "ToWebhook", "Told"]

PLATFORM_TABLES = frozenset({*tables_of(PLATFORM_SINKS.values()).values(), "audit.reconciliation_exceptions"})
"""Tables that are made beside those of products: of the platform's sinks, and of the rows on which gates disagree."""


@said_at_once
class Sink(SinkDeclaration):
    """Something besides its target that a run may tell of what it did, as its product declares it; see `SinkDeclaration`."""


class SinkAdapter(Protocol):
    """What the attribute that a sink names as `module:ATTRIBUTE` makes when it is called: the product's own adapter.

    The attribute has a `sink_class`, that of its sink, and is called with the settings that the declaration names, a mapping of
    texts. It is called, and its module imported, only after the policy has allowed the sink to the run: no process of a mode that
    may not use it holds what it needs. Whatever it raises is on record as why the sink was not told, without the values of its
    settings; the same command tells it again.
    """

    @property
    def sink_class(self) -> SinkClass:
        """What a write to it does to the world; an attribute of the class will do."""

    def send(self, told: Told) -> None:
        """Write one record, and return when the receiver has it; of the same run and action it has one, however often it is sent."""
