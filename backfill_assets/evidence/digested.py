"""What the digests of a run were made of, as its evidence has it, and where those columns are in the table today.

Put here how digests of before are compared with rows that are read by today's columns: a digest is over the columns of its time,
under the names and with the types that they had. What is compared is `reconciliation`'s and `audit`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.schema import Schema

from backfill_assets.evidence.seals import SCHEMA_FILE
from backfill_assets.installation import Platform
from backfill_assets.worker.gate_tasks import DigestColumn
from resources.files.kept_files import read_json
from resources.ledger.facade import RunRecord


def digested_columns(platform: Platform, record: RunRecord) -> tuple[DigestColumn, ...] | None:
    """Return what the digests of a run were made of; None where that is not on record: it was never sealed, or long ago.

    A column that the table has no more is left out: no digest comes out the same then.
    """
    try:
        sealed = read_json(platform.evidence.path(record.run_id) / SCHEMA_FILE)
    except FileNotFoundError:
        return None
    names = names_now(sealed["tables"].get(record.target, {}), platform.lakehouse.table(record.target).schema())
    return tuple(DigestColumn(name, kind, names[name]) for name, kind in sealed["digest"]["columns"] if name in names)


def names_now(facts: Mapping[str, Any], schema: Schema) -> dict[str, str]:
    """Return the name that each column of a sealed table has in a schema, by the name that it had; its field id says which it is."""
    today = {field.field_id: field.name for field in schema.fields}
    return {name: today[int(number)] for number, (name, _) in facts.get("fields", {}).items() if int(number) in today}
