"""One declaration a table: everything else that knows its columns is derived here from its pandera model.

Iceberg and Spark schemas only; Dagster's column schema is derived where Dagster is imported. This module is imported
by Spark's Python workers: keep it light.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count
from typing import Annotated, Any

import pandera.polars as pa
import polars as pl
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyspark.sql import types as spark

from backfill_assets.declarations.column_types import Uuid, instance_of, no_map_key

Instant = Annotated[pl.Datetime, "us", "UTC"]
"""Type of a column that holds points in time (timestamptz)."""
LINEAGE_COLUMNS = ("run_id", "processing_mode", "transform_version", "input_snapshot_id", "produced_at")
"""Columns that every published row carries; constant within a run."""
LATER_LINEAGE_COLUMNS = ("transform_name", "input_start", "input_end", "reference_versions", "run_reason")
"""Columns that rows carry besides where a model asks for them, by `PublishedInFull`; constant within a run."""
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
    """The lineage columns of a published row; a target's model inherits from it, unless its table has none."""

    run_id: str = pa.Field(description="Run that produced the row; its evidence is found under this id.")
    processing_mode: str = pa.Field(description="Execution mode of that run.")
    transform_version: str = pa.Field(description="Version of the transform that produced the row.")
    input_snapshot_id: pl.Int64 = pa.Field(description="Iceberg snapshot of the source that was read.")
    produced_at: Instant = pa.Field(description="The run clock: the run's only 'now'.")

    class Config:
        """Columns are exactly the declared ones."""

        strict = True


class PublishedInFull(Published):
    """The lineage columns of `Published`, and those that say by themselves what was computed from what, and why.

    They may be NULL: a table that gets them later has rows without. What a run stages has every one of them, and none is part of
    a digest or a diff.
    """

    transform_name: str = pa.Field(nullable=True, description="Name of the transform that produced the row.")
    input_start: pl.Date = pa.Field(nullable=True, description="First day of the source's rows that the run read.")
    input_end: pl.Date = pa.Field(nullable=True, description="Last day of the source's rows that the run read.")
    reference_versions: str = pa.Field(
        nullable=True, description="Version and snapshot of each reference table, by name; empty text if there is none."
    )
    run_reason: str = pa.Field(nullable=True, description="Why, from the run's manifest.")


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


def has_lineage(model: type[pa.DataFrameModel]) -> bool:
    """Whether rows of a table say which run made them; else the ledger and the snapshot's summary do, chunk by chunk."""
    return issubclass(model, Published)


def lineage_columns(model: type[pa.DataFrameModel]) -> tuple[str, ...]:
    """Return the columns of a model that the platform fills: they identify no row, and are in no digest and no diff."""
    return (*LINEAGE_COLUMNS, *(LATER_LINEAGE_COLUMNS if issubclass(model, PublishedInFull) else ()))


def dtypes(model: type[pa.DataFrameModel]) -> dict[str, pl.DataType]:
    """Return a model's columns and their Polars types, in order: a target's own columns first, lineage last."""
    columns, lineage = model.to_schema().columns, lineage_columns(model)
    names = [name for name in columns if name not in lineage]
    names += [name for name in lineage if name in columns]
    return {name: columns[name].dtype.type for name in names}


def summed_columns(model: type[pa.DataFrameModel], key: Collection[str]) -> tuple[str, ...]:
    """Return the columns of a model whose sums are exact and say something: whole and decimal numbers that identify no row."""
    own = {name: kind for name, kind in dtypes(model).items() if name not in {*key, *lineage_columns(model)}}
    return tuple(name for name, kind in own.items() if kind.is_integer() or isinstance(kind, pl.Decimal))


def is_column_name(name: str) -> bool:
    """Return whether a model can have a column of a name: as an attribute that neither Python nor pandera has a use for."""
    usable = name.isidentifier() and name.isascii() and not name.startswith("_") and not keyword.iskeyword(name)
    return usable and not hasattr(pa.DataFrameModel, name)


def descriptions(model: type[pa.DataFrameModel]) -> dict[str, str]:
    """Return a model's column descriptions."""
    return {name: column.description or "" for name, column in model.to_schema().columns.items()}


def uuids(model: type[pa.DataFrameModel]) -> frozenset[str]:
    """Return a model's columns of UUIDs: in a frame their type is that of bytes."""
    return frozenset(name for name, one in model.to_schema().columns.items() if isinstance(one.dtype, Uuid))


def iceberg_schema(model: type[pa.DataFrameModel]) -> Schema:
    """Return the Iceberg schema of a model.

    Columns are optional in Iceberg whatever the model says of nulls: Spark writes every column it has computed as
    optional, and PyIceberg refuses such a file for a required column. The gate is what refuses nulls.
    """
    docs, kinds, own = descriptions(model), dtypes(model), uuids(model)
    ids = count(1)
    fields = []
    for name, dtype in kinds.items():
        kind = UUIDType() if name in own else iceberg_type(name, dtype, ids)
        fields.append(NestedField(next(ids), name, kind, required=False, doc=docs[name] or None))
    return assign_fresh_schema_ids(Schema(*fields))  # as a table's are numbered when it is made


_SIMPLE: dict[Any, PrimitiveType] = {
    pl.String: StringType(),
    pl.Int32: IntegerType(),
    pl.Int64: LongType(),
    pl.Float32: FloatType(),
    pl.Float64: DoubleType(),
    pl.Boolean: BooleanType(),
    pl.Date: DateType(),
    pl.Time: TimeType(),
    pl.Binary: BinaryType(),
}


