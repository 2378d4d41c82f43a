"""Mistakes in what a model says of its values: rules that let no value pass, or every one; columns that may be left out.

Put here what pandera takes, and a table cannot have. What is found by asking a rule is `rules`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from inspect import get_annotations
from itertools import islice
from math import ceil, floor
from typing import Any, get_type_hints

import pandera.polars as pa
import polars as pl

from backfill_assets.declarations.checking.columns import ColumnTypes
from backfill_assets.declarations.pandera_private import is_built_in
from backfill_assets.declarations.schema import Published, PublishedInFull
from manifests.errors import Problem

_OFFERED = 1000
"""Values of a list that are looked at; of a longer one nothing is said."""
_INTEGERS: dict[type[pl.DataType], int] = {pl.Int32: 31, pl.Int64: 63}
"""How many bits of an integer its value has."""
_Bound = tuple[Any, bool]
"""A value, and whether it is one of those that it bounds."""


def of_values(table: str, model: type[pa.DataFrameModel], columns: ColumnTypes) -> Iterator[Problem]:
    """Say which columns of a model no value could be in, or which a row might not have."""
    where = f"{table}: model"
    says_digits, schema = _says_pandera_s_own_digits(model), model.to_schema()
    yield from _of_lenience(model, where)
    yield from _of_names(model, where)
    for name, column in schema.columns.items():
        if not isinstance(column.description, (str, type(None))):
            what = f"description of column {name} is {column.description!r}"
            yield Problem(what, "it is a text", "write it in quotes", where)
        if column.default is not None:
            yield Problem(
                f"column {name} has a default ({column.default!r})",
                "pandera would put it where a row is NULL, and look at that; the row stays as it is",
                "take the default out; `pa.Field(nullable=True)` where it may be NULL",
                where,
            )
        if not isinstance(column.nullable, bool):
            yield Problem(
                f"nullable of column {name} is {column.nullable!r}", "it is True or False", "write one", where
            )
        if not column.required:
            yield Problem(
                f"column {name} may be left out",
                "pandera takes `Optional` and `| None` for a column that may be missing, and a row has every column",
                "declare the plain type, with `pa.Field(nullable=True)` where it may be NULL",
                where,
            )
        if column.regex:
            yield Problem(
                f"column {name} is a pattern (`regex=True`)",
                "a column has one name",
                "declare each column by its name",
                where,
            )
        if columns.get(name) == pl.Decimal(28, 0) and not says_digits:
            yield Problem(
                f"column {name} is a decimal that does not say its digits",
                "pandera would take 28 of them, and none after the point",
                "for example Annotated[pl.Decimal, 12, 2]",
                where,
            )
        checks = [check for check in column.checks if is_built_in(check)]
        if name in columns and not column.nullable and not _some_value_passes(columns[name], checks):
            yield Problem(
                f"no value of column {name} ({columns[name]}) passes its rules: {', '.join(map(_rule, checks))}",
                "a column has values of its type that pass all of its rules",
                "correct the rules, or the column's type",
                where,
            )


def _of_names(model: type[pa.DataFrameModel], where: str) -> Iterator[Problem]:
    """Say which names of a model are no columns, or not told apart by everybody, or are the platform's with another type."""
    columns = model.to_schema().columns
    own = {name: kind for base in model.__mro__ for name, kind in get_annotations(base).items()}
    for name, kind in own.items():
        if name.startswith("_") and not name.startswith("__") and "ClassVar" not in str(kind):
            what = f"{name} is no column: pandera takes no name that begins with _"
            yield Problem(what, "each column of the table is declared", "give it another name, or an alias", where)
    small = Counter(name.lower() for name in columns)
    for name in (one for one in columns if small[one.lower()] > 1):
        rule = "Spark and SQL do not tell capitals from small letters"
        yield Problem(f"column {name} has the name of another", rule, "give one of them another name", where)
    if issubclass(model, Published):
        base = PublishedInFull if issubclass(model, PublishedInFull) else Published
        lineage = base.to_schema().columns
        for name in lineage:
            if columns[name].dtype != lineage[name].dtype:
                yield Problem(
                    f"column {name} is declared as {columns[name].dtype}",
                    f"it is the platform's, and says which run made a row: {lineage[name].dtype}",
                    "take it out: the model inherits it",
                    where,
                )


