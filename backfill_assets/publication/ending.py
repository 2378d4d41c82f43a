"""A run ends without a publication: it is cancelled, or somebody has rejected it.

Put here what must be true of a run that readers never see, and the order in which it ends. Who may end one is decided in
`decisions`.
"""

from __future__ import annotations

from collections.abc import Callable

from backfill_assets import faults
from backfill_assets.installation import Platform
from backfill_assets.publication.announcements import logged
from backfill_assets.publication.change import Change
from backfill_assets.publication.leasing import publishing_lease
from backfill_assets.publication.modes import change_of
from manifests.errors import Problem, PublicationRefused, StateMoved
from manifests.lifecycle import CANCEL, PUBLISH, RunState


@logged(CANCEL)
def cancel(platform: Platform, run_id: str, by: str, comment: str) -> None:
    """End a run without a publication.

    Raises:
        LeaseHeld: if it is being published just now.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if its publication has landed and was not recorded: readers have seen it.
    """

    def end(found: RunState, token: int | None) -> None:
        platform.ledger.move(run_id, RunState.CANCELLED, by, comment, expected=found, token=token)

    end_unpublished(platform, run_id, end)


def end_unpublished(platform: Platform, run_id: str, end: Callable[[RunState, int | None], None]) -> None:
    """Have a run ended that is not published: `end` moves it from the state it is given, and from no other.

    A run that could be published just now is ended under the lease of its scope, whose token `end` is given as well. If
    another process has moved the run since it was looked at, it is looked at again: it may have become VALIDATED, and
    may be published by now.

    Raises:
        LeaseHeld: if it is being published just now.
        LeaseLost: if this process was paused for so long that somebody else has taken the scope over.
        PublicationRefused: if its publication has landed and was not recorded: readers have seen it.
        StateMoved: if another run of its days has something left open that cannot be recorded.
    """
    while True:  # each turn follows a step that somebody else took with the run
        record = platform.ledger.run(run_id)
        looked_at = record.state, record.updated_at
        faults.reach("ending.looked")
        try:
            if record.state is not RunState.VALIDATED or not record.plan.publishes:
                return end(record.state, None)
            with publishing_lease(platform, record, CANCEL) as lease:
                record = platform.ledger.run(run_id)
                change = change_of(platform, record, platform.ledger.chunks(run_id), lease.token)
                _require_unseen(change)
                change.strategy.take_announcement_back(change)
                faults.reach("ending.leased")
                return end(record.state, lease.token)
        except StateMoved:
            record = platform.ledger.run(run_id)
            if (record.state, record.updated_at) == looked_at:
                raise  # it was another run of these days that could not be recorded: no turn would change that


def _require_unseen(change: Change) -> None:
    """Refuse to end a run that readers have seen by a publication of it; not one that another program shows.

    Raises:
        PublicationRefused: if its publication has landed.
    """
    record = change.record
    if record.state is RunState.PUBLISHED or (change.has_landed and change.has_begun(PUBLISH)):
        raise PublicationRefused(
            Problem(
                f"the publication of '{record.run_id}' has landed in {record.target}",
                "what readers have seen is rolled back, not cancelled or rejected",
                f"roll it back; if it is VALIDATED still, `backfill publish {record.run_id}` first: it records what landed",
            )
        )
