"""The columns of every declared table, held against the models: what differs, and what `backfill init` makes of it.

Put here which tables are looked at, what is refused for all of them at once, and the order of things of one change: it is put
on record, committed as metadata, and put on record as done. What a change is, and whether it is one, is
`resources.lakehouse.column_changes`'; what its records prove later, `evidence.column_records`'.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pandera.polars as pa
from pyiceberg.exceptions import CommitFailedException

from backfill_assets import faults
from backfill_assets.declarations.column_history import former_names, may_be_null
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.evidence.column_records import record_done, record_listed
from backfill_assets.installation import Platform
from backfill_assets.publication.leasing import columns_lease
from manifests.errors import EnvironmentRefused, Problem
from resources import logs
from resources.lakehouse.column_changes import ColumnChange, DeclaredColumns, apply_changes, column_changes
from resources.lakehouse.fences import require_unfenced
from resources.ledger.facade import operator

_log = logging.getLogger(__name__)
_TRIES = 5
"""How often a change is compared and committed anew because somebody else has changed the schema meanwhile."""


@dataclass(frozen=True)
class TableDifference:
    """What differs between a table and its model: nothing but `is_new` where it is still to be made."""

    table: str
    schema_id: int | None
    changes: tuple[ColumnChange, ...] = ()

    @property
    def is_new(self) -> bool:
        """Whether there is no such table yet."""
        return self.schema_id is None

    @property
    def problems(self) -> list[Problem]:
        """Why it cannot become what the model says."""
        return [one.problem for one in self.changes if one.problem is not None]

    def shown(self) -> dict[str, Any]:
        """Return it for a script."""
        return {
            "table": self.table,
            "schemaId": self.schema_id,
            "isNew": self.is_new,
            "changes": [
                {
                    "change": one.change.value,
                    "column": one.column,
                    "was": one.was,
                    "becomes": one.becomes,
                    "readers": one.readers,
                    "applied": one.problem is None,
                    "rule": one.problem.rule if one.problem else "",
                    "wayOut": one.problem.fix if one.problem else "",
                }
                for one in self.changes
            ],
        }


def declared_columns(platform: Platform, name: str, model: type[pa.DataFrameModel]) -> DeclaredColumns:
    """Return what a model says of the columns of a table."""
    return DeclaredColumns(iceberg_schema(model), may_be_null(model), former_names(model), _found_by(platform, name))


def _found_by(platform: Platform, name: str) -> frozenset[str]:
    """Return the columns by which the platform finds rows of a table."""
    found: set[str | None] = {one.partition_by for one in platform.products.inputs if one.name == name}
    for target in platform.products.targets:
        if any(name == one for one, _ in target.models):
            found |= {*target.key, target.day_column, target.entity, target.version_column}
            found |= {None if target.chunk_values is None else target.chunk_values.column}
        if name == target.source:
            found |= {target.entity, None if target.starts_from is None else target.starts_from.source_day}
        found.add(target.every_source.get(name))
    return frozenset(one for one in found if one is not None)


def declared_models(platform: Platform) -> dict[str, type[pa.DataFrameModel]]:
    """Return the model of each table that the products declare: inputs first, then targets with their corrections."""
    inputs = {table.name: table.model for table in platform.products.inputs}
    return inputs | {name: model for target in platform.products.targets for name, model in target.models}


def differences(platform: Platform) -> list[TableDifference]:
    """Compare every declared table with its model; nothing is written.

    Raises:
        EnvironmentRefused: if the catalog cannot be read.
    """
    has_home = platform.settings.home.is_dir()
    found = []
    for name, model in declared_models(platform).items():
        if not (has_home and platform.lakehouse.exists(name)):
            found.append(TableDifference(name, None))
            continue
        table = platform.lakehouse.table(name)
        changes = column_changes(table, declared_columns(platform, name, model))
        found.append(TableDifference(name, table.schema().schema_id, tuple(changes)))
    return found


def evolve(platform: Platform) -> dict[str, tuple[ColumnChange, ...]]:
    """Bring the columns of every table that exists to what its model says, by metadata alone; return what was changed.

    All is refused before anything is changed. Each table is changed by one commit: safe to kill and to repeat.

    Raises:
        EnvironmentRefused: naming every change that would break a reader, with the way out.
        LeaseHeld: if somebody is publishing to a target that is to be changed, or takes a publication back.
    """
    found = [one for one in differences(platform) if one.changes]
    if problems := [problem for one in found for problem in one.problems]:
        raise EnvironmentRefused(problems)
    models, done = declared_models(platform), {}
    tokens: dict[str, int] = {}
    with ExitStack() as held:
        for target in _targets_of(platform, [one.table for one in found]):
            lease = held.enter_context(columns_lease(platform, target))
            tokens |= {name: lease.token for name, _ in platform.products.target(target).models}
        for one in found:
            done[one.table] = _changed(platform, one.table, models[one.table], tokens.get(one.table))
    return {name: changes for name, changes in done.items() if changes}


def _contended(name: str, error: Exception) -> Problem:
    return Problem(
        f"the columns of {name} could not be changed in {_TRIES} tries: {error}",
        "a change of columns lands if no other commit to the table happens at the same moment",
        "nothing has changed; run the same command again when fewer others write",
    )


def _targets_of(platform: Platform, tables: Sequence[str]) -> list[str]:
    """Return the targets to which some of these tables belong, in an order that every process takes them in."""
    return sorted(
        target.name for target in platform.products.targets if any(name in tables for name, _ in target.models)
    )


def _changed(
    platform: Platform, name: str, model: type[pa.DataFrameModel], token: int | None
) -> tuple[ColumnChange, ...]:
    """Change the columns of one table, unless another process has done so; return what was changed.

    Raises:
        LeaseLost: if this process was paused for so long that somebody else has taken the table over; nothing has changed then.
    """
    declared = declared_columns(platform, name, model)
    for attempt in range(1, _TRIES + 1):
        table = platform.lakehouse.table(name)
        changes = column_changes(table, declared)
        if problems := [one.problem for one in changes if one.problem is not None]:
            raise EnvironmentRefused(problems)
        if not changes:
            return ()
        before = table.schema()
        record = record_listed(platform, table, changes, by=operator(), at=platform.ledger.now())
        faults.reach("evolving.listed")
        require_unfenced(platform.lakehouse.table(name), token)
        try:
            after = apply_changes(table, declared, token)
        except CommitFailedException as error:
            if attempt == _TRIES:
                raise EnvironmentRefused(_contended(name, error)) from error
            continue
        faults.reach("evolving.committed")
        record_done(platform, record, table)
        with logs.bound(target=name):
            text = f"{len(changes)} column change(s), schema {before.schema_id} to {after}"
            words = [f"{one.change.value} {one.column}".strip() for one in changes]
            logs.event(_log, logging.INFO, "columns_changed", text, changes=words, schema_id=after)
        return tuple(changes)
    raise AssertionError("unreachable")