def _of_lenience(model: type[pa.DataFrameModel], where: str) -> Iterator[Problem]:
    """Say where a model lets rows pass that break its rules."""
    schema = model.to_schema()
    for word in ("drop_invalid_rows", "add_missing_columns"):
        if getattr(schema, word, False):
            yield Problem(
                f"Config of {model.__name__} has {word}",
                "a row that breaks a rule is seen: it fails its chunk, or goes to the quarantine; columns are all there",
                "take it out",
                where,
            )
    for name, checks in {**{name: one.checks for name, one in schema.columns.items()}, "": schema.checks}.items():
        for check in (one for one in checks if one.raise_warning):
            yield Problem(
                f"the rule {f'{name}: ' if name else ''}{check.name} of {model.__name__} only warns (`raise_warning=True`)",
                "a rule holds for each row; nobody would see a warning",
                "take `raise_warning` out, or the rule",
                where,
            )


def _says_pandera_s_own_digits(model: type[pa.DataFrameModel]) -> bool:
    """Return whether a model says by itself that a column has the digits that pandera takes where none are said."""
    try:
        hints = get_type_hints(model, include_extras=True).values()
    except Exception:  # noqa: BLE001 - of what cannot be looked at, nothing is said
        return True
    return any(isinstance(one, pl.Decimal) or getattr(one, "__metadata__", ())[:2] == (28, 0) for one in hints)


def _rule(check: pa.Check) -> str:
    given = ", ".join(f"{name} {value}" for name, value in (check.statistics or {}).items() if value is not None)
    return f"{check.name} ({given})"[:200]


def _some_value_passes(kind: pl.DataType, checks: Sequence[pa.Check]) -> bool:
    """Return whether the bounds of a column, those of its type among them, leave a value, as far as they say."""
    lower, upper = _of_type(kind)
    offered: list[list[Any]] = []
    barred: list[Any] = []
    for check in checks:
        said = check.statistics or {}
        match check.name:
            case "greater_than" | "greater_than_or_equal_to":
                lower.append((said.get("min_value"), check.name != "greater_than"))
            case "less_than" | "less_than_or_equal_to":
                upper.append((said.get("max_value"), check.name != "less_than"))
            case "in_range":
                lower.append((said.get("min_value"), said.get("include_min", True)))
                upper.append((said.get("max_value"), said.get("include_max", True)))
            case "equal_to":
                offered.append([said.get("value")])
            case "not_equal_to":
                barred.append(said.get("value"))
            case "isin" if not isinstance(said.get("allowed_values"), str):
                with suppress(Exception):  # whatever can be iterated over
                    offered.append(list(islice(said["allowed_values"], _OFFERED)))
            case "notin" if not isinstance(said.get("forbidden_values"), str):
                with suppress(Exception):  # of a longer list, what is looked at is barred all the same
                    barred += islice(said["forbidden_values"], _OFFERED)
    whole = kind.is_integer()
    if any(_apart(low, high, whole) for low in lower for high in upper):
        return False
    return all(
        len(values) == _OFFERED
        or any(not (_is_outside(value, lower, upper) or _is_barred(value, barred)) for value in values)
        for values in offered
    )


def _is_barred(value: Any, barred: Sequence[Any]) -> bool:
    """Return whether a value is one of those of its own type that there may not be; False where nobody knows."""
    with suppress(Exception):  # whatever is given
        return any(type(value) is type(one) and value == one for one in barred)
    return False


def _of_type(kind: pl.DataType) -> tuple[list[_Bound], list[_Bound]]:
    """Return the lower and the upper bounds of a type."""
    if (bits := _INTEGERS.get(kind.base_type())) is not None:
        return [(-(2**bits), True)], [(2**bits, False)]
    if isinstance(kind, pl.Decimal) and kind.precision is not None:
        beyond = Decimal(10) ** (kind.precision - kind.scale)
        return [(-beyond, False)], [(beyond, False)]
    return [], []


def _is_outside(value: Any, lower: Sequence[_Bound], upper: Sequence[_Bound]) -> bool:
    itself = (value, True)
    return any(_apart(low, itself) for low in lower) or any(_apart(itself, high) for high in upper)


def _apart(low: _Bound, high: _Bound, whole: bool = False) -> bool:
    """Return whether nothing lies between two bounds, of integers only where it has to be `whole`; False where nobody knows."""
    (least, with_least), (most, with_most) = low, high
    with suppress(Exception):  # texts and numbers, no number, whatever else is given
        if {type(least), type(most)} == {float, Decimal}:
            least, most = float(least), float(most)  # as near as Polars compares them
            with_least = with_most = True
        if whole:
            least, with_least = (ceil(least) if with_least else floor(least) + 1), True
            most, with_most = (floor(most) if with_most else ceil(most) - 1), True
        return bool(least > most or (least == most and not (with_least and with_most)))
    return False
