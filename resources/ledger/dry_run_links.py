"""The dry run of a link, asked again in the transaction that relies on it: whether it still stands.

Put here what the ledger asks of it. Which dry run counts for an approval is `backfill_assets.publication.dry_runs`' to find.
"""

from __future__ import annotations

from collections.abc import Collection

import sqlalchemy as sa

from manifests.dry_runs import DryRunLink
from manifests.errors import DecisionRefused, Problem
from manifests.lifecycle import RunState
from resources.ledger.locks import lock_runs
from resources.ledger.runs import run_of

STANDS = frozenset({RunState.VALIDATED, RunState.CANCELLED})
"""States of a dry run that stands for what was approved on it: cancelling one puts it away, and says nothing against its results."""


def lock_with_dry_run(connection: sa.Connection, run_id: str, link: DryRunLink | None) -> None:
    """Let no other transaction change a run, nor the dry run that it rests on, if it does, until this one has ended."""
    lock_runs(connection, [run_id, *([] if link is None else [link.run_id])])


def require_dry_run(connection: sa.Connection, link: DryRunLink | None, states: Collection[RunState]) -> None:
    """Refuse a dry run that is no longer what its link says. The transaction has locked it, with the run that rests on it.

    Nothing is asked where the approval rests on none.

    Raises:
        DecisionRefused: if it is in none of the states, or has another plan.
        InputRefused: if it is not on record.
    """
    if link is None:
        return
    found = run_of(connection, link.run_id)
    if found.state not in states or found.plan_hash != link.plan_hash:
        why = f" ({found.state_reason})" if found.state_reason else ""
        raise DecisionRefused(
            Problem(
                f"dry run '{link.run_id}' is {found.state} by now{why}, with plan {found.plan_hash[:12]}",
                f"what rests on a dry run is decided and published while that one is {' or '.join(sorted(states, reverse=True))}, with "
                "the plan that was looked at",
                f"look at `backfill status {link.run_id}`, and decide again",
            )
        )
