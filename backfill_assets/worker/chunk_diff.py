"""One chunk before and after a run, compared row by row by its key. Runs in Spark's workers.

Put here what is done to the files of one chunk and what is kept of it: counts, sums, a bounded number of rows, and a file with every
changed row where one is asked for. Which files are before and which after is `review.diff`'s. Imports neither Dagster nor PySpark's SQL.

A chunk is compared with itself only, so that no row leaves the worker that has read it. Where a table's key is without
its day, a row that moved to another chunk is one removed there and one added here. Memory is one chunk before and
after; one of more than `SLICE_ROWS` rows is compared by ranges of its key, cut where its files begin.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache, partial
from hashlib import sha256
from itertools import pairwise
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from backfill_assets.declarations.column_types import is_floating
from backfill_assets.worker.chunk_corrections import ADDED, CHANGED, REMOVED
from backfill_assets.worker.columns import UNREADABLE, rows_of, scan_file, table_of
from backfill_assets.worker.key_order import rows_between
from backfill_assets.worker.nested import as_text, differs
from backfill_assets.worker.sums import difference, exact, numeric, plus, sum_of, sums_of
from backfill_assets.worker.violations import shown_row
from resources.spark.chunk_work import ChunkWork

KINDS = (ADDED, REMOVED, CHANGED)
SLICE_ROWS = 8_000_000
"""Rows of both sides of a chunk that are compared at once: some 1 GB."""
SAMPLE_ROWS = 500
"""The most rows of a sample, however many chunks there are."""
PRODUCER = "run_id"
"""Lineage column of the run that wrote a row."""
_NEW = "__new"
_PRESENT = pl.col("_was") & pl.col("_is")
"""Whether a key is on both sides."""
_MOST_DIGITS = 38
_MASKED = "^[0-9a-f]{64}$"
"""What the mask HASH makes of a value: it is not hashed again."""


@dataclass(frozen=True)
class Concealed:
    """What the policy keeps from being shown of rows, whatever an earlier run wrote: they are counted all the same.

    Attributes:
        subject: the column that says whose a row is; empty: none does.
        erased: SHA-256 (hex) of the subjects whose rows are not shown.
        masks: by column the mask (`HASH`, `CONSTANT` or `NULL`) and its constant, for values of the old side: the new side
            was computed from masked ones.
        further: other columns that say whose a row is, each with its erased subjects: of sources beside the first.
    """

    subject: str = ""
    erased: frozenset[str] = frozenset()
    masks: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    further: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def by_column(self) -> dict[str, frozenset[str]]:
        """The erased subjects by the column that names them; no column of which nobody is erased."""
        every = {self.subject: self.erased, **self.further}
        return {column: subjects for column, subjects in every.items() if column and subjects}


@dataclass(frozen=True)
class CompareSpec:
    """How the chunks of one run are compared.

    Attributes:
        run_id: the run.
        key: columns that identify a row.
        values: the columns that are compared.
        largest: how many of the largest changes are kept, by column and kind of change.
        sample: how many rows of each kind of change are sampled of each chunk.
        schema: of the changes table, as Iceberg JSON; empty: changed rows are not written.
        concealed: what is not shown of the rows that are kept or written.
        table: schema of the target, as Iceberg JSON: by it a column is found that a file has under another name, or lacks,
            because it was written before the table had it.
        tolerances: of columns of floating point: values that differ by no more are the same. They are counted.
    """

    run_id: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    largest: int
    sample: int
    schema: str = ""
    concealed: Concealed = field(default_factory=Concealed)
    table: str = ""
    tolerances: Mapping[str, float] = field(default_factory=dict)


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

    `duplicates` says that a side has a key more than once, `unreadable` which file cannot be read, and why: nothing else of
    the chunk means anything then. `concealed` are the changed rows that are counted and not shown. `near` says by column how many
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
    near: dict[str, int] = field(default_factory=dict)
    near_rows: int = 0


@dataclass(frozen=True)
class RowsOfAll:
    """The rows that one worker keeps of all the chunks that it has compared: the largest changes, and a sample."""

    largest: dict[str, list[dict[str, Any]]]
    sample: list[dict[str, Any]]


@dataclass
class RowsKept:
    """Chooses the rows that are kept of all chunks."""

    spec: CompareSpec
    largest: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    sample: list[dict[str, Any]] = field(default_factory=list)

    def add(self, largest: Mapping[str, list[dict[str, Any]]], sample: Sequence[dict[str, Any]]) -> None:
        """Add rows, and keep those that count."""
        for place, rows in largest.items():
            self.largest[place] = largest_of([*self.largest.get(place, []), *rows], self.spec.largest)
        self.sample = spread([*self.sample, *sample], SAMPLE_ROWS)


def largest_of(rows: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return the rows that moved furthest, furthest first; equal ones by their key."""
    return sorted(rows, key=lambda row: (-abs(float(row["by"])), json.dumps(row["key"])))[:number]


