"""Which staged files a run-level verdict is about: named by one hash, so that it is never taken for other files.

Put here the name and how it is looked up in the ledger. A launch may judge for minutes, and meanwhile another one may have
judged, published in vain, planned chunks anew and staged them again: a verdict counts while the ledger holds the very
chunks that it was made of. A verdict of an older ledger names none; it is taken as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import sqlalchemy as sa

from manifests.canonical import sha256_of
from resources.ledger.tables import chunks


class _Chunk(Protocol):
    """A chunk of the ledger, as a record or as a row."""

    @property
    def chunk(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def digest(self) -> str | None: ...


def name_of(staged: Iterable[_Chunk]) -> str:
    """Return the SHA-256 (hex) of the attempt and the digest of each of a run's chunks, in order."""
    return sha256_of([[one.chunk, one.attempt, one.digest] for one in staged])


def present(connection: sa.Connection, run_id: str) -> str:
    """Return the name of what is staged in a transaction that has locked the run."""
    query = sa.select(chunks.c.chunk, chunks.c.attempt, chunks.c.digest)
    return name_of(connection.execute(query.where(chunks.c.run_id == run_id).order_by(chunks.c.idx)))


def is_about(judged: str, staged: str) -> bool:
    """Tell whether a verdict with one name is about what has the other."""
    return judged in {"", staged}
