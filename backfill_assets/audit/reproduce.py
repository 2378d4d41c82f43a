"""Proving a run again: from its recorded plan into scratch, and each chunk's digest against the recorded one.

Put here the computation, the comparison, and the verdict with its cause. Whether what the plan pins is still there is
`conditions`' to say, which row differs first `first_difference`'s. How a batch is computed is `staging.compute`'s, how a chunk
is judged `gates.judging`'s: the very functions that made the record. Nothing here writes to the ledger, to a table or to an
attempt's folder, and no sink is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from itertools import count
from uuid import uuid4

import polars as pl
import pyarrow.fs as pafs
from pyspark.sql import SparkSession

from backfill_assets.audit.conditions import _SHORT_HASH, Cause, Condition, _pins, conditions_of
from backfill_assets.audit.first_difference import RowDifference, digest_of_files, first_differing_row
from backfill_assets.audit.second_engine import (
    EngineName,
    EngineUsed,
    computing_on_sail,
    condition_of,
    named,
    require_usable,
)
from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.target import TargetTable
from backfill_assets.evidence.digested import digested_columns
from backfill_assets.gates.judging import run_gates
from backfill_assets.installation import Platform
from backfill_assets.run_context import RunContext
from backfill_assets.staging.compute import compute_batch
from backfill_assets.staging.executor import ignore_progress
from backfill_assets.worker.chunk_gate import digest_columns
from backfill_assets.worker.columns import UNREADABLE
from backfill_assets.worker.digest_types import dtype_of
from backfill_assets.worker.gate_tasks import DigestColumn
from manifests.errors import InputRefused, Problem, Refused
from manifests.model import Mode
from manifests.plan import Plan, PlannedChunk
from manifests.staged_file import StagedFile
from resources.files import stores
from resources.lakehouse.storage import filesystem_of
from resources.ledger.facade import ChunkRecord, ChunkState, RunRecord
from resources.spark.engines import OtherEngine
from resources.spark.sessions import ModeSpark

_SHOWN = 3
_ERROR_LENGTH = 2_000


class Outcome(StrEnum):
    """What became of a chunk, or of the whole reproduction."""

    EQUAL = "EQUAL"
    DIFFERENT = "DIFFERENT"
    NOT_COMPUTED = "NOT_COMPUTED"


@dataclass(frozen=True)
class ChunkComparison:
    """One chunk: what the ledger holds of it and what was computed now; `note` says why it has no digest now."""

    chunk: str
    outcome: Outcome
    recorded_rows: int
    rows: int | None
    recorded_digest: str
    digest: str
    note: str = ""


@dataclass(frozen=True)
class Difference:
    """The first chunk that differs. `row` is None where no row can be named; `note` says why, or what else was seen."""

    chunk: str
    row: RowDifference | None
    note: str


@dataclass(frozen=True)
class Reproduction:
    """What a reproduction found. `causes` is empty where the run is equal, or nothing is known to be the cause."""

    run_id: str
    outcome: Outcome
    summary: str
    causes: tuple[Cause, ...]
    what_to_do: tuple[str, ...]
    conditions: tuple[Condition, ...]
    chunks: tuple[ChunkComparison, ...]
    difference: Difference | None
    scratch: str | None
    """Folder of what was computed, where it was to be kept."""
    engine: EngineUsed
    """What has computed it; without a version where nothing was computed."""


Listener = Callable[[str, Sequence[str], str], None]
"""Told what happens: an event (`computing`, `computed`, `compared`), the chunks, and a folder or nothing."""


def reproduce(
    platform: Platform,
    run_id: str,
    keys: Sequence[str] | None = None,
    *,
    keep: bool = False,
    engine: EngineName = EngineName.SPARK,
    tell: Listener = ignore_progress,
) -> Reproduction:
    """Compute chunks of a recorded run (all of them by default) again from its plan, and compare their digests.

    What is computed goes to a folder of this call beside the attempts' folders, a batch at a time, and is removed
    afterwards, also after a failure, unless `keep`. Disk and memory are one batch's. Another `engine` than Spark computes in
    a server of this call.

    Raises:
        InputRefused: if the run is unknown, its recorded plan was altered, or a chunk has no recorded digest.
        EnvironmentRefused: if the engine is not there, or cannot compute on these tables.
    """
    record = platform.ledger.run(run_id)
    _require_unaltered(record)
    plan = record.plan
    recorded = _recorded(platform, record, keys)
    groups = platform.ledger.by_plan(record, recorded)
    conditions = conditions_of(platform, plan, recorded)
    for own, _ in groups:  # chunks that were planned anew after a conflict have pins of their own
        if own.hash != plan.hash:
            conditions += tuple(_pins(platform, own))
    if engine is EngineName.SAIL:
        require_usable(platform, plan)
    obstacles = [condition for condition in conditions if condition.blocks]
    if obstacles:
        return _cannot_be_computed(run_id, conditions, obstacles, engine)
    target = platform.products.target(plan.target)
    scratch = f"{platform.lakehouse.location(target.name)}/reproduce={run_id}-{uuid4().hex[:_SHORT_HASH]}"
    numbers, digest = count(1), digested_columns(platform, record)
    with _computing(platform, plan, scratch, engine) as (computing, other):
        if other is not None:
            conditions += (condition_of(other.version),)
        benches = (
            (_Bench(RunContext(computing, target, own), recorded, scratch, tell, numbers, digest, other), batch)
            for own, chunks in groups
            for batch in own.batches(chunks)
        )
        found, difference = _compared(benches, conditions, keep=keep)
        used = _used(computing, plan, other)
    return _judged(run_id, conditions, found, difference, scratch if keep else None, used)


@contextmanager
def _computing(
    platform: Platform, plan: Plan, scratch: str, engine: EngineName
) -> Iterator[tuple[Platform, OtherEngine | None]]:
    """Yield the platform that computes a reproduction, and the engine if it is not Spark: it holds nothing of LIVE."""
    if engine is EngineName.SPARK:
        yield _holding_nothing_of_live(platform, plan), None
        return
    with computing_on_sail(platform, plan, scratch) as found:
        yield found


def _used(platform: Platform, plan: Plan, other: OtherEngine | None) -> EngineUsed:
    if other is None:
        return EngineUsed("Spark", platform.spark.session(plan.mode).version)
    return EngineUsed(other.name, other.version, tuple(other.notes))


def _compared(
    benches: Iterable[tuple[_Bench, Sequence[PlannedChunk]]], conditions: Sequence[Condition], *, keep: bool
) -> tuple[list[ChunkComparison], Difference | None]:
    """Compute batch after batch and compare each; of the first chunk that differs, say in what."""
    found: list[ChunkComparison] = []
    difference: Difference | None = None
    for bench, batch in benches:
        try:
            computed, errors = _compute(bench, batch)
            compared = _compare(bench, batch, computed, errors)
            different = next((one for one in compared if one.outcome is Outcome.DIFFERENT), None)
            if different is not None and difference is None:
                with stores.opened_by(bench.run.platform.lakehouse.access):
                    difference = _difference(bench, different, computed[different.chunk])
                if all(condition.same or condition.cause is Cause.ENGINE for condition in conditions):
                    difference = replace(difference, note=f"{difference.note} {_once_more(bench, different)}".strip())
        finally:
            if not keep:
                _remove(bench.run.platform, bench.run.target, bench.scratch)
        bench.tell("compared", [one.chunk for one in compared], "")
        found += compared
    return found, difference


def _require_unaltered(record: RunRecord) -> None:
    if record.plan.hash != record.plan_hash or record.manifest.hash != record.plan.manifest_hash:
        raise InputRefused(
            Problem(
                f"the recorded plan or manifest of '{record.run_id}' does not match its hash",
                "a run is reproduced from the plan that was approved",
                "the ledger was changed by hand; the evidence bundle of a published run has the plan",
            )
        )


def _recorded(platform: Platform, record: RunRecord, keys: Sequence[str] | None) -> dict[str, ChunkRecord]:
    """Return the ledger's record of each wanted chunk.

    Raises:
        InputRefused: if one of them was never digested: a proof covers all that was asked for.
    """
    chunks = {chunk.chunk: chunk for chunk in platform.ledger.chunks(record.run_id)}
    wanted = {key: chunks[key] for key in (chunks if keys is None else keys)}
    without = [chunk for chunk in wanted.values() if not chunk.digest]
    if without:
        shown = ", ".join(f"{chunk.chunk} ({chunk.state})" for chunk in without[:_SHOWN])
        more = f" and {len(without) - _SHOWN} more" if len(without) > _SHOWN else ""
        raise InputRefused(
            Problem(
                f"{len(without)} of {len(wanted)} chunks of '{record.run_id}' have no recorded digest: {shown}{more}",
                "a chunk is reproduced against the digest that its gate recorded when it was staged",
                "run it first (`backfill run`)"
                if len(without) == len(chunks)
                else "name chunks that have passed with --chunks; `backfill status` shows them",
            )
        )
    return wanted


def _cannot_be_computed(
    run_id: str, conditions: tuple[Condition, ...], obstacles: Sequence[Condition], engine: EngineName
) -> Reproduction:
    causes = tuple(dict.fromkeys(one.cause for one in obstacles))
    return Reproduction(
        run_id,
        Outcome.NOT_COMPUTED,
        "it cannot be computed again: " + "; ".join(f"{one.name}: {one.present}" for one in obstacles),
        causes,
        tuple(dict.fromkeys(one.fix for one in obstacles)),
        conditions,
        (),
        None,
        None,
        EngineUsed(engine.title(), ""),
    )


@dataclass
class _Bench:
    """One reproduction under way."""

    run: RunContext
    recorded: Mapping[str, ChunkRecord]
    scratch: str
    tell: Listener
    numbers: Iterator[int]
    digest: tuple[DigestColumn, ...] | None
    """What the recorded digests were made of; None where only the model and the version say so."""
    other: OtherEngine | None
    """The engine, if it is not Spark."""


class _AsReplay(ModeSpark):
    """Spark for the reproduction of a LIVE run: LIVE's settings in a session that holds nothing of LIVE."""

    def __init__(self, platform: Platform, mode: Mode) -> None:
        by_mode = {Mode.REPLAY: platform.settings.spark_by_mode.get(mode, {})}
        changed = {
            "spark_by_mode": by_mode,
            "spark_server": "never",
        }  # the server that is kept for replays has others' settings
        settings = platform.settings.model_copy(update=changed)
        super().__init__(settings, platform.worker_modules, code=platform.code_of_workers)

    def session(self, mode: Mode) -> SparkSession:  # noqa: ARG002 - whatever the plan's mode
        return super().session(Mode.REPLAY)


