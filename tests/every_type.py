"""A target that has a column of every type, and an input table with the same columns: for tests of what becomes of values.

Put here the declarations and a few rows. What is done with them is for the tests.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any
from uuid import UUID

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import backfill_assets as ba

STOP = pl.Struct({"place": pl.String, "at": pl.List(pl.Time), "fee": pl.Decimal(10, 2)})
KINDS: dict[str, pl.DataType] = {
    "words": pl.String(),
    "small": pl.Int32(),
    "large": pl.Int64(),
    "yes": pl.Boolean(),
    "on": pl.Date(),
    "at": pl.Datetime("us", "UTC"),
    "amount": pl.Decimal(12, 2),
    "huge": pl.Decimal(38, 4),
    "single": pl.Float32(),
    "double": pl.Float64(),
    "raw": pl.Binary(),
    "id": pl.Binary(),
    "clock": pl.Time(),
    "local": pl.Datetime("us"),
    "tags": pl.List(pl.String),
    "stop": STOP,
    "prices": pl.Map(pl.String, pl.Float64),
    "stops": pl.List(STOP),
    "by_day": pl.Map(pl.Date, pl.List(pl.Struct({"x": pl.Int64, "labels": pl.Map(pl.String, pl.String)}))),
}
"""Every kind of column, by its name here; `id` holds UUIDs."""


class EveryType(ba.Published):
    """A row with a value of every type."""

    name: str = pa.Field(description="Whose.")
    day: date = pa.Field(description="When.")
    words: str = pa.Field(nullable=True)
    small: pl.Int32 = pa.Field(nullable=True)
    large: pl.Int64 = pa.Field(nullable=True)
    yes: bool = pa.Field(nullable=True)
    on: pl.Date = pa.Field(nullable=True)
    at: ba.Instant = pa.Field(nullable=True)
    amount: Annotated[pl.Decimal, 12, 2] = pa.Field(nullable=True)
    huge: Annotated[pl.Decimal, 38, 4] = pa.Field(nullable=True)
    single: pl.Float32 = pa.Field(nullable=True)
    double: pl.Float64 = pa.Field(nullable=True)
    raw: pl.Binary = pa.Field(nullable=True)
    id: ba.Uuid = pa.Field(nullable=True)
    clock: pl.Time = pa.Field(nullable=True)
    local: ba.LocalTimestamp = pa.Field(nullable=True)
    tags: pl.List(pl.String) = pa.Field(nullable=True)  # type: ignore[valid-type]
    stop: STOP = pa.Field(nullable=True)  # type: ignore[valid-type]
    prices: pl.Map(pl.String, pl.Float64) = pa.Field(nullable=True)  # type: ignore[valid-type]
    stops: pl.List(STOP) = pa.Field(nullable=True)  # type: ignore[valid-type]
    by_day: KINDS[by_day] = pa.Field(nullable=True)  # type: ignore[valid-type]


class Events(pa.DataFrameModel):
    """The same, as it came in."""

    name: str
    seen_at: ba.Instant
    words: str = pa.Field(nullable=True)
    small: pl.Int32 = pa.Field(nullable=True)
    large: pl.Int64 = pa.Field(nullable=True)
    yes: bool = pa.Field(nullable=True)
    on: pl.Date = pa.Field(nullable=True)
    at: ba.Instant = pa.Field(nullable=True)
    amount: Annotated[pl.Decimal, 12, 2] = pa.Field(nullable=True)
    huge: Annotated[pl.Decimal, 38, 4] = pa.Field(nullable=True)
    single: pl.Float32 = pa.Field(nullable=True)
    double: pl.Float64 = pa.Field(nullable=True)
    raw: pl.Binary = pa.Field(nullable=True)
    id: ba.Uuid = pa.Field(nullable=True)
    clock: pl.Time = pa.Field(nullable=True)
    local: ba.LocalTimestamp = pa.Field(nullable=True)
    tags: pl.List(pl.String) = pa.Field(nullable=True)  # type: ignore[valid-type]
    stop: STOP = pa.Field(nullable=True)  # type: ignore[valid-type]
    prices: pl.Map(pl.String, pl.Float64) = pa.Field(nullable=True)  # type: ignore[valid-type]
    stops: pl.List(STOP) = pa.Field(nullable=True)  # type: ignore[valid-type]
    by_day: KINDS[by_day] = pa.Field(nullable=True)  # type: ignore[valid-type]


def as_they_came(inputs: ba.Inputs, _context: ba.TransformContext) -> DataFrame:
    """Return the rows as they are."""
    return inputs.source.withColumn("day", F.to_date("seen_at")).drop("seen_at")


def with_another_fee(inputs: ba.Inputs, context: ba.TransformContext) -> DataFrame:
    """Return the rows with one value, deep inside, changed, and a double moved by next to nothing."""
    rows = as_they_came(inputs, context)
    dearer = F.transform("stops", lambda one: one.withField("fee", (one["fee"] + 1).cast("decimal(10, 2)")))
    near = F.when(F.col("name") == "b", F.col("double") + F.lit(1e-12)).otherwise(F.col("double"))
    return rows.withColumn("stops", F.when(F.col("name") == "a", dearer).otherwise(F.col("stops"))).withColumn(
        "double", near
    )


SOURCE = ba.InputTable("bronze.every_type", "Values of every type.", Events, ("team:tests",), partition_by="seen_at")
TARGET = ba.TargetTable(
    name="silver.every_type",
    description="A row a name and day.",
    model=EveryType,
    key=("name", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2020-01",
    chunks_until="2020-12",
    source=SOURCE.name,
    source_time_column="seen_at",
    transform="every_type",
    versions={"1": ba.TransformVersion(as_they_came), "2": ba.TransformVersion(with_another_fee)},
    owners=("team:tests",),
    entity="name",
)
PRODUCT = ba.Product("every_type", (SOURCE,), (TARGET,))


def some_rows() -> list[dict[str, Any]]:
    """Return three rows of the source: values at the edge of their types, usual ones, and NULLs."""
    stop: dict[str, Any] = {
        "place": "Turin",
        "at": [time(8, 15), None, time(23, 59, 59, 999_999)],
        "fee": Decimal("1.50"),
    }
    return [
        {
            "name": "a",
            "seen_at": datetime(2020, 1, 3, 6, tzinfo=UTC),
            "words": "Zürich \u2713",
            "small": -(2**31),
            "large": 2**63 - 1,
            "yes": True,
            "on": date(2012, 2, 29),
            "at": datetime(2012, 2, 29, 23, 59, 59, 999_999, UTC),
            "amount": Decimal("-35.05"),
            "huge": Decimal("9" * 34 + "." + "9999"),
            "single": float("nan"),
            "double": -0.0,
            "raw": b"\x00\xff\x80",
            "id": UUID("12345678-1234-5678-1234-567812345678").bytes,
            "clock": time(23, 59, 59, 999_999),
            "local": datetime(2020, 3, 29, 2, 30),  # noqa: DTZ001 - of no zone
            "tags": ["x", None, ""],
            "stop": stop,
            "prices": {"z": float("nan"), "a": 1.5, "m": None},
            "stops": [stop, None, {"place": None, "at": None, "fee": None}],
            "by_day": {
                date(2020, 2, 1): [{"x": 1, "labels": {"b": "2", "a": "1"}}, None],
                date(2020, 1, 1): [],
            },
        },
        {
            **dict.fromkeys(KINDS),
            "name": "b",
            "seen_at": datetime(2020, 1, 4, 6, tzinfo=UTC),
            "double": 0.1,
            "single": float("inf"),
            "huge": Decimal("9" * 34 + "." + "9999"),
            "tags": [],
            "prices": {},
            "stop": {"place": None, "at": [], "fee": None},
        },
        {**dict.fromkeys(KINDS), "name": "c", "seen_at": datetime(2020, 2, 5, 6, tzinfo=UTC) + timedelta(days=1)},
    ]


def frame_of(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return rows of the source as a frame."""
    kinds = {"name": pl.String(), "seen_at": pl.Datetime("us", "UTC"), **KINDS}
    return pl.DataFrame([pl.Series(name, [row[name] for row in rows], kind) for name, kind in kinds.items()])
