"""The Spark job: it computes a batch of chunks into staging.

Put here where the rows of a plan come from, what a policy leaves of them, and how a batch is written. What is done to rows in
between is `rows`'; which chunks, when, and what becomes of a failure is `executor`'s; what readers see changes in
`publication` only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time
from functools import partial, reduce

import pyarrow.fs as pafs
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.schema import LATER_LINEAGE_COLUMNS, LINEAGE_COLUMNS, spark_schema
from backfill_assets.declarations.target import PURITY_GATE, Inputs, TargetTable, TransformContext
from backfill_assets.installation import Platform
from backfill_assets.planning.old_data import allowed, needed_columns
from backfill_assets.run_context import RunContext
from backfill_assets.staging.finishing import finished
from backfill_assets.staging.folders import files_below, parts_of
from backfill_assets.staging.log_rows import files_of_log, in_log, place_of
from backfill_assets.staging.map_values import has_map
from backfill_assets.staging.pinned_rows import read
from backfill_assets.staging.rewriting import rewritten_rows, scan_of
from backfill_assets.staging.rows import (
    computed_rows,
    context_of,
    in_time,
    in_window,
    inputs_of,
    read_window,
    running,
    sources_by_name,
)
from backfill_assets.staging.unsteady import require_steady
from backfill_assets.staging.versions_read import Reading, as_read, whole_as_read
from manifests.chunks import Chunking
from manifests.errors import EnvironmentRefused, Problem
from manifests.file_sizes import whole_number
from manifests.further_sources import PinnedSource
from manifests.plan import MergeTerms, Plan, PlannedChunk
from manifests.staged_file import StagedFile
from resources.lakehouse.facade import PinnedRead, before, between, local_path
from resources.lakehouse.storage import filesystem_of
from resources.ledger.facade import ChunkRecord
from resources.settings import ROWS_PER_FILE_KEY
from resources.spark.cores import tasks_at_once
from resources.spark.engines import other_engine
from resources.spark.pyspark_private import without_lines

_WRITTEN = "written"
_ROWS_PER_FILE = "maxRecordsPerFile"
"""The option of a write that goes before the setting of its session."""
_PATIENCE_SECONDS = 30.0


def transform_context(run: RunContext, chunks: Sequence[PlannedChunk]) -> TransformContext:
    """Return the context a transform of this plan gets for these chunks."""
    spark, lakehouse = run.spark, run.platform.lakehouse
    plan = run.plan
    references = {
        pin.table: read(spark, lakehouse.pinned(pin.table, pin.snapshot_id, schema_id=plan.schema_of(pin.table)))
        for pin in plan.references
    }
    return context_of(run.plan, run.target, chunks, references, tasks_at_once(spark))


def _ignore_read(_part: str, _read: PinnedRead) -> None:
    """Hear nothing."""


def pinned_inputs(
    run: RunContext,
    chunks: Sequence[PlannedChunk],
    on_read: Callable[[str, PinnedRead], None] = _ignore_read,
    reading: Reading = as_read,
) -> Inputs:
    """Return the input frames of a batch: its input range, and the look-back columns of everything earlier.

    `on_read` is told of each (`range`, `look_back`, the name of a further source) what is read for it; `reading` has the readers of
    a source say what its rows mean.
    """
    spark, target, plan = run.spark, run.target, run.plan
    time_column = target.window_column
    start, end = read_window(plan, chunks)
    scans = dict(_scans_of_first(run, chunks))
    scan, look_back = scans["range"], None
    for part, one in scans.items():
        on_read(part, one)
    if (earlier := scans.get("look_back")) is not None and earlier.paths:
        columns = needed_columns(target, plan, (*target.look_back_columns, *place_of(plan, plan.source)))
        look_back = in_log(plan, plan.source, read(spark, earlier, tuple(dict.fromkeys(columns))))
    inputs = inputs_of(
        target,
        (start, end),
        in_log(plan, plan.source, read(spark, scan)),
        look_back,
        lambda rows: _after_start(run, allowed(run, in_time(rows, time_column, plan.newest))),
    )
    inputs = replace(inputs, source=reading(run, plan.source, inputs.source))
    first, last = min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)
    given = further_sources(run, first, last, on_read, given=True, reading=reading)
    return replace(inputs, sources=sources_by_name(given))


def _scans_of_first(run: RunContext, chunks: Sequence[PlannedChunk]) -> Iterator[tuple[str, PinnedRead]]:
    """Yield what a batch is given to read of the first source: its range, and what is earlier where the transform looks back."""
    target, plan = run.target, run.plan
    time_column = target.window_column
    start, end = read_window(plan, chunks)
    pinned = partial(
        run.platform.lakehouse.pinned, plan.source, plan.source_snapshot_id, schema_id=plan.schema_of(plan.source)
    )
    yield "range", pinned(files_of_log(plan, plan.source, between(time_column, plan.at(start), plan.at(end))))
    if target.look_back_columns:
        yield "look_back", pinned(files_of_log(plan, plan.source, _earlier(plan, time_column, start)))


def scans_of(run: RunContext, chunks: Sequence[PlannedChunk]) -> Iterator[tuple[str, PinnedRead]]:
    """Yield what a batch is given to read (`range`, `look_back`, the name of a further source), from metadata alone."""
    if run.plan.compaction is not None:
        yield "range", scan_of(run, chunks)
        return
    yield from _scans_of_first(run, chunks)
    first, last = min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)
    for pin in (one for one in run.plan.sources if not one.for_gates):
        start, end = pin.window(first, last)
        yield pin.table, _scan_of_further(run, pin, start, end)


def _scan_of_further(run: RunContext, pin: PinnedSource, start: date | None, end: date) -> PinnedRead:
    """Return what is read of a further source from a day (inclusive), or from ever, until another (exclusive)."""
    place = before(pin.time_column, end) if start is None else between(pin.time_column, start, end)
    place = files_of_log(run.plan, pin.table, place)
    return run.platform.lakehouse.pinned(pin.table, pin.snapshot_id, place, schema_id=run.plan.schema_of(pin.table))


def _earlier(plan: Plan, time_column: str, until: datetime) -> BooleanExpression:
    """Return a filter that finds the rows before an instant; of a plan that starts from a state, those that are not in it."""
    state = plan.start
    if state is None or state.day is None:
        return before(time_column, plan.at(until))
    # a day begins at another instant in each time zone: which rows are in the state, `_after_start` says
    begins = min(datetime.combine(state.day, time.min, UTC), until)
    return between(time_column, plan.at(begins), plan.at(until))


def _after_start(run: RunContext, rows: DataFrame) -> DataFrame:
    """Return the rows of the first source that are not in the state that a plan starts from; all where it starts from none."""
    state, declared = run.plan.start, run.target.starts_from
    if state is None:
        return rows
    assert declared is not None
    return rows.where(F.col(declared.source_day) > F.lit(state.day))


def further_sources(
    run: RunContext,
    first: date,
    last: date,
    on_read: Callable[[str, PinnedRead], None] = _ignore_read,
    *,
    from_ever: bool = False,
    whole: bool = False,
    given: bool = False,
    reading: Reading = as_read,
) -> dict[str, DataFrame]:
    """Return the rows of each further source that a plan reads for days, both inclusive; with `from_ever`, all before as well.

    Of those rows, what the plan lets a transform see; with `whole` all of them, which is for counting only. With `given` only of the
    sources that a transform is given.
    """
    found = {}
    for pin in (one for one in run.plan.sources if not (given and one.for_gates)):
        start, end = pin.window(first, last)
        start = None if from_ever and pin.day is None else start
        scan = _scan_of_further(run, pin, start, end)
        on_read(pin.table, scan)
        rows = in_window(in_log(run.plan, pin.table, read(run.spark, scan)), pin.time_column, start, end)
        seen = rows if whole else allowed(run, in_time(rows, pin.time_column, pin.newest), pin)
        found[pin.table] = seen if whole else reading(run, pin.table, seen)
    return found


def entities_folder(prefix: str) -> str:
    """Return where an attempt keeps the entities that it merges: beside its rows, whose folder Spark makes."""
    return f"{prefix}-entities"


def entities_file(table: Table, prefix: str) -> str:
    """Return the file that an attempt keeps them in; the folder, which cannot be read as one, where there is none.

    `table` is the target: its catalog opens the folder.
    """
    folder = entities_folder(prefix)
    filesystem, place, scheme = filesystem_of(table, folder)
    found = filesystem.get_file_info(pafs.FileSelector(place, allow_not_found=True))
    names = sorted(one.base_name for one in found if one.is_file)
    mine = (name for name in names if name.startswith("part-") and name.endswith(".parquet"))
    return next((local_path(f"{scheme}{place}/{name}") for name in mine), local_path(folder))


def of_entities(platform: Platform, plan: Plan, prefix: str, inputs: Inputs) -> Inputs:
    """Return the inputs of a merge: rows of its entities only, which are written down first; others' as they are."""
    if plan.merge is None:
        return inputs
    folder = entities_folder(prefix)
    entities_of(platform, plan).coalesce(1).write.mode("overwrite").parquet(folder)
    return replace(
        inputs,
        source=_of(inputs.source, plan.merge, folder),
        look_back=None if inputs.look_back is None else _of(inputs.look_back, plan.merge, folder),
    )