def _holding_nothing_of_live(platform: Platform, plan: Plan) -> Platform:
    """Return the platform, for a LIVE run with Spark confined as a replay's: computing again must reach no sink."""
    return platform if plan.mode is not Mode.LIVE else platform.with_spark(_AsReplay(platform, plan.mode))


def _compute(bench: _Bench, batch: Sequence[PlannedChunk]) -> tuple[dict[str, ChunkRecord], dict[str, str]]:
    """Compute a batch into scratch; return the chunks, and the error of each that cannot be computed.

    A batch that fails is halved until the chunks that fail stand alone, as when the run was staged.
    """
    keys = [chunk.key for chunk in batch]
    prefix = f"{bench.scratch}/batch-{next(bench.numbers)}"
    bench.tell("computing", keys, prefix)
    try:
        files = compute_batch(bench.run, batch, prefix)
    except Refused as refusal:  # every chunk would be refused for the same reason
        by_engine, _ = ("", True) if bench.other is None else named(bench.other, refusal)
        return {}, dict.fromkeys(keys, by_engine or refusal.problems[0].what)
    except Exception as error:  # noqa: BLE001 - whatever a transform raises is reported as the chunk's
        by_engine, of_all = ("", False) if bench.other is None else named(bench.other, error)
        if len(batch) == 1 or of_all:
            return {}, dict.fromkeys(keys, by_engine or f"{type(error).__name__}: {str(error)[:_ERROR_LENGTH]}")
        middle = len(batch) // 2
        (computed, errors), (others, more) = (_compute(bench, half) for half in (batch[:middle], batch[middle:]))
        return computed | others, errors | more
    bench.tell("computed", keys, "")
    return {chunk.key: _as_staged(bench, chunk, files[chunk.key]) for chunk in batch}, {}


