"""What is kept of the rows that a run changes: those that moved furthest, and a sample, as they may be shown.

Put here how rows are chosen and concealed, and how one becomes JSON. How the rows of a chunk are compared is `chunk_diff`'s. Runs in
Spark's workers: imports neither Dagster nor PySpark's SQL.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from hashlib import sha256
from typing import Any

import polars as pl

from backfill_assets.declarations.column_types import is_floating
from backfill_assets.worker.chunk_corrections import ADDED, CHANGED, REMOVED
from backfill_assets.worker.nested import as_text
from backfill_assets.worker.sums import difference
from backfill_assets.worker.violations import shown_row

KINDS = (ADDED, REMOVED, CHANGED)
SAMPLE_ROWS = 500
"""The most rows of a sample, however many chunks there are."""
NEW = "__new"
"""What a column is called, after its own name, as it is after the run."""
KIND = "__kind"
"""Whether a row came, went or changed, as long as its columns have the names of the target's."""
PLACE = "__place"
"""Which of the chunks that are compared at once a row is of."""
_AT = "__at"
_MANY = 1_000
_NEARLY = 1 - 1e-9
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
    by_kind = {kind: sorted((r for r in rows if r["kind"] == kind), key=turn) for kind in KINDS}
    turns = ((place, kind) for place in range(len(rows)) for kind in KINDS if place < len(by_kind[kind]))
    return [by_kind[kind][place] for _, (place, kind) in zip(range(number), turns, strict=False)]


def turn(row: Mapping[str, Any]) -> tuple[int, int, str]:
    """Return when the turn of a sampled row comes among those of its kind."""
    return row["rank"], row["hash"], json.dumps(row["key"])


