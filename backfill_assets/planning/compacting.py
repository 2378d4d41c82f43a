"""What there is to compact of a target when a compaction is planned, and which chunks have been compacted since they were accepted.

Put here what is looked up for a plan of the kind COMPACTION. Which chunks are worth it is decided by the figures of
`manifests.compaction`; how their rows are rewritten is `staging.rewriting`'s.

Who holds a chunk is not changed by its compaction: the rows are those of the run that made them. That its files are others by
now follows from the ledger's publications, as `compacted` has it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from backfill_assets.declarations.target import (
    ALL_CHUNKS_GATE,
    EXPECTED_ROWS_GATE,
    Inputs,
    TargetTable,
    TransformContext,
    TransformVersion,
    no_warm_up,
)
from backfill_assets.installation import Platform
from backfill_assets.planning.file_sizes import declared_file_size
from backfill_assets.planning.scopes import chunk_scopes
from manifests.compaction import (
    COMPACTION,
    REWRITING,
    REWRITING_VERSION,
    CompactedChunk,
    CompactionTerms,
    files_wanted,
    nothing_to_compact,
)
from manifests.errors import PlanRefused
from manifests.estimates import Estimate
from manifests.lifecycle import RunState
from manifests.limit_problems import pace_problems
from manifests.model import RunManifest
from manifests.plan import Plan
from manifests.timeliness import AS_OTHERS
from resources.lakehouse.compactable import ChunkFiles, chunk_files, deletes_beyond
from resources.ledger.accepted_versions import AcceptedVersion
from resources.ledger.facade import ChunkRecord, RunRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def reading_itself(target: TargetTable) -> TargetTable:
    """Return a target as a compaction has it: computed from its own rows, by nothing, and held against nothing else."""
    return replace(
        target,
        source=target.name,
        source_time_column=target.day_column,
        sources=(),
        references=(),
        look_back_columns=(),
        warm_up_days=no_warm_up,
        transform=REWRITING,
        versions={REWRITING_VERSION: TransformVersion(_as_it_is)},
        reconciliations=(),
        tolerances={},
        timeliness=AS_OTHERS,
        readers=None,
        restated=None,
        merge_policy=None,
        starts_from=None,
        live=None,
    )


def snapshots_of(platform: Platform, target: TargetTable, manifest: RunManifest) -> tuple[int | None, int | None]:
    """Return the snapshot of the target that a run goes on from, and the one of its source that it reads, if that is known yet.

    A compaction reads what it goes on from: the target as it is now, or, as a dry run, as the plan has it that it was made for.
    """
    current, wanted = platform.lakehouse.snapshot_id(target.name), manifest.source.snapshot_id
    if manifest.kind != COMPACTION:
        return current, wanted
    return (current, current) if wanted is None else (wanted, wanted)


def _as_it_is(inputs: Inputs, context: TransformContext) -> DataFrame:
    del context
    return inputs.source


def with_compaction(platform: Platform, target: TargetTable, plan: Plan, manifest: RunManifest) -> Plan:
    """Return the plan of a compaction with what is rewritten into what: of its chunks, those that are worth it. Any other as it is.

    Raises:
        PlanRefused: if there is nothing to do, a file that deletes rows cannot go with its files, the table has a size of files
            that is none, or what is rewritten cannot keep its pace.
        InputRefused: if rows are deleted by their values.
    """
    if manifest.kind != COMPACTION:
        return plan
    table, base = platform.lakehouse.table(target.name), plan.base_snapshot_id
    size, said_by = declared_file_size(target, table.properties, manifest)
    found: dict[str, ChunkFiles] = {}
    if base is not None:
        found = chunk_files(table, base, chunk_scopes(target, plan.chunks, same_rows=True))
    chunks = [one for key, files in found.items() if (one := _compacted(key, files, size)) is not None]
    if not chunks:
        raise PlanRefused(nothing_to_compact(target.name, manifest.target.scope, size))
    keys = {one.key for one in chunks}
    paths = {path for key in keys for path in found[key].paths}
    deletes = {path for key in keys for path in found[key].deletes}
    # a dry run of some chunks takes nothing away
    if base is not None and plan.publishes and (problems := deletes_beyond(table, base, deletes, paths)):
        raise PlanRefused(problems)
    mine = tuple(chunk for chunk in plan.chunks if chunk.key in keys)
    own = {one.key: Estimate(one.files, one.rows, one.bytes) for one in chunks}
    reads = Estimate(
        *(sum(each) for each in zip(*((one.files, one.rows, one.bytes) for one in own.values()), strict=True))
    )
    if problems := pace_problems(plan.pace, [replace(one, reads=own[one.key]) for one in mine], None, reads):
        raise PlanRefused(problems)
    return replace(
        plan,
        chunks=mine,
        gates=(ALL_CHUNKS_GATE, EXPECTED_ROWS_GATE),
        upstream=(),
        compaction=CompactionTerms(size, said_by, tuple(chunks), len(plan.chunks) - len(chunks)),
    )


def _compacted(key: str, files: ChunkFiles, size: int) -> CompactedChunk | None:
    """Return what becomes of a chunk; None if it is left as it is."""
    into = sum(files_wanted(rows, of_group, size) for rows, of_group in files.groups)
    if not files.deletes and len(files.paths) <= into:
        return None
    most = max((-(-rows // files_wanted(rows, of_group, size)) for rows, of_group in files.groups if rows), default=1)
    total = sum(of_group for _, of_group in files.groups)
    return CompactedChunk(key, len(files.paths), len(files.deletes), files.rows, total, into, most)


@dataclass(frozen=True)
class Compacted:
    """A chunk whose files are those of a compaction, with the same rows as before."""

    run_id: str
    chunk: ChunkRecord


def compacted(platform: Platform, target: str, keys: Collection[str] | None = None) -> dict[str, Compacted]:
    """Return the chunks of a target (of `keys`, if given) that readers get from the files of a compaction, with the newest.

    That is where whoever held a chunk when it was compacted holds it today, or nobody did and does: who has taken a chunk since has
    brought its own files, and whose change is undone gives back what was there.
    """
    found: dict[str, Compacted] = {}
    for record, at, chunks in _published(platform, target):
        for chunk, own in chunks:
            if (keys is None or chunk.chunk in keys) and _taken_since(own, at) is None:
                found[chunk.chunk] = Compacted(record.run_id, chunk)
    return found


def outlived(platform: Platform, target: str) -> dict[str, datetime]:
    """Return the published compactions of a target none of whose files readers get any more, each with since when.

    Each of its chunks was taken by a run since, or compacted again. A run of which that is true is SUPERSEDED; a compaction holds no
    chunk that could be taken from it.
    """
    found: dict[str, datetime] = {}
    again: dict[str, datetime] = {}
    for record, at, chunks in reversed(_published(platform, target)):
        since: list[datetime | None] = []
        for chunk, own in chunks:
            known = [one for one in (_taken_since(own, at), again.get(chunk.chunk)) if one is not None]
            since.append(min(known, default=None))
            again[chunk.chunk] = at
        if since and None not in since:
            found[record.run_id] = max(one for one in since if one is not None)
    return found


_Chunks = list[tuple[ChunkRecord, list[AcceptedVersion]]]


def _published(platform: Platform, target: str) -> list[tuple[RunRecord, datetime, _Chunks]]:
    """Return the published compactions of a target in the order of their commits, each with when that was, and who has held its chunks."""
    runs = [one for one in platform.ledger.runs(target=target, states=[RunState.PUBLISHED]) if one.kind == COMPACTION]
    if not runs:
        return []
    holdings: dict[str, list[AcceptedVersion]] = {}
    for one in platform.ledger.holdings(target):
        holdings.setdefault(one.chunk, []).append(one)
    found = [
        (
            record,
            platform.ledger.landed(record.run_id)[-1].landed_at,
            [(chunk, holdings.get(chunk.chunk, [])) for chunk in platform.ledger.chunks(record.run_id)],
        )
        for record in runs
    ]
    return sorted(found, key=lambda one: one[1])


def _taken_since(own: Sequence[AcceptedVersion], at: datetime) -> datetime | None:
    """Return since when a chunk is another run's than at an instant, by all who have held it; None if it is not."""
    then = {one.run_id for one in own if one.accepted_at <= at and (one.ended_at is None or one.ended_at > at)}
    today = [one for one in own if one.ended_at is None]
    if then == {one.run_id for one in today}:
        return None
    if then:
        return max(one.ended_at for one in own if one.run_id in then and one.ended_at is not None)
    since = today[0].accepted_at  # nobody held it: since the first of those who have taken it from one another
    while earlier := [one.accepted_at for one in own if one.ended_at == since and one.accepted_at < since]:
        since = min(earlier)
    return since
