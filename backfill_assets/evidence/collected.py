"""What collections of garbage have removed, by their own records in the evidence.

Put here how those records are read. What may be collected is the policy's to say, and a collection's to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from backfill_assets.evidence.events import GC
from backfill_assets.evidence.vouched_records import vouched_records
from resources.evidence.store import EvidenceStore


def collections(evidence: EvidenceStore, links: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what collections have put on record: what each has `listed`, and what it has `done`.

    A record counts if one of the chain's links vouches for it.
    """
    said: dict[str, dict[str, Any]] = {}
    for name, record in vouched_records(evidence, links, GC, "*.json"):
        said.setdefault(name.rpartition("-")[0], {}).update(record)
    return list(said.values())


def collected_snapshots(found: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the snapshots that `collections` have removed, each with its table.

    Of a collection that ended before it could say what it has done, those that it set out to remove.
    """
    said = [one.get("done") or one.get("listed") or {} for one in found]
    return frozenset(f"{one.get('table')} snapshot {n}" for one in said for n in one.get("snapshots", ()))


def collected_files(found: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the paths of the files that `collections` have removed: those that they set out to remove and have not left."""
    return frozenset(
        path
        for one in found
        for item in one.get("listed", {}).get("files", ())
        if (path := item["file"]["path"]) not in one.get("done", {}).get("left", {})
    )
