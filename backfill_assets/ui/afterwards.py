"""What comes next for a run that is over, or that readers see, in the words of its page, and who ended it.

Put here what may be undone, brought back, accepted or planned anew afterwards. What comes next before that is `next_step`'s; whether
it is allowed is decided when somebody does it.
"""

from __future__ import annotations

from collections.abc import Collection
from html import escape

from backfill_assets.defs.addresses import run_path
from backfill_assets.publication.modes import strategy_of
from manifests.lifecycle import ACCEPT, ENDED, ROLLBACK, DecisionKind, RunState
from resources.ledger.accepted_versions import changed_hands
from resources.ledger.facade import Ledger, RunRecord, TransitionRecord


def ended_by(ledger: Ledger, record: RunRecord) -> TransitionRecord | None:
    """Return how a run has ended without a publication, where no decision says so: it was cancelled, or its publication refused."""
    if record.state not in ENDED:
        return None
    decided = any(one.decision == DecisionKind.REJECTED for one in ledger.decisions(record.run_id))
    if decided and record.state is RunState.REJECTED:
        return None
    return next((one for one in reversed(ledger.history(record.run_id)) if one.to_state is record.state), None)


def afterwards(ledger: Ledger, record: RunRecord) -> str:
    """Say what may be done about a run that is over, or that readers see; empty of any other."""
    match record.state:
        case RunState.PUBLISHED:
            return _when_published(ledger, record)
        case RunState.ROLLED_BACK:
            return _when_rolled_back(ledger, record)
        case RunState.SUPERSEDED:
            later = _later_holders(ledger, record)
            first = f"; it is shown again by rolling back {_named(later)}" if later else ""
            return f"nothing: other runs hold its chunks by now{first}"
        case RunState.REJECTED if (end := ended_by(ledger, record)) is not None:
            return _when_refused(ledger, record, end)
        case RunState.REJECTED | RunState.CANCELLED:
            return "nothing: it is over. The same change again, or another one, is a run with a new run id"
    return ""


def _when_published(ledger: Ledger, record: RunRecord) -> str:
    run_id = escape(record.run_id)
    undo = f"<code>backfill rollback {run_id} --by NAME</code>, or the job roll_back_run in Dagster, undoes it"
    accepted = any(one.action == ACCEPT and one.has_landed for one in ledger.publications(record.run_id))
    if strategy_of(record.plan).accepted_later and not accepted:
        version = escape(str(record.plan.version))
        accept = f"<code>backfill accept {run_id} --by NAME</code>"
        return f"readers of main do not see it until somebody accepts its version {version}: {accept}. If it is wrong, {undo}"
    if later := _later_holders(ledger, record):
        return f"nothing. If it has to be undone, roll back {_named(later)} first: part of its chunks is held by what came later; then {undo}"
    return f"nothing: readers see it. If it has to be undone, {undo}"


def _when_rolled_back(ledger: Ledger, record: RunRecord) -> str:
    undone = [one.landed_at for one in ledger.publications(record.run_id) if one.action == ROLLBACK and one.has_landed]
    holdings = ledger.holdings(record.target)
    held = {one.chunk for one in holdings if one.run_id == record.run_id}
    of_its_chunks = [one for one in holdings if one.chunk in held]
    found = changed_hands(of_its_chunks, record.run_id, undone[-1]) if undone and undone[-1] is not None else None
    if found is not None and (found.taken or found.undone):
        if found.later or not found.undone:
            others = _named(found.later or {*found.taken.values()})
            first = f"others hold chunks of it since its rollback: it is reinstated once {others} is rolled back"
        else:
            first = f"what it was published on was rolled back, too: it is reinstated once {_named(found.undone)} is"
        return f"nothing: {first}. The same change on the table as it is now is a run with a new run id"
    command = f"<code>backfill reinstate {escape(record.run_id)} --by NAME</code>"
    return (
        f"nothing: readers see what was there before it. {command}, or the job reinstate_run in Dagster, brings it back"
    )


def _when_refused(ledger: Ledger, record: RunRecord, end: TransitionRecord) -> str:
    """Say who has changed the chunks of a run whose publication was refused for good, as far as the ledger has it."""
    amended = [one.at for one in ledger.amendments(record.run_id)]
    since, keys = max([record.created_at, *amended]), {one.key for one in record.plan.chunks}
    others = {
        one.run_id for one in ledger.holdings(record.target) if one.chunk in keys and since < one.accepted_at <= end.at
    }
    whose = f"its chunks were changed, since it was planned, by {_named(others)}: " if others else ""
    return f"{whose}plan the change again, under a new run id, on the table as it is now"


def _later_holders(ledger: Ledger, record: RunRecord) -> set[str]:
    """Return the runs that hold chunks today which a run has held."""
    today = ledger.accepted(record.target, [one.key for one in record.plan.chunks])
    if {*today.values()} <= {record.run_id}:
        return set()  # nobody reads what each chunk ever was
    held = {one.chunk for one in ledger.holdings(record.target) if one.run_id == record.run_id}
    return {holder for chunk, holder in today.items() if chunk in held and holder != record.run_id}


def _named(run_ids: Collection[str]) -> str:
    return " and ".join(f"<a href='{run_path(one)}'>{escape(one)}</a>" for one in sorted(run_ids))
