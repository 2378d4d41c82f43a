"""Published rows held against rows of their source, as somebody has asked the server for them at a position of its log.

Put here what is missing, surplus or different, by key, by the hash of a row, and by slice. Neither side is held in memory: rows are
hashed batch by batch, and compared by `row_hashes`; those whose keys differ are read once more. Nothing is computed anew and nothing
is published; what gates compare is `declarations.reconciliations`'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.snapshots import Snapshot

from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.reconciliation.row_hashes import Comparison, HashedRows, compared, parts_for, texts_of
from backfill_assets.worker.columns import UNREADABLE, rows_of
from backfill_assets.worker.file_batches import batches_of
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import joined, lsn_ranges
from manifests.log_ranges import lsn as lsn_in_words
from resources.lakehouse.reads import batches

FROM, TO = "valid_from_lsn", "valid_to_lsn"
GONE = ("is_closed", "is_deleted")
_BATCH = 10_000
"""Rows that are hashed at once."""
_Batches = Callable[[Sequence[str]], Iterable[pl.DataFrame]]


@dataclass(frozen=True)
class SliceCompared:
    """One slice: rows of the source and of the target, how many keys differ, by how, and the hash over the rows of each, in the order of their keys' hashes."""

    value: str
    source_rows: int
    target_rows: int
    missing: int
    surplus: int
    different: int
    source_hash: str
    target_hash: str


@dataclass(frozen=True)
class SourceCompared:
    """What was found: by slice, and the keys that differ, as JSON. Without keys if `withheld`."""

    target: str
    snapshot_id: int | None
    columns: tuple[str, ...]
    slices: tuple[SliceCompared, ...]
    missing: tuple[str, ...]
    surplus: tuple[str, ...]
    different: tuple[str, ...]
    withheld: bool = False

    @property
    def agrees(self) -> bool:
        """Whether both have the same rows."""
        return not any(one.missing or one.surplus or one.different for one in self.slices)


def compared_with_source(
    platform: Platform, table: str, file: Path, key: Sequence[str], *, lsn: int | None = None, slice_column: str = ""
) -> SourceCompared:
    """Hold the published rows of a target against a Parquet file of its source's rows.

    Args:
        platform: the opened installation.
        table: the target.
        file: the rows of the source, with names and types of the target's columns; those that it lacks are not compared.
        key: the columns that identify a row of the source.
        lsn: the position of the log that the file is of, where the target is a history; None: its rows are those of that position.
        slice_column: by which column it is said what differs; empty: all at once.

    Raises:
        InputRefused: if the target is not declared, the file cannot be read, has other columns or types, or a key twice; all reasons at once.
    """
    target, key = platform.products.target(table), list(dict.fromkeys(key))
    try:
        kinds = pl.scan_parquet(file, hive_partitioning=False, glob=False).collect_schema()
        rows = rows_of(str(file))
    except UNREADABLE as error:
        raise _unreadable(file, error) from None
    columns = [name for name in dtypes(target.model) if name in kinds]
    _require_comparable(target, kinds, columns, key, lsn, slice_column, file)
    snapshot = _published(platform, target, lsn)
    theirs = partial(_of_source, file, kinds)
    ours = partial(_of_target, platform, target, snapshot, lsn)
    slices: dict[str, int] = {}
    with TemporaryDirectory(prefix="compare-source-") as folder:
        parts = parts_for(max(rows, _rows_at(snapshot)))
        sides = [HashedRows(Path(folder) / name, parts, slices) for name in ("source", "target")]
        for side, read in zip(sides, (theirs, ours), strict=True):
            for batch in read(columns):
                side.add(batch, key, slice_column)
        found = compared(*sides)
    _require_keys({f"{file}": sides[0], table: sides[1]}, found.repeated, key, target, lsn)
    withheld = platform.policy.protects(table)
    keys = {} if withheld else _keys(found, key, theirs, ours)
    return SourceCompared(
        table,
        snapshot.snapshot_id,
        tuple(columns),
        _by_slice(slices, found),
        missing=tuple(keys.get("missing", ())),
        surplus=tuple(keys.get("surplus", ())),
        different=tuple(keys.get("different", ())),
        withheld=withheld,
    )


