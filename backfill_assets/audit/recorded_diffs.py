"""The diff that was kept of a publication, held against the rows and sums by chunk that were sealed before it.

Put here what is compared of them. The form of a diff is `evidence.diff_records`', how one is made `review.diff`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isclose
from typing import Any

from backfill_assets.audit.findings import Findings
from backfill_assets.evidence.records import Record
from backfill_assets.gates.chunk_changes import CHANGES_FILE
from resources.files.kept_files import read_json
from resources.files.places import Place, is_there


def check_diff(bundle: Place, records: Sequence[Record], found: Findings, *, published: bool) -> None:
    """Hold the kept diff of a publication against the rows and sums by chunk that were sealed before it."""
    file = bundle / CHANGES_FILE
    sealed = read_json(file) if is_there(file) else {}
    if not published or not sealed.get("diff_id"):
        return
    for record in records:
        if record.content.get("diff_id") != sealed["diff_id"] or "chunks" not in record.content:
            continue  # that a diff is missing is the doctor's to say
        where = f"{found.run_id}/records/{record.name}.json"
        by_chunk = {one["chunk"]: one for one in record.content["chunks"]}
        for chunk in sealed["chunks"]:
            told = by_chunk.pop(chunk["chunk"], None)
            for name, expected, seen in _counted(chunk, told):
                if expected != seen:
                    found.add(f"{where} chunk {chunk['chunk']}", f"has other {name} than was sealed", expected, seen)
        for chunk in by_chunk:
            found.add(f"{where} chunk {chunk}", "is of no chunk that was sealed")


def _counted(sealed: Mapping[str, Any], told: Mapping[str, Any] | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield rows and sums of a chunk, before and after, as they were sealed and as a diff has them; what is not known is left out."""
    there = told or {"added": 0, "removed": 0, "changed": 0, "unchanged": 0, "sums": {}}
    stays = there["changed"] + there["unchanged"]
    counted = (stays + there["removed"], stays + there["added"])
    for side, expected, seen in zip(("before", "after"), sealed["rows"], counted, strict=True):
        if expected is not None:
            yield f"rows {side}", expected, seen
    for name, both in sealed["sums"].items():
        for side, expected, seen in zip(("before", "after"), both, there["sums"].get(name, (None, None)), strict=True):
            if expected is not None:
                yield f"sum of {name} {side}", expected, expected if _is_sum(expected, seen) else seen


def _is_sum(expected: str, seen: str | None) -> bool:
    """Whether two sums are equal: whole numbers to the digit; of floating-point numbers the last ones depend on their order."""
    if seen is None or expected == seen:
        return expected == seen
    return not (expected + seen).replace("-", "").isdigit() and isclose(float(expected), float(seen), rel_tol=1e-9)
