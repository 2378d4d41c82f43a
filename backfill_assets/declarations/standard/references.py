"""A gate of what rows refer to: each is in another table.

Put here what is looked up in a table that the run has pinned. Imported by Spark's Python workers: keep it light.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.checking.columns import in_columns
from backfill_assets.declarations.gate_arguments import declared_with, flag, named_apart, several, texts, unless
from backfill_assets.declarations.needs import Needs
from backfill_assets.declarations.reconciliations import Comparison, Entities, Wrong, record_level
from backfill_assets.declarations.standard.parts import declared_table, gate_name, own_rows
from backfill_assets.declarations.target import Finding, Reconciliation, ReconciliationContext, Tables, TargetTable
from manifests.errors import Problem


@declared_with
def reference_gate(
    columns: tuple[str, ...],
    table: str,
    key: tuple[str, ...] | None = None,
    name: str | None = None,
    *,
    asks: bool = False,
) -> Reconciliation:
    """Return a gate that what rows refer to is there: referential integrity, against the snapshot that the run has pinned.

    A row that has NULL in one of the columns refers to nothing and is not compared, as a foreign key of SQL has it (MATCH SIMPLE);
    how many there are is said. One Spark job joins the different values of the rows with those of the table. Of a merge, the rows of
    its entities are judged.

    Args:
        columns: the target's columns that refer.
        table: a reference table of the target, or its source.
        key: the table's columns that are referred to, in the same order; those of the same names unless given.
        name: of the gate; `<columns>_is_in_<table>` unless given.
        asks: whether an owner may accept what is not there with a reason.
    """
    gate = gate_name(name, f"{{}}_is_in_{str(table).rpartition('.')[2]}", columns)
    own, others = texts(columns), texts(columns if key is None else key)
    mistakes = [
        *several("columns", columns),
        *named_apart("columns", columns, ("in_table", "rows", "compared", "empty", "missing")),
        *unless(isinstance(table, str), "table", table, "table is the name of a table", '"bronze.meters"'),
        *([] if key is None else several("key", key)),
        *unless(
            len(own) == len(others), "key", key, f"it has as many columns as refer: {len(own)}", "name one for each"
        ),
        *flag("asks", asks),
    ]
    entities = Entities(
        Comparison(
            gate, partial(_referred, columns=own, table=table, key=others), own, (), ("compared", "empty", "missing")
        ),
        wrong=(Wrong("missing", f"refers to nothing in {table}"),),
        expected=("in_table",),
        found=("rows",),
        needs=Needs(rows=own, tolerances=()),
    )
    made = record_level(
        gate,
        f"What {', '.join(own)} of a row refer to is in {table}.",
        entities,
        compared="compared",
        summary=f"{{compared:,}} different values of {', '.join(own)}; {{wrong:,}} of them are not in {table}",
    )
    against = partial(_of_table, gate=gate, columns=own, table=table, key=others)
    check = partial(_judged, check=made.check, entities=entities, asks=asks is True)
    return replace(made, check=check, mistakes=tuple(mistakes), against=against)


def _judged(context: ReconciliationContext, *, check: Any, entities: Entities, asks: bool) -> Finding:
    found: Finding = check(context)
    empty = sum(row["empty"] for row in entities.comparison.counts(context))
    summary = found.summary + (f"; {empty:,} combinations with NULL refer to nothing" if empty else "")
    return replace(found, summary=summary, details={**found.details, "empty": empty}, asks=asks and not found.passed)


def _referred(
    context: ReconciliationContext, *, columns: tuple[str, ...], table: str, key: tuple[str, ...]
) -> DataFrame:
    """Return the different values that rows refer by, each with its rows and whether the table has it."""
    further = {**context.transform.references, **context.sources}
    there = context.source if table == table_source(context) else further[table]
    named = [F.col(name).alias(f"_key_{at}") for at, name in enumerate(key)]
    known = there.select(*named).distinct().withColumn("in_table", F.lit(True))
    values = own_rows(context).groupBy(*columns).agg(F.count("*").alias("rows"))
    pairs = [F.col(name) == F.col(f"_key_{at}") for at, name in enumerate(columns)]
    both = values.join(known, pairs, "left").withColumn("in_table", F.coalesce("in_table", F.lit(False)))
    complete = F.lit(True)
    for name in columns:
        complete = complete & F.col(name).isNotNull()
    return both.withColumns({"compared": complete, "empty": ~complete, "missing": complete & ~F.col("in_table")})


def table_source(context: ReconciliationContext) -> str:
    """Return the name of the table that the judged one is computed from."""
    return "" if context.target is None else context.target.source


def _of_table(
    target: TargetTable, tables: Tables, *, gate: str, columns: tuple[str, ...], table: Any, key: tuple[str, ...]
) -> Iterator[Problem]:
    """Say that the table is neither a reference of the target nor a source of it, lacks a column, or has one of another type."""
    where = f"{target.name}: gate {gate}"
    found = list(
        declared_table(where, table, (*texts(target.references), *target.every_source), "table that a run of it pins")
    )
    yield from found
    own, there = tables.get(target.name) or {}, None if found else tables.get(table)
    if there is None:
        return
    yield from in_columns(target.name, f"gate {gate}", key, table, there)
    for one, other in zip(columns, key, strict=True):
        if one in own and other in there and not _compare(own[one], there[other]):
            yield Problem(
                f"{one!r} is {own[one]}, and {other!r} of {table} is {there[other]}",
                "what refers and what is referred to are of one type, but for the digits of whole numbers and decimals",
                "name another column, or give them one type",
                where,
            )


def _compare(one: pl.DataType, other: pl.DataType) -> bool:
    """Whether values of two types are equal where they are the same, and nowhere else: Spark casts what differs."""
    if isinstance(one, pl.Decimal) and isinstance(other, pl.Decimal):
        return one.scale == other.scale
    return one == other or (one.is_integer() and other.is_integer())
