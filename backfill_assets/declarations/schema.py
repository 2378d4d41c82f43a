"""One declaration a table: everything else that knows its columns is derived here from its pandera model.

Iceberg and Spark schemas only; Dagster's column schema is derived where Dagster is imported. This module is imported
by Spark's Python workers: keep it light.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import pandera.polars as pa
import polars as pl
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)
from pyspark.sql import types as spark

Instant = Annotated[pl.Datetime, "us", "UTC"]
"""Type of a column that holds points in time (timestamptz)."""
LINEAGE_COLUMNS = ("run_id", "processing_mode", "transform_version", "input_snapshot_id", "produced_at")
"""Columns that every published row carries; constant within a run."""
TABLE_PROPERTIES = {
    # one small snapshot a publication: keep the metadata of the last hundred in the metadata file
    "write.metadata.previous-versions-max": "100",
    "write.delete.isolation-level": "serializable",
    "write.parquet.compression-codec": "zstd",
    # commits to other scopes come between often, and each is short: ask again soon rather than ever later
    "commit.retry.num-retries": "10",
    "commit.retry.max-wait-ms": "250",
}
"""Of every table that is made here."""

_MOST_DIGITS = 38
_OF_ONE_ROW = "of one row"


def row_rule(name: str) -> Callable[[Callable[..., pl.LazyFrame]], Any]:
    """Declare a rule about one row at a time: a method that returns a Boolean for each row, from that row's values alone.

    It is a `pandera.dataframe_check` with that promise: many small chunks are held against it at once, as they are
    against the checks of a field. A rule that looks at several rows is a `dataframe_check`.

    Raises:
        TypeError: without a name; as a bare `@row_rule` it would be no rule at all, and nothing would ever fail.
    """
    if not isinstance(name, str) or not name.strip():
        raise TypeError('a row_rule has a name: @row_rule("no negative amounts")')
    decorated: Callable[..., Any] = pa.dataframe_check(name=name, statistics={_OF_ONE_ROW: True})
    return decorated


def is_row_rule(check: pa.Check) -> bool:
    """Whether a check of a model was declared as a `row_rule`."""
    return bool((check.statistics or {}).get(_OF_ONE_ROW))


class Published(pa.DataFrameModel):
    """The lineage columns of a published row; a target's model inherits from it."""

    run_id: str = pa.Field(description="Run that produced the row; its evidence is found under this id.")
    processing_mode: str = pa.Field(description="Execution mode of that run.")
    transform_version: str = pa.Field(description="Version of the transform that produced the row.")
    input_snapshot_id: pl.Int64 = pa.Field(description="Iceberg snapshot of the source that was read.")
    produced_at: Instant = pa.Field(description="The run clock: the run's only 'now'.")

    class Config:
        """Columns are exactly the declared ones."""

        strict = True


class Corrections(Published):
    """Columns of a corrections table; a product's model adds the key columns of the table that is corrected."""

    correction_id: str = pa.Field(
        str_length={"min_value": 64, "max_value": 64},
        unique=True,
        description="Hash of the accepted row and what it is corrected to: a pair is issued once.",
    )
    event_type: str = pa.Field(isin=("ADDED", "CHANGED", "REMOVED"), description="What became of the key's row.")
    corrects_run_id: str = pa.Field(nullable=True, description="Run of the accepted row; empty for one that is added.")
    old_values: str = pa.Field(nullable=True, description="The accepted row's other columns, as JSON text.")
    new_values: str = pa.Field(nullable=True, description="The corrected row's other columns, as JSON text.")
    reason: str = pa.Field(description="Why, from the run's manifest.")


def dtypes(model: type[pa.DataFrameModel]) -> dict[str, pl.DataType]:
    """Return a model's columns and their Polars types, in order: a target's own columns first, lineage last."""
    columns = model.to_schema().columns
    names = [name for name in columns if name not in LINEAGE_COLUMNS]
    names += [name for name in LINEAGE_COLUMNS if name in columns]
    return {name: columns[name].dtype.type for name in names}


