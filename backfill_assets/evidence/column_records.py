"""What changes of columns have put on record: which table had which columns renamed, and when.

Put here how those records are written and read. Each lies beside the evidence of the runs and has a link in the chain, so
that a column that has another name than it was published under is told from one that somebody has renamed past this
project. What is compared with them is `audit.sealed_columns`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pyiceberg.table import Table

from backfill_assets.evidence.events import COLUMN_CHANGES
from backfill_assets.evidence.vouched_records import vouched_records
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from resources.evidence.store import EvidenceStore
from resources.lakehouse.column_changes import Change, ColumnChange

Renamed = Mapping[tuple[str, int], frozenset[str]]
"""The names that columns were lawfully given, by the uuid of their table and their field id."""


def record_listed(platform: Platform, table: Table, changes: Sequence[ColumnChange], *, by: str, at: datetime) -> str:
    """Put on record what is about to become of the columns of a table; return the record's name.

    The same change of the same schema has one record, however often it was begun.
    """
    schema, metadata = table.schema(), table.metadata
    said = [
        {
            "change": one.change.value,
            "column": one.column,
            "was": one.was,
            "becomes": one.becomes,
            "fieldId": schema.find_field(one.was if one.change is Change.RENAME else one.column).field_id
            if one.change not in {Change.ADD, Change.REORDER} and _has(table, one)
            else None,
        }
        for one in changes
    ]
    what = {"table": ".".join(table.name()), "uuid": str(metadata.table_uuid), "schemaId": schema.schema_id}
    name = f"{what['table']}-{schema.schema_id}-{sha256_of([what, said])[:12]}"
    content = {"by": by, "at": at, "listed": what | {"changes": said}}
    platform.evidence.append(COLUMN_CHANGES, f"{name}-listed", content)
    return name


def _has(table: Table, one: ColumnChange) -> bool:
    return (one.was if one.change is Change.RENAME else one.column) in table.schema().column_names


def record_done(platform: Platform, name: str, table: Table) -> None:
    """Put on record what has become of the columns of a table."""
    done = {"schemaId": table.schema().schema_id, "columns": {one.field_id: one.name for one in table.schema().fields}}
    platform.evidence.append(COLUMN_CHANGES, f"{name}-done", {"done": done})


def renamed(evidence: EvidenceStore, links: Iterable[Mapping[str, Any]]) -> Renamed:
    """Return the names that columns were given by changes on record: a record counts if a link of the chain vouches for it."""
    found: dict[tuple[str, int], set[str]] = defaultdict(set)
    for _, said in vouched_records(evidence, links, COLUMN_CHANGES, "*-listed.json"):
        listed = said["listed"]
        for one in listed["changes"]:
            if one["change"] == Change.RENAME:
                found[listed["uuid"], int(one["fieldId"])] |= {one["was"], one["becomes"]}
    return {key: frozenset(names) for key, names in found.items()}
