"""What a run changes, as far as it costs nothing to know: by chunk the rows before and after, and the sums of its gates.

Put here which files are before and after, and the counts and sums that are sealed with a run's bundle, before its commit.
They come from metadata and from the ledger: no row is read. What became of each key is `review.diff`'s, which compares the rows.

Before is what the run's plan was made on. After is what readers have once it is published: of a merge the files that it
leaves and those that it puts there, of corrections the rows with the corrections applied, else the computed rows.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.target import TargetTable
from backfill_assets.installation import Platform
from backfill_assets.planning.scopes import chunk_scopes
from manifests.canonical import canonical_json_of_plain, sha256_of_text
from manifests.errors import InputRefused
from manifests.plan import Plan
from resources.ledger.facade import STAGED, ChunkRecord, RunRecord

CHANGES_FILE = "changes.json"
"""The file of a bundle that says what the publication changes by chunk, and which diff is the publication's."""
VISIBLE = "visible"
"""What the gate of a chunk has counted and added up of it as readers would see it: `rows` and `sums`."""


@dataclass(frozen=True)
class Side:
    """The files of one chunk: only before, only after, and those that stay."""

    old: tuple[str, ...]
    new: tuple[str, ...]
    both: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class ChunkChange:
    """What becomes of one chunk.

    `rows` and each of `sums` are before and after; None: it is not known. A sum is exact, as text.
    """

    chunk: str
    rows: tuple[int | None, int | None]
    sums: dict[str, tuple[str | None, str | None]]


@dataclass(frozen=True)
class Changes:
    """What a run changes, by chunk.

    `diff_id` is the hash of the files on both sides, as a diff of them has it; empty where they cannot be told, and `unknown`
    says why.
    """

    diff_id: str
    chunks: list[ChunkChange]
    unknown: str = ""


def changes_of_run(
    platform: Platform,
    record: RunRecord,
    chunks: Sequence[ChunkRecord],
    accepted: Mapping[str, Mapping[str, Any]],
) -> Changes:
    """Return what a run changes, from metadata and the ledger.

    Args:
        platform: the installation.
        record: the run, which need not be staged whole: what is not staged is not known.
        chunks: its chunks.
        accepted: what readers see of each chunk before, as `records.accepted_before` has it.
    """
    target = platform.products.target(record.target)
    columns = dtypes(target.model).keys()
    try:
        before = _rows_before(platform, target, record)
    except InputRefused as refusal:  # the base has expired, or somebody else's file lies in two chunks
        known = {key: facts["rows"] for key, facts in accepted.items()}
        return Changes(
            "", [_change(one, known.get(one.chunk), one.rows, accepted, columns) for one in chunks], _said(refusal)
        )
    sides = {chunk.chunk: _side(record, chunk, before[chunk.chunk]) for chunk in chunks}
    after = {one.chunk: rows_after(record.plan, one, before[one.chunk]) for one in chunks if one.state in STAGED}
    found = [_change(one, sum(before[one.chunk].values()), after.get(one.chunk), accepted, columns) for one in chunks]
    whole = len(chunks) == len(record.plan.chunks) and all(chunk.state in STAGED for chunk in chunks)
    return Changes(diff_id_of(target, sides) if whole else "", found)


def sides_of(
    platform: Platform, target: TargetTable, record: RunRecord, chunks: Sequence[ChunkRecord]
) -> dict[str, Side]:
    """Return the files before and after, by chunk.

    Raises:
        InputRefused: if the base is not there any more.
    """
    before = _rows_before(platform, target, record)
    return {chunk.chunk: _side(record, chunk, before[chunk.chunk]) for chunk in chunks}


def diff_id_of(target: TargetTable, sides: Mapping[str, Side]) -> str:
    """Return the name of the diff of some files: the same files, compared with the same tolerances, have the same diff."""
    near = {name: str(float(one)) for name, one in target.diff_tolerances.items()}
    chunks = {key: {"old": side.old, "new": side.new, "both": side.both} for key, side in sides.items()}
    text = canonical_json_of_plain({"target": target.name, "chunks": chunks} | ({"tolerances": near} if near else {}))
    return sha256_of_text(text)


def _rows_before(platform: Platform, target: TargetTable, record: RunRecord) -> dict[str, dict[str, int]]:
    """Return the rows of each file before, by chunk; a chunk that was planned anew has a base of its own."""
    plans, scopes = platform.ledger.plans(record), chunk_scopes(target, record.plan.chunks)
    before: dict[str, dict[str, int]] = {key: {} for key in scopes}
    for base in {plan.base_snapshot_id for plan in plans.values()} - {None}:
        mine = {key: scopes[key] for key, plan in plans.items() if plan.base_snapshot_id == base}
        before |= platform.lakehouse.file_rows_by_chunk(target.name, base, mine)
    return before


def _side(record: RunRecord, chunk: ChunkRecord, before: Mapping[str, int]) -> Side:
    old, new = sorted(before), files_after(record.plan, chunk, before)
    both = sorted({*old} & {*new})
    only_old, only_new = (tuple(sorted({*side} - {*both})) for side in (old, new))
    return Side(only_old, only_new, tuple(both))


def files_after(plan: Plan, chunk: ChunkRecord, before: Mapping[str, int]) -> list[str]:
    """Return the files that readers have of a staged chunk once it is published; `before` are those that it has."""
    if not plan.publish_mode.adds_to_files_that_stay:
        return [file.path for file in chunk.files]
    gone = set(chunk.replaced)
    return [path for path in sorted(before) if path not in gone] + [file.path for file in chunk.derived]


def rows_after(plan: Plan, chunk: ChunkRecord, before: Mapping[str, int]) -> int:
    """Return how many rows readers have of a staged chunk once it is published; `before` are those of each file that it has."""
    if not plan.publish_mode.adds_to_files_that_stay:
        return chunk.rows or 0
    gone = set(chunk.replaced)
    stays = sum(rows for path, rows in before.items() if path not in gone)
    return stays + sum(file.rows for file in chunk.derived)


def _change(
    chunk: ChunkRecord,
    before: int | None,
    after: int | None,
    accepted: Mapping[str, Mapping[str, Any]],
    columns: Container[str],
) -> ChunkChange:
    """Return what becomes of a chunk; before its first rows every sum is 0.

    What the gate of an earlier run has added up counts if it saw as many rows as there are: else others have written. Of a
    column that has another name since then the sum before is not known.
    """
    mine = _sums(chunk.measures.get(VISIBLE), after)
    earlier = _sums(accepted.get(chunk.chunk, {}).get(VISIBLE), before)
    nothing = "0" if before == 0 else None
    names = [*mine, *(name for name in earlier if name not in mine and name in columns)]
    return ChunkChange(
        chunk.chunk, (before, after), {name: (earlier.get(name, nothing), mine.get(name)) for name in names}
    )


def _sums(visible: Mapping[str, Any] | None, rows: int | None) -> Mapping[str, str]:
    return visible["sums"] if visible is not None and visible["rows"] == rows else {}


def _said(refusal: InputRefused) -> str:
    return f"the rows before were not counted: {refusal.problems[0].what}"
