"""A transform tested alone: rows in, rows out, without a home, a ledger or a lakehouse.

What is done to rows here is what a run does to them, by the same functions: the plan is the planner's, the session has the
platform's settings, the transform is given the rows of its read window and its look-back, its output is held against the
declared columns and types, cut to the publish range, laid out by chunk, written, and read back. Nothing is published.

A `Trial` is one transform on some rows. `rows` computes them, `require_same_as` holds them against a plain function,
`violations` against the target's model, `require_pure` against themselves as computed otherwise, and `require_no_look_ahead`
against themselves without what comes later. Two chunks or more make a trial worth most.

What a policy leaves out of a source, merges and run-level gates are no part of a trial: those need an installation.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, date, datetime
from functools import cache, cached_property
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.finding import find_products
from backfill_assets.declarations.places import is_own
from backfill_assets.declarations.schema import LINEAGE_COLUMNS, dtypes, iceberg_schema
from backfill_assets.declarations.target import Inputs, InputTable, Product, TargetTable, TransformContext
from backfill_assets.planning.contracts import contract_of, require_row_rules
from backfill_assets.staging.rows import (
    CHUNK_FOLDER,
    computed_rows,
    context_of,
    files_below,
    inputs_of,
    lineage,
    read,
    read_window,
)
from backfill_assets.worker.chunk_gate import gate_chunks
from backfill_assets.worker.gate_tasks import GateTask, spec_of
from backfill_assets.worker.violations import Violation, require_read
from manifests.errors import DeclarationRefused, InputRefused, Problem
from manifests.planner import (
    CodeIdentity,
    Plan,
    PlannedChunk,
    ReferenceState,
    SourceFile,
    SourceState,
    StagedFile,
    make_plan,
)
from manifests.reading import manifest_from
from resources.lakehouse.facade import PinnedRead
from resources.settings import load_settings
from resources.spark.sessions import ModeSpark

__all__ = ["RUN_CLOCK", "Difference", "Rows", "Trial", "TrialError", "Violation", "transformed"]

Rows: TypeAlias = Iterable[Mapping[str, Any]] | pl.DataFrame | arrow.Table
"""Rows of a table: mappings by column name (what is left out is NULL), or a Polars or PyArrow table of the declared types."""
RUN_CLOCK = datetime(2030, 1, 1, tzinfo=UTC)
"""The "now" of a trial unless it is given another."""

_SNAPSHOT = 1
_SHOWN = 5
_OTHER_ZONE = "Pacific/Auckland"
_FILES = 5
_OTHER_WAYS = {
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.files.openCostInBytes": str(1 << 27),  # a partition a file
}
"""Settings with which Spark shuffles, joins and reads in another way than by default."""
_CLOCKS = ("current_timestamp", "current_date", "localtimestamp", "now", "curdate", "current_time")
_RANDOM = ("rand", "randn", "uuid", "shuffle", "random", "randstr", "uniform", "Sample")
_PLACES = ("monotonically_increasing_id", "spark_partition_id", "input_file_name")
_ORDERED = (
    "first",
    "last",
    "first_value",
    "last_value",
    "any_value",
    "collect_list",
    "collect_set",
    "listagg",
    "row_number",
    "lead",
    "lag",
    "ntile",
    "max_by",
    "min_by",
    "mode",
    "Deduplicate",
    "GlobalLimit",
)
"""Functions, as an analysed plan names them: those that ask a clock or for something random, that tell where a row lies, and
that depend on the order of rows where two of them share a place in it."""
_PYTHON_CLOCKS = frozenset({"now", "utcnow", "today", "time", "time_ns"})


class TrialError(AssertionError):
    """A transform is not what it is held against: `differences` are the first of them, `cause` is what is most likely."""

    def __init__(self, what: str, differences: Sequence[Difference] = (), cause: str = "") -> None:
        self.differences, self.cause = tuple(differences), cause
        lines = [what, *(f"  - {one}" for one in differences[:_SHOWN])]
        if len(differences) > _SHOWN:
            lines.append(f"  - and {len(differences) - _SHOWN:,} more")
        super().__init__("\n".join([*lines, *([f"likely cause: {cause}"] if cause else [])]))


@dataclass(frozen=True)
class Difference:
    """One value that differs: what is `found`, and what is `expected` or, in another way of computing it, was found before.

    `column` is empty where the whole row is there a different number of times.
    """

    key: Mapping[str, Any]
    column: str
    expected: Any
    found: Any
    word: str = "expected"

    def __str__(self) -> str:
        key = ", ".join(f"{name}={value}" for name, value in self.key.items())
        if self.column:
            return f"{key}: {self.column} is {_shown(self.found)}, {self.word} {_shown(self.expected)}"
        return f"{key}: the row is there {_times(self.found)}, {self.word} {_times(self.expected)}"


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str) else str(value)


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number:,} times")


def transformed(
    target: TargetTable,
    version: str,
    source_rows: Rows,
    *,
    publish_range: tuple[date | str, date | str],
    references: Mapping[str, Rows] | None = None,
    inputs: Sequence[InputTable] = (),
    run_clock: datetime = RUN_CLOCK,
) -> pl.DataFrame:
    """Return what a version of a target's transform makes of rows, in key order; see `Trial`."""
    return Trial(
        target,
        version,
        source_rows,
        publish_range=publish_range,
        references=references or {},
        inputs=inputs,
        run_clock=run_clock,
    ).rows()


