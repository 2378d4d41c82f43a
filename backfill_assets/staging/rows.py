"""What is done to rows: what a transform is given, and what is done to its output before Spark writes it.

Put here what a run and a test of a transform alone do alike, in one piece that both call; nothing here knows an installation.
Where pinned rows come from, and what a policy leaves of them, is `compute`'s; which values are allowed is the gate's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, timedelta
from typing import Any

import pandera.polars as pa
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyiceberg.schema import Schema
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.places import place, raised_in_worker
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import Published, dtypes, lineage_columns, spark_schema
from backfill_assets.declarations.sql_transforms import SqlTransform
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext, TransformVersion
from backfill_assets.staging.declared_types import type_problems, with_declared_columns
from backfill_assets.staging.folders import (
    CHUNK_FOLDER,
    NO_PARTS,
    Parts,
    folder_of,
    has_plain_chunks,
    in_chunks,
    in_folders,
    number_of,
    number_of_chunk,
)
from backfill_assets.staging.moments import at
from backfill_assets.staging.unsteady import steady_texts
from manifests.chunks import Chunk
from manifests.errors import Problem, Refused, TransformRefused
from manifests.plan import Plan, PlannedChunk
from manifests.text import words_of
from resources.spark.mode_settings import OPEN_FILES
from resources.spark.pyspark_private import settings_of, with_lines
from resources.spark.sessions import is_refused_write, put_back, released_settings, writing_no_files

_LINE = 300
_OF_NO_ROW = ("pandas_on_Spark.", "spark.app.name")
"""How settings begin by which no row changes: the options that `pyspark.pandas` keeps there, and what a session is called."""
_AGAIN = "its code is another one then, and the change is planned under a new run id"
_READ_A_TASK = 4_000
"""Source rows that a task is worth its start for (20 to 40 ms): chunks that read less share one."""


class _Tables(dict[str, DataFrame]):
    """Tables by name; of one that is not there it says which there are."""

    def __init__(self, what: str, tables: Mapping[str, DataFrame]) -> None:
        super().__init__(tables)
        self._what = what

    def __missing__(self, name: str) -> DataFrame:
        raise KeyError(f"the target declares no {self._what} '{name}': it has {', '.join(sorted(self)) or 'none'}")


def sources_by_name(tables: Mapping[str, DataFrame]) -> Mapping[str, DataFrame]:
    """Return further sources as a transform is given them."""
    return _Tables("further source", tables)


def in_window(rows: DataFrame, time_column: str, start: date | None, end: date) -> DataFrame:
    """Return the rows of a source from `start` on (inclusive; None: from ever) until `end` (exclusive); without a column all of them."""
    if not time_column:
        return rows
    rows = rows.where(F.col(time_column) < at(end))
    return rows if start is None else rows.where(F.col(time_column) >= at(start))


def context_of(
    plan: Plan,
    target: TargetTable,
    chunks: Sequence[PlannedChunk],
    references: Mapping[str, DataFrame],
    cores: int,
) -> TransformContext:
    """Return the context that a transform of this plan gets for these chunks, where so many tasks run at once."""
    return TransformContext(
        run_id=plan.run_id,
        mode=plan.mode,
        run_clock=plan.run_clock,
        version=plan.transform_version,
        references=_Tables("reference", references),
        publish_range=plan.publish_range,
        configuration=target.configuration,
        chunks=tuple(Chunk(chunk.key, chunk.index, chunk.start, chunk.end, chunk.hour, chunk.part) for chunk in chunks),
        slots=slots_of(chunks, cores),
    )


def slots_of(chunks: Sequence[PlannedChunk], cores: int) -> tuple[int, ...]:
    """Return the Spark partition that each chunk is written from, from 0 on without a gap.

    One a chunk, but small chunks share: not more than a task has files open, and not fewer tasks than there are cores.
    """
    # hours and parts of the same days read the same rows
    reads = sum({(chunk.start, chunk.end): chunk.reads.rows for chunk in chunks}.values())
    tasks = max(-(-reads // _READ_A_TASK), -(-len(chunks) // OPEN_FILES))
    tasks = min(len(chunks), -(-tasks // cores) * cores)
    return tuple(number * tasks // len(chunks) for number in range(len(chunks)))


def read_window(plan: Plan, chunks: Sequence[PlannedChunk]) -> tuple[datetime, datetime]:
    """Return from when (inclusive) and until when (exclusive) source rows are read whole for chunks."""
    first = min(chunk.start for chunk in chunks) - timedelta(days=plan.warm_up_days)
    last = max(chunk.end for chunk in chunks)
    return plan.read_from + (first - plan.input_range.start), plan.read_until - (plan.input_range.end - last)


def in_time(rows: DataFrame, time_column: str, newest: date | None) -> DataFrame:
    """Return the rows of a source that are not of the future; all of them where `newest` is None."""
    return rows if newest is None else rows.where(F.col(time_column) <= at(newest))


def inputs_of(
    target: TargetTable,
    window: tuple[datetime, datetime],
    rows: DataFrame,
    earlier: DataFrame | None,
    seen: Callable[[DataFrame], DataFrame] = lambda rows: rows,
) -> Inputs:
    """Return what a transform is given of its source.

    Args:
        target: what is computed.
        window: from when (inclusive) and until when (exclusive) rows are read whole; see `read_window`.
        rows: rows of the source, all of the window among them.
        earlier: rows of the source with the look-back columns, all before the window among them; None where there are none.
        seen: leaves of rows what may be seen of them.
    """
    start, end = window
    source = seen(in_window(rows, target.window_column, start, end))
    if earlier is None:
        return Inputs(source, None)
    return Inputs(source, seen(in_window(earlier, target.window_column, None, start)).select(*target.look_back_columns))


def lineage(plan: Plan, model: type[pa.DataFrameModel] = Published) -> dict[str, Any]:
    """Return the value of each lineage column that a model has of a plan's rows; NULL of those that came after the plan.

    Nothing of a compaction's: its rows keep what they say.
    """
    if plan.compaction is not None:
        return {}
    values: dict[str, Any] = {
        "run_id": plan.run_id,
        "processing_mode": plan.mode.value,
        "transform_version": plan.transform_version,
        "input_snapshot_id": plan.source_snapshot_id,
        "produced_at": plan.run_clock,
    }
    if plan.reason is not None:  # else its rows did not say it when it was made
        values |= {
            "transform_name": plan.transform,
            "input_start": plan.input_range.start,
            "input_end": plan.input_range.end,
            "reference_versions": plan.reference_versions,
            "run_reason": plan.reason,
        }
    return {name: values.get(name) for name in lineage_columns(model)}


def computed_rows(
    target: TargetTable,
    plan: Plan,
    chunks: Sequence[PlannedChunk],
    inputs: Inputs,
    context: TransformContext,
    schema: Schema,
    parts: Parts = NO_PARTS,
) -> DataFrame:
    """Return the rows of chunks as they are written: the columns of `schema`, and the folders of each in those of `parts`.

    Raises:
        TransformRefused: if the transform's frame cannot be built, or its output does not have the declared columns, each of
            its declared type or of one that widens to it without loss.
    """
    version = target.versions[plan.transform_version]
    with building(plan):
        with steady_texts(plan), _unchanged_settings(plan, inputs.source.sparkSession), with_lines():
            rows = _frame_of(plan, version.function(_with_every_view(target, version, inputs), context))
        if problems := [*_column_problems(target, plan, rows), *type_problems(target, plan, rows, schema)]:
            raise TransformRefused(problems)
        rows = _with_later_columns(only_chunks(rows, target, chunks), version.without, schema)
        if not version.clustered:
            rows = _clustered(rows, target, context)
        constants = lineage(plan, target.model)
        keep = () if has_plain_chunks(target) else (CHUNK_FOLDER,)
        return in_folders(with_declared_columns(rows, schema, constants, keep), target, plan.chunking, chunks, parts)


def _with_every_view(target: TargetTable, version: TransformVersion, inputs: Inputs) -> Inputs:
    """Return inputs in which a query finds its earlier rows, where there are none: SQL cannot ask whether a view is there."""
    if inputs.look_back is None and target.look_back_columns and isinstance(version.function, SqlTransform):
        return replace(inputs, look_back=inputs.source.select(*target.look_back_columns).where(F.lit(False)))
    return inputs


@contextmanager
def _unchanged_settings(plan: Plan, spark: SparkSession) -> Iterator[None]:
    """Put back what a transform changes of its session's settings, and refuse it: what is computed later would be, too.

    Meanwhile the session writes no file.

    Raises:
        TransformRefused: naming the settings.
    """
    before = settings_of(spark)
    released: list[str] = []
    error: BaseException | None = None
    try:
        with writing_no_files(spark):
            try:
                yield
            finally:
                released = released_settings(spark)
    except ANY_ERROR as raised:  # which another setting may well have led to
        error = raised
    finally:
        after = settings_of(spark)
        changed = put_back(spark, before)
        # what had its default and has it again, and what says nothing of a row, changes nothing
        changed = [name for name in changed if not _is_as_before(spark, name, before, after)] + released
    if changed:
        raise TransformRefused(
            Problem(
                f"{plan.transform} {plan.transform_version} changes the session's {', '.join(changed)}",
                "a transform depends on its inputs alone, and the session's settings are every chunk's",
                "leave the settings as they are, or put them back before the frame is returned; instants are converted by "
                "functions of their own, for example from_utc_timestamp",
            )
        ) from error
    if error is not None:
        raise error


def _is_as_before(spark: SparkSession, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Return whether a setting that was not set was given the value that it has by itself, or is one of pandas on Spark."""
    if name.startswith(_OF_NO_ROW):
        return True
    if name in before:
        return False
    try:
        return after[name] == spark.conf.get(name)
    except PySparkException:  # Spark has no such setting, and so no value of its own for it
        return False


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
    except ANY_ERROR as error:
        at = f" ({where})" if (where := place(error)) else ""
        if is_refused_write(error):
            raise TransformRefused(
                Problem(
                    f"{plan.transform} {plan.transform_version} writes files itself{at}; nothing was written",
                    "a transform returns its rows and has no other effect: the platform stages them",
                    f"return the rows, and write nothing; {_AGAIN}",
                )
            ) from error
        if _may_depend_on_rows(error):
            raise
        condition = error.getCondition() if isinstance(error, AnalysisException) else None
        raise TransformRefused(
            Problem(
                f"the frame of {plan.transform} {plan.transform_version} cannot be built: {type(error).__name__}: "
                f"{words_of(error).strip().partition(chr(10))[0][:_LINE]}{at}",
                _OUTSIDE.get(
                    condition or "",
                    "a frame is built before any row is read, alike for every chunk: no other chunk was tried",
                ),
                f"declare what it reads as a reference table, and write nothing; {_AGAIN}"
                if condition in _OUTSIDE
                else f"correct the transform; {_AGAIN}",
            )
        ) from error


