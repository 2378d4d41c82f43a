"""What a run is computed, judged and compared with: the installation, the declaration of its target, and its plan.

Put here what takes more than one of the three. What one of them says alone, it says itself; what the ledger knows of a run
besides its plan (its state, its chunks) is in its records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.plan import Plan
from resources.ledger.facade import RunRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def as_planned(target: TargetTable, plan: Plan) -> TargetTable:
    """Return a target divided as it was when a plan of it was made: its declaration may name other values or bounds by now."""
    if plan.division is None or plan.division == target.chunk_values:
        return target
    return replace(target, chunk_values=plan.division)


@dataclass(frozen=True)
class RunContext:
    """A plan of a run, its target and the installation that it is in.

    A run has one for each of its plans: the approved one, and those that chunks of it were planned anew with.

    Attributes:
        platform: the installation.
        target: the run's target, divided as it was when the plan was made.
        plan: the plan.
    """

    platform: Platform
    target: TargetTable
    plan: Plan

    def __post_init__(self) -> None:
        """Take the division of the plan: its chunks are named by that, whatever is declared since."""
        object.__setattr__(self, "target", as_planned(self.target, self.plan))

    @classmethod
    def of(cls, platform: Platform, record: RunRecord) -> RunContext:
        """Return the context of a run with its approved plan.

        Raises:
            InputRefused: if no product declares its target.
        """
        return cls(platform, platform.products.target(record.target), record.plan)

    def with_plan(self, plan: Plan) -> RunContext:
        """Return the context of the same run with another of its plans."""
        return replace(self, plan=plan)

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self.plan.run_id

    @property
    def spark(self) -> SparkSession:
        """The Spark session of the plan's mode."""
        return self.platform.spark.session(self.plan.mode)
