"""A transform on some rows: computed as a run computes it, and held against what it should be.

Put here what is asked of a trial, what it is planned as, and in which ways it is computed. How chunks are computed is
`computing`'s to say; what differs is in `differences`, why in `causes`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from operator import attrgetter
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.answers import answer_problems
from backfill_assets.declarations.checking.products import problems_of
from backfill_assets.declarations.checking.rules import rule_problems
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.planning.contracts import contract_of
from backfill_assets.staging.rows import lineage, read_window
from backfill_assets.testing.causes import CLOCKS, DAYS, LOOKS_AHEAD, NAIVE, ORDERED, PLACES, RANDOM, clocks_asked
from backfill_assets.testing.computing import Computing
from backfill_assets.testing.declared_tables import require_given, require_known_versions, tables_of
from backfill_assets.testing.differences import Difference, TrialError, differences_between, rows_in
from backfill_assets.testing.given_rows import Rows, frame_of
from backfill_assets.testing.sessions import new_folder, process_in
from backfill_assets.testing.stored_rows import SNAPSHOT, StoredRows
from backfill_assets.worker.chunk_gate import digest_of, gate_chunks
from backfill_assets.worker.gate_tasks import GateTask, spec_of
from backfill_assets.worker.violations import Violation, require_read
from manifests.chunks import Chunking
from manifests.code_identity import CodeIdentity
from manifests.errors import DeclarationRefused, InputRefused, Problem
from manifests.facts import ReferenceState
from manifests.further_sources import FoundSource
from manifests.plan import Plan, PlannedChunk
from manifests.planner import make_plan
from manifests.reading import manifest_from
from manifests.staged_file import StagedFile

RUN_CLOCK = datetime(2030, 1, 1, tzinfo=UTC)
"""The "now" of a trial unless it is given another."""
_OTHER_ZONE = "Pacific/Auckland"
_FILES = 5
_OTHER_WAYS = {
    "spark.sql.shuffle.partitions": "7",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.files.openCostInBytes": str(1 << 27),  # a partition a file
}
"""Settings with which Spark shuffles, joins and reads in another way than by default."""


def transformed(
    target: TargetTable,
    version: str,
    source_rows: Rows,
    *,
    publish_range: tuple[date | str, date | str] | None = None,
    references: Mapping[str, Rows] | None = None,
    sources: Mapping[str, Rows] | None = None,
    inputs: Sequence[InputTable | TargetTable] = (),
    run_clock: datetime = RUN_CLOCK,
) -> pl.DataFrame:
    """Return what a version of a target's transform makes of rows, in key order; see `Trial`."""
    return Trial(
        target,
        version,
        source_rows,
        publish_range=publish_range,
        references=references or {},
        sources=sources or {},
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
        publish_range: first and last day that are computed, both inclusive; whole chunks. None of a target without time.
        references: rows of each reference table, by name.
        sources: rows of each source beside the first, by name; without the lineage columns of one that is a target.
        inputs: the declared sources and references; those of the registered products where none are given.
        run_clock: the run's "now".
    """

    target: TargetTable
    version: str
    source_rows: Rows
    _: KW_ONLY
    publish_range: tuple[date | str, date | str] | None = None
    references: Mapping[str, Rows] = field(default_factory=dict)
    sources: Mapping[str, Rows] = field(default_factory=dict)
    inputs: Sequence[InputTable | TargetTable] = ()
    run_clock: datetime = RUN_CLOCK

    def __post_init__(self) -> None:
        """Refuse what no run could be planned with.

        Raises:
            InputRefused: naming each argument that is of another kind.
        """
        days: Any = self.publish_range
        clock: Any = self.run_clock
        problems = []
        if not isinstance(self.target, TargetTable):
            problems.append(
                Problem(f"target is {in_words(self.target)}", "it is the TargetTable that is tested", "name it")
            )
        are_days = isinstance(days, (tuple, list)) and [isinstance(day, (date, str)) for day in days] == [True, True]
        if not are_days and not (days is None and getattr(self.target, "chunking", None) is Chunking.WHOLE):
            rule = "publish_range is a tuple of the first and the last day, both inclusive"
            problems.append(
                Problem(f"publish_range is {in_words(days)}", rule, 'for example ("2024-01-01", "2024-02-29")')
            )
        if not isinstance(clock, datetime) or clock.tzinfo is None:
            rule = "run_clock is a datetime with a time zone"
            problems.append(
                Problem(f"run_clock is {in_words(clock)}", rule, "for example datetime(2030, 1, 1, tzinfo=UTC)")
            )
        for name, rows in (("references", self.references), ("sources", self.sources)):
            if not isinstance(rows, Mapping):
                rule = f"{name} has the rows of each of these tables by its name"
                problems.append(Problem(f"{name} is {in_words(rows)}", rule, f"write {name}={{name: rows}}"))
        if problems:
            raise InputRefused(problems)

    # --- what is asked of it ------------------------------------------------------------------------------------------

    def rows(self) -> pl.DataFrame:
        """Return the rows that a run would stage, all its chunks together, in key order, with the lineage columns.

        Raises:
            Refused: as a run would be: by declaration, plan, or what the transform returns.
        """
        return pl.concat(map(self._computing.read_back, self._files.values())).sort(self.target.key)

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
                str(new_folder().with_suffix(".parquet")),
                digest_of(self.target, self.plan.transform_version),
                chunk.hour,
                chunk.part,
            )
            for chunk in self.plan.chunks
        ]
        results = list(gate_chunks(spec_of(self.target, lineage(self.plan, self.target.model)), tasks))
        require_read(one for result in results for one in result.violations)
        broken = (result for result in sorted(results, key=attrgetter("chunk")) if result.violations)
        return {result.chunk: result.violations for result in broken}

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
        wanted = frame_of(self.target.name, self.target.model, expected, complete=True)
        if self.target.day_column:
            day, days = pl.col(self.target.day_column), self.plan.publish_range
            of_days = (day.dt.date() if self.target.has_instants else day).is_between(days.start, days.end)
            wanted = wanted.filter(day.is_null() | of_days)
        if found := self._differences(wanted, rows, "expected"):
            raise TrialError(f"{self._named} does not compute what is expected: {rows_in(found)}", found)

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
        if asked := [*(f"{name}()" for name in plan_has if name in CLOCKS), *clocks]:
            raise TrialError(
                f"{self._named} asks a clock: {', '.join(asked)}", cause="`context.run_clock` is the only now there is"
            )
        chunks, computing = self.plan.chunks, self._computing
        self._require_alike("once more", computing.rows_of(chunks), self._cause_of_chance)
        reverse = self._stored([part.reverse() for part in reversed(self._parts)])
        found = computing.rows_of(chunks, source=reverse, further=self._further(lambda rows: [rows.reverse()]))
        self._require_alike("from source rows in reverse order", found, self._cause_of_order)
        spread = self._stored(_spread(self._source))
        with computing.settings(_OTHER_WAYS):
            found = computing.rows_of(chunks, source=spread, further=self._further(_spread), cores=len(chunks))
        self._require_alike(
            "from source rows spread over more files, with other shuffles and joins", found, self._cause_of_order
        )
        with process_in(zone):
            found = computing.rows_of(chunks)
        self._require_alike(f"in a process whose time zone is {zone}", found, lambda _: NAIVE)
        if session_zone is not None:
            with computing.settings({"spark.sql.session.timeZone": session_zone}):
                found = computing.rows_of(chunks)
            self._require_alike(f"in a session whose time zone is {session_zone}", found, lambda _: DAYS)
        for chunk in chunks if len(chunks) > 1 else ():
            self._require_alike(f"with chunk {chunk.key} alone", computing.rows_of([chunk]), self._cause_of_chunks)
        for at in range(0, len(chunks), 2) if len(chunks) > 2 else ():  # noqa: PLR2004 - in twos
            found = computing.rows_of(chunks[at : at + 2])
            self._require_alike(f"with chunks {' and '.join(found)} together", found, self._cause_of_chunks)
        if self.target.entity is not None:
            self._require_alike_by_entity(self.target.entity)

    def require_no_look_ahead(self) -> None:
        """Require that no chunk's rows change where the source rows after its own read window are removed.

        Raises:
            InputRefused: if there is nothing to remove: the trial has one chunk, or no rows after the window of one.
            TrialError: naming the chunk, and the first key and column that differ.
        """
        looked, chunks = False, self.plan.chunks
        for chunk in chunks[:-1] if self.target.day_column else ():
            end = read_window(self.plan, [chunk])[1]
            ends = {one.table: one.window(chunk.start, chunk.end)[1] for one in self.plan.sources}
            lasts = {one.table: one.window(chunks[0].start, chunks[-1].end)[1] for one in self.plan.sources}
            removed = [
                _later(self._source, self.target.source_time_column, end, read_window(self.plan, chunks)[1]),
                *(
                    _later(self._further_frames[name], self.target.every_source[name], own, lasts[name])
                    for name, own in ends.items()
                ),
            ]
            if all(rows.is_empty() for rows in removed):
                continue
            looked = True
            without = self._stored([_before(part, self.target.source_time_column, end) for part in self._parts])
            further = {
                name: StoredRows(self._tables[name], [_before(frame, column, ends[name])], column)
                for name, frame in self._further_frames.items()
                for column in [self.target.every_source[name]]
            }
            found = self._computing.rows_of(chunks, source=without, further=further)
            self._require_alike(
                f"without the source rows from {end:%Y-%m-%d %H:%M} on, which is after what {chunk.key} reads",
                {chunk.key: found[chunk.key]},
                lambda _: LOOKS_AHEAD,
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
        require_given(self._named, self.target, self.references, self.sources)
        require_known_versions(self.target, {self.target.source: self._source, **self._further_frames})
        models = {name: table.model for name, table in tables.items()} | dict(self.target.models)
        if problems := [*rule_problems(models), *answer_problems(self.target)]:
            raise DeclarationRefused(problems)
        days = self.publish_range and dict(zip(("start", "end"), map(str, self.publish_range), strict=True))
        manifest = manifest_from(
            {
                "runId": "trial",
                "kind": "RESTATEMENT",
                "requestedBy": "the author of the transform",
                "reason": "the transform is tested alone",
                "source": {"table": self.target.source},
                "transform": {"name": self.target.transform, "version": self.version},
                "target": {"table": self.target.name} | ({"publishRange": days} if days else {}),
            }
        )
        references = {name: frame.to_dicts() for name, frame in self._reference_frames.items()}
        return make_plan(
            manifest,
            contract=contract_of(self.target, references),
            source=self._as_given.state(self.run_clock),
            sources={name: FoundSource(one.state(self.run_clock)) for name, one in self._further().items()},
            references={
                name: ReferenceState(name, SNAPSHOT, frozenset({SNAPSHOT}), {}) for name in self.target.references
            },
            base_snapshot_id=None,
            code=CodeIdentity("", "", None, None, dirty=False),
            configuration_hash="",
            run_clock=self.run_clock,
        )

    @cached_property
    def _tables(self) -> dict[str, InputTable]:
        return tables_of(self.target, self.inputs)

    @property
    def _named(self) -> str:
        return f"{self.target.transform} {self.version} of {self.target.name}"

    # --- its rows -----------------------------------------------------------------------------------------------------

    @cached_property
    def _source(self) -> pl.DataFrame:
        table = self._tables[self.target.source]
        return frame_of(table.name, table.model, self.source_rows)

    @cached_property
    def _reference_frames(self) -> dict[str, pl.DataFrame]:
        return {
            name: frame_of(name, self._tables[name].model, self.references[name]) for name in self.target.references
        }

    @cached_property
    def _further_frames(self) -> dict[str, pl.DataFrame]:
        models = {one.table: self._tables[one.table].model for one in self.target.sources}
        return {name: frame_of(name, model, self.sources[name]) for name, model in models.items()}

    def _further(
        self, parts: Callable[[pl.DataFrame], list[pl.DataFrame]] = lambda rows: [rows]
    ) -> dict[str, StoredRows]:
        """Return the rows of the further sources, in such parts: as they are given, unless others are asked for."""
        return {
            name: StoredRows(self._tables[name], parts(frame), self.target.every_source[name])
            for name, frame in self._further_frames.items()
        }

    @cached_property
    def _parts(self) -> list[pl.DataFrame]:
        """The source's rows by file: one a month where the source is partitioned so."""
        column = self._tables[self.target.source].partition_by
        if column is None or self._source.is_empty():
            return [self._source]
        months = self._source.with_columns(pl.col(column).dt.truncate("1mo").alias("_month"))
        return months.sort("_month", maintain_order=True).partition_by("_month", include_key=False, maintain_order=True)

    def _stored(self, parts: Sequence[pl.DataFrame]) -> StoredRows:
        return StoredRows(self._tables[self.target.source], parts, self.target.window_column)

    @cached_property
    def _as_given(self) -> StoredRows:
        return self._stored(self._parts)

    @cached_property
    def _stored_references(self) -> dict[str, StoredRows]:
        return {name: StoredRows(self._tables[name], [frame]) for name, frame in self._reference_frames.items()}

    # --- its rows, computed -------------------------------------------------------------------------------------------

    @cached_property
    def _computing(self) -> Computing:
        return Computing(self.target, self.plan, self._as_given, self._stored_references, self._further())

    @cached_property
    def _files(self) -> dict[str, list[StagedFile]]:
        """The files of every chunk, computed as a run does."""
        return {key: files for batch in self.plan.batches() for key, files in self._computing.staged(batch).items()}

    @cached_property
    def _together(self) -> dict[str, pl.DataFrame]:
        """The rows of every chunk that have a day."""
        computing = self._computing
        return {key: computing.with_days(computing.read_back(files)) for key, files in self._files.items()}

    # --- what differs, and why ----------------------------------------------------------------------------------------

    def _differences(self, expected: pl.DataFrame, found: pl.DataFrame, word: str = "otherwise") -> list[Difference]:
        key = list(self.target.key)
        others = [name for name in dtypes(self.target.model) if name not in {*key, *lineage_columns(self.target.model)}]
        return differences_between(expected, found, key, others, word)

    def _require_alike(self, how: str, found: Mapping[str, pl.DataFrame], cause: Callable[[PlannedChunk], str]) -> None:
        """Require of some chunks the rows that they have when all of them are computed together."""
        for key, frame in found.items():
            if differences := self._differences(self._together[key], frame):
                raise TrialError(
                    f"{self._named} has other rows of {key} when it is computed {how}: {rows_in(differences)}",
                    differences,
                    cause(self.plan.chunk(key)),
                )

    def _require_alike_by_entity(self, entity: str) -> None:
        """Require of some entities the rows that they have beside others: a merge computes some of them alone."""
        some = self._source[entity].drop_nulls().unique().sort().gather_every(2).to_list()
        of_them = pl.col(entity).is_in(some)
        source = self._stored([part.filter(of_them) for part in self._parts])
        found = self._computing.rows_of(self.plan.chunks, source=source)
        for key, frame in found.items():
            if differences := self._differences(self._together[key].filter(of_them), frame):
                raise TrialError(
                    f"{self._named} has other rows of {key} when it is computed of {len(some):,} values of {entity} alone: "
                    f"{rows_in(differences)}",
                    differences,
                    f"a row depends on source rows of another {entity}; MERGE_BY_KEY computes some of them without the others",
                )

    def _cause_of_chance(self, _: PlannedChunk) -> str:
        if said := self._has(RANDOM):
            return f"it asks for what is another each time: its plan has {said}"
        if said := self._has((*PLACES, *ORDERED)):
            return (
                f"its plan has {said}, which depend on where rows lie and come first; or its Python code asks a clock or a "
                "random generator"
            )
        return "its Python code asks a clock or a random generator, or goes by the order of a set"

    def _cause_of_order(self, _: PlannedChunk) -> str:
        what = "it depends on the order of rows, or on which lie in one Spark partition"
        if said := self._has((*RANDOM, *PLACES)):
            return f"{what}: its plan has {said}, whose values go by where a row lies, whatever the seed"
        if said := self._has(ORDERED):
            return f"{what}: its plan has {said}; order by columns that no two rows share, or take the least or the largest"
        return f"{what}; so does adding up floating point numbers"

    def _cause_of_chunks(self, chunk: PlannedChunk) -> str:
        """Tell apart why a chunk has other rows beside others: what it is told of them, or what is read for them."""
        every, window = self.plan.chunks, read_window(self.plan, [chunk])
        alone = self._computing.rows_of([chunk])[chunk.key]
        if self._differences(alone, self._computing.rows_of(every, window=window)[chunk.key]):
            return (
                "it depends on the other chunks of its batch, as `context.chunks` and `context.slots` name them: rows of a "
                "chunk are the same whatever it is computed with"
            )
        later = self._computing.rows_of([chunk], window=(window[0], read_window(self.plan, every)[1]))[chunk.key]
        if self._differences(alone, later):
            return LOOKS_AHEAD
        return (
            f"it depends on source rows before the {self.plan.warm_up_days} day(s) of its warm-up, which are read for earlier "
            "chunks only: `warm_up_days` is too short, or `look_back_columns` are missing"
        )

    def _has(self, names: Sequence[str]) -> str:
        return ", ".join(name if name[0].isupper() else f"{name}()" for name in self._looked_at[0] if name in names)

    @cached_property
    def _looked_at(self) -> tuple[list[str], list[str]]:
        """The telling functions in the transform's plan, and the clocks that its own Python code asks while it is built."""
        computing = self._computing
        with computing.settings({"spark.sql.debug.maxToStringFields": "10000"}), redirect_stdout(io.StringIO()) as said:
            with clocks_asked() as clocks:
                frame = computing.frame(self.plan.chunks)
            frame.explain("extended")
        analysed = said.getvalue().partition("== Analyzed Logical Plan ==")[2].partition("== Optimized")[0]
        names = set(re.findall(r"(?<![\w.'])(\w+)\(", analysed)) | set(
            re.findall(r"\b(Deduplicate|GlobalLimit|Sample)\b", analysed)
        )
        return [name for name in (*CLOCKS, *RANDOM, *PLACES, *ORDERED) if name in names], clocks


def _spread(rows: pl.DataFrame) -> list[pl.DataFrame]:
    return [rows.gather_every(_FILES, first) for first in range(_FILES)]


def _later(rows: pl.DataFrame, column: str, end: date, last: date) -> pl.DataFrame:
    """Return the rows from `end` on that are before `last`: dates, or instants."""
    return rows.filter((pl.col(column) >= end) & (pl.col(column) < last))


def _before(rows: pl.DataFrame, column: str, end: date) -> pl.DataFrame:
    return rows.filter(pl.col(column).is_null() | (pl.col(column) < end))
