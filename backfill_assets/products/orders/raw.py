"""The raw shape of a file of order lines, and which of its rows are lines at all.

Put here what a delivered row looks like, and the rules that make it either a typed line or a quarantined record with a reason.
Every row becomes exactly one of the two. What a line means is `rules`'s; how a file is read in batches, `raw_files`'.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import polars as pl

from backfill_assets.delivered_files import is_no_text, without_nul

INVOICE, STOCK_CODE, DESCRIPTION, QUANTITY = "InvoiceNo", "StockCode", "Description", "Quantity"
INVOICED, PRICE, CUSTOMER, COUNTRY = "InvoiceDate", "UnitPrice", "CustomerID", "Country"
REQUIRED_COLUMNS: Final = (INVOICE, STOCK_CODE, DESCRIPTION, QUANTITY, INVOICED, PRICE, CUSTOMER, COUNTRY)
"""The columns of every file of order lines; others are left alone."""
ZONE: Final = "Europe/London"
"""The shop's: lines state its local time, without an offset."""

_UTC: Final = pl.Datetime("us", "UTC")
_LARGEST_INT32: Final = 2**31 - 1


class Reason(StrEnum):
    """Why a row is no line; of several, the first in this order is recorded."""

    BAD_INVOICE = "BAD_INVOICE"
    """The invoice number is not a letter, or none, and 1 to 10 digits."""
    BAD_STOCK_CODE = "BAD_STOCK_CODE"
    """The stock code is empty, or no text."""
    BAD_DESCRIPTION = "BAD_DESCRIPTION"
    """The description has a NUL, or begins with a byte order mark."""
    BAD_QUANTITY = "BAD_QUANTITY"
    """The quantity is no whole number of 32 bits."""
    BAD_TIME = "BAD_TIME"
    """The time is no local time such as 2010-12-01 08:26:00."""
    AMBIGUOUS_TIME = "AMBIGUOUS_TIME"
    """The local time was skipped, or was there twice, when the clocks were changed: it is no instant."""
    BAD_PRICE = "BAD_PRICE"
    """The price is no number with up to 9 digits and three decimals."""
    BAD_CUSTOMER = "BAD_CUSTOMER"
    """The customer is neither empty nor a whole number."""


_RULES: Final = {
    Reason.BAD_INVOICE: (INVOICE, "it must be up to one letter and 1 to 10 digits"),
    Reason.BAD_STOCK_CODE: (STOCK_CODE, "it must be text of 1 to 20 characters"),
    Reason.BAD_DESCRIPTION: (DESCRIPTION, "it must have no NUL and no byte order mark in front"),
    Reason.BAD_QUANTITY: (QUANTITY, "it must be a whole number of 32 bits"),
    Reason.BAD_TIME: (INVOICED, "it must be an existing local time such as 2010-12-01 08:26:00"),
    Reason.AMBIGUOUS_TIME: (INVOICED, f"clocks were changed then in {ZONE}: it is no instant, or two"),
    Reason.BAD_PRICE: (PRICE, "it must be a number with up to 9 digits and three decimals"),
    Reason.BAD_CUSTOMER: (CUSTOMER, "it must be a whole number, or empty"),
}


@dataclass(frozen=True, slots=True, eq=False)
class Classified:
    """A batch split in two, in file order: typed lines, and quarantined rows."""

    lines: pl.DataFrame
    quarantined: pl.DataFrame


