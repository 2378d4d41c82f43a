"""The gate of what a manifest says must come out: rows, sums and digests, held against those that the chunk gates have found.

Put here how they are compared. What a manifest may say is `manifests.expected`'s; figures that a product declares for every run
are `declarations.standard.checksums`'. No row is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from backfill_assets.declarations.exception_texts import exception_rows, json_of
from backfill_assets.declarations.reconciliations import SLICES
from backfill_assets.declarations.target import Finding
from backfill_assets.gates.chunk_changes import VISIBLE
from backfill_assets.run_context import RunContext
from backfill_assets.worker.sums import total_of
from manifests.expected import ChunkFigures, Expected, Figures
from resources.ledger.facade import ChunkRecord

_WHOLE = "all chunks"
_NAMED = 3
Row = dict[str, str]


def figures_finding(run: RunContext, expected: Expected | None, chunks: Sequence[ChunkRecord]) -> Finding:
    """Hold what the chunk gates have counted, added up and digested against what the manifest expects."""
    assert expected is not None, "the gate is one of plans whose manifest expects figures"
    found = {chunk.chunk: chunk for chunk in chunks}
    wrong: list[Row] = []
    for key, figures in sorted(expected.chunks.items()):
        wrong += _of_chunk(figures, found[key])
    if expected.whole is not None:
        wrong += _differences(_WHOLE, expected.whole, _whole(expected.whole, chunks))
    compared = len(expected.chunks) + (expected.whole is not None)
    places = list(dict.fromkeys(row["chunk"] for row in wrong))
    of = [f"{len(expected.chunks):,} chunk(s)"] if expected.chunks else []
    of += [_WHOLE] if expected.whole is not None else []
    summary = f"figures of {' and of '.join(of)} compared with the manifest's"
    summary += f"; {len(places):,} differ: {_named(wrong)}" if wrong else "; they are equal"
    return Finding(
        not wrong,
        summary,
        {"chunks": len(expected.chunks), "whole": expected.whole is not None},
        compared=compared,
        disagreeing=len(places),
        slices=wrong[:SLICES],
        exceptions=partial(_listed, run, wrong) if wrong else None,
    )


def _of_chunk(expected: ChunkFigures, chunk: ChunkRecord) -> Iterator[Row]:
    yield from _differences(chunk.chunk, expected, _visible(chunk))
    if expected.digest is not None and expected.digest != chunk.digest:
        yield {"chunk": chunk.chunk, "figure": "digest", "expected": expected.digest, "found": str(chunk.digest)}


def _visible(chunk: ChunkRecord) -> Mapping[str, Any]:
    """Return rows and sums of a chunk as readers would see it; of no row every sum is 0, and is not on record."""
    seen: Mapping[str, Any] = chunk.measures[VISIBLE]
    return seen


def _sum(seen: Mapping[str, Any], column: str) -> str:
    return str(seen["sums"].get(column, "0"))


def _whole(expected: Figures, chunks: Sequence[ChunkRecord]) -> Mapping[str, Any]:
    seen = [_visible(chunk) for chunk in chunks]
    sums = {column: str(total_of(_sum(one, column) for one in seen)) for column in expected.sums}
    return {"rows": sum(one["rows"] for one in seen), "sums": sums}


def _differences(place: str, expected: Figures, seen: Mapping[str, Any]) -> Iterator[Row]:
    if expected.rows is not None and expected.rows != seen["rows"]:
        yield {"chunk": place, "figure": "rows", "expected": f"{expected.rows}", "found": f"{seen['rows']}"}
    for column, value in sorted(expected.sums.items()):
        found = _sum(seen, column)
        if Decimal(found) != Decimal(value):
            yield {"chunk": place, "figure": f"sum of {column}", "expected": value, "found": found}


def _named(wrong: Sequence[Row]) -> str:
    shown = [f"{row['chunk']} has {row['figure']} {row['found']}, not {row['expected']}" for row in wrong[:_NAMED]]
    return "; ".join(shown) + (f"; and {len(wrong) - _NAMED:,} more" if len(wrong) > _NAMED else "")


def _listed(run: RunContext, wrong: Sequence[Row]) -> Any:
    rows = [
        {
            "slice": json_of({"chunk": row["chunk"]}),
            "key": json_of({}),
            "expected": json_of({row["figure"]: row["expected"]}),
            "found": json_of({row["figure"]: row["found"]}),
            "what": f"another {row['figure']} than the manifest expects",
        }
        for row in wrong
    ]
    return exception_rows(run.spark, rows)