@dataclass(frozen=True, eq=False)
class Trial:
    """A version of a target's transform on some rows of its source.

    Attributes:
        target: the declared target.
        version: which of its versions.
        source_rows: rows of its source, whatever their day: what is read of them follows from the publish range.
        publish_range: first and last day that are computed, both inclusive; whole chunks.
        references: rows of each reference table, by name.
        inputs: the declared source and references; those of the registered products where none are given.
        run_clock: the run's "now".
    """

    target: TargetTable
    version: str
    source_rows: Rows
    _: KW_ONLY
    publish_range: tuple[date | str, date | str]
    references: Mapping[str, Rows] = field(default_factory=dict)
    inputs: Sequence[InputTable] = ()
    run_clock: datetime = RUN_CLOCK

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def rows(self) -> pl.DataFrame:
        """Return the rows that a run would stage, all its chunks together, in key order, with the lineage columns.

        Raises:
            Refused: as a run would be: by declaration, plan, or what the transform returns.
        """
        return pl.concat(self._together.values()).sort(self.target.key)

    def violations(self) -> dict[str, list[Violation]]:
        """Return, of each chunk that would not pass its gate, the rules of the target's model that its rows break."""
        files = self._files
        tasks = [
            GateTask(
                chunk.key,
                1,
                chunk.start,
                chunk.end,
                tuple(file.path for file in files[chunk.key]),
                sum(file.rows for file in files[chunk.key]),
                str(_new_folder().with_suffix(".parquet")),
            )
            for chunk in self.plan.chunks
        ]
        results = list(gate_chunks(spec_of(self.target, lineage(self.plan)), tasks))
        require_read(one for result in results for one in result.violations)
        return {result.chunk: result.violations for result in sorted(results, key=_chunk) if result.violations}

    def require_same_as(
        self, expected: Rows | Callable[[list[dict[str, Any]], dict[str, list[dict[str, Any]]]], Rows]
    ) -> None:
        """Require exactly the rows that a plain function makes, key by key; lineage columns are left out.

        Args:
            expected: the rows, or a function that makes them of all source rows and of the references' rows by table name,
                as dictionaries. Its rows of days outside the publish range are left out, as the transform's are.

        Raises:
            TrialError: naming the rows that differ.
        """
        rows = self.rows()
        if callable(expected):
            references = {name: frame.to_dicts() for name, frame in self._reference_frames.items()}
            expected = expected(self._source.to_dicts(), references)
        wanted = _frame(self.target.name, self.target.model, expected, complete=True)
        first, last = self.plan.publish_range.start, self.plan.publish_range.end
        wanted = wanted.filter(pl.col(self.target.day_column).is_between(first, last))
        if found := self._differences(wanted, rows, "expected"):
            raise TrialError(f"{self._named} does not compute what is expected: {_rows_in(found)}", found)

    def require_pure(self, *, zone: str = _OTHER_ZONE, session_zone: str | None = None) -> None:
        """Require that rows depend on nothing but the rows that are read: they are computed in several ways, all of them alike.

        That is: once more; from source rows in reverse order; from rows spread over more files, with other shuffles and joins
        and chunks in Spark partitions of their own; in a process of another time zone; each chunk alone; in twos; and, of a
        target with an entity, every second one alone, as a merge computes some of them.

        Args:
            zone: the other time zone of this process.
            session_zone: a time zone of the Spark session to compute in as well. The platform's is always UTC, and functions
                such as `to_date` may rely on it, so that most transforms differ in another.

        Raises:
            TrialError: naming the way, the first key and column that differ, and the likely cause.
        """
        plan_has, clocks = self._looked_at
        if asked := [*(f"{name}()" for name in plan_has if name in _CLOCKS), *clocks]:
            raise TrialError(
                f"{self._named} asks a clock: {', '.join(asked)}", cause="`context.run_clock` is the only now there is"
            )
        chunks = self.plan.chunks
        self._require_alike("once more", self._compute(chunks), self._cause_of_chance)
        reverse = self._stored([part.reverse() for part in reversed(self._parts)])
        self._require_alike(
            "from source rows in reverse order", self._compute(chunks, source=reverse), self._cause_of_order
        )
        spread = self._stored([self._source.gather_every(_FILES, first) for first in range(_FILES)])
        with self._settings(_OTHER_WAYS):
            found = self._compute(chunks, source=spread, cores=len(chunks))
        self._require_alike(
            "from source rows spread over more files, with other shuffles and joins", found, self._cause_of_order
        )
        with _process_in(zone):
            found = self._compute(chunks)
        self._require_alike(f"in a process whose time zone is {zone}", found, lambda _: _NAIVE)
        if session_zone is not None:
            with self._settings({"spark.sql.session.timeZone": session_zone}):
                found = self._compute(chunks)
            self._require_alike(f"in a session whose time zone is {session_zone}", found, lambda _: _DAYS)
        for chunk in chunks if len(chunks) > 1 else ():
            self._require_alike(f"with chunk {chunk.key} alone", self._compute([chunk]), self._cause_of_chunks)
        for at in range(0, len(chunks), 2) if len(chunks) > 2 else ():  # noqa: PLR2004 - in twos
            found = self._compute(chunks[at : at + 2])
            self._require_alike(f"with chunks {' and '.join(found)} together", found, self._cause_of_chunks)
        if self.target.entity is not None:
            self._require_alike_by_entity(self.target.entity)

    def require_no_look_ahead(self) -> None:
        """Require that no chunk's rows change where the source rows after its own read window are removed.

        Raises:
            InputRefused: if there is nothing to remove: the trial has one chunk, or no rows after the window of one.
            TrialError: naming the chunk, and the first key and column that differ.
        """
        instants, looked = pl.col(self.target.source_time_column), False
        last = read_window(self.plan, self.plan.chunks)[1]
        for chunk in self.plan.chunks[:-1]:
            end = read_window(self.plan, [chunk])[1]
            if self._source.filter((instants >= end) & (instants < last)).is_empty():
                continue
            looked = True
            without = self._stored([part.filter(instants.is_null() | (instants < end)) for part in self._parts])
            found = self._compute(self.plan.chunks, source=without)
            self._require_alike(
                f"without the source rows from {end:%Y-%m-%d %H:%M} on, which is after what {chunk.key} reads",
                {chunk.key: found[chunk.key]},
                lambda _: _LOOKS_AHEAD,
            )
        if not looked:
            raise InputRefused(
                Problem(
                    f"no source row that the transform is given lies after what one of {len(self.plan.chunks)} chunk(s) reads",
                    "whether a chunk's rows depend on later ones is seen where later ones are there",
                    "give the trial two chunks or more, and source rows of the later ones",
                )
            )

    # --- what it is planned as ----------------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> Plan:
        """The plan of a run that computes these rows.

        Raises:
            Refused: as the planner does: a range that is no whole chunks, a version that there is not, a warm-up that raises.
        """
        tables = self._tables
        if problems := problems_of([Product("trial", tuple(tables.values()), (self.target,))]):
            raise DeclarationRefused(problems)
        self._require_references()
        require_row_rules(self.target)
        first, last = self.publish_range
        manifest = manifest_from(
            {
                "runId": "trial",
                "kind": "RESTATEMENT",
                "requestedBy": "the author of the transform",
                "reason": "the transform is tested alone",
                "source": {"table": self.target.source},
                "transform": {"name": self.target.transform, "version": self.version},
                "target": {"table": self.target.name, "publishRange": {"start": str(first), "end": str(last)}},
            }
        )
        references = {name: frame.to_dicts() for name, frame in self._reference_frames.items()}
        return make_plan(
            manifest,
            contract=contract_of(self.target, references),
            source=SourceState(self.target.source, _SNAPSHOT, self.run_clock, self._as_given.source_files),
            references={
                name: ReferenceState(name, _SNAPSHOT, frozenset({_SNAPSHOT}), {}) for name in self.target.references
            },
            base_snapshot_id=None,
            code=CodeIdentity("", "", None, None, dirty=False),
            configuration_hash="",
            run_clock=self.run_clock,
        )

    @cached_property
    def _tables(self) -> dict[str, InputTable]:
        given = self.inputs or [table for product in find_products(None) for table in product.inputs]
        wanted = {self.target.source, *self.target.references}
        return {table.name: table for table in given if table.name in wanted}

    def _require_references(self) -> None:
        wanted, given = set(self.target.references), set(self.references)
        if wanted == given:
            return
        said = [
            *(f"the rows of {name} are missing" for name in sorted(wanted - given)),
            *(f"{name} is no reference of it" for name in sorted(given - wanted)),
        ]
        raise InputRefused(
            Problem(
                f"{self._named}: {'; '.join(said)}",
                "a transform is given each reference that its target declares, and no other",
                "give the trial the rows of those, as `references={name: rows}`",
            )
        )

    @property
    def _named(self) -> str:
        return f"{self.target.transform} {self.version} of {self.target.name}"

    # --- its rows -----------------------------------------------------------------------------------------------------

    @cached_property
    def _source(self) -> pl.DataFrame:
        table = self._tables[self.target.source]
        return _frame(table.name, table.model, self.source_rows)

    @cached_property
    def _reference_frames(self) -> dict[str, pl.DataFrame]:
        return {name: _frame(name, self._tables[name].model, self.references[name]) for name in self.target.references}

    @cached_property
    def _parts(self) -> list[pl.DataFrame]:
        """The source's rows by file: one a month where the source is partitioned so."""
        column = self._tables[self.target.source].partition_by
        if column is None or self._source.is_empty():
            return [self._source]
        months = self._source.with_columns(pl.col(column).dt.truncate("1mo").alias("_month"))
        return months.sort("_month", maintain_order=True).partition_by("_month", include_key=False, maintain_order=True)

    def _stored(self, parts: Sequence[pl.DataFrame]) -> _Stored:
        return _Stored(self._tables[self.target.source], parts, self.target.source_time_column)

    @cached_property
    def _as_given(self) -> _Stored:
        return self._stored(self._parts)

    @cached_property
    def _stored_references(self) -> dict[str, _Stored]:
        return {name: _Stored(self._tables[name], [frame]) for name, frame in self._reference_frames.items()}

    # --- computing ----------------------------------------------------------------------------------------------------

    @property
    def _spark(self) -> SparkSession:
        return _sessions().session(self.plan.mode)

    @contextmanager
    def _settings(self, wanted: Mapping[str, str]) -> Iterator[None]:
        """Have the session compute with other settings for a while."""
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                conf.unset(name) if old is None else conf.set(name, old)

    def _context(self, chunks: Sequence[PlannedChunk], cores: int | None = None) -> TransformContext:
        references = {name: read(self._spark, stored.whole) for name, stored in self._stored_references.items()}
        return context_of(
            self.plan, self.target, chunks, references, cores or self._spark.sparkContext.defaultParallelism
        )

    def _inputs(self, window: tuple[datetime, datetime], source: _Stored) -> Inputs:
        start, end = window
        earlier = source.before(start) if self.target.look_back_columns else None
        return inputs_of(
            self.target,
            window,
            read(self._spark, source.between(start, end)),
            read(self._spark, earlier) if earlier is not None and earlier.paths else None,
        )

    def _frame(
        self,
        chunks: Sequence[PlannedChunk],
        source: _Stored | None = None,
        window: tuple[datetime, datetime] | None = None,
        cores: int | None = None,
    ) -> DataFrame:
        inputs = self._inputs(window or read_window(self.plan, chunks), source or self._as_given)
        schema = iceberg_schema(self.target.model)
        return computed_rows(self.target, self.plan, chunks, inputs, self._context(chunks, cores), schema)

    def _staged(self, chunks: Sequence[PlannedChunk], **otherwise: Any) -> dict[str, list[StagedFile]]:
        """Compute chunks in one Spark job; return the files of each."""
        folder = _new_folder()
        self._frame(chunks, **otherwise).write.partitionBy(CHUNK_FOLDER).parquet(f"file://{folder}")
        keys = [chunk.key for chunk in chunks]
        return files_below(pafs.LocalFileSystem(), str(folder), "", self.plan.chunking, keys)

    def _compute(self, chunks: Sequence[PlannedChunk], **otherwise: Any) -> dict[str, pl.DataFrame]:
        """Compute chunks in one Spark job; return the rows of each."""
        staged = self._staged(chunks, **otherwise)
        found = {chunk.key: self._read_back(staged[chunk.key]) for chunk in chunks}
        for file in (file for files in staged.values() for file in files):
            Path(file.path).unlink()
        return found

    def _read_back(self, files: Sequence[StagedFile]) -> pl.DataFrame:
        none = pl.DataFrame(schema=dtypes(self.target.model))
        return pl.concat([none, *(pl.read_parquet(file.path, hive_partitioning=False) for file in files)])

    @cached_property
    def _files(self) -> dict[str, list[StagedFile]]:
        """The files of every chunk, computed as a run does."""
        return {key: files for batch in self.plan.batches() for key, files in self._staged(batch).items()}

    @cached_property
    def _together(self) -> dict[str, pl.DataFrame]:
        return {key: self._read_back(files) for key, files in self._files.items()}

    # --- what differs, and why ----------------------------------------------------------------------------------------

    def _differences(self, expected: pl.DataFrame, found: pl.DataFrame, word: str = "otherwise") -> list[Difference]:
        key = list(self.target.key)
        others = [name for name in dtypes(self.target.model) if name not in {*key, *LINEAGE_COLUMNS}]
        sides = [frame.select(*key, *others).sort(*key, *others) for frame in (expected, found)]
        if sides[0].equals(sides[1]):
            return []
        left, right = (_by_key(frame, len(key)) for frame in sides)
        differences = []
        for one in sorted(left.keys() | right.keys(), key=lambda values: [(part is not None, part) for part in values]):
            named, before, after = dict(zip(key, one, strict=True)), left.get(one, []), right.get(one, [])
            if len(before) != len(after):
                differences.append(Difference(named, "", len(before), len(after), word))
                continue
            for old, new in zip(before, after, strict=True):
                pairs = zip(others, old, new, strict=True)
                differences += [Difference(named, name, was, now, word) for name, was, now in pairs if was != now]
        return differences

    def _require_alike(self, how: str, found: Mapping[str, pl.DataFrame], cause: Callable[[PlannedChunk], str]) -> None:
        """Require of some chunks the rows that they have when all of them are computed together."""
        for key, frame in found.items():
            if differences := self._differences(self._together[key], frame):
                raise TrialError(
                    f"{self._named} has other rows of {key} when it is computed {how}: {_rows_in(differences)}",
                    differences,
                    cause(self.plan.chunk(key)),
                )

    def _require_alike_by_entity(self, entity: str) -> None:
        """Require of some entities the rows that they have beside others: a merge computes some of them alone."""
        some = self._source[entity].drop_nulls().unique().sort().gather_every(2).to_list()
        of_them = pl.col(entity).is_in(some)
        found = self._compute(self.plan.chunks, source=self._stored([part.filter(of_them) for part in self._parts]))
        for key, frame in found.items():
            if differences := self._differences(self._together[key].filter(of_them), frame):
                raise TrialError(
                    f"{self._named} has other rows of {key} when it is computed of {len(some):,} values of {entity} alone: "
                    f"{_rows_in(differences)}",
                    differences,
                    f"a row depends on source rows of another {entity}; MERGE_BY_KEY computes some of them without the others",
                )

    def _cause_of_chance(self, _: PlannedChunk) -> str:
        if said := self._has(_RANDOM):
            return f"it asks for what is another each time: its plan has {said}"
        if said := self._has((*_PLACES, *_ORDERED)):
            return (
                f"its plan has {said}, which depend on where rows lie and come first; or its Python code asks a clock or a "
                "random generator"
            )
        return "its Python code asks a clock or a random generator, or goes by the order of a set"

    def _cause_of_order(self, _: PlannedChunk) -> str:
        what = "it depends on the order of rows, or on which lie in one Spark partition"
        if said := self._has((*_RANDOM, *_PLACES)):
            return f"{what}: its plan has {said}, whose values go by where a row lies, whatever the seed"
        if said := self._has(_ORDERED):
            return f"{what}: its plan has {said}; order by columns that no two rows share, or take the least or the largest"
        return f"{what}; so does adding up floating point numbers"

    def _cause_of_chunks(self, chunk: PlannedChunk) -> str:
        """Tell apart why a chunk has other rows beside others: what it is told of them, or what is read for them."""
        every, window = self.plan.chunks, read_window(self.plan, [chunk])
        alone = self._compute([chunk])[chunk.key]
        if self._differences(alone, self._compute(every, window=window)[chunk.key]):
            return (
                "it depends on the other chunks of its batch, as `context.chunks` and `context.slots` name them: rows of a "
                "chunk are the same whatever it is computed with"
            )
        later = self._compute([chunk], window=(window[0], read_window(self.plan, every)[1]))[chunk.key]
        if self._differences(alone, later):
            return _LOOKS_AHEAD
        return (
            f"it depends on source rows before the {self.plan.warm_up_days} day(s) of its warm-up, which are read for earlier "
            "chunks only: `warm_up_days` is too short, or `look_back_columns` are missing"
        )

    def _has(self, names: Sequence[str]) -> str:
        return ", ".join(name if name[0].isupper() else f"{name}()" for name in self._looked_at[0] if name in names)

    @cached_property
    def _looked_at(self) -> tuple[list[str], list[str]]:
        """The telling functions in the transform's plan, and the clocks that its own Python code asks while it is built."""
        with self._settings({"spark.sql.debug.maxToStringFields": "10000"}), redirect_stdout(io.StringIO()) as said:
            with _listening() as clocks:
                frame = self._frame(self.plan.chunks)
            frame.explain("extended")
        analysed = said.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
        names = set(re.findall(r"(?<![\w.'])(\w+)\(", analysed)) | set(
            re.findall(r"\b(Deduplicate|GlobalLimit|Sample)\b", analysed)
        )
        return [name for name in (*_CLOCKS, *_RANDOM, *_PLACES, *_ORDERED) if name in names], clocks


