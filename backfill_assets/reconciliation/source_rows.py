"""Published rows held against rows of their source, as somebody has asked the server for them at a position of its log.

Put here what is missing, surplus or different, by key, by the hash of a row, and by slice. Nothing is computed anew and nothing is
written; what gates compare is `declarations.reconciliations`'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from backfill_assets.declarations.schema import dtypes, lineage_columns
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from manifests.canonical import canonical_json
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import joined, lsn_ranges
from manifests.log_ranges import lsn as lsn_in_words

FROM, TO = "valid_from_lsn", "valid_to_lsn"
GONE = ("is_closed", "is_deleted")
_SLICE = "_slice"


@dataclass(frozen=True)
class SliceCompared:
    """One slice: rows of the source and of the target, how many keys differ, by how, and the hash over the rows of each."""

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
    target = platform.products.target(table)
    try:
        source = pl.read_parquet(file)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InputRefused(
            Problem(f"{file} cannot be read: {error}", "rows of the source come as a Parquet file", "write it anew")
        ) from None
    columns = [name for name in dtypes(target.model) if name in source.columns]
    _require_comparable(target, source, columns, key, lsn, slice_column, file)
    snapshot, published = _published(platform, target, lsn)
    _require_keys(f"{file}", source, key)
    _require_keys(table, published, key)
    source, published = source.select(columns), published.select(columns)
    theirs, ours = _hashed(source, key, slice_column), _hashed(published, key, slice_column)
    both = theirs.join(ours, on="key", how="full", suffix="_ours", coalesce=True).sort("key")
    lacks, more = both.filter(pl.col("hash_ours").is_null()), both.filter(pl.col("hash").is_null())
    differs = both.filter(pl.col("hash") != pl.col("hash_ours"))
    withheld = platform.policy.protects(table)
    found = {"missing": lacks, "surplus": more, "different": differs}
    keys = {name: () if withheld else tuple(rows["key"].to_list()) for name, rows in found.items()}
    return SourceCompared(table, snapshot, tuple(columns), _by_slice(theirs, ours, found), **keys, withheld=withheld)


def _require_comparable(
    target: TargetTable,
    source: pl.DataFrame,
    columns: Sequence[str],
    key: Sequence[str],
    lsn: int | None,
    slice_column: str,
    file: Path,
) -> None:
    own = dtypes(target.model)
    problems = []
    rule = "rows of the source have names and types of the target's columns"
    if others := [name for name in source.columns if name not in own or name in lineage_columns(target.model)]:
        problems.append(Problem(f"{file} has {', '.join(others)}, and {target.name} has not", rule, "leave them out"))
    for name in columns:
        if source.schema[name] != own[name]:
            what = f"{name} is {source.schema[name]} in {file}, and {own[name]} in {target.name}"
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


def _published(platform: Platform, target: TargetTable, lsn: int | None) -> tuple[int | None, pl.DataFrame]:
    table = platform.lakehouse.table(target.name)
    snapshot = table.current_snapshot()
    if snapshot is None:
        rule = "rows of the source are held against published ones"
        raise InputRefused(Problem(f"nothing is published of {target.name}", rule, "publish a run of it first"))
    if lsn is not None:
        _require_read(platform, target, lsn)
    rows: Any = pl.from_arrow(table.scan().to_arrow())
    if lsn is not None:
        rows = rows.filter((pl.col(FROM) <= lsn) & (pl.col(TO).is_null() | (pl.col(TO) > lsn)))
    for name in GONE:
        if name in rows.columns and rows.schema[name] == pl.Boolean:
            rows = rows.filter(~pl.col(name))
    return snapshot.snapshot_id, rows


def _require_read(platform: Platform, target: TargetTable, lsn: int) -> None:
    """Refuse to say how rows were at a position that no accepted run has read."""
    runs = [platform.ledger.run(one) for one in sorted(set(platform.ledger.accepted(target.name).values()))]
    read = joined(one for run in runs for log in run.plan.logs for one in log.ranges)
    if any(one.start <= lsn < one.until for one in read):
        return
    what = f"{lsn_in_words(lsn)} ({lsn}) is a position that no accepted run of {target.name} has read"
    rule = f"they have read {lsn_ranges(read) or 'no log'}"
    raise InputRefused(Problem(what, rule, "land the log up to there and publish, or take rows of an earlier position"))


def _require_keys(what: str, rows: pl.DataFrame, key: Sequence[str]) -> None:
    nulls = rows.filter(pl.any_horizontal(pl.col(name).is_null() for name in key)).height
    twice = rows.height - rows.select(key).unique().height
    fix = "name all columns of the key"
    if {FROM, TO} <= set(rows.columns):
        fix += "; of a history, give --lsn: the position of the log that the file is of"
    if nulls or twice:
        said = f"{what} has {twice:,} row(s) more than keys of {', '.join(key)}, and {nulls:,} without one"
        raise InputRefused(Problem(said, "a key is that of one row", fix))


def _hashed(rows: pl.DataFrame, key: Sequence[str], slice_column: str) -> pl.DataFrame:
    """Return key, hash and slice of each row: texts that are the same for the same values."""
    found: list[tuple[str, str, str]] = []
    for row in rows.iter_rows(named=True):
        said = {name: _text(value) for name, value in row.items()}
        digest = hashlib.sha256(canonical_json(said).encode()).hexdigest()
        found.append((canonical_json({name: said[name] for name in key}), digest, str(said.get(slice_column, ""))))
    return pl.DataFrame(found, schema={"key": pl.String, "hash": pl.String, _SLICE: pl.String}, orient="row")


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)


def _by_slice(theirs: pl.DataFrame, ours: pl.DataFrame, found: Mapping[str, pl.DataFrame]) -> tuple[SliceCompared, ...]:
    """Return each slice in order. A row that has gone to another slice counts in that of the source."""
    values = sorted({*theirs[_SLICE].to_list(), *ours[_SLICE].to_list()})
    done = []
    for value in values:
        mine, yours = theirs.filter(pl.col(_SLICE) == value), ours.filter(pl.col(_SLICE) == value)
        of = {name: rows.filter(pl.coalesce(_SLICE, f"{_SLICE}_ours") == value).height for name, rows in found.items()}
        done.append(
            SliceCompared(value, mine.height, yours.height, **of, source_hash=_over(mine), target_hash=_over(yours))
        )
    return tuple(done)


def _over(rows: pl.DataFrame) -> str:
    return hashlib.sha256("\n".join(rows.sort("key")["hash"].to_list()).encode()).hexdigest()
