"""The import ledger: every file that came by a feed, and what became of it.

Put here the SQL of it. What a file is taken for is `backfill_assets.ingestion`'s to decide; the rows of a file that was taken
are in the lakehouse, as part of a load that the entry names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any, ClassVar

import sqlalchemy as sa

from resources.ledger.cells import legible
from resources.ledger.locks import require_lease
from resources.ledger.part import Part, Stored
from resources.ledger.tables import imports

_AT_ONCE = 500
"""Rows that one statement names: databases bound the number of values."""


class ImportStatus(StrEnum):
    """What became of a file."""

    SEEN = "SEEN"
    """Its bytes are kept, and its rows not in the table yet: a receipt is under way, or has ended in the middle."""
    ACCEPTED = "ACCEPTED"
    """The first file of its business date."""
    CORRECTION = "CORRECTION"
    """Other bytes than the version of its date before it."""
    REPROCESSED = "REPROCESSED"
    """An accepted file that somebody has asked for again."""
    IGNORED = "IGNORED"
    """The bytes of the version of its date before it."""
    QUARANTINED = "QUARANTINED"
    """It could be read, and too much of it breaks rules: none of its rows is in the table."""
    REJECTED = "REJECTED"
    """It is no file of the feed, or may not be taken."""


LOADED = frozenset({ImportStatus.ACCEPTED, ImportStatus.CORRECTION, ImportStatus.REPROCESSED})
"""The statuses of files whose rows are in the table."""


@dataclass(frozen=True)
class ImportRecord(Stored):
    """A file that came by a feed.

    Attributes:
        id: number of the entry; 0 before it is recorded.
        feed: which one it came by.
        file_id: of this version of its date, as its rows have it; of what is no version, a hash of what is known of it.
        path: as the feed's pattern finds it; of what does not fit the pattern, as it was given.
        size: bytes; None where they were not read to the end.
        content_hash: SHA-256; empty where there is none.
        published_at: the producer's time; None where it is not known.
        business_date: the day it is about; None where its path does not say one.
        schema_version: of the reader that fits; empty where none does. `translator_version` of the translator.
        manifest_id: hash of the delivery index that lists it; empty where there is none.
        attempt: which attempt to ingest these bytes of this path it is, from 1.
        revision: which version of its date it is, in the order of acceptance, from 1; 0 for what is no version.
        status: what became of it; `decision` what it becomes as soon as its rows are in the table.
        reason: why.
        rows: in the table; `rejected` in the quarantine.
        first_seen: when it came first; `last_seen` when it came last, the same once more; `sightings` how often.
        load_id: of the load that its rows are part of, and `snapshot_id` of the table that has them; empty, None without rows.
        received_by: who received it first.
    """

    table: ClassVar[sa.Table] = imports

    id: int
    feed: str
    file_id: str
    path: str
    size: int | None
    content_hash: str
    published_at: datetime | None
    business_date: date | None
    schema_version: str
    translator_version: str
    manifest_id: str
    attempt: int
    revision: int
    status: ImportStatus
    decision: ImportStatus
    reason: str
    rows: int
    rejected: int
    first_seen: datetime
    last_seen: datetime
    sightings: int
    load_id: str
    snapshot_id: int | None
    received_by: str

    @classmethod
    def of(cls, row: sa.Row[Any]) -> ImportRecord:
        """Return what a row of the table says."""
        cells = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name
        return cls(**cells | {name: ImportStatus(cells[name]) for name in ("status", "decision")})


@dataclass(frozen=True)
class FeedFigures:
    """What the import ledger comes to for one feed.

    Attributes:
        files: how many entries there are by status.
        refused_since: by status (QUARANTINED, REJECTED), when the oldest file came first of which nothing was taken since.
        last_business_date: the latest one of which a file was taken; None where none was.
    """

    files: Mapping[ImportStatus, int]
    refused_since: Mapping[ImportStatus, datetime]
    last_business_date: date | None


class Imports(Part):
    """The import ledger of an installation."""

    def figures(self) -> dict[str, FeedFigures]:
        """Return what the import ledger comes to, by feed; whether a load was taken back since, is not asked."""
        loaded = [one.value for one in LOADED]
        taken = (
            sa.select(imports.c.feed, imports.c.path, sa.func.max(imports.c.id).label("id"))
            .where(imports.c.decision.in_(loaded))
            .group_by(imports.c.feed, imports.c.path)
            .subquery()
        )
        of_path = sa.and_(taken.c.feed == imports.c.feed, taken.c.path == imports.c.path)
        refused = [ImportStatus.QUARANTINED.value, ImportStatus.REJECTED.value]
        feed, status = imports.c.feed, imports.c.status
        with self.engine.connect() as connection:
            counts = connection.execute(sa.select(feed, status, sa.func.count()).group_by(feed, status)).all()
            since = connection.execute(
                sa.select(feed, status, sa.func.min(imports.c.first_seen))
                .select_from(imports.outerjoin(taken, of_path))
                .where(status.in_(refused), sa.or_(taken.c.id.is_(None), taken.c.id < imports.c.id))
                .group_by(feed, status)
            ).all()
            last = connection.execute(
                sa.select(feed, sa.func.max(imports.c.business_date)).where(status.in_(loaded)).group_by(feed)
            ).all()
        days = {row[0]: row[1] for row in last}
        with legible("ledger imports"):
            return {
                name: FeedFigures(
                    {ImportStatus(row[1]): int(row[2]) for row in counts if row[0] == name},
                    {ImportStatus(row[1]): row[2] for row in since if row[0] == name},
                    days.get(name),
                )
                for name in sorted({row[0] for row in counts})
            }

    def of_feed(
        self, feed: str, *, status: ImportStatus | None = None, business_date: date | None = None
    ) -> list[ImportRecord]:
        """Return the entries of a feed, oldest first.

        Raises:
            IllegibleRow: if a cell does not say what this project writes there.
        """
        query = sa.select(imports).where(imports.c.feed == feed).order_by(imports.c.id)
        if status is not None:
            query = query.where(imports.c.status == status.value)
        if business_date is not None:
            query = query.where(imports.c.business_date == business_date)
        return self._stored(ImportRecord, query)

    def record(
        self, entries: Sequence[ImportRecord], seen_again: Collection[int], at: datetime, *, token: int | None = None
    ) -> None:
        """Put files on record, and those that came once more, in one transaction.

        Raises:
            LeaseLost: if the lease of `token`, under which they were decided upon, was taken over.
        """
        with self.engine.begin() as connection:
            if token is not None:
                require_lease(connection, token)
            values = [{name: cell for name, cell in entry.as_record().items() if name != "id"} for entry in entries]
            for some in _parts(values):
                connection.execute(imports.insert(), list(some))
            for numbers in _parts(sorted(seen_again)):
                connection.execute(
                    imports.update()
                    .where(imports.c.id.in_(numbers))
                    .values(last_seen=at, sightings=imports.c.sightings + 1)
                )

    def settle(self, load_id: str, snapshot_id: int | None) -> None:
        """Let the files of a load have the status that was decided: their rows are in the table; safe to repeat."""
        with self.engine.begin() as connection:
            connection.execute(
                imports.update()
                .where(imports.c.load_id == load_id, imports.c.status == ImportStatus.SEEN.value)
                .values(status=imports.c.decision, snapshot_id=snapshot_id)
            )

    def give_up(self, load_id: str, reason: str) -> None:
        """Let the files of a load that was never made count as rejected: they are decided upon anew, as other entries."""
        with self.engine.begin() as connection:
            connection.execute(
                imports.update()
                .where(imports.c.load_id == load_id, imports.c.status == ImportStatus.SEEN.value)
                .values(status=ImportStatus.REJECTED.value, reason=reason, rows=0, rejected=0)
            )


def _parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (values[start : start + _AT_ONCE] for start in range(0, len(values), _AT_ONCE))
