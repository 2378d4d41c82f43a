"""The chain and the ledger as `backfill verify` reads them, once for all runs, and whether anybody has written to them since.

Put here what is read and looked up, and nothing that is held against it. What lies in tables is read by `published_tables`.
"""

from __future__ import annotations

from functools import cached_property

import sqlalchemy as sa

from backfill_assets.audit.findings import Problem
from backfill_assets.installation import Platform
from resources.evidence.chain import Link, ReadChain
from resources.ledger.journal import INSTALLATION, Explained, Unexplained
from resources.ledger.moments import Moment
from resources.ledger.rows import is_id
from resources.ledger.tables import sink_attempts


class LedgerAndChain:
    """The chain, the ledger's runs and its journal, read once for all runs.

    Attributes:
        ledger_problems: why the ledger cannot be read; empty if it can.
        in_ledger: the state of each run that the ledger has.
        journal: what the journal's entries and their links explain.
    """

    def __init__(self, platform: Platform) -> None:
        self.platform = platform
        self._length = platform.evidence.chain.length()
        self.chain: ReadChain = platform.evidence.chain.read()
        self.head = self.chain.head
        self.ledger_problems: list[Problem] = []
        self.in_ledger: dict[str, str] = {}
        self.journal = Explained()
        try:
            with platform.ledger.reading() as moment:
                self.in_ledger = dict.fromkeys(moment.run_ids(), "")
                self.in_ledger |= {name: at for name, at in moment.states().items() if name in self.in_ledger}
                self.journal = moment.explain(self.chain.links)
        except sa.exc.DBAPIError as error:
            self.ledger_problems.append(Problem("", "ledger", f"cannot be read: {error.orig}"))
        self._read_until = self.journal.length

    def read_again(self) -> None:
        """Read chain and journal anew, unless the ledger cannot be read; the runs stay those that were known."""
        again = LedgerAndChain(self.platform)
        if not again.ledger_problems:
            self.chain, self.head, self.journal = again.chain, again.head, again.journal
            self._length, self._read_until = again._length, again._read_until

    def has_moved(self) -> bool:
        """Whether somebody has written to ledger or chain since they were read."""
        if self.platform.evidence.chain.length() != self._length:
            return True
        if self.ledger_problems:
            return False
        with self.platform.ledger.reading() as moment:
            return moment.newest_entry() != self._read_until

    def runs_now(self) -> set[str]:
        """Return every run that is known, and those that the ledger has come to have since."""
        with self.platform.ledger.reading() as moment:
            return {*self.known, *moment.run_ids()}

    @cached_property
    def known(self) -> list[str]:
        """Every run of ledger, journal, evidence and chain."""
        named = (link.content.get("run") for link in self.chain.links if "rows" in link.content)
        linked = {run_id for run_id in named if isinstance(run_id, str)}
        found = linked | self.in_ledger.keys() | (self.journal.runs.keys() - {INSTALLATION})
        found |= set(self.platform.evidence.run_ids())
        order = {run_id: number for number, run_id in enumerate(self.in_ledger)}
        return sorted(filter(is_id, found), key=lambda run_id: (order.get(run_id, len(order)), run_id))

    @cached_property
    def never_planned(self) -> list[str]:
        """Ids of which there is nothing but requests for sinks in the journal: a preview or a refused plan has left them, no run."""
        only = {sink_attempts.name}
        asked = {
            run_id for run_id, tables in self.journal.runs.items() if tables.keys() == only
        } - self.in_ledger.keys()
        asked -= {run_id for link in self.chain.links if isinstance(run_id := link.content.get("run"), str)}
        asked -= set(self.platform.evidence.run_ids())
        return [run_id for run_id in self.known if run_id in asked]

    def links_of(self, run_id: str, event: str) -> list[Link]:
        """Return the links about an event of a run."""
        mine = (link for link in self.chain.links if link.content.get("run") == run_id)
        return [link for link in mine if link.content.get("event") == event]

    def by_hand(self, moment: Moment, run_id: str) -> dict[tuple[str, str], Unexplained]:
        """Return the rows of a run that no transaction of this project has left as they are: the last one seen included."""
        moment.go_on(self.journal)
        return {(one.table, one.key): one for one in moment.unexplained(self.journal, run_id)}
