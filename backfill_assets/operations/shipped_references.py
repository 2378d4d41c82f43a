"""The reference tables that products ship, held against their declarations before an installation is made of them.

Put here what is asked of what a product's `references` function yields. How they get into their tables is `initialise`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import polars as pl
import pyarrow as arrow
from pandera.errors import SchemaErrors
from pyiceberg.io.pyarrow import schema_to_pyarrow

from backfill_assets.declarations.checking.imports import python_words
from backfill_assets.declarations.checking.names import did_you_mean
from backfill_assets.declarations.checking.table_fields import in_words
from backfill_assets.declarations.finding import imported_references
from backfill_assets.declarations.places import place
from backfill_assets.declarations.product import InputTable, Product
from backfill_assets.declarations.raised_by_products import ANY_ERROR
from backfill_assets.declarations.schema import dtypes, iceberg_schema
from backfill_assets.installation import Platform
from backfill_assets.worker.columns import as_types
from manifests.errors import DeclarationRefused, Problem, Refused
from manifests.fields import VERSION_PATTERN, VERSION_WORDS

Shipped = tuple[str, arrow.Table, str]
"""The name of a reference table, its rows, and their version."""
_FORM = "`references` yields, of each reference table, its name, an Arrow table and a version"
_PARTS = 3


def shipped_references(platform: Platform) -> list[Shipped]:
    """Return the reference tables that products ship.

    Raises:
        DeclarationRefused: if one cannot be had, or is not as its table is declared: all reasons of a product at once.
    """
    found: list[Shipped] = []
    for product in platform.products:
        if product.references is not None:
            yielded = _yielded(product, product.references)
            if problems := list(_problems(product, yielded)):
                raise DeclarationRefused(problems)
            found += yielded
    return found


def _yielded(product: Product, path: str) -> list[Any]:
    function = imported_references(path, product.name)
    try:
        return list(function())
    except Refused:
        raise
    except ANY_ERROR as error:
        where = place(error) or f"product {product.name}"
        raise DeclarationRefused(
            Problem(python_words(error), _FORM, f"correct {path}, which is called without arguments", where)
        ) from error


def _problems(product: Product, yielded: list[Any]) -> Iterator[Problem]:
    tables = {table.name: table for table in product.inputs if table.is_reference}
    where, seen = f"product {product.name}: references", set()
    for one in yielded:
        if not isinstance(one, (tuple, list)) or len(one) != _PARTS:
            yield Problem(f"it yields {in_words(one)}", _FORM, "yield the three of them", where)
            continue
        name, rows, version = one
        if name not in tables:
            meant = did_you_mean(name, tables)
            yield Problem(
                f"it yields {in_words(name)}, which is no reference table of the product{meant}",
                f"reference tables of {product.name} are {', '.join(tables) or 'none'}",
                "correct the name, or declare it with is_reference=True",
                where,
            )
            continue
        if name in seen:
            yield Problem(f"it yields {name} twice", "a table has one content", "take one of them out", where)
        seen.add(name)
        if not (isinstance(version, str) and re.fullmatch(VERSION_PATTERN, version)):
            yield Problem(
                f"the version of {name} is {in_words(version)}",
                f"a manifest names it: {VERSION_WORDS}",
                "for example 2026-01",
                where,
            )
        if isinstance(rows, arrow.Table):
            yield from _of_rows(tables[name], rows, f"{where}: {name}")
        else:
            yield Problem(
                f"the rows of {name} are {in_words(rows)}",
                _FORM,
                "give an Arrow table (of Polars: `.to_arrow()`)",
                where,
            )


def _of_rows(table: InputTable, rows: arrow.Table, where: str) -> Iterator[Problem]:
    declared = dtypes(table.model)
    if sorted(rows.column_names) != sorted(declared):
        yield Problem(
            f"its columns are {', '.join(rows.column_names)}",
            f"those of {table.model.__name__} are {', '.join(declared)}",
            "give each of them, and no others",
            where,
        )
        return
    given = pl.Schema(pl.from_arrow(rows.slice(0, 0)).schema)  # type: ignore[union-attr]
    other = {
        name: f"{name} is {given[name]} and declared as {kind}"
        for name, kind in declared.items()
        if given[name] != kind and not _widens(given[name], kind)
    }
    if other:
        yield Problem("; ".join(other.values()), "values have the declared types", "give them those types", where)
        return
    try:
        cast = as_types(rows.select(list(declared)), schema_to_pyarrow(iceberg_schema(table.model)))
        table.model.to_schema().validate(pl.DataFrame(pl.from_arrow(cast)), lazy=True)
    except SchemaErrors as errors:
        rules = sorted({f"{row['column']}: {row['check']}" for row in errors.failure_cases.to_dicts()})
        what = f"rows break {', '.join(rules)[:300]}"
        yield Problem(what, f"every row passes the rules of {table.model.__name__}", "correct the rows", where)
    except (arrow.ArrowException, pl.exceptions.PolarsError) as error:
        yield Problem(python_words(error), "values have the declared types", "give them those types", where)


def _widens(given: pl.DataType, declared: pl.DataType) -> bool:
    """Return whether values of a type may be of a declared one; whether each is, is seen when they are cast."""
    return (given.is_integer() and declared.is_integer()) or (given.is_decimal() and declared.is_decimal())
