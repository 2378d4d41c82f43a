"""The gate of one chunk: read its staged files back, check them, measure them, digest them. Runs in Spark's workers.

Put here what is done to the files of one chunk, each read once. What sends chunks here, and what becomes of the
verdicts, is `gates.judging`'s; what spans chunks is a product's reconciliation. Imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pandera.errors import SchemaError, SchemaErrors

from backfill_assets.declarations.pandera_private import is_built_in
from backfill_assets.declarations.places import place
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, dtypes, is_row_rule
from backfill_assets.declarations.target import TargetTable
from backfill_assets.worker.columns import scan_file
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.sums import added, as_text, sums_of, value_columns
from manifests.canonical import plain
from manifests.errors import EnvironmentRefused, Problem
from resources.files.fingerprints import Fingerprint, fingerprint

SAMPLE_ROWS = 5
"""Offending rows shown per rule."""
BUNDLE_ROWS = 1_000_000
"""Rows of small chunks that are judged together: some 120 MB."""
_VALUE_CHECKS = frozenset(
    {
        "equal_to",
        "not_equal_to",
        "greater_than",
        "greater_than_or_equal_to",
        "less_than",
        "less_than_or_equal_to",
        "in_range",
        "isin",
        "notin",
        "str_matches",
        "str_contains",
        "str_startswith",
        "str_endswith",
        "str_length",
    }
)
"""pandera's own checks of one value at a time; whatever else a model declares may look at several rows."""
CHUNK_RULE = "in its chunk"
KEY_RULE = "unique key"
FILES_RULE = "files have disjoint key ranges"
ROWS_RULE = "rows as staged"
MEASURE_RULE = "measure does not raise"
OUTLINE_RULE = "outline does not raise"
READ_RULE = "readable"
UNREAD_RULE = "could be read just now"
"""No rule that a chunk can break: its file could not be read, and nothing is known of it; see `require_read`."""
_CONSTANT = "constant "
_RULE_LENGTH = 100
_ERROR_LENGTH = 300


@dataclass(frozen=True)
class GateSpec:
    """What the files of every chunk of one run are held against.

    `model`, `measure` and `outline` are named `module:attribute`, so that a worker imports them from the same installed
    package. `lineage` has the planned value of each lineage column. `schema` is that of the table (Iceberg JSON) where its
    files are read as readers see them: a column that a file has not yet is NULL. Staged files have every column.
    """

    model: str
    key: tuple[str, ...]
    day_column: str
    lineage: Mapping[str, Any]
    measure: str | None
    outline: str | None = None
    outline_columns: tuple[str, ...] = ()
    schema: str = ""


@dataclass(frozen=True)
class GateTask:
    """The staged files of one chunk; `rows` as counted from their footers when they were staged.

    `outline` is the path that its outline is written to: a new one each time, so that nothing is ever overwritten. `digest`
    are the columns that its digest is made of: all that the model declares, if none are given.
    """

    chunk: str
    attempt: int
    start: date
    end: date
    paths: tuple[str, ...]
    rows: int
    outline: str = ""
    digest: tuple[str, ...] = ()


@dataclass
class Violation:
    """A rule that rows break: how many, and a few of them."""

    rule: str
    count: int = 0
    sample: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class GateResult:
    """What the gate saw of one chunk.

    `measures` are rows of slice columns and sums; `digest` is empty where the rows could not be put in key order;
    `outline` is the path of the outline, empty where none was written; `hashes` are those of the files by path; `sums` are
    those of the number columns, exact, as text.
    """

    chunk: str
    attempt: int
    rows: int
    digest: str
    measures: list[dict[str, Any]]
    violations: list[Violation]
    outline: str = ""
    hashes: Mapping[str, Fingerprint] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations

    @property
    def summary(self) -> str:
        """Say in one line what was found."""
        if self.passed:
            return f"{self.rows:,} rows pass every rule"
        return "; ".join(f"{violation.rule}: {violation.count:,}" for violation in self.violations)


def named(reference: str) -> Any:
    """Return what `module:attribute` names."""
    module, _, attribute = reference.partition(":")
    return getattr(importlib.import_module(module), attribute)


def reference_to(thing: type | Callable[..., Any]) -> str:
    """Return the `module:attribute` of a module-level class or function."""
    if named(f"{thing.__module__}:{thing.__qualname__}") is not thing:
        raise TypeError(f"{thing!r} is not a module-level name: Spark's workers could not import it")
    return f"{thing.__module__}:{thing.__qualname__}"