_NO_CATALOG = (
    "a transform reads what it is given, and writes nothing: but for views of its own, its session knows no table"
)
_OUTSIDE = {
    "PATH_NOT_FOUND": "a transform reads what it is given: for its session no path outside the warehouse exists",
    "REQUIRES_SINGLE_PART_NAMESPACE": _NO_CATALOG,
    "TABLE_OR_VIEW_NOT_FOUND": _NO_CATALOG,
    "SCHEMA_NOT_FOUND": _NO_CATALOG,
}
"""Rules by Spark's condition, where a transform reaches for what it was not given."""

_MISTAKES_OF_CODE = ("NameError: ", "ImportError: ", "ModuleNotFoundError: ")
"""How what Python says of a name or a module that there is not begins: it is missing in every chunk's worker."""

_NO_SESSION = "[CONTEXT_ONLY_VALID_ON_DRIVER]"
"""What PySpark says to a worker that asks for a session, or uses a frame that was handed to it."""

_OF_THE_MACHINE = (
    "MemoryError",
    "OSError",
    "ConnectionError",
    "TimeoutError",
    "BrokenPipeError",
    "ConnectionResetError",
)
"""How what a worker raises begins that has nothing to do with a row: less at a time, or another time, may do."""

_ITS_FILE = re.compile(r" \(/[^)]*\)$")
"""The path of a machine, with which Python ends what it says of a module that lacks a name."""


