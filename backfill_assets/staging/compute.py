"""The Spark job: it computes a batch of chunks into staging.

Put here how pinned inputs become frames, what is done to a transform's output, and how it is written. Which chunks,
when, and what becomes of a failure is `executor`'s; what readers see changes in `publication` only.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyiceberg.schema import Schema
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.output_types import fits, way_out
from backfill_assets.declarations.places import place
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, dtypes, spark_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext
from backfill_assets.installation import Platform, target_named
from backfill_assets.planning.old_data import allowed, needed_columns
from manifests.chunks import Chunk, Chunking, key_of
from manifests.errors import EnvironmentRefused, Problem, Refused, TransformRefused
from manifests.planner import MergeTerms, Plan, PlannedChunk, StagedFile
from resources.lakehouse.facade import PinnedRead, before, between
from resources.lakehouse.storage import filesystem_of
from resources.ledger.facade import ChunkRecord
from resources.spark.sessions import OPEN_FILES

CHUNK_FOLDER = "chunk"
_FOOTER_READERS = 8
_LINE = 300
_READ_A_TASK = 4_000
"""Source rows that a task is worth its start for (20 to 40 ms): chunks that read less share one."""
_WRITTEN = "written"
_PATIENCE_SECONDS = 30.0
_TRUNC = {Chunking.MONTH: "MM", Chunking.DAY: "DD"}


def read(spark: SparkSession, pinned: PinnedRead, columns: Sequence[str] | None = None) -> DataFrame:
    """Return a pinned read as a frame: natively by Parquet field id, no catalog involved."""
    schema = spark_schema(pinned.schema, columns)
    if not pinned.paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(*pinned.paths)


class _References(dict[str, DataFrame]):
    """Reference tables by name; of one that is not there it says which there are."""

    def __missing__(self, name: str) -> DataFrame:
        raise KeyError(f"the target declares no reference '{name}': it has {', '.join(sorted(self)) or 'none'}")


def transform_context(platform: Platform, plan: Plan, chunks: Sequence[PlannedChunk]) -> TransformContext:
    """Return the context a transform of this plan gets for these chunks."""
    spark = platform.spark.session(plan.mode)
    return TransformContext(
        run_id=plan.run_id,
        mode=plan.mode,
        run_clock=plan.run_clock,
        version=plan.transform_version,
        references=_References(
            (pin.table, read(spark, platform.lakehouse.pinned(pin.table, pin.snapshot_id))) for pin in plan.references
        ),
        publish_range=plan.publish_range,
        configuration=target_named(plan.target).configuration,
        chunks=tuple(Chunk(chunk.key, chunk.index, chunk.start, chunk.end) for chunk in chunks),
        slots=slots_of(chunks, spark.sparkContext.defaultParallelism),
    )


def slots_of(chunks: Sequence[PlannedChunk], cores: int) -> tuple[int, ...]:
    """Return the Spark partition that each chunk is written from, from 0 on without a gap.

    One a chunk, but small chunks share: not more than a task has files open, and not fewer tasks than there are cores.
    """
    reads = sum(chunk.reads.rows for chunk in chunks)
    tasks = max(-(-reads // _READ_A_TASK), -(-len(chunks) // OPEN_FILES))
    tasks = min(len(chunks), -(-tasks // cores) * cores)
    return tuple(number * tasks // len(chunks) for number in range(len(chunks)))


def read_window(plan: Plan, chunks: Sequence[PlannedChunk]) -> tuple[datetime, datetime]:
    """Return from when (inclusive) and until when (exclusive) source rows are read whole for chunks."""
    first = min(chunk.start for chunk in chunks) - timedelta(days=plan.warm_up_days)
    last = max(chunk.end for chunk in chunks)
    return plan.read_from + (first - plan.input_range.start), plan.read_until - (plan.input_range.end - last)


def _unheard(_part: str, _read: PinnedRead) -> None:
    """Hear nothing."""


def pinned_inputs(
    platform: Platform,
    target: TargetTable,
    plan: Plan,
    chunks: Sequence[PlannedChunk],
    on_read: Callable[[str, PinnedRead], None] = _unheard,
) -> Inputs:
    """Return the input frames of a batch: its input range, and the look-back columns of everything earlier.

    `on_read` is told of each (`range`, `look_back`) what is read for it.
    """
    spark = platform.spark.session(plan.mode)
    time_column = target.source_time_column
    start, end = read_window(plan, chunks)
    scan = platform.lakehouse.pinned(plan.source, plan.source_snapshot_id, between(time_column, start, end))
    instant = F.col(time_column)
    source = allowed(
        platform, target, plan, read(spark, scan).where((instant >= F.lit(start)) & (instant < F.lit(end)))
    )
    on_read("range", scan)
    look_back = None
    if target.look_back_columns:
        earlier = platform.lakehouse.pinned(plan.source, plan.source_snapshot_id, before(time_column, start))
        on_read("look_back", earlier)
        if earlier.paths:
            columns = needed_columns(target, plan, target.look_back_columns)
            rows = allowed(platform, target, plan, read(spark, earlier, columns).where(instant < F.lit(start)))
            look_back = rows.select(*target.look_back_columns)
    return Inputs(source, look_back)


def entities_folder(prefix: str) -> str:
    """Return where an attempt keeps the entities that it merges: beside its rows, whose folder Spark makes."""
    return f"{prefix}-entities"


def of_entities(platform: Platform, plan: Plan, prefix: str, inputs: Inputs) -> Inputs:
    """Return the inputs of a merge: rows of its entities only, which are written down first; others' as they are."""
    if plan.merge is None:
        return inputs
    folder = entities_folder(prefix)
    _entities(platform, plan).coalesce(1).write.mode("overwrite").parquet(folder)
    return Inputs(
        _of(inputs.source, plan.merge, folder),
        None if inputs.look_back is None else _of(inputs.look_back, plan.merge, folder),
    )