_NAIVE = (
    "a datetime without a time zone in its Python code: which instant it means depends on the machine; write "
    "`datetime(..., tzinfo=UTC)`"
)
_DAYS = (
    "functions that take an instant's day or hour (`to_date`, `date_trunc`, `hour`, casts) in the session's time zone, which "
    "is always UTC on the platform"
)
_LOOKS_AHEAD = (
    "it looks ahead: a row depends on source rows after its chunk and the day of margin, which are not there when the chunk is "
    "computed alone"
)


# --- rows and files ---------------------------------------------------------------------------------------------------


class _Stored:
    """Rows of a table in Parquet files with field ids, as those of a snapshot are, and which of them a read needs."""

    def __init__(self, table: InputTable, parts: Sequence[pl.DataFrame], time_column: str | None = None) -> None:
        self._name, self._schema = table.name, iceberg_schema(table.model)
        self._files: list[tuple[str, int, int, datetime | None, datetime | None]] = []
        kinds = schema_to_pyarrow(self._schema)
        for part in parts:
            if part.is_empty():
                continue
            path = _new_folder().with_suffix(".parquet")
            pq.write_table(part.to_arrow().cast(kinds), path)
            first, last = (None, None) if time_column is None else _bounds(part[time_column])
            self._files.append((str(path), part.height, path.stat().st_size, first, last))

    @property
    def source_files(self) -> tuple[SourceFile, ...]:
        """What the planner is told of them."""
        return tuple(
            SourceFile(rows, size, first.date(), last.date())
            for _, rows, size, first, last in self._files
            if first is not None and last is not None
        )

    @property
    def whole(self) -> PinnedRead:
        """A read of every file."""
        return self._pinned(lambda *_: True)

    def between(self, start: datetime, end: datetime) -> PinnedRead:
        """A read of the files that may have rows of a window."""
        return self._pinned(lambda first, last: first is not None and first < end and last >= start)

    def before(self, end: datetime) -> PinnedRead:
        """A read of the files that may have rows before an instant."""
        return self._pinned(lambda first, _: first is not None and first < end)

    def _pinned(self, wanted: Callable[[Any, Any], bool]) -> PinnedRead:
        paths = tuple(f"file://{path}" for path, _, _, first, last in self._files if wanted(first, last))
        return PinnedRead(self._name, _SNAPSHOT, self._schema, paths)


