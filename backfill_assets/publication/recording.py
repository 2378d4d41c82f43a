"""Putting on record, and telling of, what has landed: nothing here decides anything or starts a change of a table.

Put here what a repair may do from a look that is older than what people have done since: each function looks again, under
the lease of the run's days where it matters, and does nothing where what it was asked for is not so any more.
"""

from __future__ import annotations

from backfill_assets.installation import Platform
from backfill_assets.publication.announcements import tell_of
from backfill_assets.publication.leasing import publishing_lease, tag_bases
from backfill_assets.publication.modes import change_of
from manifests.lifecycle import PublicationState, RunState
from resources.ledger.facade import ABANDONED, PROCESS_ENDED

RECORD = "record"
"""What a lease is taken for under which what has landed is put on record."""


def record_landed(platform: Platform, run_id: str, action: str, number: int) -> int | None:
    """Put a run's change on record that is its `number`th and has landed; return its snapshot.

    None, and nothing is done, where it has not landed, nobody has set out to it, or the run has gone on to something else
    since.

    Raises:
        LeaseHeld: if somebody is at a change of the same days.
        PublicationRefused: if what is left of a change of two tables cannot be done any more.
    """
    with publishing_lease(platform, platform.ledger.run(run_id), RECORD):
        pass  # who holds it has recorded what open intents name, and nothing else is the run's doing
    return tell_again(platform, run_id, action, number)


def close_intent(platform: Platform, run_id: str, entry: int, action: str) -> str | None:
    """Close an open intent of which nothing has landed, or which another entry has recorded; return as what.

    Under the lease whatever was on its way is fenced, and what has landed is recorded: nothing can come of an intent that
    is open still. None, and nothing is done, where it is open no more.

    Raises:
        LeaseHeld: if somebody is at a change of the same days.
    """
    ledger = platform.ledger
    with publishing_lease(platform, ledger.run(run_id), RECORD):
        done = [one for one in ledger.landed(run_id) if one.action == action]
        later = [one.id for one in done if one.id > entry]
        if later:
            state, note = ABANDONED, f"{PROCESS_ENDED} before it could record the {action}; entry {later[0]} records it"
        else:
            state, note = PublicationState.REFUSED, f"{PROCESS_ENDED}; readers see nothing of it"
        return state if ledger.repairs.close_publication(entry, state, note) else None


def protect_bases(platform: Platform, run_id: str) -> list[str]:
    """Tag the base snapshots of a published run, so that no expiry takes them; return the tags that were missing.

    None, and nothing is done, where the run is published no more, or a collection has removed the snapshots since.

    Raises:
        LeaseHeld: if somebody is at a change of the same days, or collects garbage.
        PublicationRefused: if there is such a tag, and it names another snapshot.
    """
    with publishing_lease(platform, platform.ledger.run(run_id), RECORD):
        record = platform.ledger.run(run_id)
        return tag_bases(platform, change_of(platform, record, [])) if record.state is RunState.PUBLISHED else []


def tell_again(platform: Platform, run_id: str, action: str, number: int) -> int | None:
    """Tell evidence and sinks of a run's last change, its `number`th; return its snapshot.

    None, and nothing is told, where another change is the last one by now.
    """
    done = platform.ledger.landed(run_id)
    if len(done) != number or done[-1].action != action:
        return None
    return tell_of(platform, platform.ledger.run(run_id), done[-1], number).snapshot_id
