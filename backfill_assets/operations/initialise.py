"""Making an installation, or bringing it up to date: home, ledger, tables, reference data. Safe to repeat after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    DayTransform,
    HourTransform,
    MonthTransform,
    Transform,
    YearTransform,
    parse_transform,
)

from backfill_assets import faults
from backfill_assets.declarations.schema import TABLE_PROPERTIES, iceberg_schema
from backfill_assets.evidence.events import GC
from backfill_assets.installation import Platform
from backfill_assets.operations.columns import evolve
from backfill_assets.operations.garbage import runs_over
from backfill_assets.operations.released_pins import needed_pins
from backfill_assets.operations.shipped_references import shipped_references
from backfill_assets.planning.pinned_snapshots import keep
from manifests.chunks import Chunking
from manifests.division import Division
from manifests.errors import EnvironmentRefused, Problem
from resources.evidence.probing import require_fit, require_one_chain
from resources.lakehouse.column_changes import ColumnChange
from resources.lakehouse.loads import (
    DATA_VERSION_PROPERTY,
    LOAD_PROPERTY,
)
from resources.ledger import policy_in_force
from resources.ledger.cells import IllegibleRow
from resources.ledger.facade import operator

_FIRST_PARTITION_FIELD = 1000
_TRANSFORMS: dict[Chunking, Transform[Any, int]] = {
    Chunking.YEAR: YearTransform(),
    Chunking.MONTH: MonthTransform(),
    Chunking.WEEK: DayTransform(),  # Iceberg has none of weeks
    Chunking.DAY: DayTransform(),
    Chunking.HOUR: HourTransform(),
}


@dataclass(frozen=True)
class Initialised:
    """What an installation has now: the version that each reference table holds, and which columns were changed."""

    references: Mapping[str, str]
    columns: Mapping[str, Sequence[ColumnChange]]


def initialise(platform: Platform) -> Initialised:
    """Create home, ledger and tables, bring columns to what models say, and load the shipped reference data.

    Raises:
        EnvironmentRefused: if something is in the way; also every change of a column that would break a reader.
        StoreRefused: if the bucket of the evidence cannot be asked.
        LeaseHeld: if somebody publishes to a target whose columns are to be changed.
        DeclarationRefused: if the reference data that a product ships cannot be had, or is not as declared; nothing is made then.
    """
    shipped = shipped_references(platform)
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
    require_fit(platform.evidence, platform.settings.evidence_folder)
    platform.lakehouse.create_catalog()
    make_ledger(platform)
    require_one_chain(platform.evidence)
    columns = evolve(platform)
    for table in platform.products.inputs:
        column = table.partition_by
        schema = iceberg_schema(table.model)
        spec = _spec(schema, column, Chunking.MONTH)
        platform.lakehouse.ensure(table.name, schema, spec, TABLE_PROPERTIES, any_partitions=True)
    for target in platform.products.targets:
        for name, model in target.models:
            schema = iceberg_schema(model)
            spec = _spec(schema, target.day_column, target.chunking, target.chunk_values)
            platform.lakehouse.ensure(name, schema, spec, TABLE_PROPERTIES, any_partitions=True)
    _tag_what_runs_read(platform)
    held = {}
    for name, rows, version in shipped:
        properties = {LOAD_PROPERTY: f"{name}:{version}", DATA_VERSION_PROPERTY: version}
        platform.lakehouse.overwrite_rows(name, rows, properties)
        held[name] = version
    return Initialised(held, columns)


def _tag_what_runs_read(platform: Platform) -> None:
    """Tag what runs of an earlier version have read; of a ledger with cells that cannot be read the doctor says what is wrong."""
    with suppress(IllegibleRow):
        records = platform.ledger.runs()
        keep(platform, needed_pins(platform, records, runs_over(platform, records, platform.ledger.now())))


def make_ledger(platform: Platform) -> None:
    """Create or upgrade the ledger, vouch for what an earlier version has left, and put the first policy in force.

    All of it or nothing is on record afterwards: the links, which no transaction holds, come before its end.
    """

    def complete(connection: sa.Connection, had: str | None) -> None:
        adopted = platform.ledger.journal.adopted
        if adopted:
            platform.evidence.adopt([*adopted, GC])
        faults.reach("upgrading.adopted")
        policy_in_force.install(
            connection, platform.settings, upgraded=had is not None, by=operator(), at=platform.ledger.now()
        )

    platform.ledger.migrate(complete)
    faults.reach("upgrading.migrated")


def _spec(schema: Schema, column: str | None, chunking: Chunking, division: Division | None = None) -> PartitionSpec:
    by_time: list[PartitionField] = []
    if column:
        transform = _TRANSFORMS[chunking]
        source = schema.find_field(column).field_id
        by_time.append(PartitionField(source, _FIRST_PARTITION_FIELD, transform, f"{column}_{transform}"))
    if division is None or division.bounds:  # of a range the ends of a file's column say that it lies in it
        return PartitionSpec(*by_time) if by_time else UNPARTITIONED_PARTITION_SPEC
    # an identity has the column's own name, as Iceberg's libraries give it
    name = division.column if division.has_values else f"{division.column}_bucket"
    divided = schema.find_field(division.column).field_id
    number = _FIRST_PARTITION_FIELD + len(by_time)
    return PartitionSpec(*by_time, PartitionField(divided, number, parse_transform(division.transform), name))