def _bounds(instants: pl.Series) -> tuple[datetime | None, datetime | None]:
    first, last = instants.min(), instants.max()
    return (first, last) if isinstance(first, datetime) and isinstance(last, datetime) else (None, None)


def _frame(name: str, model: type[pa.DataFrameModel], rows: Rows, *, complete: bool = False) -> pl.DataFrame:
    """Return rows as a frame of a model's columns, without those of lineage; nothing is parsed, rounded or guessed.

    Raises:
        InputRefused: naming what is no column, or the column whose values are not of its type; with `complete` also columns
            that are left out.
    """
    kinds = {column: kind for column, kind in dtypes(model).items() if column not in LINEAGE_COLUMNS}
    if isinstance(rows, arrow.Table):
        rows = pl.DataFrame(pl.from_arrow(rows))
    if isinstance(rows, pl.DataFrame):
        _require_known(name, kinds, set(rows.columns), complete=complete)
        there = [_cast(name, rows[column], kind) for column, kind in kinds.items() if column in rows.columns]
        missing = [pl.lit(None, kind).alias(column) for column, kind in kinds.items() if column not in rows.columns]
        return pl.DataFrame(there).with_columns(missing).select(*kinds)
    found = [dict(row) for row in rows]
    for row in found:
        _require_known(name, kinds, set(row), complete=complete)
    columns = {
        column: _column(name, column, kind, [row.get(column) for row in found]) for column, kind in kinds.items()
    }
    return pl.DataFrame(columns)