def classify(batch: pl.DataFrame, *, source_system: str, source_file: str, ingested_at: datetime) -> Classified:
    """Make each row of a batch a line or a quarantined record, dropping none.

    `batch` has `REQUIRED_COLUMNS` as text, and `source_row`. An identifier that a spreadsheet has made a float of
    ("17850.0") is read as the whole number that it was.
    """
    judged = batch.lazy().with_columns(_typed()).with_columns(_reason().alias("_reason")).collect()
    at = pl.lit(ingested_at.astimezone(UTC), dtype=_UTC)
    good = judged.filter(pl.col("_reason").is_null())
    lines = good.select(
        pl.col(INVOICE).alias("invoice_no"),
        pl.col(STOCK_CODE).alias("stock_code"),
        pl.col(DESCRIPTION).alias("description"),
        pl.col("_quantity").cast(pl.Int32).alias("quantity"),
        pl.col("_price").alias("unit_price"),
        pl.col("_customer").alias("customer_id"),
        pl.col(COUNTRY).alias("country"),
        pl.col("_at").alias("invoiced_at"),
        pl.col("_local").dt.date().alias("business_day"),
        pl.lit(source_system).alias("source_system"),
        pl.lit(source_file).alias("source_file"),
        pl.col("source_row").cast(pl.Int64),
        at.alias("extracted_at"),
    )
    quarantined = judged.filter(pl.col("_reason").is_not_null()).select(
        pl.lit(source_file).alias("source_file"),
        pl.col("source_row").cast(pl.Int64),
        pl.col("_reason").alias("reason"),
        _detail().alias("detail"),
        pl.struct(pl.col(REQUIRED_COLUMNS)).struct.json_encode().alias("record"),
        at.alias("ingested_at"),
    )
    return Classified(lines, quarantined)


def _typed() -> list[pl.Expr]:
    """Return what is read of each row: NULL where it cannot be read."""
    whole = r"^-?[0-9]{1,10}(?:\.0+)?$"
    quantity = _where(QUANTITY, whole).str.replace(r"\.0+$", "").cast(pl.Int64)
    local = _where(INVOICED, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}$")
    local = local.str.replace("T", " ").str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False)
    instant = local.dt.replace_time_zone(ZONE, ambiguous="null", non_existent="null").dt.convert_time_zone("UTC")
    customer = _where(CUSTOMER, r"^[0-9]{1,10}(?:\.0+)?$").str.replace(r"\.0+$", "")
    price = _where(PRICE, r"^-?[0-9]{1,9}(?:\.[0-9]{1,3}0*)?$").cast(pl.Decimal(12, 3), strict=False)
    return [
        quantity.alias("_quantity"),
        local.alias("_local"),
        instant.alias("_at"),
        customer.alias("_customer"),
        price.alias("_price"),
    ]


def _where(column: str, pattern: str) -> pl.Expr:
    text = pl.col(column)
    return pl.when(text.str.contains(pattern)).then(text)


def _reason() -> pl.Expr:
    """Return the first rule that a row breaks, in the order of `Reason`, or NULL."""
    code, said, customer = pl.col(STOCK_CODE), pl.col(DESCRIPTION), pl.col(CUSTOMER)
    failures = {
        Reason.BAD_INVOICE: ~pl.col(INVOICE).str.contains(r"^[A-Za-z]?[0-9]{1,10}$").fill_null(value=False),
        Reason.BAD_STOCK_CODE: ~code.str.strip_chars().str.len_chars().is_between(1, 20).fill_null(value=False)
        | is_no_text(code),
        Reason.BAD_DESCRIPTION: is_no_text(said).fill_null(value=False),
        Reason.BAD_QUANTITY: ~(pl.col("_quantity").abs() <= _LARGEST_INT32).fill_null(value=False),
        Reason.BAD_TIME: pl.col("_local").is_null(),
        Reason.AMBIGUOUS_TIME: pl.col("_at").is_null(),
        Reason.BAD_PRICE: pl.col("_price").is_null(),
        Reason.BAD_CUSTOMER: (customer.fill_null("") != "") & pl.col("_customer").is_null(),
    }
    return pl.coalesce(
        pl.when(failure).then(pl.lit(reason.value)).otherwise(None) for reason, failure in failures.items()
    )


def _detail() -> pl.Expr:
    """Return, for a quarantined row, the offending value and the rule in words."""
    return pl.coalesce(
        pl.when(pl.col("_reason") == reason.value)
        .then(pl.concat_str(pl.lit(f"{column} is "), _shown(column), pl.lit(f": {why}")))
        .otherwise(None)
        for reason, (column, why) in _RULES.items()
    )


def _shown(column: str) -> pl.Expr:
    return pl.concat_str(pl.lit("'"), without_nul(pl.col(column)), pl.lit("'")).fill_null("null")
