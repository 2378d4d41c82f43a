"""Who reads which table of a read model, and at which snapshot: what a consumer asks before it reads.

Put here the answer to that. Who goes over when is `steps`'. An answer is of one moment: the switch is read before the snapshots and
once more after them, and asked again where somebody has gone over meanwhile, so that no answer mixes two of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from backfill_assets.declarations.migrations import Migration
from backfill_assets.installation import Platform
from manifests.errors import DecisionRefused, EnvironmentRefused, InputRefused, Problem
from manifests.migration_steps import OVER, Readers, Side, Step
from resources.ledger.migration_steps import MigrationStep

_TRIES = 20


@dataclass(frozen=True)
class Part:
    """A table at a snapshot, and which slices of it are meant.

    `slices` are those that are read from here, or, with `but`, those that are not (rows without a value among them); None: all of it is. `columns` are the table's
    names of the columns, by the old ones.
    """

    side: Side
    table: str
    snapshot_id: int | None
    slice_column: str = ""
    slices: tuple[str, ...] | None = None
    but: bool = False
    columns: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Reading:
    """Where a consumer finds a read model: its parts, which together have every row once; `edition` grows with each change of it."""

    name: str
    edition: int
    step: Step | None
    parts: tuple[Part, ...]


def where_to_read(platform: Platform, name: str, *, consumer: str | None = None, slice_: str | None = None) -> Reading:
    """Return from which table a consumer reads a read model, or a slice of it, and at which snapshot.

    Raises:
        InputRefused: if no product declares the migration, its consumer or its slices.
        DecisionRefused: if the migration has another declaration than it was planned with.
        EnvironmentRefused: if the record of who reads which table was changed by hand.
    """
    migration = platform.products.migration(name)
    _require_known(migration, consumer, slice_)
    platform.ledger.migrations.require_explained()
    for _ in range(_TRIES):
        step = platform.ledger.migrations.newest(name)
        if step is not None:
            require_as_declared(migration, step)
        found = _answer(platform, migration, step, consumer, slice_)
        again = platform.ledger.migrations.newest(name)
        if (None if step is None else step.number) == (None if again is None else again.number):
            return found
    raise EnvironmentRefused(
        Problem(
            f"who reads which table of {name} has changed {_TRIES} times while it was asked",
            "an answer is of one moment",
            "ask again",
        )
    )


def require_as_declared(migration: Migration, step: MigrationStep) -> None:
    """Refuse to go on with another declaration than a migration was planned with, unless it is over.

    Raises:
        DecisionRefused: saying how it was planned.
    """
    if step.declaration_hash == migration.hash or step.step in OVER:
        return
    raise DecisionRefused(
        Problem(
            f"the declaration of migration {migration.name} is another one than it was planned with",
            "each of its steps, and who reads which table, is about the same tables, columns and tolerances",
            f"put the declaration back; or with the old one `backfill migration undo {migration.name}` until it is ABANDONED, "
            "and plan it anew",
        )
    )


def _answer(
    platform: Platform, migration: Migration, step: MigrationStep | None, consumer: str | None, slice_: str | None
) -> Reading:
    readers = Readers() if step is None else step.readers
    whole = slice_ is None and consumer not in readers.consumers
    others = {name: side for name, side in readers.slices.items() if side is not readers.everybody}
    parts: tuple[Part, ...]
    if not (whole and others):
        parts = (_part(platform, migration, step, readers.side(consumer, slice_)),)
    else:
        names = tuple(sorted(others))
        (side,) = set(others.values())
        parts = (
            _part(platform, migration, step, readers.everybody, names, but=True),
            _part(platform, migration, step, side, names),
        )
    return Reading(migration.name, 0 if step is None else step.number, None if step is None else step.step, parts)


def _part(
    platform: Platform,
    migration: Migration,
    step: MigrationStep | None,
    side: Side,
    slices: tuple[str, ...] | None = None,
    *,
    but: bool = False,
) -> Part:
    table = migration.table(side) if step is None else step.table_of(side)
    column = migration.slice_column if slices is not None else ""
    is_new = side is Side.NEW
    return Part(
        side,
        table,
        platform.lakehouse.snapshot_id(table),
        migration.columns.get(column, column) if is_new else column,
        slices,
        but,
        dict(migration.columns) if is_new and migration.columns else None,
    )


def _require_known(migration: Migration, consumer: str | None, slice_: str | None) -> None:
    problems = []
    if consumer is not None and consumer not in migration.consumers:
        problems.append(
            Problem(
                f"'{consumer}' is no consumer of {migration.name}",
                f"declared are {', '.join(migration.consumers) or 'none'}",
                "leave it out to read as everybody does, or declare it",
            )
        )
    if slice_ is not None and not migration.slice_column:
        problems.append(
            Problem(
                f"migration {migration.name} has no slices", "slices are values of its slice_column", "leave it out"
            )
        )
    if problems:
        raise InputRefused(problems)
