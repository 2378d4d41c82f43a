"""Requests for sinks: which sink a run has asked for, and the answer.

Put here the record only; whether a run may reach a sink is `resources.sinks.policy`'s, what is sent `resources.sinks.adapters`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import sqlalchemy as sa

from resources.ledger import instants
from resources.ledger.part import Part, Stored
from resources.ledger.tables import sink_attempts


@dataclass(frozen=True)
class SinkRequest(Stored):
    """One request for a sink, and its answer."""

    table: ClassVar[sa.Table] = sink_attempts

    id: int
    run_id: str
    sink: str
    sink_class: str
    mode: str
    action: str
    decision: str
    reason: str
    at: datetime


class SinkRequests(Part):
    """The requests for sinks of a ledger's runs."""

    def record_sink_attempt(
        self, run_id: str, *, sink: str, sink_class: str, mode: str, action: str, decision: str, reason: str
    ) -> None:
        """Record that a sink was asked for, and the answer."""
        with self.engine.begin() as connection:
            connection.execute(
                sink_attempts.insert().values(
                    run_id=run_id,
                    sink=sink,
                    sink_class=sink_class,
                    mode=mode,
                    action=action,
                    decision=decision,
                    reason=reason,
                    at=instants.now(connection),
                )
            )

    def sink_attempts(self, run_id: str) -> list[SinkRequest]:
        """Return the sink requests of a run, in order."""
        return self._stored(
            SinkRequest, sa.select(sink_attempts).where(sink_attempts.c.run_id == run_id).order_by(sink_attempts.c.id)
        )