def spread(rows: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return at most `number` rows: each kind of change in turn, the first of every chunk before the second of any."""
    by_kind = {kind: sorted((r for r in rows if r["kind"] == kind), key=_turn) for kind in KINDS}
    turns = ((place, kind) for place in range(len(rows)) for kind in KINDS if place < len(by_kind[kind]))
    return [by_kind[kind][place] for _, (place, kind) in zip(range(number), turns, strict=False)]


def _turn(row: Mapping[str, Any]) -> tuple[int, int, str]:
    return row["rank"], row["hash"], json.dumps(row["key"])


# --- one chunk --------------------------------------------------------------------------------------------------------


def compare(spec: CompareSpec, task: CompareTask) -> tuple[ChunkCompared, dict[str, list[dict[str, Any]]], list[Any]]:
    """Compare a chunk; return what was found, the largest changes by column and kind, and the sample."""
    try:
        return _compare_chunk(spec, task)
    except UNREADABLE:
        for path in (*task.old, *task.new, *task.both):
            try:
                scan_file(path, spec.table, [*spec.key, *spec.values]).collect()
            except UNREADABLE as error:
                return ChunkCompared(task.chunk, unreadable=f"{path}: {type(error).__name__}: {error}"), {}, []
        raise


def _compare_chunk(
    spec: CompareSpec, task: CompareTask
) -> tuple[ChunkCompared, dict[str, list[dict[str, Any]]], list[Any]]:
    found = ChunkCompared(task.chunk)
    largest = RowsKept(spec)
    sampled: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for old, new in _slices(spec, task):
        every = _count(spec, found, _compared(spec, _joined(spec, old, new), old.schema), old.height, new.height)
        if not every.height:
            continue  # each step below takes its time, also of no rows
        changed = _shown(spec.concealed, every, spec.key).sort(spec.key)
        found.concealed += every.height - changed.height
        for kind in KINDS:
            mine = changed.filter(pl.col("kind") == kind)
            largest.add(_largest(spec, task.chunk, kind, mine), [])
            sampled[kind] += _sampled(spec, task.chunk, mine)
        if spec.schema and changed.height:
            found.files.append(_write(spec, task, changed, len(found.files)))
    _count_same(spec, found, task.both)
    sample = []
    for rows_of_kind in sampled.values():
        chosen = sorted(rows_of_kind, key=_turn)[: spec.sample]
        sample += [row | {"rank": rank} for rank, row in enumerate(chosen)]
    return found, largest.largest, sample


def _slices(spec: CompareSpec, task: CompareTask) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Yield the rows that are only before and only after: all at once, or by ranges of the key."""
    columns = [*spec.key, *spec.values, PRODUCER]
    if not task.old and not task.new:
        return
    if sum(map(rows_of, (*task.old, *task.new))) <= SLICE_ROWS:
        yield _read(spec, task.old, task.new, columns), _read(spec, task.new, task.old, columns)
        return
    firsts = {scan_file(path, spec.table, spec.key).head(1).collect().row(0) for path in (*task.old, *task.new)}
    for begins, ends in pairwise([None, *sorted(firsts)[1:], None]):
        yield (
            _read(spec, task.old, task.new, columns, begins=begins, ends=ends),
            _read(spec, task.new, task.old, columns, begins=begins, ends=ends),
        )


def _read(
    spec: CompareSpec,
    paths: Sequence[str],
    others: Sequence[str],
    columns: Sequence[str],
    *,
    begins: Any = None,
    ends: Any = None,
) -> pl.DataFrame:
    """Return rows of files, those with begins <= key < ends; no files are no rows with the columns of the others."""
    if not paths:
        return _scan(spec, others[0], columns).head(0).collect()
    frames = [_scan(spec, path, columns) for path in paths]
    lazy = frames[0] if len(frames) == 1 else pl.concat(frames)
    return (lazy if begins is None and ends is None else rows_between(lazy, spec.key, begins, ends)).collect()


def _scan(spec: CompareSpec, path: str, columns: Sequence[str]) -> pl.LazyFrame:
    """Return columns of a file; of a table without lineage columns nobody is said to have written a row."""
    if PRODUCER in columns and not _has_producer(spec.table):
        own = [name for name in columns if name != PRODUCER]
        return scan_file(path, spec.table, own).with_columns(pl.lit(None, dtype=pl.String).alias(PRODUCER))
    return scan_file(path, spec.table, columns)


@cache
def _has_producer(table: str) -> bool:
    return (
        not table or PRODUCER in Schema.model_validate_json(table).column_names
    )  # without a schema files have what they have


def _joined(spec: CompareSpec, old: pl.DataFrame, new: pl.DataFrame) -> pl.LazyFrame:
    """Return each key once with its values before and after; `_was` and `_is` say on which side it is."""
    before = old.lazy().with_columns(_was=pl.lit(True))
    after = new.lazy().drop(PRODUCER).with_columns(_is=pl.lit(True))
    rows = before.join(after, on=spec.key, how="full", coalesce=True, suffix=_NEW, nulls_equal=True)
    return rows.with_columns(pl.col("_was", "_is").fill_null(False))


def _count(spec: CompareSpec, found: ChunkCompared, rows: pl.DataFrame, old: int, new: int) -> pl.DataFrame:
    """Add up counts and sums; return the rows that differ, with their `kind`."""
    present = _PRESENT
    numbers = numeric(rows.select(spec.values))
    totals = rows.select(
        pl.col("_is").filter(~pl.col("_was")).len().alias(ADDED),
        pl.col("_was").filter(~pl.col("_is")).len().alias(REMOVED),
        pl.col("_differs").sum().alias(CHANGED),
        present.sum().alias("_present"),
        *(pl.col(f"_differs_{name}").sum() for name in spec.values),
        *(pl.col(f"_near_{name}").sum() for name in spec.tolerances),
        pl.col("_near").sum(),
        *(sum_of(name, rows.schema[name]).alias(f"_old_{name}") for name in numbers),
        *(sum_of(f"{name}{_NEW}", rows.schema[name]).alias(f"_new_{name}") for name in numbers),
    ).row(0, named=True)
    found.duplicates |= totals["_present"] + totals[ADDED] != new or totals["_present"] + totals[REMOVED] != old
    for kind in KINDS:
        found.kinds[kind] += totals[kind]
    found.unchanged += totals["_present"] - totals[CHANGED]
    for name in spec.values:
        found.columns[name] = found.columns.get(name, 0) + totals[f"_differs_{name}"]
    for name in spec.tolerances:
        found.near[name] = found.near.get(name, 0) + totals[f"_near_{name}"]
    found.near_rows += totals["_near"]
    for name in numbers:
        _add_sums(found, name, *(exact(totals[f"_{side}_{name}"], rows.schema[name]) for side in ("old", "new")))
    coming_or_going = pl.when(~pl.col("_was")).then(pl.lit(ADDED)).when(~pl.col("_is")).then(pl.lit(REMOVED))
    return rows.filter(~present | pl.col("_differs")).with_columns(kind=coming_or_going.otherwise(pl.lit(CHANGED)))


def _compared(spec: CompareSpec, rows: pl.LazyFrame, kinds: pl.Schema) -> pl.DataFrame:
    """Say of each row in `_differs`, and of each of its values, whether it differs; of those within a tolerance in `_near_`."""
    said, present = [], _PRESENT
    for name in spec.values:
        kind, tolerance = kinds[name], spec.tolerances.get(name)
        apart = present & differs(name, f"{name}{_NEW}", kind, tolerance)
        said.append(apart.alias(f"_differs_{name}"))
        if tolerance is not None:
            said.append((present & differs(name, f"{name}{_NEW}", kind) & ~apart).alias(f"_near_{name}"))
    any_of = pl.any_horizontal
    rows = rows.with_columns(said).with_columns(
        _differs=any_of(f"_differs_{name}" for name in spec.values) if spec.values else False,
        _near=any_of(f"_near_{name}" for name in spec.tolerances) if spec.tolerances else False,
    )
    return rows.with_columns(_near=pl.col("_near") & ~pl.col("_differs")).collect()


def _add_sums(found: ChunkCompared, name: str, before: Any, after: Any) -> None:
    known = found.sums.get(name)
    found.sums[name] = [before, after] if known is None else [plus(known[0], before), plus(known[1], after)]


def _count_same(spec: CompareSpec, found: ChunkCompared, paths: Sequence[str]) -> None:
    """Add the rows of files that are before and after: what they sum up to is read, nothing is compared."""
    for path in paths:
        lazy = scan_file(path, spec.table, spec.values)
        found.unchanged += rows_of(path)
        for name, total in sums_of(lazy).items():
            _add_sums(found, name, total, total)


# --- the rows that are kept -------------------------------------------------------------------------------------------


def _shown(concealed: Concealed, changed: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return changed rows as they may be shown: none of an erased subject, old values masked."""
    listed = [(name, erased) for column, erased in concealed.by_column.items() for name in (column, f"{column}{_NEW}")]
    for column, hashes in listed:
        if column not in changed.columns:  # the new side of a key is the old one
            continue
        subjects = changed[column].cast(pl.String).unique().drop_nulls()
        erased = [one for one in subjects if sha256(one.encode()).hexdigest() in hashes]
        changed = changed.filter(~pl.col(column).cast(pl.String).is_in(erased).fill_null(False))
    for name, (mask, constant) in concealed.masks.items():
        # a key that both sides have was masked before, or they would not have it both
        only_old = pl.col("kind") == REMOVED if name in key else pl.lit(True)
        changed = changed.with_columns(
            pl.when(only_old)
            .then(_mask(name, changed.schema[name], mask, constant))
            .otherwise(pl.col(name))
            .alias(name)
        )
    return changed


def _mask(name: str, kind: pl.DataType, mask: str, constant: str | None) -> pl.Expr:
    """Return a column as `old_data` masks it before a transform sees it."""
    value = pl.col(name)
    if kind != pl.String:
        return pl.lit(None, dtype=kind)
    if mask == "CONSTANT":
        return pl.when(value.is_not_null()).then(pl.lit(constant))
    if mask != "HASH":
        return pl.lit(None, dtype=kind)
    hashed = value.map_elements(lambda text: sha256(text.encode()).hexdigest(), return_dtype=pl.String)
    return pl.when(value.str.contains(_MASKED)).then(value).otherwise(hashed)


def _moved(name: str, kind: pl.DataType) -> tuple[pl.Expr, str] | None:
    """Return by how much a column moved and in what, where that can be said: of a number, no row counts as 0."""
    old, new = pl.col(name), pl.col(f"{name}{_NEW}")
    if kind.is_integer():
        return new.cast(pl.Int128).fill_null(0) - old.cast(pl.Int128).fill_null(0), ""
    if isinstance(kind, pl.Decimal) and (kind.precision or _MOST_DIGITS) == _MOST_DIGITS:
        # the difference may have a digit more than a decimal: which moved furthest is told from its first 15 digits
        return new.fill_null(0).cast(pl.Float64) - old.fill_null(0).cast(pl.Float64), ""
    if is_floating(kind):  # of what is no number, or without an end, nobody can say how far it moved
        by = new.fill_null(0).cast(pl.Float64) - old.fill_null(0).cast(pl.Float64)
        return pl.when(by.is_finite()).then(by), ""
    if kind.is_numeric():
        return new.fill_null(0) - old.fill_null(0), ""
    if kind == pl.Date:
        return (new - old).dt.total_days(), "days"
    if isinstance(kind, pl.Datetime):
        return (new - old).dt.total_seconds(), "seconds"
    return None


def _largest(spec: CompareSpec, chunk: str, kind: str, rows: pl.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of one kind, given in key order, that moved furthest, by `<column>|<kind>`."""
    largest = {}
    for name in spec.values if rows.height and spec.largest else ():
        moved = _moved(name, rows.schema[name])
        if moved is None:
            continue
        by, unit = moved
        distances = rows.select(by.abs()).to_series()
        furthest = distances.max()
        if not furthest:  # nothing moved, or it cannot be said how far
            continue
        limit = distances.top_k(spec.largest).min()
        chosen = distances.is_between(limit, furthest) & (distances != 0)
        beyond = (chosen & (distances > limit)).arg_true()
        ties = (chosen & (distances == limit)).arg_true().head(spec.largest - len(beyond))
        top = (
            rows[pl.concat([beyond, ties])]
            .with_columns(_by=by)
            .sort(pl.col("_by").abs(), descending=True, maintain_order=True)
        )
        largest[f"{name}|{kind}"] = [
            _row(spec, chunk, row) | {"column": name, "by": _said(row, name), "unit": unit}
            for row in top.iter_rows(named=True)
        ]
    return largest


def _said(row: Mapping[str, Any], name: str) -> str:
    """Return by how much a value moved; of decimals with every digit."""
    old, new = row[name], row[f"{name}{_NEW}"]
    if isinstance(old, Decimal) or isinstance(new, Decimal):
        return difference(str(old or Decimal(0)), str(new or Decimal(0)))
    return str(row["_by"])


def _sampled(spec: CompareSpec, chunk: str, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the rows, given in key order, whose keys have the smallest hashes: the same whoever asks, and no particular ones."""
    if not rows.height or not spec.sample:
        return []
    parts = [as_text(pl.col(name), rows.schema[name]).fill_null("") for name in spec.key]
    texts = rows.select(pl.concat_str(parts, separator="\x1f")).to_series().to_list()
    hashes = pl.Series([zlib.crc32(text.encode()) for text in texts], dtype=pl.UInt64)
    in_order = hashes * 2**32 + pl.int_range(len(hashes), dtype=pl.UInt64, eager=True)  # equal hashes: the smaller key
    chosen = in_order.arg_sort().head(spec.sample)
    places = zip(hashes[chosen], rows[chosen].iter_rows(named=True), strict=True)
    return [_row(spec, chunk, row) | {"hash": number, "rank": 0} for number, row in places]


def _row(spec: CompareSpec, chunk: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a changed row as JSON can hold it: of one that differs the columns that do, else all of them."""
    kind = row["kind"]
    names = [name for name in spec.values if kind != CHANGED or row[f"_differs_{name}"]]
    return {
        "chunk": chunk,
        "kind": kind,
        "key": shown_row({name: row[name] for name in spec.key}),
        "old": None if kind == ADDED else shown_row({name: row[name] for name in names}),
        "new": None if kind == REMOVED else shown_row({name: row[f"{name}{_NEW}"] for name in names}),
    }


def _write(spec: CompareSpec, task: CompareTask, changed: pl.DataFrame, number: int) -> tuple[str, int, int]:
    """Write changed rows as a data file of the changes table, in the place that is theirs whoever writes them.

    The file appears whole or not at all, so that what a killed comparison has left is written over by the next.
    """
    differing = [pl.when(f"_differs_{name}").then(pl.lit(name)) for name in spec.values]
    rows = changed.select(
        pl.lit(spec.run_id).alias("run_id"),
        pl.lit(task.chunk).alias("chunk"),
        "kind",
        pl.concat_list(differing).list.drop_nulls().alias("changed_columns")
        if differing
        else pl.lit([], dtype=pl.List(pl.String)).alias("changed_columns"),
        *spec.key,
        *(pl.col(name).alias(f"{name}_old") for name in spec.values),
        *(pl.col(f"{name}{_NEW}").alias(f"{name}_new") for name in spec.values),
        pl.col(PRODUCER).alias("run_id_old"),
    )
    path = f"{task.output}/{task.chunk}-{number}.parquet"
    filesystem, name = pafs.FileSystem.from_uri(path) if "://" in path else (pafs.LocalFileSystem(), path)
    filesystem.create_dir(name.rsplit("/", 1)[0], recursive=True)
    partial = f"{name}.{uuid4().hex}.partial"
    table = table_of(rows, Schema.model_validate_json(spec.schema))
    pq.write_table(table, partial, filesystem=filesystem, compression="zstd")
    filesystem.move(partial, name)
    return path, rows.height, filesystem.get_file_info(name).size


def comparing(spec: CompareSpec) -> ChunkWork[CompareTask, ChunkCompared | RowsOfAll]:
    """Return the work of comparing chunks: a result each, and at last the rows that are kept of all of them.

    How many rows those are does not depend on how many changed.
    """
    return ChunkWork(partial(_compare, spec), CompareTask, ChunkCompared | RowsOfAll)


def _compare(spec: CompareSpec, tasks: Iterable[CompareTask]) -> Iterator[ChunkCompared | RowsOfAll]:
    kept = RowsKept(spec)
    for task in tasks:
        found, largest, sample = compare(spec, task)
        kept.add(largest, sample)
        found.sums = {name: [str(value) for value in pair] for name, pair in found.sums.items()}
        yield found
    yield RowsOfAll(kept.largest, kept.sample)
