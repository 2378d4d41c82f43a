"""What splits of files have put on record: which files of a table went, and which pieces came in their place.

Put here how those records are written and read. Each lies beside the evidence of the runs and has a link in the chain, and is
made before the commit: a snapshot that has exchanged just these files is a split's, whoever died before saying so. What is
done is `operations.splitting`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from backfill_assets.evidence.events import FILE_SPLITS
from backfill_assets.evidence.vouched_records import vouched_records
from backfill_assets.installation import Platform
from manifests.canonical import sha256_of
from resources.evidence.store import EvidenceStore
from resources.lakehouse.file_splits import Pieces

Exchanged = frozenset[tuple[frozenset[str], frozenset[str]]]
"""Of each split: the paths that came, and those that went."""


def record_split(
    platform: Platform, table: Table, split: Sequence[Pieces], manifest_hash: str, *, by: str, at: datetime
) -> str:
    """Put on record which files of a table are about to be replaced by which pieces; return the record's name."""

    def said(file: DataFile) -> dict[str, Any]:
        return {"path": file.file_path, "rows": file.record_count, "bytes": file.file_size_in_bytes}

    what = {
        "table": ".".join(table.name()),
        "uuid": str(table.metadata.table_uuid),
        "manifestHash": manifest_hash,
        "files": [said(one.file) | {"pieces": [said(piece) for piece in one.pieces]} for one in split],
    }
    name = f"{what['table']}-{sha256_of(what)[:12]}"
    platform.evidence.append(FILE_SPLITS, name, {"by": by, "at": at, "split": what})
    return name


def splits_on_record(evidence: EvidenceStore, links: Iterable[Mapping[str, Any]], table: Table) -> Exchanged:
    """Return what splits of a table exchange: a record counts if a link of the chain vouches for it."""
    found = set()
    for _, record in vouched_records(evidence, links, FILE_SPLITS, "*.json"):
        said = record["split"]
        if said["uuid"] == str(table.metadata.table_uuid):
            came = frozenset(piece["path"] for one in said["files"] for piece in one["pieces"])
            found.add((came, frozenset(one["path"] for one in said["files"])))
    return frozenset(found)
