"""What a recorded diff says, and whether a record has the form of one.

Put here the form only. What is compared, and when a diff is put on record, is `review.diff`'s; which records count is `records`'s.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from manifests.canonical import LATER, reader_of

_NAMES = re.compile(r"diff(-table)?(-\d+)?")


@dataclass(frozen=True)
class ChunkDiff:
    """What becomes of the rows of one chunk; `columns` says in how many changed rows a column differs.

    `sums` has each number column's sum before and after, exact, as text.
    """

    chunk: str
    added: int
    removed: int
    changed: int
    unchanged: int
    columns: dict[str, int]
    sums: dict[str, list[str]]


@dataclass(frozen=True)
class ColumnDiff:
    """What becomes of one column: in how many changed rows it differs, and of numbers the sums over all rows."""

    column: str
    changed: int
    before: str | None = None
    after: str | None = None
    delta: str | None = None


@dataclass(frozen=True)
class Within:
    """A column whose values are the same to a diff if they differ by no more than a tolerance, and how many values do so."""

    column: str
    tolerance: str
    values: int


@dataclass(frozen=True)
class RunDiff:
    """What a run changes; every field is ready for JSON.

    Attributes:
        diff_id: hash of the files that were compared: the same rows have the same diff.
        run_id: the run.
        target: its target.
        publish_mode: how the run is published, which decides what is after.
        base_snapshot_id: the target's snapshot that is before; None: it had none.
        key: columns that identify a row.
        added: rows only after; `removed`: only before; `changed`: on both sides with another value; and `unchanged`.
        columns: every compared column.
        chunks: every chunk of the run.
        largest: rows that moved furthest, by column and kind of change: `by` is after less before, where a row that is not
            there counts as 0; of dates the days, of instants the seconds.
        sample: rows of each kind of change in each chunk, chosen by the hash of their key.
        kept: how many rows of each were asked for.
        made_at: when, and `made_by` whom it was made for.
        concealed: changed rows of erased subjects: counted, and neither sampled nor put into the changes table.
        within: the columns that are compared with a tolerance, each with the number of values that differ by no more than it.
        within_rows: rows that differ in such values alone: they count as unchanged.
    """

    diff_id: str
    run_id: str
    target: str
    publish_mode: str
    base_snapshot_id: int | None
    key: list[str]
    added: int
    removed: int
    changed: int
    unchanged: int
    columns: list[ColumnDiff]
    chunks: list[ChunkDiff]
    largest: list[dict[str, Any]]
    sample: list[dict[str, Any]]
    kept: dict[str, int]
    made_at: str
    made_by: str
    concealed: int = 0
    within: tuple[Within, ...] = field(default=(), metadata=LATER)
    within_rows: int = field(default=0, metadata=LATER)

    @property
    def differing(self) -> int:
        """Rows that are added, removed or changed."""
        return self.added + self.removed + self.changed


@dataclass(frozen=True)
class ChangesTable:
    """Where the changed rows of a run are, as rows of a table."""

    table: str
    snapshot_id: int
    rows: int
    files: int
    diff_id: str


@dataclass(frozen=True)
class _Row:
    """A row that is shown of a diff: its key, and its values before and after; None on the side where it is not."""

    chunk: str
    kind: str
    key: dict[str, Any]
    old: dict[str, Any] | None
    new: dict[str, Any] | None


@dataclass(frozen=True)
class _Moved(_Row):
    """One of those that moved furthest, in one column."""

    column: str
    by: str | int | float
    unit: str


def diff_of(said: Any) -> RunDiff:
    """Return the diff that a record says.

    Raises:
        ValueError: if it has not the form of one.
    """
    found = reader_of(RunDiff).validate_json(json.dumps(said), strict=True)
    reader_of(list[_Row]).validate_json(json.dumps(found.sample), strict=True)
    reader_of(list[_Moved]).validate_json(json.dumps(found.largest), strict=True)
    return found


def no_diff(name: str, said: Any) -> str:
    """Say why a record under the name of a diff is none; empty if it is one, or has another name."""
    match = _NAMES.fullmatch(name)
    if match is None:
        return ""
    try:
        if match[1]:
            reader_of(ChangesTable).validate_json(json.dumps(said), strict=True)
        else:
            diff_of(said)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"it has not the form of a diff: {where + ': ' if where else ''}{first['msg']}"
    except ValueError as error:
        return f"it has not the form of a diff: {error}"
    return ""
