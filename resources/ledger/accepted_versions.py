"""Accepted versions: which run each chunk of a target is from, since when and until when.

Put here how a chunk changes hands; the transaction in which it does is a publication's (`publications`). Nothing is deleted:
every version that was ever accepted stays on record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import sqlalchemy as sa

from manifests.lifecycle import ROLLBACK, PublicationState, RunState
from resources.ledger.part import Stored
from resources.ledger.tables import accepted_versions, publications, runs

TABLE = accepted_versions
_KEYS_AT_ONCE = 500


@dataclass(frozen=True)
class AcceptedVersion(Stored):
    """One chunk of a target, while it was a run's."""

    table: ClassVar[sa.Table] = accepted_versions

    id: int
    target: str
    chunk: str
    run_id: str
    accepted_at: datetime
    ended_at: datetime | None
    ended_by: str | None
    ended_how: str | None


@dataclass(frozen=True)
class ChangedHands:
    """What has become of a run's chunks since it was rolled back.

    Attributes:
        taken: the chunks that others hold today than its rollback has left them to, each with its holder.
        later: those of their holders that held it not before the run: they came after it.
        undone: whom its rollback has left chunks to that they hold no more: they were rolled back, too, or replaced.
    """

    taken: dict[str, str]
    later: set[str]
    undone: set[str]


def changed_hands(holdings: Sequence[AcceptedVersion], run_id: str, rolled_back_at: datetime) -> ChangedHands:
    """Return what has become of chunks since a run was rolled back; of `holdings`, those of its chunks, oldest first."""
    left = {one.chunk: one.run_id for one in holdings if one.accepted_at == rolled_back_at}
    today = {one.chunk: one.run_id for one in holdings if one.ended_at is None}
    taken = {chunk: holder for chunk, holder in sorted(today.items()) if left.get(chunk) != holder}
    earlier = _held_earlier(holdings, run_id)
    later = {holder for chunk, holder in taken.items() if (chunk, holder) not in earlier}
    return ChangedHands(taken, later, {holder for chunk, holder in left.items() if today.get(chunk) != holder})


def _held_earlier(holdings: Sequence[AcceptedVersion], run_id: str) -> set[tuple[str, str]]:
    """Return the chunks that others have held before a run first did, each with whose it was."""
    mine: set[str] = set()
    found: set[tuple[str, str]] = set()
    for one in holdings:
        if one.run_id == run_id:
            mine.add(one.chunk)
        elif one.chunk not in mine:
            found.add((one.chunk, one.run_id))
    return found


def holders(connection: sa.Connection, target: str, keys: Sequence[str] | None) -> dict[str, str]:
    """Return the run that each chunk of a target (of `keys`, if given) is from today."""
    current = accepted_versions.c
    query = sa.select(current.chunk, current.run_id).where(current.target == target, current.ended_at.is_(None))
    if keys is None:
        return {row.chunk: row.run_id for row in connection.execute(query)}
    return {
        row.chunk: row.run_id
        for start in range(0, len(keys), _KEYS_AT_ONCE)
        for row in connection.execute(query.where(current.chunk.in_(keys[start : start + _KEYS_AT_ONCE])))
    }


def take(connection: sa.Connection, target: str, keys: Sequence[str], run_id: str, at: datetime) -> dict[str, str]:
    """Make a run the holder of chunks; return who held them before."""
    before = holders(connection, target, keys)
    if keys:
        end(connection, target, list(before), run_id, RunState.SUPERSEDED, at)  # of what nobody holds nothing ends
        insert(connection, target, keys, run_id, at)
    return before


def held_before(connection: sa.Connection, target: str, run_id: str, rollback: int) -> list[tuple[str, str]]:
    """Return the chunks that a run took when it was last published, reinstated or accepted, each with who held it then.

    That is since the rollback before the one that is being recorded: of a chunk that nobody held then, nobody holds it again.
    A chunk that was taken from the run since, and given back to it, is one that it took then. And nobody who is rolled
    back holds anything: earlier versions could have it so.
    """
    rolled_back = sa.select(sa.func.max(publications.c.ended_at)).where(
        publications.c.run_id == run_id,
        publications.c.action == ROLLBACK,
        publications.c.state == PublicationState.COMMITTED,
        publications.c.id != rollback,
    )
    since = connection.execute(rolled_back).scalar()
    taken = (
        sa.select(accepted_versions.c.chunk, accepted_versions.c.run_id)
        .join(runs, runs.c.run_id == accepted_versions.c.run_id)
        .where(
            accepted_versions.c.target == target,
            accepted_versions.c.ended_by == run_id,
            accepted_versions.c.run_id != run_id,  # earlier versions could record an acceptance twice
            accepted_versions.c.ended_how == RunState.SUPERSEDED,
            sa.true() if since is None else accepted_versions.c.ended_at > since,
            runs.c.state.in_([RunState.PUBLISHED, RunState.SUPERSEDED]),
        )
        .order_by(accepted_versions.c.id)
    )
    return [(row.chunk, row.run_id) for row in connection.execute(taken)]


def still_holds(connection: sa.Connection, run_id: str) -> bool:
    """Tell whether any chunk is from a run today."""
    query = sa.select(sa.func.count()).where(
        accepted_versions.c.run_id == run_id, accepted_versions.c.ended_at.is_(None)
    )
    return bool(connection.execute(query).scalar_one())


def end(
    connection: sa.Connection,
    target: str,
    keys: Sequence[str],
    by: str,
    how: str,
    at: datetime,
    *,
    holder: str | None = None,
) -> None:
    """End what is accepted today of chunks (of one holder, if given), and say by which run and how."""
    current = accepted_versions.c
    for start in range(0, len(keys), _KEYS_AT_ONCE):  # what each row was before is asked once a statement
        connection.execute(
            accepted_versions.update()
            .where(
                current.target == target,
                current.ended_at.is_(None),
                current.chunk.in_(keys[start : start + _KEYS_AT_ONCE]),
                sa.true() if holder is None else current.run_id == holder,
            )
            .values(ended_at=at, ended_by=by, ended_how=how)
        )


def insert(connection: sa.Connection, target: str, keys: Sequence[str], run_id: str, at: datetime) -> None:
    """Make a run the holder of chunks that nobody holds."""
    connection.execute(
        accepted_versions.insert(),
        [{"target": target, "chunk": key, "run_id": run_id, "accepted_at": at} for key in keys],
    )
