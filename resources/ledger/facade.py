"""The ledger: the SQL record of runs, chunks, attempts, verdicts, approvals, publications and sink requests.

Put here what other packages speak to; what it is made of is in one module an entity. In each of them holds what must be true
across processes and crashes: every state change is one transaction and a compare-and-set, and a transaction that reads before
it writes takes a lock first (`locks` says which and why). Dagster's event log is a view for people; what gates a publication
is read from here. Instants are UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import make_url

from manifests.costs import Measured, RunCosts
from manifests.errors import EnvironmentRefused, Problem
from manifests.lifecycle import ChunkState
from resources import actors
from resources.ledger import figures, instants, measured, schema, telling
from resources.ledger.acceptances import AcceptanceRecord, Acceptances
from resources.ledger.admissions import Admissions
from resources.ledger.amendments import OBSOLETE, Amendments
from resources.ledger.approvals import ApprovalRecord, Approvals, RunDecision
from resources.ledger.attempts import AttemptRecord, Attempts, chunks_of
from resources.ledger.chunks import STAGED, ChunkRecord, Chunks, ChunkStanding, DerivedFiles
from resources.ledger.erasure_lists import ErasureLists
from resources.ledger.extractions import Extractions
from resources.ledger.figures import Figures
from resources.ledger.freezes import Freezes
from resources.ledger.imports import Imports
from resources.ledger.journaling import Journal
from resources.ledger.launches import Launches
from resources.ledger.leases import Leases
from resources.ledger.locks import lock_target, require_lease
from resources.ledger.measured import Taken, Written
from resources.ledger.migration_steps import MigrationSteps
from resources.ledger.moments import Moment
from resources.ledger.pauses import Pauses
from resources.ledger.policy_in_force import Policies
from resources.ledger.publications import (
    ABANDONED,
    BEFORE,
    PROCESS_ENDED,
    RECORDED_BY_ANOTHER,
    PublicationRecord,
    Publications,
)
from resources.ledger.quarantine_decisions import QuarantineDecisions
from resources.ledger.repairs import Repairs
from resources.ledger.runs import RunRecord, Runs, TransitionRecord
from resources.ledger.sink_requests import SinkRequests
from resources.ledger.stops import Stops
from resources.ledger.ticks import Ticks
from resources.ledger.topic_publications import TopicPublications
from resources.ledger.transactions import Clock, make_engine, said_by_server
from resources.ledger.verdicts import RAISED, GatedChunk, Verdict, Verdicts
from resources.ledger.watermarks import Watermarks

__all__ = [
    "ABANDONED",
    "BEFORE",
    "OBSOLETE",
    "PROCESS_ENDED",
    "RAISED",
    "RECORDED_BY_ANOTHER",
    "STAGED",
    "AcceptanceRecord",
    "ApprovalRecord",
    "AttemptRecord",
    "ChunkRecord",
    "ChunkStanding",
    "ChunkState",
    "DerivedFiles",
    "GatedChunk",
    "Ledger",
    "PublicationRecord",
    "RunDecision",
    "RunRecord",
    "TransitionRecord",
    "Verdict",
    "chunks_of",
    "open_ledger",
    "operator",
]


def operator() -> str:
    """Return the name of who acts; see `resources.actors`."""
    return actors.current().name


class Ledger(Runs, Approvals, Acceptances, Chunks, Attempts, Amendments, Verdicts, Publications, SinkRequests):
    """One connection pool to the ledger; see the module.

    Runs, and what belongs to one, are asked for here; the attributes are for what stands beside runs. `engine` is for this
    package.
    """

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self.url = url
        super().__init__(_engine(url, clock))
        self.journal = Journal(self.engine)
        self.stops = Stops(self.engine)
        self.pauses = Pauses(self.engine)
        self.admissions = Admissions(self.engine)
        self.launches = Launches(self.engine)
        self.freezes = Freezes(self.engine)
        self.watermarks = Watermarks(self.engine)
        self.ticks = Ticks(self.engine)
        self.policies = Policies(self.engine)
        self.erasure_lists = ErasureLists(self.engine)
        self.imports = Imports(self.engine)
        self.quarantine = QuarantineDecisions(self.engine)
        self.repairs = Repairs(self.engine)
        self.extractions = Extractions(self.engine)
        self.migrations = MigrationSteps(self.engine)
        self.topics = TopicPublications(self.engine)

    def leases(self, seconds: float) -> Leases:
        """Return the leases; `seconds` is how long one lasts that nobody releases."""
        return Leases(self.engine, seconds)

    def figures(self, *, at: datetime, days: int, most: int) -> Figures:
        """Read the figures of the `most` newest runs that are not over, or have been so for at most `days`.

        Raises:
            IllegibleRow: if a cell that they need cannot be read: a figure without it would be wrong.
        """
        return figures.figures(self.engine, at=at, days=days, most=most)

    def recorded(self, target: str, version: str, *, but: str = "") -> list[Measured]:
        """Return what the newest runs of a target have taken, to learn from; see `measured.recorded`."""
        with self.engine.connect() as connection:
            return measured.recorded(connection, target, version, but=but)

    def written(self, target: str, version: str, *, but: str = "") -> Written | None:
        """Return what the newest runs of a target have written; see `measured.written`."""
        with self.engine.connect() as connection:
            return measured.written(connection, target, version, but=but)

    def rows_held(self, target: str) -> dict[str, int]:
        """Return how many rows each chunk of a target has that a run holds today; see `measured.rows_held`."""
        with self.engine.connect() as connection:
            return measured.rows_held(connection, target)

    def costs(self, run_ids: Sequence[str]) -> dict[str, RunCosts]:
        """Return what the plans of runs have estimated; of those that have."""
        with self.engine.connect() as connection:
            return measured.costs(connection, run_ids)

    def taken(self, run_id: str, at: datetime | None = None) -> Taken:
        """Return what a run has taken so far; see `measured.taken`."""
        with self.engine.connect() as connection:
            return measured.taken(connection, run_id, at)

    def telling(self, target: str) -> AbstractContextManager[None]:
        """Let nobody else tell Dagster of a target's changes meanwhile; see `telling`."""
        return telling.telling(self.engine, target)

    # --- moments --------------------------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[Moment]:
        """Yield one moment of the ledger, which waits for no writer and keeps none waiting."""
        with self.engine.connect() as connection:
            yield Moment(connection)

    @contextmanager
    def holding(self, target: str | None = None, *, token: int | None = None) -> Iterator[Moment]:
        """Yield one moment of the ledger that no other transaction changes meanwhile, where only one process writes at a time.

        With `target`, that nobody changes any run of a target in. With `token`, under that lease.

        Raises:
            LeaseLost: if the lease was taken over, or given back.
        """
        with self.engine.begin() as connection:
            if target is not None:
                lock_target(connection, target)
            if token is not None:
                require_lease(connection, token)
            yield Moment(connection)

    def now(self) -> datetime:
        """Return the present instant (UTC) by the ledger's clock."""
        return instants.now(self.engine)

    def latest(self) -> datetime:
        """Return now, or the newest instant on record where the clock stands before it."""
        with self.engine.connect() as connection:
            return instants.latest(connection)

    @property
    def shared_clock(self) -> Callable[[], datetime] | None:
        """What tells the present instant by the clock that all hosts share; None where there is none but this machine's."""
        return instants.shared_clock(self.engine)

    def server_clock(self) -> datetime | None:
        """Return the instant by the clock of the ledger's server; None where it has none but this machine's."""
        if self.engine.dialect.name != "postgresql":
            return None
        with self.engine.connect() as connection:
            return said_by_server(connection)

    # --- the database ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections that nobody uses any more."""
        self.engine.dispose()

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


def _engine(url: str, clock: Clock | None) -> sa.Engine:
    try:
        return make_engine(url, clock)
    except (ValueError, TypeError) as error:
        raise EnvironmentRefused(
            Problem(
                f"the ledger {make_url(url)!r} has an option that its driver cannot read: {error}",
                "what follows ? in the URL of the ledger are options of its driver",
                "correct BACKFILL_LEDGER_URL",
            )
        ) from error
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
        ledger.close()
