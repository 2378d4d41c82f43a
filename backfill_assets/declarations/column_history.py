"""What a model says of the past of its columns: the names that they had before.

Put here what a column's declaration says of earlier tables, and how it is written. What is done to a table that still has
an earlier name is `operations.columns`'; the columns as they are now are `declarations.schema`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandera.polars as pa

from backfill_assets.declarations.schema import lineage_columns
from manifests.errors import Problem

RENAMED_FROM = "renamed_from"
"""Key in the metadata of a `pa.Field`: the name that the column had before, or a list of them, newest first."""


def former_names(model: type[pa.DataFrameModel]) -> dict[str, tuple[str, ...]]:
    """Return the columns of a model that had other names before, each with these, newest first."""
    said = {name: (column.metadata or {}).get(RENAMED_FROM) for name, column in model.to_schema().columns.items()}
    return {name: _names(one) for name, one in said.items() if one is not None}


def may_be_null(model: type[pa.DataFrameModel]) -> frozenset[str]:
    """Return the columns of a model that a row may be without a value in."""
    return frozenset(name for name, column in model.to_schema().columns.items() if column.nullable)


def former_name_problems(table: str, model: type[pa.DataFrameModel]) -> Iterator[Problem]:
    """Say which former names of a model's columns are no names, or leave a doubt about which column is which."""
    where, claimed = f"{table}: model", dict[str, str]()
    columns = model.to_schema().columns
    for name, column in columns.items():
        said = (column.metadata or {}).get(RENAMED_FROM)
        if said is None:
            continue
        what = f"{RENAMED_FROM} of column {name} is {said!r}"
        names = _names(said)
        if not names or not all(isinstance(one, str) and one for one in names):
            yield Problem(what, "it is the name that the column had before, or a list of them, newest first", "", where)
            continue
        if name in lineage_columns(model):
            yield Problem(what, "lineage columns are the platform's, and keep their names", "take it out", where)
        for one in names:
            if one in columns:
                rule = "a former name is nobody's any more: one that the model declares is another column"
                yield Problem(what, rule, f"take {one} out of {RENAMED_FROM}, or out of the model", where)
            elif claimed.setdefault(one, name) != name:
                rule = f"a column becomes one column, and {claimed[one]} says the same"
                yield Problem(what, rule, f"take {one} out of one of the two", where)


def _names(said: Any) -> tuple[Any, ...]:
    return (said,) if isinstance(said, str) else tuple(said) if isinstance(said, (list, tuple)) else ()