def is_column_name(name: str) -> bool:
    """Return whether a model can have a column of a name: as an attribute that neither Python nor pandera has a use for."""
    usable = name.isidentifier() and name.isascii() and not name.startswith("_") and not keyword.iskeyword(name)
    return usable and not hasattr(pa.DataFrameModel, name)


def descriptions(model: type[pa.DataFrameModel]) -> dict[str, str]:
    """Return a model's column descriptions."""
    return {name: column.description or "" for name, column in model.to_schema().columns.items()}


def iceberg_schema(model: type[pa.DataFrameModel]) -> Schema:
    """Return the Iceberg schema of a model.

    Columns are optional in Iceberg whatever the model says of nulls: Spark writes every column it has computed as
    optional, and PyIceberg refuses such a file for a required column. The gate is what refuses nulls.
    """
    docs, kinds = descriptions(model), dtypes(model)
    nested_id = len(kinds) + 1  # as PyIceberg numbers them: the columns first, then what is inside them
    fields = []
    for field_id, (name, dtype) in enumerate(kinds.items(), start=1):
        kind = iceberg_type(name, dtype, nested_id)
        nested_id += isinstance(kind, ListType)
        fields.append(NestedField(field_id, name, kind, required=False, doc=docs[name] or None))
    return Schema(*fields)


def iceberg_type(name: str, dtype: pl.DataType, nested_id: int) -> Any:
    """Return the Iceberg type of a column; `nested_id` is the field id of what is inside a list.

    Raises:
        TypeError: if there is none for it.
    """
    if isinstance(dtype, pl.List):
        inner = iceberg_type(name, dtype.inner, nested_id)  # type: ignore[arg-type]
        return ListType(element_id=nested_id, element_type=inner, element_required=False)
    if isinstance(dtype, pl.Decimal):
        precision = _MOST_DIGITS if dtype.precision is None else dtype.precision
        if not (0 < precision <= _MOST_DIGITS and 0 <= dtype.scale <= precision):
            raise TypeError(
                f"column {name}: a decimal has 1 to {_MOST_DIGITS} digits, and after the point no more than these; "
                f"not {precision} and {dtype.scale}"
            )
        return DecimalType(precision, dtype.scale)
    if isinstance(dtype, pl.Datetime):
        if (dtype.time_unit, dtype.time_zone) != ("us", "UTC"):
            raise TypeError(f"column {name}: instants are Datetime('us', 'UTC'), not {dtype}")
        return TimestamptzType()
    simple: dict[Any, PrimitiveType] = {
        pl.String: StringType(),
        pl.Int32: IntegerType(),
        pl.Int64: LongType(),
        pl.Float64: DoubleType(),
        pl.Boolean: BooleanType(),
        pl.Date: DateType(),
    }
    found = simple.get(dtype.base_type())
    if found is None:
        raise TypeError(f"column {name}: {dtype} has no Iceberg type here")
    return found


_SPARK_TYPES: dict[type, spark.DataType] = {
    StringType: spark.StringType(),
    IntegerType: spark.IntegerType(),
    LongType: spark.LongType(),
    DoubleType: spark.DoubleType(),
    BooleanType: spark.BooleanType(),
    DateType: spark.DateType(),
    TimestamptzType: spark.TimestampType(),
}


def spark_type(kind: Any) -> spark.DataType:
    """Return the Spark type of an Iceberg type."""
    if isinstance(kind, DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        return spark.ArrayType(spark_type(kind.element_type))
    return _SPARK_TYPES[type(kind)]


def spark_schema(schema: Schema, columns: Sequence[str] | None = None, *, field_ids: bool = True) -> spark.StructType:
    """Return the Spark schema of an Iceberg schema, with the field ids by which Parquet columns are found."""
    wanted = [field for field in schema.fields if columns is None or field.name in columns]
    return spark.StructType(
        [
            spark.StructField(
                field.name,
                spark_type(field.field_type),
                True,
                {"parquet.field.id": field.field_id} if field_ids else None,
            )
            for field in wanted
        ]
    )
