"""Rewritten chunks held against the rows that they were written from, in Spark's workers: each row once, in every column.

Put here how both sides of a chunk are read and compared; which files these are is for `gates.rewritten` to say. Nothing of what wrote the
files is used. Imports neither Dagster nor PySpark's SQL. Memory is the rows of one chunk, twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import polars as pl
from pyiceberg.schema import Schema

from backfill_assets.declarations.schema import polars_type
from backfill_assets.worker.columns import UNREADABLE
from backfill_assets.worker.digest import RowDigest
from backfill_assets.worker.key_order import by_key
from backfill_assets.worker.remaining_rows import ReadTask, left_of
from backfill_assets.worker.violations import SAMPLE_ROWS, Violation, add_unreadable, add_violation, shown_row
from resources.spark.chunk_work import ChunkWork

LOST_RULE = "each row of the pinned snapshot is there"
ADDED_RULE = "no row is there that the pinned snapshot has not"
CHANGED_RULE = "each row is as the pinned snapshot has it, with its lineage"
_OWN = "__rewritten"


@dataclass(frozen=True)
class RewrittenSpec:
    """By what rows are read and compared: the table's schema (Iceberg JSON), and the columns of its key."""

    schema: str
    key: tuple[str, ...]


@dataclass(frozen=True)
class RewrittenTask:
    """One rewritten chunk: the files that it was written from, with the deletes on them, and its own."""

    chunk: str
    base: tuple[ReadTask, ...]
    own: tuple[ReadTask, ...]


@dataclass(frozen=True)
class JudgedRewriting:
    """What was found of a chunk: how many rows, and the digest of all of their columns, where both sides have the same one."""

    chunk: str
    rows: int
    digest: str
    violations: list[Violation] = field(default_factory=list)


def comparing(spec: RewrittenSpec) -> ChunkWork[RewrittenTask, JudgedRewriting]:
    """Return the work of holding rewritten chunks against what they were written from."""
    return ChunkWork(partial(_compare, spec), RewrittenTask, JudgedRewriting)


def _compare(spec: RewrittenSpec, tasks: Iterable[RewrittenTask]) -> Iterator[JudgedRewriting]:
    schema = Schema.model_validate_json(spec.schema)
    kinds = {one.name: polars_type(one.field_type) for one in schema.fields}

    def rows_of(file: ReadTask) -> pl.DataFrame:
        return left_of(file, spec.schema, list(kinds))

    for task in tasks:
        violations: dict[str, Violation] = {}
        before = _together(rows_of, task.base, kinds, spec.key, violations)
        after = _together(rows_of, task.own, kinds, spec.key, violations)
        digest = ""
        if not violations:
            digest = _digest(after, kinds)
            if digest != _digest(before, kinds):
                _name(before, after, spec.key, violations)
        yield JudgedRewriting(task.chunk, after.height, "" if violations else digest, list(violations.values()))


def _together(
    rows_of: Callable[[ReadTask], pl.DataFrame],
    files: Iterable[ReadTask],
    kinds: Mapping[str, pl.DataType],
    key: Sequence[str],
    violations: dict[str, Violation],
) -> pl.DataFrame:
    """Return the rows of files in the order of the key; of one that cannot be read, a violation says so."""
    frames = [pl.DataFrame(schema=dict(kinds))]
    for file in files:
        try:
            frames.append(rows_of(file))
        except UNREADABLE as error:
            add_unreadable(violations, file.path, error)
    return by_key(pl.concat(frames, how="vertical_relaxed"), key)[0]


def _digest(rows: pl.DataFrame, kinds: Mapping[str, pl.DataType]) -> str:
    digest = RowDigest(kinds)
    digest.update(rows)
    return digest.result()


def _name(before: pl.DataFrame, after: pl.DataFrame, key: Sequence[str], violations: dict[str, Violation]) -> None:
    """Add which rows differ; where each has a counterpart that says the same, that some of them are there more often."""
    on = list(key)
    for rule, rows, beside in ((LOST_RULE, before, after), (ADDED_RULE, after, before)):
        if (alone := rows.join(beside, on=on, how="anti", nulls_equal=True)).height:
            add_violation(violations, rule, alone.height, _shown(alone))
    both = before.join(after, on=on, how="inner", suffix=_OWN, nulls_equal=True)
    others = [name for name in before.columns if name not in key]
    differs = [pl.col(name).ne_missing(pl.col(f"{name}{_OWN}")) for name in others]
    changed = both.filter(pl.any_horizontal(differs)) if differs else both.clear()
    if changed.height:
        was = _shown(changed.select(before.columns))
        now = _shown(changed.select(*key, *(pl.col(f"{name}{_OWN}").alias(name) for name in others)))
        sample = [{"before": old, "rewritten": new} for old, new in zip(was, now, strict=True)]
        add_violation(violations, CHANGED_RULE, changed.height, sample)
    if not violations:
        rule = LOST_RULE if before.height > after.height else ADDED_RULE
        add_violation(violations, rule, max(1, abs(before.height - after.height)), [])


def _shown(rows: pl.DataFrame) -> list[dict[str, Any]]:
    return [shown_row(row) for row in rows.head(SAMPLE_ROWS).to_dicts()]
