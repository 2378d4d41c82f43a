"""Engines other than Spark that serve Spark Connect: which session is of one, and what was noticed while it computed.

Put here what anybody who builds a frame asks of its session. How such a session is had is the engine's own module's; a session
that is not named here is Spark's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class OtherEngine:
    """An engine that computes in the place of Spark.

    Attributes:
        name: what people call it.
        version: its own, not that of the Spark whose protocol it speaks.
        notes: what it does otherwise than Spark and was made good, each once, as sentences.
    """

    name: str
    version: str
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    def note(self, text: str) -> None:
        """Keep a sentence for whoever reads what was computed."""
        if text not in self.notes:
            self.notes.append(text)


_engines: WeakKeyDictionary[SparkSession, OtherEngine] = WeakKeyDictionary()


def has_engine(session: SparkSession, engine: OtherEngine) -> None:
    """Keep which engine a session is of."""
    _engines[session] = engine


def other_engine(session: SparkSession) -> OtherEngine | None:
    """Return the engine of a session; None where it is Spark."""
    return _engines.get(session)
