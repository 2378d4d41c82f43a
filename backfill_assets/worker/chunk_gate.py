"""The gate of one chunk: read its staged files back, check them, measure them, digest them. Runs in Spark's workers.

Put here what is done to the files of one chunk, each read once. Its rules are in `chunk_rules`, what goes in and comes out in
`gate_tasks`. What sends chunks here, and what becomes of the verdicts, is `gates.judging`'s; what spans chunks is a product's
reconciliation. Imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import BytesIO
from itertools import accumulate
from typing import Any

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.measures import USABLE, unusable_columns
from backfill_assets.declarations.places import place
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import dtypes, iceberg_schema, iceberg_type, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.worker.bundle_gate import NUMBER, Bundle
from backfill_assets.worker.chunk_rules import (
    CHUNK_RULE,
    FILES_RULE,
    MEASURE_RULE,
    OUTLINE_RULE,
    PARTITION_RULE,
    ROWS_RULE,
    check_rows,
    lies_in,
    row_rules,
    schema_for,
)
from backfill_assets.worker.columns import UNREADABLE, scan, scan_file
from backfill_assets.worker.digest import BLOCK_ROWS, RowDigest
from backfill_assets.worker.digest_types import dtype_of
from backfill_assets.worker.gate_tasks import DigestColumn, GateResult, GateSpec, GateTask
from backfill_assets.worker.key_order import by_key, in_key_order, one_order, rank
from backfill_assets.worker.partitions import outside, several_partitions
from backfill_assets.worker.references import imported_by_path
from backfill_assets.worker.small_files import held_of, read_at_once
from backfill_assets.worker.sums import added, as_text, sums_by, sums_of, value_columns
from backfill_assets.worker.tallying import Counted, counted_by
from backfill_assets.worker.violations import SAMPLE_ROWS, Violation, add_unreadable, add_violation, shown_row
from manifests.canonical import plain
from manifests.text import words_of
from resources.files import stores
from resources.files.fingerprints import Fingerprint, fingerprint
from resources.lakehouse.type_words import type_words
from resources.spark.chunk_work import ChunkWork

BUNDLE_ROWS = 1_000_000
"""Rows of chunks that are held together against the rules about single rows: some 120 MB."""
TOGETHER_ROWS = 200_000
"""Rows of small chunks of which everything is judged together: for a moment, they are in memory several times."""
_ERROR_LENGTH = 300
_PARTITION_FOLDER = "part="
"""How the folder of a staged file begins that lies in one of several partitions of its chunk."""


def gate_chunks(spec: GateSpec, tasks: Iterable[GateTask]) -> Iterator[GateResult]:
    """Judge chunks, small ones in bundles of up to BUNDLE_ROWS rows.

    A call of pandera costs more than a hundred thousand rows do. So rules that look at one row at a time are applied to a
    whole bundle first; where all its rows pass them, each chunk is held against the other rules only.
    """
    bundle: list[GateTask] = []
    rows = 0
    for task in tasks:
        if len(task.paths) != 1:
            yield gate_chunk(spec, task)
            continue
        if bundle and rows + task.rows > BUNDLE_ROWS:
            yield from _gate_bundle(spec, bundle)
            bundle, rows = [], 0
        bundle.append(task)
        rows += task.rows
    yield from _gate_bundle(spec, bundle)


def _gate_bundle(spec: GateSpec, tasks: Sequence[GateTask]) -> Iterator[GateResult]:
    hashes: list[dict[str, Fingerprint]] = [{} for _ in tasks]
    is_small = (
        len(tasks) > 1
        and sum(task.rows for task in tasks) <= TOGETHER_ROWS
        and all(task.rows <= BLOCK_ROWS for task in tasks)
    )
    frames = _read_at_once(spec, tasks, hashes) if is_small else []
    if not frames:
        frames = [_read(task.paths[0], {}, own, spec.schema) for task, own in zip(tasks, hashes, strict=True)]
    known = [frame for frame in frames if frame is not None]
    rows_pass, passed = False, dict[int, GateResult]()
    if len(known) == len(tasks) > 1 and all(frame.schema == known[0].schema for frame in known):
        broken: dict[str, Violation] = {}
        together = pl.concat(known, rechunk=is_small)
        check_rows(row_rules(spec), together, broken)
        rows_pass = not broken
        passed = _passed(spec, tasks, known, together, hashes) if rows_pass and is_small else {}
    for number, (task, frame, own) in enumerate(zip(tasks, frames, hashes, strict=True)):
        yield passed.get(number) or gate_chunk(spec, task, frame=frame, hashes=own, rows_pass=rows_pass)


def _read_at_once(
    spec: GateSpec, tasks: Sequence[GateTask], hashes: Sequence[dict[str, Fingerprint]]
) -> list[pl.DataFrame | None]:
    """Return the rows of the one file of each chunk, as `_read` does; nothing where they cannot be read at once."""
    try:
        files = [held_of(stores.content(task.paths[0])) for task in tasks]
        every = list(read_at_once(files, lambda raw: scan(raw, spec.schema)))
    except UNREADABLE:  # each is read by itself, and what is wrong with it is said
        return []
    if len(every) != 1:
        return []
    (rows,) = every
    for task, file, own in zip(tasks, files, hashes, strict=True):
        if not spec.schema:
            own[task.paths[0]] = fingerprint(file.raw)
    starts = accumulate((file.rows for file in files), initial=0)
    return [rows.slice(start, file.rows) for start, file in zip(starts, files, strict=False)]


def _passed(
    spec: GateSpec,
    tasks: Sequence[GateTask],
    frames: Sequence[pl.DataFrame],
    together: pl.DataFrame,
    hashes: Sequence[Mapping[str, Fingerprint]],
) -> dict[int, GateResult]:
    """Return the verdicts of chunks that break no rule, by their number; of any other one nothing is said.

    All rows, those of the frames `together`, pass the rules about single rows.
    """
    fit = [
        number
        for number, (task, frame) in enumerate(zip(tasks, frames, strict=True))
        if 0 < frame.height == task.rows <= BLOCK_ROWS and task.digest == tasks[0].digest
    ]
    columns = digest_columns(imported_by_path(spec.model))
    if not fit or not {*columns, *spec.key} <= set(frames[0].columns):
        return {}
    bundle = _bundle(tasks, frames, fit, together)
    passing = bundle.passing(spec)
    if not all(passing):
        fit = [number for number, passes in zip(fit, passing, strict=True) if passes]
        if not fit:
            return {}
        bundle = _bundle(tasks, frames, fit, together)
    schema = schema_for(
        spec,
        tasks[0].start,
        tasks[0].end,
        rows_pass=True,
        keys_pass=True,
        days_pass=bool(spec.day_column),
    )
    digest = _digest_of(spec, tasks[0], columns)
    digests = digest.of_each(as_digested(bundle.frame, tasks[0].digest), bundle.rows.tolist())
    numbers = pl.Series(NUMBER, bundle.numbers)
    sums = sums_by(bundle.frame.select(*value_columns(columns, spec.key), numbers), NUMBER)
    tallies = counted_by(spec.tallies, bundle.frame, numbers)
    found = {}
    for at, (number, said) in enumerate(zip(fit, digests, strict=True)):
        measured = _measured_alone(spec, tasks[number], frames[number], schema)
        if measured is not None:
            measures, outline = measured
            found[number] = GateResult(
                tasks[number].chunk,
                tasks[number].attempt,
                frames[number].height,
                said,
                measures,
                [],
                outline,
                hashes[number],
                as_text(sums.get(at, {})),
                tallies.get(at, {}),
            )
    return found


def _bundle(
    tasks: Sequence[GateTask], frames: Sequence[pl.DataFrame], fit: Sequence[int], together: pl.DataFrame
) -> Bundle:
    """Return those chunks that fit; `together` are the rows of all."""
    own = [frames[number] for number in fit]
    rows = together if len(fit) == len(tasks) else pl.concat(own, rechunk=True)
    return Bundle([tasks[number] for number in fit], rows, [frame.height for frame in own])


def _measured_alone(
    spec: GateSpec, task: GateTask, frame: pl.DataFrame, schema: pa.DataFrameSchema | None
) -> tuple[list[dict[str, Any]], str] | None:
    """Return the measures of a chunk, and where its outline is; None if it breaks a rule about several rows, or these cannot be had.

    A function of the product's is given rows of its own: it may change them before it raises.
    """
    broken: dict[str, Violation] = {}
    if schema is not None:
        check_rows(schema, frame, broken)
    if broken or _partitions_of(spec, frame):
        return None
    measures, outlines = [], []
    try:
        if spec.measure is not None:
            measures = plain(_measured(imported_by_path(spec.measure)(frame.clone())).to_dicts())
        if spec.outline is not None:
            outlines = [_frame_of(imported_by_path(spec.outline)(frame.clone())).select(spec.outline_columns)]
    except (MemoryError, OSError):  # the machine's fault, not the function's
        raise
    except ANY_ERROR:  # it is judged alone, and what was raised is reported
        return None
    return measures, _written(outlines, task.outline)


def gate_chunk(
    spec: GateSpec,
    task: GateTask,
    *,
    frame: pl.DataFrame | None = None,
    hashes: Mapping[str, Fingerprint] | None = None,
    rows_pass: bool = False,
) -> GateResult:
    """Read the files of a chunk, one at a time, and judge them.

    Memory is one file's. Files are taken in key order; a chunk in several files is right only if their key ranges are
    disjoint, and then uniqueness and digest need no more than one file at once. Only where a chunk has files of several
    partitions are they read together: their keys interleave. `frame` is the content of its one file
    if it was read already, `hashes` are that file's, and `rows_pass` is whether it passed the rules about single rows.
    """
    judge = _Judge(spec, task, rows_pass)
    if frame is not None:
        judge.hashes |= dict(hashes or {})
        judge.hold_in_one_partition(frame)
        judge.add(frame)
        return judge.result()
    paths = in_key_order(task.paths, spec.key, judge.violations)
    read = (_read(path, judge.violations, judge.hashes, spec.schema) for path in paths)
    frames = (one for one in read if one is not None)
    for one in _in_one_order(judge, frames, spec.key) if len(paths) > 1 and _may_interleave(spec, paths) else frames:
        judge.add(one)
    return judge.result()


def _may_interleave(spec: GateSpec, paths: Sequence[str]) -> bool:
    """Whether the keys of a chunk's files may interleave: of several partitions, and of whatever readers see, they may."""
    return bool(spec.schema) or any(f"/{_PARTITION_FOLDER}" in path for path in paths)


