"""What people have decided of quarantined rows, and the releases by which some of them came into their table.

Put here what the ledger keeps of it: a release is put on record before its rows are appended, and ends once it is known whether
they were. Which rows make up a case, and what state a case is in, is `backfill_assets.planning.quarantine_cases`'; the order of
things in a release `backfill_assets.ingestion.releases`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import sqlalchemy as sa

from manifests.canonical import canonical_json_of_plain
from manifests.errors import DecisionRefused, Problem
from resources import actors
from resources.ledger import instants
from resources.ledger.cells import parsed
from resources.ledger.locks import lock_quarantine
from resources.ledger.part import Part, Stored
from resources.ledger.tables import quarantine_decisions, quarantine_releases

RELEASED, REJECTED, REOPENED = "RELEASED", "REJECTED", "REOPENED"
"""What is decided of a case; one that is reopened waits again."""
INTENT, LANDED, ABANDONED = "INTENT", "LANDED", "ABANDONED"
"""Of a release: its rows may be in the table or not; they came there; they never will."""


@dataclass(frozen=True)
class Decision(Stored):
    """What somebody has decided of a case, as it is on record; the newest of a case counts."""

    table: ClassVar[sa.Table] = quarantine_decisions

    id: int
    input_table: str
    case_id: str
    decision: str
    release_id: int | None
    decided_by: str
    reason: str
    channel: str
    proof: str
    at: datetime


@dataclass(frozen=True)
class Release(Stored):
    """A release as it is on record: `load_id` brings its rows in, `loads` (JSON) are those that had quarantined them."""

    table: ClassVar[sa.Table] = quarantine_releases

    id: int
    input_table: str
    load_id: str
    cases: int
    rows: int
    loads: str
    state: str
    snapshot_id: int | None
    at: datetime
    ended_at: datetime | None

    @property
    def from_loads(self) -> frozenset[str]:
        """The loads that its rows had been quarantined by."""
        return frozenset(parsed(quarantine_releases.c.loads, self.loads, list))


class QuarantineDecisions(Part):
    """The decisions about quarantined rows in a ledger."""

    def decisions(self, table: str) -> list[Decision]:
        """Return what was decided of the cases of an input table, oldest first."""
        mine = quarantine_decisions.c.input_table == table
        return self._stored(Decision, sa.select(quarantine_decisions).where(mine).order_by(quarantine_decisions.c.id))

    def releases(self, table: str) -> list[Release]:
        """Return the releases of an input table, oldest first."""
        mine = quarantine_releases.c.input_table == table
        return self._stored(Release, sa.select(quarantine_releases).where(mine).order_by(quarantine_releases.c.id))

    def reject(self, table: str, cases: Sequence[str], *, by: str, reason: str, known: int) -> None:
        """Record that cases are not to come in; `known` is the number of the newest decision of the table that was looked at.

        Raises:
            DecisionRefused: if somebody has decided about the table's cases since; nothing is on record then.
        """
        with self.engine.begin() as connection:
            _require_known(connection, table, known)
            _decide(connection, table, cases, REJECTED, None, by, reason)

    def reopen(self, table: str, cases: Sequence[str], *, by: str, reason: str, known: int) -> None:
        """Record that rejected cases wait again; `known` as in `reject`.

        Raises:
            DecisionRefused: if somebody has decided about the table's cases since; nothing is on record then.
        """
        with self.engine.begin() as connection:
            _require_known(connection, table, known)
            _decide(connection, table, cases, REOPENED, None, by, reason)

    def begin_release(
        self,
        table: str,
        load_id: str,
        cases: Sequence[str],
        *,
        rows: int,
        loads: Sequence[str],
        by: str,
        reason: str,
        known: int,
    ) -> int:
        """Record that rows of cases are about to be appended by a load; return the number of the release.

        Raises:
            DecisionRefused: if somebody has decided about the table's cases since; nothing is on record then.
        """
        with self.engine.begin() as connection:
            _require_known(connection, table, known)
            made = connection.execute(
                quarantine_releases.insert().values(
                    input_table=table,
                    load_id=load_id,
                    cases=len(cases),
                    rows=rows,
                    loads=canonical_json_of_plain(sorted(loads)),
                    state=INTENT,
                    at=instants.now(connection),
                )
            )
            assert made.inserted_primary_key is not None
            number = int(made.inserted_primary_key[0])
            _decide(connection, table, cases, RELEASED, number, by, reason)
        return number

    def end_release(self, number: int, *, snapshot_id: int | None) -> bool:
        """Record what came of a release: the snapshot that has its rows, or None where it has none and never will.

        Return whether that was still open: what somebody else has recorded stays.
        """
        with self.engine.begin() as connection:
            done = connection.execute(
                quarantine_releases.update()
                .where(quarantine_releases.c.id == number, quarantine_releases.c.state == INTENT)
                .values(
                    state=ABANDONED if snapshot_id is None else LANDED,
                    snapshot_id=snapshot_id,
                    ended_at=instants.now(connection),
                )
            )
        return done.rowcount == 1


def _require_known(connection: sa.Connection, table: str, known: int) -> None:
    lock_quarantine(connection, table)
    mine = quarantine_decisions.c.input_table == table
    newest = connection.execute(sa.select(sa.func.max(quarantine_decisions.c.id)).where(mine)).scalar() or 0
    if newest != known:
        raise DecisionRefused(
            Problem(
                f"somebody has decided about quarantined rows of {table} meanwhile",
                "a case is decided once, upon what is on record of it",
                f"see `backfill quarantine list {table}`; then run the same command again",
            )
        )


def _decide(
    connection: sa.Connection,
    table: str,
    cases: Sequence[str],
    decision: str,
    release: int | None,
    by: str,
    reason: str,
) -> None:
    at, who = instants.now(connection), actors.columns(by)
    rows = [
        {
            "input_table": table,
            "case_id": case,
            "decision": decision,
            "release_id": release,
            "decided_by": by,
            "reason": reason,
            "at": at,
            **who,
        }
        for case in cases
    ]
    if rows:
        connection.execute(quarantine_decisions.insert(), rows)