def _as_staged(bench: _Bench, chunk: PlannedChunk, files: Sequence[StagedFile]) -> ChunkRecord:
    """Return what the ledger would hold of a chunk that was staged: the form in which the gates take it."""
    return ChunkRecord(
        chunk=chunk.key,
        index=chunk.index,
        state=ChunkState.STAGED,
        attempt=bench.recorded[chunk.key].attempt,
        rows=sum(file.rows for file in files),
        bytes=sum(file.bytes for file in files),
        files=tuple(files),
        digest=None,
        measures={},
        error="",
    )


def _compare(
    bench: _Bench, batch: Sequence[PlannedChunk], computed: Mapping[str, ChunkRecord], errors: Mapping[str, str]
) -> list[ChunkComparison]:
    """Gate what was computed, and put each digest beside the recorded one."""
    results = {}
    if computed:
        # no measures and no outline: the gate would keep the outline beside the run's own
        bare = replace(bench.run, target=replace(bench.run.target, measure=None, outline=None))
        gated = run_gates(bare, list(computed.values()), bench.digest)
        results = {result.chunk: result for result in gated}
    found = []
    for key in (chunk.key for chunk in batch):
        was = bench.recorded[key]
        compared = partial(ChunkComparison, key, recorded_rows=was.rows or 0, recorded_digest=was.digest or "")
        if key in errors:
            found.append(compared(Outcome.NOT_COMPUTED, rows=None, digest="", note=errors[key]))
            continue
        result = results[key]
        equal = result.passed and (result.digest, result.rows) == (was.digest, was.rows)
        note = "" if result.passed else f"does not pass its gate: {result.summary}"
        outcome = Outcome.EQUAL if equal else Outcome.DIFFERENT
        found.append(compared(outcome, rows=result.rows, digest=result.digest, note=note))
    return found


