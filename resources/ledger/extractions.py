"""Extractions: what servers were asked for, how far that is, and which of their answers are kept.

Put here the SQL of both. The answers themselves are files of the archive, and how a server is asked is
`backfill_assets.extraction`'s. Rows of responses are only ever added; an extraction that is COMPLETE or UNSTABLE never changes
again, and one that is OPEN or FAILED goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from manifests.canonical import canonical_json
from manifests.errors import Problem, TransitionRefused
from resources.ledger import instants
from resources.ledger.cells import legible, parsed
from resources.ledger.part import Part, Stored
from resources.ledger.tables import extractions, responses


class ExtractionState(StrEnum):
    """How far an extraction is."""

    OPEN = "OPEN"
    COMPLETE = "COMPLETE"
    UNSTABLE = "UNSTABLE"
    """Everything was read, and what takes several pages read otherwise each time: records may be missing."""
    FAILED = "FAILED"
    """The server did not answer, or said something else than is declared; the same command goes on."""
    GIVEN_UP = "GIVEN_UP"


GOES_ON = frozenset({ExtractionState.OPEN, ExtractionState.FAILED})
"""States in which the same command goes on with an extraction."""


@dataclass(frozen=True)
class ExtractionRecord(Stored):
    """One extraction, as it is on record; `asked` and `counts` are JSON text.

    `responses` are kept, with `records` of different keys in them; `requests` were made for them, tokens left out.
    `pages_hash` stands for all that was answered, `index_hash` for the file that says where each record is.
    """

    table: ClassVar[sa.Table] = extractions

    extraction: str
    feed: str
    number: int
    pattern: str
    asked: str
    state: ExtractionState
    reason: str
    responses: int
    records: int
    requests: int
    first_at: datetime | None
    last_at: datetime | None
    pages_hash: str
    index_hash: str
    counts: str
    started_by: str
    started_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        cells = dict(row._mapping)  # noqa: SLF001 - SQLAlchemy's public name
        return cls(**cells | {"state": ExtractionState(cells["state"])})

    @property
    def id(self) -> str:
        """What commands name it by."""
        return self.extraction

    @property
    def question(self) -> dict[str, Any]:
        """What the server was asked for."""
        return parsed(extractions.c.asked, self.asked, dict)

    @property
    def counted(self) -> dict[str, Any]:
        """What was counted of its records."""
        return parsed(extractions.c.counts, self.counts, dict)


@dataclass(frozen=True)
class ResponseRecord(Stored):
    """One answer that is kept: what was asked, and what came, but for the content; `parameters` and `headers` are JSON text.

    `response` names it, as `response_id` has it; `reading` counts how often the `part` was read from its first page on; `attempts` how often this was asked until it was answered.
    """

    table: ClassVar[sa.Table] = responses

    response: str
    extraction: str
    number: int
    kind: str
    part: str
    reading: int
    page: int
    method: str
    address: str
    parameters: str
    status: int
    headers: str
    attempts: int
    bytes: int
    content_hash: str
    at: datetime


def response_id(extraction: str, number: int) -> str:
    """Return the name of an answer, by its extraction and its number in that."""
    return f"{extraction}/{number:06d}"


@dataclass(frozen=True)
class Sealed:
    """What an extraction comes to: hashes over its pages and its index, and counts, JSON-ready."""

    pages_hash: str
    index_hash: str
    records: int
    counts: Mapping[str, Any]


class Extractions(Part):
    """The extractions of a ledger."""

    def of_feed(self, feed: str) -> list[ExtractionRecord]:
        """Return the extractions of a feed, in the order in which they began."""
        query = sa.select(extractions).where(extractions.c.feed == feed).order_by(extractions.c.number)
        return self._stored(ExtractionRecord, query)

    def one(self, extraction: str) -> ExtractionRecord:
        """Return one extraction.

        Raises:
            TransitionRefused: if there is none of the id.
        """
        found = self._stored(ExtractionRecord, sa.select(extractions).where(extractions.c.extraction == extraction))
        if not found:
            raise TransitionRefused(
                Problem(
                    f"there is no extraction '{extraction}'",
                    "an extraction is named by its id",
                    "`backfill extractions FEED` lists them",
                )
            )
        return found[0]

    def responses(self, extraction: str) -> list[ResponseRecord]:
        """Return the answers that are kept of an extraction, in order."""
        query = sa.select(responses).where(responses.c.extraction == extraction).order_by(responses.c.number)
        return self._stored(ResponseRecord, query)

    def begin(self, feed: str, pattern: str, asked: Mapping[str, Any], *, by: str) -> tuple[ExtractionRecord, bool]:
        """Return the newest extraction that asks the same and can go on, opened again, or a new one; and whether it goes on."""
        text = canonical_json(dict(asked))
        with self.engine.begin() as connection:
            at = instants.now(connection)
            is_mine = (extractions.c.feed == feed, extractions.c.pattern == pattern, extractions.c.asked == text)
            query = sa.select(extractions.c.extraction).where(
                *is_mine, extractions.c.state.in_([one.value for one in GOES_ON])
            )
            found = connection.execute(query.order_by(extractions.c.number.desc()).limit(1)).scalar()
            goes_on = found is not None
            if found is None:
                newest = sa.select(sa.func.max(extractions.c.number)).where(extractions.c.feed == feed)
                number = (connection.execute(newest).scalar() or 0) + 1
                found = f"{feed}-{number}"
                connection.execute(
                    extractions.insert().values(
                        extraction=found,
                        feed=feed,
                        number=number,
                        pattern=pattern,
                        asked=text,
                        state=ExtractionState.OPEN.value,
                        started_by=by,
                        started_at=at,
                        updated_at=at,
                    )
                )
            else:
                self._move(connection, found, ExtractionState.OPEN, "", at)
        return self.one(found), goes_on

    def keep(self, extraction: str, kept: Sequence[ResponseRecord]) -> None:
        """Put kept answers of an extraction on record, in one transaction; those that are there are left as they are.

        Raises:
            TransitionRefused: if the extraction is over.
        """
        if not kept:
            return
        with self.engine.begin() as connection:
            at = instants.now(connection)
            _require_going_on(connection, extraction)
            was = connection.execute(
                sa.select(extractions.c.first_at, extractions.c.responses).where(extractions.c.extraction == extraction)
            ).one()
            new = [one for one in kept if one.number > was.responses]
            if not new:
                return
            connection.execute(responses.insert(), [one.as_record() for one in new])
            connection.execute(
                extractions.update()
                .where(extractions.c.extraction == extraction)
                .values(
                    responses=extractions.c.responses + len(new),
                    requests=extractions.c.requests + sum(one.attempts for one in new),
                    first_at=was.first_at or new[0].at,
                    last_at=new[-1].at,
                    updated_at=at,
                )
            )

    def seal(self, extraction: str, state: ExtractionState, sealed: Sealed, reason: str = "") -> ExtractionRecord:
        """End an extraction, whose answers are all kept, as COMPLETE or UNSTABLE; safe to repeat.

        Raises:
            TransitionRefused: if it is over, and comes to something else.
        """
        with self.engine.begin() as connection:
            _require_going_on(connection, extraction)
            connection.execute(
                extractions.update()
                .where(extractions.c.extraction == extraction)
                .values(
                    pages_hash=sealed.pages_hash,
                    index_hash=sealed.index_hash,
                    records=sealed.records,
                    counts=canonical_json(dict(sealed.counts)),
                )
            )
            self._move(connection, extraction, state, reason, instants.now(connection))
        return self.one(extraction)

    def stop(self, extraction: str, state: ExtractionState, reason: str) -> None:
        """Put on record that an extraction failed, or is given up.

        Raises:
            TransitionRefused: if it is over.
        """
        with self.engine.begin() as connection:
            _require_going_on(connection, extraction)
            self._move(connection, extraction, state, reason, instants.now(connection))

    @staticmethod
    def _move(connection: sa.Connection, extraction: str, state: ExtractionState, reason: str, at: datetime) -> None:
        connection.execute(
            extractions.update()
            .where(extractions.c.extraction == extraction)
            .values(state=state.value, reason=reason, updated_at=at)
        )


def _require_going_on(connection: sa.Connection, extraction: str) -> None:
    """Refuse to change an extraction that is over."""
    state = connection.execute(sa.select(extractions.c.state).where(extractions.c.extraction == extraction)).scalar()
    with legible("ledger extractions"):
        goes_on = state is not None and ExtractionState(state) in GOES_ON
    if not goes_on:
        raise TransitionRefused(
            Problem(
                f"extraction '{extraction}' is {state or 'unknown'}",
                "an extraction that is over never changes again",
                "extract again: that is an extraction of its own",
            )
        )
