"""The rows that a reader of main gets for the days of a chunk: do they have the digest on record.

Put here how a chunk is found and read as a reader does, with no code of the engine that wrote it. How one file is read is
`rows_by_schema`'s; files that readers do not get any more are read as they were gated, by `proof`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import polars as pl

from backfill_assets.audit.findings import Report
from backfill_assets.audit.placed_files import PlacedFiles
from backfill_assets.audit.rows_by_schema import UNREADABLE_ROWS, rows_of_chunk
from backfill_assets.audit.run_in_table import files_as_left, is_of_others, shown_days
from backfill_assets.declarations.schema import LATER_LINEAGE_COLUMNS, dtypes, lineage_columns
from backfill_assets.evidence.digested import names_now
from backfill_assets.evidence.seals import Sealed, digest_types
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.key_order import by_key, one_order
from manifests.plan import references_in_words
from resources.lakehouse.scopes import Scope
from resources.lakehouse.snapshots import Seen
from resources.lakehouse.storage import Storage, place_of

_PLANNED = {
    "run_id": "run_id",
    "processing_mode": "mode",
    "transform_version": "transform_version",
    "input_snapshot_id": "source_snapshot_id",
    "produced_at": "run_clock",
}
"""What a plan says of each lineage column, by column."""
_READ: dict[str, Callable[[str], Any]] = {
    "produced_at": datetime.fromisoformat,
    "input_start": date.fromisoformat,
    "input_end": date.fromisoformat,
}
"""What a plan's text is of those that are no text."""


def read_chunk(
    seen: Seen,
    storage: Storage,
    sealed: Sealed,
    chunk: Mapping[str, Any],
    placed: PlacedFiles,
    report: Report,
    *,
    rewritten: bool = False,
) -> bool:
    """Read a chunk as a reader of main does who asks for its days; return whether its rows have the digest on record.

    Which files are opened is decided by manifests, partitions and bounds; what a column is called by the current schema. Of a
    chunk that was merged into, each file is read, and its rows are those of the files as they were gated.
    What manifests say of each file is held against its rows. Memory is one file's, or one chunk's where files overlap.
    """
    key = str(chunk["chunk"])
    scope = sealed.scopes[key]
    days = scope.start, scope.end
    where = f"{seen.name} chunk {key}"
    column = sealed.target.day_column
    if column and column not in seen.table.schema().column_names:
        report.add(where, f"cannot be asked for by its days: readers find no column {column}", column, "nothing")
        return False
    finds = seen.finder(scope.filter)
    merges = bool(sealed.plan.get("merge"))
    own = {place_of(file["path"]): file for file in chunk["derived" if merges else "files"]}
    opened = [one for one in placed.near(scope) if finds(one) and not is_of_others(seen, scope, one)]
    whole = True
    for place in sorted(own.keys() & seen.entries.keys() - {one.place for one in opened}):
        report.add(f"{where} {place}", "is not found by readers who ask for its days", shown_days(days), "not opened")
        whole = False
    if any(not one.is_data for one in opened):
        report.add(where, "has files of deleted rows on it: readers get fewer rows than were accepted")
        return False
    frames, all_right = rows_of_chunk(seen, storage, sealed, opened, own, where, scope, report)
    whole &= all_right
    if frames is None:
        return False
    accepted: str | None = str(chunk["digest"])
    more = lineage_columns(sealed.target.model) if merges else ()  # of one run's rows the plan says what is in them
    try:
        if merges:
            accepted = _as_merged(seen, storage, sealed, own, where, scope, report) if rewritten else None
        found = _digest(seen, sealed, frames, more) if accepted is not None else None
    except UNREADABLE_ROWS as error:
        report.add(where, f"cannot be read by the current schema: {type(error).__name__}: {str(error)[:200]}")
        return False
    if found != accepted:
        also = ", or their lineage is another" if merges else ""
        report.add(where, f"readers get rows of another digest{also}", accepted, found)
        return False
    for name, expected, said in _other_lineage(sealed, key, frames) if rewritten and not merges else ():
        report.add(f"{where} lineage {name}", "is not that of the run that holds the chunk", expected, said)
        whole = False
    return whole


def _other_lineage(sealed: Sealed, key: str, frames: Sequence[pl.DataFrame]) -> Iterator[tuple[str, Any, Any]]:
    """Yield each lineage column of which rows say something else than the plan of their chunk: no digest has these columns."""
    plan = sealed.plan_of(key)
    planned = {column: plan.get(name) for column, name in _PLANNED.items()}
    if set(LATER_LINEAGE_COLUMNS) <= set(lineage_columns(sealed.target.model)) and plan.get("reason") is not None:
        planned |= _planned_in_full(plan)
    for name, expected in planned.items():
        read = _READ.get(name)
        own = expected if expected is None or read is None else read(str(expected))
        found = {value for frame in frames if name in frame.columns for value in frame[name].unique().to_list()}
        if own is not None and (others := found - {own}):
            yield name, expected, ", ".join(sorted(map(str, others)))


def _planned_in_full(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a plan says of the lineage columns that tables have which declare them."""
    days = plan["input_range"]
    return {
        "transform_name": plan["transform"],
        "input_start": days["start"],
        "input_end": days["end"],
        "reference_versions": references_in_words(
            (one["table"], one["version"], one["snapshot_id"]) for one in plan["references"]
        ),
        "run_reason": plan["reason"],
    }


def _as_merged(
    seen: Seen,
    storage: Storage,
    sealed: Sealed,
    own: Mapping[str, Mapping[str, Any]],
    where: str,
    scope: Scope,
    report: Report,
) -> str | None:
    """Compute the digest of all rows of a chunk as a merge left it; None if its files are not there any more."""
    at = files_as_left(seen, sealed, scope)
    if at is None or len(storage.look(at)) != len(at):
        report.notes.append(
            f"{where} was rewritten, and the files it was merged into are gone: they cannot be compared"
        )
        return None
    frames, _ = rows_of_chunk(seen, storage, sealed, list(at.values()), own, where, scope, report)
    return None if frames is None else _digest(seen, sealed, frames, lineage_columns(sealed.target.model))


def _digest(seen: Seen, sealed: Sealed, frames: Sequence[pl.DataFrame], more: Sequence[str] = ()) -> str:
    """Compute the digest of a chunk's rows, whatever files they came in, of `more` columns than those of digests as well.

    Columns have the names and the types that they had when the run was sealed.
    """
    key = list(sealed.target.key)
    types = digest_types(sealed, frames[0].schema if frames else None)
    # a table may have got some of them since: then no row of before has them
    there = {name for frame in frames[:1] for name in frame.columns}
    types |= {name: kind for name, kind in dtypes(sealed.target.model).items() if name in more and name in there}
    now = names_now(sealed.tables.get(seen.name, {}), seen.table.schema())
    digest = RowDigest(types)
    ordered = [by_key(frame, key)[0] for frame in frames if frame.height]
    ordered.sort(key=lambda frame: [(value is not None, value) for value in frame.select(key).row(0)])
    for frame in one_order(ordered, key):
        digest.update(frame.select(pl.col(now.get(name, name)).cast(kind).alias(name) for name, kind in types.items()))
    return digest.result()