def _in_one_order(judge: _Judge, frames: Iterable[pl.DataFrame], key: Sequence[str]) -> Iterator[pl.DataFrame]:
    """Yield the rows of files in key order: those at once whose keys interleave, every other file by itself.

    A file with other columns than the first is yielded last, by itself: what is wrong with it the rules say.
    """
    odd: list[pl.DataFrame] = []

    def alike() -> Iterator[pl.DataFrame]:
        first: pl.Schema | None = None
        for frame in frames:
            judge.hold_in_one_partition(frame)
            first = frame.schema if first is None else first
            if frame.schema == first and set(key) <= set(frame.columns):
                yield by_key(frame, key)[0]
            else:
                odd.append(frame)

    yield from one_order(alike(), key)
    yield from odd


class _Judge:
    """What is known of a chunk after some of its files."""

    def __init__(self, spec: GateSpec, task: GateTask, rows_pass: bool) -> None:
        self._spec, self._task = spec, task
        self._rows_pass = rows_pass
        self._columns = digest_columns(imported_by_path(spec.model))
        self._digest = _digest_of(spec, task, self._columns)
        self._measures: pl.DataFrame | None = None
        self._sums: dict[str, Any] = {}
        self._tallies = Counted(spec.tallies)
        self._outlines: list[pl.DataFrame] = []
        self._last_key: tuple[Any, ...] | None = None
        self.violations: dict[str, Violation] = {}
        self.hashes: dict[str, Fingerprint] = {}

    def hold_in_one_partition(self, frame: pl.DataFrame) -> None:
        """Require that all rows of a staged file lie in one partition: the commit says of the file which that is."""
        if found := _partitions_of(self._spec, frame):
            add_violation(self.violations, PARTITION_RULE, 1, found)

    def add(self, frame: pl.DataFrame) -> None:
        """Judge the next file."""
        spec = self._spec
        frame, ordered = by_key(frame, spec.key)
        schema = schema_for(
            spec,
            self._task.start,
            self._task.end,
            self._task.hour,
            rows_pass=self._rows_pass,
            # pandera looks again, and names the rows, only where the whole is not as simple as that
            keys_pass=ordered,
            days_pass=self._rows_pass
            and bool(spec.day_column)
            and lies_in(frame[spec.day_column], self._task.start, self._task.end, self._task.hour),
        )
        if schema is not None:
            check_rows(schema, frame, self.violations)
        self._hold_in_part(frame)
        if set(self._columns) <= set(frame.columns):
            self._follow(frame)
        if self.violations:
            return
        self._digest.update(as_digested(frame, self._task.digest))
        self._sums = added(self._sums, sums_of(frame.lazy().select(value_columns(self._columns, spec.key))))
        self._tallies.add(frame)
        if spec.measure is not None:
            with self._reported(MEASURE_RULE):
                self._measures = merged_measures(self._measures, _measured(imported_by_path(spec.measure)(frame)))
        if spec.outline is not None:
            with self._reported(OUTLINE_RULE):
                self._outlines.append(_frame_of(imported_by_path(spec.outline)(frame)).select(spec.outline_columns))

    def _hold_in_part(self, frame: pl.DataFrame) -> None:
        """Require that each row lies in the chunk's part: what lies in none was put here, so that somebody hears of it."""
        division, part = self._spec.division, self._task.part
        if division is None or not part or division.column not in frame.columns:
            return
        kind = iceberg_type(division.column, dtypes(imported_by_path(self._spec.model))[division.column])
        if (beyond := outside(frame, division, part, kind)).height:
            sample = [shown_row(row) for row in beyond.head(SAMPLE_ROWS).to_dicts()]
            add_violation(self.violations, f"{division.column}: {CHUNK_RULE}, {part}", beyond.height, sample)

    @contextmanager
    def _reported(self, rule: str) -> Iterator[None]:
        """Have what a product's function raises be a rule that the chunk breaks: it is named, and the others are judged."""
        try:
            yield
        except (MemoryError, OSError):  # the machine's fault, not the function's
            raise
        except ANY_ERROR as error:
            said = f"{type(error).__name__}: {words_of(error).strip().partition(chr(10))[0][:_ERROR_LENGTH]}"
            said += f" ({at})" if (at := place(error)) else ""
            add_violation(self.violations, rule, 1, [{"error": said}])

    def _follow(self, frame: pl.DataFrame) -> None:
        """Require that a file begins after the one before it ended."""
        if not frame.height:
            return
        first = frame.select(self._spec.key).row(0)
        if self._last_key is not None and rank(first) <= rank(self._last_key):
            add_violation(self.violations, FILES_RULE, 1, [dict(zip(self._spec.key, first, strict=True))])
        self._last_key = frame.select(self._spec.key).row(-1)

    def result(self) -> GateResult:
        """Return the verdict; an outline is written of a chunk that passes."""
        rows = self._digest.rows
        if not self.violations and rows != self._task.rows:
            add_violation(
                self.violations, ROWS_RULE, abs(rows - self._task.rows), [{"staged": self._task.rows, "read": rows}]
            )
        passes = not self.violations
        return GateResult(
            self._task.chunk,
            self._task.attempt,
            rows if passes else self._task.rows,
            self._digest.result() if passes else "",
            [] if self._measures is None else plain(self._measures.to_dicts()),
            sorted(self.violations.values(), key=lambda violation: violation.rule),
            _written(self._outlines, self._task.outline) if passes else "",
            self.hashes,
            as_text(self._sums) if passes else {},
            self._tallies.as_record() if passes else {},
        )


