"""Raw and reference tables as assets: loaded by the command, versioned by their snapshots."""

import json
from collections.abc import Sequence

import dagster as dg

from backfill_assets.declarations.target import InputTable
from backfill_assets.defs.staging import asset_key, column_schema
from backfill_assets.installation import Platform

DATA_VERSION_TAG = "dagster/data_version"
SENSOR_SECONDS = 60


def input_asset(table: InputTable, group: str) -> dg.AssetSpec:
    """Make the external asset of an input table, in the group of its product."""
    return dg.AssetSpec(
        asset_key(table.name),
        group_name=group,
        owners=list(table.owners),
        kinds={"iceberg"},
        description=table.description,
        metadata={"dagster/column_schema": column_schema(table), "dagster/table_name": table.name},
    )


def observation(table: InputTable, snapshot_id: int | None) -> dg.AssetObservation:
    """Return what tells Dagster which version of an input table there is: its snapshot."""
    shown = str(snapshot_id)
    return dg.AssetObservation(asset_key(table.name), tags={DATA_VERSION_TAG: shown}, metadata={"snapshot": shown})


def observations(
    platform: Platform, known: dict[str, int | None]
) -> tuple[Sequence[dg.AssetObservation], dict[str, int | None]]:
    """Return an observation of each input table whose snapshot is not the known one, and what is known now."""
    found = {table.name: platform.lakehouse.snapshot_id(table.name) for table in platform.products.inputs}
    changed = [
        observation(table, found[table.name])
        for table in platform.products.inputs
        if found[table.name] is not None and found[table.name] != known.get(table.name)
    ]
    return changed, found


@dg.sensor(
    name="observe_inputs",
    minimum_interval_seconds=SENSOR_SECONDS,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Shows the current snapshot of each input table as its data version.",
)
def observe_inputs(context: dg.SensorEvaluationContext, platform: dg.ResourceParam[Platform]) -> dg.SensorResult:
    """Observe the input tables that changed since the last tick."""
    known = json.loads(context.cursor) if context.cursor else {}
    changed, found = observations(platform, known)
    return dg.SensorResult(asset_events=changed, cursor=json.dumps(found))
