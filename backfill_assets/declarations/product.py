"""How a team declares a product: its input tables, and everything that one domain declares together.

Put here what a product writes down that is no target: that is `target`'s. Nothing here imports Dagster or opens anything.
Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pandera.polars as pa

from backfill_assets.declarations.apis import ApiFeed
from backfill_assets.declarations.arguments import said_at_once
from backfill_assets.declarations.changelogs import Changelog
from backfill_assets.declarations.feeds import FileFeed
from backfill_assets.declarations.logs import LogPlace
from backfill_assets.declarations.migrations import Migration
from backfill_assets.declarations.revisions import Revisions
from backfill_assets.declarations.sinks import Sink
from backfill_assets.declarations.target import TargetTable
from backfill_assets.declarations.topics import Topic


@said_at_once
@dataclass(frozen=True)
class InputTable:
    """A table that a product reads: raw or reference data, loaded rather than computed.

    `partition_by` names a timestamptz column whose month the table is partitioned by, or is None. `quarantine_of` names
    the table whose loads put the rows here that no rule can classify, and is empty for every other table. `revisions` say which
    rows supersede which, of a table that keeps every version of what was said about a day; None of any other.

    `quarantine_limits` are the shares of a load (0 to 1) that may break a rule, by rule, beside the setting quarantine_limit for all
    of them together; a case of its quarantine that waits for longer than `quarantine_age_days` is named by the doctor; None: never.

    `log` says by which columns the rows have their places in a log, of a table that records of one are landed in; None of any other.
    """

    name: str
    description: str
    model: type[pa.DataFrameModel]
    owners: tuple[str, ...]
    partition_by: str | None = None
    is_reference: bool = False
    quarantine_of: str = ""
    revisions: Revisions | None = None
    quarantine_limits: Mapping[str, float] = field(default_factory=dict)
    quarantine_age_days: int | None = None
    log: LogPlace | None = None


@said_at_once
@dataclass(frozen=True)
class Product:
    """Everything one domain declares.

    `references` names, as `module:function`, what yields the shipped reference tables: name, Arrow rows, version. It is
    called when an installation is initialised, and imported only then: Spark's workers import products, too.

    `loaders` names, as `module:ATTRIBUTE`, the `Loader` behind each command `backfill load NAME`; it is imported for that
    command only.

    `code` names the packages and modules whose files compute the product's tables, where it is not the whole top-level
    package of each model and function: a plan names their content, and a change of it voids the plan.

    `sinks` are what runs may tell of what they did, if their manifests grant them; `feeds` files that are published
    again, `apis` the servers, `topics` the topics of Kafka and `changelogs` the databases that history comes from; `migrations` are read
    models that move from one target to another.
    """

    name: str
    inputs: tuple[InputTable, ...]
    targets: tuple[TargetTable, ...]
    references: str | None = None
    loaders: Mapping[str, str] = field(default_factory=dict)
    code: tuple[str, ...] = ()
    sinks: tuple[Sink, ...] = ()
    feeds: tuple[FileFeed, ...] = ()
    apis: tuple[ApiFeed, ...] = ()
    migrations: tuple[Migration, ...] = ()
    topics: tuple[Topic, ...] = ()
    changelogs: tuple[Changelog, ...] = ()
