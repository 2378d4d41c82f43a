"""Records that a table has and that come once more, from brokers or an archive: proven to be the same ones, offset by offset.

Put here how two readings of the same offsets are held against each other. What is read, and why, is `landing`'s and
`archived_topics`'. Memory is bounded by a block of offsets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import polars as pl
import pyarrow.parquet as pq
from pyiceberg.expressions import And, BooleanExpression, EqualTo, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from backfill_assets.declarations.schema import polars_type
from backfill_assets.extraction.archived_records import may_have_rows
from backfill_assets.worker.columns import UNREADABLE, scan_file
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.violations import require_read
from backfill_assets.worker.violations import unreadable as violation_of
from manifests.errors import InputRefused, Problem
from manifests.log_ranges import LogRange
from resources.files import stores
from resources.lakehouse.facade import local_path
from resources.lakehouse.file_access import access_to
from resources.lakehouse.live_files import live_files

_BLOCK = 100_000
"""Offsets that are compared at once."""
PARTITION, OFFSET = "log_partition", "log_offset"
COLUMNS = (
    PARTITION,
    OFFSET,
    "record_time",
    "record_time_type",
    "record_key",
    "record_value",
    "record_headers",
)
"""What makes a record: everything that is landed of it but the load."""


@dataclass(frozen=True)
class Proven:
    """Offsets of which two readings have the same records.

    Attributes:
        ranges: the offsets.
        rows: how many records they are.
        digest: the SHA-256 of these (hex), in the order of the log.
        removed: how many records the table has that compaction has removed since: of them nothing is proven.
    """

    ranges: tuple[LogRange, ...]
    rows: int
    digest: str
    removed: int = 0


def require_equal(
    table: Table, paths: Sequence[str], ranges: Sequence[LogRange], what: str, *, compacted: bool = False
) -> Proven:
    """Hold the rows of a table against those of files, and return what they have in common: all of it.

    Args:
        table: what is landed.
        paths: Parquet files with the columns of a record, by their names.
        ranges: the offsets that both have.
        what: what the files are of, in words.
        compacted: whether records may be missing in the files that the table has.

    Raises:
        InputRefused: if they differ, naming the first offset at which they do, or a file is missing or damaged.
        EnvironmentRefused: if a file could not be read just now.
    """
    with stores.opened_by(access_to(table.io.properties)):
        return _required_equal(table, paths, ranges, what, compacted=compacted)


def _required_equal(
    table: Table, paths: Sequence[str], ranges: Sequence[LogRange], what: str, *, compacted: bool
) -> Proven:
    schema = table.schema().model_dump_json()
    kinds = pl.Schema({name: polars_type(table.schema().find_field(name).field_type) for name in COLUMNS})
    name = ".".join(table.name())
    removed = 0
    digest = RowDigest(kinds)
    for one in ranges:
        own = [(path, _footer(path, name)) for path in _files(table, one)]
        theirs = [(path, _footer(path, what)) for path in paths]
        for start in range(one.start, one.until, _BLOCK):
            block = LogRange(one.partition, start, min(start + _BLOCK, one.until))
            landed, other = _rows(own, schema, block, kinds, name), _rows(theirs, "", block, kinds, what)
            if compacted:
                kept = landed.join(other.select(OFFSET), on=OFFSET, how="semi", maintain_order="left")
                removed += landed.height - kept.height
                landed = kept
            if not landed.equals(other):
                raise _differs(landed, other, one, table, what)
            digest.update(landed)
    return Proven(tuple(ranges), digest.rows, digest.result(), removed)


def unreadable(what: str, why: str) -> InputRefused:
    """Return the refusal of an archive of which a part cannot be read; nothing of it was landed."""
    said = f"{what} cannot be read to its end: {why.partition(chr(10))[0]}"
    fix = "restore the file, or write the archive anew; nothing was landed"
    return InputRefused(Problem(said, "an archive is Parquet files that are whole", fix))


def _files(table: Table, one: LogRange) -> list[str]:
    """Return the files of a table that may have rows of a range."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    rows: BooleanExpression = And(
        EqualTo(term=PARTITION, value=one.partition),
        GreaterThanOrEqual(term=OFFSET, value=one.start),
        LessThan(term=OFFSET, value=one.until),
    )
    return [local_path(file.file_path) for file in live_files(table, snapshot, rows)]


def _footer(path: str, what: str) -> pq.FileMetaData:
    with _readable(path, what):
        return stores.footer(path)


def _rows(
    files: Sequence[tuple[str, pq.FileMetaData]], schema: str, block: LogRange, kinds: pl.Schema, what: str
) -> pl.DataFrame:
    """Return the rows of files that lie in a block, in the order of their offsets; a file that can have none is not read."""
    within = (pl.col(PARTITION) == block.partition) & pl.col(OFFSET).is_between(block.start, block.until, closed="left")
    may_have = may_have_rows(block)
    found = []
    for path, footer in files:
        if any(may_have(footer.row_group(number)) for number in range(footer.num_row_groups)):
            with _readable(path, what):
                # one at a time: of a store it is in memory whole until it is collected
                found.append(scan_file(path, schema, COLUMNS).filter(within).collect())
    if not found:
        return pl.DataFrame(schema=kinds)
    return pl.concat(found, how="vertical_relaxed").sort(OFFSET).cast(kinds)


@contextmanager
def _readable(path: str, what: str) -> Iterator[None]:
    """Refuse a file that cannot be read: as damaged only if that is proven."""
    try:
        yield
    except UNREADABLE as error:
        found = violation_of(path, error)
        require_read([found])
        raise unreadable(what, found.sample[0]["error"]) from error


def _differs(landed: pl.DataFrame, other: pl.DataFrame, one: LogRange, table: Table, what: str) -> InputRefused:
    offset, how = next(_differences(landed, other))
    return InputRefused(
        Problem(
            f"{what} and {'.'.join(table.name())} differ in partition {one.partition} from offset {offset:,} on: {how}",
            "where a range is landed already, what comes once more is the same, record by record",
            "find out which of them is right; take the load back that is not, and land it again",
        )
    )


def _differences(landed: pl.DataFrame, other: pl.DataFrame) -> Iterator[tuple[int, str]]:
    """Yield the offsets at which rows differ, and in what; no value is quoted."""
    for mine, theirs in zip_longest(landed.iter_rows(named=True), other.iter_rows(named=True)):
        if mine == theirs:
            continue
        if theirs is None or (mine is not None and mine[OFFSET] < theirs[OFFSET]):
            yield _offset(mine), "the table has a record there, and the other has none"
        elif mine is None or theirs[OFFSET] < mine[OFFSET]:
            yield _offset(theirs), "the table has no record there, and the other has one"
        else:
            columns = ", ".join(name for name in COLUMNS if mine[name] != theirs[name])
            yield _offset(mine), f"in {columns}"


def _offset(row: Any) -> int:
    return int(row[OFFSET])