def _of(rows: DataFrame, merge: MergeTerms, folder: str) -> DataFrame:
    return rows.join(rows.sparkSession.read.parquet(folder), merge.entity, "left_semi")


def _entities(platform: Platform, plan: Plan) -> DataFrame:
    """Return the entities that a merge recomputes, each once."""
    spark = platform.spark.session(plan.mode)
    merge = plan.merge
    assert merge is not None
    if merge.changed_since is None:
        return spark.createDataFrame([(name,) for name in merge.entities or ()], f"{merge.entity} string")
    appended = platform.lakehouse.pinned_since(plan.source, merge.changed_since, plan.source_snapshot_id)
    return read(spark, appended, (merge.entity,)).distinct()


def history_until_end(platform: Platform, target: TargetTable, plan: Plan, *, whole: bool = False) -> DataFrame:
    """Return every source row up to the end of the plan's read, at the pinned snapshot; of a merge, its entities'.

    Of those rows, what the plan lets a transform see; with `whole` all of them, which is for counting only.
    """
    spark = platform.spark.session(plan.mode)
    scan = platform.lakehouse.pinned(
        plan.source, plan.source_snapshot_id, before(target.source_time_column, plan.read_until)
    )
    rows = read(spark, scan).where(F.col(target.source_time_column) < F.lit(plan.read_until))
    if not whole:
        rows = allowed(platform, target, plan, rows)
    return rows if plan.merge is None else rows.join(_entities(platform, plan), plan.merge.entity, "left_semi")


def lineage(plan: Plan) -> dict[str, Any]:
    """Return the value of each lineage column of a plan's rows."""
    return {
        "run_id": plan.run_id,
        "processing_mode": plan.mode.value,
        "transform_version": plan.transform_version,
        "input_snapshot_id": plan.source_snapshot_id,
        "produced_at": plan.run_clock,
    }


def compute_batch(
    platform: Platform,
    target: TargetTable,
    plan: Plan,
    chunks: Sequence[PlannedChunk],
    prefix: str,
    on_read: Callable[[str, PinnedRead], None] = _unheard,
) -> dict[str, list[StagedFile]]:
    """Compute chunks in one Spark job and write them below `prefix`; return the files of each, by chunk key.

    Every chunk has an entry; one without rows has no file. `on_read` is told what the transform is given to read.

    Raises:
        TransformRefused: if its frame cannot be built, or its output does not have the declared columns, each of
            its declared type or of one that widens to it without loss.
    """
    inputs = of_entities(platform, plan, prefix, pinned_inputs(platform, target, plan, chunks, on_read))
    context = transform_context(platform, plan, chunks)
    version = target.versions[plan.transform_version]
    schema = platform.lakehouse.table(target.name).schema()
    day = (
        F.trunc(target.day_column, _TRUNC[plan.chunking])
        if plan.chunking is Chunking.MONTH
        else F.col(target.day_column)
    )
    with building(plan):
        rows = version.function(inputs, context)
        _require_columns(target, plan, rows)
        _require_types(target, plan, rows, schema)
        rows = _only_these(rows, target, chunks)
        if not version.clustered:
            rows = _clustered(rows, target, context)
        rows = _with_declared_columns(rows, schema, plan).withColumn(CHUNK_FOLDER, day)
    counted = Observation()
    rows.observe(counted, F.count(F.lit(1)).alias(_WRITTEN)).write.partitionBy(CHUNK_FOLDER).parquet(prefix)
    files = staged_files(platform, target, prefix, plan.chunking, [chunk.key for chunk in chunks])
    require_arrived(rows, _written(counted), files, prefix)
    return files