def spec_of(target: TargetTable, lineage: Mapping[str, Any]) -> GateSpec:
    """Return what the chunks of a target are held against, with the planned value of each lineage column."""
    return GateSpec(
        model=reference_to(target.model),
        key=target.key,
        day_column=target.day_column,
        lineage=lineage,
        measure=None if target.measure is None else reference_to(target.measure),
        outline=None if target.outline is None else reference_to(target.outline.rows),
        outline_columns=() if target.outline is None else target.outline.columns,
    )


def gate_chunks(spec: GateSpec, tasks: Iterable[GateTask]) -> Iterator[GateResult]:
    """Judge chunks, small ones in bundles of up to BUNDLE_ROWS rows.

    A call of pandera costs more than a hundred thousand rows do. So rules that look at one row at a time are applied to a
    whole bundle first; where all its rows pass them, each chunk is held against the other rules only.
    """
    bundle: list[GateTask] = []
    for task in tasks:
        if len(task.paths) != 1:
            yield gate_chunk(spec, task)
            continue
        if bundle and sum(one.rows for one in bundle) + task.rows > BUNDLE_ROWS:
            yield from _gate_bundle(spec, bundle)
            bundle = []
        bundle.append(task)
    yield from _gate_bundle(spec, bundle)


def _gate_bundle(spec: GateSpec, tasks: Sequence[GateTask]) -> Iterator[GateResult]:
    hashes: list[dict[str, Fingerprint]] = [{} for _ in tasks]
    frames = [_read(task.paths[0], {}, own, spec.schema) for task, own in zip(tasks, hashes, strict=True)]
    known = [frame for frame in frames if frame is not None]
    broken: dict[str, Violation] = {}
    if len(known) == len(tasks) > 1 and all(frame.schema == known[0].schema for frame in known):
        _check(_row_rules(spec), pl.concat(known, rechunk=False), broken)
        rows_pass = not broken
    else:
        rows_pass = False
    for task, frame, own in zip(tasks, frames, hashes, strict=True):
        yield gate_chunk(spec, task, frame=frame, hashes=own, rows_pass=rows_pass)


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
    disjoint, and then uniqueness and digest need no more than one file at once. `frame` is the content of its one file
    if it was read already, `hashes` are that file's, and `rows_pass` is whether it passed the rules about single rows.
    """
    judge = _Judge(spec, task, rows_pass)
    if frame is not None:
        judge.hashes |= dict(hashes or {})
        judge.add(frame)
        return judge.result()
    for path in _in_key_order(task.paths, spec.key, judge.violations):
        read = _read(path, judge.violations, judge.hashes, spec.schema)
        if read is not None:
            judge.add(read)
    return judge.result()


class _Judge:
    """What is known of a chunk after some of its files."""

    def __init__(self, spec: GateSpec, task: GateTask, rows_pass: bool) -> None:
        self._spec, self._task = spec, task
        self._rows_pass = rows_pass
        self._columns = digest_columns(named(spec.model))
        self._digest = RowDigest(
            {name: kind for name, kind in dtypes(named(spec.model)).items() if name in (task.digest or self._columns)}
        )
        self._measures: pl.DataFrame | None = None
        self._sums: dict[str, Any] = {}
        self._outlines: list[pl.DataFrame] = []
        self._last_key: tuple[Any, ...] | None = None
        self.violations: dict[str, Violation] = {}
        self.hashes: dict[str, Fingerprint] = {}

    def add(self, frame: pl.DataFrame) -> None:
        """Judge the next file."""
        spec = self._spec
        frame, ordered = by_key(frame, spec.key)
        schema = _schema_for(
            spec,
            self._task.start,
            self._task.end,
            rows_pass=self._rows_pass,
            # pandera looks again, and names the rows, only where the whole is not as simple as that
            keys_pass=ordered,
            days_pass=self._rows_pass and _lies_in(frame[spec.day_column], self._task.start, self._task.end),
        )
        if schema is not None:
            _check(schema, frame, self.violations)
        if set(self._columns) <= set(frame.columns):
            self._follow(frame)
        if self.violations:
            return
        self._digest.update(frame)
        self._sums = added(self._sums, sums_of(frame.lazy().select(value_columns(self._columns, spec.key))))
        if spec.measure is not None:
            with self._reported(MEASURE_RULE):
                self._measures = merged_measures(self._measures, _frame_of(named(spec.measure)(frame)))
        if spec.outline is not None:
            with self._reported(OUTLINE_RULE):
                self._outlines.append(_frame_of(named(spec.outline)(frame)).select(spec.outline_columns))

    @contextmanager
    def _reported(self, rule: str) -> Iterator[None]:
        """Have what a product's function raises be a rule that the chunk breaks: it is named, and the others are judged."""
        try:
            yield
        except (MemoryError, OSError):  # the machine's fault, not the function's
            raise
        except Exception as error:  # noqa: BLE001 - a product's function may raise anything
            said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:_ERROR_LENGTH]}"
            said += f" ({at})" if (at := place(error)) else ""
            _add(self.violations, rule, 1, [{"error": said}])

    def _follow(self, frame: pl.DataFrame) -> None:
        """Require that a file begins after the one before it ended."""
        if not frame.height:
            return
        first = frame.select(self._spec.key).row(0)
        if self._last_key is not None and first <= self._last_key:
            _add(self.violations, FILES_RULE, 1, [dict(zip(self._spec.key, first, strict=True))])
        self._last_key = frame.select(self._spec.key).row(-1)

    def result(self) -> GateResult:
        """Return the verdict; an outline is written of a chunk that passes."""
        rows = self._digest.rows
        if not self.violations and rows != self._task.rows:
            _add(self.violations, ROWS_RULE, abs(rows - self._task.rows), [{"staged": self._task.rows, "read": rows}])
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
        )


