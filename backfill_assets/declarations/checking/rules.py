"""Mistakes in the rules of a model: rules that no row can be held against, and rules of a row that look at several.

Put here what is found by asking a rule. Polars computes the answer: ask where a run is planned or a file is loaded, not while
declarations are imported, since Spark's workers are forked from processes that have imported them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.checking.imports import ENDS_THE_PROCESS
from backfill_assets.declarations.pandera_private import answers_of, is_built_in
from backfill_assets.declarations.places import place
from backfill_assets.declarations.schema import dtypes, is_row_rule
from manifests.errors import Problem
from manifests.text import words_of

_OF_TYPES = (
    pl.exceptions.ColumnNotFoundError,
    pl.exceptions.ComputeError,
    pl.exceptions.InvalidOperationError,
    pl.exceptions.SchemaError,
)
"""What Polars raises of names and types, whatever rows there are."""
_SOME_TIME = datetime(2024, 1, 1, tzinfo=UTC)


def rule_problems(models: Mapping[str, type[pa.DataFrameModel]]) -> Iterator[Problem]:
    """Say which rules of models, by the names of their tables, no row could be held against, or mean another thing."""
    for table, model in models.items():
        unanswerable = _unanswerable(model)
        for rule, error in unanswerable.items():
            yield Problem(
                f"the rule {rule!r} of {model.__name__} cannot be answered: {type(error).__name__}: "
                f"{words_of(error).strip().partition(chr(10))[0]}",
                "a rule is about columns of the model, each of its type; a row_rule returns a Boolean for each row",
                "correct the rule, or the column's type",
                place(error, only_products=True) or f"{table}: model",
            )
        if not unanswerable and (wrong := false_row_rules(model)):
            yield Problem(
                f"{model.__name__} declares as row_rule what looks at several rows: {', '.join(wrong)}",
                "many chunks are held against a row_rule at once",
                "declare it as a pandera dataframe_check",
                f"{table}: model",
            )


def false_row_rules(model: type[pa.DataFrameModel]) -> list[str]:
    """Return the names of a model's `row_rule`s that have an answer for a frame without rows: they sum rows up.

    Such a rule would pass or fail many chunks at once.
    """
    none = pl.LazyFrame(schema=dtypes(model))
    return [
        str(check.name)
        for check in filter(is_row_rule, model.to_schema().checks)
        if answers_of(check, none).collect().height
    ]


def _unanswerable(model: type[pa.DataFrameModel]) -> dict[str, BaseException]:
    """Return by name the rules that no frame of a model's columns could be held against, each with what it raised.

    They are asked of a frame without rows. A rule of a product's own may need rows to make its answer: of those only what
    Polars says of names and types in the answer counts. A `row_rule` has no other answer than a Boolean a row.
    """
    schema, none = model.to_schema(), pl.LazyFrame(schema=dtypes(model))
    asked = [
        (f"{name}: {check.name}", check, name) for name, column in schema.columns.items() for check in column.checks
    ]
    asked += [(str(check.name), check, "*") for check in schema.checks]
    found: dict[str, BaseException] = {}
    for rule, check, column in asked:
        ask = _ask_row_rule if is_row_rule(check) else _ask_built_in if is_built_in(check) else _ask_own
        try:
            ask(check, none, column)
        except (Exception, *ENDS_THE_PROCESS) as error:  # noqa: BLE001 - a product's own function raises what it likes
            found[rule] = error
    return found


def _ask_built_in(check: pa.Check, none: pl.LazyFrame, column: str) -> None:
    check(none, column)


def _ask_row_rule(check: pa.Check, none: pl.LazyFrame, column: str) -> None:
    """Ask a rule of rows.

    Raises:
        TypeError: if it answers with something else than a Boolean a row.
    """
    answers = answers_of(check, none, column)
    kinds = answers.collect().dtypes if isinstance(answers, pl.LazyFrame) else [type(answers).__name__]
    if kinds != [pl.Boolean]:
        raise TypeError(f"it returns {' and '.join(map(str, kinds))}")


def _ask_own(check: pa.Check, none: pl.LazyFrame, column: str) -> None:
    """Ask a rule of a product's own, of no row and of one: it may make a frame of its own out of the rows.

    Raises:
        pl.exceptions.PolarsError: if it is one of names or types, both times.
    """
    for frame in (none, _one_row(none.collect_schema())):
        try:
            answers = answers_of(check, frame, column)
        except Exception:  # noqa: BLE001 - it may have an answer for other rows
            return
        if check.element_wise or not isinstance(answers, pl.LazyFrame):
            return
        try:
            answers.collect()
        except _OF_TYPES as error:
            last = error
        except Exception:  # noqa: BLE001 - as above
            return
        else:
            return
    raise last


def _one_row(kinds: pl.Schema) -> pl.LazyFrame:
    """Return a row with a value in each column."""
    values: dict[Any, Any] = {
        pl.String: "x",
        pl.Boolean: True,
        pl.Date: _SOME_TIME.date(),
        pl.Datetime: _SOME_TIME,
        pl.Decimal: Decimal(1),
        pl.List: [],
    }
    row = {name: [values.get(kind.base_type(), 1)] for name, kind in kinds.items()}
    return pl.LazyFrame(row, schema=kinds, strict=False)
