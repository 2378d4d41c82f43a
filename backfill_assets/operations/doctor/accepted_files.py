"""Looks at the chunks of a table: whether their files are those of the run that the ledger holds as accepted.

Put here files that are too many or missing in a chunk, and delete files. Whether a file is whole is `damaged_files`'.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import datetime

from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import DateType, TimestamptzType

from backfill_assets.operations.doctor.disagreements import Confidence, Disagreement, some
from backfill_assets.operations.doctor.views import TableView
from backfill_assets.planning.compacting import compacted
from backfill_assets.publication.modes import strategy_of
from manifests.chunks import Chunk, Chunking, chunk_named, first_instant, last_instant, part_of
from manifests.errors import InputRefused
from resources.lakehouse.containment import instants_of
from resources.lakehouse.metadata import column_of, readable_metadata, wrong_type
from resources.lakehouse.parts import known_part
from resources.lakehouse.storage import place_of


def accepted_files_that_differ(view: TableView, landed: Collection[str]) -> Iterator[Disagreement]:
    """Find chunks whose files in the table are not those of the run that the ledger holds as accepted.

    `landed` are runs whose change is in the table and only has to be recorded: their chunks are looked at once it is.
    """
    holders = view.platform.ledger.accepted(view.target.name)
    accepted = set(holders.values())
    plans = {record.run_id: record.plan for record in view.runs if record.run_id in accepted}
    expected: dict[str, set[str]] = {}
    for run_id in sorted(accepted):
        for chunk in view.platform.ledger.chunks(run_id):
            if holders.get(chunk.chunk) == run_id:
                derived = run_id in plans and plans[run_id].publish_mode.adds_to_files_that_stay
                files = chunk.derived if derived else chunk.files
                expected[chunk.chunk] = {place_of(file.path) for file in files}
    for key, one in compacted(view.platform, view.target.name, holders).items():
        expected[key] = {place_of(file.path) for file in one.chunk.files}
    present, deleted_from = _files_by_chunk(view, holders)
    if deleted_from:
        yield Disagreement(
            "rows-deleted",
            view.target.name,
            f"delete files take rows out of {len(deleted_from)} data file(s): {some(deleted_from)}",
            Confidence.CERTAIN,
            "no run writes delete files: find out who does, apply them by a run of kind COMPACTION, and restate the chunks",
        )
    at_it = {*view.at_it, *landed}
    changing = {chunk.key for one in view.runs if one.run_id in at_it for chunk in one.plan.chunks}
    for key, run_id in sorted(holders.items()):
        if run_id not in plans or key in changing:
            continue  # of a run that is not there, the history is reported; whose chunks they are is being changed
        here = present.get(key, set())
        missing = sorted(expected.get(key, set()) - here)
        is_whole = not strategy_of(plans[run_id]).leaves_files  # a merge leaves the files that it does not touch
        extra = sorted(here - expected.get(key, set())) if is_whole else []
        if missing or extra:
            changes = [f"- {path}" for path in missing] + [f"+ {path}" for path in extra]
            yield Disagreement(
                "accepted-files-differ",
                f"{view.target.name} chunk {key}",
                f"the ledger has it accepted from run {run_id}; the table lacks {len(missing)} of the run's files and "
                f"holds {len(extra)} others: {some(changes)}",
                Confidence.CERTAIN,
                "see who wrote the table's snapshots since, and restate the chunk with a new run",
            )


def _files_by_chunk(view: TableView, keys: Iterable[str]) -> tuple[dict[str, set[str]], list[str]]:
    """Return the places of the current data files by those of `keys` whose days they may hold, and those with deletes."""
    chunks, division = ChunksByTime(view.target.chunking, keys), view.target.chunk_values
    name = view.target.day_column
    column = column_of(view.table, name) if name else None
    if column is not None and not isinstance(column.field_type, (DateType, TimestamptzType)):
        raise wrong_type(view.table, column, "a date or timestamptz")
    present: dict[str, set[str]] = defaultdict(set)
    deleted_from = []
    for task in _current_files(view.table):
        path = place_of(task.file.file_path)
        if task.delete_files:
            deleted_from.append(path)
        ends = instants_of(view.table, name, task.file)
        part = None if division is None else known_part(view.table, division, task.file)
        for chunk in () if ends is None else chunks.between(*ends):
            if part is None or part_of(chunk) == part:
                present[chunk].add(path)
    return present, sorted(deleted_from)


def _current_files(table: Table) -> list[FileScanTask]:
    current = table.current_snapshot()
    if current is None:
        return []
    with readable_metadata(table, current):
        return list(table.scan().plan_files())


class ChunksByTime:
    """Chunks in the order of their times, to be asked which of them a span of time touches."""

    def __init__(self, chunking: Chunking, keys: Iterable[str]) -> None:
        found: dict[str, Chunk] = {}
        for key in sorted(keys):
            with suppress(
                InputRefused
            ):  # no chunk: somebody has written it into the ledger, and the journal names the cell
                found[key] = chunk_named(chunking, key)
        self._keys, self._first = list(found), [first_instant(one) for one in found.values()]
        self._last = [last_instant(one) for one in found.values()]

    def between(self, first: datetime, last: datetime) -> list[str]:
        """Return the keys of those that have one of these instants."""
        return self._keys[bisect_left(self._last, first) : bisect_right(self._first, last)]
