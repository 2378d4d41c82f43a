"""One chunk before and after a run, compared row by row by its key. Runs in Spark's workers.

Put here what is done to the files of one chunk and what is kept of it: counts, sums, a bounded number of rows, and a file with every
changed row where one is asked for. Which files are before and which after is `review.diff`'s. Imports neither Dagster nor PySpark's SQL.

A chunk is compared with itself only, so that no row leaves the worker that has read it. Where a table's key is without
its day, a row that moved to another chunk is one removed there and one added here. Memory is one chunk before and
after; one of more than `SLICE_ROWS` rows is compared by ranges of its key, cut where its files begin, small ones
many at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import pairwise
from operator import attrgetter
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from backfill_assets.worker.changed_rows import (
    KIND,
    KINDS,
    NEW,
    PLACE,
    CompareSpec,
    RowsKept,
    RowsOfAll,
    furthest,
    key_columns,
    sampled,
    shown,
    turn,
)
from backfill_assets.worker.chunk_corrections import ADDED, CHANGED, REMOVED
from backfill_assets.worker.columns import UNREADABLE, rows_of, scan, scan_file, table_of
from backfill_assets.worker.key_order import rows_between
from backfill_assets.worker.nested import differs
from backfill_assets.worker.small_files import Held, held, numbered
from backfill_assets.worker.sums import exact, numeric, plus, sum_of, sums_by, sums_of
from backfill_assets.worker.violations import READ_RULE, unreadable
from resources.files import stores
from resources.spark.chunk_work import ChunkWork

SLICE_ROWS = 8_000_000
"""Rows of both sides of a chunk that are compared at once: some 1 GB."""
PRODUCER = "run_id"
"""Lineage column of the run that wrote a row."""
_PRESENT = pl.col("_was") & pl.col("_is")
"""Whether a key is on both sides."""
TOGETHER_ROWS, TOGETHER_CHUNKS = 200_000, 250
"""So many rows of both sides, of so many chunks, are compared at once: of small chunks."""
TOGETHER_BYTES = 64 << 20
"""So many bytes of small files are held meanwhile."""
_OLD, _NEW = attrgetter("old"), attrgetter("new")

Compared = tuple["ChunkCompared", dict[str, list[dict[str, Any]]], list[dict[str, Any]]]
"""What was found in a chunk, its largest changes by column and kind, and its sample."""


@dataclass(frozen=True)
class CompareTask:
    """One chunk: files that are only before, files that are only after, files that are both, and where to write."""

    chunk: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    both: tuple[str, ...]
    output: str = ""


@dataclass
class ChunkCompared:
    """What was found in one chunk; sums are text, exact, by column: before and after.

    `duplicates` says that a side has a key more than once, `unreadable` which file is missing or damaged, `unread` which could not
    be read just now, and why: nothing else of the chunk means anything then. `concealed` are the changed rows that are counted and not shown. `near` says by column how many
    values differ by no more than its tolerance, `near_rows` how many rows differ in such values alone.
    """

    chunk: str
    kinds: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    unchanged: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    sums: dict[str, list[Any]] = field(default_factory=dict)
    files: list[tuple[str, int, int]] = field(default_factory=list)
    duplicates: bool = False
    concealed: int = 0
    unreadable: str = ""
    unread: str = ""
    near: dict[str, int] = field(default_factory=dict)
    near_rows: int = 0


# --- one chunk --------------------------------------------------------------------------------------------------------


def compare(spec: CompareSpec, tasks: Sequence[CompareTask], known: Mapping[str, Held] | None = None) -> list[Compared]:
    """Compare chunks, all at once; return of each what was found, the largest changes by column and kind, and the sample.

    Of several chunks those rows are left out that are kept of none of them. `known` are files that are in memory already.
    """
    known = {} if len(tasks) == 1 else known
    try:
        return _compare_chunks(spec, tasks, _held_of(tasks) if known is None else known)
    except UNREADABLE as error:
        if len(tasks) > 1:
            return [one for task in tasks for one in compare(spec, [task])]
        if (found := _unreadable(spec, tasks[0], error)) is None:
            raise
        return [(found, {}, [])]


def _held_of(tasks: Sequence[CompareTask]) -> dict[str, Held]:
    """Return the small files of chunks."""
    paths = (path for task in tasks for path in (*task.old, *task.new, *task.both))
    return {path: file for path in paths if (file := held(path)) is not None}


def _unreadable(spec: CompareSpec, task: CompareTask, error: Exception) -> ChunkCompared | None:
    """Return which file of a chunk cannot be read; None where each can, and what was raised is no word about one."""
    for path in (*task.old, *task.new, *task.both):
        try:
            scan_file(path, spec.table, [*spec.key, *spec.values]).collect()
        except UNREADABLE as of_file:
            found = unreadable(path, of_file)
            said = f"{path}: {found.sample[0]['error']}"
            is_proven = found.rule == READ_RULE
            return ChunkCompared(task.chunk, unreadable=said if is_proven else "", unread="" if is_proven else said)
    of_store = isinstance(error, OSError) and not all(map(stores.is_local, (*task.old, *task.new, *task.both)))
    return ChunkCompared(task.chunk, unread=f"chunk {task.chunk}: {error}") if of_store else None


def _compare_chunks(spec: CompareSpec, tasks: Sequence[CompareTask], known: Mapping[str, Held]) -> list[Compared]:
    found = [ChunkCompared(task.chunk) for task in tasks]
    kept = [_KeptOfChunk(RowsKept(spec)) for _ in tasks]
    for old, new in _slices(spec, tasks, known):
        with_files = {place: one for place, one in enumerate(found) if tasks[place].old or tasks[place].new}
        every = _count(spec, with_files, _compared(spec, _joined(spec, old, new), old.schema), old, new)
        if every.height:
            _keep(spec, tasks, found, kept, every)
    _count_same(spec, tasks, found, known)
    return [(one, of.largest.largest, of.sample(spec.sample)) for one, of in zip(found, kept, strict=True)]


@dataclass(frozen=True)
class _KeptOfChunk:
    """The rows that are kept of one chunk, whether it is compared at once or by slices."""

    largest: RowsKept
    sampled: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def sample(self, number: int) -> list[dict[str, Any]]:
        """Return so many sampled rows of each kind, and which of its kind each is."""
        again = ([row | {"rank": 0} for row in rows] for rows in self.sampled.values())
        chosen = (sorted(rows, key=turn)[:number] for rows in again)
        return [row | {"rank": rank} for rows in chosen for rank, row in enumerate(rows)]


def _keep(
    spec: CompareSpec,
    tasks: Sequence[CompareTask],
    found: Sequence[ChunkCompared],
    kept: Sequence[_KeptOfChunk],
    every: pl.DataFrame,
) -> None:
    """Keep what is shown of the rows of chunks that differ, and write them where they are to be written."""
    changed = shown(spec.concealed, every, spec.key)
    if changed.height != every.height:
        for rows, sign in ((every, 1), (changed, -1)):
            for place, number in rows.group_by(PLACE).len().iter_rows():
                found[place].concealed += sign * number
    chunks = [task.chunk for task in tasks]
    largest: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for place, name, row in furthest(spec, chunks, changed):
        largest.setdefault(place, {}).setdefault(name, []).append(row)
    for place, by_name in largest.items():
        kept[place].largest.add(by_name, [])
    for place, row in sampled(spec, chunks, changed):
        kept[place].sampled[row["kind"]].append(row)
    if spec.schema:
        ordered = changed.sort([PLACE, *spec.key], maintain_order=True)
        for (place,), rows in ordered.partition_by(PLACE, as_dict=True, maintain_order=True).items():
            found[place].files.append(_write(spec, tasks[place], rows, len(found[place].files)))


def _slices(
    spec: CompareSpec, tasks: Sequence[CompareTask], known: Mapping[str, Held]
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield the rows that are only before and only after: all at once, or of one chunk that is too large by ranges of the key."""
    columns = [*spec.key, *spec.values, PRODUCER]
    old, new = ([(place, path) for place, task in enumerate(tasks) for path in of(task)] for of in (_OLD, _NEW))
    if not old and not new:
        return
    if len(tasks) > 1 or _rows_of(tasks[0]) <= SLICE_ROWS:
        yield _read(spec, old, new, columns, known), _read(spec, new, old, columns, known)
        return
    reach = {path: _ends(spec, path) for _, path in (*old, *new)}
    for begins, ends in pairwise([None, *sorted({first for first, _ in reach.values()})[1:], None]):
        sides = ([one for one in side if _may_have(*reach[one[1]], begins, ends)] for side in (old, new))
        mine, theirs = sides
        yield (
            _read(spec, mine, [*theirs, *old, *new], columns, begins=begins, ends=ends),
            _read(spec, theirs, [*mine, *old, *new], columns, begins=begins, ends=ends),
        )


