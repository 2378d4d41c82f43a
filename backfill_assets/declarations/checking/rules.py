"""Mistakes in the rules of a model: rules that no row can be held against, and rules of a row that look at several.

Put here what is found by asking a rule. Polars computes the answer: ask where a run is planned or a file is loaded, not while
declarations are imported, since Spark's workers are forked from processes that have imported them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandera.polars as pa
import polars as pl

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


def _unanswerable(model: type[pa.DataFrameModel]) -> dict[str, Exception]:
    """Return by name the rules that no frame of a model's columns could be held against, each with what it raised.

    They are asked of a frame without rows. A rule of a product's own that raises without rows may have an answer for some:
    of those only what Polars says of names and types counts. A `row_rule` has no other answer than a Boolean a row.
    """
    schema, none = model.to_schema(), pl.LazyFrame(schema=dtypes(model))
    found: dict[str, Exception] = {}
    for name, column in schema.columns.items():
        for check in column.checks:
            try:
                check(none, name)
            except Exception as error:  # noqa: BLE001 - a product's own function raises what it likes
                if is_built_in(check) or isinstance(error, _OF_TYPES):
                    found[f"{name}: {check.name}"] = error
    for check in schema.checks:
        try:
            _ask_whole(check, none)
        except Exception as error:  # noqa: BLE001 - as above
            if is_row_rule(check) or isinstance(error, _OF_TYPES):
                found[str(check.name)] = error
    return found


def _ask_whole(check: pa.Check, none: pl.LazyFrame) -> None:
    """Ask a rule of a whole frame.

    Raises:
        TypeError: if it is a `row_rule` and answers with something else than a Boolean a row.
    """
    if not is_row_rule(check):
        check(none)
        return
    answers = answers_of(check, none)
    kinds = answers.collect_schema().dtypes() if isinstance(answers, pl.LazyFrame) else [type(answers).__name__]
    if kinds != [pl.Boolean]:
        raise TypeError(f"it returns {' and '.join(map(str, kinds))}")
