"""The partitioned asset of a target: launched over backfill x chunk, it computes a batch of chunks into staging.

Put here how the asset looks to Dagster and what it reports. What is done is `execution`'s.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any

import dagster as dg
from dagster import AssetExecutionContext

from backfill_assets.declarations.product import InputTable
from backfill_assets.declarations.schema import descriptions, dtypes, iceberg_schema, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.defs.addresses import run_path
from backfill_assets.defs.dagster_private import BACKFILL_ID_TAG, UnresolvedAssetJobDefinition, add_asset_metadata
from backfill_assets.defs.launched_by import (
    RANGE_END,
    RANGE_START,
    RUN_TAG,
    is_decided,
    is_executed_again,
    known_stop,
    launched,
    run_and_chunk,
    terminated_at,
)
from backfill_assets.defs.spark_by_mode import SparkByMode
from backfill_assets.execution import Execution
from backfill_assets.installation import Platform
from backfill_assets.planning.launches import stretches_of
from backfill_assets.staging import stopping
from backfill_assets.staging.executor import Staged, require_computable
from backfill_assets.staging.progress import Progress
from backfill_assets.staging.watched_launch import Launch, cancel_dagster_run
from manifests.chunks import (
    EVER,
    KEY_FORMAT,
    Chunking,
    cut,
    first_day,
    following,
    in_words,
    key_of,
    last_day,
)
from manifests.errors import InputRefused, Problem, Refused, RunStopped
from manifests.lifecycle import RunState
from manifests.model import Mode
from manifests.stages import Step
from resources.files import space
from resources.lakehouse.type_words import type_words
from resources.ledger.facade import STAGED, AttemptRecord, ChunkRecord, RunRecord, chunks_of
from resources.ledger.instants import CLOCK_TOLERANCE
from resources.logs import also_to
from resources.processes import this_process

BACKFILL, CHUNK = "backfill", "chunk"
"""Names of the two partition dimensions; Dagster orders them by name, so that a key reads `<run id>|<chunk>`."""
BREAK_GLASS_TAG = "backfill/break_glass"
"""Tag of the Dagster runs of a run for which somebody broke the glass."""
REFUSAL = "refusal"
"""Of what kind a refusal was, in the metadata of the failure that shows it."""
PROCESS_TAG = "backfill/process"
"""Tag of a Dagster run with the process that works for it; see `resources.processes`."""

Standing = Callable[[Platform, dg.DagsterInstance, TargetTable, str, Sequence[str]], Iterable[dg.AssetCheckEvaluation]]
"""How the gates of chunks of a run stand, and those of its target, as Dagster is told."""

_BEGINS = {
    Chunking.YEAR: "0 0 1 1 *",
    Chunking.MONTH: "0 0 1 * *",
    Chunking.DAY: "0 0 * * *",
    Chunking.HOUR: "0 * * * *",
}
"""When the chunks of a chunking begin, as a cron schedule."""


def asset_key(table: str) -> dg.AssetKey:
    """Return the asset key of a table: its namespace and its name."""
    return dg.AssetKey(table.split("."))


def backfill_partitions(target: TargetTable) -> dg.DynamicPartitionsDefinition:
    """Return the dimension whose keys are the approved runs of a target."""
    return dg.DynamicPartitionsDefinition(name=f"backfills_of_{target.name.replace('.', '_')}")


class ChunkKeys(dg.StaticPartitionsDefinition):
    """Keys of chunks in order, of which each is found without a look at all others: a Dagster run over some of them looks often."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Take the keys."""
        super().__init__(keys)
        self._places = {key: place for place, key in enumerate(keys)}

    def has_partition_key(self, partition_key: str) -> bool:
        """Return whether it is one of the keys."""
        return partition_key in self._places

    def get_partition_keys_in_range(self, partition_key_range: dg.PartitionKeyRange) -> Sequence[str]:
        """Return the keys from one to another, both inclusive."""
        first, last = (self._places.get(key) for key in (partition_key_range.start, partition_key_range.end))
        if first is None or last is None:
            return super().get_partition_keys_in_range(partition_key_range)  # which says what is wrong
        return self.get_partition_keys()[first : last + 1]