def _of(rows: DataFrame, merge: MergeTerms, folder: str) -> DataFrame:
    return rows.join(rows.sparkSession.read.parquet(folder), merge.entity, "left_semi")


def merged_entities(run: RunContext) -> DataFrame | None:
    """Return the entities that a merge recomputes, each once; None of a run that computes all there are."""
    return None if run.plan.merge is None else entities_of(run.platform, run.plan)


def entities_of(platform: Platform, plan: Plan) -> DataFrame:
    """Return the entities that a merge recomputes, each once."""
    spark = platform.spark.session(plan.mode)
    merge = plan.merge
    assert merge is not None
    if merge.changed_since is None:
        return spark.createDataFrame([(name,) for name in merge.entities or ()], f"{merge.entity} string")
    since = {plan.source: merge.changed_since} | {one.table: one.snapshot_id for one in merge.sources}
    until = {
        table: snapshot_id for table, snapshot_id in plan.source_pins if since.get(table) not in {None, snapshot_id}
    }
    until.setdefault(plan.source, plan.source_snapshot_id)
    asked = [(table, since[table], now, plan.schema_of(table)) for table, now in until.items()]
    # a source without a new row is not asked: it need not say whose its rows are
    found = [_changed(spark, plan, merge.entity, *platform.lakehouse.pinned_since(*one)) for one in asked]
    return reduce(DataFrame.unionByName, found).distinct()