@contextmanager
def running(plan: Plan) -> Iterator[None]:
    """Refuse what a worker of Spark raises because a name, a module or a session is not there: no row would change it.

    Raises:
        TransformRefused: with Python's words, and where in the code it was raised.
    """
    try:
        yield
    except Exception as error:
        said = _ITS_FILE.sub("", raised_in_worker(error))
        function = f"a Python function of {plan.transform} {plan.transform_version}"
        if _NO_SESSION in said:
            what = f"{function} asks for a Spark session"
            rule = "Spark's workers have none: what is given rows returns rows, and reads and writes nothing else"
            way_out = "join what it reads in the transform itself, and write nothing"
        elif said.startswith(_MISTAKES_OF_CODE):
            what = f"{function} raises {said[:_LINE]}"
            rule = "what is not there is missing in every launch of this code: no other chunk was tried"
            way_out = "correct the transform, or install what it imports where Spark's workers run"
        else:
            raise
        at = f" ({where})" if (where := place(error)) else ""
        raise TransformRefused(Problem(f"{what}{at}", rule, f"{way_out}; {_AGAIN}")) from error


def is_of_rows(error: BaseException) -> bool:
    """Whether an error is what computing a row has raised: in a Python function, or by a value that an expression cannot take."""
    said = raised_in_worker(error)
    return not said.startswith(_OF_THE_MACHINE) if said else _state_of(error).startswith("22")


def _state_of(error: BaseException) -> str:
    try:
        return (error.getSqlState() or "") if isinstance(error, PySparkException) else ""
    except (Py4JError, OSError):  # the JVM that would say it is gone
        return ""


