"""The sink that is an Iceberg table: one row of each run and action, appended once.

Put here how a record becomes a row. The table is made when it is first written to; `backfill verify --data` reads it.
"""

from __future__ import annotations

from datetime import UTC

import pyarrow as pa
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType, TimestamptzType

from manifests.canonical import canonical_json
from resources.lakehouse.facade import Lakehouse
from resources.lakehouse.loads import LOAD_PROPERTY
from resources.sinks.declared import Told


class RecordsTable:
    """Append-only Iceberg table of what was done to which target, one row a run and action."""

    SCHEMA = Schema(
        NestedField(1, "run_id", StringType(), required=False),
        NestedField(2, "action", StringType(), required=False),
        NestedField(3, "at", TimestamptzType(), required=False),
        NestedField(4, "details", StringType(), required=False),
    )

    def __init__(self, lakehouse: Lakehouse, table: str) -> None:
        self._lakehouse, self._table = lakehouse, table

    def send(self, told: Told) -> None:
        """Append the row, once a run and action."""
        self._lakehouse.ensure(self._table, self.SCHEMA, UNPARTITIONED_PARTITION_SPEC, {})
        row = pa.Table.from_pylist(
            [
                {
                    "run_id": told.run_id,
                    "action": told.action,
                    "at": told.at.astimezone(UTC),
                    "details": canonical_json(dict(told.details)),
                }
            ],
            schema=self.SCHEMA.as_arrow(),
        )
        self._lakehouse.append(self._table, [row], {LOAD_PROPERTY: f"{told.run_id}:{told.action}"})