def chunk_partitions(target: TargetTable) -> dg.PartitionsDefinition[str]:
    """Return the dimension whose keys are the target's chunks."""
    return _chunk_partitions(target.chunking, target.chunks_from, target.chunks_until, target.parts)


@lru_cache(maxsize=64)
def _chunk_partitions(
    chunking: Chunking, chunks_from: str, chunks_until: str, parts: tuple[str, ...]
) -> dg.PartitionsDefinition[str]:
    """Return the same of a declaration: of one of hours and values there may be a million keys, and its assets and checks each ask."""
    if chunking is Chunking.WHOLE:
        return ChunkKeys([chunk.key for chunk in cut(chunking, *EVER, parts)])
    fmt = KEY_FORMAT[chunking]
    begin, last = (first_day(chunking, key) for key in (chunks_from, chunks_until))
    if parts:
        # part by part, each over all times: some values over any days are few ranges, and a range is what one run takes
        until = last_day(chunking, last)
        return ChunkKeys([one.key for part in parts for one in cut(chunking, begin, until, (part,))])
    if chunking is Chunking.WEEK:  # no format that Dagster could read back writes a week without a day
        return ChunkKeys([chunk.key for chunk in cut(chunking, begin, last)])
    end = (
        key_of(chunking, following(chunking, last))
        if chunking is Chunking.HOUR
        else following(chunking, last).strftime(fmt)
    )
    # Dagster lists the windows that are over; the offset adds the present one, which the source may reach into
    return dg.TimeWindowPartitionsDefinition(
        start=chunks_from, end=end, fmt=fmt, end_offset=1, cron_schedule=_BEGINS[chunking]
    )


def partitions_of(target: TargetTable) -> dg.MultiPartitionsDefinition:
    """Return a target's partitions: backfill x chunk."""
    return dg.MultiPartitionsDefinition({BACKFILL: backfill_partitions(target), CHUNK: chunk_partitions(target)})


def partition_key(run_id: str, chunk: str) -> dg.MultiPartitionKey:
    """Return the partition key of a chunk of a run."""
    return dg.MultiPartitionKey({BACKFILL: run_id, CHUNK: chunk})


def range_tags(run_id: str, first: str, last: str) -> dict[str, str]:
    """Return the tags of a Dagster run over a range of chunks of a run, both ends inclusive."""
    return {RANGE_START: partition_key(run_id, first), RANGE_END: partition_key(run_id, last), RUN_TAG: run_id}


def offer_run(instance: dg.DagsterInstance, target: TargetTable, run_id: str) -> None:
    """Make an approved run a key of its target's backfill dimension, which is what the launch dialog offers."""
    name = backfill_partitions(target).name
    assert name is not None
    if not instance.has_dynamic_partition(name, run_id):
        instance.add_dynamic_partitions(name, [run_id])


def by_run(keys: Iterable[str]) -> dict[str, list[str]]:
    """Return the chunks of partition keys by their backfill run."""
    found: dict[str, list[str]] = defaultdict(list)
    for run_id, chunk in map(run_and_chunk, keys):
        found[run_id].append(chunk)
    return found


def one_run(keys: Sequence[str], target: TargetTable) -> tuple[str, list[str]]:
    """Return the backfill run and the chunks of partition keys.

    Raises:
        InputRefused: if the keys span several backfill runs: a Dagster run works for one.
    """
    found = by_run(keys)
    if len(run_ids := sorted(found)) != 1:
        raise InputRefused(
            Problem(
                f"the launch spans {len(run_ids)} backfill runs of {target.name}: {', '.join(run_ids[:5])}",
                "a Dagster run works for one backfill run",
                "choose one key of the backfill dimension",
            )
        )
    return run_ids[0], found[run_ids[0]]


def stretches(target: TargetTable, record: RunRecord, chunks: Iterable[str]) -> list[tuple[str, str]]:
    """Return first and last of each stretch of chunks without gaps: what one Dagster run can take; see `stretches_of`."""
    return [(own[0].key, own[-1].key) for own in stretches_of(target, record.plan.those_of(chunks))]


