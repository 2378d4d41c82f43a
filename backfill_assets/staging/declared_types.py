"""The declared types of a target's columns: what keeps a transform's output from having them, and giving them to it.

Put here how a frame gets the types of its table. Which type fits which is `declarations.output_types`'; which columns there must be,
`rows`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.schema import Schema
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it
from pyspark.sql import types as spark

from backfill_assets.declarations.output_types import fits, way_out
from backfill_assets.declarations.schema import spark_schema
from backfill_assets.declarations.target import TargetTable
from manifests.errors import Problem
from manifests.plan import Plan
from resources.spark.engines import other_engine

_NUMBERS = (spark.IntegralType, spark.DecimalType)


def type_problems(target: TargetTable, plan: Plan, rows: DataFrame, schema: Schema) -> list[Problem]:
    """Say of which columns the values a cast to the declared type could change.

    An engine other than Spark may have another type for the same number: `with_declared_columns` then holds each value to it.
    """
    other = other_engine(rows.sparkSession)
    declared = {field.name: field.dataType for field in spark_schema(schema).fields}
    found = {field.name: field.dataType for field in rows.schema.fields}
    return [
        Problem(
            f"{plan.transform} {plan.transform_version} returned {name} of {target.name} as "
            f"{kind.simpleString()}; it is declared as {declared[name].simpleString()}",
            "a column has its declared type, or one that widens to it without loss: nothing is rounded, truncated or parsed",
            way_out(kind, declared[name]),
        )
        for name, kind in found.items()
        if name in declared and not fits(kind, declared[name]) and not (other and _are_numbers(kind, declared[name]))
    ]


def _are_numbers(*kinds: spark.DataType) -> bool:
    """Return whether types are of numbers that are exact: of those a comparison tells whether a cast has changed one."""
    return all(isinstance(kind, _NUMBERS) for kind in kinds)


def _same_in(value: Column, kind: spark.DataType, name: str) -> Column:
    """Return a number in another type; computing one that is another number there fails."""
    cast = value.try_cast(kind)
    says = F.concat(F.lit(f"{name} is no {kind.simpleString()}: "), value.cast("string"))
    return F.when(value.isNull() | (cast == value), cast).otherwise(F.raise_error(says).cast(kind))


def with_declared_columns(
    rows: DataFrame, schema: Schema, constants: Mapping[str, Any], keep: Sequence[str] = ()
) -> DataFrame:
    """Add the lineage columns, cast to the declared types and attach field ids, which a cast drops: they come last.

    Columns to `keep` are the platform's own, and stay as they are. Of an engine other than Spark a number of a type that does not
    fit the declared one is held to be the same in it, row by row: the job fails at one that is not. The engine's notes say which.
    """
    other = other_engine(rows.sparkSession)
    found = {} if other is None else {field.name: field.dataType for field in rows.schema.fields}
    columns = []
    for field in spark_schema(schema).fields:
        value = F.lit(constants[field.name]) if field.name in constants else F.col(field.name)
        kind = found.get(field.name, field.dataType)
        if other is not None and field.name not in constants and not fits(kind, field.dataType):
            other.note(
                f"{other} has {field.name} as {kind.simpleString()} where {field.dataType.simpleString()} is declared: each value was held "
                "to be the same in the declared type"
            )
            value = _same_in(value, field.dataType, field.name)
        columns.append(value.cast(field.dataType).alias(field.name, metadata=field.metadata))
    return rows.select(*columns, *keep)
