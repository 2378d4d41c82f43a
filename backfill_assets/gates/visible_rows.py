"""The rows that readers would have of the chunks that are judged, for gates that look at them: counted, or as a frame.

Put here which files those are, before and after, and where the counts that the chunk gates made are found again. What is counted
is declared (`declarations.tallies`); who counts is `worker.tallying`.

What was not counted when it was accepted, because its table had no such gate yet, is counted now by Spark's workers, the
columns that are looked at alone: a gate that is new compares with history from its first run on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.tallies import Tallied, Tally, tallied_of
from backfill_assets.gates.chunk_changes import VISIBLE, files_after
from backfill_assets.planning.accepted_then import accepted_then
from backfill_assets.planning.scopes import chunk_scopes
from backfill_assets.run_context import RunContext
from backfill_assets.staging.pinned_rows import read
from backfill_assets.worker.tallying import CountTask, counting
from backfill_assets.worker.violations import Violation, require_read
from manifests.chunks import Chunk, Chunking, aligned, cut, last_day
from manifests.errors import EnvironmentRefused, Problem
from resources.lakehouse.facade import PinnedRead, Scope, local_path
from resources.ledger.facade import STAGED, ChunkRecord

TALLIES, COMPUTED_TALLIES = "tallies", "computed_tallies"
"""What the gate of a chunk has counted for gates of the run: as readers would see it; and of what was computed, where that differs."""


class VisibleRows:
    """The rows of some chunks of a run as readers would have them, and as they have them at its plan's base."""

    def __init__(
        self, run: RunContext, chunks: Sequence[ChunkRecord], published: Mapping[str, Sequence[str]] | None = None
    ) -> None:
        """Take the chunks that are judged together; `published` has the files of each where published rows are judged."""
        self._run = run
        self._chunks = {chunk.chunk: chunk for chunk in chunks}
        self._published = published
        self._counted: dict[tuple[str, ...], Mapping[str, Any]] = {}

    # --- counts ---------------------------------------------------------------------------------------------------

    def computed(self, tally: Tally) -> dict[str, Tallied]:
        """Return what is counted of the computed rows, by chunk: of a merge, of its entities."""
        files = {key: [file.path for file in chunk.files] for key, chunk in self._chunks.items()}
        return self._of_chunks(tally, (COMPUTED_TALLIES, TALLIES), files)

    def after(self, tally: Tally) -> dict[str, Tallied]:
        """Return what is counted of the chunks as readers would see them, by chunk."""
        return self._of_chunks(tally, (TALLIES,), self._files)

    def accepted(self, tally: Tally, before: int = 0) -> dict[str, Tallied | None]:
        """Return what is counted of the chunks, and of so many before them, at the plan's base; None of one that has no rows then."""
        run, base = self._run, self._run.plan.base_snapshot_id
        keys = {chunk.key: chunk for chunk in [*self._earlier(before), *self._planned]}
        if base is None:
            return dict.fromkeys(keys)
        lakehouse, target = run.platform.lakehouse, run.target
        there = lakehouse.file_rows_by_chunk(target.name, base, self._scopes(keys.values()))
        holders = accepted_then(run.platform, target.name, base, keys)
        found: dict[str, Tallied | None] = dict.fromkeys(keys)
        for run_id in sorted(set(holders.values())):
            for chunk in run.platform.ledger.chunks(run_id):
                kept = chunk.measures.get(TALLIES, {}).get(tally.name)
                # what an earlier run has counted counts if it saw as many rows as there are: else others have written
                seen = chunk.measures.get(VISIBLE, {}).get("rows", chunk.rows)
                if holders.get(chunk.chunk) == run_id and kept and seen == sum(there[chunk.chunk].values()):
                    found[chunk.chunk] = tallied_of(tally, kept)
        left = {key: sorted(there[key]) for key in keys if found[key] is None and (there[key] or key in holders)}
        return found | self._of_files(tally, left)

    def _of_chunks(self, tally: Tally, names: Sequence[str], files: Mapping[str, Sequence[str]]) -> dict[str, Tallied]:
        found = {}
        for key, chunk in self._chunks.items():
            kept: Mapping[str, Any] = next((chunk.measures[name] for name in names if name in chunk.measures), {})
            if tally.name in kept:
                found[key] = tallied_of(tally, kept[tally.name])
        left = {key: files[key] for key in self._chunks if key not in found}
        return {**found, **self._of_files(tally, left)}

    def _of_files(self, tally: Tally, files: Mapping[str, Sequence[str]]) -> dict[str, Tallied]:
        """Have files counted for every gate of the target at once: other tallies will be asked for next."""
        new = {key: tuple(paths) for key, paths in files.items() if tuple(paths) not in self._counted}
        if new:
            run, tallies = self._run, tuple(dict.fromkeys((*self._run.target.tallies, tally)))
            schema = run.platform.lakehouse.table(run.target.name).schema().model_dump_json()
            tasks = [(CountTask(key, tuple(map(local_path, paths))), 1) for key, paths in new.items()]
            for one in _counted(run.platform.workers.do(run.plan.mode, counting(schema, tallies), tasks)):
                self._counted[new[one.chunk]] = one.tallies
        return {key: tallied_of(tally, self._counted[tuple(paths)][tally.name]) for key, paths in files.items()}

    # --- rows -----------------------------------------------------------------------------------------------------

    def frame(self, days_around: int = 0) -> DataFrame:
        """Return every row of the chunks as readers would have them, and of so many days around them as they have those.

        Chunks of the same run that are judged apart are as they would be; all others as at the plan's base.
        """
        run, (start, end) = self._run, self._days
        paths = [path for files in self._files.values() for path in files]
        if days_around:
            paths += self._around(days_around)
        table = run.platform.lakehouse.table(run.target.name)
        rows = read(run.spark, PinnedRead(run.target.name, None, table.schema(), tuple(sorted(paths))))
        if not run.target.day_column:
            return rows
        around = timedelta(days=days_around)
        begins, ends = (F.lit(day) for day in (_plus(start, -around), _plus(end, around)))
        return rows.where(F.to_date(run.target.day_column).between(begins, ends))

    def _around(self, days: int) -> list[str]:
        run, (start, end) = self._run, self._days
        begin, finish = aligned(self._chunking, _plus(start, -timedelta(days=days)), _plus(end, timedelta(days=days)))
        others = [chunk for chunk in cut(self._chunking, begin, finish, self._parts) if chunk.key not in self._chunks]
        scopes = self._scopes(others)
        base = run.plan.base_snapshot_id
        there: Mapping[str, Mapping[str, int]] = {key: {} for key in scopes}
        if base is not None:
            there = run.platform.lakehouse.file_rows_by_chunk(run.target.name, base, scopes)
        of_the_run: dict[str, ChunkRecord] = {}
        if self._published is None:
            of_the_run = {one.chunk: one for one in run.platform.ledger.chunks(run.run_id) if one.state in STAGED}
        return [
            path
            for key, files in there.items()
            for path in (files_after(run.plan, of_the_run[key], files) if key in of_the_run else files)
        ]

    # --- which chunks and files -----------------------------------------------------------------------------------

    @cached_property
    def _files(self) -> Mapping[str, Sequence[str]]:
        """The files that readers would have of each chunk."""
        if self._published is not None:
            return self._published
        run, base = self._run, self._run.plan.base_snapshot_id
        there: Mapping[str, Mapping[str, int]] = {key: {} for key in self._chunks}
        if base is not None and run.plan.publish_mode.adds_to_files_that_stay:
            scopes = self._scopes(self._planned)
            there = run.platform.lakehouse.file_rows_by_chunk(run.target.name, base, scopes)
        return {key: files_after(run.plan, chunk, there[key]) for key, chunk in self._chunks.items()}

    @property
    def _chunking(self) -> Chunking:
        return self._run.target.chunking

    @property
    def _planned(self) -> list[Chunk]:
        """The chunks that are judged, in order."""
        mine = [chunk for chunk in self._run.plan.chunks if chunk.key in self._chunks]
        return [Chunk(one.key, at, one.start, one.end, one.hour, one.part) for at, one in enumerate(mine)]

    @property
    def _parts(self) -> tuple[str, ...]:
        """The parts of the chunks that are judged; none where the table has none."""
        mine = {chunk.part for chunk in self._planned}
        return tuple(name for name in self._run.target.parts if name in mine)

    @property
    def _days(self) -> tuple[date, date]:
        planned = self._planned
        return planned[0].start, planned[-1].end

    def _earlier(self, number: int) -> list[Chunk]:
        """Return so many chunks before those that are judged, as far as the calendar has them: of each of their parts."""
        start, times = self._days[0], 0
        found: list[Chunk] = []
        while times < number and start > date.min:
            end = start - timedelta(days=1)
            start = aligned(self._chunking, end, end)[0]
            own = list(cut(self._chunking, start, last_day(self._chunking, start), self._parts))
            wanted = (number - times) * max(len(self._parts), 1)  # of hours, the last ones of their day
            found = own[-wanted:] + found
            times += len(own) // max(len(self._parts), 1)
        return found

    def _scopes(self, chunks: Iterable[Chunk]) -> dict[str, Scope]:
        return chunk_scopes(self._run.target, chunks)


def _counted(results: Collection[Any]) -> list[Any]:
    """Return what was counted, or refuse: a file that cannot be read says nothing about its rows."""
    broken = [one for one in results if isinstance(one, Violation)]
    require_read(broken)
    if broken:
        (sample,) = broken[0].sample
        raise EnvironmentRefused(
            Problem(
                f"{sample['file']} cannot be read: {sample['error']}",
                "a gate compares with what readers have",
                "`backfill verify --all --data` names what else is damaged; restore the file, and run the same command again",
            )
        )
    return list(results)


def _plus(day: date, days: timedelta) -> date:
    """Return a day that is so many later, as far as the calendar goes."""
    try:
        return day + days
    except OverflowError:
        return date.max if days > timedelta(0) else date.min