def _ends(spec: CompareSpec, path: str) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the first key of a file that has rows, where a slice may begin, and the greatest; () of a local one, which is not read for it."""
    keys = scan_file(path, spec.table, spec.key)
    if stores.is_local(path):
        return keys.head(1).collect().row(0), ()
    ordered = keys.collect().sort(spec.key)
    return ordered.row(0), ordered.row(-1)


def _may_have(first: Sequence[Any], last: Sequence[Any], begins: Any, ends: Any) -> bool:
    """Whether a file may have keys of a slice; one that has a key with NULL may, since that is in no order with others."""
    if not last or None in (*first, *last):
        return True
    return (begins is None or last >= begins) and (ends is None or first < ends)


def _rows_of(task: CompareTask) -> int:
    return sum(map(rows_of, (*task.old, *task.new)))


def _read(
    spec: CompareSpec,
    files: Sequence[tuple[int, str]],
    others: Sequence[tuple[int, str]],
    columns: Sequence[str],
    known: Mapping[str, Held] | None = None,
    *,
    begins: Any = None,
    ends: Any = None,
) -> pl.DataFrame:
    """Return rows of files, each with its chunk's place, those with begins <= key < ends; no files are no rows with the columns of the others."""
    if not files:
        like = _scan(spec, stores.ending(others[0][1]), columns).with_columns(_place(0))
        return pl.DataFrame(schema=like.collect_schema())

    def wanted(place: int, path: str) -> pl.LazyFrame:
        lazy = _scan(spec, stores.source(path), columns).with_columns(_place(place))
        return lazy if begins is None and ends is None else rows_between(lazy, spec.key, begins, ends)

    if known and begins is ends is None and all(path in known for _, path in files):
        mine = [(place, known[path]) for place, path in files]
        return pl.concat(numbered(mine, lambda raw: _scan(spec, raw, columns), PLACE))
    if not all(stores.is_local(path) for _, path in files):
        # a store's files are in memory whole until they are collected: one at a time
        return pl.concat([wanted(*one).collect(engine="in-memory") for one in files])
    # of many small files the streaming engine takes seven times as long
    return pl.concat([wanted(*one) for one in files]).collect(engine="in-memory")