def column_schema(table: TargetTable | InputTable) -> dg.TableSchema:
    """Return the Dagster column schema of a declared table."""
    docs, lineage = descriptions(table.model), lineage_columns(table.model)
    key = table.key if isinstance(table, TargetTable) else ()
    checks = {name: column.nullable for name, column in table.model.to_schema().columns.items()}
    types = {field.name: type_words(field.field_type) for field in iceberg_schema(table.model).fields}
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                name,
                types[name],
                docs[name],
                tags={"lineage": ""} if name in lineage else None,
                constraints=dg.TableColumnConstraints(nullable=checks[name], other=["key"] if name in key else []),
            )
            for name in dtypes(table.model)
        ]
    )


def column_lineage(target: TargetTable) -> dg.TableColumnLineage:
    """Return the declared column lineage of a target."""
    return dg.TableColumnLineage(
        {
            column: [dg.TableColumnDep(asset_key(origin.table), origin.column) for origin in origins]
            for column, origins in target.column_origins.items()
        }
    )


def tell_of_broken_glass(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, platform: Platform, run_id: str
) -> str:
    """Log it and tag the Dagster run, if somebody broke the glass for a run; return the reasons."""
    found = platform.ledger.broken_glass(run_id)
    for one in found:
        context.log.warning("BREAK-GLASS: %s as %s: %s", one.decided_by, one.role, one.break_glass)
    if found:
        context.instance.add_run_tags(context.run_id, {BREAK_GLASS_TAG: "true"})
    return "; ".join(f"{one.decided_by} as {one.role}: {one.break_glass}" for one in found)


def staging_job_name(target: TargetTable) -> str:
    """Return the name of the job that stages and gates chunks of a target."""
    return f"stage_{target.name.replace('.', '_')}"


def staging_job(target: TargetTable) -> UnresolvedAssetJobDefinition:
    """Make the job that stages and gates chunks; the command runs it, and people may."""
    return dg.define_asset_job(
        staging_job_name(target),
        selection=dg.AssetSelection.assets(asset_key(target.name)),
        description=f"Computes chunks of {target.name} into staging and gates them.",
    )


@contextmanager
def launched_by_dagster(
    context: dg.OpExecutionContext | dg.AssetExecutionContext, platform: Platform, run_id: str, *, resumes: bool = True
) -> Iterator[Launch]:
    """Watch for stops of a backfill run during the body, which works for it in a Dagster run.

    The Dagster run ends CANCELED if the backfill run was stopped, whoever has stopped it, and FAILURE if only its process
    was ended; see `stopping.launched`. A stop ends with what a person launches, if it `resumes`: what a sensor, a schedule
    or a retry of Dagster's has launched was asked for by nobody who knows of the stop.
    """
    instance, dagster_run_id = context.instance, context.run_id
    resumes = resumes and is_decided(context.run.tags)
    try:
        with (
            stopping.launched(
                platform,
                run_id,
                asked_at=_asked_at(instance, dagster_run_id),
                tolerance=CLOCK_TOLERANCE,
                knows=known_stop(context.run.tags),
                resumes=resumes,
            ) as launch,
            launch.in_dagster(instance, dagster_run_id, lambda: terminated_at(instance, dagster_run_id)),
        ):
            yield launch
    except RunStopped as stop:
        why = stop.problems[0].what
        if not stop.only_the_process:
            cancel_dagster_run(instance, dagster_run_id, why)
        context.log.warning(str(stop))
        # by itself: the pages of what Spark has said because of it would say nothing more
        raise dg.DagsterExecutionInterruptedError(why) from RunStopped(list(stop.problems))


def _asked_at(instance: dg.DagsterInstance, dagster_run_id: str) -> datetime:
    """Return when somebody asked for a Dagster run: a range of chunks is asked for once, and launched run by run.

    One that somebody executes again was asked for by that, though Dagster takes it for one of the same range.
    """
    record = instance.get_run_record_by_id(dagster_run_id)
    assert record is not None
    asked = record.create_timestamp.astimezone(UTC)
    tags = record.dagster_run.tags
    backfill = None if is_executed_again(tags) else tags.get(BACKFILL_ID_TAG)
    found = instance.get_backfill(backfill) if backfill is not None else None
    return asked if found is None else min(asked, datetime.fromtimestamp(found.backfill_timestamp, UTC))


