"""What a run is estimated to take and to cost, what it has taken, and which limits it keeps to, as facts for a terminal.

Put here the words for it; how it is reckoned is `manifests.costs`'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from backfill_assets.installation import Platform
    from manifests.plan import Plan
    from resources.ledger.facade import RunRecord


def takes(planned: Plan) -> list[tuple[str, object]]:
    """Say how large its batches and files are, what a run is estimated to take and to cost, and which limits it keeps to."""
    costs = [] if planned.costs is None else planned.costs.describe()
    breaker = () if planned.breaker is None else planned.breaker.describe()
    costs += [("circuit breaker", one) for one in breaker]
    return [
        *planned.of_sizes(),
        *costs,
        *(("limits", one) for one in (() if planned.pace is None else planned.pace.describe())),
    ]


def took(platform: Platform, record: RunRecord) -> list[tuple[str, object]]:
    """Say what a run has taken so far, beside what it was estimated to; nothing of one that has computed nothing."""
    from backfill_assets.evidence.run_costs import costs_of

    found = costs_of(platform.ledger, record)
    return [] if found is None else [("took", str(found))]


def as_data(platform: Platform, record: RunRecord) -> dict[str, Any] | None:
    """Return the same as plain data."""
    from backfill_assets.evidence.run_costs import costs_of, told

    found = costs_of(platform.ledger, record)
    return None if found is None else told(found)