def _place(place: int) -> pl.Expr:
    return pl.lit(place, dtype=pl.UInt32).alias(PLACE)


def _scan(spec: CompareSpec, source: str | bytes | list[bytes], columns: Sequence[str]) -> pl.LazyFrame:
    """Return columns of a file; of a table without lineage columns nobody is said to have written a row."""
    if PRODUCER in columns and not _has_producer(spec.table):
        own = [name for name in columns if name != PRODUCER]
        return scan(source, spec.table, own).with_columns(pl.lit(None, dtype=pl.String).alias(PRODUCER))
    return scan(source, spec.table, columns)


@cache
def _has_producer(table: str) -> bool:
    return (
        not table or PRODUCER in Schema.model_validate_json(table).column_names
    )  # without a schema files have what they have


def _joined(spec: CompareSpec, old: pl.DataFrame, new: pl.DataFrame) -> pl.LazyFrame:
    """Return each key of a chunk once with its values before and after; `_was` and `_is` say on which side it is."""
    before = old.lazy().with_columns(_was=pl.lit(True))
    after = new.lazy().drop(PRODUCER).with_columns(_is=pl.lit(True))
    rows = before.join(after, on=[PLACE, *spec.key], how="full", coalesce=True, suffix=NEW, nulls_equal=True)
    return rows.with_columns(pl.col("_was", "_is").fill_null(False))


def _count(
    spec: CompareSpec, found: Mapping[int, ChunkCompared], rows: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame
) -> pl.DataFrame:
    """Add up counts and sums of each chunk, by its place; return the rows that differ, each with its `KIND`."""
    totals = _totals(spec, rows)
    none = rows.clear().select(totals).row(0, named=True)
    if len(found) == 1:  # of one chunk there is nothing to be told apart, which takes longer than to count
        (place,) = found
        by_place = {place: rows.select(totals).row(0, named=True)}
        before, after = {place: old.height}, {place: new.height}
    else:
        by_place = {row[PLACE]: row for row in rows.group_by(PLACE).agg(totals).iter_rows(named=True)}
        before, after = (dict(side.group_by(PLACE).len().iter_rows()) for side in (old, new))
    for place, one in found.items():
        _add(spec, one, by_place.get(place, none), rows.schema)
        one.duplicates |= _repeats(by_place.get(place, none), before.get(place, 0), after.get(place, 0))
    coming_or_going = pl.when(~pl.col("_was")).then(pl.lit(ADDED)).when(~pl.col("_is")).then(pl.lit(REMOVED))
    return rows.filter(~_PRESENT | pl.col("_differs")).with_columns(
        coming_or_going.otherwise(pl.lit(CHANGED)).alias(KIND)
    )


