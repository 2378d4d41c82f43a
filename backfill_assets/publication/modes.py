"""The strategy of each publish mode, and the change that a run makes by it.

Put here a line a family. Which modes a family has and what they do is in its own module, and nothing else in this package asks
which mode a plan has; what readers see of a run, the mode itself says (`manifests.model`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from backfill_assets.declarations.products import Products
from backfill_assets.installation import Platform
from backfill_assets.publication import correction_events, move_references, replace_files
from backfill_assets.publication.change import Change, Options, PublishStrategy, Strategies
from backfill_assets.run_context import as_planned
from manifests import stages
from manifests.model import PublishMode
from manifests.plan import Plan
from manifests.stages import Stage, in_commits
from resources.ledger.facade import ChunkRecord, RunRecord

STRATEGIES: Strategies = {
    **replace_files.STRATEGIES,
    **move_references.STRATEGIES,
    **correction_events.STRATEGIES,
}


def strategy_of(plan: Plan) -> PublishStrategy:
    """Return how a plan's change is published and taken back."""
    options = Options(plan.version, plan.acceptance, plan.corrections, compacts=plan.compaction is not None)
    return STRATEGIES[plan.publish_mode](options)


def strategy_in(plan: Mapping[str, Any]) -> PublishStrategy:
    """Return the same of a plan as the ledger's row, or sealed evidence, has it, which somebody may have changed.

    One that names no mode of this project is taken for one that replaces files, so that its tables can be read all the same.
    """
    named = str(plan.get("publish_mode"))
    mode = PublishMode(named) if named in set(PublishMode) else PublishMode.REPLACE_PARTITIONS
    compacts = plan.get("compaction") is not None
    return STRATEGIES[mode](Options(plan.get("version"), plan.get("acceptance"), plan.get("corrections"), compacts))


def stages_of(products: Products, plan: Plan) -> list[Stage]:
    """Return the stages of a run, in order: what a preview prints and what is executed.

    Raises:
        InputRefused: if no product declares the target of the plan.
    """
    strategy, target = strategy_of(plan), products.target(plan.target)
    return stages.stages_of(plan, strategy.commits(target), strategy.candidate(target, plan.run_id))


def publication_in_words(products: Products, plan: Plan) -> str:
    """Say in how many commits a plan's change is published, and what each of them does."""
    return in_commits(strategy_of(plan).commits(products.target(plan.target)))


def change_of(platform: Platform, record: RunRecord, chunks: Sequence[ChunkRecord], token: int | None = None) -> Change:
    """Return the change that a run makes with these chunks; `token` is of the lease that it is committed under."""
    plans = platform.ledger.plans(record)
    target = as_planned(platform.products.target(record.target), record.plan)
    return Change(platform, target, record, chunks, plans, strategy_of(record.plan), token)
