"""What a merge or a correction makes of computed chunks: sent to Spark's workers, and judged when it is back.

Put here what is sent and what the answers mean; what is done to rows is `worker.chunk_merge`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import entities_file
from backfill_assets.staging.folders import Parts, parts_of
from backfill_assets.staging.rows import lineage
from backfill_assets.worker.chunk_corrections import CorrectionSpec
from backfill_assets.worker.chunk_gate import gating
from backfill_assets.worker.chunk_merge import (
    ISSUED_RULE,
    MergedTask,
    MergeSpec,
    deriving,
    judging_merges,
)
from backfill_assets.worker.derive_tasks import DeriveTask
from backfill_assets.worker.derived_files import ONE_PARTITION, PartitionedBy
from backfill_assets.worker.gate_tasks import GateSpec, GateTask
from backfill_assets.worker.merge_decisions import Terms
from backfill_assets.worker.references import import_path_of
from backfill_assets.worker.sums import value_columns
from backfill_assets.worker.violations import Violation, require_read
from manifests.errors import EnvironmentRefused, Problem
from manifests.plan import Plan, PlannedChunk
from manifests.staged_file import StagedFile
from resources.files.fingerprints import Fingerprint
from resources.lakehouse.facade import local_path
from resources.ledger.facade import ChunkRecord, DerivedFiles


@dataclass(frozen=True)
class DerivedVerdict:
    """What is wrong with what was derived of a chunk, and its measures as readers would see it (None: as computed).

    `hashes` are those of the derived files, by path; `visible` are the rows and the sums of number columns as readers would
    see them (None: as computed); `tallies` what the target's gates have counted, the same; `ambiguous` some of the rows that a
    merge policy decides nothing about.
    """

    violations: list[Violation]
    summary: str
    slices: list[dict[str, Any]] | None
    visible: Mapping[str, Any] | None = None
    hashes: Mapping[str, Fingerprint] = field(default_factory=dict)
    tallies: Mapping[str, Any] | None = None
    ambiguous: list[dict[str, Any]] = field(default_factory=list)


def publishes_to(target: TargetTable, plan: Plan) -> str:
    """Return the table that a plan's files come into."""
    return target.corrections.name if plan.corrections and target.corrections else target.name


def _tasks(
    run: RunContext, files: Mapping[str, Sequence[StagedFile]], prefix: str
) -> tuple[list[DeriveTask], dict[str, str]]:
    """Return what workers are sent, one task a chunk, and the catalog's name of each base file by the name they know."""
    lakehouse, target, plan = run.platform.lakehouse, run.target, run.plan
    scopes = chunk_scopes(target, [plan.chunk(key) for key in files])
    nothing: dict[str, tuple[str, ...]] = dict.fromkeys(scopes, ())
    base = nothing
    if plan.base_snapshot_id is not None:
        base = lakehouse.files_by_chunk(target.name, plan.base_snapshot_id, scopes)
    issued, output = nothing, prefix
    if plan.corrections is not None:
        table = publishes_to(target, plan)
        output = f"{lakehouse.location(table)}/{prefix.removeprefix(f'{lakehouse.location(target.name)}/')}"
        if plan.corrections_base_snapshot_id is not None:
            issued = lakehouse.files_by_chunk(table, plan.corrections_base_snapshot_id, scopes)
    entities = entities_file(lakehouse.table(target.name), prefix) if plan.merge is not None else ""
    tasks = [
        DeriveTask(
            key,
            tuple(map(local_path, base[key])),
            tuple(local_path(file.path) for file in files[key]),
            f"{local_path(output)}/derived/{key}",
            entities,
            tuple(map(local_path, issued[key])),
        )
        for key in files
    ]
    return tasks, {local_path(path): path for paths in base.values() for path in paths}


def _spec(run: RunContext) -> MergeSpec | CorrectionSpec:
    platform, target, plan = run.platform, run.target, run.plan
    table = platform.lakehouse.table(publishes_to(target, plan))
    schema, by = table.schema().model_dump_json(), _partitioned_by(parts_of(table, target))
    if plan.merge is not None:
        column = plan.merge.version_column
        return MergeSpec(
            schema,
            target.key,
            plan.merge.entity,
            column,
            plan.merge.on_older_version,
            plan.run_id,
            deletes_at=lineage(plan).get(column),
            lineage=lineage_columns(target.model),
            by=by,
            terms=None
            if plan.merge.policy is None
            else Terms(plan.merge.policy, plan.merge.cut_line, target.day_column),
        )
    values = value_columns(tuple(dtypes(target.model)), target.key, lineage_columns(target.model))
    reason = platform.ledger.run(plan.run_id).manifest.reason
    base = platform.lakehouse.table(target.name).schema().model_dump_json()
    return CorrectionSpec(schema, target.name, target.key, values, reason, lineage(plan), base, by)


def _partitioned_by(parts: Parts) -> PartitionedBy:
    return PartitionedBy(parts.by, parts.folder) if parts else ONE_PARTITION


