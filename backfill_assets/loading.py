"""Initialising an installation and loading its inputs; every step is safe to repeat after a crash."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import sqlalchemy as sa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, MonthTransform, Transform

from backfill_assets import faults
from backfill_assets.garbage import GC
from backfill_assets.gates import named
from backfill_assets.platform import Platform, input_tables
from backfill_assets.products.enforcement import loading as enforcement
from backfill_assets.products.registry import PRODUCTS
from backfill_assets.quarantine import WITHHELD, Rejections
from backfill_assets.schema import TABLE_PROPERTIES, iceberg_schema
from manifests.chunks import Chunking
from manifests.errors import EnvironmentRefused, InputRefused, Problem
from resources import policy_in_force
from resources.ledger import now, operator
from resources.loads import (
    ACTOR_PROPERTY,
    DATA_VERSION_PROPERTY,
    FILE_PROPERTY,
    LOAD_PROPERTY,
    REJECTED_PROPERTY,
    load_to_make,
)

_FIRST_PARTITION_FIELD = 1000


@dataclass(frozen=True)
class Loaded:
    """What a load brought; `new` is False if the very same content was loaded before."""

    new: bool
    counted: enforcement.Counted
    snapshot_id: int | None


def initialise(platform: Platform) -> dict[str, str]:
    """Create home, ledger and tables, and load the shipped reference data; return what each table holds.

    Raises:
        EnvironmentRefused: if something is in the way.
    """
    try:
        platform.settings.home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentRefused(
            Problem(
                f"the home folder {platform.settings.home} cannot be made: {error.strerror}",
                "home is a folder this user can write",
                "set BACKFILL_HOME to one",
            )
        ) from error
    platform.lakehouse.create_catalog()
    make_ledger(platform)
    for table in input_tables():
        column = table.partition_by
        schema = iceberg_schema(table.model)
        platform.lakehouse.ensure(table.name, schema, _spec(schema, column, Chunking.MONTH), TABLE_PROPERTIES)
    for product in PRODUCTS:
        for target in product.targets:
            schema = iceberg_schema(target.model)
            spec = _spec(schema, target.day_column, target.chunking)
            platform.lakehouse.ensure(target.name, schema, spec, TABLE_PROPERTIES)
            if target.corrections is not None:
                schema = iceberg_schema(target.corrections.model)
                spec = _spec(schema, target.day_column, target.chunking)
                platform.lakehouse.ensure(target.corrections.name, schema, spec, TABLE_PROPERTIES)
    held = {}
    shipped = [product.references for product in PRODUCTS if product.references is not None]
    for name, rows, version in chain.from_iterable(named(reference)() for reference in shipped):
        properties = {LOAD_PROPERTY: f"{name}:{version}", DATA_VERSION_PROPERTY: version}
        platform.lakehouse.overwrite_rows(name, rows, properties)
        held[name] = version
    return held


def make_ledger(platform: Platform) -> None:
    """Create or upgrade the ledger, vouch for what an earlier version has left, and put the first policy in force.

    All of it or nothing is on record afterwards: the links, which no transaction holds, come before its end.
    """

    def complete(connection: sa.Connection, had: str | None) -> None:
        adopted = platform.ledger.journal.adopted
        if adopted:
            platform.evidence.adopt([*adopted, GC])
        faults.reach("upgrading.adopted")
        policy_in_force.install(connection, platform.settings, upgraded=had is not None, by=operator(), at=now())

    platform.ledger.migrate(complete)
    faults.reach("upgrading.migrated")


def load_case_events(platform: Platform, load: enforcement.RawLoad, limit: float) -> Loaded:
    """Load raw events: classify all of them, refuse a load of too many unknowns, then append what is known.

    Args:
        platform: the opened installation.
        load: what to load.
        limit: share of the rows that may be quarantined, 0 to 1.

    Raises:
        InputRefused: if the load is damaged or too much of it cannot be classified; nothing is written then.
    """
    at = now().replace(microsecond=0)
    counted = enforcement.count(load, at)
    withheld = platform.policy.protects(enforcement.EVENTS)
    if withheld:
        first = {reason: replace(one, detail=WITHHELD) for reason, one in counted.first.items()}
        counted = replace(counted, first=first)
    total = counted.events + counted.quarantined
    share = counted.quarantined / total if total else 0.0
    if share > limit:
        reasons = Rejections(Counter(counted.by_reason), counted.first).in_words(withheld=withheld)
        raise InputRefused(
            Problem(
                f"{load.source_file}: {counted.quarantined:,} of {total:,} rows ({share:.1%}) cannot be classified ({reasons})",
                f"at most {limit:.1%} of a load may be quarantined (setting quarantine_limit)",
                "correct the file, or raise the limit if the rows are rightly unusable",
            )
        )
    # quarantine first: if this stops between the two, the repetition appends what is missing, and nothing twice
    to_make = load_to_make(platform.lakehouse.loads(enforcement.EVENTS), load.load_id)
    load_id = to_make.load_id if to_make.before is None else to_make.before.load_id
    properties: dict[str, Any] = {
        LOAD_PROPERTY: load_id,
        FILE_PROPERTY: load.source_file,
        ACTOR_PROPERTY: operator(),
        REJECTED_PROPERTY: str(counted.quarantined),
    }
    if counted.quarantined:
        platform.lakehouse.append(enforcement.QUARANTINE, enforcement.quarantine_tables(load, at), properties)
    commit = platform.lakehouse.append(enforcement.EVENTS, enforcement.event_tables(load, at), properties)
    snapshot = commit.snapshot_id if commit else platform.lakehouse.snapshot_id(enforcement.EVENTS)
    return Loaded(commit is not None, counted, snapshot)


def _spec(schema: Schema, column: str | None, chunking: Chunking) -> PartitionSpec:
    if column is None:
        return UNPARTITIONED_PARTITION_SPEC
    transform: Transform[Any, int] = MonthTransform() if chunking is Chunking.MONTH else DayTransform()
    source = schema.find_field(column).field_id
    return PartitionSpec(
        PartitionField(source, _FIRST_PARTITION_FIELD, transform, f"{column}_{chunking.value.lower()}")
    )