@contextmanager
def in_plain_words() -> Iterator[None]:
    """Let Dagster show a refusal by its reasons, not as a fault with its stack; a stop is `launched_by_dagster`'s."""
    try:
        yield
    except RunStopped:
        raise
    except Refused as refusal:
        raise dg.Failure(str(refusal), {REFUSAL: type(refusal).__name__}, allow_retries=False) from refusal
    except Exception as error:
        if (full := space.refusal(error)) is None:
            raise
        raise dg.Failure(str(full), allow_retries=False) from error


def tie(instance: dg.DagsterInstance, dagster_run_id: str, platform: Platform, run_id: str) -> None:
    """Tag a Dagster run with the backfill run that it works for, however it was launched, and with this process."""
    record = platform.ledger.find(run_id)
    more = {} if record is None else {"backfill/kind": record.manifest.kind.value, "backfill/mode": record.mode}
    instance.add_run_tags(dagster_run_id, {RUN_TAG: run_id, PROCESS_TAG: this_process()} | more)


def _of_chunk(run_id: str, chunk: ChunkRecord, attempt: AttemptRecord | None) -> dict[str, Any]:
    """Return what is told of a staged chunk: its size, what its batch took, and where to read on."""
    told: dict[str, Any] = {
        "dagster/partition_row_count": chunk.rows or 0,
        "dagster/size_bytes": chunk.bytes or 0,
        "files": len(chunk.files),
        "attempt": chunk.attempt,
        "run": run_id,
        "run page": dg.MetadataValue.url(run_path(run_id)),
    }
    if attempt is not None and attempt.ended_at is not None:
        told["batch seconds"] = round((attempt.ended_at - attempt.started_at).total_seconds(), 1)
        told["batch chunks"] = len(chunks_of(attempt))
    return told


