"""Moments: rows and journal of the ledger as one transaction sees them.

Put here what whoever holds evidence against the ledger asks of both at once: rows cell by cell (`rows`), and what the journal says
of them (`journal`). Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from manifests.lifecycle import PublicationState
from resources.evidence.chain import Link
from resources.ledger import journal, rows
from resources.ledger.journal import Explained, Unexplained
from resources.ledger.rows import Rows
from resources.ledger.tables import accepted_versions, publications, watermarks


class Moment:
    """What one transaction sees of a ledger."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    # --- rows -----------------------------------------------------------------------------------------------------

    def rows_of(self, run_id: str, tables: Iterable[str] | None = None) -> Rows:
        """Return a run's rows (of some tables, if given) by table and key; see `rows.rows_of`."""
        return rows.rows_of(self._connection, run_id, tables)

    def run_ids(self) -> list[str]:
        """Return the ids of all runs, oldest first; what can be no id is left out."""
        return rows.run_ids(self._connection)

    def states(self) -> dict[str, str]:
        """Return what the cells of all runs' ids and states hold, whatever it is."""
        with rows.unforgiving(self._connection):
            cells = self._connection.execute(sa.text("SELECT run_id, state FROM runs")).all()
        return {row.run_id: row.state for row in cells}

    def runs_about_to_change(self) -> list[str]:
        """Return the runs of which an entry says that they are about to change a table."""
        intents = sa.select(publications.c.run_id).where(publications.c.state == PublicationState.INTENT).distinct()
        with rows.unforgiving(self._connection):
            return sorted(filter(rows.is_id, self._connection.execute(intents).scalars().all()))

    def runs_moved_by(self, target: str, run_id: str) -> list[str]:
        """Return the other runs of a target whose rows a run's publication or rollback may have moved on."""
        held = sa.select(accepted_versions.c.run_id).where(
            accepted_versions.c.target == target, accepted_versions.c.ended_by == run_id
        )
        since = (
            sa.select(sa.func.max(publications.c.started_at)).where(publications.c.run_id == run_id).scalar_subquery()
        )
        withdrawn = sa.select(watermarks.c.run_id).where(watermarks.c.target == target, watermarks.c.ended_at >= since)
        moved = {row.run_id for query in (held, withdrawn) for row in self._connection.execute(query)}
        return sorted(moved - {run_id})

    # --- the journal ----------------------------------------------------------------------------------------------

    def explain(self, links: Iterable[Link], *, first: int = 1, run_id: str | None = None) -> Explained:
        """Read the journal (from an entry on, of a run, if given) and hold it against the links of the chain; see `journal.explain`."""
        return journal.explain(self._connection, links, first=first, run_id=run_id)

    def explain_run(self, run_id: str) -> Explained:
        """Read the entries of one run, each held against itself only; see `journal.explain_run`."""
        return journal.explain_run(self._connection, run_id)

    def go_on(self, explained: Explained) -> None:
        """Take over the entries that were written since the journal was read; see `journal.go_on`."""
        journal.go_on(self._connection, explained)

    def unexplained(self, explained: Explained, run_id: str, tables: Iterable[str] | None = None) -> list[Unexplained]:
        """Return the rows of a run (of some tables, if given) that are not as the journal's entries left them."""
        return journal.unexplained(self._connection, explained, run_id, tables)

    def of_nobody(self, explained: Explained) -> list[Unexplained]:
        """Return the rows of runs that the ledger does not have and the journal has never had."""
        return list(journal.of_nobody(self._connection, explained))

    def first_of(self, run_id: str) -> tuple[int, int]:
        """Return the first entry of a run, and the number of the chain's last link when it was written."""
        return journal.first_of(self._connection, run_id)

    def is_adopted(self, run_id: str) -> bool:
        """Whether an entry has put a run of an earlier version under the journal, as it was."""
        return journal.is_adopted(self._connection, run_id)

    def newest_entry(self, run_id: str | None = None) -> int:
        """Return the number of the journal's newest entry (of a run, if given), 0 if there is none."""
        return journal.newest(self._connection, run_id)

    def touch(self) -> None:
        """Ask something, so that a server does not end the transaction for standing still, or says that it has."""
        self._connection.execute(sa.select(sa.literal(1)))
