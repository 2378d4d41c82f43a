"""Transactions that a range of the table covers and whose changes the table does not have: they are no repetition, and not landed.

Put here what is asked of the table's rows before a transaction counts as landed before. Which range covers what follows from positions
alone, and is `change_ranges`': it believes each end, and an end may name a position beyond its commit, which then covers what comes later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow.compute as pc
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual

from backfill_assets.extraction.change_files import Delivered, Snapshot, Transaction
from backfill_assets.ingestion.change_ranges import ToLand
from backfill_assets.installation import Platform
from manifests.errors import Problem
from manifests.log_ranges import LogRange, lsn_ranges

_SHOWN = 5
_COMMIT = "commit_lsn"


def not_on_record(
    platform: Platform,
    table: str,
    found: Delivered,
    plan: ToLand,
    known: Sequence[LogRange],
    observed: Sequence[int],
    tell: Callable[[], None],
) -> Iterator[Problem]:
    """Say which transactions would count as landed although the table has no row of their commits.

    One with no change of a declared table has no row, and what a landed snapshot is after is in that one.

    Args:
        platform: the opened installation.
        table: of the changes.
        found: what was delivered.
        plan: what of it is to be landed.
        known: the ranges that the table has.
        observed: the positions of the snapshots that it has.
        tell: called while the table is read.
    """
    new = [unit.lsn for piece in plan.pieces for unit in piece.units if isinstance(unit, Snapshot)]
    last = max([*observed, *new], default=-1)
    asked = {
        one.commit: one
        for one in found.transactions.values()
        if one.is_whole and one.has_rows and one.commit is not None and one.commit > last
    }
    asked = {commit: one for commit, one in asked.items() if any(_has(part, commit) for part in known)}
    _leave_out_landed(platform, table, asked, tell)
    loads = platform.lakehouse.landed_loads(table) if asked else []
    for commit, one in sorted(asked.items())[:_SHOWN]:
        by_load = (
            (load.load_id, each.range) for load in loads for each in load.landed.ranges if _has(each.range, commit)
        )
        load_id, part = next(by_load, ("LOAD", next(part for part in known if _has(part, commit))))
        yield Problem(
            f"{one.in_words()} is in no row of {table}, whose load {load_id} says that it has the log {lsn_ranges([part])}",
            "a transaction counts as landed where its rows are: an end that names a position beyond its commit covers what comes later",
            f"take that load back (`backfill unload {table} {load_id} --by NAME --reason TEXT`; `backfill loads` lists them), and land the files that "
            "are right; if its table was declared after that load, they are the same files",
        )
    if len(asked) > _SHOWN:
        yield Problem(
            f"and {len(asked) - _SHOWN:,} more transactions",
            "a transaction counts as landed where its rows are",
            "as above",
        )


def _has(part: LogRange, commit: int) -> bool:
    return part.start <= commit < part.until


def _leave_out_landed(platform: Platform, table: str, asked: dict[int, Transaction], tell: Callable[[], None]) -> None:
    """Leave the commits out that a table has rows of: one column is read, of files that may have some, a batch at a time."""
    now = platform.lakehouse.snapshot_id(table)
    if not asked or now is None:
        return
    inside = And(GreaterThanOrEqual(term=_COMMIT, value=min(asked)), LessThanOrEqual(term=_COMMIT, value=max(asked)))
    for batch in platform.lakehouse.batches(table, now, inside, [_COMMIT]):
        tell()
        for commit in pc.unique(batch.column(_COMMIT)).to_pylist():
            asked.pop(commit, None)
        if not asked:
            return
