"""Actors that are stopped: one process at a named point, before a transaction or at a commit, while others go on.

Put here what campaigns of interleavings share: how an actor is stopped, dies or gets no answer, what becomes of its leases,
and what makes many schedules in one process quick. What the actors do, and what must hold, is the campaigns' own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from unittest import mock

import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.manifest import ManifestFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.utils.concurrent import ExecutorFactory

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.operations import garbage
from backfill_assets.operations.doctor import evidence as doctor_of_evidence
from benchmarks.small_table import declared
from manifests.errors import Refused
from resources.ledger.leases import Leases
from resources.ledger.tables import leases as leases_table
from resources.ledger.tables import publications
from resources.processes import name_of

NOBODY = 2**22 + 1
"""A process id above every real one."""
PAUSED, EXPIRED, DIES = "paused", "paused beyond its lease", "dies"
"""How an actor is stopped that goes on, goes on too late, or never."""
FATES = ("landed", "late", "never")
"""What becomes of a commit that gets no answer."""


class Died(BaseException):
    """The actor's process ends here."""


@contextmanager
def no_lease_ends() -> Iterator[None]:
    """Have whoever dies leave its leases as they are."""
    with mock.patch.multiple(Leases, release=mock.DEFAULT, lose=mock.DEFAULT):
        yield


@dataclass
class Stage:
    """Runs an actor, counts what it passes, and stops it where it should be stopped."""

    platform: Platform
    stops_at: int | None = None
    meanwhile: Callable[[], None] | None = None
    dies: bool = False
    dies_at: str = ""
    unanswered: int | None = None
    fate: str = ""
    passed: list[str] = field(default_factory=list)
    commits: int = 0
    late: Callable[[], Any] | None = None
    quiet: bool = True
    died: bool = False

    def reach(self, name: str) -> None:
        """Pass a boundary."""
        if self.quiet or self.platform.ledger.engine.pool.checkedout():  # type: ignore[attr-defined]
            return  # in a transaction: everybody else would have to wait
        self.passed.append(name)
        if len(self.passed) - 1 == self.stops_at:
            self.quiet = True
            try:
                if self.meanwhile is not None:
                    self.meanwhile()
            finally:
                self.quiet = False
            if self.dies:
                raise Died
        if name == self.dies_at:
            raise Died

    def answer(self, commit: Callable[[], Any]) -> Any:
        """Commit, and say so; or be lost in one of the ways in which an answer can be."""
        if self.quiet:
            return commit()
        self.reach("catalog commit")
        number, self.commits = self.commits, self.commits + 1
        if number != self.unanswered:
            return commit()
        if self.fate == "landed":
            commit()
        elif self.fate == "late":
            self.late = commit
        raise CommitStateUnknownException("the connection was lost")

    @contextmanager
    def of_the_first(self) -> Iterator[None]:
        """See all that the first actor does; the second one, and everybody later, is not stopped."""
        load, commit = SqlCatalog.load_table, SqlCatalog.commit_table

        def load_table(catalog: SqlCatalog, *arguments: Any) -> Any:
            self.reach("catalog read")
            return load(catalog, *arguments)

        def commit_table(catalog: SqlCatalog, *arguments: Any) -> Any:
            return self.answer(partial(commit, catalog, *arguments))

        def unless_dead(release: Callable[..., None]) -> Callable[..., None]:
            return lambda *arguments: None if self.died else release(*arguments)

        def connect(engine: sa.Engine) -> sa.Connection:
            if engine is self.platform.ledger.engine:
                self.reach("ledger transaction")
            return begin(engine)

        begin = sa.Engine.connect
        with (
            mock.patch.object(SqlCatalog, "load_table", load_table),
            mock.patch.object(SqlCatalog, "commit_table", commit_table),
            mock.patch.object(sa.Engine, "connect", connect),
            mock.patch.object(faults, "reach", lambda point: self.reach(f"point {point}")),
            ExitStack() as ends,
        ):
            for end in ("release", "lose"):  # what becomes of a lease when its holder is done: not if it died
                if hasattr(Leases, end):
                    ends.enter_context(mock.patch.object(Leases, end, unless_dead(getattr(Leases, end))))
            yield

    def act(self, act: Callable[[Platform], Any]) -> bool:
        """Let the first actor act; return whether it died. A refusal is an answer, and no failure."""
        self.quiet = False
        try:
            act(self.platform)
        except Refused:
            pass
        except Died:
            self.died = True
            bury(self.platform)
        finally:
            self.quiet = True
        return self.died

    # the lease of an actor that died is left: it was of a process that is no more


def bury(platform: Platform) -> None:
    """Let the open leases be those of a process that has ended."""
    _edit_leases(platform, pid=NOBODY, process=name_of(NOBODY))


def expire(platform: Platform) -> None:
    """Let the open leases be over: their holders were paused for too long."""
    _edit_leases(platform, expires_at=datetime.now(UTC) - timedelta(seconds=1))


def _edit_leases(platform: Platform, **values: Any) -> None:
    with platform.ledger.engine.begin() as connection:
        connection.execute(leases_table.update().where(leases_table.c.ended_at.is_(None)).values(**values))


def at_rest(platform: Platform) -> bool:
    """Whether nothing is on record as under way."""
    with platform.ledger.engine.connect() as connection:
        opened_ = sa.select(sa.func.count()).select_from(publications).where(publications.c.state == "INTENT")
        held = sa.select(sa.func.count()).select_from(leases_table).where(leases_table.c.ended_at.is_(None))
        return not connection.execute(opened_).scalar_one() + connection.execute(held).scalar_one()


def collect(platform: Platform, *, later: timedelta) -> None:
    """Collect the garbage that there will be in a while."""
    at = datetime.now(UTC) + later
    listed = garbage.find(platform, at=at)
    garbage.collect(platform, listed, by="ada", at=at)


@contextmanager
def staged_world() -> Iterator[None]:
    """Make the small table this process's only product, also the collector's; read what never changes once.

    A metadata file and a manifest are written once, under a name of their own: what was read of them is kept.
    """
    logging.disable(logging.CRITICAL)
    metadata: dict[str, Any] = {}
    entries: dict[str, list[Any]] = {}
    parse, fetch = FromInputFile.table_metadata, ManifestFile.fetch_manifest_entry

    def parsed(file: Any, *arguments: Any, **named: Any) -> Any:
        if file.location not in metadata:
            metadata[file.location] = parse(file, *arguments, **named)
        elif not file.exists():
            raise FileNotFoundError(file.location)
        return metadata[file.location]

    def fetched(manifest: ManifestFile, io: Any, discard_deleted: bool = True) -> list[Any]:
        key = f"{discard_deleted} {manifest.manifest_path}"
        if key not in entries:
            entries[key] = fetch(manifest, io, discard_deleted)
        elif not io.new_input(manifest.manifest_path).exists():
            raise FileNotFoundError(manifest.manifest_path)
        return list(entries[key])

    with (
        declared(),
        mock.patch.object(FromInputFile, "table_metadata", staticmethod(parsed)),
        mock.patch.object(ManifestFile, "fetch_manifest_entry", fetched),
        mock.patch.object(ExecutorFactory, "get_or_create", staticmethod(_InTurn)),
        mock.patch.object(
            doctor_of_evidence, "COMPARING", timedelta(days=1)
        ),  # no diff is kept here: none is late on a slow machine
    ):
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class _InTurn(Executor):
    """Does what it is given at once: other threads would only cost time here."""

    def submit(self, do: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Do it."""
        done: Future[Any] = Future()
        try:
            done.set_result(do(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - raised where the result is asked for
            done.set_exception(error)
        return done
