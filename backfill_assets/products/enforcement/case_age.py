"""The enforcement product with one column more: how old the case was on each day. The example of a column that comes later.

`products = ["backfill_assets.products.enforcement.case_age:PRODUCT"]` in backfill.toml serves it instead of `enforcement`:
then `backfill init` adds the column to a table with a history, rows that are there have none, and a run of 3.2.0 fills it.
Versions of before say that they are without it, so that what they publish, and its digests, stay what they were.
"""

from __future__ import annotations

from dataclasses import replace

import pandera.polars as pa
import polars as pl
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.schema import row_rule
from backfill_assets.declarations.target import ColumnOrigin, Inputs, TransformContext, TransformVersion
from backfill_assets.products import enforcement
from backfill_assets.products.enforcement import schemas, transforms

COLUMN = "case_age_days"
VERSION = "3.2.0"


class CaseSlaDaily(schemas.CaseSlaDaily):
    """One row per case, clock and day on which the clock ran, with the age of the case."""

    case_age_days: pl.Int32 = pa.Field(
        nullable=True,
        ge=0,
        description=f"Days since the case's first event; empty in rows of versions before {VERSION}.",
    )

    @row_rule("a case is as old as its clocks, or older")
    def _as_old_as_its_clocks(cls, data: pa.PolarsData) -> pl.LazyFrame:  # noqa: N805
        age = pl.col(COLUMN)
        return data.lazyframe.select(age.is_null() | (age >= pl.col("days_open")))


def with_case_age(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Compute the rows of 3.1.0, each with the days since the first event of its case, whatever that was."""
    zones = context.references[transforms.RULES].select("jurisdiction", "time_zone").distinct()
    needed = ("case_id", "jurisdiction", "event_at")
    events = inputs.source.select(*needed)
    if inputs.look_back is not None:
        events = events.unionByName(inputs.look_back.select(*needed))
    # no event after a row's day is the first of its case: the clock has begun with one
    first = (
        events.join(F.broadcast(zones), "jurisdiction")
        .groupBy("case_id", "jurisdiction")
        .agg(F.min(transforms.local_date(F.col("event_at"), F.col("time_zone"))).alias("_first_on"))
    )
    rows = transforms.case_sla_daily(inputs, context).join(first, ["case_id", "jurisdiction"], "left")
    return rows.withColumn(COLUMN, F.datediff("business_date", "_first_on")).drop("_first_on")


_TABLE = enforcement.CASE_SLA_DAILY
assert _TABLE.live is not None
CASE_SLA_DAILY = replace(
    _TABLE,
    model=CaseSlaDaily,
    versions={
        **{name: replace(version, without=(COLUMN,)) for name, version in _TABLE.versions.items()},
        VERSION: TransformVersion(with_case_age),
    },
    column_origins={**_TABLE.column_origins, COLUMN: (ColumnOrigin(_TABLE.source, "event_at"),)},
    live=replace(_TABLE.live, transform_version=VERSION),
)
PRODUCT = replace(enforcement.PRODUCT, targets=(CASE_SLA_DAILY,))