def _of_staged(platform: Platform, run_id: str, keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what is told of each of some chunks that is staged."""
    staged = {chunk.chunk: chunk for chunk in platform.ledger.chunks(run_id, keys) if chunk.state in STAGED}
    attempts = {one.attempt: one for one in platform.ledger.attempts(run_id, {one.attempt for one in staged.values()})}
    return {key: _of_chunk(run_id, staged[key], attempts.get(staged[key].attempt)) for key in keys if key in staged}


def _materialised(
    context: dg.OpExecutionContext | AssetExecutionContext,
    target: TargetTable,
    run_id: str,
    metadata: Mapping[str, dict[str, Any]],
) -> None:
    """Report chunks one by one."""
    for key, told in metadata.items():
        context.log_event(
            dg.AssetMaterialization(asset_key(target.name), partition=partition_key(run_id, key), metadata=told)
        )


@contextmanager
def telling_what_stands(
    context: dg.OpExecutionContext | AssetExecutionContext,
    platform: Platform,
    target: TargetTable,
    standing: Standing,
    *,
    of_chunks: bool = False,
) -> Iterator[None]:
    """Have Dagster show checks as they are where the body refuses a launch or is stopped: it would call all of them failed.

    Chunks as well, if `of_chunks`: where the body is what computes them.
    """
    try:
        yield
    except (Refused, dg.DagsterExecutionInterruptedError):
        try:
            for run_id, keys in by_run(context.partition_keys).items():
                record = platform.ledger.find(run_id)
                if record is not None and record.target == target.name:
                    if of_chunks:
                        _materialised(context, target, run_id, _of_staged(platform, run_id, keys))
                    for one in standing(platform, context.instance, target, run_id, keys):
                        context.log_event(one)  # type: ignore[arg-type]
        except Exception as error:  # noqa: BLE001 - why the launch is refused is said whatever Dagster's storage raises
            context.log.warning("Dagster could not be told how chunks and checks stand: %s", error)
        raise


def _declared(target: TargetTable) -> dict[str, Any]:
    """Return what Dagster shows of a target's declaration."""
    return {
        "dagster/column_schema": column_schema(target),
        "dagster/column_lineage": column_lineage(target),
        "dagster/table_name": target.name,
        "key": ", ".join(target.key),
        "transform": f"{target.transform} ({', '.join(target.versions)})",
    }


def _failure(failed: Mapping[str, str], asked: int, staged: int) -> dg.Failure:
    """Return the failure of a launch some of whose chunks failed, with those of one error together."""
    by_error: dict[str, list[str]] = defaultdict(list)
    for key, why in sorted(failed.items()):
        by_error[why.partition("\n")[0]].append(key)
    lines = "\n".join(f"- {in_words(chunks)}: {why}" for why, chunks in by_error.items())
    others = "; the others are staged and will not be computed again" if staged else ""
    return dg.Failure(
        f"{len(failed)} of {asked} chunks failed{others}.\n{lines}",
        metadata={"failed": sorted(failed), "staged": staged},
        allow_retries=False,
    )


def _chunks_in_words(target: TargetTable) -> str:
    division = target.chunk_values
    if target.chunking is Chunking.WHOLE:
        return str(division)
    return target.chunking.value.lower() + ("" if division is None else f" and {division}")


def _deps(target: TargetTable, targets: Collection[str]) -> list[dg.AssetDep]:
    """Return what a target is computed from: inputs, and of other targets what their readers see."""
    return [dg.AssetDep(asset_key(f"{name}_published" if name in targets else name)) for name in target.every_read]


def staging_asset(
    target: TargetTable, group: str, targets: Collection[str] = (), *, standing: Standing
) -> dg.AssetsDefinition:
    """Make the partitioned asset of a target; `targets` are the names of all there are, any of which may be a source of it."""

    @dg.asset(
        key=asset_key(target.name),
        deps=_deps(target, targets),
        partitions_def=partitions_of(target),
        backfill_policy=dg.BackfillPolicy.multi_run(max_partitions_per_run=target.chunks_per_run),
        group_name=group,
        owners=list(target.owners),
        kinds={"pyspark", "iceberg"},
        description=(
            f"{target.description}\n\nA partition is a chunk ({_chunks_in_words(target)}) of one approved backfill "
            "run. Materialising it computes the chunk into staging; readers see nothing of it before publication. "
            f"Next: `{target.name}_published`. [Where the runs stand, and why](/backfill)"
        ),
        metadata=_declared(target),
        tags={"backfill/stage": "staging"},
    )
    def stage(context: AssetExecutionContext, platform: dg.ResourceParam[Platform], spark: SparkByMode) -> None:
        told = partial(telling_what_stands, context, platform, target, standing, of_chunks=True)
        with in_plain_words(), launched(context), told():
            run_id, keys = one_run(context.partition_keys, target)
            tie(context.instance, context.run_id, platform, run_id)
            platform = spark.confine(platform, Mode(platform.ledger.run(run_id).mode))
            tell_of_broken_glass(context, platform, run_id)
            stopped = platform.ledger.stops.held(run_id)
            done = stopped is not None and platform.ledger.run(run_id).state is RunState.VALIDATED
            if not done:
                require_computable(platform, run_id, keys, target=target)
        with (
            in_plain_words(),
            launched(context),
            told(),
            launched_by_dagster(context, platform, run_id),
            also_to(context.log),
            closing(Progress(context.log.info)) as progress,
        ):
            if done:  # the launch ends the stop, and that is all there is to do
                outcome = Staged(skipped=keys)
            else:
                execution = Execution(platform, run_id, chunks=keys, dagster_run_id=context.run_id, tell=progress)
                outcome = execution.run(Step.COMPUTE).staged
        if outcome.skipped:
            context.log.info("already staged, not computed again: %s", ", ".join(outcome.skipped))
        good = [key for key in keys if key not in outcome.failed]
        metadata = _of_staged(platform, run_id, good)
        if outcome.failed:
            # Dagster counts nothing of a failed range run: the chunks that are staged are reported one by one
            _materialised(context, target, run_id, metadata)
            raise _failure(outcome.failed, len(keys), len(good))
        # another launch may have gated one meanwhile, or planned it anew
        add_asset_metadata(context, {partition_key(run_id, key): said for key, said in metadata.items()})

    return stage