def _require_known(name: str, kinds: Mapping[str, Any], found: set[str], *, complete: bool) -> None:
    wrong = [f"has {one}, which is no column" for one in sorted(found - kinds.keys() - set(LINEAGE_COLUMNS))]
    wrong += [f"lacks {one}" for one in kinds if complete and one not in found]
    if wrong:
        raise InputRefused(
            Problem(f"a row of {name} {'; '.join(wrong)}", f"its columns are {', '.join(kinds)}", "correct the rows")
        )


def _column(name: str, column: str, kind: pl.DataType, values: list[Any]) -> pl.Series:
    if isinstance(kind, pl.Datetime) and any(isinstance(one, datetime) and one.tzinfo is None for one in values):
        raise _not_of_type(name, column, kind, "a datetime without a time zone is no instant")
    try:
        made = pl.Series(column, values, kind, strict=True)
    except (pl.exceptions.PolarsError, TypeError, ValueError, OverflowError) as error:
        raise _not_of_type(name, column, kind, str(error)) from error
    if made.dtype != kind:
        raise _not_of_type(name, column, kind, f"it would be {made.dtype}")
    for given, kept in zip(values, made, strict=True):
        if not _is_kept(given, kept):
            raise _not_of_type(name, column, kind, f"{given!r} would become {kept!r}")
    return made