def iceberg_type(name: str, dtype: pl.DataType, ids: Iterator[int] | None = None) -> Any:
    """Return the Iceberg type of a column; what is inside it is numbered by `ids`.

    Raises:
        TypeError: if there is none for it.
    """
    ids = count(1) if ids is None else ids
    try:
        kind = instance_of(dtype)
    except TypeError as error:
        raise TypeError(f"column {name}: {error}") from error
    if isinstance(kind, pl.List):
        inner = iceberg_type(f"{name}.element", kind.inner, ids)  # type: ignore[arg-type]
        return ListType(element_id=next(ids), element_type=inner, element_required=False)
    if isinstance(kind, pl.Struct):
        return _struct_type(name, kind, ids)
    if isinstance(kind, pl.Map):
        if why := no_map_key(instance_of(kind.key)):
            raise TypeError(f"column {name}: {instance_of(kind.key)} is no key of a map: {why}")
        key, value = (iceberg_type(f"{name}.{one}", of, ids) for one, of in (("key", kind.key), ("value", kind.value)))  # type: ignore[arg-type]
        return MapType(next(ids), key, next(ids), value, value_required=False)
    return _primitive_type(name, kind)


def _primitive_type(name: str, kind: pl.DataType) -> PrimitiveType:
    if isinstance(kind, pl.Decimal):
        precision = _MOST_DIGITS if kind.precision is None else kind.precision
        if not (0 < precision <= _MOST_DIGITS and 0 <= kind.scale <= precision):
            raise TypeError(
                f"column {name}: a decimal has 1 to {_MOST_DIGITS} digits, and after the point no more than these; "
                f"not {precision} and {kind.scale}"
            )
        return DecimalType(precision, kind.scale)
    if isinstance(kind, pl.Datetime):
        if kind.time_unit != "us" or kind.time_zone not in {None, "UTC"}:
            raise TypeError(f"column {name}: instants are Datetime('us', 'UTC'), not {kind}")
        return TimestampType() if kind.time_zone is None else TimestamptzType()
    found = _SIMPLE.get(kind.base_type())
    if found is None:
        raise TypeError(f"column {name}: {kind} has no Iceberg type here")
    return found


def _struct_type(name: str, kind: pl.Struct, ids: Iterator[int]) -> StructType:
    small = [one.name.lower() for one in kind.fields]
    if not small or len(set(small)) < len(small):
        what = "no field" if not small else "two fields of one name, as Spark and SQL read it"
        raise TypeError(f"column {name}: a struct with {what}")
    return StructType(
        *(
            NestedField(next(ids), one.name, iceberg_type(f"{name}.{one.name}", one.dtype, ids), required=False)  # type: ignore[arg-type]
            for one in kind.fields
        )
    )


def polars_type(kind: Any) -> pl.DataType:
    """Return the Polars type of an Iceberg type; of a UUID that of bytes.

    Raises:
        ValueError: if a column of a target has no such type.
    """
    if isinstance(kind, DecimalType):
        return pl.Decimal(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        return pl.List(polars_type(kind.element_type))
    if isinstance(kind, MapType):
        return pl.Map(polars_type(kind.key_type), polars_type(kind.value_type))
    if isinstance(kind, StructType):
        return pl.Struct({one.name: polars_type(one.field_type) for one in kind.fields})
    if isinstance(kind, TimestamptzType | TimestampType):
        return pl.Datetime("us", "UTC" if isinstance(kind, TimestamptzType) else None)
    if isinstance(kind, UUIDType):
        return pl.Binary()
    for name, one in _SIMPLE.items():
        if one == kind:
            return instance_of(name)
    raise ValueError(f"{kind} is no type of a digest's column")


_SPARK_TYPES: dict[type, spark.DataType] = {
    StringType: spark.StringType(),
    IntegerType: spark.IntegerType(),
    LongType: spark.LongType(),
    FloatType: spark.FloatType(),
    DoubleType: spark.DoubleType(),
    BooleanType: spark.BooleanType(),
    DateType: spark.DateType(),
    TimeType: spark.TimeType(6),
    TimestampType: spark.TimestampNTZType(),
    TimestamptzType: spark.TimestampType(),
    BinaryType: spark.BinaryType(),
    UUIDType: spark.BinaryType(),
}


def spark_type(kind: Any, *, field_ids: bool = True) -> spark.DataType:
    """Return the Spark type of an Iceberg type; of a UUID its bytes."""
    if isinstance(kind, DecimalType):
        return spark.DecimalType(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        return spark.ArrayType(spark_type(kind.element_type, field_ids=field_ids))
    if isinstance(kind, MapType):
        return spark.MapType(
            spark_type(kind.key_type, field_ids=field_ids), spark_type(kind.value_type, field_ids=field_ids)
        )
    if isinstance(kind, StructType):
        return _spark_struct(kind.fields, field_ids=field_ids)
    return _SPARK_TYPES[type(kind)]


def spark_schema(schema: Schema, columns: Sequence[str] | None = None, *, field_ids: bool = True) -> spark.StructType:
    """Return the Spark schema of an Iceberg schema, with the field ids by which Parquet columns are found."""
    wanted = [field for field in schema.fields if columns is None or field.name in columns]
    return _spark_struct(wanted, field_ids=field_ids)


def _spark_struct(fields: Sequence[NestedField], *, field_ids: bool) -> spark.StructType:
    return spark.StructType(
        [
            spark.StructField(
                field.name,
                spark_type(field.field_type, field_ids=field_ids),
                True,
                {"parquet.field.id": field.field_id} if field_ids else None,
            )
            for field in fields
        ]
    )
