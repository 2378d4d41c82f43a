"""Reconciliation as Dagster shows it: an asset after the published one, whose checks have a history with numbers.

Put here the asset, its job and its schedule. It is an asset of its own, so that nothing else that is launched (a batch of
chunks, a publication) drags a reconciliation along. What is done is `reconciliation.reconcile`'s.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.dagster_private import UnresolvedAssetJobDefinition
from backfill_assets.defs.evaluations import verdict_metadata
from backfill_assets.defs.launched_by import RUN_TAG, launched
from backfill_assets.defs.spark_by_mode import SparkByMode
from backfill_assets.defs.staging import asset_key, launched_by_dagster
from backfill_assets.installation import Platform
from backfill_assets.reconciliation.drift import reading
from backfill_assets.reconciliation.manifest import manifest_of, plan_reconciliation, policy_of
from backfill_assets.reconciliation.platform_gates import described_gates
from backfill_assets.reconciliation.reconcile import reconcile
from manifests.errors import Refused
from manifests.model import Mode
from resources.ledger.facade import RunRecord, Verdict


def reconciled_asset(target: TargetTable, group: str) -> dg.AssetsDefinition:
    """Make the asset that stands for the reconciliations of a target: materialising it makes one."""
    key = asset_key(f"{target.name}_reconciled")

    @dg.asset(
        key=key,
        deps=[asset_key(f"{target.name}_published")],
        check_specs=[
            dg.AssetCheckSpec(name, asset=key, description=text) for name, text in described_gates(target).items()
        ],
        group_name=group,
        owners=list(target.owners),
        kinds={"iceberg"},
        description=(
            f"Whether what readers of {target.name} see agrees with {target.source} as it is now. Materialising it reads "
            "both, judges, and changes nothing; what disagrees is in the exception table."
        ),
        tags={"backfill/stage": "reconciliation"},
    )
    def reconciled(
        context: AssetExecutionContext, platform: dg.ResourceParam[Platform], spark: SparkByMode
    ) -> Iterator[Any]:
        platform = spark.confine(platform, Mode.RECONCILIATION)
        try:
            with launched(context):
                manifest = manifest_of(platform, target, requested_by=policy_of(target).requested_by)
                run_id = plan_reconciliation(platform, manifest).run_id
                context.instance.add_run_tags(context.run_id, {RUN_TAG: run_id})
            with launched(context), launched_by_dagster(context, platform, run_id):
                verdicts = reconcile(platform, run_id)
        except Refused as refusal:
            raise dg.Failure(str(refusal), allow_retries=False) from refusal
        record = platform.ledger.run(run_id)
        yield dg.MaterializeResult(
            metadata=_numbers(record, verdicts),
            check_results=[_result(run_id, key, verdict) for verdict in verdicts],
        )

    return reconciled


def _numbers(record: RunRecord, verdicts: list[Verdict]) -> dict[str, Any]:
    """Return what Dagster plots over time: of each gate how many things disagree, and which share of those compared."""
    plan = record.plan
    shown: dict[str, Any] = {
        "run": record.run_id,
        "result": record.state_reason,
        "days": plan.scope,
        "snapshot": str(plan.base_snapshot_id),
        "source snapshot": str(plan.source_snapshot_id),
    }
    for verdict in verdicts:
        found = reading(record.run_id, verdict)
        if found is not None:
            shown[f"{verdict.gate}: disagreeing"] = found.disagreeing
            shown[f"{verdict.gate}: share"] = found.share
    return shown


def _result(run_id: str, key: dg.AssetKey, verdict: Verdict) -> dg.AssetCheckResult:
    return dg.AssetCheckResult(
        passed=verdict.passed,
        check_name=verdict.gate,
        asset_key=key,
        description=verdict.summary,
        metadata={"run": run_id} | verdict_metadata(verdict),
    )


def reconciliation_job(target: TargetTable) -> UnresolvedAssetJobDefinition:
    """Make the job that the schedule runs."""
    return dg.define_asset_job(
        f"reconcile_{target.name.replace('.', '_')}",
        selection=[asset_key(f"{target.name}_reconciled")],
        description=f"Holds what is published of {target.name} against its source; changes nothing.",
    )


def reconciliation_schedule(target: TargetTable, job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Make the schedule of a target's reconciliations; it is off until somebody turns it on."""
    return dg.ScheduleDefinition(
        name=f"reconcile_{target.name.replace('.', '_')}_daily",
        job=job,
        cron_schedule=policy_of(target).cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"Holds what is published of {target.name} against its source and keeps what disagrees.",
    )
