"""Raw and reference tables as assets: loaded by the command, observed by Dagster, versioned by their snapshots."""

from collections.abc import Sequence

import dagster as dg

from backfill_assets.platform import Platform
from backfill_assets.staging import asset_key, column_schema
from backfill_assets.target import InputTable

OBSERVE_MINUTES = 5


def input_assets(table: InputTable) -> Sequence[dg.SourceAsset]:
    """Make the observable asset of an input table: its data version is its current snapshot."""

    @dg.observable_source_asset(
        name=table.name.split(".")[1],
        key_prefix=table.name.split(".")[0],
        group_name=table.name.split(".")[0],
        description=table.description,
        metadata={"dagster/column_schema": column_schema(table), "dagster/table_name": table.name},
        auto_observe_interval_minutes=OBSERVE_MINUTES,
        tags={"dagster/kind/iceberg": ""},
    )
    def observe(platform: dg.ResourceParam[Platform]) -> dg.DataVersion:
        return dg.DataVersion(str(platform.lakehouse.snapshot_id(table.name)))

    return [observe]
