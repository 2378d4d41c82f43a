"""The gate of a merge under a policy: what was decided where history met LIVE, counted, and what is ambiguous listed.

Put here what the decisions of all chunks come to. How a key is decided is `worker.merge_decisions`'; no row is read here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from backfill_assets.declarations.exception_texts import exception_rows, json_of
from backfill_assets.declarations.target import Finding
from backfill_assets.run_context import RunContext
from backfill_assets.worker.merge_decisions import AMBIGUOUS, HELD, KEPT_LIVE, REPEATED, STALE
from resources.ledger.facade import ChunkRecord

AMBIGUOUS_ROWS = "ambiguous"
"""Where the measures of a chunk have the first of its ambiguous rows."""
_WORDS = {
    KEPT_LIVE: "rows of LIVE stay",
    STALE: "rows from the cut line on are left out",
    REPEATED: "rows were there already",
    AMBIGUOUS: "keys are ambiguous: one version says two things, and the row of today stays",
}


def decisions_finding(run: RunContext, chunks: Sequence[ChunkRecord]) -> Finding:
    """Add up what was decided; where anything is ambiguous, an owner has to look at it."""
    counts = {name: sum(chunk.measures.get("happened", {}).get(name, 0) for chunk in chunks) for name in HELD}
    by_chunk = {
        chunk.chunk: {name: chunk.measures.get("happened", {}).get(name, 0) for name in HELD} for chunk in chunks
    }
    said = "; ".join(f"{counts[name]:,} {words}" for name, words in _WORDS.items())
    listed = [(chunk.chunk, row) for chunk in chunks for row in chunk.measures.get(AMBIGUOUS_ROWS, ())]
    amiss = counts[AMBIGUOUS]
    return Finding(
        not amiss,
        said,
        dict(counts),
        asks=True,
        compared=sum(counts.values()),
        disagreeing=amiss,
        slices=[{"chunk": key, **found} for key, found in by_chunk.items() if found[AMBIGUOUS]],
        exceptions=partial(_listed, run, listed) if amiss else None,
    )


def _listed(run: RunContext, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    return exception_rows(
        run.spark,
        [
            {
                "slice": json_of({"chunk": chunk}),
                "key": json_of(row["key"]),
                "expected": json_of(row["computed"]),
                "found": json_of(row["today"]),
                "what": "one version says two things: computed, and as it stands",
            }
            for chunk, row in rows
        ],
    )
