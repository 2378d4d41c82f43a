"""The ledger: the SQL record of runs, chunks, attempts, verdicts, approvals, publications and sink requests.

Put here what other packages speak to; what it is made of is in one module an entity. In each of them holds what must be true
across processes and crashes: every state change is one transaction and a compare-and-set, and a transaction that reads before
it writes takes a lock first (`locks` says which and why). Dagster's event log is a view for people; what gates a publication
is read from here. Instants are UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from manifests.errors import EnvironmentRefused, Problem
from resources import actors
from resources.ledger import schema
from resources.ledger.amendments import OBSOLETE, Amendments
from resources.ledger.approvals import Approvals
from resources.ledger.attempts import Attempts, chunks_of
from resources.ledger.chunks import STAGED, ChunkRecord, Chunks, ChunkState, DerivedFiles
from resources.ledger.instants import now
from resources.ledger.journaling import Journal
from resources.ledger.publications import ABANDONED, BEFORE, Publications
from resources.ledger.runs import RunRecord, Runs
from resources.ledger.sink_requests import SinkRequests
from resources.ledger.transactions import make_engine
from resources.ledger.verdicts import RAISED, GatedChunk, Verdict, Verdicts

__all__ = [
    "ABANDONED",
    "BEFORE",
    "OBSOLETE",
    "RAISED",
    "STAGED",
    "ChunkRecord",
    "ChunkState",
    "DerivedFiles",
    "GatedChunk",
    "Ledger",
    "RunRecord",
    "Verdict",
    "chunks_of",
    "now",
    "open_ledger",
    "operator",
]


def operator() -> str:
    """Return the name of who acts; see `resources.actors`."""
    return actors.current().name


class Ledger(Runs, Approvals, Chunks, Attempts, Amendments, Verdicts, Publications, SinkRequests):
    """One connection pool to the ledger; see the module."""

    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__(_engine(url))
        self.journal = Journal(self.engine)

    def migrate(self, complete: Callable[[sa.Connection, str | None], None] = lambda *_: None) -> str | None:
        """Bring the schema to this version of the code; safe to repeat. Return the revision it had; None for a new ledger.

        The journal adopts the runs that were there before it: `Journal.adopted` names them. `complete` is told the revision
        that the ledger had, in the same transaction: a process that dies has done all of it or nothing.

        Raises:
            EnvironmentRefused: if the database cannot be opened or was made by newer code.
        """
        return schema.migrate(self.engine, self.journal, complete)

    def require_current(self) -> None:
        """Refuse to work on a schema of another version.

        Raises:
            EnvironmentRefused: if the ledger is missing, older or newer.
        """
        schema.require_current(self.engine)


def _engine(url: str) -> sa.Engine:
    try:
        return make_engine(url)
    except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise EnvironmentRefused(
            Problem(
                f"the ledger {make_url(url)!r} needs a database driver that is not installed: {error}",
                "the ledger is SQLite or PostgreSQL, through a driver that SQLAlchemy knows",
                "correct BACKFILL_LEDGER_URL, or install the driver (the extra `postgres` brings psycopg2)",
            )
        ) from error


@contextmanager
def open_ledger(url: str) -> Iterator[Ledger]:
    """Yield a ledger of the current schema and close its connections."""
    ledger = Ledger(url)
    try:
        ledger.require_current()
        yield ledger
    finally:
        ledger.engine.dispose()