def _once_more(bench: _Bench, different: ChunkComparison) -> str:
    """Compute a chunk that differs for no known reason a second time, alone, and say what that tells."""
    batch = [bench.run.plan.chunk(different.chunk)]
    computed, errors = _compute(bench, batch)
    (again,) = _compare(bench, batch, computed, errors)
    if again.digest == different.digest and again.rows == different.rows:
        if bench.other is not None:
            return f"Computed once more it comes out as it did a moment ago: {bench.other} gives these rows each time."
        return (
            "Computed once more it comes out as it did a moment ago: the output depends on something that the plan does "
            "not pin (a clock, a live lookup, the machine, installed libraries that are not those of the lock file)."
        )
    return (
        "Computed once more, alone, it comes out differently again: the output depends on chance, or on which chunks are "
        "computed together."
    )


def _remove(platform: Platform, target: TargetTable, scratch: str) -> None:
    filesystem, folder, _ = filesystem_of(platform.lakehouse.table(target.name), scratch)
    if filesystem.get_file_info(folder).type is not pafs.FileType.NotFound:
        filesystem.delete_dir(folder)


def _judged(
    run_id: str,
    conditions: tuple[Condition, ...],
    chunks: Sequence[ChunkComparison],
    difference: Difference | None,
    scratch: str | None,
    engine: EngineUsed,
) -> Reproduction:
    changed = [condition for condition in conditions if not condition.same]
    causes = tuple(dict.fromkeys(condition.cause for condition in changed))
    what_to_do = tuple(dict.fromkeys(condition.fix for condition in changed))
    names = " and ".join(dict.fromkeys(condition.name for condition in changed))
    equal = [one for one in chunks if one.outcome is Outcome.EQUAL]
    different = [one for one in chunks if one.outcome is Outcome.DIFFERENT]
    failed = [one for one in chunks if one.outcome is Outcome.NOT_COMPUTED]
    judged = partial(
        Reproduction,
        run_id,
        conditions=conditions,
        chunks=tuple(chunks),
        difference=difference,
        scratch=scratch,
        engine=engine,
    )
    if not different and not failed:
        rows = sum(one.recorded_rows for one in equal)
        summary = f"all {len(equal)} chunks have the recorded digest ({rows:,} rows)"
        if changed:
            summary = f"equal, although the {names} {'differs' if len(changed) == 1 else 'differ'}: {summary}"
        return judged(Outcome.EQUAL, summary, (), ())
    parts = [f"{len(equal)} of {len(chunks)} chunks have the recorded digest"]
    if different:
        parts.append(f"{len(different)} have another, the first is {different[0].chunk}")
    if failed:
        parts.append(f"{len(failed)} cannot be computed, the first is {failed[0].chunk}: {failed[0].note}")
    if changed:
        one_of = " (which of them it is, the digests cannot tell)" if len(causes) > 1 else ""
        parts.append(f"the {names} {'is not' if len(changed) == 1 else 'are not'} as the plan recorded{one_of}")
    elif different:
        causes = (Cause.NOT_DETERMINISTIC,)
        parts.append("code, configuration and pinned data are those of the plan: the transform is not deterministic")
        what_to_do = ("take clocks, randomness and lookups out of the transform: same plan, same output",)
    else:
        what_to_do = ("remove the cause of the error, then the same command again",)
    outcome = Outcome.DIFFERENT if different else Outcome.NOT_COMPUTED
    return judged(outcome, "; ".join(parts), causes, what_to_do)


def _difference(bench: _Bench, different: ChunkComparison, computed: ChunkRecord) -> Difference:
    """Name the first row in which a chunk differs from its recorded staged files, if those are still what was digested."""
    files = bench.recorded[different.chunk].files
    target = bench.run.target
    without = target.without(bench.run.plan.transform_version)
    kinds = {name: dtypes(target.model)[name] for name in digest_columns(target.model) if name not in without}
    now: dict[str, pl.Expr] = {}
    if bench.digest is not None:
        kinds = {one.name: dtype_of(one.kind) for one in bench.digest}
        now = {one.name: pl.col(one.now).cast(kinds[one.name]).alias(one.name) for one in bench.digest}
    notes = [different.note] if different.note else []
    row = None
    try:
        if digest_of_files([file.path for file in files], kinds, target.key) != different.recorded_digest:
            notes.append("the recorded files no longer give the recorded digest: the row is only what they hold today")
        row = first_differing_row(
            [file.path for file in files], [file.path for file in computed.files], list(kinds), target.key, now
        )
        if row is None and not different.note:
            notes.append("no row differs from the recorded files, only from their digest")
    except UNREADABLE as error:
        notes.append(f"the row cannot be named, the files cannot be compared: {type(error).__name__}: {error}"[:500])
    return Difference(different.chunk, row, ". ".join(notes) + ("." if notes else ""))
