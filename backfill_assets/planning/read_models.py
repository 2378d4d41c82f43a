"""What the migrations of read models say of a target: whether it is LIVE's turn to write it, and whether anybody may.

Put here what is asked before a tick, a plan or a publication. Which step a migration takes next is `backfill_assets.migration`'s.
"""

from __future__ import annotations

from backfill_assets.installation import Platform
from manifests.errors import PlanRefused, Problem
from manifests.migration_steps import Side, Step


def live_stands_still(platform: Platform, target: str) -> str:
    """Say why LIVE begins no run of a target; empty where it may.

    Raises:
        EnvironmentRefused: if the record of its migrations was changed by hand.
    """
    steps = platform.ledger.migrations.of_table(target)
    if steps:
        platform.ledger.migrations.require_explained()
    for step in steps:
        if step.side_of(target) in step.live:
            continue
        if step.step is Step.DECOMMISSIONED:
            return f"{target} is decommissioned: {step.new_table} has taken its place (migration {step.migration})"
        writes = ", ".join(sorted(map(step.table_of, step.live))) or "neither table"
        return f"migration {step.migration} is {step.step}: LIVE writes {writes}"
    return ""


def decommissioned(platform: Platform, target: str) -> list[Problem]:
    """Say that nobody writes a target any more."""
    return [
        Problem(
            f"{target} was decommissioned by {step.decided_by} ({step.at:%Y-%m-%d %H:%M} UTC)",
            f"its readers read {step.new_table} since, and nothing is published to it any more",
            f"plan the change for {step.new_table}",
        )
        for step in platform.ledger.migrations.of_table(target)
        if step.step is Step.DECOMMISSIONED and step.side_of(target) is Side.OLD
    ]


def require_in_use(platform: Platform, target: str) -> None:
    """Refuse to plan a change of a target that was decommissioned.

    Raises:
        PlanRefused: naming what has taken its place.
    """
    if problems := decommissioned(platform, target):
        raise PlanRefused(problems)