def _written(counted: Observation) -> int | None:
    """Return how many rows Spark says it has written; None where it has not said so in time: it may drop its events."""
    said: list[int] = []
    asked = threading.Thread(target=lambda: said.append(int(counted.get[_WRITTEN])), daemon=True)
    asked.start()
    asked.join(_PATIENCE_SECONDS)
    return said[0] if said else None


def require_arrived(
    rows: DataFrame, written: int | None, files: Mapping[str, Sequence[StagedFile]], prefix: str
) -> None:
    """Refuse a batch of which not every row is found: executors have written to where this process cannot look.

    Where Spark has not said how many it has `written`, a batch of which nothing is found is computed again, up to its first
    row.

    Raises:
        EnvironmentRefused: naming the folder.
    """
    found = sum(file.rows for staged in files.values() for file in staged)
    if found == written or (written is None and (found or rows.isEmpty())):
        return
    raise EnvironmentRefused(
        Problem(
            f"Spark has written {'' if written is None else f'{written:,} '}rows and {found:,} are found below {prefix}",
            "Spark's executors write to the warehouse that this process reads",
            "put the warehouse where all of them reach it (an object store, a shared file system)",
        )
    )


@contextmanager
def building(plan: Plan) -> Iterator[None]:
    """Refuse a frame that cannot be built: no row is looked at before it is, so that no chunk would fare better.

    What fails because of rows (a job that the transform runs while it builds its frame) is raised as it is.

    Raises:
        TransformRefused: with the first line of the error, and where in the code it was raised.
    """
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        if _may_depend_on_rows(error):
            raise
        raise TransformRefused(
            Problem(
                f"the frame of {plan.transform} {plan.transform_version} cannot be built: {type(error).__name__}: "
                f"{str(error).strip().partition(chr(10))[0][:_LINE]}{f' ({at})' if (at := place(error)) else ''}",
                "a frame is built before any row is read, alike for every chunk: no other chunk was tried",
                "correct the transform; its code is another one then, and the change is planned under a new run id",
            )
        ) from error


def _may_depend_on_rows(error: Exception) -> bool:
    """Whether an error may be Spark's, or the machine's, of a job that has run."""
    if isinstance(error, AnalysisException):  # also of SQL that cannot be parsed
        return False
    if isinstance(error, PySparkException):  # a wrong argument is one of Python's errors as well
        return not isinstance(error, (TypeError, ValueError, AttributeError, LookupError, NotImplementedError))
    return isinstance(error, (Py4JError, OSError, MemoryError))


def staged_files(
    platform: Platform, target: TargetTable, prefix: str, chunking: Chunking, keys: Sequence[str]
) -> dict[str, list[StagedFile]]:
    """List what was written below a prefix, by chunk; rows are read from each file's footer.

    Raises:
        EnvironmentRefused: if the folder is not there; Spark makes it also for a batch without rows.
    """
    filesystem, folder, scheme = filesystem_of(platform.lakehouse.table(target.name), prefix)
    try:
        found = filesystem.get_file_info(pafs.FileSelector(folder, recursive=True))
    except FileNotFoundError as error:
        raise EnvironmentRefused(
            Problem(
                f"{prefix} does not exist",
                "what Spark has written is where this process looks",
                "put the warehouse where Spark and this process reach it (an object store, a shared file system)",
            )
        ) from error
    infos = sorted(
        (
            info
            for info in found
            if info.is_file and info.base_name.endswith(".parquet") and f"/{CHUNK_FOLDER}=" in info.path[len(folder) :]
        ),
        key=lambda info: info.path,
    )

    def staged(info: pafs.FileInfo) -> tuple[str, StagedFile]:
        parent = info.path.rsplit("/", 2)[1]
        start = date.fromisoformat(parent.removeprefix(f"{CHUNK_FOLDER}="))
        with filesystem.open_input_file(info.path) as stream:
            rows = pq.read_metadata(stream).num_rows
        return key_of(chunking, start), StagedFile(f"{scheme}{info.path}", rows, info.size)

    files: dict[str, list[StagedFile]] = defaultdict(list, {key: [] for key in keys})
    with ThreadPoolExecutor(_FOOTER_READERS) as pool:
        for key, file in pool.map(staged, infos):
            if file.rows:  # Spark may leave a file without rows; it would only cost every later reader
                files[key].append(file)
    unknown = sorted(set(files) - set(keys))
    if unknown:
        raise TransformRefused(
            Problem(f"{prefix} holds chunks {unknown}", "a batch writes its own chunks only", "report it")
        )
    return dict(files)