def _partitions_of(spec: GateSpec, frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return by what the rows of a staged file lie in several partitions."""
    if spec.schema or not spec.parts or not {column for column, _ in spec.parts} <= set(frame.columns):
        return []
    kinds = dtypes(imported_by_path(spec.model))
    parted = {column: iceberg_type(column, kinds[column]) for column, _ in spec.parts}
    return several_partitions(frame, spec.parts, parted)


def _digest_of(spec: GateSpec, task: GateTask, columns: Sequence[str]) -> RowDigest:
    """Return a digest without rows: of the columns that a task names, else of those given."""
    kinds = dtypes(imported_by_path(spec.model))
    return RowDigest(
        {one.name: dtype_of(one.kind) for one in task.digest}
        or {name: kinds[name] for name in kinds if name in columns}
    )


def digest_columns(model: type[pa.DataFrameModel]) -> list[str]:
    """Return the columns a digest is made of."""
    return [name for name in dtypes(model) if name not in lineage_columns(model)]


def as_digested(frame: pl.DataFrame, columns: Sequence[DigestColumn]) -> pl.DataFrame:
    """Return the columns of rows that a digest is made of, under the names and types that they had then; all, if none are given."""
    if not columns:
        return frame
    kinds = {one.now: dtype_of(one.kind) for one in columns}
    return frame.select(
        (pl.col(one.now) if frame.schema[one.now] == kinds[one.now] else pl.col(one.now).cast(kinds[one.now])).alias(
            one.name
        )
        for one in columns
    )


def digest_of(target: TargetTable, version: str) -> tuple[DigestColumn, ...]:
    """Return what the digests of a version's rows are made of; nothing where it is all that the model declares.

    What came after the version is NULL in its rows, and in no digest of them: it says the same as when it was written.
    """
    without = target.without(version)
    if not without:
        return ()
    kinds = {field.name: type_words(field.field_type) for field in iceberg_schema(target.model).fields}
    return tuple(DigestColumn(one, kinds[one], one) for one in digest_columns(target.model) if one not in without)


def gating(spec: GateSpec) -> ChunkWork[GateTask, GateResult]:
    """Return the work of gating chunks against a specification."""
    return ChunkWork(partial(gate_chunks, spec), GateTask, GateResult)


def _read(
    path: str, violations: dict[str, Violation], hashes: dict[str, Fingerprint], schema: str
) -> pl.DataFrame | None:
    """Read a file, and hash the very bytes that are judged, in whatever store it is.

    What is read by a table's schema is not hashed: those files were when they were staged.
    """
    try:
        if schema:
            return scan_file(path, schema).collect()
        raw = stores.content(path)
        frame = pl.read_parquet(BytesIO(raw), hive_partitioning=False)
        hashes[path] = fingerprint(raw)
    except UNREADABLE as error:
        add_unreadable(violations, path, error)
        return None
    return frame


def _written(outlines: Sequence[pl.DataFrame], path: str) -> str:
    """Write the outline of a chunk, if there is any, and return where it is."""
    if not outlines:
        return ""
    written = BytesIO()
    pl.concat(outlines).write_parquet(written, compression="zstd")
    with stores.output(path) as stream:
        stream.write(written.getbuffer())
    return path


def _frame_of(returned: Any) -> pl.DataFrame:
    if not isinstance(returned, pl.DataFrame):
        raise TypeError(f"it returned a {type(returned).__name__}, and a polars DataFrame is wanted")
    return returned


def _measured(returned: Any) -> pl.DataFrame:
    measures = _frame_of(returned)
    if unusable := unusable_columns(measures):
        raise TypeError(f"it returned {', '.join(unusable)}, and {USABLE}")
    return measures


def merged_measures(measures: pl.DataFrame | None, more: pl.DataFrame) -> pl.DataFrame:
    """Add the measures of one more file to those of the files before it."""
    if measures is None:
        return more
    sums = [name for name, kind in more.schema.items() if kind.is_integer()]
    slices = [name for name in more.columns if name not in sums]
    return pl.concat([measures, more]).group_by(slices, maintain_order=True).agg(pl.col(sums).sum())