def digest_columns(model: type[pa.DataFrameModel]) -> list[str]:
    """Return the columns a digest is made of."""
    return [name for name in dtypes(model) if name not in LINEAGE_COLUMNS]


def gate_batches(spec: GateSpec, batches: Iterator[arrow.RecordBatch]) -> Iterator[arrow.RecordBatch]:
    """Gate the chunks of Arrow batches with columns `chunk` and `task` (JSON); one result row each."""
    # one worker a core, and frames in memory already: the streaming engine would only pass them between threads
    pl.Config.set_engine_affinity("in-memory")
    for batch in batches:
        results = list(gate_chunks(spec, map(task_from_json, batch.column("task").to_pylist())))
        texts = [json.dumps(plain(result)) for result in results]
        yield arrow.RecordBatch.from_pydict({"chunk": [result.chunk for result in results], "result": texts})


def task_to_json(task: GateTask) -> str:
    """Return a task as JSON."""
    return json.dumps(plain(task))


def task_from_json(text: str) -> GateTask:
    """Return the task that `task_to_json` wrote."""
    data = json.loads(text)
    data["start"], data["end"] = date.fromisoformat(data["start"]), date.fromisoformat(data["end"])
    return GateTask(**{**data, "paths": tuple(data["paths"]), "digest": tuple(data["digest"])})


def result_from_json(text: str) -> GateResult:
    """Return a result that a worker sent."""
    data = json.loads(text)
    hashes = {path: Fingerprint(*both) for path, both in data["hashes"].items()}
    violations = [Violation(**violation) for violation in data["violations"]]
    return GateResult(**{**data, "violations": violations, "hashes": hashes})


def _read(
    path: str, violations: dict[str, Violation], hashes: dict[str, Fingerprint] | None = None, schema: str = ""
) -> pl.DataFrame | None:
    """Read a file, and hash the very bytes that are judged. What Polars reads by itself from elsewhere is not hashed.

    Nor is what is read by a table's schema: those files were hashed when they were staged.
    """
    try:
        if schema:
            return scan_file(path, schema).collect()
        if hashes is None or "://" in path:
            return pl.read_parquet(path, hive_partitioning=False)
        raw = Path(path).read_bytes()
        frame = pl.read_parquet(BytesIO(raw), hive_partitioning=False)
        hashes[path] = fingerprint(raw)
    except (OSError, pl.exceptions.PolarsError) as error:
        _add_unreadable(violations, path, error)
        return None
    return frame


