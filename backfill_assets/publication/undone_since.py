"""Which other runs were rolled back after a run was, so that they have to be reinstated before it.

Put here how the ledger's record of what was committed is held against the files of the table: a refusal names runs only where
their undoing is all that has changed the files since. Whether a reinstatement may be made is the strategies' to say.
"""

from __future__ import annotations

from backfill_assets.publication.change import Change
from manifests.chunks import in_words
from manifests.errors import Problem, PublicationRefused, Refused
from manifests.lifecycle import ROLLBACK
from resources.lakehouse.facade import ScopeChanged
from resources.ledger.facade import PublicationRecord

_Files = dict[str, set[str]]


def told_whom_to_reinstate(change: Change, refusal: Refused) -> Refused:
    """Return why a reinstatement is refused, with the runs to reinstate first where the files of its chunks are others because of them.

    As it is, where somebody else may have written there, or a snapshot that would tell has expired.
    """
    if not isinstance(refusal, ScopeChanged) or not (runs := _undone_since(change)):
        return refusal
    named, run_id = ", ".join(runs), change.record.run_id
    order = ", in this order, and then this one" if len(runs) > 1 else ", and then this one"
    return PublicationRefused(
        Problem(
            f"{change.target.name} no longer has the files that the rollback of '{run_id}' has left in "
            f"{in_words(chunk.key for chunk in change.plan.chunks)}: {named} {'were' if len(runs) > 1 else 'was'} rolled back after it",
            "a run is reinstated only on the files that its rollback has left",
            f"reinstate {named} first{order}; or plan the change again, under a new run id, on the table as it is now",
        )
    )


def _undone_since(change: Change) -> list[str]:
    """Return the runs rolled back after a run was, the last one first; none unless that is all that has changed the files of its chunks."""
    run_id, ledger = change.record.run_id, change.platform.ledger
    committed = ledger.committed(change.target.name)
    own = [place for place, one in enumerate(committed) if one.run_id == run_id and one.action == ROLLBACK]
    if not own or (left := _files_at(change, committed[own[-1]].snapshot_id)) is None:
        return []
    undone: list[str] = []
    standing: list[str] = []
    for one in committed[own[-1] + 1 :]:
        if left.keys().isdisjoint(chunk.chunk for chunk in ledger.chunks(one.run_id)):
            continue
        before, after = _exchanged(change, one)
        if before is None or after is None or before != left:
            return []
        if before == after:
            continue
        left, goes = after, one.action == ROLLBACK
        taken_back, made = (standing, undone) if goes else (undone, standing)
        if one.run_id in taken_back:
            taken_back.remove(one.run_id)
        else:
            made.append(one.run_id)
    return [] if standing or left != _listed(change, None) else undone[::-1]


def _exchanged(change: Change, record: PublicationRecord) -> tuple[_Files | None, _Files | None]:
    """Return the files of the run's chunks before and after what another has committed; None of what has expired."""
    lakehouse, name = change.platform.lakehouse, change.target.name
    if record.snapshot_id is None or not lakehouse.has_snapshot(name, record.snapshot_id):
        return None, None
    parent = lakehouse.parent_of(name, record.snapshot_id)
    before = {chunk: set[str]() for chunk in change.chunk_scopes} if parent is None else _files_at(change, parent)
    return before, _files_at(change, record.snapshot_id)


def _files_at(change: Change, snapshot_id: int | None) -> _Files | None:
    if snapshot_id is None or not change.platform.lakehouse.has_snapshot(change.target.name, snapshot_id):
        return None
    return _listed(change, snapshot_id)


def _listed(change: Change, snapshot_id: int | None) -> _Files:
    """Return the files of the run's chunks at a snapshot; None: as they are now."""
    return change.platform.lakehouse.paths_by_chunk(
        change.target.name, snapshot_id, change.chunk_scopes, with_others=change.plan.values is None
    )
