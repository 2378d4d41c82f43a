"""One Definitions, built from the products and an installation: what a code location serves. No logic."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import dagster as dg

# partitioned checks, multi-run policies and partition mappings are marked so; tests/test_upstream.py pins what is used
warnings.filterwarnings("ignore", category=dg.BetaWarning)
warnings.filterwarnings("ignore", category=dg.PreviewWarning)

from backfill_assets.declarations.product import Product
from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.changes import changes_sensor
from backfill_assets.defs.checks import gate_checks
from backfill_assets.defs.decision_jobs import DECISION_JOBS
from backfill_assets.defs.evaluations import as_it_stands
from backfill_assets.defs.inputs import input_asset, observe_inputs
from backfill_assets.defs.landing_sensor import landing_sensor, receiving_job
from backfill_assets.defs.live_triggers import live_schedule, live_sensor
from backfill_assets.defs.lost_runs import lost_runs_sensor
from backfill_assets.defs.offers import offers_sensor
from backfill_assets.defs.proposal_sensor import proposal_sensor
from backfill_assets.defs.publish import publish_asset, publish_job, publish_sensor, recomputation_sensor
from backfill_assets.defs.reconciliation_job import reconciled_asset, reconciliation_job, reconciliation_schedule
from backfill_assets.defs.spark_by_mode import spark_resources
from backfill_assets.defs.staging import staging_asset, staging_job
from backfill_assets.defs.terminated import terminated_sensor
from backfill_assets.installation import Platform
from resources.settings import Settings, load_settings

# the materialisations of a range run are written together, not 25 ms one by one
os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", "500")


def _of_target(target: TargetTable, group: str, targets: Collection[str]) -> dg.Definitions:
    job, staging, live = publish_job(target), staging_job(target), target.live
    reconciling = reconciliation_job(target)
    return dg.Definitions(
        assets=[
            staging_asset(target, group, targets, standing=as_it_stands),
            publish_asset(target, group),
            reconciled_asset(target, group),
        ],
        asset_checks=[gate_checks(target)],
        jobs=[staging, job, reconciling],
        sensors=[
            publish_sensor(target, job),
            recomputation_sensor(target, staging),
            *([live_sensor(target, live, staging)] if live else []),
            *([proposal_sensor(target, staging)] if target.restated else []),
        ],
        schedules=[
            *([live_schedule(target, live, staging)] if live else []),
            *([reconciliation_schedule(target, reconciling)] if target.reconciled else []),
        ],
    )


def build_definitions(
    platform: Platform | None = None,
    *,
    settings: Settings | None = None,
    products: Sequence[Product] | None = None,
    resources: Mapping[str, Any] | None = None,
    made_elsewhere: Collection[str] = (),
) -> dg.Definitions:
    """Return the definitions of an installation, to be served alone or merged with a project's own.

    Args:
        platform: the opened installation; None to open the one that `settings` say.
        settings: where things live; None for those of `backfill.toml` and the environment.
        products: the products that are served; None for those that the settings name, or that are installed.
        resources: resources of the project's own, beside this package's: `platform`, and `spark` by mode.
        made_elsewhere: input tables that an asset of the project fills, under the key of the table's parts
            (`["bronze", "readings"]`): it stands in the graph where an external asset would.

    Raises:
        DeclarationRefused: if a product is not there, or a declaration cannot be used.
        EnvironmentRefused: if the settings cannot be used.
        InputRefused: if `made_elsewhere` has what is no input table.
    """
    if platform is None:
        platform = Platform.of(settings or load_settings(), products)
    served = platform.products
    names = [target.name for target in served.targets]
    parts = [_of_target(target, served.group_of(target.name), names) for target in served.targets]
    theirs = {served.input(name).name for name in made_elsewhere}
    receiving = {name: receiving_job(feed) for name, feed in served.feeds.items()}
    shared = dg.Definitions(
        assets=[input_asset(table, served.group_of(table.name)) for table in served.inputs if table.name not in theirs],
        jobs=[*DECISION_JOBS, *receiving.values()],
        sensors=[
            observe_inputs,
            lost_runs_sensor,
            terminated_sensor,
            changes_sensor,
            offers_sensor,
            *(landing_sensor(feed, receiving[name]) for name, feed in served.feeds.items()),
        ],
        resources={"platform": platform, **spark_resources(served.sinks), **(resources or {})},
        # a step in a process of its own would start a JVM of its own
        executor=dg.in_process_executor,
    )
    return dg.Definitions.merge(shared, *parts)