def _is_kept(given: Any, kept: Any) -> bool:
    """Whether a value is in a frame what it was before: numbers of other kinds are rounded without a word."""
    if isinstance(kept, pl.Series):
        return [*given] == kept.to_list()
    of_another_kind = any(isinstance(given, kind) and not isinstance(kept, kind) for kind in (bool, float))
    return given is kept or (given == kept and not of_another_kind)


def _cast(name: str, values: pl.Series, kind: pl.DataType) -> pl.Series:
    """Widen or narrow numbers and units as long as every value stays what it is."""
    of_a_kind = (
        values.dtype in {kind, pl.Null()}
        or (values.dtype.is_integer() and kind.is_integer())
        or (
            isinstance(values.dtype, pl.Datetime)
            and isinstance(kind, pl.Datetime)
            and values.dtype.time_zone is not None
        )
        or (isinstance(values.dtype, pl.Decimal) and isinstance(kind, pl.Decimal))
    )
    if not of_a_kind:
        raise _not_of_type(name, values.name, kind, f"it is {values.dtype}")
    try:
        cast = values.cast(kind, strict=True)
        same = cast.cast(values.dtype, strict=True).equals(values, null_equal=True)
    except pl.exceptions.PolarsError as error:
        raise _not_of_type(name, values.name, kind, str(error)) from error
    if not same:
        raise _not_of_type(name, values.name, kind, f"it is {values.dtype}, and values would change")
    return cast


