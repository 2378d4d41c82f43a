"""Which publish mode has which strategy, and the change that a run makes by it.

Put here a line a mode. What a mode does is in the module of its family, and nothing else in this package asks which mode a plan
has; whether files stay beside a run's own, the mode itself says (`manifests.model`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from backfill_assets.declarations.products import Products
from backfill_assets.installation import Platform
from backfill_assets.publication.change import Change, Options, PublishStrategy
from backfill_assets.publication.correction_events import AppendCorrections
from backfill_assets.publication.move_references import NameVersion, SwapMain
from backfill_assets.publication.replace_files import AddFirstRows, MergeByKey, ReplaceFiles
from manifests import stages
from manifests.model import PublishMode
from manifests.plan import Plan
from manifests.stages import Stage, in_commits
from resources.ledger.facade import ChunkRecord, RunRecord

STRATEGIES: Mapping[PublishMode, Callable[[Options], PublishStrategy]] = {
    PublishMode.APPEND_ONLY: AddFirstRows.of,
    PublishMode.REPLACE_PARTITIONS: ReplaceFiles.of,
    PublishMode.MERGE_BY_KEY: MergeByKey.of,
    PublishMode.SHADOW_SWAP: SwapMain.of,
    PublishMode.VERSIONED: NameVersion.of,
    PublishMode.CORRECTION_EVENTS: AppendCorrections.of,
}


def strategy_of(plan: Plan) -> PublishStrategy:
    """Return how a plan's change is published and taken back."""
    return STRATEGIES[plan.publish_mode](Options(plan.version, plan.acceptance, plan.corrections))


def strategy_in(plan: Mapping[str, Any]) -> PublishStrategy:
    """Return the same of a plan as the ledger's row, or sealed evidence, has it, which somebody may have changed.

    One that names no mode of this project is taken for one that replaces files, so that its tables can be read all the same.
    """
    named = str(plan.get("publish_mode"))
    mode = PublishMode(named) if named in set(PublishMode) else PublishMode.REPLACE_PARTITIONS
    return STRATEGIES[mode](Options(plan.get("version"), plan.get("acceptance"), plan.get("corrections")))


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
    target, plans = platform.products.target(record.target), platform.ledger.plans(record)
    return Change(platform, target, record, chunks, plans, strategy_of(record.plan), token)