def _totals(spec: CompareSpec, rows: pl.DataFrame) -> list[pl.Expr]:
    """Return what is counted and added up of the rows of a chunk."""
    numbers = numeric(rows.select(spec.values))
    return [
        pl.col("_is").filter(~pl.col("_was")).len().alias(ADDED),
        pl.col("_was").filter(~pl.col("_is")).len().alias(REMOVED),
        pl.col("_differs").sum().alias(CHANGED),
        _PRESENT.sum().alias("_present"),
        *(pl.col(f"_differs_{name}").sum() for name in spec.values),
        *(pl.col(f"_near_{name}").sum() for name in spec.tolerances),
        pl.col("_near").sum(),
        *(sum_of(name, rows.schema[name]).alias(f"_old_{name}") for name in numbers),
        *(sum_of(f"{name}{NEW}", rows.schema[name]).alias(f"_new_{name}") for name in numbers),
    ]


def _repeats(totals: Mapping[str, Any], old: int, new: int) -> bool:
    """Whether a key is on a side more than once: then there are more pairs than rows."""
    both: int = totals["_present"]
    return bool(both + totals[ADDED] != new or both + totals[REMOVED] != old)


def _add(spec: CompareSpec, found: ChunkCompared, totals: Mapping[str, Any], kinds: pl.Schema) -> None:
    """Add counts and sums to those of a chunk."""
    for kind in KINDS:
        found.kinds[kind] += totals[kind]
    found.unchanged += totals["_present"] - totals[CHANGED]
    for name in spec.values:
        found.columns[name] = found.columns.get(name, 0) + totals[f"_differs_{name}"]
    for name in spec.tolerances:
        found.near[name] = found.near.get(name, 0) + totals[f"_near_{name}"]
    found.near_rows += totals["_near"]
    for name in (name for name in spec.values if f"_old_{name}" in totals):
        _add_sums(found, name, *(exact(totals[f"_{side}_{name}"], kinds[name]) for side in ("old", "new")))


def _compared(spec: CompareSpec, rows: pl.LazyFrame, kinds: pl.Schema) -> pl.DataFrame:
    """Say of each row in `_differs`, and of each of its values, whether it differs; of those within a tolerance in `_near_`."""
    said, present = [], _PRESENT
    for name in spec.values:
        kind, tolerance = kinds[name], spec.tolerances.get(name)
        apart = present & differs(name, f"{name}{NEW}", kind, tolerance)
        said.append(apart.alias(f"_differs_{name}"))
        if tolerance is not None:
            said.append((present & differs(name, f"{name}{NEW}", kind) & ~apart).alias(f"_near_{name}"))
    any_of = pl.any_horizontal
    rows = rows.with_columns(said).with_columns(
        _differs=any_of(f"_differs_{name}" for name in spec.values) if spec.values else False,
        _near=any_of(f"_near_{name}" for name in spec.tolerances) if spec.tolerances else False,
    )
    return rows.with_columns(_near=pl.col("_near") & ~pl.col("_differs")).collect()


def _add_sums(found: ChunkCompared, name: str, before: Any, after: Any) -> None:
    known = found.sums.get(name)
    found.sums[name] = [before, after] if known is None else [plus(known[0], before), plus(known[1], after)]


def _count_same(
    spec: CompareSpec, tasks: Sequence[CompareTask], found: Sequence[ChunkCompared], known: Mapping[str, Held]
) -> None:
    """Add the rows of files that are before and after: what they sum up to is read, nothing is compared."""
    every = [(place, path) for place, task in enumerate(tasks) for path in task.both]
    small = {path: known[path] for _, path in every if spec.values and path in known and known[path].rows}
    at_once = [(place, small[path]) for place, path in every if path in small]
    for place, file in at_once:
        found[place].unchanged += file.footer.num_rows
    for rows in numbered(at_once, lambda raw: scan(raw, spec.table, spec.values), PLACE):
        for place, sums in sums_by(rows, PLACE).items():
            for name, total in sums.items():
                _add_sums(found[place], name, total, total)
    for place, path in (one for one in every if one[1] not in small):
        lazy = scan_file(path, spec.table, spec.values)
        found[place].unchanged += rows_of(path)
        for name, total in sums_of(lazy).items():
            _add_sums(found[place], name, total, total)


