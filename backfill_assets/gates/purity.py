"""The gate that rows depend on nothing but the plan: some chunks are computed again in other surroundings.

Put here which chunks those are, and what is found. How one is computed again is `staging.recomputing`'s.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from typing import Any

import polars as pl

from backfill_assets.declarations.exception_texts import exception_rows, json_of
from backfill_assets.declarations.target import Finding
from backfill_assets.run_context import RunContext
from backfill_assets.staging.recomputing import LIMIT, Part, differing_rows, residue
from backfill_assets.worker.violations import shown_row
from manifests.chunks import chunk_before
from manifests.errors import TransformRefused
from manifests.plan import Plan, PlannedChunk
from resources.files import stores
from resources.ledger.facade import ChunkRecord
from resources.spark.failures import is_of_lost_worker

SHARE = 0.01
"""The most that is computed again of what a run reads; of a single chunk that is more, every n-th entity, if there is one."""
MOST_CHUNKS = 2
"""A chunk computed alone has a cost of its own, however small it is."""
FEWEST_ENTITIES = 20
"""Entities that a part of a chunk has at least, more or less: of a few, rows may tie in none."""
_TIMES = "_times"
_log = logging.getLogger(__name__)


def sampled(plan: Plan, chunks: Sequence[ChunkRecord]) -> list[tuple[PlannedChunk, int]]:
    """Return which chunks are computed again, and one of how many parts would be enough of each: the same ones of a plan.

    In an order that follows from the plan's hash, those with rows first, and before the run's first days any others: nothing comes
    before those that a row could depend on. As many as read no more together than `SHARE` of what the run reads, at most
    `MOST_CHUNKS`. One is computed again whatever it reads.
    """
    rows = {chunk.chunk: chunk.rows or 0 for chunk in chunks}
    mine = [chunk for chunk in plan.chunks if chunk.key in rows]
    most = SHARE * max(plan.reads.rows, 1)
    first = min((chunk.start for chunk in mine), default=None)
    order = sorted(mine, key=lambda chunk: (not rows[chunk.key], chunk.start == first, _place(plan, chunk.key)))
    chosen: list[tuple[PlannedChunk, int]] = []
    read = 0
    for chunk in order:
        if len(chosen) < MOST_CHUNKS and read + chunk.reads.rows <= most and (rows[chunk.key] or not chosen):
            chosen.append((chunk, 1))
            read += chunk.reads.rows
    return chosen or [(chunk, ceil(chunk.reads.rows / most)) for chunk in order[:1]]


def earlier_in_batch(plan: Plan, chunk: PlannedChunk, staged: Mapping[str, ChunkRecord]) -> PlannedChunk | None:
    """Return the chunk that one is computed again after: the one before it, where it was staged without any earlier one.

    Then its rows have to be the same in a batch that reads further back. None where it was staged after earlier ones: then they
    have to be the same without those; and where no chunk is before it, or the plan starts from a state.
    """
    attempt = staged[chunk.key].attempt
    together = [one for one in plan.chunks if one.key in staged and staged[one.key].attempt == attempt]
    if any(one.start < chunk.start for one in together) or plan.start is not None:
        return None
    found = chunk_before(plan.chunking, chunk)
    if found is None:
        return None
    return PlannedChunk(found.key, chunk.index, found.start, found.end, chunk.reads, found.hour, found.part)


def part_of(run: RunContext, staged: ChunkRecord, parts: int) -> Part:
    """Return a part of a chunk that has entities of it: one of `parts`, or of fewer where entities are few."""
    entity = run.target.entity
    if parts == 1 or entity is None or not staged.files:
        return Part()
    texts: set[str] = set()
    with stores.opened_by(run.platform.lakehouse.access):
        for file in staged.files:
            rows = pl.scan_parquet(stores.source(file.path), hive_partitioning=False, glob=False)
            found = rows.select(pl.col(entity).cast(pl.String).unique()).drop_nulls().collect()
            texts.update(found[entity].to_list())
    parts = min(parts, len(texts) // FEWEST_ENTITIES)
    if parts <= 1:
        return Part()
    return Part(parts, residue(min(texts, key=lambda text: _place(run.plan, text)), parts))


def _place(plan: Plan, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{plan.hash} {name}".encode()).digest()[:8])


def purity_finding(stretches: Sequence[tuple[RunContext, Sequence[ChunkRecord]]]) -> Finding:
    """Compute a sample of the chunks of a run again, and hold their rows against those that are staged.

    `stretches` are the plans that chunks of the run were computed with, each with its chunks.
    """
    again: list[str] = []
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    for run, chunks in stretches:
        staged = {chunk.chunk: chunk for chunk in chunks}
        for chunk, parts in sampled(run.plan, chunks):
            part = part_of(run, staged[chunk.key], parts)
            name = chunk.key if part.of == 1 else f"{chunk.key} (1 of {part.of} parts, by {run.target.entity})"
            again.append(name)
            try:
                found = _differing(run, chunk, staged[chunk.key], part, earlier_in_batch(run.plan, chunk, staged))
            except TransformRefused as refusal:
                wrong.append(f"{name} cannot be computed again: {refusal.problems[0].what}")
                continue
            if found:
                differ = _exceptions(chunk.key, run.target.key, found)
                wrong.append(f"{len(differ):,}{' or more' if len(found) > LIMIT else ''} row(s) of {name} are others")
                rows += differ
    details = {"computed_again": again}
    summary = f"computed again in other surroundings: {', '.join(again)}; {'; '.join(wrong) or 'the rows are those that are staged'}"
    listed = partial(exception_rows, stretches[0][0].spark, rows) if rows else None
    return Finding(not wrong, summary, details, compared=len(again), disagreeing=len(wrong), exceptions=listed)


def _differing(
    run: RunContext, chunk: PlannedChunk, staged: ChunkRecord, part: Part, earlier: PlannedChunk | None
) -> list[dict[str, Any]]:
    """Compute a chunk again, and once more where a worker of Spark was lost meanwhile: that is nothing that the rows have done."""
    try:
        return differing_rows(run, chunk, staged, part, earlier)
    except Exception as error:
        if not is_of_lost_worker(error):
            raise
        _log.warning("a worker was lost while %s was computed again: once more", chunk.key)
        return differing_rows(run, chunk, staged, part, earlier)


def _exceptions(chunk: str, key: Sequence[str], found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that differ as exceptions, a row a key."""
    sides: dict[str, dict[str, Any]] = defaultdict(dict)
    for row in found:
        shown = shown_row({name: value for name, value in row.items() if name != _TIMES})
        side = "found" if row[_TIMES] > 0 else "expected"
        sides[json_of({name: shown[name] for name in key})][side] = shown
    if len(found) > LIMIT:  # the other side of the last key may be beyond it
        sides.pop(next(reversed(sides)))
    return [_exception(chunk, text, both) for text, both in sorted(sides.items())]


def _exception(chunk: str, key: str, both: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    before, after = both.get("expected"), both.get("found")
    if before is None or after is None:
        what = (
            "computed again it is not there"
            if after is None
            else "it is there when it is computed again, and is not staged"
        )
    else:
        columns = ", ".join(name for name in before if before[name] != after[name])
        what = (
            f"computed again it has another {columns}"
            if columns
            else "computed again it is there another number of times"
        )
    return {
        "slice": json_of({"chunk": chunk}),
        "key": key,
        "expected": None if before is None else json_of(before),
        "found": None if after is None else json_of(after),
        "what": what,
    }
