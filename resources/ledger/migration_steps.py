"""Migrations of read models: which steps were taken, who reads which table since, and what dual reads have found.

Put here what the ledger keeps of them. The newest step of a migration says all of where it stands: it is added in one
transaction, under the leases of both tables where readers go over. Nothing is changed or removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

import sqlalchemy as sa

from manifests.canonical import canonical_json_of_plain
from manifests.errors import DecisionRefused, Problem
from manifests.migration_steps import CutOver, Readers, Side, Step, live_at
from resources import actors
from resources.ledger import instants
from resources.ledger.cells import parsed
from resources.ledger.explained import require_explained
from resources.ledger.locks import require_lease
from resources.ledger.part import Part, Stored
from resources.ledger.policy_in_force import require_still
from resources.ledger.tables import dual_reads, migration_steps

PLAN, ADVANCE, UNDO, SWITCH = "PLAN", "ADVANCE", "UNDO", "SWITCH"
"""What somebody did: began, went a step on, went one back, or let some readers go over or back."""


@dataclass(frozen=True)
class MigrationStep(Stored):
    """One step of a migration, as it is on record; the newest counts."""

    table: ClassVar[sa.Table] = migration_steps

    id: int
    migration: str
    number: int
    action: str
    step: Step
    old_table: str
    new_table: str
    cut_over: CutOver
    declaration_hash: str
    readers: Readers
    findings: Mapping[str, Any]
    decided_by: str
    reason: str
    channel: str
    proof: str
    at: datetime

    @classmethod
    def of(cls, row: sa.Row[Any]) -> MigrationStep:
        """Return what a row of the table says."""
        cells = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name
        readers = parsed(migration_steps.c.readers, cells["readers"], dict)
        findings = parsed(migration_steps.c.findings, cells["findings"], dict)
        said = {"step": Step(cells["step"]), "cut_over": CutOver(cells["cut_over"])}
        return cls(**cells | said | {"readers": Readers.of(readers), "findings": findings})

    def table_of(self, side: Side) -> str:
        """Return the target on one side."""
        return self.old_table if side is Side.OLD else self.new_table

    def side_of(self, table: str) -> Side:
        """Return on which side one of the two targets is."""
        return Side.OLD if table == self.old_table else Side.NEW

    @property
    def live(self) -> frozenset[Side]:
        """The tables that LIVE may write."""
        return live_at(self.cut_over, self.step)


@dataclass(frozen=True)
class DualRead(Stored):
    """One comparison of the two tables at a snapshot of each; `number` is that of the step it was made at."""

    table: ClassVar[sa.Table] = dual_reads

    id: int
    migration: str
    number: int
    old_snapshot_id: int
    new_snapshot_id: int
    compared: int
    disagreeing: int
    found: Mapping[str, Any]
    made_by: str
    at: datetime

    @classmethod
    def of(cls, row: sa.Row[Any]) -> DualRead:
        """Return what a row of the table says."""
        cells = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name
        return cls(**cells | {"found": parsed(dual_reads.c.found, cells["found"], dict)})

    @property
    def share(self) -> float:
        """The share of compared keys that disagree."""
        return self.disagreeing / self.compared if self.compared else 0.0


class MigrationSteps(Part):
    """The migrations of read models in a ledger."""

    def newest(self, migration: str) -> MigrationStep | None:
        """Return where a migration stands; None of one that nobody has planned.

        Raises:
            IllegibleRow: if a cell does not say what this project writes there.
        """
        mine = sa.select(migration_steps).where(migration_steps.c.migration == migration)
        found = self._stored(MigrationStep, mine.order_by(migration_steps.c.number.desc()).limit(1))
        return found[0] if found else None

    def steps(self, migration: str) -> list[MigrationStep]:
        """Return every step of a migration, oldest first."""
        mine = sa.select(migration_steps).where(migration_steps.c.migration == migration)
        return self._stored(MigrationStep, mine.order_by(migration_steps.c.number))

    def of_table(self, table: str) -> list[MigrationStep]:
        """Return where each migration stands whose newest step names a target."""
        newest = sa.select(sa.func.max(migration_steps.c.id)).group_by(migration_steps.c.migration)
        query = sa.select(migration_steps).where(
            migration_steps.c.id.in_(newest),
            sa.or_(migration_steps.c.old_table == table, migration_steps.c.new_table == table),
        )
        return self._stored(MigrationStep, query.order_by(migration_steps.c.id))

    def all(self) -> list[MigrationStep]:
        """Return where each migration stands, by name."""
        newest = sa.select(sa.func.max(migration_steps.c.id)).group_by(migration_steps.c.migration)
        query = sa.select(migration_steps).where(migration_steps.c.id.in_(newest))
        return self._stored(MigrationStep, query.order_by(migration_steps.c.migration))

    def take(
        self,
        migration: str,
        action: str,
        step: Step,
        *,
        known: int,
        tables: tuple[str, str],
        cut_over: CutOver,
        declaration_hash: str,
        readers: Readers,
        findings: Mapping[str, Any],
        by: str,
        reason: str,
        policy_hash: str,
        leases: Sequence[int] = (),
    ) -> MigrationStep:
        """Record a step; `known` is the number of the newest that was looked at, 0 for none.

        Raises:
            DecisionRefused: if somebody has taken a step since, or another policy is in force; nothing is on record then.
            LeaseLost: if one of the leases under which it is taken was lost.
        """
        try:
            with self.engine.begin() as connection:
                require_still(connection, policy_hash)
                for token in leases:
                    require_lease(connection, token)
                newest = sa.select(sa.func.max(migration_steps.c.number)).where(
                    migration_steps.c.migration == migration
                )
                if (connection.execute(newest).scalar() or 0) != known:
                    raise _overtaken(migration)
                connection.execute(
                    migration_steps.insert().values(
                        migration=migration,
                        number=known + 1,
                        action=action,
                        step=step.value,
                        old_table=tables[0],
                        new_table=tables[1],
                        cut_over=cut_over.value,
                        declaration_hash=declaration_hash,
                        readers=canonical_json_of_plain(readers.as_record()),
                        findings=canonical_json_of_plain(dict(findings)),
                        decided_by=by,
                        reason=reason,
                        at=instants.now(connection),
                        **actors.columns(by),
                    )
                )
        except sa.exc.IntegrityError as error:  # two at once, on a server
            raise _overtaken(migration) from error
        found = self.newest(migration)
        assert found is not None
        return found

    def record_reading(
        self,
        migration: str,
        number: int,
        *,
        snapshots: tuple[int, int],
        compared: int,
        disagreeing: int,
        found: Mapping[str, Any],
        by: str,
    ) -> DualRead:
        """Record what a dual read has found; return it as it is on record."""
        with self.engine.begin() as connection:
            made = connection.execute(
                dual_reads.insert().values(
                    migration=migration,
                    number=number,
                    old_snapshot_id=snapshots[0],
                    new_snapshot_id=snapshots[1],
                    compared=compared,
                    disagreeing=disagreeing,
                    found=canonical_json_of_plain(dict(found)),
                    made_by=by,
                    at=instants.now(connection),
                )
            )
            assert made.inserted_primary_key is not None
            key = int(made.inserted_primary_key[0])
        return self._stored(DualRead, sa.select(dual_reads).where(dual_reads.c.id == key))[0]

    def readings(self, migration: str, *, last: int | None = None) -> list[DualRead]:
        """Return the (last) dual reads of a migration, oldest first."""
        mine = sa.select(dual_reads).where(dual_reads.c.migration == migration)
        found = self._stored(DualRead, mine.order_by(dual_reads.c.id.desc()).limit(last))
        return found[::-1]

    def require_explained(self) -> None:
        """Refuse to go on from steps and readings that no transaction of this project has written.

        Raises:
            EnvironmentRefused: naming the rows that were written, changed or removed by hand.
        """
        require_explained(
            self.engine,
            [migration_steps.name, dual_reads.name],
            journal="the ledger's journal, which says what steps migrations have taken, was changed by hand",
            rows="the record of migrations was changed by hand",
            rule="who reads which table follows from steps that were taken, and from nothing else",
        )


def _overtaken(migration: str) -> DecisionRefused:
    return DecisionRefused(
        Problem(
            f"somebody has taken a step of migration {migration} meanwhile",
            "a step is taken upon what is on record of the one before it",
            f"see `backfill migration status {migration}`; then give the command again",
        )
    )