def unreadable(path: str, error: Exception) -> Violation:
    """Return that a file is missing or damaged; or, where the error does not prove that, that it could not be read just now."""
    # an error of the operating system has a number; one about what was read has none. A store's could be either
    of_the_system = isinstance(error, OSError) and error.errno is not None
    proven = isinstance(error, FileNotFoundError) or not (of_the_system or "://" in path)
    sample = {"file": path, "error": f"{type(error).__name__}: {error}"[:500]}
    return Violation(READ_RULE if proven else UNREAD_RULE, 1, [sample])


def _add_unreadable(violations: dict[str, Violation], path: str, error: Exception) -> None:
    found = unreadable(path, error)
    _add(violations, found.rule, found.count, found.sample)


def require_read(violations: Iterable[Violation]) -> None:
    """Refuse what was found of chunks of which a file could not be read: it is no verdict.

    Raises:
        EnvironmentRefused: naming the files.
    """
    unread = [one for one in violations if one.rule == UNREAD_RULE]
    if unread:
        raise EnvironmentRefused(
            Problem(
                f"{sample['file']} could not be read just now: {sample['error']}",
                "a file that cannot be read says nothing about its rows",
                "nothing was judged; run the same command again; if it stays so, see `backfill doctor`",
            )
            for one in unread
            for sample in one.sample
        )


def _written(outlines: Sequence[pl.DataFrame], path: str) -> str:
    """Write the outline of a chunk, if there is any, and return where it is."""
    if not outlines:
        return ""
    pl.concat(outlines).write_parquet(path, compression="zstd", mkdir="://" not in path)
    return path


def rule_name(rule: str) -> str:
    """Return the name of a rule without what differs from chunk to chunk and from run to run: its days and constants."""
    if rule.partition(": ")[2].startswith(f"{CHUNK_RULE},"):
        return f"{rule.partition(': ')[0]}: {CHUNK_RULE}"
    if rule.partition(": ")[2].startswith(_CONSTANT):
        return f"{rule.partition(': ')[0]}: {_CONSTANT.strip()}"
    return rule[:_RULE_LENGTH]


def _in_key_order(paths: Sequence[str], key: Sequence[str], violations: dict[str, Violation]) -> list[str]:
    if len(paths) <= 1:
        return list(paths)
    first_keys = []
    for path in paths:
        try:
            head = pl.scan_parquet(path, hive_partitioning=False).select(key).head(1).collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            _add_unreadable(violations, path, error)
            continue
        if head.height:
            first_keys.append((head.row(0), path))
    # a null in a key is the row rules' to report; here it only must not stop the sorting
    first_keys.sort(key=lambda pair: [(value is not None, value) for value in pair[0]])
    return [path for _, path in first_keys]


def by_key(frame: pl.DataFrame, key: Sequence[str]) -> tuple[pl.DataFrame, bool]:
    """Return the frame in key order, and whether every key is there and above the one before it."""
    if not set(key) <= set(frame.columns):
        return frame, False
    ordered = pl.lit(False)
    for column in reversed(key):
        before = pl.col(column).shift(1)
        ordered = (pl.col(column) > before) | ((pl.col(column) == before) & ordered)
    if frame.height <= 1 or frame.lazy().select(ordered.slice(1).all(ignore_nulls=False)).collect().item() is True:
        return frame, True
    return frame.sort(key), False


@cache
def _base_schema(model: str) -> pa.DataFrameSchema:
    declared: type[pa.DataFrameModel] = named(model)
    return declared.to_schema()


def _lies_in(days: pl.Series, start: date, end: date) -> bool:
    """Whether there are days, and all of them are in a chunk; what is no date is left to pandera."""
    first, last = (days.min(), days.max()) if days.dtype == pl.Date else (None, None)
    return isinstance(first, date) and isinstance(last, date) and start <= first and last <= end