def _may_depend_on_rows(error: BaseException) -> bool:
    """Whether an error may be Spark's, or the machine's, of a job that has run."""
    if isinstance(error, AnalysisException):  # also of SQL that cannot be parsed
        return False
    if isinstance(error, PySparkException):  # a wrong argument is one of Python's errors as well
        return not isinstance(error, (TypeError, ValueError, AttributeError, LookupError, NotImplementedError))
    return isinstance(error, (Py4JError, OSError, MemoryError))


def _frame_of(plan: Plan, returned: Any) -> DataFrame:
    """Return what a transform has returned, if it has columns: a Spark frame of either kind does.

    Raises:
        TransformRefused: if it is something else.
    """
    if not (hasattr(returned, "columns") and hasattr(returned, "sparkSession")):
        kind = type(returned)
        of = "" if kind.__module__ in {"builtins", "__main__"} else f" of {kind.__module__.partition('.')[0]}"
        what = "nothing" if returned is None else f"a {kind.__name__}{of}"
        raise TransformRefused(
            Problem(
                f"{plan.transform} {plan.transform_version} returned {what}",
                "a transform returns a Spark frame",
                "return the frame that it makes",
            )
        )
    frame: DataFrame = returned
    return frame


def _with_later_columns(rows: DataFrame, without: Sequence[str], schema: Schema) -> DataFrame:
    """Add the columns that a version of a transform knows nothing of, as NULL."""
    kinds = {field.name: field.dataType for field in spark_schema(schema, without, field_ids=False).fields}
    return rows.withColumns({name: F.lit(None).cast(kind) for name, kind in kinds.items()}) if kinds else rows


def _column_problems(target: TargetTable, plan: Plan, rows: DataFrame) -> list[Problem]:
    """Say which columns a transform's output lacks or has besides."""
    without = target.versions[plan.transform_version].without
    declared = [name for name in dtypes(target.model) if name not in {*lineage_columns(target.model), *without}]
    counted = Counter(rows.columns)
    wrong = {
        "lacks": sorted(set(declared) - set(counted)),
        "has besides": sorted(set(counted) - set(declared)),
        "has twice": sorted(name for name, number in counted.items() if number > 1),
    }
    said = "; ".join(f"{what} {', '.join(names)}" for what, names in wrong.items() if names)
    if not said:
        return []
    return [
        Problem(
            f"what {plan.transform} {plan.transform_version} returned for {target.name} {said}",
            "a transform returns exactly the declared columns, each once, without the lineage columns",
            "correct the transform or the model",
        )
    ]


def only_chunks(rows: DataFrame, target: TargetTable, chunks: Sequence[PlannedChunk]) -> DataFrame:
    """Drop rows of other chunks: whatever a transform returns, only the batch's chunks are written, and rows without a day."""
    if not has_plain_chunks(target):
        return in_chunks(rows, target, chunks)
    day = F.to_date(target.day_column) if target.has_instants else F.col(target.day_column)
    ranges: list[tuple[date, date]] = []
    for chunk in sorted(chunks, key=lambda chunk: chunk.start):
        if ranges and ranges[-1][1] + timedelta(days=1) == chunk.start:
            ranges[-1] = (ranges[-1][0], chunk.end)
        else:
            ranges.append((chunk.start, chunk.end))
    condition = day.isNull()
    for start, end in ranges:
        condition = condition | day.between(at(start), at(end))
    return rows.where(condition)


def _clustered(rows: DataFrame, target: TargetTable, context: TransformContext) -> DataFrame:
    """Bring each chunk to the Spark partition that it is written from, sorted by key."""
    if not has_plain_chunks(target):
        return _clustered_by_folder(rows, target, context)
    numbers = [number_of(chunk.start, target.chunking) for chunk in context.chunks]
    first = min(numbers)
    slots = ["0"] * (max(numbers) - first + 1)
    for number, slot in zip(numbers, context.slots, strict=True):
        slots[number - first] = str(slot)
    # one text, of which Spark makes the array while it plans: a literal for each chunk would take it longer than the rows
    every = F.split(F.lit(",".join(slots)), ",").cast("array<int>")
    own = F.coalesce(number_of_chunk(F.col(target.day_column), target.chunking), F.lit(first))
    place = F.get(every, own - F.lit(first))
    return rows.repartitionById(context.slots[-1] + 1, place).sortWithinPartitions(*target.key)


def _clustered_by_folder(rows: DataFrame, target: TargetTable, context: TransformContext) -> DataFrame:
    """Do what `_clustered` does with chunks of hours or parts."""
    slots = rows.sparkSession.createDataFrame(
        [(folder_of(chunk), slot) for chunk, slot in zip(context.chunks, context.slots, strict=True)],
        f"{CHUNK_FOLDER} string, _slot int",
    )
    return (
        rows.join(F.broadcast(slots), CHUNK_FOLDER)
        .repartitionById(context.slots[-1] + 1, F.col("_slot"))
        .sortWithinPartitions(*target.key)
        .drop("_slot")
    )
