"""Raw and reference tables as assets: loaded by the command, versioned by their snapshots."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from backfill_assets.declarations.product import InputTable
from backfill_assets.defs.staging import asset_key, column_schema
from backfill_assets.installation import Platform
from backfill_assets.planning.quarantine_cases import cases_of
from manifests.errors import Refused

DATA_VERSION_TAG = "dagster/data_version"
SENSOR_SECONDS = 60
_MOST_QUARANTINED = 100_000
"""Rows of a quarantine that are read for each observation; of a longer one the command says more."""


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


def observation(
    table: InputTable, snapshot_id: int | None, more: Mapping[str, Any] | None = None
) -> dg.AssetObservation:
    """Return what tells Dagster which version of an input table there is: its snapshot; and what `more` says of it."""
    shown = str(snapshot_id)
    metadata = {"snapshot": shown, **(more or {})}
    return dg.AssetObservation(asset_key(table.name), tags={DATA_VERSION_TAG: shown}, metadata=metadata)


def _of_quarantine(platform: Platform, table: InputTable) -> dict[str, Any]:
    """Return what Dagster shows of the quarantine of an input table: its rows, and by rule what waits, unless it is too long."""
    if table.is_reference or table.quarantine_of:
        return {}
    try:
        rows = platform.lakehouse.total_rows(platform.products.quarantine_of(table).name)
        told: dict[str, Any] = {} if rows is None else {"quarantined_rows": rows}
        if rows is None or rows > _MOST_QUARANTINED:
            return told
        cases = cases_of(platform, table)
    except Refused:
        return {}  # what is wrong with the tables is said by whoever works with them
    waiting = {one.rule: one.waiting for one in cases.by_rule() if one.waiting}
    told["quarantine_cases_waiting"] = sum(waiting.values())
    if waiting:
        told["quarantine_waiting_by_rule"] = dg.MetadataValue.json(waiting)
    oldest = cases.oldest_waiting()
    return told if oldest is None else told | {"quarantine_oldest_waiting": dg.MetadataValue.timestamp(oldest)}


def observations(
    platform: Platform, known: dict[str, int | None]
) -> tuple[Sequence[dg.AssetObservation], dict[str, int | None]]:
    """Return an observation of each input table whose snapshot is not the known one, and what is known now."""
    found = {table.name: platform.lakehouse.snapshot_id(table.name) for table in platform.products.inputs}
    changed = [
        observation(table, found[table.name], _of_quarantine(platform, table))
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
