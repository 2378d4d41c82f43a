"""A product of three sources that a merge and LIVE keep up: what an account books on a day, under its limit, at the fee of that day.

Entries and limits say whose they are; fees are everybody's. Put here the declaration, its rows, and what counting by hand gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pandera.polars as pa
import polars as pl
import pyarrow as arrow
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import backfill_assets as ba
from backfill_assets.declarations.schema import iceberg_schema
from backfill_assets.installation import Platform
from manifests.model import RunManifest
from manifests.reading import manifest_from
from resources.lakehouse.facade import LOAD_PROPERTY
from resources.settings import load_settings

ENTRIES, LIMITS, FEES, BALANCES = "bronze.entries", "bronze.limits", "bronze.fees", "gold.balances"
FIRST, LAST = date(2024, 1, 1), date(2024, 2, 29)
LONG_AGO = date(2023, 1, 1)
Row = dict[str, Any]


class Entry(pa.DataFrameModel):
    """What an account has booked."""

    account: str
    booked_at: ba.Instant
    cents: pl.Int64


class Limit(pa.DataFrameModel):
    """What an account may owe, from a day on."""

    account: str
    valid_from: pl.Date
    cents: pl.Int64


class Fee(pa.DataFrameModel):
    """What a booking costs everybody, from a day on."""

    valid_from: pl.Date
    cents: pl.Int64


class Balance(ba.Published):
    """What an account has booked on a day."""

    account: str
    day: pl.Date
    booked: pl.Int64
    limit: pl.Int64
    fees: pl.Int64


def balances(inputs: ba.Inputs, _: ba.TransformContext) -> DataFrame:
    """Return the bookings by account and day, with the limit and the fee that hold on it; 0 where there is none."""
    days = inputs.source.groupBy("account", F.to_date("booked_at").alias("day")).agg(
        F.sum("cents").alias("booked"), F.count("*").alias("entries")
    )
    limits = inputs.sources[LIMITS].select("account", "valid_from", F.col("cents").alias("limit"))
    fees = inputs.sources[FEES].select(F.col("valid_from").alias("fee_from"), F.col("cents").alias("fee"))
    limited = days.join(
        limits, (days["account"] == limits["account"]) & (limits["valid_from"] <= days["day"]), "left"
    ).drop(limits["account"])
    known = limited.join(fees, F.col("fee_from") <= F.col("day"), "left")
    newest = Window.partitionBy("account", "day").orderBy(
        F.col("valid_from").desc_nulls_last(), F.col("limit"), F.col("fee_from").desc_nulls_last(), F.col("fee")
    )
    return (
        known.withColumn("place", F.row_number().over(newest))
        .where("place = 1")
        .select(
            "account",
            "day",
            "booked",
            F.coalesce("limit", F.lit(0).cast("bigint")).alias("limit"),
            (F.col("entries") * F.coalesce("fee", F.lit(0).cast("bigint"))).alias("fees"),
        )
    )


TARGET = ba.TargetTable(
    name=BALANCES,
    description="A row an account and day.",
    model=Balance,
    key=("account", "day"),
    day_column="day",
    chunking=ba.Chunking.MONTH,
    chunks_from="2024-01",
    chunks_until="2024-12",
    source=ENTRIES,
    source_time_column="booked_at",
    sources=(
        ba.SourceTable(LIMITS, "valid_from", reads=ba.EVERYTHING_UNTIL_END, may_be_empty=True),
        ba.SourceTable(FEES, "valid_from", reads=ba.EVERYTHING_UNTIL_END, may_be_empty=True),
    ),
    versions={"1.0.0": ba.TransformVersion(balances)},
    owners=("team:accounts",),
    entity="account",
)
INPUTS = (
    ba.InputTable(ENTRIES, "Entries as booked.", Entry, owners=("team:accounts",), partition_by="booked_at"),
    ba.InputTable(LIMITS, "Limits of accounts.", Limit, owners=("team:accounts",)),
    ba.InputTable(FEES, "Fees of bookings.", Fee, owners=("team:accounts",)),
)
MODELS: dict[str, type[pa.DataFrameModel]] = {ENTRIES: Entry, LIMITS: Limit, FEES: Fee}


def product(target: ba.TargetTable = TARGET) -> ba.Product:
    """Return the product with one target; its code is this module."""
    return ba.Product("accounts", INPUTS, (target,), code=("benchmarks.accounts",))


def opened(home: Path, target: ba.TargetTable = TARGET, **settings: Any) -> Platform:
    """Return an installation that serves the product, of which nothing is made yet but its catalog."""
    platform = Platform.of(load_settings(home=home, **settings), [product(target)])
    home.mkdir(parents=True, exist_ok=True)
    platform.lakehouse.create_catalog()
    return platform


def load(platform: Platform, table: str, rows: Sequence[Row], name: str) -> int:
    """Load rows into a table; return its snapshot."""
    schema = schema_to_pyarrow(iceberg_schema(MODELS[table]), include_field_ids=False)
    platform.lakehouse.append(table, [arrow.Table.from_pylist(list(rows), schema)], {LOAD_PROPERTY: name})
    snapshot_id = platform.lakehouse.snapshot_id(table)
    assert snapshot_id is not None
    return snapshot_id


def entries(first: date = FIRST, last: date = LAST, accounts: int = 7) -> list[Row]:
    """Return an entry of one account after the other, two a day."""
    found = []
    for number in range(2 * ((last - first).days + 1)):
        day = first + timedelta(days=number // 2)
        at = datetime(day.year, day.month, day.day, 9 + number % 2, tzinfo=UTC)
        found.append({"account": f"a{number % accounts}", "booked_at": at, "cents": 100 + number})
    return found


def limits(accounts: int = 7) -> list[Row]:
    """Return a limit an account, and another for every second one from a day on."""
    old = [{"account": f"a{one}", "valid_from": LONG_AGO, "cents": 1_000 * (one + 1)} for one in range(accounts)]
    return old + [{**old[one], "valid_from": date(2024, 2, 10), "cents": 5} for one in range(0, accounts, 2)]


def fees() -> list[Row]:
    """Return the fee, and another from a day on."""
    return [{"valid_from": LONG_AGO, "cents": 3}, {"valid_from": date(2024, 2, 1), "cents": 4}]


def manifest(run_id: str, start: date = FIRST, end: date = LAST, **changes: Any) -> RunManifest:
    """Return the contract of a run over days."""
    text: dict[str, Any] = {
        "runId": run_id,
        "kind": "RESTATEMENT",
        "requestedBy": "ana",
        "reason": "a reason that is long enough",
        "source": {"table": ENTRIES},
        "transform": {"name": TARGET.transform, "version": "1.0.0"},
        "target": {"table": BALANCES, "publishRange": {"start": start, "end": end}},
        "development": True,
    }
    return manifest_from(text | changes)


def expected(
    booked: Sequence[Row], limited: Sequence[Row], costs: Sequence[Row]
) -> dict[tuple[str, date], tuple[int, ...]]:
    """Return what counting by hand gives: booked, limit and fees by account and day."""
    found: dict[tuple[str, date], list[int]] = {}
    for row in booked:
        found.setdefault((row["account"], row["booked_at"].date()), []).append(row["cents"])

    def newest(rows: Sequence[Row], day: date) -> int:
        valid = [row for row in rows if row["valid_from"] <= day]
        return max(valid, key=lambda row: row["valid_from"])["cents"] if valid else 0

    return {
        (account, day): (
            sum(cents),
            newest([row for row in limited if row["account"] == account], day),
            len(cents) * newest(costs, day),
        )
        for (account, day), cents in found.items()
    }


def rows_of(platform: Platform, snapshot_id: int | None = None) -> list[Row]:
    """Return what readers get, by account and day."""
    found = platform.lakehouse.table(BALANCES).scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(found, key=lambda row: (row["account"], row["day"]))


def values_of(rows: Sequence[Row]) -> dict[tuple[str, date], tuple[int, ...]]:
    """Return rows as `expected` has them."""
    return {(row["account"], row["day"]): (row["booked"], row["limit"], row["fees"]) for row in rows}
