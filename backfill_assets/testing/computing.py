"""The chunks of a trial, computed as a run computes them: rows of their read window in, staged files and their rows out.

Put here how chunks are computed, and what may be otherwise: source rows, window, cores, settings of the session. In which ways
a trial is computed, and what its rows are held against, is `trial`'s; what is done to rows is the run's own functions' to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession

from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.declarations.target import Inputs, TargetTable, TransformContext
from backfill_assets.staging.finishing import finished
from backfill_assets.staging.folders import NO_PARTS, files_below
from backfill_assets.staging.pinned_rows import read
from backfill_assets.staging.rows import (
    building,
    computed_rows,
    context_of,
    in_time,
    in_window,
    inputs_of,
    read_window,
    running,
    sources_by_name,
)
from backfill_assets.testing.sessions import new_folder, spark_sessions
from backfill_assets.testing.stored_rows import StoredRows
from manifests.plan import Plan, PlannedChunk
from manifests.staged_file import StagedFile
from resources.spark.chunk_work import ThisProcess
from resources.spark.cores import tasks_at_once
from resources.spark.pyspark_private import root_is_default


@dataclass(frozen=True, eq=False)
class Computing:
    """A plan, and the rows that its chunks are computed from.

    Attributes:
        target: the declared target.
        plan: the plan of a run that computes these rows.
        source: the rows of its source, unless others are given.
        references: the rows of each reference table, by name.
        further: the rows of each source beside the first, by name, unless others are given.
    """

    target: TargetTable
    plan: Plan
    source: StoredRows
    references: Mapping[str, StoredRows]
    further: Mapping[str, StoredRows] = field(default_factory=dict)

    @property
    def session(self) -> SparkSession:
        """The session that chunks are computed in."""
        return spark_sessions().session(self.plan.mode)

    @contextmanager
    def settings(self, wanted: Mapping[str, str]) -> Iterator[None]:
        """Have the session compute with other settings for a while."""
        conf = self.session.conf
        before = {name: conf.get(name, None) for name in wanted}
        for name, value in wanted.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                conf.unset(name) if old is None else conf.set(name, old)

    def frame(
        self,
        chunks: Sequence[PlannedChunk],
        source: StoredRows | None = None,
        window: tuple[datetime, datetime] | None = None,
        cores: int | None = None,
        further: Mapping[str, StoredRows] | None = None,
    ) -> DataFrame:
        """Return the frame that chunks are computed by: from other source rows, of another window or for other cores, if given."""
        inputs = self._inputs(window or read_window(self.plan, chunks), source or self.source)
        inputs = replace(
            inputs,
            source=self._as_read(self.target.source, inputs.source),
            sources=self._further(chunks, self.further if further is None else further),
        )
        schema = iceberg_schema(self.target.model)
        return computed_rows(self.target, self.plan, chunks, inputs, self._context(chunks, cores), schema)

    def staged(self, chunks: Sequence[PlannedChunk], **otherwise: Any) -> dict[str, list[StagedFile]]:
        """Compute chunks in one Spark job, otherwise as `frame` has it; return the files of each."""
        folder = new_folder()
        try:
            frame = self.frame(chunks, **otherwise)
            with running(self.plan):
                frame.write.partitionBy(*NO_PARTS.folders).parquet(f"file://{folder}")
        finally:
            root_is_default()  # what a test does beside the trial is in its own session
        keys = [chunk.key for chunk in chunks]
        files = files_below(pafs.LocalFileSystem(), str(folder), "", self.plan.chunking, keys)
        return finished(ThisProcess(), self.target, self.plan, iceberg_schema(self.target.model), files)

    def rows_of(self, chunks: Sequence[PlannedChunk], **otherwise: Any) -> dict[str, pl.DataFrame]:
        """Compute chunks in one Spark job, otherwise as `frame` has it; return the rows of each that have a day."""
        staged = self.staged(chunks, **otherwise)
        found = {chunk.key: self.with_days(self.read_back(staged[chunk.key])) for chunk in chunks}
        for file in (file for files in staged.values() for file in files):
            Path(file.path).unlink()
        return found

    def with_days(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Leave out rows without a day: they lie in the first chunk of a batch, whichever that is."""
        return rows.drop_nulls(self.target.day_column) if self.target.day_column else rows

    def read_back(self, files: Sequence[StagedFile]) -> pl.DataFrame:
        """Return the rows of a chunk's files."""
        none = pl.DataFrame(schema=dtypes(self.target.model))
        return pl.concat([none, *(pl.read_parquet(file.path, hive_partitioning=False, glob=False) for file in files)])

    def _context(self, chunks: Sequence[PlannedChunk], cores: int | None = None) -> TransformContext:
        references = {name: read(self.session, stored.whole) for name, stored in self.references.items()}
        return context_of(self.plan, self.target, chunks, references, cores or tasks_at_once(self.session))

    def _further(self, chunks: Sequence[PlannedChunk], rows: Mapping[str, StoredRows]) -> Mapping[str, DataFrame]:
        first, last = min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)
        found = {}
        for pin in (one for one in self.plan.sources if not one.for_gates):
            start, end = pin.window(first, last)
            stored = rows[pin.table]
            scan = stored.before(end) if start is None else stored.between(start, end)
            found[pin.table] = self._as_read(
                pin.table, in_window(read(self.session, scan), pin.time_column, start, end)
            )
        return sources_by_name(found)

    def _as_read(self, table: str, rows: DataFrame) -> DataFrame:
        """Return rows of a source as the newest of its versions means them, and as a run reads those that are of the future."""
        newest = {self.plan.source: self.plan.newest} | {one.table: one.newest for one in self.plan.sources}
        rows = in_time(rows, self.target.every_source[table], newest[table])
        readers = self.target.readers_of(table)
        if readers is None:
            return rows
        with building(self.plan):
            return readers.read(rows)

    def _inputs(self, window: tuple[datetime, datetime], source: StoredRows) -> Inputs:
        start, end = window
        earlier = source.before(start) if self.target.look_back_columns else None
        return inputs_of(
            self.target,
            window,
            read(self.session, source.between(start, end)),
            read(self.session, earlier) if earlier is not None and earlier.paths else None,
        )