def staged_frame(platform: Platform, target: TargetTable, plan: Plan, chunks: Sequence[ChunkRecord]) -> DataFrame:
    """Return the outlines of gated chunks as a frame, or all their rows where the target declares no outline."""
    spark = platform.spark.session(plan.mode)
    schema = platform.lakehouse.table(target.name).schema()
    if target.outline is None:
        paths = tuple(file.path for chunk in chunks for file in chunk.files)
        return read(spark, PinnedRead(target.name, None, schema, paths))
    columns = spark_schema(schema, target.outline.columns, field_ids=False)
    outlines = [chunk.measures["outline"] for chunk in chunks if chunk.measures["outline"]]
    return spark.read.schema(columns).parquet(*outlines) if outlines else spark.createDataFrame([], columns)


def _require_columns(target: TargetTable, plan: Plan, rows: DataFrame) -> None:
    declared = [name for name in dtypes(target.model) if name not in LINEAGE_COLUMNS]
    counted = Counter(rows.columns)
    wrong = {
        "lacks": sorted(set(declared) - set(counted)),
        "has besides": sorted(set(counted) - set(declared)),
        "has twice": sorted(name for name, number in counted.items() if number > 1),
    }
    said = "; ".join(f"{what} {', '.join(names)}" for what, names in wrong.items() if names)
    if said:
        raise TransformRefused(
            Problem(
                f"what {plan.transform} {plan.transform_version} returned for {target.name} {said}",
                "a transform returns exactly the declared columns, each once, without the lineage columns",
                "correct the transform or the model",
            )
        )


def _require_types(target: TargetTable, plan: Plan, rows: DataFrame, schema: Schema) -> None:
    """Refuse columns whose values a cast to the declared type could change."""
    declared = {field.name: field.dataType for field in spark_schema(schema).fields}
    found = {field.name: field.dataType for field in rows.schema.fields}
    problems = [
        Problem(
            f"{plan.transform} {plan.transform_version} returned {name} of {target.name} as "
            f"{kind.simpleString()}; it is declared as {declared[name].simpleString()}",
            "a column has its declared type, or one that widens to it without loss: nothing is rounded, truncated or parsed",
            way_out(kind, declared[name]),
        )
        for name, kind in found.items()
        if name in declared and not fits(kind, declared[name])
    ]
    if problems:
        raise TransformRefused(problems)


def _only_these(rows: DataFrame, target: TargetTable, chunks: Sequence[PlannedChunk]) -> DataFrame:
    """Drop rows of other days: whatever a transform returns, only the batch's chunks are written."""
    day = F.col(target.day_column)
    ranges: list[tuple[date, date]] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.start):
        if ranges and ranges[-1][1] + timedelta(days=1) == chunk.start:
            ranges[-1] = (ranges[-1][0], chunk.end)
        else:
            ranges.append((chunk.start, chunk.end))
    condition = F.lit(False)
    for start, end in ranges:
        condition = condition | day.between(F.lit(start), F.lit(end))
    return rows.where(condition)


def _clustered(rows: DataFrame, target: TargetTable, context: TransformContext) -> DataFrame:
    """Bring each chunk to the Spark partition that it is written from, sorted by key."""
    day = F.trunc(target.day_column, "MM") if target.chunking is Chunking.MONTH else F.col(target.day_column)
    slots = rows.sparkSession.createDataFrame(
        [(chunk.start, slot) for chunk, slot in zip(context.chunks, context.slots, strict=True)],
        "_chunk_start date, _slot int",
    )
    placed = rows.withColumn("_chunk_start", day).join(F.broadcast(slots), "_chunk_start")
    return (
        placed.repartitionById(context.slots[-1] + 1, F.col("_slot"))
        .sortWithinPartitions(*target.key)
        .drop("_chunk_start", "_slot")
    )


def _with_declared_columns(rows: DataFrame, schema: Schema, plan: Plan) -> DataFrame:
    """Add the lineage columns, cast to the declared types and attach field ids, which a cast drops: they come last."""
    constants = lineage(plan)
    columns = []
    for field in spark_schema(schema).fields:
        value = F.lit(constants[field.name]) if field.name in constants else F.col(field.name)
        columns.append(value.cast(field.dataType).alias(field.name, metadata=field.metadata))
    return rows.select(*columns)
