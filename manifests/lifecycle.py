"""The states of a run and of what belongs to it, the transitions allowed between a run's, and the actions that change what readers see.

The rules only; who holds the state and moves it by compare-and-set is the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from manifests.errors import Problem, TransitionRefused

PUBLISH, ROLLBACK, REINSTATE, ACCEPT = "publish", "rollback", "reinstate", "accept"
WITHDRAW = "withdraw"
"""What takes back corrections that were announced before the target's change, which never came."""
CANCEL = "cancel"
"""What a lease is taken for that keeps publishers away and commits nothing."""
PREPARE = "prepare"
"""What a lease is taken for under which a candidate is committed to its branch: readers of main see nothing of it."""


class RunState(StrEnum):
    """Where a run stands."""

    DRAFT = "DRAFT"
    PLANNED = "PLANNED"
    APPROVED = "APPROVED"
    RUNNING = "RUNNING"
    STAGED = "STAGED"
    VALIDATED = "VALIDATED"
    PUBLISHED = "PUBLISHED"
    SUPERSEDED = "SUPERSEDED"
    ROLLED_BACK = "ROLLED_BACK"
    REJECTED = "REJECTED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class ChunkState(StrEnum):
    """Where a chunk stands."""

    PLANNED = "PLANNED"
    STAGED = "STAGED"
    PASSED = "PASSED"
    FAILED = "FAILED"


class AttemptState(StrEnum):
    """How an attempt at computing chunks has ended, or that it is under way."""

    RUNNING = "RUNNING"
    STAGED = "STAGED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"
    """A stop has ended it."""
    OBSOLETE = "OBSOLETE"
    """Its chunks were planned anew before it was staged: nothing of it is used, and nothing has failed."""


class PublicationState(StrEnum):
    """What has become of an action that changes a target."""

    INTENT = "INTENT"
    """It is about to, or nobody knows yet what came of it."""
    COMMITTED = "COMMITTED"
    REFUSED = "REFUSED"
    """It has changed nothing."""
    ABANDONED = "ABANDONED"
    """Its process ended before it could say what came of it; another entry says so."""


class DecisionKind(StrEnum):
    """What somebody has decided about a run."""

    REVIEWED = "REVIEWED"
    APPROVED = "APPROVED"
    REJECTED = "REJECTED"
    PUBLISH = "PUBLISH"
    ROLLBACK = "ROLLBACK"
    REINSTATE = "REINSTATE"
    ACCEPT = "ACCEPT"


S = RunState
TRANSITIONS: dict[RunState, frozenset[RunState]] = {
    S.DRAFT: frozenset({S.PLANNED, S.CANCELLED}),
    S.PLANNED: frozenset({S.APPROVED, S.REJECTED, S.CANCELLED}),
    S.APPROVED: frozenset({S.RUNNING, S.REJECTED, S.CANCELLED}),
    S.RUNNING: frozenset({S.STAGED, S.FAILED, S.CANCELLED}),
    # back to RUNNING: a staged file turned out to be damaged, its chunk is computed again
    S.STAGED: frozenset({S.VALIDATED, S.FAILED, S.RUNNING, S.CANCELLED}),
    # back to RUNNING: somebody else changed part of the scope, whose chunks are planned anew
    S.VALIDATED: frozenset({S.PUBLISHED, S.RUNNING, S.REJECTED, S.CANCELLED}),
    S.FAILED: frozenset({S.RUNNING, S.REJECTED, S.CANCELLED}),
    S.PUBLISHED: frozenset({S.SUPERSEDED, S.ROLLED_BACK}),
    # back to PUBLISHED: the run that superseded it was rolled back
    S.SUPERSEDED: frozenset({S.PUBLISHED}),
    # back to PUBLISHED: the rollback is undone
    S.ROLLED_BACK: frozenset({S.PUBLISHED}),
    S.REJECTED: frozenset(),
    S.CANCELLED: frozenset(),
}

APPROVED_OR_LATER = frozenset(S) - {S.DRAFT, S.PLANNED}
"""States in which manifest and plan are immutable."""
COMPUTABLE = frozenset({S.APPROVED, S.RUNNING, S.STAGED, S.FAILED})
"""States in which chunks may be computed and gated."""
ENDED = frozenset(state for state, after in TRANSITIONS.items() if not after)
"""States that nothing follows, of runs that were never published."""
WAS_PUBLISHED = frozenset({S.PUBLISHED, S.SUPERSEDED, S.ROLLED_BACK})
"""States of runs whose rows readers see, or have seen."""


def check_transition(run_id: str, current: RunState, wanted: RunState) -> None:
    """Refuse a transition that is not in the table.

    Raises:
        TransitionRefused: naming both states and those that could follow.
    """
    if wanted in TRANSITIONS[current]:
        return
    after = ", ".join(sorted(TRANSITIONS[current])) or "nothing: it is final"
    raise TransitionRefused(
        Problem(
            f"run '{run_id}' is {current} already"
            if wanted is current
            else f"run '{run_id}' is {current} and cannot become {wanted}",
            f"after {current} comes {after}",
            f"see `backfill status {run_id}`"
            + ("" if current in ENDED else " for what it waits for")
            + "; a new attempt at the same change is a new run id",
        )
    )


def undone_by(done: Sequence[tuple[str, int | None]]) -> str:
    """Return the action that the next rollback or reinstatement undoes, from action and snapshot of a run's changes, oldest first.

    It is the last one by which main came to show something else. To accept a version makes main show what was published;
    where a version was taken back, or brought back, by its name alone, the entry has the snapshot that was published.
    """
    _, published = done[0]
    for action, snapshot in reversed(done):
        if action == ACCEPT:
            return PUBLISH
        if snapshot not in {published, 0}:  # an earlier version could record a change of a name with 0
            # what was taken back from main, and brought back by its name, main shows by another program's doing alone
            return PUBLISH if (action, done[-1][0]) == (ROLLBACK, REINSTATE) else str(action)
    return PUBLISH