def _changed(spark: SparkSession, plan: Plan, entity: str, came: PinnedRead, gone: PinnedRead) -> DataFrame:
    """Return the entities of the rows by which a source differs from what it was: of one that was appended to, those that came.

    Of rows that were written anew those count that say something else, whoever wrote them: lineage says who, and is left out.
    """
    if not gone.paths:
        return in_log(plan, came.table, read(spark, came, (entity, *place_of(plan, came.table)))).select(entity)
    now, then = (in_log(plan, one.table, read(spark, one)) for one in (came, gone))
    if set(LINEAGE_COLUMNS) <= set(now.columns):
        now, then = (rows.drop(*LINEAGE_COLUMNS, *LATER_LINEAGE_COLUMNS) for rows in (now, then))
    if has_map(now.schema):  # which Spark does not compare
        return now.select(entity).unionByName(then.select(entity))
    return now.exceptAll(then).select(entity).unionByName(then.exceptAll(now).select(entity))


def history_until_end(run: RunContext, *, whole: bool = False) -> DataFrame:
    """Return every source row up to the end of the plan's read, at the pinned snapshot; of a merge, its entities'.

    Of those rows, what the plan lets a transform see; with `whole` all of them, which is for counting only.
    """
    plan, time_column = run.plan, run.target.window_column
    until, schema_id = before(time_column, plan.at(plan.read_until)), plan.schema_of(plan.source)
    until = files_of_log(plan, plan.source, until)
    scan = run.platform.lakehouse.pinned(plan.source, plan.source_snapshot_id, until, schema_id)
    rows = in_window(in_log(plan, plan.source, read(run.spark, scan)), time_column, None, plan.read_until)
    if not whole:
        rows = as_read(run, plan.source, allowed(run, in_time(rows, time_column, plan.newest)))
    return rows if plan.merge is None else rows.join(entities_of(run.platform, plan), plan.merge.entity, "left_semi")


def histories_until_end(run: RunContext, *, whole: bool = False) -> dict[str, DataFrame]:
    """Return what `history_until_end` does of the first source, and of each further one, by table name."""
    publish = run.plan.publish_range
    further = further_sources(run, publish.start, publish.end, from_ever=True, whole=whole)
    return {run.plan.source: history_until_end(run, whole=whole), **further}