def key_columns(key: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Return what the columns of a key are called in the table of changes, beside its own and those of values before and after."""
    taken = {"run_id", "chunk", "kind", "changed_columns", "run_id_old"}
    taken |= {f"{name}_{side}" for name in values for side in ("old", "new")}
    return {name: f"{name}_key" if name in taken else name for name in key}


def shown(concealed: Concealed, changed: pl.DataFrame, key: Sequence[str]) -> pl.DataFrame:
    """Return changed rows as they may be shown: none of an erased subject, old values masked."""
    listed = [(name, erased) for column, erased in concealed.by_column.items() for name in (column, f"{column}{NEW}")]
    for column, hashes in listed:
        if column not in changed.columns:  # the new side of a key is the old one
            continue
        subjects = changed[column].cast(pl.String).unique().drop_nulls()
        erased = [one for one in subjects if sha256(one.encode()).hexdigest() in hashes]
        changed = changed.filter(~pl.col(column).cast(pl.String).is_in(erased).fill_null(False))
    for name, (mask, constant) in concealed.masks.items():
        # a key that both sides have was masked before, or they would not have it both
        only_old = pl.col(KIND) == REMOVED if name in key else pl.lit(True)
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
    old, new = pl.col(name), pl.col(f"{name}{NEW}")
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


def furthest(spec: CompareSpec, chunks: Sequence[str], rows: pl.DataFrame) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Yield the changed rows of chunks that moved furthest: the number of the chunk, `<column>|<kind>`, and the row.

    Of each chunk they are as many as are kept of all; where there are several chunks, those are left out that can be none of these.
    """
    moved = {name: found for name in spec.values if (found := _moved(name, rows.schema[name])) is not None}
    if not moved or not spec.largest:
        return
    keys = rows.select(PLACE, *spec.key, KIND).with_row_index(_AT)
    distances = {name: rows.select(_by=by).to_series() for name, (by, _) in moved.items()}
    for kind in KINDS:
        mine = keys.filter(pl.col(KIND) == kind)
        for name, (_, unit) in moved.items() if mine.height else ():
            by = distances[name].gather(mine[_AT])
            if not by.abs().max():  # nothing moved, or it cannot be said how far
                continue
            chosen = _top(spec, mine, by, several=len(chunks) > 1, kind=rows.schema[name])
            top = rows[chosen[_AT]].insert_column(0, chosen["_by"])
            if len(chunks) > 1:
                top = _first_of_all(spec, top, name)
            for row in top.iter_rows(named=True):
                said = {"column": name, "by": _said(row, name), "unit": unit}
                yield row[PLACE], f"{name}|{kind}", _row(spec, chunks[row[PLACE]], row) | said


def _top(spec: CompareSpec, rows: pl.DataFrame, by: pl.Series, *, several: bool, kind: pl.DataType) -> pl.DataFrame:
    """Return the rows of each chunk that moved furthest, with `_by`: of equal ones those of the smaller keys."""
    distances = by.abs()
    beyond = distances != 0  # NULL where it cannot be said how far
    limit: Any = distances.top_k(spec.largest).min()
    if not several:
        beyond &= (distances > limit) | (_may_be_first(spec, rows, distances == limit) & (distances == limit))
    elif not (isinstance(kind, pl.Decimal) and distances.dtype.is_float()):
        # rows of all chunks are put in order by what Python's floats say: what may be as far to these is not left out
        beyond &= distances.cast(pl.Float64) >= float(limit) * _NEARLY
    at = beyond.arg_true()
    order = [pl.col(PLACE), pl.col("_by").abs(), *map(pl.col, spec.key)]
    descending = [False, True, *(False for _ in spec.key)]
    chosen = rows[at].insert_column(0, by.gather(at)).sort(order, descending=descending, maintain_order=True)
    return chosen.group_by(PLACE, maintain_order=True).head(spec.largest) if several else chosen.head(spec.largest)


def _may_be_first(spec: CompareSpec, rows: pl.DataFrame, equal: pl.Series) -> pl.Series | bool:
    """Return which of very many equal rows may have one of the smallest keys, by the first column of these: few are put in order then."""
    first = rows[spec.key[0]]
    is_compared = first.dtype.is_integer() or first.dtype.is_temporal() or first.dtype == pl.String
    if rows.height <= _MANY or first.null_count() or not is_compared:
        return True
    return first <= first.filter(equal).bottom_k(spec.largest).max()


def _first_of_all(spec: CompareSpec, top: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return of rows of several chunks those that are kept of all, in the order of their chunks."""
    if top.height <= spec.largest:
        return top
    light = top.select(*spec.key, name, f"{name}{NEW}", "_by").iter_rows(named=True)
    told = [{"by": _said(row, name), "key": _key(spec, row), "at": at} for at, row in enumerate(light)]
    return top[sorted(row["at"] for row in largest_of(told, spec.largest))]


def _said(row: Mapping[str, Any], name: str) -> str:
    """Return by how much a value moved; of decimals with every digit."""
    old, new = row[name], row[f"{name}{NEW}"]
    if isinstance(old, Decimal) or isinstance(new, Decimal):
        return difference(str(old or Decimal(0)), str(new or Decimal(0)))
    return str(row["_by"])


def sampled(spec: CompareSpec, chunks: Sequence[str], rows: pl.DataFrame) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of a chunk and the changed rows of it whose keys have the smallest hashes: the same whoever asks, and no particular ones.

    Of each kind they are as many as are sampled of a chunk; where there are several chunks, those are left out that are in no sample of all.
    """
    if not rows.height or not spec.sample:
        return
    parts = [as_text(pl.col(name), rows.schema[name]).fill_null("") for name in spec.key]
    texts = rows.select(pl.concat_str(parts, separator="\x1f").cast(pl.Binary)).to_series().to_list()
    hashes = pl.Series("_hash", list(map(zlib.crc32, texts)), dtype=pl.UInt32)
    hashed = rows.select(PLACE, *spec.key, KIND, hashes).with_row_index(_AT)
    limit = pl.col("_hash").bottom_k(spec.sample).max().over(PLACE, KIND)
    few = hashed.filter(pl.col("_hash") <= limit).sort([PLACE, KIND, "_hash", *spec.key], maintain_order=True)
    few = few.group_by(PLACE, KIND, maintain_order=True).head(spec.sample)
    told = _ranked(spec, few)
    for one in spread(told, SAMPLE_ROWS) if len(chunks) > 1 else told:
        row = rows.row(one["at"], named=True)
        yield row[PLACE], _row(spec, chunks[row[PLACE]], row) | {"hash": one["hash"], "rank": one["rank"]}


def _ranked(spec: CompareSpec, few: pl.DataFrame) -> list[dict[str, Any]]:
    """Return of sampled rows what says when their turn comes, and where each is."""
    told: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in few.iter_rows(named=True):
        one = {"kind": row[KIND], "hash": row["_hash"], "rank": 0, "key": _key(spec, row), "at": row[_AT]}
        told.setdefault((row[PLACE], row[KIND]), []).append(one)
    in_turn = (sorted(ones, key=turn) for ones in told.values())
    return [one | {"rank": rank} for ones in in_turn for rank, one in enumerate(ones)]


def _key(spec: CompareSpec, row: Mapping[str, Any]) -> dict[str, Any]:
    return shown_row({name: row[name] for name in spec.key})


def _row(spec: CompareSpec, chunk: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a changed row as JSON can hold it: of one that differs the columns that do, else all of them."""
    kind = row[KIND]
    names = [name for name in spec.values if kind != CHANGED or row[f"_differs_{name}"]]
    return {
        "chunk": chunk,
        "kind": kind,
        "key": _key(spec, row),
        "old": None if kind == ADDED else shown_row({name: row[name] for name in names}),
        "new": None if kind == REMOVED else shown_row({name: row[f"{name}{NEW}"] for name in names}),
    }
