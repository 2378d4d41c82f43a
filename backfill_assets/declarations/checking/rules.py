"""Mistakes in the rules of a model: rules that no row can be held against, and rules of a row that look at several.

Put here what is found by asking a rule. Polars computes the answer: ask where a run is planned or a file is loaded, not while
declarations are imported, since Spark's workers are forked from processes that have imported them.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.column_types import instance_of
from backfill_assets.declarations.pandera_private import answers_of, is_built_in
from backfill_assets.declarations.places import place
from backfill_assets.declarations.raised_by_products import ANY_ERROR, NO_ANSWER
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
_LISTS = ("allowed_values", "forbidden_values")
"""What pandera's checks `isin` and `notin` are given."""
_SAID = 500
_SOME_TIME = datetime(2024, 1, 1, tzinfo=UTC)


def rule_problems(models: Mapping[str, type[pa.DataFrameModel]]) -> Iterator[Problem]:
    """Say which rules of models, by the names of their tables, no row could be held against, or mean another thing."""
    for table, model in models.items():
        unanswerable = _unanswerable(model)
        for rule, error in unanswerable.items():
            yield Problem(
                f"the rule {rule!r} of {model.__name__} cannot be answered: {type(error).__name__}: "
                f"{words_of(error).strip().partition(chr(10))[0][:_SAID]}",
                "a rule is about columns of the model, each of its type; a row_rule returns a Boolean for each row",
                "correct the rule, or the column's type",
                place(error, only_products=True) or f"{table}: model",
            )
        for name, times in Counter(str(one.name) for one in model.to_schema().checks if is_row_rule(one)).items():
            if times > 1:
                yield Problem(
                    f"{model.__name__} has {times} rules of the name {name!r}",
                    "a verdict names the rule that rows break",
                    "give one of them another name",
                    f"{table}: model",
                )
        if not unanswerable and (wrong := false_row_rules(model)):
            yield Problem(
                f"{model.__name__} declares as row_rule what looks at several rows: {', '.join(wrong)}",
                "many chunks are held against a row_rule at once",
                "declare it as a pandera dataframe_check",
                f"{table}: model",
            )


def false_row_rules(model: type[pa.DataFrameModel]) -> list[str]:
    """Return the names of a model's `row_rule`s that look at several rows: they answer for none, or otherwise for one alone.

    Many small chunks are held against a `row_rule` at once: such a rule would pass or fail them by each other's rows.
    """
    none, some = pl.LazyFrame(schema=dtypes(model)), some_rows(pl.Schema(dtypes(model)))
    rules = [check for check in model.to_schema().checks if is_row_rule(check)]
    return [
        str(check.name)
        for check in rules
        if answers_of(check, none).collect().height or not _is_of_one_row(check, some)
    ]


def _is_of_one_row(check: pa.Check, rows: pl.DataFrame) -> bool:
    """Return whether a rule has the same answers for rows together as for each alone; what it has none for says nothing."""
    try:
        together = answers_of(check, rows.lazy()).collect()
        alone = [answers_of(check, rows[at : at + 1].lazy()).collect() for at in range(rows.height)]
    except ANY_ERROR:  # a rule may not have an answer for whatever rows
        return True
    return together.height == rows.height and together.equals(pl.concat(alone), null_equal=True)


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
        if is_built_in(check) and any(isinstance((check.statistics or {}).get(name), str) for name in _LISTS):
            found[rule] = TypeError("its values are one text, as pandera makes of a tuple of one, too; write a list")
            continue
        ask: Callable[[pa.Check, pl.LazyFrame, str], None]
        ask = _ask_row_rule if is_row_rule(check) else _ask_built_in if is_built_in(check) else _ask_own
        try:
            with quietly():
                ask(check, none, column)
        except ANY_ERROR as error:
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
        TypeError: if it returns nothing, or a frame of other answers than Booleans.
        pl.exceptions.PolarsError: if it is one of names or types, both times.
    """
    found: Exception | None = None
    for frame in (none, _one_row(none.collect_schema())):
        try:
            answers = answers_of(check, frame, column)
        except NO_ANSWER as error:  # it may have one for other rows
            if cannot_be(error):
                raise
            return
        if answers is None:
            raise TypeError("it returns None")
        if check.element_wise or not isinstance(answers, pl.LazyFrame):
            return
        try:
            kinds = answers.collect().dtypes
        except _OF_TYPES as error:
            found = error
        except NO_ANSWER:  # as above
            return
        else:
            # of no row a frame that is made of values has no type to speak of
            other = [kind for kind in kinds if kind not in (pl.Boolean, pl.Null)]
            if not other:
                return
            found = TypeError(f"it returns {' and '.join(map(str, other))}")
    assert found is not None
    raise found


def some_rows(kinds: pl.Schema, number: int = 12, nullable: Container[str] | None = None) -> pl.DataFrame:
    """Return rows whose columns have few values each, in no order; the same ones each time.

    One of the values is NULL, of all columns or of those that are `nullable`.
    """
    chance = random.Random(number)  # noqa: S311 - nothing is kept secret by it
    rows: dict[str, list[Any]] = {}
    for name, kind in kinds.items():
        values = [*_values(kind), None] if nullable is None or name in nullable else _values(kind)
        rows[name] = [chance.choice(values) for _ in range(number)]
    return pl.DataFrame(rows, schema=kinds, strict=False)


def cannot_be(error: BaseException) -> bool:
    """Return whether an error is of a name that there is not, or that no frame has: whatever the rows, it is raised."""
    of_frames = (pl.DataFrame, pl.LazyFrame, pl.Series, pl.Expr, pa.PolarsData)
    return isinstance(error, NameError) or (isinstance(error, AttributeError) and isinstance(error.obj, of_frames))


@contextmanager
def quietly() -> Iterator[None]:
    """Have what a product's function prints while it is asked go to standard error: a script reads what the command prints."""
    with redirect_stdout(sys.stderr):
        yield


def _one_row(kinds: pl.Schema) -> pl.LazyFrame:
    """Return a row with a value in each column."""
    return pl.LazyFrame({name: _values(kind)[:1] for name, kind in kinds.items()}, schema=kinds, strict=False)


def _values(kind: pl.DataType) -> list[Any]:
    values: dict[Any, list[Any]] = {
        pl.String: ["x", "", "case-1", "2024-01-01"],
        pl.Boolean: [True, False],
        pl.Date: [_SOME_TIME.date() + timedelta(days=day) for day in (0, 1, 31, 366)],
        pl.Datetime: [_SOME_TIME + timedelta(hours=hour) for hour in (0, 1, 25, 9000)],
        pl.Decimal: [Decimal(one) for one in (1, 0, 2, -3)],
        pl.List: [[]],
        pl.Map: [{}],
        pl.Binary: [b"x", b""],
        pl.Time: [time(hour) for hour in (0, 1, 12)],
    }
    if isinstance(kind, pl.Struct):
        return [{field.name: _values(instance_of(field.dtype))[0] for field in kind.fields}]
    if isinstance(kind, pl.Datetime) and kind.time_zone is None:
        return [one.replace(tzinfo=None) for one in values[pl.Datetime]]
    return values.get(kind.base_type(), [1, 0, 2, 5, -3])
