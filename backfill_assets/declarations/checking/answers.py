"""Mistakes in what a target's `measure` and outline return, found by asking them.

Put here what is asked of rows that are made up: where a run is planned, as the rules of models are (`rules`). Such rows are
like those of the target in their columns, key and order, and in nothing else: what depends on their values is left to the
gates. Whether a function can be called at all is `functions`' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.checking.names import names_of, texts
from backfill_assets.declarations.checking.rules import cannot_be, quietly, some_rows
from backfill_assets.declarations.measures import USABLE, unusable_columns
from backfill_assets.declarations.places import place
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.text import words_of

_SAID = 200
_CHUNK = "chunk"
"""What `context.measures` has besides: the key of the chunk."""


def answer_problems(target: TargetTable) -> Iterator[Problem]:
    """Say what `measure` and the outline of a target return that its gates could not use, whatever rows there are."""
    if target.measure is not None:
        yield from _asked(target, "measure", target.measure, partial(_of_measures, target))
    for gate, names in _wanted(target).items() if target.measure is None else ():
        yield Problem(
            f"gate {gate} adds up {', '.join(names)} of what `measure` has counted, and {target.name} declares no measure",
            "`context.measures` has the columns that `measure` returns, and the chunk's key",
            "declare a measure that returns them, or give the gate `found`",
            f"{target.name}: measure",
        )
    if target.outline is not None:
        wanted = target.outline.columns
        yield from _asked(target, "outline.rows", target.outline.rows, lambda answer: _of_outline(answer, wanted))


def _wanted(target: TargetTable) -> dict[str, list[str]]:
    """Return, by gate, the columns that `measure` has to return for it."""
    wanted = {
        gate.name: [one for one in names_of(gate.needs.measured) if one != _CHUNK] for gate in target.reconciliations
    }
    return {gate: names for gate, names in wanted.items() if names}


def _asked(
    target: TargetTable, field: str, function: Callable[[pl.DataFrame], Any], look: Callable[[pl.DataFrame], str | None]
) -> Iterator[Problem]:
    where, rule = f"{target.name}: {field}", _RULES[field]
    try:
        with quietly():
            answer = function(_rows_of(target))
            wrong = look(answer) if isinstance(answer, pl.DataFrame) else f"a {type(answer).__name__}"
    except pl.exceptions.ColumnNotFoundError as error:
        if (missing := _missing_of(target, error)) is not None:
            fix = "correct the name"
            yield Problem(f"{field} raises {missing}", rule, fix, place(error, only_products=True) or where)
        return
    except ANY_ERROR as error:
        if cannot_be(error):  # else it may have an answer for other values
            fix = "correct the name"
            yield Problem(
                f"{field} raises {python_words(error)[:_SAID]}", rule, fix, place(error, only_products=True) or where
            )
        return
    if wrong is not None:
        yield Problem(f"{field} returns {wrong}", rule, 'see "Own gates" in docs/adding-a-table.md', where)


def _rows_of(target: TargetTable) -> pl.DataFrame:
    """Return a few rows such as a chunk of the target has: no NULL where there is none, keys in order, each once."""
    columns = target.model.to_schema().columns
    nullable = {name for name, column in columns.items() if column.nullable}
    rows = some_rows(pl.Schema(dtypes(target.model)), nullable=nullable)
    key = [name for name in texts(target.key) if name in rows.columns]
    return rows.unique(subset=key, keep="first").sort(key) if key else rows


def _depends_on_values(target: TargetTable, columns: list[str]) -> bool:
    """Return whether other rows may give a measure other columns than these: it is asked of each row alone."""
    rows = _rows_of(target)
    assert target.measure is not None
    try:
        with quietly():
            return any(target.measure(rows[at : at + 1]).columns != columns for at in range(rows.height))
    except ANY_ERROR:
        return True


def _missing_of(target: TargetTable, error: pl.exceptions.ColumnNotFoundError) -> str | None:
    """Return what Polars says of a column that the target's rows do not have; None if it was looked for in others."""
    said = words_of(error).strip().partition(chr(10))[0]
    is_of_rows = all(f'"{name}"' in said.partition("valid columns: ")[2] for name in dtypes(target.model))
    return f"ColumnNotFoundError: {said.partition('; valid')[0][:_SAID]}" if is_of_rows else None


_RULES = {
    "measure": f"it returns a polars DataFrame: {USABLE}",
    "outline.rows": "it returns a polars DataFrame with the outline's columns",
}


def _of_measures(target: TargetTable, answer: pl.DataFrame) -> str | None:
    if unusable := unusable_columns(answer):
        return f"{', '.join(unusable)}; count cents or thousandths where it is a sum"
    if answer.height and not any(kind.is_integer() or kind == pl.Null for kind in answer.dtypes):
        return f"no sum: {', '.join(f'{name} ({kind})' for name, kind in answer.schema.items())}"
    lacking = {gate: [name for name in names if name not in answer.columns] for gate, names in _wanted(target).items()}
    said = [f"no {', '.join(names)}, which gate {gate} looks for" for gate, names in lacking.items() if names]
    if not (said and answer.width) or _depends_on_values(target, answer.columns):
        return None
    return f"{'; '.join(said)}: it has {', '.join(answer.columns)}"


def _of_outline(answer: pl.DataFrame, wanted: tuple[str, ...]) -> str | None:
    lacking = [name for name in wanted if name not in answer.columns]
    return f"no {', '.join(lacking)}" if lacking and answer.height else None