def compute_batch(
    run: RunContext,
    chunks: Sequence[PlannedChunk],
    prefix: str,
    on_read: Callable[[str, PinnedRead], None] = _ignore_read,
) -> dict[str, list[StagedFile]]:
    """Compute chunks in one Spark job and write them below `prefix`; return the files of each, by chunk key.

    Every chunk has an entry; one without rows has no file. `on_read` is told what the transform is given to read.

    Raises:
        TransformRefused: if its frame cannot be built, or its output does not have the declared columns, each of
            its declared type or of one that widens to it without loss; or if it asks for what is another each time, a function
            of it names what is not there, or a value is none of a UUID or a map.
    """
    platform, target, plan = run.platform, run.target, run.plan
    table = platform.lakehouse.table(target.name)
    schema, parts = table.schema(), parts_of(table, target)
    with without_lines():
        if plan.compaction is None:
            inputs = of_entities(platform, plan, prefix, pinned_inputs(run, chunks, on_read, whole_as_read))
            context, folders = transform_context(run, chunks), parts.folders
            rows = computed_rows(target, plan, chunks, inputs, context, schema, parts)
        else:
            rows, folders = rewritten_rows(run, chunks, schema, parts, on_read)
    if PURITY_GATE in plan.gates and other_engine(run.spark) is None:  # another shows no plan that Spark has analysed
        require_steady(plan, rows)
    counted = Observation()
    with running(plan):
        writer = rows.observe(counted, F.count(F.lit(1)).alias(_WRITTEN)).write.partitionBy(*folders)
        writer.options(**_cut_into_files(run)).parquet(prefix)
    files = staged_files(platform, target, prefix, plan.chunking, [chunk.key for chunk in chunks])
    require_arrived(rows, _written(counted), files, prefix)
    return finished(platform.workers, target, plan, schema, files)


def _cut_into_files(run: RunContext) -> dict[str, str]:
    """Return the options by which a chunk's rows are cut into files while they are written; none where Spark's settings alone say it."""
    sizes = run.plan.file_sizes
    if sizes is None or other_engine(run.spark) is not None:  # which writes files as it sees fit
        return {}
    most = whole_number(run.spark.conf.get(ROWS_PER_FILE_KEY) or "")
    rows = min(sizes.rows_per_file, most) if most else sizes.rows_per_file
    return {_ROWS_PER_FILE: str(rows)}


def _written(counted: Observation) -> int | None:
    """Return how many rows Spark says it has written; None where it has not said so in time: it may drop its events."""
    said: list[int] = []

    def ask() -> None:
        number = counted.get.get(_WRITTEN)  # a server of Spark Connect has said it with the write, or will not
        if number is not None:
            said.append(int(number))

    asked = threading.Thread(target=ask, daemon=True)
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


def staged_files(
    platform: Platform, target: TargetTable, prefix: str, chunking: Chunking, keys: Sequence[str]
) -> dict[str, list[StagedFile]]:
    """List what was written below a prefix, by chunk; rows are read from each file's footer.

    Raises:
        EnvironmentRefused: if the folder is not there; Spark makes it also for a batch without rows.
    """
    filesystem, folder, scheme = filesystem_of(platform.lakehouse.table(target.name), prefix)
    try:
        return files_below(filesystem, folder, scheme, chunking, keys)
    except FileNotFoundError as error:
        raise EnvironmentRefused(
            Problem(
                f"{prefix} does not exist",
                "what Spark has written is where this process looks",
                "put the warehouse where Spark and this process reach it (an object store, a shared file system)",
            )
        ) from error


def staged_frame(run: RunContext, chunks: Sequence[ChunkRecord]) -> DataFrame:
    """Return the outlines of gated chunks as a frame, or all their rows where the target declares no outline."""
    spark, target = run.spark, run.target
    schema = run.platform.lakehouse.table(target.name).schema()
    if target.outline is None:
        paths = tuple(file.path for chunk in chunks for file in chunk.files)
        return read(spark, PinnedRead(target.name, None, schema, paths))
    columns = spark_schema(schema, target.outline.columns, field_ids=False)
    outlines = [chunk.measures["outline"] for chunk in chunks if chunk.measures["outline"]]
    return spark.read.schema(columns).parquet(*outlines) if outlines else spark.createDataFrame([], columns)