def _schema_for(
    spec: GateSpec, start: date, end: date, *, rows_pass: bool, keys_pass: bool, days_pass: bool
) -> pa.DataFrameSchema | None:
    """Return the model's schema with what is true of this run and chunk, without the rules that are known to hold.

    A shallow copy, made for every file. None where nothing is left to be looked at.

    Args:
        spec: what the chunk is held against.
        start: its first day.
        end: its last day.
        rows_pass: whether the rules about single rows hold.
        keys_pass: whether each key is above the one before it, and so unique.
        days_pass: whether every day lies in the chunk.
    """
    schema = _with_run_rules(spec)
    if keys_pass:
        schema.unique = None
    in_chunk = [] if days_pass else [pa.Check.in_range(start, end, error=f"{CHUNK_RULE}, {start} to {end}")]
    if rows_pass:
        schema.strict = False
        schema.checks = [one for one in schema.checks if not is_row_rule(one)]
        others = {
            name: [one for one in column.checks if not _is_value_rule(one)] for name, column in schema.columns.items()
        }
        others[spec.day_column] += in_chunk
        schema.columns = {
            name: _column(schema.columns[name], checks, nullable=True) for name, checks in others.items() if checks
        }
        return schema if schema.columns or schema.checks or schema.unique else None
    day = schema.columns[spec.day_column]
    schema.columns[spec.day_column] = _column(day, [*day.checks, *in_chunk], nullable=day.nullable)
    return schema


def _row_rules(spec: GateSpec) -> pa.DataFrameSchema:
    """Return the model's columns, types and rules about single rows: the part that several chunks can share."""
    schema = _with_run_rules(spec)
    schema.checks, schema.unique = [one for one in schema.checks if is_row_rule(one)], None
    for name, column in schema.columns.items():
        schema.columns[name] = _column(column, filter(_is_value_rule, column.checks), nullable=column.nullable)
    return schema


def _is_value_rule(check: pa.Check) -> bool:
    return check.name in _VALUE_CHECKS and is_built_in(check)


def _with_run_rules(spec: GateSpec) -> pa.DataFrameSchema:
    schema = copy(_base_schema(spec.model))
    schema.columns = dict(schema.columns)
    schema.unique = list(spec.key)  # whether or not the model says so
    for name, value in spec.lineage.items():
        shown = value.isoformat() if isinstance(value, datetime) else value
        column = schema.columns[name]
        constant = pa.Check.eq(value, error=f"{_CONSTANT}{shown}")
        schema.columns[name] = _column(column, [*column.checks, constant], nullable=column.nullable)
    return schema


def _column(column: Any, checks: Iterable[pa.Check], *, nullable: bool) -> Any:
    changed = copy(column)
    changed.checks, changed.nullable = list(checks), nullable
    return changed


def _check(schema: pa.DataFrameSchema, frame: pl.DataFrame, violations: dict[str, Violation]) -> None:
    try:
        schema.validate(frame, lazy=True)
    except SchemaErrors as errors:
        _read_failures(errors.failure_cases, frame, violations)
    except SchemaError as error:
        _add(violations, str(error)[:200], 1, [])


def _read_failures(cases: pl.DataFrame, frame: pl.DataFrame, violations: dict[str, Violation]) -> None:
    for (column, check), group in cases.group_by("column", "check", maintain_order=True):
        rule = str(check) if column is None or group["schema_context"][0] == "DataFrameSchema" else f"{column}: {check}"
        if str(check) == "multiple_fields_uniqueness":
            rule = KEY_RULE
        rows = group["index"].drop_nulls().unique(maintain_order=True)
        count = rows.len() or group.height
        sample = (
            frame[rows.head(SAMPLE_ROWS).to_list()].to_dicts()
            if rows.len()
            else [{"found": str(case)[:500]} for case in group["failure_case"].head(SAMPLE_ROWS)]
        )
        _add(violations, rule, count, [shown_row(row) for row in sample])


def shown_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as JSON can hold it, for people to read."""
    return {name: value if isinstance(value, (int, bool, type(None))) else str(value) for name, value in row.items()}


def _add(violations: dict[str, Violation], rule: str, count: int, sample: list[dict[str, Any]]) -> None:
    violation = violations.setdefault(rule, Violation(rule))
    violation.count += count
    violation.sample += sample[: SAMPLE_ROWS - len(violation.sample)]


def _frame_of(returned: Any) -> pl.DataFrame:
    if not isinstance(returned, pl.DataFrame):
        raise TypeError(f"it returned a {type(returned).__name__}, and a polars DataFrame is wanted")
    return returned


def merged_measures(measures: pl.DataFrame | None, more: pl.DataFrame) -> pl.DataFrame:
    """Add the measures of one more file to those of the files before it."""
    if measures is None:
        return more
    sums = [name for name, kind in more.schema.items() if kind.is_integer()]
    slices = [name for name in more.columns if name not in sums]
    return pl.concat([measures, more]).group_by(slices, maintain_order=True).agg(pl.col(sums).sum())