def _of_source(file: Path, kinds: pl.Schema, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    try:
        for rows in batches_of(str(file), columns):
            yield rows.cast({name: kinds[name] for name in columns})
    except UNREADABLE as error:
        raise _unreadable(file, error) from error


def _unreadable(file: Path, error: BaseException) -> InputRefused:
    what = f"{file} cannot be read: {error}"
    return InputRefused(Problem(what, "rows of the source come as a Parquet file", "write it anew"))


def _keys(found: Comparison, key: Sequence[str], theirs: _Batches, ours: _Batches) -> dict[str, list[str]]:
    """Return the keys that differ as JSON, in order, by how: both sides are read once more for them alone."""
    surplus = {one: how for one, how in found.keys.items() if how == "surplus"}
    others = {one: how for one, how in found.keys.items() if how != "surplus"}
    texts: dict[str, list[str]] = {}
    for read, wanted in ((theirs, others), (ours, surplus)):
        if wanted:
            for how, text in texts_of(read(key), key, wanted):
                texts.setdefault(how, []).append(text)
    return {how: sorted(own) for how, own in texts.items()}


def _require_comparable(
    target: TargetTable,
    kinds: pl.Schema,
    columns: Sequence[str],
    key: Sequence[str],
    lsn: int | None,
    slice_column: str,
    file: Path,
) -> None:
    own = dtypes(target.model)
    problems = []
    rule = "rows of the source have names and types of the target's columns"
    if others := [name for name in kinds if name not in own or name in lineage_columns(target.model)]:
        problems.append(Problem(f"{file} has {', '.join(others)}, and {target.name} has not", rule, "leave them out"))
    for name in columns:
        if kinds[name] != own[name]:
            what = f"{name} is {kinds[name]} in {file}, and {own[name]} in {target.name}"
            problems.append(Problem(what, rule, "cast it"))
    if missing := [name for name in (*key, *filter(None, [slice_column])) if name not in columns]:
        problems.append(
            Problem(f"{file} has no {', '.join(missing)}", "keys and slices are columns of both", "add them")
        )
    if not key:
        problems.append(Problem("no key is given", "rows are held against each other by their key", "give --key"))
    if lsn is not None and not {FROM, TO} <= set(own):
        what, rule = f"{target.name} has no {FROM} and {TO}", "rows are known at an LSN of a target that is a history"
        problems.append(
            Problem(
                what, rule, "leave --lsn out: the target's rows are those of the log's position that it was computed to"
            )
        )
    if problems:
        raise InputRefused(problems)


def _published(platform: Platform, target: TargetTable, lsn: int | None) -> Snapshot:
    """Return the published snapshot of a target that rows are held against.

    Raises:
        InputRefused: if there is none, or no accepted run has read as far as the position.
    """
    snapshot = platform.lakehouse.table(target.name).current_snapshot()
    if snapshot is None:
        rule = "rows of the source are held against published ones"
        raise InputRefused(Problem(f"nothing is published of {target.name}", rule, "publish a run of it first"))
    if lsn is not None:
        _require_read(platform, target, lsn)
    return snapshot


def _rows_at(snapshot: Snapshot) -> int:
    """Return how many rows a snapshot says it has; 0 if it does not say."""
    return 0 if snapshot.summary is None else int(snapshot.summary["total-records"] or 0)


def _of_target(
    platform: Platform, target: TargetTable, snapshot: Snapshot, lsn: int | None, columns: Sequence[str]
) -> Iterator[pl.DataFrame]:
    """Yield columns of the published rows that there are, at a position of the log if one is given; memory is one file's."""
    own = dtypes(target.model)
    gone = [name for name in GONE if own.get(name) == pl.Boolean]
    asked = list(dict.fromkeys([*columns, *gone, *((FROM, TO) if lsn is not None else ())]))
    table = platform.lakehouse.table(target.name)
    for batch in batches(table, snapshot.snapshot_id, AlwaysTrue(), asked):
        rows: Any = pl.from_arrow(batch)
        if lsn is not None:
            rows = rows.filter((pl.col(FROM) <= lsn) & (pl.col(TO).is_null() | (pl.col(TO) > lsn)))
        for name in gone:
            rows = rows.filter(~pl.col(name))
        yield from rows.select(columns).iter_slices(_BATCH)


def _require_read(platform: Platform, target: TargetTable, lsn: int) -> None:
    """Refuse to say how rows were at a position that no accepted run has read."""
    runs = [platform.ledger.run(one) for one in sorted(set(platform.ledger.accepted(target.name).values()))]
    read = joined(one for run in runs for log in run.plan.logs for one in log.ranges)
    if any(one.start <= lsn < one.until for one in read):
        return
    what = f"{lsn_in_words(lsn)} ({lsn}) is a position that no accepted run of {target.name} has read"
    rule = f"they have read {lsn_ranges(read) or 'no log'}"
    raise InputRefused(Problem(what, rule, "land the log up to there and publish, or take rows of an earlier position"))


def _require_keys(
    sides: Mapping[str, HashedRows], repeated: Sequence[int], key: Sequence[str], target: TargetTable, lsn: int | None
) -> None:
    """Refuse sides of which a key is that of several rows, or of which a row has none; both at once."""
    fix = "name all columns of the key"
    if lsn is None and {FROM, TO} <= set(dtypes(target.model)):
        fix += "; of a history, give --lsn: the position of the log that the file is of"
    problems = [
        Problem(
            f"{what} has {twice:,} row(s) more than keys of {', '.join(key)}, and {side.without_key:,} without one",
            "a key is that of one row",
            fix,
        )
        for (what, side), twice in zip(sides.items(), repeated, strict=True)
        if twice or side.without_key
    ]
    if problems:
        raise InputRefused(problems)


def _by_slice(slices: Mapping[str, int], found: Comparison) -> tuple[SliceCompared, ...]:
    """Return each slice in order."""
    done = []
    for value, number in sorted(slices.items()):
        one = found.slices[number]
        of, (theirs, ours) = one.differing, (each.hexdigest() for each in one.hashes)
        done.append(
            SliceCompared(value, one.rows[0], one.rows[1], of["missing"], of["surplus"], of["different"], theirs, ours)
        )
    return tuple(done)