def derive_batch(
    run: RunContext, chunks: Sequence[PlannedChunk], prefix: str, files: Mapping[str, Sequence[StagedFile]]
) -> dict[str, DerivedFiles]:
    """Derive what is published of computed chunks, by key; empty where the computed rows themselves are.

    Raises:
        EnvironmentRefused: naming a file that cannot be read.
    """
    if not run.plan.derives:
        return {}
    tasks, named = _tasks(run, {chunk.key: files[chunk.key] for chunk in chunks}, prefix)
    weights = {chunk.key: chunk.reads.rows for chunk in chunks}
    work = deriving(_spec(run))
    scheme = "file://" if prefix.startswith("file:") else ""
    found = {}
    for result in run.platform.workers.do(run.plan.mode, work, [(task, weights[task.chunk]) for task in tasks]):
        if isinstance(result, Violation):
            raise _unreadable(result)
        found[result.chunk] = DerivedFiles(
            tuple(StagedFile(f"{scheme}{path}", rows, size) for path, rows, size in result.files),
            tuple(named[path] for path in result.replaced),
            result.counts,
        )
    return found


def _unreadable(found: Violation) -> EnvironmentRefused:
    (sample,) = found.sample
    return EnvironmentRefused(
        Problem(
            f"{sample['file']} cannot be read: {sample['error']}",
            "a merge or a correction is made of the rows that readers see today",
            "`backfill verify --all --data` names what else is damaged; restore the file, and run the same command again",
        )
    )


def judge_derived(run: RunContext, chunks: Sequence[ChunkRecord]) -> dict[str, DerivedVerdict]:
    """Read what was derived of chunks back and judge it, by key; empty where nothing was derived.

    Raises:
        EnvironmentRefused: if a file could not be read just now.
    """
    verdicts: dict[str, DerivedVerdict] = {}
    if run.plan.merge is not None:
        verdicts = _judge_merge(run, chunks)
    elif run.plan.corrections is not None:
        verdicts = _judge_corrections(run, chunks)
    require_read(one for verdict in verdicts.values() for one in verdict.violations)
    return verdicts


def _judge_merge(run: RunContext, chunks: Sequence[ChunkRecord]) -> dict[str, DerivedVerdict]:
    platform, target = run.platform, run.target
    prefixes = {one.attempt: one.prefix for one in platform.ledger.attempts(run.run_id)}
    tasks = []
    for attempt in sorted({chunk.attempt for chunk in chunks}):
        files = {chunk.chunk: chunk.files for chunk in chunks if chunk.attempt == attempt}
        tasks += _tasks(run, files, prefixes[attempt])[0]
    by_key = {chunk.chunk: chunk for chunk in chunks}
    merged = []
    for task in tasks:
        chunk = by_key[task.chunk]
        gone = set(map(local_path, chunk.replaced))
        own = tuple(local_path(file.path) for file in chunk.derived)
        seen = own + tuple(path for path in task.base if path not in gone)
        merged.append((MergedTask(task, seen, own), chunk.rows or 0))
    measure = None if target.measure is None else import_path_of(target.measure)
    spec = _spec(run)
    assert isinstance(spec, MergeSpec)
    verdicts = {}
    for result in platform.workers.do(run.plan.mode, judging_merges(spec, measure, target.tallies), merged):
        broken = [Violation(rule, len(sample), sample) for rule, sample in sorted(result.broken.items())]
        verdicts[result.chunk] = DerivedVerdict(
            broken,
            f"{len(by_key[result.chunk].replaced)} file(s) copied with merged rows",
            result.slices,
            result.visible,
            result.hashes,
            result.tallies,
            result.ambiguous,
        )
    return verdicts


def _judge_corrections(run: RunContext, chunks: Sequence[ChunkRecord]) -> dict[str, DerivedVerdict]:
    target, plan = run.target, run.plan
    assert target.corrections is not None
    model = import_path_of(target.corrections.model)
    parts = parts_of(run.platform.lakehouse.table(publishes_to(target, plan)), target).by
    spec = GateSpec(
        model, ("correction_id",), target.day_column, lineage(plan), None, parts=parts, division=target.chunk_values
    )
    tasks = [
        GateTask(
            chunk.chunk,
            chunk.attempt,
            plan.chunk(chunk.chunk).start,
            plan.chunk(chunk.chunk).end,
            tuple(local_path(file.path) for file in chunk.derived),
            sum(file.rows for file in chunk.derived),
            hour=plan.chunk(chunk.chunk).hour,
            part=plan.chunk(chunk.chunk).part,
        )
        for chunk in chunks
    ]
    issued = {chunk.chunk: chunk.measures.get("happened", {}).get("issued_before", 0) for chunk in chunks}
    verdicts = {}
    for result in run.platform.workers.do(plan.mode, gating(spec), [(task, task.rows) for task in tasks]):
        violations = list(result.violations)
        if issued[result.chunk]:
            violations.append(Violation(ISSUED_RULE, issued[result.chunk]))
        slices = None
        summary = f"{result.rows:,} corrections ({result.digest})"
        verdicts[result.chunk] = DerivedVerdict(violations, summary, slices, hashes=result.hashes)
    return verdicts