def _not_of_type(name: str, column: str, kind: pl.DataType, why: str) -> InputRefused:
    return InputRefused(
        Problem(
            f"{column} of {name} is not {kind}: {why.partition(chr(10))[0]}",
            "a column has its declared type",
            "correct the rows",
        )
    )


def _by_key(frame: pl.DataFrame, width: int) -> dict[tuple[Any, ...], list[tuple[Any, ...]]]:
    rows: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in frame.iter_rows():
        rows.setdefault(row[:width], []).append(row[width:])
    return rows


def _rows_in(differences: Sequence[Difference]) -> str:
    keys = {tuple(one.key.values()) for one in differences}
    return f"{len(keys):,} row(s) differ"


def _chunk(result: Any) -> str:
    return str(result.chunk)


# --- sessions, zones and clocks ---------------------------------------------------------------------------------------


@cache
def _home() -> Path:
    """Return a folder of this process that sessions may write to, gone when it ends."""
    home = Path(tempfile.mkdtemp(prefix="backfill-testing-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    (home / "warehouse").mkdir()
    return home


@cache
def _sessions() -> ModeSpark:
    """Return the sessions of this process: the platform's settings, and no path that they may reach but `_home`."""
    home = _home()
    catalog = {"type": "sql", "uri": f"sqlite:///{home}/none.db", "warehouse": f"file://{home}/warehouse"}
    return ModeSpark(load_settings(home=home, catalog=catalog))


_numbers = count()


def _new_folder() -> Path:
    """Return a path below the warehouse that nothing has been written to."""
    return _home() / "warehouse" / f"part-{next(_numbers)}"


@contextmanager
def _process_in(zone: str) -> Iterator[None]:
    before = os.environ.get("TZ", "UTC")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ["TZ"] = before
        time.tzset()


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Yield what will hold the clocks that an author's own Python code asks meanwhile, with the line of each."""
    asked: list[str] = []
    before = sys.getprofile()

    def heard(frame: FrameType, event: str, called: Any) -> None:
        name = getattr(called, "__name__", "")
        if event != "c_call" or name not in _PYTHON_CLOCKS or not is_own(frame.f_code.co_filename):
            return
        owner = getattr(called, "__self__", None)
        if owner is time or (isinstance(owner, type) and issubclass(owner, date)):
            asked.append(f"{owner.__name__}.{name}() ({Path(frame.f_code.co_filename).name}, line {frame.f_lineno})")

    sys.setprofile(heard)
    try:
        yield asked
    finally:
        sys.setprofile(before)
