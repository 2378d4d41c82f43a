"""Publications of topics: which events of a run were about to be written where, and which ranges of offsets they have.

Put here the entries, one for each change of a run and each topic. What is written, and what is read back before an entry says so,
is the publisher's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Self

import sqlalchemy as sa

from manifests.canonical import canonical_json, reader_of
from manifests.errors import Problem, StateMoved
from manifests.lifecycle import PublicationState
from resources import actors
from resources.ledger import instants
from resources.ledger.cells import legible, parsed
from resources.ledger.part import Part, Stored
from resources.ledger.tables import topic_publications


@dataclass(frozen=True)
class WrittenRange:
    """The events that a publication has in one partition: between two offsets, `until` exclusive, with others' between them.

    `hash` is SHA-256 (hex) over key, value and headers of each, in the order of their offsets.
    """

    partition: int
    start: int
    until: int
    events: int
    hash: str


@dataclass(frozen=True)
class TopicPublication(Stored):
    """One entry: the `number`th change of a run, told to one topic as events.

    Attributes:
        state: INTENT while it is written, COMMITTED once what the topic has was read back, ABANDONED where only part of it was
            written before the run was rolled back.
        starts: the offset of each partition from which on its events lie, as JSON; `written` the ranges that were read back.
        events: how many there are in them; None while it is written.
    """

    table: ClassVar[sa.Table] = topic_publications

    id: int
    run_id: str
    number: int
    action: str
    sink: str
    state: PublicationState
    topic: str
    cluster_id: str
    topic_id: str
    starts: str
    events: int | None
    written: str
    actor: str
    note: str
    channel: str
    proof: str
    started_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, row: sa.Row[Any]) -> Self:
        """Return what a row of the table says."""
        return cls(**{**row._mapping, "state": PublicationState(row.state)})  # noqa: SLF001 - SQLAlchemy's public name

    @property
    def is_intent(self) -> bool:
        """Whether it is not known yet to be whole."""
        return self.state is PublicationState.INTENT

    @property
    def first_offsets(self) -> dict[int, int]:
        """The offset of each partition from which on its events lie."""
        with legible(f"the publication of run '{self.run_id}' to {self.topic}"):
            said = parsed(topic_publications.c.starts, self.starts, dict)
            found = {int(partition): offset for partition, offset in said.items()}
            if (
                not found
                or sorted(found) != list(range(len(found)))
                or any(type(at) is not int or at < 0 for at in found.values())
            ):
                raise ValueError("starts has an offset of each partition, from 0 on")
            return found

    @property
    def ranges(self) -> list[WrittenRange]:
        """What was read back of each partition."""
        with legible(f"the publication of run '{self.run_id}' to {self.topic}"):
            written = parsed(topic_publications.c.written, self.written, list)
            return [reader_of(WrittenRange).validate_python(one) for one in written]


class TopicPublications(Part):
    """The topics that a ledger's runs have published to."""

    def of_run(self, run_id: str, sink: str | None = None) -> list[TopicPublication]:
        """Return the entries of a run (and a sink), oldest first."""
        mine = topic_publications.c.run_id == run_id
        if sink is not None:
            mine = sa.and_(mine, topic_publications.c.sink == sink)
        return self._stored(
            TopicPublication, sa.select(topic_publications).where(mine).order_by(topic_publications.c.id)
        )

    def begin(
        self,
        run_id: str,
        sink: str,
        number: int,
        action: str,
        *,
        topic: str,
        cluster_id: str,
        topic_id: str,
        starts: Mapping[int, int],
        actor: str,
    ) -> TopicPublication:
        """Record that a run's `number`th change is about to be written to a topic; return the entry.

        Raises:
            StateMoved: if another process has just begun the same.
        """
        try:
            with self.engine.begin() as connection:
                connection.execute(
                    topic_publications.insert().values(
                        run_id=run_id,
                        sink=sink,
                        number=number,
                        action=action,
                        state=PublicationState.INTENT.value,
                        topic=topic,
                        cluster_id=cluster_id,
                        topic_id=topic_id,
                        starts=canonical_json({str(partition): offset for partition, offset in starts.items()}),
                        actor=actor,
                        started_at=instants.now(connection),
                        **actors.columns(actor),
                    )
                )
        except sa.exc.IntegrityError as error:
            raise _moved(run_id) from error
        return next(one for one in self.of_run(run_id, sink) if one.number == number)

    def close(
        self, entry: TopicPublication, state: PublicationState, written: Sequence[WrittenRange], note: str = ""
    ) -> TopicPublication:
        """Record what the topic has of a publication, once; return the entry.

        Raises:
            StateMoved: if another process has closed it.
        """
        with self.engine.begin() as connection:
            done = connection.execute(
                topic_publications.update()
                .where(
                    topic_publications.c.id == entry.id,
                    topic_publications.c.state == PublicationState.INTENT.value,
                )
                .values(
                    state=state.value,
                    events=sum(one.events for one in written),
                    written=canonical_json(list(written)),
                    note=note,
                    ended_at=instants.now(connection),
                )
            )
            if done.rowcount != 1:
                raise _moved(entry.run_id)
        return next(one for one in self.of_run(entry.run_id, entry.sink) if one.id == entry.id)


def _moved(run_id: str) -> StateMoved:
    return StateMoved(
        Problem(
            f"another process has gone on with the events of '{run_id}' meanwhile",
            "events of a run are written by one process at a time, as its last change says",
            f"see `backfill status {run_id}`; then give the command again",
        )
    )
