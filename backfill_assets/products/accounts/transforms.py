"""From the changes of the bank's table to what an account was when: pure functions of their input frames.

Put here what a change of the bank means: its columns, and what older versions of them are called now. What changes come to is the
platform's to say, in `declarations.changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everybody gives it

from backfill_assets.declarations.changes import daily_state, history, renamed
from backfill_assets.declarations.source_tables import Readers, as_it_is
from backfill_assets.declarations.target import Inputs, TransformContext, TransformVersion

SOURCE_TABLE = "public.accounts"
_FIRST = "account_id bigint, owner string, email string, balance decimal(12, 2), opened_at bigint, note string"
_SECOND = f"{_FIRST}, tier string"
ROW = _SECOND.replace("email", "contact")
"""The table's columns today. The address was named `email` until it could be another one."""
READERS = Readers(
    "schema_version",
    {"1": renamed(_FIRST, {"email": "contact"}), "2": renamed(_SECOND, {"email": "contact"}), "3": as_it_is},
)
ACCOUNT = ("account_id", "opened_on", "owner", "contact", "balance", "note", "tier")
_ENDS = ("valid_to_lsn", "valid_to")
_EVERY_DAY = 36_500


def every_day_before(_references: Mapping[str, list[dict[str, Any]]]) -> int:
    """Return so many days that all changes before are read: what an account is follows from its first change on."""
    return _EVERY_DAY


def account_history(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return what each account was, from one commit up to another."""
    del context
    found = _named(history(_changes(inputs), ROW))
    return found.select(*ACCOUNT, "valid_from_lsn", "valid_from", *_ENDS, "is_observed", "is_end_observed")


def account_daily(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return each account at the end of each day of the context's chunks."""
    first, last = min(chunk.start for chunk in context.chunks), max(chunk.end for chunk in context.chunks)
    found = _named(daily_state(_changes(inputs), ROW, first, last))
    return found.select(*ACCOUNT, "day", F.col("valid_from").alias("changed_at"))


def account_state(inputs: Inputs, context: TransformContext) -> DataFrame:
    """Return each account as the last stretch of its history says it, by the order of commits."""
    del context
    newest = Window.partitionBy("account_id", "opened_on").orderBy(F.col("valid_from_lsn").desc())
    last = inputs.source.withColumn("_place", F.row_number().over(newest)).where("_place = 1")
    closed = F.col("valid_to_lsn").isNotNull()
    return last.select(
        *ACCOUNT,
        closed.alias("is_closed"),
        F.coalesce("valid_to", "valid_from").alias("changed_at"),
        F.coalesce("is_end_observed", "is_observed").alias("is_observed"),
        F.coalesce("valid_to_lsn", "valid_from_lsn").alias("source_version"),
    )


def _changes(inputs: Inputs) -> DataFrame:
    return inputs.source.where(F.col("source_table") == SOURCE_TABLE)


def _named(rows: DataFrame) -> DataFrame:
    """Return rows with the number of each account as text, and the day on which it was opened."""
    opened = F.to_date(F.timestamp_micros("opened_at"))
    return rows.withColumns({"account_id": F.col("account_id").cast("string"), "opened_on": opened})


HISTORY_VERSIONS = {"1.0.0": TransformVersion(account_history)}
DAILY_VERSIONS = {"1.0.0": TransformVersion(account_daily)}
STATE_VERSIONS = {"1.0.0": TransformVersion(account_state)}