def _write(spec: CompareSpec, task: CompareTask, changed: pl.DataFrame, number: int) -> tuple[str, int, int]:
    """Write changed rows as a data file of the changes table, in the place that is theirs whoever writes them.

    The file appears whole or not at all, so that what a killed comparison has left is written over by the next.
    """
    differing = [pl.when(f"_differs_{name}").then(pl.lit(name)) for name in spec.values]
    rows = changed.select(
        pl.lit(spec.run_id).alias("run_id"),
        pl.lit(task.chunk).alias("chunk"),
        pl.col(KIND).alias("kind"),
        pl.concat_list(differing).list.drop_nulls().alias("changed_columns")
        if differing
        else pl.lit([], dtype=pl.List(pl.String)).alias("changed_columns"),
        *(pl.col(name).alias(own) for name, own in key_columns(spec.key, spec.values).items()),
        *(pl.col(name).alias(f"{name}_old") for name in spec.values),
        *(pl.col(f"{name}{NEW}").alias(f"{name}_new") for name in spec.values),
        pl.col(PRODUCER).alias("run_id_old"),
    )
    path = f"{task.output}/{task.chunk}-{number}.parquet"
    with stores.output(path) as stream:
        pq.write_table(table_of(rows, Schema.model_validate_json(spec.schema)), stream, compression="zstd")
    return path, rows.height, stores.size_of(path)


def comparing(spec: CompareSpec) -> ChunkWork[CompareTask, ChunkCompared | RowsOfAll]:
    """Return the work of comparing chunks: a result each, and at last the rows that are kept of all of them.

    How many rows those are does not depend on how many changed.
    """
    return ChunkWork(partial(_compare, spec), CompareTask, ChunkCompared | RowsOfAll)


def _compare(spec: CompareSpec, tasks: Iterable[CompareTask]) -> Iterator[ChunkCompared | RowsOfAll]:
    kept = RowsKept(spec)
    for together, known in _groups(tasks):
        with stores.each_read_once():
            compared = compare(spec, together, known)
        kept.add(*_all_of(compared))
        for found, _, _ in compared:
            found.sums = {name: [str(value) for value in pair] for name, pair in found.sums.items()}
            yield found
    yield RowsOfAll(kept.largest, kept.sample)


def _all_of(compared: Sequence[Compared]) -> tuple[dict[str, list[dict[str, Any]]], list[dict[str, Any]]]:
    """Return the rows that are kept of chunks, of all of them together."""
    largest: dict[str, list[dict[str, Any]]] = {}
    for _, of_chunk, _ in compared:
        for name, rows in of_chunk.items():
            largest.setdefault(name, []).extend(rows)
    return largest, [row for _, _, sample in compared for row in sample]


def _groups(tasks: Iterable[CompareTask]) -> Iterator[tuple[list[CompareTask], dict[str, Held]]]:
    """Yield tasks that are done together, with their small files: each step takes its time, of a hundred rows as of a hundred thousand."""
    group: list[CompareTask] = []
    known: dict[str, Held] = {}
    of_group = in_memory = 0
    for task in tasks:
        rows, files = _rows_if_readable(task)
        size = sum(len(file.raw) for file in files.values())
        is_full = of_group + rows > TOGETHER_ROWS or len(group) == TOGETHER_CHUNKS or in_memory + size > TOGETHER_BYTES
        if group and is_full:
            yield group, known
            group, known, of_group, in_memory = [], {}, 0, 0
        group.append(task)
        known |= files
        of_group, in_memory = of_group + rows, in_memory + size
    if group:
        yield group, known


def _rows_if_readable(task: CompareTask) -> tuple[int, dict[str, Held]]:
    """Return the rows of a task, and its small files; so many rows that it is done alone, if a file cannot be read or they are too large."""
    files: dict[str, Held] = {}
    rows = size = 0
    try:
        for path in (*task.old, *task.new, *task.both):
            file = held(path)
            rows += rows_of(path) if file is None else file.footer.num_rows
            if file is not None:
                files[path] = file
                size += len(file.raw)
            if rows > TOGETHER_ROWS or size > TOGETHER_BYTES:
                return TOGETHER_ROWS + 1, {}
    except UNREADABLE:
        return TOGETHER_ROWS + 1, {}
    return rows, files
