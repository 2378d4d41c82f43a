"""Mistakes in what a target's `measure` and outline return, found by asking them.

Put here what is asked of rows that are made up: where a run is planned, as the rules of models are (`rules`). Whether a function
can be called at all is `functions`' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import polars as pl

from backfill_assets.declarations.checking.imports import ENDS_THE_PROCESS
from backfill_assets.declarations.checking.rules import OF_TYPES, some_rows
from backfill_assets.declarations.places import place
from backfill_assets.declarations.schema import dtypes
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.text import words_of


def answer_problems(target: TargetTable) -> Iterator[Problem]:
    """Say what `measure` and the outline of a target return that its gates could not use.

    Each is asked of rows with the target's columns. What it raises of their values says nothing: other rows may have an
    answer.
    """
    if target.measure is not None:
        yield from _asked(target, "measure", target.measure, _of_measures)
    if target.outline is not None:
        wanted = target.outline.columns
        yield from _asked(target, "outline.rows", target.outline.rows, lambda answer: _of_outline(answer, wanted))


def _asked(
    target: TargetTable, field: str, function: Callable[[pl.DataFrame], Any], look: Callable[[pl.DataFrame], str | None]
) -> Iterator[Problem]:
    where, some = f"{target.name}: {field}", some_rows(pl.Schema(dtypes(target.model)))
    answer, error = _answer(function, some)
    if error is not None:
        # of names and types it is asked without rows, too: the values are made up
        if isinstance(error, (*OF_TYPES, *ENDS_THE_PROCESS)) and _answer(function, some.clear())[1] is not None:
            said = words_of(error).strip().partition(chr(10))[0]
            yield Problem(
                f"{field} raises {type(error).__name__}: {said}",
                f"it is asked of rows with the columns of {target.model.__name__}",
                "correct the name or the type",
                place(error, only_products=True) or where,
            )
        return
    if not isinstance(answer, pl.DataFrame):
        what, rule = f"{field} returns a {type(answer).__name__}", "it returns a polars DataFrame"
        yield Problem(what, rule, "collect a lazy frame; return it", where)
    elif (wrong := look(answer)) is not None:
        fix = "see `Own gates` in docs/adding-a-table.md"
        yield Problem(f"{field} returns {wrong}", _RULES[field], fix, where)


def _answer(function: Callable[[pl.DataFrame], Any], rows: pl.DataFrame) -> tuple[Any, BaseException | None]:
    try:
        return function(rows), None
    except (Exception, *ENDS_THE_PROCESS) as error:  # noqa: BLE001 - a product's own function raises what it likes
        return None, error


_RULES = {
    "measure": "its columns are slices (texts, days, truths) and integer sums, which are added up and compared",
    "outline.rows": "the outline's columns are kept of them",
}


def _of_measures(answer: pl.DataFrame) -> str | None:
    inexact = [f"{name} as {kind}" for name, kind in answer.schema.items() if kind.is_float() or kind.is_decimal()]
    if inexact:
        return f"{', '.join(inexact)}: count cents or thousandths"
    if not any(kind.is_integer() for kind in answer.dtypes):
        return f"no sum: {', '.join(f'{name} ({kind})' for name, kind in answer.schema.items()) or 'no column'}"
    return None


def _of_outline(answer: pl.DataFrame, wanted: tuple[str, ...]) -> str | None:
    lacking = [name for name in wanted if name not in answer.columns]
    return f"no {', '.join(lacking)}" if lacking else None
